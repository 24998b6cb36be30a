"""Rounds of improvement: what is accepted, what is given back, and what a kill leaves."""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from robotrl.api.exporting import export
from robotrl.cli.main import main
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.errors import ConfigError, DataError
from robotrl.improve.methods.base import HeldOutQuality
from robotrl.improve.rounds import ImproveSettings, improve
from robotrl.improve.state import read_state
from robotrl.improve.target import policy_digest, read_target
from robotrl.registry import METHODS, SIMS
from robotrl.run.policy_checkpoint import load_policy
from tests.kits import walk_sim
from tests.kits.improve_kit import SIM, SetStepMethod, mixed, walked, walker, write_control_log
from tests.report.test_report import Page

SMALL = {"algo.updates": 40, "algo.updates_per_iteration": 10, "algo.batch": 64, "checkpoint_every": 1}
KILLED = """
import os, pickle, signal, sys
from pathlib import Path
from robotrl.improve.rounds import improve
from robotrl.registry import SIMS
from robotrl.run.logs import ScalarLog
from tests.kits.improve_kit import SIM

SIMS._rows[SIM] = "tests.kits.walk_sim:make"

def log(writer, step, scalars, log=ScalarLog.log):
    log(writer, step, scalars)
    if step == 2:
        os.kill(os.getpid(), signal.SIGKILL)

ScalarLog.log = log
improve(pickle.loads(Path(sys.argv[1]).read_bytes()))
"""
"""An improvement whose fit is killed as its second line is logged."""


@pytest.fixture(autouse=True)
def _walk(monkeypatch):
    monkeypatch.setitem(SIMS._rows, SIM, "tests.kits.walk_sim:make")


@pytest.fixture
def method(monkeypatch):
    """A method that sets the step; the test says how far."""
    made = SetStepMethod(1.0)
    monkeypatch.setattr(METHODS, "load", lambda name: made)
    return made


def settings(tmp_path: Path, **given) -> ImproveSettings:
    """Settings of one round over a log of 30 walks, by a policy that succeeds from one start of five."""
    policy, log = tmp_path / "run", tmp_path / "a.jsonl"
    if not policy.exists():
        walker(policy, 0.2)
        write_control_log(log, mixed(30))
    return ImproveSettings(policy, tmp_path / "out", (log,), "successes", num_envs=20)._replace(**given)


def test_a_better_candidate_is_accepted(tmp_path, method):
    state, _ = improve(settings(tmp_path))
    assert state.improved and state.policy == state.last.candidate != str(tmp_path / "run")
    assert (state.last.episodes, state.last.successes) == (30, 15)
    assert state.last.why.startswith("the candidate is better: +8")
    assert state.checked == {"same": 30, "other": 0}
    assert read_state(tmp_path / "out") == state
    # asked again, nothing is done again
    assert improve(settings(tmp_path))[0] == state and method.fits == 1


@pytest.mark.parametrize("step_m", [0.1, 0.2, -1.0])
def test_an_update_that_is_not_better_is_rejected_and_the_policy_is_what_it_was(tmp_path, method, step_m):
    given = settings(tmp_path)
    before = policy_digest(given.policy)
    method.step_m = step_m
    state, _ = improve(given)
    assert not state.improved and state.last.gate["outcome"] in ("worse", "not better")
    assert state.policy == str(given.policy) and policy_digest(given.policy) == before == state.digest


def test_a_blind_critic_ends_the_round_before_the_gate(tmp_path, method):
    method.critic = HeldOutQuality(0.05, 0.52, 10)
    state, _ = improve(settings(tmp_path))
    assert not state.improved and state.last.gate is None and state.last.refusal["kind"] == "a blind critic"


def test_a_method_that_writes_to_the_policy_is_found_out(tmp_path, method, monkeypatch):
    given = settings(tmp_path)

    def fit(policy, data, out, fit_settings):
        next(policy.rglob("*.safetensors")).write_bytes(b"")
        return SetStepMethod(1.0).fit(policy, data, out, fit_settings)

    monkeypatch.setattr(method, "fit", fit)
    with pytest.raises(DataError, match="was changed since the improvement began"):
        improve(given)


class Stopped(Exception):
    pass


def test_a_round_that_stops_at_any_stage_goes_on_to_the_same_end(tmp_path, method):
    method.step_m = 0.27
    whole = settings(tmp_path, rounds=2, collect_episodes=20, out=tmp_path / "whole")
    seen: list[tuple[int, str]] = []
    expected, _ = improve(whole, lambda *at: seen.append(at))
    assert [stage for _, stage in seen] == ["read", *2 * ["collect", "label", "fit", "gate"]]
    parts = whole._replace(out=tmp_path / "parts")
    for stop in seen:

        def on_stage(*at, stop=stop):
            if at == stop:
                raise Stopped

        with pytest.raises(Stopped):
            improve(parts, on_stage)
    found, _ = improve(parts)

    def renamed(state):
        return json.loads(json.dumps(state).replace(str(whole.out), str(parts.out)))

    assert renamed(found) == renamed(expected)
    for name in ("episodes-0", "episodes-2", "round-1/data", "round-2/data"):
        files = sorted(path for path in (whole.out / name).rglob("*") if path.is_file())
        assert files and all(
            path.read_bytes() == (parts.out / path.relative_to(whole.out)).read_bytes() for path in files
        )


def test_a_killed_fit_goes_on_and_gives_the_same_policy(tmp_path):
    whole = settings(tmp_path, out=tmp_path / "whole", settings=SMALL)
    expected, _ = improve(whole)
    killed = whole._replace(out=tmp_path / "killed")
    (tmp_path / "settings.pickle").write_bytes(pickle.dumps(killed))
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "settings.pickle")], capture_output=True, text=True
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len((killed.out / "round-1" / "fit" / "run" / "scalars.jsonl").read_text().splitlines()) == 2
    assert read_state(killed.out).stage == "fit"
    (killed.out / "round-1" / ".data.partial-0000").mkdir()
    found, _ = improve(killed)
    assert found.last.gate["verdict"]["sides"][1]["success"] == expected.last.gate["verdict"]["sides"][1]["success"]
    weights = [load_policy(state.last.candidate).state_dict() for state in (found, expected)]
    assert all(bool((weights[0][name] == value).all()) for name, value in weights[1].items())


def test_a_folder_of_other_settings_is_refused(tmp_path, method):
    improve(settings(tmp_path))
    with pytest.raises(ConfigError, match=r"it was begun with detect 0\.1, now 0\.2"):
        improve(settings(tmp_path, detect=0.2))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    with pytest.raises(ConfigError, match=r"it holds notes and no state.json"):
        improve(settings(tmp_path, out=tmp_path / "mine"))


def test_starts_that_were_learned_from_do_not_judge(tmp_path, method):
    with pytest.raises(ConfigError, match="--split is 'train': 30 starts of the logs are of it, the first is 0"):
        improve(settings(tmp_path, split="train"))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"rounds": 0}, "--rounds is 0"),
        ({"rounds": 2}, "expected --collect-episodes N beside it"),
        ({"logs": ()}, "--logs is not given"),
        ({"collect_episodes": 5, "in_sim": False}, "beside --no-sim"),
        ({"trials": (Path("a"), Path("b"))}, "expected --no-sim"),
        ({"method": "pa-rll"}, "did you mean 'pa-rl'"),
        ({"detect": 2.0}, "--detect is 2"),
    ],
)
def test_settings_are_checked(tmp_path, given, says):
    with pytest.raises(ConfigError, match=says):
        improve(settings(tmp_path, **given))


def test_without_a_sim_only_trials_on_the_robot_change_the_policy(tmp_path, method):
    given = settings(tmp_path, in_sim=False)
    state, _ = improve(given)
    assert not state.improved and state.last.gate["outcome"] == "no evidence"
    assert state.last.why == "no sim stands for the robot: nothing shows that the candidate is better"
    before = write_control_log(tmp_path / "before.jsonl", [walked(i, 0.2) for i in range(60)])
    after = [
        write_control_log(tmp_path / f"{i}.jsonl", [walked(k, 1.0) for k in range(i)], bundle_id="c" * 64)
        for i in (4, 60)
    ]
    with pytest.raises(ConfigError, match="are of one bundle"):
        improve(given._replace(trials=(before, before)))
    # four starts say nothing yet; sixty do
    few, _ = improve(given._replace(trials=(before, after[0])))
    assert not few.improved and few.last.gate["outcome"] == "open"
    many, _ = improve(given._replace(trials=(before, after[1])))
    assert many.improved and many.policy == many.last.candidate
    assert "on 60 starts of the robot the candidate's success is +80.0 points" in many.last.why
    with pytest.raises(ConfigError, match="waits for evidence"):
        improve(given._replace(trials=(before, after[1])))


def test_a_bundle_is_traced_to_its_run_and_comes_out_as_a_bundle(tmp_path, method, monkeypatch):
    given = settings(tmp_path)
    bundle = tmp_path / "walk.bundle"
    # enough starts for the observations that an export records
    monkeypatch.setitem(walk_sim.SPLITS, "val", range(2000, 2600))
    export(given.policy, bundle)
    (fault,) = improve(given._replace(policy=bundle, out=tmp_path / "other"))[0].faults
    assert fault["kind"] == "another bundle" and "bundle_id is bbbbbbbbbbbb: expected" in fault["text"]
    write_control_log(given.logs[0], mixed(30), bundle_id=open_bundle(bundle).manifest.bundle_id)
    state, target = improve(given._replace(policy=bundle))
    assert target.policy == tmp_path / "run" / "checkpoints" / "step_000000001"
    assert state.improved and state.bundle == str(tmp_path / "out" / "bundle")
    # the new bundle can be improved again
    assert read_target(Path(state.bundle)).policy == Path(state.policy) / "checkpoints" / "step_000000001"
    bundle.rename(tmp_path / "run" / "walk.bundle")
    with pytest.raises(ConfigError, match="no weights that could be trained: it was exported from step 1 of the run"):
        read_target(tmp_path / "run" / "walk.bundle")


def test_the_command_writes_page_and_json(tmp_path, method, capsys):
    method.critic = HeldOutQuality(0.61, 0.87, 10, 0.03)
    given = settings(tmp_path)
    out = tmp_path / "out"
    words = ["improve", str(given.policy), "--logs", str(tmp_path / "a.jsonl"), "--out", str(out), "--num-envs", "20"]
    assert main(words) == 0
    said = capsys.readouterr().out
    # fifteen walks of six steps, and three of each of 6, 5, 4, 3 and 2 steps
    assert "logs: 30 episodes, 150 steps; success 50.0 % (95 % interval 33.2 to 66.8 %)" in said
    assert "critic on 10 held-out episodes: AUC 0.87, rank 0.61" in said
    assert "accepted: the candidate is better" in said and "result: The new policy is better" in said
    plain = json.loads((out / "improve.json").read_text())
    assert plain["outcome"] == "improved" and plain["rounds"][0]["accepted"]
    assert plain["holdings"]["success"]["value"] == 0.5 and len(plain["holdings"]["elements"]) == 1
    page = (out / "improve.html").read_text()
    assert "img" not in dict(Page(page).tags), "the walk has no camera"
    for text in (
        "The new policy is better",
        "Gate of round 1: better",
        "Content of the logs",
        "AUC 0.87",
        "worth +0.030 more",
        "walk/pos_x_w",
    ):
        assert text in page


def test_faults_of_the_logs_end_in_no_change(tmp_path, method, capsys):
    given = settings(tmp_path)
    write_control_log(tmp_path / "a.jsonl", mixed(30), control_period_s=0.05)
    out = tmp_path / "out"
    assert main(["improve", str(given.policy), "--logs", str(tmp_path / "a.jsonl"), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "fault, another rate: a.jsonl: control_period_s is 0.05 s" in said and "result: No change" in said
    plain = json.loads((out / "improve.json").read_text())
    assert plain["outcome"] == "no change" and plain["policy"] == str(given.policy) and plain["holdings"] is None
    assert "Faults of the logs" in (out / "improve.html").read_text() and method.fits == 0
    assert main(["improve", str(given.policy), "--logs", "a.jsonl", "--set", "algo.updates"]) == 2
    assert "--set algo.updates: expected NAME=VALUE" in capsys.readouterr().err
