"""Cal-QL's term by hand on two states, and the returns to go that calibrate it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tests.kits.learner_kit as kit
import tests.kits.off_policy_kit as off
from robotrl.errors import ConfigError
from robotrl.learners.critics.cal_ql import CalQl, cal_ql_loss, calibrated_gap, returns_to_go
from robotrl.learners.critics.chunk_critic import chunk_critic_loss
from robotrl.replay.types import SOURCES
from tests.kits.refusals import raises_naming


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return off.write_random_walks(tmp_path_factory.mktemp("cal_ql") / "data", episodes=60)


class Sum(torch.nn.Module):
    """Two critics: context plus w times the chunk's sum."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([1.0, 2.0]))

    def forward(self, ctx: Tensor, chunk: Tensor) -> Tensor:
        return ctx[:, 0] + self.w[:, None] * chunk.sum((1, 2))


def test_the_term_by_hand() -> None:
    """State 0 is worth 0, and its data returned 1.5; state 1 is worth 10, and its return is unknown."""
    critic: Any = Sum()
    ctx, executed = torch.tensor([[0.0], [10.0]]), torch.tensor([[[0.5]], [[-1.0]]])
    chunks = torch.tensor([[1.0, 2.0], [1.0, -3.0]]).view(2, 2, 1, 1)
    returns = torch.tensor([1.5, math.nan])
    data = critic(ctx, executed)
    assert data.tolist() == [[0.5, 9.0], [1.0, 8.0]]
    # of critic 0 the values 1 and 2 count as 1.5 and 2, of critic 1 the values 2 and 4; state 1: 11, 7 and 12, 4
    gap = calibrated_gap(torch.tensor([[[1.0, 2.0], [11.0, 7.0]], [[2.0, 4.0], [12.0, 4.0]]]), data, returns)
    assert gap.tolist() == [[1.75 - 0.5, 9.0 - 9.0], [3.0 - 1.0, 8.0 - 8.0]]
    both = CalQl(0.1, chunks, returns, torch.ones(2))
    loss = cal_ql_loss(critic, ctx, data, both)
    assert loss.item() == pytest.approx(0.1 * (1.25 + 2.0) / 2)
    # a value below the return is not pushed down: in state 0 the sample 1 of critic 0 has no gradient
    (slope,) = torch.autograd.grad(loss, critic.w)
    assert slope.tolist() == pytest.approx([0.1 * ((2 / 2 - 0.5) + (-2 / 2 + 1)) / 2, 0.1 * ((3 / 2 - 0.5) + 0) / 2])
    first = both._replace(logged=torch.tensor([0.0, 1.0]))
    assert cal_ql_loss(critic, ctx, critic(ctx, executed), first).item() == 0
    none = both._replace(logged=torch.zeros(2))
    assert cal_ql_loss(critic, ctx, critic(ctx, executed), none).item() == 0


def test_the_critics_loss_adds_it() -> None:
    critic: Any = Sum()
    ctx = torch.tensor([[0.0], [10.0]])
    rows = {"reward": torch.zeros(2), "discount": torch.zeros(2), "executed": torch.tensor([[[0.5]], [[-1.0]]])}
    given = CalQl(0.1, torch.ones(2, 2, 1, 1), torch.tensor([1.5, math.nan]), torch.ones(2))
    plain, info = chunk_critic_loss(critic, rows, ctx, lambda: torch.zeros(2))
    both, more = chunk_critic_loss(critic, rows, ctx, lambda: torch.zeros(2), given)
    term = cal_ql_loss(critic, ctx, critic(ctx, rows["executed"]), given)
    assert both.item() == pytest.approx((plain + term).item())
    assert more.keys() - info.keys() == {"cal_ql_loss"} and more["cal_ql_loss"].item() == pytest.approx(term.item())


def test_returns_end_with_the_task_and_are_unknown_where_time_ran_out() -> None:
    """Episodes of three, two and one frames: ended, cut, and both, which is an end; the last frame has no end."""
    reward = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
    terminated = np.array([0, 0, 1, 0, 0, 1, 0], np.bool_)
    truncated = np.array([0, 0, 0, 0, 1, 1, 0], np.bool_)
    found = returns_to_go(reward, terminated, truncated, 0.5)
    assert found[[0, 1, 2, 5]].tolist() == [3.0, 4.0, 4.0, 32.0]
    assert np.isnan(found[[3, 4, 6]]).all()


@pytest.mark.parametrize("cfg", [off.QC, off.RESIDUAL], ids=["qc", "residual"])
def test_rows_have_the_returns_of_their_frames(cfg: Any, data: Path) -> None:
    learner = replace(cfg, cal_ql_alpha=0.5, cal_ql_samples=3).build(off.setup(None, data, kit.flow()))
    off.run(learner, 2)
    assert "cal_ql_loss" in off.run(learner, 4)[-1]
    sampler, frames = learner._sampler(), learner._data
    found = sampler.sample(64, 2, cfg.gamma, torch.Generator().manual_seed(0))
    rows = learner.more_rows(found)
    demo = found.source == SOURCES.index("demo")
    assert torch.equal(rows["logged"].bool(), demo) and 0 < demo.sum() < 64
    assert rows["return_to_go"][~demo].isnan().all()
    # the discounted sum of rewards up to the end, chunk by chunk of one step
    one = frames.view(frames.indices(), 1, cfg.gamma)
    for start, returned in zip(found.starts[demo].tolist(), rows["return_to_go"][demo].tolist(), strict=True):
        total, at, factor = 0.0, start, 1.0
        while True:
            total, factor = total + factor * float(one.reward[at]), factor * cfg.gamma
            if one.terminated[at] or one.truncated[at]:
                break
            at += 1
        assert math.isnan(returned) if one.truncated[at] else returned == pytest.approx(total, abs=1e-5)
    drawn = learner._draw(2)
    assert drawn["cal_ql_noise"].shape == (2 * cfg.batch, 3, 2, 1)


def test_it_lowers_the_values_of_samples_against_those_of_the_data(data: Path) -> None:
    gaps = []
    for alpha in (0.0, 20.0):
        cfg = replace(off.QC, updates=40, updates_per_iteration=40, env_steps=0, cal_ql_alpha=alpha)
        learner = cfg.build(off.setup(None, data, kit.flow()))
        off.run(learner, 1)
        rows, policy = learner._draw(4), learner.policy
        with torch.no_grad():
            ctx = policy.encode({"walk": rows["obs/walk"]})
            noise = torch.randn(rows["chunk"].shape, generator=torch.Generator().manual_seed(0))
            sampled = policy.critic(ctx, policy.sampled(ctx, noise))
            gaps.append(float((sampled - policy.critic(ctx, rows["chunk"])).mean()))
    assert gaps[1] < gaps[0] - 0.1


def test_what_cannot_work_is_refused() -> None:
    for field, value, expected in (("cal_ql_alpha", -1.0, 0), ("cal_ql_samples", 0, 1)):
        for cfg in (off.QC, off.RESIDUAL):
            with raises_naming(ConfigError, f"algo.{field}", value, expected):
                replace(cfg, **{field: value}).check()
    with raises_naming(ConfigError, "algo.cal_ql_alpha", 0):
        replace(off.QC, updates=0, cal_ql_alpha=0.1).build(off.setup(None, None, kit.flow()))
