"""Trains a process reward on graded frames, and judges it on episodes that it has not seen.

What is learned is a number in [0, 1], by cross-entropy against the labels: what minimises it is the mean of the labels
that such states were given. In a success the label is the progress, at the end of a failure it is 0, so that a state in
which episodes end without success is worth less, however far it is.
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
from robotrl.rewards.network import AT_ONCE, ReaderNet, RewardNet, RewardNetCfg, SightNet, normalisation
from robotrl.rewards.process import AcceptanceThresholds, HeldOutVerdict, ProcessReward
from robotrl.rewards.process_stored import process_identity
from robotrl.spec import Spec
from robotrl.utils.batched import parts

LEAST_JUDGED = 2
"""Successful episodes that a verdict needs."""


@dataclass(frozen=True)
class ProcessCfg:
    """Settings of a process reward's training."""

    model: RewardNetCfg = field(default_factory=RewardNetCfg)
    """Size of the network; of one on a policy's reading, the hidden layers alone."""
    updates: int = 1000
    """Gradient steps."""
    batch: int = 256
    """Frames for each: each episode is as likely to be drawn as any other, and each of its frames."""
    lr: float = 1e-3
    """Peak learning rate of Adam; decays with a half cosine to a tenth."""
    max_grad_norm: float = 1.0
    """The gradient is clipped to this norm."""
    held_out: float = 0.25
    """Share of the episodes to judge it on."""
    bar: AcceptanceThresholds = field(default_factory=AcceptanceThresholds)
    """What it must reach on them."""
    engine: EngineMode = "eager"
    """Compiling takes longer than these few updates of a small network."""
    seed: int = 0
    """Seeds the weights, the deal of the episodes and the minibatches."""


class Judged(NamedTuple):
    """What came of judging a network on graded episodes."""

    verdict: HeldOutVerdict
    families: dict[str, Interval]
    """Rank correlation of progress with time in the successful episodes of each family, by name."""
    episodes: int
    """How many it was judged on."""


class TrainedProcessReward(NamedTuple):
    """A process reward, and what it comes from."""

    reward: ProcessReward
    learned: Graded
    """The frames that it was trained on."""
    judged: Judged
    """What it did on the others."""


# losses


class ProcessLoss(LossModule):
    """Cross-entropy of what a network says against labels in [0, 1]; the carry counts the updates."""

    def __init__(self, net: RewardNet, cfg: ProcessCfg) -> None:
        super().__init__()
        self.net = net
        self._lr, self._updates = cfg.lr, cfg.updates

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule.forward`; batch: "in/KEY" (M, ...) what was prepared, "progress" (M,)."""
        loss = F.binary_cross_entropy_with_logits(self.net.logit(part(batch, "in/")), batch["progress"])
        lr = self._lr * cosine(context.carry[0] / self._updates)
        return LossOut(loss, {}, (lr,), context.carry + 1)


# update


def train_process(
    found: Graded,
    observation_spec: dict[str, Spec],
    cfg: ProcessCfg,
    about: dict[str, str | int | float],
    policy: Any = None,
) -> TrainedProcessReward:
    """Train on one part of the episodes, and judge on the other.

    Args:
        found: graded episodes, failures among them if there are any.
        observation_spec: of the graded arrays.
        cfg: settings.
        about: where the data comes from; kept with the process reward.
        policy: whose reading it is to build on, see `ReaderNet`; None trains a network from nothing.

    Raises:
        ConfigError: a setting out of range, too few episodes, or arrays that are not the policy's.
        CapabilityError: the policy cannot be read from.
        NumericsError: the loss is not finite.
    """
    _check(cfg)
    learn, judged = split_graded(found, cfg.held_out, cfg.seed)
    torch.manual_seed(cfg.seed)
    net: RewardNet
    if policy is None:
        net = SightNet(observation_spec, normalisation(observation_spec, learn.obs), cfg.model)
    else:
        net = ReaderNet(policy, cfg.model.hidden)
        _same(net.observation_spec, observation_spec)
    _fit(net, learn, cfg)
    result = judge(net.eval(), judged, cfg.bar)
    kept = {"updates": cfg.updates, "seed": cfg.seed, "episodes": len(found.success), **about}
    reward = ProcessReward(net, result.verdict, kept, process_identity(net, result.verdict))
    return TrainedProcessReward(reward, learn, result)


def split_graded(found: Graded, held_out: float, seed: int) -> tuple[Graded, Graded]:
    """Part the episodes to learn from and those to judge on; episodes from one start stay together.

    Successful starts and others are dealt separately, so that both parts get their share of both.

    Raises:
        ConfigError: there are too few episodes.
    """
    won = np.unique(found.start[found.success])
    lost = np.setdiff1d(found.start, won)
    learned, judged = (
        only(found, np.flatnonzero(np.isin(found.start, starts)))
        for starts in deal((won, lost), (1 - held_out, held_out), seed)
    )
    few = not learned.success.any() or judged.success.sum() < LEAST_JUDGED
    if few or (not found.success.all() and (learned.success.all() or judged.success.all())):
        raise ConfigError(
            f"{int(found.success.sum())} successful episodes and {int((~found.success).sum())} failures cannot be dealt"
            f" {1 - held_out:g} to {held_out:g}: expected {LEAST_JUDGED} successes to judge on, one to learn from, and"
            " failures in both parts or in neither; record more episodes"
        )
    return learned, judged


def judge(net: RewardNet, found: Graded, bar: AcceptanceThresholds) -> Judged:
    """Judge a network on graded episodes.

    Args:
        net: what says the progress.
        found: episodes that it has not learned from, a success among them.
        bar: what it is to reach.
    """
    said = net.probability(found.tensors()).numpy()
    last = np.flatnonzero(np.diff(found.episode, append=-1))
    correlations = rank_correlations(said, found)
    verdict = HeldOutVerdict(
        bootstrap(correlations, middle=mean),  # one that runs backwards in a quarter of successes must show it
        None if found.success.all() else separation(said[last[found.success]], said[last[~found.success]]),
        calibration_error(said, found.progress.astype(np.float64)),
        int((~found.success).sum()),
        bar,
    )
    return Judged(verdict, family_ranks(correlations, found), len(found.success))


def rank_correlations(said: NDArray[np.float64], found: Graded) -> NDArray[np.float64]:
    """(n,) rank correlation with time of what is said (F,), in each of the n successful episodes."""
    own = (said[found.episode == e] for e in np.flatnonzero(found.success))
    return np.array([rank_correlation(rows, np.arange(len(rows), dtype=np.float64)) for rows in own])


def _fit(net: RewardNet, learn: Graded, cfg: ProcessCfg) -> None:
    drawn = frame_draws(learn.episode, cfg.updates * cfg.batch, torch.Generator().manual_seed(cfg.seed))
    engine = Engine(
        ProcessLoss(net, cfg),
        [ParameterGroup("net.", cfg.max_grad_norm)],
        minibatch=cfg.batch,
        carry=torch.zeros(1),
        mode=cfg.engine,
    )
    obs, count = learn.tensors(), len(learn.progress)
    # once, not in every update: what a policy reads does not change
    prepared = [net.prepared(some) for some in parts(obs, AT_ONCE)]
    inputs = {f"in/{key}": torch.cat([some[key] for some in prepared]) for key in prepared[0]}
    engine.run({**inputs, "progress": torch.from_numpy(learn.progress)}, drawn, count, "process reward")


def frame_draws(episode: NDArray[np.int64], count: int, generator: torch.Generator) -> Tensor:
    """(count,) frames: an episode, each as likely as any other, then one of its frames; a long failure is only one."""
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
    """The mean, for each family by name, of the rank correlations (n,) of the n successful episodes."""
    names = [found.family[e] for e in np.flatnonzero(found.success)]
    return {name: bootstrap(_of(rows, names, name), middle=mean) for name in sorted(set(names))}


def _of(rows: NDArray[np.float64], names: Sequence[str], name: str) -> NDArray[np.float64]:
    return rows[np.array([other == name for other in names])]
