"""Maps dataset columns to a policy's observations and action, and task texts to word ids.

Other writers choose their own camera names and give the instruction as a text, the frame's task; datasets written by
robotrl use the sim's keys and store word ids among the observations.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from robotrl.datasets.agreement.names import difference, names_of, numbered
from robotrl.datasets.agreement.reorder import side_by_side
from robotrl.datasets.layout import ACTION, COUNTERS, OUTCOME, Feature, feature_of, observation_key
from robotrl.datasets.reader import Dataset
from robotrl.errors import ConfigError, nearest, unknown
from robotrl.fn.text.words import encode
from robotrl.spec import Spec, is_picture

ACTIONS = (ACTION, "actions")
"""Names of the action column: robotrl's and openpi's."""
CHANNELS = (1, 2, 3, 4)
"""Usual numbers of image channels."""


def match_policy_columns(
    dataset: Dataset,
    observation_spec: Mapping[str, Spec],
    columns: Mapping[str, str] | None = None,
    field: str = "columns",
    action_spec: Spec | None = None,
) -> Dataset:
    """The dataset with one column for each of a policy's observations and the action, where a match exists.

    Columns are matched by `columns` ("a+b" concatenates two columns), then by the policy's own name, with or without
    the prefix `observation.`. An instruction without a column is encoded from the frames' task texts. If another
    writer's dataset has exactly one image column and the policy reads exactly one image, they are matched; likewise
    vectors. Nothing else is guessed.

    Args:
        dataset: a dataset from `read_dataset`.
        observation_spec: the policy's observations.
        columns: the policy's keys, "action", and the frame's outcome ("next.reward", ...) to names of columns, e.g.
            "image" to "observation.images.front".
        field: the setting that `columns` comes from, for errors.
        action_spec: the action; None if it is not needed.

    Raises:
        ConfigError: an unknown key or column; an observation with no column or several candidates; a column that does
            not match the policy's spec; a task with words outside its vocabulary.
    """
    specs = {observation_key(key): spec for key, spec in observation_spec.items()}
    if action_spec is not None:
        specs[ACTION] = action_spec
    named: dict[str, str] = {}
    for key, column in (columns or {}).items():
        new = key if key in (ACTION, *OUTCOME) else observation_key(key)
        if key not in (ACTION, *OUTCOME, *observation_spec):
            raise unknown(f"{field}: observation", key, [*observation_spec, ACTION, *OUTCOME])
        column = str(column)
        parts = [column] if column in dataset.features else column.split("+")
        for part in parts:
            if part not in dataset.features:
                raise unknown(f"{field}: column of dataset {dataset.root}", part, dataset.features)
        if len(parts) > 1:
            dataset = side_by_side(dataset, column, parts)
        named[new] = column
    missing = [name for name in specs if name not in named and name not in dataset.features]
    words_missing = [name for name in missing if specs[name].words]
    for name in (name for name in missing if name not in words_missing):
        named[name] = _only_one(dataset, specs, name, field)
    for name, column in named.items():
        wrong = misfit(dataset.features[column], specs[name]) if name in specs else ""
        if wrong:
            raise ConfigError(f"{column} of dataset {dataset.root} {wrong}, the policy's {_key(name)!r}")
    out = dataset.also_named(named)
    for name in words_missing:
        key = _key(name)
        out = out.with_column(name, feature_of(name, specs[name]), said(dataset, key, specs[name]), spec=specs[name])
    return out


def misfit(feature: Feature, spec: Spec) -> str:
    """Mismatch between a column and a policy's array, as text: shape, or image dtype; "" if they match.

    Any numeric dtype is accepted for measured numbers. Images may have their channels first.
    """
    if feature.shape != spec.shape and not channels_first(feature, spec):
        return f"has shape {feature.shape}: expected {spec.shape}{_asked(feature, spec)}"
    if is_picture(spec) and feature.dtype != spec.dtype and not feature.is_picture:
        return f"is {feature.dtype}: expected {spec.dtype} or colour pictures"
    return ""


def channels_first(feature: Feature, spec: Spec) -> bool:
    """True if a column holds the spec's images with the channels as first axis."""
    if not is_picture(spec) or not feature.is_array or feature.shape == spec.shape:
        return False
    return (*feature.shape[1:], feature.shape[0]) == spec.shape


def _asked(feature: Feature, spec: Spec) -> str:
    """Hint about a wrong shape, for an error; "" if there is none."""
    shape, names = feature.shape, names_of(feature)
    if len(shape) == 3 and shape[0] in CHANNELS and shape[2] not in CHANNELS:
        return " (are its channels the first axis?)"
    if names is not None and not spec.words and not is_picture(spec) and len(shape) == len(spec.shape) == 1:
        said = "" if numbered(names) or numbered(spec.names) else difference(names, spec.names)
        return f" (it {said})" if said else ""
    return ""


def said(dataset: Dataset, key: str, spec: Spec) -> np.ndarray:
    """(F, W) word ids of each frame's task text, as a sim gives them.

    Args:
        dataset: the dataset.
        key: key of the policy's instruction, for errors.
        spec: spec of the instruction, with its length W and its vocabulary.

    Raises:
        ConfigError: a task text is empty, has more than W words, or a word outside the vocabulary.
    """
    index = dataset.frames("task_index")
    number = {word: i for i, word in enumerate(spec.words) if word}
    numbers = np.zeros((len(dataset.tasks), *spec.shape), spec.dtype)
    for task in np.unique(index).tolist():
        numbers[task] = encode(
            dataset.tasks[task],
            number,
            spec.shape[-1],
            what=f"dataset {dataset.root}: task {task} {dataset.tasks[task]!r}",
            limit=f", as the policy's {key!r} has",
            vocabulary=f"the policy's {key!r}",
        )
    return numbers[index]


def _only_one(dataset: Dataset, specs: Mapping[str, Spec], name: str, field: str) -> str:
    """The only column that can match the policy's single image, single vector, or action.

    Raises:
        ConfigError: there is no such column, there are several, or robotrl wrote the dataset, with its sim's keys.
    """
    key = _key(name)
    if name == ACTION:
        found = [column for column in ACTIONS if column in dataset.features and not dataset.verified]
        if len(found) == 1:
            return found[0]
        close = nearest(key, dataset.features)
        hint = f"did you mean {close!r}? " if close else ""
        raise ConfigError(
            f"dataset {dataset.root} has no column {key!r}: {hint}its columns are {_columns(dataset)}; expected"
            f" {field} to say which it is, e.g. {key}={close or next(iter(dataset.features))}"
        )
    if key in dataset.features and not dataset.verified and not misfit(dataset.features[key], specs[name]):
        return key
    picture = is_picture(specs[name])
    found = [column for column in _observed(dataset) if _holds(dataset.features[column], picture)]
    if not found:
        raise ConfigError(
            f"observation {key!r} is unknown: dataset {dataset.root} has no {'picture' if picture else 'vector'} for"
            f" it: its columns are {_columns(dataset)}"
        )
    observed = [other for other, spec in specs.items() if other != ACTION and not spec.words]
    wanted = [other for other in observed if is_picture(specs[other]) == picture]
    if len(found) == len(wanted) == 1 and not dataset.verified:
        return found[0]
    kind, likely = "pictures" if picture else "vectors", nearest(name, found) or found[0]
    raise ConfigError(
        f"dataset {dataset.root} has no {name!r}: its {kind} are {', '.join(found)}, the policy's"
        f" {', '.join(map(_key, wanted))}; expected {field} to say which is which, e.g. {key!r} is {likely}"
    )


def _key(name: str) -> str:
    return name.removeprefix(observation_key(""))


def _observed(dataset: Dataset) -> list[str]:
    """Candidate observation columns: those with the prefix `observation.`, or else all that have no other role."""
    said = [name for name in dataset.features if name.startswith(observation_key(""))]
    other = (*ACTIONS, *COUNTERS, *OUTCOME)
    return said or [name for name in dataset.features if name not in other and not name.startswith("next.")]


def _columns(dataset: Dataset) -> str:
    """Names of the columns that a user may choose."""
    return ", ".join(name for name in dataset.features if name not in COUNTERS)


def _holds(feature: Feature, picture: bool) -> bool:
    if picture:
        return feature.is_picture or (feature.is_array and len(feature.shape) == 3)
    return feature.is_array and len(feature.shape) < 3
