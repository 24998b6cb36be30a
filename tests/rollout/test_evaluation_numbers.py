"""An evaluation's numbers depend on weights, starts and seed: not on the number of envs, nor on who else is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import robotrl
import tests.kits.learner_kit as kit
from robotrl.api.evaluation import bundle_actor
from robotrl.deploy.export import export
from robotrl.deploy.noise import CounterNoise
from robotrl.errors import CapabilityError, ConfigError, NumericsError
from robotrl.fn.random import noise
from robotrl.fn.random.keyed_noise import KeyedNoise, decision_key
from robotrl.policies.squashed import SquashedCfg
from robotrl.policies.staged import StagedPolicy
from robotrl.policies.steered import SteeredCfg
from robotrl.policies.vla.flow import FlowVlaCfg
from robotrl.policies.vla.token import TokenVlaCfg
from robotrl.rollout.evaluate import EvalResult, PolicyActor, Turn, batch_size, evaluate, run_episodes
from robotrl.spec import ActOut, HasKeyedNoise, Spec, Step
from tests.kits.refusals import raises_naming
from tests.kits.walk_sim import Walk

WORDS = ("", "go", "right")
TINY: dict[str, Any] = {"horizon": 2, "vision_width": 16, "vision_heads": 2, "width": 32, "heads": 2, "mlp": 32}


class Told(Walk):
    """The walk with a picture of where it is, and two words."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, limit=5)
        self.observation_spec |= {
            "image": Spec((16, 16, 3), ("r", "g", "b"), ("1",) * 3, (0.0,) * 3, (255.0,) * 3, "uint8"),
            "instruction": Spec((2,), ("first", "second"), ("1",) * 2, (0.0,) * 2, (2.0,) * 2, "int32", words=WORDS),
        }

    def seen(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        walk = obs["walk"]
        picture = ((walk[:, :1] + 3) * 40 + torch.arange(16 * 16 * 3) % 7).to(torch.uint8).view(-1, 16, 16, 3)
        return {**obs, "image": picture, "instruction": torch.tensor([1, 2], dtype=torch.int32).expand(len(walk), 2)}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Tensor]:
        return self.seen(super().reset(seed, options))

    def step(self, actions: Tensor) -> Step:
        found = super().step(actions)
        return found._replace(obs=self.seen(found.obs), final_obs=self.seen(found.final_obs))


class Foreign:
    """A policy of another package: it draws from a `torch.Generator`, and knows of nothing else."""

    observation_spec, action_spec, horizon = kit.SPECS, kit.ACTION, 2

    def act(self, obs: Any, state: Any = None, generator: Any = None, mode: str = "sample") -> ActOut:
        draw = torch.randn((len(obs["walk"]), 2, 1), generator=generator)
        return ActOut(0.3 * draw * (mode == "sample") + 0.2, state)


def on_walk(cfg: Any) -> Any:
    torch.manual_seed(0)
    return cfg.build(kit.SPECS, kit.ACTION, kit.TRANSFORMS)


def on_told(cfg: Any) -> Any:
    torch.manual_seed(0)
    policy = cfg.build(Told(1).observation_spec, kit.ACTION, replace(kit.TRANSFORMS, inputs=()))
    return policy.eval()


POLICIES: dict[str, tuple[Callable[[], Any], type[Walk], Any]] = {
    "flow": (kit.flow, Walk, None),
    "diffusion": (kit.diffusion, Walk, None),
    "shortcut": (lambda: on_walk(kit.SHORTCUT), Walk, None),
    "staged": (lambda: StagedPolicy(kit.diffusion(0), kit.diffusion(1), 2), Walk, None),
    "steered": (lambda: SteeredCfg(hidden=(16,)).build(kit.flow()), Walk, None),
    "gaussian-sample": (kit.gaussian, Walk, "sample"),
    "gaussian-mean": (kit.gaussian, Walk, None),
    "squashed-sample": (lambda: on_walk(SquashedCfg(horizon=2, hidden=(16, 16))), Walk, "sample"),
    "beta-sample": (lambda: on_walk(kit.BETA), Walk, "sample"),
    "token": (lambda: on_told(TokenVlaCfg(**TINY, depth=2, vision_depth=2, patch=8, bins=32)), Told, "sample"),
    "token-one-by-one": (
        lambda: on_told(TokenVlaCfg(**TINY, depth=2, vision_depth=2, patch=8, decoding="autoregressive")),
        Told,
        "sample",
    ),
    "flow-vla": (
        lambda: on_told(FlowVlaCfg(**TINY, layers=2, vision_layers=2, kv_heads=2, expert_width=16, denoising_steps=2)),
        Told,
        None,
    ),
    "foreign": (Foreign, Walk, "sample"),
}


def assert_equal(found: EvalResult, wanted: EvalResult) -> None:
    order = np.argsort(found.ids), np.argsort(wanted.ids)
    for name in ("ids", "success", "length", "returns"):
        assert np.array_equal(getattr(found, name)[order[0]], getattr(wanted, name)[order[1]]), name


@pytest.mark.parametrize("name", POLICIES)
def test_the_number_of_envs_and_the_order_of_starts_change_nothing(name: str) -> None:
    make, sim, mode = POLICIES[name]
    policy = make()
    ids = list(range(1100, 1130 if sim is Walk else 1107))
    counts = (1, 7, 64, 128, 256) if sim is Walk else (1, 3, 40)
    found = [evaluate(policy, sim(n), ids=ids, seed=5, mode=mode) for n in counts]
    for other in found[1:]:
        assert_equal(other, found[0])
    shuffled = np.random.default_rng(0).permutation(ids)
    assert_equal(evaluate(policy, sim(9), ids=shuffled, seed=5, mode=mode), found[0])
    few = evaluate(policy, sim(4), ids=ids[2:6], seed=5, mode=mode)
    assert np.array_equal(few.returns, found[0].returns[2:6])
    again = evaluate(policy, sim(7), ids=ids, seed=6, mode=mode)
    assert np.array_equal(again.returns, found[0].returns) == (name == "gaussian-mean")


def test_every_policy_of_ours_draws_row_by_row() -> None:
    for name, (make, _, _) in POLICIES.items():
        assert isinstance(make(), HasKeyedNoise) == (name != "foreign"), name


def test_a_run_and_its_bundle_meet_the_same_noise(tmp_path: Path) -> None:
    policy = kit.flow()
    states = torch.randn(1024, 2, generator=torch.Generator().manual_seed(0)).numpy()
    export(policy, tmp_path / "bundle", observations={"walk": states}, control_dt_s=0.1)
    ids = range(1100, 1130)
    ours = evaluate(policy, Walk(7), ids=ids, seed=3)
    bundle = [evaluate(bundle_actor(tmp_path / "bundle", (sim := Walk(n)), 3), sim, ids=ids, seed=3) for n in (1, 30)]
    assert np.array_equal(bundle[0].returns, bundle[1].returns)
    assert np.abs(bundle[0].returns - ours.returns).max() < 1e-4
    assert np.array_equal(bundle[0].length, ours.length)
    other = Walk(7)
    assert (
        np.abs(evaluate(bundle_actor(tmp_path / "bundle", other, 4), other, ids=ids).returns - ours.returns).max() > 0.1
    )


def test_envs_whose_episodes_do_not_count_ask_nothing() -> None:
    policy = kit.flow()
    rows: list[int] = []
    inside = policy.act

    def counted(*args: Any) -> ActOut:
        rows.append(len(set(map(tuple, args[0]["walk"].tolist()))))
        return inside(*args)

    policy.act = counted
    evaluate(policy, Walk(256), ids=[1100])
    # one episode of at most six steps, two of them to a chunk, and rows that are alike since they are copies
    assert 1 <= len(rows) <= 3 and set(rows) == {1}


def test_batches_are_of_one_size() -> None:
    sizes: set[int] = set()

    class Sized(Foreign):
        keyed_noise = True

        def act(self, obs: Any, state: Any = None, generator: Any = None, mode: str = "sample") -> ActOut:
            sizes.add(len(obs["walk"]))
            return ActOut(0.3 * generator.normal((2, 1)), state)

    for n in (1, 100, 256):
        evaluate(Sized(), Walk(n), episodes=100)
    assert sizes == {batch_size(Sized())}
    assert batch_size(on_told(TokenVlaCfg(**TINY, patch=8))) < batch_size(kit.flow())


# the noise


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**128 - 1),
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    keys=st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)), min_size=1, max_size=9),
)
def test_the_first_draw_is_that_of_the_bundle_bit_for_bit(seed: int, shape: list[int], keys: list[Any]) -> None:
    starts, decisions = zip(*keys, strict=True)
    ours = KeyedNoise(seed, starts, decisions).normal(shape)
    bundle = CounterNoise(tuple(shape), seed)
    for row, key in zip(ours.numpy(), keys, strict=True):
        assert np.array_equal(row, bundle.draw(decision_key(*key)))


def test_further_draws_are_new_and_those_of_the_row_alone() -> None:
    many, one = KeyedNoise(1, range(50), [3] * 50), KeyedNoise(1, [20], [3])
    drawn = [(many.normal((4,)), one.normal((4,))) for _ in range(3)]
    drawn.append((many.uniform((4,)), one.uniform((4,))))
    for all_rows, row in drawn:
        assert torch.equal(all_rows[20], row[0])
    assert len({tuple(row[0].tolist()) for _, row in drawn}) == 4


def test_keyed_draws_follow_their_distributions() -> None:
    rows = 20_000
    keyed = KeyedNoise(0, np.arange(rows), np.zeros(rows, np.int64))
    normal = noise.randn((rows, 3), keyed, torch.device("cpu"))
    assert normal.mean().abs() < 0.02 and (normal.std() - 1).abs() < 0.02
    share = torch.tensor([[1.0, 0.0, 2.0, 1.0]]).expand(2 * rows, -1)
    counts = torch.bincount(noise.choose(share, keyed), minlength=4) / (2 * rows)
    assert torch.allclose(counts, torch.tensor([0.25, 0.0, 0.5, 0.25]), atol=0.02)
    for alpha in (0.4, 1.0, 1.7, 30.0):
        drawn = noise.standard_gamma(torch.full((rows, 2), alpha), keyed)
        assert drawn.mean() == pytest.approx(alpha, rel=0.03) and drawn.var() == pytest.approx(alpha, rel=0.06)


def test_rows_without_a_key_are_refused() -> None:
    keyed = KeyedNoise(0, [1, 2, 3], [0, 0, 0])
    with pytest.raises(ConfigError, match="wanted for 4 rows: expected 3"):
        noise.randn((4, 2), keyed, torch.device("cpu"))
    with pytest.raises(ConfigError, match="wanted for 4 rows: expected 3"):
        noise.choose(torch.ones(4, 2), keyed)


# what cannot be evaluated


def test_weights_that_are_not_finite_are_refused() -> None:
    policy = kit.flow()
    with torch.no_grad():
        next(iter(policy.parameters())).view(-1)[0] = float("nan")
    with pytest.raises(NumericsError, match=r"weight '.*' of policy FlowPolicy holds NaN or infinity"):
        evaluate(policy, Walk(2), episodes=2)


@pytest.mark.parametrize(
    ("action", "error", "message"),
    [
        (torch.zeros(3, 1), ConfigError, r"actions \(3, 1\): expected \(2, 1\)"),
        (torch.zeros(2, 2), ConfigError, r"actions \(2, 2\): expected \(2, 1\)"),
        (torch.tensor([[0.0], [float("nan")]]), NumericsError, r"start 1101, step 0: .* 'step_x_w' as nan"),
    ],
)
def test_an_actors_actions_are_looked_at(action: Tensor, error: type[Exception], message: str) -> None:
    class Odd:
        def act(self, obs: dict[str, Tensor], turn: Turn) -> Tensor:
            return action

    with pytest.raises(error, match=message):
        run_episodes(Odd(), Walk(2), [1100, 1101])


def test_a_policys_chunk_is_looked_at() -> None:
    class Short(Foreign):
        horizon = 3

    with pytest.raises(ConfigError, match=r"policy Short gave a chunk \(64, 2, 1\): expected \(64, 3, 1\)"):
        evaluate(Short(), Walk(2), episodes=2, mode="mean")
    with raises_naming(ConfigError, "seed", -1):
        PolicyActor(Short(), 2, torch.device("cpu"), None, -1)
    with raises_naming(ConfigError, "ids[0]", 1100.5, "number"):
        evaluate(Foreign(), Walk(2), ids=[1100.5])  # pyright: ignore[reportArgumentType]


def test_a_sim_that_takes_starts_in_an_order_of_its_own_is_refused() -> None:
    class Backwards(Walk):
        def queue_states(self, ids: Any) -> None:
            super().queue_states(list(ids)[::-1])

    with pytest.raises(CapabilityError, match="env 1 ran start 1100, expected 1101"):
        evaluate(kit.flow(), Backwards(2), ids=[1100, 1101])


@pytest.mark.parametrize("sim", ["mujoco/peg-insert", "mujoco/push"])
def test_our_sims_give_the_same_bits_in_crowds_of_any_size(sim: str) -> None:
    """Loops of numpy treat the last few elements of an array apart: no env may notice where it stands."""
    seen: dict[int, Any] = {}
    for n in (1, 7, 64, 130):
        vec = robotrl.make_sim(sim, num_envs=n, seed=0)
        ids = vec.state_ids("test")[:n]
        vec.queue_states(ids)
        obs = vec.reset()
        spec = vec.action_spec
        low, high = (torch.tensor(x).clamp(-5, 5) for x in (spec.low, spec.high))
        share = torch.rand((6, 130, len(low)), generator=torch.Generator().manual_seed(0))[:, :n]
        tape = [{key: x.clone() for key, x in obs.items()}]
        for one in share:
            out = vec.step(low + (high - low) * one)
            tape.append({**{key: x.clone() for key, x in out.obs.items()}, "reward": out.reward.clone()})
        seen[n] = tape
        vec.close()
    for n in (1, 7, 64):
        for ours, crowd in zip(seen[n], seen[130], strict=True):
            for key, x in ours.items():
                assert torch.equal(x, crowd[key][:n]), (n, key)
