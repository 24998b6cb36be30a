"""Cells of the table of improvement at the smallest size: on walks that can be worked out by hand, and on one arm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.finetune.bench import TASKS, Task
from benchmarks.finetune.cell import base_cfg
from benchmarks.improve import classes, condition, log_only, planted, retries, rounds
from benchmarks.improve.clones import Clone
from benchmarks.improve.plan import CLASSES, LOG_ONLY, Rounds
from robotrl.datasets.reader import read_dataset
from robotrl.improve.pieces import write_episodes, write_pieces
from robotrl.improve.target import read_target
from robotrl.labels.sidecar import labels_path, read_label, write_labels
from robotrl.policies.conditioned import ConditionedCfg, ConditionedChainPolicy
from robotrl.policies.flow import FlowCfg
from robotrl.registry import METHODS, SIMS
from robotrl.rollout.evaluate import Turn
from robotrl.spec import Spec
from robotrl.transforms import TransformGroup
from tests.kits.improve_kit import SIM, SetStepMethod, mixed, walker

STARTS = 20


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    """A policy that succeeds from two starts of five, with walks of both outcomes as its demonstrations."""
    monkeypatch.setitem(SIMS._rows, SIM, "tests.kits.improve_kit:WalkOptions")
    run, demos = walker(tmp_path / "base", 0.3), tmp_path / "demos"
    write_episodes(demos, mixed(6), read_target(run))
    return Clone(Task(SIM, 6, 0.0, 0.0, 0, {"flow": 2}), 0, tmp_path, run, demos, "mark", STARTS)


@pytest.fixture
def method(monkeypatch: pytest.MonkeyPatch) -> SetStepMethod:
    """A method that sets the step, whatever it is called."""
    made = SetStepMethod(1.0)
    monkeypatch.setattr(METHODS, "load", lambda name: made)
    return made


def test_a_cell_of_rounds(clone: Clone, method: SetStepMethod) -> None:
    plan = Rounds("set step", "successes", 2, 25, ())
    found = rounds.run_cell(plan, clone)
    first, second = found["rounds"]
    assert first["accepted"] and not second["accepted"]
    assert found["base"]["value"] == first["before"]["value"] < first["candidate"]["value"] == found["success"]["value"]
    # the second round drives with the policy of the first one, and has nothing to gain
    assert second["before"] == first["policy"] and first["episodes"] == 25 and first["seconds"] > 0
    assert "--rounds 2 --collect-episodes 25" in found["command"] and found["verdict"]["outcome"] == "better"
    # asked again, nothing is done again
    fits = method.fits
    assert rounds.run_cell(plan, clone)["rounds"] == found["rounds"] and method.fits == fits


def test_the_time_of_rounds_is_kept_over_stops(tmp_path: Path) -> None:
    clock = rounds.StageClock(tmp_path / "s.json")
    clock(1, "collect")
    clock(1, "fit")
    again = rounds.StageClock(tmp_path / "s.json")
    assert again.stopped == 1 and set(again.seconds) == {"1"}
    again(1, "fit")
    again.finish()
    assert again.seconds["1"] > clock.seconds["1"] and rounds.StageClock(tmp_path / "s.json").stopped == 1


def test_a_cell_of_planted_updates(clone: Clone, method: SetStepMethod) -> None:
    method.step_m = 0.1
    fits: dict[str, dict[str, Any]] = {"pa-rl": {}, "successes": {}}
    sizes = planted.PlantedSizes(25, fits, ("sign",), {"own samples": 1, "other noise": 1})
    found = planted.run_cell(clone, sizes)
    assert [one["kind"] for one in found["tries"]] == ["sign", "sign", "own samples", "other noise"]
    assert not any(one["accepted"] for one in found["tries"]) and all(one["at_gate"] for one in found["tries"])
    assert found["tries"][0]["gain"] < 0
    fitted = method.fits
    assert planted.run_cell(clone, sizes) == found and method.fits == fitted


def test_spoiled_logs() -> None:
    episodes, rng = mixed(6), np.random.default_rng(0)
    shuffled = [one.success for one in planted.shuffled_outcomes(episodes, rng)]
    assert sorted(shuffled) == sorted(one.success for one in episodes)
    assert [one.success for one in planted.exchanged_outcomes(episodes, rng)] == [not one.success for one in episodes]
    seen, did = planted.other_observations(episodes, rng), planted.other_actions(episodes, rng)
    for name, spoiled in (("obs", [one.obs["walk"] for one in seen]), ("actions", [one.actions for one in did])):
        plain = [one.obs["walk"] if name == "obs" else one.actions for one in episodes]
        assert [len(x) for x in spoiled] == [len(x) for x in plain]
        both = [np.concatenate(x) for x in (spoiled, plain)]
        assert not np.array_equal(*both)
        assert np.array_equal(*(x[np.lexsort(x.T)] for x in both))


class Counting:
    """An expert whose action is the number of the step."""

    def __init__(self) -> None:
        self.at = torch.zeros(2)

    def act(self, obs: Any, turn: Turn) -> torch.Tensor:
        self.at[turn.started] = 0
        self.at += 1
        return self.at[:, None].clone()


def test_undone_steps_are_the_opposite_in_the_opposite_order() -> None:
    actor = retries.RetryActor(Counting(), {7: 3}, 2, 2)  # pyright: ignore[reportArgumentType]
    started, rows = torch.ones(2, dtype=torch.bool), []
    for _ in range(7):
        rows.append(actor.act({}, Turn(started, torch.tensor([7, 8])))[:, 0].tolist())
        started = torch.zeros(2, dtype=torch.bool)
    one, other = zip(*rows, strict=True)
    assert one == (1, 2, 3, -3, -2, 6, 7) and other == (1, 2, 3, 4, 5, 6, 7)


def test_losses_of_progress_stay_within_an_episode() -> None:
    progress, offsets = np.array([0.0, 0.5, 0.2, 0.6, 0.1]), np.array([0, 4, 5])
    assert retries.losses(progress, offsets, 2) == pytest.approx([0.0, 0.3, 0.0, 0.0, 0.0])
    assert retries.time_rank(progress, offsets, [0]) == pytest.approx(0.8)
    assert retries.time_rank(progress, offsets, []) is None


def test_a_cell_of_the_filter(tmp_path: Path) -> None:
    sizes = retries.FilterSizes(demos=6, clone_updates=2, value_updates=2, keep_delta=0.0)
    found = retries.run_cell(TASKS["peg-insert"], 0, tmp_path, sizes, starts=2)
    dataset = read_dataset(tmp_path / "demos")
    frames = retries.planted_frames(dataset)
    assert dataset.num_episodes == 6 and 0 < frames.sum() <= 15 * (dataset.episodes[retries.COUNT] > 0).sum()
    # an undone step is the opposite of the last one before
    first = int(np.argmax(frames))
    actions = dataset.frames("action")
    assert np.array_equal(actions[first], -actions[first - 1])
    assert 0 <= found["auc"] <= 1 and 0 < found["dropped"] < 1 and found["planted"] == frames.mean()
    keeps = [
        read_label(labels_path(tmp_path / "demos", name), "keep", tmp_path / "demos", dataset.num_frames)
        for name in ("filter", "random")
    ]
    assert keeps[0].sum() == keeps[1].sum() and not np.array_equal(*keeps)


@torch.no_grad()
def test_the_condition_is_turned_off() -> None:
    state = {"state": Spec((1,), ("a",), ("1",), (-1.0,), (1.0,))}
    base = FlowCfg(horizon=2, hidden=(8,)).build(state, Spec((1,), ("x",), ("1",), (-9.0,), (9.0,)), TransformGroup())
    policy = ConditionedCfg().build(base)
    assert isinstance(policy, ConditionedChainPolicy)
    for weight in policy.condition.parameters():
        weight.normal_(generator=torch.Generator().manual_seed(0))
    obs = {"state": torch.ones(1, 1)}
    on, off, without, plain = (
        one.act(obs, mode="mean").chunk for one in (policy, condition.negative(policy), condition.dropped(policy), base)
    )
    assert torch.allclose(without, plain) and not torch.allclose(on, off) and not torch.allclose(off, without)


def test_the_clone_of_the_positives_leaves_out_the_negatives(clone: Clone) -> None:
    data = clone.out / "data"
    write_pieces(data, mixed(4), read_target(clone.run))
    positive = np.arange(read_dataset(data).num_frames) % 2 == 0
    write_labels(data, "recap", {"positive": positive}, {})
    assert (condition.positives_run(clone, data, 2) / "config.json").is_file()
    both = clone.out / condition.POSITIVES
    keep = read_label(labels_path(both, condition.POSITIVES), "keep", both, read_dataset(both).num_frames)
    assert np.array_equal(keep[: len(positive)], positive) and keep[len(positive) :].all()


def test_classes_have_clones() -> None:
    for kind, one in CLASSES.items():
        task = classes.with_updates(TASKS["peg-insert"], kind)
        cfg = base_cfg(classes.base_of(kind), task, 0, Path("demos"))
        assert type(cfg.policy).__name__.lower() == f"{kind}cfg" and one.updates in (None, cfg.algo.updates)


def test_trainings_in_log_only_mode_have_configs(clone: Clone) -> None:
    for name, one in LOG_ONLY.items():
        if one.way == "improve":
            continue
        cfg = log_only.cfg_of(one, clone, "")
        assert (cfg.init_from is not None) == one.begins and cfg.evaluation.every == 0, name
        assert one.way == "online" or (cfg.algo.env_steps == 0 and cfg.algo.updates == 8_000), name


def test_a_cell_in_log_only_mode(clone: Clone, method: SetStepMethod) -> None:
    found = log_only.run_cell(LOG_ONLY["successes"], clone, 25)
    assert found["success"]["value"] > found["base"]["value"] and found["learn_s"] > 0


@pytest.mark.parametrize(("name", "changes"), [("iql", "--algo.updates 2"), ("rlpd-online", "--algo.warmup 10")])
def test_a_cell_of_a_training_in_log_only_mode(clone: Clone, name: str, changes: str) -> None:
    small = f"{changes} --algo.batch 8 --algo.engine eager --sim.num-envs 2"
    found = log_only.run_cell(LOG_ONLY[name], clone, 25, small)
    assert found["episodes"] == 25 and 0 <= found["success"]["value"] <= 1
