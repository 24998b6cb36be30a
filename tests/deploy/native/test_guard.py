"""The C++ reflex against the Python one: the same risks, bit for bit, and the same decisions beside the threshold."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.bundle.risk_program import RiskOp, RiskProgram, RiskRegister
from robotrl.deploy.native.guard import NativeGuard
from robotrl.deploy.native.settings import BlockWriter, reflex_block
from robotrl.deploy.servo.reflex import RiskGuard
from robotrl.errors import DataError
from tests.kits import reflex_kit

NAMES = ("cart_pos", "cart_vel", "goal_pos", "goal_vel")
PLACES = np.array([3, 0, 4, 1])
"""Where a robot with 5 numbers has the elements of the observation."""
SIZE, ACTIONS = 5, 2
NASTY = np.float32([0.0, -0.0, 1e-45, -1e-45, 3.4e38, -3.4e38, np.nan, np.inf, -np.inf, 1.0, -1.0, 1e-30])


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return open_bundle(reflex_kit.watched_bundle(tmp_path_factory.mktemp("reflex") / "watched.bundle")).manifest


def with_reflex(manifest: Manifest, threshold: float, columns: tuple[str, ...]) -> Manifest:
    assert manifest.reflex is not None
    return replace(manifest, reflex=replace(manifest.reflex, threshold=threshold, columns=columns))


def both(manifest: Manifest, graph: bytes) -> tuple[RiskGuard, NativeGuard]:
    guard = RiskGuard(manifest, graph)
    return guard, NativeGuard(reflex_block(guard, PLACES, SIZE), SIZE, ACTIONS)


def drawn(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A robot's flat observation and an action, some of whose numbers are nasty."""
    flat = (rng.normal(0, 1, SIZE) * 10.0 ** rng.uniform(-3, 3)).astype(np.float32)
    action = rng.uniform(-2, 2, ACTIONS).astype(np.float32)
    for row, odds in ((flat, 0.2), (action, 0.05)):
        if rng.random() < odds:
            row[int(rng.integers(len(row)))] = rng.choice(NASTY)
    return flat, action


@pytest.mark.parametrize("seed", range(20))
def test_the_risks_are_the_same_bits_and_so_are_the_decisions(manifest: Manifest, seed: int) -> None:
    rng = np.random.default_rng(seed)
    columns = tuple(rng.permutation(NAMES)[: int(rng.integers(1, 5))])
    graph = reflex_kit.random_perceptron(rng, len(columns), ACTIONS, gain=float(rng.choice([0.1, 2.0, 50.0])))
    guard, native = both(with_reflex(manifest, 0.5, columns), graph)
    decisions: list[bool] = []
    for _ in range(300):
        flat, action = drawn(rng)
        ours = guard.recovery({"state": flat[PLACES]}, action)
        recovers, risk = native.judge(flat, action)
        assert recovers == (ours is not None)
        if np.isfinite(action).all():
            found = np.float32(guard.risk(flat[PLACES][guard.columns], action))
            assert risk.tobytes() == found.tobytes() or (np.isnan(risk) and np.isnan(found) and recovers)
        else:
            assert not recovers, "an action that is not finite is left to the safety chain"
        decisions.append(recovers)
    assert any(decisions) or seed, "seed 0 has both"


@pytest.mark.parametrize("seed", range(8))
def test_a_risk_of_exactly_the_threshold_may_be_sent(manifest: Manifest, seed: int) -> None:
    """The threshold is a float64: its nearest neighbors decide otherwise, in both servos."""
    rng = np.random.default_rng(100 + seed)
    graph = reflex_kit.random_perceptron(rng, len(NAMES), ACTIONS)
    guard, native = both(with_reflex(manifest, 0.5, NAMES), graph)
    for _ in range(5):
        flat, action = rng.normal(0, 1, SIZE).astype(np.float32), rng.uniform(-2, 2, ACTIONS).astype(np.float32)
        risk = float(native.judge(flat, action)[1])
        for threshold, recovers in ((risk, False), (np.nextafter(risk, 0), True), (np.nextafter(risk, 1), False)):
            guard, beside = both(with_reflex(manifest, float(threshold), NAMES), graph)
            assert (guard.recovery({"state": flat[PLACES]}, action) is not None) == recovers
            assert beside.judge(flat, action)[0] == recovers


@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_no_number_is_a_risk_whatever_the_threshold(manifest: Manifest, threshold: float) -> None:
    graph = reflex_kit.random_perceptron(np.random.default_rng(0), 1, ACTIONS)
    guard, native = both(with_reflex(manifest, threshold, ("cart_vel",)), graph)
    flat, action = np.zeros(SIZE, np.float32), np.zeros(ACTIONS, np.float32)
    assert native.judge(flat, action)[0] == (threshold == 0.0)
    flat[PLACES[1]] = np.nan
    assert native.judge(flat, action)[0] and guard.recovery({"state": flat[PLACES]}, action) is not None


# settings that are none


def block(
    registers: tuple[RiskRegister, ...],
    result: int,
    threshold: float = 0.5,
    recovery: int = ACTIONS,
    places: tuple[int, ...] = (0, 1),
) -> bytes:
    out = BlockWriter()
    out.wholes(SIZE, 1)
    out.numbers(threshold)
    out.floats(np.zeros(recovery))
    out.places(np.array(places))
    out.program(RiskProgram(len(places), recovery, registers, result))
    return out.packed()


def constant(count: int) -> RiskRegister:
    return RiskRegister(RiskOp.CONSTANT, (), count, np.zeros(count, np.float32))


LAYER = (constant(2), RiskRegister(RiskOp.MATRIX, (0, 2), 1), RiskRegister(RiskOp.SIGMOID, (3,), 1))
"""Measurements times two weights, and the sigmoid of that: registers 2 to 4."""


def test_a_block_of_registers_that_fit_is_taken() -> None:
    guard = NativeGuard(block(LAYER, 4), SIZE, ACTIONS)
    recovers, risk = guard.judge(np.ones(SIZE, np.float32), np.ones(ACTIONS, np.float32))
    assert (recovers, float(risk)) == (False, 0.5)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (block(LAYER, 4, threshold=1.5), "a threshold beyond 0 to 1"),
        (block(LAYER, 4, threshold=float("nan")), "a threshold beyond 0 to 1"),
        (block(LAYER, 4, recovery=3), "a recovery of another length"),
        (block(LAYER, 4, places=(0, SIZE)), "an observation element beyond the last"),
        (block(LAYER, 4, places=(-1, 0)), "an observation element beyond the last"),
        (block(LAYER, 4, places=()), "weights of another length"),
        (block(LAYER, 5), "a risk that is not one number"),
        (block(LAYER, -1), "a risk that is not one number"),
        (block(LAYER, 2), "a risk that is not one number"),
        (block((RiskRegister(RiskOp.SIGMOID, (2,), 1),), 2), "a register that is not known yet"),
        (block((RiskRegister(RiskOp.SIGMOID, (0, 1), 2),), 2), "a register that is not known yet"),
        (block((RiskRegister(RiskOp.ADD, (0, 1, 1), 2),), 2), "a register that is not known yet"),
        (block((RiskRegister(RiskOp.ADD, (0,), 2),), 2), "a register that is not known yet"),
        (block((RiskRegister(RiskOp.ADD, (0, -7), 2),), 2), "a register that is not known yet"),
        (block((constant(3), RiskRegister(RiskOp.MAX, (0, 2), 2)), 3), "registers of several lengths"),
        (block((constant(5), RiskRegister(RiskOp.MATRIX, (0, 2), 2)), 3), "weights of another length"),
        (block((constant(2), RiskRegister(RiskOp.MATRIX, (0, 2, 1), 1)), 3), "a bias of another length"),
        (
            block(tuple(RiskRegister(RiskOp.JOIN, (1 + i, 1 + i), 1) for i in range(25)), 2),
            "a register that is too long",
        ),
    ],
)
def test_registers_that_do_not_fit_are_refused(made: bytes, says: str) -> None:
    with pytest.raises(DataError, match=f"the settings' reflex: {says}"):
        NativeGuard(made, SIZE, ACTIONS)


def changed(made: bytes, change: Callable[[bytearray], object]) -> bytes:
    """A block with another content and the checksum of that."""
    body = bytearray(made[24:])
    change(body)
    return sealed(made[:8], bytes(body))


def sealed(magic: bytes, body: bytes) -> bytes:
    return struct.pack("<8sI4xq", magic, zlib.crc32(body), len(body)) + body


def test_a_block_that_is_cut_or_goes_on_is_refused() -> None:
    whole = block(LAYER, 4)
    for length in range(0, len(whole) - 24, 8):
        with pytest.raises(DataError, match="the native reflex: the settings"):
            NativeGuard(changed(whole, lambda body, n=length: body.__delitem__(slice(n, None))), SIZE, ACTIONS)
    with pytest.raises(DataError, match="the settings hold more than was read"):
        NativeGuard(changed(whole, lambda body: body.extend(bytes(8))), SIZE, ACTIONS)
    with pytest.raises(DataError, match="the settings are damaged"):
        NativeGuard(whole[:-1] + b"\1", SIZE, ACTIONS)
    at = whole.index(struct.pack("<q", RiskOp.SIGMOID), len(whole) - 48)
    for kind in (9, -1):
        strange = whole[:at] + struct.pack("<q", kind) + whole[at + 8 :]
        with pytest.raises(DataError, match="the settings' reflex: an unknown operation"):
            NativeGuard(changed(strange, lambda body: body), SIZE, ACTIONS)


@pytest.mark.parametrize("seed", range(4))
def test_random_damage_is_refused_or_computed(seed: int) -> None:
    """A block with a right checksum and wrong numbers never reads or writes beyond its memory."""
    rng = np.random.default_rng(seed)
    whole = block(LAYER, 4)
    for _ in range(300):
        words = np.frombuffer(whole[24:], "<i8").copy()
        words[int(rng.integers(len(words)))] = rng.choice([-1, 0, 1, 2, 3, 4, 5, 7, 8, 9, 1 << 40])
        try:
            guard = NativeGuard(sealed(whole[:8], words.tobytes()), SIZE, ACTIONS)
        except DataError:
            continue
        guard.judge(np.ones(SIZE, np.float32), np.ones(ACTIONS, np.float32))
