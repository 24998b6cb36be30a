"""Limits of a robot's site: the tighter of bundle and site holds, and a file that is wrong is refused by name."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tests.kits.deploy_kit as kit
from robotrl.cli.main import main
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.bundle.match import RobotInfo, wire
from robotrl.deploy.bundle.site import (
    MAX_SITE_BYTES,
    SiteActionLimits,
    SiteLimits,
    SiteObservationLimits,
    site_limits_of,
    tightened,
)
from robotrl.deploy.control.safety import NONE, Mode, Reason, SafetyLimits, check_observation, decide, limits_of, start
from robotrl.errors import ConfigError, DataError
from tests.docs.test_pages import DOCS, blocks
from tests.kits.deploy_cart import Cart, SwappedCart
from tests.kits.refusals import raises_naming

ACTIONS, STATE = ("push", "brake"), ("cart_pos", "cart_vel", "goal_pos", "goal_vel")


@cache
def bundle() -> Path:
    return kit.made("flow", Path(tempfile.mkdtemp()))[0]


@cache
def manifest() -> Manifest:
    return open_bundle(bundle()).manifest


def ours() -> SafetyLimits:
    """Limits of the bundle: push in [-2, 2] N, brake in [-1, 1], neutral 0, no largest step."""
    return limits_of(manifest())


def site(**fields: Any) -> SiteLimits:
    return SiteLimits.parse(json.dumps({"schema_version": 1, **fields}).encode())


def after(**fields: Any) -> SafetyLimits:
    return tightened(ours(), manifest(), site(**fields))


def test_an_empty_file_changes_nothing() -> None:
    assert_same(after(), ours())


def test_the_limits_of_a_bundle_as_those_of_a_site_change_nothing() -> None:
    stepping = ours()._replace(max_step=np.float32([0.1, 1 / 3]))
    for limits in (ours(), stepping):
        written = site_limits_of(limits, manifest()).to_bytes()
        assert_same(tightened(limits, manifest(), SiteLimits.parse(written)), limits)
        assert set(json.loads(written)["observations"]) == {*STATE, "bumper_force"}


def test_the_tighter_one_of_each_holds() -> None:
    limits = after(
        action={"push": {"low": -0.5, "high": 9.0, "max_step": 0.25, "unit": "N"}},
        observations={"cart_pos": {"high": 0.75, "unit": "m"}},
        max_observation_age_s=0.03,
        bad_ticks_to_damp=2,
    )
    assert limits.low.tolist() == [-0.5, -1.0]
    assert limits.high.tolist() == [2.0, 1.0]
    assert limits.max_step is not None and limits.max_step.tolist() == [0.25, np.inf]
    assert limits.plausible["state"][1][0] == 0.75
    assert limits.plausible["state"][0].tolist() == ours().plausible["state"][0].tolist()
    assert (limits.max_observation_age_s, limits.bad_ticks_to_damp) == (0.03, 2)
    assert ours().max_observation_age_s == pytest.approx(0.04) and ours().bad_ticks_to_damp == 5
    assert after(max_observation_age_s=9.0, bad_ticks_to_damp=9)[5:8] == ours()[5:8]


def test_the_chain_enforces_them() -> None:
    limits = after(
        action={"push": {"high": 1.0, "max_step": 0.25}}, observations={"cart_pos": {"high": 0.75}}, bad_ticks_to_damp=1
    )
    # 1.5 is clamped to 1, and reached in steps of 0.25 from 0; the brake has no largest step
    verdict = decide(limits, start(limits), NONE, np.float32([1.5, 1.0]))
    assert verdict.action.tolist() == [0.25, 1.0]
    assert verdict.reason == Reason.CLAMPED | Reason.RATE_LIMITED
    obs = {"state": np.float32([0.8, 0, 0, 0]), "touch": np.float32([0])}
    assert check_observation(ours(), obs, 0.0) == NONE
    assert check_observation(limits, obs, 0.0) == Reason.OBS_IMPLAUSIBLE
    assert decide(limits, start(limits), Reason.OBS_IMPLAUSIBLE, np.float32([0, 0])).mode == Mode.DAMP


NUMBERS = st.floats(-3, 3, width=32)


def bound(low: float, high: float) -> st.SearchStrategy[float | None]:
    return st.none() | st.floats(low, high)


@settings(max_examples=200, deadline=None)
@given(
    lows=st.tuples(bound(-9, 0), bound(-9, 0)),
    highs=st.tuples(bound(0, 9), bound(0, 9)),
    steps=st.tuples(bound(1e-6, 9), bound(1e-6, 9)),
    own_steps=st.none() | st.tuples(st.floats(1e-6, 9), st.floats(1e-6, 9)),
    seen=st.tuples(bound(-9, 0), bound(0, 9)),
    age_s=bound(1e-6, 1.0),
    ticks=st.none() | st.integers(1, 9),
)
def test_the_result_is_never_wider_than_either(
    lows: tuple[float | None, ...],
    highs: tuple[float | None, ...],
    steps: tuple[float | None, ...],
    own_steps: tuple[float, ...] | None,
    seen: tuple[float | None, float | None],
    age_s: float | None,
    ticks: int | None,
) -> None:
    bundles = ours()._replace(max_step=None if own_steps is None else np.float32(own_steps))
    wanted = SiteLimits(
        1,
        {name: SiteActionLimits(*three) for name, *three in zip(ACTIONS, lows, highs, steps, strict=True)},
        {"cart_vel": SiteObservationLimits(*seen)},
        age_s,
        ticks,
    )
    out = tightened(bundles, manifest(), SiteLimits.parse(wanted.to_bytes()))

    def tighter(found: np.ndarray, own: np.ndarray, theirs: tuple[float | None, ...], sign: int) -> None:
        """Each number is that of bundle or site, and no wider than either (above them for a lower bound)."""
        for value, a, b in zip(found, own, theirs, strict=True):
            numbers = [a] if b is None else [a, np.float32(b)]
            assert value in numbers and all(sign * value <= sign * number for number in numbers)

    infinite = np.full(2, np.inf, np.float32)
    tighter(out.low, bundles.low, lows, -1)
    tighter(out.high, bundles.high, highs, 1)
    own = infinite if bundles.max_step is None else bundles.max_step
    tighter(infinite if out.max_step is None else out.max_step, own, steps, 1)
    nothing = (None, None)
    tighter(out.plausible["state"][0], bundles.plausible["state"][0], (None, seen[0], *nothing), -1)
    tighter(out.plausible["state"][1], bundles.plausible["state"][1], (None, seen[1], *nothing), 1)
    assert out.max_observation_age_s == min(bundles.max_observation_age_s, age_s or np.inf)
    assert out.bad_ticks_to_damp == min(bundles.bad_ticks_to_damp, ticks or 9)
    assert (out.low <= out.neutral).all() and (out.neutral <= out.high).all()
    assert_same(tightened(out, manifest(), wanted), out)


def assert_same(a: SafetyLimits, b: SafetyLimits) -> None:
    for field, x, y in zip(SafetyLimits._fields, a, b, strict=True):
        if field == "plausible":
            assert x.keys() == y.keys()
            assert all(np.array_equal(x[key], y[key]) for key in x)
        else:
            assert np.array_equal(x, y) if isinstance(x, np.ndarray) else x == y, field


@pytest.mark.parametrize(
    ("fields", "field", "named", "nearest"),
    [
        ({"action": {"puhs": {"low": 0.0}}}, "'puhs'", ("brake",), "push"),
        ({"observations": {"cart_poss": {}}}, "'cart_poss'", ("goal_pos",), "cart_pos"),
        ({"action": {"push": {"unit": "kN"}}}, "'push'", ("'kN'", "'N'"), None),
        ({"observations": {"cart_vel": {"unit": "km/h"}}}, "'cart_vel'", ("'km/h'", "'m/s'"), None),
        ({"action": {"push": {"low": 0.5}}}, "'push'", ("[0.5, 2.0]", "N", "0.0"), None),
        ({"action": {"push": {"high": -0.5}}}, "'push'", ("[-2.0, -0.5]", "N", "0.0"), None),
        ({"action": {"push": {"low": 1e300}}}, "'push'", ("[inf, 2.0]",), None),
        ({"observations": {"cart_pos": {"low": 1e6}}}, "'cart_pos'", ("'state'", "m"), None),
    ],
)
def test_limits_that_do_not_fit_the_bundle_are_refused(
    fields: dict[str, Any], field: str, named: tuple[str, ...], nearest: str | None
) -> None:
    with raises_naming(ConfigError, field, *named, nearest=nearest):
        after(**fields)


def test_a_choice_has_no_largest_step() -> None:
    choosing = ours()._replace(chooses=True)
    with raises_naming(ConfigError, "'push'", "max_step", "0.5"):
        tightened(choosing, manifest(), site(action={"push": {"max_step": 0.5}}))


@pytest.mark.parametrize(
    ("text", "named", "nearest"),
    [
        ("{}", ("schema_version", "None", "1"), None),
        ('{"schema_version": 2}', ("schema_version", "2", "1"), None),
        ('{"schema_version": true}', ("schema_version", "True"), None),
        ('{"schema_version": 1, "actoin": {}}', ("'actoin'",), "action"),
        ('{"schema_version": 1, "action": {"push": {"max_stp": 1}}}', ("'max_stp'", "push"), "max_step"),
        ('{"schema_version": 1, "action": {"push": {"low": NaN}}}', ("NaN",), None),
        ('{"schema_version": 1, "action": {"push": {"low": 1e999}}}', ("limits.action['push'].low", "inf"), None),
        ('{"schema_version": 1, "action": {"push": {"low": "1"}}}', ("limits.action['push'].low", "'1'"), None),
        ('{"schema_version": 1, "action": {"push": {"low": 1, "high": 0}}}', ("'push'", "1.0", "0.0"), None),
        ('{"schema_version": 1, "observations": {"x": {"low": 1, "high": 0}}}', ("'x'", "1.0", "0.0"), None),
        ('{"schema_version": 1, "action": {"push": {"max_step": 0}}}', ("'push'", "max_step", "0.0"), None),
        ('{"schema_version": 1, "action": {"push": {"max_step": 1e-60}}}', ("'push'", "max_step", "1e-60"), None),
        ('{"schema_version": 1, "action": {"push": {}, "push": {}}}', ("'push'",), None),
        ('{"schema_version": 1, "max_observation_age_s": 0}', ("max_observation_age_s", "0.0"), None),
        ('{"schema_version": 1, "bad_ticks_to_damp": 0}', ("bad_ticks_to_damp", "0", "1"), None),
        ('{"schema_version": 1, "bad_ticks_to_damp": 2.5}', ("limits.bad_ticks_to_damp", "2.5"), None),
        ("[]", ("list",), None),
        ("\x00", ("JSON",), None),
    ],
)
def test_a_file_that_is_wrong_is_refused(
    text: str, named: tuple[str, ...], nearest: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "site.json"
    path.write_text(text)
    with raises_naming(DataError, "site.json", *named, nearest=nearest):
        SiteLimits.read(path)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with raises_naming(DataError, "limits", "No such file or directory"):
        SiteLimits.read(tmp_path / "none.json")
    with raises_naming(DataError, "limits"):
        SiteLimits.read(tmp_path)
    (tmp_path / "big.json").write_bytes(b" " * (MAX_SITE_BYTES + 1))
    with raises_naming(DataError, "limits", MAX_SITE_BYTES):
        SiteLimits.read(tmp_path / "big.json")


def introduced(cart: type[Cart]) -> RobotInfo:
    return RobotInfo(cart.observation_spec, cart.action_spec, cart.control_dt_s, cart.inner_dt_s, None, range(1))


@pytest.mark.parametrize("cart", [Cart, SwappedCart])
def test_robot_and_site_both_tighten(cart: type[Cart]) -> None:
    wanted = site(action={"push": {"low": -1.5, "high": 5.0}})
    assert wire(manifest(), introduced(cart), wanted).limits.low.tolist() == [-1.5, -1.0]
    assert wire(manifest(), introduced(cart)).limits.low.tolist() == [-2.0, -1.0]
    narrow = introduced(cart)
    spec = narrow.action_spec
    narrow = replace(narrow, action_spec=replace(spec, low=tuple(low / 2 for low in spec.low)))
    assert wire(manifest(), narrow, wanted).limits.low.tolist() == [-1.0, -0.5]


def test_the_command_writes_what_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "robot.json"
    assert main(["new", "limits", str(bundle()), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"wrote {out}: the limits of {bundle()}, to be edited\n"
    assert_same(tightened(ours(), manifest(), SiteLimits.read(out)), ours())
    before = out.read_bytes()
    assert main(["new", "limits", str(bundle()), "--out", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert out.read_bytes() == before
    for place in (bundle() / "robot.json", tmp_path / "robot.toml", tmp_path / "none" / "robot.json"):
        assert main(["new", "limits", str(bundle()), "--out", str(place)]) == 2
        assert str(place) in capsys.readouterr().err and not place.exists()
    assert main(["new", "limits", str(tmp_path), "--out", str(tmp_path / "other.json")]) == 2
    assert not (tmp_path / "other.json").exists()


def test_the_file_of_the_page_can_be_read() -> None:
    (text,) = [block for block in blocks(DOCS / "deploy.md", "json") if "max_step" in block]
    read = SiteLimits.parse(text.encode())
    assert read.action["joint_1_target"].max_step == 0.05
    assert read.observations["joint_1_pos"].unit == "rad"
