"""Tasks that Isaac Lab and mjlab register, made by name."""

from __future__ import annotations

import atexit
import importlib
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import gymnasium
import torch

from robotrl.errors import ConfigError, unknown
from robotrl.sims.isaac.surface import ComputesFinalObs

_RUNNING = ExitStack()
"""Simulations that run until the process ends."""
atexit.register(_RUNNING.close)


def default_device() -> str:
    """ "cuda:0" where there is a GPU, else "cpu"."""
    return "cuda:0" if torch.cuda.is_available() else "cpu"


def lab(
    task: str,
    *,
    num_envs: int,
    seed: int,
    device: str | None = None,
    overrides: Sequence[str] = (),
    headless: bool = True,
    enable_cameras: bool = False,
) -> Any:
    """Make a task of Isaac Lab: starts its app, reads the registered config, and makes the environment.

    In Isaac Lab 3.0 final observations are computed. A process can hold one environment.

    Args:
        task: id, "Isaac-Velocity-Flat-Unitree-Go2-v0"; "MODULE:ID" imports a module that registers it.
        num_envs: number of envs.
        seed: seed of the environment.
        device: device of the simulation; None takes the first GPU.
        overrides: "key=value" changes of the config, of Isaac Lab 3.0.
        headless: run without a window.
        enable_cameras: render cameras.

    Raises:
        ConfigError: Isaac Lab is not installed.
    """
    device = device or default_device()
    app = _module("isaaclab.app", task)
    arguments = {"headless": headless, "enable_cameras": enable_cameras, "device": device}
    if not hasattr(app, "launch_simulation"):
        # 2.3: the app must run before anything else of Isaac Lab is imported
        app.AppLauncher(arguments)
    module, _, name = task.rpartition(":")
    _module("isaaclab_tasks", task)
    if module:
        importlib.import_module(module)
    changes = {"overrides": list(overrides)} if overrides else {}
    parse = _module("isaaclab_tasks.utils", task).parse_env_cfg
    cfg = parse(name, device=device, num_envs=num_envs, **changes)
    cfg.seed = seed
    if isinstance(cfg, ComputesFinalObs):
        cfg.compute_final_obs = True
    if hasattr(app, "launch_simulation"):
        # 3.0: the config says which engine is launched; it runs until the process ends
        _RUNNING.enter_context(app.launch_simulation(cfg, arguments))
    return gymnasium.make(name, cfg=cfg).unwrapped


def mjlab(task: str, *, num_envs: int, seed: int, device: str | None = None, play: bool = False) -> Any:
    """Make a task of mjlab, with its own resets off, so that the last observations of episodes are not lost.

    Args:
        task: id, "Mjlab-Velocity-Flat-Unitree-Go1".
        num_envs: number of envs.
        seed: seed of the environment.
        device: device of the simulation; None takes the first GPU, else the CPU.
        play: the variant for watching a policy.

    Raises:
        ConfigError: mjlab is not installed, or has no such task.
    """
    _module("mjlab.tasks", task)
    registry, envs = _module("mjlab.tasks.registry", task), _module("mjlab.envs", task)
    if task not in registry.list_tasks():
        raise unknown("mjlab task", task, registry.list_tasks())
    cfg = registry.load_env_cfg(task, play=play)
    cfg.scene.num_envs, cfg.seed, cfg.auto_reset = num_envs, seed, False
    return envs.ManagerBasedRlEnv(cfg, device=device or default_device())


def _module(name: str, task: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"task {task!r} needs the module {error.name!r}, which is not installed: see docs/sims/isaac.md"
        ) from error
