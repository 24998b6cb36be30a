"""GoRL: online RL from scratch with a generative policy (2512.02581).

The policy is a decoder, which makes a chunk of latent noise, and an encoder, which chooses that noise. They learn in
turn, never together. While the decoder is frozen, PPO trains the encoder, whose density has a closed form; the decoder
needs none. Then the stochastic policy collects actions, and a fresh decoder is fitted to them by flow matching, from
fresh standard normal noise and not from the encoder's: so whatever PPO found, of however many modes, becomes what the
decoder makes of plain noise, and the encoder begins again near it. The first decoder is the identity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from robotrl.engine.base import ENGINE_MODES
from robotrl.engine.engine import UPDATES_PER_CALL, Context, Engine, EngineMode, LossModule, LossOut, ParameterGroup
from robotrl.engine.minibatches import fitting, means, part, run_updates
from robotrl.errors import (
    CapabilityError,
    ConfigError,
    check_at_least,
    check_decay,
    check_number,
    check_positive,
    out_of_range,
    unknown,
)
from robotrl.fn.bc_loss import CloneLoss, DrawShape, chunk_shape, clone_loss_of
from robotrl.fn.chain import normal_log_prob
from robotrl.fn.density import NORMAL_ENTROPY
from robotrl.fn.loss import ppo_clip, value_mse
from robotrl.fn.schedule import warmed_cosine
from robotrl.learners.collection.acting import MemorylessActing, RolloutActing, independent
from robotrl.learners.collection.collectors import ActingCollector, OwnSim
from robotrl.learners.collection.stages import StagePosition, SwitchDrop, plan, position
from robotrl.learners.learner import Learner, Setup
from robotrl.learners.normalizers import RewardNormalizer
from robotrl.learners.off_policy import PolicyBuilder
from robotrl.learners.on_policy import epoch_order, finite, make_batch, observations, rollout_scalars, update_scalars
from robotrl.learners.parts import Part
from robotrl.policies.flow import FlowPolicy
from robotrl.policies.networks.mlp import Activation
from robotrl.policies.networks.value import ValueNet
from robotrl.policies.shortcut import ShortcutPolicy
from robotrl.policies.steered import NoiseActor, SteeredCfg, SteeredPolicy
from robotrl.rollout.collector import Collector, Decision
from robotrl.rollout.storage import Rollout
from robotrl.spec import LearnerCfg, MemoryNeeds

LATENT, CHUNK = "latent", "chunk"
"""Values recorded with a decision: the latent before tanh, and the decoded chunk before the clip to the bounds."""


# losses


def latent_log_prob(mean: Tensor, log_std: Tensor, latent: Tensor) -> Tensor:
    """Log-densities (B,) of latents (B, H, A) before tanh; ratios of these are those of the noise itself."""
    return normal_log_prob(latent, mean, log_std.exp()).flatten(1).sum(1)


def latent_penalty(mean: Tensor, log_std: Tensor) -> Tensor:
    """Mean over rows of |mu|^2 + sum of sigma, of an encoder's means and log-stds (B, H, A) before tanh."""
    return (mean.square() + log_std.exp()).flatten(1).sum(1).mean()


class GorlLoss(LossModule):
    """PPO's loss on the latent, the critic's loss, and the penalty of the encoder; the decoder has no gradient.

    The carry is "actor_active", 1 while the encoder still learns in this iteration.

    Args:
        policy: decoder and encoder.
        cfg: settings.
    """

    largest: ClassVar[frozenset[str]] = frozenset({"ratio_error"})

    def __init__(self, policy: SteeredPolicy, cfg: GorlCfg) -> None:
        super().__init__()
        self.policy = policy
        self.critic = ValueNet(policy.context_width, cfg.critic_hidden, cfg.critic_activation)
        self._cfg = cfg

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`."""
        cfg, active = self._cfg, context.carry["actor_active"]
        ctx = self.policy.encode(observations(batch))
        mean, log_std = self.policy.actor(ctx)
        log_prob = latent_log_prob(mean, log_std, batch[LATENT])
        out = ppo_clip(log_prob, batch["log_prob"], batch["advantage"], cfg.clip_coef)
        entropy = (log_std + NORMAL_ENTROPY).flatten(1).sum(1).mean()
        penalty = latent_penalty(mean, log_std)
        value_loss = value_mse(self.critic(ctx), batch["value_target"])
        loss = out.loss - cfg.entropy_coef * entropy + cfg.latent_coef * penalty + value_loss
        info = {
            "pg_loss": out.loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "latent_penalty": penalty,
            "approx_kl": out.approx_kl,
            "clip_fraction": out.clip_fraction,
            "ratio_error": out.ratio_error,
            "actor_on": active,
        }
        return LossOut(loss, info, (cfg.lr * active, torch.full_like(active, cfg.critic_lr)))

    def next_carry(self, carry: dict[str, Tensor], info: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """See `LossModule.next_carry`."""
        active = carry["actor_active"]
        if self._cfg.target_kl is not None:
            active = active * (info["approx_kl"] <= self._cfg.target_kl).to(active.dtype)
        return {**carry, "actor_active": active}


class DecoderLoss(LossModule):
    """The decoder's own cloning loss on collected chunks, from fresh noise; the carry counts updates.

    Args:
        decoder: the decoder in training.
        clone: its cloning loss.
        cfg: settings.
    """

    def __init__(self, decoder: nn.Module, clone: CloneLoss, cfg: GorlCfg) -> None:
        super().__init__()
        self.decoder = decoder
        self._clone, self._cfg = clone, cfg

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`."""
        cfg, done = self._cfg, context.carry["updates"]
        loss = self._clone.loss(self.decoder, batch["ctx"], batch[CHUNK], batch["valid"], **part(batch, "drawn/"))
        lr = cfg.fit_lr * warmed_cosine(done, cfg.fit_updates, 0, cfg.fit_lr_end)
        return LossOut(loss, {"fit_loss": loss}, (lr,), {"updates": done + 1})


# decoder


def make_identity(decoder: nn.Module) -> None:
    """Set the weights of a decoder's velocity to zero, in place: it then decodes noise to itself, exactly."""
    net: Any = decoder
    with torch.no_grad():
        for weight in net.net.parameters():
            weight.zero_()


class CollectedChunks:
    """Contexts and decoded chunks of a collection: "ctx" (B, D), "chunk" (B, H, A) and "valid" (B, H), on the CPU."""

    def __init__(self) -> None:
        self.rows: dict[str, Tensor] = {}

    def add(self, rows: Mapping[str, Tensor]) -> None:
        """Add rows."""
        more = {name: x.cpu() for name, x in rows.items()}
        self.rows = {name: torch.cat([self.rows[name], x]) for name, x in more.items()} if self.rows else more

    def clear(self) -> None:
        """Forget all rows."""
        self.rows = {}

    def state(self) -> dict[str, Tensor]:
        """State for an exact resume."""
        return dict(self.rows)

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore the result of `state`."""
        self.rows = dict(state)


class DecoderFit:
    """Fit of a fresh decoder to collected chunks.

    Args:
        decoder: decoder with fresh weights, in place.
        collected: the chunks.
        cfg: settings.
        setup: the learner's setup.
    """

    def __init__(self, decoder: Any, collected: CollectedChunks, cfg: GorlCfg, setup: Setup) -> None:
        self.decoder = decoder
        self._collected, self._cfg = collected, cfg
        self._clone = clone_loss_of(decoder)
        self._engine = Engine(
            DecoderLoss(decoder, self._clone, cfg),
            (ParameterGroup("decoder.", cfg.max_grad_norm, cfg.fit_ema or None, ramp=True),),
            minibatch=cfg.fit_batch,
            carry={"updates": 0.0},
            mode=cfg.engine,
            updates=setup.expected(cfg.fit_updates),
            threads=setup.update_threads,
            eps=1e-8,
        )

    def run(self, updates: int, generator: torch.Generator, what: str) -> dict[str, float]:
        """Make some updates; returns the scalars to log."""
        rows, cfg = self._collected.rows, self._cfg

        def draw(count: int) -> dict[str, Tensor]:
            index = torch.randint(len(rows["ctx"]), (count * cfg.fit_batch,), generator=generator)
            shape = DrawShape(count, cfg.fit_batch, *chunk_shape(self.decoder))
            drawn = self._clone.draw(self.decoder, shape, generator)
            return {name: x[index] for name, x in rows.items()} | {f"drawn/{name}": x for name, x in drawn.items()}

        row_bytes = sum(x[0].numel() * x.element_size() for x in rows.values())
        most = UPDATES_PER_CALL * math.ceil(cfg.fit_updates_per_iteration / UPDATES_PER_CALL)
        found = means(run_updates(self._engine, draw, updates, fitting(most, 4 * cfg.fit_batch * row_bytes), what))
        return {"fit_loss": found["fit_loss"], "fit_chunks": float(len(rows["ctx"]))}

    def write(self, base: nn.Module) -> None:
        """Copy the fitted weights, averaged if they are, into another decoder of the same kind, in place."""
        base.load_state_dict(self.decoder.state_dict())
        if self._cfg.fit_ema:
            self._engine.write_average("decoder.", base)

    def state(self) -> dict[str, Any]:
        """State for an exact resume."""
        return {"decoder": self.decoder.state_dict(), "engine": self._engine.state()}

    def load(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`."""
        self.decoder.load_state_dict(state["decoder"])
        self._engine.load(state["engine"])


# acting


class LatentActing(MemorylessActing):
    """Encoder and decoder as they act in rollouts; implements `RolloutActing`.

    Args:
        policy: the policy.
    """

    def __init__(self, policy: SteeredPolicy) -> None:
        self.network, self.horizon = policy, policy.horizon

    @torch.no_grad()
    def decide(self, obs: dict[str, Tensor], generator: torch.Generator, envs: Collector) -> Decision:
        """See `RolloutActing.decide`."""
        del envs
        policy = self.network
        ctx = policy.encode(obs)
        mean, log_std = policy.actor(ctx)
        latent = mean + log_std.exp() * torch.randn(mean.shape, generator=generator).to(mean)
        chunk = policy.steer(ctx, policy.actor.noise(latent))
        log_prob = latent_log_prob(mean, log_std, latent)
        return Decision(policy.to_actions(chunk), {LATENT: latent, "log_prob": log_prob, CHUNK: chunk})

    def copied(self, num_envs: int, device: torch.device) -> RolloutActing:
        """See `RolloutActing.copied`."""
        del num_envs
        return LatentActing(independent(self.network, device))


# update


class GorlLearner(Learner):
    """Trains encoder and decoder in turn; see `GorlCfg`.

    Raises:
        ConfigError: settings out of range, or a policy to start from.
        CapabilityError: the policy is no decoder that can begin as the identity.
    """

    def __init__(self, cfg: GorlCfg, setup: Setup) -> None:
        cfg.check()
        self.cfg = cfg
        self._setup = setup
        torch.manual_seed(setup.seed)
        sim = setup.make_sim()
        given = _resumed_policy(setup)
        self._made = PolicyBuilder(setup._replace(init_policy=None if given is None else given.base), sim, True)
        base = self._made.policy
        _check_decoder(base)
        if cfg.num_steps < base.horizon:
            raise out_of_range("algo.num_steps", cfg.num_steps, f"{base.horizon} or more, the policy's horizon")
        self._generator = torch.Generator().manual_seed(setup.seed)
        if given is None:
            make_identity(base)
            self.policy = cfg.encoder.build(base).to(setup.device)
            self.policy.actor.start_at(1 / cfg.encoder.bound)
        else:
            self.policy = given
        per_iteration = cfg.num_steps * sim.num_envs
        self._segments = plan(
            math.ceil(cfg.env_steps / per_iteration),
            math.ceil(cfg.collect_env_steps / per_iteration),
            math.ceil(cfg.fit_updates / cfg.fit_updates_per_iteration),
            cfg.stage_shares,
        )
        self.iterations = sum(segment.iterations for segment in self._segments)
        self._reward_normalizer = RewardNormalizer(sim.num_envs, cfg.gamma) if cfg.normalize_reward else None
        # episodes are begun anew at a switch, which collectors of workers cannot do
        acting = LatentActing(self.policy)
        self._collector: ActingCollector = OwnSim().rollouts(sim, acting, cfg.gamma, setup.seed, self._generator)
        self._stepper = self._collector
        self._capacity = per_iteration
        self._loss = GorlLoss(self.policy, cfg).to(setup.device)
        rollouts = sum(segment.iterations for segment in self._segments if segment.phase == "ppo")
        updates = rollouts * cfg.epochs * math.ceil(per_iteration / base.horizon / cfg.minibatch)
        self._ppo_engine = self._engine = Engine(
            self._loss,
            (ParameterGroup("policy.actor.", cfg.max_grad_norm), ParameterGroup("critic.", cfg.max_grad_norm)),
            minibatch=cfg.minibatch,
            carry={"actor_active": 1.0},
            mode=cfg.engine,
            updates=setup.expected(updates),
            threads=setup.update_threads,
        )
        self._first_moments = {k: x.clone() for k, x in self._ppo_engine.state().items() if isinstance(x, Tensor)}
        """Adam's state before the first update."""
        self._collected = CollectedChunks()
        self._fit: DecoderFit | None = None
        self._drop = SwitchDrop(sim.num_envs)

    def iterate(self) -> dict[str, float]:
        """Run one iteration of the phase that is due: a rollout with updates, a rollout alone, or updates of a fit."""
        here = position(self._segments, self.iteration)
        self.iteration += 1
        if here.phase == "ppo":
            scalars = self._improve(here)
        elif here.phase == "collect":
            scalars = self._collect()
        else:
            scalars = self._refit(here)
        return finite({"stage": float(here.stage)} | scalars)

    def _improve(self, here: StagePosition) -> dict[str, float]:
        """Run one rollout and PPO's updates of the encoder."""
        cfg = self.cfg
        rollout = self._collector.rollout(cfg.num_steps)
        reward = rollout.reward
        drop = self._drop.seen(rollout.returns)
        if self._reward_normalizer is not None:
            rollout = self._reward_normalizer.normalize(rollout)
            self.policy.reward_scale = self._reward_normalizer.scale
        rollout = rollout._replace(record={name: x for name, x in rollout.record.items() if name != CHUNK})
        batch = make_batch(rollout, self._value, cfg.gamma, cfg.gae_lambda)
        scalars = rollout_scalars(rollout, batch, reward) | drop
        self._ppo_engine.carry["actor_active"].fill_(1.0)
        rows = batch.rows()
        order = epoch_order(len(batch.advantage), cfg.minibatch, cfg.epochs, self._generator, keep_all=True)
        what = f"iteration {self.iteration}"
        scalars |= update_scalars(self._ppo_engine.run(rows, order, self._capacity, what))
        if here.stage == 0:
            # a fitted decoder reads these statistics, so they stay as they are from here on
            self._made.take(rollout.obs)
        return scalars

    def _value(self, obs: dict[str, Tensor]) -> Tensor:
        return self._loss.critic(self.policy.encode(obs))

    def _collect(self) -> dict[str, float]:
        """Run one rollout of the stochastic policy, and keep its chunks."""
        rollout = self._collector.rollout(self.cfg.num_steps)
        self._collected.add(_decoded(rollout, self.policy, self.cfg.action_clip))
        self._drop.collected(rollout.returns)
        return {
            "rollout_success": float(rollout.episodes.float().mean()) if len(rollout.episodes) else math.nan,
            "rollout_return": float(rollout.returns.mean()) if len(rollout.returns) else math.nan,
            "rollout_episodes": float(len(rollout.episodes)),
        }

    def _refit(self, here: StagePosition) -> dict[str, float]:
        """Run some updates of a fresh decoder; after the last ones it takes the place of the old one."""
        cfg = self.cfg
        if self._fit is None:
            self._fit = self._new_fit()
        done = here.number * cfg.fit_updates_per_iteration
        count = min(cfg.fit_updates_per_iteration, cfg.fit_updates - done)
        scalars = self._fit.run(count, self._generator, f"iteration {self.iteration}")
        if here.last:
            self._fit.write(self.policy.base)
            self.policy.adopt_base()
            self._fit = None
            self._collected.clear()
            if cfg.restart_encoder:
                self._restart_encoder()
            # episodes of two decoders would blur the drop
            self._collector.reset(None)
            self._drop.switched()
        return scalars

    def _new_fit(self) -> DecoderFit:
        base = self.policy.base
        parts = base.observation_spec, base.action_spec, base.transforms
        decoder = self._seeded(lambda: base.cfg.build(*parts)).to(self._setup.device)
        return DecoderFit(decoder, self._collected, self.cfg, self._setup)

    def _restart_encoder(self) -> None:
        """Give the encoder fresh weights, near a standard normal noise, and forget Adam's moments."""
        policy, cfg = self.policy, self.cfg.encoder
        horizon, width = policy.base_noise
        fresh = self._seeded(lambda: NoiseActor(policy.context_width, horizon, width, cfg))
        fresh.start_at(1 / cfg.bound)
        policy.actor.load_state_dict(fresh.state_dict())
        self._ppo_engine.load({**self._ppo_engine.state(), **self._first_moments})

    def _seeded(self, build: Callable[[], Any]) -> Any:
        """Build a network whose weights depend on the learner's own generator alone."""
        seed = int(torch.randint(2**31, (), generator=self._generator))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return build()

    def parts(self) -> dict[str, Part]:
        """See `Learner.parts`."""
        return {
            "networks": self._loss,
            "obs_normalizer": self._made,
            "reward_normalizer": self._reward_normalizer,
            "engine": self._ppo_engine,
            "collected": self._collected,
            "fit": self._fit,
            "drop": self._drop,
            "generator": self._generator,
            "collector": self._collector,
        }

    def load(self, state: dict[str, Any]) -> None:
        """See `Learner.load`."""
        self._fit = None if state["fit"] is None else self._new_fit()
        super().load(state)
        self.policy.adopt_base()


def _decoded(rollout: Rollout, policy: SteeredPolicy, clip: float) -> dict[str, Tensor]:
    """Rows of the complete decisions (B, ...) of a rollout for the fit: context, clipped chunk, executed steps."""
    there = rollout.valid
    obs = {key: x[there] for key, x in rollout.obs.items()}
    chunk = rollout.record[CHUNK][there].clamp(-clip, clip)
    step = torch.arange(policy.horizon, device=chunk.device)
    with torch.no_grad():
        ctx = policy.encode(obs)
    return {"ctx": ctx, CHUNK: chunk, "valid": step < rollout.length[there][:, None]}


def _resumed_policy(setup: Setup) -> SteeredPolicy | None:
    """The policy of the run to resume; None at its beginning.

    Raises:
        ConfigError: there is a policy to start from.
    """
    given = setup.init_policy
    if given is None or (setup.resumed and isinstance(given, SteeredPolicy)):
        return given
    raise ConfigError(
        f"init_from is a {type(given).__name__}: GoRL begins from scratch; expected none, or algo dsrl, which steers a"
        " policy that was trained before"
    )


def _check_decoder(decoder: Any) -> None:
    """Check that a policy can be the decoder.

    Raises:
        CapabilityError: its velocity cannot begin as zero, or its context learns.
    """
    if not isinstance(decoder, FlowPolicy | ShortcutPolicy):
        raise CapabilityError(
            f"policy {type(decoder).__name__} does not begin as the identity: GoRL expects policy flow or shortcut"
        )
    learns = sorted({name.split(".")[0] for name, _ in decoder.named_parameters()} - {"net"})
    if learns:
        raise CapabilityError(
            f"policy {type(decoder).__name__} has an encoder that learns ({', '.join(learns)}): GoRL expects vectors"
            " without pictures and policy.set_features 0, since encoder and critic read the context of each decoder"
        )


# config


@dataclass(frozen=True)
class GorlCfg(LearnerCfg):
    """Settings of GoRL. The policy's own settings are those of the decoder."""

    default_policy: ClassVar[str] = "flow"
    env_steps: int = 1_000_000
    """Budget of env steps, summed over all envs, collections included; rounded up to whole iterations."""
    stage_shares: tuple[float, ...] = (2.0, 2.0, 1.0, 1.0)
    """Relative lengths of the stages, env steps of PPO; their number is that of the decoders, the identity included."""
    collect_env_steps: int = 40_000
    """Env steps of each collection, for the next decoder; rounded up to whole iterations."""
    num_steps: int = 80
    """Env steps per env in an iteration."""
    encoder: SteeredCfg = field(default_factory=lambda: SteeredCfg(bound=3.0))
    """The encoder: widths, and the bound of the latent."""
    restart_encoder: bool = True
    """Begin with a fresh encoder, near standard normal noise, after each decoder. False: it goes on as it is."""
    latent_coef: float = 5e-4
    """lambda_z, weight of the penalty |mu|^2 + sigma of the encoder's distribution before tanh."""
    epochs: int = 5
    """Passes over a rollout's decisions."""
    minibatch: int = 480
    """Decisions per gradient step of PPO."""
    lr: float = 3e-4
    """Learning rate of the encoder."""
    critic_lr: float = 1e-3
    """Learning rate of the critic."""
    gamma: float = 0.99
    """Discount per env step."""
    gae_lambda: float = 0.95
    """Lambda of generalized advantage estimation (GAE), per decision."""
    clip_coef: float = 0.2
    """PPO clip range of the ratio of a whole chunk's latent."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus, of the latent before tanh."""
    target_kl: float | None = 0.03
    """Stop the encoder's updates of an iteration once a minibatch's approximate KL exceeds this. None: no limit."""
    max_grad_norm: float = 1.0
    """Maximum gradient norm, for each network separately."""
    critic_hidden: tuple[int, ...] = (256, 256)
    """Widths of the critic's hidden layers."""
    critic_activation: Activation = "silu"
    """Activation of the critic."""
    normalize_reward: bool = False
    """Divide rewards by the running standard deviation of the discounted return."""
    action_clip: float = 3.0
    """Largest size of the actions that a decoder is fitted to, normalized, before the clip to the bounds at 1. 1: as
    they were executed."""
    fit_updates: int = 5_000
    """Updates of each decoder."""
    fit_updates_per_iteration: int = 500
    """Updates of a decoder between two log lines."""
    fit_batch: int = 1_024
    """Chunks per update of a decoder."""
    fit_lr: float = 1e-3
    """Peak learning rate of a decoder; it decays along a half cosine."""
    fit_lr_end: float = 0.1
    """Final learning rate of a decoder as a fraction of the peak, 0 to 1."""
    fit_ema: float = 0.99
    """Decay of a decoder's averaged (EMA) weights, which act. 0: no averaging."""
    engine: EngineMode = "auto"
    """Execution mode of updates: "compiled", "eager", or "auto", which compiles if that saves time in this run."""

    def check(self) -> None:
        """See `LearnerCfg.check`."""
        for name in ("env_steps", "num_steps", "epochs", "minibatch", "collect_env_steps"):
            check_at_least(f"algo.{name}", getattr(self, name), 1)
        for name in ("fit_updates", "fit_updates_per_iteration", "fit_batch"):
            check_at_least(f"algo.{name}", getattr(self, name), 1)
        for name in ("lr", "critic_lr", "fit_lr", "max_grad_norm"):
            check_positive(f"algo.{name}", getattr(self, name))
        for name in ("gae_lambda", "fit_lr_end"):
            check_number(f"algo.{name}", getattr(self, name), 0.0, 1.0)
        if not self.stage_shares or not all(0 < share < math.inf for share in self.stage_shares):
            raise out_of_range("algo.stage_shares", self.stage_shares, "one or more numbers above 0")
        # the std at the start is 1 / bound, which the actor must be able to have
        check_number("algo.encoder.bound", self.encoder.bound, 0.2, 100.0)
        check_number("algo.latent_coef", self.latent_coef, 0.0, 1e3)
        check_number("algo.action_clip", self.action_clip, 1.0, 1e3)
        if not 0 < self.gamma <= 1:
            raise out_of_range("algo.gamma", self.gamma, "above 0, at most 1")
        if not 0 < self.clip_coef < 1:
            raise out_of_range("algo.clip_coef", self.clip_coef, "above 0 and below 1")
        if self.target_kl is not None and not self.target_kl > 0:
            raise out_of_range("algo.target_kl", self.target_kl, "above 0, or none")
        check_decay("algo.fit_ema", self.fit_ema)
        if self.engine not in ENGINE_MODES:
            raise unknown("algo.engine", str(self.engine), ENGINE_MODES)

    @property
    def memory(self) -> MemoryNeeds:
        """See `LearnerCfg.memory`."""
        return MemoryNeeds(max(self.minibatch, self.fit_batch), num_steps=self.num_steps, averages=bool(self.fit_ema))

    def build(self, setup: Setup) -> GorlLearner:
        """Build the learner."""
        return GorlLearner(self, setup)
