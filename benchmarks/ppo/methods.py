"""PPO on halfcheetah with equal settings: ours, Stable-Baselines3's, and rsl_rl's on our sim.

Equal for all: nets (two layers of 64, tanh, actor and critic apart), Adam at one learning rate, discount, lambda, clip
range, no entropy bonus, no early stop, gradient norm 0.5, no normalization of observations or rewards. Everything else
is each library's default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from benchmarks.kit.quiet import quiet_mujoco
from benchmarks.locomotion.referee import IDS
from robotrl.errors import ConfigError

TASK = "mujoco/halfcheetah"
SIM_THREADS = 2
HIDDEN = (64, 64)
LR, GAMMA, LAM, CLIP, GRAD_NORM, VALUE_WEIGHT = 3e-4, 0.99, 0.95, 0.2, 0.5, 0.5
SEED = 0


class Setting(NamedTuple):
    """Rollout and update sizes."""

    num_envs: int
    num_steps: int
    minibatch: int
    epochs: int

    @property
    def rollout(self) -> int:
        """Env steps of one iteration."""
        return self.num_envs * self.num_steps


SETTINGS = {
    "mb64": Setting(64, 32, 64, 10),
    "mb512": Setting(64, 32, 512, 10),
    "wide": Setting(256, 24, 1536, 5),
}


class Method(Protocol):
    """A trainer that is ready to run."""

    @property
    def compile_s(self) -> float | None:
        """Seconds spent compiling so far; None if nothing is compiled."""
        ...

    def run(self, iterations: int) -> int:
        """Train for a number of iterations; returns the env steps."""
        ...


class Ours:
    """Our learner on our sim."""

    def __init__(self, setting: Setting, task: str) -> None:
        from robotrl.algos.ppo import PpoCfg
        from robotrl.learners.learner import Setup
        from robotrl.policies.gaussian import GaussianCfg
        from robotrl.registry import make_sim

        cfg = PpoCfg(
            env_steps=10**9,
            num_steps=setting.num_steps,
            epochs=setting.epochs,
            minibatch=setting.minibatch,
            lr=LR,
            critic_lr=LR,
            gamma=GAMMA,
            gae_lambda=LAM,
            clip_coef=CLIP,
            entropy_coef=0.0,
            target_kl=None,
            critic_warmup_env_steps=0,
            max_grad_norm=GRAD_NORM,
            critic_hidden=HIDDEN,
            critic_activation="tanh",
            normalize_obs=False,
            engine="compiled",
        )
        policy = GaussianCfg(horizon=1, hidden=HIDDEN, initial_std=1.0, activation="tanh")
        make = lambda: make_sim(task, num_envs=setting.num_envs, seed=SEED, threads=SIM_THREADS)  # noqa: E731
        self._learner: Any = cfg.build(Setup(make, policy, None, None, SEED))

    @property
    def compile_s(self) -> float | None:
        """See `Method`."""
        return self._learner.compile_s

    def run(self, iterations: int) -> int:
        """See `Method`."""
        before = self._learner.env_steps
        for _ in range(iterations):
            self._learner.iterate()
        return self._learner.env_steps - before


class StableBaselines3:
    """Stable-Baselines3 on its own vector env of Gymnasium's task."""

    compile_s: float | None = None

    def __init__(self, setting: Setting, task: str) -> None:
        import torch
        from stable_baselines3 import PPO
        from stable_baselines3.common.env_util import make_vec_env

        self._rollout = setting.rollout
        with quiet_mujoco():
            env = make_vec_env(IDS[task], n_envs=setting.num_envs, seed=SEED)
        self._model = PPO(
            "MlpPolicy",
            env,
            learning_rate=LR,
            n_steps=setting.num_steps,
            batch_size=setting.minibatch,
            n_epochs=setting.epochs,
            gamma=GAMMA,
            gae_lambda=LAM,
            clip_range=CLIP,
            ent_coef=0.0,
            vf_coef=VALUE_WEIGHT,
            max_grad_norm=GRAD_NORM,
            policy_kwargs={"net_arch": list(HIDDEN), "activation_fn": torch.nn.Tanh},
            seed=SEED,
            device="cpu",
        )

    def run(self, iterations: int) -> int:
        """See `Method`."""
        before = self._model.num_timesteps
        self._model.learn(iterations * self._rollout, reset_num_timesteps=False)
        return self._model.num_timesteps - before


class RslRl:
    """rsl_rl's runner on our sim."""

    compile_s: float | None = None

    def __init__(self, setting: Setting, task: str) -> None:
        from rsl_rl.runners import OnPolicyRunner

        from robotrl.registry import make_sim
        from robotrl.sims.interop import as_rsl_rl

        self._rollout = setting.rollout
        sim = make_sim(task, num_envs=setting.num_envs, seed=SEED, threads=SIM_THREADS)
        net = {"class_name": "MLPModel", "hidden_dims": list(HIDDEN), "activation": "tanh"}
        cfg: dict[str, Any] = {
            "num_steps_per_env": setting.num_steps,
            "save_interval": 10**9,
            "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
            "actor": {**net, "distribution_cfg": {"class_name": "GaussianDistribution"}},
            "critic": dict(net),
            "algorithm": {
                "class_name": "PPO",
                "num_learning_epochs": setting.epochs,
                "num_mini_batches": setting.rollout // setting.minibatch,
                "clip_param": CLIP,
                "gamma": GAMMA,
                "lam": LAM,
                "value_loss_coef": VALUE_WEIGHT,
                "entropy_coef": 0.0,
                "learning_rate": LR,
                "max_grad_norm": GRAD_NORM,
                "use_clipped_value_loss": False,
                "schedule": "fixed",
            },
        }
        self._runner = OnPolicyRunner(as_rsl_rl(sim, seed=SEED, stagger=True), cfg, device="cpu")

    def run(self, iterations: int) -> int:
        """See `Method`."""
        self._runner.learn(iterations)
        return iterations * self._rollout


METHODS: Mapping[str, Callable[[Setting, str], Method]] = {
    "robotrl": Ours,
    "stable_baselines3": StableBaselines3,
    "rsl_rl": RslRl,
}
"""Trainers by the module that each comes from."""


def make(method: str, setting: str, task: str = TASK) -> Method:
    """Make a trainer, ready to run.

    Raises:
        ConfigError: minibatches do not fill the rollout, so the three trainers would do different work.
    """
    chosen = SETTINGS[setting]
    if chosen.rollout % chosen.minibatch:
        raise ConfigError(
            f"minibatch is {chosen.minibatch}: expected a divisor of the rollout's {chosen.rollout} steps"
        )
    return METHODS[method](chosen, task)
