"""Commands between two actions: exported, sent by both servos, and evaluated alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tests.kits.deploy_graphs as graphs
import tests.kits.deploy_kit as kit
from robotrl.api.evaluation import sim_of
from robotrl.deploy.buffers import Runtime
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.bundle.manifest import Manifest, sealed
from robotrl.deploy.control.replay import replay
from robotrl.deploy.export import export
from robotrl.deploy.native.lockstep import LockstepCfg, run_in_lockstep
from robotrl.deploy.robots.channel import Message
from robotrl.deploy.robots.link import RobotCommand
from robotrl.deploy.robots.two_joints import TwoJointsRobot
from robotrl.errors import ConfigError
from tests.kits.deploy_cart import Cart
from tests.kits.lockstep_log import lockstep_log
from tests.kits.reflex_kit import Watched
from tests.kits.started_joints import joints_bundle

CFG = LockstepCfg(steps=4, limit_s=0.4, accept_start=True)


class CoarseCart(Cart):
    """A cart that executes one command a control period, as most simulations do."""

    inner_dt_s = Cart.control_dt_s

    def success(self) -> bool:
        return False


class FineCart(Cart):
    def success(self) -> bool:
        return False


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("linear") / "linear.bundle"
    export(kit.TinyFlow(), path, observations=kit.recorded(), interpolation="linear")
    kit.wait_for_observations(path)
    return path


def manifest_of(bundle: Path) -> Manifest:
    return open_bundle(bundle).manifest


def commanded(manifest: Manifest, robot: Cart, runtime: Runtime) -> np.ndarray:
    """(n, 2) the commands of an episode in order, without repeats; the policy's are 0.5, 1.0, 1.5 and so on."""

    def infer(request: Message) -> tuple[Message, int]:
        chunk = np.zeros((2, 2), np.float32)
        chunk[:, 0] = 0.5 * (1 + request.state_id * 2 + np.arange(2))
        return request._replace(kind=1, mode=0, values=chunk.ravel()), 100_000

    found = run_in_lockstep(runtime, manifest, robot, infer, (1100,), CFG)
    sent = np.stack([c.values for c in found.commands if c.kind == RobotCommand.ACT and c.mode == 0])
    return sent[np.append(True, (np.diff(sent, axis=0) != 0).any(axis=1))]


def test_the_manifest_says_it_and_a_graph_does_not_change(bundle: Path, tmp_path: Path) -> None:
    held = manifest_of(kit.made("flow", tmp_path)[0])
    linear = manifest_of(bundle)
    assert (held.timing.interpolation, linear.timing.interpolation) == ("hold", "linear")
    assert linear.schema_version == held.schema_version == 2
    assert linear.files["policy.onnx"] == held.files["policy.onnx"]


def test_a_servo_tick_is_a_quarter_of_the_way(bundle: Path, runtime: Runtime) -> None:
    """From the neutral action, 0: to 0.5, to 1.0, to 1.5, and to 2, the bound."""
    push = commanded(manifest_of(bundle), FineCart(0), runtime)[:16, 0]
    assert push.tolist() == [0.125 * (i + 1) for i in range(16)]


def test_one_command_a_period_is_the_mean_of_the_way(bundle: Path, runtime: Runtime) -> None:
    push = commanded(manifest_of(bundle), CoarseCart(0), runtime)[:5, 0]
    assert push.tolist() == [0.25, 0.75, 1.25, 1.75, 2.0]


def test_without_it_the_action_is_sent_as_it_is(bundle: Path, runtime: Runtime) -> None:
    held = manifest_of(bundle)
    held = sealed(replace(held, timing=replace(held.timing, interpolation="hold")))
    for robot in (FineCart(0), CoarseCart(0)):
        assert commanded(held, robot, runtime)[:4, 0].tolist() == [0.5, 1.0, 1.5, 2.0]


def test_a_robot_of_positions_goes_on_from_where_it_stands(tmp_path: Path, runtime: Runtime) -> None:
    """Its neutral action is the middle of its bounds, 0; the joints stand at 1 and -1."""

    class Standing(TwoJointsRobot):
        def reset(self, state_id: int) -> dict[str, np.ndarray]:
            self.joints, self.target, self.goals = np.array([1.0, -1.0]), np.array([1.0, -1.0]), np.array([2.0, 0.0])
            return self.observe()

        def observe(self) -> Any:
            return super().observe().observations

    def linear(data: dict[str, Any]) -> None:
        data["timing"]["interpolation"] = "linear"

    path = joints_bundle(tmp_path / "joints", linear)
    log = tmp_path / "log.jsonl"
    lines = lockstep_log(log, path, runtime, lambda: Standing(0), CFG)
    assert replay(log, path).verdicts_differ == 0

    def infer(request: Message) -> tuple[Message, int]:
        return request._replace(kind=1, mode=0, values=np.float32([2.0, -2.0] * 2)), 100_000

    found = run_in_lockstep(runtime, manifest_of(path), Standing(0), infer, (901,), CFG)
    sent = [c.values.tolist() for c in found.commands if c.kind == RobotCommand.ACT and c.mode == 0]
    assert sent[0] == [1.25, -1.25] and [2.0, -2.0] in sent
    assert len(lines) > 5


def test_a_log_is_replayed_bit_for_bit(bundle: Path, tmp_path: Path, runtime: Runtime) -> None:
    log = tmp_path / "log.jsonl"
    lockstep_log(log, bundle, runtime, lambda: FineCart(0), CFG)
    found = replay(log, bundle)
    assert found.ticks > 15 and (found.policy_max_abs, found.sent_max_abs, found.verdicts_differ) == (0, 0, 0)


def test_what_cannot_be_interpolated_is_refused(bundle: Path, tmp_path: Path) -> None:
    def refused(policy: object, says: str, **options: Any) -> None:
        with pytest.raises(ConfigError, match=says):
            export(policy, tmp_path / "b", observations=kit.recorded(), **options)

    refused(kit.TinyFlow(), "interpolation 'linea' is unknown: did you mean 'linear'", interpolation="linea")
    refused(Watched(), "interpolation is 'linear': a reflex commands the robot between", interpolation="linear")
    refused(kit.TinyFlow(), "a reflex commands the robot between", interpolation="linear", reflex=Watched())


def test_an_evaluation_does_the_same(bundle: Path, tmp_path: Path) -> None:
    name, options = sim_of(bundle, "mujoco/reach")
    assert name == "mujoco/reach" and options["perturb"]["interpolate_actions"] is True
    held = graphs.reseal(kit.copied("flow", tmp_path, tmp_path))
    assert sim_of(held, "mujoco/reach") == ("mujoco/reach", {})
