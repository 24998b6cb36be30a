"""Creation of a manifest (schema 1) from a policy's specs, transforms and sampler. Needs no torch."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from robotrl.deploy.bundle import manifest as schema
from robotrl.deploy.bundle.consistency import MIN_GOLDEN_TICKS
from robotrl.deploy.bundle.plausible import max_still_s, plausible, start_envelope
from robotrl.deploy.bundle.risk_graph import RISK_FILE
from robotrl.deploy.export_stacks import measured_spec, newest, stacked_shape
from robotrl.errors import ConfigError, out_of_range
from robotrl.spec import (
    COMMITTED,
    COMMITTED_MASK,
    HasOverlap,
    HasSampler,
    Spec,
    committed_steps,
    history_steps,
    without_committed,
)
from robotrl.spec.actuation import Actuation
from robotrl.transforms import TransformGroup, composed_affine

if TYPE_CHECKING:
    from torch import Tensor

GOLDEN_TOLERANCE = 1e-4


class DeployOutput(Protocol):
    """Output of a policy's `deploy`."""

    @property
    def actions(self) -> Tensor:
        """(B, H, A) in the sim's units, clipped to the bounds."""
        ...

    @property
    def normalized_action(self) -> Tensor:
        """(B, H, A) normalised."""
        ...


COMMITTED_ROLES: dict[str, schema.Role] = {COMMITTED: "prefix", COMMITTED_MASK: "prefix_mask"}
"""Roles of the inputs that the runtime supplies, by the policy's observation key."""


@runtime_checkable
class HasDeploy(Protocol):
    """A policy that can be exported: a torch module whose `deploy` is deterministic given its noise.

    `deploy` applies the transforms with `where: graph`; the runtime applies those with `host`.
    """

    observation_spec: dict[str, Spec]
    action_spec: Spec
    horizon: int
    transforms: TransformGroup
    noise_shape: tuple[int, int] | None

    def deploy(self, obs: dict[str, Tensor], noise: Tensor | None) -> DeployOutput:
        """Actions from observations (B, ...) and noise (B, *noise_shape)."""
        ...


class DeployedStep(DeployOutput, Protocol):
    """Output of `deploy_from` of a policy that carries a memory."""

    @property
    def memory(self) -> Tensor:
        """(B, M) memory to pass to the next decision."""
        ...


@runtime_checkable
class DeploysFrom(Protocol):
    """A policy with a memory that can be exported: its graph maps observation and memory to actions and next memory."""

    memory_width: int
    """M; the elements of a memory lie between -1 and 1."""

    def deploy_from(self, obs: dict[str, Tensor], memory: Tensor, noise: Tensor | None) -> DeployedStep:
        """Actions from observations (B, ...), memory (B, M) and noise (B, *noise_shape)."""
        ...


MOST_AGE_S = 10.0
"""Largest age of an observation that a bundle may allow."""
MEMORY, NEXT_MEMORY = "memory", "next_memory"
"""Names of a policy's memory in its graph."""


@dataclass(frozen=True)
class SafetyOptions:
    """Settings of the bundle's safety section, besides the action bounds.

    Args:
        max_step: largest change between two sent actions, per element; None means no rate limit.
        ramp_in_s: blend-in time from neutral at the start of an episode.
        bad_ticks_to_damp: number of consecutive bad ticks at which the controller damps.
        neutral: the action for no motion; None means zeros (deltas, velocities, torques) or the middle of the bounds
            (positions).
        limits: ranges under which the policy was trained; for observation elements that they do not name, the exporter
            adds plausible ranges, see `robotrl.deploy.bundle.plausible`.
        max_observation_age_s: an older observation is stale, and an inference must be as quick; above 0, at most 10.
            None: two control periods, and one more for each action that may be committed while the policy infers.
    """

    max_step: tuple[float, ...] | None = None
    ramp_in_s: float = 0.0
    bad_ticks_to_damp: int = 5
    neutral: tuple[float, ...] | None = None
    limits: tuple[schema.Limit, ...] = ()
    max_observation_age_s: float | None = None


@dataclass(frozen=True)
class ExportPlan:
    """Inputs for the creation of a manifest.

    Args:
        policy: the policy to describe.
        period: seconds between two actions.
        action_kind: kind of its actions.
        safety: limits beyond the action bounds.
        training: the run that made it.
        recorded: (n, ...) for each observation, consecutive ticks, from which plausible ranges are computed.
        actuation: default pose and gains of the joints that the actions move, if they are known.
        reflex: the servo's reflex, and its risk graph; None without one.
        steering: the steering of the policy, and its graph; None without one, or where the policy graph holds it.
        interpolation: commands between two control ticks.
    """

    policy: HasDeploy
    period: float
    action_kind: schema.ActionKind
    safety: SafetyOptions
    training: schema.Training
    recorded: Mapping[str, np.ndarray]
    actuation: Actuation | None = None
    reflex: tuple[schema.BundleReflex, bytes] | None = None
    steering: tuple[schema.BundleSteering, bytes] | None = None
    interpolation: schema.Interpolation = "hold"

    def manifest(self, graph: bytes, golden: bytes | None, parity: schema.Parity, ticks: int) -> schema.Manifest:
        """Create the manifest, not yet sealed.

        Args:
            graph: content of the policy graph.
            golden: content of the golden ticks, or None while they are not recorded.
            parity: result of the parity check.
            ticks: number of golden ticks.
        """
        policy = self.policy
        committed = committed_steps(policy.observation_spec)
        guided = isinstance(policy, HasOverlap)
        files = {schema.GRAPH_FILE: entry(graph)}
        if golden is not None:
            files[schema.GOLDEN_FILE] = entry(golden)
        reflex, risk = (None, None) if self.reflex is None else self.reflex
        if risk is not None:
            files[RISK_FILE] = entry(risk)
        steer, steer_graph = (None, None) if self.steering is None else self.steering
        if steer_graph is not None:
            files[schema.STEER_FILE] = entry(steer_graph)
        noisy = policy.noise_shape is not None
        # a policy with noise that says nothing of its sampler has one step of its own
        known = isinstance(policy, HasSampler)
        steps = policy.denoising_steps if noisy and known else 0
        kind, solver = (policy.sampler if known else ("flow", "euler")) if noisy else ("none", "none")
        return schema.Manifest(
            schema_version=_schema_version(policy, reflex, steer),
            bundle_id="",
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            io=_io(policy, {key: max_still_s(rows, self.period) for key, rows in self._present.items()}),
            timing=schema.Timing(
                control_period_s=self.period,
                chunk_length=policy.horizon,
                execute=policy.horizon - policy.overlap if guided else policy.horizon,
                latency_budget_s=self.period / 2,
                max_observation_age_s=self._max_age_s(committed),
                rtc_mode="guided" if guided else "trained" if committed else "none",
                rtc_max_delay_steps=committed,
                interpolation=self.interpolation,
            ),
            action=self._action(),
            safety=self._safety(),
            sampler=schema.ManifestSampler(
                kind=kind,
                solver=solver,
                steps=steps,
                noise_shape=policy.noise_shape,
                distribution="normal" if noisy else "none",
                noise_policy=None if not noisy else "counter" if steer is None else "steer",
            ),
            transforms=policy.transforms,
            graphs=schema.Graphs(
                policy=schema.GRAPH_FILE,
                steer=None if steer is None else schema.STEER_FILE,
                risk=None if risk is None else RISK_FILE,
            ),
            golden=schema.Golden(
                file=schema.GOLDEN_FILE,
                ticks=ticks,
                sequence_start=MIN_GOLDEN_TICKS,
                tolerance=GOLDEN_TOLERANCE,
            ),
            parity=parity,
            training=self.training,
            versions=_versions(),
            files=files,
            reflex=reflex,
            steer=steer,
        )

    @property
    def _present(self) -> dict[str, np.ndarray]:
        """The recorded observations (n, ...) of the present tick alone."""
        return newest(self.policy.observation_spec, self.recorded)

    def _action(self) -> schema.Action:
        spec = self.policy.action_spec
        affine = composed_affine(self.policy.transforms, "action", len(spec.names))
        known = self.actuation or Actuation("delta")
        return schema.Action(
            kind=self._kind(),
            names=spec.names,
            units=spec.units,
            scale=affine.scale,
            offset=affine.offset,
            stiffness=known.stiffness,
            damping=known.damping,
            default_pose=known.default_pose,
            choices=spec.choices,
        )

    def _max_age_s(self, committed: int) -> float:
        """Age from which on an observation is stale, of a policy with so many committed actions at most."""
        given = self.safety.max_observation_age_s
        if given is None:
            return (2 + committed) * self.period
        if not 0 < given <= MOST_AGE_S:
            raise out_of_range("max_observation_age_s", given, f"above 0, at most {MOST_AGE_S:g} s")
        return given

    def _kind(self) -> schema.ActionKind:
        chooses = self.policy.action_spec.choices is not None
        if chooses and self.action_kind not in ("delta", "choice"):
            raise ConfigError(f"action_kind is {self.action_kind!r}: expected 'choice', as its actions are")
        if not chooses and self.action_kind == "choice":
            raise ConfigError("action_kind is 'choice': expected another, the policy's actions are numbers")
        return "choice" if chooses else self.action_kind

    def _safety(self) -> schema.Safety:
        spec, options = self.policy.action_spec, self.safety
        spec_of = {key: measured_spec(one) for key, one in self.policy.observation_spec.items()}
        present = self._present
        middle = tuple((low + high) / 2 for low, high in zip(spec.low, spec.high, strict=True))
        zeros = (0.0,) * len(spec.names)
        neutral = options.neutral or (middle if self.action_kind == "position" else zeros)
        if spec.choices is not None:
            _check_choices(options, neutral)
        for name, low, value, high in zip(spec.names, spec.low, neutral, spec.high, strict=False):
            if not low <= value <= high:
                raise ConfigError(f"safety.neutral of {name!r} is {value!r}: expected within [{low}, {high}]")
        return schema.Safety(
            low=tuple(map(float, spec.low)),
            high=tuple(map(float, spec.high)),
            max_step=options.max_step,
            ramp_in_s=options.ramp_in_s,
            bad_ticks_to_damp=options.bad_ticks_to_damp,
            hold="last" if self._kind() == "position" else "neutral",
            neutral=tuple(map(float, neutral)),
            limits=plausible(spec_of, self.policy.transforms, present, options.limits),
            start=start_envelope(without_committed(spec_of), self.policy.transforms, present),
        )


def _check_choices(options: SafetyOptions, neutral: tuple[float, ...]) -> None:
    """Refuse safety settings that would turn a discrete action into an invalid or another choice."""
    for name, value in (("max_step", options.max_step), ("ramp_in_s", options.ramp_in_s or None)):
        if value is not None:
            raise ConfigError(f"safety.{name} is {value!r}: expected none, between two choices there is no third")
    if any(value != round(value) for value in neutral):
        raise ConfigError(f"safety.neutral is {neutral!r}: expected whole numbers, the numbers of choices")


def _schema_version(policy: HasDeploy, reflex: schema.BundleReflex | None, steer: schema.BundleSteering | None) -> int:
    """The lowest version that has all parts of the bundle."""
    if steer is not None:
        return schema.WITH_STEERING
    if isinstance(policy, DeploysFrom):
        return schema.WITH_STATE
    return schema.PLAIN if reflex is None else schema.WITH_REFLEX


def _io(policy: HasDeploy, still_s: Mapping[str, float | None]) -> schema.Io:
    inputs = [
        _port(key, spec, "observation", "robot", still_s[key])
        if key not in COMMITTED_ROLES
        else _port(key, spec, COMMITTED_ROLES[key], "policy", None)
        for key, spec in policy.observation_spec.items()
    ]
    spec = policy.action_spec
    width = len(spec.names)
    chunk = (policy.horizon, width)
    free = (None,) * width
    actions = schema.Port(
        "actions", "actions", "float32", chunk, spec.names, spec.units, spec.low, spec.high, "", "policy", 1, None
    )
    raw = replace(actions, name="raw_action", role="raw_action", units=("1",) * width, low=free, high=free)
    if policy.noise_shape is not None:
        inputs.append(
            schema.Port(
                "noise",
                "noise",
                "float32",
                policy.noise_shape,
                spec.names,
                ("1",) * width,
                free,
                free,
                "",
                "sampler",
                1,
                None,
            )
        )
    outputs = [actions, raw]
    if isinstance(policy, DeploysFrom):
        before, after = _state_ports(policy.memory_width)
        inputs.append(before)
        outputs.append(after)
    return schema.Io(tuple(inputs), tuple(outputs))


def _state_ports(width: int) -> tuple[schema.Port, schema.Port]:
    """Input and output of a policy's memory (M,), whose elements lie between -1 and 1."""
    names, units = tuple(f"{MEMORY}_{i}" for i in range(width)), ("1",) * width
    bounds = (-1.0,) * width, (1.0,) * width
    before = schema.Port(MEMORY, "state_in", "float32", (width,), names, units, *bounds, "", "policy", 1, None)
    return before, replace(before, name=NEXT_MEMORY, role="state_out", feeds=MEMORY)


def _port(key: str, spec: Spec, role: schema.Role, source: str, still_s: float | None) -> schema.Port:
    low = tuple(float(v) if np.isfinite(v) else None for v in spec.low)
    high = tuple(float(v) if np.isfinite(v) else None for v in spec.high)
    # every input of the graph is float32: the runtime converts images from uint8, 0 to 255, when it copies them
    given = (spec.dtype, spec.words, still_s)
    shape, steps = stacked_shape(spec), history_steps(spec)
    names = measured_spec(spec)
    low, high = low[: len(names.names)], high[: len(names.names)]
    return schema.Port(
        key, role, "float32", shape, names.names, names.units, low, high, "", source, steps, None, *given
    )


def entry(data: bytes) -> schema.FileEntry:
    """Size and hash of a file with this content."""
    return schema.FileEntry(len(data), hashlib.sha256(data).hexdigest())


def _versions() -> dict[str, str]:
    packages = ("robotrl", "torch", "onnx", "onnxscript", "onnxruntime", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def unknown_run(policy: HasDeploy) -> schema.Training:
    """Training section of a policy whose run is unknown."""
    return schema.Training(type(policy).__name__, None, None, None, None, None, None)
