"""Trains an ensemble of rewards on answered pairs, and calibrates its probabilities on held-out ones.

The members differ in their first weights, in their minibatches, and in the fold of the answers that they leave out. The
fold tells when to stop: a few hundred answers, some of them wrong, are soon learned by heart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.engine.base import torch_threads
from robotrl.engine.engine import Context, Engine, EngineMode, LossModule, LossOut, ParameterGroup
from robotrl.engine.minibatches import part
from robotrl.errors import ConfigError, check_at_least, check_count, check_number, check_positive, unknown
from robotrl.fn.preferences import best_temperature, ensemble_probability, preference_loss
from robotrl.fn.progress.metrics import calibration_error
from robotrl.rewards.network import RewardNetCfg, normalization
from robotrl.rewards.preferences.ensemble import (
    FORMS,
    TAKEN,
    Form,
    HeldOutAnswers,
    LearnedPreferences,
    RewardEnsemble,
)
from robotrl.rewards.preferences.segments import Segments
from robotrl.rewards.preferences.stored import preferences_identity
from robotrl.spec import Spec

FEWEST = 8
"""Fewest answers to train on."""


@dataclass(frozen=True)
class PreferenceTrainingCfg:
    """Settings of an ensemble's training on answers."""

    form: Form = "return"
    """"return": an answer compares sums of rewards; "regret": it compares how much worse than the best the actions
    were, and minus that is the reward."""
    with_action: bool = True
    """The reward depends on the action, too, not on the observation alone."""
    members: int = 5
    """Number of networks, 1 or more."""
    model: RewardNetCfg = field(default_factory=lambda: RewardNetCfg(hidden=(64, 64)))
    """Sizes of each network."""
    updates: int = 600
    """Largest number of gradient steps."""
    check_every: int = 25
    """Gradient steps between two looks at the answers that a member does not learn from; it keeps its best weights."""
    batch: int = 64
    """Answers per gradient step."""
    lr: float = 1e-3
    """Learning rate of Adam."""
    max_grad_norm: float = 1.0
    """Maximum gradient norm of each network."""
    assumed_error: float = 0.1
    """Assumed fraction of answers that are drawn at random, 0 to below 1 (Christiano et al. 2017)."""
    shrink: float = 0.01
    """Weight of the mean squared reward of a step in the loss, 0 or more: without many answers rewards stay small."""
    held_out: float = 0.2
    """Fraction of the answers for the calibration, 0 to below 1."""
    engine: EngineMode = "eager"
    """Execution mode of updates; compiling takes longer than these few updates of small networks."""
    seed: int = 0
    """Seed of the weights, the folds and the minibatches."""

    def check(self, field: str = "training") -> None:
        """Check the ranges.

        Raises:
            ConfigError: a setting is out of range.
        """
        if self.form not in FORMS:
            raise unknown(f"{field}.form", str(self.form), FORMS)
        check_count(f"{field}.members", self.members, 1, 100, "a number of networks")
        for name, count in (("updates", self.updates), ("check_every", self.check_every), ("batch", self.batch)):
            check_at_least(f"{field}.{name}", count, 1)
        for name, value in (("lr", self.lr), ("max_grad_norm", self.max_grad_norm)):
            check_positive(f"{field}.{name}", value)
        check_number(f"{field}.assumed_error", self.assumed_error, 0.0, 0.99)
        check_number(f"{field}.shrink", self.shrink, 0.0, 1e6)
        check_number(f"{field}.held_out", self.held_out, 0.0, 0.9)


class AnsweredPairs(NamedTuple):
    """P pairs of segments with an answer."""

    first: Segments
    second: Segments
    choice: NDArray[np.int64]
    """(P,) 0: the first segment is preferred; 1: the second one."""

    def rows(self, rows: NDArray[np.int64]) -> AnsweredPairs:
        """Some of the pairs."""
        index = torch.from_numpy(rows)
        first, second = (_rows(one, index) for one in (self.first, self.second))
        return AnsweredPairs(first, second, self.choice[rows])


def joined(before: AnsweredPairs, after: AnsweredPairs) -> AnsweredPairs:
    """Pairs, and then others."""
    sides = ((before.first, after.first), (before.second, after.second))
    first, second = (
        Segments(
            {key: torch.cat([x, other.obs[key]]) for key, x in one.obs.items()},
            *(torch.cat(pair) for pair in zip(one[1:], other[1:], strict=True)),
        )
        for one, other in sides
    )
    return AnsweredPairs(first, second, np.concatenate([before.choice, after.choice]))


def _rows(segments: Segments, index: Tensor) -> Segments:
    obs, *rest = segments
    return Segments({key: x[index] for key, x in obs.items()}, *(x[index] for x in rest))


# loss


class PreferenceLoss(LossModule):
    """Cross-entropy of answers, the sum over the members; see `robotrl.fn.preferences`."""

    def __init__(self, ensemble: RewardEnsemble, cfg: PreferenceTrainingCfg) -> None:
        super().__init__()
        self.ensemble = ensemble
        self._cfg = cfg

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule.forward`; batch: "first/KEY" and "second/KEY" (M, L, ...) inputs, "first_valid" and
        "second_valid" (M, L), "choice" (M,) and "weight" (M, E): 1 where a member learns from the answer."""
        cfg, ensemble = self._cfg, self.ensemble
        scores = [
            ensemble.scores(part(batch, f"{name}/"), batch[f"{name}_valid"].bool()) for name in ("first", "second")
        ]
        weight = batch["weight"]
        choice = batch["choice"][:, None].expand_as(weight)
        losses = preference_loss(scores[1] - scores[0], choice, cfg.assumed_error)
        loss = ((weight * losses).sum(0) / weight.sum(0).clamp(min=1)).sum()
        if cfg.shrink:
            steps = batch["first_valid"].sum(1, keepdim=True), batch["second_valid"].sum(1, keepdim=True)
            small = sum((score / count).square().mean(0).sum() for score, count in zip(scores, steps, strict=True))
            loss = loss + cfg.shrink * small
        right = ((scores[1] > scores[0]) == (choice > 0.5)).float().mean()
        one = torch.ones_like(loss)
        return LossOut(loss, {"agreement": right.detach()}, tuple(one * cfg.lr for _ in ensemble.members))


# update


def train_preferences(
    pairs: AnsweredPairs,
    observation_spec: dict[str, Spec],
    action_spec: Spec,
    cfg: PreferenceTrainingCfg,
    about: dict[str, str | int | float],
) -> LearnedPreferences:
    """Train an ensemble on one part of the answers, and calibrate it on the other.

    Args:
        pairs: answered pairs, those without a preference left out.
        observation_spec: observations that the reward reads.
        action_spec: the sim's action.
        cfg: settings.
        about: origin of the data; stored with the ensemble.

    Raises:
        ConfigError: a setting is out of range, or there are too few answers.
        NumericsError: the loss is not finite.
    """
    cfg.check()
    count = len(pairs.choice)
    rng = np.random.default_rng(cfg.seed)
    order = rng.permutation(count)
    held = round(cfg.held_out * count)
    if count - held < FEWEST:
        raise ConfigError(
            f"{count} pairs have a preference: expected {FEWEST} or more to train on, beside {held} held out"
        )
    learn, judge = pairs.rows(np.sort(order[held:])), pairs.rows(np.sort(order[:held]))
    normalized = {key: _flat(learn, key) for key in observation_spec}
    specs = dict(observation_spec)
    if cfg.with_action:
        specs[TAKEN] = action_spec
        normalized[TAKEN] = np.concatenate([x.action.flatten(0, 1).numpy() for x in (learn.first, learn.second)])
    # a run that learns from answers on the way draws from the global stream, too
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(cfg.seed)
        ensemble = RewardEnsemble.create(
            observation_spec,
            action_spec if cfg.with_action else None,
            normalization(specs, normalized),
            cfg.model,
            cfg.members,
            cfg.form,
        )
    with torch_threads(1):  # the networks are small
        _fit(ensemble, learn, cfg, rng)
        ensemble.eval()
        scale = _scale(ensemble, learn)
        held_out = held_out_answers(ensemble, judge, cfg.assumed_error)
    kept: dict[str, str | int | float] = {"answers": count, "updates": cfg.updates, "seed": cfg.seed, **about}
    return LearnedPreferences(ensemble, scale, held_out, kept, preferences_identity(ensemble, scale, held_out))


def held_out_answers(ensemble: RewardEnsemble, pairs: AnsweredPairs, error: float) -> HeldOutAnswers:
    """Agreement with held-out answers, and calibration of the ensemble's probabilities.

    Args:
        ensemble: the ensemble.
        pairs: the answers; none gives NaN and a temperature of 1.
        error: assumed fraction of answers drawn at random.
    """
    count = len(pairs.choice)
    if count < 2:
        return HeldOutAnswers(count, float("nan"), float("nan"), 1.0)
    logits = (ensemble.segment_scores(pairs.second) - ensemble.segment_scores(pairs.first)).T
    choice = torch.from_numpy(pairs.choice).to(logits.dtype)
    temperature = best_temperature(logits, choice, error)
    probability = torch.zeros(count, dtype=torch.float64)
    even = torch.arange(count) % 2 == 0
    for part_of, other in ((even, ~even), (~even, even)):
        own = best_temperature(logits[:, other], choice[other], error)
        probability[part_of] = ensemble_probability(logits[:, part_of].double(), own, error)
    agreement = float(((probability > 0.5) == (choice > 0.5)).double().mean())
    calibration = calibration_error(probability.numpy(), choice.double().numpy(), bins=5)
    return HeldOutAnswers(count, agreement, calibration, temperature)


def _flat(pairs: AnsweredPairs, key: str) -> NDArray[np.generic]:
    return np.concatenate([one.obs[key].flatten(0, 1).numpy() for one in (pairs.first, pairs.second)])


@torch.no_grad()
def _scale(ensemble: RewardEnsemble, pairs: AnsweredPairs) -> float:
    """Standard deviation of the mean reward over the steps of pairs; at least 1e-6."""
    found: list[Tensor] = []
    for one in (pairs.first, pairs.second):
        rewards = ensemble.step_rewards({k: x.flatten(0, 1) for k, x in one.obs.items()}, one.action.flatten(0, 1))
        found.append(rewards.mean(1)[one.valid.flatten()])
    return max(float(torch.cat(found).std(correction=0)), 1e-6)


def _fit(ensemble: RewardEnsemble, learn: AnsweredPairs, cfg: PreferenceTrainingCfg, rng: np.random.Generator) -> None:
    """Train, and give each member the weights that were best on its fold."""
    count, members = len(learn.choice), cfg.members
    fold = torch.from_numpy(rng.permutation(np.arange(count) % max(members, 2)))
    weight = (fold[:, None] != torch.arange(members)).float()
    choice = torch.from_numpy(learn.choice).float()
    data: dict[str, Tensor] = {"choice": choice, "weight": weight}
    for name, one in (("first", learn.first), ("second", learn.second)):
        data |= {f"{name}/{key}": x for key, x in ensemble.inputs(one.obs, one.action).items()}
        data[f"{name}_valid"] = one.valid.float()
    generator = torch.Generator().manual_seed(cfg.seed)
    engine = Engine(
        PreferenceLoss(ensemble, cfg),
        [ParameterGroup(f"ensemble.members.{number}.", cfg.max_grad_norm) for number in range(members)],
        minibatch=min(cfg.batch, count),
        mode=cfg.engine,
        eps=1e-8,
    )
    best = [float("inf")] * members
    kept: list[dict[str, Tensor]] = [{} for _ in range(members)]
    for begin in range(0, cfg.updates, cfg.check_every):
        updates = min(cfg.check_every, cfg.updates - begin)
        drawn = torch.randint(count, (updates * engine.minibatch,), generator=generator)
        engine.run(data, drawn, count, "preferences")
        logits = ensemble.segment_scores(learn.second) - ensemble.segment_scores(learn.first)
        losses = preference_loss(logits, choice[:, None].expand_as(logits), cfg.assumed_error)
        for number, member in enumerate(ensemble.members):
            loss = float(losses[weight[:, number] == 0, number].mean())
            if loss < best[number]:
                best[number] = loss
                kept[number] = {name: value.clone() for name, value in member.state_dict().items()}
    for member, weights in zip(ensemble.members, kept, strict=True):
        member.load_state_dict(weights)
