"""A policy in the shadow of the one that controls: it sees the same observations, and its actions are compared only.

It runs in the supervisor, after each tick and outside real time, so it disturbs neither servo nor robot.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from robotrl.deploy.buffers import InferenceError
from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.bundle.match import RobotInfo, wire
from robotrl.deploy.control.log import Tick
from robotrl.deploy.control.safety import Mode
from robotrl.deploy.runtime import Controller
from robotrl.errors import ConfigError, NumericsError


@dataclass(frozen=True)
class ElementDifference:
    """Differences of one action element over a run's ticks."""

    mean: float
    """Mean difference, shadow minus controller, in the element's unit: its bias."""
    p50: float
    p95: float
    max: float
    """Percentiles and maximum of the absolute difference."""


@dataclass(frozen=True)
class ShadowReport:
    """Comparison of the shadow's actions with those of the policy that controlled.

    Args:
        bundle_id: the shadow's bundle.
        ticks: ticks in which both gave an action.
        refused: ticks in which the shadow gave none.
        skipped: ticks in which it was not asked, since it was so slow that ticks would have been lost from the log.
        outside: ticks in which an action of the shadow was beyond the limits of robot and bundle.
        differences: by action element, in its unit.
    """

    bundle_id: str
    ticks: int
    refused: int
    skipped: int
    outside: int
    differences: dict[str, ElementDifference]


class Shadow:
    """Runs a bundle on the observations of another one's control.

    Args:
        bundle: the shadow's bundle.
        controls: manifest of the bundle that controls.
        info: the robot's description.
        seed: seed of the sampler's noise.

    Raises:
        DataError: the bundle is refused.
        ConfigError: it does not match the robot.
    """

    def __init__(self, bundle: str | os.PathLike[str], controls: Manifest, info: RobotInfo, seed: int) -> None:
        self._controller = Controller.load(bundle, seed=seed)
        manifest = self._controller.manifest
        self._wiring = wire(manifest, info)
        if self._wiring.cameras:
            raise ConfigError(
                f"the shadow {os.fspath(bundle)!r} sees images ({', '.join(self._wiring.cameras)}): expected a policy"
                " of numbers alone, since it acts after the frames are gone"
            )
        names = list(manifest.action.names)
        self._order = np.asarray([names.index(name) for name in controls.action.names], np.int64)
        self._names = controls.action.names
        self._bundle_id = manifest.bundle_id
        self._differences: list[np.ndarray] = []
        self._refused = 0
        self._skipped = 0
        self._outside = 0
        self._tick = -1

    def reset(self) -> None:
        """Start an episode."""
        self._controller.reset()
        self._tick = -1

    def act(self, tick: Tick) -> np.ndarray | None:
        """The shadow's action for a tick, in the order of the bundle that controls; None if it gives none.

        Its chunk is placed by the number of the tick. At a bad tick it gives none and drops its chunk, as the control.

        Args:
            tick: a tick of the control, later than that of the last call.
        """
        if tick.mode != Mode.ACTIVE:
            self._pass(tick)
            return None
        passed, self._tick = tick.tick - self._tick, tick.tick
        self._controller.skip(passed - 1)
        if len(tick.observation) != self._wiring.observation_size:
            self._refused += 1
            return None
        obs: Mapping[str, np.ndarray] = {
            key: tick.observation[order] for key, order in self._wiring.observations.items()
        }
        try:
            action = self._controller.step(obs)
        except (ConfigError, NumericsError, InferenceError):
            self._refused += 1
            self._controller.drop()
            return None
        limits = self._wiring.limits
        self._outside += bool(((action < limits.low) | (action > limits.high)).any())
        found = action[self._order]
        if tick.policy is not None:
            self._differences.append(found - tick.policy)
        return found

    def skip(self, tick: Tick) -> None:
        """Pass a tick without an action, and drop the chunk, as at a bad tick; counted in the report."""
        self._skipped += 1
        self._pass(tick)

    def _pass(self, tick: Tick) -> None:
        passed, self._tick = tick.tick - self._tick, tick.tick
        self._controller.skip(passed)
        self._controller.drop()

    @property
    def report(self) -> ShadowReport:
        """The comparison so far."""
        width = len(self._names)
        rows = np.stack(self._differences).astype(np.float64) if self._differences else np.zeros((0, width))
        return ShadowReport(
            bundle_id=self._bundle_id,
            ticks=len(rows),
            refused=self._refused,
            skipped=self._skipped,
            outside=self._outside,
            differences={name: _difference(rows[:, i]) for i, name in enumerate(self._names)},
        )


def _difference(column: np.ndarray) -> ElementDifference:
    if not len(column):
        return ElementDifference(0.0, 0.0, 0.0, 0.0)
    size = np.abs(column)
    p50, p95 = np.percentile(size, (50, 95)).tolist()
    return ElementDifference(float(column.mean()), p50, p95, float(size.max()))
