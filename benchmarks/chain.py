"""Updates of policy gradient through the chain, against the same updates in straightforward eager torch.

Both learn from one recorded rollout of `mujoco/peg-insert`, with the networks and sizes of the presets, and take turns.
The baseline is measured with one torch thread and with torch's own default, and the better counts; ours has one, and
is measured in bfloat16 as well.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from robotrl.algos.chain_pg import ChainCfg, ChainLearner
from robotrl.algos.dppo import DppoCfg
from robotrl.algos.engine import EngineMode
from robotrl.algos.learner import Setup
from robotrl.algos.on_policy import epoch_order
from robotrl.algos.reinflow import ReinFlowCfg
from robotrl.benchmarks.chain_baseline import DppoBaseline, ReinFlowBaseline
from robotrl.benchmarks.figures import Figure, Paired, paired
from robotrl.benchmarks.runner import number
from robotrl.policies.base import ACTION
from robotrl.policies.diffusion import DiffusionCfg
from robotrl.policies.flow import FlowCfg
from robotrl.registry import make_sim
from robotrl.transforms import Clip, TransformGroup, bounds_to_unit, inverse

DESCRIPTION = "updates per second of ReinFlow and DPPO on mujoco/peg-insert against plain eager torch"
PEERS: dict[str, str] = {}
TASK, NUM_ENVS, SEED = "mujoco/peg-insert", 96, 0
OURS, OURS_BF16, PLAIN = "robotrl", "robotrl, bfloat16", "eager torch"
UNIT = "iterations/s"


class Method(NamedTuple):
    """What is compared."""

    cfg: ChainCfg
    policy: Any
    """Config of the policy."""
    baseline: Callable[[Any, Any, Any], ReinFlowBaseline | DppoBaseline]
    """(actor, critic, cfg) to the plain implementation."""


METHODS: Mapping[str, Method] = {
    "reinflow": Method(ReinFlowCfg(env_steps=10**9, critic_warmup=0), FlowCfg(), ReinFlowBaseline),
    "dppo": Method(DppoCfg(env_steps=10**9, critic_warmup=0, target_kl=None), DiffusionCfg(), DppoBaseline),
}


class Shares(NamedTuple):
    """Where an iteration of ours goes."""

    simulator: float
    """Share of the iteration's seconds that physics takes."""
    evaluations: int
    """Passes of a policy network on one row: the rollout's, and those of the updates, which are differentiated."""


class Measured(NamedTuple):
    """What was found of one method."""

    rates: Paired
    """Iterations' updates per second, by route."""
    shares: Shares
    compile_s: float


def run(quick: bool) -> dict[str, Figure]:
    """Measure both methods."""
    figures: dict[str, Figure] = {}
    for name, method in METHODS.items():
        figures |= figures_of(name, measure(method, quick))
    return figures


def make_learner(method: Method, engine: EngineMode, num_envs: int = NUM_ENVS, bf16: bool = False) -> ChainLearner:
    """Our learner on a policy with random weights: what it costs does not depend on them."""
    sim = make_sim(TASK, num_envs=num_envs, seed=SEED)
    to_unit = bounds_to_unit(ACTION, sim.action_spec.low, sim.action_spec.high)
    outputs = inverse(to_unit), Clip(ACTION, sim.action_spec.low, sim.action_spec.high)
    torch.manual_seed(SEED)
    policy = method.policy.build(sim.observation_spec, sim.action_spec, TransformGroup((), outputs))
    cfg: Any = replace(method.cfg, engine=engine, bf16=bf16)
    return cfg.build(Setup(lambda: sim, None, policy, None, SEED))


def make_baseline(method: Method, learner: ChainLearner) -> ReinFlowBaseline | DppoBaseline:
    """The plain implementation, with copies of the learner's networks."""
    return method.baseline(copy.deepcopy(learner.loss.actor), copy.deepcopy(learner.loss.critic), method.cfg)


def measure(method: Method, quick: bool, num_envs: int = NUM_ENVS, engine: EngineMode = "compiled") -> Measured:
    """Updates on one rollout, interleaved; then one whole iteration of ours, taken apart."""
    learner = make_learner(method, engine, num_envs)
    halved = make_learner(method, engine, num_envs, bf16=True)
    baseline = make_baseline(method, learner)
    batch, _ = learner.collect()
    # until its first rollout a learner trains its critic alone
    halved.collect()
    generator = torch.Generator().manual_seed(SEED)
    cfg = method.cfg

    def ours(learner: ChainLearner) -> Callable[[], float]:
        def run_once() -> float:
            begun = time.perf_counter()
            scalars = learner.update(batch)
            seconds = time.perf_counter() - begun
            if not scalars["actor_updates"]:
                raise RuntimeError("an update left the actor as it was: expected one of actor and critic")
            return 1 / seconds

        return run_once

    def plain(threads: int) -> Callable[[], float]:
        def run_once() -> float:
            order = epoch_order(len(batch.advantage), cfg.minibatch, cfg.epochs, generator, keep_all=False)
            torch.set_num_threads(threads)
            begun = time.perf_counter()
            baseline.update(batch, order)
            seconds = time.perf_counter() - begun
            torch.set_num_threads(1)
            return 1 / seconds

        return run_once

    default = torch.get_num_threads()
    torch.set_num_threads(1)
    # compiling is no part of an iteration
    learner.update(batch)
    halved.update(batch)
    routes: dict[str, Callable[[], float]] = {OURS: ours(learner), OURS_BF16: ours(halved), _plain(1): plain(1)}
    if default > 1 and not quick:
        routes[_plain(default)] = plain(default)
    rates = paired(routes, 1 if quick else 9)
    shares = _shares(learner)
    torch.set_num_threads(default)
    return Measured(rates, shares, learner.compile_s)


def figures_of(name: str, measured: Measured) -> dict[str, Figure]:
    """Ours against the plain implementation at its better number of threads, and where an iteration goes."""
    cfg = METHODS[name].cfg
    what = f"{NUM_ENVS} envs x {cfg.steps_per_env} steps, minibatch {cfg.minibatch}, {cfg.epochs} epochs"
    rates, shares = measured.rates, measured.shares
    plain = (route for route in rates.samples if route.startswith(PLAIN))
    peers = sorted(plain, key=lambda r: rates.spread(r).median, reverse=True)
    tried = "; ".join(f"{route}: {number(rates.spread(route).median)}" for route in peers)
    return {
        f"updates_per_s_{name}": rates.figure(OURS, peers[0], UNIT, "higher", f"{what}; the better counts of {tried}"),
        f"updates_per_s_bf16_{name}": rates.figure(
            OURS_BF16, peers[0], UNIT, "higher", "the same with algo.bf16, against the same in float32"
        ),
        f"compile_s_{name}": Figure(measured.compile_s, "s", note="once; not in the iterations per second"),
        f"simulator_share_{name}": Figure(shares.simulator, "of an iteration", note="of a whole iteration of ours"),
        f"network_evaluations_{name}": Figure(
            shares.evaluations, "rows", note="of the policy's network in an iteration; those of updates have a gradient"
        ),
    }


def _plain(threads: int) -> str:
    return f"{PLAIN}, {threads} thread{'' if threads == 1 else 's'}"


def _shares(learner: ChainLearner) -> Shares:
    """One iteration, with a clock around the sim's steps."""
    step, spent = learner.sim.step, 0.0

    def timed(actions: torch.Tensor) -> Any:
        nonlocal spent
        begun = time.perf_counter()
        out = step(actions)
        spent += time.perf_counter() - begun
        return out

    learner.sim.step = timed
    begun = time.perf_counter()
    batch, _ = learner.collect()
    learner.update(batch)
    total = time.perf_counter() - begun
    learner.sim.step = step
    decisions, cfg = len(batch.advantage), learner.cfg
    rows = max(1, round(decisions / cfg.minibatch)) * cfg.minibatch * cfg.epochs
    return Shares(spent / total, (decisions + rows) * learner.policy.denoising_steps)
