"""The import directions of the architecture, read from the source: an import inside a function counts as well."""

import ast
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kits.paths_kit import ROOT

sys.path.insert(0, str(ROOT / "tools"))
from layout import folder_of, setuptools_config

BASE = {"errors", "spec", "transforms", "registry", "removed_presets"}
ROLLOUT = BASE | {"utils", "fn", "datasets", "replay", "rollout"}
LEARN = ROLLOUT | {"config", "peft", "run", "labels"}
ALL = LEARN | {"policies", "engine", "learners", "algos", "rewards", "interventions", "importers", "api", "sims"}
ALL |= {"cluster", "deploy", "report", "training", "memory_estimate", "composition", "testing", "traffic"}
ALL |= {"jobs", "sweeps", "improve"}
PROCESS_REWARD = {"rewards.process_model", "rewards.process_stored", "rewards.process_term"}
SHARED_BY_SIMS = {"sims.interop", "sims.starts", "sims.actions", "sims.exact_state", "sims.core_sim"}
SHARED_BY_SIMS |= {"sims.expert_state", "sims.wrapper"}
"""A Gymnasium env of any sim, starts, bounds of actions, cores as torch sims: shared by the adapters."""

DRIVING_WORLDS = ("sims.bev", "sims.carla", "sims.warp")
# Folder (the longest match wins) to the folders that it may import. "" is robotrl/__init__.
MAY_IMPORT = {
    **dict.fromkeys(BASE, BASE),
    # an extra that is missing is named with the line that installs it
    "registry": BASE | {"utils.installation"},
    "utils": {"errors"},
    "fn": BASE,
    "datasets": BASE | {"utils", "fn"},
    "replay": BASE | {"utils", "fn", "datasets"},
    "labels": BASE | {"utils", "fn", "datasets"},
    "rollout": ROLLOUT | {"sims.wrapper"},
    # a person at a device records demonstrations
    "rollout.driven": ROLLOUT | {"interventions"},
    "interventions": BASE | {"fn", "replay"},
    "config": BASE | {"interventions.config"},
    "composition": BASE | {"config"},
    "peft": BASE | {"config", "utils.installation"},
    "run": LEARN,
    # child processes: runs of several seeds or of a sweep, cells of a bench
    "jobs": {"errors", "utils", "run"},
    "policies": {"spec", "transforms", "errors", "fn"},
    "policies.networks.own": {"policies", "errors", "utils.user_module"},
    "policies.vla.decoding.cuda_graph": {"policies", "utils.cuda_graph"},
    # its base may be a policy of any kind
    "policies.over_base": {"spec", "transforms", "errors", "fn", "registry", "policies"},
    "sims": {"spec", "transforms", "errors", "fn", "utils", *SHARED_BY_SIMS},
    "sims.perturbation": {"spec", "errors", "fn", *SHARED_BY_SIMS, "sims.families"},
    "sims.families": {"spec", "errors", "fn", *SHARED_BY_SIMS},
    # lanes, routes, rasters and scores: driving worlds share them, and never import each other
    **{world: {"spec", "errors", "fn", "utils", *SHARED_BY_SIMS, "sims.driving"} for world in DRIVING_WORLDS},
    # loads populations of traffic by name
    "sims.bev.sim": {"spec", "errors", "fn", "utils", *SHARED_BY_SIMS, "sims.driving", "sims.bev", "registry"},
    # registers every sim of the registry with Gymnasium
    "sims.interop": {"spec", "transforms", "errors", "fn", "registry", "utils.installation"},
    # makes the sim that another process serves
    "sims.remote.serve": {"spec", "errors", "registry", "utils.devices", "sims.core_sim"},
    # asks the options of that sim for the files that they name
    "sims.remote.inputs": {"spec", "registry"},
    "importers": LEARN | {"policies"},
    "engine": LEARN | {"policies.networks"},
    "learners": LEARN | {"policies", "engine", "interventions"},
    # suggests actions by a served vision-language model
    "learners.guidance": LEARN | {"policies", "engine", "learners", "rewards.endpoint", "rewards.scoring.ledger"},
    "rewards": LEARN | {"policies", "engine", "sims.wrapper"},
    "algos": LEARN | {"policies", "engine", "interventions", "learners"},
    # learns from a process reward that was trained before, and keeps it in its checkpoints
    "algos.vla_rl": LEARN | {"policies", "engine", "learners", *PROCESS_REWARD},
    "testing": LEARN | {"rewards", "sims", "learners"},
    # drives a robot as the control loop does, without torch
    "testing.robots": BASE | {"deploy"},
    # trains the traffic of a sim
    "traffic": BASE | {"fn", "utils", "run", "sims"},
    "memory_estimate": LEARN | {"policies", "engine", "learners"},
    "training": LEARN | {"policies", "engine", "learners", "rewards", "memory_estimate", "sims.wrapper", "cluster"},
    # jobs on the nodes of a cluster
    "cluster.ray_jobs": {"config", "errors", "jobs", "cluster"},
    "cluster.ray_learners": {"config", "errors", "jobs", "cluster", "run.locking"},
    # rollouts on several workers, beside the training loop
    "cluster": LEARN | {"engine", "learners"},
    "deploy": BASE | {"utils"},
    "deploy.export": LEARN | {"policies", "deploy"},
    # observes the scenes of a driving simulator as the driving sims do
    "deploy.driver": BASE | {"utils", "deploy", "sims.driving"},
    # instructions of openpi's robots become word numbers
    "deploy.remote.openpi": BASE | {"utils", "fn.text"},
    "report": BASE | {"utils"},
    # draws the numbers of a control log
    "report.control": BASE | {"utils", "deploy.analysis", "deploy.control"},
    "configs": {"config", "policies", "algos", "sims"},
    "api": LEARN | {"policies", "deploy", "report", "importers", "sims"},
    # rewards are measured on rollouts, and shown on a page
    "api.reward_evaluation": LEARN | {"policies", "report", "rewards", "api"},
    "api.reward_report": LEARN | {"report", "rewards", "api", ""},
    "api.training": LEARN | {"training", "composition", "api", "sims.interop"},
    # from logs of a robot to a candidate, through the training and the verdict that all use
    "improve": LEARN | {"policies", "deploy", "report", "api", "training"},
    # plans of runs, and what they came to
    "sweeps": LEARN | {"jobs", "api", "report"},
    "cli": ALL | {"configs", "benchmarks"},
    "benchmarks": ALL | {"cli"},
    "": {"api", "registry", "rollout", "run", "moved", "torchvision_guard", "utils.lazy"},
    "moved": set(),
    "torchvision_guard": set(),
}
# Only these, apart from the parts that own them, may name a heavy package, even inside a function.
TORCH_FREE = BASE | {"utils", "cli", "deploy", "report", "configs"}
NEEDS_TORCH = {
    "deploy.export",
    "deploy.export_reflex",
    "deploy.export_steering",
    "deploy.robots.sim_as_robot",
    "transforms",
    "utils.batched",
    "utils.cuda_graph",
    "utils.devices",
    "cli.quickstart",
}
"""`transforms` imports torch inside its torch backend."""
OWNERS = {
    "mujoco": {"sims.mujoco", "benchmarks"},
    "warp": {"sims.mujoco.warp"},
    "mujoco_warp": {"sims.mujoco.warp"},
    "gymnasium": {"sims", "benchmarks"},
    "stable_baselines3": {"sims", "benchmarks"},
}
"""A bench imports the peer that it measures."""


class Import(NamedTuple):
    module: str
    line: int
    for_types_only: bool
    at_top: bool


@cache
def modules() -> dict[str, Path]:
    """Name without the leading "robotrl." to file."""
    found = {}
    for package in setuptools_config()["packages"]:
        for path in sorted((ROOT / folder_of(package)).glob("*.py")):
            name = package if path.stem == "__init__" else f"{package}.{path.stem}"
            found[name.removeprefix("robotrl").removeprefix(".")] = path
    for path in sorted((ROOT / "benchmarks").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


@cache
def imports(name: str) -> list[Import]:
    found: list[Import] = []

    def visit(node: ast.AST, for_types: bool, at_top: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, for_types, at_top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} line {node.lineno}: relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                module = full if full.removeprefix("robotrl.") in modules() else str(node.module)
                found.append(Import(module, node.lineno, for_types, at_top))
        typing_block = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        inner = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, for_types or typing_block, at_top and not inner)

    visit(ast.parse(modules()[name].read_text()), False, True)
    return found


def of_ours(name: str) -> list[Import]:
    return [
        found._replace(module=found.module.removeprefix("robotrl").removeprefix("."))
        for found in imports(name)
        if found.module.split(".")[0] in ("robotrl", "benchmarks")
    ]


def longest(name: str, parts) -> str | None:
    matches = [part for part in parts if part == name or (part and name.startswith(part + "."))]
    return max(matches, key=len, default=None)


def own(name: str) -> str:
    """The part within which a module may import freely: an adapter of a sim, else the top-level part."""
    return ".".join(name.split(".")[: 2 if name.startswith("sims.") else 1])


def wrong_ways(names) -> list[str]:
    """Imports that the table does not allow, a line each."""
    found = []
    for name in names:
        part = longest(name, MAY_IMPORT)
        if part is None:
            found.append(f"{name} belongs to no folder: say in MAY_IMPORT what it may import")
            continue
        for imported in of_ours(name):
            target = imported.module
            if target in ("", name.split(".")[0]) or longest(target, {own(name)}):
                continue
            if not longest(target, MAY_IMPORT[part]):
                found.append(f"{modules()[name]}:{imported.line}: {name} may not import {target}")
    return found


def test_imports_point_the_right_way():
    assert wrong_ways(modules()) == []


LISTS = {"robotrl/algos", "policies", "robotrl/rewards", "robotrl/cli/commands"}
"""Folders where each file is an entry of a registry or a command."""


def test_a_folder_is_short_enough_to_read():
    sizes = Counter(path.parent.relative_to(ROOT).as_posix() for path in modules().values() if path.stem != "__init__")
    assert {folder: size for folder, size in sizes.items() if size > (30 if folder in LISTS else 17)} == {}


def test_no_circle_of_modules():
    """Imports at the top of modules, those for types alone left out, form no circle."""
    edges = {
        name: {found.module for found in of_ours(name) if found.at_top and not found.for_types_only} & modules().keys()
        for name in modules()
    }
    edges[""] = set()
    while leaves := [name for name, targets in edges.items() if not targets]:
        for name in leaves:
            del edges[name]
        for targets in edges.values():
            targets.difference_update(leaves)
    assert edges == {}


def test_only_the_quickstart_imports_presets():
    users = {name for name in modules() for found in of_ours(name) if own(found.module) == "configs"}
    assert {name for name in users if own(name) != "configs"} == {"cli.quickstart"}


def test_only_the_shell_and_what_shows_the_whole_imports_export():
    allowed = {"", "api", "cli", "benchmarks"}
    users = {name for name in modules() for found in of_ours(name) if found.module == "deploy.export"}
    assert {own(name) for name in users} <= allowed


def test_no_torch_where_a_robot_or_help_runs():
    heavy = {"torch", "mujoco", "gymnasium", "onnx", "onnxscript"}
    for name in modules():
        if longest(name, TORCH_FREE) and name not in NEEDS_TORCH:
            real = [found for found in imports(name) if not found.for_types_only]
            assert [found for found in real if found.module.split(".")[0] in heavy] == [], name


def test_a_simulator_is_imported_only_by_its_adapter():
    for name in modules():
        for found in imports(name):
            owners = OWNERS.get(found.module.split(".")[0])
            assert owners is None or found.for_types_only or longest(name, owners), f"{name} imports {found.module}"


def test_the_command_line_imports_what_works_only_when_it_runs():
    light = {
        "",
        "moved",
        "torchvision_guard",
        "errors",
        "registry",
        "removed_presets",
        "spec",
        "spec.json_fields",
        "spec.sim_options",
        "utils.files",
        "utils.native_thread",
        "utils.safe_path",
        "utils.source_texts",
    }
    light |= {"importers.layouts", "utils.installation", "utils.lazy"}
    light |= {
        "cli",
        "cli.main",
        "cli.commands",
        "cli.outputs",
        *(f"cli.commands.{n}" for n in ("bench", "parsing", "sim_flags")),
    }
    for name in modules():
        if name in ("", "cli", "cli.main") or name.startswith("cli.commands"):
            early = [found for found in of_ours(name) if found.at_top and not found.for_types_only]
            assert [found for found in early if found.module not in light] == [], name


@pytest.mark.parametrize("module", ["runtime", "control.run", "remote.controller", "robots.driver", "robots.sim_robot"])
def test_the_runtime_loads_neither_torch_nor_anything_that_learns(module):
    code = f"import sys, robotrl.deploy.{module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert loaded.isdisjoint({"torch", "mujoco", "gymnasium", "onnx", "onnxscript", "pyarrow"})
    ours = {name.removeprefix("robotrl").removeprefix(".") for name in loaded if name.split(".")[0] == "robotrl"}
    assert {own(name) for name in ours} <= BASE | {"", "moved", "torchvision_guard", "deploy", "utils"}


def test_the_rules_see_a_violation(tmp_path):
    """The reader above must find what it is meant to find."""
    source = tmp_path / "bad.py"
    source.write_text("def f():\n    from robotrl.algos import bc\n    import torch\n    return bc, torch\n")
    modules()["sims.bad"] = source
    try:
        assert [found.module for found in of_ours("sims.bad")] == ["algos.bc"]
        assert wrong_ways(["sims.bad"]) == [f"{source}:2: sims.bad may not import algos.bc"]
    finally:
        del modules()["sims.bad"]


def test_one_name_stands_for_one_class():
    """Public classes of the package; each command has arguments of its own, `Args`."""
    found = Counter(
        node.name
        for name, path in modules().items()
        if name.split(".")[0] != "benchmarks"
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node.name != "Args"
    )
    assert [name for name, count in found.items() if count > 1] == []
