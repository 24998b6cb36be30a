"""Programs that the tests of runs start and kill: `python run_kit.py NAME ARGUMENTS...`.

`kills` imports everything once and forks its victims, because importing torch takes longer than all the rest.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from robotrl.errors import RobotrlError
from robotrl.run.checkpoint import read_checkpoint
from robotrl.run.directory import Run

FS_EVENTS = ("open", "os.", "shutil.rmtree")


def tree(step: int) -> dict:
    return {"step": step, "weights": np.full(20_000, step, np.int64), "more": {"x": np.arange(step)}}


def check(path: Path, at_least: int) -> int:
    """Open a run that was killed: it must resume from a whole checkpoint, and its logs must end there."""
    run = Run.open(path)
    found = run.resume()
    run.close()
    step = -1 if found is None else found.step
    assert step >= at_least, f"resumed from {step}, though {at_least} had been saved"
    if found is not None:
        assert found.tree["step"] == step
        assert (found.tree["weights"] == step).all()
        assert found.tree["more"]["x"].tolist() == list(range(step))
    names = {entry.name for entry in (path / "checkpoints").iterdir()}
    for name in names - {"latest.json", "best.json"}:
        read_checkpoint(path / "checkpoints" / name)  # the older ones are whole too
    assert not any(name.startswith((".", "damaged")) for name in names), names
    steps = [int(line.split(",")[0].removeprefix('{"step": ')) for line in (path / "scalars.jsonl").open()]
    assert steps == list(range(step + 1)), (steps, step)
    return step


def in_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked process; its wait status is the caller's to collect."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return pid


def killed_at_random(base: Path, rounds: int, seed: int) -> None:
    """One run, killed and resumed again and again."""
    draw = random.Random(seed)
    path = base / "random"
    Run.create(path, {"rounds": rounds}, seed=seed, command=sys.argv).close()
    reached = -1
    for _ in range(rounds):
        reader, writer = os.pipe()

        def work(writer: int = writer) -> None:
            run = Run.open(path)
            found = run.resume()
            step = -1 if found is None else found.step
            with run:
                while True:
                    step += 1
                    run.log(step, {"x": step})
                    run.save(tree(step), step=step, score=float(step % 7))
                    os.write(writer, step.to_bytes(8, "little"))

        pid = in_child(work)
        os.close(writer)
        os.read(reader, 8)  # the first one is saved; some milliseconds later, the kill
        time.sleep(draw.random() * 0.15)
        os.kill(pid, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
        while said := os.read(reader, 8):
            reached = max(reached, int.from_bytes(said, "little"))
        os.close(reader)
        reached = check(path, reached)
    assert reached > rounds
    print(f"random kills: {rounds}, step {reached}")


def killed_at_each_file_operation(base: Path) -> None:
    """One save after five others, killed before its 1st, 2nd, ... operation on files until none is left; each twice.

    First a new checkpoint (with one removed and both pointers moved), then one that replaces another of its step.
    """
    start = base / "start"
    run = Run.create(start, {}, seed=0, command=sys.argv)
    for step in range(6):
        run.log(step, {"x": step})
        run.save(tree(step), step=step, score=float(step))
    run.close()
    for saved in (6, 5):
        for count in range(1, 1000):
            path = base / f"kill-{saved}-{count}"
            shutil.copytree(start, path)

            def work(path: Path = path, saved: int = saved, count: int = count) -> None:
                run = Run.open(path)
                run.resume()
                left = [count]

                def hook(event: str, _: object) -> None:
                    if event.startswith(FS_EVENTS):
                        left[0] -= 1
                        if left[0] == 0:
                            os.kill(os.getpid(), signal.SIGKILL)

                sys.addaudithook(hook)
                if saved == 6:
                    run.log(saved, {"x": saved})
                run.save(tree(saved), step=saved, score=float(saved + 1))

            status = os.waitpid(in_child(work), 0)[1]
            check(path, 5)
            shutil.rmtree(path)
            if os.WIFEXITED(status):
                assert status == 0, status
                break
            assert os.WTERMSIG(status) == signal.SIGKILL
        assert count > 20, f"only {count} file operations were seen"
        print(f"save of step {saved}: killed at {count - 1} operations")


def killed_while_created(base: Path) -> None:
    """`Run.create`, killed before each operation on files: the directory is absent, or a whole run."""
    for count in range(1, 1000):
        path = base / f"create-{count}"

        def work(path: Path = path, count: int = count) -> None:
            left = [count]

            def hook(event: str, arguments: tuple) -> None:
                if event.startswith(FS_EVENTS) and any(path.name in str(argument) for argument in arguments):
                    left[0] -= 1
                    if left[0] == 0:
                        os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(hook)
            Run.create(path, {}, seed=0, command=[])

        status = os.waitpid(in_child(work), 0)[1]
        if path.exists():
            check(path, -1)
        if os.WIFEXITED(status):
            assert status == 0, status
            break
    assert count > 10, count
    print(f"create: killed at {count - 1} operations")


def loop(path: Path, resume: str) -> None:
    """A small training loop that saves when it is asked to stop, as the documentation shows it."""
    run = Run.open(path) if resume == "resume" else Run.create(path, {}, seed=0, command=sys.argv)
    found = run.resume() if resume == "resume" else None
    step = found.step if found else -1
    with run:
        ready = False
        while not run.stop_requested:
            step += 1
            run.log(step, {"x": step})
            if not ready:
                # only now is there a step that a signal can save
                print("ready", flush=True)
                ready = True
            time.sleep(0.01)
        run.save(tree(step), step=step)
    sys.exit(run.exit_code)


def stubborn(path: Path) -> None:
    """A loop that never looks at `stop_requested`."""
    run = Run.create(path, {}, seed=0, command=sys.argv)
    run.save(tree(1), step=1)
    with run:
        print("ready", flush=True)
        while True:
            if run.stop_requested:
                print("stopping", flush=True)
            time.sleep(0.01)


def hold(path: Path) -> None:
    """Holds a run open for writing until stdin closes."""
    with Run.create(path, {}, seed=0, command=sys.argv):
        print("ready", flush=True)
        sys.stdin.read()


def fill(path: Path, limit: int) -> None:
    """Save ever larger checkpoints, then log, until the disk (or `limit`, in bytes, on file sizes) refuses each."""
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    run = Run.create(path, {}, seed=0, command=sys.argv)
    step = 0
    try:
        while True:
            step += 1
            run.log(step, {"x": step})
            run.save({"step": step, "weights": np.zeros(1000 << step)}, step=step)
    except RobotrlError as error:
        print(error)
    if not limit:
        with open(path / "ballast", "wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x" * 512):
                continue
    try:
        while True:
            step += 1
            run.log(step, {f"scalar/{i}": float(i) for i in range(100)})
    except RobotrlError as error:
        print(error)


if __name__ == "__main__":
    name, place, *rest = sys.argv[1:]
    if name == "kills":
        # What the victims need, loaded once.
        for module in ("torch", "safetensors.torch", "tensorboard.summary.writer.record_writer"):
            importlib.import_module(module)
        killed_at_random(Path(place), rounds=20, seed=int(rest[0]))
        killed_at_each_file_operation(Path(place))
        killed_while_created(Path(place))
    else:
        {"loop": loop, "stubborn": stubborn, "hold": hold, "fill": lambda path, limit: fill(path, int(limit))}[name](
            Path(place), *rest
        )
