"""The check that all settings must pass: a frozen dataclass of JSON values with a docstring."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, asdict, fields
from typing import Any

from robotrl.spec.json_fields import check_settings, settings_of


def check_frozen_json(cfg: Any) -> None:
    """Check the settings of a policy, an algorithm or a reward source.

    Raises:
        AssertionError: they can be changed, are not the same after the way through JSON, or have no docstring.
    """
    kind = type(cfg)
    assert kind.__doc__, f"{kind.__name__} has no docstring: robotrl list shows its first line"
    check_settings(cfg)
    for field in fields(cfg)[:1]:
        try:
            setattr(cfg, field.name, vars(cfg)[field.name])
        except FrozenInstanceError:
            continue
        raise AssertionError(f"{kind.__name__} is not frozen")
    assert settings_of(kind, json.loads(json.dumps(asdict(cfg), allow_nan=False))) == cfg
