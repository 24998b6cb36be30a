"""Dataset columns rearranged: elements reordered, channels moved last, columns concatenated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from robotrl.datasets.agreement.names import names_of
from robotrl.datasets.layout import PICTURE_AXES, Feature
from robotrl.datasets.reader import Dataset
from robotrl.datasets.stats import Stats, describe
from robotrl.errors import ConfigError
from robotrl.spec import Spec


def taken(dataset: Dataset, column: str, order: Sequence[int]) -> Dataset:
    """The dataset with the elements of a column reordered; statistics, names and spec follow.

    Args:
        dataset: the dataset.
        column: name of a numeric column.
        order: new order of the last axis; element i becomes the former element `order[i]`.
    """
    index = list(order)
    feature, spec = dataset.features[column], dataset.specs.get(column)
    names = names_of(feature)
    stats = dataset.stats.get(column)
    return dataset.with_column(
        column,
        replace(feature, names=None if names is None else [names[i] for i in index]),
        np.ascontiguousarray(dataset.frames(column)[..., index]),
        None if stats is None else {key: x if key == "count" else x[index] for key, x in stats.items()},
        None if spec is None else _taken(spec, index),
    )


def channels_last(dataset: Dataset, column: str, spec: Spec) -> Dataset:
    """The dataset with the first axis of an image column moved to the end.

    Args:
        dataset: the dataset.
        column: name of a column of raw images, (F, channels, height, width).
        spec: spec of the images.
    """
    feature = Feature(dataset.features[column].dtype, spec.shape, list(PICTURE_AXES))
    values = np.ascontiguousarray(np.moveaxis(dataset.frames(column), 1, -1))
    stats = {key: x.astype(np.float64) for key, x in describe(values).items()}
    return dataset.with_column(column, feature, values, stats, spec if column in dataset.specs else None)


def side_by_side(dataset: Dataset, name: str, columns: Sequence[str]) -> Dataset:
    """The dataset with a new column that concatenates several others.

    Args:
        dataset: the dataset.
        name: name of the new column.
        columns: names of columns of numbers or vectors.

    Raises:
        ConfigError: one of them is not a numeric vector.
    """
    for column in columns:
        feature = dataset.features[column]
        if not feature.is_array or len(feature.shape) != 1:
            raise ConfigError(
                f"column {column!r} of dataset {dataset.root} is {feature.dtype} of shape {feature.shape}: expected a"
                f" vector of numbers, as {name!r} puts it beside others"
            )
    parts = [dataset.frames(column).reshape(dataset.num_frames, -1) for column in columns]
    values = np.concatenate(parts, axis=1).astype(np.float32)
    stats: Stats = {key: x.astype(np.float64) for key, x in describe(values).items()}
    known = [names_of(dataset.features[column]) for column in columns]
    names = None if any(some is None for some in known) else [name for some in known for name in some or ()]
    return dataset.with_column(name, Feature("float32", values.shape[1:], names), values, stats)


def _taken(spec: Spec, index: Sequence[int]) -> Spec:
    names, units, low, high = (tuple(of[i] for i in index) for of in (spec.names, spec.units, spec.low, spec.high))
    return replace(spec, names=names, units=units, low=low, high=high)
