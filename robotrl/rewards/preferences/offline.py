"""Preferences on a dataset: pairs of its segments, their answers, and the ensemble that learns from them.

Venkataraman et al. 2024 (arXiv 2411.05273) label pairs of an unlabelled dataset by a vision-language model, learn a
reward from them, relabel the dataset, and train IQL on it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from robotrl.datasets.merging import stated_specs
from robotrl.datasets.reader import Dataset
from robotrl.errors import check_at_least, check_count, unknown
from robotrl.rewards.grading import origin
from robotrl.rewards.preferences.clips import dataset_clips
from robotrl.rewards.preferences.ensemble import LearnedPreferences
from robotrl.rewards.preferences.labelers.desk import LabelDesk, LabelingCfg, PairKeys
from robotrl.rewards.preferences.labelers.labels import NEITHER
from robotrl.rewards.preferences.segments import (
    Ints,
    StepPool,
    dataset_pool,
    gather,
    possible_starts,
    random_pairs,
    segment_keys,
)
from robotrl.rewards.preferences.training import AnsweredPairs, PreferenceTrainingCfg, train_preferences
from robotrl.rewards.preferences.values import ValueFitCfg, fit_values, true_regret
from robotrl.run.locking import StopSignals, stop_requested
from robotrl.spec import Spec
from robotrl.utils.progress import track

PairChoice = Literal["random", "disagreement"]
PAIR_CHOICES: tuple[PairChoice, ...] = ("random", "disagreement")
CANDIDATES = 10
"""Pairs of which one is asked about, by the disagreement of the members (Christiano et al. 2017)."""
LOOK_S = 1.0


@dataclass(frozen=True)
class OfflinePreferencesCfg:
    """Settings of preferences on a dataset."""

    labels: int = 500
    """Pairs to ask about."""
    pairs: PairChoice = "random"
    """Choice of the pairs: "random", or those on which an ensemble of the earlier answers disagrees most."""
    rounds: int = 5
    """With "disagreement": rounds of questions."""
    labeler: LabelingCfg = field(default_factory=LabelingCfg)
    training: PreferenceTrainingCfg = field(default_factory=PreferenceTrainingCfg)
    values: ValueFitCfg = field(default_factory=ValueFitCfg)
    """Of true regrets, for synthetic answers by regret."""
    seed: int = 0
    """Seed of the pairs."""

    def check(self) -> None:
        """Check the ranges.

        Raises:
            ConfigError: a setting is out of range.
        """
        check_count("labels", self.labels, 1, 1_000_000, "a number of pairs")
        if self.pairs not in PAIR_CHOICES:
            raise unknown("pairs", str(self.pairs), PAIR_CHOICES)
        check_at_least("rounds", self.rounds, 1)
        self.labeler.check()
        self.training.check()
        self.values.check()


class AnsweredDataset(NamedTuple):
    """Answers about pairs of a dataset."""

    pairs: AnsweredPairs
    """Those with a preference."""
    asked: int
    neither: int
    """Answers without a preference."""
    metrics: dict[str, float]
    """Of the labeler; `known` answers were kept from before."""
    agreement: float | None
    """Fraction of the answers that agree with the dataset's own rewards; None if it has none."""


def observed(dataset: Dataset, keys: tuple[str, ...]) -> dict[str, Spec]:
    """Specs of the observations of a dataset that a reward reads.

    Args:
        dataset: with specs.
        keys: their names; empty takes all but those that the recording sim declares privileged.

    Raises:
        DataError: the dataset states no specs.
        ConfigError: an unknown name.
    """
    specs, _ = stated_specs(dataset)
    for key in keys:
        if key not in specs:
            raise unknown("keys", key, specs)
    hidden = () if keys else origin(dataset).privileged
    return {key: spec for key, spec in specs.items() if key in keys or (not keys and key not in hidden)}


def label_pairs(dataset: Dataset, specs: dict[str, Spec], cfg: OfflinePreferencesCfg) -> AnsweredDataset:
    """Choose pairs of segments, and have them labeled.

    Answers are stored as they come. A run that was stopped and is started again with the same settings finds them.

    Raises:
        ConfigError: a setting is out of range, or no episode is long enough.
        DataError: the store cannot be used, or segments cannot be shown.
        SystemExit: the run was asked to stop.
    """
    cfg.check()
    pool = dataset_pool(dataset, list(specs))
    length = cfg.labeler.length
    starts = possible_starts(pool, length)
    merit = _merit(pool, specs, cfg)
    rng = np.random.default_rng(cfg.seed)
    rounds = cfg.rounds if cfg.pairs == "disagreement" else 1
    pairs = np.zeros((0, 2), np.int64)
    answers = np.zeros(0, np.int64)
    desk = LabelDesk(cfg.labeler)
    try:
        for number in range(rounds):
            count = cfg.labels * (number + 1) // rounds - len(pairs)
            few = (answers != NEITHER).sum() < 2 * cfg.training.members + 8
            if number == 0 or few:
                chosen = random_pairs(starts, count, length, rng)
            else:
                candidates = random_pairs(starts, CANDIDATES * count, length, rng)
                chosen = candidates[_disagreement(dataset, pool, specs, candidates, pairs, answers, cfg)[:count]]
            found = _asked(desk, dataset, pool, chosen, merit, cfg)
            kept = np.array([one is not None for one in found])
            pairs = np.concatenate([pairs, chosen[kept]])
            answers = np.concatenate([answers, np.array([one for one in found if one is not None], np.int64)])
        metrics = desk.metrics()
    finally:
        desk.close()
    truth = merit(pairs[:, 1]) - merit(pairs[:, 0])
    clear = (answers != NEITHER) & (truth != 0)
    agreement = float(((truth > 0) == (answers == 1))[clear].mean()) if clear.any() else None
    answered = _answered(pool, pairs, answers, length)
    return AnsweredDataset(answered, cfg.labels, int((answers == NEITHER).sum()), metrics, agreement)


def learn_offline(
    dataset: Dataset, keys: tuple[str, ...], cfg: OfflinePreferencesCfg
) -> tuple[LearnedPreferences, AnsweredDataset]:
    """Label pairs of a dataset, and train an ensemble on the answers; see `label_pairs` and `train_preferences`."""
    specs = observed(dataset, keys)
    labeled = label_pairs(dataset, specs, cfg)
    about: dict[str, str | int | float] = {
        "dataset": str(dataset.root),
        "labeler": cfg.labeler.by,
        "length": cfg.labeler.length,
        "asked": labeled.asked,
        "neither": labeled.neither,
    }
    return train_preferences(labeled.pairs, specs, stated_specs(dataset)[1], cfg.training, about), labeled


Merit = Callable[[Ints], NDArray[np.float64]]
"""Function from starts (n,) to how good their segments are by the dataset's own rewards."""


def _merit(pool: StepPool, specs: dict[str, Spec], cfg: OfflinePreferencesCfg) -> Merit:
    length = cfg.labeler.length
    if cfg.labeler.by == "synthetic" and cfg.labeler.synthetic.truth == "regret":
        values = fit_values(pool, specs, cfg.values)
        return lambda starts: -true_regret(pool, values, starts, length, cfg.values.gamma).double().numpy()
    return lambda starts: gather(pool, starts, length).reward.double().sum(1).numpy()


def _asked(
    desk: LabelDesk, dataset: Dataset, pool: StepPool, pairs: Ints, merit: Merit, cfg: OfflinePreferencesCfg
) -> list[int | None]:
    """Answers (P,) about pairs (P, 2) of starts; None where there is none."""
    first, second = (segment_keys(gather(pool, pairs[:, side], cfg.labeler.length)) for side in (0, 1))
    keys = [PairKeys(*pair) for pair in zip(first, second, strict=True)]
    advantage = merit(pairs[:, 1]) - merit(pairs[:, 0])

    def clips(rows: Any) -> NDArray[np.uint8]:
        shown = pairs[np.asarray(rows)]
        found = dataset_clips(dataset, shown.reshape(-1), cfg.labeler)
        return found.reshape(len(shown), 2, *found.shape[1:])

    signals = StopSignals()
    signals.install()
    try:
        desk.ask(keys, advantage.tolist(), clips)
        found = desk.collect()
        with track(len(pairs), "labels", "pairs", done=len(found)) as bar:
            while desk.pending and not stop_requested():
                new = desk.collect(LOOK_S)
                found |= new
                bar.advance(len(new))
            found |= desk.collect()
        if stop_requested():
            print(f"stopped: {len(found)} of {len(pairs)} answers of this round", file=sys.stderr)
            raise SystemExit(128 + int(signals.received or 0))
    finally:
        signals.restore()
    return [found.get(key.question) for key in keys]


def _answered(pool: StepPool, pairs: Ints, answers: NDArray[np.int64], length: int) -> AnsweredPairs:
    chosen = pairs[answers != NEITHER]
    first, second = (gather(pool, chosen[:, side], length) for side in (0, 1))
    return AnsweredPairs(first, second, answers[answers != NEITHER])


def _disagreement(
    dataset: Dataset,
    pool: StepPool,
    specs: dict[str, Spec],
    candidates: Ints,
    pairs: Ints,
    answers: NDArray[np.int64],
    cfg: OfflinePreferencesCfg,
) -> Ints:
    """Rows of candidate pairs, those first on which the members disagree most."""
    length = cfg.labeler.length
    learned = train_preferences(
        _answered(pool, pairs, answers, length), specs, stated_specs(dataset)[1], cfg.training, {}
    )
    spread = learned.disagreement(*(gather(pool, candidates[:, side], length) for side in (0, 1)))
    return torch.argsort(spread, descending=True, stable=True).numpy()
