"""Import of policies that Stable-Baselines3 trained: PPO, A2C, SAC, TD3 and DDPG with an MLP.

A model file is a zip with JSON, which also holds pickles, and tensors. Only the JSON's plain fields and the tensors of
the policy are read; nothing is unpickled.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from robotrl.errors import ConfigError, DataError, short
from robotrl.importers.files import check_weights, unreadable
from robotrl.policies.base import ACTION
from robotrl.policies.categorical import CategoricalCfg
from robotrl.policies.gaussian import GaussianCfg
from robotrl.policies.networks.mlp import Activation
from robotrl.policies.squashed import LOG_STD_RANGE, SquashedCfg
from robotrl.run.policy_checkpoint import load_weights
from robotrl.spec import Spec
from robotrl.transforms import Affine, Clip, Transform, TransformGroup, bounds_to_unit, inverse
from robotrl.utils.files import LARGEST, dump_json, open_plain, read_plain

DATA, WEIGHTS = "data", "policy.pth"
SCHEMA_VERSION = 1
"""Of the file of statistics."""
ACTIVATIONS: dict[str, Activation] = {"Tanh": "tanh", "ReLU": "relu", "SiLU": "silu", "ELU": "elu"}
CLASS = re.compile(r"<class '(?:[\w.]+\.)?(\w+)'>")
"""A class in the JSON, as text."""
HARMLESS = (
    *("net_arch", "activation_fn", "ortho_init", "log_std_init", "optimizer_class", "optimizer_kwargs", "n_critics"),
    *("share_features_extractor", "normalize_images", "full_std", "use_expln", "clip_mean", "use_sde", "squash_output"),
    *(":type:", ":serialized:"),
)
"""Fields of `policy_kwargs` that need no refusal: training alone, seen in the shapes of the weights, or read here."""
BOUND_TOLERANCE = 1e-5
"""Bounds are stored as text of eight digits."""


class StoredActor(NamedTuple):
    """Network of a policy."""

    kind: str
    """"gaussian" or "categorical" (PPO, A2C), "squashed" (SAC), "deterministic" (TD3, DDPG)."""
    layers: list[tuple[Tensor, Tensor]]
    """Weight and bias of each linear layer; of "squashed" the last one gives means, then log-stds."""
    log_std: Tensor | None
    """(A,) of "gaussian"."""
    activation: str
    """Class name of the default activation."""


def load_sb3(path: str | Path, observation_spec: Mapping[str, Spec], action_spec: Spec, stats: str = "") -> Any:
    """Load a model file as one of our policies, whose actions are those of `model.predict(deterministic=True)`.

    Args:
        path: the zip file of `model.save`.
        observation_spec: arrays that the policy reads; several are joined in the order of their names, as
            Stable-Baselines3 has them.
        action_spec: one action of the sim.
        stats: file of `write_statistics` with the statistics of a `VecNormalize`; "" for none.

    Returns:
        A `GaussianPolicy` (PPO, A2C), `CategoricalPolicy` (the same with choices), or `SquashedPolicy` (SAC; TD3 and
        DDPG with the smallest standard deviation).

    Raises:
        DataError: the file cannot be read, or its architecture, space or statistics do not fit; the field is named.
        ConfigError: the sim has an observation that is no array of numbers.
    """
    path = Path(path)
    data, weights = _read(path)
    actor = _actor_of(path, weights)
    activation = _activation(path, data, actor)
    _check_space(path, data, action_spec)
    specs = {key: observation_spec[key] for key in sorted(observation_spec)}
    for key, spec in specs.items():
        if not spec.dtype.startswith("float"):
            raise ConfigError(
                f"observation {key!r} is {spec.dtype}: expected arrays of numbers alone; policies with a CNN or words"
                " are not read"
            )
    if not stats and data.get("_last_original_obs") is not None:
        warnings.warn(
            f"{path} was trained through a VecNormalize, and no statistics are given: if it normalized observations,"
            " the actions are wrong; expected --stats FILE, written by robotrl.importers.sb3.write_statistics",
            stacklevel=2,
        )
    _check_widths(path, actor, sum(math.prod(spec.shape) for spec in specs.values()), action_spec)
    hidden = tuple(len(bias) for _, bias in actor.layers[:-1])
    inputs = _inputs(Path(stats), specs) if stats else ()
    if actor.kind == "categorical":
        cfg: Any = CategoricalCfg(horizon=1, hidden=hidden, activation=activation)
        outputs: tuple[Transform, ...] = ()
    else:
        make = GaussianCfg if actor.kind == "gaussian" else SquashedCfg
        cfg = make(horizon=1, hidden=hidden, activation=activation)
        outputs = (
            inverse(bounds_to_unit(ACTION, action_spec.low, action_spec.high)),
            Clip(ACTION, action_spec.low, action_spec.high),
        )
    policy = cfg.build(specs, action_spec, TransformGroup(inputs, outputs))
    load_weights(policy, _converted(actor, action_spec), f"{path}: the policy")
    return policy


def write_statistics(env: Any, path: str | Path) -> None:
    """Write the statistics of observations of a Stable-Baselines3 `VecNormalize` as JSON, for `robotrl import sb3`.

    Args:
        env: the `VecNormalize`, e.g. `VecNormalize.load("vecnormalize.pkl", env)`.
        path: the file.

    Raises:
        ConfigError: it is no `VecNormalize`, or does not normalize observations.
    """
    if not hasattr(env, "obs_rms") or not env.norm_obs:
        raise ConfigError(f"env is a {type(env).__name__}: expected a VecNormalize with norm_obs=True")
    found = env.obs_rms if isinstance(env.obs_rms, dict) else {"": env.obs_rms}
    named = {key: {"mean": rms.mean.tolist(), "var": rms.var.tolist()} for key, rms in found.items()}
    content = {"schema_version": SCHEMA_VERSION, "clip": float(env.clip_obs), "epsilon": float(env.epsilon)}
    Path(path).write_bytes(dump_json({**content, "observations": named}))


# the file


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The JSON and the policy's tensors of a model file."""
    try:
        with open_plain(path, str(path)) as file, zipfile.ZipFile(file) as archive:
            data = json.loads(_member(path, archive, DATA))
            stored = _member(path, archive, WEIGHTS)
    except (OSError, zipfile.BadZipFile, ValueError, RecursionError, EOFError) as error:
        raise unreadable(path, "is no model file of Stable-Baselines3", error) from error
    try:
        weights: Any = torch.load(io.BytesIO(stored), map_location="cpu", weights_only=True)
    # truncated files, old formats and pickles of other objects raise different errors
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        reason = short(str(error).splitlines()[0]) if str(error) else type(error).__name__
        raise DataError(f"{path}: {WEIGHTS} cannot be read without running its code: {reason}") from error
    if not isinstance(data, dict):
        raise DataError(f"{path}: {DATA} holds {type(data).__name__}: expected an object")
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise DataError(f"{path}: {WEIGHTS} holds {type(weights).__name__}: expected a table of tensors")
    weights = {str(name): value.float() for name, value in weights.items()}
    check_weights(path, weights)
    return data, weights


def _member(path: Path, archive: zipfile.ZipFile, name: str) -> bytes:
    if name not in archive.namelist():
        raise DataError(f"{path} lacks {name!r}: expected a model file of Stable-Baselines3, of model.save")
    size = archive.getinfo(name).file_size
    if size > LARGEST:
        raise DataError(f"{path}: {name} has {size} bytes: expected {LARGEST} at most")
    return archive.read(name)


# the architecture


class _Weights:
    """Tensors by name, which are taken until none is left."""

    def __init__(self, path: Path, weights: Mapping[str, Tensor]) -> None:
        self.path, self._left = path, dict(weights)

    def drop(self, *prefixes: str) -> None:
        """Leave out critics and targets."""
        self._left = {name: value for name, value in self._left.items() if not name.startswith(prefixes)}

    def take(self, name: str, axes: int) -> Tensor:
        value = self._left.pop(name, None)
        if value is None:
            raise DataError(
                f"{self.path} lacks the weight {name!r}: expected an MlpPolicy of PPO, A2C, SAC, TD3 or DDPG"
            )
        if value.ndim != axes:
            raise DataError(f"{self.path}: weight {name!r} has shape {tuple(value.shape)}: expected {axes} axes")
        return value

    def linear(self, prefix: str) -> tuple[Tensor, Tensor]:
        return self.take(f"{prefix}.weight", 2), self.take(f"{prefix}.bias", 1)

    def stack(self, prefix: str) -> list[tuple[Tensor, Tensor]]:
        """Linear layers with an activation between them: their numbers are even."""
        found: list[tuple[Tensor, Tensor]] = []
        while f"{prefix}.{2 * len(found)}.weight" in self._left:
            found.append(self.linear(f"{prefix}.{2 * len(found)}"))
        return found

    def check_empty(self) -> None:
        for name in self._left:
            raise DataError(
                f"{self.path}: weight {name!r} is of an architecture that is not read: expected an MlpPolicy, linear"
                " layers with an activation between them"
            )


def _actor_of(path: Path, weights: Mapping[str, Tensor]) -> StoredActor:
    """The actor's network; its algorithm follows from the names of the weights."""
    left = _Weights(path, weights)
    if "actor.mu.weight" in weights:
        left.drop("critic.", "critic_target.")
        hidden = left.stack("actor.latent_pi")
        mean, log_std = left.linear("actor.mu"), left.linear("actor.log_std")
        last = (torch.cat([mean[0], log_std[0]]), torch.cat([mean[1], log_std[1]]))
        actor = StoredActor("squashed", [*hidden, last], None, "ReLU")
    elif "actor.mu.0.weight" in weights and "actor.log_std" not in weights:
        left.drop("critic.", "critic_target.", "actor_target.")
        actor = StoredActor("deterministic", left.stack("actor.mu"), None, "ReLU")
    elif "action_net.weight" in weights:
        left.drop("value_net.", "mlp_extractor.value_net.")
        layers = [*left.stack("mlp_extractor.policy_net"), left.linear("action_net")]
        continuous = "log_std" in weights
        if continuous and weights["log_std"].ndim != 1:
            raise _state_dependent(path)
        log_std = left.take("log_std", 1) if continuous else None
        actor = StoredActor("gaussian" if continuous else "categorical", layers, log_std, "Tanh")
    elif "actor.log_std" in weights:
        raise _state_dependent(path)
    else:
        some = short(", ".join(weights))
        raise DataError(f"{path} has the weights {some}: expected a policy of PPO, A2C, SAC, TD3 or DDPG")
    left.check_empty()
    return actor


def _state_dependent(path: Path) -> DataError:
    return DataError(f"{path}: use_sde is true: expected false, state-dependent exploration is not read")


def _activation(path: Path, data: Mapping[str, Any], actor: StoredActor) -> Activation:
    """The activation function, after a check of the policy's other settings."""
    if data.get("use_sde"):
        raise _state_dependent(path)
    settings: Any = data.get("policy_kwargs") or {}
    if not isinstance(settings, dict):
        raise DataError(f"{path}: policy_kwargs is {short(repr(settings))}: expected an object")
    for name, value in settings.items():
        if name not in HARMLESS and not (name == "features_extractor_class" and "FlattenExtractor" in str(value)):
            raise DataError(f"{path}: policy_kwargs has {name!r}, {short(str(value))}: expected an MLP without it")
    stated = settings.get("activation_fn")
    found = CLASS.fullmatch(str(stated)) if stated is not None else None
    name = actor.activation if stated is None else found[1] if found else str(stated)
    if name not in ACTIVATIONS:
        raise DataError(f"{path}: activation_fn is {short(name)}: expected one of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _check_widths(path: Path, actor: StoredActor, width: int, action: Spec) -> None:
    """Compare the network's widths with the sim's."""
    categorical = actor.kind == "categorical"
    if categorical != (action.choices is not None):
        theirs, ours = ("choices", "numbers") if categorical else ("numbers", "choices")
        raise DataError(f"{path}: its actions are {theirs}, the sim's {ours}: expected the sim that it was trained on")
    if not actor.layers:
        raise DataError(f"{path} has no layer: expected one or more")
    expected = sum(action.choices) if action.choices else action.shape[0]
    taken, given = actor.layers[0][0].shape[1], len(actor.layers[-1][1])
    given = given // 2 if actor.kind == "squashed" else given
    for what, found, wanted in (("observation", taken, width), ("action", given, expected)):
        if found != wanted:
            raise DataError(
                f"{path}: its {what} has width {found}: expected {wanted}, that of the sim; was it trained on this sim?"
            )


def _check_space(path: Path, data: Mapping[str, Any], action: Spec) -> None:
    """Compare the bounds of the stored action space, as far as its text says them, with the sim's."""
    space: Any = data.get("action_space")
    if not isinstance(space, dict) or action.choices is not None:
        return
    for name, ours in (("low", action.low), ("high", action.high)):
        written = space.get(name)
        if not isinstance(written, str) or "..." in written:
            continue
        try:
            theirs = [float(x) for x in written.strip("[]").split()]
        except ValueError:
            continue
        if len(theirs) == len(ours) and not np.allclose(theirs, ours, rtol=BOUND_TOLERANCE, atol=BOUND_TOLERANCE):
            raise DataError(f"{path}: action_space.{name} is {short(written)}: expected {list(ours)}, that of the sim")


# the policy


def _converted(actor: StoredActor, action: Spec) -> dict[str, Tensor]:
    """Weights by our names. A Gaussian's action in the sim's units becomes a normalized one, exactly."""
    layers = [(weight, bias) for weight, bias in actor.layers]
    out: dict[str, Tensor] = {}
    if actor.kind == "gaussian" and actor.log_std is not None:
        unit = bounds_to_unit(ACTION, action.low, action.high)
        scale, offset = torch.tensor(unit.scale).double(), torch.tensor(unit.offset).double()
        weight, bias = layers[-1]
        layers[-1] = ((weight * scale[:, None]).float(), (bias * scale + offset).float())
        out["log_std"] = (actor.log_std + scale.log()).float()[None]
    elif actor.kind == "deterministic":
        weight, bias = layers[-1]
        floor = torch.full_like(bias, LOG_STD_RANGE[0])
        layers[-1] = (torch.cat([weight, torch.zeros_like(weight)]), torch.cat([bias, floor]))
    for number, (weight, bias) in enumerate(layers):
        out[f"net.layers.{2 * number}.weight"], out[f"net.layers.{2 * number}.bias"] = weight, bias
    return out


def _inputs(path: Path, specs: Mapping[str, Spec]) -> tuple[Transform, ...]:
    """Normalization of observations from a file of `write_statistics`."""
    try:
        stored: Any = json.loads(read_plain(path, str(path)))
    except (OSError, ValueError, RecursionError) as error:
        raise unreadable(
            path, "cannot be read; a VecNormalize is written by robotrl.importers.sb3.write_statistics", error
        ) from error
    if not isinstance(stored, dict) or stored.get("schema_version") != SCHEMA_VERSION:
        raise DataError(f"{path}: schema_version is not {SCHEMA_VERSION}: expected a file of write_statistics")
    try:
        named: dict[str, Any] = stored["observations"]
        only = next(iter(specs))
        named = {only if key == "" else key: value for key, value in named.items()}
        if set(named) != set(specs):
            raise DataError(f"{path}: observations are {', '.join(named)}: expected {', '.join(specs)}")
        out: list[Transform] = []
        for key, spec in specs.items():
            mean, var = (np.asarray(named[key][name], np.float64) for name in ("mean", "var"))
            if mean.shape != spec.shape or var.shape != spec.shape or len(spec.shape) != 1:
                raise DataError(f"{path}: {key!r} has shape {mean.shape}: expected a vector of shape {spec.shape}")
            scale = 1.0 / np.sqrt(var + float(stored["epsilon"]))
            if not (np.isfinite(mean).all() and np.isfinite(scale).all()):
                raise DataError(f"{path}: {key!r} is not finite everywhere: expected numbers")
            limit = float(stored["clip"])
            out.append(Affine(key, tuple(scale.tolist()), tuple((-mean * scale).tolist())))
            out.append(Clip(key, (-limit,) * len(scale), (limit,) * len(scale)))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is no file of write_statistics: {short(repr(error))}") from error
    return tuple(out)
