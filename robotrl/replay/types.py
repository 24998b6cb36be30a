"""What goes into a replay and what comes out of it."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from torch import Tensor

from robotrl.spec import Arrays

Source = Literal["demo", "rollout", "human", "model"]
"""Who chose an action: a demonstration, the policy in training, a person who took over, a learned model."""
SOURCES: tuple[Source, ...] = get_args(Source)
"""A source is stored as its place here."""


class StepRecord(NamedTuple):
    """One env step of N streams."""

    obs: Arrays
    """(N, ...) each: the observation before the step."""
    action: Tensor
    """(N, A) executed, in the sim's units."""
    reward: Tensor
    """(N,)."""
    terminated: Tensor
    """(N,) bool."""
    truncated: Tensor
    """(N,) bool."""
    final_obs: Arrays
    """(n, ...) each: the last observation of the n episodes that ended with this step, in the order of `final_ids`."""
    final_ids: Tensor
    """(n,) int64: rows of this record that ended."""
    source: Source | Tensor = "rollout"
    """One source for all rows, or (N,) places in `SOURCES`."""
    decision: Tensor | None = None
    """(N,) bool: a chunk begins at this step; None: at every step."""
    extras: Arrays = {}  # noqa: RUF012 - never written to
    """(N, ...) float32 each: what the replay declares as extras; one that is left out is NaN."""
    log_prob: Tensor | None = None
    """(N,) log-density of the action under the policy that chose it; None: unknown, NaN."""
    cost: Tensor | None = None
    """(N,) what a safety constraint charges for the step; None: 0."""


class Transitions(NamedTuple):
    """A batch of chunks: B start steps, and what H steps from there led to; rows end early with their episode."""

    obs: Arrays
    """(B, ...) observation at the start."""
    chunk: Tensor
    """(B, H, A) actions executed, in the sim's units; the last valid one repeats where not valid."""
    valid: Tensor
    """(B, H) bool: the step was taken; False past the episode's end."""
    reward: Tensor
    """(B,) sum of gamma**k times the reward of step k, over valid steps."""
    discount: Tensor
    """(B,) gamma**steps, the factor of the value of `next_obs`; 0 where terminated."""
    next_obs: Arrays
    """(B, ...) observation after the last valid step: the episode's final one where it ended."""
    terminated: Tensor
    """(B,) bool: the task ended the episode within the chunk."""
    truncated: Tensor
    """(B,) bool: a time limit cut it; with both, `discount` is 0."""
    steps: Tensor
    """(B,) int64, number of valid steps, 1 to H."""
    source: Tensor
    """(B,) uint8: who chose the first action, a place in `SOURCES`."""
    extras: Arrays
    """(B, ...) float32 each, as stored at the start step."""
    starts: Tensor
    """(B,) int64: names of the start steps, for `set_reward` and `update_priorities`; never used twice."""
    weight: Tensor
    """(B,) float32: importance weight of the row in a loss; 1 unless the sampler prioritises."""
    cost: Tensor
    """(B,) sum of gamma**k times the cost of step k."""
    log_prob: Tensor
    """(B, H) behaviour log-density of each action; NaN when unknown or not valid."""
