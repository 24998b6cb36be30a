"""Asks a labeler about pairs of segments, unless their answers are kept."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import check_count, unknown
from robotrl.rewards.preferences.labelers.browser import BrowserCfg, BrowserLabeler
from robotrl.rewards.preferences.labelers.labels import Labeler, LabelStore, Question
from robotrl.rewards.preferences.labelers.served import ServedLabeler, ServedLabelerCfg
from robotrl.rewards.preferences.labelers.synthetic import SyntheticCfg, SyntheticLabeler
from robotrl.rewards.scoring.cache import KEY_BYTES

LabelerName = Literal["synthetic", "endpoint", "browser"]


@dataclass(frozen=True)
class LabelingCfg:
    """Labeler of pairs of segments, and the pictures that it is shown."""

    by: LabelerName = "synthetic"
    """"synthetic": the sim's own reward with errors; "endpoint": a served vision-language model; "browser": a person on
    a page in the browser."""
    length: int = 25
    """Steps of a segment."""
    store: str | None = None
    """Directory in which answers are kept by the contents of their segments, so that nothing is asked twice. None: the
    folder `answers` of the run that trains, for those of an endpoint or a person; others are kept in memory only."""
    view: str | None = None
    """Observed picture or camera that is shown; None takes the first."""
    frames: int = 4
    """Pictures of each segment, evenly spaced from its first step to its last."""
    pixels: int = 128
    """Width and height of a camera's pictures."""
    synthetic: SyntheticCfg = field(default_factory=SyntheticCfg)
    endpoint: ServedLabelerCfg = field(default_factory=ServedLabelerCfg)
    browser: BrowserCfg = field(default_factory=BrowserCfg)

    def kept_in(self, directory: str | None) -> LabelingCfg:
        """These settings, with a directory of answers that cost where they name none; None leaves them as they are."""
        if self.by == "synthetic":
            return self
        endpoint = replace(self.endpoint, server=self.endpoint.server.kept_in(directory))
        return replace(self, store=directory if self.store is None else self.store, endpoint=endpoint)

    def check(self, field: str = "labeler") -> None:
        """Check the settings, those of the chosen labeler included.

        Raises:
            ConfigError: a setting is out of range.
        """
        if self.by not in LABELERS:
            raise unknown(f"{field}.by", str(self.by), LABELERS)
        check_count(f"{field}.length", self.length, 1, 100_000, "a number of steps")
        check_count(f"{field}.frames", self.frames, 1, self.length, "a number of pictures, at most one a step")
        check_count(f"{field}.pixels", self.pixels, 8, 2048, "pixels")
        {"synthetic": self.synthetic, "endpoint": self.endpoint, "browser": self.browser}[self.by].check(
            f"{field}.{self.by}"
        )


LABELERS: dict[str, Callable[[LabelingCfg, str], Labeler]] = {
    "synthetic": lambda cfg, field: SyntheticLabeler(cfg.synthetic),
    "endpoint": lambda cfg, field: ServedLabeler(cfg.endpoint, f"{field}.endpoint"),
    "browser": lambda cfg, field: BrowserLabeler(cfg.browser),
}
"""Name to what makes the labeler from the settings and their name, for errors."""


class PairKeys(NamedTuple):
    """Keys of the contents of two segments."""

    first: bytes
    second: bytes

    @property
    def question(self) -> bytes:
        """Key of the question about them, in this order."""
        return hashlib.sha256(self.first + self.second).digest()[:KEY_BYTES]


ClipMaker = Callable[[Sequence[int]], NDArray[np.uint8]]
"""Function from rows (n,) of pairs to their pictures (n, 2, F, h, w, 3)."""


class LabelDesk:
    """A labeler with the store of its answers.

    Args:
        cfg: settings.
        field: name of the settings, for errors.

    Raises:
        ConfigError: a setting is out of range.
        DataError: the store cannot be used.
    """

    def __init__(self, cfg: LabelingCfg, field: str = "labeler") -> None:
        cfg.check(field)
        self._labeler = LABELERS[cfg.by](cfg, field)
        shown = f":{cfg.view}:{cfg.frames}:{cfg.pixels}" if self._labeler.needs_clips else ""
        self.identity = f"{self._labeler.identity}{shown}"
        self._store = LabelStore(cfg.store, self.identity, f"{field}.store")
        self._open = dict[bytes, PairKeys]()
        self._ready = dict[bytes, int]()
        self._asked, self._known = 0, 0
        self._storing = True

    @property
    def needs_clips(self) -> bool:
        """True if the labeler looks at pictures."""
        return self._labeler.needs_clips

    @property
    def pending(self) -> int:
        """Number of questions that will be answered later."""
        return self._labeler.pending

    def ask(self, pairs: Sequence[PairKeys], advantage: Sequence[float], clips: ClipMaker | None) -> None:
        """Ask about pairs; those whose answer is kept cost nothing.

        Args:
            pairs: (P,) the pairs.
            advantage: (P,) see `Question`.
            clips: makes the pictures of pairs; called only for those that are asked about. None where the labeler
                needs none.
        """
        rows: list[int] = []
        for row, pair in enumerate(pairs):
            answer = self._store.get(*pair)
            if answer is None:
                self._open[pair.question] = pair
                rows.append(row)
            else:
                self._ready[pair.question] = answer
                self._known += 1
        if not rows:
            return
        self._asked += len(rows)
        pictures = clips(rows) if self.needs_clips and clips is not None else [None] * len(rows)
        self._labeler.ask(
            [
                Question(pairs[row].question, float(advantage[row]), shown)
                for row, shown in zip(rows, pictures, strict=True)
            ]
        )

    def collect(self, wait_s: float = 0.0) -> dict[bytes, int]:
        """Answers that have come since the last call, by the keys of their questions; they are stored first.

        Args:
            wait_s: seconds to wait for those of all open questions.
        """
        found, self._ready = self._ready, {}
        for key, answer in self._labeler.collect(wait_s).items():
            pair = self._open.pop(key, None)
            if pair is None:
                continue
            found[key] = answer
            if self._storing:
                try:
                    self._store.put(*pair, answer)
                except OSError as error:
                    self._storing = False
                    warnings.warn(f"answers are no longer stored: {error.strerror}", stacklevel=2)
        return found

    def metrics(self) -> dict[str, float]:
        """Scalars to log: questions asked, answers that were kept from before, and those of the labeler."""
        return {"asked": float(self._asked), "known": float(self._known), **self._labeler.metrics()}

    def state(self) -> dict[str, float]:
        """See `Labeler.state`."""
        return self._labeler.state()

    def load(self, state: Mapping[str, float]) -> None:
        """See `Labeler.load`."""
        if state:
            self._labeler.load(state)

    def close(self) -> None:
        """End the labeler, and sync the store."""
        self._labeler.close()
        self._store.close()
