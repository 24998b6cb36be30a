"""AgentForecaster of other road users: features by hand, causality, and counterfactuals on traffic that must react."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from robotrl.learners.pseudo.forecaster import (
    DT_S,
    FAR_M,
    AgentForecaster,
    AgentScenes,
    forecast_loss,
    leader_ahead,
    relative,
)
from robotrl.sims.driving.traffic.following import idm
from robotrl.spec.vehicle import CAR, OBSTACLE

NOW, STEPS = 5, 20
LENGTH = 4.5


def test_places_in_the_frame_of_another() -> None:
    origin = torch.tensor([1.0, 2.0, torch.pi / 2, 0.0])
    ahead, left = relative(origin, torch.tensor([-2.0, 6.0, 0.0, 0.0]))
    assert (ahead.item(), left.item()) == (pytest.approx(4.0), pytest.approx(3.0))


def test_who_is_ahead_by_hand() -> None:
    """The ego at 20 m, a car at the origin, one at 10 m, one beside at 5 m, and an empty slot at 3 m."""
    agents = torch.zeros(1, 4, 4)
    agents[0, :, 0] = torch.tensor([0.0, 10.0, 5.0, 3.0])
    agents[0, :, 1] = torch.tensor([0.0, 0.0, 3.0, 0.0])
    agents[0, :, 3] = torch.tensor([8.0, 6.0, 4.0, 2.0])
    size = torch.tensor([LENGTH, 1.8]).expand(1, 4, 2)
    there = torch.tensor([[True, True, True, False]])
    ego = torch.tensor([[20.0, 0.0, 0.0, 3.0]])
    gap, speed = leader_ahead(agents, size, there, ego, torch.tensor([[LENGTH, 1.9]]))
    assert gap[0, :3].tolist() == pytest.approx([10 - LENGTH, 10 - LENGTH, FAR_M])
    assert speed[0, :3].tolist() == pytest.approx([6.0, 3.0, 0.0])
    # in the other direction: nobody is ahead but those behind it
    turned = agents.clone()
    turned[..., 2] = torch.pi
    gap, _ = leader_ahead(turned, size, there, ego, torch.tensor([[LENGTH, 1.9]]))
    assert gap[0, 1].item() == pytest.approx(10 - LENGTH)


def follower(seed: int, count: int, brakes: Tensor | None = None) -> AgentScenes:
    """A car that follows the ego by IDM, and one parked far aside; from `NOW` on the ego may brake at 6 m/s^2.

    Args:
        seed: seed of the gaps and speeds.
        count: B.
        brakes: (B,) bool; None: half of them do, at random.
    """
    generator = torch.Generator().manual_seed(seed)
    speed = 6.0 + 5.0 * torch.rand(count, generator=generator)
    gap = 4.0 + 4.0 * torch.rand(count, generator=generator)
    drawn = torch.rand(count, generator=generator) < 0.5
    brakes = drawn if brakes is None else brakes
    ego, agents = torch.zeros(count, NOW + 1 + STEPS, 4), torch.zeros(count, NOW + 1 + STEPS, 2, 4)
    for b in range(count):
        x, v = 0.0, float(speed[b])
        y, w = -float(gap[b]) - LENGTH, float(speed[b])
        for k in range(NOW + 1 + STEPS):
            ego[b, k] = torch.tensor([x, 0.0, 0.0, v])
            agents[b, k, 0] = torch.tensor([y, 0.0, 0.0, w])
            accel = idm(w, 12.0, max(x - y - LENGTH, 0.01), w - v, 1.5)
            v_next = max(v - 6.0 * DT_S, 0.0) if bool(brakes[b]) and k >= NOW else v
            w_next = max(w + accel * DT_S, 0.0)
            x, y = x + 0.5 * (v + v_next) * DT_S, y + 0.5 * (w + w_next) * DT_S
            v, w = v_next, w_next
    agents[:, :, 1] = torch.tensor([5.0, 30.0, 0.0, 0.0])
    there = torch.ones(agents.shape[:3], dtype=torch.bool)
    kind = torch.tensor([CAR, OBSTACLE]).expand(count, 2)
    size = torch.tensor([LENGTH, 1.8]).expand(count, 2, 2)
    return AgentScenes(ego, size[:, 0], agents, there, kind, size)


def known(scenes: AgentScenes) -> AgentScenes:
    """What is known at `NOW`, and what the ego does after it."""
    return scenes._replace(agents=scenes.agents[:, : NOW + 1], there=scenes.there[:, : NOW + 1])


def likely(model: AgentForecaster, scenes: AgentScenes) -> Tensor:
    with torch.no_grad():
        return model.likely(known(scenes), model.remember(known(scenes), NOW), NOW, STEPS)


@pytest.fixture(scope="module")
def trained() -> AgentForecaster:
    torch.manual_seed(0)
    model, data = AgentForecaster(32), follower(0, 128)
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(150):
        at = torch.randint(128, (32,), generator=generator)
        found = forecast_loss(model, AgentScenes(*(x[at] for x in data)), NOW)
        optimizer.zero_grad()
        (found.regression + 0.2 * found.classification).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model


def test_a_follower_brakes_if_the_ego_does_and_only_then(trained: AgentForecaster) -> None:
    """The same pasts, once with an ego that brakes: the follower must react, or it drives through the ego."""
    none, every = torch.zeros(48, dtype=torch.bool), torch.ones(48, dtype=torch.bool)
    free, braked = follower(1, 48, none), follower(1, 48, every)
    assert torch.equal(free.agents[:, : NOW + 1], braked.agents[:, : NOW + 1])
    on, off = likely(trained, free), likely(trained, braked)
    # as far as the real followers, in both worlds
    for found, real in ((on, free), (off, braked)):
        assert (found[:, -1, 0, 0] - real.agents[:, -1, 0, 0]).abs().mean() < 0.6
    assert (on[:, -1, 0, 0] - off[:, -1, 0, 0]).mean() > 1.5
    assert (on[:, -1, 0, 3] - off[:, -1, 0, 3]).mean() > 2.0

    def overlap(found: Tensor, ego: Tensor) -> Tensor:
        return (ego[:, NOW:, 0] - found[:, :, 0, 0] < LENGTH).any(dim=1).float().mean()

    # what the log says of a free ego would hit the one that brakes; the forecast does not
    assert overlap(free.agents[:, NOW:], braked.ego) > 0.5
    assert overlap(off, braked.ego) < 0.1


def test_a_parked_car_stays(trained: AgentForecaster) -> None:
    found = likely(trained, follower(2, 4))
    assert torch.equal(found[:, :, 1], found[:, :1, 1].expand(-1, STEPS + 1, -1))


@torch.no_grad()
def test_a_forecast_depends_on_what_the_ego_has_done_not_on_what_it_will_do() -> None:
    torch.manual_seed(1)
    model, scenes = AgentForecaster(16, 2), follower(3, 4)
    before = likely(model, scenes)
    later = scenes.ego.clone()
    later[:, NOW + 10 :, 0] += 5.0
    after = likely(model, scenes._replace(ego=later))
    assert torch.equal(before[:, :11], after[:, :11])
    assert not torch.equal(before[:, 11:], after[:, 11:])


@torch.no_grad()
def test_what_is_not_there_changes_nothing() -> None:
    torch.manual_seed(1)
    model, scenes = AgentForecaster(16, 2), follower(4, 4)
    empty = torch.full_like(scenes.agents[:, :, :1], 3.0)
    more = scenes._replace(
        agents=torch.cat([scenes.agents, empty], dim=2),
        there=torch.cat([scenes.there, torch.zeros_like(scenes.there[:, :, :1])], dim=2),
        kind=torch.cat([scenes.kind, torch.zeros_like(scenes.kind[:, :1])], dim=1),
        size=torch.cat([scenes.size, torch.ones_like(scenes.size[:, :1])], dim=1),
    )
    assert torch.allclose(likely(model, more)[:, :, :2], likely(model, scenes), atol=1e-5)
    assert forecast_loss(model, more, NOW).regression.item() == pytest.approx(
        forecast_loss(model, scenes, NOW).regression.item(), abs=1e-5
    )
