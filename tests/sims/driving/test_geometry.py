"""The bicycle, boxes and counted random numbers of the driving world, against closed forms and other code."""

from __future__ import annotations

import math

import numpy as np
import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st

from robotrl.sims.driving.geometry import BRAKE_MPS2, FRONT_M, REAR_M, STEER_GAIN, bicycle, boxes_overlap, uniform, wrap
from tests.kits.bev_kit import SIGNS

steers = st.floats(-1.0, 1.0)
speeds = st.floats(0.0, 40.0)
accels = st.floats(-BRAKE_MPS2, 5.0)


def slip(steer: float) -> float:
    return math.atan(REAR_M / (FRONT_M + REAR_M) * math.tan(STEER_GAIN * steer))


# the bicycle


@settings(max_examples=30, deadline=None)
@given(steers.filter(lambda s: abs(s) > 0.05), st.floats(1.0, 30.0), st.integers(8, 120))
def test_a_constant_steer_drives_a_circle_of_the_closed_forms_radius_and_comes_back(
    steer: float, speed: float, steps: int
) -> None:
    beta = slip(steer)
    radius = REAR_M / math.sin(beta)
    dt = 2 * math.pi * abs(radius) / speed / steps
    x, y, yaw, v = 3.0, -2.0, 0.4, speed
    # below an arc of 1e-4 rad the chord is taken as long as the arc, which is 1e-9 of it too much
    course = yaw + beta
    middle = (x - radius * math.sin(course), y + radius * math.cos(course))
    for k in range(1, steps + 1):
        x, y, yaw, v = bicycle(x, y, yaw, v, steer, 0.0, dt)
        assert math.hypot(x - middle[0], y - middle[1]) == pytest.approx(abs(radius), abs=1e-6)
        if 4 * k == steps:  # a quarter: as far ahead of the middle as the radius
            assert x == pytest.approx(middle[0] + abs(radius) * math.cos(course), abs=1e-6)
            assert y == pytest.approx(middle[1] + abs(radius) * math.sin(course), abs=1e-6)
    assert (x, y) == pytest.approx((3.0, -2.0), abs=1e-6)
    assert wrap(yaw - 0.4) == pytest.approx(0.0, abs=1e-9)
    assert v == speed


def test_the_fitted_car_turns_in_a_circle_of_3_7_m_radius_at_full_lock() -> None:
    # tan(0.368) = 0.3857; 1.418 / 1.327 of it is 0.4122, its arc tangent 0.3910, whose sine is 0.3811
    assert REAR_M / math.sin(slip(1.0)) == pytest.approx(1.418 / 0.3811, abs=0.002)
    x, y, yaw, _ = bicycle(0.0, 0.0, 0.0, 3.721 * math.pi, 1.0, 0.0, 1.0)  # half the circle
    assert (x, y) == pytest.approx((-2 * 3.721 * 0.3811, 2 * 3.721 * 0.9245), abs=0.01)
    assert abs(yaw) == pytest.approx(math.pi, abs=2e-3)


@settings(max_examples=200, deadline=None)
@given(speeds, st.floats(0.5, 9.0), st.floats(0.01, 0.5))
def test_a_stop_takes_v_squared_over_2a_whatever_the_step(speed: float, brake: float, dt: float) -> None:
    x, y, yaw, v = 0.0, 0.0, 0.0, speed
    for _ in range(math.ceil(speed / brake / dt) + 1):
        x, y, yaw, v = bicycle(x, y, yaw, v, 0.0, -brake, dt)
    assert v == 0.0
    assert x == pytest.approx(speed * speed / (2 * brake), abs=1e-9)
    assert (y, yaw) == (0.0, 0.0)


@settings(max_examples=300, deadline=None)
@given(speeds, steers, accels, st.floats(0.001, 0.2), st.floats(-3.0, 3.0))
def test_it_never_reverses_and_travels_the_integral_of_its_speed(
    speed: float, steer: float, accel: float, dt: float, yaw: float
) -> None:
    x, y, after_yaw, after = bicycle(0.0, 0.0, yaw, speed, steer, accel, dt)
    assert after == pytest.approx(max(speed + accel * dt, 0.0))
    moving = min(dt, speed / -accel) if accel < 0 else dt
    way = speed * moving + 0.5 * accel * moving**2
    turned = way * math.sin(slip(steer)) / REAR_M
    assert wrap(after_yaw - yaw - turned) == pytest.approx(0.0, abs=1e-9)
    # along the way it looks, within the angle by which it has turned
    course = yaw + slip(steer) + turned / 2
    forward = x * math.cos(course) + y * math.sin(course)
    assert forward >= -1e-12 if abs(turned) < math.pi else True
    assert math.hypot(x, y) <= way + 1e-9
    if abs(turned) < 1e-3:
        assert forward == pytest.approx(way, abs=1e-6)
    if speed == 0.0 and accel <= 0.0:
        assert (x, y) == (0.0, 0.0)


@settings(max_examples=200, deadline=None)
@given(speeds, steers, accels, st.floats(0.01, 1.0), st.integers(2, 20))
def test_one_step_equals_many_small_ones(speed: float, steer: float, accel: float, dt: float, parts: int) -> None:
    once = bicycle(1.0, 2.0, 0.3, speed, steer, accel, dt)
    x, y, yaw, v = 1.0, 2.0, 0.3, speed
    for _ in range(parts):
        x, y, yaw, v = bicycle(x, y, yaw, v, steer, accel, dt / parts)
    # below an arc of 1e-4 rad the chord is taken as long as the arc
    assert (x, y, v) == pytest.approx((once[0], once[1], once[3]), abs=1e-7)
    assert wrap(yaw - once[2]) == pytest.approx(0.0, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(speeds, steers, accels, st.floats(-3.0, 3.0))
def test_left_and_right_are_mirror_images(speed: float, steer: float, accel: float, yaw: float) -> None:
    x, y, after_yaw, v = bicycle(0.0, 0.0, yaw, speed, steer, accel, 0.1)
    mx, my, mirrored_yaw, mv = bicycle(0.0, 0.0, -yaw, speed, -steer, accel, 0.1)
    assert (mx, -my, mv) == pytest.approx((x, y, v), abs=1e-12)
    assert wrap(mirrored_yaw + after_yaw) == pytest.approx(0.0, abs=1e-12)


@given(st.floats(-1e4, 1e4))
def test_wrapped_angles_are_the_same_direction_within_a_half_turn(angle: float) -> None:
    wrapped = wrap(angle)
    assert -math.pi - 1e-9 <= wrapped <= math.pi + 1e-9
    assert (math.cos(wrapped), math.sin(wrapped)) == pytest.approx((math.cos(angle), math.sin(angle)), abs=1e-8)


# boxes


def corners(x: np.ndarray, y: np.ndarray, cos: np.ndarray, sin: np.ndarray, long: np.ndarray, wide: np.ndarray):
    return np.stack(
        [np.stack([x + i * long * cos - j * wide * sin, y + i * long * sin + j * wide * cos], -1) for i, j in SIGNS], 1
    )


def test_ten_thousand_pairs_of_boxes_overlap_where_shapely_says_so() -> None:
    rng = np.random.default_rng(0)
    n = 10_000
    dx, dy = rng.uniform(-6, 6, (2, n))
    yaw = rng.uniform(-math.pi, math.pi, (2, n))
    # parallel and perpendicular ones too, small ones within large ones, and thin ones
    yaw[1, :1000] = yaw[0, :1000] + rng.integers(0, 4, 1000) * (math.pi / 2)
    long, wide = rng.uniform(0.2, 4.0, (2, n)), rng.uniform(0.05, 1.5, (2, n))
    long[1, 1000:2000], wide[1, 1000:2000] = 0.05, 0.05
    dx[1000:1500] *= 0.1
    dy[1000:1500] *= 0.05
    cos, sin = np.cos(yaw), np.sin(yaw)
    zero = np.zeros(n)
    a = shapely.polygons(corners(zero, zero, cos[0], sin[0], long[0], wide[0]))
    b = shapely.polygons(corners(dx, dy, cos[1], sin[1], long[1], wide[1]))
    expected = shapely.intersects(a, b)
    # nothing is decided by rounding
    clear = np.where(expected, shapely.area(shapely.intersection(a, b)), shapely.distance(a, b)) > 1e-9
    assert clear.mean() > 0.999
    assert 0.2 < expected.mean() < 0.8
    assert (shapely.contains(a, b)).sum() > 200
    pairs = zip(dx, dy, cos[0], sin[0], long[0], wide[0], cos[1], sin[1], long[1], wide[1], strict=True)
    found = np.array([boxes_overlap(*(float(value) for value in pair)) for pair in pairs])
    assert np.array_equal(found[clear], expected[clear])
    # whichever comes first
    swapped = zip(-dx, -dy, cos[1], sin[1], long[1], wide[1], cos[0], sin[0], long[0], wide[0], strict=True)
    other = np.array([boxes_overlap(*(float(value) for value in pair)) for pair in swapped])
    assert np.array_equal(other[clear], found[clear])


@pytest.mark.parametrize(
    ("dx", "dy", "yaw", "half", "expected"),
    [
        (3.0, 0.0, 0.0, (1.0, 0.5), True),  # bumper to bumper: they touch
        (3.001, 0.0, 0.0, (1.0, 0.5), False),
        (0.0, 1.25, 0.0, (1.0, 0.5), True),  # side to side
        (0.0, 1.251, 0.0, (1.0, 0.5), False),
        (3.0, 1.25, 0.0, (1.0, 0.5), True),  # corner to corner
        (0.5, -0.1, 0.3, (0.5, 0.2), True),  # the second within the first
        (0.5, -0.1, 0.3, (9.0, 9.0), True),  # the first within the second
        (0.0, 0.0, math.pi / 2, (2.0, 0.1), True),  # a cross: no corner within the other
        (2.5, 0.0, math.pi / 2, (1.0, 0.5), True),  # a T
        (2.501, 0.0, math.pi / 2, (1.0, 0.5), False),
        (2.9, 1.7, math.pi / 4, (1.0, 0.5), False),  # only an axis of the second tells them apart
    ],
)
def test_boxes_by_hand(dx: float, dy: float, yaw: float, half: tuple[float, float], expected: bool) -> None:
    """The first box is 4 m by 1.5 m at the origin, its direction x; `half` is the second's."""
    cos, sin = (0.0, 1.0) if yaw == math.pi / 2 else (math.cos(yaw), math.sin(yaw))
    assert boxes_overlap(dx, dy, 1.0, 0.0, 2.0, 0.75, cos, sin, *half) == expected


# counted random numbers


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1 << 31), st.integers(0, 1 << 40))
def test_counted_numbers_are_in_the_unit_interval_and_repeat(seed: int, stream: int) -> None:
    value = uniform(seed, stream)
    assert 0.0 <= value < 1.0
    assert uniform(seed, stream) == value


def test_counted_numbers_are_uniform_and_independent() -> None:
    """Neighbours in seed and stream, as the starts use them: means, shares of 64 cells, correlations within 5 sigma."""
    seeds, streams = 200, 200
    table = np.array([[uniform((1 << 30) + i, k) for k in range(streams)] for i in range(seeds)])
    n = table.size
    assert abs(table.mean() - 0.5) < 5 * math.sqrt(1 / 12 / n)
    assert abs((table**2).mean() - 1 / 3) < 5 * math.sqrt(4 / 45 / n)
    assert len(np.unique(table)) == n
    for first, second in ((table[1:], table[:-1]), (table[:, 1:], table[:, :-1]), (table[64:, 64:], table[:-64, :-64])):
        assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 5 / math.sqrt(first.size)
        cells = np.histogram2d(first.ravel(), second.ravel(), 8, [[0, 1], [0, 1]])[0]
        expected = first.size / 64
        chi2 = ((cells - expected) ** 2 / expected).sum()
        assert abs(chi2 - 63) < 5 * math.sqrt(2 * 63)
