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
    caption_camera: str
    """Camera on whose pictures the captions can be read."""

    def caption_classes(self) -> NDArray[np.int8]:
        """(N, topics) class number of each env's present scene in each topic, or `UNCLEAR`."""
        ...


class ActionContext(NamedTuple):
    """A number of the scene by whose range actions are told apart, e.g. the speed."""

    observed: str
    """Its name among the observations: that of an element, or KEY/ROW/NAME of an observed table."""
    edges: tuple[float, ...]
    """Rising bounds between the ranges, in the unit of the observation."""
    classes: tuple[CaptionClass, ...]
    """One for each range, one more than edges."""


class ActionCaptions(NamedTuple):
    """Anchor actions in words, and the contexts within which they are compared (Found-RL, 2025)."""

    anchors: tuple[tuple[float, ...], ...]
    """A actions, in the units of the sim's action."""
    actions: tuple[CaptionClass, ...]
    """A classes: what each anchor does."""
    contexts: tuple[ActionContext, ...]
    """A scene's context is its range of each of these numbers."""


@runtime_checkable
class HasActionCaptions(Protocol):
    """The sim has captions of actions; its expert says which one is right."""

    action_captions: ActionCaptions

    def action_contexts(self) -> NDArray[np.float64]:
        """(N, contexts) present numbers of `ActionContext.observed`, in the units of the observation."""
        ...
