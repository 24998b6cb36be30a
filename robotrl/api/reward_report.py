"""Result of `robotrl reward eval`: as lines, as JSON, and as an HTML page with replays."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import robotrl
from robotrl.api.filming import FOR_PAGE, camera_of, film
from robotrl.api.viewing import PICTURES, names_of
from robotrl.config import WeightedReward
from robotrl.errors import RobotrlError
from robotrl.fn.stats import Interval
from robotrl.registry import make_sim, sim_options
from robotrl.report.replay import EpisodePictures, StepCurve
from robotrl.report.trust_page import MetricRow, MetricTable, RewardVerdict, ScoreSpread, TrustPage, render_trust
from robotrl.rewards.trust.metrics import JudgeCfg, JudgedBy, RewardMetrics
from robotrl.rewards.trust.recording import SUM, TASK, PlayedActions, ScoredEpisode
from robotrl.rewards.trust.verdict import Verdict
from robotrl.rollout.evaluate import at_rest
from robotrl.spec.sim_options import json_values


@dataclass(frozen=True)
class RewardEvaluation:
    """Rewards measured against the ground truth of a sim.

    Args:
        sim: name of the sim.
        options: options of the sim that were set.
        rewards: the sources.
        split: split of the starts.
        seed: seed of the rollouts.
        judge: settings of the verdict.
        dt_s: duration of a step, s.
        event: "collisions" in a sim with traffic, else "failures": ends of an episode without success, before its time.
        episodes: the rollouts.
        metrics: metrics by name: of each source, of "sum" if there are several, and of the "sim's own" reward.
        scenarios: metrics by name and scenario, without the sim's own; empty in a sim without scenarios.
        verdicts: verdicts by name, without the sim's own.
    """

    sim: str
    options: Mapping[str, Any]
    rewards: Sequence[WeightedReward]
    split: str
    seed: int
    judge: JudgeCfg
    dt_s: float
    event: str
    episodes: Sequence[ScoredEpisode]
    metrics: Mapping[str, RewardMetrics]
    scenarios: Mapping[str, Mapping[str, RewardMetrics]]
    verdicts: Mapping[str, Verdict]

    @property
    def main(self) -> str:
        """Name of the reward that a run would learn from: the only source, or the sum."""
        return SUM if len(self.rewards) > 1 else self.rewards[0].name

    @property
    def verdict(self) -> Verdict:
        """Verdict on the reward that a run would learn from."""
        return self.verdicts[self.main]

    @property
    def reached(self) -> float | None:
        """AUC for success that that decides; None if there is no verdict."""
        found = self.metrics[self.main].auc_of(self.judge.by)
        return None if found is None or self.verdict.standing == "not judged" else found.value

    @property
    def rollouts(self) -> str:
        """The rollouts in one sentence."""
        whose = ", ".join(f"{count} by {name}" for name, count in Counter(one.actor for one in self.episodes).items())
        found = self.metrics[self.main]
        ended = f"{found.successes} succeeded, {found.events} had {self.event}"
        return f"{len(self.episodes)} rollouts of split {self.split} ({whose}): {ended}."

    def lines(self) -> list[str]:
        """Verdict on each reward, and its metrics, as text for a terminal."""
        out = [f"{self.sim}: {self.rollouts}"]
        for name, verdict in self.verdicts.items():
            out += [f"reward {name!r} {verdict.sentences[0]}", *(f"  {sentence}" for sentence in verdict.sentences[1:])]
        return out

    def to_json(self) -> dict[str, Any]:
        """Everything but the steps, as JSON values."""
        return {
            "schema_version": 1,
            "sim": self.sim,
            "sim_options": dict(self.options),
            "rewards": [
                {"name": one.name, "weight": one.weight, "settings": json_values(one.cfg)} for one in self.rewards
            ],
            "split": self.split,
            "seed": self.seed,
            "judge": asdict(self.judge),
            "event": self.event,
            "verdicts": {name: {"standing": one.standing, "text": one.text} for name, one in self.verdicts.items()},
            "metrics": {name: _metrics_json(one) for name, one in self.metrics.items()},
            "scenarios": {
                name: {scenario: _metrics_json(one) for scenario, one in found.items()}
                for name, found in self.scenarios.items()
                if found
            },
            "episodes": [_episode_json(one) for one in self.episodes],
        }

    def page(self, replays: int = 6, command: str = "", camera: str | None = None) -> str:
        """HTML page with the metrics, and with the scores along some episodes beside their pictures.

        Args:
            replays: maximum number of episodes; 0 shows none.
            command: command that makes the page again.
            camera: name of a camera of the sim; None takes its first.
        """
        pictures, chosen = self._replays(replays, camera)
        settings = {
            "sim": self.sim,
            **{f"sim.{name}": str(value) for name, value in self.options.items()},
            **{
                f"reward.{one.name}.{name}": str(value)
                for one in self.rewards
                for name, value in {"weight": one.weight, **json_values(one.cfg)}.items()
            },
            **{f"judge.{name}": str(value) for name, value in asdict(self.judge).items()},
            "starts": f"the first {len(self.episodes)} of split {self.split}",
            "seed": str(self.seed),
            "robotrl": robotrl.__version__,
        }
        return render_trust(
            TrustPage(
                title=f"Reward {', '.join(one.name for one in self.rewards)} on {self.sim}",
                verdict=f"{self.main[0].upper()}{self.main[1:]} {self.verdict.sentences[0]}.",
                lede=self.rollouts,
                dt_s=self.dt_s,
                verdicts=[
                    RewardVerdict(name, verdict.standing, verdict.sentences) for name, verdict in self.verdicts.items()
                ],
                metrics=self._table(),
                spreads=self._spreads(),
                scenarios={name: self._scenario_table(found) for name, found in self.scenarios.items() if found},
                replays=pictures,
                chosen=chosen,
                command=command,
                settings=settings,
            )
        )

    @property
    def _fields(self) -> dict[str, tuple[str, str]]:
        """Fields of `RewardMetrics` on the page: label, and what is compared."""
        ahead = f"a step's score, against {self.event} within {self.judge.ahead_s:g} s"
        return {
            "auc_mean": ("AUC of the mean", "episode's mean score, against success"),
            "auc_final": ("AUC of the last score", "against success"),
            "auc_return": ("AUC of the return", "sum over the episode, against success"),
            "auc_same": ("AUC within one actor", f"{self.judge.by}, only rollouts of the same actor are compared"),
            "auc_event": (f"AUC before {self.event}", ahead),
            "progress": ("Correlation with progress", "within an episode"),
            "advance": ("Correlation with each step's progress", "within an episode"),
            "progress_over": ("Correlation with the last progress", "mean score, over episodes"),
            "task_over": ("Correlation with the sim's return", "return, over episodes"),
        }

    def _table(self) -> MetricTable:
        names = [*self.verdicts, TASK]
        columns = [self.metrics[name] for name in names]
        rows = [
            MetricRow(label, words, [_cell(one._asdict()[field]) for one in columns])
            for field, (label, words) in self._fields.items()
        ]
        rows.append(MetricRow("Valid", "share of the steps", [(one.valid, one.valid, one.valid) for one in columns]))
        return MetricTable(names, [row for row in rows if any(cell is not None for cell in row.cells)])

    def _scenario_table(self, found: Mapping[str, RewardMetrics]) -> MetricTable:
        fields: dict[JudgedBy, str] = {"mean": "auc_mean", "final": "auc_final", "return": "auc_return"}
        shown = [fields[self.judge.by], "auc_event", "progress", "advance"]
        rows = [
            MetricRow(
                scenario,
                f"{one.successes} of {one.episodes} succeeded",
                [_cell(one._asdict()[field]) for field in shown],
            )
            for scenario, one in found.items()
        ]
        return MetricTable([self._fields[field][0] for field in shown], rows)

    def _spreads(self) -> list[ScoreSpread]:
        out: list[ScoreSpread] = []
        for name in self.verdicts:
            scored = [one for one in self.episodes if one.valid[name].any()]
            means = np.array([_mean(one, name) for one in scored])
            success = np.array([one.success for one in scored], bool)
            if success.any() and not success.all():
                out.append(ScoreSpread(name, means[success], means[~success]))
        return out

    def _replays(self, count: int, camera: str | None) -> tuple[list[EpisodePictures], str]:
        """Pictures of some episodes, whose actions are played once more, and how they were chosen."""
        chosen = telling_episodes(self.episodes, self.main, count)
        if not chosen:
            return [], ""
        try:
            pictures, remark = self._filmed([self.episodes[place] for place in chosen], list(chosen.values()), camera)
        except RobotrlError as error:
            warnings.warn(f"the page has no replays: {error}", stacklevel=3)
            return [], f"None of the episodes is shown: {error}."
        words = (
            f"{len(chosen)} of {len(self.episodes)} episodes: those with the highest and lowest mean score of"
            f" {self.main}, and those in which it disagrees most with success.{remark}"
        )
        return pictures, words

    def _filmed(
        self, episodes: Sequence[ScoredEpisode], reasons: Sequence[str], camera: str | None
    ) -> tuple[list[EpisodePictures], str]:
        options = dict(self.options)
        if PICTURES in vars(sim_options(self.sim)):
            options = {PICTURES: True, **options}
        with closing(make_sim(self.sim, num_envs=len(episodes), seed=self.seed, **options)) as sim:
            ids, lengths = [one.state_id for one in episodes], [one.length for one in episodes]
            player = PlayedActions(episodes, sim.num_envs, at_rest(sim.action_spec))
            view = camera_of(sim, self.sim, camera)
            found = film(sim, player, self.sim, view, ids, names_of(sim, ids), lengths, self.seed, FOR_PAGE)
        again = sum(
            bool(ok) != one.success or int(length) != one.length
            for ok, length, one in zip(found.result.success, found.result.length, episodes, strict=True)
        )
        remark = ""
        if again:
            remark = (
                f" {again} of them came to something else when their actions were played again for the pictures: the"
                " sim does not repeat itself exactly."
            )
        replays = [
            replay._replace(
                name=f"{replay.name}, {one.actor}",
                instruction=reason,
                success=one.success,
                ret=float(one.scores[self.main].sum()),
                length=min(one.length, replay.length),
                rewards=tuple(one.scores[self.main][: replay.length].tolist()),
                curves=self._curves(one, replay.length),
            )
            for replay, one, reason in zip(found.replays, episodes, reasons, strict=True)
        ]
        return replays, remark

    def _curves(self, episode: ScoredEpisode, length: int) -> tuple[StepCurve, ...]:
        curves: list[StepCurve] = []
        for name in self.verdicts:
            valid = episode.valid[name]
            words = "" if valid.mean() > 0.995 else f"valid on {100 * valid.mean():.0f} % of the steps"
            if valid.any():
                curves.append(StepCurve(name, words, _held(episode.scores[name], valid)[:length]))
        if episode.progress is not None and np.isfinite(episode.progress).any():
            known = np.isfinite(episode.progress)
            curves.append(StepCurve("truth: progress", "", _held(episode.progress, known)[:length]))
        if TASK not in self.verdicts:
            task = tuple(episode.scores[TASK][:length].tolist())
            curves.append(StepCurve("truth: the sim's own reward", "", task))
        return tuple(curves)


def telling_episodes(episodes: Sequence[ScoredEpisode], name: str, count: int) -> dict[int, str]:
    """Places of telling episodes, and why each is one.

    In turn: that with the highest and the lowest mean score, the failure with the highest, the success with the lowest.

    Args:
        episodes: the rollouts.
        name: name of the reward.
        count: maximum number of episodes.
    """
    scored = [place for place, one in enumerate(episodes) if one.valid[name].any()]
    order = sorted(scored, key=lambda place: _mean(episodes[place], name))
    queues = {
        "highest mean score": order[::-1],
        "lowest mean score": order,
        "failed with a high score": [place for place in order[::-1] if not episodes[place].success],
        "succeeded with a low score": [place for place in order if episodes[place].success],
    }
    found: dict[int, str] = {}
    while len(found) < min(count, len(scored)):
        for reason, queue in queues.items():
            place = next((place for place in queue if place not in found), None)
            if place is not None and len(found) < count:
                found[place] = reason
    return found


def _mean(episode: ScoredEpisode, name: str) -> float:
    return float(episode.scores[name][episode.valid[name]].mean())


def _held(values: NDArray[np.float64], valid: NDArray[np.bool_]) -> tuple[float, ...]:
    """Values with the last valid one where one is not valid, and with the first valid one before it; one must be."""
    place = np.maximum.accumulate(np.where(valid, np.arange(len(valid)), -1))
    return tuple(values[np.where(place < 0, int(np.argmax(valid)), place)].tolist())


def _cell(found: Interval | None) -> tuple[float, float, float] | None:
    return None if found is None else (found.value, found.low, found.high)


def _metrics_json(metrics: RewardMetrics) -> dict[str, Any]:
    values = metrics._asdict()
    return {name: value._asdict() if isinstance(value, Interval) else value for name, value in values.items()}


def _episode_json(episode: ScoredEpisode) -> dict[str, Any]:
    return {
        "id": episode.state_id,
        "actor": episode.actor,
        "scenario": episode.scenario,
        "success": episode.success,
        "event": bool(episode.event.any()),
        "length": episode.length,
        "mean": {name: _mean(episode, name) if episode.valid[name].any() else None for name in episode.scores},
        "return": {name: float(score.sum()) for name, score in episode.scores.items()},
    }
