"""Low-rank adapters (LoRA, Hu et al. 2021, 2106.09685) for any policy, by `peft`.

An adapted policy is the same object with the same capabilities. Each adapted layer's weight W is frozen, and a product
of two narrow matrices, (alpha / rank) B A, is added to it. B starts at zero, so that the policy starts as its base,
exactly. Learners see a policy with few trainable parameters, and need not know why.

There is no dropout: rollouts and updates must compute the same, or the first ratio would not be 1.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from robotrl.config import ALL_LAYERS, LoraCfg
from robotrl.errors import ConfigError, DataError, unknown
from robotrl.peft.bf16_linear import to_bf16_linear, to_float32_linear
from robotrl.peft.frozen import freeze, thaw
from robotrl.spec.json_fields import settings_from_json
from robotrl.utils.installation import install_line

ADAPTER = "default"
"""Name of a layer's only adapter in `peft`."""


@dataclass(frozen=True)
class Adaptation:
    """Description of a policy's adapters, sufficient to adapt its base again in the same way."""

    rank: int
    alpha: float
    layers: tuple[str, ...]
    """Names of the layers that have adapters."""
    heads: tuple[str, ...]
    """Names of the fully trained parameters."""
    base_sha256: str
    """SHA-256 of the base policy's weights."""
    halved: tuple[str, ...] = ()
    """Names of the frozen layers with bfloat16 weights."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Adaptation:
        """Inverse of `to_json`."""
        return cls(**settings_from_json(data))


def adaptation_of(policy: Any) -> Adaptation | None:
    """Return the description of a policy's adapters; None without adapters."""
    return getattr(policy, "adaptation", None)


def adapt(policy: nn.Module, cfg: LoraCfg, run: Callable[[], object]) -> None:
    """Insert new adapters into a policy, in place, and freeze all other parameters except the heads.

    Args:
        policy: not adapted yet.
        cfg: settings, `rank` above 0.
        run: function that lets the policy act once. Only layers called then can be adapted: the adapter of a layer
            whose weight is used directly, such as the head of a restricted vocabulary, would have no effect.

    Raises:
        ConfigError: a target or head that the policy does not have, or `peft` is not installed.
    """
    where = places(policy, cfg, run)
    insert(policy, Adaptation(cfg.rank, cfg.alpha, where.layers, where.heads, weights_sha256(policy), where.halved))


class AdaptedLayers(NamedTuple):
    """Layers and parameters that LoRA settings select."""

    layers: tuple[str, ...]
    """Names of the layers that get adapters."""
    heads: tuple[str, ...]
    """Names of the fully trained parameters."""
    halved: tuple[str, ...]
    """Names of the frozen layers to convert to bfloat16."""


def places(policy: nn.Module, cfg: LoraCfg, run: Callable[[], object]) -> AdaptedLayers:
    """Return the layers and parameters that the settings select; see `adapt`."""
    parameters = [name for name, _ in policy.named_parameters()]
    heads = tuple(_chosen("lora.heads", cfg.heads, parameters)) if cfg.heads else ()
    frozen = [name for name in called_layers(policy, run) if f"{name}.weight" not in heads]
    called = [name for name in frozen if policy.get_submodule(name).weight.requires_grad]
    halved = _alone(policy, frozen) if cfg.bf16_base else ()
    return AdaptedLayers(tuple(_chosen("lora.targets", cfg.targets, called)), heads, halved)


def attach(policy: nn.Module, adaptation: Adaptation) -> None:
    """Insert new adapters as described, in place.

    Args:
        policy: policy with the weights of the base.
        adaptation: the description.

    Raises:
        ConfigError: `peft` is not installed.
        DataError: the policy is another base than the one that was adapted.
    """
    found = weights_sha256(policy)
    if found != adaptation.base_sha256:
        raise DataError(
            f"the base policy's weights have SHA-256 {found[:12]}: expected {adaptation.base_sha256[:12]}, those that"
            " the adapter was trained on"
        )
    insert(policy, adaptation)


def merged(policy: Any) -> Any:
    """Merge adapters into the weights: a policy with the same outputs up to rounding.

    Weights in bfloat16 are converted to float32, with their rounding.

    Args:
        policy: any policy.

    Returns:
        A copy that shares no weight with it; the policy itself if it has no adapters.
    """
    adaptation = adaptation_of(policy)
    if adaptation is None:
        return policy
    out = copy.deepcopy(policy)
    with torch.no_grad():
        for name in adaptation.layers:
            layer: Any = out.get_submodule(name)
            out.set_submodule(name, layer.get_base_layer())
            to_float32_linear(out, {name} & {*adaptation.halved})
            linear: Any = out.get_submodule(name)
            weight = linear.weight + layer.get_delta_weight(ADAPTER).to(linear.weight.dtype)
            linear.weight = nn.Parameter(weight, linear.weight.learns)
        to_float32_linear(out, {*adaptation.halved} - {*adaptation.layers})
    thaw(out)
    for name in ("adaptation", "peft_config"):
        del vars(out)[name]
    return out


def called_layers(module: nn.Module, run: Callable[[], object]) -> list[str]:
    """Return the names of the linear layers called during `run`, in the network's order."""
    called: set[nn.Module] = set()

    def note(layer: nn.Module, *rest: object) -> None:
        del rest
        called.add(layer)

    # subclasses of nn.Linear mark layers whose weights are used directly
    linear = {name: layer for name, layer in module.named_modules() if type(layer) is nn.Linear}
    hooks = [layer.register_forward_hook(note) for layer in linear.values()]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return [name for name, layer in linear.items() if layer in called]


def weights_sha256(module: nn.Module) -> str:
    """Hash of a network's parameters: names, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for name, weight in sorted(module.named_parameters()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
        digest.update(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def insert(policy: nn.Module, adaptation: Adaptation) -> None:
    """Insert new adapters as described, in place, without a check of the base; see `attach`.

    Raises:
        ConfigError: `peft` is not installed.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"lora.rank is {adaptation.rank} and needs the module {error.name!r}: {install_line('vla')}"
        ) from error
    names = "|".join(re.escape(name) for name in adaptation.layers)
    config: Any = LoraConfig(r=adaptation.rank, lora_alpha=adaptation.alpha, target_modules=names)  # pyright: ignore[reportArgumentType]
    # before `peft`, which freezes everything but adapters, so that `learns` is still known
    freeze(policy, adaptation.heads)
    inject_adapter_in_model(config, policy, ADAPTER)
    for name in adaptation.heads:
        policy.get_parameter(name).requires_grad_(True)
    # after `peft`, which gives adapters the dtype of their base
    to_bf16_linear(policy, (f"{name}.base_layer" if name in adaptation.layers else name for name in adaptation.halved))
    vars(policy)["adaptation"] = adaptation


def _chosen(field: str, names: tuple[str, ...], paths: list[str]) -> list[str]:
    """Return the dotted paths that contain one of the names, as one or several consecutive parts.

    Raises:
        ConfigError: a name that is in no path.
    """
    for name in names:
        if name != ALL_LAYERS and not any(_stands_in(name, path) for path in paths):
            parts = {part for path in paths for part in path.split(".") if not part.isdigit()}
            raise unknown(field, name, parts)
    return [path for path in paths if any(name == ALL_LAYERS or _stands_in(name, path) for name in names)]


def _alone(policy: nn.Module, names: list[str]) -> tuple[str, ...]:
    """Return the layers with unshared weights, because shared ones are used outside their layer."""
    owners = Counter(id(p) for part in policy.modules() for p in part.parameters(recurse=False))
    return tuple(name for name in names if owners[id(policy.get_submodule(name).weight)] == 1)


def _stands_in(name: str, path: str) -> bool:
    return f".{name}." in f".{path}."
