"""DAgger: clone the expert's labels of states that the learner visits (Ross, Gordon & Bagnell 2011, 1011.0686).

In each iteration a mixture of expert and learner drives, the sim's expert labels every visited state, and the policy is
cloned on all labels so far. The expert may read privileged state; the policy never does.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from robotrl.engine.engine import UPDATES_PER_CALL, Context, Engine, EngineMode, LossModule, LossOut, ParameterGroup
from robotrl.engine.minibatches import means, part, run_updates
from robotrl.errors import CapabilityError, check_at_least, check_decay, check_number, check_positive
from robotrl.fn.bc_loss import CloneLoss, DrawShape, clone_loss_of
from robotrl.learners.dataset import read_for
from robotrl.learners.learner import Learner, Setup
from robotrl.learners.off_policy import ActionNormalizer, PolicyBuilder, demonstrations, updates_per_call
from robotrl.learners.parts import Part
from robotrl.replay.buffer import Mixed, Replay, Sampler, StepRecord, Uniform
from robotrl.replay.corrections import Correction
from robotrl.rollout.collector import Collector, Decision
from robotrl.spec import Arrays, Expert, HasExpert, LearnerCfg, MemoryNeeds, TrainDefaults
from robotrl.spec.late_rewards import LateRewards

Scalar = tuple[Tensor, dict[str, Tensor]]
"""A loss, and scalars to log."""

# loss


def label_loss(policy: Any, clone: CloneLoss, batch: dict[str, Tensor]) -> Scalar:
    """The policy's own cloning loss on labels: squared error, flow matching or another; see docs/algorithms/bc.md."""
    ctx = policy.encode(part(batch, "obs/"))
    loss = clone.loss(policy, ctx, batch["chunk"], batch["valid"], **part(batch, "drawn/"))
    return loss, {"clone_loss": loss}


class DaggerLoss(LossModule):
    """`label_loss` as a loss module, at a constant learning rate.

    Args:
        policy: the policy in training.
        clone: its cloning loss.
        cfg: settings.
    """

    def __init__(self, policy: Any, clone: CloneLoss, cfg: DaggerCfg) -> None:
        super().__init__()
        self.policy = policy
        self._clone, self._cfg = clone, cfg

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`."""
        loss, info = label_loss(self.policy, self._clone, batch)
        return LossOut(loss, info, (torch.full_like(loss, self._cfg.lr),))


# labels


def mixture(beta: float, iteration: int) -> float:
    """Probability that the expert drives in an iteration, from 0: beta to its power, so the first is the expert's."""
    return beta**iteration


class Labels:
    """The expert beside the policy: it drives some turns, and the replay stores its label of every visited state.

    A turn is as long as the policy's chunk. A chunk of labels reaches as far as the expert drove: after a step of the
    learner, the expert's next label answers another state than its own action would have led to, so the chunk ends
    there, and what follows in it is not "valid".

    Args:
        replay: receives the steps, with the expert's actions in place of the executed ones.
        expert: labels all envs in every step.
        share: probability that the expert drives a turn.
        turn: H, steps of a turn.
        generator: source of who drives.
    """

    def __init__(self, replay: Replay, expert: Expert, share: float, turn: int, generator: torch.Generator) -> None:
        self.layout = replay.layout
        self._replay, self._expert, self._generator = replay, expert, generator
        self._share, self._turn = share, turn
        self._left = torch.zeros(replay.streams, dtype=torch.int64)
        self._drives = torch.ones(replay.streams, dtype=torch.bool)
        self._label = torch.zeros(0)

    def __call__(self, obs: Arrays, action: Tensor, started: Tensor) -> Correction:
        """Label the states, and say where the expert drives; see `Corrector`."""
        self._close_turns(obs, ~self._drives)
        restarted = started.cpu() | (self._left == 0)
        expert_acts = torch.rand(len(restarted), generator=self._generator) < self._share
        self._drives = torch.where(restarted, expert_acts, self._drives)
        self._left = torch.where(restarted, self._turn, self._left) - 1
        low, high = (torch.tensor(x).to(action) for x in (self.layout.action_spec.low, self.layout.action_spec.high))
        self._label = self._expert.act(started).to(action).clamp(low, high)
        return Correction(self._label, self._drives.to(action.device))

    def add(self, record: StepRecord) -> None:
        """Store the labels of a step; see `Sink`."""
        self._replay.add(record._replace(action=self._label, decision=None, missing=None))  # rewards are not read

    def cut(self) -> None:
        """See `Sink`."""
        self._replay.cut()

    def add_late(self, late: LateRewards) -> int:
        """See `Sink`."""
        return self._replay.add_late(late)

    def close(self, obs: Arrays) -> None:
        """End all chunks of labels at the present observations (N, ...), so that the last ones count, too."""
        self._close_turns(obs, torch.ones_like(self._drives))

    def _close_turns(self, obs: Arrays, which: Tensor) -> None:
        streams = torch.nonzero(which).squeeze(1)
        self._replay.close_episode(streams.tolist(), {key: x[streams.to(x.device)] for key, x in obs.items()})


# update


class DaggerLearner(Learner):
    """Collects labels and clones them; see `DaggerCfg`.

    Raises:
        ConfigError: settings out of range, or a dataset of other arrays or another rate.
        CapabilityError: the sim has no expert, or no cloning loss fits the policy.
    """

    def __init__(self, cfg: DaggerCfg, setup: Setup) -> None:
        self.cfg = cfg
        torch.manual_seed(setup.seed)
        sim = setup.make_sim()
        if not isinstance(sim, HasExpert):
            raise CapabilityError(f"sim {type(sim).__name__} lacks HasExpert: nobody can label the visited states")
        self._sim = sim
        self._made = PolicyBuilder(setup, sim, normalize_obs=True)
        self.model: Any = self._made.policy
        self._clone = clone_loss_of(self.model)
        specs = self.model.observation_spec
        self._demos: Replay | None = None
        if setup.dataset is not None:
            dataset = read_for(setup, cfg.dataset_keys, specs, sim, self.model.transforms.inputs)
            self._demos = demonstrations(dataset, specs, sim.action_spec, sim.control_dt_s, accept=True)
            self._made.measure(self._demos)
        self.policy: Any = copy.deepcopy(self.model) if cfg.ema else self.model
        self._labels = Replay.create(
            None, specs, sim.action_spec, streams=sim.num_envs, capacity=cfg.capacity, control_dt_s=sim.control_dt_s
        )
        self._unit = ActionNormalizer.of_policy(self.model)
        self._loss = DaggerLoss(self.model, self._clone, cfg).to(setup.device)
        self._engine = Engine(
            self._loss,
            (ParameterGroup("policy.", cfg.max_grad_norm, cfg.ema or None, ramp=True),),
            minibatch=cfg.batch,
            mode=cfg.engine,
            updates=setup.expected(cfg.iterations * cfg.updates),
            threads=setup.update_threads,
            eps=1e-8,
        )
        self._generator = torch.Generator().manual_seed(setup.seed)
        self._stepper = self._collector = Collector(sim, self.model.horizon, 1.0)
        self.iterations = cfg.iterations

    def iterate(self) -> dict[str, float]:
        """Run new episodes in all envs, label them, and clone all labels so far."""
        share = mixture(self.cfg.beta, self.iteration)
        self.iteration += 1
        scalars = self._collect(share) | {"expert_share": share, "labels": float(len(self._labels))}
        most = UPDATES_PER_CALL * math.ceil(self.cfg.updates / UPDATES_PER_CALL)
        most = updates_per_call(most, self.cfg.batch, self.model.observation_spec)
        info = run_updates(self._engine, self._draw, self.cfg.updates, most, f"iteration {self.iteration}")
        if self.cfg.ema:
            self._engine.write_average("policy.", self.policy)
        return scalars | means(info)

    def _collect(self, share: float) -> dict[str, float]:
        """Run `num_steps` env steps from new starts, the expert driving a share of them."""
        # sim and expert begin anew, so that a checkpoint needs no state of theirs
        seed = int(torch.randint(2**31 - 1, (), generator=self._generator))
        self._collector.reset(seed)
        expert = self._sim.make_expert(mode=self.cfg.mode, seed=seed)
        labels = Labels(self._labels, expert, share, self.model.horizon, self._generator)
        out = self._collector.collect_into(labels, self._decide, self.cfg.num_steps, corrector=labels)
        labels.close(self._collector.obs)
        if self.iteration == 1 and self._demos is None:
            # before the policy has learned or acted; later changes would shift its inputs
            self._made.measure(self._labels)
            self.policy.set_transforms(self.model.transforms)
        ended = {"rollout_success": float(out.episodes.float().mean())} if len(out.episodes) else {}
        return {"rollout_episodes": float(len(out.episodes)), **ended}

    @torch.no_grad()
    def _decide(self, obs: Arrays) -> Decision:
        return Decision(self.policy.act(obs, None, self._generator, self.policy.deploy_mode).chunk, {})

    def _draw(self, updates: int) -> dict[str, Tensor]:
        """Sample the rows of some updates, uniformly from labels and dataset, with the loss's random numbers."""
        cfg, model = self.cfg, self.model
        transitions = self._sampler().sample(cfg.batch, model.horizon, 1.0, self._generator, updates)
        shape = DrawShape(updates, cfg.batch, model.horizon, model.action_width)
        return {
            **{f"obs/{key}": transitions.obs[key] for key in model.observation_spec},
            "chunk": self._unit(transitions.chunk),
            "valid": transitions.valid,
            **{f"drawn/{name}": x for name, x in self._clone.draw(model, shape, self._generator).items()},
        }

    def _sampler(self) -> Sampler:
        """Build the sampler of all labels; the dataset counts by its size."""
        if self._demos is None:
            return Uniform(self._labels)
        share = len(self._demos) / (len(self._demos) + len(self._labels))
        if not 1 <= round(share * self.cfg.batch) < self.cfg.batch:
            return Uniform(self._demos if share > 0.5 else self._labels)
        return Mixed([(Uniform(self._demos), share), (Uniform(self._labels), 1 - share)])

    def parts(self) -> dict[str, Part]:
        """See `Learner.parts`. The dataset is not saved; it is read again."""
        return {
            "networks": self._loss,
            "policy": self.policy,
            "engine": self._engine,
            "normalizer": self._made,
            "labels": self._labels,
            "generator": self._generator,
        }

    def state(self) -> dict[str, Any]:
        """See `Learner.state`; every iteration begins new episodes, so of the sim only the step count is kept."""
        return {**super().state(), "env_steps": self._collector.env_steps}

    def load(self, state: dict[str, Any]) -> None:
        """See `Learner.load`."""
        super().load(state)
        self.policy.set_transforms(self.model.transforms)
        self._collector.env_steps = int(state["env_steps"])


# config


@dataclass(frozen=True)
class DaggerCfg(LearnerCfg):
    """Settings of DAgger."""

    iterations: int = 10
    """Number of rounds of driving, labelling and cloning."""
    num_steps: int = 80
    """Env steps per env in an iteration, from new starts; each is labelled."""
    updates: int = 200
    """Gradient steps in an iteration, on all labels so far."""
    beta: float = 0.5
    """Share of turns that the expert drives in iteration i: beta to the power i, from i = 0, so it drives the whole
    first one. 0: the learner drives all others."""
    mode: str | None = None
    """Mode of the sim's expert, e.g. "left"; None: it draws one for each episode, which a policy without a distribution
    averages."""
    batch: int = 256
    """Chunks per gradient step."""
    capacity: int = 200_000
    """Number of labels that are kept, the newest; a dataset is kept beside."""
    lr: float = 1e-3
    """Learning rate."""
    ema: float = 0.99
    """Decay of the averaged (EMA) weights, which drive and are evaluated. 0: no averaging."""
    max_grad_norm: float = 1.0
    """Maximum gradient norm."""
    dataset_keys: tuple[str, ...] = ()
    """Dataset columns with other names than the sim's, as "key=column"; see docs/datasets.md."""
    engine: EngineMode = "eager"
    """Execution mode of updates; "compiled" pays for many thousand updates."""
    default_policy: ClassVar[str] = "flow"
    # few steps are taken, each with an expert's label: evaluations have many more
    train_defaults: ClassVar[TrainDefaults] = TrainDefaults(
        {"sim.num_envs": 4, "evaluation.every": 1, "evaluation.max_share": 1.0, "checkpoint_every": 1}
    )

    @property
    def memory(self) -> MemoryNeeds:
        """See `LearnerCfg.memory`."""
        return MemoryNeeds(self.batch, num_steps=self.num_steps, averages=bool(self.ema))

    def build(self, setup: Setup) -> DaggerLearner:
        """Build the learner."""
        for name in ("iterations", "num_steps", "updates", "batch", "capacity"):
            check_at_least(f"algo.{name}", getattr(self, name), 1)
        check_number("algo.beta", self.beta, 0.0, 1.0)
        for name in ("lr", "max_grad_norm"):
            check_positive(f"algo.{name}", getattr(self, name))
        check_decay("algo.ema", self.ema)
        return DaggerLearner(self, setup)
