"""Episodes of any sim with a camera in pictures: which ones, at which steps, how large, and what came of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.api.verdict import Score, rate_words, return_words, rule_words
from robotrl.errors import CapabilityError, RobotrlError, unknown
from robotrl.report.eval_page import EvalPage, render_evaluation
from robotrl.report.replay import PAGE_FRAMES, EpisodePictures, Frames, Pick
from robotrl.report.replay_video import Mosaic
from robotrl.report.text import number
from robotrl.rollout.evaluate import Actor, EvalResult, evaluate
from robotrl.spec import HasCamera, HasPictureSize, VecSim, shown_dt_s
from robotrl.utils.media import MAX_FPS, write_video
from robotrl.utils.progress import track

MOST_FILMED = 16
"""Episodes that are seen side by side."""
LARGE, SMALL = 320, 240
"""Pixels of the longer side of a picture, of few episodes and of many."""
FEW = 4
PROPORTIONS = (4, 3)
"""Width and height of a picture of a camera that takes any."""


class Rate(NamedTuple):
    """How often pictures are taken."""

    frame_s: float
    """Seconds between two, at least."""
    most: int
    """Of one episode."""
    together: bool
    """At the same steps of all episodes, which are then seen side by side."""


FOR_PAGE = Rate(0.1, PAGE_FRAMES, False)
FOR_VIDEO = Rate(0.1, 240, True)


def picked(result: EvalResult, pick: Pick, count: int) -> list[int]:
    """Places of up to `count` episodes with an outcome, in the order of their starts, or from the worst or best on."""
    if pick == "failures":
        places = np.flatnonzero(~result.success)
    elif pick == "successes":
        places = np.flatnonzero(result.success)
    elif pick == "first":
        places = np.arange(len(result.ids))
    else:
        places = np.argsort(result.returns if pick == "worst" else -result.returns, kind="stable")
    return places[:count].tolist()


def spread(result: EvalResult, score: Score, count: int) -> list[int]:
    """Places of `count` episodes that show what there was.

    Failures first, and as many successes where there are both; from the lowest return to the highest where episodes
    are told apart by their returns.
    """
    if score == "return":
        order = np.argsort(result.returns, kind="stable")
        return order[np.unique(np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int))].tolist()
    failed, won = np.flatnonzero(~result.success), np.flatnonzero(result.success)
    shown = min(len(failed), max(math.ceil(count / 2), count - len(won)))
    return [*failed[:shown].tolist(), *won[: count - shown].tolist()]


def steps_shown(lengths: Sequence[int], dt_s: float, rate: Rate) -> list[tuple[int, ...]]:
    """Steps before which a picture of each episode is taken; the first and the last of each are among them."""
    longest = max(lengths)
    least = max(round(rate.frame_s / dt_s), 1)

    def every(length: int) -> int:
        # one place is kept for the last step
        return max(least, math.ceil(length / (rate.most - 1)))

    return [
        tuple(sorted({*range(0, length, every(longest if rate.together else length)), length - 1}))
        for length in lengths
    ]


def size_of(sim: VecSim, camera: str, count: int) -> tuple[int, int]:
    """Width and height of a picture, both even, of so many episodes side by side; the sim has been reset."""
    longer = LARGE if count <= FEW else SMALL
    width, height = sim.picture_size(camera) if isinstance(sim, HasPictureSize) else PROPORTIONS
    scale = longer / max(width, height)
    return max(round(width * scale / 2) * 2, 2), max(round(height * scale / 2) * 2, 2)


def camera_of(sim: VecSim, name: str, camera: str | None) -> str:
    """The camera that is asked for, or the sim's first.

    Raises:
        CapabilityError: the sim has none.
        ConfigError: it has no such camera.
    """
    if not isinstance(sim, HasCamera) or not sim.cameras:
        raise CapabilityError(
            f"sim {name!r} lacks HasCamera: nothing can be drawn of it; docs/add-a-sim.md says what a camera is"
        )
    if camera is not None and camera not in sim.cameras:
        raise unknown("camera", camera, sim.cameras)
    return camera or sim.cameras[0]


def pictures(sim: VecSim, name: str, envs: list[int], camera: str, size: tuple[int, int]) -> Frames:
    """(n, height, width, 3) of some envs, checked.

    Raises:
        CapabilityError: the sim could not draw them, or gave something else.
    """
    width, height = size
    renderer: Any = sim
    try:
        drawn: Any = renderer.render(envs, camera, width, height)
    except RobotrlError:
        raise
    except Exception as error:  # drawing is foreign code
        said = " ".join(str(error).split())
        raise CapabilityError(
            f"sim {name!r} could not draw with camera {camera!r}: {type(error).__name__}: {said}"
        ) from error
    wanted = (len(envs), height, width, 3)
    if not isinstance(drawn, np.ndarray):
        raise CapabilityError(
            f"sim {name!r} drew {type(drawn).__name__} with camera {camera!r}: expected uint8 {wanted}"
        )
    if drawn.shape != wanted or drawn.dtype != np.uint8:
        raise CapabilityError(
            f"sim {name!r} drew {drawn.dtype} {drawn.shape} with camera {camera!r}: expected uint8 {wanted}"
        )
    return drawn


class FilmedEpisodes(NamedTuple):
    """What was filmed."""

    replays: list[EpisodePictures]
    result: EvalResult
    """Of the episodes that were filmed."""


def film(
    sim: VecSim,
    actor: Actor,
    name: str,
    camera: str,
    ids: Sequence[int],
    names: Sequence[str],
    lengths: Sequence[int],
    seed: int,
    rate: Rate,
) -> FilmedEpisodes:
    """Run each start once more, and take pictures.

    A picture shows the state before a step: a sim has gone on to another start when it says that an episode ended.

    Args:
        sim: with exactly as many envs as starts.
        actor: who acts in it.
        name: of the sim.
        camera: one of its cameras.
        ids: starts.
        names: of the starts, for people.
        lengths: steps of each of these episodes, as known from having run them.
        seed: of the evaluation.
        rate: how often pictures are taken.

    Raises:
        CapabilityError: the sim could not draw, or gave something else.
        NumericsError: the sim or the actor gave a number that is not finite.
    """
    plans = steps_shown(lengths, shown_dt_s(sim), rate)
    taken: list[list[Frames]] = [[] for _ in ids]
    size: list[tuple[int, int]] = []
    with track(sum(map(len, plans)), "replays", "pictures") as bar:

        def look(step: int) -> None:
            envs = [
                env for env, plan in enumerate(plans) if len(taken[env]) < len(plan) and plan[len(taken[env])] == step
            ]
            if not envs:
                return
            if not size:
                size.append(size_of(sim, camera, len(ids)))
            for env, picture in zip(envs, pictures(sim, name, envs, camera, size[0]), strict=True):
                taken[env].append(picture)
            bar.advance(len(envs))

        result = evaluate(actor, sim, ids=ids, seed=seed, on_step=look)
    replays: list[EpisodePictures] = []
    for env, plan in enumerate(plans):
        length = int(result.length[env])
        # an episode that was shorter this time: what followed was another one
        kept = [k for k, step in enumerate(plan[: len(taken[env])]) if step < length]
        frames = np.stack([taken[env][k] for k in kept])
        steps = tuple(plan[k] for k in kept)
        replays.append(
            EpisodePictures(names[env], bool(result.success[env]), float(result.returns[env]), length, steps, frames)
        )
    return FilmedEpisodes(replays, result)


def stand_still(replays: Sequence[EpisodePictures]) -> bool:
    """Whether no picture differs from the first one of its episode, though there are several."""
    several = [replay for replay in replays if len(replay.frames) > 1]
    return bool(several) and all((replay.frames == replay.frames[:1]).all() for replay in several)


@dataclass(frozen=True)
class Replays:
    """Episodes that were run in a sim with a camera, and some of them in pictures.

    Args:
        actor: who acted, in words.
        sim: its name.
        dt_s: seconds of a step.
        split: of the starts.
        score: what episodes are told apart by.
        result: of every episode.
        names: of every start: the split and the number within it.
        replays: episodes in pictures.
        chosen: a sentence on how they were chosen, or on why there are none.
        command: what makes the page again.
        settings: what the figures depend on, by name.
    """

    actor: str
    sim: str
    dt_s: float
    split: str
    score: Score
    result: EvalResult
    names: tuple[str, ...]
    replays: list[EpisodePictures]
    chosen: str
    command: str = ""
    settings: dict[str, str] = field(default_factory=dict[str, str])

    def lines(self) -> list[str]:
        """A line for each episode in pictures."""
        return [self._line(replay) for replay in self.replays]

    def _line(self, replay: EpisodePictures) -> str:
        judged = "" if self.score == "return" else "success, " if replay.success else "failed, "
        return f"start {replay.name}: {judged}return {number(replay.ret)}, {replay.length} steps"

    def write_video(self, path: Path) -> int:
        """Write the episodes side by side; gives the number of frames."""
        mosaic = Mosaic(self.replays, self.dt_s, self.score == "success")
        fps = min(max(round(mosaic.fps), 1), MAX_FPS)
        return write_video(mosaic.frames(), len(mosaic), mosaic.sample(), path, fps)

    def page(self, whole: bool = False) -> str:
        """The page on which the episodes are looked at.

        Args:
            whole: as the report of an evaluation: with intervals, histograms and a table of all episodes.
        """
        result, judged = self.result, self.score == "success"
        total, won = len(result.ids), int(result.success.sum())
        many = "episode" if total == 1 else "episodes"
        lede = f"{total:,} starts of split {self.split}, each run once."
        if judged and result.rule is not None:
            lede += f" Success {rule_words(result)}."
        tiles: list[tuple[str, str]] = []
        if whole:
            (rate, within), (ret, span) = rate_words(result), return_words(result)
            verdict = f"{rate} success ({within})" if judged else f"Return {ret} ({span})"
            other = (ret, f"mean return ({span})") if judged else (rate, f"success, {rule_words(result)} ({within})")
            tiles += [other, (f"{result.length.mean():,.1f}", "steps, mean length of an episode")]
            tiles.append((f"{total:,}", f"starts of split {self.split}"))
        elif judged:
            verdict = f"{won} of {total} {many} succeeded."
        else:
            verdict = f"Mean return {number(float(result.returns.mean()))} over {total} {many}."
        return render_evaluation(
            EvalPage(
                title=f"{self.actor} on {self.sim}",
                verdict=verdict,
                lede=lede,
                dt_s=self.dt_s,
                judged=judged,
                names=self.names,
                success=result.success,
                length=result.length,
                returns=result.returns,
                tiles=tiles,
                spread=whole,
                replays=self.replays,
                chosen=self.chosen,
                command=self.command,
                settings=self.settings,
            )
        )


def ended_alike(before: EvalResult, places: list[int], after: EvalResult) -> NDArray[np.bool_]:
    """(n,) which episodes came to the same when they were run again."""
    same = (before.length[places] == after.length) & (before.success[places] == after.success)
    return same & np.isclose(before.returns[places], after.returns, rtol=1e-4, atol=1e-6)
