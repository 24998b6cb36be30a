"""Scripted teachers: the sim's expert or a stored policy, with noise that makes it as good as one wants it to be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from robotrl.errors import CapabilityError
from robotrl.learners.guidance.cfg import GuidanceCfg
from robotrl.learners.guidance.suggester import Suggestions, no_suggestions
from robotrl.rollout.compatibility import check_fit
from robotrl.run.checkpoint import generator_state, set_generator_state
from robotrl.run.policy_checkpoint import load_policy
from robotrl.spec import Arrays, CarriesMemory, HasExpert, HasExpertState, VecSim


class TeacherActor(Protocol):
    """Acts on all envs of a sim."""

    def act(self, obs: Arrays, started: Tensor) -> Tensor:
        """Actions (N, A) in the sim's units."""
        ...

    def state(self) -> Any:
        """State to resume from; None where there is none."""
        ...

    def load(self, state: Any) -> None:
        """Restore the result of `state`."""
        ...


class TeacherExpert:
    """The sim's scripted expert.

    Raises:
        CapabilityError: the sim has none.
    """

    def __init__(self, cfg: GuidanceCfg, sim: VecSim, seed: int) -> None:
        if not isinstance(sim, HasExpert):
            raise CapabilityError(
                f"sim {type(sim).__name__} lacks HasExpert: expected algo.guidance.by policy or endpoint"
            )
        self._expert = sim.make_expert(0.0, cfg.episode_noise, cfg.mode, seed)
        self._anew = False

    def act(self, obs: Arrays, started: Tensor) -> Tensor:
        """See `TeacherActor`."""
        del obs
        started = torch.ones_like(started) if self._anew else started
        self._anew = False
        return self._expert.act(started)

    def state(self) -> Any:
        """See `TeacherActor`."""
        return self._expert.get_state() if isinstance(self._expert, HasExpertState) else None

    def load(self, state: Any) -> None:
        """See `TeacherActor`; an expert whose state is not known plans anew."""
        if state is not None and isinstance(self._expert, HasExpertState):
            self._expert.set_state(state)
        else:
            self._anew = True


class TeacherPolicy:
    """A stored policy, which acts as it would on the robot.

    Raises:
        DataError: it cannot be read.
        ConfigError: it does not fit the sim.
        CapabilityError: it has a memory, and is asked at each step, whether it acts or not.
    """

    def __init__(self, path: str, sim: VecSim, generator: torch.Generator) -> None:
        self._policy: Any = load_policy(path).to(sim.device)
        if isinstance(self._policy, CarriesMemory):
            raise CapabilityError(
                f"guidance.policy {path!r} is a {type(self._policy).__name__}, which has a memory: expected a policy"
                " without memory"
            )
        check_fit(self._policy, sim)
        self._generator = generator

    @torch.no_grad()
    def act(self, obs: Arrays, started: Tensor) -> Tensor:
        """See `TeacherActor`; the first action of a chunk."""
        del started
        return self._policy.act(obs, None, self._generator, self._policy.deploy_mode).chunk[:, 0]

    def state(self) -> None:
        """See `TeacherActor`; the generator is the teacher's."""

    def load(self, state: Any) -> None:
        """See `TeacherActor`."""


class Teacher:
    """An actor whose actions get noise; a `Suggester` that never is late.

    Args:
        cfg: settings; its `by` is "expert" or "policy".
        sim: the training sim.
        seed: seed of expert and noise.

    Raises:
        CapabilityError: the sim has no expert.
        ConfigError: the policy does not fit the sim, or the expert has no such mode.
        DataError: the policy cannot be read.
    """

    def __init__(self, cfg: GuidanceCfg, sim: VecSim, seed: int) -> None:
        self._cfg = cfg
        self._generator = torch.Generator().manual_seed(seed)
        self._actor: TeacherActor
        if cfg.by == "expert":
            self._actor = TeacherExpert(cfg, sim, seed)
        else:
            self._actor = TeacherPolicy(cfg.policy or "", sim, self._generator)
        self._low = torch.tensor(sim.action_spec.low, dtype=torch.float32)
        self._high = torch.tensor(sim.action_spec.high, dtype=torch.float32)
        self._step = 0

    def suggest(self, obs: Arrays, started: Tensor, tickets: Tensor) -> Tensor:
        """See `Suggester`; an expert follows each step, whether it is asked or not."""
        del tickets
        action = self._actor.act(obs, started).detach().float().cpu()
        noise = torch.randn(action.shape, generator=self._generator)
        noisy = action + self._cfg.noise * (self._high - self._low) / 2 * noise
        self._step += 1
        if (self._step - 1) % self._cfg.every:
            return torch.full_like(action, torch.nan)
        return torch.minimum(torch.maximum(noisy, self._low), self._high)

    def arrived(self, limit_s: float = 0.0) -> Suggestions:
        """See `Suggester`."""
        del limit_s
        return no_suggestions(len(self._low))

    def metrics(self) -> dict[str, float]:
        """See `Suggester`."""
        return {}

    def state(self) -> dict[str, Any]:
        """See `Suggester`."""
        return {"generator": generator_state(self._generator), "actor": self._actor.state(), "step": self._step}

    def load(self, state: Mapping[str, Any]) -> None:
        """See `Suggester`."""
        set_generator_state(self._generator, state["generator"])
        self._actor.load(state["actor"])
        self._step = int(state["step"])

    def close(self) -> None:
        """See `Suggester`."""
