"""Callbacks, animations, and the examples of docs/runs.md, which are run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence

from robotrl.errors import ConfigError, RobotrlError
from robotrl.run.callbacks import Callback, CallbackList
from robotrl.run.directory import Run
from robotrl.run.logs import read_scalars
from robotrl.utils.media import grid, write_gif
from tests.kits.paths_kit import ROOT

PAGE = ROOT / "docs" / "runs.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_pages_examples_run_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    assert len(BLOCKS) == 6
    for block in BLOCKS:
        exec(compile(block, "docs/runs.md", "exec"), names)
    out = capsys.readouterr().out
    best = max(-record["train/loss"] for record in read_scalars(Path("runs/five-numbers/scalars.jsonl"))[9::10])
    *lines, curriculum = out.splitlines()
    assert lines == [f"0.1 49 {best}", "4 loss below 0.5 for 3 iterations"]
    assert curriculum.startswith("{'point': 0.5, ") and curriculum.count(": 0.5") == 13
    assert Image.open("rollouts.gif").size == (3 * 64 + 2 * 2, 48)


@pytest.mark.parametrize("stop", [1, 9, 10, 33])
def test_the_pages_loop_ends_with_the_same_bits_after_a_stop(tmp_path, monkeypatch, stop):
    def run_it(block: str) -> torch.Tensor:
        names: dict = {}
        exec(compile(block, "docs/runs.md", "exec"), names)
        return names["weights"].detach()

    monkeypatch.chdir(tmp_path)
    whole = run_it(BLOCKS[0])
    path = Path("runs/five-numbers")
    records = read_scalars(path / "scalars.jsonl")
    path.rename("whole")
    stopping = BLOCKS[0].replace(
        "loss.backward()", f"loss.backward()\n        if step == {stop}: run.request_stop('test')"
    )
    assert not torch.equal(run_it(stopping), whole)
    assert torch.equal(run_it(BLOCKS[0]), whole)
    again = read_scalars(path / "scalars.jsonl")
    assert [row["train/loss"] for row in again] == [row["train/loss"] for row in records]


class Recorder(Callback):
    def __init__(self, fails_in: str | None = None) -> None:
        self.calls: list[tuple] = []
        for name in ("on_start", "on_iteration", "on_evaluation", "on_checkpoint", "on_end"):
            setattr(self, name, lambda *arguments, name=name: self._note(name, fails_in, arguments))

    def _note(self, name: str, fails_in: str | None, arguments: tuple) -> None:
        self.calls.append((name, *arguments))
        if name == fails_in:
            raise ZeroDivisionError("mine")


def drive(tmp_path: Path, *callbacks: Callback) -> Run:
    run = Run.create(tmp_path / "a", {}, seed=0, command=[])
    listed = CallbackList(run, callbacks)
    with run:
        listed.on_start()
        for step in range(3):
            listed.on_iteration(step, {"x": 1.0})
            listed.on_evaluation(step, "result")
            if run.stop_requested or step == 2:
                listed.on_checkpoint(step, run.save({}, step=step))
            if run.stop_requested:
                break
        listed.on_end()
    return run


def test_every_seam_is_called_in_order_with_what_it_promises(tmp_path):
    first, second = Recorder(), Recorder()
    run = drive(tmp_path, first, Callback(), second)
    iterations = [(("on_iteration", i, {"x": 1.0}), ("on_evaluation", i, "result")) for i in range(3)]
    wanted = [
        ("on_start", run),
        *(call for pair in iterations for call in pair),
        ("on_checkpoint", 2, tmp_path / "a" / "checkpoints" / "step_000000002"),
        ("on_end", run),
    ]
    assert first.calls == second.calls == wanted


@pytest.mark.parametrize("seam", ["on_start", "on_iteration", "on_evaluation", "on_checkpoint", "on_end"])
def test_a_failing_callback_saves_then_is_named_and_the_others_go_on(tmp_path, seam):
    bad, good = Recorder(seam), Recorder()
    with pytest.raises(RobotrlError, match=rf"callback Recorder\.{seam} failed: ZeroDivisionError: mine") as caught:
        drive(tmp_path, bad, good)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert bad.calls[-1][0] == seam
    assert good.calls[-1][0] == "on_end"
    late = seam in ("on_checkpoint", "on_end")
    assert Run.open(tmp_path / "a").latest().step == (2 if late else 0)


def test_an_interrupt_in_a_callback_is_not_swallowed(tmp_path):
    class Impatient(Callback):
        def on_iteration(self, step, scalars):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drive(tmp_path, Impatient())


def test_grid_places_every_video_and_holds_the_last_frame():
    videos = [np.full((length, 4, 6, 3), value, np.uint8) for length, value in [(1, 10), (3, 20), (2, 30)]]
    videos[2][1] = 31
    out = grid(videos, gap=1)
    assert out.shape == (3, 9, 13, 3)
    assert (out[:, :4, :6] == 10).all() and (out[:, :4, 7:] == 20).all()
    assert out[:, 5, 0, 0].tolist() == [30, 31, 31]
    assert (out[:, 4] == 255).all() and (out[:, :, 6] == 255).all() and (out[:, 5:, 7:] == 255).all()
    assert grid(videos, columns=3, gap=0).shape == (3, 4, 18, 3)
    assert grid(videos[:1]).tolist() == videos[0].tolist()


@pytest.mark.parametrize(
    "videos, words",
    [
        ([], "videos is empty"),
        ([np.zeros((2, 4, 4, 3), np.float32)], r"videos\[0\] is float32"),
        ([np.zeros((0, 4, 4, 3), np.uint8)], "none of them 0"),
        ([np.zeros((2, 4, 4, 3), np.uint8), np.zeros((2, 5, 4, 3), np.uint8)], r"videos\[1\] has frames \(5, 4, 3\)"),
    ],
)
def test_grid_refuses_what_does_not_fit(videos, words):
    with pytest.raises(ConfigError, match=words):
        grid(videos)


def moving_squares(length: int) -> np.ndarray:
    y, x = np.mgrid[:60, :80]
    frames = np.repeat((np.stack([y, x, x + y], -1) + 40).astype(np.uint8)[None], length, 0)
    for t in range(length):
        frames[t, 10:14, t : t + 4] = (200, 20, 20)  # small and of a colour of its own, as a peg is
        frames[t, 40:44, t : t + 4] = (20, 200, 20)
    return frames


@pytest.mark.parametrize("fps, duration_ms", [(20, 50), (30, 30), (50, 20), (1, 1000)])
def test_gif_keeps_time_and_colours(tmp_path, fps, duration_ms):
    frames = moving_squares(40)
    frames[30:] = frames[30]  # standing still at the end
    path = tmp_path / "new" / "a.gif"
    write_gif(frames, path, fps)
    image = Image.open(path)
    shown: list[np.ndarray] = []
    for frame in ImageSequence.Iterator(image):
        # The writer joins frames that are alike into one that is shown for longer.
        shown += [np.asarray(frame.convert("RGB"))] * round(frame.info["duration"] / duration_ms)
    assert len(shown) == 40
    assert image.info["loop"] == 0
    assert np.abs(np.stack(shown).astype(int) - frames).max() < 30
    assert path.stat().st_size < frames.nbytes / 8
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "frames, fps, colors, words",
    [
        (np.zeros((1, 2, 2, 3), np.uint8), 0, 64, "fps is 0"),
        (np.zeros((1, 2, 2, 3), np.uint8), 60, 64, "fps is 60: expected above 0 and at most 50"),
        (np.zeros((1, 2, 2, 3), np.uint8), 20, 300, "colors is 300: expected 2 to 256"),
        (np.zeros((2, 2, 3), np.uint8), 20, 64, "frames is uint8"),
    ],
)
def test_gif_refuses_what_does_not_fit(tmp_path, frames, fps, colors, words):
    with pytest.raises(ConfigError, match=words):
        write_gif(frames, tmp_path / "a.gif", fps, colors)
    assert list(tmp_path.iterdir()) == []
