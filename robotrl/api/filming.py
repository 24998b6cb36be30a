"""Renders episodes of any sim with a camera: choice of episodes, time steps and image size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robotrl.api.verdict import Score, rate_words, return_words, rule_words
from robotrl.errors import CapabilityError, RobotrlError, unknown
from robotrl.report.eval_page import EvalPage, render_evaluation
from robotrl.report.replay import PAGE_FRAMES, EpisodePictures, Frames, Layout, Pick
from robotrl.report.replay_video import Mosaic
from robotrl.report.text import number
from robotrl.rollout.evaluate import Actor, EvalResult, evaluate
from robotrl.spec import HasCamera, HasInstructions, HasPictureSize, VecSim, shown_dt_s
from robotrl.utils.media import MAX_FPS, write_video
from robotrl.utils.progress import track

MOST_FILMED = 16
"""Largest number of episodes shown side by side."""
LARGE, SMALL = 320, 240
"""Longer side of an image in pixels, for few episodes and for many."""
FEW = 4
PROPORTIONS = (4, 3)
"""Aspect ratio (width, height) of cameras that accept any."""


class Rate(NamedTuple):
    """Frame rate of the recording."""

    frame_s: float
    """Minimum seconds between two frames."""
    most: int
    """Maximum number of frames of one episode."""
    together: bool
    """True if all episodes are rendered at the same steps, to be shown side by side."""


FOR_PAGE = Rate(0.1, PAGE_FRAMES, False)
FOR_VIDEO = Rate(0.1, 240, True)


def picked(result: EvalResult, pick: Pick, count: int) -> list[int]:
    """Indices of up to `count` episodes: by outcome in the order of starts, or from the worst or best return on."""
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
    """Indices of `count` representative episodes.

    By success: failures first, and about as many successes. By return: evenly spaced from the lowest to the highest.
    """
    if score == "return":
        order = np.argsort(result.returns, kind="stable")
        return order[np.unique(np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int))].tolist()
    failed, won = np.flatnonzero(~result.success), np.flatnonzero(result.success)
    shown = min(len(failed), max(math.ceil(count / 2), count - len(won)))
    return [*failed[:shown].tolist(), *won[: count - shown].tolist()]


def rendered_steps(lengths: Sequence[int], dt_s: float, rate: Rate) -> list[tuple[int, ...]]:
    """Steps at which each episode is rendered; its first and last step are included."""
    longest = max(lengths)
    least = max(round(rate.frame_s / dt_s), 1)

    def every(length: int) -> int:
        # one frame is reserved for the last step
        return max(least, math.ceil(length / (rate.most - 1)))

    return [
        tuple(sorted({*range(0, length, every(longest if rate.together else length)), length - 1}))
        for length in lengths
    ]


def size_of(sim: VecSim, camera: str, count: int) -> tuple[int, int]:
    """Width and height of an image, both even, for this number of episodes side by side; call after the sim's reset."""
    longer = LARGE if count <= FEW else SMALL
    width, height = sim.picture_size(camera) if isinstance(sim, HasPictureSize) else PROPORTIONS
    scale = longer / max(width, height)
    return max(round(width * scale / 2) * 2, 2), max(round(height * scale / 2) * 2, 2)


def camera_of(sim: VecSim, name: str, camera: str | None) -> str:
    """Name of the requested camera, or of the sim's first.

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
    """Images (n, height, width, 3) of some envs, checked.

    Raises:
        CapabilityError: rendering failed, or returned something else.
    """
    width, height = size
    renderer: Any = sim
    try:
        drawn: Any = renderer.render(envs, camera, width, height)
    except RobotrlError:
        raise
    except Exception as error:  # rendering may be third-party code
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
    """Filmed episodes: frames, returns and outcomes."""

    replays: list[EpisodePictures]
    result: EvalResult
    """Result of the filmed episodes."""


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
    """Run each start once more and render it.

    Frames are taken before a step, because a sim has already reset when it reports the end of an episode.

    Args:
        sim: with exactly as many envs as starts.
        actor: the actor.
        name: name of the sim.
        camera: one of its cameras.
        ids: start ids.
        names: display names of the starts.
        lengths: lengths of these episodes, from an earlier run.
        seed: seed of the evaluation.
        rate: frame rate.

    Raises:
        CapabilityError: rendering failed, or returned something else.
        NumericsError: the sim or the actor gave a number that is not finite.
    """
    plans = rendered_steps(lengths, shown_dt_s(sim), rate)
    taken: list[list[Frames]] = [[] for _ in ids]
    size: list[tuple[int, int]] = []
    rewards: list[NDArray[np.float32]] = []
    recorded: list[str] = [""] * len(ids)
    with track(sum(map(len, plans)), "replays", "pictures") as bar:

        def look(step: int) -> None:
            if step == 0 and isinstance(sim, HasInstructions):
                recorded[:] = sim.instructions()
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

        result = evaluate(actor, sim, ids=ids, seed=seed, on_step=look, on_reward=rewards.append)
    replays: list[EpisodePictures] = []
    for env, plan in enumerate(plans):
        length = int(result.length[env])
        # if the episode was shorter this time, later frames belong to the next one
        kept = [k for k, step in enumerate(plan[: len(taken[env])]) if step < length]
        frames = np.stack([taken[env][k] for k in kept])
        steps = tuple(plan[k] for k in kept)
        earned = tuple(float(step[env]) for step in rewards[:length])
        won, ret = bool(result.success[env]), float(result.returns[env])
        replays.append(
            EpisodePictures(names[env], int(ids[env]), won, ret, length, steps, frames, earned, recorded[env])
        )
    return FilmedEpisodes(replays, result)


def is_motionless(replays: Sequence[EpisodePictures]) -> bool:
    """True if all frames of each episode are equal, for episodes with several frames."""
    several = [replay for replay in replays if len(replay.frames) > 1]
    return bool(several) and all((replay.frames == replay.frames[:1]).all() for replay in several)


@dataclass(frozen=True)
class Replays:
    """Evaluated episodes of a sim with a camera, some of them filmed.

    Args:
        actor: display name of the actor.
        sim: name of the sim.
        dt_s: duration of a step, s.
        split: split of the starts.
        score: criterion of the episodes, success or return.
        result: result of all episodes.
        names: name of each start: the split and its number within it.
        replays: filmed episodes.
        chosen: sentence on how they were chosen, or why there are none.
        command: command that makes the page again.
        settings: settings that the results depend on, by name.
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
        """One text line for each filmed episode."""
        return [self._line(replay) for replay in self.replays]

    def _line(self, replay: EpisodePictures) -> str:
        success_text = "" if self.score == "return" else "success, " if replay.success else "failed, "
        instruction = f', "{replay.instruction}"' if replay.instruction else ""
        return f"start {replay.name}: {success_text}return {number(replay.ret)}, {replay.length} steps{instruction}"

    def write_video(self, path: Path, layout: Layout | None = None) -> int:
        """Write the episodes as a video; returns the number of frames.

        Args:
            path: file that ends in .gif or .mp4.
            layout: "sequence" shows one after another; "grid", the default, all side by side.
        """
        groups = [[replay] for replay in self.replays] if layout == "sequence" else [self.replays]
        mosaics = [Mosaic(group, self.dt_s, self.score == "success") for group in groups]
        fps = min(max(max(round(mosaic.fps) for mosaic in mosaics), 1), MAX_FPS)
        frames = chain.from_iterable(mosaic.frames() for mosaic in mosaics)
        sample = np.concatenate([mosaic.sample() for mosaic in mosaics])
        return write_video(frames, sum(map(len, mosaics)), sample, path, fps)

    def page(self, whole: bool = False) -> str:
        """HTML page that shows the episodes.

        Args:
            whole: full evaluation report: with intervals, histograms and a table of all episodes.
        """
        result, has_success = self.result, self.score == "success"
        total, won = len(result.ids), int(result.success.sum())
        many = "episode" if total == 1 else "episodes"
        lede = f"{total:,} starts of split {self.split}, each run once."
        if has_success and result.rule is not None:
            lede += f" Success {rule_words(result)}."
        tiles: list[tuple[str, str]] = []
        if whole:
            (rate, within), (ret, span) = rate_words(result), return_words(result)
            verdict = f"{rate} success ({within})" if has_success else f"Return {ret} ({span})"
            other = (
                (ret, f"mean return ({span})") if has_success else (rate, f"success, {rule_words(result)} ({within})")
            )
            tiles += [other, (f"{result.length.mean():,.1f}", "steps, mean length of an episode")]
            tiles.append((f"{total:,}", f"starts of split {self.split}"))
        elif has_success:
            verdict = f"{won} of {total} {many} succeeded."
        else:
            verdict = f"Mean return {number(float(result.returns.mean()))} over {total} {many}."
        return render_evaluation(
            EvalPage(
                title=f"{self.actor} on {self.sim}",
                verdict=verdict,
                lede=lede,
                dt_s=self.dt_s,
                has_success=has_success,
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


def same_outcomes(before: EvalResult, places: list[int], after: EvalResult) -> NDArray[np.bool_]:
    """(n,) whether each episode had the same length, success and return when it was run again."""
    same = (before.length[places] == after.length) & (before.success[places] == after.success)
    return same & np.isclose(before.returns[places], after.returns, rtol=1e-4, atol=1e-6)
