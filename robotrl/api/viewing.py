"""Episode viewer: runs a policy or expert, and records driving sims by their trace and other sims by their camera."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import robotrl
from robotrl.api.episode_summary import DriveSummary
from robotrl.api.evaluation import actor_of, make_sim_of, refuse_dataset, sim_of
from robotrl.api.filming import (
    FOR_PAGE,
    MOST_FILMED,
    Rate,
    Replays,
    camera_of,
    film,
    is_motionless,
    picked,
    same_outcomes,
    spread,
)
from robotrl.api.inspection import kind_of
from robotrl.api.verdict import score_of
from robotrl.errors import CapabilityError, ConfigError, RobotrlError, nearest, out_of_range, unknown
from robotrl.registry import make_sim, sim_options
from robotrl.report.drive_trace import DriveRecorder
from robotrl.report.replay import EpisodePictures, Pick
from robotrl.rollout.device_wrapper import on_device
from robotrl.rollout.evaluate import RULE, Actor, EvalResult, ExpertActor, evaluate
from robotrl.run.policy_checkpoint import find_checkpoint
from robotrl.spec import HasExpert, HasScenarios, HasStateIds, HasTrace, Split, VecSim, shown_dt_s
from robotrl.utils.devices import device_of
from robotrl.utils.installation import install_line

VIDEOS = (".gif", ".mp4")
"""Supported video formats; mp4 needs PyAV, whose wheels contain a GPL encoder."""
MOST_ENVS = 64
SPLITS: tuple[Split, ...] = ("train", "val", "test")
PICTURES = "camera"
"""Sim option that enables rendering in sims that do not render by default."""


@dataclass(frozen=True)
class ViewRequest:
    """Request to view episodes.

    Args:
        path: a run, a checkpoint or a bundle; None takes the sim's scripted expert.
        sim: name of the sim; None takes the one that the run was trained on.
        options: sim options "name=value".
        device: device of the policy.
        episodes: number of starts, the first of the split.
        split: split of the starts.
        ids: start ids to run instead.
        scenario: only starts of this scenario.
        pick: selection by outcome: "first" takes all `episodes`; otherwise up to `episodes` of the first `among`.
        among: number of starts tried for `pick`.
        seed: seed of the policy's noise.
        num_envs: maximum number of parallel envs.
        camera: name of the camera; None takes the sim's first.
        rate: frame rate.
        candidates: further plans shown beside each executed one, of a policy that samples; 0 for none.
        late_steps: control steps by which the sim delays actions, where chunks are joined; see `PolicyActor`.
    """

    path: Path | None = None
    sim: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    device: str = "cpu"
    episodes: int = 3
    split: Split = "val"
    ids: Sequence[int] = ()
    scenario: str | None = None
    pick: Pick = "first"
    among: int = MOST_ENVS
    seed: int = 0
    num_envs: int = MOST_ENVS
    camera: str | None = None
    rate: Rate = FOR_PAGE
    candidates: int = 0
    late_steps: int = 0

    @property
    def sim_name(self) -> str:
        """Name of the sim.

        Raises:
            ConfigError: it is not given, or the object at the path cannot act.
            DataError: nothing readable is at the path.
        """
        if self.path is not None:
            refuse_dataset(self.path)
            return sim_of(self.path, self.sim)[0]
        if self.sim is None:
            raise ConfigError("missing: --sim, a name from robotrl list sims")
        return self.sim

    def open(self, num_envs: int, pictures: bool = False) -> VecSim:
        """Make the sim.

        Args:
            num_envs: N.
            pictures: enable rendering, in sims that need an option for it.

        Raises:
            ConfigError: the sim is unknown, rejects an option, or cannot render here.
        """
        options = dict(self.options)
        if pictures and PICTURES in vars(sim_options(self.sim_name)):
            options = {PICTURES: True, **options}
        if self.path is None:
            sim = make_sim(self.sim_name, num_envs=num_envs, seed=self.seed, **options)
            return on_device(sim, device_of(self.device))
        return make_sim_of(self.path, self.sim, num_envs=num_envs, seed=self.seed, options=options, device=self.device)

    def actor(self, sim: VecSim) -> Actor:
        """Make the actor for a sim.

        Raises:
            CapabilityError: the expert is requested and the sim has none.
            ConfigError: the policy is not for this sim.
        """
        if self.path is not None:
            return actor_of(self.path, sim, self.seed, self.candidates, late_steps=self.late_steps)
        if not isinstance(sim, HasExpert):
            raise CapabilityError(f"sim {self.sim_name!r} lacks HasExpert: expected a run, a checkpoint or a bundle")
        if self.candidates:
            raise ConfigError(f"--candidates is {self.candidates}: expected 0, the scripted expert has one plan")
        return ExpertActor(sim.make_expert(seed=self.seed))

    @property
    def actor_name(self) -> str:
        """Display name of the actor."""
        return "Scripted expert" if self.path is None else str(self.path)


def look(request: ViewRequest) -> DriveSummary | Replays:
    """Run each start and record it: by the sim's trace if it has one, else by a camera.

    Raises:
        CapabilityError: the sim lacks what is needed; sim and capability are named.
        ConfigError: the sim, the scenario or the camera is unknown, or there are no such starts.
        DataError: nothing readable is at the path.
    """
    name = request.sim_name
    count = request.episodes if request.pick == "first" else max(request.among, request.episodes)
    with closing(request.open(min(request.num_envs, len(request.ids) or count), pictures=True)) as sim:
        traced = isinstance(sim, HasTrace)
        if not traced:
            camera_of(sim, name, request.camera)
        if request.candidates and not traced:
            raise ConfigError(
                f"--candidates is {request.candidates}: expected 0, sim {name!r} is shown by a camera, without plans"
            )
        if traced and request.camera is not None:
            raise ConfigError(
                f"--camera is {request.camera!r}: sim {name!r} is drawn from what it tells, without a camera"
            )
        ids = starts_of(sim, name, count, request.split, request.ids, request.scenario)
        if request.pick != "first":
            ids = _with_outcome(request, sim, ids)
        if traced:
            return _drives(request, sim, ids, None)
        if len(ids) > MOST_FILMED:
            raise out_of_range("--episodes", len(ids), f"1 to {MOST_FILMED}, which are seen side by side")
        names, result = names_of(sim, ids), evaluate(request.actor(sim), sim, ids=ids, seed=request.seed)
        seen = _Seen(result, names, shown_dt_s(sim))
    filmed = _filmed(request, seen, list(range(len(ids))))
    return _replays(request, seen, filmed.replays, _listed(names) + filmed.remark)


def report(request: ViewRequest, count: int, command: str) -> DriveSummary | Replays:
    """Evaluate on the first starts of a split, and record some of the episodes, including failures.

    If rendering fails, the page states the reason, without replays; the evaluation is still reported.

    Args:
        request: the request; `pick` and `ids` are ignored.
        count: maximum number of recorded episodes.
        command: command that makes the page again.

    Raises:
        As `look`, except errors of rendering.
    """
    name = request.sim_name
    with closing(request.open(min(request.num_envs, request.episodes))) as sim:
        ids = starts_of(sim, name, request.episodes, request.split)
        if isinstance(sim, HasTrace):
            return _drives(request, sim, ids, count)
        names, result = names_of(sim, ids), evaluate(request.actor(sim), sim, ids=ids, seed=request.seed)
        seen = _Seen(result, names, shown_dt_s(sim))
    places = spread(result, score_of(request.path, result), count)
    if not places:
        return _replays(request, seen, [], "None of the episodes is shown.", command)
    try:
        filmed = _filmed(request, seen, places)
    except RobotrlError as error:
        warnings.warn(f"the page has no replays: {error}", stacklevel=2)
        return _replays(request, seen, [], f"None of the episodes is shown: {error}.", command)
    return _replays(request, seen, filmed.replays, _chosen(seen, places, request) + filmed.remark, command)


class _Seen(NamedTuple):
    """Results of the episodes."""

    result: EvalResult
    names: tuple[str, ...]
    """Names of the starts."""
    dt_s: float


def _with_outcome(request: ViewRequest, sim: VecSim, ids: list[int]) -> list[int]:
    """Starts whose episodes had the requested outcome."""
    result = evaluate(request.actor(sim), sim, ids=ids, seed=request.seed)
    places = picked(result, request.pick, request.episodes)
    if not places:
        came = "failed" if request.pick == "failures" else "succeeded"
        raise ConfigError(f"--pick is {request.pick}: none of the {len(ids)} starts that were tried {came}")
    return [ids[place] for place in places]


class _Filmed(NamedTuple):
    """Filmed episodes."""

    replays: list[EpisodePictures]
    remark: str
    """Remark for the page, a sentence with a leading space; usually empty."""


def _filmed(request: ViewRequest, seen: _Seen, places: list[int]) -> _Filmed:
    """Film some of the episodes, which are run once more."""
    name, result = request.sim_name, seen.result
    with closing(request.open(len(places), pictures=True)) as sim:
        camera = camera_of(sim, name, request.camera)
        ids, lengths = result.ids[places].tolist(), result.length[places].tolist()
        names = [seen.names[place] for place in places]
        found = film(sim, request.actor(sim), name, camera, ids, names, lengths, request.seed, request.rate)
    remarks: list[str] = []
    if others := int((~same_outcomes(result, places, found.result)).sum()):
        remarks.append(
            f"{others} of {len(places)} episodes came to something else when they were run again for their pictures:"
            f" sim {name!r}, or what acts in it, does not repeat itself exactly"
        )
    if is_motionless(found.replays):
        remarks.append(f"all pictures of each episode are alike: camera {camera!r} of sim {name!r} shows no motion")
    for remark in remarks:
        warnings.warn(remark, stacklevel=3)
    return _Filmed(found.replays, "".join(f" {remark[0].upper()}{remark[1:]}." for remark in remarks))


def _drives(request: ViewRequest, sim: VecSim, ids: list[int], keep: int | None) -> DriveSummary:
    """Drive from the starts; records at most `keep` drives, failures first, or all if it is None."""
    assert isinstance(sim, HasTrace)
    actor = request.actor(sim)
    recorder = None if keep == 0 else DriveRecorder(actor, sim, ids, keep)
    result = evaluate(recorder or actor, sim, ids=ids, seed=request.seed)
    return DriveSummary(
        driver=request.actor_name,
        sim=request.sim_name,
        dt_s=shown_dt_s(sim),
        actions=sim.action_spec.names,
        split=request.split,
        result=result,
        scenarios=tuple(sim.scenario_of(i) for i in ids) if isinstance(sim, HasScenarios) else (),
        traces=[] if recorder is None else recorder.traces(),
    )


def _replays(
    request: ViewRequest, seen: _Seen, replays: list[EpisodePictures], chosen: str, command: str = ""
) -> Replays:
    settings = {
        "policy": request.actor_name,
        "checkpoint": _checkpoint(request.path),
        "sim": request.sim_name,
        "sim options, beside those of the run": " ".join(f"{name}={value}" for name, value in request.options.items()),
        "starts": f"the first {len(seen.result.ids):,} of split {request.split}",
        "seed": str(request.seed),
        "rule of the evaluation": RULE,
        "device": request.device,
        "robotrl": robotrl.__version__,
    }
    return Replays(
        actor=request.actor_name,
        sim=request.sim_name,
        dt_s=seen.dt_s,
        split=request.split,
        score=score_of(request.path, seen.result),
        result=seen.result,
        names=seen.names,
        replays=replays,
        chosen=chosen,
        command=command,
        settings={key: text for key, text in settings.items() if text} if command else {},
    )


def _checkpoint(path: Path | None) -> str:
    """Name of the evaluated checkpoint; empty for a bundle or expert."""
    if path is None or kind_of(path) == "bundle":
        return ""
    found = find_checkpoint(path)
    return f"{found.path.name} of {found.path.parent.parent}" if kind_of(path) == "run" else str(found.path)


def _chosen(seen: _Seen, places: list[int], request: ViewRequest) -> str:
    total = len(seen.result.ids)
    if score_of(request.path, seen.result) == "return":
        return f"{len(places)} of {total} episodes, from the lowest return to the highest."
    failed = int((~seen.result.success).sum())
    return f"{len(places)} of {total} episodes, failures first; {failed} of all failed."


def _listed(names: Sequence[str]) -> str:
    return f"Start {names[0]}." if len(names) == 1 else f"Starts {', '.join(names)}."


def names_of(sim: VecSim, ids: Sequence[int]) -> tuple[str, ...]:
    """Display names of starts: the split and the number within it, from 0: "test 12".

    Raises:
        CapabilityError: the sim has no numbered starts.
    """
    if not isinstance(sim, HasStateIds):
        raise CapabilityError(f"sim {type(sim).__name__} lacks HasStateIds: it has no numbered starts")
    splits = [(split, sim.state_ids(split)) for split in SPLITS]
    return tuple(next((f"{split} {known.index(i)}" for split, known in splits if i in known), str(i)) for i in ids)


def starts_of(
    sim: VecSim, name: str, episodes: int, split: Split, ids: Sequence[int] = (), scenario: str | None = None
) -> list[int]:
    """Requested start ids.

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


def check_video(path: Path, option: str = "--video") -> None:
    """Check that a video of this format can be written.

    Args:
        path: the file.
        option: the option that names it, for errors.

    Raises:
        ConfigError: the file extension is not in `VIDEOS`, or it is mp4 and PyAV is not installed.
    """
    ending = path.suffix.lower()
    if ending not in VIDEOS:
        close = nearest(ending, VIDEOS) if ending else None
        hint = f"did you mean {path.with_suffix(close)}? " if close else ""
        raise ConfigError(f"{option} is {path}: {hint}expected a name that ends in {' or '.join(VIDEOS)}")
    if ending == ".mp4" and importlib.util.find_spec("av") is None:
        raise ConfigError(
            f"{option} is {path}: mp4 needs the module 'av': {install_line('video')}; or a name that ends in .gif"
            " needs nothing"
        )
