"""Captions of actions: which is right by hand, that the reward reads the same context, and that a model learns them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robotrl.errors import CapabilityError, ConfigError
from robotrl.fn.text.words import words_in
from robotrl.registry import make_sim
from robotrl.rewards.action_alignment import ActionAlignmentCfg, ActionAlignmentTerm, of_captions
from robotrl.rewards.source import RewardSetup, SimTransition
from robotrl.rewards.vlm.actions import (
    action_classes,
    action_margin,
    action_topics,
    context_of,
    nearest_anchor,
    sentences,
)
from robotrl.rewards.vlm.scenes import CaptionedFrames
from robotrl.sims.driving.action_captions import ACTIONS
from robotrl.sims.driving.captions import TOPICS
from robotrl.spec.captions import UNCLEAR
from tests.kits.refusals import raises_naming
from tests.kits.small_clip import stored_clip

pytest.importorskip("open_clip")


def drive(num_envs: int = 8, **options: Any) -> Any:
    made = make_sim("bev/drive", num_envs, 0, obs="vector", agents=8, **options)
    made.reset(seed=0)
    return made


def test_the_right_action_by_hand() -> None:
    sim = drive()
    # steer, accel: the halves of their ranges are 1, so the nearest anchor is that of the rounded numbers
    actions = np.array([[0.0, 0.0], [0.2, 0.1], [-0.3, -0.6], [0.1, -0.4], [0.0, 0.31]], np.float32)
    found = [ACTIONS.actions[k].name for k in nearest_anchor(actions, ACTIONS, sim.action_spec)]
    assert found == ["keep-straight", "keep-left", "brake-right", "keep-straight", "speed-up-straight"]


def test_the_context_by_hand() -> None:
    # speed in 15 m/s, side of the route in 10 m: standing and right, slow and ahead, fast and left
    numbers = np.array([[0.0, -0.4], [5 / 15, 0.1], [7 / 15, 0.4]])
    topics = action_topics(ACTIONS)
    found = [topics[k].name for k in context_of(numbers, ACTIONS)]
    assert found == ["action-standing-right", "action-slow-ahead", "action-fast-left"]
    assert len(topics) == 9 and all(len(topic.classes) == 9 for topic in topics)
    assert topics[4].classes[0].train[0] == "we drive slowly our way goes straight brake and steer left"


def test_wordings_for_tests_are_new_sentences_of_known_words() -> None:
    topics = action_topics(ACTIONS)
    trained = [text for topic in topics for one in topic.classes for text in one.train]
    assert len(set(trained)) == len(trained)
    # the captions of scenes are always trained on, too
    scenes = [text for topic in TOPICS for one in topic.classes for text in one.train]
    words = {word for text in (*trained, *scenes) for word in words_in(text)}
    for topic in topics:
        for one in topic.classes:
            assert one.test and not set(trained) & set(one.test)
            assert {word for text in one.test for word in words_in(text)} <= words, one.name


def test_sentences_are_all_combinations() -> None:
    assert sentences([("a", "b"), ("c",)], ("x", "y")) == ("a c x", "a c y", "b c x", "b c y")


def test_the_reward_reads_the_context_that_the_captions_state(tmp_path: Path) -> None:
    sim = drive()
    cfg = of_captions(ActionAlignmentCfg(model="any"), ACTIONS)
    term = ActionAlignmentTerm(cfg, sim)
    expert, started = sim.make_expert(seed=0), torch.ones(8, dtype=torch.bool)
    seen = set[int]()
    step = None
    for _ in range(200):
        action = expert.act(started)
        if step is not None:
            obs = {key: x.clone() for key, x in step.obs.items()}
            notes = term.notes(SimTransition(obs, action, obs, step))
            assert notes[:, 0].tolist() == context_of(sim.action_contexts(), ACTIONS).tolist()
            classes = action_classes(sim, action.numpy(), sim.action_spec)
            assert (classes != UNCLEAR).sum(axis=1).tolist() == [1] * 8
            assert classes[np.arange(8), notes[:, 0].long()].tolist() == notes[:, 1].tolist()
            seen |= set(notes[:, 0].tolist())
        step = sim.step(action)
        started = step.terminated | step.truncated
    assert len(seen) >= 5
    built = ActionAlignmentCfg(model=str(stored_clip(tmp_path / "clip")), view="near").build(sim, RewardSetup())
    assert set(built.obs_keys) == {"scalars", "route"}


class Knowing:
    """A model for which picture k and the k-th action are one direction."""

    def images(self, pictures: torch.Tensor) -> torch.Tensor:
        return torch.eye(9)[pictures[:, 0, 0, 0].long()]

    def texts(self, texts: list[str]) -> torch.Tensor:
        names = [one.test for topic in action_topics(ACTIONS) for one in topic.classes]
        return torch.stack(
            [torch.eye(9)[next(k for k, test in enumerate(names) if text in test) % 9] for text in texts]
        )


def test_the_margin_by_hand() -> None:
    pictures = np.zeros((4, 1, 1, 3), np.uint8)
    pictures[:, 0, 0, 0] = [0, 1, 2, 2]
    classes = np.full((4, 9), UNCLEAR, np.int8)
    classes[:, 4] = [0, 1, 2, 3]  # the last picture shows another action than the right one
    model: Any = Knowing()
    frames = CaptionedFrames(pictures, classes, np.array([""] * 4))
    found = action_margin(model, frames, action_topics(ACTIONS), temperature=1.0)
    high, low = np.e / (np.e + 8), 1 / (np.e + 8)
    assert found.frames == 4 and found.accuracy == 0.75 and found.commonest == 0.25
    assert found.right == pytest.approx((3 * high + low) / 4)
    assert found.margin == pytest.approx((3 * (high - low) + low - high) / 4)


def test_settings_that_do_not_fit_are_named(tmp_path: Path) -> None:
    sim = drive(1)
    base = {"model": "none", "view": "near"}
    with raises_naming(ConfigError, "reward.action-alignment.anchors", "sentences"):
        ActionAlignmentCfg(anchors=(0.0, 0.0), **base).build(sim, RewardSetup())
    with raises_naming(ConfigError, "reward.action-alignment.command", "route/4/z", nearest="route/4/y"):
        commanded = {"commands": ("we turn", "we go"), "command": "route/4/z", "command_edges": (0.0,)}
        ActionAlignmentCfg(sentences=("we go",), anchors=(0.0, 0.0), **commanded, **base).build(sim, RewardSetup())
    with raises_naming(CapabilityError, "HasActionCaptions"):
        ActionAlignmentCfg(model="none").build(make_sim("mujoco/push", 1, 0), RewardSetup())
