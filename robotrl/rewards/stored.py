"""Success classifiers in files: a checkpoint with a fingerprint, read as strictly as a policy's.

Whatever is missing, left over, altered or of another shape is refused, and the logits of a stored observation must
come out again. A reward that is silently wrong ruins a run as surely as a policy that is.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robotrl.checkpoint import read_checkpoint, write_checkpoint
from robotrl.errors import DataError, NumericsError
from robotrl.files import dump_json
from robotrl.fn.stats import Interval
from robotrl.load import load_weights, probe_observations
from robotrl.rewards.calibration import Rates
from robotrl.rewards.success import Calibration, ClassifierCfg, SuccessClassifier, Trained
from robotrl.spec import Spec
from robotrl.transforms import TransformGroup

KIND = "success-classifier"
FINGERPRINT_TOLERANCE = 1e-4
"""Of the logits' size, 1 at least; another machine's arithmetic differs in the last bits."""


def identity_of(model: SuccessClassifier, calibration: Calibration) -> str:
    """Hexadecimal SHA-256 of all that decides the classifier's answers."""
    digest = hashlib.sha256(dump_json([_describe(model), asdict(calibration)]))
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def save_classifier(path: Path, trained: Trained) -> Path:
    """Write a classifier; see `write_checkpoint`.

    Raises:
        NumericsError: a weight is not finite.
        RobotrlError: the disk refused.
    """
    model = trained.model
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    for name, value in weights.items():
        if not torch.isfinite(value).all():
            raise NumericsError(f"classifier weight {name!r} is not finite: it was not saved")
    obs = probe_observations(model.observation_spec, model.transforms.inputs)
    tree = {
        "description": _describe(model),
        "calibration": asdict(trained.calibration) | {"rates": _rates_to_json(trained.calibration.rates)},
        "about": trained.about,
        "weights": weights,
        "fingerprint": {"obs": obs, "logits": _logits(model, obs)},
    }
    return write_checkpoint(path, tree, step=int(trained.about.get("updates", 0)), kind=KIND)


def load_classifier(path: str | Path) -> Trained:
    """Read a classifier, strictly.

    Raises:
        DataError: nothing whole is there, or it is no classifier, or its fingerprint differs; what is wrong is named.
    """
    checkpoint = read_checkpoint(Path(path))
    where = str(checkpoint.path)
    if checkpoint.kind != KIND:
        raise DataError(f"checkpoint {where} is of kind {checkpoint.kind!r}: expected {KIND!r}")
    tree: dict[str, Any] = checkpoint.tree
    try:
        description, stored = tree["description"], tree["calibration"]
        cfg: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in description["cfg"].items()}
        model = SuccessClassifier(
            {key: Spec.from_json(spec) for key, spec in description["observation_spec"].items()},
            TransformGroup.from_json(description["transforms"]),
            ClassifierCfg(**cfg),
        )
        fields: dict[str, Any] = {**stored, "rates": _rates_from_json(stored["rates"])}
        calibration = Calibration(**fields)
        weights, fingerprint, about = tree["weights"], tree["fingerprint"], tree["about"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{where}: the classifier does not fit this version of robotrl: {error!r}") from error
    load_weights(model, weights, f"{where}: the classifier")
    found, expected = _logits(model, fingerprint["obs"]), fingerprint["logits"]
    error = float(((found - expected).abs() / expected.abs().clamp(min=1.0)).max())
    if not error <= FINGERPRINT_TOLERANCE:
        raise DataError(
            f"{where}: the classifier's fingerprint differs by {error:.2e} from the one stored: the weights are not"
            " those that were saved, or the code that builds the network has changed"
        )
    return Trained(model, calibration, about, identity_of(model, calibration))


def _describe(model: SuccessClassifier) -> dict[str, Any]:
    return {
        "cfg": asdict(model.cfg),
        "observation_spec": {key: spec.to_json() for key, spec in model.observation_spec.items()},
        "transforms": model.transforms.to_json(),
    }


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
def _logits(model: SuccessClassifier, obs: dict[str, Tensor]) -> Tensor:
    return model(obs).clone()
