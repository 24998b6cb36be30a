"""Counts the statements of the shipped package, the measure of its size: nodes `ast.stmt`, docstrings apart.

Tests, benchmarks and tools do not count. A line may hold much or little; a statement is one step of a reader. Compare
two commits, without the files that one of them added:

    python tools/count_statements.py BASE
    python tools/count_statements.py --without-new-since BASE
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = ("robotrl", "sims", "policies", "deploy", "configs")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def statements(source: str) -> int:
    """Number of statements in a module's source, without docstrings of modules, classes, functions and fields."""
    return sum(isinstance(node, ast.stmt) and not _is_text(node) for node in ast.walk(ast.parse(source)))


def _is_text(node: ast.stmt) -> bool:
    """True for an expression that is only a string: a docstring, also of a field or a constant."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def sources(commit: str | None, root: Path = ROOT) -> dict[str, str]:
    """Sources of the shipped modules by path, at a commit or, for None, in the working tree."""
    if commit is None:
        names = _git(root, "ls-files", "--cached", "--others", "--exclude-standard", "--", *SHIPPED).splitlines()
        paths = [name for name in names if name.endswith(".py") and (root / name).is_file()]
        return {name: (root / name).read_text() for name in paths}
    names = _git(root, "ls-tree", "-r", "--name-only", commit, "--", *SHIPPED).splitlines()
    return {name: _git(root, "show", f"{commit}:{name}") for name in names if name.endswith(".py")}


def added(since: str, commit: str | None, root: Path = ROOT) -> set[str]:
    """Files that did not exist at `since`; one that was renamed did, also if two thirds of it were rewritten since."""
    ends = [since] if commit is None else [since, commit]
    options = ("--name-only", "--no-relative", "--find-renames=30%", "-l0", "--diff-filter=A")
    names = set(_git(root, "diff", *options, *ends, "--", *SHIPPED).splitlines())
    if commit is None:
        names |= set(_git(root, "ls-files", "--others", "--exclude-standard", "--", *SHIPPED).splitlines())
    return names


def folder_of(name: str) -> str:
    """Folder under which a module is counted: one level inside robotrl/, the top folder of all others."""
    folders = PurePosixPath(name).parts[:-1]
    return "/".join(folders[: 2 if folders[0] == "robotrl" else 1])


def by_folder(found: dict[str, str]) -> Counter[str]:
    """Number of statements in each folder."""
    counts: Counter[str] = Counter()
    for name, source in found.items():
        counts[folder_of(name)] += statements(source)
    return counts


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout


def main(arguments: list[str]) -> int:
    """Print the statements of each folder, and their sum."""
    parser = argparse.ArgumentParser(description="Count the statements of the shipped package.")
    parser.add_argument("commit", nargs="?", help="commit to count; default: the working tree")
    parser.add_argument("--without-new-since", metavar="COMMIT", help="leave out files that did not exist there")
    given = parser.parse_args(arguments)
    found = sources(given.commit)
    if given.without_new_since is not None:
        new = added(given.without_new_since, given.commit)
        found = {name: source for name, source in found.items() if name not in new}
    counts = by_folder(found)
    for folder in sorted(counts):
        print(f"{counts[folder]:7d}  {folder}")
    print(f"{sum(counts.values()):7d}  total, {len(found)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
