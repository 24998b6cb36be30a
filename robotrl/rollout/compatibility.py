"""Whether a policy and what it is to act in or learn from go together, found when a run is put together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from robotrl.errors import CapabilityError, ConfigError
from robotrl.spec import Spec, VecSim
from robotrl.spec.checks import other_word

RATE_TOLERANCE = 1e-6
"""Relative; control periods are written in several ways."""


def check_fit(policy: Any, sim: VecSim) -> None:
    """Refuse a policy that was trained for other actions, observations or another rate than the sim's.

    Args:
        policy: with `action_spec`, `observation_spec` and `control_dt_s` (None: not known).
        sim: what it is to act in.

    Raises:
        ConfigError: what differs, with both values.
    """
    name = type(sim).__name__
    _same_spec(
        "actions", policy.action_spec, sim.action_spec, name, ("shape", "names", "units", "low", "high", "choices")
    )
    specs: Mapping[str, Spec] = sim.observation_spec
    for key, spec in policy.observation_spec.items():
        if key not in specs:
            raise ConfigError(f"policy observes {key!r}: sim {name} has {', '.join(sorted(specs))}")
        _same_spec(f"observation {key!r}", spec, specs[key], name, ("shape", "names", "units", "dtype"))
    check_words(policy.observation_spec, sim)
    known: float | None = getattr(policy, "control_dt_s", None)
    now = sim.control_dt_s
    # where one of them states no rate there is nothing to compare
    if known is not None and now is not None and abs(known - now) > RATE_TOLERANCE * now:
        raise ConfigError(
            f"policy was trained at {1 / known:g} Hz: sim {name} runs at {1 / now:g} Hz, expected the same"
        )


def check_actions(algo: Any, sim: VecSim, name: str) -> None:
    """Refuse an algorithm that learns numbers within bounds on a sim whose actions are choices.

    Args:
        algo: its config; one that learns choices has `chooses`.
        sim: what it is to learn in.
        name: of the sim.

    Raises:
        CapabilityError: the algorithm, the action, and what learns it.
    """
    spec = sim.action_spec
    if spec.choices is None or getattr(algo, "chooses", False):
        return
    raise CapabilityError(
        f"{type(algo).__name__.removesuffix('Cfg')} needs continuous actions: action {spec.names[0]!r} of sim {name!r}"
        f" is a choice of {spec.choices[0]}: expected PPO with a categorical policy, robotrl train gym-ppo --sim.name"
        f" {name}"
    )


def check_words(seen: Mapping[str, Spec], sim: VecSim) -> None:
    """Refuse a policy to which the sim's numbers would mean other words.

    Args:
        seen: what the policy observes; what the sim does not have is left alone.
        sim: what it is to act in or learn from.

    Raises:
        ConfigError: the first word that differs.
    """
    specs: Mapping[str, Spec] = sim.observation_spec
    for key, spec in seen.items():
        differs = other_word(spec.words, specs[key].words) if key in specs else None
        if differs is not None:
            raise ConfigError(
                f"policy was trained for observation {key!r} with {differs.before} as word {differs.number}: sim"
                f" {type(sim).__name__} has {differs.now} there, expected the same words in the same order"
            )


def _same_spec(what: str, trained: Spec, found: Spec, sim: str, fields: tuple[str, ...]) -> None:
    for field in fields:
        before, now = getattr(trained, field), getattr(found, field)
        if before != now:
            raise ConfigError(
                f"policy was trained for {what} of {field} {before}: sim {sim} has {now}, expected the same"
            )
