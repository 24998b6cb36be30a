"""Shared memory between two real processes: no torn message is ever accepted."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robotrl.deploy.robots.channel import Channel, Message, channel_bytes
from robotrl.deploy.robots.driver import latest
from robotrl.deploy.robots.link import LINK_BYTES, Link, RobotCommand, Status, message
from robotrl.errors import DataError

WRITER = textwrap.dedent(
    """
    import sys, time
    import numpy as np
    from robotrl.deploy.robots.link import Link, Status, message

    link = Link.attach(sys.argv[1])
    end = time.monotonic() + float(sys.argv[2])
    n = 0
    values = np.empty(500, np.float32)
    while time.monotonic() < end:
        n += 1
        values[:] = n % 1000003
        link.observations.write(message(Status.READY, tick=n, episode=n, state_id=n, mode=n, values=values))
        if n % 64 == 0:
            time.sleep(1e-4)  # where both share one core, the reader would only ever run in the middle of a message
    """
)


def test_a_message_arrives_whole() -> None:
    link = Link.create()
    try:
        assert link.commands.read() is None
        sent = message(RobotCommand.ACT, tick=3, episode=2, state_id=1 << 40, mode=1, reason=7, values=np.arange(4.0))
        link.commands.write(sent)
        got = link.commands.read()
        assert got is not None
        assert got[:-1] == sent[:-1]
        assert got.values.tolist() == [0.0, 1.0, 2.0, 3.0]
        link.commands.write(message(RobotCommand.STOP, tick=4, episode=2, state_id=0, values=np.zeros(0)))
        again = link.commands.read()
        assert again is not None
        assert len(again.values) == 0
    finally:
        link.close()


def test_torn_reads_between_two_processes_are_never_accepted() -> None:
    link = Link.create()
    writer = subprocess.Popen([sys.executable, "-c", WRITER, link.name, "60"], pass_fds=(link.handle,))
    try:
        seen = last = 0
        first = None
        # two seconds, longer where the core has much else to do
        while writer.poll() is None and (first is None or seen <= 100 or time.monotonic() < first + 2):
            got = link.observations.read()
            if got is None:
                continue
            first = first or time.monotonic()
            assert got.tick == got.episode == got.state_id == got.mode
            assert len(got.values) == 500
            assert (got.values == got.tick % 1000003).all()
            assert got.tick >= last
            seen += got.tick > last
            last = got.tick
        assert writer.poll() is None
        assert seen > 100
    finally:
        writer.kill()
        writer.wait()
        link.close()


@settings(max_examples=200, deadline=None)
@given(at=st.integers(0, channel_bytes(8) - 1), flip=st.integers(1, 255))
def test_a_scribble_anywhere_is_noticed(at: int, flip: int) -> None:
    """One changed byte in number, checksum, length or content: no message, or the same message."""
    memory = bytearray(channel_bytes(8))
    channel = Channel(memoryview(memory), 0, 8)
    sent = Message(1, 2, 3, 4, 5, 6, 7, 8, 9, np.arange(5, dtype=np.float32))
    channel.write(sent)
    memory[at] ^= flip
    got = channel.read()
    if got is not None:
        assert got[:-1] == sent[:-1]
        assert got.values.tolist() == sent.values.tolist()


def test_a_writer_that_died_in_the_middle_can_be_followed_by_another() -> None:
    memory = bytearray(channel_bytes(8))
    channel = Channel(memoryview(memory), 0, 8)
    sent = Message(1, 2, 3, 4, 5, 6, 7, 8, 9, np.ones(3, np.float32))
    channel.write(sent)
    memory[0] += 1  # as a writer leaves it that is killed while it writes
    assert channel.read() is None
    channel.write(sent)
    got = channel.read()
    assert got is not None
    assert got[:-1] == sent[:-1]


def test_a_command_holds_while_the_next_one_is_being_written() -> None:
    """A robot that took the gap for the absence of any command would stop a minute after its start."""
    memory = bytearray(channel_bytes(8))
    channel = Channel(memoryview(memory), 0, 8)
    assert latest(channel, None) is None
    sent = Message(1, 2, 3, 4, 5, 6, 7, 8, 9, np.ones(3, np.float32))
    channel.write(sent)
    first = latest(channel, None)
    assert first is not None and first.tick == 2
    memory[0] += 1  # as a writer leaves it that is interrupted
    assert latest(channel, first) is first
    channel.write(sent._replace(tick=3))
    found = latest(channel, first)
    assert found is not None and found.tick == 3


def test_a_message_too_long_is_refused() -> None:
    channel = Channel(memoryview(bytearray(channel_bytes(8))), 0, 8)
    with pytest.raises(ValueError, match="message has 9 values: the channel takes 8"):
        channel.write(Message(1, 2, 3, 4, 5, 6, 7, 8, 9, np.ones(9, np.float32)))


def test_introductions() -> None:
    link = Link.create()
    try:
        assert link.introduction("robot") is None
        link.introduce("robot", {"name": "cart", "numbers": [0.1, None]})
        assert link.introduction("robot") == {"name": "cart", "numbers": [0.1, None]}
        with pytest.raises(ValueError, match="introduction of the robot has"):
            link.introduce("robot", {"name": "x" * (1 << 18)})
    finally:
        link.close()


@pytest.mark.parametrize("name", ["fd:99999", "fd:x", "psm_1234", ""])
def test_what_is_no_link_is_refused(name: str) -> None:
    with pytest.raises(DataError, match="link"):
        Link.attach(name)


def test_another_file_is_no_link(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("link") / "file"
    path.write_bytes(bytes(100))
    with open(path, "r+b") as file, pytest.raises(DataError, match=f"has 100 bytes: expected {LINK_BYTES}"):
        Link.attach(f"fd:{file.fileno()}")
    path.write_bytes(bytes(LINK_BYTES))
    with open(path, "r+b") as file, pytest.raises(DataError, match="begins with"):
        Link.attach(f"fd:{file.fileno()}")


def test_stamps_are_of_the_monotonic_clock() -> None:
    before = time.monotonic_ns()
    sent = message(Status.READY, tick=0, episode=0, state_id=0, values=np.zeros(1))
    assert before <= sent.stamp_ns <= time.monotonic_ns()
