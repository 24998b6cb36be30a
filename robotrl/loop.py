"""Listed episodes: `run_episodes` and `evaluate`. With `robotrl.collect`, the only code that steps a sim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.cursor import ChunkCursor
from robotrl.data.finite import check_finite
from robotrl.data.rollout import Arrays
from robotrl.errors import CapabilityError, ConfigError
from robotrl.fn.stats import Interval, wilson
from robotrl.progress import track
from robotrl.spec import Expert, HasStateIds, HasSuccessRule, Mode, Policy, Split, SuccessRule, VecSim, lost


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
        self._generator = torch.Generator().manual_seed(seed)
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

    def planned(self, env: int) -> Tensor:
        """(h, A) the rest of an env's chunk: the action just given, and those that follow."""
        return self._cursor.chunk[env, int(self._cursor.position[env]) - 1 :]


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
            before = {key: value.cpu().numpy().copy() for key, value in obs.items()} if record else {}
            step = sim.step(actions)
            check_finite(step, step_index)
            step_index += 1
            lengths += 1
            returns += step.reward.cpu().numpy()
            if record:
                tape.append((before, actions.cpu().numpy().copy(), step.reward.cpu().numpy().copy()))
            started = step.terminated | step.truncated
            for row, env in enumerate(step.final_ids.tolist()):
                state_id = int(step.info["state_id"][env])
                if state_id in remaining and not lost(step)[env]:
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
                            key: np.stack([*(t[0][key][env] for t in span), step.final_obs[key][row].cpu().numpy()])
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
    rule: SuccessRule | None = None
    """What counted as success, where the sim can say it; None where that is the task's own."""


def rated(result: EvalResult) -> str:
    """The success rate in words, with what counted as success; "not stated" where nobody stated it."""
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
        sim.success_rule if isinstance(sim, HasSuccessRule) else None,
    )
