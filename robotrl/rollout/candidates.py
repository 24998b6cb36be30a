"""Actor that draws further chunks at each decision of a generative policy, to show what else it might have done."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from robotrl.errors import CapabilityError, check_count
from robotrl.fn.chain import executed
from robotrl.fn.random.keyed_noise import KeyedNoise
from robotrl.fn.random.noise import randn
from robotrl.rollout.evaluate import PolicyActor
from robotrl.spec import (
    Arrays,
    CarriesMemory,
    HasChain,
    HasDecode,
    HasDeployNoise,
    HasKeyedNoise,
    HasOverlap,
    HasProposals,
    Mode,
    Policy,
)

MOST = 256
"""Largest number of candidates."""


class CandidateActor(PolicyActor):
    """A `PolicyActor` whose decisions come with candidates: samples from the same observation with other noise.

    A policy that is deployed with less noise than it was trained with (`HasDeployNoise`) draws them from all of it, to
    show what it has learned to do besides. One that ranks candidates itself (`HasProposals`) shows those that came
    next, as many as it has. Its actions are those of `PolicyActor`, bit for bit.

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
        if isinstance(policy, CarriesMemory):
            raise CapabilityError(
                f"policy {type(policy).__name__} has a memory, which candidates would lack: expected one without"
            )
        if isinstance(policy, HasOverlap):
            raise CapabilityError(
                f"policy {type(policy).__name__} continues its last chunk: candidates need the policy that it guides"
            )
        proposed = 0
        if isinstance(policy, HasProposals) and policy.noise_shape is not None:
            proposed = policy.noise_shape[0] // policy.horizon
        self._ranked = proposed > 1
        self._count = min(count, proposed - 1) if self._ranked else count
        self._others = torch.zeros((num_envs, self._count, *self._cursor.chunk.shape[1:]), device=device)

    def candidates(self, env: int) -> Tensor:
        """(M, h, A) see `robotrl.spec.drive_trace.HasCandidates`."""
        return self._others[env, :, int(self._cursor.position[env]) - 1 :]

    def _decide(self, obs: Arrays, envs: Tensor, start: Tensor) -> Tensor:
        chunk = super()._decide(obs, envs, start)
        starts, decisions = start.cpu().numpy(), self._decision[envs].cpu().numpy()
        rows = {key: value[envs] for key, value in obs.items()}
        with torch.no_grad():
            if self._ranked:
                self._others[envs] = self._runners_up(rows, KeyedNoise(self._seed, starts, decisions, 0))
                return chunk
            for number in range(self._count):
                # streams of their own: a seed of a user is below 2^64
                noise = KeyedNoise(self._seed + ((number + 1) << 64), starts, decisions, 0)
                self._others[envs, number] = self._sampled(rows, noise)
        return chunk

    def _sampled(self, rows: Arrays, noise: KeyedNoise) -> Tensor:
        """A sample (n, H, A) for each row, from noise of deviation 1."""
        policy: Any = self._policy
        if not (isinstance(policy, HasChain) and isinstance(policy, HasDecode) and isinstance(policy, HasDeployNoise)):
            return self._policy.act(rows, None, noise, self._mode).chunk
        given: Any = policy
        start = randn((len(noise), *given.noise_shape), noise, self._others.device)
        return given.to_actions(executed(given, given.decode(given.encode(rows), start)))

    def _runners_up(self, rows: Arrays, noise: KeyedNoise) -> Tensor:
        """The (n, M, H, A) proposals that were ranked behind the executed one, the best first."""
        policy = self._policy
        found = policy.propose(rows, randn((len(noise), *policy.noise_shape), noise, self._others.device))
        order = found.logits.topk(self._count + 1, dim=1).indices[:, 1:, None, None]
        behind = found.chunks.gather(1, order.expand(-1, -1, *found.chunks.shape[2:]))
        return policy.to_actions(behind.flatten(0, 1)).view(behind.shape)
