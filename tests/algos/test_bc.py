"""Behaviour cloning of demonstrations whose action is known: -0.4 x."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from robotrl.algos.bc import BcCfg
from robotrl.datasets.normalization import transforms_for
from robotrl.datasets.reader import read_dataset
from robotrl.errors import CapabilityError, ConfigError, NumericsError
from robotrl.fn.bc_loss import flow_matching_loss
from robotrl.fn.schedule import cosine
from robotrl.policies.diffusion import DiffusionCfg
from robotrl.policies.shortcut import ShortcutCfg
from robotrl.transforms import numpy_backend
from tests.kits.learner_kit import ACTION, FLOW, GAUSSIAN, SPECS, flow, gaussian, same, setup, snapshot, write_walks
from tests.kits.refusals import raises_naming

CFGS = (
    FLOW,
    GAUSSIAN,
    DiffusionCfg(horizon=2, denoising_steps=5, hidden=(32, 32)),
    ShortcutCfg(horizon=2, denoising_steps=2, hidden=(32, 32)),
)
"""One for each way to clone."""
CFG = BcCfg(updates=300, updates_per_iteration=100, batch=64, lr=3e-3)


@pytest.fixture(scope="module")
def walks(tmp_path_factory):
    return write_walks(tmp_path_factory.mktemp("walks") / "d")


@pytest.mark.parametrize("policy_cfg", CFGS, ids=lambda cfg: type(cfg).__name__)
def test_it_clones(walks, policy_cfg):
    # a shortcut policy has more to learn
    cfg = replace(CFG, updates=600) if isinstance(policy_cfg, ShortcutCfg) else CFG
    learner = cfg.build(setup(None, policy_cfg, walks))
    assert (learner.iterations, learner.env_steps) == (cfg.updates // 100, 0)
    losses = [learner.iterate()["loss"] for _ in range(learner.iterations)]
    assert losses[-1] < 0.5 * losses[0]
    x = torch.linspace(-1.2, 1.2, 50)
    obs = {"walk": torch.stack([x, torch.zeros(50)], 1)}
    with torch.no_grad():
        chunk = learner.policy.act(obs, None, torch.Generator().manual_seed(0), learner.policy.deploy_mode).chunk
    assert (chunk[:, 0, 0] + 0.4 * x).abs().mean() < 0.06
    # the second action of a chunk is that of the next step: x is then 0.6 of what it was
    assert (chunk[:, 1, 0] + 0.4 * 0.6 * x).abs().mean() < 0.06


def test_normalisation_is_that_of_the_dataset(walks):
    dataset = read_dataset(walks)
    group = transforms_for(dataset, SPECS, ACTION)
    frames = np.asarray(dataset.frames("observation.walk"), np.float32)
    z = numpy_backend(group.inputs)({"walk": frames})["walk"]
    assert np.allclose(z.mean(0), 0, atol=1e-4)
    assert np.allclose(z.std(0), 1, atol=1e-3)
    out = numpy_backend(group.outputs)({"action": np.array([[-1.0], [1.0], [5.0]], np.float32)})["action"]
    assert out.ravel().tolist() == [-1, 1, 1]


def test_actions_may_go_by_what_the_robot_did(walks):
    """-1 and 1 are the 1 % and 99 % quantiles; what it never moved keeps its bounds."""
    dataset = read_dataset(walks)
    outputs = transforms_for(dataset, SPECS, ACTION, "quantiles").outputs
    low, high = (np.float32(dataset.stats["action"][name]) for name in ("q01", "q99"))
    assert -1 < low[0] < high[0] < 1
    out = numpy_backend(outputs)({"action": np.array([[-1.0], [1.0], [0.0], [9.0]], np.float32)})["action"]
    assert out.ravel() == pytest.approx([low[0], high[0], (low[0] + high[0]) / 2, 1.0], abs=1e-6)
    dataset.stats["action"] = {name: np.zeros_like(x) for name, x in dataset.stats["action"].items()}
    still = transforms_for(dataset, SPECS, ACTION, "quantiles").outputs
    assert still == transforms_for(dataset, SPECS, ACTION, "bounds").outputs
    with raises_naming(ConfigError, "algo.action_range", "quantile", nearest="quantiles"):
        transforms_for(dataset, SPECS, ACTION, "quantile")


def test_a_clone_knows_its_range_of_actions(walks):
    learner = replace(CFG, updates=300, action_range="quantiles").build(setup(None, FLOW, walks))
    losses = [learner.iterate()["loss"] for _ in range(learner.iterations)]
    assert losses[-1] < losses[0]
    assert learner.policy.transforms == transforms_for(read_dataset(walks), SPECS, ACTION, "quantiles")
    with pytest.raises(ConfigError, match=r"algo.action_range is 'quantiles' beside --init-from: expected bounds"):
        replace(CFG, action_range="quantiles").build(setup(learner.policy, FLOW, walks))


class Straight(nn.Module):
    """A field that is right everywhere: the velocity from noise to the chunk that the context names."""

    def velocity(self, ctx, x, t, dt):
        return (ctx.reshape(x.shape) - x) / (1 - t[:, None, None])


def test_the_flow_matching_loss_of_the_right_field_is_zero():
    chunk, noise = torch.randn(8, 2, 1, dtype=torch.float64), torch.randn(8, 2, 1, dtype=torch.float64)
    t = torch.rand(8, dtype=torch.float64) * 0.9
    valid = torch.ones(8, 2, dtype=torch.bool)
    assert flow_matching_loss(Straight(), chunk, chunk, valid, noise, t) < 1e-20
    assert flow_matching_loss(Straight(), chunk + 1, chunk, valid, noise, t) > 0.1


def test_padding_beyond_an_episodes_end_changes_nothing():
    """As a target; at t > 0 the network sees the repeated last action in x, as it does on the robot."""
    policy, t = flow(), torch.zeros(8)
    ctx, chunk, noise = torch.randn(8, 2), torch.randn(8, 2, 1), torch.randn(8, 2, 1)
    valid = torch.tensor([[True, False]] * 8)
    other = chunk.clone()
    other[:, 1] = 99.0
    losses = [flow_matching_loss(policy, ctx, c, v, noise, t) for v in (valid, ~valid) for c in (chunk, other)]
    assert torch.equal(losses[0], losses[1])
    assert losses[3] > losses[2] + 100


def test_ema_weights_are_what_is_kept(walks):
    learner = CFG.build(setup(None, FLOW, walks))
    learner.iterate()
    assert not same(learner.policy.state_dict(), learner.model.state_dict())
    plain = replace(CFG, ema=0.0).build(setup(None, FLOW, walks))
    plain.iterate()
    assert plain.policy is plain.model


def test_the_average_forgets_the_random_start(walks):
    """After few updates already: the average is near the model, not near where both began."""
    learner = replace(CFG, ema=0.999, updates=60, updates_per_iteration=60).build(setup(None, FLOW, walks))
    start = snapshot(learner.policy.state_dict())
    learner.iterate()
    model, policy = learner.model.state_dict(), learner.policy.state_dict()
    weight = "net.layers.0.weight"
    assert (policy[weight] - model[weight]).norm() < 0.5 * (model[weight] - start[weight]).norm()


@pytest.mark.parametrize("policy_cfg", CFGS, ids=lambda cfg: type(cfg).__name__)
def test_it_goes_on_identically_from_a_saved_state(walks, policy_cfg):
    learner = CFG.build(setup(None, policy_cfg, walks))
    learner.iterate()
    saved = snapshot(learner.state())
    fresh = CFG.build(setup(None, policy_cfg, walks))
    fresh.load(saved)
    assert learner.iterate() == fresh.iterate()
    assert same(snapshot(learner.state()), snapshot(fresh.state()))


def test_the_last_iteration_is_cut_to_the_budget(walks):
    learner = replace(CFG, updates=130).build(setup(None, GAUSSIAN, walks))
    assert learner.iterations == 2
    assert [learner.iterate()["updates"] for _ in range(2)] == [100, 130]


def test_a_clone_can_be_cloned_further(walks):
    policy = gaussian()
    learner = replace(CFG, ema=0.0).build(setup(policy, None, walks))
    assert learner.policy is policy
    learner.iterate()


def test_the_schedule():
    found = [float(cosine(torch.tensor(progress))) for progress in (0.0, 0.5, 1.0, 2.0)]
    assert found == pytest.approx([1.0, 0.55, 0.1, 0.1])


def test_the_learning_rate_rises_to_its_curve(walks):
    """After 9 updates of warm-up the tenth is the first on the curve."""
    cfg = replace(CFG, updates=100, updates_per_iteration=1, warmup=9)
    learner = cfg.build(setup(None, FLOW, walks))
    rates = [learner.iterate()["lr"] for _ in range(11)]
    curve = [3e-3 * (0.55 + 0.45 * math.cos(math.pi * done / 100)) for done in range(11)]
    assert rates[:9] == pytest.approx([curve[done] * (done + 1) / 10 for done in range(9)], rel=1e-5)
    assert rates[9:] == pytest.approx(curve[9:], rel=1e-5)


def test_the_learning_rate_ends_where_it_is_told_to(walks):
    cfg = replace(CFG, updates=10, updates_per_iteration=1, lr_end=0.02)
    learner = cfg.build(setup(None, FLOW, walks))
    rates = [learner.iterate()["lr"] for _ in range(10)]
    assert rates == pytest.approx(
        [3e-3 * (0.51 + 0.49 * math.cos(math.pi * done / 10)) for done in range(10)], rel=1e-5
    )


def test_nan_stops_with_the_update_named(walks):
    learner = CFG.build(setup(None, FLOW, walks))
    learner.iterate()
    with torch.no_grad():
        learner.model.net.layers[0].weight[0, 0] = float("nan")
    says = "clone, from update 101, minibatch 0: loss is nan .*: expected finite; the last checkpoint is intact"
    with pytest.raises(NumericsError, match=says):
        learner.iterate()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("updates", 0),
        ("updates_per_iteration", 0),
        ("batch", 0),
        ("lr", 0.0),
        ("lr", float("nan")),
        ("max_grad_norm", -1.0),
        ("ema", 1.0),
        ("muon", -1.0),
        ("image_shift", -1),
        ("warmup", -1),
        ("lr_end", 1.5),
    ],
)
def test_settings_out_of_range_are_refused_by_name(walks, field, value):
    with pytest.raises(ConfigError, match=rf"algo\.{field} is {value}: expected"):
        replace(CFG, **{field: value}).build(setup(None, FLOW, walks))


def test_what_it_cannot_do_is_refused(walks):
    with pytest.raises(ConfigError, match="dataset is not given"):
        CFG.build(setup(None, FLOW))
    with pytest.raises(CapabilityError, match="Linear has neither HasTokens, HasChain nor HasMean"):
        CFG.build(setup(nn.Linear(1, 1), None, walks))
