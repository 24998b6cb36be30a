"""ONNX files of torch modules, without what the exporter says about this machine."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from robotrl.errors import CapabilityError


def onnx_graph(
    module: nn.Module, arrays: tuple[Tensor, ...], inputs: list[str], outputs: list[str], any_count: bool = False
) -> bytes:
    """ONNX file of a module.

    Args:
        module: the module, in evaluation mode, on the CPU.
        arrays: example inputs, (n, ...) each.
        inputs: their names.
        outputs: names of the outputs.
        any_count: True: the graph takes any n, and the examples have two rows; else that of the examples.

    Raises:
        CapabilityError: torch's exporter returned nothing.
    """
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        # The exporter warns about its own internals and about torchvision, which we do not need.
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program: Any = torch.onnx.export(
                module,
                arrays,
                input_names=inputs,
                output_names=outputs,
                dynamic_shapes=tuple({0: torch.export.Dim("n")} for _ in arrays) if any_count else None,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
    if program is None:
        raise CapabilityError(f"{type(module).__name__}: torch's ONNX exporter returned nothing")
    model = program.model_proto
    _forget_sources(model)
    return model.SerializeToString()


def _forget_sources(model: Any) -> None:
    """Remove source information from the nodes: file names and lines of this machine should not be published."""
    del model.metadata_props[:]
    for part in (model.graph, *model.functions):
        del part.metadata_props[:]
        for found in (*part.node, *part.value_info):
            del found.metadata_props[:]
            found.doc_string = ""
