"""Ensemble of reward networks that is trained on preferences.

Each member gives a number for each step, from the observation before it and its action: a reward, or a regret, which is
how much worse than the best the action was (Knox et al. 2022). Minus the regret is an advantage, and an advantage is a
reward with the same best policy (Knox et al. 2023, arXiv 2310.02456), so that any learner can use either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from robotrl.errors import ConfigError
from robotrl.fn.preferences import preference_probability, segment_score, step_regret
from robotrl.rewards.network import ImageRewardNet, RewardNetCfg
from robotrl.rewards.preferences.segments import Segments
from robotrl.spec import Arrays, Spec
from robotrl.transforms import TransformGroup
from robotrl.utils.batched import in_parts

Form = Literal["return", "regret"]
FORMS: tuple[Form, ...] = ("return", "regret")
TAKEN = "executed_action"
"""Name of the action among the arrays that the networks read."""
AT_ONCE = 4096
"""Steps per batch of the ensemble outside of training."""


class RewardEnsemble(nn.Module):
    """E networks on the same observations.

    Args:
        members: 1 or more.
        form: "return": a network's output is the reward of a step; "regret": its softplus is the regret of a step.
    """

    def __init__(self, members: Sequence[ImageRewardNet], form: Form) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.form: Form = form

    @classmethod
    def create(
        cls,
        observation_spec: Mapping[str, Spec],
        action_spec: Spec | None,
        transforms: TransformGroup,
        cfg: RewardNetCfg,
        members: int,
        form: Form,
    ) -> RewardEnsemble:
        """Make an ensemble with fresh weights, from torch's global random numbers.

        Args:
            observation_spec: observations that it reads.
            action_spec: the sim's action; None: it does not read the action.
            transforms: normalization of observations and action.
            cfg: sizes of each network.
            members: E.
            form: see `RewardEnsemble`.

        Raises:
            ConfigError: an observation has the name that is taken for the action.
        """
        if TAKEN in observation_spec:
            raise ConfigError(f"observation {TAKEN!r} has the name of the action here: expected another one")
        specs = {**observation_spec, **({} if action_spec is None else {TAKEN: action_spec})}
        return cls([ImageRewardNet(specs, transforms, cfg) for _ in range(members)], form)

    @property
    def first(self) -> ImageRewardNet:
        """The first member; all have the same settings."""
        member = self.members[0]
        assert isinstance(member, ImageRewardNet)
        return member

    @property
    def observation_spec(self) -> dict[str, Spec]:
        """Specs of the observations that it reads."""
        return {key: spec for key, spec in self.first.observation_spec.items() if key != TAKEN}

    def inputs(self, obs: Arrays, action: Tensor) -> Arrays:
        """Arrays (B, ...) that the networks read."""
        given = {key: obs[key] for key in self.observation_spec}
        return {**given, TAKEN: action} if TAKEN in self.first.observation_spec else given

    def terms(self, inputs: Arrays) -> Tensor:
        """Rewards (B, E) of steps by each member: its output, or minus its regret."""
        outputs = torch.stack([member(inputs) for member in self.members], dim=1)
        return outputs if self.form == "return" else -step_regret(outputs)

    def scores(self, inputs: Arrays, valid: Tensor) -> Tensor:
        """Scores (M, E) of segments, by which they are compared.

        Args:
            inputs: (M, L, ...) each.
            valid: (M, L) bool.
        """
        count, length = valid.shape
        terms = self.terms({key: x.flatten(0, 1) for key, x in inputs.items()})
        return segment_score(terms.view(count, length, -1).transpose(1, 2), valid[:, None, :])

    @torch.no_grad()
    def step_rewards(self, obs: Arrays, action: Tensor) -> Tensor:
        """Rewards (B, E) of steps, in chunks of rows."""
        return in_parts(self.terms, self.inputs(obs, action), AT_ONCE)

    @torch.no_grad()
    def segment_scores(self, segments: Segments) -> Tensor:
        """Scores (M, E) of segments, in chunks of rows."""
        rows = max(1, AT_ONCE // segments.valid.shape[1])
        arrays = {**self.inputs(segments.obs, segments.action), "valid": segments.valid}

        def compute(some: Arrays) -> Tensor:
            return self.scores({key: x for key, x in some.items() if key != "valid"}, some["valid"])

        return in_parts(compute, arrays, rows)


class HeldOutAnswers(NamedTuple):
    """Scores of an ensemble on answers that it was not trained on. NaN where there is none."""

    answers: int
    agreement: float
    """Fraction of the answers whose segment it prefers, too."""
    error: float
    """Expected calibration error of its probabilities, each half of the answers with the temperature of the other."""
    temperature: float
    """Temperature of the probabilities, found on all held-out answers."""


class LearnedPreferences(NamedTuple):
    """An ensemble with what makes rewards of its outputs."""

    ensemble: RewardEnsemble
    scale: float
    """Standard deviation of the mean reward over the steps of the segments that it was trained on; rewards are divided
    by it."""
    held_out: HeldOutAnswers
    about: dict[str, str | int | float]
    """Origin: dataset, labeler, answers, updates, seed."""
    identity: str
    """Hexadecimal SHA-256 of weights and settings."""

    def rewards(self, obs: Arrays, action: Tensor, pessimism: float) -> Tensor:
        """Rewards (B,) of steps: the normalized mean over the ensemble, less `pessimism` standard deviations.

        The temperature of the held-out answers is in neither: it would divide mean and deviation alike.
        """
        found = self.ensemble.step_rewards(obs, action) / self.scale
        if pessimism == 0:
            return found.mean(1)
        return found.mean(1) - pessimism * found.std(1, correction=0)

    def disagreement(self, first: Segments, second: Segments) -> Tensor:
        """Standard deviation (M,) over the members of the calibrated probability that the second segment is better."""
        logits = self.ensemble.segment_scores(second) - self.ensemble.segment_scores(first)
        return preference_probability(logits / self.held_out.temperature).std(1, correction=0)
