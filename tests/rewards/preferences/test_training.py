"""Ensembles on answered pairs, in files, and on datasets."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from robotrl.datasets.reader import read_dataset
from robotrl.datasets.writer import DatasetWriter
from robotrl.engine.engine import Context
from robotrl.errors import ConfigError, DataError
from robotrl.fn.progress.metrics import rank_correlation
from robotrl.rewards.preferences.ensemble import RewardEnsemble
from robotrl.rewards.preferences.labelers.synthetic import SyntheticCfg
from robotrl.rewards.preferences.offline import learn_offline, observed
from robotrl.rewards.preferences.relabeling import relabeled_rewards, write_relabeled
from robotrl.rewards.preferences.segments import dataset_pool, gather, possible_starts
from robotrl.rewards.preferences.stored import load_preferences, save_preferences
from robotrl.rewards.preferences.training import AnsweredPairs, PreferenceLoss, train_preferences
from robotrl.rewards.preferences.values import ValueFitCfg, fit_values, true_regret
from robotrl.spec import Spec
from tests.kits.preference_kit import OFFLINE, TRAINING, pool, walks


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return walks(tmp_path_factory.mktemp("walks") / "walks", 120)


def with_synthetic(cfg, **changes):
    return replace(cfg, labeler=replace(cfg.labeler, synthetic=replace(SyntheticCfg(error=0.0), **changes)))


def test_rewards_learned_from_answers_rank_steps_as_the_sim_does(dataset):
    learned, labeled = learn_offline(dataset, (), with_synthetic(OFFLINE))
    found = dataset_pool(dataset, ["walk"])
    rewards = learned.rewards(found.obs, found.action, 0.0)
    # the reward of a step is the position that it reaches
    assert rank_correlation(rewards.double().numpy(), found.reward.double().numpy()) > 0.9
    assert learned.held_out.agreement > 0.85 and labeled.agreement == 1.0
    segments = gather(found, possible_starts(found, 3), 3)
    assert float(
        learned.rewards(
            segments.obs | {"walk": segments.obs["walk"].flatten(0, 1)}, segments.action.flatten(0, 1), 0.0
        ).std()
    ) == pytest.approx(1.0, abs=0.3)
    pessimistic = learned.rewards(found.obs, found.action, 1.0)
    spread = learned.ensemble.step_rewards(found.obs, found.action).std(1, correction=0) / learned.scale
    assert torch.allclose(rewards - pessimistic, spread, atol=1e-5)


def test_answers_by_regret_are_learned_as_regret(dataset):
    cfg = with_synthetic(OFFLINE, truth="regret")
    cfg = replace(cfg, training=replace(TRAINING, form="regret"))
    learned, labeled = learn_offline(dataset, (), cfg)
    found = dataset_pool(dataset, ["walk"])
    assert (learned.ensemble.step_rewards(found.obs, found.action) <= 0).all()
    assert labeled.agreement == 1.0 and learned.held_out.agreement > 0.6


def test_the_loss_is_the_cross_entropy_of_each_member_on_its_own_answers():
    torch.manual_seed(0)
    from robotrl.transforms import TransformGroup
    from tests.kits.learner_kit import ACTION, SPECS

    ensemble = RewardEnsemble.create(SPECS, ACTION, TransformGroup((), ()), TRAINING.model, 2, "return")
    first, second = (gather(pool(), np.array([start, start + 1]), 2) for start in (0, 2))
    cfg = replace(TRAINING, shrink=0.0, assumed_error=0.0)
    weight = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    batch = {"choice": torch.tensor([1.0, 0.0]), "weight": weight}
    for name, one in (("first", first), ("second", second)):
        batch |= {f"{name}/{key}": x for key, x in ensemble.inputs(one.obs, one.action).items()}
        batch[f"{name}_valid"] = one.valid.float()
    out = PreferenceLoss(ensemble, cfg)(batch, Context({}, {}, ""))
    logits = ensemble.segment_scores(second) - ensemble.segment_scores(first)
    # member 0 learns from the first pair, whose second segment is preferred, member 1 from the other
    expected = torch.nn.functional.softplus(-logits[0, 0]) + torch.nn.functional.softplus(logits[1, 1])
    assert out.loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_training_leaves_the_global_stream_alone_and_repeats_bit_for_bit(dataset):
    cfg = replace(OFFLINE, labels=40, training=replace(TRAINING, updates=20))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, _ = learn_offline(dataset, (), cfg)
    assert torch.equal(torch.rand(3), expected)
    assert learn_offline(dataset, (), cfg)[0].identity == one.identity
    other = replace(cfg, training=replace(cfg.training, seed=1))
    assert learn_offline(dataset, (), other)[0].identity != one.identity


def test_pairs_of_disagreement_are_others_and_are_asked_in_rounds(dataset):
    cfg = replace(with_synthetic(OFFLINE), pairs="disagreement", rounds=3, training=replace(TRAINING, updates=40))
    learned, labeled = learn_offline(dataset, (), cfg)
    assert labeled.asked == 120 == len(labeled.pairs.choice) + labeled.neither
    assert learned.held_out.answers == round(0.2 * len(labeled.pairs.choice))


def test_files_give_back_the_same_rewards_and_altered_ones_are_refused(dataset, tmp_path):
    cfg = replace(OFFLINE, labels=40, training=replace(TRAINING, updates=20))
    learned, _ = learn_offline(dataset, (), cfg)
    save_preferences(tmp_path / "model", learned)
    again = load_preferences(tmp_path / "model")
    found = dataset_pool(dataset, ["walk"])
    assert torch.equal(again.rewards(found.obs, found.action, 1.0), learned.rewards(found.obs, found.action, 1.0))
    assert again.identity == learned.identity and again.held_out == learned.held_out
    save_preferences(tmp_path / "other", learned._replace(scale=2.0 * learned.scale))
    with pytest.raises(DataError, match="digest"):
        load_preferences(tmp_path / "other")


def test_a_relabeled_dataset_has_the_learned_rewards_and_nothing_else_new(dataset, tmp_path):
    learned, _ = learn_offline(dataset, (), replace(OFFLINE, labels=40, training=replace(TRAINING, updates=20)))
    rewards = relabeled_rewards(dataset, learned, 0.5, 0.25)
    write_relabeled(dataset, rewards, tmp_path / "new", {"by": "test"})
    new = read_dataset(tmp_path / "new")
    found = dataset_pool(dataset, ["walk"])
    expected = learned.rewards(found.obs, found.action, 0.5) + 0.25
    assert new.frames("next.reward").tolist() == expected.tolist()
    for name in dataset.features:
        if name != "next.reward":
            assert np.array_equal(new.frames(name), dataset.frames(name)), name
    assert new.verified and new.provenance["relabeled"] == {"by": "test"}


def test_values_and_regret_on_a_chain_that_can_be_worked_out():
    # three states in a row, the task ends after the third; each step is worth 1: V = 1 + g + g^2, 1 + g, 1
    from robotrl.rewards.preferences.segments import StepPool

    count = 90
    at = torch.arange(count) % 3
    steps = StepPool(
        {"at": at[:, None].float()},
        torch.zeros(count, 1),
        torch.ones(count) + 1e-3 * torch.randn(count, generator=torch.Generator().manual_seed(0)),
        (torch.arange(count) // 3 + 1) * 3,
        torch.ones(count, dtype=torch.bool),
    )
    spec = {"at": Spec((1,), ("at",), ("1",), (0.0,), (2.0,))}
    values = fit_values(steps, spec, ValueFitCfg(gamma=0.5, updates=1500, batch=32))
    assert values[:3].tolist() == pytest.approx([1.75, 1.5, 1.0], abs=0.05)
    regret = true_regret(steps, values, np.array([0, 1, 2]), 2, 0.5)
    assert regret.tolist() == pytest.approx([0.0, 0.0, 0.0], abs=0.05)


def test_too_few_answers_and_unknown_observations_are_named(dataset):
    specs = observed(dataset, ())
    first, second = (gather(pool(), np.array([0]), 2), gather(pool(), np.array([2]), 2))
    with pytest.raises(ConfigError, match="1 pairs have a preference: expected 8"):
        assert dataset.action_spec is not None
        train_preferences(AnsweredPairs(first, second, np.array([1])), specs, dataset.action_spec, TRAINING, {})
    with pytest.raises(ConfigError, match="walk"):
        observed(dataset, ("wlak",))


def test_observations_of_any_shape_are_read(tmp_path):
    draw = np.random.default_rng(0)
    specs = {
        "rows": Spec((2, 3), ("x", "y", "mask"), ("m", "m", "1"), (-1.0,) * 3, (1.0,) * 3),
        "speed": Spec((1,), ("speed",), ("m/s",), (-1.0,), (1.0,)),
    }
    action = Spec((2,), ("steer", "accel"), ("1", "1"), (-1.0,) * 2, (1.0,) * 2)
    with DatasetWriter(tmp_path / "data", fps=10, observation_spec=specs, action_spec=action) as writer:
        for _ in range(20):
            obs = {"rows": draw.uniform(-1, 1, (8, 2, 3)), "speed": draw.uniform(-1, 1, (8, 1))}
            writer.add_episode(
                obs, draw.uniform(-1, 1, (8, 2)), obs["speed"][:, 0], success=False, truncated=True, task="drive"
            )
        writer.finish()
    data = read_dataset(tmp_path / "data")
    cfg = with_synthetic(replace(OFFLINE, labels=200, training=replace(TRAINING, updates=100)))
    learned, _ = learn_offline(data, (), cfg)
    found = dataset_pool(data, list(specs))
    rewards = relabeled_rewards(data, learned, 0.0, 0.0)
    assert found.obs["rows"].shape == (160, 2, 3) and found.obs["speed"].shape == (160, 1)
    assert rank_correlation(rewards.astype(float), found.reward.double().numpy()) > 0.8
