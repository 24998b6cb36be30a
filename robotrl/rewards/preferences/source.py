"""Reward source of learned preferences."""

from __future__ import annotations

from collections.abc import Mapping

from robotrl.errors import ConfigError, unknown
from robotrl.rewards.network import check_shown
from robotrl.rewards.preferences.ensemble import TAKEN, LearnedPreferences
from robotrl.rewards.preferences.online import OnlinePreferences
from robotrl.rewards.preferences.preferences import NAME, PreferencesCfg
from robotrl.rewards.preferences.stored import load_preferences
from robotrl.rewards.source import Score, SimTransition, StatelessReward
from robotrl.spec import Spec, VecSim, is_picture, visible


class FixedPreferences(StatelessReward):
    """Reward of preferences that were learned before; a `RewardSource`.

    Args:
        learned: the preferences.
        sim: the sim whose observations it will get.
        pessimism: standard deviations of the ensemble that are taken off.
        offset: added to each reward.

    Raises:
        ConfigError: the sim shows other observations than they were trained on, or has another action.
    """

    def __init__(self, learned: LearnedPreferences, sim: VecSim, pessimism: float, offset: float) -> None:
        ensemble = learned.ensemble
        check_shown("preferences", ensemble.observation_spec, sim)
        action = ensemble.first.observation_spec.get(TAKEN)
        if action is not None and action.shape != sim.action_spec.shape:
            raise ConfigError(
                f"the preferences were trained on actions of shape {action.shape}: this sim has {sim.action_spec.shape}"
            )
        ensemble.to(sim.device)
        self._learned, self._pessimism, self._offset = learned, pessimism, offset
        self.obs_keys = tuple(ensemble.observation_spec)
        self.identity = f"{learned.identity}:{pessimism!r}:{offset!r}"

    def score(self, transition: SimTransition) -> Score:
        """See `RewardSource.score`."""
        action = transition.action.flatten(1)
        return Score.of_now(self._learned.rewards(transition.obs, action, self._pessimism) + self._offset)


def build_source(cfg: PreferencesCfg, sim: VecSim) -> FixedPreferences | OnlinePreferences:
    """The source of these settings; see `PreferencesCfg.build`."""
    cfg.check()
    if cfg.model is not None:
        return FixedPreferences(load_preferences(cfg.model), sim, cfg.pessimism, cfg.offset)
    specs = visible(sim)
    for key in cfg.keys:
        if key not in specs:
            raise unknown(f"{NAME}.keys", key, specs)
    return OnlinePreferences(cfg, {key: specs[key] for key in cfg.keys or default_keys(specs)}, sim)


def default_keys(specs: Mapping[str, Spec]) -> tuple[str, ...]:
    """Observations that a reward reads by default: all but pictures, or all where there are only pictures."""
    return tuple(key for key, spec in specs.items() if not is_picture(spec)) or tuple(specs)
