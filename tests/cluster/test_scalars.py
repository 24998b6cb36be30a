"""Scalars of several workers as one: what was asked and paid is added up, shares are means."""

from __future__ import annotations

from typing import Any, cast

import pytest

from robotrl.cluster.scalars import ClusterScalars
from robotrl.cluster.shard import ShardRollout


def part(**scalars: float) -> ShardRollout:
    return ShardRollout(cast(Any, None), 100, 0, None, {k.replace("__", "/"): x for k, x in scalars.items()}, 2.0, 1.0)


def test_what_was_paid_is_added_up_and_shares_are_means() -> None:
    one = {"scoring__vlm_score__requests_paid": 10.0, "scoring__vlm_score__cost": 0.5, "scoring__lost": 1.0}
    other = {"scoring__vlm_score__requests_paid": 6.0, "scoring__vlm_score__cost": 0.25, "scoring__lost": 0.0}
    gathered = ClusterScalars()
    shares = ({"scoring__vlm_score__hit_rate": 0.2, "cost": 3.0}, {"scoring__vlm_score__hit_rate": 0.4, "cost": 5.0})
    gathered.add([part(**one, **shares[0]), part(**other, **shares[1])], 0.0, 0.5, 3.0)
    found = gathered.take()
    expected = {"scoring/vlm_score/requests_paid": 16.0, "scoring/vlm_score/cost": 0.75, "scoring/lost": 1.0}
    # a number of the sim of that name is none of these
    expected |= {"scoring/vlm_score/hit_rate": 0.3, "cost": 4.0}
    assert {name: found[name] for name in expected} == pytest.approx(expected)
