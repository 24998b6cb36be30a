"""Checks that a dataset agrees with the sim or policy that learns from it; all readers use these checks.

Compared are the rate, and for every observation and the action: shape, element names and their order, units, bounds and
vocabulary; recorded numbers against the bounds; the policy's action range against the recorded actions. Elements in
another order are reordered; a contradiction is an error; doubts are collected in one warning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from robotrl.datasets.agreement import bounds
from robotrl.datasets.agreement.issues import DataIssue, settle
from robotrl.datasets.agreement.names import names_of, order_of
from robotrl.datasets.agreement.reorder import channels_last, taken
from robotrl.datasets.columns import channels_first, match_policy_columns, misfit
from robotrl.datasets.layout import ACTION, observation_key
from robotrl.datasets.reader import Dataset
from robotrl.errors import ConfigError
from robotrl.spec import Spec, is_picture
from robotrl.spec.checks import first_word_difference
from robotrl.spec.checks import misfit as misfit_of_array
from robotrl.transforms import Affine, Transform, TransformGroup

RATE = 1e-6
"""Relative difference below which two rates count as equal."""
SAME_BOUND = 1e-3
"""Difference of two bounds, as a fraction of the range, below which they count as equal."""
OUTSIDE = 0.02
"""Fraction of the recorded actions that may lie outside the policy's action range."""
FAR = 10.0
"""Number of the policy's standard deviations beyond which a dataset's observations are of another robot or in other
units."""


def agree(
    dataset: Dataset,
    observation_spec: Mapping[str, Spec],
    action_spec: Spec | None,
    control_dt_s: float | None,
    *,
    columns: Mapping[str, str] | None = None,
    field: str = "columns",
    beside: Mapping[str, Spec] | None = None,
    inputs: Sequence[Transform] = (),
    accept: bool = False,
) -> Dataset:
    """Match a dataset to a sim or policy: rename and reorder its columns, and check that nothing contradicts.

    Args:
        dataset: a dataset from `read_dataset`.
        observation_spec: observations to read, by the sim's keys.
        action_spec: the action; None where none is read.
        control_dt_s: seconds between two actions; None where the rate does not count.
        columns: see `match_policy_columns`.
        field: the setting that `columns` comes from, for errors.
        beside: optional arrays, checked if the dataset has them.
        inputs: input normalization of a policy that was trained before.
        accept: whether the user has accepted doubtful data.

    Raises:
        ConfigError: dataset and spec contradict each other; both values are named.
        DataError: the data is doubtful enough to be refused unless accepted.
    """
    if control_dt_s is not None:
        _same_rate(dataset, 1 / control_dt_s)
    dataset = match_policy_columns(dataset, observation_spec, columns, field, action_spec)
    wanted = {observation_key(key): spec for key, spec in {**(beside or {}), **observation_spec}.items()}
    wanted = {name: spec for name, spec in wanted.items() if name in dataset.features}
    if action_spec is not None:
        wanted[ACTION] = action_spec
    issues = list(dataset.issues)
    unchecked: list[str] = []
    for name, spec in wanted.items():
        wrong = misfit(dataset.features[name], spec)
        if wrong:
            raise ConfigError(f"{name} of dataset {dataset.root} {wrong}, the policy's")
        if channels_first(dataset.features[name], spec):
            dataset = channels_last(dataset, name, spec)
        _same_words(dataset, name, spec)
        if spec.words:
            continue
        dataset, said = _in_order(dataset, name, spec, issues)
        unchecked += [said] if said else []
        _same_units(dataset, name, spec)
        issues += _same_bounds(dataset, name, spec)
        if not is_picture(spec):
            issues += _numbers(dataset, name, spec)
    if unchecked:
        issues.append(DataIssue(f"names and units are not checked: {'; '.join(unchecked)}", False))
    issues += _known(dataset, inputs)
    settle(dataset.root, issues, accept)
    return replace(dataset, issues=())


def check_reach(dataset: Dataset, transforms: TransformGroup, action_spec: Spec, within: float) -> None:
    """Check that a policy's action range covers the recorded actions.

    Args:
        dataset: a dataset that agrees with the policy's sim, see `agree`.
        transforms: the policy's transforms.
        action_spec: the sim's; recorded actions are clipped to its bounds.
        within: largest normalized action that the policy can give.

    Raises:
        ConfigError: more than 2 % of the recorded values of an element lie outside its range.
    """
    width = len(action_spec.names)
    low, high = np.full(width, -within), np.full(width, within)
    for transform in transforms.outputs:
        a, b = (np.asarray(row, np.float64)[:width] for row in transform.constants)
        if isinstance(transform, Affine):
            ends = np.stack([low * a + b, high * a + b])
            low, high = ends.min(axis=0), ends.max(axis=0)
        else:
            low, high = np.clip(low, a, b), np.clip(high, a, b)
    recorded = dataset.frames(ACTION).reshape(dataset.num_frames, -1)
    recorded = np.clip(recorded, np.asarray(action_spec.low, np.float32), np.asarray(action_spec.high, np.float32))
    slack = 1e-3 * np.maximum(high - low, 1e-6)
    outside = ((recorded < low - slack) | (recorded > high + slack)).sum(axis=0)
    # a quantile interpolates between two frames, so one more frame may be outside at either end
    bad = np.flatnonzero(outside > OUTSIDE * dataset.num_frames + 2)
    if len(bad):
        j = int(bad[np.argmax(outside[bad])])
        raise ConfigError(
            f"the policy's range of action {action_spec.names[j]!r} is {low[j]:g} to {high[j]:g}"
            f" ({action_spec.units[j]}): {int(outside[j]):,} of {dataset.num_frames:,} frames of dataset {dataset.root}"
            f" lie outside, {recorded[:, j].min():g} to {recorded[:, j].max():g}; expected {OUTSIDE:.0%} at most: the"
            " statistics are of another robot or other units"
        )


def _same_rate(dataset: Dataset, rate_hz: float) -> None:
    if abs(dataset.fps - rate_hz) > RATE * rate_hz:
        raise ConfigError(
            f"dataset {dataset.root} is recorded at {dataset.fps:g} Hz: expected {rate_hz:g} Hz, the sim's"
        )


def _same_words(dataset: Dataset, name: str, spec: Spec) -> None:
    """Check the vocabulary of a column, and the word ids of its frames."""
    found = dataset.specs.get(name)
    differs = None if found is None else first_word_difference(found.words, spec.words)
    if differs is not None:
        raise ConfigError(
            f"{name} of dataset {dataset.root} has {differs.before} as word {differs.number}: the policy has"
            f" {differs.now} there, expected the same words in the same order"
        )
    if spec.words:
        values = dataset.frames(name)
        wrong = misfit_of_array(name, values.reshape(len(values), *spec.shape), spec, batched=True, by_value=True)
        if wrong:
            raise ConfigError(f"dataset {dataset.root}: {wrong}")


def _in_order(dataset: Dataset, name: str, spec: Spec, issues: list[DataIssue]) -> tuple[Dataset, str]:
    """Reorder the elements of a column as in the spec; also returns why names could not be checked, or ""."""
    found = dataset.specs.get(name)
    order = order_of(names_of(dataset.features[name]) if found is None else found.names, spec.names, found is not None)
    if order.wrong and order.sure:
        raise ConfigError(f"{name} of dataset {dataset.root} {order.wrong}: expected the sim's {', '.join(spec.names)}")
    if order.wrong:
        issues.append(DataIssue(f"{name} {order.wrong}", True))
    if order.unchecked and not is_picture(spec):
        return dataset, f"{name} {order.unchecked}"
    if order.taken is None:
        return dataset, ""
    if dataset.features[name].is_picture:
        raise ConfigError(
            f"{name} of dataset {dataset.root} has channels {', '.join(found.names if found else ())}: expected"
            f" {', '.join(spec.names)}, the sim's"
        )
    return taken(dataset, name, order.taken), ""


def _same_units(dataset: Dataset, name: str, spec: Spec) -> None:
    found = dataset.specs.get(name)
    if found is None:
        return
    for element, theirs, ours in zip(spec.names, found.units, spec.units, strict=True):
        if theirs != ours and theirs not in bounds.UNSTATED and ours not in bounds.UNSTATED:
            raise ConfigError(
                f"{name} of dataset {dataset.root} has {element!r} in {theirs!r}: expected {ours!r}, the sim's"
            )


def _same_bounds(dataset: Dataset, name: str, spec: Spec) -> list[DataIssue]:
    """Doubts where dataset and sim state different bounds."""
    found = dataset.specs.get(name)
    if found is None or found.shape != spec.shape:
        return []
    theirs, ours = (np.asarray([of.low, of.high], np.float64) for of in (found, spec))
    stated = np.isfinite(theirs) & np.isfinite(ours)
    span = np.where(np.isfinite(ours[1] - ours[0]), ours[1] - ours[0], np.maximum(np.abs(ours).max(axis=0), 1.0))
    with np.errstate(invalid="ignore"):
        differ = stated & (np.abs(theirs - ours) > SAME_BOUND * span)
    if not differ.any():
        return []
    j = int(np.argmax(differ.any(axis=0)))
    text = (
        f"{name} {spec.names[j]!r} is stated to lie in {found.low[j]:g} to {found.high[j]:g}, by the sim in"
        f" {spec.low[j]:g} to {spec.high[j]:g} ({spec.units[j]})"
    )
    return [DataIssue(text, name == ACTION)]


def _numbers(dataset: Dataset, name: str, spec: Spec) -> list[DataIssue]:
    """Doubts about recorded numbers: values outside the bounds, integers where the spec has floats."""
    values = dataset.frames(name)
    issue, wrong = bounds.issue_of(name, values, spec, name == ACTION)
    if wrong:
        raise ConfigError(f"dataset {dataset.root}: {wrong}")
    out = [] if issue is None else [issue]
    whole = values.dtype.kind in "iu" and np.dtype(spec.dtype).kind == "f"
    if whole and name == ACTION:
        text = f"{name} holds whole numbers ({values.dtype}): expected {spec.dtype}; were they cut to whole ones?"
        out.append(DataIssue(text, False))
    return out


def _known(dataset: Dataset, inputs: Sequence[Transform]) -> list[DataIssue]:
    """Doubts about observations far from the statistics by which an earlier policy normalizes."""
    out: list[DataIssue] = []
    for transform in inputs:
        name = observation_key(transform.key)
        if not isinstance(transform, Affine) or name not in dataset.stats or name not in dataset.features:
            continue
        scale, offset = (np.asarray(row, np.float64) for row in transform.constants)
        mean, std = (dataset.stats[name][key].reshape(-1) for key in ("mean", "std"))
        if len(mean) != len(scale):
            continue
        middle, spread = np.abs(mean * scale + offset), std * np.abs(scale)
        j = int(np.argmax(np.maximum(middle, spread)))
        if max(middle[j], spread[j]) > FAR:
            out.append(
                DataIssue(
                    f"{name}[{j}] has mean {mean[j]:g} and deviation {std[j]:g}, for the policy {middle[j]:.3g} and"
                    f" {spread[j]:.3g} deviations of what it was normalised by: other units or another robot?",
                    False,
                )
            )
    return out
