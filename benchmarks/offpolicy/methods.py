"""Off-policy updates on halfcheetah with the same networks and batch: our SAC and RLPD, and Stable-Baselines3's SAC.

Equal for all: two critics and an actor of two layers of 256 with ReLU, batches of 256 drawn from a replay, Adam at a
learning rate of 3e-4, discount 0.99, target rate 0.005, a learned temperature. Our RLPD additionally has layer
normalization, updates its actor in every fourth update, and draws half of each batch from a dataset. Only sampling and
updating are timed, no env steps.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from benchmarks.kit.quiet import quiet_mujoco
from benchmarks.locomotion.referee import IDS
from robotrl.errors import unknown

TASK = "mujoco/halfcheetah"
HIDDEN = (256, 256)
BATCH = 256
LR, GAMMA, TAU = 3e-4, 0.99, 0.005
RATIO = 4
"""Critic updates of RLPD per actor update."""
FILLED = 10_000
"""Env steps in the replay buffer."""
SEED = 0


class Setting(NamedTuple):
    """Numeric settings of the computation."""

    bf16: bool


SETTINGS = {"float32": Setting(False), "bfloat16": Setting(True)}


class Method(Protocol):
    """A trainer that is ready to run."""

    @property
    def compile_s(self) -> float | None:
        """Seconds spent compiling so far; None if nothing is compiled."""
        ...

    def run(self, updates: int) -> int:
        """Run a number of updates; returns the number of updates made."""
        ...


class OurSac:
    """Our SAC."""

    def __init__(self, setting: Setting, task: str) -> None:
        from robotrl.algos.sac import SacCfg

        cfg = SacCfg(
            env_steps=10**9,
            engine="compiled",
            num_steps=8,
            warmup=FILLED,
            batch=BATCH,
            lr=LR,
            critic_lr=LR,
            alpha_lr=LR,
            gamma=GAMMA,
            tau=TAU,
            critic_hidden=HIDDEN,
            normalize_obs=False,
            bf16=setting.bf16,
        )
        self._learner = _filled(cfg, task, None)

    @property
    def compile_s(self) -> float | None:
        """See `Method`."""
        return self._learner.compile_s

    def run(self, updates: int) -> int:
        """See `Method`."""
        before = self._learner.updates
        self._learner.learn(updates)
        return self._learner.updates - before


class OurRlpd:
    """Our RLPD, with as many critics as SAC has."""

    def __init__(self, setting: Setting, task: str) -> None:
        from robotrl.algos.rlpd import RlpdCfg

        cfg = RlpdCfg(
            env_steps=10**9,
            engine="compiled",
            num_steps=2,
            warmup=FILLED,
            utd_ratio=RATIO,
            batch=BATCH,
            lr=LR,
            critic_lr=LR,
            alpha_lr=LR,
            gamma=GAMMA,
            tau=TAU,
            num_critics=2,
            subset=2,
            critic_hidden=HIDDEN,
            normalize_obs=False,
            bf16=setting.bf16,
        )
        with tempfile.TemporaryDirectory() as folder:
            self._learner = _filled(cfg, task, write_random(task, Path(folder) / "demos"))

    @property
    def compile_s(self) -> float | None:
        """See `Method`."""
        return self._learner.compile_s

    def run(self, updates: int) -> int:
        """See `Method`."""
        before = self._learner.updates
        self._learner.learn(updates // RATIO)
        return self._learner.updates - before


def _filled(cfg: Any, task: str, dataset: Path | None) -> Any:
    """A learner whose replay buffer holds its warm-up."""
    from robotrl.learners.learner import Setup
    from robotrl.policies.squashed import SquashedCfg
    from robotrl.registry import make_sim

    make = lambda: make_sim(task, num_envs=8, seed=SEED, threads=1)  # noqa: E731
    learner: Any = cfg.build(Setup(make, SquashedCfg(hidden=HIDDEN), None, dataset, SEED))
    while not learner.experience.warm:
        learner.iterate()
    return learner


def write_random(task: str, path: Path, episodes: int = 4, length: int = 500) -> Path:
    """Write a dataset of random actions, which costs as much per batch as any other."""
    return write_episodes(task, path, None, episodes, length)


def write_episodes(task: str, path: Path, policy: Any, episodes: int, length: int) -> Path:
    """Write a dataset of a policy's sampled actions, or of random ones.

    Args:
        task: name of the sim.
        path: the dataset's directory, absent or empty.
        policy: a policy of one action; None: random actions.
        episodes: number of episodes, one env each.
        length: steps of each, at most as many as an episode of the sim has.
    """
    import torch

    from robotrl.datasets.writer import DatasetWriter
    from robotrl.registry import make_sim

    sim = make_sim(task, num_envs=episodes, seed=SEED, threads=1)
    draw = torch.Generator().manual_seed(SEED)
    low, high = torch.tensor(sim.action_spec.low), torch.tensor(sim.action_spec.high)
    obs = {key: value.clone() for key, value in sim.reset(SEED).items()}
    rows: dict[str, list[np.ndarray]] = {key: [] for key in obs}
    actions: list[np.ndarray] = []
    rewards: list[np.ndarray] = []
    for _ in range(length):
        if policy is None:
            action = low + (high - low) * torch.rand((episodes, len(low)), generator=draw)
        else:
            with torch.no_grad():
                action = policy.act(obs, None, draw, "sample").chunk[:, 0]
        for key, value in obs.items():
            rows[key].append(value.numpy().copy())
        step = sim.step(action)
        actions.append(action.numpy())
        rewards.append(step.reward.numpy().copy())
        obs = {key: value.clone() for key, value in step.obs.items()}
    fps = round(1 / sim.control_dt_s)
    specs = sim.observation_spec
    with DatasetWriter(path, fps=fps, observation_spec=specs, action_spec=sim.action_spec, provenance={}) as writer:
        for env in range(episodes):
            writer.add_episode(
                {key: np.stack([row[env] for row in values]) for key, values in rows.items()},
                np.stack([row[env] for row in actions]),
                np.array([row[env] for row in rewards], np.float32),
                success=False,
                truncated=True,
                task="random actions" if policy is None else "actions of a policy",
            )
        writer.finish()
    sim.close()
    return path


class StableBaselines3:
    """Stable-Baselines3's SAC on Gymnasium's task.

    Args:
        setting: float32 only.
        task: our name of the task.
        fused: Adam's fused kernel, which Stable-Baselines3 does not use by itself.
    """

    compile_s: float | None = None

    def __init__(self, setting: Setting, task: str, fused: bool) -> None:
        del setting
        import gymnasium
        from stable_baselines3 import SAC

        with quiet_mujoco():
            env = gymnasium.make(IDS[task])
        kwargs: dict[str, Any] = {"net_arch": list(HIDDEN)}
        if fused:
            kwargs["optimizer_kwargs"] = {"fused": True}
        self._model = SAC(
            "MlpPolicy",
            env,
            learning_rate=LR,
            buffer_size=100_000,
            learning_starts=FILLED,
            batch_size=BATCH,
            tau=TAU,
            gamma=GAMMA,
            policy_kwargs=kwargs,
            seed=SEED,
            device="cpu",
        )
        self._model.learn(FILLED)

    def run(self, updates: int) -> int:
        """See `Method`."""
        self._model.train(updates, BATCH)
        return updates


METHODS: Mapping[str, Callable[[Setting, str], Method]] = {
    "sac": OurSac,
    "rlpd": OurRlpd,
    "stable_baselines3": lambda setting, task: StableBaselines3(setting, task, fused=False),
    "stable_baselines3_fused": lambda setting, task: StableBaselines3(setting, task, fused=True),
}
"""Trainers by name."""


def make(method: str, setting: str, task: str = TASK) -> Method:
    """Make a trainer, ready to run.

    Raises:
        ConfigError: there is no such method or setting.
    """
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    if setting not in SETTINGS:
        raise unknown("setting", setting, SETTINGS)
    return METHODS[method](SETTINGS[setting], task)
