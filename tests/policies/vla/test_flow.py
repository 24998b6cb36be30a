"""Flow VLAs: SmolVLA's and pi0's networks in small and their names in full, the policy, and what fine-tunes it."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import LlamaConfig, LlamaModel

import robotrl
from robotrl.algos.dsrl import DsrlCfg
from robotrl.algos.flow_noise import FlowNoiseCfg
from robotrl.algos.flow_sde import FlowSdeCfg
from robotrl.algos.reinflow import ReinFlowCfg
from robotrl.deploy.export import export
from robotrl.deploy.runtime import Controller
from robotrl.errors import CapabilityError, ConfigError
from robotrl.fn import chain
from robotrl.fn.bc_loss import clone_loss_of
from robotrl.learners.denoising_sampling import draw_chain
from robotrl.learners.learner import Setup
from robotrl.policies.steered import SteeredCfg
from robotrl.policies.vla.flow import NETWORKS, FlowVlaCfg, FlowVlaPolicy
from robotrl.policies.vla.networks.context import ContextSizes, SplitContext, pack, unpack
from robotrl.policies.vla.networks.flow_time import time_features
from robotrl.policies.vla.networks.pi0 import Pi0, Pi0Cfg
from robotrl.policies.vla.networks.smolvla import SmolVla, SmolVlaCfg, expert_mlp, rotate, rotations
from robotrl.run.policy_checkpoint import policy_from_tree, policy_tree
from robotrl.sims.mujoco.tabletop.language import encode
from robotrl.spec import HasChain, HasDecode, Policy, visible
from robotrl.transforms import Clip, TransformGroup, bounds_to_unit, inverse
from tests.kits.paths_kit import DATA
from tests.kits.refusals import raises_naming

SMALL: dict[str, Any] = {
    "horizon": 2,
    "denoising_steps": 3,
    "vision_width": 24,
    "vision_layers": 2,
    "vision_heads": 2,
    "width": 32,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "mlp": 48,
    "expert_width": 24,
}
SEEN = 6


@functools.cache
def tabletop(num_envs: int = SEEN) -> Any:
    return robotrl.make_sim(
        "mujoco/tabletop", num_envs=num_envs, seed=0, image="flat_near", image_size=32, families="point,lift,push"
    )


def policy_on(network: Any, seed: int = 0, **changes: Any) -> FlowVlaPolicy:
    torch.manual_seed(seed)
    sim = tabletop()
    action = sim.action_spec
    outputs = (inverse(bounds_to_unit("action", action.low, action.high)), Clip("action", action.low, action.high))
    cfg = FlowVlaCfg(network=network, **{**SMALL, **changes})
    return cfg.build(visible(sim), action, TransformGroup((), outputs)).eval()


def observed(seed: int = 0) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in tabletop().reset(seed).items()}


# arithmetic


@given(st.integers(1, 3), st.integers(1, 4), st.integers(0, 3), st.integers(1, 3), st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_a_context_is_taken_apart_as_it_was_put_together(
    layers: int, length: int, state: int, features: int, width: int
) -> None:
    shape = (2, layers, length, width)
    memory = SplitContext(
        torch.randn(2, features),
        torch.randn(2, state),
        torch.randn(shape),
        torch.randn(shape),
        torch.rand(2, length) < 0.5,
    )
    ctx = pack(memory)
    again = unpack(ctx, ContextSizes(features, state, layers, width))
    assert all(torch.equal(a, b) for a, b in zip(memory, again, strict=True))
    assert torch.equal(ctx[:, :features], memory.features)


def test_time_by_hand() -> None:
    """Periods 0.004 and 4: a quarter of the longest is a sine of 1."""
    found = time_features(torch.tensor([1.0, 0.001]), 4, 4e-3, 4.0)
    assert found[0] == pytest.approx([0.0, 1.0, 1.0, 0.0], abs=1e-5)
    assert found[1] == pytest.approx([1.0, np.sin(np.pi / 2000), 0.0, np.cos(np.pi / 2000)], abs=1e-6)


def test_rotary_positions_are_llamas() -> None:
    """With the base of 10,000; the scores depend on distances alone."""
    model = LlamaModel(LlamaConfig(hidden_size=32, num_attention_heads=4, num_hidden_layers=1, vocab_size=8))
    place = torch.tensor([[0, 1, 2, 7], [3, 4, 5, 9]])
    cos, sin = model.rotary_emb(torch.zeros(2, 4, 32), place)
    ours = rotations(place, 8, torch.float32)
    assert torch.allclose(ours[0][:, 0], cos[..., :4], atol=1e-6) and torch.allclose(ours[1][:, 0], sin[..., :4])
    q, k = torch.randn(2, 1, 3, 4, 8, dtype=torch.float64)
    at = torch.arange(4)[None]
    near, far = (rotations(at + by, 8, torch.float64) for by in (0, 11))
    scores = [rotate(q, r) @ rotate(k, r).transpose(-1, -2) for r in (near, far)]
    assert torch.allclose(*scores, atol=1e-5)


def test_the_experts_mlp_has_the_published_width() -> None:
    assert (expert_mlp(720), expert_mlp(480), expert_mlp(960)) == (2048, 1280, 2560)


# published sizes


def published(name: str) -> dict[str, tuple[int, ...]]:
    out: dict[str, tuple[int, ...]] = {}
    for line in (DATA / f"{name}_tensors.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        key, *shape = line.split()
        run = re.search(r"\[0-(\d+)\]", key)
        for i in range(int(run[1]) + 1) if run else [0]:
            out[re.sub(r"\[.*\]", str(i), key)] = tuple(map(int, shape))
    return out


def test_smolvla_at_full_size_has_lerobots_names_and_shapes() -> None:
    with torch.device("meta"):
        net = SmolVla(SmolVlaCfg())
    assert {name: tuple(x.shape) for name, x in net.state_dict().items()} == published("smolvla")
    assert sum(x.numel() for x in net.parameters()) == 450_046_176


# networks


def toy(network: str) -> Any:
    torch.manual_seed(0)
    shared: dict[str, Any] = {
        "width": 32,
        "layers": 4,
        "heads": 4,
        "kv_heads": 2,
        "head_width": 8,
        "mlp": 48,
        "vocabulary": 40,
        "vision_width": 24,
        "vision_layers": 2,
        "vision_heads": 2,
        "vision_mlp": 48,
        "patch": 8,
        "image": 32,
        "state": 3,
        "action": 5,
    }
    net: Any
    if network == "smolvla":
        net = SmolVla(SmolVlaCfg(**shared, shuffle=2))
    else:
        net = Pi0(Pi0Cfg(**shared, expert_width=24, expert_mlp=40, chunk=6))
    net = net.double().eval()
    for parameter in net.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return net


def shown(batch: int = 3) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    pictures = torch.randint(0, 256, (2, batch, 32, 32, 3), dtype=torch.uint8, generator=generator)
    ids = torch.randint(0, 39, (batch, 5), generator=generator)
    token_mask = torch.ones(batch, 5, dtype=torch.bool)
    state, noise = (torch.randn(batch, *x, generator=generator, dtype=torch.float64) for x in ((3,), (6, 5)))
    return pictures, ids, token_mask, state, noise


def said(
    net: Any, pictures: Any, ids: Tensor, token_mask: Tensor, state: Tensor, noise: Tensor, steps: int = 3
) -> Tensor:
    tokens = [None if x is None else net.encode_images(x) for x in pictures]
    memory = unpack(pack(net.encode_context(tokens, ids, token_mask, state)), net.sizes)
    x = noise
    for k in range(steps):
        x = x + net.velocity(memory, x, torch.full((len(x),), k / steps, dtype=x.dtype)) / steps
    return x


@torch.no_grad()
def test_pi0_says_what_transformers_says() -> None:
    """Whose sampler sees placeholders among the words, and runs time from 1 to 0."""
    net = toy("pi0")
    pictures, ids, token_mask, state, noise = shown()
    token_mask[1, 3:] = False
    slots = torch.full((3, 2 * 16), net.cfg.vocabulary - 1)
    expected = net.net.sample_actions(
        state=state,
        input_ids=torch.cat([slots, ids], dim=1),
        pixel_values=(pictures.permute(1, 0, 4, 2, 3).double() / 127.5 - 1),
        noise=noise,
        attention_mask=torch.cat([torch.ones_like(slots), token_mask.long()], dim=1),
        pixel_attention_mask=torch.ones(3, 2, dtype=torch.bool),
        num_steps=3,
    )
    # their time is of single precision
    assert torch.allclose(said(net, list(pictures), ids, token_mask, state, noise), expected, atol=1e-5)
    assert expected.abs().max() > 0.5


@torch.no_grad()
@pytest.mark.parametrize("network", NETWORKS)
def test_gaps_and_missing_cameras_change_nothing(network: str) -> None:
    """A row says the same beside longer prompts, wherever its gaps are; a missing camera is as if it had no tokens."""
    net = toy(network)
    pictures, ids, token_mask, state, noise = shown()
    alone = said(net, [pictures[0]], ids[:, :3], token_mask[:, :3], state, noise)
    gap = torch.tensor([True, False, True, True, False]).expand(3, -1)
    spread = ids.clone()
    spread[:, [0, 2, 3]] = ids[:, :3]
    assert torch.allclose(said(net, [pictures[0]], spread, gap, state, noise), alone, atol=1e-9)
    assert torch.allclose(said(net, [pictures[0], None], ids[:, :3], token_mask[:, :3], state, noise), alone, atol=1e-9)
    one = [x[1:2] for x in (pictures[0], ids[:, :3], token_mask[:, :3], state, noise)]
    assert torch.allclose(said(net, [one[0]], *one[1:]), alone[1:2], atol=1e-9)
    assert not torch.allclose(said(net, [pictures[1]], ids[:, :3], token_mask[:, :3], state, noise), alone, atol=1e-3)
    swapped = [said(net, x, ids, token_mask, state, noise) for x in ([*pictures], [*pictures][::-1])]
    assert not torch.allclose(*swapped, atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("network", NETWORKS)
def test_everything_that_is_shown_counts(network: str) -> None:
    net = toy(network)
    pictures, ids, token_mask, state, noise = shown()
    before = said(net, [*pictures], ids, token_mask, state, noise)
    state[0] += 0.3
    ids[1, 2] = (ids[1, 2] + 1) % 39
    noise[2, 3] += 0.3
    after = said(net, [*pictures], ids, token_mask, state, noise)
    assert all(not torch.allclose(before[row], after[row], atol=1e-4) for row in range(3))
    # SmolVLA's actions see those before them, pi0's all of a chunk
    same = torch.allclose(before[2, :3], after[2, :3], atol=1e-12)
    assert same == (network == "smolvla")


@pytest.mark.parametrize(
    ("cfg", "words"),
    [
        (SmolVlaCfg(image=30), "whole patches"),
        (SmolVlaCfg(heads=4, kv_heads=3), "whole groups"),
        (SmolVlaCfg(image=48, shuffle=2), "whole tokens"),
        (Pi0Cfg(image=30), "whole patches"),
        (Pi0Cfg(expert_width=31), "even width"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(cfg: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SmolVla(cfg) if isinstance(cfg, SmolVlaCfg) else Pi0(cfg)


# policies


@pytest.mark.parametrize("network", NETWORKS)
def test_a_policy_that_sees_reads_and_flows(network: Any) -> None:
    policy, obs = policy_on(network), observed()
    assert isinstance(policy, Policy) and isinstance(policy, HasChain) and isinstance(policy, HasDecode)
    assert policy.noise_shape == (2, 5) and policy.denoising_steps == 3
    noise = torch.randn(SEEN, 2, 5)
    with torch.no_grad():
        ctx = policy.encode(obs)
        assert torch.equal(policy.decode(ctx, noise), chain.integrate(policy, ctx, noise))
        chunk = policy.deploy(obs, noise).actions
    assert chunk.shape == (SEEN, 2, 5) and torch.isfinite(chunk).all()
    picture = next(key for key, spec in policy.observation_spec.items() if spec.dtype == "uint8")
    changed = {**obs, picture: obs[picture].clone(), "instruction": obs["instruction"].clone()}
    changed[picture][0] = 255 - changed[picture][0]
    changed["instruction"][1] = torch.from_numpy(encode("slide the green can forward"))
    with torch.no_grad():
        other = policy.deploy(changed, noise).normalized_action
        before = policy.deploy(obs, noise).normalized_action
    moved = (other - before).abs().amax((1, 2))
    assert (moved[:2] > 1e-4).all() and (moved[2:] < 1e-6).all()


@pytest.mark.parametrize("network", NETWORKS)
def test_it_is_stored_and_loaded(network: Any) -> None:
    policy = policy_on(network)
    noise = torch.randn(SEEN, 2, 5)
    again = policy_from_tree(policy_tree(policy), "here")
    assert again.to_json() == policy.to_json()
    obs = observed()
    with torch.no_grad():
        assert torch.equal(again.deploy(obs, noise).actions, policy.deploy(obs, noise).actions)


@pytest.mark.parametrize("network", NETWORKS)
def test_it_leaves_as_a_bundle(network: Any, tmp_path: Path) -> None:
    policy = policy_on(network, denoising_steps=2)
    policy.control_dt_s = tabletop().control_dt_s
    obs = observed()
    recorded = {key: obs[key].repeat(171, *[1] * (obs[key].ndim - 1)).numpy() for key in policy.observation_spec}
    report = export(policy, tmp_path / "bundle", observations=recorded)
    assert report.parity_max_rel <= 1e-5 and report.samples >= 1000
    first = {key: value[0] for key, value in recorded.items()}
    a = Controller.load(tmp_path / "bundle").step(first).copy()
    b = Controller.load(tmp_path / "bundle").step({**first, "instruction": encode("slide the green can forward")})
    assert a.shape == (5,) and not np.allclose(a, b)


@pytest.mark.parametrize("network", NETWORKS)
def test_cloning_fits_a_batch(network: Any) -> None:
    policy, obs = policy_on(network), observed()
    loss = clone_loss_of(policy)
    target = torch.rand(SEEN, 2, 5) - 0.5
    noise, t = torch.randn(8 * SEEN, 2, 5), torch.rand(8 * SEEN)
    every = {key: value.repeat(8, *[1] * (value.ndim - 1)) for key, value in obs.items()}
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    losses = []
    for _ in range(120):
        ctx = policy.encode(every)
        valid = torch.ones(len(t), 2, dtype=torch.bool)
        out = loss.loss(policy, ctx, target.repeat(8, 1, 1), valid, noise=noise, t=t)
        optimizer.zero_grad()
        out.backward()
        optimizer.step()
        losses.append(float(out.detach()))
    assert losses[-1] < 0.25 * losses[0]


def test_what_does_not_fit_is_refused() -> None:
    with raises_naming(ConfigError, "policy.network", "pi1", nearest="pi0"):
        policy_on("pi1")
    with raises_naming(ConfigError, "policy.trained", "head"):
        policy_on("pi0", trained="head")
    with raises_naming(ConfigError, "policy.camera", "top"):
        policy_on("smolvla", cameras=("top",))
    bare = robotrl.make_sim("mujoco/tabletop", num_envs=1, seed=0)
    with pytest.raises(CapabilityError, match="needs a picture"):
        FlowVlaCfg().build(visible(bare), bare.action_spec, TransformGroup())


# fine-tuning

SETTINGS: dict[str, Any] = {
    "env_steps": 8 * 8 * 2,
    "num_steps": 8,
    "epochs": 2,
    "minibatch": 16,
    "critic_warmup_env_steps": 0,
    "critic_hidden": (16,),
    "engine": "eager",
}
METHODS: dict[str, Any] = {
    "reinflow": ReinFlowCfg(**SETTINGS),
    "flow-sde": FlowSdeCfg(**SETTINGS),
    "flow-noise": FlowNoiseCfg(**SETTINGS),
}


def setup(policy: Any, policy_cfg: Any = None) -> Setup:
    sim = functools.partial(
        robotrl.make_sim, "mujoco/tabletop", num_envs=8, seed=0, image="flat_near", image_size=32, families="point"
    )
    return Setup(sim, policy_cfg, policy, None, 0)


@pytest.mark.parametrize("trained", ["all", "expert"])
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("method", list(METHODS))
def test_policy_gradient_works_as_it_is(method: str, network: Any, trained: Any) -> None:
    """The first ratio is 1; what is frozen stays, what is trained moves."""
    learner = METHODS[method].build(setup(policy_on(network, trained=trained)))
    tuned = learner.loss.policy
    before = {name: x.clone() for name, x in tuned.state_dict().items()}
    scalars = learner.iterate()
    assert scalars["ratio_error"] <= 1e-5 and scalars["actor_updates"] > 1
    moved = {name for name, x in tuned.state_dict().items() if not torch.equal(x, before[name])}
    trunk = {name for name in before if ".vlm." in name and "lm_head" not in name}
    assert any("action_out_proj" in name for name in moved)
    assert bool(moved & trunk) == (trained == "all")


@pytest.mark.parametrize("network", NETWORKS)
def test_noise_steering_works_as_it_is(network: Any) -> None:
    policy = policy_on(network)
    cfg = DsrlCfg(
        env_steps=512,
        num_steps=8,
        warmup=64,
        batch=16,
        critic_hidden=(16,),
        capacity=256,
        engine="eager",
    )
    learner = cfg.build(setup(policy, SteeredCfg(hidden=(16,))))
    base = {name: x.clone() for name, x in policy.state_dict().items()}
    for _ in range(2):
        scalars = learner.iterate()
    assert np.isfinite(list(scalars.values())).all() and "critic_loss" in scalars
    assert all(torch.equal(x, base[name]) for name, x in policy.state_dict().items())


class Longer(FlowVlaPolicy):
    """Two more actions than are executed, three more numbers each."""

    @property
    def chunk(self) -> int:
        return 4

    def padded(self) -> tuple[int, int]:
        return self.state_width, 8


def longer() -> Any:
    """A policy that says a longer and wider chunk than is executed, as pretrained ones do."""
    torch.manual_seed(0)
    plain = policy_on("smolvla")
    return Longer(plain.observation_spec, plain.action_spec, plain.transforms, plain.cfg).eval()


def test_what_is_not_executed_has_no_part_in_the_ratio() -> None:
    policy = longer()
    assert policy.noise_shape == (4, 8)
    obs = observed()
    assert policy.act(obs).chunk.shape == (SEEN, 2, 5)
    drawn = draw_chain(policy, chain.flow_sde(0.5), obs, torch.Generator().manual_seed(0))
    assert drawn.chain.x.shape == (SEEN, 4, 4, 8) and drawn.chain.log_prob.shape == (SEEN, 3, 2, 5)
    for cfg in METHODS.values():
        scalars = replace(cfg, epochs=1).build(setup(policy)).iterate()
        assert scalars["ratio_error"] <= 1e-5
    steered = SteeredCfg(hidden=(16,)).build(policy)
    assert steered.noise_shape == (4, 8) and steered.act(obs).chunk.shape == (SEEN, 2, 5)
