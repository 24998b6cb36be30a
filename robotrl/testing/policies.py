"""Checks that every policy must pass, for what it declares; `CHECKS` lists them, each raises AssertionError.

A policy of another package is checked in the same way: `for check in CHECKS: check(PolicyCase(...))`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from robotrl.fn.bc_loss import DrawShape, HasNoiseLevels, clone_loss_of
from robotrl.fn.chain import Kernel, chain_log_prob, cps, ddim, flow_sde, integrate, noise_net, sample
from robotrl.registry import POLICIES
from robotrl.spec import (
    CarriesMemory,
    HasChain,
    HasDecode,
    HasDensity,
    HasLogProb,
    HasMemory,
    HasProposals,
    HasScoredCandidates,
    HasTokens,
    Policy,
    Spec,
)
from robotrl.testing.settings import check_frozen_json
from robotrl.transforms import Clip, TransformGroup, bounds_to_unit, inverse, normalize, numpy_backend

INF = float("inf")
OBSERVATION_SPEC = {
    "joints": Spec((3,), ("a", "b", "c"), ("rad",) * 3, (-1.0, -2.0, -INF), (1.0, 2.0, INF)),
    "tip": Spec((2,), ("x", "y"), ("m",) * 2, (-0.1, 0.0), (0.1, 0.2)),
}
"""Two vectors to build a policy on."""
ACTION_SPEC = Spec((2,), ("push", "turn"), ("N", "rad"), (-2.0, 0.0), (6.0, 0.5))
"""Actions whose bounds are not symmetric."""
TRANSFORMS = TransformGroup(
    (normalize("joints", [0.1, -0.2, 3.0], [0.5, 1.0, 2.0]), normalize("tip", [0.0, 0.1], [0.05, 0.0])),
    (
        inverse(bounds_to_unit("action", ACTION_SPEC.low, ACTION_SPEC.high)),
        Clip("action", ACTION_SPEC.low, ACTION_SPEC.high),
    ),
)
"""Normalization of both."""
SAMPLES, LARGEST_GAP = 8000, 0.035
"""Number of samples that are compared with a density, and the largest gap between their distribution functions. By the
distribution of Kolmogorov and Smirnov, a gap of 0.035 between 8000 samples and their own density has a probability of
about 6e-9."""
GRID = 4001
"""Points at which a density is integrated."""
KERNELS: dict[str, Kernel] = {
    "noise_net": noise_net(lambda ctx, t: torch.full((len(ctx), 1, 1), 0.15, dtype=ctx.dtype, device=ctx.device)),
    "flow_sde": flow_sde(0.7),
    "ddpm": ddim(1.0, 0.1),
    "ddim": ddim(0.5, 0.05),
    "cps": cps(0.7, 0.05),
}
"""Kernels whose steps have a density."""


def random_observations(specs: dict[str, Spec], batch: int, seed: int) -> dict[str, Tensor]:
    """Observations (B, ...) all over their bounds, and from -3 to 3 where there are none."""
    generator, found = torch.Generator().manual_seed(seed), dict[str, Tensor]()
    for key, spec in specs.items():
        low, high = torch.tensor(spec.low).clamp(min=-3), torch.tensor(spec.high)
        high = torch.where(high.isinf(), torch.full_like(high, 3.0), high)
        drawn = low + (high - low) * torch.rand((batch, *spec.shape), generator=generator)
        whole = spec.dtype.startswith(("int", "uint"))
        found[key] = (drawn.round() if whole else drawn).to(torch.from_numpy(np.zeros(0, spec.dtype)).dtype)
    return found


class PolicyCase(NamedTuple):
    """A policy to be checked."""

    make: Callable[[], Any]
    """Builds it; its weights are drawn from torch's global generator, which is seeded before."""
    observe: Callable[[Any, int, int], dict[str, Tensor]] = lambda policy, batch, seed: random_observations(
        policy.observation_spec, batch, seed
    )
    """Policy, B and seed to observations (B, ...) that differ from row to row."""
    ignored: tuple[str, ...] = ()
    """Observations that the policy does not use."""
    clone_updates: int = 300
    """Updates in which it clones a single chunk; 0 if it is not cloned."""

    def built(self, seed: int = 0) -> Any:
        """The policy with the weights of a seed."""
        torch.manual_seed(seed)
        return self.make()

    def observations(self, policy: Any, batch: int, seed: int = 1) -> dict[str, Tensor]:
        """Observations (B, ...) in the dtype of the policy's weights."""
        dtype = next(policy.parameters()).dtype
        obs = self.observe(policy, batch, seed)
        return {key: value.to(dtype) if value.is_floating_point() else value for key, value in obs.items()}


def has(policy: object, capability: type) -> bool:
    """True if a policy has a capability of `robotrl.spec`."""
    return isinstance(policy, capability)


@runtime_checkable
class Draws(Protocol):
    """A policy that draws normalized chunks, before any clipping, with their log-density."""

    def draw(self, obs: dict[str, Tensor], generator: torch.Generator) -> Any:
        """`normalized_action` and `log_prob` (B, H, A)."""
        ...


def deploy_noise(policy: Any, batch: int, seed: int = 9) -> Tensor | None:
    """The noise (B, H, A) that a policy deploys with; None if it needs none."""
    if policy.noise_shape is None:
        return None
    dtype = next(policy.parameters()).dtype
    return torch.randn((batch, *policy.noise_shape), generator=torch.Generator().manual_seed(seed)).to(dtype)


def network_output(policy: Any, obs: dict[str, Tensor]) -> Tensor:
    """Numbers (B, ...) of a policy's network before anything is clipped: a velocity, densities, logits or the mean."""
    batch = len(next(iter(obs.values())))
    if has(policy, HasChain):
        # late in the chain: what an untrained diffusion policy ends in are the bounds, whatever it sees
        t, noise = torch.full((batch,), 0.8), deploy_noise(policy, batch)
        assert noise is not None, "a chain begins with noise, and noise_shape is None"
        return policy.velocity(policy.encode(obs), 0.2 * noise, t, 1 - t)
    if has(policy, HasProposals):
        noise = deploy_noise(policy, batch)
        assert noise is not None, "candidates begin with noise, and noise_shape is None"
        return policy.propose(obs, noise).logits
    if has(policy, HasScoredCandidates):
        return policy.candidates(obs).logits
    if has(policy, HasTokens):
        tokens = torch.zeros((batch, policy.horizon, *policy.action_spec.shape), dtype=torch.int64)
        return policy.token_logits(policy.encode(obs), tokens)
    if has(policy, HasMemory):
        density = policy.density(policy.advance(obs, policy.initial_memory(batch)).ctx)
        return density.log_prob(torch.zeros(batch, policy.horizon, *policy.action_spec.shape))
    if has(policy, HasLogProb):
        return policy.log_prob(obs, torch.zeros(batch, policy.horizon, *policy.action_spec.shape))
    return policy.act(obs, mode="mean").chunk


# checks


def it_declares_what_it_can_do(case: PolicyCase) -> None:
    """The policy satisfies `Policy`, has a capability that algorithms learn by, and is registered under its kind."""
    policy = case.built()
    assert has(policy, Policy)
    capabilities = (HasLogProb, HasDensity, HasChain, HasTokens, HasProposals, HasScoredCandidates, CarriesMemory)
    assert any(has(policy, one) for one in capabilities), "no algorithm learns by anything that it can do"
    assert has(policy, HasChain) == has(policy, HasDecode)
    holds = has(policy, CarriesMemory) and not has(policy, HasMemory)
    # one that holds another policy's chunk has that policy's noise, or none
    assert holds or (has(policy, HasChain) or has(policy, HasProposals)) == (policy.noise_shape is not None)
    assert POLICIES.load(policy.kind) is type(policy)
    assert policy.deploy_mode in ("sample", "mean")


def settings_are_frozen_json(case: PolicyCase) -> None:
    """Settings are a frozen dataclass of JSON values with a docstring."""
    check_frozen_json(case.built().cfg)


@torch.no_grad()
def chunks_are_within_bounds(case: PolicyCase) -> None:
    """Chunks have the shape (B, H, A) and lie within the action's bounds, whatever the weights."""
    policy = case.built()
    low, high = torch.tensor(policy.action_spec.low), torch.tensor(policy.action_spec.high)
    for scale in (1, 20):  # weights this large leave the bounds before clipping
        for parameter in policy.parameters():
            parameter *= scale
        for mode in ("sample", "mean"):
            chunk = policy.act(case.observations(policy, 16), None, torch.Generator().manual_seed(0), mode).chunk
            assert chunk.shape == (16, policy.horizon, *policy.action_spec.shape), tuple(chunk.shape)
            assert bool((chunk >= low).all() and (chunk <= high).all()), f"mode {mode!r}: an action is out of bounds"


@torch.no_grad()
def mean_is_deterministic_and_samples_are_seeded(case: PolicyCase) -> None:
    """Mode "mean" draws nothing; mode "sample" draws from the generator that it is given, and from no other."""
    policy = case.built()
    obs = case.observations(policy, 16)

    def act(mode: Any, seed: int) -> Tensor:
        return policy.act(obs, None, torch.Generator().manual_seed(seed), mode).chunk

    assert torch.equal(act("mean", 0), act("mean", 1)), "the mean depends on chance"
    assert torch.equal(act("sample", 0), act("sample", 0)), "equal seeds give different chunks"
    assert not torch.equal(act("sample", 0), act("sample", 1)), "different seeds give the same chunks"


@torch.no_grad()
def deployed_is_what_was_evaluated(case: PolicyCase) -> None:
    """`deploy`, which is exported, gives the actions of `act` in `deploy_mode`, bit for bit.

    The steps from `normalized_action` to actions, which run outside the exported graph, are those of the transforms.
    """
    policy = case.built()
    obs, generator = case.observations(policy, 16), torch.Generator().manual_seed(9)
    acted = policy.act(obs, None, generator, policy.deploy_mode).chunk
    deployed = policy.deploy(obs, deploy_noise(policy, 16))
    assert torch.equal(acted, deployed.actions), "deploy and act differ"
    assert torch.equal(deployed.normalized_action, policy.deploy(obs, deploy_noise(policy, 16)).normalized_action)
    outputs = numpy_backend(policy.transforms.outputs)({"action": deployed.normalized_action.numpy()})["action"]
    assert np.allclose(deployed.actions.numpy(), outputs, atol=1e-6)


@torch.no_grad()
def rows_do_not_see_each_other(case: PolicyCase) -> None:
    """A row's numbers and actions are the same among other rows; batches of one row work."""
    policy = case.built()
    obs, noise = case.observations(policy, 16), deploy_noise(policy, 16)
    whole = policy.deploy(obs, noise).actions
    for rows in (slice(5, 9), slice(3, 4)):
        some = {key: value[rows] for key, value in obs.items()}
        part = policy.deploy(some, None if noise is None else noise[rows]).actions
        assert torch.allclose(whole[rows], part, atol=1e-5), "an action depends on the other rows of its batch"
    # only row 5 is another: no other row's numbers may change
    others = case.observations(policy, 16, seed=2)
    changed = {key: torch.cat([value[:5], others[key][5:6], value[6:]]) for key, value in obs.items()}
    before, after = network_output(policy, obs), network_output(policy, changed)
    rest = torch.arange(16) != 5
    assert torch.allclose(before[rest], after[rest], atol=1e-5), "a row depends on the other rows of its batch"


@torch.no_grad()
def every_observation_matters(case: PolicyCase) -> None:
    """Each element of each observation that is used changes the policy's numbers; their order in the dict does not."""
    policy = case.built()
    obs = case.observations(policy, 4)
    before = network_output(policy, obs)
    assert torch.equal(before, network_output(policy, {key: obs[key] for key in reversed(obs)})), (
        "the order of keys matters"
    )
    for key, value in obs.items():
        for place in range(value.shape[1]):
            changed = value.clone()
            changed[:, place] = changed[:, place] + 0.5 if value.is_floating_point() else 255 - changed[:, place]
            matters = bool((network_output(policy, {**obs, key: changed}) != before).flatten(1).any(1).all())
            assert matters == (key not in case.ignored), f"observation {key!r}, element {place}: matters is {matters}"


@torch.no_grad()
def its_description_rebuilds_it(case: PolicyCase) -> None:
    """`from_json` of `to_json`, through JSON, with the same weights acts the same."""
    policy = case.built()
    rebuilt = type(policy).from_json(json.loads(json.dumps(policy.to_json())))
    assert rebuilt.to_json() == policy.to_json()
    assert rebuilt.cfg == policy.cfg
    rebuilt.load_state_dict(policy.state_dict())
    obs, noise = case.observations(policy, 8), deploy_noise(policy, 8)
    assert torch.equal(rebuilt.deploy(obs, noise).actions, policy.deploy(obs, noise).actions)


@torch.no_grad()
def samples_have_the_density_that_is_claimed(case: PolicyCase) -> None:
    """Samples of one observation are distributed as `log_prob` says, element by element (`HasLogProb`).

    The density is integrated from the lowest sample to the highest: it has to reach 1, and on the way the share of
    samples below. Choices are counted instead.
    """
    policy = case.built()
    if not has(policy, HasLogProb):
        return
    one = case.observations(policy, 1)
    many = {key: value.expand(SAMPLES, *value.shape[1:]) for key, value in one.items()}
    assert has(policy, Draws), "a policy with log_prob has draw(obs, generator), with normalized_action and log_prob"
    drawn = policy.draw(many, torch.Generator().manual_seed(2))
    raw: Tensor = drawn.normalized_action
    assert raw.shape == (SAMPLES, policy.horizon, *policy.action_spec.shape)
    close = torch.allclose(drawn.log_prob, policy.log_prob(many, raw), atol=1e-4)
    assert close, "draw and log_prob say different densities of the same chunk"
    if policy.action_spec.choices is not None:
        most = max(policy.action_spec.choices)
        share = torch.stack([(raw == choice).double().mean(0) for choice in range(most)])
        wide = {key: value.expand(most, *value.shape[1:]) for key, value in one.items()}
        numbers = torch.arange(most, dtype=raw.dtype)[:, None, None].expand(most, *raw.shape[1:])
        below, mass = share.cumsum(0), policy.log_prob(wide, numbers).double().exp().cumsum(0)
    else:
        low, high = raw.min(0).values, raw.max(0).values
        grid = low + (high - low) * torch.linspace(0, 1, GRID)[:, None, None]
        wide = {key: value.expand(GRID, *value.shape[1:]) for key, value in one.items()}
        density = policy.log_prob(wide, grid).double().exp()
        mass = torch.cumulative_trapezoid(density, grid.double(), dim=0)
        sorted_raw = raw.flatten(1).T.contiguous().sort(1).values
        points = grid[1:].flatten(1).T.contiguous()
        below = torch.searchsorted(sorted_raw, points, right=True).T.reshape(mass.shape) / SAMPLES
    gap = float((below - mass).abs().max())
    assert gap <= LARGEST_GAP, f"samples and density differ by {gap:.3f} in their distribution functions"


@torch.no_grad()
def density_is_the_one_of_log_prob(case: PolicyCase) -> None:
    """`density` says the same log-probabilities; its entropy and deviation are those of its samples (`HasDensity`)."""
    policy = case.built()
    if not has(policy, HasDensity):
        return
    one = case.observations(policy, 1)
    density = policy.density(policy.encode(one).expand(SAMPLES, -1))
    raw = density.sample(torch.Generator().manual_seed(3))
    log_prob = density.log_prob(raw)
    if has(policy, HasLogProb):
        many = {key: value.expand(SAMPLES, *value.shape[1:]) for key, value in one.items()}
        assert torch.allclose(log_prob, policy.log_prob(many, raw), atol=1e-4), "density and log_prob differ"
    for numbers in (density.entropy(), density.std):
        assert numbers.shape[1:] == raw.shape[1:] and len(numbers) in (1, SAMPLES), tuple(numbers.shape)
    # six standard errors of the mean, and some for the tails of deviations
    error = 6 * log_prob.std(0) / SAMPLES**0.5 + 1e-4
    assert bool(((density.entropy()[0] + log_prob.mean(0)).abs() <= error).all()), "entropy is not -E[log_prob]"
    assert torch.allclose(raw.std(0), density.std[0], rtol=0.1, atol=1e-3), "std is not the deviation of samples"


@torch.no_grad()
def the_ratio_of_a_chain_is_one(case: PolicyCase) -> None:
    """Sampled and recomputed log-probabilities of a chain agree, under every kernel and precision (`HasChain`)."""
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
        policy = case.built().to(dtype)
        if not has(policy, HasChain):
            return
        noise = torch.randn((32, *policy.noise_shape), generator=torch.Generator().manual_seed(2), dtype=dtype)
        ctx = policy.encode(case.observations(policy, 32))
        for name, kernel in KERNELS.items():
            drawn = sample(policy, ctx, kernel, noise, torch.Generator().manual_seed(4))
            again = chain_log_prob(policy, ctx, kernel, drawn.x)
            assert drawn.log_prob.dtype == again.dtype == dtype
            assert bool((drawn.log_prob != 0).any()), f"{name}: steps have no density"
            gap = float(((again - drawn.log_prob).exp() - 1).abs().max())
            assert gap <= tolerance, f"{name}, {dtype}: the ratio differs from 1 by {gap:.1e}"


@torch.no_grad()
def its_chain_is_its_decoder_on_a_rising_grid(case: PolicyCase) -> None:
    """`times` rise from 0 to 1 in `denoising_steps` steps, and `decode` follows the velocity on them (`HasChain`)."""
    policy = case.built()
    if not has(policy, HasChain) or not has(policy, HasDecode):
        return
    times = policy.times
    assert (times[0], times[-1]) == (0, 1)
    assert all(before < after for before, after in pairwise(times)), f"{times} do not rise"
    assert policy.denoising_steps == len(times) - 1
    ctx, noise = policy.encode(case.observations(policy, 8)), deploy_noise(policy, 8)
    assert noise is not None
    assert torch.equal(policy.decode(ctx, noise), integrate(policy, ctx, noise)), "decode does not follow the velocity"


def it_overfits_a_single_chunk(case: PolicyCase) -> None:
    """Cloned from one observation and one chunk, its loss falls to a tenth and it deploys that chunk."""
    policy = case.built()
    if not case.clone_updates:
        return
    updates, batch, shape = case.clone_updates, 32, (policy.horizon, *policy.action_spec.shape)
    clone, generator = clone_loss_of(policy), torch.Generator().manual_seed(0)
    obs = {key: value.expand(batch, *value.shape[1:]) for key, value in case.observations(policy, 1).items()}
    chunk = (1.4 * torch.rand(shape, generator=generator) - 0.7).expand(batch, *shape)
    rows = clone.draw(policy, DrawShape(updates, batch, *shape), generator)
    if "t" in rows and not has(policy, HasNoiseLevels):
        # the exact field is (chunk - x) / (1 - t): keep off its pole, where the steps of the sampler never go
        rows["t"] = 0.8 * rows["t"]
    optimizer, losses = torch.optim.Adam(policy.parameters(), lr=1e-2), list[float]()
    for step in range(updates):
        optimizer.param_groups[0]["lr"] = 1e-2 * (1 - step / updates)
        drawn = {key: value.view(updates, batch, *value.shape[1:])[step] for key, value in rows.items()}
        loss = clone.loss(policy, policy.encode(obs), chunk, torch.ones(batch, shape[0], dtype=torch.bool), **drawn)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert np.mean(losses[-20:]) < 0.1 * losses[0], f"the loss fell from {losses[0]:.3g} to {losses[-1]:.3g} only"
    with torch.no_grad():
        raw = policy.deploy(obs, deploy_noise(policy, batch)).normalized_action
    # not the mean: some of the 32 starts lie farther out than any that was learned from
    error = float((raw - chunk).abs().median())
    assert error < 0.08, f"what is deployed differs from the only chunk by {error:.2f}"


@torch.no_grad()
def its_memory_carries_an_episode(case: PolicyCase) -> None:
    """An episode begins with zeros, and the memory goes from decision to decision (`CarriesMemory`).

    Decisions one by one are those of a segment, and earlier observations matter (`HasMemory`).
    """
    policy = case.built()
    if not has(policy, CarriesMemory):
        return
    batch, length = 3, 5
    steps = [case.observations(policy, batch, seed=step) for step in range(length)]
    memory = policy.initial_memory(batch)
    assert memory.shape == (batch, policy.memory_width) and not memory.any(), "an episode does not begin with zeros"
    begun = policy.act(steps[0], None, None, "mean")
    assert begun.state.shape == memory.shape and bool((begun.state.abs() <= 1).all()), "memory is not within -1 and 1"
    assert torch.equal(policy.act(steps[0], memory, None, "mean").state, begun.state), "without a state none begins"
    later, anew = (policy.act(steps[1], state, None, "mean").chunk for state in (begun.state, None))
    assert not torch.equal(later, anew), "the first observation of an episode is forgotten"
    if not has(policy, HasMemory):
        return
    stored, contexts = list[Tensor](), list[Tensor]()
    for obs in steps:
        stored.append(memory)
        begun = policy.act(obs, memory, None, "mean")
        ctx, memory = policy.advance(obs, memory)
        assert torch.equal(begun.state, memory), "act and advance remember differently"
        contexts.append(ctx)
    assert torch.equal(policy.act(steps[0], None, None, "mean").state, stored[1]), "without a state no episode begins"
    segment = {key: torch.stack([obs[key] for obs in steps], 1) for key in steps[0]}
    joined = torch.ones((batch, length), dtype=torch.bool)
    joined[:, 0] = joined[1, 3] = False
    expected, memories = torch.stack(contexts, 1), torch.stack(stored, 1)
    found = policy.unroll(segment, memories, joined)
    assert torch.allclose(found, expected, atol=1e-6), "a segment is not its decisions one by one"
    # at a decision that is not joined, the stored memory counts, also for what follows
    memories[1, 3] = 0.5
    other = policy.unroll(segment, memories, joined)
    changed = (other != found).any(-1)
    assert changed[1, 3:].all() and not changed[1, :3].any() and not changed[[0, 2]].any(), "stored memory is misplaced"
    unlike = {**segment, **{key: torch.cat([x[:, 1:2], x[:, 1:]], 1) for key, x in segment.items()}}
    late = policy.unroll(unlike, memories, joined)[0, -1]
    assert not torch.equal(late, other[0, -1]), "the first observation of an episode is forgotten"


CHECKS: tuple[Callable[[PolicyCase], None], ...] = (
    it_declares_what_it_can_do,
    settings_are_frozen_json,
    chunks_are_within_bounds,
    mean_is_deterministic_and_samples_are_seeded,
    deployed_is_what_was_evaluated,
    rows_do_not_see_each_other,
    every_observation_matters,
    its_description_rebuilds_it,
    samples_have_the_density_that_is_claimed,
    density_is_the_one_of_log_prob,
    the_ratio_of_a_chain_is_one,
    its_chain_is_its_decoder_on_a_rising_grid,
    it_overfits_a_single_chunk,
    its_memory_carries_an_episode,
)
"""All checks of a policy."""
