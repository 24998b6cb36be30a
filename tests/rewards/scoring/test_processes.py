"""Processes of the service: how they start, and that they end with the trainer, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from robotrl.rewards.scoring.cfg import ServiceCfg
from tests.kits.scoring_kit import batches_in, service_of

TRAINER = """
import multiprocessing, os, sys, time
import numpy as np
from robotrl.errors import RobotrlError
from robotrl.rewards.scoring.cfg import ServiceCfg
from tests.kits.scoring_kit import HANG, pictures_of, service_of

def trainer(log, start_s=0.0):
    service = service_of(ServiceCfg(processes=2, batch_size=1, queue_frames=8), log=log, start_s=start_s)
    tickets = np.arange(4)
    service.submit(tickets, pictures_of(tickets, {0: HANG}))
    service.wait(0.5)
    print(*service.pids, flush=True)
    return service

if __name__ == "__main__":
"""
SLEEPS = "    service = trainer(sys.argv[1])\n    time.sleep(600)\n"
STOPS = """
    try:
        with trainer(sys.argv[1]) as service:
            service.wait(600)
    except KeyboardInterrupt:
        print("stopped")
"""
STOPS_EARLY = """
    try:
        trainer(sys.argv[1], 600.0)
    except KeyboardInterrupt:
        print("stopped")
"""
LEAVES = "    service = trainer(sys.argv[1])\n"
FORKS = """
    service = trainer(sys.argv[1])

    def use():
        try:
            service.submit(np.arange(20, 21), pictures_of(np.arange(20, 21)))
        except RobotrlError as error:
            print("process" in str(error), flush=True)
        service.close()

    fork = multiprocessing.get_context("fork").Process(target=use)
    fork.start()
    fork.join()
    print(fork.exitcode)
    service.submit(np.arange(10, 14), pictures_of(np.arange(10, 14)))
    found = []
    while len(found) < 4:
        found += service.wait(0.01).tickets.tolist()
    print(sorted(found), len(service.pids))
"""


def start(folder: Path, ends: str) -> subprocess.Popen[str]:
    """Start a trainer in a process group of its own."""
    script = folder / "trainer.py"
    script.write_text(TRAINER + ends)
    pipe = subprocess.PIPE
    command = [sys.executable, str(script), str(folder / "log")]
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def pids_of(trainer: subprocess.Popen[str]) -> list[int]:
    assert trainer.stdout is not None
    return [int(pid) for pid in trainer.stdout.readline().split()]


def rest_of(trainer: subprocess.Popen[str]) -> tuple[str, str]:
    """Wait for the trainer's end; returns its remaining output, and its errors."""
    # not `communicate`, which leaves out what reading a line has read ahead
    assert trainer.stdout is not None and trainer.stderr is not None
    out, said = trainer.stdout.read(), trainer.stderr.read()
    trainer.wait()
    return out, said


def until_ended(*pids: int) -> None:
    """Wait until processes are gone, or wait for a parent that nobody is."""
    for pid in pids:
        path = Path(f"/proc/{pid}/stat")
        while path.exists() and path.read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.02)


def until_logged(path: Path) -> int:
    """Wait for the first line of a log; returns the process that wrote it."""
    while not batches_in(path):
        time.sleep(0.02)
    return batches_in(path)[0][0]


def test_workers_end_by_themselves_when_the_trainer_is_killed(tmp_path: Path) -> None:
    trainer = start(tmp_path, SLEEPS)
    pids = pids_of(trainer)
    assert len(pids) == 2
    for pid in pids:
        # memory without a name: the kernel frees it with the last process that holds it
        assert "/memfd:robotrl-pictures (deleted)" in Path(f"/proc/{pid}/maps").read_text()
    trainer.kill()
    _, said = rest_of(trainer)
    until_ended(*pids)
    assert said == ""


@pytest.mark.parametrize("ends", [STOPS, STOPS_EARLY], ids=["while it waits", "while the scorer is made"])
def test_ctrl_c_ends_all_processes_without_a_traceback(tmp_path: Path, ends: str) -> None:
    trainer = start(tmp_path, ends)
    pids = pids_of(trainer) if ends == STOPS else [until_logged(tmp_path / "log")]
    os.killpg(trainer.pid, signal.SIGINT)
    out, said = rest_of(trainer)
    assert (trainer.returncode, out, said) == (0, "stopped\n", "")
    until_ended(*pids)


def test_a_trainer_that_ends_without_closing_ends_its_workers(tmp_path: Path) -> None:
    trainer = start(tmp_path, LEAVES)
    pids = pids_of(trainer)
    _, said = rest_of(trainer)
    assert (trainer.returncode, said) == (0, "")
    until_ended(*pids)


def test_a_fork_of_the_trainer_has_no_part_in_the_service(tmp_path: Path) -> None:
    trainer = start(tmp_path, FORKS)
    pids = pids_of(trainer)
    out, said = rest_of(trainer)
    assert said == ""
    # one worker hangs; the other one goes on
    assert out.splitlines() == ["True", "0", "[10, 11, 12, 13] 2"]
    until_ended(*pids)


def test_workers_are_spawned_with_their_threads_and_cores() -> None:
    core = min(os.sched_getaffinity(0))
    before = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "PYTHONSAFEPATH")}
    with service_of(ServiceCfg(threads=3, cores=(core,))) as service:
        (pid,) = service.pids
        assert b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        assert {b"OMP_NUM_THREADS=3", b"OPENBLAS_NUM_THREADS=3", b"MKL_NUM_THREADS=3"} <= set(environment)
        assert os.sched_getaffinity(pid) == {core}
    assert {name: os.environ.get(name) for name in before} == before


UNGUARDED = """
import sys
import numpy as np
from robotrl.rewards.scoring.cfg import ServiceCfg
from tests.kits.scoring_kit import pictures_of, service_of

print("begun", flush=True)
with service_of(ServiceCfg(batch_size=4, queue_frames=8), log=sys.argv[1]) as service:
    tickets = np.arange(4)
    service.submit(tickets, pictures_of(tickets))
    print(len(service.wait(60).tickets), __file__ == sys.argv[0])
"""


def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    command = [sys.executable, str(script), str(tmp_path / "log")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr) == ("begun\n4 True\n", "")
