"""Sim protocol, the step record, and protocols of optional sim capabilities."""

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
    """Result of one control step of all envs. Envs whose episode ended are already reset (same-step reset).

    `terminated` and `truncated` are never merged. Both at once mean failure: do not bootstrap.
    """

    obs: dict[str, Tensor]
    """(N, ...) each: the observation to act on next; where an episode ended, the first one of the new episode."""
    reward: Tensor
    """(N,) float32."""
    terminated: Tensor
    """(N,) bool: the task ended the episode; nothing follows."""
    truncated: Tensor
    """(N,) bool: a time limit cut the episode; the value of `final_obs` follows."""
    final_obs: dict[str, Tensor]
    """(n, ...) each, compact: the last observation of the n episodes that ended, in the order of `final_ids`."""
    final_ids: Tensor
    """(n,) int64: indices of the envs whose episode ended."""
    info: dict[str, Tensor]
    """(N,) each, about the step just made: `success` bool, `state_id` int64 (start of that episode, -1 if unknown).

    A sim that can lose episodes adds `lost` bool, see `lost`; one that can cut them off adds `cut` bool, see `cut`."""


def lost(step: Step) -> Tensor:
    """(N,) bool: envs whose episode was lost because its worker process died. It is not counted, and is run again."""
    return step.info.get("lost", step.terminated & False)


def cut(step: Step) -> Tensor:
    """(N,) bool: envs whose episode was cut off, because the sim does not know what comes next.

    Its last observation is bootstrapped from as after any truncation. Its return is no result: methods that compare
    whole episodes leave it out.
    """
    return step.info.get("cut", step.terminated & False)


# sims


@runtime_checkable
class VecSim(Protocol):
    """A batch of environments that step together; see `Step` for the reset rule."""

    num_envs: int
    device: torch.device
    observation_spec: dict[str, Spec]
    action_spec: Spec
    buffers_are_reused: bool
    """True if the next `Step` overwrites the tensors of this one: copy those to be kept."""

    @property
    def control_dt_s(self) -> float | None:
        """Seconds between two actions; None if unknown, for example for an environment without a clock."""
        ...

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Tensor]:
        """Start new episodes in all envs. `seed` reseeds all random streams; None lets them continue."""
        ...

    def step(self, actions: Tensor) -> Step:
        """Advance all envs by one control step under `actions` (N, A), in the units of `action_spec`."""
        ...

    def close(self) -> None:
        """Free the sim's resources."""
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
    """Exact state: a restored sim continues bit for bit, random streams included."""

    def get_state(self) -> dict[str, np.ndarray]:
        """All state as named arrays (JSON-free, safetensors-ready)."""
        ...

    def set_state(self, state: dict[str, np.ndarray]) -> dict[str, Tensor]:
        """Restore what `get_state` returned; returns the observation at that state."""
        ...


@runtime_checkable
class HasStateIds(Protocol):
    """Episodes start from numbered states: an id means the same state in every process; splits are disjoint."""

    def state_ids(self, split: Split) -> range:
        """The ids of a split."""
        ...

    def queue_states(self, ids: Sequence[int] | np.ndarray) -> None:
        """Queue start ids for the next resets, in order: first `reset`, then autoreset.

        When the queue is empty, starts are training ids again. Envs that reset in the same step take ids in the order
        of the envs. An id is 0 or more.
        """
        ...


@runtime_checkable
class HasRestart(Protocol):
    """Single envs can be restarted between two steps, for example when a reward classifier ends an episode."""

    def restart(self, envs: Tensor) -> dict[str, Tensor]:
        """Start new episodes in the envs `envs` (n,) int64; returns the observation of all envs."""
        ...


@runtime_checkable
class HasTimeLimit(Protocol):
    """The sim knows how long an episode may last, and how long each env's has lasted."""

    @property
    def limit_steps(self) -> int | None:
        """Steps after which an episode is truncated; None if the sim does not know."""
        ...

    def elapsed_steps(self) -> Tensor:
        """(N,) int64 on the sim's device, a copy: position of each running episode, as the time limit counts it.

        After a reset with "stagger" it starts above 0.
        """
        ...


@runtime_checkable
class HasDistance(Protocol):
    """The sim gives each env's distance from success, which a robot could not measure."""

    def distance(self) -> Tensor:
        """(N,) present distance, in meters or as the task's page says; it falls towards success, where it is near 0."""
        ...


@runtime_checkable
class HasSolvedReturn(Protocol):
    """The sim states the mean return from which its task counts as solved."""

    solved_return: float | None
    """Undiscounted return; None if unknown."""


@runtime_checkable
class HasCamera(Protocol):
    """The sim can render images."""

    cameras: tuple[str, ...]
    """Camera names. The first shows an episode best; for a walking robot it follows the robot."""

    def render(self, ids: Sequence[int], camera: str, width: int, height: int) -> np.ndarray:
        """(n, height, width, 3) uint8 pictures of the envs `ids`."""
        ...


@runtime_checkable
class HasPictureSize(Protocol):
    """Cameras with a native aspect ratio; other sizes would distort the image."""

    def picture_size(self, camera: str) -> tuple[int, int]:
        """Native width and height in pixels; call after the first reset."""
        ...


@runtime_checkable
class HasTrace(Protocol):
    """A driving sim that reports the state of all actors, for viewing episodes; see `robotrl.spec.drive_trace`."""

    action_is_plan: bool
    """True if an action is itself a trajectory; then the plan is its points, not the result of simulating actions."""

    def trace_map(self, env: int) -> TraceMap:
        """Static map of an env's running episode."""
        ...

    def trace_frame(self, env: int) -> TraceFrame:
        """Present state of all road users of an env."""
        ...

    def trace_step(self, env: int) -> TraceStep:
        """Result of the env's last step, which may have ended the episode."""
        ...

    def trace_plan(self, env: int, actions: np.ndarray) -> np.ndarray:
        """(m, 3) x, y, yaw of the ego after each of the actions (n, A), or at the points of the first one."""
        ...


@runtime_checkable
class HasScenarios(Protocol):
    """Start states are grouped into named scenarios."""

    scenarios: tuple[str, ...]

    def scenario_of(self, state_id: int) -> str:
        """Scenario of a start id."""
        ...


class SuccessRule(NamedTuple):
    """Definition of success of a sim's episodes."""

    text: str
    """The rule as text: "info['success'] at any step"."""
    stated: bool
    """True if the environment or the user stated the rule. If neither did, the success rate has no meaning of its
    own."""


@runtime_checkable
class HasSuccessRule(Protocol):
    """The sim reports its success rule because `info["success"]` was not defined by the task's author."""

    @property
    def success_rule(self) -> SuccessRule:
        """Rule in force."""
        ...


SHOWN_DT_S = 0.05
"""Assumed seconds between two actions, for display only, of a sim that states no control rate."""


def shown_dt_s(sim: VecSim) -> float:
    """Seconds between two actions for display and playback; not for learning or deployment."""
    return sim.control_dt_s or SHOWN_DT_S


TO_THE_LIMIT = 1 << 40
"""`HasSuccessHold.success_hold_steps` by which an episode goes on to its time limit, or to a failure."""


@runtime_checkable
class HasSuccessHold(Protocol):
    """Episodes can go on after a success, so that scenes of success are seen, and value can be learned there.

    A sim ends an episode in the step of its success, and shows the first scene of the next one after it.
    """

    success_hold_steps: int
    """Number of control steps for which an episode goes on after its first success, 0 or more; 0, the default, ends it
    at once, `TO_THE_LIMIT` never. `info["success"]` stays True from the first success on. A setting, to be made before
    a reset; not part of the state."""


class SuccessLabel(NamedTuple):
    """Outcome of an episode that was told after its end."""

    number: int
    """Number of the episode in the order of their beginnings, from 0; envs that begin at once come in their order."""
    success: bool
    """Success, as it was told."""


@runtime_checkable
class HasSuccessLabels(Protocol):
    """Success is told some time after an episode's end, as on a robot, whose episodes a person or classifier judges."""

    def take_success_labels(self) -> list[SuccessLabel]:
        """Outcomes that were told since the last call, in the order in which the episodes ended."""
        ...


@runtime_checkable
class HasReasons(Protocol):
    """The sim explains why it lacks optional capabilities."""

    reasons: Mapping[str, str]
    """Capability name ("HasStateIds") to the reason, one line."""


def why_lacking(sim: object, capability: str) -> str:
    """ ": " and the sim's reason for lacking a capability; "" if it gives none."""
    reason = sim.reasons.get(capability, "") if isinstance(sim, HasReasons) else ""
    return f": {reason}" if reason else ""


INSTRUCTION = "instruction"
"""Key of the observation that holds the instruction's word ids."""


@runtime_checkable
class HasInstructions(Protocol):
    """Language-conditioned sim; observation "instruction" holds the instruction's word ids (see `Spec.words`)."""

    vocabulary: tuple[str, ...]
    """Words by id; id 0 is padding."""

    def instructions(self) -> list[str]:
        """(N) instruction of each env's running episode."""
        ...


@runtime_checkable
class HasSymmetries(Protocol):
    """The sim states symmetries of its observations, instructions and actions; see `robotrl.spec.symmetry`."""

    symmetries: Mapping[str, tuple[Symmetry, ...]]
    """Kind of symmetry to its alternatives, of which at most one is applied at a time. Each covers every
    observation."""


@runtime_checkable
class HasParams(Protocol):
    """Physical parameters of each env (domain randomization)."""

    params: tuple[str, ...]
    """Names with units, e.g. "peg_friction"."""

    def get_params(self) -> dict[str, np.ndarray]:
        """(N,) each: the multiplier or value in force."""
        ...

    def set_params(self, ids: Sequence[int] | np.ndarray, values: dict[str, np.ndarray]) -> None:
        """Set parameters of the envs `ids`."""
        ...


@runtime_checkable
class HasPlaces(Protocol):
    """Loose things of the scene can be moved as an episode begins."""

    places: tuple[str, ...]
    """Names of the things; empty for a scene without any."""

    def displace(self, envs: Tensor, offsets_m: np.ndarray) -> dict[str, Tensor]:
        """Move the things of the envs `envs` (n,) int64 by (n, things, 2) meters along x and y of the world.

        Only before the first step of their episodes. Returns the observation of all envs.
        """
        ...


@runtime_checkable
class HasPrivileged(Protocol):
    """Some observation arrays are for the critic only: a robot could not measure them."""

    privileged: tuple[str, ...]
    """Keys of `observation_spec` that a policy may not read."""


@runtime_checkable
class HasGroundingTargets(Protocol):
    """Some privileged arrays are grounding targets: they state which objects in the scene the instruction refers to."""

    grounding_keys: tuple[str, ...]
    """Keys of the grounding targets, a subset of the privileged keys; for example the position of the named object."""


def privileged(sim: VecSim) -> tuple[str, ...]:
    """Keys of the observations that a policy may not read."""
    return tuple(sim.privileged) if isinstance(sim, HasPrivileged) else ()


def visible(sim: VecSim) -> dict[str, Spec]:
    """Specs of the observations that a policy may read: all but the privileged ones."""
    hidden = privileged(sim)
    return {key: spec for key, spec in sim.observation_spec.items() if key not in hidden}


class Expert(Protocol):
    """A scripted demonstrator of a sim; it may read privileged state."""

    modes: tuple[str, ...]
    """Names of the distinct strategies for the task."""
    mode: Tensor
    """(N,) int64: index of the strategy of each env's running episode."""

    def act(self, started: Tensor) -> Tensor:
        """Actions (N, A) for all envs; `started` (N,) bool marks envs at the first step of an episode."""
        ...


@runtime_checkable
class HasExpertState(Protocol):
    """An expert whose plans and random numbers can be saved: a run that asks it then resumes bit for bit."""

    def get_state(self) -> dict[str, np.ndarray]:
        """Exact state as named arrays."""
        ...

    def set_state(self, state: dict[str, np.ndarray]) -> None:
        """Restore exact state."""
        ...


@runtime_checkable
class HasExpert(Protocol):
    """The sim provides a scripted expert."""

    def make_expert(
        self, noise: float = 0.0, episode_noise: float = 0.0, mode: str | None = None, seed: int = 0
    ) -> Expert:
        """Make an expert for this sim; with `mode` None each episode draws a strategy."""
        ...
