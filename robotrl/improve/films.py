"""Moving pictures of the policy of before and of the candidate on the same start, for the page."""

from __future__ import annotations

import base64
import tempfile
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np

from robotrl.api.evaluation import actor_of, make_sim_of
from robotrl.improve.target import Target
from robotrl.rollout.evaluate import evaluate
from robotrl.spec import HasCamera, VecSim, shown_dt_s
from robotrl.utils.media import write_gif

SIZE = (240, 180)
FRAME_S, MOST = 0.1, 60
"""Least seconds between two pictures, and most pictures of an episode."""


class FilmedStart(NamedTuple):
    """Both policies on one start, as data URLs."""

    start: int
    before: str
    candidate: str


def film_both(before: Path, candidate: Path, target: Target, start: int, seed: int) -> FilmedStart | None:
    """Film both policies on a start; None if the sim has no camera.

    Args:
        before: run or checkpoint of the policy of before.
        candidate: run of the candidate.
        target: the policy that is improved, with its sim.
        start: number of the start.
        seed: seed of the policies' noise, that of the verdict.
    """
    urls: list[str] = []
    for path in (before, candidate):
        vec = make_sim_of(path, target.sim, num_envs=1, seed=seed, options=target.options)
        with closing(vec):
            if not isinstance(vec, HasCamera):
                return None
            urls.append(_film(path, vec, start, seed))
    return FilmedStart(start, urls[0], urls[1])


def _film(path: Path, vec: VecSim, start: int, seed: int) -> str:
    assert isinstance(vec, HasCamera)
    dt_s = shown_dt_s(vec)
    every = max(1, round(FRAME_S / dt_s))
    frames: list[np.ndarray] = []

    def look(step: int) -> None:
        if step % every == 0 and len(frames) < MOST:
            frames.append(vec.render([0], vec.cameras[0], *SIZE)[0])

    evaluate(actor_of(path, vec, seed), vec, ids=[start], seed=seed, on_step=look, description=f"film of {path}")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "film.gif"
        write_gif(np.stack(frames), place, 1.0 / (every * dt_s))
        return "data:image/gif;base64," + base64.b64encode(place.read_bytes()).decode()
