"""Inference of a policy server: one thread, a bounded queue, and a deadline for each request."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from robotrl.deploy.buffers import InferenceError, output_names
from robotrl.deploy.remote.protocol import InferRequest, check_request
from robotrl.deploy.remote.wire import WireError
from robotrl.deploy.runtime import Controller
from robotrl.errors import ConfigError, NumericsError
from robotrl.utils.native_thread import NativeThread

_JOIN_S = 2.0


class Computed(NamedTuple):
    """Result of one inference."""

    actions: np.ndarray
    """(H, A) float32."""
    normalized_action: np.ndarray
    """(H, A) float32."""
    inference_s: float


@dataclass(eq=False)
class InferenceJob:
    """A request that waits for the thread, or is in it."""

    compute: Callable[[], Computed]
    deadline_s: float
    """On the monotonic clock; a job that has not begun by then is dropped."""
    future: Future[Computed] = field(default_factory=Future[Computed])


class InferenceEngine:
    """Computes chunks of one bundle in a thread of its own, one after the other.

    onnxruntime holds no lock of Python while it computes, so that the server's event loop goes on meanwhile.

    Args:
        controller: the loaded bundle; used by the thread alone from now on.
        max_waiting: number of jobs that may wait behind the one that runs.
    """

    def __init__(self, controller: Controller, max_waiting: int) -> None:
        self.manifest = controller.manifest
        self.inference_s = controller.inference_s
        self.last_failure = ""
        """Why the last inference failed, for the operator; never sent to a client."""
        self._controller = controller
        self._max_waiting = max_waiting
        self._outputs = output_names(controller.manifest)
        self._draws = 0
        self._waiting: collections.deque[InferenceJob] = collections.deque()
        self._changed = threading.Condition()
        self._running: InferenceJob | None = None
        self._began_s = 0.0
        self._closed = False
        self._thread = NativeThread(self._run, "robotrl-serve")
        self._thread.start()

    def submit_request(self, request: InferRequest, deadline_s: float) -> InferenceJob:
        """Queue a request of our own protocol.

        Raises:
            WireError: the queue is full.
        """
        return self._submit(InferenceJob(lambda: self._graph_chunk(request), deadline_s))

    def submit_observation(self, obs: dict[str, np.ndarray], deadline_s: float) -> InferenceJob:
        """Queue a robot's raw observation, as `Controller.infer` takes it.

        Raises:
            WireError: the queue is full.
        """
        return self._submit(InferenceJob(lambda: self._robot_chunk(obs), deadline_s))

    def abandon(self, job: InferenceJob) -> None:
        """Give up a job: it is dropped, or its inference is cancelled after the present operator."""
        job.future.cancel()
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
            if self._running is job:
                self._controller.cancel()

    @property
    def running_s(self) -> float:
        """How long the present inference has been running, in seconds; 0 if there is none."""
        with self._changed:
            return 0.0 if self._running is None else time.monotonic() - self._began_s

    def close(self) -> None:
        """End the thread. One that does not return is left; see `exit_past_native_threads`."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._controller.cancel()
            self._changed.notify()
        self._thread.join(_JOIN_S)

    def _submit(self, job: InferenceJob) -> InferenceJob:
        with self._changed:
            if len(self._waiting) >= self._max_waiting:
                raise WireError("busy", f"{len(self._waiting)} requests wait already: ask again later")
            self._waiting.append(job)
            self._changed.notify()
        return job

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting)
                if self._closed:
                    return
                job = self._waiting.popleft()
                self._running, self._began_s = job, time.monotonic()
            if self._began_s <= job.deadline_s and job.future.set_running_or_notify_cancel():
                self._settle(job)
            with self._changed:
                self._running = None

    def _settle(self, job: InferenceJob) -> None:
        try:
            job.future.set_result(job.compute())
        except WireError as error:
            job.future.set_exception(error)
        except (ConfigError, NumericsError) as error:
            job.future.set_exception(WireError("bad_observation", str(error)))
        except InferenceError as error:
            # its text may name files of this machine
            self.last_failure = str(error)
            text = "the policy's graph cannot be computed for this observation"
            job.future.set_exception(WireError("inference_failed", text))
        except Exception as error:  # the server answers, whatever it is
            self.last_failure = repr(error)
            job.future.set_exception(WireError("internal", "the server failed on this request"))

    def _graph_chunk(self, request: InferRequest) -> Computed:
        check_request(self.manifest, request)
        session, noise = self._controller.session, request.noise
        for name, array in request.obs.items():
            session.inputs[name][0] = array
        if "noise" in session.inputs:
            drawn = self._drawn() if noise is None else noise
            session.inputs["noise"][0] = 0.0 if drawn is None else drawn
        begun = time.perf_counter()
        try:
            session.run()
        finally:
            # the controller supposes that no actions are committed
            for port in self.manifest.prefix:
                session.inputs[port.name][0] = 0.0
        spent = time.perf_counter() - begun
        actions, normalized = (session.outputs[self._outputs[role]][0].copy() for role in ("actions", "raw_action"))
        return Computed(actions, normalized, spent)

    def _drawn(self) -> np.ndarray | None:
        """The next noise of the server's own sequence; None where the bundle wants zeros."""
        self._draws += 1
        return self._controller.draw_noise(self._draws - 1)

    def _robot_chunk(self, obs: dict[str, np.ndarray]) -> Computed:
        begun = time.perf_counter()
        self._draws += 1
        actions = self._controller.infer(obs, self._draws - 1)
        spent = time.perf_counter() - begun
        return Computed(actions, self._controller.session.outputs[self._outputs["raw_action"]][0].copy(), spent)
