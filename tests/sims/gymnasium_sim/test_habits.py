"""`gym/ID` with environments as people write them: what is handed over, probed, refused, and what counts as success."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import robotrl
from robotrl.errors import CapabilityError, ConfigError, RobotrlError
from robotrl.rollout.compatibility import check_fit
from robotrl.rollout.evaluate import evaluate
from robotrl.sims.gymnasium_sim.faults import EnvironmentFault
from robotrl.sims.gymnasium_sim.spaces import leaves
from robotrl.sims.gymnasium_sim.success import Judge, signal_of
from robotrl.spec import HasCamera, HasStateIds
from tests.kits.refusals import raises_naming

NOISY = "gym/tests.kits.gym_habits:Noisy-v0"


def make(name: str, num_envs: int = 2, **options: Any) -> Any:
    return robotrl.make_sim(f"gym/tests.kits.gym_habits:{name}-v0", num_envs=num_envs, **options)


def still(sim: Any) -> torch.Tensor:
    return torch.zeros(sim.num_envs, *sim.action_spec.shape)


class Idle:
    """Does nothing."""

    def __init__(self, sim: Any) -> None:
        self.sim = sim

    def act(self, obs: Any, started: Any) -> torch.Tensor:
        return still(self.sim)


def refused(kind: type[RobotrlError], words: str, name: str, **options: Any) -> str:
    with pytest.raises(kind, match=words) as error:
        make(name, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


# what is handed over


@pytest.mark.parametrize("name", ["Line", "Picky", "Remade"])
@pytest.mark.parametrize("camera", [None, False])
def test_whatever_gymnasium_opens_opens(name: str, camera: bool | None) -> None:
    sim = make(name, camera=camera)
    sim.reset()
    sim.step(still(sim))
    assert isinstance(sim, HasStateIds)
    assert not isinstance(sim, HasCamera)


def test_a_constructor_that_takes_no_render_mode_has_no_pictures() -> None:
    assert not isinstance(make("Drawn"), HasCamera)
    text = refused(
        ConfigError, "draws nothing here.*: made with render_mode 'rgb_array', which was added", "Drawn", camera=True
    )
    assert "option kwargs" not in text.partition("which was added")[0]


def test_a_render_mode_of_the_user_is_the_users() -> None:
    make("Picky", kwargs={"render_mode": "human"})
    refused(
        ConfigError, "option kwargs says render_mode 'human'", "Picky", kwargs={"render_mode": "human"}, camera=True
    )
    refused(
        EnvironmentFault,
        "making it raised ValueError: rgb_array is no way",
        "Picky",
        kwargs={"render_mode": "rgb_array"},
    )


def test_a_fault_of_a_constructor_does_not_blame_what_nobody_gave() -> None:
    assert "kwargs is" not in refused(EnvironmentFault, "making it raised TypeError: object of type 'int'", "Broken")
    refused(ConfigError, r"option kwargs is \{'size': 3\}", "Broken", kwargs={"size": 3})


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"max_episode_steps": 3}, "kwargs holds 'max_episode_steps': expected the option limit_steps"),
        ({"id": "x"}, "kwargs holds 'id': expected it in the sim's name"),
        (3, "kwargs is 3: expected arguments by name"),
        (["a"], "kwargs is .*: expected arguments by name"),
    ],
)
def test_arguments_that_are_none_of_the_environments_are_refused(kwargs: Any, words: str) -> None:
    refused(ConfigError, words, "Line", kwargs=kwargs)


@pytest.mark.parametrize("name", ["limit_steps", "control_dt_s", "action_bound", "end_at_success", "camera"])
@pytest.mark.parametrize("value", ["many", -1, float("nan"), [1]])
def test_options_of_another_kind_are_refused_by_name(name: str, value: Any) -> None:
    refused(ConfigError, name, "Line", **{name: value})


# modules beside the user

OWN = """
import gymnasium, numpy as np
from gymnasium import spaces
class Reach(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Box(-1, 1, (1,))
    def reset(self, *, seed=None, options=None):
        import own_late
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}
    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}
class Frame(gymnasium.Wrapper):
    pass
def robot(seed):
    return seed
gymnasium.register("Reach-v0", entry_point="own_late:Reach", max_episode_steps=5)
"""

USER = """
import sys
import robotrl
from robotrl.deploy.robots.sim_robot import factory

if __name__ == "__main__":
    for options in ({}, {"vectorization": "async", "processes": "spawn"}):
        sim = robotrl.make_sim("gym/own:Reach-v0", num_envs=2, wrapper="own:Frame", **options)
        print(sim.reset()["state"].shape)
        sim.close()
    print(factory("own:robot")(7), "stray" in sys.modules, "" in sys.path or sys.path[-1].endswith("here"))
"""


def test_a_module_beside_the_user_is_found_by_all_who_name_it(tmp_path: Path) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (here, elsewhere):
        folder.mkdir()
    (here / "own.py").write_text(OWN)
    (here / "own_late.py").write_text("from own import Reach")
    # a working directory never shadows what is installed
    (here / "gymnasium.py").write_text("raise SystemExit('executed')")
    (elsewhere / "user.py").write_text(USER)
    done = subprocess.run(
        [sys.executable, str(elsewhere / "user.py")],
        cwd=here,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split("\n")[:3] == ["torch.Size([2, 2])", "torch.Size([2, 2])", "7 False False"], done.stderr


@pytest.mark.parametrize(
    ("module", "text", "words"),
    [
        ("own_missing", None, "needs the module 'own_missing', which is not installed and not in "),
        ("Own_case", "", "needs the module 'Own_case'.*did you mean 'own_case'"),
        ("own_needs", "import no_such_thing", "own_needs needs the module 'no_such_thing', which is not installed"),
        ("own_syntax", "def (", "importing own_syntax raised SyntaxError: "),
        ("own_exit", "raise SystemExit(3)", "importing own_exit raised SystemExit: 3"),
        ("own_case.py", "", "'own_case.py'.* dotted name|needs the module|is no name of a module"),
        ("../own_case", "", "is no name of a module: expected a dotted name, 'own_case'"),
    ],
)
@pytest.mark.parametrize("asked", ["sim", "wrapper"])
def test_a_module_that_cannot_be_imported_is_named(
    module: str, text: str | None, words: str, asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / f"{module.lower().strip('./').removesuffix('.py')}.py").write_text(text)
    with pytest.raises(ConfigError, match=words) as error:
        if asked == "sim":
            robotrl.make_sim(f"gym/{module}:X-v0", num_envs=1)
        else:
            make("Line", wrapper=f"{module}:X")
    assert "\n" not in str(error.value)
    assert str(tmp_path) not in sys.path


def test_a_module_that_registers_another_id_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_other.py").write_text("import gymnasium; gymnasium.register('OwnOther-v3', entry_point='x:Y')")
    with pytest.raises(ConfigError, match=r"did you mean 'gym/own_other:OwnOther-v3'\? importing own_other registered"):
        robotrl.make_sim("gym/own_other:OwnOther-v0", num_envs=1)


# what is found by trying


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 1), st.integers(0, 5))
def test_an_environment_that_differs_from_run_to_run_says_where(element: int, since: int) -> None:
    sim = make("Noisy", 1, kwargs={"element": element, "since": since})
    assert not isinstance(sim, HasStateIds)
    when = "the first" if since == 0 else f"step {since}:"
    told = f"differed: {when} observation 'state', 'state_{element}', was "
    with pytest.raises(CapabilityError) as error:
        sim.reset(options={"state_ids": [3]})
    assert told in str(error.value) and "run twice from one seed under the same actions" in str(error.value)


def test_training_on_such_an_environment_is_refused_with_what_was_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from robotrl.cli.main import main

    command = ["train", "gym-ppo", "--sim", NOISY, "--run-dir", str(tmp_path / "run")]
    assert main(command) == 2
    told = capsys.readouterr().err
    assert f"cannot be evaluated on held-out starts: {NOISY} was run twice from one seed" in told
    assert not (tmp_path / "run").exists()


def test_spaces_that_reset_makes_are_those_of_the_sim() -> None:
    sim = make("Remade")
    assert (sim.action_spec.shape, sim.observation_spec["state"].shape) == ((1,), (2,))
    sim = make("Stretching", 1)
    sim.reset()
    sim.reset()
    sim.reset()
    with pytest.raises(
        EnvironmentFault, match=r"reset\(\) has changed the action space from .* to .*: expected the same"
    ):
        sim.reset()


# spaces


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 8), st.integers(17, 24), st.integers(17, 24), st.integers(0, 2**31))
def test_channels_in_front_are_turned_and_channels_behind_are_left(c: int, h: int, w: int, seed: int) -> None:
    rows = np.random.default_rng(seed).integers(0, 256, (2, c, h, w), np.uint8)
    (front,) = leaves(spaces.Box(0, 255, (c, h, w), np.uint8))
    (behind,) = leaves(spaces.Box(0, 255, (h, w, c), np.uint8))
    assert front.spec == behind.spec and front.spec.shape == (h, w, c)
    assert "turned to" in front.note and not behind.note
    assert np.array_equal(front.convert(rows), np.moveaxis(rows, 1, 3))
    assert np.array_equal(behind.convert(np.moveaxis(rows, 1, 3)), np.moveaxis(rows, 1, 3))


@pytest.mark.filterwarnings("ignore:.*precision lowered:UserWarning")
@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (spaces.Box(0, 255, (64, 64, 64), np.uint8), r"bytes of shape \(64, 64, 64\): .*no end of it has 16 or fewer"),
        (spaces.Box(0, 255, (3, 16, 16), np.uint8), "first axis may be the channels"),
        (spaces.Box(0, 1, (32, 32, 3), np.float32), r"'state' is float32 of shape \(32, 32, 3\): expected bytes"),
        (spaces.Box(0, 255, (4, 8, 8, 3), np.uint8), r"'state' is uint8 of shape \(4, 8, 8, 3\): expected bytes"),
        (spaces.Box(-1, 1, (0,)), r"'state' has shape \(0,\), no element"),
        (spaces.Box(-(2**40), 2**40, (2,), np.int64), "'state' is int64 with bounds -1099511627776"),
        (spaces.Discrete(10**6), "'state' has 1000000 values"),
        (spaces.MultiBinary(10**5), "'state' has 100000 values"),
        (spaces.Dict({}), "observation is a Dict space without parts"),
        (spaces.Dict({"a": spaces.Dict({"b": spaces.Graph(spaces.Box(0, 1), None)})}), "'a_b' is a Graph space"),
        (spaces.Sequence(spaces.Discrete(2)), "'state' is a Sequence space"),
        (spaces.OneOf([spaces.Discrete(2), spaces.Box(0, 1)]), "'state' is a OneOf space"),
        (spaces.Tuple((spaces.Text(3), spaces.Discrete(2))), "'state_0' is a text and vocabulary is None"),
    ],
)
def test_an_observation_that_no_policy_reads_is_refused_by_name(shown: gym.Space[Any], words: str) -> None:
    text = refused(ConfigError, words, "Shaped", kwargs={"observation": shown})
    assert text.startswith("sim 'gym/tests.kits.gym_habits:Shaped-v0': ") and len(text) < 400


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Text(3), "action is a Text space: expected Box, Discrete, MultiDiscrete or MultiBinary; a wrapper"),
        (spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1))), "action is a Tuple space"),
        (spaces.Dict({"a": spaces.Discrete(2)}), "action is a Dict space"),
        (spaces.Box(-np.inf, np.inf, (2,)), "action 0 has bounds -inf to inf: .*action_bound"),
        (spaces.Box(1, 1, (3,)), "3 elements and none can move; of action 0, its bounds are 1 and 1"),
        (spaces.Box(0, 1, (0,)), "0 elements and none can move"),
        (spaces.Discrete(1, start=4), "1 elements and none can move; of action 0, its only value is 4"),
        (spaces.Discrete(10**6), "action 0 has 1000000 values"),
        (spaces.Box(-(2**40), 2**40, (2,), np.int64), "action is int64 with bounds"),
    ],
)
def test_an_action_that_no_policy_gives_is_refused_by_name(space: gym.Space[Any], words: str) -> None:
    assert refused(ConfigError, words, "Shaped", kwargs={"action": space}).startswith(
        "sim 'gym/tests.kits.gym_habits:Shaped-v0': "
    )


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31))
def test_actions_at_their_bounds_are_inside_the_environments_space(seed: int) -> None:
    rng = np.random.default_rng(seed)
    low = rng.normal(size=3)
    high = low + np.where(rng.random(3) < 0.3, 0, rng.random(3))
    high[0] = low[0] + 0.7
    with warnings_off():
        sim = make("Shaped", 1, kwargs={"action": spaces.Box(low, high, dtype=np.float64)})
    sim.reset()
    for end in (sim.action_spec.low, sim.action_spec.high):
        # the environment asserts that its space contains what it is given
        sim.step(torch.tensor([end], dtype=torch.float32))


def warnings_off() -> Any:
    import warnings

    return warnings.catch_warnings(action="ignore")


# success


@pytest.mark.parametrize(
    ("success", "over", "says", "wanted"),
    [
        ("auto", "last", [0, 0, 1, 0], False),
        ("auto", "ever", [0, 0, 1, 0], True),
        ("auto", "last", [0, 0, 0, 0, 0, 0, 0, 1], True),
        ("info:is_done", "ever", [0, 0, 1, 0], True),
        ("info:is_done", "last", [0, 0, 1, 0], False),
        ("survival", "last", [0], True),
        ("termination", "ever", [1], False),
        ("return>=-100", "last", [0], True),
        ("return>=0.5", "ever", [1], False),
    ],
)
def test_the_signal_and_the_rule_over_time_decide_together(
    success: str, over: str, says: list[Any], wanted: bool
) -> None:
    key = success.removeprefix("info:") if success.startswith("info:") else "is_success"
    sim = make("Saying", success=success, success_over=over, kwargs={"says": {key: says}})
    found = evaluate(Idle(sim), sim, episodes=3)
    assert found.success.tolist() == [wanted] * 3
    assert found.rule == sim.success_rule and found.rule is not None and found.rule.stated
    assert ("at any step" in found.rule.text) == (over == "ever" and success not in ("survival", "termination"))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["auto", "info:x", "return>=2", "survival", "termination"]),
    st.sampled_from(["last", "ever"]),
    st.lists(
        st.tuples(st.booleans(), st.sampled_from([0.0, 1.0, -1.0]), st.sampled_from(["go", "end", "cut"])), min_size=1
    ),
)
def test_a_batch_is_judged_as_its_episodes_are(success: str, over: Any, steps: list[tuple[bool, float, str]]) -> None:
    """Beside a row that ends elsewhere, and episode by episode from the definition."""
    signal = signal_of(success, over)
    judge = Judge(signal, 2, "gym/x", stated=True)
    none = np.zeros(2, bool)
    episode: list[tuple[bool, float, str]] = []
    for step in steps:
        episode.append(step)
        flag, reward, how = step
        found = judge.succeeded(
            np.array([flag, False]),
            np.ones(2, bool),
            np.array([reward, 9.0]),
            np.array([how == "end", False]),
            np.array([how == "cut", False]),
            none,
        )
        total = np.cumsum([r for _, r, _ in episode])
        held = {
            "auto": [f for f, _, _ in episode],
            "info": [f for f, _, _ in episode],
            "return": (total >= 2).tolist(),
            "survival": [h == "cut" for _, _, h in episode],
            "termination": [h == "end" for _, _, h in episode],
        }[signal.kind]
        assert bool(found[0]) == (any(held) if over == "ever" else held[-1])
        if how != "go":
            judge.restart(np.array([0]))
            episode = []


@pytest.mark.parametrize("value", [0.5, float("nan"), "yes", [0, 1], 2, np.array([1, 1])])
@pytest.mark.parametrize("success", ["auto", "info:success"])
def test_a_flag_that_is_none_is_refused(value: Any, success: str) -> None:
    options = {"success": success, "kwargs": {"says": {"success": [value]}}}
    assert "env 0, episode step 1" in refused(EnvironmentFault, r"info\['success'\] .*: expected", "Saying", **options)
    make("Saying", success="survival", kwargs=options["kwargs"])


@pytest.mark.parametrize("value", [True, 1, 1.0, np.float32(1), np.array([True]), torch.tensor([1.0]), np.bool_(True)])
def test_a_flag_may_be_written_in_many_ways(value: Any) -> None:
    sim = make("Saying", kwargs={"says": {"is_success": [value]}})
    assert evaluate(Idle(sim), sim, episodes=2).success.all()


def test_a_key_that_info_never_had_is_refused_when_an_episode_ends() -> None:
    sim = make("Saying", success="info:solved", kwargs={"says": {"is_success": [1]}})
    with pytest.raises(EnvironmentFault, match=r"info had no 'solved' in a whole episode, .* seen were: is_success"):
        evaluate(Idle(sim), sim, episodes=2)


def test_success_that_nobody_stated_is_called_so(tmp_path: Path) -> None:
    from robotrl.api.evaluation import to_json
    from robotrl.rollout.evaluate import rated

    sim = make("Line")
    found = evaluate(Idle(sim), sim, episodes=2)
    assert found.success.all() and found.rule is not None and not found.rule.stated
    assert rated(found) == "success not stated by the environment (reaching the time limit: 100.0 %)"
    assert json.loads(json.dumps(to_json(found)))["success_rule"] == {
        "text": "reaching the time limit",
        "stated": False,
    }
    grounding_keys = make("Line", success="survival")
    assert "success 100.0 % " in rated(evaluate(Idle(grounding_keys), grounding_keys, episodes=2))


def test_success_that_is_stated_late_is_not_mixed_up_in_silence() -> None:
    sim = make("Saying", 1, kwargs={"says": {"success": [None, None, None, None, None, None, 1, 0]}})
    # it was not said in the first steps that were tried, yet no episode ended before it was
    assert not evaluate(Idle(sim), sim, episodes=2).success.any()
    judge = Judge(signal_of("auto", "last"), 1, "gym/x", stated=False)
    yes, no = np.array([True]), np.array([False])
    assert judge.succeeded(no, no, np.zeros(1), no, yes, no).all()
    with pytest.warns(UserWarning, match="1 episodes that ended before were judged by whether they reached the time"):
        judge.succeeded(no, yes, np.zeros(1), no, no, no)
    assert not judge.succeeded(no, no, np.zeros(1), no, yes, no).any()


def test_rewards_and_ends_go_by_the_same_success() -> None:
    says = {"says": {"is_success": [0, 1, 1, 0, 0, 0, 0, 0]}}

    def returns(**options: Any) -> tuple[list[float], list[int], bool]:
        sim = make("Saying", kwargs=says, reward="success", **options)
        found = evaluate(Idle(sim), sim, episodes=2)
        return found.returns.tolist(), found.length.tolist(), bool(found.success.all())

    assert returns() == ([2.0, 2.0], [8, 8], False)
    assert returns(success_over="ever") == ([7.0, 7.0], [8, 8], True)
    assert returns(end_at_success=True) == ([1.0, 1.0], [2, 2], True)
    # a success at the time limit itself is no failure, and no mere time-out
    sim = make("Saying", kwargs=says, end_at_success=True, limit_steps=2)
    sim.reset()
    sim.step(still(sim))
    last = sim.step(still(sim))
    assert (last.terminated.all(), last.truncated.any(), last.info["success"].all()) == (True, False, True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"success": "returns>=3"}, "did you mean 'return>=X'"),
        ({"success": "return>=x"}, "a number after 'return>='"),
        ({"success": "return>=nan"}, "a number after 'return>='"),
        ({"success": "info:"}, "known: auto, info:KEY"),
        ({"success": 3}, "success is 3: expected one of auto"),
        ({"success_over": "once"}, "success_over 'once' is unknown"),
        ({"reward": "sucess"}, "reward 'sucess' is unknown: did you mean 'success'"),
        ({"end_at_success": True, "success": "survival"}, "expected a signal that comes before the end"),
        (
            {"reward": "success"},
            r"states no success in the first steps .*info has nothing.*: expected success=info:KEY",
        ),
        ({"end_at_success": True}, "end_at_success is True and success is 'auto': .* states no success"),
    ],
)
def test_rules_that_cannot_hold_are_refused(options: dict[str, Any], words: str) -> None:
    refused(ConfigError, words, "Line", **options)


def test_final_info_may_be_a_list_of_one_dict_for_each_row() -> None:
    sim = make("Ended", 3, vectorization="vector", kwargs={"says": [True, False, None]})
    sim.reset()
    found = [sim.step(still(sim)) for _ in range(3)][-1]
    assert found.final_ids.tolist() == [0, 1, 2]
    assert found.info["success"].tolist() == [True, False, False]
    wrong = make("Ended", 1, vectorization="vector", kwargs={"says": ["no"]})
    wrong.reset()
    with pytest.raises(EnvironmentFault, match=r"info\['is_success'\] is 'no'"):
        for _ in range(3):
            wrong.step(still(wrong))
    with raises_naming(ConfigError, "end_at_success", True, "vector"):
        make("Ended", 1, vectorization="vector", end_at_success=True, success="info:is_success")


# what nobody stated


def test_a_control_rate_that_nobody_stated_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from robotrl.cli.main import main

    sim, stated = make("Line"), make("Line", control_dt_s=0.1)
    assert (sim.control_dt_s, stated.control_dt_s, make("Drawn").control_dt_s) == (None, 0.1, 0.05)
    assert "render_fps" not in sim.as_gymnasium().metadata
    run = tmp_path / "run"
    tiny = ("--sim.num-envs", "4", "--algo.env-steps", "256", "--algo.num-steps", "16", "--algo.engine", "eager")
    ends = ("--evaluation.episodes", "4", "--evaluation.num-envs", "4", "--evaluation.every", "0")
    name = ("--sim", "gym/tests.kits.gym_habits:Line-v0", "--run-dir", str(run))
    assert main(["train", "gym-ppo", *name, *tiny, *ends]) == 0
    policy = robotrl.load_policy(run)
    assert policy.control_dt_s is None
    # where one of them states none there is nothing to compare
    check_fit(policy, stated)
    capsys.readouterr()
    assert main(["eval", str(run), "--episodes", "4", "--report", str(tmp_path / "r.json")]) == 0
    assert "success not stated by the environment (reaching the time limit: 100.0 %)" in capsys.readouterr().out
    assert json.loads((tmp_path / "r.json").read_text())["success_rule"]["stated"] is False
    assert main(["export", str(run), "--out", str(tmp_path / "bundle")]) == 2
    assert "control_dt_s is missing, and the sim states none: give the seconds" in capsys.readouterr().err
    assert main(["export", str(run), "--out", str(tmp_path / "bundle"), "--control-dt-s", "0.1"]) == 0
