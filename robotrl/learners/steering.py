"""Shared parts of DSRL and DSRL-NA: the steered policy in a sim, its replay and the rows of a loss.

Wagenmaker et al. 2025, 2506.15799. Time is counted in env steps everywhere: a decision is a chunk of H of them, fewer
where its episode ends, and the next value is discounted by gamma to that number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from robotrl.errors import CapabilityError, ConfigError
from robotrl.fn.q_targets import discounted_ones
from robotrl.learners.learner import Setup
from robotrl.learners.off_policy import ActionNormalizer, check_settings, rows_of
from robotrl.policies.q import QEnsemble
from robotrl.policies.steered import SteeredCfg, SteeredPolicy
from robotrl.replay.buffer import Replay
from robotrl.replay.samplers import Sampler
from robotrl.rollout.collector import Collector, Decision
from robotrl.rollout.compatibility import check_fit
from robotrl.run.checkpoint import generator_state, set_generator_state
from robotrl.spec import Arrays, VecSim

NOISE = "noise"
"""Replay column of the noise (H, A) that a chunk was decoded from; NaN at steps where no chunk began."""
UPDATES_PER_CALL = 1
"""Updates per traced graph: decoding makes the graph long, so the cost of one call is small in comparison."""
SATURATED = 0.95
"""Noise beyond this fraction of the bound counts as saturated."""


def shifted(reward: Tensor, steps: Tensor, gamma: float, shift: float) -> Tensor:
    """Add `shift` to the reward of each env step of chunks: rewards (B,) of chunks with (B,) steps."""
    return reward if shift == 0 else reward + shift * discounted_ones(steps, gamma).to(reward.dtype)


def critics(policy: SteeredPolicy, shape: tuple[int, int], cfg: Any, members: int) -> QEnsemble:
    """Build critics with LayerNorm and tanh, as published, of chunks or of noise (H, A)."""
    return QEnsemble(policy.context_width, *shape, members, cfg.critic_hidden, layer_norm=True, activation="tanh")


def saturated(noise: Tensor, bound: float) -> Tensor:
    """Fraction of the noise's elements that are close to the bound."""
    return (noise.abs() > SATURATED * bound).to(noise.dtype).mean()


class Steering:
    """Steered policy in a sim, with its replay buffer, collector and random generator.

    Args:
        cfg: `DsrlCfg` or `DsrlNaCfg`.
        setup: the learner's setup.

    Raises:
        ConfigError: a setting is out of range, or the base policy does not fit the sim.
        CapabilityError: the policy cannot be steered.
    """

    remote = False
    """See `Stepper`."""

    def __init__(self, cfg: Any, setup: Setup) -> None:
        check_settings(cfg)
        self._cfg = cfg
        torch.manual_seed(setup.seed)
        self.sim = setup.make_sim()
        self.policy = steered(setup, self.sim)
        self.unit = ActionNormalizer(self.sim.action_spec)
        self.generator = torch.Generator().manual_seed(setup.seed)
        self._shape = self.policy.base_noise
        self.replay = Replay.create(
            None,
            self.sim.observation_spec,
            self.sim.action_spec,
            streams=self.sim.num_envs,
            capacity=cfg.capacity,
            extras={NOISE: self._shape},
            control_dt_s=self.sim.control_dt_s,
        )
        self._collector = Collector(self.sim, self.policy.horizon, cfg.gamma)
        self._collector.reset(setup.seed, {"stagger": True})
        self.iterations = math.ceil(cfg.env_steps / (cfg.num_steps * self.sim.num_envs))

    @property
    def learned(self) -> int:
        """Number of rounds of updates of a whole run, including those skipped during the warmup."""
        return self.iterations * len(self.rounds())

    @property
    def env_steps(self) -> int:
        """Env steps taken so far, summed over envs."""
        return self._collector.env_steps

    @property
    def sim_s(self) -> float:
        """Seconds spent inside the sim so far."""
        return self._collector.sim_s

    @property
    def warm(self) -> bool:
        """True once `warmup` env steps are taken, so that the actor acts and updates may begin."""
        return self.env_steps >= self._cfg.warmup

    def close(self) -> None:
        """Close the sim."""
        self._collector.close()

    def rounds(self) -> list[int]:
        """Env steps per env of an iteration, split into chunks of the policy's horizon; updates follow each of them."""
        whole, rest = divmod(self._cfg.num_steps, self.policy.horizon)
        return [self.policy.horizon] * whole + [rest] * (rest > 0)

    def collect(self, steps: int) -> tuple[Tensor, Tensor]:
        """Take this many steps in every env; returns success and return of the episodes that ended."""
        out = self._collector.collect_into(self.replay, self.decide, steps)
        return out.episodes, out.returns

    def iterate(self, learn: Callable[[], dict[str, float]]) -> dict[str, float]:
        """Run one iteration: decisions of all envs, each followed by `learn` after the warmup; returns log scalars."""
        episodes, returns, updates = list[Tensor](), list[Tensor](), list[dict[str, float]]()
        for steps in self.rounds():
            ended, gained = self.collect(steps)
            episodes.append(ended)
            returns.append(gained)
            if self.warm:
                updates.append(learn())
        return summary(episodes, returns, updates)

    @torch.no_grad()
    def decide(self, obs: Arrays) -> Decision:
        """Sample chunks from the actor's noise, or, during the warmup, from noise as the base policy samples it.

        The replay keeps the noise itself and the resulting actions, so nothing is decoded twice.
        """
        ctx = self.policy.encode({key: obs[key] for key in self.policy.observation_spec})
        if self.warm:
            noise = self.policy.actor.draw(ctx, self.normal(len(ctx)).to(ctx)).noise
        else:
            noise = self.policy.actor.plain(self.uniform(len(ctx)).to(ctx))
        return Decision(self.policy.to_actions(self.policy.steer(ctx, noise)), {NOISE: noise})

    def rows(self, sampler: Sampler, updates: int) -> dict[str, Tensor]:
        """Sample rows for updates: those of `off_policy.rows_of` with the shifted reward, and "noise" (B, H, A)."""
        cfg = self._cfg
        drawn = sampler.sample(cfg.batch, self.policy.horizon, cfg.gamma, self.generator, updates)
        rows = rows_of(drawn, self.policy.observation_spec, self.unit)
        rows["reward"] = shifted(drawn.reward, drawn.steps, cfg.gamma, cfg.reward_shift)
        return rows | {NOISE: drawn.extras[NOISE]}

    def normal(self, count: int) -> Tensor:
        """Sample standard normal numbers (count, H, A)."""
        return torch.randn((count, *self._shape), generator=self.generator)

    def uniform(self, count: int) -> Tensor:
        """Sample uniform numbers (count, H, A) in [0, 1)."""
        return torch.rand((count, *self._shape), generator=self.generator)

    def state(self) -> dict[str, Any]:
        """State for an exact resume, except the networks.

        Raises:
            ConfigError: the base policy's weights have changed, so that the state would be wrong.
        """
        self.policy.check_base()
        return {
            "collector": self._collector.state(),
            "replay": self.replay.state(),
            "generator": generator_state(self.generator),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`, after the networks.

        Raises:
            ConfigError: the base policy is another one.
        """
        self.policy.check_base()
        self.replay.load(state["replay"])
        self._collector.load(state["collector"])
        set_generator_state(self.generator, state["generator"])


def steered(setup: Setup, sim: VecSim) -> SteeredPolicy:
    """Return the policy to train: the given policy with a noise actor; a policy that is steered already is kept.

    Raises:
        ConfigError: no policy is given, or it was trained for other observations, actions or another rate than the
            sim's.
        CapabilityError: it cannot be steered.
    """
    given: Any = setup.init_policy
    if given is None:
        raise ConfigError("init_from is not given: DSRL steers a policy that was trained before")
    if isinstance(given, SteeredPolicy):
        policy = given
    elif isinstance(setup.policy_cfg, SteeredCfg):
        policy = setup.fresh(given)
    else:
        raise CapabilityError(f"policy config {type(setup.policy_cfg).__name__} builds no noise actor: use SteeredCfg")
    check_fit(policy, sim)
    policy.control_dt_s = sim.control_dt_s
    return policy


def summary(episodes: list[Tensor], returns: list[Tensor], updates: list[dict[str, float]]) -> dict[str, float]:
    """Return the scalars to log of an iteration.

    Args:
        episodes: success of the episodes that ended, per round.
        returns: their returns, without discount and shift.
        updates: means over the updates of each round.
    """
    success, gained = torch.cat(episodes).float(), torch.cat(returns)
    out = {"rollout_episodes": float(len(success))}
    if len(success):
        out |= {"rollout_success": float(success.mean()), "rollout_return": float(gained.mean())}
    names = [name for name in (updates[0] if updates else {}) if name != "loss"]
    return out | {name: sum(u[name] for u in updates) / len(updates) for name in names}
