"""Preferences that are learned while a run goes on: rounds, relabeled replay, exact resume."""

import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robotrl.algos.sac import SacLearner
from robotrl.config import WeightedReward
from robotrl.errors import ConfigError
from robotrl.learners.learner import Setup
from robotrl.replay.buffer import Replay
from robotrl.rewards.means import RewardMeans
from robotrl.rewards.preferences.labelers.desk import LabelingCfg
from robotrl.rewards.preferences.labelers.served import ServedLabelerCfg
from robotrl.rewards.preferences.labelers.synthetic import SyntheticCfg
from robotrl.rewards.preferences.online import OnlinePreferences
from robotrl.rewards.preferences.preferences import PreferencesCfg
from robotrl.rewards.preferences.taken_clips import ClipTaker
from robotrl.rewards.relabel import LateRewardedSim, with_rewards
from robotrl.rewards.source import ReachedObs, RewardSetup, SimTransition
from robotrl.rewards.task import TaskRewardCfg
from tests.kits.chat_server import ChatServer
from tests.kits.off_policy_kit import ENVS, POLICY, SAC
from tests.kits.preference_kit import LABELING, TRAINING, by
from tests.kits.walk_sim import Walk

WEIGHT, TASK_WEIGHT = 2.0, 0.5
CFG = PreferencesCfg(
    labels=45,
    per_round=15,
    every_env_steps=100,
    memory=2000,
    labeler=replace(LABELING, synthetic=SyntheticCfg(error=0.0)),
    training=replace(TRAINING, updates=40),
)


class PicturedWalk(Walk):
    """A walk with a camera: the picture is as bright as the position is far, below a black line."""

    cameras = ("side",)

    def render(self, ids: Any, camera: str, width: int, height: int) -> np.ndarray:
        shade = ((self._obs[list(ids), 0] + 2) * 50).clamp(0, 255).numpy().astype(np.uint8)
        shown = np.broadcast_to(shade[:, None, None, None], (len(shade), height, width, 3)).copy()
        shown[:, 0] = 0
        return shown


def source_of(cfg: PreferencesCfg = CFG, sim: Any = None) -> OnlinePreferences:
    found = cfg.build(Walk(ENVS) if sim is None else sim, RewardSetup())
    assert isinstance(found, OnlinePreferences)
    return found


def rewarded(cfg: PreferencesCfg = CFG, sim: Any = None) -> LateRewardedSim:
    """The task's reward and the learned one."""
    rewards = [WeightedReward("task", TASK_WEIGHT, TaskRewardCfg()), WeightedReward("preferences", WEIGHT, cfg)]
    found = with_rewards(Walk(ENVS) if sim is None else sim, rewards, RewardSetup(), RewardMeans())
    assert isinstance(found, LateRewardedSim)
    return found


def own(sim: LateRewardedSim) -> OnlinePreferences:
    source = sim.rewards.sources[1].source
    assert isinstance(source, OnlinePreferences)
    return source


def learner_on(sims: list[LateRewardedSim], cfg: PreferencesCfg = CFG) -> SacLearner:
    def make() -> LateRewardedSim:
        sims.append(rewarded(cfg))
        return sims[-1]

    return SacLearner(replace(SAC, num_steps=10), Setup(make, POLICY, None, None, 0))


def stored(replay: Replay) -> Any:
    index = replay.indices()
    return replay.view(index, 1, 1.0)


def recomputed(source: OnlinePreferences, steps: Any) -> torch.Tensor:
    """Rewards of stored steps by the present ensemble; the task's reward is the position that a step reaches."""
    assert source._learned is not None
    task = steps.obs["walk"][:, 0] + steps.chunk[:, 0, 0].clamp(-1, 1)
    return TASK_WEIGHT * task + WEIGHT * source._learned.rewards(steps.obs, steps.chunk[:, 0], 0.0)


def test_the_whole_replay_has_the_rewards_of_the_newest_ensemble_and_the_other_source_its_own():
    sims: list[LateRewardedSim] = []
    learner = learner_on(sims)
    rounds = []
    for _ in range(10):
        learner.iterate()
        source = own(sims[-1])
        rounds.append(source.metrics()["rounds"])
        if source._learned is not None:
            steps = stored(learner.experience.memory.replay)
            assert torch.allclose(steps.reward, recomputed(source, steps), atol=1e-4)
    assert rounds[0] == 0 and rounds[-1] == 3 and source.metrics()["answers"] == 45
    assert learner.env_steps == 400


def test_steps_before_the_first_answers_are_invalid_and_get_their_reward_late():
    sim = rewarded()
    sim.reset(seed=0)
    draw = torch.Generator().manual_seed(0)
    valid = []
    for _ in range(40):
        step = sim.step(torch.rand(ENVS, 1, generator=draw) * 2 - 1)
        valid.append(step.info["reward_valid/preferences"].all().item())
    first = valid.index(True)
    assert first == 25 and not any(valid[:25]) and all(valid[25:])
    late = own(sim).late(0.0)
    # those of the first round came 15 steps ago, those of the second just now
    assert sorted(set(late.back[late.fresh].tolist())) == list(range(15, 40))
    assert int(late.fresh.sum()) == 25 * ENVS


def test_the_log_says_nothing_of_steps_before_the_iteration():
    sim = rewarded()
    means = sim._means
    assert means is not None
    sim.reset(seed=0)
    draw = torch.Generator().manual_seed(0)
    source = own(sim)
    for count in (24, 6):
        means.take()
        for _ in range(count):
            sim.step(torch.rand(ENVS, 1, generator=draw) * 2 - 1)
    sim.late_rewards(wait=False)
    found = means.take()
    kept = source._memory.kept()
    newest = kept.step >= 24
    given = source._memory.given(kept)["given"][torch.from_numpy(newest)]
    assert found["reward/preferences"] == pytest.approx(float(given.mean()), abs=1e-5)
    assert found["reward_valid/preferences"] == pytest.approx(1.0)


def test_a_resumed_run_ends_bit_for_bit_where_an_uninterrupted_one_does_and_asks_nothing_twice():
    sims: list[LateRewardedSim] = []
    whole, part = learner_on(sims), learner_on(sims)
    for _ in range(8):
        whole.iterate()
    for _ in range(5):
        part.iterate()
    state = part.state()
    asked = own(sims[1]).metrics()["labeler_asked"]
    again = learner_on(sims)
    again.load(state)
    for _ in range(3):
        again.iterate()
    one, other = whole.policy.state_dict(), again.policy.state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(stored(whole.experience.memory.replay).reward, stored(again.experience.memory.replay).reward)
    assert asked + own(sims[2]).metrics()["labeler_asked"] == own(sims[0]).metrics()["labeler_asked"] == 45


def brighter(call: Any) -> dict[str, Any]:
    if call.picture is None:
        first, second = (float(word) for word in call.prompt.split("shades ")[1].split("\n")[0].split(" and "))
        return {"preference": int(second > first)}
    return {"text": f"shades {call.picture[0, -1, 0]} and {call.picture[-1, -1, 0]}"}


def test_a_served_model_is_asked_while_the_sim_steps_on_and_open_questions_survive_a_resume(tmp_path):
    released = threading.Event()
    with ChatServer(brighter, delay_s=lambda number: 0.0 * released.wait(20.0)) as server:
        endpoint = ServedLabelerCfg("be far to the right")
        endpoint = replace(
            endpoint, server=replace(endpoint.server, base_url=server.base_url, model="m", answers=str(tmp_path))
        )
        cfg = replace(CFG, labels=12, per_round=12, labeler=by("endpoint", endpoint=endpoint, view="side"))
        draw = torch.Generator().manual_seed(0)

        def steps(sim: LateRewardedSim, count: int) -> None:
            for _ in range(count):
                sim.step(torch.rand(ENVS, 1, generator=draw) * 2 - 1)

        sim = rewarded(cfg, PicturedWalk(ENVS))
        sim.reset(seed=0)
        steps(sim, 60)
        source = own(sim)
        assert source.metrics()["open"] > 0 and source._learned is None
        state = sim.get_state()
        released.set()
        paid = len(source.late(20.0).back)
        assert paid > 0 and source.metrics()["answers"] == 12
        calls = len(server.calls)
        assert 12 < calls <= 24  # pictures that are alike are asked about once
        sim.close()
        again = rewarded(cfg, PicturedWalk(ENVS))
        again.reset(seed=0)
        again.set_state(state)
        found = own(again)
        assert len(found.late(20.0).back) == paid and found.metrics()["answers"] == 12
        assert len(server.calls) == calls, "answers that were paid for were asked again"
        assert source._learned is not None and found._learned is not None
        assert found._learned.identity == source._learned.identity
        again.close()


def test_pictures_of_before_a_state_was_restored_are_of_no_segment():
    with ChatServer(brighter) as server:
        endpoint = ServedLabelerCfg("be far to the right")
        endpoint = replace(endpoint, server=replace(endpoint.server, base_url=server.base_url, model="m"))
        cfg = replace(CFG, every_env_steps=10**9, labeler=by("endpoint", endpoint=endpoint, view="side"))
        sim = rewarded(cfg, PicturedWalk(ENVS, limit=1000))
        sim.reset(seed=0)
        state = None
        for step in range(14):
            if step == 4:
                state = sim.get_state()
            sim.step(torch.zeros(ENVS, 1))
        taker = own(sim)._clips
        assert state is not None and taker is not None and taker.clips
        sim.set_state(state)
        assert not taker.clips
        for _ in range(7):
            sim.step(torch.zeros(ENVS, 1))
        # the steps that were made since the restore: 4 to 10
        assert {clip.step for clip in taker.clips} == {4, 7}
        sim.close()


def test_pictures_are_taken_of_whole_segments_only():
    sim = PicturedWalk(ENVS, limit=5)
    taker = ClipTaker(sim, replace(LABELING, view="side"), seed=0)
    plain = with_rewards(sim, [WeightedReward("task", 1.0, TaskRewardCfg())], RewardSetup())
    obs = plain.reset(seed=0)
    over = []
    for step in range(12):
        before = {key: x.clone() for key, x in obs.items()}
        found = plain.step(torch.zeros(ENVS, 1))
        obs = found.obs
        taker.see(step, SimTransition(before, torch.zeros(ENVS, 1), ReachedObs(found), found))
        over.append((found.terminated | found.truncated).tolist())
    assert taker.clips
    for clip in taker.clips:
        # the last picture is of the scene after the last step, which an end would have taken away
        assert not any(over[clip.step + at][clip.env] for at in range(3)) and clip.pictures.shape == (2, 8, 8, 3)
    spans = {(clip.step, clip.env) for clip in taker.clips}
    expected = {(s, e) for s in (0, 3, 6, 9) for e in range(ENVS) if not any(over[s + k][e] for k in range(3))}
    assert spans == expected


def served(**server: Any) -> LabelingCfg:
    endpoint = ServedLabelerCfg("be far to the right")
    return by("endpoint", endpoint=replace(endpoint, server=replace(endpoint.server, model="m", **server)), view="side")


@pytest.mark.parametrize(
    "server, named",
    [
        ({"key_env": "NO_SUCH_KEY"}, "reward.preferences.labeler.endpoint.server.key_env"),
        ({"base_url": "ftp://host"}, "reward.preferences.labeler.endpoint.server.base_url"),
    ],
)
def test_errors_name_the_flag_of_a_training(
    server: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ConfigError, match=rf"^{re.escape(named)} "):
        source_of(replace(CFG, labeler=served(**server)), PicturedWalk(ENVS))


def test_answers_of_a_model_are_kept_with_the_run_unless_a_directory_is_named(tmp_path: Path) -> None:
    run, own_one = str(tmp_path / "run"), str(tmp_path / "own")
    kept = served().kept_in(run)
    assert (kept.store, kept.endpoint.server.answers) == (run, run)
    named = replace(served(answers=own_one), store=own_one)
    assert named.kept_in(run) == named
    assert by("browser").kept_in(run).store == run and by("synthetic").kept_in(run) == by("synthetic")
    assert served().kept_in(None) == served()
    source = replace(CFG, labeler=served()).build(PicturedWalk(ENVS), RewardSetup(answers=run))
    assert isinstance(source, OnlinePreferences)
    source.close()
    # descriptions, labels of the model, answers of the desk
    assert len(list(Path(run).glob("*/scorer.json"))) == 3


def test_the_execution_mode_of_the_training_makes_no_other_reward() -> None:
    compiled = replace(CFG, training=replace(CFG.training, engine="compiled"))
    longer = replace(CFG, training=replace(CFG.training, updates=CFG.training.updates + 1))
    assert source_of(compiled).identity == source_of().identity != source_of(longer).identity
