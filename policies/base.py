"""Base classes of the policies: specs, transforms, the deployed forward pass and JSON descriptions."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import asdict
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from robotrl.errors import CapabilityError, ConfigError
from robotrl.policies.networks.encoder import ImageEncoder, SetEncoder, mask_of
from robotrl.policies.networks.mlp import Transforms, flat_width
from robotrl.policies.networks.scene import SceneEncoder
from robotrl.spec import Spec, is_picture
from robotrl.spec.json_fields import settings_from_json
from robotrl.transforms import TransformGroup

ACTION = "action"
"""Key of the action in `TransformGroup.outputs`."""


class Deployed(NamedTuple):
    """Output of `deploy`, the forward pass that runs on the robot."""

    actions: Tensor
    """(B, H, A) in the sim's units, clipped to the action bounds."""
    normalized_action: Tensor
    """(B, H, A) normalised, before un-normalisation and clipping."""


class DeployedWithMemory(NamedTuple):
    """Output of `deploy_from`, one decision on the robot of a policy that carries a memory."""

    actions: Tensor
    """(B, H, A) in the sim's units, clipped to the action bounds."""
    normalized_action: Tensor
    """(B, H, A) normalised, before un-normalisation and clipping."""
    memory: Tensor
    """(B, M) memory to pass to the next decision."""


class SpecPolicy(nn.Module, ABC):
    """Base class of the policies: a network with its specs, transforms and config.

    Subclasses set `kind` and `Cfg`, build their network, and implement `deploy`.

    Args:
        observation_spec: arrays of an observation.
        action_spec: one action.
        transforms: inputs by observation key, outputs for `ACTION`.
        cfg: the subclass's config, which has a field `horizon`.

    Raises:
        CapabilityError: the policy does not support this kind of action (see `acts`).
    """

    changeable: ClassVar[tuple[str, ...]] = ()
    """Config fields that may be changed after training, since no weight depends on them."""
    kind: ClassVar[str]
    Cfg: ClassVar[type]
    deploy_mode: ClassVar[Literal["sample", "mean"]]
    acts: ClassVar[Literal["numbers", "choices"]] = "numbers"
    """Supported kind of action: continuous within bounds ("numbers") or discrete ("choices", see `Spec.choices`)."""

    def __init__(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup, cfg: Any
    ) -> None:
        super().__init__()
        self._check_action(action_spec)
        self.observation_spec = dict(observation_spec)
        self.action_spec = action_spec
        self.transforms = transforms
        self.cfg = cfg
        self.horizon: int = cfg.horizon
        self.control_dt_s: float | None = None
        """Seconds between two actions of the sim it was trained on; None until a learner sets it."""
        self.reward_scale: float | None = None
        """Current divisor of the learner's reward normalization; None without it."""
        self._inputs = Transforms([t for t in transforms.inputs if t.where == "graph"])
        self._outputs = Transforms([t for t in transforms.outputs if t.where == "graph"])

    def _check_action(self, action_spec: Spec) -> None:
        name, first = type(self).__name__, action_spec.names[0]
        if self.acts == "numbers" and action_spec.choices is not None:
            raise CapabilityError(
                f"policy {name} gives numbers within bounds, and action {first!r} is a choice of"
                f" {action_spec.choices[0]}: expected CategoricalPolicy (of gym-ppo: policy.kind auto)"
            )
        if self.acts == "choices" and action_spec.choices is None:
            raise CapabilityError(
                f"policy {name} chooses, and action {first!r} is a number from {action_spec.low[0]:g} to"
                f" {action_spec.high[0]:g}: expected GaussianPolicy or BetaPolicy (of gym-ppo: policy.kind auto)"
            )

    def set_transforms(self, transforms: TransformGroup) -> None:
        """Update the constants of the same transforms, e.g. running normalization statistics."""
        self._inputs.replace([t for t in transforms.inputs if t.where == "graph"])
        self._outputs.replace([t for t in transforms.outputs if t.where == "graph"])
        self.transforms = transforms

    @property
    def action_width(self) -> int:
        """A, the size of an action."""
        return self.action_spec.shape[0]

    @property
    def noise_shape(self) -> tuple[int, int] | None:
        """(H, A) of the noise that `deploy` takes, or None if it takes none."""
        return None

    def to_actions(self, normalized_action: Tensor) -> Tensor:
        """Convert normalised actions to the sim's units, clipped to the action bounds."""
        return self._outputs({ACTION: normalized_action})[ACTION]

    def check_given(self, obs: dict[str, Tensor]) -> None:
        """Check the observations passed to `act`; the base class accepts all of them.

        Args:
            obs: (B, ...) by key.
        """

    @abstractmethod
    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> Deployed:
        """Forward pass of the exported graph: raw observations (B, ...) and noise (B, H, A) to actions."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Description from which `from_json` builds the same policy again, without its weights."""
        return {
            "kind": self.kind,
            "cfg": asdict(self.cfg),
            "observation_spec": {key: spec.to_json() for key, spec in self.observation_spec.items()},
            "action_spec": self.action_spec.to_json(),
            "transforms": self.transforms.to_json(),
            "control_dt_s": self.control_dt_s,
            "reward_scale": self.reward_scale,
        }

    @classmethod
    def cfg_from_json(cls, data: dict[str, Any]) -> Any:
        """Build the config from the `cfg` entry of `to_json`."""
        return cls.Cfg(**settings_from_json(data))

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Build the policy from `to_json`, with fresh weights."""
        policy = cls(
            {key: Spec.from_json(spec) for key, spec in data["observation_spec"].items()},
            Spec.from_json(data["action_spec"]),
            TransformGroup.from_json(data["transforms"]),
            cls.cfg_from_json(data["cfg"]),
        )
        policy.control_dt_s = data["control_dt_s"]
        policy.reward_scale = data["reward_scale"]
        return policy


class EncoderPolicy(SpecPolicy):
    """A policy whose vectors and images are encoded into one vector of features.

    Args:
        observation_spec: arrays of an observation: vectors (D,), lists of vectors (K, D), which are flattened, and
            uint8 images (h, w, channels), for which `cfg` has the fields `image_channels`, `image_features`,
            `image_pool` and `image_norm` (see `ImageEncoder`). If its field `set_features` is above 0, a list with a
            mask (keys KEY and KEY_mask) is also encoded by a `SetEncoder`; if `set_attention` is above 0 as well, a
            `SceneEncoder` of so many rounds encodes all lists together, and lists with a mask are read by it alone.
        action_spec: one action.
        transforms: inputs by observation key, outputs for `ACTION`.
        cfg: the subclass's config.

    Raises:
        ConfigError: invalid network sizes.
        ValueError: an array of the observation is neither a vector nor an image.
    """

    def __init__(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup, cfg: Any
    ) -> None:
        super().__init__(observation_spec, action_spec, transforms, cfg)
        pictures = {key: spec for key, spec in observation_spec.items() if is_picture(spec)}
        lists = {key: spec.shape for key, spec in observation_spec.items() if len(spec.shape) == 2}
        sets = [key for key in lists if cfg.set_features and mask_of(key) in observation_spec]
        attends = bool(cfg.set_attention and sets)
        skipped = {*sets, *map(mask_of, sets)} if attends else set[str]()
        self._vectors = tuple(key for key in observation_spec if key not in pictures and key not in skipped)
        vectors = flat_width({key: observation_spec[key] for key in self._vectors})
        self.encoders = nn.ModuleDict(
            {
                key: ImageEncoder(spec.shape, cfg.image_channels, cfg.image_features, cfg.image_pool, cfg.image_norm)
                for key, spec in pictures.items()
            }
        )
        self.sets = nn.ModuleDict({} if attends else {key: SetEncoder(lists[key][1], cfg.set_features) for key in sets})
        self.scene: SceneEncoder | None = None
        self._lists = tuple(lists) if attends else ()
        self._masks = tuple(sets) if attends else ()
        if attends:
            if not self._vectors:
                raise ConfigError(
                    f"policy.set_attention is {cfg.set_attention}, and the observations are"
                    f" {', '.join(observation_spec)}: expected a vector among them, of which the query is made"
                )
            sizes = {key: (shape[0], shape[1]) for key, shape in lists.items()}
            self.scene = SceneEncoder(vectors, sizes, frozenset(sets), cfg.set_features, cfg.set_attention)
        widths = [cfg.image_features] * len(pictures) + [cfg.set_features] * (1 if attends else len(self.sets))
        self.features_width: int = vectors + sum(widths)
        """Width of the features of an observation."""

    def _encoder(self) -> EncoderParts:
        return EncoderParts(self._inputs, self._vectors, self.encoders, self.sets, self.scene, self._lists, self._masks)


class NetworkPolicy(EncoderPolicy):
    """A policy whose context is the features of one observation.

    Subclasses build their network from `self.context_width`. See `EncoderPolicy` for the arguments.
    """

    def __init__(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup, cfg: Any
    ) -> None:
        super().__init__(observation_spec, action_spec, transforms, cfg)
        self.context_width: int = self.features_width
        """D, the width of the context that `encode` returns."""

    def encode(self, obs: dict[str, Tensor]) -> Tensor:
        """Context (B, D): normalised vectors in the spec's order, then image features, then set features.

        Set and scene encoders read the rows without normalization, so that a row means the same at each index.
        """
        return self._encoder().encode(obs)

    def copy_encoder(self) -> ObservationEncoder:
        """A trainable copy of the encoder, with its present weights, as a network of its own."""
        return ObservationEncoder(copy.deepcopy(self._encoder()))


class EncoderParts(NamedTuple):
    """Networks of an observation encoder, and the keys that each of them reads."""

    inputs: Transforms
    vectors: tuple[str, ...]
    images: nn.ModuleDict
    sets: nn.ModuleDict
    scene: SceneEncoder | None
    lists: tuple[str, ...]
    """Lists that the scene encoder reads."""
    masks: tuple[str, ...]
    """Those of them that have a mask."""

    def encode(self, obs: dict[str, Tensor]) -> Tensor:
        """See `NetworkPolicy.encode`."""
        normalized = self.inputs(obs)
        vectors = [normalized[key].flatten(1) for key in self.vectors]
        features = [encoder(normalized[key]) for key, encoder in self.images.items()]
        features += [encoder(obs[key], obs[mask_of(key)]) for key, encoder in self.sets.items()]
        if self.scene is not None:
            features.append(self.scene(torch.cat(vectors, dim=-1), *self.rows(obs)))
        return torch.cat([*vectors, *features], dim=-1)

    def rows(self, obs: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Lists and masks that the scene encoder reads."""
        return {key: obs[key] for key in self.lists}, {key: obs[mask_of(key)] for key in self.masks}


class ObservationEncoder(nn.Module):
    """Observation encoder of a `NetworkPolicy` as a network of its own; made by `NetworkPolicy.copy_encoder`.

    Args:
        parts: its networks.
    """

    def __init__(self, parts: EncoderParts) -> None:
        super().__init__()
        self.inputs, self.images, self.sets, self.scene = parts.inputs, parts.images, parts.sets, parts.scene
        self._keys = parts.vectors, parts.lists, parts.masks

    @property
    def scene_width(self) -> int | None:
        """Width of `scene_tokens`; None without a scene encoder."""
        return None if self.scene is None else self.scene.always.shape[-1]

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """Context (B, D) as the policy's `encode`."""
        return self._parts().encode(obs)

    def scene_tokens(self, obs: dict[str, Tensor]) -> tuple[Tensor, Tensor] | None:
        """See `SceneEncoder.tokens`; None without a scene encoder."""
        return None if self.scene is None else self.scene.tokens(*self._parts().rows(obs))

    def _parts(self) -> EncoderParts:
        vectors, lists, masks = self._keys
        return EncoderParts(self.inputs, vectors, self.images, self.sets, self.scene, lists, masks)
