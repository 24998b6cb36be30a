"""The C++ safety chain against the Python one: the same verdicts, the same bits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robotrl.deploy.control.safety import BAD, NONE, Reason, SafetyChain, SafetyLimits
from robotrl.deploy.native.chain import NativeChain

SHAPES = {"state": (3,), "history": (2, 2)}
NASTY = np.float32(
    [0.0, -0.0, 1e-45, -1e-45, 3.4e38, -3.4e38, np.nan, np.inf, -np.inf, 1.0, -1.0, 0.5, 1e-30, 2.0, 0.25, 3.0]
)


def drawn_limits(rng: np.random.Generator) -> SafetyLimits:
    width = int(rng.integers(1, 11))
    size = 10.0 ** rng.uniform(-30, 30, width) if rng.random() < 0.3 else 10.0 ** rng.uniform(-2, 2, width)
    middle = rng.choice([0.0, 1.0, -1.0], width) * size
    low, high = (middle - size).astype(np.float32), (middle + size).astype(np.float32)
    step = (size * rng.uniform(0.001, 2.0, width)).astype(np.float32)
    step[rng.random(width) < 0.2] = np.inf
    plausible = {}
    if rng.random() < 0.5:
        plausible["state"] = (np.float32([-1, -np.inf, 0]), np.float32([1, np.inf, 2]))
    if rng.random() < 0.3:
        plausible["history"] = (np.float32([-2, -2]), np.float32([2, np.inf]))
    watched = [key for key in ("history", "camera", "state") if rng.random() < 0.5]
    return SafetyLimits(
        low=low,
        high=high,
        max_step=step if rng.random() < 0.6 else None,
        neutral=np.clip(rng.choice([0.0, -0.0, 1.0], width) * size, low, high).astype(np.float32),
        hold="last" if rng.random() < 0.5 else "neutral",
        bad_ticks_to_damp=int(rng.integers(1, 40)),
        ramp_ticks=int(rng.integers(0, 12)),
        max_observation_age_s=0.1,
        plausible=plausible,
        chooses=rng.random() < 0.15,
        max_still_s={key: float(rng.uniform(0.02, 0.3)) for key in watched},
    )


def drawn_action(rng: np.random.Generator, limits: SafetyLimits) -> np.ndarray | None:
    width = len(limits.low)
    kind = rng.random()
    if kind < 0.05:
        return None
    if kind < 0.1:
        return np.zeros(width + 1, np.float32)
    with np.errstate(all="ignore"):
        good = rng.uniform(limits.low.astype(np.float64), limits.high.astype(np.float64)).astype(np.float32)
        wide = np.where(rng.random(width) < 0.5, rng.choice(NASTY, width), good * np.float32(3))
    near = np.nextafter(limits.high, np.float32(np.inf))
    choices = [good, wide.astype(np.float32), near, limits.low, -limits.neutral, np.rint(good)]
    return choices[int(rng.integers(len(choices)))].astype(np.float32)


@pytest.mark.parametrize("seed", range(60))
def test_both_chains_give_the_same_bits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    limits = drawn_limits(rng)
    ours, theirs = SafetyChain(limits), NativeChain(limits, SHAPES, ["camera"])
    now_s, still = 0.0, {key: np.zeros(shape, np.float32) for key, shape in SHAPES.items()}
    seen: set[Reason] = set()
    for _ in range(300):
        if rng.random() < 0.01:
            ours.reset()
            theirs.reset()
        now_s += float(rng.choice([0.01, 0.02, 0.0, -0.005]))
        if rng.random() < 0.4:
            still = {key: rng.uniform(-1, 1.2, shape).astype(np.float32) for key, shape in SHAPES.items()}
        obs = dict(still)
        if rng.random() < 0.1:
            obs["state"] = rng.choice(NASTY, 3)
        obs["camera"] = np.asarray([int(rng.integers(2))], np.float64)
        age_s = float(rng.choice([0.0, 0.01, 0.1, np.nextafter(0.1, 1), math.nan, -0.002, -0.0005]))
        observed = ours.check(obs, age_s, now_s)
        assert theirs.check(obs, age_s, now_s) == observed
        assert theirs.frozen == ours.frozen
        if observed == NONE and rng.random() < 0.05:
            observed = list(BAD)[int(rng.integers(len(list(BAD))))]
        with np.errstate(all="ignore"):
            action = drawn_action(rng, limits)
            # a recovery lies within the bundle's limits, and those of a site may be tighter
            wide = rng.uniform(1.0, 1.5) if rng.random() < 0.3 else rng.uniform(0.0, 1.0)
            recovery = (limits.high * np.float32(wide)).astype(np.float32) if rng.random() < 0.3 else None
            verdict = ours.decide(observed, action, recovery)
        sent, mode, reason = theirs.decide(observed, action, recovery)
        assert (mode, reason) == (verdict.mode, verdict.reason)
        assert sent.tobytes() == verdict.action.tobytes(), (action, sent, verdict.action)
        seen.update(reason)
        # servo ticks between two control ticks, from which the next step is limited, too
        for instead in (recovery, None) if action is not None and action.shape == limits.low.shape else ():
            with np.errstate(all="ignore"):
                verdict = ours.between(action, instead)
            sent, mode, reason = theirs.between(action, instead)
            assert (mode, reason) == (verdict.mode, verdict.reason)
            assert sent.tobytes() == verdict.action.tobytes(), (action, instead, sent, verdict.action)
    assert theirs.counters == ours.counters
    assert len(seen) > 3, "the sequence reaches several branches"


floats = st.floats(width=32, allow_nan=True, allow_infinity=True)


@settings(max_examples=300, deadline=None)
@given(
    actions=st.lists(st.tuples(floats, floats), min_size=1, max_size=12),
    hold=st.sampled_from(["neutral", "last"]),
    step=st.one_of(st.none(), st.floats(2**-20, 5, width=32)),
    ramp=st.integers(0, 4),
    bad=st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_any_sequence_of_actions_gives_the_same_bits(
    actions: list[tuple[float, float]], hold: str, step: float | None, ramp: int, bad: list[bool]
) -> None:
    limits = SafetyLimits(
        low=np.float32([-1, -2]),
        high=np.float32([1, 0.0]),
        max_step=None if step is None else np.float32([step, step]),
        neutral=np.float32([-0.0, -1]),
        hold=hold,
        bad_ticks_to_damp=4,
        ramp_ticks=ramp,
        max_observation_age_s=0.1,
        plausible={},
    )
    ours, theirs = SafetyChain(limits), NativeChain(limits)
    for action, is_bad in zip(actions, bad, strict=False):
        observed = Reason.OBS_STALE if is_bad else NONE
        verdict = ours.decide(observed, np.float32(action))
        sent, mode, reason = theirs.decide(observed, np.float32(action))
        assert (sent.tobytes(), mode, reason) == (verdict.action.tobytes(), verdict.mode, verdict.reason)


def test_discrete_choices_must_be_whole_numbers() -> None:
    limits = SafetyLimits(
        low=np.float32([0, 0]),
        high=np.float32([3, 1]),
        max_step=None,
        neutral=np.float32([1, 0]),
        hold="neutral",
        bad_ticks_to_damp=3,
        ramp_ticks=0,
        max_observation_age_s=0.1,
        plausible={},
        chooses=True,
    )
    chain = NativeChain(limits)
    assert chain.decide(NONE, np.float32([2, 1]))[0].tolist() == [2, 1]
    for wrong in ([2.5, 1], [4, 1], [-1, 0]):
        sent, _, reason = chain.decide(NONE, np.float32(wrong))
        assert sent.tolist() == [1, 0] and reason & Reason.ACTION_MISSING
        chain.reset()
