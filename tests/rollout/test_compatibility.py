"""A policy is for the words that it was trained on, with their numbers: a sim with others is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import robotrl
import tests.algos.test_grpo as grpo
from robotrl.api.evaluation import evaluate_path
from robotrl.errors import ConfigError
from robotrl.policies.vla.token import TokenVlaCfg, TokenVlaPolicy
from robotrl.rollout.compatibility import check_fit
from robotrl.run.directory import Run
from robotrl.run.policy_checkpoint import policy_tree
from robotrl.sims.mujoco.tabletop.language import VOCABULARY
from robotrl.spec import visible
from robotrl.spec.checks import WordDifference, first_word_difference
from robotrl.training import train
from robotrl.transforms import Clip, TransformGroup, bounds_to_unit, inverse

POINTING = "gym/tests.kits.gym_told:Pointing-v0"
SAID, OTHER, LONGER = (
    f"point at the {words} thing" for words in ("red green blue", "blue green red", "red green blue")
)
LONGER += " please"


def pointing(vocabulary: str, num_envs: int = 2) -> Any:
    return robotrl.make_sim(
        POINTING, num_envs=num_envs, seed=0, instruction="attribute:task_description", vocabulary=vocabulary
    )


def policy_on(sim: Any) -> TokenVlaPolicy:
    torch.manual_seed(0)
    low, high = sim.action_spec.low, sim.action_spec.high
    outputs = (inverse(bounds_to_unit("action", low, high)), Clip("action", low, high))
    cfg = TokenVlaCfg(vision_width=32, vision_depth=2, vision_heads=2, width=64, heads=2, mlp=128, horizon=2)
    return cfg.build(visible(sim), sim.action_spec, TransformGroup((), outputs))


def saved(policy: Any, path: Path) -> Path:
    run = Run.create(path, {}, seed=0, command=[])
    run.save({"policy": policy_tree(policy)}, step=0)
    run.close()
    return path


def reversed_words(policy: Any, key: str = "instruction") -> Any:
    """The same network for the same arrays, its words in another order."""
    spec = policy.observation_spec[key]
    other = {**policy.observation_spec, key: replace(spec, words=("", *spec.words[:0:-1]))}
    return type(policy)(other, policy.action_spec, policy.transforms, policy.cfg)


def test_where_vocabularies_differ_first() -> None:
    words = ("", "go", "left")
    assert first_word_difference(words, words) is None and first_word_difference((), ()) is None
    assert first_word_difference(words, ("", "left", "go")) == WordDifference(1, "'go'", "'left'")
    assert first_word_difference(words, words[:2]) == WordDifference(2, "'left'", "none")
    assert first_word_difference((), words) == WordDifference(0, "none", "''")


@pytest.mark.parametrize(
    ("trained", "found", "message"),
    [
        (
            SAID,
            OTHER,
            "observation 'instruction' with 'red' as word 4: sim .* has 'blue' there, expected the same words",
        ),
        (SAID, LONGER, "observation 'instruction' with none as word 8: sim .* has 'please' there"),
        (LONGER, SAID, "observation 'instruction' with 'please' as word 8: sim .* has none there"),
    ],
)
def test_the_first_word_that_differs_is_named(trained: str, found: str, message: str) -> None:
    policy = policy_on(pointing(trained))
    check_fit(policy, pointing(trained, 3))
    with pytest.raises(ConfigError, match=f"policy was trained for {message}") as error:
        check_fit(policy, pointing(found))
    assert "\n" not in str(error.value)


def test_other_compositions_of_a_sim_are_for_the_same_policy() -> None:
    """What is told differs, the words do not: families, held-out compositions, how full the table is."""
    policy = policy_on(grpo.tabletop(1))
    for options in ({}, {"families": "lift,push"}, {"families": None}, {"things": 2, "mats": 0}):
        sim = grpo.tabletop(2, **options)
        check_fit(policy, sim)
        assert sim.observation_spec["instruction"].words == VOCABULARY
    with pytest.raises(ConfigError, match=f"with {VOCABULARY[-1]!r} as word 1: sim TabletopSim has {VOCABULARY[1]!r}"):
        check_fit(reversed_words(policy), grpo.tabletop(1))


def test_a_policy_with_other_words_is_not_evaluated(tmp_path: Path) -> None:
    said = saved(policy_on(pointing(SAID)), tmp_path / "said")
    task = {"instruction": "attribute:task_description"}
    counted = {"sim": POINTING, "episodes": 2, "num_envs": 2}
    result = evaluate_path(said, **counted, options={**task, "vocabulary": SAID})
    assert len(np.unique(result.ids)) == 2
    with pytest.raises(ConfigError, match=r"with 'red' as word 4: sim .* has 'blue' there"):
        evaluate_path(said, **counted, options={**task, "vocabulary": OTHER})


def test_a_policy_with_other_words_is_not_fine_tuned(tmp_path: Path) -> None:
    clone = saved(reversed_words(grpo.policy_on(grpo.tabletop(1))), tmp_path / "clone")
    with pytest.raises(ConfigError, match=f"with {VOCABULARY[-1]!r} as word 1: sim .* has {VOCABULARY[1]!r} there"):
        train(grpo.run_cfg(clone, iterations=1), tmp_path / "run")
    same = saved(grpo.policy_on(grpo.tabletop(1)), tmp_path / "same")
    train(grpo.run_cfg(same, iterations=1), tmp_path / "run-of-same")
