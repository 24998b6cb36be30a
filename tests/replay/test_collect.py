"""`Collector.collect_into`: what lands in the replay, against the sim's own tape."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

import tests.kits.learner_kit as learner_kit
from robotrl.errors import ConfigError, NumericsError
from robotrl.replay.buffer import SOURCES, Replay, Uniform
from robotrl.replay.corrections import Correction
from robotrl.rollout.collector import Collector, Decision
from tests.kits.walk_sim import BareWalk, Walk


class Decider:
    """Random chunks of 3; the noise tells which decision it was."""

    def __init__(self, seed: int = 0) -> None:
        self.count = 0
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, obs: dict[str, Tensor]) -> Decision:
        n = len(obs["walk"])
        chunk = torch.randint(-4, 5, (n, 3, 1), generator=self.generator) / 4
        number = torch.arange(self.count, self.count + n).float()
        self.count += n
        return Decision(chunk, {"noise": number, "log_prob": chunk[:, :, 0], "unused": number})


def make(sim: BareWalk, capacity: int = 400, **options) -> Replay:
    settings = {"streams": sim.num_envs, "extras": {"noise": ()}, "control_dt_s": 0.1, **options}
    return Replay.create(None, sim.observation_spec, sim.action_spec, capacity=capacity, **settings)


def started(sim: BareWalk, horizon: int = 3) -> Collector:
    collector = Collector(sim, horizon, 0.5)
    collector.reset(0)
    return collector


@pytest.mark.parametrize("parts", [(40,), (1, 7, 12, 20)])
def test_every_step_of_the_tape_is_in_the_replay(parts):
    sim = Walk(4)
    replay, collector, decide = make(sim), started(sim), Decider()
    done = [collector.collect_into(replay, decide, steps) for steps in parts]
    assert collector.env_steps == sum(part.env_steps for part in done) == 160 == len(replay)
    index = replay.indices(1)
    got = replay.view(index, 1, 0.5)
    ends, decisions = 0, 0
    begins = set(replay.indices(1, decisions=True).tolist())
    for b, i in enumerate(index.tolist()):
        t, n = divmod(i, 4)
        tape = sim.tape[t]
        assert torch.equal(got.obs["walk"][b], tape.obs[n])
        assert torch.equal(got.chunk[b, 0], tape.action[n])
        assert got.reward[b] == tape.reward[n]
        assert torch.equal(got.next_obs["walk"][b], tape.next_obs[n])
        assert (got.terminated[b], got.truncated[b]) == (tape.terminated[n], tape.truncated[n])
        assert got.log_prob[b, 0] == tape.action[n, 0]
        assert got.source[b] == SOURCES.index("rollout")
        assert got.extras["noise"][b].isnan().item() == (i not in begins)
        ends += int(tape.terminated[n] | tape.truncated[n])
        decisions += i in begins
    # the newest step of an env is complete only where its episode ended
    assert len(index) == 160 - 4 + int((sim.tape[-1].terminated | sim.tape[-1].truncated).sum())
    assert sum(len(part.episodes) for part in done) == sum(len(part.returns) for part in done) == ends
    assert decide.count >= decisions >= decide.count - 4
    whole = replay.view(replay.indices(3, decisions=True), 3, 0.5)
    # from one decision on, what was executed is its chunk: its own log-probabilities are its actions
    assert torch.equal(whole.log_prob[whole.valid], whole.chunk[:, :, 0][whole.valid])


def test_episodes_and_returns_are_those_of_collect():
    sims = [Walk(4), Walk(4)]
    collectors = [started(sim) for sim in sims]
    rollout = collectors[0].collect(Decider(), 40)
    collected = collectors[1].collect_into(make(sims[1]), Decider(), 40)
    assert torch.equal(rollout.episodes, collected.episodes)
    assert torch.equal(rollout.returns, collected.returns)
    assert (collected.env_steps, collected.corrected) == (160, 0)


def test_a_sim_without_final_observations_gives_the_ones_before():
    sim = BareWalk(3)
    with pytest.warns(UserWarning, match="lacks HasFinalObs"):
        collector = started(sim)
    replay = make(sim)
    collector.collect_into(replay, Decider(), 20)
    got = replay.view(replay.indices(1), 1, 0.5)
    ended = got.terminated | got.truncated
    assert ended.any()
    assert torch.equal(got.next_obs["walk"][ended], got.obs["walk"][ended])


def test_a_reset_breaks_the_stream_and_another_call_does_not():
    sim = Walk(2, limit=1000)
    replay, collector = make(sim), started(sim)

    def stay(obs: dict[str, Tensor]) -> Decision:
        return Decision(torch.zeros(len(obs["walk"]), 3, 1), {})

    collector.collect_into(replay, stay, 2)
    collector.collect_into(replay, stay, 2)
    assert replay.indices(1).tolist() == [0, 2, 4, 1, 3, 5]
    collector.reset(None)
    collector.collect_into(replay, stay, 2)
    assert replay.indices(1).tolist() == [0, 2, 4, 8, 1, 3, 5, 9]


def test_collecting_resumes_to_the_last_bit():
    sim = Walk(3)
    replay, collector, decide = make(sim), started(sim), Decider()
    collector.collect_into(replay, decide, 10)
    state = learner_kit.snapshot({"collector": collector.state(), "replay": replay.state()})
    kept = copy.deepcopy((decide.count, decide.generator.get_state()))
    collector.collect_into(replay, decide, 11)
    other_sim = Walk(3)
    again, other, fresh = make(other_sim), started(other_sim), Decider()
    fresh.count = kept[0]
    fresh.generator.set_state(kept[1])
    other.load(state["collector"])
    again.load(state["replay"])
    other.collect_into(again, fresh, 11)
    for one, two in zip(*(Uniform(r).sample(64, 3, 0.5, torch.Generator().manual_seed(1)) for r in (replay, again))):  # noqa: B905
        one, two = ({"": x} if isinstance(x, Tensor) else x for x in (one, two))
        assert all(torch.equal(one[key].nan_to_num(), two[key].nan_to_num()) for key in one)
    assert other.env_steps == collector.env_steps == 63


def test_corrections_replace_actions_and_land_in_both_replays():
    """Env 1 is taken over in steps 2 and 3; it goes on with a new decision in step 4."""
    sim = Walk(2, limit=1000)
    replay, human, collector = make(sim), make(sim, extras={}), started(sim)
    step = -1

    def decide(obs: dict[str, Tensor]) -> Decision:
        return Decision(torch.zeros(len(obs["walk"]), 3, 1), {"noise": torch.ones(len(obs["walk"]))})

    def correct(obs: dict[str, Tensor], action: Tensor, started: Tensor) -> Correction:
        nonlocal step
        step += 1
        return Correction(torch.full_like(action, 0.125), torch.tensor([False, step in (2, 3)]))

    collected = collector.collect_into(replay, decide, 7, corrector=correct, corrections=human)
    assert collected.corrected == 2
    assert [float(tape.action[1, 0]) for tape in sim.tape][2:4] == [0.125, 0.125]
    got = replay.view(replay.indices(1), 1, 0.5)
    sources = {int(i): SOURCES[int(s)] for i, s in zip(got.starts, got.source, strict=True)}
    assert [i for i, source in sources.items() if source == "human"] == [5, 7]
    begins = replay.indices(1, decisions=True).tolist()
    # steps 0 and 4 of env 1, and every third of env 0: extras describe decisions of the policy, steps 2 and 3 are none
    assert begins == [0, 6, 1, 9]
    assert make(sim, extras={}).ring.extras == {}, "a replay without extras keeps such steps"
    assert got.extras["noise"].isnan().tolist() == [int(i) not in (0, 6, 1, 9) for i in got.starts]
    theirs = human.view(human.indices(2), 2, 0.5)
    assert theirs.starts.tolist() == [1, 3]
    assert theirs.chunk[0, :, 0].tolist() == [0.125, 0.125]
    assert theirs.steps.tolist() == [2, 1]
    assert not theirs.terminated.any()
    assert theirs.truncated.all()
    assert torch.equal(theirs.next_obs["walk"][1], sim.tape[4].obs[1])
    assert theirs.discount.tolist() == [0.25, 0.5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"streams": 3}, "the replay has 3 streams: the sim has 2 envs"),
        ({"control_dt_s": 0.2}, "the replay's steps last 0.2 s: the sim's last 0.1 s"),
    ],
)
def test_a_replay_that_does_not_fit_the_sim_is_refused(change, message):
    sim = Walk(2)
    with pytest.raises(ConfigError, match=message):
        started(sim).collect_into(make(sim, **change), Decider(), 3)


def test_a_number_that_is_not_finite_is_named_and_not_stored():
    sim = Walk(2)
    sim.poison[3, 1] = "reward"
    replay = make(sim)
    with pytest.raises(NumericsError, match="env 1, rollout step 3: reward is nan"):
        started(sim).collect_into(replay, Decider(), 6)
    assert len(replay) == 6
