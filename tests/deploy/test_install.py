"""Putting a bundle in its place: whole or not at all, on a full disk too."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from robotrl.deploy.bundle.install import installed
from robotrl.errors import ConfigError

FILL = """
import resource, signal, sys
from pathlib import Path
from robotrl.deploy.bundle.install import installed
from robotrl.errors import DataError

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    with installed(Path(sys.argv[1]), overwrite=True) as draft:
        draft.write("manifest.json", b"new")
        draft.write("big", bytes(5000))
except DataError as error:
    print(error)
"""


def test_a_block_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "b"
    with installed(target, overwrite=False) as draft:
        draft.write("manifest.json", b"old")
    with pytest.raises(RuntimeError), installed(target, overwrite=True) as draft:
        draft.write("manifest.json", b"new")
        assert (target / "manifest.json").read_bytes() == b"old"
        raise RuntimeError
    assert (target / "manifest.json").read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["b"]


def test_a_disk_that_takes_no_more_leaves_the_old_one(tmp_path: Path) -> None:
    """The limit on file sizes stands for a full disk: the same error from the same call."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1000
    target = tmp_path / "b"
    with installed(target, overwrite=False) as draft:
        draft.write("manifest.json", b"old")
    done = subprocess.run([sys.executable, "-c", FILL, str(target)], capture_output=True, text=True, check=True)
    assert "cannot be written: File too large" in done.stdout
    assert (target / "manifest.json").read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["b"]


def test_a_link_is_never_replaced(tmp_path: Path) -> None:
    real = tmp_path / "real"
    with installed(real, overwrite=False) as draft:
        draft.write("manifest.json", b"old")
    (tmp_path / "link").symlink_to(real)
    with (
        pytest.raises(ConfigError, match="is not a bundle"),
        installed(tmp_path / "link", overwrite=True) as draft,
    ):
        draft.write("manifest.json", b"new")
    assert (real / "manifest.json").read_bytes() == b"old"
