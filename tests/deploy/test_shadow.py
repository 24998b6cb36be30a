"""A shadow's chunks stand at the ticks that they were inferred for, whatever the control missed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tests.kits.deploy_kit as kit
from robotrl.deploy.control.log import Tick
from robotrl.deploy.control.safety import Mode
from robotrl.deploy.control.shadow import Shadow
from robotrl.deploy.native.lockstep import robot_info
from robotrl.deploy.runtime import Controller
from tests.kits.deploy_cart import Cart


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kit.made("flow", tmp_path_factory.getbasetemp())[0]


def at(number: int, flat: np.ndarray, policy: np.ndarray | None, mode: Mode = Mode.ACTIVE) -> Tick:
    """A tick with an observation, as the control logs it."""
    zeros = (
        "deadline_ns",
        "lateness_ns",
        "age_ns",
        "read_ns",
        "busy_ns",
        "inference_ns",
        "decision",
        "cursor",
        "reason",
    )
    facts = dict.fromkeys((*zeros, "asked", "committed"), 0)
    sent = np.zeros(2, np.float32)
    return Tick(tick=number, observation=flat, policy=policy, sent=sent, mode=int(mode), **facts)


def begun(flow: Path, ticks: int, asked: tuple[int, ...]) -> tuple[Shadow, list[np.ndarray], list[np.ndarray]]:
    """A shadow of the bundle itself, flat observations of some ticks, and the chunks inferred at those asked."""
    control = Controller.load(flow, seed=3)
    shadow = Shadow(flow, control.manifest, robot_info(Cart(0)), seed=3)
    shadow.reset()
    rng = np.random.default_rng(0)
    seen = [rng.normal(size=5).astype(np.float32) for _ in range(ticks)]
    obs = [{"state": flat[:4], "touch": flat[4:]} for flat in seen]
    return shadow, seen, [control.infer(obs[tick], decision) for decision, tick in enumerate(asked)]


def test_the_same_bundle_differs_by_nothing_when_ticks_are_missed_or_bad(flow: Path) -> None:
    """Chunks of two actions: tick 1 is missed, tick 3 is bad in the middle of a chunk."""
    shadow, seen, chunks = begun(flow, 6, (0, 2, 4))
    wanted = {0: chunks[0][0], 2: chunks[1][0], 4: chunks[2][0], 5: chunks[2][1]}
    for tick in (0, 2, 3, 4, 5):
        if tick in wanted:
            found = shadow.act(at(tick, seen[tick], wanted[tick]))
            assert found is not None and found.tolist() == wanted[tick].tolist(), tick
        else:
            assert shadow.act(at(tick, seen[tick], None, Mode.HOLD)) is None
    assert (shadow.report.ticks, shadow.report.refused, shadow.report.skipped) == (4, 0, 0)
    assert all(one.max == 0 for one in shadow.report.differences.values())


def test_after_a_skipped_tick_it_infers_anew(flow: Path) -> None:
    shadow, seen, chunks = begun(flow, 4, (0, 2))
    wanted = {0: chunks[0][0], 2: chunks[1][0], 3: chunks[1][1]}
    for tick in range(4):
        now = at(tick, seen[tick], wanted.get(tick, np.zeros(2, np.float32)))
        if tick == 1:
            assert shadow.skip(now) is None
        else:
            found = shadow.act(now)
            assert found is not None and found.tolist() == wanted[tick].tolist(), tick
    assert (shadow.report.ticks, shadow.report.skipped) == (3, 1)
