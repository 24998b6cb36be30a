"""Behaviour cloning: what the policy is cloned with is chosen by what it can do (see `robotrl.fn.bc_loss`)."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from robotrl.datasets.agreement.agree import check_reach
from robotrl.datasets.chunks import load_chunks
from robotrl.datasets.normalization import ActionRange, check_new, transforms_for
from robotrl.engine.autocast import in_bf16
from robotrl.engine.distributed import check_processes, share, take_up
from robotrl.engine.engine import UPDATES_PER_CALL, Context, EngineMode, LossModule, LossOut, ParameterGroup
from robotrl.engine.minibatches import fitting, means, part, run_updates
from robotrl.errors import ConfigError, check_at_least, check_decay, check_number, check_positive, out_of_range
from robotrl.fn.augment import PAD, draw_shifts, random_shift
from robotrl.fn.bc_loss import CloneLoss, DrawShape, chunk_shape, clone_loss_of
from robotrl.fn.schedule import warmed_cosine
from robotrl.learners.augmentation import Symmetric, changes_of
from robotrl.learners.auxiliary_targets import hidden_numbers
from robotrl.learners.dataset import read_for
from robotrl.learners.frames import Frames, Scenes, check_reads
from robotrl.learners.learner import Setup
from robotrl.policies.base import ACTION
from robotrl.policies.reach import reach_of
from robotrl.rollout.compatibility import check_words
from robotrl.run.checkpoint import generator_state
from robotrl.spec import Cache, is_picture, visible
from robotrl.transforms import Affine, TransformGroup, inverse


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
    """Peak learning rate of Adam; decays with half a cosine."""
    lr_end: float = 0.1
    """What is left of it at the end, 0 to 1. A clone that must be precise gains from little: steps of 1e-4 blur it."""
    warmup: int = 0
    """Updates over which the learning rate rises to its curve; transformers that begin at its peak may never learn to
    look where they are told to."""
    muon: float = 0.0
    """Matrices between hidden states move by Muon, with so many times the learning rate; see docs/engine.md. 0 moves
    them by Adam, as all else."""
    ema: float = 0.99
    """Decay of the averaged weights, which are what is evaluated and fine-tuned; 0 turns averaging off."""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this norm."""
    action_range: ActionRange = "bounds"
    """Of a policy that begins with this run: what its [-1, 1] is, all that the robot can do, or with "quantiles" what
    it did in the dataset, from 1 to 99 %. It is kept with the policy; one from `--init-from` has its own."""
    dataset_keys: tuple[str, ...] = ()
    """Columns of the dataset that have other names than the policy's observations, "action" or "next.reward", as
    "key=column", e.g. "image_flat_near=observation.images.front"; "action=arm+gripper" puts two side by side. One
    picture for one camera need not be said; see docs/datasets.md."""
    image_shift: int = PAD
    """Pictures are shifted by up to so many pixels at random; 0 leaves them."""
    symmetries: tuple[str, ...] = ()
    """Kinds of the sim's symmetries: each chunk is cloned as it is, or as it would be in a mirror, with colours
    exchanged, whatever the sim declares (`HasSymmetries`). Instructions that no demonstration has stay unsaid."""
    reading: float = 0.0
    """Weight of a second task: to tell, as in learning to look, what the words mean in scenes that nobody acted in. A
    small policy that learned it before it was cloned soon forgets it otherwise: in most frames of a demonstration
    the robot's own motion tells how it goes on. Nothing of it stays in the policy."""
    scenes: int = 640
    """Of the second task: training starts of the sim that are drawn anew for each iteration; see learning to look.
    As many of their frames as chunks are in each gradient step."""
    bf16: bool = False
    """Networks compute in bfloat16, densities, losses and parameters stay in float32; see docs/engine.md."""
    engine: EngineMode = "eager"
    """"compiled" is faster per update and takes some 10 to 60 s to begin: for clones of many thousand updates."""

    @property
    def frames_per_row(self) -> int:
        """A chunk's own, and one of a scene where words are told; for the estimate of memory."""
        return 2 if self.reading else 1

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
        meant: numbers that say what words mean; 0 where nothing is read.
    """

    def __init__(self, policy: nn.Module, loss: CloneLoss, cfg: BcCfg, meant: int) -> None:
        super().__init__()
        self.policy: Any = policy
        self._loss = loss
        self._cfg = cfg
        self.head = nn.Linear(self.policy.reading_width, meant) if meant else None

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`; the carry counts updates."""
        obs = part(batch, "obs/")
        for key, shifts in part(batch, "shift/").items():
            obs[key] = random_shift(obs[key], shifts, self._cfg.image_shift)
        with in_bf16(self._cfg.bf16, context.carry.device):
            ctx = self.policy.encode(obs)
            loss = self._loss.loss(self.policy, ctx, batch["chunk"], batch["valid"], **part(batch, "drawn/"))
            told = None
            if self.head is not None:
                told = self.head(self.policy.reading(self.policy.encode(part(batch, "scene/"))))
        if "share" in batch:
            # of a part of a batch, the mean over what is valid in it: it counts as much as it has of that
            loss = loss * batch["valid"].float().mean() / batch["share"].mean()
        lr = self._cfg.lr * warmed_cosine(context.carry[0], self._cfg.updates, self._cfg.warmup, self._cfg.lr_end)
        info, rates = {"lr": lr}, (lr,)
        if told is not None:
            info["reading"] = (told - batch["told"][:, None]).square().mean()
            loss, rates = loss + self._cfg.reading * info["reading"], (lr, lr)
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
        sim: Any = setup.make_sim()
        specs = visible(sim)
        action_spec, control_dt_s = sim.action_spec, sim.control_dt_s
        changes = changes_of(cfg.symmetries, sim)
        model: Any = setup.init_policy
        loss = None if model is None else clone_loss_of(model)
        if model is not None:
            check_new("algo.action_range", cfg.action_range)
            specs = model.observation_spec
            check_words(specs, sim)
        inputs = () if model is None else model.transforms.inputs
        dataset = read_for(setup, cfg.dataset_keys, specs, sim, inputs)
        if model is None:
            model = setup.fresh(specs, action_spec, transforms_for(dataset, specs, action_spec, cfg.action_range))
        self._clone = loss or clone_loss_of(model)
        check_reach(dataset, model.transforms, action_spec, reach_of(model))
        self.model: Any = model
        self.model.control_dt_s = control_dt_s
        self.policy: Any = copy.deepcopy(self.model) if cfg.ema else self.model
        self._updates = 0
        self._generator = torch.Generator().manual_seed(setup.seed)
        self._to_unit, self._chunk = _normalisation(self.model.transforms), chunk_shape(self.model)
        self.kept = setup.kept(self.model, cfg.microbatch or cfg.batch, cfg.bf16)
        chunks = load_chunks(dataset, list(specs), self._chunk[0])
        data = {f"obs/{key}": torch.from_numpy(x) for key, x in chunks.obs.items()}
        data |= {"chunk": torch.from_numpy(chunks.chunks), "valid": torch.from_numpy(chunks.valid)}
        symmetric = partial(Symmetric, changes, specs=specs) if cfg.symmetries else None
        self._demonstrated = self._keep(Frames.of(data, symmetric))
        self._scenes: Scenes | None = None
        self._fresh: Frames | None = None
        """Frames of this iteration's scenes."""
        if cfg.reading:
            check_reads(self.model, sim, "algo.reading", cfg.reading)
            self._meant = hidden_numbers(dataset, tuple(sim.meant))
            named = {f"obs/{key}": key for key in specs} | {f"meant/{key}": key for key in self._meant.arrays}
            self._scenes = Scenes(sim, cfg.scenes, named, symmetric)
        else:
            sim.close()
        self._pictures = [key for key, spec in specs.items() if is_picture(spec) and cfg.image_shift]
        row = cfg.frames_per_row * sum(x[0].numel() * x.element_size() for x in self._demonstrated.arrays.values())
        self._at_once = fitting(cfg.updates_per_iteration, self._batch * row)
        meant = len(self._meant.mean) if cfg.reading else 0
        self._loss = BcLoss(self.model, self._clone, cfg, meant).to(setup.device)
        self._engine = setup.engine(
            self._loss,
            (
                ParameterGroup("policy.", cfg.max_grad_norm, cfg.ema or None, ramp=True, muon=cfg.muon),
                *([ParameterGroup("head.", cfg.max_grad_norm)] if cfg.reading else []),
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
        """See `Learner.close`."""
        if self._scenes is not None:
            self._scenes.close()

    def iterate(self) -> dict[str, float]:
        """`updates_per_iteration` gradient steps."""
        cfg = self.cfg
        if self._scenes is not None:
            self._fresh = self._keep(self._scenes.draw(self._generator))
        count = min(cfg.updates_per_iteration, cfg.updates - self._updates)
        what = f"clone, from update {self._updates + 1}"
        info = run_updates(self._engine, self._draw, count, self._at_once, what)
        self._updates += count
        if cfg.ema:
            self._engine.write_average("policy.", self.policy)
        scalars = means(info) | {"lr": float(info["lr"][-1][-1]), "updates": float(self._updates)}
        return {name: scalars[name] for name in ("loss", "lr", "updates", *(["reading"] if cfg.reading else []))}

    def _keep(self, frames: Frames) -> Frames:
        """The same with what is kept of their observations."""
        kept = {f"obs/{key}": x for key, x in self.kept(part(frames.arrays, "obs/")).items()}
        rest = {name: x for name, x in frames.arrays.items() if not name.startswith("obs/")}
        return frames._replace(arrays=kept | rest)

    def _draw(self, updates: int) -> dict[str, Tensor]:
        """Rows for so many updates, and all that is random about them."""
        count = updates * self._batch
        data = self._demonstrated.draw(count, self._generator)
        data["chunk"] = self._normalised(data["chunk"])
        if self._fresh is not None:
            fresh = self._fresh.draw(count, self._generator)
            data |= {f"scene/{key}": x for key, x in part(fresh, "obs/").items()}
            data["told"] = self._meant.standard(part(fresh, "meant/"))
        shape = DrawShape(updates, self._batch, *self._chunk)
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
            **({} if self._loss.head is None else {"head": self._loss.head.state_dict()}),
            "policy": self.policy.state_dict(),
            "engine": self._engine.state(),
            "generator": generator_state(self._generator),
            "updates": self._updates,
            "processes": self.world.size,
        }

    def load(self, state: dict[str, Any]) -> None:
        """See `Learner.load`; the state is that of process 0, the others draw from streams of their own.

        Raises:
            ConfigError: the state is that of another number of processes.
        """
        check_processes(self.world, state)
        self.model.load_state_dict(state["model"])
        if self._loss.head is not None:
            self._loss.head.load_state_dict(state["head"])
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
    check_number("algo.muon", cfg.muon, 0.0, 1e3)
    check_number("algo.reading", cfg.reading, 0.0, 1e3)
    check_number("algo.lr_end", cfg.lr_end, 0.0, 1.0)
    check_at_least("algo.scenes", cfg.scenes, 1)
    for name, value in (("lr", cfg.lr), ("max_grad_norm", cfg.max_grad_norm)):
        check_positive(f"algo.{name}", value)
    check_decay("algo.ema", cfg.ema)
    if cfg.warmup < 0:
        raise out_of_range("algo.warmup", cfg.warmup, "0 or more updates")
    if cfg.image_shift < 0:
        raise out_of_range("algo.image_shift", cfg.image_shift, "0 or more pixels")


def _normalisation(transforms: TransformGroup) -> Affine:
    """From the sim's units to the network's: what undoes the policy's own way back, whatever that is.

    Raises:
        ConfigError: the policy has no such way, or more than one.
    """
    found = [t for t in transforms.outputs if isinstance(t, Affine) and t.key == ACTION]
    if len(found) != 1:
        raise ConfigError(f"the policy has {len(found)} affine transforms of its actions: expected 1, to be undone")
    return inverse(found[0])
