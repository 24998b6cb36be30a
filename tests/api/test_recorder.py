"""The recorder on real Gymnasium environments, a sim and a robot's specs; and the page that shows it."""

import re
import shlex

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import robotrl
from robotrl.api.recorder import Specs
from robotrl.cli.main import main
from robotrl.datasets.lerobot import read_dataset
from robotrl.errors import ConfigError, NumericsError
from robotrl.registry import make_sim
from robotrl.sims.gymnasium_sim.action_codec import action_codec
from robotrl.spec import Spec
from tests.kits.paths_kit import ROOT
from tests.kits.refusals import raises_naming

PAGE = ROOT / "docs" / "own-demonstrations.md"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SPECS = Specs(
    {"state": Spec((2,), ("a", "b"), ("m", "m"), (-9.0, -9.0), (9.0, 9.0))},
    Spec((1,), ("push",), ("N",), (-1.0,), (1.0,)),
)


def fall(recorder, env, seed: int, limit: int = 500) -> list[tuple[np.ndarray, int, float]]:
    """One episode of CartPole to its end, and what was recorded."""
    obs, _ = env.reset(seed=seed)
    seen = []
    recorder.start()
    over, truncated = False, False
    while not over:
        action = len(seen) % 2
        after, reward, terminated, truncated, _ = env.step(action)
        recorder.step(obs, action, reward)
        seen.append((obs.copy(), action, reward))
        obs, over = after, terminated or truncated
    recorder.end(success=False, truncated=truncated)
    return seen


def test_what_a_loop_did_is_what_is_read(tmp_path):
    env = gymnasium.make("CartPole-v1")
    with robotrl.Recorder(tmp_path / "d", env, task="balance") as recorder:
        seen = [fall(recorder, env, seed) for seed in (1, 2)]
    dataset = read_dataset(tmp_path / "d")
    assert dataset.episodes["length"].tolist() == [len(episode) for episode in seen]
    for number, episode in enumerate(seen):
        np.testing.assert_array_equal(dataset.episode(number)["observation.state"], [obs for obs, _, _ in episode])
        np.testing.assert_array_equal(dataset.episode(number)["action"].ravel(), [action for _, action, _ in episode])
        np.testing.assert_array_equal(dataset.episode(number)["next.reward"], [reward for _, _, reward in episode])
    assert dataset.fps == 50
    assert dataset.tasks == ("balance",)
    # so that it is cloned in the sim
    sim = make_sim("gym/CartPole-v1", 1)
    assert (dataset.observation_spec, dataset.action_spec) == (sim.observation_spec, sim.action_spec)
    assert dataset.provenance["sim"] == "gym/CartPole-v1"


def test_an_exception_loses_the_episode_under_way_alone(tmp_path, capsys):
    env = gymnasium.make("CartPole-v1")
    with (
        pytest.warns(UserWarning, match="episode under way was not ended: its 1 steps are dropped"),
        pytest.raises(ZeroDivisionError),
        robotrl.Recorder(tmp_path / "d", env) as recorder,
    ):
        fall(recorder, env, 1)
        obs, _ = env.reset()
        recorder.start()
        recorder.step(obs, 0, 1.0)
        raise ZeroDivisionError
    assert "the 1 episodes that were ended are written" in capsys.readouterr().err
    assert read_dataset(tmp_path / "d").num_episodes == 1


def test_without_an_ended_episode_nothing_is_written(tmp_path):
    with pytest.raises(ZeroDivisionError), robotrl.Recorder(tmp_path / "d", SPECS, fps=10):
        raise ZeroDivisionError
    with pytest.raises(ConfigError, match="has 0 episodes"), robotrl.Recorder(tmp_path / "d", SPECS, fps=10) as rec:
        rec.start()
        rec.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_discarded_episode_is_not_there_and_each_may_have_its_task(tmp_path):
    with robotrl.Recorder(tmp_path / "d", SPECS, fps=10) as recorder:
        for number in range(3):
            recorder.start(task=f"push {number}")
            recorder.step(np.array([number, 0.0]), [0.5], 1.0)
            if number == 1:
                recorder.discard()
            else:
                recorder.end(success=number == 2)
    dataset = read_dataset(tmp_path / "d")
    assert dataset.frames("observation.state")[:, 0].tolist() == [0.0, 2.0]
    assert dataset.tasks == ("push 0", "push 2")
    assert dataset.episodes["success"].tolist() == [False, True]


def test_what_is_recorded_is_copied(tmp_path):
    obs = np.zeros(2)
    with robotrl.Recorder(tmp_path / "d", SPECS, fps=10) as recorder:
        recorder.start()
        for value in (1.0, 2.0):
            obs[:] = value
            recorder.step(obs, np.array([0.0]), 0.0)
        recorder.end(success=True)
    assert read_dataset(tmp_path / "d").frames("observation.state").tolist() == [[1.0, 1.0], [2.0, 2.0]]


def test_a_sim_of_one_env_is_recorded_from_its_tensors(tmp_path):
    sim = make_sim("mujoco/reach", num_envs=1, seed=0)
    obs = sim.reset(seed=0)
    with robotrl.Recorder(tmp_path / "d", sim) as recorder:
        recorder.start()
        for _ in range(3):
            action = obs["state"][:, :4] * 0
            before = {key: value.clone() for key, value in obs.items()}
            step = sim.step(action)
            recorder.step(before, action, float(step.reward[0]))
            obs = step.obs
        recorder.end(success=False)
    assert read_dataset(tmp_path / "d").fps == 20
    assert read_dataset(tmp_path / "d").observation_spec == sim.observation_spec


@pytest.mark.parametrize(
    ("obs", "action", "error", "message"),
    [
        ({"sate": [0, 0]}, [0], ConfigError, r"step 0 of episode 0: obs 'sate' is unknown: did you mean 'state'"),
        ({}, [0], ConfigError, "obs 'state' is missing: expected state"),
        ([0, 0, 0], [0], ConfigError, r"obs 'state' is int64 of shape \(3,\): expected numbers of shape \(2,\)"),
        ([0, np.inf], [0], NumericsError, "obs 'state': 'b' is inf: expected a finite number"),
        ([0, 0], [0, 0], ConfigError, r"action is int64 of shape \(2,\): expected numbers of shape \(1,\)"),
        ([0, 0], [np.nan], NumericsError, "action: 'push' is nan"),
        ([0, 0], "left", ConfigError, "action is <U4 of shape"),
    ],
)
def test_steps_that_cannot_be(tmp_path, obs, action, error, message):
    recorder = robotrl.Recorder(tmp_path / "d", SPECS, fps=10)
    recorder.start()
    with pytest.raises(error, match=message):
        recorder.step(obs, action, 0.0)
    with raises_naming(NumericsError, "reward", "nan"):
        recorder.step([0, 0], [0], float("nan"))


def test_calls_out_of_order_and_environments_that_cannot_be(tmp_path):
    recorder = robotrl.Recorder(tmp_path / "d", SPECS, fps=10)
    for call, message in (
        (lambda: recorder.step([0, 0], [0]), r"step\(\) without an episode: expected start\(\) first"),
        (lambda: recorder.end(success=True), r"end\(\) without an episode"),
        (recorder.start, None),
        (lambda: recorder.end(success=True), r"end\(\) in an episode of 0 steps"),
        (recorder.start, r"start\(\) in an episode of 0 steps: expected end"),
    ):
        if message is None:
            call()
            continue
        with pytest.raises(ConfigError, match=message):
            call()
    with pytest.raises(ConfigError, match=r"control_dt_s is not stated by the sim: expected fps, in Hz"):
        robotrl.Recorder(tmp_path / "e", SPECS)
    with pytest.raises(ConfigError, match=r"env is a int: expected a gymnasium.Env, a sim, or Specs"):
        robotrl.Recorder(tmp_path / "e", 3, fps=10)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("space", "given", "flat"),
    [
        (spaces.Discrete(3, start=5), [[5], [7]], [[0.0], [2.0]]),
        (spaces.MultiDiscrete([2, 1, 3]), [[1, 0, 2]], [[1.0, 2.0]]),
        (spaces.MultiBinary(2), [[1, 0]], [[1.0, 0.0]]),
        (spaces.Box(-1, np.array([[1.0, -1.0, 3.0]], np.float32)), [[[0.5, -1.0, 2.0]]], [[0.5, 2.0]]),
    ],
)
def test_actions_of_an_environment_become_the_sims_and_back(space, given, flat):
    codec = action_codec(space)
    values = np.array(given).reshape(len(given), *space.shape)
    assert codec.encode(values).tolist() == flat
    np.testing.assert_array_equal(codec.decode(codec.encode(values)), values)


@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(3)])
def test_scores_choose_the_action_that_was_encoded(space):
    codec = action_codec(space, actions="scores")
    values = np.stack([space.sample() for _ in range(20)])
    np.testing.assert_array_equal(codec.decode(codec.encode(values)), values)


SMALLER = {
    "demos": ("--episodes", "3", "--keep", "all"),
    "train": (
        *("--algo.updates", "2", "--algo.updates-per-iteration", "1", "--algo.batch", "8", "--policy.hidden", "16"),
        *("--evaluation.episodes", "2", "--evaluation.num-envs", "2", "--evaluation.animation", "0"),
        *("--sim.limit-steps", "20"),
    ),
    "eval": ("--episodes", "2"),
}


def test_the_page_runs(tmp_path, monkeypatch):
    """Each block in the page's order; the part of a person needs one, and has tests of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    names: dict[str, object] = {}
    text = PAGE.read_text()
    person = text[text.index("## Teleoperation") : text.index("## Your own loop")]
    for language, code in BLOCK.findall(text.replace(person, "")):
        if code.startswith("# "):
            (tmp_path / code.split()[1]).write_text(code)
        elif language == "python":
            exec(compile(code.replace("range(40)", "range(3)"), "page", "exec"), names)
        else:
            for line in code.splitlines():
                words = shlex.split(line)[1:]
                words = (
                    words[: words.index("--episodes")] + words[words.index("--episodes") + 2 :]
                    if "--episodes" in words
                    else words
                )
                assert main([*words, *SMALLER[words[0]]]) == 0, line
    ended = read_dataset(tmp_path / "demos" / "loop")
    assert ended.num_episodes == 3
    # the controller of the page swings up: from any start, upright and at rest when the time is over
    assert (ended.frames("observation.state")[ended.offsets[1:] - 1, 0] > 0.95).all()
    assert read_dataset(tmp_path / "demos" / "swing-up").provenance["expert"]["name"] == "swing_up:expert"
    assert (tmp_path / "runs" / "loop" / "checkpoints").is_dir()
    assert (
        main(
            ["demos", "gym/Pendulum-v1", "--expert", "nervous:Expert", "--out", "n", "--keep", "all", "--episodes", "2"]
        )
        == 0
    )
