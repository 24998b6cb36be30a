"""Learned rewards in files: a checkpoint with a fingerprint, checked as strictly as a policy's.

Loading fails if anything is missing, superfluous, altered or of another shape, or if the logits of a stored observation
differ. A silently wrong reward ruins a run as surely as a wrong policy.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robotrl.errors import DataError, NumericsError, short
from robotrl.fn.stats import Interval
from robotrl.rewards.calibration import Rates
from robotrl.rewards.classifier import Calibration, TrainedClassifier
from robotrl.rewards.network import ImageRewardNet, PolicyFeatureRewardNet, RewardNet
from robotrl.run.checkpoint import read_checkpoint, write_checkpoint
from robotrl.run.policy_checkpoint import MISFITS, load_weights, probe_observations
from robotrl.utils.files import dump_json

KIND = "success-classifier"
NETS: dict[str, type[ImageRewardNet] | type[PolicyFeatureRewardNet]] = {
    net.kind: net for net in (ImageRewardNet, PolicyFeatureRewardNet)
}
FINGERPRINT_TOLERANCE = 1e-4
"""Tolerance relative to the logits' magnitude, 1 at least; other machines differ in the last bits."""


def digest_of(net: RewardNet, judgment: Any) -> str:
    """Hexadecimal SHA-256 of a network and its calibration or metrics (JSON values)."""
    digest = hashlib.sha256(dump_json([net.to_json(), judgment]))
    for name, value in sorted(net.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def net_tree(net: RewardNet, what: str) -> dict[str, Any]:
    """Return the state tree of a network for a checkpoint.

    Args:
        net: the network.
        what: its owner, for errors.

    Raises:
        NumericsError: a weight is not finite.
    """
    weights = {name: value.detach().clone() for name, value in net.state_dict().items()}
    for name, value in weights.items():
        if not torch.isfinite(value).all():
            raise NumericsError(f"{what} weight {name!r} is not finite: it was not saved")
    obs = probe_observations(net.observation_spec, net.transforms.inputs)
    return {"description": net.to_json(), "weights": weights, "fingerprint": {"obs": obs, "logits": _logits(net, obs)}}


def net_from_tree(tree: dict[str, Any], what: str) -> RewardNet:
    """Build a network from `net_tree`'s result, and check it.

    Args:
        tree: from a checkpoint.
        what: its source and owner, for errors.

    Raises:
        DataError: it is of another version, weights are missing, superfluous or of another shape, or the fingerprint
            differs.
    """
    try:
        description, weights, fingerprint = tree["description"], tree["weights"], tree["fingerprint"]
        net = NETS[description["kind"]].from_json(description)
    except MISFITS as error:
        raise DataError(f"{what} does not fit this version of robotrl: {error!r}") from error
    load_weights(net, weights, what)
    try:
        found, expected = _logits(net, fingerprint["obs"]), fingerprint["logits"]
        error = float(((found - expected).abs() / expected.abs().clamp(min=1.0)).max())
    except (*MISFITS, RuntimeError) as misfit:
        raise DataError(f"{what}'s fingerprint is not of this network: {short(str(misfit))}") from misfit
    if not error <= FINGERPRINT_TOLERANCE:
        raise DataError(
            f"{what}'s fingerprint differs by {error:.2e} from the one stored: the weights are not those that were"
            " saved, or the code that builds the network has changed"
        )
    return net.eval()


def identity_of(model: RewardNet, calibration: Calibration) -> str:
    """Hexadecimal SHA-256 of everything that determines the classifier's outputs."""
    return digest_of(model, asdict(calibration))


def save_classifier(path: Path, trained: TrainedClassifier) -> Path:
    """Write a classifier to a file; see `write_checkpoint`.

    Raises:
        NumericsError: a weight is not finite.
        RobotrlError: the disk refused.
    """
    tree = {
        **net_tree(trained.model, "classifier"),
        "calibration": asdict(trained.calibration) | {"rates": _rates_to_json(trained.calibration.rates)},
        "about": trained.about,
    }
    return write_checkpoint(path, tree, step=int(trained.about.get("updates", 0)), kind=KIND)


def load_classifier(path: str | Path) -> TrainedClassifier:
    """Read and check a classifier from a file.

    Raises:
        DataError: there is no complete checkpoint, it is no classifier, or its fingerprint differs; the error names the
            difference.
    """
    where, tree = read_kind(path, KIND)
    model = net_from_tree(tree, f"{where}: the classifier")
    try:
        stored, about = tree["calibration"], tree["about"]
        fields: dict[str, Any] = {**stored, "rates": _rates_from_json(stored["rates"])}
        calibration = Calibration(**fields)
    except MISFITS as error:
        raise DataError(f"{where}: the classifier does not fit this version of robotrl: {error!r}") from error
    return TrainedClassifier(model, calibration, about, identity_of(model, calibration))


def read_kind(path: str | Path, kind: str) -> tuple[str, dict[str, Any]]:
    """Read a checkpoint of one kind; returns its path and its tree.

    Raises:
        DataError: there is no complete checkpoint, or it is of another kind.
    """
    checkpoint = read_checkpoint(Path(path))
    if checkpoint.kind != kind:
        raise DataError(f"checkpoint {checkpoint.path} is of kind {checkpoint.kind!r}: expected {kind!r}")
    return str(checkpoint.path), checkpoint.tree


def _rates_to_json(rates: Rates) -> dict[str, Any]:
    missed = rates.false_negative
    return {
        "false_positive": rates.false_positive._asdict(),
        "false_negative": None if missed is None else missed._asdict(),
        "frame_false_positive": rates.frame_false_positive,
    }


def _rates_from_json(data: dict[str, Any]) -> Rates:
    missed = data["false_negative"]
    return Rates(
        Interval(**data["false_positive"]), None if missed is None else Interval(**missed), data["frame_false_positive"]
    )


@torch.no_grad()
def _logits(net: RewardNet, obs: dict[str, Tensor]) -> Tensor:
    return net(obs).clone()
