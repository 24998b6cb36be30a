"""Budget of an endpoint: calls, and their cost by the tokens that the server reports."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from robotrl.rewards.endpoint.cfg import EndpointCfg
from robotrl.rewards.endpoint.protocol import Usage

TOKENS = 1000
"""Tokens that a price is for."""


class CallBudget:
    """Calls and cost of a run so far; the threads of several clients may share it.

    Args:
        cfg: settings.
    """

    def __init__(self, cfg: EndpointCfg) -> None:
        self._cfg = cfg
        self.calls = 0
        self.cost = 0.0
        self.unknown = False
        """True once nobody can say what a call cost although there is a limit: nothing more is asked."""
        self.dearest = 0.0
        """Largest cost of a call."""
        self._under_way = 0
        self._lock = threading.Lock()

    @property
    def spent(self) -> bool:
        """True if no further call may begin."""
        with self._lock:
            return self._spent()

    def _spent(self) -> bool:
        cfg = self._cfg
        if cfg.max_requests is not None and self.calls >= cfg.max_requests:
            return True
        if cfg.max_cost is None:
            return False
        # calls under way will cost, too: as much as the dearest so far
        expected = self.cost + (self._under_way + 1) * self.dearest
        return self.unknown or self.cost >= cfg.max_cost or expected > cfg.max_cost

    def begin(self) -> bool:
        """Count a call that begins; False if the budget is spent, so that it may not."""
        with self._lock:
            if self._spent():
                return False
            self.calls += 1
            self._under_way += 1
            return True

    def end(self, answered: bool, usage: Usage | None) -> None:
        """Count the end of a call.

        Args:
            answered: whether an answer of status 200, which costs, was read; else the call was free.
            usage: tokens, if it said so.
        """
        with self._lock:
            self._under_way -= 1
            if not answered:
                return
            if usage is None:
                self.unknown = self.unknown or self._cfg.max_cost is not None
                return
            cost = (usage.prompt * self._cfg.prompt_price + usage.answer * self._cfg.answer_price) / TOKENS
            self.cost += cost
            self.dearest = max(self.dearest, cost)

    def end_unread(self) -> None:
        """Count the end of a call that may cost, but whose answer was not read: it costs as much as the dearest."""
        with self._lock:
            self._under_way -= 1
            if self.dearest > 0:
                self.cost += self.dearest
            else:
                self.unknown = self.unknown or self._cfg.max_cost is not None

    def state(self) -> dict[str, float]:
        """State to resume from."""
        with self._lock:
            return {
                "calls": float(self.calls),
                "cost": self.cost,
                "dearest": self.dearest,
                "unknown": float(self.unknown),
            }

    def load(self, state: Mapping[str, float]) -> None:
        """Restore the result of `state`; what was paid here since stays paid.

        States of version 0.1 know neither the dearest call nor whether a cost is unknown.
        """
        with self._lock:
            self.calls, self.cost = max(self.calls, int(state["calls"])), max(self.cost, float(state["cost"]))
            self.dearest = max(self.dearest, float(state.get("dearest", 0.0)))
            self.unknown = self.unknown or bool(state.get("unknown", 0.0))
