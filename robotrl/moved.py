"""Aliases for the module paths that the pages of versions 0.1 and 0.2 imported; each warns and goes in version 0.3.

An alias is found only where nothing else has its name, so it costs nothing until it is used.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    "robotrl.algos.chain_pg": "robotrl.learners.denoising",
    "robotrl.algos.drawn_chain": "robotrl.learners.denoising_sampling",
    "robotrl.algos.engine": "robotrl.engine.engine",
    "robotrl.algos.learner": "robotrl.learners.learner",
    "robotrl.callbacks": "robotrl.run.callbacks",
    "robotrl.checkpoint": "robotrl.run.checkpoint",
    "robotrl.collect": "robotrl.rollout.collector",
    "robotrl.curriculum": "robotrl.rollout.curriculum",
    "robotrl.data": "robotrl.datasets",
    "robotrl.data.chunks": "robotrl.datasets.chunks",
    "robotrl.data.lerobot": "robotrl.datasets.lerobot",
    "robotrl.data.replay": "robotrl.replay.buffer",
    "robotrl.deploy.manifest": "robotrl.deploy.bundle.manifest",
    "robotrl.deploy.replay": "robotrl.deploy.control.replay",
    "robotrl.deploy.safety": "robotrl.deploy.control.safety",
    "robotrl.fn.clone": "robotrl.fn.bc_loss",
    "robotrl.importers.openvla_config": "robotrl.importers.openvla.config",
    "robotrl.load": "robotrl.run.policy_checkpoint",
    "robotrl.loop": "robotrl.rollout.evaluate",
    "robotrl.media": "robotrl.utils.media",
    "robotrl.sims.bev.bank": "robotrl.sims.driving.roads.map_pool",
    "robotrl.sims.bev.captions": "robotrl.sims.driving.captions",
    "robotrl.sims.bev.maps": "robotrl.sims.driving.roads.maps",
    "robotrl.sims.bev.opendrive": "robotrl.sims.driving.opendrive",
    "robotrl.sims.bev.opendrive.lanes": "robotrl.sims.driving.opendrive.lanes",
    "robotrl.sims.bev.opendrive.reader": "robotrl.sims.driving.opendrive.reader",
    "robotrl.sims.bev.opendrive_lanes": "robotrl.sims.driving.opendrive.lanes",
    "robotrl.sims.bev.rewards": "robotrl.sims.driving.rewards",
    "robotrl.sims.bev.roads": "robotrl.sims.driving.roads",
    "robotrl.sims.bev.roads.lanes": "robotrl.sims.driving.roads.lanes",
    "robotrl.sims.bev.roads.maps": "robotrl.sims.driving.roads.maps",
    "robotrl.sims.bev.roads.routes": "robotrl.sims.driving.roads.routes",
    "robotrl.sims.bev.routes": "robotrl.sims.driving.roads.routes",
    "robotrl.sims.bev.scores": "robotrl.sims.driving.scores",
    "robotrl.sims.mujoco.peg_insert": "robotrl.sims.mujoco.manipulation.peg_insert",
    "robotrl.sims.mujoco.views": "robotrl.sims.mujoco.render.views",
    "robotrl.train": "robotrl.training",
}
"""Old module path to new one."""
RENAMED = {
    "robotrl.algos.chain_pg": {"Terms": "ActorTerms"},
    "robotrl.algos.engine": {"Group": "ParameterGroup"},
    "robotrl.sims.bev.bank": {"Bank": "MapPool"},
}
"""Old module path to old and new names of its classes."""


FUNCTION = "robotrl.train"
"""Old module path that is a function now."""


class _CallableModule(ModuleType):
    """Alias of the training module that can be called as the function `robotrl.train`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call `robotrl.train`."""
        return importlib.import_module("robotrl.api.training").train(*args, **kwargs)


class Finder(MetaPathFinder, Loader):
    """Finds an old module path as a module with the names of the new one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Spec of an alias; None for every name that is no old path."""
        if fullname not in MOVED:
            return None
        return ModuleSpec(fullname, self, is_package=any(old.startswith(f"{fullname}.") for old in MOVED))

    def exec_module(self, module: ModuleType) -> None:
        """Import the module at its new path and take over its names."""
        old = module.__name__
        new = importlib.import_module(MOVED[old])
        warnings.warn(f"{old} is now {MOVED[old]}; the old path goes in version 0.3", DeprecationWarning, stacklevel=2)
        names = {name: value for name, value in vars(new).items() if not name.startswith("__")}
        names |= {was: names[now] for was, now in RENAMED.get(old, {}).items()}
        vars(module).update(names)
        if old == FUNCTION:
            # the import puts this module in the function's place
            module.__class__ = _CallableModule


def install() -> None:
    """Let old module paths be imported."""
    sys.meta_path.append(Finder())
