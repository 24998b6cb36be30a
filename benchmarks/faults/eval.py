"""Faults of evaluations: changed numbers of envs and orders of starts, broken policies and actors, old results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.faults.kind import Kind, Outcome, outcome_of
from robotrl.policies.flow import FlowCfg
from robotrl.policies.gaussian import GaussianCfg
from robotrl.policies.squashed import SquashedCfg
from robotrl.registry import make_sim
from robotrl.rollout.evaluate import EvalResult, Turn, evaluate, run_episodes
from robotrl.run.directory import Run
from robotrl.spec import ActOut, Spec
from robotrl.transforms import TransformGroup

SIM = "mujoco/hopper"
LIMIT = {"limit_steps": 6}
STARTS, MOST = 6, 12
"""Number of starts that are run, and number of starts to choose from."""
Rng = np.random.Generator


def _sim(num_envs: int) -> Any:
    return make_sim(SIM, num_envs=num_envs, seed=0, **LIMIT)


def _policy(rng: Rng, action_spec: Spec | None = None) -> tuple[Any, Any]:
    """A small policy with random weights, and a sampling mode."""
    cfg = (FlowCfg, GaussianCfg, SquashedCfg)[rng.integers(3)](horizon=int(rng.integers(1, 4)), hidden=(16,))
    sim = _sim(1)
    torch.manual_seed(int(rng.integers(2**31)))
    return cfg.build(sim.observation_spec, action_spec or sim.action_spec, TransformGroup()), "sample"


def _ids(rng: Rng) -> list[int]:
    test = _sim(1).state_ids("test")
    return [test.start + int(i) for i in rng.choice(MOST, STARTS, replace=False)]


def _same(found: EvalResult, sound: EvalResult) -> Outcome:
    """True where two evaluations agree, start by start."""
    a, b = np.argsort(found.ids), np.argsort(sound.ids)
    alike = all(
        np.array_equal(getattr(found, name)[a], getattr(sound, name)[b])
        for name in ("ids", "success", "length", "returns")
    )
    return Outcome.HARMLESS if alike else Outcome.SILENT


def another_number_of_envs(rng: Rng, folder: Path) -> Outcome:
    """The same starts in 1 to 40 envs."""
    del folder
    (policy, mode), ids = _policy(rng), _ids(rng)
    one, other = (evaluate(policy, _sim(int(n)), ids=ids, mode=mode, seed=3) for n in (4, rng.integers(1, 41)))
    return _same(other, one)


def another_order(rng: Rng, folder: Path) -> Outcome:
    """The same starts in another order."""
    del folder
    (policy, mode), ids = _policy(rng), _ids(rng)
    shuffled = [int(i) for i in rng.permutation(ids)]
    one, other = (evaluate(policy, _sim(3), ids=some, mode=mode, seed=3) for some in (ids, shuffled))
    return _same(other, one)


def other_starts_beside(rng: Rng, folder: Path) -> Outcome:
    """More starts than before: earlier ones must have the same results."""
    del folder
    (policy, mode), ids = _policy(rng), _ids(rng)
    fewer = ids[: int(rng.integers(1, STARTS))]
    some, every = (evaluate(policy, _sim(3), ids=listed, mode=mode, seed=3) for listed in (fewer, ids))
    kept = len(fewer)
    cut = {name: getattr(every, name)[:kept] for name in ("ids", "success", "length", "returns")}
    return _same(some, every._replace(**cut))


def sim_used_before(rng: Rng, folder: Path) -> Outcome:
    """A sim that was stepped before, against a fresh one."""
    del folder
    (policy, mode), ids = _policy(rng), _ids(rng)
    used, fresh = _sim(3), _sim(3)
    used.reset(seed=int(rng.integers(1000)))
    for _ in range(int(rng.integers(1, 9))):
        used.step(torch.zeros(3, used.action_spec.shape[0]))
    return _same(*(evaluate(policy, sim, ids=ids, mode=mode, seed=3) for sim in (used, fresh)))


def repeated_ids(rng: Rng, folder: Path) -> Outcome:
    """A repeated start id, or no start at all."""
    del folder
    (policy, mode), ids = _policy(rng), _ids(rng)
    wrong = [] if rng.random() < 0.2 else [*ids, ids[int(rng.integers(STARTS))]]
    return outcome_of(lambda: evaluate(policy, _sim(3), ids=wrong, mode=mode))


def ids_that_are_none(rng: Rng, folder: Path) -> Outcome:
    """Invalid start ids: outside all splits, fractions, NaN, text."""
    del folder
    (policy, mode), ids = _policy(rng), _ids(rng)
    bad: Any = (-1 - int(rng.integers(9)), 2**40, ids[0] + 0.5, float("nan"), "7", None)[rng.integers(6)]
    ids[int(rng.integers(STARTS))] = bad
    return outcome_of(lambda: evaluate(policy, _sim(3), ids=ids, mode=mode))


def beyond_the_split(rng: Rng, folder: Path) -> Outcome:
    """An invalid number of episodes, split or seed."""
    del folder
    (policy, mode), size = _policy(rng), len(_sim(1).state_ids("test"))
    wrong: dict[str, Any] = (
        {"episodes": size + int(rng.integers(1, 99))},
        {"episodes": -int(rng.integers(0, 9))},
        {"episodes": 2, "split": "tset"},
        {"episodes": 2, "seed": -1 - int(rng.integers(9))},
    )[rng.integers(4)]
    return outcome_of(lambda: evaluate(policy, _sim(3), mode=mode, **wrong))


def another_action_width(rng: Rng, folder: Path) -> Outcome:
    """A policy with another number of action elements than the sim."""
    del folder
    width = int(rng.choice([1, 2, 4, 5, 9]))
    names = tuple(f"a{i}" for i in range(width))
    spec = Spec((width,), names, ("1",) * width, (-1.0,) * width, (1.0,) * width)
    policy, mode = _policy(rng, spec)
    return outcome_of(lambda: evaluate(policy, _sim(3), ids=_ids(rng), mode=mode))


def weights_that_are_none(rng: Rng, folder: Path) -> Outcome:
    """A NaN or infinite weight."""
    del folder
    policy, mode = _policy(rng)
    weights = list(policy.parameters())
    weight = weights[int(rng.integers(len(weights)))]
    with torch.no_grad():
        weight.view(-1)[int(rng.integers(weight.numel()))] = float(rng.choice([np.nan, np.inf, -np.inf]))
    return outcome_of(lambda: evaluate(policy, _sim(3), ids=_ids(rng), mode=mode))


def actions_of_an_actor(rng: Rng, folder: Path) -> Outcome:
    """An actor that at some step returns actions of another shape, or non-finite ones."""
    del folder
    width = _sim(1).action_spec.shape[0]
    sound = torch.zeros(3, width)
    broken = sound.clone()
    broken[int(rng.integers(3)), int(rng.integers(width))] = float(rng.choice([np.nan, np.inf, -np.inf]))
    shapes = (sound[:2], sound[:, :-1], sound[None], torch.zeros(3, width + 1), sound[0])
    wrong = broken if rng.random() < 0.5 else shapes[int(rng.integers(len(shapes)))]
    when = int(rng.integers(4))

    class Odd:
        steps = 0

        def act(self, obs: dict[str, Tensor], turn: Turn) -> Tensor:
            del obs, turn
            self.steps += 1
            return wrong if self.steps > when else sound

    return outcome_of(lambda: run_episodes(Odd(), _sim(3), _ids(rng)))


def chunks_of_a_policy(rng: Rng, folder: Path) -> Outcome:
    """A third-party policy whose chunk is too short, too wide, has too few rows, or is not finite."""
    del folder
    sim = _sim(3)
    width = sim.action_spec.shape[0]
    kind = int(rng.integers(4))

    class Foreign:
        observation_spec, action_spec, horizon = sim.observation_spec, sim.action_spec, 2

        def act(self, obs: Any, state: Any = None, generator: Any = None, mode: str = "sample") -> ActOut:
            rows = len(next(iter(obs.values())))
            shape = ((rows, 1, width), (rows, 2, width + 1), (rows + 1, 2, width), (rows, 2, width))[kind]
            chunk = 0.1 * torch.randn(shape, generator=generator)
            return ActOut(chunk if kind < 3 else chunk / 0, state)

    mode: Any = ("sample", "mean")[rng.integers(2)]
    return outcome_of(lambda: evaluate(Foreign(), sim, ids=_ids(rng), mode=mode))


def starts_in_an_order_of_its_own(rng: Rng, folder: Path) -> Outcome:
    """A third-party sim that takes queued starts in another order than it reports."""
    del folder
    policy, mode = _policy(rng)
    sim: Any = _sim(3)
    inside: Callable[[Any], None] = sim.queue_states
    order = rng.permutation(STARTS)
    while (order == np.arange(STARTS)).all():
        order = rng.permutation(STARTS)
    sim.queue_states = lambda ids: inside([list(ids)[i] for i in order])
    return outcome_of(lambda: evaluate(policy, sim, ids=_ids(rng), mode=mode))


def damaged_choice(rng: Rng, folder: Path) -> Outcome:
    """A run whose `choice.json` is cut, altered, or names a missing checkpoint."""
    run = Run.create(folder / "run", {}, seed=0, command=[])
    for step, score in ((1, 0.5), (2, 1.0), (3, 1.0)):
        run.save({"step": step}, step=step, score=score)
    run.choose(2, {2: 1.0, 3: 0.9}, 8)
    run.close()
    path = folder / "run" / "checkpoints" / "choice.json"
    whole = path.read_bytes()
    path.write_bytes(
        (
            whole[: int(rng.integers(len(whole) - 2))],
            json.dumps({"schema_version": 1, "step": int(rng.integers(4, 99)), "among": []}).encode(),
            json.dumps({"schema_version": 1, "step": [2]}).encode(),
            json.dumps({"schema_version": int(rng.integers(2, 9)), "step": 2}).encode(),
            rng.bytes(40),
        )[rng.integers(5)]
    )
    best = Run.open(folder / "run").best()
    return Outcome.CONTAINED if best is not None and best.step == 3 else Outcome.SILENT


SAME, NONE = (Outcome.HARMLESS,), (Outcome.REFUSED,)
KINDS = (
    Kind("evaluation in another number of envs", SAME, 120, another_number_of_envs),
    Kind("evaluation of starts in another order", SAME, 120, another_order),
    Kind("evaluation with other starts beside", SAME, 120, other_starts_beside),
    Kind("evaluation on a sim that was used before", SAME, 100, sim_used_before),
    Kind("evaluation of a start that is listed twice", NONE, 120, repeated_ids),
    Kind("evaluation of ids that are no starts", NONE, 150, ids_that_are_none),
    Kind("evaluation beyond the split", NONE, 150, beyond_the_split),
    Kind("evaluation of a policy of another action width", NONE, 120, another_action_width),
    Kind("evaluation of weights that are not finite", NONE, 150, weights_that_are_none),
    Kind("an actor whose actions are of another shape or not finite", NONE, 150, actions_of_an_actor),
    Kind("a policy whose chunks are of another shape or not finite", NONE, 150, chunks_of_a_policy),
    Kind("a sim that takes starts in an order of its own", NONE, 120, starts_in_an_order_of_its_own),
    Kind("a damaged choice of the best checkpoint", (Outcome.CONTAINED,), 60, damaged_choice),
)
