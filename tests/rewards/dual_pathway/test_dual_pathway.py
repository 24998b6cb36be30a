"""Both paths: each answer on its own steps whatever its delay, clips of the right frames, and a gate by hand."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from robotrl.config import WeightedReward
from robotrl.errors import CapabilityError, ConfigError
from robotrl.registry import make_sim
from robotrl.rewards.dual_pathway.dual_pathway import DualPathwayCfg
from robotrl.rewards.dual_pathway.gate import WordGate
from robotrl.rewards.dual_pathway.source import DualPathwayReward, DynamicPath, StaticPath
from robotrl.rewards.endpoint.cfg import EndpointCfg
from robotrl.rewards.relabel import LateRewardedSim, with_rewards
from robotrl.rewards.scoring.cfg import ServiceCfg
from robotrl.rewards.served.question import QuestionCfg
from robotrl.rewards.served.scores import EndpointScores
from robotrl.rewards.source import RewardSetup
from robotrl.rewards.vlm.cfg import ScenePicturesCfg
from robotrl.rewards.vlm.clips import ClipMemory, ClipShape
from robotrl.rewards.vlm.similarity import ImmediateScores, PictureScores
from robotrl.rewards.vlm.synthesis import SynthesisCfg, synthesis_of
from robotrl.rewards.vlm.window import CalibratedWindow
from robotrl.spec import VecSim
from robotrl.spec.vehicle import HasTimeToCollision
from tests.kits.chat_server import ChatServer
from tests.kits.numbered_scenes import NumberedScenes, clip_numbers, number_of
from tests.kits.refusals import raises_naming
from tests.kits.scoring_kit import DIE, make_scorer, service_of
from tests.kits.walk_sim import Walk

STEPS, ENVS, GAP, AGE = 60, 4, 3, 5
CLIP = ClipShape(3, 2)


def static_score(number: Any) -> Any:
    """Score of the picture of this number."""
    return number * 3 % 11 / 11


def risk_of(number: int) -> float:
    return number * 7 % 10 / 10


def opens(number: Any) -> Any:
    """The gate is open for two steps in a row of three."""
    return number * 7 % 12 < 5


class NumberGate(WordGate):
    """Opens by the number of the picture, which the static path's scorer reads."""

    def __init__(self) -> None:
        super().__init__(1, CalibratedWindow(2, (0.0, 1.0), (0.0, 1.0)))

    def __call__(self, similarity: Tensor) -> Tensor:
        return opens(similarity[:, 0])


class OnWalk(NamedTuple):
    """Both paths on the numbered pictures of a walk."""

    server: ChatServer
    words: Callable[[], PictureScores] | None
    """Scorer of the static path; None: the path is off, and the gate reads the pictures."""
    endpoint: EndpointCfg
    late_gate: bool = False
    static: bool = True

    def build(self, sim: VecSim, setup: RewardSetup) -> DualPathwayReward:
        cfg = ScenePicturesCfg(max_age=2, kept_steps=512)
        feed = NumberedScenes(sim)
        question = QuestionCfg(question="How likely is an accident?", high=10.0)
        risks = EndpointScores(self.endpoint, question, "reward.dual-pathway", patient=False)
        gate: dict[str, Any] = {"by_words": NumberGate()}
        if not self.late_gate:
            gate = {"by_picture": lambda pictures: (torch.tensor([opens(number_of(one)) for one in pictures]), 0)}
        static = None
        if self.words is not None:
            window = CalibratedWindow(2, (0.0, 1.0), (0.0, 1.0))
            static = StaticPath(self.words(), 0, lambda _: torch.zeros(0), window, self.static)
            # the first output is the number of the picture, for the score and for the gate
            static = static._replace(goals=1, raw=lambda found: static_score(found[:, 0]))
            static = static._replace(scores=Doubled(static.scores))
        memory = ClipMemory(sim.num_envs, CLIP, 1, feed.shape, 64, "reward.dual-pathway")
        shape = synthesis_of(SynthesisCfg(), sim, "dual-pathway")
        dynamic = DynamicPath(risks, GAP, AGE, **gate)
        return DualPathwayReward(
            "dual-pathway", cfg, feed, memory, static, dynamic, None, False, shape, sim.num_envs, "test"
        )


class Doubled:
    """Gives the number of a picture twice: for the score and for the gate."""

    def __init__(self, inner: PictureScores) -> None:
        self._inner = inner
        self.submit, self.metrics, self.close, self.charge = inner.submit, inner.metrics, inner.close, inner.charge
        self.paid, self.cost = 0, 0.0

    def collect(self) -> Any:
        return self._both(self._inner.collect())

    def wait(self, limit_s: float) -> Any:
        return self._both(self._inner.wait(limit_s))

    def _both(self, answers: Any) -> Any:
        return answers._replace(outputs=np.repeat(answers.outputs[:, :1], 2, axis=1))

    @property
    def room(self) -> int:
        return self._inner.room

    @property
    def pending(self) -> int:
        return self._inner.pending


def at_once() -> PictureScores:
    return ImmediateScores(make_scorer())


def asked_risk(call: Any) -> Any:
    return {"values": [10 * risk_of(number_of(call.picture))]}


def endpoint_of(server: ChatServer, **changes: Any) -> EndpointCfg:
    settings = {"backoff_s": 0.01, "concurrency": 8, "retries": 6} | changes
    return EndpointCfg(base_url=server.base_url, model="risk", **settings)


class Walked(NamedTuple):
    reward: np.ndarray
    """(T, N) with all late changes."""
    valid: np.ndarray
    """(T, N) whether a step had a score in the end."""
    began: np.ndarray
    """(T, N) step at which the episode of each step began."""
    metrics: dict[str, float]


def walked(cfg: OnWalk, steps: int = STEPS) -> Walked:
    sim = Walk(ENVS)
    made = with_rewards(sim, [WeightedReward("dual-pathway", 1.0, cfg)])
    assert isinstance(made, LateRewardedSim)
    made.reset(seed=0)
    generator = torch.Generator().manual_seed(1)
    reward, valid = np.zeros((steps, ENVS)), np.zeros((steps, ENVS), bool)
    source = made.rewards.sources[0].source
    assert isinstance(source, DualPathwayReward)
    for t in range(steps):
        step = made.step(torch.rand((ENVS, 1), generator=generator) - 0.4)
        reward[t], valid[t] = step.reward.numpy(), step.info["reward_valid/dual-pathway"].numpy()
        late = source.late(30.0 if t == steps - 1 else 0.0)
        np.add.at(reward, (t - late.back.numpy(), late.env.numpy()), late.change.numpy())
        valid[(t - late.back).numpy(), late.env.numpy()] = True
    metrics = source.metrics()
    made.close()
    began, out = np.zeros(ENVS, int), list[np.ndarray]()
    for t, record in enumerate(sim.tape):
        out.append(began.copy())
        began[(record.terminated | record.truncated).numpy()] = t + 1
    return Walked(reward, valid, np.array(out), metrics)


def requests_by_hand(began: np.ndarray) -> list[tuple[int, int]]:
    """Steps and envs that are asked about: the gate is open, and no request of the episode is less than `GAP` ago."""
    out = list[tuple[int, int]]()
    last = np.full(ENVS, -100)
    for t, n in np.ndindex(began.shape):
        if opens(t * ENVS + n) and not (t - last[n] < GAP and last[n] >= began[t, n]):
            out.append((t, n))
            last[n] = t
    return out


def rewards_by_hand(began: np.ndarray, asked: list[tuple[int, int]], static: bool = True) -> np.ndarray:
    """(T, N) the lower of the static score and 1 - risk of the newest clip of the episode, up to `AGE` steps old."""
    out = np.zeros(began.shape)
    for t, n in np.ndindex(began.shape):
        risks = [risk_of(q * ENVS + n) for q, m in asked if m == n and max(began[t, n], t - AGE) <= q <= t]
        out[t, n] = min(static_score(t * ENVS + n) if static else 1.0, 1 - risks[-1] if risks else 1.0)
    return out


def check_clips(server: ChatServer, began: np.ndarray, asked: list[tuple[int, int]]) -> None:
    seen = {number_of(call.picture): [number_of(frame) for frame in call.frames] for call in server.calls}
    expected = {t * ENVS + n: clip_numbers(t, n, began[t, n], ENVS, CLIP.frames, CLIP.gap) for t, n in asked}
    assert seen == expected


@pytest.mark.parametrize("static", [True, False])
def test_late_reordered_and_retried_risks_land_on_their_steps(static: bool) -> None:
    rng = np.random.default_rng(0)
    delays, faults = rng.uniform(0, 0.05, 4000), rng.uniform(size=4000) < 0.1
    server = ChatServer(asked_risk, delay_s=lambda n: delays[n], fault=lambda n: 500 if faults[n] else None)
    with server, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = walked(OnWalk(server, at_once if static else None, endpoint_of(server)))
        asked = requests_by_hand(found.began)
        check_clips(server, found.began, asked)
    assert found.valid.all()
    assert found.reward == pytest.approx(rewards_by_hand(found.began, asked, static), abs=1e-5)
    opened = sum(opens(number) for number in range(STEPS * ENVS))
    assert found.metrics["gate_asked"] == len(asked) and found.metrics["gate_held"] == opened - len(asked) > 5
    assert found.metrics["gate_open"] == pytest.approx(opened / (STEPS * ENVS)) and not found.metrics["gate_missed"]
    assert found.metrics["dynamic/retries"] > 0 and found.metrics["dynamic/valid"] == 1.0
    assert found.metrics["dynamic/submitted"] == len(asked)


def test_a_gate_that_decides_late_asks_about_the_clip_of_its_own_step() -> None:
    """The static path scores in processes of its own, one of which dies: its picture has no score and opens no gate."""

    def slow() -> PictureScores:
        service = ServiceCfg(processes=2, batch_size=4, flush_after_s=0.005, cache_frames=0)
        return Faulted(service_of(service, delay_s=0.05), killer=4 * ENVS + 1)

    with ChatServer(asked_risk, delay_s=lambda n: 0.002 * (n % 7)) as server, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = walked(OnWalk(server, slow, endpoint_of(server), late_gate=True))
        asked = sorted(divmod(number_of(call.picture), ENVS) for call in server.calls)
        check_clips(server, found.began, asked)
    lost = (4, 1)
    assert len(asked) > 10 and lost not in asked and all(opens(t * ENVS + n) for t, n in asked)
    expected = rewards_by_hand(found.began, asked)
    checked = np.ones_like(found.valid)
    checked[lost] = False  # of this one an older score may stand
    assert found.valid[checked].all()
    assert found.reward[checked] == pytest.approx(expected[checked], abs=1e-5)


class Faulted(Doubled):
    """Makes the worker die on one picture."""

    def __init__(self, inner: PictureScores, killer: int) -> None:
        super().__init__(inner)
        self._killer = killer
        self.submit = self._marked

    def _marked(self, tickets: Any, pictures: Any) -> Any:
        pictures = pictures.copy()
        pictures[[number_of(one) == self._killer for one in pictures], 1, 0, 0] = DIE
        return self._inner.submit(tickets, pictures)


def test_a_spent_budget_leaves_the_static_path_and_counts_what_was_missed() -> None:
    with ChatServer(asked_risk) as server, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = walked(OnWalk(server, at_once, endpoint_of(server, max_requests=5, concurrency=1)))
        asked = sorted(divmod(number_of(call.picture), ENVS) for call in server.calls)
    assert len(asked) == 5 == found.metrics["dynamic/requests_paid"]
    refused = found.metrics["dynamic/refused"] * found.metrics["dynamic/submitted"]
    assert found.metrics["gate_missed"] + refused > 5
    late = np.arange(STEPS) > max(t for t, _ in asked) + AGE
    assert found.reward[late] == pytest.approx(
        static_score(np.arange(STEPS * ENVS).reshape(STEPS, ENVS))[late], abs=1e-5
    )


def test_a_silent_server_leaves_the_static_path() -> None:
    with ChatServer(asked_risk, fault=lambda n: "hang") as server, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        endpoint = endpoint_of(server, timeout_s=0.2, call_timeout_s=0.1, retries=0)
        found = walked(OnWalk(server, at_once, endpoint), steps=12)
        alone = walked(OnWalk(server, None, endpoint), steps=12)
    assert found.reward == pytest.approx(static_score(np.arange(12 * ENVS).reshape(12, ENVS)), abs=1e-5)
    # without the static path a step that waits for a risk has no score, the others are safe
    asked = requests_by_hand(alone.began)
    waiting = [
        any(m == n and max(alone.began[t, n], t - AGE) <= q <= t for q, m in asked) for t, n in np.ndindex(12, ENVS)
    ]
    assert alone.valid.tolist() == (~np.reshape(waiting, (12, ENVS))).tolist()
    assert (alone.reward[alone.valid] == 1).all()


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("open_clip")
    from tests.kits.small_clip import stored_clip

    return str(stored_clip(tmp_path_factory.mktemp("dual") / "clip"))


def drive(num_envs: int = 16, **options: Any) -> Any:
    return make_sim("bev/drive", num_envs, 0, obs="both", raster_pixels=16, agents=16, limit_s=6.0, **options)


def dual(clip: str, **changes: Any) -> DualPathwayCfg:
    from tests.kits.small_clip import BAD, GOOD

    base: dict[str, Any] = {"view": "near", "pixels": 16, "window": (-1.0, 1.0), "risk": "clip", "ask_gap": 4}
    return DualPathwayCfg(model=clip, good=GOOD, bad=BAD, **(base | changes))


def driven(cfg: Any, steps: int, name: str = "dual-pathway") -> tuple[list[Tensor], dict[str, float], list[np.ndarray]]:
    """Rewards, metrics, and the times to collision of running episodes, infinite where one ended."""
    sim = drive()
    made = with_rewards(sim, [WeightedReward(name, 1.0, cfg)])
    made.reset(seed=0)
    generator, rewards, times = torch.Generator().manual_seed(0), list[Tensor](), list[np.ndarray]()
    for _ in range(steps):
        step = made.step(torch.rand((16, 2), generator=generator) * torch.tensor([0.2, 1.0]))
        assert isinstance(sim, HasTimeToCollision)
        over = (step.terminated | step.truncated).numpy()
        times.append(np.where(over, np.inf, sim.time_to_collision_s()))
        rewards.append(step.reward.clone())
    source: Any = made.rewards.sources[0].source
    metrics = source.metrics()
    made.close()
    return rewards, metrics, times


def test_the_gate_of_objects_opens_by_the_sims_own_time_to_collision(clip: str) -> None:
    _, metrics, times = driven(dual(clip, gate_ttc_s=3.0, truth_ttc_s=4.0), 150)
    ttc = np.array(times)
    ended = np.isinf(ttc)
    last, asked, held = np.full(16, -100), 0, 0
    for t, n in np.ndindex(ttc.shape):
        if ended[t, n]:
            last[n] = -100
        elif ttc[t, n] < 3.0:
            held += t - last[n] < 4
            asked += t - last[n] >= 4
            last[n] = t if t - last[n] >= 4 else last[n]
    assert ended.any() and asked > 10 and held > 10
    assert metrics["gate_asked"] == asked and metrics["gate_held"] == held and metrics["gate_missed"] == 0
    assert metrics["gate_open"] == pytest.approx((ttc < 3.0).sum() / (~ended).sum())
    # the gate is stricter than the truth: it catches a part of what matters, and nothing else
    assert metrics["gate_recall"] == pytest.approx((ttc < 3.0).sum() / (ttc < 4.0).sum()) and metrics["gate_recall"] < 1
    assert metrics["gate_precision"] == 1.0


def test_without_the_dynamic_path_it_is_the_reward_contrast(clip: str) -> None:
    from robotrl.rewards.contrast import ContrastCfg
    from tests.kits.small_clip import BAD, GOOD

    alone, metrics, _ = driven(dual(clip, dynamic=False), 60)
    same = ContrastCfg(model=clip, good=GOOD, bad=BAD, view="near", pixels=16, window=(-1.0, 1.0), synthesis="driving")
    assert torch.equal(torch.stack(alone), torch.stack(driven(same, 60, "contrast")[0]))
    assert not any(name.startswith("gate") for name in metrics)
    both = driven(dual(clip, gate="always", ask_gap=1), 60)[0]
    assert not torch.equal(torch.stack(alone), torch.stack(both))


def test_the_gate_of_words_is_open_for_its_share_of_the_pictures(clip: str) -> None:
    _, metrics, _ = driven(dual(clip, gate="words", gate_share=0.25, calibration=640, static=False), 80)
    assert 0.05 < metrics["gate_open"] < 0.3 and metrics["gate_asked"] > 0
    assert 0.0 <= metrics["gate_recall"] <= 1.0


def bright(threshold: float = 0.0) -> Any:
    """A detector of one's own."""

    class Brightness:
        identity, num_outputs = "brightness", 1

        def score(self, pictures: Any) -> Any:
            return pictures.reshape(len(pictures), -1).mean(axis=1, keepdims=True, dtype=np.float32)

    return Brightness()


def test_a_detector_of_ones_own_is_a_gate(clip: str) -> None:
    own = {"gate": "scorer", "gate_scorer": f"{__name__}:bright"}
    _, shut, _ = driven(dual(clip, gate_threshold=256.0, **own), 10)
    _, wide, _ = driven(dual(clip, gate_threshold=0.0, **own), 10)
    assert shut["gate_open"] == 0.0 and wide["gate_open"] == 1.0


def faulty() -> Any:
    """A detector that fails at every second call, and knows no number for the first picture of the others."""

    class Faulty:
        identity, num_outputs, calls = "faulty", 1, 0

        def score(self, pictures: Any) -> Any:
            self.calls += 1
            if self.calls % 2:
                raise RuntimeError("out of memory")
            output = np.ones((len(pictures), 1), np.float32)
            output[0] = np.nan
            return output

    return Faulty()


def test_a_detector_that_fails_leaves_the_gate_shut_and_is_counted(clip: str) -> None:
    cfg = dual(clip, gate="scorer", gate_scorer=f"{__name__}:faulty", gate_threshold=0.5)
    with pytest.warns(UserWarning, match="gate_scorer: RuntimeError: out of memory; the gate stays shut"):
        _, metrics, _ = driven(cfg, 10)
    pictures = 10 * 16
    assert metrics["gate_failed"] == pictures / 2 + 5
    assert metrics["gate_open"] == (pictures / 2 - 5) / pictures


def test_what_changes_no_score_makes_no_other_reward(clip: str, tmp_path: Path) -> None:
    sim = drive(1)
    endpoint = EndpointCfg(model="m")

    def identity(answers: str | None = None, **changes: Any) -> str:
        source = dual(clip, **({"risk": "endpoint", "endpoint": endpoint} | changes)).build(
            sim, RewardSetup(1.0, answers)
        )
        source.close()
        return source.identity

    same: list[dict[str, Any]] = [{"wait_s": 2.0}, {"patient": True}, {"truth_ttc_s": 9.0}, {"kept_steps": 99}]
    same += [{"endpoint": replace(endpoint, max_requests=5)}, {"endpoint": replace(endpoint, concurrency=2)}]
    same.append({"answers": str(tmp_path)})
    assert {identity(**changes) for changes in same} == {identity()}
    assert len(list(tmp_path.glob("*/scorer.json"))) == 1, "answers are kept with the run"
    other: list[dict[str, Any]] = [{"question": "how safe?"}, {"high": 5.0}, {"ask_gap": 5}, {"view": "top"}]
    other += [{"endpoint": replace(endpoint, model="n")}, {"endpoint": replace(endpoint, temperature=1.0)}]
    found = [identity(**changes) for changes in [{}, *other]]
    assert len(set(found)) == len(found)


def test_what_is_known_of_prices_outlives_a_resume() -> None:
    with ChatServer(asked_risk, fault=lambda n: "oversized") as server, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        limits = endpoint_of(server, max_cost=1.0, prompt_price=1.0, concurrency=1)
        first, again = (OnWalk(server, at_once, limits).build(Walk(ENVS), RewardSetup()) for _ in range(2))
        assert first._dynamic is not None and again._dynamic is not None
        clips = np.zeros((2, 3, 4, 6, 3), np.uint8)
        assert first._dynamic.scores.submit(np.array([0]), clips[:1]).all()
        first._dynamic.scores.wait(20.0)
        again.load(first.state())
        assert not again._dynamic.scores.submit(np.array([1]), clips[1:]).any()
        first.close()
        again.close()
    assert len(server.calls) == 1


@pytest.mark.parametrize(
    "field, changes",
    [
        ("static", {"static": False, "dynamic": False}),
        ("frame_gap", {"every": 2, "frame_gap": 3}),
        ("gate", {"gate": "object"}),
        ("gate_threshold", {"gate": "scorer"}),
        ("gate_share", {"gate_share": 0.9}),
        ("fusion", {"fusion": "sum"}),
        ("risk", {"risk": "vlm"}),
        ("bad", {"bad": ()}),
        ("risk_max_age", {"risk_max_age": 5000}),
    ],
)
def test_settings_that_cannot_be_are_named(field: str, changes: dict[str, Any]) -> None:
    with raises_naming(ConfigError, f"reward.dual-pathway.{field}"):
        DualPathwayCfg(**({"model": "none", "good": ("a",), "bad": ("b",)} | changes)).build(drive(1), RewardSetup())


def test_a_sim_without_objects_is_told_which_gates_look_at_the_picture(clip: str) -> None:
    sim = make_sim("mujoco/push", 1, 0)
    with raises_naming(CapabilityError, "reward.dual-pathway.gate", "words"):
        dual(clip, view="flat_front", synthesis="none").build(sim, RewardSetup())
    built = dual(clip, view="flat_front", synthesis="robot", gate="words").build(sim, RewardSetup())
    assert Path(clip).is_dir() and built.identity


def test_changes_of_before_a_state_was_restored_are_given_to_no_step() -> None:
    with ChatServer(asked_risk, delay_s=lambda number: 0.05) as server:
        cfg = OnWalk(server, at_once, endpoint_of(server))
        made = with_rewards(Walk(ENVS), [WeightedReward("dual-pathway", 1.0, cfg)])
        assert isinstance(made, LateRewardedSim)
        made.reset(seed=0)
        source = made.rewards.sources[0].source
        assert isinstance(source, DualPathwayReward)
        state = made.get_state()
        while not source._late:
            made.step(torch.zeros(ENVS, 1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of scores that were on their way
            made.set_state(state)
        for steps in range(4):
            late = source.late(1.0)
            assert (late.back < steps).all(), "a late reward of a step that this run did not make"
            made.step(torch.zeros(ENVS, 1))
        made.close()
