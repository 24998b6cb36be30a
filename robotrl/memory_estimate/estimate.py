"""Memory estimate of a run, from an update on fake tensors (without memory) before anything is built.

The update is the engine's own (`robotrl.engine.update`) and the network is the policy's own; only the tensors' data is
missing. Each tensor is counted from its creation until it is freed, so that autograd's saved tensors, recomputation
and Adam's temporaries are all included, without knowledge of any network.
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
from robotrl.peft.bf16_linear import bf16_linear_from
from robotrl.peft.lora import places
from robotrl.registry import POLICIES
from robotrl.run.policy_checkpoint import MISFITS
from robotrl.spec import Cache, HasChain, HasDensity, HasMemory, HasTokens, Spec
from robotrl.utils.devices import CPU

GIB = 2**30
ADAM = 2
"""Number of Adam's vectors per trainable weight."""


class Load(NamedTuple):
    """Quantities of a run that determine its memory."""

    rows: int
    """Rows per forward and backward pass."""
    evaluations: int = 1
    """Denoising steps of each row in one pass; 1 for an autoregressive policy."""
    stored: int = 0
    """Observations stored at a time, of a rollout or a dataset."""
    average: bool = False
    """True if averaged (EMA) weights are kept."""
    parts: bool = False
    """True if a minibatch is split into microbatches."""
    bf16: bool = False
    """True if networks compute in bfloat16."""
    processes: int = 1
    """Number of processes over which gradients and moments are sharded; the estimate is per process."""
    cache: Cache = "none"
    """Part of the policy whose outputs are cached instead of stored observations."""
    beside: int = 0
    """Bytes of additional networks: averaged, frozen, a teacher."""


class MemoryEstimate(NamedTuple):
    """Estimated memory by purpose, in bytes."""

    parameters: int
    """Number of weights (not bytes)."""
    learning: int
    """Number of trainable weights."""
    weights: int
    """Weights of the policy and of additional networks."""
    optimizer: int
    """Adam's moments and averaged weights."""
    update: int
    """Peak of activations, gradients and temporaries of an update."""
    stored: int
    """Stored observations."""

    @property
    def total(self) -> int:
        """Total bytes."""
        return self.weights + self.optimizer + self.update + self.stored

    def line(self) -> str:
        """Return the estimate as one readable line."""
        sizes = {"weights": self.weights, "optimizer": self.optimizer, "update": self.update, "stored": self.stored}
        parts = (f"{name} {_gib(size)}" for name, size in sizes.items())
        share = f"{self.learning / 1e6:,.3g} of {self.parameters / 1e6:,.3g} million weights learn"
        return f"memory, estimated: {_gib(self.total)} GiB ({', '.join(parts)}); {share}"


def estimate_memory(policy: nn.Module, load: Load, observation_spec: dict[str, Spec]) -> MemoryEstimate:
    """Estimate the memory that a policy needs to learn from minibatches.

    Args:
        policy: policy with tokens, a chain or a density; made inside `on_meta_device`, in which this is called, too.
        load: quantities of the run.
        observation_spec: the policy's.

    Raises:
        CapabilityError: the policy's computation depends on tensor data, which fake tensors do not have.
    """
    _check_alike(policy)
    named = list(policy.named_parameters())
    learning = sum(p.numel() for _, p in named if p.requires_grad)
    moments = sum(_bytes(p) for _, p in named if p.requires_grad)
    weights = sum(_bytes(x) for x in {id(x): x for x in (*policy.parameters(), *policy.buffers())}.values())
    row = sum(_bytes(x) for x in _kept(policy, load.cache, observation_spec).values())
    if load.processes == 1:
        optimizer, update = moments * (ADAM + load.average), update_peak(policy, load, observation_spec)
    else:
        # besides moments, a process has its shard of the weights twice: as parameters, and as a vector
        optimizer, update = moments * (ADAM + 2) // load.processes, _spread_peak(policy, load, observation_spec)
    return MemoryEstimate(
        sum(p.numel() for _, p in named),
        learning,
        weights + load.beside,
        optimizer,
        update,
        load.stored * row,
    )


def update_peak(policy: nn.Module, load: Load, observation_spec: dict[str, Spec]) -> int:
    """Peak bytes of one update, without weights and moments; see `estimate_memory`."""
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
        # gradients of microbatches are accumulated
        total = torch.zeros_like(flat) if load.parts else None
        with in_bf16(load.bf16, flat.device):
            found = update.measure(now.flat, now.average, now.carry, batch, "")
        # a loss keeps its inputs until the update is made
        _ = update.step_(now, flat.new_ones(()), found), total
    return live.peak


def _spread_peak(policy: nn.Module, load: Load, observation_spec: dict[str, Spec]) -> int:
    """Peak bytes of one sharded update, without weights and moments; see `estimate_memory`.

    They are activations, shards of gradients, and the gathered parameters and gradient of the largest unit.
    """
    loss = _Pass(policy, load.evaluations)
    batch = {f"obs/{key}": x for key, x in blank(observation_spec, load.rows).items()}
    with Live() as live, in_bf16(load.bf16, CPU):
        _ = loss(batch, Context({}, {}, ""))
    own = [sum(_bytes(p) for p in unit.parameters() if p.requires_grad) for unit in units(policy)]
    everything = sum(_bytes(p) for p in policy.parameters() if p.requires_grad)
    largest = max([*own, everything - sum(own)])
    return live.peak + 2 * everything // load.processes + 2 * largest


@torch.no_grad()
def _kept(policy: Any, cache: Cache, observation_spec: dict[str, Spec]) -> dict[str, Tensor]:
    """Return one observation as it is stored."""
    shown = blank(observation_spec, 1)
    if cache == "none":
        return shown
    check_frozen(policy, cache)
    return policy.cached(shown, cache)


@contextmanager
def on_meta_device(needs: str = "") -> Generator[None]:
    """Context in which tensors have shapes and dtypes but no memory, and networks get no initial weights.

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

            # some initializations read the values that they sampled
            stack.enter_context(no_init_weights())
        yield


@contextmanager
def _copied_alike() -> Generator[None]:
    """Context in which fake networks can be copied: torch's own copy reads memory, and crashes without it."""
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
    """Build the policy of a description, for `estimate_memory`, inside `on_meta_device`.

    Raises:
        DataError: it is of another version.
    """
    try:
        return POLICIES.load(description["kind"]).from_json(description)
    except (*MISFITS, RuntimeError) as error:
        raise DataError(
            f"the policy's description does not fit this version of robotrl: {short(str(error))}"
        ) from error


def stand_in_adapters(policy: Any, cfg: LoraCfg) -> None:
    """Replace layers of a policy without memory by ones with the memory use of adapters, as `peft` cannot adapt it.

    Raises:
        ConfigError: a target or head that the policy does not have.
        CapabilityError: see `estimate_memory`.
    """
    _check_alike(policy)
    where = places(policy, cfg, lambda: _act(policy))
    policy.requires_grad_(False)
    for name in where.halved:
        layer: Any = policy.get_submodule(name)
        weight = nn.Parameter(layer.weight.to(torch.bfloat16), requires_grad=False)
        policy.set_submodule(name, bf16_linear_from(layer, weight))
    for name in where.layers:
        policy.set_submodule(name, _Adapted(policy.get_submodule(name), cfg.rank))
    for name in where.heads:
        policy.get_parameter(name).requires_grad_(True)


def _check_alike(policy: Any) -> None:
    """Raise CapabilityError for a policy whose computation depends on tensor data, which fake tensors do not have."""
    if why := getattr(policy, "no_graph", ""):
        raise CapabilityError(f"memory cannot be estimated: {why}")


def available(device: torch.device) -> int:
    """Return the free bytes: of a GPU's memory, or of the main memory."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return int(psutil.virtual_memory().available)


def check_memory_fits(found: MemoryEstimate, free: int, advice: Callable[[MemoryEstimate], str]) -> None:
    """Check that an estimate fits into the free memory.

    Args:
        found: the estimate.
        free: free bytes.
        advice: function that says what to change.

    Raises:
        ConfigError: it does not fit.
    """
    if found.total > free:
        raise ConfigError(f"{found.line()}: expected at most the {_gib(free)} GiB that are free; {advice(found)}")


class Live(TorchDispatchMode):
    """Counts the bytes of tensors created inside that still exist; `peak` is the largest sum."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `TorchDispatchMode`."""
        del types
        # a view of an existing tensor is no new memory
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
    """A layer with an adapter, computed as in `peft`."""

    def __init__(self, layer: Any, rank: int) -> None:
        super().__init__()
        self.base_layer = layer
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        # `peft` multiplies by a factor, too
        return self.base_layer(x) + self.up(self.down(x)) * 2.0


class _Pass(LossModule):
    """Loss with the memory use of cloning and of policy gradients."""

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
        remembers = isinstance(policy, HasMemory)
        ctx = policy.advance(obs, policy.initial_memory(rows)).ctx if remembers else policy.encode(obs)
        if isinstance(policy, HasTokens):
            said = torch.zeros((rows, *chunk_shape(policy)), dtype=torch.int64, device=device)
            loss = tokens.log_prob(policy.token_logits(ctx, said), said, policy.temperature).mean()
        elif isinstance(policy, HasChain):
            count = self._evaluations
            many = ctx.unsqueeze(1).expand(-1, count, -1).reshape(rows * count, -1) if count > 1 else ctx
            at = ctx.new_zeros((rows * count, *chunk_shape(policy)))
            t = ctx.new_zeros(rows * count)
            loss = policy.velocity(many, at, t, t).square().mean()
        elif isinstance(policy, HasDensity | HasMemory):
            density = policy.density(ctx)
            loss = density.log_prob(ctx.new_zeros((rows, *chunk_shape(policy)))).mean() - density.entropy().mean()
        else:
            raise ConfigError(
                f"policy {type(policy).__name__} neither says tokens nor flows nor has a density: its memory is unknown"
            )
        return LossOut(loss, {}, (torch.ones_like(loss),))


@torch.no_grad()
def _act(policy: Any) -> None:
    noise = None if policy.noise_shape is None else torch.zeros((1, *policy.noise_shape))
    policy.deploy(blank(policy.observation_spec, 1), noise)


def _bytes(x: Tensor) -> int:
    return x.numel() * x.element_size()


def _gib(size: float) -> str:
    return f"{size / GIB:.3g}"
