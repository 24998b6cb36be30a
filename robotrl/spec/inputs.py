"""Inputs that a run reads from outside its directory, declared by a config field or by a sim's config."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

InputKind = Literal["dataset", "policy", "checkpoint", "critic", "file", "module", "model"]
"""Kinds of inputs: a directory of demonstrations; a run or checkpoint that holds a policy; another checkpoint, such as
a reward; a run with a critic; a file; a Python module together with its package; an image and text model, as a
directory or by its name."""
READS = "reads"
"""Metadata key by which a config field declares that it names an input."""


class Input(NamedTuple):
    """An input outside the run's directory: dataset, policy, checkpoint, critic, file, module or model."""

    field: str
    """Name of the config field, as a user writes it: "dataset", "sim.map"."""
    kind: InputKind
    path: str
    """Path of the input, or the name of a module or model."""
    kept: bool = False
    """True if the run's checkpoints hold everything taken from the input, so that a resume does not need it."""


class Reads(NamedTuple):
    """Declaration of a config field that names an input."""

    kind: InputKind
    kept: bool = False
    """See `Input.kept`."""
    prefix: str = ""
    """Prefix of values that name an input; values without it name none."""


@runtime_checkable
class HasInputs(Protocol):
    """A sim's config that lists the inputs named by its options."""

    def inputs(self) -> Sequence[Input]:
        """Files and modules that the sim reads; `field` of each is the option's name."""
        ...


def reads(kind: InputKind, *, kept: bool = False, prefix: str = "") -> dict[str, Reads]:
    """Field metadata that declares an input: `field(default=None, metadata=reads("dataset"))`."""
    return {READS: Reads(kind, kept, prefix)}
