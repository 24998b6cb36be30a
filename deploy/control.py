"""`run_control`: a bundle in command of a robot, at a fixed rate, with a safety chain between them.

The loop runs on absolute deadlines: a late tick never shifts the next one, missed periods are skipped and counted, and
nothing is sent in a burst. Inference and servo are separate processes; this is the inference side.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from robotrl.deploy.channel import Message
from robotrl.deploy.control_log import ControlLog, Tick, tick_record
from robotrl.deploy.control_report import ControlReport, EpisodeReport, Times, histogram, percentiles
from robotrl.deploy.link import Command, RobotFault, message, now_ns
from robotrl.deploy.match import RobotInfo, Wiring, wire
from robotrl.deploy.realtime import sleep_until, steady, warm_leads_ns
from robotrl.deploy.robot_process import RobotProcess
from robotrl.deploy.runtime import Controller
from robotrl.deploy.safety import NONE, Mode, Reason, SafetyChain
from robotrl.errors import ConfigError

DEFAULT_LIMIT_S = 5.0
_FIRST_DEADLINE_NS = 5_000_000


def run_control(
    bundle: str | os.PathLike[str],
    robot: str = "sim:mujoco/peg-insert",
    *,
    episodes: int = 16,
    seed: int = 0,
    state_ids: Sequence[int] | None = None,
    limit_s: float | None = None,
    log: str | os.PathLike[str] | None = None,
    fifo: bool = False,
    wake_early: bool = True,
    progress: Callable[[EpisodeReport], None] | None = None,
) -> ControlReport:
    """Let a bundle control a robot for some episodes, in real time.

    Args:
        bundle: the bundle's directory.
        robot: "NAME:ARGUMENT"; NAME is a row of the table of drivers.
        episodes: how many, 1 or more; they start from the first ids of the robot's held-out test split.
        seed: keys the sampler's noise.
        state_ids: start from these instead; `episodes` is then their number.
        limit_s: an episode that has not succeeded by then has failed; None takes the robot's own limit, else 5 s.
        log: where to write the log (JSON lines); None writes none.
        fifo: ask for the real-time scheduler.
        wake_early: run inferences for nothing shortly before each tick that infers, so that the one that counts
            finds code and weights in the caches (see `warm_leads_ns`).
        progress: called after each episode.

    Raises:
        ConfigError: an argument is out of range, or the robot is not the one of the bundle.
        DataError: the bundle is refused, or the log cannot be made.
        RobotFault: the robot's process ended or fell silent, or too many ticks in a row were bad. The log holds all
            ticks up to there.
    """
    controller = Controller.load(bundle, seed=seed)
    with RobotProcess(robot) as process, steady(fifo=fifo) as scheduling:
        info = process.introduction()
        ids = _state_ids(info, state_ids, episodes)
        limit = _limit_s(info, limit_s)
        wiring = wire(controller.manifest, info)
        writer = ControlLog(None if log is None else Path(log))
        writer.open(_header(controller, robot, scheduling, wiring))
        loop = _Loop(controller, process, wiring, writer, limit, wake_early)
        try:
            for serial, state_id in enumerate(ids, start=1):
                report = loop.episode(serial, state_id)
                if progress is not None:
                    progress(report)
        except RobotFault as error:
            writer.write([{"kind": "fault", "text": str(error)}])
            raise
        finally:
            writer.close()
        return loop.report(robot, scheduling)


def _state_ids(info: RobotInfo, given: Sequence[int] | None, episodes: int) -> list[int]:
    if given is not None:
        if not given:
            raise ConfigError("state_ids is empty: expected one or more")
        return [int(i) for i in given]
    most = len(info.test_ids)
    if not 1 <= episodes <= most:
        raise ConfigError(f"episodes is {episodes!r}: expected 1 to {most}, the robot's held-out starts")
    return list(info.test_ids[:episodes])


def _limit_s(info: RobotInfo, given: float | None) -> float:
    limit = given if given is not None else info.limit_s if info.limit_s is not None else DEFAULT_LIMIT_S
    if not info.control_dt_s <= limit <= 3600.0:
        raise ConfigError(f"limit_s is {limit!r}: expected {info.control_dt_s} to 3600 seconds")
    return limit


def _header(controller: Controller, robot: str, scheduling: str, wiring: Wiring) -> dict[str, object]:
    manifest = controller.manifest
    return {
        "bundle_id": manifest.bundle_id,
        "robot": robot,
        "seed": controller.seed,
        "control_period_s": manifest.timing.control_period_s,
        "observations": {port.name: list(port.names) for port in manifest.observations},
        "action": list(manifest.action.names),
        "low": wiring.limits.low.tolist(),
        "high": wiring.limits.high.tolist(),
        "scheduling": scheduling,
    }


class _Loop:
    """The state of a run: one `episode` after another, then the `report`."""

    def __init__(
        self,
        controller: Controller,
        process: RobotProcess,
        wiring: Wiring,
        writer: ControlLog,
        limit_s: float,
        wake_early: bool,
    ) -> None:
        manifest = controller.manifest
        self.controller = controller
        self.process = process
        self.link = process.link
        self.wiring = wiring
        self.writer = writer
        self.chain = SafetyChain(wiring.limits)
        self.period_ns = round(manifest.timing.control_period_s * 1e9)
        self.budget_ns = round(manifest.timing.latency_budget_s * 1e9)
        self.max_ticks = max(1, round(limit_s * 1e9 / self.period_ns))
        self.leads_ns = warm_leads_ns(controller.inference_s) if wake_early else ()
        self.times = Times([], [], [], [])
        self.misses = 0
        self.over_budget = 0
        self.episodes: list[EpisodeReport] = []
        self.last: Message | None = None
        self.refused = ""
        """Why the controller would not take the observation of the last tick; "" where it did."""

    def episode(self, serial: int, state_id: int) -> EpisodeReport:
        """Run one episode to success or to the limit.

        Raises:
            RobotFault: see `run_control`.
        """
        self.controller.reset()
        self.chain.reset()
        self.controller.prepare()
        limits = self.wiring.limits
        neutral = limits.neutral[self.wiring.action] if limits.hold == "neutral" else np.zeros(0, np.float32)
        self.last = self.process.reset(serial, state_id, neutral)
        ticks: list[Tick] = []
        try:
            success = self._ticks(serial, state_id, ticks)
        finally:
            indices = self.wiring.observations
            self.writer.write([tick_record(serial, tick, indices) for tick in ticks])
        report = EpisodeReport(state_id, success, len(ticks), len(ticks) * self.period_ns * 1e-9)
        self.episodes.append(report)
        self.writer.write([{"kind": "episode", "episode": serial, "state_id": state_id, "success": success}])
        return report

    def _ticks(self, serial: int, state_id: int, ticks: list[Tick]) -> bool:
        """The ticks of an episode; whether it succeeded."""
        start = now_ns() + _FIRST_DEADLINE_NS
        index = 0
        while True:
            deadline = start + index * self.period_ns
            if self.controller.needs_inference:
                self._wake_early(deadline)
            sleep_until(deadline)
            woke = now_ns()
            skipped = (woke - deadline) // self.period_ns
            self.misses += skipped
            index += skipped
            latest = self.link.observations.read()
            if latest is not None and latest.episode == serial:
                self.last = latest
            if self.last is not None and self.last.mode:
                return True
            if index >= self.max_ticks:
                return False
            tick = self._tick(serial, state_id, index, start, deadline, woke)
            ticks.append(tick)
            self._account(tick)
            when = f"in episode {serial} (start {state_id}) at tick {index}"
            self.process.check(when)
            if tick.mode == Mode.DAMP:
                raise RobotFault(f"robot {self.process.robot!r} {when}: {self._why(tick)}; held, then damped")
            self.controller.prepare()
            finished = (now_ns() - start) // self.period_ns
            self.misses += finished - index
            index = finished + 1

    def _wake_early(self, deadline: int) -> None:
        """Warm the caches before a tick that infers, as far as there is time."""
        for lead in self.leads_ns:
            if now_ns() < deadline - lead:
                sleep_until(deadline - lead)
                self.controller.warm()

    def _tick(self, serial: int, state_id: int, index: int, start: int, deadline: int, woke: int) -> Tick:
        """Observe, infer, check, send."""
        controller = self.controller
        latest = self.last
        flat = latest.values if latest is not None else np.zeros(0, np.float32)
        # It may have been stamped between the wake-up and the reading.
        age = max(0, woke - latest.stamp_ns) if latest is not None else 0
        action: np.ndarray | None = None
        spent = 0
        self.refused = ""
        if len(flat) == self.wiring.observation_size:
            obs = {key: flat[order] for key, order in self.wiring.observations.items()}
            observed = self.chain.check(obs, age * 1e-9)
            if observed == NONE:
                begun = now_ns()
                try:
                    action = controller.step(obs)
                except ConfigError as error:
                    # a picture or an instruction that is none is answered like any observation that cannot be
                    observed, self.refused = Reason.OBS_IMPLAUSIBLE, str(error)
                spent = now_ns() - begun
        else:
            observed, flat = Reason.OBS_NOT_FINITE, np.zeros(0, np.float32)
        verdict = self.chain.decide(observed, action)
        self.link.commands.write(
            message(
                Command.ACT,
                tick=index,
                episode=serial,
                state_id=state_id,
                mode=int(verdict.mode),
                reason=int(verdict.reason),
                values=verdict.action[self.wiring.action],
            )
        )
        sent_at = now_ns()
        decision, cursor = controller.decision, controller.cursor
        if verdict.mode != Mode.ACTIVE:
            # What is left of the chunk was meant for a moment that has passed.
            controller.reset()
        return Tick(
            tick=index,
            deadline_ns=deadline - start,
            lateness_ns=woke - deadline,
            age_ns=age,
            busy_ns=sent_at - woke,
            inference_ns=spent,
            decision=decision,
            cursor=cursor,
            observation=flat,
            policy=action,
            sent=verdict.action,
            mode=int(verdict.mode),
            reason=int(verdict.reason),
        )

    def _account(self, tick: Tick) -> None:
        self.times.lateness.append(tick.lateness_ns)
        self.times.busy.append(tick.busy_ns)
        self.times.age.append(tick.age_ns)
        if tick.cursor == 1 and tick.policy is not None:
            self.times.inference.append(tick.inference_ns)
            self.over_budget += tick.inference_ns > self.budget_ns

    def _why(self, tick: Tick) -> str:
        """In words, why the last tick was bad."""
        count = f"{self.chain.limits.bad_ticks_to_damp} ticks in a row"
        reason = Reason(tick.reason)
        if reason & Reason.OBS_NOT_FINITE:
            for port in self.controller.manifest.observations:
                values = tick.observation[self.wiring.observations[port.name]] if len(tick.observation) else np.zeros(0)
                bad = np.argwhere(~np.isfinite(values))
                if len(bad):
                    at = tuple(bad[0])
                    return f"observation {port.name!r} element {port.names[at[-1]]!r} is {values[at]} for {count}"
            return f"the robot sent an observation of {len(tick.observation)} numbers for {count}"
        if reason & Reason.OBS_STALE:
            most = self.chain.limits.max_observation_age_s
            return f"the last observation is {tick.age_ns * 1e-9:.3f} s old, more than {most:g} s, for {count}"
        if reason & Reason.OBS_IMPLAUSIBLE and self.refused:
            return f"{self.refused}, for {count}"
        names = ", ".join(str(r.name).lower() for r in reason)
        return f"{names} for {count}"

    def report(self, robot: str, scheduling: str) -> ControlReport:
        """What the run showed."""
        controller, last = self.controller, self.last
        return ControlReport(
            bundle_id=controller.manifest.bundle_id,
            robot=robot,
            seed=controller.seed,
            rate_hz=1.0 / controller.manifest.timing.control_period_s,
            episodes=tuple(self.episodes),
            successes=sum(episode.success for episode in self.episodes),
            ticks=len(self.times.lateness),
            lateness_us=percentiles(self.times.lateness),
            inference_us=percentiles(self.times.inference),
            busy_us=percentiles(self.times.busy),
            observation_age_us=percentiles(self.times.age),
            deadline_misses=self.misses,
            over_budget=self.over_budget,
            lateness_histogram_us=histogram(self.times.lateness),
            safety=self.chain.counters,
            robot_steps_made_up=0 if last is None else last.reason,
            robot_time_lost_s=0.0 if last is None else last.lost_ns * 1e-9,
            torn_reads=self.link.observations.torn,
            golden_error=controller.golden_error,
            scheduling=scheduling,
            log=None if self.writer.path is None else str(self.writer.path),
            log_error=self.writer.error,
        )
