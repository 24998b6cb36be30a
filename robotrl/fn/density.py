"""Densities in closed form over normalised chunks, each element for itself (`robotrl.spec.Density`)."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from robotrl.errors import NumericsError
from robotrl.fn.chain import normal_log_prob
from robotrl.fn.random.noise import Noise, choose, randn, standard_gamma

NORMAL_ENTROPY = 0.5 * math.log(2 * math.pi * math.e)
"""Of a standard normal distribution, nats."""
EDGE = 1e-6
"""Actions closer than this to -1 or 1 are moved off them, where a Beta density may be 0 and its logarithm infinite."""


class NormalDensity(NamedTuple):
    """Normal distributions whose deviations do not depend on the observation."""

    mean: Tensor
    """(B, H, A)."""
    log_std: Tensor
    """(H, A) logarithm of the standard deviation."""

    @property
    def std(self) -> Tensor:
        """(1, H, A)."""
        return self.log_std.exp()[None]

    def sample(self, generator: Noise | None) -> Tensor:
        """(B, H, A), one draw for each row."""
        noise = randn(self.mean.shape, generator, self.mean.device)
        return self.mean + self.log_std.exp().expand_as(self.mean) * noise

    def log_prob(self, raw: Tensor) -> Tensor:
        """(B, H, A) log-density of `raw` (B, H, A), any real numbers."""
        return normal_log_prob(raw, self.mean, self.log_std.exp().expand_as(self.mean))

    def entropy(self) -> Tensor:
        """(1, H, A) in nats."""
        return (self.log_std + NORMAL_ENTROPY)[None]


class BetaDensity(NamedTuple):
    """Beta distributions stretched from [0, 1] to [-1, 1]."""

    alpha: Tensor
    """(B, H, A) above 0: what draws towards 1."""
    beta: Tensor
    """(B, H, A) above 0: what draws towards -1."""

    @property
    def mean(self) -> Tensor:
        """(B, H, A) within -1 and 1: twice alpha / (alpha + beta), less 1."""
        return (self.alpha - self.beta) / (self.alpha + self.beta)

    @property
    def std(self) -> Tensor:
        """(B, H, A)."""
        total = self.alpha + self.beta
        return 2 * (self.alpha * self.beta / (total + 1)).sqrt() / total

    def sample(self, generator: Noise | None) -> Tensor:
        """(B, H, A), one draw for each row: x / (x + y) of two Gamma variates x and y has a Beta distribution."""
        x, y = (standard_gamma(shape, generator) for shape in (self.alpha, self.beta))
        return ((x - y) / (x + y)).clamp(-1 + EDGE, 1 - EDGE)

    def log_prob(self, raw: Tensor) -> Tensor:
        """(B, H, A) log-density of `raw` (B, H, A) within -1 and 1."""
        inside = raw.clamp(-1 + EDGE, 1 - EDGE)
        up, down = (1 + inside) / 2, (1 - inside) / 2
        # the interval is twice as long as [0, 1], the density half as high
        return (self.alpha - 1) * up.log() + (self.beta - 1) * down.log() - self._log_integral() - math.log(2)

    def entropy(self) -> Tensor:
        """(B, H, A) in nats; log 2, that of the uniform distribution, is the largest."""
        total = self.alpha + self.beta
        slopes = (self.alpha - 1) * self.alpha.digamma() + (self.beta - 1) * self.beta.digamma()
        return self._log_integral() - slopes + (total - 2) * total.digamma() + math.log(2)

    def _log_integral(self) -> Tensor:
        """Logarithm of the Beta function, by which a density on [0, 1] is divided."""
        return self.alpha.lgamma() + self.beta.lgamma() - (self.alpha + self.beta).lgamma()


class CategoricalDensity(NamedTuple):
    """Categorical distributions over whole numbers 0, 1, ...: an element is the number of what was chosen.

    Elements may have fewer choices than C; what an element does not have is of probability 0.
    """

    log_probs: Tensor
    """(B, H, A, C) logarithm of the probability of each choice; -inf for those that an element does not have."""

    @classmethod
    def of_scores(cls, scores: Tensor, choices: tuple[int, ...]) -> CategoricalDensity:
        """The distributions whose probabilities are the softmax of scores.

        Args:
            scores: (B, H, sum of choices), those of each element of the action side by side.
            choices: (A) how many each element has.
        """
        return cls(padded(scores, choices).log_softmax(dim=-1))

    @property
    def mode(self) -> Tensor:
        """(B, H, A) the likeliest choice, the first of equals; NaN where a probability is no number."""
        # an index is finite whatever it was found among: what is no number must not become a choice
        best = self.log_probs.argmax(dim=-1).to(self.log_probs.dtype)
        return torch.where(self.log_probs.isnan().any(dim=-1), torch.nan, best)

    @property
    def std(self) -> Tensor:
        """(B, H, A) of the number of the choice."""
        share = self.log_probs.exp()
        number = torch.arange(share.shape[-1], dtype=share.dtype, device=share.device)
        mean = (share * number).sum(dim=-1, keepdim=True)
        return (share * (number - mean) ** 2).sum(dim=-1).sqrt()

    def sample(self, generator: Noise | None) -> Tensor:
        """(B, H, A), one draw for each row.

        Raises:
            NumericsError: a probability is no number.
        """
        share = self.log_probs.exp()
        if not torch.isfinite(share).all():
            raise NumericsError("the policy's probabilities are not finite: expected finite scores of its choices")
        return choose(share.flatten(0, -2), generator).view(share.shape[:-1]).to(share.dtype)

    def log_prob(self, raw: Tensor) -> Tensor:
        """(B, H, A) log-probability of `raw` (B, H, A); -inf for what is no choice."""
        number = raw.long().clamp(0, self.log_probs.shape[-1] - 1)
        found = self.log_probs.gather(-1, number.unsqueeze(-1)).squeeze(-1)
        return torch.where(number == raw, found, -math.inf)

    def entropy(self) -> Tensor:
        """(B, H, A) in nats; the logarithm of the number of choices, that of the uniform distribution, is largest."""
        # 0 times the logarithm of 0 is 0 here
        absent = self.log_probs == -math.inf
        return -(self.log_probs.exp() * self.log_probs.masked_fill(absent, 0.0)).sum(dim=-1)


def padded(scores: Tensor, choices: tuple[int, ...]) -> Tensor:
    """Scores (..., sum of choices) as (..., A, C), C being the most choices of an element; -inf where it has fewer."""
    most = max(choices)
    if all(count == most for count in choices):
        return scores.unflatten(-1, (len(choices), most))
    parts = scores.split(list(choices), dim=-1)
    return torch.stack([torch.nn.functional.pad(x, (0, most - x.shape[-1]), value=-math.inf) for x in parts], dim=-2)
