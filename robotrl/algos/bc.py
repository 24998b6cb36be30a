"""Behaviour cloning: what the policy is cloned with is chosen by what it can do (see `robotrl.fn.clone`)."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from robotrl.algos.ddp import check_processes, share, take_up
from robotrl.algos.engine import UPDATES_PER_CALL, Context, EngineMode, Group, LossModule, LossOut
from robotrl.algos.half import in_bf16
from robotrl.algos.learner import Setup
from robotrl.algos.rows import fitting, means, part, run_updates
from robotrl.algos.symmetric import Symmetric, changes_of
from robotrl.algos.targets import Targets, last_states, transforms_for
from robotrl.checkpoint import generator_state
from robotrl.data.chunks import check_dataset, load_chunks
from robotrl.data.reader import read_dataset
from robotrl.errors import CapabilityError, ConfigError, check_at_least, check_number, check_positive, out_of_range
from robotrl.fn.augment import PAD, draw_shifts, random_shift
from robotrl.fn.clone import CloneLoss, Shape, chunk_shape, clone_loss_of
from robotrl.fn.schedule import warmed_cosine
from robotrl.policies.base import ACTION
from robotrl.spec import Cache, HasReading, is_picture, visible
from robotrl.transforms import Affine, TransformGroup, inverse

AHEAD = "ahead."
"""Prefix of the head of the second task in the loss."""


@dataclass(frozen=True)
class BcCfg:
    """Settings of behaviour cloning."""

    updates: int = 1000
    """Gradient steps in all."""
    updates_per_iteration: int = 100
    """Gradient steps between two log lines."""
    batch: int = 512
    """Chunks for each gradient step, drawn with replacement; of several processes all together."""
    microbatch: int | None = None
    """Chunks whose gradient is taken at once, where those of a batch do not fit into memory; a divisor of it."""
    lr: float = 1e-3
    """Peak learning rate of Adam; decays with a half cosine to a tenth."""
    warmup: int = 0
    """Updates over which the learning rate rises to its curve; transformers that begin at its peak may never learn to
    look where they are told to."""
    ema: float = 0.99
    """Decay of the averaged weights, which are what is evaluated and fine-tuned; 0 turns averaging off."""
    grad_norm: float = 1.0
    """Gradients are clipped to this norm."""
    image_shift: int = PAD
    """Pictures are shifted by up to so many pixels at random; 0 leaves them."""
    symmetries: tuple[str, ...] = ()
    """Kinds of the sim's symmetries: each chunk is cloned as it is, or as it would be in a mirror, with colours
    exchanged, whatever the sim declares (`HasSymmetries`). Instructions that no demonstration has stay unsaid."""
    foresight: float = 0.0
    """Weight of a second task: to tell from what was seen and read the measured state at the episode's end. A small
    policy that is trained from nothing learns by it which thing it is told about; nothing of it stays in the policy."""
    bf16: bool = False
    """Networks compute in bfloat16, densities, losses and parameters stay in float32; see docs/engine.md."""
    engine: EngineMode = "eager"
    """"compiled" is faster per update and takes some 10 to 60 s to begin: for clones of many thousand updates."""

    def build(self, setup: Setup) -> BcLearner:
        """The learner."""
        return BcLearner(self, setup)


# loss


class BcLoss(LossModule):
    """The policy's own cloning loss, with a learning rate that falls by half a cosine.

    Args:
        policy: what learns.
        loss: from `clone_loss_of`.
        cfg: settings.
        ends: numbers of the measured state at an episode's end that are foreseen; 0 for none.
    """

    def __init__(self, policy: nn.Module, loss: CloneLoss, cfg: BcCfg, ends: int) -> None:
        super().__init__()
        self.policy: Any = policy
        self._loss = loss
        self._cfg = cfg
        self.ahead = nn.Linear(self.policy.reading_width, ends) if ends else None

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`; the carry counts updates."""
        obs = part(batch, "obs/")
        for key, shifts in part(batch, "shift/").items():
            obs[key] = random_shift(obs[key], shifts, self._cfg.image_shift)
        with in_bf16(self._cfg.bf16, context.carry.device):
            ctx = self.policy.encode(obs)
            loss = self._loss.loss(self.policy, ctx, batch["chunk"], batch["valid"], **part(batch, "drawn/"))
            foreseen = None if self.ahead is None else self.ahead(self.policy.reading(ctx))
        if "share" in batch:
            # of a part of a batch, the mean over what is valid in it: it counts as much as it has of that
            loss = loss * batch["valid"].float().mean() / batch["share"].mean()
        lr = self._cfg.lr * warmed_cosine(context.carry[0], self._cfg.updates, self._cfg.warmup)
        info, rates = {"lr": lr}, (lr,)
        if foreseen is not None:
            info["foresight"] = (foreseen - batch["end"][:, None]).square().mean()
            loss, rates = loss + self._cfg.foresight * info["foresight"], (lr, lr)
        return LossOut(loss, info, rates, context.carry + 1)


# update


class BcLearner:
    """Clones a dataset; see `BcCfg`.

    Raises:
        ConfigError: no dataset, one of another rate or shape, or settings out of range.
        CapabilityError: there is no loss for what the policy can do.
    """

    env_steps = 0

    def __init__(self, cfg: BcCfg, setup: Setup) -> None:
        if setup.dataset is None:
            raise ConfigError("dataset is not given: behaviour cloning needs demonstrations (make some: robotrl demos)")
        _check(cfg, setup.cache)
        self.cfg = cfg
        self.world, self._seed = setup.world, setup.seed
        self._batch = share("algo.batch", cfg.batch, self.world)
        self.iterations = math.ceil(cfg.updates / cfg.updates_per_iteration)
        torch.manual_seed(setup.seed)
        sim = setup.make_sim()
        specs = visible(sim)
        action_spec, control_dt_s = sim.action_spec, sim.control_dt_s
        changes = changes_of(cfg.symmetries, sim)
        sim.close()
        dataset = read_dataset(setup.dataset)
        model: Any = setup.init_policy
        loss = None if model is None else clone_loss_of(model)
        if model is not None:
            specs = model.observation_spec
        check_dataset(dataset, specs, action_spec, control_dt_s)
        if model is None:
            model = setup.fresh(specs, action_spec, transforms_for(dataset, specs, action_spec))
        self._clone = loss or clone_loss_of(model)
        self.model: Any = model
        self.model.control_dt_s = control_dt_s
        self.policy: Any = copy.deepcopy(self.model) if cfg.ema else self.model
        self._updates = 0
        self._generator = torch.Generator().manual_seed(setup.seed)
        self._to_unit, self._chunk = _normalisation(self.model.transforms), chunk_shape(self.model)
        self.kept = setup.kept(self.model, cfg.microbatch or cfg.batch, cfg.bf16)
        chunks = load_chunks(dataset, list(specs), self._chunk[0])
        obs = {key: torch.from_numpy(x) for key, x in chunks.obs.items()}
        self._symmetric = Symmetric(changes, obs, specs) if cfg.symmetries else None
        self._data = {f"obs/{key}": x for key, x in self.kept(obs).items()}
        self._data |= {"chunk": torch.from_numpy(chunks.chunks), "valid": torch.from_numpy(chunks.valid)}
        self._ends: Targets | None = None
        if cfg.foresight:
            check_reads(self.model)
            self._ends = last_states(dataset, specs)
            self._data |= {f"end/{key}": x for key, x in self._ends.arrays.items()}
        self._pictures = [key for key, spec in specs.items() if is_picture(spec) and cfg.image_shift]
        size = self._batch * sum(x[0].numel() * x.element_size() for x in self._data.values())
        self._at_once = fitting(cfg.updates_per_iteration, size)
        ends = 0 if self._ends is None else len(self._ends.mean)
        self._loss = BcLoss(self.model, self._clone, cfg, ends).to(setup.device)
        self._engine = setup.engine(
            self._loss,
            (
                Group("policy.", cfg.grad_norm, cfg.ema or None, ramp=True),
                *([Group(AHEAD, cfg.grad_norm)] if cfg.foresight else []),
            ),
            minibatch=self._batch,
            carry=torch.zeros(1),
            mode=cfg.engine,
            eps=1e-8,
            microbatch=cfg.microbatch,
            updates_per_call=min(UPDATES_PER_CALL, self._at_once),
        )

    @property
    def sharded(self) -> bool:
        """Whether what it learns is spread over the processes."""
        return self._engine.sharded

    @property
    def compile_s(self) -> float:
        """Seconds spent on compiling so far."""
        return self._engine.compile_s

    def close(self) -> None:
        """See `Learner.close`; cloning holds nothing."""

    def iterate(self) -> dict[str, float]:
        """`updates_per_iteration` gradient steps."""
        cfg = self.cfg
        count = min(cfg.updates_per_iteration, cfg.updates - self._updates)
        what = f"clone, from update {self._updates + 1}"
        info = run_updates(self._engine, self._draw, count, self._at_once, what)
        self._updates += count
        if cfg.ema:
            self._engine.write_average("policy.", self.policy)
        scalars = means(info) | {"lr": float(info["lr"][-1][-1]), "updates": float(self._updates)}
        return {name: scalars[name] for name in ("loss", "lr", "updates", *(["foresight"] if cfg.foresight else []))}

    def _draw(self, updates: int) -> dict[str, Tensor]:
        """Rows for so many updates, and all that is random about them."""
        count = updates * self._batch
        rows = torch.randint(len(self._data["chunk"]), (count,), generator=self._generator)
        data = {name: values[rows] for name, values in self._data.items()}
        if self._symmetric is not None:
            self._symmetric.change(data, rows, self._generator)
        data["chunk"] = self._normalised(data["chunk"])
        if self._ends is not None:
            data["end"] = self._ends.standard({key: data.pop(f"end/{key}") for key in self._ends.arrays})
        shape = Shape(updates, self._batch, *self._chunk)
        data |= {f"drawn/{name}": x for name, x in self._clone.draw(self.model, shape, self._generator).items()}
        if self.cfg.microbatch is not None:
            # how much of its whole batch is valid, beside each row
            valid = data["valid"].float().view(updates, -1).mean(dim=1)
            data["share"] = valid.repeat_interleave(self._batch)
        for key in self._pictures:
            data[f"shift/{key}"] = draw_shifts(count, self._generator, self.cfg.image_shift)
        return data

    def _normalised(self, chunks: Tensor) -> Tensor:
        """Chunks as the network has them: zeros where the dataset's actions are narrower."""
        unit = chunks * torch.tensor(self._to_unit.scale) + torch.tensor(self._to_unit.offset)
        return nn.functional.pad(unit, (0, self._chunk[1] - unit.shape[-1]))

    def state(self) -> dict[str, Any]:
        """See `Learner.state`."""
        return {
            "model": self.model.state_dict(),
            **self._ahead(),
            "policy": self.policy.state_dict(),
            "engine": self._engine.state(),
            "generator": generator_state(self._generator),
            "updates": self._updates,
            "processes": self.world.size,
        }

    def _ahead(self) -> dict[str, Any]:
        return {} if self._loss.ahead is None else {"ahead": self._loss.ahead.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        """See `Learner.load`; the state is that of process 0, the others draw from streams of their own.

        Raises:
            ConfigError: the state is that of another number of processes.
        """
        check_processes(self.world, state)
        self.model.load_state_dict(state["model"])
        if self._loss.ahead is not None:
            self._loss.ahead.load_state_dict(state["ahead"])
        self.policy.load_state_dict(state["policy"])
        self._engine.load(state["engine"])
        self._updates = int(state["updates"])
        take_up(self.world, state, self._seed + self._updates, self._generator)


def _check(cfg: BcCfg, cache: Cache) -> None:
    for name, value, plain in (("image_shift", cfg.image_shift, 0), ("symmetries", cfg.symmetries, ())):
        if cache != "none" and value != plain:
            raise ConfigError(
                f"cache is {cache!r} and algo.{name} is {value}: expected {plain}, what is kept of a picture stays so"
            )
    for name, count in (
        ("updates", cfg.updates),
        ("updates_per_iteration", cfg.updates_per_iteration),
        ("batch", cfg.batch),
    ):
        check_at_least(f"algo.{name}", count, 1)
    check_number("algo.foresight", cfg.foresight, 0.0, 1e3)
    for name, value in (("lr", cfg.lr), ("grad_norm", cfg.grad_norm)):
        check_positive(f"algo.{name}", value)
    if not 0 <= cfg.ema < 1:
        raise out_of_range("algo.ema", cfg.ema, "0 or more and below 1")
    if cfg.warmup < 0:
        raise out_of_range("algo.warmup", cfg.warmup, "0 or more updates")
    if cfg.image_shift < 0:
        raise out_of_range("algo.image_shift", cfg.image_shift, "0 or more pixels")


def check_reads(policy: object) -> None:
    """Refuse a second task for a policy that has nothing to train it on.

    Raises:
        CapabilityError: the policy lacks `HasReading`.
    """
    if not isinstance(policy, HasReading):
        raise CapabilityError(
            f"policy {type(policy).__name__} lacks HasReading: algo.foresight needs what it reads (reading)"
        )


def _normalisation(transforms: TransformGroup) -> Affine:
    """From the sim's units to the network's: what undoes the policy's own way back, whatever that is.

    Raises:
        ConfigError: the policy has no such way, or more than one.
    """
    found = [t for t in transforms.outputs if isinstance(t, Affine) and t.key == ACTION]
    if len(found) != 1:
        raise ConfigError(f"the policy has {len(found)} affine transforms of its actions: expected 1, to be undone")
    return inverse(found[0])
