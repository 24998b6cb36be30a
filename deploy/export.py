"""Export of a trained policy to a bundle, with a parity check against torch. Needs torch.

The sampler is unrolled into one ONNX graph together with all normalization. onnxruntime and torch are compared on at
least 1,000 recorded observations; if they differ by more than 1e-5 of the action range, no bundle is written.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast, get_args, runtime_checkable

import numpy as np
import safetensors.numpy
import torch
from torch import Tensor, nn

from robotrl.deploy.bundle import manifest as schema
from robotrl.deploy.bundle import strict
from robotrl.deploy.bundle.bundle import Bundle, GoldenTicks, open_bundle
from robotrl.deploy.bundle.consistency import MIN_GOLDEN_TICKS
from robotrl.deploy.bundle.describe import (
    GOLDEN_TOLERANCE,
    MEMORY,
    NEXT_MEMORY,
    DeploysFrom,
    ExportPlan,
    HasDeploy,
    SafetyOptions,
    unknown_run,
)
from robotrl.deploy.bundle.golden import golden_inputs
from robotrl.deploy.bundle.install import installed
from robotrl.deploy.bundle.onnx_scan import scan
from robotrl.deploy.bundle.risk_graph import RISK_FILE
from robotrl.deploy.bundle.signature import SIGNATURE_FILE, check_private_key, signature_of
from robotrl.deploy.export_reflex import HasRisk, exported
from robotrl.deploy.export_stacks import flattened, newest, stacked, stacked_shape
from robotrl.deploy.export_steering import exported_steering, steering_of
from robotrl.deploy.noise import CounterNoise
from robotrl.deploy.session import GraphSession, SteeredSession, TickOutputs, built, check_golden, run_ticks
from robotrl.errors import CapabilityError, ConfigError, DataError, NumericsError, nearest, unknown
from robotrl.peft.lora import merged
from robotrl.run.onnx_graph import onnx_graph
from robotrl.spec.actuation import Actuation
from robotrl.transforms import torch_backend

MIN_SAMPLES = 1000
SAMPLES = 1024
"""Default number of recorded observations in the parity check."""
PARITY_LIMIT = 1e-5
LEAST_LEAD = 1e-4
"""Smallest margin of the most likely choice, in nats, for a tick to be compared; rounding errors are 1e-6."""
OBSERVATIONS_FILE = "observations.safetensors"
"""File of recorded observations in a run directory: an array (n, ...) for each key, consecutive ticks in order."""


@runtime_checkable
class HasLead(Protocol):
    """A policy with discrete actions."""

    def lead(self, obs: dict[str, Tensor]) -> Tensor:
        """(B,) smallest margin, in nats, between the first and the second choice over a chunk."""
        ...


@runtime_checkable
class HasLeadFrom(Protocol):
    """A recurrent policy with discrete actions."""

    def lead_from(self, obs: dict[str, Tensor], memory: Tensor) -> Tensor:
        """As `HasLead.lead`, from the memory (B, M) of the decision before."""
        ...


@dataclass(frozen=True)
class ExportReport:
    """Report of an export.

    Args:
        path: directory of the bundle.
        bundle_id: its identity.
        parity_max_abs: largest difference between torch and onnxruntime, in action units.
        parity_max_rel: the same as a fraction of each action element's range; of a recurrent policy also that of its
            state.
        samples: recorded observations compared.
        golden_ticks: ticks recorded in the bundle.
        graph_nodes: nodes in the exported graph.
        graph_bytes: its size.
        seconds: wall time of the export.
    """

    path: Path
    bundle_id: str
    parity_max_abs: float
    parity_max_rel: float
    samples: int
    golden_ticks: int
    graph_nodes: int
    graph_bytes: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**strict.to_json(self), "path": str(self.path)}


def export(
    run_or_policy: Any,
    path: str | os.PathLike[str],
    *,
    observations: Mapping[str, Any] | None = None,
    samples: int = SAMPLES,
    control_dt_s: float | None = None,
    action_kind: schema.ActionKind = "delta",
    safety: SafetyOptions | None = None,
    training: schema.Training | None = None,
    overwrite: bool = False,
    actuation: Actuation | None = None,
    sign: str | os.PathLike[str] | None = None,
    reflex: object = None,
    steer_graph: bool = False,
    interpolation: schema.Interpolation = "hold",
) -> ExportReport:
    """Export a policy to a bundle.

    Args:
        run_or_policy: a policy, or the path of a run directory or checkpoint.
        path: the bundle's directory; created atomically.
        observations: recorded observations, one array (n, ...) for each key, n at least `samples`, consecutive ticks
            in order. Without it they are read from the run's `observations.safetensors`.
        samples: number of observations in the parity check; 1000 or more.
        control_dt_s: seconds between two actions; by default the policy's `control_dt_s`.
        action_kind: kind of the actions; determines how the robot holds.
        safety: limits besides the action bounds.
        training: the run that made the policy.
        overwrite: replace an existing bundle at `path` (never anything that is not a bundle).
        actuation: default pose and gains of the joints that the actions move, for the manifest.
        sign: private Ed25519 key that signs the bundle, a PEM file; None leaves it unsigned.
        reflex: policy with a risk critic, which the servo evaluates; None takes that of the policy, if it has one.
        steer_graph: keep the steering of a policy of DSRL in a graph of its own (`steer.onnx`), and the policy that it
            steers in another; else one graph holds both.
        interpolation: commands of the servo between two control ticks: "hold" repeats the action, "linear" goes to it
            in a straight line from the one before.

    Raises:
        ConfigError: an argument is out of range, the target exists, observations are missing, or the key is none.
        CapabilityError: the policy cannot be exported, or is not steered and `steer_graph` is set.
        NumericsError: the exported graph differs from torch by more than 1e-5 of the action range, or gives numbers
            that are not finite; no bundle is written.
    """
    started = time.monotonic()
    source, run_dir = _load(run_or_policy)
    target = Path(path)
    period = _period(source, control_dt_s)
    if samples < MIN_SAMPLES:
        raise ConfigError(f"samples is {samples!r}: expected {MIN_SAMPLES} or more")
    _check_interpolation(source, interpolation, reflex)
    if sign is not None:
        check_private_key(sign)
    policy = _frozen_copy(source)
    steered = steering_of(policy) if steer_graph else None
    own = policy if steered is None else steered.base
    recorded = stacked(policy.observation_spec, _recorded(policy, observations, run_dir, samples))
    with installed(target, overwrite=overwrite) as draft:
        graph = _to_onnx(own)
        steering = None if steered is None else exported_steering(steered, onnx_graph)
        facts = scan(graph, schema.GRAPH_FILE)
        run = training or unknown_run(policy)
        guard = reflex or (source if isinstance(source, HasRisk) else None)
        risk = None if guard is None else exported(guard, newest(policy.observation_spec, recorded), onnx_graph)
        limits = safety or SafetyOptions()
        plan = ExportPlan(own, period, action_kind, limits, run, recorded, actuation, risk, steering, interpolation)
        unsealed = plan.manifest(graph, golden=None, parity=schema.Parity(0, 0.0, 0.0), ticks=MIN_GOLDEN_TICKS)
        session = alone = GraphSession(graph, unsealed)
        if steering is not None:
            session = SteeredSession(graph, steering.graph, unsealed)
        states = _walk(policy, recorded)
        parity = _parity(policy, session, unsealed, recorded, states, samples)
        if steering is not None:
            parity = _worse(parity, _parity(own, alone, unsealed, recorded, states, samples))
        golden = _record_golden(policy, session, unsealed, recorded, states)
        golden_bytes = safetensors.numpy.save(golden.to_arrays())
        manifest = schema.sealed(plan.manifest(graph, golden_bytes, parity, len(golden.actions)))
        draft.write(schema.GRAPH_FILE, graph)
        draft.write(schema.GOLDEN_FILE, golden_bytes)
        if steering is not None:
            draft.write(schema.STEER_FILE, steering.graph)
        if risk is not None:
            draft.write(RISK_FILE, risk.graph)
        draft.write(schema.MANIFEST_FILE, manifest.to_bytes())
        if sign is not None:
            draft.write(SIGNATURE_FILE, signature_of(manifest.to_bytes(), sign))
        # Open the bundle as a robot would, before it gets its final name.
        written = open_bundle(draft.path)
        for proved in {id(one): one for one in (session, alone)}.values():
            check_golden(proved, written)
    return ExportReport(
        path=target,
        bundle_id=manifest.bundle_id,
        parity_max_abs=parity.max_abs,
        parity_max_rel=parity.max_rel,
        samples=parity.samples,
        golden_ticks=len(golden.actions),
        graph_nodes=facts.nodes,
        graph_bytes=len(graph),
        seconds=time.monotonic() - started,
    )


def parity_of(policy: HasDeploy, bundle: Bundle, observations: Mapping[str, Any]) -> schema.Parity:
    """Compare a bundle with a policy on all given observations (n, ...), without a limit on the difference.

    Raises:
        ConfigError: the observations do not match the policy.
    """
    count = len(next(iter(observations.values())))
    recorded = stacked(policy.observation_spec, _recorded(policy, observations, None, count))
    session, frozen = built(bundle), _frozen_copy(policy)
    return _difference(frozen, session, bundle.manifest, recorded, _walk(frozen, recorded), count)


def _load(run_or_policy: Any) -> tuple[HasDeploy, Path | None]:
    run_dir = None
    policy = run_or_policy
    if isinstance(run_or_policy, str | os.PathLike):
        from robotrl.run.policy_checkpoint import load_policy

        run_dir = Path(cast("str", run_or_policy))
        policy = load_policy(run_dir)
    if not isinstance(policy, nn.Module):
        raise ConfigError(f"policy is a {type(policy).__name__}: expected a policy, or the path of a run or checkpoint")
    needed = ("observation_spec", "action_spec", "horizon", "transforms", "noise_shape", "deploy")
    missing = [name for name in needed if not hasattr(policy, name)]
    if missing:
        raise CapabilityError(f"policy {type(policy).__name__} cannot be exported: it lacks {', '.join(missing)}")
    if why := getattr(policy, "no_graph", ""):
        raise CapabilityError(f"policy {type(policy).__name__} cannot be exported: {why}")
    return cast("HasDeploy", policy), run_dir


def _period(policy: HasDeploy, control_dt_s: float | None) -> float:
    period = control_dt_s if control_dt_s is not None else getattr(policy, "control_dt_s", None)
    if period is None:
        raise ConfigError(
            "control_dt_s is missing, and the sim states none: give the seconds between two actions (--control-dt-s)"
        )
    if not 0.0 < period <= 10.0:
        raise ConfigError(f"control_dt_s is {period!r}: expected more than 0, at most 10 seconds")
    return float(period)


def _check_interpolation(policy: HasDeploy, interpolation: schema.Interpolation, reflex: object) -> None:
    """Check that there is something between two actions.

    Raises:
        ConfigError: the interpolation is unknown, the actions are choices, or a reflex commands the robot there.
    """
    if interpolation not in get_args(schema.Interpolation):
        raise unknown("interpolation", interpolation, get_args(schema.Interpolation))
    if interpolation == "hold":
        return
    why = "the actions are choices" if policy.action_spec.choices is not None else ""
    if reflex is not None or isinstance(policy, HasRisk):
        why = "a reflex commands the robot between two control ticks"
    if why:
        raise ConfigError(f"interpolation is {interpolation!r}: {why}, expected 'hold'")


def _frozen_copy(policy: HasDeploy) -> HasDeploy:
    # without adapters: the graph has one product for each layer
    module = copy.deepcopy(cast("nn.Module", merged(policy))).to("cpu").eval().requires_grad_(False)
    spec = policy.action_spec
    for name, low, high in zip(spec.names, spec.low, spec.high, strict=True):
        if not (np.isfinite(low) and np.isfinite(high)):
            raise ConfigError(
                f"action {name!r} is bounded by [{low}, {high}]: expected finite bounds, the robot's limits"
            )
    transforms = policy.transforms
    late = [t.where for t in transforms.inputs] + [t.where for t in reversed(transforms.outputs)]
    sides = (late[: len(transforms.inputs)], late[len(transforms.inputs) :])
    if any(side != sorted(side, reverse=True) for side in sides):
        raise ConfigError("transforms: those marked 'host' must come first among inputs and last among outputs")
    return cast("HasDeploy", module)


def _recorded(
    policy: HasDeploy, given: Mapping[str, Any] | None, run_dir: Path | None, samples: int
) -> dict[str, np.ndarray]:
    if given is None:
        if run_dir is None or not (run_dir / OBSERVATIONS_FILE).is_file():
            where = f"no {OBSERVATIONS_FILE} in {str(run_dir)!r}" if run_dir else "the policy comes without a run"
            raise ConfigError(
                f"observations are missing ({where}): give {samples} or more recorded ones, "
                f"an array (n, ...) for each of {', '.join(policy.observation_spec)}"
            )
        try:
            given = safetensors.numpy.load_file(run_dir / OBSERVATIONS_FILE)
        except (OSError, ValueError, safetensors.SafetensorError) as error:
            raise DataError(f"{run_dir / OBSERVATIONS_FILE}: not readable as safetensors: {error}") from error
    out: dict[str, np.ndarray] = {}
    for key in given:
        if key not in policy.observation_spec:
            close = nearest(key, policy.observation_spec)
            hint = f"did you mean {close!r}? " if close else ""
            raise ConfigError(
                f"observations: key {key!r} is unknown: {hint}known: {', '.join(policy.observation_spec)}"
            )
    for key, spec in policy.observation_spec.items():
        if key not in given:
            raise ConfigError(f"observations: key {key!r} is missing")
        value = given[key]
        array = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value, np.float32)
        if array.ndim < 1 or array.shape[1:] != spec.shape:
            raise ConfigError(f"observations[{key!r}] has shape {array.shape}: expected (n, *{spec.shape})")
        if len(array) < samples:
            raise ConfigError(f"observations[{key!r}] has {len(array)} rows: expected {samples} or more")
        if not np.isfinite(array).all():
            raise NumericsError(f"observations[{key!r}] holds a number that is not finite")
        out[key] = array
    lengths = {key: len(array) for key, array in out.items()}
    if len(set(lengths.values())) != 1:
        raise ConfigError(f"observations differ in length: {lengths}")
    return out


def _walk(policy: HasDeploy, recorded: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Memory (n, ...) of a policy before each recorded observation, as in one episode; none for those without."""
    if not isinstance(policy, DeploysFrom):
        return {}
    arrays, found = _on_host(policy, recorded), list[Tensor]()
    memory = torch.zeros(1, policy.memory_width)
    shape = policy.noise_shape
    source = None if shape is None else CounterNoise(shape, seed=0)
    with torch.inference_mode():
        for row in range(len(next(iter(recorded.values())))):
            found.append(memory)
            one = {key: torch.from_numpy(array[row : row + 1]) for key, array in arrays.items()}
            noise = None if source is None else torch.from_numpy(source.draw(row))[None]
            memory = policy.deploy_from(flattened(policy.observation_spec, one), memory, noise).memory
    return {MEMORY: torch.cat(found).numpy()}


class _GraphWithMemory(nn.Module):
    """The `deploy_from` of a policy that carries a memory with positional tensors, for the ONNX exporter."""

    def __init__(self, policy: HasDeploy) -> None:
        super().__init__()
        self.policy: Any = policy
        self._keys = tuple(policy.observation_spec)

    def forward(self, *arrays: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        *given, memory = arrays
        seen, rest = given[: len(self._keys)], given[len(self._keys) :]
        obs = flattened(self.policy.observation_spec, dict(zip(self._keys, seen, strict=True)))
        out = self.policy.deploy_from(obs, memory, rest[0] if rest else None)
        return out.actions, out.normalized_action, out.memory


class _Graph(nn.Module):
    """The policy's `deploy` with positional tensors, for the ONNX exporter."""

    def __init__(self, policy: HasDeploy) -> None:
        super().__init__()
        self.policy = policy
        self._keys = tuple(policy.observation_spec)

    def forward(self, *arrays: Tensor) -> tuple[Tensor, Tensor]:
        obs = flattened(self.policy.observation_spec, dict(zip(self._keys, arrays, strict=False)))
        noise = arrays[len(self._keys)] if len(arrays) > len(self._keys) else None
        out = self.policy.deploy(obs, noise)
        return out.actions, out.normalized_action


def _to_onnx(policy: HasDeploy) -> bytes:
    names, outputs = list(policy.observation_spec), ["actions", "raw_action"]
    module: nn.Module = _Graph(policy)
    arrays = [torch.zeros(1, *stacked_shape(spec)) for spec in policy.observation_spec.values()]
    if policy.noise_shape is not None:
        names.append("noise")
        arrays.append(torch.zeros(1, *policy.noise_shape))
    if isinstance(policy, DeploysFrom):
        module = _GraphWithMemory(policy)
        names.append(MEMORY)
        outputs.append(NEXT_MEMORY)
        arrays.append(torch.zeros(1, policy.memory_width))
    # the name is the noise's also where a policy has none
    clash = "noise" in policy.observation_spec
    if clash or len(set(names) | set(outputs)) != len(names) + len(outputs):
        own = ", ".join(repr(name) for name in ("noise", MEMORY, *outputs))
        raise ConfigError(f"observation keys {list(policy.observation_spec)}: {own} are names of the graph's own")
    return onnx_graph(module, tuple(arrays), names, outputs)


def _parity(
    policy: HasDeploy,
    session: GraphSession,
    manifest: schema.Manifest,
    recorded: dict[str, np.ndarray],
    states: dict[str, np.ndarray],
    samples: int,
) -> schema.Parity:
    parity = _difference(policy, session, manifest, recorded, states, samples)
    # Not `>`: a NaN must fail too.
    if not parity.max_rel <= PARITY_LIMIT:
        raise NumericsError(
            f"parity: onnxruntime differs from torch by {parity.max_rel:.3g} of the action range on {samples} recorded "
            f"observations: expected at most {PARITY_LIMIT:g}; no bundle was written"
        )
    return parity


def _worse(one: schema.Parity, other: schema.Parity) -> schema.Parity:
    """The larger differences of two comparisons, of one number of samples."""
    return schema.Parity(one.samples, max(one.max_abs, other.max_abs), max(one.max_rel, other.max_rel))


def _difference(
    policy: HasDeploy,
    session: GraphSession,
    manifest: schema.Manifest,
    recorded: dict[str, np.ndarray],
    states: dict[str, np.ndarray],
    samples: int,
) -> schema.Parity:
    # Spread over the whole record, so that early and late parts of episodes are both compared.
    total = len(next(iter(recorded.values())))
    rows = np.linspace(0, total - 1, samples).round().astype(np.int64)
    before = {key: array[rows] for key, array in states.items()}
    ticks = _inputs(policy, {key: array[rows] for key, array in recorded.items()}, before, manifest)
    wanted, _, wanted_states, _ = _torch_ticks(policy, ticks)
    found, _, found_states, _ = run_ticks(session, ticks, manifest)
    error = np.abs(found.astype(np.float64) - wanted.astype(np.float64))
    error[~_decided(policy, ticks)] = 0.0
    # a state's elements lie between -1 and 1
    apart = [float(np.abs(array.astype(np.float64) - wanted_states[key]).max()) for key, array in found_states.items()]
    return schema.Parity(samples, float(error.max()), max(float((error / manifest.action_range).max()), *apart, 0.0))


def _on_host(policy: HasDeploy, observations: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Inputs (n, ...) of the graph: observations with the host transforms applied."""
    host = [t for t in policy.transforms.inputs if t.where == "host"]
    tensors = {key: torch.from_numpy(np.ascontiguousarray(array)) for key, array in observations.items()}
    return {key: value.numpy() for key, value in torch_backend(host)(tensors).items()}


def _inputs(
    policy: HasDeploy, observations: dict[str, np.ndarray], states: dict[str, np.ndarray], manifest: schema.Manifest
) -> GoldenTicks:
    """Ticks with the host transforms applied, the noise of seed 0, and empty outputs."""
    arrays = _on_host(policy, observations)
    count = len(next(iter(arrays.values())))
    noise = None
    if policy.noise_shape is not None:
        source = CounterNoise(policy.noise_shape, seed=0)
        noise = np.stack([source.draw(i) for i in range(count)])
    empty = np.zeros((count, manifest.timing.chunk_length, len(manifest.action.names)), np.float32)
    return GoldenTicks(arrays, noise, empty, empty, states)


def _torch_ticks(policy: HasDeploy, ticks: GoldenTicks) -> TickOutputs:
    with torch.inference_mode():
        obs = _torch_obs(policy, ticks)
        noise = None if ticks.noise is None else torch.from_numpy(ticks.noise)
        if isinstance(policy, DeploysFrom):
            step = policy.deploy_from(obs, torch.from_numpy(ticks.states[MEMORY]), noise)
            return TickOutputs(step.actions.numpy(), step.normalized_action.numpy(), {MEMORY: step.memory.numpy()})
        out = policy.deploy(obs, noise)
    return TickOutputs(out.actions.numpy(), out.normalized_action.numpy(), {})


def _torch_obs(policy: HasDeploy, ticks: GoldenTicks) -> dict[str, Tensor]:
    """The observations as the policy reads them."""
    arrays = {key: torch.from_numpy(array) for key, array in ticks.observations.items()}
    return flattened(policy.observation_spec, arrays)


def _decided(policy: HasDeploy, ticks: GoldenTicks) -> np.ndarray:
    """(n,) bool: ticks whose choices do not depend on rounding errors; always True for continuous actions."""
    if isinstance(policy, HasLeadFrom):
        memory = torch.from_numpy(ticks.states[MEMORY])
        return (policy.lead_from(_torch_obs(policy, ticks), memory) > LEAST_LEAD).numpy()
    if not isinstance(policy, HasLead):
        return np.ones(len(ticks.actions), bool)
    return (policy.lead(_torch_obs(policy, ticks)) > LEAST_LEAD).numpy()


def _only_decided(policy: HasDeploy, ticks: GoldenTicks) -> GoldenTicks:
    """Replace ticks whose choices depend on rounding errors by ticks before them."""
    decided = _decided(policy, ticks)
    if decided.all():
        return ticks
    if not decided.any():
        raise NumericsError(
            f"golden ticks: two choices are equally likely within {LEAST_LEAD:g} nats at every one of them: expected a"
            " policy that prefers some"
        )
    known = np.flatnonzero(decided)
    rows = known[np.maximum(np.searchsorted(known, np.arange(len(decided)), side="right") - 1, 0)]
    observations = {key: array[rows] for key, array in ticks.observations.items()}
    states = {key: array[rows] for key, array in ticks.states.items()}
    noise = None if ticks.noise is None else ticks.noise[rows]
    return replace(ticks, observations=observations, noise=noise, states=states)


def _record_golden(
    policy: HasDeploy,
    session: GraphSession,
    manifest: schema.Manifest,
    recorded: dict[str, np.ndarray],
    states: dict[str, np.ndarray],
) -> GoldenTicks:
    inputs = _only_decided(policy, golden_inputs(manifest, recorded, states))
    actions, raw, after, chosen = run_ticks(session, inputs, manifest)
    if not (np.isfinite(actions).all() and np.isfinite(raw).all()):
        tick = int(np.nonzero(~np.isfinite(actions).all(axis=(1, 2)) | ~np.isfinite(raw).all(axis=(1, 2)))[0][0])
        raise NumericsError(
            f"golden tick {tick}: the policy answers an observation inside its bounds with a number that is not finite"
        )
    reference = _torch_ticks(policy, inputs).actions
    error = float((np.abs(actions.astype(np.float64) - reference) / manifest.action_range).max())
    if not error <= GOLDEN_TOLERANCE:
        raise NumericsError(
            f"golden ticks: onnxruntime differs from torch by {error:.3g} of the action range: expected at most "
            f"{GOLDEN_TOLERANCE:g}; no bundle was written"
        )
    return replace(inputs, actions=actions, normalized_action=raw, next_states=after, steered_noise=chosen)
