"""`robotrl reward train clip`: recorded, trained, judged and stored by the real command, on each sim with captions."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from robotrl.cli.main import main
from robotrl.registry import make_sim
from robotrl.rewards.vlm.encoder import WORDS_FILE, load_encoder
from robotrl.rewards.vlm.pictures import picture_feed, warn_of_other_view

pytest.importorskip("open_clip")

TINY = ["--frames", "100", "--updates", "2", "--batch", "8", "--num-envs", "16", "--image-pixels", "32"]


@pytest.mark.parametrize(
    "sim, more, sentence, camera",
    [
        ("bev/drive", ["--actions"], "we stand still our way goes left brake and steer right", "near"),
        ("mujoco/push", [], "the block is on the green goal", "flat_front"),
        ("mujoco/tabletop", [], "the red block lies on the blue mat", "flat_front"),
    ],
)
def test_a_model_is_trained_on_what_the_sim_says(
    sim: str, more: list[str], sentence: str, camera: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model"
    assert main(["reward", "train", "clip", sim, "--out", str(out), *TINY, *more]) == 0, capsys.readouterr().err
    about = json.loads((out / WORDS_FILE).read_text())
    assert about["sim"] == sim and about["camera"] == camera
    assert load_encoder(str(out)).texts([sentence]).shape == (1, 64)
    watched = make_sim(sim, 2, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_other_view(str(out), picture_feed(watched, camera, 32, "reward.contrast.view"), "reward.contrast.view")
    others = [one for one in watched.cameras if one != camera]
    with pytest.warns(UserWarning, match=f"reward.contrast.view: model .*'{camera}'.* {others[0]} .*view {camera}"):
        warn_of_other_view(
            str(out), picture_feed(watched, others[0], 32, "reward.contrast.view"), "reward.contrast.view"
        )
    shown = capsys.readouterr().out
    if more:
        assert about["actions"]["frames"] > 0 and 0 <= about["actions"]["accuracy"] <= 1
        assert "actions, of " in shown
    else:
        assert about["actions"] is None


def test_a_sim_without_captions_of_actions_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["reward", "train", "clip", "mujoco/push", "--out", str(tmp_path / "model"), *TINY, "--actions"])
    assert code != 0 and "lacks HasActionCaptions" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()
