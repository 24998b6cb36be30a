"""Speed of ReinFlow's and DPPO's updates, compared with straightforward eager torch implementations.

Both train on one recorded rollout of `mujoco/peg-insert`, with the networks and sizes of the presets, and alternate.
Both are measured with one torch thread and with torch's default, and the faster counts for each; ours also in bfloat16.
"""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from benchmarks.chain.baseline import DppoBaseline, ReinFlowBaseline
from benchmarks.kit.figures import Figure, Paired, paired
from benchmarks.runner import number
from robotrl.algos.dppo import DppoCfg
from robotrl.algos.reinflow import ReinFlowCfg
from robotrl.engine.engine import EngineMode
from robotrl.learners.denoising import ChainCfg, ChainLearner
from robotrl.learners.learner import Setup
from robotrl.learners.on_policy import epoch_order
from robotrl.policies.base import ACTION
from robotrl.policies.diffusion import DiffusionCfg
from robotrl.policies.flow import FlowCfg
from robotrl.registry import make_sim
from robotrl.transforms import Clip, TransformGroup, bounds_to_unit, inverse

DESCRIPTION = "updates per second of ReinFlow and DPPO on mujoco/peg-insert against plain eager torch"
PEERS: dict[str, str] = {}
TASK, NUM_ENVS, SEED = "mujoco/peg-insert", 96, 0
OURS, OURS_BF16, PLAIN = "robotrl", "robotrl in bfloat16", "eager torch"
UNIT = "iterations/s"


class Method(NamedTuple):
    """A compared algorithm."""

    cfg: ChainCfg
    policy: Any
    """Policy config."""
    baseline: Callable[[Any, Any, Any], ReinFlowBaseline | DppoBaseline]
    """Factory of the baseline: (actor, critic, cfg) to the implementation."""


METHODS: Mapping[str, Method] = {
    "reinflow": Method(ReinFlowCfg(env_steps=10**9, critic_warmup_env_steps=0), FlowCfg(), ReinFlowBaseline),
    "dppo": Method(DppoCfg(env_steps=10**9, critic_warmup_env_steps=0, target_kl=None), DiffusionCfg(), DppoBaseline),
}


class Shares(NamedTuple):
    """Time and compute shares of one of our iterations."""

    simulator: float
    """Fraction of the iteration's time spent in physics."""
    evaluations: int
    """Forward passes of a policy network per row: those of the rollout, and those of the updates, which are
    differentiated."""


class Measured(NamedTuple):
    """Measurements of one algorithm."""

    rates: Paired
    """Updates per second by route."""
    shares: Shares
    compile_s: float
    """Compile time with one thread in float32, s."""


class Setting(NamedTuple):
    """Settings of our implementation."""

    bf16: bool
    threads: int

    @property
    def route(self) -> str:
        """Name of its route."""
        return _threads(OURS_BF16 if self.bf16 else OURS, self.threads)


def run(quick: bool) -> dict[str, Figure]:
    """Measure both algorithms."""
    figures: dict[str, Figure] = {}
    for name, method in METHODS.items():
        figures |= figures_of(name, measure(method, quick))
    return figures


def make_learner(method: Method, engine: EngineMode, num_envs: int = NUM_ENVS, bf16: bool = False) -> ChainLearner:
    """Our learner on a policy with random weights, which do not affect speed."""
    sim = make_sim(TASK, num_envs=num_envs, seed=SEED)
    to_unit = bounds_to_unit(ACTION, sim.action_spec.low, sim.action_spec.high)
    outputs = inverse(to_unit), Clip(ACTION, sim.action_spec.low, sim.action_spec.high)
    torch.manual_seed(SEED)
    policy = method.policy.build(sim.observation_spec, sim.action_spec, TransformGroup((), outputs))
    cfg: Any = replace(method.cfg, engine=engine, bf16=bf16)
    return cfg.build(Setup(lambda: sim, None, policy, None, SEED))


def make_baseline(method: Method, learner: ChainLearner) -> ReinFlowBaseline | DppoBaseline:
    """The baseline, with copies of the learner's networks."""
    return method.baseline(copy.deepcopy(learner.loss.actor), copy.deepcopy(learner.loss.critic), method.cfg)


def measure(method: Method, quick: bool, num_envs: int = NUM_ENVS, engine: EngineMode = "compiled") -> Measured:
    """Measure updates on one rollout, interleaved; then profile one complete iteration of ours."""
    default = torch.get_num_threads()
    counts = sorted({1, default})[: 1 if quick else 2]
    learners = {
        Setting(bf16, threads): make_learner(method, engine, num_envs, bf16)
        for bf16 in (False, True)
        for threads in counts
    }
    first = learners[Setting(False, 1)]
    baseline = make_baseline(method, first)
    batch, _ = first.collect()
    generator = torch.Generator().manual_seed(SEED)
    cfg = method.cfg

    def ours(learner: ChainLearner) -> float:
        begun = time.perf_counter()
        scalars = learner.update(batch)
        seconds = time.perf_counter() - begun
        if not scalars["actor_updates"]:
            raise RuntimeError("an update left the actor as it was: expected one of actor and critic")
        return 1 / seconds

    def plain() -> float:
        order = epoch_order(len(batch.advantage), cfg.minibatch, cfg.epochs, generator, keep_all=False)
        begun = time.perf_counter()
        baseline.update(batch, order)
        return 1 / (time.perf_counter() - begun)

    def on(threads: int, once: Callable[[], float]) -> Callable[[], float]:
        def run_once() -> float:
            torch.set_num_threads(threads)
            rate = once()
            torch.set_num_threads(1)
            return rate

        return run_once

    routes: dict[str, Callable[[], float]] = {}
    for setting, learner in learners.items():
        if learner is not first:
            # before its first rollout a learner trains its critic only
            learner.collect()
        routes[setting.route] = on(setting.threads, functools.partial(ours, learner))
        # exclude compiling for this number of threads
        routes[setting.route]()
    routes |= {_threads(PLAIN, threads): on(threads, plain) for threads in counts}
    rates = paired(routes, 1 if quick else 9)
    shares = _shares(first)
    torch.set_num_threads(default)
    return Measured(rates, shares, first.compile_s)


def figures_of(name: str, measured: Measured) -> dict[str, Figure]:
    """Ours against the baseline, each at its better number of threads, and the shares of an iteration."""
    cfg = METHODS[name].cfg
    what = f"{NUM_ENVS} envs x {cfg.num_steps} steps, minibatch {cfg.minibatch}, {cfg.epochs} epochs"
    rates, shares = measured.rates, measured.shares

    def best(kind: str) -> str:
        return max((r for r in rates.samples if r.startswith(f"{kind}, ")), key=lambda r: rates.spread(r).median)

    tried = "; ".join(f"{route}: {number(rates.spread(route).median)}" for route in rates.samples)
    return {
        f"updates_per_s_{name}": rates.figure(
            best(OURS), best(PLAIN), UNIT, "higher", f"{what}; the better counts for each of {tried}"
        ),
        f"updates_per_s_bf16_{name}": rates.figure(
            best(OURS_BF16), best(PLAIN), UNIT, "higher", "the same with algo.bf16, against the same in float32"
        ),
        f"compile_s_{name}": Figure(measured.compile_s, "s", note="once; not in the iterations per second"),
        f"simulator_share_{name}": Figure(
            shares.simulator, "of an iteration", note="of a whole iteration of ours, one thread"
        ),
        f"network_evaluations_{name}": Figure(
            shares.evaluations, "rows", note="of the policy's network in an iteration; those of updates have a gradient"
        ),
    }


def _threads(kind: str, threads: int) -> str:
    return f"{kind}, {threads} thread{'' if threads == 1 else 's'}"


def _shares(learner: ChainLearner) -> Shares:
    """Profile one iteration by timing the sim's steps."""
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
