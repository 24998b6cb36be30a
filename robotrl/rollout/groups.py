"""Group rollouts for group-relative learning (GRPO): several complete episodes from each start."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import CapabilityError, ConfigError
from robotrl.fn.random import counter_rng
from robotrl.rollout.collector import Decision, Follows
from robotrl.rollout.finite import check_finite
from robotrl.spec import Arrays, HasState, HasStateIds, VecSim, cut, lost
from robotrl.spec.late_rewards import MISSING, HasLateRewards, LateRewards

_STREAM = 0x6209
LOG_PROB = "log_prob"
"""Entry of a record: log-probabilities under the policy that acted, where workers collect ahead of updates."""

EpisodeDecider = Callable[[Arrays, Tensor], Decision]
"""Decider for whole episodes: takes observations (n, ...) of some envs, and their indices (n,)."""


@runtime_checkable
class DrawsStarts(Protocol):
    """A sim that chooses its training starts itself, e.g. one with a curriculum."""

    def draw(self, count: int) -> NDArray[np.int64]:
        """Start ids (count,)."""
        ...

    def book(self, ids: Tensor, success: Tensor) -> None:
        """Report episodes (n,) by start id and success; only reported episodes count."""
        ...


class Trajectories(NamedTuple):
    """N complete episodes with D decisions in all."""

    obs: Arrays
    """(D, ...) each."""
    record: Arrays
    """(D, ...) each: entries of `Decision.record`."""
    valid: Tensor
    """(D, H) bool: actions of the chunk that were executed before the episode ended."""
    episode: Tensor
    """(D,) int64: episode of each decision, 0 to N - 1."""
    success: Tensor
    """(N,) bool."""
    returned: Tensor
    """(N,) sum of the sim's rewards."""
    start: Tensor
    """(N,) int64: start ids."""
    cut: Tensor
    """(N,) bool: episodes that the sim cut off, see `robotrl.spec.cut`; what they returned is no result."""


class GroupCollector:
    """Runs a sim's envs in groups of `size` that begin from the same start.

    Args:
        sim: the sim.
        size: group size G.
        seed: seed of the sampling of starts.

    Raises:
        CapabilityError: the sim's starts are not numbered.
        ConfigError: the number of envs is not a multiple of the group size.
    """

    remote = False
    """See `Stepper`."""

    def __init__(self, sim: VecSim, size: int, seed: int) -> None:
        if not isinstance(sim, HasStateIds):
            raise CapabilityError(
                f"sim {type(sim).__name__} lacks HasStateIds: groups of episodes from one start need numbered starts"
            )
        if size < 1 or sim.num_envs % size:
            raise ConfigError(f"sim.num_envs is {sim.num_envs}, algo.group_size is {size}: expected whole groups")
        self.sim: Any = sim
        self.size = size
        self.env_steps = 0
        """Env steps of all envs, including those whose episode was over: the sim steps them too."""
        self.sim_s = 0.0
        """Seconds spent inside the sim's steps since this collector was made."""
        self._seed, self._draws = seed, 0

    def close(self) -> None:
        """Close the sim."""
        self.sim.close()

    def draw(self) -> NDArray[np.int64]:
        """Start ids, one for each group (P,)."""
        groups = self.sim.num_envs // self.size
        if isinstance(self.sim, DrawsStarts):
            return self.sim.draw(groups)
        draws = np.arange(self._draws, self._draws + groups)
        self._draws += groups
        return counter_rng.among(self._seed ^ _STREAM, draws, self.sim.state_ids("train"))

    def collect(self, decide: EpisodeDecider, starts: NDArray[np.int64]) -> Trajectories:
        """Run one episode in each env; env i belongs to group i // G. A group with a lost episode is left out.

        Args:
            decide: the policy; it is called for the envs whose episodes still run.
            starts: (P,) ids.

        Raises:
            NumericsError: a reward or an observation of the sim is not finite.
        """
        sim, n = self.sim, self.sim.num_envs
        ids = np.repeat(starts, self.size)
        sim.queue_states(ids)
        obs = sim.reset()
        device = sim.device
        alive = torch.ones(n, dtype=torch.bool, device=device)
        success, gone, off = torch.zeros(3, n, dtype=torch.bool, device=device)
        returned = torch.zeros(n, device=device)
        seen: list[Arrays] = []
        said: list[Arrays] = []
        valid: list[Tensor] = []
        late_sim = self.sim if isinstance(self.sim, HasLateRewards) else None
        running: list[Tensor] = []
        rewards: list[Tensor] = []
        missing: list[Tensor] = []
        whose: list[Tensor] = []
        while alive.any():
            rows = torch.nonzero(alive)[:, 0]
            now = {key: value[rows].clone() for key, value in obs.items()}
            chunk, record = decide(now, rows)
            commands = torch.zeros((n, *chunk.shape[1:]), dtype=chunk.dtype, device=device)
            commands[rows] = chunk
            done = torch.zeros(chunk.shape[:2], dtype=torch.bool, device=device)
            for h in range(chunk.shape[1]):
                done[:, h] = alive[rows]
                began = time.perf_counter()
                out = sim.step(commands[:, h])
                self.sim_s += time.perf_counter() - began
                check_finite(out, self.env_steps // n)
                self.env_steps += n
                returned += torch.where(alive, out.reward, 0.0)
                if late_sim is not None:
                    running.append(alive.clone())
                    rewards.append(out.reward.clone())
                    missing.append(out.info[MISSING].long())
                ended = (out.terminated | out.truncated) & alive
                success |= ended & out.info["success"]
                gone |= ended & lost(out)
                off |= ended & cut(out)
                alive &= ~ended
                obs = out.obs
            seen.append(now)
            said.append(record)
            valid.append(done)
            whose.append(rows)
        if late_sim is not None:
            steps = _LateSteps(*(torch.stack(x) for x in (running, rewards, missing)))
            late_sim.lost_late_rewards(steps.add(late_sim.late_rewards(wait=True)))
            returned = steps.returned()
        begun = torch.from_numpy(ids).to(device)
        results = (success, returned, begun, off)
        found = Trajectories(_joined(seen), _joined(said), torch.cat(valid), torch.cat(whose), *results)
        if gone.any():
            whole = torch.nonzero(~gone.view(-1, self.size).any(dim=1))[:, 0]
            if not len(whole):
                # ends, because the sim raises when an env loses one episode after the other
                return self.collect(decide, starts)
            found = chosen(found, whole, self.size)
        if isinstance(sim, DrawsStarts):
            sim.book(found.start[~found.cut], found.success[~found.cut])
        return found

    def state(self) -> dict[str, Any]:
        """State for a resume between two rollouts."""
        sim = self.sim.get_state() if isinstance(self.sim, HasState) else {}
        return {"seed": self._seed, "draws": self._draws, "env_steps": self.env_steps, "sim": sim}

    def follow(self, state: dict[str, Any], seed: int) -> None:
        """Continue from the state of another process's collector, with other starts."""
        self._seed, self._draws, self.env_steps = seed, int(state["draws"]), int(state["env_steps"])
        if isinstance(self.sim, Follows) and state["sim"]:
            self.sim.follow(state["sim"])

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` gave."""
        self._seed, self._draws, self.env_steps = (int(state[name]) for name in ("seed", "draws", "env_steps"))
        if isinstance(self.sim, HasState):
            self.sim.set_state(state["sim"])


class _LateSteps(NamedTuple):
    """Steps of a rollout of whole episodes in a sim with late rewards."""

    running: Tensor
    """(T, N) bool: whether each env's episode was running at each step."""
    reward: Tensor
    """(T, N) rewards."""
    missing: Tensor
    """(T, N) int64 number of scores that each step lacks."""

    def add(self, late: LateRewards) -> int:
        """Add late rewards to their steps; returns the number of those of earlier episodes."""
        step = len(self.running) - 1 - late.back
        here = step >= 0
        step, env = step[here], late.env[here]
        self.reward.index_put_((step, env), late.change[here], accumulate=True)
        self.missing.index_put_((step, env), -late.fresh[here].long(), accumulate=True)
        return int((~here).sum())

    def returned(self) -> Tensor:
        """Returns (N,) of the episodes, in which a step without a score counts as the mean of its episode's others.

        In an episode without any score it counts as the mean of all episodes' steps.
        """
        known = self.running & (self.missing <= 0)
        total, scored = torch.where(known, self.reward, 0.0).sum(dim=0), known.sum(dim=0)
        everywhere = total.sum() / scored.sum().clamp(min=1)
        return torch.where(scored > 0, total / scored.clamp(min=1), everywhere) * self.running.sum(dim=0)


def chosen(found: Trajectories, groups: Tensor, size: int) -> Trajectories:
    """Only the episodes of some groups (k,), renumbered in their order."""
    return some_of(found, (groups[:, None] * size + torch.arange(size, device=groups.device)).flatten())


def some_of(found: Trajectories, episodes: Tensor) -> Trajectories:
    """Only some episodes (k,), renumbered in their order."""
    device = episodes.device
    number = torch.full((len(found.success),), -1, device=device)
    number[episodes] = torch.arange(len(episodes), device=device)
    rows = torch.nonzero(number[found.episode] >= 0)[:, 0]
    return Trajectories(
        {key: value[rows] for key, value in found.obs.items()},
        {key: value[rows] for key, value in found.record.items()},
        found.valid[rows],
        number[found.episode[rows]],
        found.success[episodes],
        found.returned[episodes],
        found.start[episodes],
        found.cut[episodes],
    )


def together(parts: list[Trajectories]) -> Trajectories:
    """Concatenate several rollouts and renumber their episodes."""
    before = np.cumsum([0, *(len(part.success) for part in parts[:-1])]).tolist()
    return Trajectories(
        _joined([part.obs for part in parts]),
        _joined([part.record for part in parts]),
        torch.cat([part.valid for part in parts]),
        torch.cat([part.episode + first for part, first in zip(parts, before, strict=True)]),
        torch.cat([part.success for part in parts]),
        torch.cat([part.returned for part in parts]),
        torch.cat([part.start for part in parts]),
        torch.cat([part.cut for part in parts]),
    )


def _joined(parts: list[Arrays]) -> Arrays:
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
