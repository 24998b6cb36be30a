"""A dataset as a policy sees it: columns by the policy's keys, and what was to be done as numbers of its words.

Other writers have names of their own for cameras, and say what was to be done as a text, the frame's task; ours have
the sim's keys, and word numbers among the observations.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from robotrl.data.layout import Feature, feature_of, observation_key
from robotrl.data.reader import Dataset
from robotrl.errors import ConfigError, nearest, unknown
from robotrl.fn.words import encode
from robotrl.spec import Spec, is_picture


def as_seen(
    dataset: Dataset,
    observation_spec: Mapping[str, Spec],
    columns: Mapping[str, str] | None = None,
    field: str = "columns",
) -> Dataset:
    """The dataset with a column for each of a policy's observations, as far as it has what belongs there.

    A column that `columns` names has that key, one with the policy's own name keeps it. Where an instruction has no
    column, the frames' tasks are said in the policy's words. Where another writer's dataset has one picture and the
    policy sees one, they are the same; likewise with vectors of numbers. Nothing else is guessed.

    Args:
        dataset: what `read_dataset` returned.
        observation_spec: what the policy reads.
        columns: the policy's keys to names of columns, e.g. "image" to "observation.images.front".
        field: the setting that `columns` comes from, for errors.

    Raises:
        ConfigError: an unknown key or column; an observation without a column, or that one of several may be; a column
            that is not as the policy's; a task that its words cannot say.
    """
    named = {key: str(column) for key, column in (columns or {}).items()}
    for key, column in named.items():
        if key not in observation_spec:
            raise unknown(f"{field}: observation", key, observation_spec)
        if column not in dataset.features:
            raise unknown(f"{field}: column of dataset {dataset.root}", column, dataset.features)
    missing = [key for key in observation_spec if key not in named and observation_key(key) not in dataset.features]
    told = [key for key in missing if observation_spec[key].words]
    for key in (key for key in missing if key not in told):
        named[key] = _only_one(dataset, observation_spec, key, field)
    for key, column in named.items():
        wrong = misfit(dataset.features[column], observation_spec[key])
        if wrong:
            raise ConfigError(f"{column} of dataset {dataset.root} {wrong}, the policy's {key!r}")
    out = dataset.also_named({observation_key(key): column for key, column in named.items()})
    for key in told:
        name = observation_key(key)
        out = out.with_column(name, feature_of(name, observation_spec[key]), said(dataset, key, observation_spec[key]))
    return out


def misfit(feature: Feature, spec: Spec) -> str:
    """What about a column is not as a policy's array, "" where all is: its shape, or no bytes for a picture.

    Numbers of any type are taken for measured ones.
    """
    if feature.shape != spec.shape:
        return f"has shape {feature.shape}: expected {spec.shape}"
    if is_picture(spec) and feature.dtype != spec.dtype and not feature.is_picture:
        return f"is {feature.dtype}: expected {spec.dtype} or colour pictures"
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


def _only_one(dataset: Dataset, observation_spec: Mapping[str, Spec], key: str, field: str) -> str:
    """The one column of a dataset that the policy's one picture, or its one vector of numbers, can be.

    Raises:
        ConfigError: there is none, there are several, or the dataset is ours and has the keys of its sim.
    """
    observed = {name: x for name, x in dataset.features.items() if name.startswith(observation_key(""))}
    picture = is_picture(observation_spec[key])
    found = [name for name, feature in observed.items() if _holds(feature, picture)]
    if not found:
        raise unknown("observation", key, [name.removeprefix(observation_key("")) for name in observed])
    wanted = [other for other, spec in observation_spec.items() if not spec.words and is_picture(spec) == picture]
    if len(found) == len(wanted) == 1 and not dataset.verified:
        return found[0]
    kind, likely = "pictures" if picture else "vectors", nearest(key, found) or found[0]
    raise ConfigError(
        f"dataset {dataset.root} has no {observation_key(key)!r}: its {kind} are {', '.join(found)}, the policy's"
        f" {', '.join(wanted)}; expected {field} to say which is which, e.g. {key!r} is {likely}"
    )


def _holds(feature: Feature, picture: bool) -> bool:
    if picture:
        return feature.is_picture or (feature.is_array and len(feature.shape) == 3)
    return feature.is_array and len(feature.shape) < 3
