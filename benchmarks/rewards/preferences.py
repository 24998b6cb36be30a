"""Preferences: how well a reward from 500 noisy answers orders segments, and what policies learn from it.

A dataset of good and bad behavior of a sim's expert is labeled by synthetic answers, of which a tenth is wrong, and
relabeled. IQL on it is compared with IQL on the true reward and with cloning. Online, RLPD and PPO learn from the
reward of the answers and from the true one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.cli.main import main
from robotrl.datasets.layout import ACTION, observation_key
from robotrl.datasets.reader import Dataset, read_dataset
from robotrl.datasets.writer import DatasetWriter
from robotrl.errors import RobotrlError
from robotrl.fn.progress.metrics import rank_correlation
from robotrl.rewards.preferences.ensemble import Form
from robotrl.rewards.preferences.labelers.desk import LabelingCfg
from robotrl.rewards.preferences.labelers.synthetic import SyntheticCfg, Truth
from robotrl.rewards.preferences.offline import OfflinePreferencesCfg, label_pairs, learn_offline, observed
from robotrl.rewards.preferences.relabeling import relabeled_rewards, write_relabeled
from robotrl.rewards.preferences.segments import dataset_pool, gather, possible_starts
from robotrl.rewards.preferences.stored import load_preferences, save_preferences
from robotrl.rewards.preferences.training import PreferenceTrainingCfg, train_preferences
from robotrl.rewards.preferences.values import ValueFitCfg, fit_values, true_regret
from robotrl.rollout.demos import collect_demos
from robotrl.run.logs import read_scalars

LABELS, ERROR = 500, 0.1
COUNTS = (50, 100, 200, 500)
"""Answers of the curve of label efficiency."""


class Family(NamedTuple):
    """A sim with behavior of its expert."""

    sim: str
    options: Mapping[str, Any]
    good: tuple[float, float]
    """Noise and episode noise of the better half of the episodes."""
    bad: tuple[float, float]
    episodes: int
    length: int
    """Steps of a segment."""
    policy: tuple[str, ...]
    """Flags of the policy and its evaluation."""
    training: PreferenceTrainingCfg = PreferenceTrainingCfg()
    values: ValueFitCfg = ValueFitCfg()


PUSH = Family("mujoco/push", {"reward": "shaped"}, (0.1, 0.0), (0.5, 0.5), 300, 25, ("--policy", "flow"))
DRIVE = Family("bev/drive", {}, (0.0, 0.0), (0.6, 1.0), 300, 30, ("--policy", "gaussian"))
FAMILIES = {"push": PUSH, "drive": DRIVE}


def recorded(family: Family, out: Path, seed: int) -> Dataset:
    """The dataset of a family, recorded unless it is there: one half good, one half bad behavior."""
    path = out / "mixed"
    if not path.exists():
        parts: list[Dataset] = []
        for number, (noise, episode_noise) in enumerate((family.good, family.bad)):
            part = out / f"part{number}"
            collect_demos(
                family.sim,
                part,
                episodes=family.episodes // 2,
                noise=noise,
                episode_noise=episode_noise,
                seed=2 * seed + number,
                keep="all",
                sim_options=family.options,
            )
            parts.append(read_dataset(part))
        merge(parts, path)
    return read_dataset(path)


def merge(parts: Sequence[Dataset], out: Path) -> None:
    """Write the episodes of several datasets of one sim as one."""
    first = parts[0]
    assert first.observation_spec is not None and first.action_spec is not None
    with DatasetWriter(
        out,
        fps=round(first.fps),
        observation_spec=first.observation_spec,
        action_spec=first.action_spec,
        robot_type=first.robot_type,
        provenance=first.provenance,
    ) as writer:
        for part in parts:
            for episode in range(part.num_episodes):
                rows = slice(int(part.offsets[episode]), int(part.offsets[episode + 1]))
                writer.add_episode(
                    {key: part.frames(observation_key(key))[rows] for key in first.observation_spec},
                    part.frames(ACTION)[rows],
                    part.frames("next.reward")[rows],
                    success=bool(part.episodes["success"][episode]),
                    truncated=bool(part.frames("next.truncated")[rows][-1]),
                    task=part.tasks[0],
                    extra={"state_id": int(part.episodes["state_id"][episode])},
                )
        writer.finish()


def settings(family: Family, form: Form, truth: Truth, labels: int, seed: int) -> OfflinePreferencesCfg:
    """Settings of the answers and of the ensemble."""
    cfg = OfflinePreferencesCfg(labels=labels, values=family.values, seed=seed)
    labeler = LabelingCfg(length=family.length, synthetic=SyntheticCfg(truth, ERROR, seed=seed))
    return replace(cfg, labeler=labeler, training=replace(family.training, form=form, seed=seed))


def efficiency(dataset: Dataset, family: Family, seed: int, counts: Sequence[int] = COUNTS) -> dict[str, float]:
    """Rank correlation with the truth, over all segments, of the scores learned from so many answers, for each pair of
    a truth that the answers go by and a form that is learned."""
    specs = observed(dataset, ())
    assert dataset.action_spec is not None
    pool = dataset_pool(dataset, list(specs))
    starts = possible_starts(pool, family.length)
    starts = starts[np.random.default_rng(seed).permutation(len(starts))[:4000]]
    segments = gather(pool, starts, family.length)
    found: dict[str, float] = {}
    for truth in ("return", "regret"):
        cfg = settings(family, "return", truth, max(counts), seed)
        labeled = label_pairs(dataset, specs, cfg)
        merit = segments.reward.double().sum(1).numpy()
        if truth == "regret":
            values = fit_values(pool, specs, cfg.values)
            merit = -true_regret(pool, values, starts, family.length, cfg.values.gamma).double().numpy()
        for form in ("return", "regret"):
            for count in counts:
                some = labeled.pairs.rows(np.arange(min(count, len(labeled.pairs.choice))))
                training = replace(cfg.training, form=form)
                learned = train_preferences(some, specs, dataset.action_spec, training, {})
                score = learned.ensemble.segment_scores(segments).mean(1).double().numpy()
                found[f"rank_{truth}_{form}_{count}"] = rank_correlation(score, merit)
    return found


def relabeled(dataset: Dataset, family: Family, arm: str, seed: int, out: Path, labels: int = LABELS) -> Path:
    """Directory of the dataset with the rewards of an arm: "true", "return" or "regret", all of deviation 1."""
    path = out / f"data-{arm}"
    if path.exists():
        return path
    if arm == "true":
        own = dataset.frames("next.reward").reshape(-1)
        rewards: NDArray[np.float32] = (own / own.std()).astype(np.float32)
    else:
        learned = load_preferences(learned_on(dataset, family, arm, seed, out, labels))
        rewards = relabeled_rewards(dataset, learned, 0.0, 0.0)
    write_relabeled(dataset, rewards, path, {"arm": arm})
    return path


def trained(family: Family, data: Path, out: Path, seed: int, *flags: str) -> dict[str, float]:
    """Success and return of a policy that was trained on a dataset, on held-out starts, with its seconds."""
    options = [word for name, value in family.options.items() for word in (f"--sim.{name}", str(value))]
    command = ["train", "--sim", family.sim, *options, *family.policy, "--dataset", str(data), "--seed", str(seed)]
    code = main([*command, "--evaluation.every", "0", "--accept-data", "--run-dir", str(out), *flags])
    if code:
        raise RobotrlError(f"robotrl train ended with code {code}")
    last = read_scalars(out / "scalars.jsonl")[-1]
    return {"success": last["eval_success"], "return": last["eval_return"], "train_s": last["learn_s"]}


def offline(
    name: str, arm: str, seed: int, out: Path, updates: int = 6000, episodes: int | None = None, *flags: str
) -> dict[str, float]:
    """Results of one arm: "clone", or IQL on the rewards of "true", "return" or "regret"."""
    family = FAMILIES[name] if episodes is None else FAMILIES[name]._replace(episodes=episodes)
    dataset = recorded(family, out, seed)
    data = relabeled(dataset, family, "true" if arm == "clone" else arm, seed, out)
    algo = "bc" if arm == "clone" else "iql"
    shared = ("--algo", algo, "--algo.updates", str(updates))
    return trained(family, data, out / f"run-{arm}", seed, *shared, *flags)


def learned_on(dataset: Dataset, family: Family, arm: str, seed: int, out: Path, labels: int = LABELS) -> Path:
    """Directory of the preferences of an arm, "return" or "regret", learned there unless they are there."""
    path = out / f"model-{arm}"
    if not path.exists():
        form: Form = "regret" if arm == "regret" else "return"
        save_preferences(path, learn_offline(dataset, (), settings(family, form, "return", labels, seed))[0])
    return path


def online(name: str, arm: str, seed: int, out: Path, *flags: str, episodes: int | None = None) -> dict[str, float]:
    """Results of one arm online: RLPD on push, with the dataset as prior data, and PPO on drive.

    The reward is the sim's own ("true"), or was learned from answers on the dataset ("return", "regret").
    """
    family = FAMILIES[name] if episodes is None else FAMILIES[name]._replace(episodes=episodes)
    dataset = recorded(family, out, seed)
    reward: tuple[str, ...] = ()
    if arm != "true":
        model = learned_on(dataset, family, arm, seed, out)
        reward = ("--reward", "preferences", "--reward.preferences.model", str(model))
    options = [word for key, value in family.options.items() for word in (f"--sim.{key}", str(value))]
    command = ["train", "--seed", str(seed), "--run-dir", str(out / f"online-{arm}"), *reward, *flags]
    if name == "push":
        data = relabeled(dataset, family, arm, seed, out)
        command[1:1] = ["--sim", family.sim, *options, "--algo", "rlpd", "--dataset", str(data), "--accept-data"]
    else:
        command.insert(1, "drive-ppo")
    code = main(command)
    if code:
        raise RobotrlError(f"robotrl train ended with code {code}")
    last = read_scalars(out / f"online-{arm}" / "scalars.jsonl")[-1]
    return {"success": last["eval_success"], "return": last["eval_return"], "train_s": last["learn_s"]}


def run(method: str, seed: int, out: Path) -> dict[str, Any]:
    """Results of a cell: "preferences-NAME" all that is learned offline, "preferences-online-NAME" online."""
    _, *words = method.split("-")
    name = words[-1]
    found: dict[str, Any] = {}
    if words[0] == "online":
        arms = {arm: online(name, arm, seed, out) for arm in ("true", "return", "regret")}
    else:
        found |= efficiency(recorded(FAMILIES[name], out, seed), FAMILIES[name], seed)
        arms = {arm: offline(name, arm, seed, out) for arm in ("clone", "true", "return", "regret")}
    return found | {f"{arm}_{key}": value for arm, result in arms.items() for key, value in result.items()}
