"""Parts of a learner's state: each kind is saved and restored, and followed by a process that cannot resume exactly."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import nn

from robotrl.config import SimCfg, TrainCfg, check
from robotrl.engine.distributed import SEEDS
from robotrl.errors import CapabilityError, ConfigError
from robotrl.learners.normalizers import RewardNormalizer
from robotrl.learners.parts import Part, follow, restore, saved
from tests.kits import learner_kit, off_policy_kit


class Count:
    """An object with a state."""

    def __init__(self, number: int) -> None:
        self.number = number

    def state(self) -> int:
        return self.number

    def load(self, state: int) -> None:
        self.number = state


def parts(seed: int) -> dict[str, Part]:
    torch.manual_seed(seed)
    return {
        "net": nn.Linear(2, 2),
        "generator": torch.Generator().manual_seed(seed),
        "count": Count(seed),
        "none": None,
    }


def drawn(generator: Any) -> float:
    return float(torch.rand((), generator=generator))


def test_every_kind_of_part_is_saved_and_restored() -> None:
    before, after = parts(1), parts(2)
    state = learner_kit.snapshot(saved(before))
    assert state["count"] == 1 and state["none"] is None
    for name, part in after.items():
        restore(part, state[name])
    assert learner_kit.same(saved(after), state)
    assert drawn(before["generator"]) == drawn(after["generator"])


def test_another_process_draws_from_its_own_streams() -> None:
    before, after = parts(1), parts(2)
    state = learner_kit.snapshot(saved(before))
    for name, part in after.items():
        follow(part, state[name], SEEDS + 7)
    assert drawn(after["generator"]) == drawn(torch.Generator().manual_seed(7))
    assert learner_kit.same(saved(after)["net"], state["net"]) and saved(after)["count"] == 1


def test_returns_of_another_process_start_at_zero_with_the_same_statistics() -> None:
    before, after = RewardNormalizer(2, 0.5), RewardNormalizer(2, 0.5)
    before._running += 3.0
    before._moments.update(torch.tensor([[1.0], [3.0]]))
    follow(after, before.state(), 0)
    assert after._running.tolist() == [0.0, 0.0] and after.scale == before.scale
    restore(after, before.state())
    assert after._running.tolist() == [3.0, 3.0]


def test_a_state_of_another_number_of_processes_is_refused() -> None:
    learner = off_policy_kit.SAC.build(off_policy_kit.setup())
    learner.iterate()
    state = learner_kit.snapshot(learner.state())
    with pytest.raises(ConfigError, match="begun by 2 processes: 1 go on"):
        learner.load({**state, "processes": 2})
    # version 0.1 stored no number of processes where there could be only one
    del state["processes"]
    learner.load(state)
    assert (learner.iteration, learner.updates) == (1, 0)


def test_what_a_learner_does_not_declare_it_does_not_support() -> None:
    learner = learner_kit.PPO.build(learner_kit.setup(None, learner_kit.GAUSSIAN))
    assert not learner.caches and not learner.acts_remotely and not learner.sharded
    with pytest.raises(CapabilityError, match="PpoLearner lacks watch: it cannot learn from interventions"):
        learner.watch(lambda sim: pytest.fail("asked"))


def test_settings_that_are_no_learners_are_refused_in_one_line() -> None:
    @dataclass(frozen=True)
    class Alike:
        lr: float = 1.0

        def build(self, setup: Any) -> Any:
            return setup

    cfg = TrainCfg(SimCfg("mujoco/peg-insert"), learner_kit.PPO, learner_kit.GAUSSIAN)
    check(cfg)
    with pytest.raises(ConfigError, match=r"algo is Alike: expected a subclass of robotrl\.spec\.LearnerCfg"):
        check(replace(cfg, algo=Alike()))
