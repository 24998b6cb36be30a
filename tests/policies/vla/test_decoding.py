"""How tokens are said one after the other: the fast way and the plain one say the same, and who needs which gets it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaModel

from robotrl.engine.autocast import in_bf16
from robotrl.policies.vla.decoding import cuda_graph
from robotrl.policies.vla.decoding.cuda_graph import CudaGraphDecoder
from robotrl.policies.vla.decoding.decode import CachedDecoder, CpuDecoder, Decoder, LlamaDecoder, Masks, decoder
from robotrl.policies.vla.networks.autoregressive import Prefix, additive_mask, attention, last_index, places
from robotrl.policies.vla.networks.openvla import OpenVla, OpenVlaCfg, TextCfg
from robotrl.policies.vla.networks.vision import TowerCfg

TOWER = TowerCfg(16, 2, 2, 32, 8, 16)
LENGTH, AFTER = 9, 5


def llama(heads: int = 4, shared: int = 2, bias: bool = False) -> LlamaModel:
    torch.manual_seed(0)
    cfg = LlamaConfig(
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=heads,
        num_key_value_heads=shared,
        intermediate_size=48,
        vocab_size=64,
        attention_bias=bias,
        mlp_bias=bias,
    )
    model = LlamaModel(cfg).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model


def sentence(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings of a prefix with a gap in the middle and padding behind, which of it is there, and those after it."""
    generator = torch.Generator().manual_seed(rows)
    prefix, after = torch.randn((rows, LENGTH + AFTER, 32), generator=generator).split([LENGTH, AFTER], dim=1)
    token_mask = torch.ones(rows, LENGTH, dtype=torch.bool)
    token_mask[0, 3] = False
    token_mask[-1, 6:] = False
    return prefix, token_mask, after


def made(model: LlamaModel, token_mask: Tensor, dtype: torch.dtype = torch.float32) -> Decoder:
    at = places(token_mask)
    masks = Masks(attention(token_mask, dtype, causal=True), additive_mask(token_mask[:, None], dtype))
    return decoder(model, masks, at, at[:, -1:] + 1 + torch.arange(AFTER, device=token_mask.device))


def said(model: LlamaModel, rows: int) -> Tensor:
    """(B, 1 + T, D) hidden states, one pass a token."""
    prefix, token_mask, after = (x.to(model.device) for x in sentence(rows))
    goes_on = made(model, token_mask)
    found = [goes_on.read(prefix, last_index(token_mask))]
    found += [goes_on.step(after[:, t : t + 1]) for t in range(AFTER)]
    return torch.cat(found, dim=1)


def whole(model: LlamaModel, rows: int) -> Tensor:
    """The same by one pass over all of it, as `transformers` computes it."""
    prefix, token_mask, after = (x.to(model.device) for x in sentence(rows))
    every = torch.cat([token_mask, token_mask.new_ones(rows, AFTER)], dim=1)
    at = torch.cat(
        [places(token_mask), places(token_mask)[:, -1:] + 1 + torch.arange(AFTER, device=token_mask.device)], dim=1
    )
    mask = attention(every, prefix.dtype, causal=True)
    inputs = torch.cat([prefix, after], dim=1)
    hidden = model(inputs_embeds=inputs, attention_mask=mask, position_ids=at, use_cache=False).last_hidden_state
    last = hidden[torch.arange(rows), last_index(token_mask)][:, None]
    return torch.cat([last, hidden[:, LENGTH:]], dim=1)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("heads", "shared"), [(4, 4), (4, 2)])
@pytest.mark.parametrize("bias", [False, True])
def test_every_reader_says_what_one_pass_says(rows: int, heads: int, shared: int, bias: bool) -> None:
    model = llama(heads, shared, bias)
    expected = whole(model, rows)
    layered = said(model, rows)
    with torch.no_grad():
        plain = said(model, rows)
    for found in (layered, plain):
        assert torch.allclose(found, expected, atol=2e-5)
    assert layered.requires_grad and not plain.requires_grad
    # what was checked is no constant
    assert expected.std(dim=1).min() > 0.01


def hooked(model: LlamaModel) -> None:
    model.layers[1].mlp.down_proj.register_forward_hook(lambda *_: None)


def heard(model: LlamaModel) -> None:
    model.layers[0].register_forward_pre_hook(lambda *_: None)


def wider(model: LlamaModel) -> None:
    model.double()


def replaced(model: LlamaModel) -> None:
    class Other(torch.nn.Linear):
        """A layer that computes otherwise."""

    layer: Any = model.layers[2]
    layer.self_attn.q_proj.__class__ = Other


@pytest.mark.parametrize("change", [hooked, heard, wider, replaced])
def test_who_looks_at_layers_gets_the_layers(change: Callable[[LlamaModel], None]) -> None:
    model = llama()
    _, token_mask, _ = sentence(2)
    with torch.no_grad():
        assert isinstance(made(model, token_mask), CpuDecoder)
        change(model)
        assert isinstance(made(model, token_mask, model.dtype), LlamaDecoder)


def test_another_activation_is_computed_with() -> None:
    """The loops of our own have SiLU, as published models do."""
    model = llama()
    layers: Any = model.layers
    for layer in layers:
        layer.mlp.act_fn = torch.nn.GELU()
    model.config.hidden_act = "gelu"
    with torch.no_grad():
        assert isinstance(made(model, sentence(2)[1]), CachedDecoder)
        assert torch.allclose(said(model, 3), whole(model, 3), atol=2e-5)


def test_gradients_half_precision_and_other_models_get_the_layers() -> None:
    model = llama()
    _, token_mask, _ = sentence(2)
    assert isinstance(made(model, token_mask), LlamaDecoder)
    with torch.inference_mode():
        assert isinstance(made(model, token_mask), CpuDecoder)
        with in_bf16(True, torch.device("cpu")):
            assert isinstance(made(model, token_mask), LlamaDecoder)

    class Other(LlamaModel):
        """Inherits, and may compute otherwise."""

    model.__class__ = Other
    with torch.no_grad():
        assert isinstance(made(model, token_mask), CachedDecoder)


def test_weights_that_change_are_seen_at_once() -> None:
    """Nothing of a matrix is kept from one sentence to the next."""
    model = llama()
    with torch.no_grad():
        before = said(model, 3)
        for weight in model.parameters():
            weight.data.mul_(1.1)
        after = said(model, 3)
        assert torch.allclose(after, whole(model, 3), atol=2e-5) and not torch.allclose(after, before, atol=1e-2)


def test_adapters_are_computed_with() -> None:
    """An adapter that does something changes what is said, one that does nothing does not."""
    torch.manual_seed(0)
    net = OpenVla(OpenVlaCfg((TOWER, TOWER), TextCfg(32, 2, 4, 2, 48, 320, 32, 64))).eval()
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    prefix = Prefix(torch.randn(3, LENGTH, 32), torch.ones(3, LENGTH, dtype=torch.bool))
    seen: list[Tensor] = []

    def choose(logits: Tensor) -> Tensor:
        seen.append(logits)
        return logits.argmax(dim=-1)

    def tell() -> Tensor:
        seen.clear()
        with torch.no_grad():
            net.sample(prefix, 4, choose)
        return torch.cat(seen, dim=1)

    before = tell()
    linear: Any = net.language_model.model.layers[0].self_attn.q_proj
    added = torch.nn.Linear(32, 32, bias=False)
    net.language_model.model.layers[0].self_attn.q_proj = Adapted(linear, added)
    with torch.no_grad():
        added.weight.zero_()
    assert torch.allclose(tell(), before, atol=2e-5)
    with torch.no_grad():
        added.weight.normal_()
    assert not torch.allclose(tell(), before, atol=1e-2)


class Adapted(torch.nn.Module):
    """A layer, and what is added to it."""

    def __init__(self, base: torch.nn.Linear, added: torch.nn.Linear) -> None:
        super().__init__()
        self.base, self.added = base, added

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.added(x)


# what is replayed


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(params=["called", pytest.param("replayed", marks=gpu)])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The CPU, on which what would be captured is called; and a GPU, without which no graph can be captured."""
    if request.param == "replayed":
        return torch.device("cuda")
    monkeypatch.setattr(cuda_graph, "KIND", "cpu")
    monkeypatch.setattr(cuda_graph, "_graph", lambda function, arguments: function)
    return torch.device("cpu")


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("heads", "shared"), [(4, 4), (4, 2)])
def test_a_sentence_that_is_replayed_says_what_one_pass_says(
    rows: int, heads: int, shared: int, place: torch.device
) -> None:
    model = llama(heads, shared).to(place)
    token_mask = sentence(rows)[1].to(place)
    with torch.inference_mode():
        assert not isinstance(made(model, token_mask), CudaGraphDecoder)
        for _ in range(2):
            assert isinstance(made(model, token_mask), CudaGraphDecoder)
            assert torch.allclose(said(model, rows), whole(model, rows), atol=2e-5)
    # another batch, another sentence: nothing of the one before is heard
    with torch.no_grad():
        for count in (2, 2, 4, 4, rows, 2):
            assert torch.allclose(said(model, count), whole(model, count), atol=2e-5)
        assert isinstance(made(model, sentence(2)[1].to(place)), CudaGraphDecoder)


def test_weights_that_change_are_replayed_and_those_that_move_are_not(place: torch.device) -> None:
    model = llama().to(place)
    token_mask = sentence(2)[1].to(place)

    def heard() -> tuple[bool, Tensor]:
        replayed = isinstance(made(model, token_mask), CudaGraphDecoder)
        return replayed, said(model, 2)

    with torch.no_grad():
        assert [heard()[0] for _ in range(3)] == [False, True, True]
        for weight in model.parameters():
            weight.data.mul_(1.1)
        replayed, found = heard()
        assert replayed and torch.allclose(found, whole(model, 2), atol=2e-5)
        layer: Any = model.layers[1]
        layer.mlp.down_proj.weight = torch.nn.Parameter(layer.mlp.down_proj.weight * 2)
        replayed, found = heard()
        assert not replayed and torch.allclose(found, whole(model, 2), atol=2e-5)
        assert heard()[0]
        layer.self_attn.q_proj = Adapted(layer.self_attn.q_proj, torch.nn.Identity())
        replayed, found = heard()
        assert not replayed and torch.allclose(found, whole(model, 2), atol=2e-5)


def test_casts_lengths_and_listeners_are_not_replayed_over(place: torch.device) -> None:
    model = llama().to(place)
    token_mask = sentence(2)[1].to(place)
    with torch.no_grad():
        for _ in range(2):
            made(model, token_mask)
        assert isinstance(made(model, token_mask), CudaGraphDecoder)
        with in_bf16(True, place):
            assert not isinstance(made(model, token_mask), CudaGraphDecoder)
            coarse = said(model, 2)
            assert isinstance(made(model, token_mask), CudaGraphDecoder)
            assert torch.allclose(coarse, whole(model, 2), atol=0.1)
        assert not isinstance(made(model, token_mask[:, :-1]), CudaGraphDecoder)
        for _ in range(2):
            made(model, token_mask)
        hooked(model)
        assert not isinstance(made(model, token_mask), CudaGraphDecoder)
    assert isinstance(made(llama().to(place), token_mask), LlamaDecoder)


def test_two_sentences_at_a_time_are_refused(place: torch.device) -> None:
    model = llama().to(place)
    prefix, token_mask, after = (x.to(place) for x in sentence(2))
    with torch.no_grad():
        for _ in range(2):
            made(model, token_mask)
        one, other = made(model, token_mask), made(model, token_mask)
        one.read(prefix, last_index(token_mask))
        other.read(prefix, last_index(token_mask))
        other.step(after[:, :1])
        with pytest.raises(RuntimeError, match="one at a time"):
            one.step(after[:, :1])


def test_large_sentences_are_not_kept(place: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama(4, 2).to(place)
    token_mask = sentence(3)[1].to(place)
    # float32 keys and values of 4 rows, 14 tokens, 3 layers, 2 heads of 8
    monkeypatch.setattr(cuda_graph, "LARGEST", 2 * 4 * 4 * (LENGTH + AFTER) * 3 * 2 * 8 - 1)
    with torch.no_grad():
        assert not any(isinstance(made(model, token_mask), CudaGraphDecoder) for _ in range(3))
        monkeypatch.setattr(cuda_graph, "LARGEST", cuda_graph.LARGEST + 1)
        made(model, token_mask)
        assert isinstance(made(model, token_mask), CudaGraphDecoder)
