"""Faults of a run directory: its files, its inputs from outside, and leftovers of a refused run."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults import sound
from benchmarks.faults.kind import Kind, Outcome
from benchmarks.faults.mutate import (
    MUTATIONS,
    changed_digit,
    doubled_key,
    heard,
    hostile,
    linked,
    no_file,
    other_type,
    replaced,
    truncated,
    turned_bit,
)
from robotrl.config import SimCfg, TrainCfg
from robotrl.datasets.reader import read_dataset
from robotrl.errors import RobotrlError
from robotrl.run import input_digests
from robotrl.run.directory import Run
from robotrl.run.inputs import Digest
from robotrl.run.logs import read_scalars
from robotrl.spec import Input, InputKind
from robotrl.training import config_of, train

Rng = np.random.Generator
Mutation = Callable[[Rng, bytes], bytes]
LINES = 40
TEMPLATE = '{{"step": {step}, "wall_s": {step}.5, "loss": {loss}}}\n'
MODULE = """
import gymnasium
from gymnasium.envs.registration import register

class Faulty(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    def __init__(self, **kwargs):
        self.render_mode = None
        {make}
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        {reset}
        return self.observation_space.low * 0, {{}}
    def step(self, action):
        {step}
        return self.observation_space.low * 0, 0.0, False, False, {{}}

{top}
register("{name}-v0", entry_point=Faulty, max_episode_steps=5)
"""
RAISED = (
    "raise ValueError('odd')",
    "raise MemoryError",
    "raise KeyError(3)",
    "raise RuntimeError('a\\nb')",
    "1 / 0",
    "raise OSError(5, 'Input/output error')",
    "assert False",
)


def resumed(path: Path, opened: Path | None = None) -> None:
    """Resume a run as `robotrl train --resume` does before it builds anything."""
    run = Run.open(path)
    run.refuse_changed(run.altered)
    cfg = config_of(run)
    run.resume([], inputs=input_digests.digests_on_resume(cfg))
    run.close()
    if opened is not None:
        read_dataset(opened)


def _file_changed(name: str, how: tuple[Mutation, ...], source: Callable[[], Path] = sound.run) -> Any:
    """Change a file of a run, and resume it."""

    def attempt(rng: Rng, folder: Path) -> Outcome:
        run = linked(source(), folder / "run")
        before = (run / name).read_bytes()
        after = how[int(rng.integers(len(how)))](rng, before)
        replaced(run / name, after)
        return heard(lambda: resumed(run), Outcome.HARMLESS if _same_json(before, after) else Outcome.SILENT)

    return attempt


def _same_json(before: bytes, after: bytes) -> bool:
    try:
        return json.loads(before) == json.loads(after)
    except (ValueError, RecursionError):
        return False


def _pointer_changed(rng: Rng, folder: Path) -> Outcome:
    """Change a pointer file: the run resumes from the same checkpoint, and the pointer is corrected."""
    run = linked(sound.run(), folder / "run")
    file = run / "checkpoints" / str(rng.choice(["latest.json", "best.json"]))
    before = file.read_bytes() if file.exists() else b"{}"
    file.unlink(missing_ok=True)
    file.write_bytes(MUTATIONS[int(rng.integers(len(MUTATIONS)))](rng, before or b"{}"))
    outcome = heard(lambda: resumed(run), Outcome.CORRECTED)
    newest, wanted = (Run.open(path).latest() for path in (run, sound.run()))
    same = newest is not None and wanted is not None and newest.step == wanted.step
    return outcome if same else Outcome.SILENT


def _checkpoint_damaged(rng: Rng, folder: Path) -> Outcome:
    """Damage a byte of the newest checkpoint, or delete one of its files: the previous one is used and reported."""
    run = linked(sound.run(), folder / "run")
    newest = Run.open(run).entries()[-1].path
    file = newest / str(rng.choice(["weights.safetensors", "state.json", "manifest.json"]))
    way = int(rng.integers(5))
    if way == 0:
        file.unlink()
    elif way == 1:
        no_file(rng, file)
    elif way == 2:
        (newest / f"other{rng.integers(100)}.json").write_text("{}")
    else:
        replaced(file, (turned_bit, truncated)[way - 3](rng, file.read_bytes()))
    outcome = heard(lambda: resumed(run), Outcome.SILENT)
    return outcome if not (newest.exists() and outcome is Outcome.WARNED) else Outcome.SILENT


def _lines() -> list[bytes]:
    return [TEMPLATE.format(step=i, loss=0.5 + i).encode() for i in range(LINES)]


def _line_damaged(rng: Rng, folder: Path) -> Outcome:
    """Corrupt some lines of scalars.jsonl: only they are lost, set aside and reported."""
    run = linked(sound.run(), folder / "run")
    lines = _lines()
    bad = sorted(rng.choice(LINES - 1, int(rng.integers(1, 4)), replace=False).tolist())
    for number in bad:
        lines[number] = _damaged(rng, lines[number])
    replaced(run / "scalars.jsonl", b"".join(lines))
    # the run's checkpoint is at step 3: all lines are kept
    kept: list[dict[str, float]] = []

    def call() -> None:
        from robotrl.run.logs import cut_scalars

        kept.extend(read_scalars(run / "scalars.jsonl"))
        cut_scalars(run / "scalars.jsonl", LINES)

    outcome = heard(call)
    steps = [i for i in range(LINES) if i not in bad]
    left = [line for i, line in enumerate(_lines()) if i not in bad]
    whole = [int(row["step"]) for row in kept] == steps and (run / "scalars.jsonl").read_bytes() == b"".join(left)
    aside = (run / "scalars.damaged.jsonl").read_bytes() if outcome is Outcome.WARNED else b""
    return Outcome.CONTAINED if whole and aside == b"".join(lines[i] for i in bad) else Outcome.SILENT


def _damaged(rng: Rng, line: bytes) -> bytes:
    """A corrupted line with the same number of line breaks."""
    ways: tuple[Callable[[], bytes], ...] = (
        lambda: line[:1].replace(b"{", b"z") + line[1:],
        lambda: line[: int(rng.integers(1, len(line) - 2))] + b"\n",
        lambda: line[:9] + bytes([int(rng.integers(128, 256))]) + line[9:],
        lambda: line.replace(b'"wall_s"', b'"walls"'),
        lambda: line.replace(b'"loss": ', b'"loss": [') + b"",
        # at step 0, a sign alone would change nothing
        lambda: line.replace(b'"step": ', b'"step": -1'),
        lambda: b"\x00" * (len(line) - 1) + b"\n",
        lambda: b"[" * int(rng.integers(200, 5000)) + b"\n",
        lambda: line[:-2] + b', "x": NaN}\n',
        lambda: line[:-2] + b', "x": "abc"}\n',
    )
    return ways[int(rng.integers(len(ways)))]()


def _torn_line(rng: Rng, folder: Path) -> Outcome:
    """Cut the last line anywhere: it is dropped, the others stay."""
    run = linked(sound.run(), folder / "run")
    whole = b"".join(_lines())
    last = len(_lines()[-1])
    replaced(run / "scalars.jsonl", whole[: len(whole) - int(rng.integers(1, last))])
    found = read_scalars(run / "scalars.jsonl")
    return Outcome.CONTAINED if [int(row["step"]) for row in found] == list(range(LINES - 1)) else Outcome.SILENT


def _events_damaged(rng: Rng, folder: Path) -> Outcome:
    """Damage bytes of the TensorBoard events: a resume continues, and reports what it dropped."""
    run = linked(sound.run(), folder / "run")
    file = next((run / "tb").iterdir())
    data = file.read_bytes()
    for _ in range(int(rng.integers(1, 20))):
        data = turned_bit(rng, data)
    replaced(file, data)
    outcome = heard(lambda: resumed(run), Outcome.HARMLESS)
    whole = [int(row["step"]) for row in read_scalars(run / "scalars.jsonl")] == [1, 2, 3]
    # a flipped bit inside a number is kept: the reliable numbers are in scalars.jsonl
    return Outcome.CONTAINED if whole and outcome is not Outcome.CRASHED else outcome


def _other_dataset(rng: Rng, folder: Path) -> Outcome:
    """The dataset of a run is replaced, or only touched, before the resume."""
    ours = bool(rng.integers(2))
    data = linked(sound.dataset() if ours else sound.foreign_dataset(), folder / "demos")
    run = folder / "run"
    cfg = sound.cloning(data)
    _created(run, cfg)
    files = sorted(path for path in data.rglob("*") if path.is_file() and path.suffix in (".json", ".parquet"))
    file = files[int(rng.integers(len(files)))]
    way = int(rng.integers(4))
    if way == 0:
        file.unlink()
    elif way == 1:
        (data / "data" / f"more-{rng.integers(100)}.parquet").write_bytes(b"PAR1")
    else:
        replaced(file, (turned_bit, truncated)[way - 2](rng, file.read_bytes()))
    return heard(lambda: resumed(run, data))


def _created(path: Path, cfg: TrainCfg[Any, Any]) -> None:
    """Create a run as `train` does."""
    from robotrl.config import to_json

    Run.create(path, to_json(cfg), seed=cfg.seed, command=[], inputs=input_digests.begun(cfg)).close()


def _input_changed(kind: InputKind, make: Callable[[Rng, Path], Path]) -> Any:
    """Change an input of a run after its beginning."""

    def attempt(rng: Rng, folder: Path) -> Outcome:
        thing = make(rng, folder)
        run = folder / "run"
        name = thing.stem if kind == "module" else str(thing)
        one = Input("the input", kind, name)
        with _importable(folder):
            began = [Digest(one, input_digests.digest_of(kind, name))]
            Run.create(run, {}, seed=0, command=[], inputs=began).close()
            file = thing if thing.is_file() else next(path for path in sorted(thing.rglob("manifest.json")))
            replaced(file, turned_bit(rng, file.read_bytes()))
            return heard(lambda: Run.open(run).resume(inputs=input_digests.present_digests(began)))

    return attempt


def _importable(folder: Path) -> Any:
    import contextlib
    import importlib
    import sys

    @contextlib.contextmanager
    def inside() -> Any:
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()
        try:
            yield
        finally:
            sys.path.remove(str(folder))

    return inside()


def _text_file(ending: str) -> Callable[[Rng, Path], Path]:
    def make(rng: Rng, folder: Path) -> Path:
        path = folder / f"thing_{rng.integers(10**9)}{ending}"
        path.write_text(" ".join(f"word{rng.integers(1000)}" for _ in range(int(rng.integers(3, 50)))))
        return path

    return make


def _checkpoint(rng: Rng, folder: Path) -> Path:
    from robotrl.run.checkpoint import write_checkpoint

    return write_checkpoint(folder / "thing", {"x": rng.normal(size=3)}, step=1, kind="success-classifier")


def _policy_run(rng: Rng, folder: Path) -> Path:
    path = linked(sound.run(), folder / "thing")
    for old in (path / "checkpoints").glob("step_*[12]"):
        shutil.rmtree(old)
    return path / "checkpoints" / "step_000000003" if rng.integers(2) else path


def _refused(rng: Rng, folder: Path) -> Outcome:
    """A config that is invalid in every run: one line, and nothing is left."""
    cfg = sound.cloning(sound.dataset())
    wrong = _WRONG[int(rng.integers(len(_WRONG)))](rng, cfg)
    path = folder / str(rng.choice(["run", "runs/a", "a/b/c/run"]))
    outcome = heard(lambda: train(wrong, path))
    return outcome if not list(folder.iterdir()) else Outcome.SILENT


def _value(rng: Rng) -> Any:
    pool: tuple[Any, ...] = (-1, 0, -(10**9), 2**64, float("nan"), float("inf"), -0.5, "x", None, True, 10**400, ())
    return pool[int(rng.integers(len(pool)))]


_WRONG: tuple[Callable[[Rng, Any], Any], ...] = (
    lambda rng, cfg: replace(cfg, seed=[-1, 2**31, "0", 1.5, None][int(rng.integers(5))]),
    lambda rng, cfg: replace(cfg, dataset=["/nowhere", "/dev/zero", "/", "x" * 5000, "\udcff"][int(rng.integers(5))]),
    lambda rng, cfg: replace(cfg, init_from=["/nowhere", "/dev/zero", "/", "a\0b"][int(rng.integers(4))]),
    lambda rng, cfg: replace(cfg, sim=SimCfg(["", "mujoco/", "gym/", "gym/:", "gym/No-v0", "x"][int(rng.integers(6))])),
    lambda rng, cfg: replace(cfg, sim=SimCfg(sound.SIM, [0, -1, 10**8, 10**12, 2**80][int(rng.integers(5))])),
    lambda rng, cfg: replace(cfg, sim=SimCfg(sound.SIM, 2, (f"limit_s={_value(rng)}", "limit_s=1"))),
    lambda rng, cfg: replace(cfg, sim=SimCfg(sound.SIM, 2, (f"unknown={_value(rng)}",))),
    lambda rng, cfg: replace(cfg, evaluation=replace(cfg.evaluation, episodes=[0, -1, 10**9][int(rng.integers(3))])),
    lambda rng, cfg: replace(cfg, algo=replace(cfg.algo, updates=[0, -1, 2**70, "x"][int(rng.integers(4))])),
    lambda rng, cfg: replace(cfg, algo=replace(cfg.algo, lr=[float("nan"), float("inf"), "x"][int(rng.integers(3))])),
    lambda rng, cfg: replace(cfg, device=["", "gpu", "cuda:99", "meta", "cpu:x"][int(rng.integers(5))]),
    lambda rng, cfg: replace(cfg, stop_at_success=[0, -1, 2, float("nan")][int(rng.integers(4))]),
    lambda rng, cfg: replace(cfg, **{str(rng.choice(["keep", "checkpoint_every", "torch_threads"])): 0}),
)


def _sim_raises(where: str) -> Any:
    """A user module raises while the run is set up: nothing is left."""

    def attempt(rng: Rng, folder: Path) -> Outcome:
        name = f"faulty_{where}_{rng.integers(10**12)}"
        parts: dict[str, str] = dict.fromkeys(("make", "reset", "step", "top"), "pass")
        parts[where] = RAISED[int(rng.integers(len(RAISED)))]
        (folder / f"{name}.py").write_text(MODULE.format(name=name, **parts))
        preset = _gym_preset()
        cfg = replace(preset, sim=SimCfg(f"gym/{name}:{name}-v0", 2))
        path = folder / "runs" / "a"
        with _importable(folder):
            outcome = heard(lambda: _only_ours(lambda: train(cfg, path)))
        return outcome if not (folder / "runs").exists() else Outcome.SILENT

    return attempt


def _gym_preset() -> Any:
    from robotrl.registry import PRESETS

    cfg = PRESETS.load("gym-ppo")()
    return replace(cfg, algo=replace(cfg.algo, env_steps=64, num_steps=4, minibatch=8, engine="eager"))


def _only_ours(call: Callable[[], object]) -> None:
    """Pass only errors that the command line reports in one line: robotrl's own, and failed allocation."""
    from robotrl.cli.main import USER_CAN_MEND, lacks_memory

    try:
        call()
    except RobotrlError:
        raise
    except OSError as error:
        if error.errno in USER_CAN_MEND:
            raise RobotrlError(str(error.strerror)) from error
        raise
    except Exception as error:
        if lacks_memory(error):
            raise RobotrlError("not enough memory") from error
        raise


def _killed_create(rng: Rng, folder: Path) -> Outcome:
    """Disk errors while a run is created: one line, and nothing is left."""
    place = folder / "runs"
    place.mkdir()
    way = int(rng.integers(4))
    target = place / "a"
    if way == 0:
        target.write_text("a file")
    elif way == 1:
        target = place / ("x" * int(rng.integers(256, 5000)))
    elif way == 2:
        (place / "file").write_text("")
        target = place / "file" / "a"
    else:
        os.mkfifo(target)
    before = sorted(place.rglob("*"))
    outcome = heard(lambda: Run.create(target, {"x": int(rng.integers(9))}, seed=0, command=[]))
    return outcome if sorted(place.rglob("*")) == before else Outcome.SILENT


REFUSED, WARNED, CONTAINED, HARMLESS = Outcome.REFUSED, Outcome.WARNED, Outcome.CONTAINED, Outcome.HARMLESS
BROKEN = (truncated, hostile, doubled_key, other_type)
_BEFORE = sound.run_of_before

KINDS: tuple[Kind, ...] = (
    Kind("a turned bit in config.json", (REFUSED,), 150, _file_changed("config.json", (turned_bit,))),
    Kind("a changed digit in config.json", (REFUSED,), 150, _file_changed("config.json", (changed_digit,))),
    Kind("config.json mutated", (REFUSED,), 150, _file_changed("config.json", MUTATIONS)),
    Kind(
        "config.json of a run of before broken", (REFUSED, HARMLESS), 200, _file_changed("config.json", BROKEN, _BEFORE)
    ),
    Kind("a turned bit in run.json", (REFUSED,), 100, _file_changed("run.json", (turned_bit,))),
    Kind("run.json mutated", (REFUSED,), 150, _file_changed("run.json", MUTATIONS)),
    Kind("inputs.json mutated", (REFUSED, HARMLESS), 200, _file_changed("inputs.json", (*MUTATIONS, changed_digit))),
    Kind(
        "versions.json mutated",
        (REFUSED, WARNED, HARMLESS),
        150,
        _file_changed("versions.json", (*MUTATIONS, changed_digit)),
    ),
    Kind("latest.json or best.json mutated", (Outcome.CORRECTED,), 100, _pointer_changed),
    Kind("the newest checkpoint damaged", (REFUSED, WARNED), 150, _checkpoint_damaged),
    Kind("damaged lines in scalars.jsonl", (CONTAINED,), 300, _line_damaged),
    Kind("a torn last line of scalars.jsonl", (CONTAINED,), 100, _torn_line),
    Kind("TensorBoard events damaged", (CONTAINED,), 100, _events_damaged),
    Kind("another recording under the run's path", (REFUSED,), 60, _other_dataset),
    Kind("a classifier changed since the run began", (REFUSED,), 40, _input_changed("checkpoint", _checkpoint)),
    Kind("the policy changed that a run reads", (REFUSED,), 40, _input_changed("policy", _policy_run)),
    Kind("a map changed since the run began", (REFUSED,), 40, _input_changed("file", _text_file(".xodr"))),
    Kind("a vocabulary changed since the run began", (REFUSED,), 40, _input_changed("file", _text_file(".txt"))),
    Kind("a module changed since the run began", (REFUSED,), 40, _input_changed("module", _text_file(".py"))),
    Kind("a config that no run can use", (REFUSED,), 150, _refused),
    Kind("a run's place cannot be made", (REFUSED,), 60, _killed_create),
    Kind("an environment raises when it is imported", (REFUSED,), 12, _sim_raises("top")),
    Kind("an environment raises when it is made", (REFUSED,), 12, _sim_raises("make")),
    Kind("an environment raises at its first reset", (REFUSED,), 12, _sim_raises("reset")),
    Kind("an environment raises at its first step", (REFUSED,), 12, _sim_raises("step")),
)
