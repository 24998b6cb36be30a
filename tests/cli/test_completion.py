"""Shell completion: what a real shell offers, without torch and in a fraction of a second."""

from __future__ import annotations

import contextlib
import io
import os
import re
import resource
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from robotrl.cli.commands import dataset, driving_log, new, traffic
from robotrl.cli.commands.rewards import command as reward
from robotrl.cli.commands.rewards import preferences, process
from robotrl.cli.commands.sim_flags import parse_options
from robotrl.cli.completion import (
    ACTIONS,
    DATASET_ACTIONS,
    LOG_ACTIONS,
    NEW_KINDS,
    SCRIPTS,
    TRAFFIC_ACTIONS,
    candidates,
)
from robotrl.cli.main import COMMANDS, main
from robotrl.cli.sim_fields import sim_fields
from robotrl.registry import PRESETS, SIMS, sim_options

TABLE = {name: row.module for name, row in COMMANDS.items()}


@pytest.fixture(scope="module")
def on_path(tmp_path_factory) -> dict[str, str]:
    """An environment whose `robotrl` is this checkout's."""
    folder = tmp_path_factory.mktemp("bin")
    command = folder / "robotrl"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m robotrl.cli "$@"\n')
    command.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def in_bash(on_path: dict[str, str], cwd: Path, *words: str) -> list[str]:
    """COMPREPLY of a real bash for these words, the last of which is being typed."""
    program = (
        'eval "$(robotrl --completion bash)"; complete -p robotrl >&2; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1));'
        '_robotrl; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    command = ["bash", "--norc", "-c", program, "bash", *words]
    done = subprocess.run(command, env=on_path, cwd=cwd, capture_output=True, text=True, check=True)
    assert "complete -o default -F _robotrl robotrl" in done.stderr
    return [line for line in done.stdout.splitlines() if line]


def test_bash_completes_commands_presets_sims_and_flags(on_path, tmp_path):
    assert in_bash(on_path, tmp_path, "robotrl", "ev") == ["eval"]
    assert in_bash(on_path, tmp_path, "robotrl", "train", "") == PRESETS.names()
    assert in_bash(on_path, tmp_path, "robotrl", "eval", "x", "--sim", "") == sorted(
        [*SIMS.names(), "carla/", "gym/", "isaac/", "remote/"]
    )
    assert in_bash(on_path, tmp_path, "robotrl", "eval", "x", "--re") == ["--replays", "--report"]
    # bash parts a word at "="
    assert in_bash(on_path, tmp_path, "robotrl", "eval", "x", "--split", "=", "v") == ["val"]
    assert in_bash(on_path, tmp_path, "robotrl", "eval", "") == [], "a path: bash offers files"


def test_bash_offers_files_where_there_is_nothing_else(on_path, tmp_path):
    """With the keys that a person presses: `compgen` through readline."""
    (tmp_path / "runs-of-mine").mkdir()
    typed = 'eval "$(robotrl --completion bash)"\nrobotrl eval runs-of\t\nrobotrl doc\t --help\nexit\n'
    done = subprocess.run(
        ["bash", "--norc", "-i"],
        input=typed,
        env={**on_path, "TERM": "dumb"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    said = done.stdout + done.stderr
    assert "runs-of-mine" in said and "is none of ours" in said
    assert "usage: robotrl doctor" in said


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_read_their_script(on_path, tmp_path, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    if shell == "fish":
        program = "robotrl --completion fish | source; complete -C 'robotrl demos mujoco/pe'"
        command = ["fish", "--no-config", "-c", program]
    else:
        # compadd works inside a completion only: a function of its name shows what it is given
        program = (
            'autoload -Uz compinit; compinit -u -d $PWD/dump; eval "$(robotrl --completion zsh)";'
            'compadd() { shift; print -l -- "$@" }; words=(robotrl demos mujoco/pe); CURRENT=3; _robotrl'
        )
        command = ["zsh", "-f", "-c", program]
    done = subprocess.run(command, env=on_path, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["mujoco/peg-insert"], done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["view", "--exp"], ["--expert"]),
        (["view", "--pick", "w"], ["worst"]),
        (["train", "gym-ppo", "--evaluation.ep"], ["--evaluation.episodes"]),
        (["train", "gym-ppo", "--sim", "mujoco/pu"], ["mujoco/push"]),
        (["train", "--sim", "mujoco/reach", "--algo", "rei"], ["reinflow"]),
        (["train", "gym-ppo", "--sim.c"], ["--sim.curriculum"]),
        (["train", "gym-ppo", "--reward", "al"], ["alive"]),
        (["train", "gym-ppo", "--rew"], ["--reward"]),
        (["train", "gym-ppo", "--sim.na"], []),
        (["train", "gym-ppo", "--see"], ["--seed", "--seeds"]),
        (["train", "gym-ppo", "--help"], ["--help", "--help-all"]),
        (["train", "hopper-ppo", "--sim", "mujoco/reach", "--sim.rew"], ["--sim.reward"]),
        (["train", "hopper-ppo", "--sim", "mujoco/reach", "--sim.reward", ""], ["shaped", "sparse"]),
        (["demos", "mujoco/peg-insert", "--sim.cl"], ["--sim.clearance-m"]),
        (["eval", "x", "--sim", "gym/CartPole-v1", "--sim.vec"], ["--sim.vectorization"]),
        (["doctor", "--sim", "mujoco/reach", "--sim.re"], []),
        (["train", "--resume", "x", "--acc"], ["--accept-changed-inputs"]),
        (["train", "gym-ppo", "--profile", "card"], ["card-24", "card-80", "cards-8x80"]),
        (["train", "--re"], ["--recompute", "--resume", "--reward"]),
        (["reward", "m"], ["milestones"]),
        (["reward", "train", "mujoco/re"], ["mujoco/reach"]),
        (["improve", "x", "--method", "su"], ["successes"]),
        (["demos", "mujoco/reach", "mujoco/re"], []),
        (["list", "se"], []),
        (["import", "openvla-"], ["openvla-oft"]),
        (["--completion", ""], sorted(SCRIPTS)),
        (["nonsense", ""], []),
        (["--vers"], ["--version"]),
        ([], sorted(COMMANDS)),
    ],
)
def test_candidates(words, expected):
    assert candidates(words, TABLE) == expected


@pytest.mark.parametrize("name", [*SIMS.names(), "gym/CartPole-v1"])
def test_options_of_a_sim_are_those_that_its_parser_knows(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    page = io.StringIO()
    with contextlib.redirect_stdout(page), contextlib.suppress(SystemExit):
        parse_options(sim_options(name), "robotrl eval", ["--help"])
    # long lists stand in two columns
    listed = set(re.findall(r"(?<!\S)--sim\.[\w.-]+", page.getvalue()))
    assert {field.flag for field in sim_fields(name)} == listed - {"--sim.env-id"}  # the id is in the sim's name


def test_each_command_completes_all_its_flags():
    """Flags are those that the command's own parser lists in its help."""
    for command in sorted(set(COMMANDS) - {"train", "reward", "dataset", "driving-log", "traffic", "new"}):
        page = io.StringIO()
        with contextlib.redirect_stdout(page), pytest.raises(SystemExit):
            main([command, "--help"])
        # a line may list an older name beside the present one
        lines = re.findall(r"^│? *((?:-h, )?--[a-z].*)", page.getvalue(), re.MULTILINE)
        listed = [set(re.findall(r"--[a-z][\w.-]*", line.split("  ")[0])) for line in lines]
        found = set(candidates([command, "-"], TABLE))
        assert found <= set().union(*listed), command
        assert all(names & found for names in listed), command


def test_actions_of_reward_are_all_there():
    assert set(ACTIONS) == {"train", "check", "relabel", *process.ACTIONS}
    modules = {"rewards.command": reward, "rewards.process": process, "rewards.preferences": preferences}
    for module, name in ACTIONS.values():
        assert fields(vars(modules[module])[name])


def test_actions_of_driving_logs_are_all_there():
    assert tuple(LOG_ACTIONS) == driving_log.ACTIONS
    assert all(module == "driving_log" and fields(vars(driving_log)[name]) for module, name in LOG_ACTIONS.values())
    assert candidates(["driving-log", ""], TABLE) == ["nuplan", "record", "waymo"]
    assert "--clip-s" in candidates(["driving-log", "nuplan", "--c"], TABLE)


def test_actions_of_datasets_are_all_there():
    assert tuple(DATASET_ACTIONS) == dataset.ACTIONS
    assert all(module == "dataset" and fields(vars(dataset)[name]) for module, name in DATASET_ACTIONS.values())
    assert candidates(["dataset", "merge", "--o"], TABLE) == ["--out"]


def test_actions_of_traffic_are_all_there():
    assert tuple(TRAFFIC_ACTIONS) == traffic.ACTIONS
    assert all(module == "traffic" and fields(vars(traffic)[name]) for module, name in TRAFFIC_ACTIONS.values())
    assert "--style" in candidates(["traffic", "rift", "--st"], TABLE)


def test_kinds_of_new_are_all_there():
    assert tuple(NEW_KINDS) == new.KINDS
    assert all(fields(vars(new)[name]) for _, name in NEW_KINDS.values())
    assert "--out" in candidates(["new", "robot", "my_arm", "--o"], TABLE)


def test_completion_is_fast_and_imports_nothing_heavy():
    code = (
        "import sys; from robotrl.cli.main import main;"
        "main(['--complete', 'train', 'gym-ppo', '--sim']); main(['--complete', 'eval', 'x', '--sim', '']);"
        "print(sorted({'torch', 'numpy', 'mujoco', 'gymnasium'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    spent: list[float] = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "robotrl.cli", "--complete", "eval", "x", "--sim", ""]
        subprocess.run(command, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(spent) < 0.5, "seconds of one core: 0.25 on the machine of the benchmarks"


def test_an_unknown_shell_is_answered(capsys):
    assert main(["--completion", "bsh"]) == 2
    assert "--completion 'bsh' is unknown: did you mean 'bash'? known: bash, fish, zsh" in capsys.readouterr().err
    assert main(["--completion"]) == 2
    assert "--completion takes one shell: bash, zsh, fish" in capsys.readouterr().err
