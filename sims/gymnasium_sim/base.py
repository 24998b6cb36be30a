"""Base class of the Gymnasium adapters: specs, action conversion, checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import NumericsError
from robotrl.sims.actions import ActionBounds
from robotrl.sims.gymnasium_sim.action_codec import ActionCodec
from robotrl.sims.gymnasium_sim.faults import EnvironmentFault
from robotrl.sims.gymnasium_sim.spaces import Leaf, pick
from robotrl.sims.gymnasium_sim.success import Flags, Judge
from robotrl.sims.gymnasium_sim.vector import AnyVectorEnv
from robotrl.spec import Spec, Step, SuccessRule
from robotrl.utils.devices import CPU

if TYPE_CHECKING:
    import gymnasium

RewardSource = Literal["env", "success"]
REWARDS: tuple[RewardSource, ...] = ("env", "success")
Obs = dict[str, NDArray[Any]]


class Parts(NamedTuple):
    """Constructor arguments shared by all adapters."""

    env_id: str
    env: AnyVectorEnv
    leaves: tuple[Leaf, ...]
    codec: ActionCodec
    control_dt_s: float | None
    limit_steps: int | None
    """Steps after which the sim truncates an episode; None if the sim does not truncate."""
    judge: Judge
    reward: RewardSource
    """Reward: "env" is the environment's own, "success" is 1 at success and 0 otherwise."""
    end_at_success: bool
    """End an episode (terminated) at its first success."""
    reasons: Mapping[str, str]
    """Explanation for each missing capability, by capability name."""
    solved_return: float | None = None
    """Mean return from which the environment counts as solved (registered `reward_threshold`), if known."""


class GymnasiumSim:
    """Base class of the adapters: specs, action conversion, checks. Arrays of a `Step` are new in each step.

    Args:
        parts: see `Parts`.
        num_envs: number of envs N.
        seed: seed of the random training start ids.
    """

    device = CPU
    buffers_are_reused = False
    has_final_obs: Literal[True] = True

    def __init__(self, parts: Parts, num_envs: int, seed: int) -> None:
        self.env_id = parts.env_id
        self.env = parts.env
        self.num_envs = num_envs
        self.control_dt_s = parts.control_dt_s
        self.limit_steps = parts.limit_steps
        self.solved_return = parts.solved_return
        self.observation_spec: dict[str, Spec] = {leaf.key: leaf.spec for leaf in parts.leaves}
        self.action_spec: Spec = parts.codec.spec
        self._leaves = parts.leaves
        self._decode = parts.codec.decode
        self.reasons: Mapping[str, str] = parts.reasons
        self._judge, self._reward_source, self._end_at_success = parts.judge, parts.reward, parts.end_at_success
        self._bounds = ActionBounds(self.action_spec, num_envs, f"gym/{parts.env_id}")
        self._seed = seed
        self._steps: NDArray[np.int64] = np.zeros(num_envs, np.int64)

    def as_gymnasium(self) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
        """Wrap the sim as a numpy `gymnasium.vector.VectorEnv` with same-step autoreset."""
        from robotrl.sims.interop import GymnasiumVectorEnv

        return GymnasiumVectorEnv(self)  # pyright: ignore[reportArgumentType]  # its subclasses step

    def elapsed_steps(self) -> Tensor:
        """Steps (N,) int64 of each running episode; see `robotrl.spec.HasTimeLimit`."""
        return torch.from_numpy(self._steps.copy())

    def close(self) -> None:
        """Close the environments and their processes."""
        self.env.close()

    def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            raise EnvironmentFault(f"gym/{self.env_id}: the process of an environment has died") from error

    def _commands(self, actions: Tensor) -> Any:
        """Actions (N, A), validated, clipped and converted to the environment's action batch."""
        flat: NDArray[np.float32] = actions.detach().cpu().numpy()
        # a copy: environments may keep the array, and the caller may overwrite its tensor
        return self._decode(np.array(self._bounds.checked(flat, self._steps)))

    def _converted(self, observation: Any, rows: NDArray[np.int64] | None = None) -> Obs:
        """Observation batch as named arrays; `rows` are its env ids, None for all envs."""
        out: Obs = {}
        for leaf in self._leaves:
            try:
                out[leaf.key] = leaf.convert(np.asarray(pick(observation, leaf.path)))
            except ValueError as error:
                raise EnvironmentFault(f"gym/{self.env_id}: observation {leaf.key!r}, {error}") from error
            self._finite(out[leaf.key], f"observation {leaf.key!r}", rows, leaf.spec.names)
        return out

    def _finite(
        self, values: NDArray[Any], what: str, rows: NDArray[np.int64] | None = None, names: Sequence[str] = ()
    ) -> None:
        if values.dtype.kind != "f" or np.isfinite(values.sum()):
            return
        bad = np.argwhere(~np.isfinite(values))
        if not len(bad):  # the sum overflowed, the numbers are finite
            return
        place = tuple(int(i) for i in bad[0])
        env = place[0] if rows is None else int(rows[place[0]])
        column = f", {names[place[-1]]!r}," if names else ""
        raise NumericsError(
            f"gym/{self.env_id}: env {env}, episode step {self._steps[env]}: {what}{column} is {values[place]}:"
            " expected a finite number"
        )

    @property
    def success_rule(self) -> SuccessRule:
        """Rule by which episodes count as successes."""
        return self._judge.rule()

    def _rewarded(self, reward: NDArray[np.float32], success: Flags) -> NDArray[np.float32]:
        return reward if self._reward_source == "env" else success.astype(np.float32)


def tensors(arrays: Obs) -> dict[str, Tensor]:
    """Convert arrays to tensors that share their memory."""
    return {key: torch.from_numpy(value) for key, value in arrays.items()}


def step_of(
    obs: Obs,
    reward: NDArray[np.float32],
    terminated: Flags,
    truncated: Flags,
    final: Obs,
    final_ids: NDArray[np.int64],
    success: Flags,
    state_id: NDArray[np.int64],
    lost: Flags | None = None,
) -> Step:
    """Build a `Step` from arrays; `lost` marks episodes lost to a crashed process, None if the sim has no such flag."""
    info = {"success": success, "state_id": state_id} | ({} if lost is None else {"lost": lost})
    return Step(
        obs=tensors(obs),
        reward=torch.from_numpy(reward),
        terminated=torch.from_numpy(terminated),
        truncated=torch.from_numpy(truncated),
        final_obs=tensors(final),
        final_ids=torch.from_numpy(final_ids),
        info={key: torch.from_numpy(value) for key, value in info.items()},
    )
