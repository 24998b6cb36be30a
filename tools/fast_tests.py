"""Runs the tests that a change most likely breaks, in under two minutes: `make test-fast`.

Tests of the contracts and pure functions always run. A changed module adds the tests of its folder (`tests/` mirrors
the packages), a changed test file adds itself. The slowest files (`SLOW_FIRST` in tests/conftest.py) are left to
`make test`: one of them may take longer than all the rest; those that have changed are named.

Usage: fast_tests.py [pytest options ...]
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
ALWAYS = ("structure", "spec", "fn", "utils")
PACKAGES = {"sims": "sims", "policies": "policies", "deploy": "deploy", "configs": "cli", "benchmarks": "benchmarks"}
"""Folder at the top to its folder in `tests/`; those of `robotrl/` have the same name there."""


def changed() -> list[Path]:
    """Files that differ from the main branch, relative to the root; on the main branch, those of the last commit."""
    run = ["git", "-C", str(ROOT)]
    names: set[str] = set()
    for command in (("diff", "--name-only", "HEAD"), ("ls-files", "--others", "--exclude-standard")):
        names |= set(subprocess.run([*run, *command], capture_output=True, text=True, check=True).stdout.split("\n"))
    base = subprocess.run(
        [*run, "merge-base", "HEAD", "main"], capture_output=True, text=True, check=False
    ).stdout.strip()
    head = subprocess.run([*run, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    if not base or base == head:
        base = "HEAD~1"
    done = subprocess.run([*run, "diff", "--name-only", base, "HEAD"], capture_output=True, text=True, check=False)
    return [Path(name) for name in sorted(names | set(done.stdout.split("\n"))) if name]


def slow_files() -> set[str]:
    """Test files, relative to `tests/`, that only the whole suite runs."""
    for node in ast.parse((TESTS / "conftest.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SLOW_FIRST":
            return set(ast.literal_eval(node.value))
    raise LookupError("tests/conftest.py has no SLOW_FIRST")


def folders(file: Path) -> list[Path]:
    """Folders of tests for a changed file of a package, the closest that exist."""
    top, *rest = file.parent.parts
    place = TESTS.joinpath(*rest) if top == "robotrl" else TESTS / PACKAGES[top] / Path(*rest)
    while not place.is_dir():
        place = place.parent
    if place != TESTS:
        return [place]
    return [TESTS / "training"] if file.name == "training.py" else [TESTS / "cli", TESTS / "run"]


def chosen(files: list[Path]) -> list[str]:
    """Test files to run, relative to the root."""
    slow, found = slow_files(), set[Path]()
    for name in ALWAYS:
        found |= set((TESTS / name).rglob("test_*.py"))
    for file in files:
        if file.suffix == ".py" and file.parts[0] in ("robotrl", *PACKAGES):
            for folder in folders(file):
                found |= set(folder.glob("test_*.py"))
    found |= {ROOT / file for file in files if file.parts[0] == "tests" and file.name.startswith("test_")}
    found = {path for path in found if path.relative_to(TESTS).as_posix() not in slow}
    return sorted(path.relative_to(ROOT).as_posix() for path in found if path.exists())


def changed_and_slow(files: list[Path]) -> list[str]:
    """Changed test files that are left to `make test`, relative to the root."""
    return [file.as_posix() for file in files if file.as_posix() in {f"tests/{name}" for name in slow_files()}]


def main(options: list[str]) -> int:
    """Run pytest on the chosen files; its exit code."""
    differing = changed()
    files = chosen(differing)
    print(f"{len(files)} test files; make test runs them all", flush=True)
    if left := changed_and_slow(differing):
        print(f"changed and slow, run them by pytest: {' '.join(left)}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "logical", "--maxprocesses", "4", "--dist", "loadfile"]
    return subprocess.run([*command, *options, *files], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
