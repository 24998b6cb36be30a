"""Controller of a robot: runs a verified bundle, from observations to actions, one control tick at a time.

Needs numpy, onnxruntime and safetensors; no torch, no simulator.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from robotrl.deploy.bounded import bounded_memory, within
from robotrl.deploy.buffers import (
    InferenceError,
    InferenceSession,
    Runtime,
    check_steer,
    host_transforms,
    output_names,
)
from robotrl.deploy.bundle.bundle import Bundle, open_bundle
from robotrl.deploy.bundle.manifest import Manifest
from robotrl.deploy.history import ObservationHistory
from robotrl.deploy.session import built, check_golden
from robotrl.deploy.state import RecurrentState, State
from robotrl.errors import ConfigError, DataError, NumericsError, nearest
from robotrl.spec.checks import misfit

WARM_UP_RUNS = 20
FIRST_LIMIT_S = 15.0
"""Time limit of a graph's first inference, in seconds."""
SLOWER = 10.0
"""The bundle is refused if its inferences take this many times as long as the first one, on average."""


class Inferred(NamedTuple):
    """Result of `Controller.infer_from`."""

    chunk: np.ndarray
    """(H, A) float32."""
    state: State
    """State to begin the next inference of the episode from; empty for a bundle without recurrent state."""


class Controller:
    """Runs one bundle. Create it with `Controller.load`, or with `remote_controller` where a server infers.

    Every `execute` ticks it infers a chunk of actions and then returns them one by one; `reset` starts a new episode.
    The state of a recurrent policy is carried from inference to inference, and begins anew with `reset` alone.
    Inference `d` (counted from 0, never restarted) uses the noise of (seed, d), so that a log can be replayed exactly.

    It returns the policy's actions, also where the bundle has a reflex, which the servo of `run_control` evaluates.
    Limits, stale observations and faults are handled by
    `robotrl.deploy.control.safety.SafetyChain`, which `run_control` applies afterwards.

    Attributes:
        bundle: the loaded bundle.
        manifest: its manifest.
        golden_error: largest difference on the golden ticks, as a fraction of the action range.
        decision: index of the inference that gave the current chunk; -1 before the first.
        cursor: number of actions of the current chunk already returned.
        inference_s: median duration of an inference during warm-up, in seconds.
        session: what computes the graph.

    Args:
        bundle: the verified bundle.
        seed: seed of the sampler's noise; 0 or more.
        session: computes the bundle's graph elsewhere, e.g. on a server; None computes it here by onnxruntime.
        steer: use the bundle's steering graph, where it has one and no session is given.
    """

    def __init__(self, bundle: Bundle, seed: int, session: InferenceSession | None = None, steer: bool = True) -> None:
        if seed < 0:
            raise ConfigError(f"seed is {seed!r}: expected 0 or more")
        self.bundle = bundle
        self.manifest = manifest = bundle.manifest
        with bounded_memory():
            self.session = built(bundle, steer=steer) if session is None else session
            self.golden_error = _proved(self.session, bundle)
        self._state = RecurrentState(manifest, self.session)
        # the golden ticks have left theirs
        self._state.reset()
        self._names = {port.name: port.names for port in manifest.observations}
        self._host_in = host_transforms(manifest.transforms.inputs)
        self._flat = self.session.observation if self._host_in is None else self.session.observation.copy()
        self._finite = np.ones(self._flat.shape, np.bool_)
        self._raw = _views(self._flat, manifest)
        self._specs = {port.name: port.spec for port in manifest.observations}
        self._host_out = host_transforms(manifest.transforms.outputs)
        names = output_names(manifest)
        self._actions = self.session.outputs[names["actions"]][0]
        shape = manifest.sampler.noise_shape
        draws = manifest.draws_noise(self.session.steered)
        self._noise = self.session.noise(shape, seed) if draws and shape is not None else None
        self._noise_in = self.session.inputs.get("noise")
        self._prefix = {port.name: self.session.inputs[port.name][0] for port in manifest.prefix}
        self._uncommit()
        self._next_noise: np.ndarray | None = None
        self._history, self._ticks = ObservationHistory(manifest.observations), 0
        self._measured = {port.name: port.measured_shape for port in manifest.observations}
        self._chunk = np.zeros(self._actions.shape, np.float32)
        self._execute = manifest.timing.execute
        self.seed = seed
        self.decision = -1
        self.cursor = self._execute
        self._blank()
        self.inference_s = self._warm_up()
        self.prepare()

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, seed: int = 0, runtime: Runtime = "python", steer: bool = True
    ) -> Controller:
        """Verify the bundle at `path`, replay its golden ticks on this machine, and warm up.

        Args:
            path: a bundle's directory.
            seed: seed of the sampler's noise; 0 or more.
            runtime: "native" computes the graph by the C++ engine, where that has a loop for each of its operators;
                "python", and for any other graph, onnxruntime does.
            steer: False runs the base policy of a bundle with a steering graph, without that.

        Raises:
            DataError: the bundle is damaged, altered, of a newer schema, or computes other actions on this machine; its
                graph cannot be computed, takes too long, or needs more memory than there is.
            ConfigError: the seed is negative, the C++ engine cannot be built, or `steer` is False and the bundle has no
                steering graph.
        """
        bundle = open_bundle(path)
        check_steer(bundle.manifest, steer)
        if runtime == "python":
            return cls(bundle, seed, steer=steer)
        # a robot without a compiler does not need the module
        from robotrl.deploy.native.session import native_session

        return cls(bundle, seed, native_session(bundle, steer), steer)

    @property
    def engine(self) -> str:
        """Name of what computes the graph; see `InferenceSession.engine`."""
        return self.session.engine

    @property
    def needs_inference(self) -> bool:
        """True if the next `step` runs an inference; otherwise it returns an action of the current chunk."""
        return self.cursor >= self._execute

    def reset(self) -> None:
        """Start a new episode: the rest of the chunk and recurrent state are dropped. The decision index continues."""
        self.cursor = self._execute
        self._state.reset()
        self._history.reset()
        self._ticks = 0

    def drop(self) -> None:
        """Drop the rest of the chunk: the next `step` infers."""
        self.cursor = self._execute

    def skip(self, ticks: int) -> None:
        """Let control ticks pass without an observation; their actions of the chunk are not executed.

        Args:
            ticks: number of ticks, 0 or more.
        """
        self.cursor = min(self.cursor + ticks, self._execute)
        self._ticks += ticks

    def step(self, obs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Run one control tick.

        Args:
            obs: one array for each observation of the bundle, raw, in the units and order of its manifest; of this tick
                alone where the bundle has stacked ones, whose last ticks are kept here.

        Returns:
            (A,) float32 action in the robot's units; a copy.

        Raises:
            ConfigError: an observation is missing, unknown, of another shape or not numeric; an image is not uint8; a
                word number is outside the vocabulary, or an instruction has no word. No inference was run.
            NumericsError: an observation is not finite; no inference was run and the chunk is unchanged.
            InferenceError: the graph cannot be computed for this observation, or `cancel` was called; the next step
                infers again, from the same recurrent state.
        """
        self._take(self._remembered(obs) if self._history.keys else obs)
        if self.cursor >= self._execute:
            if self._next_noise is None:
                self.prepare()
            chunk = self._run(self._next_noise)
            self._state.advance()
            self._chunk[...] = chunk
            self._next_noise = None
            self.decision += 1
            self.cursor = 0
        action = self._chunk[self.cursor].copy()
        self.cursor += 1
        return action

    def infer(self, obs: Mapping[str, np.ndarray], decision: int) -> np.ndarray:
        """Compute the whole chunk of one decision without changing the episode's state, for replay and tests.

        Args:
            obs: as for `step`, but stacked ones whole, (K, D) with the oldest tick first; with committed actions
                (inputs of role "prefix" and "prefix_mask") where the bundle has them, all or none: without them there
                are none, as in `step`.
            decision: 0 or more.

        Returns:
            (H, A) float32.

        Raises:
            ConfigError: the bundle has recurrent state; see `infer_from`.
        """
        if self.manifest.states:
            names = ", ".join(repr(port.name) for port in self.manifest.states)
            raise ConfigError(f"this bundle has recurrent state ({names}): expected infer_from, which is given it")
        return self._infer(obs, decision)

    def infer_from(
        self, obs: Mapping[str, np.ndarray], decision: int, state: Mapping[str, np.ndarray] | None
    ) -> Inferred:
        """As `infer`, from the state after the decision before, which is returned for the next one.

        Args:
            obs: as for `infer`.
            decision: 0 or more.
            state: `Inferred.state` of the episode's last inference; None for its first.

        Raises:
            ConfigError: the observation or the state has other arrays than the bundle's.
            NumericsError: the observation is not finite.
            InferenceError: the graph cannot be computed for this observation.
        """
        before = self._state.present()
        try:
            self._state.put(state)
            chunk = self._infer(obs, decision)
            return Inferred(chunk, self._state.following())
        finally:
            self._state.put(before)

    def _infer(self, obs: Mapping[str, np.ndarray], decision: int) -> np.ndarray:
        given = {name: obs[name] for name in self._prefix if name in obs}
        self._take({name: array for name, array in obs.items() if name not in given})
        if given:
            self._commit(given)
            try:
                return self._run(self.draw_noise(decision)).copy()
            finally:
                self._uncommit()
        return self._run(self.draw_noise(decision)).copy()

    def draw_noise(self, decision: int) -> np.ndarray | None:
        """The noise (H, A) of one decision; None for a policy that draws none, or zeros."""
        return None if self._noise is None else self._noise.draw(decision)

    def cancel(self) -> None:
        """Cancel the inference of another thread that is inside `step`, after its current operator."""
        self.session.cancel()

    def warm(self) -> None:
        """Run a dummy inference, which loads code and weights into the caches.

        It runs the same code as `step`, on the last observation (before the first: zeros, and the first word of the
        vocabulary).
        """
        self._take(self._raw)
        self._run(self._next_noise)

    def prepare(self) -> None:
        """Draw the noise of the next decision in advance, to save time in `step`."""
        if self._noise is not None and self._next_noise is None:
            self._next_noise = self._noise.draw(self.decision + 1)

    def _warm_up(self) -> float:
        spent: list[float] = []
        for _ in range(WARM_UP_RUNS):
            begun = time.perf_counter()
            try:
                self.warm()
            except InferenceError as error:
                raise DataError(f"{error}, with zeros for an observation") from error
            spent.append(time.perf_counter() - begun)
        return statistics.median(spent)

    def _take(self, obs: Mapping[str, np.ndarray]) -> None:
        """Check an observation and copy it to the input of the graph (or of the first host transform)."""
        if len(obs) != len(self._raw):
            raise _wrong_names(obs, self._raw)
        given: dict[str, np.ndarray] = {}
        for name, spec in self._specs.items():
            array = obs.get(name)
            if array is None:
                raise _wrong_names(obs, self._raw)
            given[name] = np.asarray(array)
            wrong = misfit(name, given[name], spec, by_value=True)
            if wrong:
                raise ConfigError(wrong)
        # copy all or nothing: `warm` must not read a refused observation
        for name, raw in self._raw.items():
            raw[...] = given[name]
        if not np.isfinite(self._flat, out=self._finite).all():
            error = self._not_finite()
            self._blank()
            raise error

    def _remembered(self, obs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """The observation of a tick with those of the last ticks."""
        if obs.keys() != self._measured.keys():
            return obs
        for name in self._history.keys:
            if np.shape(obs[name]) != self._measured[name]:
                raise ConfigError(
                    f"observation {name!r} has shape {np.shape(obs[name])}: expected {self._measured[name]}, of one"
                    " control tick"
                )
        self._history.take(self._ticks, obs)
        self._ticks += 1
        return self._history.whole(obs)

    def _commit(self, given: Mapping[str, np.ndarray]) -> None:
        """Check committed actions and copy them to the graph's inputs.

        Raises:
            ConfigError: one of the two is missing or of another shape.
            NumericsError: a number is not finite.
        """
        for name, array in self._prefix.items():
            if name not in given or np.shape(given[name]) != array.shape:
                found = np.shape(given[name]) if name in given else "missing"
                raise ConfigError(f"committed actions {name!r} are {found}: expected shape {array.shape}")
            if not np.isfinite(given[name]).all():
                raise NumericsError(f"committed actions {name!r} are not finite")
        for name, array in self._prefix.items():
            array[...] = given[name]

    def _uncommit(self) -> None:
        """Remove committed actions from the graph's inputs: those of a request, or of the last golden tick."""
        for array in self._prefix.values():
            array[...] = 0.0

    def _blank(self) -> None:
        """Reset the observation to zeros, with one word in each instruction, since empty ones are refused."""
        self._flat[:] = 0.0
        for name, spec in self._specs.items():
            if spec.words:
                self._raw[name][..., 0] = 1.0

    def _run(self, noise: np.ndarray | None) -> np.ndarray:
        """Infer the chunk (H, A) for the last observation; the next run overwrites the array."""
        if self._host_in is not None:
            for name, array in self._host_in(self._raw).items():
                self.session.inputs[name][0] = array
        if self._noise_in is not None:
            self._noise_in[0] = 0.0 if noise is None else noise
        self.session.run()
        return self._actions if self._host_out is None else self._host_out({"action": self._actions})["action"]

    def _not_finite(self) -> NumericsError:
        for name, raw in self._raw.items():
            bad = np.argwhere(~np.isfinite(raw))
            if len(bad):
                index = tuple(bad[0])
                element = self._names[name][index[-1]]
                return NumericsError(f"observation {name!r} element {element!r} is {raw[index]}: expected it finite")
        return NumericsError("an observation is not finite")


def _proved(session: InferenceSession, bundle: Bundle) -> float:
    """Run the golden ticks with a time limit; returns the largest difference, see `check_golden`.

    Raises:
        DataError: a tick differs, cannot be computed, or takes too long.
    """
    name = bundle.manifest.graphs.policy
    limit_s = FIRST_LIMIT_S
    try:
        begun = time.monotonic()
        within(limit_s, session.run)
        once_s = time.monotonic() - begun
        limit_s = FIRST_LIMIT_S + bundle.manifest.golden.ticks * max(SLOWER * once_s, 0.05)
        return within(limit_s, lambda: check_golden(session, bundle))
    except TimeoutError as error:
        session.cancel()
        raise DataError(f"{name}: an inference has not ended after {limit_s:.0f} s: refused") from error
    except InferenceError as error:
        raise DataError(str(error)) from error


def _views(flat: np.ndarray, manifest: Manifest) -> dict[str, np.ndarray]:
    """View of each observation in the flat array of all observations."""
    views: dict[str, np.ndarray] = {}
    at = 0
    for port in manifest.observations:
        size = math.prod(port.shape)
        views[port.name] = flat[at : at + size].reshape(port.shape)
        at += size
    return views


def _wrong_names(obs: Mapping[str, Any], ports: Mapping[str, Any]) -> ConfigError:
    for name in obs:
        if name not in ports:
            close = nearest(name, ports)
            hint = f"did you mean {close!r}? " if close else ""
            return ConfigError(f"observation {name!r} is unknown: {hint}expected {', '.join(sorted(ports))}")
    missing = sorted(set(ports) - set(obs))
    return ConfigError(f"observation {missing[0]!r} is missing: expected {', '.join(sorted(ports))}")
