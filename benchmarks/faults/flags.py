"""Invalid command-line values: each flag of each command with values that it cannot have.

`robotrl.cli.main.main` is called in this process. A refusal is exit code 2 and one line, and leaves nothing in the
output folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import re
import resource
import socket
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np

from benchmarks.faults import sound
from benchmarks.faults.commands import PEG_PPO, PEG_SAC, REACH_BC, REACH_PPO
from benchmarks.faults.kind import LOGGER, LONGEST, Kind, Outcome
from benchmarks.faults.mutate import answered
from robotrl.cli.commands import (
    bench,
    demos,
    deploy,
    export,
    import_policy,
    inspect,
    memory,
    quickstart,
    view,
)
from robotrl.cli.commands import eval as evaluate
from robotrl.cli.commands import list as listing
from robotrl.cli.commands.rewards import command as reward
from robotrl.cli.commands.rewards import process
from robotrl.cli.commands.train import config_of

Rng = np.random.Generator
NO_NUMBER = (
    "",
    " ",
    "x",
    "one",
    "1,5",
    "0x10",
    "1e",
    "--1",
    "1 2",
    "[1]",
    "{}",
    "null",
    "True",
    "½",
    "1\n2",
    "9" * 5000,
    "x" * 100_000,
    "\udcff",
    "😀",
    "\x1b[31m1",
)
NO_WHOLE = (*NO_NUMBER, "nan", "inf", "-inf", "1e400", "1.5", "1e3")
HUGE = (2**63, 10**30, -(2**63) - 1, -(10**30))
ODD_TEXT = (
    "",
    " ",
    ".",
    "x" * 300,
    "x" * 100_000,
    "\udcff",
    "a\nb",
    "😀",
    "-",
    "%s%n",
    "$HOME",
    "~nobody/x",
    "[[[[",
    "{}",
)


class Command(NamedTuple):
    """A command and its argument class."""

    words: tuple[str, ...]
    args: type


COMMANDS = (
    Command(("demos",), demos.Args),
    Command(("deploy",), deploy.Args),
    Command(("eval",), evaluate.Args),
    Command(("export",), export.Args),
    Command(("import",), import_policy.Args),
    Command(("inspect",), inspect.Args),
    Command(("list",), listing.Args),
    Command(("memory",), memory.Args),
    Command(("quickstart",), quickstart.Args),
    Command(("view",), view.Args),
    Command(("bench",), bench.Args),
    Command(("reward", "train"), reward.TrainArgs),
    Command(("reward", "check"), reward.CheckArgs),
    Command(("reward", "milestones"), process.MilestoneArgs),
    Command(("reward", "process"), process.ProcessArgs),
    Command(("reward", "judge"), process.JudgeArgs),
)


class Flag(NamedTuple):
    """A flag and the types of its values."""

    command: Command
    name: str
    types: frozenset[Any]
    choices: tuple[str, ...]
    many: bool
    """True if it takes any number of values, including none."""


def refused(argv: list[str], untouched: Path | None = None, used: Outcome = Outcome.SILENT) -> Outcome:
    """Run a command line that must be refused; returns the outcome.

    Args:
        argv: arguments without the program's name.
        untouched: a folder whose content must not change.
        used: the outcome if it is not refused.
    """
    before = _tree(untouched)
    code, said = answered(argv)
    LOGGER.debug("%s: exit code %s: %s", [word[:60] for word in argv], code, said[-2000:])
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    if code is None or "Traceback" in said:
        return Outcome.CRASHED
    if _tree(untouched) != before:
        return Outcome.SILENT
    if code == 0:
        return used
    return Outcome.REFUSED if len(errors) == 1 and len(errors[0]) <= LONGEST + 20 else Outcome.CRASHED


def _tree(folder: Path | None) -> list[str]:
    return [] if folder is None else sorted(str(path) for path in folder.rglob("*"))


@cache
def flags() -> tuple[Flag, ...]:
    """All flags of all commands, except those of presets."""
    return tuple(flag for command in COMMANDS for flag in _flags_of(command, command.args))


def _flags_of(command: Command, cls: type) -> Iterator[Flag]:
    hints = get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        marks = getattr(hint, "__metadata__", ())
        types = frozenset(_leaves(hint))
        if any("Positional" in repr(mark) for mark in marks) or any(dataclasses.is_dataclass(kind) for kind in types):
            continue
        choices = tuple(str(kind) for kind in types if isinstance(kind, str))
        many = isinstance(field.default, tuple)
        yield Flag(command, "--" + field.name.replace("_", "-"), types, choices, many)


def _leaves(hint: Any) -> Iterator[Any]:
    """The leaf types of a type, and the values of its literals."""
    if get_origin(hint) is Literal:
        yield from get_args(hint)
    elif get_args(hint):
        inside = get_args(hint)[:1] if hasattr(hint, "__metadata__") else get_args(hint)
        for part in inside:
            if part is not ...:
                yield from _leaves(part)
    else:
        yield hint


def _pick(rng: Rng, items: Any) -> Any:
    return items[int(rng.integers(len(items)))]


def _no_number(rng: Rng, folder: Path) -> Outcome:
    flag: Flag = _pick(rng, [flag for flag in flags() if flag.types & {int, float} and str not in flag.types])
    bad = _pick(rng, NO_NUMBER if float in flag.types else NO_WHOLE)
    return refused([*flag.command.words, *_needed(flag.command, folder, flag.name), f"{flag.name}={bad}"], folder)


def _no_choice(rng: Rng, folder: Path) -> Outcome:
    flag: Flag = _pick(rng, [flag for flag in flags() if flag.choices])
    near = _pick(rng, flag.choices)
    bad = _pick(rng, (*ODD_TEXT, near + "x", near.upper(), near[:-1], f" {near}", f"{near},{near}"))
    return refused([*flag.command.words, *_needed(flag.command, folder, flag.name), f"{flag.name}={bad}"], folder)


def _no_flag(rng: Rng, folder: Path) -> Outcome:
    command: Command = _pick(rng, COMMANDS)
    known = [flag.name for flag in flags() if flag.command == command] or ["--path"]
    name = str(_pick(rng, known))
    place = int(rng.integers(2, len(name)))
    odd = (
        f"{name[:place]}{chr(int(rng.integers(97, 123)))}q{name[place:]}",
        f"--{'x' * int(rng.integers(1, 5000))}",
        "--=",
        "---",
        "-Q",
        "--\udcff",
        "--no-such=1",
        "--😀",
    )
    return refused([*command.words, *_needed(command, folder), str(_pick(rng, odd))], folder)


def _no_value(rng: Rng, folder: Path) -> Outcome:
    flag: Flag = _pick(rng, [flag for flag in flags() if bool not in flag.types and not flag.many])
    return refused([*flag.command.words, *_needed(flag.command, folder, flag.name), flag.name], folder)


def _no_command(rng: Rng, folder: Path) -> Outcome:
    near = str(_pick(rng, ("train", "eval", "demos", "inspect", "reward", "bench")))
    odd = (*ODD_TEXT, near + near[-1], near.upper(), near[1:], f"--{near}", "reward/train")
    argv = [str(_pick(rng, odd))]
    if argv[0] in ("-", ""):
        argv.append("x")
    if rng.integers(2):
        argv.insert(0, "reward" if rng.integers(2) else "train")
    return refused(argv, folder)


def _needed(command: Command, folder: Path, without: str = "") -> list[str]:
    """Required arguments of a command, chosen so that it cannot start any work."""
    out = str(folder / "out")
    missing = str(folder / "missing")
    needs: dict[tuple[str, ...], list[str]] = {
        ("demos",): ["mujoco/reach", "--out", out],
        ("deploy",): [missing, "--robot", "sim:mujoco/reach"],
        ("eval",): [missing],
        ("export",): [missing, "--out", out],
        ("import",): ["openvla", missing, "--sim", "mujoco/tabletop", "--out", out],
        ("inspect",): [missing],
        ("memory",): [missing],
        ("view",): [missing],
        ("bench",): ["nothing"],
        ("quickstart",): ["--seed", "-1"] if without != "--seed" else [],
        ("reward", "train"): ["mujoco/reach", "--out", out],
        ("reward", "check"): [missing],
        ("reward", "milestones"): [missing],
        ("reward", "process"): [missing, "--out", out],
        ("reward", "judge"): [missing, missing],
    }
    words = list(needs.get(command.words, []))
    if without in words:
        place = words.index(without)
        del words[place : place + 2]
    return words


def odd_path(rng: Rng, folder: Path) -> str:
    """A path without anything that a command could read."""
    ways: tuple[Callable[[], Any], ...] = (
        lambda: folder / "missing",
        lambda: folder / ("x" * 300),
        lambda: "x" * 100_000,
        lambda: "",
        lambda: "/dev/zero",
        lambda: "/dev/null",
        lambda: "/proc/self/mem",
        lambda: "/",
        lambda: folder,
        lambda: "\udcff\udcfe",
        lambda: "a\nb",
        lambda: "😀" * 20,
        lambda: "/".join(["d"] * 2000),
        lambda: _made(folder / "file", lambda path: path.write_bytes(b"\x00" * 100)),
        lambda: _made(folder / "pipe", os.mkfifo),
        lambda: _made(folder / "socket", _bound),
        lambda: _made(folder / "loop", lambda path: path.symlink_to(path)),
        lambda: _made(folder / "dangling", lambda path: path.symlink_to("/nowhere/at/all")),
        lambda: _made(folder / "run", lambda path: _folder_of(path, "config.json")),
        lambda: _made(folder / "data", lambda path: _folder_of(path, "meta")),
        lambda: _made(folder / "bundle", lambda path: _folder_of(path, "policy.onnx")),
        lambda: _made(folder / "checkpoint", lambda path: _folder_of(path, "state.json")),
        lambda: folder / "file" / "below",
    )
    return str(ways[int(rng.integers(len(ways)))]())


def _made(path: Path, make: Callable[[Path], Any]) -> Path:
    make(path)
    return path


def _bound(path: Path) -> None:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as end, contextlib.chdir(path.parent):
        end.bind(path.name)


def _folder_of(path: Path, name: str) -> None:
    path.mkdir()
    (path / name).write_bytes(b"\x00")


def _odd_input(rng: Rng, folder: Path) -> Outcome:
    """An invalid input path for any command."""
    work, out = folder / "odd", folder / "out"
    work.mkdir()
    path = odd_path(rng, work)
    ours = sound.dataset
    lines: tuple[Callable[[], list[str]], ...] = (
        lambda: ["inspect", path],
        lambda: ["eval", path],
        lambda: ["eval", str(sound.run()), "--against", path],
        lambda: ["export", path, "--out", str(out / "bundle")],
        lambda: ["deploy", path, "--robot", "sim:mujoco/reach"],
        lambda: ["view", path, "--sim", "mujoco/reach", "--out", str(folder / "page.html")],
        lambda: ["memory", path],
        lambda: ["reward", "check", path],
        lambda: ["reward", "judge", path, str(ours())],
        lambda: ["reward", "milestones", path],
        lambda: ["reward", "process", path, "--out", str(out / "reward")],
        lambda: ["import", "openvla", path, "--sim", "mujoco/tabletop", "--out", str(out / "policy")],
        lambda: ["train", "--resume", path],
        lambda: ["train", *REACH_BC, "--dataset", path, "--run-dir", str(out / "run")],
        lambda: [
            *("train", "peg-insert-reinflow", "--init-from", path, "--sim.num-envs", "2"),
            *("--run-dir", str(out / "run")),
        ],
        lambda: [
            *("train", *REACH_PPO, "--reward", "success", "--reward.success.path", path),
            *("--sim.num-envs", "2", "--run-dir", str(out / "run")),
        ],
        lambda: ["train", "drive-ppo", "--sim.map", path, "--run-dir", str(out / "run")],
        lambda: [
            *("train", "gym-ppo", "--sim", "gym/CartPole-v1", "--sim.instruction", "go"),
            *("--sim.vocabulary", f"@{path}", "--run-dir", str(out / "run")),
        ],
    )
    argv = lines[int(rng.integers(len(lines)))]()
    # an empty option counts as not given
    if not path and argv[0] == "train" and "--resume" not in argv:
        argv = ["inspect", path]
    return refused(argv, folder)


def _odd_output(rng: Rng, folder: Path) -> Outcome:
    """An output path that cannot be written, or that is part of an input."""
    (folder / "file").write_text("kept")
    (folder / "full").mkdir()
    (folder / "full" / "mine").write_text("kept")
    os.mkfifo(folder / "pipe")
    _folder_of(folder / "bundle", "policy.onnx")
    run, data = sound.run(), sound.dataset()
    files: tuple[Any, ...] = ("/dev/null", "/dev/full", folder / "pipe", folder, folder / "file" / "x.html", "x" * 300)
    files = (*files, folder / "none" / "x.html", "/proc/x.html", "")
    places: tuple[Any, ...] = (folder / "file", folder / "full", folder / "pipe", folder / "file" / "x", "/dev/null")
    places = (*places, "/proc/nothing/x", "x" * 300, folder / ("y" * 256))
    file, place = str(_pick(rng, files)), str(_pick(rng, places))
    inside = str(_pick(rng, (run / "config.json", run / "checkpoints" / "x.html", run / "lock", run)))
    in_bundle = str(folder / "bundle" / str(_pick(rng, ("policy.onnx", "more.json", "manifest.json"))))
    lines: tuple[list[str], ...] = (
        ["eval", str(run), "--report", file],
        ["eval", str(run), "--report", inside],
        ["view", str(run), "--sim", "bev/drive", "--out", file],
        ["view", str(run), "--sim", "bev/drive", "--video", inside],
        ["deploy", str(folder / "bundle"), "--robot", "sim:mujoco/reach", "--json", file],
        ["deploy", str(folder / "bundle"), "--robot", "sim:mujoco/reach", "--json", in_bundle],
        ["deploy", str(folder / "bundle"), "--robot", "sim:mujoco/reach", "--log", in_bundle],
        ["demos", "mujoco/reach", "--out", place],
        ["export", str(run), "--out", place],
        ["export", str(run), "--overwrite", "--out", str(run / "checkpoints")],
        ["reward", "train", "mujoco/reach", "--out", place],
        ["reward", "train", "mujoco/reach", "--dataset", str(data), "--out", str(data / "data" / "reward")],
        ["reward", "process", str(data), "--out", place],
        ["reward", "milestones", str(data), "--out", str(data / "meta" / "info.json")],
        ["import", "openvla", str(folder), "--sim", "mujoco/tabletop", "--out", place],
        ["quickstart", "--out", str(_pick(rng, [folder / "file", folder / "pipe", "/dev/null", "x" * 300]))],
        ["train", *REACH_PPO, "--sim.num-envs", "2", "--run-dir", place],
    )
    return refused(list(_pick(rng, lines)), folder)


def _out_of_range(rng: Rng, folder: Path) -> Outcome:
    """A valid number outside the allowed range."""
    run, data, out = str(sound.run()), str(sound.dataset()), str(folder / "out")
    low = str(int(rng.integers(-(10**6), 0)))
    huge = str(_pick(rng, HUGE))
    odd = str(_pick(rng, ("nan", "inf", "-inf", "-1", "-1e300", "1e300")))
    lines: tuple[list[str], ...] = (
        ["eval", run, "--episodes", str(_pick(rng, ("0", low, huge)))],
        ["eval", run, "--num-envs", str(_pick(rng, ("0", low, huge, "100000000")))],
        ["eval", run, "--seed", str(_pick(rng, (low, huge)))],
        ["eval", run, "--drives", low],
        ["view", "--expert", "--sim", "bev/drive", "--episodes", str(_pick(rng, ("0", low)))],
        ["view", "--expert", "--sim", "bev/drive", "--port", str(_pick(rng, (low, "65536", huge)))],
        ["demos", "mujoco/reach", "--out", out, "--episodes", str(_pick(rng, ("0", low)))],
        ["demos", "mujoco/reach", "--out", out, "--seed", str(_pick(rng, (low, huge)))],
        ["demos", "mujoco/reach", "--out", out, "--noise", odd, "--episodes", "1"],
        ["demos", "mujoco/reach", "--out", out, "--episode-noise", odd, "--episodes", "1"],
        ["export", run, "--out", out, "--samples", str(_pick(rng, ("0", "999", low)))],
        ["quickstart", "--out", out, "--seed", str(_pick(rng, (low, huge)))],
        ["memory", run, "--rows", str(_pick(rng, ("0", low)))],
        ["memory", run, "--rank", low],
        ["memory", run, "--processes", str(_pick(rng, ("0", low)))],
        ["reward", "train", "mujoco/reach", "--out", out, "--seed", low],
        ["reward", "train", "mujoco/reach", "--out", out, "--episodes", str(_pick(rng, ("0", low)))],
        ["reward", "train", "mujoco/reach", "--out", out, "--updates", str(_pick(rng, ("0", low)))],
        ["reward", "train", "mujoco/reach", "--out", out, "--max-false-positive", odd],
        ["reward", "process", data, "--out", out, "--held-out", odd],
        ["reward", "process", data, "--out", out, "--updates", str(_pick(rng, ("0", low)))],
        ["import", "openvla", run, "--sim", "mujoco/tabletop", "--out", out, "--frames", str(_pick(rng, ("0", low)))],
        ["train", *REACH_PPO, "--run-dir", out, "--sim.num-envs", str(_pick(rng, ("0", low, huge, "100000000")))],
        ["train", *REACH_PPO, "--run-dir", out, "--seed", str(_pick(rng, (low, huge)))],
        ["train", *REACH_PPO, "--run-dir", out, "--keep", str(_pick(rng, ("0", low, huge)))],
        ["train", *REACH_PPO, "--run-dir", out, "--evaluation.episodes", str(_pick(rng, ("0", low, huge)))],
        ["train", *REACH_PPO, "--run-dir", out, "--evaluation.num-envs", str(_pick(rng, ("0", low, huge)))],
        ["train", *REACH_PPO, "--run-dir", out, "--torch-threads", str(_pick(rng, ("0", low, huge)))],
        ["train", *REACH_PPO, "--run-dir", out, "--sim.curriculum", odd],
        ["train", *REACH_PPO, "--run-dir", out, "--stop-at-success", str(_pick(rng, ("0", "1.5", "nan", "-1")))],
    )
    return refused(list(_pick(rng, lines)), folder)


class Leaf(NamedTuple):
    """A field of a preset's config."""

    name: str
    types: frozenset[Any]


@cache
def leaves_of(preset: str) -> tuple[Leaf, ...]:
    """The numeric fields of a preset's config, by the names of their flags."""
    return tuple(_leaves_in(config_of(preset), ""))


def _leaves_in(settings: Any, prefix: str) -> Iterator[Leaf]:
    hints = get_type_hints(type(settings))
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        name = f"{prefix}{field.name.replace('_', '-')}"
        if dataclasses.is_dataclass(value):
            yield from _leaves_in(value, f"{name}.")
            continue
        types = frozenset(_leaves(hints[field.name]))
        if types & {int, float} and not types - {int, float, type(None)}:
            yield Leaf(name, types)


def _field(rng: Rng, folder: Path) -> Outcome:
    """A preset field with a value that is not a number, or out of range."""
    preset = str(_pick(rng, _presets()))
    leaf: Leaf = _pick(rng, leaves_of(preset))
    bad = _pick(rng, (*(NO_NUMBER if float in leaf.types else NO_WHOLE), *map(str, HUGE), "nan", "inf", "-inf"))
    if bad in map(str, HUGE) and float in leaf.types:
        bad = "nan"
    return refused(["train", *preset.split(), f"--{leaf.name}={bad}", "--run-dir", str(folder / "out")], folder)


@cache
def _presets() -> tuple[str, ...]:
    """Arguments of trainings that need no dataset or checkpoint."""
    composed = (" ".join(words) for words in (REACH_PPO, PEG_PPO, PEG_SAC))
    return ("gym-ppo", "gym-sac", "drive-ppo", "hopper-ppo", *composed)


def _option(rng: Rng, folder: Path) -> Outcome:
    """Sim options that are unknown, repeated, without a value, or of another type."""
    bad: tuple[str, ...] = (
        "",
        "=",
        "=1",
        "limit_s",
        "unknown=1",
        "limit_s=x",
        "limit_s=[]",
        "limit_s={}",
        "limit_s=null",
        "limit_s=NaN",
        "limit_s=-1",
        "limit_s=0",
        "limit_s=1e999",
        "limit_s=" + "9" * 5000,
        "limit_s=" + "[" * 100_000,
        "threads=-1",
        "threads=1.5",
        "threads=x",
        "randomization=1",
        'randomization={"x": [1, 2]}',
        'randomization={"friction": 3}',
        "\udcff=1",
        "limit_s=\udcff",
        "seed=1",
        "name=1",
        "😀=1",
    )
    option = str(_pick(rng, bad))
    if rng.integers(2):
        argv = ["demos", "mujoco/peg-insert", "--out", str(folder / "out"), "--episodes", "1", *_flag(option)]
    else:
        argv = ["train", *PEG_PPO, "--run-dir", str(folder / "out"), "--sim.num-envs", "2"]
        argv += _flag(option)
    return refused(argv, folder)


def _flag(option: str) -> list[str]:
    """Flag of a sim option given as "name=value"."""
    name, _, value = option.partition("=")
    return [f"--sim.{name.replace('_', '-')}", value]


def _environment(rng: Rng, folder: Path) -> Outcome:
    """Invalid names and arguments of Gymnasium environments."""
    names = ("", ":", "No-v0", "CartPole-v99", "cartpole-v1", "no_module:X-v0", "../x:Y-v0", "os:X-v0", "\udcff", "a b")
    options = (
        "kwargs=1",
        "kwargs=[]",
        "kwargs=text",
        'kwargs={"unknown": 1}',
        'kwargs={"sutton_barto_reward": 1',
        "kwargs=" + "[" * 100_000,
        "kwargs={" + '"a":{' * 50_000,
        'kwargs={"max_episode_steps": 3}',
        'kwargs={"id": "x"}',
        "wrapper=x",
        "wrapper=os:",
        "wrapper=os:nothing",
        "wrapper=no_module:X",
        "wrapper=os:sep",
        "wrapper=1",
        "limit_steps=0",
        "limit_steps=x",
        "limit_steps=-5",
        "control_dt_s=0",
        "control_dt_s=x",
        "control_dt_s=NaN",
        "vectorization=x",
        "success=x",
        "processes=x",
        "longest=0",
        "vocabulary=",
        "instruction=",
        "camera=x",
    )
    argv = ["train", "gym-ppo", "--run-dir", str(folder / "out"), "--sim.num-envs", "2", "--algo.env-steps", "64"]
    if rng.integers(3):
        return refused([*argv, "--sim", "gym/CartPole-v1", *_flag(str(_pick(rng, options)))], folder)
    return refused([*argv, "--sim", f"gym/{_pick(rng, names)}"], folder)


def _memory(rng: Rng, folder: Path) -> Outcome:
    """A network or batch that exceeds the memory limit of the process."""
    width = str(int(rng.integers(10**6, 10**9)))
    lines = (
        ["train", *REACH_PPO, "--policy.hidden", width, width],
        ["train", *PEG_PPO, "--policy.hidden", width, width, "256"],
        ["train", *PEG_SAC, "--algo.critic-hidden", width, width],
        ["train", *REACH_PPO, "--sim.num-envs", str(int(rng.integers(10**5, 2**20)))],
        ["train", *PEG_SAC, "--algo.capacity", str(10**13)],
    )
    argv = [*_pick(rng, lines), "--run-dir", str(folder / "out"), "--algo.engine", "eager"]
    # loading modules at first use does not count
    for name in ("training", "datasets.reader", "algos.ppo", "algos.sac", "sims.mujoco.manipulation.peg_insert"):
        importlib.import_module(f"robotrl.{name}")
    with _little_memory(1 << 29):
        return refused(argv, folder)


@contextlib.contextmanager
def _little_memory(more: int) -> Generator[None]:
    """Limit the process to so many bytes more than it uses now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _words_of_help(rng: Rng, folder: Path) -> Outcome:
    """Too many arguments, or one for a command that takes none."""
    command: Command = _pick(rng, COMMANDS[5:6] + COMMANDS[6:7] + COMMANDS[8:9])
    extra = [str(_pick(rng, ODD_TEXT)) or "x" for _ in range(int(rng.integers(2, 50)))]
    extra = [re.sub("^-", "x", word) for word in extra]
    return refused([*command.words, *extra], folder)


REFUSED = (Outcome.REFUSED,)
KINDS: tuple[Kind, ...] = (
    Kind("no number for a flag that takes one", REFUSED, 500, _no_number),
    Kind("no choice of a flag that has some", REFUSED, 200, _no_choice),
    Kind("a flag that is none", REFUSED, 300, _no_flag),
    Kind("a flag without its value", REFUSED, 100, _no_value),
    Kind("a command that is none", REFUSED, 200, _no_command),
    Kind("too many arguments", REFUSED, 100, _words_of_help),
    Kind("a number out of range", REFUSED, 250, _out_of_range),
    Kind("a path that cannot be read", REFUSED, 400, _odd_input),
    Kind("a place that cannot be written, or is read", REFUSED, 300, _odd_output),
    Kind("a field of a preset with no number, or an endless one", REFUSED, 300, _field),
    Kind("an option of a sim that is none", REFUSED, 150, _option),
    Kind("a Gymnasium environment that is none", REFUSED, 150, _environment),
    Kind("more memory than there is", REFUSED, 20, _memory),
)
