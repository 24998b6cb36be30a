"""`robotrl traffic`: traffic of `bev/drive` that a network drives."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from robotrl.cli.commands.parsing import at_least, check_seed, parse, run_action
from robotrl.cli.outputs import fresh_folder
from robotrl.errors import ConfigError

if TYPE_CHECKING:
    from robotrl.sims.driving.traffic.populations import Population
    from robotrl.traffic.realism import TrafficSample

USAGE = """usage: robotrl traffic ACTION [options]

  clone      train a network that drives as populations of rule-based traffic do
  rift       fine-tune such a network in closed loop towards a style
  self-play  train a network that drives all cars of a world, without demonstrations
  resume     go on with self-play that was stopped
  measure    realism and character of populations, beside those of others

robotrl traffic ACTION --help shows the options."""
ACTIONS = ("clone", "rift", "self-play", "resume", "measure")
SHOWN = ("reward_per_s", "collisions_per_h", "entropy", "approx_kl")
"""Scalars of self-play's curve that are stored with its network, to four digits."""
FINE_PRINT = "overlap of distributions with the reference's, 0 to 1"


@dataclass(frozen=True)
class CloneArgs:
    """Record decisions of the rule-based traffic of bev/drive, and train a network that drives its cars."""

    out: Path
    """Folder of the network; `--sim.traffic FOLDER` drives with it."""
    populations: tuple[str, ...] = ("moderate", "aggressive")
    """Populations that are recorded, names from `robotrl list traffic`."""
    decisions: int = 200_000
    """Number of decisions to record, 1,000 or more."""
    updates: int = 6000
    """Gradient steps."""
    batch: int = 256
    """Decisions in a minibatch."""
    temperature: float = 1.0
    """Temperature at which cars draw candidates; 0: they take the best."""
    num_envs: int = 64
    """Number of envs that are recorded at once."""
    seed: int = 0
    """Seeds every random stream."""


@dataclass(frozen=True)
class RiftArgs:
    """Fine-tune the scores of a cloned network: every candidate is driven forward, and judged against the others."""

    base: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """Folder of the network to start from."""
    out: Path
    """Folder of the fine-tuned network."""
    style: Literal["published", "assertive", "cautious"] = "published"
    """Weights of the reward."""
    epochs: int = 16
    """Epochs, each on decisions of the present network."""
    buffer: int = 4096
    """Decisions of an epoch."""
    lr: float = 1e-4
    """Largest learning rate."""
    num_envs: int = 64
    """Number of envs that are driven at once."""
    seed: int = 0
    """Seeds every random stream."""


@dataclass(frozen=True)
class SelfPlayArgs:
    """Train a network that drives all cars of bev/drive by reinforcement alone: each car is an ego of its own."""

    out: Path
    """Folder of the network; `--sim.traffic FOLDER` drives with it. It also keeps checkpoints."""
    drivers: tuple[str, ...] = ("moderate", "aggressive")
    """Populations whose desired speeds, headways and accepted gaps the cars have, names from `robotrl list traffic`."""
    iterations: int = 200
    """Iterations of driving and learning."""
    steps: int = 60
    """Steps of each env in an iteration."""
    collision: float = 10.0
    """Cost of a collision; a second at the desired speed is worth 1."""
    passed_closed: float = 5.0
    """Cost of a decision at which a car cannot stop any more where its way is closed."""
    temperature: float = 1.0
    """Temperature at which the trained cars draw candidates; 0: they take the best."""
    lr: float = 1e-3
    """Learning rate at the beginning."""
    save_every: int = 20
    """Iterations between two checkpoints, from which `robotrl traffic resume FOLDER` goes on."""
    num_envs: int = 64
    """Number of envs that are driven at once."""
    seed: int = 0
    """Seeds every random stream."""


@dataclass(frozen=True)
class ResumeArgs:
    """Go on with self-play that was stopped, as if it had not been."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """Folder of `robotrl traffic self-play`."""


@dataclass(frozen=True)
class MeasureArgs:
    """Realism and character of populations of traffic on test starts."""

    traffic: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="TRAFFIC")]
    """Names from `robotrl list traffic`, or folders; each is measured by itself."""
    reference: tuple[str, ...] = ("moderate", "aggressive")
    """Populations that the others should resemble, together."""
    steps: int = 300
    """Steps of each env, more than 50."""
    num_envs: int = 96
    """Number of envs, each with another start."""
    seed: int = 0
    """Number of the block of starts; also seeds the ego's driver."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    actions = {"clone": _clone, "rift": _rift, "self-play": _self_play, "resume": _resume, "measure": _measure}
    return run_action(argv, USAGE, actions)


def _clone(argv: Sequence[str]) -> int:
    args = parse(CloneArgs, "robotrl traffic clone", argv)
    check_seed(args.seed)
    at_least("--decisions", args.decisions, 1000)
    at_least("--num-envs", args.num_envs, 1)
    from robotrl.registry import make_sim
    from robotrl.traffic.cloning import CloneCfg, clone
    from robotrl.traffic.decisions import record_decisions
    from robotrl.traffic.saving import save_traffic
    from robotrl.utils.progress import track

    cfg = CloneCfg(updates=args.updates, batch=args.batch, temperature=args.temperature, seed=args.seed)
    cfg.check()
    drivers = _rule_based("--populations", args.populations)
    began_s = time.monotonic()
    with fresh_folder("--out", args.out):
        sim = make_sim("bev/drive", args.num_envs, args.seed, traffic=args.populations, obs="none")
        with track(args.decisions, "decisions", "decisions") as bar:
            recorded = record_decisions(sim, args.decisions, args.seed, bar.advance)
        sim.close()
        with track(cfg.updates, "training", "updates") as bar:
            cloned = clone(recorded, cfg, lambda loss: bar.advance(note=f"loss {loss:.2f}"))
        about = {
            "method": "cloned",
            "populations": list(args.populations),
            "metrics": cloned.metrics,
            "train_s": time.monotonic() - began_s,
        }
        stored = save_traffic(args.out, cloned.net, drivers, about)
    metrics = cloned.metrics
    print(
        f"{args.out}: cloned from {metrics['decisions']:,.0f} decisions of {' and '.join(args.populations)}; hash"
        f" {stored.sha256[:12]}"
    )
    print(
        f"on {metrics['held_out']:,.0f} held-out decisions: the best candidate is the one taken in"
        f" {100 * metrics['accuracy']:.1f} %, the nearest profile is off by {metrics['profile_error']:.2f} m/s^2"
    )
    return 0


def _rift(argv: Sequence[str]) -> int:
    args = parse(RiftArgs, "robotrl traffic rift", argv)
    check_seed(args.seed)
    from robotrl.sims.bev.traffic.learned.stored import read_traffic
    from robotrl.traffic.rift import STYLES, RiftCfg, fine_tune
    from robotrl.traffic.saving import save_traffic
    from robotrl.utils.progress import track

    cfg = RiftCfg(
        style=args.style,
        epochs=args.epochs,
        warmup_epochs=min(RiftCfg.warmup_epochs, args.epochs),
        buffer=args.buffer,
        lr=args.lr,
        num_envs=args.num_envs,
        seed=args.seed,
    )
    cfg.check()
    base = read_traffic(args.base)
    began_s = time.monotonic()
    curve = list[dict[str, float]]()
    with fresh_folder("--out", args.out, inputs=[args.base]):
        with track(cfg.epochs, "fine-tuning", "epochs") as bar:

            def report(scalars: dict[str, float]) -> None:
                curve.append(scalars)
                bar.advance(note=f"return {scalars['return']:.2f}")

            net = fine_tune(base, f"{args.base.absolute()}", cfg, report)
        about = {
            "method": "rift",
            "base_sha256": base.sha256,
            "base": dict(base.about),
            "style": cfg.style,
            "reward": STYLES[cfg.style],
            "curve": curve,
            "train_s": time.monotonic() - began_s,
        }
        stored = save_traffic(args.out, net, base.drivers, about)
    print(
        f"{args.out}: style {cfg.style}, {cfg.epochs} epochs of {cfg.buffer:,} decisions; expected return of a decision"
        f" {curve[0]['return']:.2f} before, {curve[-1]['return']:.2f} in the last epoch; hash {stored.sha256[:12]}"
    )
    return 0


def _self_play(argv: Sequence[str]) -> int:
    args = parse(SelfPlayArgs, "robotrl traffic self-play", argv)
    check_seed(args.seed)
    from robotrl.traffic.self_play import SelfPlayCfg
    from robotrl.traffic.self_play_training import begin

    cfg = SelfPlayCfg(**{name: value for name, value in vars(args).items() if name not in ("out", "drivers")})
    cfg.check()
    drivers = _rule_based("--drivers", args.drivers)
    with fresh_folder("--out", args.out):
        begin(args.out, drivers, cfg)
    return _train(args.out)


def _resume(argv: Sequence[str]) -> int:
    args = parse(ResumeArgs, "robotrl traffic resume", argv)
    from robotrl.sims.bev.traffic.learned.stored import MANIFEST
    from robotrl.traffic.self_play_training import START

    if not (args.folder / START / MANIFEST).is_file():
        raise ConfigError(f"FOLDER is {args.folder}: expected one of `robotrl traffic self-play`")
    if (args.folder / MANIFEST).is_file():
        raise ConfigError(f"FOLDER is {args.folder}: its self-play has ended; expected one that was stopped")
    return _train(args.folder)


def _train(folder: Path) -> int:
    """Train in a folder of self-play to the end, and write its network."""
    from robotrl.sims.bev.traffic.learned.stored import read_traffic
    from robotrl.traffic.saving import save_traffic
    from robotrl.traffic.self_play_training import START, cfg_of, self_play
    from robotrl.utils.progress import track

    base = read_traffic(folder / START)
    cfg = cfg_of(base.about, folder)
    began_s = time.monotonic()
    with track(cfg.iterations, "self-play", "iterations") as bar:
        trained = self_play(
            folder, cfg, lambda scalars: bar.advance(note=f"reward {scalars['reward_per_s']:.2f} a second")
        )
    curve = trained.curve
    about = {
        "method": "self-play",
        "settings": base.about["self_play"],
        "curve": [{name: float(f"{row[name]:.4g}") for name in SHOWN} for row in curve],
        "train_s": time.monotonic() - began_s,
    }
    trained.net.temperature.fill_(cfg.temperature)
    stored = save_traffic(folder, trained.net, base.drivers, about)
    print(
        f"{folder}: {cfg.iterations} iterations, {sum(row['decisions'] for row in curve):,.0f} decisions; reward of a"
        f" second {curve[0]['reward_per_s']:.2f} at first, {curve[-1]['reward_per_s']:.2f} at last; collisions of a car"
        f" per hour {curve[0]['collisions_per_h']:.1f} and {curve[-1]['collisions_per_h']:.1f}; hash"
        f" {stored.sha256[:12]}"
    )
    return 0


def _rule_based(option: str, names: Sequence[str]) -> list[Population]:
    """Rule-based populations by name.

    Raises:
        ConfigError: an unknown name, or one of traffic that a network drives.
    """
    from robotrl.sims.bev.sim import driving
    from robotrl.sims.driving.traffic.populations import Population

    found = [one for one in driving(names) if isinstance(one, Population)]
    if len(found) < len(names):
        raise ConfigError(
            f"{option} is {' '.join(names)}: expected rule-based ones, such as moderate; a network drives the traffic"
            " of the others already"
        )
    return found


def _measure(argv: Sequence[str]) -> int:
    args = parse(MeasureArgs, "robotrl traffic measure", argv)
    check_seed(args.seed)
    at_least("--num-envs", args.num_envs, 1)
    from robotrl.traffic.measuring import WARM_UP, measure_traffic
    from robotrl.traffic.realism import BINS, character, realism

    at_least("--steps", args.steps, WARM_UP + 1)

    def measured(*traffic: str) -> TrafficSample:
        return measure_traffic(traffic, args.steps, args.num_envs, args.seed)

    reference = measured(*args.reference)
    kinds = ("realism", *BINS, *character(reference))
    print(f"realism and {', '.join(BINS)}: {FINE_PRINT}, {' and '.join(args.reference)}")
    print(f"{'traffic':<32}" + "".join(f"{kind.replace('_per_mille', ' %o'):>13}" for kind in kinds))
    own = {"realism": 1.0, **dict.fromkeys(BINS, 1.0), **character(reference)}
    print(_row(f"reference: {len(reference.speed):,} values", [own[kind] for kind in kinds]))
    for name in args.traffic:
        sample = measured(name)
        found = realism(sample, reference) | character(sample)
        print(_row(name, [found[kind] for kind in kinds]))
    return 0


def _row(name: str, values: Sequence[float]) -> str:
    shown = name if len(name) <= 31 else "..." + name[-28:]
    return f"{shown:<32}" + "".join(f"{value:>13.3f}" for value in values)
