"""What a vision-language-action policy makes of an observation's arrays: pictures, words, measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from robotrl.errors import CapabilityError, ConfigError, unknown
from robotrl.spec import Spec, is_picture


class ObservationRoles(NamedTuple):
    """Which arrays of an observation are what."""

    pictures: tuple[str, ...]
    """In the order in which the network sees them; "" where a camera is missing."""
    words: str
    vectors: tuple[str, ...]


def roles(observation_spec: dict[str, Spec], cameras: Sequence[str] = ()) -> ObservationRoles:
    """What a policy sees, reads and measures.

    Args:
        observation_spec: arrays of an observation.
        cameras: keys of the pictures in the network's order, "" for one that is missing; may be left out where there is
            one picture.

    Raises:
        CapabilityError: no picture or no instruction among the observations.
        ConfigError: an unknown camera, one twice, or several and none named.
    """
    pictures = [key for key, spec in observation_spec.items() if is_picture(spec)]
    words = [key for key, spec in observation_spec.items() if spec.words]
    if not pictures or len(words) != 1:
        raise CapabilityError(
            f"observations are {', '.join(observation_spec)}: a vision-language-action policy needs a picture"
            " (sim option `image`) and an instruction (HasInstructions)"
        )
    chosen = tuple(cameras) or tuple(pictures)
    named = [camera for camera in chosen if camera]
    for camera in named:
        if camera not in pictures:
            raise unknown("policy.camera", camera, pictures)
    if len(set(named)) != len(named) or not named:
        raise ConfigError(f"policy.camera is {', '.join(chosen)}: expected each of {', '.join(pictures)} once at most")
    if not cameras and len(pictures) > 1:
        raise ConfigError(f"policy.camera is not given: expected one of {', '.join(pictures)}")
    vectors = tuple(key for key in observation_spec if key not in pictures and key not in words)
    return ObservationRoles(chosen, words[0], vectors)


def heeded(observation_spec: dict[str, Spec], vectors: Sequence[str], ignored: Sequence[str]) -> Tensor:
    """(S,) what each measured number, side by side, is multiplied with: 0 where a policy ignores it, 1 elsewhere.

    A clone that sees how fast the robot moves learns to go on as it goes, whatever the pictures show and the words ask
    for (de Haan et al. 2019, causal confusion), and cannot begin from rest.

    Args:
        observation_spec: arrays of an observation.
        vectors: those that are measured.
        ignored: names of their columns.

    Raises:
        ConfigError: an unknown column.
    """
    # rows of a list of vectors have the same names
    specs = [observation_spec[key] for key in vectors]
    names = [name for spec in specs for _ in range(math.prod(spec.shape[:-1])) for name in spec.names]
    for name in ignored:
        if name not in names:
            raise unknown("policy.ignored", name, names)
    return torch.tensor([0.0 if name in ignored else 1.0 for name in names])


def sight_of(picture: str) -> str:
    """The key under which what eyes made of the picture `picture` is kept."""
    return f"{picture}.sight"


def check_square(observation_spec: dict[str, Spec], picture: str) -> int:
    """Pixels of a picture's side.

    Raises:
        ConfigError: it is not square, or has not three colours.
    """
    height, width, colours = observation_spec[picture].shape
    if height != width or colours != 3:
        raise ConfigError(
            f"observation {picture!r} is {height} x {width} x {colours}: expected a square picture of three colours"
        )
    return height
