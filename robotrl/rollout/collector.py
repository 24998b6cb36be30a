"""`Collector`: steps a sim for a learner and counts its env steps; see `robotrl.rollout.groups` for whole episodes.

A policy's chunk is executed completely unless its episode ends; then the rest is dropped and the new episode begins
with a new decision. Robots are controlled in the same way, so training, evaluation and deployment agree.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from robotrl.replay.buffer import SOURCES, Replay, Source, StepRecord
from robotrl.replay.check import check_sim
from robotrl.replay.corrections import Corrector, add_corrections
from robotrl.replay.layout import ReplayLayout
from robotrl.replay.outliers import OutlierMonitor
from robotrl.rollout.chunk_cursor import ChunkCursor
from robotrl.rollout.finite import check_finite
from robotrl.rollout.late_rewards import StepLog
from robotrl.rollout.storage import GrowingRollout, Rollout
from robotrl.spec import Arrays, HasFinalObs, HasState, Step, VecSim, lost
from robotrl.spec.late_rewards import MISSING, HasLateRewards, LateRewards


class Decision(NamedTuple):
    """A decider's output for the observations of some envs."""

    chunk: Tensor
    """(n, H, A) actions in the sim's units."""
    record: Arrays
    """(n, ...) each: values to store in the rollout with the decision, e.g. log-probabilities."""


Decider = Callable[[Arrays], Decision]


class Sink(Protocol):
    """A receiver of env steps, with the interface of a replay buffer."""

    layout: ReplayLayout

    def add(self, record: StepRecord) -> None:
        """Store one step of all envs."""
        ...

    def cut(self) -> None:
        """Mark that the next step does not follow the last one."""
        ...

    def add_late(self, late: LateRewards) -> int:
        """Add late rewards to the steps of `late.back` calls of `add` ago; returns how many of those are gone."""
        ...


@runtime_checkable
class Follows(Protocol):
    """A sim with state beyond its episodes, for example the success rates of a curriculum."""

    def follow(self, state: dict[str, Any]) -> None:
        """Take over that state from another process's full state."""
        ...


class Collected(NamedTuple):
    """Result of `Collector.collect_into`."""

    env_steps: int
    """Env steps taken, summed over envs."""
    episodes: Tensor
    """(E,) bool: success of each episode that ended, in order."""
    returns: Tensor
    """(E,) undiscounted return of each of these episodes; NaN where a step had no score when the episode ended."""
    corrected: int
    """Env steps whose action a corrector replaced."""


class Collector:
    """Steps a sim with a decider's actions and gathers decisions for a learner.

    A decision that is still running at the end of a rollout is carried into the next one, so no reward is lost. For a
    sim without `HasFinalObs` there is a warning, and the observation before an episode's last step replaces the final
    one. Outliers among observations and rewards are reported once for each element.

    Args:
        sim: the sim; the constructor does not reset it.
        horizon: H of the decider's chunks.
        gamma: discount of each env step.
    """

    remote = False
    """See `Stepper`."""

    def __init__(self, sim: VecSim, horizon: int, gamma: float) -> None:
        n = sim.num_envs
        self.sim = sim
        self.gamma = gamma
        self.env_steps = 0
        self.sim_s = 0.0
        """Seconds spent inside the sim's steps since this collector was made."""
        self.obs: Arrays = {}
        self._cursor = ChunkCursor(n, horizon, sim.action_spec.shape[0], sim.device)
        self._envs = torch.arange(n, device=sim.device)
        self.due = self._envs
        """(n,) int64: envs whose observations the decider is given."""
        self._pending_envs = self._envs[:0]
        self._pending: Arrays = {}
        self._discount = torch.ones(n, device=sim.device)
        self._returns = torch.zeros(n, device=sim.device)
        self._unscored = torch.zeros(n, dtype=torch.int64, device=sim.device)
        """(N,) scores that the steps of each running episode lack, of a sim with late rewards."""
        self._episode_steps = torch.zeros(n, dtype=torch.int64, device=sim.device)
        """(N,) steps of each running episode, likewise."""
        self._log_prob = torch.full((n, horizon), float("nan"), device=sim.device)
        self._started = torch.ones(n, dtype=torch.bool, device=sim.device)
        self._broken = True
        self._into: Sink | None = None
        self._watch = OutlierMonitor(sim.observation_spec)
        self._looked: list[tuple[Arrays, Tensor]] = []
        self._late_sim = sim if isinstance(sim, HasLateRewards) else None
        self._warned_late = False
        self._has_final_obs = isinstance(sim, HasFinalObs)
        if not self._has_final_obs:
            warnings.warn(
                f"sim {type(sim).__name__} lacks HasFinalObs: time-outs are valued by the observation before them",
                stacklevel=2,
            )

    def close(self) -> None:
        """Close the sim."""
        self.sim.close()

    def reset(self, seed: int | None, options: dict[str, Any] | None = None) -> None:
        """Reset the sim and drop running decisions."""
        self.obs = _copy(self.sim.reset(seed=seed, options=options))
        self._cursor.drop(self._envs)
        self._pending_envs, self._pending = self._envs[:0], {}
        self._discount.fill_(1.0)
        self._returns.fill_(0.0)
        self._unscored.zero_()
        self._episode_steps.zero_()
        self._started = torch.ones_like(self._started)
        self._broken = True

    @property
    def started(self) -> Tensor:
        """(N,) bool: envs whose next step is the first of an episode."""
        return self._started

    def collect(self, decide: Decider, steps: int) -> Rollout:
        """Take `steps` steps in every env.

        Raises:
            NumericsError: the sim gave a reward or observation that is not finite; env, step and field are named.
        """
        self._broken = True
        if self._cursor.horizon == 1:
            return self._collect_single(decide, steps)
        n = self.sim.num_envs
        store = GrowingRollout(n, steps // self._cursor.horizon + 2)
        row = torch.full((n,), -1, dtype=torch.int64, device=self.sim.device)
        carried = self._pending_envs
        row[carried] = 0
        # the rest of a chunk from `collect_into` belongs to no decision of this rollout
        self._cursor.drop(torch.nonzero(row < 0).squeeze(1))
        for name, values in self._pending.items():
            store.put(name, row[carried], carried, values)
        episodes, returns = list[Tensor](), list[Tensor]()
        log = self._step_log()
        for step_index in range(steps):
            due, rows_obs, decision = self._decide(decide)
            if decision:
                row[due] += 1
                self._discount[due] = 1.0
                for key, value in rows_obs.items():
                    store.put(f"obs/{key}", row[due], due, value)
                for key, value in decision.record.items():
                    store.put(f"record/{key}", row[due], due, value)
            step, final = self._step(self._cursor.advance(), step_index)
            store.add("reward", row, self._envs, step.reward * self._discount)
            store.add("length", row, self._envs, torch.ones_like(row))
            if log is not None:
                store.add("missing", row, self._envs, step.info[MISSING].long())
                log.add(row, self._discount, step.final_ids, _kept(step))
            self._discount *= self.gamma
            done = step.final_ids
            if len(done):
                store.put("terminated", row[done], done, step.terminated[done])
                store.put("truncated", row[done], done, step.truncated[done])
                store.put("valid", row[done], done, torch.ones_like(done, dtype=torch.bool))
                for key, value in final.items():
                    store.put(f"final/{key}", row[done], done, value)
            self._count_episodes(step, episodes, returns)
            complete = torch.nonzero(self._cursor.position >= self._cursor.horizon).squeeze(1)
            store.put("valid", row[complete], complete, torch.ones_like(complete, dtype=torch.bool))
        self._look()
        self.env_steps += steps * n
        gained = _joined(returns, torch.float32)
        if log is not None:
            self._add_late(log, store.arrays["reward"], store.arrays["missing"], gained)
        return self._finish(store, row, steps * n, _joined(episodes, torch.bool), gained)

    def _step_log(self) -> StepLog | None:
        """Log of a rollout's steps, for a sim with late rewards."""
        return None if self._late_sim is None else StepLog(self.sim.num_envs, self.sim.device)

    def _add_late(self, log: StepLog, reward: Tensor, missing: Tensor, returns: Tensor) -> None:
        """Wait for the late rewards of a rollout, and add them."""
        assert self._late_sim is not None
        late = self._late_sim.late_rewards(wait=True)
        self._late_sim.lost_late_rewards(log.apply(late, reward, missing, returns, self._returns))

    def collect_into(
        self,
        replay: Sink,
        decide: Decider,
        steps: int,
        source: Source = "rollout",
        corrector: Corrector | None = None,
        corrections: Replay | None = None,
    ) -> Collected:
        """Take `steps` steps in every env and add them to a replay buffer, env n to stream n.

        A chunk that is still running at the end of the call continues in the next call. Recorded entries that the
        buffer declares as extras are stored at the decision's step, and "log_prob" (n, H) at the steps of its chunk;
        the sim's `info["cost"]` is the cost. Corrected steps have source "human", and a chunk may begin at each of
        them.

        Args:
            replay: buffer with as many streams as the sim has envs, or another `Sink`.
            decide: gives the chunks.
            steps: number of steps in each env.
            source: source of the actions.
            corrector: may replace actions.
            corrections: a second buffer for the corrected steps, env n to stream n; where a correction stops, its last
                step is stored as truncated, so that the next value is bootstrapped.

        Raises:
            ConfigError: a replay does not fit the sim.
            NumericsError: the sim gave a reward or observation that is not finite; env, step and field are named.
        """
        n = self.sim.num_envs
        for one in (replay, *([] if corrections is None else [corrections])):
            check_sim(one.layout, self.sim)
        if self._broken or self._into not in (None, replay):
            replay.cut()
            if corrections is not None:
                corrections.cut()
            self._started = torch.ones_like(self._started)
        if corrections is not None and self._late_sim is not None and not self._warned_late:
            self._warned_late = True
            warnings.warn(
                "late rewards are added to the replay of all steps; corrected steps are stored a second time, with the"
                " reward that they had at first, and those that had none are not learned from there",
                stacklevel=2,
            )
        self._broken, self._into = False, replay
        self._pending_envs, self._pending = self._envs[:0], {}
        episodes, returns = list[Tensor](), list[Tensor]()
        corrected = 0
        for step_index in range(steps):
            due, _, decision = self._decide(decide)
            extras: Arrays = {}
            if decision:
                extras = {k: self._spread(due, x) for k, x in decision.record.items() if k in replay.layout.extras}
                if "log_prob" in decision.record:
                    self._log_prob[due] = decision.record["log_prob"].float()
                else:
                    self._log_prob[due] = float("nan")
            begins = torch.zeros(n, dtype=torch.bool, device=self.sim.device)
            begins[due] = True
            log_prob = self._log_prob[self._envs, self._cursor.position]
            action = self._cursor.advance()
            who: Source | Tensor = source
            taken: Tensor | None = None
            if corrector is not None:
                correction = corrector(self.obs, action, self._started)
                taken = correction.taken
                action = torch.where(taken[:, None], correction.action, action)
                log_prob = log_prob.masked_fill(taken, float("nan"))
                extras = {k: x.masked_fill(_like(taken, x), float("nan")) for k, x in extras.items()}
                begins |= taken
                who = torch.where(taken, SOURCES.index("human"), SOURCES.index(source)).to(torch.uint8)
                self._cursor.drop(torch.nonzero(taken).squeeze(1))
                corrected += int(taken.sum())
            before = self.obs
            step, final = self._step(action, step_index)
            record = StepRecord(
                before,
                action,
                step.reward,
                step.terminated,
                step.truncated,
                final,
                step.final_ids,
                who,
                begins,
                extras,
                log_prob,
                step.info.get("cost"),
                step.info.get(MISSING),
            )
            replay.add(record)
            if corrections is not None and taken is not None:
                add_corrections(corrections, record, taken)
            self._count_scores(step)
            self._count_episodes(step, episodes, returns)
        if self._late_sim is not None:
            late = self._late_sim.late_rewards(wait=False)
            self._late_sim.lost_late_rewards(replay.add_late(late))
            # what comes after an episode's end is in the replay alone
            here = late.back < self._episode_steps[late.env]
            self._returns.index_put_((late.env[here],), late.change[here], accumulate=True)
            self._unscored.index_put_((late.env[here],), -late.fresh[here].long(), accumulate=True)
        self._look()
        self.env_steps += steps * n
        ended, gained = _joined(episodes, torch.bool), _joined(returns, torch.float32)
        return Collected(steps * n, ended, gained, corrected)

    def _decide(self, decide: Decider) -> tuple[Tensor, Arrays, Decision | None]:
        """Give new chunks to the envs that need one; returns those envs, their observations and the decision."""
        due = self._cursor.due()
        if not len(due):
            return due, {}, None
        rows_obs = {key: value[due] for key, value in self.obs.items()}
        self.due = due
        decision = decide(rows_obs)
        self._cursor.load(due, decision.chunk)
        return due, rows_obs, decision

    def _step(self, actions: Tensor, step_index: int) -> tuple[Step, Arrays]:
        """Step the sim; returns the step, and the last observations of the episodes that ended."""
        step = self._sim_step(actions)
        check_finite(step, step_index)
        before, self.obs = self.obs, _copy(step.obs)
        self._looked.append(({key: self.obs[key] for key in self._watch.keys}, step.reward.clone()))
        self._started = step.terminated | step.truncated
        done = step.final_ids
        self._cursor.drop(done)
        return step, step.final_obs if self._has_final_obs else {key: value[done] for key, value in before.items()}

    def _look(self) -> None:
        """Check the steps since the last call for outliers."""
        steps, self._looked = self._looked, []
        if steps:
            stacked = {key: torch.stack([obs[key] for obs, _ in steps]) for key in self._watch.keys}
            self._watch.look(stacked, torch.stack([reward for _, reward in steps]))

    def _sim_step(self, actions: Tensor) -> Step:
        began = time.perf_counter()
        step = self.sim.step(actions)
        self.sim_s += time.perf_counter() - began
        return step

    def _spread(self, envs: Tensor, values: Tensor) -> Tensor:
        """(N, ...) with NaN in envs without a value."""
        if len(envs) == len(self._envs):
            return values
        out = torch.full((len(self._envs), *values.shape[1:]), float("nan"), device=values.device)
        out[envs] = values.float()
        return out

    def _collect_single(self, decide: Decider, steps: int) -> Rollout:
        """`collect` for chunks of one action: every env decides at every step, which needs no padding."""
        n = self.sim.num_envs
        shape = (steps, n)
        device = self.sim.device
        obs: Arrays = {key: x.new_empty((steps + 1, *x.shape)) for key, x in self.obs.items()}
        for key, x in self.obs.items():
            obs[key][0] = x
        record: Arrays = {}
        reward = torch.empty(shape, dtype=torch.float32, device=device)
        terminated, truncated = (torch.empty(shape, dtype=torch.bool, device=device) for _ in range(2))
        finals: list[tuple[int, Tensor, Arrays]] = []
        episodes, returns = list[Tensor](), list[Tensor]()
        log, ones = self._step_log(), torch.ones(n, device=device)
        missing = torch.zeros(shape, dtype=torch.int64, device=device)
        for t in range(steps):
            decision = decide({key: x[t] for key, x in obs.items()})
            if not record:
                record = {name: x.new_empty((steps, *x.shape)) for name, x in decision.record.items()}
            for name, x in decision.record.items():
                record[name][t] = x
            step = self._sim_step(decision.chunk[:, 0])
            check_finite(step, t)
            self._started = step.terminated | step.truncated
            reward[t], terminated[t], truncated[t] = step.reward, step.terminated, step.truncated
            for key, x in step.obs.items():
                obs[key][t + 1] = x
            if len(step.final_ids):
                final = step.final_obs if self._has_final_obs else {key: x[t][step.final_ids] for key, x in obs.items()}
                finals.append((t, step.final_ids.clone(), _copy(final)))
            self._count_episodes(step, episodes, returns)
            if log is not None:
                missing[t] = step.info[MISSING]
                log.add(torch.full_like(self._envs, t), ones, step.final_ids, _kept(step))
        gained = _joined(returns, torch.float32)
        if log is not None:
            self._add_late(log, reward, missing, gained)
        self._watch.look({key: obs[key][1:] for key in self._watch.keys}, reward)
        next_obs = {key: x[1:].clone() for key, x in obs.items()}
        for t, ids, final in finals:
            for key, x in final.items():
                next_obs[key][t, ids] = x
        self.obs = {key: x[-1].clone() for key, x in obs.items()}
        self.env_steps += steps * n
        return Rollout(
            {key: x[:-1] for key, x in obs.items()},
            record,
            reward,
            torch.ones(shape, dtype=torch.int64, device=device),
            terminated,
            truncated,
            torch.ones(shape, dtype=torch.bool, device=device),
            next_obs,
            steps * n,
            _joined(episodes, torch.bool),
            gained,
            None if log is None else missing == 0,
        )

    def _count_scores(self, step: Step) -> None:
        """Count the scores that running episodes lack; the return of one that ends without some is unknown."""
        if self._late_sim is None:
            return
        self._episode_steps += 1
        self._unscored += step.info[MISSING].long()
        done = step.final_ids
        self._returns[done[self._unscored[done] > 0]] = float("nan")
        self._episode_steps[done] = 0
        self._unscored[done] = 0

    def _count_episodes(self, step: Step, episodes: list[Tensor], returns: list[Tensor]) -> None:
        self._returns += step.reward
        done = step.final_ids
        if len(done):
            kept = _kept(step)
            episodes.append(step.info["success"][kept])
            returns.append(self._returns[kept])
            self._returns[done] = 0.0

    def _finish(self, store: GrowingRollout, row: Tensor, env_steps: int, episodes: Tensor, returns: Tensor) -> Rollout:
        rows = int(row.max()) + 2
        flags = torch.zeros(1, dtype=torch.bool, device=row.device)
        terminated, truncated, valid = (store.cut(k, rows, flags) for k in ("terminated", "truncated", "valid"))
        ended = terminated | truncated
        obs: Arrays = {}
        next_obs: Arrays = {}
        last = valid[row, self._envs]
        for key, now in self.obs.items():
            array = store.cut(f"obs/{key}", rows)
            # after the last complete decision, the next one is made on the present observation
            array[(row + 1)[last], self._envs[last]] = now[last]
            following = torch.roll(array, -1, 0)
            mask = ended.reshape(*ended.shape, *[1] * (array.dim() - 2))
            next_obs[key] = torch.where(mask, store.cut(f"final/{key}", rows, now), following)[:-1]
            obs[key] = array[:-1]
        records = {name: store.cut(name, rows)[:-1] for name in store.arrays if name.startswith("record/")}
        reward, length = store.cut("reward", rows)[:-1], store.cut("length", rows)[:-1]
        self._pending_envs = torch.nonzero(~last).squeeze(1)
        late = ["missing"] if self._late_sim is not None else []
        scored = store.cut("missing", rows)[:-1] == 0 if late else None
        kept = [*(f"obs/{key}" for key in obs), *records, "reward", "length", *late]
        rest = self._pending_envs
        self._pending = {name: store.arrays[name][row[rest], rest].clone() for name in kept} if len(rest) else {}
        return Rollout(
            obs,
            {name.removeprefix("record/"): value for name, value in records.items()},
            reward,
            length,
            terminated[:-1],
            truncated[:-1],
            valid[:-1],
            next_obs,
            env_steps,
            episodes,
            returns,
            scored,
        )

    def state(self) -> dict[str, Any]:
        """Complete state of the collector, including that of a sim with `HasState`."""
        return {
            "sim": self.sim.get_state() if isinstance(self.sim, HasState) else None,
            "env_steps": self.env_steps,
            "obs": dict(self.obs),
            "chunk": self._cursor.chunk,
            "position": self._cursor.position,
            "discount": self._discount,
            "returns": self._returns,
            "unscored": self._unscored,
            "episode_steps": self._episode_steps,
            "pending_envs": self._pending_envs,
            "pending": dict(self._pending),
            "log_prob": self._log_prob,
            "started": self._started,
            "broken": self._broken,
        }

    def follow(self, state: dict[str, Any], seed: int) -> None:
        """Continue from the state of another process's collector, with new episodes and own random streams."""
        self.reset(seed, {"stagger": True})
        self.env_steps = int(state["env_steps"])
        if isinstance(self.sim, Follows) and state["sim"]:
            self.sim.follow(state["sim"])

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` gave; for a sim without `HasState` only the step count, with new episodes."""
        self.env_steps = int(state["env_steps"])
        if not isinstance(self.sim, HasState):
            warnings.warn(
                f"sim {type(self.sim).__name__} lacks HasState: the run goes on with new episodes, not exactly",
                stacklevel=2,
            )
            self.reset(None)
            return
        self.sim.set_state(state["sim"])

        def here(x: Tensor) -> Tensor:
            # a checkpoint is on the CPU, and the run may resume on another device
            return x.to(self.sim.device, copy=True)

        self.obs = {key: here(x) for key, x in state["obs"].items()}
        self._cursor.chunk, self._cursor.position = here(state["chunk"]), here(state["position"])
        self._discount, self._returns = here(state["discount"]), here(state["returns"])
        if "unscored" in state:  # absent in older checkpoints
            self._unscored, self._episode_steps = here(state["unscored"]), here(state["episode_steps"])
        self._pending_envs = here(state["pending_envs"])
        self._pending = {key: here(x) for key, x in state["pending"].items()}
        self._into = None
        if "log_prob" in state:  # absent in checkpoints written before replay buffers existed
            self._log_prob, self._broken = here(state["log_prob"]), bool(state["broken"])
            self._started = here(state["started"])


def _kept(step: Step) -> Tensor:
    """(k,) int64: envs whose episode ended in a step and was not lost."""
    return step.final_ids[~lost(step)[step.final_ids]]


def _copy(arrays: Arrays) -> Arrays:
    return {key: value.clone() for key, value in arrays.items()}


def _joined(parts: list[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.cat(parts) if parts else torch.zeros(0, dtype=dtype)


def _like(mask: Tensor, values: Tensor) -> Tensor:
    return mask.reshape(-1, *[1] * (values.dim() - 1))
