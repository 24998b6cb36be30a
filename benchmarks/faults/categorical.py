"""Faults around categorical actions (algorithms, values, bundles), and around automatic compiling and stopping."""

from __future__ import annotations

import copy
import functools
import json
import math
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.faults.kind import Kind, Outcome, outcome_of
from robotrl import config as configs
from robotrl.algos.dppo import DppoCfg
from robotrl.algos.dsrl import DsrlCfg
from robotrl.algos.dsrl_na import DsrlNaCfg
from robotrl.algos.flow_noise import FlowNoiseCfg
from robotrl.algos.flow_sde import FlowSdeCfg
from robotrl.algos.reinflow import ReinFlowCfg
from robotrl.algos.rlpd import RlpdCfg
from robotrl.algos.sac import SacCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.deploy.bundle import manifest as schema
from robotrl.deploy.bundle import strict
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.bundle.match import RobotInfo, wire
from robotrl.deploy.control.safety import BAD, NONE, Mode, SafetyChain, limits_of
from robotrl.deploy.export import export
from robotrl.engine import compile_record
from robotrl.policies.beta import BetaCfg
from robotrl.policies.by_action import ByActionCfg
from robotrl.policies.categorical import CategoricalCfg, CategoricalPolicy
from robotrl.policies.diffusion import DiffusionCfg
from robotrl.policies.flow import FlowCfg
from robotrl.policies.gaussian import GaussianCfg
from robotrl.policies.shortcut import ShortcutCfg
from robotrl.policies.squashed import SquashedCfg
from robotrl.registry import PRESETS, make_sim
from robotrl.rollout.compatibility import check_fit
from robotrl.run.policy_checkpoint import policy_from_tree, policy_tree
from robotrl.spec import Spec
from robotrl.training import train
from robotrl.transforms import Clip, TransformGroup, bounds_to_unit, inverse

Rng = np.random.Generator
OBSERVED = {"state": Spec((3,), ("a", "b", "c"), ("1",) * 3, (-math.inf,) * 3, (math.inf,) * 3)}
NUMBERS: tuple[Any, ...] = (GaussianCfg, BetaCfg, SquashedCfg, FlowCfg, DiffusionCfg, ShortcutCfg)
"""Configs of policies with continuous actions."""
CONTINUOUS: tuple[Any, ...] = (
    SacCfg, RlpdCfg, DsrlCfg, DsrlNaCfg, DppoCfg, ReinFlowCfg, FlowSdeCfg, FlowNoiseCfg
)  # fmt: skip
"""Configs of algorithms for continuous actions only."""
CHOOSING_SIMS = ("gym/CartPole-v1", "gym/Acrobot-v1", "gym/MountainCar-v0")
NO_NUMBERS = (math.nan, math.inf, -math.inf)
ROWS, PERIOD_S = 1000, 0.05


def _choices(rng: Rng, width: int | None = None) -> Spec:
    """A categorical action of one to four elements, of two to six choices each."""
    counts = tuple(int(n) for n in rng.integers(2, 7, size=int(rng.integers(1, 5)) if width is None else width))
    size = len(counts)
    high = tuple(n - 1.0 for n in counts)
    return Spec((size,), tuple(f"part_{i}" for i in range(size)), ("1",) * size, (0.0,) * size, high, choices=counts)


def _numbers(rng: Rng) -> Spec:
    size = int(rng.integers(1, 5))
    low = tuple(float(x) for x in rng.uniform(-3, -0.1, size))
    high = tuple(float(x) for x in rng.uniform(0.1, 3, size))
    return Spec((size,), tuple(f"part_{i}" for i in range(size)), ("N",) * size, low, high)


def _outputs(spec: Spec) -> TransformGroup:
    to_unit = bounds_to_unit("action", spec.low, spec.high)
    return TransformGroup((), (inverse(to_unit), Clip("action", spec.low, spec.high)))


def _policy(rng: Rng, spec: Spec | None = None) -> CategoricalPolicy:
    torch.manual_seed(int(rng.integers(2**31)))
    cfg = CategoricalCfg(horizon=int(rng.integers(1, 4)), hidden=(8,))
    return CategoricalPolicy(OBSERVED, spec or _choices(rng), TransformGroup(), cfg)


def _policy_of_numbers(rng: Rng, folder: Path) -> Outcome:
    del folder
    spec, cfg = _choices(rng), NUMBERS[int(rng.integers(len(NUMBERS)))]()
    return outcome_of(lambda: cfg.build(OBSERVED, spec, _outputs(spec)))


def _categorical_on_numbers(rng: Rng, folder: Path) -> Outcome:
    del folder
    spec = _numbers(rng)
    cfg = (CategoricalCfg(), ByActionCfg(kind="categorical"))[int(rng.integers(2))]
    return outcome_of(lambda: cfg.build(OBSERVED, spec, TransformGroup()))


def _setting_of_another_kind(rng: Rng, folder: Path) -> Outcome:
    del folder
    std = float(rng.uniform(0.01, 3))
    kind = "".join(rng.choice(list("abcegilnorstu"), size=int(rng.integers(3, 12))))
    odd: Any = [
        ByActionCfg(initial_std=std),
        ByActionCfg(kind="gaussian", initial_std=std),
        ByActionCfg(kind=kind),  # pyright: ignore[reportArgumentType]
    ]
    cfg, spec = odd[int(rng.integers(3))], _choices(rng)
    return outcome_of(lambda: cfg.build(OBSERVED, spec, TransformGroup()))


def _algorithm_of_numbers(rng: Rng, folder: Path) -> Outcome:
    """A continuous-action algorithm on a categorical sim, through `robotrl train`; nothing may be left behind."""
    sim = CHOOSING_SIMS[int(rng.integers(len(CHOOSING_SIMS)))]
    algo = CONTINUOUS[int(rng.integers(len(CONTINUOUS)))]()
    policy: Any = (SquashedCfg(hidden=(8,)), FlowCfg(hidden=(8,)), CategoricalCfg(hidden=(8,)))[int(rng.integers(3))]
    run = folder / "run"
    cfg = TrainCfg(SimCfg(sim, num_envs=1), algo, policy, evaluation=EvalCfg(1, 2, 1, 0))
    found = outcome_of(lambda: train(cfg, run))
    return Outcome.SILENT if run.exists() else found


@functools.cache
def _sim(name: str) -> Any:
    return make_sim(name, num_envs=3)


def _no_choice(rng: Rng, folder: Path) -> Outcome:
    """An invalid categorical action of a sim: fractional, out of range, or not a number."""
    del folder
    sim = _sim(CHOOSING_SIMS[int(rng.integers(len(CHOOSING_SIMS)))])
    sim.reset(seed=0)
    count = sim.action_spec.choices[0]
    odd = (
        float(rng.integers(count)) + float(rng.uniform(0.001, 0.999)),
        float(count + rng.integers(100)),
        -float(rng.integers(1, 100)),
        float(NO_NUMBERS[int(rng.integers(3))]),
    )
    actions = torch.zeros(3, 1)
    actions[int(rng.integers(3)), 0] = odd[int(rng.integers(4))]
    return outcome_of(lambda: sim.step(actions))


def _spoilt_scores(rng: Rng, folder: Path) -> Outcome:
    """A NaN or infinite weight: nothing may be sampled, executed in a sim or saved in a checkpoint."""
    del folder
    policy = _policy(rng)
    with torch.no_grad():
        layers: Any = policy.net.layers
        last = layers[-1]
        last.bias[int(rng.integers(sum(policy.choices)))] = NO_NUMBERS[int(rng.integers(2))]
    obs = {"state": torch.randn(2, 3)}
    way = int(rng.integers(3))
    if way == 0:
        return outcome_of(lambda: policy.act(obs, None, torch.Generator().manual_seed(0)))
    if way == 1:
        return outcome_of(lambda: policy_tree(policy))
    # the deployed action is not a number, and must not be sent to a robot
    gone = not torch.isfinite(policy.deploy(obs, None).actions).all()
    return Outcome.CONTAINED if gone else Outcome.SILENT


def _other_choices(rng: Rng, folder: Path) -> Outcome:
    """A stored policy on a sim with other choices, or with continuous actions."""
    del folder
    sim = _Told(_choices(rng, 2))
    other = sim.action_spec
    while other == sim.action_spec:
        other = _choices(rng, 2)
    policy = _policy(rng, other)
    policy.observation_spec = dict(sim.observation_spec)
    if rng.random() < 0.3:
        sim.action_spec = replace(other, choices=None)
    return outcome_of(lambda: check_fit(policy, sim))  # pyright: ignore[reportArgumentType]


class _Told:
    """The part of a sim that `check_fit` reads."""

    control_dt_s = PERIOD_S

    def __init__(self, action_spec: Spec) -> None:
        self.action_spec = action_spec
        self.observation_spec = OBSERVED


def _altered_description(rng: Rng, folder: Path) -> Outcome:
    """A checkpoint's description with other choices and without its checksum, as in earlier versions."""
    del folder
    tree = policy_tree(_policy(rng))
    description = copy.deepcopy(tree["description"])
    spec = description["action_spec"]
    count = spec["choices"][0]
    wrong = (count + 1, max(1, count - 1), 0, -count, count + 0.5, str(count), None, [], {"n": count})
    value = wrong[int(rng.integers(len(wrong)))]
    way = int(rng.integers(4))
    if way == 0:
        del spec["choices"]
    elif way == 1:
        spec["choices"] = value
    else:
        spec["choices"] = [value, *spec["choices"][1:]]
        if way == 2 and isinstance(value, int) and value > 0:
            spec["high"] = [value - 1.0, *spec["high"][1:]]
    altered = {name: part for name, part in tree.items() if name != "description_sha256"}
    if spec == tree["description"]["action_spec"]:
        return Outcome.HARMLESS
    return outcome_of(lambda: policy_from_tree({**altered, "description": description}, "here"))


def _moved_weights(rng: Rng, folder: Path) -> Outcome:
    """Weights changed by a few percent, which hardly changes any choice."""
    del folder
    tree = policy_tree(_policy(rng))
    share = 1 + float(rng.uniform(0.02, 0.2)) * (1 if rng.random() < 0.5 else -1)
    moved = {name: share * value for name, value in tree["weights"].items()}
    return outcome_of(lambda: policy_from_tree({**tree, "weights": moved}, "here"))


@functools.cache
def _bundle() -> Path:
    """A bundle of a policy that chooses among 4 and 2, exported once per process."""
    torch.manual_seed(0)
    spec = Spec((2,), ("gear", "lamp"), ("1",) * 2, (0.0, 0.0), (3.0, 1.0), choices=(4, 2))
    policy = CategoricalCfg(hidden=(8,)).build(OBSERVED, spec, TransformGroup())
    with torch.no_grad():
        layers: Any = policy.net.layers
        last = layers[-1]
        last.weight *= 30
    path = Path(tempfile.mkdtemp(prefix="robotrl-faults-")) / "bundle"
    draw = np.random.default_rng(0)
    observations = {"state": draw.normal(size=(ROWS, 3)).astype(np.float32)}
    export(policy, path, observations=observations, samples=ROWS, control_dt_s=PERIOD_S)
    return path


def _tampered_bundle(rng: Rng, folder: Path) -> Outcome:
    """A bundle whose manifest states other choices, with a valid digest."""
    del folder
    data = json.loads((_bundle() / schema.MANIFEST_FILE).read_bytes())
    action, safety = data["action"], data["safety"]
    fraction, other = float(rng.uniform(0.01, 0.99)), int(rng.choice([0, 1, 3, 5, 9]))
    edits: list[tuple[dict[str, Any], str, Any]] = [
        (action, "choices", [other, 2]),
        (action, "choices", [4]),
        (action, "choices", [4, 2, 2]),
        (action, "choices", [4 + fraction, 2]),
        (action, "choices", None),
        (action, "kind", str(rng.choice(["delta", "position", "velocity", "torque"]))),
        (safety, "neutral", [fraction, 0.0]),
        (safety, "max_step", [1.0, 1.0]),
        (safety, "ramp_in_s", fraction),
        (safety, "high", [3.0 + fraction, 1.0]),
        (safety, "low", [fraction, 0.0]),
        (action, "scale", [2.0, 1.0]),
        (action, "offset", [fraction, 0.0]),
    ]
    node, field, value = edits[int(rng.integers(len(edits)))]
    node[field] = value
    return outcome_of(lambda: schema.sealed(strict.from_json(schema.Manifest, data, "manifest")))


def _other_robot(rng: Rng, folder: Path) -> Outcome:
    """A robot with continuous actions for a bundle with choices, or with other choices."""
    del folder
    manifest = open_bundle(_bundle()).manifest
    counts = (4, 2)
    while counts == (4, 2):
        counts = (int(rng.integers(2, 7)), int(rng.integers(2, 7)))
    high = tuple(n - 1.0 for n in counts)
    spec = Spec((2,), ("gear", "lamp"), ("1",) * 2, (0.0, 0.0), high, choices=counts)
    if rng.random() < 0.3:
        spec = replace(spec, high=(3.0, 1.0), choices=None)
    robot = RobotInfo(dict(OBSERVED), spec, PERIOD_S, PERIOD_S, None, range(0, 1))
    return outcome_of(lambda: wire(manifest, robot))


def _no_choice_on_a_robot(rng: Rng, folder: Path) -> Outcome:
    """A graph that outputs an invalid choice: the tick is bad, and the neutral choice is sent."""
    del folder
    limits = limits_of(open_bundle(_bundle()).manifest)
    chain = SafetyChain(limits)
    odd = (float(rng.uniform(0.01, 0.99)), float(rng.uniform(3.01, 9)), -float(rng.uniform(0.01, 9)), math.nan, 7.0)
    action = np.array([odd[int(rng.integers(len(odd)))], float(rng.integers(2))], np.float32)
    verdict = chain.decide(NONE, action)
    held = verdict.mode is not Mode.ACTIVE and bool(verdict.reason & BAD) and (verdict.action == limits.neutral).all()
    return Outcome.CONTAINED if held else Outcome.SILENT


def _damaged_record(rng: Rng, folder: Path) -> Outcome:
    """A file of recorded compile times that is truncated, altered or written by another program."""
    key = compile_record.shape_key(int(rng.integers(1000)))
    good = json.dumps({key: [40.0, None]}).encode()
    odd = [
        good[: int(rng.integers(len(good)))],
        rng.bytes(int(rng.integers(1, 60))),
        b"[" * int(rng.integers(10, 50_000)),
        json.dumps({key: [float(rng.choice([-1, 0, 1e9])), None]}).encode(),
        json.dumps({key: ["40", 1]}).encode(),
        b'{"%s": [NaN, null]}' % key.encode(),
        json.dumps([key]).encode(),
        b"",
    ]
    (folder / compile_record.RECORD).write_bytes(odd[int(rng.integers(len(odd)))])
    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    try:
        expected = compile_record.expected_s(key)
    except Exception:
        return Outcome.CRASHED
    finally:
        if before is None:
            del os.environ["TORCHINDUCTOR_CACHE_DIR"]
        else:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = before
    # the file is ignored: updates behave as if nothing had been compiled
    return Outcome.CONTAINED if expected == compile_record.USUAL_S else Outcome.SILENT


def _stop_rule(rng: Rng, folder: Path) -> Outcome:
    """A target return that no evaluation reaches, or that the run does not use."""
    del folder
    cfg: Any = PRESETS.load("gym-ppo")()
    number = float(rng.normal() * 100)
    word: Any = "".join(rng.choice(list("solvedx"), size=int(rng.integers(1, 9))))
    odd = [
        replace(cfg, stop_at_return=NO_NUMBERS[int(rng.integers(3))]),
        replace(cfg, stop_at_return=word if word != "solved" else "solve"),
        replace(cfg, stop_at_return=number, evaluation=replace(cfg.evaluation, score="success")),
        replace(cfg, algo=replace(cfg.algo, engine=word)),
    ]
    chosen = odd[int(rng.integers(len(odd)))]

    def refuse() -> None:
        configs.check(chosen)
        if chosen.algo.engine == word:
            chosen.algo.build(_setup())

    return outcome_of(refuse)


def _setup() -> Any:
    from robotrl.learners.learner import Setup

    return Setup(lambda: _sim(CHOOSING_SIMS[0]), ByActionCfg(hidden=(8,)), None, None, 0)


REFUSED = (Outcome.REFUSED,)
KINDS = (
    Kind("a policy of numbers where actions are choices", REFUSED, 200, _policy_of_numbers),
    Kind("a categorical policy where actions are numbers", REFUSED, 150, _categorical_on_numbers),
    Kind("a setting that the kind of policy does not have", REFUSED, 150, _setting_of_another_kind),
    Kind("an algorithm of continuous actions on a sim of choices", REFUSED, 40, _algorithm_of_numbers),
    Kind("an action that is no choice of the sim", REFUSED, 200, _no_choice),
    Kind("scores that are no numbers", (Outcome.REFUSED, Outcome.CONTAINED), 150, _spoilt_scores),
    Kind("a stored policy with other choices than the sim", REFUSED, 150, _other_choices),
    Kind("a stored policy whose choices were altered", (Outcome.REFUSED, Outcome.HARMLESS), 150, _altered_description),
    Kind("a stored policy whose weights were moved a little", REFUSED, 100, _moved_weights),
    Kind("a bundle whose choices were altered and sealed again", REFUSED, 150, _tampered_bundle),
    Kind("a robot that chooses among others than the bundle", REFUSED, 100, _other_robot),
    Kind("an action of a bundle that is no choice", (Outcome.CONTAINED,), 100, _no_choice_on_a_robot),
    Kind("a damaged record of compile times", (Outcome.CONTAINED,), 150, _damaged_record),
    Kind("a rule to stop or to compile that cannot be", REFUSED, 100, _stop_rule),
)
"""Kinds of faults of this area."""
