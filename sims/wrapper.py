"""Base of sim wrappers. Collectors and learners use a wrapped sim like the sim itself.

A wrapper has exactly the capabilities of its sim: `declared` builds a class for each sim.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.spec import (
    Expert,
    HasCamera,
    HasDistance,
    HasExpert,
    HasFinalObs,
    HasGroundingTargets,
    HasInstructions,
    HasParams,
    HasPictureSize,
    HasPlaces,
    HasPrivileged,
    HasReasons,
    HasRestart,
    HasScenarios,
    HasState,
    HasStateIds,
    HasSuccessHold,
    HasSuccessLabels,
    HasSuccessRule,
    HasSymmetries,
    HasTimeLimit,
    HasTrace,
    Spec,
    Split,
    Step,
    SuccessLabel,
    SuccessRule,
)
from robotrl.spec.actuation import Actuation, HasActuation, HasServoClock, Reflex
from robotrl.spec.captions import ActionCaptions, HasActionCaptions
from robotrl.spec.episode_log import HasEpisodeLog, HasRunScalars
from robotrl.spec.late_rewards import HasLateRewards, LateRewards
from robotrl.spec.vehicle import (
    HasLoggedScenes,
    HasPlanFrame,
    HasProgressRatio,
    HasTimeToCollision,
    HasTimeToCollisionAhead,
    HasTrajectoryActions,
    HasVehicleObs,
    LoggedScenes,
    SceneCfg,
    VehicleModel,
    VehicleObs,
)

if TYPE_CHECKING:
    import gymnasium

    from robotrl.spec.drive_trace import TraceFrame, TraceMap, TraceStep
    from robotrl.spec.symmetry import Symmetry

State = dict[str, NDArray[Any]]


class WrappedSim:
    """Base class of wrappers. Subclasses override what they change, and make instances through `declared`."""

    prefix = ""
    """Prefix of the wrapper's own arrays in an exact state; empty for a wrapper without state."""

    def __init__(self, sim: Any) -> None:
        self.sim = sim
        self.num_envs: int = sim.num_envs
        self.control_dt_s: float | None = sim.control_dt_s
        self.device: torch.device = sim.device
        self.observation_spec: dict[str, Spec] = sim.observation_spec
        self.action_spec: Spec = sim.action_spec
        self.buffers_are_reused: bool = sim.buffers_are_reused

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Tensor]:
        """Start new episodes in all envs; see the sim's own `reset`."""
        return self.sim.reset(seed=seed, options=options)

    def step(self, actions: Tensor) -> Step:
        """Advance all envs; see the sim's own `step`."""
        return self.sim.step(actions)

    def as_gymnasium(self) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
        """The same sim as a numpy `gymnasium.vector.VectorEnv`."""
        from robotrl.sims.interop import GymnasiumVectorEnv

        return GymnasiumVectorEnv(self)

    def close(self) -> None:
        """Close the sim."""
        self.sim.close()

    # hooks by which a wrapper adapts the capabilities

    def to_sim(self, x: Tensor) -> Tensor:
        """Convert a tensor from the wrapper's user to the sim."""
        return x

    def from_sim(self, found: Any) -> Any:
        """Convert a tensor, or tensors by name, from the sim to the wrapper's user."""
        return found

    def expert_of(self, expert: Expert) -> Expert:
        """Convert the sim's expert for the wrapper's user."""
        return expert

    def symmetries_of(self, symmetries: Mapping[str, tuple[Symmetry, ...]]) -> Mapping[str, tuple[Symmetry, ...]]:
        """Convert the sim's symmetries for the wrapper's observations."""
        return symmetries

    def instructions_of(self, instructions: list[str]) -> list[str]:
        """Convert the sim's instructions (N) for the wrapper's user."""
        return instructions

    def own_state(self) -> State:
        """The wrapper's own state that affects later steps."""
        return {}

    def load_own(self, state: State) -> None:
        """Restore what `own_state` gave."""

    def on_restart(self, envs: Tensor) -> None:
        """Hook: envs (n,) int64 are about to be restarted between two steps."""

    def on_restarted(self, envs: Tensor) -> None:
        """Hook: envs (n,) int64 have been restarted between two steps."""

    def present(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Hook: the sim stands at the observations (N, ...) after a restart or a restored state, without a step.

        Returns:
            The observations that the wrapper's user is given.
        """
        return obs

    def on_queue(self, ids: Sequence[int] | NDArray[np.int64]) -> None:
        """Hook: start ids are about to be queued."""


class _FinalObs(WrappedSim):
    has_final_obs: Literal[True] = True


class _State(WrappedSim):
    def get_state(self) -> State:
        """The sim's state and the wrapper's."""
        return {**self.sim.get_state(), **{self.prefix + key: value for key, value in self.own_state().items()}}

    def set_state(self, state: State) -> dict[str, Tensor]:
        """Restore what `get_state` returned.

        Raises:
            DataError: the wrapper cannot restore this state.
        """
        own = {key for key in state if self.prefix and key.startswith(self.prefix)}
        self.load_own({key.removeprefix(self.prefix): state[key] for key in own})
        obs = self.from_sim(self.sim.set_state({key: value for key, value in state.items() if key not in own}))
        return self.present(obs)


class _StateIds(WrappedSim):
    def state_ids(self, split: Split) -> range:
        """The ids of a split."""
        return self.sim.state_ids(split)

    def queue_states(self, ids: Sequence[int] | NDArray[np.int64]) -> None:
        """Ids that the next resets draw from."""
        self.on_queue(ids)
        self.sim.queue_states(ids)


class _Camera(WrappedSim):
    @property
    def cameras(self) -> tuple[str, ...]:
        """Names of views."""
        return self.sim.cameras

    def render(self, ids: Sequence[int], camera: str, width: int, height: int, **options: Any) -> NDArray[np.uint8]:
        """(n, height, width, 3) uint8 pictures; the options are the sim's."""
        return self.sim.render(ids, camera, width, height, **options)


class _PictureSize(WrappedSim):
    def picture_size(self, camera: str) -> tuple[int, int]:
        """Width and height, pixels."""
        return self.sim.picture_size(camera)


class _TimeLimit(WrappedSim):
    @property
    def limit_steps(self) -> int | None:
        """Steps after which an episode is truncated."""
        return self.sim.limit_steps

    def elapsed_steps(self) -> Tensor:
        """(N,) steps of each running episode."""
        return self.from_sim(self.sim.elapsed_steps())


class _SuccessHold(WrappedSim):
    @property
    def success_hold_steps(self) -> int:
        """Steps of an episode after its first success."""
        return self.sim.success_hold_steps

    @success_hold_steps.setter
    def success_hold_steps(self, steps: int) -> None:
        self.sim.success_hold_steps = steps


class _Params(WrappedSim):
    @property
    def params(self) -> tuple[str, ...]:
        """Names with units."""
        return self.sim.params

    def get_params(self) -> State:
        """(N,) each."""
        return self.sim.get_params()

    def set_params(self, ids: Sequence[int] | NDArray[np.int64], values: dict[str, NDArray[Any]]) -> None:
        """Set parameters of the envs `ids`."""
        self.sim.set_params(ids, values)


class _Places(WrappedSim):
    @property
    def places(self) -> tuple[str, ...]:
        """Names of the loose things."""
        return self.sim.places

    def displace(self, envs: Tensor, offsets_m: NDArray[np.float64]) -> dict[str, Tensor]:
        """Move things as their episodes begin."""
        return self.present(self.from_sim(self.sim.displace(self.to_sim(envs), offsets_m)))


class _Privileged(WrappedSim):
    @property
    def privileged(self) -> tuple[str, ...]:
        """Keys of the observation that no policy is built on."""
        return self.sim.privileged


class _Meaning(WrappedSim):
    @property
    def grounding_keys(self) -> tuple[str, ...]:
        """Keys of the grounding targets."""
        return self.sim.grounding_keys


class _Expert(WrappedSim):
    def make_expert(
        self, noise: float = 0.0, episode_noise: float = 0.0, mode: str | None = None, seed: int = 0
    ) -> Expert:
        """The sim's scripted expert."""
        return self.expert_of(self.sim.make_expert(noise, episode_noise, mode, seed))


class _Distance(WrappedSim):
    def distance(self) -> Tensor:
        """(N,) how far each env is from success."""
        return self.from_sim(self.sim.distance())


class _Restart(WrappedSim):
    def restart(self, envs: Tensor) -> dict[str, Tensor]:
        """Start new episodes in some envs."""
        self.on_restart(envs)
        obs = self.from_sim(self.sim.restart(self.to_sim(envs)))
        self.on_restarted(envs)
        return self.present(obs)


class _Scenarios(WrappedSim):
    @property
    def scenarios(self) -> tuple[str, ...]:
        """Names."""
        return self.sim.scenarios

    def scenario_of(self, state_id: int) -> str:
        """The scenario that a start belongs to."""
        return self.sim.scenario_of(state_id)


class _Trace(WrappedSim):
    @property
    def action_is_plan(self) -> bool:
        """True if an action is a trajectory itself."""
        return self.sim.action_is_plan

    def trace_map(self, env: int) -> TraceMap:
        """Static map of an env's running episode."""
        return self.sim.trace_map(env)

    def trace_frame(self, env: int) -> TraceFrame:
        """Present state of all road users."""
        return self.sim.trace_frame(env)

    def trace_step(self, env: int) -> TraceStep:
        """Result of the last step."""
        return self.sim.trace_step(env)

    def trace_plan(self, env: int, actions: NDArray[Any]) -> NDArray[Any]:
        """Trajectory that results from actions."""
        return self.sim.trace_plan(env, actions)


class _Instructions(WrappedSim):
    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Words by number."""
        return self.sim.vocabulary

    def instructions(self) -> list[str]:
        """(N) instruction of each env's running episode."""
        return self.instructions_of(self.sim.instructions())


class _Symmetries(WrappedSim):
    @property
    def symmetries(self) -> Mapping[str, tuple[Symmetry, ...]]:
        """Symmetries of the sim, by kind."""
        return self.symmetries_of(self.sim.symmetries)


class _SuccessRule(WrappedSim):
    @property
    def success_rule(self) -> SuccessRule:
        """Success rule of the sim."""
        return self.sim.success_rule


class _VehicleObs(WrappedSim):
    @property
    def vehicle_obs(self) -> VehicleObs | None:
        """State of the ego vehicle among the observations."""
        return self.sim.vehicle_obs


class _TimeToCollision(WrappedSim):
    def time_to_collision_s(self) -> NDArray[np.float64]:
        """Time (N,) to the ego's next collision."""
        return self.sim.time_to_collision_s()


class _TimeToCollisionAhead(WrappedSim):
    def time_to_collision_ahead_s(self) -> NDArray[np.float64]:
        """Time (N,) to the ego's next collision with somebody who is not behind it."""
        return self.sim.time_to_collision_ahead_s()


class _TrajectoryActions(WrappedSim):
    @property
    def trajectory_dt_s(self) -> float | None:
        """Seconds between the points of an action."""
        return self.sim.trajectory_dt_s


class _PlanFrame(WrappedSim):
    def plan_frame(self) -> NDArray[np.float64]:
        """Pose and speed (N, 4) of the egos."""
        return self.sim.plan_frame()


class _ProgressRatio(WrappedSim):
    def progress_ratio(self) -> NDArray[np.float64]:
        """Progress (N,) over the reference's."""
        return self.sim.progress_ratio()


class _LoggedScenes(WrappedSim):
    @property
    def vehicle(self) -> VehicleModel:
        """Constants of the ego."""
        return self.sim.vehicle

    def logged_scenes(self, split: Split, cfg: SceneCfg) -> LoggedScenes:
        """Scenes of the log's clips."""
        return self.sim.logged_scenes(split, cfg)


class _ActionCaptions(WrappedSim):
    @property
    def action_captions(self) -> ActionCaptions:
        """Anchor actions in words."""
        return self.sim.action_captions

    def action_contexts(self) -> NDArray[np.float64]:
        """Numbers (N, contexts) that the context of an action depends on."""
        return self.sim.action_contexts()


class _LateRewards(WrappedSim):
    def late_rewards(self, wait: bool) -> LateRewards:
        """Changes since the last call."""
        return self.sim.late_rewards(wait)

    def lost_late_rewards(self, count: int) -> None:
        """Count changes that came too late."""
        self.sim.lost_late_rewards(count)


class _EpisodeLog(WrappedSim):
    def take_episode_log(self) -> dict[str, float]:
        """Means of the environment's own log since the last call."""
        return self.sim.take_episode_log()


class _RunScalars(WrappedSim):
    def take_run_scalars(self) -> dict[str, float]:
        """Scalars for the run's log since the last call."""
        return self.sim.take_run_scalars()


class _Actuation(WrappedSim):
    @property
    def actuation(self) -> Actuation | None:
        """Meaning of the actions."""
        return self.sim.actuation


class _ServoClock(WrappedSim):
    @property
    def servo_ticks(self) -> int:
        """Servo ticks in a control step."""
        return self.sim.servo_ticks

    @property
    def servo_spec(self) -> Spec:
        """Spec of the measurements of a tick."""
        return self.sim.servo_spec

    @property
    def hazard(self) -> str:
        """Name and unit of the hazard."""
        return self.sim.hazard

    @property
    def hazard_limit(self) -> float:
        """Hazard above which a tick is a violation."""
        return self.sim.hazard_limit

    @property
    def retract(self) -> tuple[float, ...]:
        """Action that leads away from the hazard."""
        return self.sim.retract

    def set_reflex(self, reflex: Reflex | None) -> None:
        """Have a reflex act at each tick."""
        self.sim.set_reflex(reflex)


class _SuccessLabels(WrappedSim):
    def take_success_labels(self) -> list[SuccessLabel]:
        """Outcomes that were told since the last call."""
        return self.sim.take_success_labels()


class _Reasons(WrappedSim):
    @property
    def reasons(self) -> Mapping[str, str]:
        """Reasons for missing capabilities."""
        return self.sim.reasons


_PARTS: dict[type[Any], type[WrappedSim]] = {
    HasFinalObs: _FinalObs,
    HasState: _State,
    HasStateIds: _StateIds,
    HasCamera: _Camera,
    HasPictureSize: _PictureSize,
    HasParams: _Params,
    HasPlaces: _Places,
    HasPrivileged: _Privileged,
    HasGroundingTargets: _Meaning,
    HasExpert: _Expert,
    HasRestart: _Restart,
    HasTimeLimit: _TimeLimit,
    HasSuccessHold: _SuccessHold,
    HasDistance: _Distance,
    HasScenarios: _Scenarios,
    HasTrace: _Trace,
    HasInstructions: _Instructions,
    HasSymmetries: _Symmetries,
    HasSuccessRule: _SuccessRule,
    HasSuccessLabels: _SuccessLabels,
    HasReasons: _Reasons,
    HasLateRewards: _LateRewards,
    HasVehicleObs: _VehicleObs,
    HasTimeToCollision: _TimeToCollision,
    HasTimeToCollisionAhead: _TimeToCollisionAhead,
    HasTrajectoryActions: _TrajectoryActions,
    HasPlanFrame: _PlanFrame,
    HasProgressRatio: _ProgressRatio,
    HasLoggedScenes: _LoggedScenes,
    HasActionCaptions: _ActionCaptions,
    HasEpisodeLog: _EpisodeLog,
    HasRunScalars: _RunScalars,
    HasActuation: _Actuation,
    HasServoClock: _ServoClock,
}


def declared(wrapper: type[WrappedSim], sim: Any, without: Container[type[Any]] = ()) -> Any:
    """Subclass of a wrapper with exactly the capabilities of a sim, but for those of `without`."""
    parts = tuple(
        part for capability, part in _PARTS.items() if isinstance(sim, capability) and capability not in without
    )
    return type(wrapper.__name__, (wrapper, *parts), {})
