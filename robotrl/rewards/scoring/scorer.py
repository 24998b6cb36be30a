"""Interface of scorers, and the recipe by which a worker process makes its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError, short
from robotrl.utils.files import dump_json
from robotrl.utils.user_module import beside_the_user, user_callable

MAX_ARGUMENTS = 1 << 16
"""Bytes of a recipe's arguments."""


@runtime_checkable
class PictureScorer(Protocol):
    """Scores pictures; lives in a worker process."""

    identity: str
    """Text that differs between scorers with different answers: weights, prompts, settings."""
    num_outputs: int
    """K, the number of outputs for each picture; 1 or more."""

    def score(self, pictures: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the outputs (B, K) of pictures (B, h, w, 3) in 0 to 255.

        An output that is NaN or infinite makes the answer for its picture invalid; an error makes those of the whole
        batch invalid.
        """
        ...


@dataclass(frozen=True)
class ScorerRecipe:
    """Recipe by which each worker process makes its scorer."""

    factory: str
    """Function that returns the scorer, "package.module:function"."""
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Its keyword arguments; JSON values."""

    def check(self) -> None:
        """Check the arguments.

        Raises:
            ConfigError: they are not JSON, or too large to be sent to a process that has not started.
        """
        try:
            size = len(dump_json(dict(self.arguments)))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"scorer.arguments of {self.factory} are not JSON ({error}): expected JSON") from error
        if size > MAX_ARGUMENTS:
            expected = f"{MAX_ARGUMENTS:,} or less; name a file instead"
            raise ConfigError(f"scorer.arguments of {self.factory} have {size:,} bytes: expected {expected}")

    def make(self) -> PictureScorer:
        """Make the scorer.

        Raises:
            ConfigError: the factory cannot be imported, or what it returned is no scorer.
        """
        factory = user_callable(self.factory, "scorer.factory", "package.module:function")
        with beside_the_user():
            made: Any = factory(**self.arguments)
        asked = f"scorer.factory is {self.factory!r}, which returned"
        if not isinstance(made, PictureScorer):
            kind = type(made).__name__
            raise ConfigError(f"{asked} a {kind}: expected a scorer with `identity`, `num_outputs` and `score`")
        if type(made.identity) is not str or not made.identity:
            raise ConfigError(f"{asked} a scorer with identity {short(repr(made.identity))}: expected a text")
        if type(made.num_outputs) is not int or made.num_outputs < 1:
            raise ConfigError(f"{asked} a scorer with num_outputs {short(repr(made.num_outputs))}: expected 1 or more")
        return made
