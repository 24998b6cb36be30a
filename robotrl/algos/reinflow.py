"""ReinFlow: PPO through the denoising chain of a flow policy, with learned bounded noise (arXiv 2505.22094).

While it learns, each Euler step of the flow gets Gaussian noise from a small network; the chain then has an exact
likelihood and PPO applies to it. The noise is off at deployment, where the plain ODE runs. As in the published code
the ratio is that of the joint chain density to the power 1 / ((K+1) H A), one for each decision. Two things differ: the
sampler and the likelihood share one time grid (theirs did not), and intermediate points are not clipped.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robotrl.algos.learner import Setup, average_into, descend
from robotrl.algos.on_policy import Batch, check_settings, make_batch, minibatches, summary
from robotrl.checkpoint import generator_state, set_generator_state
from robotrl.collect import Collector, Decision
from robotrl.errors import CapabilityError, ConfigError, out_of_range
from robotrl.fn import chain
from robotrl.fn.loss import PolicyLoss, ppo_clip, value_mse
from robotrl.policies.noise import NoiseNet
from robotrl.policies.value import ValueNet
from robotrl.spec import HasChain


@dataclass(frozen=True)
class ReinFlowCfg:
    """Settings of ReinFlow."""

    env_steps: int = 800_000
    """Budget of env steps, all envs counted; rounded up to whole iterations."""
    steps_per_env: int = 80
    """Env steps of a rollout in each env."""
    epochs: int = 5
    """Passes over a rollout's decisions."""
    minibatch: int = 480
    """Decisions for each gradient step."""
    lr: float = 3e-4
    """Of the flow and of the noise network."""
    critic_lr: float = 1e-3
    """Of the critic."""
    gamma: float = 0.99
    """Discount of one env step."""
    lam: float = 0.95
    """Lambda of generalised advantage estimation, for each decision."""
    clip_coef: float = 0.01
    """Clip range of the ratio."""
    noise_low: float = 0.08
    """Smallest standard deviation of a denoising step, in normalised action units."""
    noise_high: float = 0.20
    """Largest."""
    critic_warmup: int = 2
    """First iterations that train the critic alone."""
    grad_norm: float = 1.0
    """Gradients are clipped to this norm, actor and critic each for itself."""
    entropy_coef: float = 0.0
    """Weight of the chain's mean entropy rate as a bonus."""
    ema: float = 0.0
    """Decay for each gradient step of the averaged weights that are evaluated; 0 evaluates the weights themselves."""

    def build(self, setup: Setup) -> ReinFlowLearner:
        """The learner."""
        return ReinFlowLearner(self, setup)


# losses


def joint_log_prob(log_prob: Tensor) -> Tensor:
    """One number for each chain: (B, K, H, A) summed and divided by (K+1) H A.

    The K+1 counts the start of the chain, whose density is constant and cancels in the ratio.
    """
    steps, horizon, width = log_prob.shape[1:]
    return log_prob.flatten(1).sum(1) / ((steps + 1) * horizon * width)


def policy_loss(policy: HasChain, noise: NoiseNet, batch: Batch, rows: Tensor, clip_coef: float) -> PolicyLoss:
    """PPO's clipped surrogate on the joint density of the chains in `rows`."""
    log_prob = chain.chain_log_prob(policy, batch.ctx[rows], chain.noise_net(noise), batch.record["chain"][rows])
    return ppo_clip(joint_log_prob(log_prob), batch.record["log_prob"][rows], batch.advantage[rows], clip_coef)


def entropy_rate(noise: NoiseNet, ctx: Tensor, steps: int) -> Tensor:
    """Mean entropy of a chain element: that of its Gaussian steps."""
    t = torch.arange(steps, dtype=ctx.dtype) / steps
    std = noise(ctx.repeat_interleave(steps, 0), t.repeat(len(ctx)))
    return (std.log() + 0.5 * math.log(2 * math.pi * math.e)).mean()


# update


class ReinFlowLearner:
    """Fine-tunes a flow policy; see `ReinFlowCfg`.

    Raises:
        ConfigError: no policy to start from, or settings out of range.
        CapabilityError: the policy has no denoising chain.
    """

    def __init__(self, cfg: ReinFlowCfg, setup: Setup) -> None:
        if setup.init_policy is None:
            raise ConfigError(
                "init_from is not given: ReinFlow fine-tunes a flow policy (clone one: peg-insert-bc-flow)"
            )
        if not isinstance(setup.init_policy, HasChain):
            raise CapabilityError(
                f"policy {type(setup.init_policy).__name__} lacks HasChain: ReinFlow needs a flow policy"
            )
        if not 0 < cfg.noise_low < cfg.noise_high:
            raise out_of_range(
                "algo.noise_low, algo.noise_high", (cfg.noise_low, cfg.noise_high), "0 < noise_low < noise_high"
            )
        if not 0 <= cfg.ema < 1:
            raise out_of_range("algo.ema", cfg.ema, "0 or more and below 1")
        check_settings(cfg, setup.init_policy.horizon)
        self.cfg = cfg
        torch.manual_seed(setup.seed)
        self.sim = setup.make_sim()
        self.model: Any = setup.init_policy
        self.model.control_dt_s = self.sim.control_dt_s
        self.policy: Any = copy.deepcopy(self.model) if cfg.ema else self.model
        width, horizon, action = self.model.context_width, self.model.horizon, self.model.action_width
        self.noise = NoiseNet(width, horizon, action, cfg.noise_low, cfg.noise_high)
        self.critic = ValueNet(width)
        self._actor_parameters = [*self.model.parameters(), *self.noise.parameters()]
        self._actor_optimizer = torch.optim.Adam(self._actor_parameters, lr=cfg.lr)
        self._critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=cfg.critic_lr)
        self._generator = torch.Generator().manual_seed(setup.seed)
        self._collector = Collector(self.sim, horizon, cfg.gamma)
        self._collector.reset(setup.seed, {"stagger": True})
        self._iteration = 0
        self.iterations = math.ceil(cfg.env_steps / (cfg.steps_per_env * self.sim.num_envs))

    @property
    def env_steps(self) -> int:
        """Env steps taken so far."""
        return self._collector.env_steps

    def iterate(self) -> dict[str, float]:
        """One rollout and its epochs."""
        cfg = self.cfg
        rollout = self._collector.collect(self._decide, cfg.steps_per_env)
        batch = make_batch(rollout, self.model.encode, self.critic, cfg.gamma, cfg.lam)
        scalars = {
            "rollout_success": float(rollout.episodes.float().mean()) if len(rollout.episodes) else math.nan,
            "rollout_episodes": float(len(rollout.episodes)),
            "explained_variance": batch.explained_variance,
            "value_target": float(batch.value_target.mean()),
        }
        self._iteration += 1
        updates: list[dict[str, float]] = []
        train_actor = self._iteration > cfg.critic_warmup
        for _ in range(cfg.epochs):
            for rows in minibatches(len(batch.advantage), cfg.minibatch, self._generator):
                updates.append(self._update(batch, rows, train_actor))
        scalars |= summary(updates)
        return {name: value for name, value in scalars.items() if math.isfinite(value)}

    @torch.no_grad()
    def _decide(self, obs: dict[str, Tensor]) -> Decision:
        ctx = self.model.encode(obs)
        shape = (len(ctx), self.model.horizon, self.model.action_width)
        start = torch.randn(shape, generator=self._generator)
        drawn = chain.sample(self.model, ctx, chain.noise_net(self.noise), start, self._generator)
        record = {"chain": drawn.x, "log_prob": joint_log_prob(drawn.log_prob)}
        return Decision(self.model.to_actions(drawn.x[:, -1]), record)

    def _update(self, batch: Batch, rows: Tensor, train_actor: bool) -> dict[str, float]:
        cfg = self.cfg
        value_loss = value_mse(self.critic(batch.ctx[rows]), batch.value_target[rows])
        where = f"iteration {self._iteration}:"
        descend(
            self._critic_optimizer, value_loss, list(self.critic.parameters()), cfg.grad_norm, f"{where} value_loss"
        )
        scalars = {"value_loss": float(value_loss.detach())}
        if train_actor:
            out = policy_loss(self.model, self.noise, batch, rows, cfg.clip_coef)
            loss = out.loss
            if cfg.entropy_coef:
                loss = loss - cfg.entropy_coef * entropy_rate(self.noise, batch.ctx[rows], self.model.denoising_steps)
            descend(self._actor_optimizer, loss, self._actor_parameters, cfg.grad_norm, f"{where} pg_loss")
            if cfg.ema:
                average_into(self.policy, self.model, cfg.ema)
            scalars |= {
                "pg_loss": float(out.loss.detach()),
                "approx_kl": float(out.approx_kl),
                "clip_fraction": float(out.clip_fraction),
                "ratio_error": float(out.ratio_error),
            }
        return scalars

    def state(self) -> dict[str, Any]:
        """See `Learner.state`."""
        return {
            "model": self.model.state_dict(),
            "policy": self.policy.state_dict(),
            "noise": self.noise.state_dict(),
            "critic": self.critic.state_dict(),
            "actor_optimizer": self._actor_optimizer.state_dict(),
            "critic_optimizer": self._critic_optimizer.state_dict(),
            "generator": generator_state(self._generator),
            "collector": self._collector.state(),
            "iteration": self._iteration,
        }

    def load(self, state: dict[str, Any]) -> None:
        """See `Learner.load`."""
        self.model.load_state_dict(state["model"])
        self.policy.load_state_dict(state["policy"])
        self.noise.load_state_dict(state["noise"])
        self.critic.load_state_dict(state["critic"])
        self._actor_optimizer.load_state_dict(state["actor_optimizer"])
        self._critic_optimizer.load_state_dict(state["critic_optimizer"])
        set_generator_state(self._generator, state["generator"])
        self._collector.load(state["collector"])
        self._iteration = int(state["iteration"])
