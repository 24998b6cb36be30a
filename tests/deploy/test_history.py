"""Bundles of policies that are given the last control ticks: by hand, in a sim, in the controller, on a robot."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tests.kits.deploy_graphs as graphs
import tests.kits.deploy_kit as kit
from robotrl.algos.ppo import PpoCfg
from robotrl.api.evaluation import evaluate_path
from robotrl.api.exporting import export as export_run
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.deploy.buffers import Runtime
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.bundle.manifest import Port
from robotrl.deploy.control.log import array_of, read_log
from robotrl.deploy.control.replay import replay
from robotrl.deploy.control.run import run_control
from robotrl.deploy.driver.sensing import DriverCfg, ports_of
from robotrl.deploy.export import export
from robotrl.deploy.history import ObservationHistory
from robotrl.deploy.remote.controller import RemotePolicyCfg, remote_controller
from robotrl.deploy.runtime import Controller
from robotrl.errors import ConfigError, DataError, NumericsError
from robotrl.policies.gaussian import GaussianCfg
from robotrl.spec import with_history
from robotrl.training import train
from robotrl.transforms import Affine, TransformGroup, normalize, torch_backend
from tests.kits.deploy_cart import OBSERVATION_SPEC, PERIOD_S
from tests.kits.real_time import undisturbed
from tests.kits.refusals import raises_naming
from tests.kits.serve_kit import served

CART = "sim:tests.kits.deploy_cart:make_cart"
STEPS = 3


class ByMemory(kit.TinyFlow):
    """Pushes the cart to its goal; brakes by the speed that its last positions show, not by the one that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = OBSERVATION_SPEC | {"state": with_history(OBSERVATION_SPEC["state"], STEPS)}
        means, stds = np.linspace(-0.2, 0.2, 4 * STEPS), np.linspace(0.5, 1.5, 4 * STEPS)
        inputs = (normalize("state", tuple(means), tuple(stds)), *self.transforms.inputs[1:])
        self.transforms = TransformGroup(inputs, self.transforms.outputs)

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> kit.Deployed:
        ticks = obs["state"].reshape(-1, STEPS, 4)
        speed = (ticks[:, -1, 0] - ticks[:, 0, 0]) / ((STEPS - 1) * PERIOD_S)
        push = 12.0 * (ticks[:, -1, 2] - ticks[:, -1, 0]) - 6.0 * speed
        one = torch.stack([push / 2.0, obs["touch"][:, 0] * 0.0], dim=-1)[:, None, :].repeat(1, kit.HORIZON, 1)
        raw = one if noise is None else one + 0.0 * noise
        return kit.Deployed(torch_backend(self.transforms.outputs)({"action": raw})["action"], raw)


def recorded(count: int = 1200) -> dict[str, np.ndarray]:
    found = kit.recorded(count + STEPS - 1)
    rows = [found["state"][k : k + count] for k in range(STEPS)]
    return {"state": np.concatenate(rows, axis=1), "touch": found["touch"][STEPS - 1 :]}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("history") / "memory.bundle"
    export(ByMemory(), path, observations=recorded())
    kit.wait_for_observations(path)
    return path


# the last ticks


def vector(steps: int, width: int = 1) -> Port:
    free = (None,) * width
    names = tuple(f"x{i}" for i in range(width))
    return Port(
        "x", "observation", "float32", (steps, width), names, ("m",) * width, free, free, "", "robot", steps, None
    )


def test_the_last_ticks_oldest_first() -> None:
    history = ObservationHistory((vector(3),))
    assert history.keys == ("x",)

    def after(tick: int, x: float) -> list[float]:
        obs = {"x": np.float32([x]), "y": np.float32([7.0])}
        history.take(tick, obs)
        found = history.whole(obs)
        assert found["y"].tolist() == [7.0]
        return found["x"][:, 0].tolist()

    # the first observation of an episode stands for the ticks before it, whatever its number
    assert after(4, 1.0) == [1, 1, 1]
    assert after(5, 2.0) == [1, 1, 2]
    # a tick that had no observation has that of the one before
    assert after(7, 3.0) == [2, 2, 3]
    assert after(8, 4.0) == [2, 3, 4]
    assert after(30, 5.0) == [4, 4, 5]
    # what is not finite is not remembered; the inference that would see it is refused
    assert np.isnan(after(31, np.nan)[-1])
    assert after(32, 6.0) == [5, 5, 6]
    history.reset()
    assert after(0, 9.0) == [9, 9, 9]


def test_a_bundle_of_single_ticks_remembers_nothing() -> None:
    single = Port("x", "observation", "float32", (1,), ("x0",), ("m",), (None,), (None,), "", "robot", 1, None)
    assert ObservationHistory((single,)).keys == ()


# the bundle


def test_a_robot_is_asked_for_one_tick_by_its_own_names(bundle: Path) -> None:
    manifest = open_bundle(bundle).manifest
    state, touch = manifest.observations
    assert (state.shape, state.stack, state.names) == ((STEPS, 4), STEPS, OBSERVATION_SPEC["state"].names)
    assert state.measured_shape == (4,) and state.low[:2] == (-1.0, None)
    assert (touch.shape, touch.stack, touch.measured_shape) == ((1,), 1, (1,))
    assert all("ago" not in name for limit in (*manifest.safety.limits, *manifest.safety.start) for name in limit.names)
    # its normalizer has numbers for each of the ticks
    assert [len(one.scale) for one in manifest.transforms.inputs if isinstance(one, Affine)] == [4 * STEPS, 1]


def test_the_controller_remembers_as_training_does(bundle: Path) -> None:
    controller, policy = Controller.load(bundle, seed=0), ByMemory()
    rng = np.random.default_rng(0)
    for _ in range(2):
        controller.reset()
        ticks: list[np.ndarray] = []
        for t in range(7):
            state, touch = rng.normal(size=4).astype(np.float32), np.float32([1.0])
            ticks.append(state)
            found = controller.step({"state": state, "touch": touch})
            # a chunk has two actions: every second tick infers
            if t % kit.HORIZON == 0:
                seen = [ticks[max(t - k, 0)] for k in reversed(range(STEPS))]
                obs = {"state": torch.from_numpy(np.concatenate(seen))[None], "touch": torch.from_numpy(touch)[None]}
                wanted = policy.deploy(obs, None).actions[0, 0].numpy()
                assert found == pytest.approx(wanted, abs=1e-5)


def test_bad_observations_are_named_and_forgotten(bundle: Path) -> None:
    controller = Controller.load(bundle, seed=0)
    good = {"state": np.float32([0.1, 0.0, 0.5, 0.0]), "touch": np.float32([0.0])}
    controller.step(good)
    with raises_naming(ConfigError, "state", "(3, 4)", "(4,)"):
        controller.step(good | {"state": np.zeros((STEPS, 4), np.float32)})
    for _ in range(2):
        with raises_naming(NumericsError, "state", "cart_vel"):
            controller.step(good | {"state": np.float32([0.1, np.nan, 0.5, 0.0])})
    with raises_naming(ConfigError, "stat", nearest="state"):
        controller.step({"stat": good["state"], "touch": good["touch"]})
    assert np.isfinite(controller.step(good)).all()


def test_a_run_and_its_bundle_act_alike_in_their_sim(tmp_path: Path) -> None:
    """The whole way: training, export, evaluation, and a robot that gives the present observation alone."""
    run, out = tmp_path / "run", tmp_path / "bundle"
    options = ("history=2", "limit_s=1.0", "reward=shaped")
    algo = PpoCfg(env_steps=4 * 16 * 2, num_steps=16, minibatch=32, epochs=1)
    policy = GaussianCfg(horizon=2, hidden=(16,))
    train(TrainCfg(SimCfg("mujoco/reach", 4, options), algo, policy, evaluation=EvalCfg(0, 2, 2, 0)), run)
    export_run(run, out)
    own, exported = (evaluate_path(path, episodes=4) for path in (run, out))
    assert exported.returns == pytest.approx(own.returns, abs=1e-3) and np.ptp(own.returns) > 0.01
    report = run_control(out, "sim:mujoco/reach", episodes=1, limit_s=0.5, accept_start=True)
    assert report.ticks > 5
    # a checkpoint out of its run does not say that its sim remembered
    alone = next(path for path in (run / "checkpoints").iterdir() if path.is_dir())
    shutil.copytree(alone, tmp_path / "alone")
    with raises_naming(ConfigError, "state", "(44,)", "(22,)"):
        export_run(tmp_path / "alone", tmp_path / "none", sim="mujoco/reach")


@undisturbed
def test_on_a_robot_the_last_ticks_are_remembered_and_replayed(bundle: Path, tmp_path: Path, runtime: Runtime) -> None:
    log = tmp_path / "log.jsonl"
    report = run_control(bundle, CART, episodes=3, limit_s=4.0, log=log, runtime=runtime)
    # by a wrong or missing memory it would not brake, and swing past its goal
    assert report.successes == 3
    _, records = read_log(log)
    ticks = [record for record in records if record["kind"] == "tick"]
    assert all(len(record["obs"]["state"]) == 4 for record in ticks)
    # the pushes are those of the policy on the log's own ticks
    policy = ByMemory()
    first = [record for record in ticks if record["episode"] == ticks[0]["episode"]]
    by_tick = {record["tick"]: array_of(record["obs"]["state"]) for record in first}
    whole = [t for t in sorted(by_tick) if all(t - k in by_tick for k in range(STEPS))]
    used = {
        record["tick"]: record for record in first if record["asked"] == record["decision"] and record["cursor"] == 1
    }
    checked = 0
    for tick in whole:
        if tick in used:
            seen = np.concatenate([by_tick[tick - k] for k in reversed(range(STEPS))])
            obs = {"state": torch.from_numpy(seen)[None], "touch": torch.zeros(1, 1)}
            wanted = policy.deploy(obs, None).actions[0, 0].numpy()
            assert array_of(used[tick]["policy"]) == pytest.approx(wanted, abs=1e-4)
            checked += 1
    assert checked > 5
    again = replay(log, bundle)
    assert (again.policy_max_abs, again.sent_max_abs, again.verdicts_differ) == (0.0, 0.0, 0)


@undisturbed
def test_a_log_that_lacks_ticks_is_not_replayed_from_a_wrong_memory(bundle: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    run_control(bundle, CART, episodes=1, limit_s=1.0, log=log)
    lines = log.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if json.loads(line).get("asked", -1) >= 3)
    lost = json.dumps({"kind": "lost", "episode": json.loads(lines[at])["episode"], "ticks": 1})
    (tmp_path / "holed.jsonl").write_text("\n".join([*lines[: at - 1], lost, *lines[at:]]) + "\n")
    with pytest.raises(DataError, match="the log lacks ticks before tick"):
        replay(tmp_path / "holed.jsonl", bundle)


# refusals


def test_alpasims_driver_cannot_remember_and_refuses_it(bundle: Path) -> None:
    with pytest.raises(DataError, match=r"'state' holds 3 control ticks: expected one of each"):
        ports_of(open_bundle(bundle).manifest, DriverCfg())


@pytest.mark.parametrize(
    ("port", "message"),
    [
        ({"stack": 2}, "stack is 2: expected the first of its sizes"),
        ({"stack": 0}, "stack is 0: expected 1 or more"),
        ({"words": ["", "go", "stop"]}, "stack is 3: expected 1, or an observation of vectors"),
    ],
)
def test_a_stack_that_is_none_is_refused(bundle: Path, tmp_path: Path, port: dict[str, Any], message: str) -> None:
    damaged = Path(shutil.copytree(bundle, tmp_path / "bundle"))

    def change(data: dict[str, Any]) -> None:
        data["io"]["inputs"][0] |= port

    graphs.reseal(damaged, change)
    with pytest.raises(DataError, match=message):
        open_bundle(damaged)


def test_a_transform_of_the_host_cannot_be_of_several_ticks(bundle: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(bundle, tmp_path / "bundle"))

    def change(data: dict[str, Any]) -> None:
        data["transforms"]["inputs"][0]["where"] = "host"

    graphs.reseal(damaged, change)
    with pytest.raises(DataError, match="'graph', since 'state' is stacked"):
        open_bundle(damaged)


# a server


def test_a_remote_controller_remembers_here_and_sends_the_whole(bundle: Path) -> None:
    local = Controller.load(bundle, seed=3)
    rng = np.random.default_rng(1)
    with served(bundle) as server, remote_controller(bundle, RemotePolicyCfg(server.url), seed=3) as remote:
        for _ in range(6):
            obs = {"state": rng.normal(size=4).astype(np.float32), "touch": np.float32([0.5])}
            assert np.array_equal(remote.step(obs), local.step(obs))
