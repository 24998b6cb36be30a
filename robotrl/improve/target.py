"""The policy to be improved: a run, a checkpoint, or a bundle that is traced back to its run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from robotrl.api.evaluation import refuse_dataset, run_of, sim_of
from robotrl.api.inspection import kind_of
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.bundle.manifest import Manifest
from robotrl.errors import ConfigError, DataError
from robotrl.run.directory import Run
from robotrl.run.policy_checkpoint import load_policy
from robotrl.spec import Spec, without_committed
from robotrl.spec.sim_options import without_log_only

CHECKPOINTS = "checkpoints"


class Target(NamedTuple):
    """The policy to be improved, and what its robot's logs have to agree with."""

    given: Path
    """Path as given."""
    policy: Path
    """Run or checkpoint that it is trained from."""
    sim: str
    options: Mapping[str, Any]
    """Options of the sim by name, without the log-only mode."""
    observation_spec: Mapping[str, Spec]
    """Observations that a log has to hold: without committed actions, which no log records."""
    action_spec: Spec
    control_dt_s: float
    manifest: Manifest | None
    """Manifest of the bundle; None if a run or checkpoint was given."""
    log_only: Mapping[str, Any] | None = None
    """Settings of the log-only mode in which episodes are collected; None outside of it."""

    @property
    def bundle_id(self) -> str | None:
        """Id of the bundle; None if a run or checkpoint was given."""
        return None if self.manifest is None else self.manifest.bundle_id


def read_target(given: Path, sim: str | None = None, options: Mapping[str, Any] | None = None) -> Target:
    """Read the policy to be improved.

    Args:
        given: a run (its best checkpoint), a checkpoint, or a bundle.
        sim: name of its sim; None takes the one that it was trained on.
        options: options of the sim that override those of its training.

    Raises:
        ConfigError: it is a dataset, the run behind a bundle is not found, or no control rate is stated.
        DataError: nothing readable is there.
    """
    refuse_dataset(given)
    manifest = open_bundle(given).manifest if kind_of(given) == "bundle" else None
    path = given if manifest is None else run_behind(given, manifest)
    policy = load_policy(path)
    name, had = sim_of(path, sim)
    given_options = dict(options or {})
    if policy.control_dt_s is None:
        raise ConfigError(f"{path} states no control period: expected a policy that was trained on a sim with one")
    return Target(
        given,
        path,
        name,
        without_log_only({**had, **given_options}),
        without_committed(policy.observation_spec),
        policy.action_spec,
        float(policy.control_dt_s),
        manifest,
        given_options.get("log_only"),
    )


def run_behind(bundle: Path, manifest: Manifest) -> Path:
    """The checkpoint that a bundle was exported from, where its run lies beside it or under `runs`.

    A run counts as the bundle's if its config has the same SHA-256, and its checkpoint if it has the same step.

    Args:
        bundle: the bundle's directory.
        manifest: its manifest.

    Raises:
        ConfigError: a bundle holds a graph, which cannot be trained, and its run or checkpoint is not found.
    """
    training = manifest.training
    why = f"{bundle} holds a graph, no weights that could be trained"
    if training.run is None:
        raise ConfigError(f"{why}, and its manifest names no run: expected the run or checkpoint that it came from")
    beside = bundle.resolve().parent
    # the last one is the place of a run of an improvement, whose bundle this is
    near = (beside / training.run, beside / "runs" / training.run, Path("runs", training.run))
    for folder in (*near, *sorted(beside.glob(f"round-*/fit/{training.run}"))):
        if not (folder / "config.json").is_file() or config_sha256(Run.open(folder)) != training.config_sha256:
            continue
        steps = {entry.step: entry.path for entry in Run.open(folder).entries()}
        if training.step in steps:
            return steps[training.step]
        raise ConfigError(
            f"{why}: it was exported from step {training.step} of {folder}, which keeps steps"
            f" {', '.join(map(str, sorted(steps)))}: give a run or checkpoint in its place"
        )
    raise ConfigError(
        f"{why}: it was exported from step {training.step} of the run {training.run!r}, which lies neither beside it"
        " nor under runs: give that run's directory in its place"
    )


def config_sha256(run: Run) -> str:
    """SHA-256 of a run's config, as a bundle's manifest has it."""
    return hashlib.sha256(json.dumps(run.config, sort_keys=True).encode()).hexdigest()


def policy_digest(path: Path) -> str:
    """SHA-256 of all files of the checkpoints of a run, or of a checkpoint: equal only where no byte has changed.

    Raises:
        DataError: there are none.
    """
    run = run_of(path)
    root = path / CHECKPOINTS if run is not None and run.path.resolve() == path.resolve() else path
    files = sorted(file for file in root.rglob("*") if file.is_file())
    if not files:
        raise DataError(f"{path} has no checkpoint yet")
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").digest()
        digest.update(str(file.relative_to(root)).encode() + b"\0" + content)
    return digest.hexdigest()
