"""What a robot, its sensors and a policy graph do wrong while control runs: held, then damped, with the reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tests.kits.deploy_graphs as graphs
import tests.kits.deploy_kit as kit
from robotrl.cli.main import main
from robotrl.deploy.buffers import Runtime
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.bundle.manifest import parse
from robotrl.deploy.bundle.plausible import outside_start, start_envelope
from robotrl.deploy.control.log import read_log
from robotrl.deploy.control.replay import replay
from robotrl.deploy.control.run import run_control
from robotrl.deploy.control.safety import Mode, Reason
from robotrl.deploy.robots.link import RobotFault
from robotrl.errors import DataError
from robotrl.spec import Spec
from robotrl.transforms import TransformGroup, normalize
from tests.kits.deploy_cart import BETWEEN, NEAR_THEN_FAR
from tests.kits.real_time import undisturbed

CART, STAMPED = "sim:tests.kits.deploy_cart:make_cart", "sim:tests.kits.deploy_cart:make_stamped"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kit.patient("goal", tmp_path_factory.getbasetemp())


@pytest.fixture
def copied(bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundle, tmp_path / "bundle"))


def without_ranges(data: dict[str, Any]) -> None:
    """As bundles of before were."""
    data["safety"]["limits"] = []
    for port in data["io"]["inputs"]:
        port.pop("max_still_s", None)


def damped(
    bundle: Path, robot: str, tmp_path: Path, says: str, runtime: Runtime, starts: Sequence[int] = (1100,)
) -> list[dict[str, Any]]:
    """Run episodes of which the last must end damped, and the others with success; the bad ticks at the end."""
    log = tmp_path / "log.jsonl"
    with pytest.raises(RobotFault, match=says) as caught:
        run_control(bundle, robot, state_ids=starts, log=log, runtime=runtime)
    assert "\n" not in str(caught.value)
    _, records = read_log(log)
    assert [r["success"] for r in records if r["kind"] == "episode"] == [True] * (len(starts) - 1)
    assert records[-1] == {"kind": "fault", "text": str(caught.value)}
    ticks = [r for r in records if r["kind"] == "tick"]
    modes = [r["mode"] for r in ticks]
    first = next(i for i, mode in enumerate(modes) if mode != Mode.ACTIVE)
    bad = ticks[first:]
    assert all(r["sent"] == [0.0, 0.0] for r in bad)
    assert [r["mode"] for r in bad][-5:] == [1, 1, 1, 1, 2]
    assert replay(log, bundle).sent_max_abs == 0.0
    return bad


def beside(data: dict[str, Any]) -> None:
    """The goal of the cart was never where it is."""
    data["safety"]["start"] = [
        {"quantity": "observation", "names": ["goal_pos"], "units": ["m"], "low": [0.9], "high": [1.0]}
    ]


def test_a_hand_over_outside_the_poses_of_training_is_refused(copied: Path, tmp_path: Path, runtime: Runtime) -> None:
    graphs.reseal(copied, beside)
    log = tmp_path / "log.jsonl"
    says = r"'goal_pos' of observation 'state' is -?0\.\d+ m: training saw 0\.9 to 1; no action was sent"
    with pytest.raises(RobotFault, match=says):
        run_control(copied, CART, episodes=1, log=log, runtime=runtime)
    assert [r["kind"] for r in read_log(log)[1]] == ["fault"], "no control tick"
    assert run_control(copied, CART, episodes=1, log=log, accept_start=True, runtime=runtime).successes == 1
    assert read_log(log)[0]["accept_start"] is True


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"quantity": "torque"}, r"safety.start\[0\].quantity is 'torque': expected 'observation'"),
        ({"names": ["elbow"]}, r"safety.start\[0\] names is 'elbow': expected an element of an observation"),
        ({"low": [2.0]}, r"safety.start\[0\] of 'goal_pos' is \[2.0, 1.0\]: expected low at most high"),
        ({"low": [0.0, 1.0]}, r"safety.start\[0\].low is 2: expected 1"),
    ],
)
def test_a_start_envelope_that_is_none_is_refused(copied: Path, change: dict[str, Any], says: str) -> None:
    graphs.reseal(copied, beside)
    open_bundle(copied)
    graphs.reseal(copied, lambda data: data["safety"]["start"][0].update(change))
    with pytest.raises(DataError, match=says):
        open_bundle(copied)


def test_the_start_envelope_by_hand() -> None:
    specs = {
        "state": Spec((2,), ("x", "still"), ("m", "m"), (-9.0, -9.0), (9.0, 9.0)),
        "image": Spec((1, 1, 3), ("r", "g", "b"), ("1",) * 3, (0.0,) * 3, (255.0,) * 3, "uint8"),
    }
    recorded = {"state": np.float32([[0.0, 0.5], [1.0, 0.5]])}
    (limit,) = start_envelope(specs, TransformGroup(), recorded)
    assert limit.names == ("x", "still") and limit.units == ("m", "m")
    # x: 0 to 1, a quarter more on each side; an element that never changed has no width to go by
    assert limit.low == pytest.approx((-0.25, -99.5)) and limit.high == pytest.approx((1.25, 100.5))
    # its normalizer saw mean 1 and deviation 2: -3 to 5
    scaled = TransformGroup(inputs=(normalize("state", (1.0, 0.5), (2.0, 0.0)),))
    (limit,) = start_envelope(specs, scaled, recorded)
    assert (limit.low[0], limit.high[0]) == pytest.approx((-5.0, 7.0))


def test_numbers_that_are_not_finite_are_left_to_the_safety_chain(bundle: Path) -> None:
    manifest = parse((bundle / "manifest.json").read_bytes())
    obs = {port.name: np.zeros(port.shape, np.float32) for port in manifest.observations}
    assert manifest.safety.start and outside_start(manifest.safety.start, manifest.observations, obs) == ""
    obs["state"][0] = np.nan
    assert outside_start(manifest.safety.start, manifest.observations, obs) == ""
    obs["state"][2] = 500.0
    found = outside_start(manifest.safety.start, manifest.observations, obs)
    assert found.startswith("'goal_pos' of observation 'state' is 500 m: training saw")
    # bundles of before have no envelope
    assert outside_start((), manifest.observations, obs) == ""


def test_a_bundle_without_ranges_deploys_and_says_so_once(copied: Path) -> None:
    graphs.reseal(copied, without_ranges)
    with pytest.warns(UserWarning, match="states no plausible ranges") as told:
        assert run_control(copied, CART, episodes=1).successes == 1
    assert len(told) == 1


def test_an_exported_bundle_says_what_is_plausible(bundle: Path) -> None:
    manifest = parse((bundle / "manifest.json").read_bytes())
    (limit,) = manifest.safety.limits
    assert limit.names == ("cart_pos", "cart_vel", "goal_pos", "goal_vel", "bumper_force")
    recorded = kit.recorded()
    low, high = limit.low[1], limit.high[1]
    seen = recorded["state"][:, 1]
    assert low < seen.min() < seen.max() < high < 100
    # the normaliser was made from 2 N with a deviation of 3 N: -10 to 14 N, widened by twice its width
    assert (limit.low[4], limit.high[4]) == pytest.approx((-58.0, 62.0))
    assert manifest.observations[0].max_still_s == 0.04


@undisturbed
def test_numbers_that_cannot_be(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: Runtime
) -> None:
    monkeypatch.setenv("CART_FAR_AT", "100")
    monkeypatch.setenv("CART_FAR", "1e6")
    says = r"observation 'state' element 'cart_pos' is 1000000\.0, outside of what is plausible, for 5 ticks"
    bad = damped(bundle, CART, tmp_path, says, runtime)
    assert len(bad) == 5


@undisturbed
def test_a_sensor_that_stands_still(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: Runtime
) -> None:
    monkeypatch.setenv("CART_FROZEN_AT", "100")
    bad = damped(
        bundle, CART, tmp_path, r"observation 'state' stands still while the robot is told to move, for 5", runtime
    )
    assert all(Reason(r["reason"]) & Reason.OBS_FROZEN for r in bad)


@pytest.mark.parametrize(
    ("clock", "says"),
    [
        # a second ahead, less the time since the reading: -1.000 s where the machine is quick
        ("ahead", r"the time stamp of the observation runs back or ahead \(age -(1\.000|0\.9\d\d) s\)"),
        ("back", r"the time stamp of the observation runs back or ahead \(age 0\.\d+ s\)"),
        ("silent", r"the last observation is 0\.\d+ s old, more than 0\.2 s"),
    ],
)
@undisturbed
def test_a_sensor_whose_own_time_is_wrong(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: str, says: str, runtime: Runtime
) -> None:
    monkeypatch.setenv("CART_CLOCK", clock)
    starts: Sequence[int] = (1100,)
    if clock == "ahead":
        # an episode whose times are right, before
        starts = NEAR_THEN_FAR
        monkeypatch.setenv("CART_CLOCK_AT", str(BETWEEN))
    bad = damped(bundle, STAMPED, tmp_path, says, runtime, starts)
    assert Reason(bad[0]["reason"]) & (Reason.OBS_STALE if clock == "silent" else Reason.OBS_TIME)


def test_a_graph_that_fails_on_an_observation(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: Runtime
) -> None:
    graphs.reseal(graphs.fails_beyond(copied), without_ranges)
    monkeypatch.setenv("CART_FAR_AT", "100")
    monkeypatch.setenv("CART_FAR", "150")
    with pytest.warns(UserWarning, match="plausible"):
        bad = damped(
            copied, CART, tmp_path, r"policy\.onnx: onnxruntime cannot compute it: .*, for 5 ticks in a row", runtime
        )
    assert all(Reason(r["reason"]) & Reason.INFERENCE_FAILED for r in bad)


def test_an_inference_that_takes_too_long_is_cancelled(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime: Runtime
) -> None:
    """Many operators, none of which takes long: it ends with the one that it is at."""
    side = 300
    graphs.reseal(graphs.grows(copied, 1, graphs.chain_for(1.5, side)), without_ranges)
    monkeypatch.setenv("CART_FAR_AT", "100")
    monkeypatch.setenv("CART_FAR", str(100 + side))
    with pytest.warns(UserWarning, match="plausible"):
        bad = damped(
            copied, CART, tmp_path, "its observation was older than 0.2 s|an inference has not ended after", runtime
        )
    assert all(Reason(r["reason"]) & Reason.ACTION_LATE for r in bad)


def test_an_inference_that_does_not_return(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One operator that computes for minutes: nothing can stop it, and the robot is held and damped all the same."""
    graphs.reseal(graphs.grows(copied, power=2), without_ranges)
    monkeypatch.setenv("CART_FAR_AT", "100")
    monkeypatch.setenv("CART_FAR", "220")
    log = tmp_path / "log.jsonl"
    assert main(["deploy", str(copied), "--robot", CART, "--episodes", "1", "--log", str(log)]) == 2
    assert "an inference has not ended after" in capsys.readouterr().err.splitlines()[-1]
    ticks = [json.loads(line) for line in log.read_text().splitlines() if '"tick"' in line]
    assert [r["mode"] for r in ticks][-5:] == [1, 1, 1, 1, 2]
    assert all(r["reason"] & Reason.ACTION_LATE for r in ticks[-5:])
