"""Application of a sim's symmetries (`robotrl.spec.symmetry`) to arrays, as pure functions."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import reduce

import torch
from torch import Tensor

from robotrl.spec.symmetry import Look, Signed, Symmetry


def signed(x: Tensor, change: Signed) -> Tensor:
    """Permute and negate numbers (..., D)."""
    return x[..., list(change.order)] * x.new_tensor(change.signs)


def looked(pictures: Tensor, change: Look) -> Tensor:
    """Flip images (B, h, w, 3) and exchange their color channels."""
    out = pictures[..., list(change.channels)]
    return out.flip(2) if change.flipped else out


def permuted_words(words: Tensor, change: tuple[int, ...]) -> Tensor:
    """Replace word indices (..., L)."""
    return words.new_tensor(change)[words.long()]


def changed(obs: Mapping[str, Tensor], symmetry: Symmetry) -> dict[str, Tensor]:
    """Apply a symmetry to observations (B, ...).

    Raises:
        KeyError: the symmetry does not know one of them.
    """
    out: dict[str, Tensor] = {}
    for key, x in obs.items():
        if key in symmetry.pictures:
            out[key] = looked(x, symmetry.pictures[key])
        elif key in symmetry.words:
            out[key] = permuted_words(x, symmetry.words[key])
        else:
            out[key] = signed(x, symmetry.numbers[key])
    return out


def composed(first: Symmetry, then: Symmetry) -> Symmetry:
    """Compose two symmetries, applied one after the other."""
    return Symmetry(
        {key: _both(change, then.numbers[key]) for key, change in first.numbers.items()},
        {key: _looks(change, then.pictures[key]) for key, change in first.pictures.items()},
        {key: tuple(then.words[key][word] for word in change) for key, change in first.words.items()},
        _both(first.action, then.action),
    )


def combinations(kinds: Sequence[Sequence[Symmetry]]) -> tuple[Symmetry | None, ...]:
    """Return all combinations of at most one change per kind; the first is None, the identity."""
    out: list[Symmetry | None] = []
    for picked in itertools.product(*((None, *kind) for kind in kinds)):
        made = [one for one in picked if one is not None]
        out.append(reduce(composed, made) if made else None)
    return tuple(out)


def sayable(sentences: Tensor, changes: Sequence[Symmetry | None], key: str) -> Tensor:
    """Return (W, C) bool: whether each sentence becomes one of the given sentences under each change.

    Sentences that demonstrations leave out, to test compositional generalization, are so never produced.

    Args:
        sentences: (W, L) word indices, each row once.
        changes: C of them, from `combinations`.
        key: observation key of the words.
    """
    new = [sentences if change is None else permuted_words(sentences, change.words[key]) for change in changes]
    return torch.stack([(x[:, None] == sentences).all(dim=2).any(dim=1) for x in new], dim=1)


def _both(first: Signed, then: Signed) -> Signed:
    order = tuple(first.order[i] for i in then.order)
    return Signed(order, tuple(sign * first.signs[i] for i, sign in zip(then.order, then.signs, strict=True)))


def _looks(first: Look, then: Look) -> Look:
    a, b, c = (first.channels[i] for i in then.channels)
    return Look(first.flipped != then.flipped, (a, b, c))
