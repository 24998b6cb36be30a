"""The raster camera: hand cases, compiled loops against numpy, both against MuJoCo's rays."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings
from typing import Any

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from robotrl.errors import CapabilityError, ConfigError
from robotrl.sims.mujoco.engine.native import NoCompiler, compiled
from robotrl.sims.mujoco.engine.physics import Physics
from robotrl.sims.mujoco.render.cameras import Cameras
from robotrl.sims.mujoco.render.raster import BACKGROUND_RGB, Compiled, RasterCamera, pixel_loops
from robotrl.sims.mujoco.render.raster_pixels import draw as draw_numpy
from robotrl.sims.mujoco.render.raster_scene import Scene
from robotrl.sims.mujoco.render.views import Raster, frame_of
from tests.kits.refusals import raises_naming

EMPTY = np.floor(np.array(BACKGROUND_RGB, np.float32) * 255 + 0.5).astype(int)
RED, GREEN, BLUE = "1 0 0 1", "0 1 0 1", "0 0 1 1"
TOP = Raster("top", (0.0, 0.0, 0.0), 1.6)
"""0.1 m a pixel at 16 pixels."""


def shape(kind: str, size: str, rgba: str, pos: str = "0 0 0", more: str = "") -> str:
    """A shape on a body of its own that tests can move."""
    geom = f'<geom type="{kind}" size="{size}" rgba="{rgba}" {more}/>'
    return f'<body mocap="true" pos="{pos}">{geom}</body>'


def world(*things: str, envs: int = 1, assets: str = "") -> Physics:
    return Physics(
        f"<mujoco><asset>{assets}</asset><worldbody>{''.join(things)}</worldbody></mujoco>", envs, 2, derived="fresh"
    )


def picture(physics: Physics, view: Raster = TOP, width: int = 16, height: int = 16) -> np.ndarray:
    ids = range(physics.batch.nsim)
    return Cameras(physics, {"view": view}).render(ids, "view", width, height).astype(int)


def place(physics: Physics, pos: Any = None, quat: Any = None) -> None:
    if pos is not None:
        physics.batch.bind("mocap_pos")[:] = pos
    if quat is not None:
        quat = np.asarray(quat, float)
        physics.batch.bind("mocap_quat")[:] = quat / np.linalg.norm(quat, axis=-1, keepdims=True)


# by hand


def test_a_box_covers_its_pixels_and_no_others() -> None:
    expected = np.tile(EMPTY, (16, 16, 1))
    expected[6:10, 7:9] = (255, 0, 0)  # 4 cm along x, which is up, by 2 cm along y
    physics = world(shape("box", "0.2 0.1 0.3", RED))
    assert np.array_equal(picture(physics)[0], expected)
    place(physics, quat=(math.cos(math.pi / 4), 0, 0, math.sin(math.pi / 4)))
    assert np.array_equal(picture(physics)[0], expected.transpose(1, 0, 2))


def test_an_edge_pixel_has_the_share_that_is_covered() -> None:
    physics = world(shape("box", "0.2 0.1 0.3", RED, pos="0.03 0 0"))  # 0.3 pixels up
    column = picture(physics)[0, :, 7]
    red, empty = np.array([255, 0, 0]), np.array(BACKGROUND_RGB) * 255
    assert np.abs(column[5] - (0.3 * red + 0.7 * empty)).max() <= 0.51
    assert np.abs(column[9] - (0.7 * red + 0.3 * empty)).max() <= 0.51
    assert np.array_equal(column[6:9], [red] * 3)
    # a plate thinner than a pixel, on edge
    plate = picture(world(shape("box", "0.01 0.4 0.3", RED, pos="0.05 0 0")))[0, 7, 8]
    assert np.abs(plate - (0.2 * red + 0.8 * empty)).max() <= 0.51


@pytest.mark.parametrize(("axis", "row", "column"), [("top", 3, 2), ("side", 1, 12), ("front", 1, 13)])
def test_where_the_axes_point(axis: Any, row: int, column: int) -> None:
    # at (0.45, 0.55, 0.65): the middle of a pixel
    physics = world(shape("sphere", "0.08", RED, pos="0.45 0.55 0.65"))
    found = picture(physics, Raster(axis, (0.0, 0.0, 0.0), 1.6))[0]
    red = found[..., 0] - found[..., 2]
    assert np.unravel_index(int(red.argmax()), red.shape) == (row, column)


def test_pixels_are_square_and_the_width_is_what_is_asked_for() -> None:
    found = picture(world(shape("box", "0.1 0.1 0.1", RED)), TOP, 32, 8)[0]
    assert np.argwhere((found == (255, 0, 0)).all(-1)).tolist() == [
        [row, column] for row in range(2, 6) for column in range(14, 18)
    ]


@pytest.mark.parametrize(("axis", "nearer"), [("top", (0, 0, 0.5)), ("side", (0, -0.5, 0)), ("front", (0.5, 0, 0))])
def test_what_is_nearer_hides_what_is_behind(axis: Any, nearer: tuple[float, float, float]) -> None:
    physics = world(shape("box", "0.2 0.2 0.2", RED), shape("box", "0.1 0.1 0.1", GREEN))
    view = Raster(axis, (0.0, 0.0, 0.0), 1.6)
    place(physics, pos=[[[0, 0, 0], nearer]])
    assert (picture(physics, view)[0, 7:9, 7:9] == (0, 255, 0)).all()
    place(physics, pos=[[[0, 0, 0], np.negative(nearer)]])
    assert (picture(physics, view)[0, 6:10, 6:10] == (255, 0, 0)).all()


def test_surfaces_that_pass_through_each_other_are_compared_at_each_pixel() -> None:
    # a ball sunk into a table up to its middle, and a rod that leans through a wall
    physics = world(shape("box", "0.7 0.7 0.1", RED), shape("sphere", "0.4", GREEN, pos="0 0 0.1"))
    ball = picture(physics)[0]
    assert (ball[8, 4:12, 1] > ball[8, 4:12, 0]).all()
    assert (ball[8, [1, 2, 13, 14]] == (255, 0, 0)).all()
    sunk = world(shape("box", "0.7 0.7 0.5", RED), shape("capsule", "0.15 0.6", GREEN, more='euler="0 60 0"'))
    lean = picture(sunk, TOP, 32, 32)[0]  # its end rises above the box only on one side
    green = lean[..., 1] > lean[..., 0]
    green &= lean[..., 1] > lean[..., 2]
    assert not green.any()  # 0.6 * cos 60 + 0.15 = 0.45 m: below the lid
    place(sunk, pos=[[[0, 0, 0], [0, 0, 0.2]]])
    lean = picture(sunk, TOP, 32, 32)[0]
    green = (lean[..., 1] > lean[..., 0]) & (lean[..., 1] > lean[..., 2])
    rows = np.nonzero(green)[0]
    assert len(rows) and (rows < 16).all()  # the end with the larger x, up in the picture


def test_what_is_out_of_sight_leaves_no_trace() -> None:
    physics = world(shape("box", "0.2 0.2 0.2", RED), envs=8)
    far = 1.6
    away = [(far, 0), (-far, 0), (0, far), (0, -far), (far, far), (-far, -far), (1e6, 0), (0, -1e9)]
    place(physics, pos=[[[x, y, 0]] for x, y in away])
    assert (picture(physics) == EMPTY).all()


def test_a_disc_has_its_area() -> None:
    found = picture(world(shape("cylinder", "0.5 0.01", "0 0 0 1")), TOP, 64, 64)[0]
    cover = 1 - found[..., 0] / EMPTY[0]
    assert cover.sum() * (1.6 / 64) ** 2 == pytest.approx(math.pi * 0.25, rel=0.01)


def test_each_env_has_its_own_poses_colours_and_sizes() -> None:
    physics = world(shape("box", "0.1 0.1 0.1", RED), envs=3)
    place(physics, pos=[[[0, 0, 0]], [[0.3, 0, 0]], [[0, -0.2, 0]]])
    physics.batch.expand("geom_rgba")[1, 0] = (0, 1, 0, 1)
    physics.batch.expand("geom_size")[2, 0] = (0.2, 0.1, 0.1)
    found = picture(physics)
    for env, (rows, columns, color) in enumerate(
        [((7, 9), (7, 9), (255, 0, 0)), ((4, 6), (7, 9), (0, 255, 0)), ((6, 10), (9, 11), (255, 0, 0))]
    ):
        expected = np.tile(EMPTY, (16, 16, 1))
        expected[slice(*rows), slice(*columns)] = color
        assert np.array_equal(found[env], expected), env
    # in any order and number
    camera = Cameras(physics, {"view": TOP})
    assert np.array_equal(camera.render([2, 0, 2], "view", 16, 16), found[[2, 0, 2]])


def test_groups_transparency_and_materials_are_as_mujoco_shows_them() -> None:
    box = "0.1 0.1 0.1"
    physics = world(
        shape("box", box, RED, "0.5 0 0"),
        shape("box", box, RED, "0 0 0", 'group="3"'),
        shape("box", box, "1 0 0 0", "-0.5 0 0"),
        '<body pos="0 0.5 0"><geom type="box" size="0.1 0.1 0.1" material="paint"/></body>',
        shape("box", box, RED, "0 -0.5 0", 'material="paint"'),
        assets='<material name="paint" rgba="0 0 1 1"/>',
    )
    found = picture(physics)[0]
    assert found[2, 7].tolist() == [255, 0, 0]
    assert found[7, 7].tolist() == EMPTY.tolist()
    assert found[12, 7].tolist() == EMPTY.tolist()
    assert found[7, 2].tolist() == [0, 0, 255]  # a geom without a colour takes its material's
    assert found[7, 12].tolist() == [255, 0, 0]


def test_a_mesh_is_drawn_as_the_box_around_it() -> None:
    corners = " ".join(f"{0.2 * x} {0.1 * y} {0.1 * z}" for x in (-1, 1) for y in (-1, 1) for z in (-1, 1))
    assets = f'<mesh name="brick" vertex="{corners}"/>'
    body = f'<body mocap="true"><geom type="mesh" mesh="brick" rgba="{RED}"/></body>'
    box = picture(world(shape("box", "0.2 0.1 0.1", RED)))
    assert np.abs(picture(world(body, assets=assets)) - box).max() <= 1


# floors and terrain


def test_a_floor_from_above_and_as_a_section() -> None:
    physics = world('<geom type="plane" size="0 0 1" rgba="0 1 0 1"/>', shape("box", "0.1 0.1 0.1", RED, "0 0 0.1"))
    above = picture(physics)[0]
    assert (above[7:9, 7:9] == (255, 0, 0)).all()
    assert (above.reshape(-1, 3) == (0, 255, 0)).all(-1).sum() == 16 * 16 - 4
    side = picture(physics, Raster("side", (0.0, 0.0, 0.2), 1.6))[0]
    assert (side[10:] == (0, 255, 0)).all()
    assert (side[8:10, 7:9] == (255, 0, 0)).all()
    assert (side[:8] == EMPTY).all()
    # from below there is nothing
    assert (picture(world('<geom type="plane" size="1 1 1" euler="180 0 0"/>'))[0] == EMPTY).all()


def test_a_tracked_body_stays_in_the_middle_and_tiles_show_that_it_moves() -> None:
    plane = '<geom type="plane" size="0 0 1" rgba="0 1 0 1"/>'
    ball = '<body name="ball" mocap="true" pos="0 0 0.2"><geom type="sphere" size="0.2" rgba="1 0 0 1"/></body>'
    physics = world(plane, ball, envs=4)
    place(physics, pos=[[[0, 0, 0.2]], [[0.4, 0, 0.2]], [[0.8, 0.8, 0.2]], [[0, 0, 0.6]]])
    view = Raster("side", (0.0, 0.0, 0.2), 1.6, track="ball", tile_m=0.4)
    found = picture(physics, view)
    assert (found[0, 7:9, 7:9, 0] > 200).all()
    assert np.array_equal(found[0, 6:10, 7:9], found[1, 6:10, 7:9])
    assert not np.array_equal(found[0], found[1])  # one tile on: light where it was dark
    assert np.array_equal(found[0], found[2])  # two tiles on
    assert np.array_equal(found[0, 12:], found[3, 12:])  # the floor stays where it was
    lifted = picture(physics, view._replace(track_height=True))[3]
    assert (lifted[9:11, 7:9, 0] > 200).all()  # 0.2 m below the middle, which rose with it
    ground = np.unique(found[0, 12:].reshape(-1, 3), axis=0)
    assert ground[:, 1].max() == 255 and ground[:, 1].min() == round(255 * 0.85)


def test_a_height_field_from_above_and_as_a_section() -> None:
    # a ramp along x, 0 to 0.4 m over 2 m, with an island of no height field around it
    asset = '<hfield name="ramp" nrow="3" ncol="5" size="1 1 0.4 0.1" elevation="{}"/>'.format(
        " ".join(["0 0.25 0.5 0.75 1"] * 3)
    )
    field = '<geom type="hfield" hfield="ramp" rgba="0 1 0 1"/>'
    physics = world(field, shape("box", "0.1 0.1 0.1", RED), assets=asset)
    side = picture(physics, Raster("side", (0.0, 0.0, 0.2), 3.2), 64, 64)[0]
    x = (np.arange(64) + 0.5) * 0.05 - 1.6
    z = 0.2 + 1.6 - (np.arange(64) + 0.5) * 0.05
    height = 0.2 * (x + 1)
    clear = np.abs(z[:, None] - height) > 0.06
    inside = (np.abs(x) < 0.97)[None] & (np.abs(x) > 0.15)[None]
    expected = np.where((z[:, None] < height)[..., None], (0, 255, 0), EMPTY)
    assert (side[clear & inside] == expected[clear & inside]).all()
    assert (side[:, np.abs(x) > 1.03] == EMPTY).all()
    # from above: the box, up to 0.1 m, shows only where the ramp is lower
    place(physics, pos=[[[-0.9, 0, 0]]])
    above = picture(physics, Raster("top", (0.0, 0.0, 0.0), 3.2), 64, 64)[0]
    assert above[:, 31, 0].max() == 255
    place(physics, pos=[[[0.5, 0, 0]]])
    above = picture(physics, Raster("top", (0.0, 0.0, 0.0), 3.2), 64, 64)[0]
    assert above[:, 31, 0].max() < 255
    steep = 0.5 + 0.5 / math.hypot(1, 0.2)
    assert above[32, 32].tolist() == [0, round(255 * steep), 0]


# against MuJoCo's rays, and the loops against each other

SHAPES = {
    "sphere": "0.25",
    "ellipsoid": "0.35 0.2 0.12",
    "capsule": "0.12 0.3",
    "cylinder": "0.22 0.15",
    "box": "0.3 0.2 0.12",
}
HUES = ("1 0 0 1", "0 1 0 1", "0 0 1 1", "1 1 0 1", "0 1 1 1")
ENVS = 4
CROWD = "".join(shape(kind, size, rgba) for (kind, size), rgba in zip(SHAPES.items(), HUES, strict=True))
GROUND = '<geom type="plane" size="0 0 1" pos="0 0 -1" rgba="1 0 1 1"/>'
poses = st.tuples(
    hnp.arrays(float, (ENVS, 5, 3), elements=st.floats(-0.7, 0.7)),
    hnp.arrays(float, (ENVS, 5, 4), elements=st.floats(-1, 1)).map(
        lambda q: q + (np.linalg.norm(q, axis=-1, keepdims=True) < 0.1) * (1.0, 0.0, 0.0, 0.0)
    ),
)
axes = st.sampled_from(["top", "side", "front"])
tilts = st.just(0.0) | st.floats(5.0, 89.0)


@pytest.fixture(scope="module")
def crowd() -> Physics:
    return world(GROUND, CROWD, envs=ENVS)


@settings(max_examples=30, deadline=None)
@given(where=poses, axis=axes, tilt_deg=tilts)
def test_away_from_edges_each_pixel_shows_the_geom_that_a_ray_hits(
    crowd: Physics, where: Any, axis: Any, tilt_deg: float
) -> None:
    place(crowd, *where)
    view, size = Raster(axis, (0.0, 0.0, 0.0), 2.0, tilt_deg=tilt_deg), 48
    right, up, near = frame_of(view).vectors_w()
    step = (np.arange(size) + 0.5) * (2.0 / size) - 1.0
    starts = 5 * near + step[None, :, None] * right - step[:, None, None] * up
    _, geom = crowd.batch.ray(starts.reshape(-1, 3), -near)
    geom = geom.reshape(ENVS, size, size)
    hues = np.array([(0.8, 0.86, 0.92), (1, 0, 1), *([float(x) for x in hue.split()][:3] for hue in HUES)]) > 0.5
    found = picture(crowd, view, size, size)
    if axis != "top" and not tilt_deg:  # rays that start below the floor see nothing of the section
        geom, found = geom[:, :24], found[:, :24]
    same = np.ones_like(geom, bool)
    for down in (-1, 0, 1):
        for across in (-1, 0, 1):
            same &= np.roll(geom, (down, across), (1, 2)) == geom
    same[:, [0, -1]] = same[:, :, [0, -1]] = False
    shown = found >= 0.45 * found.max(axis=-1, keepdims=True)
    empty = (found == EMPTY).all(-1)
    assert (shown == hues[geom + 1])[same & (geom >= 0)].all()
    assert np.array_equal(empty[same], (geom < 0)[same])


@settings(max_examples=30, deadline=None)
@given(where=poses, axis=axes, tilt_deg=tilts, width=st.integers(1, 40), tile_m=st.sampled_from([0.0, 0.3]))
def test_compiled_loops_and_numpy_give_the_same_bits(
    crowd: Physics, where: Any, axis: Any, tilt_deg: float, width: int, tile_m: float
) -> None:
    scene = Scene(crowd.batch)
    place(crowd, *where)
    crowd.poses()
    ids = np.arange(ENVS)
    sheet = scene.sheet(Raster(axis, (0.1, 0.2, -0.9), 1.5, tile_m=tile_m, tilt_deg=tilt_deg), width, 24, ids)
    background = np.array(BACKGROUND_RGB, np.float32)
    drawn = []
    for loops in (draw_numpy, Compiled(1), Compiled(3)):
        out = np.zeros((ENVS + 2, 24, width, 3), np.uint8)
        loops(sheet, background, ids[::-1] + 1, out)
        drawn.append(out)
    assert np.array_equal(drawn[0], drawn[1])
    assert np.array_equal(drawn[0], drawn[2])
    assert (drawn[0][[0, -1]] == 0).all() and drawn[0][1:-1].any()  # only the rows asked for


def test_compiled_loops_and_numpy_agree_on_terrain() -> None:
    rng = np.random.default_rng(0)
    heights = " ".join(f"{h:.3f}" for h in rng.uniform(0, 1, 12 * 9))
    asset = f'<hfield name="bumps" nrow="9" ncol="12" size="1 0.8 0.3 0.1" elevation="{heights}"/>'
    physics = world('<geom type="hfield" hfield="bumps" pos="0.1 0.05 0" euler="0 0 20"/>', CROWD, assets=asset)
    scene = Scene(physics.batch)
    physics.poses()
    background = np.array(BACKGROUND_RGB, np.float32)
    for axis in ("top", "side", "front"):
        sheet = scene.sheet(Raster(axis, (0.0, 0.1, 0.1), 3.0, tile_m=0.25), 50, 40, np.zeros(1, int))
        fast, slow = np.zeros((2, 1, 40, 50, 3), np.uint8)
        Compiled(1)(sheet, background, np.zeros(1, int), fast)
        draw_numpy(sheet, background, np.zeros(1, int), slow)
        assert np.array_equal(fast, slow)
        assert len(np.unique(fast.reshape(-1, 3), axis=0)) > 50


def test_many_envs_are_drawn_as_one_is() -> None:
    envs = 300  # more than are drawn at once
    physics = world(CROWD, envs=envs)
    rng = np.random.default_rng(1)
    place(physics, rng.uniform(-0.7, 0.7, (envs, 5, 3)), rng.normal(size=(envs, 5, 4)))
    together = picture(physics, TOP, 20, 20)
    camera = Cameras(physics, {"view": TOP})
    for env in (0, 7, 255, 256, 299):
        assert np.array_equal(camera.render([env], "view", 20, 20)[0], together[env])


# without a compiler


def test_without_a_compiler_numpy_draws_and_one_warning_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler-here")
    physics = world(shape("box", "0.2 0.1 0.3", RED))
    with pytest.warns(UserWarning, match="no C compiler found .no-such-compiler-here.: .* in numpy"):
        assert pixel_loops(2) is draw_numpy
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pixel_loops(2) is draw_numpy
        drawn = picture(physics)[0]
    expected = np.tile(EMPTY, (16, 16, 1))
    expected[6:10, 7:9] = (255, 0, 0)
    assert np.array_equal(drawn, expected)


def test_a_compiler_that_fails_is_named(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "bad.c").write_text("int main( {")
    with pytest.raises(NoCompiler, match=r"cannot compile bad\.c: .*bad\.c:1"):
        compiled(tmp_path / "bad.c")
    assert [path.name for path in (tmp_path / "robotrl").iterdir()] == []


def test_what_was_compiled_is_kept_and_made_anew_when_damaged(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tmp_path / "two.c"
    source.write_text("int two(void) { return 2; }")
    assert compiled(source).two() == 2
    (kept,) = (tmp_path / "robotrl").iterdir()
    before = kept.stat().st_mtime_ns
    assert compiled(source).two() == 2
    assert kept.stat().st_mtime_ns == before
    # elsewhere, as a process keeps what it has loaded by path
    damaged = tmp_path / "second" / "robotrl" / kept.name
    damaged.parent.mkdir(parents=True)
    damaged.write_text("not a library")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "second"))
    assert compiled(source).two() == 2
    assert damaged.stat().st_size > 1000
    source.write_text("int two(void) { return 22; }")
    assert compiled(source).two() == 22
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/nowhere")
    assert compiled(source).two() == 22


def test_out_must_hold_the_rows() -> None:
    physics = world(shape("box", "0.2 0.1 0.3", RED))
    camera = RasterCamera(physics.batch, 1)
    physics.poses()
    for out in (np.zeros((1, 8, 8, 3), np.uint8)[:, ::2], np.zeros((1, 8, 8, 3), np.uint8)):
        with pytest.raises(ValueError, match="must be contiguous and hold the rows"):
            Compiled(1)(
                Scene(physics.batch).sheet(TOP, 8, 8, np.zeros(1, int)),
                np.zeros(3, np.float32),
                np.array([1 if out.flags.c_contiguous else 0]),
                out,
            )
    camera.draw(TOP, np.zeros(0, int), np.zeros((0, 8, 8, 3), np.uint8), np.zeros(0, int))


def test_a_tilted_camera_looks_down() -> None:
    # from the front and 30 degrees above the horizon, height counts cos 30 and what stands nearer is lower by sin 30
    view = Raster("front", (0.0, 0.0, 0.0), 1.6, tilt_deg=30.0)
    physics = world(shape("sphere", "0.08", RED, pos="0.3 0.55 0.4"))
    red = picture(physics, view, 160, 160)[0].astype(int)
    rows, columns = np.nonzero(red[..., 0] - red[..., 2] > 128)
    up_m = 0.4 * math.cos(math.radians(30)) - 0.3 * math.sin(math.radians(30))
    assert (rows.mean() + 0.5, columns.mean() + 0.5) == pytest.approx((80 - 100 * up_m, 80 + 55), abs=0.3)
    assert np.allclose(frame_of(view).vectors_w() @ frame_of(view).vectors_w().T, np.eye(3))


def test_what_cannot_be_tilted_is_refused() -> None:
    physics = world(shape("box", "0.2 0.1 0.3", RED))
    with pytest.raises(ConfigError, match="tilt_deg"):
        picture(physics, Raster("front", (0, 0, 0), 1.0, tilt_deg=90.0))
    asset = '<hfield name="flat" nrow="3" ncol="3" size="1 1 0.3 0.1"/>'
    terrain = world('<geom type="hfield" hfield="flat"/>', shape("box", "0.2 0.1 0.3", RED), assets=asset)
    with pytest.raises(CapabilityError, match="tilted by 30 degrees cannot draw a height field"):
        picture(terrain, Raster("front", (0, 0, 0), 1.0, tilt_deg=30.0))


def test_an_axis_that_is_none_is_refused() -> None:
    with raises_naming(ConfigError, "axis", "tops", nearest="top"):
        picture(world(shape("box", "0.2 0.1 0.3", RED)), Raster("tops", (0, 0, 0), 1.0))  # pyright: ignore


def test_no_torch_is_needed() -> None:
    code = (
        "import sys, robotrl.sims.mujoco.engine.core, robotrl.sims.mujoco.render.cameras; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert mujoco.mjVERSION_HEADER > 0
