"""A process reward of real demonstrations: columns, labels, training, judging, files, its term, and VLA-RL with it."""

from __future__ import annotations

import functools
import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robotrl.algos.vla_rl import VlaRlLearner
from robotrl.cli.commands.sim_flags import parse_options
from robotrl.cli.commands.train import parse_config, split_names
from robotrl.cli.main import main
from robotrl.config import EvalCfg, SimCfg, TrainCfg, options_of
from robotrl.datasets.reader import Dataset, read_dataset
from robotrl.datasets.writer import DatasetWriter
from robotrl.errors import CapabilityError, ConfigError, DataError
from robotrl.fn.stats import Interval
from robotrl.learners.learner import Setup
from robotrl.policies.vla.token import TokenVlaCfg
from robotrl.registry import build_sim, sim_options
from robotrl.rewards.columns import find_sources, signals
from robotrl.rewards.grading import (
    Graded,
    GradingCfg,
    ProgressLabels,
    grade,
    graded,
    join_graded,
    only,
    origin,
    summary,
)
from robotrl.rewards.network import ImageRewardNet, RewardNetCfg, WordEncoder, normalization
from robotrl.rewards.process_model import AcceptanceThresholds, HeldOutVerdict, ProcessReward
from robotrl.rewards.process_stored import load_process, process_from_tree, process_tree, save_process
from robotrl.rewards.process_term import ProcessTerm
from robotrl.rewards.process_training import ProcessCfg, frame_draws, judge, split_graded, train_process
from robotrl.rewards.stored import load_classifier
from robotrl.rollout.collector import Collector, Decision
from robotrl.rollout.compatibility import check_fit
from robotrl.rollout.demos import collect_demos
from robotrl.rollout.storage import Rollout
from robotrl.run.checkpoint import read_checkpoint, write_checkpoint
from robotrl.run.directory import Run
from robotrl.run.logs import read_scalars
from robotrl.spec import Spec, privileged
from robotrl.training import resume, train
from tests.algos import test_vla_rl as vla_rl
from tests.algos.test_grpo import policy_on, tabletop
from tests.algos.test_opd import saved
from tests.kits.commands import TABLETOP_VLA_RL
from tests.kits.paths_kit import ROOT
from tests.kits.refusals import raises_naming
from tests.training.test_resume import StopAt, assert_same_end

SIM = "mujoco/tabletop"
OPTIONS: dict[str, Any] = {"image": "flat_near", "image_size": 32, "families": "point,lift", "limit_s": 3.0}
SEEN = ("state", "instruction", "image_flat_near")
LENIENT = AcceptanceThresholds(min_rank=0.3, min_separation=0.5, max_error=0.4)
SMALL = ProcessCfg(
    model=RewardNetCfg(hidden=(32,), image_channels=(8, 8), image_features=16),
    updates=120,
    batch=64,
    bar=LENIENT,
)


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demos") / "good"
    collect_demos(SIM, path, episodes=24, noise=0.1, seed=3, sim_options=OPTIONS)
    return path


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demos") / "bad"
    collect_demos(SIM, path, episodes=16, noise=0.9, episode_noise=1.0, keep="all", seed=4, sim_options=OPTIONS)
    return path


def labeled(path: Path) -> tuple[Dataset, ProgressLabels]:
    dataset = read_dataset(path)
    return dataset, grade(dataset, find_sources(dataset), GradingCfg(), origin(dataset).family)


def of_both(*paths: Path) -> Graded:
    parts = []
    for path in paths:
        dataset, labels = labeled(path)
        parts.append(graded(dataset, labels, SEEN, origin(dataset).start))
    return join_graded(parts, same_starts=True)


@functools.cache
def specs() -> dict[str, Spec]:
    sim = tabletop(1)
    return {key: sim.observation_spec[key] for key in SEEN}


@pytest.fixture(scope="module")
def trained(demos: Path, failures: Path) -> ProcessReward:
    return train_process(of_both(demos, failures), specs(), SMALL, {"datasets": "two"}).reward


@pytest.fixture(scope="module")
def stored(trained: ProcessReward, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_process(tmp_path_factory.mktemp("process") / "reward", trained)


# columns


def test_gripper_and_hand_are_found_by_name_and_unit(demos: Path) -> None:
    dataset = read_dataset(demos)
    found = find_sources(dataset)
    assert [c.path for c in found.gripper] == ["state.left_finger_pos", "state.right_finger_pos"]
    assert [c.path for c in found.velocity] == [f"state.tip_vel_{axis}_w" for axis in "xyz"]
    state = dataset.frames("observation.state")
    said = signals(dataset, found)
    assert said.speed_mps == pytest.approx(np.linalg.norm(state[:, 5:8].astype(np.float64), axis=1))
    fingers = state[:, 17:19].astype(np.float64)
    low, span = fingers.min(axis=0), np.ptp(fingers, axis=0)
    assert said.opening == pytest.approx(((fingers - low) / span).mean(axis=1))


def test_columns_that_are_named(demos: Path) -> None:
    dataset = read_dataset(demos)
    by_name = find_sources(dataset, ["action.finger_target"], ["state.tip_vel_x_w"])
    by_number = find_sources(dataset, ["action.4"], ["state.5"])
    assert by_name == by_number
    with pytest.raises(
        ConfigError, match=r"gripper 'action\.finger_targt' is unknown: did you mean 'action\.finger_tar"
    ):
        find_sources(dataset, ["action.finger_targt"])
    with raises_naming(ConfigError, "gripper", "axion.1", nearest="action"):
        find_sources(dataset, ["axion.1"])
    with pytest.raises(ConfigError, match=r"position is state\.0: expected none, since velocity is given"):
        find_sources(dataset, velocity=["state.5"], position=["state.0"])


def write(path: Path, names: tuple[str, ...], units: tuple[str, ...], rows: list[np.ndarray], fps: int = 10) -> Dataset:
    """A dataset of successes whose state has these columns; the action has one, "go"."""
    wide = (float("inf"),) * len(names)
    spec = {"state": Spec((len(names),), names, units, tuple(-x for x in wide), wide)}
    action = Spec((1,), ("go",), ("1",), (-1.0,), (1.0,))
    with DatasetWriter(path, fps=fps, observation_spec=spec, action_spec=action, provenance={}) as writer:
        for row in rows:
            n = len(row)
            writer.add_episode(
                {"state": row.astype(np.float32)}, np.zeros((n, 1)), np.zeros(n), success=True, task="fold"
            )
        return read_dataset(writer.finish())


def test_a_position_gives_the_speed_by_hand(tmp_path: Path) -> None:
    """Steps of 3, 4 and 5 cm at 10 Hz; no step leads from one episode into the next, the last frame has the last."""
    names, units = ("gripper", "ee_pos_x", "ee_pos_y"), ("1", "m", "m")
    rows = [
        np.array([[0, 0.0, 0.0], [0, 0.03, 0.0], [1, 0.03, 0.04], [1, 0.06, 0.08]]),
        np.array([[0, 9.0, 0.0], [0, 9.0, 0.01]]),
        np.array([[0, 0.0, 0.0]]),
    ]
    dataset = write(tmp_path / "d", names, units, rows)
    found = find_sources(dataset)
    assert [c.name for c in found.position] == ["ee_pos_x", "ee_pos_y"] and found.velocity == ()
    said = signals(dataset, found)
    assert said.speed_mps == pytest.approx([0.3, 0.4, 0.5, 0.5, 0.1, 0.1, 0.0], abs=1e-5)
    assert said.opening == pytest.approx([0, 0, 1, 1, 0, 0, 0])


ROW = np.zeros((4, 5))


@pytest.mark.parametrize(
    ("names", "units", "message"),
    [
        (
            ("a", "ee_vel_x", "ee_vel_y", "b", "c"),
            ("m", "m/s", "m/s", "m", "m"),
            r"no column is a gripper by its name.*go",
        ),
        (("gripper_force", "ee_vel_x", "ee_vel_y", "b", "c"), ("N", "m/s", "m/s", "m", "m"), "no column is a gripper"),
        (("gripper", "a", "b", "c", "d"), ("m",) * 5, "no column is the hand's velocity or position by name and unit"),
        (
            ("gripper", "tip_vel_x", "tip_vel_y", "hand_vel_x", "hand_vel_y"),
            ("1", "m/s", "m/s", "m/s", "m/s"),
            r"state\.tip_vel_x, state\.tip_vel_y or state\.hand_vel_x, state\.hand_vel_y may be the hand's velocity",
        ),
    ],
)
def test_what_no_name_tells_is_asked_for(tmp_path: Path, names: Any, units: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_sources(write(tmp_path / "d", names, units, [ROW]))


def test_a_things_velocity_is_not_the_hands(tmp_path: Path) -> None:
    names = ("gripper.pos", "eefVel_x", "eefVel_y", "ball_vel_x", "ball_vel_y")
    found = find_sources(write(tmp_path / "d", names, ("1", *("m/s",) * 4), [ROW]))
    assert [c.name for c in found.velocity] == ["eefVel_x", "eefVel_y"]
    assert [c.name for c in found.gripper] == ["gripper.pos"]


def test_a_dataset_of_another_writer_has_names_and_no_units(demos: Path, tmp_path: Path) -> None:
    """Without our manifest nothing tells units: the gripper is found by name, the hand's columns must be named."""
    copy = shutil.copytree(demos, tmp_path / "theirs")
    (copy / "meta" / "robotrl.json").unlink()
    dataset = read_dataset(copy)
    with pytest.raises(ConfigError, match="no column is the hand's velocity"):
        find_sources(dataset)
    named = find_sources(dataset, velocity=[f"state.tip_vel_{axis}_w" for axis in "xyz"])
    ours = read_dataset(demos)
    # spans are declared nowhere, and the fingers move over more than their least
    assert signals(dataset, named).opening == pytest.approx(signals(ours, find_sources(ours)).opening)


# labels


def test_labels_of_a_robots_dataset_by_hand(tmp_path: Path) -> None:
    """Ten frames at 10 Hz: the gripper closes at 4, the hand rests at 7, the end is past the last frame."""
    rows = np.zeros((10, 3))
    rows[:, 0] = [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]
    rows[:, 1] = [0, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0, 0.4, 0.4]
    dataset = write(tmp_path / "d", ("gripper", "ee_vel_x", "ee_vel_y"), ("1", "m/s", "m/s"), [rows])
    labels = grade(dataset, find_sources(dataset), GradingCfg(), origin(dataset).family)
    # its own pace is 0.4 m/s
    assert labels.still_mps == pytest.approx(0.04)
    (found,) = labels.milestones
    assert (found.frames.tolist(), found.kinds) == ([4, 7, 10], ("gripper", "still", "end"))
    assert labels.progress == pytest.approx(np.array([0, 3, 6, 9, 12, 16, 20, 24, 28, 32]) / 36)
    (row,) = summary(labels)
    assert (row.family, row.episodes, row.successes, row.counts) == ("fold", 1, 1, {3: 1})
    assert (row.gripper, row.still) == (1.0, 1.0)
    wider = grade(dataset, find_sources(dataset), GradingCfg(gap_s=0.5), ("fold",))
    assert wider.milestones[0].frames.tolist() == [10]


def test_labels_of_real_episodes(demos: Path, failures: Path) -> None:
    for path in (demos, failures):
        dataset, labels = labeled(path)
        truth = dataset.episodes["success"].astype(bool)
        assert labels.success.tolist() == truth.tolist()
        for e, (first, last) in enumerate(zip(dataset.offsets[:-1], dataset.offsets[1:], strict=True)):
            label, found, known = labels.progress[first:last], labels.milestones[e], labels.known[first:last]
            if truth[e]:
                assert known.all()
                assert label[0] == 0 and (np.diff(label) > 0).all() and label[-1] < 1
                assert found.frames[-1] == last - first
            else:
                assert (label == 0).all() and "end" not in found.kinds
                # how it ended: a second of it
                assert known[-20:].all() and not known[:-20].any()
    dataset, labels = labeled(demos)
    rows = {row.family: row for row in summary(labels)}
    assert set(rows) == {"point", "lift"} and sum(row.episodes for row in rows.values()) == 24
    # to lift is to grip first; to point is one movement
    assert rows["lift"].gripper == pytest.approx(1.0, abs=0.3) and rows["point"].gripper == 0
    assert origin(dataset).privileged == ("things", "meant")


def test_settings_and_datasets_that_say_nothing_are_refused(tmp_path: Path, demos: Path) -> None:
    dataset = read_dataset(demos)
    sources, family = find_sources(dataset), origin(dataset).family
    for changes, message in (
        ({"change": 0.0}, r"change is 0\.0"),
        ({"still_mps": -1.0}, r"still_mps is -1\.0"),
        ({"gap_s": float("nan")}, "gap_s is nan"),
        ({"failure_s": -1.0}, r"failure_s is -1\.0"),
    ):
        with pytest.raises(ConfigError, match=message):
            grade(dataset, sources, GradingCfg(**changes), family)
    idle = write(tmp_path / "idle", ("gripper", "ee_vel_x", "ee_vel_y"), ("1", "m/s", "m/s"), [np.zeros((5, 3))])
    with pytest.raises(ConfigError, match="the hand does not move"):
        grade(idle, find_sources(idle), GradingCfg(), ("fold",))
    with raises_naming(ConfigError, "observation", "image_top"):
        graded(*labeled(demos), ("image_top",), np.arange(24))


# parts


def test_episodes_of_one_start_are_never_parted(demos: Path, failures: Path) -> None:
    both = join_graded([of_both(demos), of_both(demos), of_both(failures)], same_starts=True)
    learned, process_verdict = split_graded(both, 0.3, 1)
    assert len(learned.success) + len(process_verdict.success) == 64
    assert not set(learned.start) & set(process_verdict.start)
    for part in (learned, process_verdict):
        assert len(part.progress) == len(part.episode) == len(part.obs["state"])
        assert part.success.any() and not part.success.all()
        assert set(part.episode) == set(range(len(part.success)))
        # a failure's frames are worth nothing
        assert (part.progress[~part.success[part.episode]] == 0).all()
    with pytest.raises(ConfigError, match="cannot be dealt"):
        split_graded(only(both, np.flatnonzero(both.success)[:2]), 0.3, 1)


def test_datasets_of_different_sims_share_no_starts(demos: Path) -> None:
    apart = join_graded([of_both(demos), of_both(demos)], same_starts=False)
    assert len(set(apart.start)) == 48 and apart.family[:24] == apart.family[24:]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(0, 2**31 - 1))
def test_frames_are_drawn_by_episodes(lengths: list[int], seed: int) -> None:
    episode = np.repeat(np.arange(len(lengths)), lengths)
    drawn = frame_draws(episode, 4000, torch.Generator().manual_seed(seed))
    assert int(drawn.min()) >= 0 and int(drawn.max()) < len(episode)
    share = np.bincount(episode[drawn.numpy()], minlength=len(lengths)) / 4000
    # a share p of 4000 draws deviates by less than six times sqrt(p / 4000)
    assert np.abs(share - 1 / len(lengths)).max() <= 6 * np.sqrt(1 / len(lengths) / 4000)


# the network


def test_words_are_read_in_their_order() -> None:
    torch.manual_seed(0)
    encoder = WordEncoder(9, 4, 8, 16)
    one, other = torch.tensor([[1, 2, 3, 0]]), torch.tensor([[3, 2, 1, 0]])
    assert not torch.equal(encoder(one), encoder(other))
    assert (encoder.table(torch.tensor(0)) == 0).all()


def test_everything_shown_matters(trained: ProcessReward, demos: Path) -> None:
    obs = {key: torch.from_numpy(x[:8]) for key, x in of_both(demos).obs.items()}
    said = trained.net.probability(obs)
    for key in SEEN:
        changed = {**obs, key: obs[key].roll(1, -1 if key == "instruction" else 1)}
        assert not torch.equal(trained.net.probability(changed), said), key


# training and judging


def test_it_learns_how_far_an_episode_is(trained: ProcessReward, demos: Path, failures: Path) -> None:
    verdict = trained.verdict
    assert verdict.rank.value > 0.6 and verdict.failures > 0 and verdict.error < 0.3
    assert verdict.shortcomings() == ()
    _, process_verdict = split_graded(of_both(demos, failures), SMALL.held_out, SMALL.seed)
    assert judge(trained.net, process_verdict, LENIENT).verdict == verdict
    # a network that was not trained falls short of what this one reaches
    torch.manual_seed(5)
    fresh = ImageRewardNet(specs(), normalization(specs(), process_verdict.obs), SMALL.model)
    assert judge(fresh, process_verdict, AcceptanceThresholds()).verdict.shortcomings()


def test_training_again_gives_the_same(demos: Path) -> None:
    few = replace(SMALL, updates=5, batch=16)
    data = of_both(demos)
    ids = [train_process(data, specs(), cfg, {}).reward.identity for cfg in (few, few, replace(few, seed=1))]
    assert ids[0] == ids[1] != ids[2]


def test_without_failures_nothing_is_said_of_them(demos: Path) -> None:
    verdict = train_process(of_both(demos), specs(), replace(SMALL, updates=5), {}).reward.verdict
    assert verdict.separation is None and verdict.failures == 0


def test_what_falls_short_is_named() -> None:
    verdict = HeldOutVerdict(Interval(0.2, 0.1, 0.3, 9), 0.55, 0.4, 4, AcceptanceThresholds())
    assert verdict.shortcomings() == (
        "its rank correlation with time is 0.20: expected 0.6",
        "its separation of failures is 0.55: expected 0.7",
        "its calibration error is 0.400: expected at most 0.15",
    )
    assert verdict._replace(rank=Interval(float("nan"), 0, 0, 0)).shortcomings()[0].startswith("its rank correlation")
    assert HeldOutVerdict(Interval(0.6, 0, 1, 9), None, 0.15, 0, AcceptanceThresholds()).shortcomings() == ()


def test_on_a_policys_reading_only_the_head_learns(demos: Path, failures: Path, tmp_path: Path) -> None:
    policy = policy_on(tabletop(1))
    reading = policy.observation_encoder()
    reward = train_process(of_both(demos, failures), specs(), SMALL, {}, policy).reward
    own = {name: x for name, x in reward.net.named_parameters() if x.requires_grad}
    assert own and all(name.startswith("head.") for name in own)
    kept: Any = reward.net
    for name, value in reading.state_dict().items():
        assert torch.equal(value, kept.reader.state_dict()[name]), name
    obs = {key: torch.from_numpy(x[:6]) for key, x in of_both(demos).obs.items()}
    assert not torch.equal(
        reward.net.probability(obs), reward.net.probability({**obs, "state": obs["state"].roll(1, 0)})
    )
    loaded = load_process(save_process(tmp_path / "r", reward))
    assert loaded.identity == reward.identity
    assert torch.equal(loaded.net.probability(obs), reward.net.probability(obs))


def test_what_cannot_be_trained_is_refused(demos: Path) -> None:
    data = of_both(demos)
    for cfg, message in (
        (replace(SMALL, updates=0), "updates is 0"),
        (replace(SMALL, lr=0.0), r"lr is 0\.0"),
        (replace(SMALL, held_out=1.0), r"held_out is 1\.0"),
        (replace(SMALL, bar=AcceptanceThresholds(min_rank=2.0)), r"min_rank is 2\.0"),
    ):
        with pytest.raises(ConfigError, match=message):
            train_process(data, specs(), cfg, {})
    with pytest.raises(CapabilityError, match="policy Linear lacks HasObservationEncoder"):
        train_process(data, specs(), SMALL, {}, torch.nn.Linear(1, 1))
    larger = policy_on(tabletop(1, image_size=64))
    with pytest.raises(ConfigError, match="the policy reads observation 'image_flat_near'"):
        train_process(data, specs(), SMALL, {}, larger)


# files


def test_what_is_read_back_is_the_same_bit_for_bit(trained: ProcessReward, stored: Path, demos: Path) -> None:
    loaded = load_process(stored)
    assert loaded.verdict == trained.verdict
    assert (loaded.identity, loaded.about) == (trained.identity, trained.about)
    obs = of_both(demos).tensors()
    assert torch.equal(loaded.net.probability(obs), trained.net.probability(obs))


def test_altered_files_are_refused(stored: Path, tmp_path: Path) -> None:
    for name in ("weights.safetensors", "state.json", "manifest.json"):
        copy = shutil.copytree(stored, tmp_path / name)
        data = bytearray((copy / name).read_bytes())
        data[len(data) // 2] ^= 1
        (copy / name).write_bytes(data)
        with pytest.raises(DataError, match=name):
            load_process(copy)
    with pytest.raises(DataError, match="is of kind 'process-reward': expected 'success-classifier'"):
        load_classifier(stored)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["weights"].pop("head.layers.0.bias"), r"lacks weights: head\.layers\.0\.bias"),
        (lambda t: t["weights"]["head.layers.2.bias"].add_(0.01), "fingerprint differs by"),
        (lambda t: t["description"].update(kind="sihgt"), "does not fit this version"),
        (lambda t: t["verdict"].pop("error"), "does not fit this version"),
        # a verdict that was touched up
        (lambda t: t["verdict"].update(error=0.0), "its digest differs"),
        (lambda t: t["verdict"]["bar"].update(max_error=1.0), "its digest differs"),
    ],
)
def test_what_is_not_what_was_saved_is_refused(stored: Path, tmp_path: Path, change: Any, message: str) -> None:
    tree = read_checkpoint(stored).tree
    change(tree)
    with pytest.raises(DataError, match=message):
        load_process(write_checkpoint(tmp_path / "c", tree, step=1, kind="process-reward"))


# the term


def collected(steps: int = 40) -> Rollout:
    """Decisions of four actions each on the real sim, some of which end by a time-out or by pointing well enough."""
    sim = tabletop(8, limit_s=1.0)
    expert = sim.make_expert(seed=1)
    started = torch.ones(8, dtype=torch.bool)
    collector = Collector(sim, 1, 0.9)
    collector.reset(0)

    def decide(obs: dict[str, torch.Tensor]) -> Decision:
        actions = expert.act(started)
        # half of the envs do what the expert does, the others stand
        actions[4:] = 0
        started[:] = False
        return Decision(actions[:, None], {})

    return collector.collect(decide, steps)


def test_the_term_of_a_real_rollout(trained: ProcessReward) -> None:
    rollout = collected()
    assert rollout.terminated.any() and rollout.truncated.any()
    found = ProcessTerm(trained, tabletop(8), "potential", 2.0, 0.9).term(rollout)
    flat = {key: x.flatten(0, 1) for key, x in rollout.obs.items()}
    after = {key: x.flatten(0, 1) for key, x in rollout.next_obs.items()}
    phi, then = (trained.net.probability(obs).float().view_as(rollout.reward) for obs in (flat, after))
    torch.testing.assert_close(found.progress, phi)
    kept = torch.where(rollout.terminated, 0.0, then)
    torch.testing.assert_close(found.reward, 2.0 * (0.9**rollout.length * kept - phi))
    raw = ProcessTerm(trained, tabletop(8), "raw", 0.5, 0.9).term(rollout)
    # each of these decisions is one step, so the progress comes at once
    torch.testing.assert_close(raw.reward, 0.5 * then)


def test_an_end_gives_back_what_was_lent(trained: ProcessReward) -> None:
    """Over each whole episode of a real rollout the potential terms sum up to minus the potential of its start."""
    rollout = collected()
    found = ProcessTerm(trained, tabletop(8), "potential", 1.0, 0.9).term(rollout)
    whole = 0
    for env in range(8):
        ends = torch.nonzero(rollout.terminated[:, env] | rollout.truncated[:, env])[:, 0].tolist()
        for first, last in zip([0, *(end + 1 for end in ends)], ends, strict=False):
            steps = torch.arange(last - first + 1)
            total = float((0.9**steps * found.reward[first : last + 1, env]).sum())
            expected = -float(found.progress[first, env])
            if not rollout.terminated[last, env]:
                final = {key: x[last, env][None] for key, x in rollout.next_obs.items()}
                expected += 0.9 ** len(steps) * float(trained.net.probability(final))
            assert total == pytest.approx(expected, abs=1e-5)
            whole += 1
    assert whole >= 8


def test_padding_gets_nothing(trained: ProcessReward) -> None:
    rollout = collected(6)
    valid = rollout.valid.clone()
    valid[2:, 3] = False
    for form in ("potential", "raw"):
        term = ProcessTerm(trained, tabletop(8), form, 1.0, 0.9).term(rollout._replace(valid=valid))
        assert (term.reward[2:, 3] == 0).all() and (term.progress[2:, 3] == 0).all()
        assert (term.reward[valid] != 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "potentail"}, "process_form 'potentail' is unknown: did you mean 'potential'"),
        ({"scale": 0.0}, r"process_scale is 0\.0"),
        ({"scale": float("inf")}, "process_scale is inf"),
    ],
)
def test_settings_of_the_term_are_refused(trained: ProcessReward, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ProcessTerm(trained, tabletop(1), **{"form": "raw", "scale": 1.0, **options}, gamma=0.9)


# VLA-RL

ALGO = vla_rl.CFG


def learner(reward: Path | None, sim: Any = tabletop, **changes: Any) -> VlaRlLearner:
    cfg = replace(ALGO, process_reward=None if reward is None else str(reward), **changes)
    return cfg.build(Setup(sim, None, policy_on(tabletop(1)), None, seed=0))


def test_it_is_added_in_the_rollout_and_logged_apart(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, shaped = learner(None), learner(stored, process_scale=0.5)
    seen: list[torch.Tensor] = []
    for made in (plain, shaped):
        update = made._update
        monkeypatch.setattr(made, "_update", lambda batch, u=update: (seen.append(batch.value_target), u(batch))[1])
    first, second = plain.iterate(), shaped.iterate()
    # the same seed: the same rollout, the same sparse reward, other targets
    assert "process_reward" not in first and second["process_reward"] != 0 and 0 < second["process_progress"] < 1
    assert first["rollout_reward"] == second["rollout_reward"]
    assert not torch.equal(seen[0], seen[1])
    assert "rollout_return" not in first or first["rollout_return"] == second["rollout_return"]


def test_a_process_reward_for_other_observations_is_refused(stored: Path) -> None:
    def larger() -> Any:
        return tabletop(8, image_size=64)

    with pytest.raises(
        ConfigError, match=r"the process reward was trained on observation 'image_flat_near'.*\(64, 64, 3\)"
    ):
        replace(ALGO, process_reward=str(stored)).build(
            Setup(larger, None, policy_on(tabletop(1, image_size=64)), None, 0)
        )


DOCS = ROOT / "docs"


def test_the_pages_process_reward_is_for_the_run_that_the_pages_train() -> None:
    """A toy on what the page records, and a toy policy on what the page clones, in the sim of the page's run."""

    def recorded(page: str) -> Any:
        (said,) = set(re.findall(r'O="(--sim.image [^"]*)"', (DOCS / page).read_text()))
        return build_sim(parse_options(sim_options(SIM), "robotrl demos", said.split()), 2, 0)

    (line,) = re.findall(r"robotrl train (.*--algo.process-reward .*)", (DOCS / "algorithms" / "vla-rl.md").read_text())
    name, *words = shlex.split(line)
    cfg, _ = parse_config(*split_names([name, *words]))
    sim = build_sim(options_of(cfg.sim), 2, 0)
    check_fit(policy_on(recorded("vla-finetuning.md")), sim)
    source = recorded("rewards/process.md")
    shown = {key: spec for key, spec in source.observation_spec.items() if key not in privileged(source)}
    obs = source.reset(0)
    net = ImageRewardNet(shown, normalization(shown, {key: obs[key].numpy() for key in shown}), SMALL.model)
    reward = ProcessReward(
        net, HeldOutVerdict(Interval(0.9, 0.8, 1.0, 9), 0.9, 0.1, 4, AcceptanceThresholds()), {}, "toy"
    )
    added = ProcessTerm(reward, sim, cfg.algo.process_form, cfg.algo.process_scale, cfg.algo.gamma)
    rollout = Collector(sim, 1, 0.9)
    rollout.reset(0)
    found = rollout.collect(lambda seen: Decision(torch.zeros(len(seen["state"]), 1, 5), {}), 2)
    assert (added.term(found).reward != 0).all()


def test_one_that_fell_short_is_refused(trained: ProcessReward, tmp_path: Path, demos: Path) -> None:
    strict = replace(SMALL, updates=1, bar=AcceptanceThresholds(min_rank=1.0, max_error=0.0))
    path = save_process(tmp_path / "short", train_process(of_both(demos), specs(), strict, {}).reward)
    with pytest.raises(ConfigError, match=r"algo\.process_reward fell short when it was judged: its rank correlation"):
        learner(path)
    with raises_naming(ConfigError, "algo.process_form", "x"):
        learner(save_process(tmp_path / "good", trained), process_form="x")
    with pytest.raises(DataError, match="does not exist"):
        learner(tmp_path / "nothing")


def test_a_state_goes_on_with_the_reward_that_it_holds(stored: Path, trained: ProcessReward) -> None:
    made = learner(stored)
    state = made.state()
    other = replace(ALGO, process_reward="gone").build(
        Setup(tabletop, None, policy_on(tabletop(1)), None, seed=0, resumed=True)
    )
    other.load(state)
    assert other._process is not None and other._process.reward.identity == trained.identity
    tree = process_tree(trained)
    tree["weights"]["head.layers.0.weight"][0, 0] += 1.0
    with pytest.raises(DataError, match="the checkpoint: the process reward's fingerprint differs"):
        process_from_tree(tree, "the checkpoint")


@pytest.mark.parametrize("form", ["potential", "raw"])
def test_a_stopped_run_ends_the_same_without_the_directory(stored: Path, tmp_path: Path, form: Any) -> None:
    reward = shutil.copytree(stored, tmp_path / "reward")
    options = ("image=flat_near", "image_size=32", "families=point", "limit_s=1.0")
    cfg: TrainCfg[Any, Any] = TrainCfg(
        SimCfg(SIM, 8, options),
        replace(ALGO, process_reward=str(reward), process_form=form),
        TokenVlaCfg(),
        init_from=saved(tmp_path / "clone", policy_on(tabletop(1))),
        evaluation=EvalCfg(every=0, episodes=4, num_envs=4, animation=0),
        checkpoint_every=1,
    )
    train(cfg, tmp_path / "whole")
    train(cfg, tmp_path / "cut", [StopAt(2)])
    shutil.rmtree(reward)
    resume(tmp_path / "cut")
    assert_same_end(tmp_path / "whole", tmp_path / "cut")
    lines = read_scalars(tmp_path / "whole" / "scalars.jsonl")
    assert all("process_reward" in line for line in lines)
    # an evaluation never uses it: what it returns is the sim's own sparse reward
    assert lines[-1]["eval_return"] == lines[-1]["eval_success"]


# the commands


def test_from_demonstrations_to_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--sim.image", "flat_near", "--sim.image-size", "32", "--sim.families", "point", "lift"]
    demos, labels, out = tmp_path / "demos", tmp_path / "labels.json", tmp_path / "reward"
    assert main(["demos", SIM, "--out", str(demos), "--episodes", "16", "--noise", "0.1", *options]) == 0
    assert main(["reward", "milestones", str(demos), "--out", str(labels)]) == 0
    said = capsys.readouterr().out
    assert "gripper state.left_finger_pos, state.right_finger_pos; hand state.tip_vel_x_w" in said
    assert "milestones of a success" in said and "lift" in said and "point" in said
    found = json.loads(labels.read_text())
    dataset, own = labeled(demos)
    assert found["schema_version"] == 1 and len(found["episodes"]) == 16
    assert np.concatenate([e["progress"] for e in found["episodes"]]) == pytest.approx(own.progress, abs=1e-6)
    assert found["episodes"][0]["milestones"][-1] == {"frame": int(dataset.offsets[1]), "kind": "end"}

    low = ["--min-rank", "0", "--max-error", "0.5"]
    assert main(["reward", "process", str(demos), "--out", str(out), "--updates", "40", *low]) == 0
    said = capsys.readouterr().out
    assert "judged on 4 held-out episodes" in said and "no failures to part from" in said and "it may be used" in said
    assert main(["reward", "judge", str(out), str(demos)]) in (0, 1)
    assert "judged on 16 episodes" in capsys.readouterr().out

    sim = ["--sim.num-envs", "4", "--sim.image", "flat_near", "--sim.image-size", "32"]
    sim += ["--sim.families", "point", "--sim.limit-s", "1.0"]
    algo = ["--algo.env-steps", "64", "--algo.num-steps", "8", "--algo.critic-warmup-env-steps", "1"]
    few = ["--evaluation.episodes", "4", "--evaluation.num-envs", "4", "--evaluation.animation", "0"]
    start = ["--init-from", saved(tmp_path / "clone", policy_on(tabletop(1)))]
    given = ["--algo.process-reward", str(out), "--algo.process-scale", "0.3", "--run-dir", str(tmp_path / "run")]
    assert main(["train", *TABLETOP_VLA_RL, *start, *sim, *algo, *few, *given]) == 0
    assert Run.open(tmp_path / "run").config["algo"]["process_scale"] == 0.3
    assert all("process_progress" in line for line in read_scalars(tmp_path / "run" / "scalars.jsonl"))
    given = ["--reward", "task", "process", "--reward.process.path", str(out), "--run-dir", str(tmp_path / "source")]
    assert main(["train", *TABLETOP_VLA_RL, *start, *sim, *algo, *few, *given]) == 0
    lines = read_scalars(tmp_path / "source" / "scalars.jsonl")
    assert all(line["reward_valid/process"] == 1.0 and abs(line["reward/process"]) <= 1.0 for line in lines)


def test_one_that_falls_short_is_told_and_kept_out(demos: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "reward"
    given = ["reward", "process", str(demos), "--out", str(out), "--updates", "2", "--max-error", "0"]
    assert main(given) == 1
    assert "it falls short, and no run may use it: " in capsys.readouterr().out
    assert load_process(out).verdict.shortcomings()


def test_the_commands_refuse_in_one_line(demos: Path, tmp_path: Path, capsys: Any) -> None:
    for typed, message in (
        (["milestones", str(tmp_path / "nothing")], "does not exist"),
        (["milestones", str(demos), "--out", str(tmp_path / "labels.txt")], "expected a name that ends in .json"),
        (["milestones", str(demos), "--gripper", "state.left_fingr"], "gripper 'state.left_fingr' is unknown"),
        (["process", "--out", str(tmp_path / "x")], "DATASET is not given"),
        (["process", str(demos), "--out", str(demos)], "exists already"),
        (["process", str(demos), "--out", str(tmp_path / "x"), "--keys", "stat"], "observation 'stat' is unknown"),
        (
            ["process", str(demos), "--out", str(tmp_path / "x"), "--keys", "state", "--reader", "run"],
            "--keys is state, and --reader is given",
        ),
        (["judge", str(demos), str(demos)], "error"),
    ):
        assert main(["reward", *typed]) == 2, typed
        assert message in capsys.readouterr().err, typed
