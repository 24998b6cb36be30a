"""Pictures of the segments of a dataset."""

import numpy as np
import pytest
import torch

from robotrl.datasets.reader import read_dataset
from robotrl.datasets.writer import DatasetWriter
from robotrl.errors import CapabilityError, ConfigError
from robotrl.registry import make_sim
from robotrl.rewards.preferences.clips import dataset_clips, shown_offsets
from robotrl.rollout.demos import collect_demos
from robotrl.spec import Spec
from tests.kits.preference_kit import by, walks


def test_the_pictures_of_a_segment_are_evenly_spaced_and_end_with_its_last_step():
    assert shown_offsets(25, 4).tolist() == [0, 8, 16, 24]
    assert shown_offsets(5, 5).tolist() == [0, 1, 2, 3, 4]
    assert shown_offsets(25, 1).tolist() == [24]


def test_a_dataset_with_pictures_shows_its_own(tmp_path):
    picture = Spec((8, 8, 3), ("red", "green", "blue"), ("1",) * 3, (0.0,) * 3, (255.0,) * 3, dtype="uint8")
    action = Spec((1,), ("step",), ("m",), (-1.0,), (1.0,))
    with DatasetWriter(tmp_path / "seen", fps=10, observation_spec={"eye": picture}, action_spec=action) as writer:
        for episode in range(2):
            shades = np.arange(6, dtype=np.uint8) + 10 * episode
            eye = np.broadcast_to(shades[:, None, None, None], (6, 8, 8, 3)).copy()
            writer.add_episode({"eye": eye}, np.zeros((6, 1)), np.zeros(6), success=True, task="look")
        writer.finish()
    clips = dataset_clips(read_dataset(tmp_path / "seen"), np.array([1, 7, 10]), by("browser", length=3, frames=2))
    # frames 1 and 3; 1 and 3 of the second episode; and of the last two steps the last one stands for the missing third
    assert clips[..., 0, 0, 0].tolist() == [[1, 3], [11, 13], [14, 15]]


def test_a_dataset_without_pictures_is_replayed_on_its_sim(tmp_path):
    options = {"limit_s": 0.5}
    collect_demos("mujoco/reach", tmp_path / "reach", episodes=3, keep="all", noise=0.5, sim_options=options)
    dataset = read_dataset(tmp_path / "reach")
    cfg = by("browser", length=4, frames=2, pixels=16)
    start = int(dataset.offsets[1]) + 2
    clips = dataset_clips(dataset, np.array([start, int(dataset.offsets[2])]), cfg)
    assert clips.shape == (2, 2, 16, 16, 3)
    sim = make_sim("mujoco/reach", 1, 0, **options)
    sim.reset(seed=0)
    sim.queue_states([int(dataset.episodes["state_id"][1])])
    sim.reset()
    expected = []
    for frame in range(int(dataset.offsets[1]), start + 4):
        if frame in (start, start + 3):
            expected.append(sim.render([0], sim.cameras[0], 16, 16)[0].copy())
        sim.step(torch.from_numpy(dataset.frames("action")[frame : frame + 1]))
    sim.close()
    assert np.array_equal(clips[0], np.stack(expected)) and not np.array_equal(clips[0], clips[1])
    with pytest.raises(ConfigError, match="nowhere"):
        dataset_clips(dataset, np.array([start]), by("browser", length=4, frames=2, view="nowhere"))


def test_a_dataset_that_nothing_can_show_is_refused(tmp_path):
    with pytest.raises(CapabilityError, match="has no pictures"):
        dataset_clips(walks(tmp_path / "walks", 5), np.array([0]), by("browser"))
