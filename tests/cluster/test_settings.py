"""Settings of a cluster: what is refused, by field and value, before anything is started."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from robotrl.algos.bc import BcCfg
from robotrl.algos.iql import IqlCfg
from robotrl.algos.opd import OpdCfg
from robotrl.algos.ppo import PpoCfg
from robotrl.algos.rlpd import RlpdCfg
from robotrl.algos.sac import SacCfg
from robotrl.algos.td3_bc import Td3BcCfg
from robotrl.cli.main import main
from robotrl.cluster.ray_session import RaySession, end_leftovers
from robotrl.cluster.ray_worker import source_hash
from robotrl.config import ActorCfg, ClusterCfg, EvalCfg, SimCfg, TrainCfg, check, from_json, to_json
from robotrl.engine import distributed
from robotrl.engine.distributed import DistributedContext
from robotrl.errors import CapabilityError, ConfigError
from robotrl.policies.gaussian import GaussianCfg
from robotrl.training import train
from robotrl.utils.hardware import usable_cores
from tests.kits.commands import PEG_PPO
from tests.kits.refusals import raises_naming

PLAIN = TrainCfg(
    sim=SimCfg("mujoco/peg-insert", num_envs=8), algo=PpoCfg(), policy=GaussianCfg(), evaluation=EvalCfg(episodes=0)
)


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"cluster": ClusterCfg(workers=2)}, ("cluster.workers", "2", "'none'")),
        ({"cluster": ClusterCfg("ray", workers=3)}, ("cluster.workers", "3", "8")),
        ({"cluster": ClusterCfg("ray", workers=0)}, ("cluster.workers", "0")),
        ({"cluster": ClusterCfg("ray", cpus=0)}, ("cluster.cpus", "0")),
        ({"cluster": ClusterCfg("ray", max_staleness=-1)}, ("cluster.max_staleness", "-1")),
        ({"cluster": ClusterCfg("ray", timeout_s=0.0)}, ("cluster.timeout_s", "0")),
        ({"cluster": ClusterCfg("local", address="auto")}, ("cluster.address", "auto", "ray")),
        ({"cluster": replace(ClusterCfg(), name="rey")}, ("cluster.name", "rey", "ray")),
        ({"cluster": ClusterCfg("ray"), "actor": ActorCfg(process=True)}, ("actor.process", "ray")),
        ({"algo": replace(PpoCfg(), correction="v-trace")}, ("algo.correction", "v-trace", "vtrace")),
        ({"cluster": ClusterCfg("ray"), "fsdp": True}, ("fsdp", "ray")),
        ({"cluster": ClusterCfg("ray", learners=0)}, ("cluster.learners", "0")),
        ({"cluster": ClusterCfg("ray", learners=2, learner_cpus=0)}, ("cluster.learner_cpus", "0")),
        ({"cluster": ClusterCfg(learners=2)}, ("cluster.learners", "2", "'none'")),
        ({"cluster": ClusterCfg("ray", learners=2, workers=-1)}, ("cluster.workers", "-1")),
        (
            {"cluster": ClusterCfg("ray", learners=2, workers=0, max_staleness=1)},
            ("cluster.max_staleness", "cluster.workers"),
        ),
        ({"cluster": ClusterCfg("ray", learners=2), "device": "cuda:1"}, ("device", "cuda:1", "cluster.learners")),
    ],
)
def test_settings_out_of_range_and_pairs_that_do_not_fit(changes: dict[str, Any], named: tuple[str, ...]):
    with raises_naming(ConfigError, *named):
        check(replace(PLAIN, **changes))


def test_several_learners_may_have_no_workers_and_spread_their_weights():
    check(replace(PLAIN, cluster=ClusterCfg("ray", learners=2, workers=0), fsdp=True))
    check(replace(PLAIN, algo=BcCfg(), cluster=ClusterCfg("ray", learners=2, workers=0)))
    cluster = ClusterCfg("ray", learners=3, learner_cpus=2, workers=4)
    assert (cluster.reserved_cpus, cluster.cpus_at_once) == (18, 12)
    assert ClusterCfg("ray", workers=4, cpus=2).reserved_cpus == ClusterCfg("ray", workers=4, cpus=2).cpus_at_once == 8


def test_as_many_processes_as_learners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with raises_naming(ConfigError, "cluster.learners", "2", "one process", "robotrl train"):
        train(replace(PLAIN, cluster=ClusterCfg("local", learners=2)), tmp_path / "run")
    world = DistributedContext(0, 2)
    monkeypatch.setattr(distributed, "joined", lambda timeout_s: nullcontext(world))
    with raises_naming(ConfigError, "cluster.learners", "1", "WORLD_SIZE", "2"):
        train(replace(PLAIN, cluster=ClusterCfg("local")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_without_a_cluster_in_its_config_has_none():
    stored = to_json(PLAIN)
    del stored["cluster"]
    types = {"algo": PpoCfg, "policy": GaussianCfg}
    assert from_json(stored, types).cluster == ClusterCfg()
    assert from_json(to_json(replace(PLAIN, cluster=ClusterCfg("ray", workers=2))), types).cluster.workers == 2


def test_more_workers_than_cores_are_refused_before_ray_starts():
    pytest.importorskip("ray")
    with raises_naming(ConfigError, "cluster.workers", "cluster.address", str(usable_cores())):
        RaySession(ClusterCfg("ray", workers=usable_cores() + 1))


@pytest.mark.parametrize(
    "algo, cluster, named",
    [
        (Td3BcCfg(), ClusterCfg("ray"), ("Td3BcCfg", "ray")),
        (BcCfg(), ClusterCfg("local"), ("BcCfg", "local")),
        (OpdCfg(), ClusterCfg("ray", max_staleness=2), ("OpdCfg", "cluster.max_staleness", "2", "0", "grpo")),
    ],
)
def test_methods_that_cannot_are_refused_by_name(algo: Any, cluster: ClusterCfg, named: tuple[str, ...]):
    with raises_naming(CapabilityError, *named):
        check(replace(PLAIN, algo=algo, cluster=cluster))


def test_a_method_that_takes_no_env_steps_has_nothing_for_workers():
    with raises_naming(ConfigError, "algo.env_steps", "0", "ray"):
        check(replace(PLAIN, algo=IqlCfg(env_steps=0), cluster=ClusterCfg("ray")))
    for algo in (SacCfg(), RlpdCfg(), IqlCfg(env_steps=100)):
        check(replace(PLAIN, algo=algo, cluster=ClusterCfg("ray", workers=2, max_staleness=2)))


def test_a_refusal_is_one_line_and_leaves_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = tmp_path / "run"
    assert main(["train", *PEG_PPO, "--cluster", "ray", "--cluster.workers", "7", "--run-dir", str(run)]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert "cluster.workers is 7" in said[-1] and not any("Traceback" in line for line in said)
    assert not run.exists()


def test_a_ray_that_did_not_come_up_leaves_neither_processes_nor_files(tmp_path: Path):
    """A process that writes to the folder, as Ray's helpers do, and its child; one of another folder is left alone."""
    folder, other = tmp_path / "robotrl-ray-a", tmp_path / "robotrl-ray-b"
    code = (
        "import pathlib, sys, time\nwhile True: (pathlib.Path(sys.argv[1]) / 'log').write_text('x'); time.sleep(0.01)"
    )
    started: list[subprocess.Popen[bytes]] = []
    for one in (folder, other):
        one.mkdir()
        started.append(subprocess.Popen(["sh", "-c", f"{shlex.join([sys.executable, '-c', code, str(one)])}; true"]))
    end = time.monotonic() + 60
    while not ((folder / "log").exists() and (other / "log").exists()):
        assert time.monotonic() < end
        time.sleep(0.02)
    end_leftovers(folder)
    shutil.rmtree(folder)
    time.sleep(0.1)
    assert not folder.exists() and not psutil.pid_exists(started[0].pid) and psutil.pid_exists(started[1].pid)
    end_leftovers(other)
    assert not psutil.pid_exists(started[1].pid)


def test_the_hash_of_the_sources_is_that_of_all_that_acts():
    found = source_hash()
    assert len(found) == 12 and int(found, 16) >= 0 and source_hash() == found
    source_hash.cache_clear()
    assert source_hash() == found


def test_a_second_head_on_a_run_is_refused_before_its_workers_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(RaySession, "__init__", lambda *_: pytest.fail("Ray was started"))
    run = tmp_path / "run"
    words = ["--cluster", "local", "--cluster.workers", "2", "--run-dir", str(run), "--sim.num-envs", "8"]
    small = ["--algo.env-steps", "16", "--algo.num-steps", "2", "--algo.minibatch", "8", "--evaluation.episodes", "0"]
    assert main(["train", *PEG_PPO, *small, *words]) == 0
    held = "import sys, time; from pathlib import Path; from robotrl.run.locking import WriteLock; "
    held += "WriteLock(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", held, str(run)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    try:
        capsys.readouterr()
        assert main(["train", "--resume", str(run)]) == 2
        assert f"is being written by process {holder.pid}" in capsys.readouterr().err.strip().splitlines()[-1]
    finally:
        holder.kill()
        holder.wait()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1", "head", "127.0.0.1:99999999", ":6379"])
def test_no_cluster_at_the_address_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, address: str
):
    ray = pytest.importorskip("ray")
    # another test's Ray would serve
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    run = tmp_path / "run"
    words = ["--cluster", "ray", "--cluster.address", address, "--run-dir", str(run)]
    assert main(["train", *PEG_PPO, "--evaluation.episodes", "0", *words]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"cluster.address is {address!r}" in last and "auto" in last
    assert not run.exists()
