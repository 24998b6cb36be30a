"""`gym/ID` told in words, and in wrappers: what ManiSkill and LIBERO need, on environments of their shape."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import robotrl
import tests.kits.gym_told as gym_told
from robotrl.errors import CapabilityError, ConfigError, RobotrlError
from robotrl.fn.text.words import words_in
from robotrl.policies.vla.token import TokenVlaCfg, TokenVlaPolicy
from robotrl.sims.gymnasium_sim.faults import EnvironmentFault
from robotrl.sims.gymnasium_sim.instructions import replaced, text_of, texts
from robotrl.sims.gymnasium_sim.words import Vocabulary, said
from robotrl.spec import HasInstructions, HasStateIds, Spec, measured, visible
from robotrl.spec.json_fields import name_values
from robotrl.transforms import Clip, TransformGroup, bounds_to_unit, inverse
from tests.kits.paths_kit import DATA, ROOT
from tests.kits.refusals import raises_naming

POINTING, PLAIN, ROWS = (f"gym/tests.kits.gym_told:{name}-v0" for name in ("Pointing", "Plain", "Rows"))
WORDS = "point at the red green blue thing"
SOURCES = ("attribute:task_description", "attribute:get_language_instruction", "info:task")


def make(name: str, num_envs: int = 3, seed: int = 0, **options: Any) -> Any:
    return robotrl.make_sim(name, num_envs=num_envs, seed=seed, **options)


def told(**options: Any) -> Any:
    return make(POINTING, **{"instruction": SOURCES[0], "vocabulary": WORDS, **options})


def one_line(error: pytest.ExceptionInfo[RobotrlError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def colors_in(obs: dict[str, torch.Tensor], spec: Spec) -> list[int]:
    """The colours that instructions name; the words are those of `Pointing`."""
    return [gym_told.COLORS.index(said(spec.words, row).split()[3]) for row in obs["instruction"].numpy()]


# words


def test_words_of_a_text() -> None:
    assert words_in('  Pick up the "RED" cube, (slowly): then stop!') == [
        *("pick", "up", "the", "red", "cube", "slowly", "then", "stop"),
    ]
    assert words_in("left/right, 2.5 cm; the robot's x-ray -- left_arm.") == [
        *("left", "right", "2.5", "cm", "the", "robot's", "x-ray", "left_arm"),
    ]
    assert words_in(" ,.- ") == []


def test_numbers_of_an_instruction_and_back() -> None:
    vocab = Vocabulary(("pick", "up", "cube", "the"), 5)
    numbers = vocab.encode("Pick up the cube.")
    assert (numbers.tolist(), str(numbers.dtype)) == ([1, 2, 4, 3, 0], "int32")
    assert said(vocab.words, numbers) == "pick up the cube"
    with pytest.raises(ConfigError, match=r"^instruction 'the cubes': word 'cubes' is unknown: did you mean 'cube'\?"):
        vocab.encode("the cubes")
    with pytest.raises(ConfigError, match="'zzz' is unknown: expected one of the 4 words of the option vocabulary"):
        vocab.encode("zzz")
    for text, count in (("...", 0), ("the cube the cube the cube", 6)):
        with pytest.raises(ConfigError, match=rf"has {count} words: expected 1 to 5"):
            vocab.encode(text)


def test_texts_in_an_observation() -> None:
    space = spaces.Dict(
        {"a": spaces.Tuple((spaces.Discrete(2), spaces.Text(3))), "b": spaces.Dict({"c": spaces.Text(3)})}
    )
    assert texts(space) == (("a", 1), ("b", "c"))
    observation = {"a": (1, "x"), "b": {"c": "y", "d": 2}}
    assert replaced(observation, ("a", 1), str.upper) == {"a": (1, "X"), "b": {"c": "y", "d": 2}}
    assert replaced(observation, ("b", "c"), str.upper) == {"a": (1, "x"), "b": {"c": "Y", "d": 2}}
    assert observation == {"a": (1, "x"), "b": {"c": "y", "d": 2}}
    for one in ("go", ["go"], ("go",), np.array(["go"]), np.array("go")):
        assert text_of(one, "it") == "go"
    for other in (["go", "on"], [], 3, None, np.zeros(1)):
        with pytest.raises(ConfigError, match=r"it is .*: expected a text, or a list of one"):
            text_of(other, "it")


# sims


def test_a_fixed_text_is_told_in_every_episode() -> None:
    sim = make("gym/CartPole-v1", 2, instruction="Balance the pole, please!", limit_steps=3)
    spec = sim.observation_spec["instruction"]
    assert (spec.words, spec.shape, spec.dtype) == (("", "balance", "the", "pole", "please"), (4,), "int32")
    assert (spec.names[:2], spec.low[0], spec.high[0]) == (("word_0", "word_1"), 0.0, 4.0)
    assert measured(sim.observation_spec) == ("state",)
    assert isinstance(sim, HasInstructions) and sim.vocabulary == spec.words
    assert sim.instructions() == ["", ""]
    obs = sim.reset(seed=1)
    bare = make("gym/CartPole-v1", 2, limit_steps=3)
    assert torch.equal(obs["state"], bare.reset(seed=1)["state"])
    assert not isinstance(bare, HasInstructions)
    for _ in range(4):
        out = sim.step(torch.zeros(2, 1))
        assert out.obs["instruction"].tolist() == [[1, 2, 3, 4]] * 2
        assert sim.instructions() == ["balance the pole please"] * 2
    assert Spec.from_json(spec.to_json()) == spec


def test_columns_keep_their_names_beside_an_instruction() -> None:
    names = ("qpos_0", "qpos_1", "qpos_2", "qvel_0")
    assert make(PLAIN, instruction="stand").observation_spec["state"].names == names
    assert make(PLAIN).observation_spec["state"].names == names


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_each_episode_is_told_its_own_instruction(source: str, vectorization: str) -> None:
    sim = told(instruction=source, vectorization=vectorization)
    assert isinstance(sim, HasInstructions) and isinstance(sim, HasStateIds)
    spec = sim.observation_spec["instruction"]
    assert spec.shape == (24,)
    obs = sim.reset(seed=0)
    seen: set[int] = set()
    mixed = apart = 0
    for _ in range(40):
        running = colors_in(obs, spec)
        assert running == obs["state"][:, 0].int().tolist()
        assert sim.instructions() == [f"point at the {gym_told.COLORS[i]} thing" for i in running]
        out = sim.step(torch.ones(3, 2))
        ended = out.final_ids.tolist()
        # of the episode that ended, though obs tells the next one
        assert colors_in(out.final_obs, spec) == [running[i] for i in ended]
        assert out.final_obs["state"][:, 1].tolist() == [gym_told.LENGTH + running[i] for i in ended]
        apart += 0 < len(ended) < 3
        assert out.info["success"].all()
        obs = out.obs
        mixed += colors_in(out.final_obs, spec) != [colors_in(obs, spec)[i] for i in ended]
        seen |= set(running)
    assert seen == {0, 1, 2} and mixed and apart
    sim.close()


def test_processes_tell_what_one_process_tells() -> None:
    sims = [told(vectorization="sync"), told(vectorization="async"), told(vectorization="async", processes="spawn")]
    first, *others = [[sim.reset(seed=3), *(sim.step(torch.zeros(3, 2)).obs for _ in range(9))] for sim in sims]
    for other in others:
        for a, b in zip(first, other, strict=True):
            assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
    for sim in sims:
        sim.close()


def test_a_text_in_the_observation_becomes_words() -> None:
    sim = make(POINTING, vocabulary=WORDS, longest=5, kwargs={"mission": True})
    assert sim.observation_spec["mission"].words == ("", *WORDS.split())
    assert not isinstance(sim, HasInstructions)
    obs = sim.reset(seed=0)
    colors = obs["state"][:, 0].int().tolist()
    assert obs["mission"].tolist() == [[1, 2, 3, 4 + color, 7] for color in colors]
    alone = make(PLAIN, vocabulary=["left", "go"], longest=3, kwargs={"text": True})
    assert list(alone.observation_spec) == ["instruction"]
    assert alone.reset()["instruction"].tolist() == [[2, 1, 0]] * 3
    assert isinstance(alone, HasInstructions) and alone.instructions() == ["go left"] * 3


def test_a_vocabulary_is_a_text_a_list_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "tasks.txt"
    path.write_text("Point at the red thing.\npoint at the green thing.\n\nPoint at the blue thing.\n")
    of_file = told(vocabulary=f"@{path}").observation_spec["instruction"]
    assert of_file.words == ("", "point", "at", "the", "red", "thing", "green", "blue")
    assert told(vocabulary=WORDS.split()).observation_spec["instruction"].words == ("", *WORDS.split())
    fixed = make(PLAIN, instruction="go", vocabulary="stop go", longest=2)
    assert fixed.reset()["instruction"].tolist() == [[2, 0]] * 3
    # as the command line has them
    given = name_values(
        [f"instruction={SOURCES[2]}", f"vocabulary=@{path}", "longest=6", 'kwargs={"said": "?"}'], "options"
    )
    assert make(POINTING, **given).observation_spec["instruction"].shape == (6,)


def test_a_policy_that_reads_acts_on_it() -> None:
    sim = told(longest=6)
    action = sim.action_spec
    outputs = (inverse(bounds_to_unit("action", action.low, action.high)), Clip("action", action.low, action.high))
    size = {"vision_width": 32, "vision_depth": 2, "vision_heads": 2, "width": 64, "heads": 2, "mlp": 128}

    def build(specs: dict[str, Spec]) -> TokenVlaPolicy:
        torch.manual_seed(0)
        return TokenVlaCfg(**size, horizon=2).build(specs, action, TransformGroup((), outputs))

    policy = build(visible(sim))
    assert (policy.roles.words, policy.roles.pictures, policy.roles.vectors) == ("instruction", ("image",), ("state",))
    obs = sim.reset(seed=0)
    for _ in range(4):
        with torch.no_grad():
            chunk = policy.act(obs, generator=torch.Generator().manual_seed(0)).chunk
        assert chunk.shape == (3, 2, 2)
        for actions in chunk.unbind(1):
            obs = sim.step(actions).obs
    with torch.no_grad():
        heard = policy.act(obs, mode="mean").chunk
        other = policy.act({**obs, "instruction": obs["instruction"].flip(0)}, mode="mean").chunk
    assert sim.instructions()[0] != sim.instructions()[2] and not torch.equal(heard[0], other[0])
    with pytest.raises(CapabilityError, match=r"needs a picture .* and an instruction"):
        build(visible(make(POINTING)))


# wrappers, and environments that are batches of one


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_wrappers_surround_each_environment_in_order(vectorization: str) -> None:
    names = ("tests.kits.gym_told:Single", "tests.kits.gym_told:Doubled")
    for wrapper in (",".join(names), list(names), " , ".join(names)):
        sim = make(ROWS, 2, wrapper=wrapper, vectorization=vectorization, instruction="attribute:spoken",
                   vocabulary="go left twice")  # fmt: skip
        assert sim.observation_spec["state"].shape == (2,) and sim.control_dt_s == 0.05
        assert sim.reset()["instruction"][:, :4].tolist() == [[1, 2, 3, 0]] * 2
        out = [sim.step(torch.zeros(2, 1)) for _ in range(6)]
        assert [s.final_ids.tolist() for s in out] == [[]] * 5 + [[0, 1]]
        assert out[2].obs["state"].tolist() == [[6.0, 6.0]] * 2
        assert out[2].info["success"].all()
        sim.close()


def test_a_limit_of_the_environments_own_gives_way_to_the_sims() -> None:
    """gymnasium.make's "no limit" is -1, which such an environment takes as it is: each episode would be a step."""
    for options, steps in (({}, 6), ({"limit_steps": 9}, 9), ({"limit_steps": 2}, 2)):
        sim = make(ROWS, 1, wrapper="tests.kits.gym_told:Single", **options)
        sim.reset()
        ends = [bool(sim.step(torch.zeros(1, 1)).truncated) for _ in range(10)]
        assert ends.index(True) == steps - 1


def test_a_batch_of_one_says_its_success_in_an_array() -> None:
    sim = make(ROWS, 2, control_dt_s=0.1)
    sim.reset()
    out = sim.step(torch.zeros(2, 1))
    assert out.info["success"].tolist() == [True, True] and out.reward.tolist() == [1.0, 1.0]


# LIBERO, as the page has it


PAGE = ROOT / "docs" / "sims" / "gymnasium.md"


@pytest.fixture
def libero_like(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's module and a package of LIBERO's interface, to be imported; gives the page's file of words."""
    (module,) = re.findall(r"<!-- libero_gym.py.*?-->\n```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "libero_gym.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(DATA / "libero_like")
    for name in ("libero_gym", "libero", "libero.libero", "libero.libero.benchmark", "libero.libero.envs"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delitem(gym.registry, "Libero-v0", raising=False)
    words = tmp_path / "libero_words.txt"
    words.write_text("pick up the black bowl on the stove\npick up the black bowl on the plate\n")
    return words


@pytest.mark.parametrize("options", [{}, {"vectorization": "async"}, {"vectorization": "async", "processes": "spawn"}])
def test_liberos_interface_through_the_module_of_the_page(libero_like: Path, options: dict[str, Any]) -> None:
    sim = make(
        "gym/libero_gym:Libero-v0",
        2,
        kwargs={"task": 1, "pixels": 32},
        instruction="attribute:task_description",
        vocabulary=f"@{libero_like}",
        **options,
    )
    assert isinstance(sim, HasStateIds) and (sim.control_dt_s, sim.limit_steps) == (0.05, 300)
    obs = sim.reset(options={"state_ids": [5, 6]})
    assert (obs["image"].shape, obs["image"].dtype) == ((2, 32, 32, 3), torch.uint8)
    # turned by 180 degrees: the top is up, its first pixel the last
    assert (obs["image"][:, 0, :-1] == 255).all() and (obs["image"][:, 0, -1] == 128).all()
    assert (obs["image"][:, 1:] == 0).all()
    assert sim.instructions() == ["pick up the black bowl on the plate"] * 2
    assert not torch.equal(obs["state"][0], obs["state"][1])
    up = torch.tensor([[0, 0, 1.0, 0, 0, 0, 0], [0] * 7])
    ends = [sim.step(up) for _ in range(3)]
    assert [s.terminated.tolist() for s in ends] == [[False, False]] * 2 + [[True, False]]
    assert ends[2].info["success"].tolist() == [True, False] and ends[2].reward.tolist() == [1.0, 0.0]
    again = sim.reset(options={"state_ids": [6, 5]})
    assert torch.equal(again["state"], obs["state"].flip(0))
    sim.close()


def test_libero_is_shown_and_moved_as_published_policies_expect(libero_like: Path) -> None:
    module = importlib.import_module("libero_gym")
    for openvla, moves in ((False, {-1.0: -1.0, 1.0: 1.0, 0.3: 0.3}), (True, {1.0: -1.0, 0.0: 1.0, 0.4: 1.0})):
        env = module.Libero(task=1, pixels=8, openvla_gripper=openvla)
        obs, _ = env.reset(seed=4)
        position, turn, fingers = np.split(obs["state"], [3, 6])
        assert obs["state"].shape == (8,) and env.observation_space.contains(obs)
        assert (position == env.env.hand).all() and (fingers == env.env.bowl).all() and env.env.gripper == -1
        # the toy's hand is turned by so many rad about x
        np.testing.assert_allclose(turn, [env.env.furniture, 0, 0], rtol=1e-6)
        for given, done in moves.items():
            action = np.array([0, 0, 0.1, 0, 0, 0, given])
            env.step(action)
            assert env.env.gripper == done and action[6] == given
    assert (module.axis_angle(np.array([0, 0, 0, 1.0])) == 0).all()
    quarter = np.array([0, np.sin(np.pi / 4), 0, np.cos(np.pi / 4)])
    np.testing.assert_allclose(module.axis_angle(quarter), [0, np.pi / 2, 0])


# mistakes


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (ROWS, {"wrapper": "gym_told"}, "wrapper is 'gym_told': expected MODULE:CALLABLE"),
        (ROWS, {"wrapper": ["tests.kits.gym_told:Single", 3]}, "wrapper is .*: expected MODULE:CALLABLE"),
        (ROWS, {"wrapper": 3}, "wrapper is 3: expected MODULE:CALLABLE"),
        (
            ROWS,
            {"wrapper": "no_such.module:X"},
            "wrapper is 'no_such.module:X' needs the module 'no_such', which is not",
        ),
        (
            ROWS,
            {"wrapper": "tests.kits.gym_told:Singel"},
            "tests.kits.gym_told has no 'Singel': did you mean 'tests.kits.gym_told:Single'",
        ),
        (
            ROWS,
            {"wrapper": "tests.kits.gym_told:NOT_CALLABLE"},
            "'tests.kits.gym_told:NOT_CALLABLE', of type int: expected a callable",
        ),
        (
            ROWS,
            {"wrapper": "tests.kits.gym_told:forgets"},
            "'tests.kits.gym_told:forgets', which gave NoneType: expected a gymnasium.Env",
        ),
        (ROWS, {"processes": "frok"}, "processes 'frok' is unknown: did you mean 'fork'"),
        (PLAIN, {"instruction": 3}, "instruction is 3: expected a text, attribute:NAME or info:KEY"),
        (PLAIN, {"instruction": "info:"}, "instruction is 'info:': expected a text, attribute:NAME or info:KEY"),
        (PLAIN, {"instruction": "atribute:x"}, "source of the instruction 'atribute' .* did you mean 'attribute'"),
        (PLAIN, {"instruction": "..."}, "instruction is '...': expected one word or more"),
        (PLAIN, {"instruction": "go", "vocabulary": "stop"}, "instruction 'go': word 'go' is unknown"),
        (PLAIN, {"instruction": "go on", "longest": 1}, "has 2 words: expected 1 to 1"),
        (PLAIN, {"instruction": "go", "longest": 0}, "longest is 0: expected a whole number from 1 to"),
        (PLAIN, {"longest": 5}, "longest is 5: expected None without"),
        (PLAIN, {"vocabulary": "go"}, "vocabulary is given and the observation has no text: expected the option"),
        (PLAIN, {"instruction": "info:x"}, "vocabulary is None: expected the words that may occur"),
        (PLAIN, {"instruction": "go", "vocabulary": "@no_such_file"}, "vocabulary is '@no_such_file': expected a file"),
        (PLAIN, {"instruction": "go", "vocabulary": "..."}, r"vocabulary is \('...',\): expected one word or more"),
        (PLAIN, {"instruction": "go", "vocabulary": 7}, "vocabulary is 7: expected a text, a list of words, or @FILE"),
        (PLAIN, {"kwargs": {"text": True}}, "observation 'instruction' is a text and vocabulary is None"),
        (PLAIN, {"kwargs": {"text": True}, "vocabulary": "go"}, "observation 'instruction' 'go left': word 'left'"),
        (POINTING, {"kwargs": {"mission": True}}, "observation 'mission' is a text and vocabulary is None"),
        (
            POINTING,
            {"kwargs": {"mission": True, "fault": "silent"}, "vocabulary": WORDS},
            "env 0, episode step 0: observation 'mission' '' has 0 words: expected 1 to 24",
        ),
        (
            POINTING,
            {"instruction": "attribute:task_descripton", "vocabulary": WORDS},
            "Pointing has no such attribute: did you mean 'attribute:task_description'",
        ),
        (POINTING, {"instruction": "info:tsk", "vocabulary": WORDS}, "no such key: did you mean 'info:task'"),
        (POINTING, {"instruction": "info:number", "vocabulary": WORDS}, "'info:number', which is 3: expected a text"),
        (
            POINTING,
            {"instruction": SOURCES[1], "vocabulary": WORDS, "kwargs": {"fault": "two"}},
            r"which is \['Point at .*: expected a text, or a list of one",
        ),
        (
            POINTING,
            {"instruction": SOURCES[0], "vocabulary": WORDS, "kwargs": {"said": " theng"}},
            f"{POINTING}: env 0, episode step 0: .* word 'theng' is unknown: did you mean 'thing'",
        ),
        *(
            ("gym/CartPole-v1", {"vectorization": "vector", option: value}, f"{option} is .*: expected None with")
            for option, value in (
                ("wrapper", "tests.kits.gym_told:Single"),
                ("instruction", "go"),
                ("vocabulary", "go"),
                ("longest", 3),
            )
        ),
    ],
)
def test_mistakes_are_named(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        make(name, **options)
    one_line(error)


def test_a_part_called_instruction_is_not_hidden() -> None:
    with raises_naming(ConfigError, "instruction", "go", "part"):
        make("gym/tests.kits.gym_told:Worded-v0", instruction="go")


def test_faults_of_foreign_code_are_named() -> None:
    named = r"Rows-v0: wrapper tests.kits.gym_told:refuses.* raised AssertionError"
    with pytest.raises(EnvironmentFault, match=named) as error:
        make(ROWS, wrapper="tests.kits.gym_told:refuses")
    one_line(error)
    with pytest.raises(
        EnvironmentFault, match=r"get_language_instruction\(\) raised RuntimeError: no task is"
    ) as error:
        told(instruction=SOURCES[1], kwargs={"fault": "raise"})
    one_line(error)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_a_word_that_is_missing_in_a_later_episode_stops_the_sim(vectorization: str) -> None:
    # the episodes from seed 0, which are run when the sim is made, are about one colour
    color = gym_told.COLORS[int(np.random.default_rng(0).integers(3))]
    sim = told(vocabulary=f"point at the {color} thing", vectorization=vectorization)
    with pytest.raises(ConfigError, match=r"env \d, episode step 0: instruction 'Point at the .*' is unknown") as error:
        for _ in range(3):
            sim.reset()
    one_line(error)
    sim.close()
