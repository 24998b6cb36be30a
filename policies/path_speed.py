"""PerlAD's policy: several paths with probabilities, and for each path the probabilities of speed classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from robotrl.errors import ConfigError, check_count, check_positive, out_of_range
from robotrl.fn.planner.path_modes import path_of, points_at
from robotrl.fn.random.noise import Noise, choose
from robotrl.policies.base import ACTION, Deployed, NetworkPolicy
from robotrl.policies.networks.encoder import ImageNorm, Pool
from robotrl.policies.networks.mlp import Activation, Mlp
from robotrl.spec import ActOut, Mode, Proposals, Spec
from robotrl.transforms import Affine, TransformGroup

TURN_RAD = 0.3
"""Turn before a point of a path for an output of 1 of the network."""


@dataclass(frozen=True)
class PathSpeedCfg:
    """Config of a `PathSpeedPolicy`."""

    horizon: int = 1
    """H; a decision is one trajectory, so 1 alone."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers that all heads share."""
    activation: Activation = "relu"
    """Activation function between the layers."""
    modes: int = 6
    """K, paths per decision, 1 to 64."""
    points: int = 12
    """P, points of a path, 2 to 100."""
    spacing_m: float = 2.0
    """Distance between two points of a path, m."""
    classes: int = 13
    """V, speed classes, from standstill on; 2 to 100."""
    class_mps: float = 1.0
    """Difference between two speed classes, m/s."""
    point_dt_s: float = 0.5
    """Seconds between two points of an action, the first one so long after the action."""
    aligned: bool = True
    """The probabilities of the speed classes depend on the path that they are for; False: on the scene alone."""
    set_features: int = 0
    """Width of the set encoder for each list with a mask (e.g. road users), next to its raw rows; 0 for rows alone."""
    set_attention: int = 0
    """Rounds of attention over all lists together (`SceneEncoder`), with `set_features`; 0 pools each list alone."""
    image_channels: tuple[int, ...] = (32, 64, 64)
    """Image encoder: channels of the convolutions, each of which halves height and width."""
    image_features: int = 64
    """Image encoder: features per image."""
    image_pool: Pool = "flatten"
    """Image encoder, after the convolutions: "flatten" keeps all values, "softmax" each channel's expected position."""
    image_norm: ImageNorm = "none"
    """Image encoder, after each convolution: no normalization, or "layer" (LayerNorm)."""

    def build(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup
    ) -> PathSpeedPolicy:
        """The policy with fresh weights."""
        return PathSpeedPolicy(observation_spec, action_spec, transforms, self)


class Paths(NamedTuple):
    """Lateral part of a decision."""

    features: Tensor
    """(B, D) features of the scene, which the speed head reads."""
    turns: Tensor
    """(B, K, P) turns of each path before its points, rad."""
    points: Tensor
    """(B, K, P, 2) points of each path, m ahead and to the left."""
    logits: Tensor
    """(B, K) scores of the paths."""

    @property
    def likely(self) -> Tensor:
        """(B,) index of the most probable path."""
        return self.logits.argmax(dim=1)


class PathSpeedPolicy(NetworkPolicy):
    """Path modes and speed classes; implements `Policy` and `HasScoredCandidates`.

    A candidate is a path with a speed: the points that a car reaches which drives along it at this speed. Deployed is
    the most probable path, with its most probable speed. Actions are trajectories in the ego's frame: x ahead and y to
    the left of each point, in m (`HasTrajectoryActions`).

    Raises:
        ConfigError: a setting out of range, or an action that is no list of points.
    """

    kind: ClassVar[str] = "path-speed"
    Cfg: ClassVar[type] = PathSpeedCfg
    deploy_mode: ClassVar[Literal["sample", "mean"]] = "mean"
    keyed_noise: ClassVar[Literal[True]] = True
    cfg: PathSpeedCfg
    classes_mps: Tensor
    ahead_m: Tensor
    _scale: Tensor
    _offset: Tensor

    def __init__(
        self, observation_spec: dict[str, Spec], action_spec: Spec, transforms: TransformGroup, cfg: PathSpeedCfg
    ) -> None:
        _check(cfg, action_spec)
        super().__init__(observation_spec, action_spec, transforms, cfg)
        self.trunk = Mlp(self.context_width, cfg.hidden[:-1], cfg.hidden[-1], activation=cfg.activation)
        width = cfg.hidden[-1]
        self.paths_head = nn.Linear(width, cfg.modes * cfg.points)
        self.modes_head = nn.Linear(width, cfg.modes)
        self.speed_head = Mlp(width + cfg.points, (128,), cfg.classes, 0.1, cfg.activation)
        with torch.no_grad():
            # nearly straight paths, a little apart so that each can win
            self.paths_head.weight *= 0.1
        times = cfg.point_dt_s * torch.arange(1, action_spec.shape[0] // 2 + 1)
        classes = cfg.class_mps * torch.arange(cfg.classes)
        self.register_buffer("classes_mps", classes, persistent=False)
        self.register_buffer("ahead_m", classes[:, None] * times, persistent=False)
        scale, offset = _to_normalized(transforms, action_spec.shape[0])
        self.register_buffer("_scale", scale, persistent=False)
        self.register_buffer("_offset", offset, persistent=False)

    def paths(self, ctx: Tensor) -> Paths:
        """Paths and their scores for contexts (B, D)."""
        features = self.trunk(ctx).relu()
        turns = TURN_RAD * self.paths_head(features).view(-1, self.cfg.modes, self.cfg.points)
        return Paths(features, turns, path_of(turns, self.cfg.spacing_m), self.modes_head(features))

    def speed_logits(self, features: Tensor, turns: Tensor) -> Tensor:
        """Scores (B, ..., V) of the speed classes on paths; without alignment the paths are not read.

        Args:
            features: (B, D) of `Paths`.
            turns: (B, ..., P) turns of the paths, rad.
        """
        path = turns if self.cfg.aligned else torch.zeros_like(turns)
        wide = features.view(len(features), *[1] * (turns.dim() - 2), -1).expand(*turns.shape[:-1], -1)
        return self.speed_head(torch.cat([wide, path / TURN_RAD], dim=-1))

    def candidates(self, obs: dict[str, Tensor]) -> Proposals:
        """See `HasScoredCandidates`: K V of them, the speeds of each path one after the other."""
        found = self.paths(self.encode(obs))
        speeds = self.speed_logits(found.features, found.turns).log_softmax(dim=-1)
        logits = (found.logits.log_softmax(dim=-1)[..., None] + speeds).flatten(1)
        return Proposals(self.trajectories(found.points).flatten(1, 2)[:, :, None], logits)

    def trajectories(self, points: Tensor) -> Tensor:
        """Normalized actions (B, K, V, A): the places on paths (B, K, P, 2) at each speed."""
        batch, modes = points.shape[:2]
        flat = points.flatten(0, 1)
        ahead = self.ahead_m.expand(len(flat), *self.ahead_m.shape)
        action = points_at(flat, self.cfg.spacing_m, ahead).view(batch, modes, len(self.ahead_m), -1)
        return action * self._scale + self._offset

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> Deployed:
        """The most probable path with its most probable speed; noise is ignored."""
        del noise
        found = self.paths(self.encode(obs))
        turns, points = at_mode(found.turns, found.likely), at_mode(found.points, found.likely)
        speed = self.speed_logits(found.features, turns).argmax(dim=1)
        normalized_action = at_mode(self.trajectories(points[:, None])[:, 0], speed)[:, None]
        return Deployed(self.to_actions(normalized_action), normalized_action)

    def act(
        self, obs: dict[str, Tensor], state: Any = None, generator: Noise | None = None, mode: Mode = "sample"
    ) -> ActOut:
        """A trajectory for each row: a candidate drawn by its probability, or as deployed."""
        if mode == "mean":
            return ActOut(self.deploy(obs, None).actions, state)
        chunks, logits = self.candidates(obs)
        return ActOut(self.to_actions(at_mode(chunks, choose(logits.softmax(dim=-1), generator))), state)


def at_mode(values: Tensor, index: Tensor) -> Tensor:
    """The entry (B, ...) of values (B, K, ...) at an index (B,) of each row."""
    at = index.view(-1, *[1] * (values.dim() - 1)).expand(-1, 1, *values.shape[2:])
    return values.gather(1, at)[:, 0]


def _to_normalized(transforms: TransformGroup, width: int) -> tuple[Tensor, Tensor]:
    """Scale and offset (A,) from an action's units to normalized actions, the inverse of the transforms' outputs."""
    scale, offset = torch.ones(width, dtype=torch.float64), torch.zeros(width, dtype=torch.float64)
    for step in transforms.outputs:
        if isinstance(step, Affine) and step.key == ACTION:
            a, b = (torch.tensor(x, dtype=torch.float64) for x in (step.scale, step.offset))
            scale, offset = a * scale, a * offset + b
    return (1.0 / scale).float(), (-offset / scale).float()


def _check(cfg: PathSpeedCfg, action_spec: Spec) -> None:
    if cfg.horizon != 1:
        raise out_of_range("policy.horizon", cfg.horizon, "1: a decision is one trajectory")
    if not cfg.hidden:
        raise out_of_range("policy.hidden", cfg.hidden, "one width or more")
    check_count("policy.modes", cfg.modes, 1, 64)
    check_count("policy.points", cfg.points, 2, 100)
    check_count("policy.classes", cfg.classes, 2, 100)
    for name in ("spacing_m", "class_mps", "point_dt_s"):
        check_positive(f"policy.{name}", getattr(cfg, name))
    if action_spec.choices is None and action_spec.shape[0] % 2:
        raise ConfigError(
            f"action has {action_spec.shape[0]} numbers: expected x and y of each point of a trajectory (of driving"
            " sims: sim.actions 'trajectory')"
        )
