"""Shared parts of DSRL and DSRL-NA: the steered policy in a sim, its replay and the rows of a loss.

Wagenmaker et al. 2025, 2506.15799. Time is counted in env steps everywhere: a decision is a chunk of H of them, fewer
where its episode ends, and the next value is discounted by gamma to that number.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from robotrl.errors import CapabilityError, ConfigError
from robotrl.fn.q_targets import discounted_ones
from robotrl.learners.actor.remote import experience_of
from robotrl.learners.learner import Learner, Setup, Watch
from robotrl.learners.off_policy import ActionNormalizer, PolicyBuilder, batch_rows, check_settings
from robotrl.learners.parts import Part
from robotrl.learners.replay_collector import Acting, ReplayBuffers, loggable_scalars
from robotrl.policies.q import QEnsemble
from robotrl.policies.steered import SteeredCfg, SteeredPolicy
from robotrl.replay.buffer import Replay
from robotrl.replay.samplers import Sampler
from robotrl.rollout.collector import Collected, Decision
from robotrl.rollout.compatibility import check_fit
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


@torch.no_grad()
def decide(policy: SteeredPolicy, obs: Arrays, generator: torch.Generator, random: bool) -> Decision:
    """Sample chunks (n, H, A) from the actor's noise, or, if random, from noise as the base policy samples it.

    The replay keeps the noise itself and the resulting actions, so nothing is decoded twice.
    """
    ctx = policy.encode({key: obs[key] for key in policy.observation_spec})
    shape = len(ctx), *policy.base_noise
    if random:
        noise = policy.actor.plain(torch.rand(shape, generator=generator).to(ctx))
    else:
        noise = policy.actor.draw(ctx, torch.randn(shape, generator=generator).to(ctx)).noise
    return Decision(policy.to_actions(policy.steer(ctx, noise)), {NOISE: noise})


class SteeringLearner(Learner):
    """Base of both variants: a steered policy, its replay collector, and rounds of env steps and updates.

    Args:
        cfg: `DsrlCfg` or `DsrlNaCfg`.
        setup: the learner's setup.

    Raises:
        ConfigError: a setting is out of range, or the base policy does not fit the sim.
        CapabilityError: the policy cannot be steered.
    """

    def __init__(self, cfg: Any, setup: Setup) -> None:
        check_settings(cfg)
        self._shared = cfg
        torch.manual_seed(setup.seed)
        self.sim = sim = setup.make_sim()
        self.policy: SteeredPolicy = steered(setup, sim)
        self.unit = ActionNormalizer(sim.action_spec)
        self.generator = torch.Generator().manual_seed(setup.seed)
        memory = ReplayBuffers(sim, cfg.capacity, None, setup.run, {NOISE: self.policy.base_noise})
        acting = Acting(setup.seed, cfg.gamma, random=True, warmup=cfg.warmup, decide=decide)
        made = PolicyBuilder(setup._replace(init_policy=self.policy), sim, False)
        self._stepper = self.experience = experience_of(cfg, setup, sim, made, self.generator, acting, memory)
        self.iterations = math.ceil(cfg.env_steps / (cfg.num_steps * sim.num_envs))

    @property
    def replay(self) -> Replay:
        """The replay of collected steps."""
        return self.experience.memory.replay

    @property
    def learned(self) -> int:
        """Number of rounds of updates of a whole run, including those skipped during the warmup."""
        return self.iterations * len(self.rounds())

    def watch(self, make: Watch) -> None:
        """See `Learner.watch`: critics of actions learn from the corrections, critics of noise from all other steps."""
        self.experience.watch(make)

    def rounds(self) -> list[int]:
        """Env steps per env of an iteration, split into chunks of the policy's horizon; updates follow each of them."""
        whole, rest = divmod(self._shared.num_steps, self.policy.horizon)
        return [self.policy.horizon] * whole + [rest] * (rest > 0)

    def iterate(self) -> dict[str, float]:
        """Run one iteration: decisions of all envs, each followed by `learn` after the warmup; returns log scalars."""
        self.iteration += 1
        found, updates = list[Collected](), list[dict[str, float]]()
        for steps in self.rounds():
            found.append(self.experience.take(steps))
            if self.experience.warm and self.experience.memory.replay.has_chunk(self.policy.horizon, decisions=True):
                updates.append(self.learn())
        return summary(found, updates) | self.experience.scalars()

    @abstractmethod
    def learn(self) -> dict[str, float]:
        """Run the updates that follow a decision of all envs; returns means of the losses' scalars."""
        ...

    def rows(self, sampler: Sampler, updates: int) -> dict[str, Tensor]:
        """Sample rows for updates: those of `off_policy.rows_of` with the shifted reward, and "noise" (B, H, A)."""
        cfg = self._shared
        transitions = sampler.sample(cfg.batch, self.policy.horizon, cfg.gamma, self.generator, updates)
        rows = batch_rows(transitions, self.policy.observation_spec, self.unit)
        rows["reward"] = shifted(transitions.reward, transitions.steps, cfg.gamma, cfg.reward_shift)
        return rows | {NOISE: transitions.extras[NOISE]}

    def normal(self, count: int) -> Tensor:
        """Sample standard normal numbers (count, H, A)."""
        return torch.randn((count, *self.policy.base_noise), generator=self.generator)

    def uniform(self, count: int) -> Tensor:
        """Sample uniform numbers (count, H, A) in [0, 1)."""
        return torch.rand((count, *self.policy.base_noise), generator=self.generator)

    def parts(self) -> dict[str, Part]:
        """See `Learner.parts`."""
        return {"experience": self.experience, "generator": self.generator}

    def state(self) -> dict[str, Any]:
        """See `Learner.state`.

        Raises:
            ConfigError: the base policy's weights have changed, so that the state would be wrong.
        """
        self.policy.check_base()
        return super().state()

    def load(self, state: dict[str, Any]) -> None:
        """See `Learner.load`.

        Raises:
            ConfigError: the base policy is another one.
        """
        if "steering" in state:  # version 0.1 had a collector of its own
            old = state["steering"]
            experience = {"collector": old["collector"], "random": True, "replay": old["replay"], "corrections": None}
            state = {**state, "experience": experience, "generator": old["generator"]}
        super().load(state)
        self.policy.check_base()


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


def summary(found: list[Collected], updates: list[dict[str, float]]) -> dict[str, float]:
    """Return the scalars to log of an iteration.

    Args:
        found: what was collected in each round; returns are without discount and shift.
        updates: means over the updates of each round.
    """
    everything = Collected(
        sum(one.env_steps for one in found),
        torch.cat([one.episodes for one in found]),
        torch.cat([one.returns for one in found]),
        sum(one.corrected for one in found),
    )
    names = [name for name in (updates[0] if updates else {}) if name != "loss"]
    return loggable_scalars(everything) | {name: sum(u[name] for u in updates) / len(updates) for name in names}
