"""A served model's scores land on the steps that they were asked for, and it is shown the right frames."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from robotrl.config import WeightedReward
from robotrl.errors import ConfigError
from robotrl.registry import make_sim
from robotrl.rewards.endpoint.cfg import EndpointCfg
from robotrl.rewards.relabel import LateRewardedSim, with_rewards
from robotrl.rewards.served.question import QuestionCfg
from robotrl.rewards.served.vlm_score import ServedReward, VlmScoreCfg
from robotrl.rewards.source import RewardSetup
from robotrl.rewards.vlm.clips import ClipShape
from robotrl.spec import VecSim
from tests.kits.chat_server import ChatServer
from tests.kits.numbered_scenes import NumberedScenes, clip_numbers, number_of
from tests.kits.refusals import raises_naming
from tests.kits.walk_sim import Walk

LARGEST = 2.0**20


class OnWalk(NamedTuple):
    """The reward on numbered pictures of a walk."""

    cfg: VlmScoreCfg

    def build(self, sim: VecSim, setup: RewardSetup) -> ServedReward:
        clip = ClipShape(self.cfg.frames, self.cfg.frame_gap)
        return self.cfg.with_pictures(NumberedScenes(sim), clip, sim)


def cfg_of(server: ChatServer, **changes: Any) -> VlmScoreCfg:
    endpoint = EndpointCfg(base_url=server.base_url, model="numbers", backoff_s=0.01, concurrency=8, retries=5)
    return VlmScoreCfg(question="Which number?", high=LARGEST, endpoint=endpoint, **changes)


def on_walk(sim: Any, cfg: VlmScoreCfg) -> LateRewardedSim:
    made = with_rewards(sim, [WeightedReward("vlm-score", 1.0, OnWalk(cfg))])
    assert isinstance(made, LateRewardedSim)
    made.reset(seed=0)
    return made


def number(call: Any) -> Any:
    return {"values": [number_of(call.picture)]}


def walked(made: Any, steps: int, seed: int = 0) -> np.ndarray:
    """(T, N) rewards of random steps, with all late changes."""
    generator = torch.Generator().manual_seed(seed)
    given = torch.zeros(steps, made.num_envs, dtype=torch.float64)
    for t in range(steps):
        given[t] = made.step(torch.rand((made.num_envs, 1), generator=generator) - 0.4).reward
        for back, env, change, _ in zip(*made.late_rewards(wait=t == steps - 1), strict=True):
            given[t - back, env] += change
    return given.numpy() * LARGEST


def episodes(sim: Any) -> np.ndarray:
    """(T, N) step at which the episode of each step began."""
    began, out = np.zeros(sim.num_envs, int), []
    for t, record in enumerate(sim.tape):
        out.append(began.copy())
        began[(record.terminated | record.truncated).numpy()] = t + 1
    return np.array(out)


def test_late_reordered_and_retried_scores_land_on_their_steps() -> None:
    sim, rng = Walk(5), np.random.default_rng(0)
    delays, faults = rng.uniform(0, 0.03, 4000), rng.uniform(size=4000) < 0.1
    server = ChatServer(number, delay_s=lambda n: delays[n], fault=lambda n: 500 if faults[n] else None)
    with server, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = on_walk(sim, cfg_of(server, every=2, frame_gap=2, max_age=3))
        found = walked(made, 60)
        metrics = made.rewards.metrics()
        made.close()
    began = episodes(sim)
    for t in range(60):
        for n in range(5):
            asked = t - t % 2
            expected = asked * 5 + n if asked >= began[t, n] else 0
            assert found[t, n] == pytest.approx(expected, abs=0.1), (t, n)
    assert (
        metrics["scoring/vlm-score/retries"] > 5
        and metrics["scoring/vlm-score/submitted"] * metrics["scoring/vlm-score/valid"] == 150
    )


def test_a_clip_has_the_frames_of_its_own_episode() -> None:
    sim = Walk(3)
    with ChatServer(number) as server:
        made = on_walk(sim, cfg_of(server, every=4, frames=3, frame_gap=2, max_age=0))
        walked(made, 40)
        made.close()
    began = episodes(sim)
    assert len(np.unique(began)) > 5
    seen = {number_of(call.picture): [number_of(frame) for frame in call.frames] for call in server.calls}
    # where all episodes end at once the count of steps begins anew
    phase = np.array([max(s for s in range(t + 1) if s == 0 or (began[s] == s).all()) for t in range(40)])
    asked = [t for t in range(40) if (t - phase[t]) % 4 == 0]
    assert sorted(seen) == [t * 3 + n for t in asked for n in range(3)]
    assert len(set(phase)) > 1
    repeated = 0
    for t in asked:
        for n in range(3):
            first = began[t, n] + (began[t, n] - phase[t]) % 2  # pictures are taken in every other step
            assert seen[t * 3 + n] == clip_numbers(t, n, first, 3, frames=3, gap=2)
            repeated += first > t - 4
    assert 0 < repeated < len(seen)


def test_a_silent_server_stops_nobody_and_its_steps_are_invalid() -> None:
    with ChatServer(number, fault=lambda n: "hang") as server:
        endpoint = EndpointCfg(base_url=server.base_url, model="m", timeout_s=0.3, call_timeout_s=0.2, retries=0)
        made = on_walk(Walk(2), replace(cfg_of(server), every=1, frame_gap=1, wait_s=5.0, endpoint=endpoint))
        with pytest.warns(UserWarning, match="took too long"):
            found = walked(made, 5)
        assert not found.any()
        metrics = made.rewards.metrics()
        assert metrics["scoring/vlm-score/timed_out"] + metrics["scoring/vlm-score/failed"] == 1.0
        made.close()


def test_the_budget_and_what_was_paid_outlive_a_resume() -> None:
    with ChatServer(number, usage=(1000, 1000)) as server:
        limited = EndpointCfg(base_url=server.base_url, model="m", max_cost=0.9, prompt_price=0.1, concurrency=1)
        cfg = replace(cfg_of(server), every=1, frame_gap=1, patient=True, endpoint=limited)
        first: Any = on_walk(Walk(1), cfg)
        walked(first, 4)
        state = first.get_state()
        first.close()
        again: Any = on_walk(Walk(1), cfg)
        again.set_state(state)
        with pytest.warns(UserWarning, match="budget is spent"):
            walked(again, 9, seed=1)
        assert again.rewards.metrics()["scoring/vlm-score/cost"] == pytest.approx(0.9)
        again.close()
        assert len(server.calls) == 9


def test_a_cost_that_nobody_knows_ends_the_budget_also_after_a_resume() -> None:
    with ChatServer(number, fault=lambda n: "oversized") as server:
        limited = EndpointCfg(base_url=server.base_url, model="m", max_cost=0.9, prompt_price=0.1, concurrency=1)
        cfg = replace(cfg_of(server), every=1, frame_gap=1, patient=True, endpoint=limited)
        with pytest.warns(UserWarning, match="how many tokens"):
            first: Any = on_walk(Walk(1), cfg)
            walked(first, 4)
            state = first.get_state()
            first.close()
            again: Any = on_walk(Walk(1), cfg)
            again.set_state(state)
            walked(again, 4, seed=1)
            again.close()
        assert len(server.calls) == 1


def test_what_changes_no_score_makes_no_other_reward() -> None:
    sim = make_sim("bev/drive", 1, 0, obs="vector", agents=4)
    base = VlmScoreCfg(question="how safe?", endpoint=EndpointCfg(model="m"))

    def identity(cfg: VlmScoreCfg) -> str:
        source = cfg.build(sim, RewardSetup())
        source.close()
        return source.identity

    same: list[dict[str, Any]] = [{"wait_s": 2.0}, {"kept_steps": 77}, {"patient": True}]
    limits: list[dict[str, Any]] = [{"max_requests": 5}, {"concurrency": 2}, {"retries": 1}, {"queue_size": 9}]
    limits += [{"timeout_s": 9.0}, {"call_timeout_s": 9.0}, {"backoff_s": 1.0}, {"max_answer_bytes": 999}]
    limits += [{"max_cost": 1.0, "prompt_price": 1.0}, {"answer_price": 1.0}]
    other: list[dict[str, Any]] = [{"question": "how fast?"}, {"high": 5.0}, {"words": ("a", "b")}, {"every": 5}]
    other += [{"max_age": 3}, {"frames": 2}, {"pixels": 64}, {"synthesis": "driving"}]
    asked: list[dict[str, Any]] = [{"base_url": "http://127.0.0.1:9/v1"}, {"model": "n"}, {"temperature": 1.0}]
    asked += [{"max_tokens": 9}, {"reply_format": "text"}]
    same += [{"endpoint": replace(base.endpoint, **one)} for one in limits]
    other += [{"endpoint": replace(base.endpoint, **one)} for one in asked]
    assert {identity(replace(base, **changes)) for changes in same} == {identity(base)}
    found = [identity(replace(base, **changes)) for changes in [{}, *other]]
    assert len(set(found)) == len(found)


def test_answers_are_kept_with_the_run_unless_a_directory_is_named(tmp_path: Path) -> None:
    sim = make_sim("bev/drive", 1, 0, obs="none", agents=4)
    base = VlmScoreCfg(question="how safe?", endpoint=EndpointCfg(model="m"))
    named = replace(base, endpoint=replace(base.endpoint, answers=str(tmp_path / "own")))
    for cfg, folder in ((base, "run"), (named, "own")):
        cfg.build(sim, RewardSetup(answers=str(tmp_path / "run"))).close()
        assert len(list((tmp_path / folder).glob("*/scorer.json"))) == 1
    assert len(list((tmp_path / "run").iterdir())) == 1


def test_scores_of_answers_by_hand() -> None:
    numbers = QuestionCfg(question="how safe?", low=-5.0, high=5.0)
    assert numbers.score(np.array([[-5.0], [0.0], [5.0]], np.float32))[:, 0].tolist() == [0.0, 0.5, 1.0]
    words = QuestionCfg(question="how safe?", words=("danger", "risk", "safe"))
    found = words.score(np.array([[2], [0], [1], [np.nan]], np.float32))[:, 0]
    assert found[:3].tolist() == [1.0, 0.0, 0.5] and np.isnan(found[3])
    valued = replace(words, scores=(0.0, 0.9, 1.0))
    assert valued.score(np.array([[1]], np.float32))[0, 0] == np.float32(0.9)


@pytest.mark.parametrize(
    "field, changes",
    [
        ("question", {"question": " "}),
        ("low", {"low": 10.0}),
        ("words", {"words": ("safe",)}),
        ("scores", {"words": ("a", "b"), "scores": (1.0,)}),
        ("frame_gap", {"frames": 2, "every": 5, "frame_gap": 2}),
        ("frames", {"frames": 0}),
        ("every", {"every": 0}),
        ("endpoint.model", {"endpoint": EndpointCfg()}),
    ],
)
def test_settings_that_cannot_be_are_named(field: str, changes: dict[str, Any]) -> None:
    sim = make_sim("bev/drive", 1, 0, obs="none", agents=4)
    base = VlmScoreCfg(question="how safe?", endpoint=EndpointCfg(model="m"))
    with raises_naming(ConfigError, f"reward.vlm-score.{field}"):
        replace(base, **changes).build(sim, RewardSetup())
