"""A bundle with a reflex: its risk graph in numpy, what its manifest may say, the chain's order, real processes."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

import tests.kits.deploy_graphs as graphs
import tests.kits.deploy_kit as kit
from robotrl.api.evaluation import evaluate_path
from robotrl.api.exporting import export as export_run
from robotrl.cli.main import main
from robotrl.deploy.buffers import Runtime
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.bundle.risk_graph import RiskGraph, sigmoid
from robotrl.deploy.control.log import Tick, array_of, read_log
from robotrl.deploy.control.replay import replay
from robotrl.deploy.control.run import run_control
from robotrl.deploy.control.safety import NONE, Mode, Reason, SafetyChain, limits_of
from robotrl.deploy.export import export
from robotrl.deploy.servo.records import tick_of_record, tick_to_record
from robotrl.deploy.servo.reflex import RiskGuard
from robotrl.deploy.servo.ring import RingRecord
from robotrl.errors import ConfigError, DataError
from robotrl.policies.gaussian import GaussianCfg
from robotrl.policies.guarded import GuardedCfg
from robotrl.policies.networks.risk import RiskCritic
from robotrl.registry import make_sim
from robotrl.run.checkpoint import write_checkpoint
from robotrl.run.policy_checkpoint import policy_tree
from robotrl.testing.algorithms import fresh_policy
from tests.kits.real_time import undisturbed
from tests.kits.reflex_kit import FAST_MPS, Reflexes, Watched, watched_bundle
from tests.kits.refusals import raises_naming

CART = "sim:tests.kits.deploy_cart:make_cart"
LOW_M = 0.06
"""Height of the pad above the estimated surface below which the critic of `press` finds every action risky."""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return watched_bundle(tmp_path_factory.mktemp("reflex") / "watched.bundle")


# the graph


def critic_bytes(critic: RiskCritic) -> bytes:
    policy = Watched()
    policy.risk = critic
    policy.cfg = Reflexes(columns=("cart_pos", "cart_vel", "goal_pos"))
    return policy_bytes(policy)


def policy_bytes(policy: Any) -> bytes:
    from robotrl.deploy.export_reflex import exported
    from robotrl.run.onnx_graph import onnx_graph

    return exported(policy, kit.recorded(), onnx_graph).graph


def test_numpy_computes_a_critics_risk_as_torch_does() -> None:
    torch.manual_seed(0)
    critic = RiskCritic(3, Watched().action_spec, (16, 16))
    critic.normalize_by(torch.randn(64, 3))
    graph = RiskGraph(critic_bytes(critic), 3, 2)
    rng = np.random.default_rng(1)
    for _ in range(50):
        seen, asked = rng.normal(0, 5, 3).astype(np.float32), rng.uniform(-1, 1, 2).astype(np.float32)
        expected = critic.risk(torch.from_numpy(seen)[None], torch.from_numpy(asked)[None]).item()
        assert graph(seen, asked) == pytest.approx(expected, abs=1e-6)
    assert np.isnan(graph(np.full(3, np.nan, np.float32), np.zeros(2, np.float32)))


def test_a_sigmoid_of_arithmetic_alone_is_one() -> None:
    for x in np.random.default_rng(0).normal(0, 30, 2000).tolist():
        assert sigmoid(x) == pytest.approx(0.5 * (1 + math.tanh(0.5 * x)) if x > -20 else math.exp(x), rel=1e-8)
    assert (sigmoid(0.0), sigmoid(-0.0), sigmoid(math.inf)) == (0.5, 0.5, 1.0)
    # in float32, in which a risk is kept
    assert (np.float32(sigmoid(-3e38)), np.float32(sigmoid(-math.inf))) == (0.0, 0.0)
    assert math.isnan(sigmoid(math.nan))


def edited(change: Callable[[onnx.GraphProto], object]) -> bytes:
    model = onnx.load_from_string(policy_bytes(Watched()))
    change(model.graph)
    return model.SerializeToString()


def test_a_graph_that_is_no_perceptron_is_refused() -> None:
    whole = policy_bytes(Watched())
    with pytest.raises(DataError, match=r"risk\.onnx: holds the operator Tanh: expected only Add, Clip"):
        RiskGraph(edited(lambda graph: graph.node.append(helper.make_node("Tanh", ["risk"], ["more"]))), 1, 2)
    with pytest.raises(DataError, match=r"risk\.onnx: inputs .* expected .*\(1, 5\)"):
        RiskGraph(whole, 5, 2)
    with pytest.raises(DataError, match="not a readable ONNX file"):
        RiskGraph(whole[:-7], 1, 2)

    def narrow(graph: onnx.GraphProto) -> None:
        weight = next(x for x in graph.initializer if "first.weight" in x.name)
        weight.CopyFrom(numpy_helper.from_array(np.zeros((2, 2), np.float32), weight.name))

    with pytest.raises(DataError, match=r"risk\.onnx: cannot be computed"):
        RiskGraph(edited(narrow), 1, 2)


def attribute(graph: onnx.GraphProto, kind: str, name: str, value: int | float) -> None:
    node = next(node for node in graph.node if node.op_type == kind)
    for i, known in enumerate(node.attribute):
        if known.name == name:
            del node.attribute[i]
            break
    node.attribute.append(helper.make_attribute(name, value))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda graph: attribute(graph, "Concat", "axis", 0), "Concat has axis 0: expected 1"),
        (lambda graph: attribute(graph, "Gemm", "alpha", 2.0), "Gemm scales or transposes its input"),
        (lambda graph: graph.node[-1].output.__setitem__(0, "other"), "output 'risk' is not 1 computed number"),
        (lambda graph: graph.node[1].input.__setitem__(0, "later"), "reads 'later' before it is computed"),
        (lambda graph: graph.node[1].input.pop(), "Gemm has 1 inputs, expected 2"),
    ],
)
def test_a_graph_that_does_not_fit_is_refused(change: Callable[[onnx.GraphProto], object], says: str) -> None:
    with pytest.raises(DataError, match=says):
        RiskGraph(edited(change), 1, 2)


# the manifest


def test_bundles_without_a_reflex_are_as_they_were(bundle: Path, tmp_path: Path) -> None:
    plain = open_bundle(kit.made("goal", tmp_path)[0])
    assert plain.manifest.schema_version == 2 and plain.risk is None
    assert "reflex" not in plain.manifest.to_json()
    watched = open_bundle(bundle)
    assert watched.manifest.schema_version == 3 and watched.risk is not None
    assert watched.manifest.reflex is not None and watched.manifest.reflex.columns == ("cart_vel",)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.pop("reflex"), "graphs.risk is 'risk.onnx': expected a graph exactly where there is a reflex"),
        (lambda d: d.update(schema_version=2), "schema_version is 2: expected 3 or more, with a reflex"),
        (lambda d: d["reflex"].update(threshold=1.5), "reflex.threshold is 1.5: expected 0 to 1"),
        (lambda d: d["reflex"].update(recovery=[0.0, 3.0]), "reflex.recovery of 'brake' is 3.0"),
        (lambda d: d["reflex"].update(recovery=[0.0]), "reflex.recovery is .*: expected 2 entries"),
        (lambda d: d["reflex"].update(columns=["cart_velo"]), "reflex.columns is 'cart_velo'"),
        (lambda d: d["reflex"].update(observation="stat"), "reflex.observation is 'stat'"),
        (lambda d: d["reflex"].update(period_s=0.5), "reflex.period_s is 0.5"),
        (lambda d: d["timing"].update(interpolation="linear"), "expected 'hold' with a reflex"),
        (lambda d: d["reflex"].update(treshold=0.5), "did you mean 'threshold'"),
    ],
)
def test_what_a_manifest_may_not_say(
    bundle: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], says: str
) -> None:
    copy = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    graphs.reseal(copy, change)
    with pytest.raises(DataError, match=says):
        open_bundle(copy)


# the chain


def test_a_recovery_comes_after_finiteness_and_before_the_limits(bundle: Path) -> None:
    limits = limits_of(open_bundle(bundle).manifest)._replace(max_step=np.float32([0.25, 9.0]))
    chain = SafetyChain(limits)
    recovery, action = np.float32([5.0, 1.0]), np.float32([0.1, 0.0])
    verdict = chain.decide(NONE, action, recovery)
    assert verdict.action.tolist() == [0.25, 1.0]
    assert verdict.reason == Reason.REFLEX | Reason.CLAMPED | Reason.RATE_LIMITED and verdict.mode == Mode.ACTIVE
    # between two control ticks nothing is counted, and the step is from the last control tick, too
    state, counters = chain.state, chain.counters
    for _ in range(3):
        assert chain.between(action, recovery).action.tolist() == [0.5, 1.0]
    # back to the policy: 0.1 is a step from the last control tick, and too far from what was sent since
    released = chain.between(action, None)
    assert (released.action.tolist(), released.reason) == ([0.25, 0.0], Reason.RATE_LIMITED)
    assert chain.state.last is state.last and chain.counters == counters and counters.reasons["reflex"] == 1
    # a recovery rescues no bad tick
    for observed, given in ((NONE, np.float32([np.nan, 0.0])), (Reason.OBS_STALE, action)):
        held = chain.decide(observed, given, recovery)
        assert held.mode == Mode.HOLD and not held.reason & Reason.REFLEX


def test_the_guard_acts_where_the_risk_is_high_or_no_number(bundle: Path) -> None:
    opened = open_bundle(bundle)
    assert opened.risk is not None
    guard = RiskGuard(opened.manifest, opened.risk)
    action = np.float32([1.0, 0.0])

    def at(speed: float) -> np.ndarray | None:
        return guard.recovery({"state": np.float32([0.0, speed, 0.0, 0.0])}, action)

    assert at(0.9 * FAST_MPS) is None and at(-0.9 * FAST_MPS) is None
    for speed in (1.1 * FAST_MPS, -1.1 * FAST_MPS, np.nan):
        found = at(speed)
        assert found is not None and found.tolist() == [0.0, 1.0]
    assert guard.recovery({"state": np.float32([0.0, 9.0, 0.0, 0.0])}, np.float32([np.nan, 0.0])) is None


@pytest.mark.parametrize("recoveries", [0, 1, 7])
@pytest.mark.parametrize("between", [None, np.float32([0.5, -0.25])])
def test_a_record_keeps_the_count_of_recoveries_and_the_last_one(recoveries: int, between: np.ndarray | None) -> None:
    empty = np.zeros(2, np.float32)
    tick = Tick(3, 0, 0, 0, 0, 0, 0, 0, 1, np.zeros(5, np.float32), empty, empty, 0, 0, -1, 0, (), recoveries, between)
    numbers, values = tick_to_record(1, tick, [7.0])
    _, found, late = tick_of_record(RingRecord(numbers, values), 5, 2, 0)
    assert found.recoveries == recoveries and found.policy is not None and len(found.observation) == 5
    assert (None if found.between is None else found.between.tolist()) == (None if between is None else [0.5, -0.25])
    assert late.tolist() == [7.0]


# real processes


@undisturbed
def test_the_servo_sends_the_recovery_between_control_ticks(bundle: Path, tmp_path: Path, runtime: Runtime) -> None:
    log = tmp_path / "log.jsonl"
    report = run_control(bundle, CART, episodes=2, limit_s=5.0, log=log, runtime=runtime)
    header, records = read_log(log)
    ticks = [r for r in records if r["kind"] == "tick"]
    place = header["observations"]["state"].index("cart_vel")
    speed = np.array([abs(float(array_of(r["obs"]["state"])[place])) for r in ticks])
    # at 2 N a control period adds 0.04 m/s, and a servo tick 0.01
    assert 0.7 * FAST_MPS < speed.max() < FAST_MPS + 0.06
    assert report.successes == 2
    fired = [r for r in ticks if r["reason"] & Reason.REFLEX]
    assert len(fired) == report.safety.reasons["reflex"] > 0
    assert all(r["sent"] == [0.0, 1.0] and r["policy"] != r["sent"] for r in fired)
    assert sum(r.get("recoveries", 0) for r in ticks) > len(fired)
    again = replay(log, bundle)
    assert (again.policy_max_abs, again.sent_max_abs, again.verdicts_differ) == (0.0, 0.0, 0)


def test_another_rate_is_refused(bundle: Path, runtime: Runtime) -> None:
    with pytest.raises(ConfigError, match="servo_hz is 100: the bundle's reflex learned at 200 Hz"):
        run_control(bundle, CART, episodes=1, servo_hz=100.0, runtime=runtime)


@pytest.fixture(scope="module")
def press(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle for the arm that presses: the policy goes down, and the critic sends it up below `LOW_M`."""
    folder = tmp_path_factory.mktemp("press")
    sim = make_sim("mujoco/press", 1)
    torch.manual_seed(0)
    task = fresh_policy(GaussianCfg(horizon=1, hidden=(16,)), sim)
    task.control_dt_s = sim.control_dt_s
    columns = tuple(sim.servo_spec.names)
    watched = GuardedCfg(0.3, tuple(sim.retract), columns, 0.005, hidden=(64, 64)).build(task)
    with torch.no_grad():
        task.net.layers[-1].bias[2] = -0.1
        # one unit of each layer is the depth below the height, beside many that say little
        first, second, last = (watched.risk.net.layers[i] for i in (0, 2, 4))
        for layer in (first, second):
            layer.weight[0] = 0.0
        first.weight[0, columns.index("tip_above_estimate")], first.bias[0] = -1.0, LOW_M
        second.weight[0, 0], second.bias[0], last.weight[0, 0] = 1.0, 0.0, 1e5
    write_checkpoint(folder / "run", {"policy": policy_tree(watched)}, step=1, kind="test")
    export_run(folder / "run", folder / "press.bundle", sim="mujoco/press")
    return folder / "press.bundle"


@undisturbed
def test_an_arm_is_guarded(press: Path, tmp_path: Path, runtime: Runtime) -> None:
    log = tmp_path / "log.jsonl"
    report = run_control(
        press, "sim:mujoco/press", episodes=2, limit_s=2.0, log=log, runtime=runtime, accept_start=True
    )
    header, records = read_log(log)
    ticks = [r for r in records if r["kind"] == "tick"]
    fired = [r for r in ticks if r["reason"] & Reason.REFLEX]
    place = header["observations"]["state"].index("tip_above_estimate")
    height = [float(array_of(r["obs"]["state"])[place]) for r in ticks]
    # a control period at the policy's speed is 4 mm
    assert LOW_M - 0.004 < min(height) < LOW_M
    assert sum(r.get("recoveries", 0) for r in ticks) > len(fired)
    assert 0 < len(fired) == report.safety.reasons["reflex"] < len(ticks) == report.safety.ticks
    assert (report.runtime, report.safety.held, report.safety.damped) == (runtime, 0, 0)
    reflex = open_bundle(press).manifest.reflex
    assert reflex is not None
    for record in fired:
        assert np.array_equal(np.float32(record["sent"]), np.float32(reflex.recovery))
    again = replay(log, press)
    assert (again.ticks, again.policy_max_abs, again.sent_max_abs, again.verdicts_differ) == (len(ticks), 0.0, 0.0, 0)


# export


def test_a_run_is_exported_with_the_reflex_that_learned_beside_it(tmp_path: Path) -> None:
    sim = make_sim("mujoco/press", 1)
    torch.manual_seed(0)
    task, other = (fresh_policy(GaussianCfg(horizon=1, hidden=(16,)), sim) for _ in range(2))
    for policy in (task, other):
        policy.control_dt_s = sim.control_dt_s
    cfg = GuardedCfg(0.01, tuple(sim.retract), tuple(sim.servo_spec.names), 0.005, hidden=(8,))
    watched = cfg.build(task)
    for name, policy in (("task", task), ("other", other), ("reflex", watched)):
        write_checkpoint(tmp_path / name, {"policy": policy_tree(policy)}, step=1, kind="test")
    out = tmp_path / "press.bundle"
    command = ["export", str(tmp_path / "task"), "--sim", "mujoco/press", "--out", str(out)]
    assert main([*command, "--reflex", str(tmp_path / "reflex")]) == 0
    reflex = open_bundle(out).manifest.reflex
    assert reflex is not None and (reflex.threshold, reflex.period_s) == (0.01, 0.005)
    assert json.loads((out / "manifest.json").read_text())["reflex"]["recovery"] == list(sim.retract)
    # in a sim with two clocks the bundle's reflex acts as the policy's does
    options = {"reward": "shaped", "limit_s": 1.0}
    returns = [
        evaluate_path(path, sim="mujoco/press", episodes=4, options=options).returns
        for path in (out, tmp_path / "reflex", tmp_path / "task")
    ]
    assert np.allclose(returns[0], returns[1], atol=1e-3) and not np.allclose(returns[0], returns[2], atol=1e-3)
    with raises_naming(ConfigError, "reflex", str(tmp_path / "reflex")):
        export_run(tmp_path / "other", tmp_path / "no", sim="mujoco/press", reflex=tmp_path / "reflex")
    with pytest.raises(ConfigError, match="holds a GaussianPolicy: expected a run of --algo reflex"):
        export_run(tmp_path / "task", tmp_path / "no", sim="mujoco/press", reflex=tmp_path / "other")
    with pytest.raises(ConfigError, match=r"policy\.servo_dt_s is None"):
        export(Watched(Reflexes(servo_dt_s=None)), tmp_path / "no", observations=kit.recorded())
    assert not (tmp_path / "no").exists()
