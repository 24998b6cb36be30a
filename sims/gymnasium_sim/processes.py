"""Environments in worker processes that are restarted when they die.

Third-party simulators crash: a segmentation fault, the out-of-memory killer, a lost graphics context. A crash loses
only the running episode of that row: the row restarts in a new process and the other rows continue.
"""

from __future__ import annotations

import multiprocessing
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, NamedTuple

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.utils import CloudpickleWrapper

from robotrl.sims.gymnasium_sim.faults import EnvironmentFault
from robotrl.utils.safe_path import safe_children

DEATHS = 3
"""Maximum number of consecutive process deaths of one row without a completed episode in between."""
Method = Literal["fork", "forkserver", "spawn"]
METHODS: tuple[Method, ...] = ("fork", "forkserver", "spawn")
"""Start methods of `multiprocessing`."""
GONE = (EOFError, BrokenPipeError, ConnectionResetError)


class EnvProcess(NamedTuple):
    """Worker process of one environment."""

    pipe: Any
    """Parent's end of the pipe."""
    process: Any


class ReconnectingPipe:
    """Pipe of a row in `AsyncVectorEnv` that reconnects to a new process when the old one has died.

    Args:
        name: name of the environment and its row, for messages.
        started: the first process.
        start: starts the next process.
    """

    def __init__(self, name: str, started: EnvProcess, start: Callable[[], EnvProcess]) -> None:
        self._name, self._now, self._start = name, started, start
        self._asked: tuple[str, Any] = ("", None)
        self._seen: Any = None
        self._lost = False
        """True from the loss of an episode (its process died) until the row is reset."""
        self._deaths = 0

    @property
    def closed(self) -> bool:
        """True if the pipe is closed."""
        return self._now.pipe.closed

    def close(self) -> None:
        """Close the pipe."""
        self._now.pipe.close()

    def poll(self, timeout: float | None = 0.0) -> bool:
        """True if an answer is available."""
        return self._lost or self._now.pipe.poll(timeout)

    def send(self, message: tuple[str, Any]) -> None:
        """Send a request to the process."""
        self._asked = message
        command = message[0]
        if command == "reset":
            self._deaths *= self._lost
            self._lost = False
        if self._lost and command in ("step", "reset-noop"):
            return
        # `recv` handles a dead process
        with suppress(*GONE):
            self._now.pipe.send(message)

    def recv(self) -> Any:
        """Receive the answer; if the process has died since the request, a substitute answer.

        Raises:
            EnvironmentFault: too many consecutive processes died.
            EOFError: the process died during a request other than a step or a reset.
        """
        command = self._asked[0]
        if self._lost and command in ("step", "reset-noop"):
            return self._instead(command)
        try:
            answer = self._now.pipe.recv()
        except GONE:
            return self._mended(command)
        if answer[1] and command in ("reset", "step", "reset-noop"):
            self._seen = answer[0][0]
        return answer

    def _mended(self, command: str) -> Any:
        self._now.process.join()
        died = f"{self._name}: its process died (exit code {self._now.process.exitcode})"
        self._now.pipe.close()
        if command == "close":
            return None, True
        self._deaths += 1
        if self._deaths > DEATHS:
            raise EnvironmentFault(
                f"{died}, the {self._deaths}th in a row: expected an episode to end before its process does"
            )
        self._now = self._start()
        if command == "reset":
            warnings.warn(f"{died} while it was reset; a new one has taken its place", stacklevel=2)
            self._now.pipe.send(self._asked)
            return self.recv()
        if command not in ("step", "reset-noop"):
            raise EOFError(died)
        warnings.warn(f"{died}; that episode is lost, and a new process has taken its place", stacklevel=2)
        self._lost = True
        return self._instead(command)

    def _instead(self, command: str) -> Any:
        if command == "reset-noop":
            return (self._seen, {}), True
        return (self._seen, 0.0, False, True, {"lost": True}), True


def serve(
    index: int, make: Any, pipe: Any, theirs: Any, memory: Any, errors: Any, mode: AutoresetMode, permits: Any
) -> None:
    """Worker loop of `AsyncVectorEnv` for one environment: answers its messages until "close".

    Args:
        index: row number.
        make: creates the environment.
        pipe: the worker's end of the pipe.
        theirs: the parent's end, closed here.
        memory: shared memory; not used.
        errors: queue for exceptions of the environment.
        mode: autoreset mode; not used, the parent resets rows explicitly.
        permits: not used.
    """
    del memory, mode, permits
    theirs.close()
    env = make()
    seen: Any = None

    def answer(command: str, data: Any) -> Any:
        nonlocal seen
        match command:
            case "reset":
                seen, info = env.reset(**data)
                return seen, info
            case "reset-noop":
                return seen, {}
            case "step":
                seen, *rest = env.step(data)
                return (seen, *rest)
            case "_call":
                name, arguments, named = data
                found = env.get_wrapper_attr(name)
                return found(*arguments, **named) if callable(found) else found
            case "_setattr":
                return env.set_wrapper_attr(*data)
            case "_check_spaces":
                _, observation_space, action_space = data
                return env.observation_space == observation_space, env.action_space == action_space
            case _:
                raise RuntimeError(f"{command!r} is no message to an environment")

    try:
        while (asked := pipe.recv())[0] != "close":
            pipe.send((answer(*asked), True))
        pipe.send((None, True))
    except (KeyboardInterrupt, Exception):
        kind, error, _ = sys.exc_info()
        errors.put((index, kind, error, traceback.format_exc()))
        pipe.send((None, False))
    finally:
        env.close()


def make_processes(
    env_id: str, makers: Sequence[Callable[[], gym.Env[Any, Any]]], method: Method | None = None
) -> AsyncVectorEnv:
    """Run each environment in its own process; ended rows wait for `reset(options={"reset_mask": ...})`.

    A row whose process dies in an episode repeats its last observation, truncated, with `lost` in `info`.

    Args:
        env_id: environment id, for messages.
        makers: functions that create the environments, one per row.
        method: start method of the processes; None for Python's default.
    """
    # no shared memory: a new process could not detect a half-written observation
    with safe_children():
        env = AsyncVectorEnv(
            makers,
            shared_memory=False,
            copy=False,
            context=method,
            worker=serve,  # pyright: ignore[reportArgumentType]  # declared with two arguments less than it is called with
            autoreset_mode=AutoresetMode.DISABLED,
        )
    pipes: Any = env.parent_pipes

    def start(row: int) -> EnvProcess:
        context: Any = multiprocessing.get_context(method)
        ours, theirs = context.Pipe()
        arguments = CloudpickleWrapper(makers[row]), theirs, ours, None, env.error_queue, env.autoreset_mode, None
        process = context.Process(target=serve, name=f"{env_id}-{row}", args=(row, *arguments), daemon=True)
        with safe_children():
            process.start()
        theirs.close()
        env.processes[row] = process
        return EnvProcess(ours, process)

    for row, (pipe, process) in enumerate(zip(list(pipes), list(env.processes), strict=True)):
        pipes[row] = ReconnectingPipe(f"gym/{env_id}: env {row}", EnvProcess(pipe, process), partial(start, row))
    return env
