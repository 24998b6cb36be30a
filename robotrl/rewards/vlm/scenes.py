"""Pictures of a sim's scenes with what is true of them, to train and to judge a model of pictures and language."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from robotrl.errors import CapabilityError, check_at_least, unknown
from robotrl.spec import HasCamera, HasExpert, HasScenarios, HasStateIds, HasSuccessHold, Split, VecSim
from robotrl.spec.captions import HasCaptions

EXPERT_NOISE = 0.3
"""Standard deviation of the expert's action noise."""
HELD = (5, 30)
"""Number of steps for which an env that acts at random keeps its action."""
SUCCESS_HOLD = 30
"""Number of steps for which an episode goes on after a success, so that success is seen."""
QUEUED = 1024
"""Number of starts that are queued at a time."""
COMMON = 2
"""Frames that are taken at a time at least."""
RANDOM_SHARE = 0.5
"""Share of episodes that act at random."""


ActionLabels = Callable[[NDArray[np.float32]], NDArray[np.int8]]
"""Classes (N, topics) of actions (N, A) in the present scenes of a sim."""


class CaptionedFrames(NamedTuple):
    """F frames of a sim."""

    pictures: NDArray[np.uint8]
    """(F, h, w, 3)."""
    classes: NDArray[np.int8]
    """(F, topics) see `HasCaptions.caption_classes`; with captions of actions, those of `action_topics` behind them."""
    scenario: NDArray[np.str_]
    """(F,) name of the frame's scenario; "" in a sim without scenarios."""

    def chosen(self, rows: NDArray[np.bool_]) -> CaptionedFrames:
        """The frames (F,) that `rows` selects."""
        return CaptionedFrames(self.pictures[rows], self.classes[rows], self.scenario[rows])


def check_captions(sim: VecSim, camera: str) -> None:
    """Check that a sim can be recorded.

    Raises:
        CapabilityError: it has no captions, camera, expert or numbered starts.
        ConfigError: it has no camera of that name.
    """
    name = type(sim).__name__
    for capability, why in (
        (HasCaptions, "it cannot say what is true of its scenes"),
        (HasCamera, "its scenes cannot be seen"),
        (HasExpert, "nobody acts in its scenes"),
        (HasStateIds, "its starts are not split"),
    ):
        if not isinstance(sim, capability):
            raise CapabilityError(f"sim {name} lacks {capability.__name__}: {why}")
    if isinstance(sim, HasCamera) and camera not in sim.cameras:
        raise unknown("camera", camera, sim.cameras)


@contextmanager
def _seeing_success(sim: VecSim) -> Generator[None]:
    """Episodes of the sim go on for a while after a success, where it can do that."""
    if not isinstance(sim, HasSuccessHold):
        yield
        return
    before = sim.success_hold_steps
    sim.success_hold_steps = SUCCESS_HOLD
    try:
        yield
    finally:
        sim.success_hold_steps = before


def record_scenes(
    sim: VecSim,
    camera: str,
    pixels: int,
    frames: int,
    *,
    seed: int,
    split: Split,
    every: int = 3,
    progress: Callable[[int], None] | None = None,
    label_actions: ActionLabels | None = None,
) -> CaptionedFrames:
    """Record frames from episodes of the sim's noisy expert, and of random actions, so that things go wrong.

    Scenes of which another class of the first topic than its first one is true (a collision is near) are rare: all of
    them are taken, and about as many others. Where the sim can (`HasSuccessHold`), episodes go on for a while after a
    success: a sim that ends them at once never shows the scene that its captions call reached.

    Args:
        sim: a sim with captions, a camera, an expert and numbered starts; it is reset.
        camera: name of the camera.
        pixels: width and height of the pictures.
        frames: F, 1 or more.
        seed: seed of starts, expert and random actions.
        split: split of the starts.
        every: steps between two frames of an env, so that they differ.
        progress: called with the number of new frames.
        label_actions: classes of the expert's actions in the present scenes, which are added to those of the scenes.

    Raises:
        CapabilityError: see `check_captions`.
        ConfigError: an unknown camera, or a number out of range.
    """
    check_at_least("frames", frames, 1)
    check_captions(sim, camera)
    with _seeing_success(sim):
        return _record(sim, camera, pixels, frames, seed, split, every, progress, label_actions)


def _record(
    sim: VecSim,
    camera: str,
    pixels: int,
    frames: int,
    seed: int,
    split: Split,
    every: int,
    progress: Callable[[int], None] | None,
    label_actions: ActionLabels | None,
) -> CaptionedFrames:
    assert isinstance(sim, HasCaptions) and isinstance(sim, HasCamera)
    assert isinstance(sim, HasExpert) and isinstance(sim, HasStateIds)
    n, rng = sim.num_envs, np.random.default_rng(seed)
    expert = sim.make_expert(noise=EXPERT_NOISE, episode_noise=1.0, seed=seed)
    # without noise, and of one strategy, so that a scene has one right action
    teacher = None if label_actions is None else sim.make_expert(mode=expert.modes[0], seed=seed)
    fresh_to_teacher = torch.ones(n, dtype=torch.bool, device=sim.device)
    ids = sim.state_ids(split)

    def drawn() -> NDArray[np.int64]:
        return ids.start + ids.step * rng.integers(0, len(ids), max(n, QUEUED))

    scenario_of = sim.scenario_of if isinstance(sim, HasScenarios) else None
    low, high = np.array(sim.action_spec.low, np.float32), np.array(sim.action_spec.high, np.float32)
    queue = drawn()
    sim.queue_states(queue)
    sim.reset(seed=seed)
    running, taken = queue[:n].copy(), n
    started = np.ones(n, np.bool_)
    wild, left = rng.random(n) < RANDOM_SHARE, np.zeros(n, np.int64)
    held = np.zeros((n, len(low)), np.float32)
    pictures: list[NDArray[np.uint8]] = []
    classes: list[NDArray[np.int8]] = []
    names: list[NDArray[np.str_]] = []
    count, at = 0, 0
    while count < frames:
        actions = expert.act(torch.from_numpy(started).to(sim.device)).cpu().numpy().copy()
        due = left <= 0
        held[due] = rng.uniform(low, high, (int(due.sum()), len(low)))
        left[due] = rng.integers(*HELD, int(due.sum()))
        left -= 1
        actions[wild] = held[wild]
        step = sim.step(torch.from_numpy(actions).to(sim.device))
        over = (step.terminated | step.truncated).cpu().numpy()
        if over.any():
            fresh = np.flatnonzero(over)
            if taken + len(fresh) > len(queue):
                more = drawn()
                sim.queue_states(more)
                queue, taken = np.concatenate([queue[taken:], more]), 0
            running[fresh] = queue[taken : taken + len(fresh)]
            taken += len(fresh)
            wild[fresh] = rng.random(len(fresh)) < RANDOM_SHARE
        started, at = over, at + 1
        right = None
        if teacher is not None:
            right = teacher.act(fresh_to_teacher | torch.from_numpy(over).to(sim.device)).cpu().numpy()
            fresh_to_teacher[:] = False
        if at % every == 0:
            now = sim.caption_classes()
            if label_actions is not None and right is not None:
                now = np.concatenate([now, label_actions(right)], axis=1)
            some = _balanced(now[:, 0], rng)[: frames - count]
            pictures.append(sim.render(some.tolist(), camera, pixels, pixels))
            classes.append(now[some])
            names.append(np.array(["" if scenario_of is None else scenario_of(int(i)) for i in running[some]]))
            count += len(some)
            if progress is not None:
                progress(len(some))
    return CaptionedFrames(np.concatenate(pictures), np.concatenate(classes), np.concatenate(names))


def _balanced(first: NDArray[np.int8], rng: np.random.Generator) -> NDArray[np.int64]:
    """Envs to record, in random order: all with a rare class of the first topic (N,), and as many others."""
    rare = np.flatnonzero(first > 0)
    others = rng.permutation(np.flatnonzero(first <= 0))
    return rng.permutation(np.concatenate([rare, others[: max(len(rare), COMMON)]]))
