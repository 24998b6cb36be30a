"""Both servos at the edges of a run: starts, waits, ends and dry runs, in lock step and bit for bit."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tests.kits.deploy_kit as kit
from robotrl.deploy.bundle.manifest import Limit, Manifest, parse, sealed
from robotrl.deploy.control.safety import Mode, Reason
from robotrl.deploy.inference.link import AnswerKind
from robotrl.deploy.native.lockstep import LockstepCfg
from robotrl.deploy.robots.channel import Message
from robotrl.deploy.robots.link import RobotCommand
from robotrl.deploy.servo.link import RecordKind
from tests.deploy.native.test_lockstep import both, remembering, scripted
from tests.kits.deploy_cart import Cart


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return parse((kit.made("goal", tmp_path_factory.getbasetemp())[0] / "manifest.json").read_bytes())


class Blinking(Cart):
    """A cart whose first readings of the goal are not finite."""

    def __init__(self, blind: int) -> None:
        super().__init__(0)
        self.blind, self.seen = blind, 0

    def observe(self) -> Any:
        found = super().observe()
        self.seen += 1
        if self.seen <= self.blind:
            found["state"][2] = np.nan
        return found


def test_a_start_is_judged_once_it_can_be_read(manifest: Manifest) -> None:
    """One reading that is not finite does not open the envelope."""
    limit = Limit("observation", ("goal_pos",), ("m",), (0.9,), (1.0,))
    made = sealed(replace(manifest, safety=replace(manifest.safety, start=(limit,), bad_ticks_to_damp=50)))
    found = both(made, lambda: Blinking(12), lambda: scripted(made, 0, 0.0, 0.0), LockstepCfg(limit_s=1.0))
    fault = found.summary["fault"]
    assert isinstance(fault, dict) and (fault["kind"], fault["at"]) == ("start", 2)
    ticks = [r for r in found.records if r.numbers[0] == RecordKind.TICK]
    assert ticks and all(r.numbers[11] == Mode.HOLD for r in ticks), "it was held until it could be judged"


def test_a_servo_that_waits_for_a_chunk_is_heard_all_the_while(manifest: Manifest) -> None:
    patient = sealed(replace(manifest, timing=replace(manifest.timing, max_observation_age_s=0.3)))
    size = patient.timing.chunk_length * 2
    answers = itertools.count()

    def infer(request: Message) -> tuple[Message, int] | None:
        chunk = request._replace(kind=int(AnswerKind.CHUNK), values=np.full(size, 0.25, np.float32))
        return None if next(answers) >= 3 else (chunk, 1_000_000)

    def fresh() -> Any:
        nonlocal answers
        answers = itertools.count()
        return infer

    found = both(patient, lambda: Cart(0), fresh, LockstepCfg(limit_s=2.0, accept_start=True), episodes=1)
    stamps = [c.stamp_ns for c in found.commands if c.kind == RobotCommand.ACT]
    servo_tick_ns = patient.timing.control_period_s * 1e9 / 4
    assert max(np.diff(stamps)) <= 1.5 * servo_tick_ns
    assert (
        found.records[-1].numbers[0] == RecordKind.FAULT and Reason(found.records[-2].numbers[12]) & Reason.ACTION_LATE
    )


def test_the_last_action_does_not_outlive_its_episode(manifest: Manifest) -> None:
    patient = sealed(replace(manifest, timing=replace(manifest.timing, max_observation_age_s=0.2)))
    found = both(
        patient, lambda: Cart(0), lambda: scripted(patient, 0, 0.0, 0.0), LockstepCfg(limit_s=0.5, accept_start=True)
    )
    by_episode = {e: [c for c in found.commands if c.episode == e and c.kind == RobotCommand.ACT] for e in (1, 2)}
    assert all(commands[-1].mode != Mode.ACTIVE for commands in by_episode.values())
    assert any(c.mode == Mode.ACTIVE for c in by_episode[1])


def test_a_dry_run_moves_no_robot_to_its_start(manifest: Manifest) -> None:
    cfg = LockstepCfg(limit_s=0.5, accept_start=True)
    for dry in (True, False):
        found = both(manifest, lambda: Cart(0), lambda: scripted(manifest, 0, 0.0, 0.0), replace(cfg, dry_run=dry))
        resets = [c for c in found.commands if c.kind == RobotCommand.RESET]
        assert resets and {c.mode for c in resets} == {Mode.HOLD if dry else Mode.ACTIVE}
        assert {len(c.values) for c in resets} == {0 if dry else 2}


def test_what_the_chain_refuses_is_not_remembered(manifest: Manifest) -> None:
    """A reading beyond its plausible range is as one that did not come: the policy is given the one before."""
    made = remembering(manifest, 3)
    made = sealed(replace(made, safety=replace(made.safety, bad_ticks_to_damp=50)))

    class Jumping(Cart):
        def observe(self) -> Any:
            found = super().observe()
            if 30 <= self.steps < 60:
                found["state"][0] = np.float32(1e6)
            return found

    found = both(
        made, lambda: Jumping(0), lambda: scripted(made, 0, 0.0, 0.0), LockstepCfg(limit_s=0.6, accept_start=True)
    )
    assert any(Reason(r.numbers[12]) & Reason.OBS_IMPLAUSIBLE for r in found.records if r.numbers[0] == RecordKind.TICK)
    assert found.requests and max(float(np.abs(r.values).max()) for r in found.requests) < 100


class Falling(Cart):
    """A cart whose episode ends without success after a while, and whose readings then stand still."""

    def over(self) -> bool:
        return self.steps >= 200

    def advance(self, inner_steps: int) -> None:
        if not self.over():
            super().advance(inner_steps)

    def success(self) -> bool:
        return False


def test_an_episode_that_fails_is_over_and_the_next_one_begins(manifest: Manifest) -> None:
    patient = sealed(replace(manifest, timing=replace(manifest.timing, max_observation_age_s=0.2)))
    cfg = LockstepCfg(limit_s=2.0, accept_start=True)
    found = both(patient, lambda: Falling(0), lambda: scripted(patient, 0, 0.0, 0.0), cfg)
    assert found.successes == [False, False] and found.summary["fault"] == {}
    ticks = [r.numbers[2] for r in found.records if r.numbers[0] == RecordKind.TICK]
    assert max(ticks) < 30, "200 steps of 2 ms are 20 ticks of 20 ms"
