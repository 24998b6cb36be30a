"""Forward pass of the traffic network for one car, and the choice among its candidates."""

from __future__ import annotations

import math
from typing import Any

from robotrl.sims.bev.traffic.learned.layout import (
    CANDIDATES,
    HEAD,
    LINE,
    LINE_WIDTH,
    LINES,
    LINES_AT,
    MASK_AT,
    MODES,
    PIECES,
    PLACES,
    RESIDUAL_MPS2,
    SEEN,
    TRUNK,
)
from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.geometry import uniform

TRUNK_0, TRUNK_1 = PLACES["trunk.0.weight"], PLACES["trunk.1.weight"]
LINE_0, LINE_1 = PLACES["line.0.weight"], PLACES["line.1.weight"]
ANCHORS, PROFILE, PROFILE_BIAS = PLACES["anchors"], PLACES["profile.weight"], PLACES["profile.bias"]
SCORE_TRUNK, SCORE_LINE = PLACES["score.trunk.weight"], PLACES["score.line.weight"]
SCORE_MODE, SCORE_OUT = PLACES["score.mode.weight"], PLACES["score.out.weight"]
TEMPERATURE = PLACES["temperature"]
LINE_INPUTS = len(LINE)

HIDDEN_AT = 0
TRUNK_AT = HIDDEN_AT + TRUNK
"""Place of the trunk's output in the scratch of the forward pass."""
LINE_HIDDEN_AT = TRUNK_AT + TRUNK
LINE_AT = LINE_HIDDEN_AT + LINE_WIDTH
FROM_TRUNK_AT = LINE_AT + LINE_WIDTH
FROM_LINE_AT = FROM_TRUNK_AT + HEAD
SCORES_AT = FROM_LINE_AT + HEAD
"""Place of the candidates' scores in the scratch."""
SCRATCH = SCORES_AT + CANDIDATES
MASKED = -1.0e9
"""Score of a candidate whose line the car may not take."""


@kernel
def multiply(weights: Any, at: int, x: Any, x_at: int, inputs: int, out: Any, out_at: int, outputs: int) -> None:
    """Add x W to the output; W (inputs, outputs) begins at `at` of the flat parameters."""
    for i in range(inputs):
        value = x[x_at + i]
        # half of the hidden units are zero
        if value != 0.0:
            row = at + i * outputs
            for j in range(outputs):
                out[out_at + j] += value * weights[row + j]


@kernel
def dense(weights: Any, at: int, x: Any, x_at: int, inputs: int, out: Any, out_at: int, outputs: int) -> None:
    """Write relu(x W + b); b follows W."""
    bias = at + inputs * outputs
    for j in range(outputs):
        out[out_at + j] = weights[bias + j]
    multiply(weights, at, x, x_at, inputs, out, out_at, outputs)
    for j in range(outputs):
        out[out_at + j] = max(out[out_at + j], 0.0)


@kernel
def evaluate(weights: Any, x: Any, scratch: Any) -> None:
    """Write the trunk's output and the candidates' scores of a car with input x (INPUT,) into scratch (SCRATCH,)."""
    dense(weights, TRUNK_0, x, 0, SEEN, scratch, HIDDEN_AT, TRUNK)
    dense(weights, TRUNK_1, scratch, HIDDEN_AT, TRUNK, scratch, TRUNK_AT, TRUNK)
    bias = SCORE_TRUNK + TRUNK * HEAD
    for j in range(HEAD):
        scratch[FROM_TRUNK_AT + j] = weights[bias + j]
    multiply(weights, SCORE_TRUNK, scratch, TRUNK_AT, TRUNK, scratch, FROM_TRUNK_AT, HEAD)
    for line in range(LINES):
        if x[MASK_AT + line] == 0.0:
            for mode in range(MODES):
                scratch[SCORES_AT + line * MODES + mode] = MASKED
            continue
        dense(weights, LINE_0, x, LINES_AT + line * LINE_INPUTS, LINE_INPUTS, scratch, LINE_HIDDEN_AT, LINE_WIDTH)
        dense(weights, LINE_1, scratch, LINE_HIDDEN_AT, LINE_WIDTH, scratch, LINE_AT, LINE_WIDTH)
        for j in range(HEAD):
            scratch[FROM_LINE_AT + j] = scratch[FROM_TRUNK_AT + j]
        multiply(weights, SCORE_LINE, scratch, LINE_AT, LINE_WIDTH, scratch, FROM_LINE_AT, HEAD)
        for mode in range(MODES):
            score, row = 0.0, SCORE_MODE + mode * HEAD
            for j in range(HEAD):
                score += weights[SCORE_OUT + j] * max(scratch[FROM_LINE_AT + j] + weights[row + j], 0.0)
            scratch[SCORES_AT + line * MODES + mode] = score


@kernel
def choose(weights: Any, scratch: Any, seed: int, stream: int) -> int:
    """Candidate drawn from the softmax of the scores over the network's temperature; at 0 the one with the best score.

    Draws by the Gumbel-max trick, with random numbers from the streams `stream` to `stream + CANDIDATES`.
    """
    temperature = weights[TEMPERATURE]
    best, found = -2.0e9, 0
    for g in range(CANDIDATES):
        score = float(scratch[SCORES_AT + g])
        if score <= 0.5 * MASKED:
            continue
        if temperature > 0.0:
            score -= temperature * math.log(-math.log(max(uniform(seed, stream + g), 1.0e-12)))
        if score > best:
            best, found = score, g
    return found


@kernel
def piece(weights: Any, scratch: Any, mode: int, k: int) -> float:
    """Acceleration, m/s^2, of piece k of a mode's profile, after `evaluate`."""
    column = mode * PIECES + k
    raw = weights[PROFILE_BIAS + column]
    for i in range(TRUNK):
        raw += scratch[TRUNK_AT + i] * weights[PROFILE + i * MODES * PIECES + column]
    return weights[ANCHORS + column] + RESIDUAL_MPS2 * math.tanh(raw)
