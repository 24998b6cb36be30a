"""Module paths that the pages of version 0.1 imported still import, and say where the module is now."""

import importlib
import importlib.resources
import subprocess
import sys

import pytest

from robotrl.moved import MOVED, RENAMED


@pytest.mark.parametrize("old", MOVED)
def test_an_old_path_gives_the_names_of_the_new_one(old, monkeypatch):
    for name in [name for name in sys.modules if name in MOVED]:
        monkeypatch.delitem(sys.modules, name)
    new = importlib.import_module(MOVED[old])
    with pytest.warns(DeprecationWarning, match=f"^{old} is now {MOVED[old]}; the old path goes"):
        alias = importlib.import_module(old)
    public = {name: value for name, value in vars(new).items() if not name.startswith("__")}
    assert all(vars(alias)[name] is value for name, value in public.items())
    for was, now in RENAMED.get(old, {}).items():
        assert vars(alias)[was] is vars(new)[now]


def test_imports_of_the_pages_of_version_0_1():
    program = """
from robotrl.callbacks import Callback, CallbackList
from robotrl.algos.engine import Engine, Group, LossModule, LossOut
from robotrl.algos.chain_pg import ChainCfg, ChainLearner, ChainLoss, MakeCritic, Terms
from robotrl.checkpoint import rng_state, set_rng_state
from robotrl.data.chunks import load_chunks
from robotrl.data.lerobot import DatasetWriter, read_dataset
from robotrl.data.replay import Mixed, Replay, StepRecord, Uniform
from robotrl.deploy.control import run_control
from robotrl.deploy.replay import replay
from robotrl.deploy.safety import Reason, SafetyChain, in_time, limits_of
from robotrl.media import grid, write_gif
from robotrl.run import Run
from robotrl.sims.bev import maps, opendrive
from robotrl.sims.bev.routes import pick_routes
from robotrl.sims.mujoco.views import Raster, View
from robotrl.train import train
import robotrl.replay.buffer, robotrl.run.directory, robotrl.sims.bev.opendrive.reader
assert Replay is robotrl.replay.buffer.Replay and Run is robotrl.run.directory.Run
assert opendrive.read is robotrl.sims.bev.opendrive.reader.read
"""
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_nothing_that_exists_is_an_alias():
    for old in MOVED:
        package, _, name = old.rpartition(".")
        if package not in MOVED:
            folder = importlib.resources.files(importlib.import_module(package))
            assert not (folder / f"{name}.py").is_file() and not (folder / name / "__init__.py").is_file(), old
