"""Arrays to and from a safetensors file, for torch and numpy.

Writing streams each array to the file without copying all of them, and reports a full disk as an OSError, which the
safetensors package would hide behind its own exception; reading uses that package.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from robotrl.errors import ConfigError

CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "complex64": "C64",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
"""Name of a dtype to its name in the safetensors format."""

ALIGNMENT = 8


def write_weights(path: Path, arrays: Mapping[str, Any]) -> tuple[int, str]:
    """Write arrays to a safetensors file and wait until it is on the disk.

    Args:
        path: the file, overwritten.
        arrays: torch tensors (any device) and numpy arrays by name.

    Returns:
        The file's size in bytes and its SHA-256.

    Raises:
        ConfigError: an array's dtype or layout cannot be saved.
        OSError: writing failed; the partial file is left behind.
    """
    header: dict[str, Any] = {}
    # The format allows no gaps between arrays; writing the widest dtypes first keeps each array aligned.
    rows = sorted(
        ((name, *_describe(name, array)) for name, array in arrays.items()), key=lambda row: (-row[2], row[0])
    )
    end = 0
    for name, code, itemsize, shape in rows:
        start, end = end, end + itemsize * int(np.prod(shape, dtype=np.int64))
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for part in (struct.pack("<Q", len(text)), text):
            file.write(part)
            digest.update(part)
        for name, *_ in rows:
            data = _bytes(arrays[name])
            file.write(data)
            digest.update(data)
        file.flush()
        os.fsync(file.fileno())
    return 8 + len(text) + end, digest.hexdigest()


def read_weights(path: Path) -> dict[str, Any]:
    """All arrays of a safetensors file as torch tensors on the CPU, each in memory of its own.

    Raises:
        safetensors.SafetensorError: the file is not a whole safetensors file.
    """
    from safetensors import safe_open

    # Cloned, because the originals are views of the mapped file with arbitrary alignment.
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118  # not a mapping


def _describe(name: str, array: Any) -> tuple[str, int, list[int]]:
    if isinstance(array, np.ndarray):
        dtype, itemsize, usable = array.dtype.name, array.dtype.itemsize, array.dtype.isnative
    else:
        torch = sys.modules["torch"]
        dtype, itemsize = str(array.dtype).removeprefix("torch."), array.element_size()
        usable = array.layout == torch.strided and not array.is_quantized and array.device.type != "meta"
    if dtype not in CODES or not usable:
        kind = "array" if isinstance(array, np.ndarray) else f"{array.device.type} tensor"
        raise ConfigError(
            f"checkpoint leaf {name!r} is an {kind} of dtype {dtype}: "
            f"expected a dense one in this machine's byte order, of a dtype among {', '.join(CODES)}"
        )
    return CODES[dtype], itemsize, list(array.shape)


def _bytes(array: Any) -> memoryview:
    if isinstance(array, np.ndarray):
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    torch = sys.modules["torch"]
    flat = array.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
