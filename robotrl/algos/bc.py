"""Behavior cloning; the loss depends on the policy's capabilities (see `robotrl.fn.bc_loss`)."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from robotrl.datasets.agreement.agree import check_reach
from robotrl.datasets.chunks import load_chunks
from robotrl.datasets.committed import delayed_rows
from robotrl.datasets.normalization import ActionRange, check_new, transforms_for
from robotrl.datasets.reader import Dataset
from robotrl.engine.autocast import in_bf16
from robotrl.engine.distributed import share
from robotrl.engine.engine import UPDATES_PER_CALL, Context, EngineMode, LossModule, LossOut, ParameterGroup
from robotrl.engine.minibatches import fitting, means, part, run_updates
from robotrl.errors import (
    ConfigError,
    DataError,
    check_at_least,
    check_decay,
    check_number,
    check_positive,
    out_of_range,
    unknown,
)
from robotrl.fn.augment import PAD, draw_shifts, random_shift
from robotrl.fn.bc_loss import CloneLoss, DrawShape, chunk_shape, clone_loss_of
from robotrl.fn.schedule import warmed_cosine
from robotrl.labels.best_of_start import best_frames, trials_of
from robotrl.labels.sidecar import read_label
from robotrl.learners.augmentation import Symmetric, changes_of
from robotrl.learners.auxiliary_targets import hidden_numbers
from robotrl.learners.dataset import read_for
from robotrl.learners.frames import Frames, Scenes, check_reads
from robotrl.learners.learner import Learner, Setup
from robotrl.learners.normalizers import action_normalization
from robotrl.learners.parts import Part
from robotrl.policies.reach import reach_of
from robotrl.rollout.compatibility import check_words
from robotrl.spec import (
    COMMITTED,
    Cache,
    LearnerCfg,
    MemoryNeeds,
    TrainDefaults,
    committed_steps,
    is_picture,
    reads,
    visible,
    without_committed,
)

Label = Literal["recorded", "best_of_start"]
LABELS: tuple[Label, ...] = ("recorded", "best_of_start")


@dataclass(frozen=True)
class BcCfg(LearnerCfg):
    """Settings of behavior cloning."""

    default_policy: ClassVar[str] = "flow"
    train_defaults: ClassVar[TrainDefaults] = TrainDefaults({"evaluation.every": 0, "checkpoint_every": 4})
    updates: int = 1000
    """Total number of gradient steps."""
    updates_per_iteration: int = 100
    """Gradient steps between two log lines."""
    batch: int = 512
    """Chunks per gradient step, drawn with replacement; summed over processes."""
    microbatch: int | None = None
    """Chunks per forward and backward pass, to save memory; must divide the batch. None: the whole batch."""
    lr: float = 1e-3
    """Peak learning rate of Adam; it decays along a half cosine."""
    lr_end: float = 0.1
    """Final learning rate as a fraction of the peak, 0 to 1. Precise policies gain from a small one: steps of 1e-4 blur
    them."""
    warmup: int = 0
    """Updates of linear learning-rate warmup; without it, transformers may never learn to attend to the instruction."""
    muon: float = 0.0
    """Train hidden weight matrices with Muon, at this multiple of the learning rate; see docs/engine.md. 0: Adam for
    all parameters."""
    ema: float = 0.99
    """Decay of the averaged (EMA) weights, which are evaluated and fine-tuned. 0: no averaging."""
    max_grad_norm: float = 1.0
    """Maximum gradient norm."""
    action_range: ActionRange = "bounds"
    """Action range of a new policy that is normalized to [-1, 1]: "bounds", the robot's limits; or "quantiles", the 1
    to 99 % quantiles of the dataset's actions. It is saved with the policy; a policy from `--init-from` keeps its own.
    """
    dataset_keys: tuple[str, ...] = ()
    """Dataset columns with other names than the policy's observations, "action" or "next.reward", as "key=column", e.g.
    "image_flat_near=observation.images.front"; "action=arm+gripper" concatenates two columns. The only image column is
    matched to the only camera without this setting; see docs/datasets.md."""
    labels: str | None = field(default=None, metadata=reads("file"))
    """File of labels beside the dataset, DATASET.labels/NAME.parquet, e.g. of a RECAP run: chunks that begin at a frame
    whose label `keep` is False are not cloned. None: all are."""
    label: Label = "recorded"
    """Chunks to clone: "recorded", each frame's own; or "best_of_start", those of the best trial of each start by the
    rewards (RM-RL): its chunk at the start of every trial from there, and the rest of that trial; see docs/labels.md.
    """
    start_distance: float | None = None
    """With `label` "best_of_start", largest distance of starts of one group, in the units of the observations. None: by
    the dataset's numbers of the start states."""
    image_shift: int = PAD
    """Largest random shift of images, pixels (augmentation). 0: none."""
    symmetries: tuple[str, ...] = ()
    """Kinds of the sim's symmetries (`HasSymmetries`) for augmentation: each chunk is cloned as it is or changed, e.g.
    mirrored or with colors exchanged. Changes to instructions that no demonstration has are left out."""
    grounding_coef: float = 0.0
    """Weight of an auxiliary grounding task, as in `robotrl.algos.pretrain`: predict targets of instructions in new
    scenes. A small policy pretrained on it soon forgets it otherwise, because in most frames of a demonstration the
    robot's own motion predicts the action. The prediction head is not part of the policy. 0: off."""
    scenes: int = 640
    """Training starts of the sim drawn anew in each iteration for the auxiliary task. Each gradient
    step uses as many of their frames as chunks."""
    bf16: bool = False
    """Networks compute in bfloat16; densities, losses and parameters stay in float32; see docs/engine.md."""
    engine: EngineMode = "eager"
    """Execution mode of updates: "compiled" is faster per update and compiles for 10 to 60 s first: for many thousand
    updates; see docs/engine.md."""

    @property
    def reads_rewards(self) -> bool:
        """See `LearnerCfg.reads_rewards`."""
        return False

    def check(self) -> None:
        """See `LearnerCfg.check`."""
        _check(self)

    @property
    def memory(self) -> MemoryNeeds:
        """See `LearnerCfg.memory`; a row holds the frame of its chunk, and one of the auxiliary task if it is on."""
        frames, averages = 2 if self.grounding_coef else 1, bool(self.ema)
        return MemoryNeeds(self.batch, self.microbatch, True, None, averages, self.bf16, frames)

    def build(self, setup: Setup) -> BcLearner:
        """Build the learner."""
        return BcLearner(self, setup)


# loss


class BcLoss(LossModule):
    """The policy's own cloning loss, plus the auxiliary grounding loss; the learning rate decays along a half cosine.

    Args:
        policy: the policy in training.
        loss: from `clone_loss_of`.
        cfg: settings.
        num_grounding: number of grounding targets; 0 without the auxiliary task.
    """

    def __init__(self, policy: nn.Module, loss: CloneLoss, cfg: BcCfg, num_grounding: int) -> None:
        super().__init__()
        self.policy: Any = policy
        self._loss = loss
        self._cfg = cfg
        self.head = nn.Linear(self.policy.text_features_width, num_grounding) if num_grounding else None

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`; the carry counts updates."""
        obs = part(batch, "obs/")
        for key, shifts in part(batch, "shift/").items():
            obs[key] = random_shift(obs[key], shifts, self._cfg.image_shift)
        with in_bf16(self._cfg.bf16, context.device):
            ctx = self.policy.encode(obs)
            loss = self._loss.loss(self.policy, ctx, batch["chunk"], batch["valid"], **part(batch, "drawn/"))
            predicted = None
            if self.head is not None:
                predicted = self.head(self.policy.text_features(self.policy.encode(part(batch, "scene/"))))
        if "share" in batch:
            # the loss of a microbatch is a mean over its valid actions: weight it by their fraction of the batch
            loss = loss * batch["valid"].float().mean() / batch["share"].mean()
        done = context.carry["updates"]
        lr = self._cfg.lr * warmed_cosine(done, self._cfg.updates, self._cfg.warmup, self._cfg.lr_end)
        info, rates = {"lr": lr}, (lr,)
        if predicted is not None:
            info["grounding_loss"] = (predicted - batch["grounding"][:, None]).square().mean()
            loss, rates = loss + self._cfg.grounding_coef * info["grounding_loss"], (lr, lr)
        return LossOut(loss, info, rates, {"updates": done + 1})


# update


class BcLearner(Learner):
    """Trains a policy on a dataset by behavior cloning; see `BcCfg`.

    Raises:
        ConfigError: no dataset, one of another rate or shape, or settings out of range.
        CapabilityError: no cloning loss fits the policy.
    """

    counts = ("updates",)
    caches = True

    def __init__(self, cfg: BcCfg, setup: Setup) -> None:
        if setup.dataset is None:
            raise ConfigError("dataset is not given: behaviour cloning needs demonstrations (make some: robotrl demos)")
        _check_cache(cfg, setup.cache)
        _check(cfg)
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
        self._committed, recorded = committed_steps(specs), without_committed(specs)
        # no recording holds the committed actions: they are made from the recorded actions
        inputs = tuple(one for one in inputs if one.key != COMMITTED)
        dataset = read_for(setup, cfg.dataset_keys, recorded, sim, inputs)
        if model is None:
            model = setup.fresh(specs, action_spec, transforms_for(dataset, specs, action_spec, cfg.action_range))
        self._clone = loss or clone_loss_of(model)
        check_reach(dataset, model.transforms, action_spec, reach_of(model))
        self.model: Any = model
        self.model.control_dt_s = control_dt_s
        self.policy: Any = copy.deepcopy(self.model) if cfg.ema else self.model
        self._generator = torch.Generator().manual_seed(setup.seed)
        self._to_unit, self._chunk = action_normalization(self.model.transforms), chunk_shape(self.model)
        self.kept = setup.kept(self.model, cfg.microbatch or cfg.batch, cfg.bf16)
        chunks = load_chunks(dataset, list(recorded), self._chunk[0] + self._committed)
        data = {f"obs/{key}": torch.from_numpy(x) for key, x in chunks.obs.items()}
        data |= {"chunk": torch.from_numpy(chunks.chunks), "valid": torch.from_numpy(chunks.valid)}
        self._label_scalars: dict[str, float] = {}
        if cfg.label != "recorded" or cfg.labels is not None:
            vectors = [key for key, spec in recorded.items() if not is_picture(spec)]
            (at, source), self._label_scalars = _labeled(cfg, setup.dataset, dataset, vectors)
            data = {name: x[at if name.startswith("obs/") else source] for name, x in data.items()}
        symmetric = partial(Symmetric, changes, specs=specs) if cfg.symmetries else None
        self._demonstrated = self._keep(Frames.of(data, symmetric))
        self._scenes: Scenes | None = None
        self._fresh: Frames | None = None
        """Frames of this iteration's new scenes."""
        if cfg.grounding_coef:
            check_reads(self.model, sim, "algo.grounding_coef", cfg.grounding_coef)
            self._grounding = hidden_numbers(dataset, tuple(sim.grounding_keys))
            named = {f"obs/{key}": key for key in specs} | {f"grounding/{key}": key for key in self._grounding.arrays}
            self._scenes = Scenes(sim, cfg.scenes, named, symmetric)
        else:
            sim.close()
        self._pictures = [key for key, spec in specs.items() if is_picture(spec) and cfg.image_shift]
        frame = sum(x[0].numel() * x.element_size() for x in self._demonstrated.arrays.values())
        self._updates_per_call = fitting(cfg.updates_per_iteration, self._batch * frame * cfg.memory.frames_per_row)
        num_grounding = len(self._grounding.mean) if cfg.grounding_coef else 0
        self._loss = BcLoss(self.model, self._clone, cfg, num_grounding).to(setup.device)
        self._engine = setup.engine(
            self._loss,
            (
                ParameterGroup("policy.", cfg.max_grad_norm, cfg.ema or None, ramp=True, muon=cfg.muon),
                *([ParameterGroup("head.", cfg.max_grad_norm)] if cfg.grounding_coef else []),
            ),
            minibatch=self._batch,
            carry={"updates": 0.0},
            mode=cfg.engine,
            eps=1e-8,
            microbatch=cfg.microbatch,
            updates_per_call=min(UPDATES_PER_CALL, self._updates_per_call),
        )

    def close(self) -> None:
        """See `Learner.close`."""
        if self._scenes is not None:
            self._scenes.close()

    def iterate(self) -> dict[str, float]:
        """Run `updates_per_iteration` gradient steps; returns scalars to log."""
        cfg = self.cfg
        if self._scenes is not None:
            self._fresh = self._keep(self._scenes.draw(self._generator))
        count = min(cfg.updates_per_iteration, cfg.updates - self.updates)
        what = f"clone, from update {self.updates + 1}"
        info = run_updates(self._engine, self._draw, count, self._updates_per_call, what)
        self.updates += count
        if cfg.ema:
            self._engine.write_average("policy.", self.policy)
        scalars = means(info) | {"lr": float(info["lr"][-1][-1]), "updates": float(self.updates)}
        return {
            name: scalars[name]
            for name in ("loss", "lr", "updates", *(["grounding_loss"] if cfg.grounding_coef else []))
        } | self._label_scalars

    def _keep(self, frames: Frames) -> Frames:
        """Replace the observations of frames by their cached features, if there is a feature cache."""
        cached = {f"obs/{key}": x for key, x in self.kept(part(frames.arrays, "obs/")).items()}
        rest = {name: x for name, x in frames.arrays.items() if not name.startswith("obs/")}
        return frames._replace(arrays=cached | rest)

    def _draw(self, updates: int) -> dict[str, Tensor]:
        """Sample rows for some updates, with all random numbers of the loss."""
        count = updates * self._batch
        data = self._demonstrated.draw(count, self._generator)
        if self._committed:
            delay = torch.randint(self._committed + 1, (count,), generator=self._generator)
            data |= delayed_rows(data["chunk"], data["valid"], delay, self._committed)
        data["chunk"] = self._normalized(data["chunk"])
        if self._fresh is not None:
            fresh = self._fresh.draw(count, self._generator)
            data |= {f"scene/{key}": x for key, x in part(fresh, "obs/").items()}
            data["grounding"] = self._grounding.standard(part(fresh, "grounding/"))
        shape = DrawShape(updates, self._batch, *self._chunk)
        data |= {f"drawn/{name}": x for name, x in self._clone.draw(self.model, shape, self._generator).items()}
        if self.cfg.microbatch is not None:
            # valid fraction of the whole batch, stored with each row
            valid = data["valid"].float().view(updates, -1).mean(dim=1)
            data["share"] = valid.repeat_interleave(self._batch)
        for key in self._pictures:
            data[f"shift/{key}"] = draw_shifts(count, self._generator, self.cfg.image_shift)
        return data

    def _normalized(self, chunks: Tensor) -> Tensor:
        """Normalize chunks, and pad them with zeros to the network's action width."""
        unit = chunks * torch.tensor(self._to_unit.scale) + torch.tensor(self._to_unit.offset)
        return nn.functional.pad(unit, (0, self._chunk[1] - unit.shape[-1]))

    def parts(self) -> dict[str, Part]:
        """See `Learner.parts`."""
        head: dict[str, Part] = {} if self._loss.head is None else {"head": self._loss.head}
        own_parts: dict[str, Part] = {"model": self.model, "policy": self.policy}
        return own_parts | head | {"engine": self._engine, "generator": self._generator}


def _check_cache(cfg: BcCfg, cache: Cache) -> None:
    for name, value, plain in (("image_shift", cfg.image_shift, 0), ("symmetries", cfg.symmetries, ())):
        if cache != "none" and value != plain:
            raise ConfigError(
                f"cache is {cache!r} and algo.{name} is {value}: expected {plain}, what is kept of a picture stays so"
            )


def _labeled(
    cfg: BcCfg, path: Path, dataset: Dataset, vectors: list[str]
) -> tuple[tuple[Tensor, Tensor], dict[str, float]]:
    """Frames (K,) int64 to clone and the frames (K,) whose chunks they are cloned with, and scalars to log.

    Raises:
        ConfigError: see `trials_of`; or there is no label `keep`.
        DataError: see `read_label`; or no frame is kept.
    """
    frame = source = np.arange(dataset.num_frames)
    scalars: dict[str, float] = {}
    if cfg.label == "best_of_start":
        trials = trials_of(dataset, vectors, cfg.start_distance)
        frame, source = best_frames(dataset.offsets, trials.best)
        scalars = trials.scalars
    if cfg.labels is not None:
        keep = read_label(Path(cfg.labels), "keep", path, dataset.num_frames)[source]
        if not keep.any():
            raise DataError(f"labels {cfg.labels} keep none of {len(source)} frames: expected some to clone")
        frame, source = frame[keep], source[keep]
    return (torch.from_numpy(frame), torch.from_numpy(source)), scalars


def _check(cfg: BcCfg) -> None:
    for name, count in (
        ("updates", cfg.updates),
        ("updates_per_iteration", cfg.updates_per_iteration),
        ("batch", cfg.batch),
    ):
        check_at_least(f"algo.{name}", count, 1)
    if cfg.label not in LABELS:
        raise unknown("algo.label", str(cfg.label), LABELS)
    if cfg.start_distance is not None:
        check_positive("algo.start_distance", cfg.start_distance)
        if cfg.label != "best_of_start":
            raise ConfigError(
                f"algo.start_distance is {cfg.start_distance} and algo.label {cfg.label!r}: expected none"
            )
    check_number("algo.muon", cfg.muon, 0.0, 1e3)
    check_number("algo.grounding_coef", cfg.grounding_coef, 0.0, 1e3)
    check_number("algo.lr_end", cfg.lr_end, 0.0, 1.0)
    check_at_least("algo.scenes", cfg.scenes, 1)
    for name, value in (("lr", cfg.lr), ("max_grad_norm", cfg.max_grad_norm)):
        check_positive(f"algo.{name}", value)
    check_decay("algo.ema", cfg.ema)
    if cfg.warmup < 0:
        raise out_of_range("algo.warmup", cfg.warmup, "0 or more updates")
    if cfg.image_shift < 0:
        raise out_of_range("algo.image_shift", cfg.image_shift, "0 or more pixels")
