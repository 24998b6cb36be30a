"""The files for clusters: shells and YAML read them, their fields are KubeRay's, and their commands are ours."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from robotrl import config as configs
from robotrl.cli.commands.train import parse_config, split_names
from robotrl.sweeps.arguments import of_training
from tests.kits.paths_kit import ROOT

FILES = ROOT / "tools" / "clusters"
SCRIPTS = sorted(FILES.glob("*.sh"))
# Fields of KubeRay's v1 types RayJobSpec, RayClusterSpec, HeadGroupSpec and WorkerGroupSpec that the file may use.
JOB = {"entrypoint", "backoffLimit", "activeDeadlineSeconds", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished"}
JOB |= {"submitterConfig", "submitterPodTemplate", "rayClusterSpec", "runtimeEnvYAML", "entrypointNumCpus", "suspend"}
CLUSTER = {"headGroupSpec", "workerGroupSpecs", "rayVersion", "enableInTreeAutoscaling", "autoscalerOptions"}
HEAD = {"serviceType", "rayStartParams", "template", "enableIngress"}
WORKERS = {"groupName", "replicas", "minReplicas", "maxReplicas", "numOfHosts", "rayStartParams", "template"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_read_by_a_shell_and_say_how_they_are_used(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    told = subprocess.run(["bash", str(script)], capture_output=True, text=True, check=False)
    assert told.returncode == 2 and told.stderr.startswith("usage: ")


def test_lists_without_a_machine_are_refused(tmp_path: Path) -> None:
    """Before any machine is reached."""
    (tmp_path / "empty").write_text("# nobody\n\n")
    for name, said in (("empty", "names no machine"), ("none", "cannot be read")):
        command = ["bash", str(FILES / "machines.sh"), "start", str(tmp_path / name)]
        told = subprocess.run(command, capture_output=True, text=True, check=False)
        assert told.returncode == 2 and said in told.stderr and told.stderr.count("\n") == 1


def job() -> dict[str, Any]:
    return yaml.safe_load((FILES / "kuberay-job.yaml").read_text())


def test_the_job_has_fields_of_kuberay() -> None:
    found = job()
    assert (found["apiVersion"], found["kind"]) == ("ray.io/v1", "RayJob")
    spec = found["spec"]
    cluster = spec["rayClusterSpec"]
    head, groups = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    assert spec.keys() <= JOB and cluster.keys() <= CLUSTER and head.keys() <= HEAD
    for group in groups:
        assert group.keys() <= WORKERS and {"groupName", "minReplicas", "maxReplicas"} <= group.keys()
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    pods = [part["template"]["spec"] for part in (head, *groups)]
    for pod in pods:
        mounted = {mount["name"] for one in pod["containers"] for mount in one.get("volumeMounts", [])}
        assert mounted == {volume["name"] for volume in pod.get("volumes", [])}
    # one image, or the workers are refused
    assert len({one["image"] for pod in pods for one in pod["containers"]}) == 1
    for part in (head, *groups):
        assert all(isinstance(value, str) for value in part["rayStartParams"].values())


def test_the_job_trains_what_its_workers_have_room_for() -> None:
    spec = job()["spec"]
    shell, flag, script = shlex.split(spec["entrypoint"])
    assert (shell, flag) == ("sh", "-c")
    words = re.search(r"exec robotrl train (?!--resume)(.*)$", script)
    assert words is not None
    arguments = words[1].split()
    at = arguments.index("--run-dir")
    assert f"--resume {arguments[at + 1]};" in script and f"-e {arguments[at + 1]}/config.json" in script
    cfg = of_training(parse_config(*split_names(arguments))[0])
    configs.check(configs.resolved(cfg))
    groups = spec["rayClusterSpec"]["workerGroupSpecs"]
    cores = sum(
        one["replicas"] * int(one["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"]) for one in groups
    )
    assert cfg.cluster.workers * cfg.cluster.cpus <= cores
