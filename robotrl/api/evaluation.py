"""Success rate of the policy at a path: a run, a checkpoint, or a bundle."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from robotrl.api.inspection import kind_of
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.runtime import Controller, Inferred
from robotrl.deploy.servo.reflex import RiskGuard, guard_of
from robotrl.deploy.state import State
from robotrl.errors import ConfigError, check_number, unknown
from robotrl.fn.random.keyed_noise import decision_key
from robotrl.policies.guided import GuidedCfg
from robotrl.registry import check_num_envs, make_sim, sim_options
from robotrl.rollout.candidates import CandidateActor
from robotrl.rollout.compatibility import check_fit, check_words
from robotrl.rollout.device_wrapper import on_device
from robotrl.rollout.evaluate import Actor, EvalResult, Turn, actor_for, aligned, at_rest, evaluate
from robotrl.rollout.overlap import Join, Overlap
from robotrl.run.directory import Run
from robotrl.run.policy_checkpoint import describe, load_policy
from robotrl.spec import Spec, Split, VecSim, committed_steps
from robotrl.spec.actuation import HasServoClock, ServoTick
from robotrl.spec.json_fields import name_values
from robotrl.spec.sim_options import HasPerturb, HasPolicyOptions, carried_options, without_log_only
from robotrl.utils.devices import CPU, device_of

if TYPE_CHECKING:
    from torch import Tensor


MAX_LATENCY_MS = 10_000.0
"""Longest latency of an evaluation, ms."""
Infer = Callable[[dict[str, np.ndarray], int, State | None], Inferred]
"""Inference function: (observation without env axis, decision, recurrent state) to a chunk (H, A) in the sim's units
and the next state."""


class OneByOneActor:
    """An actor that infers one env at a time, as on the robot; each env executes its own chunk.

    The noise of a decision depends only on the seed, the start and the number of decisions in the episode; see
    `decision_key`. Envs whose episodes do not count stay at rest.

    Args:
        infer: the policy's inference function.
        keys: keys of the observations that it reads; a sim may have more, for the critic only.
        execute: number of actions of a chunk that are executed.
        action_spec: the sim's action spec.
        num_envs: N.
        join: join of a chunk to the one before it; None where chunks begin anew.
    """

    def __init__(
        self,
        infer: Infer,
        keys: Sequence[str],
        execute: int,
        action_spec: Spec,
        num_envs: int,
        join: Join | None = None,
    ) -> None:
        self._infer = infer
        self._keys = tuple(keys)
        self._execute = execute = execute if join is None else join.executed
        self._rest = at_rest(action_spec)
        self._chunk = np.zeros((num_envs, execute, len(self._rest)), np.float32)
        self._cursor = np.full(num_envs, execute)
        self._decision = np.zeros(num_envs, np.int64)
        self._state: list[State | None] = [None] * num_envs
        """Recurrent state of each env after its last decision; None before the first of an episode."""
        self._join = join

    def act(self, obs: dict[str, Tensor], turn: Turn) -> Tensor:
        """Actions (N, A)."""
        began, counted = turn.started.numpy(), turn.counted.numpy()
        if self._join is not None:
            self._join.begin(torch.nonzero(turn.started).squeeze(1))
        self._cursor[began] = self._execute
        self._decision[began] = 0
        for env in np.flatnonzero(began).tolist():
            self._state[env] = None
        for env in np.flatnonzero(self._cursor >= self._execute).tolist():
            if counted[env]:
                self._chunk[env] = self._decide(obs, env, decision_key(int(turn.start[env]), int(self._decision[env])))
                self._decision[env] += 1
            else:
                self._chunk[env] = self._rest
            self._cursor[env] = 0
        actions = self._chunk[np.arange(len(self._cursor)), self._cursor]
        self._cursor += 1
        return torch.from_numpy(actions)

    def _decide(self, obs: dict[str, Tensor], env: int, key: int) -> np.ndarray:
        """Actions (h, A) to execute for an env."""
        if self._join is None:
            return self._chunk_of(env, {name: obs[name][env].numpy() for name in self._keys}, key)[: self._execute]
        only = torch.tensor([env])
        given = self._join.given({name: obs[name] for name in self._keys}, only)
        chunk = self._chunk_of(env, {name: value[0].numpy() for name, value in given.items()}, key)
        return self._join.take(obs, only, torch.from_numpy(chunk[None]))[0].numpy()

    def _chunk_of(self, env: int, obs: dict[str, np.ndarray], key: int) -> np.ndarray:
        chunk, self._state[env] = self._infer(obs, key, self._state[env])
        return chunk

    def planned(self, env: int) -> Tensor:
        """(h, A) rest of an env's chunk: the action just given, and those that follow."""
        return torch.from_numpy(self._chunk[env, self._cursor[env] - 1 :])


class GuardRows:
    """A bundle's reflex in all envs of a sim with a servo clock; implements `Reflex`.

    Args:
        guard: the reflex.
        columns: places of what it reads in the sim's measurements.
    """

    def __init__(self, guard: RiskGuard, columns: list[int]) -> None:
        self._guard, self._columns = guard, columns

    def act(self, tick: ServoTick) -> Tensor:
        """See `Reflex`."""
        sent, measured = tick.action.clone(), tick.obs[:, self._columns].numpy()
        for row, action in enumerate(tick.action.numpy()):
            recovery = self._guard.judge(measured[row], action)
            if recovery is not None:
                sent[row] = torch.from_numpy(recovery)
        return sent

    def felt(self, obs: Tensor, hazard: Tensor) -> None:
        """See `Reflex`; what an action led to is of no use to it."""


class GuardedBundleActor(OneByOneActor):
    """A bundle with a reflex as an actor; `evaluate` has its reflex act as well."""

    def __init__(self, rows: GuardRows, *given: Any) -> None:
        super().__init__(*given)
        self._rows = rows

    def reflex(self) -> GuardRows:
        """See `HasReflex`."""
        return self._rows


def bundle_actor(path: Path, sim: VecSim, seed: int, late_steps: int = 0) -> OneByOneActor:
    """Make an actor that runs a bundle in all envs of a sim; see `PolicyActor` for `late_steps`.

    Raises:
        ConfigError: the bundle and the sim have different vocabularies, or its reflex reads what the sim's servo does
            not measure.
    """
    controller = Controller.load(path, seed=seed)
    manifest = controller.manifest
    check_words({port.name: port.spec for port in manifest.observations if port.words}, sim)
    keys = [port.name for port in manifest.read]
    timing, width = manifest.timing, len(manifest.action.names)
    join: Join | None = None
    if timing.rtc_mode == "guided":
        join = Overlap(sim.num_envs, timing.chunk_length, timing.rtc_max_delay_steps, width, CPU)
    elif not timing.rtc_max_delay_steps:
        join = aligned(timing.execute, late_steps)
    shapes = {port.name: port.shape for port in manifest.observations if port.stack > 1}

    def infer(obs: Mapping[str, np.ndarray], decision: int, state: State | None) -> Inferred:
        # such a sim gives the last steps as one vector
        return controller.infer_from({k: x.reshape(shapes.get(k, x.shape)) for k, x in obs.items()}, decision, state)

    given = infer, keys, timing.execute, sim.action_spec, sim.num_envs, join
    guard = guard_of(manifest, controller.bundle.risk)
    if guard is None or manifest.reflex is None or not isinstance(sim, HasServoClock):
        return OneByOneActor(*given)
    names = list(sim.servo_spec.names)
    for name in manifest.reflex.columns:
        if name not in names:
            raise unknown(f"bundle {path}: reflex.columns", name, names)
    return GuardedBundleActor(GuardRows(guard, [names.index(name) for name in manifest.reflex.columns]), *given)


class Comparison(NamedTuple):
    """A bundle and the policy that it was exported from, evaluated on the same starts with the same noise."""

    policy: EvalResult
    bundle: EvalResult
    flipped: list[int]
    """Starts on which exactly one of the two succeeded."""


def compare(
    policy_path: Path,
    bundle_path: Path,
    *,
    sim: str | None = None,
    episodes: int = 256,
    seed: int = 0,
    num_envs: int = 64,
    options: Mapping[str, Any] | None = None,
    late_steps: int = 0,
) -> Comparison:
    """Evaluate a bundle and its policy on the first held-out starts of split test.

    Both are evaluated by `evaluate_path` with the same noise for each start and decision.

    Args:
        policy_path: the run or checkpoint that the bundle was exported from.
        bundle_path: the bundle.
        sim: name of the sim; None takes the one that the run was trained on.
        episodes: number of starts.
        seed: seed of the noise of both.
        num_envs: number of parallel envs.
        options: options of the sim by name, which override those of the run.
        late_steps: control steps by which the sim delays actions, where chunks are joined; see `PolicyActor`.

    Raises:
        ConfigError: the sim is unknown or cannot be inferred from the path.
        DataError: nothing readable is at a path.
    """
    check_num_envs("num_envs", num_envs)
    results: list[EvalResult] = []
    for path in (policy_path, bundle_path):
        vec = make_sim_of(policy_path, sim, num_envs=min(num_envs, episodes), seed=seed, options=options)
        try:
            results.append(
                evaluate(
                    actor_of(path, vec, seed, late_steps=late_steps), vec, episodes=episodes, split="test", seed=seed
                )
            )
        finally:
            vec.close()
    policy, bundle = results
    return Comparison(policy, bundle, [int(i) for i in policy.ids[policy.success != bundle.success]])


def evaluate_path(
    path: Path,
    *,
    sim: str | None = None,
    episodes: int = 256,
    split: Split = "test",
    seed: int = 0,
    num_envs: int = 64,
    options: Mapping[str, Any] | None = None,
    device: str = "cpu",
    guided_steps: int = 0,
    late_steps: int = 0,
) -> EvalResult:
    """Evaluate the policy at a path on the first starts of a split, each run exactly once.

    Args:
        path: a run (its best checkpoint is taken), a checkpoint, or a bundle.
        sim: name of the sim; None takes the one that the run was trained on, with its options.
        episodes: number of starts.
        split: "test" for final results, "val" for model selection.
        seed: seed of the policy's noise.
        num_envs: number of parallel envs.
        options: options of the sim by name, which override those of the run.
        device: device of the policy; a bundle runs on the CPU only.
        guided_steps: overlap of the chunks that continue the ones before (`GuidedPolicy`); 0 for none.
        late_steps: control steps by which the sim delays actions, where chunks are joined; see `PolicyActor`.

    Raises:
        CapabilityError: chunks of this policy cannot be guided.
        ConfigError: the sim is unknown, cannot be inferred from the path, or does not match the policy; there are
            fewer starts; or the device is not available or not supported.
        DataError: nothing readable is at the path.
    """
    check_num_envs("num_envs", num_envs)
    refuse_dataset(path)
    vec = make_sim_of(path, sim, num_envs=min(num_envs, episodes), seed=seed, options=options, device=device)
    try:
        actor = actor_of(path, vec, seed, guided_steps=guided_steps, late_steps=late_steps)
        return evaluate(actor, vec, episodes=episodes, split=split, seed=seed)
    finally:
        vec.close()


def refuse_dataset(path: Path) -> None:
    """Check that the object at `path` can act.

    Raises:
        ConfigError: it is a dataset.
        DataError: nothing readable is there.
    """
    if kind_of(path) == "dataset":
        raise ConfigError(f"{path} is a dataset: expected a run, a checkpoint or a bundle")


def actor_of(
    path: Path, sim: VecSim, seed: int, candidates: int = 0, guided_steps: int = 0, late_steps: int = 0
) -> Actor:
    """Make the actor for a sim from `path`: a run, a checkpoint or a bundle.

    Args:
        path: path of the policy.
        sim: the sim that it acts in.
        seed: seed of its noise.
        candidates: chunks drawn besides the executed one at each decision, see `CandidateActor`; 0 for none.
        guided_steps: overlap of the chunks that continue the ones before, see `GuidedPolicy`; 0 for none.
        late_steps: control steps by which the sim delays actions, where chunks are joined; see `PolicyActor`.

    Raises:
        CapabilityError: candidates of a deterministic policy, or chunks that cannot be guided.
        ConfigError: the policy is not for this sim; candidates of a bundle, whose noise comes one row at a time; or
            guidance of a bundle, which has its own.
    """
    if kind_of(path) == "bundle":
        if candidates:
            raise ConfigError(f"candidates is {candidates}: {path} is a bundle, expected 0, or its run or checkpoint")
        if sim.device != CPU:
            raise ConfigError(f"device is {sim.device.type!r}: {path} is a bundle, expected cpu")
        if guided_steps:
            raise ConfigError(
                f"--guided-steps is {guided_steps}: {path} is a bundle, expected 0, or its run or checkpoint; a bundle"
                " has what it was exported with (robotrl export --guided-steps)"
            )
        return bundle_actor(path, sim, seed, late_steps)
    policy = with_guidance(load_policy(path), guided_steps).to(sim.device)
    check_fit(policy, sim)
    if candidates:
        return CandidateActor(policy, sim.num_envs, sim.device, seed, candidates)
    return actor_for(policy, sim, None, seed, late_steps)


def with_guidance(policy: Any, steps: int) -> Any:
    """The policy, whose chunks are guided by the last `steps` actions of the ones before; 0 leaves it as it is.

    Raises:
        CapabilityError: it has no denoising chain, or knows its committed actions by itself.
        ConfigError: its chunks are not longer than that.
    """
    return GuidedCfg(overlap=steps).build(policy) if steps else policy


def to_json(result: EvalResult) -> dict[str, Any]:
    """Result as JSON values, with every episode."""
    return {
        "success": result.rate._asdict(),
        **({} if result.rule is None else {"success_rule": result.rule._asdict()}),
        "mean_length": float(result.length.mean()),
        "mean_return": float(result.returns.mean()),
        "episodes": [
            {"id": int(i), "success": bool(s), "length": int(n), "return": float(r)}
            for i, s, n, r in zip(result.ids, result.success, result.length, result.returns, strict=True)
        ],
    }


def run_of(path: Path) -> Run | None:
    """The run at `path`, or the run of the checkpoint at `path`; None if there is none."""
    for folder in (path, *path.resolve().parents[:2]):
        if (folder / "run.json").exists():
            return Run.open(folder)
    return None


def make_sim_of(
    path: Path,
    sim: str | None,
    *,
    num_envs: int,
    seed: int,
    options: Mapping[str, Any] | None = None,
    device: str = "cpu",
) -> VecSim:
    """Make the sim that a run was trained on, with its options, or another sim by name.

    Args:
        path: path of the run, or of a checkpoint in it.
        sim: name of another sim; None takes the run's.
        num_envs: N.
        seed: seed of the sim.
        options: options of the sim by name, which override those of the run.
        device: device of its observations.

    Raises:
        ConfigError: no name was given, and `path` lies in no run that has one; the device is not available.
    """
    name, had = sim_of(path, sim)
    there = device_of(device)
    return on_device(make_sim(name, num_envs=num_envs, seed=seed, **{**had, **dict(options or {})}), there)


def sim_of(path: Path, sim: str | None) -> tuple[str, dict[str, Any]]:
    """Name and options of the sim that a run or bundle was trained on; of another sim those that it shares with it.

    A bundle whose robot goes from one action to the next in a straight line is evaluated in a sim that does.

    Raises:
        ConfigError: no name was given, and neither a run around `path` nor a bundle's manifest has one; or the sim
            cannot do that.
    """
    name, had = _trained_on(path, sim)
    if kind_of(path) != "bundle" or open_bundle(path).manifest.timing.interpolation == "hold":
        return name, had
    cfg = sim_options(name, had)
    if not isinstance(cfg, HasPerturb):
        raise ConfigError(f"{path} interpolates its actions linearly: sim {name!r} has no option perturb to do so")
    return name, {**had, "perturb": {**asdict(cfg.perturb), "interpolate_actions": True}}


def _trained_on(path: Path, sim: str | None) -> tuple[str, dict[str, Any]]:
    """See `sim_of`; without what a bundle asks for. Log-only mode is for training, not for judging."""
    run = run_of(path)
    trained_on: dict[str, Any] = {} if run is None else run.config.get("sim", {})
    if run is None and kind_of(path) == "bundle":
        training = open_bundle(path).manifest.training
        options = name_values(training.sim_options, "training.sim_options")
        trained_on = {"name": training.sim, "options": options} if training.sim is not None else {}
    name = sim if sim is not None else trained_on.get("name")
    if name is None:
        raise ConfigError(f"sim is missing: {path} does not name the one that it was trained on: expected --sim NAME")
    if run is None and name != trained_on.get("name") and name.startswith("gym/"):
        return name, {"actions": "scores"} if _acts_by_scores(path) else {}
    had = without_log_only(trained_on.get("options") or {})
    if name == trained_on.get("name") or not had:
        return name, had
    other = sim_options(name)
    # whether the sim of the run can be imported here matters only where the other one shares something with it
    shares = isinstance(other, HasPolicyOptions)
    return name, carried_options(sim_options(trained_on["name"]), other, had) if shares else {}


def _acts_by_scores(path: Path) -> bool:
    """True if the policy at a path outside any run outputs one score per value of a categorical action."""
    kind = kind_of(path)
    if kind == "bundle":
        names: Sequence[str] = open_bundle(path).manifest.action.names
    elif kind == "checkpoint":
        names = describe(path).description.get("action_spec", {}).get("names", ())
    else:
        return False
    return bool(names) and all(name.startswith("score_") for name in names)


def latency_options(
    path: Path, sim: str | None, options: Mapping[str, Any], latency_ms: float, guided_steps: int = 0
) -> dict[str, Any]:
    """Options of a sim in which each action of the policy at a path is executed `latency_ms` after its observation.

    A latency is met by whole control periods: one of 25 ms at 50 Hz costs two.

    Args:
        path: a run, checkpoint or bundle.
        sim: name of the sim; None takes the one that the run was trained on.
        options: options of the sim by name, which override those of the run; they stay but for the delay.
        latency_ms: time from an observation to the execution of the first action decided on it, 0 to 10,000 ms.
        guided_steps: overlap of the chunks where they are guided; 0 where they are not.

    Raises:
        ConfigError: a latency out of range, longer than the policy was trained for, a policy without a control
            period, or a sim that cannot delay actions.
        DataError: nothing readable is at the path.
    """
    check_number("--latency-ms", latency_ms, 0.0, MAX_LATENCY_MS)
    name, had = sim_of(path, sim)
    cfg = sim_options(name, {**had, **options})
    if not isinstance(cfg, HasPerturb):
        raise ConfigError(f"--latency-ms is {latency_ms:g}: sim {name!r} has no option perturb to delay actions with")
    period_s, most = _period_and_most(path)
    most = guided_steps or most
    if period_s is None:
        raise ConfigError(f"--latency-ms is {latency_ms:g}: {path} states no control period, expected a trained policy")
    # a latency of exactly n periods must not cost n + 1 by rounding
    steps = math.ceil(latency_ms / 1000.0 / period_s - 1e-6)
    if most and steps > most:
        raise ConfigError(
            f"--latency-ms is {latency_ms:g}, {steps} control periods: expected at most {most} of them,"
            f" {1000.0 * most * period_s:g} ms, for which the policy knows its committed actions"
        )
    late = {"action_delay_steps": steps, "draw_delay": False, "committed_steps": most}
    return {**options, "perturb": {**asdict(cfg.perturb), **late}}


def _period_and_most(path: Path) -> tuple[float | None, int]:
    """Control period of a policy, s, and the number of committed actions that it reads."""
    if kind_of(path) == "bundle":
        manifest = open_bundle(path).manifest
        return manifest.timing.control_period_s, manifest.timing.rtc_max_delay_steps
    found = describe(path).description
    while "observation_spec" not in found:
        found = found["base"]  # a policy over another one
    specs = {key: Spec.from_json(spec) for key, spec in found["observation_spec"].items()}
    return found["control_dt_s"], committed_steps(specs)
