"""Faulty datasets and statistics: contradictions to a sim, to their own tables, or to their frames."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.faults.kind import Kind, Outcome, outcome_of
from robotrl.datasets.agreement.agree import agree, check_reach
from robotrl.datasets.lerobot import Dataset, DatasetWriter, read_dataset
from robotrl.importers.ranges import check_ranges
from robotrl.rewards.labels import label_dataset
from robotrl.spec import Spec
from robotrl.transforms import Affine, TransformGroup, bounds_to_unit, inverse

Rng = np.random.Generator
Rows = dict[str, np.ndarray]

RATE_HZ = 20
FRAMES = "data/chunk-000/file-000.parquet"
INF = float("inf")
STATE = Spec(
    (5,),
    ("tip_x", "tip_y", "tip_z", "elbow", "wrist"),
    ("m", "m", "m", "rad", "rad"),
    (-1.0, -1.0, -1.0, -3.0, -INF),
    (1.0, 1.0, 1.0, 3.0, INF),
)
ACTION = Spec((4,), ("x", "y", "z", "yaw"), ("m", "m", "m", "rad"), (-1.0, -1.0, -1.0, -3.2), (1.0, 1.0, 1.0, 3.2))
EYE = Spec((4, 6, 3), ("red", "green", "blue"), ("1",) * 3, (0.0,) * 3, (255.0,) * 3, "uint8")
SPECS = {"state": STATE, "eye": EYE}
FILES = (FRAMES, "meta/episodes/chunk-000/file-000.parquet", "meta/tasks.parquet", "meta/info.json", "meta/stats.json")
REFUSED, WARNED, CORRECTED, HARMLESS = Outcome.REFUSED, Outcome.WARNED, Outcome.CORRECTED, Outcome.HARMLESS


def episodes(rng: Rng) -> list[Rows]:
    """Two or three episodes of random states and actions within the bounds."""
    found: list[Rows] = []
    for _ in range(int(rng.integers(2, 4))):
        length = int(rng.integers(8, 16))
        state = rng.uniform(-0.9, 0.9, (length, 5)) * [1, 1, 1, 3, 3]
        action = rng.uniform(-0.9, 0.9, (length, 4)) * ACTION.high
        eye = rng.integers(0, 256, (length, *EYE.shape), np.uint8)
        found.append({"state": state.astype(np.float32), "eye": eye, "action": action.astype(np.float32)})
    return found


def write(root: Path, rows: list[Rows], state: Spec = STATE, action: Spec = ACTION, verified: bool = True) -> Path:
    """Write a dataset; with `verified` False without our manifest, as other programs do."""
    with DatasetWriter(root, fps=RATE_HZ, observation_spec={"state": state, "eye": EYE}, action_spec=action) as writer:
        for one in rows:
            obs, count = {"state": one["state"], "eye": one["eye"]}, len(one["action"])
            writer.add_episode(obs, one["action"], np.zeros(count), success=True, task="go")
        writer.finish()
    if not verified:
        (root / "meta/robotrl.json").unlink()
    return root


def learned(dataset: Dataset, **options: Any) -> Dataset:
    """A dataset after the checks that every learner applies."""
    return agree(dataset, SPECS, ACTION, 1 / RATE_HZ, **options)


def same(dataset: Dataset, rows: list[Rows]) -> bool:
    """True if the learned arrays are the recorded ones."""
    names = {"observation.state": "state", "observation.eye": "eye", "action": "action"}
    return all(
        np.array_equal(dataset.frames(name), np.concatenate([one[key] for one in rows])) for name, key in names.items()
    )


def corrected(root: Path, rows: list[Rows], used: Outcome = CORRECTED, **options: Any) -> Outcome:
    """Outcome of a dataset that can be corrected: `used` if the learned arrays are the recorded ones."""
    found: list[Dataset] = []
    out = outcome_of(lambda: found.append(learned(read_dataset(root), **options)), used)
    return out if not found or same(found[0], rows) else Outcome.SILENT


def taken(spec: Spec, order: np.ndarray) -> Spec:
    """A spec with its elements reordered."""
    names, units, low, high = (tuple(of[i] for i in order) for of in (spec.names, spec.units, spec.low, spec.high))
    return replace(spec, names=names, units=units, low=low, high=high)


def edit_json(root: Path, name: str, change: Callable[[Any], None]) -> None:
    """Change a JSON file in place."""
    content = json.loads((root / name).read_text())
    change(content)
    (root / name).write_text(json.dumps(content))


def edit_column(root: Path, name: str, values: pa.Array, dtype: str | None = None) -> None:
    """Replace a column of the frames, and remove the statistics, which would differ."""
    table = pq.read_table(root / FRAMES)
    pq.write_table(table.set_column(table.column_names.index(name), name, values), root / FRAMES)
    (root / "meta/stats.json").unlink(missing_ok=True)
    if dtype is not None:
        edit_json(root, "meta/info.json", lambda info: info["features"][name].update(dtype=dtype))


def column(root: Path, name: str) -> np.ndarray:
    """A numeric column of the frames."""
    return pq.read_table(root / FRAMES)[name].to_numpy().copy()


def permuted(key: str, rng: Rng, folder: Path) -> Outcome:
    """Reordered elements with matching names, written by us or by another program."""
    rows, spec = episodes(rng), ACTION if key == "action" else STATE
    order = rng.permutation(len(spec.names))
    moved = [{**one, key: one[key][:, order]} for one in rows]
    state, action = (STATE, taken(spec, order)) if key == "action" else (taken(spec, order), ACTION)
    root = write(folder / "d", moved, state, action, bool(rng.integers(2)))
    return corrected(root, rows)


def renamed(rng: Rng, folder: Path) -> Outcome:
    """A robotrl dataset with another element name."""
    names = list(ACTION.names)
    names[rng.integers(4)] = str(rng.choice(["jaw", "roll", "yaw_w", "X2", "speed"]))
    root = write(folder / "d", episodes(rng), action=replace(ACTION, names=tuple(names)))
    return outcome_of(lambda: learned(read_dataset(root)))


def elsewhere(rng: Rng, folder: Path) -> Outcome:
    """Another writer's names, some of them the sim's at other positions, others unknown to the sim."""
    names = ["grip", *(str(name) for name in rng.permutation(ACTION.names)[:3])]
    while any(a == b for a, b in zip(names[1:], ACTION.names[1:], strict=True)):
        names = ["grip", *(str(name) for name in rng.permutation(ACTION.names)[:3])]
    root = write(folder / "d", episodes(rng), verified=False)
    said = names if rng.integers(2) else {"motors": names}
    edit_json(root, "meta/info.json", lambda info: info["features"]["action"].update(names=said))
    return outcome_of(lambda: learned(read_dataset(root)))


def nameless(rng: Rng, folder: Path) -> Outcome:
    """Another writer's names that carry no information, or no names."""
    said = [[f"action_{i}" for i in range(4)], None, list("abcd"), {"axes": ["0", "1", "2", "3"]}][rng.integers(4)]
    rows = episodes(rng)
    root = write(folder / "d", rows, verified=False)
    edit_json(root, "meta/info.json", lambda info: info["features"]["action"].update(names=said))
    return corrected(root, rows, Outcome.SILENT)


def other_numbers(change: Callable[[Rng, np.ndarray, int], np.ndarray], rng: Rng, folder: Path) -> Outcome:
    """Actions with one element in other units or with another zero point."""
    rows, j = episodes(rng), int(rng.integers(4))
    for one in rows:
        one["action"][:, j] = change(rng, one["action"][:, j], j)
    free = replace(ACTION, low=(-INF,) * 4, high=(INF,) * 4)
    root = write(folder / "d", rows, action=free, verified=bool(rng.integers(2)))
    return outcome_of(lambda: learned(read_dataset(root)))


def at_the_writer(rng: Rng, folder: Path) -> Outcome:
    """Actions in other units than those of the spec that is written with them."""
    rows = episodes(rng)
    rows[-1]["action"] = rows[-1]["action"] * float(rng.choice([10.0, 57.3, 100.0, 1000.0]))
    return outcome_of(lambda: write(folder / "d", rows))


def other_unit(rng: Rng, folder: Path) -> Outcome:
    """Another unit stated by a robotrl dataset, for the action or a measured element."""
    spec = (STATE, ACTION)[rng.integers(2)]
    units = list(spec.units)
    units[rng.integers(len(units))] = str(rng.choice(["deg", "mm", "m/s", "1", "%"]))
    other = replace(spec, units=tuple(units))
    state, action = (other, ACTION) if spec is STATE else (STATE, other)
    root = write(folder / "d", episodes(rng), state, action)
    return outcome_of(lambda: learned(read_dataset(root)))


def other_times(change: Callable[[Rng, np.ndarray, np.ndarray], np.ndarray], rng: Rng, folder: Path) -> Outcome:
    """Frame times that contradict the rate."""
    root = write(folder / "d", episodes(rng), verified=False)
    values = change(rng, column(root, "timestamp").astype(np.float64), column(root, "frame_index"))
    edit_column(root, "timestamp", pa.array(values, pa.float32()))
    return outcome_of(lambda: learned(read_dataset(root)))


def other_statistics(keys: tuple[str, ...], rng: Rng, folder: Path) -> Outcome:
    """Statistics of another dataset."""
    rows = episodes(rng)
    root = write(folder / "d", rows, verified=False)
    name, key = str(rng.choice(["action", "observation.state"])), str(rng.choice(keys))
    factor = float(rng.choice([-1.0, 0.01, 0.5, 3.0, 100.0]))

    def change(stats: Any) -> None:
        stats[name][key] = [factor * x for x in stats[name][key]]

    edit_json(root, "meta/stats.json", change)
    return corrected(root, rows, Outcome.SILENT)


def less_statistics(rng: Rng, folder: Path) -> Outcome:
    """Statistics without quantiles, as in earlier versions."""
    rows = episodes(rng)
    root = write(folder / "d", rows, verified=False)
    gone = [str(key) for key in rng.permutation(["q01", "q10", "q50", "q90", "q99", "count"])[: rng.integers(1, 7)]]

    def drop(stats: Any) -> None:
        for of in stats.values():
            for key in gone:
                of.pop(key)

    edit_json(root, "meta/stats.json", drop)
    return corrected(root, rows, HARMLESS)


def no_flags(rng: Rng, folder: Path) -> Outcome:
    """Success flags that are neither 0 nor 1, for a success classifier."""
    root = write(folder / "d", episodes(rng), verified=False)
    values = column(root, "next.success").astype(np.float32)
    values[rng.integers(len(values))] = rng.choice([0.5, -1.0, 2.0, 255.0, 1e-3])
    edit_column(root, "next.success", pa.array(values, pa.float32()), "float32")
    return outcome_of(lambda: label_dataset(agree(read_dataset(root), {"state": STATE}, None, None), ["state"], 1))


def not_finite(rng: Rng, folder: Path) -> Outcome:
    """A reward that is NaN or infinite."""
    root = write(folder / "d", episodes(rng), verified=False)
    values = column(root, "next.reward")
    values[rng.integers(len(values))] = rng.choice([np.nan, np.inf, -np.inf])
    edit_column(root, "next.reward", pa.array(values, pa.float32(), from_pandas=False))
    return outcome_of(lambda: learned(read_dataset(root)))


def pointer(rng: Rng, folder: Path) -> Outcome:
    """A git-LFS pointer in place of a file."""
    root = write(folder / "d", episodes(rng), verified=bool(rng.integers(2)))
    digest = "".join(str(x) for x in rng.integers(0, 10, 64))
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {rng.integers(1000, 10**9)}\n"
    (root / str(rng.choice(FILES))).write_text(text)
    return outcome_of(lambda: read_dataset(root))


def channels_first(rng: Rng, folder: Path) -> Outcome:
    """Images with their channels as first axis."""
    rows = episodes(rng)
    root = write(folder / "d", rows, verified=False)
    first = np.moveaxis(np.concatenate([one["eye"] for one in rows]), -1, 1)
    nested = pa.list_(pa.list_(pa.list_(pa.uint8())))
    edit_column(root, "observation.eye", pa.array(first.tolist(), nested))
    names = [["channels", "height", "width"], None][rng.integers(2)]
    edit_json(
        root, "meta/info.json", lambda info: info["features"]["observation.eye"].update(shape=[3, 4, 6], names=names)
    )
    return corrected(root, rows)


def other_columns(rng: Rng, folder: Path) -> Outcome:
    """Columns with names of other programs, found automatically or by `columns`."""
    rows = episodes(rng)
    root = write(folder / "d", rows, verified=False)
    known = {"action": ("actions",), "observation.state": ("state",), "observation.eye": ("eye", "image")}
    odd = {"action": ("command", "act"), "observation.state": ("qpos", "proprio"), "observation.eye": ("wrist_image",)}
    in_names = bool(rng.integers(2))
    names = {old: str(rng.choice((odd if in_names else known)[old])) for old in known}
    edit_json(
        root,
        "meta/info.json",
        lambda info: info.update(features={names.get(k, k): v for k, v in info["features"].items()}),
    )
    table = pq.read_table(root / FRAMES)
    pq.write_table(table.rename_columns([names.get(name, name) for name in table.column_names]), root / FRAMES)
    (root / "meta/stats.json").unlink()
    columns = {old.removeprefix("observation."): new for old, new in names.items()} if in_names else None
    return corrected(root, rows, columns=columns)


def too_narrow(rng: Rng, folder: Path) -> Outcome:
    """A policy whose action range is too small for the recorded actions, or so large that its bins are too wide."""
    root = write(folder / "d", episodes(rng))
    low, high = np.array(ACTION.low), np.array(ACTION.high)
    j = int(rng.integers(4))
    middle, half = rng.uniform(-0.5, 0.5), float(rng.choice([1e-7, 0.01, 0.2]))
    low[j], high[j] = middle - half, middle + half
    group = TransformGroup((), (inverse(bounds_to_unit("action", low.tolist(), high.tolist())),))
    return outcome_of(lambda: check_reach(learned(read_dataset(root)), group, ACTION, 1.0))


def imported(rng: Rng, folder: Path) -> Outcome:
    """A published policy with another robot's statistics, of actions or of measurements."""
    del folder
    scale, offset = np.array(ACTION.high) * 0.8, np.zeros(4)
    seen, about = 1 / np.array([0.5, 0.5, 0.5, 1.0, 1.0]), np.zeros(5)
    j, what = int(rng.integers(4)), int(rng.integers(4))
    if what == 0:
        scale[j] *= float(rng.choice([57.3, 90.0, 100.0, 1000.0]))
    elif what == 1:
        scale[j] *= float(rng.choice([1e-4, 1e-7]))
    elif what == 2:
        scale[j], offset[j] = 40.0, 60.0
    else:
        seen[j] = 1 / float(rng.choice([1e-9, 1e-6, 90.0, 180.0]))
    state = Affine("state", tuple(seen.tolist()), tuple(about.tolist()))
    group = TransformGroup((state,), (Affine("action", tuple(scale.tolist()), tuple(offset.tolist())),))
    return outcome_of(lambda: check_ranges("theirs", group, {"state": STATE}, ACTION))


def flipped(rng: Rng, folder: Path) -> Outcome:
    """One changed byte in any file of a robotrl dataset."""
    root = write(folder / "d", episodes(rng))
    path = root / str(rng.choice([*FILES, "meta/robotrl.json"]))
    data = bytearray(path.read_bytes())
    data[rng.integers(len(data))] ^= int(rng.integers(1, 256))
    path.write_bytes(bytes(data))
    return outcome_of(lambda: read_dataset(root))


ODD: tuple[Any, ...] = (None, -1, 0, 3.5, 10**30, "", "x" * 40, [], {}, [[1, [2]]], True, float("1e308"), ["a"] * 3)


def odd_json(name: str, rng: Rng, folder: Path) -> Outcome:
    """A JSON file of another writer with one random value replaced."""
    rows = episodes(rng)
    root = write(folder / "d", rows, verified=False)
    content = json.loads((root / name).read_text())
    at: Any = content
    while True:
        keys: list[Any] = list(at) if isinstance(at, dict) else list(range(len(at)))
        key = keys[rng.integers(len(keys))]
        inner = at[key]
        if not isinstance(inner, dict | list) or not inner or rng.integers(4) == 0:
            break
        at = inner
    if rng.integers(3) == 0 and isinstance(at, dict):
        del at[key]
    else:
        at[key] = ODD[rng.integers(len(ODD))]
    (root / name).write_text(json.dumps(content))
    return corrected(root, rows, HARMLESS)


def odd_column(rng: Rng, folder: Path) -> Outcome:
    """A column of another type, with nulls, or with lists of unequal lengths."""
    root = write(folder / "d", episodes(rng), verified=False)
    name = str(rng.choice(["action", "observation.state", "timestamp", "index", "next.reward", "task_index"]))
    count = len(column(root, "index"))
    ragged = pa.array([[0.0] * int(rng.integers(0, 4)) for _ in range(count)], pa.list_(pa.float32()))
    odd = [pa.array(["a"] * count), pa.nulls(count, pa.float32()), ragged, pa.array([None] + [1] * (count - 1))]
    edit_column(root, name, odd[rng.integers(len(odd))])
    return outcome_of(lambda: learned(read_dataset(root)))


def _degrees(rng: Rng, x: np.ndarray, j: int) -> np.ndarray:
    return x * float(rng.choice([57.3, 100.0, 1000.0] if j < 3 else [57.3, 100.0]))


def _moved(rng: Rng, x: np.ndarray, j: int) -> np.ndarray:
    return x + float(rng.choice([-1, 1]) * rng.uniform(2.2, 9.0) * ACTION.high[j])


def _gap(rng: Rng, t: np.ndarray, frame: np.ndarray) -> np.ndarray:
    return t + float(rng.choice([0.05, 0.15, 1.0, 60.0])) * (frame > rng.integers(1, 6))


KINDS: tuple[Kind, ...] = (
    Kind("action elements in another order", (CORRECTED,), 80, partial(permuted, "action")),
    Kind("measured elements in another order", (CORRECTED,), 80, partial(permuted, "state")),
    Kind("another element by name", (REFUSED,), 60, renamed),
    Kind("names of another writer in other places", (REFUSED,), 60, elsewhere),
    Kind("names that say nothing", (WARNED,), 60, nameless),
    Kind("actions in other units", (REFUSED,), 80, partial(other_numbers, _degrees)),
    Kind("actions with another zero", (REFUSED,), 60, partial(other_numbers, _moved)),
    Kind("actions in other units at the writer", (REFUSED,), 60, at_the_writer),
    Kind("another unit stated", (REFUSED,), 60, other_unit),
    Kind(
        "frames at another rate",
        (REFUSED,),
        60,
        partial(other_times, lambda rng, t, _: t * float(rng.choice([1 / 3, 0.5, 0.9, 1.1, 1.5, 3.0, 1000.0]))),
    ),
    Kind("gaps and pauses", (REFUSED,), 60, partial(other_times, _gap)),
    Kind(
        "clock time",
        (REFUSED,),
        30,
        partial(other_times, lambda rng, t, _: t + float(rng.choice([1.5e9, 1.7e9, 1e18]))),
    ),
    Kind(
        "steps back in time",
        (REFUSED,),
        40,
        partial(other_times, lambda rng, t, frame: t - rng.uniform(0.1, 5.0) * (frame > rng.integers(1, 6))),
    ),
    Kind(
        "frames that shake",
        (WARNED,),
        40,
        partial(other_times, lambda rng, t, _: t + rng.uniform(0, 0.02, len(t))),
    ),
    Kind("statistics of other data", (REFUSED,), 80, partial(other_statistics, ("min", "max", "mean", "std"))),
    Kind("quantiles of other data", (WARNED,), 60, partial(other_statistics, ("q01", "q10", "q90", "q99"))),
    Kind("statistics that are not all there", (HARMLESS,), 60, less_statistics),
    Kind("successes that are no flags", (REFUSED,), 60, no_flags),
    Kind("rewards that are not finite", (REFUSED,), 40, not_finite),
    Kind("files that git-LFS did not fetch", (REFUSED,), 60, pointer),
    Kind("pictures with channels first", (CORRECTED,), 40, channels_first),
    Kind("columns by other names", (CORRECTED, WARNED), 60, other_columns),
    Kind("a policy that cannot say what was recorded", (REFUSED,), 60, too_narrow),
    Kind("imported statistics of another robot", (WARNED, REFUSED), 100, imported),
    Kind("one changed byte of a dataset of ours", (REFUSED,), 80, flipped),
    Kind("another value in info.json", (REFUSED, HARMLESS, WARNED), 120, partial(odd_json, "meta/info.json")),
    Kind("another value in stats.json", (REFUSED, HARMLESS, WARNED), 120, partial(odd_json, "meta/stats.json")),
    Kind("columns of another type", (REFUSED,), 60, odd_column),
)
