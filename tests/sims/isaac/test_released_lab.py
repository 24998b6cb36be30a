"""The adapter's tables against the source in a released wheel of Isaac Lab, read as data and never imported."""

from __future__ import annotations

import ast
import os
import zipfile
from functools import cache

import pytest

from robotrl.sims.isaac.descriptors import JOINT_TERMS
from robotrl.sims.isaac.surface import LAB_ATTRIBUTES, LAB_EXTRAS

WHEEL = os.environ.get("ROBOTRL_ISAACLAB_WHEEL", "")
pytestmark = pytest.mark.skipif(not WHEEL, reason="ROBOTRL_ISAACLAB_WHEEL names no wheel of isaaclab")
ENVS = {"direct": ("direct_rl_env",), "manager based": ("manager_based_rl_env", "manager_based_env")}


@cache
def source(ending: str) -> str:
    """Text of the wheel's module whose path ends so."""
    with zipfile.ZipFile(WHEEL) as wheel:
        (name,) = [n for n in wheel.namelist() if n.endswith(f"/{ending}") and "/test/" not in n] or [ending]
        return wheel.read(name).decode()


def version() -> int:
    with zipfile.ZipFile(WHEEL) as wheel:
        (metadata,) = [n for n in wheel.namelist() if n.endswith(".dist-info/METADATA")]
        line = next(x for x in wheel.read(metadata).decode().splitlines() if x.startswith("Version: "))
    return int(line.removeprefix("Version: ").partition(".")[0])


def attributes(text: str) -> set[str]:
    """Methods, properties and attributes of `self` of the classes of a module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            found.add(node.attr)
    return found


def steps_of(text: str) -> list[str]:
    """Source of the statements of `step`."""
    (step,) = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef) and n.name == "step"]
    return [ast.unparse(statement) for statement in step.body]


@pytest.mark.parametrize("kind", ENVS)
def test_the_surface_is_there(kind):
    found = set().union(*(attributes(source(f"isaaclab/envs/{name}.py")) for name in ENVS[kind]))
    assert set(LAB_ATTRIBUTES) - found == set()


@pytest.mark.parametrize("kind", ENVS)
def test_a_step_is_what_the_adapter_takes_it_for(kind):
    steps = steps_of(source(f"isaaclab/envs/{ENVS[kind][0]}.py"))
    assert (
        steps[-1] == "return (self.obs_buf, self.reward_buf, self.reset_terminated, self.reset_time_outs, self.extras)"
    )
    # rewards before the reset, observations after it
    reward = next(i for i, text in enumerate(steps) if text.startswith("self.reward_buf = "))
    reset = next(i for i, text in enumerate(steps) if "reset_env_ids" in text)
    observe = max(i for i, text in enumerate(steps) if text.startswith("self.obs_buf"))
    assert reward < reset < observe


@pytest.mark.parametrize("kind", ENVS)
def test_the_extras_are_those_that_the_adapter_reads(kind):
    text = "\n".join(source(f"isaaclab/envs/{name}.py") for name in ENVS[kind])
    # tasks of a direct environment write its log themselves
    expected = {"log"} if kind == "manager based" else set()
    expected |= {"final_obs"} if version() >= 3 else set()
    assert {key for key in LAB_EXTRAS if f'self.extras["{key}"]' in text} == expected
    assert ("compute_final_obs" in source(f"isaaclab/envs/{ENVS[kind][0]}_cfg.py")) == (version() >= 3)


@pytest.mark.parametrize("kind", ENVS)
def test_the_config_says_what_a_time_limit_means(kind):
    assert "is_finite_horizon: bool" in source(f"isaaclab/envs/{ENVS[kind][0]}_cfg.py")


def test_descriptors_have_the_form_that_is_read():
    text = source("isaaclab/envs/manager_based_env.py")
    assert "get_IO_descriptors" in attributes(text)
    for section in ("observations", "actions", "articulations"):
        assert f'"{section}":' in text
    text = source("isaaclab/envs/mdp/actions/joint_actions.py")
    for name in ("joint_names", "scale", "offset", "clip"):
        assert f"_IO_descriptor.{name} = " in text
    assert set(JOINT_TERMS) <= {node.name for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}
    robot = source("isaaclab/envs/utils/io_descriptors.py")
    for key in ("joint_names", "default_joint_pos", "default_joint_stiffness", "default_joint_damping"):
        assert f'["{key}"]' in robot


def test_a_task_is_made_by_names_that_exist():
    assert "class AppLauncher" in source("isaaclab/app/app_launcher.py")
    assert "def parse_env_cfg" in source("isaaclab_tasks/utils/parse_cfg.py")
    if version() >= 3:
        assert '"launch_simulation"' in source("isaaclab/app/__init__.pyi")
