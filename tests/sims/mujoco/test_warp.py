"""MuJoCo Warp: the same tasks as on the native engine, on the processor at tiny size, and what needs a GPU."""

from __future__ import annotations

import sys
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import robotrl
from robotrl.errors import ConfigError, NumericsError
from robotrl.registry import SIMS
from robotrl.sims.mujoco.engine.config import ON_WARP, MujocoCfg
from robotrl.sims.mujoco.warp.physics import WarpPhysics
from robotrl.spec import HasCamera, HasFinalObs, HasParams, HasRestart, HasState, HasStateIds, HasTimeLimit, VecSim
from robotrl.spec.sims import why_lacking
from robotrl.testing.sims import CHECKS, SimCase, play, random_actions
from tests.kits import twin_device, warp_sims
from tests.kits.refusals import raises_naming
from tests.kits.warp_sims import compare_steps, pair

pytest.importorskip("mujoco_warp")

CHEETAH = "mujoco/halfcheetah"
LIFT_M = 1.0
"""Height above the start from which no robot falls to the ground in the steps compared."""
TOLERANCE_IN_AIR = 1e-4
"""Of coordinates (m, rad) and velocities (m/s, rad/s): float32 against float64."""
TOLERANCE_ON_GROUND = 1e-3
"""The same where feet touch the ground."""
ON_GROUND_M = {"mujoco/halfcheetah": 0.0, "mujoco/hopper": -0.03, "mujoco/walker2d": 0.0, "mujoco/humanoid": -0.12}
"""Height relative to the start from which the feet meet the ground at once. The ant is left out: Warp turns the
friction pyramid under a steep capsule, as its feet are, otherwise than MuJoCo does."""
HEIGHT = {CHEETAH: 1, "mujoco/hopper": 1, "mujoco/walker2d": 1, "mujoco/ant": 2, "mujoco/humanoid": 2}
"""Column of the height in qpos."""


def warp(name: str = CHEETAH, num_envs: int = 3, seed: int = 0, **options: Any) -> Any:
    return warp_sims.warp(name, num_envs, seed, **options)


def case(limit_steps: int) -> Any:
    return lambda num_envs, seed: warp(num_envs=num_envs, seed=seed, limit_steps=limit_steps)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conformance(check: Any) -> None:
    check(SimCase(case(1000), case(10)))


def test_it_declares_what_it_can_do() -> None:
    sim = warp(limit_steps=7)
    for capability in (VecSim, HasFinalObs, HasStateIds, HasRestart, HasTimeLimit, HasParams):
        assert isinstance(sim, capability)
    for capability in (HasState, HasCamera):
        assert not isinstance(sim, capability)
        assert why_lacking(sim, capability.__name__)
    assert sim.limit_steps == 7


def farthest(on_warp: Any, native: Any, steps: int, lift_m: float) -> float:
    """Largest difference of a coordinate or velocity of the two sims after the same start and actions."""
    native.reset(seed=1)
    start = native.core.physics.bind("qpos").copy()
    start[:, HEIGHT[native.core.task.name]] += lift_m
    for sim in (on_warp, native):
        sim.reset(seed=1, options={"qpos": start})
    contacts = 0
    data = mujoco.MjData(native.core.physics.model)
    for action in random_actions(native, steps):
        for sim in (on_warp, native):
            sim.step(action)
        data.qpos[:] = native.core.physics.bind("qpos")[0]
        mujoco.mj_forward(native.core.physics.model, data)
        contacts += data.ncon
    assert (contacts > 0) == (lift_m != LIFT_M)
    found = ((on_warp.physics.bind(name).numpy() - native.core.physics.bind(name)).ravel() for name in ("qpos", "qvel"))
    return float(np.abs(np.concatenate([*found])).max())


@pytest.mark.parametrize("name", HEIGHT)
def test_warp_agrees_with_native_in_the_air(name: str) -> None:
    options = {} if name == CHEETAH else {"terminate_when_unhealthy": False}
    assert farthest(*pair(name, 2, **options), steps=5, lift_m=LIFT_M) < TOLERANCE_IN_AIR


@pytest.mark.parametrize("name", ON_GROUND_M)
def test_warp_agrees_with_native_on_the_ground(name: str) -> None:
    assert farthest(*pair(name, 2), steps=5, lift_m=ON_GROUND_M[name]) < TOLERANCE_ON_GROUND


@pytest.mark.parametrize(("name", "limit_steps", "steps"), [("mujoco/hopper", 20, 30), ("mujoco/humanoid", 6, 8)])
def test_a_task_is_the_same_on_both_engines(name: str, limit_steps: int, steps: int) -> None:
    """Rewards, flags, start ids and last observations, across early ends and the time limit."""
    on_warp, native = pair(name, 3, limit_steps=limit_steps)
    for sim in (on_warp, native):
        sim.reset(seed=5, options={"stagger": True})
    ended = compare_steps(on_warp, native, random_actions(native, steps), reward=1e-3, obs=2e-2)
    assert ended["truncated"]
    assert ended["terminated"] or name != "mujoco/hopper"


def test_starts_are_numbered_as_on_the_native_engine() -> None:
    on_warp, native = pair("mujoco/ant", 3)
    ids = [native.state_ids("test").start + k for k in (4, 0, 7)]
    for sim in (on_warp, native):
        sim.queue_states(ids)
    assert torch.equal(on_warp.reset()["state"], native.reset()["state"])


def test_restart_touches_the_named_envs_alone() -> None:
    sim = warp("mujoco/ant", 3)
    sim.reset(seed=0)
    before = play(sim, random_actions(sim, 3))[-1].obs["state"]
    after = sim.restart(torch.tensor([1]))["state"]
    assert [torch.equal(a, b) for a, b in zip(before, after, strict=True)] == [True, False, True]
    assert sim.elapsed_steps().tolist() == [3, 0, 3]


# parameters


@pytest.mark.parametrize("name", [CHEETAH, "mujoco/ant"])
def test_randomized_physics_agree_with_native(name: str) -> None:
    ranges = {"friction": (0.3, 3.0), "mass": (0.6, 1.8), "motor_strength": (0.5, 1.5), "joint_damping": (0.3, 3.0)}
    on_warp, native = pair(name, 3, randomization=ranges)
    ids = list(native.state_ids("val")[:3])
    for sim in (on_warp, native):
        sim.queue_states(ids)
        sim.reset()
    assert sorted(on_warp.params) == sorted(ranges)
    for param, values in native.get_params().items():
        assert on_warp.get_params()[param].tolist() == values.tolist() and len(set(values)) == 3
    for sim in (on_warp, native):
        sim.set_params([1], {"mass": np.array([0.7])})
    for action in random_actions(native, 2):
        found, expected = on_warp.step(action).obs["state"], native.step(action).obs["state"]
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)
    plain = robotrl.make_sim(name, num_envs=3, seed=0, threads=1)
    plain.queue_states(ids)
    plain.reset()
    for action in random_actions(native, 2):
        unchanged = plain.step(action).obs["state"]
    assert ((unchanged - expected).abs().max(dim=1).values > 1e-2).all()


def test_impossible_parameters_are_refused() -> None:
    sim = warp()
    with raises_naming(ConfigError, "mas", nearest="mass"):
        sim.set_params([0], {"mas": np.array([1.0])})
    with raises_naming(ConfigError, "'mass'", "[9.0]"):
        sim.set_params([0], {"mass": np.array([9.0])})
    with raises_naming(ConfigError, "'mass'"):
        warp(randomization={"mass": (0.1, 9.0)})


# faults


def rest(sim: Any) -> Tensor:
    return torch.zeros(sim.num_envs, *sim.action_spec.shape)


@pytest.mark.parametrize(("field", "value"), [("qpos", float("nan")), ("qvel", float("inf")), ("qvel", 1e12)])
def test_a_diverged_env_is_named_and_keeps_its_last_good_state(field: str, value: float) -> None:
    sim, twin = warp(), warp()
    for one in (sim, twin):
        one.reset(seed=0)
        one.step(rest(one))
    good = sim.physics.bind("qpos")[1].clone()
    sim.physics.bind(field)[1, 3] = value
    with raises_naming(NumericsError, "env 1", "episode step 2"):
        sim.step(rest(sim))
    expected = twin.step(rest(twin)).obs["state"]
    assert torch.equal(sim.physics.bind("qpos")[1], good)
    assert torch.equal(sim.physics.bind("qpos")[[0, 2]], twin.physics.bind("qpos")[[0, 2]])
    assert torch.equal(sim.elapsed_steps(), twin.elapsed_steps()) and expected.isfinite().all()
    assert sim.step(rest(sim)).obs["state"].isfinite().all()


def test_lost_contacts_are_an_error() -> None:
    sim = warp()
    sim.reset(seed=0)
    sim.physics.bind("overflow")[2] = 1
    with raises_naming(NumericsError, "env 2", "contacts"):
        sim.step(rest(sim))
    sim.step(rest(sim))


# options


def test_every_task_runs_on_warp() -> None:
    assert set(ON_WARP) == {name for name in SIMS.names() if name.startswith("mujoco/")}


def test_a_task_for_the_native_engine_alone_says_which_run_on_warp() -> None:
    """A task of one's own that is built through `core`."""
    task = robotrl.make_sim(CHEETAH, num_envs=1).core.task
    with raises_naming(ConfigError, "engine", CHEETAH, "native", *ON_WARP):
        MujocoCfg(engine="warp").core(task, 1, 0)


def test_options_that_warp_lacks_are_refused() -> None:
    given: tuple[tuple[str, Any], ...] = (
        ("threads", 2),
        ("dump_dir", "dumps"),
        ("image", ("track",)),
        ("dtype", "float64"),
    )
    for name, value in given:
        with raises_naming(ConfigError, name, "native"):
            warp(**{name: value})
    with raises_naming(ConfigError, "engine", nearest="warp"):
        robotrl.make_sim(CHEETAH, num_envs=1, engine="wrap")
    with raises_naming(ConfigError, "device", "'meta'"):
        robotrl.make_sim(CHEETAH, num_envs=1, device="meta")


@pytest.mark.parametrize("package", ["mujoco_warp", "array_api_compat"])
def test_a_missing_package_is_named_with_what_installs_it(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with raises_naming(ConfigError, "engine", package):
        warp()


def test_a_gpu_needs_warp_and_is_named_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with raises_naming(ConfigError, "device", "'cuda'"):
        robotrl.make_sim(CHEETAH, num_envs=1, device="cuda")
    monkeypatch.undo()
    monkeypatch.setattr("robotrl.utils.devices.device_of", lambda name: torch.device("cuda", 0))
    with raises_naming(ConfigError, "engine", "'native'", "'warp'"):
        robotrl.make_sim(CHEETAH, num_envs=1, device="cuda", engine="native")
    task = robotrl.make_sim(CHEETAH, num_envs=1).core.task
    with raises_naming(ConfigError, "device", "'cuda'", *ON_WARP):
        MujocoCfg(device="cuda").core(task, 1, 0)


# a second device


class HeldPhysics:
    """The arrays of another physics, as copies on a device; `refresh` copies what that physics has done since."""

    def __init__(self, real: WarpPhysics, device: torch.device) -> None:
        self.model, self.xp, self.num_envs = real.model, real.xp, real.num_envs
        self._real, self._device = real, device
        self._copies: list[tuple[Tensor, Tensor]] = []
        self.ctrl = self._held(real.ctrl)

    def _held(self, source: Tensor) -> Tensor:
        copy = source.clone().to(self._device)
        self._copies.append((source, copy))
        return copy

    def refresh(self) -> None:
        for source, copy in self._copies:
            copy.copy_(source)

    def bind(self, name: str) -> Tensor:
        return self._held(self._real.bind(name))

    def field(self, name: str) -> Tensor:
        return self._held(self._real.field(name))

    def coordinates(self) -> tuple[Tensor, ...]:
        return tuple(self._held(source) for source in self._real.coordinates())

    def put(self, env_ids: Tensor, coordinates: NDArray[np.float64]) -> None:
        qpos, qvel = self.coordinates()
        values = self.array(coordinates)
        qpos[env_ids], qvel[env_ids] = values[:, : self.model.nq], values[:, self.model.nq :]

    def array(self, numbers: NDArray[Any]) -> Tensor:
        return self._real.array(numbers).to(self._device)

    def zeros(self, shape: tuple[int, ...] = (), dtype: Any = None) -> Tensor:
        return self._real.zeros(shape, dtype).to(self._device)

    def solve(self, matrices: Tensor, right: Tensor) -> Tensor:
        return self._real.solve(matrices, right)

    def parameter(self, name: str) -> Tensor:
        return self._held(self._real.parameter(name))

    def uniform(self, seed: int, index: Tensor, streams: int) -> Tensor:
        return self._real.uniform(seed, index, streams)

    def some(self, flags: Tensor) -> slice:
        return self._real.some(flags)


@pytest.mark.parametrize("name", ON_WARP)
def test_task_code_stays_on_its_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device where numpy's views and tensors of two devices are errors, as on a GPU."""
    twin_device.reach(monkeypatch)
    sim, other = warp(name), warp(name)
    held = HeldPhysics(sim.physics, twin_device.DEVICE)
    other.task.bind(held)
    specs = sim.observation_spec.items()
    obs = {key: torch.from_numpy(np.zeros((3, *spec.shape), spec.dtype)).to(twin_device.DEVICE) for key, spec in specs}
    ids = sim.state_ids("val")[:3]
    sim.reset(options={"state_ids": list(ids)})
    other.task.start(torch.arange(3, device=twin_device.DEVICE), other.task.plan(np.array(ids)))
    held.refresh()
    other.task.observe(obs, slice(None))
    for action in random_actions(sim, 3):
        other.task.command(action.to(twin_device.DEVICE))
        out = sim.step(action)
        held.refresh()
        other.task.observe(obs, slice(None))
        outcome = other.task.outcome(action)
        other.task.observe(obs, torch.tensor([2, 0]).to(twin_device.DEVICE))
        assert {outcome.reward.device, outcome.failure.device} == {twin_device.DEVICE}
        torch.testing.assert_close(outcome.reward.cpu(), out.reward)
        assert torch.equal(outcome.failure.cpu(), out.terminated)
        for key, value in obs.items():
            torch.testing.assert_close(value.cpu(), out.obs[key])


# a GPU

cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@cuda
@pytest.mark.parametrize("name", ON_WARP)
def test_a_gpu_gives_what_the_processor_gives(name: str) -> None:
    # few steps: contacts amplify what rounding differs by
    there, here = (warp(name, 4, device=device, limit_steps=3) for device in ("cuda", "cpu"))
    for sim in (there, here):
        sim.reset(seed=2, options={"stagger": True})
    for action in random_actions(here, 4):
        found, expected = there.step(action.to(there.device)), here.step(action)
        assert all(value.device == there.device for value in (found.reward, *found.obs.values(), found.final_ids))
        assert found.final_ids.tolist() == expected.final_ids.tolist()
        torch.testing.assert_close(found.obs["state"].cpu(), expected.obs["state"], atol=2e-2, rtol=1e-2)


@cuda
def test_a_step_copies_nothing_to_the_host_and_waits_for_nothing() -> None:
    sim = warp(num_envs=256, device="cuda")
    sim.reset(seed=0)
    actions = random_actions(sim, 20).to(sim.device)
    sim.step(actions[0])
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for action in actions[1:]:
            sim.step(action)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@cuda
def test_a_gpu_reports_faults_a_few_steps_late() -> None:
    sim = warp(num_envs=8, device="cuda")
    sim.reset(seed=0)
    bad = rest(sim).to(sim.device)
    bad[5, 2] = float("nan")

    def steps() -> None:
        for action in (bad, *[torch.zeros_like(bad)] * 20):
            sim.step(action)
            torch.cuda.synchronize()

    with pytest.raises(NumericsError, match="env 5"):
        steps()
    assert torch.isfinite(sim.step(torch.zeros_like(bad)).obs["state"]).all()
