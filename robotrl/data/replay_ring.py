"""The rings of a replay: where the next step goes, what is overwritten, and which last observation belongs to whom."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from robotrl.data.replay_check import check_record, host, source_numbers
from robotrl.data.replay_layout import Layout
from robotrl.data.replay_recovery import missing, recover
from robotrl.data.replay_storage import CUT, DECISION, ENDED, FINAL, META, TRUNCATED, Storage
from robotrl.data.replay_types import StepRecord
from robotrl.data.rollout import Arrays
from robotrl.errors import ConfigError, out_of_range


class Ring:
    """Steps of N streams in arrays of R rows, step t of stream n being index t * N + n in row index % R.

    Args:
        layout: what is stored.
        storage: of the steps; rows that are stored already are found.
        side: of the last observations.
    """

    def __init__(self, layout: Layout, storage: Storage, side: Storage) -> None:
        self.layout = layout
        self.storage, self.side = storage, side
        self.meta = storage.arrays["meta"]
        self.action = storage.arrays["action"]
        self.obs = {key: storage.arrays[f"obs/{key}"] for key in layout.observation_spec}
        self.extras = {key: storage.arrays[f"extras/{key}"] for key in layout.extras}
        self.fields = {name: self.meta[name] for name in META.names or ()}
        self.recover(None)

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
        """(N,) each: the first step of each stream that counts, and the one after its last."""
        return np.maximum(self.heads - self.layout.length, 0), self.heads

    def stored(self, index: np.ndarray) -> np.ndarray:
        """(M,) bool: the step (M,) is there, and in the window."""
        low, _ = self.window()
        present = self.fields["stamp"][index % self.rows] == index + 1
        return present & (index // self.streams >= low[index % self.streams])

    def add(self, record: StepRecord, streams: Sequence[int] | None) -> None:
        """One step of the M streams, or of all; see `Replay.add`."""
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
        """M steps of one stream; see `Replay.add_run`."""
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
        self.fields["flags"][self._newest(which)[self._is_open(which)]] |= CUT

    def close_episode(self, streams: Sequence[int], last_obs: Arrays) -> None:
        """See `Replay.close_episode`."""
        which = np.asarray(streams, np.int64)
        chosen = np.flatnonzero(self._is_open(which))
        if len(chosen):
            rows, places = self._newest(which[chosen]), self._take_places(len(chosen))
            for key, values in last_obs.items():
                self.side.arrays[key][places] = host(values)[chosen]
            self.fields["final"][rows] = places
            self.fields["flags"][rows] |= TRUNCATED | FINAL

    def newest_flags(self) -> np.ndarray:
        """(N,) flags of the newest step of each stream."""
        return self.fields["flags"][self._newest(np.arange(self.streams))]

    def recover(self, heads: np.ndarray | None, flags: np.ndarray | None = None) -> None:
        """Find out what is stored, from the rows themselves.

        Args:
            heads: (N,) forget all steps from here on; None: keep all.
            flags: (N,) of the newest steps that are then left.
        """
        if heads is not None and flags is not None:
            newest = ((heads - 1) * self.streams + np.arange(self.streams))[heads > 0]
            newest = newest[self.fields["stamp"][newest % self.rows] == newest + 1]
            self.fields["flags"][newest % self.rows] = flags[newest % self.streams]
        found = recover(self.meta, self.streams, self.side, heads)
        self.heads = found.heads
        self.even = bool((self.heads == self.heads[0]).all())
        self.side_used, self._free = found.side_used, found.free
        self._missing = missing(self.meta, self.heads, self.layout.length)

    def close(self) -> None:
        """Let go of the arrays."""
        self.storage.close()
        self.side.close()
        self.meta, self.action, self.obs, self.extras, self.fields = self.meta[:0], self.action[:0], {}, {}, {}

    def _newest(self, which: np.ndarray) -> np.ndarray:
        return ((self.heads[which] - 1) * self.streams + which) % self.rows

    def _is_open(self, which: np.ndarray) -> np.ndarray:
        """Which of these streams are in the middle of an episode."""
        rows = self._newest(which)
        return (self.fields["stamp"][rows] > 0) & ((self.fields["flags"][rows] & (ENDED | CUT)) == 0)

    def _write(self, record: StepRecord, index: np.ndarray, rows: np.ndarray | slice) -> None:
        if not self.fields:
            raise ConfigError("the replay is closed: expected an open one")
        ended = check_record(self.layout, record, len(index))
        if isinstance(rows, slice):
            self.storage.ensure(rows.start, rows.stop)
        else:
            for row in rows.tolist():
                self.storage.ensure(row, row + 1)
        fields = self.fields
        fields["stamp"][rows] = 0
        held = fields["flags"][rows] & FINAL
        if held.any():
            self._free.extend(fields["final"][rows][held != 0].tolist())
        flags = host(record.terminated).view(np.uint8) | (host(record.truncated).view(np.uint8) << 1)
        flags |= np.uint8(DECISION) if record.decision is None else host(record.decision).view(np.uint8) << 2
        if len(ended):
            places = self._take_places(len(ended))
            for key, values in record.final_obs.items():
                self.side.arrays[key][places] = host(values)
            flags[ended] |= FINAL
            fields["final"][ended + rows.start if isinstance(rows, slice) else rows[ended]] = places
        fields["flags"][rows] = flags
        fields["reward"][rows] = host(record.reward)
        fields["cost"][rows] = 0.0 if record.cost is None else host(record.cost)
        fields["log_prob"][rows] = np.nan if record.log_prob is None else host(record.log_prob)
        fields["source"][rows] = source_numbers(record.source)
        self.action[rows] = host(record.action)
        for key, array in self.obs.items():
            array[rows] = host(record.obs[key])
        for key, array in self.extras.items():
            array[rows] = host(record.extras[key]) if key in record.extras else np.nan
        # the stamp comes last: until then the row does not exist
        fields["stamp"][rows] = index + 1

    def _take_places(self, count: int) -> np.ndarray:
        """Rows of the side table for as many last observations."""
        again = [self._free.pop() for _ in range(min(count, len(self._free)))]
        fresh = range(self.side_used, self.side_used + count - len(again))
        if fresh:
            self.side.ensure(fresh.start, fresh.stop)
        self.side_used = fresh.stop
        return np.array([*again, *fresh], np.int64)
