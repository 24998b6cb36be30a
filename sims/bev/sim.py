"""`bev/drive`: driving in traffic, seen from above: routes, lights, pedestrians, scenarios, OpenDRIVE maps."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import ConfigError, check_count, unknown
from robotrl.registry import TRAFFIC
from robotrl.sims.bev import procedural
from robotrl.sims.bev.core import BevCore, Layouts, OneMap
from robotrl.sims.bev.traffic.learned.stored import MANIFEST, LearnedTraffic, read_traffic
from robotrl.sims.bev.traffic.scenarios import SCENARIOS, Scenario, ScenarioEvent
from robotrl.sims.driving.backends.backend import Backend, Threads
from robotrl.sims.driving.backends.cuda import Cuda
from robotrl.sims.driving.observations import DrivingObservations
from robotrl.sims.driving.opendrive import reader
from robotrl.sims.driving.roads import maps, routes
from robotrl.sims.driving.roads.map_pool import MapPool
from robotrl.sims.driving.sim import DT_S, DrivingSim, TrafficCfg
from robotrl.sims.driving.traffic.populations import Population, check_population
from robotrl.spec import Input
from robotrl.utils.devices import device_of


class Destination(NamedTuple):
    """Arrays of others that observations are written into."""

    given: Mapping[str, NDArray[Any]]
    """The same arrays as they were given; kept, so that no other mapping has its identity."""
    arrays: dict[str, NDArray[Any]]
    observed: DrivingObservations
    tensors: dict[str, Tensor]


class DriveSim(DrivingSim[BevCore]):
    """Batched driving sim with traffic of our own; see `DriveCfg`."""

    def __init__(self, core: BevCore, observed: DrivingObservations) -> None:
        super().__init__(core, observed)
        self._observed = observed
        self._destinations: dict[int, Destination] = {}
        """Arrays of others that observations were written into, by identity."""

    def observe_into(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write observations into other arrays from now on; see `robotrl.sims.core_sim.ObservesInto`."""
        if id(arrays) not in self._destinations:
            found = dict(arrays)
            self._destinations[id(arrays)] = Destination(
                arrays, found, self._observed.into(found), self._tensors(found)
            )
        there = self._destinations[id(arrays)]
        self._obs = there.tensors
        self.core.observe_into(there.observed, there.arrays)

    def get_state(self) -> dict[str, NDArray[Any]]:
        """Exact state; see the core's `get_state`."""
        return self.core.get_state()

    def set_state(self, state: dict[str, NDArray[Any]]) -> dict[str, Tensor]:
        """Restore exact state; see the core's `set_state`."""
        self.core.set_state(state)
        return dict(self._obs)


def chosen(scenarios: Sequence[str] | None) -> tuple[Scenario, ...]:
    """Scenarios by name; all scenarios if None.

    Raises:
        ConfigError: an unknown name, one named twice, or none.
    """
    if scenarios is None:
        return SCENARIOS
    names = [scenario.name for scenario in SCENARIOS]
    for name in scenarios:
        if name not in names:
            raise unknown("scenario", name, names)
    if not scenarios or len(set(scenarios)) != len(scenarios):
        raise ConfigError(f"scenarios is {tuple(scenarios)!r}: expected each name once, and one or more")
    return tuple(SCENARIOS[names.index(name)] for name in scenarios)


def driving(names: Sequence[str]) -> tuple[Population | LearnedTraffic, ...]:
    """Populations of traffic by name, or by the path of a stored one.

    Raises:
        ConfigError: no name, one named twice, an unknown one, or one that does not load or has a value out of range.
        DataError: a stored one cannot be read, or is of another version.
    """
    if not names or len(set(names)) != len(names):
        raise ConfigError(f"traffic is {tuple(names)!r}: expected each population once, and one or more")
    return tuple(_population(name) for name in names)


def is_stored(name: str) -> bool:
    """True if the name of a population is a path: it has a separator, or is no name and exists."""
    return os.sep in name or (name not in TRAFFIC.rows() and Path(name).exists())


def _population(name: str) -> Population | LearnedTraffic:
    if is_stored(name):
        return read_traffic(name)
    make = TRAFFIC.load(name)
    if not callable(make):
        raise ConfigError(f"traffic population {name!r} is {make!r}: expected a function that returns a Population")
    made = make()
    return read_traffic(made) if isinstance(made, Path) else check_population(name, made)


@dataclass(frozen=True)
class DriveCfg(TrafficCfg):
    """`bev/drive`: driving in traffic, seen from above: routes, lights, pedestrians, scenarios, OpenDRIVE maps."""

    scenarios: tuple[str, ...] | None = None
    """Names of the scenarios to drive; None takes all."""
    traffic: tuple[str, ...] = ("moderate",)
    """Populations of traffic, names from `robotrl list traffic` or folders of `robotrl traffic`; of several, each start
    draws one."""
    map: str | None = None
    """OpenDRIVE file to drive on instead of the procedural roads."""
    threads: int = 0
    """CPU threads that step the envs; 0 uses every core."""
    device: str = "cpu"
    """Device that steps the envs and holds the tensors: "cpu", "cuda" or "cuda:1"."""

    def build(self, num_envs: int, seed: int) -> DriveSim:
        """Build the batched sim.

        Args:
            num_envs: N, 1 or more.
            seed: seed of the training starts that are drawn.

        Raises:
            ConfigError: a value out of range, with what was expected.
        """
        self.check(num_envs)
        check_count("threads", self.threads, 0, 1024)
        taken = self.taken()
        rules = self.rules(taken)
        populations = driving(self.traffic)
        machine = machine_of(self.device, min(self.threads or os.cpu_count() or 1, num_envs))
        if self.map is None:
            layouts, driven = Layouts(), chosen(self.scenarios)
            bank = MapPool(machine, lambda key: procedural_map(*key))
        else:
            if self.scenarios is not None:
                raise ConfigError("scenarios and map are both given: expected one of them, an own map has no scenarios")
            layouts, driven = OneMap(), (Scenario("map", "map", ScenarioEvent.NONE),)
            bank = _own_map(machine, self.map, self.routes, self.route_length_m)
        observed = self.observations(machine, num_envs)
        limit = round(self.limit_s / DT_S)
        own = (limit, rules, taken.spec, seed, machine, observed)
        core = BevCore(bank, layouts, num_envs, self.agents, driven, populations, *own)
        return DriveSim(core, observed)

    def inputs(self) -> list[Input]:
        """Map file and stored traffic that the sim reads; see `HasInputs`."""
        own_map = [Input("map", "file", self.map)] if self.map is not None else []
        # the manifest has the hash of the weights
        return own_map + [
            Input("traffic", "file", str(Path(name) / MANIFEST)) for name in self.traffic if is_stored(name)
        ]


@functools.lru_cache(maxsize=256)
def procedural_map(family: str, seed: int) -> maps.RoadMap:
    """Finished map of a road family and a layout seed; map pools copy it.

    A process keeps the last 256, a third of a MB each at most: sims for training and for evaluation drive on the same.
    """
    return maps.finish(procedural.layout(family, seed))


def machine_of(device: str, threads: int) -> Backend:
    """Make the backend for a device.

    Raises:
        ConfigError: the device does not exist here.
    """
    place = device_of(device)
    if place.type == "cpu":
        return Threads(threads)
    if place.type != "cuda":
        raise ConfigError(f"device is {device!r}: bev/drive steps on 'cpu' and on 'cuda'")
    return Cuda(place.index or 0)


def _own_map(machine: Backend, path: str | Path, count: int, length_m: float) -> MapPool:
    builder = reader.read(Path(path))
    routes.pick_routes(builder, count=count, seed=0, length_m=length_m)
    routes.warn_if_shared(builder.name, len(builder.routes))
    finished = maps.with_spots(maps.finish(builder))
    return MapPool(machine, lambda key: finished)
