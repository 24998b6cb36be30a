"""Arithmetic on a step's flags, worked by hand, on numpy and torch alike."""

import ast
import math

import numpy as np
import pytest
import torch

from robotrl.sims.isaac import step_rules
from robotrl.sims.isaac.step_rules import flags, lab_ends, late_reward, single_done_ends

# one env for each combination of the two flags
FIRST, SECOND = [0, 1, 0, 1], [0, 0, 1, 1]


def array(kind, values):
    return np.array(values) if kind == "numpy" else torch.tensor(values)


def plain(values):
    return values.tolist()


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("cast", [bool, int, float])
def test_lab_flags_stay_apart(kind, cast):
    terminated, time_outs = (flags(array(kind, [cast(x) for x in values])) for values in (FIRST, SECOND))
    ends = lab_ends(terminated, time_outs, finite_horizon=False)
    assert plain(ends.terminated) == [False, True, False, True]
    assert plain(ends.truncated) == [False, False, True, True]  # both at once: a failure, by the contract of `Step`
    ends = lab_ends(terminated, time_outs, finite_horizon=True)
    assert plain(ends.terminated) == [False, True, True, True]
    assert plain(ends.truncated) == [False] * 4
    assert plain(ends.time_out) == [False, False, True, True]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_single_flag_is_split_by_time_outs(kind):
    # the last but one: a time-out of an env that is not done means nothing
    ends = single_done_ends(flags(array(kind, FIRST)), flags(array(kind, SECOND)))
    assert plain(ends.terminated) == [False, True, False, False]
    assert plain(ends.truncated) == [False, False, False, True]
    assert plain(ends.time_out) == [False, False, False, True]


@pytest.mark.parametrize(("kind", "xp"), [("numpy", np), ("torch", torch)])
def test_the_reward_of_a_step_that_only_resets_is_zero(kind, xp):
    reward = late_reward(xp, flags(array(kind, FIRST)), array(kind, [1.5, math.nan, -2.0, 7.0]))
    assert plain(reward) == [1.5, 0.0, -2.0, 0.0]


def test_the_rules_run_beside_an_isaac_gym():
    """Python 3.8 and numpy: no import of robotrl, no syntax that is newer."""
    with open(step_rules.__file__) as file:
        tree = ast.parse(file.read(), feature_version=(3, 8))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert modules == {"__future__", "typing"}
    assert not any(isinstance(node, ast.Import | ast.Match) for node in ast.walk(tree))
