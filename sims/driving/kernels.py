"""Kernels over many envs that all driving worlds share: derived state, observations, rasters, the end of a step."""

from __future__ import annotations

from typing import Any

from robotrl.sims.driving import judge, tables
from robotrl.sims.driving.backends.jit import kernel
from robotrl.sims.driving.render import raster
from robotrl.sims.driving.render.raster import ChannelTable, RasterViews
from robotrl.sims.driving.render.vectors import Vectors, observe
from robotrl.sims.driving.rewards import Rules
from robotrl.sims.driving.traffic import ego, following, right_of_way
from robotrl.sims.driving.world import Maps, WorldState

ARRIVED = tables.FINISHED
RUNNING, TERMINATED, TRUNCATED = 0, 1, 2

claim, sort = right_of_way.claim, following.sort
locate, look_ahead, count_wait = ego.locate, ego.look_ahead, ego.count_wait
judge_step = judge.judge_step
draw, expand, paint = raster.draw, raster.expand, raster.paint


@kernel
def settle(maps: Maps, world: WorldState, e: int) -> None:
    """Recompute derived state of env `e` from positions: lane order, junction claims, the ego's leader."""
    sort(world, e)
    claim(maps, world, e)
    look_ahead(maps, world, e)


@kernel
def finish_step(
    maps: Maps, world: WorldState, rules: Rules, e: int, before: float, hit: int, slot: int, terms: Any
) -> float:
    """Finish a control step of env `e` in which all road users have moved, and return the reward.

    Args:
        maps: all maps.
        world: all envs.
        rules: action settings and reward.
        e: env.
        before: position along the route before the step, m.
        hit: kind of collision, one of `ego.HIT_...`.
        slot: slot of the road user that the ego hit, -1 for none or a parked car.
        terms: (len(TERMS),) output for the reward terms.
    """
    episode = world.episodes[e]
    locate(maps, world, e)
    count_wait(maps, world, e, rules.dt)
    episode.steps += 1
    episode.time += rules.dt
    settle(maps, world, e)
    return judge_step(maps, world, rules, e, before, hit, slot, terms)


@kernel
def conclude(maps: Maps, world: WorldState, e: int, done: Any, events: Any, completion: Any) -> None:
    """Write how env `e` stands after a step: `RUNNING`, `TERMINATED` or `TRUNCATED`, its events, its completion."""
    found = world.episodes[e].events
    events[e] = found
    done[e] = RUNNING
    if found:
        done[e] = TRUNCATED if found == tables.TIMED_OUT else TERMINATED
    finished = found & tables.FINISHED
    completion[e] = 1.0 if finished else world.egos[e].best / maps.routes[world.episodes[e].route].length


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
