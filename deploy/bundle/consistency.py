"""Consistency checks of a manifest: fields must agree with each other, and numbers must be usable.

A bundle may have been edited by a careless tool and sealed again, so that its hashes are right. If two fields
contradict each other, the right one is unknown, so the bundle is refused and the field is named.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from robotrl.errors import DataError, short
from robotrl.spec import LONGEST_HISTORY, is_picture
from robotrl.spec.checks import NUMBERS
from robotrl.transforms import Clip, Transform, composed_affine

if TYPE_CHECKING:
    from robotrl.deploy.bundle.manifest import Limit, Manifest, Port

MIN_GOLDEN_TICKS = 64
MAX_GOLDEN_TICKS = 100_000
NOISE = "noise"
"""Role and name of the sampler's noise."""
INPUT_ROLES = ("observation", "noise", "state_in", "prefix", "prefix_mask")
MAX_ACTIONS = 1024
"""Most elements of an action; the limit of the link to a robot."""
MAX_CHUNK = 4096
LARGEST = 1e12
"""Largest magnitude of a limit or a transform's constant; float32 holds it, its square, and sums of many."""
LONGEST_S = 3600.0
"""Longest time in a field, in seconds."""
MAX_BAD_TICKS = 100_000
_FLOAT32 = float(np.finfo(np.float32).max)
_SAME = 1e-9
_SHA256 = re.compile("[0-9a-f]{64}")
_SOLVERS = {"none": "none", "flow": "euler", "diffusion": "ddim"}


def check(manifest: Manifest) -> None:
    """Check all fields of a manifest against each other.

    Raises:
        DataError: names the first inconsistent field.
    """
    _check_timing(manifest)
    _check_ports(manifest)
    _check_prefix(manifest)
    _check_sampler(manifest)
    _check_action(manifest)
    _check_transforms(manifest)
    _check_safety(manifest)
    _once("safety.limits", [name for limit in manifest.safety.limits for name in limit.names])
    for i, limit in enumerate(manifest.safety.limits):
        _check_limit(f"safety.limits[{i}]", limit, manifest)
    _check_start(manifest)
    _check_reflex(manifest)
    _check_files(manifest)


def require(holds: bool, field: str, value: object, expected: str) -> None:
    """Refuse a field of the manifest unless a condition holds.

    Raises:
        DataError: `holds` is false.
    """
    if not holds:
        raise DataError(f"manifest.{short(field)} is {short(repr(value))}: expected {short(expected)}")


def _check_ports(manifest: Manifest) -> None:
    inputs, outputs = manifest.io.inputs, manifest.io.outputs
    for side, ports in (("inputs", inputs), ("outputs", outputs)):
        for port in ports:
            _check_port(port)
            allowed = (port.role in INPUT_ROLES) == (side == "inputs")
            require(allowed, f"io.{side} {port.name!r} role", port.role, f"a role of {side}")
        _once(f"io.{side}", [port.name for port in ports])
    require(bool(manifest.observations), "io.inputs", [], "at least one observation")
    states = {port.name: port.shape for port in inputs if port.role == "state_in"}
    fed = {port.feeds: port.shape for port in outputs if port.role == "state_out"}
    count = sum(port.role == "state_out" for port in outputs)
    require(fed == states and count == len(states), "io.outputs of role 'state_out'", fed, f"to feed {states}")
    newer = not states or manifest.schema_version >= 4
    require(newer, "schema_version", manifest.schema_version, "4 or more, with recurrent state")
    for port in (*inputs, *outputs):
        require(port.feeds is None or port.role == "state_out", f"io {port.name!r} feeds", port.feeds, "null")
    chunk = (manifest.timing.chunk_length, len(manifest.action.names))
    for role in ("actions", "raw_action"):
        shapes = [port.shape for port in outputs if port.role == role]
        require(shapes == [chunk], f"io.outputs of role {role!r}", shapes, f"one, of shape {chunk}")
    noises = [port.shape for port in inputs if port.role == "noise"]
    expected = [] if manifest.sampler.noise_shape is None else [manifest.sampler.noise_shape]
    require(noises == expected, "io.inputs of role 'noise'", noises, f"{expected} as sampler.noise_shape says")
    for port in inputs:
        # it is found by its name
        named = (port.name == NOISE) == (port.role == NOISE)
        require(
            named, f"io.inputs {port.name!r} role", port.role, f"{NOISE!r} of an input of that name, and of no other"
        )


def _check_start(manifest: Manifest) -> None:
    """Check the start envelope: ranges of known elements, each once."""
    start = manifest.safety.start
    newer = not start or manifest.schema_version >= 2
    require(newer, "schema_version", manifest.schema_version, "2 or more, with safety.start")
    _once("safety.start", [name for limit in start for name in limit.names])
    known = {name for port in manifest.observations for name in port.names}
    for i, limit in enumerate(start):
        _check_limit(f"safety.start[{i}]", limit, manifest)
        require(limit.quantity == "observation", f"safety.start[{i}].quantity", limit.quantity, "'observation'")
        for name in limit.names:
            require(name in known, f"safety.start[{i}] names", name, "an element of an observation")


def _check_reflex(manifest: Manifest) -> None:
    """Check the servo's reflex: its graph, elements that it reads, and an action that may be sent."""
    reflex, graph = manifest.reflex, manifest.graphs.risk
    require((reflex is None) == (graph is None), "graphs.risk", graph, "a graph exactly where there is a reflex")
    if reflex is None:
        return
    require(manifest.schema_version >= 3, "schema_version", manifest.schema_version, "3 or more, with a reflex")
    require(0 <= reflex.threshold <= 1, "reflex.threshold", reflex.threshold, "0 to 1")
    ports = {port.name: port for port in manifest.observations if len(port.measured_shape) == 1 and not port.words}
    known = reflex.observation in ports
    require(known, "reflex.observation", reflex.observation, f"a vector of numbers, one of {sorted(ports)}")
    require(bool(reflex.columns), "reflex.columns", reflex.columns, "one or more")
    _once("reflex.columns", reflex.columns)
    for name in reflex.columns:
        require(name in ports[reflex.observation].names, "reflex.columns", name, "an element of its observation")
    width, safety = len(manifest.action.names), manifest.safety
    require(len(reflex.recovery) == width, "reflex.recovery", reflex.recovery, f"{width} entries")
    for name, low, x, high in zip(manifest.action.names, safety.low, reflex.recovery, safety.high, strict=True):
        require(low <= x <= high, f"reflex.recovery of {name!r}", x, f"{low} to {high}, the limits of safety")
    require(manifest.action.choices is None, "reflex", "given", "null for choices")
    period = manifest.timing.control_period_s
    require(1e-5 <= reflex.period_s <= period, "reflex.period_s", reflex.period_s, f"1e-5 s to {period} s")
    interpolation = manifest.timing.interpolation
    require(interpolation == "hold", "timing.interpolation", interpolation, "'hold' with a reflex")


def _check_prefix(manifest: Manifest) -> None:
    """Check the inputs of committed actions: both or none, as long as the longest delay of the policy."""
    roles = sorted(port.role for port in manifest.prefix)
    joined = manifest.timing.rtc_mode != "none"
    expected = ["prefix", "prefix_mask"] if joined else []
    require(roles == expected, "io.inputs of committed actions", roles, f"{expected} as timing.rtc_mode says")
    if not joined:
        return
    require(
        manifest.schema_version >= 2, "schema_version", manifest.schema_version, "2 or more, with committed actions"
    )
    steps, width = manifest.timing.rtc_max_delay_steps, len(manifest.action.names)
    sizes = {"prefix": (steps * width,), "prefix_mask": (steps,)}
    for port in manifest.prefix:
        wanted = sizes[port.role]
        require(port.shape == wanted, f"io {port.name!r} shape", port.shape, f"{wanted} for {steps} steps of delay")


def _check_port(port: Port) -> None:
    where = f"io {port.name!r}"
    require(bool(port.shape) and all(n >= 1 for n in port.shape), f"{where} shape", port.shape, "positive sizes")
    require(port.dtype == "float32", f"{where} dtype", port.dtype, "float32")
    require(port.source_dtype in NUMBERS, f"{where} source_dtype", port.source_dtype, "a type of numbers")
    for field in ("names", "units", "low", "high"):
        found = len(getattr(port, field))
        require(found == port.shape[-1], f"{where} {field} count", found, f"{port.shape[-1]}, as its shape says")
    _once(f"{where} names", port.names)
    require(port.stack >= 1, f"{where} stack", port.stack, "1 or more")
    stacked = port.stack == 1 or (len(port.shape) > 1 and port.shape[0] == port.stack)
    require(stacked, f"{where} stack", port.stack, f"the first of its sizes {port.shape}")
    vectors = port.stack == 1 or (port.role == "observation" and len(port.shape) == 2 and not port.words)
    require(vectors, f"{where} stack", port.stack, "1, or an observation of vectors of numbers")
    require(port.stack <= LONGEST_HISTORY, f"{where} stack", port.stack, f"at most {LONGEST_HISTORY}")
    for name, low, high in zip(port.names, port.low, port.high, strict=True):
        bounds = [b for b in (low, high) if b is not None]
        require(all(abs(b) <= _FLOAT32 for b in bounds), f"{where} bounds of {name!r}", bounds, "float32 numbers")
        ordered = low is None or high is None or low <= high
        require(ordered, f"{where} low of {name!r}", low, f"at most its high, {high}")
    require(len(port.words) != 1, f"{where} words", port.words, "one word or more besides the empty one")
    last = len(port.words) - 1 if port.words else 255 if is_picture(port.spec) else math.inf
    within = all(0 <= b <= last for b in (*port.low, *port.high) if b is not None) or math.isinf(last)
    require(within, f"{where} bounds", (port.low, port.high), f"within 0 to {last}")
    still = port.max_still_s
    positive = still is None or (0 < still <= LONGEST_S and port.role == "observation")
    require(positive, f"{where} max_still_s", still, f"more than 0, at most {LONGEST_S:g}, of an observation")


def _check_timing(manifest: Manifest) -> None:
    timing = manifest.timing
    require(0.0 < timing.control_period_s <= 10.0, "timing.control_period_s", timing.control_period_s, "0 to 10 s")
    # a shorter period is no control period and near the clock's resolution
    require(timing.control_period_s >= 1e-5, "timing.control_period_s", timing.control_period_s, "1e-5 s or more")
    length, execute = timing.chunk_length, timing.execute
    require(1 <= length <= MAX_CHUNK, "timing.chunk_length", length, f"1 to {MAX_CHUNK}")
    require(1 <= execute <= length, "timing.execute", execute, "1 to chunk_length")
    for field in ("latency_budget_s", "max_observation_age_s"):
        value = getattr(timing, field)
        require(0 < value <= LONGEST_S, f"timing.{field}", value, f"more than 0, at most {LONGEST_S:g}")
    delay = timing.rtc_max_delay_steps
    require(0 <= delay <= length, "timing.rtc_max_delay_steps", delay, "0 to chunk_length")
    require(delay == 0 or timing.rtc_mode != "none", "timing.rtc_max_delay_steps", delay, "0 where rtc_mode is 'none'")
    overlaps = timing.rtc_mode != "guided" or execute + delay == length
    require(overlaps, "timing.execute", execute, f"{length - delay}, chunk_length without the overlap of guided chunks")


def _check_sampler(manifest: Manifest) -> None:
    sampler, noisy = manifest.sampler, manifest.sampler.noise_shape is not None
    policy = sampler.noise_policy
    require((policy is not None) == noisy, "sampler.noise_policy", policy, "a policy exactly when there is noise")
    require((sampler.kind != "none") == noisy, "sampler.kind", sampler.kind, "'none' exactly when there is no noise")
    solver = _SOLVERS[sampler.kind]
    require(sampler.solver == solver, "sampler.solver", sampler.solver, f"{solver!r} for kind {sampler.kind!r}")
    drawn = "normal" if noisy else "none"
    require(
        sampler.distribution == drawn, "sampler.distribution", sampler.distribution, f"{drawn!r} as noise_shape says"
    )
    require(0 <= sampler.steps <= MAX_CHUNK, "sampler.steps", sampler.steps, f"0 to {MAX_CHUNK}")
    require(noisy or sampler.steps == 0, "sampler.steps", sampler.steps, "0 without noise")
    graph, steer = manifest.graphs.steer, manifest.steer
    no_graph = policy == "steer" and graph is None
    require(not no_graph, "sampler.noise_policy", policy, "a steering graph in graphs.steer")
    require((steer is None) == (graph is None), "graphs.steer", graph, "a graph exactly where there is steering")
    if steer is None:
        return
    require(policy == "steer", "sampler.noise_policy", policy, "'steer' with a steering graph")
    require(manifest.schema_version >= 5, "schema_version", manifest.schema_version, "5 or more, with a steering graph")
    require(0 < steer.bound <= LARGEST, "steer.bound", steer.bound, f"more than 0, at most {LARGEST:g}")
    require(not manifest.states, "steer", "given", "null with recurrent state")


def _check_action(manifest: Manifest) -> None:
    action = manifest.action
    width = len(action.names)
    require(1 <= width <= MAX_ACTIONS, "action.names count", width, f"1 to {MAX_ACTIONS}")
    for field in ("units", "scale", "offset", "stiffness", "damping", "default_pose"):
        values = getattr(action, field)
        require(values is None or len(values) == width, f"action.{field}", values, f"{width} entries")
    for port in manifest.io.outputs:
        if port.role in ("actions", "raw_action"):
            where = f"as io {port.name!r} says, {port.names}"
            require(port.names == action.names, "action.names", action.names, where)
        if port.role == "actions":
            require(port.units == action.units, "action.units", action.units, f"as io {port.name!r} says, {port.units}")
        if port.role == "raw_action":
            require(set(port.units) == {"1"}, f"io {port.name!r} units", port.units, "'1' throughout, it is normalised")
    for field in ("scale", "offset", "default_pose"):
        _usable(f"action.{field}", getattr(action, field) or ())
    _check_choices(manifest)
    for field in ("stiffness", "damping"):
        values = getattr(action, field) or ()
        _usable(f"action.{field}", values)
        require(min(values, default=0.0) >= 0, f"action.{field}", values, "0 or more")


def _check_choices(manifest: Manifest) -> None:
    """Check that discrete actions are sent unchanged: no scaling, blending or limits that give an invalid choice."""
    action, safety = manifest.action, manifest.safety
    require(
        (action.choices is None) == (action.kind != "choice"),
        "action.choices",
        action.choices,
        f"numbers of choices exactly where the kind is 'choice', and it is {action.kind!r}",
    )
    if action.choices is None:
        return
    require(len(action.choices) == len(action.names), "action.choices", action.choices, f"{len(action.names)} entries")
    require(min(action.choices) >= 2, "action.choices", action.choices, "2 or more for each element")
    for i, count in enumerate(action.choices):
        stated = [safety.low[i], safety.high[i]]
        require(stated == [0, count - 1], f"safety limits of {action.names[i]!r}", stated, f"0 to {count - 1}")
        require(safety.neutral[i] in range(count), "safety.neutral", safety.neutral, "numbers of choices")
    interpolation = manifest.timing.interpolation
    require(interpolation == "hold", "timing.interpolation", interpolation, "'hold' for choices")
    require(safety.max_step is None, "safety.max_step", safety.max_step, "null for choices")
    require(safety.ramp_in_s == 0, "safety.ramp_in_s", safety.ramp_in_s, "0 for choices")
    outputs = [t for t in manifest.transforms.outputs if t.key == "action"]
    require(not outputs, "transforms.outputs", len(outputs), "none for choices")
    for port in manifest.io.outputs:
        if port.role == "actions":
            stated = list(zip(port.low, port.high, strict=True))
            wanted = [(0, count - 1) for count in action.choices]
            require(stated == wanted, f"io {port.name!r} bounds", stated, f"{wanted} as action.choices says")


def _check_transforms(manifest: Manifest) -> None:
    """Check transforms against their ports, and the action's scale and offset against the transforms."""
    widths = {port.name: port.stack * port.shape[-1] for port in manifest.read}
    stacked = {port.name for port in manifest.read if port.stack > 1}
    width = len(manifest.action.names)
    for side, known in (("inputs", widths), ("outputs", {"action": width})):
        transforms: tuple[Transform, ...] = getattr(manifest.transforms, side)
        for i, transform in enumerate(transforms):
            where = f"transforms.{side}[{i}]"
            require(transform.key in known, f"{where}.key", transform.key, f"one of {sorted(known)}")
            inside = transform.where == "graph" or transform.key not in stacked
            require(inside, f"{where}.where", transform.where, f"'graph', since {transform.key!r} is stacked")
            for values in transform.constants:
                count = known[transform.key]
                require(len(values) == count, f"{where} entries", len(values), f"{count}, as {transform.key!r} has")
                _usable(where, values)
            if isinstance(transform, Clip):
                ordered = all(low <= high for low, high in zip(*transform.constants, strict=True))
                require(ordered, f"{where}.low", transform.low, f"at most its high {transform.high}")
    late = [t.where == "host" for t in manifest.transforms.outputs]
    early = [t.where != "host" for t in manifest.transforms.inputs]
    for side, places in (("inputs", early), ("outputs", late)):
        require(places == sorted(places), f"transforms.{side} where", places, "'host' first in inputs, last in outputs")
    affine = composed_affine(manifest.transforms, "action", width)
    for field in ("scale", "offset"):
        stated, composed = getattr(manifest.action, field), getattr(affine, field)
        same = np.allclose(stated, composed, rtol=_SAME, atol=_SAME * max(map(abs, affine.scale)))
        require(same, f"action.{field}", stated, f"as transforms.outputs amount to, {composed}")


def _check_safety(manifest: Manifest) -> None:
    """Check limits against each other and against the action bounds, in float32, as they are sent."""
    action, safety, width = manifest.action, manifest.safety, len(manifest.action.names)
    for field in ("low", "high", "neutral", "max_step"):
        values = getattr(safety, field)
        require(values is None or len(values) == width, f"safety.{field}", values, f"{width} entries")
        _usable(f"safety.{field}", values or ())
    low, high, neutral = (np.asarray(v, np.float32) for v in (safety.low, safety.high, safety.neutral))
    require(bool((low < high).all()), "safety.low", safety.low, f"below safety.high {safety.high}")
    inside = bool(((low <= neutral) & (neutral <= high)).all())
    require(inside, "safety.neutral", safety.neutral, "within the limits")
    steps = np.asarray(safety.max_step if safety.max_step is not None else (1.0,), np.float32)
    require(bool((steps > 0).all()), "safety.max_step", safety.max_step, "more than 0")
    bad = safety.bad_ticks_to_damp
    require(1 <= bad <= MAX_BAD_TICKS, "safety.bad_ticks_to_damp", bad, "1 or more")
    require(0 <= safety.ramp_in_s <= LONGEST_S, "safety.ramp_in_s", safety.ramp_in_s, f"0 to {LONGEST_S:g}")
    wrong_hold = safety.hold == "last" and action.kind != "position"
    require(not wrong_hold, "safety.hold", safety.hold, f"'neutral' for actions of kind {action.kind!r}")
    for port in manifest.io.outputs:
        if port.role == "actions":
            for i, name in enumerate(port.names):
                least, most = port.low[i], port.high[i]
                within = (least is None or low[i] >= np.float32(least)) and (
                    most is None or high[i] <= np.float32(most)
                )
                stated = [safety.low[i], safety.high[i]]
                require(within, f"safety limits of {name!r}", stated, f"within the bounds of io, [{least}, {most}]")
    for i, clip in enumerate(manifest.transforms.outputs):
        if isinstance(clip, Clip):
            meet = all(a <= d and c <= b for a, b, c, d in zip(clip.low, clip.high, low, high, strict=True))
            require(meet, f"transforms.outputs[{i}]", [clip.low, clip.high], "a range that meets the limits of safety")


def _check_limit(where: str, limit: Limit, manifest: Manifest) -> None:
    for field in ("units", "low", "high"):
        count = len(getattr(limit, field))
        require(count == len(limit.names), f"{where}.{field}", count, f"{len(limit.names)} entries")
    units: dict[str, set[str]] = {}
    for port in manifest.observations:
        for name, unit in zip(port.names, port.units, strict=True):
            units.setdefault(name, set()).add(unit)
    for name, unit, low, high in zip(limit.names, limit.units, limit.low, limit.high, strict=True):
        finite = abs(low) <= _FLOAT32 and abs(high) <= _FLOAT32
        require(finite and low <= high, f"{where} of {name!r}", [low, high], "low at most high, float32 numbers")
        known = units.get(name, {unit})
        require(unit in known, f"{where} unit of {name!r}", unit, f"{sorted(known)} as io says")
    for port in manifest.observations:
        for name, least, most in zip(port.names, port.low, port.high, strict=True):
            if name in limit.names and units[name] == {limit.units[limit.names.index(name)]}:
                low, high = limit.low[limit.names.index(name)], limit.high[limit.names.index(name)]
                meet = (least is None or least <= high) and (most is None or low <= most)
                require(meet, f"{where} of {name!r}", [low, high], f"a range that meets the bounds [{least}, {most}]")


def _check_files(manifest: Manifest) -> None:
    golden = manifest.golden
    most = MAX_GOLDEN_TICKS
    require(golden.ticks >= MIN_GOLDEN_TICKS, "golden.ticks", golden.ticks, f"{MIN_GOLDEN_TICKS} or more")
    require(golden.ticks <= most, "golden.ticks", golden.ticks, f"at most {most}")
    require(0 <= golden.sequence_start <= golden.ticks, "golden.sequence_start", golden.sequence_start, "0 to ticks")
    require(0 < golden.tolerance <= 0.01, "golden.tolerance", golden.tolerance, "more than 0, at most 0.01")
    for field in ("samples", "max_abs", "max_rel"):
        value = getattr(manifest.parity, field)
        require(value >= 0, f"parity.{field}", value, "0 or more")
    graphs = [g for g in (manifest.graphs.policy, manifest.graphs.steer, manifest.graphs.risk) if g is not None]
    wanted = sorted([*graphs, golden.file])
    require(sorted(manifest.files) == wanted, "files", sorted(manifest.files), f"exactly {wanted}")
    for name, entry in manifest.files.items():
        require(entry.bytes >= 0, f"files[{name!r}].bytes", entry.bytes, "0 or more")
        whole = _SHA256.fullmatch(entry.sha256) is not None
        require(whole, f"files[{name!r}].sha256", entry.sha256, "64 lower-case hexadecimal digits")


def _usable(field: str, values: Sequence[float]) -> None:
    largest = max(map(abs, values), default=0.0)
    require(largest <= LARGEST, field, largest, f"numbers up to {LARGEST:g}, which float32 can compute with")


def _once(field: str, names: Sequence[str]) -> None:
    require(len(set(names)) == len(names), field, names, "each name once")
