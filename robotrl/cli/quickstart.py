"""The complete workflow on `mujoco/peg-insert`: demonstrations, clone, fine-tuning, export, real-time control.

It uses the public interface only. The figures of `summary.json` are on held-out starts (split `test`) that neither
training nor early stopping used.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from robotrl.api.exporting import export
from robotrl.api.rollouts import informative_starts, record_animation
from robotrl.api.run_history import read_history
from robotrl.config import TrainCfg
from robotrl.configs import peg_insert as presets
from robotrl.deploy.control.report import ControlReport
from robotrl.deploy.control.run import run_control
from robotrl.deploy.export import ExportReport
from robotrl.errors import ConfigError
from robotrl.fn.stats import Interval, wilson
from robotrl.registry import make_sim
from robotrl.report import Animation, CurvePoint, Level, ReportData, write_report
from robotrl.report.text import percent
from robotrl.rollout.demos import DemoReport, collect_demos
from robotrl.rollout.evaluate import RULE, EvalResult, evaluate
from robotrl.run.directory import Run
from robotrl.run.logs import read_scalars
from robotrl.run.policy_checkpoint import find_checkpoint, load_policy
from robotrl.spec import Split
from robotrl.training import train
from robotrl.utils.files import dump_json, replace_file
from robotrl.utils.peak_memory import PeakMemory
from robotrl.utils.progress import track
from robotrl.utils.provenance import versions

SIM = presets.SIM
NOISE, CLUMSINESS = 0.25, 1.0
"""Expert noise of the demonstrations; see docs/sims/peg-insert.md."""
MARKER = "quickstart.json"

TASK = (
    "A six-joint arm inserts a square peg into a square hole of random pose with 1 mm of room on each side, controlled"
    " at 20 Hz by Cartesian steps; success is the peg at half depth within 4 s."
)


@dataclass(frozen=True)
class QuickstartSizes:
    """Sizes of the job; the defaults are the quickstart, smaller ones are for tests."""

    demos: int = 40
    """Number of demonstrations, few on purpose."""
    episodes: int = 256
    """Number of held-out starts behind every success rate."""
    control_episodes: int = 16
    """Number of real-time episodes of the deployed bundle."""
    converged_updates: int = 3000
    """Gradient steps of the clone trained to convergence; its best evaluation counts."""
    clone: TrainCfg[Any, Any] = field(default_factory=presets.quickstart_clone)
    tune: TrainCfg[Any, Any] = field(default_factory=presets.quickstart)


class Stages:
    """Wall time of each stage."""

    def __init__(self) -> None:
        self.seconds: list[tuple[str, float]] = []

    @contextmanager
    def stage(self, name: str) -> Generator[None]:
        """Announce and time a stage."""
        print(f"[{len(self.seconds) + 1}/7] {name}", file=sys.stderr, flush=True)
        began = time.monotonic()
        yield
        self.seconds.append((name, time.monotonic() - began))


def run_quickstart(out: Path, seed: int = 0, sizes: QuickstartSizes | None = None) -> dict[str, Any]:
    """Run the complete workflow, and write `out/report.html` and `out/summary.json`.

    Args:
        out: a directory that is absent, empty, or an earlier quickstart's (which is replaced).
        seed: seeds every random stream.
        sizes: sizes of the job; None takes the defaults.

    Returns:
        The summary.

    Raises:
        ConfigError: `out` holds other files.
    """
    much = sizes or QuickstartSizes()
    _claim(out, seed)
    began = time.monotonic()
    stages = Stages()
    with PeakMemory() as memory:
        with stages.stage("collect demonstrations from a clumsy expert"):
            demos = collect_demos(
                SIM, out / "demos", episodes=much.demos, noise=NOISE, episode_noise=CLUMSINESS, seed=seed
            )
        with stages.stage("clone them with a flow policy"):
            clone, of_clone = _clone(out, seed, much)
        with stages.stage("train the same clone to convergence, for comparison"):
            best_clone = converged(out / "clone-converged", out / "demos", seed, much)
        with stages.stage("fine-tune the clone by reinforcement learning (ReinFlow)"):
            began_with = _at_first(clone, seed, much)
            tuned, of_tuned = _tune(out, seed, much)
        with stages.stage("export the bundle"):
            exported = export(out / "finetune", out / "bundle")
        with stages.stage("control the simulated robot in real time"):
            control = _control(out, seed, much.control_episodes)
        with stages.stage("write the report"):
            animation = _animation(clone, of_clone, tuned, of_tuned, seed)
    clone_rate, tuned_rate = of_clone.rate, of_tuned.rate
    curve = [CurvePoint(0, *began_with[:3]), *_curve(out / "finetune")]
    summary = _summary(out, seed, of_clone, of_tuned, exported, control)
    summary["wall_s"] = time.monotonic() - began
    summary["peak_memory_mib"] = memory.mib
    levels = _levels(demos, clone_rate, best_clone, tuned_rate, control)
    lateness, inference = _latencies(out / "control.jsonl")
    found = versions()
    write_report(
        out / "report.html",
        ReportData(
            title="Peg insertion: a clone, made better by reinforcement learning",
            task=TASK,
            levels=levels,
            summary=summary,
            curve=curve,
            tuned_env_steps=summary["rl"]["env_steps"],
            curve_note=(
                f"{much.tune.evaluation.episodes} starts of split val for each point, the clone's at 0 env steps;"
                f" the verdict, and all levels, are on {much.episodes} other starts, of split test."
            ),
            reward_truth=[one for one in (read_history(out / "finetune").reward_truth,) if one is not None],
            animation=animation,
            lateness_us=lateness,
            inference_us=inference,
            stages=stages.seconds,
            settings=json.loads((out / "finetune" / "config.json").read_text())["config"],
            versions={name: str(v) for name, v in found["packages"].items() if v} if "packages" in found else {},
            machine={key: value for key, value in found.items() if isinstance(value, str | int | float)},
            seed=seed,
            command="\n".join(_commands(out, seed, much.episodes)),
        ),
    )
    summary["wall_s"] = time.monotonic() - began
    replace_file(out / "summary.json", dump_json(summary))
    _print(summary, out, much.episodes)
    return summary


def converged(run: Path, demos: Path, seed: int, sizes: QuickstartSizes) -> Interval:
    """Success of the best clone of a dataset: trained to convergence, best evaluation chosen on split val.

    Args:
        run: directory of the run.
        demos: the dataset.
        seed: seed of the training.
        sizes: gradient steps and episodes.

    Returns:
        Success on starts of split test.
    """
    base, updates = sizes.clone, sizes.converged_updates
    cfg = replace(
        base,
        seed=seed,
        dataset=str(demos),
        algo=replace(base.algo, updates=updates, updates_per_iteration=max(1, updates // 6)),
        evaluation=replace(base.evaluation, every=1, animation=0),
    )
    train(cfg, run)
    return _result(load_policy(run), seed, sizes.episodes).rate


def baseline(kind: str, seed: int, out: Path) -> dict[str, Any]:
    """Run a comparison of the README's table, for `robotrl bench quickstart`.

    Args:
        kind: "clone_converged" (the quickstart's own demonstrations) or "clone_10x_demos" (ten times as many).
        seed: the quickstart's seed.
        out: directory for demonstrations and the run.

    Raises:
        ConfigError: unknown kind.
    """
    sizes = QuickstartSizes()
    counts = {"clone_converged": sizes.demos, "clone_10x_demos": 10 * sizes.demos}
    if kind not in counts:
        raise ConfigError(f"baseline {kind!r} is unknown: known: {', '.join(counts)}")
    out.mkdir(parents=True, exist_ok=True)
    _demos(out / "demos", counts[kind], seed)
    rate = converged(out / "clone", out / "demos", seed, sizes)
    return {"success": rate._asdict(), "demos": counts[kind], "updates": sizes.converged_updates}


def _claim(out: Path, seed: int) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        if not (out / MARKER).is_file():
            raise ConfigError(f"out {str(out)!r} holds something already: expected an absent or empty directory")
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    replace_file(out / MARKER, dump_json({"schema_version": 1, "seed": seed}))


def _sim(num_envs: int, seed: int) -> Any:
    return make_sim(SIM, num_envs=num_envs, seed=seed)


def _result(policy: Any, seed: int, episodes: int, split: Split = "test") -> EvalResult:
    return evaluate(policy, _sim(min(128, episodes), seed), episodes=episodes, split=split, seed=seed)


def _demos(out: Path, episodes: int, seed: int) -> DemoReport:
    return collect_demos(SIM, out, episodes=episodes, noise=NOISE, episode_noise=CLUMSINESS, seed=seed)


def _clone(out: Path, seed: int, sizes: QuickstartSizes) -> tuple[Any, EvalResult]:
    train(replace(sizes.clone, seed=seed, dataset=str(out / "demos")), out / "clone")
    policy = load_policy(out / "clone", which="latest")
    return policy, _result(policy, seed, sizes.episodes)


def _at_first(clone: Any, seed: int, sizes: QuickstartSizes) -> Interval:
    """Success of the clone, as measured by the first evaluation of fine-tuning."""
    return _result(clone, seed, sizes.tune.evaluation.episodes, "val").rate


def _tune(out: Path, seed: int, sizes: QuickstartSizes) -> tuple[Any, EvalResult]:
    train(replace(sizes.tune, seed=seed, init_from=str(out / "clone")), out / "finetune")
    policy = load_policy(out / "finetune")
    return policy, _result(policy, seed, sizes.episodes)


def _animation(clone: Any, of_clone: EvalResult, tuned: Any, of_tuned: EvalResult, seed: int) -> Animation:
    """Rollouts from the first starts on which the two policies differ."""
    places = informative_starts(of_clone.success, of_tuned.success)
    won, lost = int((of_tuned.success & ~of_clone.success).sum()), int((of_clone.success & ~of_tuned.success).sum())
    note = (
        f"These are the first starts on which the two differ: of all {len(of_clone.ids)}, the clone succeeds from"
        f" {percent(of_clone.rate.value)} and the fine-tuned policy from {percent(of_tuned.rate.value)}; {won} are won"
        f" and {lost} lost."
    )
    starts = [int(of_clone.ids[place]) for place in places]
    return record_animation(_sim(len(starts), seed), clone, tuned, starts, seed, places, note)


def _control(out: Path, seed: int, episodes: int) -> ControlReport:
    with track(episodes, "control", "episode") as bar:
        return run_control(
            out / "bundle",
            f"sim:{SIM}",
            episodes=episodes,
            seed=seed,
            log=out / "control.jsonl",
            progress=lambda episode: bar.advance(note="success" if episode.success else "failure"),
        )


def _summary(
    out: Path, seed: int, clone: EvalResult, tuned: EvalResult, exported: ExportReport, control: ControlReport
) -> dict[str, Any]:
    rows = read_scalars(out / "finetune" / "scalars.jsonl")
    env_steps = {int(row["step"]): int(row["env_steps"]) for row in rows}
    chosen = find_checkpoint(out / "finetune").step
    config = Run.open(out / "finetune").config
    evaluations = {
        "seconds": rows[-1]["eval_s"],
        "share": rows[-1]["eval_share"],
        "max_share": config["evaluation"]["max_share"],
    }
    return {
        "schema_version": 1,
        "seed": seed,
        "evaluation": {"split": "test", "starts": len(tuned.ids), "seed": seed, "rule": RULE},
        "bc": {"success": clone.rate._asdict()},
        "rl": {
            "success": tuned.rate._asdict(),
            "step": chosen,
            "env_steps": env_steps[chosen],
            "evaluations": evaluations,
        },
        "env_steps": max(env_steps.values()),
        "export": {
            "parity_max_abs": exported.parity_max_abs,
            "parity_max_rel": exported.parity_max_rel,
            "samples": exported.samples,
        },
        "control": {
            "rate_hz": control.rate_hz,
            "lateness_us": {name: getattr(control.lateness_us, name) for name in ("p50", "p99", "p999", "max")},
            "inference_us": {name: getattr(control.inference_us, name) for name in ("p50", "p99", "p999", "max")},
            "deadline_misses": control.deadline_misses,
            "success": wilson(control.successes, len(control.episodes))._asdict(),
        },
    }


def _commands(out: Path, seed: int, episodes: int) -> tuple[str, str]:
    """Commands that reproduce the report and its headline number."""
    return (
        f"robotrl quickstart --out {shlex.quote(str(out))} --seed {seed}",
        f"robotrl eval {shlex.quote(str(out / 'finetune'))} --episodes {episodes} --seed {seed}",
    )


def _curve(run: Path) -> list[CurvePoint]:
    return [
        CurvePoint(int(row["env_steps"]), row["eval_success"], row["eval_low"], row["eval_high"])
        for row in read_scalars(run / "scalars.jsonl")
        if "eval_success" in row
    ]


def _levels(
    demos: DemoReport, clone: Interval, best_clone: Interval, tuned: Interval, control: ControlReport
) -> list[Level]:
    deployed = wilson(control.successes, len(control.episodes))
    return [
        Level("expert", "the clumsy expert itself", *demos.success),
        Level("clone", f"clone of {demos.episodes} demonstrations", *clone),
        Level("best_clone", "the same, trained to convergence", *best_clone),
        Level("tuned", "clone after ReinFlow", *tuned),
        Level("deployed", "its bundle, in real time", *deployed),
    ]


def _latencies(log: Path) -> tuple[list[float], list[float]]:
    lateness: list[float] = []
    inference: list[float] = []
    for line in log.read_text().splitlines():
        row = json.loads(line)
        if "lateness_ns" in row:
            lateness.append(row["lateness_ns"] / 1e3)
            # the first tick of each chunk runs inference
            if row["cursor"] == 1:
                inference.append(row["inference_ns"] / 1e3)
    return lateness, inference


def _print(summary: dict[str, Any], out: Path, episodes: int) -> None:
    bc, rl, control = summary["bc"]["success"], summary["rl"]["success"], summary["control"]
    print(f"clone       {_percent(bc)}")
    print(f"fine-tuned  {_percent(rl)}   the checkpoint after {summary['rl']['env_steps']:,} env steps")
    print(f"on robot    {_percent(control['success'])}   at {control['rate_hz']:g} Hz in real time,")
    late = control["lateness_us"]
    print(f"            wake-up {late['p50']:.0f} us late at the median, {late['p99']:.0f} us at p99,", end=" ")
    print(f"{control['deadline_misses']} deadlines missed")
    print(f"bundle      {out / 'bundle'}: torch and onnxruntime agree to {summary['export']['parity_max_rel']:.1e}")
    print(f"again       {_commands(out, summary['seed'], episodes)[1]}")
    print(f"report      {out / 'report.html'}   ({summary['wall_s']:.0f} s, {summary['peak_memory_mib']:.0f} MiB)")


def _percent(rate: dict[str, Any]) -> str:
    low, high = 100 * rate["low"], 100 * rate["high"]
    return f"{100 * rate['value']:5.1f} %  ({low:.1f} to {high:.1f} %, {rate['episodes']} held-out starts)"
