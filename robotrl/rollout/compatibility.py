"""Compatibility checks between a policy or algorithm and a sim, made when a run is set up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from robotrl.errors import CapabilityError, ConfigError
from robotrl.spec import BuildsMemory, CarriesMemory, HasMemory, LearnerCfg, Spec, VecSim
from robotrl.spec.checks import first_word_difference

RATE_TOLERANCE = 1e-6
"""Relative tolerance of the control rate; control periods are rounded differently by different sims."""


def check_fit(policy: Any, sim: VecSim) -> None:
    """Check that a policy was trained for the sim's actions, observations and control rate.

    Args:
        policy: with `action_spec`, `observation_spec` and `control_dt_s` (None: unknown).
        sim: the sim to act in.

    Raises:
        ConfigError: a difference, with both values.
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
    # without a stated rate on both sides there is nothing to compare
    if known is not None and now is not None and abs(known - now) > RATE_TOLERANCE * now:
        raise ConfigError(
            f"policy was trained at {1 / known:g} Hz: sim {name} runs at {1 / now:g} Hz, expected the same"
        )


def check_actions(algo: LearnerCfg, sim: VecSim, name: str) -> None:
    """Check that an algorithm for continuous actions is not used on a sim with categorical actions.

    Args:
        algo: the algorithm's config.
        sim: the sim to learn in.
        name: name of the sim.

    Raises:
        CapabilityError: they do not match; algorithms that do are named.
    """
    spec = sim.action_spec
    if spec.choices is None or algo.chooses:
        return
    raise CapabilityError(
        f"{type(algo).__name__.removesuffix('Cfg')} needs continuous actions: action {spec.names[0]!r} of sim {name!r}"
        f" is a choice of {spec.choices[0]}: expected PPO with a categorical policy, robotrl train --algo ppo --sim"
        f" {name}"
    )


def check_memory(algo: LearnerCfg, policy: Any) -> None:
    """Check that a policy with memory is trained by an algorithm that carries it from decision to decision.

    Args:
        algo: the algorithm's config.
        policy: the policy to train, or the config of a new one.

    Raises:
        CapabilityError: the algorithm would train it as if each observation began an episode.
    """
    if not isinstance(policy, CarriesMemory | BuildsMemory) or algo.trains_memory(policy):
        return
    name, kind = type(algo).__name__.removesuffix("Cfg"), type(policy).__name__
    if isinstance(policy, HasMemory | BuildsMemory):
        raise CapabilityError(
            f"{name} lacks recurrent: it cannot train {kind}, which has a memory; expected algo 'ppo', or a policy"
            " without memory on a sim with the option history"
        )
    raise CapabilityError(
        f"{name} cannot train {kind}, which holds a chunk of its base policy in a memory: expected algo 'residual' with"
        " algo.per_step.on True, or the base policy"
    )


def check_words(seen: Mapping[str, Spec], sim: VecSim) -> None:
    """Check that a policy's vocabulary assigns the same words to the sim's word ids.

    Args:
        seen: the policy's observation specs; keys that the sim lacks are ignored.
        sim: the sim to act in or learn from.

    Raises:
        ConfigError: the first word that differs.
    """
    specs: Mapping[str, Spec] = sim.observation_spec
    for key, spec in seen.items():
        differs = first_word_difference(spec.words, specs[key].words) if key in specs else None
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
