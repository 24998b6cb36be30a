"""Adapters from `VecSim` to Gymnasium (vector and single environments) and Stable-Baselines3 (`VecEnv`).

Importing this module registers every robotrl sim with Gymnasium as `robotrl/NAME-v0`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from robotrl.sims.interop.registration import gymnasium_id, register_all
from robotrl.sims.interop.views import GymnasiumEnv, GymnasiumVectorEnv, space_of

if TYPE_CHECKING:
    from robotrl.sims.interop.sb3 import SimVecEnv

__all__ = ["GymnasiumEnv", "GymnasiumVectorEnv", "as_sb3", "gymnasium_id", "register_all", "space_of"]

register_all()


def as_sb3(sim: Any, **options: Any) -> SimVecEnv:
    """Wrap a sim as a `VecEnv` of Stable-Baselines3; see `robotrl.sims.interop.sb3.SimVecEnv` for the options.

    Raises:
        ConfigError: Stable-Baselines3 is not installed.
        CapabilityError: the sim does not fill `final_obs`.
    """
    from robotrl.errors import ConfigError
    from robotrl.utils.installation import install_line

    try:
        from robotrl.sims.interop.sb3 import SimVecEnv
    except ModuleNotFoundError as error:
        raise ConfigError(f"as_sb3 needs the module {error.name!r}: {install_line('sb3')}") from error
    return SimVecEnv(sim, **options)
