"""Behaviour cloning: flow matching for generative policies, mean squared error for Gaussian ones."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from robotrl.algos.learner import Setup, average_into, descend
from robotrl.checkpoint import generator_state, set_generator_state
from robotrl.data.chunks import load_chunks
from robotrl.data.layout import observation_key
from robotrl.data.reader import Dataset, read_dataset
from robotrl.errors import CapabilityError, ConfigError, out_of_range
from robotrl.fn.loss import masked_mse
from robotrl.policies.base import ACTION
from robotrl.spec import HasChain, HasLogProb, Spec
from robotrl.transforms import Clip, TransformGroup, bounds_to_unit, inverse, normalize


@dataclass(frozen=True)
class BcCfg:
    """Settings of behaviour cloning."""

    updates: int = 1000
    """Gradient steps in all."""
    updates_per_iteration: int = 100
    """Gradient steps between two log lines."""
    batch: int = 512
    """Chunks for each gradient step, drawn with replacement."""
    lr: float = 1e-3
    """Peak learning rate of Adam; decays with a half cosine to a tenth."""
    ema: float = 0.99
    """Decay of the averaged weights, which are what is evaluated and fine-tuned; 0 turns averaging off."""
    grad_norm: float = 1.0
    """Gradients are clipped to this norm."""

    def build(self, setup: Setup) -> BcLearner:
        """The learner."""
        return BcLearner(self, setup)


# losses


def flow_matching_loss(policy: HasChain, ctx: Tensor, chunk: Tensor, valid: Tensor, noise: Tensor, t: Tensor) -> Tensor:
    """Conditional flow matching on straight paths (Lipman et al. 2023, eq. 23): regress the velocity action - noise.

    Args:
        policy: velocity field to train.
        ctx: (B, D).
        chunk: (B, H, A) normalised actions.
        valid: (B, H) bool, padding excluded.
        noise: (B, H, A) standard normal.
        t: (B,) in [0, 1].
    """
    time = t[:, None, None]
    x = (1 - time) * noise + time * chunk
    velocity = policy.velocity(ctx, x, t, torch.zeros_like(t))
    return masked_mse(velocity, chunk - noise, valid)


def mean_loss(policy: Any, ctx: Tensor, chunk: Tensor, valid: Tensor) -> Tensor:
    """Mean squared error of a Gaussian policy's mean."""
    return masked_mse(policy.mean(ctx), chunk, valid)


# update


class BcLearner:
    """Clones a dataset; see `BcCfg`.

    Raises:
        ConfigError: no dataset, or settings out of range.
        CapabilityError: the policy is neither generative nor Gaussian.
    """

    env_steps = 0

    def __init__(self, cfg: BcCfg, setup: Setup) -> None:
        if setup.dataset is None:
            raise ConfigError("dataset is not given: behaviour cloning needs demonstrations (make some: robotrl demos)")
        for name, count in (
            ("updates", cfg.updates),
            ("updates_per_iteration", cfg.updates_per_iteration),
            ("batch", cfg.batch),
        ):
            if count < 1:
                raise out_of_range(f"algo.{name}", count, "1 or more")
        for name, value in (("lr", cfg.lr), ("grad_norm", cfg.grad_norm)):
            if not 0 < value < math.inf:
                raise out_of_range(f"algo.{name}", value, "above 0")
        if not 0 <= cfg.ema < 1:
            raise out_of_range("algo.ema", cfg.ema, "0 or more and below 1")
        self.cfg = cfg
        self.iterations = math.ceil(cfg.updates / cfg.updates_per_iteration)
        torch.manual_seed(setup.seed)
        sim = setup.make_sim()
        specs, action_spec, control_dt_s = sim.observation_spec, sim.action_spec, sim.control_dt_s
        sim.close()
        dataset = read_dataset(setup.dataset)
        model: Any = setup.init_policy
        if model is None:
            model = setup.policy_cfg.build(specs, action_spec, transforms_for(dataset, specs, action_spec))
        if not isinstance(model, HasChain | HasLogProb):
            raise CapabilityError(
                f"policy {type(model).__name__} has neither HasChain nor HasLogProb: cannot be cloned"
            )
        self.model: Any = model
        self.model.control_dt_s = control_dt_s
        self.policy: Any = copy.deepcopy(self.model) if cfg.ema else self.model
        self._updates = 0
        self._generator = torch.Generator().manual_seed(setup.seed)
        self._optimizer = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        data = load_chunks(dataset, list(specs), self.model.horizon)
        to_unit = bounds_to_unit(ACTION, action_spec.low, action_spec.high)
        scale, offset = torch.tensor(to_unit.scale), torch.tensor(to_unit.offset)
        with torch.no_grad():
            self._ctx: Tensor = self.model.encode({key: torch.from_numpy(value) for key, value in data.obs.items()})
        self._chunks = torch.from_numpy(data.chunks) * scale + offset
        self._valid = torch.from_numpy(data.valid)

    def iterate(self) -> dict[str, float]:
        """`updates_per_iteration` gradient steps."""
        cfg, total = self.cfg, 0.0
        count = min(cfg.updates_per_iteration, cfg.updates - self._updates)
        for _ in range(count):
            self._optimizer.param_groups[0]["lr"] = cfg.lr * cosine(self._updates / cfg.updates)
            total += float(self._update())
            self._updates += 1
        return {"loss": total / count, "lr": self._optimizer.param_groups[0]["lr"], "updates": float(self._updates)}

    def _update(self) -> Tensor:
        rows = torch.randint(len(self._ctx), (self.cfg.batch,), generator=self._generator)
        ctx, chunk, valid = self._ctx[rows], self._chunks[rows], self._valid[rows]
        model = self.model
        if isinstance(model, HasChain):
            noise = torch.randn(chunk.shape, generator=self._generator)
            t = torch.rand(len(chunk), generator=self._generator)
            loss = flow_matching_loss(model, ctx, chunk, valid, noise, t)
        else:
            loss = mean_loss(model, ctx, chunk, valid)
        descend(
            self._optimizer,
            loss,
            list(self.model.parameters()),
            self.cfg.grad_norm,
            f"update {self._updates + 1}: loss",
        )
        if self.cfg.ema:
            # averaging over fewer steps than the decay spans would keep the random start in the mean
            decay = min(self.cfg.ema, (1 + self._updates) / (10 + self._updates))
            average_into(self.policy, self.model, decay)
        return loss.detach()

    def state(self) -> dict[str, Any]:
        """See `Learner.state`."""
        return {
            "model": self.model.state_dict(),
            "policy": self.policy.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "generator": generator_state(self._generator),
            "updates": self._updates,
        }

    def load(self, state: dict[str, Any]) -> None:
        """See `Learner.load`."""
        self.model.load_state_dict(state["model"])
        self.policy.load_state_dict(state["policy"])
        self._optimizer.load_state_dict(state["optimizer"])
        set_generator_state(self._generator, state["generator"])
        self._updates = int(state["updates"])


def cosine(progress: float, floor: float = 0.1) -> float:
    """Half a cosine from 1 at progress 0 to `floor` at 1."""
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def transforms_for(dataset: Dataset, specs: dict[str, Spec], action_spec: Spec) -> TransformGroup:
    """Normalisation from a dataset's statistics; actions by their bounds, so that [-1, 1] is all the robot can do."""
    stats = {key: dataset.stats[observation_key(key)] for key in specs}
    inputs = [normalize(key, stats[key]["mean"].tolist(), stats[key]["std"].tolist(), floor=1e-3) for key in specs]
    from_unit = inverse(bounds_to_unit(ACTION, action_spec.low, action_spec.high))
    return TransformGroup(tuple(inputs), (from_unit, Clip(ACTION, action_spec.low, action_spec.high)))
