"""What the threads run: one env after another through a whole control step, a start, or a drawing."""

from __future__ import annotations

from typing import Any

from robotrl.sims.bev import ego, judge, raster, scenarios, tables, traffic
from robotrl.sims.bev.jit import kernel
from robotrl.sims.bev.observe import Vectors, observe
from robotrl.sims.bev.rewards import Rules
from robotrl.sims.bev.world import Maps, World

ARRIVED = tables.FINISHED
RUNNING, TERMINATED, TRUNCATED = 0, 1, 2

act, start = scenarios.act, scenarios.start
claim, sort, step_traffic = traffic.claim, traffic.sort, traffic.step_traffic
locate, look_ahead, move, wait_at_sign = ego.locate, ego.look_ahead, ego.move, ego.wait_at_sign
judge_step = judge.judge_step
draw, expand = raster.draw, raster.expand


@kernel
def settle(maps: Maps, world: World, e: int) -> None:
    """What follows from where everybody is: the order, claims at junctions, whom the ego follows."""
    sort(world, e)
    claim(maps, world, e)
    look_ahead(maps, world, e)


@kernel
def step_env(maps: Maps, world: World, rules: Rules, e: int, steer: float, accel: float, terms: Any) -> float:
    """One control step of env `e`; gives the reward."""
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
def step_range(
    maps: Maps,
    world: World,
    rules: Rules,
    vectors: Vectors,
    actions: Any,
    reward: Any,
    terms: Any,
    done: Any,
    events: Any,
    completion: Any,
    low: int,
    high: int,
) -> None:
    """Step the envs from `low` to `high` (excluded) under actions (N, 2), and observe them."""
    for e in range(low, high):
        reward[e] = step_env(maps, world, rules, e, actions[e, 0], actions[e, 1], terms[e])
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
    world: World,
    env_ids: Any,
    map_numbers: Any,
    scenario_numbers: Any,
    event_numbers: Any,
    state_ids: Any,
    limit: int,
) -> None:
    """Start episodes in the envs `env_ids` (n,)."""
    for i in range(len(env_ids)):
        e = env_ids[i]
        start(maps, world, e, map_numbers[i], scenario_numbers[i], event_numbers[i], state_ids[i], limit)
        settle(maps, world, e)


@kernel
def settle_envs(maps: Maps, world: World, env_ids: Any) -> None:
    """`settle` some envs."""
    for i in range(len(env_ids)):
        settle(maps, world, env_ids[i])


@kernel
def observe_envs(maps: Maps, world: World, rules: Rules, vectors: Vectors, env_ids: Any) -> None:
    """Write the vector observations of some envs."""
    for i in range(len(env_ids)):
        observe(maps, world, rules, vectors, env_ids[i])


@kernel
def draw_envs(
    maps: Maps,
    world: World,
    packed: Any,
    channels: Any,
    env_ids: Any,
    ppm: float,
    behind: float,
    surface: Any,
    levels: Any,
) -> None:
    """Draw some envs, and expand the views into channels where there is room for them."""
    for i in range(len(env_ids)):
        e = env_ids[i]
        draw(maps, world, e, packed[e], ppm, behind, surface)
        if len(channels):
            expand(packed[e], levels, channels[e])
