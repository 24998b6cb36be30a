"""Reference lines of OpenDRIVE roads against closed forms and quadrature."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tests.kits.xodr_kit as kit
from robotrl.sims.driving.opendrive.geometry import Line, Piece, local_pose, poses, stations


def local(kind: str, length: float, shape: tuple[float, ...], s) -> np.ndarray:
    return np.stack(local_pose(Piece(0, 0, 0, 0, length, kind, shape), np.asarray(s, float)), axis=-1)


def by_quadrature(curvature, s: float, cells: int = 20000) -> np.ndarray:
    """x, y, heading by Simpson's rule, from the curvature as a function of s."""
    at = np.linspace(0.0, s, 2 * cells + 1)
    bend = curvature(at)
    heading = np.concatenate([[0.0], np.cumsum((bend[1:] + bend[:-1]) / 2 * np.diff(at))])
    weights = np.r_[1.0, np.tile([4.0, 2.0], cells)[:-1], 1.0] * (at[1] / 3)
    return np.array([np.cos(heading) @ weights, np.sin(heading) @ weights, heading[-1]])


@pytest.mark.parametrize("curvature", [0.02, -0.3, 1e-9, 0.0])
def test_an_arc_ends_where_its_circle_says(curvature):
    x, y, heading = local("arc", 40.0, (curvature,), [40.0])[0]
    if abs(curvature) > 1e-6:
        assert (x, y) == pytest.approx(
            (math.sin(curvature * 40) / curvature, (1 - math.cos(curvature * 40)) / curvature), abs=1e-12
        )
    else:
        assert (x, y) == pytest.approx((40.0, 0.0), abs=1e-6)
    assert heading == pytest.approx(curvature * 40)


@pytest.mark.parametrize(
    "ends", [(0.0, 0.05), (-0.1, 0.2), (0.2, 0.0), (0.03, 0.03), (0.0, 0.0), (-1e-9, -0.125), (3.0, 0.0)]
)
@pytest.mark.parametrize("length", [0.4, 8.4, 60.0])
def test_a_spiral_is_its_integral(ends, length):
    s = np.array([0.0, 0.1 * length, 0.777 * length, length])
    found = local("spiral", length, ends, s)
    for at, pose in zip(s, found, strict=True):
        expected = by_quadrature(lambda v: ends[0] + (ends[1] - ends[0]) * v / length, at)
        np.testing.assert_allclose(pose, expected, atol=1e-7)


def test_a_spiral_that_starts_straight_has_fresnels_series():
    # x + iy is the integral of exp(i s^2 / 2A^2), A^2 = length / curvature; with its exponent as a series
    length, curvature = 30.0, 0.02
    turned = length * curvature / 2
    along = sum((1j * turned) ** n / ((2 * n + 1) * math.factorial(n)) for n in range(12)) * length
    x, y, heading = local("spiral", length, (0.0, curvature), [length])[0]
    assert complex(x, y) == pytest.approx(along, abs=1e-10)
    assert heading == pytest.approx(turned)


def test_a_polynomial_is_followed_by_its_length():
    shape = (0.0, 0.1, 0.02, -0.0005)
    u = np.linspace(0.0, 40.0, 400001)
    v = shape[1] * u + shape[2] * u**2 + shape[3] * u**3
    along = np.concatenate([[0.0], np.cumsum(np.hypot(np.diff(u), np.diff(v)))])
    s = np.linspace(0.0, 30.0, 7)
    found = local("poly3", 30.0, shape, s)
    np.testing.assert_allclose(found[:, 0], np.interp(s, along, u), atol=1e-6)
    np.testing.assert_allclose(found[:, 1], np.interp(s, along, v), atol=1e-6)
    np.testing.assert_allclose(found[:, 2], np.arctan(0.1 + 0.04 * found[:, 0] - 0.0015 * found[:, 0] ** 2), atol=1e-9)


def test_a_parametric_cubic_is_followed_by_its_length_or_by_its_parameter():
    u, v = (0.0, 20.0, 15.0, -5.0), (0.0, 0.0, 12.0, -4.0)
    p = np.linspace(0.0, 1.0, 400001)
    x, y = (sum(k * p**i for i, k in enumerate(shape)) for shape in (u, v))
    along = np.concatenate([[0.0], np.cumsum(np.hypot(np.diff(x), np.diff(y)))])
    length = float(along[-1])
    s = np.linspace(0.0, length, 9)
    found = local("normalized", length, (*u, *v), s)
    np.testing.assert_allclose(found[:, 0], np.interp(s, along, x), atol=1e-6)
    np.testing.assert_allclose(found[:, 1], np.interp(s, along, y), atol=1e-6)
    # a quarter of a circle of 30 m radius, to the third order: p is the length
    circle = (0.0, 1.0, 0.0, -1 / (6 * 30**2), 0.0, 0.0, 1 / 60, 0.0)
    found = local("arcLength", 10.0, circle, [5.0, 10.0])
    np.testing.assert_allclose(found[:, 0], 30 * np.sin(np.array([5.0, 10.0]) / 30), atol=2e-3)
    np.testing.assert_allclose(found[:, 1], 30 * (1 - np.cos(np.array([5.0, 10.0]) / 30)), atol=2e-2)


def test_stations_are_closer_in_a_bend():
    line = Line((Piece(0, 0, 0, 0, 50, "line"), Piece(50, 50, 0, 0, 10, "arc", (0.2,))), np.array([0.0, 50.0]), 60.0)
    s = stations(line, [7.25])
    assert {0.0, 7.25, 50.0, 60.0} <= set(s.tolist())
    gaps = np.diff(s)
    assert gaps.min() > 0.15 and gaps.max() <= 1.0
    assert gaps[s[:-1] >= 50].max() < 0.5
    chord = poses(line, s)[:, :2]
    middle = poses(line, (s[1:] + s[:-1]) / 2)[:, :2]
    assert np.linalg.norm((chord[1:] + chord[:-1]) / 2 - middle, axis=1).max() < 0.006


PIECES = st.one_of(
    st.just(("line", ())),
    st.tuples(st.just("arc"), st.tuples(st.floats(-0.2, 0.2))),
    st.tuples(st.just("spiral"), st.tuples(st.floats(-0.2, 0.2), st.floats(-0.2, 0.2))),
    st.tuples(st.just("poly3"), st.tuples(st.just(0.0), st.just(0.0), st.floats(-0.02, 0.02), st.floats(-1e-4, 1e-4))),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(PIECES, st.floats(0.5, 60.0)), min_size=1, max_size=5), st.floats(-3, 3))
def test_a_chain_of_pieces_is_continuous(chain, hdg):
    line, _ = kit.chained(chain, 10.0, -20.0, hdg)
    at = stations(line, [])
    found = poses(line, at)
    steps = np.linalg.norm(np.diff(found[:, :2], axis=0), axis=1)
    # a chord is never longer than the way, and hardly shorter
    assert (steps <= np.diff(at) + 1e-6).all()
    assert (steps >= 0.9 * np.diff(at) - 1e-6).all()


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(PIECES, st.floats(2.0, 60.0)), min_size=1, max_size=4), st.integers(1, 3))
def test_roads_of_any_chain_become_lanes_without_jumps(chain, cuts):
    line, text = kit.chained(chain, 0.0, 0.0, 0.0)
    sections = [
        kit.section(line.length * k / cuts, *([kit.lane(i, 3.0, before=k and i, after=i)] for i in (1, -1)))
        for k in range(cuts)
    ]
    limits = [kit.tag("speed", sOffset=0, max=10 + k) for k in range(cuts)]
    parts = [one.replace("</lane>", limit + "</lane>") for one, limit in zip(sections, limits, strict=True)]
    builder = kit.parse(kit.document(kit.road(1, line.length, text, parts)))
    assert len(builder.lanes) == 2 * cuts
    assert sum(len(lane.next) for lane in builder.lanes) == 2 * (cuts - 1)
    for lane in builder.lanes:
        for follower in lane.next:
            assert np.linalg.norm(lane.points[-1] - builder.lanes[follower].points[0]) < 1e-6
    # where nothing changes between sections they are one lane, as if there were one section
    joined = kit.parse(kit.document(kit.road(1, line.length, text, sections)))
    whole = kit.parse(
        kit.document(kit.road(1, line.length, text, kit.section(0, [kit.lane(1, 3.0)], [kit.lane(-1, 3.0)])))
    )
    for one, other in zip(joined.lanes, whole.lanes, strict=True):
        np.testing.assert_allclose(one.points, other.points, atol=1e-9)
