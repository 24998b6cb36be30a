"""Press on MuJoCo Warp, on the processor at tiny size: surface, force and both clocks as on the native engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from robotrl.spec.actuation import HasServoClock, ServoTick
from robotrl.testing.sims import SimCase
from tests.kits.warp_sims import QUICK_CHECKS, compare_steps, pair, warp

pytest.importorskip("mujoco_warp")

PRESS = "mujoco/press"
DOWN = (0.0, 0.0, -0.6, 0.0)


def case(limit_s: float) -> Any:
    return lambda num_envs, seed: warp(PRESS, num_envs, seed, limit_s=limit_s)


@pytest.mark.parametrize("check", QUICK_CHECKS, ids=lambda check: check.__name__)
def test_conformance(check: Any) -> None:
    check(SimCase(case(50.0), case(0.5)))


class Retreat:
    """Retracts above a force, at once, and keeps all that it is told."""

    def __init__(self, sim: Any, above_n: float) -> None:
        names = sim.servo_spec.names
        self._force, self._above = names.index("contact_force"), above_n
        self._retract = torch.tensor(sim.retract)
        self.ticks: list[ServoTick] = []
        self.seen: list[Tensor] = []
        self.hazard: list[Tensor] = []

    def act(self, tick: ServoTick) -> Tensor:
        self.ticks.append(tick)
        afraid = tick.obs[:, self._force] > self._above
        return torch.where(afraid[:, None], self._retract, tick.action)

    def felt(self, obs: Tensor, hazard: Tensor) -> None:
        self.seen.append(obs.clone())
        self.hazard.append(hazard)


def both(num_envs: int, **options: Any) -> tuple[Any, Any]:
    sims = pair(PRESS, num_envs, **options)
    for sim in sims:
        sim.queue_states(sim.state_ids("val")[:num_envs])
        sim.reset()
    return sims


def test_starts_and_pressing_agree_with_native() -> None:
    """Down to the surface and into it: each env's own height, tilt and stiffness."""
    on_warp, native = both(3, reward="shaped", limit_s=60.0)
    torch.testing.assert_close(on_warp.reset(), native.reset(), atol=1e-4, rtol=1e-4)
    actions = torch.tensor(DOWN).expand(16, 3, 4)
    names = native.observation_spec["state"].names
    force = names.index("contact_force")
    most = torch.zeros(3)
    for action in actions:
        found, expected = on_warp.step(action), native.step(action)
        assert torch.equal(found.terminated, expected.terminated)
        torch.testing.assert_close(found.reward, expected.reward, atol=2e-2, rtol=2e-2)
        # forces and their rate go by the tick at which the pad touches
        torch.testing.assert_close(
            found.obs["state"][:, :force], expected.obs["state"][:, :force], atol=5e-3, rtol=1e-2
        )
        torch.testing.assert_close(found.obs["state"][:, force], expected.obs["state"][:, force], atol=0.5, rtol=5e-2)
        most = torch.maximum(most, expected.obs["state"][:, force])
    assert (most > 5).all()


def test_flags_and_ids_are_the_same_on_both_engines() -> None:
    on_warp, native = both(3, limit_s=0.5)
    ended = compare_steps(on_warp, native, torch.zeros(12, 3, 4), reward=1e-4, obs=1e-3)
    assert ended["truncated"] == 3


def test_a_new_episode_does_not_feel_the_last_ones_force() -> None:
    sim = both(2, limit_s=1.0)[0]
    column = sim.observation_spec["state"].names.index("contact_force")
    felt = False
    for _ in range(20):
        out = sim.step(torch.tensor(DOWN).expand(2, 4))
        felt = felt or bool(out.obs["state"][:, column].max() > 1)
        if len(out.final_ids):
            break
    assert felt and out.truncated.all()
    assert out.final_obs["state"][:, column].min() > 1
    assert out.obs["state"][:, column].tolist() == [0.0, 0.0]


def test_a_reflex_acts_at_each_tick_as_on_native() -> None:
    sims = both(3, limit_s=60.0)
    reflexes = [Retreat(sim, above_n=3.0) for sim in sims]
    for sim, reflex in zip(sims, reflexes, strict=True):
        assert isinstance(sim, HasServoClock)
        sim.set_reflex(reflex)
    first, second = sims
    assert (first.servo_ticks, first.servo_spec, first.hazard, first.hazard_limit, first.retract) == (
        *(second.servo_ticks, second.servo_spec, second.hazard, second.hazard_limit, second.retract),
    )
    for _ in range(14):
        for sim in sims:
            sim.step(torch.tensor(DOWN).expand(3, 4))
    found, expected = reflexes
    assert [tick.tick for tick in found.ticks] == [*range(first.servo_ticks)] * 14
    assert [tick.started.tolist() for tick in found.ticks] == [tick.started.tolist() for tick in expected.ticks]
    assert found.ticks[0].started.all() and not found.ticks[1].started.any()
    hazards = [torch.stack(reflex.hazard) for reflex in reflexes]
    # the pad touches at the same tick on both engines, with the same blow
    touched = [(hazard > 0).int().argmax(dim=0) for hazard in hazards]
    assert torch.equal(touched[0], touched[1]) and (touched[1] > 0).all()
    torch.testing.assert_close(hazards[0].max(dim=0).values, hazards[1].max(dim=0).values, atol=0.5, rtol=0.05)
    # from then on it is held off the surface, where without a reflex it is pressed in
    free = both(3, limit_s=60.0)[0]
    for _ in range(14):
        last = free.step(torch.tensor(DOWN).expand(3, 4))
    column = free.observation_spec["state"].names.index("contact_force")
    pressed = last.obs["state"][:, column]
    for hazard in hazards:
        assert (hazard[-20:].mean(dim=0) < pressed / 2).all()
