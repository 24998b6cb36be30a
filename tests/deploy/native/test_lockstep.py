"""The whole C++ servo against the Python one, on a simulated clock: every record, command and request, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import tests.kits.deploy_kit as kit
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.bundle.manifest import Limit, Manifest, parse, sealed
from robotrl.deploy.bundle.match import wire
from robotrl.deploy.control.bad_tick import fault_words
from robotrl.deploy.control.safety import Reason
from robotrl.deploy.inference.link import AnswerKind
from robotrl.deploy.native.lockstep import LockstepCfg, LockstepResult, robot_info, run_in_lockstep
from robotrl.deploy.native.settings import BlockWriter
from robotrl.deploy.robots.channel import Message
from robotrl.deploy.robots.driver import TimedObservation
from robotrl.deploy.servo.link import RecordKind
from robotrl.deploy.servo.records import tick_of_record
from robotrl.deploy.servo.reflex import RiskGuard
from robotrl.errors import DataError
from tests.kits import camera_policy, reflex_kit, serve_kit
from tests.kits.camera_cart import make as make_camera_cart
from tests.kits.deploy_cart import Cart


class Commanded(Cart):
    """A cart that counts its commands."""

    commands = 0

    def command(self, action: np.ndarray) -> None:
        self.commands += 1
        super().command(action)


class FaultyCart(Cart):
    """A cart whose readings are, now and then, not finite, far off, late, from the future or the same as before."""

    def __init__(self, seed: int, rate: float) -> None:
        super().__init__(seed)
        self.rng, self.rate = np.random.default_rng(seed), rate

    def observe(self) -> Any:
        found = super().observe()
        if self.rng.random() >= self.rate:
            return found
        kind = int(self.rng.integers(4))
        if kind == 0:
            found["state"][int(self.rng.integers(4))] = self.rng.choice([np.nan, np.inf, -np.inf])
        elif kind == 1:
            found["state"][0] = np.float32(1e6)
        elif kind == 2:
            # of the past, or of the future of any simulated time
            return TimedObservation(found, int(self.rng.choice([1_000_000, 1 << 60])))
        else:
            found["touch"] = np.zeros(0, np.float32)
        return found

    def success(self) -> bool:
        return False


Infer = Callable[[Message], tuple[Message, int] | None]


def scripted(manifest: Manifest, seed: int, slow: float, wrong: float) -> Infer:
    """Answers of an inference that is quick or slow, and fails or says nonsense now and then."""
    rng = np.random.default_rng(seed)
    period_ns = manifest.timing.control_period_s * 1e9
    size = manifest.timing.chunk_length * len(manifest.action.names)

    def infer(request: Message) -> tuple[Message, int] | None:
        spent = int(period_ns * (rng.uniform(0, 6) if rng.random() < slow else rng.uniform(0, 0.3)))
        values = rng.uniform(-3, 3, size).astype(np.float32)
        kind = AnswerKind.CHUNK
        if rng.random() < wrong:
            values[int(rng.integers(size))] = rng.choice(np.float32([np.nan, np.inf, 1e38, -0.0]))
            if rng.random() < 0.5:
                kind, values = (AnswerKind.REFUSED, AnswerKind.FAILED)[int(rng.integers(2))], values[:0]
            elif rng.random() < 0.05:
                return None
        return request._replace(kind=int(kind), lost_ns=spent, mode=0, values=values), spent

    return infer


def bits(found: LockstepResult) -> dict[str, list[Any]]:
    """All that a servo wrote, comparable."""
    return {
        "records": [(r.numbers, r.values.tobytes()) for r in found.records],
        "commands": [(c[:-1], c.values.tobytes()) for c in found.commands],
        "requests": [(r[:-1], r.values.tobytes()) for r in found.requests],
        "summary": [found.summary],
    }


def both(
    manifest: Manifest,
    robot: Callable[[], Any],
    infer: Callable[[], Infer],
    cfg: LockstepCfg,
    late: float = 0.0,
    seed: int = 0,
    episodes: int = 2,
    risk: bytes | None = None,
) -> LockstepResult:
    """Run both servos, and compare; the result of the Python one."""

    def lateness() -> Callable[[], int]:
        rng = np.random.default_rng(seed)
        period_ns = manifest.timing.control_period_s * 1e9
        return lambda: int(rng.uniform(0, 3) * period_ns if rng.random() < late else rng.integers(0, 100_000))

    ours, theirs = (
        run_in_lockstep(kind, manifest, robot(), infer(), range(1100, 1100 + episodes), cfg, lateness(), risk)
        for kind in ("python", "native")
    )
    wanted, found = bits(ours), bits(theirs)
    for what, rows in wanted.items():
        for i, (row, other) in enumerate(zip(rows, found[what], strict=False)):
            assert row == other, f"{what} {i}"
        assert len(rows) == len(found[what]), what
    return ours


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return parse((kit.made("goal", tmp_path_factory.getbasetemp())[0] / "manifest.json").read_bytes())


def variant(manifest: Manifest, rng: np.random.Generator) -> Manifest:
    """Another interpolation, way to hold, blend-in, limit of steps, patience and number of executed actions."""
    timing = replace(
        manifest.timing,
        interpolation="hold" if manifest.reflex is not None else ("hold", "linear")[int(rng.integers(2))],
        execute=int(rng.integers(1, manifest.timing.chunk_length + 1)),
        max_observation_age_s=float(rng.choice([0.04, 0.1, 0.2])),
    )
    kind = ("delta", "position")[int(rng.integers(2))]
    safety = replace(
        manifest.safety,
        hold="last" if kind == "position" else "neutral",
        ramp_in_s=float(rng.choice([0.0, 0.1])),
        max_step=None if rng.random() < 0.5 else (0.5, 0.25),
        bad_ticks_to_damp=int(rng.choice([3, 1000])),
    )
    action = replace(manifest.action, kind=kind)
    return sealed(replace(manifest, timing=timing, safety=safety, action=action))


def remembering(manifest: Manifest, steps: int) -> Manifest:
    """The same for a policy that is given the last ticks; its graph is not used here."""
    inputs = tuple(
        replace(port, shape=(steps, *port.shape), stack=steps) if port.name == "state" else port
        for port in manifest.io.inputs
    )
    transforms = replace(manifest.transforms, inputs=())
    return sealed(replace(manifest, io=replace(manifest.io, inputs=inputs), transforms=transforms))


@pytest.mark.parametrize(("seed", "steps"), [(0, 2), (1, 3), (2, 5), (3, 40), (4, 3), (5, 3)])
def test_both_servos_remember_the_same_ticks(manifest: Manifest, seed: int, steps: int) -> None:
    """Also where ticks are missed, and where observations are not finite, of another length, or late."""
    rng = np.random.default_rng(100 + seed)
    made = variant(remembering(manifest, steps), rng)
    # a robot that goes on, whatever it reads
    made = sealed(replace(made, safety=replace(made.safety, bad_ticks_to_damp=1000)))
    rate, slow, late = (float(rng.choice(odds)) for odds in ([0.02, 0.2], [0.1, 1.0], [0, 0.05]))
    found = both(
        made,
        lambda: FaultyCart(seed, rate),
        lambda: scripted(made, seed, slow, 0.05),
        LockstepCfg(limit_s=2.0, inference_s=0.004, accept_start=True),
        late=late,
        seed=seed,
    )
    rows = [request.values[: 4 * steps].reshape(steps, 4) for request in found.requests]
    assert len(rows) > 20 and all(np.isfinite(row).all() for row in rows)
    assert sum(bool((row[0] != row[-1]).any()) for row in rows) > 10


@pytest.mark.parametrize("seed", range(8))
def test_the_servos_write_the_same_bits_whatever_happens(manifest: Manifest, seed: int) -> None:
    rng = np.random.default_rng(seed)
    made = variant(manifest, rng)
    rate, slow, wrong, late = (float(rng.choice(odds)) for odds in ([0, 0.02], [0, 0.1, 1.0], [0, 0.1], [0, 0.02]))
    cfg = LockstepCfg(
        steps=int(rng.choice([1, 4, 5])),
        limit_s=0.6,
        inference_s=float(rng.choice([0.0, 0.03])),
        dry_run=seed % 5 == 4,
        accept_start=True,
    )
    both(made, lambda: FaultyCart(seed, rate), lambda: scripted(made, seed, slow, wrong), cfg, late, seed)


def test_a_calm_run_is_all_active_and_succeeds(manifest: Manifest) -> None:
    """The policy's own actions, so that the test would notice a servo that holds all the time."""
    push = np.zeros((manifest.timing.chunk_length, 2), np.float32)

    def infer(request: Message) -> tuple[Message, int]:
        pos, vel, goal = request.values[0], request.values[1], request.values[2]
        push[:, 0] = np.clip(12.0 * (goal - pos) - 6.0 * vel, -2, 2)
        return request._replace(kind=int(AnswerKind.CHUNK), values=push.ravel()), 1_000_000

    patient = sealed(replace(manifest, timing=replace(manifest.timing, max_observation_age_s=0.2)))
    found = both(patient, lambda: Cart(0), lambda: infer, LockstepCfg(limit_s=2.0, accept_start=True), episodes=2)
    assert found.successes == [True] * 2
    ticks = [r for r in found.records if r.numbers[0] == RecordKind.TICK]
    assert len(ticks) > 50 and {r.numbers[11] for r in ticks} == {0}


def test_a_hung_inference_is_held_then_damped_with_the_same_facts(manifest: Manifest) -> None:
    answers = iter(range(10))

    def infer(request: Message) -> tuple[Message, int] | None:
        size = manifest.timing.chunk_length * 2
        values = np.full(size, 0.5, np.float32)
        return None if next(answers) >= 4 else (request._replace(kind=int(AnswerKind.CHUNK), values=values), 1_000_000)

    def fresh() -> Infer:
        nonlocal answers
        answers = iter(range(10))
        return infer

    found = both(manifest, lambda: Cart(0), fresh, LockstepCfg(limit_s=2.0, accept_start=True))
    assert found.records[-1].numbers[0] == RecordKind.FAULT
    fault = found.summary["fault"]
    assert isinstance(fault, dict) and fault["kind"] == "damped" and fault["hung_ns"] > 0
    last = [r for r in found.records if r.numbers[0] == RecordKind.TICK][-1]
    assert Reason(last.numbers[12]) & Reason.ACTION_LATE and last.numbers[11] == 2


@pytest.mark.parametrize("mode", ["trained", "guided"])
def test_committed_actions_are_the_same(tmp_path: Path, mode: Literal["trained", "guided"]) -> None:
    bundle = {"trained": serve_kit.committed_bundle, "guided": serve_kit.guided_bundle}[mode](tmp_path)
    made = parse((bundle / "manifest.json").read_bytes())
    assert made.timing.rtc_mode == mode
    made = sealed(replace(made, timing=replace(made.timing, max_observation_age_s=0.3)))
    found = both(
        made,
        lambda: FaultyCart(0, 0.0),
        lambda: scripted(made, 0, 1.0, 0.0),
        LockstepCfg(limit_s=1.0, inference_s=0.03, accept_start=True),
    )
    assert any(r.numbers[14] > 0 for r in found.records), "some requests hold committed actions"


def test_a_start_outside_the_envelope_is_refused_with_the_same_facts(manifest: Manifest) -> None:
    limit = Limit("observation", ("goal_pos", "cart_vel"), ("m", "m/s"), (0.9, -1.0), (1.0, 1.0))
    made = sealed(replace(manifest, safety=replace(manifest.safety, start=(limit,))))
    found = both(made, lambda: Cart(0), lambda: scripted(made, 0, 0.0, 0.0), LockstepCfg())
    fault = found.summary["fault"]
    assert isinstance(fault, dict) and (fault["kind"], fault["port"], fault["at"]) == ("start", 0, 2)
    info = robot_info(Cart(0))
    words = fault_words(fault, "cart", made, wire(made, info), None)
    assert "'goal_pos' of observation 'state' is" in words and "training saw 0.9 to 1" in words
    accepted = both(
        made, lambda: Cart(0), lambda: scripted(made, 0, 0.0, 0.0), LockstepCfg(accept_start=True, limit_s=0.3)
    )
    assert accepted.summary["fault"] == {}


@pytest.mark.parametrize("silent", [True, False])
def test_cameras_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: bool) -> None:
    """Frames come more rarely than numbers; then the camera is silent, or shows the same again and again."""
    monkeypatch.setenv("CAMERA_SILENT_AT" if silent else "CAMERA_STUCK_AT", "150")
    made = parse((camera_policy.bundle(tmp_path) / "manifest.json").read_bytes())
    found = both(
        made,
        lambda: make_camera_cart(0),
        lambda: scripted(made, 0, 0.1, 0.0),
        LockstepCfg(limit_s=1.0, accept_start=True),
        episodes=1,
    )
    reasons = Reason(int(np.bitwise_or.reduce([r.numbers[12] for r in found.records])))
    assert reasons & (Reason.OBS_STALE if silent else Reason.OBS_FROZEN)


# a reflex

COLUMNS = ("cart_vel", "goal_pos", "cart_pos")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reflex_kit.watched_bundle(tmp_path_factory.mktemp("reflex") / "watched.bundle")


@pytest.fixture(scope="module")
def guarded(watched: Path) -> Manifest:
    return with_reflex(open_bundle(watched).manifest, 0.5)


def with_reflex(manifest: Manifest, threshold: float) -> Manifest:
    """Another threshold, more that is read, and a recovery of which a part is beyond the tighter limits of a site."""
    assert manifest.reflex is not None
    reflex = replace(manifest.reflex, threshold=threshold, columns=COLUMNS, recovery=(-1.5, 1.0))
    return sealed(replace(manifest, reflex=reflex))


def recoveries_of(found: LockstepResult, manifest: Manifest) -> tuple[int, int]:
    """Control ticks with a recovery, and servo ticks with one."""
    size, width = wire(manifest, robot_info(Cart(0))).observation_size, len(manifest.action.names)
    records = [r for r in found.records if r.numbers[0] == RecordKind.TICK]
    ticks = [tick_of_record(r, size, width, 0)[1] for r in records]
    return sum(bool(tick.reason & Reason.REFLEX) for tick in ticks), sum(tick.recoveries for tick in ticks)


@pytest.mark.parametrize("seed", range(12))
def test_a_reflex_acts_in_the_same_ticks_whatever_happens(guarded: Manifest, seed: int) -> None:
    rng = np.random.default_rng(seed)
    made = variant(guarded, rng)
    rate, slow, wrong, late = (float(rng.choice(odds)) for odds in ([0, 0.02], [0, 0.1, 1.0], [0, 0.1], [0, 0.02]))
    cfg = LockstepCfg(
        steps=int(rng.choice([1, 4, 5])),
        limit_s=0.6,
        inference_s=float(rng.choice([0.0, 0.03])),
        dry_run=seed % 5 == 4,
        accept_start=True,
    )
    risk = reflex_kit.random_perceptron(rng, len(COLUMNS), 2, gain=2.0)
    both(made, lambda: FaultyCart(seed, rate), lambda: scripted(made, seed, slow, wrong), cfg, late, seed, risk=risk)


def test_a_reflex_comes_and_goes_between_control_ticks(watched: Path) -> None:
    """The cart is pushed to and fro: it becomes too fast within a control period, and slower with the next push."""
    opened = open_bundle(watched)
    manifest = opened.manifest

    def infer(request: Message) -> tuple[Message, int]:
        push = np.zeros((manifest.timing.chunk_length, 2), np.float32)
        push[:, 0] = 2.0 if request.tick // 5 % 2 == 0 else -2.0
        return request._replace(kind=int(AnswerKind.CHUNK), values=push.ravel()), 1_000_000

    cfg = LockstepCfg(limit_s=2.0, accept_start=True)
    found = both(manifest, lambda: FaultyCart(0, 0.0), lambda: infer, cfg, episodes=1, risk=opened.risk)
    ticks = [r for r in found.records if r.numbers[0] == RecordKind.TICK]
    control, servo = recoveries_of(found, manifest)
    assert 0 < control < len(ticks) and control < servo < cfg.steps * len(ticks)
    # a command between two control ticks has a number of its own
    assert max(command.tick for command in found.commands) > len(ticks)
    assert any(command.reason & Reason.REFLEX for command in found.commands)
    reasons = found.summary["policy"]["reasons"]
    assert isinstance(reasons, dict) and reasons["reflex"] == control


def test_a_risk_of_exactly_the_threshold_passes_in_both_servos(guarded: Manifest) -> None:
    risk = reflex_kit.random_perceptron(np.random.default_rng(5), len(COLUMNS), 2)

    def first_reason(threshold: float) -> tuple[Reason, float]:
        """Reasons of the first tick with an action, and the risk of that."""
        made = with_reflex(guarded, threshold)
        found = both(
            made,
            lambda: FaultyCart(0, 0.0),
            lambda: scripted(made, 0, 0.0, 0.0),
            LockstepCfg(limit_s=0.2, accept_start=True),
            risk=risk,
        )
        records = [r for r in found.records if r.numbers[0] == RecordKind.TICK]
        ticks = [tick_of_record(r, wire(made, robot_info(Cart(0))).observation_size, 2, 0)[1] for r in records]
        tick = next(tick for tick in ticks if tick.policy is not None)
        guard, order = RiskGuard(made, risk), wire(made, robot_info(Cart(0))).observations["state"]
        assert tick.policy is not None
        return Reason(tick.reason), guard.risk(tick.observation[order][guard.columns], tick.policy)

    exact = first_reason(0.5)[1]
    assert 0.0 < exact < 1.0
    for threshold, fires in ((exact, False), (np.nextafter(exact, 0), True), (np.nextafter(exact, 1), False)):
        reason, again = first_reason(float(threshold))
        assert (bool(reason & Reason.REFLEX), again) == (fires, exact)


def test_a_servo_whose_reflex_does_not_fit_ends_before_it_commands(
    guarded: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = BlockWriter.program
    monkeypatch.setattr(BlockWriter, "program", lambda out, program: whole(out, program._replace(result=99)))
    robot = Commanded(0)
    with pytest.raises(DataError, match="the native servo: the settings' reflex: a risk that is not one number"):
        run_in_lockstep(
            "native",
            guarded,
            robot,
            scripted(guarded, 0, 0.0, 0.0),
            [1100],
            risk=reflex_kit.random_perceptron(np.random.default_rng(0), len(COLUMNS), 2),
        )
    assert robot.commands == 0
