"""Evaluation over listed starts: `run_episodes` and `evaluate`. Only this module and the collector step a sim."""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import CapabilityError, ConfigError, NumericsError, check_at_least
from robotrl.fn.random.keyed_noise import KeyedNoise
from robotrl.fn.stats import Interval, wilson
from robotrl.rollout.chunk_cursor import ChunkCursor
from robotrl.rollout.finite import check_finite
from robotrl.rollout.overlap import Aligned, Join, Overlap
from robotrl.spec import (
    Arrays,
    CarriesMemory,
    Expert,
    HasKeyedNoise,
    HasOverlap,
    HasStateIds,
    HasSuccessLabels,
    HasSuccessRule,
    Mode,
    Policy,
    Spec,
    Split,
    Step,
    SuccessRule,
    VecSim,
    committed_steps,
    is_picture,
    lost,
    why_lacking,
)
from robotrl.spec.actuation import HasReflex, Reflex, reflex_of
from robotrl.utils.progress import track

RULE = "noise by start and decision"
"""Name of the evaluation rule, stored in results. Results of earlier versions have none: their noise depended on the
number of envs."""


class Turn(NamedTuple):
    """State of all envs' episodes when actions are requested."""

    started: Tensor
    """(N,) bool: envs at the first step of an episode."""
    start: Tensor
    """(N,) int64 start id of each env's episode; -1 if it is not one of the evaluated episodes."""

    @property
    def counted(self) -> Tensor:
        """(N,) bool: whether the env's episode is part of the evaluation. Other episodes are ignored."""
        return self.start >= 0


class Actor(Protocol):
    """A policy, expert or other controller that gives one action per env and step."""

    def act(self, obs: Arrays, turn: Turn) -> Tensor:
        """Actions (N, A)."""
        ...


class PolicyActor:
    """A policy as an actor: it decides when a chunk is used up or an episode begins.

    Its actions in an episode depend only on the policy's weights, the start and the seed, not on the number of envs or
    on other episodes: noise is keyed by the start and the number of decisions in the episode, and the policy always
    acts on batches of one size, because another batch shape changes the last bits of a network's output. Envs whose
    episodes do not count stay at rest, without policy calls.

    Args:
        policy: the policy. Without `HasKeyedNoise`, a sampling policy is called on one row at a time, with a generator
            for that row.
        num_envs: N.
        device: device of the sim.
        mode: "sample" or "mean"; None takes the policy's `deploy_mode`, as its exported bundle does.
        seed: seed of the policy's noise, 0 or more.
        late_steps: control steps by which the sim delays each action, where chunks are joined as on a robot
            (`Aligned`). A chunk that is no longer than that, or whose policy reads its committed actions, is executed
            whole.

    Raises:
        ConfigError: a negative seed.
        NumericsError: a weight of the policy is not finite.
    """

    def __init__(
        self,
        policy: Policy,
        num_envs: int,
        device: torch.device,
        mode: Mode | None,
        seed: int,
        late_steps: int = 0,
    ) -> None:
        check_at_least("seed", seed, 0)
        _check_weights(policy)
        self._policy: Any = policy
        self._mode: Mode = mode or getattr(policy, "deploy_mode", "sample")
        self._seed = seed
        self._keyed = isinstance(policy, HasKeyedNoise)
        self._size = batch_size(policy) if self._keyed or self._mode == "mean" else 1
        self._rest = torch.from_numpy(at_rest(policy.action_spec)).to(device)
        self._chunk_shape = (policy.horizon, len(self._rest))
        self._join: Join | None = None
        if isinstance(policy, HasOverlap):
            self._join = Overlap(num_envs, policy.horizon, policy.overlap, len(self._rest), device)
        elif not committed_steps(policy.observation_spec):
            self._join = aligned(policy.horizon, late_steps)
        self._memory = policy.initial_memory(num_envs) if isinstance(policy, CarriesMemory) else None
        """(N, M) memory of each env after its last decision; None for a policy without memory."""
        executed = policy.horizon if self._join is None else self._join.executed
        self._cursor = ChunkCursor(num_envs, executed, len(self._rest), device)
        self._decision = torch.zeros(num_envs, dtype=torch.int64, device=device)

    def act(self, obs: Arrays, turn: Turn) -> Tensor:
        """Actions (N, A)."""
        cursor = self._cursor
        began = torch.nonzero(turn.started).squeeze(1)
        cursor.drop(began)
        self._decision[began] = 0
        if self._join is not None:
            self._join.begin(began)
        if self._memory is not None:
            self._memory[began] = self._policy.initial_memory(len(began))
        due = cursor.due()
        if len(due):
            counted = turn.counted[due]
            idle, asked = due[~counted], due[counted]
            cursor.load(idle, self._rest.expand(len(idle), cursor.horizon, -1))
            for first in range(0, len(asked), self._size):
                envs = asked[first : first + self._size]
                cursor.load(envs, self._decide(obs, envs, turn.start[envs]))
                self._decision[envs] += 1
        return cursor.advance()

    def planned(self, env: int) -> Tensor:
        """(h, A) the rest of an env's chunk: the action just given, and those that follow."""
        return self._cursor.chunk[env, int(self._cursor.position[env]) - 1 :]

    def _decide(self, obs: Arrays, envs: Tensor, start: Tensor) -> Tensor:
        """Actions (n, h, A) to execute for envs (n,) with start ids `start` (n,)."""
        count = len(envs)
        copies = self._size - count
        rows = torch.cat([envs, envs[:1].expand(copies)])
        keys = KeyedNoise(self._seed, start.cpu().numpy(), self._decision[envs].cpu().numpy(), copies)
        noise = keys if self._keyed else keys.generators()[0]
        join = self._join
        given = {key: value[rows] for key, value in obs.items()} if join is None else join.given(obs, rows)
        with torch.no_grad():
            state = None if self._memory is None else self._memory[rows]
            chunk, state = self._policy.act(given, state, noise, self._mode)
        if self._memory is not None:
            self._memory[envs] = state[:count]
        expected = (self._size, *self._chunk_shape)
        if tuple(chunk.shape) != expected:
            raise ConfigError(
                f"policy {type(self._policy).__name__} gave a chunk {tuple(chunk.shape)}: expected {expected}"
            )
        return chunk[:count] if join is None else join.take(obs, envs, chunk[:count])


def actor_for(policy: Policy, sim: VecSim, mode: Mode | None, seed: int, late_steps: int = 0) -> PolicyActor:
    """The actor of a policy in a sim; a policy with a reflex brings it along. See `PolicyActor`."""
    kind = GuardedActor if isinstance(policy, HasReflex) else PolicyActor
    return kind(policy, sim.num_envs, sim.device, mode, seed, late_steps)


def aligned(horizon: int, late_steps: int) -> Aligned | None:
    """The join of chunks of `horizon` actions that come `late_steps` late; None if they are in time, or no longer."""
    return Aligned(horizon, late_steps) if 0 < late_steps < horizon else None


def at_rest(action_spec: Spec) -> NDArray[np.float32]:
    """(A,) action of an env whose episode does not count: zero, clipped to the bounds."""
    return np.zeros(action_spec.shape, np.float32).clip(action_spec.low, action_spec.high).astype(np.float32)


def batch_size(policy: Policy) -> int:
    """Batch size on which an evaluation calls a policy.

    An image network's time grows with the batch size, that of a small network hardly does; docs/concepts.md gives the
    cost of padding.
    """
    return 16 if any(is_picture(spec) for spec in policy.observation_spec.values()) else 64


def _check_weights(policy: object) -> None:
    """Check that a policy's weights are finite; argmax over tokens would hide NaN."""
    if isinstance(policy, torch.nn.Module):
        for name, weight in policy.named_parameters():
            if weight.numel() and not all(math.isfinite(end) for end in weight.detach().aminmax()):
                raise NumericsError(
                    f"weight {name!r} of policy {type(policy).__name__} holds NaN or infinity: expected finite"
                )


class GuardedActor(PolicyActor):
    """A policy with a reflex as an actor; `evaluate` has its reflex act as well."""

    def reflex(self) -> Reflex:
        """See `HasReflex`."""
        return self._policy.reflex()


class ExpertActor:
    """A sim's scripted expert as an actor."""

    def __init__(self, expert: Expert) -> None:
        self.expert = expert

    def act(self, obs: Arrays, turn: Turn) -> Tensor:
        """Actions (N, A)."""
        del obs
        return self.expert.act(turn.started)


@runtime_checkable
class HasIntended(Protocol):
    """An actor that knows the intended actions behind those that it had executed; recordings keep the intended ones."""

    intended: Tensor
    """(N, A) of the last `act`."""


class Episode(NamedTuple):
    """One finished episode of length T."""

    state_id: int
    """Start id; -1 if the sim has no numbered starts."""
    success: bool
    terminated: bool
    length: int
    ret: float
    """Undiscounted sum of rewards."""
    mode: int
    """Index of the expert's mode; -1 for other actors."""
    obs: dict[str, NDArray[np.float32]]
    """(T + 1, ...) each; empty unless recorded."""
    actions: NDArray[np.float32]
    """(T, A) as executed, or as intended (`HasIntended`); empty unless recorded."""
    rewards: NDArray[np.float32]
    """(T,); empty unless recorded."""


OnStep = Callable[[int], None]
"""Callback before each step, with the step's index; for example to render frames."""
OnReward = Callable[[NDArray[np.float32]], None]
"""Callback after each step, with its rewards (N,)."""


def run_episodes(
    actor: Actor,
    sim: VecSim,
    ids: Sequence[int] | NDArray[np.int64],
    *,
    record: bool = False,
    on_step: OnStep | None = None,
    on_reward: OnReward | None = None,
    description: str = "episodes",
) -> list[Episode]:
    """Run each listed start exactly once.

    Args:
        actor: the actor, made for this sim's number of envs.
        sim: a sim with numbered starts.
        ids: start ids, in the order of the result.
        record: keep observations, actions and rewards.
        on_step: called before each step.
        on_reward: called after each step with its rewards.
        description: text of the progress bar.

    Raises:
        CapabilityError: the sim has no numbered starts, or does not take them in the order of its envs.
        ConfigError: no ids, an id that is repeated or not an integer, or actions of another shape.
        NumericsError: the sim or the actor gave a number that is not finite.
    """
    if not isinstance(sim, HasStateIds):
        why = why_lacking(sim, "HasStateIds")
        raise CapabilityError(f"sim {type(sim).__name__} lacks HasStateIds: cannot run listed starts{why}")
    wanted = _distinct(ids)
    sim.queue_states(wanted)
    return _run(actor, sim, wanted, True, record, on_step, on_reward, description)


def run_labeled_episodes(
    actor: Actor, sim: VecSim, count: int, *, record: bool = False, description: str = "episodes"
) -> list[Episode]:
    """Run as many episodes as a sim in log-only mode still gives, from starts that nobody chooses.

    Noise is keyed by the number of the episode in place of its start.

    Args:
        actor: the actor, made for this sim's number of envs.
        sim: a sim that tells outcomes late (`HasSuccessLabels`), with a budget of `count` episodes.
        count: number of episodes.
        record: keep observations, actions and rewards.
        description: text of the progress bar.

    Returns:
        The episodes in the order of their beginnings, with success as it was told.

    Raises:
        CapabilityError: the sim does not tell outcomes late, or has not told all of them at the end.
    """
    if not isinstance(sim, HasSuccessLabels):
        raise CapabilityError(f"sim {type(sim).__name__} lacks HasSuccessLabels: expected one in log-only mode")
    episodes = _run(actor, sim, list(range(count)), False, record, None, None, description)
    outcomes = {outcome.number: outcome.success for outcome in sim.take_success_labels()}
    if untold := [number for number in range(count) if number not in outcomes]:
        raise CapabilityError(
            f"the success of episode {untold[0]} and {len(untold) - 1} more of {count} was not told: expected a budget"
            " (log_only.episodes) of as many"
        )
    return [episode._replace(success=outcomes[number]) for number, episode in enumerate(episodes)]


def _run(
    actor: Actor,
    sim: VecSim,
    wanted: Sequence[int],
    chosen: bool,
    record: bool,
    on_step: OnStep | None,
    on_reward: OnReward | None,
    description: str,
) -> list[Episode]:
    """Run episodes after a reset; see `run_episodes`.

    Args:
        actor: the actor.
        sim: the sim.
        wanted: names of the episodes in the order of their beginnings, by which their noise is keyed.
        chosen: the names are the start ids that were queued.
        record: see `run_episodes`; so are the rest.
        on_step: see there.
        on_reward: see there.
        description: see there.
    """
    n = sim.num_envs
    obs = sim.reset()
    found: dict[int, Episode] = {}
    mode_of = actor.expert.mode if isinstance(actor, ExpertActor) else None
    running = _Running(wanted, n)
    started = torch.ones(n, dtype=torch.bool, device=sim.device)
    lengths, returns = np.zeros(n, np.int64), np.zeros(n)
    tape: list[tuple[dict[str, NDArray[np.float32]], NDArray[np.float32], NDArray[np.float32]]] = []
    begin = np.zeros(n, np.int64)
    step_index = 0
    with track(len(wanted), description, "episode", step=n) as progress:
        while len(found) < len(wanted):
            if on_step is not None:
                on_step(step_index)
            actions = actor.act(obs, Turn(started, torch.from_numpy(running.start).to(sim.device)))
            _check_actions(actions, sim, running.start, lengths)
            before = {key: value.cpu().numpy().copy() for key, value in obs.items()} if record else {}
            step = sim.step(actions)
            check_finite(step, step_index)
            step_index += 1
            lengths += 1
            returns += step.reward.cpu().numpy()
            if on_reward is not None:
                on_reward(step.reward.cpu().numpy().copy())
            if record:
                kept = actor.intended if isinstance(actor, HasIntended) else actions
                tape.append((before, kept.cpu().numpy().copy(), step.reward.cpu().numpy().copy()))
            started = step.terminated | step.truncated
            # a lost episode is run again from its start
            gone = lost(step)
            ended = sorted(env for env in step.final_ids.tolist() if not gone[env])
            if chosen:
                _check_starts(sim, step, ended, running.start)
            for row, env in enumerate(step.final_ids.tolist()):
                state_id = int(running.start[env])
                if state_id >= 0 and not gone[env]:
                    span = tape[begin[env] :] if record else []
                    found[state_id] = Episode(
                        state_id=state_id if chosen else int(step.info["state_id"][env]),
                        success=bool(step.info["success"][env]),
                        terminated=bool(step.terminated[env]),
                        length=int(lengths[env]),
                        ret=float(returns[env]),
                        mode=-1 if mode_of is None else int(mode_of[env]),
                        obs={
                            key: np.stack([*(t[0][key][env] for t in span), step.final_obs[key][row].cpu().numpy()])
                            for key in (step.final_obs if record else {})
                        },
                        actions=np.stack([t[1][env] for t in span]) if record else np.zeros((0, 0), np.float32),
                        rewards=np.stack([t[2][env] for t in span]) if record else np.zeros(0, np.float32),
                    )
                    progress.advance(1)
                lengths[env], returns[env], begin[env] = 0, 0.0, step_index
            running.begin(ended)
            obs = step.obs
    return [found[i] for i in wanted]


class _Running:
    """Start id of each env; envs that reset in the same step take ids from the queue in ascending order.

    Args:
        ids: start ids as queued.
        num_envs: N; all envs begin an episode.
    """

    def __init__(self, ids: Sequence[int], num_envs: int) -> None:
        self._left = deque(ids)
        self.start: NDArray[np.int64] = np.full(num_envs, -1)
        """(N,) start ids; -1 for envs without an evaluated episode, once the queue is empty."""
        self.begin(range(num_envs))

    def begin(self, envs: Iterable[int]) -> None:
        """Assign the next starts to these envs, in ascending order."""
        for env in envs:
            self.start[env] = self._left.popleft() if self._left else -1


def _distinct(ids: Sequence[int] | NDArray[np.int64]) -> list[int]:
    wanted: list[int] = []
    for place, i in enumerate(ids):
        try:
            wanted.append(operator.index(i))
        except TypeError:
            raise ConfigError(f"ids[{place}] is {i!r}: expected a whole number") from None
        if wanted[-1] < 0:
            raise ConfigError(f"state id {i} is out of range: expected 0 or more")
    if not wanted or len(set(wanted)) != len(wanted):
        raise ConfigError(
            f"ids has {len(wanted)} entries, {len(set(wanted))} of them distinct: expected 1 or more, each once"
        )
    return wanted


def _check_actions(actions: Tensor, sim: VecSim, start: NDArray[np.int64], steps: NDArray[np.int64]) -> None:
    expected = (sim.num_envs, *sim.action_spec.shape)
    if tuple(actions.shape) != expected:
        raise ConfigError(f"the actor gave actions {tuple(actions.shape)}: expected {expected}, one for each env")
    if not bool(torch.isfinite(actions).all()):
        env, number = (int(i) for i in torch.nonzero(~torch.isfinite(actions))[0])
        raise NumericsError(
            f"start {start[env]}, step {steps[env]}: the actor gave action {sim.action_spec.names[number]!r} as"
            f" {float(actions[env, number])}: expected finite"
        )


def _check_starts(sim: VecSim, step: Step, ended: Sequence[int], start: NDArray[np.int64]) -> None:
    """Check that the sim took the queued starts in the expected order, because noise is keyed by start."""
    for env in ended:
        actual = int(step.info["state_id"][env])
        if start[env] not in (-1, actual):
            raise CapabilityError(
                f"sim {type(sim).__name__}: env {env} ran start {actual}, expected {start[env]}: envs that begin"
                " at once take queued starts in their order"
            )


class EvalResult(NamedTuple):
    """Result of `evaluate`; arrays have one entry for each start, in the order of `ids`."""

    ids: NDArray[np.int64]
    success: NDArray[np.bool_]
    length: NDArray[np.int64]
    """Steps of each episode."""
    returns: NDArray[np.float64]
    """Undiscounted returns."""
    rate: Interval
    """Success rate with its Wilson interval."""
    rule: SuccessRule | None = None
    """Success rule, if the sim states one; None if success is defined by the task itself."""


def rated(result: EvalResult) -> str:
    """Success rate as text, with the success rule; "not stated" if nobody stated it."""
    rate, rule = result.rate, result.rule
    share = f"{100 * rate.value:.1f} % (95 % interval {100 * rate.low:.1f} to {100 * rate.high:.1f} %)"
    if rule is None:
        return f"success {share}"
    if rule.stated:
        return f"success {share}, by {rule.text},"
    return f"success not stated by the environment ({rule.text}: {100 * rate.value:.1f} %)"


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
    on_reward: OnReward | None = None,
    description: str = "evaluate",
) -> EvalResult:
    """Success rate of a policy over held-out starts, each run exactly once.

    Args:
        policy: a policy, or an actor made for this sim; its reflex, if it has one, acts in a sim with a servo clock.
        sim: a sim with numbered starts; it is reset.
        episodes: number of starts, the first of the split; ignored if `ids` is given.
        split: "test" for final results, "val" for model selection.
        seed: seed of the policy's noise and of the sim.
        mode: "sample" or "mean"; None takes the policy's `deploy_mode`.
        ids: start ids to run instead.
        on_step: called before each step with its index.
        on_reward: called after each step with its rewards (N,).
        description: text of the progress bar.

    Raises:
        CapabilityError: the sim has no numbered starts.
        ConfigError: `episodes` is not within the split, or see `run_episodes` and `PolicyActor`.
        NumericsError: see `run_episodes` and `PolicyActor`.
    """
    if not isinstance(sim, HasStateIds):
        why = why_lacking(sim, "HasStateIds")
        raise CapabilityError(f"sim {type(sim).__name__} lacks HasStateIds: cannot run listed starts{why}")
    if ids is None:
        available = sim.state_ids(split)
        if not 1 <= episodes <= len(available):
            raise ConfigError(f"episodes is {episodes}: expected 1 to {len(available)}, the size of split {split!r}")
        ids = available[:episodes]
    actor: Any = policy
    if isinstance(policy, Policy):
        actor = actor_for(policy, sim, mode, seed)
    # reseed, so that the result does not depend on earlier use: in third-party sims random streams matter besides the
    # start
    sim.reset(seed=seed)
    with reflex_of(actor, sim):
        result = run_episodes(actor, sim, ids, on_step=on_step, on_reward=on_reward, description=description)
    success = np.array([e.success for e in result])
    return EvalResult(
        np.array([e.state_id for e in result], np.int64),
        success,
        np.array([e.length for e in result], np.int64),
        np.array([e.ret for e in result]),
        wilson(int(success.sum()), len(success)),
        sim.success_rule if isinstance(sim, HasSuccessRule) else None,
    )
