"""Captions of the arm's sims, worked by hand, and as the expert makes them true."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from robotrl.errors import ConfigError
from robotrl.fn.text.words import words_in
from robotrl.registry import make_sim
from robotrl.sims.mujoco.manipulation import push_captions
from robotrl.sims.mujoco.tabletop import captions as tabletop_captions
from robotrl.sims.mujoco.tabletop.language import MATS, MOVABLES
from robotrl.sims.mujoco.tabletop.layout import AWAY_M, HALF_M
from robotrl.spec import HasCamera, HasSuccessHold
from robotrl.spec.captions import UNCLEAR, HasCaptions
from tests.kits.refusals import raises_naming


@pytest.mark.parametrize("topics", [push_captions.TOPICS, tabletop_captions.TOPICS], ids=["push", "tabletop"])
def test_wordings_for_tests_are_new_sentences_of_known_words(topics: Any) -> None:
    trained = [text for topic in topics for one in topic.classes for text in one.train]
    assert len(set(trained)) == len(trained)
    words = {word for text in trained for word in words_in(text)}
    for topic in topics:
        for one in topic.classes:
            assert one.test and not set(trained) & set(one.test)
            assert {word for text in one.test for word in words_in(text)} <= words, one.name


def test_push_by_hand() -> None:
    # goal, paddle, post: far, touching, before; near, away, beside; at the goal, unclear, past; nothing clear
    block = np.array([[0.5, -0.2, 0.025], [0.5, 0.1, 0.025], [0.5, 0.19, 0.025], [0.5, -0.04, 0.025]])
    goal = np.array([[0.5, 0.2, 0.0]] * 4)
    post = np.array([[0.5, 0.0, 0.0], [0.5, 0.09, 0.0], [0.5, 0.0, 0.0], [0.5, 0.0, 0.0]])
    tip = block + np.array([[0.0, -0.036, -0.01], [0.0, -0.1, 0.0], [0.0, -0.07, 0.0], [0.0, -0.07, 0.0]])
    found = push_captions.classes_of(block, goal, post, tip, np.zeros(4))
    assert found.tolist() == [[0, 0, 0], [1, 1, 1], [4, UNCLEAR, 2], [UNCLEAR] * 3]


def test_the_last_centimeters_of_push_by_hand() -> None:
    # off by 3 cm, 1.7 cm, 1 cm; on the goal but turned by 0.3 rad, 0.2 rad, -0.1 rad
    block = np.array([[0.5, 0.2 - off, 0.025] for off in (0.03, 0.017, 0.01, 0.01, 0.01, 0.01)])
    goal = np.array([[0.5, 0.2, 0.0]] * 6)
    turn = np.array([0.0, 0.0, 0.0, 0.3, 0.2, -0.1])
    found = push_captions.classes_of(block, goal, goal - 1, block + 1, turn)
    names = [one.name for one in push_captions.TOPICS[0].classes]
    assert [names[c] if c != UNCLEAR else None for c in found[:, 0]] == [
        "beside",
        None,
        "at-goal",
        "askew",
        None,
        "at-goal",
    ]


def test_tabletop_by_hand() -> None:
    pos = np.zeros((3, 6, 3))
    pos[:, :, 0], pos[:, :, 2] = AWAY_M, HALF_M
    here = np.zeros((3, 6), bool)
    here[:, [0, 4]] = True  # the red block and the green can
    pos[:, 0, :2], pos[:, 4, :2] = (0.4, 0.0), (0.5, 0.1)
    mats = np.full((3, 3, 2), AWAY_M)
    mats[:, 1] = (0.5, 0.1)  # the green mat, under the can
    tip = np.array([[0.4, 0.0, 0.05], [0.4, 0.0, 0.30], [0.45, 0.05, 0.04]])
    pos[1, 0, 2] = HALF_M + 0.08
    pos[2, 4, :2] = (0.55, 0.1)  # neither on the mat nor off it
    found = tabletop_captions.classes_of(pos, mats, tip, here)
    there = [1, 0, 0, 0, 1, 0]
    can = 1 + MOVABLES.index("green can")
    assert MATS[1] == "green mat"
    assert found[0].tolist() == [0, 1, UNCLEAR, can, UNCLEAR, *there]
    assert found[1].tolist() == [1, 0, UNCLEAR, can, UNCLEAR, *there]
    assert found[2].tolist() == [0, UNCLEAR, UNCLEAR, UNCLEAR, UNCLEAR, *there]


@pytest.mark.parametrize("name, topic", [("mujoco/push", "goal"), ("mujoco/tabletop", "lifted")])
def test_the_expert_makes_every_kind_of_caption_true(name: str, topic: str) -> None:
    sim: Any = make_sim(name, 16, 0)
    assert isinstance(sim, HasCaptions) and isinstance(sim, HasCamera) and sim.caption_camera in sim.cameras
    column = [one.name for one in sim.caption_topics].index(topic)
    sim.reset(seed=0)
    expert, started = sim.make_expert(seed=0), torch.ones(16, dtype=torch.bool)
    seen = set[int]()
    for _ in range(200):
        classes = sim.caption_classes()
        assert classes.shape == (16, len(sim.caption_topics)) and classes.dtype == np.int8
        seen |= set(classes[:, column].tolist())
        step = sim.step(expert.act(started))
        started = step.terminated | step.truncated
    assert seen >= ({0, 1, 2, 4} if topic == "goal" else {0}) and len(seen) >= 4


def test_an_episode_goes_on_after_its_success_where_that_is_asked() -> None:
    sim: Any = make_sim("mujoco/reach", 4, 0)
    assert isinstance(sim, HasSuccessHold) and sim.success_hold_steps == 0
    with raises_naming(ConfigError, "success_hold_steps", "-1", "0 or more"):
        sim.success_hold_steps = -1
    ends, successes = {}, {}
    for hold in (0, 5):
        sim.success_hold_steps = hold
        sim.reset(seed=0)
        expert, started = sim.make_expert(seed=0), torch.ones(4, dtype=torch.bool)
        first_success, first_end = np.zeros(4, int), np.zeros(4, int)
        for t in range(1, 200):
            step = sim.step(expert.act(started))
            started = step.terminated | step.truncated
            first_success[(first_success == 0) & step.info["success"].numpy()] = t
            first_end[(first_end == 0) & started.numpy()] = t
        ends[hold], successes[hold] = first_end, first_success
    assert ends[0].all() and (ends[0] == successes[0]).all()
    assert (successes[5] == successes[0]).all()
    assert (ends[5] == ends[0] + 5).all()
