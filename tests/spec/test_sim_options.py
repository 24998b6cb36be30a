"""Options of sims on their way through JSON, by hand."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from robotrl.errors import ConfigError
from robotrl.registry import SIMS, sim_options
from robotrl.spec.sim_options import json_values, with_values


@dataclass(frozen=True)
class Options:
    height: tuple[float, float] = (0.0, 1.0)
    limit_s: float | None = None
    names: tuple[str, ...] = ()
    kwargs: Mapping[str, Any] | None = None
    ranges: Mapping[str, tuple[float, float]] | None = None


def stored(options: Options) -> dict[str, Any]:
    return json.loads(json.dumps(json_values(options), allow_nan=False))


def test_infinite_numbers_come_back_and_texts_stay_texts() -> None:
    options = Options(
        (0.7, math.inf), math.inf, ("inf", "a"), {"mode": "inf", "list": ("-inf",)}, {"a": (-math.inf, 1)}
    )
    assert stored(options) == {
        "height": [0.7, "inf"],
        "limit_s": "inf",
        "names": ["inf", "a"],
        "kwargs": {"mode": "inf", "list": ["-inf"]},
        "ranges": {"a": ["-inf", 1]},
    }
    assert with_values(Options(), stored(options), "sim 'own'") == options


@pytest.mark.parametrize("kwargs", [{"k": math.inf}, {"k": [1.0, -math.inf]}, {"k": {"deep": math.inf}}])
def test_an_infinite_number_that_would_come_back_as_a_text_is_refused(kwargs: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="kwargs holds an infinite number"):
        json_values(replace(Options(), kwargs=kwargs))


@pytest.mark.parametrize("name", [*SIMS.names(), "gym/CartPole-v1"])
def test_the_options_of_each_sim_come_back(name: str) -> None:
    options = sim_options(name)
    assert with_values(options, json.loads(json.dumps(json_values(options), allow_nan=False)), name) == options
