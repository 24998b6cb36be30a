"""Policy with OpenVLA's pretrained network, on the observations of a sim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tokenizers import Tokenizer

from robotrl.errors import ConfigError
from robotrl.policies.vla.networks.openvla import OpenVla, OpenVlaCfg, TextCfg
from robotrl.policies.vla.networks.vision import TowerCfg
from robotrl.policies.vla.prompt import TASK, Prompt, unread
from robotrl.policies.vla.token import Deployment, TokenPolicy
from robotrl.spec import Spec
from robotrl.spec.json_fields import settings_from_json
from robotrl.transforms import TransformGroup

TEMPLATE = f"In: What action should the robot take to {TASK}?\nOut:"
"""The published prompt."""
BLANK = "\u2581"
"""The token of a space; a published prompt ends with it."""
BEGINNING, UNKNOWN = "<s>", "<unk>"
"""Llama's begin-of-text and unknown tokens."""


@dataclass(frozen=True)
class OpenVlaPolicyCfg:
    """Config of an `OpenVlaPolicy`."""

    net: OpenVlaCfg
    tokenizer: str
    """Contents of `tokenizer.json`."""
    horizon: int = 1
    """H, actions in a chunk; all are executed."""
    camera: str = ""
    """Key of the image; optional if there is one image."""
    template: str = TEMPLATE
    temperature: float = 1.0
    deploy: Deployment = "likeliest"
    """Choice of tokens at deployment; see `TokenVlaCfg`."""
    label_bins: float = 0.0
    """See `TokenVlaCfg`."""


class OpenVlaPolicy(TokenPolicy):
    """Policy with OpenVLA's published network; `robotrl.importers.openvla.directory` loads one from a directory.

    Raises:
        ConfigError: images, states or a tokenizer that do not match the network.
    """

    kind: ClassVar[str] = "openvla"
    Cfg: ClassVar[type] = OpenVlaPolicyCfg

    def __init__(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup, cfg: OpenVlaPolicyCfg
    ) -> None:
        super().__init__(observation_spec, action_spec, transforms, cfg)
        wanted = cfg.net.towers[0].image
        if self.pixels != wanted:
            raise ConfigError(
                f"observation {self._picture!r} has {self.pixels} pixels a side: expected {wanted}, which the"
                f" towers were trained on (sim option image_size={wanted})"
            )
        self.check_state(cfg.net.state)
        self.prompt = Prompt(self.words, cfg.template, tokenize_with(cfg.tokenizer))
        wrong = unread(self.prompt.pieces, read_tokenizer(cfg.tokenizer).token_to_id(UNKNOWN))
        if wrong is not None:
            raise ConfigError(f"tokenizer.json {wrong}")
        self.net = OpenVla(cfg.net)

    @classmethod
    def cfg_from_json(cls, data: dict[str, Any]) -> OpenVlaPolicyCfg:
        """Build the config from the `cfg` entry of `to_json`."""
        net = dict(data["net"])
        first, second = (TowerCfg(**settings_from_json(tower)) for tower in net.pop("towers"))
        text = TextCfg(**net.pop("text"))
        rest = {key: value for key, value in data.items() if key != "net"}
        return OpenVlaPolicyCfg(OpenVlaCfg((first, second), text, **net), **rest)


def tokenize_with(tokenizer: str) -> Any:
    """Tokenize function from the contents of a `tokenizer.json`; ids start with begin-of-text and end with the blank.

    Raises:
        ConfigError: it is not readable, has no blank token, or adds no begin-of-text token.
    """
    loaded = read_tokenizer(tokenizer)
    blank = loaded.token_to_id(BLANK)
    if blank is None:
        raise ConfigError(f"tokenizer.json has no token {BLANK!r}: expected a tokenizer of Llama's kind")
    beginning = loaded.token_to_id(BEGINNING)
    if beginning is None or loaded.encode("a").ids[:1] != [beginning]:
        raise ConfigError(
            f"tokenizer.json puts no {BEGINNING!r} at the front of a text: expected a tokenizer of Llama's kind, whose"
            " post_processor does"
        )

    def tokenize(text: str) -> list[int]:
        ids = loaded.encode(text).ids
        return ids if ids and ids[-1] == blank else [*ids, blank]

    return tokenize


def read_tokenizer(text: str) -> Tokenizer:
    """Build a tokenizer from the contents of its `tokenizer.json`.

    Raises:
        ConfigError: they cannot be read.
    """
    try:
        return Tokenizer.from_str(text)
    # the library is Rust, whose errors arrive as bare exceptions
    except Exception as error:
        raise ConfigError(f"tokenizer.json cannot be read: {error}") from error
