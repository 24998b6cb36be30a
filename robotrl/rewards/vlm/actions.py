"""Captions of actions: the topics that a model learns them from, the right one of a scene, and how well it is known.

Sentences of actions are compared within a context, e.g. a range of speeds (Found-RL, 2025), so each context is a topic
whose classes are the actions. Of a scene one topic has a class: the anchor nearest to the expert's action.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from robotrl.errors import CapabilityError
from robotrl.rewards.vlm.encoder import ImageTextEncoder
from robotrl.rewards.vlm.scenes import CaptionedFrames
from robotrl.spec import Spec, VecSim
from robotrl.spec.captions import (
    UNCLEAR,
    ActionCaptions,
    CaptionClass,
    CaptionTopic,
    HasActionCaptions,
)


class ActionMargin(NamedTuple):
    """Scores of a model that names the right action, on held-out frames and wordings."""

    frames: int
    right: float
    """Mean probability of the right action among those of the scene's context."""
    margin: float
    """Mean of that, less the probability of the best other action; -1 to 1."""
    accuracy: float
    """Share of frames whose right action is the most probable one."""
    commonest: float
    """Share of frames whose right action is the commonest one of their context: what one reaches without looking."""


def require_action_captions(sim: VecSim) -> HasActionCaptions:
    """The sim, as one that has captions of actions.

    Raises:
        CapabilityError: it has none.
    """
    if not isinstance(sim, HasActionCaptions):
        raise CapabilityError(f"sim {type(sim).__name__} lacks HasActionCaptions: it has no sentences for its actions")
    return sim


def action_topics(captions: ActionCaptions) -> tuple[CaptionTopic, ...]:
    """One topic for each context, the last number's ranges fastest; its sentences begin with those of the context."""
    topics: list[CaptionTopic] = []
    for context in itertools.product(*(one.classes for one in captions.contexts)):
        classes = tuple(
            CaptionClass(
                action.name,
                sentences([one.train for one in context], action.train),
                sentences([one.test for one in context], action.test),
            )
            for action in captions.actions
        )
        topics.append(CaptionTopic("-".join(["action", *(one.name for one in context)]), classes))
    return tuple(topics)


def sentences(context: Sequence[Sequence[str]], actions: Sequence[str]) -> tuple[str, ...]:
    """All sentences of a context's wordings, one of each of its numbers, and an action's."""
    return tuple(" ".join(parts) for parts in itertools.product(*context, actions))


def context_of(numbers: NDArray[np.float64], captions: ActionCaptions) -> NDArray[np.int64]:
    """Topic (N,) of `action_topics` that scenes with these numbers (N, contexts) belong to."""
    out = np.zeros(len(numbers), np.int64)
    for column, one in zip(numbers.T, captions.contexts, strict=True):
        out = out * len(one.classes) + np.searchsorted(one.edges, column)
    return out


def nearest_anchor(actions: NDArray[np.float32], captions: ActionCaptions, spec: Spec) -> NDArray[np.int64]:
    """Number (N,) of the anchor nearest to each action (N, A), in halves of the action's range."""
    half = (np.array(spec.high) - np.array(spec.low)) / 2
    apart = (actions[:, None] - np.array(captions.anchors)) / half
    return (apart**2).sum(axis=2).argmin(axis=1)


def action_classes(sim: HasActionCaptions, actions: NDArray[np.float32], spec: Spec) -> NDArray[np.int8]:
    """(N, topics) the right action in the topic of each env's context, `UNCLEAR` in the others.

    Args:
        sim: the sim, in the scenes for which the actions are.
        actions: (N, A) of its expert.
        spec: its action spec.
    """
    captions = sim.action_captions
    context = context_of(sim.action_contexts(), captions)
    topics = int(np.prod([len(one.classes) for one in captions.contexts]))
    out = np.full((len(actions), topics), UNCLEAR, np.int8)
    out[np.arange(len(actions)), context] = nearest_anchor(actions, captions, spec)
    return out


def action_margin(
    encoder: ImageTextEncoder, scenes: CaptionedFrames, topics: Sequence[CaptionTopic], temperature: float
) -> ActionMargin:
    """Probability of the right action, as the reward `action-alignment` computes it.

    Args:
        encoder: the model.
        scenes: held-out frames; their last classes are those of `topics`.
        topics: see `action_topics`.
        temperature: of the softmax over the actions of a context.
    """
    images = encoder.images(torch.from_numpy(scenes.pictures))
    classes = scenes.classes[:, -len(topics) :]
    right, best, commonest = list[torch.Tensor](), list[torch.Tensor](), 0
    for k, topic in enumerate(topics):
        rows = np.flatnonzero(classes[:, k] != UNCLEAR)
        if not len(rows):
            continue
        true = torch.from_numpy(classes[rows, k].astype(np.int64))
        texts = torch.stack([encoder.texts(one.test).mean(dim=0) for one in topic.classes])
        probability = torch.softmax(images[rows] @ texts.T / temperature, dim=1)
        right.append(probability.gather(1, true[:, None])[:, 0])
        best.append(probability.scatter(1, true[:, None], 0.0).max(dim=1).values)
        commonest += int(torch.bincount(true).max())
    of_right, of_best = torch.cat(right), torch.cat(best)
    return ActionMargin(
        len(of_right),
        float(of_right.mean()),
        float((of_right - of_best).mean()),
        float((of_right > of_best).float().mean()),
        commonest / len(of_right),
    )
