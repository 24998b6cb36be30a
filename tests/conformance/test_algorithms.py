"""Contract of every algorithm, checked in a small training of each; a new algorithm is one more row of `CASES`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tests.algos.test_grpo as tokens
import tests.algos.test_perlad as planning
import tests.algos.test_pretrain as looking
import tests.algos.test_rad2 as driving
import tests.algos.test_reflex as reflexes
import tests.kits.learner_kit as kit
import tests.kits.off_policy_kit as off
import tests.policies.vla.test_flow as flows
from robotrl.algos.bc import BcCfg
from robotrl.algos.dppo import DppoCfg
from robotrl.algos.dsrl import DsrlCfg
from robotrl.algos.dsrl_na import DsrlNaCfg
from robotrl.algos.flow_grpo import FlowGrpoCfg
from robotrl.algos.flow_noise import FlowNoiseCfg
from robotrl.algos.flow_sde import FlowSdeCfg
from robotrl.algos.grpo import GrpoCfg
from robotrl.algos.opd import OpdCfg
from robotrl.algos.rl100_online import Rl100OnlineCfg
from robotrl.algos.vla_rl import VlaRlCfg
from robotrl.policies.gaussian import GaussianCfg
from robotrl.registry import ALGORITHMS
from robotrl.rollout.demos import collect_demos
from robotrl.testing.algorithms import CHECKS, AlgorithmCase
from tests.algos.test_dagger import CFG as DAGGER
from tests.algos.test_dagger import Taught
from tests.algos.test_dsrl import ACTOR
from tests.algos.test_dsrl import SMALL as STEERING
from tests.algos.test_gorl import CFG as GORL
from tests.algos.test_gorl import ENVS as GORL_ENVS
from tests.algos.test_opd import saved
from tests.kits.walk_sim import Walk

GAUSSIAN = GaussianCfg(horizon=1, hidden=(32, 32))


class Data(NamedTuple):
    """Datasets and policies that algorithms learn from."""

    walks: Path
    """Demonstrations without rewards."""
    random_walks: Path
    """Random steps with the sim's rewards."""
    table: Path
    """Demonstrations on the tabletop sim."""
    teacher: str
    """A run whose policy is another token policy."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    folder = tmp_path_factory.mktemp("data")
    return Data(
        kit.write_walks(folder / "walks"),
        off.write_random_walks(folder / "random"),
        collect_demos("mujoco/tabletop", folder / "table", episodes=8, num_envs=8, sim_options=looking.OPTIONS).path,
        saved(folder / "teacher", other_token_policy()),
    )


def other_token_policy() -> Any:
    policy = token_policy()
    head = policy.net.language_model.lm_head.weight
    head.data += 0.1 * head.data.flip(0)
    return policy


def token_policy() -> Any:
    return tokens.policy_on(tokens.tabletop(1))


def on_policy(name: str, cfg: Any, make_policy: Any, policy_cfg: Any = None) -> Callable[[Data], AlgorithmCase]:
    return lambda data: AlgorithmCase(name, cfg, lambda: Walk(32), policy_cfg, make_policy, None, 1)


def walking(name: str, cfg: Any, **parts: Any) -> Callable[[Data], AlgorithmCase]:
    return lambda data: AlgorithmCase(name, cfg, lambda: Walk(off.ENVS), **parts)


def offline(name: str, cfg: Any, policy_cfg: Any) -> Callable[[Data], AlgorithmCase]:
    return lambda data: AlgorithmCase(name, cfg, lambda: Walk(off.ENVS), policy_cfg, dataset=data.random_walks)


def steering(name: str, cfg: Any) -> Callable[[Data], AlgorithmCase]:
    return lambda data: AlgorithmCase(name, cfg, lambda: Walk(16), ACTOR, kit.flow, None, 1)


def on_press() -> Any:
    return reflexes.task_policy(reflexes.press())


def table() -> Any:
    return tokens.tabletop(reward="shaped")


def on_table(name: str, cfg: Any, make_policy: Any, idle: int = 0) -> Callable[[Data], AlgorithmCase]:
    return lambda data: AlgorithmCase(name, cfg, table, None, make_policy, None, idle)


GROUPS: dict[str, Any] = {
    "iterations": 3,
    "group_size": 4,
    "groups": 2,
    "tries": 1,
    "minibatch": 16,
    # an untrained policy never succeeds
    "progress": "return",
    "keep_by": "reward",
}
SMALL_VLA: dict[str, Any] = {
    "env_steps": 8 * 8 * 4,
    "num_steps": 8,
    "minibatch": 16,
    "critic_hidden": (32,),
    "lr": 1e-3,
}
CASES: dict[str, Callable[[Data], AlgorithmCase]] = {
    "bc": lambda data: AlgorithmCase(
        "bc", BcCfg(updates=30, updates_per_iteration=10, batch=32), lambda: Walk(4), kit.FLOW, None, data.walks
    ),
    "dagger": lambda data: AlgorithmCase("dagger", DAGGER, lambda: Taught(4), GAUSSIAN),
    "distill": lambda data: AlgorithmCase(
        "distill", off.DISTILL, lambda: Walk(off.ENVS), None, kit.diffusion, data.random_walks
    ),
    "dppo": on_policy("dppo", DppoCfg(**kit.SMALL), kit.diffusion),
    "dsrl": steering("dsrl", DsrlCfg(**STEERING)),
    "dsrl-na": steering("dsrl-na", DsrlNaCfg(**STEERING, distill_updates=2, decoded=64, pairs=1000)),
    "flow-grpo": on_table(
        "flow-grpo",
        FlowGrpoCfg(**GROUPS),
        lambda: flows.policy_on("smolvla"),
    ),
    "flow-noise": on_policy("flow-noise", FlowNoiseCfg(**kit.SMALL), kit.flow),
    "flow-sde": on_policy("flow-sde", FlowSdeCfg(**kit.SMALL), kit.flow),
    "fql": offline("fql", off.FQL, replace(kit.FLOW, horizon=1)),
    "fql, online": offline("fql", replace(off.FQL, updates=10, env_steps=64), kit.FLOW),
    "gorl": lambda data: AlgorithmCase("gorl", GORL, lambda: Walk(GORL_ENVS), kit.FLOW),
    # one iteration of each phase
    "gorl, a switch": lambda data: AlgorithmCase(
        "gorl",
        replace(GORL, env_steps=GORL_ENVS * 8 * 3, stage_shares=(1.0, 1.0), collect_env_steps=1, fit_updates=3),
        lambda: Walk(GORL_ENVS),
        kit.FLOW,
    ),
    "grpo": on_table("grpo", GrpoCfg(**GROUPS), token_policy),
    "iql": offline("iql", off.IQL, GAUSSIAN),
    "iql, online": offline("iql", replace(off.IQL, updates=10, env_steps=64, ema=0.9), GAUSSIAN),
    "opd": lambda data: on_table("opd", OpdCfg(teacher=data.teacher, iterations=3, minibatch=32), token_policy)(data),
    "pa-rl": lambda data: AlgorithmCase(
        "pa-rl", off.PA_RL, lambda: Walk(off.ENVS), None, kit.flow, data.random_walks, 2
    ),
    "perlad": lambda data: AlgorithmCase("perlad", planning.CFG, planning.sim, planning.POLICY),
    "ppo": on_policy("ppo", kit.PPO, None, kit.GAUSSIAN),
    "pretrain": lambda data: AlgorithmCase(
        "pretrain",
        replace(looking.CFG, updates=9, updates_per_iteration=3),
        looking.sim,
        looking.TOKEN,
        None,
        data.table,
    ),
    "qc": offline("qc", off.QC, kit.FLOW),
    "rad2": lambda data: AlgorithmCase("rad2", driving.CFG, driving.sim, driving.RANKED, driving.planner),
    "reinflow": on_policy("reinflow", kit.REINFLOW, kit.flow),
    "recap": lambda data: AlgorithmCase(
        "recap", off.RECAP, lambda: Walk(off.ENVS), None, kit.flow, data.random_walks, 2
    ),
    "reflex": lambda data: AlgorithmCase("reflex", reflexes.CFG, reflexes.press, reflexes.GUARDED, on_press),
    "residual": lambda data: AlgorithmCase(
        "residual", off.RESIDUAL, lambda: Walk(off.ENVS), None, kit.flow, data.random_walks
    ),
    "residual, per step": lambda data: AlgorithmCase(
        "residual", off.RESIDUAL_STEP, lambda: Walk(off.ENVS), None, kit.flow, data.random_walks
    ),
    "rl100": lambda data: AlgorithmCase(
        "rl100", off.RL100, lambda: Walk(off.ENVS), None, kit.flow, data.random_walks, 2
    ),
    "rl100, along a model": lambda data: AlgorithmCase(
        "rl100", off.ALONG, lambda: Walk(off.ENVS), None, kit.flow, data.random_walks, 4
    ),
    "rl100-online": on_policy("rl100-online", Rl100OnlineCfg(**kit.SMALL), kit.flow),
    "rlpd": lambda data: AlgorithmCase(
        "rlpd", off.RLPD, lambda: Walk(off.ENVS), off.POLICY, None, data.random_walks, 3
    ),
    "sac": walking("sac", off.SAC, policy_cfg=off.POLICY, idle=3),
    "td3-bc": offline("td3-bc", off.TD3_BC, off.POLICY),
    "vla-rl": on_table("vla-rl", VlaRlCfg(**SMALL_VLA, critic_warmup_env_steps=1, critic_lr=3e-3), token_policy, 1),
}


@pytest.fixture(scope="module")
def cases(data: Data) -> dict[str, AlgorithmCase]:
    """The same case for all its checks, which share a training."""
    return {name: make(data) for name, make in CASES.items()}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES)
def test_an_algorithm_keeps_the_contract(
    case: str, check: Callable[[AlgorithmCase], None], cases: dict[str, AlgorithmCase]
) -> None:
    check(cases[case])


def test_every_algorithm_of_ours_has_a_case(cases: dict[str, AlgorithmCase]) -> None:
    assert {case.name for case in cases.values()} == set(ALGORITHMS.names())
