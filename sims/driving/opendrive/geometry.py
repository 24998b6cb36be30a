"""Reference line of an OpenDRIVE road: five kinds of curve pieces, and cubic polynomials along the line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Gradient = Callable[[Floats], tuple[Floats, Floats]]
"""Function that returns du/dp and dv/dp at values of the parameter p."""

SAGITTA_M = 0.005
"""Largest deviation of the chord between two stations from the reference line."""
STEP_M = (0.2, 1.0)
"""Smallest and largest distance between two stations."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(5)


class Piece(NamedTuple):
    """One <geometry> element: start and shape."""

    s: float
    x: float
    y: float
    hdg: float
    length: float
    kind: str
    """line, arc, spiral, poly3, arcLength or normalized (the last two: paramPoly3)."""
    shape: tuple[float, ...] = ()
    """arc: curvature; spiral: curvature at start and end; poly3: a to d; paramPoly3: a to d of u, then of v."""


class Line(NamedTuple):
    """Reference line of a road."""

    pieces: tuple[Piece, ...]
    starts: Floats
    """(n,) s at the start of each piece, m."""
    length: float


class Cubics(NamedTuple):
    """Piecewise cubic function of s: a + b ds + c ds^2 + d ds^3, with ds from the start of the piece."""

    starts: Floats  # (n,) m
    factors: Floats  # (n, 4)


def cubic_at(cubics: Cubics, s: Floats, end: float) -> Floats:
    """Values at `s`; at `end` that of the piece before it, since a jump there belongs to the next section."""
    i = np.maximum(np.searchsorted(cubics.starts, np.minimum(s, end - 1e-7), "right") - 1, 0)
    ds = np.maximum(s - cubics.starts[i], 0.0)
    a, b, c, d = cubics.factors[i].T
    return a + ds * (b + ds * (c + ds * d))


def poses(line: Line, s: Floats) -> Floats:
    """Poses (n, 3) x, y, heading at each `s`; outside the pieces and in gaps the pose of the nearest end."""
    index = np.maximum(np.searchsorted(line.starts, s, "right") - 1, 0)
    out = np.empty((len(s), 3))
    for i in np.unique(index):
        piece, here = line.pieces[i], index == i
        u, v, turned = local_pose(piece, np.clip(s[here] - piece.s, 0.0, piece.length))
        cos, sin = np.cos(piece.hdg), np.sin(piece.hdg)
        out[here] = np.stack([piece.x + cos * u - sin * v, piece.y + sin * u + cos * v, piece.hdg + turned], axis=1)
    return out


def stations(line: Line, marks: Iterable[float]) -> Floats:
    """Sampling positions s: ends, starts of pieces, points between them spaced by curvature, and `marks` besides.

    The marks do not move the other points, so that a road is sampled alike however it is divided into sections.
    """
    edges = _apart(np.concatenate([[0.0, line.length], line.starts]), line.length)
    owner = np.maximum(np.searchsorted(line.starts, edges[:-1], "right") - 1, 0)
    steps = {i: _step(line.pieces[i]) for i in np.unique(owner)}
    parts = [
        np.linspace(low, high, max(int(np.ceil((high - low) / steps[i] - 1e-9)), 1), endpoint=False)
        for low, high, i in zip(edges[:-1], edges[1:], owner, strict=True)
    ]
    return _apart(np.concatenate([*parts, edges[-1:], np.fromiter(marks, float)]), line.length)


def _apart(s: Floats, length: float) -> Floats:
    """Positions in order, on the line, and at least 1e-6 m apart, with its end."""
    s = np.unique(np.clip(s, 0.0, length))
    s = s[np.concatenate([[True], np.diff(s) > 1e-6])]
    s[-1] = length
    return s


def local_pose(piece: Piece, s: Floats) -> tuple[Floats, Floats, Floats]:
    """Pose u, v, heading `s` m from the start of the piece, in the frame of its start."""
    match piece.kind:
        case "line":
            return s, np.zeros_like(s), np.zeros_like(s)
        case "arc":
            half = 0.5 * piece.shape[0] * s
            chord = s * np.sinc(half / np.pi)
            return chord * np.cos(half), chord * np.sin(half), 2.0 * half
        case "spiral":
            return clothoid(piece.shape[0], piece.shape[1], piece.length, s)
        case "poly3":
            return graph(piece.shape, piece.length, s)
        case _:
            return parametric(piece.shape, piece.length, piece.kind == "normalized", s)


def clothoid(start: float, end: float, length: float, s: Floats) -> tuple[Floats, Floats, Floats]:
    """Clothoid: curvature linear from `start` to `end`, integrated by Gauss-Legendre over short cells.

    Args:
        start: curvature at the start, 1/m.
        end: curvature at the end, 1/m.
        length: m.
        s: (n,) m from the start.

    Returns:
        u, v in m and the heading in rad.
    """
    rate = (end - start) / length

    def tangent(at: Floats) -> tuple[Floats, Floats]:
        turned = at * (start + 0.5 * rate * at)
        return np.cos(turned), np.sin(turned)

    cells = int(np.ceil(max(length, 5.0 * length * max(abs(start), abs(end)))))
    knots = np.linspace(0.0, length, max(cells, 1) + 1)
    below = np.minimum((s / knots[1]).astype(np.intp), len(knots) - 2)
    u, v = (
        np.concatenate([[0.0], np.cumsum(whole)])[below] + part
        for whole, part in zip(
            _integral(tangent, knots[:-1], knots[1:]), _integral(tangent, knots[below], s), strict=True
        )
    )
    return u, v, s * (start + 0.5 * rate * s)


def graph(shape: tuple[float, ...], length: float, s: Floats) -> tuple[Floats, Floats, Floats]:
    """Curve v = a + b u + c u^2 + d u^3 by arc length; same return values as `clothoid`."""
    _, b, c, d = shape

    def tangent(u: Floats) -> tuple[Floats, Floats]:
        return np.ones_like(u), b + u * (2.0 * c + u * 3.0 * d)

    u = _parameter(tangent, length, length, s)
    return u, _cubic(shape, u), np.arctan2(tangent(u)[1], 1.0)


def parametric(shape: tuple[float, ...], length: float, normalized: bool, s: Floats) -> tuple[Floats, Floats, Floats]:
    """Parametric curve with u and v cubic in p; same return values as `clothoid`.

    Without `normalized` the format defines p = `s`. With it, p runs from 0 to 1 and is found from the length along the
    curve, scaled such that p = 1 is at `length`.
    """

    def tangent(p: Floats) -> tuple[Floats, Floats]:
        (_, bu, cu, du), (_, bv, cv, dv) = shape[:4], shape[4:]
        return bu + p * (2.0 * cu + p * 3.0 * du), bv + p * (2.0 * cv + p * 3.0 * dv)

    p = _parameter(tangent, 1.0, length, s, scaled=True) if normalized else s
    du, dv = tangent(p)
    return _cubic(shape[:4], p), _cubic(shape[4:], p), np.arctan2(dv, du)


def _cubic(factors: tuple[float, ...], p: Floats) -> Floats:
    a, b, c, d = factors
    return a + p * (b + p * (c + p * d))


def _integral(gradient: Gradient, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Integrals (n,) of both components from `low` to `high`, by five-point quadrature."""
    half = 0.5 * (high - low)
    at = 0.5 * (high + low)[:, None] + half[:, None] * _NODES
    first, second = gradient(at)
    return half * (first @ _WEIGHTS), half * (second @ _WEIGHTS)


def _parameter(gradient: Gradient, top: float, length: float, s: Floats, scaled: bool = False) -> Floats:
    """Parameter, 0 to `top`, at arc length `s`; if `scaled`, arc length is scaled to `length` at the end."""

    def speed(p: Floats) -> tuple[Floats, Floats]:
        rate = np.hypot(*gradient(p))
        return rate, rate

    knots = np.linspace(0.0, top, max(int(np.ceil(2.0 * length)), 8) + 1)
    lengths = np.concatenate([[0.0], np.cumsum(_integral(speed, knots[:-1], knots[1:])[0])])
    goal = s * (lengths[-1] / length) if scaled else s
    p = np.interp(goal, lengths, knots)
    for _ in range(2):
        below = np.clip(np.searchsorted(knots, p, "right") - 1, 0, len(knots) - 2)
        miss = lengths[below] + _integral(speed, knots[below], p)[0] - goal
        p = np.clip(p - miss / np.maximum(speed(p)[0], 1e-9), knots[below], knots[below + 1])
    return p


def _step(piece: Piece) -> float:
    """Distance between stations on a piece, from its largest curvature."""
    match piece.kind:
        case "line":
            bend = 0.0
        case "arc" | "spiral":
            bend = max(abs(k) for k in piece.shape)
        case _:
            s = np.linspace(0.0, piece.length, max(int(np.ceil(piece.length)), 8) + 1)
            turned = np.unwrap(local_pose(piece, s)[2])
            bend = float(np.abs(np.diff(turned)).max() / s[1])
    return float(np.clip(np.sqrt(8.0 * SAGITTA_M / max(bend, 1e-9)), *STEP_M))
