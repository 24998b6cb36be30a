"""Replay buffer: env steps of N streams, stored in ring buffers and sampled as action chunks.

A stream is one sequence of steps: those of an env, or of a set of demonstrations. Each step is stored once; the next
observation is that of the following step, and only the last observation of an episode is stored separately.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from robotrl.errors import ConfigError, DataError, check_at_least, unknown
from robotrl.replay.check import host
from robotrl.replay.directory import SHARD_BYTES, ReplayDirectory, make_directory
from robotrl.replay.layout import STEP, ReplayLayout
from robotrl.replay.priority import Prioritized, by_return, episode_returns
from robotrl.replay.recovery import damage, restore
from robotrl.replay.ring import Ring
from robotrl.replay.samplers import Mixed, Sampler, Uniform
from robotrl.replay.storage import DECISION, META, RamStorage, Storage
from robotrl.replay.types import HUMAN, SOURCES, Source, StepRecord, Transitions
from robotrl.replay.views import ChunkReach, chunks, observations, reach
from robotrl.spec import Arrays, Spec
from robotrl.spec.late_rewards import LateRewards

if TYPE_CHECKING:
    from robotrl.datasets.reader import Dataset

__all__ = [
    "SOURCES",
    "Mixed",
    "Prioritized",
    "Replay",
    "Sampler",
    "Source",
    "StepRecord",
    "Transitions",
    "Uniform",
    "by_return",
    "episode_returns",
]


class Replay:
    """Replay buffer with one ring of env steps per stream; made by `create` and `open`.

    A step is named by its index, (number of the step in its stream) * N + stream, which is never reused.

    Args:
        layout: shapes and sizes of the buffer.
        ring: storage of the steps.
        side: storage of the episodes' last observations.
        directory: directory on disk; None in RAM.
    """

    def __init__(
        self, layout: ReplayLayout, ring: Storage, side: Storage, directory: ReplayDirectory | None = None
    ) -> None:
        self.layout = layout
        self._may_miss = False
        """Steps may lack scores: the sim's rewards may be late."""
        self.changes = 0
        """Counter for samplers: increases whenever the set of steps that can be sampled changes."""
        self.dropped: tuple[str, ...] = ()
        """One line for each damaged shard and each shard with damaged rows that was dropped when the buffer was
        opened."""
        self.rollbacks = 0
        """Counter for samplers: increases whenever steps are rolled back, after which their indices are reused."""
        self.ring = Ring(layout, ring, side, directory is not None and directory.checked)
        """The ring buffers, for samplers."""
        self._directory = directory
        self._relabeled = directory.relabeled if directory else np.zeros(1, np.int64)

    @classmethod
    def create(
        cls,
        path: Path | str | None,
        observation_spec: Mapping[str, Spec],
        action_spec: Spec,
        *,
        streams: int,
        capacity: int,
        extras: Mapping[str, tuple[int, ...]] | None = None,
        control_dt_s: float | None = None,
        slack: int | None = None,
        shard_bytes: int = SHARD_BYTES,
        owner: str = "",
    ) -> Replay:
        """Make an empty replay buffer.

        Args:
            path: a new directory for it; None keeps it in RAM.
            observation_spec: the sim's observations.
            action_spec: the sim's action.
            streams: N, e.g. the sim's envs.
            capacity: env steps that can be sampled, of all streams together; each stream keeps capacity // N.
            extras: shapes of one row of further float32 columns, e.g. {"noise": (H, A)}; those named "step/NAME"
                belong to each step and are read along a chunk.
            control_dt_s: seconds between two steps, to refuse data of another rate; None: not checked.
            slack: on disk, additional steps that are kept so that an exact resume can roll back; None: an eighth of the
                capacity.
            shard_bytes: size of a shard on disk, rounded to whole pages.
            owner: optional name of the buffer's owner, stored in the header.

        Raises:
            ConfigError: a setting is out of range, or `path` exists.
            RobotrlError: writing failed.
        """
        kept = 0 if path is None else capacity // 8 if slack is None else slack
        layout = ReplayLayout(
            dict(observation_spec), action_spec, streams, capacity, kept, dict(extras or {}), control_dt_s
        )
        if path is not None:
            directory = make_directory(Path(path), layout, shard_bytes, owner)
            return cls(layout, directory.ring, directory.side, directory)
        ring = RamStorage(layout.ring_columns(), layout.rows)
        return cls(layout, ring, RamStorage(layout.side_columns(), layout.rows))

    @classmethod
    def open(cls, path: Path | str) -> Replay:
        """Open a replay buffer on disk, however the process that wrote it ended.

        Half-written steps are ignored; damaged shards and rows are dropped, listed in `dropped` and reported in a
        warning. Streams continue after their newest step: call `cut`, unless `load` follows.

        Raises:
            DataError: there is no buffer, or its header cannot be read.
            RobotrlError: another process has it open.
        """
        directory = ReplayDirectory(Path(path))
        replay = cls(directory.layout, directory.ring, directory.side, directory)
        shards = (*directory.ring.dropped, *directory.side.dropped)
        rows = replay.ring.damaged.tolist()
        replay.dropped = (*shards, *(f"{directory.ring.where(row)} is not as it was written" for row in rows))
        report = damage(shards, replay.dropped[len(shards) :], replay.ring.gaps())
        if report:
            warnings.warn(f"replay {path}: {report}, {len(replay)} steps are left", stacklevel=2)
        return replay

    def __len__(self) -> int:
        """Number of stored env steps, including those whose chunk is not complete."""
        return len(self.ring)

    @property
    def streams(self) -> int:
        """N."""
        return self.layout.streams

    def add(self, record: StepRecord, streams: Sequence[int] | None = None) -> None:
        """Store one step of all streams, or of some.

        Args:
            record: the step; its rows are copied.
            streams: (M,) which streams the M rows of the record belong to, each once; None: all N, in order.

        Raises:
            ConfigError: an array of the wrong shape, a missing or undeclared one, or ended rows without `final_obs`.
            RobotrlError: the disk is full.
        """
        self.ring.add(record, streams)
        self._may_miss |= record.missing is not None
        self.changes += 1

    def add_run(self, record: StepRecord, stream: int = 0) -> None:
        """Store M steps of one stream that follow each other, e.g. whole episodes.

        Args:
            record: rows in the order of time.
            stream: index of the stream.

        Raises:
            ConfigError: as for `add`, or the steps are more than the stream keeps.
        """
        self.ring.add_run(record, stream)
        self.changes += 1

    def add_demos(self, dataset: Dataset, stream: int = 0, accept: bool = False) -> int:
        """Store all episodes of a dataset in one stream, as "demo" steps; a chunk may begin at each of them.

        Returns the number of steps; see `robotrl.replay.demos`.

        Raises:
            ConfigError: its observations, action, rate or size do not fit; both values are named.
            DataError: the dataset is doubtful and not accepted; see `robotrl.datasets.agreement.agree`.
        """
        from robotrl.replay.demos import read_demos  # datasets need pyarrow, which nothing else here needs

        record = read_demos(dataset, self.layout, accept)
        self.add_run(record, stream)
        return len(record.reward)

    def cut(self, streams: Sequence[int] | None = None) -> None:
        """Mark that the next steps of these streams (None: all) do not follow the stored ones.

        Needed when an episode was abandoned without an end, e.g. by a reset. Starts whose chunk would cross the mark
        are not sampled.
        """
        self.ring.cut(streams)
        self.changes += 1

    def close_episode(self, streams: Sequence[int], last_obs: Arrays) -> None:
        """End the running episodes of these streams as truncated; streams without a running episode are unchanged.

        Args:
            streams: (M,).
            last_obs: (M, ...) each: the observation after the newest step of each of them.
        """
        self.ring.close_episode(streams, last_obs)
        self.changes += 1

    def view(self, index: Tensor, horizon: int, gamma: float) -> Transitions:
        """Chunks of `horizon` steps that begin at `index`.

        Args:
            index: (B,) int64 start steps.
            horizon: H, 1 or more.
            gamma: discount of each env step.

        Raises:
            ConfigError: one of them is no longer stored, or its chunk is not complete.
        """
        found = self.reach(index.numpy(), horizon)
        if not found.complete.all():
            wrong = int(found.starts[np.argmin(found.complete)])
            raise ConfigError(f"replay index {wrong}, horizon {horizon}: expected a stored step with a complete chunk")
        return self.gather(found, gamma)

    def set_reward(self, index: Tensor, values: Tensor) -> None:
        """Replace the rewards of steps, e.g. by those of a classifier.

        Args:
            index: (M,) int64 steps.
            values: (M,).

        Raises:
            ConfigError: a step is no longer stored, or a value is not finite.
        """
        ids, rewards = index.numpy(), host(values)
        if ids.shape != rewards.shape:
            raise ConfigError(f"rewards are of shape {rewards.shape}: expected {ids.shape}, one a step")
        stored = self.ring.stored(ids)
        if not stored.all():
            raise ConfigError(f"replay index {int(ids[np.argmin(stored)])}: expected a stored step")
        self._set_rewards(ids, rewards, None)

    def _set_rewards(self, ids: np.ndarray, rewards: np.ndarray, missing: np.ndarray | None) -> None:
        """Replace rewards (M,), and numbers of missing scores (M,), of stored steps (M,)."""
        if not np.isfinite(rewards).all():
            at = int(np.argmin(np.isfinite(rewards)))
            raise ConfigError(f"reward of replay index {int(ids[at])} is {rewards[at]}: expected finite")
        self._relabeled += 1
        self.ring.set_reward(ids % self.ring.rows, rewards, missing)

    def add_late(self, late: LateRewards) -> int:
        """Add late rewards to stored steps, which can be sampled once no score of theirs is missing.

        Args:
            late: the changes; `back` counts the steps of the stream since then.

        Returns:
            The number of changes whose steps are no longer stored, which are left out.

        Raises:
            ConfigError: a change is not finite.
        """
        stream, back, change, fresh = (host(x) for x in (late.env, late.back, late.change, late.fresh))
        number = self.ring.heads[stream] - 1 - back
        ids = number * self.streams + stream
        stored = (number >= 0) & self.ring.stored(ids)
        if stored.any():
            found, place = np.unique(ids[stored], return_inverse=True)
            total = self.ring.fields["reward"][found % self.ring.rows].astype(np.float64)
            np.add.at(total, place, change[stored])
            missing = self.ring.fields["missing"][found % self.ring.rows].astype(np.int64)
            np.subtract.at(missing, place, fresh[stored].astype(np.int64))
            self._set_rewards(found, total.astype(np.float32), np.maximum(missing, 0).astype(np.uint8))
        return int((~stored).sum())

    def set_extra(self, name: str, index: Tensor, values: Tensor) -> int:
        """Replace an extra column of steps, e.g. by an answer that came after the step; returns how many are stored.

        Steps that were overwritten meanwhile are left out.

        Args:
            name: the column.
            index: (M,) int64 steps, each once.
            values: (M, ...) NaN where there is no value.

        Raises:
            ConfigError: no such column, or values of another shape.
        """
        if name not in self.layout.extras:
            raise unknown("replay extras", name, self.layout.extras)
        expected = (len(index), *self.layout.extras[name])
        if values.shape != expected:
            raise ConfigError(f"replay extras {name!r} is of shape {tuple(values.shape)}: expected {expected}")
        ids = index.numpy()
        stored = self.ring.stored(ids)
        if stored.any():
            self._relabeled += 1
            self.ring.set_extra(name, ids[stored] % self.ring.rows, host(values)[stored])
        return int(stored.sum())

    def indices(self, horizon: int = 1, decisions: bool = False) -> Tensor:
        """(M,) int64: every step whose chunk is complete, stream by stream in the order of time.

        Args:
            horizon: H.
            decisions: only steps at which the policy began a chunk.
        """
        low, high = self.ring.window()
        ids = np.concatenate([np.arange(low[n], high[n]) * self.streams + n for n in range(self.streams)])
        block = 1 << 16
        parts = [self.sampleable(ids[at : at + block], horizon, decisions) for at in range(0, len(ids), block)]
        return torch.from_numpy(np.concatenate([ids[:0], *(found.starts for found in parts)]))

    def has_chunk(self, horizon: int = 1, decisions: bool = False) -> bool:
        """True if a step can be sampled: its chunk is complete, and its rewards are known; see `indices`.

        Of a sim whose rewards are never late it is true as soon as there are steps.
        """
        if not self._may_miss:
            return len(self) > 0
        low, high = self.ring.window()
        block = 1 << 14
        for stream in range(self.streams):
            # the newest steps are looked at first: most often one of them will do
            for end in range(int(high[stream]), int(low[stream]), -block):
                numbers = np.arange(max(end - block, int(low[stream])), end)
                if len(self.sampleable(numbers * self.streams + stream, horizon, decisions).starts):
                    return True
        return False

    def sync(self) -> None:
        """Wait until everything is on the disk, to survive a power cut; surviving a kill of the process needs no sync.

        Raises:
            RobotrlError: writing failed.
        """
        self.ring.storage.sync()
        self.ring.side.sync()

    def close(self) -> None:
        """Free the memory and close the files; files on disk stay."""
        self.ring.close()
        if self._directory:
            self._directory.close()

    def state(self) -> dict[str, Any]:
        """State for an exact resume: in RAM the content, not copied; on disk only the position, after a sync."""
        ring = self.ring
        state: dict[str, Any] = {
            "heads": ring.heads.copy(),
            "flags": ring.newest_flags(),
            "relabelled": int(self._relabeled[0]),
            "stored": len(ring),
            "rows": ring.rows,
        }
        if self._directory:
            self.sync()
            return {**state, "identity": self._directory.identity, "digest": ring.digest()}
        used = min(int(ring.heads.max()) * ring.streams, ring.rows)
        columns = {name: array[:used] for name, array in ring.storage.arrays.items()}
        columns["meta"] = columns["meta"].view(np.uint8).reshape(used, META.itemsize)
        return {**state, "columns": columns, "side": {k: x[: ring.side_used] for k, x in ring.side.arrays.items()}}

    def load(self, state: Mapping[str, Any]) -> None:
        """Return to the moment at which `state` was taken.

        On disk, steps added since are dropped. This is exact if at most `slack` steps were added; otherwise the steps
        that they overwrote are lost, and a warning gives their number. Rewards changed since by `set_reward` stay
        changed, with a warning; so do overwritten steps, if the buffer has checksums.

        Raises:
            DataError: the state belongs to another buffer, or to one of another size.
        """
        heads = np.array(state["heads"], np.int64)
        if len(heads) != self.streams:
            raise DataError(f"the replay's state has {len(heads)} streams: the replay has {self.streams}")
        identity = self._directory.identity if self._directory else None
        if state.get("identity") != identity:
            raise DataError(f"the state is of replay {state.get('identity')}: this one is {identity}")
        # states from earlier versions have no size
        if state.get("rows", self.ring.rows) != self.ring.rows:
            raise DataError(f"the replay's state is of {state['rows']} rows: the replay has {self.ring.rows}")
        if not self._directory:
            restore(self.ring.storage.arrays, state["columns"])
            restore(self.ring.side.arrays, state["side"])
        self.ring.recover(heads, np.asarray(state["flags"]))
        self.changes += 1
        self.rollbacks += 1
        lost = int(state["stored"]) - len(self)
        if lost:
            warnings.warn(
                f"the replay ran further ahead of its checkpoint than its slack of {self.layout.slack} steps, or lost "
                f"shards: {lost} steps are gone, so the run goes on, not exactly",
                stacklevel=2,
            )
        if self._directory and int(self._relabeled[0]) != int(state["relabelled"]):
            warnings.warn(
                "rewards in the replay were changed after its checkpoint: the run goes on, not exactly", stacklevel=2
            )
        elif not lost and self.ring.digest() != state.get("digest", self.ring.digest()):
            warnings.warn(
                "steps in the replay are not those of its checkpoint, others have taken their places since: the run"
                " goes on, not exactly",
                stacklevel=2,
            )
        self._relabeled[0] = int(state["relabelled"])

    def clear(self) -> None:
        """Forget all steps."""
        self.ring.recover(np.zeros(self.streams, np.int64))
        self.changes += 1
        self.rollbacks += 1

    # Interface for samplers.

    def reach(self, index: np.ndarray, horizon: int) -> ChunkReach:
        """Extent of the chunks that start at the steps (B,) int64."""
        check_at_least("replay horizon", horizon, 1)
        if not len(self.ring.meta):
            raise ConfigError("the replay is closed: expected an open one")
        return reach(self.ring.meta, index, horizon, self.streams)

    def sampleable(self, index: np.ndarray, horizon: int, decisions: bool) -> ChunkReach:
        """Start steps among (B,) whose chunk is complete, in order.

        With `decisions`, only where the policy began a chunk; extras describe it, so with extras a chunk that a person
        took over is left out.
        """
        if decisions and self.ring.fields:
            index = index[(self.ring.fields["flags"][index % self.ring.rows] & DECISION) != 0]
        found = self.reach(index, horizon)
        wanted = found.complete
        if decisions and self.ring.extras:
            wanted = wanted & ~((found.meta["source"][:, :-1] == HUMAN) & found.valid).any(1)
        return found if wanted.all() else found.of(np.flatnonzero(wanted))

    def draw(self, count: int, generator: torch.Generator) -> np.ndarray:
        """Draw (count,) steps uniformly from the window, including those whose chunk is not complete.

        Raises:
            ConfigError: the replay is empty.
        """
        low, high = self.ring.window()
        size = high - low
        total = int(size.sum())
        if not total:
            raise ConfigError("the replay is empty: expected steps to sample from")
        numbers = torch.randint(total, (count,), generator=generator).numpy()
        if self.ring.even:
            return numbers + int(low[0]) * self.streams
        ends = np.cumsum(size)
        stream = np.searchsorted(ends, numbers, side="right")
        return (low[stream] + numbers - (ends - size)[stream]) * self.streams + stream

    def gather(self, found: ChunkReach, gamma: float, weight: Tensor | None = None) -> Transitions:
        """Transitions of complete chunks; `weight` is (B,), None means ones."""
        parts = chunks(found, gamma)
        obs, following = observations(self.ring.obs, self.ring.side.arrays, found, parts)
        start = found.rows[:, 0]
        return Transitions(
            _tensors(obs),
            torch.from_numpy(self.ring.action.take(parts.action_rows, axis=0)),
            torch.from_numpy(found.valid),
            torch.from_numpy(parts.reward),
            torch.from_numpy(parts.discount),
            _tensors(following),
            torch.from_numpy(parts.terminated),
            torch.from_numpy(parts.truncated),
            torch.from_numpy(parts.steps),
            torch.from_numpy(np.ascontiguousarray(found.meta["source"][:, 0])),
            {
                key: torch.from_numpy(array.take(parts.action_rows if key.startswith(STEP) else start, axis=0))
                for key, array in self.ring.extras.items()
            },
            torch.from_numpy(found.starts),
            torch.ones(len(start)) if weight is None else weight,
            torch.from_numpy(parts.cost),
            torch.from_numpy(np.ascontiguousarray(parts.log_prob)),
        )


def _tensors(arrays: dict[str, np.ndarray]) -> Arrays:
    return {key: torch.from_numpy(array) for key, array in arrays.items()}
