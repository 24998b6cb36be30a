"""Risk of a clip by a local model of pictures and language, frame by frame: the dynamic path without a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from robotrl.fn.language_reward import danger_probability
from robotrl.rewards.scoring.scorer import ScorerRecipe
from robotrl.rewards.scoring.service import ScoringService
from robotrl.rewards.vlm.cfg import PictureRewardCfg
from robotrl.rewards.vlm.encoder import load_encoder
from robotrl.rewards.vlm.similarity import ImmediateScores, PictureScores


class ClipRiskScorer:
    """Probability of danger of the mean similarities over a clip's frames; a `PictureScorer` of one output.

    Args:
        model: name of the model, see `robotrl.rewards.vlm.encoder`.
        safe: sentences that are true where nothing matters.
        danger: sentences of danger.
        frames: T; a picture that is scored has the frames of a clip below one another.
        temperature: of the probability.
        device: "cpu" or "cuda".

    Raises:
        ConfigError: a sentence cannot be read, or the model is unknown.
        DataError: the model cannot be loaded.
    """

    num_outputs = 1

    def __init__(
        self, model: str, safe: Sequence[str], danger: Sequence[str], frames: int, temperature: float, device: str
    ) -> None:
        self._encoder = load_encoder(model, device)
        self._texts = self._encoder.texts([*safe, *danger])
        self._safe, self._frames, self._temperature = len(safe), frames, temperature
        settings = (list(safe), list(danger), frames, temperature)
        self.identity = f"risk {self._encoder.identity} {settings!r}"

    def score(self, pictures: NDArray[np.uint8]) -> NDArray[np.float32]:
        """See `PictureScorer.score`; pictures (B, T h, w, 3)."""
        count, height, width, channels = pictures.shape
        frames = pictures.reshape(count * self._frames, height // self._frames, width, channels)
        similarity = self._encoder.images(torch.from_numpy(frames)) @ self._texts.T
        mean = similarity.view(count, self._frames, -1).mean(dim=1)
        return danger_probability(mean, self._safe, self._temperature)[:, None].cpu().numpy()


def make_clip_risk_scorer(**arguments: Any) -> ClipRiskScorer:
    """Factory of the recipes; see `ClipRiskScorer`."""
    return ClipRiskScorer(**arguments)


class RiskSource(NamedTuple):
    """Scores of the risk of clips, and text that differs between sources with different answers."""

    scores: PictureScores
    identity: str


class StackedClips:
    """Scores of clips by what scores single pictures; a `PictureScores` that takes clips (n, T, h, w, 3).

    Args:
        scores: scores pictures with the frames below one another.
    """

    def __init__(self, scores: PictureScores) -> None:
        self._scores = scores
        self.collect, self.wait, self.metrics, self.close = scores.collect, scores.wait, scores.metrics, scores.close
        self.charge = scores.charge

    def submit(self, tickets: NDArray[np.int64], pictures: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """See `PictureScores.submit`."""
        count, frames, height, width, channels = pictures.shape
        return self._scores.submit(tickets, pictures.reshape(count, frames * height, width, channels))

    @property
    def room(self) -> int:
        """See `PictureScores.room`."""
        return self._scores.room

    @property
    def pending(self) -> int:
        """See `PictureScores.pending`."""
        return self._scores.pending

    @property
    def paid(self) -> int:
        """See `PictureScores.paid`."""
        return self._scores.paid

    @property
    def cost(self) -> float:
        """See `PictureScores.cost`."""
        return self._scores.cost


def open_clip_risk(
    cfg: PictureRewardCfg,
    model: str,
    safe: Sequence[str],
    danger: Sequence[str],
    frames: int,
    temperature: float,
    picture_shape: tuple[int, int],
) -> RiskSource:
    """Load the model here, to check it and its sentences, and start the service if the settings ask for it.

    Args:
        cfg: device, `background`, and the settings of the service.
        model: see `ClipRiskScorer`, as the further ones.
        safe: sentences.
        danger: sentences.
        frames: T.
        temperature: of the probability.
        picture_shape: height and width of a frame, pixels.

    Raises:
        ConfigError: a sentence cannot be read, or the model is unknown.
        DataError: the model cannot be loaded.
        RobotrlError: no worker started.
    """
    arguments: dict[str, Any] = {
        "model": model,
        "safe": list(safe),
        "danger": list(danger),
        "frames": frames,
        "temperature": temperature,
        "device": cfg.device,
    }
    here = make_clip_risk_scorer(**arguments)
    if not cfg.background:
        return RiskSource(StackedClips(ImmediateScores(here)), here.identity)
    recipe = ScorerRecipe(f"{__name__}:{make_clip_risk_scorer.__name__}", arguments)
    height, width = picture_shape
    return RiskSource(StackedClips(ScoringService(recipe, cfg.service, (frames * height, width))), here.identity)
