"""Learners that Ray places: the numbers of torchrun, one that dies ends the run, what no node has is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from robotrl.cli.main import main
from robotrl.run.checkpoint import Checkpoint, read_checkpoint
from robotrl.run.logs import read_scalars
from tests.kits.distributed_kit import QUIET
from tests.kits.learner_kit import same
from tests.kits.ray_kit import ray_of_two

pytest.importorskip("ray")
session = pytest.fixture(scope="module", autouse=True)(ray_of_two)
TRAIN = "--sim gym/CartPole-v1 --algo ppo --sim.num-envs 4 --algo.num-steps 16 --algo.minibatch 64 --algo.engine eager"
TRAIN += " --algo.critic-warmup-env-steps 0 --algo.env-steps 1000000 --evaluation.episodes 0 --checkpoint-every 2"
TRAIN += " --keep 10000"
TWO = ["--cluster", "ray", "--cluster.learners", "2", "--cluster.workers", "0"]


def checkpoint(run: Path, step: int) -> Checkpoint:
    return read_checkpoint(run / "checkpoints" / f"step_{step:09d}")


def learner_of(run: Path, rank: int) -> psutil.Process | None:
    """The process of a learner of a run."""
    for process in psutil.process_iter():
        try:
            if str(run) in process.cmdline() and process.environ().get("RANK") == str(rank):
                return process
        except psutil.Error:
            continue
    return None


def kill_after(run: Path, lines: int, rank: int) -> None:
    """Kill a learner once its run has logged so many iterations."""
    end = time.monotonic() + 300
    log = run / "scalars.jsonl"
    while not log.exists() or len(read_scalars(log)) < lines:
        if time.monotonic() > end:
            return
        time.sleep(0.05)
    process = learner_of(run, rank)
    if process is not None:
        process.kill()


def test_learners_have_the_numbers_of_torchrun_and_one_that_dies_ends_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    placed, started = tmp_path / "placed", tmp_path / "started"
    killer = threading.Thread(target=kill_after, args=(placed, 3, 1))
    killer.start()
    code = main(["train", *TRAIN.split(), *TWO, "--run-dir", str(placed)])
    killer.join()
    said = capsys.readouterr().err
    assert code == 2, said
    last = said.strip().splitlines()[-1]
    assert "learner 1 of 2 was killed by SIGKILL" in last and f"robotrl train --resume {placed}" in last
    # the first learner's output is shown
    assert "process 0 of 2 lost the others while it" in said and "Traceback" not in said
    assert learner_of(placed, 0) is None and learner_of(placed, 1) is None
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    robotrl = [sys.executable, "-m", "robotrl.cli", "train", *TRAIN.split(), "--pause-at-iteration", "2"]
    done = subprocess.run(
        [*torchrun, *robotrl, "--run-dir", str(started)], capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    ours, theirs = (checkpoint(run, 2).tree for run in (placed, started))
    assert ours["learner"]["processes"] == 2
    assert all(same(ours[name], theirs[name]) for name in ("policy", "learner", "rng"))


def test_ctrl_c_saves_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    run = tmp_path / "run"
    words = ["train", *TRAIN.split(), *TWO, "--run-dir", str(run)]

    def interrupt() -> None:
        end = time.monotonic() + 300
        scalars = run / "scalars.jsonl"
        while not (scalars.exists() and scalars.stat().st_size) and time.monotonic() < end:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    stopper = threading.Thread(target=interrupt)
    stopper.start()
    assert main(words) == 130
    stopper.join()
    saved = int(read_scalars(run / "scalars.jsonl")[-1]["step"])
    assert checkpoint(run, saved).step == saved
    assert main(["train", "--resume", str(run), "--pause-at-iteration", str(saved + 2)]) == 0
    assert [row["step"] for row in read_scalars(run / "scalars.jsonl")] == list(range(1, saved + 3))


def test_ctrl_c_while_learners_load_ends_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    run = tmp_path / "run"

    def interrupt() -> None:
        end = time.monotonic() + 300
        while not tmp_path.joinpath("run.learner-1.log").exists() and time.monotonic() < end:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    stopper = threading.Thread(target=interrupt)
    stopper.start()
    assert main(["train", *TRAIN.split(), *TWO, "--run-dir", str(run)]) == 130
    stopper.join()


@pytest.mark.parametrize(
    "words, named",
    [
        (["--cluster.learners", "3"], ("cluster.learners is 3", "cluster.learner_cpus 1", "2 CPUs")),
        (["--cluster.learner-cpus", "64"], ("cluster.learner_cpus 64", "2 CPUs")),
        (["--device", "cuda"], ("device is cuda", "expected 0 or fewer learners")),
        (["--cluster.workers", "1"], ("cluster.learners is 2", "cluster.workers is 1", "2 CPUs")),
    ],
)
def test_what_no_node_has_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], named: tuple[str, ...]
):
    run = tmp_path / "run"
    assert main(["train", *TRAIN.split(), *TWO, *words, "--run-dir", str(run)]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert all(part in last for part in named), last
    assert list(tmp_path.iterdir()) == []
