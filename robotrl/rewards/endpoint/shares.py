"""Budgets of a run, divided among the processes that each have reward sources or suggesters of their own."""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from typing import Any

from robotrl.rewards.endpoint.cfg import EndpointCfg
from robotrl.rewards.scoring.cfg import ServiceCfg


def share_of_budgets(settings: Any, processes: int) -> Any:
    """Settings in which each budget of requests and of money is one process's share, so that all together keep to it.

    Args:
        settings: a dataclass of settings, those in it included.
        processes: number of processes, 1 or more; 1 leaves everything as it is.
    """
    if processes == 1:
        return settings
    changed = {name: share_of_budgets(x, processes) for name, x in vars(settings).items() if is_dataclass(x)}
    if isinstance(settings, EndpointCfg | ServiceCfg) and settings.max_requests is not None:
        changed["max_requests"] = settings.max_requests // processes
    if isinstance(settings, EndpointCfg) and settings.max_cost is not None:
        changed["max_cost"] = settings.max_cost / processes
    return replace(settings, **changed) if changed else settings
