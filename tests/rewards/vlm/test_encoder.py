"""Models of pictures and language from a directory, and the reward that looks at scenes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from robotrl.config import WeightedReward
from robotrl.errors import CapabilityError, ConfigError, DataError
from robotrl.registry import make_sim
from robotrl.rewards.contrast import ContrastCfg
from robotrl.rewards.relabel import with_rewards
from robotrl.rewards.vlm.encoder import CONFIG_FILE, WEIGHTS_FILE, WORDS_FILE, Preprocessing, load_encoder, prepared
from robotrl.rewards.vlm.small_clip import SmallClipCfg, new_model
from robotrl.rewards.vlm.window import CalibratedWindow
from tests.kits.hub_kit import hub
from tests.kits.refusals import raises_naming
from tests.kits.small_clip import BAD, GOOD, fresh_clip, stored_clip
from tests.kits.walk_sim import Walk

pytest.importorskip("open_clip")


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored_clip(tmp_path_factory.mktemp("clip") / "model")


def contrast(clip: Path, **settings: Any) -> ContrastCfg:
    return ContrastCfg(**{"model": str(clip), "good": GOOD, "bad": BAD, **settings})


def test_a_stored_model_gives_the_same_vectors(clip: Path) -> None:
    loaded, made = load_encoder(str(clip)), fresh_clip().encoder
    pictures = torch.randint(0, 256, (5, 24, 24, 3), dtype=torch.uint8)
    assert loaded.identity == made.identity
    assert torch.equal(loaded.images(pictures), made.images(pictures))
    assert torch.equal(loaded.texts(GOOD), made.texts(GOOD))
    assert loaded.images(pictures).norm(dim=1).tolist() == pytest.approx([1.0] * 5, abs=1e-5)
    assert load_encoder(str(stored_clip(clip.parent / "other", seed=1))).identity != loaded.identity


def test_pictures_are_prepared_by_hand() -> None:
    white = torch.full((1, 4, 8, 3), 255, dtype=torch.uint8)
    white[:, :, :2] = 0  # the left quarter is black
    cut = prepared(white, Preprocessing((4, 4), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), squash=False))
    assert cut.shape == (1, 3, 4, 4) and torch.allclose(cut, torch.tensor(2.0))  # the middle is all white
    squashed = prepared(white, Preprocessing((4, 4), (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), squash=True))
    assert squashed[0, 0, 0, 0] < 0 < squashed[0, 0, 0, 3]


def test_what_is_no_model_is_named(clip: Path, tmp_path: Path) -> None:
    with raises_naming(ConfigError, "model", "ViT-B-3", nearest="ViT-B-32"):
        load_encoder("ViT-B-3@openai")
    with raises_naming(ConfigError, "checkpoint of ViT-B-32", "opnai", nearest="openai"):
        load_encoder("ViT-B-32@opnai")
    with raises_naming(ConfigError, "model", "nowhere"):
        load_encoder("nowhere")
    with pytest.raises(DataError, match=f"{tmp_path} has no open_clip_config.json"):
        load_encoder(str(tmp_path))
    broken = stored_clip(tmp_path / "broken")
    (broken / WEIGHTS_FILE).write_bytes((broken / WEIGHTS_FILE).read_bytes()[:1000])
    with pytest.raises(DataError, match="broken' cannot be loaded: "):
        load_encoder(str(broken))
    wordless = stored_clip(tmp_path / "wordless")
    (wordless / WORDS_FILE).write_text('{"schema_version": 1}')
    with pytest.raises(DataError, match="has no words and longest"):
        load_encoder(str(wordless))


def test_a_model_that_was_changed_is_not_loaded(tmp_path: Path) -> None:
    def changed(name: str, change: Callable[[Path], object]) -> str:
        path = stored_clip(tmp_path / name)
        change(path)
        return str(path)

    def words(path: Path, change: Callable[[list[str]], list[str]]) -> None:
        known = json.loads((path / WORDS_FILE).read_text())
        (path / WORDS_FILE).write_text(json.dumps({**known, "words": change(known["words"])}))

    def not_finite(path: Path) -> None:
        weights = load_file(path / WEIGHTS_FILE)
        weights["visual.conv1.weight"][0] = float("nan")
        save_file(weights, path / WEIGHTS_FILE)

    # open_clip answers with random weights where there are none
    for name, change, says in (
        ("no weights", lambda path: (path / WEIGHTS_FILE).unlink(), "cannot be loaded"),
        ("other words", lambda path: words(path, lambda known: known[::-1]), "was changed since it was trained"),
        ("fewer words", lambda path: words(path, lambda known: known[1:]), "was changed since it was trained"),
        ("no words", lambda path: (path / WORDS_FILE).unlink(), "does not fit its tokenizer"),
        ("not finite", not_finite, "weights visual.conv1.weight are not finite"),
        ("other mean", _other_mean, "was changed since it was trained"),
    ):
        with pytest.raises(DataError, match=f"{name}'.*({says})"):
            load_encoder(changed(name, change))


def _other_mean(path: Path) -> None:
    config = json.loads((path / CONFIG_FILE).read_text())
    config["preprocess_cfg"]["mean"] = [0.5, 0.5, 0.5]
    (path / CONFIG_FILE).write_text(json.dumps(config))


def test_a_model_is_fetched_from_a_hub_by_its_id_and_found_again_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others than those of `robotrl reward train clip` read all words, by open_clip's own tokenizer."""
    constants = pytest.importorskip("huggingface_hub.constants")
    theirs, pictures = tmp_path / "theirs", torch.randint(0, 256, (2, 40, 40, 3), dtype=torch.uint8)
    theirs.mkdir()
    words = SimpleNamespace(context_length=77, vocab_size=49408)
    model, config = new_model(SmallClipCfg(image_pixels=32, width=4, embedding=16), cast(Any, words))
    save_file({key: x.detach().contiguous() for key, x in model.state_dict().items()}, theirs / WEIGHTS_FILE)
    preprocess = {"mean": [0.5] * 3, "std": [0.25] * 3, "interpolation": "bicubic", "resize_mode": "shortest"}
    (theirs / CONFIG_FILE).write_text(json.dumps({"model_cfg": config, "preprocess_cfg": preprocess}))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    with hub({"toys/clip": theirs}) as (address, asked):
        # worked out from the environment when the package is imported
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        )
        fetched = load_encoder("hf-hub:toys/clip")
        assert any(path.endswith(WEIGHTS_FILE) for path in asked)
        with pytest.raises(DataError, match="model 'hf-hub:toys/other' cannot be loaded: "):
            load_encoder("hf-hub:toys/other")
    again = load_encoder("hf-hub:toys/clip")  # the hub is gone
    own = load_encoder(str(theirs))
    assert fetched.identity == again.identity == own.identity
    assert fetched.preprocessing == Preprocessing((32, 32), (0.5,) * 3, (0.25,) * 3, squash=False)
    assert torch.equal(fetched.images(pictures), own.images(pictures))
    assert torch.equal(fetched.texts(["a zebra on the moon"]), own.texts(["a zebra on the moon"]))
    assert own.texts(["car " * 74]).shape == (1, 16)
    with raises_naming(ConfigError, "prompt", "longer than the model reads"):
        own.texts(["a zebra", "car " * 100])


def test_a_file_of_weights_needs_the_name_of_its_model(clip: Path) -> None:
    with raises_naming(ConfigError, "model", str(clip / WEIGHTS_FILE), "MODEL@FILE"):
        load_encoder(str(clip / WEIGHTS_FILE))


def test_a_window_is_found_once_and_then_fixed() -> None:
    window = CalibratedWindow(4, (0.0, 1.0))
    window.see(torch.tensor([0.1, 0.5]))
    assert window(torch.tensor([0.1])) is None
    window.see(torch.tensor([0.3, 0.2, 7.0]))  # two more are enough
    assert window.window == pytest.approx((0.1, 0.5))
    window.see(torch.tensor([-9.0] * 9))
    resumed = CalibratedWindow(4, (0.0, 1.0))
    resumed.load(window.state())
    for one in (window, resumed):
        value = one(torch.tensor([0.1, 0.4, 9.0]))
        assert value is not None and value.tolist() == pytest.approx([0.0, 0.75, 1.0])
    given = CalibratedWindow(4, (0.0, 1.0), (0.0, 2.0))(torch.tensor([1.0]))
    assert given is not None and given.tolist() == [0.5]


def test_scores_that_are_all_alike_have_no_window() -> None:
    window = CalibratedWindow(4, (0.05, 0.95))
    with raises_naming(ConfigError, "reward.contrast", "0.25", "reward.contrast.window"):
        window.see(torch.full((4,), 0.25))


def test_the_last_scene_of_an_episode_is_not_seen_by_a_camera(clip: Path) -> None:
    sim = make_sim("bev/drive", 3, 0, limit_s=1.0, obs="none", agents=4)
    cfg = contrast(clip, view="near", pixels=16, max_age=0, window=(-1.0, 1.0))
    made = with_rewards(sim, [WeightedReward("contrast", 1.0, cfg)])
    made.reset(seed=0)
    for number in range(1, 11):
        step = made.step(torch.zeros(3, 2))
        assert step.info["reward_valid/contrast"].tolist() == [number < 10] * 3
    assert step.truncated.all() and step.reward.tolist() == [0.0] * 3


def test_a_score_stands_until_it_is_too_old_or_the_episode_ends(clip: Path) -> None:
    sim = make_sim("bev/drive", 2, 0, limit_s=1.0, obs="none", agents=4)
    cfg = contrast(clip, view="near", pixels=16, every=4, max_age=2, window=(-1.0, 1.0))
    made = with_rewards(sim, [WeightedReward("contrast", 1.0, cfg)])
    made.reset(seed=0)
    ages, values = list[int](), list[float]()
    for _ in range(12):
        step = made.step(torch.zeros(2, 2))
        ages.append(int(step.info["reward_age/contrast"][0]) if step.info["reward_valid/contrast"][0] else -1)
        values.append(float(step.reward[0]))
    # steps 1, 5 and 9 are scored; the episodes end at step 10, and a new count begins
    assert ages == [0, 1, 2, -1, 0, 1, 2, -1, 0, 1, 0, 1]
    assert values[0] == values[1] == values[2] != 0 == values[3]


def test_scores_are_those_of_the_pictures(clip: Path) -> None:
    sim = make_sim("bev/drive", 2, 0, obs="none", agents=4)
    made = with_rewards(
        sim,
        [
            WeightedReward(
                "contrast",
                1.0,
                contrast(clip, good=GOOD[:1], bad=BAD[:1], view="top", pixels=16, window=(-2.0, 2.0)),
            )
        ],
    )
    made.reset(seed=0)
    step = made.step(torch.zeros(2, 2))
    encoder = load_encoder(str(clip))
    image = encoder.images(torch.from_numpy(np.ascontiguousarray(sim.render([0, 1], "top", 16, 16))))
    raw = (image @ encoder.texts(GOOD[:1]).T - image @ encoder.texts(BAD[:1]).T).squeeze(1)
    assert step.reward.tolist() == pytest.approx(((raw + 2) / 4).tolist(), abs=1e-6)


def test_the_vehicle_s_state_is_in_meters_and_seconds(clip: Path) -> None:
    """A score of 1 wants 10 m/s: the reward is that of the speed, offset and heading that the world has."""
    sim = make_sim("bev/drive", 4, 3, obs="vector", agents=4)
    cfg = contrast(clip, view="near", pixels=16, window=(-9.0, -8.0), synthesis="driving", max_speed_mps=10.0)
    made = with_rewards(sim, [WeightedReward("contrast", 1.0, cfg)])  # each score is far above the window: 1
    made.reset(seed=0)
    for _ in range(30):
        step = made.step(torch.tensor([[0.02, 0.7]]).repeat(4, 1))
        ego = sim.core.world.egos
        speed = np.clip(1 - np.abs(ego["v"] - 10.0) / 10.0, 0, 1)
        lane = np.clip(1 - np.abs(ego["d"]) / 3.0, 0, 1) * np.clip(1 - np.abs(ego["psi"]) / (np.pi / 2), 0, 1)
        running = ~(step.terminated | step.truncated).numpy()
        assert step.reward.numpy()[running] == pytest.approx((speed * lane)[running], abs=1e-4)
    assert float(ego["v"].max()) > 2.0  # units matter


def test_settings_that_cannot_be_are_refused_by_name(clip: Path) -> None:
    sim = make_sim("bev/drive", 2, 0, obs="none", agents=4)
    for cfg, field, value, nearest in (
        (contrast(clip, bad=("the raod is clear",)), "prompt", "raod", "road"),
        (contrast(clip, good=()), "reward.contrast.good", "()", None),
        (contrast(clip, view="neer"), "reward.contrast.view", "neer", "near"),
        (contrast(clip, every=0), "reward.contrast.every", "0", None),
        (contrast(clip, quantiles=(0.5, 0.5)), "reward.contrast.quantiles", "(0.5, 0.5)", None),
        (
            contrast(clip, window=(0.2, 0.1)),
            "reward.contrast.window",
            "(0.2, 0.1)",
            None,
        ),
        (
            contrast(clip, window=(0.0, float("inf"))),
            "reward.contrast.window",
            "inf",
            None,
        ),
    ):
        with raises_naming(ConfigError, field, value, nearest=nearest):
            with_rewards(sim, [WeightedReward("contrast", 1.0, cfg)])
    raster = make_sim("bev/drive", 2, 0, obs="raster", raster_pixels=16, agents=4)
    with raises_naming(ConfigError, "reward.contrast.view", "bev", "10 channels", "top, near"):
        with_rewards(raster, [WeightedReward("contrast", 1.0, contrast(clip, view="bev"))])
    made = with_rewards(raster, [WeightedReward("contrast", 1.0, contrast(clip, window=(-2.0, 2.0)))])
    made.reset(seed=0)
    assert made.step(torch.zeros(2, 2)).info["reward_valid/contrast"].all()  # through the first camera
    with pytest.raises(CapabilityError, match="observes no speed, offset and heading of the ego"):
        with_rewards(
            sim,
            [WeightedReward("contrast", 1.0, contrast(clip, synthesis="driving"))],
        )
    with pytest.raises(CapabilityError, match="sim Walk has no picture"):
        with_rewards(Walk(2), [WeightedReward("contrast", 1.0, contrast(clip))])
