"""Manifest of a bundle: `manifest.json`, schema 1, as frozen dataclasses.

It contains everything that a robot must know to run the policy, in SI units and at full precision. Reading is strict
(`robotrl.deploy.bundle.strict`). `docs/bundle.md` explains each field to users.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from robotrl.deploy.bundle import strict
from robotrl.deploy.bundle.consistency import check
from robotrl.errors import DataError
from robotrl.spec import Spec
from robotrl.transforms import TransformGroup

SCHEMA_VERSION = 5
"""Newest version. A bundle is written as the lowest one that has all of its parts, which older installations read."""
WITH_STEERING, WITH_STATE, WITH_REFLEX, PLAIN = 5, 4, 3, 2
"""Versions of bundles with a steering graph, with recurrent state, with a reflex, and with none of these."""
MANIFEST_FILE = "manifest.json"
GRAPH_FILE = "policy.onnx"
STEER_FILE = "steer.onnx"
GOLDEN_FILE = "golden.safetensors"

Role = Literal[
    "observation", "noise", "state_in", "prefix", "prefix_mask", "actions", "raw_action", "state_out", "risk"
]
ActionKind = Literal["delta", "position", "velocity", "torque", "twist", "steer_accel", "choice"]
Hold = Literal["neutral", "last"]


@dataclass(frozen=True)
class Port:
    """One input or output of the policy graph.

    Args:
        name: tensor name in the graph; for an observation also the robot's key.
        role: kind of data, e.g. "observation", "noise", "actions". "prefix" holds the actions that are decided and not
            executed yet, and "prefix_mask" says how many there are; the runtime supplies both.
        dtype: numpy dtype name.
        shape: static shape without the batch axis, which is always 1.
        names: one name for each element of the last axis, in order ("peg_pos_x_w"): joint order is checked by these.
        units: one SI unit for each name.
        low: lower bound of each element; None for no bound.
        high: upper bound of each element; None for no bound.
        frame: coordinate frame, if it is the same for all elements; else "", and the names contain it.
        source: origin or destination ("robot", "sampler", "policy").
        stack: number of control ticks stacked along the first axis, the oldest first and the present one last; 1 means
            none. The robot gives one of them at each tick, and the runtime keeps the others.
        feeds: for an output of role "state_out", the input of role "state_in" that receives it at the next inference of
            the episode; None otherwise. An episode begins with zeros.
        source_dtype: the robot's numpy dtype name; the runtime converts. "uint8" with three axes is an image. Not
            written for float32 (and absent in older manifests).
        words: vocabulary of an observation of word numbers, by number, "" for no word; empty, and not written, for all
            others.
        max_still_s: for an observation, the longest time in which all of its values may stay identical while the robot
            is commanded to move; after it the sensor counts as frozen. None, and not written, for no such limit.
    """

    name: str
    role: Role
    dtype: str
    shape: tuple[int, ...]
    names: tuple[str, ...]
    units: tuple[str, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]
    frame: str
    source: str
    stack: int
    feeds: str | None
    source_dtype: str = "float32"
    words: tuple[str, ...] = ()
    max_still_s: float | None = None

    @property
    def spec(self) -> Spec:
        """Spec of the array in the robot's dtype."""
        return self._spec(self.shape)

    @property
    def measured_shape(self) -> tuple[int, ...]:
        """Shape of one control tick, as the robot gives it."""
        return self.shape if self.stack == 1 else self.shape[1:]

    @property
    def measured(self) -> Spec:
        """Spec of one control tick, as the robot gives it."""
        return self._spec(self.measured_shape)

    def _spec(self, shape: tuple[int, ...]) -> Spec:
        low = tuple(-math.inf if value is None else value for value in self.low)
        high = tuple(math.inf if value is None else value for value in self.high)
        return Spec(shape, self.names, self.units, low, high, self.source_dtype, self.words)


@dataclass(frozen=True)
class Io:
    """Inputs and outputs of the policy graph, in the graph's order."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


Interpolation = Literal["hold", "linear"]


@dataclass(frozen=True)
class Timing:
    """Control rate, chunk execution and time limits.

    Args:
        control_period_s: seconds between two actions.
        chunk_length: actions in a chunk (H).
        execute: number of them that run before the next inference, 1 to H.
        latency_budget_s: longest inference; a longer one counts as over budget.
        max_observation_age_s: an older observation is stale: the controller holds.
        rtc_mode: real-time chunking, how a chunk joins the running one. "none": it begins at its observation, whatever
            the last one planned. "trained": the policy is given the committed actions, and the chunk begins after them.
            "guided": it begins at its observation, and the sampler is guided by what the last one planned.
        rtc_max_delay_steps: the largest inference delay that the policy was trained for, in control steps; of guided
            chunks the overlap with the last one, `chunk_length` - `execute`.
        interpolation: commands between two control ticks. "hold": the last action again; "linear": on the way from
            the action before, which is the action itself at the end of the control period.
    """

    control_period_s: float
    chunk_length: int
    execute: int
    latency_budget_s: float
    max_observation_age_s: float
    rtc_mode: Literal["none", "guided", "trained"]
    rtc_max_delay_steps: int
    interpolation: Interpolation


@dataclass(frozen=True)
class Action:
    """Meaning of an action: kind, names, units, scaling and gains.

    The graph computes `actions = raw_action * scale + offset`, clipped to the bounds; the numbers are repeated here for
    checks by a person or a driver. Gains and default pose are None if the action has none.

    For an action of kind "choice", `choices` is the number of choices of each element; it is sent as whole numbers from
    0 to choices - 1. None, and not written, for every other kind.
    """

    kind: ActionKind
    names: tuple[str, ...]
    units: tuple[str, ...]
    scale: tuple[float, ...]
    offset: tuple[float, ...]
    stiffness: tuple[float, ...] | None
    damping: tuple[float, ...] | None
    default_pose: tuple[float, ...] | None
    choices: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Limit:
    """A range under which the policy was trained.

    The controller enforces a limit whose names are elements of an observation (outside it, an observation counts as
    implausible); any other is information for the robot's driver. The exporter writes one of quantity "observation".
    """

    quantity: Literal["position", "velocity", "acceleration", "torque", "workspace", "observation"]
    names: tuple[str, ...]
    units: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Safety:
    """Settings of the safety chain, enforced on every tick; see `robotrl.deploy.control.safety`.

    Args:
        low: lowest action that may be sent, per element.
        high: highest action that may be sent, per element.
        max_step: largest change between two sent actions, per element; None means no rate limit.
        ramp_in_s: blend-in time from neutral at the start; 0 for none.
        bad_ticks_to_damp: after this many bad ticks in a row the controller stops holding and damps; 1 or more.
        hold: action on a bad tick: "last" repeats the last good action (right for position targets only), "neutral"
            sends `neutral` (right for deltas, velocities and torques, which would go on moving).
        neutral: the action for no motion.
        limits: training ranges, see `Limit`.
        start: ranges of the observations that training saw; an episode does not begin outside them. Bundles of schema
            1 have none.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    max_step: tuple[float, ...] | None
    ramp_in_s: float
    bad_ticks_to_damp: int
    hold: Hold
    neutral: tuple[float, ...]
    limits: tuple[Limit, ...]
    start: tuple[Limit, ...] = ()


@dataclass(frozen=True)
class ManifestSampler:
    """Sampler from noise to an action chunk; its steps are unrolled in the graph.

    Args:
        kind: "flow", "diffusion", or "none" for a policy without noise.
        solver: "euler" for flow, "ddim" for diffusion, or "none".
        steps: denoising steps (K); 0 for "none".
        noise_shape: (H, A), or None.
        distribution: distribution of each element of the noise.
        noise_policy: source of the noise in the runtime: "counter" (standard normal from Philox4x64-10, key = seed,
            counter = index of the decision), "zero", or "steer" (from the steering graph; "counter" where that draws,
            and where steering is off); None without noise.
    """

    kind: Literal["none", "flow", "diffusion"]
    solver: Literal["none", "euler", "ddim"]
    steps: int
    noise_shape: tuple[int, ...] | None
    distribution: Literal["none", "normal"]
    noise_policy: Literal["zero", "counter", "steer"] | None


@dataclass(frozen=True)
class Graphs:
    """File names of the graphs; None for optional graphs that the bundle lacks."""

    policy: str
    steer: str | None
    risk: str | None


@dataclass(frozen=True)
class Golden:
    """Recorded ticks that the runtime replays and compares before it controls anything.

    `tolerance` is the largest accepted difference as a fraction of each action element's range. It is wider than the
    parity bound because another processor or onnxruntime build rounds differently.
    """

    file: str
    ticks: int
    sequence_start: int
    tolerance: float


@dataclass(frozen=True)
class Parity:
    """Differences between onnxruntime and torch at export; `max_rel` is relative to the action range."""

    samples: int
    max_abs: float
    max_rel: float


@dataclass(frozen=True)
class Training:
    """The run that made the policy; None where unknown."""

    policy: str
    run: str | None
    step: int | None
    seed: int | None
    git_revision: str | None
    config_sha256: str | None
    reward_scale: float | None
    """Divisor of the reward normalization when the policy was saved, None without normalization: it converts the
    critic's values to the sim's own rewards."""
    sim: str | None = None
    """Sim that the policy was trained on, e.g. "mujoco/peg-insert"."""
    sim_options: tuple[str, ...] = ()
    """Its options, "name=value", but for those that name files of the machine."""


@dataclass(frozen=True)
class FileEntry:
    """Size and SHA-256 (lower-case hex) of one file of the bundle."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class BundleReflex:
    """Reflex of the servo: where the risk graph finds the policy's action risky, a recovery action is sent instead.

    Args:
        threshold: risk above which it acts, 0 to 1.
        recovery: action that it sends, per element, within the limits.
        observation: observation of which the graph reads some elements.
        columns: names of these elements, in the graph's order.
        period_s: seconds between two evaluations, as in training.
    """

    threshold: float
    recovery: tuple[float, ...]
    observation: str
    columns: tuple[str, ...]
    period_s: float


@dataclass(frozen=True)
class BundleSteering:
    """Steering of a policy: a graph of its own chooses the noise from which the policy graph begins.

    The steering graph has the policy graph's inputs but for "noise", and where it draws, standard normal numbers of
    that name and shape. Its output "steered_noise" takes the place of the policy graph's noise.

    Args:
        bound: largest magnitude of an element of the chosen noise.
        draws: it draws with standard normal numbers; else the noise is a function of the observation alone.
    """

    bound: float
    draws: bool


@dataclass(frozen=True)
class Manifest:
    """Contents of `manifest.json`. `bundle_id` is the SHA-256 of all other fields, which reveals edits."""

    schema_version: int
    bundle_id: str
    created: str
    io: Io
    timing: Timing
    action: Action
    safety: Safety
    sampler: ManifestSampler
    transforms: TransformGroup
    graphs: Graphs
    golden: Golden
    parity: Parity
    training: Training
    versions: dict[str, str]
    files: dict[str, FileEntry]
    reflex: BundleReflex | None = None
    """Reflex of the servo; None, and not written, in bundles without one."""
    steer: BundleSteering | None = None
    """Steering in a graph of its own; None, and not written, in bundles without one."""

    @property
    def observations(self) -> tuple[Port, ...]:
        """The inputs that the robot supplies, in order."""
        return tuple(port for port in self.io.inputs if port.role == "observation")

    @property
    def prefix(self) -> tuple[Port, ...]:
        """The inputs that hold committed actions and their mask, which the runtime supplies; none in most bundles."""
        return tuple(port for port in self.io.inputs if port.role in ("prefix", "prefix_mask"))

    @property
    def states(self) -> tuple[Port, ...]:
        """The inputs of recurrent state, which the runtime keeps between inferences; none in most bundles."""
        return tuple(port for port in self.io.inputs if port.role == "state_in")

    @property
    def read(self) -> tuple[Port, ...]:
        """The inputs that the policy reads as observations, in order: the robot's and the committed actions."""
        return tuple(port for port in self.io.inputs if port.role in ("observation", "prefix", "prefix_mask"))

    def draws_noise(self, steered: bool) -> bool:
        """Tell whether inferences draw standard normal numbers.

        Args:
            steered: the steering graph chooses the policy's noise, where the bundle has one.
        """
        if self.sampler.noise_policy == "steer" and self.steer is not None:
            return self.steer.draws or not steered
        return self.sampler.noise_policy == "counter"

    @property
    def action_range(self) -> np.ndarray:
        """(A,) float64: high - low of each action element."""
        return np.asarray(self.safety.high, np.float64) - np.asarray(self.safety.low, np.float64)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; optional fields at their defaults are left out, to keep the identity of old manifests."""
        data = strict.to_json(self)
        for port in (*data["io"]["inputs"], *data["io"]["outputs"]):
            if port["source_dtype"] == "float32":
                del port["source_dtype"]
            if not port["words"]:
                del port["words"]
            if port["max_still_s"] is None:
                del port["max_still_s"]
        if data["action"]["choices"] is None:
            del data["action"]["choices"]
        if self.reflex is None:
            del data["reflex"]
        if self.steer is None:
            del data["steer"]
        if not self.safety.start:
            del data["safety"]["start"]
        if self.training.sim is None:
            # bundles of version 0.1 have neither field, and keep their id
            del data["training"]["sim"], data["training"]["sim_options"]
        return data

    def to_bytes(self) -> bytes:
        """The text of `manifest.json`."""
        return strict.dumps(self.to_json())


def identity(manifest: Manifest) -> str:
    """SHA-256 (hex) of the canonical JSON of all fields except `bundle_id`."""
    data = manifest.to_json()
    del data["bundle_id"]
    return hashlib.sha256(strict.canonical(data)).hexdigest()


def sealed(manifest: Manifest) -> Manifest:
    """Check the manifest and fill in its `bundle_id`.

    Raises:
        DataError: its fields contradict each other.
    """
    out = replace(manifest, bundle_id=identity(manifest))
    check(out)
    return out


def parse(text: bytes) -> Manifest:
    """Read the text of `manifest.json`.

    Raises:
        DataError: not JSON, another schema version, an unknown, missing or mistyped field, contradicting fields, or
            an identity that does not match the content.
    """
    data = strict.loads(text, MANIFEST_FILE)
    version = data.get("schema_version")
    if type(version) is not int or version < 1:
        raise DataError(f"{MANIFEST_FILE}: schema_version is {version!r}: expected {SCHEMA_VERSION}")
    if version > SCHEMA_VERSION:
        raise DataError(
            f"{MANIFEST_FILE}: schema_version is {version}: this robotrl reads up to {SCHEMA_VERSION}; "
            "install a newer robotrl or export the bundle again"
        )
    manifest = strict.from_json(Manifest, data, "manifest")
    check(manifest)
    if manifest.bundle_id != identity(manifest):
        raise DataError("manifest.bundle_id does not match the manifest: the file was altered after export")
    return manifest
