"""Actor that draws further chunks at each decision of a generative policy, to show what else it might have done."""

from __future__ import annotations

import torch
from torch import Tensor

from robotrl.errors import CapabilityError, check_count
from robotrl.fn.random.keyed_noise import KeyedNoise
from robotrl.rollout.evaluate import PolicyActor
from robotrl.spec import Arrays, HasKeyedNoise, HasOverlap, Mode, Policy

MOST = 256
"""Largest number of candidates."""


class CandidateActor(PolicyActor):
    """A `PolicyActor` whose decisions come with candidates: samples from the same observation with other noise.

    Its actions are those of `PolicyActor`, bit for bit.

    Args:
        policy: a policy that samples from keyed noise.
        num_envs: N.
        device: device of the sim.
        seed: seed of the policy's noise, 0 or more.
        count: M, candidates besides the executed chunk, 1 to 256.

    Raises:
        CapabilityError: the policy is deterministic, or its noise has no key.
        ConfigError: a count out of range.
    """

    def __init__(self, policy: Policy, num_envs: int, device: torch.device, seed: int, count: int) -> None:
        check_count("candidates", count, 1, MOST)
        super().__init__(policy, num_envs, device, None, seed)
        mode: Mode = self._mode
        if mode == "mean" or not isinstance(policy, HasKeyedNoise):
            raise CapabilityError(
                f"policy {type(policy).__name__} gives one plan, from no noise: candidates need a policy that samples,"
                " such as FlowPolicy or DiffusionPolicy"
            )
        if isinstance(policy, HasOverlap):
            raise CapabilityError(
                f"policy {type(policy).__name__} continues its last chunk: candidates need the policy that it guides"
            )
        self._count = count
        self._others = torch.zeros((num_envs, count, *self._cursor.chunk.shape[1:]), device=device)

    def candidates(self, env: int) -> Tensor:
        """(M, h, A) see `robotrl.spec.drive_trace.HasCandidates`."""
        return self._others[env, :, int(self._cursor.position[env]) - 1 :]

    def _decide(self, obs: Arrays, envs: Tensor, start: Tensor) -> Tensor:
        chunk = super()._decide(obs, envs, start)
        starts, decisions = start.cpu().numpy(), self._decision[envs].cpu().numpy()
        rows = {key: value[envs] for key, value in obs.items()}
        for number in range(self._count):
            # streams of their own: a seed of a user is below 2^64
            noise = KeyedNoise(self._seed + ((number + 1) << 64), starts, decisions, 0)
            with torch.no_grad():
                self._others[envs, number] = self._policy.act(rows, None, noise, self._mode).chunk
        return chunk
