import os
import pty
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robotrl.utils.progress import Pace, PlainLines, clock_text, track

SCRIPT = """
from robotrl.utils.progress import track
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
from robotrl.utils.progress import track
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


def said_by(costs, waits=(), total=None, most=False):
    """Lines of a run whose units take `costs` seconds; `waits` of them are waited for within the unit."""
    now = 0.0
    pace = Pace(total or len(costs), clock=lambda: now)
    lines = PlainLines(pace, "learning", "rounds", may_end_early=most)
    for index, cost in enumerate(costs):
        now += cost
        pace.waited(dict(waits).get(index, 0.0))
        lines.advance()
    return pace


@settings(max_examples=100, deadline=None)
@given(
    unit=st.floats(0.05, 3.0),
    first=st.floats(1.0, 50.0),
    wait=st.floats(0.0, 200.0),
    units=st.integers(4, 60),
    evaluated=st.integers(2, 10),
    noise=st.lists(st.floats(0.8, 1.25), min_size=60, max_size=60),
)
def test_no_time_left_is_three_times_the_truth(unit, first, wait, units, evaluated, noise):
    """Whatever the first unit costs beside its work, and however long something was compiled in it."""
    costs = [unit * noise[i] * (2.0 if i % evaluated == 0 else 1.0) for i in range(units)]
    costs[0] += min(first * unit, unit * units) + wait
    now, pace = 0.0, None
    pace = Pace(units, clock=lambda: now)
    for done, cost in enumerate(costs[:-1], start=1):
        now += cost
        pace.waited(wait if done == 1 else 0.0)
        pace.count(1)
        truth, left = sum(costs[done:]), pace.left_s()
        assert (left is not None) or done == 1
        if done > 1:
            assert left <= 3 * truth


def test_what_was_waited_for_is_passed_but_in_no_estimate(capsys):
    said_by([50.0, *([1.0] * 9)], waits=[(0, 44.0)])
    lines = [line for line in capsys.readouterr().err.splitlines() if "passed" in line]
    assert lines == ["learning: 1/10 rounds, 0:50 passed, 0:54 left"]
    # of a short first unit most may be what happens once
    said_by([49.0, *([1.0] * 9)], waits=[(0, 48.0)])
    assert "learning: 1/10 rounds, 0:49 passed\n" in capsys.readouterr().err


def test_what_is_worked_on_side_by_side_has_no_pace_before_all_of_it_is_done():
    now = 0.0
    pace = Pace(256, step=64, clock=lambda: now)
    now = 60.0
    pace.count(1)
    assert pace.left_s() is None
    pace.count(63)
    assert pace.left_s() == pytest.approx(180.0)


def test_what_may_end_early_says_by_when_it_ends_at_the_latest(capsys):
    said_by([1.0] * 6, total=100, most=True)
    assert "5/100 rounds, 0:05 passed, ends within 1:35" in capsys.readouterr().err


def test_a_run_that_is_taken_up_shows_where_it_is(capsys):
    now = 0.0
    pace = Pace(30, done=20, clock=lambda: now)
    lines = PlainLines(pace, "train a", "iteration")
    for _ in range(2):
        now += 3.0
        lines.advance()
    assert capsys.readouterr().err.splitlines() == [
        "train a: going on from 20/30 iteration",
        "train a: 22/30 iteration, 0:06 passed, 0:24 left",
    ]


def test_hours_have_a_place_of_their_own():
    assert [clock_text(s) for s in (0.4, 59.6, 3599.0, 3725.0)] == ["0:00", "1:00", "59:59", "1:02:05"]


WAITING = """
import time
from robotrl.utils.progress import track, waiting
with waiting("alone"):
    pass
with track(2, "training") as bar:
    with waiting("compiling the update (about 1 s)"):
        time.sleep(0.3)
    bar.advance()
"""


def test_waiting_is_said_at_once_and_when_it_is_over():
    done = subprocess.run([sys.executable, "-c", WAITING], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[:3] == [
        "training: started",
        "training: compiling the update (about 1 s)",
        "training: compiling the update (about 1 s): took 0 s",
    ]
    said = on_terminal(WAITING)
    assert b"compiling the update" in said and b"passed" in said


INTERRUPTED = """
import os, signal, time
from robotrl.run.locking import StopSignals
from robotrl.utils.progress import track
signals = StopSignals()
signals.install()
with track(3, "training", "rounds") as bar:
    time.sleep(0.25)
    os.write(2, b"^C")
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(3):
        time.sleep(0.25)
        bar.advance()
"""


def screen(said: bytes) -> list[str]:
    """The lines that stand on a terminal at the end: carriage returns, lines up, and erased lines are followed."""
    lines, row, column = [""], 0, 0
    for code, char in re.findall(r"(\x1b\[[0-9;?]*[A-Za-z])|(.)", said.decode(), flags=re.S):
        if code.endswith("A"):
            row -= int(code[2:-1] or 1)
        elif code.endswith("K"):
            lines[row] = ""
        elif char == "\r":
            column = 0
        elif char == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif char:
            line = lines[row].ljust(column)
            lines[row], column = line[:column] + char + line[column + 1 :], column + 1
    return [line.strip() for line in lines if line.strip()]


def test_a_signal_leaves_one_bar_on_the_terminal():
    lines = screen(on_terminal(INTERRUPTED))
    assert lines[0].startswith("SIGINT: saving and stopping")
    assert [line.split()[0] for line in lines[1:]] == ["training"]
    assert "passed" in lines[1]


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
