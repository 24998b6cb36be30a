"""Checks that every algorithm must pass; `CHECKS` lists them, each raises AssertionError.

An algorithm of another package is checked in the same way: `for check in CHECKS: check(case)`, with one
`AlgorithmCase`, of which most checks read the same training.
"""

from __future__ import annotations

import copy
import math
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from robotrl.errors import RobotrlError
from robotrl.learners.learner import Learner, Setup
from robotrl.registry import ALGORITHMS
from robotrl.run.checkpoint import read_checkpoint, write_checkpoint
from robotrl.run.policy_checkpoint import policy_from_tree, policy_tree
from robotrl.spec import Step, VecSim
from robotrl.spec.algorithms import LearnerCfg, MemoryNeeds
from robotrl.testing.settings import check_frozen_json
from robotrl.transforms import Clip, TransformGroup, bounds_to_unit, inverse


class AlgorithmCase(NamedTuple):
    """An algorithm, and a small training in which it is checked."""

    name: str
    """Its name in the registry."""
    cfg: Any
    """Its settings, small, for three iterations after `idle` or more."""
    make_sim: Callable[[], Any]
    """The training sim, with `HasState`, always with the same number of envs and the same seed."""
    policy_cfg: Any = None
    """Settings of the policy to build; None where it starts from a stored one."""
    make_policy: Callable[[], Any] | None = None
    """The policy that it starts from; its weights are drawn from torch's global generator, which is seeded before."""
    dataset: Path | None = None
    """Demonstrations, where it learns from them."""
    idle: int = 0
    """Iterations at the start in which the policy does not change, e.g. the critic's warm-up."""

    def setup(self, seed: int = 0) -> Setup:
        """Everything that the learner is built from."""
        torch.manual_seed(seed)
        policy = None if self.make_policy is None else self.make_policy()
        return Setup(self.make_sim, self.policy_cfg, policy, self.dataset, seed)

    def built(self, seed: int = 0) -> Learner:
        """The learner of a seed, ready for its first iteration."""
        setup = self.setup(seed)
        torch.manual_seed(seed)
        return self.cfg.build(setup)

    def resumed(self, tree: dict[str, Any]) -> Learner:
        """The learner that goes on from a checkpoint's tree, as `robotrl train --resume` builds it."""
        policy = policy_from_tree(tree["policy"], "checkpoint")
        setup = Setup(self.make_sim, self.policy_cfg, policy, self.dataset, 0, resumed=True)
        learner = self.cfg.build(setup)
        learner.load(tree["learner"])
        return learner


class CountingSim:
    """A sim that counts its steps; all else is the other sim's."""

    def __init__(self, sim: VecSim) -> None:
        self._sim, self.steps = sim, 0
        step = sim.step

        def counted(actions: Tensor) -> Step:
            self.steps += 1
            return step(actions)

        vars(sim)["step"] = counted


def checkpoint(learner: Learner) -> dict[str, Any]:
    """Checkpoint of a learner, written to disk and read again, so that it shares no memory with it."""
    tree = {"policy": policy_tree(learner.policy), "learner": learner.state()}
    with tempfile.TemporaryDirectory() as folder:
        path = write_checkpoint(Path(folder) / "checkpoint", tree, step=1, kind=type(learner).__name__)
        return copy.deepcopy(read_checkpoint(path).tree)


def difference(one: Any, other: Any, where: str = "state") -> str | None:
    """The first place at which two states are not equal bit for bit; None if they are."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        equal = one.shape == other.shape and one.dtype == other.dtype
        return None if equal and torch.allclose(one, other, rtol=0, atol=0, equal_nan=True) else where
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return None if np.array_equal(one, other, equal_nan=one.dtype.kind == "f") else where
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            return f"{where}: {sorted(map(str, one.keys() ^ other.keys()))}"
        pairs = [(one[key], other[key], f"{where}.{key}") for key in one]
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            return where
        pairs = [(a, b, f"{where}[{i}]") for i, (a, b) in enumerate(zip(one, other, strict=True))]
    else:
        return None if one == other or (one != one and other != other) else where
    return next((found for found in (difference(*pair) for pair in pairs) if found is not None), None)


def advance_global_rng() -> None:
    """Move the global random streams on: sims and callbacks of others may draw from them."""
    random.random()
    np.random.random()
    torch.rand(3)


def run_iterations(learner: Learner, iterations: int) -> list[dict[str, float]]:
    """Scalars of some iterations, between which the global random streams move on."""
    found = list[dict[str, float]]()
    for _ in range(iterations):
        advance_global_rng()
        found.append(learner.iterate())
    return found


class CheckedTraining(NamedTuple):
    """All that the checks look at of one training of `idle` + 3 iterations."""

    scalars: list[dict[str, float]]
    """Scalars of each iteration."""
    tree: dict[str, Any]
    """Checkpoint after `idle` + 1 iterations."""
    state: dict[str, Any]
    """State of the learner after `idle` + 2."""
    last: dict[str, Any]
    """Checkpoint at the end."""
    weights: tuple[dict[str, Tensor], dict[str, Tensor]]
    """Weights of the policy before the first iteration and after `idle` + 2."""
    env_steps_at_start: int
    env_steps: int
    """As the learner counts them, before the first iteration and at the end."""
    sim_steps: int
    """Steps that the sims took in between."""


_LAST: list[tuple[AlgorithmCase, CheckedTraining]] = []
"""The case that was trained last; the checks of a case come one after the other, and each reads the same training."""


def training(case: AlgorithmCase) -> CheckedTraining:
    """The training of a case, with seed 0; trained once for all checks of the same `case` in a row."""
    if not (_LAST and _LAST[0][0] is case):
        _LAST[:] = [(case, _trained(case))]
    return _LAST[0][1]


def _trained(case: AlgorithmCase) -> CheckedTraining:
    sims = list[CountingSim]()

    def make() -> VecSim:
        sim = case.make_sim()
        sims.append(CountingSim(sim))
        return sim

    learner = case._replace(make_sim=make).built()
    assert isinstance(learner, Learner)
    assert learner.iterations >= case.idle + 3, f"{learner.iterations} iterations: expected {case.idle + 3} or more"
    weights = {name: x.detach().clone() for name, x in learner.policy.state_dict().items()}
    # random actions that measure a normalization are not counted
    before, env_steps = sum(one.steps for one in sims), learner.env_steps
    scalars = run_iterations(learner, case.idle + 1)
    tree = checkpoint(learner)
    scalars += run_iterations(learner, 1)
    state = copy.deepcopy(learner.state())
    after = {name: x.detach().clone() for name, x in learner.policy.state_dict().items()}
    scalars += run_iterations(learner, 1)
    taken = sum(one.steps for one in sims) - before
    done = CheckedTraining(
        scalars, tree, state, checkpoint(learner), (weights, after), env_steps, learner.env_steps, taken
    )
    learner.close()
    return done


def fresh_policy(cfg: Any, sim: VecSim) -> Any:
    """A policy with fresh weights for a sim; observations are not normalized, actions by their bounds."""
    action = sim.action_spec
    outputs = (inverse(bounds_to_unit("action", action.low, action.high)), Clip("action", action.low, action.high))
    return cfg.build(sim.observation_spec, action, TransformGroup((), outputs))


# checks


def settings_are_frozen_json(case: AlgorithmCase) -> None:
    """Settings are a frozen dataclass of JSON values, of the class that the registry has under the name."""
    assert ALGORITHMS.load(case.name) is type(case.cfg)
    is_learner_cfg = isinstance(case.cfg, LearnerCfg)
    assert is_learner_cfg, f"{type(case.cfg).__name__} is no LearnerCfg"
    check_frozen_json(case.cfg)
    assert isinstance(case.cfg.memory, MemoryNeeds)
    assert isinstance(case.cfg.reads_rewards, bool)


def iterations_log_finite_numbers(case: AlgorithmCase) -> None:
    """Each iteration returns finite scalars, and the learner says how many there are."""
    for i, scalars in enumerate(training(case).scalars):
        assert scalars, f"iteration {i} logs nothing"
        for name, value in scalars.items():
            assert isinstance(value, int | float) and math.isfinite(value), f"iteration {i}: {name} is {value}"


def env_steps_are_those_of_the_sim(case: AlgorithmCase) -> None:
    """`env_steps` grows by the steps that the sim took, in all envs; a learner without a sim stays at 0."""
    done = training(case)
    assert done.env_steps_at_start == 0, f"{done.env_steps_at_start} env steps before the first iteration"
    taken = done.sim_steps * case.make_sim().num_envs
    assert done.env_steps == taken, f"env_steps is {done.env_steps}, and the sim took {taken}"


def the_policy_learns(case: AlgorithmCase) -> None:
    """The weights of `policy`, which is evaluated and saved, change by learning, and stay finite."""
    before, after = training(case).weights
    assert after.keys() == before.keys()
    assert all(bool(torch.isfinite(x).all()) for x in after.values()), "a weight is not finite"
    assert any(not torch.equal(x, before[name]) for name, x in after.items()), "no weight of the policy has changed"


def equal_seeds_learn_the_same(case: AlgorithmCase) -> None:
    """Two learners of one seed have the same scalars and the same state, whatever the global random streams do."""
    done, other, third = training(case), case.built(), case.built(seed=1)
    expected = done.scalars[: case.idle + 2]
    advance_global_rng()
    assert run_iterations(other, case.idle + 2) == expected, "equal seeds log different scalars"
    found = difference(done.state, other.state())
    assert found is None, f"equal seeds differ in {found}"
    assert run_iterations(third, case.idle + 2) != expected, "another seed logs the same scalars"
    for learner in (other, third):
        learner.close()


def it_resumes_bit_for_bit(case: AlgorithmCase) -> None:
    """A learner that goes on from a checkpoint has the scalars, the state and the policy of one that never stopped."""
    done = training(case)
    torch.manual_seed(123)
    again = case.resumed(copy.deepcopy(done.tree))
    found = run_iterations(again, 2)
    for i, (a, b) in enumerate(zip(done.scalars[-2:], found, strict=True)):
        place = difference(a, b, "scalars")
        assert place is None, f"iteration {i} after the resume: {place} differ"
    place = difference(done.last, checkpoint(again), "checkpoint")
    assert place is None, f"after the resume, {place} differs"
    again.close()


def a_checkpoint_is_of_its_moment(case: AlgorithmCase) -> None:
    """Loading puts back all that iterations change: a used learner that loads has the state that was saved."""
    done = training(case)
    again = case.resumed(copy.deepcopy(done.tree))
    place = difference(done.tree["learner"], checkpoint(again)["learner"], "state")
    assert place is None, f"{place} is not what was loaded"
    again.close()


class PolicyWithoutCapabilities(nn.Module):
    """A policy without any capability."""

    def __init__(self, sim: VecSim) -> None:
        super().__init__()
        self.observation_spec, self.action_spec, self.horizon = sim.observation_spec, sim.action_spec, 1
        self.control_dt_s, self.noise_shape, self.reward_scale = sim.control_dt_s, None, None
        self.transforms = TransformGroup()
        self.weight = nn.Parameter(torch.zeros(1))


def a_policy_that_cannot_is_refused(case: AlgorithmCase) -> None:
    """A policy without capabilities is refused when the learner is built, in one line (`robotrl.errors`)."""
    setup = case.setup()._replace(init_policy=PolicyWithoutCapabilities(case.make_sim()))
    try:
        case.cfg.build(setup)
    except RobotrlError as error:
        assert "\n" not in str(error), f"an error of several lines: {error}"
        return
    raise AssertionError("a policy that can do nothing was accepted")


CHECKS: tuple[Callable[[AlgorithmCase], None], ...] = (
    settings_are_frozen_json,
    iterations_log_finite_numbers,
    env_steps_are_those_of_the_sim,
    the_policy_learns,
    equal_seeds_learn_the_same,
    it_resumes_bit_for_bit,
    a_checkpoint_is_of_its_moment,
    a_policy_that_cannot_is_refused,
)
"""All checks of an algorithm."""
