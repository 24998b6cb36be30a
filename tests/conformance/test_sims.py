"""What every simulator adapter must do, tested for what it declares.

A new adapter is one `Adapter` row in `ADAPTERS`; capabilities that it does not declare are not tested.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import robotrl
from robotrl.errors import ConfigError, RobotrlError
from robotrl.spec import HasCamera, HasExpert, HasFinalObs, HasParams, HasState, HasStateIds, Step
from robotrl.testing.sims import CHECKS, SimCase, assert_same_obs, copied, leaves, play, random_actions
from tests.kits.paths_kit import ROOT
from tests.kits.refusals import raises_naming
from tests.kits.warp_kit import small_log


@dataclass(frozen=True)
class Adapter:
    """One row.

    Args:
        sim: its name in the registry.
        short: options that give episodes of `short_steps` control steps.
        short_steps: see `short`.
        long: options that give episodes too long to end in a test, under random actions.
        threads: pairs of options that must not change results.
        param: name and value of a parameter that changes the dynamics at once.
        randomization: options that randomise parameters.
        starts: from how many starts its expert is tried; 0 where another row of that sim does it.
        expert: options under which the expert is one, as its page says.
        options: that every sim of the row is made with.
        clock: columns of observations that tell how much of the time limit is left, by their keys.
        masks: observations of few values, which two episodes may share.
        apart: observations that a parameter changes late, if at all.
        late_steps: steps between an episode's last observation and the report of its end.
    """

    sim: str
    short: dict[str, Any] = field(default_factory=dict)
    short_steps: int = 0
    long: dict[str, Any] = field(default_factory=dict)
    threads: tuple[dict[str, Any], dict[str, Any]] | None = None
    param: tuple[str, float] | None = None
    randomization: dict[str, Any] = field(default_factory=dict)
    starts: int = 256
    expert: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    clock: dict[str, tuple[int, ...]] = field(default_factory=dict)
    masks: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    late_steps: int = 0

    @property
    def name(self) -> str:
        # a log lies elsewhere in each process
        return ",".join([self.sim, *(str(value) for key, value in self.options.items() if key != "log")])

    def make(self, num_envs: int, seed: int = 0, **options: Any) -> Any:
        return robotrl.make_sim(self.sim, num_envs=num_envs, seed=seed, **{**self.options, **options})


ADAPTERS = (
    Adapter(
        sim="mujoco/peg-insert",
        short={"limit_s": 0.5},
        short_steps=10,
        long={"limit_s": 60.0},
        threads=({"threads": 1}, {"threads": 3}),
        param=("servo_gain", 0.5),
        randomization={"randomization": {"servo_gain": (0.6, 1.4), "friction": (0.5, 2.0)}},
    ),
    Adapter(
        sim="mujoco/reach",
        short={"limit_s": 0.5},
        short_steps=10,
        long={"limit_s": 60.0},
        threads=({"threads": 1}, {"threads": 3}),
        param=("servo_gain", 0.5),
        randomization={"randomization": {"servo_gain": (0.6, 1.4)}},
        starts=48,
    ),
    *(
        Adapter(
            sim=f"mujoco/{name}",
            short={"limit_s": 0.5},
            short_steps=10,
            long={"limit_s": 60.0},
            threads=({"threads": 1}, {"threads": 3}),
            param=("servo_gain", 0.5),
            randomization={"randomization": {"servo_gain": (0.6, 1.4), "friction": (0.5, 2.0)}},
            starts=24,
        )
        for name in ("push", "pick-place")
    ),
    Adapter(
        sim="mujoco/press",
        short={"limit_s": 0.5},
        short_steps=10,
        long={"limit_s": 60.0},
        threads=({"threads": 1}, {"threads": 3}),
        param=("servo_gain", 0.5),
        randomization={"randomization": {"servo_gain": (0.6, 1.4), "friction": (0.5, 2.0)}},
        starts=48,
    ),
    Adapter(
        sim="mujoco/tabletop",
        short={"limit_s": 0.5},
        short_steps=10,
        long={"limit_s": 60.0},
        threads=({"threads": 1}, {"threads": 3}),
        param=("servo_gain", 0.5),
        randomization={"randomization": {"servo_gain": (0.6, 1.4), "friction": (0.5, 2.0)}},
        starts=26,
        masks=("instruction",),
        apart=("instruction", "things", "meant"),
    ),
    # walker2d and halfcheetah are hopper's code with other numbers: tests/sims/mujoco/test_locomotion.py has them all
    *(
        Adapter(
            sim=f"mujoco/{name}",
            short={"limit_steps": 10, "terminate_when_unhealthy": False},
            short_steps=10,
            long={"limit_steps": 10_000, "terminate_when_unhealthy": False},
            threads=({"threads": 1}, {"threads": 3}),
            param=("motor_strength", 0.5),
            randomization={"randomization": {"motor_strength": (0.6, 1.4), "mass": (0.8, 1.2), "friction": (0.5, 2.0)}},
        )
        for name in ("ant", "hopper", "humanoid")
    ),
    Adapter(sim="gym/Pendulum-v1", short={"limit_steps": 10}, short_steps=10, long={"limit_steps": 10_000}),
    # falls over under random actions: no option makes its episodes long
    Adapter(sim="gym/CartPole-v1", short={"limit_steps": 5}, short_steps=5),
    Adapter(
        sim="gym/Hopper-v5",
        short={"limit_steps": 6},
        short_steps=6,
        long={"kwargs": {"terminate_when_unhealthy": False}},
    ),
    Adapter(
        sim="gym/tests.kits.gym_toys:Toy-v0", short={"limit_steps": 10}, short_steps=10, long={"limit_steps": 10_000}
    ),
    Adapter(
        sim="gym/tests.kits.gym_told:Pointing-v0",
        short={"limit_steps": 3},
        short_steps=3,
        options={
            "instruction": "attribute:task_description",
            "vocabulary": "point at the red green blue thing",
            "longest": 6,
        },
        masks=("instruction", "image"),
        apart=("instruction",),
    ),
    *(
        Adapter(
            sim=f"isaac/tests.kits.isaac_standins:{surface}",
            short={"kwargs": {"limit": 10, "falls": False, **kwargs}},
            short_steps=10,
            long={"kwargs": {"limit": 10_000, "falls": False, **kwargs}},
            options={"kwargs": kwargs},
            late_steps=late_steps,
        )
        for surface, kwargs, late_steps in (
            ("lab", {}, 0),
            ("lab", {"final_obs": False}, 0),
            ("vec_task", {}, 1),
        )
    ),
    # served by worker.py with numpy alone; sims of ours that are served are compared with themselves, number by number,
    # in tests/sims/remote/test_served_sims.py
    *(
        Adapter(
            sim="remote/remote_toys:point",
            short={"kwargs": {"limit_steps": 9, "goal": 0}},
            short_steps=9,
            long={"kwargs": {"limit_steps": 10_000, "goal": 0}},
            options={"path": (str(ROOT / "tests" / "kits"),), **options},
            clock={"state": (1,)},
        )
        for options in ({}, {"workers": 2})
    ),
    Adapter(
        sim="mujoco/quadruped-velocity",
        short={"limit_s": 0.2, "end_on_fall": False},
        short_steps=10,
        long={"limit_s": 60.0, "end_on_fall": False},
        threads=({"threads": 1}, {"threads": 3}),
        param=("kp", 0.6),
        randomization={"randomization": {"kp": (0.8, 1.2), "friction": (0.5, 1.5), "latency": (0.0, 2.0)}},
    ),
    # random actions leave the logged way, or run into somebody: no option makes its episodes long
    *(
        Adapter(
            sim="bev/warp",
            short={"limit_s": 1.0},
            short_steps=short_steps,
            threads=({"threads": 1}, {"threads": 3}),
            starts=0,
            # random actions soon leave the logged way
            options=options | {"max_aside_m": 50.0, "max_turned_deg": 180.0, "min_covered": 0.0},
            clock={"privileged": (0,)},
            masks=("agents_mask", "lanes_mask", "bev_mask"),
        )
        for options, short_steps in (
            ({"log": small_log(), "raster_pixels": 32}, 10),
            ({"log": small_log(), "raster_pixels": 32, "traffic": "reactive", "reward": "sequence"}, 10),
            ({"log": small_log(), "obs": "raster", "raster_pixels": 32}, 10),
            ({"log": small_log("channels", ("a", "b", "c")), "obs": "both", "actions": "trajectory"}, 2),
            ({"log": small_log("features", ("a", "b")), "obs": "raster", "polylines": 0}, 10),
        )
    ),
    *(
        Adapter(
            sim="bev/drive",
            short={"limit_s": 1.0},
            short_steps=short_steps,
            threads=({"threads": 1}, {"threads": 3}),
            starts=starts,
            expert={"scenarios": ("straight", "curve", "roundabout", "signal", "cut-in", "occluded-pedestrian")},
            options=options,
            clock={"privileged": (0,)},
            masks=("agents_mask", "lanes_mask"),
        )
        for options, short_steps, starts in (
            ({}, 10, 72),
            ({"obs": "raster", "raster_pixels": 32}, 10, 0),
            ({"actions": "trajectory", "polylines": 0}, 2, 0),
        )
    ),
)


@cache
def sample(number: int) -> Any:
    """A sim of a row, which tells what it declares. Made once: it takes a while, and nearly every test asks."""
    return ADAPTERS[number].make(1)


def adapters(capability: type | None = None, needs: Callable[[Adapter], Any] | None = None) -> Callable[[Any], Any]:
    """Parametrise over the adapters that declare a capability, and whose row has what the test needs."""
    rows = [
        row
        for number, row in enumerate(ADAPTERS)
        if (capability is None or isinstance(sample(number), capability)) and (needs is None or needs(row))
    ]
    return pytest.mark.parametrize("adapter", rows, ids=[row.name for row in rows])


def assert_same(a: list[Step], b: list[Step]) -> None:
    for t, (x, y) in enumerate(zip(a, b, strict=True)):
        for p, q in zip(leaves(x), leaves(y), strict=True):
            assert torch.equal(p, q), f"step {t}"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@adapters()
def test_what_every_sim_must_do(adapter: Adapter, check: Callable[[SimCase], None]) -> None:
    check(SimCase(adapter.make, lambda n, seed: adapter.make(n, seed, **adapter.short)))


# the record


@adapters(needs=lambda row: row.short_steps)
def test_time_limit_truncates_and_nothing_else(adapter: Adapter) -> None:
    sim = adapter.make(4, **adapter.short)
    sim.reset(seed=0)
    flags = [
        (bool(out.terminated.any()), out.truncated.tolist())
        for out in play(sim, random_actions(sim, 2 * adapter.short_steps) * 0)
    ]
    assert not any(terminated for terminated, _ in flags)
    for t, (_, truncated) in enumerate(flags, start=1):
        assert truncated == [t % adapter.short_steps == 0] * 4


@adapters(HasFinalObs, needs=lambda row: row.short_steps)
def test_final_obs_is_what_a_sim_without_the_limit_shows(adapter: Adapter) -> None:
    n = 4
    short, long = adapter.make(n, seed=3, **adapter.short), adapter.make(n, seed=3, **adapter.long)

    def timeless(obs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        out = {key: value.clone() for key, value in obs.items()}
        for key, columns in adapter.clock.items():
            out[key][..., list(columns)] = 0
        return out

    assert_same_obs(timeless(short.reset()), timeless(long.reset()))
    actions = random_actions(short, adapter.short_steps)
    for action in actions[: -1 - adapter.late_steps]:
        assert_same_obs(timeless(short.step(action).obs), timeless(long.step(action).obs))
    ran_on = copied(long.step(actions[-1 - adapter.late_steps]))
    cut = play(short, actions[-1 - adapter.late_steps :])[-1]
    assert cut.final_ids.tolist() == list(range(n))
    assert_same_obs(timeless(cut.final_obs), timeless(ran_on.obs))
    # the observation to act on is that of the next episode already
    for key in set(cut.obs) - set(adapter.masks):
        assert not torch.equal(cut.obs[key], cut.final_obs[key])


# exact state


@adapters(HasState, needs=lambda row: row.short_steps)
def test_a_restored_sim_continues_bit_for_bit(adapter: Adapter, tmp_path: Path) -> None:
    n = 6
    sim = adapter.make(n, seed=5, **adapter.short, **adapter.randomization)
    sim.reset(options={"stagger": True})
    if isinstance(sim, HasStateIds):
        sim.queue_states(sim.state_ids("val")[:40])
    if isinstance(sim, HasParams) and adapter.param:
        name, value = adapter.param
        sim.set_params([1, 4], {name: np.array([value, value])})
    actions = random_actions(sim, 7 + 10 * adapter.short_steps)
    play(sim, actions[:7])
    save_file(sim.get_state(), tmp_path / "state.safetensors")
    expected = play(sim, actions[7:])
    assert sum(len(out.final_ids) for out in expected) > 50

    for restored in (sim, adapter.make(n, seed=99, **adapter.short, **adapter.randomization)):
        obs = restored.set_state(load_file(tmp_path / "state.safetensors"))
        assert set(obs) == set(restored.observation_spec)
        again = restored.get_state()
        for key, value in load_file(tmp_path / "state.safetensors").items():
            assert np.array_equal(again[key], value), key
        assert_same(play(restored, actions[7:]), expected)


# numbered starts


@adapters(HasStateIds, needs=lambda row: row.short_steps)
def test_queued_starts_are_used_in_order_and_once(adapter: Adapter) -> None:
    n = 3
    sim = adapter.make(n, **adapter.short)
    queued = list(sim.state_ids("test")[:8])
    sim.queue_states(queued)
    sim.reset()
    seen: list[int] = []
    for action in random_actions(sim, 4 * adapter.short_steps):
        out = sim.step(action)
        seen += out.info["state_id"][out.final_ids].tolist()
    assert seen[:8] == queued
    assert len(seen) == 12
    train = sim.state_ids("train")  # a range of a thousand million: never made into a set
    assert all(i in train for i in seen[8:])


@pytest.fixture(scope="module")
def elsewhere() -> dict[str, dict[str, Any]]:
    """First observations of five starts of every adapter, by its name, in one other process."""
    script = (
        "import json, sys, robotrl\n"
        "for name, sim, options in json.loads(sys.argv[1]):\n"
        "    sim = robotrl.make_sim(sim, num_envs=5, seed=77, **options)\n"
        "    first = sim.state_ids('val').start\n"
        "    sim.queue_states([first + 9, first + 2, first + 5, first, first + 2])\n"
        "    print(json.dumps([name, {key: value.tolist() for key, value in sim.reset().items()}]))\n"
        "    sim.close()"
    )
    told = [(x.name, x.sim, x.options) for number, x in enumerate(ADAPTERS) if isinstance(sample(number), HasStateIds)]
    command = [sys.executable, "-c", script, json.dumps(told)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    # gymnasium prints notices before
    return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))


@adapters(HasStateIds)
def test_an_id_is_one_start_at_every_place_and_in_every_process(
    adapter: Adapter, elsewhere: dict[str, dict[str, Any]]
) -> None:
    other = elsewhere[adapter.name]
    sim = adapter.make(10)
    sim.queue_states(sim.state_ids("val")[:10])
    here = {key: value.tolist() for key, value in sim.reset().items()}
    for key, rows in here.items():
        assert other[key] == [rows[9], rows[2], rows[5], rows[0], rows[2]]
    assert any(rows[0] != rows[1] for rows in here.values())


@adapters(HasStateIds, needs=lambda row: row.short_steps)
def test_a_restart_leaves_nothing_of_the_episode_before(adapter: Adapter) -> None:
    n = 4
    used = adapter.make(n, **adapter.short, **adapter.randomization)
    ids = list(used.state_ids("val")[: 2 * n])
    used.queue_states(ids)
    used.reset()
    actions = random_actions(used, 2 * adapter.short_steps - 1)
    before = play(used, actions[: adapter.short_steps])
    assert before[-1].final_ids.tolist() == list(range(n))
    fresh = adapter.make(n, **adapter.short, **adapter.randomization)
    fresh.queue_states(ids[n:])
    assert_same_obs(fresh.reset(), before[-1].obs)
    rest = actions[adapter.short_steps :]
    assert_same(play(used, rest), play(fresh, rest))


@adapters(HasStateIds, needs=lambda row: row.long)
def test_an_env_does_not_notice_its_neighbours(adapter: Adapter) -> None:
    crowd = adapter.make(7, **adapter.long)
    ids = list(crowd.state_ids("val")[:7])
    crowd.queue_states(ids)
    crowd.reset()
    actions = random_actions(crowd, 60)
    together = play(crowd, actions)
    for place in (0, 4):
        alone = adapter.make(1, **adapter.long)
        alone.queue_states([ids[place]])
        alone.reset()
        for t, (many, one) in enumerate(zip(together, play(alone, actions[:, place : place + 1]), strict=True)):
            for key in one.obs:
                assert torch.equal(one.obs[key][0], many.obs[key][place]), f"step {t}"
            assert one.reward[0] == many.reward[place]


@adapters(needs=lambda row: row.threads)
def test_threads_change_nothing(adapter: Adapter) -> None:
    assert adapter.threads
    trajectories = []
    for options in adapter.threads:
        sim = adapter.make(16, seed=1, **options, **adapter.short)
        sim.reset()
        trajectories.append(play(sim, random_actions(sim, 4 * adapter.short_steps)))
    assert_same(*trajectories)


# parameters


@adapters(HasParams, needs=lambda row: row.param)
def test_a_parameter_changes_one_env_and_no_other(adapter: Adapter) -> None:
    assert adapter.param
    name, value = adapter.param
    plain, changed = adapter.make(3, **adapter.long), adapter.make(3, **adapter.long)
    assert name in plain.params
    for sim in (plain, changed):
        sim.reset(seed=6)
    before = changed.get_params()[name]
    changed.set_params([1], {name: np.array([value])})
    assert changed.get_params()[name].tolist() == [before[0], value, before[2]]
    actions = random_actions(plain, 20)
    a, b = play(plain, actions)[-1], play(changed, actions)[-1]
    for key in set(a.obs) - set(adapter.apart):
        same = [torch.equal(x, y) for x, y in zip(a.obs[key], b.obs[key], strict=True)]
        assert same == [True, False, True]


@adapters(HasParams, needs=lambda row: row.randomization)
def test_randomisation_is_a_function_of_the_start(adapter: Adapter) -> None:
    found = []
    for num_envs, seed, order in ((6, 0, range(6)), (6, 9, range(5, -1, -1))):
        sim = adapter.make(num_envs, seed=seed, **adapter.randomization)
        first = sim.state_ids("val").start
        sim.queue_states([first + i for i in order])
        sim.reset()
        params = sim.get_params()
        found.append({i: {name: values[row] for name, values in params.items()} for row, i in enumerate(order)})
    assert found[0] == found[1]
    for name, (low, high) in adapter.randomization["randomization"].items():
        values = [row[name] for row in found[0].values()]
        assert len(set(values)) == 6
        assert all(low <= value <= high for value in values)


@adapters(HasParams)
def test_unknown_and_impossible_parameters_are_refused(adapter: Adapter) -> None:
    sim = adapter.make(2)
    sim.reset()
    name = sim.params[0]
    before = sim.get_params()[name].tolist()
    with pytest.raises(ConfigError, match=f"did you mean '{name}'"):
        sim.set_params([0], {name[:-1]: np.array([1.0])})
    for bad in (-1.0, 1e9, float("nan")):
        with pytest.raises(ConfigError, match=f"{name!r} is .*: expected"):
            sim.set_params([0], {name: np.array([bad])})
    with pytest.raises(ConfigError, match="ids"):
        sim.set_params([2], {name: np.array([1.0])})
    assert sim.get_params()[name].tolist() == before


# pictures


@adapters(HasCamera)
def test_pictures(adapter: Adapter) -> None:
    sim = adapter.make(4)
    sim.reset(seed=0)
    before = sim.get_state() if isinstance(sim, HasState) else {}
    for camera in sim.cameras:
        pictures = sim.render([3, 0, 3], camera, 48, 32)
        assert (pictures.shape, pictures.dtype) == ((3, 32, 48, 3), np.uint8)
        assert np.array_equal(pictures[0], pictures[2])
        assert np.array_equal(pictures[0], sim.render([3], camera, 48, 32)[0])
        assert not np.array_equal(pictures[0], pictures[1])
        assert pictures.std() > 10
    assert sim.render([], sim.cameras[0], 8, 8).shape == (0, 8, 8, 3)
    for key, value in before.items():
        assert np.array_equal(sim.get_state()[key], value)
    with pytest.raises(ConfigError, match=f"did you mean '{sim.cameras[0]}'"):
        sim.render([0], sim.cameras[0] + "x", 8, 8)
    with pytest.raises(ConfigError, match=r"ids is \[4\]: expected"):
        sim.render([4], sim.cameras[0], 8, 8)
    with pytest.raises(ConfigError, match="width is 0: expected"):
        sim.render([0], sim.cameras[0], 0, 8)


# experts


def solved(adapter: Adapter, episodes: int, **expert: Any) -> tuple[np.ndarray, np.ndarray]:
    """Success of an expert from the first `episodes` validation starts, and the mode of each."""
    sim = adapter.make(episodes, **adapter.expert)
    sim.queue_states(sim.state_ids("val")[:episodes])
    sim.reset()
    demonstrator = sim.make_expert(**expert)
    started = torch.ones(episodes, dtype=torch.bool)
    running = np.ones(episodes, bool)
    success, modes = np.zeros(episodes, bool), np.zeros(episodes, np.int64)
    first = True
    while running.any():
        action = demonstrator.act(started)
        if first:
            modes, first = demonstrator.mode.numpy().copy(), False
        out = sim.step(action)
        started = out.terminated | out.truncated
        ended = started.numpy() & running
        success[ended] = out.info["success"].numpy()[ended]
        running &= ~ended
    return success, modes


@adapters(HasExpert, needs=lambda row: row.starts)
def test_each_way_of_the_expert_works(adapter: Adapter) -> None:
    modes = adapter.make(1).make_expert().modes
    assert len(modes) >= 2
    for mode in modes:
        success, used = solved(adapter, adapter.starts, mode=mode)
        assert (used == modes.index(mode)).all()
        assert success.mean() >= 0.95, mode


@adapters(HasExpert, needs=lambda row: row.starts)
def test_each_way_has_its_share_of_the_demonstrations(adapter: Adapter) -> None:
    success, used = solved(adapter, adapter.starts, noise=0.1)
    shares = np.bincount(used[success], minlength=2) / success.sum()
    assert shares.min() >= 0.3


@adapters(HasExpert, needs=lambda row: row.starts)
def test_handicaps_cost_success(adapter: Adapter) -> None:
    starts = max(12, min(adapter.starts, 128) // 2)
    unhindered = solved(adapter, starts)[0].mean()
    for handicap in ("noise", "episode_noise"):
        rates = [unhindered, *(solved(adapter, starts, **{handicap: value})[0].mean() for value in (0.5, 1.0))]
        assert rates[0] > rates[2], handicap
        assert rates == sorted(rates, reverse=True), handicap


@adapters(HasExpert, needs=lambda row: row.starts)
def test_experts_repeat_with_their_seed(adapter: Adapter) -> None:
    found = []
    for seed in (3, 3, 4):
        sim = adapter.make(8, **adapter.long)
        sim.reset(seed=1)
        expert = sim.make_expert(noise=0.2, episode_noise=0.5, seed=seed)
        started = torch.ones(8, dtype=torch.bool)
        actions = []
        for _ in range(10):
            actions.append(expert.act(started).clone())
            sim.step(actions[-1])
            started[:] = False
        found.append(torch.stack(actions))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@adapters(HasExpert)
def test_expert_arguments_are_checked(adapter: Adapter) -> None:
    sim = adapter.make(1)
    with pytest.raises(ConfigError, match=r"noise is -0\.1: expected"):
        sim.make_expert(noise=-0.1)
    with pytest.raises(ConfigError, match="episode_noise is 2: expected"):
        sim.make_expert(episode_noise=2)
    mode = sim.make_expert().modes[0]
    with pytest.raises(ConfigError, match=f"did you mean '{mode}'"):
        sim.make_expert(mode=mode + "x")


# bad input


def one_line(error: pytest.ExceptionInfo[RobotrlError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


@adapters()
def test_unknown_options_are_refused(adapter: Adapter) -> None:
    with pytest.raises(ConfigError, match="option 'threats' of sim"):
        adapter.make(1, threats=1)
    with raises_naming(ConfigError, "num_envs", 0, 1):
        adapter.make(0)
    sim = adapter.make(1)
    with pytest.raises(ConfigError) as error:
        sim.reset(options={"stager": True})
    assert "did you mean 'stagger'" in one_line(error)


@adapters(HasStateIds)
def test_ids_outside_all_splits_are_refused(adapter: Adapter) -> None:
    sim = adapter.make(2)
    last = max(sim.state_ids(split).stop for split in ("train", "val", "test"))
    for ids in ([0, -1], [last, 0]):
        with pytest.raises(ConfigError, match=r"state id .* is out of range: expected 0 to"):
            sim.queue_states(ids)
        with pytest.raises(ConfigError, match=r"state id .* is out of range: expected 0 to"):
            sim.reset(options={"state_ids": ids})
    with pytest.raises(ConfigError, match=r"state_ids has shape \(3,\): expected \(2,\)"):
        sim.reset(options={"state_ids": [1, 2, 3]})
    with pytest.raises(ConfigError, match="did you mean 'test'"):
        sim.state_ids("tests")
