"""Settings of learned dynamics, as part of an algorithm's."""

from __future__ import annotations

from dataclasses import dataclass

from robotrl.errors import ConfigError, check_at_least, check_positive, out_of_range


@dataclass(frozen=True)
class DynamicsCfg:
    """An ensemble that predicts the state after a chunk, by which policies are scored along steps of its own."""

    nets: int = 7
    """Number of networks, which learn from other rows each."""
    elites: int = 5
    """Number of networks that are used: those of the smallest error in held-out episodes."""
    hidden: tuple[int, ...] = (400, 400, 400, 400)
    """Widths of the hidden layers of a network."""
    updates: int = 3_000
    """Number of updates, before the policy learns."""
    batch: int = 256
    """Chunks per update and network."""
    lr: float = 1e-3
    """Learning rate."""

    def check(self) -> None:
        """Check the settings.

        Raises:
            ConfigError: one is out of range; names the field, its value and the expectation.
        """
        for name in ("nets", "updates", "batch"):
            check_at_least(f"algo.dynamics.{name}", getattr(self, name), 1)
        if not 1 <= self.elites <= self.nets:
            raise out_of_range("algo.dynamics.elites", self.elites, f"1 to {self.nets}, algo.dynamics.nets")
        if not self.hidden:
            raise ConfigError("algo.dynamics.hidden is empty: expected widths of one layer or more")
        for width in self.hidden:
            check_at_least("algo.dynamics.hidden", width, 1)
        check_positive("algo.dynamics.lr", self.lr)
