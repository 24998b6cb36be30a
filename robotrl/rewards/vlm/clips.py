"""Clips: the last pictures of each env, which never show another episode."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import check_count
from robotrl.rewards.source import SimTransition
from robotrl.rewards.vlm.pictures import PictureFeed
from robotrl.utils.hardware import check_memory

MOST_FRAMES, LONGEST_GAP = 64, 1000
NONE = -1


class ClipShape(NamedTuple):
    """Frames of a clip."""

    frames: int
    """T."""
    gap: int
    """Control steps from one frame to the next."""

    def check(self, where: str) -> None:
        """Check the numbers.

        Args:
            where: name of the settings, for errors.

        Raises:
            ConfigError: a number is out of range.
        """
        check_count(f"{where}.frames", self.frames, 1, MOST_FRAMES, "a number of frames")
        check_count(f"{where}.frame_gap", self.gap, 1, LONGEST_GAP, "a number of steps")


class ClipMemory:
    """Pictures of the last steps of each env.

    Args:
        num_envs: N.
        clip: frames of a clip.
        every: control steps from one picture to the next, a divisor of the clip's gap.
        picture_shape: height and width, pixels.
        slack: control steps for which a clip can still be made after its last picture.
        where: name of the settings of the reward, for errors.

    Raises:
        ConfigError: the pictures would take more than half of the free memory.
    """

    def __init__(
        self, num_envs: int, clip: ClipShape, every: int, picture_shape: tuple[int, int], slack: int, where: str
    ) -> None:
        self._clip, self._every = clip, every
        self._rows = (slack + (clip.frames - 1) * clip.gap) // every + 1
        kept = self._rows * num_envs
        check_memory(
            f"{where}.frames is {clip.frames}, for which {kept:,} pictures of {num_envs} envs are kept",
            3 * picture_shape[0] * picture_shape[1],
            kept,
            "fewer frames or envs, or smaller pictures",
        )
        self._pictures = np.zeros((self._rows, num_envs, *picture_shape, 3), np.uint8)
        self._step = np.full((self._rows, num_envs), NONE)
        self._first = np.full((self._rows, num_envs), NONE)
        """(R, N) step of the first picture of the picture's episode."""
        self._began = np.full(num_envs, NONE)

    def push(self, step: int, envs: NDArray[np.int64], pictures: NDArray[np.uint8]) -> None:
        """Add pictures (n, h, w, 3) of the envs (n,) at a step; numbers of steps rise."""
        row = self._row(step)
        self._began[envs] = np.where(self._began[envs] == NONE, step, self._began[envs])
        self._pictures[row, envs], self._step[row, envs] = pictures, step
        self._first[row, envs] = self._began[envs]

    def _row(self, step: NDArray[np.int64] | int) -> NDArray[np.int64] | int:
        return step // self._every % self._rows

    def clips(self, step: NDArray[np.int64], env: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
        """Clips that end at a picture.

        Args:
            step: (n,) step of the last picture.
            env: (n,).

        Returns:
            Clips (n, T, h, w, 3), the oldest frame first; where an episode was too young, its first picture stands for
            the frames before it. And (n,) whether all its pictures are still there.
        """
        row = self._row(step)
        back = self._clip.gap * np.arange(self._clip.frames - 1, -1, -1)
        at = np.maximum(step[:, None] - back, self._first[row, env][:, None])
        rows = self._row(at)
        there = (self._step[rows, env[:, None]] == at).all(axis=1) & (self._step[row, env] == step)
        return self._pictures[rows, env[:, None]], there

    def episode(self, step: NDArray[np.int64], env: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) step of the first picture of the episode that pictures (step, env), (n,) each, belong to."""
        return self._first[self._row(step), env]

    def newest(self, step: int, envs: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Pictures (n, h, w, 3) that were added at a step."""
        return self._pictures[self._row(step), envs]

    def forget(self, envs: NDArray[np.bool_]) -> None:
        """Begin new episodes in the envs (N,); clips of before can still be made."""
        self._began[envs] = NONE

    def state(self) -> dict[str, NDArray[np.generic]]:
        """State for an exact resume; steps keep their numbers."""
        own = {"pictures": self._pictures, "step": self._step, "first": self._first, "began": self._began}
        return {key: x.copy() for key, x in own.items()}

    def load(self, state: dict[str, NDArray[np.generic]], shift: int = 0) -> None:
        """Restore the result of `state`; `shift`, a multiple of `period`, is added to the numbers of steps."""
        self._pictures[:] = state["pictures"]
        for place, key in ((self._step, "step"), (self._first, "first"), (self._began, "began")):
            steps = state[key].astype(np.int64)
            place[:] = np.where(steps == NONE, NONE, steps + shift)

    @property
    def period(self) -> int:
        """Number of steps after which rows are used again."""
        return self._rows * self._every


class ClipFeed:
    """Clips of the scenes that a step reached; a `PictureFeed` whose pictures are clips (n, T, h, w, 3).

    `watch` must see each step before `pixels` is asked about it.

    Args:
        feed: pictures of a step.
        num_envs: N.
        clip: frames of a clip; its gap is a divisor of the steps from one clip to the next.
        where: name of the settings of the reward, for errors.

    Raises:
        ConfigError: see `ClipMemory`.
    """

    def __init__(self, feed: PictureFeed, num_envs: int, clip: ClipShape, where: str) -> None:
        self.name = f"{feed.name} {clip.frames} frames {clip.gap} apart"
        self.shape = feed.shape
        self._feed, self._gap = feed, clip.gap
        self._memory = ClipMemory(num_envs, clip, clip.gap, feed.shape, 0, where)
        self._step = 0

    def watch(self, transition: SimTransition) -> None:
        """Take the pictures of a step, if it is one with pictures."""
        if self._step % self._gap == 0:
            envs = torch.nonzero(self._feed.visible(transition)).squeeze(1).cpu()
            if len(envs):
                self._memory.push(self._step, envs.numpy(), self._feed.pixels(transition, envs))
        self._step += 1

    def visible(self, transition: SimTransition) -> Tensor:
        """See `PictureFeed`."""
        return self._feed.visible(transition)

    def pixels(self, transition: SimTransition, envs: Tensor) -> NDArray[np.uint8]:
        """Clips (n, T, h, w, 3) that end at the step."""
        now = np.full(len(envs), self._step - 1)
        return self._memory.clips(now, envs.cpu().numpy())[0]

    def forget(self, envs: Tensor) -> None:
        """The episodes of the envs (N,) are over."""
        over = envs.cpu().numpy()
        self._memory.forget(over)
        if over.all():  # the next step has pictures
            self._step += -self._step % self._gap

    def state(self) -> dict[str, NDArray[np.generic]]:
        """State for an exact resume."""
        return {"now": np.array(self._step), **self._memory.state()}

    def load(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Restore the result of `state`."""
        self._step = int(state["now"])
        self._memory.load(state)
