"""Drives to look at: rolls out whatever drives, records it, and puts the page or the video together."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from robotrl.config import sim_options
from robotrl.devices import device_of
from robotrl.errors import CapabilityError, ConfigError, unknown
from robotrl.evaluation import actor_of, make_sim_of, refuse_dataset, sim_of
from robotrl.loop import Actor, EvalResult, ExpertActor, evaluate
from robotrl.placed import placed
from robotrl.registry import make_sim
from robotrl.report.drive_pack import pack_drive
from robotrl.report.drive_page import DrivePage, EpisodeRow, Share, render_drives
from robotrl.report.drive_trace import DriveTrace, Recorder
from robotrl.report.drive_video import frame_count, palette, video_frames
from robotrl.report.text import percent
from robotrl.spec import HasExpert, HasScenarios, HasStateIds, HasTrace, Split, VecSim, shown_dt_s

VIDEOS = (".gif", ".mp4")
"""Endings of the videos that can be written; mp4 needs PyAV, whose wheels carry an encoder under the GPL."""
MOST_ENVS = 64


class Drives(NamedTuple):
    """What was driven."""

    driver: str
    """Who drove, in words."""
    sim: str
    dt_s: float
    actions: tuple[str, ...]
    """Names of an action's numbers."""
    split: str
    result: EvalResult
    scenarios: tuple[str, ...]
    """Of each start; empty where the sim has none."""
    traces: list[DriveTrace]


def drive(
    path: Path | None,
    *,
    sim: str | None = None,
    options: Sequence[str] = (),
    device: str = "cpu",
    episodes: int = 3,
    split: Split = "val",
    ids: Sequence[int] = (),
    scenario: str | None = None,
    seed: int = 0,
    num_envs: int = MOST_ENVS,
    keep: int | None = None,
    must_trace: bool = True,
) -> Drives:
    """Drive each start once, and record it.

    Args:
        path: a run, a checkpoint or a bundle; None lets the sim's scripted expert drive.
        sim: name of the sim; None takes the one that the run was trained on.
        options: of the sim, as "name=value".
        device: where the policy acts.
        episodes: how many starts, the first of the split.
        split: which starts.
        ids: starts to drive instead.
        scenario: the starts of this scenario alone.
        seed: of the policy's noise.
        num_envs: envs that step at once, at most.
        keep: how many drives are recorded at most, failures first; None records all.
        must_trace: refuse a sim that cannot be traced; otherwise nothing is recorded of it.

    Raises:
        CapabilityError: the sim lacks what is needed; sim and capability are named.
        ConfigError: the sim or the scenario is unknown, or there are no such starts.
        DataError: nothing readable is at the path.
    """
    if path is not None:
        refuse_dataset(path)
        name, _ = sim_of(path, sim)
    elif sim is None:
        raise ConfigError("missing: --sim, a name from robotrl list sims")
    else:
        name = sim
    n = min(num_envs, len(ids) or episodes)
    vec: VecSim
    if path is None:
        vec = placed(make_sim(name, num_envs=n, seed=seed, **sim_options(options)), device_of(device))
    else:
        vec = make_sim_of(path, sim, num_envs=n, seed=seed, options=options, device=device)
    try:
        if must_trace and not isinstance(vec, HasTrace):
            raise CapabilityError(f"sim {name!r} lacks HasTrace: it cannot be looked at with robotrl view")
        starts = starts_of(vec, name, episodes, split, ids, scenario)
        actor, driver = _actor(path, vec, name, seed)
        recorder = Recorder(actor, vec, starts, keep) if isinstance(vec, HasTrace) and keep != 0 else None
        result = evaluate(recorder or actor, vec, ids=starts, seed=seed)
        return Drives(
            driver=driver,
            sim=name,
            dt_s=shown_dt_s(vec),
            actions=vec.action_spec.names,
            split=split,
            result=result,
            scenarios=tuple(vec.scenario_of(i) for i in starts) if isinstance(vec, HasScenarios) else (),
            traces=[] if recorder is None else recorder.traces(),
        )
    finally:
        vec.close()


def _actor(path: Path | None, sim: VecSim, name: str, seed: int) -> tuple[Actor, str]:
    if path is not None:
        return actor_of(path, sim, seed), str(path)
    if not isinstance(sim, HasExpert):
        raise CapabilityError(f"sim {name!r} lacks HasExpert: expected a run, a checkpoint or a bundle instead")
    return ExpertActor(sim.make_expert(seed=seed)), "Scripted expert"


def starts_of(
    sim: VecSim, name: str, episodes: int, split: Split, ids: Sequence[int] = (), scenario: str | None = None
) -> list[int]:
    """The starts that were asked for.

    Raises:
        CapabilityError: the sim has no numbered starts, or no scenarios and one was asked for.
        ConfigError: the scenario is unknown, ids and scenario are both given, or the split has fewer starts.
    """
    if not isinstance(sim, HasStateIds):
        raise CapabilityError(f"sim {name!r} lacks HasStateIds: it has no numbered starts")
    if ids:
        if scenario is not None:
            raise ConfigError("--state-id and --scenario are both given: expected one of them")
        return list(ids)
    available: Sequence[int] = sim.state_ids(split)
    if scenario is None:
        found = list(available[:episodes])
    elif not isinstance(sim, HasScenarios):
        raise CapabilityError(f"sim {name!r} lacks HasScenarios: --scenario {scenario} means nothing there")
    elif scenario not in sim.scenarios:
        raise unknown("scenario", scenario, sim.scenarios)
    else:
        found = list(islice((i for i in available if sim.scenario_of(i) == scenario), episodes))
    if len(found) < episodes:
        raise ConfigError(f"--episodes is {episodes}: split {split!r} has {len(found)} such starts")
    return found


def page_of(drives: Drives, whole: bool = False) -> str:
    """The page of some drives.

    Args:
        drives: what was driven.
        whole: as the report of an evaluation: with its interval, success by scenario and a table of all episodes.
    """
    result, scores = drives.result, [trace.steps[-1].score for trace in drives.traces]
    total, won = len(result.ids), int(result.success.sum())
    if whole:
        rate = result.rate
        verdict = f"{percent(rate.value)} success (95 % interval {100 * rate.low:.1f} to {100 * rate.high:.1f} %)"
        lede = f"{total:,} starts of split {drives.split}, each driven once; mean return {result.returns.mean():.3f}."
        if result.rule is not None:
            counts = result.rule.text if result.rule.stated else f"not stated by the environment ({result.rule.text})"
            lede += f" Success: {counts}."
        if 0 < len(drives.traces) < total:
            lede += f" {len(drives.traces)} of the drives are shown, failures first."
        elif not drives.traces:
            lede += " None of the episodes is shown."
    else:
        verdict = f"{won} of {total} {'drive' if total == 1 else 'drives'} succeeded."
        lede = f"Mean driving score {sum(scores) / len(scores):.1f}."
    return render_drives(
        DrivePage(
            title=f"{drives.driver} on {drives.sim}",
            verdict=verdict,
            lede=lede,
            drives=[pack_drive(trace, drives.dt_s, drives.actions) for trace in drives.traces],
            shares=_shares(drives) if whole else (),
            episodes=_rows(drives) if whole else (),
        )
    )


def lines_of(drives: Drives) -> list[str]:
    """A line for each recorded drive."""
    out: list[str] = []
    for trace in drives.traces:
        last = trace.steps[-1]
        out.append(
            f"{trace.state_id} {trace.map.scenario}: {trace.outcome}; {100 * last.completion:.0f} % of the route in"
            f" {len(trace.steps) * drives.dt_s:.1f} s, driving score {last.score:.1f}"
        )
    return out


def _shares(drives: Drives) -> list[Share]:
    won: dict[str, list[bool]] = {}
    for name, success in zip(drives.scenarios, drives.result.success.tolist(), strict=False):
        won.setdefault(name, []).append(success)
    return [Share(name, sum(each), len(each)) for name, each in sorted(won.items())]


def _rows(drives: Drives) -> list[EpisodeRow]:
    result = drives.result
    names = drives.scenarios or ("",) * len(result.ids)
    columns: Any = (result.ids, names, result.success, result.length * drives.dt_s, result.returns)
    return [EpisodeRow(int(i), n, bool(s), float(t), float(r)) for i, n, s, t, r in zip(*columns, strict=True)]


def check_video(path: Path) -> None:
    """Refuse a video that cannot be written.

    Raises:
        ConfigError: the ending is none of `VIDEOS`, or it is mp4 and PyAV is not installed.
    """
    ending = path.suffix.lower()
    if ending not in VIDEOS:
        raise ConfigError(f"--video is {path}: expected a name that ends in {' or '.join(VIDEOS)}")
    if ending == ".mp4" and importlib.util.find_spec("av") is None:
        raise ConfigError(
            f"--video is {path}: mp4 needs the module 'av': pip install 'robotrl[video]'; a name that ends in .gif"
            " needs nothing"
        )


def write_video(drives: Drives, path: Path) -> int:
    """Write all drives one after another; gives the number of frames."""
    from robotrl.media import stream_gif, stream_mp4
    from robotrl.progress import track

    with track(frame_count(drives.traces, drives.dt_s), "video", "frames") as bar:

        def counted() -> Any:
            for frame in video_frames(drives.traces, drives.dt_s):
                bar.advance(1)
                yield frame

        if path.suffix.lower() == ".mp4":
            return stream_mp4(counted(), path)
        return stream_gif(counted(), palette(), path, colors=256)
