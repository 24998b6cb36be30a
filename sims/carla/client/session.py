"""A client's session with one server: connection, maps, episodes in synchronous mode, and the way back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import carla
import numpy as np

from robotrl.errors import ConfigError, unknown
from robotrl.sims.carla.channel import Arrays
from robotrl.sims.carla.client.episode import CarlaEpisode, EpisodeOrder
from robotrl.sims.carla.scene import STATIC_BOX

SUBSTEP_S, SUBSTEPS = 0.01, 10
"""Longest step of CARLA's physics, and the most of them in a tick."""
SETTINGS = (
    "substepping",
    "max_substep_delta_time",
    "max_substeps",
    "no_rendering_mode",
    "deterministic_ragdolls",
)
"""Settings of a server that we change besides its clock."""
RUN_IN_S = 0.5
"""An episode begins at a multiple of this time, s."""


class CarlaSession:
    """Session with one server. Calls raise `RuntimeError` where the server does not answer in time."""

    def __init__(self) -> None:
        self._client: Any = None
        self._world: Any = None
        self._manager: Any = None
        self._manager_port = 0
        self._episode: CarlaEpisode | None = None
        self._tick_s = 0.05
        self._fresh = True
        self._timeout_s = 10.0
        self._found: dict[str, Any] = {}

    def connect(
        self,
        host: str,
        port: int,
        manager_port: int,
        timeout_s: float,
        tick_s: float,
        fresh: bool,
        render: bool,
        found: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Connect to a server, and take over its clock.

        Args:
            host: name or address.
            port: port of calls.
            manager_port: port for the traffic manager of this client.
            timeout_s: time for an answer.
            tick_s: simulated time of a tick.
            fresh: load the world anew for each episode.
            render: let the server render; cameras need it.
            found: settings that the server had before the first of our clients, `SETTINGS`; None reads them.

        Raises:
            ConfigError: the server has another version than this client.
        """
        # a client that was made before its server never recovers, so each connection makes its own
        client = carla.Client(host, port)
        client.set_timeout(timeout_s)
        theirs, ours = client.get_server_version(), client.get_client_version()
        if theirs != ours:
            raise ConfigError(
                f"the CARLA server at {host}:{port} has version {theirs}, the installed client {ours}: expected the"
                f" same; run pip install carla=={theirs}, or start a server of version {ours}"
            )
        self._client, self._timeout_s, self._tick_s, self._fresh = client, timeout_s, tick_s, fresh
        self._world = client.get_world()
        self._take_over(render, found)
        self._manager_port, self._manager = manager_port, None
        return {"version": theirs, "settings": self._found}

    def _take_over(self, render: bool, found: Mapping[str, Any] | None) -> None:
        settings = self._world.get_settings()
        self._found = dict(found) if found is not None else {name: getattr(settings, name) for name in SETTINGS}
        settings.synchronous_mode = True
        settings.fixed_delta_seconds = self._tick_s
        settings.substepping = True
        settings.max_substep_delta_time, settings.max_substeps = SUBSTEP_S, SUBSTEPS
        settings.no_rendering_mode = not render
        settings.deterministic_ragdolls = True
        self._world.apply_settings(settings)

    def load(self, town: str | None = None, opendrive: str | None = None) -> tuple[dict[str, Any], Arrays]:
        """Load a town by name, or a world made of an OpenDRIVE text; returns the map's text and its parked cars.

        Raises:
            ConfigError: the server has no such town.
        """
        self._end_episode()
        if opendrive is not None:
            self._world = self._client.generate_opendrive_world(opendrive, _mesh(), False)
        elif town is not None and _short_name(self._world.get_map().name) != town:
            towns = sorted({_short_name(name) for name in self._client.get_available_maps()})
            if town not in towns:
                raise unknown("town", town, towns)
            self._world = self._client.load_world(town, False)
        boxes = self._world.get_level_bbs(carla.CityObjectLabel.Car)
        rows = [
            (box.location.x, -box.location.y, -np.radians(box.rotation.yaw), 2 * box.extent.x, 2 * box.extent.y)
            for box in boxes
        ]
        text = self._world.get_map().to_opendrive()
        return {"opendrive": text}, {"parked": np.array(rows, STATIC_BOX)}

    def begin(self, **order: Any) -> tuple[dict[str, Any], Arrays]:
        """Begin an episode; see `EpisodeOrder`.

        Raises:
            CarlaFault: the ego cannot be spawned.
            ConfigError: an unknown blueprint.
        """
        self._end_episode()
        if self._fresh:
            self._world = self._client.reload_world(False)
            self._run_in()
        else:
            self._world.tick()
        self._world.reset_all_traffic_lights()
        self._episode = CarlaEpisode(self._client, self._world, self.manager, EpisodeOrder(**order), self._timeout_s)
        return self._episode.start()

    def manager(self, seed: int) -> Any:
        """Traffic manager of this client, which takes time in each tick; it is made when it is first needed."""
        if self._manager is None:
            self._manager = self._client.get_trafficmanager(self._manager_port)
            self._manager.set_synchronous_mode(True)
        self._manager.set_random_device_seed(seed % 2**31)
        return self._manager

    def _run_in(self) -> None:
        """Tick up to a fixed time of the new world, in which loading has taken an unknown number of ticks.

        The traffic manager's arithmetic depends on the absolute time.
        """
        ticks = math.ceil(RUN_IN_S / self._tick_s)
        seconds = self._world.get_snapshot().timestamp.elapsed_seconds
        for _ in range(-round(seconds / self._tick_s) % ticks or ticks):
            self._world.tick()

    def step(self, controls: np.ndarray[Any, Any]) -> tuple[dict[str, Any], Arrays]:
        """Run ticks with controls; see `CarlaEpisode.step`.

        Raises:
            ConfigError: no episode has begun.
        """
        if self._episode is None:
            raise ConfigError("step without an episode: expected reset first")
        return self._episode.step(controls)

    def _end_episode(self) -> None:
        if self._episode is not None:
            episode, self._episode = self._episode, None
            episode.end()

    def release(self) -> None:
        """Remove our actors and give the server its clock back; errors of a dead server are left aside."""
        if self._client is None:
            return
        with suppress(RuntimeError, ConfigError):
            self._end_episode()
        with suppress(RuntimeError):
            # whoever comes next must find a world that moves by itself
            settings = self._world.get_settings()
            for name, value in (self._found | {"synchronous_mode": False, "fixed_delta_seconds": None}).items():
                setattr(settings, name, value)
            self._world.apply_settings(settings)
        self._client = None


def _short_name(name: str) -> str:
    """Name of a map without its folders: "Town01" of "Carla/Maps/Town01"."""
    return name.rpartition("/")[2]


def _mesh() -> Any:
    """Settings of the mesh that a server makes of an OpenDRIVE text."""
    return carla.OpendriveGenerationParameters(
        vertex_distance=2.0,
        max_road_length=500.0,
        wall_height=0.0,
        additional_width=0.6,
        smooth_junctions=True,
        enable_mesh_visibility=True,
    )
