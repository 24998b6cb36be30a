"""Recorder of drives: wraps an actor and stores the sim's trace at each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from robotrl.spec import HasTrace
from robotrl.spec.drive_trace import EVENTS, HasCandidates, HasPlan, TraceFrame, TraceMap, TraceStep

if TYPE_CHECKING:
    from torch import Tensor

LOOK_S = 2.0
"""Time for which the present action is extrapolated as plan, for an actor that decides step by step."""


class PlannedPath(NamedTuple):
    """Planned path of the ego at one decision."""

    step: int
    """First step of the plan."""
    poses: NDArray[np.float64]
    """(n, 3) x, y, yaw after each step."""
    candidates: tuple[NDArray[np.float64], ...] = ()
    """Paths that the decision could have been instead, (n, 3) each."""


@dataclass
class DriveTrace:
    """One recorded drive of T steps.

    Args:
        state_id: start id.
        map: static map.
        frames: T + 1 states, the last one at the end of the episode.
        steps: T step results.
        actions: T actions (A,).
        plans: one plan for each decision.
        decided: steps per decision; with 1 the plans extrapolate the present action for `LOOK_S`.
        trajectory: whether an action is itself a trajectory, whose points are the plan.
    """

    state_id: int
    map: TraceMap
    frames: list[TraceFrame] = field(default_factory=list[TraceFrame])
    steps: list[TraceStep] = field(default_factory=list[TraceStep])
    actions: list[NDArray[np.float32]] = field(default_factory=list[NDArray[np.float32]])
    plans: list[PlannedPath] = field(default_factory=list[PlannedPath])
    decided: int = 1
    trajectory: bool = False

    @property
    def outcome(self) -> str:
        """End of the drive as text: "collision with a vehicle, at fault"."""
        last = self.steps[-1]
        said = [EVENTS.get(name, name) for name in last.events]
        if last.at_fault is not None:
            said.append("at fault" if last.at_fault else "not at fault")
        return ", ".join(said)


class Asked(Protocol):
    """Second argument of `act`, see `robotrl.rollout.evaluate.Turn`."""

    @property
    def started(self) -> Tensor:
        """(N,) bool: envs at the first step of an episode."""
        ...


class Driver(Protocol):
    """The recorded actor, see `robotrl.rollout.evaluate.Actor`."""

    def act(self, obs: dict[str, Tensor], turn: Any) -> Tensor:
        """Actions (N, A)."""
        ...


class DriveRecorder:
    """An actor that wraps another one and records its drives.

    Between two calls of `act` the sim steps all envs once; the second call reads the result of that step, and `traces`
    reads that of the last step.

    Args:
        actor: the actor that drives.
        sim: a sim with `HasTrace`.
        ids: start ids to record; other episodes are not recorded.
        keep: maximum number of traces, failures before successes; None keeps all.
    """

    def __init__(self, actor: Driver, sim: Any, ids: Sequence[int], keep: int | None = None) -> None:
        self._actor, self._plans = actor, actor if isinstance(actor, HasPlan) else None
        self._candidates = actor if isinstance(actor, HasCandidates) else None
        self._sim: HasTrace = sim
        self._names: tuple[str, ...] = sim.action_spec.names
        self._look = max(round(LOOK_S / sim.control_dt_s), 1)
        self._order = {int(i): place for place, i in enumerate(ids)}
        self._left = set(self._order)
        self._keep = len(self._order) if keep is None else keep
        self._running: dict[int, DriveTrace] = {}
        self._remaining = dict[int, int]()
        self._ended: list[DriveTrace] = []

    def act(self, obs: dict[str, Tensor], turn: Asked) -> Tensor:
        """Actions (N, A) of the wrapped actor."""
        self._read()
        for env, fresh in enumerate(turn.started.tolist()):
            if fresh:
                self._begin(env)
        actions = self._actor.act(obs, turn)
        for env, trace in self._running.items():
            trace.actions.append(actions[env].cpu().numpy().copy())
            self._plan(env, trace)
        return actions

    def traces(self) -> list[DriveTrace]:
        """Recorded drives that have ended, in the order of the starts."""
        self._read()
        return sorted(self._ended, key=lambda trace: self._order[trace.state_id])

    def _begin(self, env: int) -> None:
        frame = self._sim.trace_frame(env)
        if frame.state_id in self._left:
            self._left.discard(frame.state_id)
            self._running[env] = DriveTrace(frame.state_id, self._sim.trace_map(env), [frame])
            self._remaining[env] = 0

    def _read(self) -> None:
        """Record the step made since the last actions."""
        for env, trace in list(self._running.items()):
            if len(trace.steps) == len(trace.actions):
                continue
            step = self._sim.trace_step(env)
            trace.steps.append(step._replace(last=None))
            trace.frames.append(step.last or self._sim.trace_frame(env))
            if step.last is not None:
                self._ended.append(self._running.pop(env))
                self._drop()

    def _drop(self) -> None:
        if len(self._ended) > self._keep:
            successes = [place for place, trace in enumerate(self._ended) if trace.steps[-1].success]
            del self._ended[successes[-1] if successes else -1]

    def _plan(self, env: int, trace: DriveTrace) -> None:
        """Record the present plan."""
        step = len(trace.steps)
        chunk = trace.actions[-1][None] if self._plans is None else self._plans.planned(env).cpu().numpy()
        decided = len(chunk) >= self._remaining[env]
        self._remaining[env] = len(chunk)
        if not decided:
            return
        trace.decided = max(trace.decided, len(chunk))
        trace.trajectory = self._sim.action_is_plan
        others = [] if self._candidates is None else list(self._candidates.candidates(env).cpu().numpy())
        if len(chunk) == 1 and not trace.trajectory:
            chunk, *others = (np.repeat(one, self._look, axis=0) for one in (chunk, *others))
        paths = [self._sim.trace_plan(env, one) for one in (chunk, *others)]
        trace.plans.append(PlannedPath(step, paths[0], tuple(paths[1:])))
