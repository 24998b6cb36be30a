"""What sims do with actions outside their bounds."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from robotrl.errors import NumericsError
from robotrl.sims.actions import SLACK, ActionBounds
from robotrl.spec import Spec

SPEC = Spec((2,), ("throttle", "steer"), ("1", "rad"), (0.0, -0.5), (1.0, 0.25))
STEPS = np.array([0, 7])


def test_actions_are_clipped_and_the_first_one_outside_is_named_once() -> None:
    bounds = ActionBounds(SPEC, 2, "toy/car")
    actions = np.array([[0.5, -0.5], [-0.25, 1.5]], np.float32)
    with pytest.warns(
        UserWarning, match=r"^toy/car: env 1: action 'steer' is 1.5: expected -0.5 to 0.25; .*once"
    ) as said:
        inside = bounds.clipped(actions, STEPS)
    assert len(said) == 1
    assert inside.tolist() == [[0.5, -0.5], [0.0, 0.25]]
    assert actions[1].tolist() == [-0.25, 1.5]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bounds.clipped(2 * actions, STEPS).tolist() == [[1.0, -0.5], [0.0, 0.25]]


def test_rounding_is_clipped_in_silence() -> None:
    actions = np.array([[1.0 + SLACK / 2, 0.0], [0.0, 0.0]], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ActionBounds(SPEC, 2).clipped(actions, STEPS)[0, 0] == 1.0


@pytest.mark.filterwarnings("ignore:.*clipped")
def test_no_number_is_refused_however_large_the_others_are() -> None:
    bounds = ActionBounds(SPEC, 2)
    huge = np.full((2, 2), 3e38, np.float32)  # their sum is infinite
    assert bounds.clipped(huge, STEPS).tolist() == [[1.0, 0.25]] * 2
    huge[1, 0] = np.nan
    with pytest.raises(NumericsError, match=r"^env 1, episode step 7: action 'throttle' is nan: expected a finite"):
        bounds.clipped(huge, STEPS)


def test_what_needs_no_clipping_at_all() -> None:
    assert ActionBounds(Spec((2,), ("a", "b"), ("1",) * 2, (-1.0, -0.5), (2.0, 1.0)), 3).always_inside == 0.5
    bounds = ActionBounds(SPEC, 2)
    assert bounds.always_inside == 0
    assert bounds.shape == (2, 2)
    assert str(bounds.wrong_shape((2,))) == "actions has shape (2,): expected (2, 2) (envs, action)"
