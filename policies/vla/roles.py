"""Roles of an observation's arrays in a vision-language-action policy: images, instruction, measured vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from robotrl.errors import CapabilityError, ConfigError, unknown
from robotrl.spec import Spec, is_picture


class ObservationRoles(NamedTuple):
    """Keys of an observation's images, instruction and measured vectors."""

    pictures: tuple[str, ...]
    """In the network's order; "" for a missing camera."""
    words: str
    vectors: tuple[str, ...]


def roles(observation_spec: dict[str, Spec], cameras: Sequence[str] = ()) -> ObservationRoles:
    """Assign an observation's arrays to their roles.

    Args:
        observation_spec: arrays of an observation.
        cameras: keys of the images in the network's order, "" for a missing one; optional if there is one image.

    Raises:
        CapabilityError: no image or no instruction among the observations.
        ConfigError: an unknown or repeated camera, or several images and no `cameras`.
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


def state_mask(observation_spec: dict[str, Spec], vectors: Sequence[str], ignored: Sequence[str]) -> Tensor:
    """Mask (S,) of the measured state, multiplied with it: 0 for ignored columns, 1 for the others.

    A cloned policy that observes the robot's velocity learns to continue its motion, whatever the images and the
    instruction say (causal confusion, de Haan et al. 2019), and cannot start from rest.

    Args:
        observation_spec: arrays of an observation.
        vectors: keys of the measured vectors.
        ignored: names of ignored columns.

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


def features_key(picture: str) -> str:
    """Observation key of an image's cached features."""
    return f"{picture}.features"


def check_square(observation_spec: dict[str, Spec], picture: str) -> int:
    """Side of a square image, in pixels.

    Raises:
        ConfigError: it is not square, or has not three colors.
    """
    height, width, colors = observation_spec[picture].shape
    if height != width or colors != 3:
        raise ConfigError(
            f"observation {picture!r} is {height} x {width} x {colors}: expected a square picture of three colours"
        )
    return height
