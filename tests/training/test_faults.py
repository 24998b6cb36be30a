"""Kills, signals, second writers and full disks, each with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from robotrl.run.directory import Run
from robotrl.run.logs import read_scalars
from tests.kits.paths_kit import KITS

KIT = KITS / "run_kit.py"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def start(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(KIT), *map(str, words)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=ENVIRONMENT)


def wait_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout.readline() == "ready\n", process.communicate()[1]


@pytest.mark.timeout(400)
def test_a_kill_at_any_moment_leaves_a_run_that_resumes():
    # In memory where there is such a place: to a kill, unlike to a power cut, it is the same, and syncing is free.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as base:
        process = start("kills", base, 0)
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert out.startswith("random kills: 20")
    assert len(out.splitlines()) == 4


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_the_run_goes_on_later(tmp_path, number, code):
    process = start("loop", tmp_path / "a", "create")
    wait_ready(process)
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == code, err
    assert f"{number.name}: saving and stopping" in err
    assert "Traceback" not in err
    first = Run.open(tmp_path / "a").latest()
    assert first.tree["step"] == first.step

    process = start("loop", tmp_path / "a", "resume")
    wait_ready(process)
    process.send_signal(number)
    assert process.wait() == code
    process.communicate()
    last = Run.open(tmp_path / "a").latest()
    assert last.step >= first.step
    steps = [record["step"] for record in read_scalars(tmp_path / "a" / "scalars.jsonl")]
    assert steps == list(range(last.step + 1))


def test_a_second_interrupt_aborts_at_once(tmp_path):
    process = start("stubborn", tmp_path / "a")
    wait_ready(process)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "stopping\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert "KeyboardInterrupt" in err
    assert process.returncode == -signal.SIGINT
    assert Run.open(tmp_path / "a").resume().step == 1


def test_an_interrupt_after_a_terminate_aborts_too(tmp_path):
    process = start("stubborn", tmp_path / "a")
    wait_ready(process)
    for number in (signal.SIGTERM, signal.SIGTERM):
        process.send_signal(number)
        assert process.stdout.readline() == "stopping\n"
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == -signal.SIGINT


def test_handlers_are_restored(tmp_path):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    run = Run.create(tmp_path / "a", {}, seed=0, command=[])
    with run:
        assert signal.getsignal(signal.SIGINT) != before[0]
        assert not run.stop_requested
        signal.raise_signal(signal.SIGTERM)
        assert run.stop_requested
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert run.exit_code == 143


def test_a_process_that_ends_by_itself_lets_one_terminate_pass():
    work = """
import os, signal, time
from robotrl.run.locking import finish_despite_sigterm
finish_despite_sigterm()
os.kill(os.getpid(), signal.SIGTERM)
print("why", flush=True)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
"""
    done = subprocess.run([sys.executable, "-c", work], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGTERM, "why\n", "")


def test_a_thread_that_is_not_the_main_one_can_write_a_run(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    seen: list[bool] = []

    def work() -> None:
        run = Run.create(tmp_path / "a", {}, seed=0, command=[])
        with run:
            seen.append(signal.getsignal(signal.SIGINT) == before)
            run.save({}, step=0)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True]
    assert Run.open(tmp_path / "a").latest().step == 0


def test_two_processes_cannot_write_one_run_but_many_may_read(tmp_path):
    process = start("hold", tmp_path / "a")
    wait_ready(process)
    reader = Run.open(tmp_path / "a")
    assert reader.latest() is None
    other = start("loop", tmp_path / "a", "resume")
    _, err = other.communicate()
    assert other.returncode == 1
    assert f"is being written by process {process.pid}: stop it, or choose another run" in err
    process.communicate(input="")
    assert process.returncode == 0
    assert reader.resume() is None
    reader.close()


def test_a_lock_dies_with_its_process_even_where_a_child_lives_on(tmp_path):
    """A worker that outlives its killed parent must not keep the run locked."""
    program = (
        "import os, sys, time; from pathlib import Path; from robotrl.run.directory import Run\n"
        "run = Run.create(Path(sys.argv[1]), {}, seed=0, command=[])\n"
        "pid = os.fork()\n"
        "if pid == 0: sys.stdin.read(); os._exit(0)\n"
        "print(pid, flush=True); time.sleep(100)"
    )
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", program, tmp_path / "a"], stdin=pipe, stdout=pipe, text=True)
    child = int(process.stdout.readline())
    process.kill()
    process.wait()
    try:
        os.kill(child, 0)  # alive
        run = Run.open(tmp_path / "a")
        assert run.resume() is None
        run.close()
    finally:
        process.stdin.close()
        process.stdout.close()


def check_survivor(out: str, path: Path, reason: str) -> None:
    saved, logged = out.splitlines()
    assert (path / "scalars.jsonl").read_bytes().endswith(b"}\n")  # the line that did not fit was taken back
    run = Run.open(path)
    latest = run.latest()
    survivor = path / "checkpoints" / f"step_{latest.step:09d}"
    failed = path / "checkpoints" / f"step_{latest.step + 1:09d}"
    assert saved.startswith(f"cannot write checkpoint {failed}: {reason};")
    assert saved.endswith(f"; {survivor} is intact: resume from it")
    assert logged == f"cannot log to {path}: {reason}; {survivor} is intact: resume from it"
    assert latest.tree["step"] == latest.step and latest.step >= 2
    assert not list((path / "checkpoints").glob(".*"))


def test_a_file_size_limit_is_reported_and_the_previous_checkpoint_survives(tmp_path):
    process = start("fill", tmp_path / "a", 60_000)
    out, err = process.communicate()
    assert process.returncode == 0, err
    check_survivor(out, tmp_path / "a", "File too large")
    run = Run.open(tmp_path / "a")
    step = run.resume().step
    run.log(step + 1, {"x": 1})
    run.save({"step": step + 1}, step=step + 1)
    assert run.latest().step == step + 1
    run.close()


def test_a_full_disk_is_reported_and_the_previous_checkpoint_survives(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("no right to mount a small disk")
    try:
        process = start("fill", disk / "a", 0)
        out, err = process.communicate()
        assert process.returncode == 0, err
        check_survivor(out, disk / "a", "No space left on device")
        (disk / "a" / "ballast").unlink()
        run = Run.open(disk / "a")
        step = run.resume().step
        run.save({"step": step + 1}, step=step + 1)
        assert run.latest().step == step + 1
        run.close()
    finally:
        subprocess.run(["umount", disk], check=True)
