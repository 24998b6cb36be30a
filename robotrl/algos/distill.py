"""Distillation into one step: a student learns to make its teacher's chunks by a single evaluation of its network.

The teacher is a generative policy that denoises in several steps, cloned or fine-tuned. Student and teacher start from
the same noise (`robotrl.fn.distillation.same_noise`): L_CD of RL-100 (2510.14830), the distillation of FQL (2502.02538)
without its critics. Only observations are needed: those of a dataset, and of the student's own episodes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from robotrl.datasets.reader import read_dataset
from robotrl.engine.engine import Context, EngineMode, LossOut, ParameterGroup
from robotrl.engine.minibatches import part
from robotrl.errors import ConfigError, check_decay, check_number, out_of_range
from robotrl.fn.bc_loss import DrawShape
from robotrl.fn.chain import executed
from robotrl.fn.distillation.same_noise import decoder_of, same_noise, teacher_chunks
from robotrl.fn.evidence.critic_quality import held_out
from robotrl.fn.schedule import warmed_cosine
from robotrl.learners.dataset import DatasetLearner, OffPolicyLoss
from robotrl.learners.learner import Setup
from robotrl.learners.off_policy import check_settings, no_clip
from robotrl.learners.parts import Part
from robotrl.peft.lora import adaptation_of
from robotrl.policies.generative import ChainPolicy
from robotrl.policies.one_step import one_step
from robotrl.replay.buffer import Mixed, Replay, Sampler, Transitions, Uniform
from robotrl.run.policy_checkpoint import policy_from_tree, policy_tree
from robotrl.spec import LearnerCfg, MemoryNeeds, TrainDefaults

BLOCK = 1024
"""Most rows that the teacher denoises at once."""
MOST_HELD_OUT = 1024
"""Most held-out observations in which the student is compared with its teacher."""

# loss


class DistillLoss(OffPolicyLoss):
    """Distance of student and teacher at equal noise, over what is executed.

    Args:
        student: the policy of one step to train.
        cfg: settings.
    """

    def __init__(self, student: ChainPolicy, cfg: DistillCfg) -> None:
        super().__init__()
        self.learned: ChainPolicy = student
        self.policy: ChainPolicy = copy.deepcopy(student).requires_grad_(False)
        """Average of the learned weights, which acts."""
        self._cfg = cfg

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`; the carry counts updates."""
        cfg, student = self._cfg, self.learned
        chunk = student.decode(student.encode(part(batch, "obs/")), batch["noise"])
        loss = same_noise(executed(student, chunk), executed(student, batch["teacher_chunk"]))
        done = context.carry["updates"]
        lr = cfg.lr * warmed_cosine(done, cfg.total_updates, 0, cfg.lr_end)
        return LossOut(loss, {"distill_loss": loss, "lr": lr}, (lr,), {"updates": done + 1})

    def groups(self) -> tuple[ParameterGroup, ...]:
        """See `OffPolicyLoss`; the average acts."""
        return (ParameterGroup("learned.", no_clip(self._cfg.max_grad_norm), self._cfg.ema, ramp=True),)

    def draw(self, shape: DrawShape, generator: torch.Generator) -> dict[str, Tensor]:
        """See `OffPolicyLoss`: noise of student and teacher alike."""
        return {"noise": torch.randn((shape.chunks[0], *decoder_of(self.learned).noise_shape), generator=generator)}


# update


class DistilledTeacher:
    """The policy that is distilled; checkpoints hold it, so that a run resumes without the run that it came from."""

    def __init__(self, policy: Any, device: torch.device) -> None:
        self._device = device
        self._set(policy)

    def _set(self, policy: Any) -> None:
        self.policy: Any = policy.to(self._device).requires_grad_(False).eval()
        self.decoder = decoder_of(policy)

    def chunks(self, obs: Mapping[str, Tensor], noise: Tensor) -> Tensor:
        """Chunks (B, H, A) on the CPU, from observations (B, ...) and noise (B, H, A)."""
        given = {key: x.to(self._device) for key, x in obs.items()}
        return teacher_chunks(self.decoder, given, noise.to(self._device), BLOCK).cpu()

    def state(self) -> dict[str, Any]:
        """State for an exact resume: the whole policy, as of the CPU, wherever it is."""
        return policy_tree(copy.deepcopy(self.policy).cpu())

    def load(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`."""
        self._set(policy_from_tree(state, "the teacher of the checkpoint"))


class FrameSampler:
    """Draws recorded steps out of given ones, uniformly, with replacement.

    Args:
        replay: the steps.
        index: (N,) int64 those to draw from.
    """

    def __init__(self, replay: Replay, index: Tensor) -> None:
        self._replay, self._index = replay, index

    def sample(
        self, batch: int, horizon: int, gamma: float, generator: torch.Generator, updates: int = 1
    ) -> Transitions:
        """See `Sampler.sample`."""
        chosen = torch.randint(len(self._index), (batch * updates,), generator=generator)
        return self._replay.view(self._index[chosen], horizon, gamma)


class HeldOutChunks(NamedTuple):
    """Held-out observations with noise, and what the teacher does there."""

    obs: dict[str, Tensor]
    """(N, ...) by key."""
    noise: Tensor
    """(N, H, A)."""
    teacher_chunk: Tensor
    """(N, H, A)."""


class DistillLearner(DatasetLearner):
    """Trains a one-step student of a policy; see `DistillCfg` and `DatasetLearner`.

    Raises:
        ConfigError: no policy, one that takes a single step already, or settings out of range; see `DatasetLearner`.
        CapabilityError: the policy does not denoise.
    """

    def __init__(self, cfg: DistillCfg, setup: Setup) -> None:
        cfg.check()
        model = setup.init_policy
        if model is None:
            raise ConfigError("init_from is not given: expected the run of the policy to distill, e.g. of algo bc")
        if not setup.resumed:
            _check_teacher(model)
        # to resume, the policy is the student, and the teacher comes with the state
        self._teacher = DistilledTeacher(copy.deepcopy(model), setup.device)
        resumed = setup.resumed
        super().__init__(cfg, setup, lambda policy: DistillLoss(policy if resumed else one_step(policy), cfg))
        self._device, self._seed = setup.device, setup.seed
        self._learned, self._held = _frames(cfg, setup, self._data)
        self._compared: HeldOutChunks | None = None

    def iterate(self) -> dict[str, float]:
        """See `DatasetLearner.iterate`; logs the distance to the teacher in held-out episodes as well."""
        return super().iterate() | self._heldout()

    def learn(self, updates: int) -> dict[str, float]:
        """See `DatasetLearner.learn`; the average acts from then on."""
        scalars = super().learn(updates)
        self._engine.write_average("learned.", self.policy)
        return scalars

    def load(self, state: dict[str, Any]) -> None:
        """See `Learner.load`."""
        self._compared = None
        super().load(state)

    def _draw(self, updates: int) -> dict[str, Tensor]:
        """Sample observations and noise of some updates, with the teacher's chunks."""
        obs = self._sampler().sample(self.cfg.batch, 1, self.cfg.gamma, self._generator, updates).obs
        seen = {key: obs[key] for key in self.policy.observation_spec}
        shape = DrawShape(updates, self.cfg.batch, self.policy.horizon, self.policy.action_width)
        rows = {f"obs/{key}": x for key, x in seen.items()} | self._loss.draw(shape, self._generator)
        return rows | {"teacher_chunk": self._teacher.chunks(seen, rows["noise"])}

    def _sampler(self) -> Sampler:
        """See `DatasetLearner`; episodes that are held out are left out."""
        replay = None if self.experience is None else self.experience.memory.replay
        if self._data is None:
            assert replay is not None
            return Uniform(replay)
        recorded = FrameSampler(self._data, self._learned)
        if replay is None or not replay.has_chunk(1):
            return recorded
        return Mixed([(recorded, 1 - self.cfg.online_share), (Uniform(replay), self.cfg.online_share)])

    @torch.no_grad()
    def _heldout(self) -> dict[str, float]:
        """Root mean square distance of student and teacher in held-out episodes, normalized units."""
        if not len(self._held):
            return {}
        if self._compared is None:
            self._compared = self._compare()
        obs, noise, teacher_chunk = self._compared
        student = self.policy
        given = {key: x.to(self._device) for key, x in obs.items()}
        chunk = teacher_chunks(decoder_of(student), given, noise.to(self._device), BLOCK).cpu()
        distance = same_noise(executed(student, chunk), executed(student, teacher_chunk))
        return {"heldout_distance": float(distance.sqrt())}

    def _compare(self) -> HeldOutChunks:
        """Choose held-out observations and noise, the same ones in a resumed run."""
        assert self._data is not None, "only recorded episodes are held out"
        generator = torch.Generator().manual_seed(self._seed)
        chosen = self._held[torch.randperm(len(self._held), generator=generator)[:MOST_HELD_OUT]]
        found = self._data.view(chosen, 1, 1.0).obs
        obs = {key: found[key] for key in self.policy.observation_spec}
        noise = torch.randn((len(chosen), *self._teacher.decoder.noise_shape), generator=generator)
        return HeldOutChunks(obs, noise, self._teacher.chunks(obs, noise))

    def parts(self) -> dict[str, Part]:
        """See `Learner.parts`."""
        return {**super().parts(), "teacher": self._teacher}


def _check_teacher(policy: Any) -> None:
    decoder_of(policy)
    if adaptation_of(policy) is not None:
        raise ConfigError("lora.rank is above 0: expected 0, a student learns with all weights of its own")
    if isinstance(policy, ChainPolicy) and policy.denoising_steps == 1:
        raise ConfigError("policy.denoising_steps is 1: expected 2 or more, a policy of one step has none to save")


def _frames(cfg: DistillCfg, setup: Setup, data: Replay | None) -> tuple[Tensor, Tensor]:
    """Steps of the dataset to learn from, and those of episodes that are held out; (N,) int64 each."""
    if data is None or setup.dataset is None:
        none = torch.zeros(0, dtype=torch.int64)
        return none, none
    length = np.diff(read_dataset(setup.dataset).offsets)
    held = torch.from_numpy(np.repeat(held_out(None, len(length), cfg.held_out, setup.seed), length))
    return (~held).nonzero()[:, 0], held.nonzero()[:, 0]


# config


@dataclass(frozen=True)
class DistillCfg(LearnerCfg):
    """Settings of distillation into one step."""

    updates: int = 5_000
    """Number of updates on the dataset's observations; 0 to learn online from the start."""
    updates_per_iteration: int = 500
    """Updates between two log lines."""
    env_steps: int = 0
    """Budget of env steps of the student after that, summed over all envs: the teacher says what it would do where the
    student gets to. 0 stays on the dataset."""
    num_steps: int = 8
    """Online: env steps per env in an iteration."""
    warmup: int = 0
    """Online: env steps before the first update."""
    utd_ratio: float = 0.2
    """Online: updates per env step."""
    online_share: float = 0.5
    """Online: fraction of a batch from the student's own episodes, if there is a dataset."""
    batch: int = 256
    """Observations per update."""
    capacity: int = 200_000
    """Online: capacity of the replay, env steps."""
    replay: str | None = None
    """Online: new directory of a replay on disk. None: in RAM and in the checkpoints."""
    held_out: float = 0.1
    """Fraction of the dataset's episodes that the student does not learn from, and in which it is compared."""
    lr: float = 1e-3
    """Peak learning rate; it decays along a half cosine."""
    lr_end: float = 0.1
    """Final learning rate as a fraction of the peak, 0 to 1."""
    ema: float = 0.99
    """Decay of the student's averaged (EMA) weights, which act, are evaluated and saved. 0: no averaging."""
    max_grad_norm: float | None = 1.0
    """Maximum gradient norm. None: no clipping."""
    dataset_keys: tuple[str, ...] = ()
    """Dataset columns with other names than the sim's, as "key=column"; see docs/datasets.md."""
    engine: EngineMode = "auto"
    """Execution mode of updates: "compiled", "eager", or "auto", which compiles if that saves time in this run."""
    gamma: ClassVar[float] = 1.0
    """No reward is read."""
    tau: ClassVar[float] = 1.0
    """There is no target network."""
    default_policy: ClassVar[str] = "flow"
    # online, an iteration has few env steps, and an evaluation many
    train_defaults: ClassVar[TrainDefaults] = TrainDefaults({"sim.num_envs": 16, "evaluation.max_share": 1.0})

    @property
    def total_updates(self) -> int:
        """Updates of the whole run, offline and online."""
        return self.updates + math.ceil(self.env_steps * self.utd_ratio)

    @property
    def reads_rewards(self) -> bool:
        """See `LearnerCfg.reads_rewards`."""
        return False

    def check(self) -> None:
        """See `LearnerCfg.check`."""
        check_settings(self, offline=True)
        check_number("algo.lr_end", self.lr_end, 0.0, 1.0)
        check_decay("algo.ema", self.ema)
        if not 0 < self.online_share < 1:
            raise out_of_range("algo.online_share", self.online_share, "above 0 and below 1")
        if not 0 <= self.held_out < 1:
            raise out_of_range("algo.held_out", self.held_out, "0 or more, below 1")

    @property
    def memory(self) -> MemoryNeeds:
        """See `LearnerCfg.memory`."""
        return MemoryNeeds(self.batch, num_steps=self.num_steps, averages=True)

    def beside(self, policy: Any) -> list[Any]:
        """See `LearnerCfg.beside`: the teacher, beside the student."""
        return [policy]

    def build(self, setup: Setup) -> DistillLearner:
        """Build the learner; its policy is a policy of one step."""
        return DistillLearner(self, setup)
