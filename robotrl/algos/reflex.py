"""Reflex: a risk critic beside a fixed task policy, evaluated at the servo's rate (Zhang et al. 2025, 2503.21989).

The critic learns the discounted probability that an action leads to a violation, as in Recovery RL (Thananjeyan et al.
2021, 2010.15920), but on the transitions of servo ticks. It learns on its own: the task policy stays as it is, and its
reward is not read. A tick's action is followed by the task policy's, so the risk of a recovery action is that of going
back to the task right after it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from robotrl.engine.engine import Context, Engine, EngineMode, LossModule, LossOut, ParameterGroup
from robotrl.engine.minibatches import means, part, run_updates
from robotrl.errors import CapabilityError, ConfigError, check_at_least, check_number, check_positive, out_of_range
from robotrl.learners.learner import Learner, Setup
from robotrl.learners.parts import Part
from robotrl.policies.guarded import GuardedCfg, GuardedPolicy, RiskReflex
from robotrl.policies.networks.risk import RiskCritic
from robotrl.rollout.collector import Collector, Decision
from robotrl.rollout.compatibility import check_fit
from robotrl.spec import Arrays, LearnerCfg, MemoryNeeds, TrainDefaults, VecSim
from robotrl.spec.actuation import HasServoClock, ServoTick
from robotrl.utils.devices import CPU

UPDATES_AT_ONCE = 16
"""Updates whose rows are sampled together."""

# loss


def risk_target(violated: Tensor, next_risk: Tensor, gamma: float) -> Tensor:
    """Discounted probability of a violation, c + (1 - c) gamma Q'(s', a'): a violation is absorbing.

    Args:
        violated: (B,) c, 1 where the tick ended in a violation and 0 elsewhere.
        next_risk: (B,) Q' of the next tick, with the action that the task policy has for it.
        gamma: discount of a servo tick.
    """
    return violated + (1 - violated) * gamma * next_risk


def risk_loss(logit: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy of the predicted probability to the target (B,): violations are rare, and it weighs them fully."""
    return functional.binary_cross_entropy_with_logits(logit, target)


class ReflexLoss(LossModule):
    """`risk_loss` as a loss module; the critic's average is the target network.

    Args:
        risk: the critic in training.
        cfg: settings.
    """

    def __init__(self, risk: RiskCritic, cfg: ReflexCfg) -> None:
        super().__init__()
        self.risk = risk
        self._cfg = cfg

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`."""
        with torch.no_grad():
            following = batch["next_obs"], batch["next_action"]
            next_risk = torch.sigmoid(functional_call(self.risk, part(context.average, "risk."), following))
            target = risk_target(batch["violated"], next_risk, self._cfg.gamma)
        logit = self.risk(batch["obs"], batch["action"])
        loss = risk_loss(logit, target)
        info = {"risk_loss": loss, "risk": torch.sigmoid(logit).mean(), "risk_target": target.mean()}
        return LossOut(loss, info, (torch.full_like(loss, self._cfg.lr),))


# transitions


class TickReplay:
    """Ring of servo transitions (s, a, c, s', a').

    Args:
        capacity: number of transitions that are kept, the newest.
        device: device that holds them.
    """

    def __init__(self, capacity: int, device: torch.device = CPU) -> None:
        self._capacity, self._device = capacity, device
        self._rows: dict[str, Tensor] = {}
        self._added = 0

    def __len__(self) -> int:
        return min(self._added, self._capacity)

    def add(self, rows: Mapping[str, Tensor]) -> None:
        """Add rows (n, ...) of each name over the oldest; n at most the capacity."""
        if not self._rows:
            self._rows = {
                name: torch.zeros((self._capacity, *x.shape[1:]), dtype=x.dtype, device=self._device)
                for name, x in rows.items()
            }
        count = len(next(iter(rows.values())))
        places = (self._added + torch.arange(count)) % self._capacity
        for name, x in rows.items():
            self._rows[name][places] = x.to(self._device)
        self._added += count

    def rows(self, name: str) -> Tensor:
        """All values (n, ...) of one name."""
        return self._rows[name][: len(self)]

    def sample(self, count: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Sample rows (count, ...) uniformly, with replacement."""
        places = torch.randint(len(self), (count,), generator=generator)
        return {name: x[places] for name, x in self._rows.items()}

    def state(self) -> dict[str, Any]:
        """State for an exact resume."""
        return {"rows": {name: self.rows(name).clone() for name in self._rows}, "added": self._added}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`; the order of the rows in the ring is kept."""
        self._rows, self._added = {}, 0
        if state["rows"]:
            self.add(state["rows"])
        self._added = int(state["added"])


class TickRecorder:
    """Records servo transitions, and varies the actions from which the critic learns; implements `Reflex`.

    In a share of the envs the present reflex acts, so that the critic sees what follows its recoveries. Everywhere some
    ticks get a random action or the recovery.

    Args:
        replay: receives the transitions.
        reflex: the present reflex.
        policy: the policy of that reflex.
        sim: the sim, with a servo clock.
        cfg: settings.
        generator: source of the random actions.
    """

    def __init__(
        self,
        replay: TickReplay,
        reflex: RiskReflex,
        policy: GuardedPolicy,
        sim: Any,
        cfg: ReflexCfg,
        generator: torch.Generator,
    ) -> None:
        spec = sim.action_spec
        self._replay, self._reflex, self._cfg, self._generator = replay, reflex, cfg, generator
        self._limit = float(sim.hazard_limit)
        device = sim.device
        ends = spec.low, spec.high, policy.cfg.recovery
        self._low, self._high, self._recovery = (torch.tensor(x, dtype=torch.float32, device=device) for x in ends)
        self._guarded = torch.arange(sim.num_envs, device=device) < round(cfg.guarded * sim.num_envs)
        self.begin(reflexes=True)

    def begin(self, reflexes: bool) -> None:
        """Begin a rollout: the next tick follows none, and the counts are 0.

        Args:
            reflexes: whether the reflex acts in its share of the envs.
        """
        self._acts = self._guarded & reflexes
        self._last: dict[str, Tensor] = {}
        self.ticks, self.violations, self.fired = 0, 0, 0

    def act(self, tick: ServoTick) -> Tensor:
        """See `Reflex`; it completes the transition of the last tick."""
        policy_action = tick.action.float()
        if self._last:
            # the tick after a violation counts for nothing, so it may be of another episode
            whole = ~tick.started | (self._last["violated"] > 0)
            rows = self._last | {"next_obs": tick.obs, "next_action": policy_action}
            self._replay.add({name: x[whole] for name, x in rows.items()})
        count = len(policy_action)
        action = torch.where(self._acts[:, None], self._reflex.act(tick).float(), policy_action)
        self.fired += int((self._reflex.fired & self._acts).sum())
        # drawn on the CPU: the same numbers for every device
        share, u = (torch.rand(n, generator=self._generator).to(action.device) for n in (action.shape, (count,)))
        drawn = self._low + (self._high - self._low) * share
        action = torch.where((u < self._cfg.explore / 2)[:, None], drawn, action)
        recovers = (u >= self._cfg.explore / 2) & (u < self._cfg.explore)
        action = torch.where(recovers[:, None], self._recovery, action)
        self._last = {"obs": tick.obs.clone(), "action": action.clone()}
        return action.to(tick.action.dtype)

    def felt(self, obs: Tensor, hazard: Tensor) -> None:
        """See `Reflex`."""
        del obs
        violated = hazard > self._limit
        self._last["violated"] = violated.float()
        self.ticks += len(hazard)
        self.violations += int(violated.sum())


# update


class ReflexLearner(Learner):
    """Drives the task policy, records servo ticks, and trains the risk critic on them; see `ReflexCfg`.

    Raises:
        ConfigError: settings out of range, no policy to start from, or one that does not fit the sim.
        CapabilityError: the sim has no servo clock, or the policy cannot act beside a reflex.
    """

    def __init__(self, cfg: ReflexCfg, setup: Setup) -> None:
        self.cfg = cfg
        torch.manual_seed(setup.seed)
        sim: Any = setup.make_sim()
        self._sim = sim
        self.policy: GuardedPolicy = guarded(setup, sim).to(setup.device)
        self._generator = torch.Generator().manual_seed(setup.seed)
        self._replay = TickReplay(cfg.capacity, setup.device)
        reflex = self.policy.reflex()
        self._recorder = TickRecorder(self._replay, reflex, self.policy, sim, cfg, self._generator)
        self._loss = ReflexLoss(self.policy.risk, cfg).to(setup.device)
        self.iterations = math.ceil(cfg.env_steps / (cfg.num_steps * sim.num_envs))
        self._engine = Engine(
            self._loss,
            (ParameterGroup("risk.", cfg.max_grad_norm, 1 - cfg.tau),),
            minibatch=cfg.batch,
            mode=cfg.engine,
            updates=setup.expected(self.iterations * cfg.updates),
            threads=setup.update_threads,
        )
        self._stepper = self._collector = Collector(sim, self.policy.horizon, 1.0)
        self._collector.reset(setup.seed, {"stagger": True})

    def iterate(self) -> dict[str, float]:
        """Drive `num_steps` control steps in all envs, then train the critic."""
        cfg = self.cfg
        self.iteration += 1
        # before its first update the critic's opinion is none
        self._recorder.begin(reflexes=self.iteration > 1)
        self._sim.set_reflex(self._recorder)
        try:
            found = self._collector.collect(self._decide, cfg.num_steps)
        finally:
            self._sim.set_reflex(None)
        if self.iteration == 1:
            self.policy.risk.normalize_by(self._replay.rows("obs"))
        info = run_updates(self._engine, self._draw, cfg.updates, UPDATES_AT_ONCE, f"iteration {self.iteration}")
        success = {"rollout_success": float(found.episodes.float().mean())} if len(found.episodes) else {}
        ticks = self._recorder.ticks
        shares = {"violations": self._recorder.violations / ticks, "fired": self._recorder.fired / ticks}
        return success | shares | {"transitions": float(len(self._replay))} | means(info)

    @torch.no_grad()
    def _decide(self, obs: Arrays) -> Decision:
        given = {key: obs[key] for key in self.policy.observation_spec}
        return Decision(self.policy.act(given, None, self._generator, self.policy.deploy_mode).chunk, {})

    def _draw(self, updates: int) -> dict[str, Tensor]:
        return self._replay.sample(updates * self.cfg.batch, self._generator)

    def parts(self) -> dict[str, Part]:
        """See `Learner.parts`."""
        return {
            "collector": self._collector,
            "replay": self._replay,
            "risk": self.policy.risk,
            "engine": self._engine,
            "generator": self._generator,
        }


def guarded(setup: Setup, sim: VecSim) -> GuardedPolicy:
    """Return the policy to guard: the given policy with a fresh critic; a policy that has one already is kept.

    Raises:
        ConfigError: no policy is given, or it does not fit the sim.
        CapabilityError: the sim has no servo clock, or the policy cannot act beside a reflex.
    """
    given: Any = setup.init_policy
    if given is None:
        raise ConfigError("init_from is not given: a reflex guards a policy that was trained before")
    if not isinstance(sim, HasServoClock):
        raise CapabilityError(
            f"sim {type(sim).__name__} lacks HasServoClock: expected one whose servo measures and acts between two"
            " actions of the policy, such as mujoco/press"
        )
    servo_dt_s = None if sim.control_dt_s is None else sim.control_dt_s / sim.servo_ticks
    if isinstance(given, GuardedPolicy):
        policy = given
    elif isinstance(setup.policy_cfg, GuardedCfg):
        cfg = setup.policy_cfg
        policy = setup._replace(
            policy_cfg=replace(
                cfg,
                columns=cfg.columns or sim.servo_spec.names,
                recovery=cfg.recovery or tuple(sim.retract),
                servo_dt_s=cfg.servo_dt_s or servo_dt_s,
            )
        ).fresh(given)
    else:
        raise CapabilityError(f"policy config {type(setup.policy_cfg).__name__} has no risk critic: use GuardedCfg")
    if policy.cfg.columns != tuple(sim.servo_spec.names):
        raise ConfigError(
            f"policy.columns is {', '.join(policy.cfg.columns)}: the servo of sim {type(sim).__name__} measures"
            f" {', '.join(sim.servo_spec.names)}"
        )
    check_fit(policy, sim)
    policy.control_dt_s = sim.control_dt_s
    return policy


# config


@dataclass(frozen=True)
class ReflexCfg(LearnerCfg):
    """Settings of the reflex."""

    default_policy: ClassVar[str] = "guarded"
    # an evaluation of the policy tells nothing about the critic: the newest one is kept
    train_defaults: ClassVar[TrainDefaults] = TrainDefaults({"sim.num_envs": 64, "evaluation.every": 0})
    env_steps: int = 100_000
    """Budget of control steps, summed over all envs; rounded up to whole iterations."""
    num_steps: int = 40
    """Control steps per env in an iteration."""
    updates: int = 150
    """Updates of the critic in an iteration."""
    batch: int = 512
    """Transitions per update."""
    capacity: int = 400_000
    """Number of servo transitions that are kept, the newest."""
    gamma: float = 0.95
    """Discount per servo tick: the critic foresees about 1 / (1 - gamma) ticks."""
    explore: float = 0.1
    """Share of ticks with a random action or the recovery, half of each."""
    guarded: float = 0.5
    """Share of the envs in which the present reflex acts."""
    lr: float = 1e-3
    """Learning rate."""
    tau: float = 0.02
    """Step of the target critic towards the critic per update, 0 to 1 (Polyak averaging)."""
    max_grad_norm: float = 10.0
    """Maximum gradient norm."""
    engine: EngineMode = "eager"
    """Execution mode of updates; "compiled" pays for many thousand updates."""

    @property
    def reads_rewards(self) -> bool:
        """See `LearnerCfg.reads_rewards`: it learns from violations alone."""
        return False

    @property
    def memory(self) -> MemoryNeeds:
        """See `LearnerCfg.memory`."""
        return MemoryNeeds(self.batch, num_steps=self.num_steps)

    def build(self, setup: Setup) -> ReflexLearner:
        """Build the learner."""
        for name in ("env_steps", "num_steps", "updates", "batch", "capacity"):
            check_at_least(f"algo.{name}", vars(self)[name], 1)
        for name in ("lr", "max_grad_norm"):
            check_positive(f"algo.{name}", vars(self)[name])
        for name in ("explore", "guarded"):
            check_number(f"algo.{name}", vars(self)[name], 0.0, 1.0)
        if not 0 <= self.gamma < 1:
            raise out_of_range("algo.gamma", self.gamma, "0 or more, below 1")
        if not 0 < self.tau <= 1:
            raise out_of_range("algo.tau", self.tau, "above 0, up to 1")
        return ReflexLearner(self, setup)
