"""RAD-2: a planner that proposes candidates and a discriminator that picks one, each trained by reinforcement.

The discriminator learns by TC-GRPO: groups of episodes from one start, an advantage that each decision of an episode
shares, and one ratio per decision, that of the chosen candidate's probability. A decision lasts several control steps
of the sim, whose tracker follows the chosen plan in the meantime, so choices are consistent in time. The planner learns
by on-policy generator optimization (OGO): executed plans keep their path and get another acceleration, less where a
collision ahead is near, more where the ego lags and is safe; its own cloning loss is trained on them.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from robotrl.engine.engine import Context, Engine, EngineMode, LossModule, LossOut, ParameterGroup
from robotrl.engine.minibatches import part
from robotrl.errors import (
    CapabilityError,
    ConfigError,
    check_at_least,
    check_number,
    check_positive,
    out_of_range,
    unknown,
)
from robotrl.fn.advantage import group_relative, group_std, spread_groups
from robotrl.fn.bc_loss import CloneLoss, DrawShape, clone_loss_of
from robotrl.fn.loss import weighted_clip
from robotrl.fn.planner.reranking import choice_terms, gated_entropy
from robotrl.fn.planner.retiming import acceleration_shift, least_ahead, retimed
from robotrl.learners.episodes import step_weights
from robotrl.learners.learner import Learner, Setup
from robotrl.learners.off_policy import ActionNormalizer
from robotrl.learners.on_policy import finite
from robotrl.learners.parts import Part
from robotrl.policies.reranked import RerankedCfg, RerankedPolicy, chosen
from robotrl.rollout import groups
from robotrl.rollout.collector import Decision
from robotrl.rollout.compatibility import check_fit
from robotrl.rollout.groups import GroupCollector, Trajectories
from robotrl.spec import Arrays, LearnerCfg, MemoryNeeds, VecSim
from robotrl.spec.vehicle import (
    HasProgressRatio,
    HasTimeToCollision,
    HasTimeToCollisionAhead,
    HasTrajectoryActions,
)

Train = Literal["both", "discriminator", "generator"]
TRAIN: tuple[Train, ...] = ("both", "discriminator", "generator")
DISCRIMINATOR, GENERATOR = "discriminator", "generator"
"""Phases of the engine."""


@dataclass(frozen=True)
class Rad2Cfg(LearnerCfg):
    """Settings of RAD-2; group size, buffer and the generator's period are the paper's."""

    default_policy: ClassVar[str] = "reranked"
    iterations: int = 64
    """Number of iterations; each is a rollout of whole episodes and its updates."""
    train: Train = "both"
    """Parts that learn: the discriminator (TC-GRPO), the generator (OGO), or both."""
    group_size: int = 4
    """G, episodes per group, from the same start; divides the sim's envs."""
    least_std: float = 0.05
    """Least standard deviation of the returns of a group; the discriminator does not learn from groups below it."""
    buffer: int = 8
    """Number of rollouts that updates sample from; the oldest leaves first."""
    minibatch: int = 128
    """Decisions per update."""
    updates: int = 16
    """Updates of the discriminator after each rollout."""
    lr: float = 3e-4
    """Learning rate of the discriminator and of the temperature."""
    clip_low: float = 0.2
    """Lower clip range: the ratio of a choice is clipped to at least 1 minus this."""
    clip_high: float = 0.2
    """Upper clip range: the ratio of a choice is clipped to at most 1 plus this."""
    target_entropy: float = 0.5
    """Entropy of the choice below which the entropy bonus is active, as a fraction of log M, the largest; 0: never."""
    initial_alpha: float = 0.01
    """Initial temperature: the weight of the entropy bonus, in units of the advantage."""
    generator_every: int = 8
    """Rollouts between two rounds of the generator's updates."""
    generator_updates: int = 64
    """Updates of the generator in a round."""
    generator_lr: float = 1e-4
    """Learning rate of the generator."""
    anchors: float = 0.5
    """Fraction of a generator's minibatch that are executed plans as they were, so that it keeps what is good."""
    unsafe_ttc_s: float = 2.0
    """Time to collision with somebody ahead below which an executed plan is shortened, s."""
    safe_ttc_s: float = 4.0
    """Time to collision from which an executed plan may be lengthened, s."""
    ttc_ahead: int = 1
    """Further decisions of the episode whose times to collision count for a plan: it led to them."""
    lag: float = 0.95
    """Progress over the reference driver's below which a safe plan is lengthened."""
    brake_mps2: float = 1.5
    """Shift of the acceleration of shortened plans, m/s^2; 0: none are."""
    speed_up_mps2: float = 0.75
    """Shift of the acceleration of lengthened plans, m/s^2; 0: none are, and the sim needs no reference driver."""
    max_grad_norm: float = 1.0
    """Maximum gradient norm, for each network separately."""
    engine: EngineMode = "eager"
    """Execution mode of updates: "eager", "compiled" or "auto"; see docs/engine.md."""

    def check(self) -> None:
        """See `LearnerCfg.check`."""
        _check(self)

    @property
    def memory(self) -> MemoryNeeds:
        """See `LearnerCfg.memory`."""
        return MemoryNeeds(self.minibatch)

    @property
    def ranks(self) -> bool:
        """True if the discriminator learns."""
        return self.train != "generator"

    @property
    def generates(self) -> bool:
        """True if the generator learns."""
        return self.train != "discriminator"

    def build(self, setup: Setup) -> Rad2Learner:
        """Build the learner."""
        return Rad2Learner(self, setup)


# losses


class Rad2Loss(LossModule):
    """Loss of the discriminator, or of the generator, by the engine's phase.

    Args:
        policy: the policy in training.
        clone: the planner's cloning loss.
        cfg: settings.
    """

    largest: ClassVar[frozenset[str]] = frozenset({"ratio_error"})

    def __init__(self, policy: RerankedPolicy, clone: CloneLoss, cfg: Rad2Cfg) -> None:
        super().__init__()
        self.policy = policy
        self.log_alpha = nn.Parameter(torch.tensor(math.log(cfg.initial_alpha)))
        self._clone, self._cfg = clone, cfg
        self._target_entropy = cfg.target_entropy * math.log(policy.cfg.candidates)

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`."""
        return self._generator(batch) if context.phase == GENERATOR else self._discriminator(batch)

    def _discriminator(self, batch: dict[str, Tensor]) -> LossOut:
        """TC-GRPO: the clipped surrogate of each decision's choice, and the gated entropy bonus."""
        cfg = self._cfg
        logits = self.policy.discriminator(part(batch, "obs/"), batch["chunks"])
        terms = choice_terms(logits, batch["choice"])
        # one ratio per decision
        log_prob, old, advantage, weight = (
            x[:, None] for x in (terms.log_prob, batch["log_prob"], batch["advantage"], batch["weight"])
        )
        out = weighted_clip(log_prob, old, advantage, weight, cfg.clip_low, cfg.clip_high)
        bonus = gated_entropy(terms.entropy, self.log_alpha, self._target_entropy)
        info = {
            "pg_loss": out.loss,
            "approx_kl": out.approx_kl,
            "clip_fraction": out.clip_fraction,
            "ratio_error": out.ratio_error,
            "entropy": terms.entropy.mean(),
            "entropy_bonus": bonus.active,
            "alpha": self.log_alpha.exp(),
        }
        lr = torch.full_like(out.loss, cfg.lr)
        return LossOut(out.loss + bonus.loss, info, (lr, lr, None))

    def _generator(self, batch: dict[str, Tensor]) -> LossOut:
        """OGO: the planner's own cloning loss on relabeled plans."""
        base, drawn = self.policy.base, part(batch, "drawn/")
        loss = self._clone.loss(base, base.encode(part(batch, "obs/")), batch["label"], batch["valid"], **drawn)
        lr = torch.full_like(loss, self._cfg.generator_lr)
        return LossOut(loss, {"generator_loss": loss}, (None, None, lr))


# buffer


class RolloutBuffer:
    """The last rollouts' decisions, first in, first out.

    Args:
        size: number of rollouts.
    """

    def __init__(self, size: int) -> None:
        self._rollouts: deque[dict[str, Tensor]] = deque(maxlen=size)

    def add(self, rows: dict[str, Tensor]) -> None:
        """Add the decisions (D, ...) of a rollout; the oldest rollout leaves a full buffer."""
        # a resumed buffer is on the CPU, too, whatever the device of the networks
        self._rollouts.append({name: x.cpu() for name, x in rows.items()})

    def rows(self) -> dict[str, Tensor]:
        """All decisions (D, ...), the oldest rollout first."""
        return {name: torch.cat([one[name] for one in self._rollouts]) for name in self._rollouts[0]}

    def state(self) -> list[dict[str, Tensor]]:
        """State for an exact resume."""
        return list(self._rollouts)

    def load(self, state: list[dict[str, Tensor]]) -> None:
        """Restore the result of `state`."""
        self._rollouts.clear()
        self._rollouts.extend(state)


# update


class Rad2Learner(Learner):
    """Trains discriminator and generator of a `RerankedPolicy`; see `Rad2Cfg`.

    Raises:
        ConfigError: settings out of range, no policy to start from, or a sim that it was not trained for.
        CapabilityError: the policy proposes no candidates, the sim's starts have no ids, or the generator is to learn
            and the sim does not say what that needs.
    """

    def __init__(self, cfg: Rad2Cfg, setup: Setup) -> None:
        _check(cfg)
        self.cfg = cfg
        torch.manual_seed(setup.seed)
        self.policy: RerankedPolicy = _policy(cfg, setup)
        self.sim: Any = setup.make_sim()
        check_fit(self.policy, self.sim)
        self._dt_s = _plan_dt_s(cfg, self.policy, self.sim) if cfg.generates else 0.0
        for policy in (self.policy, self.policy.base):
            policy.control_dt_s = self.sim.control_dt_s
        self._stepper = self._collector = GroupCollector(self.sim, cfg.group_size, setup.seed)
        self._clone = clone_loss_of(self.policy.base)
        self._unit = ActionNormalizer.of_policy(self.policy).to(setup.device) if cfg.generates else None
        self._loss = Rad2Loss(self.policy, self._clone, cfg).to(setup.device)
        self._engine = Engine(
            self._loss,
            (
                ParameterGroup("policy.discriminator.", cfg.max_grad_norm),
                ParameterGroup("log_alpha", cfg.max_grad_norm),
                ParameterGroup("policy.base.", cfg.max_grad_norm),
            ),
            minibatch=cfg.minibatch,
            mode=cfg.engine,
            updates=setup.expected(cfg.iterations * cfg.updates),
            threads=setup.update_threads,
        )
        self._generator = torch.Generator().manual_seed(setup.seed)
        self._choices, self._plans = RolloutBuffer(cfg.buffer), RolloutBuffer(cfg.buffer)
        self.iterations = cfg.iterations

    def iterate(self) -> dict[str, float]:
        """Run whole episodes in all envs, then the updates that are due; returns scalars to log."""
        cfg = self.cfg
        self.iteration += 1
        found = self._collector.collect(self.decide, self._collector.draw())
        returned = found.returned.view(-1, cfg.group_size)
        whole = ~found.cut.view_as(returned)
        kept = spread_groups(returned, cfg.least_std, whole)
        scalars = {
            "rollout_success": float(found.success.float().mean()),
            "rollout_return": float(returned.mean()),
            "rollout_cut": float(found.cut.float().mean()),
            "group_std": float(group_std(returned, whole).mean()),
            "groups_kept": float(len(kept)),
            "decisions": float(len(found.valid)),
        }
        if cfg.ranks:
            among = groups.chosen(found, kept, cfg.group_size)
            counted = torch.nonzero(~among.cut)[:, 0]
            advantage = group_relative(returned, whole)[kept].flatten()[counted]
            self._choices.add(self._choice_rows(groups.some_of(among, counted), advantage))
            scalars |= self._improve_discriminator()
        if cfg.generates:
            # a plan that led out of what the sim knows is no example, neither as it was nor relabeled
            self._plans.add(self._plan_rows(groups.some_of(found, torch.nonzero(~found.cut)[:, 0])))
            if self.iteration % cfg.generator_every == 0:
                scalars |= self._improve_generator()
        return finite(scalars)

    @torch.no_grad()
    def decide(self, obs: Arrays, rows: Tensor) -> Decision:
        """Draw a candidate for each of the envs `rows` (n,), with what the updates need."""
        explored = self.policy.explore({key: obs[key] for key in self.policy.observation_spec}, self._generator)
        record = {"chunks": explored.chunks, "choice": explored.choice, "log_prob": explored.log_prob}
        if self.cfg.generates:
            record["ttc_s"] = torch.from_numpy(self.sim.time_to_collision_s()).to(rows.device)[rows]
            tells: object = self.sim
            ahead = isinstance(tells, HasTimeToCollisionAhead)
            ahead_s = tells.time_to_collision_ahead_s() if ahead else self.sim.time_to_collision_s()
            record["ttc_ahead_s"] = torch.from_numpy(ahead_s).to(rows.device)[rows]
            if self.cfg.speed_up_mps2:
                record["progress"] = torch.from_numpy(self.sim.progress_ratio()).to(rows.device)[rows]
        return Decision(explored.actions, record)

    def _choice_rows(self, found: Trajectories, advantage: Tensor) -> dict[str, Tensor]:
        """Rows of the discriminator's loss, from the episodes of kept groups and their advantages (N,)."""
        record = {name: found.record[name] for name in ("chunks", "choice", "log_prob")}
        weight = step_weights(found.valid[:, :1], found.episode, len(found.success))[:, 0]
        return self._observed(found) | record | {"advantage": advantage[found.episode], "weight": weight}

    def _plan_rows(self, found: Trajectories) -> dict[str, Tensor]:
        """Executed plans as rows of the generator's loss, relabeled where the sim's own signals say so."""
        cfg, policy = self.cfg, self.policy
        assert self._unit is not None, "plans are relabeled only where the generator learns"
        plan = policy.to_actions(chosen(found.record["chunks"], found.record["choice"]))
        ttc_s, ttc_ahead_s = (
            least_ahead(found.record[name], found.episode, cfg.ttc_ahead) for name in ("ttc_s", "ttc_ahead_s")
        )
        shift = acceleration_shift(
            ttc_s,
            ttc_ahead_s,
            found.record["progress"] if cfg.speed_up_mps2 else torch.ones_like(ttc_s),
            unsafe_ttc_s=cfg.unsafe_ttc_s,
            safe_ttc_s=cfg.safe_ttc_s,
            lag=cfg.lag,
            brake_mps2=cfg.brake_mps2,
            speed_up_mps2=cfg.speed_up_mps2,
        ).to(plan.dtype)
        # also of a rollout in which all episodes were cut off
        points = plan.view(len(plan), math.prod(plan.shape[1:]) // 2, 2)
        label = retimed(points, shift, self._dt_s).view_as(plan)
        low, high = (torch.tensor(x).to(label) for x in (policy.action_spec.low, policy.action_spec.high))
        label = label.clamp(low, high)
        return self._observed(found) | {"label": self._unit(label), "shift": shift}

    def _observed(self, found: Trajectories) -> dict[str, Tensor]:
        return {f"obs/{key}": found.obs[key] for key in self.policy.observation_spec}

    def _improve_discriminator(self) -> dict[str, float]:
        """Run the discriminator's updates on decisions of the buffer, drawn evenly."""
        cfg, rows = self.cfg, self._choices.rows()
        if not len(rows["choice"]):
            return {}
        count = cfg.updates * cfg.minibatch
        drawn = torch.randint(len(rows["choice"]), (count,), generator=self._generator)
        data = {name: x[drawn] for name, x in rows.items()}
        made = self._engine.run(data, torch.arange(count), count, f"iteration {self.iteration}", DISCRIMINATOR)
        # the first update of a run has a ratio of 1; later ones learn from older rollouts, too
        return made.mean() | {"ratio_error": float(made.info["ratio_error"][0])}

    def _improve_generator(self) -> dict[str, float]:
        """Run the generator's updates on relabeled plans, with some that stay as they were."""
        cfg, rows = self.cfg, self._plans.rows()
        shift = rows.pop("shift")
        if not len(shift):
            return {}
        slower, faster = shift < 0, shift > 0
        scalars = {"plans_shortened": float(slower.float().mean()), "plans_lengthened": float(faster.float().mean())}
        changed, same = (torch.nonzero(which)[:, 0] for which in (slower | faster, shift == 0))
        if not len(changed):
            return scalars
        anchors = round(cfg.anchors * cfg.minibatch) if len(same) else 0
        draws = [(changed, cfg.minibatch - anchors), (same, anchors)]
        order = torch.cat(
            [
                some[torch.randint(max(len(some), 1), (cfg.generator_updates, count), generator=self._generator)]
                for some, count in draws
                if count
            ],
            dim=1,
        ).flatten()
        base = self.policy.base
        shape = DrawShape(cfg.generator_updates, cfg.minibatch, base.horizon, base.action_width)
        data = {name: x[order] for name, x in rows.items()}
        data["valid"] = torch.ones(len(order), base.horizon, dtype=torch.bool)
        data |= {f"drawn/{name}": x for name, x in self._clone.draw(base, shape, self._generator).items()}
        count = len(order)
        what = f"iteration {self.iteration}, generator"
        made = self._engine.run(data, torch.arange(count), count, what, GENERATOR).mean()
        # "loss" is the discriminator's
        return scalars | {name: value for name, value in made.items() if name != "loss"}

    def parts(self) -> dict[str, Part]:
        """See `Learner.parts`."""
        return {
            "networks": self._loss,
            "engine": self._engine,
            "generator": self._generator,
            "collector": self._collector,
            "choices": self._choices,
            "plans": self._plans,
        }


# checks


def _policy(cfg: Rad2Cfg, setup: Setup) -> RerankedPolicy:
    """Return the policy to train: the given planner with a discriminator; a reranked policy is kept.

    Raises:
        ConfigError: no policy is given, or a number of candidates that leaves nothing to learn.
        CapabilityError: the policy proposes no candidates.
    """
    given: Any = setup.init_policy
    if given is None:
        raise ConfigError(
            "init_from is not given: RAD-2 starts from a planner that flows or denoises; expected a run, e.g. of"
            " `robotrl train --sim NAME --sim.actions trajectory --algo bc`"
        )
    if isinstance(given, RerankedPolicy):
        policy = given
    elif isinstance(setup.policy_cfg, RerankedCfg):
        policy = setup.fresh(given)
        if not cfg.ranks and policy.cfg.candidates != 1:
            raise ConfigError(
                f"policy.candidates is {policy.cfg.candidates} beside algo.train 'generator': expected 1, because a new"
                " discriminator that does not learn ranks nothing"
            )
    else:
        raise CapabilityError(f"policy config {type(setup.policy_cfg).__name__} ranks no candidates: use RerankedCfg")
    if cfg.ranks and policy.cfg.candidates < 2:
        raise out_of_range("policy.candidates", policy.cfg.candidates, f"2 or more beside algo.train {cfg.train!r}")
    return policy


def _plan_dt_s(cfg: Rad2Cfg, policy: RerankedPolicy, sim: VecSim) -> float:
    """Return the seconds between two points of a plan, where the generator can learn.

    Raises:
        CapabilityError: the sim does not say what relabeling needs.
        ConfigError: actions are no trajectories, or a decision has several.
    """
    name, otherwise = type(sim).__name__, "expected algo.train 'discriminator', or another sim"
    if not isinstance(sim, HasTrajectoryActions) or sim.trajectory_dt_s is None:
        raise CapabilityError(
            f"sim {name} takes no trajectories as actions (HasTrajectoryActions): {otherwise}; driving sims take them"
            " with sim.actions 'trajectory'"
        )
    if not isinstance(sim, HasTimeToCollision):
        raise CapabilityError(f"sim {name} lacks HasTimeToCollision, by which plans are shortened: {otherwise}")
    if cfg.speed_up_mps2 and not isinstance(sim, HasProgressRatio):
        raise CapabilityError(
            f"sim {name} lacks HasProgressRatio, by which plans are lengthened: expected algo.speed_up_mps2 0, which"
            " only shortens, or bev/warp"
        )
    if policy.horizon != 1:
        raise ConfigError(
            f"policy.horizon of the planner is {policy.horizon}: expected 1, one trajectory per decision, beside"
            f" algo.train {cfg.train!r}; sim.hold says how long it is followed"
        )
    return sim.trajectory_dt_s


def _check(cfg: Rad2Cfg) -> None:
    if cfg.train not in TRAIN:
        raise unknown("algo.train", str(cfg.train), TRAIN)
    for name in ("iterations", "buffer", "minibatch", "updates", "generator_every", "generator_updates"):
        check_at_least(f"algo.{name}", getattr(cfg, name), 1)
    check_at_least("algo.group_size", cfg.group_size, 2)
    check_at_least("algo.ttc_ahead", cfg.ttc_ahead, 0)
    for name in ("lr", "generator_lr", "clip_low", "clip_high", "initial_alpha", "max_grad_norm"):
        check_positive(f"algo.{name}", getattr(cfg, name))
    for name in ("least_std", "unsafe_ttc_s", "safe_ttc_s", "lag"):
        check_number(f"algo.{name}", getattr(cfg, name), 0.0, 1e6)
    for name in ("brake_mps2", "speed_up_mps2"):
        check_number(f"algo.{name}", getattr(cfg, name), 0.0, 10.0, "m/s^2")
    check_number("algo.target_entropy", cfg.target_entropy, 0.0, 1.0)
    if not 0 <= cfg.anchors < 1:
        raise out_of_range("algo.anchors", cfg.anchors, "0 or more, below 1")
    if cfg.unsafe_ttc_s > cfg.safe_ttc_s:
        raise ConfigError(
            f"algo.unsafe_ttc_s is {cfg.unsafe_ttc_s}: expected at most safe_ttc_s, {cfg.safe_ttc_s}, so that no plan"
            " is shortened and lengthened"
        )
