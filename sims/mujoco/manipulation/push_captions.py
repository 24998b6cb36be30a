"""Captions of the pushing task: how block and goal lie, how far paddle and block, block and obstacle are apart.

They are read from poses. Classes leave room between them, where neither is clearly true.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from robotrl.sims.mujoco.manipulation.push import SUCCESS_DISTANCE_M, SUCCESS_YAW_RAD
from robotrl.spec.captions import UNCLEAR, CaptionClass, CaptionTopic

BESIDE_GOAL_M, NEAR_M, FAR_M = (0.02, 0.04), (0.05, 0.15), 0.25
"""Distances of the block from its goal: beside it and near it (ranges), far from it. At it is where the task is solved,
but for the speed, which no picture shows."""
ASKEW_RAD = 0.25
"""Yaw error of the block above which it lies askew on its goal."""
TOUCHING_M, AWAY_M = 0.05, 0.09
"""Distances of the paddle's tip from the block's center: it touches the block, it is away from it."""
BESIDE_M, PASSED_M = 0.03, 0.07
"""Distances from the post along the way to the goal: beside it, before or past it."""

TOPICS = (
    CaptionTopic(
        "goal",
        (
            CaptionClass(
                "far",
                (
                    "the red block is far from the goal",
                    "the block is not at the goal it is far away",
                    "a long way is left to the goal",
                ),
                ("the block is far away from the goal", "the red block is a long way from the goal"),
            ),
            CaptionClass(
                "near",
                (
                    "the red block is near the goal",
                    "the block is close to the goal",
                    "a short way is left to the goal",
                ),
                ("the block is near the goal", "the red block is close to the goal"),
            ),
            CaptionClass(
                "beside",
                (
                    "the red block is beside the goal",
                    "the block is not quite on the goal",
                    "the block is close to the goal but not on it",
                ),
                ("the block is beside the green goal", "the red block is not quite on the goal"),
            ),
            CaptionClass(
                "askew",
                ("the red block lies askew on the goal", "the block is turned on the goal"),
                ("the block lies askew on the green goal", "the red block is turned on the goal"),
            ),
            CaptionClass(
                "at-goal",
                (
                    "the red block is at the goal",
                    "the block is on the green goal",
                    "the goal is reached",
                ),
                ("the block is at the green goal", "the red block is on the goal"),
            ),
        ),
    ),
    CaptionTopic(
        "paddle",
        (
            CaptionClass(
                "touching",
                ("the paddle touches the block", "the arm pushes the block"),
                ("the arm touches the block", "the paddle pushes the block"),
            ),
            CaptionClass(
                "away",
                ("the paddle is away from the block", "the arm does not touch the block"),
                ("the arm is away from the block", "the paddle does not touch the block"),
            ),
        ),
    ),
    CaptionTopic(
        "post",
        (
            CaptionClass("before", ("the block is before the post",), ("the red block is before the post",)),
            CaptionClass("beside", ("the block is beside the post",), ("the red block is beside the post",)),
            CaptionClass("past", ("the block is past the post",), ("the red block is past the post",)),
        ),
    ),
)


def classes_of(
    block: NDArray[np.float64],
    goal: NDArray[np.float64],
    post: NDArray[np.float64],
    tip: NDArray[np.float64],
    turn: NDArray[np.float64],
) -> NDArray[np.int8]:
    """Class (N, topics) of each scene in each of `TOPICS`.

    Args:
        block: (N, 3) position of the block, m; all in one frame, in which the way to the goal runs along y.
        goal: (N, 3) of its goal.
        post: (N, 3) of the obstacle.
        tip: (N, 3) of the paddle's lower edge.
        turn: (N,) from the block's yaw to the goal's, rad.
    """
    to_goal = np.linalg.norm((goal - block)[:, :2], axis=1)
    to_tip = np.linalg.norm(tip - block, axis=1)
    along = block[:, 1] - post[:, 1]
    near = (to_goal > NEAR_M[0]) & (to_goal < NEAR_M[1])
    beside = (to_goal > BESIDE_GOAL_M[0]) & (to_goal < BESIDE_GOAL_M[1])
    on = to_goal < SUCCESS_DISTANCE_M
    askew, straight = np.abs(turn) > ASKEW_RAD, np.abs(turn) < SUCCESS_YAW_RAD
    return np.stack(
        [
            np.select([to_goal > FAR_M, near, beside, on & askew, on & straight], [0, 1, 2, 3, 4], UNCLEAR),
            np.select([to_tip < TOUCHING_M, to_tip > AWAY_M], [0, 1], UNCLEAR),
            np.select([along < -PASSED_M, np.abs(along) < BESIDE_M, along > PASSED_M], [0, 1, 2], UNCLEAR),
        ],
        axis=1,
    ).astype(np.int8)
