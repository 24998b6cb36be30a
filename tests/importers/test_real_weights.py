"""A published policy says what it is known to say: opt-in, since its weights are large and others'.

`ROBOTRL_REAL_WEIGHTS=FILE pytest tests/importers/test_real_weights.py`; docs/vla-import.md says what is in the file.
The same is done here with a toy's weights, so that what opts in is known to work.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import robotrl
from robotrl.importers.hub import fetch
from robotrl.importers.policy import ImportCfg, read_layout
from robotrl.spec import visible
from tests.importers.test_flow import write_lerobot
from tests.kits.paths_kit import ROOT

FILE = os.environ.get("ROBOTRL_REAL_WEIGHTS", "")


def read(known: dict[str, Any], folder: Path) -> Any:
    """The policy of a file."""
    sim = robotrl.make_sim(known["sim"], num_envs=1, seed=0, **known.get("options", {}))
    words = known.get("vlm", "")
    cfg = ImportCfg(**known.get("import", {}), vlm=str(fetch(place(words, folder)).path) if words else "")
    path = fetch(place(known["path"], folder)).path
    return read_layout(known["layout"], path, visible(sim), sim.action_spec, cfg).eval()


def place(name: str, folder: Path) -> str:
    """A directory beside the file, or else a path or a name on the hub."""
    return str(folder / name) if (folder / name).is_dir() else name


def said(policy: Any, observation: Path) -> np.ndarray:
    """(H, A) what a policy says of an observation, from the noise that is stored with it."""
    with np.load(observation) as arrays:
        obs = {key: torch.from_numpy(arrays[key])[None] for key in policy.observation_spec}
        noise = torch.from_numpy(arrays["noise"])[None] if "noise" in arrays else None
    with torch.no_grad():
        return policy.deploy(obs, noise).actions[0].numpy()


def check(file: Path) -> None:
    """Compare with the known action."""
    known = json.loads(file.read_text())
    found, wanted = said(read(known, file.parent), file.parent / known["observation"]), np.array(known["actions"])
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= known["tolerance"], found.tolist()


@pytest.mark.skipif(not FILE, reason="ROBOTRL_REAL_WEIGHTS names no file with a known action")
def test_published_weights_say_what_is_known() -> None:
    check(Path(FILE))


def test_a_toy_says_what_is_known_and_nothing_else(tmp_path: Path) -> None:
    write_lerobot(tmp_path / "policy", "smolvla")
    known: dict[str, Any] = {
        "layout": "lerobot",
        "path": "policy",
        "vlm": "policy/vlm",
        "sim": "mujoco/tabletop",
        "options": {"image": "flat_near", "image_size": 32, "families": "point"},
        "import": {"cameras": {"observation.images.top": "image_flat_near", "observation.images.wrist": ""}},
        "observation": "observation.npz",
        "tolerance": 1e-5,
    }
    policy = read(known, tmp_path)
    sim = robotrl.make_sim("mujoco/tabletop", num_envs=1, seed=3, **known["options"])
    obs = {key: x[0].numpy() for key, x in sim.reset().items() if key in policy.observation_spec}
    noise = np.random.default_rng(0).normal(size=policy.noise_shape).astype(np.float32)
    np.savez(tmp_path / "observation.npz", **obs, noise=noise)
    known["actions"] = said(policy, tmp_path / "observation.npz").tolist()
    file = tmp_path / "known.json"
    file.write_text(json.dumps(known))
    check(file)
    known["actions"][0][0] += 1e-3
    file.write_text(json.dumps(known))
    with pytest.raises(AssertionError):
        check(file)
    (shown,) = re.findall(r"```json\n(.*?)```", (ROOT / "docs" / "vla-import.md").read_text(), re.DOTALL)
    assert json.loads(shown).keys() == known.keys()
