"""A run's directory: what is in it, what is kept, what reading and resuming give."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import platform
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

from robotrl.errors import ConfigError, DataError, RobotrlError
from robotrl.run.directory import Run
from robotrl.run.logs import read_scalars, tag
from robotrl.utils.provenance import changes_since, git_state, versions
from tests.kits.refusals import raises_naming

CONFIG = {"lr": 3e-4, "layers": (64, 64), "sim": {"name": "mujoco/peg-insert", "shaped": False, "limit": None}}


def make(path: Path, keep: int = 3) -> Run:
    return Run.create(path, CONFIG, seed=7, command=["robotrl", "train", "x"], keep=keep)


def tensorboard(path: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(path / "tb"), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def raw_events(path: Path) -> dict[str, list[tuple[int, float]]]:
    """All scalars on file, whatever restart marks there are: what a reader that knows nothing of them sees."""
    out: dict[str, list[tuple[int, float]]] = {}
    for file in sorted((path / "tb").iterdir()):
        for event in LegacyEventFileLoader(str(file)).Load():
            for value in event.summary.value:
                out.setdefault(value.tag, []).append((event.step, value.simple_value))
    return out


def tagged(path: Path) -> dict[str, list[tuple[int, float]]]:
    return {tag(name): values for name, values in jsonl(path).items()}


def jsonl(path: Path) -> dict[str, list[tuple[int, float]]]:
    out: dict[str, list[tuple[int, float]]] = {}
    for record in read_scalars(path / "scalars.jsonl"):
        for name, value in record.items():
            if name not in ("step", "wall_s"):
                with np.errstate(over="ignore"):
                    out.setdefault(name, []).append((int(record["step"]), float(np.float32(value))))
    return out


def names(run: Run) -> list[str]:
    return sorted(path.name for path in (run.path / "checkpoints").iterdir() if path.is_dir())


def step(number: int) -> str:
    return f"step_{number:09d}"


def test_a_new_run_says_how_it_was_made(tmp_path):
    make(tmp_path / "a").close()
    files = {
        name: json.loads((tmp_path / "a" / name).read_text()) for name in ("config.json", "run.json", "versions.json")
    }
    assert all(data["schema_version"] == 1 for data in files.values())
    assert files["config.json"]["config"] == {**CONFIG, "layers": [64, 64]}
    assert files["run.json"]["seed"] == 7
    assert files["run.json"]["sessions"][0]["command"] == ["robotrl", "train", "x"]
    assert files["versions.json"]["python"] == platform.python_version()
    assert files["versions.json"]["packages"]["torch"] == torch.__version__
    assert files["versions.json"]["threads"]["torch"] == torch.get_num_threads()
    opened = Run.open(tmp_path / "a")
    assert (opened.config, opened.seed) == ({**CONFIG, "layers": [64, 64]}, 7)


def test_git_state_in_a_repository_and_outside(tmp_path):
    assert git_state(tmp_path) == {"schema_version": 1, "commit": None, "dirty": None, "diff_sha256": None}

    def git(*words: str) -> bytes:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(["git", "-C", tmp_path, *identity, *words], check=True, capture_output=True).stdout

    git("init", "-q")
    assert git_state(tmp_path)["commit"] is None
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-qm", "x")
    clean = git_state(tmp_path)
    assert clean["commit"] == git("rev-parse", "HEAD").decode().strip()
    assert (clean["dirty"], clean["diff_sha256"]) == (False, None)
    (tmp_path / "a").write_text("2")
    dirty = git_state(tmp_path)
    assert dirty["dirty"] is True
    assert dirty["diff_sha256"] == hashlib.sha256(git("diff", "--binary", "HEAD")).hexdigest()


def test_a_used_directory_is_refused_and_left_alone(tmp_path):
    make(tmp_path / "a").close()
    before = (tmp_path / "a" / "config.json").read_bytes()
    with pytest.raises(ConfigError, match="a exists already: resume it"):
        make(tmp_path / "a")
    assert (tmp_path / "a" / "config.json").read_bytes() == before
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").write_text("precious")
    with pytest.raises(ConfigError, match="is not empty"):
        make(tmp_path / "b")
    with pytest.raises(ConfigError, match="is a file"):
        make(tmp_path / "b" / "thesis.tex")
    (tmp_path / "c").mkdir()
    make(tmp_path / "c").close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "config, words",
    [
        ({"a": {"b": [1, math.inf]}}, r"config\.a\.b\[1\] is inf: expected a finite number"),
        ({"a": {"b": math.nan}}, r"config\.a\.b is nan"),
        ({"a": Path("x")}, r"config\.a is a PosixPath"),
        ({"a": {1: 2}}, r"config\.a has the key 1"),
    ],
)
def test_a_config_that_is_not_json_is_refused_by_field(tmp_path, config, words):
    with pytest.raises(ConfigError, match=words):
        Run.create(tmp_path / "a", config, seed=0, command=[])
    assert list(tmp_path.iterdir()) == []


def test_opening_what_is_no_run(tmp_path):
    make(tmp_path / "peg-insert").close()
    with pytest.raises(DataError, match=r"does not exist.*did you mean .*peg-insert\?"):
        Run.open(tmp_path / "peg-inset")
    config = tmp_path / "peg-insert" / "config.json"
    whole = config.read_bytes()
    config.write_bytes(whole[:40])
    with pytest.raises(DataError, match=r"config\.json is not JSON"):
        Run.open(tmp_path / "peg-insert")
    config.write_bytes(whole.replace(b'"schema_version": 1', b'"schema_version": 2'))
    with pytest.raises(DataError, match="schema_version 2, written by a newer robotrl"):
        Run.open(tmp_path / "peg-insert")
    config.write_bytes(b'{"schema_version": 1}')
    with pytest.raises(DataError, match=r"config\.json or run\.json lacks"):
        Run.open(tmp_path / "peg-insert")


def test_keep_must_be_positive(tmp_path):
    with raises_naming(ConfigError, "keep", 0, 1):
        make(tmp_path / "a", keep=0)


@settings(max_examples=25, deadline=None)
@given(scores=st.lists(st.none() | st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=7), keep=st.integers(1, 3))
def test_the_newest_and_the_best_are_kept(tmp_path_factory, scores, keep):
    run = make(tmp_path_factory.mktemp("r") / "a", keep)
    for number, score in enumerate(scores):
        path = run.save({"x": number}, step=number, score=score)
        assert path.name == step(number)
    run.close()
    scored = [(score, number) for number, score in enumerate(scores) if score is not None]
    best = max(scored)[1] if scored else None  # the newest of equals
    newest = set(range(len(scores))[-keep:])
    assert names(run) == sorted(step(number) for number in newest | ({best} - {None}))
    reader = Run.open(run.path)
    assert reader.latest().tree == {"x": len(scores) - 1}
    found = reader.best()
    assert (found.step if found else None) == best
    pointer = json.loads((run.path / "checkpoints" / "latest.json").read_text())
    assert pointer == {
        "schema_version": 1,
        "checkpoint": step(len(scores) - 1),
        "step": len(scores) - 1,
        "score": scores[-1],
    }
    best_file = run.path / "checkpoints" / "best.json"
    assert best_file.exists() == (best is not None)
    if best is not None:
        assert json.loads(best_file.read_text())["checkpoint"] == step(best)


def test_a_score_that_is_not_finite_is_saved_but_never_best(tmp_path, capsys):
    run = make(tmp_path / "a")
    run.save({"x": 0}, step=0, score=0.1)
    run.save({"x": 1}, step=1, score=math.nan)
    assert "score at step 1 is nan" in capsys.readouterr().err
    assert (run.latest().step, run.best().step) == (1, 0)
    run.close()


def damage(run: Run, number: int) -> None:
    file = run.path / "checkpoints" / step(number) / "weights.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def test_a_damaged_newest_falls_back_loudly(tmp_path, caplog, capsys):
    run = make(tmp_path / "a")
    assert (run.latest(), run.best()) == (None, None)
    for number in range(3):
        run.log(number, {"x": number})
        run.save({"w": np.full(3, number)}, step=number, score=number)
    run.close()
    damage(run, 2)
    with caplog.at_level(logging.WARNING, "robotrl"):
        assert Run.open(run.path).latest().step == 1
    for said in (caplog.text, capsys.readouterr().err):
        assert f"{step(2)}: weights.safetensors" in said
        assert f"using {run.path / 'checkpoints' / step(1)} instead" in said
    assert Run.open(run.path).best().step == 1
    assert "best checkpoint is damaged" in capsys.readouterr().err

    resumed = Run.open(run.path)
    assert resumed.resume().step == 1
    assert names(resumed) == ["damaged_" + step(2), step(0), step(1)]
    assert [record["step"] for record in read_scalars(run.path / "scalars.jsonl")] == [0, 1]
    resumed.save({"w": np.full(3, 9)}, step=2)
    assert resumed.latest().tree["w"].tolist() == [9, 9, 9]
    assert resumed.best().step == 1
    resumed.close()


def test_no_whole_checkpoint_is_an_error_not_a_fresh_start(tmp_path):
    run = make(tmp_path / "a")
    for number in range(2):
        run.save({"w": np.ones(3)}, step=number)
        damage(run, number)
    run.close()
    for read in (Run.open(run.path).latest, Run.open(run.path).resume):
        with pytest.raises(DataError, match=f"none of the 2 checkpoints .* is whole; newest: .*{step(1)}: weights"):
            read()


def test_pointers_are_set_right_on_resume(tmp_path):
    run = make(tmp_path / "a")
    for number, score in enumerate([0.5, 0.9, 0.1]):
        run.save({}, step=number, score=score)
    run.close()
    checkpoints = run.path / "checkpoints"
    right = {name: (checkpoints / name).read_bytes() for name in ("latest.json", "best.json")}
    (checkpoints / "latest.json").write_bytes(right["best.json"])  # as a kill between rename and pointer leaves it
    (checkpoints / "best.json").write_bytes(b"{")
    assert (Run.open(run.path).latest().step, Run.open(run.path).best().step) == (2, 1)
    resumed = Run.open(run.path)
    resumed.resume()
    resumed.close()
    assert {name: (checkpoints / name).read_bytes() for name in right} == right


def test_a_reader_cannot_write_and_a_closed_run_neither(tmp_path):
    run = make(tmp_path / "a")
    run.save({}, step=0)
    run.close()
    run.close()
    for closed in (run, Run.open(run.path)):
        for write in (lambda: closed.log(1, {"x": 1}), lambda: closed.save({}, step=1), closed.__enter__):  # noqa: B023
            with pytest.raises(RobotrlError, match=r"open for reading only: call resume\(\)"):
                write()


def test_one_writer_within_a_process(tmp_path):
    run = make(tmp_path / "a")
    with pytest.raises(RobotrlError, match="already open for writing in this process"):
        Run.open(run.path).resume()
    with pytest.raises(RobotrlError, match="already open for writing"):
        run.resume()
    run.log(0, {"x": 1})
    run.close()
    other = Run.open(run.path)
    assert other.resume() is None
    other.close()
    assert read_scalars(run.path / "scalars.jsonl") == []  # nothing was saved, so the run starts over


def test_tensorboard_groups_what_belongs_together():
    groups = {
        "rollout_return": "rollout/return",
        "eval_success": "eval/success",
        "env_steps_per_s": "time/env_steps_per_s",
        "learn_s": "time/learn_s",
        "pg_loss": "train/pg_loss",
        "grad_norm/actor.": "train/grad_norm/actor",
        "eval/mine": "eval/mine",
    }
    assert {name: tag(name) for name in groups} == groups


FINITE = st.floats(width=64, allow_nan=False, allow_infinity=False)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.dictionaries(st.sampled_from(["train/loss", "eval/rate", "ütf"]), FINITE), max_size=8),
    cut=st.integers(-1, 8),
)
def test_jsonl_and_tensorboard_agree_before_and_after_a_cut(tmp_path_factory, rows, cut):
    run = make(tmp_path_factory.mktemp("r") / "a")
    for number, row in enumerate(rows):
        run.log(number, row)
        if number == cut:
            run.save({}, step=number)
    run.close()
    assert tagged(run.path) == tensorboard(run.path) == raw_events(run.path)
    resumed = Run.open(run.path)
    found = resumed.resume()
    first = found.step + 1 if found else 0
    records = read_scalars(run.path / "scalars.jsonl")
    assert [record["step"] for record in records] == list(range(first))
    for number, row in enumerate(rows):
        if number >= first:
            resumed.log(number, {name: -value for name, value in row.items()})
    resumed.close()
    assert tagged(run.path) == tensorboard(run.path) == raw_events(run.path)
    expected: dict[str, list[float]] = {}
    for number, row in enumerate(rows):
        for name, value in row.items():
            expected.setdefault(name, []).append(value if number < first else -value)
    found_rows = read_scalars(run.path / "scalars.jsonl")
    assert {name: [row[name] for row in found_rows if name in row] for name in expected} == expected
    times = [row["wall_s"] for row in found_rows]
    assert times == sorted(times)


def test_each_line_is_on_file_at_once_and_each_is_strict_json(tmp_path):
    run = make(tmp_path / "a")
    run.log(
        3, {"nan": math.nan, "inf": math.inf, "ninf": -math.inf, "tensor": torch.tensor(0.5), "np": np.float32(0.1)}
    )
    (line,) = (run.path / "scalars.jsonl").read_text().splitlines()

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    record = json.loads(line, parse_constant=refuse)
    assert (record["nan"], record["inf"], record["ninf"]) == ("NaN", "Infinity", "-Infinity")
    (read,) = read_scalars(run.path / "scalars.jsonl")
    assert math.isnan(read["nan"]) and read["inf"] == math.inf and read["tensor"] == 0.5
    assert read["np"] == float(np.float32(0.1))
    assert tensorboard(run.path)["train/ninf"] == [(3, -math.inf)]
    run.close()


@pytest.mark.parametrize(
    "scalars, words",
    [
        ({"x": "3"}, "scalar 'x' is '3': expected a single number"),
        ({"x": torch.ones(2)}, "expected a single number"),
        ({"x": None}, "expected a single number"),
        ({"step": 3}, "scalar name 'step' is taken"),
    ],
)
def test_what_is_no_scalar_is_refused_and_nothing_is_logged(tmp_path, scalars, words):
    run = make(tmp_path / "a")
    with pytest.raises(ConfigError, match=words):
        run.log(0, {"good": 1, **scalars})
    with pytest.raises(ConfigError, match="log step is -1"):
        run.log(-1, {"good": 1})
    run.close()
    assert read_scalars(run.path / "scalars.jsonl") == []


@pytest.mark.parametrize("lost", [1, 7, 30])
def test_torn_ends_of_both_logs_are_cut(tmp_path, lost):
    run = make(tmp_path / "a")
    for number in range(3):
        run.log(number, {"x": number})
        run.save({}, step=number)
    run.close()
    (events,) = (run.path / "tb").iterdir()
    for file in (events, run.path / "scalars.jsonl"):
        file.write_bytes(file.read_bytes()[:-lost])
    assert len(read_scalars(run.path / "scalars.jsonl")) == 2
    resumed = Run.open(run.path)
    resumed.resume()
    resumed.log(3, {"x": 3})
    resumed.close()
    wanted = [(0, 0.0), (1, 1.0), (3, 3.0)]
    assert jsonl(run.path)["x"] == tensorboard(run.path)["train/x"] == wanted


def test_sessions_are_recorded_and_changed_versions_are_said(tmp_path, capsys):
    run = make(tmp_path / "a")
    run.save({}, step=4)
    run.close()
    file = run.path / "versions.json"
    data = json.loads(file.read_text())
    assert changes_since(versions()) == []
    data["packages"]["torch"] = "1.0"
    file.write_text(json.dumps(data))
    resumed = Run.open(run.path)
    resumed.resume(["robotrl", "train", "--resume"])
    resumed.close()
    change = f"torch 1.0 -> {torch.__version__}"
    assert change in capsys.readouterr().err
    first, second = json.loads((run.path / "run.json").read_text())["sessions"]
    assert (first["from_step"], second["from_step"]) == (None, 4)
    assert second["command"] == ["robotrl", "train", "--resume"]
    assert second["changed"] == [change]


def test_the_root_logger_is_left_alone(tmp_path):
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    run = make(tmp_path / "a")
    with run:
        run.log(0, {"x": 1})
        run.save({}, step=0)
    assert (root.level, list(root.handlers)) == before
    assert logging.getLogger("robotrl").handlers == []
