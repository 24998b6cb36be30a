"""AUC of the scores of pictures: clear roads against danger, in held-out scenarios and wordings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.rewards.bench import DIRECTIONS, SIM
from benchmarks.rewards.model import BAD, BASELINE, GOOD, model_folder, trained
from robotrl.fn.language_reward import contrast, goal_baseline, opposite
from robotrl.fn.progress.metrics import separation
from robotrl.registry import make_sim
from robotrl.rewards.vlm.encoder import load_encoder
from robotrl.rewards.vlm.scenes import record_scenes
from robotrl.utils.files import read_json

FRAMES, CAMERA, PIXELS, ENVS = 12_000, "near", 64, 64
OTHER_SEED = 1000
"""Added to the seed, so that the frames are not those that the model's command judged."""


def run(method: str, seed: int, out: Path, work: Path, *flags: str, frames: int = FRAMES) -> dict[str, Any]:
    """AUCs of each score, overall and by direction."""
    path = trained(model_folder(work, seed, *flags), seed, *flags)
    about = read_json(path / "robotrl_clip.json", "vocabulary", 1)
    held_out = list(about["held_out"])
    sim = make_sim(SIM, num_envs=ENVS, seed=seed, scenarios=tuple(held_out))
    scenes = record_scenes(sim, CAMERA, PIXELS, frames, seed=seed + OTHER_SEED, split="test")
    sim.close()
    danger = scenes.classes[:, 0]
    result: dict[str, Any] = {"train_s": about["train_s"], "frames": int((danger >= 0).sum())}
    for name, score in scores_of(path, scenes.pictures).items():
        clear = score[danger == 0]
        result[f"auc_{name}"] = separation(clear, score[danger > 0])
        for number, where in enumerate(DIRECTIONS, start=1):
            result[f"auc_{name}_{where}"] = separation(clear, score[danger == number])
    return result


def scores_of(path: Path, pictures: NDArray[np.uint8]) -> dict[str, NDArray[np.float64]]:
    """Scores (n,) of pictures by each method, in sentences that the model was not trained on."""
    encoder = load_encoder(str(path))
    images = encoder.images(torch.from_numpy(pictures))
    texts = encoder.texts((*GOOD, *BAD, BASELINE))
    similarity = images @ texts.T
    good, bad, baseline = similarity.split([len(GOOD), len(BAD), 1], dim=1)
    goal, base = texts[0], texts[-1]
    found = {
        "contrast": contrast(torch.cat([good, bad], dim=1), len(GOOD), worst=True),
        "contrast-mean": contrast(torch.cat([good, bad], dim=1), len(GOOD)),
        "goal-baseline": goal_baseline(good[:, 0], baseline[:, 0], float(goal @ base), 0.5),
        "lord": opposite(bad),
        "threshold": good[:, 0],
    }
    return {name: score.double().numpy() for name, score in found.items()}
