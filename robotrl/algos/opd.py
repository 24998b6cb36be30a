"""On-policy distillation of autoregressive policies (VLA-OPD): a frozen teacher scores the student's own actions.

It needs neither rewards nor exploration: the teacher scores tokens in the states that the student visits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from robotrl.engine.autocast import in_bf16
from robotrl.engine.engine import Context, LossModule, LossOut
from robotrl.engine.minibatches import part
from robotrl.errors import CapabilityError, ConfigError, unknown
from robotrl.fn import distill
from robotrl.fn.text import tokens
from robotrl.learners.episodes import EpisodeCfg, EpisodeLearner
from robotrl.learners.learner import Setup
from robotrl.learners.on_policy import finite
from robotrl.learners.token_policy import TokenActing
from robotrl.peft.lora import weights_sha256
from robotrl.run.policy_checkpoint import load_policy
from robotrl.spec import HasTokens, reads

Divergence = Literal["reverse", "forward", "labels"]
DIVERGENCES: dict[Divergence, Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]] = {
    "reverse": distill.reverse_kl,
    "forward": distill.forward_kl,
    "labels": distill.labels,
}
SAME = ("bins", "horizon", "action_spec")
"""Attributes in which teacher and student must agree, besides the mapping from tokens to actions."""


@dataclass(frozen=True)
class OpdCfg(EpisodeCfg):
    """Settings of on-policy distillation."""

    default_policy: ClassVar[str] = "token-vla"
    teacher: str = field(default="", metadata=reads("policy"))
    """Run or checkpoint of the teacher."""
    divergence: Divergence = "reverse"
    """Divergence to minimize: "reverse" KL, or the ablations of the paper, "forward" KL and "labels"."""

    @property
    def reads_rewards(self) -> bool:
        """See `LearnerCfg.reads_rewards`."""
        return False

    def beside(self, policy: Any) -> list[Any]:
        """See `LearnerCfg.beside`."""
        del policy
        return [self.teacher] if self.teacher else []

    def build(self, setup: Setup) -> OpdLearner:
        """Build the learner."""
        return OpdLearner(self, setup)


# loss


class OpdLoss(LossModule):
    """Divergence between student and teacher on minibatches of the student's tokens.

    Args:
        policy: the student.
        teacher: the teacher; it is frozen here.
        cfg: settings.
    """

    def __init__(self, policy: nn.Module, teacher: nn.Module, cfg: OpdCfg) -> None:
        super().__init__()
        self.policy: Any = policy
        self.teacher: Any = teacher.requires_grad_(False).eval()
        self._cfg = cfg

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`."""
        cfg, policy, action_tokens, weight = self._cfg, self.policy, batch["tokens"], batch["weight"]
        obs = part(batch, "obs/")
        with in_bf16(cfg.bf16, context.device):
            with torch.no_grad():
                teacher_logits = self.teacher.token_logits(self.teacher.encode(obs), action_tokens)
            logits = policy.token_logits(policy.encode(obs), action_tokens)
        loss = DIVERGENCES[cfg.divergence](logits, teacher_logits, action_tokens, weight, policy.temperature)
        with torch.no_grad():
            student, teacher = (tokens.log_prob(x, action_tokens, policy.temperature) for x in (logits, teacher_logits))
            gap = (weight * (student - teacher)).flatten(1).sum(dim=1).mean()
            info = {"kl_to_teacher": gap, "entropy": tokens.entropy(logits, policy.temperature).mean()}
        lr = cfg.lr * context.carry["lr_scale"].to(logits.dtype)
        return LossOut(loss, info, (lr,))


# update


class OpdLearner(EpisodeLearner):
    """Distils a teacher into an autoregressive policy; see `OpdCfg` and `EpisodeLearner`.

    Raises:
        ConfigError: no teacher, an unknown divergence, or a teacher with other tokens.
    """

    def __init__(self, cfg: OpdCfg, setup: Setup) -> None:
        if not cfg.teacher:
            raise ConfigError("algo.teacher is not given: expected the run of a policy that is better than the student")
        if cfg.divergence not in DIVERGENCES:
            raise unknown("algo.divergence", str(cfg.divergence), DIVERGENCES)
        self.cfg = cfg
        teacher = load_policy(cfg.teacher).to(setup.device)
        super().__init__(
            cfg, setup, "distillation", TokenActing(), lambda policy: OpdLoss(policy, teacher, cfg), group_size=1
        )
        check_teacher(teacher, self.model)
        self._teacher = weights_sha256(teacher)

    def improve(self) -> dict[str, float]:
        """Run an episode in each env, then the updates; returns scalars to log."""
        found = self._collector.episodes()
        self.count_steps()
        width = self.model.action_width
        decisions, actions = (self.world.total(count) for count in (len(found.valid), int(found.valid.sum())))
        weight = found.valid.float() * (decisions / (actions * width))
        rows = {
            **{f"obs/{key}": x for key, x in self.seen(found).items()},
            "tokens": found.record["tokens"],
            "weight": weight[..., None].expand(-1, -1, width),
        }
        scalars = {
            "rollout_success": float(found.success.float().mean()),
            **self._collector.scalars(),
            **self.learn(rows),
        }
        return finite(self.world.means(scalars))

    def state(self) -> dict[str, Any]:
        """See `Learner.state`; of the teacher, only the hash of its weights."""
        return {**super().state(), "teacher": self._teacher}

    def load(self, state: dict[str, Any]) -> None:
        """See `Learner.load`.

        Raises:
            ConfigError: the teacher is another one, or the state was saved by another number of processes.
        """
        found = state.get("teacher", self._teacher)  # older states have no teacher
        if found != self._teacher:
            raise ConfigError(
                f"algo.teacher {self.cfg.teacher!r} has weights of SHA-256 {self._teacher[:12]}: expected {found[:12]},"
                " those that the run began with"
            )
        super().load(state)


def check_teacher(teacher: Any, student: Any) -> None:
    """Check that teacher and student use the same tokens, and that the student has all observations of the teacher.

    Raises:
        CapabilityError: the teacher has no tokens.
        ConfigError: they differ; names both values.
    """
    loaded: object = teacher
    if not isinstance(loaded, HasTokens):
        raise CapabilityError(f"teacher {type(teacher).__name__} lacks HasTokens: expected an autoregressive policy")
    for name in SAME:
        found, expected = getattr(teacher, name), getattr(student, name)
        if found != expected:
            raise ConfigError(f"{name} of the teacher is {found}: expected {expected}, as of the student")
    for key, spec in teacher.observation_spec.items():
        own_spec = student.observation_spec.get(key)
        if own_spec is None or (own_spec.shape, own_spec.dtype) != (spec.shape, spec.dtype):
            has = ", ".join(student.observation_spec) if own_spec is None else f"{own_spec.dtype} {own_spec.shape}"
            raise ConfigError(
                f"the teacher reads {key!r}, {spec.dtype} {spec.shape}: the student has {has}; expected a teacher that"
                " sees what the student sees"
            )
        if own_spec.words != spec.words:
            raise ConfigError(f"words of the teacher is {spec.words}: expected {own_spec.words}, as of the student")
    if teacher.transforms.outputs != student.transforms.outputs:
        raise ConfigError("statistics of the teacher's actions are not the student's: expected the same")
