"""Options shared by all MuJoCo sims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self, TypeVar

from robotrl.sims.mujoco.engine.core import MujocoCore
from robotrl.sims.mujoco.engine.task import Task
from robotrl.sims.mujoco.render.cameras import Renderer


class AddsImages(Protocol):
    """A sim that can add images to its observations."""

    def see(self, image: tuple[str, ...], image_size: int, image_renderer: Renderer) -> Self:
        """Add images to the observation."""
        ...


S = TypeVar("S", bound=AddsImages)


@dataclass(frozen=True, kw_only=True)
class MujocoCfg:
    """Options shared by all MuJoCo sims: physics threads, domain randomization and images."""

    threads: int = 0
    """Physics threads; 0 uses every core."""
    randomization: Mapping[str, tuple[float, float]] | None = None
    """Domain randomization: parameter to the (low, high) of its multiplier, drawn for each episode; the sim's page
    lists the parameters."""
    dump_dir: str | None = None
    """Directory to which the numerics guard writes replayable states."""
    image: tuple[str, ...] = ()
    """Cameras whose images are part of the observation, as "image_NAME"; see docs/cameras.md."""
    image_size: int = 64
    """Side length of these images, 8 to 512 pixels."""
    image_renderer: Renderer = "auto"
    """Renderer of these images."""

    def core(
        self,
        task: Task,
        num_envs: int,
        seed: int,
        randomization: Mapping[str, tuple[float, float]] | None = None,
    ) -> MujocoCore:
        """Numpy core for a task; `randomization` applies where the config states none."""
        ranges = randomization if self.randomization is None else self.randomization
        dumps = None if self.dump_dir is None else Path(self.dump_dir)
        return MujocoCore(task, num_envs, seed, self.threads, ranges, dumps)

    def with_images(self, sim: S) -> S:
        """Add the configured images to a sim's observations; returns the sim."""
        return sim.see(self.image, self.image_size, self.image_renderer) if self.image else sim
