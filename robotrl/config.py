"""The config of a training run: frozen, resolved and saved before anything is built, and never changed."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any, Generic, Literal, TypeVar

from robotrl.errors import (
    ConfigError,
    check_at_least,
    check_count,
    check_number,
    check_positive,
    out_of_range,
    short,
    unknown,
)
from robotrl.interventions.config import InterventionCfg
from robotrl.registry import check_num_envs
from robotrl.spec import CACHES, Cache, reads
from robotrl.spec.json_fields import REVISION, check_settings, settings_from_json

Algo = TypeVar("Algo")
PolicyCfg = TypeVar("PolicyCfg")


@dataclass(frozen=True)
class SimCfg:
    """Which sim, and how."""

    name: str
    """A row of `robotrl list sims`."""
    num_envs: int = 64
    """Envs that step together."""
    options: tuple[str, ...] = ()
    """Keyword arguments of the sim's `make`, as "name=value", e.g. "clearance_m=0.002"; listed on its docs page."""
    reward: str | None = field(default=None, metadata=reads("checkpoint"))
    """Directory of a success classifier whose word is the reward in training; none takes the sim's own reward."""
    reward_ends: bool = False
    """Whether an episode of training ends where the classifier sees a success."""
    curriculum: float | None = None
    """Draw training starts by how often their scenarios fail: the temperature, e.g. 0.3, smaller favours the worst
    scenario more; none draws them evenly."""


@dataclass(frozen=True)
class EvalCfg:
    """Periodic evaluation on held-out starts."""

    every: int = 10
    """Iterations between two evaluations; 0 evaluates only at the end."""
    episodes: int = 128
    """Starts for each, always the first of split `val`, each run exactly once."""
    num_envs: int = 64
    """Envs of the evaluation sim."""
    animation: int = 2
    """How many of the starts each evaluation draws into `rollouts/step_N.gif`; 0 draws none."""
    score: Literal["success", "return"] = "success"
    """What the best checkpoint is chosen by: the success rate, or the mean return where that says more."""
    second_look: int = 0
    """At the end of a run: further starts of split `val` on which the kept checkpoints that cannot be told apart are
    compared, each run on all of them; 0 takes the newest of those with the highest score."""


@dataclass(frozen=True)
class ActorCfg:
    """Where the sim is stepped, for algorithms that learn from a replay."""

    process: bool = False
    """In a process of its own, at the same time as the updates; such a run does not resume bit for bit."""
    lead: int = 2
    """How many iterations the actor may be ahead, that which is waited for included; 1 takes turns."""
    restarts: int = 3
    """How often an actor that died or hangs is replaced before the run ends."""
    start_timeout_s: float = 300.0
    """How long the start of an actor may take, its sim's included."""
    timeout_s: float = 60.0
    """How long an iteration's env steps may take; an actor that sends nothing for so long hangs."""


SOLVED = "solved"
"""As `stop_at_return`: the return that the sim states."""
ALL_LAYERS = "all"
"""Target of adapters that stands for every layer."""


@dataclass(frozen=True)
class LoraCfg:
    """Low-rank adapters on the policy that a run starts from; what it learns then is these alone."""

    rank: int = 0
    """Of the adapters; 0 has none, and all that can learn does."""
    alpha: float = 16.0
    """What adapters add is multiplied by this over the rank."""
    targets: tuple[str, ...] = (ALL_LAYERS,)
    """Linear layers that get one: parts of their names, e.g. q_proj or language_model; "all" for each that learns."""
    heads: tuple[str, ...] = ()
    """Parts of the names of layers that learn as a whole besides, e.g. action_out_proj."""
    bf16_base: bool = False
    """Keep the frozen weights of linear layers in bfloat16: half their memory, for the rounding of the base."""


@dataclass(frozen=True)
class TrainCfg(Generic[Algo, PolicyCfg]):
    """Everything that decides a run."""

    sim: SimCfg
    algo: Algo
    """Settings of the algorithm."""
    policy: PolicyCfg
    """Size of the policy; unused when the run starts from another's policy, see `init_changes`."""
    seed: int = 0
    """Seeds every random stream."""
    init_from: str | None = field(default=None, metadata=reads("policy", kept=True))
    """Run or checkpoint whose policy is fine-tuned; None starts from scratch."""
    init_changes: tuple[str, ...] = ()
    """Settings that this policy gets instead of its own, as "name=value": those that its weights do not depend on, e.g.
    temperature=0.7 of one that says tokens, trained=expert of a flow VLA."""
    dataset: str | None = field(default=None, metadata=reads("dataset"))
    """Directory of demonstrations, for algorithms that learn from them."""
    accept_data: bool = False
    """Whether what is doubtful about the dataset is known to be right: then it is neither told nor refused. What
    contradicts the sim is refused in any case; see docs/datasets.md."""
    evaluation: EvalCfg = EvalCfg()
    checkpoint_every: int = 10
    """Iterations between two checkpoints; evaluations and the last iteration are saved as well."""
    keep: int = 3
    """How many of the newest checkpoints to keep; the best is kept besides."""
    device: str = "cpu"
    """Where networks act and learn: "cpu", "cuda", "cuda:1"; with torchrun "cuda" is the GPU of each process's number.
    A sim that steps elsewhere stays there. Small networks are faster on a CPU."""
    torch_threads: int = 1
    """Threads of torch; physics has the cores while envs step."""
    update_threads: int | None = None
    """Threads of torch while networks learn, None for as many as `torch_threads`. Results differ by rounding."""
    intervention: InterventionCfg = field(default_factory=InterventionCfg)
    """Who takes over while the policy learns, for algorithms that learn from it."""
    lora: LoraCfg = field(default_factory=LoraCfg)
    """Adapters, for policies too large to learn as a whole."""
    recompute: bool = False
    """Whether blocks of the policy that a run starts from keep what goes in alone, and compute their inside again for
    the gradient: less memory, a third more computing, the same gradients."""
    cache: Cache = "none"
    """What is kept of each observation where that part of the policy that a run starts from is frozen: "sight", what
    its eyes make of pictures, or "context", all that it makes of an observation before it acts; computed once instead
    of in each epoch."""
    actor: ActorCfg = field(default_factory=ActorCfg)
    """Where the sim is stepped."""
    stop_at_success: float | None = None
    """Stop once two evaluations in a row reach this success rate; None runs the whole budget."""
    stop_at_return: float | Literal["solved"] | None = None
    """Stop once two evaluations in a row reach this mean return, the second no better than any before; "solved" takes
    the return from which the sim counts as solved, if it states one. None runs the whole budget."""
    fsdp: bool = False
    """Of several processes (torchrun): whether each keeps a part of the gradients and moments of what learns (FSDP2),
    for policies that learn as a whole and whose moments do not fit beside their weights."""
    dist_timeout_s: float = 1800.0
    """Of several processes (torchrun): how long each waits for the others; an evaluation by the first must fit in."""


GIVEN = ("name", "num_envs", "seed")
"""Arguments of every sim's factory, which are no options."""


def sim_options(options: Sequence[str], field: str = "sim.options") -> dict[str, Any]:
    """ "name=value" texts as keyword arguments; a value that is JSON is read as such, any other is text.

    Args:
        options: the texts.
        field: where they stand, for errors.

    Raises:
        ConfigError: a text without "=", or a name given twice.
    """
    out: dict[str, Any] = {}
    for text in options:
        name, equals, value = text.partition("=")
        if name in GIVEN and field == "sim.options":
            raise ConfigError(f"{field} holds {short(repr(text))}: {name} is no option, it has a flag of its own")
        if not equals or not name or name in out:
            raise ConfigError(f'{field} holds {short(repr(text))}: expected "name=value", each name once')
        try:
            out[name] = json.loads(value)
        except (ValueError, RecursionError):  # no JSON, or none that could be used: numbers of thousands of digits
            out[name] = value
    return out


def to_json(cfg: TrainCfg[Any, Any]) -> dict[str, Any]:
    """The resolved config as JSON values, with what is needed to read it back."""
    return {
        **asdict(cfg),
        "revision": REVISION,
        "types": {part: _name_of(type(getattr(cfg, part))) for part in ("algo", "policy")},
    }


def from_json(data: Mapping[str, Any], types: Mapping[str, type]) -> TrainCfg[Any, Any]:
    """Read back what `to_json` wrote.

    Args:
        data: the saved config.
        types: the classes of "algo" and "policy".

    Raises:
        ConfigError: a field is missing or unknown, so that the config is of another version.
    """
    given = {key: value for key, value in data.items() if key not in ("types", "revision")}
    try:
        parts: dict[str, Any] = {
            "sim": SimCfg(**settings_from_json(given["sim"])),
            "init_changes": tuple(given.get("init_changes", ())),
            "evaluation": EvalCfg(**given["evaluation"]),
            # absent where an older version wrote the config
            "intervention": InterventionCfg(**given.get("intervention", {})),
            "actor": ActorCfg(**given.get("actor", {})),
            "lora": LoraCfg(**settings_from_json(given.get("lora", {}))),
            "algo": types["algo"](**settings_from_json(given["algo"])),
            "policy": types["policy"](**settings_from_json(given["policy"])),
        }
        return TrainCfg(**{**given, **parts})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"the saved config does not fit this version of robotrl: {short(str(error))}") from error


def check(cfg: TrainCfg[Any, Any]) -> None:
    """Refuse what no run could use.

    Raises:
        ConfigError: the field, its value and what was expected.
    """
    check_settings(cfg)
    if not 0 <= cfg.seed < 2**31:
        raise out_of_range("seed", cfg.seed, "0 to 2147483647")
    check_num_envs("sim.num_envs", cfg.sim.num_envs)
    check_num_envs("evaluation.num_envs", cfg.evaluation.num_envs)
    for name, value, least in (
        ("evaluation.every", cfg.evaluation.every, 0),
        ("evaluation.episodes", cfg.evaluation.episodes, 1),
        ("evaluation.animation", cfg.evaluation.animation, 0),
        ("evaluation.second_look", cfg.evaluation.second_look, 0),
        ("checkpoint_every", cfg.checkpoint_every, 1),
        ("keep", cfg.keep, 1),
        ("torch_threads", cfg.torch_threads, 1),
        ("update_threads", cfg.torch_threads if cfg.update_threads is None else cfg.update_threads, 1),
        ("actor.lead", cfg.actor.lead, 1),
        ("actor.restarts", cfg.actor.restarts, 0),
    ):
        check_at_least(name, value, least)
    for name in ("start_timeout_s", "timeout_s"):
        if not 0 < getattr(cfg.actor, name) < math.inf:
            raise out_of_range(f"actor.{name}", getattr(cfg.actor, name), "above 0 seconds")
    if not 0 < cfg.dist_timeout_s < math.inf:
        raise out_of_range("dist_timeout_s", cfg.dist_timeout_s, "above 0 seconds")
    sim_options(cfg.sim.options)
    _check_lora(cfg)
    if cfg.recompute and cfg.init_from is None:
        raise ConfigError("recompute is True and init_from is not given: expected a policy to fine-tune")
    if cfg.cache not in CACHES:
        raise unknown("cache", str(cfg.cache), CACHES)
    if cfg.init_changes and cfg.init_from is None:
        raise ConfigError(f"init_changes is {cfg.init_changes} and init_from is not given: expected a policy to change")
    if cfg.cache != "none" and cfg.init_from is None:
        raise ConfigError(f"cache is {cfg.cache!r} and init_from is not given: expected a policy to fine-tune")
    if cfg.sim.reward_ends and cfg.sim.reward is None:
        raise ConfigError("sim.reward_ends is True, and sim.reward is not given: expected a success classifier")
    if cfg.sim.reward is not None and not getattr(cfg.algo, "reads_rewards", True):
        raise ConfigError(
            f"sim.reward is {cfg.sim.reward!r}, and {type(cfg.algo).__name__} as it is set learns from no reward:"
            " expected a method that does, or, of GRPO, algo.progress return"
        )
    if cfg.sim.curriculum is not None:
        check_number("sim.curriculum", cfg.sim.curriculum, 0.01, 100.0)
    if cfg.evaluation.score not in ("success", "return"):
        raise unknown("evaluation.score", str(cfg.evaluation.score), ("success", "return"))
    if cfg.evaluation.second_look and cfg.evaluation.score != "success":
        raise ConfigError(
            f"evaluation.second_look is {cfg.evaluation.second_look} and evaluation.score {cfg.evaluation.score!r}:"
            " expected 0, it compares success rates"
        )
    if cfg.stop_at_success is not None and not 0 < cfg.stop_at_success <= 1:
        raise out_of_range("stop_at_success", cfg.stop_at_success, "above 0, at most 1")
    _check_stop_at_return(cfg)


def _check_stop_at_return(cfg: TrainCfg[Any, Any]) -> None:
    target = cfg.stop_at_return
    if target is None:
        return
    if isinstance(target, str) and target != SOLVED:
        raise out_of_range("stop_at_return", target, f'a finite number, "{SOLVED}" or none')
    if not isinstance(target, str) and not math.isfinite(target):
        raise out_of_range("stop_at_return", target, f'a finite number, "{SOLVED}" or none')
    if cfg.evaluation.score != "return":
        raise ConfigError(
            f"stop_at_return is {target!r} and evaluation.score is {cfg.evaluation.score!r}: expected evaluation.score"
            " return, or stop_at_success"
        )


def _check_lora(cfg: TrainCfg[Any, Any]) -> None:
    lora = cfg.lora
    check_count("lora.rank", lora.rank, 0, 4096)
    check_positive("lora.alpha", lora.alpha)
    if not lora.rank:
        if lora.heads or lora.targets != (ALL_LAYERS,) or lora.bf16_base:
            raise ConfigError(
                "lora.rank is 0 beside lora.targets, lora.heads or lora.bf16_base: expected 1 or more, e.g. 32"
            )
        return
    if cfg.fsdp:
        raise ConfigError(f"lora.rank is {lora.rank} and fsdp is True: expected one of them, adapters are small")
    if not lora.targets:
        raise ConfigError(f'lora.targets is empty: expected parts of the names of layers, or "{ALL_LAYERS}"')
    if cfg.init_from is None:
        raise ConfigError(f"lora.rank is {lora.rank} and init_from is not given: expected a policy to adapt")
    if cfg.actor.process:
        raise ConfigError(f"lora.rank is {lora.rank} and actor.process is True: expected an actor in this process")


RENAMED = {"robotrl.algos.look:LookCfg": "robotrl.algos.pretrain:PretrainCfg"}
"""Config classes that stored runs name, by the name that they were stored with."""


def class_named(name: str) -> type:
    """The config class that a stored run names ("module:Class").

    Raises:
        ConfigError: there is no such class, or it is no config.
    """
    module, _, attribute = RENAMED.get(name, name).partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, TypeError, SyntaxError) as error:
        raise ConfigError(f"config class {short(repr(name))} is unknown here: {short(str(error))}") from error
    # a run's directory may come from elsewhere: never call what is no config
    if not (isinstance(found, type) and is_dataclass(found) and hasattr(found, "build")):
        raise ConfigError(f"config class {short(repr(name))} is no config: expected a dataclass with a method `build`")
    return found


def _name_of(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"
