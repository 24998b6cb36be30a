"""Late scores are written into the steps that they belong to, of rollouts and of replays, whatever their order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from robotrl.replay.buffer import Replay
from robotrl.rewards.means import RewardMeans
from robotrl.rewards.relabel import LateRewardedSim
from robotrl.rewards.scoring.cfg import ServiceCfg
from robotrl.rewards.scoring.ledger import Answers
from robotrl.rewards.source import SimTransition
from robotrl.rewards.vlm.cfg import ScenePicturesCfg
from robotrl.rewards.vlm.scene_scores import SceneScores
from robotrl.rewards.vlm.similarity import ImmediateScores
from robotrl.rewards.vlm.source import LanguageReward
from robotrl.rewards.vlm.synthesis import SynthesisCfg, synthesis_of
from robotrl.rewards.vlm.window import CalibratedWindow
from robotrl.rewards.vlm.windowed import WindowedTerm
from robotrl.rewards.weighted import NamedSource, WeightedRewards
from robotrl.rollout.collector import Collector, Decision
from robotrl.rollout.groups import GroupCollector
from robotrl.sims.wrapper import WrappedSim, declared
from robotrl.spec import Arrays
from robotrl.spec.late_rewards import HasLateRewards
from tests.kits.late_kit import WEIGHT, NumberCfg, NumberedPictures, late_sim, numbers
from tests.kits.scoring_kit import DIE, NAN, SLOW, make_scorer
from tests.kits.walk_sim import Walk

SERVICE_OF_FOUR = ServiceCfg(batch_size=2, flush_after_s=0.005, cache_frames=0, max_requests=4)
DELAYED: dict[str, Any] = {"delay_s": 0.02}


def decide(horizon: int) -> Any:
    generator = torch.Generator().manual_seed(0)

    def act(obs: Arrays) -> Decision:
        return Decision(torch.rand((len(obs["walk"]), horizon, 1), generator=generator) - 0.4, {})

    return act


@contextmanager
def collector(sim: Any, horizon: int) -> Iterator[Collector]:
    made = Collector(sim, horizon, 0.9)
    made.reset(0)
    try:
        yield made
    finally:
        made.close()


def reached(tape: Any, first: int, steps: int) -> np.ndarray:
    """(T, N) positions that the steps reached."""
    return np.stack([record.next_obs[:, 0].numpy() for record in tape[first : first + steps]]).astype(np.float64)


@pytest.mark.parametrize("horizon", [1, 3])
def test_a_rollout_has_all_scores_before_its_advantages(horizon: int) -> None:
    """As if the sim had waited: same rollouts, returns and pending decisions as with scores at once."""
    results: list[list[Any]] = []
    for cfg in (NumberCfg(scorer=DELAYED), NumberCfg(scores=Immediate())):
        sim = Walk(5)
        with collector(late_sim(sim, cfg), horizon) as made:
            rollouts = [made.collect(decide(horizon), 8) for _ in range(3)]
            results.append([x for one in rollouts for x in (one.reward[one.valid], one.returns)])
        if horizon == 1:
            for number, one in enumerate(rollouts):
                steps = range(8 * number, 8 * number + 8)
                expected = WEIGHT * (numbers(steps, 5) + reached(sim.tape, steps[0], 8))
                assert one.reward.numpy() == pytest.approx(expected, rel=1e-5)
    for late, at_once in zip(*results, strict=True):
        assert late.tolist() == pytest.approx(at_once.tolist(), rel=1e-4)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_reward_of_actions_refers_to_the_picture_in_which_the_action_was_chosen(at_once: bool) -> None:
    cfg = NumberCfg(max_age=1, judges_action=True, **({"scores": Immediate()} if at_once else {"scorer": DELAYED}))
    sim = Walk(5)
    with collector(late_sim(sim, cfg), 1) as made:
        reward = torch.cat([made.collect(decide(1), 8).reward for _ in range(3)]).numpy()
    over = np.stack([(record.terminated | record.truncated).numpy() for record in sim.tape])
    assert over[:-1].any()
    # the first action of an episode was chosen in a scene that no step reached
    chosen_in_none = np.concatenate([np.ones((1, 5), bool), over[:-1]])
    expected = WEIGHT * (numbers(range(-1, 23), 5) + reached(sim.tape, 0, 24))
    assert reward == pytest.approx(np.where(chosen_in_none, 0.0, expected), rel=1e-5)


class Immediate:
    """Scores at once, as `ImmediateScores` does, by the tests' scorer."""

    pending, paid, cost, room = 0, 0, 0.0, 1 << 40

    def __init__(self) -> None:
        self._inner = ImmediateScores(make_scorer())
        self.submit, self.collect, self.wait = self._inner.submit, self._inner.collect, self._inner.wait
        self.metrics, self.charge, self.close = self._inner.metrics, self._inner.charge, self._inner.close


def test_100_000_delayed_and_reordered_scores_land_on_their_steps() -> None:
    n, steps = 50, 2000
    cfg = NumberCfg(
        scorer={"delay_s": 0.01},
        faults={number: NAN for number in range(7, n * steps, 997)},
        service=ServiceCfg(
            processes=2,
            batch_size=64,
            flush_after_s=0.01,
            cache_frames=0,
            queue_frames=2000,
            when_full="wait",
            wait_s=60.0,
        ),
    )
    _, asked, scored = written(cfg, n, steps)
    assert asked == n * steps
    assert (scored == (numbers(range(steps), n) % 997 != 7)).all()


def test_with_a_queue_that_waits_the_sim_is_held_back_and_every_picture_is_scored() -> None:
    n, steps = 50, 40
    service = ServiceCfg(
        batch_size=16, flush_after_s=0.0, cache_frames=0, queue_frames=64, when_full="wait", wait_s=60.0
    )
    _, asked, scored = written(NumberCfg(scorer={"delay_s": 0.02}, service=service), n, steps)
    assert asked == n * steps and scored.all()


def test_a_queue_that_drops_pictures_scores_some_and_each_on_its_step() -> None:
    n, steps = 50, 200
    cfg = NumberCfg(
        scorer={"delay_s": 0.2},
        service=ServiceCfg(batch_size=64, flush_after_s=0.01, cache_frames=0, queue_frames=100),
    )
    _, asked, scored = written(cfg, n, steps)
    # the service took what it had room for, and each of these was written
    assert 100 <= asked < n * steps and int(scored.sum()) == asked


def written(cfg: NumberCfg, n: int, steps: int) -> tuple[np.ndarray, int, np.ndarray]:
    """(T, N) rewards in a replay after random steps, checked; number of pictures scored; steps that have a score."""
    sim = Walk(n)
    means = RewardMeans()
    made = late_sim(sim, cfg, means)
    replay = Replay.create(None, made.observation_spec, made.action_spec, streams=n, capacity=n * steps)
    with collector(made, 1) as one:
        for _ in range(steps // 10):
            one.collect_into(replay, decide(1), 10)
        found = made.late_rewards(wait=True)
        assert replay.add_late(found) == 0
        assert not made.late_rewards(wait=True).change.numel()
        asked = int(made.rewards.metrics()["scoring/number/requests_paid"])
        shares = means.take()
    reward = replay.ring.fields["reward"].reshape(steps, n).astype(np.float64)
    expected = WEIGHT * (numbers(range(steps), n) + reached(sim.tape, 0, steps))
    scored = reward != 0
    assert reward[scored] == pytest.approx(expected[scored], rel=1e-5)
    assert shares["reward_valid/number"] == pytest.approx(scored.mean(), abs=1e-6)
    assert shares["reward/number"] == pytest.approx(reward.mean() / WEIGHT, rel=1e-4)
    return reward, asked, scored


class Withheld:
    """Answers that arrive some at a time, in random order, the same for the same seed."""

    pending, paid, cost, room = 0, 0, 0.0, 1 << 40

    def __init__(self, seed: int) -> None:
        self._inner, self._rng = ImmediateScores(make_scorer()), np.random.default_rng(seed)
        self.submit, self.metrics, self.charge = self._inner.submit, self._inner.metrics, self._inner.charge
        self.close = self._inner.close
        self._held: list[Answers] = []
        self.all_at_once = False

    def collect(self) -> Answers:
        found = self._inner.collect()
        self._held += [Answers(*(x[k : k + 1] for x in found)) for k in range(len(found.tickets))]
        self._rng.shuffle(self._held)
        count = len(self._held) if self.all_at_once else int(self._rng.integers(0, len(self._held) + 1))
        given, self._held = self._held[:count], self._held[count:]
        return Answers(*(np.concatenate(parts) for parts in zip(*given, strict=True))) if given else found_none(found)

    def wait(self, limit_s: float) -> Answers:
        return self.collect()


def found_none(like: Answers) -> Answers:
    return Answers(*(x[:0] for x in like))


class WithNotes(WindowedTerm):
    """The same value, computed anew for each step, since it might depend on the step."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.notes_width = 1

    def notes(self, transition: SimTransition) -> torch.Tensor:
        return torch.zeros(len(transition.action), 1)


def test_rewards_of_pictures_are_kept_and_the_same_as_computed_in_each_step() -> None:
    """Also where a later answer finds the window, so that pictures of before it become valid."""
    n, seen = 6, []
    for kind in (WindowedTerm, WithNotes):
        sim = Walk(n)
        window = CalibratedWindow(40, (0.1, 0.9))
        term = kind(lambda outputs: outputs[:, 0] % 17, window, synthesis_of(SynthesisCfg(), sim, "contrast"))
        cfg = ScenePicturesCfg(every=3, max_age=5, kept_steps=64)
        scenes = SceneScores(NumberedPictures(n), Withheld(3), n)
        source = LanguageReward("contrast", cfg, scenes, 2, term, n, "contrast")
        rewarded = LateRewardedSim(sim, WeightedRewards([NamedSource("contrast", 1.0, source)]), None)
        rewarded.reset(seed=0)
        infos = [rewarded.step(torch.full((n, 1), 0.3)).info for _ in range(60)]
        keys = ("reward/contrast", "reward_valid/contrast", "reward_age/contrast")
        seen.append([[info[key].tolist() for key in keys] for info in infos])
    valid = np.array([step[1] for step in seen[0]])
    assert valid.any() and not valid[:9].any(), "no reward before the window is found"
    assert seen[0] == seen[1]


def test_a_late_score_replaces_the_older_one_that_stood_for_it() -> None:
    """Every third step is scored and stands for three steps; all get the right picture's number in the end."""
    sim = Walk(4)
    made = late_sim(sim, NumberCfg(every=3, max_age=2, scorer=DELAYED))
    replay = Replay.create(None, made.observation_spec, made.action_spec, streams=4, capacity=400)
    with collector(made, 1) as one:
        for _ in range(10):
            one.collect_into(replay, decide(1), 6)
        replay.add_late(made.late_rewards(wait=True))
    reward = replay.ring.fields["reward"][: 60 * 4].reshape(60, 4).astype(np.float64)
    places = reached(sim.tape, 0, 60)
    over = np.stack([(record.terminated | record.truncated).numpy() for record in sim.tape])
    picture = np.full(4, -1)
    for t in range(60):
        scored = t % 3 == 0 or over[t - 1].all()
        assert scored == (t % 3 == 0), "all episodes ended at once: choose another seed"
        if scored:
            picture[:] = t // 3
        expected = np.where(picture >= 0, WEIGHT * (picture * 4 + np.arange(4) + places[t]), 0.0)
        assert reward[t] == pytest.approx(expected, rel=1e-5)
        picture[over[t]] = -1


def test_a_worker_that_dies_leaves_its_step_without_a_score() -> None:
    sim = Walk(3)
    made = late_sim(sim, NumberCfg(faults={4: DIE}))
    with collector(made, 1) as one:
        rollout = one.collect(decide(1), 4)
    expected = WEIGHT * (numbers(range(4), 3) + reached(sim.tape, 0, 4))
    expected[1, 1] = 0.0
    assert rollout.reward.numpy() == pytest.approx(expected, rel=1e-5)


def test_an_on_policy_learner_waits_no_longer_than_it_was_told() -> None:
    means = RewardMeans()
    made = late_sim(Walk(2), NumberCfg(wait_s=0.2, scorer={"slow_s": 1.5}, faults={0: SLOW}), means)
    with collector(made, 1) as one:
        began = time.monotonic()
        rollout = one.collect(decide(1), 1)
        assert time.monotonic() - began < 1.4
        assert rollout.reward.tolist() == [[0.0, 0.0]]
        time.sleep(2.0)
        one.collect(decide(1), 1)
        assert means.take()["scoring/lost"] == 2  # those of the first step, whose rollout is gone


def test_groups_get_late_returns() -> None:
    sim = Walk(6)
    made = late_sim(sim, NumberCfg(scorer=DELAYED))
    groups = GroupCollector(made, 3, 0)

    def act(obs: Arrays, envs: torch.Tensor) -> Decision:
        return Decision(torch.full((len(envs), 2, 1), 0.3), {})

    found = groups.collect(act, groups.draw())
    groups.close()
    steps = len(sim.tape)
    reward = WEIGHT * (numbers(range(steps), 6) + reached(sim.tape, 0, steps))
    over = np.stack([(record.terminated | record.truncated).numpy() for record in sim.tape])
    expected = [reward[: int(np.argmax(over[:, n])) + 1, n].sum() for n in range(6)]
    assert found.returned.tolist() == pytest.approx(expected, rel=1e-5)


class Plain(WrappedSim):
    """A wrapper that changes nothing."""


def test_wrappers_pass_late_rewards_on_and_other_sims_have_none() -> None:
    assert not isinstance(Walk(2), HasLateRewards)
    made = late_sim(Walk(2), NumberCfg(scores=Immediate()))
    assert isinstance(made, HasLateRewards)
    assert isinstance(declared(Plain, made)(made), HasLateRewards)


def test_a_state_with_scores_on_their_way_is_not_resumed_exactly_and_says_so() -> None:
    made: Any = late_sim(Walk(2), NumberCfg(scorer={"slow_s": 5.0}, faults={0: SLOW}))
    made.reset(seed=0)
    made.step(torch.zeros(2, 1))
    state = made.get_state()
    with pytest.warns(UserWarning, match=r"reward 'number': 2 scores were on their way .* not exactly"):
        made.set_state(state)
    made.close()


def test_answers_of_before_a_state_was_restored_are_given_to_no_step() -> None:
    """The sim goes back four steps; what was asked about them and before belongs to steps that are gone."""
    n, seen = 2, []
    for restored in (False, True):
        held = Withheld(5)
        made: Any = late_sim(Walk(n), NumberCfg(scores=held, max_age=2, kept_steps=8))
        made.reset(seed=0)
        for _ in range(3):
            made.step(torch.zeros(n, 1))
        if restored:
            state = made.get_state()
            for _ in range(4):
                made.step(torch.zeros(n, 1))
            made.set_state(state)
            assert not made.late_rewards(wait=False).change.numel()
        held.all_at_once = True
        fresh = 0 if restored else 3
        steps = 5
        for _ in range(steps):
            made.step(torch.zeros(n, 1))
            late = made.late_rewards(wait=False)
            seen += [(restored, back) for back in late.back.tolist()]
            fresh += 1
            assert (late.back < fresh).all(), "a late reward of a step that this run did not make"
        made.close()
    # without a restore there is something to be late with
    assert any(back > 0 for restored, back in seen if not restored)


def test_a_resumed_run_has_the_rest_of_its_budget() -> None:
    cfg = NumberCfg(service=SERVICE_OF_FOUR)
    made: Any = late_sim(Walk(2), cfg)
    made.reset(seed=0)
    made.step(torch.zeros(2, 1))
    made.late_rewards(wait=True)
    state = made.get_state()
    made.close()
    again: Any = late_sim(Walk(2), cfg)
    again.reset(seed=0)
    again.set_state(state)
    for _ in range(3):
        again.step(torch.zeros(2, 1))
        again.late_rewards(wait=True)
    assert again.rewards.sources[0].source.metrics()["requests_paid"] == 4  # two before, two after
    again.close()


def test_what_is_gone_from_a_replay_is_counted() -> None:
    sim = Walk(2)
    made = late_sim(sim, NumberCfg(scorer=DELAYED))
    replay = Replay.create(None, made.observation_spec, made.action_spec, streams=2, capacity=8)
    with collector(made, 1) as one:
        one.collect_into(replay, decide(1), 40)
        found = made.late_rewards(wait=True)
    old = found.back >= 4
    before = replay.ring.fields["reward"].copy()
    assert replay.add_late(found) == int(old.sum())
    changed = replay.ring.fields["reward"] != before
    assert int(changed.sum()) == int((~old).sum())
