"""Ray workers: the numbers of shards in this process, whatever dies on the way.

One Ray serves the whole module, and its workers' processes serve one test after the other as long as they live: most of
the time of such a test would be the start of processes that import torch.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from robotrl.algos.flow_grpo import FlowGrpoCfg
from robotrl.cli.main import main
from robotrl.cluster import ray_shards
from robotrl.cluster.ray_shards import RayShards
from robotrl.config import ClusterCfg
from robotrl.errors import ConfigError, NumericsError, RobotrlError
from tests.kits import learner_kit as kit
from tests.kits import off_policy_kit as off_policy
from tests.kits.cluster_kit import clustered, dying, poisoned, stateless, walk
from tests.kits.commands import PEG_PPO
from tests.kits.learner_kit import same, snapshot
from tests.kits.ray_kit import connect, ray_of_two
from tests.kits.refusals import raises_naming

ray: Any = pytest.importorskip("ray")
LOCAL, RAY = ClusterCfg("local", workers=2), ClusterCfg("ray", workers=2)


session = pytest.fixture(scope="module", autouse=True)(ray_of_two)


@pytest.fixture
def alone() -> Iterator[None]:
    """No Ray but the one that the test's own run starts: a second one on a small machine is not up in time."""
    ray.shutdown()
    yield
    connect()


KEPT: list[Any] = []
"""Workers whose processes are idle, for the next test."""


@pytest.fixture(autouse=True)
def reused(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Learners take over the workers that a learner before left idle, with another sim, policy and kind of rollouts."""
    if "alone" in request.fixturenames:
        KEPT.clear()
    make, close = RayShards._make, RayShards.close

    def taken(shards: RayShards, slot: Any) -> None:
        if KEPT and slot.failures == 0:
            slot.worker, slot.host, slot.at = KEPT.pop(), None, None
        else:
            make(shards, slot)

    def kept(shards: RayShards) -> None:
        for slot in shards._slots:
            alone = [one.worker for one in shards._slots].count(slot.worker) == 1
            if slot.started is not None and slot.worker is not None and not slot.orders and alone:
                slot.worker.close.remote()
                KEPT.append(slot.worker)
                slot.worker = None
        close(shards)

    monkeypatch.setattr(RayShards, "_make", taken)
    monkeypatch.setattr(RayShards, "close", kept)


def built(cluster: ClusterCfg, make_sim: Any = walk, cfg: Any = kit.PPO) -> Any:
    return cfg.build(clustered(cluster, None, kit.GAUSSIAN, make_sim))


def state_after(learner: Any, iterations: int) -> Any:
    """State after some iterations; the learner is closed."""
    try:
        for _ in range(iterations):
            learner.iterate()
        return snapshot(learner.state())
    finally:
        learner.close()


def runner(learner: Any) -> RayShards:
    return learner._collector._runner


def test_the_numbers_are_those_of_shards_in_this_process():
    """To the last bit, with rollouts of an older policy; for those of the present one see the kills below."""
    local = state_after(built(replace(LOCAL, max_staleness=2)), 4)
    assert same(local, state_after(built(replace(RAY, max_staleness=2)), 4))


def test_episodes_of_groups_are_those_of_shards_in_this_process():
    cfg = FlowGrpoCfg(iterations=2, group_size=4, groups=2, minibatch=16, keep_by="reward", progress="return")
    local, remote = (cfg.build(clustered(one, kit.flow())) for one in (LOCAL, RAY))
    assert same(state_after(local, 2), state_after(remote, 2))


def test_a_replay_is_filled_and_gone_on_with_as_in_this_process(tmp_path: Path):
    """SAC, with a worker that is killed within its second batch: no step is stored twice, or with another version."""
    cfg = replace(off_policy.SAC, warmup=256, utd_ratio=0.05, capacity=4096)

    def sac(cluster: ClusterCfg, make_sim: Any = walk) -> Any:
        return cfg.build(clustered(cluster, None, off_policy.CHUNKS, make_sim))

    whole, half = state_after(sac(LOCAL), 4), state_after(sac(LOCAL), 2)
    resumed = sac(RAY, partial(dying, (tmp_path / "mark",), 12))
    resumed.load(half)
    with pytest.warns(UserWarning, match="worker 1"):
        assert same(state_after(resumed, 2), whole)


def test_a_run_goes_on_exactly_in_either():
    whole, half = state_after(built(LOCAL), 4), state_after(built(RAY), 2)
    for cluster in (LOCAL, RAY):
        resumed = built(cluster)
        resumed.load(half)
        assert same(state_after(resumed, 2), whole)


def test_workers_that_are_killed_at_any_moment_leave_no_trace():
    """Killed between rollouts and during them: the numbers stay the same, and each kill costs one rollout at most."""
    whole = state_after(built(LOCAL), 4)
    learner, draw = built(RAY), random.Random(0)
    try:
        with pytest.warns(UserWarning, match=r"worker \d .* another one goes on from the state before its rollout"):
            for number in range(4):
                # in turn: a worker that was killed as its rollout ended is replaced in the next iteration alone
                started = runner(learner)._slots[number % 2].started
                assert started is not None
                killer = subprocess.Popen(["sh", "-c", f"sleep {0.05 * draw.random():.3f}; kill -9 {started.pid}"])
                learner.iterate()
                killer.wait()
        scalars = learner._collector.scalars()
        assert scalars["cluster/restarts"] >= 3 >= scalars["cluster/lost_rollouts"] - 1
        assert same(snapshot(learner.state()), whole)
    finally:
        learner.close()


def test_a_sim_without_a_state_begins_anew_with_a_seed_of_its_own(tmp_path: Path):
    learner = built(RAY, stateless)
    try:
        learner.iterate()
        slot = runner(learner)._slots[1]
        assert slot.started is not None and not slot.started.exact
        before, steps = slot.recipe.seed, learner.env_steps
        os.kill(slot.started.pid, signal.SIGKILL)
        with pytest.warns(UserWarning, match=r"worker 1 .* with new episodes, from seed \d+"):
            scalars = learner.iterate()
        assert slot.recipe.seed != before and scalars["cluster/restarts"] == 1
        assert learner.env_steps == 2 * steps
    finally:
        learner.close()


def test_a_worker_that_dies_again_and_again_ends_the_run_with_one_line(tmp_path: Path):
    marks = tuple(tmp_path / str(number) for number in range(4))
    learner = built(replace(RAY, restarts=1), partial(dying, marks, 5))
    with pytest.warns(UserWarning), raises_naming(RobotrlError, "worker", "1", "cluster.restarts"):
        try:
            learner.iterate()
        finally:
            learner.close()
    # killed as often as allowed, and once more
    assert [mark.exists() for mark in marks] == [True, True, False, False]


@pytest.mark.parametrize("lead", [0, 1])
def test_a_cluster_that_shrinks_and_grows_gives_the_same_numbers(lead: int, monkeypatch: pytest.MonkeyPatch):
    """A node with room for one worker leaves: the other steps both shards, until there is room again.

    With a lead, a worker may have given its next rollout before it was killed, so the loss is seen an iteration later.
    """
    learner = built(replace(RAY, max_staleness=lead))
    shards = runner(learner)
    places = shards._session.room(1)
    room = {"workers": 2}
    monkeypatch.setattr(shards._session, "room", lambda cpus: dict.fromkeys(places, room["workers"]))
    try:
        learner.iterate()
        first, second = shards._slots
        assert second.started is not None
        room["workers"] = 1
        os.kill(second.started.pid, signal.SIGKILL)
        with pytest.warns(
            UserWarning, match="worker 1 .*: no node has room, so worker 0 goes on from the state before"
        ):
            for _ in range(1 + lead):
                learner.iterate()
        assert second.worker is first.worker and learner._collector.scalars()["cluster/shared_workers"] == 1
        # the worker that steps both dies: there is one more, and again one for both
        assert first.started is not None
        os.kill(first.started.pid, signal.SIGKILL)
        with pytest.warns(UserWarning, match="worker [01] .*: another one goes on"):
            for _ in range(1 + lead):
                learner.iterate()
        assert second.worker is first.worker and shards.shared == 1
        room["workers"] = 2
        learner.iterate()
        guest = next(slot for slot in shards._slots if slot.host is not None)
        assert guest.next is not None
        ray.get(guest.next.started)
        with pytest.warns(UserWarning, match="a node has room"):
            learner.iterate()
        learner.iterate()
        assert shards.shared == 0 and second.worker is not first.worker
        found = snapshot(learner.state())
        assert same(found, state_after(built(replace(LOCAL, max_staleness=lead)), 6 + 2 * lead))
    finally:
        learner.close()


def test_an_error_in_a_worker_is_raised_here_with_its_envs():
    learner = built(RAY, poisoned)
    with raises_naming(NumericsError, "env", "5", "16", "31"):
        try:
            learner.iterate()
        finally:
            learner.close()


@pytest.mark.parametrize("field, other", [("python", "3.9"), ("robotrl", "0.0.1"), ("code", "0123456789ab")])
def test_a_worker_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch, field: str, other: str):
    ours = ray_shards.identity()
    monkeypatch.setattr(ray_shards, "identity", lambda: ours._replace(**{field: other}))
    with raises_naming(ConfigError, "worker", field, getattr(ours, field), other):
        built(ClusterCfg("ray", workers=1))


def test_a_cluster_that_is_too_small_is_refused():
    cpus = int(ray.cluster_resources()["CPU"])
    with raises_naming(ConfigError, "cluster.workers", "8", "cluster.cpus", "1", cpus):
        built(replace(RAY, workers=8))
    with raises_naming(ConfigError, "cluster.workers", "2", "cluster.cpus", cpus):
        built(replace(RAY, cpus=cpus))


SHORT = [*PEG_PPO, "--sim.num-envs", "8", "--algo.num-steps", "16", "--algo.env-steps", "384", "--algo.minibatch", "64"]
SHORT += [
    "--algo.critic-warmup-env-steps",
    "0",
    "--algo.engine",
    "eager",
    "--evaluation.episodes",
    "8",
    "--evaluation.animation",
    "0",
]


def scalars_of(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "scalars.jsonl").read_text().splitlines()]


def test_the_same_command_trains_with_and_without_ray(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    logged: list[list[dict[str, float]]] = []
    for name in ("local", "ray"):
        words = ["--cluster", name, "--cluster.workers", "2", "--run-dir", str(tmp_path / name)]
        assert main(["train", *SHORT, *words]) == 0, capsys.readouterr().err
        logged.append(scalars_of(tmp_path / name))
    local, remote = logged
    assert len(local) == len(remote) == 3
    for ours, theirs in zip(local, remote, strict=True):
        for key in ("rollout_reward", "value_loss", "pg_loss", "approx_kl", "std", "env_steps"):
            assert ours[key] == theirs[key], key
    assert {"cluster/env_steps_per_s/worker_1", "cluster/wait_s", "cluster/share_wait"} <= remote[-1].keys()
    assert main(["compare", str(tmp_path / "ray"), "--out", str(tmp_path / "page.html")]) == 0
    assert "Workers of" in (tmp_path / "page.html").read_text()


def ours_running() -> list[str]:
    """Ray processes that were started by robotrl."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = process.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if "robotrl-ray-" in line:
            found.append(line)
    return found


@pytest.mark.usefixtures("alone")
def test_a_run_that_starts_ray_is_saved_by_ctrl_c_and_leaves_nothing_running(tmp_path: Path):
    """The whole process group gets the signal, as from a terminal."""
    run = tmp_path / "run"
    words = ["--cluster", "ray", "--cluster.workers", "2", "--run-dir", str(run), "--algo.env-steps", "1000000"]
    command = [sys.executable, "-m", "robotrl.cli", "train", *SHORT, *words, "--evaluation.episodes", "0"]
    # a run of its own: nothing of the session that these tests share
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    process = subprocess.Popen(
        command, start_new_session=True, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=own
    )
    end = time.monotonic() + 240
    while time.monotonic() < end and process.poll() is None:
        if (run / "scalars.jsonl").exists() and len((run / "scalars.jsonl").read_text().splitlines()) > 3:
            break
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    assert process.stderr is not None
    said = process.stderr.read()
    assert process.wait() == 130, said
    assert "is saved" in said and "Traceback" not in said and "goes on" not in said
    assert ours_running() == []
    assert scalars_of(run)[-1]["cluster/restarts"] == 0
