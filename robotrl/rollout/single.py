"""Episodes of a single env, one at a time, which the actor may end before the sim does."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from robotrl.errors import ConfigError
from robotrl.rollout.evaluate import Episode, Turn
from robotrl.rollout.finite import check_finite
from robotrl.spec import Arrays, HasStateIds, Step, VecSim, lost


class EndingActor(Protocol):
    """An actor that may end an episode, such as a person."""

    def act(self, obs: Arrays, turn: Turn) -> Tensor | None:
        """Actions (1, A); None ends the episode before this step."""
        ...


class SingleRun(NamedTuple):
    """One episode of a single env."""

    episode: Episode
    """The recorded episode; of length 0 if the actor ended it before its first step."""
    ended: bool
    """True if the sim ended it, False if the actor did."""


def run_single(actor: EndingActor, sim: VecSim, start: int) -> SingleRun:
    """Run and record one episode.

    Args:
        actor: the actor.
        sim: a sim of one env.
        start: start id; -1 takes the sim's own next start.

    Raises:
        ConfigError: the sim has several envs.
        NumericsError: the sim gave a number that is not finite.
    """
    if sim.num_envs != 1:
        raise ConfigError(f"num_envs is {sim.num_envs}: expected 1 to run single episodes")
    if start >= 0 and isinstance(sim, HasStateIds):
        sim.queue_states([start])
    obs = sim.reset()
    tape: list[Arrays] = []
    actions: list[Tensor] = []
    rewards: list[float] = []
    step: Step | None = None
    ended = False
    while not ended:
        turn = Turn(torch.tensor([not tape], device=sim.device), torch.tensor([start], device=sim.device))
        action = actor.act(obs, turn)
        if action is None:
            break
        tape.append({key: value[0].cpu().clone() for key, value in obs.items()})
        actions.append(action[0].cpu().clone())
        step = sim.step(action)
        check_finite(step, len(rewards))
        if bool(lost(step)[0]):
            # its worker died: the episode is run again from its start
            return run_single(actor, sim, start)
        rewards.append(float(step.reward[0]))
        ended = bool(step.terminated[0] | step.truncated[0])
        obs = step.obs
    last = step.final_obs if step is not None and ended else obs
    tape.append({key: value[0].cpu().clone() for key, value in last.items()})
    return SingleRun(
        Episode(
            state_id=start,
            success=step is not None and bool(step.info["success"][0]),
            terminated=step is not None and bool(step.terminated[0]),
            length=len(actions),
            ret=sum(rewards),
            mode=-1,
            obs={key: np.stack([frame[key].numpy() for frame in tape]) for key in last},
            actions=torch.stack(actions).numpy() if actions else np.zeros((0, *sim.action_spec.shape), np.float32),
            rewards=np.array(rewards, np.float32),
        ),
        ended,
    )
