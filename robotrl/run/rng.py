"""Random states as trees that a checkpoint can store, exact to the bit."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from robotrl.errors import DataError

if TYPE_CHECKING:
    import torch


def rng_state() -> dict[str, Any]:
    """State of the global random generators: Python's `random`, numpy's legacy one, torch's on the CPU and each GPU.

    Torch is included if it is loaded; for your own generators use `generator_state`.
    """
    state: dict[str, Any] = {"python": random.getstate(), "numpy": np.random.get_state(legacy=False)}
    torch = sys.modules.get("torch")
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_available():
            state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_rng_state(state: Any) -> None:
    """Restore what `rng_state` returned; generators that it does not include are left unchanged.

    Raises:
        DataError: the state was saved with another number of GPUs than there are here.
    """
    if "cuda" in state:
        import torch

        here = torch.cuda.device_count()
        if here != len(state["cuda"]):
            raise DataError(f"rng state holds {len(state['cuda'])} GPU streams: this machine has {here} GPUs")
        torch.cuda.set_rng_state_all(state["cuda"])
    if "torch" in state:
        import torch

        torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])


def generator_state(generator: torch.Generator | np.random.Generator) -> dict[str, Any]:
    """State of one generator. The number of children that a numpy generator has spawned is not included."""
    if isinstance(generator, np.random.Generator):
        return {"kind": "numpy", "state": generator.bit_generator.state}
    return {"kind": "torch", "state": generator.get_state()}


def set_generator_state(generator: torch.Generator | np.random.Generator, state: Any) -> None:
    """Restore what `generator_state` returned into a generator of the same kind.

    Raises:
        DataError: the state is that of another kind of generator.
    """
    here = "numpy" if isinstance(generator, np.random.Generator) else "torch"
    if state["kind"] != here:
        raise DataError(f"generator state is of a {state['kind']} generator: expected one of a {here} generator")
    if isinstance(generator, np.random.Generator):
        found, wanted = state["state"]["bit_generator"], generator.bit_generator.state["bit_generator"]
        if found != wanted:
            raise DataError(f"generator state is of a {found}: expected one of a {wanted}")
        generator.bit_generator.state = state["state"]
    else:
        generator.set_state(state["state"])
