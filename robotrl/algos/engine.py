"""The update engine: loss, gradient, clip and Adam on one flat parameter vector, as one compiled function.

For small networks on a CPU an update costs what its hundred small operations cost to call, not what they compute. The
engine traces a few updates in a row into one graph of fixed shapes, and compiles that. Without a compiler the same
function runs as it is, operation by operation, and gives the same numbers up to rounding; on CUDA the compiled function
is captured as a graph, which replays without any launch cost on the host.

A loss is a module that holds the networks it trains (`LossModule`). Whatever varies from one minibatch to the next is
an input or travels in its `carry`, so a learner never recompiles: learning-rate schedules, early stops by KL. Averages
of the parameters, as target networks and evaluated policies need them, are kept by the engine. An update that trains
fewer networks than another, such as a critic's alone, is a *phase*, compiled for itself.
"""

from __future__ import annotations

import itertools
import math
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from robotrl.algos.cuda_graph import CudaGraph
from robotrl.algos.flat import Views, flatten
from robotrl.errors import ConfigError, NumericsError, out_of_range

EngineMode = Literal["compiled", "eager"]

UPDATES_PER_CALL = 4
"""Updates traced into one graph: halves the cost of calling at minibatches of 64; more only lengthen compilation."""


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
    """Scalar, to be minimised."""
    info: dict[str, Tensor]
    """Scalars to log; the same names every time in a phase."""
    lr: tuple[Tensor | None, ...]
    """Learning rate of each group for this very update, a scalar. 0 leaves a group as it is, its moments and average
    included; None does so for the whole phase, at no cost."""
    carry: Tensor
    """(C,) handed to the next minibatch."""


class LossModule(nn.Module, ABC):
    """A loss with the networks that it trains as submodules.

    A parameter that requires no gradient is a constant of the loss. The carry may hold what a schedule needs.
    """

    @abstractmethod
    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """The loss of a minibatch: the rows (M, ...) of each array of the data."""
        ...


class Group(NamedTuple):
    """Parameters that share a learning rate and a largest gradient norm."""

    prefix: str
    """What the names of its parameters in the loss module begin with, e.g. "policy."."""
    grad_norm: float
    """The group's gradient is clipped to this norm; infinity does not clip."""
    average: float | None = None
    """Decay of the parameters' exponential average for each update of the group; None keeps none. A target network
    with the rate tau is a decay of 1 - tau."""
    ramp: bool = False
    """Whether the decay of update n is at most (1 + n) / (10 + n), so that the random start leaves the mean early."""


class State(NamedTuple):
    """What an update changes; P parameters, G groups, Q parameters in groups with an average."""

    flat: Tensor
    """(P,) the parameters."""
    first: Tensor
    """(P,) Adam's first moments."""
    second: Tensor
    """(P,) Adam's second moments."""
    steps: Tensor
    """(G,) updates that each group took part in."""
    powers: Tensor
    """(2, G) Adam's betas to the power of `steps`. They are carried: a compiled update that computed powers would do so
    for every few parameters again."""
    average: Tensor
    """(Q,) averaged parameters."""
    carry: Tensor
    """(C,)."""


class Updates(NamedTuple):
    """What `Engine.run` did, one entry for each minibatch."""

    info: dict[str, Tensor]
    """(n,) each: what the loss logs, "loss", and "grad_norm/PREFIX" of each trained group before clipping."""

    def mean(self) -> dict[str, float]:
        """Means over the minibatches."""
        return {name: float(values.mean()) for name, values in self.info.items()}


class _Phase(NamedTuple):
    """What is prepared for one phase: the function and the buffers that it reads."""

    data: dict[str, Tensor]
    call: Callable[..., Tensor]
    info_names: list[str]
    per_call: int
    """Updates that a call makes."""


class Engine:
    """Trains the parameters of a loss module with Adam (Kingma & Ba 2015).

    The parameters become views of one flat vector, which the engine updates in place: the networks can be used and
    saved as ever, but a parameter must not be replaced by another tensor.

    Args:
        loss: the loss module.
        groups: every parameter of the loss that requires a gradient belongs to exactly one.
        minibatch: M, rows of a minibatch.
        carry: (C,) what the first minibatch is handed.
        mode: "compiled", or "eager" to run without a compiler.
        betas: decay of Adam's moments.
        eps: Adam's epsilon.
        updates_per_call: U, updates compiled into one graph; for a learner that makes fewer in a row, that many.

    Raises:
        ConfigError: a setting out of range, or a parameter in no group or in two.
    """

    def __init__(
        self,
        loss: LossModule,
        groups: Sequence[Group],
        *,
        minibatch: int,
        carry: Tensor,
        mode: EngineMode = "compiled",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-5,
        updates_per_call: int = UPDATES_PER_CALL,
    ) -> None:
        if minibatch < 1:
            raise out_of_range("algo.minibatch", minibatch, "1 or more")
        for group in groups:
            if group.average is not None and not 0 <= group.average < 1:
                raise out_of_range(f"the average of {group.prefix!r}", group.average, "0 or more and below 1")
        self.mode: EngineMode = mode
        self.compile_s = 0.0
        """Seconds spent on tracing and compiling so far."""
        self.minibatch = minibatch
        self._loss = loss
        self._groups = tuple(groups)
        self._betas, self._eps = betas, eps
        self._per_call = updates_per_call
        named = [(name, p) for name, p in loss.named_parameters() if p.requires_grad]
        members = [[(name, p) for name, p in named if name.startswith(group.prefix)] for group in groups]
        ordered = [pair for group in members for pair in group]
        if sorted(name for name, _ in ordered) != sorted(name for name, _ in named):
            raise ConfigError(
                f"engine groups {[g.prefix for g in groups]} do not divide the parameters {[n for n, _ in named]}:"
                " expected each in exactly one"
            )
        self._views = Views([name for name, _ in ordered], [p.shape for _, p in ordered])
        kept = [
            pair for group, pairs in zip(groups, members, strict=True) if group.average is not None for pair in pairs
        ]
        self._average_views = Views([name for name, _ in kept], [p.shape for _, p in kept])
        ends = list(itertools.accumulate(sum(p.numel() for _, p in pairs) for pairs in members))
        self._spans = list(zip([0, *ends[:-1]], ends, strict=True))
        self.flat = flatten([p for _, p in ordered])
        self.carry = carry.detach().clone().to(self.flat.device)
        """(C,) what the next minibatch is handed; a learner may write into it between calls of `run`."""
        self._now = State(
            self.flat,
            torch.zeros_like(self.flat),
            torch.zeros_like(self.flat),
            torch.zeros(len(groups), device=self.flat.device),
            torch.ones(2, len(groups), device=self.flat.device),
            self._averaged(self.flat),
            self.carry,
        )
        self._phases: dict[str, _Phase] = {}

    def run(self, data: Mapping[str, Tensor], order: Tensor, capacity: int, what: str, phase: str = "") -> Updates:
        """Update once for each minibatch.

        Args:
            data: (B, ...) each, the rows that minibatches are made of.
            order: (B',) row numbers, cut into minibatches of M in turn; the last one is filled up from the beginning
                of the order, so that all have one shape and no row is left out.
            capacity: largest B that will come; data of another size than before does not recompile up to this.
            what: where this is in training, e.g. "iteration 3", for errors.
            phase: which losses are wanted, see `Context`.

        Raises:
            NumericsError: a loss or gradient is not finite; that update was left out, those before it were made.
        """
        count = math.ceil(len(order) / self.minibatch)
        rows = order.repeat(math.ceil(count * self.minibatch / len(order)))[: count * self.minibatch]
        rows = rows.view(count, self.minibatch).to(self.flat.device)
        ready = self._fill(data, capacity, phase)
        per_call = ready.per_call
        padded = torch.zeros(math.ceil(count / per_call) * per_call, self.minibatch, dtype=torch.int64).to(rows)
        padded[:count] = rows
        live = (torch.arange(len(padded), device=rows.device) < count).to(self.flat.dtype)
        stats: list[Tensor] = []
        for begin in range(0, len(padded), per_call):
            span = slice(begin, begin + per_call)
            with torch.no_grad():
                stats.append(ready.call(*self._now, live[span], padded[span], *ready.data.values()))
        table = torch.cat(stats)[:count]
        info = dict(zip(ready.info_names, table.unbind(1), strict=True))
        self._check(info, what)
        return Updates(info)

    def averages(self, prefix: str) -> dict[str, Tensor]:
        """The averaged parameters of a network, by their names in it; views, which later updates change.

        Args:
            prefix: of the network's names in the loss module, e.g. "policy.".
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
        """What an exact resume needs besides the networks' own parameters."""
        return {name: tensor for name, tensor in self._now._asdict().items() if name != "flat"}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` gave, in place."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])

    def _averaged(self, flat: Tensor) -> Tensor:
        """The part of a flat vector (P,) that belongs to groups with an average (Q,), copied."""
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
            buffers = {name: x.new_zeros((max(capacity, len(x)), *x.shape[1:])) for name, x in data.items()}
            ready = self._prepare(buffers, phase)
            self._phases[phase] = ready
        for name, values in data.items():
            ready.data[name][: len(values)] = values
        return ready

    def _check(self, info: Mapping[str, Tensor], what: str) -> None:
        for name in ("loss", *(name for name in info if name.startswith("grad_norm/"))):
            bad = torch.nonzero(~torch.isfinite(info[name]))
            if len(bad):
                index = int(bad[0, 0])
                parts = {n: float(v[index]) for n, v in info.items() if not math.isfinite(float(v[index]))}
                raise NumericsError(
                    f"{what}, minibatch {index}: {name} is {float(info[name][index])} (not finite: {', '.join(parts)}):"
                    " expected finite; the last checkpoint is intact"
                )

    # the function that is compiled

    def _updates(
        self,
        names: Sequence[str],
        phase: str,
        info_names: list[str],
        now: State,
        live: Tensor,
        rows: Tensor,
        *data: Tensor,
    ) -> Tensor:
        """Updates in a row, written into the tensors of `now`; gives their statistics (U, S), and their names."""
        new, stats = now, list[Tensor]()
        for index in range(len(rows)):
            batch = {name: x[rows[index]] for name, x in zip(names, data, strict=True)}
            new, info = self._update(new, live[index], batch, phase)
            info_names[:] = info
            stats.append(torch.stack([value.to(now.flat.dtype) for value in info.values()]))
        for target, value in zip(now, new, strict=True):
            target.copy_(value)
        return torch.stack(stats)

    def _update(
        self, now: State, live: Tensor, batch: dict[str, Tensor], phase: str
    ) -> tuple[State, dict[str, Tensor]]:
        flat, first, second, steps, powers, average, carry = now
        leaf = flat.detach().requires_grad_()
        context = Context(carry, self._average_views(average), phase)
        with torch.enable_grad():
            out: LossOut = functional_call(self._loss, self._views(leaf), (batch, context))
            (gradient,) = torch.autograd.grad(out.loss, leaf)
        info = {"loss": out.loss.detach()}
        wanted = (live > 0) & torch.isfinite(info["loss"]) & torch.isfinite(gradient.abs().sum())
        pieces: list[tuple[Tensor, ...]] = []
        averages: list[Tensor] = []
        beta1, beta2 = self._betas
        begin = 0
        for i, (group, (a, b), lr) in enumerate(zip(self._groups, self._spans, out.lr, strict=True)):
            old = flat[a:b], first[a:b], second[a:b], steps[i], powers[0, i], powers[1, i]
            kept = average[begin : begin + b - a] if group.average is not None else None
            new = old
            if lr is not None:
                g = gradient[a:b]
                norm = g.norm()
                info[f"grad_norm/{group.prefix}"] = norm
                if math.isfinite(group.grad_norm):
                    g = g * (group.grad_norm / (norm + 1e-6)).clamp(max=1.0)
                m = old[1] + (1 - beta1) * (g - old[1])
                v = old[2] + (1 - beta2) * (g * g - old[2])
                t, power1, power2 = old[3] + 1, old[4] * beta1, old[5] * beta2
                # the bias corrections of both moments as numbers, so that one division an element is left
                rate, root = lr / (1 - power1), (1 - power2).rsqrt()
                on = wanted & (lr > 0)
                values = old[0] - rate * m / (v.sqrt() * root + self._eps), m, v, t, power1, power2
                new = tuple(torch.where(on, after, before) for after, before in zip(values, old, strict=True))
                if kept is not None:
                    assert group.average is not None
                    decay = torch.full_like(t, group.average)
                    if group.ramp:
                        decay = torch.minimum(decay, t / (9 + t))
                    kept = torch.where(on, kept + (1 - decay) * (new[0] - kept), kept)
            pieces.append(new)
            if kept is not None:
                averages.append(kept)
                begin += b - a
        new_flat, new_first, new_second = (torch.cat([p[k] for p in pieces]) for k in range(3))
        new_steps = torch.stack([p[3] for p in pieces])
        new_powers = torch.stack([torch.stack([p[k] for p in pieces]) for k in (4, 5)])
        new_average = torch.cat(averages) if averages else average
        new_carry = torch.where(wanted, out.carry.detach(), carry)
        info |= {name: value.detach() for name, value in out.info.items()}
        return State(new_flat, new_first, new_second, new_steps, new_powers, new_average, new_carry), info

    # how it is run

    def _prepare(self, buffers: dict[str, Tensor], phase: str) -> _Phase:
        """Trace and compile for the shapes of `buffers`, or choose the eager function."""
        info_names: list[str] = []

        def function(*arguments: Tensor) -> Tensor:
            state = State(*arguments[: len(State._fields)])
            return self._updates(list(buffers), phase, info_names, state, *arguments[len(State._fields) :])

        call = function
        if self.mode == "compiled":
            began = time.perf_counter()
            try:
                call = self._compile(function, buffers)
            except RuntimeError as error:
                # the first line only says which back end raised
                reason = " ".join(line.strip() for line in str(error).splitlines()[:3] if line.strip())
                warnings.warn(
                    f"the update could not be compiled, it runs uncompiled with the same results, several times slower:"
                    f" {reason or type(error).__name__}"
                    " (is a C++ compiler installed? algo.engine=eager asks for this and silences the warning)",
                    stacklevel=4,
                )
                self.mode = "eager"
            self.compile_s += time.perf_counter() - began
        # a phase that was compiled before another one failed to stays compiled, and its graph of a fixed length
        return _Phase(buffers, call, info_names, self._per_call if self.mode == "compiled" else 1)

    def _compile(self, function: Callable[..., Tensor], buffers: dict[str, Tensor]) -> Callable[..., Tensor]:
        from torch.fx.experimental.proxy_tensor import make_fx

        def example() -> tuple[Tensor, ...]:
            u, device = self._per_call, self.flat.device
            live = torch.zeros(u, dtype=self.flat.dtype, device=device)
            rows = torch.zeros(u, self.minibatch, dtype=torch.int64, device=device)
            return *(x.clone() for x in self._now), live, rows, *(x.clone() for x in buffers.values())

        with torch.no_grad():
            # tracing runs the Python code once; the compiler then sees plain tensor operations only
            graph: Any = make_fx(function)(*example())
            options: dict[str, str | int | bool | Callable[..., Any]] = {}
            if self.flat.device.type == "cpu":
                # the glue between kernels in C++ as well: a third faster at small minibatches
                options["cpp_wrapper"] = True
            compiled: Callable[..., Tensor] = torch.compile(graph, fullgraph=True, dynamic=False, options=options)
            compiled(*example())
            if self.flat.device.type == "cuda":
                state = len(State._fields)
                arguments = (*self._now, *example()[state : state + 2], *buffers.values())
                return CudaGraph(compiled, arguments, inputs=(state, state + 1))
        return compiled
