"""Replays side by side as one video, each with its name, step and outcome."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from robotrl.report.replay import EpisodePictures, Frames
from robotrl.report.text import number

if TYPE_CHECKING:
    from PIL import ImageDraw

HOLD_S = 1.5
"""Time for which the last frame is shown."""
GAP, BAR, PAD, TEXT = 4, 26, 8, 13
BAD, GOOD, INK, SOFT, CARD, PAGE = (
    (185, 28, 28),
    (21, 128, 61),
    (23, 32, 44),
    (90, 102, 117),
    (255, 255, 255),
    (223, 228, 234),
)
PALETTE_FRAMES = 6
IN_A_ROW = 3
"""Up to this number of replays are in one row, more in a grid."""


class Mosaic:
    """Replays side by side, drawn frame by frame; shorter ones freeze at their end.

    Args:
        replays: one or more, with frames of one size.
        dt_s: duration of a step, s.
        has_success: show whether an episode succeeded; otherwise only its return.
    """

    def __init__(self, replays: Sequence[EpisodePictures], dt_s: float, has_success: bool) -> None:
        from PIL import ImageFont

        self._replays, self._dt_s, self._has_success = replays, dt_s, has_success
        # replays that end between two times show their end from the next time on
        self._times = max((replay.steps for replay in replays), key=lambda steps: steps[-1])
        _, self._height, self._width, _ = replays[0].frames.shape
        self._across = len(replays) if len(replays) <= IN_A_ROW else math.ceil(math.sqrt(len(replays)))
        self._down = math.ceil(len(replays) / self._across)
        self._font = ImageFont.load_default(TEXT)

    def __len__(self) -> int:
        return len(self._times)

    @property
    def fps(self) -> float:
        """Frames per second in real time, except for the last frame."""
        return 1 / self._shown_s(0)

    def frames(self) -> Iterator[tuple[Frames, float]]:
        """Frames (h, w, 3) of even size, and the seconds for which each is shown."""
        for place in range(len(self)):
            yield self.picture(place), self._shown_s(place)

    def sample(self) -> Frames:
        """(n, h, w, 3) sample of the frames for a palette; the last frame, which shows the outcome, is included."""
        places = np.unique(np.linspace(0, len(self) - 1, PALETTE_FRAMES).round().astype(int))
        return np.stack([self.picture(int(place)) for place in places])

    def _shown_s(self, place: int) -> float:
        if place == len(self) - 1:
            return HOLD_S
        return (self._times[place + 1] - self._times[place]) * self._dt_s

    def picture(self, place: int) -> Frames:
        """Frame (h, w, 3) at one of the times."""
        from PIL import Image, ImageDraw

        wide, tall = self._width + GAP, self._height + BAR + GAP
        size = (self._across * wide - GAP, self._down * tall - GAP)
        # H.264 needs even sizes
        image = Image.new("RGB", (size[0] + size[0] % 2, size[1] + size[1] % 2), PAGE)
        draw = ImageDraw.Draw(image)
        for index, replay in enumerate(self._replays):
            x, y = index % self._across * wide, index // self._across * tall
            shown = int(np.searchsorted(replay.steps, self._times[place], side="right")) - 1
            image.paste(Image.fromarray(replay.frames[shown]), (x, y))
            draw.rectangle((x, y + self._height, x + self._width - 1, y + self._height + BAR - 1), CARD)
            self._caption(draw, replay, shown, x, y + self._height)
        return np.asarray(image)

    def _caption(self, draw: ImageDraw.ImageDraw, replay: EpisodePictures, shown: int, x: int, y: int) -> None:
        top = y + (BAR - TEXT) // 2 - 1
        draw.text((x + PAD, top), replay.name, INK, self._font)
        caption, color = f"step {replay.steps[shown]} of {replay.length}", SOFT
        if shown == len(replay.steps) - 1:
            caption, color = f"return {number(replay.ret)}", INK
            if self._has_success:
                word, color = ("success", GOOD) if replay.success else ("failed", BAD)
                caption = f"{word}, {caption}"
        draw.text((x + self._width - PAD - draw.textlength(caption, self._font), top), caption, color, self._font)
