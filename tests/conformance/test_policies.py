"""What every policy must do, run on each row of `policy_kit.CFGS`; a new policy is one more row."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robotrl.errors import ConfigError
from robotrl.fn.chain import normal_log_prob
from robotrl.policies.flow import FlowCfg
from robotrl.policies.gaussian import GaussianPolicy
from robotrl.policies.networks.encoder import ImageEncoder, SetEncoder
from robotrl.policies.networks.mlp import Mlp, TimeFeatures, Transforms, flat_width
from robotrl.policies.networks.value import ValueNet
from robotrl.run.policy_checkpoint import changed
from robotrl.spec import HasDensity, Spec
from robotrl.testing.policies import CHECKS, PolicyCase, deploy_noise
from robotrl.transforms import Affine, Clip, numpy_backend
from tests.kits.policy_kit import (
    ACTION_SPEC,
    BASES,
    CFGS,
    OBSERVATION_SPEC,
    RECURRENT,
    TRANSFORMS,
    build_policy,
    make_policy,
    observations,
)
from tests.kits.refusals import raises_naming

NOT_CLONED = ("-one-step", "-one-action", "-levels")
NOT_CLONED_ALONE = (
    "best-of",
    "categorical",
    "conditioned",
    "path-speed",
    "recurrent",
    "reranked",
    "residual",
    "step-residual",
)
"""Kinds that a learner trains otherwise than by a cloning loss of their own."""


def case_of(name: str) -> PolicyCase:
    # steps of the larger networks take longer, and get farther
    updates = 200 if name == "diffusion-unet" else 130 if name.endswith(("-unet", "-transformer")) else 300
    if name.endswith(NOT_CLONED) or name.startswith(NOT_CLONED_ALONE):
        updates = 0
    if "attention" in name:
        # it reads no absent row, and of a mask only whether it is 0; see tests/policies/test_scene_encoder.py
        return PolicyCase(lambda: build_policy(name), _all_there, ("others_mask",), updates)
    return PolicyCase(lambda: build_policy(name), lambda policy, n, seed: observations(n, seed, policy), (), updates)


def _all_there(policy: Any, count: int, seed: int) -> dict[str, torch.Tensor]:
    obs = observations(count, seed, policy)
    return {**obs, "others_mask": torch.ones_like(obs["others_mask"])}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", [*CFGS, *RECURRENT])
def test_a_policy_keeps_the_contract(name: str, check: Callable[[PolicyCase], None]) -> None:
    check(case_of(name))


@pytest.mark.parametrize("name", CFGS)
@torch.no_grad()
def test_weights_that_leave_the_bounds_are_clipped_but_for_densities_within_them(name: str) -> None:
    policy = make_policy(name)
    for parameter in policy.parameters():
        parameter *= 20
    chunk = policy.act(observations(16, policy=policy), None, torch.Generator().manual_seed(0), "sample").chunk
    low, high = torch.tensor(policy.action_spec.low), torch.tensor(policy.action_spec.high)
    at_bounds = (chunk == low).any() or (chunk == high).any()
    # all of a Beta distribution lies between the bounds
    assert at_bounds == (policy.kind != "beta")


@pytest.mark.parametrize("name", CFGS)
@torch.no_grad()
def test_a_context_begins_with_normalised_vectors_in_the_order_of_the_spec(name: str) -> None:
    policy = make_policy(name)
    obs = observations(4, policy=policy)
    expected = numpy_backend(TRANSFORMS.inputs)({key: value.numpy() for key, value in obs.items()})
    ctx = policy.encode({key: obs[key] for key in reversed(obs)})
    assert np.allclose(ctx[:, :5].numpy(), np.concatenate([expected["joints"], expected["tip"]], 1), atol=1e-6)
    # a condition stands behind the part that critics read
    assert ctx.shape[1] == policy.context_width + (2 if name.startswith("conditioned") else 0)
    assert ctx.dtype == torch.float32


@pytest.mark.parametrize("name", [n for n in CFGS if n.startswith(("gaussian", "beta", "categorical"))])
@torch.no_grad()
def test_policies_in_closed_form_act_by_their_density(name: str) -> None:
    policy, obs = make_policy(name), observations(8, policy=make_policy(name))
    assert isinstance(policy, HasDensity)
    raw = policy.density(policy.encode(obs)).sample(torch.Generator().manual_seed(3))
    assert torch.equal(raw, policy.draw(obs, torch.Generator().manual_seed(3)).normalized_action)
    acted = policy.act(obs, None, torch.Generator().manual_seed(3), "sample").chunk
    assert torch.equal(acted, policy.to_actions(raw))


@torch.no_grad()
@pytest.mark.parametrize("kind", BASES)
def test_less_noise_is_deployed_where_less_is_asked_for(kind):
    """The chain's own law is as before, so that methods that fine-tune or steer it find what was cloned."""
    plain = make_policy(kind)
    policy = changed(plain, {"deploy_noise": 0.5})
    obs, noise = observations(16), deploy_noise(plain, 16)
    assert torch.equal(policy.deploy(obs, noise).actions, plain.deploy(obs, 0.5 * noise).actions)
    ctx = plain.encode(obs)
    assert torch.equal(policy.decode(ctx, noise), plain.decode(ctx, noise))
    still = changed(plain, {"deploy_noise": 0.0})
    assert torch.equal(still.deploy(obs, noise).actions, plain.act(obs, mode="mean").chunk)
    assert torch.equal(still.with_steps(2).deploy(obs, noise).actions, plain.with_steps(2).act(obs, mode="mean").chunk)
    with raises_naming(ConfigError, "policy.deploy_noise", -0.5, 0):
        changed(plain, {"deploy_noise": -0.5})


def test_a_picture_of_floats_is_refused_by_name():
    specs = {"camera": Spec((8, 8, 3), ("r", "g", "b"), ("1",) * 3, (0.0,) * 3, (255.0,) * 3)}
    with pytest.raises(ValueError, match=r"'camera' is float32 of shape \(8, 8, 3\): expected a vector, shape \(D,\)"):
        flat_width(specs)
    with pytest.raises(ValueError, match="'camera' is float32"):
        FlowCfg().build(specs, ACTION_SPEC, TRANSFORMS)


def test_a_flow_policy_says_that_it_needs_noise():
    with raises_naming(ValueError, "noise", None):
        make_policy("flow").deploy(observations(1), None)


@pytest.mark.parametrize("kind", BASES)
@torch.no_grad()
def test_it_runs_on_other_numbers_of_steps(kind):
    policy, obs, noise = make_policy(kind), observations(8), deploy_noise(make_policy(kind), 8)
    found = []
    for steps in (1, 2, 4, 8):
        other = policy.with_steps(steps)
        assert other.denoising_steps == steps
        assert all(torch.equal(a, b) for a, b in zip(policy.parameters(), other.parameters(), strict=True))
        rebuilt = type(other).from_json(json.loads(json.dumps(other.to_json())))
        rebuilt.load_state_dict(policy.state_dict())
        assert rebuilt.times == other.times
        found.append(other.deploy(obs, noise).normalized_action)
        assert torch.equal(rebuilt.deploy(obs, noise).normalized_action, found[-1])
    # an untrained diffusion ends in the corners whatever the steps
    assert kind == "diffusion" or all(not torch.allclose(found[0], one, atol=1e-3) for one in found[1:])
    assert policy.denoising_steps == policy.cfg.denoising_steps == CFGS[kind].denoising_steps
    for steps, refused in ((0, BASES), (3, ("shortcut",)), (21, ("diffusion", "shortcut"))):
        if kind in refused:
            with pytest.raises(ConfigError, match=rf"policy\.denoising_steps is {steps}: expected"):
                policy.with_steps(steps)


@pytest.mark.parametrize(
    ("network", "hidden", "says"),
    [
        (
            "resnet",
            (32,),
            r"policy\.network 'resnet' is unknown: did you mean 'unet'\? known: mlp, residual, transformer",
        ),
        ("mlp", (), r"policy\.hidden is \(\): expected one width or more"),
        ("residual", (32, 16, 32), r"policy\.hidden is \(32, 16, 32\): expected equal widths for network 'residual'"),
        ("residual", (32, 32), "expected an odd number of widths for network 'residual'"),
        ("unet", (20,), r"policy\.hidden is \(20,\): expected multiples of 8 for network 'unet'"),
        ("transformer", (30,), "expected multiples of 4 for network 'transformer'"),
    ],
)
@pytest.mark.parametrize("kind", BASES)
def test_networks_that_cannot_be_are_refused_by_name(kind, network, hidden, says):
    with pytest.raises(ConfigError, match=says):
        replace(BASES[kind], network=network, hidden=hidden).build(OBSERVATION_SPEC, ACTION_SPEC, TRANSFORMS)


@pytest.mark.parametrize("network", ["unet", "transformer"])
@pytest.mark.parametrize("horizon", [1, 4, 7])
@torch.no_grad()
def test_any_chunk_length_will_do(network, horizon):
    cfg = FlowCfg(horizon=horizon, network=network, hidden=(16, 16, 16))
    policy = cfg.build(OBSERVATION_SPEC, ACTION_SPEC, TRANSFORMS)
    obs, noise = observations(2), torch.randn(2, horizon, 2)
    before = policy.deploy(obs, noise).normalized_action
    assert before.shape == (2, horizon, 2)
    for place in range(horizon):
        changed = noise.clone()
        changed[:, place] += 1
        # every action of the chunk sees every other
        assert (policy.deploy(obs, changed).normalized_action != before).all()


def test_encoders_that_cannot_be_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"image_channels has 4 entries: expected fewer for pictures of 10 x 12"):
        ImageEncoder((10, 12, 3), (4, 4, 4, 4), 6, "flatten")
    with raises_naming(ConfigError, "policy.image_pool", "max", nearest="softmax"):
        ImageEncoder((10, 12, 3), (4,), 6, "max")  # pyright: ignore[reportArgumentType]
    with raises_naming(ConfigError, "policy.image_norm", "layers", nearest="layer"):
        ImageEncoder((10, 12, 3), (4,), 6, "flatten", "layers")  # pyright: ignore[reportArgumentType]
    for channels, features in (((), 6), ((0,), 6), ((4,), 0)):
        with pytest.raises(ConfigError, match="expected one convolution or more, and widths of 1 or more"):
            ImageEncoder((10, 12, 3), channels, features, "flatten")


@torch.no_grad()
def test_softmax_says_where_a_channel_is_largest():
    encoder = ImageEncoder((8, 8, 1), (1,), 4, "softmax")
    kernel = encoder.layers[0].weight.zero_()
    kernel[0, 0, 1, 1] = 1000.0
    encoder.layers[0].bias.zero_()
    encoder.head = torch.nn.Identity()
    pictures = torch.zeros(2, 8, 8, 1, dtype=torch.uint8)
    pictures[0, 0, 6], pictures[1, 4, 0] = 255, 255  # the strided pixels (0, 3) and (2, 0) of 4 x 4
    expected = torch.tensor([[-1.0, 1.0], [1 / 3, -1.0]])
    assert torch.allclose(encoder(pictures), expected, atol=1e-5)


@torch.no_grad()
def test_layer_norm_takes_out_mean_and_deviation_of_each_picture():
    """So twice the contrast is the same picture, and none sees another of its batch."""
    encoder = ImageEncoder((8, 8, 10), (6,), 4, "flatten", "layer")
    kinds = [type(layer) for layer in encoder.layers]
    assert kinds == [torch.nn.Conv2d, torch.nn.GroupNorm, torch.nn.ReLU]
    encoder.layers[0].bias.zero_()
    seen = []
    encoder.layers[1].register_forward_hook(lambda module, arguments, out: seen.append(out))
    pictures = torch.rand(3, 8, 8, 10, generator=torch.Generator().manual_seed(0)) * 100 + 77.5
    centerd = pictures - 127.5
    plain, contrast = encoder(pictures), encoder(2 * centerd + 127.5)
    rows = seen[0].flatten(1)
    assert torch.allclose(rows.mean(1), torch.zeros(3), atol=1e-5)
    assert torch.allclose(rows.std(1, unbiased=False), torch.ones(3), atol=0.01)
    assert torch.allclose(plain, contrast, atol=0.01)
    assert torch.allclose(encoder(pictures[1:2]), plain[1:2], atol=1e-5)


@torch.no_grad()
def test_bytes_and_floats_are_the_same_picture():
    policy = make_policy("flow-picture")
    obs = observations(4, policy=policy)
    assert torch.equal(policy.encode(obs), policy.encode({**obs, "image_top": obs["image_top"].float()}))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
@torch.no_grad()
def test_gaussian_ratio_is_one_on_the_sample_before_clipping(dtype, tolerance):
    policy = make_policy("gaussian").to(dtype)
    policy.log_std.fill_(1.0)  # most samples leave [-1, 1]
    obs = {key: value.to(dtype) for key, value in observations(64).items()}
    normalized_action, claimed = policy.draw(obs, torch.Generator().manual_seed(1))
    assert (normalized_action.abs() > 1).any()
    mean = policy.mean(policy.encode(obs))
    z = (normalized_action - mean) / policy.log_std.exp()
    assert z.abs().max() > 2  # nothing was clipped before the density was taken
    drawn = normal_log_prob(normalized_action, mean, policy.log_std.exp().expand_as(mean))
    assert ((policy.log_prob(obs, normalized_action) - drawn).exp() - 1).abs().max() <= tolerance
    assert ((claimed - drawn).exp() - 1).abs().max() <= tolerance
    clipped = normalized_action.clamp(-1, 1)
    assert not torch.allclose(policy.log_prob(obs, clipped), drawn)


@torch.no_grad()
def test_gaussian_samples_have_the_mean_and_deviation_that_they_claim():
    policy: GaussianPolicy = make_policy("gaussian")
    policy.log_std.copy_(torch.linspace(-3, 0, 6).reshape(3, 2))
    obs = {key: value.expand(20_000, -1) for key, value in observations(1).items()}
    normalized_action = policy.draw(obs, torch.Generator().manual_seed(2)).normalized_action
    assert torch.allclose(normalized_action.std(0), policy.log_std.exp(), rtol=0.03)
    assert ((normalized_action.mean(0) - policy.mean(policy.encode(obs))[0]).abs() < 0.03 * policy.log_std.exp()).all()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
@torch.no_grad()
def test_beta_ratio_is_one_on_the_sample(dtype, tolerance):
    policy = make_policy("beta").to(dtype)
    obs = {key: value.to(dtype) for key, value in observations(64).items()}
    normalized_action, claimed = policy.draw(obs, torch.Generator().manual_seed(1))
    assert normalized_action.shape == claimed.shape == (64, 3, 2)
    assert normalized_action.dtype == dtype
    assert normalized_action.abs().max() < 1
    assert ((policy.log_prob(obs, normalized_action) - claimed).exp() - 1).abs().max() <= tolerance
    # nothing that is drawn is clipped: the sim gets what the density is of
    low, high = (torch.tensor(bound, dtype=dtype) for bound in (ACTION_SPEC.low, ACTION_SPEC.high))
    expected = low + (normalized_action + 1) / 2 * (high - low)
    assert torch.allclose(policy.to_actions(normalized_action), expected, atol=1e-5)


@torch.no_grad()
def test_a_fresh_beta_policy_is_as_wide_as_its_page_says_and_its_parameters_stay_above_one():
    policy = make_policy("beta")
    density = policy.density(policy.encode(observations(64)))
    assert density.std.mean().item() == pytest.approx(0.48, abs=0.01)
    assert policy.mean(policy.encode(observations(64))).abs().max() < 0.2
    for parameter in policy.parameters():
        parameter *= 20
    density = policy.density(policy.encode(observations(64)))
    assert min(density.alpha.min(), density.beta.min()) >= 1
    assert max(density.alpha.max(), density.beta.max()) > 100
    assert density.log_prob(density.sample(torch.Generator().manual_seed(0))).isfinite().all()


number = st.floats(-100, 100, width=32)
vector = st.tuples(number, number)
transform = st.builds(Affine, st.sampled_from("xy"), vector, vector) | st.builds(
    lambda key, low, span: Clip(key, low, (low[0] + abs(span[0]), low[1] + abs(span[1]))),
    st.sampled_from("xy"),
    vector,
    vector,
)


@settings(max_examples=100, deadline=None)
@given(st.lists(transform, max_size=4), st.lists(vector, min_size=1, max_size=3))
def test_the_module_equals_the_numpy_backend(transforms, rows):
    x = np.array(rows, np.float32)
    expected = numpy_backend(transforms)({"x": x, "y": -x})
    found = Transforms(transforms)({"x": torch.from_numpy(x), "y": -torch.from_numpy(x)})
    for key in "xy":
        assert np.array_equal(found[key].numpy(), expected[key])


def test_transforms_are_not_weights_and_follow_the_device_and_dtype():
    module = Transforms([Affine("x", (2.0,), (1.0,))])
    assert not module.state_dict()
    assert module.double()({"x": torch.ones(1, 1, dtype=torch.float64)})["x"].dtype == torch.float64


def test_nan_passes_the_clip():
    out = Transforms([Clip("x", (0.0,), (1.0,))])({"x": torch.tensor([[float("nan")]])})
    assert out["x"].isnan().all()


def test_small_networks():
    assert Mlp(3, (8,), 2)(torch.zeros(5, 3)).shape == (5, 2)
    assert (Mlp(3, (), 2, last_gain=0.0)(torch.randn(5, 3)) == 0).all()
    assert ValueNet(3)(torch.zeros(5, 3)).shape == (5,)
    features = TimeFeatures(16)(torch.tensor([0.0, 1.0]))
    assert torch.equal(features[0], torch.cat([torch.zeros(8), torch.ones(8)]))
    assert features.shape == (2, 16)


def test_time_features_tell_all_steps_apart():
    t = torch.arange(20) / 20
    features = TimeFeatures(16)(t)
    distance = (features[:, None] - features[None]).norm(dim=-1) + torch.eye(20)
    assert distance.min() > 0.1


def test_the_action_width_is_that_of_the_spec():
    assert make_policy("flow").action_width == ACTION_SPEC.shape[0]
    assert list(make_policy("flow").observation_spec) == list(OBSERVATION_SPEC)


def test_a_list_is_a_set_of_the_rows_that_are_there() -> None:
    """In another order, with other numbers in rows that are not there: the same features; of no row none.

    A product of matrices may round a row otherwise in another place; so it does on some processors.
    """
    torch.manual_seed(0)
    encoder = SetEncoder(4, 16).double()
    rows, mask = torch.randn(5, 6, 4).double(), torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 0.0]).double().repeat(5, 1)
    found = encoder(rows, mask)
    order = torch.tensor([3, 4, 0, 5, 2, 1])
    assert torch.allclose(encoder(rows[:, order], mask[:, order]), found, rtol=0, atol=1e-12)
    elsewhere = torch.where(mask[..., None] == 0, rows + 100, rows)
    assert torch.equal(encoder(elsewhere, mask), found)
    assert (encoder(rows, torch.zeros(5, 6)) == 0).all()
    changed = rows.clone()
    changed[:, 3] += 1
    assert ((encoder(changed, mask) - found).abs().amax(dim=1) > 1e-6).all()


def test_sets_stand_behind_the_vectors() -> None:
    policy = make_policy("gaussian-set")
    obs = observations(4, policy=policy)
    ctx = policy.encode(obs)
    assert ctx.shape == (4, policy.context_width) == (4, 3 + 2 + 12 + 3 + 8)
    assert torch.equal(ctx[:, -8:], policy.sets["others"](obs["others"], obs["others_mask"]))
