"""Cloning: the torch network is the kernels' one, modes stay apart, and a batch can be learned by heart."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robotrl.errors import ConfigError
from robotrl.sims.bev.traffic.lane_changes import HOLD_S
from robotrl.sims.bev.traffic.learned import layout, network
from robotrl.sims.bev.traffic.learned.stored import scores_of
from robotrl.traffic.cloning import CloneCfg, anchors_of, clone, clone_losses, nearest_mode
from robotrl.traffic.decisions import HORIZON, CarFrame, Decisions, labeled
from robotrl.traffic.model import TrafficNet, usable
from tests.kits.traffic_kit import net_of


def inputs_of(count: int, seed: int = 0) -> torch.Tensor:
    """Random inputs, on which the own lane may always be taken."""
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((count, layout.INPUT)).astype(np.float32)
    inputs[:, layout.MASK_AT :] = rng.random((count, layout.LINES)) < 0.5
    inputs[:, layout.MASK_AT] = 1.0
    return torch.from_numpy(inputs)


def test_the_kernels_run_the_same_network() -> None:
    net, inputs = net_of(-2.0, 1.0), inputs_of(16)
    with torch.no_grad():
        torch.nn.init.normal_(net.profile.weight)
        scores, profiles = net(inputs)
    weights = net.to_flat()
    valid = usable(inputs)
    for row in range(len(inputs)):
        found = torch.from_numpy(scores_of(weights, inputs[row].numpy()))
        assert torch.allclose(found[valid[row]], scores[row][valid[row]], atol=1e-4)
        assert bool((found[~valid[row]] == network.MASKED).all())
    scratch = np.zeros(network.SCRATCH, np.float32)
    network.evaluate(weights, inputs[3].numpy(), scratch)
    for mode, k in ((0, 0), (1, 5), (7, 7)):
        assert network.piece(weights, scratch, mode, k) == pytest.approx(float(profiles[3, mode, k]), abs=1e-4)


def test_flat_parameters_and_back() -> None:
    one, other = net_of(1.0, seed=1), net_of(seed=2)
    other.load_flat(one.to_flat())
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())


def test_the_choice_is_the_best_or_drawn() -> None:
    weights = np.zeros(layout.SIZE, np.float32)
    scratch = np.full(network.SCRATCH, network.MASKED, np.float32)
    scratch[network.SCORES_AT + 3], scratch[network.SCORES_AT + 9] = 0.0, np.log(3.0)
    assert {network.choose(weights, scratch, seed, 0) for seed in range(20)} == {9}
    weights[layout.PLACES["temperature"]] = 1.0
    drawn = np.array([network.choose(weights, scratch, seed, 32 * 7) for seed in range(2000)])
    # a quarter and three quarters; standard deviation 0.01
    assert set(drawn.tolist()) == {3, 9} and np.mean(drawn == 3) == pytest.approx(0.25, abs=0.05)


def test_nearest_mode_counts_what_comes_first() -> None:
    profiles = torch.zeros(1, layout.MODES, layout.PIECES)
    profiles[0, 0, 0], profiles[0, 1, -1] = 1.0, 1.0
    profiles[0, 2:] = 9.0
    wanted = torch.zeros(1, layout.PIECES)
    assert nearest_mode(profiles, wanted).tolist() == [1]


def test_anchors_find_clusters() -> None:
    centers = torch.linspace(-4.0, 3.0, layout.MODES)[:, None].expand(-1, layout.PIECES)
    noise = 0.01 * torch.randn(400, layout.PIECES, generator=torch.Generator().manual_seed(0))
    found = anchors_of(centers.repeat(50, 1) + noise, torch.Generator().manual_seed(0))
    assert torch.allclose(found, centers, atol=0.05)
    with pytest.raises(ConfigError, match="decisions have 1 different profiles"):
        anchors_of(torch.ones(20, layout.PIECES), torch.Generator().manual_seed(0))


def test_a_batch_is_learned_by_heart() -> None:
    inputs = inputs_of(32)
    rng = np.random.default_rng(1)
    line = np.array([rng.choice(np.flatnonzero(row[layout.MASK_AT :])) for row in inputs.numpy()])
    profile = (rng.integers(-4, 3, (32, 1)) + 0.2 * rng.standard_normal((32, layout.PIECES))).astype(np.float32)
    twice = Decisions(np.tile(inputs.numpy(), (2, 1)), np.tile(line, 2), np.tile(profile, (2, 1)))
    cloned = clone(twice, CloneCfg(updates=1500, batch=32, held_out=0.5))
    assert cloned.metrics["accuracy"] == 1.0 and cloned.metrics["score_loss"] < 0.1
    assert cloned.metrics["profile_error"] < 0.25


def test_only_a_mode_that_is_nearest_learns_its_profile() -> None:
    net, inputs = net_of(-3.0, 2.0), inputs_of(4)
    out = clone_losses(net, inputs, torch.zeros(4, dtype=torch.long), torch.full((4, layout.PIECES), -2.5), 1.0)
    out.loss.backward()
    assert net.profile.bias.grad is not None
    moved = net.profile.bias.grad.view(layout.MODES, layout.PIECES).abs().sum(dim=1) > 0
    assert moved.tolist() == [True] + [False] * (layout.MODES - 1)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="temperature is 3"):
        CloneCfg(temperature=3.0).check()
    few = Decisions(*(x[:5] for x in (inputs_of(5).numpy(), np.zeros(5, np.int64), np.zeros((5, 8), np.float32))))
    with pytest.raises(ConfigError, match="decisions are 5"):
        clone(few, CloneCfg(updates=1))


def frames_of(v: np.ndarray) -> list[CarFrame]:
    """Frames of one env with one car in slot 1, on lane 4, by its speeds."""

    def column(value: float, dtype: type) -> np.ndarray:
        return np.full((1, 2), value, dtype)

    return [
        CarFrame(
            column(speed, np.float32),
            column(4, np.int32),
            column(0.0, np.float32),
            column(0.0, np.float32),
            column(7, np.int32),
            np.array([100 + k], np.int32),
        )
        for k, speed in enumerate(v)
    ]


def test_labels_by_hand() -> None:
    v = 10.0 + 0.1 * np.arange(HORIZON + 1)
    env, slot, inputs = np.array([0]), np.array([1]), np.ones((1, layout.INPUT), np.float32)
    found = labeled(frames_of(v), env, slot, inputs)
    assert found.line.tolist() == [0]
    assert found.profile[0].tolist() == pytest.approx([1.0] * layout.PIECES, abs=1e-4)
    # after a change to the left a car is on the right of its new lane
    changed = frames_of(v)
    changed[1].hold[:], changed[1].d[:] = HOLD_S, -3.5
    assert labeled(changed, env, slot, inputs).line.tolist() == [1]
    changed[1].d[:] = 3.5
    assert labeled(changed, env, slot, inputs).line.tolist() == [2]
    # a line that the car may not take is no label
    masked = inputs.copy()
    masked[0, layout.MASK_AT + 2] = 0.0
    assert len(labeled(changed, env, slot, masked).line) == 0


@pytest.mark.parametrize("field", ["lane", "seed", "steps"])
def test_cars_that_leave_have_no_label(field: str) -> None:
    frames = frames_of(np.full(HORIZON + 1, 10.0))
    getattr(frames[20], field)[:] = -1
    one = np.ones(1, np.int64)
    assert len(labeled(frames, 0 * one, one, np.ones((1, layout.INPUT), np.float32)).line) == 0


def test_a_network_has_the_declared_size() -> None:
    assert TrafficNet().to_flat().shape == (layout.SIZE,)
