"""Shared base of methods that learn from whole episodes: grouped rollouts, updates, checkpoints, resume.

`EpisodeActing` says how a policy acts and computes its log-probabilities: by tokens, or through a denoising chain.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from robotrl.engine.autocast import in_bf16
from robotrl.engine.distributed import share
from robotrl.engine.engine import EngineMode, LossModule, ParameterGroup
from robotrl.errors import check_at_least, check_decay, check_number, check_positive
from robotrl.fn.random import noise
from robotrl.fn.schedule import line
from robotrl.learners.collection.acting import EpisodesActing, MemorylessActing, independent
from robotrl.learners.learner import Learner, Setup
from robotrl.learners.on_policy import epoch_order
from robotrl.learners.parts import Part
from robotrl.rollout.collector import Decision
from robotrl.rollout.compatibility import check_fit
from robotrl.rollout.groups import Trajectories
from robotrl.spec import LearnerCfg, MemoryNeeds
from robotrl.utils.batched import in_parts

POLICY = "policy."
"""Prefix of the trained parameters in a loss."""


@dataclass(frozen=True)
class EpisodeCfg(LearnerCfg):
    """Settings shared by all methods that learn from whole episodes."""

    clusters: ClassVar[bool] = True
    iterations: int = 60
    """Number of iterations; each is a rollout and its updates."""
    minibatch: int = 128
    """Decisions per update."""
    microbatch: int | None = None
    """Decisions per forward and backward pass, to save memory; must divide the minibatch. None: the whole minibatch."""
    epochs: int = 1
    """Passes over an iteration's decisions; all but the first are off-policy."""
    lr: float = 1e-4
    """Learning rate of Adam."""
    lr_end: float = 1.0
    """Final learning rate as a fraction of the initial one, 0 to 1; it decays linearly. 1: constant."""
    muon: float = 0.0
    """Train the policy's hidden weight matrices with Muon, at this multiple of the learning rate; see docs/engine.md.
    0: Adam for all parameters."""
    ema: float = 0.0
    """Decay per update of the averaged (EMA) weights that are evaluated and deployed; averaging removes the noise of
    updates, which matters for precise motions. 0: no averaging."""
    max_grad_norm: float = 1.0
    """Maximum gradient norm."""
    bf16: bool = False
    """Networks compute in bfloat16; densities, losses and parameters stay in float32; see docs/engine.md."""
    engine: EngineMode = "eager"
    """Execution mode of updates: "eager", "compiled" or "auto"; see docs/engine.md."""

    @property
    def memory(self) -> MemoryNeeds:
        """See `LearnerCfg.memory`."""
        return MemoryNeeds(self.minibatch, self.microbatch, splits=True, averages=bool(self.ema), bf16=self.bf16)


class Likelihood(NamedTuple):
    """Log-probabilities of decisions."""

    log_prob: Tensor
    """(D, ...) one number for each part of a decision that has a ratio of its own."""
    entropy: Tensor | None = None
    """Mean entropy over the parts, a scalar to log."""


class EpisodeActing(Protocol):
    """Interface of a policy kind: sampling actions in training, and their log-probabilities."""

    def start(self, setup: Setup, method: str) -> Any:
        """Return the policy to fine-tune.

        Raises:
            ConfigError: no policy is given.
            CapabilityError: the policy does not act this way.
        """
        ...

    def series(self, policy: Any) -> tuple[int, int]:
        """Return (H, W): control steps of a decision, and random numbers that each control step is sampled from."""
        ...

    def decide(
        self, policy: Any, obs: dict[str, Tensor], generator: torch.Generator, scores: Tensor | None
    ) -> Decision:
        """Sample actions on observations (n, ...), from given standard normal numbers (n, H, W) or from new ones."""
        ...

    def record(self, found: Trajectories) -> dict[str, Tensor]:
        """Return the recorded arrays that `likelihood` needs, besides the observations."""
        ...

    def likelihood(self, policy: Any, obs: dict[str, Tensor], rows: dict[str, Tensor]) -> Likelihood:
        """Compute the current log-probabilities of decisions; gradients flow.

        Args:
            policy: the policy in training.
            obs: (D, ...) its observations.
            rows: (D, ...) the arrays that `record` gave, and more.
        """
        ...

    def weights(self, policy: Any, valid: Tensor, episode: Tensor, episodes: int) -> Tensor:
        """Return weights (D, ...) of a decision's parts; the weighted sum, averaged over D, is a mean over episodes.

        Args:
            policy: the policy in training.
            valid: (D, H) True for executed actions.
            episode: (D,) index of each decision's episode.
            episodes: N, number of episodes.
        """
        ...


def likelihood(
    acting: EpisodeActing, policy: Any, obs: dict[str, Tensor], rows: dict[str, Tensor], bf16: bool
) -> Likelihood:
    """Log-probabilities of decisions, computed identically after rollouts and in the loss; see `EpisodeActing`."""
    with in_bf16(bf16, next(iter(obs.values())).device):
        return acting.likelihood(policy, obs, rows)


@torch.no_grad()
def log_prob_of(
    acting: EpisodeActing, policy: Any, obs: dict[str, Tensor], record: dict[str, Tensor], bf16: bool, batch: int
) -> Tensor:
    """Log-probabilities (D, ...) of the decisions of some episodes, one or more, in parts of `batch` decisions."""

    def log_prob(some: dict[str, Tensor]) -> Tensor:
        return likelihood(acting, policy, some, some, bf16).log_prob

    return in_parts(log_prob, {**obs, **record}, batch)


def step_weights(valid: Tensor, episode: Tensor, episodes: int) -> Tensor:
    """Return weights (D, H); the weighted sum, averaged over D, is the mean over episodes of the mean over steps.

    Args:
        valid: (D, H) True for executed actions.
        episode: (D,) index of each decision's episode.
        episodes: N, number of episodes.
    """
    steps = valid.float().sum(dim=1)
    count = steps.new_zeros(episodes).index_add_(0, episode, steps)
    return valid.float() * (len(valid) / (episodes * count[episode]))[:, None]


class EpisodeSteps:
    """Env steps of all processes, and those of this process that are included."""

    def __init__(self) -> None:
        self.total = self.counted = 0

    def state(self) -> int:
        """State for an exact resume."""
        return self.total

    def load(self, state: int) -> None:
        """Restore the result of `state`."""
        self.total = int(state)


class EpisodePolicy(MemorylessActing):
    """A policy as it acts in episodes; implements `EpisodesActing`.

    Args:
        model: the policy.
        acting: interface of the policy kind.
        bf16: whether networks compute in bfloat16.
        device: device of the networks.
        correlation: of the random numbers of one control step with those of the step before, 0 to below 1.
        batch: decisions whose log-probabilities are computed at a time.
    """

    def __init__(
        self, model: Any, acting: EpisodeActing, bf16: bool, device: torch.device, correlation: float, batch: int
    ) -> None:
        self.network = model
        self._acting, self._bf16, self._device, self._correlation = acting, bf16, device, correlation
        self._batch = batch
        self._scores = torch.zeros(0)

    def begin(self, num_envs: int, generator: torch.Generator) -> None:
        """Draw new noise, independent of that of the last episodes."""
        if self._correlation:
            shape = (num_envs, self._acting.series(self.network)[1])
            self._scores = noise.randn(shape, generator, self._device, torch.float64)

    @torch.no_grad()
    def decide(self, obs: dict[str, Tensor], rows: Tensor, generator: torch.Generator) -> Decision:
        """See `EpisodesActing.decide`."""
        with in_bf16(self._bf16, self._device):
            return self._acting.decide(self.network, obs, generator, self._noise(rows, generator))

    def log_prob(self, found: Trajectories) -> Tensor:
        """See `EpisodesActing.log_prob`."""
        obs = {key: found.obs[key] for key in self.network.observation_spec}
        return log_prob_of(self._acting, self.network, obs, self._acting.record(found), self._bf16, self._batch)

    def _noise(self, rows: Tensor, generator: torch.Generator) -> Tensor | None:
        """Standard normal numbers (n, H, W) for envs `rows`, see `EpisodeActing.series`; None: draw new ones."""
        if not self._correlation:
            return None
        length, _ = self._acting.series(self.network)
        scores = noise.lasting(self._scores[rows], length, self._correlation, generator)
        # the next decision follows the executed part of the chunk, which may be shorter than the chunk
        self._scores[rows] = scores[:, self.network.horizon - 1]
        return scores

    def copied(self, num_envs: int, device: torch.device) -> EpisodesActing:
        """See `EpisodesActing.copied`."""
        del num_envs
        network = independent(self.network, device)
        return EpisodePolicy(network, self._acting, self._bf16, device, self._correlation, self._batch)


class EpisodeLearner(Learner):
    """Online fine-tuning of a policy on whole episodes.

    Args:
        cfg: settings.
        setup: see `Setup`; a policy to start from is required.
        method: name of the method in errors.
        acting: interface of the policy kind.
        make_loss: function from the policy to the method's loss, which has the policy as `policy`. Its carry is
            "updates" so far, which the loss counts, and "lr_scale", the current fraction of `lr`.
        group_size: episodes that begin in the same state; divides the sim's envs.
        correlation: see `EpisodePolicy`.

    Raises:
        ConfigError: settings out of range, no policy to start from, a sim that it was not trained for, or a number of
            envs that makes no whole groups.
        CapabilityError: the policy does not act this way, or the sim's initial states have no IDs.
    """

    def __init__(
        self,
        cfg: EpisodeCfg,
        setup: Setup,
        method: str,
        acting: EpisodeActing,
        make_loss: Callable[[Any], LossModule],
        group_size: int,
        correlation: float = 0.0,
    ) -> None:
        for name in ("iterations", "minibatch", "epochs"):
            check_at_least(f"algo.{name}", getattr(cfg, name), 1)
        for name in ("lr", "max_grad_norm"):
            check_positive(f"algo.{name}", getattr(cfg, name))
        check_number("algo.muon", cfg.muon, 0.0, 1e3)
        check_number("algo.lr_end", cfg.lr_end, 0.0, 1.0)
        check_decay("algo.ema", cfg.ema)
        self._shared = cfg
        self.world, self._seed = setup.world, setup.seed
        torch.manual_seed(setup.seed)
        self.acting = acting
        self.model = acting.start(setup, method)
        """The policy that learns, and that acts in training."""
        self.policy: Any = copy.deepcopy(self.model) if cfg.ema else self.model
        self.sim = setup.make_sim()
        check_fit(self.model, self.sim)
        self._generator = torch.Generator().manual_seed(setup.seed)
        batch = cfg.microbatch or cfg.minibatch
        policy_acting = EpisodePolicy(self.model, acting, cfg.bf16, setup.device, correlation, batch)
        self._stepper = self._collector = setup.collectors.groups(
            self.sim, policy_acting, group_size, setup.seed, self._generator
        )
        for policy in (self.model, self.policy):
            policy.control_dt_s = self.sim.control_dt_s
        self._engine = setup.engine(
            make_loss(self.model),
            (ParameterGroup(POLICY, cfg.max_grad_norm, cfg.ema or None, muon=cfg.muon),),
            minibatch=share("algo.minibatch", cfg.minibatch, self.world),
            carry={"updates": 0.0, "lr_scale": 1.0},
            mode=cfg.engine,
            microbatch=cfg.microbatch,
            updates_per_call=1,
        )
        self._steps = EpisodeSteps()
        self.iterations: int = cfg.iterations

    @property
    def env_steps(self) -> int:
        """Env steps taken up to the last `count_steps`, summed over envs and processes."""
        return self._steps.total

    def count_steps(self) -> None:
        """Add up the steps of all processes since the last call; episodes differ in length and number."""
        here = self._collector.env_steps
        self._steps.total += self.world.total(here - self._steps.counted)
        self._steps.counted = here

    def seen(self, found: Trajectories) -> dict[str, Tensor]:
        """Return the decisions' observations that the policy reads."""
        return {key: found.obs[key] for key in self.model.observation_spec}

    def iterate(self) -> dict[str, float]:
        """Run one iteration; the learning rate decays linearly from one to the next."""
        self._engine.carry["lr_scale"].fill_(line(self.iteration / self.iterations, self._shared.lr_end))
        self.iteration += 1
        return self.improve()

    @abstractmethod
    def improve(self) -> dict[str, float]:
        """Run the rollouts and updates of one iteration; returns scalars to log."""

    def learn(self, rows: dict[str, Tensor]) -> dict[str, float]:
        """Run the epochs over some decisions; returns means of the loss's scalars, and the first `ratio_error`.

        With several processes, each one learns from an even share of all decisions, wherever they were made.
        """
        cfg = self._shared
        everywhere = self.world.total(len(rows["weight"]))
        rows = self.world.dealt(rows)
        size = len(rows["weight"])
        most = self.world.most(size)
        order = epoch_order(size, self._engine.minibatch, cfg.epochs, self._generator, keep_all=True, most=most)
        updates = self._engine.run(rows, order, most, f"env step {self.env_steps}")
        self._write_average()
        scalars = {**updates.mean(), "decisions": float(everywhere)}
        if "ratio_error" in updates.info:
            scalars["ratio_error"] = float(updates.info["ratio_error"][0])
        return scalars

    def _write_average(self) -> None:
        if self.policy is not self.model:
            self._engine.write_average(POLICY, self.policy)

    def parts(self) -> dict[str, Part]:
        """See `Learner.parts`."""
        return {
            "policy": self.model,
            "engine": self._engine,
            "generator": self._generator,
            "collector": self._collector,
            "env_steps": self._steps,
        }

    def load(self, state: dict[str, Any]) -> None:
        """See `Learner.load`."""
        # older states have no iteration, and their learning rates did not decay
        super().load({"iteration": 0, **state})
        self._write_average()
        self._steps.counted = self._collector.env_steps
