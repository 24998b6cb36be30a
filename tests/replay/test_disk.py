"""A replay on disk: kills, damage, more than fits into memory, and resuming to the last bit."""

from __future__ import annotations

import json
import re
import resource
import signal
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

import tests.kits.learner_kit as learner_kit
import tests.kits.replay_kit as kit
from robotrl.errors import ConfigError, DataError, RobotrlError
from robotrl.replay.buffer import Prioritized, Replay, Transitions, Uniform
from tests.kits.paths_kit import ROOT
from tests.kits.replay_kit import Reference

PROGRAM = """
import sys
from pathlib import Path
sys.path.append(sys.argv[1])
import tests.kits.replay_kit as kit
from robotrl.replay.buffer import Replay
{}
"""


def start(work: str, *arguments: str, **options) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM.format(work), str(ROOT), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def drawn(sampler, seed: int = 0, batches: int = 3) -> list[Transitions]:
    generator = torch.Generator().manual_seed(seed)
    return [sampler.sample(16, 2, 0.9, generator) for _ in range(batches)]


def assert_same(a: list[Transitions], b: list[Transitions]) -> None:
    for one, other in zip(a, b, strict=True):
        for name in Transitions._fields:
            x, y = getattr(one, name), getattr(other, name)
            if name == "log_prob":
                x, y = x.nan_to_num(), y.nan_to_num()
            assert learner_kit.same(x, y), name


def test_a_killed_writer_leaves_every_step_that_it_finished(tmp_path):
    """SIGKILL in the middle of adding, in a ring that has gone round; what is left are whole, consecutive steps."""
    work = """
replay = kit.make(Path(sys.argv[2]), 3, 300, shard_bytes=1)
for step in range(10**9):
    replay.add(kit.record([kit.Row(step * 3 + n, step % 7 == n, final=step) for n in range(3)]))
    if step % 50 == 0:
        print(step, flush=True)
"""
    process = start(work, str(tmp_path / "replay"))
    done = 0
    while done < 150:
        assert process.stdout is not None
        done = int(process.stdout.readline())
    process.kill()
    rest = process.communicate()[0].split()
    assert process.returncode == -signal.SIGKILL
    done = int(rest[-1]) if rest else done
    replay = Replay.open(tmp_path / "replay")
    assert replay.dropped == ()
    assert (replay.ring.heads > done).all()
    assert replay.ring.heads.max() - replay.ring.heads.min() <= 1
    assert len(replay) == 300
    reference = Reference(3, 300)
    for step in range(int(replay.ring.heads.max())):
        for n in range(3):
            if step < replay.ring.heads[n]:
                row = kit.Row(step * 3 + n, step % 7 == n, final=step)
                reference.add([row], [n])
    index = replay.indices(3)
    assert index.tolist() == reference.indices(3, False)
    reference.check(replay.view(index[::3], 3, 0.5), 3, 0.5)
    kit.walk(replay, 5)
    assert len(replay) == 300
    replay.close()


def test_a_step_that_was_half_written_does_not_count(tmp_path):
    """As a kill between two columns leaves it: the old step is gone, the new one has no stamp yet."""
    replay = kit.make(tmp_path / "replay", 1, 6, slack=0)
    reference = Reference(1, 6)
    kit.walk(replay, 8, reference=reference)
    replay.ring.fields["stamp"][8 % 6] = 0
    replay.ring.action[8 % 6] = 123
    replay.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        replay = Replay.open(tmp_path / "replay")
    assert len(replay) == 5
    assert 2 not in replay.indices(1).tolist()
    index = replay.indices(1)
    assert index.tolist() == [i for i in reference.indices(1, False) if i != 2]
    reference.check(replay.view(index, 1, 0.5), 1, 0.5)


@pytest.mark.parametrize("damage", ["truncated", "missing", "longer"])
def test_a_damaged_shard_is_dropped_and_counted_and_the_rest_is_used(tmp_path, damage):
    path = tmp_path / "replay"
    replay = kit.make(path, 50, 20000, shard_bytes=1)
    reference = Reference(50, 20000)
    kit.walk(replay, 200, reference=reference)
    shards = sorted((path / "shards").iterdir())
    rows = 4096  # 4 bytes of an action each: a page of 16 KiB
    assert len(shards) == 3
    replay.close()
    file = shards[1] / "action.bin"
    size = file.stat().st_size
    if damage == "missing":
        file.unlink()
    else:
        with file.open("r+b") as stream:
            stream.truncate(size - 1 if damage == "truncated" else size + 1)
    said = "is missing" if damage == "missing" else f"expected {size}"
    with pytest.warns(UserWarning, match=f"1 damaged shards dropped .*{said}.*, {10000 - rows} steps are left"):
        replay = Replay.open(path)
    assert len(replay.dropped) == 1
    assert len(replay) == 10000 - rows
    index = replay.indices(3)
    lost = range(rows, 2 * rows)
    assert not set(index.tolist()) & set(lost)
    # a chunk that would reach into what is lost is not there either
    expected = []
    for i in reference.indices(3, False):
        chunk = reference.chunk(i % 50, i // 50, 3)
        assert chunk is not None
        reached = [i + 50 * k for k in range(len(chunk) + (not chunk[-1].ended))]
        if not any(j in lost for j in reached):
            expected.append(i)
    assert index.tolist() == expected
    some = index[:: len(index) // 200]
    reference.check(replay.view(some, 3, 0.5), 3, 0.5)
    assert len(drawn(Uniform(replay))) == 3
    kit.walk(replay, 20)
    assert len(replay) == 11000 - rows
    replay.close()


def test_a_lost_shard_of_last_observations_takes_only_their_steps_along(tmp_path):
    path = tmp_path / "replay"
    replay = kit.make(path, 1, 10)
    for row in (kit.Row(0), kit.Row(1, True, final=9), kit.Row(2), kit.Row(3), kit.Row(4)):
        replay.add(kit.record([row]))
    replay.close()
    (path / "finals" / "000000" / "eye.bin").write_bytes(b"")
    with pytest.warns(UserWarning, match="has 0 bytes"):
        replay = Replay.open(path)
    assert len(replay) == 4
    assert replay.indices(2).tolist() == [2]


def test_a_replay_may_be_larger_than_memory(tmp_path):
    """100 MB of pictures under a limit of 32 MB more than the process starts with; in RAM it does not fit."""
    work = """
import resource, torch
from robotrl.replay.buffer import StepRecord, Uniform
from robotrl.spec import Spec
spec = {"eye": Spec((64, 64, 3), ("r", "g", "b"), ("1",) * 3, (0,) * 3, (255,) * 3, "uint8")}
none = torch.zeros(0, dtype=torch.int64)
off = torch.zeros(8, dtype=torch.bool)
used = int([line.split()[1] for line in open("/proc/self/status") if line.startswith("VmData")][0]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (used + (32 << 20),) * 2)
try:
    Replay.create(None, spec, kit.ACTION, streams=8, capacity=8192)
except MemoryError:
    print("too large for RAM")
replay = Replay.create(sys.argv[2], spec, kit.ACTION, streams=8, capacity=8192)
for step in range(1024):
    obs = {"eye": torch.full((8, 64, 64, 3), step % 251, dtype=torch.uint8)}
    replay.add(StepRecord(obs, torch.zeros(8, 1), torch.full((8,), float(step)), off, off, {}, none))
got = Uniform(replay).sample(64, 1, 0.9, torch.Generator().manual_seed(0))
print(bool((got.obs["eye"][:, 0, 0, 0] == got.reward % 251).all()), len(replay))
"""
    process = start(work, str(tmp_path / "replay"))
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert out.split("\n")[:2] == ["too large for RAM", "True 8192"]


def test_pictures_are_stored_once(tmp_path):
    """20000 steps with 200 ends of episodes: as many pictures, rounded up to shards, and not twice as many."""
    path = tmp_path / "replay"
    replay = kit.make(path, 1, 20000, shard_bytes=64 << 10, slack=0)
    for t in range(0, 20000, 1000):
        replay.add_run(kit.record([kit.Row(t + i, i % 100 == 99, final=t) for i in range(1000)]))
    replay.close()
    pictures = [file.stat().st_size for file in path.rglob("*eye.bin")]
    picture, shard = 16, 4096 * 16
    assert sum(pictures) <= picture * 20000 + 2 * shard
    assert len(list((path / "finals").iterdir())) == 1


def test_going_back_to_a_checkpoint_is_exact_within_the_slack(tmp_path):
    """The run went on after its checkpoint, was killed, and resumes: same content, same samples."""
    whole, cut = (kit.make(tmp_path / name, 2, 40, slack=30) for name in ("whole", "cut"))
    samplers = [Prioritized(replay) for replay in (whole, cut)]
    for replay, sampler in zip((whole, cut), samplers, strict=True):
        kit.walk(replay, 33, seed=1)
        got = drawn(sampler)[-1]
        sampler.update_priorities(got.starts, got.reward.abs())
    state = learner_kit.snapshot({"replay": cut.state(), "sampler": samplers[1].state()})
    kit.walk(cut, 15, seed=2)
    cut.cut()
    drawn(samplers[1])
    cut.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cut = Replay.open(tmp_path / "cut")
        cut.load(state["replay"])
    sampler = Prioritized(cut)
    sampler.load(state["sampler"])
    assert len(cut) == len(whole) == 40
    for replay in (whole, cut):
        kit.walk(replay, 3, seed=3)
    assert_same(drawn(Uniform(whole)), drawn(Uniform(cut)))
    assert_same(drawn(samplers[0]), drawn(sampler))
    assert torch.equal(whole.indices(3), cut.indices(3))
    assert_same([whole.view(whole.indices(3), 3, 0.9)], [cut.view(cut.indices(3), 3, 0.9)])


def test_beyond_the_slack_what_is_gone_is_told(tmp_path):
    replay = kit.make(tmp_path / "replay", 2, 40, slack=6)
    kit.walk(replay, 33, seed=1)
    state = replay.state()
    kit.walk(replay, 5, seed=2)
    with pytest.warns(UserWarning, match="than its slack of 6 steps, or lost shards: 4 steps are gone"):
        replay.load(state)
    assert len(replay) == 36
    assert min(replay.indices(1).tolist()) >= 2 * 15


def test_rewards_changed_after_a_checkpoint_are_told(tmp_path):
    replay = kit.make(tmp_path / "replay", 1, 10)
    kit.walk(replay, 5)
    state = replay.state()
    replay.set_reward(torch.tensor([1]), torch.tensor([5.0]))
    with pytest.warns(UserWarning, match="rewards in the replay were changed after its checkpoint"):
        replay.load(state)


def test_in_ram_the_state_is_the_content():
    replay, other = (kit.make(None, 2, 40) for _ in range(2))
    kit.walk(replay, 33, seed=1)
    state = learner_kit.snapshot(replay.state())
    kit.walk(other, 50, seed=4)
    other.load(state)
    for one in (replay, other):
        kit.walk(one, 3, seed=3)
    assert len(other) == 40
    assert_same(drawn(Uniform(replay)), drawn(Uniform(other)))
    with pytest.raises(DataError, match="has 2 streams: the replay has 1"):
        kit.make(None, 1, 40).load(state)
    with pytest.raises(DataError, match=r"has meta, action, .*: the replay has"):
        kit.make(None, 2, 40, extras={}).load(state)
    with pytest.raises(DataError, match="is of 40 rows: the replay has 20"):
        kit.make(None, 2, 20).load(state)


def test_a_checkpoint_of_another_replay_is_refused(tmp_path):
    one, other = (kit.make(tmp_path / name, 1, 10) for name in "ab")
    with pytest.raises(DataError, match=r"the state is of replay [0-9a-f]{32}: this one is [0-9a-f]{32}"):
        one.load(other.state())
    with pytest.raises(DataError, match="the state is of replay None"):
        one.load(kit.make(None, 1, 10).state())


def test_directories_that_are_not_for_it_are_refused(tmp_path):
    path = tmp_path / "replay"
    replay = kit.make(path, 1, 10)
    with pytest.raises(RobotrlError, match="is open elsewhere: expected one user at a time"):
        Replay.open(path)
    replay.close()
    with pytest.raises(ConfigError, match="closed"):
        replay.add(kit.record([kit.Row(0)]))
    with pytest.raises(ConfigError, match=r"exists: expected a new directory; Replay.open goes on"):
        kit.make(path, 1, 10)
    with pytest.raises(DataError, match="does not exist"):
        Replay.open(tmp_path / "other")
    header = path / "replay.json"
    text = header.read_text()
    header.write_text(text.replace('"schema_version": 2', '"schema_version": 3'))
    with pytest.raises(DataError, match="written by a newer robotrl"):
        Replay.open(path)
    header.write_text(re.sub('"streams": 1,', "", text))
    with pytest.raises(DataError, match=r"replay.json is not as it was written"):
        Replay.open(path)
    older = json.loads(text)
    del older["digest"], older["layout"]["streams"]
    header.write_text(json.dumps({**older, "schema_version": 1}))
    with pytest.raises(DataError, match=r"lacks what it should hold .*streams"):
        Replay.open(path)
    header.write_text(text)
    Replay.open(path).close()


def test_a_full_disk_is_an_error_and_not_a_crash(tmp_path):
    """A file-size limit stands in for the full disk: the space of a shard is reserved when it is made."""
    replay = kit.make(tmp_path / "replay", 1, 1000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(RobotrlError, match=r"cannot make the replay shard .*: File too large"):
            replay.add(kit.record([kit.Row(0)]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, old)
    assert len(replay) == 0
    replay.add(kit.record([kit.Row(0)]))
    assert len(replay) == 1
    assert np.array_equal(replay.ring.obs["state"][0], [0, 0])
