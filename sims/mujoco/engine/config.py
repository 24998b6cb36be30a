"""Options shared by all MuJoCo sims."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, Self, TypeVar, get_args

from robotrl.errors import ConfigError, unknown
from robotrl.sims.mujoco.engine.core import MujocoCore
from robotrl.sims.mujoco.engine.task import DeviceTask, Task
from robotrl.sims.mujoco.render.cameras import Renderer
from robotrl.spec.sim_options import NOT_LOG_ONLY, UNPERTURBED, LogOnlyCfg, PerturbCfg

if TYPE_CHECKING:
    import torch

    from robotrl.sims.mujoco.engine.sim import MujocoSim
    from robotrl.sims.mujoco.warp.sim import WarpSim

Engine = Literal["auto", "native", "warp"]
ON_WARP = (
    *("mujoco/halfcheetah", "mujoco/hopper", "mujoco/walker2d", "mujoco/ant", "mujoco/humanoid"),
    *("mujoco/reach", "mujoco/push", "mujoco/peg-insert", "mujoco/pick-place", "mujoco/press"),
    *("mujoco/tabletop", "mujoco/quadruped-velocity"),
)
"""Sims whose task runs on device arrays, see `MujocoCfg.warp_sim`."""


class AddsImages(Protocol):
    """A sim that can add images to its observations."""

    def see(self, image: tuple[str, ...], image_size: int, image_renderer: Renderer) -> Self:
        """Add images to the observation."""
        ...


S = TypeVar("S", bound=AddsImages)
T = TypeVar("T", bound=DeviceTask)
W = TypeVar("W")


@dataclass(frozen=True, kw_only=True)
class MujocoCfg:
    """Options shared by all MuJoCo sims: device and engine, physics threads, domain randomization and images."""

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
    device: str = "cpu"
    """Device that steps the envs and holds the tensors: "cpu", "cuda" or "cuda:1"; see docs/sims/gpu.md for the sims
    that run on a GPU."""
    engine: Engine = "auto"
    """Physics engine: "native" (MuJoCo on CPU threads) or "warp" (MuJoCo Warp); "auto" takes Warp on a GPU."""
    perturb: PerturbCfg = UNPERTURBED
    """Perturbations: places, looks, words, delay, noise, mass and friction; see docs/perturbations.md."""
    history: int = 1
    """Control steps whose observations a policy is given, the present one last, 1 to 100; see docs/history.md."""
    log_only: LogOnlyCfg = NOT_LOG_ONLY
    """Log-only mode: a budget of episodes from starts that nobody chooses; see docs/log-only.md."""

    def on_warp(self) -> bool:
        """True if the configured engine is MuJoCo Warp.

        Raises:
            ConfigError: unknown engine, an engine that does not run on the device, or no such device here.
        """
        if self.engine not in get_args(Engine):
            raise unknown("engine", str(self.engine), get_args(Engine))
        if self.device == "cpu":
            return self.engine == "warp"
        # a simulated robot takes this module without torch
        from robotrl.utils.devices import device_of

        if device_of(self.device).type != "cuda":
            raise ConfigError(f"device is {self.device!r}: expected 'cpu' or 'cuda' for a MuJoCo sim")
        if self.engine == "native":
            raise ConfigError(
                f"engine is 'native' with device {self.device!r}: expected engine 'warp', or device 'cpu'"
            )
        return True

    def core(
        self,
        task: Task,
        num_envs: int,
        seed: int,
        randomization: Mapping[str, tuple[float, float]] | None = None,
    ) -> MujocoCore:
        """Numpy core for a task; `randomization` applies where the config states none.

        Raises:
            ConfigError: the configured engine is MuJoCo Warp.
        """
        return MujocoCore(task, num_envs, seed, *self.core_options(task, randomization))

    def core_options(
        self, task: Task, randomization: Mapping[str, tuple[float, float]] | None = None
    ) -> tuple[int, Mapping[str, tuple[float, float]] | None, Path | None]:
        """Threads, randomization and dump directory of a task's core; see `core`.

        Raises:
            ConfigError: the configured engine is MuJoCo Warp.
        """
        if self.on_warp():
            chosen = f"engine is {self.engine!r}" if self.device == "cpu" else f"device is {self.device!r}"
            raise ConfigError(
                f"{chosen}: sim {task.name!r} runs on the native engine alone, expected engine 'native' and device"
                f" 'cpu'; on MuJoCo Warp run {', '.join(ON_WARP)}"
            )
        ranges = randomization if self.randomization is None else self.randomization
        dumps = None if self.dump_dir is None else Path(self.dump_dir)
        return self.threads, ranges, dumps

    def sim(self, task: DeviceTask, num_envs: int, seed: int) -> MujocoSim | WarpSim:
        """Batched sim of a task that runs on either engine.

        Raises:
            ConfigError: see `on_warp`; or an option that MuJoCo Warp does not have.
        """
        if not self.on_warp():
            from robotrl.sims.mujoco.engine.sim import MujocoSim

            return self.with_images(MujocoSim(self.core(task, num_envs, seed)))
        from robotrl.sims.mujoco.warp.sim import WarpSim

        return self.warp_sim(WarpSim, task, num_envs, seed)

    def warp_sim(
        self,
        make: Callable[[T, int, int, torch.device, Mapping[str, tuple[float, float]] | None], W],
        task: T,
        num_envs: int,
        seed: int,
        randomization: Mapping[str, tuple[float, float]] | None = None,
    ) -> W:
        """Batched sim of a task on MuJoCo Warp.

        Args:
            make: `WarpSim` or a class derived from it.
            task: the task.
            num_envs: N.
            seed: seed of the training starts that are drawn.
            randomization: applies where the config states none.

        Raises:
            ConfigError: an option that MuJoCo Warp does not have.
        """
        fixed = {"threads": 0, "dump_dir": None, "image": ()}
        for field, value in fixed.items():
            found = getattr(self, field)
            if found != value:
                raise ConfigError(f"{field} is {found!r}: expected {value!r} on MuJoCo Warp, or engine 'native'")
        if task.action_spec.dtype != "float32":
            raise ConfigError(
                f"dtype is {task.action_spec.dtype!r}: expected 'float32', which MuJoCo Warp computes in, or engine"
                " 'native'"
            )
        from robotrl.utils.devices import device_of

        ranges = randomization if self.randomization is None else self.randomization
        return make(task, num_envs, seed, device_of(self.device), ranges)

    def with_images(self, sim: S) -> S:
        """Add the configured images to a sim's observations; returns the sim."""
        return sim.see(self.image, self.image_size, self.image_renderer) if self.image else sim
