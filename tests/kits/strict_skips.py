"""A pytest plugin: with ROBOTRL_STRICT_SKIPS=1 or CI set, a skip that `allowed_skips.txt` does not list fails the run.

A skipped test looks like a passed one in a closing line, so each has to be agreed on, with its reason. A line of the
file is `test id | reason`; `*` in either stands for anything; `#` starts a comment. An expected failure counts as a
skip.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

ALLOWED = Path("tests", "allowed_skips.txt")


def parse(text: str) -> list[tuple[str, str]]:
    """(id pattern, reason pattern) of each line.

    Raises:
        ValueError: a line has no reason.
    """
    rules: list[tuple[str, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.split("#", 1)[0].strip()
        if not bare:
            continue
        test, bar, reason = (part.strip() for part in bare.partition("|"))
        if not (test and bar and reason):
            raise ValueError(f"{ALLOWED} line {number}: expected 'test id | reason', found {line!r}")
        rules.append((test, reason))
    return rules


def is_allowed(test: str, reason: str, rules: list[tuple[str, str]]) -> bool:
    """Whether some rule matches both the test's id and the reason it gave."""
    return any(_matches(test, rule[0]) and _matches(reason, rule[1]) for rule in rules)


def _matches(text: str, pattern: str) -> bool:
    # Not fnmatch: ids of parametrised tests hold brackets, which are character sets there.
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


class StrictSkips:
    """Collects skips and fails the session for those that are not listed."""

    def __init__(self, rules: list[tuple[str, str]]) -> None:
        self.rules = rules
        self.refused: list[tuple[str, str]] = []

    def _look_at(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped:
            return
        if hasattr(report, "wasxfail"):
            reason = report.wasxfail or "expected to fail"
        else:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        if not is_allowed(report.nodeid, reason, self.rules):
            self.refused.append((report.nodeid, reason))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._look_at(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._look_at(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.refused and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.refused:
            terminalreporter.section(f"skips that {ALLOWED} does not list", red=True)
            for test, reason in self.refused:
                terminalreporter.line(f"{test} | {reason}")


def pytest_configure(config: pytest.Config) -> None:
    """Switch the rule on where the environment asks for it."""
    if os.environ.get("ROBOTRL_STRICT_SKIPS") == "1" or os.environ.get("CI"):
        path = config.rootpath / ALLOWED
        rules = parse(path.read_text()) if path.exists() else []
        config.pluginmanager.register(StrictSkips(rules), "robotrl-strict-skips")
