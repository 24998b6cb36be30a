"""Actor process that steps the sim, and the messages between actor and learner.

`robotrl.learners.actor.remote` is the learner's side.
"""

from __future__ import annotations

import multiprocessing
import sys
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from robotrl.errors import RobotrlError
from robotrl.learners.learner import Watch
from robotrl.learners.memory.carried import CarriedMemory
from robotrl.learners.replay_collector import Acting
from robotrl.replay.buffer import StepRecord
from robotrl.replay.layout import ReplayLayout
from robotrl.rollout.collector import Collector, Decision
from robotrl.run.child_process import end_with_parent
from robotrl.run.policy_checkpoint import policy_from_tree
from robotrl.spec import Arrays, VecSim
from robotrl.spec.episode_log import HasRunScalars
from robotrl.spec.late_rewards import LateRewards
from robotrl.transforms import TransformGroup

GRACE_S = 5.0
"""Seconds that a process gets to end by itself before it is killed."""
_NONE = torch.zeros(0, dtype=torch.int64)
NO_LATE = LateRewards(_NONE, _NONE, _NONE.float(), _NONE.bool())


# messages; arrays are sent as numpy arrays


class ActorRecipe(NamedTuple):
    """Everything an actor process needs to start."""

    make_sim: Callable[[], VecSim]
    watch: Watch | None
    policy: dict[str, Any]
    """`policy_tree` of the policy, with numpy arrays."""
    layout: ReplayLayout
    acting: Acting
    env_steps: int
    """Env steps taken before this actor starts."""


class CollectRequest(NamedTuple):
    """Message from learner to actor: the newest policy and the number of steps to collect."""

    weights: Mapping[str, np.ndarray]
    transforms: TransformGroup
    steps: int
    """Env steps per env in a batch."""
    batches: int
    """Number of batches to collect, in addition to those requested before."""


class CollectedSteps(NamedTuple):
    """Message from actor to learner: one batch of collected steps."""

    records: list[StepRecord]
    """Step records; their tensors are sent as numpy arrays."""
    episodes: np.ndarray
    returns: np.ndarray
    env_steps: int
    corrected: int
    sim_s: float
    late: LateRewards
    """Changes of the rewards of steps of earlier batches, as numpy arrays; `back` counts from the last record."""
    scalars: Mapping[str, float]
    """Scalars to log of the sim and its reward sources."""


class Ready(NamedTuple):
    """Message from actor to learner: the sim and the intervention device are ready."""


class Failed(NamedTuple):
    """Message from actor to learner: the error that ends the actor."""

    kind: str
    """Class name of the error."""
    message: str


def _mapped(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """Apply `leaf` to every value in nested dicts, or to a single value."""
    return {key: _mapped(item, leaf) for key, item in value.items()} if isinstance(value, dict) else leaf(value)


def to_numpy(value: Any) -> Any:
    """Copy tensors in (nested dicts of) any values to numpy arrays; other values stay as they are."""
    return _mapped(value, lambda x: x.detach().cpu().numpy().copy() if isinstance(x, Tensor) else x)


def to_torch(value: Any) -> Any:
    """Inverse of `to_numpy`."""
    return _mapped(value, lambda x: torch.from_numpy(x) if isinstance(x, np.ndarray) else x)


# the process


class Outbox:
    """Stand-in for a replay buffer that holds the records of a batch until they are sent."""

    def __init__(self, layout: ReplayLayout) -> None:
        self.layout = layout
        self._records: list[StepRecord] = []
        self._late = NO_LATE

    def add(self, record: StepRecord) -> None:
        """See `Replay.add`."""
        self._records.append(StepRecord(*map(to_numpy, record)))

    def cut(self) -> None:
        """See `Replay.cut`; does nothing: the learner cuts its own replay before an actor starts."""

    def add_late(self, late: LateRewards) -> int:
        """See `Replay.add_late`: to the records that are here; the rest goes to the learner's replay."""
        here = late.back < len(self._records)
        for back, env, change, fresh in zip(*(x[here].tolist() for x in late), strict=True):
            record = self._records[-1 - back]
            record.reward[env] += change
            if record.missing is not None:
                record.missing[env] -= fresh
        self._late = LateRewards(*(torch.cat([x, more[~here]]) for x, more in zip(self._late, late, strict=True)))
        return 0

    def take(self) -> tuple[list[StepRecord], LateRewards]:
        """Return the records added since the last call, and the late rewards of records before them."""
        found = self._records, LateRewards(*map(to_numpy, self._late))
        self._records, self._late = [], NO_LATE
        return found


def act(connection: Connection) -> None:
    """Main function of the actor process: step the sim as requested until the learner is gone.

    Args:
        connection: connection to the learner, whose first message is the `ActorRecipe`.
    """
    end_with_parent(GRACE_S)
    # it ends with the learner, and may have children: reward sources score in processes of their own
    multiprocessing.current_process().daemon = False
    try:
        _act(connection, connection.recv())
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    # outermost frame of the process: every error is reported to the learner
    except Exception as error:
        if not isinstance(error, RobotrlError):
            traceback.print_exc()
        connection.send(Failed(type(error).__name__, str(error)))
        sys.exit(1)


def _act(connection: Connection, recipe: ActorRecipe) -> None:
    torch.set_num_threads(1)
    acting = recipe.acting
    sim = recipe.make_sim()
    policy = policy_from_tree(to_torch(recipe.policy), "the learner's policy")
    watcher = None if recipe.watch is None else recipe.watch(sim)
    generator = torch.Generator().manual_seed(acting.seed)
    outbox = Outbox(recipe.layout)
    collector = Collector(sim, policy.horizon, acting.gamma)
    collector.reset(acting.seed, {"stagger": True})
    carried = CarriedMemory.of(policy, collector)

    def decide(obs: Arrays) -> Decision:
        random = acting.random and recipe.env_steps + collector.env_steps < acting.warmup
        if carried is None:
            return acting.decide(policy, obs, generator, random)
        return carried.kept(acting.decide(policy, carried.given(obs), generator, random))

    connection.send(Ready())
    due = deque[int]()
    try:
        while True:
            while not due or connection.poll():
                order: CollectRequest | None = connection.recv()
                if order is None:
                    return
                policy.load_state_dict(to_torch(dict(order.weights)))
                # a policy may have no transforms of its own, which never change then
                if order.transforms != policy.transforms:
                    policy.set_transforms(order.transforms)
                due.extend([order.steps] * order.batches)
            out = collector.collect_into(outbox, decide, due.popleft(), corrector=watcher)
            episodes, returns = to_numpy(out.episodes), to_numpy(out.returns)
            records, late = outbox.take()
            counts = (out.env_steps, out.corrected, collector.sim_s)
            scalars = sim.take_run_scalars() if isinstance(sim, HasRunScalars) else {}
            connection.send(CollectedSteps(records, episodes, returns, *counts, late, scalars))
    finally:
        if watcher is not None:
            watcher.close()
        collector.close()
