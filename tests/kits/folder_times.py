"""A pytest plugin that says where the time of a run went: seconds of setup, test and teardown by folder of tests."""

from __future__ import annotations

from collections import defaultdict

import pytest

LEAST_S = 30.0
"""Runs whose tests take less time together get no table."""


class FolderTimes:
    """Sums the durations of all reports; with pytest-xdist, those of all workers come to the first process."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._tests: dict[str, int] = defaultdict(int)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add one phase of a test."""
        path = report.nodeid.partition("::")[0]
        folder = path.removeprefix("tests/").rpartition("/")[0] or "."
        self._seconds[folder] += report.duration
        self._tests[folder] += report.when == "call"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table, the slowest folder first."""
        total = sum(self._seconds.values())
        if total < LEAST_S or len(self._seconds) < 2:
            return
        terminalreporter.section(f"{total:,.0f} s of tests, by folder")
        for folder, seconds in sorted(self._seconds.items(), key=lambda item: -item[1]):
            terminalreporter.line(
                f"{seconds:8.1f} s  {100 * seconds / total:4.1f} %  {self._tests[folder]:5d}  {folder}"
            )


def pytest_configure(config: pytest.Config) -> None:
    """Register it in the process that prints."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FolderTimes(), "folder-times")
