"""Vehicles that CARLA's traffic manager drives, and walkers on the pavements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import carla

if TYPE_CHECKING:
    from robotrl.sims.carla.client.episode import CarlaEpisode

CLEAR_M = 8.0
"""Distance from the ego within which nothing is spawned."""


def add_vehicles(episode: CarlaEpisode, count: int) -> None:
    """Spawn up to `count` vehicles at spawn points of the map, and hand them to the traffic manager."""
    if count == 0:
        return
    order = episode.order
    points = [
        point
        for point in episode.map.get_spawn_points()
        if abs(point.location.x - order.x) + abs(-point.location.y - order.y) > CLEAR_M
    ]
    episode.draw.shuffle(points)
    cars = sorted(
        (one for one in episode.world.get_blueprint_library().filter("vehicle.*") if _wheels(one) == 4),
        key=lambda one: one.id,
    )
    spawn, drive = carla.command.SpawnActor, carla.command.SetAutopilot
    spawned: Any = carla.command.FutureActor  # a class stands for the actor that the batch spawns
    port = episode.manager.get_port()
    batch: list[Any] = []
    for point in points[:count]:
        blueprint = episode.draw.choice(cars)
        blueprint.set_attribute("role_name", "autopilot")
        point.location.z += 0.3
        batch.append(spawn(blueprint, point).then(drive(spawned, True, port)))
    episode.driven += _take(episode, episode.client.apply_batch_sync(batch, False))
    episode.refused += max(count - len(points), 0)


def add_walkers(episode: CarlaEpisode, count: int) -> None:
    """Spawn up to `count` walkers where the map has pavements to walk on, with CARLA's own controllers."""
    if count == 0:
        return
    world = episode.world
    world.set_pedestrians_seed(episode.order.seed % 2**31)
    places = [place for _ in range(count) if (place := world.get_random_location_from_navigation()) is not None]
    walkers = sorted(world.get_blueprint_library().filter("walker.pedestrian.*"), key=lambda one: one.id)
    batch = [carla.command.SpawnActor(episode.draw.choice(walkers), carla.Transform(place)) for place in places]
    before = len(episode.actors)
    _take(episode, episode.client.apply_batch_sync(batch, False))
    episode.refused += count - len(places)
    spawned = episode.actors[before:]
    if not spawned:
        return
    controller = world.get_blueprint_library().find("controller.ai.walker")
    minds = [world.spawn_actor(controller, carla.Transform(), attach_to=walker) for walker in spawned]
    world.tick()  # a controller starts in a world that knows its walker
    for mind in minds:
        mind.start()
        target = world.get_random_location_from_navigation()
        if target is not None:
            mind.go_to_location(target)
        mind.set_max_speed(1.0 + episode.draw.random())
    episode.actors += minds


def _take(episode: CarlaEpisode, answers: Any) -> list[int]:
    """Take over the actors that a batch has spawned; returns their ids."""
    ids = [answer.actor_id for answer in answers if not answer.error]
    episode.refused += len(answers) - len(ids)
    found = {actor.id: actor for actor in episode.world.get_actors(ids)} if ids else {}
    episode.actors += [found[one] for one in ids if one in found]
    return ids


def _wheels(blueprint: Any) -> int:
    return int(blueprint.get_attribute("number_of_wheels")) if blueprint.has_attribute("number_of_wheels") else 4
