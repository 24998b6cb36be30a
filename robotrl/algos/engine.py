"""The update engine: loss, gradient, clip and Adam on one flat parameter vector, as one compiled function.

For small networks on a CPU an update costs what its hundred small operations cost to call, not what they compute. The
engine traces a few updates in a row into one graph of fixed shapes, and compiles that. Without a compiler the same
function runs as it is, operation by operation, and gives the same numbers up to rounding; on CUDA the compiled function
is captured as a graph, which replays without any launch cost on the host.

A loss is a module that holds the networks it trains (`LossModule`). Whatever varies from one minibatch to the next is
an input or travels in its `carry`, so a learner never recompiles: learning-rate schedules, early stops by KL.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from robotrl.errors import ConfigError, NumericsError, out_of_range

EngineMode = Literal["compiled", "eager"]

UPDATES_PER_CALL = 4
"""Updates traced into one graph: halves the cost of calling at minibatches of 64; more only lengthen compilation."""


class LossOut(NamedTuple):
    """What a loss says of one minibatch."""

    loss: Tensor
    """Scalar, to be minimised."""
    info: dict[str, Tensor]
    """Scalars to log; the same names every time."""
    lr: Tensor
    """(G,) learning rate of each group for this very update; 0 leaves a group as it is, its moments included."""
    carry: Tensor
    """(C,) handed to the next minibatch."""


class LossModule(nn.Module):
    """A loss with the networks that it trains as submodules."""

    def forward(self, batch: dict[str, Tensor], carry: Tensor) -> LossOut:
        """The loss of a minibatch: the rows (M, ...) of each array of the data."""
        raise NotImplementedError


class Group(NamedTuple):
    """Parameters that share a learning rate and a largest gradient norm."""

    prefix: str
    """What the names of its parameters in the loss module begin with, e.g. "policy."."""
    grad_norm: float
    """The group's gradient is clipped to this norm."""


class State(NamedTuple):
    """What an update changes; P parameters, G groups."""

    flat: Tensor
    """(P,) the parameters."""
    first: Tensor
    """(P,) Adam's first moments."""
    second: Tensor
    """(P,) Adam's second moments."""
    steps: Tensor
    """(G,) updates that each group took part in."""
    carry: Tensor
    """(C,)."""


class Updates(NamedTuple):
    """What `Engine.run` did, one entry for each minibatch."""

    info: dict[str, Tensor]
    """(n,) each: what the loss logs, "loss", and "grad_norm/PREFIX" of each group before clipping."""

    def mean(self) -> dict[str, float]:
        """Means over the minibatches."""
        return {name: float(values.mean()) for name, values in self.info.items()}


class Engine:
    """Trains the parameters of a loss module with Adam (Kingma & Ba 2015).

    The parameters become views of one flat vector, which the engine updates in place: the networks can be used and
    saved as ever, but a parameter must not be replaced by another tensor.

    Args:
        loss: the loss module.
        groups: every parameter of the loss belongs to exactly one.
        minibatch: M, rows of a minibatch.
        carry: (C,) what the first minibatch is handed.
        mode: "compiled", or "eager" to run without a compiler.
        betas: decay of Adam's moments.
        eps: Adam's epsilon.

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
    ) -> None:
        if minibatch < 1:
            raise out_of_range("algo.minibatch", minibatch, "1 or more")
        self.mode: EngineMode = mode
        self.compile_s = 0.0
        """Seconds spent on tracing and compiling so far."""
        self.minibatch = minibatch
        self._loss = loss
        self._groups = tuple(groups)
        self._betas, self._eps = betas, eps
        named = list(loss.named_parameters())
        ordered = [(name, p) for group in groups for name, p in named if name.startswith(group.prefix)]
        if sorted(name for name, _ in ordered) != sorted(name for name, _ in named):
            raise ConfigError(
                f"engine groups {[g.prefix for g in groups]} do not divide the parameters {[n for n, _ in named]}:"
                " expected each in exactly one"
            )
        self._names = [name for name, _ in ordered]
        self._shapes = [p.shape for _, p in ordered]
        self._sizes = [p.numel() for _, p in ordered]
        ends = [sum(p.numel() for name, p in named if name.startswith(group.prefix)) for group in groups]
        self._spans = [(sum(ends[:i]), sum(ends[: i + 1])) for i in range(len(ends))]
        self.flat = flatten([p for _, p in ordered])
        device = self.flat.device
        moments = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self.carry = carry.detach().clone().to(device)
        """(C,) what the next minibatch is handed; a learner may write into it between calls of `run`."""
        self._now = State(self.flat, *moments, torch.zeros(len(groups), device=device), self.carry)
        self._data: dict[str, Tensor] = {}
        self._info_names: list[str] = []
        self._call: Callable[..., Tensor] | None = None

    def run(self, data: Mapping[str, Tensor], order: Tensor, capacity: int, what: str) -> Updates:
        """Update once for each minibatch.

        Args:
            data: (B, ...) each, the rows that minibatches are made of.
            order: (B',) row numbers, cut into minibatches of M in turn; the last one is filled up from the beginning
                of the order, so that all have one shape and no row is left out.
            capacity: largest B that will come; data of another size than before does not recompile up to this.
            what: where this is in training, e.g. "iteration 3", for errors.

        Raises:
            NumericsError: a loss or gradient is not finite; that update was left out, those before it were made.
        """
        count = math.ceil(len(order) / self.minibatch)
        rows = order.repeat(math.ceil(count * self.minibatch / len(order)))[: count * self.minibatch]
        calls = math.ceil(count / UPDATES_PER_CALL)
        padded = torch.zeros(calls * UPDATES_PER_CALL, self.minibatch, dtype=torch.int64, device=self.flat.device)
        padded[:count] = rows.view(count, self.minibatch)
        live = (torch.arange(len(padded), device=self.flat.device) < count).to(self.flat.dtype)
        self._fill(data, capacity)
        call = self._prepare() if self._call is None else self._call
        stats: list[Tensor] = []
        for begin in range(0, len(padded), UPDATES_PER_CALL):
            span = slice(begin, begin + UPDATES_PER_CALL)
            with torch.no_grad():
                stats.append(call(*self._now, live[span], padded[span], *self._data.values()))
        table = torch.cat(stats)[:count]
        info = dict(zip(self._info_names, table.unbind(1), strict=True))
        self._check(info, what)
        return Updates(info)

    def state(self) -> dict[str, Any]:
        """What an exact resume needs besides the networks' own parameters."""
        return {name: tensor for name, tensor in self._now._asdict().items() if name != "flat"}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` gave, in place."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])

    def _fill(self, data: Mapping[str, Tensor], capacity: int) -> None:
        fits = self._data.keys() == data.keys() and all(len(self._data[name]) >= len(x) for name, x in data.items())
        if not fits:
            self._data = {name: x.new_zeros((max(capacity, len(x)), *x.shape[1:])) for name, x in data.items()}
            self._call = None
        for name, values in data.items():
            self._data[name][: len(values)] = values

    def _check(self, info: Mapping[str, Tensor], what: str) -> None:
        for name in ("loss", *(f"grad_norm/{group.prefix}" for group in self._groups)):
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
        flat: Tensor,
        first: Tensor,
        second: Tensor,
        steps: Tensor,
        carry: Tensor,
        live: Tensor,
        rows: Tensor,
        *data: Tensor,
    ) -> Tensor:
        """`UPDATES_PER_CALL` updates in a row, written into the first five arguments; gives their statistics (U, S)."""
        now = State(flat, first, second, steps, carry)
        stats: list[Tensor] = []
        for index in range(len(rows)):
            batch = {name: x[rows[index]] for name, x in zip(self._data, data, strict=True)}
            now, info = self._update(now, live[index], batch)
            self._info_names = list(info)
            stats.append(torch.stack([value.to(flat.dtype) for value in info.values()]))
        for target, value in zip((flat, first, second, steps, carry), now, strict=True):
            target.copy_(value)
        return torch.stack(stats)

    def _update(self, now: State, live: Tensor, batch: dict[str, Tensor]) -> tuple[State, dict[str, Tensor]]:
        flat, first, second, steps, carry = now
        leaf = flat.detach().requires_grad_()
        with torch.enable_grad():
            parts = zip(self._names, leaf.split(self._sizes), self._shapes, strict=True)
            out: LossOut = functional_call(
                self._loss, {name: part.view(shape) for name, part, shape in parts}, (batch, carry)
            )
            (gradient,) = torch.autograd.grad(out.loss, leaf)
        info = {"loss": out.loss.detach()}
        finite = torch.isfinite(info["loss"]) & torch.isfinite(gradient.abs().sum())
        wanted = (live > 0) & finite
        pieces: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        beta1, beta2 = self._betas
        for i, (group, (a, b)) in enumerate(zip(self._groups, self._spans, strict=True)):
            g = gradient[a:b]
            norm = g.norm()
            info[f"grad_norm/{group.prefix}"] = norm
            g = g * (group.grad_norm / (norm + 1e-6)).clamp(max=1.0)
            m = first[a:b] + (1 - beta1) * (g - first[a:b])
            v = second[a:b] + (1 - beta2) * (g * g - second[a:b])
            t = steps[i] + 1
            lr = out.lr[i]
            step = (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + self._eps)
            on = wanted & (lr > 0)
            pieces.append(
                (
                    torch.where(on, flat[a:b] - lr * step, flat[a:b]),
                    torch.where(on, m, first[a:b]),
                    torch.where(on, v, second[a:b]),
                    torch.where(on, t, steps[i]),
                )
            )
        new_flat, new_first, new_second = (torch.cat([p[k] for p in pieces]) for k in range(3))
        new_steps = torch.stack([p[3] for p in pieces])
        new_carry = torch.where(wanted, out.carry.detach(), carry)
        info |= {name: value.detach() for name, value in out.info.items()}
        return State(new_flat, new_first, new_second, new_steps, new_carry), info

    # how it is run

    def _prepare(self) -> Callable[..., Tensor]:
        """Trace and compile for the present shapes, or choose the eager function."""
        if self.mode == "compiled":
            began = time.perf_counter()
            try:
                self._call = self._compile()
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
        if self.mode == "eager":
            self._call = self._updates
        assert self._call is not None
        return self._call

    def _compile(self) -> Callable[..., Tensor]:
        from torch.fx.experimental.proxy_tensor import make_fx

        def example() -> tuple[Tensor, ...]:
            u, device = UPDATES_PER_CALL, self.flat.device
            live = torch.zeros(u, dtype=self.flat.dtype, device=device)
            rows = torch.zeros(u, self.minibatch, dtype=torch.int64, device=device)
            return *(x.clone() for x in self._now), live, rows, *(x.clone() for x in self._data.values())

        with torch.no_grad():
            # tracing runs the Python code once; the compiler then sees plain tensor operations only
            graph: Any = make_fx(self._updates)(*example())
            options: dict[str, str | int | bool | Callable[..., Any]] = {}
            if self.flat.device.type == "cpu":
                # the glue between kernels in C++ as well: a third faster at small minibatches
                options["cpp_wrapper"] = True
            compiled: Callable[..., Tensor] = torch.compile(graph, fullgraph=True, dynamic=False, options=options)
            compiled(*example())
            if self.flat.device.type == "cuda":
                return CudaGraph(compiled, (*self._now, *example()[5:7], *self._data.values()), inputs=(5, 6))
        return compiled


class CudaGraph:
    """A function of CUDA tensors captured once and replayed.

    Args:
        function: what to capture; it writes its results into its arguments or returns a tensor.
        arguments: the tensors that it will always be run on.
        inputs: positions of arguments that are new in each call; they are copied in, all others must be the same
            tensors every time.
    """

    def __init__(self, function: Callable[..., Tensor], arguments: tuple[Tensor, ...], inputs: tuple[int, ...]) -> None:
        self._inputs = inputs
        self._static = {i: arguments[i].clone() for i in inputs}
        fixed = tuple(self._static.get(i, argument) for i, argument in enumerate(arguments))
        # warming up would change the arguments, so it runs on copies; the capture itself runs nothing
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                function(*(argument.clone() for argument in fixed))
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._result = function(*fixed)

    def __call__(self, *arguments: Tensor) -> Tensor:
        """Replay on the captured tensors, with new `inputs`; gives a copy of the result."""
        for i in self._inputs:
            self._static[i].copy_(arguments[i])
        self._graph.replay()
        return self._result.clone()


def flatten(parameters: Sequence[nn.Parameter]) -> Tensor:
    """One vector of all parameters, of which each parameter becomes a view.

    Raises:
        ConfigError: parameters of several types or devices.
    """
    if len({(p.dtype, p.device) for p in parameters}) != 1:
        raise ConfigError("parameters are of several types or devices: expected one")
    flat = torch.cat([p.detach().reshape(-1) for p in parameters])
    offset = 0
    for parameter in parameters:
        size = parameter.numel()
        parameter.data = flat[offset : offset + size].view(parameter.shape)
        offset += size
    return flat
