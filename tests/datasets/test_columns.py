"""Datasets of other writers as a policy sees them: what was to be done in words, cameras under other names."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import robotrl
import tests.kits.learner_kit as kit
from robotrl.algos.bc import BcCfg
from robotrl.datasets.agreement.agree import agree
from robotrl.datasets.chunks import ChunkData, load_chunks
from robotrl.datasets.columns import match_policy_columns, misfit
from robotrl.datasets.layout import Feature
from robotrl.datasets.lerobot import Dataset, read_dataset
from robotrl.datasets.manifest import read_json
from robotrl.errors import ConfigError
from robotrl.fn.text.words import encode
from robotrl.learners.learner import Setup
from robotrl.policies.vla.token import TokenVlaCfg
from robotrl.rollout.demos import collect_demos
from robotrl.sims.mujoco.tabletop import language
from robotrl.spec import Spec, visible
from tests.datasets.test_refusals import FRAMES, edit_column, edit_json
from tests.kits.data_helpers import write_foreign
from tests.kits.refusals import raises_naming

OPTIONS = {"families": "point,lift", "image": ("flat_near", "flat_top"), "image_size": 32}
NEAR, TOP = "image_flat_near", "image_flat_top"
ONE_CAMERA = {"images.front": NEAR, "state": "state"}
TWO_CAMERAS = {"images.front": NEAR, "images.wrist": TOP, "state": "state"}
TOKEN = TokenVlaCfg(
    horizon=2, vision_width=16, vision_depth=2, vision_heads=2, patch=8, width=32, heads=2, mlp=64, bins=32
)
CFG = BcCfg(updates=1, updates_per_iteration=1, batch=8)


def sim(**changes: Any) -> Any:
    return robotrl.make_sim("mujoco/tabletop", num_envs=1, seed=0, **{**OPTIONS, "image": "flat_near", **changes})


@pytest.fixture(scope="module")
def specs() -> dict[str, Spec]:
    return visible(sim())


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    path = tmp_path_factory.mktemp("ours") / "d"
    return read_dataset(collect_demos("mujoco/tabletop", path, episodes=5, num_envs=5, sim_options=OPTIONS).path)


@pytest.fixture
def foreign(ours: Dataset, tmp_path: Path) -> Path:
    return write_foreign(tmp_path / "theirs", ours, ONE_CAMERA)


def one_line(error: pytest.ExceptionInfo[ConfigError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def same_data(a: ChunkData, b: ChunkData) -> bool:
    return a.obs.keys() == b.obs.keys() and all(
        x.dtype == y.dtype and np.array_equal(x, y)
        for x, y in ((a.chunks, b.chunks), (a.valid, b.valid), *((a.obs[key], b.obs[key]) for key in a.obs))
    )


# what was to be done


def test_tasks_become_the_observations_of_the_sim(ours: Dataset, foreign: Path, specs: dict[str, Spec]) -> None:
    dataset = read_dataset(foreign)
    assert not dataset.verified and len(dataset.tasks) > 2
    assert "observation.instruction" not in dataset.features and "observation.images.front" in dataset.features
    seen = match_policy_columns(dataset, specs)
    agree(seen, specs, ours.action_spec, 1 / ours.fps)
    assert same_data(load_chunks(seen, list(specs), 3), load_chunks(ours, list(specs), 3))
    told = seen.frames("observation.instruction")
    assert told.dtype == np.int32 and np.array_equal(told, ours.frames("observation.instruction"))
    assert seen.features["observation.instruction"].shape == told.shape[1:]
    # what was read stays as it was
    assert "observation.instruction" not in dataset.features and f"observation.{NEAR}" not in dataset.features
    assert np.array_equal(seen.stats["observation.state"]["std"], ours.stats["observation.state"]["std"])


def test_a_clone_from_a_foreign_dataset_is_that_from_ours(ours: Dataset, foreign: Path, specs: dict[str, Spec]) -> None:
    clones = [CFG.build(Setup(sim, TOKEN, None, root, seed=0)) for root in (ours.root, foreign)]
    before = kit.snapshot(clones[0].state()["model"])
    for clone in clones:
        clone.iterate()
    assert kit.same(clones[0].state(), clones[1].state())
    assert not kit.same(before, clones[1].state()["model"])
    rows = clones[1]._demonstrated.arrays["obs/instruction"]
    assert torch.equal(rows, torch.from_numpy(ours.frames("observation.instruction")).float())


def test_capitals_and_punctuation_change_nothing(ours: Dataset, tmp_path: Path, specs: dict[str, Spec]) -> None:
    written = write_foreign(tmp_path / "d", ours, ONE_CAMERA, says=lambda text: f"  {text.capitalize()}, please!")
    with raises_naming(ConfigError, "word", "please"):
        match_policy_columns(read_dataset(written), specs)
    written = write_foreign(tmp_path / "e", ours, ONE_CAMERA, says=lambda text: f" {text.capitalize()}.\n")
    told = match_policy_columns(read_dataset(written), specs).frames("observation.instruction")
    assert np.array_equal(told, ours.frames("observation.instruction"))


def test_each_frame_has_its_own_task(foreign: Path, specs: dict[str, Spec]) -> None:
    """LeRobot's episodes may change what is to be done."""
    dataset = read_dataset(foreign)
    index = np.arange(dataset.num_frames) % len(dataset.tasks)
    edit_column(foreign, FRAMES, "task_index", pa.array(index))
    told = match_policy_columns(read_dataset(foreign), specs).frames("observation.instruction")
    wanted = np.stack([language.encode(task) for task in dataset.tasks])
    assert np.array_equal(told, wanted[index])


def test_whatever_the_tabletop_says_has_its_numbers(specs: dict[str, Spec]) -> None:
    number = {word: i for i, word in enumerate(specs["instruction"].words) if word}
    for family in language.InstructionFamily:
        for one in language.compositions(family):
            for way in range(len(language.SENTENCES[family])):
                text = one.say(way)
                numbers = encode(text, number, language.MAX_WORDS, what="it", limit="", vocabulary="it")
                assert numbers.tolist() == language.encode(text).tolist()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "point at the red blok",
            "task 0 'point at the red blok': word 'blok' is unknown: did you mean 'block'? expected one of the"
            f" {len(language.VOCABULARY) - 1} words of the policy's 'instruction'",
        ),
        ("?!", f"task 0 '?!' has 0 words: expected 1 to {language.MAX_WORDS}, as the policy's 'instruction' has"),
        ("the " * 40, f"has 40 words: expected 1 to {language.MAX_WORDS}"),
    ],
)
def test_what_the_words_cannot_say_is_named(
    ours: Dataset, tmp_path: Path, specs: dict[str, Spec], text: str, message: str
) -> None:
    dataset = read_dataset(write_foreign(tmp_path / "d", ours, ONE_CAMERA, says=lambda _: text))
    with pytest.raises(ConfigError) as error:
        match_policy_columns(dataset, specs)
    assert one_line(error).startswith(f"dataset {tmp_path / 'd'}: task 0 ") and message in one_line(error)


def test_a_task_of_no_frame_may_say_anything(foreign: Path, specs: dict[str, Spec]) -> None:
    tasks = read_dataset(foreign).tasks
    table = pq.read_table(foreign / "meta/tasks.parquet")
    more = pa.table({"task_index": pa.array([len(tasks)]), table.column_names[1]: pa.array(["juggle"])})
    pq.write_table(pa.concat_tables([table.replace_schema_metadata(None), more]), foreign / "meta/tasks.parquet")
    edit_json(foreign, "meta/info.json", total_tasks=len(tasks) + 1)
    assert "observation.instruction" in match_policy_columns(read_dataset(foreign), specs).features


def test_other_words_of_our_own_datasets_are_refused(ours: Dataset, specs: dict[str, Spec]) -> None:
    words = specs["instruction"].words
    other = {**specs, "instruction": replace(specs["instruction"], words=(*words[:3], words[4], words[3], *words[5:]))}
    agree(ours, specs, ours.action_spec, 1 / ours.fps)
    with pytest.raises(ConfigError) as error:
        agree(ours, other, ours.action_spec, 1 / ours.fps)
    assert f"has {words[3]!r} as word 3: the policy has {words[4]!r} there" in one_line(error)


# columns


def test_columns_are_named_where_there_are_several(ours: Dataset, tmp_path: Path, specs: dict[str, Spec]) -> None:
    root = write_foreign(tmp_path / "d", ours, TWO_CAMERAS)
    dataset = read_dataset(root)
    with pytest.raises(ConfigError) as error:
        CFG.build(Setup(sim, TOKEN, None, root, seed=0))
    assert one_line(error) == (
        f"dataset {root} has no 'observation.image_flat_near': its pictures are observation.images.front,"
        " observation.images.wrist, the policy's image_flat_near; expected algo.dataset_keys to say which is which,"
        " e.g. 'image_flat_near' is observation.images.front"
    )
    for column, key in (("observation.images.front", NEAR), ("observation.images.wrist", TOP)):
        seen = match_policy_columns(dataset, specs, {NEAR: column})
        assert np.array_equal(seen.frames("observation.image_flat_near"), ours.frames(f"observation.{key}"))
    clone = replace(CFG, dataset_keys=(f"{NEAR}=observation.images.wrist",)).build(
        Setup(sim, TOKEN, None, root, seed=0)
    )
    pictures = clone._demonstrated.arrays[f"obs/{NEAR}"].numpy()
    assert np.array_equal(pictures, ours.frames(f"observation.{TOP}"))


def test_a_policy_with_more_cameras_is_not_guessed_for(foreign: Path) -> None:
    two = visible(sim(image=("flat_near", "flat_top")))
    with pytest.raises(ConfigError, match=r"its pictures are .*front, the policy's image_flat_near, image_flat_top;"):
        match_policy_columns(read_dataset(foreign), two)


def test_names_may_be_exchanged(ours: Dataset) -> None:
    two = visible(sim(image=("flat_near", "flat_top")))
    near, top = f"observation.{NEAR}", f"observation.{TOP}"
    seen = match_policy_columns(ours, two, {NEAR: top, TOP: near, "instruction": "observation.instruction"})
    assert np.array_equal(seen.frames(near), ours.frames(top)) and np.array_equal(seen.frames(top), ours.frames(near))
    assert seen.observation_spec is not None and ours.observation_spec is not None
    assert seen.observation_spec[NEAR] == ours.observation_spec[TOP]
    assert set(seen.features) == set(ours.features)
    # a column may be read twice
    both = match_policy_columns(ours, two, {NEAR: top})
    assert np.array_equal(both.frames(near), ours.frames(top)) and np.array_equal(both.frames(top), ours.frames(top))


def test_our_own_names_are_not_guessed(ours: Dataset, foreign: Path) -> None:
    """A camera that was not recorded is not another one, though it may be the only one."""
    other = visible(sim(image="flat_front"))
    with pytest.raises(ConfigError, match=r"has no 'observation\.image_flat_front': its pictures are"):
        match_policy_columns(ours, other)
    assert match_policy_columns(read_dataset(foreign), other).frames("observation.image_flat_front").shape[1:] == (
        32,
        32,
        3,
    )
    with pytest.raises(ConfigError, match=r"its pictures are .*front, the policy's image_flat_front;"):
        match_policy_columns(replace(read_dataset(foreign), verified=True), other)


def test_a_vector_by_another_name(ours: Dataset, tmp_path: Path, specs: dict[str, Spec]) -> None:
    dataset = read_dataset(write_foreign(tmp_path / "d", ours, {"images.front": NEAR, "qpos": "state"}))
    assert np.array_equal(
        match_policy_columns(dataset, specs).frames("observation.state"), ours.frames("observation.state")
    )
    dataset = read_dataset(
        write_foreign(tmp_path / "e", ours, {"images.front": NEAR, "qpos": "state", "things": "things"})
    )
    with pytest.raises(ConfigError, match=r"its vectors are .*qpos, observation\.things, the policy's state;"):
        match_policy_columns(dataset, specs)
    seen = match_policy_columns(dataset, specs, {"state": "observation.qpos"})
    assert np.array_equal(seen.frames("observation.state"), ours.frames("observation.state"))


def test_pictures_of_a_video_by_another_name(
    ours: Dataset, tmp_path: Path, specs: dict[str, Spec], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("av", reason="could not import 'av': wheels of PyAV exist for common platforms only")
    monkeypatch.setenv("ROBOTRL_CACHE", str(tmp_path / "cache"))
    root = write_foreign(tmp_path / "d", ours, TWO_CAMERAS, pictures="video-exact")
    seen = match_policy_columns(read_dataset(root), specs, {NEAR: "observation.images.wrist"})
    agree(seen, specs, ours.action_spec, 1 / ours.fps)
    assert np.array_equal(load_chunks(seen, list(specs), 2).obs[NEAR], ours.frames(f"observation.{TOP}"))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"image_flat_ner": "observation.images.front"}, "columns: observation 'image_flat_ner' is unknown: did you"),
        ({NEAR: "observation.images.frnt"}, "is unknown: did you mean 'observation.images.front'"),
        (
            {NEAR: "observation.state"},
            r"observation.state of dataset .* has shape \(19,\): expected \(32, 32, 3\), the",
        ),
        ({"state": "task_index"}, r"has shape \(1,\): expected \(19,\), the policy's 'state'"),
    ],
)
def test_columns_that_cannot_be(foreign: Path, specs: dict[str, Spec], columns: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        match_policy_columns(read_dataset(foreign), specs, columns)


def test_unusable_settings_of_a_clone(foreign: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape("algo.dataset_keys holds 'front': expected")):
        replace(CFG, dataset_keys=("front",)).build(Setup(sim, TOKEN, None, foreign, seed=0))
    with pytest.raises(ConfigError, match=re.escape("algo.dataset_keys: column of dataset")):
        replace(CFG, dataset_keys=(f"{NEAR}=[1]",)).build(Setup(sim, TOKEN, None, foreign, seed=0))


def test_pictures_of_another_size_or_type_are_refused(foreign: Path) -> None:
    larger = visible(sim(image_size=64))
    wrong = (
        r"images.front of dataset .* has shape \(32, 32, 3\): expected \(64, 64, 3\), the policy's 'image_flat_near'"
    )
    with pytest.raises(ConfigError, match=wrong):
        match_policy_columns(read_dataset(foreign), larger)
    info = read_json(foreign, "meta/info.json")
    info["features"]["observation.images.front"]["dtype"] = "int16"
    edit_json(foreign, "meta/info.json", features=info["features"])
    with pytest.raises(ConfigError, match=r"images.front of dataset .* is int16: expected uint8 or colour pictures"):
        match_policy_columns(read_dataset(foreign), visible(sim()))


def test_what_fits(specs: dict[str, Spec]) -> None:
    for dtype in ("uint8", "image", "video"):
        assert misfit(Feature(dtype, (32, 32, 3)), specs[NEAR]) == ""
    depth = Feature("video", (32, 32, 3), None, {"video.is_depth_map": True})
    assert misfit(depth, specs[NEAR]) == "is video: expected uint8 or colour pictures"
    assert misfit(Feature("float64", (19,)), specs["state"]) == ""
