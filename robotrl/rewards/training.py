"""Trains and calibrates a success classifier on labelled observations.

The episodes are split into three parts: for training, for the choice of the threshold, and for its error rates. Rates
measured on the episodes of the choice would be too optimistic.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from robotrl.engine.engine import Context, Engine, EngineMode, LossModule, LossOut, ParameterGroup
from robotrl.engine.minibatches import part
from robotrl.errors import check_at_least, check_positive
from robotrl.fn.schedule import cosine
from robotrl.rewards.calibration import Rates, choose_threshold, held, just_before, peaks, rates
from robotrl.rewards.classifier import Calibration, TrainedClassifier
from robotrl.rewards.labels import Labeled, split
from robotrl.rewards.network import ImageRewardNet, RewardNet, RewardNetCfg, normalization
from robotrl.rewards.stored import identity_of
from robotrl.spec import Spec


@dataclass(frozen=True)
class TrainingCfg:
    """Settings of a success classifier's training."""

    model: RewardNetCfg = field(default_factory=RewardNetCfg)
    updates: int = 1000
    """Number of gradient steps."""
    batch: int = 256
    """Frames per gradient step, half of them successes."""
    lr: float = 1e-3
    """Peak learning rate of Adam; it decays along a half cosine to a tenth."""
    max_grad_norm: float = 1.0
    """Maximum gradient norm."""
    max_false_positive: float = 0.02
    """Bound on the fraction of episodes with a false alarm, for which the threshold is chosen."""
    min_threshold: float = 0.5
    """Lower bound of the threshold."""
    steps: int = 1
    """Number of consecutive steps above the threshold that make a success. Use 1 if episodes end at success."""
    grace: int = 0
    """Frames up to this many steps before a success are left out of training, and a success reported there counts as a
    hit, not as a false alarm: for tasks whose last step before success looks like a success."""
    shares: tuple[float, float, float] = (0.5, 0.25, 0.25)
    """Fractions of the episodes for training, for the choice of the threshold, and for the error rates."""
    engine: EngineMode = "eager"
    """Execution mode of updates; compiling takes longer than these few updates of a small network."""
    seed: int = 0
    """Seed of the weights, the split of the episodes and the minibatches."""


# losses


def balanced_bce(logits: Tensor, success: Tensor) -> Tensor:
    """Binary cross-entropy with equal total weights of successes and other frames.

    Args:
        logits: (B,).
        success: (B,) 1 or 0; both must occur.
    """
    each = F.binary_cross_entropy_with_logits(logits, success, reduction="none")
    positive = (each * success).sum() / success.sum()
    negative = (each * (1 - success)).sum() / (1 - success).sum()
    return (positive + negative) / 2


class ClassifierLoss(LossModule):
    """`balanced_bce` of a classifier; the carry counts the updates."""

    def __init__(self, model: RewardNet, cfg: TrainingCfg) -> None:
        super().__init__()
        self.model = model
        self._lr, self._updates = cfg.lr, cfg.updates

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule.forward`; batch: "obs/KEY" (M, ...), "success" (M,) 1 or 0."""
        logits, success = self.model(part(batch, "obs/")), batch["success"]
        right = ((logits > 0) == (success > 0.5)).float().mean()
        lr = self._lr * cosine(context.carry["updates"] / self._updates)
        return LossOut(
            balanced_bce(logits, success),
            {"accuracy": right.detach()},
            (lr,),
            {"updates": context.carry["updates"] + 1},
        )


# update


def train_classifier(
    labeled: Labeled, observation_spec: dict[str, Spec], cfg: TrainingCfg, about: dict[str, str | int | float]
) -> TrainedClassifier:
    """Train on one part of the episodes, choose the threshold on another, and measure error rates on the third.

    Args:
        labeled: episodes of the kind that the classifier will be used on, failures included.
        observation_spec: specs of the arrays.
        cfg: settings.
        about: origin of the data; stored with the classifier.

    Raises:
        ConfigError: a setting out of range, or too few episodes.
        NumericsError: the loss is not finite.
    """
    for name, count, least in (
        ("updates", cfg.updates, 1),
        ("batch", cfg.batch, 2),
        ("steps", cfg.steps, 1),
        ("grace", cfg.grace, 0),
    ):
        check_at_least(name, count, least)
    for name, value in (("lr", cfg.lr), ("max_grad_norm", cfg.max_grad_norm)):
        check_positive(name, value)
    learn, choose, measure = split(labeled, cfg.shares, cfg.seed)
    # fail before training if the bound cannot be guaranteed
    choose_threshold(np.zeros(choose.num_episodes), cfg.max_false_positive, cfg.min_threshold)
    torch.manual_seed(cfg.seed)
    model = ImageRewardNet(observation_spec, normalization(observation_spec, learn.obs), cfg.model)
    _fit(model, learn, cfg)
    score = scores(model, choose, cfg.steps)
    wrong = ~choose.success & ~just_before(choose.success, choose.episode, cfg.grace)
    threshold = choose_threshold(peaks(score, wrong, choose.episode), cfg.max_false_positive, cfg.min_threshold)
    found = measured(model, measure, threshold, cfg.steps, cfg.grace)
    calibration = Calibration(threshold, cfg.steps, cfg.grace, cfg.max_false_positive, choose.num_episodes, found)
    kept = {"updates": cfg.updates, "seed": cfg.seed, "episodes": labeled.num_episodes, **about}
    return TrainedClassifier(model, calibration, kept, identity_of(model, calibration))


def scores(model: RewardNet, labeled: Labeled, steps: int) -> NDArray[np.float64]:
    """Scores (F,) to compare with the threshold: the lowest of the last `steps` probabilities of each frame."""
    return held(model.probability(labeled.tensors()).numpy(), labeled.episode, steps)


def measured(model: RewardNet, labeled: Labeled, threshold: float, steps: int, grace: int) -> Rates:
    """Error rates on labelled episodes; see `rates`."""
    return rates(scores(model, labeled, steps), labeled.success, labeled.episode, threshold, grace)


def _fit(model: RewardNet, learn: Labeled, cfg: TrainingCfg) -> None:
    generator = torch.Generator().manual_seed(cfg.seed)
    success = torch.from_numpy(learn.success)
    near = torch.from_numpy(just_before(learn.success, learn.episode, cfg.grace))
    halves: list[Tensor] = []
    for rows, count in (
        (torch.nonzero(success).squeeze(1), cfg.batch // 2),
        (torch.nonzero(~success & ~near).squeeze(1), cfg.batch - cfg.batch // 2),
    ):
        drawn = torch.randint(len(rows), (cfg.updates, count), generator=generator)
        halves.append(rows[drawn])
    engine = Engine(
        ClassifierLoss(model, cfg),
        [ParameterGroup("model.", cfg.max_grad_norm)],
        minibatch=cfg.batch,
        carry={"updates": 0.0},
        mode=cfg.engine,
    )
    data = {**{f"obs/{key}": value for key, value in learn.tensors().items()}, "success": success.float()}
    engine.run(data, torch.cat(halves, dim=1).reshape(-1), len(success), "success classifier")
