"""Top-level kernels of `bev/drive`, for CPU and GPU threads: step and start ranges of envs."""

from __future__ import annotations

from typing import Any

from robotrl.sims.bev.traffic import scenarios, step
from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.kernels import conclude, finish_step, settle
from robotrl.sims.driving.plan import follow
from robotrl.sims.driving.render.vectors import Vectors, observe
from robotrl.sims.driving.rewards import Rules
from robotrl.sims.driving.traffic import ego
from robotrl.sims.driving.world import Maps, WorldState

act, start, step_traffic, move = scenarios.act, scenarios.start, step.step_traffic, ego.move


@kernel
def step_env(maps: Maps, world: WorldState, rules: Rules, e: int, steer: float, accel: float, terms: Any) -> float:
    """Run one control step of env `e` and return the reward."""
    act(maps, world, e)
    step_traffic(maps, world, e, rules.dt)
    before = world.egos[e].progress
    hit, slot = move(maps, world, e, steer, accel, rules.throttle, rules.dt)
    return finish_step(maps, world, rules, e, before, hit, slot, terms)


@kernel
def take(maps: Maps, world: WorldState, rules: Rules, e: int, action: Any, terms: Any, last: Any) -> float:
    """Execute an action of env `e` for its number of control steps, or until the episode ends.

    Args:
        maps: all maps.
        world: all envs.
        rules: action settings and reward.
        e: env.
        action: (A,) steer and acceleration, or a trajectory.
        terms: (len(TERMS),) output for the reward terms: sums for progress and end, means for the others.
        last: (len(TERMS),) scratch.

    Returns:
        The summed reward of these steps.
    """
    ego = world.egos[e]
    x, y, cos, sin = ego.x, ego.y, ego.cos, ego.sin
    total, count = 0.0, 0
    terms[:] = 0.0
    for k in range(rules.hold):
        steer, accel = action[0], action[1]
        if rules.planned == 1:
            steer, accel = follow(world, e, action, x, y, cos, sin, k * rules.dt, rules.throttle)
        total += step_env(maps, world, rules, e, steer, accel, last)
        count += 1
        for i in range(len(terms)):
            terms[i] += last[i]
        if world.episodes[e].events:
            break
    for i in range(1, len(terms) - 1):
        terms[i] /= count
    return total


@kernel
def step_range(
    maps: Maps,
    world: WorldState,
    rules: Rules,
    vectors: Vectors,
    actions: Any,
    reward: Any,
    terms: Any,
    last: Any,
    done: Any,
    events: Any,
    completion: Any,
    low: int,
    high: int,
) -> None:
    """Step the envs from `low` to `high` (excluded) with actions (N, A), and write their observations."""
    for e in range(low, high):
        reward[e] = take(maps, world, rules, e, actions[e], terms[e], last[e])
        conclude(maps, world, e, done, events, completion)
        observe(maps, world, rules, vectors, e)


@kernel
def begin(
    maps: Maps,
    world: WorldState,
    env_ids: Any,
    map_numbers: Any,
    first_routes: Any,
    routes: Any,
    scenario_numbers: Any,
    event_numbers: Any,
    populations: Any,
    state_ids: Any,
    limit: int,
    low: int,
    high: int,
) -> None:
    """Start episodes in the envs `env_ids[low:high]`, on one of `routes` routes of the map from `first_routes` on."""
    for i in range(low, high):
        e = env_ids[i]
        way = map_numbers[i], first_routes[i], routes[i]
        start(maps, world, e, *way, scenario_numbers[i], event_numbers[i], populations[i], state_ids[i], limit)
        settle(maps, world, e)
