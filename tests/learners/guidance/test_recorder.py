"""Suggestions stand beside the step that they are for, whenever they come."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tests.kits.off_policy_kit as off
from robotrl.errors import ConfigError
from robotrl.learners.guidance.recorder import COLUMN, SuggestionRecorder
from robotrl.learners.guidance.suggester import Suggestions, no_suggestions
from robotrl.replay.buffer import Replay
from robotrl.rollout.collector import Collector, Decision
from tests.kits.refusals import raises_naming
from tests.kits.walk_sim import Walk

ENVS = off.ENVS


def walk_replay(path=None, capacity=400, horizon=1):
    sim = Walk(ENVS)
    replay = Replay.create(
        path, sim.observation_spec, sim.action_spec, streams=ENVS, capacity=capacity, extras={COLUMN: (1,)}
    )
    collector = Collector(sim, horizon, 0.9)
    collector.reset(0)
    return replay, collector


def still(horizon=1):
    return lambda obs: Decision(torch.zeros((len(obs["walk"]), horizon, 1)), {})


class Echo:
    """Suggests the position that it sees, at once or some calls of `arrived` later, in a random order."""

    def __init__(self, late: bool) -> None:
        self.late, self._rng = late, np.random.default_rng(0)
        self.open: list[tuple[int, float]] = []

    def suggest(self, obs, started, tickets):
        seen = obs["walk"][:, :1].clone()
        if not self.late:
            return seen
        self.open += zip(tickets.tolist(), seen[:, 0].tolist(), strict=True)
        return torch.full_like(seen, torch.nan)

    def arrived(self, limit_s=0.0):
        if not self.late or not self.open:
            return no_suggestions(1)
        self._rng.shuffle(self.open)
        count = len(self.open) // 2
        now, self.open = self.open[:count], self.open[count:]
        return Suggestions(torch.tensor([t for t, _ in now]), torch.tensor([[x] for _, x in now]))

    def metrics(self):
        return {}

    def state(self):
        return {}

    def load(self, state):
        """Nothing is kept."""

    def close(self):
        """Nothing is held."""


@pytest.mark.parametrize("horizon", [1, 3])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("disk", [False, True])
def test_a_suggestion_is_stored_at_its_own_step(tmp_path, disk, late, horizon):
    replay, collector = walk_replay(tmp_path / "replay" if disk else None, horizon=horizon)
    echo = Echo(late)
    recorder = SuggestionRecorder(echo, replay, None)
    for _ in range(8):
        collector.collect_into(recorder, still(horizon), 5, corrector=recorder)
        recorder.deliver(0.0)
    got = replay.view(replay.indices(), 1, 1.0)
    suggested = got.extras[COLUMN][:, 0, 0]
    there = torch.isfinite(suggested)
    assert torch.equal(suggested[there], got.obs["walk"][:, 0][there])
    assert recorder.too_old == 0
    if late:
        # half of what is open arrives each time
        assert 0 < (~there).sum() <= len(echo.open)
    else:
        assert there.all()


def test_checksums_follow_late_suggestions(tmp_path):
    replay, collector = walk_replay(tmp_path / "replay")
    echo = Echo(late=True)
    recorder = SuggestionRecorder(echo, replay, None)
    collector.collect_into(recorder, still(), 20, corrector=recorder)
    recorder.deliver(0.0)
    before = replay.view(replay.indices(), 1, 1.0).extras[COLUMN]
    replay.close()
    again = Replay.open(tmp_path / "replay")
    assert again.dropped == () and len(again) == 20 * ENVS
    assert torch.equal(again.view(again.indices(), 1, 1.0).extras[COLUMN].nan_to_num(9), before.nan_to_num(9))
    again.close()


def test_a_suggestion_for_an_overwritten_step_is_dropped():
    replay, collector = walk_replay(capacity=5 * ENVS)
    echo = Echo(late=True)
    recorder = SuggestionRecorder(echo, replay, None)
    collector.collect_into(recorder, still(), 12, corrector=recorder)
    asked = len(echo.open)
    for _ in range(20):
        recorder.deliver(0.0)
    # of 12 steps an env the ring keeps 5
    assert asked - len(echo.open) - recorder.too_old <= 5 * ENVS
    assert recorder.too_old > 0
    got = replay.view(replay.indices(), 1, 1.0)
    suggested = got.extras[COLUMN][:, 0, 0]
    there = torch.isfinite(suggested)
    assert there.any() and torch.equal(suggested[there], got.obs["walk"][:, 0][there])


def test_a_recorder_changes_nothing_of_the_steps():
    plain, collector = walk_replay()
    collector.collect_into(plain, still(), 30)
    guided, collector = walk_replay()
    recorder = SuggestionRecorder(Echo(late=False), guided, None)
    collector.collect_into(recorder, still(), 30, corrector=recorder)
    one, other = (replay.view(replay.indices(), 1, 1.0) for replay in (plain, guided))
    for name in ("chunk", "reward", "discount", "terminated", "truncated", "source", "starts"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    assert torch.equal(one.obs["walk"], other.obs["walk"])


def test_columns_that_are_not_there_are_named():
    replay, _ = walk_replay()
    with raises_naming(ConfigError, "replay extras", "'step/sugested'", nearest=COLUMN):
        replay.set_extra("step/sugested", torch.tensor([0]), torch.zeros(1, 1))
    with raises_naming(ConfigError, "replay extras", "(1,", "2)"):
        replay.set_extra(COLUMN, torch.tensor([0]), torch.zeros(1, 2))
    assert replay.set_extra(COLUMN, torch.tensor([0]), torch.zeros(1, 1)) == 0
