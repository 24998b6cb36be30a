"""Ring buffers of a replay: writing and overwriting steps, and the table of the episodes' last observations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from robotrl.errors import ConfigError, out_of_range
from robotrl.replay.check import check_record, host, source_numbers
from robotrl.replay.layout import ReplayLayout
from robotrl.replay.recovery import missing, recover
from robotrl.replay.rows import RowChecks, Rows
from robotrl.replay.storage import CUT, DECISION, ENDED, FINAL, LOOSE, META, TRUNCATED, Storage
from robotrl.replay.types import StepRecord
from robotrl.spec import Arrays


class Ring:
    """Steps of N streams in arrays of R rows; step t of stream n has the index t * N + n and the row index % R.

    Args:
        layout: shapes and sizes.
        storage: storage of the steps; rows that are already stored are found.
        side: storage of the last observations.
        checked: whether rows have checksums; rows that do not match theirs are dropped.
    """

    def __init__(self, layout: ReplayLayout, storage: Storage, side: Storage, checked: bool) -> None:
        self.layout = layout
        self.storage, self.side = storage, side
        self.meta = storage.arrays["meta"]
        self.action = storage.arrays["action"]
        self.obs = {key: storage.arrays[f"obs/{key}"] for key in layout.observation_spec}
        self.extras = {key: storage.arrays[f"extras/{key}"] for key in layout.extras}
        self.fields = {name: self.meta[name] for name in META.names or ()}
        self._words = _quads(self.meta)
        self._checks = RowChecks(storage, side) if checked else None
        self.damaged = np.zeros(0, np.int64) if self._checks is None else self._checks.damaged()
        """Rows that were dropped because they did not match their checksum."""
        self.fields["stamp"][self.damaged] = 0
        self.recover(None)
        loose = np.flatnonzero((self.fields["stamp"] != 0) & ((self.fields["flags"] & LOOSE) != 0))
        self._set_flags(loose, self.fields["flags"][loose] & ~np.uint8(LOOSE))

    @property
    def streams(self) -> int:
        """N."""
        return self.layout.streams

    @property
    def rows(self) -> int:
        """R."""
        return self.layout.rows

    def __len__(self) -> int:
        """Steps in the window."""
        low, high = self.window()
        lost = self._missing
        return int((high - low).sum()) - int((lost // self.streams >= low[lost % self.streams]).sum())

    def window(self) -> tuple[np.ndarray, np.ndarray]:
        """Window of valid steps of each stream: the first, and the one after the last, (N,) each."""
        return np.maximum(self.heads - self.layout.length, 0), self.heads

    def stored(self, index: np.ndarray) -> np.ndarray:
        """(M,) bool: whether each step (M,) is stored and in the window."""
        low, _ = self.window()
        present = self.fields["stamp"][index % self.rows] == index + 1
        return present & (index // self.streams >= low[index % self.streams])

    def add(self, record: StepRecord, streams: Sequence[int] | None) -> None:
        """Store one step of M streams, or of all; see `Replay.add`."""
        if streams is None and self.even:
            first = int(self.heads[0]) * self.streams
            low = first % self.rows
            self._write(record, np.arange(first, first + self.streams), slice(low, low + self.streams))
            self.heads += 1
        else:
            which = np.arange(self.streams) if streams is None else np.asarray(streams, np.int64)
            index = self.heads[which] * self.streams + which
            self._write(record, index, index % self.rows)
            self.heads[which] += 1
            self.even = bool((self.heads == self.heads[0]).all())

    def add_run(self, record: StepRecord, stream: int) -> None:
        """Store M steps of one stream; see `Replay.add_run`."""
        count = len(record.reward)
        if count > self.layout.length:
            raise ConfigError(f"{count} steps for one stream: the replay keeps {self.layout.length} of each")
        if not 0 <= stream < self.streams:
            raise out_of_range("replay stream", stream, f"0 to {self.streams - 1}")
        index = (self.heads[stream] + np.arange(count)) * self.streams + stream
        self._write(record, index, index % self.rows)
        self.heads[stream] += count
        self.even = bool((self.heads == self.heads[0]).all())

    def cut(self, streams: Sequence[int] | None) -> None:
        """See `Replay.cut`."""
        which = np.arange(self.streams) if streams is None else np.asarray(streams, np.int64)
        rows = self._newest(which)[self._is_open(which)]
        self._set_flags(rows, self.fields["flags"][rows] | CUT)

    def close_episode(self, streams: Sequence[int], last_obs: Arrays) -> None:
        """See `Replay.close_episode`."""
        which = np.asarray(streams, np.int64)
        chosen = np.flatnonzero(self._is_open(which))
        if len(chosen):
            self._reserve(len(chosen))
            rows, places = self._newest(which[chosen]), self._take_places(len(chosen))
            for key, values in last_obs.items():
                self.side.arrays[key][places] = host(values)[chosen]
            self.fields["final"][rows] = places
            self._set_flags(rows, self.fields["flags"][rows] | TRUNCATED | FINAL)

    def set_reward(self, rows: np.ndarray, rewards: np.ndarray, missing: np.ndarray | None = None) -> None:
        """Replace the rewards of rows (M,) by `rewards` (M,), and the numbers of missing scores by `missing` (M,)."""
        # a kill in between leaves rows with the old or the new reward, and no damage
        self._set_flags(rows, self.fields["flags"][rows] | LOOSE)
        self.fields["reward"][rows] = rewards
        self._set_flags(rows, self.fields["flags"][rows] & ~np.uint8(LOOSE), missing)

    def set_extra(self, name: str, rows: np.ndarray, values: np.ndarray) -> None:
        """Replace an extra column of distinct rows (M,) by `values` (M, ...)."""
        old = None if self._checks is None else self._checks.large(rows)
        self.extras[name][rows] = values
        if self._checks is not None and old is not None:
            # a kill before this leaves rows that do not match, and are dropped as damaged
            meta = self.meta.take(rows)
            meta["check"] ^= old ^ self._checks.large(rows)
            self._words[rows, -1] = _quads(meta)[:, -1]

    def newest_flags(self) -> np.ndarray:
        """(N,) flags of the newest step of each stream."""
        return self.fields["flags"][self._newest(np.arange(self.streams))]

    def gaps(self) -> int:
        """Number of steps lost from the window: not stored though later ones are, and not half-written by a kill."""
        next_slot = self.heads * self.streams + np.arange(self.streams)
        lost = self._missing
        return int((lost % self.rows != next_slot[lost % self.streams] % self.rows).sum())

    def digest(self) -> int:
        """Hash of the window's content; 0 if rows have no checksums."""
        if self._checks is None:
            return 0
        index = self.fields["stamp"] - 1
        inside = np.flatnonzero(index >= 0)
        inside = inside[self.stored(index[inside])]
        return int(self.fields["check"][inside].sum(dtype=np.int64))

    def recover(self, heads: np.ndarray | None, flags: np.ndarray | None = None) -> None:
        """Find the stored steps from the rows themselves.

        Args:
            heads: (N,) drop all steps from these numbers on; None: keep all.
            flags: (N,) flags that the newest remaining steps should have.
        """
        if heads is not None and flags is not None:
            newest = ((heads - 1) * self.streams + np.arange(self.streams))[heads > 0]
            newest = newest[self.fields["stamp"][newest % self.rows] == newest + 1]
            rows, flags = newest % self.rows, flags[newest % self.streams]
            # a step that should have a last observation and has none is a later step with the same index
            other = (flags & ~self.fields["flags"][rows] & FINAL) != 0
            self.fields["stamp"][rows[other]] = 0
            self._set_flags(rows[~other], flags[~other])
        found = recover(self.meta, self.streams, self.side, heads)
        self.heads = found.heads
        self.even = bool((self.heads == self.heads[0]).all())
        self.side_used, self._free = found.side_used, found.free
        self._missing = missing(self.meta, self.heads, self.layout.length)

    def close(self) -> None:
        """Release the arrays."""
        self.storage.close()
        self.side.close()
        self.meta, self.action, self.obs, self.extras, self.fields = self.meta[:0], self.action[:0], {}, {}, {}
        self._words, self._checks = self._words[:0], None

    def _newest(self, which: np.ndarray) -> np.ndarray:
        return ((self.heads[which] - 1) * self.streams + which) % self.rows

    def _is_open(self, which: np.ndarray) -> np.ndarray:
        """True if each of these streams is in the middle of an episode."""
        rows = self._newest(which)
        return (self.fields["stamp"][rows] > 0) & ((self.fields["flags"][rows] & (ENDED | CUT)) == 0)

    def _write(self, record: StepRecord, index: np.ndarray, rows: np.ndarray | slice) -> None:
        if not self.fields:
            raise ConfigError("the replay is closed: expected an open one")
        ended = check_record(self.layout, record, len(index))
        block = _small_columns(record, index)
        if isinstance(rows, slice):
            self.storage.ensure(rows.start, rows.stop)
        else:
            for row in rows.tolist():
                self.storage.ensure(row, row + 1)
        owned = self._owned(rows)
        self._reserve(len(ended) - len(owned))
        # nothing can fail from here on
        self.fields["stamp"][rows] = 0
        self._free.extend(owned)
        if len(ended):
            places = self._take_places(len(ended))
            for key, values in record.final_obs.items():
                self.side.arrays[key][places] = host(values)
            block["flags"][ended] |= FINAL
            block["final"][ended] = places
        self.action[rows] = host(record.action)
        for key, array in self.obs.items():
            array[rows] = host(record.obs[key])
        for key, array in self.extras.items():
            array[rows] = host(record.extras[key]) if key in record.extras else np.nan
        if self._checks is not None:
            block["check"] = self._checks.small(block) ^ self._checks.large(rows)
            if len(ended):
                block["check"][ended] ^= self._checks.last(block["final"][ended])
        words = _quads(block)
        for k in range(1, words.shape[1]):
            self._words[rows, k] = words[:, k]
        # the stamp is written last: until then the row is not valid
        self.fields["stamp"][rows] = block["stamp"]

    def _owned(self, rows: Rows) -> list[int]:
        """Rows of the table of last observations that belong to these steps; a step without a stamp has none."""
        fields = self.fields
        owners = (fields["stamp"][rows] > 0) & ((fields["flags"][rows] & FINAL) != 0)
        return fields["final"][rows][owners].tolist() if owners.any() else []

    def _set_flags(self, rows: np.ndarray, flags: np.ndarray, missing: np.ndarray | None = None) -> None:
        """Set flags (M,) and missing scores (M,) of stored rows (M,) together with their checksums, in one write."""
        old = self.meta.take(rows)
        new = old.copy()
        new["flags"] = flags
        if missing is not None:
            new["missing"] = missing
        if self._checks is not None:
            new["check"] ^= self._checks.small(old) ^ self._checks.small(new)
            turned = np.flatnonzero(((new["flags"] ^ old["flags"]) & FINAL) != 0)
            new["check"][turned] ^= self._checks.last(old["final"][turned])
        self._words[rows, -1] = _quads(new)[:, -1]

    def _reserve(self, count: int) -> None:
        """Make sure that `count` more last observations can be stored.

        Raises:
            RobotrlError: the disk is full or refuses; nothing was changed.
        """
        fresh = count - len(self._free)
        if fresh > 0:
            self.side.ensure(self.side_used, self.side_used + fresh)

    def _take_places(self, count: int) -> np.ndarray:
        """Take `count` free rows of the table of last observations."""
        again = [self._free.pop() for _ in range(min(count, len(self._free)))]
        fresh = range(self.side_used, self.side_used + count - len(again))
        self.side_used = fresh.stop
        return np.array([*again, *fresh], np.int64)


def _quads(meta: np.ndarray) -> np.ndarray:
    """`META` records (M,) as (M, 4) words of 8 bytes, each of which is written at once; the stamp is the first."""
    return meta.view(np.uint64).reshape(len(meta), META.itemsize // 8)


def _small_columns(record: StepRecord, index: np.ndarray) -> np.ndarray:
    """(M,) `META` records of steps, except for the rows of their last observations."""
    block = np.zeros(len(index), META)
    block["stamp"] = index + 1
    block["reward"] = host(record.reward)
    if record.cost is not None:
        block["cost"] = host(record.cost)
    block["log_prob"] = np.nan if record.log_prob is None else host(record.log_prob)
    flags = host(record.terminated).view(np.uint8) | (host(record.truncated).view(np.uint8) << 1)
    flags |= np.uint8(DECISION) if record.decision is None else host(record.decision).view(np.uint8) << 2
    block["flags"] = flags
    block["source"] = source_numbers(record.source)
    if record.missing is not None:
        block["missing"] = host(record.missing)
    return block
