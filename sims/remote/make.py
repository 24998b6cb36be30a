"""`remote/NAME`: a sim of robotrl, or one's own environment MODULE:FUNCTION, in other processes or another Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import tyro

from robotrl.errors import ConfigError, check_count, check_number
from robotrl.sims.remote.capabilities import sim_of
from robotrl.sims.remote.description import description_of
from robotrl.sims.remote.inputs import inputs_of, is_own
from robotrl.sims.remote.pool import WorkerPool
from robotrl.sims.remote.process import Launch
from robotrl.sims.remote.sim import RemoteSim
from robotrl.spec import Input, TrainDefaults
from robotrl.spec.json_flag import JSON_FLAG
from robotrl.spec.sim_options import NOT_LOG_ONLY, UNPERTURBED, LogOnlyCfg, PerturbCfg

OWN_SIMS = "robotrl.sims.remote.serve:sim"
"""Factory that serves the sims of robotrl."""
LONGEST_S = 86_400.0
MOST_WORKERS = 1024


@dataclass(frozen=True)
class RemoteCfg:
    """Options of `remote/NAME`."""

    train_defaults: ClassVar[TrainDefaults] = TrainDefaults(
        {
            "sim.num_envs": 16,
            "policy.horizon": 1,
            "algo.critic_warmup_env_steps": 0,
            "algo.normalize_reward": True,
            "evaluation.score": "return",
            "evaluation.animation": 0,
        }
    )
    served: Annotated[str, tyro.conf.Fixed]
    """Sim of robotrl, "mujoco/peg-insert", or factory MODULE:FUNCTION of an environment."""
    python: str | None = None
    """Python interpreter of the workers, 3.8 or newer with numpy; None takes this one."""
    kwargs: Annotated[Mapping[str, Any] | None, JSON_FLAG] = None
    """Keyword arguments of the factory, or options of the sim, as a JSON object."""
    workers: int = 1
    """Worker processes, which share the envs, at most one for each; sims of robotrl use all cores with one."""
    path: tuple[str, ...] = ()
    """Folders in which the workers look for modules first."""
    environment: Mapping[str, str] | None = None
    """Environment variables of the workers, besides those of this process."""
    worker_file: str | None = None
    """Copy of `worker.py` to run; None takes the one of this robotrl."""
    start_timeout_s: float = 120.0
    """Seconds that a worker may take to start and to make its environment."""
    step_timeout_s: float = 60.0
    """Seconds that a worker may take for a step or another request; then it is killed, and its episodes are lost."""
    restarts: int = 3
    """Losses of one worker in a row, with no episode that ends in between, that are made good."""
    perturb: PerturbCfg = UNPERTURBED
    """Perturbations: places, looks, words, delay, noise, mass and friction; see docs/perturbations.md."""
    history: int = 1
    """Control steps whose observations a policy is given, the present one last, 1 to 100; see docs/history.md."""
    log_only: LogOnlyCfg = NOT_LOG_ONLY
    """Log-only mode: a budget of episodes from starts that nobody chooses; see docs/log-only.md."""

    def build(self, num_envs: int, seed: int) -> RemoteSim:
        """Start the workers and build the sim.

        Args:
            num_envs: N, 1 or more.
            seed: seed of the training starts that are drawn.

        Raises:
            ConfigError: a value out of range, a Python or factory that is not there, or a worker of another version.
            RemoteFault: the environment could not be made.
        """
        check_count("workers", self.workers, 1, MOST_WORKERS)
        check_count("restarts", self.restarts, 0, 1_000_000)
        check_number("start_timeout_s", self.start_timeout_s, 0.1, LONGEST_S, "s")
        check_number("step_timeout_s", self.step_timeout_s, 0.01, LONGEST_S, "s")
        name = f"remote/{self.served}"
        pool = WorkerPool(self._launch(name), num_envs, min(self.workers, num_envs), self.restarts)
        try:
            found = description_of(name, pool.descriptions[0])
            return sim_of(name, pool, found, num_envs, seed)
        except BaseException:
            pool.close()
            raise

    def inputs(self) -> list[Input]:
        """Files and modules that the workers read, as far as this Python can tell; see `inputs_of`."""
        return inputs_of(self.served, self.kwargs, self.python, self.path, self.worker_file)

    def _launch(self, name: str) -> Launch:
        given = self.kwargs or {}
        own = is_own(self.served)
        kwargs = {"name": self.served, "options": dict(given)} if own else dict(given)
        return Launch(
            name,
            OWN_SIMS if own else self.served,
            kwargs,
            self.python,
            self.path,
            self.worker_file,
            self.environment or {},
            self.start_timeout_s,
            self.step_timeout_s,
        )


def family(served: str) -> RemoteCfg:
    """`remote/NAME`: a sim of robotrl, or an environment MODULE:FUNCTION, in other processes or another Python.

    Raises:
        ConfigError: it is neither.
    """
    module, _, function = served.partition(":")
    dotted = all(part.isidentifier() for part in (*module.split("."), function))
    if not is_own(served) and not dotted:
        raise ConfigError(
            f"sim 'remote/{served}' names nothing to serve: expected the name of a sim, 'remote/mujoco/peg-insert', or"
            " 'remote/MODULE:FUNCTION'"
        )
    return RemoteCfg(served)
