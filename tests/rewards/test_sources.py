"""Reward sources one by one, worked by hand on the walk: start id s stands at ((s mod 5) - 2) / 2, the goal is 2."""

from __future__ import annotations

from math import exp
from pathlib import Path
from typing import Any

import pytest
import torch

from robotrl.config import WeightedReward
from robotrl.errors import CapabilityError, ConfigError
from robotrl.registry import make_sim
from robotrl.rewards.function import FunctionRewardCfg
from robotrl.rewards.process import ProcessRewardCfg
from robotrl.rewards.process_term import ProcessTerm
from robotrl.rewards.progress import ProgressRewardCfg
from robotrl.rewards.relabel import with_rewards
from robotrl.rewards.rules import ActionRateCfg, ActionSizeCfg, AliveCfg
from robotrl.rewards.source import ReachedObs, RewardSetup, SimTransition
from robotrl.rewards.success import SuccessRewardCfg
from robotrl.rollout.collector import Collector, Decision
from robotrl.spec import Spec, Step
from tests.kits.refusals import raises_naming
from tests.kits.stored_rewards import StatingWalk, process_reward, reward_net, stored_classifier, stored_process
from tests.kits.walk_sim import BareWalk, Walk

GAMMA = 0.9


def on(cfg: Any, starts: list[int], envs: int, limit: int = 6) -> Any:
    """The walk from these starts, rewarded by one source."""
    sim = StatingWalk(envs, limit=limit)
    sim.queue_states(starts)
    made = with_rewards(sim, [WeightedReward("one", 1.0, cfg)], RewardSetup(GAMMA))
    made.reset()
    return made


def step(sim: Any, *actions: float) -> tuple[list[float], list[bool]]:
    found = sim.step(torch.tensor(actions)[:, None])
    return found.reward.tolist(), found.info["reward_valid/one"].tolist()


# progress


def test_progress_as_a_potential_by_hand() -> None:
    sim = on(ProgressRewardCfg(scale=1.0), [3, 1, 4, 1], 2)  # at 0.5 and -0.5
    reward, valid = step(sim, 0.5, -1.0)  # to 1.0 and -1.5
    assert reward == pytest.approx([GAMMA * exp(-1.0) - exp(-1.5), GAMMA * exp(-3.5) - exp(-2.5)], abs=1e-6)
    first = reward
    reward, valid = step(sim, 1.0, -1.0)  # the goal and the pit: the potential of both ends is 0
    assert reward == pytest.approx([-exp(-1.0), -exp(-3.5)], abs=1e-6)
    assert valid == [True, True]
    # the discounted terms sum up to minus the potential of the start, whatever was done
    assert [a + GAMMA * b for a, b in zip(first, reward, strict=True)] == pytest.approx([-exp(-1.5), -exp(-2.5)])
    reward, _ = step(sim, 0.0, 0.0)  # of the new episodes, at 1.0 and -0.5
    assert reward == pytest.approx([(GAMMA - 1) * exp(-1.0), (GAMMA - 1) * exp(-2.5)], abs=1e-6)


def test_progress_of_a_truncated_step_is_unknown() -> None:
    sim = on(ProgressRewardCfg(scale=1.0), [2, 3], 1, limit=1)
    assert step(sim, 0.5) == ([0.0], [False])


def test_progress_itself_by_hand() -> None:
    sim = on(ProgressRewardCfg(scale=1.0, form="raw"), [4, 0, 2], 3)  # at 1, -1, 0
    reward, valid = step(sim, 1.0, -1.0, 0.5)
    assert reward == pytest.approx([1.0, 0.0, exp(-1.5)], abs=1e-6)
    assert valid == [True, False, True], "how far a failure was from the goal is not known after it"


def test_progress_gives_back_its_potential_where_a_source_ends_the_episode(tmp_path: Path) -> None:
    classifier = SuccessRewardCfg(str(stored_classifier(tmp_path / "c")), threshold=1e-6, steps=1, ends=True)
    sim = StatingWalk(1)
    sim.queue_states([2, 4])
    both = [WeightedReward("success", 1.0, classifier), WeightedReward("progress", 1.0, ProgressRewardCfg(1.0))]
    made = with_rewards(sim, both, RewardSetup(GAMMA))
    made.reset()
    found = made.step(torch.tensor([[0.5]]))
    assert found.terminated.tolist() == [True] and found.obs["walk"][0, 0] == 1.0
    assert found.info["reward/success"].tolist() == [1.0]
    assert float(found.info["reward/progress"]) == pytest.approx(-exp(-2.0), abs=1e-6)
    found = made.step(torch.tensor([[0.0]]))
    assert float(found.info["reward/progress"]) == pytest.approx(-exp(-1.0), abs=1e-6), "of the start after the restart"


def test_progress_is_refused_by_name() -> None:
    with pytest.raises(CapabilityError, match="sim Walk lacks HasDistance, which reward 'progress' reads"):
        ProgressRewardCfg().build(Walk(2), RewardSetup())
    with raises_naming(ConfigError, "reward.progress.scale", 0):
        ProgressRewardCfg(scale=0.0).build(StatingWalk(2), RewardSetup())
    with raises_naming(ConfigError, "reward.progress.form", "rwa", nearest="raw"):
        ProgressRewardCfg(form="rwa").build(StatingWalk(2), RewardSetup())  # pyright: ignore[reportArgumentType]


# process


def test_a_process_reward_is_the_change_of_what_the_network_says(tmp_path: Path) -> None:
    path = str(stored_process(tmp_path / "p"))
    net = reward_net()

    def phi(x: float, time: float) -> float:
        return float(net.probability({"walk": torch.tensor([[x, time]])}))

    sim = on(ProcessRewardCfg(path), [4, 2], 1)
    assert step(sim, -0.5)[0] == pytest.approx([GAMMA * phi(0.5, 1) - phi(1.0, 0)], abs=1e-6)
    assert step(sim, 1.0)[0] == pytest.approx([GAMMA * phi(1.5, 2) - phi(0.5, 1)], abs=1e-6)
    assert step(sim, 1.0)[0] == pytest.approx([-phi(1.5, 2)], abs=1e-6), "the potential of an end is 0"
    assert step(sim, 0.5)[0] == pytest.approx([GAMMA * phi(0.5, 1) - phi(0.0, 0)], abs=1e-6)
    assert step(on(ProcessRewardCfg(path, "raw"), [4], 1), -0.5)[0] == pytest.approx([phi(0.5, 1)], abs=1e-6)


def test_the_process_reward_of_a_decision_is_vla_rls_term(tmp_path: Path) -> None:
    """Discounted over a decision's steps, the source's potential form is that of `ProcessTerm`."""
    cfg = ProcessRewardCfg(str(stored_process(tmp_path / "p")))
    reward = process_reward()

    def collected(sim: Any) -> Any:
        generator = torch.Generator().manual_seed(0)
        collector = Collector(sim, 3, GAMMA)
        collector.reset(5)
        return collector.collect(
            lambda obs: Decision(torch.rand(len(obs["walk"]), 3, 1, generator=generator) * 2 - 1, {}), 40
        )

    plain = collected(StatingWalk(8))
    shaped = collected(with_rewards(StatingWalk(8), [WeightedReward("process", 1.0, cfg)], RewardSetup(GAMMA)))
    term = ProcessTerm(reward, StatingWalk(8), "potential", 1.0, GAMMA).term(plain)
    valid = plain.valid
    assert int(plain.terminated.sum()) > 5 and int(plain.truncated.sum()) > 5
    assert torch.allclose(shaped.reward[valid], term.reward[valid], atol=1e-6)


def test_a_process_reward_that_fell_short_is_refused(tmp_path: Path) -> None:
    cfg = ProcessRewardCfg(str(stored_process(tmp_path / "p", rank=0.2)))
    with pytest.raises(ConfigError, match=r"reward\.process\.path fell short when it was judged: its rank correlation"):
        cfg.build(StatingWalk(2), RewardSetup())


# rule terms


def test_action_rate_by_hand() -> None:
    sim = on(ActionRateCfg(), [2, 2, 2, 2], 2, limit=3)
    assert step(sim, 0.5, 0.0) == ([0.0, 0.0], [False, False]), "an episode's first action has none before it"
    assert step(sim, -1.5, 0.1) == (pytest.approx([-2.25, -0.01]), [True, True])  # the sim clips -1.5 to -1
    assert step(sim, -1.0, 0.1) == (pytest.approx([0.0, 0.0]), [True, True])
    assert step(sim, 1.0, 1.0)[1] == [False, False]


def sim_with_actions(spec: Spec) -> Any:
    sim: Any = BareWalk(2)
    sim.action_spec = spec
    return sim


def transition(action: list[list[float]]) -> SimTransition:
    n = len(action)
    flags = torch.zeros(n, dtype=torch.bool)
    own = Step({}, torch.zeros(n), flags, flags, {}, torch.zeros(0, dtype=torch.int64), {"success": flags})
    return SimTransition({}, torch.tensor(action), {}, own)


def test_reached_observations_have_the_last_ones_of_ended_episodes() -> None:
    present = {"pose": torch.tensor([[1.0], [2.0], [3.0]]), "picture": torch.zeros(3, 2)}
    final = {"pose": torch.tensor([[7.0], [9.0]]), "picture": torch.ones(2, 2)}
    flags = torch.tensor([True, False, True])
    reached = ReachedObs(Step(present, torch.zeros(3), flags, ~flags, final, torch.tensor([0, 2]), {}))
    assert reached["pose"].tolist() == [[7.0], [2.0], [9.0]]
    assert present["pose"].tolist() == [[1.0], [2.0], [3.0]]  # the sim's own are as they were
    assert list(reached) == ["pose", "picture"]
    assert len(reached) == 2
    assert dict(reached)["picture"].tolist() == [[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]


def test_reached_observations_of_a_step_without_ends_are_no_copies() -> None:
    present = {"pose": torch.zeros(2, 1)}
    none = torch.zeros(2, dtype=torch.bool)
    step = Step(present, torch.zeros(2), none, none, {"pose": torch.zeros(0, 1)}, torch.zeros(0, dtype=torch.int64), {})
    assert ReachedObs(step)["pose"] is present["pose"]


def test_action_size_by_hand() -> None:
    inf = float("inf")
    sim = sim_with_actions(Spec((2,), ("gas", "torque"), ("1", "N m"), (0.0, -inf), (4.0, inf)))
    source = ActionSizeCfg().build(sim, RewardSetup())
    # (2 / 4)^2 and 3^2 in the mean; 9 is clipped to 4
    assert source.score(transition([[2.0, 3.0], [9.0, 0.0]])).value.tolist() == [-4.625, -0.5]


def test_terms_of_actions_refuse_choices() -> None:
    sim = sim_with_actions(Spec((1,), ("gear",), ("1",), (0.0,), (3.0,), choices=(4,)))
    for cfg, name in ((ActionRateCfg(), "action-rate"), (ActionSizeCfg(), "action-size")):
        with pytest.raises(CapabilityError, match=f"reward '{name}' needs actions that are numbers"):
            cfg.build(sim, RewardSetup())


def test_alive_by_hand() -> None:
    sim = on(AliveCfg(), [4, 0, 2], 3, limit=1)
    assert step(sim, 1.0, -1.0, 0.5) == ([1.0, 0.0, 1.0], [True] * 3)  # a success, a failure, a time limit


# functions


def closer(obs: Any, action: Any, next_obs: Any, info: Any) -> torch.Tensor:
    return next_obs["walk"][:, 0] - obs["walk"][:, 0] + 10 * info["terminated"] + info["reward"]


def column(obs: Any, action: Any, next_obs: Any, info: Any) -> torch.Tensor:
    return action


def test_a_function_sees_the_step_by_hand() -> None:
    sim = on(FunctionRewardCfg(f"{__name__}:closer"), [4, 2, 0], 2)  # at 1.0 and 0.0
    assert step(sim, 1.0, 0.5)[0] == pytest.approx([1.0 + 10.0 + 2.0, 0.5 + 0.0 + 0.5])
    assert step(sim, 0.25, 0.25)[0] == pytest.approx([0.25 - 0.75, 0.25 + 0.75]), "the first from its new start, -1.0"


@pytest.mark.parametrize(
    "target, message",
    [
        ("nocolon", "target is 'nocolon': expected MODULE:FUNCTION"),
        ("no_such_module_here:f", "needs the module 'no_such_module_here', which is not installed"),
        (f"{__name__}:closr", f"target '{__name__}:closr' is unknown: did you mean '{__name__}:closer'"),
        (f"{__name__}:GAMMA", "GAMMA is a float: expected a function"),
    ],
)
def test_what_is_no_function_is_refused(target: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        FunctionRewardCfg(target).build(Walk(2), RewardSetup())
    assert message in str(error.value)


def test_a_function_that_gives_a_column_is_refused() -> None:
    sim = on(FunctionRewardCfg(f"{__name__}:column"), [2, 2], 2)
    with pytest.raises(ConfigError, match=r"returned \(2, 1\): expected a tensor of shape \(2,\)"):
        step(sim, 0.0, 0.0)


def test_a_sims_own_shaping_and_ours_agree_in_direction() -> None:
    """On a real sim, moving towards the goal raises the progress."""
    sim = make_sim("mujoco/reach", 8, 0)
    made = with_rewards(sim, [WeightedReward("progress", 1.0, ProgressRewardCfg(form="raw"))])
    expert = made.make_expert()
    made.reset(seed=0)
    started, rewards = torch.ones(8, dtype=torch.bool), []
    for _ in range(15):
        found = made.step(expert.act(started))
        started = found.terminated | found.truncated
        rewards.append(found.reward.clone())
    assert float(rewards[-1].mean()) > float(rewards[0].mean())
