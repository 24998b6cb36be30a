"""The process that infers, handed over to C++: Python proves the bundle, then the same process runs `robotrl-infer`.

The program reads what Python has worked out (the tape, the ports of a request, the noise's key) from an inherited file,
and takes over link, bells and process id. So nothing of an interpreter is left in control.
"""

from __future__ import annotations

import json
import math
import os
from typing import Any, NoReturn

import numpy as np

from robotrl.deploy.buffers import output_names
from robotrl.deploy.bundle.manifest import Port
from robotrl.deploy.control.realtime import warm_leads_ns
from robotrl.deploy.inference import link as layout
from robotrl.deploy.inference.link import InferenceLink
from robotrl.deploy.native.build import native_runtime
from robotrl.deploy.native.noise import WORD
from robotrl.deploy.native.session import NativeNoiseSession, NativeSession, needs_numbers_alone, onnxruntime_library
from robotrl.deploy.native.settings import BlockWriter
from robotrl.deploy.runtime import WARM_UP_RUNS, Controller
from robotrl.deploy.shared_memory import BLOCK_HEADER_BYTES

LONGEST_NAME = 200


def program_block(controller: Controller, link: InferenceLink, introduction: dict[str, Any]) -> bytes | None:
    """The program's settings; None where Python must stay in the process: for images, instructions, and transforms
    outside the graph.

    Args:
        controller: the proved bundle.
        link: this process's end.
        introduction: what the program tells once it is ready; see `InferenceLink.introduce`.
    """
    session, manifest = controller.session, controller.manifest
    library = onnxruntime_library() if isinstance(session, NativeNoiseSession) else None
    if not needs_numbers_alone(manifest) or not (isinstance(session, NativeSession) or library):
        return None
    out = BlockWriter()
    out.wholes(int(link.name.removeprefix("fd:")), layout.LINK_BYTES, layout.FAILURE_AT, layout.TEXT_BYTES)
    out.wholes(layout.REQUEST_AT, layout.MAX_REQUEST, layout.ANSWER_AT, layout.MAX_CHUNK)
    out.text(layout.MAGIC)
    out.wholes(BLOCK_HEADER_BYTES, WARM_UP_RUNS)
    out.text(json.dumps(introduction, allow_nan=False))
    inputs = list(session.inputs)
    ports = [*((port, False) for port in manifest.observations), *((port, True) for port in manifest.prefix)]
    out.wholes(len(ports))
    for port, committed in ports:
        out.wholes(inputs.index(port.name), math.prod(port.shape), committed)
        refusals = _refusals(port, committed)
        out.wholes(len(refusals))
        for before, behind in refusals:
            out.text(before)
            out.text(behind)
    out.wholes(inputs.index("noise") if "noise" in inputs else -1, manifest.draws_noise(session.steered))
    out.wholes(*(_signed(word) for word in (controller.seed & WORD, controller.seed >> 64)))
    out.wholes(list(session.outputs).index(output_names(manifest)["actions"]))
    out.places(np.asarray(warm_leads_ns(controller.inference_s), np.int64))
    out.wholes(library is not None)
    if isinstance(session, NativeSession):
        out.text(session.tape)
    else:
        _write_graph(out, str(library), controller)
    return out.packed()


def _write_graph(out: BlockWriter, library: str, controller: Controller) -> None:
    """The graph for onnxruntime: its library, the file, and names and shapes of inputs and outputs."""
    out.text(library)
    out.text(controller.bundle.graph)
    out.text(f"{controller.manifest.graphs.policy}: onnxruntime cannot compute it: ")
    for arrays in (controller.session.inputs, controller.session.outputs):
        out.wholes(len(arrays))
        for name, array in arrays.items():
            out.text(name)
            out.places(np.asarray(array.shape))


def become_program(block: bytes) -> NoReturn:
    """Replace this process by the program; its files and its standard input stay open.

    Args:
        block: see `program_block`.
    """
    handle = os.memfd_create("robotrl-settings", 0)
    os.set_inheritable(handle, True)
    with os.fdopen(handle, "wb", closefd=False) as file:
        file.write(block)
    program = native_runtime().infer
    os.execv(program, (program.name, str(handle)))


def _refusals(port: Port, committed: bool) -> list[tuple[str, str]]:
    """Text before and behind a number that is not finite, for each element of a row."""
    name = repr(port.name[:LONGEST_NAME])
    if committed:
        return [(f"committed actions {name} are not finite", "")]
    names = port.names or ("value",)
    return [(f"observation {name} element {one[:LONGEST_NAME]!r} is ", ": expected it finite") for one in names]


def _signed(word: int) -> int:
    """A word of 64 bits as the signed number of the same bits."""
    return word - (1 << 64) if word >> 63 else word
