"""Two policies in a row, as DPPO leaves them: one chain, stored and loaded as one policy, exported as one graph."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from robotrl.algos.dppo import DppoCfg
from robotrl.api.exporting import export
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.fn.chain import integrate
from robotrl.policies.diffusion import DiffusionCfg
from robotrl.policies.staged import StagedPolicy
from robotrl.registry import make_sim
from robotrl.run.directory import Run
from robotrl.run.policy_checkpoint import changed, load_policy, policy_from_tree, policy_tree
from robotrl.spec import HasChain, HasDecode, Policy
from robotrl.training import train
from robotrl.transforms import Clip, TransformGroup, bounds_to_unit, inverse
from tests.kits.policy_kit import make_policy, observations


def staged(switch: int = 1) -> StagedPolicy:
    return StagedPolicy(make_policy("flow", 0), make_policy("flow", 1), switch)


def test_it_has_what_a_generative_policy_has():
    policy = staged()
    assert isinstance(policy, Policy)
    assert isinstance(policy, HasChain)
    assert isinstance(policy, HasDecode)
    assert policy.denoising_steps == 4


@pytest.mark.parametrize("switch", [1, 2, 3])
def test_its_velocity_and_its_decoding_agree(switch):
    """And the first steps are the first policy's, the last ones the second's."""
    policy, noise = staged(switch), torch.randn(5, 3, 2)
    ctx = policy.encode(observations(5))
    with torch.no_grad():
        found = policy.decode(ctx, noise)
        assert torch.allclose(found, integrate(policy, ctx, noise), atol=1e-6)
        first, second = ctx[:, : policy.early.context_width], ctx[:, policy.early.context_width :]
        between = integrate(policy.early, first, noise, range(switch))
        assert torch.equal(found, integrate(policy.late, second, between, range(switch, 4)))
        assert not torch.allclose(found, policy.late.decode(second, noise), atol=1e-3)


def test_it_is_stored_and_loaded_with_its_rates():
    policy = staged(2)
    policy.control_dt_s = 0.05
    again = policy_from_tree(policy_tree(policy), "here")
    assert isinstance(again, StagedPolicy)
    assert (again.switch, again.control_dt_s) == (2, 0.05)
    assert again.to_json() == policy.to_json()
    noise = torch.randn(3, 3, 2)
    obs = observations(3)
    assert torch.equal(again.deploy(obs, noise).actions, policy.deploy(obs, noise).actions)


def test_it_begins_with_as_much_noise_as_the_first_has():
    early, late = changed(make_policy("flow", 0), {"deploy_noise": 0.5}), make_policy("flow", 1)
    noise, obs = torch.randn(3, 3, 2), observations(3)
    begun = StagedPolicy(early, late, 2).deploy(obs, noise)
    assert torch.equal(begun.actions, StagedPolicy(make_policy("flow", 0), late, 2).deploy(obs, 0.5 * noise).actions)


@pytest.mark.parametrize("switch", [0, 4])
def test_a_part_with_nothing_to_do_is_refused(switch):
    with pytest.raises(ValueError, match="expected 1 to K - 1"):
        staged(switch)


def test_grids_that_differ_are_refused():
    with pytest.raises(ValueError, match="on grids"):
        StagedPolicy(make_policy("flow"), make_policy("flow").with_steps(3), 1)


def test_a_run_of_dppo_on_the_last_steps_is_trained_stored_and_exported(tmp_path: Path):
    sim = make_sim("mujoco/peg-insert", num_envs=2, seed=0)
    action = sim.action_spec
    outputs = inverse(bounds_to_unit("action", action.low, action.high)), Clip("action", action.low, action.high)
    clone = DiffusionCfg(hidden=(16,)).build(sim.observation_spec, action, TransformGroup((), outputs))
    with Run.create(tmp_path / "clone", {}, seed=0, command=[]) as run:
        run.save({"policy": policy_tree(clone)}, step=0)
    algo = DppoCfg(env_steps=64, num_steps=8, minibatch=4, critic_warmup_env_steps=0, tuned_steps=2, engine="eager")
    cfg = TrainCfg(
        SimCfg("mujoco/peg-insert", 4),
        algo,
        DiffusionCfg(),
        init_from=str(tmp_path / "clone"),
        evaluation=EvalCfg(every=0, episodes=4, num_envs=4, animation=0),
    )
    train(cfg, tmp_path / "run")
    policy = load_policy(tmp_path / "run")
    assert isinstance(policy, StagedPolicy)
    assert not torch.equal(next(policy.early.parameters()), next(policy.late.parameters()))
    report = export(tmp_path / "run", tmp_path / "bundle")
    assert report.parity_max_rel < 1e-5
