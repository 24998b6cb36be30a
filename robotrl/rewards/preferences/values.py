"""Values of states under the best actions of recorded behavior, for the true regret of segments."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from robotrl.engine.base import torch_threads
from robotrl.engine.engine import Context, Engine, LossModule, LossOut, ParameterGroup
from robotrl.engine.minibatches import part
from robotrl.errors import check_at_least, check_number
from robotrl.fn.preferences import deterministic_regret
from robotrl.fn.q_targets import expectile_loss
from robotrl.rewards.network import AT_ONCE, ImageRewardNet, RewardNetCfg, normalization
from robotrl.rewards.preferences.segments import Ints, StepPool, after, gather
from robotrl.spec import Spec
from robotrl.utils.batched import in_parts


@dataclass(frozen=True)
class ValueFitCfg:
    """Settings of the state values that a true regret is worked out from."""

    gamma: float = 0.99
    """Discount per step, above 0 and below 1."""
    expectile: float = 0.9
    """Expectile of the value over the recorded actions, 0.5 to below 1; towards 1 their best (IQL)."""
    steps: int = 10
    """Steps of a target before the next value; more of them carry rewards back faster, and credit the recorded actions
    in between."""
    updates: int = 3000
    """Gradient steps."""
    batch: int = 256
    """Steps per gradient step."""
    lr: float = 1e-3
    """Learning rate of Adam."""
    model: RewardNetCfg = field(default_factory=lambda: RewardNetCfg(hidden=(128, 128)))
    """Sizes of the network."""
    seed: int = 0
    """Seed of weights and minibatches."""

    def check(self, field: str = "values") -> None:
        """Check the ranges.

        Raises:
            ConfigError: a setting is out of range.
        """
        check_number(f"{field}.gamma", self.gamma, 1e-3, 0.9999)
        check_number(f"{field}.expectile", self.expectile, 0.5, 0.999)
        check_at_least(f"{field}.steps", self.steps, 1)
        check_at_least(f"{field}.updates", self.updates, 1)
        check_at_least(f"{field}.batch", self.batch, 1)
        check_number(f"{field}.lr", self.lr, 1e-8, 1.0)


class ValueLoss(LossModule):
    """Upper expectile of targets of a few steps (Kostrikov et al. 2022, eq. 5, without critics).

    With deterministic transitions the spread of a state's targets is that of its recorded actions, so that no critic is
    needed to leave luck out.
    """

    def __init__(self, net: ImageRewardNet, cfg: ValueFitCfg) -> None:
        super().__init__()
        self.net = net
        self._cfg = cfg

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule.forward`; batch: "obs/KEY", "next/KEY" (M, ...), "reward" and "discount" (M,)."""
        with torch.no_grad():
            average = part(context.average, "net.")
            following = torch.func.functional_call(self.net, average, (part(batch, "next/"),))
            target = batch["reward"] + batch["discount"] * following
        loss = expectile_loss(self.net(part(batch, "obs/")), target, self._cfg.expectile)
        return LossOut(loss, {}, (torch.ones_like(loss) * self._cfg.lr,))


def fit_values(pool: StepPool, observation_spec: dict[str, Spec], cfg: ValueFitCfg) -> Tensor:
    """Values (F,) of the states before each step, under the pool's own rewards.

    Args:
        pool: steps of good and bad behavior.
        observation_spec: observations that the value reads.
        cfg: settings.

    Raises:
        ConfigError: a setting is out of range.
        NumericsError: the loss is not finite.
    """
    cfg.check()
    obs = {key: pool.obs[key] for key in observation_spec}
    transforms = normalization(observation_spec, {key: x.numpy() for key, x in obs.items()})
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(cfg.seed)
        net = ImageRewardNet(dict(observation_spec), transforms, cfg.model)
    # a network's outputs are about 1; returns may be anything
    scale = float(pool.reward.std()) / (1 - cfg.gamma) * 0.1 or 1.0
    steps = torch.arange(len(pool.reward))
    # nobody knows what followed the last step of an episode that was cut off
    count = (torch.where(pool.terminated, pool.end, pool.end - 1) - steps).clamp(max=cfg.steps)
    usable = torch.nonzero(count > 0).squeeze(1)
    ahead = torch.arange(cfg.steps)
    rows = torch.minimum(steps[:, None] + ahead, pool.end[:, None] - 1)
    reward = torch.where(ahead < count[:, None], pool.reward[rows] * cfg.gamma**ahead, 0.0).sum(1)
    following = torch.minimum(steps + count, pool.end - 1)
    discount = torch.where(steps + count == pool.end, 0.0, cfg.gamma**count)
    data = {f"obs/{key}": x[usable] for key, x in obs.items()}
    data |= {f"next/{key}": x[following[usable]] for key, x in obs.items()}
    data |= {"reward": reward[usable] / scale, "discount": discount[usable]}
    engine = Engine(
        ValueLoss(net, cfg), [ParameterGroup("net.", 10.0, 0.99)], minibatch=cfg.batch, mode="eager", eps=1e-8
    )
    generator = torch.Generator().manual_seed(cfg.seed)
    drawn = torch.randint(len(usable), (cfg.updates * cfg.batch,), generator=generator)
    with torch_threads(1), torch.no_grad():
        engine.run(data, drawn, len(usable), "values")
        return in_parts(net, obs, AT_ONCE) * scale


def true_regret(pool: StepPool, values: Tensor, starts: Ints, length: int, gamma: float) -> Tensor:
    """Regret (M,) of segments that begin at `starts` (M,), by the values (F,) of the pool's states."""
    segments = gather(pool, starts, length)
    following, known = after(pool, starts, length)
    value_end = torch.where(known, values[following], 0.0)
    return deterministic_regret(segments.reward, segments.valid, values[torch.from_numpy(starts)], value_end, gamma)
