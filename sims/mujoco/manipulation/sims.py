"""Configs of the arm's sims: each joins a task and its scripted expert."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from robotrl.sims.mujoco.engine.config import MujocoCfg
from robotrl.sims.mujoco.engine.core import MujocoCore
from robotrl.sims.mujoco.engine.mirror import mirrored
from robotrl.sims.mujoco.engine.servo import ServoCore, ServoSim
from robotrl.sims.mujoco.engine.sim import ExpertFactory, ExpertSim
from robotrl.sims.mujoco.manipulation import peg_insert, pick_place, press, push, push_captions, reach
from robotrl.sims.mujoco.manipulation.peg_insert import PegInsert
from robotrl.sims.mujoco.manipulation.peg_insert_expert import PegExpert
from robotrl.sims.mujoco.manipulation.pick_place import PickPlace
from robotrl.sims.mujoco.manipulation.pick_place_expert import PickPlaceExpert
from robotrl.sims.mujoco.manipulation.press import Press
from robotrl.sims.mujoco.manipulation.press_expert import PressExpert
from robotrl.sims.mujoco.manipulation.push import Push
from robotrl.sims.mujoco.manipulation.push_expert import PushExpert
from robotrl.sims.mujoco.manipulation.reach import Reach
from robotrl.sims.mujoco.manipulation.reach_expert import ReachExpert
from robotrl.sims.mujoco.warp.servo import WarpServoSim
from robotrl.sims.mujoco.warp.sim import MeasuredWarpSim
from robotrl.spec import Spec, TrainDefaults
from robotrl.spec.symmetry import Symmetry

SidedTask = PegInsert | PickPlace | Push | Reach
"""A task that is the same in the mirror of the arm's plane."""
TRAIN_DEFAULTS = TrainDefaults({"sim.num_envs": 96, "algo.critic_warmup_env_steps": 15_360})


class SideSymmetry:
    """Symmetry "mirror" of an arm's sims on both engines, if all cameras in use are in the arm's plane."""

    observation_spec: dict[str, Spec]
    action_spec: Spec
    sided_task: SidedTask

    @property
    def symmetries(self) -> Mapping[str, tuple[Symmetry, ...]]:
        """See `HasSymmetries`."""
        return mirrored(self.observation_spec, self.action_spec, self.sided_task)


class ArmSim(ExpertSim, SideSymmetry):
    """Sim of an arm on the native engine."""

    def __init__(self, core: MujocoCore, expert: ExpertFactory) -> None:
        super().__init__(core, expert)
        task = core.task
        assert isinstance(task, SidedTask)
        self.sided_task = task


class WarpArmSim(MeasuredWarpSim, SideSymmetry):
    """Sim of an arm on MuJoCo Warp."""

    def __init__(
        self,
        task: SidedTask,
        num_envs: int,
        seed: int,
        device: torch.device,
        randomization: Mapping[str, tuple[float, float]] | None = None,
    ) -> None:
        super().__init__(task, num_envs, seed, device, randomization)
        self.sided_task = task


@dataclass(frozen=True, kw_only=True)
class PegInsertCfg(MujocoCfg):
    """`mujoco/peg-insert`: the arm inserts a square peg into a square hole of random pose."""

    train_defaults: ClassVar[TrainDefaults] = TRAIN_DEFAULTS
    reward: Literal["sparse", "shaped"] = "sparse"
    """Reward: "sparse" is +1 at success and 0 otherwise; "shaped" adds ten times the meters gained on the goal."""
    clearance_m: float = peg_insert.CLEARANCE_M
    """Room between peg and wall on each side, 0.0005 to 0.01 m."""
    limit_s: float = peg_insert.LIMIT_S
    """Time limit of an episode, 0.5 to 60 s."""

    def build(self, num_envs: int, seed: int) -> ArmSim | WarpArmSim:
        """Build the batched sim.

        Args:
            num_envs: N, 1 or more.
            seed: seed of the training starts that are drawn.

        Raises:
            ConfigError: a value out of range, with what was expected.
        """
        task = PegInsert(self.reward, self.clearance_m, self.limit_s)
        if self.on_warp():
            return self.warp_sim(WarpArmSim, task, num_envs, seed)
        return self.with_images(ArmSim(self.core(task, num_envs, seed), PegExpert))


@dataclass(frozen=True, kw_only=True)
class PickPlaceCfg(MujocoCfg):
    """`mujoco/pick-place`: the arm grasps a block with a two-finger gripper and places it on a pedestal."""

    train_defaults: ClassVar[TrainDefaults] = TRAIN_DEFAULTS
    reward: Literal["sparse", "shaped"] = "sparse"
    """Reward: "sparse" is +1 at success and 0 otherwise; "shaped" adds ten times the meters gained on the goal."""
    limit_s: float = pick_place.LIMIT_S
    """Time limit of an episode, 0.5 to 60 s."""

    def build(self, num_envs: int, seed: int) -> ArmSim | WarpArmSim:
        """Build the batched sim.

        Args:
            num_envs: N, 1 or more.
            seed: seed of the training starts that are drawn.

        Raises:
            ConfigError: a value out of range, with what was expected.
        """
        task = PickPlace(self.reward, self.limit_s)
        if self.on_warp():
            return self.warp_sim(WarpArmSim, task, num_envs, seed)
        return self.with_images(ArmSim(self.core(task, num_envs, seed), PickPlaceExpert))


@dataclass(frozen=True, kw_only=True)
class PressCfg(MujocoCfg):
    """`mujoco/press`: the arm presses a pad on a surface of unknown height, tilt and stiffness."""

    train_defaults: ClassVar[TrainDefaults] = TRAIN_DEFAULTS
    reward: Literal["sparse", "shaped"] = "sparse"
    """Reward: "sparse" is +1 at success and 0 otherwise; "shaped" adds ten times the meters gained on the goal."""
    limit_s: float = press.LIMIT_S
    """Time limit of an episode, 0.5 to 60 s."""

    def build(self, num_envs: int, seed: int) -> ServoSim | WarpServoSim:
        """Build the batched sim.

        Args:
            num_envs: N, 1 or more.
            seed: seed of the training starts that are drawn.

        Raises:
            ConfigError: a value out of range, with what was expected.
        """
        task = Press(self.reward, self.limit_s)
        if self.on_warp():
            return self.warp_sim(WarpServoSim, task, num_envs, seed)
        core = ServoCore(task, num_envs, seed, *self.core_options(task))
        return self.with_images(ServoSim(core, PressExpert))


@dataclass(frozen=True, kw_only=True)
class PushCfg(MujocoCfg):
    """`mujoco/push`: the arm pushes a block around an obstacle to a goal pose."""

    train_defaults: ClassVar[TrainDefaults] = TRAIN_DEFAULTS
    reward: Literal["sparse", "shaped"] = "sparse"
    """Reward: "sparse" is +1 at success and 0 otherwise; "shaped" adds ten times the meters gained on the goal."""
    limit_s: float = push.LIMIT_S
    """Time limit of an episode, 0.5 to 60 s."""

    def build(self, num_envs: int, seed: int) -> PushSim | WarpArmSim:
        """Build the batched sim.

        Args:
            num_envs: N, 1 or more.
            seed: seed of the training starts that are drawn.

        Raises:
            ConfigError: a value out of range, with what was expected.
        """
        task = Push(self.reward, self.limit_s)
        if self.on_warp():
            return self.warp_sim(WarpArmSim, task, num_envs, seed)
        return self.with_images(PushSim(self.core(task, num_envs, seed), PushExpert))


class PushSim(ArmSim):
    """Pushing sim with captions of its scenes."""

    caption_topics = push_captions.TOPICS
    caption_camera = "flat_front"

    def caption_classes(self) -> NDArray[np.int8]:
        """(N, topics) which caption of each topic is true of the present scene."""
        task = self.core.task
        assert isinstance(task, Push)
        return push_captions.classes_of(
            task.block.pos_w, task.goal_pos_w, task.obstacle_pos_w, task.hand.pos_w, task.turn
        )


@dataclass(frozen=True, kw_only=True)
class ReachCfg(MujocoCfg):
    """`mujoco/reach`: the arm moves its tool to a pose in free space and stops there."""

    train_defaults: ClassVar[TrainDefaults] = TRAIN_DEFAULTS
    reward: Literal["sparse", "shaped"] = "sparse"
    """Reward: "sparse" is +1 at success and 0 otherwise; "shaped" adds ten times the meters gained on the goal."""
    limit_s: float = reach.LIMIT_S
    """Time limit of an episode, 0.5 to 60 s."""

    def build(self, num_envs: int, seed: int) -> ArmSim | WarpArmSim:
        """Build the batched sim.

        Args:
            num_envs: N, 1 or more.
            seed: seed of the training starts that are drawn.

        Raises:
            ConfigError: a value out of range, with what was expected.
        """
        task = Reach(self.reward, self.limit_s)
        if self.on_warp():
            return self.warp_sim(WarpArmSim, task, num_envs, seed)
        return self.with_images(ArmSim(self.core(task, num_envs, seed), ReachExpert))
