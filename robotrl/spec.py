"""What every part agrees on: array specs, the step record, and the Protocols of sims and policies.

Axes, used in every shape comment: `T` time, `N` envs, `B` batch, `H` action chunk, `A` action, `K` denoising steps,
`D` feature, `G` group. Names carry units and frames: `dt_s`, `pos_w` (world frame), `vel_b` (body frame).

This module imports nothing of ours and no torch at run time: tensors appear in annotations only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import gymnasium
    import numpy as np
    import torch
    from torch import Tensor

    from robotrl.symmetry import Symmetry
    from robotrl.trace import TraceFrame, TraceMap, TraceStep

Mode = Literal["sample", "mean"]
Cache = Literal["none", "sight", "context"]
"""What a learner keeps of an observation, where that is frozen: nothing but itself, what the policy's eyes make of its
pictures, or all that the policy makes of it before it acts."""
CACHES: tuple[Cache, ...] = ("none", "sight", "context")
Split = Literal["train", "val", "test"]


@dataclass(frozen=True)
class Spec:
    """Shape and meaning of one array, without its batch axis.

    Args:
        shape: trailing shape, e.g. (18,).
        names: one name for each element of the last axis; names carry units' quantity and frame ("peg_pos_x_w").
        units: one SI unit for each name ("m", "rad", "1").
        low: lower bound of each element of the last axis; -inf where there is none.
        high: upper bound, likewise.
        dtype: numpy dtype name.
        words: of an array of word numbers, the words by number, "" standing for none; empty for everything else.
    """

    shape: tuple[int, ...]
    names: tuple[str, ...]
    units: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    dtype: str = "float32"
    words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        width = self.shape[-1] if self.shape else 1
        for field in ("names", "units", "low", "high"):
            found = len(getattr(self, field))
            if found != width:
                raise ValueError(f"Spec.{field} has {found} entries: expected {width}, one for each of shape[-1]")
        if len(set(self.names)) != len(self.names):
            raise ValueError(f"Spec.names repeats a name: {self.names}")

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dict; infinities become None."""
        out = asdict(self)
        for field in ("low", "high"):
            out[field] = [None if abs(value) == float("inf") else value for value in out[field]]
        if not self.words:
            del out["words"]
        return out

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Spec:
        """Inverse of `to_json`."""
        inf = float("inf")
        return cls(
            shape=tuple(data["shape"]),
            names=tuple(data["names"]),
            units=tuple(data["units"]),
            low=tuple(-inf if value is None else float(value) for value in data["low"]),
            high=tuple(inf if value is None else float(value) for value in data["high"]),
            dtype=data["dtype"],
            words=tuple(data.get("words", ())),
        )


def is_picture(spec: Spec) -> bool:
    """Whether an observation array is a picture: (h, w, channels) of bytes, however many channels it has."""
    return len(spec.shape) == 3 and spec.dtype == "uint8"


def measured(observation_spec: Mapping[str, Spec]) -> tuple[str, ...]:
    """Keys of the arrays that hold measured numbers: neither pictures nor words."""
    return tuple(key for key, spec in observation_spec.items() if not is_picture(spec) and not spec.words)


Observation = dict[str, "Tensor"]
"""Named observation arrays (N, ...), the keys being those of the sim's `observation_spec`."""


# steps


class Step(NamedTuple):
    """What one control step of all envs returned. Rows that ended have already been reset (same-step reset).

    `terminated` and `truncated` are never merged. Both at once mean failure: do not bootstrap.
    """

    obs: dict[str, Tensor]
    """(N, ...) each: the observation to act on next; of the new episode where one ended."""
    reward: Tensor
    """(N,) float32."""
    terminated: Tensor
    """(N,) bool: the task ended the episode; nothing follows."""
    truncated: Tensor
    """(N,) bool: a time limit cut the episode; the value of `final_obs` follows."""
    final_obs: dict[str, Tensor]
    """(n, ...) each, compact: the last observation of the n episodes that ended, in the order of `final_ids`."""
    final_ids: Tensor
    """(n,) int64: which envs ended."""
    info: dict[str, Tensor]
    """(N,) each, about the step just made: `success` bool, `state_id` int64 (start of that episode, -1 if unknown).

    Of a sim that may lose episodes besides `lost` bool, see `lost`."""


def lost(step: Step) -> Tensor:
    """(N,) bool: rows whose episode went with the process that ran it. It counts for nothing, and runs again."""
    return step.info.get("lost", step.terminated & False)


# sims


@runtime_checkable
class VecSim(Protocol):
    """A batch of environments that step together; see `Step` for the reset rule."""

    num_envs: int
    control_dt_s: float
    """Seconds between two actions."""
    device: torch.device
    observation_spec: dict[str, Spec]
    action_spec: Spec
    buffers_are_reused: bool
    """Whether tensors of one `Step` are overwritten by the next: whoever keeps one copies it."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> dict[str, Tensor]:
        """Start new episodes in all envs. `seed` restarts every random stream; None lets them run on."""
        ...

    def step(self, actions: Tensor) -> Step:
        """Advance all envs by one control step under `actions` (N, A), in the units of `action_spec`."""
        ...

    def close(self) -> None:
        """Free what the sim holds."""
        ...

    def as_gymnasium(self) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
        """The same sim as a numpy `gymnasium.vector.VectorEnv` with same-step autoreset."""
        ...


@runtime_checkable
class HasFinalObs(Protocol):
    """The sim fills `Step.final_obs`. Without this, a learner bootstraps from the value before the step."""

    has_final_obs: Literal[True]


@runtime_checkable
class HasState(Protocol):
    """Exact state: a sim that was restored continues bit for bit, random streams included."""

    def get_state(self) -> dict[str, np.ndarray]:
        """All state as named arrays (JSON-free, safetensors-ready)."""
        ...

    def set_state(self, state: dict[str, np.ndarray]) -> dict[str, Tensor]:
        """Restore what `get_state` returned; gives the observation at that state."""
        ...


@runtime_checkable
class HasStateIds(Protocol):
    """Episodes start from numbered states, the same for the same id in every process; splits are disjoint."""

    def state_ids(self, split: Split) -> range:
        """The ids of a split."""
        ...

    def queue_states(self, ids: Sequence[int] | np.ndarray) -> None:
        """Ids that the next resets (first `reset`, then autoreset) draw from, in order; then training ids again."""
        ...


@runtime_checkable
class HasRestart(Protocol):
    """Single envs can be restarted between two steps, for whoever else may end an episode."""

    def restart(self, envs: Tensor) -> dict[str, Tensor]:
        """Start new episodes in the envs `envs` (n,) int64; gives the observation of all envs."""
        ...


@runtime_checkable
class HasDistance(Protocol):
    """The sim knows how far each env is from success; a robot could not know."""

    def distance(self) -> Tensor:
        """(N,) now, in metres or as the task's page says; falls on the way to success, which is near 0."""
        ...


@runtime_checkable
class HasCamera(Protocol):
    """The sim draws itself."""

    cameras: tuple[str, ...]

    def render(self, ids: Sequence[int], camera: str, width: int, height: int) -> np.ndarray:
        """(n, height, width, 3) uint8 pictures of the envs `ids`."""
        ...


@runtime_checkable
class HasTrace(Protocol):
    """A driving sim that tells where everybody is, so that people can look at its episodes; see `robotrl.trace`."""

    action_is_plan: bool
    """Whether an action is a trajectory itself; then a plan is its points, not where some actions lead."""

    def trace_map(self, env: int) -> TraceMap:
        """What stays as it is for the whole of an env's running episode."""
        ...

    def trace_frame(self, env: int) -> TraceFrame:
        """Where everybody is now."""
        ...

    def trace_step(self, env: int) -> TraceStep:
        """What the last step brought, the end of an episode included."""
        ...

    def trace_plan(self, env: int, actions: np.ndarray) -> np.ndarray:
        """(m, 3) x, y, yaw of the ego after each of the actions (n, A), or at the points of the first one."""
        ...


@runtime_checkable
class HasScenarios(Protocol):
    """The starts belong to named scenarios."""

    scenarios: tuple[str, ...]

    def scenario_of(self, state_id: int) -> str:
        """The scenario that a start belongs to."""
        ...


@runtime_checkable
class HasInstructions(Protocol):
    """Each episode is told in words what to do; the observation "instruction" has their numbers (see `Spec.words`)."""

    vocabulary: tuple[str, ...]
    """Words by number; 0 stands for none."""

    def instructions(self) -> list[str]:
        """(N) what each env's running episode is told."""
        ...


@runtime_checkable
class HasSymmetries(Protocol):
    """The sim knows changes of what is seen, told and done under which it behaves alike; see `robotrl.symmetry`."""

    symmetries: Mapping[str, tuple[Symmetry, ...]]
    """By kind: the changes of a kind, of which at most one is made at a time. They know every observation."""


@runtime_checkable
class HasParams(Protocol):
    """Physical parameters for each env (domain randomisation)."""

    params: tuple[str, ...]
    """Names with units, e.g. "peg_friction"."""

    def get_params(self) -> dict[str, np.ndarray]:
        """(N,) each: the multiplier or value in force."""
        ...

    def set_params(self, ids: Sequence[int] | np.ndarray, values: dict[str, np.ndarray]) -> None:
        """Set parameters of the envs `ids`."""
        ...


@runtime_checkable
class HasPrivileged(Protocol):
    """Some observation arrays are for the critic alone: a robot could not measure them."""

    privileged: tuple[str, ...]
    """Keys of `observation_spec` that no policy is built on."""


@runtime_checkable
class HasMeaning(Protocol):
    """Some privileged arrays say what the words mean in this scene, and not only what there is to be seen."""

    meant: tuple[str, ...]
    """Keys among the privileged ones; where the named thing is, for example."""


def privileged(sim: VecSim) -> tuple[str, ...]:
    """Keys of the observations that no policy may see."""
    return tuple(sim.privileged) if isinstance(sim, HasPrivileged) else ()


def visible(sim: VecSim) -> dict[str, Spec]:
    """The observations that a policy may see: those that are not privileged."""
    hidden = privileged(sim)
    return {key: spec for key, spec in sim.observation_spec.items() if key not in hidden}


class Expert(Protocol):
    """A scripted demonstrator of a sim; it may read privileged state."""

    modes: tuple[str, ...]
    """The distinct ways in which it solves the task."""
    mode: Tensor
    """(N,) int64: the way chosen for each env's running episode."""

    def act(self, started: Tensor) -> Tensor:
        """Actions (N, A) for all envs; `started` (N,) bool marks envs at the first step of an episode."""
        ...


@runtime_checkable
class HasExpert(Protocol):
    """The sim brings a scripted expert."""

    def make_expert(
        self, noise: float = 0.0, clumsiness: float = 0.0, mode: str | None = None, seed: int = 0
    ) -> Expert:
        """An expert on this sim; `mode` None draws one per episode."""
        ...


# policies


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

    def sample(self, generator: torch.Generator | None) -> Tensor:
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
class HasEye(Protocol):
    """A policy whose sight can be used apart, as an encoder of episodes for example."""

    def eye(self) -> Any:
        """A frozen module from raw observations (B, ...) to features (B, F)."""
        ...


@runtime_checkable
class HasReader(Protocol):
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
class HasLooking(HasCache, Protocol):
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
class HasReading(Protocol):
    """A policy of which what it makes of an observation can be trained on a second task."""

    @property
    def reading_width(self) -> int:
        """F."""
        ...

    def reading(self, ctx: Any) -> Tensor:
        """(B, n, F) features of contexts, with their gradient, at each of n places from which actions come."""
        ...
