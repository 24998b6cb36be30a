"""RL-100's online stage: the state value that is handed on, the ratio, refusals; and all stages in a row."""

from __future__ import annotations

import copy
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tests.kits.learner_kit as kit
import tests.kits.off_policy_kit as off
from robotrl.algos.flow_sde import policy_loss
from robotrl.algos.rl100_online import Rl100OnlineCfg
from robotrl.cli.main import main
from robotrl.errors import ConfigError, DataError
from robotrl.learners.collection.older_policy import WEIGHT
from robotrl.registry import SIMS
from robotrl.run.critic_checkpoint import write_critic
from robotrl.run.logs import read_scalars
from robotrl.run.policy_checkpoint import load_policy
from tests.algos.test_ppo import Watched
from tests.kits.improve_kit import SIM
from tests.kits.paths_kit import ROOT
from tests.kits.refusals import raises_naming
from tests.kits.walk_sim import Walk

CFG = Rl100OnlineCfg(
    **{**kit.SMALL, "critic_hidden": (32, 32), "critic_warmup_env_steps": 0, "num_steps": 8, "env_steps": 32 * 8 * 3},
    gamma=0.9,
)


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A finished offline stage, whose critic is stored in the folder `run`."""
    folder = tmp_path_factory.mktemp("rl100-online")
    learner = off.RL100.build(off.setup(None, off.write_random_walks(folder / "data"), kit.flow()))
    off.run(learner, learner.iterations)
    write_critic(folder / "run", learner.critic_tree(), 1)
    learner.folder = folder
    return learner


def observations(count: int = 16) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return {key: torch.randn((count, 2), generator=draw) for key in ("walk", "secret")}


@pytest.mark.parametrize("make_sim", [lambda: Walk(32), lambda: Watched(32)])
def test_the_state_value_of_the_offline_stage_is_handed_on(offline: Any, make_sim: Any) -> None:
    """A privileged observation changes nothing at first; then the value learns from it."""
    cfg = replace(CFG, init_critic=str(offline.folder / "run"))
    policy, obs = copy.deepcopy(offline.policy), observations()
    with torch.no_grad():
        expected = offline._loss.state_value(policy.encode({"walk": obs["walk"]}))
        learner: Any = cfg.build(kit.setup(policy)._replace(make_sim=make_sim))
        assert torch.allclose(learner.loss.value(obs), expected, atol=1e-6)
        assert not torch.allclose(CFG.build(kit.setup(copy.deepcopy(policy))).loss.value(obs), expected, atol=1e-3)
    found = learner.iterate()
    assert found["ratio_error"] < 1e-4
    assert not torch.allclose(learner.loss.value(obs), expected, atol=1e-6)


def test_a_resumed_run_needs_no_critic(offline: Any, tmp_path: Path) -> None:
    cfg = replace(CFG, init_critic=str(tmp_path / "gone"))
    with pytest.raises(DataError, match="does not exist"):
        cfg.build(kit.setup(kit.flow()))
    cfg.build(kit.setup(kit.flow())._replace(resumed=True))


def test_the_kernel_and_the_surrogate_are_those_of_the_offline_stage(offline: Any) -> None:
    learner = CFG.build(kit.setup(copy.deepcopy(offline.policy)))
    x, t, dt = torch.randn(4, 2, 1), torch.full((4,), 1 / 3), torch.full((4,), 1 / 3)
    ctx = learner.loss.policy.encode(observations(4))
    ours, theirs = (
        kernel(learner.loss.policy, ctx, x, t, dt) for kernel in (learner.loss._kernel, offline._loss.kernel)
    )
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    decision = learner.loss.decide(observations(4), torch.Generator().manual_seed(0))
    rows = {**decision.record, "advantage": torch.tensor([1.0, -1.0, 0.5, 2.0]), WEIGHT: torch.ones(4, 3)}
    found = learner.loss.terms(rows, {}, ctx).surrogate
    assert found.loss.item() == policy_loss(learner.loss.log_prob(rows, ctx), rows, 0.01).loss.item()
    # all ratios are 1: minus the mean advantage
    assert found.loss.item() == pytest.approx(-0.625, abs=1e-5) and found.ratio_error < 1e-4


def test_what_does_not_fit_is_refused(offline: Any, tmp_path: Path) -> None:
    start = replace(CFG, init_critic=str(offline.folder / "run"))
    for field, value in (("gamma", 0.8), ("critic_hidden", (16, 16)), ("critic_activation", "tanh")):
        with pytest.raises(ConfigError, match=f"algo.{field} is .*: expected .*, as the critic"):
            replace(start, **{field: value}).build(kit.setup(kit.flow()))
    with raises_naming(ConfigError, "algo.normalize_reward", "algo.init_critic"):
        replace(start, normalize_reward=True).check()
    for field, value in (("noise", 0.0), ("std_floor", 0.0)):
        with raises_naming(ConfigError, f"algo.{field}", value):
            replace(CFG, **{field: value}).check()
    tree = offline.critic_tree()
    del tree["state_value"]
    write_critic(tmp_path / "other", tree, 1)
    with pytest.raises(DataError, match="has no state value: expected a run of rl100"):
        replace(CFG, init_critic=str(tmp_path / "other")).build(kit.setup(kit.flow()))


TINY = {
    "bc": "--policy.hidden 32 32 --policy.horizon 2 --policy.denoising-steps 3 --algo.updates 100",
    "rl100-online": "--algo.env-steps 512 --algo.num-steps 8 --algo.critic-warmup-env-steps 0",
    "distill": "--algo.updates 20",
}
OFFLINE = {"critic_updates": 150, "updates": 150, "updates_per_iteration": 25, "lr": 0.003, "clip_coef": 0.1}
OFFLINE |= {"critic_lr": 0.003, "dynamics.updates": 50, "dynamics.hidden": "[32,32]", "margin": 0.001, "gamma": 0.9}


def test_the_commands_of_the_page_run_from_demonstrations_to_the_student(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each stage begins from what the one before it wrote; the walk stands for the sim, with one round."""
    monkeypatch.setitem(SIMS._rows, SIM, "tests.kits.walk_sim:make")
    monkeypatch.chdir(tmp_path)
    off.write_random_walks(tmp_path / "demos", episodes=60)
    page = (ROOT / "docs/algorithms/rl100.md").read_text()
    block = re.findall(r"## The whole chain\n\n```sh\n(.*?)```", page, re.DOTALL)[0]
    made, *commands = block.replace("mujoco/peg-insert", SIM).replace("round-3", "round-1").splitlines()
    assert made.startswith("robotrl demos") and "--out demos" in made and len(commands) == 4
    for command in commands:
        words = shlex.split(command)[1:]
        if words[0] == "improve":
            words[words.index("--rounds") + 1] = "1"
            words[words.index("--collect-episodes") + 1] = "60"
            words += [f"algo.{name}={value}" for name, value in OFFLINE.items()] + ["algo.engine=eager"]
        else:
            algo = words[words.index("--algo") + 1]
            words += shlex.split(f"{TINY[algo]} --algo.engine eager --evaluation.episodes 0 --sim.num-envs 8")
            words += ["--algo.gamma", "0.9"] if algo == "rl100-online" else []
        assert main(words) == 0, capsys.readouterr()
    assert "The new policy is better: " in capsys.readouterr().out
    scalars = {
        name: read_scalars(tmp_path / name / "scalars.jsonl") for name in ("improved/round-1/fit/run", "runs/online")
    }
    offline, online = scalars.values()
    assert max(line.get("gate/accepted", 0.0) for line in offline) == 1.0 and "dynamics/heldout_error" in offline[7]
    assert "ratio_error" in online[0]
    student = load_policy(tmp_path / "runs/student")
    assert student.denoising_steps == 1
