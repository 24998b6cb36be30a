"""Suggestions of a model behind a real HTTP server: each on the step that it was asked for, whatever happens."""

from __future__ import annotations

import threading
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

import tests.kits.off_policy_kit as off
from robotrl.errors import ConfigError
from robotrl.learners.guidance.cfg import GuidanceCfg
from robotrl.learners.guidance.prompted import PromptedSuggester, named_action, prompt_of, reply_of
from robotrl.learners.guidance.recorder import COLUMN
from robotrl.rewards.endpoint.cfg import EndpointCfg
from robotrl.spec import Spec
from tests.kits.chat_server import ChatServer
from tests.kits.guided_kit import GuidedWalk, guided_setup, place
from tests.kits.refusals import raises_naming

SAC = replace(off.SAC, env_steps=800, utd_ratio=0.25)
TWO = Spec((2,), ("steer", "speed"), ("rad", "m/s"), (-1.0, 0.0), (1.0, 5.0))


def seen(call):
    """Half of the position in the picture, as an action."""
    assert call.picture is not None and call.picture.shape == (8, 8, 3)
    return {"values": [round(place(float(call.picture[0, 0, 0])) / 2, 6)]}


def guidance_of(server, **changes):
    endpoint = {"concurrency": 8, "backoff_s": 0.01, "queue_size": 4096} | changes.pop("endpoint", {})
    cfg = EndpointCfg(base_url=server.base_url, model="small", **endpoint)
    return replace(GuidanceCfg(by="endpoint", prompt="Where to?", pixels=8, endpoint=cfg), **changes)


def stored(learner):
    replay = learner.experience.memory.replay
    got = replay.view(replay.indices(), 1, 1.0)
    return got.obs["walk"][:, 0], got.extras[COLUMN][:, 0, 0]


def test_late_answers_in_any_order_stand_at_their_own_step():
    delays = np.random.default_rng(0).uniform(0, 0.05, 100_000)
    faults = np.random.default_rng(1).uniform(size=100_000) < 0.1
    with (
        ChatServer(seen, delay_s=lambda n: float(delays[n]), fault=lambda n: "nan" if faults[n] else None) as server,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        learner = replace(SAC, guidance=guidance_of(server)).build(guided_setup(off.POLICY))
        log = off.run(learner, 8)
        recorder = learner.experience._recorder
        recorder.deliver(30.0)
        x, suggested = stored(learner)
        metrics = recorder.metrics()
        learner.close()
    there = torch.isfinite(suggested)
    # a picture has 255 levels
    assert (suggested[there] - x[there] / 2).abs().max() < 0.01
    assert 0.5 < there.float().mean() < 1.0
    assert metrics["guidance/pending"] == 0 and metrics["guidance/invalid"] > 0
    assert "critic_loss" in log[-1] and log[-1]["guidance/submitted"] == 8 * 32


def test_a_choice_is_one_of_the_named_actions():
    def side(call):
        assert "0 = left, 1 = stay, 2 = right" in call.prompt
        level = place(float(call.picture[0, 0, 0]))
        return {"choice": 0 if level > 0.2 else 2 if level < -0.2 else 1}

    with ChatServer(side) as server:
        guidance = guidance_of(server, actions=("left=-1", "stay=0", "right=0.5"), wait_s=30.0, every=2)
        learner = replace(SAC, guidance=guidance).build(guided_setup(off.POLICY))
        off.run(learner, 3)
        x, suggested = stored(learner)
        learner.close()
    there = torch.isfinite(suggested)
    assert 0.4 < there.float().mean() < 0.6
    wanted = torch.where(x > 0.2, -1.0, torch.where(x < -0.2, 0.5, 0.0))
    clear = there & ((x.abs() - 0.2).abs() > 0.02)
    assert torch.equal(suggested[clear], wanted[clear])


@pytest.mark.parametrize("fault", [500, "drop", "hang", "garbage", "nan", "oversized", "endless", "drip"])
def test_a_broken_server_leaves_training_running(fault):
    with ChatServer(seen, fault=lambda n: fault) as server, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        limits = {"timeout_s": 0.5, "call_timeout_s": 0.2, "retries": 1, "queue_size": 64}
        learner = replace(SAC, guidance=guidance_of(server, endpoint=limits)).build(guided_setup(off.POLICY))
        log = off.run(learner, 8)
        _, suggested = stored(learner)
        learner.close()
    assert "critic_loss" in log[-1] and np.isfinite(log[-1]["critic_loss"])
    assert log[-1]["suggested"] == 0 and log[-1]["action_guidance_loss"] == 0
    assert not torch.isfinite(suggested).any()


def test_a_resumed_run_keeps_to_its_budget(tmp_path):
    with ChatServer(seen) as server, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        limits = {"max_requests": 40, "answers": str(tmp_path / "answers"), "concurrency": 1}
        cfg = replace(SAC, guidance=guidance_of(server, endpoint=limits, wait_s=30.0))
        learner = cfg.build(guided_setup(off.POLICY))
        off.run(learner, 1)
        state, paid = learner.state(), len(server.calls)
        assert 0 < paid <= 32
        learner.close()
        resumed = cfg.build(guided_setup(off.POLICY, init_policy=learner.policy))
        resumed.load(state)
        off.run(resumed, 4)
        assert len(server.calls) == 40
        assert resumed.experience._recorder.metrics()["guidance/requests_paid"] == 40
        resumed.close()


def test_answers_of_before_a_state_was_restored_belong_to_no_step_of_after():
    """The tickets of the steps of after are those of the steps of before."""
    release = threading.Event()

    def late(call):
        release.wait(20.0)
        return seen(call)

    tickets, fresh = torch.arange(3), torch.zeros(3, dtype=torch.bool)
    with ChatServer(late) as server:
        sim = GuidedWalk(3)
        suggester = PromptedSuggester(guidance_of(server), sim)
        obs, state = sim.reset(seed=0), suggester.state()
        sim._obs[:, 0] = torch.tensor([-0.5, 0.0, 0.5])
        suggester.suggest(obs, fresh, tickets)
        suggester.load(state)
        sim._obs[:, 0] = torch.tensor([1.5, 1.0, 0.75])
        suggester.suggest(obs, fresh, tickets)
        release.set()
        found = suggester.arrived(20.0)
        suggester.close()
    wanted = {0: 0.75, 1: 0.5, 2: 0.375}
    assert {int(t): float(x) for t, x in zip(*found, strict=True)} == pytest.approx(wanted, abs=0.01)


class WatchedWalk(GuidedWalk):
    """Notes of which envs pictures are drawn."""

    def __init__(self, num_envs):
        super().__init__(num_envs)
        self.drawn = []

    def render(self, ids, camera, width, height):
        self.drawn.append(list(ids))
        return super().render(ids, camera, width, height)


def test_only_envs_with_room_are_drawn_and_asked_about_in_turn():
    release = threading.Event()

    def late(call):
        release.wait(20.0)
        return seen(call)

    with ChatServer(late) as server:
        sim = WatchedWalk(5)
        suggester = PromptedSuggester(guidance_of(server, endpoint={"queue_size": 3}), sim)
        obs = sim.reset(seed=0)
        sim._obs[:, 0] = torch.linspace(-0.5, 1.5, 5)

        def ask(step):
            suggester.suggest(obs, torch.zeros(5, dtype=torch.bool), 5 * step + torch.arange(5))

        ask(0)
        ask(1)
        assert sim.drawn == [[0, 1, 2]], "nothing is drawn where nothing can be asked"
        release.set()
        first = suggester.arrived(20.0).tickets
        ask(2)
        assert sim.drawn[1:] == [[3, 4, 0]]
        second = suggester.arrived(20.0)
        again = PromptedSuggester(guidance_of(server), sim)
        again.load(suggester.state())
        suggester.close()
        again.close()
    assert sorted(first.tolist()) == [0, 1, 2] and sorted(second.tickets.tolist()) == [10, 13, 14]
    wanted = {int(t): float(sim._obs[t - 10, 0]) / 2 for t in second.tickets}
    assert {int(t): float(x) for t, x in zip(*second, strict=True)} == pytest.approx(wanted, abs=0.01)
    assert again._turn == suggester._turn == 1


def test_named_actions():
    assert named_action("ahead = 0, 2.5", TWO) == ("ahead", (0.0, 2.5))
    for text in ("ahead", "ahead=", "=0,1", "ahead=0", "ahead=0,1,2", "ahead=a,b"):
        with raises_naming(ConfigError, "algo.guidance.actions", "2"):
            named_action(text, TWO)
    with raises_naming(ConfigError, "algo.guidance.actions", "speed", 6, 0, 5):
        named_action("ahead=0,6", TWO)
    with raises_naming(ConfigError, "algo.guidance.actions"):
        named_action("ahead=0,nan", TWO)
    one = named_action("ahead=0,1", TWO)
    for named in ([one], [one, one]):
        with raises_naming(ConfigError, "algo.guidance.actions"):
            reply_of(named, TWO)


def test_prompts_say_what_can_be_answered():
    named = [named_action("ahead=0,1", TWO), named_action("left=-1,1", TWO)]
    assert prompt_of("Where to?\n", named, TWO) == "Where to?\nActions: 0 = ahead, 1 = left."
    assert prompt_of("Where to?", [], TWO) == "Where to?\nThe numbers are steer (rad), speed (m/s)."
    assert reply_of([], TWO).num_outputs == 2


def test_the_view_and_the_prompt_are_checked():
    with ChatServer(seen) as server:
        for changes, parts in (({"view": "side"}, ["'side'", "front"]), ({"prompt": " "}, [])):
            field = f"algo.guidance.{next(iter(changes))}"
            with raises_naming(ConfigError, field, *parts):
                replace(SAC, guidance=guidance_of(server, **changes)).build(guided_setup(off.POLICY))
    endpoint = EndpointCfg(base_url="ftp://x", model="m")
    with raises_naming(ConfigError, "algo.guidance.endpoint.base_url"):
        GuidanceCfg(by="endpoint", prompt="?", endpoint=endpoint).check()
