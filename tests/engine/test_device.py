"""Networks on one device, the sim on another: every method learns there what it learns where the sim is.

The other device is a GPU, and where there is none one that computes on the CPU and refuses what a GPU refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import robotrl
import tests.algos.test_grpo as grpo
import tests.algos.test_reflex as reflex
import tests.algos.test_vla_rl as vla_rl
import tests.kits.deploy_kit as deploy_kit
import tests.kits.learner_kit as kit
import tests.kits.off_policy_kit as off
import tests.policies.vla.test_flow as flows
from robotrl.algos.bc import BcCfg
from robotrl.algos.dppo import DppoCfg
from robotrl.algos.flow_grpo import FlowGrpoCfg
from robotrl.algos.flow_noise import FlowNoiseCfg
from robotrl.algos.flow_sde import FlowSdeCfg
from robotrl.algos.reinflow import ReinFlowCfg
from robotrl.algos.rl100_online import Rl100OnlineCfg
from robotrl.api.evaluation import evaluate_path
from robotrl.config import EvalCfg, SimCfg, TrainCfg
from robotrl.errors import ConfigError
from robotrl.fn.progress.srpo import progress_reward
from robotrl.fn.stats import Interval
from robotrl.learners.learner import Setup
from robotrl.registry import SIMS
from robotrl.replay.layout import META
from robotrl.rewards.network import ImageRewardNet, RewardNetCfg, normalization
from robotrl.rewards.process_model import AcceptanceThresholds, HeldOutVerdict, ProcessReward
from robotrl.rewards.process_stored import process_identity, save_process
from robotrl.rollout.device_wrapper import on_device
from robotrl.run.directory import Run
from robotrl.run.policy_checkpoint import load_policy
from robotrl.spec import HasCamera, HasDistance, HasExpert, HasRestart, HasState, HasStateIds, HasTrace
from robotrl.training import resume, train
from robotrl.utils.devices import CPU, device_of
from tests.algos.test_dagger import CFG as DAGGER
from tests.algos.test_dagger import Taught
from tests.algos.test_dsrl import ACTOR, NA, SAC
from tests.algos.test_gorl import CFG as GORL
from tests.kits.walk_sim import Walk
from tests.training.test_resume import StopAt, make_clone, reinflow_config, scalars

GPU = torch.cuda.is_available()
if not GPU:
    # torch takes gradients on one kind of second device in a process
    import tests.kits.twin_device as twin_device
KIND = "cuda" if GPU else "twin"
ELSEWHERE = device_of(KIND)
# what is said of the stand-in itself, which is not there where a GPU is
twin_only = pytest.mark.skipif(GPU, reason="the second device is a GPU")
REL, ABS = 2e-3, 1e-4 if GPU else 1e-5
NORM = 1e-4
"""How far all weights together may be apart on a GPU, of their size; it adds up in another order. 2.3e-6 was seen."""


@pytest.fixture(autouse=True)
def _reached(monkeypatch: pytest.MonkeyPatch) -> None:
    if not GPU:
        twin_device.reach(monkeypatch)


class Row(NamedTuple):
    """A learner, and what it is made of."""

    cfg: Any
    policy: Callable[[], Any] | None = None
    policy_cfg: Any = None
    dataset: Callable[[Path], Path] | None = None
    sim: Callable[[], Any] = lambda: Walk(8)
    prepare: Callable[[Any], None] = lambda made: None
    iterations: int = 2
    """Before the checkpoint; off-policy methods begin to learn in the second."""


def rigged(made: Any) -> None:
    """Episodes end as told, so that there is something to learn from."""
    collect = made._collector.collect

    def told(decide: Any, starts: Any) -> Any:
        found = collect(decide, starts)
        success = torch.tensor([True, False, False, False, True, True, False, True])
        return found._replace(success=success.to(found.success.device))

    made._collector.collect = told


ON_LINE = {**kit.SMALL, "env_steps": 8 * 8 * 3, "num_steps": 8, "minibatch": 16, "epochs": 1}
TOKENS = replace(grpo.CFG, iterations=2)
ROWS = {
    "bc flow": Row(BcCfg(updates=9, updates_per_iteration=3, batch=8), None, kit.FLOW, kit.write_walks),
    "bc shortcut": Row(BcCfg(updates=6, updates_per_iteration=2, batch=8), None, kit.SHORTCUT, kit.write_walks),
    "bc diffusion": Row(BcCfg(updates=6, updates_per_iteration=2, batch=8), None, kit.DIFFUSION, kit.write_walks),
    "ppo": Row(replace(kit.PPO, **ON_LINE), None, kit.GAUSSIAN),
    "ppo beta": Row(replace(kit.PPO, **ON_LINE), None, kit.BETA),
    "reinflow": Row(ReinFlowCfg(**ON_LINE, ema=0.9, entropy_coef=0.01), kit.flow),
    "dppo": Row(DppoCfg(**ON_LINE), kit.diffusion),
    "flow-sde": Row(FlowSdeCfg(**ON_LINE), kit.flow),
    "flow-noise": Row(FlowNoiseCfg(**ON_LINE), kit.flow),
    "dsrl": Row(replace(SAC, warmup=8 * 12), kit.flow, ACTOR),
    "dsrl-na": Row(replace(NA, warmup=8 * 12), kit.flow, ACTOR),
    "sac": Row(replace(off.SAC, warmup=16, num_steps=4), None, off.POLICY),
    "rlpd": Row(replace(off.RLPD, warmup=16, num_steps=2), None, off.CHUNKS, off.write_random_walks),
    "iql": Row(replace(off.IQL, updates=9, updates_per_iteration=3), None, kit.FLOW, off.write_random_walks),
    "iql squashed": Row(replace(off.IQL, updates=9, updates_per_iteration=3), None, off.POLICY, off.write_random_walks),
    "fql": Row(replace(off.FQL, updates=9, updates_per_iteration=3), None, kit.FLOW, off.write_random_walks),
    "fql online": Row(replace(off.FQL, updates=0, env_steps=96, warmup=32), kit.flow),
    "distill": Row(
        replace(off.DISTILL, updates=3, updates_per_iteration=3), kit.diffusion, None, off.write_random_walks
    ),
    "pa-rl": Row(
        replace(off.PA_RL, critic_updates=6, updates=6, updates_per_iteration=3), kit.flow, None, off.write_random_walks
    ),
    "recap": Row(
        replace(off.RECAP, value_updates=6, updates=6, updates_per_iteration=3), kit.flow, None, off.write_random_walks
    ),
    "rl100": Row(
        replace(off.RL100, critic_updates=6, updates=6, updates_per_iteration=3), kit.flow, None, off.write_random_walks
    ),
    "rl100 along a model": Row(
        replace(
            off.ALONG,
            critic_updates=3,
            dynamics=replace(off.ALONG.dynamics, updates=3),
            updates=9,
            updates_per_iteration=3,
        ),
        kit.flow,
        None,
        off.write_random_walks,
        iterations=4,
    ),
    "rl100-online": Row(Rl100OnlineCfg(**ON_LINE), kit.flow),
    "gorl": Row(GORL, None, kit.FLOW, iterations=5),
    "qc": Row(replace(off.QC, updates=0, env_steps=96, warmup=32), kit.flow),
    "residual": Row(replace(off.RESIDUAL, updates=0, env_steps=96, warmup=32), kit.flow),
    "td3-bc": Row(replace(off.TD3_BC, updates=9, updates_per_iteration=3), None, off.CHUNKS, off.write_random_walks),
    "dagger": Row(replace(DAGGER, iterations=2, updates=3), None, kit.GAUSSIAN, sim=lambda: Taught(8)),
    "grpo": Row(TOKENS, lambda: grpo.policy_on(grpo.tabletop(1)), sim=grpo.tabletop, prepare=rigged, iterations=1),
    "srpo": Row(
        replace(TOKENS, progress="embedding"),
        lambda: grpo.policy_on(grpo.tabletop(1)),
        sim=grpo.tabletop,
        prepare=rigged,
        iterations=1,
    ),
    "srpo by places": Row(
        replace(TOKENS, progress="embedding", encoder="places:state,meant", embed="end"),
        lambda: grpo.policy_on(grpo.tabletop(1)),
        sim=grpo.tabletop,
        prepare=rigged,
        iterations=1,
    ),
    "flow-grpo": Row(
        FlowGrpoCfg(iterations=2, group_size=4, groups=2, tries=2, minibatch=16, correlation=0.9),
        lambda: flows.policy_on("smolvla"),
        sim=grpo.tabletop,
        prepare=rigged,
        iterations=1,
    ),
    "vla-rl": Row(vla_rl.CFG, lambda: grpo.policy_on(grpo.tabletop(1)), sim=grpo.tabletop, iterations=1),
    "reflex": Row(reflex.CFG, lambda: reflex.task_policy(reflex.press(1)), reflex.GUARDED, sim=reflex.press),
    "reinflow pi0": Row(ReinFlowCfg(**ON_LINE), lambda: flows.policy_on("pi0"), sim=grpo.tabletop, iterations=1),
}


def learner_on(row: Row, device: torch.device, dataset: Path | None) -> Any:
    policy = None if row.policy is None else row.policy().to(device)
    made = Setup(lambda: on_device(row.sim(), device), row.policy_cfg, policy, dataset, 0, device=device)
    learner = row.cfg.build(made)
    row.prepare(learner)
    return learner


def compare(a: Any, b: Any) -> None:
    """States that are equal but for rounding."""
    pairs = list(both(a, b))
    for where, x, y in pairs:
        if not isinstance(x, np.ndarray):
            near = isinstance(x, float) and x == pytest.approx(y, rel=REL, abs=ABS, nan_ok=True)
            assert near or x == y or where.endswith("_s"), (where, x, y)
        elif not GPU or x.dtype.kind != "f":
            assert np.allclose(x, y, rtol=REL, atol=2e-5, equal_nan=True), (where, x, y)
    if GPU:
        # what has no gradient, as a key's bias, is moved by rounding alone, and Adam makes steps of that; all in all
        # it must be little, beside what is learned alone
        learned = ((x, y) for where, x, y in pairs if isinstance(x, np.ndarray) and "replay" not in where)
        floats = [(x, y) for x, y in learned if x.dtype.kind == "f"]
        apart, size = sum(squares(x - y) for x, y in floats), sum(squares(y) for _, y in floats)
        assert apart <= NORM**2 * size, (apart / size) ** 0.5


def squares(x: np.ndarray) -> float:
    return float(np.nansum(np.square(x, dtype=np.float64)))


def both(a: Any, b: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The leaves of two states that are made alike, arrays or single values, with their names."""
    if isinstance(a, Tensor):
        a, b = (x.detach().cpu() for x in (a, b))
        assert a.shape == b.shape and a.dtype == b.dtype, where
        yield where, a.numpy(), b.numpy()
    elif isinstance(a, np.ndarray) and where.endswith("columns/meta"):
        # records as bytes
        for name in META.names or ():
            yield f"{where}/{name}", *(x.view(META)[:, 0][name] for x in (a, b))
    elif isinstance(a, np.ndarray):
        yield where, a, b
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            yield from both(a[key], b[key], f"{where}/{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from both(x, y, f"{where}/{index}")
    else:
        yield where, a, b


def on_cpu(state: Any) -> Any:
    """A state as a checkpoint holds it."""
    if isinstance(state, Tensor):
        return state.detach().cpu().clone()
    if isinstance(state, dict):
        return {key: on_cpu(value) for key, value in state.items()}
    return state


@pytest.mark.parametrize("name", ROWS)
def test_a_method_learns_the_same_on_another_device(name: str, tmp_path: Path) -> None:
    row = ROWS[name]
    dataset = None if row.dataset is None else row.dataset(tmp_path / "data")
    here, there = (learner_on(row, device, dataset) for device in (CPU, ELSEWHERE))
    for _ in range(row.iterations):
        compare(here.iterate(), there.iterate())
    assert any(p.device == ELSEWHERE for p in there.policy.parameters())
    kept = on_cpu(there.state())
    compare(here.state(), kept)
    # a checkpoint, which lies on the CPU, is taken up there
    again = learner_on(row, ELSEWHERE, dataset)
    again.load(kept)
    compare(here.iterate(), again.iterate())
    for one in (here, there, again):
        one.close()


def clone_config(data: Path) -> TrainCfg[Any, Any]:
    algo = BcCfg(updates=12, updates_per_iteration=3, batch=8)
    return TrainCfg(SimCfg("test/walk", 2), algo, kit.FLOW, dataset=str(data), evaluation=EvalCfg(2, 6, 4, 0))


def logged(path: Path) -> list[dict[str, Any]]:
    return [{key: x for key, x in line.items() if not key.endswith("_s")} for line in scalars(path)]


def test_a_run_on_another_device_is_stopped_resumed_and_loaded_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way: training, evaluations, checkpoints, a resume, and the result on the CPU."""
    monkeypatch.setitem(SIMS._rows, "test/walk", "tests.kits.walk_sim:make")
    cfg = clone_config(kit.write_walks(tmp_path / "walks"))
    train(cfg, tmp_path / "cpu")
    there = replace(cfg, device=KIND)
    train(there, tmp_path / "there")
    train(there, tmp_path / "cut", [StopAt(2)])
    resume(tmp_path / "cut")
    compare(logged(tmp_path / "cpu"), logged(tmp_path / "there"))
    compare(logged(tmp_path / "there"), logged(tmp_path / "cut"))
    ends = [Run.open(tmp_path / name).latest() for name in ("there", "cut")]
    assert all(end is not None and end.tree["policy"]["fingerprint"]["device"] == KIND for end in ends)
    compare(ends[0].tree, ends[1].tree)
    policies = [load_policy(tmp_path / name) for name in ("cpu", "there")]
    assert all(p.device == CPU for policy in policies for p in policy.parameters())
    compare(*(policy.state_dict() for policy in policies))
    on_cpu, on_it = (evaluate_path(tmp_path / "there", episodes=9, num_envs=4, device=d) for d in ("cpu", KIND))
    compare(list(on_cpu.returns), list(on_it.returns))


def test_fine_tuning_starts_from_a_policy_of_another_device(tmp_path: Path) -> None:
    cfg = reinflow_config(make_clone(tmp_path / "clone"))
    cfg = replace(cfg, algo=replace(cfg.algo, env_steps=4 * 10 * 3), evaluation=EvalCfg(0, 2, 2, 1), device=KIND)
    train(cfg, tmp_path / "tuned")
    train(replace(cfg, init_from=str(tmp_path / "tuned"), device="cpu"), tmp_path / "again")
    assert len(logged(tmp_path / "again")) == 3


def test_an_actor_in_another_process_stays_on_the_cpu(tmp_path: Path) -> None:
    """Its process knows nothing of the device, and would say so."""
    algo = replace(off.SAC, env_steps=8 * 4 * 3, warmup=16, num_steps=4)
    cfg = TrainCfg(SimCfg("mujoco/peg-insert", 4, ("limit_s=1.0",)), algo, off.POLICY, device=KIND)
    cfg = replace(cfg, actor=replace(cfg.actor, process=True), evaluation=EvalCfg(0, 2, 2, 0))
    train(cfg, tmp_path / "run")
    assert logged(tmp_path / "run")[-1]["env_steps"] >= 8 * 4 * 3


# sims


def test_a_placed_sim_has_the_capabilities_of_its_own_and_says_the_same() -> None:
    bare = robotrl.make_sim("mujoco/peg-insert", num_envs=3, seed=0)
    made = on_device(robotrl.make_sim("mujoco/peg-insert", num_envs=3, seed=0), ELSEWHERE)
    assert on_device(bare, CPU) is bare and made.device == ELSEWHERE and not made.buffers_are_reused
    for capability in (HasDistance, HasExpert, HasRestart, HasState, HasCamera, HasStateIds):
        assert isinstance(made, capability) and isinstance(bare, capability), capability
    assert not isinstance(made, HasTrace) and not isinstance(on_device(Walk(2), ELSEWHERE), HasExpert)
    experts = [sim.make_expert(noise=0.1, seed=3) for sim in (bare, made)]
    compare(bare.reset(7), made.reset(7))
    started = torch.ones(3, dtype=torch.bool)
    for _ in range(5):
        actions = experts[0].act(started), experts[1].act(started.to(ELSEWHERE))
        compare(*actions)
        assert actions[1].device == ELSEWHERE == experts[1].mode.device
        steps = bare.step(actions[0]), made.step(actions[1])
        compare(tuple(steps[0]), tuple(steps[1]))
        assert all(x.device == ELSEWHERE for x in (*steps[1].obs.values(), steps[1].reward, *steps[1].info.values()))
        compare(bare.distance(), made.distance())
        started[:] = False
    compare(bare.restart(torch.tensor([1])), made.restart(torch.tensor([1]).to(ELSEWHERE)))
    state = made.get_state()
    compare(bare.get_state(), state)
    compare(bare.set_state(state), made.set_state(state))
    assert made.as_gymnasium().reset(seed=0)[0].keys() == bare.observation_spec.keys()


def test_successes_that_cluster() -> None:
    embedding = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.3, 0.3], [0.7, 0.5]])
    success, task = torch.tensor([True, True, True, False, False]), torch.zeros(5, dtype=torch.int64)
    here, there = (progress_reward(*(x.to(device) for x in (embedding, success, task))) for device in (CPU, ELSEWHERE))
    compare(here, there)
    assert 0 < here[3] < 0.6


def test_a_process_reward(tmp_path: Path) -> None:
    sim = grpo.tabletop(2)
    specs = {"state": sim.observation_spec["state"]}
    net = ImageRewardNet(specs, normalization(specs, {"state": sim.reset(0)["state"].numpy()}), RewardNetCfg()).eval()
    verdict = HeldOutVerdict(Interval(0.9, 0.8, 1.0, 10), 0.9, 0.05, 3, AcceptanceThresholds())
    path = save_process(tmp_path / "p", ProcessReward(net, verdict, {}, process_identity(net, verdict)))
    row = ROWS["vla-rl"]._replace(cfg=replace(vla_rl.CFG, process_reward=str(path)))
    here, there = (learner_on(row, device, None).iterate() for device in (CPU, ELSEWHERE))
    for name in ("process_reward", "process_progress"):
        assert there[name] == pytest.approx(here[name], rel=1e-3, abs=1e-6) and here[name] != 0


def test_a_traced_sim_can_still_be_traced() -> None:
    made = on_device(robotrl.make_sim("bev/drive", num_envs=2, seed=0, agents=4), ELSEWHERE)
    made.reset(0)
    assert isinstance(made, HasTrace) and made.trace_frame(1) is not None and not made.action_is_plan


# errors


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cuda", "device is 'cuda': this machine has cpu"),
        ("cuda:3", "device is 'cuda:3': this machine has cpu"),
        ("gpu", "device is 'gpu': expected one of cpu"),
        ("", "device is '': expected one of cpu"),
        pytest.param("twin:1", "device is 'twin:1': this machine has cpu", marks=twin_only),
        ("fpga", "device is 'fpga': torch .* knows none of that kind"),
    ],
)
def test_a_device_that_is_not_there_is_refused_and_leaves_no_run(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=message):
        device_of(name)
    with pytest.raises(ConfigError, match="device is"):
        train(replace(reinflow_config(tmp_path), device=name), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_devices_by_name() -> None:
    assert device_of("cpu") == CPU == device_of("cpu:0")
    assert device_of(KIND) == device_of(f"{KIND}:0") == torch.device(KIND, 0)


def test_a_bundle_is_for_the_cpu(tmp_path: Path) -> None:
    bundle = deploy_kit.copied("flow", tmp_path, tmp_path / "made")
    with pytest.raises(ConfigError, match="is a bundle, expected cpu"):
        evaluate_path(bundle, sim="mujoco/peg-insert", episodes=2, device=KIND)


# the device of the tests itself


@twin_only
def test_the_second_device_refuses_what_a_gpu_refuses() -> None:
    there, here = torch.ones(2, device="twin"), torch.ones(2)
    for wrong in (lambda: there + here, lambda: torch.cat([there, here]), lambda: there.copy_(here) + here):
        with pytest.raises(RuntimeError, match="same device"):
            wrong()
    with pytest.raises(RuntimeError, match="generator"):
        torch.randn(2, generator=torch.Generator(), device="twin")
    with pytest.raises(RuntimeError, match="numpy"):
        there.numpy()
    assert (there + 1).cpu().tolist() == [2.0, 2.0] and (there * torch.tensor(3.0)).tolist() == [3.0, 3.0]
