"""Config of a training run: frozen, resolved, and saved before anything is built."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Annotated, Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

import tyro

from robotrl.errors import (
    CapabilityError,
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
from robotrl.registry import REWARDS, check_num_envs, sim_options
from robotrl.spec import CACHES, Cache, LearnerCfg, reads
from robotrl.spec.json_fields import (
    FLAT,
    REVISION,
    check_settings,
    check_type,
    name_values,
    settings_from_json,
    settings_of,
)
from robotrl.spec.sim_options import SimOptions, changed_fields, json_values

Algo = TypeVar("Algo")
PolicyCfg = TypeVar("PolicyCfg")


@dataclass(frozen=True)
class SimCfg:
    """Sim of a run, and its options."""

    name: Annotated[str, tyro.conf.Fixed]
    """Name from `robotrl list sims`."""
    num_envs: int = 64
    """Number of parallel envs."""
    options: Annotated[Any, tyro.conf.arg(name="")] = field(default=None, metadata={FLAT: True})
    """Config of the sim itself (`robotrl.spec.sim_options.SimOptions`), or its fields by name; None takes the
    defaults."""
    curriculum: float | None = None
    """Curriculum: sample training starts by the failure rate of their scenarios. The value is the temperature, e.g.
    0.3; smaller values favor the worst scenario more. None samples uniformly."""


@dataclass(frozen=True)
class WeightedReward:
    """One reward source of a run."""

    name: str
    """Name from `robotrl list rewards`."""
    weight: float
    """Factor of the source in the sum."""
    cfg: Any
    """Settings of the source: the class that the registry has under this name."""


@dataclass(frozen=True)
class EvalCfg:
    """Periodic evaluation on held-out starts."""

    every: int | None = None
    """Iterations between two evaluations, for algorithms that count updates or episodes; 0 evaluates only at the end.
    None: 10, unless `every_env_steps` is given."""
    episodes: int = 128
    """Number of starts per evaluation: the first of split `val`, each run exactly once. 0 evaluates never: the best
    checkpoint is the one whose iteration had the best rollouts, and sims without numbered starts can be trained on."""
    num_envs: int = 64
    """Number of parallel envs of the evaluation sim."""
    animation: int = 2
    """Number of starts that each evaluation renders into `rollouts/step_N.gif`; 0 renders none."""
    score: Literal["success", "return"] = "success"
    """Score by which the best checkpoint is chosen: the success rate, or the mean return."""
    second_look: int = 0
    """Final selection at the end of a run: number of further starts of split `val` on which kept checkpoints with
    overlapping success intervals are compared, each run on all of them; 0 takes the newest of those with the highest
    score."""
    every_env_steps: int | None = None
    """Env steps of training between two evaluations, summed over envs, whatever their number: an evaluation follows the
    iteration that crosses a multiple. 0 evaluates only at the end. None: `every` counts iterations."""
    max_share: float = 0.8
    """Largest share of evaluations in all env steps so far, above 0: beyond it, evaluations are left out, but for the
    one at the end. Counted in steps, not in time, so that a run repeats exactly. 1 is no bound."""


@dataclass(frozen=True)
class ActorCfg:
    """Actor process that steps the sim, for off-policy algorithms."""

    process: bool = False
    """Step the sim in a separate process, in parallel with the updates; such a run does not resume bit for bit."""
    lead: int = 2
    """Number of iterations that the actor may be ahead, including the one being waited for; 1 alternates acting and
    updates."""
    restarts: int = 3
    """Number of times that a dead or hanging actor is restarted before the run ends."""
    start_timeout_s: float = 300.0
    """Time limit for the start of an actor and its sim, s."""
    timeout_s: float = 60.0
    """Time limit for the env steps of one iteration, s; an actor that sends nothing for so long counts as hanging."""


@dataclass(frozen=True)
class ClusterCfg:
    """Collection in shards: the envs are divided evenly over workers."""

    name: Annotated[Literal["none", "local", "ray"], tyro.conf.arg(name="")] = "none"
    """Where the shards are stepped: "ray" in one Ray actor each; "local" in this process, one after the other, with the
    same numbers as "ray"; "none" does not divide the envs. See docs/cluster.md."""
    workers: int = 1
    """Number of workers of each learner; each steps sim.num_envs / workers envs. With several learners also 0: each
    learner steps its envs itself."""
    address: str | None = None
    """Address of a running Ray cluster, HOST:PORT, or "auto" for the one that this machine belongs to; None starts Ray
    on this machine for the run."""
    cpus: int = 1
    """CPU cores of each worker: reserved in Ray, and its number of physics threads."""
    learners: int = 1
    """Number of learners, processes that learn together as those of torchrun do; Ray places them. With device cuda
    each has a GPU. sim.num_envs and the workers are those of each learner."""
    learner_cpus: int = 1
    """CPU cores of each of several learners, reserved in Ray."""
    max_staleness: int = 0
    """Number of iterations by which the policy of a rollout may be older than the one that learns from it. 0: workers
    wait during updates. 1 or more: they collect ahead, and an on-policy loss corrects for the older policy."""
    restarts: int = 3
    """Number of times in a row that a worker that dies or hangs is replaced, without a rollout in between, before the
    run ends."""
    start_timeout_s: float = 300.0
    """Time limit for the start of a worker and its sim, s."""
    timeout_s: float = 600.0
    """Time limit for one rollout, s; a worker that takes longer counts as hanging."""

    @property
    def on(self) -> bool:
        """True if the envs are divided into shards."""
        return self.name != "none" and self.workers > 0

    @property
    def reserved_cpus(self) -> int:
        """CPU cores of all workers, and of the learners if there are several; one learner reserves none."""
        return self.learners * self.workers * self.cpus + self._learners_cpus

    @property
    def cpus_at_once(self) -> int:
        """CPU cores that are busy at the same time: learners wait for workers, and workers for learners."""
        return max(self.learners * self.workers * self.cpus, self._learners_cpus)

    @property
    def _learners_cpus(self) -> int:
        return self.learners * self.learner_cpus if self.learners > 1 else 0


DEFAULT_EVERY = 10
"""Iterations between two evaluations or checkpoints where nothing is said."""
RewardKind = Literal["any", "success"]
SOLVED = "solved"
"""Value of `stop_at_return` that stands for the return stated by the sim."""
ALL_LAYERS = "all"
"""Adapter target that stands for every layer."""


@dataclass(frozen=True)
class LoraCfg:
    """LoRA adapters on the pretrained policy of a run; the rest of the policy is frozen."""

    rank: int = 0
    """Rank of the adapters; 0 adds none, and the whole policy is trained (except what it always freezes)."""
    alpha: float = 16.0
    """Scale: the adapter's output is multiplied by alpha / rank."""
    targets: tuple[str, ...] = (ALL_LAYERS,)
    """Linear layers that get an adapter, by parts of their names, e.g. q_proj or language_model; "all" for every
    trainable one."""
    heads: tuple[str, ...] = ()
    """Layers that are also trained in full, by parts of their names, e.g. action_out_proj."""
    bf16_base: bool = False
    """Keep the frozen weights of linear layers in bfloat16: half their memory, but they are rounded."""


@dataclass(frozen=True)
class TrainCfg(Generic[Algo, PolicyCfg]):
    """Complete config of a training run."""

    sim: SimCfg
    algo: Algo
    """Settings of the algorithm."""
    policy: PolicyCfg
    """Settings of a new policy; unused if the run starts from a stored policy, see `init_changes`."""
    seed: int = 0
    """Seeds every random stream."""
    init_from: str | None = field(default=None, metadata=reads("policy", kept=True))
    """Run or checkpoint whose policy is fine-tuned; None trains from scratch."""
    init_changes: tuple[str, ...] = ()
    """Changed settings of this policy, "name=value", limited to those on which its weights do not depend: e.g.
    temperature=0.7 of a token policy, trained=expert of a flow VLA."""
    dataset: str | None = field(default=None, metadata=reads("dataset"))
    """Directory of demonstrations, for algorithms that learn from them."""
    accept_data: bool = False
    """Accept a dataset with doubtful properties, without warnings. Contradictions to the sim are refused in any case;
    see docs/datasets.md."""
    rewards: tuple[WeightedReward, ...] = ()
    """Reward sources of the training sim, whose weighted sum is the reward; none is the sim's own reward. Flags:
    `--reward NAME [NAME ...]` and `--reward.NAME.FIELD`."""
    evaluation: EvalCfg = EvalCfg()
    checkpoint_every: int | None = None
    """Iterations between two checkpoints, for algorithms that count updates or episodes; evaluations and the last
    iteration are saved as well. None: 10, unless `checkpoint_every_env_steps` is given."""
    checkpoint_every_env_steps: int | None = None
    """Env steps of training between two checkpoints, summed over envs; None: `checkpoint_every` counts iterations."""
    tuned_on: RewardKind = "any"
    """Kind of reward that the settings were tuned on: "success" is 1 at a success that ends the episode, else 0;
    another kind, met in training, is warned about."""
    keep: int = 3
    """Number of newest checkpoints to keep; the best is kept in addition."""
    device: str = "cpu"
    """Device of the networks: "cpu", "cuda", "cuda:1"; with torchrun "cuda" is the GPU with each process's local rank,
    with cluster.learners that which Ray gives each.
    A sim that steps on another device stays there. Small networks are faster on a CPU."""
    torch_threads: int = 1
    """Torch threads; while envs step, the physics uses the cores."""
    update_threads: int | None = None
    """Torch threads during updates; None uses `torch_threads`. Results differ by rounding."""
    intervention: InterventionCfg = field(default_factory=InterventionCfg)
    """Interventions by a person or expert during training, for algorithms that learn from them."""
    lora: LoraCfg = field(default_factory=LoraCfg)
    """LoRA adapters, for policies too large to train in full."""
    recompute: bool = False
    """Activation checkpointing of the pretrained policy: blocks keep only their inputs and are recomputed in the
    backward pass. Less memory, about a third more computation, the same gradients."""
    cache: Cache = "none"
    """Feature cache for the frozen part of the pretrained policy: "image-features" caches the output of the vision
    encoder, "context" all features from which actions are computed; they are computed once instead of in each epoch."""
    actor: ActorCfg = field(default_factory=ActorCfg)
    """Actor process that steps the sim."""
    cluster: ClusterCfg = field(default_factory=ClusterCfg)
    """Workers that collect rollouts."""
    stop_at_success: float | None = None
    """Stop when two evaluations in a row reach this success rate; None runs the whole budget."""
    stop_at_return: float | Literal["solved"] | None = None
    """Stop when two evaluations in a row reach this mean return, the second no better than any before; "solved" takes
    the return at which the sim counts as solved, if it states one. None runs the whole budget."""
    fsdp: bool = False
    """With torchrun: shard the gradients and optimizer states of the trained weights over the processes (FSDP2), for
    policies that are trained in full and whose optimizer states do not fit into one GPU's memory."""
    dist_timeout_s: float = 1800.0
    """With torchrun: time that a process waits for the others, s; an evaluation by the first process must be
    shorter."""


START = "--init-from RUN (robotrl import makes one of a published checkpoint)"


@runtime_checkable
class CountsEnvSteps(Protocol):
    """Settings of an algorithm whose budget is in env steps, and whose iterations have a fixed number of them."""

    env_steps: int
    num_steps: int
    """Env steps per env in an iteration."""


@runtime_checkable
class CountsUpdates(Protocol):
    """Settings of an algorithm that steps no sim: its budget is in gradient updates."""

    updates: int
    updates_per_iteration: int


def in_env_steps(cfg: TrainCfg[Algo, PolicyCfg]) -> TrainCfg[Algo, PolicyCfg]:
    """The same config with its schedule of evaluations and checkpoints in env steps instead of iterations.

    With the number of envs and steps that it has, they follow the same iterations; with others, the same env steps. The
    iterations of an offline part are counted as before: they are a number of updates.

    Args:
        cfg: a config whose schedule is in iterations.

    Raises:
        ConfigError: its algorithm counts updates or episodes.
    """
    if not isinstance(cfg.algo, CountsEnvSteps):
        raise ConfigError(f"{type(cfg.algo).__name__} counts no env steps: expected a schedule in iterations")
    length = cfg.algo.num_steps * cfg.sim.num_envs
    evaluated, saved = (
        (DEFAULT_EVERY if every is None else every) * length for every in (cfg.evaluation.every, cfg.checkpoint_every)
    )
    if has_offline_part(cfg.algo):
        every, saved_every = (
            DEFAULT_EVERY if every is None else every for every in (cfg.evaluation.every, cfg.checkpoint_every)
        )
        evaluation = replace(cfg.evaluation, every=every, every_env_steps=evaluated)
        return replace(cfg, evaluation=evaluation, checkpoint_every=saved_every, checkpoint_every_env_steps=saved)
    evaluation = replace(cfg.evaluation, every=None, every_env_steps=evaluated)
    return replace(cfg, evaluation=evaluation, checkpoint_every=None, checkpoint_every_env_steps=saved)


def has_offline_part(algo: object) -> bool:
    """True if an algorithm may have both: iterations of updates on a dataset, then iterations of env steps."""
    return isinstance(algo, CountsEnvSteps) and isinstance(algo, CountsUpdates)


def options_of(sim: SimCfg) -> SimOptions:
    """Config of a run's sim.

    Raises:
        ConfigError: the sim or one of its options is unknown.
    """
    options: Any = sim.options
    if isinstance(options, tuple):  # presets of other packages, written for version 0.1
        options = name_values(options, "sim.options")
    return sim_options(sim.name, options) if options is None or isinstance(options, Mapping) else options


def changed_options(sim: SimCfg) -> dict[str, Any]:
    """Options of a run's sim that differ from the defaults, as JSON values by name."""
    options = options_of(sim)
    return changed_fields(options, sim_options(sim.name))


def resolved(cfg: TrainCfg[Any, Any]) -> TrainCfg[Any, Any]:
    """The same config with the sim's options as their dataclass.

    Raises:
        ConfigError: the sim or one of its options is unknown.
    """
    return replace(cfg, sim=replace(cfg.sim, options=options_of(cfg.sim)))


def to_json(cfg: TrainCfg[Any, Any]) -> dict[str, Any]:
    """Resolved config as JSON values, with the class names needed to read it back."""
    sim = {**asdict(cfg.sim), "options": json_values(options_of(cfg.sim))}
    return {
        **asdict(cfg),
        "sim": sim,
        "revision": REVISION,
        "types": {part: _name_of(type(getattr(cfg, part))) for part in ("algo", "policy")},
    }


def from_json(data: Mapping[str, Any], types: Mapping[str, type]) -> TrainCfg[Any, Any]:
    """Read back what `to_json` wrote.

    Args:
        data: the saved config.
        types: the classes of "algo" and "policy".

    Raises:
        ConfigError: a field is missing or unknown: the config is from another version.
    """
    given = {key: value for key, value in data.items() if key not in ("types", "revision")}
    # earlier versions had no bound
    unbounded: dict[str, Any] = {"max_share": 1.0}
    try:
        parts: dict[str, Any] = {
            "sim": SimCfg(**given["sim"]),
            "init_changes": tuple(given.get("init_changes", ())),
            "evaluation": EvalCfg(**(unbounded | given["evaluation"])),
            # absent in configs of earlier versions
            "rewards": tuple(reward_from_json(one) for one in given.get("rewards", ())),
            "intervention": InterventionCfg(**given.get("intervention", {})),
            "actor": ActorCfg(**given.get("actor", {})),
            "cluster": ClusterCfg(**given.get("cluster", {})),
            "lora": LoraCfg(**settings_from_json(given.get("lora", {}))),
            "algo": settings_of(types["algo"], given["algo"]),
            "policy": types["policy"](**settings_from_json(given["policy"])),
        }
        cfg: TrainCfg[Any, Any] = TrainCfg(**{**given, **parts})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"the saved config does not fit this version of robotrl: {short(str(error))}") from error
    return resolved(cfg)


def reward_from_json(data: Mapping[str, Any]) -> WeightedReward:
    """Reward source from {"name", "weight", "cfg"}; the registry knows the class of its settings.

    Raises:
        ConfigError: the name is unknown, or its package cannot be imported.
        TypeError: a setting is missing or unknown.
    """
    settings = settings_of(REWARDS.load(data["name"]), data["cfg"])
    return WeightedReward(data["name"], data["weight"], settings)


def check(cfg: TrainCfg[Any, Any]) -> None:
    """Check values that are invalid in every run.

    Raises:
        ConfigError: the field, its value and what was expected.
    """
    check_settings(cfg)
    if not isinstance(cfg.algo, LearnerCfg):
        raise ConfigError(f"algo is {type(cfg.algo).__name__}: expected a subclass of robotrl.spec.LearnerCfg")
    if not 0 <= cfg.seed < 2**31:
        raise out_of_range("seed", cfg.seed, "0 to 2147483647")
    check_num_envs("sim.num_envs", cfg.sim.num_envs)
    check_num_envs("evaluation.num_envs", cfg.evaluation.num_envs)
    for name, value, least in (
        ("evaluation.episodes", cfg.evaluation.episodes, 0),
        ("evaluation.animation", cfg.evaluation.animation, 0),
        ("evaluation.second_look", cfg.evaluation.second_look, 0),
        ("keep", cfg.keep, 1),
        ("torch_threads", cfg.torch_threads, 1),
        ("update_threads", cfg.torch_threads if cfg.update_threads is None else cfg.update_threads, 1),
        ("actor.lead", cfg.actor.lead, 1),
        ("actor.restarts", cfg.actor.restarts, 0),
        ("cluster.learners", cfg.cluster.learners, 1),
        ("cluster.learner_cpus", cfg.cluster.learner_cpus, 1),
        ("cluster.workers", cfg.cluster.workers, 1 if cfg.cluster.learners == 1 else 0),
        ("cluster.cpus", cfg.cluster.cpus, 1),
        ("cluster.max_staleness", cfg.cluster.max_staleness, 0),
        ("cluster.restarts", cfg.cluster.restarts, 0),
    ):
        check_at_least(name, value, least)
    for part, settings in (("actor", cfg.actor), ("cluster", cfg.cluster)):
        for name in ("start_timeout_s", "timeout_s"):
            if not 0 < getattr(settings, name) < math.inf:
                raise out_of_range(f"{part}.{name}", getattr(settings, name), "above 0 seconds")
    if not 0 < cfg.dist_timeout_s < math.inf:
        raise out_of_range("dist_timeout_s", cfg.dist_timeout_s, "above 0 seconds")
    cfg.algo.check()
    _check_schedule(cfg)
    _check_lora(cfg)
    _check_cluster(cfg)
    if cfg.recompute and cfg.init_from is None:
        raise ConfigError(f"recompute is True and init_from is not given: expected a policy to fine-tune, {START}")
    if cfg.cache not in CACHES:
        raise unknown("cache", str(cfg.cache), CACHES)
    if cfg.init_changes and cfg.init_from is None:
        raise ConfigError(
            f"init_changes is {cfg.init_changes} and init_from is not given: expected a policy to change, {START}"
        )
    if cfg.cache != "none" and cfg.init_from is None:
        raise ConfigError(f"cache is {cfg.cache!r} and init_from is not given: expected a policy to fine-tune, {START}")
    _check_rewards(cfg)
    if cfg.sim.curriculum is not None:
        check_number("sim.curriculum", cfg.sim.curriculum, 0.01, 100.0)
    if cfg.evaluation.score not in ("success", "return"):
        raise unknown("evaluation.score", str(cfg.evaluation.score), ("success", "return"))
    if not cfg.evaluation.episodes:
        for name, value in (
            ("evaluation.second_look", cfg.evaluation.second_look or None),
            ("stop_at_success", cfg.stop_at_success),
            ("stop_at_return", cfg.stop_at_return),
        ):
            if value is not None:
                raise ConfigError(f"{name} is {value!r} and evaluation.episodes is 0: expected evaluations to go by")
    if cfg.evaluation.second_look and cfg.evaluation.score != "success":
        raise ConfigError(
            f"evaluation.second_look is {cfg.evaluation.second_look} and evaluation.score {cfg.evaluation.score!r}:"
            " expected 0, it compares success rates"
        )
    if cfg.stop_at_success is not None and not 0 < cfg.stop_at_success <= 1:
        raise out_of_range("stop_at_success", cfg.stop_at_success, "above 0, at most 1")
    _check_stop_at_return(cfg)


def _check_rewards(cfg: TrainCfg[Any, Any]) -> None:
    names = [one.name for one in cfg.rewards]
    for one in cfg.rewards:
        check_type("rewards name", one.name, str)
        if not re.fullmatch(r"[A-Za-z][\w-]*", one.name):
            raise ConfigError(f"reward {short(repr(one.name))}: expected a name of letters, digits, - and _")
        if names.count(one.name) > 1:
            raise ConfigError(
                f"reward {one.name!r} is given {names.count(one.name)} times: expected once, with a weight"
            )
        check_number(f"reward.{one.name}.weight", one.weight, -1e6, 1e6)
        check_settings(one.cfg, f"reward.{one.name}.")
    if names and not cfg.algo.reads_rewards:
        raise ConfigError(
            f"rewards are {', '.join(names)}, and {type(cfg.algo).__name__} as it is set learns from no reward of the"
            " sim: expected a method that does, or, of GRPO, algo.progress return"
        )


def _check_schedule(cfg: TrainCfg[Any, Any]) -> None:
    evaluation = cfg.evaluation
    if not 0 < evaluation.max_share <= 1:
        raise out_of_range("evaluation.max_share", evaluation.max_share, "above 0, at most 1")
    for name, iterations, env_steps, least in (
        ("evaluation.every", evaluation.every, evaluation.every_env_steps, 0),
        ("checkpoint_every", cfg.checkpoint_every, cfg.checkpoint_every_env_steps, 1),
    ):
        if iterations is not None:
            check_at_least(name, iterations, least)
        if env_steps is not None:
            check_at_least(f"{name}_env_steps", env_steps, least)
        if env_steps and isinstance(cfg.algo, CountsUpdates) and not isinstance(cfg.algo, CountsEnvSteps):
            raise ConfigError(
                f"{name}_env_steps is {env_steps} and {type(cfg.algo).__name__} steps no sim: expected {name}, in"
                f" iterations of {cfg.algo.updates_per_iteration} updates"
            )
        if iterations and env_steps is not None and not has_offline_part(cfg.algo):
            length = cfg.algo.num_steps * cfg.sim.num_envs if isinstance(cfg.algo, CountsEnvSteps) else 0
            hint = f"; {iterations} iterations of {cfg.sim.num_envs} envs are {iterations * length}" if length else ""
            raise ConfigError(
                f"{name} is {iterations} iterations beside {name}_env_steps {env_steps}: expected"
                f" {name}_env_steps alone{hint}"
            )


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
        raise ConfigError(f"lora.rank is {lora.rank} and init_from is not given: expected a policy to adapt, {START}")
    if cfg.actor.process:
        raise ConfigError(f"lora.rank is {lora.rank} and actor.process is True: expected an actor in this process")


def _check_cluster(cfg: TrainCfg[Any, Any]) -> None:
    cluster = cfg.cluster
    if cluster.name == "none":
        changed = [one.name for one in fields(cluster) if getattr(cluster, one.name) != one.default]
        if changed:
            raise ConfigError(
                f"cluster.{changed[0]} is {getattr(cluster, changed[0])!r} and cluster is 'none': expected cluster ray"
                " or local"
            )
        return
    if cluster.name == "local" and cluster.address is not None:
        raise ConfigError(f"cluster.address is {cluster.address!r} and cluster is 'local': expected cluster ray")
    if cluster.learners > 1 and cfg.device.startswith("cuda:"):
        raise ConfigError(
            f"device is {cfg.device!r} and cluster.learners is {cluster.learners}: expected cuda, each learner has a"
            " GPU of its own"
        )
    if not cluster.on:
        if cluster.max_staleness:
            raise ConfigError(
                f"cluster.max_staleness is {cluster.max_staleness} and cluster.workers is 0: expected 0, or workers"
                " that collect ahead"
            )
        return
    algo = type(cfg.algo).__name__
    if not cfg.algo.clusters:
        raise CapabilityError(
            f"{algo} collects no rollouts that workers could collect, and cluster is {cluster.name!r}: expected cluster"
            " none, or an algorithm that steps the sim, such as ppo, reinflow, grpo or sac"
        )
    counts: Any = cfg.algo
    if isinstance(counts, CountsEnvSteps) and not counts.env_steps:
        raise ConfigError(
            f"algo.env_steps is 0, and cluster is {cluster.name!r}: expected cluster none, or env steps for workers to"
            " take"
        )
    if cluster.max_staleness and not cfg.algo.corrects_staleness:
        raise CapabilityError(
            f"{algo} does not correct for rollouts of an older policy, and cluster.max_staleness is"
            f" {cluster.max_staleness}: expected 0, or an algorithm that does or has a replay, such as ppo, reinflow,"
            " grpo or sac"
        )
    if cfg.sim.num_envs % cluster.workers:
        raise ConfigError(
            f"cluster.workers is {cluster.workers} and sim.num_envs is {cfg.sim.num_envs}: expected a number of workers"
            " that divides it"
        )
    for name, value, off in (
        ("actor.process", cfg.actor.process, False),
        ("fsdp", cfg.fsdp and cluster.learners == 1, False),
        ("intervention.by", cfg.intervention.by, "nobody"),
    ):
        if value != off:
            raise ConfigError(f"{name} is {value!r} beside cluster {cluster.name!r}: expected {off!r}")


RENAMED = {"robotrl.algos.look:LookCfg": "robotrl.algos.pretrain:PretrainCfg"}
"""Stored names of moved config classes to their present names."""


def class_named(name: str) -> type:
    """Config class named by a stored run ("module:Class").

    Raises:
        ConfigError: there is no such class, or it is not a config class.
    """
    module, _, attribute = RENAMED.get(name, name).partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, TypeError, SyntaxError) as error:
        raise ConfigError(f"config class {short(repr(name))} is unknown here: {short(str(error))}") from error
    # a run's directory may come from a stranger: never call anything but config classes
    if not (isinstance(found, type) and is_dataclass(found) and hasattr(found, "build")):
        raise ConfigError(f"config class {short(repr(name))} is no config: expected a dataclass with a method `build`")
    return found


def _name_of(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"
