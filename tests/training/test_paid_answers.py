"""A run that was killed and goes on asks a served model nothing that it paid for before."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tests.kits.off_policy_kit as off
from robotrl.algos.ppo import PpoCfg
from robotrl.config import EvalCfg, SimCfg, TrainCfg, WeightedReward
from robotrl.learners.guidance.cfg import GuidanceCfg
from robotrl.policies.gaussian import GaussianCfg
from robotrl.registry import SIMS
from robotrl.rewards.endpoint.cfg import EndpointCfg
from robotrl.rewards.served.vlm_score import VlmScoreCfg
from robotrl.rewards.task import TaskRewardCfg
from robotrl.run.callbacks import Callback
from robotrl.run.directory import Run
from robotrl.training import resume
from tests.kits.chat_server import ChatCall, ChatServer
from tests.kits.guided_kit import place
from tests.kits.paths_kit import ROOT

SIM, MAKE = "test/guided-walk", "tests.kits.guided_kit:make"
KILLED_AT = 3
PROGRAM = """
import sys
from pathlib import Path
sys.path.append(sys.argv[1])
from robotrl.training import train
from tests.training.test_paid_answers import *
SIMS._rows[SIM] = MAKE
train(CONFIGS[sys.argv[2]](sys.argv[3]), Path(sys.argv[4]), [Kill()])
"""


def rewarded(base_url: str) -> TrainCfg[Any, Any]:
    algo = PpoCfg(env_steps=4 * 8 * 5, num_steps=8, epochs=1, minibatch=16, critic_warmup_env_steps=0, engine="eager")
    endpoint = EndpointCfg(base_url=base_url, model="m", max_requests=1000)
    score = VlmScoreCfg(
        question="How far?", high=255.0, pixels=8, every=1, frame_gap=1, patient=True, endpoint=endpoint
    )
    rewards = (WeightedReward("task", 1.0, TaskRewardCfg()), WeightedReward("vlm-score", 1.0, score))
    return config(algo, GaussianCfg(hidden=(16,)), rewards)


def guided(base_url: str) -> TrainCfg[Any, Any]:
    endpoint = EndpointCfg(base_url=base_url, model="m", max_requests=1000)
    guidance = GuidanceCfg(by="endpoint", prompt="Where to?", pixels=8, endpoint=endpoint, wait_s=30.0)
    return config(replace(off.SAC, env_steps=32 * 5, utd_ratio=0.25, guidance=guidance), off.POLICY, ())


CONFIGS = {"reward": rewarded, "guidance": guided}


def config(algo: Any, policy: Any, rewards: tuple[WeightedReward, ...]) -> TrainCfg[Any, Any]:
    return TrainCfg(SimCfg(SIM, 4), algo, policy, rewards=rewards, evaluation=EvalCfg(5, 2, 2, 0), checkpoint_every=1)


class Kill(Callback):
    """Kills the process before an iteration that was paid for is saved."""

    def on_iteration(self, step: int, scalars: Any) -> None:
        if step == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)


def answered(call: ChatCall) -> Any:
    level = shown(call)
    return {"values": [level if "How far?" in call.prompt else round(place(level) / 2, 6)]}


def shown(call: ChatCall) -> float:
    """The picture of a call, which is of one color."""
    assert call.picture is not None
    return float(call.picture[0, 0, 0])


@pytest.mark.parametrize("kind", CONFIGS)
def test_what_was_paid_for_before_a_kill_is_not_asked_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SIMS._rows, SIM, MAKE)
    run = tmp_path / "run"
    with ChatServer(answered) as server:
        command = [sys.executable, "-c", PROGRAM, str(ROOT), kind, server.base_url, str(run)]
        found = subprocess.run(command, capture_output=True, text=True)
        assert found.returncode == -signal.SIGKILL, found.stderr
        latest = Run.open(run).latest()
        assert latest is not None and latest.step == KILLED_AT - 1
        assert list((run / "answers").glob("*/*.rows"))
        paid = [shown(call) for call in server.calls]
        assert len(paid) == len(set(paid)) > 10
        copy = tmp_path / "without"
        shutil.copytree(run, copy)
        shutil.rmtree(copy / "answers")
        server.calls.clear()
        resume(run)
        asked = [shown(call) for call in server.calls]
        assert asked and not set(asked) & set(paid) and len(asked) == len(set(asked))
        server.calls.clear()
        resume(copy)
        assert set(paid) & {shown(call) for call in server.calls}, "else nothing would have been asked twice anyway"
