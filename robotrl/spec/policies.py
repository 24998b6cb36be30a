"""What a policy must be able to do, and what else it may be able to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

from robotrl.spec.arrays import Spec

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Mode = Literal["sample", "mean"]
Cache = Literal["none", "sight", "context"]
"""What a learner keeps of an observation, where that is frozen: nothing but itself, what the policy's eyes make of its
pictures, or all that the policy makes of it before it acts."""
CACHES: tuple[Cache, ...] = ("none", "sight", "context")


class ActOut(NamedTuple):
    """What a policy's `act` returns."""

    chunk: Tensor
    """(B, H, A) actions in the sim's units."""
    state: Any
    """Recurrence and history to pass to the next call; None for a policy without memory."""


@runtime_checkable
class Policy(Protocol):
    """Maps observations to action chunks. All normalisation lies inside."""

    observation_spec: dict[str, Spec]
    action_spec: Spec
    horizon: int
    """H, the length of an action chunk; all of it is executed."""

    def act(
        self, obs: dict[str, Tensor], state: Any = None, generator: torch.Generator | None = None, mode: Mode = "sample"
    ) -> ActOut:
        """A chunk for each row of `obs` (B, ...)."""
        ...


class RowNoise(Protocol):
    """Noise of which each row of a batch has a stream of its own; see `robotrl.fn.random.keyed_noise.KeyedNoise`."""

    def __len__(self) -> int:
        """B."""
        ...

    def normal(self, shape: Sequence[int]) -> Tensor:
        """The next standard normal numbers (B, *shape) of each row, float32 on the CPU."""
        ...

    def uniform(self, shape: Sequence[int]) -> Tensor:
        """The next uniform numbers (B, *shape) of each row, above 0 and up to 1, float64 on the CPU."""
        ...


@runtime_checkable
class HasKeyedNoise(Protocol):
    """`act` also takes a `RowNoise` in the generator's place, as where it draws with `robotrl.fn.random.noise` alone.

    An evaluation asks a policy without this one row at a time.
    """

    keyed_noise: Literal[True]


@runtime_checkable
class HasLogProb(Protocol):
    """The policy has a closed-form density over chunks."""

    def log_prob(self, obs: dict[str, Tensor], chunk: Tensor) -> Tensor:
        """(B, H, A) log-density of normalised pre-clip actions."""
        ...


class Density(Protocol):
    """Distributions over normalised chunks in closed form, each element for itself; see `robotrl.fn.density`."""

    @property
    def std(self) -> Tensor:
        """(B, H, A) standard deviation; (1, H, A) where it is the same in every row."""
        ...

    def sample(self, generator: torch.Generator | RowNoise | None) -> Tensor:
        """(B, H, A) normalised actions before any clipping, one draw for each row."""
        ...

    def log_prob(self, raw: Tensor) -> Tensor:
        """(B, H, A) log-density of such actions (B, H, A)."""
        ...

    def entropy(self) -> Tensor:
        """(B, H, A) in nats; (1, H, A) where it is the same in every row."""
        ...


@runtime_checkable
class HasDensity(Protocol):
    """The policy hands out its density, which has a closed form and so has its entropy."""

    def encode(self, obs: dict[str, Tensor]) -> Tensor:
        """Context (B, D) from raw observations (normalisation inside)."""
        ...

    def density(self, ctx: Tensor) -> Density:
        """What chunks are drawn from in contexts (B, D)."""
        ...


class Chain(NamedTuple):
    """A sampled denoising chain in normalised action space."""

    x: Tensor
    """(B, K+1, H, A): x[:, 0] is the initial noise, x[:, K] the action, each before any clipping."""
    log_prob: Tensor
    """(B, K, H, A) log-density of each transition under the kernel that drew it; zeros for a deterministic one."""


@runtime_checkable
class HasChain(Protocol):
    """A generative policy: an encoder and a velocity field; t = 0 is noise, t = 1 is the action."""

    horizon: int
    action_spec: Spec
    times: tuple[float, ...]
    """K+1 numbers that rise from 0 to 1: the grid on which the chain is run, learned and deployed."""
    context_width: int
    """The first so many numbers of a context are what critics and noise networks read; a policy may keep more behind
    them for its own use, as a vision-language-action policy keeps the keys and values of what it saw."""

    @property
    def noise_shape(self) -> tuple[int, int] | None:
        """(H, A) of the chain's points. A pretrained policy's may be longer and wider than what is executed."""
        ...

    @property
    def denoising_steps(self) -> int:
        """K."""
        ...

    def encode(self, obs: dict[str, Tensor]) -> Tensor:
        """Context (B, D) from raw observations (normalisation inside)."""
        ...

    def velocity(self, ctx: Tensor, x: Tensor, t: Tensor, dt: Tensor) -> Tensor:
        """dx/dt (B, H, A) at x (B, H, A), time t (B,), for a step of length dt (B,)."""
        ...


@runtime_checkable
class HasDecode(Protocol):
    """Noise in, chunk out, deterministically."""

    def decode(self, ctx: Tensor, noise: Tensor) -> Tensor:
        """(B, H, A) normalised chunk from noise (B, H, A)."""
        ...


@runtime_checkable
class HasTokens(Protocol):
    """A policy that says its chunk as tokens: each element of an action is one of `bins` bins."""

    horizon: int
    action_spec: Spec
    bins: int
    temperature: float
    """What logits are divided by before a bin is drawn; rollouts and losses share it."""
    label_bins: float
    """Standard deviation, in bins, over which cloning spreads the wanted token; 0 wants one bin alone."""

    def encode(self, obs: dict[str, Tensor]) -> Any:
        """What comes before the tokens, from raw observations (normalisation inside)."""
        ...

    def token_logits(self, ctx: Any, tokens: Tensor) -> Tensor:
        """(B, H, A, bins) logits of each token of (B, H, A), given those that the policy says before it."""
        ...

    def sample_tokens(
        self, ctx: Any, generator: torch.Generator | None, mode: Mode, at: Tensor | None = None
    ) -> Tensor:
        """(B, H, A) int64 bins: drawn at the temperature, or with `mean` what is said when deployed.

        With `at` (B, H, A), 0 to 1, nothing is drawn: a bin is taken from where the running sum of probabilities
        passes it.
        """
        ...

    def to_tokens(self, chunk: Tensor) -> Tensor:
        """(B, H, A) int64 bins of normalised chunks (B, H, A)."""
        ...

    def from_tokens(self, tokens: Tensor) -> Tensor:
        """(B, H, A) normalised chunks of bins (B, H, A)."""
        ...


@runtime_checkable
class HasVisionEncoder(Protocol):
    """A policy whose sight can be used apart, as an encoder of episodes for example."""

    def eye(self) -> Any:
        """A frozen module from raw observations (B, ...) to features (B, F)."""
        ...


@runtime_checkable
class HasObservationEncoder(Protocol):
    """A policy of which what it makes of an observation can be used apart, by a critic for example."""

    def reader(self) -> Any:
        """A frozen module from raw observations (B, ...) to features (B, `width`), an attribute of it."""
        ...


@runtime_checkable
class HasCache(Protocol):
    """A policy of which what it makes of an observation can be kept, and be given to it instead of the observation."""

    def cached(self, obs: dict[str, Tensor], what: Cache) -> dict[str, Tensor]:
        """Observations (B, ...) for `encode`: what is kept takes the place of what it was made of.

        Raises:
            CapabilityError: the policy makes no such thing.
        """
        ...


@runtime_checkable
class HasImageFeatures(HasCache, Protocol):
    """A policy whose eyes can be trained apart from what it reads and does."""

    @property
    def looking_width(self) -> int:
        """F."""
        ...

    def looking(self, obs: dict[str, Tensor]) -> Tensor:
        """(B, F) what the eyes make of pictures, patch by patch, with its gradient; of raw observations, or of those in
        which their sight is kept."""
        ...


@runtime_checkable
class HasTextFeatures(Protocol):
    """A policy of which what it makes of an observation can be trained on a second task."""

    @property
    def reading_width(self) -> int:
        """F."""
        ...

    def reading(self, ctx: Any) -> Tensor:
        """(B, n, F) features of contexts, with their gradient, at each of n places from which actions come."""
        ...
