"""Published vision-language-action networks at full size, without weights, for memory estimates."""

from __future__ import annotations

from typing import Any, NamedTuple

from robotrl.memory_estimate.published import check_name
from robotrl.policies.vla.flow import FlowVlaCfg
from robotrl.policies.vla.networks.openvla import OpenVla, OpenVlaCfg
from robotrl.policies.vla.networks.pi0 import Pi0, Pi0Cfg
from robotrl.policies.vla.networks.smolvla import SmolVla, SmolVlaCfg
from robotrl.policies.vla.token import TokenVlaCfg
from robotrl.registry import make_sim
from robotrl.spec import Spec, visible
from robotrl.transforms import TransformGroup

PIXELS = {"openvla": 224, "smolvla": 512, "pi0": 224}
"""Side of the input images of each network, pixels."""
CHUNK = 50
"""Actions per chunk of SmolVLA and pi0."""


class Interface(NamedTuple):
    """Observation and action specs of a policy."""

    observation_spec: dict[str, Spec]
    action_spec: Spec


def interface(name: str) -> Interface:
    """Return the specs of the tabletop, with images of a published network's input size.

    Raises:
        ConfigError: no such network.
    """
    check_name(name)
    sim = make_sim("mujoco/tabletop", num_envs=1, seed=0, image="flat_near", image_size=PIXELS[name])
    try:
        return Interface(visible(sim), sim.action_spec)
    finally:
        sim.close()


def published(name: str, seen: Interface) -> Any:
    """Build a policy around a published network; inside `on_meta_device`, because it takes gigabytes otherwise.

    Args:
        name: "openvla", "smolvla" or "pi0".
        seen: specs from `interface`.
    """
    group = TransformGroup((), ())
    if name == "openvla":
        small = TokenVlaCfg(horizon=1, decoding="autoregressive").build(*seen, group)
        small.net = OpenVla(OpenVlaCfg())
        return small
    policy = FlowVlaCfg(horizon=CHUNK, denoising_steps=10).build(*seen, group)
    state, action = policy.padded()
    if name == "smolvla":
        policy.finish(SmolVla(SmolVlaCfg(state=state, action=action)))
    else:
        policy.finish(Pi0(Pi0Cfg(state=state, action=action, chunk=CHUNK)))
    return policy
