"""Cycles of traffic lights: in each junction one phase after the other is green, then yellow, then all are red."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

RED, YELLOW, GREEN = range(3)
GREEN_S, YELLOW_S, RED_S = 10.0, 3.0, 2.0


@dataclass
class TrafficLight:
    """A traffic light; times in seconds."""

    id: int
    state: int = RED
    elapsed_s: float = 0.0
    green_s: float = GREEN_S
    yellow_s: float = YELLOW_S
    red_s: float = RED_S


@dataclass
class Junction:
    """Lights that take turns."""

    phases: list[list[TrafficLight]]
    frozen: bool = False
    _phase: int = field(default=0, init=False)
    _stage: int = field(default=GREEN, init=False)
    _left_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.restart()

    @property
    def lights(self) -> list[TrafficLight]:
        """All lights."""
        return [light for phase in self.phases for light in phase]

    def restart(self) -> None:
        """Begin with the first phase, green."""
        self._phase = 0
        for light in self.lights:
            _show(light, RED)
        self._enter(GREEN)

    def advance(self, dt_s: float) -> None:
        """Let time pass."""
        if self.frozen:
            return
        for light in self.lights:
            light.elapsed_s += dt_s
        self._left_s -= dt_s
        while self._left_s <= 1e-9:
            if self._stage == RED:
                self._phase = (self._phase + 1) % len(self.phases)
            self._enter({GREEN: YELLOW, YELLOW: RED, RED: GREEN}[self._stage])

    def _enter(self, stage: int) -> None:
        self._stage = stage
        phase = self.phases[self._phase]
        for light in phase:
            _show(light, stage)
        first = phase[0]
        self._left_s += max({GREEN: first.green_s, YELLOW: first.yellow_s, RED: first.red_s}[stage], 1e-3)


def _show(light: TrafficLight, state: int) -> None:
    light.state, light.elapsed_s = state, 0.0


class Lights:
    """All lights of a map.

    Args:
        phases: of each junction, by OpenDRIVE ids.
        ids: actor ids by OpenDRIVE ids.
    """

    def __init__(self, phases: list[list[list[str]]], ids: Mapping[str, int]) -> None:
        self.junctions = [Junction([[TrafficLight(ids[name]) for name in phase] for phase in of]) for of in phases]
        self.of_junction = {light.id: junction for junction in self.junctions for light in junction.lights}
        self.by_id = {light.id: light for junction in self.junctions for light in junction.lights}

    def advance(self, dt_s: float) -> None:
        """Let time pass."""
        for junction in self.junctions:
            junction.advance(dt_s)

    def show(self, light: int, state: int) -> None:
        """Set the state of a light until its junction changes it."""
        _show(self.by_id[light], state)
