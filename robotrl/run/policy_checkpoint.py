"""Strict saving and loading of policies: exact set of weights, and a fingerprint of actions that must be reproduced.

A checkpoint stores a policy to evaluate or export under "policy": its description with a checksum, its weights, and its
actions on a fixed input when it was saved, with the logits of a token policy. Loading recomputes them.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from robotrl.errors import ConfigError, DataError, NumericsError, short
from robotrl.peft.lora import Adaptation, adaptation_of, attach
from robotrl.registry import POLICIES
from robotrl.run.checkpoint import WEIGHTS, Checkpoint, read_checkpoint, read_manifest, read_state
from robotrl.run.directory import Run
from robotrl.run.token_fingerprint import check_stored_tokens, tokens_to_store
from robotrl.spec import Spec
from robotrl.transforms import Affine, Transform

BASE = "base"
"""Directory in a run with the checkpoint of the base policy of an adapted policy. It is stored once."""
STORED = {"description", "weights", "fingerprint"}
"""Keys that a stored policy has at least."""
MISFITS = (KeyError, TypeError, ValueError, AttributeError, IndexError)
"""Exceptions raised when a policy is built from a description of another version or origin."""
FINGERPRINT_ROWS = 4
FINGERPRINT_TOLERANCE = 1e-5
"""Tolerance of fingerprint actions, as a fraction of the action range; machines differ in the last bits."""
ELSEWHERE_TOLERANCE = 1e-3
"""The same for a fingerprint from another device type, which sums in another order. Altered bytes are detected
before."""


def policy_tree(policy: Any) -> dict[str, Any]:
    """State of a policy for a checkpoint.

    Args:
        policy: one of `robotrl.policies`. For an adapted policy only adapters and heads are stored, not the base.

    Raises:
        NumericsError: the policy's weights or actions are not finite, so it is not stored.
    """
    weights = {name: value.detach().clone() for name, value in policy.state_dict().items()}
    for name, value in weights.items():
        if not torch.isfinite(value).all():
            raise NumericsError(f"policy weight {name!r} is not finite; the last checkpoint is intact")
    obs, noise = _fixed_input(policy)
    did = _deployed(policy, obs, noise)
    actions = did.actions.clone().cpu()
    if not torch.isfinite(actions).all():
        raise NumericsError("the policy's action on a fixed input is not finite; the last checkpoint is intact")
    fingerprint = {"obs": obs, "noise": noise, "actions": actions, "device": _device_of(policy).type}
    adaptation, description = adaptation_of(policy), policy.to_json()
    return {
        **({} if adaptation is None else {"adaptation": adaptation.to_json()}),
        "description": description,
        "description_sha256": _json_sha256(description),
        "weights": weights,
        "fingerprint": {**fingerprint, **tokens_to_store(policy, obs, did.normalized_action)},
        "tables_sha256": _tables_sha256(policy),
    }


def probe(policy: Any) -> Tensor:
    """Actions of a policy on its fixed input, (B, H, A)."""
    return _act(policy, *_fixed_input(policy))


def policy_from_tree(tree: dict[str, Any], where: str, base: Path | None = None) -> Any:
    """Build a policy from a state made by `policy_tree`, and verify it.

    Args:
        tree: state from a checkpoint.
        where: name of the source in errors.
        base: checkpoint of the base policy of an adapted policy; see `BASE`.

    Raises:
        ConfigError: the kind of policy is unknown here.
        DataError: the description was altered; an adapted policy's base is missing or another one; weights are missing,
            unexpected or of another shape; or the fingerprint differs.
    """
    stored: Any = tree
    if not isinstance(stored, dict) or not stored.keys() >= STORED:
        raise DataError(f"{where}: what stands there for a policy is none: expected {', '.join(sorted(STORED))}")
    description, weights, fingerprint = tree["description"], tree["weights"], tree["fingerprint"]
    # absent in checkpoints of earlier versions; nothing is built from an altered description
    found_sha256, stored_sha256 = _json_sha256(description), tree.get("description_sha256")
    if stored_sha256 not in (None, found_sha256):
        raise DataError(
            f"{where}: the policy's description (settings, specs, statistics) is not the one that was saved: its"
            f" SHA-256 is {found_sha256[:12]}: expected {str(stored_sha256)[:12]}"
        )
    try:
        policy = POLICIES.load(kind_of(description)).from_json(description)
        adaptation = Adaptation.from_json(tree["adaptation"]) if "adaptation" in tree else None
    except (*MISFITS, RuntimeError) as error:  # RuntimeError: torch raises it for impossible layer sizes
        raise DataError(
            f"{where}: the policy's description does not fit this version of robotrl: {short(str(error))}"
        ) from error
    if adaptation is not None:
        _adapt_again(policy, adaptation, where, base)
    load_weights(policy, weights, f"{where}: the policy")
    # absent in checkpoints of earlier versions
    if tree.get("tables_sha256") not in (None, _tables_sha256(policy)):
        raise DataError(
            f"{where}: the tables that the policy makes of its description, e.g. of its tokenizer, are not those that"
            " were saved"
        )
    try:
        found, actions = _act(policy, fingerprint["obs"], fingerprint["noise"]), fingerprint["actions"]
        span = torch.tensor(policy.action_spec.high) - torch.tensor(policy.action_spec.low)
        error = float(((found - actions).abs() / span).max())
    except (*MISFITS, RuntimeError) as misfit:
        raise DataError(f"{where}: the policy's fingerprint is not of this policy: {short(str(misfit))}") from misfit
    # checkpoints of earlier versions were saved on the CPU
    same_kind = fingerprint.get("device", "cpu") == _device_of(policy).type
    if not error <= (FINGERPRINT_TOLERANCE if same_kind else ELSEWHERE_TOLERANCE):
        raise DataError(
            f"{where}: the policy's fingerprint action differs by {error:.2e} of the action range from the one stored:"
            " the weights are not those that were saved, or the code that builds the policy has changed"
        )
    check_stored_tokens(policy, fingerprint, same_kind, where)
    return policy


def kind_of(description: Any) -> str:
    """Policy kind of a description.

    Raises:
        TypeError: it is not a description.
    """
    if not isinstance(description, dict) or not isinstance(description.get("kind"), str):  # pyright: ignore[reportUnknownMemberType]
        raise TypeError(f"it is {short(repr(description))}")
    return description["kind"]


def _adapt_again(policy: Any, adaptation: Adaptation, where: str, base: Path | None) -> None:
    """Load the base's weights into a policy and add fresh adapters.

    Raises:
        DataError: the base is missing, damaged, or another one.
    """
    needed = f"{where}: the policy is an adaptation of the weights with SHA-256 {adaptation.base_sha256[:12]}"
    if base is None or not base.is_dir():
        raise DataError(
            f"{needed}: expected their checkpoint at {base or BASE!s}, where its run has it; move a run as a whole"
        )
    load_weights(policy, read_checkpoint(base).tree["policy"]["weights"], f"{base}: the base policy")
    try:
        attach(policy, adaptation)
    except DataError as error:
        raise DataError(f"{base}: {error} ({where})") from error


def load_weights(module: nn.Module, weights: Mapping[str, Tensor], what: str) -> None:
    """Load a network's weights; names and shapes must match exactly.

    Args:
        module: the network.
        weights: by the names of its `state_dict`.
        what: their owner in errors, e.g. "runs/a: the policy".

    Raises:
        DataError: weights are missing, unexpected or of another shape.
    """
    expected = module.state_dict()
    given: Any = weights
    if not isinstance(given, dict) or not all(isinstance(value, Tensor) for value in given.values()):  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        raise DataError(f"{what} has no table of weights: expected tensors by name")
    for problem, names in (
        ("lacks", expected.keys() - weights.keys()),
        ("has unknown", weights.keys() - expected.keys()),
    ):
        if names:
            raise DataError(f"{what} {problem} weights: {', '.join(sorted(names))}")
    for name, value in expected.items():
        if tuple(weights[name].shape) != tuple(value.shape):
            raise DataError(
                f"{what}: weight {name!r} has shape {tuple(weights[name].shape)}: expected {tuple(value.shape)}"
            )
    module.load_state_dict(weights)


def _tables_sha256(policy: nn.Module) -> str | None:
    """SHA-256 of all integer buffers that a policy computes when built and does not store; None if there are none.

    The fingerprint's observations do not reach every entry: a prompt table has a row for each word.
    """
    stored = policy.state_dict().keys()
    tables = {k: x for k, x in policy.named_buffers() if k not in stored and not x.is_floating_point()}
    if not tables:
        return None
    digest = hashlib.sha256()
    for name, table in sorted(tables.items()):
        digest.update(name.encode() + table.cpu().numpy().tobytes())
    return digest.hexdigest()


def _json_sha256(data: Any) -> str:
    """SHA-256 of JSON values, independent of key order and of tuple/list and int/float differences."""
    return hashlib.sha256(json.dumps(_plain(data), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _plain(data: Any) -> Any:
    """The same values with all numbers as floats, because a stored field may come back as 1 or 1.0."""
    if isinstance(data, dict):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    if not isinstance(data, int) or isinstance(data, bool):
        return data
    # integers too large for a float: keep them distinct as text
    return float(data) if abs(data) < 2**1023 else str(data)


def _act(policy: Any, obs: dict[str, Tensor], noise: Tensor | None) -> Tensor:
    return _deployed(policy, obs, noise).actions.clone().cpu()


@torch.no_grad()
def _deployed(policy: Any, obs: dict[str, Tensor], noise: Tensor | None) -> Any:
    """Actions of a policy on its own device, with the normalized actions behind them."""
    device = _device_of(policy)
    there = {key: x.to(device) for key, x in obs.items()}
    return policy.deploy(there, None if noise is None else noise.to(device))


def _device_of(policy: nn.Module) -> torch.device:
    return next(policy.parameters()).device


def _fixed_input(policy: Any) -> tuple[dict[str, Tensor], Tensor | None]:
    """Fixed observations and noise that vary every element."""
    obs = probe_observations(policy.observation_spec, policy.transforms.inputs)
    if policy.noise_shape is None:
        return obs, None
    count = FINGERPRINT_ROWS * int(np.prod(policy.noise_shape))
    return obs, torch.linspace(-1.5, 1.5, count).reshape(FINGERPRINT_ROWS, *policy.noise_shape)


def probe_observations(observation_spec: Mapping[str, Spec], inputs: Sequence[Transform]) -> dict[str, Tensor]:
    """Fixed observations (FINGERPRINT_ROWS, ...) that vary every element, near the training distribution.

    Far from it, nearly all actions would be clipped to their bounds, and an altered weight would not show.
    """
    obs: dict[str, Tensor] = {}
    start = 1
    for key, spec in observation_spec.items():
        columns = np.arange(start, start + math.prod(spec.shape))
        start += len(columns)
        x = np.sin(columns * np.arange(1, FINGERPRINT_ROWS + 1)[:, None]).reshape(FINGERPRINT_ROWS, *spec.shape)
        if spec.words:
            obs[key] = torch.from_numpy(np.rint((1 + x) / 2 * (len(spec.words) - 1)).astype(spec.dtype))
            continue
        if spec.dtype == "uint8":
            obs[key] = torch.from_numpy(np.rint(127.5 * (1 + x)).astype(np.uint8))
            continue
        for transform in reversed(inputs):
            if transform.key == key and isinstance(transform, Affine):
                x = (x - np.asarray(transform.offset)) / np.asarray(transform.scale)
        obs[key] = torch.tensor(x, dtype=torch.float32)
    return obs


def load_policy(path: str | Path, which: str = "best") -> Any:
    """Load the policy of a run or checkpoint.

    Args:
        path: a run's directory or a checkpoint's.
        which: checkpoint of a run: "best" by evaluation (the newest if none was evaluated) or "latest".

    Raises:
        DataError: nothing readable is at the path, or it holds no policy; the fault is named.
    """
    checkpoint = find_checkpoint(Path(path), which)
    if not isinstance(checkpoint.tree, dict) or "policy" not in checkpoint.tree:
        raise DataError(f"checkpoint {checkpoint.path} of kind {checkpoint.kind!r} holds no policy")
    return policy_from_tree(checkpoint.tree["policy"], str(checkpoint.path), checkpoint.path.parent.parent / BASE)


def changed(policy: Any, changes: Mapping[str, Any]) -> Any:
    """A policy with changed settings, see `changed_description`; the policy itself if there are none.

    Raises:
        ConfigError: see there.
    """
    if not changes:
        return policy
    description = changed_description(policy.to_json(), changes)
    other = POLICIES.load(description["kind"]).from_json(description)
    load_weights(other, policy.state_dict(), "the changed policy")
    return other


def changed_description(description: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Description of a policy with changed settings, limited to settings on which its weights do not depend.

    Args:
        description: see `policy_tree`.
        changes: setting names, from `SpecPolicy.changeable`, to values.

    Raises:
        ConfigError: a setting that is unknown or cannot be changed, or a value of another type.
    """
    kind: Any = POLICIES.load(description["kind"])
    for name, value in changes.items():
        if name not in kind.changeable:
            some = f"one of {', '.join(kind.changeable)}" if kind.changeable else "none"
            raise ConfigError(
                f"init_changes holds {name!r}: expected of {kind.__name__} {some}; all else is as it was trained"
            )
        # for a policy stored before this setting existed, compare with its default
        own = description["cfg"].get(name, getattr(kind.Cfg, name))
        if type(value) is not type(own) and not (isinstance(own, float) and type(value) is int):
            raise ConfigError(f"init_changes: {name} is {value!r}: expected the like of {own!r}")
    return {**description, "cfg": {**description["cfg"], **changes}}


class Described(NamedTuple):
    """Description of a stored policy."""

    description: dict[str, Any]
    """See `policy_tree`."""
    weights_bytes: int
    """Size of its weights, base and learner state in bytes."""


def describe(path: str | Path) -> Described:
    """Describe the newest policy of a run, or that of a checkpoint, without loading weights.

    Raises:
        DataError: nothing readable is at the path, or it holds no policy.
    """
    root = Path(path)
    if (root / "config.json").exists():
        found = Run.open(root).entries()
        if not found:
            raise DataError(f"run {path} has no checkpoint yet")
        root = found[-1].path
    size = read_manifest(root).files[WEIGHTS][0]
    tree = read_state(root)
    if not isinstance(tree, dict) or "policy" not in tree:
        raise DataError(f"checkpoint {root} holds no policy")
    if "adaptation" in tree["policy"]:
        size += read_manifest(root.parent.parent / BASE).files[WEIGHTS][0]
    try:
        description = tree["policy"]["description"]
        POLICIES.check(kind_of(description))
    except MISFITS as error:
        raise DataError(f"checkpoint {root}: what stands there for a policy is none ({short(repr(error))})") from error
    return Described(description, size)


def find_checkpoint(path: Path, which: str = "best") -> Checkpoint:
    """Checkpoint at a path: the path itself, or a run's best or latest one.

    Raises:
        DataError: there is none.
    """
    if not (path / "config.json").exists():
        return read_checkpoint(path)
    run = Run.open(path)
    checkpoint = (run.best() if which == "best" else None) or run.latest()
    if checkpoint is None:
        raise DataError(f"run {path} has no checkpoint yet")
    return checkpoint
