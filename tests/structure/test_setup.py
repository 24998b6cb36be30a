"""The decisions of tools/setup_env.py; the installing itself is what `make test` on a fresh machine does."""

import json
import socket
import subprocess
import sys
import time

import pytest

from tests.kits.paths_kit import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import setup_env


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder in which `.venv` would be made."""
    monkeypatch.setattr(setup_env, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(setup_env, "PYTHON", tmp_path / ".venv" / "bin" / "python")
    monkeypatch.setattr(setup_env, "STAMP", tmp_path / ".venv" / "stamp.json")
    monkeypatch.setattr(setup_env, "RUNNING", tmp_path / ".venv" / "running")
    return tmp_path


def finished(want) -> None:
    setup_env.PYTHON.parent.mkdir(parents=True, exist_ok=True)
    setup_env.PYTHON.touch()
    setup_env.STAMP.write_text(json.dumps(want))


def test_an_environment_is_current_only_for_the_same_sources_and_machine(place):
    want = setup_env.wanted("train", gpu=False)
    assert not setup_env.is_current(want)
    finished(want)
    assert setup_env.is_current(want)
    assert not setup_env.is_current(setup_env.wanted("train", gpu=True))
    assert not setup_env.is_current({**want, "sources": "other"})
    assert not setup_env.is_current({**want, "root": "/elsewhere"})


def test_an_environment_for_the_tests_serves_for_training_and_not_the_reverse(place):
    finished(setup_env.wanted("test", gpu=False))
    assert setup_env.is_current(setup_env.wanted("train", gpu=False))
    finished(setup_env.wanted("train", gpu=False))
    assert not setup_env.is_current(setup_env.wanted("test", gpu=False))


@pytest.mark.parametrize("stamp", ["", "{", "[]"])
def test_a_damaged_stamp_is_no_stamp(place, stamp):
    want = setup_env.wanted("train", gpu=False)
    finished(want)
    setup_env.STAMP.write_text(stamp)
    assert not setup_env.is_current(want)


def test_an_environment_that_was_cut_off_is_made_afresh(place):
    setup_env.make_venv()
    left = setup_env.VENV / "left-over"
    left.touch()
    setup_env.make_venv()
    assert left.exists()  # it works, and nothing was under way: kept
    setup_env.RUNNING.touch()
    setup_env.make_venv()
    assert not left.exists()
    subprocess.run([setup_env.PYTHON, "-c", "import pip"], check=True)


def test_an_environment_whose_python_is_gone_is_made_afresh(place):
    (place / ".venv" / "bin").mkdir(parents=True)
    setup_env.PYTHON.symlink_to("/no/such/python3.11")
    setup_env.make_venv()
    subprocess.run([setup_env.PYTHON, "-c", "pass"], check=True)


def test_an_index_that_is_silent_or_absent_does_not_hold_up_set_up():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()  # accepts and never answers
        begun = time.monotonic()
        assert not setup_env.index_answers(f"http://127.0.0.1:{listener.getsockname()[1]}", limit_s=0.5)
        assert time.monotonic() - begun < 30
    assert not setup_env.index_answers("http://127.0.0.1:9", limit_s=0.5)
    assert not setup_env.index_answers("no address at all", limit_s=0.5)


def test_an_index_that_answers_is_seen(tmp_path):
    (tmp_path / "torch").mkdir()
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(tmp_path)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().split("(")[1].split("/)")[0]
        assert setup_env.index_answers(address, limit_s=20.0)
    finally:
        server.terminate()
        server.wait()


def test_torch_is_pinned_without_a_build():
    assert setup_env.torch_pin().startswith("torch==")
    assert "+" not in setup_env.torch_pin()


def test_a_python_that_is_too_old_or_absent_is_said_in_one_line(tmp_path):
    old = tmp_path / "python3.11"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    command = ["/bin/sh", str(ROOT / "tools" / "find_python.sh")]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: no Python 3.11 or newer")
    assert done.stderr.count("\n") == 1


def test_the_python_that_was_named_goes_first(tmp_path):
    command = ["/bin/sh", str(ROOT / "tools" / "find_python.sh")]
    done = subprocess.run(
        command, env={"PATH": "/nowhere", "PYTHON": sys.executable}, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == sys.executable
