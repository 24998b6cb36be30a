"""Reward networks: one logit per observation, trained from scratch or on a policy's frozen features."""

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
"""Observations per batch of a network; features of many images need not fit into memory."""


@dataclass(frozen=True)
class RewardNetCfg:
    """Sizes of a reward network trained from scratch."""

    hidden: tuple[int, ...] = (128, 128)
    """Widths of the hidden layers."""
    image_channels: tuple[int, ...] = (16, 32, 32)
    """Output channels of the convolutions of each camera; each halves height and width."""
    image_features: int = 64
    """Number of features of each camera's image."""
    image_pool: Pool = "flatten"
    """See `robotrl.policies.networks.encoder.ImageEncoder`."""
    word_width: int = 16
    """Width of each word's embedding."""
    word_features: int = 32
    """Number of features of an instruction."""


class RewardNet(nn.Module, ABC):
    """Network with one logit per observation."""

    kind: ClassVar[str]
    """Name of the kind in stored files."""
    observation_spec: dict[str, Spec]
    """Specs of the arrays that it reads."""
    transforms: TransformGroup
    """Input transforms only: normalization of the vectors."""

    @abstractmethod
    def prepared(self, obs: Arrays) -> Arrays:
        """Compute the inputs (B, ...) of `logit` from raw observations (B, ...), by untrained parts."""
        ...

    @abstractmethod
    def logit(self, prepared: Arrays) -> Tensor:
        """Return the logits (B,) of prepared inputs."""
        ...

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the settings that it is built from, without weights."""
        ...

    def forward(self, obs: Arrays) -> Tensor:
        """Logits (B,) of raw observations (B, ...)."""
        return self.logit(self.prepared(obs))

    @torch.no_grad()
    def probability(self, obs: Arrays) -> Tensor:
        """Return probabilities (B,) as float64, because float32 rounds logits above 17 to 1."""
        return torch.sigmoid(in_parts(self, obs, AT_ONCE).double())


class ImageRewardNet(RewardNet):
    """Reward network with its own image, text and vector encoders, trained from scratch.

    Args:
        observation_spec: vectors, word indices, and images (h, w, channels) of bytes.
        transforms: input transforms only: normalization of the vectors.
        cfg: sizes.

    Raises:
        ConfigError: sizes that a network cannot have.
        ValueError: an array is neither a vector nor an image.
    """

    kind = "sight"

    def __init__(self, observation_spec: dict[str, Spec], transforms: TransformGroup, cfg: RewardNetCfg) -> None:
        super().__init__()
        self.observation_spec = dict(observation_spec)
        self.transforms = transforms
        self.cfg = cfg
        self._inputs = Transforms(transforms.inputs)
        pictures = {key: spec for key, spec in observation_spec.items() if is_picture(spec)}
        word_specs = {key: spec for key, spec in observation_spec.items() if spec.words}
        self._vectors = tuple(key for key in observation_spec if key not in pictures and key not in word_specs)
        self.encoders = nn.ModuleDict(
            {
                key: ImageEncoder(spec.shape, cfg.image_channels, cfg.image_features, cfg.image_pool)
                for key, spec in pictures.items()
            }
        )
        self.words = nn.ModuleDict(
            {
                key: WordEncoder(len(spec.words), spec.shape[0], cfg.word_width, cfg.word_features)
                for key, spec in word_specs.items()
            }
        )
        width = flat_width({key: observation_spec[key] for key in self._vectors})
        width += len(pictures) * cfg.image_features + len(word_specs) * cfg.word_features
        self.head = Mlp(width, cfg.hidden, 1)

    def prepared(self, obs: Arrays) -> Arrays:
        """Return the arrays that it reads, unchanged."""
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
    def from_json(cls, data: Mapping[str, Any]) -> ImageRewardNet:
        """Inverse of `to_json`, with fresh weights."""
        specs = {key: Spec.from_json(spec) for key, spec in data["observation_spec"].items()}
        return cls(specs, TransformGroup.from_json(data["transforms"]), RewardNetCfg(**settings_from_json(data["cfg"])))


class PolicyFeatureRewardNet(RewardNet):
    """Reward network on a policy's features of image, text and state: a frozen copy encodes, a head is trained.

    Args:
        policy: its weights are copied.
        hidden: widths of the head's hidden layers.

    Raises:
        CapabilityError: the policy has no observation encoder.
    """

    kind = "reader"

    def __init__(self, policy: Any, hidden: tuple[int, ...]) -> None:
        super().__init__()
        if not isinstance(policy, HasObservationEncoder):
            raise CapabilityError(
                f"policy {type(policy).__name__} lacks HasObservationEncoder: expected e.g. one of tabletop-bc-token"
            )
        # the capability does not declare the specs, which every policy has
        whole: Any = policy
        self.observation_spec: dict[str, Spec] = dict(whole.observation_spec)
        self.transforms: TransformGroup = whole.transforms
        self.hidden = hidden
        self._policy: dict[str, Any] = whole.to_json()
        self.reader: Any = policy.observation_encoder()
        # the scale of hidden states differs between policies
        self.norm = nn.LayerNorm(self.reader.width, elementwise_affine=False)
        self.head = Mlp(self.reader.width, hidden, 1)

    @torch.no_grad()
    def prepared(self, obs: Arrays) -> Arrays:
        """Return the normalized features of the frozen policy."""
        return {"read": self.norm(self.reader({key: obs[key] for key in self.observation_spec}))}

    def logit(self, prepared: Arrays) -> Tensor:
        """See `RewardNet.logit`."""
        return self.head(prepared["read"]).squeeze(1)

    def to_json(self) -> dict[str, Any]:
        """See `RewardNet.to_json`."""
        return {"kind": self.kind, "hidden": list(self.hidden), "policy": self._policy}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PolicyFeatureRewardNet:
        """Inverse of `to_json`, with fresh weights."""
        from robotrl.registry import POLICIES

        return cls(POLICIES.load(data["policy"]["kind"]).from_json(data["policy"]), tuple(data["hidden"]))


class WordEncoder(nn.Module):
    """Encoder of instructions of up to W words: word embeddings, then a linear layer over their concatenation.

    Args:
        words: size of the vocabulary; index 0 is padding, and becomes zeros.
        length: W.
        width: width of a word's embedding.
        features: number of features of the instruction.
    """

    def __init__(self, words: int, length: int, width: int, features: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width, padding_idx=0)
        self.layer = nn.Sequential(nn.Linear(length * width, features), nn.Tanh())

    def forward(self, numbers: Tensor) -> Tensor:
        """Return features (B, features) of word indices (B, W)."""
        return self.layer(self.table(numbers.long()).flatten(1))


def normalization(observation_spec: Mapping[str, Spec], obs: Mapping[str, NDArray[np.generic]]) -> TransformGroup:
    """Normalize vectors to mean 0 and std 1 over given observations (F, ...); images and words stay unchanged."""
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
    """Check that a sim gives the observations that a network was trained on.

    Args:
        what: name of the network, for errors.
        observation_spec: specs that it was trained on.
        sim: the sim whose observations it will get.

    Raises:
        ConfigError: an array is missing or has another spec or vocabulary.
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
