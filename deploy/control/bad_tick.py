"""Messages that explain a bad tick to the user."""

from __future__ import annotations

import numpy as np

from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.bundle.match import Wiring
from robotrl.deploy.control.log import Tick
from robotrl.deploy.control.safety import Reason, SafetyChain


def why_bad(tick: Tick, manifest: Manifest, wiring: Wiring, chain: SafetyChain, refused: str) -> str:
    """Explain the reason of the last tick, with names and numbers.

    Args:
        tick: the bad tick.
        manifest: the bundle's manifest.
        wiring: index maps of the robot's observation.
        chain: the safety chain that checked it.
        refused: reason why the controller gave no action; "" if it gave one.
    """
    limits = chain.limits
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
        return f"observation {chain.frozen!r} stands still while the robot is told to move, for {count}"
    if refused:
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
