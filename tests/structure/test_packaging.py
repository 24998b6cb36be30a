import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.kits.paths_kit import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAP = PYPROJECT["tool"]["setuptools"]["package-dir"]
PACKAGES = PYPROJECT["tool"]["setuptools"]["packages"]


def folders_in_tree() -> dict[str, Path]:
    """Importable name to folder, for every folder with Python in it under the mapped ones."""
    found = {}
    for name, top in MAP.items():
        for folder in [ROOT / top, *(ROOT / top).rglob("*")]:
            if folder.is_dir() and folder.name != "__pycache__" and any(folder.glob("*.py")):
                found[".".join([name, *folder.relative_to(ROOT / top).parts])] = folder
    return found


def test_every_folder_with_python_is_listed_and_no_other():
    # A forgotten subpackage imports in an editable install and is missing from the wheel.
    assert set(PACKAGES) == set(folders_in_tree())


def test_every_package_has_an_init():
    assert [name for name, folder in folders_in_tree().items() if not (folder / "__init__.py").exists()] == []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> set[str]:
    """The names in a wheel built from a copy of what is tracked, through the source distribution."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    for name in subprocess.run(listed, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(source)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with zipfile.ZipFile(next(target.glob("*.whl"))) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_every_module_of_the_tree(wheel):
    expected = {
        f"{name.replace('.', '/')}/{path.name}"
        for name, folder in folders_in_tree().items()
        for path in folder.glob("*.py")
    }
    assert {name for name in wheel if name.endswith(".py")} == expected


def test_the_wheel_holds_the_data_files_of_the_packages(wheel):
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    data = [Path(name) for name in tracked.split("\0") if name and not name.endswith(".py")]
    packaged = {folder.relative_to(ROOT): name for name, folder in folders_in_tree().items()}
    expected = {f"{packaged[path.parent].replace('.', '/')}/{path.name}" for path in data if path.parent in packaged}
    assert "robotrl/py.typed" in expected
    networks = Path("sims/bev/traffic/learned/networks")
    expected |= {f"robotrl/{path}" for path in data if path.is_relative_to(networks)}
    assert expected <= wheel


def test_the_wheel_brings_one_top_level_name(wheel):
    assert {name.split("/")[0] for name in wheel if "dist-info" not in name} == {"robotrl"}


@pytest.mark.parametrize("part", [name.removeprefix("robotrl.") for name in MAP if "." in name])
def test_a_part_refuses_to_be_imported_under_another_name(part):
    # -P and the root on the path: the folder itself is found, as it would be by someone who stands in the checkout
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {part}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"import this package as robotrl.{part}, not as {part}" in done.stderr


def test_version_is_stated_once_and_the_same():
    import robotrl

    assert PYPROJECT["project"]["version"] == robotrl.__version__
    assert f"[{robotrl.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def requirement_names(requirements: list[str]) -> set[str]:
    return {re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-") for requirement in requirements}


def test_each_requirement_has_a_tested_version():
    extras = PYPROJECT["project"]["optional-dependencies"]
    wanted = requirement_names(
        [*PYPROJECT["project"]["dependencies"], *(r for extra in extras.values() for r in extra)]
    )
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    assert wanted - {"robotrl"} - requirement_names(lines) == set()


def test_each_requirement_has_its_licence_in_the_docs():
    extras = PYPROJECT["project"]["optional-dependencies"]
    wanted = requirement_names(
        [*PYPROJECT["project"]["dependencies"], *(r for extra in extras.values() for r in extra)]
    )
    rows = re.findall(
        r"^\| `([\w.-]+)` \| [\w, `]+ \| \S.* \|$", (ROOT / "docs" / "licences.md").read_text(), re.MULTILINE
    )
    assert wanted - {"robotrl"} - requirement_names(rows) == set()


def test_the_base_install_needs_no_torch():
    heavy = {"torch", "mujoco", "gymnasium", "onnx", "onnxscript", "pyarrow"}
    assert requirement_names(PYPROJECT["project"]["dependencies"]).isdisjoint(heavy)


def test_doctor_knows_every_extra_that_a_user_installs():
    from robotrl.cli.doctor import EXTRAS

    assert set(EXTRAS) == set(PYPROJECT["project"]["optional-dependencies"]) - {"dev"}


def test_license_is_apache_2():
    text = (ROOT / "LICENSE").read_text()
    assert PYPROJECT["project"]["license"] == "Apache-2.0"
    for heading in ["Apache License", "TERMS AND CONDITIONS FOR USE", "1. Definitions.", "9. Accepting Warranty"]:
        assert heading in text
    assert "APPENDIX: How to apply the Apache License to your work." in text


def test_pytest_runs_from_a_bare_checkout(tmp_path):
    """A copy that is not installed is what its own tests import, in this process and in those that they start."""
    for name in [*{Path(folder).parts[0] for folder in MAP.values()}, "benchmarks", "tests/kits"]:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
    for name in ["pyproject.toml", "tests/conftest.py", "tests/__init__.py"]:
        shutil.copyfile(ROOT / name, tmp_path / name)
    (tmp_path / "tests" / "test_origin.py").write_text(
        "import subprocess, sys\n"
        "from pathlib import Path\n"
        "ROOT = Path(__file__).resolve().parents[1]\n"
        "def test_origin():\n"
        "    import benchmarks, robotrl.deploy, robotrl.registry, robotrl.sims.mujoco\n"
        "    for module in (benchmarks, robotrl.deploy, robotrl.registry, robotrl.sims.mujoco):\n"
        "        assert Path(module.__file__).resolve().is_relative_to(ROOT), module.__file__\n"
        "    code = 'import robotrl.sims as m, robotrl.cli.main as c; print(m.__file__, c.__file__)'\n"
        "    out = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True).stdout\n"
        "    assert all(Path(name).resolve().is_relative_to(ROOT) for name in out.split()), out\n"
    )
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "CI") and "PYTEST" not in k}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
