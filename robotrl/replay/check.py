"""Checks that steps, sims and datasets match a replay buffer, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from robotrl.errors import ConfigError, unknown
from robotrl.replay.layout import ReplayLayout
from robotrl.replay.types import SOURCES, Source, StepRecord
from robotrl.spec import VecSim


def host(values: Tensor) -> np.ndarray:
    """A tensor as numpy array on the CPU."""
    return values.detach().cpu().numpy()


def check_record(layout: ReplayLayout, record: StepRecord, count: int) -> np.ndarray:
    """Check the arrays of `count` rows; returns the rows that ended, (n,) int64.

    Raises:
        ConfigError: an array of the wrong shape, a missing or undeclared one, or ended rows without `final_obs`.
    """
    specs = layout.observation_spec
    if record.obs.keys() != specs.keys():
        raise _keys("observation", record.obs, specs)
    for key, spec in specs.items():
        if record.obs[key].shape != (count, *spec.shape):
            raise _shape(f"observation {key!r}", record.obs[key], (count, *spec.shape))
    if record.action.shape != (count, *layout.action_spec.shape):
        raise _shape("action", record.action, (count, *layout.action_spec.shape))
    for name in ("reward", "terminated", "truncated", "decision", "log_prob", "cost", "missing"):
        values: Tensor | None = getattr(record, name)
        if values is not None and values.shape != (count,):
            raise _shape(name, values, (count,))
    for key, values in record.extras.items():
        if key not in layout.extras:
            raise _keys("extras", record.extras, layout.extras)
        if values.shape != (count, *layout.extras[key]):
            raise _shape(f"extras {key!r}", values, (count, *layout.extras[key]))
    return _check_finals(layout, record)


def _check_finals(layout: ReplayLayout, record: StepRecord) -> np.ndarray:
    ended = np.flatnonzero(host(record.terminated) | host(record.truncated))
    named = host(record.final_ids)
    if len(named) != len(ended) or (np.sort(named) != ended).any():
        raise ConfigError(f"replay final_ids is {named.tolist()}: expected the rows that ended, {ended.tolist()}")
    if not len(named):
        return named
    specs = layout.observation_spec
    if record.final_obs.keys() != specs.keys():
        raise _keys("final observation", record.final_obs, specs)
    for key, spec in specs.items():
        if record.final_obs[key].shape != (len(named), *spec.shape):
            raise _shape(f"final observation {key!r}", record.final_obs[key], (len(named), *spec.shape))
    return named


def source_numbers(source: Source | Tensor) -> int | np.ndarray:
    """Indices of sources in `SOURCES`.

    Raises:
        ConfigError: there is no such source.
    """
    if isinstance(source, Tensor):
        return host(source)
    if source not in SOURCES:
        raise unknown("replay source", source, SOURCES)
    return SOURCES.index(source)


def check_sim(layout: ReplayLayout, sim: VecSim) -> None:
    """Check that the steps of a sim can be stored, env n in stream n.

    Raises:
        ConfigError: number of envs, action, observations or rate differ; both values are named.
    """
    if layout.streams != sim.num_envs:
        raise ConfigError(f"the replay has {layout.streams} streams: the sim has {sim.num_envs} envs")
    check_specs(layout, {k: s.shape for k, s in sim.observation_spec.items()}, sim.action_spec.shape, "sim")
    check_rate(layout, sim.control_dt_s, "sim")


def check_specs(
    layout: ReplayLayout, observations: Mapping[str, tuple[int, ...]], action: tuple[int, ...], what: str
) -> None:
    """Check that arrays of these specs can be stored; `what` names their owner in errors.

    Raises:
        ConfigError: they differ; both values are named.
    """
    expected = {key: spec.shape for key, spec in layout.observation_spec.items()}
    if dict(observations) != expected:
        raise ConfigError(f"the replay's observations are {expected}: the {what}'s are {dict(observations)}")
    if action != layout.action_spec.shape:
        raise ConfigError(f"the replay's actions are of shape {layout.action_spec.shape}: the {what}'s are {action}")


def check_rate(layout: ReplayLayout, control_dt_s: float | None, what: str) -> None:
    """Check that the control period matches the buffer's, if both are known.

    Raises:
        ConfigError: they do not; both values are named.
    """
    ours = layout.control_dt_s
    if ours is not None and control_dt_s is not None and abs(ours - control_dt_s) > 1e-6 * ours:
        raise ConfigError(f"the replay's steps last {ours:g} s: the {what}'s last {control_dt_s:g} s")


def _shape(name: str, values: Tensor, expected: tuple[int, ...]) -> ConfigError:
    return ConfigError(f"replay {name} is of shape {tuple(values.shape)}: expected {expected}")


def _keys(what: str, found: Mapping[str, Any], expected: Mapping[str, Any]) -> ConfigError:
    for key in found:
        if key not in expected:
            return unknown(f"replay {what}", key, expected)
    return ConfigError(f"replay {what} has {', '.join(found) or 'nothing'}: expected {', '.join(expected)}")
