"""Trains a process reward on labelled frames, and evaluates it on held-out episodes.

The network outputs a number in [0, 1], trained by cross-entropy: its minimum is the mean label of similar states. The
label is the progress in a success and 0 at the end of a failure, so that states in which episodes fail get a lower
value, however far they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from robotrl.engine.engine import Context, Engine, EngineMode, LossModule, LossOut, ParameterGroup
from robotrl.engine.minibatches import part
from robotrl.errors import ConfigError, check_at_least, check_positive, out_of_range
from robotrl.fn.progress.metrics import calibration_error, rank_correlation, separation
from robotrl.fn.schedule import cosine
from robotrl.fn.stats import Interval, bootstrap, mean
from robotrl.rewards.grading import Graded, only
from robotrl.rewards.labels import deal
from robotrl.rewards.network import (
    AT_ONCE,
    ImageRewardNet,
    PolicyFeatureRewardNet,
    RewardNet,
    RewardNetCfg,
    normalization,
)
from robotrl.rewards.process_model import AcceptanceThresholds, HeldOutVerdict, ProcessReward
from robotrl.rewards.process_stored import process_identity
from robotrl.spec import Spec
from robotrl.utils.batched import parts

LEAST_JUDGED = 2
"""Minimum number of successful held-out episodes."""


@dataclass(frozen=True)
class ProcessCfg:
    """Settings of a process reward's training."""

    model: RewardNetCfg = field(default_factory=RewardNetCfg)
    """Sizes of the network; with a policy's features, only the hidden layers."""
    updates: int = 1000
    """Number of gradient steps."""
    batch: int = 256
    """Frames per gradient step: each episode is equally likely, and each frame within it."""
    lr: float = 1e-3
    """Peak learning rate of Adam; it decays along a half cosine to a tenth."""
    max_grad_norm: float = 1.0
    """Maximum gradient norm."""
    held_out: float = 0.25
    """Fraction of the episodes held out for evaluation."""
    bar: AcceptanceThresholds = field(default_factory=AcceptanceThresholds)
    """Thresholds that it must reach on them."""
    engine: EngineMode = "eager"
    """Execution mode of updates; compiling takes longer than these few updates of a small network."""
    seed: int = 0
    """Seed of the weights, the split of the episodes and the minibatches."""


class ProcessVerdict(NamedTuple):
    """Evaluation of a network on labelled episodes."""

    verdict: HeldOutVerdict
    families: dict[str, Interval]
    """Rank correlation of progress with time in the successful episodes of each task, by name."""
    episodes: int
    """Number of evaluated episodes."""


class TrainedProcessReward(NamedTuple):
    """A process reward with its training frames and its evaluation."""

    reward: ProcessReward
    learned: Graded
    """Training frames."""
    process_verdict: ProcessVerdict
    """Evaluation on held-out episodes."""


# losses


class ProcessLoss(LossModule):
    """Cross-entropy of a network's outputs and labels in [0, 1]; the carry counts the updates."""

    def __init__(self, net: RewardNet, cfg: ProcessCfg) -> None:
        super().__init__()
        self.net = net
        self._lr, self._updates = cfg.lr, cfg.updates

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule.forward`; batch: "in/KEY" (M, ...) prepared inputs, "progress" (M,)."""
        loss = F.binary_cross_entropy_with_logits(self.net.logit(part(batch, "in/")), batch["progress"])
        lr = self._lr * cosine(context.carry["updates"] / self._updates)
        return LossOut(loss, {}, (lr,), {"updates": context.carry["updates"] + 1})


# update


def train_process(
    found: Graded,
    observation_spec: dict[str, Spec],
    cfg: ProcessCfg,
    about: dict[str, str | int | float],
    policy: Any = None,
) -> TrainedProcessReward:
    """Train on one part of the episodes, and evaluate on the other.

    Args:
        found: labelled episodes, with failures if there are any.
        observation_spec: specs of the arrays.
        cfg: settings.
        about: origin of the data; stored with the process reward.
        policy: policy whose features to use, see `PolicyFeatureRewardNet`; None trains a network from scratch.

    Raises:
        ConfigError: a setting out of range, too few episodes, or arrays that are not the policy's.
        CapabilityError: the policy has no observation encoder.
        NumericsError: the loss is not finite.
    """
    _check(cfg)
    learn, process_verdict = split_graded(found, cfg.held_out, cfg.seed)
    torch.manual_seed(cfg.seed)
    net: RewardNet
    if policy is None:
        net = ImageRewardNet(observation_spec, normalization(observation_spec, learn.obs), cfg.model)
    else:
        net = PolicyFeatureRewardNet(policy, cfg.model.hidden)
        _same(net.observation_spec, observation_spec)
    _fit(net, learn, cfg)
    result = judge(net.eval(), process_verdict, cfg.bar)
    kept = {"updates": cfg.updates, "seed": cfg.seed, "episodes": len(found.success), **about}
    reward = ProcessReward(net, result.verdict, kept, process_identity(net, result.verdict))
    return TrainedProcessReward(reward, learn, result)


def split_graded(found: Graded, held_out: float, seed: int) -> tuple[Graded, Graded]:
    """Split the episodes into training and held-out ones; episodes with the same start state stay together.

    Start states with and without success are split separately, so that both parts get their share of both.

    Raises:
        ConfigError: there are too few episodes.
    """
    won = np.unique(found.start[found.success])
    lost = np.setdiff1d(found.start, won)
    learned, process_verdict = (
        only(found, np.flatnonzero(np.isin(found.start, starts)))
        for starts in deal((won, lost), (1 - held_out, held_out), seed)
    )
    few = not learned.success.any() or process_verdict.success.sum() < LEAST_JUDGED
    if few or (not found.success.all() and (learned.success.all() or process_verdict.success.all())):
        raise ConfigError(
            f"{int(found.success.sum())} successful episodes and {int((~found.success).sum())} failures cannot be dealt"
            f" {1 - held_out:g} to {held_out:g}: expected {LEAST_JUDGED} successes to judge on, one to learn from, and"
            " failures in both parts or in neither; record more episodes"
        )
    return learned, process_verdict


def judge(net: RewardNet, found: Graded, bar: AcceptanceThresholds) -> ProcessVerdict:
    """Evaluate a network on labelled episodes.

    Args:
        net: the network that predicts progress.
        found: held-out episodes, with a success among them.
        bar: the required thresholds.
    """
    said = net.probability(found.tensors()).numpy()
    last = np.flatnonzero(np.diff(found.episode, append=-1))
    correlations = rank_correlations(said, found)
    verdict = HeldOutVerdict(
        bootstrap(correlations, middle=mean),  # the mean shows a progress that falls in some successes
        None if found.success.all() else separation(said[last[found.success]], said[last[~found.success]]),
        calibration_error(said, found.progress.astype(np.float64)),
        int((~found.success).sum()),
        bar,
    )
    return ProcessVerdict(verdict, family_ranks(correlations, found), len(found.success))


def rank_correlations(said: NDArray[np.float64], found: Graded) -> NDArray[np.float64]:
    """Rank correlations (n,) of the predicted progress (F,) with time, in each of the n successful episodes."""
    own = (said[found.episode == e] for e in np.flatnonzero(found.success))
    return np.array([rank_correlation(rows, np.arange(len(rows), dtype=np.float64)) for rows in own])


def _fit(net: RewardNet, learn: Graded, cfg: ProcessCfg) -> None:
    drawn = frame_draws(learn.episode, cfg.updates * cfg.batch, torch.Generator().manual_seed(cfg.seed))
    engine = Engine(
        ProcessLoss(net, cfg),
        [ParameterGroup("net.", cfg.max_grad_norm)],
        minibatch=cfg.batch,
        carry={"updates": 0.0},
        mode=cfg.engine,
    )
    obs, count = learn.tensors(), len(learn.progress)
    # computed once: the inputs of the trained part do not change
    prepared = [net.prepared(some) for some in parts(obs, AT_ONCE)]
    inputs = {f"in/{key}": torch.cat([some[key] for some in prepared]) for key in prepared[0]}
    engine.run({**inputs, "progress": torch.from_numpy(learn.progress)}, drawn, count, "process reward")


def frame_draws(episode: NDArray[np.int64], count: int, generator: torch.Generator) -> Tensor:
    """Sample (count,) frames: first an episode, uniformly, then one of its frames; a long failure counts once."""
    lengths = torch.from_numpy(np.bincount(episode))
    first = lengths.cumsum(0) - lengths
    chosen = torch.randint(len(lengths), (count,), generator=generator)
    within = torch.rand(count, generator=generator, dtype=torch.float64) * lengths[chosen]
    return first[chosen] + within.long()


def _same(read: dict[str, Spec], shown: dict[str, Spec]) -> None:
    for key, spec in read.items():
        if key not in shown or (shown[key].shape, shown[key].words) != (spec.shape, spec.words):
            has = f"of shape {shown[key].shape}" if key in shown else "not there"
            raise ConfigError(
                f"the policy reads observation {key!r} of shape {spec.shape}: in the datasets it is {has}, or says"
                " other words; expected datasets that show what the policy sees"
            )


def _check(cfg: ProcessCfg) -> None:
    for name, count in (("updates", cfg.updates), ("batch", cfg.batch)):
        check_at_least(name, count, 1)
    for name, value in (("lr", cfg.lr), ("max_grad_norm", cfg.max_grad_norm)):
        check_positive(name, value)
    if not 0 < cfg.held_out < 1:
        raise out_of_range("held_out", cfg.held_out, "above 0 and below 1")
    for name, value, least in (
        ("min_rank", cfg.bar.min_rank, -1.0),
        ("min_separation", cfg.bar.min_separation, 0.0),
        ("max_error", cfg.bar.max_error, 0.0),
    ):
        if not least <= value <= 1:
            raise out_of_range(name, value, f"{least:g} to 1")


def family_ranks(rows: NDArray[np.float64], found: Graded) -> dict[str, Interval]:
    """Mean rank correlation of each task, by name, from those (n,) of the n successful episodes."""
    names = [found.family[e] for e in np.flatnonzero(found.success)]
    return {name: bootstrap(_of(rows, names, name), middle=mean) for name in sorted(set(names))}


def _of(rows: NDArray[np.float64], names: Sequence[str], name: str) -> NDArray[np.float64]:
    return rows[np.array([other == name for other in names])]
