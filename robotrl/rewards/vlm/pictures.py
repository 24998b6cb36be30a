"""Pictures of the scene that a step reached, for rewards that look at it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import CapabilityError, ConfigError, check_count, unknown
from robotrl.rewards.source import SimTransition
from robotrl.rewards.vlm.encoder import SCHEMA, WORDS_FILE
from robotrl.spec import HasCamera, VecSim, is_picture
from robotrl.utils.files import read_json

COLORS = 3
"""Channels of a picture that a model of pictures and language reads."""
PIXELS = (8, 2048)
"""Range of a picture's width and height."""
FIRST_PICTURES = 8
"""Pictures without contrast, from the first on, before there is a warning."""
LEAST_SPREAD = 3
"""Difference of a channel's brightest and darkest pixel, of 255, below which a picture shows nothing."""


class PictureFeed(Protocol):
    """Gives the pictures of a step."""

    name: str
    """Text that differs between feeds with different pictures."""
    shape: tuple[int, int]
    """Height and width, pixels."""

    def visible(self, transition: SimTransition) -> Tensor:
        """(N,) bool: envs that have a picture of the scene that the step reached."""
        ...

    def pixels(self, transition: SimTransition, envs: Tensor) -> NDArray[np.uint8]:
        """Pictures (n, h, w, 3) of the scenes that a step reached, of the envs (n,) int64."""
        ...


class ObservedPictures:
    """Pictures that the sim observes, those of the last step of an episode included."""

    def __init__(self, key: str, shape: tuple[int, int]) -> None:
        self.name = f"observation {key}"
        self.shape = shape
        self._key = key

    def visible(self, transition: SimTransition) -> Tensor:
        """See `PictureFeed`."""
        return torch.ones_like(transition.step.terminated)

    def pixels(self, transition: SimTransition, envs: Tensor) -> NDArray[np.uint8]:
        """See `PictureFeed`."""
        return transition.reached[self._key][envs].cpu().numpy()


class RenderedPictures:
    """Pictures of a camera, rendered after each step.

    The sim has restarted where an episode ended, so that its last scene cannot be seen.
    """

    def __init__(self, sim: HasCamera, camera: str, pixels: int) -> None:
        self.name = f"camera {camera} {pixels}"
        self.shape = (pixels, pixels)
        self._sim, self._camera = sim, camera

    def visible(self, transition: SimTransition) -> Tensor:
        """See `PictureFeed`."""
        return ~(transition.step.terminated | transition.step.truncated)

    def pixels(self, transition: SimTransition, envs: Tensor) -> NDArray[np.uint8]:
        """See `PictureFeed`."""
        return np.ascontiguousarray(self._sim.render(envs.tolist(), self._camera, *self.shape[::-1]))


class WatchedPictures:
    """Pictures of another feed, with one warning if the first of them show nothing; a `PictureFeed`.

    A model has a score for a blank picture, too, and no window or threshold that is given would tell.

    Args:
        feed: the pictures.
        field: name of the setting `view`, for the warning.
    """

    def __init__(self, feed: PictureFeed, field: str) -> None:
        self.name, self.shape = feed.name, feed.shape
        self._feed, self._field = feed, field
        self._blank = 0
        """Pictures so far, all of them blank."""
        self._watches = True

    def visible(self, transition: SimTransition) -> Tensor:
        """See `PictureFeed`."""
        return self._feed.visible(transition)

    def pixels(self, transition: SimTransition, envs: Tensor) -> NDArray[np.uint8]:
        """See `PictureFeed`."""
        pictures = self._feed.pixels(transition, envs)
        if self._watches and len(pictures):
            self._watch(pictures)
        return pictures

    def _watch(self, pictures: NDArray[np.uint8]) -> None:
        if not blank(pictures).all():
            self._watches = False
            return
        self._blank += len(pictures)
        if self._blank >= FIRST_PICTURES:
            self._watches = False
            warnings.warn(
                f"{self._field}: the first {self._blank} pictures of {self.name} have no contrast, so that their scores"
                " say nothing of the scene: expected a view that shows it",
                stacklevel=2,
            )


def blank(pictures: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Pictures (n, h, w, 3) that have hardly any spread of pixels in any channel, (n,) bool."""
    spread = pictures.max(axis=(1, 2)).astype(np.int64) - pictures.min(axis=(1, 2))
    return np.asarray(spread.max(axis=1) < LEAST_SPREAD)


def picture_feed(sim: VecSim, view: str | None, pixels: int, field: str) -> PictureFeed:
    """The feed of an observed picture or of a camera, by name, which warns if its first pictures show nothing.

    Args:
        sim: the sim.
        view: key of an observation, or name of a camera; None takes the first observed picture, else the first camera.
        pixels: width and height of a camera's pictures.
        field: name of the setting `view`, for errors.

    Raises:
        CapabilityError: the sim has neither.
        ConfigError: an unknown name, or a size out of range.
    """
    pictures = {key: spec.shape[-1] for key, spec in sim.observation_spec.items() if is_picture(spec)}
    observed = [key for key, channels in pictures.items() if channels == COLORS]
    cameras = list(sim.cameras) if isinstance(sim, HasCamera) else []
    if not observed and not cameras:
        raise CapabilityError(
            f"sim {type(sim).__name__} has no picture: expected one in color, observed or of a camera"
        )
    if view in pictures and view not in observed:
        expected = f"one in color, or a camera: {', '.join([*observed, *cameras])}"
        raise ConfigError(f"{field} is {view!r}, which has {pictures[view]} channels: expected {expected}")
    name = [*observed, *cameras][0] if view is None else view
    if name in observed:
        height, width = sim.observation_spec[name].shape[:2]
        return WatchedPictures(ObservedPictures(name, (height, width)), field)
    if name not in cameras or not isinstance(sim, HasCamera):
        raise unknown(field, name, [*observed, *cameras])
    check_count("pixels", pixels, *PIXELS)
    return WatchedPictures(RenderedPictures(sim, name, pixels), field)


def warn_of_other_view(model: str, feed: PictureFeed, field: str) -> None:
    """Warn if a model of `robotrl reward train clip` looks through another camera than the one it was trained on.

    Args:
        model: name of the model; others than directories say nothing.
        feed: the pictures that it is given.
        field: name of the setting `view`, for the warning.
    """
    words = Path(model) / WORDS_FILE
    trained_on = read_json(words, "vocabulary", SCHEMA).get("camera") if words.is_file() else None
    if trained_on is not None and not feed.name.startswith(f"camera {trained_on} "):
        warnings.warn(
            f"{field}: model {model} was trained on pictures of camera {trained_on!r} and is given those of"
            f" {feed.name!r}: expected --{field.replace('_', '-')} {trained_on}",
            stacklevel=2,
        )
