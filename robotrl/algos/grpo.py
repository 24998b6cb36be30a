"""Group-relative policy optimization of autoregressive policies, as in SimpleVLA-RL (Li et al. 2025, 2509.09674).

Episodes come in groups with the same initial state. The advantage of an episode is its reward relative to its group,
and all its decisions share it. Groups in which nearly all or nearly no episodes succeed teach little and are replaced
by new ones. There is no critic, no reference policy and no entropy bonus. `robotrl.algos.flow_grpo` is the variant for
flow policies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from robotrl.engine.engine import Context, LossModule, LossOut
from robotrl.engine.minibatches import part
from robotrl.errors import (
    ConfigError,
    check_at_least,
    check_number,
    check_positive,
    out_of_range,
    unknown,
)
from robotrl.fn.advantage import group_relative
from robotrl.fn.loss import weighted_clip
from robotrl.fn.progress.srpo import progress_reward
from robotrl.fn.schedule import warmed
from robotrl.learners.collection.older_policy import correction
from robotrl.learners.episode_encoders import OF_RUN
from robotrl.learners.episodes import EpisodeActing, EpisodeCfg, EpisodeLearner, likelihood, log_prob_of
from robotrl.learners.learner import Setup
from robotrl.learners.on_policy import finite
from robotrl.learners.parts import Part
from robotrl.learners.token_policy import TokenActing
from robotrl.registry import ENCODERS
from robotrl.rollout.groups import LOG_PROB, Trajectories, chosen, some_of, together
from robotrl.spec import HasScenarios, reads
from robotrl.utils.batched import in_parts

Progress = Literal["none", "embedding", "return"]
PROGRESS: tuple[Progress, ...] = ("none", "embedding", "return")
Keep = Literal["success", "reward"]
KEEP: tuple[Keep, ...] = ("success", "reward")
Embed = Literal["mean", "end"]
EMBED: tuple[Embed, ...] = ("mean", "end")


@dataclass(frozen=True)
class GrpoCfg(EpisodeCfg):
    """Settings of GRPO; clip range, success limits and group size are SimpleVLA-RL's."""

    default_policy: ClassVar[str] = "token-vla"
    corrects_staleness: ClassVar[bool] = True
    group_size: int = 8
    """G, episodes per group, from the same initial state; divides the sim's envs."""
    groups: int = 16
    """Number of groups per iteration; rollouts are repeated until this many are kept."""
    tries: int = 6
    """Maximum number of rollouts per iteration; then it learns from the groups that it has."""
    keep_low: float = 0.1
    """Lowest success rate of a kept group, with `keep_by` "success"."""
    keep_high: float = 0.9
    """Highest success rate of a kept group, with `keep_by` "success"."""
    keep_by: Keep = "success"
    """Criterion of kept groups: "success" keeps those between `keep_low` and `keep_high`; "reward" (with progress)
    drops only those in which all succeed or all rewards are equal, so that groups of failures teach, too."""
    progress: Progress = "none"
    """Reward of episodes: "none", 0 for a failure and 1 for a success; "embedding", for a failure its similarity to
    successes of its task (SRPO); "return", the sum of the sim's rewards for all episodes."""
    encoder: str = field(default="policy", metadata=reads("policy", prefix=OF_RUN))
    """Encoder of episodes for `progress` "embedding": "policy", the policy's own vision encoder at the start of the
    run; or a row of `robotrl list encoders`, e.g. "run:PATH" for another policy's."""
    embed: Embed = "mean"
    """Features of an episode: "mean" over its decisions, as published, or "end", the last decision's."""
    progress_cap: float = 0.6
    """Maximum reward of a failure, with `progress` "embedding"."""
    progress_steepness: float = 10.0
    """Steepness of the sigmoid from an episode's distance to its reward, with `progress` "embedding"."""
    correlation: float = 0.0
    """Correlation of an episode's action noise from one control step to the next, as normal scores. Each action still
    has its own distribution; correlated noise leads somewhere before the policy corrects it (colored noise, Hollenstein
    et al. 2024, 2312.11091, for Gaussian policies). 0: independent noise, as published."""
    clip_low: float = 0.2
    """Lower clip range: the ratio of a token is clipped to at least 1 minus this."""
    clip_high: float = 0.28
    """Upper clip range: the ratio of a token is clipped to at most 1 plus this."""
    warmup: int = 20
    """Updates of linear learning-rate warmup, so that Adam's noisy first steps do not undo the pretraining."""

    @property
    def reads_rewards(self) -> bool:
        """True if it learns from the sim's rewards, not only from success."""
        return self.progress == "return"

    def beside(self, policy: Any) -> list[Any]:
        """See `LearnerCfg.beside`."""
        if self.progress != "embedding" or not (self.encoder == "policy" or self.encoder.startswith(OF_RUN)):
            return []
        return [policy.vision_encoder() if self.encoder == "policy" else self.encoder.removeprefix(OF_RUN)]

    def check(self) -> None:
        """See `LearnerCfg.check`."""
        _check(self)

    def build(self, setup: Setup) -> GrpoLearner:
        """Build the learner."""
        return GrpoLearner(self, setup, "GRPO", TokenActing())


# loss


class GrpoLoss(LossModule):
    """Clipped surrogate loss; each episode has the same weight. The carry is that of `EpisodeLearner`.

    Args:
        policy: the policy in training.
        acting: interface of the policy kind.
        cfg: settings.
    """

    largest: ClassVar[frozenset[str]] = frozenset({"ratio_error"})

    def __init__(self, policy: nn.Module, acting: EpisodeActing, cfg: GrpoCfg) -> None:
        super().__init__()
        self.policy: Any = policy
        self._acting, self._cfg = acting, cfg

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`."""
        cfg = self._cfg
        log_prob, entropy = likelihood(self._acting, self.policy, part(batch, "obs/"), batch, cfg.bf16)
        advantage = batch["advantage"].view(-1, *[1] * (log_prob.dim() - 1)).expand_as(log_prob)
        out = weighted_clip(log_prob, batch["log_prob"], advantage, batch["weight"], cfg.clip_low, cfg.clip_high)
        info = {"approx_kl": out.approx_kl, "clip_fraction": out.clip_fraction, "ratio_error": out.ratio_error}
        if entropy is not None:
            info["entropy"] = entropy
        done, scale = context.carry["updates"], context.carry["lr_scale"]
        lr = cfg.lr * (warmed(done, cfg.warmup) * scale).to(log_prob.dtype)
        return LossOut(out.loss, info, (lr,), {"updates": done + 1, "lr_scale": scale})


# update


class GrpoLearner(EpisodeLearner):
    """Fine-tunes a policy by GRPO; see `GrpoCfg` and `EpisodeLearner`."""

    caches = True

    def __init__(self, cfg: GrpoCfg, setup: Setup, method: str, acting: EpisodeActing) -> None:
        _check(cfg)
        self.cfg = cfg
        super().__init__(
            cfg, setup, method, acting, lambda policy: GrpoLoss(policy, acting, cfg), cfg.group_size, cfg.correlation
        )
        self.kept = setup.kept(self.model, cfg.microbatch or cfg.minibatch, cfg.bf16)
        self._encoder: Any = None
        most = cfg.tries * (self.sim.num_envs // cfg.group_size)
        if cfg.groups > most:
            raise out_of_range(
                "algo.groups",
                cfg.groups,
                f"{most} or fewer, which algo.tries x sim.num_envs / algo.group_size can draw",
            )
        if cfg.progress == "embedding":
            make = ENCODERS.load(cfg.encoder)
            self._encoder = make(self.model, self.sim.observation_spec).to(setup.device).requires_grad_(False).eval()

    def improve(self) -> dict[str, float]:
        """Run rollouts until enough groups are kept, then the updates; returns scalars to log."""
        cfg = self.cfg
        parts: list[Trajectories] = []
        won: list[Tensor] = []
        off: list[Tensor] = []
        kept = tries = 0
        while kept < cfg.groups and tries < cfg.tries:
            trajectories = self._collector.episodes()
            rate = success_rate(trajectories, cfg.group_size)
            worth = self._worth(rate)
            won.append(trajectories.success)
            off.append(trajectories.cut)
            kept, tries = kept + int(worth.sum()), tries + 1
            # groups of successes have no gradient, but serve as reference successes for the progress reward
            shown = worth | (rate == 1) if self._encoder is not None and cfg.keep_by == "reward" else worth
            parts.append(chosen(trajectories, torch.nonzero(shown)[:, 0], cfg.group_size))
        self.count_steps()
        trajectories, reward = self._rewarded(together(parts))
        drawn, groups = (self.world.total(count) for count in (sum(map(len, won)) // cfg.group_size, len(reward)))
        scalars = {
            "rollout_success": float(torch.cat(won).float().mean()),
            "rollout_cut": float(torch.cat(off).float().mean()),
            "groups_drawn": float(drawn),
            "groups_kept": float(groups),
            **self._collector.scalars(),
        }
        if groups:
            scalars |= self._update(trajectories, reward)
        return finite(self.world.means(scalars))

    def _worth(self, rate: Tensor) -> Tensor:
        """Return which groups (P,) to keep by their success rates; with `keep_by` "reward", all but full successes."""
        if self.cfg.keep_by == "reward":
            return rate < 1
        return (rate >= self.cfg.keep_low) & (rate <= self.cfg.keep_high)

    def _rewarded(self, trajectories: Trajectories) -> tuple[Trajectories, Tensor]:
        """Return the groups with unequal rewards, and their rewards (P, G); those of episodes cut off do not count."""
        cfg = self.cfg
        reward = trajectories.returned if cfg.progress == "return" else trajectories.success.float()
        if self._encoder is not None and len(reward):
            cap, steepness = cfg.progress_cap, cfg.progress_steepness
            task, embeddings = self._tasks(trajectories.start), self._embedded(trajectories)
            among = ~trajectories.cut
            whole = (embeddings[among], trajectories.success[among], task[among])
            reward[among] = progress_reward(*whole, cap=cap, steepness=steepness)
        reward, off = (x.view(-1, cfg.group_size) for x in (reward, trajectories.cut))
        most, least = (reward.masked_fill(off, end) for end in (-torch.inf, torch.inf))
        good = torch.nonzero(most.amax(dim=1) > least.amin(dim=1))[:, 0]
        return (chosen(trajectories, good, cfg.group_size) if len(good) < len(reward) else trajectories), reward[good]

    def _tasks(self, start: Tensor) -> Tensor:
        """Return (N,) indices of the initial states' scenarios; 0 if the sim has none."""
        if not isinstance(self.sim, HasScenarios):
            return torch.zeros_like(start)
        numbers = [self.sim.scenarios.index(self.sim.scenario_of(int(i))) for i in start]
        return torch.tensor(numbers, device=start.device)

    @torch.no_grad()
    def _embedded(self, trajectories: Trajectories) -> Tensor:
        """Encode episodes to (N, F) features: of the last decision, or the mean over decisions."""
        if self.cfg.embed == "end":
            decisions = torch.arange(len(trajectories.episode), device=trajectories.episode.device)
            last = decisions.new_zeros(len(trajectories.success)).scatter_reduce_(
                0, trajectories.episode, decisions, "amax"
            )
            return in_parts(
                self._encoder, {key: x[last] for key, x in trajectories.obs.items()}, self.cfg.minibatch
            ).float()
        features = in_parts(self._encoder, trajectories.obs, self.cfg.minibatch).float()
        total = features.new_zeros((len(trajectories.success), features.shape[1])).index_add_(
            0, trajectories.episode, features
        )
        return total / torch.bincount(trajectories.episode, minlength=len(total))[:, None]

    def _update(self, trajectories: Trajectories, reward: Tensor) -> dict[str, float]:
        advantage = group_relative(reward, ~trajectories.cut.view_as(reward)).flatten()
        whole = torch.nonzero(~trajectories.cut)[:, 0]
        trajectories, advantage = some_of(trajectories, whole), advantage[whole]
        decisions, episodes = len(trajectories.valid), len(trajectories.success)
        everywhere = self.world.total(decisions), self.world.total(episodes)
        # an episode of any process has the same weight
        share = (everywhere[0] * episodes) / (everywhere[1] * max(decisions, 1))
        weight = self.acting.weights(self.model, trajectories.valid, trajectories.episode, episodes) * share
        obs, record = self.kept(self.seen(trajectories)), self.acting.record(trajectories)
        log_prob = self._log_prob(obs, record) if decisions else weight
        scalars: dict[str, float] = {}
        if LOG_PROB in trajectories.record:
            # those of the policy that acted, which may be an older one: one weight for each ratio
            found = correction(log_prob, trajectories.record[LOG_PROB], counted=weight > 0)
            weight, scalars = weight * found.weight, found.scalars
        rows = {
            **{f"obs/{key}": x for key, x in obs.items()},
            **record,
            "log_prob": log_prob,
            "advantage": advantage[trajectories.episode],
            "weight": weight,
        }
        return scalars | self.learn(rows)

    def parts(self) -> dict[str, Part]:
        """See `Learner.parts`; the encoder is that of the start of the run, not the policy's current one."""
        encoder: dict[str, Part] = {} if self._encoder is None else {"eye": self._encoder}
        return super().parts() | encoder

    def _log_prob(self, obs: dict[str, Tensor], record: dict[str, Tensor]) -> Tensor:
        """Log-probabilities (D, ...) of the decisions under the policy before the update, computed as in the loss."""
        cfg = self.cfg
        return log_prob_of(self.acting, self.model, obs, record, cfg.bf16, cfg.microbatch or cfg.minibatch)


def success_rate(found: Trajectories, size: int) -> Tensor:
    """Success rate (P,) of each group of `size` episodes, without those that were cut off; 0 where all were."""
    whole = ~found.cut.view(-1, size)
    return (found.success.view(-1, size) & whole).sum(dim=1) / whole.sum(dim=1).clamp(min=1)


def _check(cfg: GrpoCfg) -> None:
    for name in ("groups", "tries"):
        check_at_least(f"algo.{name}", getattr(cfg, name), 1)
    for name in ("clip_low", "clip_high"):
        check_positive(f"algo.{name}", getattr(cfg, name))
    check_at_least("algo.group_size", cfg.group_size, 2)
    check_at_least("algo.warmup", cfg.warmup, 0)
    if not 0 <= cfg.correlation < 1:
        raise out_of_range("algo.correlation", cfg.correlation, "0 or more, below 1")
    for name in ("keep_low", "keep_high"):
        check_number(f"algo.{name}", getattr(cfg, name), 0.0, 1.0)
    names = (("keep_by", cfg.keep_by, KEEP), ("progress", cfg.progress, PROGRESS), ("embed", cfg.embed, EMBED))
    for name, value, known in names:
        if value not in known:
            raise unknown(f"algo.{name}", str(value), known)
    ENCODERS.check(cfg.encoder)
    if cfg.progress == "none" and cfg.keep_by == "reward":
        raise ConfigError("algo.keep_by is 'reward' beside algo.progress 'none': expected success, or progress")
    for names, beside, wanted in (
        (("encoder", "embed", "progress_cap", "progress_steepness"), "progress", "embedding"),
        (("keep_low", "keep_high"), "keep_by", "success"),
    ):
        has = getattr(cfg, beside)
        for name in names:
            value = getattr(cfg, name)
            if value != getattr(GrpoCfg, name) and has != wanted:
                raise ConfigError(f"algo.{name} is {value!r} beside algo.{beside} {has!r}: expected {wanted}")
    if not 0 < cfg.progress_cap < 1:
        raise out_of_range("algo.progress_cap", cfg.progress_cap, "above 0, below 1: less than a success")
    check_positive("algo.progress_steepness", cfg.progress_steepness)
    if cfg.keep_low > cfg.keep_high:
        raise ConfigError(f"algo.keep_low is {cfg.keep_low}: expected at most keep_high, {cfg.keep_high}")
