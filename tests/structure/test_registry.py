import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

import robotrl
from robotrl.errors import ConfigError, nearest
from robotrl.registry import SIMS, Table, make_sim
from robotrl.utils import installation
from robotrl.utils.installation import install_line
from tests.kits.paths_kit import ROOT
from tests.kits.refusals import raises_naming


def test_nothing_is_imported_before_a_name_is_asked_for():
    code = "import sys; import robotrl.registry as r; r.SIMS.check('mujoco/peg-insert'); print('mujoco' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("mujoco/pegg", "mujoco/peg-insert"),
        ("mujoco/hoper", "mujoco/hopper"),
        ("mujoco/pick", "mujoco/pick-place"),
        ("peg-insert", "mujoco/peg-insert"),
        ("bev/driv", "bev/drive"),
    ],
)
def test_of_names_that_are_alike_the_one_that_begins_alike_is_nearest(typed, expected):
    assert nearest(typed, SIMS.names()) == expected


@pytest.mark.parametrize(
    ("typed", "choices", "expected"),
    [("theng", ("thing", "the"), "thing"), ("resnet", ("residual", "unet"), "unet"), ("zzz", ("thing",), None)],
)
def test_similarity_weighs_more_than_a_common_beginning(typed, choices, expected):
    assert nearest(typed, choices) == expected


def test_unknown_name_gives_the_nearest():
    with raises_naming(ConfigError, "sim", "mujoco/peg-inset", nearest="mujoco/peg-insert"):
        SIMS.load("mujoco/peg-inset")


def test_a_missing_package_is_named_with_what_to_install():
    table = Table("sim", {"x": "no_such_package_at_all.inner:make"}, "robotrl.nothing")
    with pytest.raises(
        ConfigError, match=r"sim 'x' needs the module 'no_such_package_at_all': pip install .*\[train\]"
    ):
        table.load("x")


def test_the_driving_world_without_its_compiler_names_the_extra():
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "import robotrl.registry as r\n"
        "try:\n    r.make_sim('bev/drive', num_envs=1)\n"
        "except r.ConfigError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"sim 'bev/drive' needs the module 'numba': {install_line('train')}\n"


def test_a_policy_that_reads_names_the_extra():
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "import robotrl.registry as r\n"
        "try:\n    r.PRESETS.load('tabletop-bc-token')\n"
        "except r.ConfigError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"preset 'tabletop-bc-token' needs the module 'transformers': {install_line('vla')}\n"


def test_a_module_of_ours_that_is_missing_is_a_defect():
    with pytest.raises(ModuleNotFoundError):
        Table("sim", {"x": "robotrl.no_such_module:make"}, "robotrl.nothing").load("x")


def test_another_package_adds_rows_through_an_entry_point(tmp_path):
    (tmp_path / "outsider.py").write_text("def make(num_envs, seed):\n    return ('outsider', num_envs, seed)\n")
    info = tmp_path / "outsider-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outsider\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[robotrl.sims]\noutside/task = outsider:make\nmujoco/peg-insert = outsider:make\n"
    )
    code = (
        "import json, robotrl, robotrl.registry as r;"
        "print(json.dumps([robotrl.make_sim('outside/task', 3, 5), r.SIMS.rows()['mujoco/peg-insert']]))"
    )
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    made, ours = json.loads(done.stdout)
    assert made == ["outsider", 3, 5]
    assert ours.startswith("robotrl.sims.mujoco")  # a name of ours cannot be taken over


@pytest.mark.parametrize("count", [0, -1])
def test_make_sim_refuses_a_count_below_one(count):
    with pytest.raises(ConfigError, match=f"num_envs is {count}: expected 1 or more"):
        make_sim("mujoco/peg-insert", num_envs=count)


def test_make_sim_refuses_an_unknown_option_by_name():
    with pytest.raises(ConfigError, match="option 'qqqq' of sim 'mujoco/peg-insert' is unknown: known: "):
        make_sim("mujoco/peg-insert", num_envs=1, qqqq=1)


def test_every_row_of_every_table_loads():
    from robotrl.registry import PRESETS, ROBOTS

    for table in (SIMS, ROBOTS, PRESETS):
        for name in table.names():
            assert callable(table.load(name)), name


def test_the_package_resolves_its_names_lazily():
    assert robotrl.make_sim is make_sim
    assert "load_policy" in dir(robotrl)
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        _ = robotrl.no_such_name


def test_the_controller_is_where_the_readme_says():
    from robotrl.deploy.runtime import Controller

    assert robotrl.deploy.Controller is Controller
    with pytest.raises(AttributeError, match="has no attribute 'Controler'"):
        _ = robotrl.deploy.Controler


def test_the_line_that_installs_an_extra_names_where_robotrl_came_from(monkeypatch):
    assert install_line("train") == f"pip install -e '{ROOT}[train]'"
    monkeypatch.setattr(installation, "checkout", lambda: None)
    wheel = {"url": "file:///home/me/robotrl-0.1.0-py3-none-any.whl", "archive_info": {}}
    commit = {"url": "https://git.example/robotrl", "vcs_info": {"vcs": "git", "commit_id": "abc123"}}
    for origin, line in (
        (json.dumps(wheel), f"pip install 'robotrl[vla] @ {wheel['url']}'"),
        (json.dumps(commit), "pip install 'robotrl[vla] @ git+https://git.example/robotrl@abc123'"),
        (None, "pip install 'robotrl[vla]'"),
        ("{", "pip install 'robotrl[vla]'"),
    ):
        told = SimpleNamespace(read_text=lambda name, origin=origin: origin)
        monkeypatch.setattr(installation, "distribution", lambda name, told=told: told)
        assert install_line.__wrapped__("vla") == line


def test_a_package_that_comes_onto_the_path_later_is_seen(tmp_path, monkeypatch):
    """Installed packages are searched once for each `sys.path`."""
    table = Table("sim", {}, "robotrl.sims")
    assert "late/task" not in table.rows()
    info = tmp_path / "late-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: late\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[robotrl.sims]\nlate/task = late:make\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert table.rows()["late/task"] == "late:make"
    monkeypatch.undo()
    assert "late/task" not in table.rows()
