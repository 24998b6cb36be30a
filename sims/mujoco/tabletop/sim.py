"""`mujoco/tabletop`: the arm points at, lifts or pushes the object that an instruction names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from robotrl.sims.mujoco.engine.config import MujocoCfg
from robotrl.sims.mujoco.engine.core import MujocoCore
from robotrl.sims.mujoco.engine.mirror import mirrored
from robotrl.sims.mujoco.engine.sim import ExpertFactory, ExpertSim
from robotrl.sims.mujoco.tabletop import captions, layout
from robotrl.sims.mujoco.tabletop.expert import TabletopExpert
from robotrl.sims.mujoco.tabletop.language import VOCABULARY, Compositions, encode
from robotrl.sims.mujoco.tabletop.symmetries import recolorings
from robotrl.sims.mujoco.tabletop.task import LIMIT_S, Tabletop, instruction_text
from robotrl.sims.mujoco.warp.sim import MeasuredWarpSim
from robotrl.spec import INSTRUCTION, Spec
from robotrl.spec.symmetry import Symmetry


@dataclass(frozen=True, kw_only=True)
class TabletopCfg(MujocoCfg):
    """`mujoco/tabletop`: the arm points at, lifts or pushes the object that an instruction names."""

    families: tuple[str, ...] | None = None
    """Names of the instruction families; None takes all."""
    compositions: Compositions = "seen"
    """Instructions to draw from: those "seen" in training, those "held-out" from it, or "all"."""
    things: int = layout.THINGS
    """Blocks and cans on the table, as many as the instructions need to 6; with the mats 8 at most."""
    mats: int = layout.MATS_LAID
    """Flat targets on the table, as many as the instructions need to 3."""
    reward: Literal["sparse", "shaped"] = "sparse"
    """Reward: "sparse" is +1 at success and 0 otherwise; "shaped" adds ten times the meters gained on the goal."""
    limit_s: float = LIMIT_S
    """Time limit of an episode, 0.5 to 60 s."""

    def build(self, num_envs: int, seed: int) -> TabletopSim | WarpTabletopSim:
        """Build the batched sim.

        Args:
            num_envs: N, 1 or more.
            seed: seed of the training starts that are drawn.

        Raises:
            ConfigError: a value out of range or an unknown name, with what was expected.
        """
        task = Tabletop(self.families, self.compositions, self.things, self.mats, self.reward, self.limit_s)
        if self.on_warp():
            return self.warp_sim(WarpTabletopSim, task, num_envs, seed)
        return self.with_images(TabletopSim(self.core(task, num_envs, seed), TabletopExpert))


class TabletopFacts:
    """Instructions, grounding targets and symmetries of the tabletop sims on both engines.

    Each instruction family is a scenario.
    """

    privileged = Tabletop.privileged
    grounding_keys = ("meant",)
    vocabulary = VOCABULARY
    tabletop: Tabletop
    """The task."""
    observation_spec: dict[str, Spec]
    action_spec: Spec

    @property
    def scenarios(self) -> tuple[str, ...]:
        """Names of the instruction families."""
        return tuple(family.title for family in self.tabletop.families)

    def scenario_of(self, state_id: int) -> str:
        """Instruction family of a start id."""
        families = self.tabletop.families
        return families[state_id % len(families)].title

    def instructions(self) -> list[str]:
        """Instruction of each env, N texts."""
        return [instruction_text(row) for row in self.tabletop.instruction_ids.tolist()]

    @property
    def symmetries(self) -> Mapping[str, tuple[Symmetry, ...]]:
        """Symmetries "colours" and, if all cameras in use are orthographic and in the arm's plane, "mirror"."""
        return mirrored(self.observation_spec, self.action_spec, self.tabletop) | recolorings(
            self.observation_spec, self.action_spec
        )


class WarpTabletopSim(MeasuredWarpSim, TabletopFacts):
    """A `WarpSim` of the tabletop; see `TabletopFacts`."""

    def __init__(
        self,
        task: Tabletop,
        num_envs: int,
        seed: int,
        device: torch.device,
        randomization: Mapping[str, tuple[float, float]] | None = None,
    ) -> None:
        super().__init__(task, num_envs, seed, device, randomization)
        self.tabletop = task


class TabletopSim(ExpertSim, TabletopFacts):
    """Tabletop sim on the native engine; see `TabletopFacts`."""

    caption_topics = captions.TOPICS
    caption_camera = "flat_front"

    def __init__(self, core: MujocoCore, expert: ExpertFactory) -> None:
        super().__init__(core, expert)
        task = core.task
        assert isinstance(task, Tabletop)
        self.tabletop = task

    def caption_classes(self) -> NDArray[np.int8]:
        """(N, topics) which caption of each topic is true of the present scene."""
        task = self.task
        return captions.classes_of(task.pos_w, task.now().mats, task.hand.pos_w, task.here)

    @property
    def task(self) -> Tabletop:
        """Task of the core, as `Tabletop`."""
        return self.tabletop

    def displace(self, envs: torch.Tensor, offsets_m: NDArray[np.float64]) -> dict[str, torch.Tensor]:
        """Move loose things of some envs, from where pushes then are measured; see `MujocoCore.displace`."""
        self.tabletop.moved(envs.cpu().numpy(), offsets_m)
        return super().displace(envs, offsets_m)

    def instruct(self, env: int, text: str) -> None:
        """Replace the observed instruction of an env until its episode ends; the success condition does not change.

        Tests whether a policy uses the instruction.

        Raises:
            ConfigError: an unknown word, no word, or too many.
        """
        words = encode(text)
        self.task.words[env] = words
        self.core.obs[INSTRUCTION][env] = words
