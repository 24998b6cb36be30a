"""Faults of off-policy learning: replay buffers on disk, numbers from a sim, actor processes."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor

import robotrl.replay.ring as ring
from benchmarks.faults.kind import Kind, Outcome, outcome_of
from robotrl.config import ActorCfg
from robotrl.learners.actor.remote import RemoteReplayCollector
from robotrl.learners.learner import Setup
from robotrl.learners.normalizers import RewardNormalizer
from robotrl.learners.off_policy import PolicyBuilder
from robotrl.learners.replay_collector import Acting, ReplayBuffers, ReplayCollector
from robotrl.policies.squashed import SquashedCfg
from robotrl.replay.buffer import Replay, StepRecord
from robotrl.rollout.collector import Collector, Decision
from robotrl.spec import Arrays, Spec, Step

INF = float("inf")
OBS = {
    "state": Spec((3,), ("pos_x_w", "vel_x_w", "force_n"), ("m", "m/s", "N"), (-INF,) * 3, (INF,) * 3),
    "eye": Spec((2, 2, 3), ("r", "g", "b"), ("1",) * 3, (0,) * 3, (255,) * 3, "uint8"),
}
NUMBERS = {"state": OBS["state"]}
ACTION = Spec((1,), ("push",), ("N",), (-1.0,), (1.0,))
STREAMS, CAPACITY, SLACK = 2, 40, 12
SHARD_ROWS = 4096
"""Rows per shard of these buffers, the smallest number of whole pages."""
ABSURD = (6.0, 37.0)
"""Range of exponents (powers of ten) of absurd numbers."""

Content = dict[int, bytes]
"""All samplable content of a replay buffer, by start index."""


def record(numbers: np.ndarray, ended: np.ndarray) -> StepRecord:
    """A step of M streams whose values are functions of `numbers` (M,)."""
    ids = torch.from_numpy(np.flatnonzero(ended))

    def seen(x: Tensor) -> Arrays:
        state = torch.stack([x, -x, x * 0.5], 1)
        return {"state": state, "eye": (x[:, None, None, None] % 251).to(torch.uint8).expand(-1, 2, 2, 3)}

    x = torch.from_numpy(numbers.astype(np.float32))
    flags = torch.from_numpy(ended)
    return StepRecord(seen(x), x[:, None] / 1000, x / 8, torch.zeros_like(flags), flags, seen(x[ids] + 0.5), ids)


def walk(replay: Replay, first: int, steps: int) -> None:
    """Add steps from `first` on; their number decides which ones end an episode."""
    for step in range(first, first + steps):
        numbers = np.arange(STREAMS) + step * STREAMS
        replay.add(record(numbers, numbers * 7919 % 10 < 4))


def make(path: Path) -> Replay:
    """Make a new replay buffer."""
    return Replay.create(path, OBS, ACTION, streams=STREAMS, capacity=CAPACITY, slack=SLACK, shard_bytes=1)


def content(replay: Replay) -> Content:
    """See `Content`."""
    index = replay.indices()
    found = replay.view(index, 1, 0.5)
    arrays = [*found.obs.values(), *found.next_obs.values(), found.chunk, found.reward, found.discount]
    return {int(i): b"".join(x[k].numpy().tobytes() for x in arrays) for k, i in enumerate(index)}


@functools.cache
def sound() -> tuple[Path, Content, dict[str, Any]]:
    """A sound buffer on disk whose ring has wrapped around: path, content, and the state in its checkpoint."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    replay = make(folder / "replay")
    walk(replay, 0, 33)
    replay.set_reward(replay.indices()[:3], torch.tensor([1.5, 2.5, 3.5]))
    found = content(replay), replay.state()
    replay.close()
    return folder / "replay", *found


def reopened(path: Path, expected: Content, alike: Outcome = Outcome.HARMLESS) -> Outcome:
    """Open a buffer and read everything; returns `alike` if the content is as expected."""
    found: list[Content] = []

    def work() -> None:
        replay = Replay.open(path)
        try:
            found.append(content(replay))
        finally:
            replay.close()

    outcome = outcome_of(work, alike)
    if outcome in (Outcome.REFUSED, Outcome.CRASHED):
        return outcome
    if any(expected.get(i, x) != x for i, x in found[0].items()):
        return Outcome.SILENT
    return Outcome.SILENT if outcome is alike and found[0] != expected else outcome


def damaged(pattern: str, damage: Callable[[np.random.Generator, Path], None], alike: Outcome) -> Any:
    """Attempt that damages one file of a sound buffer, and opens it."""

    def attempt(draw: np.random.Generator, folder: Path) -> Outcome:
        origin, expected, _ = sound()
        shutil.copytree(origin, folder / "replay")
        files = sorted(file for file in (folder / "replay").glob(pattern) if file.is_file())
        damage(draw, files[draw.integers(len(files))])
        return reopened(folder / "replay", expected, alike)

    return attempt


def used(file: Path) -> int:
    """Number of leading bytes of a file that may be in use; most rows of the only shard were never written."""
    size = file.stat().st_size
    return size // SHARD_ROWS * (CAPACITY + SLACK) if file.suffix == ".bin" else size


def flip(draw: np.random.Generator, file: Path) -> None:
    """Flip one bit of a file."""
    data = bytearray(file.read_bytes())
    if data:
        data[draw.integers(used(file))] ^= 1 << int(draw.integers(8))
    file.write_bytes(data)


def scramble(draw: np.random.Generator, file: Path) -> None:
    """Change some adjacent bytes, as in a lost sector."""
    data = bytearray(file.read_bytes())
    at, size = int(draw.integers(used(file))), int(draw.integers(2, 600))
    data[at : at + size] = draw.bytes(size) if draw.integers(2) else bytes(size)
    file.write_bytes(data)


def resize(draw: np.random.Generator, file: Path) -> None:
    """Truncate, extend or delete a file."""
    size = file.stat().st_size
    if draw.integers(5) == 0 and file.name not in ("lock", "replay.json"):
        file.unlink()
    else:
        with file.open("r+b") as stream:
            stream.truncate(int(draw.integers(size + 1)) if draw.integers(3) else size + int(draw.integers(1, 99)))


def replace_file(draw: np.random.Generator, file: Path) -> None:
    """Replace a file by a folder, a pipe or a broken link."""
    file.unlink()
    how = draw.integers(3)
    if how == 0:
        file.mkdir()
    elif how == 1:
        os.mkfifo(file)
    else:
        file.symlink_to("nowhere")


class Killed(BaseException):
    """Stands for the kill of the process."""


def killed_before(line: int, work: Callable[[], None]) -> None:
    """Run some work, and stop before the n-th executed line of the ring's code."""
    left = line

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != ring.__file__:
            return None
        left -= event == "line"
        if left < 0:
            raise Killed
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except Killed:
        pass
    finally:
        sys.settrace(before)


def kill_and_resume(draw: np.random.Generator, folder: Path) -> Outcome:
    """A run continues after its checkpoint, is killed in the middle of a step, resumes, and repeats the same steps."""
    before, ahead, after = (int(draw.integers(low, high)) for low, high in ((1, 40), (0, 6), (6, 30)))
    whole, cut = make(folder / "whole"), make(folder / "cut")
    walk(whole, 0, before + after)
    walk(cut, 0, before)
    state = cut.state()
    walk(cut, before, ahead)
    killed_before(int(draw.integers(60)), lambda: walk(cut, before + ahead, 1))
    release(cut)

    def work() -> None:
        replay = Replay.open(folder / "cut")
        replay.load(state)
        walk(replay, before, after)
        found.append(content(replay))
        replay.close()

    found: list[Content] = []
    outcome = outcome_of(work, Outcome.CORRECTED)
    expected = content(whole)
    whole.close()
    return Outcome.SILENT if outcome is Outcome.CORRECTED and found[0] != expected else outcome


def release(replay: Replay) -> None:
    """Release the lock without any other cleanup, as the system does after a kill."""
    directory = replay._directory  # pyright: ignore[reportPrivateUsage]
    assert directory is not None
    directory.close()


def another_timeline(draw: np.random.Generator, folder: Path) -> Outcome:
    """Resume an earlier checkpoint, take other steps, then resume the later checkpoint whose steps they overwrote."""
    replay = make(folder / "replay")
    steps = int(draw.integers(1, 30))
    walk(replay, 0, steps)
    early = replay.state()
    more = int(draw.integers(1, 6))
    walk(replay, steps, more)
    late = replay.state()
    replay.load(early)
    walk(replay, 1000 + int(draw.integers(1000)), more)
    outcome = outcome_of(lambda: replay.load(late))
    replay.close()
    return outcome


def beyond_the_slack(draw: np.random.Generator, folder: Path) -> Outcome:
    """A run continues after its checkpoint for longer than its buffer can roll back."""
    replay = make(folder / "replay")
    steps = int(draw.integers(30, 60))
    walk(replay, 0, steps)
    state = replay.state()
    walk(replay, steps, int(draw.integers(SLACK // STREAMS + 1, 30)))
    outcome = outcome_of(lambda: replay.load(state))
    replay.close()
    return outcome


def foreign_state(draw: np.random.Generator, folder: Path) -> Outcome:
    """A checkpoint of another buffer: another directory, number of streams or size."""
    del folder
    streams = int(draw.integers(1, 4))
    capacity = streams * int(draw.integers(3, 30))
    mine = Replay.create(None, OBS, ACTION, streams=2, capacity=62)
    other = Replay.create(None, OBS, ACTION, streams=streams, capacity=capacity)
    for step in range(int(draw.integers(1, 40))):
        other.add(record(np.arange(streams) + step * streams, np.zeros(streams, np.bool_)))
    state = sound()[2] if draw.integers(4) == 0 else other.state()
    return outcome_of(lambda: mine.load(state))


def twice_opened(draw: np.random.Generator, folder: Path) -> Outcome:
    """Open or create a buffer that is already in use."""
    one = make(folder / "replay")
    walk(one, 0, int(draw.integers(9)))
    outcome = outcome_of(lambda: (Replay.open if draw.integers(2) else make)(folder / "replay"))
    one.close()
    return outcome


def wrong_steps(draw: np.random.Generator, folder: Path) -> Outcome:
    """A step with arrays that contradict each other or the buffer; nothing of it may be stored."""
    replay = make(folder / "replay")
    walk(replay, 0, 5)
    before = content(replay)
    good = record(np.array([100, 101]), np.array([True, False]))
    state, wide = good.obs["state"], torch.zeros(2, 2)
    wrong = [
        good._replace(obs={"state": state}),
        good._replace(obs={**good.obs, "state": state[:, :2]}),
        good._replace(obs={**good.obs, "ear": state}),
        good._replace(action=wide),
        good._replace(reward=good.reward[:1]),
        good._replace(final_ids=torch.tensor([1])),
        good._replace(final_obs={}),
        good._replace(truncated=torch.tensor([False, False])),
        good._replace(source="robot"),
        good._replace(extras={"noise": wide}),
        good._replace(cost=wide),
    ]
    outcome = outcome_of(lambda: replay.add(wrong[draw.integers(len(wrong))]))
    after = content(replay)
    replay.close()
    return outcome if after == before and reopened(folder / "replay", before) is Outcome.HARMLESS else Outcome.SILENT


class Sim:
    """Four drifting points; one number of one step is replaced.

    Args:
        at: index of that step; -1: none.
        change: changes observations and rewards of that step in place.
    """

    num_envs, control_dt_s, device, buffers_are_reused = 4, 0.1, torch.device("cpu"), False
    observation_spec, action_spec, has_final_obs = NUMBERS, ACTION, True

    def __init__(self, at: int = -1, change: Callable[[Tensor, Tensor], None] | None = None) -> None:
        self._at, self._change, self._count = at, change, 0
        self._draw = torch.Generator().manual_seed(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Arrays:
        """First observations."""
        return {"state": self._seen()}

    def _seen(self) -> Tensor:
        return torch.randn(4, 3, generator=self._draw) * torch.tensor([0.1, 1.0, 20.0])

    def step(self, actions: Tensor) -> Step:
        """One step; nothing ends."""
        state, reward, no = self._seen(), torch.rand(4, generator=self._draw), torch.zeros(4, dtype=torch.bool)
        if self._count == self._at and self._change is not None:
            self._change(state, reward)
        self._count += 1
        none = torch.zeros(0, dtype=torch.int64)
        return Step({"state": state}, reward, no, no.clone(), {}, none, {"success": no.clone()})

    def close(self) -> None:
        """Nothing is held."""


def setup(sim: Sim) -> Setup:
    """Specs and transforms for a policy of this sim."""
    return Setup(lambda: sim, SquashedCfg(horizon=1, hidden=(8,)), None, None, 0)  # pyright: ignore[reportArgumentType]


def scale_after(sim: Any, iterations: int) -> Tensor:
    """(D,) factors of a learner's running observation normalization after some iterations of eight steps."""
    made = PolicyBuilder(setup(sim), sim, True)
    experience = ReplayCollector(
        sim, made, ReplayBuffers(sim, 400, None), Acting(0, 0.9, True, 10_000), torch.Generator()
    )
    for _ in range(iterations):
        experience.collect(8)
    return torch.tensor(made.policy.transforms.inputs[0].scale)


def absurd(draw: np.random.Generator) -> float:
    """A number of absurd size."""
    return float(draw.choice([-1.0, 1.0]) * 10.0 ** draw.uniform(*ABSURD))


def absurd_observation(draw: np.random.Generator, folder: Path) -> Outcome:
    """One observation element is finite but absurd; the normalization must still resolve normal values afterwards."""
    del folder
    env, element, at, value = int(draw.integers(4)), int(draw.integers(3)), int(draw.integers(24)), absurd(draw)

    def change(state: Tensor, reward: Tensor) -> None:
        state[env, element] = value

    found: list[Tensor] = []
    outcome = outcome_of(lambda: found.append(scale_after(Sim(at, change), 4)))
    if not found:
        return outcome
    ratio = found[0] / scale_after(Sim(), 4)
    return outcome if ((ratio > 0.5) & (ratio < 2)).all() else Outcome.SILENT


def absurd_reward(draw: np.random.Generator, folder: Path) -> Outcome:
    """One reward is finite but absurd; later rewards must still matter."""
    del folder
    env, at, value = int(draw.integers(4)), int(draw.integers(24)), absurd(draw)

    def change(state: Tensor, reward: Tensor) -> None:
        reward[env] = value

    def scale(sim: Any) -> float:
        collector, normalizer = Collector(sim, 1, 0.9), RewardNormalizer(4, 0.9)
        collector.reset(0)
        for _ in range(4):
            normalizer.normalize(collector.collect(decide, 8))
        return normalizer.scale

    found: list[float] = []
    outcome = outcome_of(lambda: found.append(scale(Sim(at, change))))
    return outcome if not found or 0.5 < found[0] / scale(Sim()) < 2 else Outcome.SILENT


def decide(obs: Arrays) -> Decision:
    """Decider that stands still."""
    return Decision(torch.zeros(len(obs["state"]), 1, 1), {})


def not_finite(draw: np.random.Generator, folder: Path) -> Outcome:
    """One number is NaN or infinite."""
    del folder
    env, element, value = int(draw.integers(4)), int(draw.integers(4)), float(draw.choice([np.nan, np.inf, -np.inf]))

    def change(state: Tensor, reward: Tensor) -> None:
        if element < 3:
            state[env, element] = value
        else:
            reward[env] = value

    return outcome_of(lambda: scale_after(Sim(int(draw.integers(24)), change), 3))


def wrong_rewards(draw: np.random.Generator, folder: Path) -> Outcome:
    """New rewards that are not finite, too few, or for steps that are no longer stored."""
    del folder
    replay = Replay.create(None, OBS, ACTION, streams=STREAMS, capacity=CAPACITY)
    walk(replay, 0, 33)
    index = replay.indices()[torch.from_numpy(draw.permutation(20)[:5])]
    rewards = torch.from_numpy(draw.normal(size=5).astype(np.float32))
    how, k = draw.integers(3), int(draw.integers(5))
    if how == 0:
        rewards[k] = float(draw.choice([np.nan, np.inf]))
    elif how == 1:
        index[k] = int(draw.integers(20)) if draw.integers(2) else int(draw.integers(66, 999))
    else:
        rewards = rewards[:k]
    before = content(replay)
    outcome = outcome_of(lambda: replay.set_reward(index, rewards))
    return outcome if content(replay) == before else Outcome.SILENT


def early_death(draw: np.random.Generator, folder: Path) -> Outcome:
    """An actor process that ends before it begins: at once, or while it reads its work."""
    ends = ("os._exit({})", "os.kill(os.getpid(), 9)", "sys.modules['pickle'] = None", READS_IN_PART)
    how = ends[draw.integers(len(ends))].format(int(draw.integers(1, 99)))
    (folder / "sitecustomize.py").write_text(
        f"import os, sys\nif any('spawn_main' in word for word in sys.orig_argv):\n    {how}\n"
    )
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *([before] if before else [])])
    sim: Any = Sim()
    experience = RemoteReplayCollector(
        Sim,  # pyright: ignore[reportArgumentType]
        PolicyBuilder(setup(sim)._replace(policy_cfg=SquashedCfg(horizon=1, hidden=(400, 400))), sim, True),
        ReplayBuffers(sim, 400, None),
        Acting(0, 0.9, False, 0),
        1000,
        ActorCfg(process=True, restarts=0, start_timeout_s=60.0),
    )
    try:
        return outcome_of(lambda: experience.collect(4))
    finally:
        experience.close()
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


READS_IN_PART = (
    "import multiprocessing.connection as c;"
    " c.Connection._recv = lambda self, *_: os.read(self._handle, 999) and os._exit(5)"
)
TOLD = (Outcome.REFUSED, Outcome.WARNED, Outcome.HARMLESS)
"""Correct outcomes for damaged files; a flipped bit may be in an unused place."""

KINDS = (
    Kind("replay: a bit of a row flips", TOLD, 300, damaged("*s/*/*.bin", flip, Outcome.HARMLESS)),
    Kind("replay: some bytes in a row are lost", TOLD, 200, damaged("*s/*/*.bin", scramble, Outcome.HARMLESS)),
    Kind("replay: a bit of the header flips", TOLD, 150, damaged("replay.json", flip, Outcome.HARMLESS)),
    Kind(
        "replay: a bit of the counter flips",
        (Outcome.CORRECTED,),
        80,
        damaged("relabelled.npy", flip, Outcome.CORRECTED),
    ),
    Kind(
        "replay: a file is cut, longer or gone",
        (*TOLD, Outcome.CORRECTED),
        150,
        damaged("**/*", resize, Outcome.HARMLESS),
    ),
    Kind(
        "replay: no plain file lies in a file's place",
        TOLD,
        60,
        damaged("*s/*/*.bin", replace_file, Outcome.HARMLESS),
    ),
    Kind("replay: killed in the middle of a step, resumed", (Outcome.CORRECTED,), 150, kill_and_resume),
    Kind("replay: a checkpoint whose steps others replaced", (Outcome.WARNED,), 60, another_timeline),
    Kind("replay: a checkpoint further back than the slack", (Outcome.WARNED,), 60, beyond_the_slack),
    Kind("replay: a checkpoint of another replay", (Outcome.REFUSED,), 80, foreign_state),
    Kind("replay: opened or made twice", (Outcome.REFUSED,), 60, twice_opened),
    Kind("replay: a step that contradicts itself", (Outcome.REFUSED,), 100, wrong_steps),
    Kind("replay: rewards that are none, or of steps that are gone", (Outcome.REFUSED,), 60, wrong_rewards),
    Kind("sim: one absurd, finite observation", (Outcome.WARNED,), 200, absurd_observation),
    Kind("sim: one absurd, finite reward", (Outcome.WARNED,), 150, absurd_reward),
    Kind("sim: one number that is not finite", (Outcome.REFUSED,), 100, not_finite),
    Kind("actor: its process ends before it has begun", (Outcome.REFUSED,), 6, early_death),
)
