"""Checks that every reward source must pass. A new source is one `RewardCase` in `CASES`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from robotrl.registry import REWARDS, make_sim
from robotrl.rewards.action_alignment import ActionAlignmentCfg
from robotrl.rewards.contrast import ContrastCfg
from robotrl.rewards.dual_pathway.dual_pathway import DualPathwayCfg
from robotrl.rewards.endpoint.cfg import EndpointCfg
from robotrl.rewards.episode_similarity import EpisodeSimilarityCfg
from robotrl.rewards.function import FunctionRewardCfg
from robotrl.rewards.goal_baseline import GoalBaselineCfg
from robotrl.rewards.lord import LordCfg
from robotrl.rewards.preferences.preferences import PreferencesCfg
from robotrl.rewards.process import ProcessRewardCfg
from robotrl.rewards.progress import ProgressRewardCfg
from robotrl.rewards.rules import ActionRateCfg, ActionSizeCfg, AliveCfg, StepPenaltyCfg
from robotrl.rewards.served.vlm_score import VlmScoreCfg
from robotrl.rewards.source import RewardSetup, Score, SimTransition, StatelessReward
from robotrl.rewards.success import SuccessRewardCfg
from robotrl.rewards.task import TaskRewardCfg
from robotrl.rewards.threshold import ThresholdCfg
from robotrl.testing.rewards import (
    CHECKS,
    RewardCase,
    forget_leaves_other_envs_alone,
    identity_is_that_of_the_settings,
    scores_are_deterministic,
    scores_are_one_number_an_env,
    state_resumes_exactly,
    steps_are_not_written_to,
)
from tests.kits.chat_server import ChatServer
from tests.kits.preference_kit import stored_preferences
from tests.kits.small_clip import BAD, GOOD, stored_clip
from tests.kits.stored_rewards import StatingWalk, stored_classifier, stored_process


def walk(num_envs: int, seed: int) -> StatingWalk:
    return StatingWalk(num_envs, seed)


def reach(num_envs: int, seed: int) -> Any:
    return make_sim("mujoco/reach", num_envs, seed, limit_s=0.5)


def half_way(obs: Any, action: Tensor, next_obs: Any, info: Any) -> Tensor:
    """A function of one's own."""
    return (next_obs["walk"][:, 0] - obs["walk"][:, 0]) * info["reward"] - action[:, 0].abs()


def other_way(obs: Any, action: Tensor, next_obs: Any, info: Any) -> Tensor:
    return -info["terminated"].float()


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rewards")
    stored_classifier(folder / "success")
    stored_process(folder / "process")
    stored_preferences(folder / "preferences")
    return folder


def success(folder: Path) -> RewardCase:
    cfg = SuccessRewardCfg(str(folder / "success"), threshold=0.45, steps=2)
    return RewardCase("success", cfg, (replace(cfg, threshold=0.5), replace(cfg, steps=1)), walk)


def process(folder: Path) -> RewardCase:
    cfg = ProcessRewardCfg(str(folder / "process"))
    return RewardCase("process", cfg, (replace(cfg, form="raw"),), walk)


def preferences(folder: Path) -> RewardCase:
    cfg = PreferencesCfg(str(folder / "preferences"), pessimism=0.5)
    return RewardCase("preferences", cfg, (replace(cfg, pessimism=0.0), replace(cfg, offset=1.0)), walk)


def drive(num_envs: int, seed: int) -> Any:
    return make_sim("bev/drive", num_envs, seed, limit_s=1.0, obs="both", raster_pixels=16, agents=4)


def contrast(folder: Path) -> RewardCase:
    pytest.importorskip("open_clip")
    if not (folder / "clip").exists():
        stored_clip(folder / "clip")
    cfg = ContrastCfg(
        model=str(folder / "clip"), good=GOOD, bad=BAD, view="near", pixels=16, every=2, window=(-1.0, 1.0)
    )
    changed = (replace(cfg, bad=GOOD), replace(cfg, every=1), replace(cfg, view="top"), replace(cfg, window=None))
    return RewardCase("contrast", cfg, changed, drive)


def of_pictures(folder: Path, name: str) -> RewardCase:
    """A case of another reward from pictures and language."""
    pytest.importorskip("open_clip")
    base: dict[str, Any] = {"model": contrast(folder).cfg.model, "view": "near", "pixels": 16, "every": 2}
    if name == "goal-baseline":
        cfg = GoalBaselineCfg(goal=GOOD[0], baseline="our car", window=(0.0, 1.0), **base)
        return RewardCase(name, cfg, (replace(cfg, alpha=0.9), replace(cfg, baseline="a light")), drive)
    if name == "lord":
        cfg = LordCfg(bad=BAD, window=(0.0, 2.0), **base)
        return RewardCase(name, cfg, (replace(cfg, bad=BAD[:1]), replace(cfg, max_age=0)), drive)
    if name == "threshold":
        cfg = ThresholdCfg(goal=GOOD[0], threshold=0.05, **base)
        return RewardCase(name, cfg, (replace(cfg, quantile=0.9), replace(cfg, threshold=None)), drive)
    if name == "episode-similarity":
        cfg = EpisodeSimilarityCfg(goal=GOOD[0], **base)
        return RewardCase(name, cfg, (replace(cfg, goal=BAD[0]), replace(cfg, every=1)), drive)
    cfg = ActionAlignmentCfg(
        sentences=("we drive fast", "we drive slowly", "we stand still"),
        anchors=(0.0, 1.0, 0.0, 0.0, 0.0, -1.0),
        contexts=("we stand", "we move"),
        context="speed",
        edges=(1.0,),
        standard=(0.1, 0.2),
        **base,
    )
    return RewardCase(name, cfg, (replace(cfg, temperature=0.1), replace(cfg, edges=(2.0,))), drive)


@cache
def brightness_server() -> ChatServer:
    """A model that answers with the brightness of the last frame."""
    return ChatServer(lambda call: {"values": [round(float(call.frames[-1].mean()), 3)]})


def vlm_score(folder: Path) -> RewardCase:
    endpoint = EndpointCfg(base_url=brightness_server().base_url, model="brightness")
    base: dict[str, Any] = {"view": "near", "pixels": 16, "every": 4, "max_age": 6, "frame_gap": 2, "patient": True}
    cfg = VlmScoreCfg(question="How bright is it?", high=255.0, frames=2, endpoint=endpoint, **base)
    changed = (replace(cfg, question="How dark is it?"), replace(cfg, high=300.0), replace(cfg, frames=3))
    return RewardCase("vlm-score", cfg, changed, drive)


def dual_pathway(folder: Path) -> RewardCase:
    base: dict[str, Any] = {"view": "near", "pixels": 16, "window": (-1.0, 1.0), "frames": 2, "frame_gap": 2}
    cfg = DualPathwayCfg(
        model=contrast(folder).cfg.model, good=GOOD, bad=BAD, gate_ttc_s=5.0, ask_gap=2, risk="clip", **base
    )
    changed = (
        replace(cfg, bad=BAD[:1]),
        replace(cfg, gate="words", gate_threshold=0.1),
        replace(cfg, static=False),
        replace(cfg, dynamic=False),
        replace(cfg, frames=3),
        replace(cfg, fusion="product"),
        replace(cfg, risk_max_age=3),
    )
    return RewardCase("dual-pathway", cfg, changed, drive)


CASES: dict[str, Callable[[Path], RewardCase]] = {
    "task": lambda _: RewardCase("task", TaskRewardCfg(), (), walk),
    "task on reach": lambda _: RewardCase("task", TaskRewardCfg(), (), reach),
    "success": success,
    "success that ends": lambda folder: success(folder)._replace(
        cfg=SuccessRewardCfg(str(folder / "success"), threshold=0.3, ends=True), changed=()
    ),
    "process": process,
    "process, raw": lambda folder: process(folder)._replace(
        cfg=ProcessRewardCfg(str(folder / "process"), "raw"), changed=()
    ),
    "preferences": preferences,
    "contrast": contrast,
    "contrast, driving": lambda folder: contrast(folder)._replace(
        cfg=replace(contrast(folder).cfg, synthesis="driving", every=1), changed=()
    ),
    "contrast, robot": lambda folder: contrast(folder)._replace(
        cfg=replace(contrast(folder).cfg, synthesis="robot"), changed=()
    ),
    **{
        name: partial(of_pictures, name=name)
        for name in ("goal-baseline", "lord", "threshold", "episode-similarity", "action-alignment")
    },
    "vlm-score": vlm_score,
    "dual-pathway": dual_pathway,
    "dual-pathway, words, dynamic alone": lambda folder: dual_pathway(folder)._replace(
        cfg=replace(dual_pathway(folder).cfg, gate="words", gate_threshold=0.0, static=False, every=2), changed=()
    ),
    "progress": lambda _: RewardCase(
        "progress", ProgressRewardCfg(), (ProgressRewardCfg(0.2), ProgressRewardCfg(form="raw")), walk
    ),
    "progress, raw": lambda _: RewardCase("progress", ProgressRewardCfg(0.5, "raw"), (), walk),
    "progress on reach": lambda _: RewardCase("progress", ProgressRewardCfg(), (), reach),
    "action-rate": lambda _: RewardCase("action-rate", ActionRateCfg(), (), walk),
    "action-size": lambda _: RewardCase("action-size", ActionSizeCfg(), (), reach),
    "alive": lambda _: RewardCase("alive", AliveCfg(), (), walk),
    "step-penalty": lambda _: RewardCase("step-penalty", StepPenaltyCfg(), (), walk),
    "function": lambda _: RewardCase(
        "function", FunctionRewardCfg(f"{__name__}:half_way"), (FunctionRewardCfg(f"{__name__}:other_way"),), walk
    ),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES)
def test_a_source_keeps_the_contract(case: str, check: Callable[[RewardCase], None], stored: Path) -> None:
    check(CASES[case](stored))


def test_every_source_of_ours_has_a_case(stored: Path) -> None:
    assert {make(stored).name for make in CASES.values()} == set(REWARDS.names())


class Faulty(StatelessReward):
    """Counts the steps of episodes and does not have that in its state; has one more fault on demand."""

    def __init__(self, fault: str, num_envs: int) -> None:
        self.fault, self.identity = fault, "faulty"
        self.steps = torch.zeros(num_envs)

    def score(self, transition: SimTransition) -> Score:
        self.steps = self.steps + 1
        if self.fault == "writes":
            transition.step.reward.zero_()
        if self.fault == "draws":
            return Score.of_now(torch.rand(len(self.steps)))
        if self.fault == "column":
            return Score.of_now(self.steps)._replace(age=self.steps)
        return Score.of_now(self.steps)

    def forget(self, envs: Tensor) -> None:
        self.steps = self.steps * 0 if self.fault == "all" and envs.any() else torch.where(envs, 0.0, self.steps)


class FaultyCfg(NamedTuple):
    fault: str

    def build(self, sim: Any, setup: RewardSetup) -> Faulty:
        return Faulty(self.fault, sim.num_envs)


@pytest.mark.parametrize(
    "fault, check",
    [
        ("writes", steps_are_not_written_to),
        ("draws", scores_are_deterministic),
        ("column", scores_are_one_number_an_env),
        ("state", state_resumes_exactly),
        ("all", forget_leaves_other_envs_alone),
        ("same", identity_is_that_of_the_settings),
    ],
)
def test_the_kit_finds_a_fault(fault: str, check: Callable[[RewardCase], None]) -> None:
    with pytest.raises(AssertionError):
        check(RewardCase("faulty", FaultyCfg(fault), (FaultyCfg("other"),), walk))


def test_the_kit_ends_its_sources(stored: Path) -> None:
    """A source with threads of its own would leave them behind in the process of the tests."""
    case = CASES["vlm-score"](stored)
    earlier = set(threading.enumerate())
    for check in (scores_are_deterministic, identity_is_that_of_the_settings):
        check(case)
    assert not [thread for thread in set(threading.enumerate()) - earlier if thread.name == "robotrl-endpoint"]
