"""Training of traffic by self-play, with checkpoints from which it goes on as if it had never stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from robotrl.errors import ConfigError, DataError, short
from robotrl.fn.advantage import normalize
from robotrl.registry import make_sim
from robotrl.run.checkpoint_store import CheckpointStore
from robotrl.sims.driving.sim import DT_S
from robotrl.sims.driving.traffic.populations import Population
from robotrl.traffic.experience import Driving, Experience
from robotrl.traffic.model import TrafficNet
from robotrl.traffic.saving import save_traffic
from robotrl.traffic.self_play import (
    Batch,
    CarCritic,
    SelfPlayCfg,
    advantages,
    fresh_network,
    self_play_loss,
    taken_log_prob,
)

START, CHECKPOINTS = "start", "checkpoints"
"""Folders in that of the population: the network before training, from which the sim is built, and checkpoints."""
KIND, KEEP = "traffic-self-play", 2
Scalars = dict[str, float]


class Trained(NamedTuple):
    """Result of `self_play`."""

    net: TrafficNet
    curve: list[Scalars]
    """Scalars of each iteration."""


def begin(path: Path, drivers: Sequence[Population], cfg: SelfPlayCfg) -> None:
    """Write the network before training, which `self_play` starts from.

    Args:
        path: folder of the population.
        drivers: populations of its drivers.
        cfg: settings.

    Raises:
        ConfigError: a value out of range.
    """
    cfg.check()
    save_traffic(path / START, fresh_network(cfg.seed), drivers, {"self_play": asdict(cfg)})


def cfg_of(about: Any, path: Path) -> SelfPlayCfg:
    """Settings with which `begin` was called, from what it stored about the network.

    Raises:
        DataError: they are not those of this version.
    """
    stored = about.get("self_play")
    names = {field.name for field in fields(SelfPlayCfg)}
    if not isinstance(stored, dict) or stored.keys() != names:
        raise DataError(f"traffic {short(str(path))} has the settings {short(repr(stored))}: expected {sorted(names)}")
    return SelfPlayCfg(**stored)


def self_play(path: Path, cfg: SelfPlayCfg, progress: Callable[[Scalars], None] = lambda scalars: None) -> Trained:
    """Train the network of a folder that `begin` made, from its newest checkpoint if there is one.

    Args:
        path: the folder.
        cfg: settings, those of `begin`.
        progress: called after each iteration with its scalars.

    Raises:
        DataError: a checkpoint is damaged.
    """
    store = CheckpointStore(path / CHECKPOINTS, KEEP)
    sim: Any = make_sim("bev/drive", cfg.num_envs, cfg.seed, traffic=(f"{path.absolute() / START}",), obs="none")
    training = SelfPlay(Driving(sim, cfg), cfg)
    found = store.latest()
    if found is not None:
        training.load(found.tree)
    while training.iteration < cfg.iterations:
        progress(training.step())
        if training.iteration % cfg.save_every == 0 or training.iteration == cfg.iterations:
            store.save(training.state(), step=training.iteration, kind=KIND, score=None)
    sim.close()
    return Trained(training.net, training.curve)


class SelfPlay:
    """State of self-play: networks, optimizer, random numbers and the sim.

    Args:
        driving: the closed loop.
        cfg: settings.
    """

    def __init__(self, driving: Driving, cfg: SelfPlayCfg) -> None:
        self.driving, self._cfg = driving, cfg
        self.net, self.critic = fresh_network(cfg.seed), CarCritic(cfg.seed)
        self._parameters = [one for part in (self.net, self.critic) for one in part.parameters() if one.requires_grad]
        self._optimizer = torch.optim.Adam(self._parameters, lr=cfg.lr, eps=1e-5)
        self._generator = torch.Generator().manual_seed(cfg.seed)
        self.iteration = 0
        self.curve = list[Scalars]()

    def step(self) -> Scalars:
        """Drive with the present network, and learn from it; returns scalars."""
        cfg = self._cfg
        left = 1.0 - self.iteration / cfg.iterations
        self.driving.sim.core.set_network(0, self.net.to_flat())
        experience = self.driving.drive(cfg.steps)
        batch = self._batch(experience)
        for group in self._optimizer.param_groups:
            group["lr"] = cfg.lr * left
        found = list[Scalars]()
        for _ in range(cfg.epochs):
            for rows in torch.randperm(len(batch.inputs), generator=self._generator).split(cfg.minibatch):
                out = self_play_loss(
                    self.net, self.critic, Batch(*(x[rows] for x in batch)), cfg.clip, cfg.entropy * left
                )
                self._optimizer.zero_grad()
                out.loss.backward()
                torch.nn.utils.clip_grad_norm_(self._parameters, 0.5)
                self._optimizer.step()
                found.append({name: float(value.detach()) for name, value in out._asdict().items()})
        self.iteration += 1
        means = {name: float(np.mean([one[name] for one in found])) for name in found[0]} if found else {}
        scalars = means | self._driven(experience)
        # later minibatches have other ratios
        scalars["ratio_error"] = found[0]["ratio_error"] if found else 0.0
        self.curve.append(scalars)
        return scalars

    def state(self) -> dict[str, Any]:
        """Exact state between two iterations."""
        return {
            "net": self.net.state_dict(),
            "critic": self.critic.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "generator": self._generator.get_state(),
            "driving": self.driving.state(),
            "iteration": self.iteration,
            "curve": self.curve,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore a result of `state`.

        Raises:
            ConfigError: it is of another sim or number of envs.
        """
        self.net.load_state_dict(state["net"])
        self.critic.load_state_dict(state["critic"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._generator.set_state(state["generator"])
        self.driving.load(state["driving"])
        self.iteration, self.curve = state["iteration"], list(state["curve"])

    @torch.no_grad()
    def _batch(self, experience: Experience) -> Batch:
        """Decisions that have a result, with normalized advantages.

        Raises:
            ConfigError: there is none.
        """
        inputs = torch.from_numpy(experience.inputs)
        value = self.critic(inputs).numpy()
        rest = experience.reward, value, experience.after, experience.crashed
        found = advantages(*rest, self._cfg.gamma, self._cfg.gae_lambda)
        kept = torch.from_numpy((experience.after >= 0) | experience.crashed)
        if not kept.any():
            raise ConfigError(f"num_envs is {self._cfg.num_envs}: no car decided twice in {self._cfg.steps} steps")
        advantage = torch.from_numpy(found.advantage)
        inputs, candidate = inputs[kept], torch.from_numpy(experience.candidate)[kept]
        return Batch(
            inputs,
            candidate,
            taken_log_prob(self.net, inputs, candidate),
            normalize(advantage, kept)[kept],
            torch.from_numpy(found.target)[kept],
        )

    def _driven(self, experience: Experience) -> Scalars:
        """Scalars of the drives: mean reward of a second, collisions of a car per hour."""
        hours = experience.car_steps * DT_S / 3600.0
        return {
            "reward_per_s": float(experience.reward.sum()) / max(3600.0 * hours, 1e-9),
            "collisions_per_h": float(experience.crashed.sum()) / max(hours, 1e-9),
            "decisions": float(len(experience.reward)),
        }
