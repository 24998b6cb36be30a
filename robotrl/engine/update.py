"""One update as arithmetic on flat vectors: gradient, clipping, Adam or Muon, averages of the parameters.

`Update.measure` computes the gradient on rows, `Update.step` moves the parameters along it. The engine runs both in one
compiled function, or separately if a gradient is the mean over microbatches or processes.
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
from robotrl.utils.devices import CPU

AT_ONCE = 1 << 20
"""Elements updated at a time without compilation."""


class Context(NamedTuple):
    """Inputs of a loss besides its minibatch."""

    carry: dict[str, Tensor]
    """Carry of the last minibatch's loss: scalars by name."""
    average: dict[str, Tensor]
    """Averaged parameters of the groups with an average, by their names in the loss module."""
    phase: str
    """Losses to compute; fixed when the update is traced."""
    device: torch.device = CPU
    """Device of the networks."""


class LossOut(NamedTuple):
    """Outputs of a loss on one minibatch."""

    loss: Tensor
    """Scalar loss to minimize: a mean over rows."""
    info: dict[str, Tensor]
    """Scalars to log; the same names every time in a phase."""
    lr: tuple[Tensor | None, ...]
    """Scalar learning rate of each group for this update. 0 leaves a group, its moments and its average unchanged; None
    does so for the whole phase, at no cost."""
    carry: dict[str, Tensor] | None = None
    """Carry of the next minibatch, unless `LossModule.next_carry` changes it; None: unchanged."""


class LossModule(nn.Module, ABC):
    """A loss with the networks that it trains as submodules.

    Parameters without `requires_grad` are constants of the loss. The carry may hold the state of schedules.
    """

    largest: ClassVar[frozenset[str]] = frozenset()
    """Names in `info` of maxima over rows; all others are means over rows."""

    @abstractmethod
    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """Compute the loss of a minibatch or microbatch: the rows (M, ...) of each array of the data.

        Learning rates and carry must not depend on the rows; carries that depend on them belong in `next_carry`.
        """
        ...

    def next_carry(self, carry: dict[str, Tensor], info: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the carry of the next minibatch.

        Args:
            carry: carry from `forward`.
            info: scalars from `forward`, over the whole minibatch: all its parts, in all processes.
        """
        del info
        return carry


class ParameterGroup(NamedTuple):
    """Parameters that share a learning rate and a maximum gradient norm."""

    prefix: str
    """Prefix of its parameters' names in the loss module, e.g. "policy."."""
    max_grad_norm: float
    """Maximum gradient norm of the group; infinity: no clipping."""
    average: float | None = None
    """Decay of the parameters' exponential moving average per update of the group; None: no average. A target network
    with rate tau has a decay of 1 - tau."""
    ramp: bool = False
    """Limit the decay of update n to (1 + n) / (10 + n), so that the average forgets the random initialization
    early."""
    muon: float = 0.0
    """Train the hidden weight matrices with Muon, at this multiple of the learning rate; see `robotrl.engine.muon`. 0:
    Adam for all parameters."""


class UpdateState(NamedTuple):
    """State that an update changes; P parameters, G groups, Q parameters in groups with an average."""

    flat: Tensor
    """(P,) the parameters."""
    first: Tensor
    """(P,) Adam's first moments, or the momentum of Muon."""
    second: Tensor
    """(P,) Adam's second moments; 0 for parameters with Muon."""
    steps: Tensor
    """(G,) number of updates of each group."""
    powers: Tensor
    """(2, G) Adam's betas to the power of `steps`. They are stored because a compiled update would compute the powers
    again for every few parameters."""
    average: Tensor
    """(Q,) averaged parameters."""
    carry: Tensor
    """(C,) the carry in the order of its names; one unused number if it has none."""


def named(names: Sequence[str], carry: Tensor) -> dict[str, Tensor]:
    """Return the numbers of a carry (C,) by name, as views."""
    return {name: carry[index] for index, name in enumerate(names)}


def vector(names: Sequence[str], carry: Mapping[str, Tensor] | None, before: Tensor) -> Tensor:
    """Concatenate a carry to (C,); `before` if it is None or has no names."""
    return torch.stack([carry[name] for name in names]).detach() if names and carry is not None else before


class LossAndGradient(NamedTuple):
    """Loss and gradient on some rows."""

    gradient: Tensor
    """(P,)."""
    info: dict[str, Tensor]
    """Scalars to log, "loss" first."""
    lr: tuple[Tensor | None, ...]
    """See `LossOut`."""
    carry: Tensor
    """(C,) see `LossOut`."""


class Names:
    """Names of the scalars in `LossAndGradient`, which are packed into one vector with the gradient."""

    def __init__(self) -> None:
        self.info: list[str] = []
        self.trained: list[bool] = []
        """True for each group with a learning rate."""

    def pack(self, found: LossAndGradient) -> Tensor:
        """Concatenate gradient, info, learning rates and carry to (P + S,)."""
        self.info[:] = found.info
        self.trained[:] = [lr is not None for lr in found.lr]
        numbers = [*found.info.values(), *(lr for lr in found.lr if lr is not None)]
        scalars = torch.stack([value.to(found.gradient.dtype) for value in numbers])
        return torch.cat([found.gradient, scalars, found.carry.detach()])

    def unpack(self, gradient: Tensor, table: Tensor, largest: frozenset[str]) -> LossAndGradient:
        """Combine the results of all parts.

        Args:
            gradient: (P,) mean of their gradients.
            table: (n, S) scalars of each part, as `pack` put them behind its gradient.
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
    """State of some elements (n,) that an update changes."""

    flat: Tensor
    first: Tensor
    second: Tensor
    average: Tensor | None
    """None for groups without an average."""


class _Move(NamedTuple):
    """Scalars of a group's update."""

    on: Tensor
    """Bool scalar: True if the update is made."""
    scale: Tensor | None
    """Factor of the gradient from clipping; None: no clipping."""
    lr: Tensor
    """Learning rate."""
    rate: Tensor
    """Learning rate with the bias correction of the first moment."""
    root: Tensor
    """Factor of the second moment's root, its bias correction."""
    decay: Tensor | None
    """Decay of the average; None without one."""


class _Piece(NamedTuple):
    """Consecutive elements of a group with the same update rule."""

    a: int
    b: int
    """Begin and end in the flat vector."""
    matrix: torch.Size | None
    """Shape of the matrix that Muon moves; None: Adam, element by element."""


class _Plan(NamedTuple):
    """All scalars of an update."""

    moves: list[_Move | None]
    """Scalars of each group; None leaves it unchanged."""
    steps: Tensor
    powers: Tensor
    carry: Tensor
    info: dict[str, Tensor]


class Update:
    """The arithmetic of an update, without mutable state.

    Args:
        loss: the loss module.
        groups: its parameter groups, in the order of the flat vector.
        views: views of the flat vector; empty for a sharded vector.
        average_views: views of the vector of averages.
        spans: begin and end of each group in the flat vector.
        betas: decay of Adam's moments.
        eps: Adam's epsilon.
        carried: names of the carry.
        across: function that sums a number over all shards of a sharded vector; None: the vector is whole.
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
        carried: Sequence[str] = (),
        across: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.loss = loss
        self._across, self._carried = across, carried
        self._groups, self._spans = groups, spans
        self._views, self._average_views = views, average_views
        self._betas, self._eps = betas, eps
        self._average_spans = in_turn(
            b - a if group.average is not None else 0 for group, (a, b) in zip(groups, spans, strict=True)
        )
        matrices = hidden_matrices(loss)
        found = [(a, b, shape) for name, (a, b), shape in views.places() if name in matrices]
        self._pieces = [_cut(span, found if group.muon else []) for group, span in zip(groups, spans, strict=True)]
        """Pieces of each group, in order."""

    def measure(
        self, flat: Tensor, average: Tensor, carry: Tensor, batch: dict[str, Tensor], phase: str
    ) -> LossAndGradient:
        """Compute the loss and its gradient.

        Args:
            flat: (P,) see `UpdateState`.
            average: (Q,) see `UpdateState`.
            carry: (C,) see `UpdateState`.
            batch: rows (M, ...) of each array.
            phase: see `Context`.
        """
        leaf = flat.detach().requires_grad_()
        context = Context(named(self._carried, carry), self._average_views(average), phase, flat.device)
        with torch.enable_grad():
            out: LossOut = functional_call(self.loss, self._views(leaf), (batch, context))
            (gradient,) = torch.autograd.grad(out.loss, leaf)
        info = {"loss": out.loss.detach()} | {name: value.detach() for name, value in out.info.items()}
        return LossAndGradient(gradient, info, out.lr, vector(self._carried, out.carry, carry))

    def step(self, now: UpdateState, live: Tensor, found: LossAndGradient) -> tuple[UpdateState, dict[str, Tensor]]:
        """Clip the gradient, and move the parameters and their averages.

        Args:
            now: state before.
            live: a number; 0 changes nothing.
            found: loss and gradient; a gradient that is not finite changes nothing.

        Returns:
            The next state, and the scalars to log.
        """
        plan = self._plan(now, live, found)
        parts, averages = list[_Vectors](), list[Tensor]()
        for index, move in enumerate(plan.moves):
            # an unchanged group is one piece
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
        """`step` in place, a limited number of elements at a time, with little memory; the same numbers.

        Args:
            now: state before, and after.
            live: see `step`.
            found: see `step`.

        Returns:
            The scalars to log.
        """
        plan = self._plan(now, live, found)
        # a loss may log one of its inputs, which changes now
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
        """Compute all scalars of an update: those that are the same for every parameter of a group."""
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
            # bias corrections of both moments as scalars, so that one division per element is left
            moves.append(_Move(on, scale, lr, lr / (1 - power1), (1 - power2).rsqrt(), decay))
            counts.append(
                tuple(torch.where(on, after, before) for after, before in zip((t, power1, power2), old, strict=True))
            )
        info |= found.info
        steps, *powers = (torch.stack([count[k] for count in counts]) for k in range(3))
        following = self.loss.next_carry(named(self._carried, found.carry), info)
        carry = torch.where(wanted, vector(self._carried, following, found.carry), now.carry)
        return _Plan(moves, steps, torch.stack(powers), carry, info)

    def _at(self, now: UpdateState, index: int, piece: _Piece) -> _Vectors:
        """Return the state of a piece of a group, as views."""
        begin, (c, d) = self._spans[index][0], self._average_spans[index]
        kept = now.average[piece.a - begin + c : piece.b - begin + c] if d > c else None
        some = slice(piece.a, piece.b)
        return _Vectors(now.flat[some], now.first[some], now.second[some], kept)

    def _moved(self, index: int, piece: _Piece, old: _Vectors, gradient: Tensor, move: _Move) -> _Vectors:
        """Return the next state of a piece of a group, given the gradient (P,)."""
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
    """Cut a group's elements into pieces, in order: each matrix within it, and the elements between them."""
    pieces, done = list[_Piece](), span[0]
    for a, b, shape in matrices:
        if span[0] <= a and b <= span[1]:
            pieces += [_Piece(done, a, None), _Piece(a, b, shape)]
            done = b
    return [piece for piece in (*pieces, _Piece(done, span[1], None)) if piece.b > piece.a]


def _short(pieces: Sequence[_Piece]) -> Iterator[_Piece]:
    """Split pieces without a matrix into pieces of at most `AT_ONCE` elements."""
    for piece in pieces:
        size = piece.b - piece.a if piece.matrix is not None else AT_ONCE
        for begin in range(piece.a, piece.b, size):
            yield _Piece(begin, min(begin + size, piece.b), piece.matrix)
