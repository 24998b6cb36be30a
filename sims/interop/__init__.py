"""Adapters from `VecSim` to other libraries: Gymnasium, Stable-Baselines3, rsl_rl, skrl and TorchRL.

Importing this module registers every robotrl sim with Gymnasium as `robotrl/NAME-v0`.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from robotrl.sims.interop.registration import gymnasium_id, register_all
from robotrl.sims.interop.views import GymnasiumEnv, GymnasiumVectorEnv, space_of

if TYPE_CHECKING:
    from robotrl.sims.interop.rsl_rl import RslRlVecEnv
    from robotrl.sims.interop.sb3 import SimVecEnv
    from robotrl.sims.interop.skrl import SkrlEnv
    from robotrl.sims.interop.torchrl import TorchRlEnv

__all__ = [
    "GymnasiumEnv",
    "GymnasiumVectorEnv",
    "as_rsl_rl",
    "as_sb3",
    "as_skrl",
    "as_torchrl",
    "gymnasium_id",
    "register_all",
    "space_of",
]

register_all()


def as_sb3(sim: Any, **options: Any) -> SimVecEnv:
    """Wrap a sim as a `VecEnv` of Stable-Baselines3; see `robotrl.sims.interop.sb3.SimVecEnv` for the options.

    Raises:
        ConfigError: Stable-Baselines3 is not installed.
        CapabilityError: the sim does not fill `final_obs`.
    """
    with _needs("as_sb3", "sb3"):
        from robotrl.sims.interop.sb3 import SimVecEnv
    return SimVecEnv(sim, **options)


def as_rsl_rl(sim: Any, **options: Any) -> RslRlVecEnv:
    """Wrap a sim as a `VecEnv` of rsl_rl; see `robotrl.sims.interop.rsl_rl.RslRlVecEnv` for the options.

    Raises:
        ConfigError: rsl_rl is not installed, or no time limit is known.
        CapabilityError: actions are choices.
    """
    with _needs("as_rsl_rl", "interop"):
        from robotrl.sims.interop.rsl_rl import RslRlVecEnv
    return RslRlVecEnv(sim, **options)


def as_skrl(sim: Any, **options: Any) -> SkrlEnv:
    """Wrap a sim as an environment of skrl; see `robotrl.sims.interop.skrl.SkrlEnv` for the options.

    Raises:
        ConfigError: skrl is not installed.
    """
    with _needs("as_skrl", "interop"):
        from robotrl.sims.interop.skrl import SkrlEnv
    return SkrlEnv(sim, **options)


def as_torchrl(sim: Any, **options: Any) -> TorchRlEnv:
    """Wrap a sim as an `EnvBase` of TorchRL; see `robotrl.sims.interop.torchrl.TorchRlEnv` for the options.

    Raises:
        ConfigError: TorchRL is not installed, or an observation has a reserved name.
        CapabilityError: the sim does not fill `final_obs`.
    """
    with _needs("as_torchrl", "interop"):
        from robotrl.sims.interop.torchrl import TorchRlEnv
    return TorchRlEnv(sim, **options)


@contextmanager
def _needs(call: str, extra: str) -> Generator[None]:
    """Turn a missing package into one line with the command that installs it."""
    from robotrl.errors import ConfigError
    from robotrl.utils.installation import install_line

    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(f"{call} needs the module {error.name!r}: {install_line(extra)}") from error
