"""The temperature of held-out answers is in the choice of pairs, and in no reward."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from robotrl.config import WeightedReward
from robotrl.rewards.network import RewardNetCfg
from robotrl.rewards.preferences.ensemble import HeldOutAnswers, LearnedPreferences, RewardEnsemble
from robotrl.rewards.preferences.offline import CANDIDATES, _disagreement, observed
from robotrl.rewards.preferences.online import OnlinePreferences
from robotrl.rewards.preferences.preferences import PreferencesCfg
from robotrl.rewards.preferences.segments import Segments, dataset_pool, gather, possible_starts, random_pairs
from robotrl.rewards.preferences.training import AnsweredPairs, train_preferences
from robotrl.rewards.relabel import with_rewards
from robotrl.rewards.source import RewardSetup
from robotrl.spec import Spec
from robotrl.transforms import TransformGroup
from tests.kits.preference_kit import LABELING, OFFLINE, TRAINING, walks
from tests.kits.walk_sim import Walk

SLOPES = (1.0, 3.0)
SPEC = Spec((2,), ("pos_x_w", "time"), ("m", "step"), (-2.0, 0.0), (2.0, 6.0))


def learned_with(temperature: float, scale: float = 0.5) -> LearnedPreferences:
    """Two members whose reward is 1 and 3 times the position."""
    ensemble = RewardEnsemble.create(
        {"walk": SPEC}, None, TransformGroup((), ()), RewardNetCfg(hidden=()), len(SLOPES), "return"
    )
    for member, slope in zip(ensemble.members, SLOPES, strict=True):
        (last,) = [one for one in member.modules() if isinstance(one, nn.Linear)]
        last.weight.data[:] = torch.tensor([[slope, 0.0]])
        last.bias.data[:] = 0.0
    return LearnedPreferences(ensemble.eval(), scale, HeldOutAnswers(9, 0.5, 0.1, temperature), {}, "by hand")


def segments(*positions: float) -> Segments:
    """Segments of one step at a position each."""
    obs = torch.tensor([[[x, 0.0]] for x in positions])
    count = len(positions)
    return Segments({"walk": obs}, torch.zeros(count, 1, 1), torch.ones(count, 1, dtype=torch.bool), obs[..., 0])


def sigmoid(x: Any) -> np.ndarray:
    return 1 / (1 + np.exp(-np.asarray(x)))


@pytest.mark.parametrize("temperature", [1.0, 2.0, 0.5])
def test_pessimism_is_in_the_units_of_the_mean_whatever_the_temperature(temperature: float) -> None:
    learned = learned_with(temperature)
    obs, action = {"walk": torch.tensor([[1.0, 0.0], [2.0, 0.0]])}, torch.zeros(2, 1)
    # over the scale of 0.5 the members say 2 and 6, and 4 and 12
    assert learned.rewards(obs, action, 0.0).tolist() == pytest.approx([4.0, 8.0])
    expected = [4.0 - 1.5 * 2.0, 8.0 - 1.5 * 4.0]
    assert learned.rewards(obs, action, 1.5).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("temperature", [1.0, 8.0])
def test_members_disagree_by_their_calibrated_probabilities(temperature: float) -> None:
    first, second = segments(0.0, 0.0), segments(1.0, 4.0)
    # the members' logits are 1 and 3, and 4 and 12
    expected = [
        np.std(sigmoid(np.array([1.0, 3.0]) / temperature)),
        np.std(sigmoid(np.array([4.0, 12.0]) / temperature)),
    ]
    found = learned_with(temperature).disagreement(first, second)
    assert found.tolist() == pytest.approx(expected, rel=1e-5)
    # where both members are merely too sure, the second pair is the one to ask about
    assert (expected[1] > expected[0]) == (temperature > 1)


def most_disputed(scores: list[Tensor], temperature: float, count: int) -> list[int]:
    spread = np.std(sigmoid((scores[1] - scores[0]).double().numpy() / temperature), axis=1)
    return np.argsort(-spread, kind="stable")[:count].tolist()


def test_a_round_asks_about_the_pairs_that_are_most_disputed_after_calibration() -> None:
    cfg = PreferencesCfg(every_env_steps=10**9, memory=2000, labeler=LABELING, training=TRAINING)
    chosen: list[list[float]] = []
    for temperature in (1.0, 20.0):
        sim = with_rewards(Walk(4), [WeightedReward("preferences", 1.0, cfg)], RewardSetup())
        source = sim.rewards.sources[0].source
        assert isinstance(source, OnlinePreferences)
        sim.reset(seed=0)
        draw = torch.Generator().manual_seed(0)
        for _ in range(60):
            sim.step(torch.rand(4, 1, generator=draw) * 2 - 1)
        source._learned = learned = learned_with(temperature)
        found = source._choose(5)
        assert found is not None
        pool, rng = source._memory.kept().pool, np.random.default_rng([cfg.training.seed, 0])
        length = LABELING.length
        pairs = random_pairs(possible_starts(pool, length), 5 * CANDIDATES, length, rng)
        scores = [learned.ensemble.segment_scores(gather(pool, pairs[:, side], length)) for side in (0, 1)]
        rows = most_disputed(scores, temperature, 5)
        for one, side in ((found.first, 0), (found.second, 1)):
            assert torch.equal(one.obs["walk"], gather(pool, pairs[rows, side], length).obs["walk"])
        chosen.append(found.second.obs["walk"].flatten().tolist())
    assert chosen[0] != chosen[1]


def test_pairs_of_a_dataset_are_chosen_after_calibration_too(tmp_path: Any) -> None:
    data = walks(tmp_path / "walks")
    cfg = replace(OFFLINE, training=replace(TRAINING, updates=20))
    specs = observed(data, ())
    pool = dataset_pool(data, list(specs))
    rng = np.random.default_rng(3)
    pairs, candidates = (random_pairs(possible_starts(pool, 3), count, 3, rng) for count in (60, 40))
    answers = rng.integers(0, 2, 60)
    rows = _disagreement(data, pool, specs, candidates, pairs, answers, cfg)
    assert data.action_spec is not None
    answered = AnsweredPairs(gather(pool, pairs[:, 0], 3), gather(pool, pairs[:, 1], 3), answers)
    learned = train_preferences(answered, specs, data.action_spec, cfg.training, {})
    assert learned.held_out.temperature != pytest.approx(1.0, abs=0.05)
    scores = [learned.ensemble.segment_scores(gather(pool, candidates[:, side], 3)) for side in (0, 1)]
    assert rows.tolist() == most_disputed(scores, learned.held_out.temperature, 40)
