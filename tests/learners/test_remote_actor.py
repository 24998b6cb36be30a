"""Actor and learner in separate processes: what arrives, how far the actor goes ahead, and what if either dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import tests.algos.test_dsrl as dsrl
import tests.kits.actor_kit as actor_kit
import tests.kits.learner_kit as kit
import tests.kits.off_policy_kit as off
from robotrl.cli.main import main
from robotrl.config import ActorCfg
from robotrl.errors import ConfigError, NumericsError, RobotrlError
from robotrl.learners.actor.process import to_numpy, to_torch
from robotrl.learners.actor.remote import RemoteReplayCollector
from robotrl.learners.learner import Setup
from robotrl.learners.off_policy import PolicyBuilder
from robotrl.learners.replay_collector import Acting, ReplayBuffers
from robotrl.replay.types import HUMAN
from tests.kits.actor_kit import Told
from tests.kits.commands import PEG_PPO, REACH_RLPD
from tests.kits.late_kit import WEIGHT
from tests.kits.walk_sim import Walk

CFG = ActorCfg(process=True, start_timeout_s=120.0, timeout_s=60.0)
STEPS = 5
"""Env steps of a batch, in each of the four envs."""


def remote(
    make_sim: Callable[[], Any],
    cfg: ActorCfg = CFG,
    budget: int = 10_000,
    random: bool = False,
    policy: Any = off.POLICY,
) -> RemoteReplayCollector:
    sim = Walk(off.ENVS)
    made = PolicyBuilder(off.setup(policy), sim, True)
    return RemoteReplayCollector(make_sim, made, ReplayBuffers(sim, 400, None), Acting(0, 0.9, random, 8), budget, cfg)


@pytest.fixture
def closing() -> Iterator[Callable[[RemoteReplayCollector], RemoteReplayCollector]]:
    made: list[RemoteReplayCollector] = []

    def keep(one: RemoteReplayCollector) -> RemoteReplayCollector:
        made.append(one)
        return one

    yield keep
    for one in made:
        one.close()


def test_late_scores_and_their_means_come_with_the_steps(closing: Callable[..., RemoteReplayCollector]) -> None:
    """A score finds its step in the batch that is being collected, or in the learner's replay."""
    one = closing(remote(actor_kit.scored))
    logged = [one.collect(STEPS) for _ in range(16)]
    assert all(
        {"reward/number", "reward_valid/number", "reward_age/number", "scoring/lost"} <= row.keys() for row in logged
    )
    assert any(key.startswith("scoring/number/") for key in logged[-1])
    assert one.scalars().keys() == {"actor_restarts", "actor_wait_s"}
    replay = one.memory.replay
    known = replay.indices()
    assert len(known) > 4 * STEPS
    # the picture of env n at step t has the number t N + n, as the step in the replay
    found = replay.view(known, 1, 1.0)
    expected = WEIGHT * (known.double() + found.next_obs["walk"][:, 0].double())
    assert found.reward.tolist() == pytest.approx(expected.tolist(), rel=1e-5)
    # each step has its score but for those of the last batches, which are on their way
    older = [index for index in range(4 * STEPS * 8) if index not in set(known.tolist())]
    assert len(older) < 4 * STEPS * 4


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def gone_within(pid: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not alive(pid):
            return True
        time.sleep(0.05)
    return False


def lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def settled(log: Path) -> int:
    """How many steps the actor takes when nobody asks for more."""
    before = -1
    while (count := len(lines(log))) != before:
        before = count
        time.sleep(0.5)
    return count


def test_trees_come_back_as_they_went():
    tree = {"a": torch.arange(3), "b": {"c": torch.tensor(1.5)}, "d": "text", "e": None}
    back = to_torch(to_numpy(tree))
    assert (
        back["a"].tolist() == [0, 1, 2] and back["b"]["c"].item() == 1.5 and back["d"] == "text" and back["e"] is None
    )


def test_everything_arrives_and_the_newest_policy_acts_and_the_lead_is_kept(tmp_path: Path, closing: Any):
    log = tmp_path / "steps"
    one = closing(remote(partial(Told, log)))
    assert one.env_steps == 0 and not one.warm and one.pid is None
    scalars = one.collect(STEPS)
    assert one.warm and one.env_steps == off.ENVS * STEPS and scalars["actor_restarts"] == 0
    assert scalars["actor_wait_s"] > 0 and one.sim_s > 0
    # two batches were ordered: the one received, and one ahead
    assert settled(log) == 2 * STEPS
    assert {int(pid) for pid in lines(log)} == {one.pid} != {os.getpid()}
    made = one._made
    with torch.no_grad():
        made.policy.net.layers[-1].bias[:1].fill_(20.0)
    for _ in range(5):
        one.collect(STEPS)
    replay = one.memory.replay
    assert one.env_steps == 6 * off.ENVS * STEPS == len(replay)
    assert settled(log) == 7 * STEPS
    # the walk's arithmetic holds across batches, and episodes end where they should
    view = replay.view(replay.indices(), 1, 0.9)
    moved = (view.obs["walk"][:, 0] + view.chunk[:, 0, 0]).clamp(-10, 10)
    assert torch.allclose(view.next_obs["walk"][:, 0], moved, atol=1e-6)
    assert torch.allclose(view.reward, moved, atol=1e-6)
    assert view.terminated.any() and ((moved >= 2) | (moved <= -2) == view.terminated).all()
    # what was ordered before the change came with the old policy, everything since with the new one
    newest = view.chunk[view.starts // off.ENVS >= 3 * STEPS]
    assert len(newest) > 20 and newest.min() > 0.99
    assert view.chunk[view.starts // off.ENVS < STEPS].min() < 0.9
    # the normalisation is measured by the learner and sent along
    assert made.policy.transforms.inputs == made.normalizer.transforms()


def test_the_actor_does_not_work_beyond_the_budget(tmp_path: Path, closing: Any):
    log = tmp_path / "steps"
    one = closing(remote(partial(Told, log), replace(CFG, lead=5), budget=3 * off.ENVS * STEPS))
    for _ in range(3):
        one.collect(STEPS)
    assert settled(log) == 3 * STEPS


def test_a_fresh_policy_acts_at_random_there_too(closing: Any):
    one = closing(remote(partial(Walk, off.ENVS), random=True))
    with torch.no_grad():
        one._made.policy.net.layers[-1].bias[:1].fill_(20.0)
    for _ in range(2):
        one.collect(2)
    chunks = one.memory.replay.view(one.memory.replay.indices(), 1, 0.9)
    step = chunks.starts // off.ENVS
    assert chunks.chunk[step < 2].min() < 0.9 and chunks.chunk[step >= 2].min() > 0.99


def test_corrections_arrive_in_both_memories(closing: Any):
    one = closing(remote(partial(Walk, off.ENVS)))
    one.watch(actor_kit.corrected)
    scalars = one.collect(STEPS)
    assert scalars["corrected_share"] == 0.5
    memory = one.memory
    own = memory.replay.view(memory.replay.indices(), 1, 0.9)
    human = memory.corrections.view(memory.corrections.indices(), 1, 0.9)
    assert set(human.source.tolist()) == {HUMAN} and (human.chunk == 0.25).all()
    assert (own.source == HUMAN).float().mean() == pytest.approx(0.5, abs=0.1)


def test_an_actor_that_is_killed_is_replaced_and_no_chunk_spans_the_two(closing: Any):
    one = closing(remote(partial(Walk, off.ENVS)))
    one.collect(STEPS)
    first = one.pid
    os.kill(first, signal.SIGKILL)
    with pytest.warns(UserWarning, match="the actor's process ended with exit code -9: another one goes on"):
        while one.restarts == 0:
            scalars = one.collect(STEPS)
    assert one.pid != first and scalars["actor_restarts"] == 1
    one.collect(STEPS)
    replay = one.memory.replay
    assert len(replay) == one.env_steps
    view = replay.view(replay.indices(2), 2, 0.9)
    whole = view.valid.all(1)
    x = view.obs["walk"][:, 0]
    assert torch.allclose(view.next_obs["walk"][whole, 0], (x + view.chunk[:, :, 0].sum(1))[whole], atol=1e-5)


def test_an_actor_that_hangs_is_replaced(tmp_path: Path, closing: Any):
    one = closing(remote(partial(Told, tmp_path / "steps", "hang", 8), replace(CFG, timeout_s=1.0)))
    one.collect(STEPS)
    first = one.pid
    with pytest.warns(UserWarning, match="the actor's process sent nothing for 1 s: another one goes on"):
        one.collect(STEPS)
    assert one.restarts == 1 and not alive(first)


def test_an_actor_that_stops_reading_does_not_hold_the_learner_up(closing: Any):
    """Weights of more than a pipe holds, for a process that is stopped."""
    wide = replace(off.POLICY, hidden=(256, 256))
    one = closing(remote(partial(Walk, off.ENVS), replace(CFG, timeout_s=1.0, lead=1), policy=wide))
    one.collect(STEPS)
    first = one.pid
    assert sum(x.nbytes for x in to_numpy(one._made.policy.state_dict()).values()) > 4 * 64 << 10
    os.kill(first, signal.SIGSTOP)
    with pytest.warns(UserWarning, match="sent nothing for 1 s"):
        one.collect(STEPS)
    assert not alive(first) and one.restarts == 1


def test_an_actor_that_always_dies_ends_the_run_with_its_reason(tmp_path: Path, closing: Any):
    one = closing(remote(partial(Told, tmp_path / "steps", "die", 2), replace(CFG, restarts=1)))
    with (
        pytest.warns(UserWarning, match="exit code 7: another one goes on"),
        pytest.raises(
            RobotrlError,
            match=r"ended with exit code 7, after 0 env steps; it was replaced 1 times before \(actor\.restarts\)",
        ),
    ):
        one.collect(STEPS)
    assert one.pid is None


@pytest.mark.parametrize(
    ("fail", "kind", "match"),
    [
        ("numbers", NumericsError, r"reward of env 1 is nan \(in the actor's process\)"),
        ("bug", RobotrlError, "the actor's process failed with ZeroDivisionError: by nothing"),
    ],
)
def test_an_actor_that_says_why_it_ends_ends_the_run(tmp_path: Path, closing: Any, fail: str, kind: Any, match: str):
    one = closing(remote(partial(Told, tmp_path / "steps", fail, 7)))
    one.collect(STEPS)
    with pytest.raises(kind, match=match):
        one.collect(STEPS)
    assert one.restarts == 0


def test_what_a_watcher_refuses_ends_the_run(closing: Any):
    one = closing(remote(partial(Walk, off.ENVS)))
    one.watch(actor_kit.refused)
    with pytest.raises(ConfigError, match="device is not there"):
        one.collect(STEPS)


def test_closing_ends_the_process_and_its_state_goes_on_elsewhere(closing: Any):
    one = closing(remote(partial(Walk, off.ENVS)))
    one.collect(STEPS)
    pid, state = one.pid, kit.snapshot(one.state())
    one.close()
    assert not alive(pid)
    other = closing(remote(partial(Walk, off.ENVS)))
    other.load(state)
    assert other.env_steps == off.ENVS * STEPS == len(other.memory.replay)
    other.collect(STEPS)
    assert len(other.memory.replay) == other.env_steps == 2 * off.ENVS * STEPS


LEARNER = """
import sys, time
from functools import partial
from pathlib import Path
sys.path[:0] = {path!r}
from tests.kits.actor_kit import Told
from tests.learners.test_remote_actor import remote, STEPS

if __name__ == "__main__":
    one = remote(partial(Told, Path({log!r}), {fail!r}, 8))
    one.collect(STEPS)
    print(one.pid, flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("fail", ["", "hang"])
def test_an_actor_whose_learner_is_killed_ends(tmp_path: Path, fail: str):
    """Whether it waits for orders or hangs in its sim."""
    script = tmp_path / "learner.py"
    script.write_text(textwrap.dedent(LEARNER.format(path=sys.path, log=str(tmp_path / "steps"), fail=fail)))
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as learner:
        assert learner.stdout is not None
        actor = int(learner.stdout.readline())
        assert alive(actor)
        learner.kill()
    assert gone_within(actor, 30.0)


# the learners


def setup(cfg: ActorCfg = CFG, dataset: Path | None = None) -> Setup:
    return Setup(partial(Walk, off.ENVS), off.POLICY, None, dataset, 0, cfg)


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return off.write_random_walks(tmp_path_factory.mktemp("actor") / "demos")


@pytest.mark.parametrize("cfg", [off.SAC, off.RLPD, replace(off.IQL, env_steps=64)], ids=["sac", "rlpd", "iql"])
def test_every_learner_makes_as_many_updates_as_in_one_process(cfg: Any, demos: Path):
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for process in (False, True):
            learner = cfg.build(setup(replace(CFG, process=process), demos))
            try:
                for _ in range(6):
                    learner.iterate()
                found.append((learner.env_steps, learner.updates, learner.sim_s > 0 or learner.env_steps == 0))
            finally:
                learner.close()
    assert found[0] == found[1] and found[0][1] > 0


@pytest.mark.parametrize("cfg", [dsrl.SAC, dsrl.NA], ids=["sac", "na"])
def test_noise_that_steered_in_another_process_is_learned_from(cfg: Any):
    """As many steps and updates as in one process, with corrections; chunks are those decoded from their noise."""
    cfg = replace(cfg, num_steps=6, env_steps=off.ENVS * 6 * 4, warmup=off.ENVS * 6, capacity=400)
    found = []
    for process in (False, True):
        steered = Setup(partial(Walk, off.ENVS), dsrl.ACTOR, kit.flow(), None, 0, replace(CFG, process=process))
        learner = cfg.build(steered)
        learner.watch(actor_kit.corrected)
        try:
            log = [learner.iterate() for _ in range(learner.iterations)]
            replay = learner.replay
            drawn = replay.view(replay.indices(2, decisions=True), 2, 0.9)
            ctx = learner.policy.encode(drawn.obs)
            chunk = learner.policy.to_actions(learner.policy.steer(ctx, drawn.extras["noise"]))
            assert torch.allclose(chunk[drawn.valid], drawn.chunk[drawn.valid], atol=1e-5) and len(chunk) > 10
            assert log[-1]["corrected_share"] == 0.5 and learner.acts_remotely == process
            assert ("actor_restarts" in log[-1]) == process
            found.append((learner.env_steps, learner._engine.state()["steps"].tolist()))
            saved = kit.snapshot(learner.state())
        finally:
            learner.close()
    assert found[0] == found[1] and min(found[0][1]) > 0
    assert saved["experience"]["env_steps"] == found[1][0]


def test_it_learns_the_walk(demos: Path):
    learner = replace(off.RLPD, env_steps=400, alpha_lr=3e-3).build(setup(dataset=demos))
    try:
        log = [learner.iterate() for _ in range(learner.iterations)]
    finally:
        learner.close()
    returns = [line["rollout_return"] for line in log if "rollout_return" in line]
    assert sum(returns[-4:]) / 4 > sum(returns[:3]) / 3 + 1.5


def test_a_sim_that_cannot_be_sent_is_refused():
    with pytest.raises(ConfigError, match="make_sim cannot be sent to another process"):
        off.SAC.build(Setup(lambda: Walk(off.ENVS), off.POLICY, None, None, 0, CFG))


# the command


def robotrl(*words: str) -> list[str]:
    return [sys.executable, "-m", "robotrl.cli", *words]


def actor_of(learner: int) -> int | None:
    """The process that a running command has spawned as its actor."""
    for children in Path(f"/proc/{learner}/task").glob("*/children"):
        for child in children.read_text().split():
            if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text():
                return int(child)
    return None


def test_ctrl_c_saves_a_run_ends_its_actor_quietly_and_it_resumes(tmp_path: Path):
    """In a process group of its own, all of which gets the signal as from a terminal."""
    demos, run = tmp_path / "demos", tmp_path / "run"
    assert main(["demos", "mujoco/reach", "--out", str(demos), "--episodes", "3"]) == 0
    words = ["--dataset", str(demos), "--run-dir", str(run), "--actor.process", "--intervention.by", "script"]
    words += ["--sim.num-envs", "2", "--algo.engine", "eager", "--algo.critic-hidden", "16", "--policy.hidden", "16"]
    words += ["--algo.env-steps", "800", "--algo.warmup", "80", "--algo.batch", "16", "--evaluation.episodes", "4"]
    words += ["--evaluation.animation", "0", "--checkpoint-every-env-steps", "40"]
    command = robotrl("train", *REACH_RLPD, *words)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        checkpoints = run / "checkpoints"
        while process.poll() is None and not (checkpoints / "latest.json").exists():
            time.sleep(0.05)
        actor = actor_of(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        assert process.stderr is not None
        said = process.stderr.read()
    assert process.returncode == 130, said
    assert "is saved" in said and "Traceback" not in said
    assert actor is not None and gone_within(actor, 10.0)
    assert main(["train", "--resume", str(run)]) == 0
    log = [json.loads(line) for line in (run / "scalars.jsonl").read_text().splitlines()]
    assert log[-1]["env_steps"] == 800 and [line["step"] for line in log] == list(range(1, 101))
    assert all("actor_restarts" in line and line["actor_restarts"] == 0 for line in log)


def test_an_algorithm_without_a_replay_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["train", *PEG_PPO, "--run-dir", str(tmp_path / "run"), "--actor.process"]) == 2
    assert not (tmp_path / "run").exists()
    said = capsys.readouterr().err
    assert "PpoLearner lacks experience" in said and "another process" in said
