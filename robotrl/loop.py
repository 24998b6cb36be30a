"""The only code that steps a sim: `Collector` for training, `run_episodes` and `evaluate` for everything else.

A policy's chunk is executed whole, unless its episode ends; then the rest is dropped and the new episode begins with a
decision of its own. That is how a robot is controlled, so training, evaluation and deployment agree. Env steps are
counted here and nowhere else.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.data.rollout import Arrays, Growing, Rollout
from robotrl.errors import CapabilityError, ConfigError, NumericsError
from robotrl.fn.stats import Interval, wilson
from robotrl.progress import track
from robotrl.spec import Expert, HasFinalObs, HasState, HasStateIds, Mode, Policy, Split, Step, VecSim


class Decision(NamedTuple):
    """What a decider answers to the observations of some envs."""

    chunk: Tensor
    """(n, H, A) actions in the sim's units."""
    record: Arrays
    """(n, ...) each, kept in the rollout."""


Decider = Callable[[Arrays], Decision]


class ChunkCursor:
    """Which action of its chunk each env executes next."""

    def __init__(self, num_envs: int, horizon: int, action_width: int, device: torch.device) -> None:
        self.horizon = horizon
        self.chunk = torch.zeros((num_envs, horizon, action_width), device=device)
        self.position = torch.full((num_envs,), horizon, dtype=torch.int64, device=device)
        self._envs = torch.arange(num_envs, device=device)

    def due(self) -> Tensor:
        """(n,) envs that need a new chunk."""
        return torch.nonzero(self.position >= self.horizon).squeeze(1)

    def load(self, envs: Tensor, chunk: Tensor) -> None:
        """Give `envs` (n,) their new chunks (n, H, A)."""
        self.chunk[envs] = chunk
        self.position[envs] = 0

    def advance(self) -> Tensor:
        """The actions (N, A) to execute now."""
        actions = self.chunk[self._envs, self.position]
        self.position += 1
        return actions

    def drop(self, envs: Tensor) -> None:
        """Forget what is left of the chunks of `envs`."""
        self.position[envs] = self.horizon


class Collector:
    """Steps a sim under a decider and gathers decisions for a learner.

    A decision that a rollout's end cuts off is carried into the next rollout, so no reward is lost. A sim without
    `HasFinalObs` gets a warning, and the observation before an episode's last step in place of the final one.

    Args:
        sim: the sim; it is not reset here.
        horizon: H of the decider's chunks.
        gamma: discount of each env step.
    """

    def __init__(self, sim: VecSim, horizon: int, gamma: float) -> None:
        n = sim.num_envs
        self.sim = sim
        self.gamma = gamma
        self.env_steps = 0
        self.obs: Arrays = {}
        self._cursor = ChunkCursor(n, horizon, sim.action_spec.shape[0], sim.device)
        self._envs = torch.arange(n, device=sim.device)
        self._pending_envs = self._envs[:0]
        self._pending: Arrays = {}
        self._discount = torch.ones(n, device=sim.device)
        self._has_final_obs = isinstance(sim, HasFinalObs)
        if not self._has_final_obs:
            warnings.warn(
                f"sim {type(sim).__name__} lacks HasFinalObs: time-outs are valued by the observation before them",
                stacklevel=2,
            )

    def reset(self, seed: int | None, options: dict[str, Any] | None = None) -> None:
        """Reset the sim and forget decisions under way."""
        self.obs = _copy(self.sim.reset(seed=seed, options=options))
        self._cursor.drop(self._envs)
        self._pending_envs, self._pending = self._envs[:0], {}
        self._discount.fill_(1.0)

    def collect(self, decide: Decider, steps: int) -> Rollout:
        """Take `steps` steps in every env.

        Raises:
            NumericsError: the sim gave a reward or observation that is not finite; env, step and field are named.
        """
        n = self.sim.num_envs
        store = Growing(n, steps // self._cursor.horizon + 2)
        row = torch.full((n,), -1, dtype=torch.int64, device=self.sim.device)
        carried = self._pending_envs
        row[carried] = 0
        for name, values in self._pending.items():
            store.put(name, row[carried], carried, values)
        episodes: list[Tensor] = []
        for step_index in range(steps):
            due = self._cursor.due()
            if len(due):
                rows_obs = {key: value[due] for key, value in self.obs.items()}
                decision = decide(rows_obs)
                self._cursor.load(due, decision.chunk)
                row[due] += 1
                self._discount[due] = 1.0
                for key, value in rows_obs.items():
                    store.put(f"obs/{key}", row[due], due, value)
                for key, value in decision.record.items():
                    store.put(f"record/{key}", row[due], due, value)
            step = self.sim.step(self._cursor.advance())
            _check(step, step_index)
            store.add("reward", row, self._envs, step.reward * self._discount)
            store.add("length", row, self._envs, torch.ones_like(row))
            self._discount *= self.gamma
            before, self.obs = self.obs, _copy(step.obs)
            done = step.final_ids
            if len(done):
                store.put("terminated", row[done], done, step.terminated[done])
                store.put("truncated", row[done], done, step.truncated[done])
                store.put("valid", row[done], done, torch.ones_like(done, dtype=torch.bool))
                final = step.final_obs if self._has_final_obs else {key: value[done] for key, value in before.items()}
                for key, value in final.items():
                    store.put(f"final/{key}", row[done], done, value)
                episodes.append(step.info["success"][done].clone())
                self._cursor.drop(done)
            complete = torch.nonzero(self._cursor.position >= self._cursor.horizon).squeeze(1)
            store.put("valid", row[complete], complete, torch.ones_like(complete, dtype=torch.bool))
        self.env_steps += steps * n
        return self._finish(store, row, steps * n, episodes)

    def _finish(self, store: Growing, row: Tensor, env_steps: int, episodes: list[Tensor]) -> Rollout:
        rows = int(row.max()) + 2
        flags = torch.zeros(1, dtype=torch.bool, device=row.device)
        terminated, truncated, valid = (store.cut(k, rows, flags) for k in ("terminated", "truncated", "valid"))
        ended = terminated | truncated
        obs: Arrays = {}
        next_obs: Arrays = {}
        last = valid[row, self._envs]
        for key, now in self.obs.items():
            array = store.cut(f"obs/{key}", rows)
            # where the last decision is complete, the next one will be made on the present observation
            array[(row + 1)[last], self._envs[last]] = now[last]
            following = torch.roll(array, -1, 0)
            mask = ended.reshape(*ended.shape, *[1] * (array.dim() - 2))
            next_obs[key] = torch.where(mask, store.cut(f"final/{key}", rows, now), following)[:-1]
            obs[key] = array[:-1]
        records = {name: store.cut(name, rows)[:-1] for name in store.arrays if name.startswith("record/")}
        reward, length = store.cut("reward", rows)[:-1], store.cut("length", rows)[:-1]
        self._pending_envs = torch.nonzero(~last).squeeze(1)
        kept = [*(f"obs/{key}" for key in obs), *records, "reward", "length"]
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
            torch.cat(episodes) if episodes else torch.zeros(0, dtype=torch.bool),
        )

    def state(self) -> dict[str, Any]:
        """Everything that decides how collecting goes on, the sim's state included where it has `HasState`."""
        return {
            "sim": self.sim.get_state() if isinstance(self.sim, HasState) else None,
            "env_steps": self.env_steps,
            "obs": dict(self.obs),
            "chunk": self._cursor.chunk,
            "position": self._cursor.position,
            "discount": self._discount,
            "pending_envs": self._pending_envs,
            "pending": dict(self._pending),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` gave; on a sim without `HasState`, only the count, and episodes start afresh."""
        self.env_steps = int(state["env_steps"])
        if not isinstance(self.sim, HasState):
            warnings.warn(
                f"sim {type(self.sim).__name__} lacks HasState: the run goes on with new episodes, not exactly",
                stacklevel=2,
            )
            self.reset(None)
            return
        self.sim.set_state(state["sim"])
        self.obs = _copy(state["obs"])
        self._cursor.chunk, self._cursor.position = state["chunk"].clone(), state["position"].clone()
        self._discount = state["discount"].clone()
        self._pending_envs = state["pending_envs"].clone()
        self._pending = _copy(state["pending"])


class Actor(Protocol):
    """Anything that gives one action for each env at each step."""

    def act(self, obs: Arrays, started: Tensor) -> Tensor:
        """Actions (N, A); `started` (N,) bool marks envs at the first step of an episode."""
        ...


class PolicyActor:
    """A policy as an actor: it decides whenever a chunk is used up or an episode begins.

    Args:
        policy: the policy.
        num_envs: N.
        device: of the sim.
        mode: "sample" or "mean"; None takes the policy's `deploy_mode`, which is what its bundle does.
        seed: of the policy's noise.
    """

    def __init__(self, policy: Policy, num_envs: int, device: torch.device, mode: Mode | None, seed: int) -> None:
        self._policy = policy
        self._mode: Mode = mode or getattr(policy, "deploy_mode", "sample")
        self._generator = torch.Generator(device).manual_seed(seed)
        self._cursor = ChunkCursor(num_envs, policy.horizon, policy.action_spec.shape[0], device)

    def act(self, obs: Arrays, started: Tensor) -> Tensor:
        """Actions (N, A)."""
        self._cursor.drop(torch.nonzero(started).squeeze(1))
        due = self._cursor.due()
        if len(due):
            rows = {key: value[due] for key, value in obs.items()}
            with torch.no_grad():
                chunk = self._policy.act(rows, None, self._generator, self._mode).chunk
            self._cursor.load(due, chunk)
        return self._cursor.advance()


class ExpertActor:
    """A sim's scripted expert as an actor."""

    def __init__(self, expert: Expert) -> None:
        self.expert = expert

    def act(self, obs: Arrays, started: Tensor) -> Tensor:
        """Actions (N, A)."""
        del obs
        return self.expert.act(started)


class Episode(NamedTuple):
    """One finished episode of length T."""

    state_id: int
    """Where it started; -1 if the sim has no numbered starts."""
    success: bool
    terminated: bool
    length: int
    ret: float
    """Undiscounted sum of rewards."""
    mode: int
    """The expert's way, -1 for other actors."""
    obs: dict[str, NDArray[np.float32]]
    """(T + 1, ...) each; empty unless recorded."""
    actions: NDArray[np.float32]
    """(T, A); empty unless recorded."""
    rewards: NDArray[np.float32]
    """(T,); empty unless recorded."""


OnStep = Callable[[int], None]
"""Called with the step's index while a recorded run goes on, before each step; renders frames, for example."""


def run_episodes(
    actor: Actor,
    sim: VecSim,
    ids: Sequence[int] | NDArray[np.int64],
    *,
    record: bool = False,
    on_step: OnStep | None = None,
    description: str = "episodes",
) -> list[Episode]:
    """Run each listed start exactly once.

    Args:
        actor: who acts; made for this sim's number of envs.
        sim: a sim with numbered starts.
        ids: start ids, each of which is run once; the order of the result.
        record: keep observations, actions and rewards.
        on_step: called before each step.
        description: shown by the progress bar.

    Raises:
        CapabilityError: the sim has no numbered starts.
        ConfigError: no ids, or an id listed twice.
        NumericsError: the sim or the actor gave a number that is not finite.
    """
    if not isinstance(sim, HasStateIds):
        raise CapabilityError(f"sim {type(sim).__name__} lacks HasStateIds: cannot run listed starts")
    wanted = [int(i) for i in ids]
    if not wanted or len(set(wanted)) != len(wanted):
        raise ConfigError(
            f"ids has {len(wanted)} entries, {len(set(wanted))} of them distinct: expected 1 or more, each once"
        )
    n = sim.num_envs
    sim.queue_states(wanted)
    obs = sim.reset()
    # with fewer starts than envs, the rest of the envs run training starts whose episodes are not counted
    remaining = set(wanted)
    found: dict[int, Episode] = {}
    mode_of = actor.expert.mode if isinstance(actor, ExpertActor) else None
    started = torch.ones(n, dtype=torch.bool, device=sim.device)
    lengths, returns = np.zeros(n, np.int64), np.zeros(n)
    tape: list[tuple[dict[str, NDArray[np.float32]], NDArray[np.float32], NDArray[np.float32]]] = []
    begin = np.zeros(n, np.int64)
    step_index = 0
    with track(len(wanted), description, "episode") as progress:
        while remaining:
            if on_step is not None:
                on_step(step_index)
            actions = actor.act(obs, started)
            before = {key: value.numpy().copy() for key, value in obs.items()} if record else {}
            step = sim.step(actions)
            _check(step, step_index)
            step_index += 1
            lengths += 1
            returns += step.reward.cpu().numpy()
            if record:
                tape.append((before, actions.numpy().copy(), step.reward.numpy().copy()))
            started = step.terminated | step.truncated
            for row, env in enumerate(step.final_ids.tolist()):
                state_id = int(step.info["state_id"][env])
                if state_id in remaining:
                    remaining.discard(state_id)
                    span = tape[begin[env] :] if record else []
                    found[state_id] = Episode(
                        state_id=state_id,
                        success=bool(step.info["success"][env]),
                        terminated=bool(step.terminated[env]),
                        length=int(lengths[env]),
                        ret=float(returns[env]),
                        mode=-1 if mode_of is None else int(mode_of[env]),
                        obs={
                            key: np.stack([*(t[0][key][env] for t in span), step.final_obs[key][row].numpy()])
                            for key in (step.final_obs if record else {})
                        },
                        actions=np.stack([t[1][env] for t in span]) if record else np.zeros((0, 0), np.float32),
                        rewards=np.stack([t[2][env] for t in span]) if record else np.zeros(0, np.float32),
                    )
                    progress.advance(1)
                lengths[env], returns[env], begin[env] = 0, 0.0, step_index
            obs = step.obs
    return [found[i] for i in wanted]


class EvalResult(NamedTuple):
    """What `evaluate` found; arrays have one entry for each start, in the order of `ids`."""

    ids: NDArray[np.int64]
    success: NDArray[np.bool_]
    length: NDArray[np.int64]
    """Steps of each episode."""
    returns: NDArray[np.float64]
    """Undiscounted."""
    rate: Interval
    """Success rate with its Wilson interval."""


def evaluate(
    policy: Policy | Actor,
    sim: VecSim,
    *,
    episodes: int = 256,
    split: Split = "test",
    seed: int = 0,
    mode: Mode | None = None,
    ids: Sequence[int] | NDArray[np.int64] | None = None,
    on_step: OnStep | None = None,
) -> EvalResult:
    """Success of a policy over held-out starts, each run exactly once.

    Args:
        policy: a policy, or an actor made for this sim.
        sim: a sim with numbered starts; it is reset.
        episodes: how many starts, the first of the split; ignored when `ids` is given.
        split: "test" for the verdict, "val" for choosing.
        seed: of the policy's noise, and of the sim.
        mode: None takes the policy's own way of deployment.
        ids: starts to run instead.
        on_step: called before each step with its index.

    Raises:
        CapabilityError: the sim has no numbered starts.
        ConfigError: `episodes` is not within the split.
    """
    if not isinstance(sim, HasStateIds):
        raise CapabilityError(f"sim {type(sim).__name__} lacks HasStateIds: cannot run listed starts")
    if ids is None:
        available = sim.state_ids(split)
        if not 1 <= episodes <= len(available):
            raise ConfigError(f"episodes is {episodes}: expected 1 to {len(available)}, the size of split {split!r}")
        ids = available[:episodes]
    actor: Any = policy
    if isinstance(policy, Policy):
        actor = PolicyActor(policy, sim.num_envs, sim.device, mode, seed)
    # the same result again, whatever the sim did before: which training starts fill the idle envs is seeded as well
    sim.reset(seed=seed)
    result = run_episodes(actor, sim, ids, on_step=on_step, description="evaluate")
    success = np.array([e.success for e in result])
    return EvalResult(
        np.array([e.state_id for e in result], np.int64),
        success,
        np.array([e.length for e in result], np.int64),
        np.array([e.ret for e in result]),
        wilson(int(success.sum()), len(success)),
    )


def _check(step: Step, step_index: int) -> None:
    env = _bad_row(step.reward)
    if env is not None:
        raise NumericsError(
            f"env {env}, rollout step {step_index}: reward is {step.reward[env].item()}: expected finite"
        )
    for key, value in step.obs.items():
        env = _bad_row(value)
        if env is not None:
            raise NumericsError(f"env {env}, rollout step {step_index}: observation {key!r} is not finite")
    for key, value in step.final_obs.items():
        row = _bad_row(value)
        if row is not None:
            env = int(step.final_ids[row])
            raise NumericsError(f"env {env}, rollout step {step_index}: final observation {key!r} is not finite")


def _bad_row(values: Tensor) -> int | None:
    # a sum is cheap, and any NaN or infinity spoils it
    if not values.is_floating_point() or torch.isfinite(values.sum()):
        return None
    bad = torch.nonzero(~torch.isfinite(values))
    return int(bad[0, 0]) if len(bad) else None


def _copy(arrays: Arrays) -> Arrays:
    return {key: value.clone() for key, value in arrays.items()}
