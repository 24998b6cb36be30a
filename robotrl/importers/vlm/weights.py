"""Loading of a vision-language model's weights by `transformers`, with checks of files, tied weights and values."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForImageTextToText
from transformers.utils import logging

from robotrl.errors import DataError
from robotrl.importers.files import check_merged, warn_of_zeros
from robotrl.importers.shards import weight_files


def check_files(path: Path) -> None:
    """Check the weight files before `transformers` reads them.

    Raises:
        DataError: there is an unmerged adapter; or see `weight_files`.
    """
    # with an adapter, `transformers` loads its base model's weights and does not report missing ones
    check_merged(path)
    weight_files(path)


def ties(model: nn.Module) -> list[tuple[str, str]]:
    """Pairs of names of tied parameters."""
    first: dict[int, str] = {}
    pairs: list[tuple[str, str]] = []
    for name, weight in model.named_parameters(remove_duplicate=False):
        if first.setdefault(id(weight), name) != name:
            pairs.append((first[id(weight)], name))
    return pairs


def read_model(path: Path, tied: Iterable[tuple[str, str]]) -> nn.Module:
    """Load a model with a directory's weights, strictly.

    A matrix of zeros gives a warning: a few are intended, most were never written.

    Args:
        path: the directory, checked by `check_files`.
        tied: pairs of parameters that must be equal; see `ties`.

    Raises:
        DataError: a file is missing or cannot be read; weights are missing, left over, of another shape or not finite;
            or tied weights differ.
    """
    loader: Any = AutoModelForImageTextToText
    try:
        with _quiet():
            model, report = loader.from_pretrained(
                path,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
            )
    # the libraries raise different errors for a damaged file
    except Exception as error:
        raise DataError(f"{path}: the weights cannot be read: {' '.join(str(error).split())[:500]}") from error
    for problem, key in (("lacks weights", "missing_keys"), ("has unknown weights", "unexpected_keys")):
        if found := sorted(report[key]):
            raise DataError(f"{path} {problem}: {', '.join(found[:3])}{', ...' if len(found) > 3 else ''}")
    for name, has, wanted in sorted(report["mismatched_keys"]):
        raise DataError(f"{path}: weight {name!r} has shape {tuple(has)}: expected {tuple(wanted)}")
    _check_values(model, path)
    for one, other in tied:
        if not torch.equal(model.get_parameter(one), model.get_parameter(other)):
            raise DataError(
                f"{path}: weight {other!r} differs from {one!r}: expected them to be one, as config.json says"
                " (tie_word_embeddings)"
            )
    return model


def _check_values(model: nn.Module, path: Path) -> None:
    """Check that all weights are finite; warn about matrices of zeros.

    Raises:
        DataError: a weight is not finite.
    """
    zero: list[str] = []
    for name, value in model.state_dict().items():
        if not torch.isfinite(value).all():
            raise DataError(f"{path}: weight {name!r} has numbers that are not finite: expected finite ones")
        if value.dim() > 1 and not value.any():
            zero.append(name)
    warn_of_zeros(path, zero)


@contextmanager
def _quiet() -> Generator[None]:
    """Silence the progress bars and reports of `transformers`; problems are raised as errors."""
    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
