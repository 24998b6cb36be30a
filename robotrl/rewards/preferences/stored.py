"""Learned preferences in files; see `robotrl.rewards.stored`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from robotrl.errors import DataError
from robotrl.rewards.network import ImageRewardNet
from robotrl.rewards.preferences.ensemble import FORMS, HeldOutAnswers, LearnedPreferences, RewardEnsemble
from robotrl.rewards.stored import MISFITS, digest_of, net_from_tree, net_tree, read_kind
from robotrl.run.checkpoint import write_checkpoint
from robotrl.utils.files import dump_json

KIND = "preferences"


def preferences_identity(ensemble: RewardEnsemble, scale: float, held_out: HeldOutAnswers) -> str:
    """Hexadecimal SHA-256 of all that determines the rewards and their uncertainty."""
    members = [digest_of(_net(member), None) for member in ensemble.members]
    settings = [ensemble.form, repr(scale), repr(held_out.temperature), *members]
    return hashlib.sha256(dump_json(settings)).hexdigest()


def _net(member: object) -> ImageRewardNet:
    assert isinstance(member, ImageRewardNet)
    return member


def preferences_tree(learned: LearnedPreferences) -> dict[str, Any]:
    """Return the state tree of learned preferences for a checkpoint.

    Raises:
        NumericsError: a weight is not finite.
    """
    held_out = {key: None if value != value else value for key, value in learned.held_out._asdict().items()}
    return {
        "members": [net_tree(_net(member), "preference member") for member in learned.ensemble.members],
        "form": learned.ensemble.form,
        "scale": learned.scale,
        "held_out": held_out,
        "about": learned.about,
        "identity": learned.identity,
    }


def preferences_from_tree(tree: dict[str, Any], where: str) -> LearnedPreferences:
    """Build learned preferences from `preferences_tree`'s result, and check them.

    Args:
        tree: from a checkpoint.
        where: name of the source, for errors.

    Raises:
        DataError: they are of another version, or differ from what was saved; the error names the difference.
    """
    what = f"{where}: the preference ensemble"
    try:
        stored = tree["members"]
        members = [_net(net_from_tree(one, f"{what}'s member {number}")) for number, one in enumerate(stored)]
        form, scale, about, identity = tree["form"], float(tree["scale"]), tree["about"], tree["identity"]
        numbers: dict[str, Any] = {k: float("nan") if x is None else x for k, x in tree["held_out"].items()}
        held_out = HeldOutAnswers(**numbers)
    except (*MISFITS, AssertionError) as error:
        raise DataError(f"{what} does not fit this version of robotrl: {error!r}") from error
    if form not in FORMS or not members:
        raise DataError(f"{what} is of form {form!r} with {len(members)} members: expected one of {', '.join(FORMS)}")
    ensemble = RewardEnsemble(members, form).eval()
    if preferences_identity(ensemble, scale, held_out) != identity:
        raise DataError(f"{what} is not the one that was saved: its digest differs")
    return LearnedPreferences(ensemble, scale, held_out, about, identity)


def save_preferences(path: Path, learned: LearnedPreferences) -> Path:
    """Write learned preferences to a file; see `write_checkpoint`.

    Raises:
        NumericsError: a weight is not finite.
        RobotrlError: the disk refused.
    """
    return write_checkpoint(path, preferences_tree(learned), step=int(learned.about.get("updates", 0)), kind=KIND)


def load_preferences(path: str | Path) -> LearnedPreferences:
    """Read and check learned preferences from a file.

    Raises:
        DataError: there is no complete checkpoint, it is of another kind, or it differs from what was saved; the error
            names the difference.
    """
    where, tree = read_kind(path, KIND)
    return preferences_from_tree(tree, where)
