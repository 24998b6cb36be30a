"""Preferences: how well a reward from 500 noisy answers orders segments, and what policies learn from it.

A dataset of skilled and bad behavior is labeled by synthetic answers, of which a tenth is wrong, and relabeled. IQL on
it is compared with IQL on the true reward and with cloning. Online, RLPD and PPO learn from the reward of the answers
and from the true one.

The bad behavior is systematically bad. What is merely noisy cloning averages out by itself, and a reward adds nothing
to it. On push the skilled half passes the obstacle on the left, and the clumsy one, whose errors last a whole episode,
on the right. On drive a driver with a heavy foot presses the accelerator more than the skilled one in every step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from robotrl.cli.main import main
from robotrl.datasets.merging import merge
from robotrl.datasets.reader import Dataset, read_dataset
from robotrl.errors import RobotrlError
from robotrl.fn.progress.metrics import rank_correlation
from robotrl.rewards.network import RewardNetCfg
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
from robotrl.spec import HasExpert

LABELS, ERROR = 500, 0.1
COUNTS = (50, 100, 200, 500)
"""Answers of the curve of label efficiency."""
RETURN_DEVIATION = 10.0
"""Standard deviation of the returns of a dataset's episodes, for each reward."""
PRESSED = (0.5, 1.0)
"""Range of what a heavy foot adds to the accelerator, of 1."""


class HeavyFoot:
    """The brisk driver with a constant pressed onto the accelerator, drawn once per episode: brakes late, drives fast.

    Args:
        sim: the driving sim.
        seed: seed of the driver and of the constants.
    """

    def __init__(self, sim: HasExpert, seed: int) -> None:
        self._driver = sim.make_expert(0.05, 0.0, "brisk", seed)
        self._rng = np.random.default_rng(seed)
        self._pressed: NDArray[np.float32] = np.zeros(0, np.float32)

    def act(self, obs: Mapping[str, NDArray[Any]], started: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Actions (N, 2), within [-1, 1]."""
        if not len(self._pressed):
            self._pressed = np.zeros(len(started), np.float32)
        self._pressed[started] = self._rng.uniform(*PRESSED, int(started.sum()))
        actions = self._driver.act(torch.from_numpy(started)).numpy().copy()
        actions[:, 1] += self._pressed
        return actions.clip(-1.0, 1.0)


class Behavior(NamedTuple):
    """Part of a dataset: episodes of one demonstrator."""

    episodes: int
    noise: float = 0.0
    episode_noise: float = 0.0
    mode: str | None = None
    expert: type[HeavyFoot] | None = None
    """Instead of the sim's expert."""


class Family(NamedTuple):
    """A sim with skilled and bad behavior, and what learns from it."""

    sim: str
    options: Mapping[str, Any]
    behaviors: tuple[Behavior, ...]
    """The skilled one first."""
    keys: tuple[str, ...]
    """Observations that a learned reward reads; empty: all but privileged ones."""
    length: int
    """Steps of a segment."""
    policy: tuple[str, ...]
    """Flags of the policy, the same one for cloning and IQL."""
    clone: tuple[str, ...]
    """Flags of cloning."""
    iql: tuple[str, ...]
    """Flags of IQL, the same ones for each reward."""
    online: tuple[str, ...]
    """Arguments of `robotrl train` that are the same for each reward online."""
    asks_online: bool
    """True if answers are asked for while the online learner trains; False if its reward is that of the dataset."""
    training: PreferenceTrainingCfg = PreferenceTrainingCfg()
    values: ValueFitCfg = ValueFitCfg()


GAUSSIAN = ("--policy", "gaussian", "--policy.hidden", "256", "256", "--evaluation.episodes", "384")
CLONE = ("--algo", "bc", "--algo.updates", "3000", "--algo.updates-per-iteration", "1000")
IQL = (
    *("--algo", "iql", "--algo.updates", "5000", "--algo.updates-per-iteration", "1000", "--algo.batch", "512"),
    *("--algo.critic-hidden", "128", "128", "--algo.critic-lr", "1e-3", "--algo.value-lr", "1e-3"),
    *("--algo.tau", "0.02", "--algo.ema", "0.998"),
)
"""Settings of cloning and IQL were found at seed 10, which is none of the table's."""
ASKED = (
    *("--reward", "preferences", "--reward.preferences.labels", str(LABELS), "--reward.preferences.pairs", "random"),
    *("--reward.preferences.per-round", "50", "--reward.preferences.every-env-steps", "65536"),
)
"""Ten rounds in the first 655,360 env steps, at random: what an ensemble disagrees on is also what is close."""
PUSH = Family(
    "mujoco/push",
    {"reward": "shaped"},
    (Behavior(600, 0.15, mode="left"), Behavior(600, 0.15, 1.0, mode="right")),
    (),
    25,
    GAUSSIAN,
    CLONE,
    (*IQL, "--algo.beta", "1", "--algo.lr", "1e-3"),
    ("peg-insert-rlpd", "--algo.env-steps", "12000"),
    False,
)
DRIVE = Family(
    "bev/drive",
    {"polylines": 0, "hold": 2, "end_penalty": 10.0},
    (Behavior(300, 0.05), Behavior(600, expert=HeavyFoot)),
    ("scalars",),
    30,
    GAUSSIAN,
    CLONE,
    (*IQL, "--algo.beta", "5", "--algo.lr", "5e-4", "--algo.gamma", "0.97"),
    ("drive-ppo", "--algo.env-steps", "1000000", "--evaluation.episodes", "384"),
    True,
    PreferenceTrainingCfg(model=RewardNetCfg(hidden=(32,))),
)
FAMILIES = {"push": PUSH, "drive": DRIVE}


def recorded(family: Family, out: Path, seed: int) -> Dataset:
    """The dataset of a family, recorded unless it is there."""
    path = out / "mixed"
    if not path.exists():
        parts: list[Dataset] = []
        for number, behavior in enumerate(family.behaviors):
            part = out / f"part{number}"
            collect_demos(
                family.sim,
                part,
                episodes=behavior.episodes,
                noise=behavior.noise,
                episode_noise=behavior.episode_noise,
                mode=behavior.mode,
                expert=behavior.expert,
                seed=2 * seed + number,
                keep="all",
                sim_options=family.options,
            )
            parts.append(read_dataset(part))
        merge(parts, path)
    return read_dataset(path)


def settings(family: Family, form: Form, truth: Truth, labels: int, seed: int) -> OfflinePreferencesCfg:
    """Settings of the answers and of the ensemble."""
    cfg = OfflinePreferencesCfg(labels=labels, values=family.values, seed=seed)
    labeler = LabelingCfg(length=family.length, synthetic=SyntheticCfg(truth, ERROR, seed=seed))
    return replace(cfg, labeler=labeler, training=replace(family.training, form=form, seed=seed))


def efficiency(dataset: Dataset, family: Family, seed: int, counts: Sequence[int] = COUNTS) -> dict[str, float]:
    """Rank correlation with the truth, over all segments, of the scores learned from so many answers, for each pair of
    a truth that the answers go by and a form that is learned."""
    specs = observed(dataset, family.keys)
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


class Rewards(NamedTuple):
    """Rewards of the steps of a dataset, and what they were multiplied by."""

    values: NDArray[np.float32]
    """(F,)."""
    factor: float


def rewards_of(dataset: Dataset, family: Family, arm: str, seed: int, out: Path, labels: int = LABELS) -> Rewards:
    """Rewards of an arm: "true", "return" or "regret".

    The returns of the dataset's episodes have the same deviation in all arms: the same temperature of IQL then means
    the same. The deviation of single steps would not do, for a learned reward is smoother than a sum with a bonus.
    """
    if arm == "true":
        own = dataset.frames("next.reward").reshape(-1)
    else:
        learned = load_preferences(learned_on(dataset, family, arm, seed, out, labels))
        own = relabeled_rewards(dataset, learned, 0.0, 0.0)
    returns = np.add.reduceat(own.astype(np.float64), dataset.offsets[:-1])
    factor = RETURN_DEVIATION / float(returns.std())
    return Rewards((factor * own).astype(np.float32), factor)


def relabeled(dataset: Dataset, family: Family, arm: str, seed: int, out: Path, labels: int = LABELS) -> Path:
    """Directory of the dataset with the rewards of an arm; see `rewards_of`."""
    path = out / f"data-{arm}"
    if not path.exists():
        write_relabeled(dataset, rewards_of(dataset, family, arm, seed, out, labels).values, path, {"arm": arm})
    return path


def trained(family: Family, out: Path, seed: int, *arguments: str) -> dict[str, float]:
    """Success and return of a policy on held-out starts, with its seconds; `arguments` are those of `robotrl train`."""
    options = [
        word for name, value in family.options.items() for word in (f"--sim.{name.replace('_', '-')}", str(value))
    ]
    code = main(["train", *arguments, *options, "--seed", str(seed), "--evaluation.every", "0", "--run-dir", str(out)])
    if code:
        raise RobotrlError(f"robotrl train ended with code {code}")
    last = read_scalars(out / "scalars.jsonl")[-1]
    return {"success": last["eval_success"], "return": last["eval_return"], "train_s": last["learn_s"]}


def offline(family: Family, arm: str, seed: int, out: Path, *flags: str) -> dict[str, float]:
    """Results of one arm: "clone", or IQL on the rewards of "true", "return" or "regret"."""
    dataset = recorded(family, out, seed)
    data = relabeled(dataset, family, "true" if arm == "clone" else arm, seed, out)
    learner = family.clone if arm == "clone" else family.iql
    start = ("--sim", family.sim, *family.policy, *learner, "--dataset", str(data), "--accept-data")
    return trained(family, out / f"run-{arm}", seed, *start, *flags)


def learned_on(dataset: Dataset, family: Family, arm: str, seed: int, out: Path, labels: int = LABELS) -> Path:
    """Directory of the preferences of an arm, "return" or "regret", learned there unless they are there."""
    path = out / f"model-{arm}"
    if not path.exists():
        form: Form = "regret" if arm == "regret" else "return"
        save_preferences(path, learn_offline(dataset, family.keys, settings(family, form, "return", labels, seed))[0])
    return path


def online(family: Family, arm: str, seed: int, out: Path, *flags: str) -> dict[str, float]:
    """Results of one arm online; the reward is the sim's own ("true"), or learned from answers ("return", "regret").

    RLPD has the dataset as prior data, and a reward that was learned on it. PPO has no dataset: its answers are about
    its own steps, asked while it trains. A reward that was learned on the dataset it would exploit at once.
    """
    reward: tuple[str, ...]
    start: tuple[str, ...]
    if family.asks_online:
        asked = (*ASKED, "--reward.preferences.keys", *family.keys, "--reward.preferences.labeler.length")
        model = ("--reward.preferences.training.model.hidden", *map(str, family.training.model.hidden))
        form = ("--reward.preferences.training.form", arm, "--reward.preferences.training.seed", str(seed))
        reward = () if arm == "true" else (*asked, str(family.length), *model, *form)
        start = (*family.online, "--sim", family.sim)
        return trained(family, out / f"online-{arm}", seed, *start, *reward, *flags)
    dataset = recorded(family, out, seed)
    # prior data and env steps have the same reward
    weight = repr(rewards_of(dataset, family, arm, seed, out).factor)
    if arm == "true":
        reward = ("--reward", "task", "--reward.task.weight", weight)
    else:
        learned = str(learned_on(dataset, family, arm, seed, out))
        reward = ("--reward", "preferences", "--reward.preferences.model", learned)
        reward = (*reward, "--reward.preferences.weight", weight)
    data = relabeled(dataset, family, arm, seed, out)
    start = (*family.online, "--sim", family.sim, "--dataset", str(data), "--accept-data")
    return trained(family, out / f"online-{arm}", seed, *start, *reward, *flags)


def run(method: str, seed: int, out: Path) -> dict[str, Any]:
    """Results of a cell: "preferences-NAME" all that is learned offline, "preferences-online-NAME" online."""
    _, *words = method.split("-")
    family = FAMILIES[words[-1]]
    found: dict[str, Any] = {}
    if words[0] == "online":
        arms = {arm: online(family, arm, seed, out) for arm in ("true", "return", "regret")}
    else:
        found |= efficiency(recorded(family, out, seed), family, seed)
        arms = {arm: offline(family, arm, seed, out) for arm in ("clone", "true", "return", "regret")}
    return found | {f"{arm}_{key}": value for arm, result in arms.items() for key, value in result.items()}
