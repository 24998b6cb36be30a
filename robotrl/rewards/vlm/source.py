"""Rewards from pictures and language, step by step; scores may come late and are written into their own steps."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.errors import ConfigError
from robotrl.rewards.source import LateScores, Score, SimTransition
from robotrl.rewards.vlm.cfg import PictureRewardCfg, ScenePicturesCfg
from robotrl.rewards.vlm.pictures import picture_feed, warn_of_other_view
from robotrl.rewards.vlm.recent import NONE, RecentSteps
from robotrl.rewards.vlm.scene_scores import SceneAnswers, SceneScores
from robotrl.rewards.vlm.similarity import PromptVectors, open_scores
from robotrl.spec import VecSim
from robotrl.utils.hardware import check_memory

FALLBACK = 0.0
RECENT_BYTES = 13
"""Bytes of a kept step of an env in `RecentSteps`, without notes."""


class Valued(NamedTuple):
    """Rewards of n steps."""

    value: Tensor
    """(n,) float32."""
    valid: Tensor
    """(n,) bool."""


class ScoredLate(NamedTuple):
    """Steps that a late answer gave another reward."""

    step: NDArray[np.int64]
    """(m,): number of the step."""
    env: NDArray[np.int64]
    """(m,)."""
    change: NDArray[np.float32]
    """(m,) change of the reward."""
    fresh: NDArray[np.bool_]
    """(m,): whether the step had no score before."""
    age: NDArray[np.int64]
    """(m,) steps from the picture to the step."""


def late_scores(late: Sequence[ScoredLate], clock: int) -> LateScores:
    """Steps that late answers gave another reward, counted back from step `clock`, which is the next one."""
    if not late:
        return LateScores.none()
    step, env, change, fresh, age = (torch.from_numpy(np.concatenate(parts)) for parts in zip(*late, strict=True))
    return LateScores(clock - 1 - step, env, change, fresh, age)


class SceneTerm(Protocol):
    """Makes rewards of a model's outputs for a picture, and of notes of the step."""

    notes_width: int
    """S."""
    judges_action: bool
    """True if the reward of a step is about its action: the step then refers to the newest picture of before it, in
    which the action was chosen."""
    obs_keys: tuple[str, ...]
    """Observations of before the step that `notes` reads."""

    def notes(self, transition: SimTransition) -> Tensor:
        """(N, S) float32: what the reward of a step depends on besides its picture."""
        ...

    def see(self, outputs: Tensor, notes: Tensor) -> None:
        """Take new outputs into account, e.g. for a window.

        Args:
            outputs: (n, K).
            notes: (n, S) notes of the picture's own step; of a term that judges actions those of a step that refers to
                the picture.
        """
        ...

    def value(self, outputs: Tensor, notes: Tensor) -> Valued:
        """Rewards of n steps.

        Args:
            outputs: (n, K) outputs of the picture that each step refers to.
            notes: (n, S) notes of each step.
        """
        ...

    def forget(self, envs: Tensor) -> None:
        """Forget what `notes` remembers of the envs (N,) bool whose episodes are over."""
        ...

    def state(self) -> dict[str, NDArray[np.generic]]:
        """State for an exact resume."""
        ...

    def load(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Restore the result of `state`."""
        ...


TermFactory = Callable[[PromptVectors], SceneTerm]
"""Makes a term for prompts, as the model understands them."""


class LanguageReward:
    """Reward of the similarity of pictures to sentences; a `LateRewardSource`.

    Every `every` steps the scene is scored. A score stands for up to `max_age` further steps of its episode, until
    there is a newer one. A score that comes later than the step is written into all steps that it stands for.

    Args:
        name: name of the source in the registry, for errors.
        cfg: when pictures are scored.
        scenes: scores the pictures of a step; K outputs each.
        outputs: K.
        term: makes rewards of these outputs.
        num_envs: N.
        identity: see `RewardSource`.

    Raises:
        ConfigError: the kept steps would take more than half of the free memory.
    """

    fallback = FALLBACK
    end_at: float | None = None
    sees_success = False

    def __init__(
        self,
        name: str,
        cfg: ScenePicturesCfg,
        scenes: SceneScores,
        outputs: int,
        term: SceneTerm,
        num_envs: int,
        identity: str,
    ) -> None:
        self._cfg, self._name, self._scenes, self._term = cfg, name, scenes, term
        self.identity = identity
        self.obs_keys = term.obs_keys
        check_kept_steps(name, cfg.kept_steps, num_envs * (RECENT_BYTES + 4 * term.notes_width))
        self._recent = RecentSteps(num_envs, cfg.kept_steps, term.notes_width)
        self._clock = cfg.kept_steps  # so that the pictures of a restored state have numbers above `NONE`
        self._due_in = 0
        self._began = np.full(num_envs, self._clock)
        self._asked = np.full(num_envs, NONE)
        self._known = np.full(num_envs, NONE)
        self._outputs = np.zeros((num_envs, outputs), np.float32)
        self._by_picture = not (term.notes_width or term.judges_action)
        """True if a reward depends on its picture alone."""
        self._worth: tuple[NDArray[np.float32], NDArray[np.bool_]] | None = None
        """Rewards (N,) of the newest pictures then, and whether each is valid; None where they are to be computed."""
        self._late = list[ScoredLate]()
        self._no_notes = torch.zeros(num_envs, 0)

    def score(self, transition: SimTransition) -> Score:
        """See `RewardSource.score`."""
        step, self._clock = self._clock, self._clock + 1
        if not self._term.judges_action:
            self._ask(step, transition)
        notes = self._term.notes(transition).cpu() if self._term.notes_width else self._no_notes
        self._recent.push(step, self._fresh(self._asked, step), notes.numpy())
        self._take(self._scenes.collect(), end=step)
        # `NONE` is older than any picture that stands
        stands = step - self._known <= self._cfg.max_age
        if self._term.judges_action:
            self._term.see(torch.from_numpy(self._outputs[stands]), notes[torch.from_numpy(stands)])
        value, valid = self._standing(stands, notes)
        age = np.where(valid, step - self._known, 0)
        self._recent.give(step, value, valid)
        if self._term.judges_action:
            self._ask(step, transition)
            self._take(self._scenes.collect(), end=self._clock)
        device = transition.step.reward.device
        return Score(*(torch.from_numpy(x).to(device) for x in (value, valid, age)))

    def _ask(self, step: int, transition: SimTransition) -> None:
        """Submit the pictures of a step, if it is one with pictures."""
        if self._due_in == 0:
            self._asked[self._scenes.ask(step, transition).numpy()] = step
            self._due_in = self._cfg.every
        self._due_in -= 1

    def _standing(self, stands: NDArray[np.bool_], notes: Tensor) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Rewards (N,) of a step by the envs whose picture stands (N,) and its notes (N, S), and their validity."""
        value, valid = np.full(len(stands), FALLBACK, np.float32), stands.copy()
        # late scores hardly ever stand yet: nothing is computed where none does
        envs = np.flatnonzero(stands)
        if len(envs) and self._by_picture:
            if self._worth is None:
                self._worth = self._values(self._outputs, notes)
            worth, valued = self._worth
            np.logical_and(valid, valued, out=valid)
            np.copyto(value, worth, where=valid)
            return value, valid
        if len(envs):
            found, valued = self._values(self._outputs[envs], notes[torch.from_numpy(envs)])
            value[envs[valued]] = found[valued]
            valid[envs] = valued
        return value, valid

    def _values(self, outputs: NDArray[np.float32], notes: Tensor) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Rewards (n,) of outputs (n, K) and notes (n, S), and whether each is valid."""
        value, valid = self._term.value(torch.from_numpy(outputs), notes)
        return value.numpy(), valid.numpy()

    def _fresh(self, picture: NDArray[np.int64], step: int) -> NDArray[np.int64]:
        """Numbers (N,) of the pictures that stand at a step, or `NONE`."""
        return np.where(step - picture <= self._cfg.max_age, picture, NONE)

    def _take(self, answers: SceneAnswers, end: int) -> None:
        """Take answers into account, and give them to the steps before `end` that they stand for."""
        if not len(answers.step):
            return
        self._worth = None
        kept = answers.step > self._clock - 1 - self._cfg.kept_steps
        self._scenes.lost += int(np.count_nonzero(~kept))
        picture, env, outputs, _ = answers.rows(kept)
        if not self._term.judges_action:
            notes = torch.from_numpy(self._recent.notes[self._recent.row(picture), env])
            self._term.see(torch.from_numpy(outputs), notes)
        newer = (picture >= self._began[env]) & (picture > self._known[env])
        newest = self._known.copy()
        np.maximum.at(newest, env[newer], picture[newer])
        newer &= picture == newest[env]  # of several answers for one env
        self._known[env[newer]], self._outputs[env[newer]] = picture[newer], outputs[newer]
        steps = self._recent.referring(picture, env, self._cfg.max_age, end)
        row = self._recent.row(steps.step)
        notes = torch.from_numpy(self._recent.notes[row, steps.env])
        if self._term.judges_action:
            self._term.see(torch.from_numpy(outputs[steps.answer]), notes)
        value, valid = self._values(outputs[steps.answer], notes)
        row, where = row[valid], steps.env[valid]
        change = value[valid] - self._recent.reward[row, where]
        fresh = ~self._recent.valid[row, where]
        self._recent.reward[row, where] = value[valid]
        self._recent.valid[row, where] = True
        step = steps.step[valid]
        self._late.append(ScoredLate(step, where, change, fresh, step - picture[steps.answer[valid]]))

    def late(self, wait_s: float | None = None) -> LateScores:
        """See `LateRewardSource.late`."""
        limit_s = self._cfg.wait_s if wait_s is None else wait_s
        self._take(self._scenes.collect(limit_s), end=self._clock)
        late, self._late = self._late, []
        return late_scores(late, self._clock)

    def metrics(self) -> dict[str, float]:
        """See `LateRewardSource.metrics`."""
        return self._scenes.metrics()

    def close(self) -> None:
        """See `LateRewardSource.close`."""
        self._scenes.close()

    def forget(self, envs: Tensor) -> None:
        """See `RewardSource.forget`; a window that was found stays."""
        over = envs.cpu().numpy()
        if not over.any():
            return
        self._term.forget(envs.cpu())
        self._began[over] = self._clock
        self._asked[over] = NONE
        self._known[over] = NONE
        if over.all():
            self._due_in = 0

    def state(self) -> dict[str, NDArray[np.generic]]:
        """See `RewardSource.state`."""
        return {
            "due_in": np.array(self._due_in),
            "pending": np.array(self._scenes.pending),
            "paid": np.array(self._scenes.paid),
            "cost": np.array(self._scenes.cost),
            "known": self._ages(self._known),
            "asked": self._ages(self._asked),
            "outputs": self._outputs.copy(),
            **{f"term/{key}": value for key, value in self._term.state().items()},
        }

    def _ages(self, picture: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ages (N,) of pictures at the next step; `NONE` for none and for those that stand no longer."""
        stands = self._fresh(picture, self._clock)
        return np.where(stands == NONE, NONE, self._clock - stands)

    def load(self, state: dict[str, NDArray[np.generic]]) -> None:
        """See `RewardSource.load`."""
        warn_of_lost(self._name, int(state["pending"]))
        # states of before had no cost
        self._scenes.charge(int(state["paid"]), float(state.get("cost", 0.0)))
        # numbers of steps rise, so that answers of before are about steps that are gone
        self._clock += self._cfg.kept_steps
        self._recent.clear()
        self._late.clear()
        self._due_in = int(state["due_in"])
        for place, ages in ((self._known, state["known"]), (self._asked, state["asked"])):
            age = ages.astype(np.int64)
            place[:] = np.where(age == NONE, NONE, self._clock - age)
        self._began[:] = self._clock
        self._outputs[:] = state["outputs"]
        self._worth = None
        self._term.load({k.removeprefix("term/"): x for k, x in state.items() if k.startswith("term/")})


def language_reward(
    name: str, cfg: PictureRewardCfg, prompts: tuple[str, ...], term: TermFactory, sim: VecSim, text: str
) -> LanguageReward:
    """The reward of the similarity of a sim's pictures to sentences.

    Args:
        name: name of the source in the registry, for errors.
        cfg: model, pictures, and when they are scored.
        prompts: K sentences.
        term: makes rewards of their similarities; gets the vectors of the prompts.
        sim: the sim.
        text: further settings that change the score, for the identity.

    Raises:
        CapabilityError: the sim has no picture.
        ConfigError: a setting is out of range, or a prompt cannot be read.
        DataError: the model cannot be loaded.
        RobotrlError: no worker of the scoring service started.
    """
    cfg.check(name)
    feed = picture_feed(sim, cfg.view, cfg.pixels, f"reward.{name}.view")
    warn_of_other_view(cfg.model, feed, f"reward.{name}.view")
    opened = open_scores(cfg, prompts, "similarity", feed.shape)
    settings = (name, opened.prompts.identity, feed.name, cfg.every, cfg.max_age, prompts, text)
    identity = hashlib.sha256(repr(settings).encode()).hexdigest()
    scenes = SceneScores(feed, opened.scores, sim.num_envs)
    return LanguageReward(name, cfg, scenes, len(prompts), term(opened.prompts), sim.num_envs, identity)


def check_kept_steps(name: str, kept_steps: int, step_bytes: int) -> None:
    """Check that the kept steps, of so many bytes for all envs, fit into the memory.

    Raises:
        ConfigError: they take more than half of what is free.
    """
    check_memory(f"reward.{name}.kept_steps is {kept_steps}", step_bytes, kept_steps, "fewer")


def warn_of_lost(name: str, pending: int) -> None:
    """Warn of scores that were on their way when a state was saved, if there were any."""
    if pending:
        warnings.warn(
            f"reward {name!r}: {pending} scores were on their way when the state was saved; they are lost, and the run"
            " goes on, not exactly",
            stacklevel=3,
        )


def check_prompts(name: str, field: str, prompts: tuple[str, ...]) -> None:
    """Check that there is a prompt, and that each is a text.

    Raises:
        ConfigError: there is none, or one is empty.
    """
    if not prompts or not all(prompt.strip() for prompt in prompts):
        raise ConfigError(f"reward.{name}.{field} is {tuple(prompts)!r}: expected one sentence or more")
