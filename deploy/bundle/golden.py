"""Golden ticks of a bundle: edge cases first, then consecutive recorded observations."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from robotrl.deploy.bundle.bundle import GoldenTicks
from robotrl.deploy.bundle.consistency import MIN_GOLDEN_TICKS
from robotrl.deploy.bundle.manifest import Manifest, Port
from robotrl.deploy.noise import CounterNoise

SEQUENCE_TICKS = 200
_SEED = 0
_LOUD_NOISE = 3.0


def golden_inputs(
    manifest: Manifest, recorded: Mapping[str, np.ndarray], states: Mapping[str, np.ndarray]
) -> GoldenTicks:
    """Create the inputs of the golden ticks; outputs are still zero.

    The first 64 are edge cases: all elements at zero, at the lower bound, at the upper bound, then random mixtures of
    bounds, zeros and recorded values; their noise is zero, the counter's, or three times the counter's, in turn. Up to
    200 consecutive recorded observations with the counter's noise follow.

    Args:
        manifest: the bundle's description; its noise shape and the ports that the policy reads are used.
        recorded: (n, ...) for each observation key, as inputs of the graph.
        states: (n, ...) for each input of recurrent state, before each recorded observation; edge cases as of
            observations.
    """
    rng = np.random.Generator(np.random.Philox(key=_SEED))
    length = min(SEQUENCE_TICKS, len(next(iter(recorded.values()))))
    ports = manifest.read
    observations = {
        port.name: np.concatenate((_edges(port, recorded[port.name], rng), recorded[port.name][:length]))
        for port in ports
    }
    count = MIN_GOLDEN_TICKS + length
    shape = manifest.sampler.noise_shape
    noise = None
    if shape is not None:
        source = CounterNoise(shape, _SEED)
        gain = np.ones(count, np.float32)
        gain[:MIN_GOLDEN_TICKS] = np.tile((0.0, 1.0, _LOUD_NOISE), MIN_GOLDEN_TICKS)[:MIN_GOLDEN_TICKS]
        noise = np.stack([gain[i] * source.draw(i) for i in range(count)])
    empty = np.zeros((count, manifest.timing.chunk_length, len(manifest.action.names)), np.float32)
    before = {
        port.name: np.concatenate((_edges(port, states[port.name], rng), states[port.name][:length]))
        for port in manifest.states
    }
    return GoldenTicks(observations, noise, empty, empty.copy(), before)


def _edges(port: Port, recorded: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Edge cases (64, *shape); recorded extremes replace missing bounds."""
    flat = recorded.reshape(-1, port.shape[-1])
    low = np.array([f if b is None else b for b, f in zip(port.low, flat.min(axis=0), strict=True)], np.float32)
    high = np.array([f if b is None else b for b, f in zip(port.high, flat.max(axis=0), strict=True)], np.float32)
    zero = np.zeros_like(low)
    out = np.empty((MIN_GOLDEN_TICKS, *port.shape), np.float32)
    out[:9] = np.stack([zero] * 3 + [low] * 3 + [high] * 3).reshape(9, *([1] * (len(port.shape) - 1)), -1)
    for i in range(9, MIN_GOLDEN_TICKS):
        real = recorded[int(rng.integers(len(recorded)))]
        pick = rng.integers(4, size=port.shape)
        out[i] = np.select([pick == 0, pick == 1, pick == 2], [low, high, zero], real)
    return out
