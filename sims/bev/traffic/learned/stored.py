"""Traffic networks in folders: parameters as safetensors, and what they are of as JSON; read strictly."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import DataError, short
from robotrl.sims.bev.traffic.learned import layout, network
from robotrl.sims.driving.traffic.populations import DRAWN, Population, check_population
from robotrl.utils.files import read_json, read_plain

MANIFEST, WEIGHTS = "traffic.json", "weights.safetensors"
"""Files of a folder; the manifest has the hash of the weights."""
KIND, SCHEMA = "bev-traffic", 1
LARGEST = 1 << 24
"""Size limit of the weights, bytes."""
TOLERANCE = 1e-3
"""Tolerance of the scores of the fingerprint, relative to their magnitude, 1 at least."""
LAYOUT: dict[str, Any] = {
    "own": list(layout.OWN),
    "nearest": layout.NEAREST,
    "neighbor": list(layout.NEIGHBOR),
    "line": list(layout.LINE),
    "lines": layout.LINES,
    "modes": layout.MODES,
    "pieces": layout.PIECES,
    "piece_s": layout.PIECE_S,
    "residual_mps2": layout.RESIDUAL_MPS2,
}
"""Meaning of inputs and candidates, stored with the weights: another meaning is another network."""
Flat = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class LearnedTraffic:
    """A population whose cars a network drives."""

    drivers: tuple[Population, ...]
    """Populations of the drivers: their desired speeds and headways, which the network reads, and the gaps that they
    accept; each start draws one."""
    weights: Flat
    """(layout.SIZE,) parameters."""
    about: Mapping[str, Any]
    """JSON values about its training."""
    sha256: str
    """Hash of its manifest, which has that of the weights."""


def flat(parameters: Mapping[str, NDArray[Any]], what: str) -> Flat:
    """Flat vector of named parameters.

    Args:
        parameters: arrays by name, see `layout.PARAMETERS`.
        what: their source, for errors.

    Raises:
        DataError: a parameter is missing, superfluous, of another shape, or not finite.
    """
    expected = {parameter.name: parameter.shape for parameter in layout.PARAMETERS}
    for name in (*expected, *parameters):
        if name not in parameters:
            raise DataError(f"{what} has no parameter {name!r}: expected {', '.join(expected)}")
        if name not in expected:
            raise DataError(f"{what} has a parameter {short(name)!r}: expected only {', '.join(expected)}")
        if parameters[name].shape != expected[name]:
            raise DataError(
                f"{what}: parameter {name!r} has the shape {parameters[name].shape}: expected {expected[name]}"
            )
        if not np.isfinite(parameters[name]).all():
            raise DataError(f"{what}: parameter {name!r} is not finite everywhere: expected numbers")
    return np.concatenate([np.asarray(parameters[name], np.float32).reshape(-1) for name in expected])


def named(weights: Flat) -> dict[str, Flat]:
    """Parameters of a flat vector by name; views of it."""
    return {
        parameter.name: weights[at : at + parameter.size].reshape(parameter.shape)
        for parameter, at in zip(layout.PARAMETERS, layout.PLACES.values(), strict=True)
    }


def scores_of(weights: Flat, inputs: NDArray[Any]) -> NDArray[np.float32]:
    """Scores (CANDIDATES,) of a car with the inputs (INPUT,)."""
    scratch = np.zeros(network.SCRATCH, np.float32)
    network.evaluate(weights, np.ascontiguousarray(inputs, np.float32), scratch)
    return scratch[network.SCORES_AT : network.SCORES_AT + layout.CANDIDATES].copy()


def fingerprint(weights: Flat) -> list[float]:
    """Scores of a fixed input, by which a reader knows that it computes what the writer did."""
    inputs = np.sin(0.7 * np.arange(layout.INPUT, dtype=np.float64))
    inputs[layout.MASK_AT :] = 1.0
    return [float(score) for score in scores_of(weights, inputs)]


def manifest(
    weights: Flat, weights_sha256: str, drivers: Sequence[Population], about: Mapping[str, Any]
) -> dict[str, Any]:
    """Content of the manifest.

    Args:
        weights: (layout.SIZE,) parameters.
        weights_sha256: hash of the file with the weights.
        drivers: see `LearnedTraffic`.
        about: JSON values about the training.
    """
    return {
        "schema_version": SCHEMA,
        "kind": KIND,
        "layout": LAYOUT,
        "drivers": [asdict(population) for population in drivers],
        "weights_sha256": weights_sha256,
        "fingerprint": fingerprint(weights),
        "about": dict(about),
    }


def read_traffic(path: str | Path) -> LearnedTraffic:
    """Read and check a traffic network.

    Raises:
        DataError: there is none at the path, it is of another version or other inputs, or its files are altered.
        ConfigError: a value of its drivers is out of range.
    """
    place = Path(path)
    what = f"traffic {short(str(path))}"
    if not place.is_dir():
        raise DataError(f"{what} is no folder: expected one of `robotrl traffic clone` or `robotrl traffic rift`")
    data = read_json(place / MANIFEST, "traffic manifest", SCHEMA)
    if data.get("kind") != KIND:
        raise DataError(f"{what} is of kind {short(repr(data.get('kind')))}: expected {KIND!r}")
    found = data.get("layout")
    for name, value in LAYOUT.items():
        given = found.get(name) if isinstance(found, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if given != value:
            raise DataError(f"{what} has {name} {short(repr(given))}: expected {short(repr(value))} of this version")
    try:
        raw = read_plain(place / WEIGHTS, f"{what}: {WEIGHTS}", LARGEST)
    except OSError as error:
        raise DataError(f"{what}: {WEIGHTS} cannot be read: {error.strerror}") from error
    digest = hashlib.sha256(raw).hexdigest()
    if digest != data.get("weights_sha256"):
        raise DataError(
            f"{what}: {WEIGHTS} has the hash {digest[:12]}: expected {short(str(data.get('weights_sha256')), 20)}"
        )
    weights = flat(_arrays(raw, what), what)
    now = np.array(fingerprint(weights))
    try:
        error = float(np.max(np.abs(now - np.array(data.get("fingerprint"), float)) / np.maximum(np.abs(now), 1.0)))
    except (TypeError, ValueError):
        error = float("inf")
    if not error <= TOLERANCE:
        raise DataError(f"{what}: scores of its fingerprint differ by {error:.2g}: expected at most {TOLERANCE:g}")
    drivers = _drivers(data.get("drivers"), what)
    about: Any = data.get("about")
    own = read_plain(place / MANIFEST, f"{what}: {MANIFEST}")
    return LearnedTraffic(drivers, weights, about if isinstance(about, dict) else {}, hashlib.sha256(own).hexdigest())


def _arrays(raw: bytes, what: str) -> dict[str, NDArray[Any]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return load(raw)
    except SafetensorError as error:
        raise DataError(f"{what}: {WEIGHTS} is no safetensors file: {short(str(error))}") from error


def _drivers(given: Any, what: str) -> tuple[Population, ...]:
    if not isinstance(given, list) or not given:
        raise DataError(f"{what} has drivers {short(repr(given))}: expected a list of populations")
    rows: list[Any] = given  # pyright: ignore[reportUnknownVariableType]
    return tuple(_population(row, what) for row in rows)


def _population(given: Any, what: str) -> Population:
    known = {field.name for field in fields(Population)}
    if not isinstance(given, dict) or given.keys() != known:
        raise DataError(f"{what} has drivers {short(repr(given))}: expected values of {', '.join(sorted(known))}")
    values: dict[str, Any] = given  # pyright: ignore[reportUnknownVariableType]
    # JSON has no tuples
    for name in DRAWN:
        row: Any = values[name]
        values = values | {name: tuple(row) if isinstance(row, list) else row}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return check_population(what, Population(**values))
