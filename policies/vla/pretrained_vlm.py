"""Autoregressive VLA policy on a vision-language model of `transformers`, on the observations of a sim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from robotrl.errors import ConfigError
from robotrl.policies.vla.networks.families import PICTURE
from robotrl.policies.vla.networks.vlm import Vlm, VlmCfg, family_of, read_config
from robotrl.policies.vla.pretrained import read_tokenizer
from robotrl.policies.vla.prompt import Prompt, Tokenize
from robotrl.policies.vla.token import Deployment, TokenPolicy
from robotrl.spec import Spec
from robotrl.spec.json_fields import settings_from_json
from robotrl.transforms import TransformGroup


@dataclass(frozen=True)
class VlmPolicyCfg:
    """Config of a `VlmPolicy`."""

    net: VlmCfg
    tokenizer: str
    """Contents of `tokenizer.json`."""
    horizon: int = 1
    """H, actions in a chunk; all are executed."""
    camera: str = ""
    """Key of the image; optional if there is one image."""
    template: str = ""
    """Prompt with {picture} and {task}; empty for the family's default."""
    temperature: float = 1.0
    deploy: Deployment = "likeliest"
    """Choice of tokens at deployment; see `TokenVlaCfg`."""
    label_bins: float = 0.0
    """See `TokenVlaCfg`."""


class VlmPolicy(TokenPolicy):
    """Policy on any model of `robotrl.policies.vla.networks.families`; `robotrl.importers.vlm` reads its directory.

    Raises:
        ConfigError: a prompt, images, states or a tokenizer that do not match the network.
    """

    kind: ClassVar[str] = "vlm"
    Cfg: ClassVar[type] = VlmPolicyCfg

    def __init__(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup, cfg: VlmPolicyCfg
    ) -> None:
        super().__init__(observation_spec, action_spec, transforms, cfg)
        self.check_state(cfg.net.state)
        config = read_config(cfg.net.config)
        family, picture = family_of(config), int(config.image_token_id)
        template = cfg.template or family.template
        self.prompt = Prompt(self.words, *asked(template, cfg.tokenizer, picture, family.specials))
        self.net = Vlm(cfg.net, self._before(template, picture))
        self._kind, self._graph = str(config.model_type), family.graph

    @property
    def no_graph(self) -> str:
        """Reason why it cannot be exported as a graph; empty if it can."""
        if self._graph:
            return ""
        return f"the eyes of {self._kind} take pictures apart by numbers that `transformers` reads while they see"

    def _before(self, template: str, picture: int) -> int:
        """Number of the prompt's tokens before the image.

        Raises:
            ConfigError: the image is not exactly once before the words, or the prompt uses ids of actions.
        """
        pieces = self.prompt.pieces
        if pieces.before.count(picture) != 1 or picture in pieces.after:
            raise ConfigError(f"prompt is {template!r}: expected {PICTURE} in it once, before the words")
        net = self.cfg.net
        said = [ids for words in (pieces.first, pieces.later) for ids in words.values()]
        used = [i for ids in (pieces.before, pieces.after, *said) for i in ids]
        if taken := [i for i in used if net.end - net.bins <= i < net.end]:
            raise ConfigError(
                f"prompt {template!r} uses id {taken[0]}: expected none of the last {net.bins} below {net.end}, which"
                " mean actions"
            )
        return pieces.before.index(picture)

    @classmethod
    def cfg_from_json(cls, data: dict[str, Any]) -> VlmPolicyCfg:
        """Build the config from the `cfg` entry of `to_json`."""
        net = dict(data["net"])
        # unchanged, with lists, as in its file
        config = net.pop("config")
        rest = {key: value for key, value in data.items() if key != "net"}
        return VlmPolicyCfg(VlmCfg(config=config, **settings_from_json(net)), **rest)


def asked(template: str, tokenizer: str, picture: int, specials: bool) -> tuple[str, Tokenize]:
    """Template with the tokenizer's image token inserted, and the tokenize function.

    Args:
        template: prompt with {picture} and {task}.
        tokenizer: contents of `tokenizer.json`.
        picture: id of the image token.
        specials: the tokenizer adds its own begin token.

    Raises:
        ConfigError: the tokenizer cannot be read, or has no such token.
    """
    loaded = read_tokenizer(tokenizer)
    shown = loaded.id_to_token(picture)
    if shown is None:
        raise ConfigError(f"tokenizer.json has no token {picture}: expected the config's image_token_id among its ids")

    def tokenize(text: str) -> list[int]:
        return loaded.encode(text, add_special_tokens=specials).ids

    return template.replace(PICTURE, shown), tokenize
