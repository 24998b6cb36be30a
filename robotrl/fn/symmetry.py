"""What the symmetries of a sim (`robotrl.spec.symmetry`) make of arrays, as pure functions."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import reduce

import torch
from torch import Tensor

from robotrl.spec.symmetry import Look, Signed, Symmetry


def signed(x: Tensor, change: Signed) -> Tensor:
    """Numbers (..., D), changed."""
    return x[..., list(change.order)] * x.new_tensor(change.signs)


def looked(pictures: Tensor, change: Look) -> Tensor:
    """Pictures (B, h, w, 3), changed."""
    out = pictures[..., list(change.channels)]
    return out.flip(2) if change.flipped else out


def told(words: Tensor, change: tuple[int, ...]) -> Tensor:
    """Word numbers (..., L), changed."""
    return words.new_tensor(change)[words.long()]


def changed(obs: Mapping[str, Tensor], symmetry: Symmetry) -> dict[str, Tensor]:
    """Observations (B, ...), each changed.

    Raises:
        KeyError: the symmetry does not know one of them.
    """
    out: dict[str, Tensor] = {}
    for key, x in obs.items():
        if key in symmetry.pictures:
            out[key] = looked(x, symmetry.pictures[key])
        elif key in symmetry.words:
            out[key] = told(x, symmetry.words[key])
        else:
            out[key] = signed(x, symmetry.numbers[key])
    return out


def composed(first: Symmetry, then: Symmetry) -> Symmetry:
    """The one change that two make, one after the other."""
    return Symmetry(
        {key: _both(change, then.numbers[key]) for key, change in first.numbers.items()},
        {key: _looks(change, then.pictures[key]) for key, change in first.pictures.items()},
        {key: tuple(then.words[key][word] for word in change) for key, change in first.words.items()},
        _both(first.action, then.action),
    )


def combinations(kinds: Sequence[Sequence[Symmetry]]) -> tuple[Symmetry | None, ...]:
    """Every way to make at most one change of each kind; the first is None, which changes nothing."""
    out: list[Symmetry | None] = []
    for picked in itertools.product(*((None, *kind) for kind in kinds)):
        made = [one for one in picked if one is not None]
        out.append(reduce(composed, made) if made else None)
    return tuple(out)


def sayable(sentences: Tensor, changes: Sequence[Symmetry | None], key: str) -> Tensor:
    """(W, C) bool: whether each of the sentences becomes one of them under each change.

    What demonstrations never say, since it is left out to be composed of what they say, stays unsaid so.

    Args:
        sentences: (W, L) word numbers, each row once.
        changes: C of them, from `combinations`.
        key: of the words.
    """
    new = [sentences if change is None else told(sentences, change.words[key]) for change in changes]
    return torch.stack([(x[:, None] == sentences).all(dim=2).any(dim=1) for x in new], dim=1)


def _both(first: Signed, then: Signed) -> Signed:
    order = tuple(first.order[i] for i in then.order)
    return Signed(order, tuple(sign * first.signs[i] for i, sign in zip(then.order, then.signs, strict=True)))


def _looks(first: Look, then: Look) -> Look:
    a, b, c = (first.channels[i] for i in then.channels)
    return Look(first.flipped != then.flipped, (a, b, c))
