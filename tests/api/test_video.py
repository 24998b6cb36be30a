"""`robotrl video`: a grid or a sequence of episodes of any sim that can be drawn, as gif and mp4."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from robotrl.api.episode_summary import DriveSummary
from robotrl.api.viewing import ViewRequest, look
from robotrl.cli.main import main
from robotrl.report import drive_video
from tests.api.test_view import DT_S, drove  # noqa: F401

EXPERT = ("video", "--expert", "--sim", "mujoco/reach")


@pytest.fixture(scope="module")
def reached(tmp_path_factory) -> dict[str, list[np.ndarray]]:
    """Two episodes of the expert in each layout."""
    folder, found = tmp_path_factory.mktemp("videos"), {}
    seen = look(ViewRequest(sim="mujoco/reach", episodes=2, split="test"))
    for layout in (None, "sequence"):
        seen.write_video(folder / "x.gif", layout)
        with Image.open(folder / "x.gif") as gif:
            frames = []
            for index in range(gif.n_frames):
                gif.seek(index)
                frames.append(np.asarray(gif.convert("RGB")))
        found[layout or "grid"] = frames
    found["lengths"] = [len(replay.frames) for replay in seen.replays]
    return found


def test_a_sequence_has_the_frames_of_all_and_a_grid_of_the_longest(reached):
    assert len(reached["sequence"]) == sum(reached["lengths"])
    assert len(reached["grid"]) <= max(reached["lengths"])
    single, both = reached["sequence"][0].shape, reached["grid"][0].shape
    assert both[0] == single[0] and both[1] == 2 * single[1] + 4
    # the first picture of the sequence is the left one of the grid
    left = reached["grid"][0][: single[0] - 26, : single[1]]
    assert np.abs(left.astype(int) - reached["sequence"][0][: single[0] - 26]).mean() < 6


def test_the_command_writes_an_mp4(tmp_path, capsys):
    av = pytest.importorskip("av", reason="could not import 'av': wheels of PyAV exist for common platforms only")
    out = tmp_path / "x.mp4"
    assert main([*EXPERT, "--episodes", "2", "--layout", "sequence", "--out", str(out)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("start test 0: ") and said[-1].startswith(f"wrote {out}, ")
    with av.open(str(out)) as file:
        assert file.streams.video[0].codec_context.name == "h264"
        assert sum(1 for _ in file.decode(video=0)) > 10


def test_drives_stand_side_by_side(drove, tmp_path):  # noqa: F811
    drives = DriveSummary("d", "s", DT_S, ("steer", "accel"), "val", None, (), drove.traces)
    frames = drives.write_video(tmp_path / "a.gif", "grid")
    assert frames == max(len(trace.steps) + 1 for trace in drove.traces)
    with Image.open(tmp_path / "a.gif") as gif:
        width, height = drive_video.SIZE
        assert gif.size == (2 * width + 2, height) and gif.n_frames == frames
        gif.seek(frames - 1)
        last = np.asarray(gif.convert("RGB"))
    # both outcomes stand in their own halves
    for half in (last[:, :width], last[:, width + 2 :]):
        assert sum((half == color).all(-1).sum() for color in (drive_video.BAD, drive_video.GOOD)) > 1000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*EXPERT, "--out", "x.mp3"], "--out is x.mp3: did you mean x.mp4? expected a name that ends in .gif or .mp4"),
        ([*EXPERT, "--out", "x"], "--out is x: expected a name that ends in .gif or .mp4"),
        ([*EXPERT], "missing: --out"),
        ([*EXPERT, "--out", "no/x.gif"], "folder no does not exist"),
        ([*EXPERT, "--out", "x.gif", "--camera", "fornt"], "camera 'fornt' is unknown"),
        ([*EXPERT, "--out", "x.gif", "--sim.rewrd", "shaped"], "did you mean --sim.reward?"),
        (["video", "--out", "x.gif"], "missing: PATH of a run, checkpoint or bundle, or --expert"),
        (["video", "--expert", "--sim", "mujoco/hopper", "--out", "x.gif"], "lacks HasExpert"),
    ],
)
def test_a_mistake_is_answered_with_one_line(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []
