"""Fit of dynamics to logged chunks: likelihood on most episodes, choice of weights and networks by the others."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from robotrl.engine.engine import Context, Engine, LossModule, LossOut, ParameterGroup
from robotrl.engine.minibatches import fitting, means, run_updates
from robotrl.errors import ConfigError
from robotrl.fn.dynamics.gaussian import gaussian_nll, squared_error
from robotrl.learners.dynamics.cfg import DynamicsCfg
from robotrl.learners.dynamics.ensemble import DynamicsEnsemble, StateChanges, check_finite
from robotrl.run.checkpoint import generator_state, set_generator_state

BLOCK = 1024
"""Most rows that are predicted at once."""
MAX_GRAD_NORM = 10.0


class DynamicsLoss(LossModule):
    """Negative log-likelihood of the changes, sum over networks.

    The sum keeps each network's gradient, and so the learning rate, independent of their number.

    Args:
        model: the networks in training.
        cfg: settings.
    """

    largest: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, model: DynamicsEnsemble, cfg: DynamicsCfg) -> None:
        super().__init__()
        self.model = model
        self._cfg = cfg

    def forward(self, batch: dict[str, Tensor], context: Context) -> LossOut:
        """See `LossModule`; rows "ctx" and "next_ctx" (M, E, D) and "chunk" (M, E, H, A), others for each network."""
        del context
        ctx, chunk, next_ctx = (batch[name].transpose(0, 1) for name in StateChanges._fields)
        nll = gaussian_nll(self.model(ctx, chunk), self.model.change(ctx, next_ctx))
        return LossOut(nll.sum(), {"dynamics/nll": nll.mean()}, (torch.full_like(nll[0], self._cfg.lr),))


class DynamicsFit:
    """Networks in training, and of each the weights of its smallest held-out error so far.

    The numbers depend on the data, the settings and the seed alone.

    Args:
        cfg: settings.
        learned: chunks to learn from.
        held: chunks of other episodes, by which weights and networks are chosen.
        seed: of the initial weights and of the rows.
        device: device of the networks; the data stays where it is.

    Raises:
        ConfigError: there are no held-out chunks.
        DataError: a number is not finite.
    """

    def __init__(
        self, cfg: DynamicsCfg, learned: StateChanges, held: StateChanges, seed: int, device: torch.device
    ) -> None:
        if not len(held.ctx) or not len(learned.ctx):
            raise ConfigError(
                f"algo.held_out leaves {len(learned.ctx)} whole chunks to learn dynamics from and {len(held.ctx)} to"
                " judge them: expected some of both, so more episodes or longer ones"
            )
        for name, data in (("learned episodes", learned), ("held-out episodes", held)):
            check_finite(data, name)
        self._cfg, self._learned, self._held, self._device = cfg, learned, held, device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            horizon, width = learned.chunk.shape[1:]
            model = DynamicsEnsemble(learned.ctx.shape[1], (horizon, width), cfg.nets, cfg.elites, cfg.hidden)
        model.take_moments(learned)
        self._loss = DynamicsLoss(model, cfg).to(device)
        self.model = copy.deepcopy(self._loss.model).requires_grad_(False)
        """The best weights of each network."""
        self._generator = torch.Generator().manual_seed(seed)
        # products of wide layers take the time: compiling them gains little
        self._engine = Engine(
            self._loss, (ParameterGroup("model.", MAX_GRAD_NORM),), minibatch=cfg.batch, mode="eager", eps=1e-8
        )

    def fit(self, updates: int, what: str) -> dict[str, float]:
        """Make updates, and choose weights and networks; returns scalars to log.

        Args:
            updates: number of updates.
            what: position in training, for errors.
        """
        row = 4 * self._cfg.nets * sum(x[0].numel() for x in self._learned)
        most = fitting(updates, self._cfg.batch * row)
        found = means(run_updates(self._engine, self._rows, updates, most, what))
        self._keep_best()
        return {"dynamics/nll": found["dynamics/nll"], "dynamics/heldout_error": self.error}

    @property
    def error(self) -> float:
        """Mean held-out error of the networks in use, as a share of the changes' variance: 1 knows nothing."""
        return float(self.model.error[self.model.elites].mean())

    def _rows(self, updates: int) -> dict[str, Tensor]:
        count = updates * self._cfg.batch, self._cfg.nets
        drawn = self._learned.rows(torch.randint(len(self._learned.ctx), count, generator=self._generator))
        return drawn._asdict()

    @torch.no_grad()
    def _keep_best(self) -> None:
        now, best = self._loss.model, self.model
        total = torch.zeros_like(best.error)
        for index in torch.arange(len(self._held.ctx)).split(BLOCK):
            ctx, chunk, next_ctx = (x.to(self._device) for x in self._held.rows(index))
            total += squared_error(now(ctx, chunk), now.change(ctx, next_ctx)) * len(index)
        error = total / len(self._held.ctx)
        better = error < best.error
        for kept, weight in zip(best.parameters(), now.parameters(), strict=True):
            kept[better] = weight[better]
        best.error[better] = error[better]
        best.choose()

    def state(self) -> dict[str, Any]:
        """State for an exact resume; the data is read again."""
        return {
            "networks": self._loss.state_dict(),
            "best": self.model.state_dict(),
            "engine": self._engine.state(),
            "generator": generator_state(self._generator),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        self._loss.load_state_dict(state["networks"])
        self.model.load_state_dict(state["best"])
        self._engine.load(state["engine"])
        set_generator_state(self._generator, state["generator"])
