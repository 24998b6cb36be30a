"""Muon against torch's own, and in the engine: compiled, in place, averaged, resumed."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import robotrl.engine.update
from robotrl.engine.engine import Context, Engine, EngineMode, LossModule, LossOut, ParameterGroup
from robotrl.engine.flat_params import in_turn
from robotrl.engine.muon import direction, hidden_matrices, orthogonal


@given(rows=st.integers(1, 40), columns=st.integers(1, 40), size=st.floats(1e-4, 1e4), seed=st.integers(0, 99))
def test_a_matrix_of_any_shape_and_size_comes_near_an_orthogonal_one(rows, columns, size, seed):
    left, right = (
        torch.linalg.qr(torch.randn(n, n, generator=torch.Generator().manual_seed(seed + n)))[0]
        for n in (rows, columns)
    )
    rank = min(rows, columns)
    # singular values from 1 to 4: a well-posed one
    values = torch.linspace(1, 4, rank)
    matrix = size * left[:, :rank] @ torch.diag(values) @ right[:rank]
    found = orthogonal(matrix)
    assert found.shape == matrix.shape and found.dtype == matrix.dtype
    singular = torch.linalg.svdvals(found)
    assert singular.min() > 0.6 and singular.max() < 1.3
    # along the singular vectors of the matrix itself
    inner = left[:, :rank].T @ found @ right[:rank].T
    assert (inner - torch.diag(inner.diagonal())).abs().max() < 0.05


def test_zeros_stay_and_what_is_scaled_goes_the_same_way():
    assert not orthogonal(torch.zeros(3, 5)).any()
    matrix = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    # a power of two rounds alike
    assert torch.equal(orthogonal(matrix), orthogonal(1024 * matrix))
    step = direction(matrix, matrix)
    assert torch.allclose(step, 0.2 * math.sqrt(6) * orthogonal(matrix))
    # of Adam's usual size: all four singular values are about 1, spread over 24 numbers
    assert float(step.square().mean().sqrt()) == pytest.approx(0.2, rel=0.2)


class Net(LossModule):
    """Two layers with a table of words before them; a head apart."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.policy = nn.ModuleDict({"words": nn.Embedding(7, 6), "up": nn.Linear(6, 9), "down": nn.Linear(9, 4)})
        self.head = nn.Linear(4, 5)

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        hidden = self.policy["down"](self.policy["up"](self.policy["words"](batch["word"])).tanh())
        loss = (self.head(hidden) - batch["y"]).square().mean()
        rate = batch["y"].new_tensor(1e-2)
        return LossOut(loss, {}, (rate * context.carry["on"], rate))


WORDS = torch.arange(40) % 7
# as many directions as the matrices have, or what is orthogonal would be made of rounding
DATA = {"word": WORDS, "y": (WORDS[:, None].float() * torch.arange(1, 6)).sin()}


def engine(mode: EngineMode = "eager", **changes: float) -> Engine:
    groups = (
        ParameterGroup("policy.", **{"max_grad_norm": math.inf, "muon": 3.0, **changes}),
        ParameterGroup("head.", math.inf),
    )
    return Engine(Net(), groups, minibatch=8, carry={"on": 1.0}, mode=mode, eps=1e-8)


def test_matrices_between_hidden_states_are_found():
    assert hidden_matrices(Net()) == {"policy.up.weight", "policy.down.weight", "head.weight"}
    assert hidden_matrices(nn.Linear(2, 2)) == {"weight"}
    # no convolution, no scale
    assert hidden_matrices(nn.Sequential(nn.Conv2d(3, 4, 2), nn.LayerNorm(4), nn.Linear(4, 4))) == {"2.weight"}


def test_what_says_tokens_is_none_of_them():
    from transformers import LlamaConfig, LlamaForCausalLM

    cfg = LlamaConfig(
        vocab_size=11, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, pad_token_id=0
    )
    found = hidden_matrices(nn.ModuleDict({"policy": LlamaForCausalLM(cfg)}))
    own = "policy.model.layers.0."
    parts = [f"self_attn.{x}_proj" for x in "qkvo"] + [f"mlp.{x}_proj" for x in ("gate", "up", "down")]
    assert found == {f"{own}{part}.weight" for part in parts}


def test_it_does_what_muon_and_adam_of_torch_do():
    ours, theirs = engine(), Net()
    matrices = [theirs.policy["up"].weight, theirs.policy["down"].weight]
    rest = [p for p in theirs.parameters() if all(p is not m for m in matrices)]
    optimizers = [
        torch.optim.Muon(matrices, lr=3e-2, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
        torch.optim.Adam(rest, lr=1e-2, eps=1e-8),
    ]
    before = ours.flat.clone()
    order = torch.arange(40)
    for rows in order.split(8):
        loss = theirs({name: x[rows] for name, x in DATA.items()}, Context({"on": torch.ones(())}, {}, "")).loss
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    ours.run(DATA, order, 40, "here")
    expected = torch.cat([p.detach().reshape(-1) for p in theirs.parameters()])
    moved = (ours.flat - before).abs()
    assert moved.max() > 0.05
    assert (ours.flat - expected).abs().max() < 1e-5
    # no second moment where Muon moves, the head's included that it does not
    second = ours.state()["second"]
    spans = {
        name: span
        for name, span in zip(
            dict(theirs.named_parameters()), in_turn(p.numel() for p in theirs.parameters()), strict=True
        )
    }
    for name, (a, b) in spans.items():
        assert bool(second[a:b].any()) == (name not in ("policy.up.weight", "policy.down.weight")), name


@pytest.mark.timeout(300)
def test_it_compiles_to_the_same_numbers():
    compiled, eager = engine("compiled", average=0.9), engine(average=0.9)
    for run in (compiled, eager):
        run.run(DATA, torch.arange(40), 40, "here")
    assert compiled.mode == "compiled"
    assert torch.allclose(compiled.flat, eager.flat, atol=2e-3)
    for name, value in compiled.state().items():
        assert torch.allclose(value, eager.state()[name], atol=2e-3), name


def test_elements_in_short_pieces_move_as_in_one(monkeypatch):
    whole, short = engine(average=0.9), engine(average=0.9)
    whole.run(DATA, torch.arange(40), 40, "here")
    monkeypatch.setattr(robotrl.engine.update, "AT_ONCE", 5)
    short.run(DATA, torch.arange(40), 40, "here")
    assert torch.equal(whole.flat, short.flat)
    for name, value in whole.state().items():
        assert torch.equal(value, short.state()[name]), name


def test_averages_follow_matrices_too():
    run = engine(average=0.5)
    mean = run.flat[:42].clone(), run.flat[42:96].clone()
    for _ in range(3):
        run.run(DATA, torch.arange(8), 40, "here")
        mean = tuple(0.5 * old + 0.5 * new for old, new in zip(mean, (run.flat[:42], run.flat[42:96]), strict=True))
    found = run.averages("policy.")
    assert torch.allclose(found["words.weight"].flatten(), mean[0], atol=1e-6)
    assert torch.allclose(found["up.weight"].flatten(), mean[1], atol=1e-6)


def test_it_goes_on_identically_and_stands_still_at_rate_0():
    run = engine()
    run.run(DATA, torch.arange(40), 40, "here")
    saved, weights = {name: x.clone() for name, x in run.state().items()}, run.flat.clone()
    run.run(DATA, torch.arange(40), 40, "here")
    fresh = engine()
    fresh.flat.copy_(weights)
    fresh.load(saved)
    fresh.run(DATA, torch.arange(40), 40, "here")
    assert torch.equal(fresh.flat, run.flat)
    still = engine()
    still.carry["on"].zero_()
    before = still.flat.clone()
    still.run(DATA, torch.arange(40), 40, "here")
    size = sum(p.numel() for p in Net().policy.parameters())
    assert torch.equal(still.flat[:size], before[:size]) and not torch.equal(still.flat[size:], before[size:])
    assert not still.state()["first"][:size].any()
