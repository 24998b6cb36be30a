"""Pictures in datasets: stored once as bytes, read back bit for bit, cloned from."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robotrl.algos.bc import BcCfg
from robotrl.datasets.reader import read_dataset
from robotrl.datasets.stats import describe
from robotrl.datasets.writer import DatasetWriter
from robotrl.errors import ConfigError, DataError
from robotrl.fn.augment import draw_shifts, random_shift
from robotrl.policies.flow import FlowCfg
from robotrl.policies.gaussian import GaussianCfg
from robotrl.run.checkpoint import read_checkpoint, write_checkpoint
from robotrl.run.policy_checkpoint import load_policy, policy_tree
from robotrl.spec import Spec
from tests.kits.learner_kit import ACTION, Setup, same, snapshot
from tests.kits.walk_sim import Walk

SPECS = {
    "time": Spec((1,), ("time",), ("step",), (0.0,), (6.0,)),
    "image_eye": Spec((8, 10, 3), ("r", "g", "b"), ("1",) * 3, (0.0,) * 3, (255.0,) * 3, "uint8"),
}
SMALL: dict[str, Any] = {"hidden": (32,), "image_channels": (8,), "image_features": 8}


def picture(x: float) -> np.ndarray:
    """A bright bar where the walker stands, between -1.5 and 1.5, its edges shaded."""
    place = (x + 1.5) / 3 * 9
    bar = np.clip(1.5 - np.abs(np.arange(10) - place), 0, 1)
    return np.broadcast_to((255 * bar).astype(np.uint8)[None, :, None], (8, 10, 3))


class SeenWalk(Walk):
    """The walk, whose place only a picture shows; its specs are all that cloning asks for."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.observation_spec = SPECS


def write(path: Path, episodes: int = 20, fps: int = 10) -> tuple[Path, np.ndarray]:
    rng, seen = np.random.default_rng(0), []
    with DatasetWriter(
        path, fps=fps, observation_spec=SPECS, action_spec=ACTION, robot_type="walk", provenance={}
    ) as writer:
        for _ in range(episodes):
            x = rng.uniform(-1.5, 1.5) * 0.4 ** np.arange(4)
            pictures = np.stack([picture(place) for place in x])
            seen.append(pictures)
            writer.add_episode(
                {"time": np.arange(4, dtype=np.float32)[:, None], "image_eye": pictures},
                (-0.6 * x[:, None]).astype(np.float32),
                np.zeros(4, np.float32),
                success=True,
                task="walk",
            )
        return writer.finish(), np.concatenate(seen)


@pytest.fixture(scope="module")
def walks(tmp_path_factory):
    return write(tmp_path_factory.mktemp("pictures") / "d")


def setup(dataset: Path, cfg: Any) -> Setup:
    return Setup(lambda: SeenWalk(1), cfg, None, dataset, 0)


def test_pictures_come_back_bit_for_bit(walks):
    path, seen = walks
    dataset = read_dataset(path)
    found = dataset.frames("observation.image_eye")
    assert found.dtype == np.uint8
    assert np.array_equal(found, seen)
    assert dataset.observation_spec == SPECS
    assert dataset.features["observation.image_eye"].names == ["height", "width", "channels"]
    stats = dataset.stats["observation.image_eye"]
    assert stats["mean"].tolist() == pytest.approx(seen.reshape(-1, 3).mean(0).tolist())
    assert stats["max"].tolist() == [255] * 3
    # as floats, the pictures alone would take more
    assert sum(file.stat().st_size for file in path.rglob("data/*/*.parquet")) < 4 * seen.size


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_statistics_of_pictures_are_those_of_their_pixels(count, seed):
    rng = np.random.default_rng(seed)
    pictures = rng.integers(0, rng.integers(1, 257), (count, 3, 4, 2), dtype=np.uint8)
    found, expected = describe(pictures), describe(pictures.reshape(-1, 2).astype(np.float32))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert np.allclose(found[name], value, atol=1e-9 if name != "std" else 1e-6), name


def test_altered_statistics_of_pictures_are_refused(walks, tmp_path):
    path = Path(shutil.copytree(walks[0], tmp_path / "d"))
    (path / "meta" / "robotrl.json").unlink()
    content = json.loads((path / "meta" / "stats.json").read_text())
    content["observation.image_eye"]["mean"][1] += 9
    (path / "meta" / "stats.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"mean of 'observation.image_eye'\[1\] is"):
        read_dataset(path)


@pytest.mark.parametrize(
    "cfg", [FlowCfg(horizon=2, **SMALL), GaussianCfg(horizon=2, **SMALL)], ids=["flow", "gaussian"]
)
def test_it_clones_what_only_a_picture_shows(walks, cfg, tmp_path):
    learner = BcCfg(updates=200, batch=64, lr=5e-3, image_shift=0).build(setup(walks[0], cfg))
    for _ in range(learner.iterations):
        learner.iterate()
    path = write_checkpoint(tmp_path / "c", {"policy": policy_tree(learner.policy)}, step=1, kind="test")
    x = np.linspace(-1.2, 1.2, 30)
    obs = {
        "time": torch.zeros(30, 1),
        "image_eye": torch.from_numpy(np.stack([picture(place) for place in x])),
    }
    for policy in (learner.policy, load_policy(path)):
        with torch.no_grad():
            chunk = policy.act(obs, None, torch.Generator().manual_seed(0), policy.deploy_mode).chunk
        assert np.abs(chunk[:, 0, 0].numpy() + 0.6 * x).mean() < 0.12
    assert "image_eye" not in {t.key for t in policy.transforms.inputs}
    assert read_checkpoint(path).tree["policy"]["fingerprint"]["obs"]["image_eye"].dtype == torch.uint8


def test_augmented_cloning_goes_on_identically(walks):
    cfg = BcCfg(updates=40, updates_per_iteration=10, batch=16, image_shift=2)
    policy = FlowCfg(horizon=2, **SMALL)
    learner = cfg.build(setup(walks[0], policy))
    learner.iterate()
    saved = snapshot(learner.state())
    fresh = cfg.build(setup(walks[0], policy))
    fresh.load(saved)
    assert learner.iterate() == fresh.iterate()
    assert same(snapshot(learner.state()), snapshot(fresh.state()))
    plain = replace(cfg, image_shift=0).build(setup(walks[0], policy))
    assert plain.iterate()["loss"] != cfg.build(setup(walks[0], policy)).iterate()["loss"]


def test_the_whole_way_from_bytes_to_the_loss_compiles(walks):
    cfg = BcCfg(updates=3, updates_per_iteration=1, batch=8, image_shift=1, engine="compiled")
    policy = GaussianCfg(horizon=1, hidden=(), image_channels=(2,), image_features=2)
    compiled, eager = (each.build(setup(walks[0], policy)) for each in (cfg, replace(cfg, engine="eager")))
    for _ in range(3):
        assert compiled.iterate()["loss"] == pytest.approx(eager.iterate()["loss"], abs=1e-5)
    assert compiled.compile_s > 0 == eager.compile_s


def test_rows_are_drawn_in_parts_that_fit_in_memory(walks, monkeypatch):
    cfg = BcCfg(updates=5, updates_per_iteration=5, batch=16)
    monkeypatch.setattr("robotrl.engine.minibatches.ROWS_BYTES", 16 * 300 * 2)
    learner = cfg.build(setup(walks[0], FlowCfg(horizon=2, **SMALL)))
    sizes: list[int] = []
    run = learner._engine.run
    monkeypatch.setattr(
        learner._engine, "run", lambda data, *rest: (sizes.append(len(data["chunk"])), run(data, *rest))[1]
    )
    assert learner.iterate()["updates"] == 5
    assert sizes == [32, 32, 16]


def test_a_shift_moves_the_picture_and_repeats_its_edge():
    x = torch.arange(2 * 3 * 4, dtype=torch.uint8).reshape(2, 3, 4, 1)
    out = random_shift(x, torch.tensor([[1, 1], [0, 2]]), pad=1)
    assert torch.equal(out[0], x[0])
    down_left = torch.stack([x[1, 0], x[1, 0], x[1, 1]])[:, [1, 2, 3, 3]]
    assert torch.equal(out[1], down_left)
    assert out.dtype == torch.uint8


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 5), st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))
def test_a_shift_is_padding_and_a_crop(pad, height, width, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (3, height, width, 2), generator=generator, dtype=torch.uint8)
    shifts = draw_shifts(3, generator, pad)
    assert shifts.min() >= 0
    assert shifts.max() <= 2 * pad
    padded = torch.nn.functional.pad(x.permute(0, 3, 1, 2).float(), (pad,) * 4, mode="replicate").permute(0, 2, 3, 1)
    for row, (down, right) in enumerate(shifts.tolist()):
        expected = padded[row, down : down + height, right : right + width]
        assert torch.equal(random_shift(x, shifts, pad)[row].float(), expected)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"fps": 20}, r"is recorded at 20 Hz: expected 10 Hz, the sim's"),
        ({"spec": (4, 10, 3)}, r"image_eye of dataset .* has shape \(8, 10, 3\): expected \(4, 10, 3\)"),
    ],
)
def test_a_dataset_of_another_rate_or_shape_is_refused_with_both_values(tmp_path, changes, says):
    path, _ = write(tmp_path / "d", 2, changes.get("fps", 10))

    def make() -> SeenWalk:
        sim = SeenWalk(1)
        if "spec" in changes:
            sim.observation_spec = {**SPECS, "image_eye": replace(SPECS["image_eye"], shape=changes["spec"])}
        return sim

    with pytest.raises(ConfigError, match=says):
        BcCfg().build(Setup(make, FlowCfg(**SMALL), None, path, 0))
