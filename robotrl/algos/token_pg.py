"""What methods that fine-tune policies which say tokens share: rollouts of whole episodes, checkpoints, resume."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robotrl.algos.ddp import check_processes, share, take_up
from robotrl.algos.engine import EngineMode, Group, LossModule
from robotrl.algos.half import in_bf16
from robotrl.algos.learner import Setup, SimLearner
from robotrl.algos.on_policy import epoch_order
from robotrl.checkpoint import generator_state
from robotrl.collect import Decision
from robotrl.errors import CapabilityError, ConfigError, check_at_least, check_decay, check_number, check_positive
from robotrl.fit import check_fit
from robotrl.group_rollout import GroupCollector, Trajectories
from robotrl.spec import HasTokens

POLICY = "policy."
"""Prefix of what learns in a loss."""


def start_from(setup: Setup, method: str) -> Any:
    """The policy that is fine-tuned.

    Raises:
        ConfigError: there is none.
        CapabilityError: it says no tokens.
    """
    if setup.init_policy is None:
        raise ConfigError(
            f"init_from is not given: {method} starts from a policy that says tokens; expected a run, e.g. of"
            " tabletop-bc-token"
        )
    if not isinstance(setup.init_policy, HasTokens):
        raise CapabilityError(
            f"policy {type(setup.init_policy).__name__} lacks HasTokens: {method} needs the probability of each token"
        )
    return setup.init_policy


class Said(NamedTuple):
    """What a policy said."""

    ctx: Any
    """What came before it."""
    decision: Decision
    """Its actions; remembered are their tokens (n, H, A)."""


def say(policy: Any, obs: dict[str, Tensor], generator: torch.Generator, at: Tensor | None = None) -> Said:
    """Chunks drawn at a policy's temperature, on observations (n, ...), or said from where `at` (n, H, A) has them."""
    ctx = policy.encode({key: obs[key] for key in policy.observation_spec})
    tokens = policy.sample_tokens(ctx, generator, "sample", at)
    return Said(ctx, Decision(policy.to_actions(policy.from_tokens(tokens)), {"tokens": tokens}))


class TokenLearner(SimLearner):
    """Fine-tunes a policy that says tokens on line.

    Args:
        cfg: has `iterations`, `minibatch`, `microbatch`, `epochs`, `lr`, `muon`, `ema`, `grad_norm`, `bf16`, `engine`.
        setup: see `Setup`; a policy to start from is required.
        method: what to call the method in errors.
        make_loss: (policy) to the method's loss, which has the policy as `policy`.
        group_size: episodes from one start; divides the sim's envs.

    Raises:
        ConfigError: settings out of range, no policy to start from, a sim that it is not for, or envs that make no
            whole groups.
        CapabilityError: the policy says no tokens, or the sim's starts are not numbered.
    """

    def __init__(
        self, cfg: Any, setup: Setup, method: str, make_loss: Callable[[Any], LossModule], group_size: int
    ) -> None:
        for name in ("iterations", "minibatch", "epochs"):
            check_at_least(f"algo.{name}", getattr(cfg, name), 1)
        for name in ("lr", "grad_norm"):
            check_positive(f"algo.{name}", getattr(cfg, name))
        check_number("algo.muon", cfg.muon, 0.0, 1e3)
        check_decay("algo.ema", cfg.ema)
        self._shared = cfg
        self.world, self._seed = setup.world, setup.seed
        torch.manual_seed(setup.seed)
        self.model = start_from(setup, method)
        """What learns, and acts while it does."""
        self.policy: Any = copy.deepcopy(self.model) if cfg.ema else self.model
        self.sim = setup.make_sim()
        check_fit(self.model, self.sim)
        self._stepper = self._collector = GroupCollector(self.sim, group_size, setup.seed)
        for policy in (self.model, self.policy):
            policy.control_dt_s = self.sim.control_dt_s
        mode: EngineMode = cfg.engine
        self._engine = setup.engine(
            make_loss(self.model),
            (Group(POLICY, cfg.grad_norm, cfg.ema or None, muon=cfg.muon),),
            minibatch=share("algo.minibatch", cfg.minibatch, self.world),
            carry=torch.zeros(1),
            mode=mode,
            microbatch=cfg.microbatch,
            updates_per_call=1,
        )
        self._generator = torch.Generator().manual_seed(setup.seed)
        self._env_steps = self._counted = 0
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
        """Chunks of envs `rows`, drawn at the policy's temperature; remembered are their tokens."""
        at = self.places(rows)
        with in_bf16(self._shared.bf16, self._engine.device):
            return say(self.model, obs, self._generator, at).decision

    def places(self, rows: Tensor) -> Tensor | None:
        """Where in their distributions tokens (n, H, A) of envs are said from; None draws each for itself."""
        return None

    def seen(self, found: Trajectories) -> dict[str, Tensor]:
        """The observations of decisions that the policy sees."""
        return {key: found.obs[key] for key in self.model.observation_spec}

    def learn(self, rows: dict[str, Tensor]) -> dict[str, float]:
        """The epochs over some decisions; gives the means of what the loss logs, the first of `ratio_error`.

        Of several processes each learns from an even share of all decisions, wherever they were made.
        """
        cfg = self._shared
        everywhere = self.world.total(len(rows["tokens"]))
        rows = self.world.dealt(rows)
        size = len(rows["tokens"])
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
        take_up(self.world, state, self._seed + self._env_steps, self._generator, self._collector)
        self._counted = self._collector.env_steps
