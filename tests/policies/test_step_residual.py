"""The residual of each env step: the base's chunk is held, each action is corrected, and the bundle does the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tests.kits.learner_kit as kit
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.export import export, parity_of
from robotrl.deploy.noise import CounterNoise
from robotrl.deploy.runtime import Controller
from robotrl.errors import CapabilityError, ConfigError
from robotrl.policies.base import Deployed
from robotrl.policies.step_residual import StepResidualCfg, StepResidualPolicy
from robotrl.rollout.candidates import CandidateActor
from robotrl.rollout.evaluate import evaluate
from robotrl.run.policy_checkpoint import policy_from_tree, policy_tree
from robotrl.spec import Spec
from robotrl.transforms import Clip, TransformGroup, inverse, normalize
from tests.kits.policy_kit import make_policy, observations
from tests.kits.refusals import raises_naming
from tests.kits.walk_sim import Walk

CFG = StepResidualCfg(hidden=(16,))


def step_policy(base: Any, moved: bool = False, **changes: Any) -> StepResidualPolicy:
    torch.manual_seed(1)
    policy = replace(CFG, **changes).build(base)
    if moved:
        nn.init.normal_(policy.residual.net.layers[-1].weight)
    return policy


class Ramp(nn.Module):
    """A base whose chunk of 3 begins at its observation x, and rises: x, x + 0.1, x + 0.2."""

    kind, deploy_mode, noise_shape, control_dt_s = "ramp", "mean", None, 0.1
    horizon, context_width = 3, 1
    observation_spec: ClassVar = {"x": Spec((1,), ("x",), ("1",), (-1.0,), (1.0,))}
    action_spec = Spec((1,), ("a",), ("1",), (-1.0,), (1.0,))
    transforms = TransformGroup((), ())

    def encode(self, obs: dict[str, Tensor]) -> Tensor:
        return obs["x"]

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> Deployed:
        chunk = obs["x"][:, None] + torch.tensor([0.0, 0.1, 0.2])[:, None]
        return Deployed(chunk, chunk)

    def to_actions(self, normalized_action: Tensor) -> Tensor:
        return normalized_action

    def to_json(self) -> dict[str, Any]:
        return {}


class Quarter(nn.Module):
    """A residual of a quarter of the context."""

    def forward(self, ctx: Tensor, base: Tensor) -> Tensor:
        return 0.25 * ctx


def test_a_chunk_is_held_and_each_action_is_corrected_by_the_step_s_own_observation() -> None:
    policy = step_policy(Ramp())
    policy.residual = Quarter()
    seen = [[0.4, -0.8], [0.0, 0.8], [0.4, 0.4], [0.8, 0.0]]
    # the base of 0.4 is held for three steps, and 0.8 begins the next chunk; 0.8 + 0.2 is the bound
    wanted = [[0.4 + 0.1, -0.8 - 0.2], [0.5 + 0.0, -0.7 + 0.2], [0.6 + 0.1, -0.6 + 0.1], [0.8 + 0.2, 0.0 + 0.0]]
    left = [[0.5, -0.7], [0.6, -0.6], [None, None], [0.9, 0.1]]
    state = None
    for x, action, held in zip(seen, wanted, left, strict=True):
        chunk, state = policy.act({"x": torch.tensor(x)[:, None]}, state)
        assert chunk.shape == (2, 1, 1) and chunk.flatten().tolist() == pytest.approx(action)
        found = policy.left(state).flatten()
        assert found.isnan().tolist() == [h is None for h in held]
        assert held[0] is None or found.tolist() == pytest.approx(held)
    # an episode that begins among others asks for itself alone: row 0 holds 0.9, row 1 begins
    state[1] = 0
    chunk, state = policy.act({"x": torch.tensor([[0.0], [0.5]])}, state)
    assert chunk.flatten().tolist() == pytest.approx([0.9, 0.5 + 0.125])
    assert policy.left(state).flatten().tolist() == pytest.approx([1.0, 0.6])


@pytest.mark.parametrize("base", ["flow", "diffusion", "gaussian", "beta", "best-of", "flow-one-step"])
@torch.no_grad()
def test_it_begins_as_its_base_bit_for_bit(base: str) -> None:
    policy, draw = step_policy(make_policy(base)), torch.Generator().manual_seed(3)
    memory, wanted = policy.initial_memory(9), None
    for step in range(2 * policy.held_steps + 1):
        obs = observations(9, seed=step)
        noise = None if policy.noise_shape is None else torch.randn((9, *policy.noise_shape), generator=draw)
        if step % policy.held_steps == 0:
            wanted = policy.base.deploy(obs, noise).actions
        out = policy.deploy_from(obs, memory, noise)
        assert torch.equal(out.actions[:, 0], wanted[:, step % policy.held_steps])
        memory = out.memory


@torch.no_grad()
def test_the_memory_holds_actions_exactly_and_within_one() -> None:
    torch.manual_seed(0)
    # in these units the bounds of an action are 3.2 and -4.8, and no round number
    outputs = inverse(normalize("action", [0.2], [0.25])), Clip("action", (-1.0,), (1.0,))
    base = kit.FLOW.build(kit.SPECS, kit.ACTION, TransformGroup(kit.TRANSFORMS.inputs, outputs))
    policy = step_policy(base)
    assert policy.unit.tolist() == [8.0]
    obs, noise = {"walk": torch.randn(50, 2)}, 20 * torch.randn(50, 2, 1)
    chunk = policy.first_actions(obs, noise)
    step = policy.step(obs, policy.initial_memory(50), chunk)
    assert float(chunk.abs().max()) > 3 and float(step.memory.abs().max()) <= 1
    assert torch.equal(policy.left(step.memory), chunk[:, 1])


@torch.no_grad()
def test_a_correction_is_at_most_the_scale_and_the_sum_is_clipped() -> None:
    policy = step_policy(make_policy("flow"), moved=True, scale=0.25)
    obs, noise = observations(9), torch.randn(9, 3, 2, generator=torch.Generator().manual_seed(3))
    ctx = policy.encode(obs)
    chunk = policy.first_actions(obs, noise)
    step = policy.step(obs, policy.initial_memory(9), chunk)
    read = torch.cat([ctx, chunk[:, 0]], 1)
    assert torch.equal(step.base, chunk[:, 0])
    assert torch.allclose(step.change, 0.25 * policy.residual.net(read).tanh())
    assert 0.01 < float(step.change.abs().max()) <= 0.25
    found = policy.deploy(obs, noise)
    assert torch.equal(found.normalized_action[:, 0], (step.base + step.change).clamp(-1, 1))
    assert torch.equal(policy.corrected(torch.full((1, 2), 0.9), torch.full((1, 2), 0.25)), torch.ones(1, 2))


def test_only_the_residual_is_trained_and_a_checkpoint_keeps_it() -> None:
    policy = step_policy(make_policy("flow"), moved=True)
    assert {name.split(".")[0] for name, x in policy.named_parameters() if x.requires_grad} == {"residual"}
    again = policy_from_tree(policy_tree(policy), "checkpoint")
    assert isinstance(again, StepResidualPolicy) and again.cfg == policy.cfg
    act = [one.act(observations(4), None, torch.Generator().manual_seed(0)) for one in (policy, again)]
    assert torch.equal(act[0].chunk, act[1].chunk) and torch.equal(act[0].state, act[1].state)


def test_an_evaluation_holds_the_chunk_of_each_env_whatever_their_number() -> None:
    policy = step_policy(kit.gaussian())
    found = [evaluate(one, Walk(envs), episodes=20) for one in (policy, policy.base) for envs in (1, 7)]
    for other in found[1:]:
        # the Gaussian is deployed by its mean, so that a residual of 0 is the base to the last bit
        assert np.array_equal(other.returns, found[0].returns)


def test_the_bundle_carries_the_chunk_from_tick_to_tick(tmp_path: Any) -> None:
    policy = step_policy(kit.flow(), moved=True, scale=0.5)
    policy.control_dt_s = 0.1
    draw = np.random.default_rng(0)
    recorded = {"walk": draw.uniform(-2, 2, (1100, 2)).astype(np.float32)}
    report = export(policy, tmp_path / "step", observations=recorded)
    assert report.parity_max_rel <= 1e-5
    bundle = open_bundle(tmp_path / "step")
    manifest = bundle.manifest
    (state,) = manifest.states
    assert (state.shape, manifest.timing.execute, manifest.sampler.noise_shape) == ((4,), 1, (2, 1))
    fresh = {"walk": draw.uniform(-2, 2, (60, 2)).astype(np.float32)}
    assert parity_of(policy, bundle, fresh).max_rel <= 1e-5
    controller, noise = Controller.load(tmp_path / "step"), CounterNoise((2, 1), 0)
    first, decision = list[float](), 0
    for episode in range(2):
        controller.reset()
        memory = policy.initial_memory(1)
        for step in range(5):
            rows = recorded["walk"][step + 10 * episode]
            with torch.no_grad():
                given = torch.from_numpy(noise.draw(decision))[None]
                out = policy.deploy_from({"walk": torch.from_numpy(rows)[None]}, memory, given)
            decision, memory = decision + 1, out.memory
            assert controller.step({"walk": rows}) == pytest.approx(out.actions[0, 0].numpy(), abs=1e-5)
            first.append(float(out.actions[0, 0, 0]))
    assert len(set(first)) > 5
    with torch.no_grad():
        policy.residual.net.layers[-1].weight.neg_()
    assert parity_of(policy, bundle, fresh).max_rel > 1e-3


def test_what_cannot_be_held_is_refused() -> None:
    for name, why in (
        ("recurrent", "lacks encode"),
        ("categorical", "chooses action 'gear'"),
        ("step-residual", "has a memory"),
    ):
        with pytest.raises(CapabilityError, match=why):
            CFG.build(make_policy(name))
    with raises_naming(ConfigError, "policy.scale", 0.0, 0):
        step_policy(make_policy("flow"), scale=0.0)
    policy = step_policy(kit.flow())
    with pytest.raises(ValueError, match="noise is None"):
        policy.deploy({"walk": torch.zeros(1, 2)}, None)
    with pytest.raises(CapabilityError, match="has a memory"):
        CandidateActor(policy, 1, torch.device("cpu"), 0, 2)
