"""Messages that explain to the user why a servo ended a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.bundle.match import Wiring
from robotrl.deploy.bundle.plausible import outside_start
from robotrl.deploy.control.log import Tick
from robotrl.deploy.control.safety import Reason
from robotrl.deploy.servo.settings import RESET_TIMEOUT_S
from robotrl.spec.checks import misfit


def fault_words(fault: Mapping[str, Any], robot: str, manifest: Manifest, wiring: Wiring, tick: Tick | None) -> str:
    """Words for the facts of a fault, which either servo reports in its summary; "" for none.

    Args:
        fault: `kind` "damped" with the place (`episode`, `state_id`), the age of an inference that has not ended
            (`hung_ns`, -1 for none), the index of the frozen sensor among those that are watched (`frozen`, -1 for
            none), whether an instruction was none (`misfit`), and the failure of the last inference (`refused`, or
            None); `kind` "reset" with the `episode` and the part that is `missing`; `kind` "silent" with the `limit_ns`
            that the supervisor was silent; `kind` "start" with the episode and the `value` that is outside the start
            envelope, at place `at` of the observation of numbers `port`; `kind` "start_pose" with the episode and the
            `element` of the action that did not arrive at its start pose, measured at `value` (None: not at all).
        robot: the robot's name.
        manifest: the bundle's manifest.
        wiring: index maps and limits of bundle and robot.
        tick: the last tick.
    """
    kind = fault.get("kind", "")
    if kind == "silent":
        return f"robot {robot!r}: the supervisor was silent for {fault['limit_ns'] * 1e-9:g} s; damped"
    if kind == "reset":
        place = int(fault["missing"])
        part = "no observation" if place < 0 else f"no frame of camera {list(wiring.cameras)[place]!r}"
        return f"robot {robot!r} did not start episode {fault['episode']} within {RESET_TIMEOUT_S:g} s: {part} came"
    if kind == "start":
        place = f"in episode {fault['episode']} (start {fault['state_id']})"
        why = _outside_start(fault, manifest, wiring)
        return (
            f"robot {robot!r} is not where the policy can take over, {place}: {why}; no action was sent: bring it"
            " there, or accept it (--accept-start)"
        )
    if kind == "start_pose" and wiring.start is not None:
        element = int(fault["element"])
        found = "not measured" if fault["value"] is None else f"measured at {fault['value']:.6g}"
        return (
            f"robot {robot!r} did not arrive at its start pose in episode {fault['episode']} (start"
            f" {fault['state_id']}) within {RESET_TIMEOUT_S:g} s: {manifest.action.names[element]!r} is {found},"
            f" expected {wiring.start.pose[element]:.6g}; damped"
        )
    if kind != "damped" or tick is None:
        return ""
    if fault["hung_ns"] >= 0:
        why = f"an inference has not ended after {fault['hung_ns'] * 1e-9:.3f} s"
    else:
        frozen = "" if fault["frozen"] < 0 else list(wiring.limits.max_still_s)[fault["frozen"]]
        refused = "" if fault["refused"] is None else str(fault["refused"]["why"])
        why = why_bad(
            tick, manifest, wiring, frozen, _wrong_words(tick, manifest, wiring) if fault["misfit"] else refused
        )
    where = f"in episode {fault['episode']} (start {fault['state_id']}) at tick {tick.tick}"
    return f"robot {robot!r} {where}: {why}; held, then damped"


def _outside_start(fault: Mapping[str, Any], manifest: Manifest, wiring: Wiring) -> str:
    """Description of an element outside the start envelope."""
    key = list(wiring.observations)[int(fault["port"])]
    obs = np.full(wiring.observations[key].shape, np.nan, np.float32)
    obs.flat[int(fault["at"])] = fault["value"]
    return outside_start(manifest.safety.start, manifest.observations, {key: obs})


def _wrong_words(tick: Tick, manifest: Manifest, wiring: Wiring) -> str:
    """Description of an instruction that is none."""
    wrong = (
        misfit(port.name, _values(tick, wiring, port.name), port.spec, by_value=True)
        for port in manifest.observations
        if port.words
    )
    return next((text for text in wrong if text), "")


def why_bad(tick: Tick, manifest: Manifest, wiring: Wiring, frozen: str, refused: str) -> str:
    """Explain the reason of the last tick, with names and numbers.

    Args:
        tick: the bad tick.
        manifest: the bundle's manifest.
        wiring: index maps of the robot's observation.
        frozen: key of the sensor that stands still; "" for none.
        refused: reason why the controller gave no action; "" if it gave one.
    """
    limits = wiring.limits
    count = f"{limits.bad_ticks_to_damp} ticks in a row"
    reason = Reason(tick.reason)
    if reason & Reason.OBS_NOT_FINITE:
        values = {key: _values(tick, wiring, key) for key in wiring.observations}
        found = _first(manifest, {key: ~np.isfinite(array) for key, array in values.items()}, values)
        return f"{found or f'the robot sent an observation of {len(tick.observation)} numbers'} for {count}"
    most = limits.max_observation_age_s
    if reason & Reason.OBS_STALE:
        return f"the last observation is {tick.age_ns * 1e-9:.3f} s old, more than {most:g} s, for {count}"
    if reason & Reason.OBS_TIME:
        return f"the time stamp of the observation runs back or ahead (age {tick.age_ns * 1e-9:.3f} s) for {count}"
    if reason & Reason.ACTION_LATE:
        took = f"the inference took {tick.inference_ns * 1e-9:.3f} s"
        return f"{took}, and its observation was older than {most:g} s before the action was sent, for {count}"
    if reason & Reason.OBS_FROZEN:
        return f"observation {frozen!r} stands still while the robot is told to move, for {count}"
    if refused and reason & (Reason.OBS_MISFIT | Reason.OBS_REFUSED | Reason.INFERENCE_FAILED):
        return f"{refused}, for {count}"
    if reason & Reason.OBS_IMPLAUSIBLE:
        values = {key: _values(tick, wiring, key) for key in limits.plausible}
        wrong = {key: (values[key] < low) | (values[key] > high) for key, (low, high) in limits.plausible.items()}
        return f"{_first(manifest, wrong, values)}, outside of what is plausible, for {count}"
    names = ", ".join(str(r.name).lower() for r in reason)
    return f"{names} for {count}"


def _values(tick: Tick, wiring: Wiring, key: str) -> np.ndarray:
    return tick.observation[wiring.observations[key]] if len(tick.observation) else np.zeros(0)


def _first(manifest: Manifest, wrong: dict[str, np.ndarray], values: dict[str, np.ndarray]) -> str:
    """Description of the first wrong element with its value; "" if there is none."""
    for port in manifest.observations:
        places = np.argwhere(wrong.get(port.name, np.zeros(0, np.bool_)))
        if len(places):
            at = tuple(places[0])
            return f"observation {port.name!r} element {port.names[at[-1]]!r} is {values[port.name][at]}"
    return ""
