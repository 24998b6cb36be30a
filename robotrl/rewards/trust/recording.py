"""Rollouts with the scores of reward sources and the sim's ground truth, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import CapabilityError
from robotrl.rewards.relabel import RewardedSim
from robotrl.rewards.source import LateRewardSource
from robotrl.rollout.evaluate import Actor, Turn, run_episodes
from robotrl.sims.wrapper import WrappedSim, declared
from robotrl.spec import Arrays, HasDistance, HasScenarios, HasStateIds, HasTrace, Step, lost

Reals = NDArray[np.float64]
Flags = NDArray[np.bool_]

COLLISIONS = frozenset({"vehicle", "pedestrian", "static"})
"""Events of a driving sim's episode recording that are collisions."""
ROUTE = "route_completion"
"""Number in a driving sim's `info`: fraction of the route driven, after the step."""
TASK, SUM = "sim's own", "sum"
"""Names of the sim's own reward, and of the weighted sum of the sources, where they stand beside sources."""


class ScoredEpisode(NamedTuple):
    """An episode of T steps: scores, and ground truth."""

    state_id: int
    actor: str
    """Name of what acted."""
    scenario: str
    """Empty if the sim has no scenarios."""
    success: bool
    scores: Mapping[str, Reals]
    """(T,) contribution of each source, by name, before its weight; with several sources also their weighted sum; and
    the sim's own reward."""
    valid: Mapping[str, Flags]
    """(T,) whether each score was valid; the sum is if all are."""
    progress: Reals | None
    """(T,) progress after each step, NaN if unknown: the fraction of the route, or minus the distance from success.
    None if the sim states neither."""
    event: Flags
    """(T,) collision in a driving sim, and in others a failure that ended the episode."""
    actions: NDArray[np.float32]
    """(T, A)."""

    @property
    def length(self) -> int:
        """Number of steps T."""
        return len(self.event)


class ScoreRecorder(WrappedSim):
    """Wrapper that keeps scores and ground truth of all steps; made by `declared`.

    Args:
        sim: a sim with reward sources.
    """

    def __init__(self, sim: RewardedSim) -> None:
        super().__init__(sim)
        self._sources = sim.rewards.sources
        self._tape: list[dict[str, NDArray[Any]]] = []
        self._begin = np.zeros(self.num_envs, np.int64)
        self.spans: list[tuple[int, int, int, int]] = []
        """Env, first step, end and start id of each episode that ended."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Tensor]:
        """Start new episodes in all envs; those that ran are not kept."""
        self._begin[:] = len(self._tape)
        return super().reset(seed, options)

    def step(self, actions: Tensor) -> Step:
        """Step the sim, and keep its scores and truth."""
        step = super().step(actions)
        info = step.info
        row = {
            f"{kind}/{one.name}": info[f"{kind}/{one.name}"]
            for one in self._sources
            for kind in ("reward", "reward_valid")
        }
        row |= {"sum": step.reward, "task": info["sim_reward"], "actions": actions, "success": info["success"]}
        if (progress := self._progress(step)) is not None:
            row["progress"] = progress
        kept = {key: value.cpu().numpy().copy() for key, value in row.items()}
        kept["event"] = self._events(step)
        self._tape.append(kept)
        self.write_late(0.0)
        over = step.final_ids.tolist()
        gone = lost(step)
        for env in over:
            if not gone[env]:
                self.spans.append((env, int(self._begin[env]), len(self._tape), int(info["state_id"][env])))
            self._begin[env] = len(self._tape)
        return step

    def write_late(self, wait_s: float | None) -> None:
        """Write scores that have come late into their steps.

        Args:
            wait_s: seconds to wait for those on their way; None: as long as their sources' settings say.
        """
        for name, weight, source in self._sources:
            if not isinstance(source, LateRewardSource):
                continue
            late = source.late(wait_s)
            columns = (late.back, late.env, late.change, late.fresh)
            for back, env, change, fresh in zip(*(x.tolist() for x in columns), strict=True):
                row = self._tape[len(self._tape) - 1 - back]
                row[f"reward/{name}"][env] += change
                row[f"reward_valid/{name}"][env] |= fresh
                row["sum"][env] += weight * change

    def _progress(self, step: Step) -> Tensor | None:
        if ROUTE in step.info:
            return step.info[ROUTE]
        if not isinstance(self.sim, HasDistance):
            return None
        # an env that ended has been reset, so that its distance is that of the next episode
        unknown = torch.full_like(step.reward, torch.nan)
        return torch.where(step.terminated | step.truncated, unknown, -self.sim.distance().float())

    def _events(self, step: Step) -> Flags:
        failed = (step.terminated & ~step.info["success"]).cpu().numpy().copy()
        if not isinstance(self.sim, HasTrace):
            return failed
        for env in np.flatnonzero(failed):
            failed[env] = not COLLISIONS.isdisjoint(self.sim.trace_step(int(env)).events)
        return failed

    def episode(self, span: tuple[int, int, int, int], actor: str) -> ScoredEpisode:
        """The episode of one of `spans`.

        Args:
            span: the span.
            actor: name of what acted.
        """
        env, begin, end, state_id = span
        rows = {key: np.stack([row[key][env] for row in self._tape[begin:end]]) for key in self._tape[begin]}
        names = [one.name for one in self._sources]
        scores = {name: rows[f"reward/{name}"].astype(np.float64) for name in names}
        valid = {name: rows[f"reward_valid/{name}"] for name in names}
        if len(names) > 1:
            scores[SUM], valid[SUM] = rows["sum"].astype(np.float64), np.logical_and.reduce(list(valid.values()))
        scores[TASK], valid[TASK] = rows["task"].astype(np.float64), np.ones(end - begin, bool)
        return ScoredEpisode(
            state_id=state_id,
            actor=actor,
            scenario=self.sim.scenario_of(state_id) if isinstance(self.sim, HasScenarios) else "",
            success=bool(rows["success"][-1]),
            scores=scores,
            valid=valid,
            progress=rows["progress"].astype(np.float64) if "progress" in rows else None,
            event=rows["event"],
            actions=rows["actions"].astype(np.float32),
        )


class NamedActor(NamedTuple):
    """One of those that act in a mixture."""

    name: str
    actor: Actor


class MixedActor:
    """Several actors that share the starts: start number i is that of actor i modulo their number.

    All of them act at the same time in different envs, so that scores that depend on earlier ones, such as a window
    that is found from the first pictures, see all of them from the beginning.

    Args:
        actors: 1 or more, made for the same sim.
        ids: start ids in order.
    """

    def __init__(self, actors: Sequence[NamedActor], ids: Sequence[int]) -> None:
        self._actors = actors
        self._number = {state_id: place % len(actors) for place, state_id in enumerate(ids)}

    def name_of(self, state_id: int) -> str:
        """Name of what acts from a start."""
        return self._actors[self._number[state_id]].name

    def act(self, obs: Arrays, turn: Turn) -> Tensor:
        """Actions (N, A)."""
        whose = torch.tensor([self._number.get(start, 0) for start in turn.start.tolist()], device=turn.start.device)
        actions: Tensor | None = None
        for number, (_, actor) in enumerate(self._actors):
            own = whose == number
            # a start of another actor is none of this one's, which then need not decide anything
            given = actor.act(obs, Turn(turn.started, torch.where(own, turn.start, -1)))
            actions = given.clone() if actions is None else torch.where(own[:, None], given, actions)
        assert actions is not None
        return actions


class PlayedActions:
    """Actor that repeats recorded actions, one list for each start.

    Args:
        episodes: the episodes to repeat.
        sim: the sim; envs without an episode stay at zero, within the bounds.
    """

    def __init__(self, episodes: Sequence[ScoredEpisode], num_envs: int, rest: NDArray[np.float32]) -> None:
        self._actions = {one.state_id: one.actions for one in episodes}
        self._rest = rest
        self._at = np.zeros(num_envs, np.int64)

    def act(self, obs: Arrays, turn: Turn) -> Tensor:
        """Actions (N, A); zero after the last recorded one."""
        del obs
        self._at[turn.started.cpu().numpy()] = 0
        rows: list[NDArray[np.float32]] = []
        for start, at in zip(turn.start.tolist(), self._at.tolist(), strict=True):
            recorded = self._actions.get(start)
            rows.append(self._rest if recorded is None or at >= len(recorded) else recorded[at])
        self._at += 1
        return torch.from_numpy(np.stack(rows)).to(turn.start.device)


def score_rollouts(
    sim: RewardedSim, actors: Sequence[NamedActor], ids: Sequence[int], seed: int
) -> list[ScoredEpisode]:
    """Run each start once, and keep scores and ground truth.

    No source ends an episode here: all of them are measured on the same episodes, which the sim ends.

    Args:
        sim: a sim with reward sources; it is reset.
        actors: those that act, in turn.
        ids: start ids.
        seed: of the sim.

    Raises:
        CapabilityError: the sim has no numbered starts.
        NumericsError: the sim, a source or an actor gave a number that is not finite.
    """
    if not isinstance(sim, HasStateIds):
        raise CapabilityError(f"sim {type(sim.sim).__name__} lacks HasStateIds: it has no held-out starts")
    for one in sim.rewards.sources:
        one.source.end_at = None
    recorder: Any = declared(ScoreRecorder, sim)(sim)
    mixed = MixedActor(actors, ids)
    recorder.reset(seed=seed)
    run_episodes(mixed, recorder, ids, description="rollouts to score")
    recorder.write_late(None)
    wanted = set(ids)
    found = {span[3]: span for span in recorder.spans if span[3] in wanted}
    return [recorder.episode(found[state_id], mixed.name_of(state_id)) for state_id in ids]
