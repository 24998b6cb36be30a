"""Evaluation under latency: the sim's options that execute actions as late as on the robot."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from robotrl.api.evaluation import sim_of
from robotrl.api.inspection import kind_of
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.errors import ConfigError, check_number
from robotrl.registry import sim_options
from robotrl.run.policy_checkpoint import describe
from robotrl.spec import Spec, committed_steps
from robotrl.spec.sim_options import HasPerturb

MAX_LATENCY_MS = 10_000.0


def latency_options(path: Path, sim: str | None, options: Mapping[str, Any], latency_ms: float) -> dict[str, Any]:
    """Options of a sim in which each action of the policy at a path is executed `latency_ms` after its observation.

    A latency is met by whole control periods: one of 25 ms at 50 Hz costs two.

    Args:
        path: a run, checkpoint or bundle.
        sim: name of the sim; None takes the one that the run was trained on.
        options: options of the sim by name, which override those of the run; they stay but for the delay.
        latency_ms: time from an observation to the execution of the first action decided on it, 0 to 10,000 ms.

    Raises:
        ConfigError: a latency out of range, longer than the policy was trained for, a policy without a control
            period, or a sim that cannot delay actions.
        DataError: nothing readable is at the path.
    """
    check_number("--latency-ms", latency_ms, 0.0, MAX_LATENCY_MS)
    name, had = sim_of(path, sim)
    cfg = sim_options(name, {**had, **options})
    if not isinstance(cfg, HasPerturb):
        raise ConfigError(f"--latency-ms is {latency_ms:g}: sim {name!r} has no option perturb to delay actions with")
    period_s, most = _period_and_most(path)
    if period_s is None:
        raise ConfigError(f"--latency-ms is {latency_ms:g}: {path} states no control period, expected a trained policy")
    # a latency of exactly n periods must not cost n + 1 by rounding
    steps = math.ceil(latency_ms / 1000.0 / period_s - 1e-6)
    if most and steps > most:
        raise ConfigError(
            f"--latency-ms is {latency_ms:g}, {steps} control periods: expected at most {most} of them,"
            f" {1000.0 * most * period_s:g} ms, for which the policy knows its committed actions"
        )
    late = {"action_delay_steps": steps, "draw_delay": False, "committed_steps": most}
    return {**options, "perturb": {**asdict(cfg.perturb), **late}}


def _period_and_most(path: Path) -> tuple[float | None, int]:
    """Control period of a policy, s, and the number of committed actions that it reads."""
    if kind_of(path) == "bundle":
        manifest = open_bundle(path).manifest
        return manifest.timing.control_period_s, manifest.timing.rtc_max_delay_steps
    found = describe(path).description
    while "observation_spec" not in found:
        found = found["base"]  # a policy over another one
    specs = {key: Spec.from_json(spec) for key, spec in found["observation_spec"].items()}
    return found["control_dt_s"], committed_steps(specs)
