"""Group-relative policy optimisation of policies that say tokens, as SimpleVLA-RL has it (Li et al. 2025, 2509.09674).

Episodes come in groups from one start. What an episode is worth is how much better it went than the others of its
group; all of its tokens up to its end share that. Groups in which nearly all or nearly none succeed teach little:
others are drawn in their place. There is no critic, no reference policy and no entropy bonus.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from robotrl.algos.engine import Context, Engine, EngineMode, Group, LossModule, LossOut
from robotrl.algos.learner import Setup, SimLearner
from robotrl.algos.on_policy import epoch_order, finite
from robotrl.algos.rows import part
from robotrl.checkpoint import generator_state, set_generator_state
from robotrl.collect import Decision
from robotrl.errors import CapabilityError, ConfigError, check_number, out_of_range
from robotrl.fn import tokens
from robotrl.fn.advantage import group_relative
from robotrl.fn.loss import weighted_clip
from robotrl.group_rollout import GroupCollector, Trajectories, chosen, together
from robotrl.spec import HasTokens


@dataclass(frozen=True)
class GrpoCfg:
    """Settings of GRPO; clip range, limits of success and group size are SimpleVLA-RL's."""

    iterations: int = 60
    """Rollouts, each with its updates."""
    group_size: int = 8
    """G, episodes from one start; divides the sim's envs."""
    groups: int = 16
    """Rollouts are repeated until so many groups are kept."""
    tries: int = 6
    """Rollouts of one iteration at most; then it learns from the groups that it has."""
    keep_low: float = 0.1
    """Groups are kept whose success rate is not below this ..."""
    keep_high: float = 0.9
    """... nor above this."""
    minibatch: int = 128
    """Decisions for each update."""
    epochs: int = 1
    """Passes over the kept decisions."""
    clip_low: float = 0.2
    """The ratio of a token is clipped to 1 less this ..."""
    clip_high: float = 0.28
    """... and to 1 and this."""
    lr: float = 1e-4
    """Of Adam."""
    grad_norm: float = 1.0
    """Gradients are clipped to this norm."""
    engine: EngineMode = "eager"
    """How updates are computed; see docs/engine.md."""

    def build(self, setup: Setup) -> GrpoLearner:
        """The learner."""
        return GrpoLearner(self, setup)


# loss


class GrpoLoss(LossModule):
    """The clipped surrogate over tokens, each episode counting as much as any other.

    Args:
        policy: what learns.
        cfg: settings.
    """

    def __init__(self, policy: nn.Module, cfg: GrpoCfg) -> None:
        super().__init__()
        self.policy: Any = policy
        self._cfg = cfg

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`."""
        cfg, policy = self._cfg, self.policy
        logits = policy.token_logits(policy.encode(part(batch, "obs/")), batch["tokens"])
        log_prob = tokens.log_prob(logits, batch["tokens"], policy.temperature)
        advantage = batch["advantage"][:, None, None].expand_as(log_prob)
        out = weighted_clip(log_prob, batch["log_prob"], advantage, batch["weight"], cfg.clip_low, cfg.clip_high)
        info = {"approx_kl": out.approx_kl, "clip_fraction": out.clip_fraction, "ratio_error": out.ratio_error}
        with torch.no_grad():
            info["entropy"] = tokens.entropy(logits, policy.temperature).mean()
        lr = torch.tensor(cfg.lr, dtype=logits.dtype, device=logits.device)
        return LossOut(out.loss, info, (lr,), context.carry)


def token_weights(valid: Tensor, episode: Tensor, episodes: int, action: int) -> Tensor:
    """(D, H, A) weights whose weighted sum, averaged over D, is the mean over episodes of the mean over their tokens.

    Args:
        valid: (D, H) actions that were carried out.
        episode: (D,) whose they are.
        episodes: N.
        action: A.
    """
    count = torch.zeros(episodes).index_add_(0, episode, valid.float().sum(dim=1)) * action
    weight = valid.float() * (len(valid) / (episodes * count[episode]))[:, None]
    return weight[..., None].expand(-1, -1, action)


# update


class GrpoLearner(SimLearner):
    """Fine-tunes a policy that says tokens; see `GrpoCfg`.

    Raises:
        ConfigError: settings out of range, no policy to start from, or envs that make no whole groups.
        CapabilityError: the policy says no tokens, or the sim's starts are not numbered.
    """

    def __init__(self, cfg: GrpoCfg, setup: Setup) -> None:
        _check(cfg)
        self.cfg = cfg
        torch.manual_seed(setup.seed)
        policy: Any = setup.init_policy
        if policy is None:
            raise ConfigError(
                "init_from is not given: GRPO starts from a policy that succeeds now and then; expected a run, e.g. of"
                " tabletop-bc-token"
            )
        if not isinstance(policy, HasTokens):
            raise CapabilityError(
                f"policy {type(policy).__name__} lacks HasTokens: GRPO needs the probability of each token"
            )
        self.policy: Any = policy
        sim = setup.make_sim()
        self._stepper = self._collector = GroupCollector(sim, cfg.group_size, setup.seed)
        self.policy.control_dt_s = sim.control_dt_s
        self._engine = Engine(
            GrpoLoss(self.policy, cfg),
            (Group("policy.", cfg.grad_norm),),
            minibatch=cfg.minibatch,
            carry=torch.zeros(1),
            mode=cfg.engine,
            updates_per_call=1,
        )
        self._generator = torch.Generator().manual_seed(setup.seed)
        self.iterations = cfg.iterations

    def iterate(self) -> dict[str, float]:
        """Rollouts until enough groups are kept, then the updates."""
        cfg = self.cfg
        parts: list[Trajectories] = []
        rates: list[Tensor] = []
        kept = tries = 0
        while kept < cfg.groups and tries < cfg.tries:
            found = self._collector.collect(self._decide, self._collector.draw())
            rate = found.success.view(-1, cfg.group_size).float().mean(dim=1)
            good = torch.nonzero((rate >= cfg.keep_low) & (rate <= cfg.keep_high))[:, 0]
            rates.append(rate)
            kept, tries = kept + len(good), tries + 1
            if len(good):
                parts.append(chosen(found, good, cfg.group_size))
        scalars = {
            "rollout_success": float(torch.cat(rates).mean()),
            "groups_drawn": float(sum(map(len, rates))),
            "groups_kept": float(kept),
        }
        return finite(scalars | (self._update(together(parts)) if parts else {}))

    @torch.no_grad()
    def _decide(self, obs: dict[str, Tensor]) -> Decision:
        policy = self.policy
        ctx = policy.encode({key: obs[key] for key in policy.observation_spec})
        said = policy.sample_tokens(ctx, self._generator, "sample")
        return Decision(policy.to_actions(policy.from_tokens(said)), {"tokens": said})

    def _update(self, found: Trajectories) -> dict[str, float]:
        cfg = self.cfg
        reward = found.success.float().view(-1, cfg.group_size)
        obs = {f"obs/{key}": found.obs[key] for key in self.policy.observation_spec}
        rows = {
            **obs,
            "tokens": found.record["tokens"],
            "log_prob": self._log_prob(found),
            "advantage": group_relative(reward).flatten()[found.episode],
            "weight": token_weights(found.valid, found.episode, len(found.success), self.policy.action_width),
        }
        size = len(found.episode)
        order = epoch_order(size, cfg.minibatch, cfg.epochs, self._generator, keep_all=True)
        updates = self._engine.run(rows, order, size, f"env step {self.env_steps}")
        means = updates.mean()
        return {**means, "ratio_error": float(updates.info["ratio_error"][0]), "decisions": float(size)}

    @torch.no_grad()
    def _log_prob(self, found: Trajectories) -> Tensor:
        """(D, H, A) under the policy that acted, computed as the loss computes it."""
        out: list[Tensor] = []
        for begin in range(0, len(found.episode), self.cfg.minibatch):
            some = slice(begin, begin + self.cfg.minibatch)
            ctx = self.policy.encode({key: found.obs[key][some] for key in self.policy.observation_spec})
            said = found.record["tokens"][some]
            out.append(tokens.log_prob(self.policy.token_logits(ctx, said), said, self.policy.temperature))
        return torch.cat(out)

    def state(self) -> dict[str, Any]:
        """See `Learner.state`."""
        return {
            "policy": self.policy.state_dict(),
            "engine": self._engine.state(),
            "generator": generator_state(self._generator),
            "collector": self._collector.state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """See `Learner.load`."""
        self.policy.load_state_dict(state["policy"])
        self._engine.load(state["engine"])
        set_generator_state(self._generator, state["generator"])
        self._collector.load(state["collector"])


def _check(cfg: GrpoCfg) -> None:
    for name in ("iterations", "groups", "tries", "minibatch", "epochs"):
        if getattr(cfg, name) < 1:
            raise out_of_range(f"algo.{name}", getattr(cfg, name), "1 or more")
    for name in ("lr", "grad_norm", "clip_low", "clip_high"):
        if not 0 < getattr(cfg, name) < math.inf:
            raise out_of_range(f"algo.{name}", getattr(cfg, name), "above 0")
    for name in ("keep_low", "keep_high"):
        check_number(f"algo.{name}", getattr(cfg, name), 0.0, 1.0)
    if cfg.keep_low > cfg.keep_high:
        raise ConfigError(f"algo.keep_low is {cfg.keep_low}: expected at most keep_high, {cfg.keep_high}")
