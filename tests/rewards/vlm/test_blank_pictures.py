"""Pictures that show nothing are told of, whatever window, threshold or endpoint makes rewards of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robotrl.config import WeightedReward
from robotrl.rewards.action_alignment import ActionAlignmentCfg
from robotrl.rewards.contrast import ContrastCfg
from robotrl.rewards.endpoint.cfg import EndpointCfg
from robotrl.rewards.episode_similarity import EpisodeSimilarityCfg
from robotrl.rewards.relabel import with_rewards
from robotrl.rewards.served.vlm_score import VlmScoreCfg
from robotrl.rewards.threshold import ThresholdCfg
from robotrl.rewards.vlm.pictures import FIRST_PICTURES, LEAST_SPREAD, blank
from tests.kits.chat_server import ChatServer
from tests.kits.small_clip import BAD, GOOD, stored_clip
from tests.kits.walk_sim import Walk

pytest.importorskip("open_clip")

ENVS = 3


class Blank(Walk):
    """A walk whose camera "dark" shows one color, and "side" a bright half; "late" is dark in its first pictures."""

    cameras = ("dark", "side", "late")

    def render(self, ids: Any, camera: str, width: int, height: int) -> np.ndarray:
        shown = np.empty((len(list(ids)), height, width, 3), np.uint8)
        shown[:] = (10, 200, 90)
        if camera == "side" or (camera == "late" and len(self.tape) > 1):
            shown[:, height // 2 :] = 255
        return shown


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored_clip(tmp_path_factory.mktemp("clip") / "model")


@pytest.fixture(scope="module")
def server() -> Iterator[ChatServer]:
    with ChatServer(lambda call: {"values": [0.5]}) as made:
        yield made


def reward_of(name: str, view: str, clip: Path, server: ChatServer) -> Any:
    """A reward with no window to be found."""
    model = {"model": str(clip), "view": view, "pixels": 32}
    if name == "contrast":
        return ContrastCfg(**model, good=GOOD, bad=BAD, window=(-1.0, 1.0))
    if name == "threshold":
        return ThresholdCfg(**model, goal=GOOD[0], threshold=0.0)
    if name == "episode-similarity":
        return EpisodeSimilarityCfg(**model, goal=GOOD[0])
    if name == "action-alignment":
        anchors = {"sentences": GOOD, "anchors": (-1.0, 1.0), "standard": (0.0, 1.0)}
        return ActionAlignmentCfg(**model, **anchors)
    endpoint = EndpointCfg(base_url=server.base_url, model="any")
    return VlmScoreCfg(view=view, pixels=32, every=1, patient=True, endpoint=endpoint, question="How good?")


def said_in(name: str, view: str, clip: Path, server: ChatServer, steps: int = 6) -> list[str]:
    """Warnings of some steps."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = with_rewards(Blank(ENVS), [WeightedReward(name, 1.0, reward_of(name, view, clip, server))])
        made.reset(seed=0)
        for _ in range(steps):
            made.step(torch.zeros(ENVS, 1))
        made.close()
    return [str(one.message) for one in caught if "contrast, so" in str(one.message)]


@pytest.mark.parametrize("name", ["contrast", "threshold", "episode-similarity", "action-alignment", "vlm-score"])
def test_a_blank_view_is_named_once(name: str, clip: Path, server: ChatServer) -> None:
    (said,) = said_in(name, "dark", clip, server)
    assert f"reward.{name}.view" in said and "camera dark" in said and f"the first {3 * ENVS} pictures" in said
    assert 2 * ENVS < FIRST_PICTURES <= 3 * ENVS


@pytest.mark.parametrize("view", ["side", "late"])
def test_a_view_that_shows_something_is_not_warned_of(view: str, clip: Path, server: ChatServer) -> None:
    assert not said_in("contrast", view, clip, server)


def test_a_spread_of_any_channel_is_one() -> None:
    shown = np.full((3, 4, 5, 3), (7, 100, 250), np.uint8)
    shown[1, 2, 3, 1] += LEAST_SPREAD
    shown[2, 2, 3, 0] -= LEAST_SPREAD - 1
    assert blank(shown).tolist() == [True, False, True]
