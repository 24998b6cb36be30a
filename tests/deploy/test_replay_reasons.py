"""A log is replayed with the reasons of each tick: every reason is brought about, and computed again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import tests.kits.deploy_graphs as graphs
import tests.kits.deploy_kit as kit
from robotrl.deploy.buffers import Runtime
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.control.replay import replay, replayed_ticks
from robotrl.deploy.control.safety import Reason, SafetyChain, SafetyLimits, limits_of
from robotrl.deploy.export import export
from robotrl.deploy.inference.link import AnswerKind
from robotrl.deploy.native.lockstep import LockstepCfg
from robotrl.deploy.robots.channel import Message
from robotrl.deploy.robots.driver import TimedObservation
from tests.kits import reflex_kit
from tests.kits.deploy_cart import TOLD_SPEC, Cart
from tests.kits.lockstep_log import Change, lockstep_log, quick
from tests.kits.serve_kit import seer_bundle

CFG = LockstepCfg(limit_s=0.8, accept_start=True)
FROM, TO = 150, 240
"""Inner steps between which a robot is faulty: 0.3 to 0.48 s."""


class FaultyCart(Cart):
    """A cart whose readings are faulty for a while."""

    def __init__(self, fault: str) -> None:
        super().__init__(0)
        self.fault, self.before = fault, dict[str, np.ndarray]()

    def observe(self) -> Any:
        found = super().observe()
        if not FROM <= self.steps < TO:
            self.before = found
            return found
        match self.fault:
            case "nan":
                found["state"][1] = np.nan
            case "far":
                found["state"][0] = 1e6
            case "old":
                return TimedObservation(found, 1_000_000)
            case "future":
                return TimedObservation(found, 1 << 60)
            case "frozen":
                return self.before
            case "short":
                found["touch"] = np.zeros(0, np.float32)
            case _:
                pass
        return found

    def success(self) -> bool:
        return False


class SwayingCart(Cart):
    """A cart whose goal is on the right, then on the left, and so on; now and then it reads 0.6 m/s too much, for a
    servo tick or none."""

    def advance(self, inner_steps: int) -> None:
        super().advance(inner_steps)
        self.state[2] = 0.8 if self.steps // 190 % 2 == 0 else -0.8

    def observe(self) -> dict[str, np.ndarray]:
        found = super().observe()
        found["state"][1] += 0.6 if self.steps % 37 < 3 else 0.0
        return found

    def success(self) -> bool:
        return False


class ToldCart(Cart):
    """A cart that hands on a word, which is none for a while."""

    observation_spec = TOLD_SPEC

    def observe(self) -> dict[str, np.ndarray]:
        return {**super().observe(), "touch": np.array([7 if FROM <= self.steps < TO else 1], np.float32)}

    def success(self) -> bool:
        return False


class Told(kit.SteerToGoal):
    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = TOLD_SPEC


def patient(bundle: Path) -> Path:
    """A bundle whose robot is not damped, and holds what it reads against itself after 0.06 s."""

    def change(data: dict[str, Any]) -> None:
        data["safety"]["bad_ticks_to_damp"] = 1000
        data["safety"]["max_step"] = [0.7, 0.7]
        data["safety"]["ramp_in_s"] = 0.1
        data["timing"]["max_observation_age_s"] = 0.05
        for port in data["io"]["inputs"]:
            if port["name"] == "state":
                port["max_still_s"] = 0.06
            else:
                # a word, or a bumper, may stay as it is
                port.pop("max_still_s", None)

    return graphs.reseal(bundle, change)


@pytest.fixture(scope="module")
def cart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cart")
    return patient(Path(shutil.copytree(kit.made("flow", tmp_path_factory.getbasetemp())[0], folder / "cart.bundle")))


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("told") / "told.bundle"
    export(Told(), path, observations=kit.recorded())
    return patient(path)


def answered(kind: AnswerKind, values: Callable[[np.ndarray], np.ndarray], spent_ns: int = 1_000_000) -> Change:
    """Changes the tenth to the fourteenth answer."""

    def change(answer: Message) -> tuple[Message, int]:
        if not 10 <= answer.state_id < 15:
            return quick(answer)
        return answer._replace(kind=int(kind), values=values(answer.values)), spent_ns

    return change


class Fault(NamedTuple):
    reason: Reason
    robot: str = "none"
    change: Change = quick


NOTHING = answered(AnswerKind.REFUSED, lambda values: values[:0])
FAULTS = {
    "nan": Fault(Reason.OBS_NOT_FINITE, "nan"),
    "short": Fault(Reason.OBS_NOT_FINITE, "short"),
    "far": Fault(Reason.OBS_IMPLAUSIBLE, "far"),
    "old": Fault(Reason.OBS_STALE, "old"),
    "future": Fault(Reason.OBS_TIME, "future"),
    "frozen": Fault(Reason.OBS_FROZEN, "frozen"),
    "refused": Fault(Reason.OBS_REFUSED, change=NOTHING),
    "failed": Fault(Reason.INFERENCE_FAILED, change=answered(AnswerKind.FAILED, lambda values: values[:0])),
    "late": Fault(Reason.ACTION_LATE, change=answered(AnswerKind.CHUNK, lambda values: values, 90_000_000)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_reason_is_computed_again(cart: Path, tmp_path: Path, runtime: Runtime, name: str) -> None:
    fault = FAULTS[name]
    log = tmp_path / "log.jsonl"
    ticks = lockstep_log(log, cart, runtime, lambda: FaultyCart(fault.robot), CFG, fault.change)
    hit = [tick for tick in ticks if tick["reason"] & fault.reason]
    assert len(hit) >= 2
    others = Reason.RAMPED | Reason.RATE_LIMITED | Reason.CLAMPED | Reason.OBS_TIME
    assert all(not Reason(tick["reason"]) & ~(fault.reason | others) for tick in ticks)
    found = replay(log, cart)
    assert (found.ticks, found.policy_max_abs, found.sent_max_abs, found.verdicts_differ) == (len(ticks), 0, 0, 0)


def test_a_word_that_is_none_is_told_from_a_reading_that_cannot_be(
    told: Path, tmp_path: Path, runtime: Runtime
) -> None:
    log = tmp_path / "log.jsonl"
    ticks = lockstep_log(log, told, runtime, lambda: ToldCart(0), CFG)
    reasons = {tick["reason"] & ~int(Reason.RAMPED | Reason.RATE_LIMITED | Reason.CLAMPED) for tick in ticks}
    assert reasons == {0, int(Reason.OBS_MISFIT)}
    found = replay(log, told)
    assert (found.policy_max_abs, found.sent_max_abs, found.verdicts_differ) == (0, 0, 0)
    # a log of before has another reason for it, and one without any is found out
    lines = log.read_text().splitlines()
    for reason, differ in ((Reason.OBS_IMPLAUSIBLE, 0), (Reason(0), 1)):
        rows = [json.loads(line) for line in lines]
        first = next(row for row in rows if row.get("reason", 0) & Reason.OBS_MISFIT)
        first["reason"] = int(reason)
        (tmp_path / "edited.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert replay(tmp_path / "edited.jsonl", told).verdicts_differ == differ


def test_a_tick_without_a_frame_is_stale_whatever_else_it_reads(tmp_path: Path) -> None:
    """A frame that was being overwritten: by hand, since it takes a coincidence."""
    bundle = seer_bundle(tmp_path)
    manifest = open_bundle(bundle).manifest
    limits = limits_of(manifest)
    header = {
        "kind": "header",
        "schema_version": 1,
        "bundle_id": manifest.bundle_id,
        "seed": 0,
        "low": limits.low.tolist(),
        "high": limits.high.tolist(),
    }
    none = {"number": 0, "stamp_ns": 0, "checksum": 0, "at": None, "kept_checksum": None}
    base: dict[str, Any] = {
        "kind": "tick",
        "episode": 1,
        "deadline_ns": 0,
        "lateness_ns": 0,
        "age_ns": 1000,
        "inference_ns": 0,
        "decision": -1,
        "cursor": 0,
        "policy": None,
        "sent": limits.neutral.tolist(),
        "mode": 1,
        "asked": -1,
        "frames": {"image": none},
    }
    whole = {"state": [0.1, 0.2, 0.3, 0.0], "instruction": [1.0, 0.0]}
    ticks = [
        {**base, "tick": 0, "obs": whole, "reason": int(Reason.OBS_STALE)},
        {**base, "tick": 1, "obs": dict.fromkeys(whole), "reason": int(Reason.OBS_NOT_FINITE)},
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (header, *ticks)))
    assert [tick.same_verdict for tick in replayed_ticks(tmp_path / "log.jsonl", bundle)] == [True, True]


# recoveries between two control ticks

LIMITS = SafetyLimits(
    low=np.float32([-1, -2]),
    high=np.float32([1, 2]),
    max_step=None,
    neutral=np.float32([0, 0]),
    hold="neutral",
    bad_ticks_to_damp=3,
    ramp_ticks=0,
    max_observation_age_s=0.1,
    plausible={},
)


def limited(bundle: Path, max_step: float) -> Path:
    """A bundle whose commands change by so much at most in a control period."""

    def change(data: dict[str, Any]) -> None:
        data["safety"]["max_step"] = [max_step, max_step]
        data["safety"]["bad_ticks_to_damp"] = 1000

    return graphs.reseal(bundle, change)


def test_the_step_after_a_recovery_is_limited_from_it() -> None:
    """By hand: 0.5 at a control tick, then the reflex brakes by the largest step; the policy asks for 2 again."""
    chain = SafetyChain(LIMITS._replace(max_step=np.float32([0.25, 0.25])))
    ask, brake = np.float32([2.0, 0.0]), np.float32([-2.0, 0.0])
    assert [chain.decide(Reason(0), ask).action[0] for _ in range(2)] == [0.25, 0.5]
    assert chain.between(ask, brake).action[0] == 0.25
    # it may not go further in this control period, however often it is asked
    assert chain.between(ask, brake).action[0] == 0.25
    # 0.75 is a step from the last control tick, and two from what was sent since
    assert chain.decide(Reason(0), ask).action[0] == 0.5
    assert chain.between(ask, brake).action[0] == 0.25
    assert chain.between(ask, None).action[0] == 0.5
    assert chain.decide(Reason(0), brake).action[0] == 0.25


def test_a_robot_of_positions_is_held_where_the_reflex_sent_it() -> None:
    chain = SafetyChain(LIMITS._replace(hold="last"))
    chain.decide(Reason(0), np.float32([0.5, 0.0]))
    chain.between(np.float32([0.5, 0.0]), np.float32([-0.5, 0.0]))
    assert chain.decide(Reason.OBS_STALE, None).action[0] == -0.5


def test_recoveries_between_control_ticks_are_in_the_log_and_replayed(tmp_path: Path, runtime: Runtime) -> None:
    bundle = limited(reflex_kit.watched_bundle(tmp_path / "watched"), 1.0)
    log = tmp_path / "log.jsonl"
    ticks = lockstep_log(log, bundle, runtime, lambda: SwayingCart(0), LockstepCfg(limit_s=4.0, accept_start=True))
    between = [(i, tick["between"][0]) for i, tick in enumerate(ticks) if "between" in tick]
    assert len(between) > 30
    for i, sent in between:
        last, following = ticks[i - 1]["sent"][0], ticks[i]["sent"][0]
        assert abs(sent - last) <= 1.0 and abs(following - sent) <= 1.0 and abs(following - last) <= 1.0
    assert any(sent != ticks[i - 1]["sent"][0] for i, sent in between)
    found = replay(log, bundle)
    assert (found.policy_max_abs, found.sent_max_abs, found.verdicts_differ) == (0, 0, 0)
    # without them in the log the commands that follow would be others
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    log.write_text("".join(json.dumps({k: v for k, v in row.items() if k != "between"}) + "\n" for row in rows))
    assert replay(log, bundle).sent_max_abs > 0
