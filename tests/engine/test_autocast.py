"""Networks in bfloat16: what is rounded, and what is not."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.nn.functional import linear, scaled_dot_product_attention

from robotrl.engine import autocast
from robotrl.engine.autocast import SLOW, in_bf16, slowdown_in_bf16, warn_if_slow

CPU = torch.device("cpu")


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_products_are_rounded_and_attention_is_not() -> None:
    q, k, v, mask = draw(2, 3, 4, 8), draw(2, 3, 5, 8), draw(2, 3, 5, 8), draw(2, 1, 4, 5)
    x, w = draw(6, 8), draw(7, 8)
    plain = scaled_dot_product_attention(q, k, v, attn_mask=mask)
    with in_bf16(True, CPU):
        assert torch.equal(scaled_dot_product_attention(q, k, v, attn_mask=mask), plain)
        assert torch.equal(scaled_dot_product_attention(q, k, v, mask), plain)
        product = linear(x, w)
    assert product.dtype == torch.bfloat16 and (product - linear(x, w)).abs().max() > 0
    # torch's own way rounds it
    with torch.autocast("cpu", torch.bfloat16):
        assert scaled_dot_product_attention(q, k, v, attn_mask=mask).dtype == torch.bfloat16


def test_attention_gives_back_the_precision_that_it_was_given() -> None:
    q, k, v = (draw(2, 3, n, 8).bfloat16().requires_grad_() for n in (4, 5, 5))
    with in_bf16(True, CPU):
        out = scaled_dot_product_attention(q, k, v, None, 0.0, False)
    full = scaled_dot_product_attention(q.float(), k.float(), v.float())
    assert out.dtype == torch.bfloat16 and torch.equal(out, full.bfloat16())
    out.float().sum().backward()
    assert q.grad is not None and q.grad.dtype == torch.bfloat16 and q.grad.abs().max() > 0


def test_a_mask_of_truths_stays_one() -> None:
    q, k = draw(2, 3, 4, 8), draw(2, 3, 5, 8)
    seen = torch.ones(2, 1, 4, 5, dtype=torch.bool)
    seen[..., 0] = False
    with in_bf16(True, CPU):
        found = scaled_dot_product_attention(q, k, k, attn_mask=seen)
    assert torch.equal(found, scaled_dot_product_attention(q, k, k, attn_mask=seen))


def test_switched_off_nothing_is_rounded() -> None:
    x, w = draw(6, 8), draw(7, 8)
    with in_bf16(False, CPU):
        assert linear(x, w).dtype == torch.float32


def test_who_learns_in_bf16_where_its_products_are_slow_is_told(monkeypatch) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warn_if_slow(CPU)
    assert bool(found) == (slowdown_in_bf16() > SLOW)
    monkeypatch.setattr(autocast, "slowdown_in_bf16", lambda: 60.4)
    with pytest.warns(
        UserWarning, match=r"algo\.bf16 is True: .* takes 60 times as long .* expected algo\.bf16 False here"
    ):
        warn_if_slow(CPU)
    monkeypatch.setattr(autocast, "slowdown_in_bf16", lambda: 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_slow(CPU)
