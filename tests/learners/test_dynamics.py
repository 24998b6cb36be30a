"""Dynamics of logged states: what is learned, which networks are used, storage and refusals."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from robotrl.errors import ConfigError, DataError
from robotrl.learners.dynamics.cfg import DynamicsCfg
from robotrl.learners.dynamics.ensemble import DynamicsEnsemble, StateChanges
from robotrl.learners.dynamics.fit import DynamicsFit
from robotrl.learners.dynamics.stored import dynamics_tree, stored_dynamics
from robotrl.run.critic_checkpoint import write_critic
from tests.kits.learner_kit import same, snapshot
from tests.kits.refusals import raises_naming

CFG = DynamicsCfg(nets=3, elites=2, hidden=(32, 32), updates=150, batch=64, lr=3e-3)
CPU = torch.device("cpu")
MATRIX = torch.tensor([[0.9, 0.2], [-0.1, 1.0]])
INPUT = torch.tensor([[1.0, 0.0], [0.5, 0.5]])


def linear(rows: int, seed: int) -> StateChanges:
    """x' = M x + B (a_1 + a_2), of states with means 5 and -3 and other scales."""
    draw = torch.Generator().manual_seed(seed)
    ctx = torch.randn((rows, 2), generator=draw) * torch.tensor([2.0, 0.5]) + torch.tensor([5.0, -3.0])
    chunk = torch.rand((rows, 2, 2), generator=draw) * 2 - 1
    return StateChanges(ctx, chunk, ctx @ MATRIX.T + chunk.sum(1) @ INPUT.T)


@pytest.fixture(scope="module")
def fitted() -> DynamicsFit:
    made = DynamicsFit(CFG, linear(600, 0), linear(200, 1), 0, CPU)
    for _ in range(3):
        scalars = made.fit(50, "test")
    assert scalars["dynamics/heldout_error"] == made.error
    return made


def test_a_linear_system_is_learned(fitted: DynamicsFit) -> None:
    """To 2 % of the variance of the changes; before the fit the error is that of knowing nothing, about 1."""
    assert fitted.error < 0.02
    fresh = DynamicsFit(replace(CFG, lr=1e-9), linear(600, 0), linear(200, 1), 0, CPU)
    fresh.fit(1, "test")
    assert fresh.error == pytest.approx(1.0, abs=0.3)
    other = linear(100, 2)
    network = torch.arange(100) % 2
    made = fitted.model.step(other.ctx, other.chunk, network, torch.zeros(100, 2))
    apart = (made - other.next_ctx).square().mean(0).sqrt()
    assert (apart < 0.2 * (other.next_ctx - other.ctx).std(0)).all()


def test_the_networks_in_use_have_the_smallest_errors(fitted: DynamicsFit) -> None:
    model = fitted.model
    best = model.error.argsort()
    assert model.elites.tolist() == best[:2].tolist()
    assert model.error.isfinite().all() and len(set(model.error.tolist())) == 3


def test_normalization_is_that_of_the_data(fitted: DynamicsFit) -> None:
    data, model = linear(600, 0), fitted.model
    both = torch.cat([data.ctx, data.next_ctx])
    assert torch.allclose(model.state_mean, both.mean(0), atol=1e-5)
    assert torch.allclose(model.state_std, both.std(0, correction=0), atol=1e-5)
    change = model.change(data.ctx, data.next_ctx)
    assert change.mean(0).abs().max() < 1e-5
    assert torch.allclose(change.std(0, correction=0), torch.ones(2), atol=1e-5)
    assert torch.equal(model.low, both.amin(0)) and torch.equal(model.high, both.amax(0))


def test_a_step_takes_the_network_of_its_row_and_its_noise() -> None:
    """Networks without hidden activity: biases alone, by hand."""
    model = DynamicsEnsemble(1, (1, 1), 2, 2, (4,))
    last = model.layers[-1]
    with torch.no_grad():
        last.weight.zero_()
        # means 1 and 2; the log-variance 0 is bounded softly
        last.bias.copy_(torch.tensor([[[1.0, 0.0]], [[2.0, 0.0]]]))
    model.state_mean.fill_(10.0), model.state_std.fill_(2.0)
    model.change_mean.fill_(0.5), model.change_std.fill_(3.0)
    ctx, chunk = torch.tensor([[12.0], [12.0], [12.0]]), torch.zeros(3, 1, 1)
    still = model.step(ctx, chunk, torch.tensor([0, 1, 0]), torch.zeros(3, 1))
    # normalized 1; changes 0.5 + 3 m are 3.5 and 6.5; restored 10 + 2 (1 + change)
    assert still.flatten().tolist() == [19.0, 25.0, 19.0]
    std = (0.5 * model(ctx, chunk).log_var[0, 0, 0]).exp()
    moved = model.step(ctx, chunk, torch.tensor([0, 1, 0]), torch.ones(3, 1))
    assert torch.allclose(moved - still, torch.full((3, 1), 2 * 3 * std.item()))
    # the other network alone is used
    model.error.copy_(torch.tensor([2.0, 1.0]))
    model.choose()
    assert model.step(ctx, chunk, torch.tensor([0, 1, 0]), torch.zeros(3, 1)).flatten().tolist() == [25.0, 19.0, 25.0]
    model.high.fill_(20.0)
    assert model.step(ctx, chunk, torch.tensor([0, 1, 0]), torch.zeros(3, 1)).flatten().tolist() == [20.0, 19.0, 20.0]


def test_worse_weights_do_not_take_the_place_of_better_ones(fitted: DynamicsFit) -> None:
    made = copy.deepcopy(fitted)
    before = snapshot(made.model.state_dict())
    with torch.no_grad():
        for weight in made._loss.model.parameters():
            weight[0] += 1.0
    made._keep_best()
    after = made.model.state_dict()
    assert same(after, before)


def test_the_seed_decides_and_a_fit_goes_on_exactly() -> None:
    data, held = linear(100, 0), linear(40, 1)
    torch.manual_seed(5)
    one = DynamicsFit(CFG, data, held, 3, CPU)
    torch.manual_seed(6)
    two = DynamicsFit(CFG, data, held, 3, CPU)
    assert one.fit(4, "test") == two.fit(4, "test")
    state = snapshot(one.state())
    one.fit(4, "test")
    again = DynamicsFit(CFG, data, held, 3, CPU)
    again.load(state)
    again.fit(4, "test")
    assert same(snapshot(again.state()), snapshot(one.state()))
    other = DynamicsFit(CFG, data, held, 4, CPU)
    other.fit(4, "test")
    assert not same(snapshot(other.state())["best"], snapshot(two.state())["best"])


def test_stored_dynamics_are_the_same(fitted: DynamicsFit, tmp_path: Path) -> None:
    write_critic(tmp_path / "run", dynamics_tree(fitted.model), 1)
    found = stored_dynamics(tmp_path / "run")
    assert same(dict(found.state_dict()), dict(fitted.model.state_dict()))
    write_critic(tmp_path / "none", {"weights": {}}, 1)
    with pytest.raises(DataError, match="has no dynamics: expected a run of rl100"):
        stored_dynamics(tmp_path / "none")


@pytest.mark.parametrize(("name", "where"), [("ctx", "state before"), ("chunk", "chunk"), ("next_ctx", "state after")])
def test_numbers_that_are_not_finite_are_refused(name: str, where: str) -> None:
    good, bad = linear(20, 0), linear(20, 1)
    array = getattr(bad, name)
    array[(7,) + (0,) * (array.dim() - 1)] = torch.nan
    with pytest.raises(DataError, match=f"held-out episodes: the {where} of chunk 7 has nan"):
        DynamicsFit(CFG, good, bad, 0, CPU)


def test_settings_and_missing_data_are_refused() -> None:
    for field, value in (("nets", 0), ("updates", 0), ("batch", 0), ("lr", 0.0), ("hidden", (8, 0)), ("elites", 4)):
        with raises_naming(ConfigError, f"algo.dynamics.{field}"):
            replace(CFG, **{field: value}).check()
    none = linear(20, 0).rows(torch.arange(0))
    with pytest.raises(ConfigError, match="held_out leaves 20 whole chunks to learn dynamics from and 0"):
        DynamicsFit(CFG, linear(20, 0), none, 0, CPU)
