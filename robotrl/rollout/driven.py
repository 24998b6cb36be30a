"""Records demonstrations of a person with a keyboard or gamepad as a dataset: one env, in real time."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import robotrl
from robotrl.datasets.writer import DatasetWriter, PictureStorage
from robotrl.errors import ConfigError, RobotrlError, check_at_least
from robotrl.fn.stats import wilson
from robotrl.interventions.mapping import Device, DeviceState, VelocityMap, Verdict, grippers
from robotrl.interventions.teleoperation import Clock, Sleep, Teleoperation
from robotrl.registry import make_sim
from robotrl.rollout.demos import DemoReport, add_recorded, instruction_of, integer_rate_hz, plain_name
from robotrl.rollout.evaluate import Turn, at_rest
from robotrl.rollout.single import SingleRun, run_single
from robotrl.spec import Arrays, HasStateIds, Spec, VecSim

POLL_S = 0.02
"""Pause between two looks at the device while nothing moves, s."""
Say = Callable[[str], None]
Show = Callable[[VecSim], None]


class _Listening:
    """A device that remembers the person's last verdict."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.verdict: Verdict | None = None

    def poll(self, now_s: float) -> DeviceState:
        state = self._device.poll(now_s)
        self.verdict = state.verdict or self.verdict
        return state

    def close(self) -> None:
        self._device.close()


class HumanActor:
    """A person at a device as an actor that may end an episode.

    An episode waits for the first movement; a demonstration then holds no frames in which nobody moved. Hands off, the
    action is at rest, and a gripper keeps its value.

    Args:
        device: keyboard or gamepad.
        sim: a sim of one env.
        scale: largest action, as a fraction of the bounds.
        show: called with the sim before each step and while the person thinks.
        say: receives a line when the first movement begins an episode.
        clock: monotonic clock, seconds.
        sleep: function that waits for some seconds.

    Raises:
        ConfigError: an action without finite bounds, or one that is a choice.
    """

    def __init__(
        self,
        device: Device,
        sim: VecSim,
        scale: float,
        *,
        show: Show,
        say: Say = lambda text: None,
        clock: Clock = time.monotonic,
        sleep: Sleep = time.sleep,
    ) -> None:
        spec = sim.action_spec
        if spec.choices is not None:
            raise ConfigError(
                f"action {spec.names[0]!r} is a choice of {spec.choices[0]}: expected a continuous one to drive, as"
                " gym/ID has it with --sim.actions scores"
            )
        self._listening = _Listening(device)
        self._mapping = VelocityMap(spec, scale, grippers(spec))
        self._sim, self._show, self._say = sim, show, say
        self._clock, self._sleep = clock, sleep
        self._rest = torch.from_numpy(at_rest(spec)).to(sim.device)[None]
        self._hand = self._teleoperation()

    def act(self, obs: Arrays, turn: Turn) -> Tensor | None:
        """Actions (1, A); None once the person has given a verdict."""
        if bool(turn.started[0]):
            self._hand = self._teleoperation()
            self._listening.verdict = None
            self._wait(lambda state: state.touched or state.toggled)
            if self._listening.verdict is not None:
                return None
            self._say("  recording")
        self._show(self._sim)
        correction = self._hand(obs, self._rest, turn.started)
        return None if self._listening.verdict is not None else correction.action

    def verdict(self) -> Verdict:
        """The person's verdict on the episode; waits for it."""
        if self._listening.verdict is None:
            self._wait(lambda state: False)
        assert self._listening.verdict is not None
        return self._listening.verdict

    def _wait(self, enough: Callable[[DeviceState], bool]) -> None:
        """Wait for a verdict, or until the device's state is enough."""
        while True:
            self._show(self._sim)
            if enough(self._listening.poll(self._clock())) or self._listening.verdict is not None:
                return
            self._sleep(POLL_S)

    def _teleoperation(self) -> Teleoperation:
        # infinite: once moved, the person is in command until the episode ends
        return Teleoperation(
            self._listening, self._mapping, self._sim, release_s=math.inf, clock=self._clock, sleep=self._sleep
        )


def drive_demos(
    sim_name: str,
    out: Path | str,
    make_device: Callable[[Spec], Device],
    *,
    by: str,
    episodes: int,
    scale: float = 0.5,
    seed: int = 0,
    task: str | None = None,
    pictures: PictureStorage = "numbers",
    sim_options: Mapping[str, Any] | None = None,
    say: Say = print,
    show: Show = lambda sim: None,
) -> DemoReport:
    """Record up to `episodes` demonstrations that a person drives and keeps.

    Each kept episode is on the disk before the next begins. Interrupted (Ctrl-C), or with a device that fails, the
    recording ends as with the verdict "finish"; the episode under way is dropped.

    Args:
        sim_name: a row of `robotrl list sims`.
        out: the dataset's directory; absent or empty.
        make_device: opens the device for the sim's actions; it is closed.
        by: name of the device, for the dataset's manifest.
        episodes: how many to keep, 1 or more.
        scale: largest action, as a fraction of the bounds.
        seed: seed of the starts and the sim.
        task: task text; by default the episode's instruction, or the sim's name.
        pictures: storage of image observations; see `DatasetWriter`.
        sim_options: keyword arguments of the sim's `make`.
        say: receives a line of text for the person.
        show: called with the sim before each step.

    Raises:
        ConfigError: an argument is out of range, `out` is not empty, or no episode was kept.
        RobotrlError: the device failed before an episode was kept.
    """
    check_at_least("episodes", episodes, 1)
    sim: VecSim = make_sim(sim_name, num_envs=1, seed=seed, **dict(sim_options or {}))
    try:
        provenance = {
            "sim": sim_name,
            "sim_options": dict(sim_options or {}),
            "expert": {"name": by, "scale": scale},
            "seed": seed,
            "num_envs": 1,
            "robotrl": robotrl.__version__,
        }
        with DatasetWriter(
            out,
            fps=integer_rate_hz(sim.control_dt_s),
            observation_spec=sim.observation_spec,
            action_spec=sim.action_spec,
            robot_type=sim_name,
            provenance=provenance,
            pictures=pictures,
        ) as writer:
            device = make_device(sim.action_spec)
            solved: list[bool] = []
            lengths: list[int] = []
            stopped = ""
            try:
                driver = HumanActor(device, sim, scale, show=show, say=say)
                for run in _episodes(driver, sim, _starts(sim, seed), episodes, say, solved):
                    episode = run.episode
                    add_recorded(writer, episode, task or instruction_of(sim, episode) or plain_name(sim_name), {})
                    lengths.append(episode.length)
            except KeyboardInterrupt:
                stopped = "interrupted"
            except RobotrlError as error:
                if not lengths:
                    raise
                stopped = str(error)
            finally:
                device.close()
            if not lengths:
                raise ConfigError(f"0 episodes were kept of {episodes}: expected 1 or more; no dataset was written")
            path = writer.finish()
    finally:
        sim.close()
    return DemoReport(
        path=path,
        episodes=len(lengths),
        frames=sum(lengths),
        tried=len(solved),
        success=wilson(sum(solved), len(solved)),
        modes={},
        stopped=stopped,
    )


def _episodes(
    driver: HumanActor, sim: VecSim, starts: Iterator[int], count: int, say: Say, solved: list[bool]
) -> Iterator[SingleRun]:
    """Yield the kept episodes; `solved` gets the success of each that was driven."""
    kept = 0
    while kept < count:
        say(f"episode {kept + 1} of {count}: move to begin")
        run = run_single(driver, sim, next(starts))
        episode = run.episode
        if run.ended:
            result = "success" if episode.success else "no success"
            say(f"  {result} after {episode.length} steps, return {episode.ret:g}: keep or discard?")
        verdict = driver.verdict()
        if verdict == "finish":
            return
        if not episode.length:
            continue
        solved.append(episode.success)
        say("  kept" if verdict == "keep" else "  discarded")
        if verdict == "keep":
            kept += 1
            yield run


def _starts(sim: VecSim, seed: int) -> Iterator[int]:
    """Training starts in random order, again and again; -1 for a sim without numbered starts."""
    while not isinstance(sim, HasStateIds):
        yield -1
    ids = sim.state_ids("train")
    draw = random.Random(seed)
    while True:
        yield ids[draw.randrange(len(ids))]
