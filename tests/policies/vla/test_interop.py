"""The real lerobot package says what our SmolVLA says, and has the names that ours have; see docs/datasets.md."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from robotrl.policies.vla.networks.smolvla import SmolVla, SmolVlaCfg
from robotrl.run.policy_checkpoint import load_weights
from tests.kits.paths_kit import KITS
from tests.policies.vla.test_flow import published

PYTHON = os.environ.get("ROBOTRL_LEROBOT_PYTHON", "")
pytestmark = pytest.mark.skipif(not PYTHON, reason="ROBOTRL_LEROBOT_PYTHON names no Python that has lerobot")
TOY = SmolVlaCfg(
    width=48,
    layers=4,
    heads=4,
    kv_heads=2,
    head_width=12,
    mlp=64,
    vocabulary=100,
    vision_width=32,
    vision_layers=2,
    vision_heads=4,
    vision_mlp=64,
    patch=8,
    image=32,
    shuffle=2,
    state=7,
    action=5,
)


def side(command: str, out: Path) -> None:
    script = KITS / "vla_side.py"
    env = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(out / "hf"), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(script.parent)}
    done = subprocess.run(
        [PYTHON, str(script), command, str(out)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


@torch.no_grad()
def test_smolvla_says_what_lerobots_says(tmp_path: Path) -> None:
    """With two cameras, with one of them missing, with a shorter prompt; and its training loss is the same."""
    side("smolvla", tmp_path)
    net = SmolVla(TOY).eval()
    load_weights(net, load_file(tmp_path / "weights.safetensors"), "lerobot: the network")
    with np.load(tmp_path / "seen.npz") as stored:
        seen = {name: torch.from_numpy(value) for name, value in stored.items()}
    # ours are those that the published weights were trained with, whatever the other side's transformers does
    vision: Any = net.vlm_with_expert.vlm.model.vision_model
    table = vision.embeddings.position_embedding.weight
    table.copy_(table[seen["places"]].clone())
    first, second = seen["pictures"]
    chunks = []
    for pictures in ([first, second], [first, None]):
        shown = [None if x is None else net.encode_images(x) for x in pictures]
        memory = net.encode_context(shown, seen["ids"], seen["there"], seen["state"])
        x = seen["noise"]
        for k in range(4):
            x = x + 0.25 * net.velocity(memory, x, torch.full((3,), k / 4))
        chunks.append(x)
    found = torch.stack([chunks[0][0], chunks[0][1], chunks[1][2]])
    assert torch.allclose(found, seen["chunk"], atol=2e-6)
    assert found.abs().max() > 1
    memory = net.encode_context(
        [net.encode_images(first), net.encode_images(second)], seen["ids"], seen["there"], seen["state"]
    )
    t, noise = seen["time"], seen["noise"]
    loss = (noise + net.velocity(memory, t[:, None, None] * noise, 1 - t)) ** 2
    assert torch.allclose(loss[:2], seen["loss"][:2], rtol=1e-5, atol=1e-5)


def test_published_sizes_have_these_names(tmp_path: Path) -> None:
    side("names", tmp_path)
    for name, tensors in json.loads((tmp_path / "names.json").read_text()).items():
        assert {key: tuple(shape) for key, shape in tensors.items()} == published(name)
