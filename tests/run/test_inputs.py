"""A run knows its inputs: what it began with is compared when it is taken up, named when it changed, and shown."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.faults import sound
from robotrl.api.inspection import describe
from robotrl.cli.commands.train import config_of
from robotrl.cli.main import main
from robotrl.config import SimCfg, WeightedReward
from robotrl.errors import DataError, RobotrlError
from robotrl.registry import PRESETS
from robotrl.rewards.function import FunctionRewardCfg
from robotrl.rewards.success import SuccessRewardCfg
from robotrl.rollout.demos import collect_demos
from robotrl.run import input_digests
from robotrl.run.directory import Run
from robotrl.run.inputs import NAME, Digest
from robotrl.spec import Input
from robotrl.training import resume, train

FLAG = "--accept-changed-inputs"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    data = shutil.copytree(sound.dataset(), tmp_path / "demos")
    cfg = sound.cloning(data)
    train(cfg, tmp_path / "run")
    return tmp_path / "run"


def other_recording(path: Path, seed: int = 1) -> None:
    shutil.rmtree(path)
    collect_demos(sound.SIM, path, episodes=3, num_envs=3, sim_options={"limit_s": 1.0}, keep="all", seed=seed)


def test_another_recording_under_the_same_name_is_refused_and_can_be_accepted(run, tmp_path, capsys):
    other_recording(tmp_path / "demos")
    with pytest.raises(DataError, match=r"dataset .*demos holds something else \(SHA-256 .*go on knowingly"):
        resume(run)
    assert main(["train", "--resume", str(run)]) == 2
    assert FLAG in capsys.readouterr().err
    assert main(["train", "--resume", str(run), FLAG]) == 0
    assert "goes on knowingly: dataset" in capsys.readouterr().err
    session = json.loads((run / "run.json").read_text())["sessions"][-1]
    assert session["accepted"][0].startswith("dataset ")
    # what was accepted counts from now on
    assert main(["train", "--resume", str(run)]) == 0


def test_what_is_the_same_goes_on_and_inspect_shows_it(run):
    resume(run)
    row = describe(run).rows["input dataset"]
    assert row.startswith(str(run.parent / "demos")) and row.endswith("as when the run began")
    other_recording(run.parent / "demos")
    assert "changed, now" in describe(run).rows["input dataset"]
    shutil.rmtree(run.parent / "demos")
    assert describe(run).rows["input dataset"].endswith("not there any more")


def test_a_changed_config_is_named_by_whoever_opens_the_run(run, capsys):
    config = run / "config.json"
    config.write_text(config.read_text().replace('"lr": 0.0', '"lr": 0.9', 1))
    with pytest.raises(DataError, match=r"config\.json was altered \(SHA-256 "):
        resume(run)
    assert any("config.json was altered" in line for line in describe(run).damaged)
    assert main(["inspect", str(run)]) == 1
    assert "config.json was altered" in capsys.readouterr().err
    resume(run, accept_changed_inputs=True)
    assert not Run.open(run).altered


def test_a_changed_seed_is_refused(run):
    record = run / "run.json"
    record.write_text(record.read_text().replace('"seed": 0', '"seed": 7', 1))
    with pytest.raises(DataError, match=r"the seed in run\.json is 7: inputs\.json has 0"):
        resume(run)


@pytest.mark.parametrize("damage", ["remove", "alter", "exchange"])
def test_inputs_that_are_gone_or_others_are_refused(run, damage, tmp_path):
    path = run / NAME
    if damage == "remove":
        path.unlink()
    elif damage == "alter":
        path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    else:
        Run.create(tmp_path / "other", {}, seed=0, command=[]).close()
        shutil.copy(tmp_path / "other" / NAME, path)
    with pytest.raises(DataError, match=r"inputs\.json"):
        resume(run)


def test_a_run_of_before_resumes_as_before():
    run = sound.run_of_before()
    resume(run)
    assert not (run / NAME).exists()
    # its record is sealed from now on, by itself
    assert not Run.open(run).altered


def test_what_is_no_longer_needed_may_be_gone_or_changed(tmp_path, capsys):
    kept = Digest(Input("init_from", "policy", "/a/run", kept=True), "0" * 64)
    needed = Digest(Input("dataset", "dataset", "/a/dataset"), "0" * 64)
    Run.create(tmp_path / "r", {}, seed=0, command=[], inputs=[kept, needed]).close()
    now = [kept._replace(sha256="1" * 64), needed._replace(sha256=None)]
    run = Run.open(tmp_path / "r")
    run.resume(inputs=now)
    run.close()
    said = capsys.readouterr().err
    assert "init_from /a/run holds something else" in said and "dataset /a/dataset is not there any more" in said
    with pytest.raises(DataError, match="dataset /a/dataset cannot be read now"):
        Run.open(tmp_path / "r").resume(inputs=[needed._replace(sha256=None, fault="it was altered")])


def test_inputs_are_declared_by_configs_and_sims(tmp_path, monkeypatch):
    (tmp_path / "words.txt").write_text("red green")
    (tmp_path / "model.xml").write_text('<mujoco><include file="more.xml"/></mujoco>')
    (tmp_path / "more.xml").write_text("<mujoco/>")
    (tmp_path / "own_envs_for_inputs.py").write_text(
        "import gymnasium\nfrom gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Own(CartPoleEnv):\n    pass\n"
        "def Wrap(env):\n    return env\n"
        'gymnasium.register("OwnForInputs-v0", entry_point=Own)\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    cfg = PRESETS.load("gym-ppo")()
    options = (
        f"vocabulary=@{tmp_path}/words.txt",
        "wrapper=own_envs_for_inputs:Wrap",
        f'kwargs={{"xml_file": "{tmp_path}/model.xml"}}',
    )
    cfg = replace(
        cfg, sim=SimCfg("gym/own_envs_for_inputs:OwnForInputs-v0", options=options), init_from="/a", dataset="/b"
    )
    found = {(one.field, one.kind, one.path) for one in input_digests.declared(cfg)}
    assert found == {
        ("init_from", "policy", "/a"),
        ("dataset", "dataset", "/b"),
        ("sim", "module", "own_envs_for_inputs"),
        ("sim.wrapper", "module", "own_envs_for_inputs"),
        ("sim.vocabulary", "file", f"{tmp_path}/words.txt"),
        ("sim.kwargs", "file", f"{tmp_path}/model.xml"),
        ("sim.kwargs", "file", f"{tmp_path}/more.xml"),
    }
    module = input_digests.digest_of("module", "own_envs_for_inputs")
    with (tmp_path / "own_envs_for_inputs.py").open("a") as file:
        file.write("# more\n")
    assert input_digests.digest_of("module", "own_envs_for_inputs") != module
    del sys.modules["own_envs_for_inputs"]


@pytest.mark.parametrize(
    "preset, change, field",
    [
        ("drive-ppo", {"sim": SimCfg("bev/drive", options={"map": "/a.xodr"})}, ("sim.map", "file", "/a.xodr")),
        ("tabletop-grpo --algo opd", {"algo.teacher": "/t"}, ("algo.teacher", "policy", "/t")),
        ("tabletop-grpo --algo vla-rl", {"algo.process_reward": "/p"}, ("algo.process_reward", "checkpoint", "/p")),
        ("tabletop-grpo", {"algo.encoder": "run:/e"}, ("algo.encoder", "policy", "/e")),
        (
            "--sim mujoco/reach --algo ppo",
            {"rewards": (WeightedReward("success", 1.0, SuccessRewardCfg("/c")),)},
            ("reward.success.path", "checkpoint", "/c"),
        ),
        (
            "--sim mujoco/reach --algo ppo",
            {"rewards": (WeightedReward("function", 1.0, FunctionRewardCfg("own:near")),)},
            ("reward.function.target", "module", "own"),
        ),
    ],
)
def test_each_kind_of_input_is_declared(preset, change, field):
    cfg = config_of(preset)
    for name, value in change.items():
        part, _, inner = name.partition(".")
        cfg = replace(cfg, **{part: replace(getattr(cfg, part), **{inner: value}) if inner else value})
    assert field in {(one.field, one.kind, one.path) for one in input_digests.declared(cfg)}


def test_an_input_that_is_not_there_is_refused_before_a_directory_is_made(tmp_path):
    with pytest.raises(RobotrlError):
        train(sound.cloning(tmp_path / "nothing"), tmp_path / "runs" / "a")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_run_that_ends_before_anything_was_saved_leaves_nothing(tmp_path, error):
    from robotrl.run.callbacks import Callback

    class Fails(Callback):
        def on_start(self, run: Run) -> None:
            assert run.path.exists()
            raise error

    with pytest.raises(error):
        train(sound.cloning(sound.dataset()), tmp_path / "runs" / "deep" / "a", [Fails()])
    assert not list(tmp_path.iterdir())


def test_a_run_that_has_logged_something_stays(tmp_path):
    from robotrl.run.callbacks import Callback

    class Fails(Callback):
        def on_iteration(self, step: int, scalars: dict[str, float]) -> None:
            raise ZeroDivisionError

    with pytest.raises(RobotrlError):
        train(sound.cloning(sound.dataset()), tmp_path / "a", [Fails()])
    assert (tmp_path / "a" / "scalars.jsonl").stat().st_size
