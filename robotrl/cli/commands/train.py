"""`robotrl train`."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, get_type_hints

import tyro

from robotrl.cli.commands.parsing import parse
from robotrl.cli.commands.sim_flags import refuse_old_flags
from robotrl.errors import CapabilityError, ConfigError
from robotrl.registry import ALGORITHMS, POLICIES, PRESETS, SIMS
from robotrl.spec.json_fields import renamed_field

if TYPE_CHECKING:
    from robotrl.run.callbacks import Callback

COMMAND = "robotrl train"
HELP_ALL = "--help-all"


@dataclass(frozen=True)
class LogFlags:
    """Options of any training beside its config; a run does not store them."""

    logger: Literal["tensorboard", "wandb"] = "tensorboard"
    """Logger of scalars: TensorBoard files, which every run has, or also Weights & Biases (robotrl[wandb])."""
    callback: Annotated[tuple[str, ...], tyro.conf.arg(metavar="MODULE:CLASS ...")] = ()
    """Callbacks of your own: classes that derive from robotrl.run.callbacks.Callback, made without arguments."""
    pause_at_env_steps: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Save and stop after the iteration that reaches this number of env steps; --resume goes on."""
    pause_at_iteration: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Save and stop after this iteration; --resume goes on."""


@dataclass(frozen=True, kw_only=True)
class Resume(LogFlags):
    """Resume a run from its newest undamaged checkpoint."""

    resume: Path
    """Directory of the run."""
    accept_changed_inputs: bool = False
    """Continue although the config, the dataset or another input has changed since the run began."""


@dataclass(frozen=True)
class RunFlags(LogFlags):
    """Options of a new run beside its config and the names of its parts."""

    run_dir: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """The run's directory; default runs/NAME."""


class ChosenNames(NamedTuple):
    """Names that choose the parts of a config, before their flags are known."""

    preset: str | None
    sim: str | None
    policy: str | None
    algo: str | None
    profile: str | None

    @property
    def run_name(self) -> str:
        """Name of the run's default directory."""
        if self.preset is not None:
            return self.preset
        return f"{str(self.sim).rpartition('/')[2]}-{self.algo}"


def usage() -> str:
    """The text of `robotrl train --help`."""
    from robotrl.cli.profiles import ABOUT

    profiles = "\n".join(f"  {name:<11} {about}" for name, about in ABOUT.items())
    presets = "\n".join(f"  {name}" for name in PRESETS.names())
    return (
        f"usage: {COMMAND} --sim NAME --algo NAME [--policy NAME] [--reward NAME ...] [--FIELD VALUE ...]\n"
        f"       {COMMAND} PRESET [--sim NAME] [--algo NAME] [--policy NAME] [--reward NAME ...] [--FIELD VALUE ...]\n"
        f"       {COMMAND} --resume RUN [--accept-changed-inputs] [--logger wandb] [--callback MODULE:CLASS]\n\n"
        "Train any algorithm on any sim, or a preset (a tuned recipe), with any field of the config overridden; or go\n"
        "on with a run that was stopped or killed.\n\n"
        f"  --sim      {', '.join([*SIMS.names(), 'gym/ID'])}\n"
        f"  --algo     {', '.join(ALGORITHMS.names())}\n"
        f"  --policy   {', '.join(POLICIES.names())}; default: the one that the algorithm trains\n"
        "  --run-dir  the run's directory; default runs/NAME\n"
        "  --seeds    N: as many runs with seeds in a row, RUN_DIR/seed-0 and so on; typed again, it goes on\n"
        "  --logger   wandb: Weights & Biases beside TensorBoard\n"
        "  --callback MODULE:CLASS ...: callbacks of your own\n"
        "  --pause-at-env-steps, --pause-at-iteration\n"
        "             N: save and stop there; --resume goes on\n\n"
        f"presets:\n{presets}\n\nprofiles (--profile NAME):\n{profiles}\n\n"
        f"{COMMAND} PRESET --help, or {COMMAND} --sim NAME --algo NAME --help, shows the fields that people set most,\n"
        "--help-all in its place all fields and their values."
    )


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    if not argv or argv[0] in ("-h", "--help"):
        print(usage())
        return 0
    if any(word.partition("=")[0] in ("--resume", "--accept-changed-inputs") for word in argv):
        args = parse(Resume, COMMAND, argv)
        _loading(f"--resume {args.resume}")
        hooks = _callbacks(args)
        from robotrl.run.directory import Run
        from robotrl.training import config_of, resume

        if _alone() and _placed_by_ray(config := config_of(Run.open(args.resume))):
            return _train_on_ray(config, argv, args.resume)
        _tell(resume(args.resume, hooks, accept_changed_inputs=args.accept_changed_inputs))
        return 0
    seeds, argv = _seeds(argv)
    names, rest = split_names(argv)
    if {"-h", "--help", HELP_ALL} & set(argv):
        print(_help(names, rest))
        return 0
    _loading(names.run_name)
    config, flags = parse_run(names, rest)
    if seeds is not None:
        return _train_seeds(seeds, argv, config, flags.run_dir, names.run_name)
    hooks = _callbacks(flags)
    from robotrl.run.free_path import free_run_dir
    from robotrl.training import train

    run_dir = free_run_dir(names.run_name) if flags.run_dir is None else flags.run_dir
    if _alone() and _placed_by_ray(config):
        from robotrl.config import check, resolved

        check(resolved(config))
        command = argv if flags.run_dir is not None else [*argv, "--run-dir", str(run_dir)]
        return _train_on_ray(config, command, run_dir)
    try:
        path = train(config, run_dir, hooks)
    except CapabilityError as error:
        raise _with_fitting_policy(error, names, config) from error
    _tell(path)
    return 0


def _alone() -> bool:
    """True if nobody started this process as one of several that learn together."""
    return "WORLD_SIZE" not in os.environ


def _placed_by_ray(config: Any) -> bool:
    """True if Ray starts the processes that train this config."""
    from robotrl.config import TrainCfg

    return isinstance(config, TrainCfg) and config.cluster.name == "ray" and config.cluster.learners > 1


def _train_on_ray(config: Any, command: Sequence[str], run_dir: Path) -> int:
    """Let learners that Ray places run a command of this program; returns the exit code.

    Args:
        config: the run's config.
        command: arguments of `robotrl train`.
        run_dir: the run's directory.
    """
    from robotrl.cluster.ray_learners import RayLearners
    from robotrl.run.locking import StopSignals

    signals = StopSignals()
    with contextlib.closing(RayLearners(config, command, run_dir)) as learners:
        signals.install()
        try:
            code = learners.run(signals)
        finally:
            signals.restore()
    if code == 0:
        _tell(run_dir)
    return code


def _help(names: ChosenNames, argv: Sequence[str]) -> str:
    """The page of `--help`, or of `--help-all`, which a config of another package's own type has for both."""
    from robotrl.cli.profiles import with_profile
    from robotrl.cli.train_help import short_help, without_none
    from robotrl.composition import with_schedule
    from robotrl.config import TrainCfg

    config = _base(names)
    config = config if names.profile is None else with_profile(config, names.profile)
    # the settings of reward sources stand on the whole page
    if HELP_ALL not in argv and "--reward" not in argv and isinstance(config, TrainCfg):
        about = "" if names.preset is None else inspect.getdoc(PRESETS.load(names.preset)) or ""
        return short_help(_command(names), about, with_schedule(config) if names.preset is None else config)
    said = io.StringIO()
    rest = [word for word in argv if word not in ("-h", "--help", HELP_ALL)]
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        parse_run(names, [*rest, "--help"])
    return without_none(said.getvalue().rstrip())


def _command(names: ChosenNames) -> str:
    return f"{COMMAND} {names.preset or f'--sim {names.sim} --algo {names.algo}'}"


def _seeds(argv: Sequence[str]) -> tuple[int | None, list[str]]:
    """Split `--seeds N` off the arguments; returns N, and the other arguments.

    Raises:
        ConfigError: it is no whole number.
    """
    text, rest = _taken("--seeds", argv)
    if text is not None and not text.isdecimal():
        raise ConfigError(f"--seeds is {text!r}: expected a whole number, e.g. 5")
    return (None if text is None else int(text)), rest


def _train_seeds(count: int, argv: Sequence[str], config: Any, run_dir: Path | None, name: str) -> int:
    """Train several seeds, from the config's seed on."""
    from robotrl.cli.seeds import train_seeds

    _, rest = _taken("--run-dir", argv)
    _, rest = _taken("--seed", rest)
    folder = Path("runs", name) if run_dir is None else run_dir
    return train_seeds(count, config.seed, rest, folder, config.evaluation.score)


def _with_fitting_policy(error: CapabilityError, names: ChosenNames, config: Any) -> CapabilityError:
    """The error with the policy that the algorithm trains by default, if another one was chosen."""
    from robotrl.composition import HasDefaultPolicy

    algo = config.algo
    if names.policy is None or not isinstance(algo, HasDefaultPolicy) or algo.default_policy == names.policy:
        return error
    return CapabilityError(f"{error}; a policy that fits: --policy {algo.default_policy}")


def _callbacks(flags: LogFlags) -> list[Callback]:
    """Make the callbacks that were asked for."""
    from robotrl.run.callbacks import load_callback

    hooks = [load_callback(target) for target in flags.callback]
    if flags.logger == "wandb":
        from robotrl.run.loggers.wandb_logger import WandbLogger

        hooks.append(WandbLogger())
    if flags.pause_at_env_steps is not None or flags.pause_at_iteration is not None:
        from robotrl.run.sessions.pause import PauseAt

        hooks.append(PauseAt(flags.pause_at_env_steps, flags.pause_at_iteration))
    return hooks


def _tell(path: Path) -> None:
    """Print the run's directory; with several processes only the first one, which writes it, does so."""
    if _first():
        print(path)


def _loading(what: str) -> None:
    """Announce slow work before torch is imported, which takes seconds."""
    if _first():
        print(f"{COMMAND} {what}: loading", file=sys.stderr, flush=True)


def _first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def split_names(argv: Sequence[str]) -> tuple[ChosenNames, list[str]]:
    """Split off the words that choose the parts of a config; returns them, and the other arguments.

    Raises:
        ConfigError: neither a preset nor a sim and an algorithm are named, or a name is unknown.
    """
    refuse_old_flags(COMMAND, argv)
    given: dict[str, str | None] = {}
    rest = list(argv)
    for flag in ("sim", "policy", "algo", "profile"):
        given[flag], rest = _taken(f"--{flag}", rest)
    preset = None
    if rest and not rest[0].startswith("-"):
        preset, *rest = rest
    names = ChosenNames(preset, given["sim"], given["policy"], given["algo"], given["profile"])
    for table, name in ((SIMS, names.sim), (POLICIES, names.policy), (ALGORITHMS, names.algo)):
        if name is not None:
            table.check(name)
    if preset is not None:
        return names._replace(preset=_preset(preset)), rest
    if names.sim is None or names.algo is None:
        missing = " and ".join(f"--{part} NAME" for part in ("sim", "algo") if given[part] is None)
        raise ConfigError(
            f"missing: a preset, or {missing}: {COMMAND} PRESET [options], or {COMMAND} --sim NAME --algo NAME"
        )
    return names, rest


def _taken(flag: str, argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """Split off one flag with its value; returns the value, and the other arguments.

    Raises:
        ConfigError: the flag is given twice, or without a value.
    """
    rest, found = list[str](), list[str]()
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        if name != flag:
            rest.append(word)
            continue
        value = value if equals else next(words, "")
        if not value or value.startswith("-"):
            raise ConfigError(f"{flag} is given without a name")
        found.append(value)
    if len(found) > 1:
        raise ConfigError(f"{flag} is given {len(found)} times: expected once")
    return (found[0] if found else None), rest


def _preset(name: str) -> str:
    """The name of a preset as typed.

    Raises:
        ConfigError: it is none; for a sim or an algorithm, the commands that use it.
    """
    if name in PRESETS.rows():
        return name
    if name in SIMS.rows() or name.startswith(tuple(SIMS.families)):
        base = name.rpartition("/")[2]
        typed = [preset for preset in PRESETS.names() if preset.startswith(f"{base}-")]
        recipes = f", or a preset of it, one of {', '.join(typed)}" if typed else ""
        raise ConfigError(f"{name!r} is a sim: expected {COMMAND} --sim {name} --algo NAME{recipes}")
    if name in ALGORITHMS.rows():
        typed = [preset for preset in PRESETS.names() if preset.endswith(f"-{name}")]
        recipes = f", or a preset of it, one of {', '.join(typed)}" if typed else ""
        raise ConfigError(f"{name!r} is an algorithm: expected {COMMAND} --sim NAME --algo {name}{recipes}")
    return PRESETS.check(name)


def _made(name: str) -> Any:
    """The config of a preset.

    Raises:
        ConfigError: the function of an outside package calls a config class with a field that it does not have.
    """
    make = PRESETS.load(name)
    try:
        return make()
    except TypeError as error:
        field = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if field is None:
            raise
        new = renamed_field(f"algo.{field[1]}") or renamed_field(field[1])
        hint = f": it is now {new.rpartition('.')[2]!r}" if new else ""
        raise ConfigError(f"preset {name!r} sets the unknown field {field[1]!r}{hint} ({make.__module__})") from error


def _base(names: ChosenNames) -> Any:
    """The config before flags."""
    from robotrl.composition import algorithm_cfg, compose, policy_cfg, with_algo, with_sim
    from robotrl.config import TrainCfg, resolved

    if names.preset is None:
        return compose(str(names.sim), str(names.algo), names.policy)
    config = _made(names.preset)
    if not isinstance(config, TrainCfg):  # a preset of another package may have any type
        return config
    if names.algo is not None:
        config = with_algo(config, algorithm_cfg(names.algo))
    if names.policy is not None:
        config = dataclasses.replace(config, policy=policy_cfg(names.policy))
    if names.sim is None:
        return resolved(config)
    config, lost = with_sim(config, names.sim)
    if lost:
        print(f"sim {names.sim!r} has no {', '.join(lost)}: left out of preset {names.preset}", file=sys.stderr)
    return config


def parse_config(names: ChosenNames, argv: Sequence[str]) -> tuple[Any, Path | None]:
    """Config of the named parts with the overrides of `argv`, and the run directory if one was given."""
    config, flags = parse_run(names, argv)
    return config, flags.run_dir


def parse_run(names: ChosenNames, argv: Sequence[str]) -> tuple[Any, RunFlags]:
    """Config of the named parts with the overrides of `argv`, and the other options.

    Raises:
        ConfigError: no such preset, no such field, or an invalid value.
    """
    from robotrl.cli.commands.rewards.flags import RewardFlags
    from robotrl.cli.profiles import with_profile
    from robotrl.composition import with_schedule

    before = _base(names)
    if names.profile is not None:
        before = with_profile(before, names.profile)
    rewards, argv = RewardFlags.split(before, argv)
    config = rewards.hidden(before)
    # One parser for the options and the config's fields, so that help lists both and typos are matched against both.
    field = ("config", Annotated[_concrete(config), tyro.conf.arg(name="")], dataclasses.field(default=config))
    both = dataclasses.make_dataclass("Train", [field, *rewards.fields()], bases=(RunFlags,), frozen=True, kw_only=True)
    both.__doc__ = f"Train {names.run_name}. --sim, --policy, --algo, --reward and --profile NAME choose its parts."
    parsed: Any = parse(both, _command(names), argv)
    _check_policy(config, parsed.config, names)
    config = rewards.restored(parsed.config, parsed)
    return with_schedule(config) if names.preset is None else config, parsed


def config_of(arguments: str) -> Any:
    """Config that `robotrl train ARGUMENTS` trains.

    Args:
        arguments: a preset or `--sim NAME --algo NAME`, and flags, as typed after `robotrl train`.

    Raises:
        ConfigError: no such preset, no such field, or an invalid value.
    """
    return parse_config(*split_names(shlex.split(arguments)))[0]


def _check_policy(before: Any, config: Any, names: ChosenNames) -> None:
    """Check that no policy is chosen or set for a run that starts from a stored policy.

    Args:
        before: the config without flags; a preset of another package may have any type.
        config: the same with the flags.
        names: the chosen names.

    Raises:
        ConfigError: the run starts from a stored policy, and a policy or its settings are given.
    """
    from robotrl.config import TrainCfg
    from robotrl.policies.guarded import GuardedCfg
    from robotrl.policies.reranked import RerankedCfg
    from robotrl.policies.steered import SteeredCfg

    # a noise actor, a discriminator or a risk critic is a new network around the stored policy
    around = (SteeredCfg, RerankedCfg, GuardedCfg)
    if not isinstance(config, TrainCfg) or config.init_from is None or isinstance(config.policy, around):
        return
    if names.policy is not None:
        raise ConfigError(
            f"--policy is {names.policy!r} beside --init-from, whose policy is as it was trained: expected one of them"
        )
    given = [
        f"{field.name}={getattr(config.policy, field.name)}"
        for field in dataclasses.fields(config.policy)
        if getattr(config.policy, field.name) != getattr(before.policy, field.name)
    ]
    if given:
        raise ConfigError(
            f"policy.* is given ({', '.join(given)}) beside init_from, whose policy is as it was trained: expected"
            f" --init-changes {given[0]}, if weights do not depend on it, or nothing"
        )


def _concrete(config: Any) -> Any:
    """Type of a config with its type parameters filled in from the values, so that tyro knows the fields' types."""
    cls: Any = type(config)
    hints = get_type_hints(cls)
    filled = {hint: type(getattr(config, name)) for name, hint in hints.items() if isinstance(hint, TypeVar)}
    parameters = getattr(cls, "__parameters__", ())
    return cls[tuple(filled[parameter] for parameter in parameters)] if parameters else cls
