"""The adapter of Isaac Lab's surface: which observation belongs to which episode, and hostile environments."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import robotrl
from robotrl.errors import ConfigError, NumericsError
from robotrl.rollout.collector import Collector, Decision
from robotrl.sims.isaac.faults import IsaacFault
from robotrl.sims.isaac.wrap import sim_of
from robotrl.spec import HasFinalObs, HasPrivileged, HasStateIds, HasSuccessRule
from robotrl.spec.episode_log import HasEpisodeLog
from robotrl.testing.sims import copied, play, random_actions, same
from tests.kits.isaac_standins import CountingLab, LabCfg, managers
from tests.kits.refusals import raises_naming

ZERO = torch.zeros(2, 1)
SOURCE = "isaac/tests.kits.isaac_standins:lab"


def make(num_envs: int = 4, seed: int = 0, options: dict[str, Any] | None = None, **kwargs: Any) -> Any:
    return robotrl.make_sim(SOURCE, num_envs=num_envs, seed=seed, kwargs=kwargs, **(options or {}))


@pytest.mark.parametrize("resets", [True, False], ids=["kept by the env", "reset by the adapter"])
def test_the_last_observation_belongs_to_the_episode_that_ended(resets):
    """Env 1 fails in step 2, env 0 times out in step 3; then both run on."""
    sim: Any = sim_of(CountingLab({2: [1]}, limit=3, resets=resets))
    assert isinstance(sim, HasFinalObs)
    assert sim.reset()["policy"].tolist() == [[1, 0], [1, 0]]
    steps = [copied(sim.step(ZERO)) for _ in range(4)]
    assert [s.obs["policy"].tolist() for s in steps] == [
        [[1, 1], [1, 1]],
        [[1, 2], [2, 0]],
        [[2, 0], [2, 1]],
        [[2, 1], [2, 2]],
    ]
    assert [s.final_ids.tolist() for s in steps] == [[], [1], [0], []]
    assert [s.final_obs["policy"].tolist() for s in steps] == [[], [[1, 2]], [[1, 3]], []]
    assert [s.terminated.tolist() for s in steps] == [[False, False], [False, True], [False, False], [False, False]]
    assert [s.truncated.tolist() for s in steps] == [[False, False], [False, False], [True, False], [False, False]]
    # the reward of the last step is that of the episode that ended
    assert [s.reward.tolist() for s in steps] == [[1, 1], [2, 2], [3, 1], [1, 2]]
    assert [s.info["success"].tolist() for s in steps][1:3] == [[False, False], [True, False]]
    assert sim.take_episode_log() == {"mean_steps": 2.5}
    assert sim.take_episode_log() == {}


def test_both_flags_at_once():
    sim: Any = sim_of(CountingLab({3: [0]}, limit=3))
    sim.reset()
    step = play(sim, torch.zeros(3, 2, 1))[-1]
    assert (step.terminated.tolist(), step.truncated.tolist()) == ([True, False], [True, True])
    assert step.final_ids.tolist() == [0, 1]


def test_a_finite_horizon_ends_at_its_time_limit():
    sim: Any = sim_of(CountingLab({}, limit=2, finite=True))
    sim.reset()
    step = play(sim, torch.zeros(2, 2, 1))[-1]
    assert (step.terminated.tolist(), step.truncated.tolist()) == ([True, True], [False, False])
    # reaching the limit counts as success all the same
    assert step.info["success"].tolist() == [True, True]


def test_an_old_final_observation_is_not_taken_for_a_new_one():
    env = CountingLab({1: [0]}, limit=9)
    sim: Any = sim_of(env)
    sim.reset()
    assert sim.step(ZERO).final_obs["policy"].tolist() == [[1, 1]]
    assert "final_obs" not in env.extras
    # a reset asked for in Isaac Lab's viewer: terminated is set after the environment looked for ends
    env.cfg.compute_final_obs = False
    env.ends = {2: [1]}
    step = sim.step(ZERO)
    assert step.terminated.tolist() == [False, True]
    assert step.final_obs["policy"].tolist() == [[2, 0]]


@pytest.mark.parametrize("version", [2, 3])
def test_without_final_observations_none_is_declared(version):
    sim = make(final_obs=False, version=version, limit=5)
    assert not isinstance(sim, HasFinalObs)
    assert not isinstance(sim, HasStateIds)
    assert isinstance(sim, HasPrivileged) and isinstance(sim, HasEpisodeLog) and isinstance(sim, HasSuccessRule)
    assert not sim.success_rule.stated
    with pytest.warns(UserWarning, match="lacks HasFinalObs"):
        collector = Collector(sim, 1, 0.99)
    collector.reset(0)
    seen: list[torch.Tensor] = []

    def decide(obs: dict[str, torch.Tensor]) -> Decision:
        seen.append(obs["policy"].clone())
        return Decision(torch.zeros(4, 1, 3), {})

    rollout = collector.collect(decide, 5)
    # time-outs are valued by the observation before them
    assert rollout.truncated[-1].all()
    assert torch.equal(rollout.next_obs["policy"][-1], seen[-1])


class Waits(TorchDispatchMode):
    """Counts operations for which the host waits for the device."""

    NAMES = ("nonzero", "_local_scalar_dense", "masked_select", "is_nonzero", "unique", "equal", "_to_copy")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in self.NAMES:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


class OwnWaits(CountingLab):
    """An environment whose own waits are not counted."""

    def step(self, action: torch.Tensor) -> Any:
        with torch.utils._python_dispatch._disable_current_modes():
            return super().step(action)


@pytest.mark.parametrize("final_obs", [True, False])
def test_the_host_waits_once_in_a_step(final_obs):
    """For the number of ended episodes, which the contract's compact `final_ids` need; nothing is copied."""
    sim: Any = sim_of(OwnWaits({t: [t % 2] for t in range(0, 20, 3)}, limit=5, final_obs=final_obs))
    sim.reset()
    # as on a device where reading the check of an action would wait
    sim._commands._on_cpu = False
    with Waits() as waits:
        for _ in range(20):
            sim.step(ZERO)
    assert waits.found == ["nonzero"] * 20


def test_on_another_device_an_action_that_is_not_finite_is_noticed_with_the_flags():
    sim: Any = sim_of(CountingLab({1: [0, 1]}, limit=5))
    sim.reset()
    sim._commands._on_cpu = False
    assert sim.step(ZERO).final_ids.tolist() == [0, 1]
    with pytest.raises(NumericsError, match="not finite"):
        sim.step(torch.full((2, 1), math.nan))
    sim.step(ZERO)
    with raises_naming(ConfigError, "actions", (2, 2), (2, 1)):
        sim.step(torch.zeros(2, 2))
    assert sim.env.actions[0].abs().max() <= 1.0


def test_the_environment_may_keep_the_actions():
    env = CountingLab({}, limit=9)
    sim: Any = sim_of(env)
    sim.reset()
    action = torch.full((2, 1), 0.5)
    sim.step(action)
    action.fill_(9.0)
    assert env.actions[0].tolist() == [[0.5], [0.5]]


# hostile environments


@pytest.mark.parametrize(
    "mode", ["overwrite", "new_extras", "log_in_place", "late_log", "float_flags", "long_flags", "double", "cpu_time"]
)
def test_a_hostile_environment_changes_nothing(mode):
    plain, hostile = make(limit=6), make(limit=6, hostile=[mode])
    actions = random_actions(plain, 25)
    trajectories = []
    for sim in (plain, hostile):
        sim.reset(seed=3)
        trajectories.append(play(sim, actions))
    assert same(*trajectories)
    ours, theirs = plain.take_episode_log(), hostile.take_episode_log()
    assert theirs.pop("Curriculum/level", 3.0) == 3.0
    assert theirs == pytest.approx(ours) and len(ours) == 2


def test_rows_that_are_not_finite_are_named_before_anything_learns():
    sim = make(hostile=["nan_rows"])
    collector = Collector(sim, 1, 0.99)
    collector.reset(0)
    with pytest.raises(NumericsError, match=r"env 1, rollout step 4: observation 'policy'"):
        collector.collect(lambda obs: Decision(torch.zeros(4, 1, 3), {}), 10)


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("lost_group", "the observation lacks 'critic': it has policy"),
        ("wrong_shape", r"reward is \(4, 1\): expected a tensor of shape \(4,\)"),
        ("raise", r"step\(\) raised RuntimeError: the solver exploded"),
    ],
)
def test_a_broken_environment_is_named(mode, text):
    sim = make(hostile=[mode])
    sim.reset()
    play(sim, torch.zeros(2, 4, 3))
    with pytest.raises(IsaacFault, match=text):
        sim.step(torch.zeros(4, 3))


# options


def test_groups_and_their_readers():
    assert make(options={"groups": "policy"}).observation_spec.keys() == {"policy"}
    assert make(options={"policy_groups": "policy,critic"}).privileged == ()
    with raises_naming(ConfigError, "groups", "polic", "policy"):
        make(options={"groups": "polic"})
    with raises_naming(ConfigError, "policy_groups", "critc", "critic"):
        make(options={"policy_groups": "critc"})


def test_stagger_spreads_the_counters():
    sim = make(limit=8)
    sim.reset(options={"stagger": True})
    assert sim.limit_steps == 8 and sim.elapsed_steps().tolist() == [0, 2, 4, 6]
    ended = [step.final_ids.tolist() for step in play(sim, torch.zeros(8, 4, 3))]
    assert ended == [[], [3], [], [2], [], [1], [], [0]]


def test_success_signals():
    env: Any = CountingLab({1: [0]}, limit=9)
    term = managers(object())  # type: ignore[arg-type]
    env.termination_manager, env.observation_manager, env.action_manager = (
        term.termination_manager,
        SimpleManager({}),
        SimpleManager(()),
    )
    sim: Any = sim_of(env, success="term:reached")
    sim.reset()
    assert sim.step(ZERO).info["success"].tolist() == [True, False]
    assert sim.success_rule.text == "an end by the termination term 'reached'" and sim.success_rule.stated
    with raises_naming(ConfigError, "success", "term:reacht", "term:reached"):
        sim_of(env, success="term:reacht")
    ended: Any = sim_of(CountingLab({1: [0]}, limit=9), success="termination")
    ended.reset()
    assert ended.step(ZERO).info["success"].tolist() == [True, False]
    missing: Any = sim_of(CountingLab({}, limit=9), success="extras:won")
    missing.reset()
    with pytest.raises(IsaacFault, match=r"extras\['won'\]"):
        missing.step(ZERO)
    for bad in ("survive", "term:", "survival:x", "extras"):
        with raises_naming(ConfigError, "success", bad):
            sim_of(CountingLab({}, limit=9), success=bad)
    with raises_naming(ConfigError, "success", "term:x", "termination_manager"):
        sim_of(CountingLab({}, limit=9), success="term:x")


class SimpleManager:
    """A manager without terms."""

    def __init__(self, active_terms: Any) -> None:
        self.active_terms = active_terms
        self.group_obs_term_dim: dict[str, Any] = {}


def test_other_surfaces_are_refused():
    with raises_naming(ConfigError, "env", "LabCfg"):
        sim_of(LabCfg())
    env: Any = CountingLab({}, limit=9)
    with raises_naming(ConfigError, "resets", "same-step"):
        sim_of(env, resets="same-step")
    env.single_observation_space = env.single_observation_space["policy"]
    with raises_naming(ConfigError, "single_observation_space", "Box"):
        sim_of(env)


@pytest.mark.parametrize(
    ("source", "options", "named"),
    [
        ("tests.kits.isaac_standins:lob", {}, "lab"),
        ("nowhere_to_be_found:make", {}, "nowhere_to_be_found"),
        ("no colon", {}, "MODULE:FUNCTION"),
        ("mjlab:Mjlab-Cartpole-Balance", {}, "mjlab"),
        ("lab:Isaac-Cartpole-v0", {}, "isaaclab"),
        ("tests.kits.isaac_standins:lab", {"kwargs": {"num_envs": 3}}, "num_envs"),
        ("tests.kits.isaac_standins:lab", {"action_bound": 0.0}, "action_bound"),
        ("tests.kits.isaac_standins:lab", {"actions": "target"}, "targets"),
        ("tests.kits.isaac_standins:lab", {"control_dt_s": -1.0}, "control_dt_s"),
        ("tests.kits.isaac_standins:lab", {"resets": "later"}, "next-step"),
        ("tests.kits.isaac_standins:lab", {"descriptors": "none.json"}, "none.json"),
    ],
)
def test_bad_sources_and_options_are_refused(source, options, named):
    with pytest.raises(robotrl.errors.RobotrlError) as error:
        robotrl.make_sim(f"isaac/{source}", num_envs=2, **options)
    assert named in str(error.value) and "\n" not in str(error.value)


def test_a_factory_that_raises_or_miscounts_is_named():
    with pytest.raises(IsaacFault, match=r"lab\(\) raised TypeError: .*limits"):
        make(limits=3)
    with raises_naming(ConfigError, "num_envs", 2, 3):
        robotrl.make_sim("isaac/tests.sims.isaac.test_lab:two_envs", num_envs=3)


def two_envs(num_envs: int, seed: int) -> CountingLab:
    del num_envs, seed
    return CountingLab({}, limit=3)
