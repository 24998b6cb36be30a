"""Registry of the perturbation families: the options of each, the sims that can have it, and how it is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from robotrl.errors import CapabilityError, unknown
from robotrl.sims.families.observed import AddedNoise, ChangedLooks, LostWords, pictures_of, units_of
from robotrl.sims.families.physical import MovedPlaces, ScaledParams, params_of, places_of
from robotrl.sims.families.variation import Variation
from robotrl.spec import INSTRUCTION, HasInstructions
from robotrl.spec.sim_options import UNPERTURBED, PerturbCfg


class PerturbationFamily(NamedTuple):
    """One family."""

    fields: tuple[str, ...]
    """Its fields of `PerturbCfg`."""
    lacking: Callable[[Any], str]
    """Reason for which a sim cannot have it; empty if it can."""
    make: Callable[[Any, PerturbCfg], Variation] | None
    """Makes it; None for delays, which `robotrl.sims.perturbation.PerturbedSim` applies to what the others give."""


def _without_words(sim: Any) -> str:
    instructed = INSTRUCTION in sim.observation_spec and isinstance(sim, HasInstructions)
    return "" if instructed else "has no instruction"


def _of_params(family: str) -> Callable[[Any], str]:
    return lambda sim: "" if params_of(sim, family) else f"lets no {family} be set (HasParams)"


FAMILIES: dict[str, PerturbationFamily] = {
    "mass": PerturbationFamily(("mass",), _of_params("mass"), lambda sim, cfg: ScaledParams(sim, "mass", cfg.mass)),
    "friction": PerturbationFamily(
        ("friction",), _of_params("friction"), lambda sim, cfg: ScaledParams(sim, "friction", cfg.friction)
    ),
    "places": PerturbationFamily(
        ("place_m",),
        lambda sim: "" if places_of(sim) else "has no loose things to be moved (HasPlaces)",
        lambda sim, cfg: MovedPlaces(sim, cfg.place_m),
    ),
    "looks": PerturbationFamily(
        ("looks_gain", "looks_shift_px"),
        lambda sim: "" if pictures_of(sim) else "observes no color picture",
        lambda sim, cfg: ChangedLooks(sim, cfg.looks_gain, cfg.looks_shift_px),
    ),
    "words": PerturbationFamily(
        ("words_lost",),
        _without_words,
        lambda sim, cfg: LostWords(sim, cfg.words_lost),
    ),
    "noise": PerturbationFamily(
        ("noise",),
        lambda sim: "" if units_of(sim) else "observes no real numbers",
        lambda sim, cfg: AddedNoise(sim, cfg.noise or {}),
    ),
    "delay": PerturbationFamily(
        (
            *("obs_delay_steps", "action_delay_steps", "draw_delay", "committed_steps", "drop_rate", "drop_steps"),
            *("plans_from_observation", "interpolate_actions"),
        ),
        lambda sim: "",
        None,
    ),
}
"""Families by name, in the order in which they are applied: the world, then what is observed of it, then its age."""


def families_of(sim: Any) -> tuple[str, ...]:
    """Names of the families that a sim can have."""
    return tuple(name for name, family in FAMILIES.items() if not family.lacking(sim))


def variations(sim: Any, cfg: PerturbCfg) -> list[Variation]:
    """The families that `cfg` asks for, but for delays, in the order in which they are applied.

    Raises:
        CapabilityError: the sim cannot have one of them.
        ConfigError: noise of a unit that the sim does not observe, or a change of a parameter that it does not accept.
    """
    out: list[Variation] = []
    for family in FAMILIES.values():
        given = {field: vars(cfg)[field] for field in family.fields}
        changed = {field: value for field, value in given.items() if value and value != vars(UNPERTURBED)[field]}
        if not changed:
            continue
        if why := family.lacking(sim):
            field, value = next(iter(changed.items()))
            raise CapabilityError(
                f"perturb.{field} is {value}, and {type(sim).__name__} {why}: expected it off, or a family that it has:"
                f" {', '.join(families_of(sim))}"
            )
        for unit in (cfg.noise or {}) if "noise" in changed else ():
            if unit not in units_of(sim):
                raise unknown(f"unit of perturb.noise of {type(sim).__name__}", unit, units_of(sim))
        if family.make is not None:
            out.append(family.make(sim, cfg))
    return out
