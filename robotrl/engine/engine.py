"""The update engine: loss, gradient, clipping and Adam on one flat parameter vector, as one compiled function.

For small networks on a CPU, the cost of an update is the overhead of its hundred small operations. The engine traces a
few consecutive updates into one graph of fixed shapes and compiles it. Without a compiler, the same function runs
eagerly, with the same numbers up to rounding. On CUDA, the compiled function is captured as a CUDA graph, which has no
launch overhead on the host.

A loss is a module that holds the networks it trains (`LossModule`). Values that vary from one minibatch to the next are
inputs or part of its `carry`, so a learner never recompiles: learning-rate schedules, early stops by KL. The engine
keeps averages of the parameters for target networks and evaluated policies. An update that trains only some networks,
such as the critic, is a *phase*, compiled separately.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from robotrl.engine.base import (
    NO_CARRY,
    EngineMode,
    Updates,
    check_rows,
    check_updates,
    first_carry,
    members_of,
    minibatches,
    torch_threads,
)
from robotrl.engine.compile_record import expected_s, pays, remember, shape_key
from robotrl.engine.compiling import compiled
from robotrl.engine.distributed import ALONE, DistributedContext
from robotrl.engine.flat_params import FlatViews, flatten, in_turn
from robotrl.engine.update import Context, LossModule, LossOut, Names, ParameterGroup, Update, UpdateState, named
from robotrl.errors import check_decay
from robotrl.utils.progress import waiting

__all__ = [
    "UPDATES_PER_CALL",
    "Context",
    "Engine",
    "EngineMode",
    "ParameterGroup",
    "LossModule",
    "LossOut",
    "UpdateState",
    "Updates",
]

TRIALS = 4
"""Number of updates that "auto" times before it chooses."""
UPDATES_PER_CALL = 4
"""Updates per traced graph: 4 halves the overhead at minibatches of 64; more only lengthen compilation."""


class _Phase(NamedTuple):
    """Function and buffers of one phase."""

    data: dict[str, Tensor]
    call: Callable[[Tensor, Tensor], Tensor]
    """Function from (live (U,), row indices (U, M)) to the statistics (U, S) of U updates."""
    info_names: list[str]
    per_call: int
    """U, updates per call."""


class Engine:
    """Trains the parameters of a loss module with Adam (Kingma & Ba 2015).

    The parameters become views of one flat vector, which the engine updates in place: the networks can be used and
    saved as before, but a parameter must not be replaced by another tensor.

    Args:
        loss: the loss module.
        groups: parameter groups; every trainable parameter of the loss belongs to exactly one.
        minibatch: M, rows of a minibatch; with several processes, of this one.
        carry: initial carry of the loss: numbers by name.
        mode: "compiled", "eager" to run without a compiler, or "auto": the first updates run eagerly and are timed,
            then all are compiled if that saves time. See `mode`.
        betas: decay of Adam's moments.
        eps: Adam's epsilon.
        updates_per_call: U, updates compiled into one graph; fewer for a learner that makes fewer in a row.
        updates: number of updates of the whole run, on which "auto" bases its choice; None compiles.
        microbatch: m, rows per forward and backward pass, to save memory; must divide M. The gradient of a minibatch is
            then the mean over its microbatches.
        threads: torch threads during updates; None: unchanged.
        world: the processes over which gradients are averaged; all start with the parameters of the first, and make the
            same updates.

    Raises:
        ConfigError: a setting out of range, or a parameter in no group or in two.
    """

    sharded = False

    def __init__(
        self,
        loss: LossModule,
        groups: Sequence[ParameterGroup],
        *,
        minibatch: int,
        carry: Mapping[str, float] = NO_CARRY,
        mode: EngineMode = "compiled",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-5,
        updates_per_call: int = UPDATES_PER_CALL,
        updates: int | None = None,
        microbatch: int | None = None,
        threads: int | None = None,
        world: DistributedContext = ALONE,
    ) -> None:
        check_rows(minibatch, microbatch)
        for group in groups:
            if group.average is not None:
                check_decay(f"the average of {group.prefix!r}", group.average)
        self.mode: EngineMode = "compiled" if mode == "auto" and updates is None else mode
        """Current mode; "auto" until enough updates were timed. The choice is part of the state, because compiled and
        eager updates differ by rounding."""
        self._asked, self._to_come = mode, updates or 0
        self._timed: list[float] = []
        self.compile_s = 0.0
        """Seconds spent on tracing and compiling so far."""
        self.minibatch = minibatch
        self._groups = tuple(groups)
        self._per_call = updates_per_call
        self._microbatch = minibatch if microbatch is None else microbatch
        self._threads, self._world = threads, world
        members = members_of(loss, groups)
        ordered = [pair for group in members for pair in group]
        views = FlatViews([name for name, _ in ordered], [p.shape for _, p in ordered])
        kept = [
            pair for group, pairs in zip(groups, members, strict=True) if group.average is not None for pair in pairs
        ]
        self._average_views = FlatViews([name for name, _ in kept], [p.shape for _, p in kept])
        self._spans = in_turn(sum(p.numel() for _, p in pairs) for pairs in members)
        self.flat = flatten([p for _, p in ordered])
        world.copy_first_(self.flat)
        self._update = Update(loss, self._groups, views, self._average_views, self._spans, betas, eps, tuple(carry))
        numbers = first_carry(carry, self.flat.device)
        self.carry = named(tuple(carry), numbers)
        """See `Updater`."""
        self._now = UpdateState(
            self.flat,
            torch.zeros_like(self.flat),
            torch.zeros_like(self.flat),
            torch.zeros(len(groups), device=self.flat.device),
            torch.ones(2, len(groups), device=self.flat.device),
            self._averaged(self.flat),
            numbers,
        )
        self._phases: dict[str, _Phase] = {}

    @property
    def device(self) -> torch.device:
        """See `Updater`."""
        return self.flat.device

    def run(self, data: Mapping[str, Tensor], order: Tensor, capacity: int, what: str, phase: str = "") -> Updates:
        """Make one update per minibatch.

        Args:
            data: (B, ...) each, the rows that minibatches are made of.
            order: (B',) row indices, cut into minibatches of M in order; the last one is filled up from the beginning
                of the order, so that all have one shape and no row is left out.
            capacity: largest B of later calls; up to this, data of another size does not recompile.
            what: position in training, for errors, e.g. "iteration 3".
            phase: losses to compute, see `Context`.

        Raises:
            NumericsError: a loss or gradient is not finite; that update was skipped, those before it were made.
        """
        with torch_threads(self._threads):
            return self._run(data, order, capacity, what, phase)

    def _run(self, data: Mapping[str, Tensor], order: Tensor, capacity: int, what: str, phase: str) -> Updates:
        rows = minibatches(order, self.minibatch).to(self.flat.device)
        trials = min(len(rows), TRIALS - len(self._timed)) if self.mode == "auto" else 0
        first = [self._timed_update(row, data, capacity, phase) for row in rows[:trials]]
        if self.mode == "auto" and len(self._timed) == TRIALS:
            self._choose(data, capacity, phase)
        ready = self._fill(data, capacity, phase)
        table = torch.cat([*first, self._made(ready, rows[trials:])])
        self._to_come -= len(rows)
        info = dict(zip(ready.info_names, table.unbind(1), strict=True))
        check_updates(info, what)
        return Updates(info)

    def _made(self, ready: _Phase, rows: Tensor) -> Tensor:
        """Make the updates of minibatches (n, M); returns their statistics (n, S)."""
        count = len(rows)
        per_call = ready.per_call
        padded = torch.zeros(math.ceil(count / per_call) * per_call, self.minibatch, dtype=torch.int64).to(rows)
        padded[:count] = rows
        live = (torch.arange(len(padded), device=rows.device) < count).to(self.flat.dtype)
        stats: list[Tensor] = []
        for begin in range(0, len(padded), per_call):
            span = slice(begin, begin + per_call)
            with torch.no_grad():
                stats.append(ready.call(live[span], padded[span]))
        return torch.cat(stats)[:count] if stats else self.flat.new_zeros(0, len(ready.info_names))

    def _timed_update(self, row: Tensor, data: Mapping[str, Tensor], capacity: int, phase: str) -> Tensor:
        """Make and time the update of a minibatch (M,); returns its statistics (1, S)."""
        ready = self._fill(data, capacity, phase)
        began, busy = time.perf_counter(), time.process_time()
        # reading the result waits for the GPU
        stats = self._made(ready, row[None]).cpu().to(self.flat.device)
        took = time.perf_counter() - began
        # on a busy machine, count only this process's CPU time: compiling would wait as well
        self._timed.append(took if self.flat.is_cuda else min(took, time.process_time() - busy))
        return stats

    def _choose(self, data: Mapping[str, Tensor], capacity: int, phase: str) -> None:
        """Choose the mode; the same one in all processes."""
        key = self._shape_key(self._fill(data, capacity, phase).data, phase)
        # the first update includes one-time initialization
        if self._world.any(pays(min(self._timed[1:]), self._to_come, key)):
            self.mode = "compiled"
            self._phases.clear()
        else:
            self.mode = "eager"

    def averages(self, prefix: str) -> dict[str, Tensor]:
        """Return the averaged parameters of a network by name, as views that later updates change.

        Args:
            prefix: prefix of the network's names in the loss module, e.g. "policy.".
        """
        named = self._average_views(self._now.average)
        return {name.removeprefix(prefix): value for name, value in named.items() if name.startswith(prefix)}

    def write_average(self, prefix: str, module: nn.Module) -> None:
        """Copy the averaged parameters of a network into another of the same kind, in place."""
        own = dict(module.named_parameters())
        with torch.no_grad():
            for name, value in self.averages(prefix).items():
                own[name].copy_(value)

    def state(self) -> dict[str, Any]:
        """State for an exact resume, except the networks' own parameters."""
        chosen = {"mode": self.mode, "to_come": self._to_come} if self._asked == "auto" else {}
        return {**self._vectors(), **chosen}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`, in place."""
        for name, tensor in self._vectors().items():
            tensor.copy_(state[name])
        # older states were made in the requested mode
        if self._asked == "auto" and "mode" in state:
            self.mode, self._to_come = state["mode"], int(state["to_come"])
            self._phases.clear()

    def _vectors(self) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in self._now._asdict().items() if name != "flat"}

    def _averaged(self, flat: Tensor) -> Tensor:
        """Copy the part (Q,) of a flat vector (P,) that belongs to groups with an average."""
        parts = [
            flat[a:b] for group, (a, b) in zip(self._groups, self._spans, strict=True) if group.average is not None
        ]
        return torch.cat(parts) if parts else flat[:0].clone()

    def _fill(self, data: Mapping[str, Tensor], capacity: int, phase: str) -> _Phase:
        ready = self._phases.get(phase)
        if (
            ready is None
            or ready.data.keys() != data.keys()
            or any(len(ready.data[name]) < len(x) for name, x in data.items())
        ):
            buffers = {
                name: torch.zeros((max(capacity, len(x)), *x.shape[1:]), dtype=x.dtype, device=self.flat.device)
                for name, x in data.items()
            }
            ready = self._prepare(buffers, phase)
            self._phases[phase] = ready
        for name, values in data.items():
            ready.data[name][: len(values)] = values
        return ready

    # the functions that are compiled

    def _prepare(self, data: dict[str, Tensor], phase: str) -> _Phase:
        """Trace and compile for the shapes of the buffers `data`, or choose the eager functions."""
        make = self._in_parts if self._world.size > 1 or self._microbatch < self.minibatch else self._in_one
        if self.mode != "compiled":
            return make(data, phase)
        key, before = self._shape_key(data, phase), self.compile_s
        with waiting(f"compiling the update (once for this shape; about {expected_s(key):.0f} s)"):
            ready = make(data, phase)
        # it may have failed
        if self.mode == "compiled":
            remember(key, self.compile_s - before)
        return ready

    def _shape_key(self, data: Mapping[str, Tensor], phase: str) -> str:
        """Hash of everything that affects the compile time."""
        shapes = [(name, tuple(x.shape), str(x.dtype)) for name, x in data.items()]
        sizes = self.minibatch, self._microbatch, self._per_call, len(self.flat), self._world.size > 1
        loss = self._update.loss
        networks = [tuple(p.shape) for p in loss.parameters()]
        return shape_key(
            torch.__version__, type(loss).__qualname__, phase, self.flat.device.type, sizes, shapes, networks
        )

    def _in_one(self, data: dict[str, Tensor], phase: str) -> _Phase:
        """Compile U consecutive updates as one function, including the gathering of their minibatches."""
        info_names: list[str] = []

        def updates(*arguments: Tensor) -> Tensor:
            """Update from state, live (U,), rows (U, M), data; writes the next state, returns stats (U, S)."""
            now, (live, rows, *arrays) = UpdateState(*arguments[:STATE]), arguments[STATE:]
            new, stats = now, list[Tensor]()
            for index in range(len(rows)):
                batch = {name: x[rows[index]] for name, x in zip(data, arrays, strict=True)}
                found = self._update.measure(new.flat, new.average, new.carry, batch, phase)
                if self.mode != "compiled":
                    info = self._update.step_(now, live[index], found)
                else:
                    new, info = self._update.step(new, live[index], found)
                info_names[:] = info
                stats.append(torch.stack([value.to(now.flat.dtype) for value in info.values()]))
            if new is not now:
                _write(now, new)
            return torch.stack(stats)

        live = self.flat.new_zeros(self._per_call)
        rows = torch.zeros(self._per_call, self.minibatch, dtype=torch.int64, device=self.flat.device)
        run = self._ready(updates, (*self._now, live, rows, *data.values()), STATE, inputs=(STATE, STATE + 1))
        # a phase compiled before another one failed stays compiled, with its graph of fixed length
        per_call = self._per_call if self.mode == "compiled" else 1
        return _Phase(data, lambda live, rows: run(*self._now, live, rows, *data.values()), info_names, per_call)

    def _in_parts(self, data: dict[str, Tensor], phase: str) -> _Phase:
        """Compile the gradient of m rows and the step as two functions, between which gradients are averaged."""
        names, info_names = Names(), list[str]()

        def measure(flat: Tensor, average: Tensor, carry: Tensor, rows: Tensor, *arrays: Tensor) -> Tensor:
            """Compute gradient and scalars (P + S,) from parameters, averages, carry, rows (m,) and data."""
            batch = {name: x[rows] for name, x in zip(data, arrays, strict=True)}
            return names.pack(self._update.measure(flat, average, carry, batch, phase))

        def step(*arguments: Tensor) -> Tensor:
            """Step from state, live (), gradient (P,), table (n, S); writes the next state, returns stats (S',)."""
            now, (live, gradient, table) = UpdateState(*arguments[:STATE]), arguments[STATE:]
            found = names.unpack(gradient, table, self._update.loss.largest)
            if self.mode != "compiled":
                info = self._update.step_(now, live, found)
            else:
                new, info = self._update.step(now, live, found)
                _write(now, new)
            info_names[:] = info
            return torch.stack([value.to(now.flat.dtype) for value in info.values()])

        def seen() -> tuple[Tensor, ...]:
            return self._now.flat, self._now.average, self._now.carry

        part = torch.zeros(self._microbatch, dtype=torch.int64, device=self.flat.device)
        size, count = len(self.flat), self.minibatch // self._microbatch
        measured = self._ready(measure, (*seen(), part, *data.values()), 0, inputs=(3,))
        width = len(measured(*seen(), part, *data.values())) - size
        example = self.flat.new_zeros(()), self.flat, self.flat.new_zeros(count * self._world.size, width)
        stepped = self._ready(step, (*self._now, *example), STATE, inputs=(STATE, STATE + 1, STATE + 2))

        def call(live: Tensor, rows: Tensor) -> Tensor:
            gradient, table = torch.zeros_like(self.flat), list[Tensor]()
            for part in rows[0].split(self._microbatch):
                found = measured(*seen(), part, *data.values())
                gradient += found[:size]
                table.append(found[size:])
            gradient /= count
            self._world.mean_(gradient)
            everywhere = self._world.stacked(torch.stack(table)).flatten(0, 1)
            return stepped(*self._now, live[0], gradient, everywhere)[None]

        return _Phase(data, call, info_names, 1)

    def _ready(
        self, function: Callable[..., Tensor], arguments: tuple[Tensor, ...], written: int, inputs: tuple[int, ...]
    ) -> Callable[..., Tensor]:
        """Compile a function for the shapes of `arguments`, or return it as it is.

        Args:
            function: function of tensors.
            arguments: its arguments, always the same tensors except for `inputs`.
            written: number of first arguments that it writes into.
            inputs: positions of arguments that are new in each call.
        """
        if self.mode != "compiled":
            return function
        began = time.perf_counter()
        try:
            return compiled(function, arguments, written, inputs, self.flat.device)
        except RuntimeError as error:
            # the first line only says which back end raised
            reason = " ".join(line.strip() for line in str(error).splitlines()[:3] if line.strip())
            warnings.warn(
                f"the update could not be compiled, it runs uncompiled with the same results, several times slower:"
                f" {reason or type(error).__name__}"
                " (is a C++ compiler installed? algo.engine=eager asks for this and silences the warning)",
                stacklevel=6,
            )
            self.mode = "eager"
            return function
        finally:
            self.compile_s += time.perf_counter() - began


STATE = len(UpdateState._fields)
"""Number of a function's arguments that are the state."""


def _write(now: UpdateState, new: UpdateState) -> None:
    """Copy the next state into the tensors of `now`."""
    for target, value in zip(now, new, strict=True):
        target.copy_(value)
