"""A dataset as a policy sees it: columns by the policy's keys, and what was to be done as numbers of its words.

Other writers have names of their own for cameras, and say what was to be done as a text, the frame's task; ours have
the sim's keys, and word numbers among the observations.
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
"""Names of the action's column, ours and openpi's."""
CHANNELS = (1, 2, 3, 4)
"""How many channels a picture usually has."""


def as_seen(
    dataset: Dataset,
    observation_spec: Mapping[str, Spec],
    columns: Mapping[str, str] | None = None,
    field: str = "columns",
    action_spec: Spec | None = None,
) -> Dataset:
    """The dataset with a column for each of a policy's observations and the action, as far as it has what belongs.

    A column that `columns` names has that key, several joined by "+" are put side by side, one with the policy's own
    name keeps it, with `observation.` in front or without. Where an instruction has no column, the frames' tasks are
    said in the policy's words. Where another writer's dataset has one picture and the policy sees one, they are the
    same; likewise with vectors of numbers. Nothing else is guessed.

    Args:
        dataset: what `read_dataset` returned.
        observation_spec: what the policy reads.
        columns: the policy's keys, "action", and the frame's outcome ("next.reward", ...) to names of columns, e.g.
            "image" to "observation.images.front".
        field: the setting that `columns` comes from, for errors.
        action_spec: the action; None where it is not needed.

    Raises:
        ConfigError: an unknown key or column; an observation without a column, or that one of several may be; a column
            that is not as the policy's; a task that its words cannot say.
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
    told = [name for name in missing if specs[name].words]
    for name in (name for name in missing if name not in told):
        named[name] = _only_one(dataset, specs, name, field)
    for name, column in named.items():
        wrong = misfit(dataset.features[column], specs[name]) if name in specs else ""
        if wrong:
            raise ConfigError(f"{column} of dataset {dataset.root} {wrong}, the policy's {_key(name)!r}")
    out = dataset.also_named(named)
    for name in told:
        key = _key(name)
        out = out.with_column(name, feature_of(name, specs[name]), said(dataset, key, specs[name]), spec=specs[name])
    return out


def misfit(feature: Feature, spec: Spec) -> str:
    """What about a column is not as a policy's array, "" where all is: its shape, or no bytes for a picture.

    Numbers of any type are taken for measured ones. Pictures with their channels first are the same pictures.
    """
    if feature.shape != spec.shape and not channels_first(feature, spec):
        return f"has shape {feature.shape}: expected {spec.shape}{_asked(feature, spec)}"
    if is_picture(spec) and feature.dtype != spec.dtype and not feature.is_picture:
        return f"is {feature.dtype}: expected {spec.dtype} or colour pictures"
    return ""


def channels_first(feature: Feature, spec: Spec) -> bool:
    """Whether a column has the pictures of a spec with the channels as the first axis."""
    if not is_picture(spec) or not feature.is_array or feature.shape == spec.shape:
        return False
    return (*feature.shape[1:], feature.shape[0]) == spec.shape


def _asked(feature: Feature, spec: Spec) -> str:
    """The question behind a wrong shape; "" where there is none."""
    shape, names = feature.shape, names_of(feature)
    if len(shape) == 3 and shape[0] in CHANNELS and shape[2] not in CHANNELS:
        return " (are its channels the first axis?)"
    if names is not None and not spec.words and not is_picture(spec) and len(shape) == len(spec.shape) == 1:
        said = "" if numbered(names) or numbered(spec.names) else difference(names, spec.names)
        return f" (it {said})" if said else ""
    return ""


def said(dataset: Dataset, key: str, spec: Spec) -> np.ndarray:
    """(F, W) the word numbers of each frame's task, as a sim gives them.

    Args:
        dataset: whose.
        key: of the policy's instruction, for errors.
        spec: of it, with its W words at most and its vocabulary.

    Raises:
        ConfigError: a task of a frame has no word, more than W, or one outside the vocabulary.
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
    """The one column of a dataset that the policy's one picture, its one vector of numbers, or its action can be.

    Raises:
        ConfigError: there is none, there are several, or the dataset is ours and has the keys of its sim.
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
    """The policy's key of a column: "state" of "observation.state"."""
    return name.removeprefix(observation_key(""))


def _observed(dataset: Dataset) -> list[str]:
    """Columns that may be observations: those that say so, or, where none does, all that are nothing else."""
    said = [name for name in dataset.features if name.startswith(observation_key(""))]
    other = (*ACTIONS, *COUNTERS, *OUTCOME)
    return said or [name for name in dataset.features if name not in other and not name.startswith("next.")]


def _columns(dataset: Dataset) -> str:
    """Names of the columns that a user may name."""
    return ", ".join(name for name in dataset.features if name not in COUNTERS)


def _holds(feature: Feature, picture: bool) -> bool:
    if picture:
        return feature.is_picture or (feature.is_array and len(feature.shape) == 3)
    return feature.is_array and len(feature.shape) < 3
