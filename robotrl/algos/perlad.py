"""PerlAD: paths by imitation, speeds by reinforcement in a pseudo-simulation made of logs.

A policy proposes path modes and, for the path that it drives, the probabilities of speed classes. Paths are learned
from the logged way by winner-takes-all. Speeds are first imitated, then learned by REINFORCE: several speeds are drawn
for a scene, each is driven for two seconds along the path, and each is worth its reward relative to the scene's others.
The other road users first do what was logged; in the last part of training a forecaster, which reads what the ego does,
says what they do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from robotrl.datasets.normalization import FLOOR, within_bounds
from robotrl.engine.engine import Context, Engine, EngineMode, LossModule, LossOut, ParameterGroup
from robotrl.engine.minibatches import part
from robotrl.errors import CapabilityError, ConfigError, check_at_least, check_number, check_positive, out_of_range
from robotrl.fn.advantage import group_relative
from robotrl.fn.planner.path_modes import winner_takes_all
from robotrl.fn.planner.pseudo_reward import RewardWeights
from robotrl.fn.random.noise import choose
from robotrl.learners.learner import Learner, Setup
from robotrl.learners.on_policy import finite
from robotrl.learners.parts import Part
from robotrl.learners.pseudo.forecaster import DT_S, AgentForecaster, forecast_loss
from robotrl.learners.pseudo.simulation import FORECAST, PseudoSim, agent_scenes, pseudo_sim
from robotrl.policies.path_speed import PathSpeedCfg, PathSpeedPolicy, at_mode
from robotrl.rollout.compatibility import check_fit
from robotrl.spec import LearnerCfg, MemoryNeeds, TrainDefaults, VecSim, measured, visible
from robotrl.spec.vehicle import HasLoggedScenes, HasTrajectoryActions, SceneCfg
from robotrl.transforms import Affine, TransformGroup, normalize

IMITATION, REINFORCE = "imitation", "reinforce"
"""Phases of the policy's engine."""
MODE_COEF = 0.2
"""Weight of the classification of futures in the forecaster's loss, beside their distance in m."""


@dataclass(frozen=True)
class PerladCfg(LearnerCfg):
    """Settings of PerlAD; number of samples, prices and the last third are the paper's."""

    default_policy: ClassVar[str] = "path-speed"
    train_defaults: ClassVar[TrainDefaults] = TrainDefaults(
        {"sim.num_envs": 16, "evaluation.every": 0, "checkpoint_every": 10}
    )
    imitation_updates: int = 2000
    """Updates that imitate paths and speeds."""
    updates: int = 3000
    """Updates after that: paths by imitation, speeds by reinforcement. 0: imitation alone."""
    updates_per_iteration: int = 100
    """Updates between two log lines."""
    minibatch: int = 128
    """Scenes per update."""
    forecaster_updates: int = 600
    """Updates of the forecaster, spread over those of imitation; none without a part with predicted agents."""
    forecaster_minibatch: int = 32
    """Scenes per update of the forecaster."""
    samples: int = 4
    """N, speeds that are drawn for a scene, 2 or more."""
    predicted: float = 1 / 3
    """Last fraction of the updates by reinforcement, 0 to 1, in which the other road users are predicted; before it
    they do what was logged."""
    every: int = 5
    """Steps of 0.1 s of the log between two scenes."""
    horizon_s: float = 2.0
    """Length of a drive, s."""
    history_s: float = 1.0
    """Past that the forecaster reads, s."""
    label_s: float = 1.0
    """Time after which an imitated speed should have come as far as the logged ego, s; at most the horizon."""
    agents: int = 8
    """Other road users of a scene, the nearest ones."""
    lr: float = 5e-4
    """Learning rate of imitation."""
    rl_lr: float = 2e-4
    """Learning rate of the updates after it."""
    forecaster_lr: float = 1e-3
    """Learning rate of the forecaster."""
    mode_coef: float = 0.5
    """Weight of the classification of path modes, beside their distance in m."""
    speed_coef: float = 0.5
    """Weight of the imitation of speeds."""
    rl_coef: float = 0.5
    """Weight of the loss of REINFORCE, beside that of paths."""
    anchor_coef: float = 0.2
    """Weight of the imitation of speeds beside REINFORCE. Without it a scene in which only a slow speed is safe soon
    has fast draws alone, which all collide, so that their advantages say nothing."""
    entropy_coef: float = 0.1
    """Weight of the entropy of the speed classes, beside advantages of deviation 1."""
    max_grad_norm: float = 1.0
    """Maximum gradient norm, for policy and forecaster separately."""
    car_price: float = 30.0
    """Price of a collision with a car or cyclist."""
    person_price: float = 50.0
    """Price of a collision with a pedestrian."""
    static_price: float = 10.0
    """Price of a collision with an obstacle."""
    edge_price: float = 30.0
    """Price of crossing the edge of the road or a closed stop line."""
    divider_price: float = 10.0
    """Price of crossing the line to the oncoming lanes."""
    progress_coef: float = 1.0
    """Weight of the progress, 0 to 1: the way driven over the way at the speed limit."""
    distance_coef: float = 0.1
    """Weight of the distance of the last place from the logged way, per m."""
    forecaster_hidden: int = 64
    """Width of the forecaster."""
    forecaster_modes: int = 1
    """Futures of each road user, of which the most probable one is the forecast. With several, one may learn that the
    ego brakes and another that it does not, and then none reads what the ego does."""
    engine: EngineMode = "eager"
    """Execution mode of updates: "eager", "compiled" or "auto"; see docs/engine.md."""

    @property
    def reads_rewards(self) -> bool:
        """False: rewards are those of the pseudo-simulation."""
        return False

    def check(self) -> None:
        """See `LearnerCfg.check`."""
        _check(self)

    @property
    def memory(self) -> MemoryNeeds:
        """See `LearnerCfg.memory`."""
        return MemoryNeeds(self.minibatch)

    @property
    def predicts(self) -> bool:
        """True if a part of training has predicted agents."""
        return round(self.predicted * self.updates) > 0

    @property
    def scenes(self) -> SceneCfg:
        """Sizes of the scenes; points of the way are the policy's."""
        return SceneCfg(
            every=self.every,
            history=round(self.history_s / DT_S),
            horizon=round(self.horizon_s / DT_S),
            agents=self.agents,
        )

    @property
    def weights(self) -> RewardWeights:
        """Prices and weights of the reward."""
        return RewardWeights(
            self.car_price,
            self.person_price,
            self.static_price,
            self.edge_price,
            self.divider_price,
            self.progress_coef,
            self.distance_coef,
        )

    def build(self, setup: Setup) -> PerladLearner:
        """Build the learner."""
        return PerladLearner(self, setup)


def agents_predicted(update: int, updates: int, share: float) -> bool:
    """True if the other road users of an update are predicted: in the last `share` of the updates.

    Args:
        update: number of the update, from 0.
        updates: number of all updates by reinforcement.
        share: 0 to 1.
    """
    return update >= updates - round(share * updates)


# losses


class PerladLoss(LossModule):
    """Loss of the policy, by the engine's phase.

    Args:
        policy: the policy in training.
        cfg: settings.
    """

    def __init__(self, policy: PathSpeedPolicy, cfg: PerladCfg) -> None:
        super().__init__()
        self.policy, self._cfg = policy, cfg

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`."""
        return self._imitate(batch) if context.phase == IMITATION else self._reinforce(batch)

    def _imitate(self, batch: dict[str, Tensor]) -> LossOut:
        """Paths by winner-takes-all, and the cross-entropy of the logged speed on the winning path."""
        cfg, paths = self._cfg, self.policy.paths(self.policy.encode(part(batch, "obs/")))
        lateral = winner_takes_all(paths.points, paths.logits, batch["way"], batch["way_there"])
        turns = at_mode(paths.turns, lateral.winner).detach()
        logits = self.policy.speed_logits(paths.features, turns)
        speed = nn.functional.cross_entropy(logits, batch["label"])
        loss = lateral.regression + cfg.mode_coef * lateral.classification + cfg.speed_coef * speed
        info = {
            "path_m": lateral.regression,
            "mode_loss": lateral.classification,
            "speed_loss": speed,
            "speed_accuracy": (logits.argmax(1) == batch["label"]).float().mean(),
        }
        return LossOut(loss, info, (torch.full_like(loss, cfg.lr),))

    def _reinforce(self, batch: dict[str, Tensor]) -> LossOut:
        """Paths by winner-takes-all, speeds by REINFORCE on the path that was driven."""
        cfg, paths = self._cfg, self.policy.paths(self.policy.encode(part(batch, "obs/")))
        lateral = winner_takes_all(paths.points, paths.logits, batch["way"], batch["way_there"])
        turns = at_mode(paths.turns, batch["mode"]).detach()
        log_probs = self.policy.speed_logits(paths.features, turns).log_softmax(dim=1)
        pg_loss = reinforce_loss(log_probs, batch["choice"], batch["advantage"])
        entropy = -(log_probs.exp() * log_probs).sum(dim=1).mean()
        loss = lateral.regression + cfg.mode_coef * lateral.classification
        loss = loss + cfg.rl_coef * (pg_loss - cfg.entropy_coef * entropy)
        # what was logged stays among the draws
        speed = nn.functional.nll_loss(log_probs, batch["label"])
        loss = loss + cfg.anchor_coef * speed
        info = {
            "path_m": lateral.regression,
            "mode_loss": lateral.classification,
            "pg_loss": pg_loss,
            "speed_loss": speed,
            "entropy": entropy,
        }
        return LossOut(loss, info, (torch.full_like(loss, cfg.rl_lr),))


class ForecasterLoss(LossModule):
    """Loss of the forecaster: futures of the other road users by winner-takes-all.

    Args:
        forecaster: the world model in training.
        cfg: settings.
    """

    def __init__(self, forecaster: AgentForecaster, cfg: PerladCfg) -> None:
        super().__init__()
        self.forecaster, self._cfg = forecaster, cfg

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`."""
        found = forecast_loss(self.forecaster, agent_scenes(batch), self._cfg.scenes.history)
        loss = found.regression + MODE_COEF * found.classification
        info = {"forecast_m": found.likely, "forecast_winner_m": found.regression}
        return LossOut(loss, info, (torch.full_like(loss, self._cfg.forecaster_lr),))


def reinforce_loss(log_probs: Tensor, choice: Tensor, advantage: Tensor) -> Tensor:
    """REINFORCE: minus the mean of advantage times log-probability.

    Args:
        log_probs: (B, V) log-probabilities of all choices.
        choice: (B, N) the choices that were drawn.
        advantage: (B, N) their advantages.
    """
    return -(advantage * log_probs.gather(1, choice)).mean()


# update


class PerladLearner(Learner):
    """Trains a `PathSpeedPolicy` on the log of a sim; see `PerladCfg`.

    Raises:
        ConfigError: settings out of range, or a policy whose points are not those of the sim's actions.
        CapabilityError: the policy has no paths and speeds, or the sim no log or no trajectories as actions.
        DataError: the log has no road users, or no clip as long as a scene.
    """

    counts = ("iteration", "updates")

    def __init__(self, cfg: PerladCfg, setup: Setup) -> None:
        _check(cfg)
        self.cfg = cfg
        torch.manual_seed(setup.seed)
        self.policy, self._pseudo = _policy_and_scenes(cfg, setup)
        self._device = setup.device
        self._loss = PerladLoss(self.policy, cfg).to(setup.device)
        self._engine = Engine(
            self._loss,
            (ParameterGroup("policy.", cfg.max_grad_norm),),
            minibatch=cfg.minibatch,
            mode=cfg.engine,
            updates=setup.expected(cfg.imitation_updates + cfg.updates),
            threads=setup.update_threads,
            # speeds are drawn anew for each update
            updates_per_call=1,
        )
        self._forecaster: AgentForecaster | None = None
        self._forecast_engine: Engine | None = None
        if cfg.predicts:
            self._forecaster = AgentForecaster(cfg.forecaster_hidden, cfg.forecaster_modes).to(setup.device)
            self._forecast_engine = Engine(
                ForecasterLoss(self._forecaster, cfg),
                (ParameterGroup("forecaster.", cfg.max_grad_norm),),
                minibatch=cfg.forecaster_minibatch,
                mode=cfg.engine,
                updates=setup.expected(cfg.forecaster_updates),
                threads=setup.update_threads,
                updates_per_call=1,
            )
        self._labels = self._pseudo.labels(self.policy.classes_mps.cpu(), cfg.label_s)
        self._generator = torch.Generator().manual_seed(setup.seed)
        self._imitation = math.ceil(cfg.imitation_updates / cfg.updates_per_iteration)
        self.iterations = self._imitation + math.ceil(cfg.updates / cfg.updates_per_iteration)

    def iterate(self) -> dict[str, float]:
        """Run `updates_per_iteration` updates of the part of training that is due; returns scalars to log."""
        cfg = self.cfg
        self.iteration += 1
        imitates = self.iteration <= self._imitation
        left = cfg.imitation_updates - self.updates if imitates else cfg.imitation_updates + cfg.updates - self.updates
        scalars: dict[str, list[float]] = {}
        for _ in range(min(cfg.updates_per_iteration, left)):
            for name, value in (self._imitate() if imitates else self._reinforce()).items():
                scalars.setdefault(name, []).append(value)
            self.updates += 1
        means = {name: sum(values) / len(values) for name, values in scalars.items()}
        return finite(means | {"scenes": float(self._pseudo.num_scenes), "updates": float(self.updates)})

    def _imitate(self) -> dict[str, float]:
        at = self._draw(self.cfg.minibatch)
        scalars = self._update(self._observed(at) | {"label": self._labels[at]}, IMITATION)
        return scalars | self._learn_to_forecast()

    def _learn_to_forecast(self) -> dict[str, float]:
        """Make the forecaster's updates that are due beside an update of imitation."""
        cfg, engine = self.cfg, self._forecast_engine
        before, after = (n * cfg.forecaster_updates // cfg.imitation_updates for n in (self.updates, self.updates + 1))
        if engine is None or after == before:
            return {}
        at = self._draw((after - before) * cfg.forecaster_minibatch)
        data = {name: self._pseudo.rows[name][at] for name in FORECAST}
        made = engine.run(data, torch.arange(len(at)), len(at), f"update {self.updates + 1}, forecaster").mean()
        return {("forecaster_loss" if name == "loss" else name): value for name, value in made.items()}

    def _reinforce(self) -> dict[str, float]:
        """Draw speeds for some scenes, drive them, and update the policy once."""
        cfg, policy = self.cfg, self.policy
        at = self._draw(cfg.minibatch)
        predicted = agents_predicted(self.updates - cfg.imitation_updates, cfg.updates, cfg.predicted)
        rows = {name: x[at].to(self._device) for name, x in self._pseudo.rows.items()}
        with torch.no_grad():
            paths = policy.paths(policy.encode(part(rows, "obs/")))
            mode = paths.likely
            turns, points = at_mode(paths.turns, mode), at_mode(paths.points, mode)
            share = policy.speed_logits(paths.features, turns).softmax(dim=1)
            wide = share.repeat_interleave(cfg.samples, dim=0)
            choice = choose(wide, self._generator).view(-1, cfg.samples)
            # a speed that knows nothing of the path is tried on the logged one
            path = points if policy.cfg.aligned else rows["way"]
            found = self._pseudo.drive(rows, path, policy.classes_mps[choice], self._forecaster if predicted else None)
            advantage = group_relative(found.total)
        data = self._observed(at) | {"mode": mode, "choice": choice, "advantage": advantage}
        data["label"] = self._labels[at]
        scalars = self._update(data, REINFORCE)
        return scalars | {
            "rollout_return": float(found.total.mean()),
            "collisions": float((found.collision < 0).float().mean()),
            "crossings": float((found.crossing < 0).float().mean()),
            "progress": float(found.progress.mean()),
            "mean_speed": float(policy.classes_mps[choice].mean()),
            "predicted_agents": float(predicted),
        }

    def _draw(self, count: int) -> Tensor:
        return torch.randint(self._pseudo.num_scenes, (count,), generator=self._generator)

    def _observed(self, at: Tensor) -> dict[str, Tensor]:
        names = ("way", "way_there", *(f"obs/{key}" for key in self.policy.observation_spec))
        return {name: self._pseudo.rows[name][at] for name in names}

    def _update(self, data: dict[str, Tensor], phase: str) -> dict[str, float]:
        count = self.cfg.minibatch
        made = self._engine.run(data, torch.arange(count), count, f"update {self.updates + 1}, {phase}", phase).mean()
        return {(f"{phase}_loss" if name == "loss" else name): value for name, value in made.items()}

    def parts(self) -> dict[str, Part]:
        """See `Learner.parts`; the scenes are read again from the log."""
        return {
            "networks": self._loss,
            "engine": self._engine,
            "forecaster": self._forecaster,
            "forecast_engine": self._forecast_engine,
            "generator": self._generator,
        }


# checks


def _policy_and_scenes(cfg: PerladCfg, setup: Setup) -> tuple[PathSpeedPolicy, PseudoSim]:
    """Return the policy to train, and the scenes of the sim's log.

    Raises:
        CapabilityError: the policy has no paths and speeds, or the sim no log or no trajectories as actions.
        ConfigError: the policy's points are not those of the sim's actions, or it was trained for another sim.
    """
    given: Any = setup.init_policy
    if given is not None and not isinstance(given, PathSpeedPolicy):
        raise CapabilityError(
            f"policy {type(given).__name__} has no paths and speed classes: expected PathSpeedPolicy, which PerlAD"
            " trains from scratch"
        )
    sim: Any = setup.make_sim()
    dt_s = _plan_dt_s(sim)
    specs = visible(sim)
    shape = setup.policy_cfg if given is None else given.cfg
    if not isinstance(shape, PathSpeedCfg):
        raise CapabilityError(
            f"policy config {type(shape).__name__} has no paths and speed classes: expected policy path-speed"
        )
    points, spacing_m = shape.points, shape.spacing_m
    scene_cfg = cfg.scenes._replace(points=points, spacing_m=spacing_m)
    if given is not None:
        check_fit(given, sim)
        specs = given.observation_spec
    scenes = sim.logged_scenes("train", scene_cfg)
    pseudo = pseudo_sim(scenes, sim.vehicle, scene_cfg, cfg.weights)
    if given is None:
        inputs: list[Affine] = []
        for key in measured(specs):
            flat = scenes.obs[key].reshape(-1, scenes.obs[key].shape[-1]).astype("float64")
            inputs.append(normalize(key, flat.mean(0).tolist(), flat.std(0).tolist(), FLOOR))
        given = setup.fresh(specs, sim.action_spec, TransformGroup(tuple(inputs), within_bounds(sim.action_spec)))
    policy: PathSpeedPolicy = given
    if not math.isclose(policy.cfg.point_dt_s, dt_s):
        raise ConfigError(
            f"policy.point_dt_s is {policy.cfg.point_dt_s}: expected {dt_s}, the spacing of the sim's trajectories"
        )
    policy.control_dt_s = sim.control_dt_s
    sim.close()
    return policy, pseudo


def _plan_dt_s(sim: VecSim) -> float:
    """Return the seconds between two points of an action of a sim with a log."""
    name = type(sim).__name__
    if not isinstance(sim, HasLoggedScenes):
        raise CapabilityError(
            f"sim {name} lacks HasLoggedScenes: PerlAD learns from a driving log; expected bev/warp with sim.log, which"
            " `robotrl driving-log record` records in bev/drive"
        )
    if not isinstance(sim, HasTrajectoryActions) or sim.trajectory_dt_s is None:
        raise CapabilityError(
            f"sim {name} takes no trajectories as actions (HasTrajectoryActions): expected sim.actions 'trajectory'"
        )
    return sim.trajectory_dt_s


def _check(cfg: PerladCfg) -> None:
    for name in (
        "updates_per_iteration",
        "minibatch",
        "forecaster_minibatch",
        "forecaster_updates",
        "every",
        "agents",
        "forecaster_hidden",
        "forecaster_modes",
    ):
        check_at_least(f"algo.{name}", getattr(cfg, name), 1)
    for name in ("imitation_updates", "updates"):
        check_at_least(f"algo.{name}", getattr(cfg, name), 0)
    if cfg.imitation_updates + cfg.updates < 1:
        raise out_of_range("algo.updates", cfg.updates, "1 or more, beside algo.imitation_updates 0")
    check_at_least("algo.samples", cfg.samples, 2)
    check_number("algo.predicted", cfg.predicted, 0.0, 1.0)
    if cfg.predicts and not cfg.imitation_updates:
        raise out_of_range(
            "algo.imitation_updates", 0, "1 or more, in which the forecaster is trained, or algo.predicted 0"
        )
    for name, low in (("horizon_s", 0.2), ("history_s", 0.1), ("label_s", 0.1)):
        check_number(f"algo.{name}", getattr(cfg, name), low, 10.0, "s")
    if cfg.label_s > cfg.horizon_s:
        raise out_of_range("algo.label_s", cfg.label_s, f"{cfg.horizon_s} or less, the horizon")
    for name in ("lr", "rl_lr", "forecaster_lr", "max_grad_norm"):
        check_positive(f"algo.{name}", getattr(cfg, name))
    coefs = ("mode_coef", "speed_coef", "rl_coef", "anchor_coef", "entropy_coef", "progress_coef", "distance_coef")
    for name in (*coefs, "car_price", "person_price", "static_price", "edge_price", "divider_price"):
        check_number(f"algo.{name}", getattr(cfg, name), 0.0, 1e6)
