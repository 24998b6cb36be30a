"""The import directions of the architecture, read from the source: an import inside a function counts as well."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kits.paths_kit import ROOT

sys.path.insert(0, str(ROOT / "tools"))
from layout import folder_of, setuptools_config

BASE = {"spec", "transforms", "registry", "errors", "cores", "trace", "plain", "symmetry", "safe_path", "user_module"}
HELPERS = {"files", "memory", "progress"}
RUN = {
    "run",
    "inputs",
    "callbacks",
    "checkpoint",
    "locking",
    "logs",
    "media",
    "provenance",
    "rng",
    "store",
    "tree",
    "weights",
}
LEARN = (
    BASE
    | HELPERS
    | RUN
    | {
        "fn",
        "data",
        "cursor",
        "parts",
        "collect",
        "group_rollout",
        "loop",
        "config",
        "load",
        "fit",
        "frozen",
        "halved",
        "adapters",
        "placed",
        "devices",
        "cuda_graph",
    }
)
ALL = LEARN | {
    "policies",
    "rewards",
    "interventions",
    "algos",
    "sims",
    "deploy",
    "report",
    "train",
    "quickstart",
    "benchmarks",
}
ALL |= {"evaluation", "exporting", "viewing", "wrapping", "curriculum", "importers", "room", "published", "profiles"}
ALL |= {"digests", "stopping", "drives", "filming", "verdict", "second_look"}
SHELL = {"cli", "commands", "doctor", "inspection", "probe"}
SHARED_BY_SIMS = {"sims.interop", "sims.starts", "sims.actions", "sims.exact_state", "sims.core_sim"}
"""What makes a Gymnasium env of any sim, starts, bounds of actions, cores in torch clothes: what adapters share."""

# Part (the longest match wins) to the parts that it may import. "" is robotrl/__init__.
MAY_IMPORT = {
    **dict.fromkeys(BASE, BASE),
    **dict.fromkeys(HELPERS, BASE | HELPERS),
    **dict.fromkeys(RUN, BASE | HELPERS | RUN),
    "fn": BASE,
    "data": BASE | HELPERS | {"fn"},
    # The demonstration factory stands above the loop, which alone steps sims.
    "data.demos": BASE | HELPERS | {"fn", "data", "loop"},
    **dict.fromkeys(("cursor", "parts"), BASE),
    "collect": BASE | {"fn", "data", "cursor"},
    "group_rollout": BASE | {"fn", "data", "collect"},
    # A wrapper around a sim is as good a Gymnasium env as the sim.
    "wrapping": BASE | {"sims.interop"},
    "curriculum": BASE | {"fn", "wrapping"},
    "devices": {"errors"},
    "cuda_graph": BASE,
    "placed": BASE | {"wrapping"},
    # Builds policies from what others publish.
    "importers": LEARN | {"policies"},
    "loop": BASE | HELPERS | {"fn", "data", "collect", "cursor"},
    "config": BASE | {"interventions.config"},
    # Whether a policy is for a sim.
    "fit": BASE,
    "frozen": BASE,
    "halved": BASE | {"frozen"},
    "adapters": BASE | {"config", "frozen", "halved"},
    # Finds a policy in a run, and its class through the registry.
    # What a policy that says tokens stores beside its actions, to be known again by.
    "token_fingerprint": BASE,
    "load": BASE | HELPERS | RUN | {"adapters", "token_fingerprint"},
    "policies": {"spec", "transforms", "errors", "plain", "fn"},
    # Replays what it says one token after the other with.
    "policies.vla.decode_graph": {"policies", "cuda_graph"},
    # Its base may be a policy of any kind.
    "policies.steered": {"spec", "transforms", "errors", "plain", "fn", "registry", "policies"},
    "sims": {
        "spec",
        "transforms",
        "errors",
        "plain",
        "cores",
        "trace",
        "symmetry",
        "fn",
        "devices",
        "files",
        "safe_path",
        "user_module",
        *SHARED_BY_SIMS,
    },
    # Registers every sim of the registry with Gymnasium.
    "sims.interop": {"spec", "transforms", "errors", "fn", "registry"},
    # Called by the collector; knows sims, experts and devices, no learner.
    "interventions": BASE | {"fn", "data"},
    "rewards": LEARN | {"policies", "wrapping"},
    # Trains on the engine of the algorithms and the rows that feed it, which know nothing of rewards.
    **dict.fromkeys(
        ("rewards.training", "rewards.process_training"), LEARN | {"policies", "algos.engine", "algos.rows"}
    ),
    "algos": LEARN | {"policies", "interventions"},
    # Learns from a process reward that was trained before, and keeps it in its checkpoints.
    "algos.vla_rl": LEARN | {"policies", "rewards.process", "rewards.process_stored"},
    "published": BASE | {"policies"},
    # Fields by name: knows no algorithm.
    "profiles": {"errors"},
    # What a run reads from outside: any sim's factory may say, and any config.
    "digests": LEARN,
    "room": LEARN | {"policies", "algos"},
    # Reads a config and what an evaluation found.
    "stopping": BASE | {"config", "loop"},
    # Compares a run's checkpoints when it has ended.
    "second_look": LEARN,
    "train": LEARN
    | {"policies", "rewards", "interventions", "algos", "curriculum", "room", "digests", "stopping", "second_look"},
    "deploy": BASE,
    "deploy.export": LEARN | {"policies", "deploy"},
    "report": BASE | HELPERS,
    "configs": LEARN | {"policies", "algos", "train"},
    "rollouts": {"loop", "report"},
    # The body of a command, which composes presets as the command line does.
    "quickstart": (ALL - {"benchmarks"}) | {"configs", "rollouts"},
    "benchmarks": ALL,
    # Faults are given to what users call, commands included.
    "benchmarks.faults": ALL | SHELL,
    **dict.fromkeys(("evaluation", "exporting", "viewing", "drives", "filming", "verdict"), ALL | {"inspection"}),
    **dict.fromkeys(SHELL, ALL | SHELL),
    "": ALL,
}
# Only these, apart from the parts that own them, may name a heavy package, even inside a function.
TORCH_FREE = BASE | HELPERS | SHELL | {"deploy", "report", "configs"}
NEEDS_TORCH = {"deploy.export", "transforms"}
"""`transforms` imports torch inside its torch backend."""
OWNERS = {
    "mujoco": {"sims.mujoco", "benchmarks"},
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
        if found.module.split(".")[0] == "robotrl"
    ]


def longest(name: str, parts) -> str | None:
    matches = [part for part in parts if part == name or (part and name.startswith(part + "."))]
    return max(matches, key=len, default=None)


def own(name: str) -> str:
    """The part within which a module may import freely: an adapter of a sim, else the top-level part."""
    return ".".join(name.split(".")[: 2 if name.startswith("sims.") else 1])


@pytest.mark.parametrize("name", list(modules()))
def test_imports_point_the_right_way(name):
    part = longest(name, MAY_IMPORT)
    assert part is not None, f"{name} belongs to no part: say in MAY_IMPORT what it may import"
    for found in of_ours(name):
        target = found.module
        if target in ("", name.split(".")[0]) or longest(target, {own(name)}):
            continue
        assert longest(target, MAY_IMPORT[part]), f"{modules()[name]}:{found.line}: {name} may not import {target}"


def test_only_the_quickstart_imports_presets():
    users = {name for name in modules() for found in of_ours(name) if own(found.module) == "configs"}
    assert {own(name) for name in users} <= {"configs", "quickstart"}


def test_only_the_shell_and_what_shows_the_whole_imports_export():
    allowed = SHELL | {"", "exporting", "quickstart", "benchmarks"}
    users = {name for name in modules() for found in of_ours(name) if found.module == "deploy.export"}
    assert {own(name) for name in users} <= allowed


@pytest.mark.parametrize("name", [n for n in modules() if longest(n, TORCH_FREE) and n not in NEEDS_TORCH])
def test_no_torch_where_a_robot_or_help_runs(name):
    heavy = {"torch", "mujoco", "gymnasium", "onnx", "onnxscript"}
    real = [found for found in imports(name) if not found.for_types_only]
    assert [found for found in real if found.module.split(".")[0] in heavy] == []


def test_a_simulator_is_imported_only_by_its_adapter():
    for name in modules():
        for found in imports(name):
            owners = OWNERS.get(found.module.split(".")[0])
            assert owners is None or found.for_types_only or longest(name, owners), f"{name} imports {found.module}"


@pytest.mark.parametrize("name", [n for n in modules() if own(n) in {"cli", "commands", ""}])
def test_the_command_line_imports_what_works_only_when_it_runs(name):
    light = BASE | {"commands", "cli", "commands.parsing", "commands.outputs", "files", "importers.layouts", ""}
    early = [found for found in of_ours(name) if found.at_top and not found.for_types_only]
    assert [found for found in early if found.module not in light] == []


@pytest.mark.parametrize("module", ["runtime", "control", "robots.driver", "robots.sim_robot"])
def test_the_runtime_loads_neither_torch_nor_anything_that_learns(module):
    code = f"import sys, robotrl.deploy.{module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert loaded.isdisjoint({"torch", "mujoco", "gymnasium", "onnx", "onnxscript", "pyarrow"})
    ours = {name.removeprefix("robotrl").removeprefix(".") for name in loaded if name.split(".")[0] == "robotrl"}
    assert {own(name) for name in ours} <= BASE | {"", "deploy"}


def test_the_rules_see_a_violation(tmp_path):
    """The reader above must find what it is meant to find."""
    source = tmp_path / "bad.py"
    source.write_text("def f():\n    from robotrl.algos import bc\n    import torch\n    return bc, torch\n")
    modules()["sims.bad"] = source
    try:
        assert [found.module for found in of_ours("sims.bad")] == ["algos.bc"]
        with pytest.raises(AssertionError, match=r"bad.py:2: sims.bad may not import algos.bc"):
            test_imports_point_the_right_way("sims.bad")
    finally:
        del modules()["sims.bad"]
