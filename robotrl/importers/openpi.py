"""Importer of openpi's pi0 directories for PyTorch; reads them strictly.

A directory has `config.json`, one `model.safetensors`, and `assets/NAME/norm_stats.json` for each dataset or robot. It
does not contain the robot-specific transforms of openpi's training config (delta actions, another gripper range). A
policy trained with such transforms needs them in the sim's actions; a comparison with labeled actions of its dataset
shows whether they are missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from robotrl.errors import ConfigError, DataError, unknown
from robotrl.importers.fields import fixed, listed, mapped, whole
from robotrl.importers.files import check_merged, read_json, read_tensors
from robotrl.importers.fitting import camera_order, from_stats, load_into, tokenizer_of, transforms_on
from robotrl.importers.pi0 import BEGIN, from_openpi, variant
from robotrl.policies.base import ACTION
from robotrl.policies.vla.networks.pi0 import Pi0Cfg
from robotrl.policies.vla.pretrained_flow import Pi0Policy, PretrainedFlowCfg
from robotrl.spec import Spec, measured
from robotrl.transforms import inverse

CAMERAS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
"""openpi's camera names, in the network's order."""
STATS = "norm_stats.json"
EPS = 1e-6
"""Added to stds by openpi."""
PADDING = {"mean": (0.0,), "std": (0.0, 1.0)}
"""Values of statistics for padding: zeros, or a std of 1."""
FIXED = {"pi05": False, "discrete_state_input": False}
"""Settings with only one supported value."""


def load_openpi(
    path: str | Path,
    observation_spec: Mapping[str, Spec],
    action_spec: Spec,
    *,
    tokenizer: str | Path,
    key: str | None = None,
    cameras: Mapping[str, str],
    horizon: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> Pi0Policy:
    """Load a directory's policy for the observations and actions of a sim.

    The policy is unverified: only a comparison with labeled actions of its dataset shows that its weights are right.

    Args:
        path: the directory.
        observation_spec: the sim's spec: images, an instruction, and one measured vector.
        action_spec: the sim's action, in the units of the statistics.
        tokenizer: directory with PaliGemma's `tokenizer.json`.
        key: folder of `assets` whose statistics are used; optional if there is one.
        cameras: from openpi's names (`CAMERAS`) to the sim's images; "" for a missing camera.
        horizon: number of a chunk's actions that are executed; by default all.
        dtype: dtype of the weights.

    Raises:
        DataError: the directory's files contradict each other or do not match the architecture.
        ConfigError: the policy does not match the sim: cameras, state, action, words.
        CapabilityError: the sim has no image or no instruction.
    """
    path = Path(path)
    check_merged(path)
    config = read_json(path, "config.json")
    net = sizes(path, config)
    order = camera_order(CAMERAS, observation_spec, cameras)
    said = statistics(path, key)
    vectors = measured(observation_spec)
    state_width = observation_spec[vectors[0]].shape[0] if vectors else 0
    state, action = (
        from_stats(name, columns(said, what, width), "MEAN_STD", width, EPS, f"{said.where}: statistics of {what}")
        for name, what, width in (("state", "state", state_width), (ACTION, "actions", action_spec.shape[0]))
    )
    cfg = PretrainedFlowCfg(
        net=net,
        tokenizer=tokenizer_of(Path(tokenizer), net.vocabulary, BEGIN),
        chunk=net.chunk,
        horizon=net.chunk if horizon is None else horizon,
        cameras=order,
    )
    transforms = transforms_on(said.where, observation_spec, action_spec, state, inverse(action))
    policy = Pi0Policy(dict(observation_spec), action_spec, transforms, cfg)
    weights = from_openpi(read_tensors(path / "model.safetensors"), str(path))
    load_into(policy, weights, str(path), dtype)
    return policy


def sizes(path: Path, config: Mapping[str, Any]) -> Pi0Cfg:
    """Sizes of the network from its config.

    Raises:
        DataError: unknown variants, or a config without sizes.
    """
    where = f"{path}/config.json"
    fixed(where, config, FIXED)
    action = whole(where, config, "action_dim")
    chunk = whole(where, config, "action_horizon")
    return variant(path, config, chunk=chunk, state=action, action=action)


class Statistics(NamedTuple):
    """Normalization statistics of one dataset or robot."""

    where: str
    """The file, for errors."""
    said: dict[str, Any]
    """By "state" and "actions"."""


def statistics(path: Path, key: str | None) -> Statistics:
    """Read the statistics of one dataset or robot.

    Raises:
        DataError: there are none.
        ConfigError: there are several and no key is given, or the key is unknown.
    """
    names = sorted(found.parent.name for found in (path / "assets").glob(f"*/{STATS}"))
    if not names:
        raise DataError(f"{path} has no assets/NAME/{STATS}: expected the statistics of one dataset at least")
    if key is None:
        if len(names) > 1:
            raise ConfigError(f"key is not given: expected one of {', '.join(names)}")
        key = names[0]
    if key not in names:
        raise unknown("key", key, names)
    folder = path / "assets" / key
    where = f"{folder}/{STATS}"
    return Statistics(where, mapped(where, read_json(folder, STATS), "norm_stats"))


def columns(found: Statistics, what: str, width: int) -> dict[str, list[Any]]:
    """Means and stds of a robot's state or actions, without openpi's padding.

    Args:
        found: the statistics.
        what: "state" or "actions".
        width: the robot's width.

    Raises:
        DataError: there are more elements than the robot has, or fewer, filled up with padding.
    """
    said = mapped(found.where, found.said, what)
    where = f"{found.where}: statistics of {what}"
    rows = {name: listed(where, said, name) for name in PADDING}
    longest = max(len(row) for row in rows.values())
    stated = [i for i in range(longest) if any(x not in PADDING[n] for n, row in rows.items() for x in row[i : i + 1])]
    own = stated[-1] + 1 if stated else 0
    # a padded std of 0 would amplify the noise of an element that the robot does measure
    if own > width or (own < width and rows["std"][width - 1 : width] == [0.0]):
        raise DataError(f"{where} have {own} numbers, but for padding: expected {width}, as the sim has")
    return {name: row[:width] for name, row in rows.items()}
