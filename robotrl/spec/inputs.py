"""What a run reads from outside its directory: declared by the field of a config, or by the factory of a sim."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

Factory = TypeVar("Factory", bound=Callable[..., Any])

InputKind = Literal["dataset", "policy", "checkpoint", "file", "module"]
"""A directory of demonstrations; a run or checkpoint with a policy in it; a checkpoint of something else, such as a
reward; one file; a Python module, with the package that it is in."""
READS = "reads"
"""Under which the metadata of a config's field says that it names an input."""


class Input(NamedTuple):
    """Something outside of a run that it depends on."""

    field: str
    """Of the config, as a user writes it: "dataset", "sim.options map"."""
    kind: InputKind
    path: str
    """Where it is, or the name of a module."""
    kept: bool = False
    """Whether the run's checkpoints hold all that was taken from it, so that a resume does without."""


class Reads(NamedTuple):
    """What the value of a config's field names."""

    kind: InputKind
    kept: bool = False
    """See `Input`."""
    prefix: str = ""
    """What a value that names an input begins with; other values name none."""


@runtime_checkable
class HasInputs(Protocol):
    """Of a sim's factory: it can say what its options name."""

    def inputs(self, options: Mapping[str, Any]) -> Sequence[Input]:
        """Files and modules that a sim with these options is made of, their `field` being the name of the option."""
        ...


def declares(inputs: Callable[[Mapping[str, Any]], Sequence[Input]], factory: Factory) -> Factory:
    """The factory itself, which then has `inputs` (`HasInputs`)."""
    factory.__dict__["inputs"] = inputs
    return factory


def reads(kind: InputKind, *, kept: bool = False, prefix: str = "") -> dict[str, Reads]:
    """The metadata of a config's field that names an input: `field(default=None, metadata=reads("dataset"))`."""
    return {READS: Reads(kind, kept, prefix)}
