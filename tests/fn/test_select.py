"""Best of several chunks and ascent on a value, by hand; samples of policies from given noise."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import tests.kits.learner_kit as kit
import tests.kits.off_policy_kit as off
from robotrl.errors import CapabilityError
from robotrl.fn.candidates.proposals import sampler_of
from robotrl.fn.candidates.select import ascend, best_of, picked
from robotrl.fn.chain import integrate

CTX = torch.tensor([[1.0], [-1.0]])
NOISE = torch.tensor([[[[0.5]], [[3.0]], [[-1.0]]], [[[0.5]], [[3.0]], [[-1.0]]]])
"""Two rows of three candidates of one action."""


def plain(ctx: Tensor, noise: Tensor) -> Tensor:
    return noise.clamp(-1, 1)


def along(ctx: Tensor, chunk: Tensor) -> Tensor:
    """Larger actions are worth more where the context is positive."""
    return ctx[:, 0] * chunk[:, 0, 0]


def test_the_best_of_three_by_hand() -> None:
    found = best_of(plain, along, CTX, NOISE)
    # executed are 0.5, 1 and -1: the second is best where more is better, the third where less is
    assert found.place.tolist() == [1, 2]
    assert found.chunk.flatten().tolist() == [1.0, -1.0]
    assert found.value.tolist() == [1.0, 1.0]
    assert found.mean.tolist() == pytest.approx([0.5 / 3, -0.5 / 3])


def test_of_equal_values_the_first_is_chosen() -> None:
    found = best_of(plain, lambda ctx, chunk: torch.zeros(len(chunk)), CTX, NOISE)
    assert found.place.tolist() == [0, 0] and found.chunk.flatten().tolist() == [0.5, 0.5]


def test_one_candidate_is_the_sample_itself() -> None:
    found = best_of(plain, along, CTX, NOISE[:, 2:])
    assert torch.equal(found.chunk, NOISE[:, 2]) and torch.equal(found.value, found.mean)


def test_each_context_values_its_own_candidates() -> None:
    """In another order of the rows the choices are in that order."""
    noise = torch.randn(2, 5, 3, 2, generator=torch.Generator().manual_seed(0))

    def q(ctx: Tensor, chunk: Tensor) -> Tensor:
        return ctx[:, 0] * chunk.sum((1, 2))

    one, other = best_of(plain, q, CTX, noise), best_of(plain, q, CTX.flip(0), noise.flip(0))
    assert torch.equal(one.place, other.place.flip(0)) and torch.equal(one.chunk, other.chunk.flip(0))
    assert torch.equal(picked(noise, one.place)[1], noise[1, one.place[1]])


def test_ascent_by_hand() -> None:
    """The value falls with the distance to 0.25: steps of 0.1 from 0 reach 0.2 and then go back and forth."""

    def q(ctx: Tensor, chunk: Tensor) -> Tensor:
        return -(chunk - 0.25).abs().sum((1, 2))

    start = torch.zeros(1, 1, 1)
    assert ascend(q, CTX[:1], start, 2, 0.1).item() == pytest.approx(0.2)
    assert ascend(q, CTX[:1], start, 4, 0.1).item() == pytest.approx(0.2)
    assert torch.equal(ascend(q, CTX[:1], start, 0, 0.1), start)


def test_ascent_stays_within_the_bounds_and_works_without_gradients_around_it() -> None:
    start = torch.tensor([[[0.95]], [[-0.95]]])
    with torch.no_grad():
        assert ascend(along, CTX, start, 3, 0.5).flatten().tolist() == [1.0, -1.0]
    low, high = torch.tensor([-2.0]), torch.tensor([3.0])
    moved = ascend(along, CTX, start, 9, 0.5, low, high)
    assert moved.flatten().tolist() == [3.0, -2.0] and not moved.requires_grad


@torch.no_grad()
def test_samples_of_policies_are_functions_of_noise() -> None:
    noise = torch.randn(64, 2, 1, generator=torch.Generator().manual_seed(0))
    obs = {"walk": torch.randn(64, 2, generator=torch.Generator().manual_seed(1))}
    flow, gaussian = kit.flow(), kit.gaussian()
    squashed = off.CHUNKS.build(kit.SPECS, kit.ACTION, kit.TRANSFORMS)
    for policy in (flow, kit.diffusion(), gaussian, squashed):
        ctx = policy.encode(obs)
        sampler = sampler_of(policy)
        assert sampler.noise_shape == (2, 1)
        one = sampler.sample(ctx, noise)
        assert torch.equal(one, sampler.sample(ctx, noise)) and not torch.equal(one, sampler.sample(ctx, -noise))
    ctx = flow.encode(obs)
    assert torch.equal(sampler_of(flow).sample(ctx, noise), integrate(flow, ctx, noise))
    assert torch.allclose(sampler_of(gaussian).sample(ctx, noise), gaussian.mean(ctx) + 0.2 * noise)
    with pytest.raises(CapabilityError, match="BetaPolicy has no samples from normal noise"):
        sampler_of(kit.beta())
