"""Logs of a robot, as they should be and as they should not: each fault is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from robotrl.datasets.writer import DatasetWriter
from robotrl.errors import ConfigError, DataError
from robotrl.improve.control_logs import CUT, GAPS, marks_path, read_control_log
from robotrl.improve.dataset_logs import contradiction, read_dataset_log
from robotrl.improve.gather import gather
from robotrl.improve.outcomes import check_outcomes
from robotrl.improve.pieces import write_episodes
from robotrl.improve.target import Target, policy_digest, read_target
from robotrl.labels.corrections import spans_mask, spans_text
from robotrl.registry import SIMS
from tests.kits import walk_sim
from tests.kits.improve_kit import HEADER, SIM, mixed, walked, walker, write_control_log


@pytest.fixture(autouse=True)
def _walk(monkeypatch):
    monkeypatch.setitem(SIMS._rows, SIM, "tests.kits.walk_sim:make")


@pytest.fixture
def target(tmp_path) -> Target:
    return read_target(walker(tmp_path / "run", 0.2))


def equal(found, expected) -> None:
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a.obs["walk"], b.obs["walk"])
        np.testing.assert_array_equal(a.actions, b.actions)
        np.testing.assert_array_equal(a.person, b.person)
        assert (a.success, a.start, a.sim) == (b.success, b.start, b.sim)


def test_a_control_log_gives_the_episodes_that_were_driven(tmp_path, target):
    episodes = mixed(4)
    book = read_control_log(write_control_log(tmp_path / "a.jsonl", episodes), target)
    equal(book.episodes, episodes)
    assert (book.faults, book.left_out, book.bundles) == ((), {}, frozenset({HEADER["bundle_id"]}))
    assert book.episodes[2].origin == "a.jsonl episode 3"


def test_episodes_that_a_fault_cut_short_are_no_failures(tmp_path, target):
    path = write_control_log(tmp_path / "a.jsonl", mixed(4))
    lines = path.read_text().splitlines()
    # the second episode never ended, the third missed a control period, the fourth ended damped
    ends = [i for i, line in enumerate(lines) if '"kind": "episode"' in line]
    del lines[ends[2] - 2], lines[ends[1]]
    last = json.loads(lines[-2])
    lines[-2] = json.dumps({**last, "mode": 2, "reason": 256 | 1})
    path.write_text("\n".join(lines) + "\n")
    book = read_control_log(path, target)
    equal(book.episodes, mixed(1))
    assert book.left_out == {CUT: 2, GAPS: 1}


@pytest.mark.parametrize(
    ("header", "kind", "says"),
    [
        ({"robot": "sim:mujoco/reach"}, "another robot", "mujoco/reach: expected test/walk"),
        ({"control_period_s": 0.05}, "another rate", "0.05 s: expected 0.1 s"),
        ({"action": ["turn"]}, "another robot", "'step_x_w', 'turn'"),
        ({"observations": {"walk": ["time", "pos_x_w"]}}, "another order", "element 0 of observation 'walk' is 'time'"),
        ({"observations": {"eye": ["pos_x_w", "time"]}}, "another observation", "'walk' is missing, there is eye"),
        ({"action_units": ["rad"]}, "another unit", "'step_x_w' of action is in 'rad': expected 'm'"),
        ({"dry_run": True}, "nothing was sent", "a dry run sends no action"),
    ],
)
def test_a_log_of_another_robot_is_named(tmp_path, target, header, kind, says):
    path = write_control_log(tmp_path / "a.jsonl", mixed(2), **header)
    if "eye" in header.get("observations", {}):
        path.write_text(path.read_text().replace('"obs": {"walk"', '"obs": {"eye"'))
    (fault,) = read_control_log(path, target).faults
    assert fault.kind == kind and says in fault.text and fault.text.startswith("a.jsonl")


def test_a_log_of_another_bundle_is_named(tmp_path, target):
    logs = [
        write_control_log(tmp_path / f"{name}.jsonl", mixed(2, first), bundle_id=name * 64)
        for name, first in (("a", 0), ("c", 2))
    ]
    (fault,) = gather(logs, target).faults
    assert fault.kind == "another bundle" and "aaaaaaaaaaaa, cccccccccccc" in fault.text
    with pytest.raises(ConfigError, match=r"--logs names .*a.jsonl twice"):
        gather([logs[0], tmp_path / "a.jsonl"], target)
    assert len(gather([tmp_path], target).bundles) == 2
    with pytest.raises(DataError, match="holds no log"):
        gather([tmp_path / "run" / "checkpoints"], target)


def test_corrections_of_a_person_have_to_be_marked(tmp_path, target):
    path = write_control_log(tmp_path / "a.jsonl", mixed(2), sent={(2, 1): 0.7, (2, 2): 0.7})
    (fault,) = read_control_log(path, target).faults
    assert fault.kind == "corrections without marks"
    assert "episode 2: at tick 1 the robot was sent another action" in fault.text
    mark = {"episode": 2, "first_tick": 1, "last_tick": 2}
    marks_path(path).write_text(json.dumps({"schema_version": 1, "corrections": [mark]}))
    book = read_control_log(path, target)
    assert not book.faults and not book.episodes[0].person.any()
    assert book.episodes[1].person[:4].tolist() == [False, True, True, False]
    marks_path(path).write_text(json.dumps({"schema_version": 1, "corrections": [{**mark, "last_tick": 99}]}))
    with pytest.raises(DataError, match=r"corrections\[0\] marks 2:1 to 99: the log has ticks 0 to"):
        read_control_log(path, target)


def test_a_dataset_keeps_episodes_with_their_marks(tmp_path, target):
    episodes = mixed(3)
    person = np.zeros(len(episodes[1].actions), np.bool_)
    person[[1, 3]] = True
    episodes[1] = episodes[1]._replace(person=person)
    write_episodes(tmp_path / "data", episodes, target)
    book = read_dataset_log(tmp_path / "data", target)
    equal(book.episodes, episodes)
    assert [episode.truncated for episode in book.episodes] == [episode.truncated for episode in episodes]
    assert spans_text(person) == "1-1 3-3" and (spans_mask("1-1 3-3", len(person)) == person).all()
    with pytest.raises(ValueError, match="'3-9': expected FIRST-LAST, two frames from 0 to 4"):
        spans_mask("3-9", 5)


def dataset(path: Path, extra: dict, provenance: dict | None = None, fps: int = 10) -> Path:
    sim, episode = walk_sim.make(1, 0), walked(2, 0.5)
    specs = {"observation_spec": sim.observation_spec, "action_spec": sim.action_spec}
    with DatasetWriter(path, fps=fps, **specs, provenance=provenance) as writer:
        rewards = np.zeros(len(episode.actions))
        writer.add_episode(episode.obs, episode.actions, rewards, success=episode.success, task="walk", extra=extra)
        return writer.finish()


@pytest.mark.parametrize(
    ("extra", "provenance", "fps", "kind", "says"),
    [
        ({"intervened": True}, {}, 10, "corrections without marks", "expected the column 'corrections'"),
        ({}, {"sim": "mujoco/reach"}, 10, "another robot", "sim is 'mujoco/reach': expected 'test/walk'"),
        ({}, {}, 20, "another rate", "is at 20 Hz: expected 10 Hz"),
        ({}, {"expert": {"labels": "intended"}}, 10, "other actions", "expected 'executed'"),
    ],
)
def test_a_dataset_that_does_not_fit_is_named(tmp_path, target, extra, provenance, fps, kind, says):
    path = dataset(tmp_path / "data", extra, provenance, fps)
    (fault,) = read_dataset_log(path, target).faults
    assert fault.kind == kind and says in fault.text


def test_a_dataset_may_mark_faults_and_corrections(tmp_path, target):
    book = read_dataset_log(dataset(tmp_path / "a", {"fault": True}), target)
    assert (book.episodes, book.left_out) == ((), {CUT: 1})
    with pytest.raises(DataError, match=r"corrections is '2-7': '2-7': expected FIRST-LAST"):
        read_dataset_log(dataset(tmp_path / "b", {"corrections": "2-7"}), target)
    assert contradiction(True, np.array([False, False])).startswith("success is True in meta/episodes")
    assert contradiction(True, np.array([True, True])).startswith("next.success is set at frame 0, and 1 is the last")
    assert contradiction(True, np.array([False, True])) == ""


def test_the_sim_tells_outcomes_again_where_it_repeats_the_motion():
    episodes = mixed(10)
    # the same start twice, a start of another sim, and a motion that the sim does not repeat
    episodes += [walked(1, 0.1), walked(3, 0.5)._replace(sim="other")]
    elsewhere = walked(4, 0.1)
    episodes.append(elsewhere._replace(obs={"walk": elsewhere.obs["walk"] + np.float32(0.1)}))
    sim = walk_sim.make(4, 0)
    assert check_outcomes(episodes, SIM, sim)[:2] == (11, 2)
    episodes[3] = episodes[3]._replace(success=not episodes[3].success)
    (fault,) = check_outcomes(episodes, SIM, sim).faults
    assert fault.kind == "contradicted success"
    assert fault.text.startswith("start 3 is told as a failure, the task says a success, for the same motion")


def test_a_digest_changes_with_any_byte_of_a_checkpoint(tmp_path, target):
    before = policy_digest(target.policy)
    (tmp_path / "run" / "note.txt").write_text("a note changes nothing")
    assert policy_digest(target.policy) == before
    file = next(path for path in (tmp_path / "run" / "checkpoints").rglob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    assert policy_digest(target.policy) != before
