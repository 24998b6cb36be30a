import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robotrl.datasets.chunks import chunk_indices, load_chunks
from robotrl.datasets.lerobot import read_dataset
from robotrl.errors import ConfigError
from tests.kits.data_helpers import write_dataset
from tests.kits.refusals import raises_naming


def test_two_episodes_by_hand():
    frame, valid = chunk_indices(np.array([0, 3, 5]), horizon=3)
    assert frame.tolist() == [[0, 1, 2], [1, 2, 2], [2, 2, 2], [3, 4, 4], [4, 4, 4]]
    assert valid.astype(int).tolist() == [[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 0], [1, 0, 0]]


def test_horizon_longer_than_the_episode():
    frame, valid = chunk_indices(np.array([0, 2]), horizon=4)
    assert frame.tolist() == [[0, 1, 1, 1], [1, 1, 1, 1]]
    assert valid.sum(axis=1).tolist() == [2, 1]


@settings(deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(1, 15))
def test_no_chunk_leaves_its_episode(lengths, horizon):
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    frame, valid = chunk_indices(offsets, horizon)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    assert frame.shape == valid.shape == (sum(lengths), horizon)
    assert (episode[frame] == episode[:, None]).all()
    assert (frame[:, 0] == np.arange(len(episode))).all()
    steps = np.arange(horizon)
    assert (frame[valid] == (np.arange(len(episode))[:, None] + steps)[valid]).all()
    left = offsets[episode + 1] - np.arange(len(episode))
    assert (valid == (steps < left[:, None])).all()
    assert (frame[~valid] == np.broadcast_to(offsets[episode + 1][:, None] - 1, frame.shape)[~valid]).all()


@pytest.mark.parametrize("offsets", [[0], [1, 2], [0, 0, 3], [0, 3, 2]])
def test_unusable_offsets(offsets):
    with pytest.raises(ConfigError, match="offsets is"):
        chunk_indices(np.array(offsets), 2)


def test_unusable_horizon():
    with raises_naming(ConfigError, "horizon", 0, 1):
        chunk_indices(np.array([0, 2]), 0)


def test_load_chunks(tmp_path):
    dataset = read_dataset(write_dataset(tmp_path / "d", (3, 1, 4)))
    data = load_chunks(dataset, ["state", "force"], horizon=2)
    assert {key: value.shape for key, value in data.obs.items()} == {"state": (8, 3), "force": (8, 1)}
    assert all(value.dtype == np.float32 and value.flags.c_contiguous for value in data.obs.values())
    actions = dataset.frames("action")
    np.testing.assert_array_equal(data.chunks[:, 0], actions)
    np.testing.assert_array_equal(data.chunks[[0, 2, 3, 6, 7], 1], actions[[1, 2, 3, 7, 7]])
    assert data.valid[:, 1].tolist() == [True, True, False, False, True, True, True, False]


def test_unknown_observation(tmp_path):
    dataset = read_dataset(write_dataset(tmp_path / "d"))
    with pytest.raises(ConfigError, match=r"observation 'stat' is unknown: did you mean 'state'\? known: force, state"):
        load_chunks(dataset, ["stat"], horizon=2)
