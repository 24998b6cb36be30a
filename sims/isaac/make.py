"""`isaac/...`: an environment of Isaac Lab, mjlab or Isaac Gym; see docs/sims/isaac.md."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import tyro

from robotrl.errors import ConfigError, DataError, out_of_range
from robotrl.sims.isaac.base import IsaacSim
from robotrl.sims.isaac.descriptors import Descriptors
from robotrl.sims.isaac.faults import IsaacFault
from robotrl.sims.isaac.vec_task import Resets
from robotrl.sims.isaac.wrap import sim_of
from robotrl.spec import Input, TrainDefaults
from robotrl.spec.json_flag import JSON_FLAG
from robotrl.spec.sim_options import NOT_LOG_ONLY, UNPERTURBED, LogOnlyCfg, PerturbCfg
from robotrl.utils.user_module import beside_the_user, user_callable

TASKS = {"lab": "robotrl.sims.isaac.tasks:lab", "mjlab": "robotrl.sims.isaac.tasks:mjlab"}
"""Names in front of a task's id, and the factory that makes such a task."""
EXPECTED = "MODULE:FUNCTION, lab:TASK or mjlab:TASK"
MADE_BY_US = ("num_envs", "seed")
"""Arguments of a factory that come from the sim's own."""


@dataclass(frozen=True)
class IsaacCfg:
    """Options of `isaac/...`."""

    train_defaults: ClassVar[TrainDefaults] = TrainDefaults(
        {
            "sim.num_envs": 4096,
            "policy.horizon": 1,
            "algo.critic_warmup_env_steps": 0,
            "algo.num_steps": 24,
            "algo.minibatch": 24576,
            "evaluation.episodes": 0,
            "evaluation.score": "return",
            "evaluation.animation": 0,
        }
    )
    source: Annotated[str, tyro.conf.Fixed]
    """Source of the environment: "MODULE:FUNCTION" is called with `num_envs`, `seed` and `kwargs`; "lab:TASK" and
    "mjlab:TASK" are tasks that these packages register."""
    kwargs: Annotated[Mapping[str, Any] | None, JSON_FLAG] = None
    """Further keyword arguments of the function, as a JSON object; of "lab:" and "mjlab:" `device` and `overrides`."""
    groups: tuple[str, ...] | None = None
    """Observation groups to take; None takes all."""
    policy_groups: tuple[str, ...] | None = None
    """Observation groups that a policy may read; the others are for critics. None: "policy" or "actor" (Isaac Gym:
    "obs")."""
    action_bound: float = 1.0
    """Bound that replaces infinite bounds of the environment's own action."""
    actions: Literal["targets", "raw"] = "targets"
    """Actions of the sim: "targets" are joint targets in rad where the environment describes scale and offset, "raw"
    are the environment's own numbers."""
    success: str = "auto"
    """Signal of success: "survival" is to reach the time limit, "termination" to end before it, "term:NAME" to end by
    that termination term, "extras:KEY" a flag of each env in `extras`; "auto" is "survival", which then counts as not
    stated."""
    resets: Resets = "next-step"
    """Time of a reset, of Isaac Gym's tasks: NVIDIA's reset in the step after an end, some forks in the same step."""
    control_dt_s: float | None = None
    """Seconds between two actions; None asks the environment. Tasks of Isaac Gym do not state it."""
    descriptors: str | None = None
    """File of IO descriptors as JSON; None asks the environment."""
    perturb: PerturbCfg = UNPERTURBED
    """Perturbations: places, looks, words, delay, noise, mass and friction; see docs/perturbations.md."""
    history: int = 1
    """Control steps whose observations a policy is given, the present one last, 1 to 100; see docs/history.md."""
    log_only: LogOnlyCfg = NOT_LOG_ONLY
    """Log-only mode: a budget of episodes from starts that nobody chooses; see docs/log-only.md."""

    def build(self, num_envs: int, seed: int) -> IsaacSim:
        """Build the batched sim.

        Args:
            num_envs: N, 1 or more.
            seed: seed of the environment and of its first reset.

        Raises:
            ConfigError: a value out of range, a source that cannot be imported, or an environment of another surface.
            IsaacFault: the function raised.
        """
        descriptors = None if self.descriptors is None else read_descriptors(Path(self.descriptors))
        env = self._make(num_envs, seed)
        if env.num_envs != num_envs:
            raise ConfigError(f"isaac/{self.source} made {env.num_envs} envs: expected num_envs, {num_envs}")
        return sim_of(
            env,
            name=f"isaac/{self.source}",
            seed=seed,
            groups=self.groups,
            policy_groups=self.policy_groups,
            action_bound=self.action_bound,
            actions=self.actions,
            success=self.success,
            resets=self.resets,
            control_dt_s=self.control_dt_s,
            descriptors=descriptors,
        )

    def _make(self, num_envs: int, seed: int) -> Any:
        kwargs = checked_kwargs(self.kwargs)
        target, task = factory_of(self.source)
        factory = user_callable(target, f"sim 'isaac/{self.source}'", EXPECTED)
        try:
            with beside_the_user():
                return factory(*task, num_envs=num_envs, seed=seed, **kwargs)
        except (ConfigError, DataError):
            raise
        except Exception as error:  # code of others
            text = " ".join(str(error).split()) or "no message"
            raise IsaacFault(f"isaac/{self.source}: {target}() raised {type(error).__name__}: {text}") from error

    def inputs(self) -> list[Input]:
        """Module of the function, and the file of descriptors; see `HasInputs`."""
        target, task = factory_of(self.source)
        found = [] if task else [Input("", "module", target.partition(":")[0])]
        return found + ([Input("descriptors", "file", self.descriptors)] if self.descriptors is not None else [])


def factory_of(source: str) -> tuple[str, tuple[str, ...]]:
    """Function "MODULE:FUNCTION" of a source, and the task that it is called with, if the source names one.

    Raises:
        ConfigError: another form.
    """
    first, colon, rest = source.partition(":")
    if first in TASKS and rest:
        return TASKS[first], (rest,)
    if not colon or not rest or not re.fullmatch(r"[\w.]+", first):
        raise ConfigError(f"sim 'isaac/{source}': expected isaac/{EXPECTED}")
    return source, ()


def checked_kwargs(kwargs: Any) -> dict[str, Any]:
    """Validated option `kwargs`.

    Raises:
        ConfigError: not a mapping with string keys, or a key of the sim's own.
    """
    if kwargs is None:
        return {}
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise out_of_range("kwargs", kwargs, 'arguments by name, e.g. {"device": "cuda:0"}')
    for name in MADE_BY_US:
        if name in kwargs:
            raise ConfigError(f"kwargs holds {name!r}: expected without it, the sim has it")
    return dict(kwargs)


def read_descriptors(path: Path) -> Descriptors:
    """IO descriptors of a JSON file.

    Raises:
        DataError: it cannot be read, or lacks their sections.
    """
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"descriptors is {str(path)!r}: expected a JSON file of IO descriptors: {error}") from error
    if not isinstance(found, dict) or not {"observations", "actions"} <= found.keys():
        raise DataError(f"descriptors is {str(path)!r}: expected an object with 'observations' and 'actions'")
    return found  # pyright: ignore[reportUnknownVariableType]


def family(source: str) -> IsaacCfg:
    """`isaac/...`: an environment of Isaac Lab, mjlab or Isaac Gym's surface; the default options of one source.

    Raises:
        ConfigError: a source of another form.
    """
    factory_of(source)
    return IsaacCfg(source)
