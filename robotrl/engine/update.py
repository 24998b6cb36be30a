"""One update as arithmetic on flat vectors: the gradient of a loss, clipping, Adam or Muon, averages of the parameters.

`Update.measure` takes the gradient on rows, `Update.step` moves the parameters by it. The engine runs both in one
compiled function, or apart where a gradient is the mean over parts of a minibatch or over processes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from robotrl.engine.flat_params import FlatViews, in_turn
from robotrl.engine.muon import MOMENTUM, direction, hidden_matrices

AT_ONCE = 1 << 20
"""Elements that are moved at a time where nothing is compiled."""


class Context(NamedTuple):
    """What a loss is told besides its minibatch."""

    carry: Tensor
    """(C,) what the last minibatch's loss handed on."""
    average: dict[str, Tensor]
    """Averaged parameters of the groups that have an average, by their names in the loss module."""
    phase: str
    """Which losses are wanted; fixed when the update is traced."""


class LossOut(NamedTuple):
    """What a loss says of one minibatch."""

    loss: Tensor
    """Scalar, to be minimised: a mean over rows."""
    info: dict[str, Tensor]
    """Scalars to log; the same names every time in a phase."""
    lr: tuple[Tensor | None, ...]
    """Learning rate of each group for this very update, a scalar. 0 leaves a group as it is, its moments and average
    included; None does so for the whole phase, at no cost."""
    carry: Tensor
    """(C,) handed to the next minibatch, unless `LossModule.next_carry` makes another of it."""


class LossModule(nn.Module, ABC):
    """A loss with the networks that it trains as submodules.

    A parameter that requires no gradient is a constant of the loss. The carry may hold what a schedule needs.
    """

    largest: ClassVar[frozenset[str]] = frozenset()
    """Names in `info` of what is the largest over rows; all others are means over them."""

    @abstractmethod
    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """The loss of a minibatch, or of a part of one: the rows (M, ...) of each array of the data.

        Learning rates and carry must be the same whatever the rows; what depends on them belongs in `next_carry`.
        """
        ...

    def next_carry(self, carry: Tensor, info: Mapping[str, Tensor]) -> Tensor:
        """(C,) handed to the next minibatch.

        Args:
            carry: (C,) what `forward` said.
            info: what `forward` said to log, of the whole minibatch: all its parts, in all processes.
        """
        del info
        return carry


class ParameterGroup(NamedTuple):
    """Parameters that share a learning rate and a largest gradient norm."""

    prefix: str
    """What the names of its parameters in the loss module begin with, e.g. "policy."."""
    max_grad_norm: float
    """The group's gradient is clipped to this norm; infinity does not clip."""
    average: float | None = None
    """Decay of the parameters' exponential average for each update of the group; None keeps none. A target network
    with the rate tau is a decay of 1 - tau."""
    ramp: bool = False
    """Whether the decay of update n is at most (1 + n) / (10 + n), so that the random start leaves the mean early."""
    muon: float = 0.0
    """The matrices inside its networks move by Muon, with so many times the learning rate; see `robotrl.engine.muon`. 0
    moves them by Adam, as all else."""


class UpdateState(NamedTuple):
    """What an update changes; P parameters, G groups, Q parameters in groups with an average."""

    flat: Tensor
    """(P,) the parameters."""
    first: Tensor
    """(P,) Adam's first moments, or the momentum of Muon."""
    second: Tensor
    """(P,) Adam's second moments; 0 where Muon moves."""
    steps: Tensor
    """(G,) updates that each group took part in."""
    powers: Tensor
    """(2, G) Adam's betas to the power of `steps`. They are carried: a compiled update that computed powers would do so
    for every few parameters again."""
    average: Tensor
    """(Q,) averaged parameters."""
    carry: Tensor
    """(C,)."""


class LossAndGradient(NamedTuple):
    """What a loss and its gradient are on some rows."""

    gradient: Tensor
    """(P,)."""
    info: dict[str, Tensor]
    """Scalars to log, "loss" first."""
    lr: tuple[Tensor | None, ...]
    """See `LossOut`."""
    carry: Tensor
    """(C,) see `LossOut`."""


class Names:
    """Names of the values of `LossAndGradient` beside the gradient, which travel as one vector."""

    def __init__(self) -> None:
        self.info: list[str] = []
        self.trained: list[bool] = []
        """Whether each group has a learning rate."""

    def pack(self, found: LossAndGradient) -> Tensor:
        """(P + S,) gradient, info, learning rates, carry."""
        self.info[:] = found.info
        self.trained[:] = [lr is not None for lr in found.lr]
        numbers = [*found.info.values(), *(lr for lr in found.lr if lr is not None)]
        scalars = torch.stack([value.to(found.gradient.dtype) for value in numbers])
        return torch.cat([found.gradient, scalars, found.carry.detach()])

    def unpack(self, gradient: Tensor, table: Tensor, largest: frozenset[str]) -> LossAndGradient:
        """What was measured on all parts together.

        Args:
            gradient: (P,) their mean.
            table: (n, S) of each part, what `pack` put behind its gradient.
            largest: see `LossModule.largest`.
        """
        columns = table.unbind(1)[: len(self.info)]
        info = {name: x.amax() if name in largest else x.mean() for name, x in zip(self.info, columns, strict=True)}
        # learning rates and carry are the same in all parts
        rest = table[0, len(self.info) :]
        rates = iter(rest[: sum(self.trained)])
        lr = tuple(next(rates) if trained else None for trained in self.trained)
        return LossAndGradient(gradient, info, lr, rest[sum(self.trained) :])


class _Vectors(NamedTuple):
    """What an update changes of some elements (n,)."""

    flat: Tensor
    first: Tensor
    second: Tensor
    average: Tensor | None
    """Of a group that has one."""


class _Move(NamedTuple):
    """The numbers of a group's update."""

    on: Tensor
    """Whether it is made."""
    scale: Tensor | None
    """Of the gradient, clipped to its norm."""
    lr: Tensor
    """Learning rate."""
    rate: Tensor
    """The same, corrected for the start of the first moment."""
    root: Tensor
    """What the second moment's root is multiplied by, for its start."""
    decay: Tensor | None
    """Of the average."""


class _Piece(NamedTuple):
    """Elements of a group that move alike, side by side."""

    a: int
    b: int
    """Where they begin and end in the flat vector."""
    matrix: torch.Size | None
    """The matrix that they are, which Muon moves; None moves each of them by Adam."""


class _Plan(NamedTuple):
    """All single numbers of an update."""

    moves: list[_Move | None]
    """Of each group; None leaves it as it is."""
    steps: Tensor
    powers: Tensor
    carry: Tensor
    info: dict[str, Tensor]


class Update:
    """The arithmetic of an update, without anything that changes.

    Args:
        loss: the loss module.
        groups: its parameters, in the order in which they lie in the flat vector.
        views: of the flat vector; of a vector that is one part of several, of nothing.
        average_views: of the vector of averages.
        spans: where each group begins and ends in the flat vector.
        betas: decay of Adam's moments.
        eps: Adam's epsilon.
        across: of a vector that is one part of several, the sum of a number over all parts; None: the vector is whole.
    """

    def __init__(
        self,
        loss: LossModule,
        groups: Sequence[ParameterGroup],
        views: FlatViews,
        average_views: FlatViews,
        spans: Sequence[tuple[int, int]],
        betas: tuple[float, float],
        eps: float,
        across: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.loss = loss
        self._across = across
        self._groups, self._spans = groups, spans
        self._views, self._average_views = views, average_views
        self._betas, self._eps = betas, eps
        self._average_spans = in_turn(
            b - a if group.average is not None else 0 for group, (a, b) in zip(groups, spans, strict=True)
        )
        matrices = hidden_matrices(loss)
        found = [(a, b, shape) for name, (a, b), shape in views.places() if name in matrices]
        self._pieces = [_cut(span, found if group.muon else []) for group, span in zip(groups, spans, strict=True)]
        """Of each group, in turn."""

    def measure(
        self, flat: Tensor, average: Tensor, carry: Tensor, batch: dict[str, Tensor], phase: str
    ) -> LossAndGradient:
        """The loss and its gradient.

        Args:
            flat: (P,) see `UpdateState`.
            average: (Q,) likewise.
            carry: (C,) likewise.
            batch: rows (M, ...) of each array.
            phase: see `Context`.
        """
        leaf = flat.detach().requires_grad_()
        context = Context(carry, self._average_views(average), phase)
        with torch.enable_grad():
            out: LossOut = functional_call(self.loss, self._views(leaf), (batch, context))
            (gradient,) = torch.autograd.grad(out.loss, leaf)
        info = {"loss": out.loss.detach()} | {name: value.detach() for name, value in out.info.items()}
        return LossAndGradient(gradient, info, out.lr, out.carry.detach())

    def step(self, now: UpdateState, live: Tensor, found: LossAndGradient) -> tuple[UpdateState, dict[str, Tensor]]:
        """Clip the gradient, move the parameters and their averages.

        Args:
            now: before.
            live: a number; where it is 0, nothing changes.
            found: the gradient; one that is not finite changes nothing.

        Returns:
            What follows `now`, and what to log.
        """
        plan = self._plan(now, live, found)
        parts, averages = list[_Vectors](), list[Tensor]()
        for index, move in enumerate(plan.moves):
            # a group that stays as it is stays so as a whole
            pieces = self._pieces[index] if move is not None else [_Piece(*self._spans[index], None)]
            for piece in pieces:
                old = self._at(now, index, piece)
                new = old if move is None else self._moved(index, piece, old, found.gradient, move)
                parts.append(new)
                if new.average is not None:
                    averages.append(new.average)
        average = torch.cat(averages) if averages else now.average
        flat, first, second = (torch.cat(kind) for kind in zip(*(p[:3] for p in parts), strict=True))
        return UpdateState(flat, first, second, plan.steps, plan.powers, average, plan.carry), plan.info

    def step_(self, now: UpdateState, live: Tensor, found: LossAndGradient) -> dict[str, Tensor]:
        """`step` in place, some elements at a time, so that it takes next to no memory; the same numbers.

        Args:
            now: before, and after.
            live: see `step`.
            found: see `step`.

        Returns:
            What to log.
        """
        plan = self._plan(now, live, found)
        # a loss may log what it was handed, which changes now
        info = {name: value.clone() for name, value in plan.info.items()}
        for index, move in enumerate(plan.moves):
            if move is None:
                continue
            for piece in _short(self._pieces[index]):
                old = self._at(now, index, piece)
                new = self._moved(index, piece, old, found.gradient, move)
                for target, value in zip(old, new, strict=True):
                    if target is not None and value is not None:
                        target.copy_(value)
        for target, value in ((now.steps, plan.steps), (now.powers, plan.powers), (now.carry, plan.carry)):
            target.copy_(value)
        return info

    def _plan(self, now: UpdateState, live: Tensor, found: LossAndGradient) -> _Plan:
        """All single numbers of an update: what is the same for every parameter of a group."""
        info = {"loss": found.info["loss"]}
        size = found.gradient.abs().sum()
        size = size if self._across is None else self._across(size)
        wanted = (live > 0) & torch.isfinite(info["loss"]) & torch.isfinite(size)
        moves, counts = list[_Move | None](), list[tuple[Tensor, ...]]()
        beta1, beta2 = self._betas
        for i, (group, (a, b), lr) in enumerate(zip(self._groups, self._spans, found.lr, strict=True)):
            old = now.steps[i], now.powers[0, i], now.powers[1, i]
            if lr is None:
                moves.append(None)
                counts.append(old)
                continue
            g = found.gradient[a:b]
            norm = g.norm() if self._across is None else self._across(g.norm().square()).sqrt()
            info[f"grad_norm/{group.prefix}"] = norm
            clipped = math.isfinite(group.max_grad_norm)
            scale = (group.max_grad_norm / (norm + 1e-6)).clamp(max=1.0) if clipped else None
            t, power1, power2 = old[0] + 1, old[1] * beta1, old[2] * beta2
            on = wanted & (lr > 0)
            decay = None
            if group.average is not None:
                decay = torch.full_like(t, group.average)
                if group.ramp:
                    decay = torch.minimum(decay, t / (9 + t))
            # the bias corrections of both moments as numbers, so that one division an element is left
            moves.append(_Move(on, scale, lr, lr / (1 - power1), (1 - power2).rsqrt(), decay))
            counts.append(
                tuple(torch.where(on, after, before) for after, before in zip((t, power1, power2), old, strict=True))
            )
        info |= found.info
        steps, *powers = (torch.stack([count[k] for count in counts]) for k in range(3))
        carry = torch.where(wanted, self.loss.next_carry(found.carry, info), now.carry)
        return _Plan(moves, steps, torch.stack(powers), carry, info)

    def _at(self, now: UpdateState, index: int, piece: _Piece) -> _Vectors:
        """What an update changes of a piece of a group, as views."""
        begin, (c, d) = self._spans[index][0], self._average_spans[index]
        kept = now.average[piece.a - begin + c : piece.b - begin + c] if d > c else None
        some = slice(piece.a, piece.b)
        return _Vectors(now.flat[some], now.first[some], now.second[some], kept)

    def _moved(self, index: int, piece: _Piece, old: _Vectors, gradient: Tensor, move: _Move) -> _Vectors:
        """What follows a piece of a group, given the gradient (P,)."""
        g = gradient[piece.a : piece.b]
        if move.scale is not None:
            g = g * move.scale
        v = old.second
        if piece.matrix is None:
            beta1, beta2 = self._betas
            m = old.first + (1 - beta1) * (g - old.first)
            v = v + (1 - beta2) * (g * g - v)
            flat = old.flat - move.rate * m / (v.sqrt() * move.root + self._eps)
            v = torch.where(move.on, v, old.second)
        else:
            m = old.first.lerp(g, 1 - MOMENTUM)
            along = direction(m.view(piece.matrix), g.view(piece.matrix)).reshape(-1)
            flat = old.flat - self._groups[index].muon * move.lr * along
        flat, m = torch.where(move.on, flat, old.flat), torch.where(move.on, m, old.first)
        kept = old.average
        if kept is not None:
            assert move.decay is not None
            kept = torch.where(move.on, kept + (1 - move.decay) * (flat - kept), kept)
        return _Vectors(flat, m, v, kept)


def _cut(span: tuple[int, int], matrices: Sequence[tuple[int, int, torch.Size]]) -> list[_Piece]:
    """A group's elements in pieces, in turn: each matrix within it, and what lies between them."""
    pieces, done = list[_Piece](), span[0]
    for a, b, shape in matrices:
        if span[0] <= a and b <= span[1]:
            pieces += [_Piece(done, a, None), _Piece(a, b, shape)]
            done = b
    return [piece for piece in (*pieces, _Piece(done, span[1], None)) if piece.b > piece.a]


def _short(pieces: Sequence[_Piece]) -> Iterator[_Piece]:
    """The same, what is no matrix in pieces of at most `AT_ONCE` elements."""
    for piece in pieces:
        size = piece.b - piece.a if piece.matrix is not None else AT_ONCE
        for begin in range(piece.a, piece.b, size):
            yield _Piece(begin, min(begin + size, piece.b), piece.matrix)
