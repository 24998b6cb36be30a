"""robotrl: train, fine-tune and deploy robot policies.

Importing this package is fast: the names below are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from robotrl import moved, torchvision_guard
from robotrl.utils.lazy import lazy_names

__version__ = "0.1.0"
moved.install()
torchvision_guard.install()

if TYPE_CHECKING:
    from robotrl.api.exporting import export
    from robotrl.api.recorder import Recorder
    from robotrl.api.reward_evaluation import evaluate_reward
    from robotrl.api.training import TrainedRun, train
    from robotrl.registry import make_sim
    from robotrl.rollout.evaluate import evaluate
    from robotrl.run.policy_checkpoint import load_policy

_LAZY = {
    "make_sim": "robotrl.registry",
    "load_policy": "robotrl.run.policy_checkpoint",
    "evaluate": "robotrl.rollout.evaluate",
    "export": "robotrl.api.exporting",
    "Recorder": "robotrl.api.recorder",
    "evaluate_reward": "robotrl.api.reward_evaluation",
    "train": "robotrl.api.training",
    "TrainedRun": "robotrl.api.training",
    "sims": "robotrl.sims",
    "policies": "robotrl.policies",
    "deploy": "robotrl.deploy",
    "configs": "robotrl.configs",
}

__all__ = [
    "Recorder",
    "TrainedRun",
    "__version__",
    "evaluate",
    "evaluate_reward",
    "export",
    "load_policy",
    "make_sim",
    "train",
]


__getattr__ = lazy_names(__name__, _LAZY)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
