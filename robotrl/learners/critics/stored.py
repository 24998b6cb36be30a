"""Chunk critics as files: what a critic reads, and whether that is what a policy and its settings have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from robotrl.errors import ConfigError, DataError, short
from robotrl.learners.critics.chunk_critic import CriticSizes, Reduction
from robotrl.policies.best_of import BestOfCfg, BestOfPolicy
from robotrl.policies.networks.value import Critic, ValueNet
from robotrl.policies.q import QEnsemble
from robotrl.run.critic_checkpoint import read_critic
from robotrl.run.policy_checkpoint import load_weights
from robotrl.spec import Spec
from robotrl.transforms import to_json

STATE_VALUE = "state_value"
"""Entry of the checkpoint with the weights of a state value."""


class CriticMatter(NamedTuple):
    """Everything that a critic's weights depend on, as JSON values."""

    observations: dict[str, Any]
    """Specs of the observations by key."""
    action: dict[str, Any]
    """Spec of the action."""
    control_dt_s: float | None
    """Seconds between two actions; None if unknown."""
    horizon: int
    """H of the chunks."""
    context_width: int
    """D of the contexts."""
    inputs: list[Any]
    """Normalization of the observations."""
    gamma: float
    """Discount per env step."""
    sizes: dict[str, Any]
    """See `CriticSizes`."""


def matter_of(policy: Any, sizes: CriticSizes, gamma: float) -> CriticMatter:
    """Everything that the weights of a critic of this policy's chunks depend on."""
    return CriticMatter(
        {key: spec.to_json() for key, spec in policy.observation_spec.items()},
        policy.action_spec.to_json(),
        policy.control_dt_s,
        policy.horizon,
        policy.context_width,
        [to_json(one) for one in policy.transforms.inputs],
        gamma,
        {**asdict(sizes), "critic_hidden": list(sizes.critic_hidden)},
    )


def critic_tree(
    matter: CriticMatter, weights: Mapping[str, Tensor], reduction: Reduction, quality: Mapping[str, float]
) -> dict[str, Any]:
    """State of a critic for `write_critic`.

    Args:
        matter: see `matter_of`.
        weights: its weights by name.
        reduction: how its values are reduced to one; a name of `REDUCTIONS`.
        quality: scalars of its held-out quality, for whoever reads the file.
    """
    kept = {name: x.detach().clone() for name, x in weights.items()}
    return {**matter._asdict(), "weights": kept, "reduction": reduction, "quality": dict(quality)}


def state_value_tree(value: ValueNet) -> dict[str, Any]:
    """Entries to add to the state of a critic: a state value of the same contexts, as wide as the critics."""
    return {STATE_VALUE: {name: x.detach().clone() for name, x in value.state_dict().items()}}


class StoredCritic(NamedTuple):
    """A critic that was read."""

    matter: CriticMatter
    weights: dict[str, Tensor]
    reduction: Reduction
    quality: dict[str, float]
    state_value: dict[str, Tensor] | None
    """Weights of a state value of the same contexts; None if the run has none."""

    @property
    def sizes(self) -> CriticSizes:
        """Sizes of its networks."""
        sizes = dict(self.matter.sizes)
        return CriticSizes(critic_hidden=tuple(sizes.pop("critic_hidden")), **sizes)


def stored_critic(path: str | Path) -> StoredCritic:
    """Read the critic of a run.

    Raises:
        DataError: there is none, it is damaged, or it lacks what a critic has.
    """
    found = read_critic(Path(path))
    try:
        matter = CriticMatter(*(found.tree[name] for name in CriticMatter._fields))
        value = found.tree.get(STATE_VALUE)
        return StoredCritic(matter, found.tree["weights"], found.tree["reduction"], found.tree["quality"], value)
    except (KeyError, TypeError) as error:
        raise DataError(f"critic {found.path} lacks what a critic has ({short(repr(error))})") from error


def with_critic(policy: Any, path: str | Path, candidates: int = 16) -> BestOfPolicy:
    """Put the critic of a run beside a policy: the policy that the run began with acts by the best of its samples.

    Args:
        policy: the policy, which is not copied.
        path: the run.
        candidates: samples in each decision.

    Raises:
        CapabilityError: the policy has no samples from normal noise.
        ConfigError: the critic is of another robot, rate or policy.
        DataError: see `stored_critic`.
    """
    stored = stored_critic(path)
    check_matter(str(path), stored.matter, matter_of(policy, stored.sizes, stored.matter.gamma))
    cfg = BestOfCfg(candidates=candidates, reduction=stored.reduction, **asdict(stored.sizes))
    chooser = BestOfPolicy(policy, cfg)
    load_weights(chooser.critic, stored.weights, f"{path}: the critic")
    return chooser


def start_from(path: str, critic: QEnsemble, matter: CriticMatter) -> None:
    """Load the critic of a run into the critic of a new one.

    Args:
        path: `algo.init_critic`.
        critic: the new critic.
        matter: what its weights depend on.

    Raises:
        ConfigError: the stored critic is of another robot, rate, policy or size; the first misfit is named.
        DataError: see `stored_critic`.
    """
    stored = stored_critic(path)
    check_matter(path, stored.matter, matter)
    load_weights(critic, stored.weights, f"{path}: the critic")


def start_value_from(path: str, critic: Critic, policy: Any, cfg: Any) -> None:
    """Load the state value of a run into the state value of a new one, which it then equals.

    Privileged observations, which the stored value has not seen, begin with weights of 0.

    Args:
        path: `algo.init_critic`.
        critic: the new state value.
        policy: the policy whose contexts it reads.
        cfg: settings with `critic_hidden`, `critic_activation` and `gamma`.

    Raises:
        ConfigError: the stored value is of another robot, rate, policy or size; the first misfit is named.
        DataError: the run has no state value; see also `stored_critic`.
    """
    stored = stored_critic(path)
    if stored.state_value is None:
        raise DataError(f"{path}: the critic has no state value: expected a run of rl100")
    wanted = replace(stored.sizes, critic_hidden=tuple(cfg.critic_hidden), critic_activation=cfg.critic_activation)
    check_matter(path, stored.matter, matter_of(policy, wanted, cfg.gamma))
    weights, first = dict(stored.state_value), "net.layers.0.weight"
    if first in weights:
        privileged = critic.net.state_dict()[first].shape[1] - critic.context_width
        weights[first] = nn.functional.pad(weights[first], (0, privileged))
    load_weights(critic.net, weights, f"{path}: the state value")


def check_matter(path: str, stored: CriticMatter, wanted: CriticMatter) -> None:
    """Check that a stored critic can value the chunks of a policy.

    Raises:
        ConfigError: it cannot; the first misfit is named, with both values.
    """
    before = f"the critic {path} is of another"
    if stored.observations.keys() != wanted.observations.keys():
        names = ", ".join(stored.observations), ", ".join(wanted.observations)
        raise ConfigError(f"{before} robot or sim: it reads the observations {names[0]}: expected {names[1]}")
    specs = {f"observation {key!r}": (x, wanted.observations[key]) for key, x in stored.observations.items()}
    for what, (old, new) in {**specs, "the action": (stored.action, wanted.action)}.items():
        found = _first_difference(Spec.from_json(old), Spec.from_json(new))
        if found is not None:
            raise ConfigError(f"{before} robot or sim: {what} has {found}")
    if None not in (stored.control_dt_s, wanted.control_dt_s) and stored.control_dt_s != wanted.control_dt_s:
        raise ConfigError(
            f"{before} rate: its actions are {stored.control_dt_s:g} s apart: expected {wanted.control_dt_s:g} s"
        )
    for name in ("horizon", "context_width"):
        if getattr(stored, name) != getattr(wanted, name):
            raise ConfigError(f"{before} policy: {name} is {getattr(stored, name)}: expected {getattr(wanted, name)}")
    if stored.inputs != wanted.inputs:
        raise ConfigError(
            f"{before} policy: its observations are normalized by other statistics; expected the critic of a run that"
            " improved this policy, or one that this policy comes from"
        )
    settings = {"gamma": (stored.gamma, wanted.gamma)}
    settings |= {name: (stored.sizes[name], value) for name, value in wanted.sizes.items()}
    for name, (old, new) in settings.items():
        if old != new:
            raise ConfigError(f"algo.{name} is {new}: expected {old}, as the critic {path} has it")


def _first_difference(old: Spec, new: Spec) -> str | None:
    """The first field in which two specs differ, with both values; None if they are alike."""
    for name in ("shape", "names", "units", "low", "high", "dtype"):
        one, other = getattr(old, name), getattr(new, name)
        if one != other:
            return f"{name} {short(repr(one))}: expected {short(repr(other))}"
    return None
