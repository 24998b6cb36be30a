"""The new bundle of a policy that took the place of a bundle's, with the settings of that one."""

from __future__ import annotations

from pathlib import Path

from robotrl.api.exporting import export
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.bundle.describe import SafetyOptions
from robotrl.deploy.bundle.manifest import MANIFEST_FILE, Manifest
from robotrl.errors import CapabilityError


def export_like(run: Path, out: Path, sim: str, before: Manifest) -> str:
    """Export a run with the safety settings and timing of the bundle of before; returns the new bundle's id.

    A bundle that is there already, from a session that was killed afterwards, is kept.

    Raises:
        RobotrlError: see `robotrl.export`.
    """
    if not (out / MANIFEST_FILE).is_file():
        safety, timing = before.safety, before.timing
        options = SafetyOptions(
            max_step=safety.max_step,
            ramp_in_s=safety.ramp_in_s,
            bad_ticks_to_damp=safety.bad_ticks_to_damp,
            neutral=safety.neutral,
            max_observation_age_s=timing.max_observation_age_s,
        )
        guided = timing.rtc_max_delay_steps if timing.rtc_mode == "guided" else 0
        export(
            run,
            out,
            sim=sim,
            safety=options,
            interpolation=timing.interpolation,
            action_kind=before.action.kind,
            guided_steps=guided,
        )
    return open_bundle(out).manifest.bundle_id


def check_exported_again(bundle: Path, manifest: Manifest) -> None:
    """Check that a bundle is of a kind whose successor `export_like` makes.

    Raises:
        CapabilityError: it has a reflex or a steering graph, which learned beside the policy of before.
    """
    part = "reflex" if manifest.reflex is not None else "steering graph" if manifest.steer is not None else ""
    if part:
        raise CapabilityError(
            f"{bundle} has a {part}, which learned beside its policy: expected the run of the policy itself, and a new"
            f" {part} beside the improved one"
        )
