"""What the two DSRL learners share: the steered policy at work in a sim, and what its experience is to a loss.

Wagenmaker et al. 2025, 2506.15799. Time is counted in env steps everywhere: a decision is a chunk of H of them, fewer
where its episode ends, and what follows it is discounted by gamma to that number.
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
"""The replay's column of the noise (H, A) that a chunk was decoded from; NaN at steps where none began."""
UPDATES_PER_CALL = 1
"""Updates traced into one graph: decoding makes it long, and next to it the cost of a call is small."""
SATURATED = 0.95
"""Noise beyond this part of the bound counts as saturated."""


def shifted(reward: Tensor, steps: Tensor, gamma: float, shift: float) -> Tensor:
    """Rewards of chunks (B,) as if each of their env steps (B,) had been rewarded by `shift` more."""
    return reward if shift == 0 else reward + shift * discounted_ones(steps, gamma).to(reward.dtype)


def critics(policy: SteeredPolicy, shape: tuple[int, int], cfg: Any, members: int) -> QEnsemble:
    """Critics with LayerNorm and tanh, as published, of chunks or of noise (H, A)."""
    return QEnsemble(policy.context_width, *shape, members, cfg.critic_hidden, layer_norm=True, activation="tanh")


def saturated(noise: Tensor, bound: float) -> Tensor:
    """The share of the noise's elements that are close to the bound."""
    return (noise.abs() > SATURATED * bound).to(noise.dtype).mean()


class Steering:
    """A steered policy at work in a sim: who acts, what is remembered, how many env steps were taken.

    Args:
        cfg: `DsrlCfg` or `DsrlNaCfg`.
        setup: what the learner is made from.

    Raises:
        ConfigError: a setting out of range, or a base policy that does not fit the sim.
        CapabilityError: the policy cannot be steered.
    """

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
        """How often a whole run learns, what it does before it is warm counted as well."""
        return self.iterations * len(self.rounds())

    @property
    def env_steps(self) -> int:
        """Env steps taken so far, each env's counted, whatever the chunk."""
        return self._collector.env_steps

    @property
    def sim_s(self) -> float:
        """Seconds spent inside the sim so far."""
        return self._collector.sim_s

    @property
    def warm(self) -> bool:
        """Whether the plain noise of the beginning is over."""
        return self.env_steps >= self._cfg.warmup

    def close(self) -> None:
        """Give back the sim."""
        self._collector.close()

    def rounds(self) -> list[int]:
        """An iteration's env steps in each env, in parts of a chunk's length, after each of which there are updates."""
        whole, rest = divmod(self._cfg.num_steps, self.policy.horizon)
        return [self.policy.horizon] * whole + [rest] * (rest > 0)

    def collect(self, steps: int) -> tuple[Tensor, Tensor]:
        """Take so many steps in every env; success and return of the episodes that ended."""
        out = self._collector.collect_into(self.replay, self.decide, steps)
        return out.episodes, out.returns

    def iterate(self, learn: Callable[[], dict[str, float]]) -> dict[str, float]:
        """Decisions of all envs, each followed by `learn` once it is warm; gives what an iteration logs."""
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
        """Chunks from the actor's noise, or, during the warm-up, from noise as an unsteered policy draws it.

        What is remembered is the noise itself and the actions that came of it: nothing is decoded a second time.
        """
        ctx = self.policy.encode({key: obs[key] for key in self.policy.observation_spec})
        if self.warm:
            noise = self.policy.actor.draw(ctx, self.normal(len(ctx)).to(ctx)).noise
        else:
            noise = self.policy.actor.plain(self.uniform(len(ctx)).to(ctx))
        return Decision(self.policy.to_actions(self.policy.steer(ctx, noise)), {NOISE: noise})

    def rows(self, sampler: Sampler, updates: int) -> dict[str, Tensor]:
        """Rows of so many updates: those of `off_policy.rows_of` with the reward shifted, and "noise" (B, H, A)."""
        cfg = self._cfg
        drawn = sampler.sample(cfg.batch, self.policy.horizon, cfg.gamma, self.generator, updates)
        rows = rows_of(drawn, self.policy.observation_spec, self.unit)
        rows["reward"] = shifted(drawn.reward, drawn.steps, cfg.gamma, cfg.reward_shift)
        return rows | {NOISE: drawn.extras[NOISE]}

    def normal(self, count: int) -> Tensor:
        """Standard normal numbers (count, H, A)."""
        return torch.randn((count, *self._shape), generator=self.generator)

    def uniform(self, count: int) -> Tensor:
        """Uniform numbers (count, H, A) in [0, 1)."""
        return torch.rand((count, *self._shape), generator=self.generator)

    def state(self) -> dict[str, Any]:
        """For an exact resume: everything but the networks.

        Raises:
            ConfigError: the base policy is not what it was, so that the run is not worth storing.
        """
        self.policy.check_base()
        return {
            "collector": self._collector.state(),
            "replay": self.replay.state(),
            "generator": generator_state(self.generator),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` gave, after the networks.

        Raises:
            ConfigError: the base policy is another.
        """
        self.policy.check_base()
        self.replay.load(state["replay"])
        self._collector.load(state["collector"])
        set_generator_state(self.generator, state["generator"])


def steered(setup: Setup, sim: VecSim) -> SteeredPolicy:
    """The policy to train: the one given, steered; one that is steered already goes on as it is.

    Raises:
        ConfigError: there is none, or it was trained for other observations, actions or another rate than the sim's.
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
    """What an iteration logs.

    Args:
        episodes: success of the episodes that ended, part by part.
        returns: their returns, without discount and shift.
        updates: means over the updates of each part.
    """
    success, gained = torch.cat(episodes).float(), torch.cat(returns)
    out = {"rollout_episodes": float(len(success))}
    if len(success):
        out |= {"rollout_success": float(success.mean()), "rollout_return": float(gained.mean())}
    names = [name for name in (updates[0] if updates else {}) if name != "loss"]
    return out | {name: sum(u[name] for u in updates) / len(updates) for name in names}
