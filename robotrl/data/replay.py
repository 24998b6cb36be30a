"""`Replay`: env steps of N streams, kept in rings, read back as action chunks.

A stream is whatever steps on its own: an env, a pile of demonstrations. Everything of a step is stored once; the
observation after it is the one before the next, and only the last observation of an episode has a place of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robotrl.data.replay_layout import Layout
from robotrl.data.replay_samplers import Mixed, Uniform
from robotrl.data.replay_storage import CUT, DECISION, FINAL, RamStorage, Storage
from robotrl.data.replay_types import SOURCES, Source, StepRecord, Transitions
from robotrl.data.replay_views import Reach, chunks, observations, reach
from robotrl.data.rollout import Arrays
from robotrl.errors import ConfigError, out_of_range, unknown
from robotrl.spec import Spec

__all__ = ["SOURCES", "Mixed", "Replay", "Source", "StepRecord", "Transitions", "Uniform"]


class Replay:
    """Env steps in a ring a stream; made by `create`.

    Args:
        layout: what is stored.
        ring: storage of the steps, empty.
        side: storage of the last observations, empty.
    """

    def __init__(self, layout: Layout, ring: Storage, side: Storage) -> None:
        self.layout = layout
        self._ring, self._side = ring, side
        self._streams = layout.streams
        arrays = ring.arrays
        self._meta = arrays["meta"]
        self._action = arrays["action"]
        self._obs = {key: arrays[f"obs/{key}"] for key in layout.observation_spec}
        self._extras = {key: arrays[f"extras/{key}"] for key in layout.extras}
        self._fields = {name: self._meta[name] for name in self._meta.dtype.names or ()}
        self._heads = np.zeros(self._streams, np.int64)
        self._even = True
        self._free: list[int] = []
        self._side_used = 0

    @classmethod
    def create(
        cls,
        path: None,
        observation_spec: Mapping[str, Spec],
        action_spec: Spec,
        *,
        streams: int,
        capacity: int,
        extras: Mapping[str, tuple[int, ...]] | None = None,
        control_dt_s: float | None = None,
    ) -> Replay:
        """An empty replay.

        Args:
            path: None: in RAM.
            observation_spec: the sim's observations.
            action_spec: the sim's action.
            streams: N, e.g. the sim's envs.
            capacity: env steps that can be sampled, of all streams together.
            extras: shapes of one row of further float32 columns, e.g. {"noise": (H, A)}.
            control_dt_s: seconds between two steps, to refuse data of another rate; None: not checked.

        Raises:
            ConfigError: a setting out of range.
        """
        layout = Layout(dict(observation_spec), action_spec, streams, capacity, 0, dict(extras or {}), control_dt_s)
        ring = RamStorage(layout.ring_columns(), layout.rows)
        return cls(layout, ring, RamStorage(layout.side_columns(), layout.rows))

    def __len__(self) -> int:
        """Env steps that are stored, those whose chunk is incomplete included."""
        low, high = self._window()
        return int((high - low).sum())

    @property
    def streams(self) -> int:
        """N."""
        return self._streams

    def add(self, record: StepRecord, streams: Sequence[int] | None = None) -> None:
        """Store one step of all streams, or of some.

        Args:
            record: the step; its rows are copied.
            streams: (M,) which streams the M rows of the record belong to, each once; None: all N, in order.

        Raises:
            ConfigError: an array of the wrong shape, a missing or undeclared one, or ended rows without `final_obs`.
        """
        which = None if streams is None else np.asarray(streams, np.int64)
        count = self._streams if which is None else len(which)
        if which is None and self._even:
            ids: np.ndarray | None = None
            low = int(self._heads[0]) * self._streams % self.layout.rows
            rows: np.ndarray | slice = slice(low, low + count)
            self._ring.ensure(low, low + count)
        else:
            which = np.arange(self._streams) if which is None else which
            ids = self._heads[which] * self._streams + which
            rows = ids % self.layout.rows
            for row in rows.tolist():
                self._ring.ensure(row, row + 1)
        ended, finals = self._check(record, count)
        fields = self._fields
        self._forget(rows)
        flags = _flags(record, count)
        fields["reward"][rows] = _host(record.reward)
        fields["cost"][rows] = 0.0 if record.cost is None else _host(record.cost)
        fields["log_prob"][rows] = np.nan if record.log_prob is None else _host(record.log_prob)
        fields["source"][rows] = _source(record.source)
        if len(ended):
            places = self._take_places(len(ended))
            for key, values in finals.items():
                self._side.arrays[key][places] = values
            flags[ended] |= FINAL
            owners = ended + rows.start if isinstance(rows, slice) else rows[ended]
            fields["final"][owners] = places
        fields["flags"][rows] = flags
        self._action[rows] = _host(record.action)
        for key, array in self._obs.items():
            array[rows] = _host(record.obs[key])
        for key, array in self._extras.items():
            array[rows] = _host(record.extras[key]) if key in record.extras else np.nan
        # the stamp comes last: until then the row does not exist
        if ids is None:
            first = int(self._heads[0]) * self._streams + 1
            fields["stamp"][rows] = np.arange(first, first + count)
            self._heads += 1
        else:
            fields["stamp"][rows] = ids + 1
            self._heads[which] += 1
            self._even = bool((self._heads == self._heads[0]).all())

    def cut(self, streams: Sequence[int] | None = None) -> None:
        """Say that what is added next to these streams (None: all) does not follow on what is there.

        Needed where an episode was abandoned without an end, e.g. by a reset. Starts whose chunk would reach over it
        are not sampled.
        """
        which = np.arange(self._streams) if streams is None else np.asarray(streams, np.int64)
        which = which[self._heads[which] > 0]
        rows = ((self._heads[which] - 1) * self._streams + which) % self.layout.rows
        self._fields["flags"][rows] |= CUT

    def view(self, index: Tensor, horizon: int, gamma: float) -> Transitions:
        """The chunks of `horizon` steps that begin at `index`.

        Args:
            index: (B,) int64 start steps.
            horizon: H, 1 or more.
            gamma: discount of each env step.

        Raises:
            ConfigError: one of them is no longer stored, or its chunk is not complete.
        """
        found = self.reach(index.numpy(), horizon)
        if not found.complete.all():
            wrong = int(found.index[np.argmin(found.complete)])
            raise ConfigError(
                f"replay index {wrong} with horizon {horizon}: expected a stored step, its chunk complete"
            )
        return self.gather(found, gamma)

    def reach(self, index: np.ndarray, horizon: int) -> Reach:
        """How far chunks get from start steps (B,) int64; for samplers."""
        if horizon < 1:
            raise out_of_range("replay horizon", horizon, "1 or more")
        return reach(self._meta, index, horizon, self._streams)

    def gather(self, found: Reach, gamma: float, weight: Tensor | None = None) -> Transitions:
        """Everything about chunks that are all complete; for samplers. `weight` is (B,), None: ones."""
        parts = chunks(found, gamma)
        obs, following = observations(self._obs, self._side.arrays, found, parts)
        start = found.rows[:, 0]
        return Transitions(
            _tensors(obs),
            torch.from_numpy(self._action.take(parts.action_rows, axis=0)),
            torch.from_numpy(found.valid),
            torch.from_numpy(parts.reward),
            torch.from_numpy(parts.discount),
            _tensors(following),
            torch.from_numpy(parts.terminated),
            torch.from_numpy(parts.truncated),
            torch.from_numpy(parts.steps),
            torch.from_numpy(np.ascontiguousarray(found.meta["source"][:, 0])),
            {key: torch.from_numpy(array.take(start, axis=0)) for key, array in self._extras.items()},
            torch.from_numpy(found.index),
            torch.ones(len(start)) if weight is None else weight,
            torch.from_numpy(parts.cost),
            torch.from_numpy(np.ascontiguousarray(parts.log_prob)),
        )

    def set_reward(self, index: Tensor, values: Tensor) -> None:
        """Replace the rewards of steps, e.g. by a classifier's.

        Args:
            index: (M,) int64 steps.
            values: (M,).

        Raises:
            ConfigError: a step is no longer stored, or a value is not finite.
        """
        ids, rewards = index.numpy(), _host(values)
        rows = ids % self.layout.rows
        if ids.shape != rewards.shape:
            raise ConfigError(f"rewards are of shape {rewards.shape}: expected {ids.shape}, one a step")
        stored = self._fields["stamp"][rows] == ids + 1
        if not stored.all():
            raise ConfigError(f"replay index {int(ids[np.argmin(stored)])}: expected a stored step")
        if not np.isfinite(rewards).all():
            at = int(np.argmin(np.isfinite(rewards)))
            raise ConfigError(f"reward of replay index {int(ids[at])} is {rewards[at]}: expected finite")
        self._fields["reward"][rows] = rewards

    def indices(self, horizon: int = 1, decisions: bool = False) -> Tensor:
        """(M,) int64: every step whose chunk is complete, stream by stream in the order of time.

        Args:
            horizon: H.
            decisions: only steps at which a chunk began.
        """
        low, high = self._window()
        parts = [np.arange(low[n], high[n]) * self._streams + n for n in range(self._streams)]
        ids = np.concatenate(parts)
        block = 1 << 16
        kept = [self.sampleable(ids[at : at + block], horizon, decisions) for at in range(0, len(ids), block)]
        return torch.from_numpy(np.concatenate([found.index for found in kept]) if kept else ids)

    def sampleable(self, index: np.ndarray, horizon: int, decisions: bool) -> Reach:
        """Those of the start steps (B,) whose chunk is complete, and at which one began if `decisions`; in order."""
        if decisions:
            index = index[(self._fields["flags"][index % self.layout.rows] & DECISION) != 0]
        found = self.reach(index, horizon)
        return found if found.complete.all() else found.of(found.complete)

    def draw(self, count: int, generator: torch.Generator) -> np.ndarray:
        """(count,) steps drawn with equal chance from all that are stored, incomplete ones included; for samplers."""
        low, high = self._window()
        size = high - low
        total = int(size.sum())
        if not total:
            raise ConfigError("the replay is empty: expected steps to sample from")
        numbers = torch.randint(total, (count,), generator=generator).numpy()
        if self._even:
            return numbers + int(low[0]) * self._streams
        ends = np.cumsum(size)
        stream = np.searchsorted(ends, numbers, side="right")
        return (low[stream] + numbers - (ends - size)[stream]) * self._streams + stream

    def _window(self) -> tuple[np.ndarray, np.ndarray]:
        """First step and the one after the last, (N,) each, that can be sampled."""
        return np.maximum(self._heads - self.layout.length, 0), self._heads

    def _forget(self, rows: np.ndarray | slice) -> None:
        """Unmake what stands in rows that will be overwritten."""
        self._fields["stamp"][rows] = 0
        held = self._fields["flags"][rows] & FINAL
        if held.any():
            self._free.extend(self._fields["final"][rows][held != 0].tolist())
            # a kill from here on must not leave two steps that own one place
            self._fields["flags"][rows] = 0

    def _take_places(self, count: int) -> np.ndarray:
        """Rows of the side table for as many last observations."""
        again = [self._free.pop() for _ in range(min(count, len(self._free)))]
        fresh = count - len(again)
        if fresh:
            self._side.ensure(self._side_used, self._side_used + fresh)
        places = again + list(range(self._side_used, self._side_used + fresh))
        self._side_used += fresh
        return np.array(places, np.int64)

    def _check(self, record: StepRecord, count: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Which rows ended, and their last observations; refuses a record that does not fit."""
        layout = self.layout
        if record.obs.keys() != layout.observation_spec.keys():
            raise _keys("observation", record.obs, layout.observation_spec)
        if not record.extras.keys() <= layout.extras.keys():
            raise _keys("extras", record.extras, layout.extras)
        _shape("action", record.action, (count, *layout.action_spec.shape))
        for name in ("reward", "terminated", "truncated", "decision", "log_prob", "cost"):
            values = getattr(record, name)
            if values is not None:
                _shape(name, values, (count,))
        for key, spec in layout.observation_spec.items():
            _shape(f"observation {key!r}", record.obs[key], (count, *spec.shape))
        for key, values in record.extras.items():
            _shape(f"extras {key!r}", values, (count, *layout.extras[key]))
        ended = _host(record.final_ids)
        if int((record.terminated | record.truncated).sum()) != len(ended):
            raise ConfigError(f"final_ids is {ended.tolist()}: expected the rows that ended, each once")
        if not len(ended):
            return ended, {}
        if record.final_obs.keys() != layout.observation_spec.keys():
            raise _keys("final observation", record.final_obs, layout.observation_spec)
        for key, spec in layout.observation_spec.items():
            _shape(f"final observation {key!r}", record.final_obs[key], (len(ended), *spec.shape))
        return ended, {key: _host(values) for key, values in record.final_obs.items()}


def _flags(record: StepRecord, count: int) -> np.ndarray:
    flags = _host(record.terminated).view(np.uint8) | (_host(record.truncated).view(np.uint8) << 1)
    if record.decision is None:
        return flags | np.uint8(DECISION)
    return flags | (_host(record.decision).view(np.uint8) << 2)


def _source(source: Source | Tensor) -> int | np.ndarray:
    if isinstance(source, Tensor):
        return _host(source)
    if source not in SOURCES:
        raise unknown("replay source", source, SOURCES)
    return SOURCES.index(source)


def _shape(name: str, values: Tensor, expected: tuple[int, ...]) -> None:
    if tuple(values.shape) != expected:
        raise ConfigError(f"replay {name} is of shape {tuple(values.shape)}: expected {expected}")


def _keys(what: str, found: Mapping[str, Any], expected: Mapping[str, Any]) -> ConfigError:
    for key in found:
        if key not in expected:
            return unknown(f"replay {what}", key, expected)
    return ConfigError(f"replay {what} has {', '.join(found) or 'nothing'}: expected {', '.join(expected)}")


def _host(values: Tensor) -> np.ndarray:
    return values.detach().cpu().numpy()


def _tensors(arrays: dict[str, np.ndarray]) -> Arrays:
    return {key: torch.from_numpy(array) for key, array in arrays.items()}
