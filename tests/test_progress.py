import os
import pty
import subprocess
import sys

import pytest

from robotrl.progress import Pace, PlainLines, track

SCRIPT = """
from robotrl.progress import track
with track(3, "counting", "things") as bar:
    for i in range(3):
        bar.advance(note=f"number {i}")
print("result")
"""


def test_without_a_terminal_a_few_plain_lines_on_stderr():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout == "result\n"
    assert done.stderr.splitlines() == ["counting: started", "counting: 3/3 things in 0:00  number 2"]


def on_terminal(script: str) -> bytes:
    """What a script writes to a stderr that is a terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    subprocess.run(
        [sys.executable, "-c", script], stderr=theirs, stdout=subprocess.DEVNULL, env=environment, check=True
    )
    os.close(theirs)
    said = b""
    while True:
        try:
            chunk = os.read(ours, 4096)
        except OSError:  # Linux: the other end is closed and all is read
            break
        if not chunk:
            break
        said += chunk
    os.close(ours)
    return said


def test_on_a_terminal_a_bar_that_fills():
    said = on_terminal(SCRIPT)
    assert b"counting" in said
    assert b"3/3 things" in said
    assert b"number 2" in said


NESTED = """
from robotrl.progress import track
with track(2, "training", "rounds") as outer:
    for i in range(2):
        with track(3, "evaluating", "starts") as inner:
            for j in range(3):
                inner.advance()
        outer.advance(note=f"round {i}")
with track(1, "after") as bar:
    bar.advance()
"""


def test_without_a_terminal_only_the_outer_of_two_bars_prints():
    done = subprocess.run([sys.executable, "-c", NESTED], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == [
        "training: started",
        "training: 2/2 rounds in 0:00  round 1",
        "after: started",
        "after: 1/1 it in 0:00",
    ]


def test_on_a_terminal_an_inner_bar_shares_the_display():
    said = on_terminal(NESTED)
    assert b"evaluating" in said
    assert b"2/2 rounds" in said
    # one display for both: the cursor is hidden and shown once for it, and once for the bar that follows
    assert said.count(b"\x1b[?25l") == 2


def test_lines_come_at_doubling_intervals_with_the_time_left(capsys):
    now = 0.0
    lines = PlainLines(Pace(100, clock=lambda: now), "stepping", "steps")
    for _ in range(100):
        now += 1.0
        lines.advance()
    lines.close()
    said = capsys.readouterr().err.splitlines()
    times = [line for line in said if "passed" in line]
    assert [line.split(": ", 1)[1] for line in times] == [
        "5/100 steps, 0:05 passed, 1:35 left",
        "10/100 steps, 0:10 passed, 1:30 left",
        "20/100 steps, 0:20 passed, 1:20 left",
        "40/100 steps, 0:40 passed, 1:00 left",
        "80/100 steps, 1:20 passed, 0:20 left",
    ]
    assert said[-1] == "stepping: 100/100 steps in 1:40"


def test_an_unknown_total_has_no_time_left(capsys):
    now = 0.0
    lines = PlainLines(Pace(None, clock=lambda: now), "waiting", "it")
    now = 6.0
    lines.advance(2)
    assert capsys.readouterr().err.splitlines()[1] == "waiting: 2 it, 0:06 passed"


def test_an_exception_passes_and_no_end_is_claimed(capsys):
    with pytest.raises(RuntimeError), track(5, "failing"):
        raise RuntimeError
    assert capsys.readouterr().err == "failing: started\n"
