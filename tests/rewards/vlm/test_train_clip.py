"""`robotrl reward train clip`: recorded, trained, judged and stored by the real command, on each sim with captions."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from robotrl.cli.main import main
from robotrl.errors import DataError
from robotrl.registry import make_sim
from robotrl.rewards.vlm.encoder import WORDS_FILE, ImageTextEncoder, load_encoder
from robotrl.rewards.vlm.image_graph import GRAPH_FILE, tower_of_graph
from robotrl.rewards.vlm.pictures import picture_feed, warn_of_other_view
from robotrl.rewards.vlm.scenes import CaptionedFrames
from robotrl.rewards.vlm.small_clip import SmallClipCfg, train_small_clip
from robotrl.rewards.vlm.text_tower import drop_words, fit_text_tower
from robotrl.spec.captions import CaptionClass, CaptionTopic

pytest.importorskip("open_clip")

SMALL = ["--frames", "100", "--num-envs", "16", "--image-pixels", "32", "--text-updates", "2"]
TINY = [*SMALL, "--updates", "2", "--batch", "8"]


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
    check_graph(out)
    shown = capsys.readouterr().out
    if more:
        assert about["actions"]["frames"] > 0 and 0 <= about["actions"]["accuracy"] <= 1
        assert "actions, of " in shown
    else:
        assert about["actions"] is None


def check_graph(model: Path) -> None:
    """The image tower's graph gives the vectors of the model's weights, and belongs to them."""
    loaded = load_encoder(str(model))
    by_torch = ImageTextEncoder(loaded.model, lambda texts: torch.zeros(0), loaded.preprocessing, "torch")
    for count in (1, 5, 70):  # part of a batch, and more than one
        pictures = torch.randint(0, 255, (count, 32, 32, 3), dtype=torch.uint8)
        assert torch.allclose(loaded.images(pictures), by_torch.images(pictures), atol=1e-4)
    graph = model / GRAPH_FILE
    content = graph.read_bytes()
    assert str(Path.cwd()).encode() not in content
    for changed in (content[:-1], content + b"x", None):
        graph.unlink() if changed is None else graph.write_bytes(changed)
        with pytest.raises(DataError, match=f"was changed since it was trained.*if it had one, {GRAPH_FILE}"):
            load_encoder(str(model))
    graph.write_bytes(content)
    with pytest.raises(DataError, match="refuses it"):
        tower_of_graph(content[:100], graph)


def test_a_sim_without_captions_of_actions_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["reward", "train", "clip", "mujoco/push", "--out", str(tmp_path / "model"), *TINY, "--actions"])
    assert code != 0 and "lacks HasActionCaptions" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


def test_the_second_stage_alone_takes_the_image_tower_of_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, refitted = tmp_path / "base", tmp_path / "refitted"
    command = ["reward", "train", "clip", "mujoco/push", *SMALL]
    assert main([*command, "--updates", "2", "--batch", "8", "--out", str(base)]) == 0
    assert main([*command, "--out", str(refitted), "--image-tower", str(base), "--seed", "1"]) == 0
    one, other = (load_encoder(str(path)).model.state_dict() for path in (base, refitted))
    towers = {name: torch.equal(value, other[name]) for name, value in one.items()}
    assert all(same for name, same in towers.items() if name.startswith("visual."))
    assert not towers["token_embedding.weight"]
    trained_s = [json.loads((path / WORDS_FILE).read_text())["train_s"] for path in (base, refitted)]
    assert trained_s[1] > trained_s[0] > 0
    capsys.readouterr()
    for wrong, says in (
        (["--camera", "flat_side"], "whose camera is 'flat_front': expected 'flat_side'"),
        (["--sim.limit-s", "4"], "whose options is {}: expected {'limit_s': 4.0}"),
        (["--image-pixels", "64"], "has another size than image_pixels 64, width 16"),
        (["--updates", "2"], "--updates is 2 beside --image-tower: expected it without"),
        (["--batch", "8"], "--batch is 8 beside --image-tower"),
    ):
        again = ["reward", "train", "clip", "mujoco/push", *SMALL, *wrong, "--out", str(tmp_path / "no")]
        assert main([*again, "--image-tower", str(base)]) == 2
        assert says in capsys.readouterr().err and not (tmp_path / "no").exists()
    assert main([*command, "--out", str(tmp_path / "no"), "--image-tower", str(tmp_path)]) == 2
    assert "expected a directory of `robotrl reward train clip`" in capsys.readouterr().err


def test_each_word_of_a_sentence_is_left_out_as_often_as_asked() -> None:
    rng = np.random.default_rng(0)
    sentence = "a crash from behind is near"
    found = [drop_words(sentence, 0.3, rng).split() for _ in range(4000)]
    for word in sentence.split():
        assert np.mean([word in words for words in found]) == pytest.approx(0.7, abs=0.03)
    assert all([word for word in sentence.split() if word in words] == words for words in found), "another order"
    assert drop_words(sentence, 0.0, rng) == sentence
    # of one word nothing would be left
    assert {drop_words("danger", 0.9, rng) for _ in range(50)} == {"danger"}


def test_a_text_tower_reads_a_word_that_sentences_of_other_classes_lack() -> None:
    """Classes that differ in one word, which stands at another place in a sentence that was not trained on."""

    def of(where: str) -> CaptionClass:
        known = (f"danger {where}", f"a crash {where} will happen", f"someone {where} is too close and a crash is near")
        return CaptionClass(where, known, (f"a crash is near {where}",))

    topic = CaptionTopic("danger", (of("ahead"), of("behind"), of("left"), of("right")))
    rng = np.random.default_rng(0)
    pictures = np.zeros((64, 32, 32, 3), np.uint8)
    classes = rng.integers(0, 4, 64)
    colors = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]], np.uint8)
    pictures[:] = colors[classes][:, None, None]
    scenes = CaptionedFrames(pictures, classes[:, None].astype(np.int8), np.array([""] * 64))
    cfg = SmallClipCfg(image_pixels=32, width=4, embedding=16, updates=60, batch=32, text_updates=150)
    first = train_small_clip(scenes, (topic,), cfg)
    fitted = fit_text_tower(scenes, (topic,), first.encoder, cfg)
    images = fitted.encoder.images(torch.from_numpy(pictures))
    texts = fitted.encoder.texts([one.test[0] for one in topic.classes])
    assert ((images @ texts.T).argmax(1).numpy() == classes).all()
