"""PPO of Stable-Baselines3 on halfcheetah, through our door and on its own `SubprocVecEnv`, with equal settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from benchmarks.kit.quiet import quiet_mujoco
from benchmarks.locomotion.referee import IDS
from robotrl.errors import unknown

TASK = "mujoco/halfcheetah"
DOOR, SUBPROC = "as_sb3", "SubprocVecEnv"
SIM_THREADS = 2
SEED = 0


class Setting(NamedTuple):
    """Rollout and update sizes."""

    num_envs: int
    num_steps: int
    minibatch: int
    epochs: int = 10


SETTINGS = {"mb512": Setting(16, 128, 512)}


class Trainer:
    """A PPO that is ready to run.

    Args:
        env: the `VecEnv`.
        setting: rollout and update sizes.
    """

    compile_s: float | None = None

    def __init__(self, env: Any, setting: Setting) -> None:
        from stable_baselines3 import PPO

        self._rollout = setting.num_envs * setting.num_steps
        sizes: Any = {"n_steps": setting.num_steps, "batch_size": setting.minibatch, "n_epochs": setting.epochs}
        self._env = env
        self._model = PPO("MlpPolicy", env, **sizes, seed=SEED, device="cpu")

    def run(self, iterations: int) -> int:
        """Train for a number of iterations; returns the env steps."""
        before = self._model.num_timesteps
        self._model.learn(iterations * self._rollout, reset_num_timesteps=False)
        return self._model.num_timesteps - before

    def close(self) -> None:
        """End the envs and their processes."""
        self._env.close()


def door(setting: Setting, task: str) -> Any:
    """The sim as a `VecEnv`, all envs in one call."""
    from robotrl.registry import make_sim
    from robotrl.sims.interop import as_sb3

    return as_sb3(make_sim(task, num_envs=setting.num_envs, seed=SEED, threads=SIM_THREADS))


def subproc(setting: Setting, task: str) -> Any:
    """Gymnasium's task as Stable-Baselines3 runs it, a process for each env."""
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import SubprocVecEnv

    with quiet_mujoco():
        return make_vec_env(IDS[task], n_envs=setting.num_envs, seed=SEED, vec_env_cls=SubprocVecEnv)


METHODS: Mapping[str, Callable[[Setting, str], Any]] = {DOOR: door, SUBPROC: subproc}


def make(method: str, setting: str, task: str = TASK) -> Trainer:
    """Make a trainer, ready to run.

    Raises:
        ConfigError: an unknown method.
    """
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    return Trainer(METHODS[method](SETTINGS[setting], task), SETTINGS[setting])
