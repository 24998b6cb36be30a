"""Instructions in observations: numbers of words, which must be words of the bundle's vocabulary."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from robotrl.deploy.bundle.manifest import Manifest
from robotrl.spec import Spec
from robotrl.spec.checks import misfit


def instructions_of(manifest: Manifest) -> dict[str, Spec]:
    """Specs of a bundle's instructions by observation key."""
    return {port.name: port.spec for port in manifest.observations if port.words}


def instruction_misfit(specs: Mapping[str, Spec], obs: Mapping[str, np.ndarray]) -> bool:
    """Tell whether an instruction of a finite observation is none.

    Args:
        specs: see `instructions_of`.
        obs: observations of numbers.
    """
    return any(misfit(name, obs[name], spec, by_value=True) for name, spec in specs.items())
