"""SmolVLA and pi0 with weights from elsewhere, on the observations of a sim."""

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
from robotrl.policies.vla.resize import fit
from robotrl.spec import Spec
from robotrl.transforms import TransformGroup

TEMPLATE = f"{TASK}\n"
"""The published prompt of both."""


@dataclass(frozen=True)
class PretrainedFlowCfg:
    """What a `SmolVlaPolicy` or a `Pi0Policy` is made from, weights apart."""

    net: SmolVlaCfg | Pi0Cfg
    tokenizer: str
    """The contents of `tokenizer.json`."""
    chunk: int
    """Actions that the network says at once."""
    horizon: int
    """H, of which so many are executed."""
    denoising_steps: int = 10
    """K, Euler steps from noise to action."""
    deploy_noise: float = 1.0
    """Deviation of the noise that chains begin with when deployed: 1 as in training, 0 always says the same."""
    cameras: tuple[str, ...] = ()
    """Keys of the pictures in the network's order, "" for one that is missing."""
    trained: Trained = "expert"
    """What learns: everything, or the action expert beside a frozen vision-language model."""


class PretrainedFlow(FlowVla):
    """What both share; `robotrl.importers` makes them from directories.

    Raises:
        ConfigError: observations, actions or a tokenizer that are not the network's.
    """

    Cfg: ClassVar[type] = PretrainedFlowCfg
    Net: ClassVar[type]
    """The network ..."""
    Sizes: ClassVar[type]
    """... and its config."""
    centred: ClassVar[bool]
    """Where black goes beside pictures that are not square."""

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
        """The config that `to_json` described."""
        rest: dict[str, Any] = {key: value for key, value in data.items() if key not in ("net", "cameras")}
        return PretrainedFlowCfg(cls.Sizes(**data["net"]), cameras=tuple(data["cameras"]), **rest)

    def padded(self) -> tuple[int, int]:
        """Widths of state and action in the network."""
        return self.cfg.net.state, self.cfg.net.action

    @property
    def chunk(self) -> int:
        """Actions that the network says at once; the first `horizon` are executed."""
        return self.cfg.chunk

    def look(self, picture: Tensor) -> Tensor:
        """A camera's pictures as the network sees them."""
        return fit(picture, self.net.image, self.centred)


class SmolVlaPolicy(PretrainedFlow):
    """lerobot's SmolVLA."""

    kind: ClassVar[str] = "smolvla"
    Net: ClassVar[type] = SmolVla
    Sizes: ClassVar[type] = SmolVlaCfg
    centred: ClassVar[bool] = False


class Pi0Policy(PretrainedFlow):
    """pi0, from lerobot's or openpi's directories."""

    kind: ClassVar[str] = "pi0"
    Net: ClassVar[type] = Pi0
    Sizes: ClassVar[type] = Pi0Cfg
    centred: ClassVar[bool] = True


def tokenize_with(tokenizer: str) -> Callable[[str], list[int]]:
    """Ids of a text from a `tokenizer.json`, with the special tokens that it puts around one.

    Raises:
        ConfigError: it is not readable.
    """
    loaded = read_tokenizer(tokenizer)
    return lambda text: loaded.encode(text).ids
