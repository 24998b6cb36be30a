"""The diffusion policy against the schedulers of `diffusers`: schedule, levels, steps and whole chains."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from diffusers import DDIMScheduler, DDPMScheduler
from torch import Tensor

from robotrl.errors import ConfigError
from robotrl.fn import chain
from robotrl.policies.diffusion import DiffusionCfg, DiffusionPolicy, Prediction, cosine_levels, time_of
from tests.kits.policy_kit import ACTION_SPEC, OBSERVATION_SPEC, TRANSFORMS, observations

LEVELS = 20


def scheduler(kind: Any, levels: int = LEVELS, steps: int | None = None, **options: Any) -> Any:
    made = kind(num_train_timesteps=levels, beta_schedule="squaredcos_cap_v2", timestep_spacing="trailing", **options)
    made.set_timesteps(steps or levels)
    return made


def make(levels: int = LEVELS, steps: int = LEVELS, predicts: Prediction = "noise") -> DiffusionPolicy:
    torch.manual_seed(0)
    cfg = DiffusionCfg(horizon=3, levels=levels, denoising_steps=steps, predicts=predicts, hidden=(32, 32))
    return cfg.build(OBSERVATION_SPEC, ACTION_SPEC, TRANSFORMS).double()


def inputs(policy: DiffusionPolicy, batch: int = 16) -> tuple[Tensor, Tensor]:
    ctx = policy.encode({key: value.double() for key, value in observations(batch).items()})
    return ctx, torch.randn(batch, 3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def length_of(t: float) -> float:
    """What divides a point of the straight path to make it a state of the diffusion."""
    return math.hypot(t, 1 - t)


@pytest.mark.parametrize("levels", [2, 10, 20, 100])
def test_the_schedule_is_theirs(levels):
    theirs = scheduler(DDPMScheduler, levels).alphas_cumprod
    ours = torch.tensor(cosine_levels(levels), dtype=torch.float64)
    assert torch.allclose(ours, theirs.double(), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("abar", [1e-6, 0.3, 0.5, 0.99])
def test_a_time_has_the_proportions_of_its_level(abar):
    t = time_of(abar)
    assert t / (1 - t) == pytest.approx(math.sqrt(abar / (1 - abar)))
    assert t / length_of(t) == pytest.approx(math.sqrt(abar))


@pytest.mark.parametrize(("levels", "steps"), [(20, 20), (20, 10), (20, 5), (20, 4), (20, 1), (100, 5), (100, 10)])
def test_the_grid_is_their_trailing_one(levels, steps):
    policy, theirs = make(levels, steps), scheduler(DDIMScheduler, levels, steps).timesteps.tolist()
    assert theirs[0] == levels - 1
    assert policy.times == (0.0, *(policy.noise_levels[level] for level in theirs[1:]), 1.0)


@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("steps", [20, 5])
@torch.no_grad()
def test_steps_between_levels_are_those_of_ddim(steps, eta):
    """On the same network outputs, clip on; the clipped action gives the noise anew, as in the published DDPM."""
    policy = make(steps=steps)
    ctx, x = inputs(policy)
    theirs = scheduler(DDIMScheduler, steps=steps, clip_sample=True)
    kernel = chain.ddim(eta, 1e-9 if eta else 0.0)
    levels, clipped = theirs.timesteps.tolist(), 0
    for k in range(1, steps):
        t = torch.full((16,), policy.times[k], dtype=torch.float64)
        dt = torch.full_like(t, policy.times[k + 1] - policy.times[k])
        mean, std = kernel(policy, ctx, x, t, dt)
        eps = policy.predict_noise(ctx, x, t)
        state = x / length_of(policy.times[k])
        clipped += int((policy.predict_action(ctx, x, t).abs() == 1).sum())
        draws = torch.ones_like(x)
        out = theirs.step(eps, levels[k], state, eta=eta, use_clipped_model_output=True, variance_noise=draws)
        ours = mean if std is None else mean + std * draws
        after = length_of(policy.times[k + 1])
        assert torch.allclose(ours / after, out.prev_sample, atol=1e-5), k
        # 1 / abar of their single precision stands before the noise
        assert torch.allclose(policy.predict_action(ctx, x, t), out.pred_original_sample, atol=1e-5), k
    assert clipped > 0


@torch.no_grad()
def test_steps_at_eta_one_are_those_of_ddpm():
    policy = make()
    ctx, x = inputs(policy)
    theirs = scheduler(DDPMScheduler, clip_sample=True, variance_type="fixed_small")
    kernel = chain.ddim(1.0, 1e-12)
    for k in range(1, LEVELS - 1):
        t = torch.full((16,), policy.times[k], dtype=torch.float64)
        mean, std = kernel(policy, ctx, x, t, torch.full_like(t, policy.times[k + 1] - policy.times[k]))
        assert std is not None
        eps, level = policy.predict_noise(ctx, x, t), LEVELS - 1 - k
        generator = torch.Generator().manual_seed(k)
        found = theirs.step(eps, level, x / length_of(policy.times[k]), generator=generator).prev_sample
        draws = torch.randn(x.shape, generator=torch.Generator().manual_seed(k), dtype=torch.float64)
        assert torch.allclose((mean + std * draws) / length_of(policy.times[k + 1]), found, atol=1e-5), k


@pytest.mark.parametrize(("levels", "steps"), [(20, 20), (20, 5), (100, 10)])
@torch.no_grad()
def test_the_whole_chain_is_theirs_but_for_the_start(levels, steps):
    """Theirs takes the noise that it starts from for a state of the noisiest level, ours for noise and nothing else.

    What there is of the action at that level, sqrt(abar) times at most 1, they take off that state to have the noise
    of the first step; we do not. So far the first steps differ, and from there on the chains are one.
    """
    policy = make(levels, steps)
    ctx, noise = inputs(policy)
    theirs = scheduler(DDIMScheduler, levels, steps, clip_sample=True)
    ours = chain.sample(policy, ctx, chain.ode, noise).x

    def step(k: int, state: Tensor) -> Tensor:
        t = torch.full((16,), policy.times[k], dtype=torch.float64)
        eps = policy.predict_noise(ctx, state * length_of(policy.times[k]), t)
        level = theirs.timesteps[k]
        return theirs.step(eps, level, state, eta=0.0, use_clipped_model_output=True).prev_sample

    start = ours[:, 1] / length_of(policy.times[1])
    difference, signal = (start - step(0, noise)).abs().max(), math.sqrt(cosine_levels(levels)[-1])
    assert 0.1 * signal < difference <= 1.001 * signal
    state = start
    for k in range(1, steps):
        state = step(k, state)
    assert torch.allclose(policy.decode(ctx, noise), state, atol=1e-5)


@pytest.mark.parametrize("steps", [20, 5, 4])
@pytest.mark.parametrize(("predicts", "name"), [("v", "v_prediction"), ("action", "sample")])
@torch.no_grad()
def test_steps_of_other_predictions_are_those_of_ddim(predicts, name, steps):
    policy = make(steps=steps, predicts=predicts)
    ctx, x = inputs(policy)
    theirs = scheduler(DDIMScheduler, steps=steps, clip_sample=True, prediction_type=name)
    for k in range(1, steps):
        t = torch.full((16,), policy.times[k], dtype=torch.float64)
        mean, _ = chain.ode(policy, ctx, x, t, torch.full_like(t, policy.times[k + 1] - policy.times[k]))
        said, state = policy.predict(ctx, x, t), x / length_of(policy.times[k])
        out = theirs.step(said, theirs.timesteps[k], state, eta=0.0, use_clipped_model_output=True)
        assert torch.allclose(mean / length_of(policy.times[k + 1]), out.prev_sample, atol=1e-5), k
        assert torch.allclose(policy.predict_action(ctx, x, t), out.pred_original_sample, atol=1e-5), k


@pytest.mark.parametrize("predicts", ["noise", "v", "action"])
@torch.no_grad()
def test_from_what_is_wanted_noise_and_action_come_back(predicts):
    policy = make(predicts=predicts)
    noise = torch.randn(LEVELS, 3, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    chunk = torch.rand(LEVELS, 3, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64) * 2 - 1
    t = torch.tensor(policy.noise_levels, dtype=torch.float64)
    x = (1 - t)[:, None, None] * noise + t[:, None, None] * chunk
    policy.predict = lambda ctx, x, t: policy.wanted(chunk, noise, t)
    ctx = torch.zeros(LEVELS, policy.context_width)
    assert torch.allclose(policy.predict_noise(ctx, x, t), noise, atol=1e-9)
    assert torch.allclose(policy.predict_action(ctx, x, t), chunk, atol=1e-9)


@torch.no_grad()
def test_an_error_at_the_noisiest_level_is_magnified_with_predicted_noise_alone():
    moved: dict[str, float] = {}
    for predicts in ("noise", "v", "action"):
        policy = make(predicts=predicts)
        ctx, noise = inputs(policy)
        zero = torch.zeros(16, dtype=torch.float64)
        before = policy.predict_action(ctx, noise, zero)
        network = policy.predict
        policy.predict = lambda ctx, x, t, network=network: network(ctx, x, t) + 0.01
        moved[predicts] = (policy.predict_action(ctx, noise, zero) - before).abs().max().item()
    assert moved["v"] <= 0.0101 and moved["action"] <= 0.0101
    assert moved["noise"] > 0.5


@torch.no_grad()
def test_noise_at_the_start_is_seen_as_the_noisiest_level():
    policy = make()
    ctx, noise = inputs(policy)
    zero = torch.zeros(16, dtype=torch.float64)
    noisiest = torch.full_like(zero, policy.noise_levels[-1])
    there = noise * length_of(policy.noise_levels[-1])
    assert torch.allclose(policy.predict_noise(ctx, noise, zero), policy.predict_noise(ctx, there, noisiest))
    assert torch.allclose(policy.predict_action(ctx, noise, zero), policy.predict_action(ctx, there, noisiest))
    assert policy.predict_action(ctx, noise, zero).abs().max() <= 1


@torch.no_grad()
def test_levels_are_evenly_spaced_to_the_network():
    """So that any number of levels is told apart: all but the noisiest, which the schedule caps."""
    seen: list[Tensor] = []
    policy = make()
    policy.time.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0]))
    ctx, noise = inputs(policy, LEVELS)
    policy.predict_noise(ctx, noise, torch.tensor(policy.noise_levels, dtype=torch.float64))
    gaps = seen[0][:-1] - seen[0][1:]
    assert torch.allclose(gaps[:-1], gaps[0].expand(LEVELS - 2), rtol=0.01)
    assert 0.5 * gaps[0] < gaps[-1] < gaps[0]
    assert seen[0].min() > 0
    assert seen[0].max() < 1


@pytest.mark.parametrize(
    ("cfg", "says"),
    [
        (DiffusionCfg(predicts="x"), r"policy\.predicts 'x' is unknown: .*known: action, noise, v"),
        (DiffusionCfg(levels=1), r"policy\.levels is 1: expected 2 or more"),
        (DiffusionCfg(denoising_steps=0), r"policy\.denoising_steps is 0: expected 1 to 20, the noise levels"),
        (DiffusionCfg(denoising_steps=21), r"policy\.denoising_steps is 21: expected 1 to 20"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(cfg, says):
    with pytest.raises(ConfigError, match=says):
        cfg.build(OBSERVATION_SPEC, ACTION_SPEC, TRANSFORMS)
