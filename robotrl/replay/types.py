"""Records written to and read from a replay buffer."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

from torch import Tensor

from robotrl.spec import Arrays

Source = Literal["demo", "rollout", "human", "model"]
"""Source of an action: a demonstration, the policy in training, a human correction, a learned model."""
SOURCES: tuple[Source, ...] = get_args(Source)
"""Sources in the order of their stored indices."""
HUMAN = SOURCES.index("human")


class StepRecord(NamedTuple):
    """One env step of N streams."""

    obs: Arrays
    """(N, ...) each: the observation before the step."""
    action: Tensor
    """(N, A) executed, in the sim's units."""
    reward: Tensor
    """(N,)."""
    terminated: Tensor
    """(N,) bool."""
    truncated: Tensor
    """(N,) bool."""
    final_obs: Arrays
    """(n, ...) each: the last observation of the n episodes that ended with this step, in the order of `final_ids`."""
    final_ids: Tensor
    """(n,) int64: rows of this record whose episode ended."""
    source: Source | Tensor = "rollout"
    """One source for all rows, or (N,) indices into `SOURCES`."""
    decision: Tensor | None = None
    """(N,) bool: whether a chunk begins at this step; None: at every step."""
    extras: Arrays = {}  # noqa: RUF012 - never written to
    """(N, ...) float32 each: the extras declared by the buffer; NaN if left out."""
    log_prob: Tensor | None = None
    """(N,) log-density of the action under the behavior policy; None: unknown, stored as NaN."""
    cost: Tensor | None = None
    """(N,) cost of the step in a safety constraint; None: 0."""
    missing: Tensor | None = None
    """(N,) uint8 number of reward sources that have no score for the step, see `robotrl.spec.late_rewards`; None: 0."""


class Transitions(NamedTuple):
    """A batch of chunks: B start steps and their outcome H steps later; a row ends early with its episode."""

    obs: Arrays
    """(B, ...) observation at the start."""
    chunk: Tensor
    """(B, H, A) executed actions, in the sim's units; the last valid one is repeated where not valid."""
    valid: Tensor
    """(B, H) bool: whether the step was taken; False past the episode's end."""
    reward: Tensor
    """(B,) sum of gamma**k times the reward of step k, over valid steps."""
    discount: Tensor
    """(B,) gamma**steps, the factor of the value of `next_obs`; 0 where terminated."""
    next_obs: Arrays
    """(B, ...) observation after the last valid step: the episode's final one where it ended."""
    terminated: Tensor
    """(B,) bool: the task ended the episode within the chunk."""
    truncated: Tensor
    """(B,) bool: a time limit cut the episode; if both are set, `discount` is 0."""
    steps: Tensor
    """(B,) int64, number of valid steps, 1 to H."""
    source: Tensor
    """(B,) uint8: source of the first action, an index into `SOURCES`."""
    extras: Arrays
    """(B, ...) float32 each, as stored at the start step; (B, H, ...) of those that belong to each step, of which the
    last valid one is repeated."""
    starts: Tensor
    """(B,) int64: indices of the start steps, for `set_reward` and `update_priorities`; never reused."""
    weight: Tensor
    """(B,) float32: importance weight of the row in a loss; 1 without prioritized sampling."""
    cost: Tensor
    """(B,) sum of gamma**k times the cost of step k."""
    log_prob: Tensor
    """(B, H) log-density of each action under the behavior policy; NaN when unknown or not valid."""
