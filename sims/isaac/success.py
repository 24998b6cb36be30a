"""Success of an Isaac environment's episodes, which state none of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from robotrl.errors import ConfigError, nearest, out_of_range, unknown
from robotrl.sims.isaac.faults import IsaacFault
from robotrl.sims.isaac.step_rules import Ends, flags
from robotrl.sims.isaac.surface import HasManagers
from robotrl.spec import SuccessRule

CHOICES = ("survival", "termination", "term:NAME", "extras:KEY")
DEFAULT = "auto"


class IsaacSuccess(NamedTuple):
    """Parsed option `success`."""

    kind: str
    """"survival", "termination", "term" or "extras"."""
    name: str
    """Name of the termination term, or key of `extras`."""
    stated: bool
    """False if nobody chose the signal."""

    def rule(self) -> SuccessRule:
        """Definition of success in words."""
        texts = {
            "survival": "reaching the time limit",
            "termination": "ending before the time limit",
            "term": f"an end by the termination term {self.name!r}",
            "extras": f"extras[{self.name!r}] at the last step",
        }
        return SuccessRule(texts[self.kind], self.stated)

    def of(self, ends: Ends, env: Any, extras: Mapping[str, Any]) -> Tensor:
        """Success (N,) bool of the step; at an episode's last step it is the result of the episode.

        Raises:
            IsaacFault: `extras` lacks the key, or has something else than one flag for each env there.
        """
        match self.kind:
            case "survival":
                return ends.time_out & ~(ends.terminated & ~ends.time_out)
            case "termination":
                return ends.done() & ~ends.time_out
            case "term":
                return env.termination_manager.get_term(self.name)
            case _:
                value = extras.get(self.name)
                if not isinstance(value, Tensor) or value.shape != ends.time_out.shape:
                    known = ", ".join(map(str, extras)) or "nothing"
                    raise IsaacFault(
                        f"extras[{self.name!r}] is {type(value).__name__}, and success is 'extras:{self.name}':"
                        f" expected one flag for each env; extras has {known}"
                    )
                return flags(value)


def signal_of(success: Any, env: object) -> IsaacSuccess:
    """Parse the option `success`.

    Raises:
        ConfigError: an unknown signal, or a termination term that the environment does not have.
    """
    if not isinstance(success, str):
        raise out_of_range("success", success, f"one of {', '.join((DEFAULT, *CHOICES))}")
    if success == DEFAULT:
        return IsaacSuccess("survival", "", stated=False)
    kind, _, name = success.partition(":")
    if (kind in ("survival", "termination")) == bool(name) or kind not in ("survival", "termination", "term", "extras"):
        raise unknown("success", success, (DEFAULT, *CHOICES))
    if kind == "term":
        if not isinstance(env, HasManagers):
            raise ConfigError(f"success is {success!r} and env has no termination_manager: expected another signal")
        terms: list[str] = list(env.termination_manager.active_terms)
        if name not in terms:
            close = nearest(name, terms)
            hint = f"did you mean 'term:{close}'? " if close else ""
            raise ConfigError(f"success is {success!r}: {hint}the env's termination terms are {', '.join(terms)}")
    return IsaacSuccess(kind, name, stated=True)
