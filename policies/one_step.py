"""One-step students: policies that make a chunk of noise by a single evaluation of their network.

A flow policy on one denoising step is such a student, f(c, w) = w + v(c, w, 0): it is stored, exported and fine-tuned
like any flow policy, and needs no class of its own. Flow, shortcut and flow VLA policies become their own students. A
diffusion policy cannot: its only step would start at the noisiest level, where predicted noise says next to nothing of
the action, and ends in a clip, which passes no gradient. Its student is a flow policy of the same sizes.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from robotrl.errors import CapabilityError
from robotrl.policies.diffusion import DiffusionPolicy
from robotrl.policies.flow import FlowCfg, FlowPolicy
from robotrl.policies.generative import ChainPolicy
from robotrl.policies.staged import StagedPolicy
from robotrl.policies.steered import SteeredPolicy


def one_step(teacher: object) -> ChainPolicy:
    """Build the one-step student of a policy; its weights begin as the teacher's, of which they are a copy.

    The student of a staged policy begins from the weights of the last steps, that of a steered policy from those of the
    policy that is steered, and that of a diffusion policy from its encoder, with a fresh network behind it.

    Raises:
        CapabilityError: the policy does not denoise.
    """
    match teacher:
        case StagedPolicy():
            student = one_step(teacher.late)
            student.control_dt_s = teacher.control_dt_s
            return student
        case SteeredPolicy():
            student = one_step(_trainable(teacher.base))
            # the actor's noise is deployed in full, whatever is said of the policy that it steers
            student.deploy_noise, student.cfg = 1.0, replace(student.cfg, deploy_noise=1.0)
            student.control_dt_s = teacher.control_dt_s
            return student
        case DiffusionPolicy():
            return _flow_like(teacher)
        case ChainPolicy():
            return teacher.with_steps(1)
        case _:
            raise CapabilityError(
                f"policy {type(teacher).__name__} has no one-step student: expected a flow, shortcut, diffusion or flow"
                " VLA policy"
            )


def _flow_like(teacher: DiffusionPolicy) -> FlowPolicy:
    """Flow policy of one step with the sizes and the encoder of a diffusion policy."""
    shared: dict[str, Any] = {field.name: vars(teacher.cfg)[field.name] for field in fields(FlowCfg)}
    cfg = replace(FlowCfg(**shared), denoising_steps=1)
    student = cfg.build(teacher.observation_spec, teacher.action_spec, teacher.transforms)
    encoder = {name: x for name, x in teacher.state_dict().items() if not name.startswith("net.")}
    student.load_state_dict({**student.state_dict(), **encoder})
    student.control_dt_s, student.reward_scale = teacher.control_dt_s, teacher.reward_scale
    return student


def _trainable(policy: Any) -> Any:
    """A copy of a frozen policy, of which the parameters learn that learn in a new one."""
    copied = type(policy).from_json(policy.to_json())
    copied.load_state_dict(policy.state_dict())
    return copied
