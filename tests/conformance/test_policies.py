"""What every policy must do, run on each row of `policy_kit.CFGS`; a new policy is one more row."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from robotrl.errors import ConfigError
from robotrl.fn.bc_loss import DrawShape, clone_loss_of
from robotrl.fn.chain import chain_log_prob, integrate, normal_log_prob, sample
from robotrl.policies.flow import FlowCfg
from robotrl.policies.gaussian import GaussianPolicy
from robotrl.policies.networks.encoder import ImageEncoder, SetEncoder
from robotrl.policies.networks.mlp import Mlp, TimeFeatures, Transforms, flat_width
from robotrl.policies.networks.value import ValueNet
from robotrl.registry import POLICIES
from robotrl.run.policy_checkpoint import changed
from robotrl.spec import HasChain, HasDecode, HasDensity, HasLogProb, Policy, Spec
from robotrl.transforms import Affine, Clip, numpy_backend
from tests.fn.test_chain import KERNELS
from tests.kits.policy_kit import (
    ACTION_SPEC,
    BASES,
    CFGS,
    GENERATIVE,
    OBSERVATION_SPEC,
    TRANSFORMS,
    make_policy,
    observations,
)

LOW, HIGH = torch.tensor(ACTION_SPEC.low), torch.tensor(ACTION_SPEC.high)


def deploy_noise(policy, batch: int) -> Tensor | None:
    if policy.noise_shape is None:
        return None
    return torch.randn((batch, *policy.noise_shape), generator=torch.Generator().manual_seed(9))


def inner(policy, obs: dict[str, Tensor]) -> Tensor:
    """What the network says late in the chain: an untrained diffusion policy ends in the corners whatever it sees."""
    ctx = policy.encode(obs)
    noise = deploy_noise(policy, len(ctx))
    if noise is None:
        return policy.scores(ctx) if policy.kind == "categorical" else policy.mean(ctx)
    t = torch.full((len(ctx),), 0.8)
    return policy.velocity(ctx, 0.2 * noise, t, 1 - t)


CLONED = [
    n for n in CFGS if not n.endswith(("-one-step", "-one-action", "-levels")) and not n.startswith("categorical")
]


@pytest.fixture(params=CFGS)
def policy(request):
    return make_policy(request.param)


def test_it_declares_what_it_is(policy):
    assert isinstance(policy, Policy)
    assert isinstance(policy, HasChain | HasLogProb)
    assert isinstance(policy, HasChain) == isinstance(policy, HasDecode) == (policy.noise_shape is not None)
    assert POLICIES.load(policy.kind) is type(policy)
    assert policy.deploy_mode in ("sample", "mean")


@pytest.mark.parametrize("mode", ["sample", "mean"])
@torch.no_grad()
def test_act_gives_bounded_chunks_of_the_right_shape(policy, mode):
    # weights this large leave the bounds before clipping
    for parameter in policy.parameters():
        parameter *= 20
    chunk, state = policy.act(observations(16, policy=policy), None, torch.Generator().manual_seed(0), mode)
    assert chunk.shape == (16, policy.horizon, 2)
    assert state is None
    low, high = torch.tensor(policy.action_spec.low), torch.tensor(policy.action_spec.high)
    assert (chunk >= low).all()
    assert (chunk <= high).all()
    if policy.kind == "beta":  # all of its density lies between the bounds
        assert (chunk > LOW).all()
        assert (chunk < HIGH).all()
    else:
        assert (chunk == low).any() or (chunk == high).any()


@torch.no_grad()
def test_mean_is_deterministic_and_sampling_is_seeded(policy):
    obs = observations(16, policy=policy)

    def act(mode, seed):
        return policy.act(obs, None, torch.Generator().manual_seed(seed), mode).chunk

    assert torch.equal(act("mean", 0), act("mean", 1))
    assert torch.equal(act("sample", 0), act("sample", 0))
    assert not torch.equal(act("sample", 0), act("sample", 1))


@torch.no_grad()
def test_deployment_is_what_evaluation_runs(policy):
    """The exported graph (`deploy`) and `act` in `deploy_mode` give the same actions, bit for bit."""
    obs = observations(16, policy=policy)
    generator = torch.Generator().manual_seed(9)
    acted = policy.act(obs, None, generator, policy.deploy_mode).chunk
    deployed = policy.deploy(obs, deploy_noise(policy, 16))
    assert torch.equal(acted, deployed.actions)
    again = policy.deploy(obs, deploy_noise(policy, 16))
    assert torch.equal(deployed.normalized_action, again.normalized_action)
    by_numpy = numpy_backend(policy.transforms.outputs)({"action": deployed.normalized_action.numpy()})["action"]
    assert np.allclose(deployed.actions.numpy(), by_numpy, atol=1e-6)


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
    with pytest.raises(ConfigError, match=r"policy.deploy_noise is -0.5: expected 0 or more"):
        changed(plain, {"deploy_noise": -0.5})


@torch.no_grad()
def test_rows_do_not_see_each_other(policy):
    obs, noise = observations(16, policy=policy), deploy_noise(policy, 16)
    whole = policy.deploy(obs, noise).actions
    part = policy.deploy({k: v[5:9] for k, v in obs.items()}, None if noise is None else noise[5:9]).actions
    assert torch.allclose(whole[5:9], part, atol=1e-5)


@torch.no_grad()
def test_every_observation_matters_and_in_the_order_of_the_spec(policy):
    obs = observations(4, policy=policy)
    expected = numpy_backend(TRANSFORMS.inputs)({key: value.numpy() for key, value in obs.items()})
    ctx = policy.encode({key: obs[key] for key in reversed(obs)})
    assert np.allclose(ctx[:, :5].numpy(), np.concatenate([expected["joints"], expected["tip"]], 1), atol=1e-6)
    assert ctx.shape[1] == policy.context_width
    assert ctx.dtype == torch.float32
    before = inner(policy, obs)
    for key, value in obs.items():
        for column in range(value.shape[1]):
            changed = value.clone()
            changed[:, column] = changed[:, column] + 0.5 if value.is_floating_point() else 255 - changed[:, column]
            after = inner(policy, {**obs, key: changed})
            assert (after != before).flatten(1).any(1).all(), (key, column)


@torch.no_grad()
def test_its_description_rebuilds_it(policy):
    description = json.loads(json.dumps(policy.to_json()))
    rebuilt = type(policy).from_json(description)
    assert rebuilt.to_json() == policy.to_json()
    assert rebuilt.cfg == policy.cfg
    rebuilt.load_state_dict(policy.state_dict())
    noise = deploy_noise(policy, 8)
    assert torch.equal(
        rebuilt.deploy(observations(8, policy=policy), noise).actions,
        policy.deploy(observations(8, policy=policy), noise).actions,
    )


def test_a_picture_of_floats_is_refused_by_name():
    specs = {"camera": Spec((8, 8, 3), ("r", "g", "b"), ("1",) * 3, (0.0,) * 3, (255.0,) * 3)}
    with pytest.raises(ValueError, match=r"'camera' is float32 of shape \(8, 8, 3\): expected a vector, shape \(D,\)"):
        flat_width(specs)
    with pytest.raises(ValueError, match="'camera' is float32"):
        FlowCfg().build(specs, ACTION_SPEC, TRANSFORMS)


def test_a_flow_policy_says_that_it_needs_noise():
    with pytest.raises(ValueError, match="noise is None"):
        make_policy("flow").deploy(observations(1), None)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
@pytest.mark.parametrize("kernel_name", KERNELS)
@pytest.mark.parametrize("name", [name for name in CFGS if isinstance(make_policy(name), HasChain)])
@torch.no_grad()
def test_the_ratio_is_one_under_every_kernel(name, kernel_name, dtype, tolerance):
    policy = make_policy(name).to(dtype)
    obs = observations(32, policy=policy)
    ctx = policy.encode({key: value.to(dtype) if value.is_floating_point() else value for key, value in obs.items()})
    kernel = KERNELS[kernel_name](policy)
    noise = torch.randn((32, *policy.noise_shape), generator=torch.Generator().manual_seed(2), dtype=dtype)
    drawn = sample(policy, ctx, kernel, noise, torch.Generator().manual_seed(4))
    again = chain_log_prob(policy, ctx, kernel, drawn.x)
    assert drawn.log_prob.dtype == again.dtype == dtype
    assert ((again - drawn.log_prob).exp() - 1).abs().max() <= tolerance


@pytest.mark.parametrize("name", GENERATIVE)
@torch.no_grad()
def test_its_chain_is_its_decoder_on_a_rising_grid(name):
    policy = make_policy(name)
    assert policy.times[0] == 0
    assert policy.times[-1] == 1
    assert all(before < after for before, after in zip(policy.times, policy.times[1:], strict=False))
    assert policy.denoising_steps == policy.cfg.denoising_steps == len(policy.times) - 1
    ctx, noise = policy.encode(observations(8)), deploy_noise(policy, 8)
    assert noise is not None
    assert torch.equal(policy.decode(ctx, noise), integrate(policy, ctx, noise))


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
    with pytest.raises(ConfigError, match=r"policy\.image_pool 'max' is unknown: did you mean 'softmax'\?"):
        ImageEncoder((10, 12, 3), (4,), 6, "max")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"policy\.image_norm 'layers' is unknown: did you mean 'layer'\?"):
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
    centred = pictures - 127.5
    plain, contrast = encoder(pictures), encoder(2 * centred + 127.5)
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
    expected = LOW.to(dtype) + (normalized_action + 1) / 2 * (HIGH - LOW).to(dtype)
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


@pytest.mark.parametrize("name", [n for n in CFGS if n.startswith(("gaussian", "beta", "categorical"))])
def test_policies_in_closed_form_hand_out_their_density(name):
    policy, obs = make_policy(name), observations(8, policy=make_policy(name))
    assert isinstance(policy, HasDensity)
    density = policy.density(policy.encode(obs))
    normalized_action = density.sample(torch.Generator().manual_seed(3))
    assert torch.equal(normalized_action, policy.draw(obs, torch.Generator().manual_seed(3)).normalized_action)
    assert torch.equal(density.log_prob(normalized_action), policy.log_prob(obs, normalized_action))
    for number in (density.entropy(), density.std):
        assert number.shape[1:] == normalized_action.shape[1:]
        assert number.shape[0] in (1, 8)
    acted = policy.act(obs, None, torch.Generator().manual_seed(3), "sample").chunk
    assert torch.equal(acted, policy.to_actions(normalized_action))


@pytest.mark.parametrize("name", CLONED)
def test_it_overfits_a_single_datum(name):
    """With one datum nothing contradicts: the loss goes to zero and what is decoded is the datum."""
    policy = make_policy(name)
    clone, generator = clone_loss_of(policy), torch.Generator().manual_seed(0)
    # steps of the larger networks take longer, and get farther
    count = 200 if name == "diffusion-unet" else 130 if name.endswith(("-unet", "-transformer")) else 300
    obs = {key: value.expand(32, *value.shape[1:]) for key, value in observations(1, policy=policy).items()}
    chunk = torch.tensor([[0.3, -0.7], [0.9, 0.1], [-0.5, 0.4]]).expand(32, 3, 2)
    valid = torch.ones(32, 3, dtype=torch.bool)
    rows = clone.draw(policy, DrawShape(count, 32, 3, 2), generator)
    if "t" in rows and not hasattr(policy, "noise_levels"):
        # the exact field is (datum - x) / (1 - t): keep off its pole, where the steps of the sampler never go
        rows["t"] = 0.8 * rows["t"]
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    losses = []
    for step in range(count):
        optimizer.param_groups[0]["lr"] = 1e-2 * (1 - step / count)
        drawn = {key: value.view(count, 32, *value.shape[1:])[step] for key, value in rows.items()}
        loss = clone.loss(policy, policy.encode(obs), chunk, valid, **drawn)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert np.mean(losses[-20:]) < 0.1 * losses[0]
    with torch.no_grad():
        ctx, noise = policy.encode(obs), torch.randn(chunk.shape, generator=generator)
        end = policy.mean(ctx) if policy.noise_shape is None else policy.decode(ctx, noise)
    # not the mean: some of the 32 starts lie farther out than any that was learned from
    assert (end - chunk).abs().median() < 0.08


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
