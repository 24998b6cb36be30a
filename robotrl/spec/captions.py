"""Captions of scenes from a sim's own state: topics, the classes of each, and wordings of each class.

They train and judge models of pictures and language: a class is true or false of a scene, and its wordings say so. The
wordings for tests are other sentences than those for training, of the same words.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


class CaptionClass(NamedTuple):
    """One of the statements of a topic; of each scene at most one is true."""

    name: str
    train: tuple[str, ...]
    """Sentences to train on, 1 or more."""
    test: tuple[str, ...]
    """Other sentences of the same words, to judge by."""


class CaptionTopic(NamedTuple):
    """A question about a scene, with its possible answers."""

    name: str
    classes: tuple[CaptionClass, ...]


UNCLEAR = -1
"""Class number of a scene of which no class of a topic is clearly true."""


@runtime_checkable
class HasCaptions(Protocol):
    """The sim can say in words, from its own state, what is true of its scenes."""

    caption_topics: tuple[CaptionTopic, ...]

    def caption_classes(self) -> NDArray[np.int8]:
        """(N, topics) class number of each env's present scene in each topic, or `UNCLEAR`."""
        ...
