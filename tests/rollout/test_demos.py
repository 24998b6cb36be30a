import random

import numpy as np
import pytest
import torch

from robotrl.datasets.lerobot import read_dataset
from robotrl.errors import ConfigError, DataError
from robotrl.registry import make_sim
from robotrl.rollout.demos import collect_demos
from robotrl.rollout.evaluate import ExpertActor, run_episodes
from robotrl.rollout.intended import IntendedActor
from tests.kits.data_helpers import tree

SIM = "mujoco/peg-insert"


def test_the_first_successes_of_the_list_are_kept(tmp_path):
    """With a tight time limit many starts fail; those kept are the list's first successes, whatever finished first."""
    options = {"limit_s": 0.95}
    report = collect_demos(
        SIM, tmp_path / "d", episodes=8, mode="left", seed=5, num_envs=3, keep="success", sim_options=options
    )
    sim = make_sim(SIM, num_envs=20, seed=1, **options)
    ids = random.Random(5).sample(sim.state_ids("train"), 8 * 20)
    runs = run_episodes(ExpertActor(sim.make_expert(mode="left")), sim, ids[: report.tried], record=True)
    wins = [run for run in runs if run.success]
    dataset = read_dataset(report.path)
    assert dataset.episodes["state_id"].tolist() == [run.state_id for run in wins]
    assert dataset.episodes["length"].tolist() == [run.length for run in wins]
    assert 8 < report.tried == report.success.episodes
    assert report.success.value == 8 / report.tried
    # the list's order is not the order of finishing, or this test would show nothing
    assert dataset.episodes["length"].tolist() != sorted(dataset.episodes["length"].tolist())
    for e, run in enumerate(wins):
        np.testing.assert_array_equal(dataset.episode(e)["action"], run.actions)
        np.testing.assert_array_equal(dataset.episode(e)["observation.state"], run.obs["state"][:-1])
        np.testing.assert_array_equal(dataset.episode(e)["next.reward"], run.rewards)


def test_same_arguments_give_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        collect_demos(SIM, tmp_path / name, episodes=6, noise=0.1, episode_noise=0.5, seed=2, num_envs=4)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    collect_demos(SIM, tmp_path / "c", episodes=6, noise=0.1, episode_noise=0.5, seed=3, num_envs=4)
    assert tree(tmp_path / "a") != tree(tmp_path / "c")


def test_what_is_written(tmp_path):
    report = collect_demos(SIM, tmp_path / "d", episodes=10, noise=0.05, seed=0, task="put the peg into the hole")
    dataset = read_dataset(report.path)
    assert dataset.verified
    assert (dataset.num_episodes, dataset.num_frames) == (report.episodes, report.frames)
    assert dataset.fps == 20
    assert dataset.tasks == ("put the peg into the hole",)
    expert = {"noise": 0.05, "episode_noise": 0.0, "mode": None, "labels": "executed"}
    assert dataset.provenance["expert"] == expert
    assert (dataset.provenance["sim"], dataset.provenance["seed"]) == (SIM, 0)
    assert {"left", "right"} == set(dataset.episodes["mode"]) == set(report.modes)
    assert sum(report.modes.values()) == 10
    sim = make_sim(SIM, num_envs=1)
    assert dataset.observation_spec == sim.observation_spec
    assert dataset.action_spec == sim.action_spec
    assert dataset.episodes["success"].all()
    ends = dataset.offsets[1:] - 1
    for name in ("next.done", "next.success", "next.reward"):
        assert np.flatnonzero(dataset.frames(name)).tolist() == ends.tolist()
    assert not dataset.frames("next.truncated").any()
    assert all(int(start) in sim.state_ids("train") for start in dataset.episodes["state_id"])


def test_each_episode_has_the_task_that_it_was_told(tmp_path):
    options = {"families": "point,lift"}
    report = collect_demos("mujoco/tabletop", tmp_path / "d", episodes=12, num_envs=5, sim_options=options)
    dataset = read_dataset(report.path)
    sim = make_sim("mujoco/tabletop", num_envs=12, **options)
    starts = dataset.episodes["state_id"].tolist()
    sim.queue_states(starts)
    sim.reset()
    instructions = sim.instructions()
    assert {sim.scenario_of(start) for start in starts} == {"point", "lift"}
    assert len(set(instructions)) > 2
    assert [tasks.tolist() for tasks in map(np.asarray, dataset.episodes["tasks"])] == [[text] for text in instructions]
    assert dataset.tasks == tuple(dict.fromkeys(instructions))
    said = [dataset.tasks[index] for index in dataset.frames("task_index")]
    assert said == [
        text for text, length in zip(instructions, dataset.episodes["length"], strict=True) for _ in range(length)
    ]
    numbers = dataset.frames("observation.instruction")
    assert [" ".join(sim.vocabulary[n] for n in row if n) for row in numbers] == said


def test_a_sim_that_says_nothing_gives_its_name_and_a_text_of_ones_own_goes_first(tmp_path):
    assert read_dataset(collect_demos(SIM, tmp_path / "d", episodes=2).path).tasks == ("peg insert",)
    options = {"families": "point"}
    own = collect_demos("mujoco/tabletop", tmp_path / "own", episodes=2, task="point at it", sim_options=options)
    assert read_dataset(own.path).tasks == ("point at it",)


def test_failures_are_kept_when_asked_for(tmp_path):
    report = collect_demos(SIM, tmp_path / "d", episodes=4, keep="all", sim_options={"limit_s": 0.5})
    dataset = read_dataset(report.path)
    assert dataset.episodes["length"].tolist() == [10] * 4
    assert not dataset.episodes["success"].any()
    assert np.flatnonzero(dataset.frames("next.truncated")).tolist() == [9, 19, 29, 39]
    assert (report.tried, report.success.value) == (4, 0.0)


def test_intended_labels_are_the_experts_own_actions_in_the_states_that_noise_leads_to():
    sim = make_sim(SIM, num_envs=4, seed=0)
    actor = IntendedActor(sim.make_expert(mode="left", seed=2), sim.action_spec, 0.2, seed=3)
    executed: list[torch.Tensor] = []
    step = sim.step

    def spy(actions):
        executed.append(actions.clone())
        return step(actions)

    sim.step = spy
    runs = run_episodes(actor, sim, [5, 6, 7, 8], record=True)
    moved = torch.stack(executed, 1).numpy()
    for env, run in enumerate(runs):
        noise = moved[env, : run.length] - run.actions
        inside = np.abs(moved[env, : run.length]) < 1  # not clipped at a bound
        assert np.abs(noise).max() > 0.2
        np.testing.assert_allclose(noise[inside].std(), 0.2, rtol=0.25)
        # the state that follows is that of the executed action: the label alone would lead elsewhere
    twin = make_sim(SIM, num_envs=4, seed=0)
    clean = run_episodes(ExpertActor(twin.make_expert(mode="left", seed=2)), twin, [5, 6, 7, 8], record=True)
    for run, other in zip(runs, clean, strict=True):
        np.testing.assert_array_equal(run.actions[0], other.actions[0])  # the same start, the same intention
        assert np.abs(run.obs["state"][1] - other.obs["state"][1]).max() > 1e-4


def test_without_noise_intended_and_executed_labels_are_the_same_dataset(tmp_path):
    for labels in ("executed", "intended"):
        collect_demos(SIM, tmp_path / labels, episodes=3, mode="left", num_envs=3, labels=labels)
    one, other = (read_dataset(tmp_path / labels) for labels in ("executed", "intended"))
    for e in range(3):
        np.testing.assert_array_equal(one.episode(e)["action"], other.episode(e)["action"])


def test_an_expert_that_cannot_is_reported(tmp_path):
    with pytest.raises(DataError, match="the expert solved 0 of 40 starts: expected 2 successes"):
        collect_demos(SIM, tmp_path / "d", episodes=2, sim_options={"limit_s": 0.5})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sim_name": "mujoco/peg-insrt"}, "did you mean 'mujoco/peg-insert'"),
        ({"mode": "lefd"}, "did you mean 'left'"),
        ({"noise": -0.1}, r"noise is -0\.1: expected 0 to 1"),
        ({"episodes": 0}, "episodes is 0: expected 1 or more"),
        ({"num_envs": 0}, "num_envs is 0: expected 1 or more"),
        ({"keep": "failures"}, "keep is 'failures': expected 'success' or 'all'"),
        ({"labels": "intend"}, "labels 'intend' is unknown: did you mean 'intended'"),
        ({"labels": "intended", "noise": 2.0}, "noise is 2.0: expected a number from 0 to 1"),
        ({"sim_options": {"limits": 3}}, "did you mean 'limit_s'"),
    ],
)
def test_unusable_arguments(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        collect_demos(**{"sim_name": SIM, "out": tmp_path / "d", "episodes": 1, **changes})
    assert list(tmp_path.iterdir()) == []


def test_existing_dataset_is_kept(tmp_path):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        collect_demos(SIM, tmp_path, episodes=1)
    assert tree(tmp_path) == {"mine": b"mine"}
