"""Policies with SmolVLA's and pi0's pretrained networks, on the observations of a sim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from robotrl.errors import ConfigError, out_of_range
from robotrl.policies.vla.flow import FlowVla, Trained
from robotrl.policies.vla.networks.pi0 import Pi0, Pi0Cfg
from robotrl.policies.vla.networks.smolvla import SmolVla, SmolVlaCfg
from robotrl.policies.vla.pretrained import read_tokenizer
from robotrl.policies.vla.prompt import TASK, Prompt
from robotrl.policies.vla.resize import resize_with_pad
from robotrl.spec import Spec
from robotrl.transforms import TransformGroup

TEMPLATE = f"{TASK}\n"
"""The published prompt of both."""


@dataclass(frozen=True)
class PretrainedFlowCfg:
    """Config of a `SmolVlaPolicy` or a `Pi0Policy`."""

    net: SmolVlaCfg | Pi0Cfg
    tokenizer: str
    """Contents of `tokenizer.json`."""
    chunk: int
    """Actions in the network's chunk."""
    horizon: int
    """H, number of the chunk's actions that are executed."""
    denoising_steps: int = 10
    """K, Euler steps from noise to action."""
    deploy_noise: float = 1.0
    """Std of the initial noise at deployment: 1 as in training, 0 for deterministic actions."""
    cameras: tuple[str, ...] = ()
    """Keys of the images in the network's order, "" for a missing one."""
    trained: Trained = "expert"
    """Trained parameters: "all", or the action "expert" with a frozen vision-language model."""


class PretrainedFlow(FlowVla):
    """Base class of pretrained flow VLAs; `robotrl.importers` loads them from directories.

    Raises:
        ConfigError: observations, actions or a tokenizer that do not match the network.
    """

    Cfg: ClassVar[type] = PretrainedFlowCfg
    Net: ClassVar[type]
    """Class of the network."""
    Sizes: ClassVar[type]
    """Class of the network's config."""
    centered: ClassVar[bool]
    """Padding of images that are not square: on both sides, or on the left and the top."""

    def __init__(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup, cfg: PretrainedFlowCfg
    ) -> None:
        super().__init__(observation_spec, action_spec, transforms, cfg)
        if not 1 <= cfg.horizon <= cfg.chunk:
            raise out_of_range("horizon", cfg.horizon, f"1 to {cfg.chunk}, the actions that the network says at once")
        for name, found, most in (
            ("state", self.state_width, cfg.net.state),
            ("action", self.action_width, cfg.net.action),
        ):
            if found > most:
                raise ConfigError(f"{name} has {found} numbers: expected {most} at most, the network's")
        self.prompt = Prompt(self.words, TEMPLATE, tokenize_with(cfg.tokenizer))
        self.finish(self.Net(cfg.net))

    @classmethod
    def cfg_from_json(cls, data: dict[str, Any]) -> PretrainedFlowCfg:
        """Build the config from the `cfg` entry of `to_json`."""
        rest: dict[str, Any] = {key: value for key, value in data.items() if key not in ("net", "cameras")}
        return PretrainedFlowCfg(cls.Sizes(**data["net"]), cameras=tuple(data["cameras"]), **rest)

    def padded(self) -> tuple[int, int]:
        """Widths of state and action in the network, padding included."""
        return self.cfg.net.state, self.cfg.net.action

    @property
    def chunk(self) -> int:
        """Actions in the network's chunk; the first `horizon` are executed."""
        return self.cfg.chunk

    def resize(self, picture: Tensor) -> Tensor:
        """Resize and pad a camera's images to the network's size."""
        return resize_with_pad(picture, self.net.image, self.centered)


class SmolVlaPolicy(PretrainedFlow):
    """Policy with lerobot's pretrained SmolVLA."""

    kind: ClassVar[str] = "smolvla"
    Net: ClassVar[type] = SmolVla
    Sizes: ClassVar[type] = SmolVlaCfg
    centered: ClassVar[bool] = False


class Pi0Policy(PretrainedFlow):
    """Policy with pretrained pi0, from lerobot's or openpi's directories."""

    kind: ClassVar[str] = "pi0"
    Net: ClassVar[type] = Pi0
    Sizes: ClassVar[type] = Pi0Cfg
    centered: ClassVar[bool] = True


def tokenize_with(tokenizer: str) -> Callable[[str], list[int]]:
    """Tokenize function from the contents of a `tokenizer.json`, with its special tokens.

    Raises:
        ConfigError: it is not readable.
    """
    loaded = read_tokenizer(tokenizer)
    return lambda text: loaded.encode(text).ids
