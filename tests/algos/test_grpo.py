"""GRPO of policies that say tokens: groups from one start, advantages, weights and clip by hand, resume, learning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import robotrl
import tests.kits.learner_kit as kit
from robotrl.algos.grpo import GrpoCfg, GrpoLearner, success_rate
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.errors import CapabilityError, ConfigError
from robotrl.fn.advantage import group_relative
from robotrl.fn.loss import weighted_clip
from robotrl.learners.learner import Setup
from robotrl.learners.token_policy import TokenActing
from robotrl.policies.vla.token import TokenVlaCfg, TokenVlaPolicy
from robotrl.rollout.collector import Decision
from robotrl.rollout.curriculum import with_curriculum
from robotrl.rollout.groups import GroupCollector, Trajectories, chosen, some_of, together
from robotrl.run.directory import Run
from robotrl.run.policy_checkpoint import policy_tree
from robotrl.spec import visible
from robotrl.training import resume, train
from robotrl.transforms import Clip, TransformGroup, bounds_to_unit, inverse
from tests.kits import warp_kit
from tests.kits.walk_sim import BareWalk
from tests.rollout.test_curriculum import Places
from tests.training.test_resume import StopAt, assert_same_end

OPTIONS: dict[str, Any] = {"image": "flat_near", "image_size": 32, "families": "point", "limit_s": 1.0}


# arithmetic


def test_advantages_by_hand() -> None:
    reward = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    found = group_relative(reward)
    assert found[0] == pytest.approx(torch.tensor([0.75, -0.25, -0.25, -0.25]) / 0.5, abs=1e-5)
    # equal rewards teach exactly nothing
    assert (found[1:] == 0).all()


def test_weights_make_the_mean_over_episodes_of_their_tokens_means() -> None:
    generator = torch.Generator().manual_seed(0)
    episode = torch.tensor([0, 1, 2, 0, 1, 0])
    valid = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 0, 0], [1, 1, 1], [1, 1, 0], [1, 0, 0]]).bool()
    each = torch.rand((6, 3, 2), generator=generator)
    weight = TokenActing().weights(SimpleNamespace(action_width=2), valid, episode, 3)
    found = (weight * each).flatten(1).sum(dim=1).mean()
    expected = torch.stack([each[episode == k][valid[episode == k]].mean() for k in range(3)]).mean()
    assert found == pytest.approx(expected.item(), rel=1e-6)
    assert (weight[~valid] == 0).all()


def test_the_clip_range_is_not_symmetric() -> None:
    """A ratio of 1.25 is inside 1.28, one of 1.3 outside; 0.75 is outside 0.8. Worked by hand, and its gradient."""
    ratio = torch.tensor([[1.25, 1.3, 0.75, 1.3, 9.0]])
    advantage = torch.tensor([[1.0, 1.0, -1.0, -1.0, 1.0]])
    weight = torch.tensor([[1.0, 1.0, 1.0, 1.0, 0.0]])
    log_prob = ratio.log().requires_grad_()
    out = weighted_clip(log_prob, torch.zeros(1, 5), advantage, weight, 0.2, 0.28)
    assert out.loss.item() == pytest.approx(-(1.25 + 1.28 - 0.8 - 1.3), abs=1e-6)
    out.loss.backward()
    assert log_prob.grad is not None
    assert log_prob.grad[0] == pytest.approx(torch.tensor([-1.25, 0.0, 0.0, 1.3, 0.0]), abs=1e-6)
    assert out.clip_fraction.item() == pytest.approx(3 / 4)
    assert out.ratio_error.item() == pytest.approx(0.3, abs=1e-6)


# rollouts


def tabletop(num_envs: int = 8, **options: Any) -> Any:
    return robotrl.make_sim("mujoco/tabletop", num_envs=num_envs, seed=0, **{**OPTIONS, **options})


def still(obs: dict[str, Tensor], rows: Tensor) -> Decision:
    return Decision(torch.zeros(len(rows), 3, 5), {"words": obs["instruction"].clone()})


def test_a_group_starts_from_one_state_and_runs_once() -> None:
    sim = tabletop(limit_s=0.5)
    collector = GroupCollector(sim, 4, seed=0)
    starts = np.array([5, 77])
    seen: list[dict[str, Tensor]] = []

    def decide(obs: dict[str, Tensor], rows: Tensor) -> Decision:
        seen.append(obs)
        return still(obs, rows)

    found = collector.collect(decide, starts)
    for key, value in seen[0].items():
        for group in (value[:4], value[4:]):
            assert all(torch.equal(row, group[0]) for row in group), key
        assert not torch.equal(value[0], value[4])
    # ten steps in chunks of three: of the fourth chunk one step counts
    assert found.episode.tolist() == [0, 1, 2, 3, 4, 5, 6, 7] * 4
    assert found.valid.view(4, 8, 3)[:, 0].int().tolist() == [[1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 0, 0]]
    assert collector.env_steps == 8 * 12 and not found.success.any()
    again = collector.collect(still, starts)
    for key, value in found.obs.items():
        assert torch.equal(value, again.obs[key]), key


def test_what_an_episode_returned_is_the_sum_of_its_rewards() -> None:
    sim = tabletop(limit_s=0.5, reward="shaped")
    paid, step = torch.zeros(8, dtype=torch.float64), sim.step

    def counted(actions: Tensor) -> Any:
        out = step(actions)
        # ten steps are an episode, and the rest of the fourth chunk is not its
        if collector.env_steps < 8 * 10:
            paid.add_(out.reward)
        return out

    sim.step = counted
    collector = GroupCollector(sim, 4, seed=0)
    found = collector.collect(lambda obs, rows: Decision(torch.ones(len(rows), 3, 5), {}), np.array([5, 77]))
    assert found.returned.tolist() == pytest.approx(paid.tolist(), abs=1e-5) and found.returned.abs().max() > 0.1


def test_episodes_that_end_early_are_left_alone() -> None:
    """The expert points; from then on its env is asked no more, though others go on."""
    sim = tabletop(num_envs=6, families="point,lift", limit_s=2.0)
    expert = sim.make_expert()
    started = torch.ones(6, dtype=torch.bool)
    asked: list[int] = []

    def decide(obs: dict[str, Tensor], rows: Tensor) -> Decision:
        asked.append(len(rows))
        # those that go on are the last three
        assert len(obs["state"]) == len(rows) and (len(rows) == 6 or rows.tolist() == [3, 4, 5])
        if len(rows) < 6:
            return Decision(torch.zeros(len(rows), 1, 5), {})
        actions = expert.act(started)
        started[:] = False
        return Decision(actions[:, None], {})

    found = GroupCollector(sim, 3, seed=0).collect(decide, np.array([0, 1]))
    assert found.success.tolist() == [True] * 3 + [False] * 3
    # what comes after an end is not paid
    assert found.returned.tolist() == [1.0] * 3 + [0.0] * 3
    assert asked[0] == 6 and asked[-1] == 3 and sorted(asked, reverse=True) == asked
    counts = torch.bincount(found.episode)
    assert (counts[:3] < 20).all() and (counts[3:] == 40).all()


def test_groups_are_chosen_and_put_together() -> None:
    def some(first: int) -> Trajectories:
        episode = torch.tensor([0, 1, 2, 3, 0, 2])
        values = first + torch.arange(6.0)
        return Trajectories(
            {"x": values},
            {"y": -values},
            torch.ones(6, 1, dtype=torch.bool),
            episode,
            torch.tensor([True, False] * 2),
            0.5 * torch.arange(4.0),
            first + torch.arange(4),
            torch.tensor([False, False, True, False]),
        )

    picked = chosen(some(10), torch.tensor([1]), 2)
    assert picked.obs["x"].tolist() == [12, 13, 15] and picked.record["y"].tolist() == [-12, -13, -15]
    assert picked.episode.tolist() == [0, 1, 0] and picked.success.tolist() == [True, False]
    assert picked.start.tolist() == [12, 13] and picked.returned.tolist() == [1.0, 1.5]
    both = together([picked, some(20)])
    assert both.episode.tolist() == [0, 1, 0, 2, 3, 4, 5, 2, 4] and len(both.success) == 6
    assert both.start.tolist() == [12, 13, 20, 21, 22, 23]
    assert both.cut.tolist() == [True, False, False, False, True, False]
    whole = some_of(both, torch.nonzero(~both.cut)[:, 0])
    assert whole.start.tolist() == [13, 20, 21, 23] and whole.episode.tolist() == [0, 1, 2, 3, 1]
    assert whole.obs["x"].tolist() == [13, 20, 21, 23, 24]
    # of the first group one episode is left, of the last two groups one of two and both
    assert success_rate(both, 2).tolist() == [0.0, 0.5, 0.0]
    assert both.returned.tolist() == [1.0, 1.5, 0.0, 0.5, 1.0, 1.5]
    assert both.obs["x"].tolist() == [12, 13, 15, 20, 21, 22, 23, 24, 25]


def test_episodes_that_leave_a_log_are_marked_and_judged_by_nobody() -> None:
    """Two of four drive off their log: the advantages are those of the other two, worked by hand."""
    world = robotrl.make_sim(
        "bev/warp", num_envs=4, seed=0, threads=1, log=warp_kit.small_log(None), obs="vector", max_aside_m=1.0
    )
    collector = GroupCollector(world, 4, seed=0)
    commands = torch.tensor([[0.0, 0.0], [0.5, 0.0], [0.0, -0.2], [-0.5, 0.0]])
    found = collector.collect(lambda obs, rows: Decision(commands[rows][:, None], {}), np.array([0]))
    assert found.cut.tolist() == [False, True, False, True]
    returned = found.returned.view(1, 4)
    advantage = group_relative(returned, ~found.cut.view(1, 4))[0]
    half = 0.5 * (returned[0, 0] - returned[0, 2])
    assert half > 0
    # the deviation of two members is half their distance times the square root of 2
    assert advantage[[0, 2]].tolist() == pytest.approx([0.5**0.5, -(0.5**0.5)], abs=1e-5)
    assert advantage[[1, 3]].tolist() == [0.0, 0.0]


def test_a_curriculum_says_which_starts_come() -> None:
    sim: Any = with_curriculum(tabletop(num_envs=64, families="point,lift"), 0.1, seed=0)
    sim.success[:] = [1.0, 0.0]
    drawn = [sim.scenario_of(int(i)) for _ in range(8) for i in GroupCollector(sim, 4, seed=0).draw()]
    assert drawn.count("lift") > 0.9 * len(drawn)


def test_a_curriculum_hears_of_the_episodes_that_were_asked_for_and_of_no_others() -> None:
    """Envs whose episode is over go on idly until the last has ended: what becomes of them says nothing."""
    sim: Any = with_curriculum(Places(8), 0.3, seed=0)
    collector = GroupCollector(sim, 4, seed=0)

    def act(obs: dict[str, Tensor], rows: Tensor) -> Decision:
        # the first group goes on for as long as it may, the other succeeds at once or runs off
        return Decision(torch.where(rows < 4, 0.0, 1.0)[:, None, None].expand(-1, 2, 1), {})

    for rollout in range(1, 4):
        starts = collector.draw()
        found = collector.collect(act, starts)
        assert len(found.success) == 8 and sim.episodes.sum() == 8 * rollout
        assert found.start.tolist() == np.repeat(starts, 4).tolist()
    assert collector.env_steps > 3 * 8 * 3, "there was time for other episodes"


# the learner


def policy_on(sim: Any, **changes: Any) -> TokenVlaPolicy:
    torch.manual_seed(0)
    action = sim.action_spec
    outputs = (inverse(bounds_to_unit("action", action.low, action.high)), Clip("action", action.low, action.high))
    cfg = TokenVlaCfg(horizon=2, vision_width=16, vision_depth=2, vision_heads=2, width=32, heads=2, mlp=64, bins=32)
    return replace(cfg, **changes).build(visible(sim), action, TransformGroup((), outputs))


CFG = GrpoCfg(iterations=2, group_size=4, groups=2, tries=2, minibatch=16)


def learner(cfg: GrpoCfg = CFG, **changes: Any) -> GrpoLearner:
    policy = policy_on(tabletop(1), **changes)
    return cfg.build(Setup(tabletop, None, policy, None, seed=0))


def rigged(
    monkeypatch: pytest.MonkeyPatch, made: GrpoLearner, success: list[bool], returned: list[float] | None = None
) -> list[Trajectories]:
    """Let rollouts end as told, whatever the policy did."""
    paid = torch.tensor(returned if returned is not None else success, dtype=torch.float32)
    collect, seen = made._collector.collect, list[Trajectories]()

    def told(decide: Any, starts: Any) -> Trajectories:
        found = collect(decide, starts)._replace(success=torch.tensor(success), returned=paid)
        seen.append(found)
        return found

    monkeypatch.setattr(made._collector, "collect", told)
    return seen


def test_the_first_ratio_is_one_and_what_won_gets_likelier(monkeypatch: pytest.MonkeyPatch) -> None:
    made = learner(replace(CFG, minibatch=64, lr=1e-3))
    seen = rigged(monkeypatch, made, [True, False, False, False, False, False, True, True])
    before = made.policy.state_dict()
    before = {key: value.clone() for key, value in before.items()}
    scalars = made.iterate()
    assert scalars["ratio_error"] < 1e-5 and scalars["groups_kept"] == 2 and scalars["groups_drawn"] == 2
    found = seen[0]
    now = made._log_prob(made.seen(found), found.record)
    made.policy.load_state_dict(before)
    old = made._log_prob(made.seen(found), found.record)
    gain = ((now - old) * found.valid[..., None]).sum(dim=(1, 2))
    won = found.success[found.episode]
    assert gain[won].mean() > 0 > gain[~won].mean()


@pytest.mark.parametrize("warmup", [0, 3])
def test_the_first_steps_are_short(monkeypatch: pytest.MonkeyPatch, warmup: int) -> None:
    """Adam's first step is as long as the learning rate for each weight, whatever its gradient."""
    made = learner(replace(CFG, minibatch=512, lr=1e-3, warmup=warmup))
    rigged(monkeypatch, made, [True, False, False, False, False, False, True, True])
    steps = list[float]()
    for _ in range(2):
        before = {key: value.clone() for key, value in made.policy.state_dict().items()}
        made.iterate()
        after = made.policy.state_dict()
        steps.append(max(float((after[key] - x).abs().max()) for key, x in before.items() if x.is_floating_point()))
    assert steps[0] == pytest.approx(1e-3 / (warmup + 1), rel=0.02)
    assert steps[1] < (1 if warmup == 0 else 2) * 1.4 * steps[0]
    again = learner(replace(CFG, minibatch=512, lr=1e-3, warmup=warmup))
    again.load(kit.snapshot(made.state()))
    assert float(again._engine.carry["updates"]) == 2


@pytest.mark.parametrize("end", [1.0, 0.5, 0.0])
def test_the_learning_rate_falls_along_a_line(monkeypatch: pytest.MonkeyPatch, end: float) -> None:
    """The second of two iterations is halfway; a learner that goes on there is, too."""
    cfg = replace(CFG, minibatch=512, lr=1e-3, warmup=0, lr_end=end)
    made = learner(cfg)
    made.load({**kit.snapshot(made.state()), "iteration": 1})
    rigged(monkeypatch, made, [True, False, False, False, False, False, True, True])
    before = {key: value.clone() for key, value in made.policy.state_dict().items()}
    made.iterate()
    after = made.policy.state_dict()
    step = max(float((after[key] - x).abs().max()) for key, x in before.items() if x.is_floating_point())
    assert step == pytest.approx(1e-3 * (1 + end) / 2, rel=0.02)
    assert made.state()["iteration"] == 2


def test_states_of_before_the_rate_could_fall_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have a carry of one number, and do not say which iteration comes."""
    whole, cut = learner(), learner()
    for made in (whole, cut):
        rigged(monkeypatch, made, [True, False, False, False, False, False, True, True])
        made.iterate()
    state = kit.snapshot(cut.state())
    del state["iteration"]
    state["engine"]["carry"] = state["engine"]["carry"][:1]
    again = learner()
    again.load(state)
    rigged(monkeypatch, again, [True, False, False, False, False, False, True, True])
    assert again.iterate() == whole.iterate()


def test_what_is_evaluated_is_the_average_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """One update for each iteration: a half of what was, and a half of what is."""
    made = learner(replace(CFG, minibatch=512, lr=1e-3, ema=0.5))
    rigged(monkeypatch, made, [True, False, False, False, False, False, True, True])
    wanted = {key: value.detach().clone() for key, value in made.policy.named_parameters()}
    acting = list[bool]()
    for _ in range(3):
        made.iterate()
        for key, value in made.model.named_parameters():
            wanted[key] = (wanted[key] + value.detach()) / 2
        for key, value in made.policy.named_parameters():
            assert torch.allclose(value, wanted[key], rtol=1e-5, atol=1e-7), key
        acting.append(
            all(torch.equal(a, b) for a, b in zip(made.policy.parameters(), made.model.parameters(), strict=True))
        )
    assert not any(acting)
    again = learner(replace(CFG, minibatch=512, lr=1e-3, ema=0.5))
    again.load(kit.snapshot(made.state()))
    for ours, theirs in ((again.policy, made.policy), (again.model, made.model)):
        assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


@pytest.mark.parametrize("success", [[True] * 8, [False] * 8])
def test_groups_that_all_end_alike_are_drawn_again_and_teach_nothing(
    monkeypatch: pytest.MonkeyPatch, success: list[bool]
) -> None:
    made = learner()
    rigged(monkeypatch, made, success)
    before = {key: value.clone() for key, value in made.policy.state_dict().items()}
    scalars = made.iterate()
    assert scalars["groups_kept"] == 0 and scalars["groups_drawn"] == 4
    assert scalars["rollout_success"] == float(success[0]) and "pg_loss" not in scalars
    assert all(torch.equal(before[key], value) for key, value in made.policy.state_dict().items())


def test_rollouts_go_on_until_enough_groups_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    made = learner(replace(CFG, groups=3, tries=9))
    rigged(monkeypatch, made, [True, False, False, False, True, True, True, True])
    scalars = made.iterate()
    assert scalars["groups_kept"] == 3 and scalars["groups_drawn"] == 6


def run_cfg(clone: Path, iterations: int = 4) -> TrainCfg[Any, Any]:
    options = tuple(f"{key}={value}" for key, value in OPTIONS.items())
    evaluation = EvalCfg(every=0, episodes=4, num_envs=4, animation=0)
    algo = replace(CFG, iterations=iterations, keep_low=0.0, keep_high=1.0)
    return TrainCfg(
        SimCfg("mujoco/tabletop", 8, options),
        algo,
        TokenVlaCfg(),
        init_from=str(clone),
        evaluation=evaluation,
        checkpoint_every=1,
    )


def saved(path: Path) -> Path:
    run = Run.create(path, {}, seed=0, command=[])
    run.save({"policy": policy_tree(policy_on(tabletop(1)))}, step=0)
    run.close()
    return path


@pytest.mark.parametrize("changes", [{}, {"correlation": 0.9, "ema": 0.9}])
def test_a_stopped_run_ends_the_same(changes: dict[str, float], tmp_path: Path) -> None:
    cfg = run_cfg(saved(tmp_path / "clone"))
    cfg = replace(cfg, algo=replace(cfg.algo, **changes))
    train(cfg, tmp_path / "whole")
    train(cfg, tmp_path / "cut", [StopAt(2)])
    resume(tmp_path / "cut")
    assert_same_end(tmp_path / "whole", tmp_path / "cut")


# draws that last


def draws_of(made: GrpoLearner) -> Tensor:
    """(8 episodes, 20 steps, 5) where in their distributions the tokens of ten decisions stand, as normal scores."""
    found = made._collector.episodes()
    logits = made.policy.token_logits(made.policy.encode(made.seen(found)), found.record["tokens"]).detach()
    share, said = logits.double().softmax(dim=-1), found.record["tokens"][..., None]
    middle = share.cumsum(dim=-1).gather(-1, said) - 0.5 * share.gather(-1, said)
    return torch.special.ndtri(middle[..., 0]).unflatten(0, (-1, 8)).transpose(0, 1).flatten(1, 2)


@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_draws_last_as_long_as_they_are_told_to(correlation: float) -> None:
    """Neighbouring steps, within a chunk and across two, correlate so; bins of a thirty-second blur it a little."""
    made = learner(replace(CFG, correlation=correlation))
    many = list[Tensor]()
    for _ in range(12):
        many.append(draws_of(made))
    scores = torch.cat(many)
    assert scores.std() == pytest.approx(1.0, abs=0.05)
    for first in (0, 1):
        pair = torch.stack([scores[:, first:-1:2].flatten(), scores[:, first + 1 :: 2].flatten()])
        assert torch.corrcoef(pair)[0, 1] == pytest.approx(correlation, abs=0.05)
    # elements of an action and episodes have nothing to do with each other, nor one rollout with the next
    assert torch.corrcoef(scores.flatten(0, 1).T).fill_diagonal_(0).abs().max() < 0.12
    assert torch.corrcoef(torch.stack([many[0].flatten(), many[1].flatten()]))[0, 1].abs() < 0.12


def test_with_draws_that_last_the_first_ratio_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made = learner(replace(CFG, minibatch=64, correlation=0.9))
    rigged(monkeypatch, made, [True, False, False, False, False, False, True, True])
    assert made.iterate()["ratio_error"] < 1e-5


def test_it_learns_what_is_rewarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Success where an episode's first elements lean to the high bins: from half of the episodes to nearly all."""
    made = learner(replace(CFG, iterations=20, groups=2, tries=1, minibatch=16, lr=3e-3, keep_low=0.0, keep_high=1.0))
    collect, rates = made._collector.collect, list[float]()

    def told(decide: Any, starts: Any) -> Trajectories:
        found = collect(decide, starts)
        first = found.record["tokens"][:, :, 0].float()
        success = torch.stack([first[found.episode == k].mean() > 15.5 for k in range(8)])
        rates.append(float(success.float().mean()))
        return found._replace(success=success)

    monkeypatch.setattr(made._collector, "collect", told)
    for _ in range(made.iterations):
        made.iterate()
    assert np.mean(rates[:2]) < 0.8 and np.mean(rates[-4:]) > 0.9


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: CFG.build(Setup(tabletop, None, None, None, seed=0)),
            ConfigError,
            "GRPO starts from a policy",
        ),
        (
            lambda: CFG.build(Setup(tabletop, None, torch.nn.Linear(1, 1), None, seed=0)),
            CapabilityError,
            "policy Linear lacks HasTokens",
        ),
        (lambda: learner(replace(CFG, group_size=3)), ConfigError, "algo.group_size is 3: expected whole groups"),
        (lambda: learner(replace(CFG, clip_high=0.0)), ConfigError, "algo.clip_high is 0.0"),
        (lambda: learner(replace(CFG, keep_low=0.9, keep_high=0.1)), ConfigError, "expected at most keep_high"),
        (lambda: learner(replace(CFG, tries=0)), ConfigError, "algo.tries is 0"),
        (
            lambda: learner(replace(CFG, correlation=1.0)),
            ConfigError,
            "algo.correlation is 1.0: expected 0 or more, below 1",
        ),
        (lambda: learner(replace(CFG, ema=1.0)), ConfigError, "algo.ema is 1.0: expected 0 or more and below 1"),
        (lambda: learner(replace(CFG, warmup=-1)), ConfigError, "algo.warmup is -1"),
        (lambda: learner(replace(CFG, muon=-1.0)), ConfigError, "algo.muon is -1.0"),
        (
            lambda: GroupCollector(BareWalk(4), 2, 0),
            CapabilityError,
            "lacks HasStateIds",
        ),
    ],
)
def test_what_is_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


def test_in_bfloat16_it_learns_from_what_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    made = learner(replace(CFG, minibatch=64, bf16=True))
    rigged(monkeypatch, made, [True, False, False, False, False, False, True, True])
    logits = list[torch.dtype]()
    hook = made.policy.net.projector.register_forward_hook(lambda m, i, out: logits.append(out.dtype))
    scalars = made.iterate()
    hook.remove()
    assert scalars["ratio_error"] < 2e-3 and scalars["groups_kept"] == 2
    assert set(logits) == {torch.bfloat16}
    assert {p.dtype for p in made.policy.parameters()} == {torch.float32}
