"""Replay collector: steps the policy in a sim and fills the replay buffers of off-policy learners.

`ReplayCollector` steps the sim in the learner's process, `RemoteReplayCollector` in another, `WorkerReplayCollector` in
several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robotrl.errors import ConfigError
from robotrl.interventions.base import Intervention
from robotrl.learners.guidance.recorder import SuggestionRecorder
from robotrl.learners.guidance.suggester import Suggester
from robotrl.learners.learner import Watch
from robotrl.learners.memory.carried import CarriedMemory
from robotrl.learners.off_policy import PolicyBuilder
from robotrl.replay.buffer import Replay, StepRecord
from robotrl.replay.corrections import add_corrections
from robotrl.replay.directory import HEADER, read_header
from robotrl.replay.layout import ReplayLayout
from robotrl.replay.types import HUMAN
from robotrl.rollout.collector import Collected, Collector, Decision
from robotrl.spec import Arrays, VecSim
from robotrl.spec.late_rewards import LateRewards

Decide = Callable[[Any, Arrays, torch.Generator, bool], Decision]
"""Function from (policy, observations (n, ...), random generator, whether actions are random) to a decision; a function
of a module, because it is sent to actor processes. That of a policy with a memory reads `MEMORY` among the
observations, and records `NEXT_MEMORY`."""


@torch.no_grad()
def decide(policy: Any, obs: Arrays, generator: torch.Generator, random: bool) -> Decision:
    """Sample chunks (n, H, A) in the sim's units, from the policy or uniformly from the action bounds."""
    if not random:
        return Decision(policy.act(obs, None, generator, "sample").chunk, {})
    like = next(iter(obs.values()))
    unit = torch.rand((len(like), policy.horizon, policy.action_width), generator=generator) * 2 - 1
    return Decision(policy.to_actions(unit.to(like.device)), {})


class Acting(NamedTuple):
    """Settings of how a learner's policy acts."""

    seed: int
    """Seed of the sim's first reset."""
    gamma: float
    """Discount per env step."""
    random: bool
    """True: actions are uniformly random during the first `warmup` env steps, as a new policy needs it. False: the
    policy acts from the start."""
    warmup: int
    """Env steps before the first update."""
    decide: Decide = decide
    """Sampler of chunks, with the extras recorded beside them."""


class Guide(NamedTuple):
    """Who suggests actions while the policy acts."""

    suggester: Suggester
    wait_s: float
    """Longest wait for missing suggestions at the end of a call, s."""


class ReplayBuffers:
    """Replay buffers of a learner: all collected steps, and the steps of interventions.

    Args:
        sim: sim whose specs the buffers use.
        capacity: env steps that each buffer keeps.
        path: directory of the replay on disk; None: in RAM and in the checkpoints.
        owner: name of the run; empty for a run that is not resumed.
        extras: see `Replay.create`.
    """

    def __init__(
        self,
        sim: VecSim,
        capacity: int,
        path: str | None,
        owner: str = "",
        extras: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        self.layout = ReplayLayout(
            dict(sim.observation_spec), sim.action_spec, sim.num_envs, capacity, 0, dict(extras or {}), sim.control_dt_s
        )
        self.corrections: Replay | None = None
        """Steps of interventions; None while nobody watches."""
        self._path, self._owner = None if path is None else Path(path), owner
        self._replay: Replay | None = None

    @property
    def replay(self) -> Replay:
        """The replay of collected steps; created on first access.

        Raises:
            ConfigError: its path exists and does not belong to this run.
        """
        # not in the constructor: a learner made to resume opens the existing replay
        if self._replay is None:
            left = self._left()
            self._replay = self._create(self._path) if left is None else left
        return self._replay

    def _left(self) -> Replay | None:
        """Return the emptied replay that this run left when it was killed before its first checkpoint, or None."""
        if self._path is None or not self._owner or not (self._path / HEADER).is_file():
            return None
        if read_header(self._path).get("owner") != self._owner:
            return None
        replay = open_replay(self._path, self.layout)
        replay.clear()
        return replay

    def add_column(self, name: str, shape: tuple[int, ...]) -> None:
        """Declare a further column, before anything is stored; see `Replay.create` for names and shapes."""
        self.layout = replace(self.layout, extras=self.layout.extras | {name: shape})

    def add_records(self, records: Sequence[StepRecord], late: LateRewards) -> int:
        """Add the steps of another process, and changes of the rewards of earlier ones; returns how many came too late.

        Args:
            records: steps, with their decisions.
            late: `back` counts from the last of them.
        """
        for record in records:
            self.replay.add(record)
            if self.corrections is not None and isinstance(record.source, Tensor):
                add_corrections(self.corrections, record, record.source == HUMAN)
        return self.replay.add_late(late)

    def keep_corrections(self) -> None:
        """Start to keep the steps of interventions."""
        if self.corrections is None:
            self.corrections = self._create(None)

    def cut(self) -> None:
        """Mark a gap: the next steps do not follow the last ones."""
        self.replay.cut()
        if self.corrections is not None:
            self.corrections.cut()

    def _create(self, path: Path | None) -> Replay:
        layout = self.layout
        return Replay.create(
            path,
            layout.observation_spec,
            layout.action_spec,
            streams=layout.streams,
            capacity=layout.capacity,
            extras=layout.extras,
            control_dt_s=layout.control_dt_s,
            owner=self._owner,
        )

    def state(self) -> dict[str, Any]:
        """State to resume from."""
        return {
            "replay": None if self._replay is None else self._replay.state(),
            "corrections": None if self.corrections is None else self.corrections.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`.

        Raises:
            DataError: the replay's directory is gone or belongs to another run.
            ConfigError: it stores other arrays than this run.
        """
        if state["replay"] is not None:
            if self._path is not None and self._replay is None:
                self._replay = open_replay(self._path, self.layout)
            self.replay.load(state["replay"])
        if state["corrections"] is not None:
            # corrections count as prior data even if nobody watches any more
            self.keep_corrections()
            assert self.corrections is not None
            self.corrections.load(state["corrections"])


class ReplayCollector:
    """Steps the sim in this process with the learner's policy, and fills the replay buffers.

    Args:
        sim: the training sim; it is reset here.
        made: builder of the policy.
        memory: replay buffers to fill.
        acting: settings of how the policy acts.
        generator: the learner's random generator.
        guide: who suggests actions, and for how long its answers are waited for at the end of a call, s; the buffers
            then have a column for them.
    """

    remote = False
    """See `Stepper`."""

    def __init__(
        self,
        sim: VecSim,
        made: PolicyBuilder,
        memory: ReplayBuffers,
        acting: Acting,
        generator: torch.Generator,
        guide: Guide | None = None,
    ) -> None:
        self.memory = memory
        self._sim, self._made, self._acting, self._generator = sim, made, acting, generator
        self._random = acting.random
        self._watcher: Intervention | None = None
        self._guide = guide
        self._recorder: SuggestionRecorder | None = None
        self._seen: list[Arrays] = []
        self._collector = Collector(sim, made.policy.horizon, acting.gamma)
        self._collector.reset(acting.seed, {"stagger": True})
        self._carried = CarriedMemory.of(made.policy, self._collector)

    @property
    def env_steps(self) -> int:
        """Env steps taken so far."""
        return self._collector.env_steps

    @property
    def sim_s(self) -> float:
        """Seconds spent inside the sim so far."""
        return self._collector.sim_s

    @property
    def warm(self) -> bool:
        """True once `warmup` env steps are taken, so that updates may begin."""
        return self.env_steps >= self._acting.warmup

    def watch(self, make: Watch) -> None:
        """Let a person or program take over while the policy acts; `memory.corrections` gets the corrected steps, too.

        Raises:
            RobotrlError: `make` failed.
        """
        self._watcher = make(self._sim)
        self.memory.keep_corrections()

    def collect(self, steps: int) -> dict[str, float]:
        """Take `steps` steps in every env and add them to the replay buffers; returns scalars to log."""
        scalars = loggable_scalars(self.take(steps))
        return scalars if self._recorder is None else scalars | self._recorder.metrics()

    def scalars(self) -> dict[str, float]:
        """Return the scalars to log of the collector itself: none."""
        return {}

    def take(self, steps: int) -> Collected:
        """Take `steps` steps in every env and add them to the replay buffers."""
        memory = self.memory
        recorder = self._recording()
        out = self._collector.collect_into(
            memory.replay if recorder is None else recorder,
            self._decide,
            steps,
            corrector=self._watcher if recorder is None else recorder,
            corrections=memory.corrections,
        )
        if recorder is not None and self._guide is not None:
            recorder.deliver(self._guide.wait_s)
        if self._seen:
            self._made.take({key: torch.cat([obs[key] for obs in self._seen]) for key in self._seen[0]})
            self._seen = []
        return out

    def _recording(self) -> SuggestionRecorder | None:
        """The recorder of suggestions; made late, because a resumed run opens its replay after it was built."""
        if self._recorder is None and self._guide is not None:
            self._recorder = SuggestionRecorder(self._guide.suggester, self.memory.replay, self._watcher)
        return self._recorder

    def _decide(self, obs: Arrays) -> Decision:
        if self._made.normalizer is not None:
            self._seen.append(obs)
        policy, random, carried = self._made.policy, self._random and not self.warm, self._carried
        if carried is None:
            return self._acting.decide(policy, obs, self._generator, random)
        return carried.kept(self._acting.decide(policy, carried.given(obs), self._generator, random))

    def close(self) -> None:
        """Close the sim and the intervention."""
        if self._watcher is not None:
            self._watcher.close()
        if self._guide is not None:
            self._guide.suggester.close()
        self._sim.close()

    def state(self) -> dict[str, Any]:
        """State for an exact resume: sim, replay buffers and whether actions are random at first."""
        state = {"collector": self._collector.state(), "random": self._random, **self.memory.state()}
        if self._carried is not None:
            state["carried"] = self._carried.state()
        return state if self._guide is None else {**state, "guide": self._guide.suggester.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`.

        Raises:
            DataError: the replay's directory is gone or belongs to another run.
            ConfigError: it stores other arrays than this run.
        """
        self._random = bool(state["random"])
        self.memory.load(state)
        self._collector.load(state["collector"])
        if self._carried is not None:
            self._carried.load(state["carried"])
        if self._guide is not None and "guide" in state:
            self._guide.suggester.load(state["guide"])


def decided_on(records: Sequence[StepRecord]) -> Arrays:
    """Return the observations (n, ...) of the decisions among steps, in order."""
    seen = [{key: x[record.decision] for key, x in record.obs.items()} for record in records]
    return {key: torch.cat([obs[key] for obs in seen]) for key in seen[0]}


def open_replay(path: Path, expected: ReplayLayout) -> Replay:
    """Open the replay in a directory, and check that it stores the arrays of this run.

    Raises:
        DataError: there is no replay.
        ConfigError: it stores other arrays, or has another number of envs or another rate; both values are named.
    """
    replay = Replay.open(path)
    found, wanted = replay.layout.to_json(), expected.to_json()
    for name in ("observation_spec", "action_spec", "streams", "capacity", "extras", "control_dt_s"):
        unstated = name == "control_dt_s" and None in (found[name], wanted[name])
        if found[name] != wanted[name] and not unstated:
            replay.close()
            one, other = (_brief(values[name]) for values in (found, wanted))
            raise ConfigError(f"replay {path} has {name} {one}: expected {other}, as this run has")
    return replay


def loggable_scalars(out: Collected) -> dict[str, float]:
    """Return the scalars to log of collected steps."""
    scalars = {"rollout_episodes": float(len(out.episodes))}
    if len(out.episodes):
        scalars["rollout_success"] = float(out.episodes.float().mean())
        known = out.returns[~out.returns.isnan()]
        if len(known):
            scalars["rollout_return"] = float(known.mean())
    if out.corrected:
        scalars["corrected_share"] = out.corrected / out.env_steps
    return scalars


def _brief(value: Any) -> Any:
    """Shorten a spec to its shape, so that an error fits on one line."""
    if isinstance(value, dict):
        table: dict[str, Any] = value
        return tuple(table["shape"]) if "shape" in table else {key: _brief(part) for key, part in table.items()}
    return value
