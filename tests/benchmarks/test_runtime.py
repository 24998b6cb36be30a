"""The bench of the servo's lateness, and the adversarial ticks of its safety chain."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.faults import servo
from benchmarks.faults.kind import Outcome
from benchmarks.runtime.bench import against, run
from robotrl.deploy.control.safety import NONE, Mode, Reason, SafetyLimits

LIMITS = SafetyLimits(
    low=np.float32([-1.0]),
    high=np.float32([1.0]),
    max_step=np.float32([0.25]),
    neutral=np.float32([0.0]),
    hold="last",
    bad_ticks_to_damp=3,
    ramp_ticks=0,
    max_observation_age_s=0.1,
    plausible={},
)


def test_ratios_are_above_1_where_the_servo_is_less_late() -> None:
    figure = against([2.0, 4.0, 3.0], [3.0, 3.0, 6.0], "by hand", "bare loop")
    assert (figure.value, figure.peer_value, figure.ratio) == (3.0, 3.0, 1.0)
    assert (figure.ratio_low, figure.ratio_high, figure.low, figure.high) == (0.75, 2.0, 2.0, 4.0)


def test_a_quick_run_measures_every_kind_of_block() -> None:
    figures = run(quick=True)
    kinds = [f"{servo}{frozen}" for servo in ("servo", "native_servo") for frozen in ("", "_inference_frozen")]
    inferences = {"inference_us", "native_inference_us"}
    assert {*figures} == {f"{k}_lateness_{p}_us" for k in kinds for p in ("p50", "p99", "max")} | inferences
    for name, figure in figures.items():
        assert figure.value is not None and figure.value > 0.0, name
        assert name in inferences or (figure.peer_value is not None and figure.peer_value > 0.0), name


@pytest.mark.parametrize(
    ("mode", "sent", "observed", "why"),
    [
        (Mode.ACTIVE, [0.25], NONE, ""),
        (Mode.ACTIVE, [0.2501], NONE, "a step beyond its limit"),
        (Mode.HOLD, [1.0], Reason.OBS_STALE, ""),
        (Mode.ACTIVE, [0.1], Reason.OBS_STALE, "active on a bad tick"),
        (Mode.HOLD, [1.0001], Reason.OBS_STALE, "outside the limits"),
        (Mode.ACTIVE, [float("nan")], NONE, "not finite"),
        (Mode.ACTIVE, [0.0, 0.0], NONE, "not finite"),
    ],
)
def test_an_unsafe_command_is_noticed(mode: Mode, sent: list[float], observed: Reason, why: str) -> None:
    given = servo._Given(observed, None)
    assert servo._unsafe(LIMITS, np.float32([0.0]), mode, np.float32(sent), given) == why


@pytest.mark.parametrize("kind", servo.KINDS, ids=lambda kind: kind.name)
def test_adversarial_ticks_are_contained(kind, tmp_path) -> None:
    assert servo.TICKS * servo.EPISODES * len(servo.KINDS) == 2_000_000, "a million for each servo"
    assert kind.attempt(np.random.default_rng(1), tmp_path) == Outcome.CONTAINED
