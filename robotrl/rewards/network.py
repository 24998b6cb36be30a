"""Small networks that say one number of an observation: trained from nothing, or on what a policy makes of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from robotrl.errors import CapabilityError, ConfigError
from robotrl.policies.networks.encoder import ImageEncoder, Pool
from robotrl.policies.networks.mlp import Mlp, Transforms, flat_width
from robotrl.spec import Arrays, HasObservationEncoder, Spec, VecSim, is_picture, measured
from robotrl.spec.json_fields import settings_from_json
from robotrl.transforms import TransformGroup, normalize
from robotrl.utils.batched import in_parts

AT_ONCE = 256
"""Observations that a network is shown at once: features of many pictures need not fit in memory."""


@dataclass(frozen=True)
class RewardNetCfg:
    """Size of a network that is trained from nothing."""

    hidden: tuple[int, ...] = (128, 128)
    """Widths of the hidden layers."""
    image_channels: tuple[int, ...] = (16, 32, 32)
    """Of the convolutions of each camera; each halves height and width."""
    image_features: int = 64
    """Numbers that each camera's picture becomes."""
    image_pool: Pool = "flatten"
    """See `robotrl.policies.networks.encoder.ImageEncoder`."""
    word_width: int = 16
    """Numbers that each word becomes."""
    word_features: int = 32
    """Numbers that an instruction becomes."""


class RewardNet(nn.Module, ABC):
    """One number, a logit, for each observation."""

    kind: ClassVar[str]
    """What a stored one is called."""
    observation_spec: dict[str, Spec]
    """The arrays that it looks at."""
    transforms: TransformGroup
    """Inputs alone: normalisation of the vectors."""

    @abstractmethod
    def prepared(self, obs: Arrays) -> Arrays:
        """(B, ...) what `logit` takes, of raw observations (B, ...): all that training does not change."""
        ...

    @abstractmethod
    def logit(self, prepared: Arrays) -> Tensor:
        """(B,) of what was prepared."""
        ...

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """What it is built from, weights apart."""
        ...

    def forward(self, obs: Arrays) -> Tensor:
        """Logits (B,) of raw observations (B, ...)."""
        return self.logit(self.prepared(obs))

    @torch.no_grad()
    def probability(self, obs: Arrays) -> Tensor:
        """(B,) float64 in [0, 1]; float32 would call everything beyond a logit of 17 certain."""
        return torch.sigmoid(in_parts(self, obs, AT_ONCE).double())


class SightNet(RewardNet):
    """Sees, reads and measures for itself, and is trained from nothing.

    Args:
        observation_spec: vectors, word numbers, and pictures (h, w, channels) of bytes.
        transforms: inputs alone: normalisation of the vectors.
        cfg: sizes.

    Raises:
        ConfigError: sizes that a network cannot have.
        ValueError: an array is neither a vector nor a picture.
    """

    kind = "sight"

    def __init__(self, observation_spec: dict[str, Spec], transforms: TransformGroup, cfg: RewardNetCfg) -> None:
        super().__init__()
        self.observation_spec = dict(observation_spec)
        self.transforms = transforms
        self.cfg = cfg
        self._inputs = Transforms(transforms.inputs)
        pictures = {key: spec for key, spec in observation_spec.items() if is_picture(spec)}
        told = {key: spec for key, spec in observation_spec.items() if spec.words}
        self._vectors = tuple(key for key in observation_spec if key not in pictures and key not in told)
        self.encoders = nn.ModuleDict(
            {
                key: ImageEncoder(spec.shape, cfg.image_channels, cfg.image_features, cfg.image_pool)
                for key, spec in pictures.items()
            }
        )
        self.words = nn.ModuleDict(
            {
                key: WordEncoder(len(spec.words), spec.shape[0], cfg.word_width, cfg.word_features)
                for key, spec in told.items()
            }
        )
        width = flat_width({key: observation_spec[key] for key in self._vectors})
        width += len(pictures) * cfg.image_features + len(told) * cfg.word_features
        self.head = Mlp(width, cfg.hidden, 1)

    def prepared(self, obs: Arrays) -> Arrays:
        """The arrays that it looks at, as they are."""
        return {key: obs[key] for key in self.observation_spec}

    def logit(self, prepared: Arrays) -> Tensor:
        """See `RewardNet.logit`."""
        arrays = self._inputs(prepared)
        vectors = [arrays[key].flatten(1) for key in self._vectors]
        features = [encoder(arrays[key]) for key, encoder in (*self.encoders.items(), *self.words.items())]
        return self.head(torch.cat([*vectors, *features], dim=1)).squeeze(1)

    def to_json(self) -> dict[str, Any]:
        """See `RewardNet.to_json`."""
        return {
            "kind": self.kind,
            "cfg": dict(vars(self.cfg)),
            "observation_spec": {key: spec.to_json() for key, spec in self.observation_spec.items()},
            "transforms": self.transforms.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SightNet:
        """Inverse of `to_json`, with fresh weights."""
        specs = {key: Spec.from_json(spec) for key, spec in data["observation_spec"].items()}
        return cls(specs, TransformGroup.from_json(data["transforms"]), RewardNetCfg(**settings_from_json(data["cfg"])))


class ReaderNet(RewardNet):
    """A head on what a policy makes of picture, words and state: a frozen copy reads, the head is trained.

    Args:
        policy: its weights are copied.
        hidden: widths of the head's hidden layers.

    Raises:
        CapabilityError: the policy cannot be read from.
    """

    kind = "reader"

    def __init__(self, policy: Any, hidden: tuple[int, ...]) -> None:
        super().__init__()
        if not isinstance(policy, HasObservationEncoder):
            raise CapabilityError(
                f"policy {type(policy).__name__} lacks HasObservationEncoder: expected e.g. one of tabletop-bc-token"
            )
        # the capability says nothing of specs, which every policy has
        whole: Any = policy
        self.observation_spec: dict[str, Spec] = dict(whole.observation_spec)
        self.transforms: TransformGroup = whole.transforms
        self.hidden = hidden
        self._policy: dict[str, Any] = whole.to_json()
        self.reader: Any = policy.reader()
        # hidden states have the scale that their policy gave them
        self.norm = nn.LayerNorm(self.reader.width, elementwise_affine=False)
        self.head = Mlp(self.reader.width, hidden, 1)

    @torch.no_grad()
    def prepared(self, obs: Arrays) -> Arrays:
        """What is read."""
        return {"read": self.norm(self.reader({key: obs[key] for key in self.observation_spec}))}

    def logit(self, prepared: Arrays) -> Tensor:
        """See `RewardNet.logit`."""
        return self.head(prepared["read"]).squeeze(1)

    def to_json(self) -> dict[str, Any]:
        """See `RewardNet.to_json`."""
        return {"kind": self.kind, "hidden": list(self.hidden), "policy": self._policy}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ReaderNet:
        """Inverse of `to_json`, with fresh weights."""
        from robotrl.registry import POLICIES

        return cls(POLICIES.load(data["policy"]["kind"]).from_json(data["policy"]), tuple(data["hidden"]))


class WordEncoder(nn.Module):
    """An instruction of up to W words: each word's own numbers, then a layer over them in their order.

    Args:
        words: in the vocabulary; number 0 stands for none, and becomes zeros.
        length: W.
        width: numbers that a word becomes.
        features: numbers that the instruction becomes.
    """

    def __init__(self, words: int, length: int, width: int, features: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width, padding_idx=0)
        self.layer = nn.Sequential(nn.Linear(length * width, features), nn.Tanh())

    def forward(self, numbers: Tensor) -> Tensor:
        """(B, features) of word numbers (B, W)."""
        return self.layer(self.table(numbers.long()).flatten(1))


def normalisation(observation_spec: Mapping[str, Spec], obs: Mapping[str, NDArray[np.generic]]) -> TransformGroup:
    """Vectors to zero mean and unit deviation over given observations (F, ...); pictures and words stay as they are."""
    inputs = [
        normalize(
            key,
            obs[key].mean(axis=0, dtype=np.float64).tolist(),
            obs[key].std(axis=0, dtype=np.float64).tolist(),
            floor=1e-3,
        )
        for key in measured(observation_spec)
    ]
    return TransformGroup(tuple(inputs))


def check_shown(what: str, observation_spec: Mapping[str, Spec], sim: VecSim) -> None:
    """Refuse a sim that does not show what a network was trained on.

    Args:
        what: the network, for errors.
        observation_spec: what it looks at.
        sim: whose observations it will be shown.

    Raises:
        ConfigError: an array is missing or other than it was, or says other words.
    """
    for key, spec in observation_spec.items():
        found = sim.observation_spec.get(key)
        if found is None or (found.shape, found.names) != (spec.shape, spec.names):
            has = "does not have" if found is None else f"has as {found.shape} of {', '.join(found.names)}"
            raise ConfigError(
                f"the {what} was trained on observation {key!r}, {spec.shape} of {', '.join(spec.names)}, which this"
                f" sim {has}"
            )
        for field in ("units", "dtype", "words"):
            before, now = getattr(spec, field), getattr(found, field)
            if before != now:
                raise ConfigError(
                    f"the {what} was trained on observation {key!r} of {field} {before}: this sim has {now}"
                )
