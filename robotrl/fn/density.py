"""Closed-form densities over normalized chunks, with independent elements (`robotrl.spec.Density`)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from robotrl.errors import NumericsError
from robotrl.fn.chain import normal_log_prob
from robotrl.fn.random.noise import Noise, choose, randn, standard_gamma

NORMAL_ENTROPY = 0.5 * math.log(2 * math.pi * math.e)
"""Entropy of a standard normal distribution, nats."""
EDGE = 1e-6
"""Actions are clipped this far from -1 and 1, where a Beta density may be 0 and its logarithm infinite."""


class NormalDensity(NamedTuple):
    """Normal distributions with standard deviations that do not depend on the observation."""

    mean: Tensor
    """(B, H, A) means."""
    log_std: Tensor
    """(H, A) logarithm of the standard deviation."""

    @property
    def std(self) -> Tensor:
        """(1, H, A) standard deviations."""
        return self.log_std.exp()[None]

    def sample(self, generator: Noise | None) -> Tensor:
        """Sample (B, H, A), once per row."""
        noise = randn(self.mean.shape, generator, self.mean.device)
        return self.mean + self.log_std.exp().expand_as(self.mean) * noise

    def log_prob(self, normalized_action: Tensor) -> Tensor:
        """(B, H, A) log-density of `normalized_action` (B, H, A), any real numbers."""
        return normal_log_prob(normalized_action, self.mean, self.log_std.exp().expand_as(self.mean))

    def entropy(self) -> Tensor:
        """Entropies (1, H, A) in nats."""
        return (self.log_std + NORMAL_ENTROPY)[None]


class BetaDensity(NamedTuple):
    """Beta distributions stretched from [0, 1] to [-1, 1]."""

    alpha: Tensor
    """(B, H, A) above 0: larger values shift the mass towards 1."""
    beta: Tensor
    """(B, H, A) above 0: larger values shift the mass towards -1."""

    @property
    def mean(self) -> Tensor:
        """(B, H, A) between -1 and 1: 2 alpha / (alpha + beta) - 1."""
        return (self.alpha - self.beta) / (self.alpha + self.beta)

    @property
    def std(self) -> Tensor:
        """(B, H, A) standard deviations."""
        total = self.alpha + self.beta
        return 2 * (self.alpha * self.beta / (total + 1)).sqrt() / total

    def sample(self, generator: Noise | None) -> Tensor:
        """Sample (B, H, A), once per row: x / (x + y) of two Gamma variates x and y has a Beta distribution."""
        x, y = (standard_gamma(shape, generator) for shape in (self.alpha, self.beta))
        return ((x - y) / (x + y)).clamp(-1 + EDGE, 1 - EDGE)

    def log_prob(self, normalized_action: Tensor) -> Tensor:
        """Log-densities (B, H, A) of `normalized_action` (B, H, A) between -1 and 1."""
        inside = normalized_action.clamp(-1 + EDGE, 1 - EDGE)
        up, down = (1 + inside) / 2, (1 - inside) / 2
        # the interval is twice as long as [0, 1], so the density is half as high
        return (self.alpha - 1) * up.log() + (self.beta - 1) * down.log() - self._log_integral() - math.log(2)

    def entropy(self) -> Tensor:
        """Entropies (B, H, A) in nats; the maximum is log 2, that of the uniform distribution."""
        total = self.alpha + self.beta
        slopes = (self.alpha - 1) * self.alpha.digamma() + (self.beta - 1) * self.beta.digamma()
        return self._log_integral() - slopes + (total - 2) * total.digamma() + math.log(2)

    def _log_integral(self) -> Tensor:
        """Logarithm of the Beta function, the normalizer of a density on [0, 1]."""
        return self.alpha.lgamma() + self.beta.lgamma() - (self.alpha + self.beta).lgamma()


class CategoricalDensity(NamedTuple):
    """Categorical distributions over integers 0, 1, ...: each element of an action is the index of a choice.

    Elements may have fewer choices than C; missing choices have probability 0.
    """

    log_probs: Tensor
    """(B, H, A, C) log-probability of each choice; -inf for choices that an element does not have."""

    @classmethod
    def of_scores(cls, scores: Tensor, choices: tuple[int, ...]) -> CategoricalDensity:
        """Build the distributions whose probabilities are the softmax of scores.

        Args:
            scores: (B, H, sum of choices), concatenated over the elements of the action.
            choices: (A) number of choices of each element.
        """
        return cls(padded(scores, choices).log_softmax(dim=-1))

    @property
    def mode(self) -> Tensor:
        """(B, H, A) most likely choice, the first among equals; NaN if a probability is NaN."""
        # argmax of NaN is a finite index: it must not become a choice
        best = self.log_probs.argmax(dim=-1).to(self.log_probs.dtype)
        return torch.where(self.log_probs.isnan().any(dim=-1), torch.nan, best)

    @property
    def std(self) -> Tensor:
        """(B, H, A) standard deviation of the choice's index."""
        share = self.log_probs.exp()
        number = torch.arange(share.shape[-1], dtype=share.dtype, device=share.device)
        mean = (share * number).sum(dim=-1, keepdim=True)
        return (share * (number - mean) ** 2).sum(dim=-1).sqrt()

    def sample(self, generator: Noise | None) -> Tensor:
        """Sample (B, H, A), once per row.

        Raises:
            NumericsError: a probability is not finite.
        """
        share = self.log_probs.exp()
        if not torch.isfinite(share).all():
            raise NumericsError("the policy's probabilities are not finite: expected finite scores of its choices")
        return choose(share.flatten(0, -2), generator).view(share.shape[:-1]).to(share.dtype)

    def log_prob(self, normalized_action: Tensor) -> Tensor:
        """Log-probabilities (B, H, A) of `normalized_action` (B, H, A); -inf for numbers that are no choice."""
        number = normalized_action.long().clamp(0, self.log_probs.shape[-1] - 1)
        found = self.log_probs.gather(-1, number.unsqueeze(-1)).squeeze(-1)
        return torch.where(number == normalized_action, found, -math.inf)

    def entropy(self) -> Tensor:
        """Entropies (B, H, A) in nats; the maximum is the log of the number of choices."""
        # 0 times log 0 is 0 here
        absent = self.log_probs == -math.inf
        return -(self.log_probs.exp() * self.log_probs.masked_fill(absent, 0.0)).sum(dim=-1)


def padded(scores: Tensor, choices: tuple[int, ...]) -> Tensor:
    """Reshape scores (..., sum of choices) to (..., A, C), with C the most choices of an element; -inf as padding."""
    most = max(choices)
    if all(count == most for count in choices):
        return scores.unflatten(-1, (len(choices), most))
    parts = scores.split(list(choices), dim=-1)
    return torch.stack([torch.nn.functional.pad(x, (0, most - x.shape[-1]), value=-math.inf) for x in parts], dim=-2)
