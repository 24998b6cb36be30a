"""Callbacks named on the command line, and Weights & Biases offline: what W&B stored is what the run logged."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from robotrl.cli.main import main
from robotrl.errors import ConfigError
from robotrl.run.callbacks import load_callback
from robotrl.run.directory import Run
from robotrl.run.logs import read_scalars, tag

TINY = (
    *("gym-ppo", "--sim", "gym/CartPole-v1", "--sim.num-envs", "2", "--algo.env-steps", "128"),
    *("--algo.num-steps", "16", "--algo.minibatch", "16", "--algo.epochs", "1", "--algo.engine", "eager"),
    *("--evaluation.every-env-steps", "64", "--evaluation.episodes", "2", "--evaluation.num-envs", "2"),
)
BLOCK = 1 << 15
OWN = """
from pathlib import Path
from robotrl.run.callbacks import Callback

class Notes(Callback):
    def on_start(self, run):
        self.seen = []
        self.path = run.path
    def on_iteration(self, step, scalars):
        self.seen.append(step)
    def on_end(self, run):
        (self.path / "notes.txt").write_text(repr(self.seen))

class Picky(Callback):
    def __init__(self, name):
        self.name = name

class Other:
    pass
"""


@pytest.fixture
def own(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_notes.py").write_text(OWN)
    yield tmp_path
    sys.modules.pop("my_notes", None)


def test_a_callback_of_the_users_is_called(own, monkeypatch):
    monkeypatch.delitem(sys.modules, "wandb", raising=False)  # open_clip imports it where it is installed
    assert main(["train", *TINY, "--run-dir", "run", "--callback", "my_notes:Notes"]) == 0
    assert (own / "run" / "notes.txt").read_text() == "[1, 2, 3, 4]"
    # a run that has ended goes on with nothing, and calls the callbacks all the same
    (own / "run" / "notes.txt").unlink()
    assert main(["train", "--resume", "run", "--callback", "my_notes:Notes"]) == 0
    assert (own / "run" / "notes.txt").read_text() == "[]"
    assert "wandb" not in sys.modules, "imported only where it is asked for"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("my_notes", "--callback is 'my_notes': expected MODULE:CLASS"),
        ("my_notes:Note", "my_notes has no Note: did you mean my_notes:Notes? its callbacks: Notes, Picky"),
        ("my_notes:Other", "Other does not derive from robotrl.run.callbacks.Callback"),
        ("my_notes:Picky", "Picky cannot be made without arguments"),
        ("my_note:Notes", "needs the module 'my_note'"),
        ("my-notes:Notes", "expected a dotted name"),
    ],
)
def test_a_wrong_callback_is_answered(own, target, words):
    with pytest.raises(ConfigError) as raised:
        load_callback(target)
    assert words in str(raised.value)


def test_an_unknown_logger_is_answered(capsys):
    assert main(["train", *TINY, "--logger", "wandbb"]) == 2
    assert "did you mean 'wandb'?" in capsys.readouterr().err


def stored(file: Path) -> dict[str, list]:
    """Records of W&B's own file by kind: a log in LevelDB's format, behind a header of seven bytes."""
    from wandb.proto import wandb_internal_pb2

    data, found = file.read_bytes(), {}
    assert data[:4] == b":W&B"
    position, parts = 7, b""
    while position + 7 <= len(data):
        if (left := BLOCK - position % BLOCK) < 7:
            position += left
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            name, parts = record.WhichOneof("record_type"), b""
            found.setdefault(name, []).append(getattr(record, name))
    return found


def test_wandb_offline_has_the_scalars_and_the_config(tmp_path):
    pytest.importorskip("wandb", reason="could not import 'wandb'")
    env = {**os.environ, "WANDB_MODE": "offline", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "robotrl.cli", "train"]
    done = subprocess.run(
        [*command, *TINY, "--run-dir", "run", "--logger", "wandb"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    records = stored(file)
    lines = read_scalars(tmp_path / "run" / "scalars.jsonl")
    logged = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row.item}
        for row in records["history"]
    ]
    assert [row["_step"] for row in logged] == [1, 2, 3, 4] == [line["step"] for line in lines]
    for row, line in zip(logged, lines, strict=True):
        for name in ("env_steps", "pg_loss", "rollout_return"):
            if name in line:
                assert row[tag(name)] == pytest.approx(line[name])
    assert logged[1]["eval/return"] == lines[1]["eval_return"]
    begun = records["run"][0]
    assert begun.project == "robotrl" and begun.display_name == "run"
    config = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert config["sim"]["name"] == "gym/CartPole-v1" and config["seed"] == 0
    # TensorBoard as ever, and the run is as good as any
    assert list((tmp_path / "run" / "tb").glob("events.out.tfevents.*"))
    assert Run.open(tmp_path / "run").altered == ()


def test_the_identity_of_a_run_survives_its_resume(tmp_path):
    from robotrl.run.loggers.wandb_logger import run_id

    with Run.create(tmp_path / "a", {"x": 1}, seed=0, command=["x"]) as run:
        first = run_id(run)
    again = Run.open(tmp_path / "a")
    again.resume(["y"])
    assert run_id(again) == first
    again.close()
    with Run.create(tmp_path / "b", {"x": 1}, seed=0, command=["x"]) as other:
        assert run_id(other) != first
