"""PPO on the walk."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from robotrl.algos.ppo import PpoLoss, policy_loss
from robotrl.engine.engine import Context
from robotrl.errors import CapabilityError, ConfigError
from robotrl.learners.on_policy import make_batch, observations
from robotrl.policies.networks.value import Critic
from robotrl.policies.squashed import SquashedCfg
from robotrl.rollout.collector import Collector
from robotrl.rollout.evaluate import evaluate
from robotrl.spec import Spec
from tests.kits.learner_kit import BETA, GAUSSIAN, PPO, beta, flow, gaussian, same, setup, snapshot
from tests.kits.walk_sim import Walk

CARRY = {"actor_active": torch.tensor(1.0), "lr": torch.tensor(1e-3)}
POLICIES = pytest.mark.parametrize("make", [gaussian, beta])


def wide() -> object:
    """A Gaussian policy of which half the actions are clipped."""
    policy = gaussian()
    with torch.no_grad():
        policy.log_std.fill_(0.5)
    return policy


@pytest.mark.parametrize("make", [wide, beta])
def test_the_ratio_is_one_before_the_first_update(make):
    """Through the whole learner: what the decider stored is what the loss computes."""
    learner = replace(PPO, critic_warmup_env_steps=0).build(setup(make()))
    assert learner.iterate()["ratio_error"] <= 1e-5


@POLICIES
def test_only_decisions_begun_before_an_update_have_another_ratio(make):
    """Later iterations: the ratio is 1 but for decisions carried over from the previous rollout."""
    learner = replace(PPO, critic_warmup_env_steps=0, num_steps=5).build(setup(make()))
    for iteration in range(3):
        carried = learner._collector.state()["pending_envs"].tolist()
        rollout = learner._collector.rollout(5)
        assert bool(carried) == (iteration > 0)
        batch = make_batch(rollout, learner._value, 0.99, 0.95)
        place = torch.nonzero(rollout.valid)
        old = torch.tensor([row == 0 and env in carried for row, env in place.tolist()])
        log_prob = (
            learner.policy.log_prob({"walk": rollout.obs["walk"][rollout.valid]}, batch.record["raw"]).flatten(1).sum(1)
        )
        error = ((log_prob - batch.record["log_prob"]).exp() - 1).abs()
        assert error[~old].max() <= 1e-5
        learner.iterate()


@POLICIES
def test_zero_advantage_gives_exactly_zero_gradient(make):
    policy = make()
    obs = {"walk": torch.randn(10, 2)}
    raw = policy.draw(obs, None).normalized_action.detach()
    log_prob = policy.log_prob(obs, raw).flatten(1).sum(1).detach()
    batch = {"raw": raw, "log_prob": log_prob, "advantage": torch.zeros(10)}
    policy_loss(policy.density(policy.encode(obs)), batch, 0.2).loss.backward()
    assert all((parameter.grad == 0).all() for parameter in policy.parameters())


@POLICIES
def test_one_ratio_stands_for_a_whole_chunk(make):
    """The ratio is the product over the chunk: two elements of ratio 1.1 make 1.21."""
    policy = make()
    obs = {"walk": torch.zeros(1, 2)}
    raw = policy.mean(policy.encode(obs)).detach()
    density = policy.log_prob(obs, raw).detach()
    old = density.sum() - 2 * torch.tensor(1.1).log()
    batch = {"raw": raw, "log_prob": old[None], "advantage": torch.ones(1)}
    found = policy_loss(policy.density(policy.encode(obs)), batch, 0.5)
    assert found.loss.item() == pytest.approx(-1.21, rel=1e-5)


def batch_rows(policy, count: int = 12) -> dict[str, torch.Tensor]:
    """A minibatch as the engine hands it to the loss, from a policy that has not moved."""
    obs = torch.randn(count, 2)
    drawn = policy.draw({"walk": obs}, None)
    return {
        "obs/walk": obs,
        "raw": drawn.normalized_action.detach(),
        "log_prob": drawn.log_prob.detach().flatten(1).sum(1),
        "advantage": torch.zeros(count),
        "value_target": torch.full((count,), 3.0),
        "value": torch.zeros(count),
    }


@POLICIES
def test_the_entropy_bonus_is_that_of_a_whole_chunk(make):
    policy = make()
    critic, rows = Critic(policy.context_width, {}, ()), batch_rows(policy)
    context = Context(CARRY, {}, "")
    plain, bonus = (
        PpoLoss(policy, critic, replace(PPO, entropy_coef=coef)).forward(rows, context) for coef in (0.0, 0.1)
    )
    density = policy.density(policy.encode(observations(rows)))
    expected = density.entropy().expand(12, -1, -1).sum((1, 2)).mean()
    assert (plain.loss - bonus.loss).item() == pytest.approx(0.1 * expected.item(), rel=1e-4)
    assert bonus.info["entropy"].item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_bonus_of_a_gaussian_widens_each_deviation_alike():
    """Its slope in every log-deviation is the coefficient itself, without rounding: it is no mean over rows."""
    policy = gaussian()
    loss = PpoLoss(policy, Critic(policy.context_width, {}, ()), replace(PPO, entropy_coef=0.1))
    loss.forward(batch_rows(policy), Context(CARRY, {}, "")).loss.backward()
    assert policy.log_std.grad is not None
    assert (policy.log_std.grad == -torch.tensor(0.1)).all()


def test_a_clipped_value_is_not_improved_beyond_its_clip():
    policy = gaussian()
    critic, rows = Critic(policy.context_width, {}, ()), batch_rows(policy)
    context = Context(CARRY, {}, "")

    def slopes(clip: float | None, moved: float) -> bool:
        """Whether the critic learns once its values lie `moved` above what they were."""
        critic.zero_grad()
        values = critic(critic.encode(observations(rows), policy.encode(observations(rows)))).detach()
        given = {**rows, "value": values - moved, "value_target": values + 3}
        PpoLoss(policy, critic, replace(PPO, value_clip=clip)).forward(given, context).loss.backward()
        return any(bool((parameter.grad != 0).any()) for parameter in critic.parameters() if parameter.grad is not None)

    assert slopes(None, 0.5)
    assert slopes(1.0, 0.5)
    assert not slopes(0.2, 0.5)
    assert slopes(0.2, 0.1)


@POLICIES
def test_a_minibatch_in_parts_learns_as_the_whole_does(make):
    cfg = replace(PPO, critic_warmup_env_steps=0, entropy_coef=0.01, value_clip=0.5, target_kl=0.02)
    whole, parts = (replace(cfg, microbatch=m).build(setup(make())) for m in (None, 16))
    for _ in range(2):
        first, second = whole.iterate(), parts.iterate()
        assert first.keys() == second.keys()
        for name in first:
            assert first[name] == pytest.approx(second[name], rel=1e-3, abs=1e-4), name
    assert torch.allclose(whole._engine.flat, parts._engine.flat, atol=1e-5)
    assert torch.equal(whole._engine.state()["steps"], parts._engine.state()["steps"])


def test_adams_epsilon_can_be_set():
    learners = [replace(PPO, adam_eps=eps).build(setup(gaussian())) for eps in (1e-5, 1e-5, 1e-2)]
    first, second, other = (learner.iterate()["value_loss"] for learner in learners)
    assert first == second != other


def test_the_critics_warm_up_is_the_same_number_of_env_steps_whatever_the_number_of_envs():
    """768 env steps: an iteration that begins before them trains the critic alone."""
    for num_envs, iterations in ((32, 2), (16, 3), (64, 1)):
        learner = replace(PPO, critic_warmup_env_steps=768).build(setup(gaussian(), num_envs=num_envs))
        assert [learner._rollouts.critic_only(i + 1) for i in range(4)] == [i < iterations for i in range(4)]


def test_critic_warm_up_leaves_the_policy_alone():
    learner = replace(PPO, critic_warmup_env_steps=2 * 16 * 32).build(setup(gaussian()))
    before = snapshot(learner.policy.state_dict())
    critic = snapshot(learner.critic.state_dict())
    scalars = [learner.iterate(), learner.iterate()]
    assert same(before, learner.policy.state_dict())
    assert not same(critic, learner.critic.state_dict())
    assert all("pg_loss" not in s and "value_loss" in s for s in scalars)
    assert "pg_loss" in learner.iterate()
    assert not same(before, learner.policy.state_dict())


def test_the_kl_limit_ends_the_actors_epochs():
    learner = replace(PPO, critic_warmup_env_steps=0, target_kl=1e-12, epochs=4).build(setup(gaussian()))
    learner.iterate()
    # the first step sees KL 0 (or a rounding error), the next one at most sees that it moved
    actor, critic = learner._engine.state()["steps"].tolist()
    assert actor <= 2
    assert critic > 10


def test_env_steps_are_counted_once():
    learner = PPO.build(setup(None, GAUSSIAN))
    assert learner.env_steps == 0
    assert learner.iterations == 4
    learner.iterate()
    assert learner.env_steps == 32 * 16


def test_the_normalisation_is_that_of_all_it_has_seen_and_changes_between_iterations_only():
    learner = replace(PPO, critic_warmup_env_steps=0).build(setup(None, GAUSSIAN))
    seen = []
    for _ in range(3):
        before = learner.policy.transforms
        rollout = learner._collector.rollout(16)
        assert learner.policy.transforms is before
        seen.append(rollout.obs["walk"].reshape(-1, 2))
        learner._made.take(rollout.obs)
    scale, offset = learner.policy.transforms.inputs[0].constants
    rows = torch.cat(seen).double()
    z = rows * torch.tensor(scale) + torch.tensor(offset)
    assert torch.allclose(z.mean(0), torch.zeros(2, dtype=torch.float64), atol=1e-5)
    assert torch.allclose(z.std(0, unbiased=False), torch.ones(2, dtype=torch.float64), atol=1e-5)
    # the module computes with what the transforms declare, so that the export has it, too
    declared = learner.policy.encode({"walk": rows.float()})
    assert torch.allclose(declared, z.float().clamp(-10, 10), atol=1e-5)


def test_a_clone_keeps_its_own_normalisation():
    learner = PPO.build(setup(gaussian()))
    before = learner.policy.transforms
    learner.iterate()
    assert learner.policy.transforms == before


@pytest.mark.parametrize(("engine", "iterations"), [("eager", 4), ("compiled", 3)])
def test_the_ratio_stays_one_at_the_start_of_every_iteration_while_the_normalisation_moves(engine, iterations):
    """The loss encodes raw observations: compiled, too, it must see the constants that the policy acted with."""
    cfg = replace(PPO, critic_warmup_env_steps=0, lr=3e-3, normalize_reward=True, engine=engine, minibatch=128)
    learner = cfg.build(setup(None, replace(GAUSSIAN, horizon=1)))
    for _ in range(iterations):
        before = learner.policy.transforms
        scalars = learner.iterate()
        assert learner.policy.transforms != before
        assert scalars["ratio_error"] <= 1e-5
        assert scalars["actor_updates"] > 1


def test_an_adaptive_learning_rate_falls_when_the_policy_moves_too_far_and_rises_when_it_hardly_does():
    fast = replace(PPO, critic_warmup_env_steps=0, lr_schedule="adaptive", target_kl=None, lr=1e-2, desired_kl=1e-6)
    slow = replace(fast, lr=1e-5, desired_kl=10.0)
    assert fast.build(setup(gaussian())).iterate()["lr"] < 1e-2
    assert slow.build(setup(gaussian())).iterate()["lr"] > 1e-5


def test_a_linear_learning_rate_falls_to_zero():
    learner = replace(PPO, lr_schedule="linear", lr=4e-4).build(setup(gaussian()))
    rates = [learner.iterate()["lr"] for _ in range(learner.iterations)]
    assert rates == pytest.approx([4e-4, 3e-4, 2e-4, 1e-4])


class Watched(Walk):
    """A walk whose critic is told more."""

    privileged = ("secret",)

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        walk = self.observation_spec["walk"]
        self.observation_spec = {**self.observation_spec, "secret": replace(walk, names=("x2", "t2"))}

    def reset(self, seed=None, options=None):
        obs = super().reset(seed, options)
        return {**obs, "secret": 100 + obs["walk"]}

    def step(self, actions):
        out = super().step(actions)
        return out._replace(
            obs={**out.obs, "secret": 100 + out.obs["walk"]},
            final_obs={**out.final_obs, "secret": 100 + out.final_obs["walk"]},
        )


def test_what_is_privileged_reaches_the_critic_and_not_the_policy():
    learner = PPO.build(setup(None, GAUSSIAN)._replace(make_sim=lambda: Watched(32)))
    assert set(learner.policy.observation_spec) == {"walk"}
    assert learner.critic.net.net.layers[0].in_features == 4
    learner.iterate()
    rollout = learner._collector.rollout(8)
    batch = make_batch(rollout, learner._value, 0.99, 0.95)
    ctx = learner.policy.encode(batch.obs)
    seen = learner.critic.encode(batch.obs, ctx)
    assert ctx.shape[1] == 2
    assert seen.shape[1] == 4
    # normalised: 100 and more have become numbers of the size of one
    assert seen[:, 2:].abs().max() < 6
    saved = snapshot(learner.state())
    fresh = PPO.build(setup(None, GAUSSIAN)._replace(make_sim=lambda: Watched(32)))
    fresh.load(saved)
    assert learner.iterate() == fresh.iterate()


class Seen(Walk):
    """A walk that shows where it stands in a map of ten layers besides, as bytes."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        layers = tuple(f"layer_{index}" for index in range(10))
        seen = Spec((6, 8, 10), layers, ("1",) * 10, (0.0,) * 10, (255.0,) * 10, "uint8")
        self.observation_spec = {**self.observation_spec, "map": seen}

    def drawn(self, obs):
        place = ((obs["walk"][:, 0] + 2) / 4 * 7).round().long().clamp(0, 7)
        picture = torch.zeros(len(place), 6, 8, 10, dtype=torch.uint8)
        picture[torch.arange(len(place)), :, place, 9] = 255
        return {**obs, "map": picture}

    def reset(self, seed=None, options=None):
        return self.drawn(super().reset(seed, options))

    def step(self, actions):
        out = super().step(actions)
        return out._replace(obs=self.drawn(out.obs), final_obs=self.drawn(out.final_obs))


def test_it_learns_from_pictures_of_ten_layers_in_parts():
    """Bytes stay bytes up to the encoder, which normalises them; the encoder learns, vectors are normalised beside."""
    policy = replace(BETA, horizon=1, image_channels=(4, 8), image_features=6, image_norm="layer")
    cfg = replace(PPO, critic_warmup_env_steps=0, microbatch=16)

    def build():
        return cfg.build(setup(None, policy)._replace(make_sim=lambda: Seen(32)))

    learner = build()
    before = snapshot(learner.policy.encoders.state_dict())
    assert learner.iterate()["ratio_error"] <= 1e-5
    assert not same(before, learner.policy.encoders.state_dict())
    assert {transform.key for transform in learner.policy.transforms.inputs} == {"walk"}
    rollout = learner._collector.rollout(2)
    assert rollout.obs["map"].dtype == torch.uint8
    fresh = build()
    fresh.load(snapshot(learner.state()))
    assert learner.iterate() == fresh.iterate()


@pytest.mark.parametrize("policy", [GAUSSIAN, BETA])
def test_it_goes_on_identically_from_a_saved_state(policy):
    learner = PPO.build(setup(None, policy))
    learner.iterate()
    learner.iterate()
    saved = snapshot(learner.state())
    fresh = PPO.build(setup(None, policy))
    fresh.load(saved)
    for _ in range(2):
        assert learner.iterate() == fresh.iterate()
    assert same(snapshot(learner.state()), snapshot(fresh.state()))
    assert not same(saved, snapshot(fresh.state()))


@pytest.mark.parametrize("policy", [GAUSSIAN, BETA])
def test_it_learns(policy):
    learner = replace(PPO, lr=3e-3, critic_lr=3e-3, epochs=5, critic_warmup_env_steps=1).build(setup(None, policy))
    before = evaluate(learner.policy, Walk(16), episodes=60).returns.mean()
    for _ in range(12):
        learner.iterate()
    after = evaluate(learner.policy, Walk(16), episodes=60).returns.mean()
    assert after > before + 2


def test_a_policy_without_density_is_refused():
    with pytest.raises(CapabilityError, match="FlowPolicy lacks HasDensity: PPO needs a density and an entropy"):
        PPO.build(setup(flow()))
    # it has a density, but none whose entropy has a closed form
    with pytest.raises(CapabilityError, match="SquashedPolicy lacks HasDensity: PPO needs a density and an entropy"):
        PPO.build(setup(None, SquashedCfg()))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("desired_kl", 0.0),
        ("lr_schedule", "cosine"),
        ("value_clip", 0.0),
        ("adam_eps", float("inf")),
        ("microbatch", 48),
    ],
)
def test_its_own_settings_out_of_range_are_refused(field, value):
    with pytest.raises(ConfigError, match=rf"algo\.{field} .*{value}"):
        replace(PPO, **{field: value}).build(setup(None, GAUSSIAN))


def test_the_collector_sees_what_the_policy_means():
    """The sim gets the clipped actions, the record the raw ones."""
    policy = gaussian()
    with torch.no_grad():
        policy.log_std.fill_(1.0)
    learner = PPO.build(setup(policy))
    rollout = learner._collector.rollout(8)
    raw = rollout.record["raw"][rollout.valid]
    assert raw.abs().max() > 2
    executed = torch.stack([record.action for record in learner.sim.tape])
    assert executed.abs().max() == 1
    assert isinstance(learner._collector, Collector)
