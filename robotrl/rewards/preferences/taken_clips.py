"""Pictures of segments that are taken while a sim runs."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from robotrl.rewards.preferences.clips import shown_offsets
from robotrl.rewards.preferences.labelers.desk import LabelingCfg
from robotrl.rewards.source import SimTransition
from robotrl.rewards.vlm.pictures import picture_feed
from robotrl.spec import VecSim
from robotrl.utils.hardware import check_memory

MOST = 512
"""Segments with pictures that are kept."""
AT_ONCE = 8
"""Envs of which pictures are taken at the same time."""


class TakenClip(NamedTuple):
    """A segment with its pictures."""

    step: int
    """Number of its first step."""
    env: int
    pictures: NDArray[np.uint8]
    """(F, h, w, 3)."""


class ClipTaker:
    """Takes pictures of segments of some envs, one segment after the other.

    A segment in which an episode ends before its last step is left out: the sim has restarted, and its last scene
    cannot be seen.

    Args:
        sim: the sim.
        cfg: view, length and number of pictures.
        seed: of the choice of the envs.

    Raises:
        CapabilityError: the sim has no picture.
        ConfigError: an unknown view, or pictures that would take more than half of the free memory.
    """

    def __init__(self, sim: VecSim, cfg: LabelingCfg, seed: int) -> None:
        self._feed = picture_feed(sim, cfg.view, cfg.pixels, "reward.preferences.labeler.view")
        check_memory(
            f"reward.preferences.labeler.frames is {cfg.frames}, of which {MOST} segments are kept",
            3 * self._feed.shape[0] * self._feed.shape[1],
            MOST * cfg.frames,
            "fewer, or smaller pictures",
        )
        self._length, self._num_envs = cfg.length, sim.num_envs
        self._offsets = set(shown_offsets(cfg.length, cfg.frames).tolist())
        self._generator = torch.Generator().manual_seed(seed)
        self._begin, self._at = 0, 0
        self._envs = torch.zeros(0, dtype=torch.int64)
        self._pictures: list[NDArray[np.uint8]] = []
        self._whole = torch.zeros(0, dtype=torch.bool)
        self.clips = deque[TakenClip](maxlen=MOST)

    def see(self, step: int, transition: SimTransition) -> None:
        """Look at the scenes that step number `step` has reached."""
        if not len(self._envs) or step != self._begin + self._at:
            self._start(step)
        last = self._at == self._length - 1
        if self._at in self._offsets:
            self._pictures.append(np.array(self._feed.pixels(transition, self._envs)))
            self._whole &= self._feed.visible(transition).cpu()[self._envs]
        over = (transition.step.terminated | transition.step.truncated).cpu()[self._envs]
        if not last:
            self._whole &= ~over
            self._at += 1
            return
        for number, env in enumerate(self._envs.tolist()):
            if self._whole[number]:
                taken = np.stack([pictures[number] for pictures in self._pictures])
                self.clips.append(TakenClip(self._begin, env, taken))
        self._envs = self._envs[:0]

    def clear(self) -> None:
        """Forget all segments: steps get other numbers."""
        self.clips.clear()
        self._envs = self._envs[:0]

    def _start(self, step: int) -> None:
        self._begin, self._at = step, 0
        self._envs = torch.randperm(self._num_envs, generator=self._generator)[:AT_ONCE].sort().values
        self._whole = torch.ones(len(self._envs), dtype=torch.bool)
        self._pictures = []
