"""How much memory a run will need, found by letting an update run on tensors without memory before anything is built.

The update is the engine's own (`robotrl.engine.update`) and the network is the policy's own; only what the tensors hold
is left out. Each tensor that comes into being is counted until nobody holds it, so that what autograd keeps, what a
recomputed block saves, and what Adam needs for a moment are all in the sum, and nothing has to be known of any network.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import psutil
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from robotrl.config import LoraCfg
from robotrl.engine.autocast import in_bf16
from robotrl.engine.flat_params import FlatViews
from robotrl.engine.fsdp import units
from robotrl.engine.minibatches import part
from robotrl.engine.update import Context, LossModule, LossOut, ParameterGroup, Update, UpdateState
from robotrl.errors import CapabilityError, ConfigError, DataError, short
from robotrl.fn.bc_loss import chunk_shape
from robotrl.fn.text import tokens
from robotrl.learners.feature_cache import blank, check_frozen
from robotrl.peft.bf16_linear import half_of
from robotrl.peft.lora import places
from robotrl.registry import POLICIES
from robotrl.run.policy_checkpoint import MISFITS
from robotrl.spec import Cache, HasChain, HasDensity, HasTokens, Spec
from robotrl.utils.devices import CPU

GIB = 2**30
ADAM = 2
"""Vectors that Adam keeps beside the weights that learn."""


class Load(NamedTuple):
    """What a run asks of memory."""

    rows: int
    """Whose gradient is taken at once."""
    evaluations: int = 1
    """Denoising steps of each row that learn at once; of a policy that says tokens 1."""
    stored: int = 0
    """Observations that are kept at a time, of a rollout or a dataset."""
    average: bool = False
    """Whether averaged weights are kept."""
    parts: bool = False
    """Whether the gradient of a minibatch is put together from those of its parts."""
    bf16: bool = False
    """Whether networks compute in bfloat16."""
    processes: int = 1
    """Over which gradients and moments are spread; the figures are those of each."""
    cache: Cache = "none"
    """What is kept of stored observations."""
    beside: int = 0
    """Bytes of networks that are held beside the policy: averaged, frozen, a teacher."""


class Footprint(NamedTuple):
    """Memory by purpose, in bytes."""

    parameters: int
    """How many weights there are (a number, not bytes) ..."""
    learning: int
    """... and how many of them learn."""
    weights: int
    """Of the policy, and of networks beside it."""
    optimiser: int
    """Adam's moments and averaged weights."""
    update: int
    """Activations, gradients, and what an update needs for a moment, at their peak."""
    stored: int
    """Observations."""

    @property
    def total(self) -> int:
        """Bytes in all."""
        return self.weights + self.optimiser + self.update + self.stored

    def line(self) -> str:
        """One line for a person."""
        parts = (f"{name} {_gib(getattr(self, name))}" for name in ("weights", "optimiser", "update", "stored"))
        share = f"{self.learning / 1e6:,.3g} of {self.parameters / 1e6:,.3g} million weights learn"
        return f"memory, estimated: {_gib(self.total)} GiB ({', '.join(parts)}); {share}"


def footprint(policy: nn.Module, load: Load, observation_spec: dict[str, Spec]) -> Footprint:
    """What a policy needs to learn from minibatches.

    Args:
        policy: says tokens, has a chain or a density; made inside `without_memory`, in which this is called, too.
        load: what is asked of it.
        observation_spec: of the policy.

    Raises:
        CapabilityError: what the policy does depends on numbers, which are not there.
    """
    _check_alike(policy)
    named = list(policy.named_parameters())
    learning = sum(p.numel() for _, p in named if p.requires_grad)
    moments = sum(_bytes(p) for _, p in named if p.requires_grad)
    weights = sum(_bytes(x) for x in {id(x): x for x in (*policy.parameters(), *policy.buffers())}.values())
    row = sum(_bytes(x) for x in _kept(policy, load.cache, observation_spec).values())
    if load.processes == 1:
        optimiser, update = moments * (ADAM + load.average), update_peak(policy, load, observation_spec)
    else:
        # beside moments, a process has its part of the weights twice: as parameters, and as a vector
        optimiser, update = moments * (ADAM + 2) // load.processes, _spread_peak(policy, load, observation_spec)
    return Footprint(
        sum(p.numel() for _, p in named),
        learning,
        weights + load.beside,
        optimiser,
        update,
        load.stored * row,
    )


def update_peak(policy: nn.Module, load: Load, observation_spec: dict[str, Spec]) -> int:
    """Bytes that one update holds at its peak, besides weights and moments; see `footprint`."""
    loss = _Pass(policy, load.evaluations)
    named = [(f"policy.{name}", p) for name, p in policy.named_parameters() if p.requires_grad]
    if not named:
        return 0
    views = FlatViews([name for name, _ in named], [p.shape for _, p in named])
    size = sum(p.numel() for _, p in named)
    groups = (ParameterGroup("policy.", 1.0, average=0.9 if load.average else None),)
    update = Update(loss, groups, views, views if load.average else FlatViews([], []), [(0, size)], (0.9, 0.999), 1e-8)
    flat = named[0][1].new_zeros(size)
    kept = flat.new_zeros(size if load.average else 0)
    now = UpdateState(
        flat,
        torch.zeros_like(flat),
        torch.zeros_like(flat),
        flat.new_zeros(1),
        flat.new_ones(2, 1),
        kept,
        flat.new_zeros(1),
    )
    batch = {f"obs/{key}": x for key, x in blank(observation_spec, load.rows, flat.device).items()}
    with Live() as live:
        # parts of a minibatch are added to what was found so far
        total = torch.zeros_like(flat) if load.parts else None
        with in_bf16(load.bf16, flat.device):
            found = update.measure(now.flat, now.average, now.carry, batch, "")
        # a loss holds what it was measured on until its update is made
        _ = update.step_(now, flat.new_ones(()), found), total
    return live.peak


def _spread_peak(policy: nn.Module, load: Load, observation_spec: dict[str, Spec]) -> int:
    """Bytes besides weights and moments where gradients are spread: activations, parts of gradients, and the largest
    unit's parameters and gradient, which come together."""
    loss = _Pass(policy, load.evaluations)
    batch = {f"obs/{key}": x for key, x in blank(observation_spec, load.rows).items()}
    with Live() as live, in_bf16(load.bf16, CPU):
        _ = loss(batch, Context(torch.zeros(1), {}, ""))
    own = [sum(_bytes(p) for p in unit.parameters() if p.requires_grad) for unit in units(policy)]
    everything = sum(_bytes(p) for p in policy.parameters() if p.requires_grad)
    largest = max([*own, everything - sum(own)])
    return live.peak + 2 * everything // load.processes + 2 * largest


@torch.no_grad()
def _kept(policy: Any, cache: Cache, observation_spec: dict[str, Spec]) -> dict[str, Tensor]:
    """One observation as it is stored."""
    shown = blank(observation_spec, 1)
    if cache == "none":
        return shown
    check_frozen(policy, cache)
    return policy.cached(shown, cache)


@contextmanager
def without_memory(needs: str = "") -> Generator[None]:
    """Inside, tensors have shapes and types and no memory, and networks are made without drawing their weights.

    Args:
        needs: kind of policy that will be made inside.
    """
    if needs:
        POLICIES.load(needs)
    with ExitStack() as stack:
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(_copied_alike())
        if "transformers" in sys.modules:
            from transformers.initialization import no_init_weights

            # some ways of drawing weights look at what was drawn
            stack.enter_context(no_init_weights())
        yield


@contextmanager
def _copied_alike() -> Generator[None]:
    """Inside, networks can be copied: torch's own way copies memory, and crashes where there is none."""
    kinds: tuple[Any, ...] = (Tensor, nn.Parameter)
    kept = [kind.__deepcopy__ for kind in kinds]
    for kind in kinds:
        kind.__deepcopy__ = _alike
    try:
        yield
    finally:
        for kind, method in zip(kinds, kept, strict=True):
            kind.__deepcopy__ = method


def _alike(tensor: Tensor, memo: Any) -> Tensor:
    del memo
    made = torch.empty_like(tensor)
    return nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made


def described(description: dict[str, Any]) -> Any:
    """The policy of a description, for `footprint`; made inside `without_memory`.

    Raises:
        DataError: it is of another version.
    """
    try:
        return POLICIES.load(description["kind"]).from_json(description)
    except (*MISFITS, RuntimeError) as error:
        raise DataError(
            f"the policy's description does not fit this version of robotrl: {short(str(error))}"
        ) from error


def adapt_alike(policy: Any, cfg: LoraCfg) -> None:
    """Let a policy without memory need what an adapted one needs: `peft` cannot adapt such a policy itself.

    Raises:
        ConfigError: a target or head that the policy does not have.
        CapabilityError: see `footprint`.
    """
    _check_alike(policy)
    where = places(policy, cfg, lambda: _act(policy))
    policy.requires_grad_(False)
    for name in where.halved:
        layer: Any = policy.get_submodule(name)
        weight = nn.Parameter(layer.weight.to(torch.bfloat16), requires_grad=False)
        policy.set_submodule(name, half_of(layer, weight))
    for name in where.layers:
        policy.set_submodule(name, _Adapted(policy.get_submodule(name), cfg.rank))
    for name in where.heads:
        policy.get_parameter(name).requires_grad_(True)


def _check_alike(policy: Any) -> None:
    """Raises:
    CapabilityError: what a policy does is not the same for all that it sees, and here it sees nothing.
    """
    if why := getattr(policy, "no_graph", ""):
        raise CapabilityError(f"memory cannot be estimated: {why}")


def available(device: torch.device) -> int:
    """Bytes that are free for a run: of a GPU's memory, or of the main memory."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return int(psutil.virtual_memory().available)


def check_room(found: Footprint, free: int, advice: Callable[[Footprint], str]) -> None:
    """Refuse a run that cannot fit.

    Args:
        found: what it needs.
        free: bytes that there are.
        advice: says what to change.

    Raises:
        ConfigError: it needs more than there is.
    """
    if found.total > free:
        raise ConfigError(f"{found.line()}: expected at most the {_gib(free)} GiB that are free; {advice(found)}")


class Live(TorchDispatchMode):
    """Counts the bytes of tensors that were made inside it and still exist; `peak` is the largest sum seen."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `TorchDispatchMode`."""
        del types
        # a view of what was there before is no new memory
        before: set[Any] = {x.untyped_storage() for x in args if isinstance(x, Tensor)}
        out = func(*args, **(kwargs or {}))

        def note(x: Tensor) -> Tensor:
            storage = x.untyped_storage()
            if storage not in before and storage not in self._known:
                self._known.add(storage)
                size = storage.nbytes()
                self.now += size
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._gone, size)
            return x

        return tree_map_only(Tensor, note, out)

    def _gone(self, size: int) -> None:
        self.now -= size


class _Adapted(nn.Module):
    """A layer with an adapter, as `peft` computes it."""

    def __init__(self, layer: Any, rank: int) -> None:
        super().__init__()
        self.base_layer = layer
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        # the factor is a number to `peft`, too
        return self.base_layer(x) + self.up(self.down(x)) * 2.0


class _Pass(LossModule):
    """A loss that asks of a policy what cloning and policy gradients ask of it."""

    def __init__(self, policy: nn.Module, evaluations: int) -> None:
        super().__init__()
        self.policy: Any = policy
        self._evaluations = evaluations

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`."""
        policy = self.policy
        obs = part(batch, "obs/")
        first = next(iter(obs.values()))
        rows, device = len(first), first.device
        ctx = policy.encode(obs)
        if isinstance(policy, HasTokens):
            said = torch.zeros((rows, *chunk_shape(policy)), dtype=torch.int64, device=device)
            loss = tokens.log_prob(policy.token_logits(ctx, said), said, policy.temperature).mean()
        elif isinstance(policy, HasChain):
            count = self._evaluations
            many = ctx.unsqueeze(1).expand(-1, count, -1).reshape(rows * count, -1) if count > 1 else ctx
            at = ctx.new_zeros((rows * count, *chunk_shape(policy)))
            t = ctx.new_zeros(rows * count)
            loss = policy.velocity(many, at, t, t).square().mean()
        elif isinstance(policy, HasDensity):
            density = policy.density(ctx)
            loss = density.log_prob(ctx.new_zeros((rows, *chunk_shape(policy)))).mean() - density.entropy().mean()
        else:
            raise ConfigError(
                f"policy {type(policy).__name__} neither says tokens nor flows nor has a density: its memory is unknown"
            )
        return LossOut(loss, {}, (torch.ones_like(loss),), context.carry)


@torch.no_grad()
def _act(policy: Any) -> None:
    noise = None if policy.noise_shape is None else torch.zeros((1, *policy.noise_shape))
    policy.deploy(blank(policy.observation_spec, 1), noise)


def _bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()


def _gib(size: float) -> str:
    return f"{size / GIB:.3g}"
