"""Weighted sum of reward sources: the reward of a run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import ConfigError, DataError
from robotrl.rewards.source import LateRewardSource, ReadsObs, RewardSource, Score, SimTransition, contribution
from robotrl.spec.late_rewards import LateRewards

IDENTITY, WEIGHT = "identity", "weight"


class NamedSource(NamedTuple):
    """One source of a run."""

    name: str
    """Its name in the registry, unique in the run."""
    weight: float
    source: RewardSource


def weighted_sum(contributions: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Sum (N,) of contributions (N,) times their weights, 1 or more of them."""
    total = weights[0] * contributions[0]
    for weight, one in zip(weights[1:], contributions[1:], strict=True):
        total = total + weight * one
    return total


class WeightedRewards:
    """Several reward sources as one: each invalid score contributes its source's fallback, times the weight.

    Args:
        sources: 1 or more, with different names.
    """

    def __init__(self, sources: Sequence[NamedSource]) -> None:
        self.sources = tuple(sources)
        # asked in every step, of every observation
        readers = [one.source for one in self.sources]
        self._keys_before = (
            {key for source in readers if isinstance(source, ReadsObs) for key in source.obs_keys}
            if all(isinstance(source, ReadsObs) for source in readers)
            else None
        )

    @property
    def may_end(self) -> bool:
        """True if a source ends episodes."""
        return any(one.source.end_at is not None for one in self.sources)

    @property
    def sees_success(self) -> bool:
        """True if a source sees that an episode succeeds."""
        return any(one.source.sees_success for one in self.sources)

    def detected(self, transition: SimTransition) -> tuple[dict[str, Score], Tensor]:
        """Scores by name of the sources that end episodes, and the envs (N,) whose episodes they end."""
        scores: dict[str, Score] = {}
        seen = torch.zeros_like(transition.step.terminated)
        for name, _, source in self.sources:
            if source.end_at is not None:
                scores[name] = score = _scored(name, source, transition)
                seen = seen | (score.valid & (score.value >= source.end_at))
        return scores, seen

    def score(self, transition: SimTransition, scores: Mapping[str, Score]) -> tuple[Tensor, dict[str, Tensor]]:
        """Reward (N,) of a step, and the scores of each source.

        Args:
            transition: the step, with all ends of episodes.
            scores: the result of `detected`; the other sources are asked now.

        Returns:
            The reward, and (N,) each `reward/NAME`, the unweighted contribution, `reward_valid/NAME` and
            `reward_age/NAME`.
        """
        parts: list[Tensor] = []
        info: dict[str, Tensor] = {}
        for name, _, source in self.sources:
            score = scores[name] if name in scores else _scored(name, source, transition)
            parts.append(contribution(score, source.fallback))
            info |= {f"reward/{name}": parts[-1], f"reward_valid/{name}": score.valid, f"reward_age/{name}": score.age}
        return weighted_sum(parts, [one.weight for one in self.sources]), info

    def reads_before(self, key: str) -> bool:
        """True if a source may read this observation of before the step."""
        return self._keys_before is None or key in self._keys_before

    def missing(self, info: Mapping[str, Tensor]) -> Tensor:
        """Number (N,) uint8 of sources whose scores may come late and that have none for a step.

        Args:
            info: scores of the step by name, see `score`.
        """
        names = [one.name for one in self.sources if isinstance(one.source, LateRewardSource)]
        return torch.stack([~info[f"reward_valid/{name}"] for name in names]).sum(dim=0, dtype=torch.uint8)

    @property
    def may_be_late(self) -> bool:
        """True if scores of a source may come later than their steps."""
        return any(isinstance(one.source, LateRewardSource) for one in self.sources)

    def late(self, wait: bool, newest: int = 0) -> tuple[LateRewards, dict[str, float]]:
        """Changes of the rewards of earlier steps, and sums of what changed.

        Args:
            wait: whether to wait for scores that are on their way, as long as the settings of their sources say.
            newest: number of the newest steps over which the sums are.

        Returns:
            The changes, on the CPU, and the sums over steps by the names of `score`.
        """
        parts: list[LateRewards] = []
        sums: dict[str, float] = {}
        for name, weight, source in self.sources:
            if isinstance(source, LateRewardSource):
                found = source.late(None if wait else 0.0)
                parts.append(LateRewards(found.back, found.env, weight * found.change, found.fresh))
                new = found.back < newest
                sums[f"reward/{name}"] = float(found.change[new].sum())
                sums[f"reward_valid/{name}"] = float(found.fresh[new].sum())
                sums[f"reward_age/{name}"] = float(found.age[new & found.fresh].sum())
        return LateRewards(*(torch.cat(x) for x in zip(*parts, strict=True))), sums

    def metrics(self) -> dict[str, float]:
        """Scalars to log of the sources that score elsewhere, named `scoring/NAME/METRIC`."""
        return {
            f"scoring/{one.name}/{key}": value
            for one in self.sources
            if isinstance(one.source, LateRewardSource)
            for key, value in one.source.metrics().items()
        }

    def close(self) -> None:
        """End what scores elsewhere."""
        for one in self.sources:
            if isinstance(one.source, LateRewardSource):
                one.source.close()

    def forget(self, envs: Tensor) -> None:
        """See `RewardSource.forget`."""
        for one in self.sources:
            one.source.forget(envs)

    def state(self) -> dict[str, NDArray[Any]]:
        """State of all sources, with what identifies them."""
        out: dict[str, NDArray[Any]] = {}
        for name, weight, source in self.sources:
            own = {**source.state(), IDENTITY: _digest(source), WEIGHT: np.array(weight, np.float64)}
            out |= {f"{name}/{key}": value for key, value in own.items()}
        return out

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the result of `state`.

        Raises:
            DataError: it was saved with other sources, or with other weights.
        """
        if len(self.sources) == 1 and IDENTITY in state:  # version 0.1 had one source, of weight 1, without a name
            name = self.sources[0].name
            state = {**{f"{name}/{key}": value for key, value in state.items()}, f"{name}/{WEIGHT}": np.array(1.0)}
        names = {key.partition("/")[0] for key in state}  # a name has no slash: see `robotrl.config.check`
        if names != {one.name for one in self.sources}:
            raise DataError(
                f"the saved state was made with the reward sources {', '.join(sorted(names)) or 'none'}: expected"
                f" {', '.join(one.name for one in self.sources)}"
            )
        for name, weight, source in self.sources:
            own = {key.removeprefix(f"{name}/"): value for key, value in state.items() if key.startswith(f"{name}/")}
            same = np.array_equal(own.pop(IDENTITY, np.zeros(0)), _digest(source))
            if not same or float(own.pop(WEIGHT, np.array(np.nan))) != weight:
                raise DataError(
                    f"the saved state was made with another reward source {name!r} than the present one: expected the"
                    " same weights, threshold and settings"
                )
            source.load(own)


def _scored(name: str, source: RewardSource, transition: SimTransition) -> Score:
    score = source.score(transition)
    wanted = transition.step.reward.shape
    for field, x in score._asdict().items():
        if x.shape != wanted:  # it would broadcast
            raise ConfigError(
                f"reward {name!r} gave a {field} of shape {tuple(x.shape)}: expected {tuple(wanted)}, one for each env"
            )
    return score


def _digest(source: RewardSource) -> NDArray[np.uint8]:
    return np.frombuffer(hashlib.sha256(source.identity.encode()).digest(), np.uint8).copy()
