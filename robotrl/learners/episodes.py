"""What methods that learn from whole episodes share: rollouts in groups, updates, checkpoints, resume.

How a policy acts, and how likely what it did was, is its `EpisodeActing`: by tokens, or through a denoising chain.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from robotrl.engine.autocast import in_bf16
from robotrl.engine.distributed import check_processes, share, take_up
from robotrl.engine.engine import EngineMode, LossModule, ParameterGroup
from robotrl.errors import check_at_least, check_decay, check_number, check_positive
from robotrl.fn.schedule import line
from robotrl.learners.learner import Setup, SimLearner
from robotrl.learners.on_policy import epoch_order
from robotrl.rollout.collector import Decision
from robotrl.rollout.compatibility import check_fit
from robotrl.rollout.groups import GroupCollector, Trajectories
from robotrl.run.checkpoint import generator_state

POLICY = "policy."
"""Prefix of what learns in a loss."""


@dataclass(frozen=True)
class EpisodeCfg:
    """Settings that all methods have that learn from whole episodes."""

    iterations: int = 60
    """Rollouts, each with its updates."""
    minibatch: int = 128
    """Decisions for each update."""
    microbatch: int | None = None
    """Decisions whose gradient is taken at once, where those of a minibatch do not fit into memory; a divisor of it."""
    epochs: int = 1
    """Passes over an iteration's decisions; in all but the first the policy has moved on from what it did."""
    lr: float = 1e-4
    """Of Adam."""
    lr_end: float = 1.0
    """The learning rate at the end of the iterations, as a part of that at their start; it falls along a line."""
    muon: float = 0.0
    """Matrices between hidden states move by Muon, with so many times the learning rate; see docs/engine.md. 0 moves
    them by Adam, as all else."""
    ema: float = 0.0
    """Decay for each update of the averaged weights that are evaluated and deployed, in which the noise of updates is
    gone; precise motions suffer from little. 0 evaluates the weights themselves."""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this norm."""
    bf16: bool = False
    """Networks compute in bfloat16, densities, losses and parameters stay in float32; see docs/engine.md."""
    engine: EngineMode = "eager"
    """How updates are computed; see docs/engine.md."""


class Likelihood(NamedTuple):
    """How likely decisions were."""

    log_prob: Tensor
    """(D, ...) one for each part of a decision that has a ratio of its own."""
    entropy: Tensor | None = None
    """Mean over the parts, a scalar to log."""


class EpisodeActing(Protocol):
    """How a kind of policy acts while it learns, and how likely what it did was."""

    def start(self, setup: Setup, method: str) -> Any:
        """The policy that is fine-tuned.

        Raises:
            ConfigError: there is none.
            CapabilityError: it does not act this way.
        """
        ...

    def series(self, policy: Any) -> tuple[int, int]:
        """(H, W): how many control steps a decision of the policy covers, and the numbers that each is drawn from."""
        ...

    def decide(
        self, policy: Any, obs: dict[str, Tensor], generator: torch.Generator, scores: Tensor | None
    ) -> Decision:
        """Act on observations (n, ...), from normal scores (n, H, W), or from such as are drawn here."""
        ...

    def record(self, found: Trajectories) -> dict[str, Tensor]:
        """What `likelihood` needs of decisions, besides what was observed."""
        ...

    def likelihood(self, policy: Any, obs: dict[str, Tensor], rows: dict[str, Tensor]) -> Likelihood:
        """How likely decisions are now; gradients flow.

        Args:
            policy: what learns.
            obs: (D, ...) what it saw.
            rows: (D, ...) what `record` gave, and more.
        """
        ...

    def weights(self, policy: Any, valid: Tensor, episode: Tensor, episodes: int) -> Tensor:
        """(D, ...) weights of a decision's parts, whose weighted sum, averaged over D, is a mean over episodes.

        Args:
            policy: what learns.
            valid: (D, H) actions that were carried out.
            episode: (D,) whose they are.
            episodes: N.
        """
        ...


def step_weights(valid: Tensor, episode: Tensor, episodes: int) -> Tensor:
    """(D, H) weights whose weighted sum, averaged over D, is the mean over episodes of the mean over their steps.

    Args:
        valid: (D, H) actions that were carried out.
        episode: (D,) whose they are.
        episodes: N.
    """
    steps = valid.float().sum(dim=1)
    count = steps.new_zeros(episodes).index_add_(0, episode, steps)
    return valid.float() * (len(valid) / (episodes * count[episode]))[:, None]


class EpisodeLearner(SimLearner):
    """Fine-tunes a policy on line, by whole episodes.

    Args:
        cfg: settings.
        setup: see `Setup`; a policy to start from is required.
        method: what to call the method in errors.
        acting: how the policy acts.
        make_loss: (policy) to the method's loss, which has the policy as `policy`. Its carry is how many updates there
            were, which the loss counts, and what share of `lr` the iteration learns with.
        group_size: episodes from one start; divides the sim's envs.

    Raises:
        ConfigError: settings out of range, no policy to start from, a sim that it is not for, or envs that make no
            whole groups.
        CapabilityError: the policy does not act this way, or the sim's starts are not numbered.
    """

    def __init__(
        self,
        cfg: EpisodeCfg,
        setup: Setup,
        method: str,
        acting: EpisodeActing,
        make_loss: Callable[[Any], LossModule],
        group_size: int,
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
        """What learns, and acts while it does."""
        self.policy: Any = copy.deepcopy(self.model) if cfg.ema else self.model
        self.sim = setup.make_sim()
        check_fit(self.model, self.sim)
        self._stepper = self._collector = GroupCollector(self.sim, group_size, setup.seed)
        for policy in (self.model, self.policy):
            policy.control_dt_s = self.sim.control_dt_s
        self._engine = setup.engine(
            make_loss(self.model),
            (ParameterGroup(POLICY, cfg.max_grad_norm, cfg.ema or None, muon=cfg.muon),),
            minibatch=share("algo.minibatch", cfg.minibatch, self.world),
            carry=torch.tensor([0.0, 1.0]),
            mode=cfg.engine,
            microbatch=cfg.microbatch,
            updates_per_call=1,
        )
        self._generator = torch.Generator().manual_seed(setup.seed)
        self._env_steps = self._counted = self._iteration = 0
        self.iterations: int = cfg.iterations

    @property
    def env_steps(self) -> int:
        """Env steps taken up to the last `count_steps`, each env's of each process counted."""
        return self._env_steps

    def count_steps(self) -> None:
        """Count what all processes have stepped since the last time; episodes differ in length and in number."""
        here = self._collector.env_steps
        self._env_steps += self.world.total(here - self._counted)
        self._counted = here

    @torch.no_grad()
    def decide(self, obs: dict[str, Tensor], rows: Tensor) -> Decision:
        """Chunks of envs `rows`, drawn as the policy acts while it learns."""
        with in_bf16(self._shared.bf16, self._engine.device):
            return self.acting.decide(self.model, obs, self._generator, self.scores(rows))

    def scores(self, rows: Tensor) -> Tensor | None:
        """Normal scores (n, H, W) that envs `rows` act from, see `EpisodeActing.series`; None draws each for itself."""
        return None

    def seen(self, found: Trajectories) -> dict[str, Tensor]:
        """The observations of decisions that the policy sees."""
        return {key: found.obs[key] for key in self.model.observation_spec}

    def iterate(self) -> dict[str, float]:
        """One iteration; the learning rate falls from one to the next along a line."""
        self._engine.carry[1] = line(self._iteration / self.iterations, self._shared.lr_end)
        self._iteration += 1
        return self.improve()

    @abstractmethod
    def improve(self) -> dict[str, float]:
        """Rollouts and updates of one iteration; gives what to log."""

    def learn(self, rows: dict[str, Tensor]) -> dict[str, float]:
        """The epochs over some decisions; gives the means of what the loss logs, the first of `ratio_error`.

        Of several processes each learns from an even share of all decisions, wherever they were made.
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

    def state(self) -> dict[str, Any]:
        """See `Learner.state`."""
        return {
            "policy": self.model.state_dict(),
            "engine": self._engine.state(),
            "generator": generator_state(self._generator),
            "collector": self._collector.state(),
            "env_steps": self._env_steps,
            "iteration": self._iteration,
            "processes": self.world.size,
        }

    def load(self, state: dict[str, Any]) -> None:
        """See `Learner.load`; the state is that of process 0, the others begin new episodes with streams of their own.

        Raises:
            ConfigError: the state is that of another number of processes.
        """
        check_processes(self.world, state)
        self.model.load_state_dict(state["policy"])
        self._engine.load(state["engine"])
        self._write_average()
        self._env_steps = int(state["env_steps"])
        # states of before do not say, and their rates did not fall
        self._iteration = int(state.get("iteration", 0))
        take_up(self.world, state, self._seed + self._env_steps, self._generator, self._collector)
        self._counted = self._collector.env_steps
