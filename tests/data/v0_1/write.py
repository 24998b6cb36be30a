"""Writes the files of this folder: `python tests/data/v0_1/write.py`, run once, at commit e2846e5 (version 0.1.0).

They stand for everything that users stored with version 0.1, so they are never written again by newer code. Networks
are tiny, and every run is stopped between two checkpoints' worth of work, so that a test can resume it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from robotrl.callbacks import Callback
from robotrl.cli import main
from robotrl.config import EvalCfg, SimCfg
from robotrl.configs import peg_insert
from robotrl.configs.gymnasium import ppo as gym_ppo
from robotrl.configs.off_policy import peg_insert_rlpd
from robotrl.configs.steering import peg_insert_dsrl_na
from robotrl.data.replay import Replay, StepRecord
from robotrl.load import load_policy
from robotrl.logs import read_scalars
from robotrl.run import Run
from robotrl.spec import Spec
from robotrl.train import resume, train

HERE = Path(__file__).resolve().parent
EVALUATION = EvalCfg(every=0, episodes=4, num_envs=4, animation=0)
RUNS = ("clone", "diffusion", "reinflow", "rlpd", "dsrl_na", "ppo", "cartpole")


class StopAfter(Callback):
    """Ask the run to stop after some iterations, as Ctrl-C would."""

    def __init__(self, iterations: int) -> None:
        self._iterations = iterations

    def on_start(self, run) -> None:
        """Keep the run."""
        self._run = run

    def on_iteration(self, step, scalars) -> None:
        """Stop it."""
        del scalars
        if step == self._iterations:
            self._run.request_stop("written as far as a test needs it")


def write_run(name: str, cfg, iterations: int) -> None:
    """Train for some iterations, and leave the rest to whoever resumes."""
    # the command that a run records must not hold this machine's paths
    sys.argv = ["robotrl", "train", name]
    cfg = replace(cfg, evaluation=EVALUATION, checkpoint_every=1, keep=1)
    train(cfg, Path(name), callbacks=[StopAfter(iterations)])


def write_replay(path: Path) -> None:
    """A replay on disk whose ring has come round once, with episodes that end both ways."""
    inf = float("inf")
    obs = {"x": Spec((1,), ("x",), ("m",), (-inf,), (inf,))}
    action = Spec((1,), ("push",), ("N",), (-1.0,), (1.0,))
    replay = Replay.create(path, obs, action, streams=2, capacity=60)
    for t in range(50):
        ended, cut = t % 7 == 6, t % 11 == 10
        last = torch.tensor([[t + 0.5], [t + 1000.5]]) if ended or cut else torch.zeros(0, 1)
        replay.add(
            StepRecord(
                obs={"x": torch.tensor([[float(t)], [t + 1000.0]])},
                action=torch.full((2, 1), t / 50),
                reward=torch.tensor([float(t), -float(t)]),
                terminated=torch.tensor([ended, ended]),
                truncated=torch.tensor([cut, cut]),
                final_obs={"x": last},
                final_ids=torch.arange(len(last)),
            )
        )
    replay.close()


def write() -> None:
    """Write everything into this folder."""
    os.chdir(HERE)
    for name in (*RUNS, "demos", "bundle"):
        shutil.rmtree(name, ignore_errors=True)
    demos = ["demos", "mujoco/peg-insert", "--out", "demos", "--episodes", "3", "--noise", "0.25", "--clumsiness", "1"]
    assert main(demos) == 0
    clone, sim = peg_insert.bc_flow(), SimCfg("mujoco/peg-insert", num_envs=4)
    small = replace(clone.policy, hidden=(16, 16))
    algo = replace(clone.algo, updates=30, updates_per_iteration=10, batch=32, engine="eager")
    write_run("clone", replace(clone, sim=sim, policy=small, algo=algo, dataset="demos"), 2)
    other = peg_insert.bc_diffusion()
    small = replace(other.policy, hidden=(16, 16))
    algo = replace(other.algo, updates=30, updates_per_iteration=10, batch=32, engine="eager")
    write_run("diffusion", replace(other, sim=sim, policy=small, algo=algo, dataset="demos"), 2)
    assert main(["export", "clone", "--out", "bundle"]) == 0

    tune = peg_insert.reinflow()
    algo = replace(tune.algo, env_steps=4 * 16 * 4 * 3, steps_per_env=16, critic_hidden=(16, 16), minibatch=32)
    write_run("reinflow", replace(tune, sim=sim, algo=algo, init_from="clone"), 2)
    rlpd = peg_insert_rlpd()
    algo = replace(rlpd.algo, env_steps=160, warmup=40, batch=16, critic_hidden=(16, 16), capacity=200)
    algo = replace(algo, engine="eager", replay="rlpd-replay")
    small = replace(rlpd.policy, hidden=(16, 16))
    write_run("rlpd", replace(rlpd, sim=sim, algo=algo, policy=small, dataset="demos"), 6)
    steer = peg_insert_dsrl_na()
    algo = replace(steer.algo, env_steps=640, steps_per_env=40, warmup=160, updates=2, distill_updates=2, decoded=16)
    algo = replace(algo, batch=16, critic_hidden=(16, 16), capacity=200, engine="eager")
    small = replace(steer.policy, hidden=(16, 16))
    write_run("dsrl_na", replace(steer, sim=sim, algo=algo, policy=small, init_from="clone"), 3)
    scratch = peg_insert.ppo()
    algo = replace(scratch.algo, env_steps=4 * 16 * 3, steps_per_env=16, critic_hidden=(16, 16), minibatch=32)
    algo = replace(algo, engine="eager")
    small = replace(scratch.policy, hidden=(16, 16))
    write_run("ppo", replace(scratch, sim=replace(sim, options=("reward=shaped",)), algo=algo, policy=small), 2)
    cart = gym_ppo()
    algo = replace(cart.algo, env_steps=4 * 16 * 3, steps_per_env=16, critic_hidden=(16, 16), minibatch=32)
    algo = replace(algo, engine="eager")
    small = replace(cart.policy, hidden=(16, 16))
    write_run("cartpole", replace(cart, sim=SimCfg("gym/CartPole-v1", 4), algo=algo, policy=small), 2)
    write_replay(Path("replay"))
    for name in ("replay", "rlpd-replay"):
        # shards are mostly room for rows to come
        shutil.make_archive(name, "gztar", root_dir=".", base_dir=name, owner="root", group="root")
        shutil.rmtree(name)


def write_ends() -> None:
    """Resume a copy of each run to its end, and keep what its policy then does, for `expected.json`."""
    ends = {}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(HERE, copy)
        os.chdir(copy)
        for name in ("replay", "rlpd-replay"):
            shutil.unpack_archive(f"{name}.tar.gz", ".")
        for name in RUNS:
            resume(Path(name))
            policy = load_policy(name, which="latest")
            obs = {key: torch.full((1, *spec.shape), 0.1) for key, spec in policy.observation_spec.items()}
            with torch.no_grad():
                chunk = policy.act(obs, None, None, "mean").chunk[0]
            env_steps = read_scalars(Path(name) / "scalars.jsonl")[-1]["env_steps"]
            ends[name] = {"step": Run.open(Path(name)).latest().step, "env_steps": env_steps, "chunk": chunk.tolist()}
    (HERE / "expected.json").write_text(json.dumps(ends, indent=1) + "\n")


if __name__ == "__main__":
    write()
    write_ends()
