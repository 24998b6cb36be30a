"""A vision-language model of `transformers` that says actions, on the observations of a sim."""

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
    """What a `VlmPolicy` is made from, weights apart."""

    net: VlmCfg
    tokenizer: str
    """The contents of `tokenizer.json`."""
    horizon: int = 1
    """H, actions in a chunk; all are executed."""
    camera: str = ""
    """Key of the picture; may be left out where there is one."""
    template: str = ""
    """The prompt around {picture} and {task}; that of the family if left out."""
    temperature: float = 1.0
    deploy: Deployment = "likeliest"
    """What is said when deployed; see `TokenVlaCfg`."""
    label_bins: float = 0.0
    """See `TokenVlaCfg`."""


class VlmPolicy(TokenPolicy):
    """Any model of `robotrl.policies.vla.networks.families`; `robotrl.importers.vlm` reads its directory.

    Raises:
        ConfigError: a prompt, pictures, states or a tokenizer that are not the network's.
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
        """Why it cannot leave as a graph; empty where it can."""
        if self._graph:
            return ""
        return f"the eyes of {self._kind} take pictures apart by numbers that `transformers` reads while they see"

    def _before(self, template: str, picture: int) -> int:
        """Tokens of the prompt before the picture.

        Raises:
            ConfigError: the picture does not stand before the words, once; or the prompt uses ids that mean actions.
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
        """The config that `to_json` described."""
        net = dict(data["net"])
        # as it stands in its file, lists and all
        config = net.pop("config")
        rest = {key: value for key, value in data.items() if key != "net"}
        return VlmPolicyCfg(VlmCfg(config=config, **settings_from_json(net)), **rest)


def asked(template: str, tokenizer: str, picture: int, specials: bool) -> tuple[str, Tokenize]:
    """A template with the tokenizer's own text for a picture in it, and what makes ids of such a text.

    Args:
        template: around {picture} and {task}.
        tokenizer: the contents of `tokenizer.json`.
        picture: id of the token that stands for a picture.
        specials: whether the tokenizer adds its own beginning.

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
