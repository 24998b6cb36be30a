"""Exact state of scripted experts: their arrays and their random numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError
from robotrl.sims.exact_state import check_state

State = dict[str, NDArray[Any]]


def expert_state(*parts: object) -> State:
    """Copies of the arrays and random generators that are attributes of an expert's parts.

    Args:
        parts: the objects of which an expert consists; everything that changes in them is an array or a generator.
    """
    found: State = {}
    for at, part in enumerate(parts):
        for name, value in vars(part).items():
            if isinstance(value, np.ndarray):
                found[f"{at}/{name}"] = value.copy()
            elif isinstance(value, np.random.Generator):
                text = json.dumps(value.bit_generator.state, sort_keys=True)
                found[f"{at}/{name}"] = np.frombuffer(text.encode(), np.uint8).copy()
    return found


def restore_expert(state: Mapping[str, NDArray[Any]], *parts: object) -> None:
    """Restore the result of `expert_state` in place.

    Raises:
        ConfigError: it is of another expert or number of envs.
    """
    present = expert_state(*parts)
    generators = {name for name, part in _named(*parts) if isinstance(part, np.random.Generator)}
    check_state(state, {name: value for name, value in present.items() if name not in generators})
    for name, value in _named(*parts):
        if isinstance(value, np.ndarray):
            value[...] = state[name]
        elif isinstance(value, np.random.Generator):
            try:
                value.bit_generator.state = json.loads(np.asarray(state[name], np.uint8).tobytes())
            except (KeyError, ValueError, TypeError) as error:
                raise ConfigError(
                    f"expert state {name!r} holds no random generator: expected that of an expert"
                ) from error


def _named(*parts: object) -> list[tuple[str, Any]]:
    return [(f"{at}/{name}", value) for at, part in enumerate(parts) for name, value in vars(part).items()]
