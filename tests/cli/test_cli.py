import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tests.kits.deploy_kit as deploy_kit
from robotrl import __version__
from robotrl.cli.commands.parsing import one_line
from robotrl.cli.main import COMMANDS, main
from robotrl.registry import SIMS
from robotrl.run.directory import Run
from robotrl.utils.installation import install_line
from tests.kits.commands import PEG_BC

HEAVY = ("torch", "mujoco", "onnxruntime", "gymnasium", "pyarrow", "numpy")
OUTSIDER = '''
import dataclasses, os, signal, sys, time
from typing import Literal

@dataclasses.dataclass(frozen=True)
class Optimizer:
    lr: float = 1e-3
    """Learning rate."""

@dataclasses.dataclass(frozen=True)
class Config:
    """A config."""
    steps: int = 10
    """How many."""
    kind: Literal["adam", "sgd"] = "adam"
    """Which."""
    optimizer: Optimizer = Optimizer()

def plain(): return Config()
def interrupted(): print("ready", flush=True); time.sleep(60)
def defect(): raise ZeroDivisionError("a defect")
def full(): os.write(os.open("/dev/full", os.O_WRONLY), b"x")
def needs_torch(): raise ModuleNotFoundError("No module named 'torch'", name="torch")
def needs_other(): raise ModuleNotFoundError("No module named 'nobody_knows'", name="nobody_knows")
def mistake():
    from robotrl.errors import ConfigError
    raise ConfigError("first line\\nsecond line")
def old():
    from robotrl.algos.ppo import PpoCfg
    return PpoCfg(lam=0.9)
'''
PRESETS = ("plain", "interrupted", "defect", "full", "needs_torch", "needs_other", "mistake", "old")


@pytest.fixture(scope="module")
def outsider(tmp_path_factory) -> dict[str, str]:
    """An environment in which a package of someone else adds presets through its entry points."""
    folder = tmp_path_factory.mktemp("outsider")
    (folder / "outsider.py").write_text(OUTSIDER)
    info = folder / "outsider-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outsider\nVersion: 1.0\n")
    rows = "".join(f"out-{name} = outsider:{name}\n" for name in PRESETS)
    (info / "entry_points.txt").write_text(f"[robotrl.presets]\n{rows}")
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


def robotrl(*arguments: str, environment=None, cwd=None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "robotrl.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd, check=False)


def test_a_warning_is_one_line_without_the_code_that_gave_it():
    program = "import warnings; from robotrl.cli.main import main; main(['list']); "
    program += "warnings.warn('slow'); warnings.warn('x', SyntaxWarning)"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert told.stderr == "warning: slow\n<string>:1: SyntaxWarning: x\n"


def refusal(capsys, *arguments: str) -> str:
    """The one line with which the command line refuses these arguments."""
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    # training says first that it loads
    refused = re.sub(r"\Arobotrl train \S.*: loading\n", "", said.err)
    assert refused.startswith("error: ")
    assert refused.count("\n") == 1
    assert refused.endswith("\n")
    return refused.removeprefix("error: ").rstrip("\n")


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)])
def test_help_imports_nothing_heavy(arguments):
    code = (
        "import sys\n"
        "from robotrl.cli.main import main\n"
        "try:\n    code = main(sys.argv[1:])\n"
        "except SystemExit as stop:\n    code = stop.code\n"
        f"print(code or 0, [name for name in {HEAVY} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "0 []"
    assert arguments[0] == "--version" or "usage: robotrl" in done.stdout


def test_help_names_every_command(capsys):
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert f"  {name}" in said
        assert command.summary in said


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"robotrl {__version__}\n"


DEMOS = ["demos", "mujoco/peg-insert", "--out", "x"]
MISTAKES = [
    (["trian"], "command 'trian' is unknown: did you mean 'train'?"),
    (["doctor", "--jsn"], "unknown option --jsn: did you mean --json?"),
    ([*DEMOS, "--episods=3"], "unknown option --episods: did you mean --episodes?"),
    (["demos", "mujoco/peg-insert", "--oot", "x"], "unknown option --oot: did you mean --out?"),
    ([*DEMOS, "y"], "unexpected argument 'y'"),
    ([*DEMOS, "--episodes", "ten"], "--episodes is 'ten': expected a whole number"),
    ([*DEMOS, "--episodes", "1.5"], "--episodes is '1.5': expected a whole number"),
    ([*DEMOS, "--noise", "loud"], "--noise is 'loud': expected a number"),
    ([*DEMOS, "--noise"], "--noise lacks its value"),
    ([*DEMOS, "--episodes", "0"], "--episodes is 0: expected 1 or more"),
    ([*DEMOS, "--noise", "2"], "noise is 2.0: expected 0 to 1"),
    ([*DEMOS, "--mode", "lefft"], "mode 'lefft' is unknown: did you mean 'left'?"),
    (["demos", "mujoco/peg-inset", "--out", "x"], "'mujoco/peg-inset' is unknown: did you mean 'mujoco/peg-insert'?"),
    (["demos"], "missing: SIM, --out"),
    (["list", "simz"], "kind 'simz' is unknown: did you mean 'sims'?"),
    (["eval", "x", "--split", "tset"], "--split 'tset' is unknown: did you mean 'test'?"),
    (["eval", "x", "--episodes", "0"], "--episodes is 0: expected 1 or more"),
    (["eval", "no/such/run"], "no/such/run does not exist"),
    (["eval", "x", "--num-envs", "0"], "--num-envs is 0: expected 1 or more"),
    (["eval", "x", "--num-envs", "100000000"], "--num-envs is 100000000: expected 1,048,576 or fewer"),
    (["eval", "."], ". is none of ours: expected the directory of a bundle, run, checkpoint or dataset"),
    (["compare", "a", "b", "--detect", "ten"], "--detect is 'ten': expected a number"),
    (["compare", "a", "b", "--starts", "1.5"], "--starts is '1.5': expected a whole number"),
    (["sweep", "x.toml", "--parallel", "many"], "--parallel is 'many': expected a whole number"),
    (["export", "x"], "missing: --out"),
    (["export", "x", "--out", "y", "--samples", "10"], "--samples is 10: expected 1000 or more"),
    (["inspect", "no/such"], "no/such does not exist"),
    (["deploy", "x"], "missing: --robot"),
    (["deploy", "no/such", "--robot", "sim:x"], "no/such does not exist"),
    (["bench"], "missing: NAME of a bench: known: "),
    (["bench", "quickstrat"], "bench 'quickstrat' is unknown: did you mean 'quickstart'?"),
    (["quickstart", "--seed", "-1"], "--seed is -1: expected 0 or more"),
    (["quickstart", "--sed", "1"], "unknown option --sed: did you mean --seed?"),
    (["eval", "--num-evns", "3", "RUN"], "unknown option --num-evns: did you mean --num-envs?"),
    (["eval", "--episdoes=3"], "unknown option --episdoes: did you mean --episodes?"),
    (["train", "peg-insert-rienflow"], "'peg-insert-rienflow' is unknown: did you mean 'peg-insert-reinflow'?"),
    (
        ["train", "mujoco/hopper"],
        "is a sim: expected robotrl train --sim mujoco/hopper --algo NAME, or a preset of it, one of hopper-ppo",
    ),
    (["train", "gym/CartPole-v1"], "is a sim: expected robotrl train --sim gym/CartPole-v1 --algo NAME"),
    (
        ["train", "ppo"],
        "'ppo' is an algorithm: expected robotrl train --sim NAME --algo ppo, or a preset of it",
    ),
    (["train", "peg-insert-rienflow"], "peg-insert-reinflow, peg-insert-"),
    (["train", "--steps", "3"], "missing: a preset, or --sim NAME and --algo NAME"),
    (["train", "--resume", "no/such/run"], "run no/such/run does not exist"),
]


@pytest.mark.parametrize(("arguments", "expected"), MISTAKES)
def test_a_mistake_is_answered_with_one_line(capsys, tmp_path, monkeypatch, arguments, expected):
    monkeypatch.chdir(tmp_path)
    assert expected in refusal(capsys, *arguments)
    assert list(tmp_path.iterdir()) == []  # and nothing was made on the way


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_line_is_the_same_in_every_encoding(encoding):
    """tyro draws its frames in another way where stdout is not UTF-8."""
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    assert robotrl("demos", environment=environment).stderr == "error: missing: SIM, --out; see robotrl demos --help\n"
    said = robotrl("list", "simz", environment=environment).stderr
    assert said.startswith("error: kind 'simz' is unknown: did you mean 'sims'? known: all, sims, policies")


def test_exit_codes_and_messages_of_the_program(outsider):
    def ended(name: str) -> tuple[int, str]:
        done = robotrl("train", f"out-{name}", environment=outsider)
        assert done.stdout == ""
        return done.returncode, done.stderr.removeprefix(f"robotrl train out-{name}: loading\n")

    assert ended("mistake") == (2, "error: first line second line\n")
    renamed = "error: preset 'out-old' sets the unknown field 'lam': it is now 'gae_lambda' (outsider)\n"
    assert ended("old") == (2, renamed)
    assert ended("full") == (2, "error: No space left on device\n")
    assert ended("needs_torch") == (2, f"error: this needs the module 'torch': {install_line('train')}\n")
    code, said = ended("needs_other")
    assert code == 70
    assert "Traceback" in said
    code, said = ended("defect")
    assert code == 70
    assert "Traceback" in said
    assert "ZeroDivisionError: a defect" in said
    assert "please report it" in said.splitlines()[-1]


def test_ctrl_c_ends_with_130(outsider):
    command = [sys.executable, "-m", "robotrl.cli", "train", "out-interrupted"]
    process = subprocess.Popen(command, env=outsider, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == "robotrl train out-interrupted: loading\ninterrupted\n"


def test_a_reader_that_leaves_is_no_fault():
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "robotrl.cli", "list"],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_overrides_of_a_preset(outsider):
    code = (
        "from robotrl.cli.commands.train import parse_config, split_names\n"
        "words = ['out-plain', '--steps', '3', '--optimizer.lr', '0.5', '--run-dir', 'here']\n"
        "c, d = parse_config(*split_names(words))\n"
        "print(c.steps, c.kind, c.optimizer.lr, d)\n"
        "c, d = parse_config(*split_names(['out-plain']))\n"
        "print(c.steps, c.kind, c.optimizer.lr, d)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=outsider, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["3 adam 0.5 here", "10 adam 0.001 None"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--optimizer.lrr", "3"], "unknown option --optimizer.lrr: did you mean --optimizer.lr?"),
        (["--run-dri", "x"], "unknown option --run-dri: did you mean --run-dir?"),
        (["--optimizer.lr", "fast"], "--optimizer.lr is 'fast': expected a number"),
        (["--kind", "adm"], "--kind 'adm' is unknown: did you mean 'adam'? known: adam, sgd"),
    ],
)
def test_a_wrong_override_is_one_line(outsider, arguments, expected):
    done = robotrl("train", "out-plain", *arguments, environment=outsider)
    assert done.returncode == 2
    said = ["robotrl train out-plain: loading", f"error: {expected}; see robotrl train out-plain --help"]
    assert done.stderr.splitlines() == said


def test_help_of_a_preset_lists_its_fields(outsider):
    done = robotrl("train", "out-plain", "--help", environment=outsider)
    assert done.returncode == 0
    for option in ("--run-dir", "--steps", "--kind", "--optimizer.lr"):
        assert option in done.stdout


def test_runs_get_a_free_folder(tmp_path, monkeypatch):
    from robotrl.run.free_path import free_run_dir

    monkeypatch.chdir(tmp_path)
    assert free_run_dir("x") == Path("runs/x")
    Path("runs/x").mkdir(parents=True)
    Path("runs/x-2").mkdir()
    assert free_run_dir("x") == Path("runs/x-3")


def test_an_unforeseen_frame_still_becomes_one_line():
    lines = ["╭─ New kind ─╮", "│ Something  │", "│ is wrong.  │", "│ ────────── │", "│ see --help │", "╰────────────╯"]
    framed = "\n".join(lines)
    assert one_line(framed) == "Something is wrong"


def test_list_names_what_there_is(capsys):
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    for name in ("mujoco/peg-insert", "peg-insert-reinflow", "sim", "quickstart"):
        assert name in said
    assert main(["list", "sims"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == sorted(
        ["carla/TOWN", "gym/ID", "isaac/MODULE:FUNCTION", "remote/NAME", *SIMS.names()]
    )
    assert "a planar one-legged robot" in next(line for line in lines if line.startswith("mujoco/hopper"))


def test_list_describes_every_name_of_ours(capsys):
    assert main(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.pop("schema_version") == 1
    assert set(found) == {
        *("sims", "policies", "algorithms", "rewards"),
        *("presets", "encoders", "traffic", "robots", "benches"),
    }
    assert [
        f"{kind} {name}" for kind, rows in found.items() for name, row in rows.items() if not row["description"]
    ] == []
    assert found["presets"]["hopper-ppo"]["target"] == "robotrl.configs.locomotion:hopper_ppo"


def test_a_package_that_cannot_be_read_does_not_hide_the_other_names(outsider):
    """Its row is listed without a description."""
    done = robotrl("list", "presets", environment=outsider)
    assert done.returncode == 0 and "out-plain" in done.stdout and "hopper-ppo" in done.stdout


@pytest.fixture(scope="module")
def run_path(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "one"
    with Run.create(
        path, {"sim": {"name": "mujoco/peg-insert"}, "lr": 0.5}, seed=7, command=["robotrl", "train"]
    ) as run:
        run.save({"policy": {"w": np.zeros((3, 4), np.float32)}, "count": 5}, step=10, score=0.25)
        run.save({"policy": {"w": np.ones((3, 4), np.float32)}, "count": 6}, step=20, score=0.75)
    return path


def test_inspect_a_run_and_its_checkpoints(capsys, run_path):
    assert main(["inspect", str(run_path)]) == 0
    said = capsys.readouterr().out
    for text in ("seed", "7", "config lr", "0.5", "step_000000010", "whole, score 0.75", "2, 0 damaged"):
        assert text in said
    assert main(["inspect", str(run_path / "checkpoints" / "step_000000020")]) == 0
    said = capsys.readouterr().out
    for text in ("0.75", "1 arrays, 12 numbers", "tree count"):
        assert text in said


def test_inspect_names_the_damaged_checkpoint_of_a_run(capsys, tmp_path, run_path):
    import shutil

    copy = Path(shutil.copytree(run_path, tmp_path / "copy"))
    weights = copy / "checkpoints" / "step_000000010" / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert main(["inspect", str(copy)]) == 1
    said = capsys.readouterr().out
    assert "2, 1 damaged" in said
    assert "step_000000010: weights.safetensors" in said.replace("\n", "")
    assert "checkpoint" in refusal(capsys, "inspect", str(weights.parent))


def test_inspect_and_refuse_a_bundle(capsys, tmp_path, tmp_path_factory):
    bundle = deploy_kit.copied("flow", tmp_path, tmp_path_factory.getbasetemp())
    assert main(["inspect", str(bundle)]) == 0
    said = capsys.readouterr().out
    for text in ("identity", "input state", "sampler", "flow, euler, 3 steps", "parity", "verified"):
        assert text in said
    graph = bundle / "policy.onnx"
    graph.write_bytes(graph.read_bytes()[:-1])
    assert "policy.onnx" in refusal(capsys, "inspect", str(bundle))


def test_inspecting_a_bundle_needs_no_torch(tmp_path_factory):
    bundle, _ = deploy_kit.made("flow", tmp_path_factory.getbasetemp())
    code = (
        "import sys\nfrom robotrl.cli.main import main\n"
        f"assert main(['inspect', {str(bundle)!r}]) == 0\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_demos_then_inspect(capsys, tmp_path):
    out = tmp_path / "demos"
    assert main(["demos", "mujoco/peg-insert", "--out", str(out), "--episodes", "3", "--seed", "1"]) == 0
    assert "3 episodes" in capsys.readouterr().out
    assert main(["inspect", str(out)]) == 0
    said = capsys.readouterr().out
    for text in ("episodes", "observation.state", "mujoco/peg-insert", "every file has the SHA-256"):
        assert text in said
    assert "exists already" in refusal(capsys, "demos", "mujoco/peg-insert", "--out", str(out))


def test_the_main_job_command_by_command(tmp_path, monkeypatch, capsys):
    """Demonstrations, clone, evaluation, bundle, control: each command takes what the one before it wrote."""
    monkeypatch.chdir(tmp_path)

    def done(*arguments: str) -> str:
        assert main(arguments) == 0
        return capsys.readouterr().out

    done("demos", "mujoco/peg-insert", "--out", "demos", "--episodes", "4")
    small = ["--algo.updates", "2", "--algo.updates-per-iteration", "1", "--algo.batch", "8", "--policy.hidden", "16"]
    quick = ["--evaluation.episodes", "2", "--evaluation.num-envs", "2", "--evaluation.animation", "0"]
    assert done("train", *PEG_BC, "--dataset", "demos", *small, *quick) == "runs/peg-insert-bc\n"
    said = done("eval", "runs/peg-insert-bc", "--episodes", "3", "--report", "eval.json")
    assert "over 3 starts of split test" in said
    report = json.loads((tmp_path / "eval.json").read_text())
    assert len(report["episodes"]) == report["success"]["episodes"] == 3
    assert "over 1024 observations" in done("export", "runs/peg-insert-bc", "--out", "bundle")
    assert "run peg-insert-bc, step 2, seed 0" in " ".join(done("inspect", "bundle").split())
    said = done("eval", "bundle", "--against", "runs/peg-insert-bc", "--episodes", "3")
    assert "starts that flipped: none" in said
    # the bundle names its sim and the sim's options
    assert json.loads((tmp_path / "bundle/manifest.json").read_text())["training"]["sim"] == "mujoco/peg-insert"
    assert "over 2 starts" in done("eval", "bundle", "--episodes", "2")
    # a process of its own: control sets its priorities
    control = ["deploy", "bundle", "--robot", "sim:mujoco/peg-insert", "--episodes", "1", "--json", "deploy.json"]
    ended = robotrl(*control, cwd=tmp_path)
    assert ended.returncode == 0 and "Traceback" not in ended.stderr, ended.stderr
    assert "of 1 at 20 Hz" in ended.stdout
    assert json.loads((tmp_path / "deploy.json").read_text())["ticks"] > 0


def test_deploy_refuses_what_is_no_bundle(capsys, run_path):
    said = refusal(capsys, "deploy", str(run_path), "--robot", "sim:mujoco/peg-insert")
    assert "is a run: expected a bundle; robotrl export makes one from a run" in said


def test_doctor_tells_what_works():
    done = robotrl("doctor", "--json")
    found = json.loads(done.stdout)
    extras = {extra["name"]: extra for extra in found["extras"]}
    assert done.returncode == (1 if found["problems"] else 0)
    assert found["robotrl"] == __version__
    assert found["cores"] >= 1
    assert extras["mujoco"]["usable"]
    assert extras["train"]["usable"]
    assert found["torch"]["threads"] >= 1


def fake_distributions(folder: Path, versions: dict[str, str]) -> dict[str, str]:
    """An environment with a package `mujoco` that fails as the real mix of MuJoCo 3 and 4 does."""
    (folder / "mujoco").mkdir()
    (folder / "mujoco" / "__init__.py").write_text("raise ImportError('its core bindings are missing')\n")
    for name, version in versions.items():
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


def test_doctor_recognises_a_mix_of_mujoco_3_and_4(tmp_path):
    parts = {"mujoco": "4.0.0", "mujoco-core": "4.0.0", "mujoco-studio": "4.0.0"}
    code = "from robotrl.cli.doctor import *; print(to_json(diagnose({name: EXTRAS[name] for name in ('mujoco',)})))"
    environment = fake_distributions(tmp_path, parts)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert len(found["problems"]) == 1
    assert found["problems"][0].startswith("a mix of MuJoCo 3 and 4 (mujoco 4.0.0, mujoco-core 4.0.0")
    assert "pip uninstall -y mujoco mujoco-core mujoco-studio && pip install" in found["problems"][0]
    assert [extra["usable"] for extra in found["extras"]] == [False]


def test_doctor_says_what_is_missing_and_advises_nothing_that_cannot_be(monkeypatch):
    from robotrl.cli import doctor

    wanted = {"train": ["no_such_numba"], "carla": ["no_such_carla"]}
    for here, found in (
        (True, "not installed: no_such_carla"),
        (False, "exists for x86-64 Linux and Python up to 3.12"),
    ):
        monkeypatch.setattr(doctor, "CARLA_HERE", here)
        train, carla = doctor.diagnose(wanted).extras
        assert (train.usable, train.detail) == (False, "not installed: no_such_numba")
        assert train.advice == install_line("train")
        assert carla.detail.startswith(found) and (carla.advice == install_line("carla")) == here


def test_probe_reports_absent_broken_and_crashing_modules(tmp_path, monkeypatch):
    from robotrl.cli.import_probe import probe_modules

    (tmp_path / "breaks.py").write_text("raise RuntimeError('first\\nsecond')\n")
    (tmp_path / "crashes.py").write_text("import os\nos.abort()\n")
    (tmp_path / "hangs.py").write_text("import time\ntime.sleep(100)\n")
    (tmp_path / "fine.py").write_text("__version__ = '1.2'\nprint('noise on stdout')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    groups = {"a": ["fine", "no_such_module"], "b": ["breaks"], "c": ["crashes"], "d": ["hangs"]}
    started = time.monotonic()
    found = probe_modules(groups, limit_s=5.0)
    assert time.monotonic() - started < 90
    assert (found["a"].versions, found["a"].absent) == ({"fine": "1.2"}, ("no_such_module",))
    assert found["b"].failed == {"breaks": "RuntimeError: first"}
    assert "ended the process with code -6" in str(found["c"].crash)
    assert "took more than 5 s" in str(found["d"].crash)
