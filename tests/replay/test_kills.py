"""A replay on disk under random use: added to, killed between any two lines, damaged, opened again and taken back.

All is compared with lists of rows, which know nothing of rings, places and checksums.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import robotrl.replay.ring as ring_module
import tests.kits.replay_kit as kit
from robotrl.errors import ConfigError, DataError, RobotrlError
from robotrl.learners.replay_collector import ReplayBuffers
from robotrl.replay.buffer import Prioritized, Replay, StepRecord
from robotrl.replay.storage import CUT, FINAL
from tests.kits.replay_kit import Reference, Row
from tests.kits.walk_sim import Walk

STREAMS, CAPACITY, SLACK = 2, 14, 8


class Killed(BaseException):
    """The process ends here."""


def until(line: int, work: Callable[[], None]) -> bool:
    """Do some work, and die before so many lines of the ring's code; gives whether it came to that."""
    left = line

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != ring_module.__file__:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                raise Killed
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except Killed:
        return True
    finally:
        sys.settrace(before)
    return False


class Use:
    """A replay and what it should hold."""

    def __init__(self, path: Path, draw: np.random.Generator) -> None:
        self.path, self.draw = path, draw
        self.replay = kit.make(path, STREAMS, CAPACITY, slack=SLACK, shard_bytes=1)
        self.model = Reference(STREAMS, CAPACITY)
        self.count = 0
        self.lost = False
        self.checkpoint()

    def row(self) -> Row:
        self.count += 1
        how = self.draw.integers(6)
        return Row(self.count, how == 0, how == 1, bool(self.draw.integers(2)), final=self.count + 0.125)

    def some(self) -> list[int]:
        return [n for n in range(STREAMS) if self.draw.integers(2)]

    # what is done, and what that should make of the rows

    def add(self) -> None:
        rows = [self.row() for _ in range(STREAMS)]
        self._do(lambda: self.replay.add(kit.record(rows)), dict(zip(range(STREAMS), ([r] for r in rows), strict=True)))

    def add_some(self) -> None:
        which = self.some()
        if which:
            rows = [self.row() for _ in which]
            self._do(
                lambda: self.replay.add(kit.record(rows), which), {n: [r] for n, r in zip(which, rows, strict=True)}
            )

    def add_run(self) -> None:
        rows = [self.row() for _ in range(int(self.draw.integers(1, 4)))]
        stream = int(self.draw.integers(STREAMS))
        self._do(lambda: self.replay.add_run(kit.record(rows), stream), {stream: rows})

    def cut(self) -> None:
        which = self.some()
        self._do(lambda: self.replay.cut(which), {})

    def close_episode(self) -> None:
        which = self.some()
        numbers = [self.draw.integers(200) + 0.25 for _ in which]
        every = [kit.seen(x) for x in numbers]
        last = {key: torch.from_numpy(np.stack([one[key] for one in every])) for key in kit.SPECS} if every else {}
        for n, number in zip(which, numbers, strict=True):
            if self.model.streams[n] and not self.model.streams[n][-1].ended:
                self.model.streams[n][-1].final = number
        self._do(lambda: self.replay.close_episode(which, last), {})

    def _do(self, work: Callable[[], None], rows: dict[int, list[Row]]) -> None:
        if self.draw.integers(3):
            work()
        elif until(int(self.draw.integers(60)), work):
            self.kill()
        ring = self.replay.ring
        for n, added in rows.items():
            mine = self.model.streams[n]
            came = int(ring.heads[n]) - len(mine)
            assert came in (0, len(added))
            mine += added[:came]
        flags = ring.newest_flags()
        for n, mine in enumerate(self.model.streams):
            if mine and int(ring.heads[n]) == len(mine) and not mine[-1].ended:
                mine[-1].cut = bool(flags[n] & CUT)
                mine[-1].truncated = bool(flags[n] & FINAL)

    def kill(self) -> None:
        """Nothing is closed; the system frees the lock."""
        directory = self.replay._directory
        assert directory is not None
        directory.close()
        with warnings.catch_warnings():
            if not self.lost:
                warnings.simplefilter("error")
            self.replay = Replay.open(self.path)
        assert not self.replay.dropped

    def checkpoint(self) -> None:
        self.state = self.replay.state()
        self.kept = [[(row, row.truncated, row.cut) for row in rows] for rows in self.model.streams]

    def resume(self) -> None:
        ahead = max(len(rows) - len(kept) for rows, kept in zip(self.model.streams, self.kept, strict=True))
        self.kill()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            self.replay.load(self.state)
        if ahead <= SLACK // STREAMS and not self.lost:
            assert not told
        self.lost |= bool(told)
        for n, kept in enumerate(self.kept):
            self.model.streams[n] = [row for row, *_ in kept]
            for row, truncated, cut in kept[-1:]:
                row.truncated, row.cut = truncated, cut

    def check(self) -> None:
        """Everything that can be sampled is what was put in, and all of it, unless the run was told that it is not."""
        ring = self.replay.ring
        owners = (ring.fields["stamp"] > 0) & ((ring.fields["flags"] & FINAL) != 0)
        places = ring.fields["final"][owners].tolist()
        assert len(set(places)) == len(places), "two ends of episodes share a last observation"
        assert sorted([*places, *ring._free]) == list(range(ring.side_used)), "a place is lost or has two owners"
        for horizon in (1, 3):
            got = self.replay.indices(horizon)
            expected = self.model.indices(horizon, False)
            assert set(got.tolist()) <= set(expected) if self.lost else got.tolist() == expected
            if len(got):
                self.model.check(self.replay.view(got, horizon, 0.5), horizon, 0.5)


OPERATIONS = ("add", "add", "add", "add_some", "add_run", "cut", "close_episode", "kill", "checkpoint", "resume")


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), words=st.lists(st.sampled_from(OPERATIONS), min_size=10, max_size=40))
def test_what_is_put_in_comes_out_whatever_happens_in_between(seed: int, words: list[str]) -> None:
    path = Path(tempfile.mkdtemp())
    try:
        use = Use(path / "replay", np.random.default_rng(seed))
        for word in words:
            getattr(use, word)()
            use.check()
        use.replay.close()
    finally:
        shutil.rmtree(path)


def test_every_end_of_an_episode_keeps_its_own_last_observation_after_a_resume(tmp_path: Path) -> None:
    use = Use(tmp_path / "replay", np.random.default_rng(0))

    def episodes(count: int) -> None:
        for _ in range(count):
            for ended in (False, True):
                use.count += 1
                rows = [Row(use.count, truncated=ended, final=use.count + 0.125) for _ in range(STREAMS)]
                use.replay.add(kit.record(rows))
                use.model.add(rows, list(range(STREAMS)))

    episodes(3)
    use.checkpoint()
    episodes(2)
    use.resume()
    for _ in range(6):
        episodes(1)
        use.check()


def test_a_full_disk_takes_nothing_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The side table's second shard cannot be made: the step is refused, and what was there is there."""
    replay = kit.make(tmp_path / "replay", 1, 8000, shard_bytes=1, slack=0)
    rows = [Row(i, truncated=True, final=i) for i in range(2048)]
    replay.add_run(kit.record(rows))
    (tmp_path / "replay" / "finals" / ".tmp-000001").write_text("in the way")
    (tmp_path / "replay" / "finals").chmod(0o500)
    monkeypatch.setattr("robotrl.replay.shards._reserve", _refuse)
    free, used = list(replay.ring._free), replay.ring.side_used
    with pytest.raises(RobotrlError, match="cannot make the replay shard"):
        for i in range(2048, 8000):
            replay.add(kit.record([Row(i, truncated=True, final=i)]))
    (tmp_path / "replay" / "finals").chmod(0o700)
    assert len(replay) >= 2048 and len(replay.ring._free) == len(free) and replay.ring.side_used >= used
    found = replay.view(replay.indices(1), 1, 0.5)
    assert torch.equal(found.next_obs["state"][:, 0], found.starts.float())


def _refuse(path: Path, size: int) -> None:
    raise OSError(28, "No space left on device")


# damage


def small_replay(path: Path) -> tuple[Replay, dict[str, Any]]:
    """Two streams of which the ring has gone round, with ends of episodes."""
    replay = kit.make(path, STREAMS, 40, slack=8, shard_bytes=1)
    kit.walk(replay, 33, seed=5)
    return replay, replay.state()


def content(replay: Replay) -> dict[int, bytes]:
    index = replay.indices(1)
    found = replay.view(index, 1, 0.5)
    parts = [found.obs["state"], found.obs["eye"], found.chunk, found.reward, found.discount, found.cost]
    parts += [found.next_obs["state"], found.next_obs["eye"], found.extras["noise"], found.log_prob, found.source]
    rows = [x.numpy() for x in parts]
    return {int(i): b"".join(x[k].tobytes() for x in rows) for k, i in enumerate(index)}


def flip(path: Path, at: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, bytes], dict[str, Any]]:
    path = tmp_path_factory.mktemp("sound") / "replay"
    replay, state = small_replay(path)
    expected = content(replay)
    replay.close()
    return path, expected, state


def opened(path: Path) -> tuple[Replay, list[str]]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        replay = Replay.open(path)
    return replay, [str(w.message) for w in told]


@pytest.mark.parametrize("column", ["meta", "action", "obs%2Fstate", "obs%2Feye", "extras%2Fnoise", "final"])
def test_a_changed_bit_of_a_row_is_named_and_its_step_is_not_used(tmp_path: Path, sound: Any, column: str) -> None:
    path, expected, state = sound
    draw = np.random.default_rng(len(column))
    copy = tmp_path / "replay"
    for _ in range(12):
        shutil.copytree(path, copy)
        replay = Replay.open(copy)
        stamps, owners = replay.ring.fields["stamp"].copy(), replay.ring.fields["final"].copy()
        flags, rows = replay.ring.fields["flags"].copy(), np.flatnonzero(replay.ring.fields["stamp"])
        replay.close()
        if column == "final":
            rows = rows[(flags[rows] & FINAL) != 0]
        row = int(draw.choice(rows))
        file = copy / "finals/000000/eye.bin" if column == "final" else copy / f"shards/000000/{column}.bin"
        size = {"meta": 32, "action": 4, "obs%2Fstate": 8, "obs%2Feye": 16, "extras%2Fnoise": 8, "final": 16}[column]
        place = int(owners[row]) if column == "final" else row
        # which place of the side table it is does not count for a step that has none
        inside = draw.choice([*range(20), *range(24, 32)]) if column == "meta" else draw.integers(size)
        flip(file, place * size + int(inside), int(draw.integers(8)))
        replay, told = opened(copy)
        assert len(told) == 1 and f"shards/000000: row {row} is not as it was written" in told[0]
        assert "1 damaged steps dropped" in told[0]
        lost = int(stamps[row]) - 1
        got = content(replay)
        # neither it, nor what came before it, whose next observation it has; without the newest, an older one is left
        assert all(expected[i] == x if i in expected else i < min(expected) + STREAMS for i, x in got.items())
        assert set(expected) - set(got) <= {lost, lost - STREAMS}
        if lost in expected:
            with pytest.warns(UserWarning, match="are gone, so the run goes on, not exactly"):
                replay.load(state)
        replay.close()
        shutil.rmtree(copy)


def test_random_damage_of_every_file_is_named_mended_or_without_meaning(tmp_path: Path, sound: Any) -> None:
    """Never a traceback, and never another content without a word."""
    path, expected, _ = sound
    files = sorted(file.relative_to(path) for file in path.rglob("*") if file.is_file())
    assert {file.name for file in files} >= {"replay.json", "relabelled.npy", "lock", "meta.bin", "eye.bin"}
    draw = np.random.default_rng(3)
    copy = tmp_path / "replay"
    for trial in range(80):
        shutil.copytree(path, copy)
        file = copy / files[trial % len(files)]
        size = file.stat().st_size
        if size and draw.integers(3):
            flip(file, int(draw.integers(min(size, 2048))), int(draw.integers(8)))
        else:
            with file.open("r+b") as stream:
                stream.truncate(int(draw.integers(size + 1)))
        try:
            replay, told = opened(copy)
        except RobotrlError as error:
            assert "\n" not in str(error) and "replay" in str(error)
        else:
            got = content(replay)
            assert told or got == expected, file
            assert all(expected[i] == x for i, x in got.items() if i in expected), file
            replay.close()
        shutil.rmtree(copy)


@pytest.mark.parametrize("name", ["shards", "finals", "lock", "relabelled.npy", "shards/000000", "replay.json"])
@pytest.mark.parametrize("instead", ["directory", "file", "pipe"])
def test_what_is_no_such_file_is_refused_or_dropped_and_not_waited_for(
    tmp_path: Path, sound: Any, name: str, instead: str
) -> None:
    copy = tmp_path / "replay"
    shutil.copytree(sound[0], copy)
    target = copy / name
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink()
    if instead == "directory":
        target.mkdir()
        (target / "x").write_text("x")
    elif instead == "file":
        target.write_text("x")
    elif name != "replay.json":
        os.mkfifo(target)
    try:
        replay, _ = opened(copy)
    except RobotrlError as error:
        assert "\n" not in str(error)
    else:
        replay.close()


def test_a_counter_is_mended_and_keeps_its_count(tmp_path: Path) -> None:
    path = tmp_path / "replay"
    replay = kit.make(path, 1, 10)
    kit.walk(replay, 3)
    replay.set_reward(torch.tensor([0, 1]), torch.tensor([5.0, 6.0]))
    state = replay.state()
    replay.close()
    whole = (path / "relabelled.npy").read_bytes()
    for at in range(0, 128, 7):
        flip(path / "relabelled.npy", at, 2)
        replay, told = opened(path)
        assert not told and (path / "relabelled.npy").read_bytes() == whole
        replay.load(state)
        replay.close()
    assert np.load(path / "relabelled.npy").tolist() == [1]


def test_rewards_keep_their_checksum_wherever_a_kill_comes(tmp_path: Path) -> None:
    path = tmp_path / "replay"
    replay = kit.make(path, 1, 10)
    kit.walk(replay, 5)
    for line in range(45):
        index, values = torch.tensor([1, 3]), torch.tensor([line + 0.5, line + 0.75])
        before = replay.ring.fields["reward"][[1, 3]].tolist()
        until(line, partial(replay.set_reward, index, values))
        replay._directory.close()
        replay, told = opened(path)
        assert not told
        assert replay.ring.fields["reward"][[1, 3]].tolist() in (before, values.tolist())
    assert before[0] > 1 and before[1] == before[0] + 0.25


def test_steps_that_took_the_places_of_a_checkpoint_s_are_told(tmp_path: Path) -> None:
    """Back to an earlier checkpoint, on with other steps, and then to the later one."""
    replay = kit.make(tmp_path / "replay", 2, 40)
    kit.walk(replay, 10, seed=1)
    early = replay.state()
    kit.walk(replay, 2, seed=2)
    late = replay.state()
    replay.load(early)
    kit.walk(replay, 2, seed=3)
    with pytest.warns(UserWarning, match="are not those of its checkpoint|are gone"):
        replay.load(late)


def test_a_replay_of_the_first_version_opens_as_it_was(tmp_path: Path) -> None:
    """Without checksums: nothing is compared, new steps get none, and it stays of that version."""
    path = tmp_path / "replay"
    replay, state = small_replay(path)
    expected = content(replay)
    replay.close()
    header = json.loads((path / "replay.json").read_text())
    del header["digest"]
    (path / "replay.json").write_text(json.dumps({**header, "schema_version": 1}))
    meta = np.fromfile(path / "shards/000000/meta.bin", np.uint8).reshape(-1, 32)
    meta[:, 28:] = 0
    meta.tofile(path / "shards/000000/meta.bin")
    state = {name: value for name, value in state.items() if name not in ("digest", "rows")}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        replay = Replay.open(path)
        assert content(replay) == expected
        replay.load(state)
        kit.walk(replay, 3, seed=6)
        replay.set_reward(replay.indices(1)[:2], torch.tensor([1.0, 2.0]))
        replay.close()
        replay = Replay.open(path)
    assert not replay.ring.fields["check"].any()
    assert json.loads((path / "replay.json").read_text())["schema_version"] == 1


def test_two_that_make_one_directory_do_not_take_it_from_each_other(tmp_path: Path) -> None:
    one = kit.make(tmp_path / "replay", 1, 10)
    (tmp_path / "replay" / "replay.json").rename(tmp_path / "aside")
    for name in ("lock", "relabelled.npy", "shards", "finals"):
        (tmp_path / "replay" / name).rename(tmp_path / name)
    # as the second sees it that looked before the first wrote: a directory in which there is nothing yet
    (tmp_path / "lock").rename(tmp_path / "replay" / "lock")
    with pytest.raises((ConfigError, RobotrlError)):
        kit.make(tmp_path / "replay", 1, 10)
    one.close()


def test_a_state_of_another_size_is_refused() -> None:
    small, large = kit.make(None, 1, 10), kit.make(None, 1, 20)
    kit.walk(small, 15)
    with pytest.raises(DataError, match="is of 10 rows: the replay has 20"):
        large.load(small.state())


def test_priorities_of_steps_that_are_forgotten_are_not_those_of_the_next(tmp_path: Path) -> None:
    replay = kit.make(None, 1, 10)
    sampler = Prioritized(replay, alpha=1.0, floor=0.0)
    kit.walk(replay, 4)
    sampler.sample(2, 1, 0.9, torch.Generator().manual_seed(0))
    index = replay.indices(1)
    sampler.update_priorities(index, torch.full((len(index),), 1e-3))
    replay.clear()
    kit.walk(replay, 6, seed=2)
    got = sampler.sample(64, 1, 0.9, torch.Generator().manual_seed(0))
    assert set(got.starts.tolist()) == set(replay.indices(1).tolist()) and (got.weight == 1).all()


def test_a_run_takes_up_its_own_replay_and_no_other(tmp_path: Path) -> None:
    """Of a run that was killed before any of its checkpoints told of the replay."""
    sim, path = Walk(2), tmp_path / "replay"
    memory = ReplayBuffers(sim, 40, str(path), "this run")
    no = torch.zeros(2, dtype=torch.bool)
    step = StepRecord(sim.reset(), torch.zeros(2, 1), torch.zeros(2), no, no, {}, torch.zeros(0, dtype=torch.int64))
    for _ in range(5):
        memory.replay.add(step)
    directory = memory.replay._directory
    assert directory is not None
    directory.close()
    for other in ("", "that run"):
        with pytest.raises(ConfigError, match="exists: expected a new directory"):
            _ = ReplayBuffers(sim, 40, str(path), other).replay
    again = ReplayBuffers(sim, 40, str(path), "this run").replay
    assert len(again) == 0
    again.add(step)
    assert len(again) == 2
