"""Preferences that are asked about while a run trains: rounds of questions, and rewards that change after the step.

PEBBLE (Lee et al. 2021, arXiv 2106.05091) and RL-VLM-F (Wang et al. 2024, arXiv 2402.03681): every so many steps some
pairs are labeled, the ensemble is fitted anew, and the whole replay is relabeled by it. Here the source keeps the
steps that it has scored; the changes of their rewards are late rewards, which the replay adds to the steps that they
belong to (`robotrl.spec.late_rewards`). Other sources' parts of the rewards stay as they are.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robotrl.rewards.preferences.ensemble import LearnedPreferences
from robotrl.rewards.preferences.labelers.desk import LabelDesk, PairKeys
from robotrl.rewards.preferences.labelers.labels import NEITHER
from robotrl.rewards.preferences.memory import KeptSteps, StepMemory
from robotrl.rewards.preferences.offline import CANDIDATES
from robotrl.rewards.preferences.preferences import NAME, PreferencesCfg
from robotrl.rewards.preferences.segments import Ints, Segments, gather, possible_starts, random_pairs, segment_keys
from robotrl.rewards.preferences.taken_clips import ClipTaker
from robotrl.rewards.preferences.training import FEWEST, AnsweredPairs, joined, train_preferences
from robotrl.rewards.source import LateScores, Score, SimTransition
from robotrl.spec import Spec, VecSim

OPEN = -2
"""Stands for the answer of a pair that is asked about."""


class ChosenPairs(NamedTuple):
    """P pairs of segments for a round of questions."""

    first: Segments
    second: Segments
    clips: NDArray[np.uint8] | None
    """(P, 2, F, h, w, 3)."""

    def advantage(self) -> list[float]:
        """Sum of the sim's own rewards in the second segment of each pair, less that in the first."""
        return (self.second.reward.double().sum(1) - self.first.reward.double().sum(1)).tolist()


class OnlinePreferences:
    """Reward that is learned from preferences while the run goes on; a `LateRewardSource`.

    Until the first answers are learned from, scores are invalid.

    Args:
        cfg: settings.
        specs: observations that the reward reads.
        sim: the sim.
    """

    end_at: float | None = None
    sees_success = True  # labeled segments run past the ends of episodes

    def __init__(self, cfg: PreferencesCfg, specs: dict[str, Spec], sim: VecSim) -> None:
        self._cfg, self._specs, self._action = cfg, specs, sim.action_spec
        self._desk = LabelDesk(cfg.labeler, f"{NAME}.labeler")
        self._clips = ClipTaker(sim, cfg.labeler, cfg.training.seed) if self._desk.needs_clips else None
        self.fallback = 0.0
        self.obs_keys = tuple(specs)
        settings = (cfg.labels, cfg.per_round, cfg.every_env_steps, cfg.memory, cfg.pessimism, cfg.offset, cfg.pairs)
        training = {name: value for name, value in vars(cfg.training).items() if name != "engine"}
        self.identity = f"preferences:{self._desk.identity}:{settings!r}:{training!r}:{sorted(specs)!r}"
        rows = max(1, cfg.memory // sim.num_envs)
        self._memory = StepMemory(specs, sim.action_spec, sim.num_envs, rows, NAME)
        self._device = sim.device
        self._rng_seed = cfg.training.seed
        self._learned: LearnedPreferences | None = None
        self._pairs: AnsweredPairs | None = None
        """All pairs that were asked about, in the order of the questions; `choice` is `OPEN` while it is."""
        self._keys: list[bytes] = []
        self._open_clips = dict[bytes, NDArray[np.uint8]]()
        self._fitted_on = np.zeros(0, np.int64)
        """Rows of the pairs that the ensemble was fitted to."""
        self._rounds = 0
        self._late: LateScores | None = None
        self._late_at = 0

    # scores

    def score(self, transition: SimTransition) -> Score:
        """See `RewardSource.score`."""
        envs = self._memory.num_envs
        value, valid = torch.zeros(envs), torch.zeros(envs, dtype=torch.bool)
        if self._learned is not None:
            obs = {key: transition.obs[key].cpu() for key in self._specs}
            action = transition.action.cpu().flatten(1)
            value = self._learned.rewards(obs, action, self._cfg.pessimism) + self._cfg.offset
            valid = torch.ones(envs, dtype=torch.bool)
        if self._clips is not None:
            self._clips.see(self._memory.clock, transition)
        self._memory.add(transition, value, valid)
        if self._due:
            self._ask()
        self._take(0.0)
        return Score.of_now(value.to(self._device), valid.to(self._device))

    @property
    def _due(self) -> bool:
        """True if it is time for a round of questions."""
        steps = self._memory.clock * self._memory.num_envs
        asked = 0 if self._pairs is None else len(self._pairs.choice)
        return asked < self._cfg.labels and steps >= self._cfg.every_env_steps * (self._rounds + 1)

    def _ask(self) -> None:
        self._rounds += 1
        asked = 0 if self._pairs is None else len(self._pairs.choice)
        chosen = self._choose(min(self._cfg.per_round, self._cfg.labels - asked))
        if chosen is None:
            return
        new = AnsweredPairs(chosen.first, chosen.second, np.full(len(chosen.first.valid), OPEN))
        self._pairs = new if self._pairs is None else joined(self._pairs, new)
        self._keys += self._submit(chosen)

    def _submit(self, chosen: ChosenPairs) -> list[bytes]:
        """Ask about pairs; returns the keys of the questions."""
        keys = [PairKeys(*pair) for pair in zip(segment_keys(chosen.first), segment_keys(chosen.second), strict=True)]
        clips = chosen.clips
        if clips is None:
            self._desk.ask(keys, chosen.advantage(), None)
            return [key.question for key in keys]
        self._open_clips |= {key.question: shown for key, shown in zip(keys, clips, strict=True)}
        self._desk.ask(keys, chosen.advantage(), lambda rows: clips[list(rows)])
        return [key.question for key in keys]

    def _choose(self, count: int) -> ChosenPairs | None:
        """Pairs of a round: random ones, or those on which the members disagree most; None if there are no segments."""
        rng = np.random.default_rng([self._rng_seed, self._rounds])
        length, kept = self._cfg.labeler.length, self._memory.kept()
        if self._clips is None:
            starts, pictures = possible_starts(kept.pool, length), None
        else:
            starts, pictures = self._seen(kept, length)
        if len(starts) < 2 or starts[-1] - starts[0] < length:
            return None
        choose = self._cfg.pairs == "disagreement" and self._learned is not None
        pairs = random_pairs(starts, count * (CANDIDATES if choose else 1), length, rng)
        if choose and self._learned is not None:
            spread = self._learned.disagreement(*(gather(kept.pool, pairs[:, side], length) for side in (0, 1)))
            pairs = pairs[torch.argsort(spread, descending=True, stable=True).numpy()[:count]]
        first, second = (gather(kept.pool, pairs[:, side], length) for side in (0, 1))
        shown = None
        if pictures is not None:
            shown = np.stack([np.stack([pictures[int(start)] for start in pair]) for pair in pairs])
        return ChosenPairs(first, second, shown)

    def _seen(self, kept: KeptSteps, length: int) -> tuple[Ints, dict[int, NDArray[np.uint8]]]:
        """Starts in the pool of segments with pictures, and their pictures (F, h, w, 3)."""
        assert self._clips is not None
        per_env = self._memory.clock - self._memory.first
        found = {
            clip.env * per_env + clip.step - self._memory.first: clip.pictures
            for clip in self._clips.clips
            if clip.step >= self._memory.first
        }
        whole = {start: pictures for start, pictures in found.items() if int(kept.pool.end[start]) - start >= length}
        return np.array(sorted(whole), np.int64), whole

    # answers

    def _take(self, wait_s: float) -> None:
        """Take answers; once none is open, learn from them and relabel."""
        if self._pairs is None:
            return
        answers = self._desk.collect(wait_s)
        if answers:
            for row, key in enumerate(self._keys):
                if key in answers and self._pairs.choice[row] == OPEN:
                    self._pairs.choice[row] = answers[key]
                    self._open_clips.pop(key, None)
        if not self._desk.pending:
            self._learn()

    def _learn(self) -> None:
        assert self._pairs is not None
        usable = np.flatnonzero((self._pairs.choice != OPEN) & (self._pairs.choice != NEITHER))
        if len(usable) == len(self._fitted_on) or len(usable) * (1 - self._cfg.training.held_out) < FEWEST:
            return
        self._fit(usable)
        self._relabel()

    def _fit(self, usable: Ints) -> None:
        assert self._pairs is not None
        chosen = self._pairs.rows(usable)
        self._learned = train_preferences(chosen, self._specs, self._action, self._cfg.training, {})
        self._fitted_on = usable

    def _relabel(self) -> None:
        """Score all kept steps anew; the changes are given to the learner by `late`."""
        assert self._learned is not None
        kept = self._memory.kept()
        rewards = self._learned.rewards(kept.pool.obs, kept.pool.action, self._cfg.pessimism) + self._cfg.offset
        change, fresh = self._memory.give(kept, rewards)
        back = torch.from_numpy(self._memory.clock - 1 - kept.step)
        new = LateScores(back, torch.from_numpy(kept.env), change, fresh, torch.zeros_like(back))
        self._late = new if self._late is None else _later(self._late, self._memory.clock - self._late_at, new)
        self._late_at = self._memory.clock

    def late(self, wait_s: float | None = None) -> LateScores:
        """See `LateRewardSource.late`."""
        if self._memory.clock:
            self._take(self._cfg.wait_s if wait_s is None else wait_s)
        late, self._late = self._late, None
        if late is None:
            return LateScores.none()
        return late._replace(back=late.back + self._memory.clock - self._late_at)

    def metrics(self) -> dict[str, float]:
        """See `LateRewardSource.metrics`."""
        choice = np.zeros(0, np.int64) if self._pairs is None else self._pairs.choice
        found = {
            "answers": float(((choice != OPEN) & (choice != NEITHER)).sum()),
            "neither": float((choice == NEITHER).sum()),
            "open": float((choice == OPEN).sum()),
            "rounds": float(self._rounds),
        }
        if self._learned is not None and self._learned.held_out.answers >= 2:
            held_out = self._learned.held_out
            found |= {"held_out_agreement": held_out.agreement, "held_out_error": held_out.error}
        return found | {f"labeler_{name}": value for name, value in self._desk.metrics().items()}

    def close(self) -> None:
        """See `LateRewardSource.close`."""
        self._desk.close()

    def forget(self, envs: Tensor) -> None:
        """See `RewardSource.forget`."""
        self._memory.cut(envs)

    # resume

    def state(self) -> dict[str, NDArray[np.generic]]:
        """See `RewardSource.state`: kept steps, pairs with their answers, and what was paid."""
        found: dict[str, NDArray[np.generic]] = {
            "rounds": np.array(self._rounds),
            "fitted_on": self._fitted_on.copy(),
            **{f"memory/{name}": x for name, x in self._memory.state().items()},
            **{f"paid/{name}": np.array(value) for name, value in self._desk.state().items()},
        }
        if self._late is not None:
            late = self._late._replace(back=self._late.back + self._memory.clock - self._late_at)
            found |= {f"late/{name}": x.numpy().copy() for name, x in late._asdict().items()}
        if self._pairs is not None:
            found["choice"] = self._pairs.choice.copy()
            for name, one in (("first", self._pairs.first), ("second", self._pairs.second)):
                obs, *rest = one
                found |= {f"{name}/obs/{key}": x.numpy().copy() for key, x in obs.items()}
                columns = zip(("action", "valid", "reward"), rest, strict=True)
                found |= {f"{name}/{key}": x.numpy().copy() for key, x in columns}
            open_rows = [row for row, answer in enumerate(self._pairs.choice) if answer == OPEN]
            if self._clips is not None and all(self._keys[row] in self._open_clips for row in open_rows) and open_rows:
                found["open_clips"] = np.stack([self._open_clips[self._keys[row]] for row in open_rows])
        return found

    def load(self, state: dict[str, NDArray[np.generic]]) -> None:
        """See `RewardSource.load`; open questions are asked again, and the ensemble is fitted as it was."""
        self._memory.load({name.removeprefix("memory/"): x for name, x in state.items() if name.startswith("memory/")})
        self._desk.load({name.removeprefix("paid/"): float(x) for name, x in state.items() if name.startswith("paid/")})
        if self._clips is not None:
            self._clips.clear()
        self._open_clips.clear()
        self._rounds = int(state["rounds"])
        self._pairs, self._learned, self._keys = None, None, []
        self._fitted_on = np.zeros(0, np.int64)
        self._late_at = self._memory.clock
        late = [
            torch.from_numpy(state[f"late/{name}"].copy()) for name in LateScores._fields if f"late/{name}" in state
        ]
        self._late = LateScores(*late) if late else None
        if "choice" not in state:
            return
        first, second = (_segments(state, name) for name in ("first", "second"))
        self._pairs = AnsweredPairs(first, second, state["choice"].astype(np.int64))
        keys = [PairKeys(*pair) for pair in zip(segment_keys(first), segment_keys(second), strict=True)]
        self._keys = [key.question for key in keys]
        if len(state["fitted_on"]):
            self._fit(state["fitted_on"].astype(np.int64))
        self._ask_again(state)

    def _ask_again(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Ask about the pairs that were open when the state was saved."""
        assert self._pairs is not None
        rows = np.flatnonzero(self._pairs.choice == OPEN)
        if not len(rows):
            return
        if self._clips is not None and "open_clips" not in state:
            warnings.warn(f"{len(rows)} questions about pairs lack their pictures and are dropped", stacklevel=3)
            return
        chosen = self._pairs.rows(rows)
        clips = state["open_clips"].astype(np.uint8) if self._clips is not None else None
        self._submit(ChosenPairs(chosen.first, chosen.second, clips))


def _segments(state: dict[str, NDArray[np.generic]], name: str) -> Segments:
    arrays = {key.removeprefix(f"{name}/"): x for key, x in state.items() if key.startswith(f"{name}/")}
    obs = {key.removeprefix("obs/"): torch.from_numpy(x.copy()) for key, x in arrays.items() if key.startswith("obs/")}
    return Segments(obs, *(torch.from_numpy(arrays[key].copy()) for key in ("action", "valid", "reward")))


def _later(before: LateScores, steps: int, new: LateScores) -> LateScores:
    """Changes of before and new ones, counted back from now; `steps` were made between them."""
    moved = before._replace(back=before.back + steps)
    return LateScores(*(torch.cat(pair) for pair in zip(moved, new, strict=True)))
