"""The safety chain, tick by tick against numbers worked by hand."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tests.kits.deploy_kit as kit
from robotrl.deploy.bundle import manifest as schema
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.bundle.measured import MeasuredAs, measured_as
from robotrl.deploy.control.safety import (
    BAD,
    NONE,
    Mode,
    Reason,
    SafetyChain,
    SafetyLimits,
    SafetyState,
    check_observation,
    decide,
    limits_of,
    start,
)
from robotrl.deploy.native.chain import NativeChain
from robotrl.errors import DataError

NAN, INF = float("nan"), float("inf")


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def limits(**changes: object) -> SafetyLimits:
    base = SafetyLimits(
        low=f32(-1, -2),
        high=f32(1, 2),
        max_step=None,
        neutral=f32(0, 0.5),
        hold="neutral",
        bad_ticks_to_damp=3,
        ramp_ticks=0,
        max_observation_age_s=0.1,
        plausible={},
    )
    return base._replace(**changes)


def obs(*values: float) -> dict[str, np.ndarray]:
    return {"state": f32(*values)}


def test_a_good_action_passes_unchanged() -> None:
    verdict = decide(limits(), start(limits()), NONE, f32(0.3, -1.9))
    assert verdict.action.tolist() == f32(0.3, -1.9).tolist()
    assert (verdict.mode, verdict.reason) == (Mode.ACTIVE, NONE)


def test_what_lies_outside_is_clamped() -> None:
    verdict = decide(limits(), start(limits()), NONE, f32(7, -2.5))
    assert verdict.action.tolist() == [1.0, -2.0]
    assert (verdict.mode, verdict.reason) == (Mode.ACTIVE, Reason.CLAMPED)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("place", [0, 1])
def test_an_action_that_is_not_finite_never_becomes_a_limit(bad: float, place: int) -> None:
    action = f32(0.2, 0.2)
    action[place] = bad
    verdict = decide(limits(), start(limits()), NONE, action)
    assert verdict.action.tolist() == [0.0, 0.5]
    assert (verdict.mode, verdict.reason) == (Mode.HOLD, Reason.ACTION_NOT_FINITE)


def test_a_position_is_held_by_repeating_it_and_a_delta_by_neutral() -> None:
    for hold, expected in (("last", [0.3, 1.0]), ("neutral", [0.0, 0.5])):
        rules = limits(hold=hold)
        moved = decide(rules, start(rules), NONE, f32(0.3, 1.0))
        held = decide(rules, moved.state, Reason.OBS_STALE, None)
        assert held.action.tolist() == f32(*expected).tolist()
        assert held.mode == Mode.HOLD


def test_bad_ticks_hold_then_damp_and_damp_is_latched() -> None:
    rules = limits()
    state = start(rules)
    modes = []
    for observed in (NONE, Reason.OBS_STALE, NONE, Reason.OBS_STALE, Reason.OBS_NOT_FINITE, Reason.OBS_STALE, NONE):
        verdict = decide(rules, state, observed, f32(0.1, 0.1))
        state = verdict.state
        modes.append(verdict.mode.name)
    # Two bad ticks in a row hold; a good one in between starts the count again; the third in a row damps for good.
    assert modes == ["ACTIVE", "HOLD", "ACTIVE", "HOLD", "HOLD", "DAMP", "DAMP"]
    assert verdict.reason == Reason.DAMPED
    assert verdict.action.tolist() == [0.0, 0.5]


def test_the_rate_limit_is_against_what_was_sent() -> None:
    rules = limits(max_step=f32(0.25, 10))
    first = decide(rules, start(rules), NONE, f32(1, 0))
    assert first.action.tolist() == [0.25, 0.0]
    assert first.reason == Reason.RATE_LIMITED
    second = decide(rules, first.state, NONE, f32(9, 0))
    assert second.action.tolist() == [0.5, 0.0]
    assert second.reason == Reason.CLAMPED | Reason.RATE_LIMITED
    third = decide(rules, second.state, NONE, f32(0.4, 0))
    assert third.action.tolist() == f32(0.4, 0).tolist()
    assert third.reason == NONE


def test_the_blend_in_starts_at_neutral_and_ends_at_the_action() -> None:
    rules = limits(ramp_ticks=3)
    state, seen = start(rules), []
    for _ in range(5):
        verdict = decide(rules, state, NONE, f32(0.8, 1.5))
        state = verdict.state
        seen.append((verdict.action.round(4).tolist(), verdict.reason))
    ramp = Reason.RAMPED
    # neutral (0, 0.5) plus 1/4, 2/4, 3/4 of the way to (0.8, 1.5)
    assert seen[:3] == [
        (pytest.approx([0.2, 0.75]), ramp),
        (pytest.approx([0.4, 1.0]), ramp),
        (pytest.approx([0.6, 1.25]), ramp),
    ]
    assert seen[3:] == [(pytest.approx([0.8, 1.5]), NONE)] * 2


def test_observations_are_tested_finite_first_then_fresh_then_plausible() -> None:
    rules = limits(plausible={"state": (f32(-1, -INF), f32(1, INF))})
    assert check_observation(rules, obs(0.5, 100), 0.05) == NONE
    assert check_observation(rules, obs(1, 0), 0.1) == NONE
    assert check_observation(rules, obs(1.5, 0), 0.05) == Reason.OBS_IMPLAUSIBLE
    assert check_observation(rules, obs(0, 0), 0.101) == Reason.OBS_STALE
    assert check_observation(rules, obs(0, 0), NAN) == Reason.OBS_STALE
    for bad in (NAN, INF, -INF):
        assert check_observation(rules, obs(0, bad), 9.0) == Reason.OBS_NOT_FINITE


def test_a_missing_or_misshapen_action_holds() -> None:
    for action in (None, f32(1), f32(1, 2, 3)):
        verdict = decide(limits(), start(limits()), NONE, action)
        assert (verdict.mode, verdict.reason) == (Mode.HOLD, Reason.ACTION_MISSING)


def test_counters_and_reset() -> None:
    chain = SafetyChain(limits())
    chain.decide(NONE, f32(5, 0))
    for _ in range(3):
        chain.decide(Reason.OBS_STALE, None)
    counters = chain.counters
    assert (counters.ticks, counters.held, counters.damped) == (4, 2, 1)
    assert counters.reasons["clamped"] == 1
    assert counters.reasons["obs_stale"] == 3
    assert counters.reasons["damped"] == 1
    chain.reset()
    assert chain.decide(NONE, f32(0.5, 0)).mode == Mode.ACTIVE
    assert chain.counters.ticks == 5


def test_ticks_on_the_way_to_the_start_are_counted_apart() -> None:
    chain = SafetyChain(limits())
    chain.decide(Reason.STARTING, f32(5, 0))
    chain.decide(Reason.STARTING | Reason.OBS_STALE, None)
    chain.hand_over()
    chain.decide(NONE, f32(0, 0))
    found, start = chain.counters, chain.start_counters
    assert (found.ticks, found.held, sum(found.reasons.values())) == (1, 0, 0)
    assert (start.ticks, start.held, start.reasons["starting"], start.reasons["clamped"]) == (2, 1, 2, 1)


floats = st.floats(width=32, allow_nan=True, allow_infinity=True)


@settings(max_examples=300, deadline=None)
@given(
    actions=st.lists(st.tuples(floats, floats), min_size=1, max_size=12),
    observed=st.lists(st.sampled_from([NONE, Reason.OBS_STALE, Reason.OBS_NOT_FINITE]), min_size=12, max_size=12),
    hold=st.sampled_from(["neutral", "last"]),
    step=st.one_of(st.none(), st.floats(2**-10, 5, width=32)),
    ramp=st.integers(0, 4),
)
def test_whatever_comes_in_what_goes_out_is_finite_within_limits_and_near_the_last(
    actions: list[tuple[float, float]], observed: list[Reason], hold: str, step: float | None, ramp: int
) -> None:
    rules = limits(hold=hold, max_step=None if step is None else f32(step, step), ramp_ticks=ramp)
    state: SafetyState = start(rules)
    for action, seen in zip(actions, observed, strict=False):
        with np.errstate(all="raise", under="ignore"):
            verdict = decide(rules, state, seen, f32(*action))
        assert np.isfinite(verdict.action).all()
        assert (verdict.action >= rules.low).all()
        assert (verdict.action <= rules.high).all()
        if step is not None and verdict.mode == Mode.ACTIVE:
            assert (np.abs(verdict.action - state.last) <= np.float32(step) * (1 + 1e-5) + 1e-6).all()
        assert (verdict.mode == Mode.ACTIVE) == (not verdict.reason & BAD and not state.damped)
        state = verdict.state


def test_the_limits_come_from_the_bundle(tmp_path_factory: pytest.TempPathFactory) -> None:
    path: Path = kit.made("flow", tmp_path_factory.getbasetemp())[0]
    rules = limits_of(open_bundle(path).manifest)
    assert rules.low.tolist() == [-2.0, -1.0]
    assert rules.high.tolist() == [2.0, 1.0]
    assert rules.hold == "neutral"
    assert rules.max_observation_age_s == pytest.approx(0.04)


@cache
def _flow() -> schema.Manifest:
    return open_bundle(kit.made("flow", Path(tempfile.mkdtemp()))[0]).manifest


@st.composite
def bundles(draw: st.DrawFn) -> SafetyLimits:
    """Limits of any manifest that the check lets pass, however odd."""
    manifest = _flow()
    odd = st.sampled_from([1e-30, 1e-7, 1.0, 1e6, 1e12])
    low, high = -draw(odd), draw(odd)
    port = replace(manifest.io.outputs[0], low=(None, None), high=(None, None))
    made = replace(
        manifest,
        io=replace(manifest.io, outputs=(port, manifest.io.outputs[1])),
        safety=replace(
            manifest.safety,
            low=(low, low),
            high=(high, high),
            neutral=(draw(st.sampled_from([low, 0.0, high])),) * 2,
            max_step=draw(st.sampled_from([None, (1e-30, 1.0), (1e12, 1e12)])),
            ramp_in_s=draw(st.sampled_from([0.0, 0.1, 3600.0])),
            bad_ticks_to_damp=draw(st.integers(1, 4)),
        ),
    )
    try:
        return limits_of(schema.sealed(made))
    except DataError:
        assume(False)
        raise


HOSTILE = st.sampled_from([0.0, NAN, INF, -INF, 1e38, -1e38, 3.4e38, 1e-45, 1e308, -1e308, 0.5])


@settings(max_examples=80, deadline=None)
@given(enforced=bundles(), ticks=st.lists(st.tuples(HOSTILE, HOSTILE, HOSTILE, st.booleans()), min_size=1, max_size=30))
def test_whatever_comes_what_is_sent_is_finite_and_within_the_limits(
    enforced: SafetyLimits, ticks: list[tuple[float, float, float, bool]]
) -> None:
    chain = SafetyChain(enforced)
    for i, (number, other, age_s, there) in enumerate(ticks):
        with np.errstate(all="ignore"):
            observation = {"state": np.full(4, number, np.float32), "touch": np.full(1, other, np.float32)}
            observed = chain.check(observation, age_s, 0.02 * i)
            verdict = chain.decide(observed, np.array([number, other]) if there else None)
        assert np.isfinite(verdict.action).all()
        assert (verdict.action >= enforced.low).all()
        assert (verdict.action <= enforced.high).all()


MEASURED = (MeasuredAs("state", 0, "a_pos", 1.0, "rad"), MeasuredAs("state", 1, "b_offset", 0.25, "rad"))


def placed(**changes: object) -> SafetyLimits:
    """Limits of a robot of positions: each target is measured, the second one in units of 0.25 rad."""
    return limits(hold="last", measured=MEASURED, **changes)


def test_a_robot_of_positions_starts_where_it_stands() -> None:
    """At 0.9 with small steps, "stay" is no motion; from the middle of the range it would be one of 0.9."""
    chain = SafetyChain(placed(max_step=f32(0.05, 0.05)))
    for a, b in ((0.9, 0.5), (-0.4, -0.125)):  # the second episode begins elsewhere
        chain.reset()
        assert chain.check(obs(a, b), 0.0, 0.0) == NONE
        stay = chain.decide(NONE, f32(a, b / 0.25))
        assert (stay.action.tolist(), stay.reason) == (f32(a, b / 0.25).tolist(), NONE)
        away = chain.decide(NONE, f32(a + 1, b / 0.25))
        assert away.reason & Reason.RATE_LIMITED and away.action[0] == pytest.approx(min(a + 0.05, 1.0))


def test_blend_in_begins_where_a_robot_of_positions_stands() -> None:
    chain = SafetyChain(placed(ramp_ticks=3))
    chain.check(obs(0.2, 0.0), 0.0, 0.0)
    sent = [float(chain.decide(NONE, f32(1.0, 0.0)).action[0]) for _ in range(4)]
    assert sent == pytest.approx([0.4, 0.6, 0.8, 1.0])


def test_a_robot_of_positions_is_held_where_it_stands_before_its_first_action() -> None:
    chain = SafetyChain(placed())
    chain.check(obs(0.7, 0.25), 0.0, 0.0)
    assert chain.decide(NONE, None).action.tolist() == f32(0.7, 1.0).tolist()


def test_without_a_measured_position_limits_start_from_the_first_action() -> None:
    chain = SafetyChain(limits(hold="last", measured=(None, None), max_step=f32(0.05, 0.05), ramp_ticks=2))
    chain.check(obs(0.9, 0.5), 0.0, 0.0)
    assert chain.decide(NONE, f32(0.9, 0.5)).action.tolist() == f32(0.9, 0.5).tolist()
    assert chain.decide(NONE, f32(0.0, 0.5)).action[0] == pytest.approx(0.85)
    chain.reset()
    assert chain.decide(NONE, f32(-0.9, 0.5)).action.tolist() == f32(-0.9, 0.5).tolist()


def test_each_target_starts_from_what_is_known_of_it() -> None:
    """The first one from where it is measured, the second one from the first action."""
    chain = SafetyChain(limits(hold="last", measured=(MEASURED[0], None), max_step=f32(0.05, 0.05)))
    chain.check(obs(0.9, 0.5), 0.0, 0.0)
    assert chain.decide(NONE, f32(0.0, -1.5)).action.tolist() == pytest.approx([0.85, -1.5])
    assert chain.decide(NONE, f32(0.0, 1.5)).action.tolist() == pytest.approx([0.8, -1.45])


def test_the_native_chain_starts_from_the_same_place() -> None:
    rng = np.random.default_rng(0)
    for known in (MEASURED, (MEASURED[0], None), (None, None), None):
        made = limits(hold="last", measured=known, max_step=f32(0.1, 0.3), ramp_ticks=2)
        ours, theirs = SafetyChain(made), NativeChain(made, {"state": (2,)})
        for _ in range(20):
            ours.reset()
            theirs.reset()
            for tick in range(4):
                seen = {"state": rng.uniform(-1.5, 1.5, 2).astype(np.float32)}
                if tick == 0 and rng.random() < 0.3:
                    seen["state"][0] = NAN
                wanted = rng.uniform(-2, 2, 2).astype(np.float32)
                found = ours.check(seen, 0.0, 0.02 * tick)
                assert theirs.check(seen, 0.0, 0.02 * tick) == found
                verdict = ours.decide(found, wanted)
                action, mode, reason = theirs.decide(found, wanted)
                assert (action.tobytes(), mode, reason) == (verdict.action.tobytes(), verdict.mode, verdict.reason)


def test_a_measured_position_has_the_name_and_the_unit() -> None:
    ports = {"state": (("hip_pos", "hip_offset"), ("rad", "rad"))}
    assert measured_as("hip_target", "rad", ports) == MeasuredAs("state", 0, "hip_pos", 1.0, "rad")
    assert measured_as("knee_target", "rad", ports) is None and measured_as("hip_target", "m", ports) is None
