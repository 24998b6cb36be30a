"""Top-level kernels, for CPU and GPU threads: step, start, observe and render ranges of envs."""

from __future__ import annotations

from typing import Any

from robotrl.sims.bev import judge, tables
from robotrl.sims.bev.backends.jit import kernel
from robotrl.sims.bev.plan import follow
from robotrl.sims.bev.render import raster
from robotrl.sims.bev.render.raster import ChannelTable, RasterViews
from robotrl.sims.bev.render.vectors import Vectors, observe
from robotrl.sims.bev.rewards import Rules
from robotrl.sims.bev.traffic import ego, following, right_of_way, scenarios, step
from robotrl.sims.bev.world import Maps, WorldState

ARRIVED = tables.FINISHED
RUNNING, TERMINATED, TRUNCATED = 0, 1, 2

act, start = scenarios.act, scenarios.start
claim, sort, step_traffic = right_of_way.claim, following.sort, step.step_traffic
locate, look_ahead, move, wait_at_sign = ego.locate, ego.look_ahead, ego.move, ego.wait_at_sign
judge_step = judge.judge_step
draw, expand, paint = raster.draw, raster.expand, raster.paint


@kernel
def settle(maps: Maps, world: WorldState, e: int) -> None:
    """Recompute derived state of env `e` from positions: lane order, junction claims, the ego's leader."""
    sort(world, e)
    claim(maps, world, e)
    look_ahead(maps, world, e)


@kernel
def step_env(maps: Maps, world: WorldState, rules: Rules, e: int, steer: float, accel: float, terms: Any) -> float:
    """Run one control step of env `e` and return the reward."""
    episode = world.episodes[e]
    act(maps, world, e)
    step_traffic(maps, world, e, rules.dt)
    before = world.egos[e].progress
    hit, slot = move(maps, world, e, steer, accel, rules.throttle, rules.dt)
    locate(maps, world, e)
    wait_at_sign(maps, world, e, rules.dt)
    episode.steps += 1
    episode.time += rules.dt
    settle(maps, world, e)
    return judge_step(maps, world, rules, e, before, hit, slot, terms)


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
        found = world.episodes[e].events
        events[e] = found
        done[e] = RUNNING
        if found:
            done[e] = TRUNCATED if found == tables.TIMED_OUT else TERMINATED
        finished = found & tables.FINISHED
        completion[e] = 1.0 if finished else world.egos[e].best / maps.routes[world.episodes[e].route].length
        observe(maps, world, rules, vectors, e)


@kernel
def begin(
    maps: Maps,
    world: WorldState,
    env_ids: Any,
    map_numbers: Any,
    scenario_numbers: Any,
    event_numbers: Any,
    state_ids: Any,
    limit: int,
    low: int,
    high: int,
) -> None:
    """Start episodes in the envs `env_ids[low:high]`."""
    for i in range(low, high):
        e = env_ids[i]
        start(maps, world, e, map_numbers[i], scenario_numbers[i], event_numbers[i], state_ids[i], limit)
        settle(maps, world, e)


@kernel
def settle_range(maps: Maps, world: WorldState, low: int, high: int) -> None:
    """`settle` the envs from `low` to `high` (excluded)."""
    for e in range(low, high):
        settle(maps, world, e)


@kernel
def observe_envs(
    maps: Maps, world: WorldState, rules: Rules, vectors: Vectors, env_ids: Any, low: int, high: int
) -> None:
    """Write the vector observations of the envs `env_ids[low:high]`."""
    for i in range(low, high):
        observe(maps, world, rules, vectors, env_ids[i])


@kernel
def draw_envs(
    maps: Maps, world: WorldState, views: RasterViews, table: ChannelTable, env_ids: Any, low: int, high: int
) -> None:
    """Render the envs `env_ids[low:high]`, and expand packed views into channels unless they stay packed."""
    for i in range(low, high):
        e = env_ids[i]
        draw(maps, world, e, views.packed[e], views.pixels_per_m, views.behind)
        if len(views.words):
            expand(views.pixels[e], table, views.words[e])


@kernel
def paint_envs(views: RasterViews, colors: Any, out: Any, env_ids: Any) -> None:
    """Color the packed views of the envs (n,), in out (n, height, width, 3)."""
    for i in range(len(env_ids)):
        paint(views.packed[env_ids[i]], colors, out[i])
