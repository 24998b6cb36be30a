"""Quadruped robot of the Unitree Go2 class: published parameters, MJCF from primitive shapes, and robot card.

Link lengths, masses, inertias, joint ranges and torque limits are those of the Go2's public URDF (`go2_description`);
default pose, gains and action scale are those of its public training configurations (`unitree_rl_lab`). Joints are in
the order of Unitree's motor interface: FR, FL, RR, RL, each hip, thigh, calf.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from robotrl.spec.json_fields import settings_from_json

LEGS = ("FR", "FL", "RR", "RL")
LINKS = ("hip", "thigh", "calf")
JOINTS = tuple(f"{leg}_{link}_joint" for leg in LEGS for link in LINKS)

HIP_X_M, HIP_Y_M = 0.1934, 0.0465
"""Distances of the hip joints from the trunk's centre."""
HIP_LINK_M = 0.0955
"""Sideways distance from hip joint to thigh joint."""
THIGH_M = CALF_M = 0.213
FOOT_RADIUS_M = 0.022
KNEE_RADIUS_M = 0.02
TRUNK_HALF_M = (0.1881, 0.09, 0.057)
"""Half extents of the box around the trunk including the hip motors (the bare trunk has a half width of 0.047 m)."""
HEAD_X_M = 0.285

HIP_RANGE_RAD = (-1.0472, 1.0472)
FRONT_THIGH_RANGE_RAD = (-1.5708, 3.4907)
REAR_THIGH_RANGE_RAD = (-0.5236, 4.5379)
CALF_RANGE_RAD = (-2.7227, -0.83776)
TORQUE_LIMIT_NM = {"hip": 23.7, "thigh": 23.7, "calf": 45.43}
SPEED_LIMIT_RAD_S = {"hip": 30.1, "thigh": 30.1, "calf": 15.7}

KP_NM_RAD = 25.0
KD_NM_S_RAD = 0.5
ACTION_SCALE_RAD = 0.25
ACTION_LIMIT = 4.0
"""Bound of each action: joint targets reach 1 rad to either side of the default pose."""
ARMATURE_KG_M2 = 0.01
"""Inertia of rotor and gears, reflected to the joint."""
JOINT_DAMPING_NM_S_RAD = 0.1
"""Viscous model of the friction in gears and bearings; dry friction would need a constraint for each joint."""
FOOT_FRICTION = 0.8
STAND_HEIGHT_M = 0.28
"""Height of the trunk's centre in the default pose, under the robot's weight."""

PHYSICS_DT_S = 0.005
SUBSTEPS = 4
LATENCY_S = 0.01
"""Nominal latency from command to motor."""
LATENCY_STEPS = 4
"""Maximum latency, physics steps."""


def default_pose_rad() -> tuple[float, ...]:
    """Default joint angles (12,), rad: targets of a zero action, with which the robot stands."""
    return tuple(
        value for leg in LEGS for value in (-0.1 if leg[1] == "R" else 0.1, 0.8 if leg[0] == "F" else 1.0, -1.5)
    )


def joint_range_rad() -> tuple[tuple[float, float], ...]:
    """Mechanical joint limits (12, 2), rad."""
    return tuple(
        pair
        for leg in LEGS
        for pair in (
            HIP_RANGE_RAD,
            FRONT_THIGH_RANGE_RAD if leg[0] == "F" else REAR_THIGH_RANGE_RAD,
            CALF_RANGE_RAD,
        )
    )


@dataclass(frozen=True)
class RobotCard:
    """Parameters that a controller needs to run a policy on the robot; all tuples are in the order of `joint_names`.

    The policy's action `a` becomes the joint targets `default_pose_rad + action_scale_rad * a`, held for
    `control_dt_s`; the motors apply `kp * (target - position) - kd * velocity`, within `torque_limit_nm`.
    """

    robot: str
    joint_names: tuple[str, ...]
    default_pose_rad: tuple[float, ...]
    joint_low_rad: tuple[float, ...]
    joint_high_rad: tuple[float, ...]
    torque_limit_nm: tuple[float, ...]
    speed_limit_rad_s: tuple[float, ...]
    action_scale_rad: float
    action_limit: float
    kp_nm_rad: tuple[float, ...]
    kd_nm_s_rad: tuple[float, ...]
    control_dt_s: float
    physics_dt_s: float
    latency_s: float
    """Nominal latency in training from command to torque."""
    observation_names: tuple[str, ...]
    """Columns of the policy's `state` observation."""
    schema_version: int = 1

    def to_json(self) -> dict[str, Any]:
        """Convert to a dict that JSON can store."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> RobotCard:
        """Create from a result of `to_json`."""
        return cls(**settings_from_json(data))


def robot_card(observation_names: tuple[str, ...]) -> RobotCard:
    """Build the card of this robot, for a policy with these observation columns."""
    low, high = zip(*joint_range_rad(), strict=True)
    return RobotCard(
        robot="unitree-go2",
        joint_names=JOINTS,
        default_pose_rad=default_pose_rad(),
        joint_low_rad=low,
        joint_high_rad=high,
        torque_limit_nm=tuple(TORQUE_LIMIT_NM[link] for _ in LEGS for link in LINKS),
        speed_limit_rad_s=tuple(SPEED_LIMIT_RAD_S[link] for _ in LEGS for link in LINKS),
        action_scale_rad=ACTION_SCALE_RAD,
        action_limit=ACTION_LIMIT,
        kp_nm_rad=(KP_NM_RAD,) * len(JOINTS),
        kd_nm_s_rad=(KD_NM_S_RAD,) * len(JOINTS),
        control_dt_s=PHYSICS_DT_S * SUBSTEPS,
        physics_dt_s=PHYSICS_DT_S,
        latency_s=LATENCY_S,
        observation_names=observation_names,
    )


def _leg(leg: str) -> str:
    """MJCF of one leg. Only foot, knee and hip collide, as spheres, which suffices for ground contact."""
    front, side = (1 if leg[0] == "F" else -1), (1 if leg[1] == "L" else -1)
    thigh_range = FRONT_THIGH_RANGE_RAD if front > 0 else REAR_THIGH_RANGE_RAD
    y = side * HIP_LINK_M
    return f"""
<body name="{leg}_hip" pos="{front * HIP_X_M} {side * HIP_Y_M} 0">
  <inertial mass="0.678" pos="{front * -0.0054} {side * 0.00194} -0.000105"
    fullinertia="0.00048 0.000884 0.000596 {front * side * -3.01e-06} {front * 1.11e-06} {side * -1.42e-06}"/>
  <joint name="{leg}_hip_joint" axis="1 0 0" range="{HIP_RANGE_RAD[0]} {HIP_RANGE_RAD[1]}"/>
  <geom class="looks_light" type="capsule" size="0.036" fromto="0 {side * 0.04} 0 0 {side * 0.07} 0"/>
  <geom name="{leg}_hip" class="touch" size="0.046" pos="0 {side * 0.08} 0"/>
  <body name="{leg}_thigh" pos="0 {y} 0">
    <inertial mass="1.152" pos="-0.00374 {side * -0.0223} -0.0327"
      fullinertia="0.00584 0.0058 0.00103 {side * 8.72e-05} -0.000289 {side * 0.000808}"/>
    <joint name="{leg}_thigh_joint" range="{thigh_range[0]} {thigh_range[1]}"/>
    <geom class="looks" type="capsule" size="0.026" fromto="0 0 0 0 0 {-THIGH_M}"/>
    <geom class="looks_light" type="cylinder" size="0.042" fromto="0 {side * -0.03} 0 0 {side * 0.025} 0"/>
    <geom name="{leg}_knee" class="touch" size="{KNEE_RADIUS_M}" pos="0 0 {-THIGH_M}"/>
    <site name="{leg}_knee" pos="0 0 {-THIGH_M}"/>
    <body name="{leg}_calf" pos="0 0 {-THIGH_M}">
      <inertial mass="0.241352" pos="0.006296 {side * -0.000622} -0.141417"
        fullinertia="0.0014635 0.00149 5.33e-05 {side * 2e-07} 6e-06 {side * 1.22e-05}"/>
      <joint name="{leg}_calf_joint" range="{CALF_RANGE_RAD[0]} {CALF_RANGE_RAD[1]}"/>
      <geom class="looks" type="capsule" size="0.015" fromto="0 0 0 -0.002 0 {-CALF_M}"/>
      <geom name="{leg}_foot" class="touch" size="{FOOT_RADIUS_M}" pos="-0.002 0 {-CALF_M}" rgba="0.95 0.55 0.10 1"/>
      <site name="{leg}_foot" pos="-0.002 0 {-CALF_M}"/>
    </body>
  </body>
</body>"""


def _motor(joint: str) -> str:
    torque = TORQUE_LIMIT_NM[joint.split("_")[1]]
    return (
        f'<position name="{joint}" joint="{joint}" kp="{KP_NM_RAD}" kv="{KD_NM_S_RAD}"'
        f' forcerange="{-torque} {torque}" delay="{LATENCY_S}" nsample="{LATENCY_STEPS + 1}"/>'
    )


def mjcf(ground: str, assets: str = "") -> str:
    """Build the MJCF of the robot on a ground.

    Args:
        ground: geoms of the world; those of class "ground" collide with the robot.
        assets: assets that these geoms use.
    """
    half = " ".join(str(value) for value in TRUNK_HALF_M)
    return f"""
<mujoco model="quadruped">
  <compiler angle="radian"/>
  <option integrator="implicitfast" timestep="{PHYSICS_DT_S}" cone="pyramidal" iterations="3" ls_iterations="6">
    <flag eulerdamp="disable"/>
  </option>
  <default>
    <joint axis="0 1 0" damping="{JOINT_DAMPING_NM_S_RAD}" armature="{ARMATURE_KG_M2}"/>
    <geom condim="3" friction="{FOOT_FRICTION} 0.02 0.01"/>
    <default class="ground"><geom contype="0" conaffinity="1" rgba="0.87 0.88 0.89 1"/></default>
    <default class="touch">
      <geom type="sphere" contype="1" conaffinity="0" priority="1" rgba="0.16 0.18 0.20 1"/>
    </default>
    <default class="looks"><geom contype="0" conaffinity="0" rgba="0.16 0.18 0.20 1"/>
      <default class="looks_light"><geom rgba="0.62 0.66 0.70 1"/></default></default>
  </default>
  <asset>{assets}</asset>
  <worldbody>
    <light pos="0.3 -0.6 3" dir="0.1 0.4 -1"/>
    {ground}
    <body name="trunk" pos="0 0 {STAND_HEIGHT_M}">
      <freejoint/>
      <inertial mass="6.921" pos="0.021112 0 -0.005366"
        fullinertia="0.02448 0.098077 0.107 0.00012166 0.0014849 -3.12e-05"/>
      <site name="imu"/>
      <geom name="trunk" class="touch" type="box" size="{half}" rgba="0.34 0.47 0.50 1"/>
      <geom name="head" class="touch" type="sphere" size="0.05" pos="{HEAD_X_M} 0 0" rgba="0.62 0.66 0.70 1"/>
      {"".join(_leg(leg) for leg in LEGS)}
    </body>
  </worldbody>
  <actuator>{"".join(_motor(joint) for joint in JOINTS)}</actuator>
  <sensor>
    <gyro site="imu"/>
    <framezaxis objtype="xbody" objname="world" reftype="xbody" refname="trunk"/>
    <velocimeter site="imu"/>
    {"".join(f'<framepos objtype="site" objname="{leg}_{point}"/>' for point in ("foot", "knee") for leg in LEGS)}
    {"".join(f'<framelinvel objtype="site" objname="{leg}_foot"/>' for leg in LEGS)}
  </sensor>
</mujoco>"""
