"""The process that infers: loads and proves a bundle, then computes a chunk for each request."""

from __future__ import annotations

import collections
import gc
import os
import select
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from robotrl.deploy.bounded import bounded_memory
from robotrl.deploy.buffers import InferenceError
from robotrl.deploy.bundle import strict
from robotrl.deploy.control.realtime import warm_leads_ns
from robotrl.deploy.inference.frames import FrameReader
from robotrl.deploy.inference.link import AnswerKind, InferenceLink
from robotrl.deploy.inference.request import unpacked
from robotrl.deploy.inference.settings import WorkerCfg
from robotrl.deploy.robots.channel import Message
from robotrl.deploy.runtime import Controller
from robotrl.deploy.state import State
from robotrl.errors import ConfigError, DataError, NumericsError, RobotrlError

MOST_FAILED = 200
"""Number of failed decisions that are told; the supervisor looks several times a second."""
LEFT, FAULT = 0, 2
"""Exit codes: the servo and the supervisor are gone, or ask no more; the bundle cannot be used."""


def run(stdin: int) -> int:
    """Serve until standard input ends.

    Args:
        stdin: file whose first line is the `WorkerCfg` as JSON, and in which each later byte announces a request.

    Returns:
        The exit code of the process.
    """
    cfg = strict.from_json(WorkerCfg, strict.loads(_first_line(stdin), "standard input"), "standard input")
    link = InferenceLink.attach(cfg.link)
    with bounded_memory():
        try:
            with _controller(cfg) as controller:
                introduction = {
                    "bundle_id": controller.manifest.bundle_id,
                    "golden_error": controller.golden_error,
                    "inference_s": controller.inference_s,
                    "engine": controller.engine,
                }
                _hand_over(cfg, controller, link, introduction)
                link.introduce(introduction)
                gc.collect()
                gc.freeze()
                _serve(link, Answering(link, controller, FrameReader(cfg.robot_link, controller.manifest)), stdin)
        except RobotrlError as error:
            link.introduce({"fault": str(error)[:4000], "kind": type(error).__name__})
            return FAULT
    return LEFT


def _hand_over(cfg: WorkerCfg, controller: Controller, link: InferenceLink, introduction: dict[str, Any]) -> None:
    """Become the C++ program, where that can serve the bundle; it introduces itself once it is ready."""
    if cfg.runtime != "native" or cfg.url is not None:
        return
    # a robot without a compiler does not need the module
    from robotrl.deploy.native.inference import become_program, program_block

    block = program_block(controller, link, introduction)
    if block is not None:
        become_program(block)


@contextmanager
def _controller(cfg: WorkerCfg) -> Generator[Controller, None, None]:
    if cfg.url is None:
        yield Controller.load(cfg.bundle, seed=cfg.seed, runtime=cfg.runtime, steer=cfg.steer)
        return
    # a robot that infers on its own machine needs no network client
    from robotrl.deploy.remote.controller import RemotePolicyCfg, remote_controller

    ca = None if cfg.tls_ca is None else Path(cfg.tls_ca)
    with remote_controller(cfg.bundle, RemotePolicyCfg(cfg.url, cfg.token, ca), seed=cfg.seed) as controller:
        yield controller


def _first_line(stdin: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(stdin, 1)
        if not byte:
            raise DataError("standard input ended before the settings: expected one line of JSON")
        line += byte
    return line


def _serve(link: InferenceLink, answering: Answering, stdin: int) -> None:
    leads_ns = warm_leads_ns(answering.controller.inference_s)
    served, due_ns = 0, 0
    while _rung(stdin, answering.controller, leads_ns, due_ns):
        request = link.requests.read()
        if request is None or request.tick == served:
            continue
        link.answers.write(answering.answer(request))
        served, due_ns = request.tick, request.lost_ns


def _rung(stdin: int, controller: Controller, leads_ns: tuple[int, ...], due_ns: int) -> bool:
    """Wait for the next request, and warm the caches shortly before it is due; False if nobody can ask any more."""
    for lead_ns in leads_ns if due_ns else ():
        left_s = (due_ns - lead_ns - time.monotonic_ns()) * 1e-9
        if left_s > 0 and not select.select([stdin], [], [], left_s)[0]:
            try:
                controller.warm()
            except RobotrlError:
                break  # the request meets the same error, and its answer tells it
    return bool(os.read(stdin, 4096))


class Answering:
    """Computes the answers to requests, and keeps the state of a recurrent policy between them.

    The state follows the inferences of an episode, in the order in which they are asked for: one whose chunk comes too
    late to be executed counts, since its observation was seen; one that fails does not. It begins anew with the first
    request of another episode, and never else.

    Args:
        link: link to the servo.
        controller: the loaded bundle.
        frames: reader of the cameras' frames.
    """

    def __init__(self, link: InferenceLink, controller: Controller, frames: FrameReader) -> None:
        self.controller = controller
        self._link, self._frames = link, frames
        self._episode, self._state = -1, dict[str, np.ndarray]()
        self._failed: collections.deque[int] = collections.deque(maxlen=MOST_FAILED)

    def answer(self, request: Message) -> Message:
        """Compute the answer to a request."""
        began = time.perf_counter_ns()
        kind, values = AnswerKind.CHUNK, np.zeros(0, np.float32)
        before: State | None = self._state if request.episode == self._episode else None
        try:
            obs, numbers = unpacked(request.values, self.controller.manifest, bool(request.mode))
            given = {**obs, **self._frames.read(numbers)}
            chunk, self._state = self.controller.infer_from(given, request.state_id, before)
            self._episode, values = request.episode, chunk.ravel()
        except (ConfigError, NumericsError) as error:
            self._fail(request.state_id, error)
            kind = AnswerKind.REFUSED
        except InferenceError as error:
            self._fail(request.state_id, error)
            kind = AnswerKind.FAILED
        spent = time.perf_counter_ns() - began
        return request._replace(kind=int(kind), lost_ns=spent, mode=0, values=values)

    def _fail(self, decision: int, error: Exception) -> None:
        self._failed.append(decision)
        self._link.fail(str(error), list(self._failed))
