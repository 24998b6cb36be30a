"""The best checkpoint: the newest of equals, and a second look where evaluations cannot tell them apart."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tests.kits.learner_kit as kit
from robotrl.config import EvalCfg, SimCfg, TrainCfg, check
from robotrl.errors import ConfigError
from robotrl.fn.choice import newest_best, undecided
from robotrl.registry import SIMS, make_sim
from robotrl.rollout.evaluate import evaluate
from robotrl.run.directory import Run
from robotrl.run.policy_checkpoint import load_policy
from robotrl.training import resume, train
from tests.kits.refusals import raises_naming


@pytest.fixture(autouse=True)
def walk_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIMS._rows, "test/walk", "tests.kits.walk_sim:make")


def test_the_newest_of_equals_is_the_best() -> None:
    assert newest_best({10: 0.9, 40: 0.992, 60: 0.992, 70: 0.992, 80: 0.98}) == 70


def test_what_cannot_be_told_apart_by_hand() -> None:
    # 127 of 128 is 95.7 to 99.9 %; 121 of 128 is 89.2 to 97.3 % and overlaps; 110 of 128 is 78.9 to 90.9 % and does not
    rates = {10: 110 / 128, 20: 127 / 128, 30: 121 / 128}
    assert undecided(rates, 128) == [20, 30]
    assert undecided({5: 0.0}, 4) == [5]


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.integers(0, 999), st.integers(0, 64), min_size=1, max_size=8), st.data())
def test_more_evidence_never_leaves_the_best_out(won: dict[int, int], data: st.DataObject) -> None:
    rates = {step: count / 64 for step, count in won.items()}
    found = undecided(rates, 64)
    assert newest_best(rates) in found and found == sorted(found)
    order = data.draw(st.permutations(list(rates)))
    assert undecided({step: rates[step] for step in order}, 64) == found
    assert newest_best({step: rates[step] for step in order}) == newest_best(rates)


def test_a_choice_goes_before_scores_while_it_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run.create(tmp_path / "r", {}, seed=0, command=[])
    for step, score in ((1, 0.5), (2, 1.0), (3, 1.0)):
        run.save({"x": step}, step=step, score=score)
    assert run.scores() == {1: 0.5, 2: 1.0, 3: 1.0}
    pointer = tmp_path / "r" / "checkpoints" / "best.json"
    assert json.loads(pointer.read_text())["step"] == 3
    run.choose(2, {2: 0.9, 3: 0.8}, 50)
    assert json.loads(pointer.read_text())["step"] == 2
    run.close()
    found = Run.open(tmp_path / "r").best()
    assert found is not None and found.step == 2
    choice = tmp_path / "r" / "checkpoints" / "choice.json"
    for content in (b"{", b"[]", b'{"schema_version": 9, "step": 2}', b'{"schema_version": 1, "step": "2"}'):
        choice.write_bytes(content)
        found = Run.open(tmp_path / "r").best()
        assert found is not None and found.step == 3
    assert "choice of the best checkpoint" in capsys.readouterr().err


def config(**evaluation: Any) -> TrainCfg[Any, Any]:
    return TrainCfg(
        sim=SimCfg("test/walk", 16),
        algo=replace(kit.PPO, env_steps=16 * 16 * 4),
        policy=kit.GAUSSIAN,
        evaluation=EvalCfg(every=1, episodes=4, num_envs=4, animation=0, **evaluation),
        keep=4,
    )


def test_a_second_look_is_on_other_starts_and_is_the_same_after_a_kill(tmp_path: Path) -> None:
    cfg = config(second_look=40)
    train(cfg, tmp_path / "r")
    path = tmp_path / "r" / "checkpoints" / "choice.json"
    choice = json.loads(path.read_text())
    sim = make_sim("test/walk", num_envs=3, seed=0)
    others = sim.state_ids("val")[4:44]
    folders = {int(f.name[5:]): f for f in path.parent.glob("step_*")}
    assert len(choice["among"]) > 1
    for row in choice["among"]:
        found = evaluate(load_policy(folders[row["step"]]), sim, ids=others, seed=cfg.seed)
        assert (row["success"], row["starts"]) == (found.rate.value, 40)
    assert choice["step"] == newest_best({row["step"]: row["success"] for row in choice["among"]})
    best = Run.open(tmp_path / "r").best()
    assert best is not None and best.step == choice["step"]
    # killed between the last checkpoint and the choice
    before = path.read_bytes()
    path.unlink()
    resume(tmp_path / "r")
    assert path.read_bytes() == before


def test_without_a_second_look_there_is_no_choice(tmp_path: Path) -> None:
    train(config(), tmp_path / "r")
    assert not (tmp_path / "r" / "checkpoints" / "choice.json").exists()


def test_second_looks_that_cannot_be(tmp_path: Path) -> None:
    with raises_naming(ConfigError, "evaluation.second_look", 97, 96):
        train(config(second_look=97), tmp_path / "r")
    with pytest.raises(ConfigError, match=r"evaluation\.second_look is 3 and evaluation\.score 'return': expected 0"):
        check(config(second_look=3, score="return"))
