"""Policy protocol, and protocols of optional policy capabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

from robotrl.spec.arrays import Spec

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Mode = Literal["sample", "mean"]
Cache = Literal["none", "image-features", "context"]
"""Cached part of an observation where the policy's encoder is frozen: nothing ("none"), image features of the vision
encoder ("image-features"), or the whole context that actions are computed from ("context")."""
CACHES: tuple[Cache, ...] = ("none", "image-features", "context")


class ActOut(NamedTuple):
    """Return value of a policy's `act`."""

    chunk: Tensor
    """(B, H, A) actions in the sim's units."""
    state: Any
    """Recurrent state and history to pass to the next call; None for a policy without memory."""


@runtime_checkable
class Policy(Protocol):
    """Maps observations to action chunks. Normalization is part of the policy."""

    observation_spec: dict[str, Spec]
    action_spec: Spec
    horizon: int
    """H, the length of an action chunk; all of its actions are executed."""

    def act(
        self, obs: dict[str, Tensor], state: Any = None, generator: torch.Generator | None = None, mode: Mode = "sample"
    ) -> ActOut:
        """Action chunks for the rows of `obs` (B, ...)."""
        ...


class RowNoise(Protocol):
    """Noise with one random stream for each row of a batch; see `robotrl.fn.random.keyed_noise.KeyedNoise`."""

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
    """`act` also takes a `RowNoise` in place of the generator: all its draws go through `robotrl.fn.random.noise`.

    An evaluation calls a policy without this capability on one row at a time.
    """

    keyed_noise: Literal[True]


@runtime_checkable
class HasLogProb(Protocol):
    """The policy has a closed-form density over chunks."""

    def log_prob(self, obs: dict[str, Tensor], chunk: Tensor) -> Tensor:
        """(B, H, A) log-density of normalized actions before clipping."""
        ...


class Density(Protocol):
    """Closed-form distribution over normalized chunks with independent elements; see `robotrl.fn.density`."""

    @property
    def std(self) -> Tensor:
        """(B, H, A) standard deviation; (1, H, A) if it is the same in every row."""
        ...

    def sample(self, generator: torch.Generator | RowNoise | None) -> Tensor:
        """(B, H, A) normalized actions before any clipping, one draw for each row."""
        ...

    def log_prob(self, normalized_action: Tensor) -> Tensor:
        """(B, H, A) log-density of normalized actions before clipping, (B, H, A)."""
        ...

    def entropy(self) -> Tensor:
        """(B, H, A) in nats; (1, H, A) if it is the same in every row."""
        ...


@runtime_checkable
class HasDensity(Protocol):
    """The policy returns its action distribution, which has a closed-form density and entropy."""

    def encode(self, obs: dict[str, Tensor]) -> Tensor:
        """Context (B, D) from observations in the sim's units (normalization inside)."""
        ...

    def density(self, ctx: Tensor) -> Density:
        """Action distribution for contexts (B, D)."""
        ...


class Recalled(NamedTuple):
    """Result of `HasMemory.advance`."""

    ctx: Tensor
    """(B, D) contexts of the observations, with what the policy remembers."""
    memory: Tensor
    """(B, M) memory to pass to the next decision of the same episode."""


@runtime_checkable
class CarriesMemory(Protocol):
    """A policy whose decision depends on earlier ones of the episode.

    The memory is the `state` of `Policy.act`, one row for each env, and changes once per decision. An episode begins
    with `initial_memory`; so does a call of `act` with state None.
    """

    @property
    def memory_width(self) -> int:
        """M."""
        ...

    def initial_memory(self, rows: int) -> Tensor:
        """(rows, M) memory at the beginning of an episode: zeros, as in a bundle's runtime."""
        ...


@runtime_checkable
class HasMemory(CarriesMemory, Protocol):
    """A recurrent policy: its context depends on the earlier observations of the episode."""

    def advance(self, obs: dict[str, Tensor], memory: Tensor) -> Recalled:
        """One decision: contexts of observations (B, ...), given the memory (B, M) of the decision before."""
        ...

    def unroll(self, obs: dict[str, Tensor], memory: Tensor, joined: Tensor) -> Tensor:
        """(S, L, D) contexts of L consecutive decisions, with gradients through the memory between them.

        Args:
            obs: (S, L, ...) observations in the sim's units.
            memory: (S, L, M) stored memory before each decision; no gradient flows into it.
            joined: (S, L) bool: the decision takes the memory of the one before it in the segment. The others take
                the stored one.
        """
        ...

    def density(self, ctx: Tensor) -> Density:
        """Action distribution for contexts (B, D), as of `HasDensity`."""
        ...


@runtime_checkable
class BuildsMemory(Protocol):
    """Config of a policy with `HasMemory`."""

    builds_memory: Literal[True]


class Chain(NamedTuple):
    """A sampled denoising chain in normalized action space."""

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
    """K+1 times rising from 0 to 1: the grid on which the chain is sampled, trained and deployed."""
    context_width: int
    """Number of leading elements of a context that critics and noise networks read. A policy may append more for its
    own use; a vision-language-action policy appends the keys and values of its prefix."""

    @property
    def noise_shape(self) -> tuple[int, int] | None:
        """(H, A) of the chain's points; a pretrained policy's can be longer and wider than the executed chunk."""
        ...

    @property
    def denoising_steps(self) -> int:
        """K."""
        ...

    def encode(self, obs: dict[str, Tensor]) -> Tensor:
        """Context (B, D) from observations in the sim's units (normalization inside)."""
        ...

    def velocity(self, ctx: Tensor, x: Tensor, t: Tensor, dt: Tensor) -> Tensor:
        """dx/dt (B, H, A) at x (B, H, A), time t (B,), for a step of length dt (B,)."""
        ...


@runtime_checkable
class HasSampler(Protocol):
    """A sampler whose kind and number of steps a bundle states."""

    @property
    def denoising_steps(self) -> int:
        """K, network evaluations of one decision."""
        ...

    @property
    def sampler(self) -> tuple[Literal["flow", "diffusion"], Literal["euler", "ddim"]]:
        """Kind and solver, as a bundle states them."""
        ...


@runtime_checkable
class HasDeployNoise(Protocol):
    """A generative policy whose chains begin, when it is deployed, at noise of a standard deviation of its own."""

    deploy_noise: float
    """Standard deviation of the initial noise; 1 as trained by cloning, 0 for none."""


@runtime_checkable
class HasOverlap(Protocol):
    """A policy that joins each chunk to the one before it.

    Of the H actions of a chunk, which begins at its observation, H - D are executed: the first ones are those that were
    committed before it took over. Its observations "committed_actions" are what the last chunk planned from then on,
    and "committed_mask" are their weights (`overlap_weights`).
    """

    overlap: int
    """D, actions that two chunks have in common."""


@runtime_checkable
class HasDecode(Protocol):
    """Deterministic map from noise to an action chunk."""

    def decode(self, ctx: Tensor, noise: Tensor) -> Tensor:
        """(B, H, A) normalized chunk from noise (B, H, A)."""
        ...


class Proposals(NamedTuple):
    """Candidates for a decision, and their scores."""

    chunks: Tensor
    """(B, M, H, A) normalized candidates."""
    logits: Tensor
    """(B, M) scores: the softmax over candidates is the probability of each."""


@runtime_checkable
class HasProposals(Protocol):
    """The policy proposes several chunks for a decision, scores them, and executes the best one."""

    @property
    def noise_shape(self) -> tuple[int, int] | None:
        """(M H, A) of the noise that the candidates of a row start from, one after the other."""
        ...

    def propose(self, obs: dict[str, Tensor], noise: Tensor) -> Proposals:
        """Candidates and scores on observations (B, ...), from standard normal noise (B, M H, A)."""
        ...


@runtime_checkable
class HasScoredCandidates(Protocol):
    """The policy lists a fixed number of chunks for a decision, with their probabilities; no noise is needed."""

    def candidates(self, obs: dict[str, Tensor]) -> Proposals:
        """All candidates on observations (B, ...); the softmax of their scores is the probability of each."""
        ...


@runtime_checkable
class HasTokens(Protocol):
    """An autoregressive policy over action tokens: each element of an action is one of `bins` bins."""

    horizon: int
    action_spec: Spec
    bins: int
    temperature: float
    """Softmax temperature of sampling; rollouts and losses share it."""
    label_bins: float
    """Standard deviation, in bins, of the Gaussian that smooths cloning labels; 0 gives one-hot labels."""

    def encode(self, obs: dict[str, Tensor]) -> Any:
        """Context that precedes the action tokens, from observations in the sim's units (normalization inside)."""
        ...

    def token_logits(self, ctx: Any, tokens: Tensor) -> Tensor:
        """(B, H, A, bins) logits of each token of (B, H, A), conditioned on the tokens before it."""
        ...

    def sample_tokens(
        self, ctx: Any, generator: torch.Generator | None, mode: Mode, at: Tensor | None = None
    ) -> Tensor:
        """(B, H, A) int64 bins: sampled at the temperature, or with mode "mean" as deployed (without sampling).

        With `at` (B, H, A), in [0, 1], nothing is drawn: the bin is the one at which the cumulative probability passes
        `at`.
        """
        ...

    def to_tokens(self, chunk: Tensor) -> Tensor:
        """(B, H, A) int64 bins of normalized chunks (B, H, A)."""
        ...

    def from_tokens(self, tokens: Tensor) -> Tensor:
        """(B, H, A) normalized chunks of bins (B, H, A)."""
        ...


@runtime_checkable
class HasVisionEncoder(Protocol):
    """A policy whose vision encoder can be used separately, for example to embed episodes."""

    def vision_encoder(self) -> Any:
        """Frozen vision encoder: a module from observations (B, ...) to features (B, F)."""
        ...


@runtime_checkable
class HasObservationEncoder(Protocol):
    """A policy whose observation encoder can be used separately, for example by a critic."""

    def observation_encoder(self) -> Any:
        """Frozen observation encoder: a module from observations (B, ...) to features (B, `width`)."""
        ...


@runtime_checkable
class HasCache(Protocol):
    """A policy whose image features or contexts can be cached and passed to it instead of observations."""

    def cached(self, obs: dict[str, Tensor], what: Cache) -> dict[str, Tensor]:
        """Observations (B, ...) for `encode` in which cached features replace the arrays that they were computed from.

        Raises:
            CapabilityError: the policy has no such features.
        """
        ...


@runtime_checkable
class HasImageFeatures(HasCache, Protocol):
    """A policy whose vision encoder can be trained separately, on an auxiliary task."""

    @property
    def image_features_width(self) -> int:
        """F."""
        ...

    def image_features(self, obs: dict[str, Tensor]) -> Tensor:
        """(B, F) image features with gradients, flattened over patches; from observations or from cached features."""
        ...


@runtime_checkable
class HasTextFeatures(Protocol):
    """A policy whose context features can be trained on an auxiliary task."""

    @property
    def text_features_width(self) -> int:
        """F."""
        ...

    def text_features(self, ctx: Any) -> Tensor:
        """(B, n, F) features of contexts, with gradients, at the n positions from which actions are predicted."""
        ...
