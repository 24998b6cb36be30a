"""Datasets of Minari as ours, and ours as Minari's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robotrl.api.recorder import Recorder
from robotrl.datasets.layout import ACTION, observation_key
from robotrl.datasets.reader import Dataset, read_dataset
from robotrl.errors import ConfigError
from robotrl.spec import Spec
from robotrl.utils.installation import install_line

SUCCESS_FLAGS = ("success", "is_success")
"""Info keys that state success, in the order in which they are looked for."""
Success = bool | str | Callable[[Any], bool]


def import_minari(
    source: Any,
    out: Path | str,
    *,
    env: Any = None,
    fps: int | None = None,
    success: Success = "auto",
    task: str | None = None,
) -> Path:
    """Write a Minari dataset as a dataset of ours.

    Stored is the observation before each action: an episode's last observation has no row in our layout.

    Args:
        source: a `minari.MinariDataset`, or the id of a local one ("mujoco/hopper/expert-v0"). Nothing is downloaded,
            and no environment is made.
        out: the dataset's directory; absent or empty.
        env: environment that it is of, for the rate, and for the names that the sim `gym/ID` gives the columns; None
            takes the dataset's spaces.
        fps: control rate in Hz; None takes the environment's.
        success: "auto" reads "success" or "is_success" of the last step's info, another text reads that key; a bool
            holds for all episodes; a function gets each `minari.EpisodeData`.
        task: the instruction; None takes the dataset's id.

    Returns:
        `out`.

    Raises:
        ConfigError: Minari is not installed, there is no such dataset, a space that is not supported, an unknown rate,
            or an episode whose success is not stated.
    """
    from robotrl.sims.interop.own_env import env_of_spaces

    dataset = _minari_dataset(source)
    name: str = dataset.spec.dataset_id
    if fps is None and env is None:
        raise ConfigError("fps is None without env: expected the control rate in Hz, which Minari does not store")
    provenance = {"minari": name, "minari_version": dataset.minari_version}
    recorded = env if env is not None else env_of_spaces(dataset.observation_space, dataset.action_space)
    with Recorder(out, recorded, fps, task=task or name, provenance=provenance) as recorder:
        for episode in dataset.iterate_episodes():
            recorder.start()
            for t in range(len(episode)):
                recorder.step(_row(episode.observations, t), _row(episode.actions, t), float(episode.rewards[t]))
            truncated = bool(episode.truncations[-1]) and not bool(episode.terminations[-1])
            recorder.end(success=_succeeded(success, episode, name), truncated=truncated)
    return Path(out)


def export_minari(source: Dataset | Path | str, dataset_id: str, **about: Any) -> Any:
    """Write a dataset of ours as a local Minari dataset.

    One observation array becomes a `Box`, several a `Dict`. Minari wants the observation after the last action, too,
    which our layout has no row for: the last one is repeated. `infos["success"]` has each step's success.

    Args:
        source: the dataset, or its directory.
        dataset_id: Minari's id, e.g. "peg/expert-v0".
        about: further arguments of `minari.create_dataset_from_buffers` (author, description, env, ...).

    Returns:
        The `minari.MinariDataset`.

    Raises:
        ConfigError: Minari is not installed, or there is a dataset of that id.
    """
    minari = _minari()
    from minari.data_collector import EpisodeBuffer

    from robotrl.sims.interop.views import space_of, spaces_of

    dataset = source if isinstance(source, Dataset) else read_dataset(source)
    if dataset_id in minari.list_local_datasets():
        raise ConfigError(f"dataset_id is {dataset_id!r}: expected another one, Minari has this one already")
    prefix = observation_key("")
    columns = [name for name in dataset.features if name.startswith(prefix)]
    parts = {name.removeprefix(prefix): _spec(dataset, name) for name in columns}
    only = next(iter(parts)) if len(parts) == 1 else None
    buffers: list[Any] = []
    for number in range(dataset.num_episodes):
        rows = slice(int(dataset.offsets[number]), int(dataset.offsets[number + 1]))
        seen = {key: _with_last(_shaped(dataset, observation_key(key))[rows]) for key in parts}
        cut, ended = (dataset.frames(f"next.{flag}")[rows].astype(bool) for flag in ("truncated", "done"))
        flags = dataset.frames("next.success")[rows].astype(bool)
        buffers.append(
            EpisodeBuffer(
                id=number,
                observations=seen[only] if only is not None else seen,  # pyright: ignore[reportArgumentType]
                actions=_shaped(dataset, ACTION)[rows],  # pyright: ignore[reportArgumentType]
                rewards=dataset.frames("next.reward")[rows].tolist(),
                terminations=(ended & ~cut).tolist(),
                truncations=cut.tolist(),
                infos={"success": np.concatenate([[False], flags])},
            )
        )
    return minari.create_dataset_from_buffers(
        dataset_id,
        buffers,
        observation_space=spaces_of(parts),
        action_space=space_of(_spec(dataset, ACTION)),
        jpeg_encoding=False,
        **about,
    )


def _minari() -> Any:
    try:
        import minari
    except ModuleNotFoundError as error:
        raise ConfigError(f"Minari datasets need the module {error.name!r}: {install_line('interop')}") from error
    return minari


def _minari_dataset(source: Any) -> Any:
    minari = _minari()
    if isinstance(source, minari.MinariDataset):
        return source
    if source not in minari.list_local_datasets():
        known = ", ".join(minari.list_local_datasets()) or "there are none"
        raise ConfigError(f"source is {source!r}: expected a local Minari dataset: {known}")
    return minari.load_dataset(source)


def _row(values: Any, t: int) -> Any:
    """Row t of nested arrays."""
    if isinstance(values, Mapping):
        return {key: _row(value, t) for key, value in values.items()}
    if isinstance(values, tuple):
        return tuple(_row(value, t) for value in values)
    return values[t]


def _succeeded(success: Success, episode: Any, name: str) -> bool:
    if isinstance(success, bool):
        return success
    if callable(success):
        return bool(success(episode))
    for key in SUCCESS_FLAGS if success == "auto" else (success,):
        if key in episode.infos:
            return bool(np.asarray(episode.infos[key]).reshape(-1)[-1])
    raise ConfigError(
        f"success is {success!r}, and the infos of {name} have {', '.join(episode.infos) or 'nothing'}: expected True"
        " (for all of them), False, a key of the infos, or a function of an episode"
    )


def _shaped(dataset: Dataset, column: str) -> NDArray[Any]:
    """A column (F, *shape); a feature of one number is (F,) in memory."""
    values = dataset.frames(column)
    return values.reshape(len(values), *dataset.features[column].shape)


def _with_last(values: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([values, values[-1:]])


def _spec(dataset: Dataset, column: str) -> Spec:
    """Spec of a column; without bounds if the dataset states none."""
    found = dataset.specs.get(column)
    if found is not None:
        return found
    shape = dataset.features[column].shape
    width = shape[-1] if shape else 1
    names = tuple(f"{column}_{i}" for i in range(width))
    return Spec(shape, names, ("?",) * width, (-np.inf,) * width, (np.inf,) * width)
