"""What a sim gives at each step, what it must be able to do, and what else it may be able to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

from robotrl.spec.arrays import Spec

if TYPE_CHECKING:
    import gymnasium
    import numpy as np
    import torch
    from torch import Tensor

    from robotrl.spec.drive_trace import TraceFrame, TraceMap, TraceStep
    from robotrl.spec.symmetry import Symmetry

Split = Literal["train", "val", "test"]


# steps


class Step(NamedTuple):
    """What one control step of all envs returned. Rows that ended have already been reset (same-step reset).

    `terminated` and `truncated` are never merged. Both at once mean failure: do not bootstrap.
    """

    obs: dict[str, Tensor]
    """(N, ...) each: the observation to act on next; of the new episode where one ended."""
    reward: Tensor
    """(N,) float32."""
    terminated: Tensor
    """(N,) bool: the task ended the episode; nothing follows."""
    truncated: Tensor
    """(N,) bool: a time limit cut the episode; the value of `final_obs` follows."""
    final_obs: dict[str, Tensor]
    """(n, ...) each, compact: the last observation of the n episodes that ended, in the order of `final_ids`."""
    final_ids: Tensor
    """(n,) int64: which envs ended."""
    info: dict[str, Tensor]
    """(N,) each, about the step just made: `success` bool, `state_id` int64 (start of that episode, -1 if unknown).

    Of a sim that may lose episodes besides `lost` bool, see `lost`."""


def lost(step: Step) -> Tensor:
    """(N,) bool: rows whose episode went with the process that ran it. It counts for nothing, and runs again."""
    return step.info.get("lost", step.terminated & False)


# sims


@runtime_checkable
class VecSim(Protocol):
    """A batch of environments that step together; see `Step` for the reset rule."""

    num_envs: int
    device: torch.device
    observation_spec: dict[str, Spec]
    action_spec: Spec
    buffers_are_reused: bool
    """Whether tensors of one `Step` are overwritten by the next: whoever keeps one copies it."""

    @property
    def control_dt_s(self) -> float | None:
        """Seconds between two actions; None where nobody stated it, as of an environment without a clock."""
        ...

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Tensor]:
        """Start new episodes in all envs. `seed` restarts every random stream; None lets them run on."""
        ...

    def step(self, actions: Tensor) -> Step:
        """Advance all envs by one control step under `actions` (N, A), in the units of `action_spec`."""
        ...

    def close(self) -> None:
        """Free what the sim holds."""
        ...

    def as_gymnasium(self) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
        """The same sim as a numpy `gymnasium.vector.VectorEnv` with same-step autoreset."""
        ...


@runtime_checkable
class HasFinalObs(Protocol):
    """The sim fills `Step.final_obs`. Without this, a learner bootstraps from the value before the step."""

    has_final_obs: Literal[True]


@runtime_checkable
class HasState(Protocol):
    """Exact state: a sim that was restored continues bit for bit, random streams included."""

    def get_state(self) -> dict[str, np.ndarray]:
        """All state as named arrays (JSON-free, safetensors-ready)."""
        ...

    def set_state(self, state: dict[str, np.ndarray]) -> dict[str, Tensor]:
        """Restore what `get_state` returned; gives the observation at that state."""
        ...


@runtime_checkable
class HasStateIds(Protocol):
    """Episodes start from numbered states, the same for the same id in every process; splits are disjoint."""

    def state_ids(self, split: Split) -> range:
        """The ids of a split."""
        ...

    def queue_states(self, ids: Sequence[int] | np.ndarray) -> None:
        """Ids that the next resets (first `reset`, then autoreset) draw from, in order; then training ids again.

        Envs that begin at once take them in the order of the envs. An id is 0 or more.
        """
        ...


@runtime_checkable
class HasRestart(Protocol):
    """Single envs can be restarted between two steps, for whoever else may end an episode."""

    def restart(self, envs: Tensor) -> dict[str, Tensor]:
        """Start new episodes in the envs `envs` (n,) int64; gives the observation of all envs."""
        ...


@runtime_checkable
class HasDistance(Protocol):
    """The sim knows how far each env is from success; a robot could not know."""

    def distance(self) -> Tensor:
        """(N,) now, in metres or as the task's page says; falls on the way to success, which is near 0."""
        ...


@runtime_checkable
class HasSolvedReturn(Protocol):
    """The sim states the mean return from which its task counts as solved."""

    solved_return: float | None
    """Undiscounted; None where nobody says."""


@runtime_checkable
class HasCamera(Protocol):
    """The sim draws itself."""

    cameras: tuple[str, ...]
    """The first shows an episode best; of a robot that walks it is one that walks along."""

    def render(self, ids: Sequence[int], camera: str, width: int, height: int) -> np.ndarray:
        """(n, height, width, 3) uint8 pictures of the envs `ids`."""
        ...


@runtime_checkable
class HasPictureSize(Protocol):
    """Cameras whose pictures have proportions of their own; other ones would distort what is seen."""

    def picture_size(self, camera: str) -> tuple[int, int]:
        """Width and height, pixels, as they are drawn after the first reset."""
        ...


@runtime_checkable
class HasTrace(Protocol):
    """A driving sim that reports the state of all actors, for viewing episodes; see `robotrl.spec.drive_trace`."""

    action_is_plan: bool
    """Whether an action is a trajectory itself; then a plan is its points, not where some actions lead."""

    def trace_map(self, env: int) -> TraceMap:
        """What stays as it is for the whole of an env's running episode."""
        ...

    def trace_frame(self, env: int) -> TraceFrame:
        """Where everybody is now."""
        ...

    def trace_step(self, env: int) -> TraceStep:
        """What the last step brought, the end of an episode included."""
        ...

    def trace_plan(self, env: int, actions: np.ndarray) -> np.ndarray:
        """(m, 3) x, y, yaw of the ego after each of the actions (n, A), or at the points of the first one."""
        ...


@runtime_checkable
class HasScenarios(Protocol):
    """The starts belong to named scenarios."""

    scenarios: tuple[str, ...]

    def scenario_of(self, state_id: int) -> str:
        """The scenario that a start belongs to."""
        ...


class SuccessRule(NamedTuple):
    """By what rule a sim's episodes are successes."""

    text: str
    """In words: "info['success'] at any step"."""
    stated: bool
    """Whether the environment or the user stated it. Where nobody did, a success rate says nothing by itself."""


@runtime_checkable
class HasSuccessRule(Protocol):
    """The sim can say by what rule `info["success"]` is judged, because it is not the task's author who wrote that."""

    @property
    def success_rule(self) -> SuccessRule:
        """The rule that is in force."""
        ...


SHOWN_DT_S = 0.05
"""Seconds between two actions of a sim that states no rate, where something is shown or paced for people."""


def shown_dt_s(sim: VecSim) -> float:
    """Seconds between two actions, for people who look on; nothing may be learned or deployed by it."""
    return sim.control_dt_s or SHOWN_DT_S


@runtime_checkable
class HasReasons(Protocol):
    """The sim says why it lacks capabilities that others of its kind have."""

    reasons: Mapping[str, str]
    """By the capability's name ("HasStateIds"): what was seen, in one line."""


def why_lacking(sim: object, capability: str) -> str:
    """ ": " and the reason that a sim gives for lacking a capability; "" where it gives none."""
    reason = sim.reasons.get(capability, "") if isinstance(sim, HasReasons) else ""
    return f": {reason}" if reason else ""


INSTRUCTION = "instruction"
"""The observation of a sim that tells what to do."""


@runtime_checkable
class HasInstructions(Protocol):
    """Each episode is told in words what to do; the observation "instruction" has their numbers (see `Spec.words`)."""

    vocabulary: tuple[str, ...]
    """Words by number; 0 stands for none."""

    def instructions(self) -> list[str]:
        """(N) what each env's running episode is told."""
        ...


@runtime_checkable
class HasSymmetries(Protocol):
    """The sim states symmetries of its observations, instructions and actions; see `robotrl.spec.symmetry`."""

    symmetries: Mapping[str, tuple[Symmetry, ...]]
    """By kind: the changes of a kind, of which at most one is made at a time. They know every observation."""


@runtime_checkable
class HasParams(Protocol):
    """Physical parameters for each env (domain randomisation)."""

    params: tuple[str, ...]
    """Names with units, e.g. "peg_friction"."""

    def get_params(self) -> dict[str, np.ndarray]:
        """(N,) each: the multiplier or value in force."""
        ...

    def set_params(self, ids: Sequence[int] | np.ndarray, values: dict[str, np.ndarray]) -> None:
        """Set parameters of the envs `ids`."""
        ...


@runtime_checkable
class HasPrivileged(Protocol):
    """Some observation arrays are for the critic alone: a robot could not measure them."""

    privileged: tuple[str, ...]
    """Keys of `observation_spec` that no policy is built on."""


@runtime_checkable
class HasGroundingTargets(Protocol):
    """Some privileged arrays say what the words mean in this scene, and not only what there is to be seen."""

    meant: tuple[str, ...]
    """Keys among the privileged ones; where the named thing is, for example."""


def privileged(sim: VecSim) -> tuple[str, ...]:
    """Keys of the observations that no policy may see."""
    return tuple(sim.privileged) if isinstance(sim, HasPrivileged) else ()


def visible(sim: VecSim) -> dict[str, Spec]:
    """The observations that a policy may see: those that are not privileged."""
    hidden = privileged(sim)
    return {key: spec for key, spec in sim.observation_spec.items() if key not in hidden}


class Expert(Protocol):
    """A scripted demonstrator of a sim; it may read privileged state."""

    modes: tuple[str, ...]
    """The distinct ways in which it solves the task."""
    mode: Tensor
    """(N,) int64: the way chosen for each env's running episode."""

    def act(self, started: Tensor) -> Tensor:
        """Actions (N, A) for all envs; `started` (N,) bool marks envs at the first step of an episode."""
        ...


@runtime_checkable
class HasExpert(Protocol):
    """The sim brings a scripted expert."""

    def make_expert(
        self, noise: float = 0.0, clumsiness: float = 0.0, mode: str | None = None, seed: int = 0
    ) -> Expert:
        """An expert on this sim; `mode` None draws one per episode."""
        ...
