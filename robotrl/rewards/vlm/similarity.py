"""Outputs of a model for pictures: computed at once in the trainer's process, or by the scoring service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from robotrl.rewards.scoring.ledger import Answers
from robotrl.rewards.scoring.scorer import PictureScorer, ScorerRecipe
from robotrl.rewards.scoring.service import UNBOUNDED, ScoringService
from robotrl.rewards.vlm.cfg import PictureRewardCfg
from robotrl.rewards.vlm.encoder import load_encoder

Output = Literal["similarity", "image"]
"""Outputs of a picture: its similarities to the prompts, or its unit vector."""


class PromptVectors(NamedTuple):
    """Prompts, as a model understands them."""

    texts: NDArray[np.float32]
    """(K, D) unit vectors."""
    identity: str
    """Identity of the model."""


class SimilarityScorer:
    """Scores pictures by a model; a `PictureScorer`.

    Args:
        model: name of the model, see `robotrl.rewards.vlm.encoder`.
        prompts: K sentences.
        output: see `Output`.
        device: "cpu" or "cuda".

    Raises:
        ConfigError: a prompt cannot be read, or the model is unknown.
        DataError: the model cannot be loaded.
    """

    def __init__(self, model: str, prompts: Sequence[str], output: Output, device: str) -> None:
        self._encoder = load_encoder(model, device)
        self._texts = self._encoder.texts(prompts)
        self._of_images = output == "image"
        self.num_outputs = int(self._texts.shape[1] if self._of_images else len(prompts))
        self.prompts = PromptVectors(self._texts.cpu().numpy(), self._encoder.identity)
        self.identity = f"{output} {self._encoder.identity} {list(prompts)!r}"

    def score(self, pictures: NDArray[np.uint8]) -> NDArray[np.float32]:
        """See `PictureScorer.score`."""
        images = self._encoder.images(torch.from_numpy(pictures))
        return (images if self._of_images else images @ self._texts.T).cpu().numpy()


def make_similarity_scorer(model: str, prompts: Sequence[str], output: Output, device: str) -> SimilarityScorer:
    """Factory of the recipes."""
    return SimilarityScorer(model, prompts, output, device)


class PictureScores(Protocol):
    """Takes pictures and gives the outputs for them; `ScoringService` is one."""

    def submit(self, tickets: NDArray[np.int64], pictures: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """See `ScoringService.submit`."""
        ...

    def collect(self) -> Answers:
        """See `ScoringService.collect`."""
        ...

    def wait(self, limit_s: float) -> Answers:
        """See `ScoringService.wait`."""
        ...

    @property
    def room(self) -> int:
        """See `ScoringService.room`."""
        ...

    @property
    def pending(self) -> int:
        """Number of tickets without an answer yet."""
        ...

    @property
    def paid(self) -> int:
        """See `ScoringService.paid`."""
        ...

    @property
    def cost(self) -> float:
        """Money that was paid, in the currency of the settings; 0 where nothing costs any."""
        ...

    def charge(self, count: int, cost: float) -> None:
        """Count pictures and money that were paid before, by the run that this one goes on with."""
        ...

    def metrics(self) -> dict[str, float]:
        """See `ScoringService.metrics`."""
        ...

    def close(self) -> None:
        """See `ScoringService.close`."""
        ...


class ImmediateScores:
    """Scores pictures in the process and at the moment of their submission; a `PictureScores`."""

    pending = 0
    paid = 0
    cost = 0.0
    room = UNBOUNDED

    def __init__(self, scorer: PictureScorer) -> None:
        self._scorer = scorer
        self._done: list[tuple[NDArray[np.int64], NDArray[np.float32]]] = []

    def submit(self, tickets: NDArray[np.int64], pictures: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Score pictures; see `ScoringService.submit`."""
        if len(tickets):
            self._done.append((tickets, self._scorer.score(pictures)))
        return np.ones(len(tickets), np.bool_)

    def collect(self) -> Answers:
        """See `ScoringService.collect`."""
        done, self._done = self._done, []
        tickets = np.concatenate([np.zeros(0, np.int64), *(one for one, _ in done)])
        none = np.zeros((0, self._scorer.num_outputs), np.float32)
        outputs = np.concatenate([none, *(found for _, found in done)])
        valid = np.asarray(np.isfinite(outputs).all(axis=1))
        return Answers(tickets, outputs, valid, np.zeros(len(tickets)))

    def wait(self, limit_s: float) -> Answers:
        """See `ScoringService.wait`; does not wait."""
        return self.collect()

    def charge(self, count: int, cost: float) -> None:
        """See `PictureScores.charge`; nothing is paid for here."""

    def metrics(self) -> dict[str, float]:
        """See `ScoringService.metrics`: none."""
        return {}

    def close(self) -> None:
        """See `ScoringService.close`."""


class OpenedScores(NamedTuple):
    """A source of outputs, and the prompts that it was made with."""

    scores: PictureScores
    prompts: PromptVectors


def open_scores(
    cfg: PictureRewardCfg, prompts: Sequence[str], output: Output, picture_shape: tuple[int, int]
) -> OpenedScores:
    """Load the model here, to check it and its prompts, and start the service if the settings ask for it.

    Args:
        cfg: settings.
        prompts: K sentences.
        output: see `Output`.
        picture_shape: height and width of the pictures, pixels.

    Raises:
        ConfigError: a prompt cannot be read, or the model is unknown.
        DataError: the model cannot be loaded.
        RobotrlError: no worker started.
    """
    arguments: dict[str, Any] = {
        "model": cfg.model,
        "prompts": list(prompts),
        "output": output,
        "device": cfg.device,
    }
    here = make_similarity_scorer(**arguments)
    if not cfg.background:
        return OpenedScores(ImmediateScores(here), here.prompts)
    recipe = ScorerRecipe(f"{__name__}:{make_similarity_scorer.__name__}", arguments)
    return OpenedScores(ScoringService(recipe, cfg.service, picture_shape), here.prompts)
