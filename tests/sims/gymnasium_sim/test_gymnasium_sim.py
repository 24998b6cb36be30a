"""`gym/ID`: spaces, starts, resets and faults of Gymnasium environments; the contract is in conformance/."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate
from hypothesis import given, settings
from hypothesis import strategies as st

import robotrl
import tests.kits.gym_toys as gym_toys
from robotrl.errors import CapabilityError, ConfigError, NumericsError, RobotrlError
from robotrl.registry import SIMS
from robotrl.rollout.collector import Decision
from robotrl.rollout.evaluate import evaluate
from robotrl.rollout.groups import GroupCollector
from robotrl.sims.gymnasium_sim import probing
from robotrl.sims.gymnasium_sim.action_codec import ACTIONS, action_codec
from robotrl.sims.gymnasium_sim.faults import EnvironmentFault
from robotrl.sims.gymnasium_sim.spaces import leaves, one_hot, pick
from robotrl.spec import HasCamera, HasState, HasStateIds, Spec, Step, lost

TOY, FAULTY, COUNTING = (f"gym/tests.kits.gym_toys:{name}-v0" for name in ("Toy", "Faulty", "Counting"))


def make(name: str, num_envs: int = 3, seed: int = 0, **options: Any) -> Any:
    return robotrl.make_sim(name, num_envs=num_envs, seed=seed, **options)


def one_line(error: pytest.ExceptionInfo[RobotrlError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def zeros(sim: Any) -> torch.Tensor:
    return torch.zeros(sim.num_envs, *sim.action_spec.shape)


# spaces


boxes = st.builds(
    lambda shape, dtype: spaces.Box(0, 9, tuple(shape), dtype),
    st.lists(st.integers(1, 3), max_size=2),
    st.sampled_from([np.float32, np.float64, np.int64, np.uint8]),
)
plain_spaces = st.one_of(
    boxes,
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 4), st.integers(-2, 2)),
    st.builds(lambda nvec: spaces.MultiDiscrete(nvec), st.lists(st.integers(1, 3), min_size=1, max_size=3)),
    st.builds(lambda shape: spaces.MultiBinary(tuple(shape)), st.lists(st.integers(1, 3), min_size=1, max_size=2)),
)
nested_spaces = st.recursive(
    plain_spaces,
    lambda parts: st.one_of(
        st.builds(spaces.Dict, st.dictionaries(st.sampled_from(["a", "b", "c"]), parts, min_size=1)),
        st.builds(lambda found: spaces.Tuple(tuple(found)), st.lists(parts, min_size=1, max_size=3)),
    ),
    max_leaves=4,
)


@settings(max_examples=60, deadline=None)
@given(nested_spaces, st.integers(1, 3))
def test_every_observation_space_becomes_named_arrays_within_their_specs(space: gym.Space[Any], n: int) -> None:
    batched = batch_space(space, n)
    batch = batched.sample()
    found = leaves(space)
    assert len({leaf.key for leaf in found}) == len(found)
    for leaf in found:
        values = leaf.convert(np.asarray(pick(batch, leaf.path)))
        assert values.shape == (n, *leaf.spec.shape)
        assert str(values.dtype) == leaf.spec.dtype
        assert (values >= np.asarray(leaf.spec.low)).all()
        assert (values <= np.asarray(leaf.spec.high)).all()
        assert leaf.raw_shape == np.shape(pick(space.sample(), leaf.path))


@settings(max_examples=100, deadline=None)
@given(plain_spaces, st.integers(1, 3), st.integers(0, 100), st.sampled_from(ACTIONS))
def test_every_action_becomes_one_of_the_environment(space: gym.Space[Any], n: int, seed: int, actions: Any) -> None:
    try:
        codec = action_codec(space, actions=actions)
    except ConfigError as error:
        assert "none can move" in str(error)
        assert len({str(space.sample()) for _ in range(20)}) == 1
        return
    low, high = np.asarray(codec.spec.low), np.asarray(codec.spec.high)
    flat = np.random.default_rng(seed).uniform(low, high, (n, len(low))).astype(np.float32)
    if codec.spec.choices is not None:
        assert actions == "index"
        flat = flat.round()
    batched = batch_space(space, n)
    decoded = codec.decode(flat)
    assert decoded in batched
    assert len(list(iterate(batched, decoded))) == n
    assert Spec.from_json(json.loads(json.dumps(codec.spec.to_json()))) == codec.spec


def test_numbers_of_each_kind_of_space() -> None:
    space = spaces.Dict(
        {
            "d": spaces.Discrete(3, start=2),
            "m": spaces.MultiDiscrete([2, 3]),
            "t": spaces.Tuple((spaces.MultiBinary(2), spaces.Box(0, 255, (2, 1), np.uint8))),
        }
    )
    found = {leaf.key: leaf for leaf in leaves(space)}
    assert list(found) == ["d", "m", "t_0", "t_1"]
    assert found["d"].spec.names == ("d_is_2", "d_is_3", "d_is_4")
    assert found["d"].convert(np.array([4, 2])).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert found["m"].spec.names == ("m_0_is_0", "m_0_is_1", "m_1_is_0", "m_1_is_1", "m_1_is_2")
    assert found["m"].convert(np.array([[1, 2]])).tolist() == [[0, 1, 0, 0, 1]]
    # bytes that are no picture are numbers
    assert found["t_1"].spec.dtype == "float32"
    assert (found["t_1"].spec.shape, found["t_1"].spec.low, found["t_1"].spec.high) == ((2, 1), (0.0,), (255.0,))
    (top,) = leaves(spaces.Box(-1, 1, (3,)), structure={"qpos": 1, "qvel": 2})
    assert (top.key, top.spec.names) == ("state", ("qpos_0", "qvel_0", "qvel_1"))
    (top,) = leaves(spaces.Box(-1, 1, (3,)), structure={"qpos": 1})
    assert top.spec.names == ("state_0", "state_1", "state_2")
    assert [leaf.key for leaf in leaves(spaces.Tuple((spaces.Discrete(2), spaces.Discrete(2))))] == [
        "state_0",
        "state_1",
    ]


def test_categories_are_numbers_from_nought() -> None:
    discrete = action_codec(spaces.Discrete(3, start=5))
    assert (discrete.spec.choices, discrete.spec.low, discrete.spec.high) == ((3,), (0.0,), (2.0,))
    assert discrete.decode(np.array([[0.0], [2.0]], np.float32)).tolist() == [5, 7]
    several = action_codec(spaces.MultiDiscrete([[2, 1], [3, 4]], start=[[0, 4], [1, 0]]))
    assert "action 1 cannot move: its only value is 4; taken as constant and left out" in several.note
    assert (several.spec.choices, several.spec.names) == ((2, 3, 4), ("action_0", "action_2", "action_3"))
    assert several.decode(np.array([[1.0, 2.0, 3.0]], np.float32)).tolist() == [[[1, 4], [3, 3]]]
    binary = action_codec(spaces.MultiBinary((2, 1)))
    assert binary.spec.choices == (2, 2)
    assert binary.decode(np.array([[0.0, 1.0]], np.float32)).tolist() == [[[0], [1]]]


def test_an_element_that_cannot_move_is_taken_as_constant() -> None:
    codec = action_codec(spaces.Box(np.array([-1, 30, 0], np.float32), np.array([1, 30, 2], np.float32)))
    assert "action 1 cannot move: its bounds are 30 and 30; taken as constant" in codec.note
    assert codec.spec.names == ("action_0", "action_2")
    assert codec.decode(np.array([[0.5, 1.5]], np.float32)).tolist() == [[0.5, 30, 1.5]]


def test_a_choice_that_does_not_exist_is_refused_and_not_rounded() -> None:
    sim = make("gym/CartPole-v1", 2)
    sim.reset()
    for wrong in (0.4, -1.0, 2.0, float("nan")):
        with pytest.raises(NumericsError, match=r"env 1, .*'action_0' is .*: expected a whole number from 0 to 1") as e:
            sim.step(torch.tensor([[0.0], [wrong]]))
        one_line(e)
    space = sim.as_gymnasium().single_action_space
    assert space == spaces.MultiDiscrete([2])


def test_scores_act_by_their_highest() -> None:
    discrete = action_codec(spaces.Discrete(3, start=5), actions="scores")
    assert discrete.decode(np.array([[0.1, 0.9, 0.3], [0.2, 0.2, 0.1]])).tolist() == [6, 5]
    several = action_codec(spaces.MultiDiscrete([2, 3], start=[0, 1]), actions="scores")
    assert several.spec.names == ("score_0_0", "score_0_1", "score_1_1", "score_1_2", "score_1_3")
    assert several.decode(np.array([[0.0, 1.0, -1.0, -0.5, -0.7]])).tolist() == [[1, 2]]
    binary = action_codec(spaces.MultiBinary(2), actions="scores")
    assert binary.decode(np.array([[0.1, -0.1]])).tolist() == [[1, 0]]
    whole = action_codec(spaces.Box(0, 4, (2,), np.int64))
    assert whole.decode(np.array([[1.4, 3.6]])).tolist() == [[1, 4]]


def test_spaces_that_no_policy_can_use_are_refused() -> None:
    with pytest.raises(ConfigError, match="observation 'x' is a Text space: expected Box, Discrete"):
        leaves(spaces.Dict({"x": spaces.Text(3)}))
    with pytest.raises(ConfigError, match="two parts that are called 'a_b'"):
        leaves(spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(2)}), "a_b": spaces.Discrete(2)}))
    with pytest.raises(ConfigError, match="action is a Dict space: expected Box, Discrete, "):
        action_codec(spaces.Dict({}))
    open_box = spaces.Box(np.array([0, -np.inf], np.float32), np.array([1, np.inf], np.float32))
    with pytest.raises(ConfigError, match=r"action 1 has bounds -inf to inf: expected finite ones; .*action_bound"):
        action_codec(open_box)
    assert action_codec(open_box, 2.0).spec.low == (0.0, -2.0)
    with pytest.raises(ValueError, match="env 1: is 3: expected 0 to 2"):
        one_hot(np.array([[0], [3]]), (0,), (3,))


# sims


def test_a_discrete_environment_is_what_gymnasium_makes_of_it() -> None:
    """One env from one seed under one row of actions, step for step, over several episodes."""
    sim = make("gym/CartPole-v1", 1)
    ids = list(sim.state_ids("val")[:4])
    sim.queue_states(ids)
    obs = sim.reset()["state"]
    env = gym.make("CartPole-v1")
    reference, _ = env.reset(seed=ids[0])
    episode = 0
    for choice in torch.randint(2, (120, 1, 1), generator=torch.Generator().manual_seed(0)):
        assert np.array_equal(obs[0], reference)
        out = sim.step(choice.float())
        reference, reward, terminated, truncated, _ = env.step(int(choice))
        assert (out.reward[0], out.terminated[0], out.truncated[0]) == (reward, terminated, truncated)
        assert out.info["state_id"].tolist() == [ids[episode]]
        if terminated or truncated:
            assert np.array_equal(out.final_obs["state"][0], reference)
            episode += 1
            if episode == len(ids):
                break
            reference, _ = env.reset(seed=ids[episode])
        obs = out.obs["state"]
    assert episode == len(ids)


def test_a_process_for_each_environment_changes_nothing() -> None:
    found: list[list[Step]] = []
    for vectorization in ("sync", "async"):
        sim = make(TOY, 3, seed=4, vectorization=vectorization, limit_steps=5)
        sim.reset()
        actions = torch.rand((12, 3, 2), generator=torch.Generator().manual_seed(1))
        found.append([sim.step(action) for action in actions])
        sim.close()
    for a, b in zip(*found, strict=True):
        for key in a.obs:
            assert torch.equal(a.obs[key], b.obs[key])
            assert torch.equal(a.final_obs[key], b.final_obs[key])
        assert torch.equal(a.reward, b.reward)
        assert torch.equal(a.truncated, b.truncated)


def test_success_comes_from_the_environment_or_from_a_rule() -> None:
    def ends(name: str, **options: Any) -> list[tuple[bool, bool, bool]]:
        sim = make(name, 8, **options)
        sim.reset(seed=0)
        out = [sim.step(zeros(sim)) for _ in range(40)]
        return [
            (bool(s.info["success"][i]), bool(s.terminated[i]), bool(s.truncated[i]))
            for s in out
            for i in s.final_ids.tolist()
        ]

    told = ends(TOY, kwargs={"goal_radius": 0.3})
    assert {(True, True, False), (False, False, True)} == set(told)
    assert {(False, True, False), (True, False, True)} == set(
        ends(TOY, kwargs={"goal_radius": 0.3}, success="survival")
    )
    assert set(ends("gym/CartPole-v1")) == {(False, True, False)}
    assert set(ends("gym/CartPole-v1", success="termination")) == {(True, True, False)}
    assert set(ends("gym/CartPole-v1", limit_steps=3)) == {(True, False, True)}


def test_limits_and_rates() -> None:
    sim = make(TOY)
    assert (sim.limit_steps, sim.control_dt_s) == (gym_toys.LIMIT, 0.1)
    assert make("gym/Hopper-v5", 1).control_dt_s == pytest.approx(0.008)
    assert make(FAULTY, 1).control_dt_s is None
    assert make(FAULTY, 1, control_dt_s=0.2).control_dt_s == 0.2
    sim.reset(options={"stagger": True})
    assert [sim.step(zeros(sim)).final_ids.tolist() for _ in range(gym_toys.LIMIT)] == [
        [2] if t == 3 else [1] if t == 7 else [0] if t == 11 else [] for t in range(gym_toys.LIMIT)
    ]


def test_only_what_can_be_promised_is_declared() -> None:
    sim = make(TOY)
    assert isinstance(sim, HasStateIds)
    assert isinstance(sim, HasCamera)
    assert not isinstance(sim, HasState)
    assert not isinstance(make(TOY, camera=False), HasCamera)
    restless = make(FAULTY, kwargs={"fault": "unseeded"})
    assert not isinstance(restless, HasStateIds)
    restless.reset()
    assert restless.step(zeros(restless)).info["state_id"].tolist() == [-1] * 3
    with pytest.raises(
        CapabilityError,
        match=r"lacks HasStateIds: .* was run twice .* differed: the first observation 'state', 'state_0', was",
    ):
        restless.reset(options={"state_ids": [0, 1, 2]})
    with pytest.raises(ConfigError, match=r"camera is True\): .* no render mode 'rgb_array'"):
        make(FAULTY, camera=True)


def test_mujocos_renderer_is_not_tried_where_it_has_nothing_to_draw_with() -> None:
    assert "MUJOCO_GL=egl" in probing._no_graphics({}, "linux")
    for environ, platform in (({"DISPLAY": ":0"}, "linux"), ({"MUJOCO_GL": "egl"}, "linux"), ({}, "darwin")):
        assert probing._no_graphics(environ, platform) == ""


# an environment's own vector class


def test_an_environments_own_vector_class_in_every_autoreset_mode() -> None:
    """Row i ends every 3 + i steps, odd rows by success; by hand: rewards, ends, last and first observations."""
    for mode in ("same_step", "disabled", "next_step"):
        sim = make(COUNTING, 2, vectorization="vector", kwargs={"mode": mode})
        assert not isinstance(sim, HasStateIds)
        assert sim.control_dt_s == 0.2
        late = mode == "next_step"
        assert sim.reset()["state"].tolist() == [[0, 0], [0, 0]]
        episode, step = np.zeros(2), np.zeros(2)
        for _ in range(20):
            out = sim.step(zeros(sim))
            step += 1
            over = step > [3, 4] if late else step >= [3, 4]
            assert out.reward.tolist() == np.where(over & late, 0, 10 * episode + step).tolist(), mode
            assert out.terminated.tolist() == (over & [False, True]).tolist()
            assert out.truncated.tolist() == (over & [True, False]).tolist()
            assert out.final_ids.tolist() == np.flatnonzero(over).tolist()
            last = np.stack([episode, np.minimum(step, [3, 4])], axis=1)
            assert out.final_obs["state"].tolist() == last[over].tolist()
            # without a word from the environment, success is to reach the time limit
            told = over & [False, True] if mode == "same_step" else over & [True, False]
            assert out.info["success"].tolist() == told.tolist()
            episode, step = episode + over, np.where(over, 0, step)
            shown = np.stack([episode, np.minimum(step, [3, 4])], axis=1)
            assert out.obs["state"].tolist() == shown.tolist()


def test_gymnasiums_own_vector_class_agrees_with_single_environments() -> None:
    """CartPole's vector class starts from a stream of its own; from there its steps are those of single ones."""
    sim = make("gym/CartPole-v1", 4, vectorization="vector", limit_steps=60)
    obs = sim.reset(seed=3)["state"].clone()
    assert torch.equal(sim.reset(seed=3)["state"], obs)
    env: Any = gym.make("CartPole-v1").unwrapped
    for choices in torch.randint(2, (6, 4, 1)):
        out = sim.step(choices.float())
        for row in range(4):
            env.reset()
            env.state = obs[row].numpy().astype(np.float64)
            expected, reward, *_ = env.step(int(choices[row]))
            np.testing.assert_allclose(out.obs["state"][row], expected, atol=1e-5)
            assert out.reward[row] == reward
        obs = out.obs["state"].clone()


# faults


@pytest.mark.filterwarnings("ignore:(?s).*ERROR:UserWarning")  # what Gymnasium logs of a worker that raised
@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("nan", NumericsError, ("observation 'state', 'state_1', is nan",)),
        ("reward", NumericsError, ("reward is nan",)),
        ("shape", EnvironmentFault, ("observation 'state' has shape (3,): expected (2,)",)),
        ("dtype", EnvironmentFault, ("observation 'state' has dtype <U1: expected numbers",)),
        ("rewards", EnvironmentFault, ("reward is array([0., 0.]): expected one number",)),
        ("old", EnvironmentFault, ("step() returned 4 values: expected a tuple of 5",)),
        ("raise", EnvironmentFault, ("step() raised ValueError: motor 3 is too hot",)),
    ],
)
def test_faults_name_the_environment_the_step_and_the_field(
    vectorization: str, fault: str, kind: type[RobotrlError], words: tuple[str, ...]
) -> None:
    sim = make(FAULTY, 2, vectorization=vectorization, kwargs={"fault": fault, "at": 7})
    sim.reset()
    for _ in range(6):
        sim.step(zeros(sim))
    with pytest.raises(kind) as error:
        sim.step(zeros(sim))
    text = one_line(error)
    for word in ("gym/tests.kits.gym_toys:Faulty-v0", "env ", "episode step 7", *words):
        assert word in text
    if vectorization == "sync":
        sim.reset()
        sim.step(zeros(sim))
    sim.close()


def test_faults_at_the_first_steps_are_found_when_the_sim_is_made() -> None:
    with pytest.raises(EnvironmentFault, match=r"env 0, episode step 3: step\(\) raised ValueError"):
        make(FAULTY, kwargs={"fault": "raise"})
    with pytest.raises(EnvironmentFault, match="making it raised RuntimeError: no robot is connected"):
        make(FAULTY, kwargs={"fault": "make"})
    with pytest.raises(ConfigError, match="action_bound"):
        make(FAULTY, kwargs={"fault": "actions"})
    assert make(FAULTY, kwargs={"fault": "actions"}, action_bound=3.0).action_spec.high == (3.0, 3.0)


def kill(sim: Any, row: int) -> None:
    process = sim.env.processes[row]
    process.kill()
    process.join()


def test_a_process_that_dies_costs_its_episode_alone() -> None:
    sim, calm = (make(TOY, 3, vectorization=how) for how in ("async", "sync"))
    ids = sim.state_ids("val")[:6]
    for one in (sim, calm):
        one.queue_states(ids)
        one.reset()
    before = sim.step(zeros(sim))
    assert torch.equal(before.obs["pos"], calm.step(zeros(calm)).obs["pos"])
    assert not lost(before).any() and not lost(calm.step(zeros(calm))).any()
    kill(sim, 1)
    with pytest.warns(
        UserWarning, match=r"tests.kits.gym_toys:Toy-v0: env 1: its process died \(exit code -9\); that episode is"
    ):
        step = sim.step(zeros(sim))
    assert lost(step).tolist() == step.truncated.tolist() == [False, True, False]
    assert not step.terminated.any() and not step.info["success"].any() and step.reward[1] == 0
    assert step.final_ids.tolist() == [1] and torch.equal(step.final_obs["pos"][0], before.obs["pos"][1])
    # the same start again, as if nothing had happened; the others go on
    fresh = make(TOY, 3)
    fresh.queue_states([ids[1]])
    assert torch.equal(step.obs["pos"][1], fresh.reset()["pos"][0])
    for _ in range(3):
        fresh.step(zeros(fresh))
        step, same = sim.step(zeros(sim)), calm.step(zeros(calm))
        assert torch.equal(step.obs["pos"][[0, 2]], same.obs["pos"][[0, 2]])
        assert step.info["state_id"].tolist() == list(ids[:3]) and not lost(step).any()
    sim.close()


def test_a_process_that_dies_while_others_restart_loses_its_episode_with_the_next_step() -> None:
    sim = make(TOY, 2, vectorization="async", limit_steps=3)
    sim.reset(0, {"stagger": True})
    sim.step(zeros(sim))
    step = sim.env.step
    died = []

    def then_die(actions: Any) -> Any:
        out = step(actions)
        if not died:
            died.append(kill(sim, 0))
        return out

    sim.env.step = then_die
    with pytest.warns(UserWarning, match="env 0: its process died"):
        # row 1 ends and is reset, row 0 is asked for what it has, and is gone
        assert sim.step(zeros(sim)).final_ids.tolist() == [1]
    out = sim.step(zeros(sim))
    assert lost(out).tolist() == [True, False] and bool(out.truncated[0])
    assert not lost(sim.step(zeros(sim))).any()
    sim.close()


def test_an_evaluation_has_every_start_once_although_processes_die() -> None:
    options = {"kwargs": {"goal_radius": 0.2}, "limit_steps": 8}
    sims = [make(TOY, 3, vectorization=how, **options) for how in ("async", "sync")]

    class Middle:
        def act(self, obs: Any, turn: Any) -> torch.Tensor:
            return (-obs["pos"]).clamp(-0.5, 1).float()

    def harm(step: int) -> None:
        if step in (2, 5, 9):
            kill(sims[0], step % 3)

    with pytest.warns(UserWarning, match="its process died"):
        shaken = evaluate(Middle(), sims[0], episodes=9, split="val", on_step=harm)
    calm = evaluate(Middle(), sims[1], episodes=9, split="val")
    assert shaken.success.tolist() == calm.success.tolist() and 0 < calm.success.sum() < 9
    assert np.array_equal(shaken.length, calm.length) and np.array_equal(shaken.ids, calm.ids)
    sims[0].close()


def test_groups_that_lost_an_episode_are_left_out() -> None:
    sim = make(TOY, 6, vectorization="async", limit_steps=6)
    collector = GroupCollector(sim, 2, seed=0)
    asked = []

    def decide(obs: Any, rows: torch.Tensor) -> Decision:
        asked.append(len(rows))
        if len(asked) == 2:
            kill(sim, 3)
        return Decision(torch.zeros(len(obs["pos"]), 2, 2), {"row": obs["pos"][:, 0].clone()})

    starts = np.array(sim.state_ids("train")[:3])
    with pytest.warns(UserWarning, match="env 3: its process died"):
        found = collector.collect(decide, starts)
    assert found.start.tolist() == [0, 0, 2, 2] and len(found.success) == 4
    assert sorted(set(found.episode.tolist())) == [0, 1, 2, 3] and len(found.episode) == 4 * 3
    again = collector.collect(decide, starts)
    assert again.start.tolist() == [0, 0, 1, 1, 2, 2]
    sim.close()


def test_an_environment_that_always_dies_ends_the_run() -> None:
    sim = make(FAULTY, 2, vectorization="async", kwargs={"fault": "die", "at": 8})
    sim.reset()
    with (
        pytest.warns(UserWarning, match="exit code 7"),
        pytest.raises(EnvironmentFault, match=r"env \d: its process died \(exit code 7\), the 4th in a row"),
    ):
        for _ in range(40):
            sim.step(zeros(sim))
    sim.env.close(terminate=True)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"fault": "raise"}, r"step\(\) raised OSError: the server has gone"),
        ({"fault": "shape"}, r"observation 'state' has shape \(2, 1\): expected \(2, 2\)"),
        ({"fault": "no_final"}, "infos lacks 'final_obs'"),
    ],
)
def test_faults_of_a_vector_class_are_named(kwargs: dict[str, Any], words: str) -> None:
    sim = make(COUNTING, 2, vectorization="vector", kwargs=kwargs)
    sim.reset()
    with pytest.raises(EnvironmentFault, match=f"gym/tests.kits.gym_toys:Counting-v0: step .*{words}"):
        for _ in range(3):
            sim.step(zeros(sim))


# names and options


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("gym/Hoper-v5", {}, "sim 'gym/Hoper-v5' is unknown: did you mean 'gym/Hopper-v5'"),
        ("gym/Hopper-v9", {}, "sim 'gym/Hopper-v9' is unknown: did you mean 'gym/Hopper-v5'"),
        ("gym/no_such_module:X-v0", {}, "sim 'gym/no_such_module:X-v0' needs the module 'no_such_module'"),
        ("gym/", {}, "sim 'gym/' is unknown"),
        ("gim/Hopper-v5", {}, "known: .*gym/ID, .*mujoco/"),
        ("gym/LunarLander-v3", {}, "needs a package that is not installed: .*box2d"),
        ("gym/Hopper-v5", {"kwargs": {"reset_noise": 1}}, "option kwargs is .*'reset_noise'"),
        ("gym/Hopper-v5", {"vectorisation": "sync"}, "did you mean 'vectorization'"),
        ("gym/Hopper-v5", {"vectorization": "asink"}, "did you mean 'async'"),
        ("gym/Hopper-v5", {"vectorization": "vector"}, "has no vector class"),
        ("gym/Hopper-v5", {"success": "termnation"}, "did you mean 'termination'"),
        ("gym/Hopper-v5", {"limit_steps": 0}, "limit_steps is 0: expected a whole number from 1"),
        ("gym/CartPole-v1", {"vectorization": "vector", "camera": True}, "camera is True"),
    ],
)
def test_mistakes_are_named(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        make(name, **options)
    one_line(error)


def test_the_table_knows_the_family_without_importing_gymnasium() -> None:
    code = "import sys; import robotrl.registry as r; r.SIMS.check('gym/Hopper-v5'); print('gymnasium' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    assert "gym/ID" not in SIMS.names()


def test_the_command_line_lists_the_family(capsys: pytest.CaptureFixture[str]) -> None:
    from robotrl.cli.main import main

    assert main(["list", "sims"]) == 0
    assert "gym/ID" in capsys.readouterr().out


TINY = (
    *("--sim.num-envs", "4", "--algo.env-steps", "256", "--algo.num-steps", "64", "--algo.engine", "eager"),
    *("--evaluation.episodes", "4", "--evaluation.every", "0", "--evaluation.num-envs", "4"),
)


@pytest.mark.parametrize(
    ("name", "options", "kind"),
    [
        ("gym/Pendulum-v1", (), "gaussian"),
        ("gym/FrozenLake-v1", (), "categorical"),
        ("gym/FrozenLake-v1", ("--sim.actions", "scores"), "gaussian"),
    ],
)
def test_a_run_trains_and_is_evaluated(
    name: str, options: tuple[str, ...], kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from robotrl.cli.main import main
    from robotrl.run.policy_checkpoint import describe

    run, bundle = tmp_path / "run", tmp_path / "bundle"
    asked = ("--run-dir", str(run), "--sim", name, *TINY, "--sim.limit-steps", "20", *options)
    assert main(["train", "gym-ppo", *asked]) == 0
    assert describe(run).description["kind"] == kind
    assert main(["eval", str(run), "--episodes", "4", "--num-envs", "4"]) == 0
    assert "over 4 starts" in capsys.readouterr().out
    if options:
        # a bundle says by its names that it gives scores, and not on which sim
        assert main(["export", str(run), "--out", str(bundle)]) == 0
        assert main(["eval", str(bundle), "--sim", name, "--episodes", "2", "--num-envs", "2"]) == 0


def test_a_run_of_before_has_scores_for_categories(tmp_path: Path) -> None:
    from robotrl.api.evaluation import sim_of
    from robotrl.run.directory import Run

    before = {"sim": {"name": "gym/CartPole-v1", "num_envs": 2, "options": ["limit_steps=9"]}}
    for config, wanted in (
        (before, {"limit_steps": 9, "actions": "scores"}),
        ({**before, "revision": 2}, {"limit_steps": 9}),
    ):
        path = tmp_path / str(len(config))
        Run.create(path, config, seed=0, command=[]).close()
        name, options = sim_of(path, None)
        assert (name, options) == ("gym/CartPole-v1", wanted)
        names = make(name, 1, **options).action_spec.names
        assert names == (("score_0", "score_1") if "actions" in options else ("action_0",))
