import os
import subprocess
import sys
from pathlib import Path

import pytest

import tests.kits.strict_skips as strict_skips
from tests.kits.paths_kit import KITS

HERE = KITS
SUITE = """
import pytest

def test_passes():
    pass

@pytest.mark.skip(reason="no robot on this desk")
def test_marked():
    pass

@pytest.mark.parametrize("n", [1, 2])
def test_inside(n):
    if n == 2:
        pytest.skip("needs two of them")
"""
ALL_LISTED = """# why
tests/test_it.py::test_marked | no robot on this desk
tests/test_it.py::test_inside[2] | needs *
"""


def run_suite(tmp_path: Path, suite: str, allowed: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "tests" / "test_it.py").write_text(suite)
    (tmp_path / "tests" / "allowed_skips.txt").write_text(allowed)
    clean = {k: v for k, v in os.environ.items() if k not in ("CI", "ROBOTRL_STRICT_SKIPS") and "PYTEST" not in k}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "strict_skips", "-p", "no:cacheprovider", "tests"],
        cwd=tmp_path,
        env={**clean, "PYTHONPATH": str(HERE), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("switch", [{"ROBOTRL_STRICT_SKIPS": "1"}, {"CI": "true"}])
def test_unlisted_skip_fails_the_run_and_is_named(tmp_path, switch):
    done = run_suite(tmp_path, SUITE, "tests/test_it.py::test_marked | no robot on this desk\n", **switch)
    assert done.returncode == 1
    assert "tests/test_it.py::test_inside[2] | needs two of them" in done.stdout
    assert "test_marked |" not in done.stdout
    assert "2 passed, 2 skipped" in done.stdout.splitlines()[-1]


def test_listed_skips_pass(tmp_path):
    done = run_suite(tmp_path, SUITE, ALL_LISTED, ROBOTRL_STRICT_SKIPS="1")
    assert done.returncode == 0, done.stdout


def test_a_listed_test_with_another_reason_fails(tmp_path):
    done = run_suite(tmp_path, SUITE, ALL_LISTED.replace("no robot", "no camera"), ROBOTRL_STRICT_SKIPS="1")
    assert done.returncode == 1
    assert "tests/test_it.py::test_marked | no robot on this desk" in done.stdout


def test_without_the_switch_skips_are_free(tmp_path):
    assert run_suite(tmp_path, SUITE, "").returncode == 0


def test_a_module_that_skips_itself_is_seen(tmp_path):
    suite = 'import pytest\npytest.importorskip("no_such_module_at_all")\n'
    done = run_suite(tmp_path, suite, "", ROBOTRL_STRICT_SKIPS="1")
    assert done.returncode != 0
    assert "tests/test_it.py | could not import" in done.stdout


def test_an_expected_failure_counts_as_a_skip(tmp_path):
    suite = 'import pytest\n@pytest.mark.xfail(reason="known bug")\ndef test_x():\n    assert False\n'
    done = run_suite(tmp_path, suite, "", ROBOTRL_STRICT_SKIPS="1")
    assert done.returncode == 1
    assert "tests/test_it.py::test_x | known bug" in done.stdout


def test_a_line_without_a_reason_is_refused():
    with pytest.raises(ValueError, match="line 2: expected 'test id \\| reason'"):
        strict_skips.parse("# heading\ntests/test_it.py::test_marked\n")
