"""Self-play of traffic: rewards, advantages and loss by hand, and what a decision earns in the real sim."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robotrl.errors import ConfigError, DataError
from robotrl.registry import make_sim
from robotrl.sims.bev.traffic.learned import layout
from robotrl.sims.bev.traffic.learned.driving import DECIDE_EVERY
from robotrl.sims.bev.traffic.learned.stored import read_traffic
from robotrl.sims.driving import tables
from robotrl.sims.driving.traffic.populations import moderate
from robotrl.traffic.experience import Driving, Tally, taken_candidate, touching
from robotrl.traffic.self_play import (
    ACCELS_MPS2,
    Batch,
    CarCritic,
    SelfPlayCfg,
    advantages,
    cannot_stop,
    fresh_network,
    self_play_loss,
    step_reward,
    taken_log_prob,
)
from robotrl.traffic.self_play_training import CHECKPOINTS, START, SelfPlay, begin, cfg_of, self_play
from tests.traffic.test_cloning import inputs_of

CFG = SelfPlayCfg(iterations=4, steps=20, num_envs=6, minibatch=64, epochs=2, save_every=2)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


# reward


def test_a_step_earns_its_pace_less_nearness_and_harshness() -> None:
    """At 5 of 10 m/s, with 4 m of the 8 m that 1.6 s are, braking at 3 m/s^2: 0.5 - 0.5 - 0.1 a second."""
    cfg = SelfPlayCfg(near=1.0, discomfort=0.1)
    found = step_reward(floats(5, 10, 15, 0), floats(10, 10, 10, 10), floats(-3, 0, 0, 0), floats(4, 1e6, 1e6, 0),
                        floats(1.6, 1, 1, 1), 0.1, cfg)  # fmt: skip
    # one and a half of the desired speed earns what half of it does; one who stands is not near
    assert found == pytest.approx([-0.01, 0.1, 0.05, 0.0], abs=1e-7)


def test_who_cannot_stop_any_more() -> None:
    """From 10 m/s it takes 10 m at 5 m/s^2; who stands on the line, or creeps, has stopped."""
    found = cannot_stop(floats(9.9, 10.1, -0.5, -0.5, 1e6), floats(10, 10, 0.4, 2.0, 30.0))
    assert found.tolist() == [True, False, False, True, False]


# advantages


def test_advantages_follow_each_car() -> None:
    """Rows 0, 2 and 4 are one car, which collides after 4; rows 1 and 3 are another, whose last decision is open."""
    reward, value = floats(1, 2, 3, 100, -10), floats(0.5, 1, 2, 4, 6)
    after, crashed = np.array([2, 3, 4, -1, -1]), np.array([False, False, False, False, True])
    found = advantages(reward, value, after, crashed, 0.5, 0.5)
    last = -10 - 6
    middle = 3 + 0.5 * (6 + 0.5 * last) - 2
    first = 1 + 0.5 * (2 + 0.5 * middle) - 0.5
    # the open decision lends its value alone: what it earned so far is not a result
    other = 2 + 0.5 * 4 - 1
    assert found.advantage == pytest.approx([first, other, middle, 0.0, last])
    assert found.target == pytest.approx(found.advantage + value)


def test_the_tally_links_decisions_car_by_car() -> None:
    tally = Tally((1, 3), 10)
    both, first = (np.array([0, 0]), np.array([1, 2])), (np.array([0]), np.array([1]))
    tally.begin(*both, floats(-5, 0))
    tally.add(np.full((1, 3), 0.25, np.float32))
    tally.begin(*first, floats(0))
    tally.add(np.full((1, 3), 1.0, np.float32))
    tally.crash(np.array([[False, True, False]]), 10.0)
    tally.add(np.full((1, 3), 1.0, np.float32))
    tally.forget(np.array([[True, True, True]]))
    tally.begin(*both, floats(0, 0))
    assert tally.count == 5
    assert tally.after[:5].tolist() == [2, -1, -1, -1, -1]
    assert tally.reward[:5] == pytest.approx([-4.75, 2.25, -9.0, 0.0, 0.0])
    assert tally.crashed[:5].tolist() == [False, False, True, False, False]


# loss


def batch_of(net: Any, rows: int) -> Batch:
    inputs, generator = inputs_of(rows), torch.Generator().manual_seed(0)
    candidate = torch.randint(layout.MODES, (rows,), generator=generator)
    advantage = torch.randn(rows, generator=generator)
    return Batch(inputs, candidate, taken_log_prob(net, inputs, candidate), advantage, advantage + 1.0)


def test_the_first_ratio_is_one_and_what_paid_becomes_more_probable() -> None:
    net, critic = fresh_network(0), CarCritic(0)
    batch = batch_of(net, 64)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    first = self_play_loss(net, critic, batch, 0.2, 0.0)
    assert float(first.ratio_error) < 1e-5
    optimizer = torch.optim.Adam([*net.parameters(), *critic.parameters()], lr=1e-3)
    for _ in range(40):
        optimizer.zero_grad()
        last = self_play_loss(net, critic, batch, 0.2, 0.0)
        last.loss.backward()
        optimizer.step()
    gain = taken_log_prob(net, batch.inputs, batch.candidate) - batch.old_log_prob
    assert float(gain[batch.advantage > 0.5].mean()) > 0.05 > float(gain[batch.advantage < -0.5].mean())
    assert float(last.value_loss) < float(first.value_loss)
    # what a mode is stays: from the acceleration of a car follows which one it took
    for name in ("anchors", "profile.weight", "profile.bias"):
        assert torch.equal(before[name], net.state_dict()[name])


def test_equal_advantages_and_no_entropy_give_no_gradient_to_the_network() -> None:
    net, critic = fresh_network(0), CarCritic(0)
    batch = batch_of(net, 16)._replace(advantage=torch.zeros(16))
    self_play_loss(net, critic, batch, 0.2, 0.0).loss.backward()
    assert all(one.grad is None or not one.grad.any() for one in net.parameters())


# the sim


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("self-play") / "net"
    begin(path, (moderate(),), CFG)
    return path


def driving(folder: Path) -> Driving:
    sim: Any = make_sim("bev/drive", CFG.num_envs, CFG.seed, traffic=(str(folder / START),), obs="none", threads=1)
    return Driving(sim, CFG)


def test_decisions_of_the_sim_earn_what_the_cars_did(folder: Path) -> None:
    """The candidates that are inferred have the accelerations of the cars, and every step of a car counts once."""
    loop = driving(folder)
    found = loop.drive(CFG.steps)
    rows = np.flatnonzero(found.after >= 0)
    assert len(rows) > 100 and (found.after[rows] > rows).all()
    later = found.inputs[found.after[rows]]
    speed, accel = layout.OWN.index("speed"), layout.OWN.index("accel")
    gained = 15.0 * (later[:, speed] - found.inputs[rows][:, speed])
    asked = np.array(ACCELS_MPS2)[found.candidate[rows] % layout.MODES]
    # a piece lasts half a second; who stops, or is held where its lane ends, brakes otherwise
    free = later[:, speed] > 0
    assert np.mean(np.abs(gained[free] - 0.5 * asked[free]) < 1e-3) > 0.95
    assert np.mean(np.abs(5.0 * later[free, accel] - asked[free]) < 1e-3) > 0.95
    lines = found.inputs[:, layout.MASK_AT :]
    assert (lines[np.arange(len(lines)), found.candidate // layout.MODES] > 0).all()
    assert found.car_steps <= DECIDE_EVERY * len(found.reward)
    assert found.reward.max() <= 0.5 + 1e-6
    loop.sim.close()


def test_a_lane_change_is_seen_as_its_line() -> None:
    before, after = np.zeros(3, tables.AGENT), np.zeros(3, tables.AGENT)
    after["plan"] = [ACCELS_MPS2[2], ACCELS_MPS2[7], ACCELS_MPS2[4]]
    after["hold"], after["d"] = [4.0, 4.0, 2.0], [-3.5, 3.5, 0.0]
    assert taken_candidate(before, after).tolist() == [8 + 2, 16 + 7, 4]


def test_the_car_that_the_ego_hit_is_found() -> None:
    agents = np.zeros(4, tables.AGENT)
    agents["kind"], agents["length"], agents["width"], agents["cos"] = tables.CAR, 4.0, 2.0, 1.0
    # 0.2 m ahead of the ego, 0.5 m ahead, and one that has left the map
    agents["x"], agents["lane"] = [0.0, 4.2, 4.5, 0.0], [0, 0, 0, -1]
    assert touching(agents).tolist() == [False, True, False, False]


def test_training_goes_on_as_if_it_had_never_stopped(tmp_path: Path, folder: Path) -> None:
    """Two iterations, a checkpoint, another process's start, two more: every bit as four in one go."""
    whole = self_play(folder, CFG)
    parted = tmp_path / "parted"
    begin(parted, (moderate(),), CFG)

    class Stopped(Exception):
        pass

    def stop(scalars: dict[str, float]) -> None:
        seen.append(scalars)
        if len(seen) == 3:  # after the checkpoint, so that an iteration is driven again
            raise Stopped

    seen: list[dict[str, float]] = []
    with pytest.raises(Stopped):
        self_play(parted, CFG, stop)
    assert [path.name for path in (parted / CHECKPOINTS).glob("step_*")] == ["step_000000002"]
    again = self_play(parted, CFG)
    assert len(again.curve) == CFG.iterations and again.curve == whole.curve
    assert np.array_equal(again.net.to_flat(), whole.net.to_flat())
    assert not np.array_equal(whole.net.to_flat(), fresh_network(CFG.seed).to_flat())
    assert all(row["ratio_error"] < 1e-4 for row in whole.curve)


def test_a_state_of_another_sim_is_refused(folder: Path, tmp_path: Path) -> None:
    training = SelfPlay(driving(folder), CFG)
    small = replace(CFG, num_envs=3)
    begin(tmp_path / "small", (moderate(),), small)
    sim: Any = make_sim("bev/drive", 3, 0, traffic=(str(tmp_path / "small" / START),), obs="none", threads=1)
    other = SelfPlay(Driving(sim, small), small)
    with pytest.raises(ConfigError, match="state"):
        other.load(training.state())
    training.driving.sim.close()
    sim.close()


def test_settings(folder: Path) -> None:
    assert cfg_of(read_traffic(folder / START).about, folder) == CFG
    with pytest.raises(DataError, match="has the settings"):
        cfg_of({"self_play": {"steps": 3}}, folder)
    for name, value in {"steps": 10, "gamma": 1.5, "clip": 0.0, "collision": -1.0, "iterations": 0, "lr": 0.0}.items():
        with pytest.raises(ConfigError, match=f"{name} is {value}"):
            replace(CFG, **{name: value}).check()
