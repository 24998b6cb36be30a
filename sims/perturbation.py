"""Perturbations of any sim; and the wrapper in which observations are old or lost, and actions late.

`perturbed` applies all of `PerturbCfg`: the families of `robotrl.sims.families` first, then delays and losses.

The faults are those of a real vehicle or robot: camera streams that drop frames in bursts, and control that is computed
late (Bench2Drive-Robust tests driving agents so). The sim, its reward and its events stay as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import CapabilityError, DataError
from robotrl.fn.planner.late_plan import carried_on, straight_on
from robotrl.fn.random import counter_rng
from robotrl.sims.actions import ActionBounds
from robotrl.sims.families.registry import variations
from robotrl.sims.families.variation import is_numbered
from robotrl.sims.families.varied import VariedSim, varied
from robotrl.sims.wrapper import State, WrappedSim, declared
from robotrl.spec import COMMITTED, COMMITTED_MASK, Expert, HasStateIds, Step, committed_specs, visible
from robotrl.spec.actuation import HasActuation
from robotrl.spec.sim_options import PerturbCfg
from robotrl.spec.vehicle import HasPlanFrame, HasTrajectoryActions

AGE = "obs_age_steps"
"""Entry of `Step.info`: (N,) age of each env's observation, control steps."""
_STREAM, _DELAYS = 0xD209, 0xDE1A
_STEP_BITS = 20
"""Bits of a step's number in the key of its random number."""


def perturbed(sim: Any, cfg: PerturbCfg, seed: int) -> Any:
    """Wrap a sim with the perturbations of `cfg`; a sim without any is returned as it is.

    The families are applied in the order of `robotrl.sims.families.registry.FAMILIES`: the world (mass, friction,
    places), what is observed of it (looks, words, noise), and last what is late or lost of that.

    Args:
        sim: any sim; the wrapped one has its capabilities.
        cfg: settings.
        seed: seed of the losses. With numbered starts they depend on the start and the step alone.

    Raises:
        ConfigError: a value out of range.
        CapabilityError: actions that are choices are to be observed as committed, or they or trajectories are to be
            interpolated, or actions that are no trajectories are to count from their observation; or the sim cannot
            have a family.
    """
    cfg.check()
    if cfg.plans_from_observation and _plan_dt_s(sim) is None:
        raise CapabilityError(
            f"perturb.plans_from_observation is set, and the actions of {type(sim).__name__} are no trajectories in a"
            " frame that it tells (HasPlanFrame): expected it off, or e.g. bev/drive with sim.actions trajectory"
        )
    if cfg.interpolate_actions and (sim.action_spec.choices is not None or _are_plans(sim)):
        kind = "choices" if sim.action_spec.choices is not None else "trajectories"
        raise CapabilityError(
            f"perturb.interpolate_actions is set and the actions of {type(sim).__name__} are {kind}: expected numbers"
            " between which others make sense"
        )
    if cfg.committed_steps and sim.action_spec.choices is not None:
        raise CapabilityError(
            f"perturb.committed_steps is {cfg.committed_steps} and the actions of {type(sim).__name__} are choices:"
            " expected 0; only numbers are observed as committed"
        )
    chosen = variations(sim, cfg)
    if chosen or (cfg.draw_delay and is_numbered(sim)):
        sim = varied(sim, chosen, seed)
    return declared(PerturbedSim, sim)(sim, cfg, seed) if cfg.active else sim


class PerturbedSim(WrappedSim):
    """A sim with faults on its observations and actions; made by `perturbed`.

    `Step.info` has "obs_age_steps". `final_obs` is the observation that the policy would have been given. The sim's
    expert reads the true state.

    A trajectory that comes late stays where it was on the road: the sim is given what is left of it, in the ego's frame
    of that time. In place of the first ones the ego goes straight on at the speed with which the episode began. Where
    plans count from their observation, so does one whose observation is old.
    """

    prefix = "perturb/"

    def __init__(self, sim: Any, cfg: PerturbCfg, seed: int) -> None:
        super().__init__(sim)
        self._cfg, self._seed = cfg, seed ^ _STREAM
        self._keys = tuple(visible(sim))
        self._numbered = isinstance(sim, HasStateIds)
        n, width = self.num_envs, sim.action_spec.shape
        self._limits = tuple(torch.tensor(x, device=self.device) for x in (sim.action_spec.low, sim.action_spec.high))
        self._rest = self._bounded(torch.zeros(width, device=self.device))
        self._queue = self._rest.repeat(cfg.action_delay_steps, n, *(1 for _ in width))
        """(D, N, A) actions on their way, the next one first."""
        self._plan_dt_s = _plan_dt_s(sim) if cfg.action_delay_steps or cfg.plans_from_observation else None
        """Time between the points of late plans; None if the actions are no plans, or count from when they come."""
        self._frames = torch.zeros((cfg.action_delay_steps, n, 4), dtype=torch.float64, device=self.device)
        """(D, N, 4) frames in which the plans on their way were given, see `HasPlanFrame`; zeros without plans."""
        self._plan_ages = torch.zeros((cfg.action_delay_steps, n), dtype=torch.int64, device=self.device)
        """(D, N) steps from those frames until the plans were given; zeros unless they count from observations."""
        self._past_frames = self._frames.new_zeros((cfg.obs_delay_steps, n, 4))
        """(L, N, 4) frames of the observations of the last steps, oldest first, where plans count from observations."""
        self._seen_frame = self._frames.new_zeros((n, 4))
        """(N, 4) frames of the observations that the policy was given last, where plans count from them."""
        self._delay = torch.full((n,), cfg.action_delay_steps, device=self.device)
        """(N,) length of each env's part of the queue."""
        self._executed = self._rest.repeat(n, *(1 for _ in width))
        """(N, A) actions of the last step, from which the next ones are approached."""
        self._goes_on = not _is_position(sim)
        """An episode's first action is approached from `_rest`; a robot of position targets stands somewhere else."""
        if cfg.committed_steps:
            self.observation_spec = sim.observation_spec | committed_specs(sim.action_spec, cfg.committed_steps)
        self._bounds = ActionBounds(sim.action_spec, n)
        self._past = [self._blank() for _ in range(cfg.obs_delay_steps)]
        """Observations of the last steps, oldest first."""
        self._given = self._blank()
        """Observations that the policy was given last."""
        self._age = torch.zeros(n, dtype=torch.int64, device=self.device)
        self._lost = torch.zeros(n, dtype=torch.int64, device=self.device)
        """(N,) further steps of the running burst."""
        self._steps = np.zeros(n, np.int64)
        """(N,) steps of the running episode."""
        self._episodes = np.zeros(n, np.int64)
        """(N,) episodes so far; names the losses of a sim without numbered starts."""
        self._fresh = torch.ones(n, dtype=torch.bool, device=self.device)
        """(N,) envs that have begun an episode outside of `step`."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Tensor]:
        """Start new episodes in all envs; see the sim's own `reset`. `seed` seeds the losses, too."""
        obs = self.sim.reset(seed=seed, options=options)
        if seed is not None:
            self._seed = seed ^ _STREAM
        self._episodes[:] = 0
        self._fresh[:] = True
        return self.present(obs)

    def step(self, actions: Tensor) -> Step:
        """Advance all envs by the actions that arrive in this step."""
        executed = actions
        passed_on = len(self._queue) > 0 or self._cfg.plans_from_observation
        if passed_on or self._cfg.interpolate_actions:
            # a bad action is refused now, not when it arrives
            given = torch.tensor(self._bounds.checked(actions.detach().cpu().numpy(), self._steps), device=self.device)
            executed = self._pass_on(given) if passed_on else given
        if self._cfg.interpolate_actions:
            executed = self._on_the_way(executed)
        step: Step = self.sim.step(executed)
        self._steps += 1
        ended = step.final_ids
        true = self._delayed_keys(step.obs)
        for key in true:
            # rows that ended show their last state here; their new episode begins below
            true[key][ended] = step.final_obs[key].to(true[key].dtype) if key in step.final_obs else true[key][ended]
        lost = self._losses(step)
        arriving = self._past[0] if self._past else true
        self._past = [*self._past[1:], true] if self._past else []
        for key in self._keys:
            self._given[key] = _where(lost, self._given[key], arriving[key])
        if self._cfg.plans_from_observation:
            self._see(lost)
        delay = torch.full_like(self._age, self._cfg.obs_delay_steps).clamp(max=self._steps_tensor())
        self._age = torch.where(lost, self._age + 1, delay)
        age, final = self._age.clone(), {key: x for key, x in step.final_obs.items()}
        for key in self._keys:
            if key in final:
                final[key] = self._given[key][ended].clone()
        if final:
            final |= {key: x[ended] for key, x in self._committed().items()}
        self._begin(ended, step.obs)
        obs = self._handed_out(step.obs)
        return step._replace(obs=obs, final_obs=final, info={**step.info, AGE: age})

    def present(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Begin the episodes of restarted envs; after a restored state nothing begins."""
        self._begin(torch.nonzero(self._fresh).squeeze(1), obs)
        self._fresh[:] = False
        return self._handed_out(obs)

    def on_restarted(self, envs: Tensor) -> None:
        """See `WrappedSim.on_restarted`."""
        self._fresh[envs] = True

    def expert_of(self, expert: Expert) -> Expert:
        """See `WrappedSim.expert_of`.

        Raises:
            CapabilityError: plans count from their observations, and the expert's from the true state.
        """
        if self._cfg.plans_from_observation:
            raise CapabilityError(
                "perturb.plans_from_observation is set, and the scripted expert plans from where the ego is: expected"
                " it off for an expert"
            )
        return expert

    def own_state(self) -> State:
        """Observations and actions on their way, and seed and counters of the losses."""
        state: dict[str, Tensor] = {"queue": self._queue, "delay": self._delay, "age": self._age, "lost": self._lost}
        state |= {} if self._plan_dt_s is None else {"frames": self._frames}
        if self._cfg.plans_from_observation:
            seen = {"seen_frame": self._seen_frame, "past_frames": self._past_frames, "plan_ages": self._plan_ages}
            state |= seen
        state |= {"executed": self._executed} if self._cfg.interpolate_actions else {}
        state |= {f"given/{key}": x for key, x in self._given.items()}
        state |= {f"past/{i}/{key}": x for i, some in enumerate(self._past) for key, x in some.items()}
        numbers: dict[str, NDArray[Any]] = {"steps": self._steps.copy(), "episodes": self._episodes.copy()}
        numbers["seed"] = np.array(self._seed)
        return numbers | {key: x.cpu().numpy().copy() for key, x in state.items()}

    def load_own(self, state: State) -> None:
        """Restore what `own_state` gave.

        Raises:
            DataError: it was saved with other delays or another number of envs, or an array is missing.
        """
        own = self.own_state()
        for key in sorted(own.keys() | state.keys()):
            shape, expected = (None if key not in some else some[key].shape for some in (state, own))
            if shape != expected:
                raise DataError(
                    f"state {self.prefix}{key} has shape {_shape_text(shape)}: expected {_shape_text(expected)}, from a"
                    f" sim with {self.num_envs} envs, perturb.obs_delay_steps {self._cfg.obs_delay_steps} and"
                    f" perturb.action_delay_steps {self._cfg.action_delay_steps}"
                )

        def read(key: str) -> Tensor:
            return torch.from_numpy(state[key].copy()).to(self.device)

        self._queue, self._delay = read("queue"), read("delay")
        if self._plan_dt_s is not None:
            self._frames = read("frames")
        if self._cfg.plans_from_observation:
            self._seen_frame, self._past_frames = read("seen_frame"), read("past_frames")
            self._plan_ages = read("plan_ages")
        if self._cfg.interpolate_actions:
            self._executed = read("executed")
        self._age, self._lost = read("age"), read("lost")
        self._given = {key: read(f"given/{key}") for key in self._keys}
        self._past = [{key: read(f"past/{i}/{key}") for key in self._keys} for i in range(len(self._past))]
        self._steps[:], self._episodes[:] = state["steps"], state["episodes"]
        self._seed = int(state["seed"])
        self._fresh[:] = False

    def _pass_on(self, given: Tensor) -> Tensor:
        """Put the actions (N, A) behind those on their way; returns those that arrive, as the sim is given them."""
        arriving, self._queue = _moved_up(self._queue, self._delay, given)
        if self._plan_dt_s is None:
            return arriving
        now = self._plan_frame()
        seen = self._cfg.plans_from_observation
        age = self._age if seen else torch.zeros_like(self._age)
        then, self._frames = _moved_up(self._frames, self._delay, self._seen_frame if seen else now)
        age, self._plan_ages = _moved_up(self._plan_ages, self._delay, age)
        # those that stand in for the first plans were given as the episode began
        steps = torch.minimum(self._delay, self._steps_tensor()) + age
        elapsed = steps.to(torch.float64) * (self.control_dt_s or 0.0) / self._plan_dt_s
        points = arriving.to(torch.float64).unflatten(1, (-1, 2))
        left = self._bounded(carried_on(points, elapsed, then, now).flatten(1))
        return _where(self._delay + age > 0, left, arriving)

    def _see(self, lost: Tensor) -> None:
        """Note the frames of the observations that the policy is given; `lost` (N,): it is given the last one again."""
        now = self._plan_frame()
        arriving = self._past_frames[0] if len(self._past_frames) else now
        if len(self._past_frames):
            self._past_frames = torch.cat([self._past_frames[1:], now[None]])
        self._seen_frame = _where(lost, self._seen_frame, arriving)

    def _on_the_way(self, arriving: Tensor) -> Tensor:
        """Mean (N, A) of the way from the last step's actions to those that arrive, as the servo's of such a robot."""
        first = self._steps_tensor() == 0
        before = self._executed if self._goes_on else _where(first, arriving, self._executed)
        self._executed = arriving.clone()
        return before + 0.5 * (arriving - before)

    def _plan_frame(self) -> Tensor:
        """(N, 4) frames in which a plan that is given now would be."""
        return torch.from_numpy(self.sim.plan_frame()).to(self.device, torch.float64)

    def _bounded(self, actions: Tensor) -> Tensor:
        """Actions (..., A) within their bounds, in the sim's type."""
        low, high = self._limits
        return actions.clamp(low, high).to(getattr(torch, self.action_spec.dtype))

    def _committed(self) -> dict[str, Tensor]:
        """Observations of the actions on their way, none if they are not observed."""
        steps = self._cfg.committed_steps
        if not steps:
            return {}
        mask = torch.arange(steps, device=self.device) < self._delay[:, None]
        actions = self._rest.to(torch.float32).new_zeros(self.num_envs, steps, *self.action_spec.shape)
        actions[:, : len(self._queue)] = self._queue.transpose(0, 1).to(torch.float32)
        actions[~mask] = 0.0
        return {COMMITTED: actions.flatten(1), COMMITTED_MASK: mask.to(torch.float32)}

    def _losses(self, step: Step) -> Tensor:
        """(N,) which observations of this step are lost."""
        if not self._cfg.drop_rate:
            return torch.zeros_like(self._fresh)
        episode = self._episodes * self.num_envs + np.arange(self.num_envs)
        if self._numbered:
            episode = step.info["state_id"].cpu().numpy()
        draws = counter_rng.uniform(self._seed, (episode << _STEP_BITS) + self._steps, 1)[:, 0]
        begins = torch.from_numpy(draws < self._cfg.drop_rate).to(self.device)
        left = torch.where((self._lost == 0) & begins, self._cfg.drop_steps, self._lost)
        self._lost = (left - 1).clamp(min=0)
        return left > 0

    def _begin(self, envs: Tensor, obs: dict[str, Tensor]) -> None:
        """Begin episodes in the envs (n,), which stand at the rows `envs` of `obs`."""
        if not len(envs):
            return
        true = self._delayed_keys(obs)
        for some in (self._given, *self._past):
            for key in self._keys:
                some[key][envs] = true[key][envs]
        self._queue[:, envs] = self._rest
        self._executed[envs] = self._rest
        if self._plan_dt_s is not None:
            frames = self._plan_frame()[envs]
            self._frames[:, envs] = frames
            self._past_frames[:, envs] = frames
            self._seen_frame[envs] = frames
            self._plan_ages[:, envs] = 0
            onward = straight_on(frames[:, 3], self.action_spec.shape[0] // 2, self._plan_dt_s)
            self._queue[:, envs] = self._bounded(onward.flatten(1))
        if self._cfg.draw_delay:
            keys = self._episodes * self.num_envs + np.arange(self.num_envs)
            if isinstance(self.sim, VariedSim):
                keys = self.sim.episode_keys
            draws = counter_rng.uniform(self._seed ^ _DELAYS, keys[envs.cpu().numpy()], 1)[:, 0]
            drawn = np.floor(draws * (self._cfg.action_delay_steps + 1)).astype(np.int64)
            self._delay[envs] = torch.from_numpy(drawn).to(self.device)
        self._age[envs] = 0
        self._lost[envs] = 0
        rows = envs.cpu().numpy()
        self._steps[rows] = 0
        self._episodes[rows] += 1

    def _blank(self) -> dict[str, Tensor]:
        specs = {key: self.sim.observation_spec[key] for key in self._keys}
        return {
            key: torch.zeros((self.num_envs, *spec.shape), dtype=getattr(torch, spec.dtype), device=self.device)
            for key, spec in specs.items()
        }

    def _delayed_keys(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {key: obs[key].clone() for key in self._keys}

    def _handed_out(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Copies of the observations that the user is given; those for a critic alone are the sim's."""
        return {key: self._given.get(key, x).clone() for key, x in obs.items()} | self._committed()

    def _steps_tensor(self) -> Tensor:
        return torch.from_numpy(self._steps).to(self.device)


def _are_plans(sim: Any) -> bool:
    """True if a sim's actions are trajectories."""
    return isinstance(sim, HasTrajectoryActions) and sim.trajectory_dt_s is not None


def _is_position(sim: Any) -> bool:
    """True if a sim states that its actions are position targets."""
    return isinstance(sim, HasActuation) and sim.actuation is not None and sim.actuation.kind == "position"


def _plan_dt_s(sim: Any) -> float | None:
    """Time between the points of a sim's actions, if they are plans in a frame that it knows; otherwise None."""
    if sim.control_dt_s is None or not isinstance(sim, HasPlanFrame) or not isinstance(sim, HasTrajectoryActions):
        return None
    return sim.trajectory_dt_s


def _moved_up(queue: Tensor, delay: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
    """Put rows (N, ...) behind those on their way.

    Args:
        queue: (D, N, ...) rows on their way, the next one first.
        delay: (N,) length of each env's part of the queue.
        given: (N, ...) rows that are given now.

    Returns:
        The rows (N, ...) that arrive, and the queue after it.
    """
    if not len(queue):
        return given, queue
    delays, last = delay > 0, (delay - 1).clamp(min=0)
    arriving = _where(delays, queue[0], given)
    after = torch.cat([queue[1:], queue[-1:]])
    envs = torch.nonzero(delays).squeeze(1)
    after[last[envs], envs] = given[envs]
    return arriving, after


def _shape_text(shape: tuple[int, ...] | None) -> str:
    return "no place" if shape is None else str(shape)


def _where(mask: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Rows of `one` where `mask` (N,) is true, of `other` elsewhere."""
    return torch.where(mask.view(-1, *(1 for _ in one.shape[1:])), one, other)
