"""The categorical policy: exact densities, refusals of what it is not for, and PPO that learns with it."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.distributions import Categorical

import tests.kits.learner_kit as kit
from robotrl.errors import CapabilityError, ConfigError, DataError, NumericsError
from robotrl.fn.bc_loss import clone_loss_of
from robotrl.fn.density import CategoricalDensity
from robotrl.learners.learner import Setup
from robotrl.memory_estimate.estimate import Load, estimate_memory, on_meta_device
from robotrl.policies.beta import BetaPolicy
from robotrl.policies.by_action import ByActionCfg
from robotrl.policies.categorical import CategoricalCfg, CategoricalPolicy
from robotrl.policies.gaussian import GaussianPolicy
from robotrl.rollout.compatibility import check_fit
from robotrl.run.policy_checkpoint import policy_from_tree, policy_tree
from robotrl.spec import Spec, Step
from robotrl.transforms import TransformGroup
from tests.kits.policy_kit import ACTION_SPEC, CHOICE_SPEC, OBSERVATION_SPEC, TRANSFORMS, make_policy, observations
from tests.kits.walk_sim import Walk

INPUTS = TransformGroup(TRANSFORMS.inputs)
STEPS = torch.tensor([-1.0, 0.0, 1.0])


class ChoosingWalk(Walk):
    """The walk by three choices: a step back, none, a step on."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.action_spec = Spec((1,), ("direction",), ("1",), (0.0,), (2.0,), choices=(3,))

    def step(self, actions: torch.Tensor) -> Step:
        return super().step(STEPS[actions.long()])


@example(choices=(2, 2), spread=2.220446049250313e-16, seed=0)
@settings(max_examples=60, deadline=None)
@given(
    choices=st.lists(st.integers(2, 5), min_size=1, max_size=4).map(tuple),
    spread=st.floats(0.0, 30.0),
    seed=st.integers(0, 2**16),
)
def test_densities_and_entropies_are_those_of_torch(choices, spread, seed):
    draw = torch.Generator().manual_seed(seed)
    scores = spread * torch.randn((7, 2, sum(choices)), generator=draw, dtype=torch.float64)
    scores.requires_grad_()
    density = CategoricalDensity.of_scores(scores, choices)
    raw = density.sample(draw)
    parts = [Categorical(logits=part) for part in scores.split(list(choices), dim=-1)]
    expected = torch.stack([p.log_prob(raw[..., i]) for i, p in enumerate(parts)], dim=-1)
    torch.testing.assert_close(density.log_prob(raw), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(density.entropy(), torch.stack([p.entropy() for p in parts], -1), rtol=1e-9, atol=1e-12)
    # torch compares rounded probabilities: where scores differ by a rounding error, its mode may be another one
    scored = scores.split(list(choices), dim=-1)
    of_mode = [part.gather(-1, density.mode[..., i : i + 1].long()) for i, part in enumerate(scored)]
    torch.testing.assert_close(
        torch.cat(of_mode, -1), torch.stack([part.amax(-1) for part in scored], -1), rtol=1e-12, atol=1e-12
    )
    assert ((raw >= 0) & (raw < torch.tensor(choices)) & (raw == raw.round())).all()
    total = sum(
        density.log_prob(torch.full_like(raw, k))[..., i].exp() for i, n in enumerate(choices) for k in range(n)
    )
    torch.testing.assert_close(total, torch.full_like(total, len(choices)))
    (density.log_prob(raw).sum() + density.entropy().sum()).backward()
    assert scores.grad is not None and torch.isfinite(scores.grad).all()


def test_what_is_no_choice_has_no_probability():
    density = CategoricalDensity.of_scores(torch.zeros(1, 1, 6), (4, 2))
    for raw in ([0.5, 0.0], [-1.0, 0.0], [4.0, 0.0], [0.0, 2.0], [0.0, math.nan]):
        assert density.log_prob(torch.tensor([[raw]])).sum() == -math.inf


def test_draws_are_as_frequent_as_they_say_and_seeded():
    scores = torch.tensor([[[1.0, 0.0, -1.0, 2.0, 0.3, -0.3]]]).expand(40_000, 1, 6)
    density = CategoricalDensity.of_scores(scores, (4, 2))
    raw = density.sample(torch.Generator().manual_seed(0))
    assert torch.equal(raw, density.sample(torch.Generator().manual_seed(0)))
    for element, count in enumerate((4, 2)):
        share = torch.bincount(raw[:, 0, element].long(), minlength=count) / len(raw)
        assert torch.allclose(share, density.log_probs[0, 0, element, :count].exp(), atol=0.01)
    assert torch.allclose(raw.std(0), density.std[0], atol=0.02)


def test_scores_that_are_no_numbers_become_no_choice():
    policy = make_policy("categorical")
    with torch.no_grad():
        policy.net.layers[-1].bias[1] = math.nan
    assert policy.deploy(observations(3), None).actions[..., 0].isnan().any()
    with pytest.raises(NumericsError, match="probabilities are not finite"):
        policy.act(observations(3), None, torch.Generator().manual_seed(0))
    with pytest.raises(NumericsError, match="not finite"):
        policy_tree(policy)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
@torch.no_grad()
def test_the_ratio_is_one_on_the_sample(dtype, tolerance):
    policy = make_policy("categorical").to(dtype)
    obs = {key: value.to(dtype) for key, value in observations(64).items()}
    raw, claimed = policy.draw(obs, torch.Generator().manual_seed(1))
    assert raw.shape == claimed.shape == (64, 3, 2)
    assert ((policy.log_prob(obs, raw) - claimed).exp() - 1).abs().max() <= tolerance
    assert torch.equal(policy.to_actions(raw), raw)


@torch.no_grad()
def test_a_fresh_policy_prefers_next_to_nothing():
    density = make_policy("categorical").density(make_policy("categorical").encode(observations(64)))
    assert (density.entropy() > 0.98 * torch.tensor([math.log(4), math.log(2)])).all()


def build(cfg: Any, spec: Spec, outputs: bool = False) -> Any:
    return cfg.build(OBSERVATION_SPEC, spec, TRANSFORMS if outputs else INPUTS)


def test_the_kind_follows_from_the_action_unless_it_is_named():
    assert type(build(ByActionCfg(), CHOICE_SPEC)) is CategoricalPolicy
    gaussian = build(ByActionCfg(), ACTION_SPEC, outputs=True)
    assert type(gaussian) is GaussianPolicy
    assert gaussian.cfg.initial_std == 0.6
    assert type(build(ByActionCfg(kind="beta"), ACTION_SPEC, outputs=True)) is BetaPolicy
    assert build(ByActionCfg(initial_std=0.3), ACTION_SPEC, outputs=True).cfg.initial_std == 0.3


@pytest.mark.parametrize(
    ("cfg", "spec", "error", "says"),
    [
        (ByActionCfg(kind="gaussian"), CHOICE_SPEC, CapabilityError, "GaussianPolicy .*'gear' is a choice of 4"),
        (ByActionCfg(kind="beta"), CHOICE_SPEC, CapabilityError, "BetaPolicy .* expected CategoricalPolicy"),
        (kit.FLOW, CHOICE_SPEC, CapabilityError, "FlowPolicy gives numbers"),
        (kit.DIFFUSION, CHOICE_SPEC, CapabilityError, "DiffusionPolicy gives numbers"),
        (ByActionCfg(kind="categorical"), ACTION_SPEC, CapabilityError, "'push' is a number from -2 to 6"),
        (ByActionCfg(initial_std=0.3), CHOICE_SPEC, ConfigError, "policy.initial_std is 0.3: expected none"),
        (ByActionCfg(kind="beta", initial_std=0.3), ACTION_SPEC, ConfigError, "the policy is beta"),
        (ByActionCfg(kind="categorial"), CHOICE_SPEC, ConfigError, "did you mean 'categorical'"),  # type: ignore[arg-type]
    ],
)
def test_policies_for_other_actions_are_refused_by_name(cfg, spec, error, says):
    with pytest.raises(error, match=says):
        build(cfg, spec, outputs=spec is ACTION_SPEC)


def test_nothing_stands_between_a_choice_and_the_action():
    with pytest.raises(ConfigError, match=r"transforms.outputs holds 2 of them: expected none"):
        build(CategoricalCfg(), CHOICE_SPEC, outputs=True)
    with pytest.raises(CapabilityError, match=r"CategoricalPolicy has neither .* cannot be cloned"):
        clone_loss_of(make_policy("categorical"))


def test_a_stored_policy_comes_back_and_others_are_refused():
    policy = make_policy("categorical")
    policy.control_dt_s = 0.1
    tree = policy_tree(policy)
    assert torch.equal(policy_from_tree(tree, "here").scores(torch.ones(2, 5)), policy.scores(torch.ones(2, 5)))
    # scores tell weights that were moved by little, where the choices stay
    bent = {**tree, "weights": {name: 1.01 * value for name, value in tree["weights"].items()}}
    with pytest.raises(DataError, match="fingerprint logits differ"):
        policy_from_tree(bent, "here")
    sim = ChoosingWalk(2)
    one = CategoricalCfg().build(
        sim.observation_spec, replace(sim.action_spec, high=(3.0,), choices=(4,)), TransformGroup()
    )
    with pytest.raises(ConfigError, match=r"actions of high \(3.0,\): sim ChoosingWalk has \(2.0,\)"):
        check_fit(one, sim)


def choosing(policy_cfg: Any = None, num_envs: int = 32) -> Setup:
    return Setup(lambda: ChoosingWalk(num_envs), policy_cfg or ByActionCfg(hidden=(32, 32)), None, None, 0)


def test_ppo_learns_to_choose_and_its_first_ratio_is_one():
    cfg = replace(kit.PPO, env_steps=12 * 32 * 16, critic_warmup_env_steps=0, lr=3e-3, target_kl=None)
    learner = cfg.build(choosing())
    rows = [learner.iterate() for _ in range(learner.iterations)]
    assert rows[0]["ratio_error"] < 1e-6
    assert rows[0]["entropy"] == pytest.approx(math.log(3), abs=0.02)
    # what is farther on earns more, the goal ends it
    assert rows[-1]["rollout_return"] > rows[0]["rollout_return"] + 2
    obs = {"walk": torch.tensor([[-1.0, 1.0], [0.0, 1.0]])}
    assert learner.policy.deploy(obs, None).actions.flatten().tolist() == [2.0, 2.0]


def test_ppo_goes_on_exactly_where_it_stopped():
    cfg = replace(kit.PPO, critic_warmup_env_steps=0)
    whole, first = cfg.build(choosing()), cfg.build(choosing())
    for _ in range(4):
        whole.iterate()
    for _ in range(2):
        first.iterate()
    second = cfg.build(choosing())
    second.load(kit.snapshot(first.state()))
    for _ in range(2):
        second.iterate()
    assert kit.same(whole.state()["policy"], second.state()["policy"])


def test_memory_is_estimated():
    with on_meta_device():
        policy = CategoricalCfg(hidden=(64, 64)).build(OBSERVATION_SPEC, CHOICE_SPEC, INPUTS)
        found = estimate_memory(policy, Load(256), policy.observation_spec)
    assert found.parameters == sum(p.numel() for p in policy.parameters())
    assert found.update > 256 * (5 + 64 + 64 + 6) * np.dtype(np.float32).itemsize
