"""A training through the ordinary loop that begins from a policy, and goes on where it was killed."""

from __future__ import annotations

from pathlib import Path

from robotrl.api.training import TrainedRun, train
from robotrl.errors import CapabilityError
from robotrl.fn.bc_loss import clone_loss_of
from robotrl.improve.methods.base import FitSettings
from robotrl.run.policy_checkpoint import load_policy
from robotrl.training import resume


def fit_run(algo: str, policy: Path, data: Path, run: Path, settings: FitSettings) -> TrainedRun:
    """Train a policy on a dataset, without evaluations: the gate judges on starts that no checkpoint was chosen by.

    Args:
        algo: name of the algorithm.
        policy: run or checkpoint to begin from.
        data: the dataset.
        run: directory of the run; one that is there is resumed.
        settings: see `FitSettings`.

    Raises:
        RobotrlError: a fault of the settings, the data or the disk.
    """
    if (run / "config.json").is_file():
        return TrainedRun(resume(run))
    return train(
        settings.sim,
        algo,
        run_dir=run,
        init_from=str(policy),
        dataset=str(data),
        seed=settings.seed,
        device=settings.device,
        settings={"evaluation.episodes": 0, **settings.settings},
    )


def check_cloned(policy: Path) -> None:
    """Check that a policy can be cloned.

    Raises:
        CapabilityError: no cloning loss fits it.
    """
    try:
        clone_loss_of(load_policy(policy))
    except CapabilityError as error:
        raise CapabilityError(f"{policy} cannot be improved: {error}") from error
