"""`carla/...`: driving on CARLA servers, by the name of a town, a route file or an OpenDRIVE file."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import tyro

from robotrl.errors import ConfigError, check_count, check_number, out_of_range, unknown
from robotrl.sims.carla.core import CarlaCore, TownSettings, Traffic
from robotrl.sims.carla.routes import CarlaRoute, read_routes
from robotrl.sims.carla.supervisor import CarlaLink, LinkCfg
from robotrl.sims.carla.towns import StartPlan
from robotrl.sims.driving.backends.backend import Threads
from robotrl.sims.driving.opendrive import reader
from robotrl.sims.driving.sim import DT_S, DrivingSim, TrafficCfg
from robotrl.spec import Input, Spec, TrainDefaults
from robotrl.spec.json_flag import JSON_FLAG
from robotrl.utils.files import read_plain
from robotrl.utils.installation import install_line

Pedals = Literal["acceleration", "direct"]
PEDALS = ("acceleration", "direct")
LONGEST_S = 3600.0
LARGEST_PICTURE = 4096
MOST_SERVERS = 32
"""Servers that a sim starts at most: the usual number of envs of other sims would be too many by far."""


class CarlaSim(DrivingSim[CarlaCore]):
    """Batched driving sim on CARLA servers; see `CarlaCfg`."""

    @property
    def losses(self) -> int:
        """Servers lost so far; their episodes were repeated."""
        return self.core.losses

    @property
    def repeats(self) -> int:
        """Repeated episodes that came out the same, so that nothing was lost."""
        return self.core.repeats


@dataclass(frozen=True)
class CarlaCfg(TrafficCfg):
    """Options of `carla/...`."""

    train_defaults: ClassVar[TrainDefaults] = TrainDefaults(
        {
            "sim.num_envs": 1,
            "policy.horizon": 1,
            "algo.critic_warmup_env_steps": 0,
            "algo.normalize_reward": True,
            "evaluation.episodes": 16,
            "evaluation.num_envs": 1,
        }
    )
    world: Annotated[str, tyro.conf.Fixed] = ""
    """Town of the server ("Town01"), route file (.xml) or OpenDRIVE file (.xodr)."""
    server: str | None = None
    """Command that starts a server, with {port}, such as "./CarlaUE4.sh -RenderOffScreen -carla-rpc-port={port}"; one
    is started for each env. None connects to servers that run."""
    host: str = "127.0.0.1"
    """Host of servers that run."""
    ports: tuple[int, ...] = (2000,)
    """Ports of servers that run, one for each env."""
    timeout_s: float = 20.0
    """Seconds that a call to a server may take; then the server counts as lost."""
    start_timeout_s: float = 120.0
    """Seconds that a server may take to start, to load a map or to begin an episode."""
    restarts: int = 3
    """Losses of one server in a row, with no step in between, that are made good."""
    tick_s: float = 0.05
    """Simulated time of a tick, 0.01 to 0.1 s, a part of the control step of 0.1 s."""
    fresh: bool = True
    """Load the world anew for each episode: slower, and needed for an episode to be repeated exactly."""
    ego: str = "vehicle.lincoln.mkz_2020"
    """Blueprint of the ego."""
    pedals: Pedals = "acceleration"
    """Meaning of the action `accel`: "acceleration" is that of `bev/drive`, kept by feedback; "direct" is the position
    of throttle (positive) and brake."""
    vehicles: int = 40
    """Vehicles that CARLA's traffic manager drives, 0 to 500."""
    walkers: int = 10
    """Walkers, 0 to 500."""
    settle_ticks: int = 10
    """Ticks before an episode begins, in which cars settle on the road."""
    route_ids: tuple[str, ...] | None = None
    """Routes of a route file to drive; None takes all."""
    hooks: Annotated[Mapping[str, str] | None, JSON_FLAG] = None
    """Code of one's own for types of scenarios, as a JSON object: {"Type": "MODULE:CLASS"}."""
    front_pixels: int = 0
    """Height of the pictures of a camera at the windscreen, observation `front`; 0 for none."""
    front_fov_deg: float = 100.0
    """Horizontal field of view of that camera, degrees."""
    threads: int = 1
    """CPU threads that draw the observations."""

    def build(self, num_envs: int, seed: int) -> CarlaSim:
        """Start or find the servers, and build the sim.

        Args:
            num_envs: N, one server for each.
            seed: seed of the training starts that are drawn.

        Raises:
            ConfigError: a value out of range, another version of CARLA, or a file that cannot be used.
            CarlaFault: there is no server.
        """
        if importlib.util.find_spec("carla") is None:
            raise ConfigError(f"sim 'carla/{self.world}' needs CARLA's client library; run {install_line('carla')}")
        self.check(num_envs)
        self._check_numbers(num_envs)
        taken = self.taken()
        rules = self.rules(taken)
        planned, opendrive, town = self._world()
        camera = {"width": 2 * self.front_pixels, "height": self.front_pixels, "fov_deg": self.front_fov_deg}
        traffic = Traffic(
            self.ego,
            self.vehicles,
            self.walkers,
            self.pedals == "acceleration",
            self.settle_ticks,
            camera if self.front_pixels else None,
            dict(self.hooks or {}),
        )
        machine = Threads(min(self.threads, num_envs))
        observed = self.observations(machine, num_envs)
        front = None
        specs = dict(observed.specs)
        if self.front_pixels:
            shape = (self.front_pixels, 2 * self.front_pixels, 3)
            front = np.zeros((num_envs, *shape), np.uint8)
            specs["front"] = Spec(shape, ("red", "green", "blue"), ("1",) * 3, (0.0,) * 3, (255.0,) * 3, "uint8")
        links = [CarlaLink(self._link(e)) for e in range(num_envs)]
        core = CarlaCore(
            f"carla/{self.world}",
            links,
            StartPlan(town, planned, self.routes),
            TownSettings(opendrive, self.routes, self.route_length_m),
            traffic,
            round(DT_S / self.tick_s),
            front,
            self.restarts,
            self.agents,
            round(self.limit_s / DT_S),
            rules,
            taken.spec,
            seed,
            machine,
            observed,
        )
        try:
            core.open()
            return CarlaSim(core, observed._replace(specs=specs), {"lost": core.lost})
        except BaseException:
            core.close()
            raise

    def _link(self, e: int) -> LinkCfg:
        port = 0 if self.server is not None else self.ports[e]
        times = (self.timeout_s, self.start_timeout_s, self.tick_s)
        return LinkCfg(self.server, self.host, port, *times, self.fresh, self.front_pixels > 0)

    def _check_numbers(self, num_envs: int) -> None:
        if self.pedals not in PEDALS:
            raise unknown("pedals", str(self.pedals), PEDALS)
        for name, value, low, high in (
            ("restarts", self.restarts, 0, 1_000_000),
            ("vehicles", self.vehicles, 0, 500),
            ("walkers", self.walkers, 0, 500),
            ("settle_ticks", self.settle_ticks, 1, 10_000),
            ("routes", self.routes, 3, 100_000),
            ("front_pixels", self.front_pixels, 0, LARGEST_PICTURE),
            ("threads", self.threads, 1, 1024),
        ):
            check_count(name, value, low, high)
        for name, number, least, most, unit in (
            ("timeout_s", self.timeout_s, 0.1, LONGEST_S, "s"),
            ("start_timeout_s", self.start_timeout_s, 0.1, LONGEST_S, "s"),
            ("tick_s", self.tick_s, 0.01, DT_S, "s"),
            ("front_fov_deg", self.front_fov_deg, 10.0, 170.0, "degrees"),
        ):
            check_number(name, number, least, most, unit)
        if abs(DT_S / self.tick_s - round(DT_S / self.tick_s)) > 1e-6:
            raise out_of_range("tick_s", self.tick_s, f"a part of {DT_S} s, the control step: 0.1, 0.05, 0.025 or 0.02")
        if self.server is not None and num_envs > MOST_SERVERS:
            raise out_of_range("num_envs", num_envs, f"1 to {MOST_SERVERS}, since a server is started for each env")
        for port in self.ports:
            check_count("ports", port, 1, 65_535)
        if len(set(self.ports)) < len(self.ports):
            raise ConfigError(f"ports is {self.ports}: expected another port for each env")
        if self.server is None and len(self.ports) != num_envs:
            raise ConfigError(
                f"num_envs is {num_envs} and ports has {len(self.ports)}: expected a port for each env, or server, a"
                " command that starts one for each"
            )

    def _world(self) -> tuple[tuple[CarlaRoute, ...], str | None, str]:
        """Routes of a route file, text of an OpenDRIVE file, and name of the town."""
        path = Path(self.world)
        if path.suffix == ".xml":
            return read_routes(path, self.route_ids or ()), None, ""
        if self.route_ids is not None:
            raise ConfigError(f"route_ids is {self.route_ids!r} and world {self.world!r}: expected a route file (.xml)")
        if path.suffix == ".xodr":
            try:
                text = read_plain(path, "it").decode()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"sim 'carla/{self.world}': the file cannot be read: {error}") from None
            reader.parse(text, path.stem, own_lights=True, mirror=False)  # a map that cannot be used starts no server
            return (), text, path.stem
        return (), None, self.world

    def inputs(self) -> list[Input]:
        """Route or map file that the sim reads; see `HasInputs`."""
        return [Input("world", "file", self.world)] if Path(self.world).suffix in (".xml", ".xodr") else []


def family(world: str) -> CarlaCfg:
    """`carla/...`: a town, a route file or an OpenDRIVE file on CARLA servers; the default options of one.

    Raises:
        ConfigError: no name.
    """
    if not world:
        raise ConfigError("sim 'carla/' names no world: expected carla/TOWN, carla/ROUTES.xml or carla/MAP.xodr")
    return CarlaCfg(world=world)
