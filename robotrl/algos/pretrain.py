"""Auxiliary pretraining of vision and language: predict privileged quantities before the policy acts.

A vision-language-action policy trained from scratch has to find out at once what images show and what the words refer
to, and may never make progress. Published models start from pretrained encoders; this algorithm pretrains a small one.
A linear head on the image patches predicts the sim's privileged arrays, e.g. object positions. With `grounding_coef`, a
second head predicts from image and text together what the instruction refers to in this scene (grounding targets), e.g.
the position of the named object. With `scenes`, half of all frames come from new scenes without demonstrations. The
heads are discarded afterwards. This does not improve actions by itself; continue with behavior cloning (`--init-from`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from robotrl.datasets.normalization import ActionRange, check_new, transforms_for
from robotrl.engine.autocast import in_bf16
from robotrl.engine.engine import UPDATES_PER_CALL, Context, EngineMode, LossModule, LossOut, ParameterGroup
from robotrl.engine.minibatches import fitting, means, part, run_updates
from robotrl.errors import CapabilityError, ConfigError, check_at_least, check_number, check_positive, out_of_range
from robotrl.fn.schedule import warmed_cosine
from robotrl.learners.augmentation import Symmetric, changes_of
from robotrl.learners.auxiliary_targets import frames_of, hidden_numbers
from robotrl.learners.dataset import read_for
from robotrl.learners.frames import Frames, Scenes, check_reads
from robotrl.learners.learner import Learner, Setup
from robotrl.learners.parts import Part
from robotrl.rollout.compatibility import check_words
from robotrl.spec import (
    HasGroundingTargets,
    HasImageFeatures,
    LearnerCfg,
    MemoryNeeds,
    TrainDefaults,
    is_picture,
    privileged,
    visible,
)
from robotrl.utils.batched import arrays_in_parts

MAX_HELD_OUT_FRAMES = 1024
"""Maximum number of held-out frames evaluated after each iteration; they are spread over all held-out frames."""
PRIVILEGED, GROUNDING = "privileged", "grounding"
"""Heads: the first predicts privileged quantities from images, the second grounding targets from images and text."""
TARGETS_OF_HEADS = {"privileged/": PRIVILEGED, "grounding/": GROUNDING}
"""Head by the prefix of the rows that hold its targets."""


@dataclass(frozen=True)
class PretrainCfg(LearnerCfg):
    """Settings of auxiliary pretraining."""

    default_policy: ClassVar[str] = "token-vla"
    train_defaults: ClassVar[TrainDefaults] = TrainDefaults(
        {"evaluation.every": 0, "evaluation.episodes": 1, "evaluation.num_envs": 1, "evaluation.animation": 0}
    )
    updates: int = 1000
    """Total number of gradient steps."""
    updates_per_iteration: int = 100
    """Gradient steps between two log lines."""
    batch: int = 64
    """Frames per gradient step, drawn with replacement."""
    lr: float = 1e-3
    """Peak learning rate of Adam; it decays along a half cosine to a tenth."""
    warmup: int = 100
    """Updates of linear learning-rate warmup."""
    muon: float = 0.0
    """Train hidden weight matrices with Muon, at this multiple of the learning rate; see docs/engine.md. 0: Adam for
    all parameters."""
    max_grad_norm: float = 1.0
    """Maximum gradient norm."""
    action_range: ActionRange = "bounds"
    """Action range of a new policy; see behavior cloning (`bc`), which continues with it."""
    symmetries: tuple[str, ...] = ()
    """Kinds of the sim's symmetries for augmentation of frames; see behavior cloning (`bc`)."""
    grounding_coef: float = 0.0
    """Weight of the loss of grounding targets, predicted from image and text. 0: images only, at a third of the cost.
    Train the vision encoder first, and ground words in a second run (`--init-from`)."""
    scenes: int = 0
    """Number of training starts of the sim drawn anew in each iteration, rounded up to whole batches of envs. Half of
    the frames then come from them, at the start and after a random motion, so frames hardly repeat in a run. Grounding
    needs many scenes, more than a thousand demonstrations seen often. 0: none."""
    held_out: float = 0.05
    """Fraction of the episodes, the last ones, that is held out; the prediction error on them is logged."""
    dataset_keys: tuple[str, ...] = ()
    """Dataset columns with other names than the sim's, as "key=column"; see docs/datasets.md."""
    bf16: bool = False
    """Networks compute in bfloat16; see docs/engine.md."""
    engine: EngineMode = "eager"
    """Execution mode of updates: "eager", "compiled" or "auto"; see docs/engine.md."""

    @property
    def reads_rewards(self) -> bool:
        """See `LearnerCfg.reads_rewards`."""
        return False

    def check(self) -> None:
        """See `LearnerCfg.check`."""
        _check(self)

    @property
    def memory(self) -> MemoryNeeds:
        """See `LearnerCfg.memory`."""
        return MemoryNeeds(self.batch, bf16=self.bf16)

    def build(self, setup: Setup) -> PretrainLearner:
        """Build the learner."""
        return PretrainLearner(self, setup)


# loss


class PretrainLoss(LossModule):
    """Prediction error of the linear heads. The carry counts updates.

    Args:
        policy: the policy in training; with `grounding_coef` 0, only its vision encoder gets a gradient.
        cfg: settings.
        hidden: number of privileged targets.
        num_grounding: number of grounding targets; 0 without them.
    """

    def __init__(self, policy: nn.Module, cfg: PretrainCfg, hidden: int, num_grounding: int) -> None:
        super().__init__()
        self.policy: Any = policy
        self._cfg = cfg
        self.heads = nn.ModuleDict({PRIVILEGED: nn.Linear(self.policy.image_features_width, hidden)})
        if num_grounding:
            self.heads[GROUNDING] = nn.Linear(self.policy.text_features_width, num_grounding)

    def predictions(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Predictions (B, n, S) of each head for observations, at each of its n places."""
        # encode the images once for both heads
        obs = self.policy.cached(obs, "image-features")
        out = {PRIVILEGED: self.heads[PRIVILEGED](self.policy.image_features(obs))[:, None]}
        if GROUNDING in self.heads:
            out[GROUNDING] = self.heads[GROUNDING](self.policy.text_features(self.policy.encode(obs)))
        return out

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`."""
        with in_bf16(self._cfg.bf16, context.device):
            predictions = self.predictions(part(batch, "obs/"))
        errors = {name: (predicted - batch[name][:, None]).square().mean() for name, predicted in predictions.items()}
        grounding = errors.get(GROUNDING, torch.zeros_like(errors[PRIVILEGED]))
        loss = errors[PRIVILEGED] + self._cfg.grounding_coef * grounding
        done = context.carry["updates"]
        lr = self._cfg.lr * warmed_cosine(done, self._cfg.updates, self._cfg.warmup)
        return LossOut(
            loss, {"lr": lr, **{f"{name}_loss": x for name, x in errors.items()}}, (lr, lr), {"updates": done + 1}
        )


# update


class PretrainLearner(Learner):
    """Pretrains a policy's encoders on a dataset and on scenes of the sim; see `PretrainCfg`.

    Raises:
        ConfigError: no dataset, one of another rate or shape, no privileged arrays in it, or settings out of range.
        CapabilityError: the policy has no separate image features, or the sim has no grounding targets.
    """

    counts = ("updates",)

    def __init__(self, cfg: PretrainCfg, setup: Setup) -> None:
        if setup.dataset is None:
            raise ConfigError("dataset is not given: learning to look needs recorded frames (make some: robotrl demos)")
        _check(cfg)
        self.cfg = cfg
        self.iterations = math.ceil(cfg.updates / cfg.updates_per_iteration)
        torch.manual_seed(setup.seed)
        sim = setup.make_sim()
        specs, num_grounding = visible(sim), tuple(sim.grounding_keys) if isinstance(sim, HasGroundingTargets) else ()
        hidden = tuple(key for key in privileged(sim) if key not in num_grounding)
        action_spec, control_dt_s = sim.action_spec, sim.control_dt_s
        changes = changes_of(cfg.symmetries, sim)
        model: Any = setup.init_policy
        inputs = () if model is None else model.transforms.inputs
        dataset = read_for(setup, cfg.dataset_keys, specs, sim, inputs)
        if model is None:
            model = setup.fresh(specs, action_spec, transforms_for(dataset, specs, action_spec, cfg.action_range))
        else:
            check_new("algo.action_range", cfg.action_range)
            check_words(model.observation_spec, sim)
        if not isinstance(model, HasImageFeatures):
            raise CapabilityError(
                f"policy {type(model).__name__} lacks HasImageFeatures: it has no eyes to be trained apart"
            )
        if cfg.grounding_coef:
            check_reads(model, sim, "algo.grounding_coef", cfg.grounding_coef)
        policy: Any = model
        self.policy = policy
        self.policy.control_dt_s = control_dt_s
        # without text, every symmetry may be applied to every frame
        seen = [key for key, spec in specs.items() if cfg.grounding_coef or is_picture(spec)]
        self._targets = {"privileged/": hidden_numbers(dataset, hidden)}
        if cfg.grounding_coef:
            self._targets["grounding/"] = hidden_numbers(dataset, num_grounding)
        self._data = {f"obs/{key}": frames_of(dataset, key) for key in seen}
        for prefix, targets in self._targets.items():
            self._data |= {prefix + key: x for key, x in targets.arrays.items()}
        symmetric = partial(Symmetric, changes, specs=specs) if cfg.symmetries else None
        self._scenes: Scenes | None = None
        if cfg.scenes:
            self._scenes = Scenes(sim, cfg.scenes, {name: name.split("/", 1)[1] for name in self._data}, symmetric)
        else:
            sim.close()
        episodes = max(1, round((1 - cfg.held_out) * dataset.num_episodes))
        self._learned = int(dataset.offsets[episodes])
        """Number of training frames; the frames after them are held out."""
        self._demonstrated = Frames.of(self._data, symmetric, self._learned)
        self._fresh: Frames | None = None
        """Frames of this iteration's new scenes."""
        self._held_out_indices = torch.arange(self._learned, dataset.num_frames)
        if len(self._held_out_indices) > MAX_HELD_OUT_FRAMES:
            self._held_out_indices = self._held_out_indices[
                torch.linspace(0, len(self._held_out_indices) - 1, MAX_HELD_OUT_FRAMES).long()
            ]
        self._generator = torch.Generator().manual_seed(setup.seed)
        self._loss = PretrainLoss(policy, cfg, *(self._width(prefix) for prefix in TARGETS_OF_HEADS)).to(setup.device)
        size = cfg.batch * sum(x[0].numel() * x.element_size() for x in self._data.values())
        self._updates_per_call = fitting(cfg.updates_per_iteration, size)
        self._engine = setup.engine(
            self._loss,
            (ParameterGroup("policy.", cfg.max_grad_norm, muon=cfg.muon), ParameterGroup("heads.", cfg.max_grad_norm)),
            minibatch=cfg.batch,
            carry={"updates": 0.0},
            mode=cfg.engine,
            eps=1e-8,
            updates_per_call=min(UPDATES_PER_CALL, self._updates_per_call),
        )

    def close(self) -> None:
        """See `Learner.close`."""
        if self._scenes is not None:
            self._scenes.close()

    def iterate(self) -> dict[str, float]:
        """Run `updates_per_iteration` gradient steps, then evaluate on the held-out frames."""
        cfg = self.cfg
        if self._scenes is not None:
            self._fresh = self._scenes.draw(self._generator)
        count = min(cfg.updates_per_iteration, cfg.updates - self.updates)
        info = run_updates(
            self._engine, self._draw, count, self._updates_per_call, f"pretrain, from {self.updates + 1}"
        )
        self.updates += count
        found = means(info)
        scalars = {name: found[name] for name in ("loss", *(f"{head}_loss" for head in self._loss.heads))}
        scalars |= {"lr": float(info["lr"][-1][-1]), "updates": float(self.updates)}
        if len(self._held_out_indices):
            scalars |= {f"held_out_{name}": value for name, value in self._judge().items()}
        return scalars

    def _width(self, prefix: str) -> int:
        return len(self._targets[prefix].mean) if prefix in self._targets else 0

    def _draw(self, updates: int) -> dict[str, Tensor]:
        """Sample the rows of some updates."""
        batch = self.cfg.batch
        share = batch // 2 if self._fresh is not None else 0
        halves = [self._rows(self._demonstrated, updates, batch - share)]
        if self._fresh is not None and share:
            halves.append(self._rows(self._fresh, updates, share))
        # each update has the same fraction of both
        data = {name: torch.cat([half[name] for half in halves], dim=1).flatten(0, 1) for name in self._data}
        return {**{name: x for name, x in data.items() if name.startswith("obs/")}, **self._targets_of(data)}

    def _rows(self, frames: Frames, updates: int, batch: int) -> dict[str, Tensor]:
        """Sample rows (updates, batch, ...)."""
        rows = frames.draw(updates * batch, self._generator)
        return {name: x.unflatten(0, (updates, batch)) for name, x in rows.items()}

    def _targets_of(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """Targets (B, S) of each head."""
        return {
            TARGETS_OF_HEADS[prefix]: targets.standard(part(rows, prefix)) for prefix, targets in self._targets.items()
        }

    @torch.no_grad()
    def _judge(self) -> dict[str, float]:
        """Mean squared error of each head on held-out frames; 0 is perfect, 1 is that of predicting the mean."""
        rows = {name: x[self._held_out_indices] for name, x in self._data.items()}
        device = self._engine.device

        def off(some: dict[str, Tensor]) -> dict[str, Tensor]:
            predictions = self._loss.predictions({key: x.to(device) for key, x in part(some, "obs/").items()})
            wanted = self._targets_of(some)
            return {
                name: (said.cpu() - wanted[name][:, None]).square().mean(dim=(1, 2))
                for name, said in predictions.items()
            }

        return {f"{name}_loss": float(x.mean()) for name, x in arrays_in_parts(off, rows, self.cfg.batch).items()}

    def parts(self) -> dict[str, Part]:
        """See `Learner.parts`."""
        return {
            "policy": self.policy,
            "heads": self._loss.heads,
            "engine": self._engine,
            "generator": self._generator,
        }


def _check(cfg: PretrainCfg) -> None:
    for name in ("updates", "updates_per_iteration", "batch"):
        check_at_least(f"algo.{name}", getattr(cfg, name), 1)
    for name in ("lr", "max_grad_norm"):
        check_positive(f"algo.{name}", getattr(cfg, name))
    if cfg.warmup < 0:
        raise out_of_range("algo.warmup", cfg.warmup, "0 or more updates")
    check_number("algo.muon", cfg.muon, 0.0, 1e3)
    check_number("algo.grounding_coef", cfg.grounding_coef, 0.0, 1e3)
    if cfg.scenes < 0:
        raise out_of_range("algo.scenes", cfg.scenes, "0 or more")
    check_number("algo.held_out", cfg.held_out, 0.0, 0.9)
