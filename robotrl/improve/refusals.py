"""Reasons for no change that lie in the data or in the critic, not in a single log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from robotrl.improve.logged import OwnEpisode
from robotrl.improve.methods.base import HeldOutQuality

LEAST_EPISODES = 20
"""Fewest episodes that are learned from."""
LEAST_OUTCOMES = 3
"""Fewest successes, and fewest failures or takeovers."""
LEAST_AUC, LEAST_RANK = 0.6, 0.2
"""Smallest AUC and rank correlation of a critic's values with outcomes of held-out episodes; chance is 0.5 and 0."""

LEAST_HELD_OUT = 8
"""Fewest held-out episodes that judge a critic."""

RefusalKind = Literal["too few episodes", "all successes", "all failures", "a blind critic"]


class ChangeRefusal(NamedTuple):
    """A reason for no change."""

    kind: RefusalKind
    text: str


def data_refusal(episodes: Sequence[OwnEpisode]) -> ChangeRefusal | None:
    """Reason for which nothing can be learned from episodes; None if there is none."""
    count = len(episodes)
    if count < LEAST_EPISODES:
        return ChangeRefusal("too few episodes", f"{count} episodes: expected {LEAST_EPISODES} or more")
    clean = sum(episode.success and not episode.person.any() for episode in episodes)
    reached = sum(episode.success for episode in episodes)
    if count - clean < LEAST_OUTCOMES:
        text = f"{clean} of {count} episodes are successes of the policy: expected {LEAST_OUTCOMES} failures or more"
        return ChangeRefusal("all successes", f"{text}, for there is nothing to tell apart")
    if reached < LEAST_OUTCOMES:
        text = f"{count - reached} of {count} episodes are failures: expected {LEAST_OUTCOMES} successes or more"
        return ChangeRefusal("all failures", f"{text}; demonstrations or corrections by a person would do")
    return None


def critic_refusal(quality: HeldOutQuality | None) -> ChangeRefusal | None:
    """Reason for which a critic is not trusted; None for one that ranks held-out outcomes, and for no critic."""
    if quality is None:
        return None
    held = f"{quality.episodes} episodes were held out from the critic"
    if quality.episodes < LEAST_HELD_OUT:
        text = f"{held}: expected {LEAST_HELD_OUT} or more to judge it by, so more logs"
        return ChangeRefusal("a blind critic", text)
    if quality.auc is None or quality.rank is None:
        return ChangeRefusal("a blind critic", f"{held}, which all ended alike: expected successes and failures")
    if quality.auc < LEAST_AUC or quality.rank < LEAST_RANK:
        text = f"the critic's values tell held-out outcomes apart with an AUC of {quality.auc:.2f}"
        wanted = f"expected {LEAST_AUC:g} and {LEAST_RANK:g} or more"
        return ChangeRefusal("a blind critic", f"{text} and a rank correlation of {quality.rank:.2f}: {wanted}")
    return None
