"""What every policy must do, run on each row of `policy_kit.CFGS`; a new policy is one more row."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_kit import ACTION_SPEC, CFGS, OBSERVATION_SPEC, TRANSFORMS, make_policy, observations
from torch import Tensor

from robotrl.algos.bc import flow_matching_loss
from robotrl.fn.chain import normal_log_prob
from robotrl.policies.gaussian import GaussianPolicy
from robotrl.policies.nets import Mlp, TimeFeatures, Transforms, flat_width
from robotrl.policies.value import ValueNet
from robotrl.registry import POLICIES
from robotrl.spec import HasChain, HasDecode, HasLogProb, Policy, Spec
from robotrl.transforms import Affine, Clip, numpy_backend

LOW, HIGH = torch.tensor(ACTION_SPEC.low), torch.tensor(ACTION_SPEC.high)


def deploy_noise(policy, batch: int) -> Tensor | None:
    if policy.noise_shape is None:
        return None
    return torch.randn((batch, *policy.noise_shape), generator=torch.Generator().manual_seed(9))


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
    chunk, state = policy.act(observations(16), None, torch.Generator().manual_seed(0), mode)
    assert chunk.shape == (16, policy.horizon, 2)
    assert state is None
    assert (chunk >= LOW).all()
    assert (chunk <= HIGH).all()
    assert (chunk == LOW).any() or (chunk == HIGH).any()


@torch.no_grad()
def test_mean_is_deterministic_and_sampling_is_seeded(policy):
    obs = observations(16)

    def act(mode, seed):
        return policy.act(obs, None, torch.Generator().manual_seed(seed), mode).chunk

    assert torch.equal(act("mean", 0), act("mean", 1))
    assert torch.equal(act("sample", 0), act("sample", 0))
    assert not torch.equal(act("sample", 0), act("sample", 1))


@torch.no_grad()
def test_deployment_is_what_evaluation_runs(policy):
    """The exported graph (`deploy`) and `act` in `deploy_mode` give the same actions, bit for bit."""
    obs = observations(16)
    generator = torch.Generator().manual_seed(9)
    acted = policy.act(obs, None, generator, policy.deploy_mode).chunk
    deployed = policy.deploy(obs, deploy_noise(policy, 16))
    assert torch.equal(acted, deployed.actions)
    again = policy.deploy(obs, deploy_noise(policy, 16))
    assert torch.equal(deployed.raw_action, again.raw_action)
    by_numpy = numpy_backend(policy.transforms.outputs)({"action": deployed.raw_action.numpy()})["action"]
    assert np.allclose(deployed.actions.numpy(), by_numpy, atol=1e-6)


@torch.no_grad()
def test_rows_do_not_see_each_other(policy):
    obs, noise = observations(16), deploy_noise(policy, 16)
    whole = policy.deploy(obs, noise).actions
    part = policy.deploy({k: v[5:9] for k, v in obs.items()}, None if noise is None else noise[5:9]).actions
    assert torch.allclose(whole[5:9], part, atol=1e-5)


@torch.no_grad()
def test_every_observation_matters_and_in_the_order_of_the_spec(policy):
    obs = observations(4)
    expected = numpy_backend(TRANSFORMS.inputs)({key: value.numpy() for key, value in obs.items()})
    ctx = policy.encode({key: obs[key] for key in reversed(obs)})
    assert np.allclose(ctx.numpy(), np.concatenate([expected["joints"], expected["tip"]], 1), atol=1e-6)
    assert ctx.shape[1] == policy.context_width
    before = policy.deploy(obs, deploy_noise(policy, 4)).raw_action
    for key, value in obs.items():
        for column in range(value.shape[1]):
            changed = value.clone()
            changed[:, column] += 0.5
            after = policy.deploy({**obs, key: changed}, deploy_noise(policy, 4)).raw_action
            assert (after != before).flatten(1).any(1).all(), (key, column)


@torch.no_grad()
def test_its_description_rebuilds_it(policy):
    description = json.loads(json.dumps(policy.to_json()))
    rebuilt = type(policy).from_json(description)
    assert rebuilt.to_json() == policy.to_json()
    assert rebuilt.cfg == policy.cfg
    rebuilt.load_state_dict(policy.state_dict())
    noise = deploy_noise(policy, 8)
    assert torch.equal(rebuilt.deploy(observations(8), noise).actions, policy.deploy(observations(8), noise).actions)


def test_a_picture_is_refused_by_name():
    specs = {"camera": Spec((8, 8, 3), ("r", "g", "b"), ("1",) * 3, (0.0,) * 3, (255.0,) * 3)}
    with pytest.raises(ValueError, match=r"'camera' has shape \(8, 8, 3\): this policy takes vectors only"):
        flat_width(specs)


def test_a_flow_policy_says_that_it_needs_noise():
    with pytest.raises(ValueError, match="noise is None"):
        make_policy("flow").deploy(observations(1), None)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
@torch.no_grad()
def test_gaussian_ratio_is_one_on_the_sample_before_clipping(dtype, tolerance):
    policy = make_policy("gaussian").to(dtype)
    policy.log_std.fill_(1.0)  # most samples leave [-1, 1]
    obs = {key: value.to(dtype) for key, value in observations(64).items()}
    raw, claimed = policy.draw(obs, torch.Generator().manual_seed(1))
    assert (raw.abs() > 1).any()
    mean = policy.mean(policy.encode(obs))
    z = (raw - mean) / policy.log_std.exp()
    assert z.abs().max() > 2  # nothing was clipped before the density was taken
    drawn = normal_log_prob(raw, mean, policy.log_std.exp().expand_as(mean))
    assert ((policy.log_prob(obs, raw) - drawn).exp() - 1).abs().max() <= tolerance
    assert ((claimed - drawn).exp() - 1).abs().max() <= tolerance
    clipped = raw.clamp(-1, 1)
    assert not torch.allclose(policy.log_prob(obs, clipped), drawn)


@torch.no_grad()
def test_gaussian_samples_have_the_mean_and_deviation_that_they_claim():
    policy: GaussianPolicy = make_policy("gaussian")
    policy.log_std.copy_(torch.linspace(-3, 0, 6).reshape(3, 2))
    obs = {key: value.expand(20_000, -1) for key, value in observations(1).items()}
    raw = policy.draw(obs, torch.Generator().manual_seed(2)).raw
    assert torch.allclose(raw.std(0), policy.log_std.exp(), rtol=0.03)
    assert ((raw.mean(0) - policy.mean(policy.encode(obs))[0]).abs() < 0.03 * policy.log_std.exp()).all()


def test_a_flow_overfits_a_single_datum():
    """With one datum the velocity has no conflict left: the loss goes to zero and the chain ends in the datum."""
    policy = make_policy("flow")
    obs = {key: value.expand(64, -1) for key, value in observations(1).items()}
    ctx = policy.encode(obs)
    chunk = torch.tensor([[0.3, -0.7], [0.9, 0.1], [-0.5, 0.4]]).expand(64, 3, 2)
    valid = torch.ones(64, 3, dtype=torch.bool)
    optimizer = torch.optim.Adam(policy.parameters(), lr=5e-3)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for step in range(400):
        optimizer.param_groups[0]["lr"] = 5e-3 * (1 - step / 400)
        noise = torch.randn(chunk.shape, generator=generator)
        # the exact field is (datum - x) / (1 - t): keep off its pole, where the four steps of the sampler never go
        t = 0.9 * torch.rand(64, generator=generator)
        loss = flow_matching_loss(policy, ctx, chunk, valid, noise, t)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 0.8
    assert np.mean(losses[-50:]) < 0.03
    with torch.no_grad():
        end = policy.decode(ctx, torch.randn(chunk.shape, generator=generator))
    assert (end - chunk).abs().mean() < 0.05


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
