"""PPO on Gaussian policies (Schulman et al. 2017), from scratch or from a clone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robotrl.algos.learner import Setup, descend
from robotrl.algos.on_policy import Batch, check_settings, make_batch, minibatches, summary
from robotrl.checkpoint import generator_state, set_generator_state
from robotrl.errors import CapabilityError, out_of_range
from robotrl.fn.chain import normal_log_prob
from robotrl.fn.loss import PolicyLoss, ppo_clip, value_mse
from robotrl.loop import Collector, Decision
from robotrl.policies.base import ACTION
from robotrl.policies.value import ValueNet
from robotrl.spec import HasLogProb, Spec, VecSim
from robotrl.transforms import Affine, Clip, TransformGroup, bounds_to_unit, inverse, normalize


@dataclass(frozen=True)
class PpoCfg:
    """Settings of PPO."""

    env_steps: int = 1_000_000
    """Budget of env steps, all envs counted; rounded up to whole iterations."""
    steps_per_env: int = 80
    """Env steps of a rollout in each env."""
    epochs: int = 5
    """Passes over a rollout's decisions."""
    minibatch: int = 480
    """Decisions for each gradient step."""
    lr: float = 3e-4
    """Of the policy."""
    critic_lr: float = 1e-3
    """Of the critic."""
    gamma: float = 0.99
    """Discount of one env step."""
    lam: float = 0.95
    """Lambda of generalised advantage estimation, for each decision."""
    clip_coef: float = 0.2
    """Clip range of the ratio of a whole chunk's probability."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    target_kl: float = 0.03
    """The epochs of an iteration end once the approximate KL passes this."""
    critic_warmup: int = 2
    """First iterations that train the critic alone; useful from a clone."""
    grad_norm: float = 1.0
    """Gradients are clipped to this norm, actor and critic each for itself."""
    normalise_steps: int = 64
    """From scratch: env steps of random actions in each env, from which the observation's normalisation is taken."""

    def build(self, setup: Setup) -> PpoLearner:
        """The learner."""
        return PpoLearner(self, setup)


# losses


def policy_loss(policy: Any, batch: Batch, rows: Tensor, clip_coef: float) -> PolicyLoss:
    """PPO's clipped surrogate; one ratio for each chunk."""
    mean = policy.mean(batch.ctx[rows])
    log_prob = normal_log_prob(batch.record["raw"][rows], mean, policy.log_std.exp().expand_as(mean))
    return ppo_clip(log_prob.flatten(1).sum(1), batch.record["log_prob"][rows], batch.advantage[rows], clip_coef)


# update


class PpoLearner:
    """Trains a Gaussian policy; see `PpoCfg`.

    Raises:
        ConfigError: settings out of range.
        CapabilityError: the policy has no closed-form density.
    """

    def __init__(self, cfg: PpoCfg, setup: Setup) -> None:
        if not cfg.target_kl > 0:
            raise out_of_range("algo.target_kl", cfg.target_kl, "above 0")
        if cfg.normalise_steps < 1:
            raise out_of_range("algo.normalise_steps", cfg.normalise_steps, "1 or more")
        self.cfg = cfg
        torch.manual_seed(setup.seed)
        self.sim = setup.make_sim()
        self._generator = torch.Generator().manual_seed(setup.seed)
        model: Any = setup.init_policy
        if model is None:
            transforms = measure_transforms(self.sim, cfg.normalise_steps, setup.seed)
            model = setup.policy_cfg.build(self.sim.observation_spec, self.sim.action_spec, transforms)
        if not isinstance(model, HasLogProb):
            raise CapabilityError(f"policy {type(model).__name__} lacks HasLogProb: PPO needs a Gaussian policy")
        self.policy: Any = model
        self.policy.control_dt_s = self.sim.control_dt_s
        check_settings(cfg, self.policy.horizon)
        self.critic = ValueNet(self.policy.context_width)
        self._actor_parameters = list(self.policy.parameters())
        self._actor_optimizer = torch.optim.Adam(self._actor_parameters, lr=cfg.lr)
        self._critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=cfg.critic_lr)
        self._collector = Collector(self.sim, self.policy.horizon, cfg.gamma)
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
        batch = make_batch(rollout, self.policy.encode, self.critic, cfg.gamma, cfg.lam)
        scalars = {
            "rollout_success": float(rollout.episodes.float().mean()) if len(rollout.episodes) else math.nan,
            "rollout_episodes": float(len(rollout.episodes)),
            "rollout_reward": float(rollout.reward[rollout.valid].mean()),
            "explained_variance": batch.explained_variance,
            "value_target": float(batch.value_target.mean()),
        }
        self._iteration += 1
        updates: list[dict[str, float]] = []
        train_actor = self._iteration > cfg.critic_warmup
        for _ in range(cfg.epochs):
            for rows in minibatches(len(batch.advantage), cfg.minibatch, self._generator):
                updates.append(self._update(batch, rows, train_actor))
                train_actor = train_actor and updates[-1]["approx_kl"] <= cfg.target_kl
        scalars |= summary(updates)
        scalars["std"] = float(self.policy.log_std.detach().exp().mean())
        return {name: value for name, value in scalars.items() if math.isfinite(value)}

    @torch.no_grad()
    def _decide(self, obs: dict[str, Tensor]) -> Decision:
        raw = self.policy.draw(obs, self._generator)
        log_prob = self.policy.log_prob(obs, raw).flatten(1).sum(1)
        return Decision(self.policy.to_actions(raw), {"raw": raw, "log_prob": log_prob})

    def _update(self, batch: Batch, rows: Tensor, train_actor: bool) -> dict[str, float]:
        cfg = self.cfg
        value_loss = value_mse(self.critic(batch.ctx[rows]), batch.value_target[rows])
        where = f"iteration {self._iteration}:"
        descend(
            self._critic_optimizer, value_loss, list(self.critic.parameters()), cfg.grad_norm, f"{where} value_loss"
        )
        scalars = {"value_loss": float(value_loss.detach())}
        if train_actor:
            out = policy_loss(self.policy, batch, rows, cfg.clip_coef)
            # the entropy of a Gaussian is its log-deviation up to a constant
            loss = out.loss - cfg.entropy_coef * self.policy.log_std.sum()
            descend(self._actor_optimizer, loss, self._actor_parameters, cfg.grad_norm, f"{where} pg_loss")
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
            "policy": self.policy.state_dict(),
            "critic": self.critic.state_dict(),
            "actor_optimizer": self._actor_optimizer.state_dict(),
            "critic_optimizer": self._critic_optimizer.state_dict(),
            "generator": generator_state(self._generator),
            "collector": self._collector.state(),
            "iteration": self._iteration,
        }

    def load(self, state: dict[str, Any]) -> None:
        """See `Learner.load`."""
        self.policy.load_state_dict(state["policy"])
        self.critic.load_state_dict(state["critic"])
        self._actor_optimizer.load_state_dict(state["actor_optimizer"])
        self._critic_optimizer.load_state_dict(state["critic_optimizer"])
        set_generator_state(self._generator, state["generator"])
        self._collector.load(state["collector"])
        self._iteration = int(state["iteration"])


def measure_transforms(sim: VecSim, steps: int, seed: int) -> TransformGroup:
    """Normalisation for a policy without demonstrations: what random actions show, then never changed.

    The sim is reset and stepped; these steps are not training steps.
    """
    collector = Collector(sim, 1, 1.0)
    collector.reset(seed)
    generator = torch.Generator().manual_seed(seed)
    to_unit = bounds_to_unit(ACTION, sim.action_spec.low, sim.action_spec.high)
    from_unit = inverse(to_unit)
    scale, offset = torch.tensor(from_unit.scale), torch.tensor(from_unit.offset)

    def random_actions(obs: dict[str, Tensor]) -> Decision:
        n = len(next(iter(obs.values())))
        unit = 2 * torch.rand((n, 1, sim.action_spec.shape[0]), generator=generator) - 1
        return Decision(unit * scale + offset, {})

    seen = collector.collect(random_actions, steps).obs
    inputs = [_normalizer(key, spec, seen[key]) for key, spec in sim.observation_spec.items()]
    return TransformGroup(tuple(inputs), (from_unit, Clip(ACTION, sim.action_spec.low, sim.action_spec.high)))


def _normalizer(key: str, spec: Spec, seen: Tensor) -> Affine:
    flat = seen.reshape(-1, *spec.shape).double()
    return normalize(key, flat.mean(0).tolist(), flat.std(0, unbiased=False).tolist(), floor=1e-3)
