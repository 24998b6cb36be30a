"""Pseudo-simulation: short drives from logged scenes along a path at a speed, among logged or forecast road users."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from robotrl.fn.planner.pid_drive import drive_path, speed_labels
from robotrl.fn.planner.pseudo_reward import PseudoReward, RewardWeights, Surroundings, pseudo_reward
from robotrl.learners.pseudo.forecaster import DT_S, AgentForecaster, AgentScenes
from robotrl.spec.vehicle import LoggedScenes, SceneCfg, VehicleModel

FORECAST = ("ego", "ego_size", "agents", "there", "kind", "size")
"""Arrays of a scene that a forecaster reads."""
SCENE = (*FORECAST, "way", "way_there")
MET = ("lines", "line_kind", "stop", "closed", "limit_mps")


class PseudoSim(NamedTuple):
    """Logged scenes as tensors, and how to drive in them."""

    rows: dict[str, Tensor]
    """(S, ...) arrays of `LoggedScenes`, observations as "obs/KEY"."""
    model: VehicleModel
    cfg: SceneCfg
    weights: RewardWeights

    @property
    def num_scenes(self) -> int:
        """S."""
        return len(self.rows["kind"])

    @property
    def now(self) -> int:
        """Index of the scene's own step."""
        return self.cfg.history

    def drive(
        self, rows: dict[str, Tensor], path: Tensor, target_mps: Tensor, forecaster: AgentForecaster | None
    ) -> PseudoReward:
        """Reward (B, N) of N drives in each of B scenes, all along the scene's path.

        Args:
            rows: (B, ...) rows of scenes, on one device.
            path: (B, P, 2) path ahead, points `cfg.spacing_m` apart.
            target_mps: (B, N) target speeds.
            forecaster: forecasts the other road users; None: they do what was logged.
        """
        samples, steps, now = target_mps.shape[1], self.cfg.horizon, self.now
        # N drives of a scene side by side
        wide = {name: rows[name].repeat_interleave(samples, dim=0) for name in (*SCENE, *MET)}
        ego = drive_path(
            path.repeat_interleave(samples, dim=0),
            self.cfg.spacing_m,
            target_mps.flatten(),
            wide["ego"][:, now, 3],
            steps,
            DT_S,
            self.model,
        )
        agents, there = wide["agents"][:, now:], wide["there"][:, now:]
        if forecaster is not None:
            agents = self._forecast(forecaster, rows, wide, ego)
            # whoever is there at the scene's own step stays
            there = there[:, :1].expand_as(there)
        met = Surroundings(
            agents=agents,
            there=there,
            kind=wide["kind"],
            size=wide["size"],
            lines=wide["lines"],
            line_kind=wide["line_kind"],
            stop=wide["stop"],
            closed=wide["closed"],
            way=wide["way"],
            limit_mps=wide["limit_mps"],
        )
        found = pseudo_reward(ego, wide["ego_size"], met, DT_S, self.weights)
        return PseudoReward(*(x.view(-1, samples) for x in found))

    def _forecast(
        self, forecaster: AgentForecaster, rows: dict[str, Tensor], wide: dict[str, Tensor], ego: Tensor
    ) -> Tensor:
        """Forecasts (B N, horizon + 1, M, 4) of the other road users, given the ego's drives (B N, horizon + 1, 4)."""
        samples, now = len(ego) // len(rows["kind"]), self.now
        past = forecaster.remember(agent_scenes(rows, now), now)
        past = past._replace(
            hidden=past.hidden.repeat_interleave(samples, dim=0), logits=past.logits.repeat_interleave(samples, dim=0)
        )
        scenes = agent_scenes(wide, now)
        scenes = scenes._replace(ego=torch.cat([scenes.ego[:, :now], ego], dim=1))
        return forecaster.likely(scenes, past, now, self.cfg.horizon)

    def labels(self, classes_mps: Tensor, horizon_s: float) -> Tensor:
        """(S,) speed classes that come nearest to the logged distance after `horizon_s`."""
        steps = round(horizon_s / DT_S)
        ego = self.rows["ego"][:, self.now : self.now + steps + 1]
        driven = (ego[:, 1:, :2] - ego[:, :-1, :2]).norm(dim=-1).sum(dim=1)
        return speed_labels(ego[:, 0, 3], driven, classes_mps, steps, DT_S, self.model)


def agent_scenes(rows: dict[str, Tensor], now: int | None = None) -> AgentScenes:
    """Road users of rows of scenes; with `now` only what is known then."""
    span = slice(None) if now is None else slice(now + 1)
    ego, agents, there = (rows[name][:, span] for name in ("ego", "agents", "there"))
    return AgentScenes(ego, rows["ego_size"], agents, there, rows["kind"], rows["size"])


def pseudo_sim(scenes: LoggedScenes, model: VehicleModel, cfg: SceneCfg, weights: RewardWeights) -> PseudoSim:
    """Pseudo-simulation of the scenes of a log."""
    arrays = {name: torch.from_numpy(getattr(scenes, name)) for name in (*SCENE, *MET)}
    arrays |= {f"obs/{key}": torch.from_numpy(value) for key, value in scenes.obs.items()}
    return PseudoSim(arrays, model, cfg, weights)
