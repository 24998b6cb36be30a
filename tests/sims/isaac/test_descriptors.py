"""IO descriptors of Isaac Lab as names, units, scales and default pose."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

import robotrl
from robotrl.errors import ConfigError, DataError
from robotrl.sims.isaac.descriptors import action_description, observation_names
from robotrl.sims.isaac.wrap import sim_of
from robotrl.spec.actuation import Actuation, HasActuation
from tests.kits.isaac_standins import CountingLab, JointPositionAction, managers
from tests.kits.refusals import raises_naming

JOINTS = ["hip", "knee"]
ACTIONS = [
    {
        "name": "joint_position_action",
        "full_path": "isaaclab.envs.mdp.actions.joint_actions.JointPositionAction",
        "mdp_type": "Action",
        "action_type": "JointAction",
        "dtype": "torch.float32",
        "shape": [2],
        "joint_names": JOINTS,
        "scale": 0.25,
        "offset": [0.5, -1.0],
        "clip": None,
        "extras": {"description": "Joint action term."},
    }
]
OBSERVATIONS = {
    "policy": [
        {
            "name": "base_ang_vel",
            "shape": [3],
            "overloads": {"scale": 0.2, "history_length": 0, "clip": None},
            "extras": {"units": "rad/s", "axes": ["X", "Y", "Z"]},
        },
        {
            "name": "joint_pos_rel",
            "shape": [2],
            "joint_names": JOINTS,
            "overloads": {"scale": None, "history_length": 2, "flatten_history_dim": True},
            "extras": {"units": "rad"},
        },
        {"name": "generated_commands", "shape": [1], "overloads": {}, "extras": {}},
        {"name": "generated_commands", "shape": [1], "overloads": {}, "extras": {}},
    ]
}
ROBOT = {
    "joint_names": ["knee", "hip", "tail"],
    "default_joint_pos": [-1.0, 0.5, 0.0],
    "default_joint_stiffness": [30.0, 20.0, 1.0],
    "default_joint_damping": [3.0, 2.0, 0.1],
}
DESCRIPTORS = {"observations": OBSERVATIONS, "actions": ACTIONS, "articulations": {"robot": ROBOT}, "scene": {}}


def test_observations():
    names, units = observation_names(DESCRIPTORS)["policy"]
    assert names == (
        "base_ang_vel_x",
        "base_ang_vel_y",
        "base_ang_vel_z",
        "joint_pos_rel_hip_back_1",
        "joint_pos_rel_knee_back_1",
        "joint_pos_rel_hip_back_0",
        "joint_pos_rel_knee_back_0",
        "generated_commands",
        "generated_commands_2",
    )
    # a scaled measurement counts in a multiple of its unit: 0.2 times 1 rad/s is 0.2
    assert units == ("5 rad/s",) * 3 + ("rad",) * 4 + ("?",) * 2


def test_joint_targets():
    found = action_description(DESCRIPTORS)
    assert found is not None
    assert found.names == ("hip", "knee")
    assert found.units == ("rad", "rad")
    assert (found.scale, found.offset) == ((0.25, 0.25), (0.5, -1.0))
    # gains and pose in the order of the action, not of the robot
    assert found.actuation == Actuation("position", (0.5, -1.0), (20.0, 30.0), (2.0, 3.0))


@pytest.mark.parametrize(
    ("scale", "expected"),
    [([0.1, 0.2], (0.1, 0.2)), (torch.tensor([[0.1, 0.2], [0.1, 0.2]]), (pytest.approx(0.1), pytest.approx(0.2)))],
)
def test_scales_of_each_joint(scale, expected):
    found = action_description({"actions": [{**ACTIONS[0], "scale": scale}]})
    assert found is not None and found.scale == expected


def test_terms_of_several_kinds():
    hand = {
        "name": "gripper",
        "full_path": "isaaclab.BinaryJointPositionAction",
        "shape": [1],
        "joint_names": ["a", "b"],
    }
    found = action_description({"actions": [*ACTIONS, hand]})
    assert found is not None
    assert found.names == ("hip", "knee", "gripper_0")
    assert (found.scale[2], found.offset[2], found.units[2]) == (1.0, 0.0, "?")
    assert found.actuation is None
    effort = {**ACTIONS[0], "full_path": "x.JointEffortAction", "offset": 0.0, "clip": [[-1.0, 1.0], [-20.0, 20.0]]}
    found = action_description({"actions": [effort]})
    assert found is not None and found.units == ("N m", "N m")
    assert (found.low, found.high) == ((-1.0, -20.0), (1.0, 20.0))
    assert found.actuation == Actuation("torque")


def test_impossible_descriptions_are_refused():
    with raises_naming(ConfigError, "scale", "joint_position_action"):
        action_description({"actions": [{**ACTIONS[0], "scale": 0.0}]})
    with raises_naming(ConfigError, "descriptors", 3, 2):
        action_description({"actions": [{**ACTIONS[0], "scale": [1.0, 2.0, 3.0]}]})


class Described(CountingLab):
    """An environment with Isaac Lab's descriptors; its own actions are two numbers."""

    def __init__(self, found: dict[str, Any]) -> None:
        super().__init__({}, limit=9)
        self.single_action_space = type(self.single_action_space)(-float("inf"), float("inf"), (2,))
        self.get_IO_descriptors = found


def test_a_sim_takes_joint_targets_and_gives_the_environment_its_own_actions():
    env = Described({**DESCRIPTORS, "observations": {}})
    sim: Any = sim_of(env, action_bound=2.0)
    assert isinstance(sim, HasActuation)
    spec = sim.action_spec
    assert (spec.names, spec.units) == (("hip", "knee"), ("rad", "rad"))
    assert (spec.low, spec.high) == ((0.0, -1.5), (1.0, -0.5))
    sim.reset()
    sim.step(torch.tensor([[0.5, -1.0], [1.0, -0.75]]))
    assert env.actions[0].tolist() == [[0.0, 0.0], [2.0, 1.0]]
    with pytest.warns(UserWarning, match="'hip' is 7"):
        sim.step(torch.tensor([[7.0, -1.0], [0.5, -1.0]]))
    assert env.actions[1].tolist() == [[2.0, 0.0], [0.0, 0.0]]
    raw: Any = sim_of(env, action_bound=2.0, actions="raw")
    assert (raw.action_spec.names, raw.action_spec.high) == (("action_0", "action_1"), (2.0, 2.0))
    assert raw.actuation is None


def test_descriptions_of_another_width_are_refused():
    env = Described({**DESCRIPTORS, "observations": {}, "actions": ACTIONS * 2})
    with raises_naming(ConfigError, "descriptors", 4, 2):
        sim_of(env)
    with raises_naming(ConfigError, "observation 'policy'", 9, 2):
        sim_of(Described(DESCRIPTORS))


def test_managers_describe_where_there_are_no_descriptors():
    env: Any = CountingLab({}, limit=9)
    env.single_observation_space = type(env.single_observation_space)(
        {"actor": type(env.single_action_space)(-1.0, 1.0, (3,))}
    )
    env.single_action_space = type(env.single_action_space)(-1.0, 1.0, (2,))
    term = JointPositionAction(JOINTS, torch.tensor([[0.5, 0.25]]), torch.tensor([[0.1, -0.1]]))
    vars(env).update(vars(managers(term)))
    sim: Any = sim_of(env)
    assert sim.observation_spec["actor"].names == ("joint_pos_0", "joint_pos_1", "command")
    assert sim.action_spec.names == ("hip", "knee")
    assert sim.action_spec.high == (pytest.approx(0.6), pytest.approx(0.15))
    assert sim.actuation.default_pose == (pytest.approx(0.1), pytest.approx(-0.1))
    assert sim.privileged == ()


def test_descriptors_of_a_file(tmp_path):
    path = tmp_path / "io.json"
    path.write_text(json.dumps({"observations": {}, "actions": [{**ACTIONS[0], "joint_names": [*JOINTS, "toe"]}]}))
    source = "isaac/tests.kits.isaac_standins:lab"
    with raises_naming(ConfigError, "descriptors", 2, 3):
        robotrl.make_sim(source, num_envs=2, descriptors=path)
    joints = {**ACTIONS[0], "shape": [3], "joint_names": [*JOINTS, "toe"], "offset": None}
    path.write_text(json.dumps({"observations": {}, "actions": [joints]}))
    assert robotrl.make_sim(source, num_envs=2, descriptors=path).action_spec.names == ("hip", "knee", "toe")
    path.write_text("[]")
    with raises_naming(DataError, "descriptors", "observations", "actions"):
        robotrl.make_sim(source, num_envs=2, descriptors=path)
