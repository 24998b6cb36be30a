"""The reward of both paths, step by step; scores of either may come late and are written into their own steps."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.fn.language_reward import two_paths
from robotrl.rewards.dual_pathway.gate import GateCounters, ScorerGate, WordGate
from robotrl.rewards.dual_pathway.standing import Cells, StandingAnswers
from robotrl.rewards.served.scores import EndpointScores
from robotrl.rewards.source import LateScores, Score, SimTransition
from robotrl.rewards.vlm.cfg import ScenePicturesCfg
from robotrl.rewards.vlm.clips import ClipMemory
from robotrl.rewards.vlm.pictures import PictureFeed
from robotrl.rewards.vlm.recent import NONE
from robotrl.rewards.vlm.scene_scores import SceneAnswers, SceneScores
from robotrl.rewards.vlm.similarity import PictureScores
from robotrl.rewards.vlm.source import FALLBACK, ScoredLate, check_kept_steps, late_scores, warn_of_lost
from robotrl.rewards.vlm.synthesis import Shape
from robotrl.rewards.vlm.window import CalibratedWindow
from robotrl.rewards.vlm.windowed import RawScore
from robotrl.spec.vehicle import HasTimeToCollision

UNKNOWN = -1
BILL = "bill"
STANDING_BYTES, STEP_BYTES = 28, 13
"""Bytes of a kept step of an env: in `StandingAnswers`, and reward, validity and truth."""


class StaticPath(NamedTuple):
    """Language goals on the picture of every step."""

    scores: PictureScores
    """Similarities to the sentences of the goals, and behind them to those of the gate."""
    goals: int
    """Number of sentences of the goals."""
    raw: RawScore
    window: CalibratedWindow
    used: bool
    """False if only the gate reads the similarities."""


class DynamicPath(NamedTuple):
    """Clips that a gate lets through, and the risk that a larger model sees in them."""

    scores: PictureScores
    """Risks of clips, 0 to 1."""
    ask_gap: int
    """Fewest steps between two requests of an env."""
    max_age: int
    by_words: WordGate | None = None
    """Gate on the similarities of the static path."""
    by_picture: ScorerGate | None = None
    objects_s: float | None = None
    """Time to collision below which the gate opens, by the sim's own objects."""


class Truth(NamedTuple):
    """The sim's own truth of which scenes matter, for the gate's counters."""

    sim: HasTimeToCollision
    below_s: float
    """Time to collision below which a scene matters."""


class DualPathwayReward:
    """Reward of a static and a dynamic path, fused and joined with the state; a `LateRewardSource`.

    Args:
        name: name of the source in the registry, for errors.
        cfg: when pictures are taken, and how long late scores are awaited and taken.
        feed: pictures of a step.
        memory: keeps them for clips.
        static: None: the path is switched off, and no gate needs it.
        dynamic: None: the path is switched off.
        truth: None: the sim does not know it.
        product: see `two_paths`.
        shape: synthesis with the state.
        num_envs: N.
        identity: see `RewardSource`.
    """

    fallback = FALLBACK
    end_at: float | None = None
    sees_success = False
    obs_keys: tuple[str, ...] = ()

    def __init__(
        self,
        name: str,
        cfg: ScenePicturesCfg,
        feed: PictureFeed,
        memory: ClipMemory,
        static: StaticPath | None,
        dynamic: DynamicPath | None,
        truth: Truth | None,
        product: bool,
        shape: Shape,
        num_envs: int,
        identity: str,
    ) -> None:
        self.identity = identity
        self._name, self._cfg, self._feed, self._memory = name, cfg, feed, memory
        self._static, self._dynamic, self._truth_of = static, dynamic, truth
        self._product, self._shape, self._num_envs = product, shape, num_envs
        kept = cfg.kept_steps
        check_kept_steps(name, kept, num_envs * (2 * STANDING_BYTES + STEP_BYTES + 4 * shape.width))
        self._scenes = None if static is None else SceneScores(_Newest(self, feed.shape), static.scores, num_envs)
        self._score = StandingAnswers(num_envs, kept, cfg.max_age)
        self._risk = StandingAnswers(num_envs, kept, 0 if dynamic is None else dynamic.max_age)
        self._notes = torch.zeros(kept, num_envs, shape.width)
        self._reward, self._valid = torch.zeros(kept, num_envs), torch.zeros(kept, num_envs, dtype=torch.bool)
        self._matters = torch.full((kept, num_envs), UNKNOWN)
        self._last, self._last_episode = np.full(num_envs, NONE), np.full(num_envs, NONE)
        self.gate = GateCounters()
        self._clock, self._due_in = kept, 0
        self._late = list[ScoredLate]()
        self._lost: dict[str, int] = {"static": 0, "dynamic": 0}
        """Answers of each path that came too late to be taken."""

    def score(self, transition: SimTransition) -> Score:
        """See `RewardSource.score`."""
        step = self._clock
        if self._due_in == 0:
            self._look(step, transition)
            self._due_in = self._cfg.every
        self._due_in -= 1
        self._clock += 1
        self._take(step, 0.0)
        self._notes[step % len(self._notes)] = self._shape.notes(transition).cpu()
        self._score.push(step)
        self._risk.push(step)
        cells = Cells(torch.full((self._num_envs,), step), torch.arange(self._num_envs))
        value, valid = self._value(cells)
        row = step % len(self._reward)
        self._reward[row], self._valid[row] = value, valid
        device = transition.step.reward.device
        return Score(value.to(device), valid.to(device), (self._age(cells) * valid).to(device))

    def _look(self, step: int, transition: SimTransition) -> None:
        """Take the pictures of a step; ask the static path about them, and the gate that needs no answer of it."""
        visible = self._feed.visible(transition).cpu()
        envs = torch.nonzero(visible).squeeze(1)
        over = (transition.step.terminated | transition.step.truncated).cpu()
        times = None if self._truth_of is None else torch.from_numpy(self._truth_of.sim.time_to_collision_s())
        row = step % len(self._matters)
        self._matters[row] = UNKNOWN
        if times is not None and self._truth_of is not None:
            # where an episode ended the sim speaks of the next one
            self._matters[row] = torch.where(over, UNKNOWN, (times < self._truth_of.below_s).long())
        if not len(envs):
            return
        pictures = self._feed.pixels(transition, envs)
        self._memory.push(step, envs.numpy(), pictures)
        if self._scenes is not None:
            asked = self._scenes.ask(step, transition)
            self._score.ask(torch.full_like(asked, step), asked, step)
        dynamic = self._dynamic
        if dynamic is None or dynamic.by_words is not None:
            return
        opened = torch.ones(len(envs), dtype=torch.bool)
        if dynamic.by_picture is not None:
            opened, failed = dynamic.by_picture(pictures)
            self.gate.failed += failed
        elif dynamic.objects_s is not None and times is not None:
            here = ~over[envs]
            opened = (times[envs] < dynamic.objects_s)[here]
            envs = envs[here]
        self._ask(torch.full_like(envs, step), envs, opened, step)

    def visible(self, transition: SimTransition) -> Tensor:
        """Envs (N,) whose picture the static path is asked about."""
        return self._feed.visible(transition)

    def newest(self, envs: Tensor) -> NDArray[np.uint8]:
        """Pictures (n, h, w, 3) of the step that is looked at, of the envs (n,)."""
        return self._memory.newest(self._clock, envs.numpy())

    def _ask(self, picture: Tensor, env: Tensor, opened: Tensor, end: int) -> None:
        """Ask the larger model about clips that end at pictures (n,) where the gate is open (n,)."""
        assert self._dynamic is not None
        matters = self._matters[picture % len(self._matters), env]
        known = matters != UNKNOWN
        self.gate.count(opened[~known], None)
        self.gate.count(opened[known], matters[known] == 1)
        steps, envs = picture[opened].numpy(), env[opened].numpy()
        episode = self._memory.episode(steps, envs)
        wanted = np.zeros(len(steps), np.bool_)
        # in the order of time: each request holds back those soon after it
        for at in np.argsort(steps, kind="stable"):
            one = envs[at]
            near = abs(steps[at] - self._last[one]) < self._dynamic.ask_gap
            if not (near and episode[at] == self._last_episode[one]):
                wanted[at] = True
                self._last[one], self._last_episode[one] = steps[at], episode[at]
        self.gate.held += int(np.count_nonzero(~wanted))
        steps, envs = steps[wanted], envs[wanted]
        if not len(steps):
            return
        clips, there = self._memory.clips(steps, envs)
        accepted = np.zeros(len(steps), np.bool_)
        if there.any():
            accepted[there] = self._dynamic.scores.submit((steps * self._num_envs + envs)[there], clips[there])
        self.gate.asked += int(accepted.sum())
        self.gate.missed += int(np.count_nonzero(~accepted))
        self._last[envs[~accepted]] = NONE
        self._risk.ask(torch.from_numpy(steps[accepted]), torch.from_numpy(envs[accepted]), end)

    def _take(self, end: int, wait_s: float) -> None:
        """Take answers of both paths, and give them to the steps before `end` that they stand for."""
        until_s = time.monotonic() + wait_s
        changed = [self._take_static(end, wait_s)]
        changed.append(self._take_risks(end, max(0.0, until_s - time.monotonic())))
        code = torch.cat([cells.step * self._num_envs + cells.env for cells in changed]).unique()
        if not len(code):
            return
        cells = Cells(code // self._num_envs, code % self._num_envs)
        value, valid = self._value(cells)
        cells = Cells(cells.step[valid], cells.env[valid])
        row = cells.step % len(self._reward)
        change, fresh = value[valid] - self._reward[row, cells.env], ~self._valid[row, cells.env]
        self._reward[row, cells.env], self._valid[row, cells.env] = value[valid], True
        late = (cells.step, cells.env, change, fresh, self._age(cells))
        self._late.append(ScoredLate(*(x.numpy() for x in late)))

    def _kept(self, answers: SceneAnswers, path: str) -> tuple[Tensor, Tensor, Tensor]:
        """Pictures (n,), envs (n,) and outputs (n, K) of the answers of a path that are not too old."""
        recent = answers.step > self._clock - 1 - self._cfg.kept_steps
        self._lost[path] += int(np.count_nonzero(~recent))
        return (
            torch.from_numpy(answers.step[recent]),
            torch.from_numpy(answers.env[recent]),
            torch.from_numpy(answers.outputs[recent]),
        )

    def _take_static(self, end: int, wait_s: float) -> Cells:
        static, none = self._static, torch.zeros(0, dtype=torch.int64)
        if static is None or self._scenes is None:
            return Cells(none, none)
        picture, env, outputs = self._kept(self._scenes.collect(wait_s), "static")
        if not len(picture):
            return Cells(none, none)
        cells = Cells(none, none)
        if static.used:
            raw = static.raw(outputs[:, : static.goals])
            static.window.see(raw)
            score = static.window(raw)
            if score is not None:
                cells = self._score.take(picture, env, score, end)
        if self._dynamic is not None and self._dynamic.by_words is not None:
            self._ask(picture, env, self._dynamic.by_words(outputs[:, static.goals :]), end)
        return cells

    def _take_risks(self, end: int, wait_s: float) -> Cells:
        none = torch.zeros(0, dtype=torch.int64)
        if self._dynamic is None:
            return Cells(none, none)
        scores = self._dynamic.scores
        found = scores.wait(wait_s) if wait_s else scores.collect()
        picture, env, risk = self._kept(SceneAnswers.of(found, self._num_envs), "dynamic")
        return self._risk.take(picture, env, risk[:, 0], end) if len(picture) else Cells(none, none)

    def _value(self, cells: Cells) -> tuple[Tensor, Tensor]:
        """Rewards (m,) of steps, and which are valid (m,)."""
        risk = self._risk.at(cells)
        if self._static is not None and self._static.used:
            score = self._score.at(cells)
            valid = ~score.isnan()
        else:
            # where nothing was asked, nothing matters; an answer that is on its way is waited for
            score = torch.ones(len(cells.step))
            valid = ~risk.isnan() | ~self._risk.refers(cells)
        fused = two_paths(score.nan_to_num(), risk, self._product)
        notes = self._notes[cells.step % len(self._notes), cells.env]
        return torch.where(valid, self._shape.reward(fused, notes), FALLBACK), valid

    def _age(self, cells: Cells) -> Tensor:
        """Steps (m,) from the picture of the main path's answer to each step."""
        path = self._score if self._static is not None and self._static.used else self._risk
        return path.age(cells)

    def late(self, wait_s: float | None = None) -> LateScores:
        """See `LateRewardSource.late`."""
        self._take(self._clock, self._cfg.wait_s if wait_s is None else wait_s)
        late, self._late = self._late, []
        return late_scores(late, self._clock)

    def metrics(self) -> dict[str, float]:
        """See `LateRewardSource.metrics`."""
        found = dict[str, float]()
        for path, one in self._paths().items():
            own = one.metrics()
            found |= {f"{path}/{key}": value for key, value in own.items()}
            if own:
                found[f"{path}/lost"] = float(self._lost[path])
        return found | (self.gate.scalars() if self._dynamic is not None else {})

    def _paths(self) -> dict[str, PictureScores]:
        found = {} if self._static is None else {"static": self._static.scores}
        return found if self._dynamic is None else found | {"dynamic": self._dynamic.scores}

    def close(self) -> None:
        """See `LateRewardSource.close`."""
        for one in self._paths().values():
            one.close()

    def forget(self, envs: Tensor) -> None:
        """See `RewardSource.forget`; windows that were found stay."""
        over = envs.cpu()
        self._score.forget(over, self._clock)
        self._risk.forget(over, self._clock)
        self._memory.forget(over.numpy())
        self._shape.forget(over)
        if over.all():
            self._due_in = 0

    def state(self) -> dict[str, NDArray[np.generic]]:
        """See `RewardSource.state`."""
        paths = self._paths()
        out: dict[str, NDArray[np.generic]] = {
            "clock": np.array(self._clock),
            "due_in": np.array(self._due_in),
            "last": np.stack([self._last, self._last_episode]),
            "gate": self.gate.state(),
            "pending": np.array(sum(one.pending for one in paths.values())),
            "paid": np.array([[one.paid, one.cost] for one in paths.values()]),
        }
        if self._dynamic is not None and isinstance(self._dynamic.scores, EndpointScores):
            out[BILL] = self._dynamic.scores.bill()
        out |= {f"shape/{key}": x for key, x in self._shape.state().items()}
        for prefix, part in self._parts().items():
            out |= {f"{prefix}/{key}": x for key, x in part.state().items()}
        return out

    def _parts(self) -> dict[str, StandingAnswers | ClipMemory | CalibratedWindow]:
        parts: dict[str, StandingAnswers | ClipMemory | CalibratedWindow] = {
            "score": self._score,
            "risk": self._risk,
            "clips": self._memory,
        }
        if self._static is not None:
            parts["window"] = self._static.window
        if self._dynamic is not None and self._dynamic.by_words is not None:
            parts["gate_window"] = self._dynamic.by_words.window
        return parts

    def load(self, state: dict[str, NDArray[np.generic]]) -> None:
        """See `RewardSource.load`."""
        warn_of_lost(self._name, int(state["pending"]))
        for one, (paid, cost) in zip(self._paths().values(), state["paid"].tolist(), strict=True):
            one.charge(max(0, int(paid) - one.paid), max(0.0, cost - one.cost))
        # version 0.1 kept calls and cost alone
        if self._dynamic is not None and isinstance(self._dynamic.scores, EndpointScores) and BILL in state:
            self._dynamic.scores.load_bill(state[BILL])
        # numbers of steps rise, so that answers of before are about steps that are gone
        clock, period = int(state["clock"]), self._memory.period
        behind = max(0, self._clock + self._cfg.kept_steps - clock)
        shift = -(-behind // period) * period
        self._clock, self._due_in = clock + shift, int(state["due_in"])
        self._late.clear()
        last = state["last"].astype(np.int64)
        self._last[:], self._last_episode[:] = np.where(last == NONE, NONE, last + shift)
        self.gate.load(state["gate"])
        self._shape.load({key.removeprefix("shape/"): x for key, x in state.items() if key.startswith("shape/")})
        for prefix, part in self._parts().items():
            own = {key.removeprefix(f"{prefix}/"): x for key, x in state.items() if key.startswith(f"{prefix}/")}
            if isinstance(part, CalibratedWindow):
                part.load(own)
            else:
                part.load(own, shift)


class _Newest:
    """Pictures that were just taken, so that none is drawn twice; a `PictureFeed`."""

    name = "newest"
    shape: tuple[int, int]

    def __init__(self, source: DualPathwayReward, shape: tuple[int, int]) -> None:
        self._source, self.shape = source, shape

    def visible(self, transition: SimTransition) -> Tensor:
        """See `PictureFeed`."""
        return self._source.visible(transition)

    def pixels(self, transition: SimTransition, envs: Tensor) -> NDArray[np.uint8]:
        """See `PictureFeed`."""
        return self._source.newest(envs)
