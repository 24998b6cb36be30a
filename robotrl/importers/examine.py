"""Checks of an imported policy: sensitivity to images and instruction, and error against recorded actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from robotrl.datasets.agreement.agree import agree, check_reach
from robotrl.datasets.chunks import load_chunks
from robotrl.datasets.reader import Dataset
from robotrl.errors import ConfigError, DataError
from robotrl.policies.reach import reach_of
from robotrl.policies.vla.roles import ObservationRoles
from robotrl.run.policy_checkpoint import probe_observations
from robotrl.spec import HasTokens
from robotrl.utils.batched import in_parts

DRAWS = 4
"""Chunks sampled from a generative policy; their mean is compared."""
BATCH = 32
LEAST_EFFECT = 1e-6
"""Smallest relative change of the output that counts as an effect of an image or instruction."""
BETTER = 0.5
"""An error must be below this fraction of the error with labels of other frames."""


class Effects(NamedTuple):
    """Relative change of a policy's output (logits or actions) after a change of an input."""

    pictures: dict[str, float]
    """By image key."""
    words: float


class ActionErrors(NamedTuple):
    """Errors of a policy against recorded actions, as fractions of the action range."""

    error: float
    """Mean absolute difference of the executed actions."""
    shuffled: float
    """The same with labels of other frames: the error of a policy that ignores its observations."""
    frames: int


@torch.no_grad()
def effects(policy: Any) -> Effects:
    """Measure the effect of each image and of the instruction on a VLA policy's output, on fixed observations.

    Raises:
        DataError: an image or the instruction has no effect, e.g. because weights, names or versions do not match.
    """
    obs = probe_observations(policy.observation_spec, policy.transforms.inputs)
    before = _said(policy, obs)

    def effect(key: str, other: Tensor) -> float:
        moved = (_said(policy, {**obs, key: other}) - before).abs().mean() / before.abs().mean()
        if not float(moved) > LEAST_EFFECT:
            raise DataError(f"another {key!r} moves what the policy says by {float(moved):.1e} of it: it is not seen")
        return float(moved)

    roles: ObservationRoles = policy.roles
    pictures = {key: effect(key, 255 - obs[key]) for key in roles.pictures if key}
    # replace each word by another one: the instruction changes, its length does not
    said, count = obs[roles.words], len(policy.observation_spec[roles.words].words)
    return Effects(pictures, effect(roles.words, torch.where(said > 0, said % (count - 1) + 1, said)))


def _said(policy: Any, obs: dict[str, Tensor]) -> Tensor:
    ctx = policy.encode(obs)
    count = len(next(iter(obs.values())))
    if isinstance(policy, HasTokens):
        shape = (count, policy.horizon, policy.action_spec.shape[0])
        return policy.token_logits(ctx, torch.zeros(shape, dtype=torch.int64)).float()
    shape = policy.noise_shape
    noise = torch.linspace(-1.5, 1.5, count * shape[0] * shape[1]).reshape(count, *shape)
    return policy.decode(ctx, noise.to(ctx.dtype)).float()


def labels(
    policy: Any,
    dataset: Dataset,
    frames: int,
    seed: int = 0,
    columns: Mapping[str, str] | None = None,
    accept: bool = False,
) -> ActionErrors:
    """Compare a policy's actions with recorded actions of random frames.

    Args:
        policy: the imported policy.
        dataset: its training data, with the sim's observations and actions or as its own robot recorded them.
        frames: number of frames.
        seed: seed of the choice of frames and of a generative policy's noise.
        columns: from the policy's keys to the dataset's columns, where their names differ; see `match_policy_columns`.
        accept: accept a dataset with doubtful values.

    Raises:
        ConfigError: the dataset contradicts the policy, has actions out of its range, or has too few frames.
        DataError: the dataset has doubtful values; see `agree`.
    """
    specs = policy.observation_spec
    dataset = agree(
        dataset,
        specs,
        policy.action_spec,
        policy.control_dt_s,
        columns=columns,
        field="cameras",
        inputs=policy.transforms.inputs,
        accept=accept,
    )
    check_reach(dataset, policy.transforms, policy.action_spec, reach_of(policy))
    data = load_chunks(dataset, list(specs), policy.horizon)
    if frames < 2 or frames > len(data.chunks):
        raise ConfigError(f"frames is {frames}: expected 2 to {len(data.chunks)}, the dataset's")
    rows = np.random.default_rng(seed).permutation(len(data.chunks))[:frames]
    generator = torch.Generator().manual_seed(seed)
    obs = {key: torch.from_numpy(np.ascontiguousarray(data.obs[key][rows])) for key in specs}
    draws = 1 if isinstance(policy, HasTokens) else DRAWS
    found = in_parts(lambda some: _mean(policy, some, draws, generator), obs, BATCH)
    span = np.asarray(policy.action_spec.high) - np.asarray(policy.action_spec.low)
    wanted, valid = data.chunks[rows], data.valid[rows]

    def error(labels: np.ndarray, counted: np.ndarray) -> float:
        return float((np.abs(found.numpy() - labels) / span)[counted].mean())

    other = np.roll(np.arange(frames), frames // 2)
    return ActionErrors(error(wanted, valid), error(wanted[other], valid[other] & valid), frames)


def check_labels(found: ActionErrors, tolerance: float) -> None:
    """Check a policy's errors against recorded actions.

    Raises:
        DataError: the error is above the tolerance, or not clearly below that with labels of other frames.
    """
    if not found.error <= tolerance or not found.error <= BETTER * found.shuffled:
        raise DataError(
            f"recorded actions of {found.frames} frames are missed by {found.error:.3f} of the action range, those of"
            f" other frames by {found.shuffled:.3f}: expected {tolerance:g} at most, and {BETTER:g} of the latter"
        )


@torch.no_grad()
def _mean(policy: Any, obs: dict[str, Tensor], draws: int, generator: torch.Generator) -> Tensor:
    mode = "mean" if draws == 1 else "sample"
    return torch.stack([policy.act(obs, generator=generator, mode=mode).chunk for _ in range(draws)]).mean(0).float()
