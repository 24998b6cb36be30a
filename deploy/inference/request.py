"""The values of a request: a bundle's inputs as one flat array. Needs numpy alone."""

from __future__ import annotations

import numpy as np

from robotrl.deploy.bundle.manifest import Manifest, Port
from robotrl.deploy.robots.cameras import packed_numbers, unpacked_numbers
from robotrl.errors import ConfigError
from robotrl.spec import is_picture, overlap_weights


def packed(
    obs: dict[str, np.ndarray], manifest: Manifest, prefix: dict[str, np.ndarray] | None, frames: list[int]
) -> np.ndarray:
    """The `values` of a request: (n,) float32.

    Args:
        obs: the bundle's observations of numbers, and nothing else.
        manifest: the bundle's manifest.
        prefix: committed actions and their mask by the names of their ports; None for none.
        frames: number of each camera's frame.
    """
    parts = [np.ravel(obs[port.name]) for port in _numbers(manifest)]
    if prefix is not None:
        parts += [np.ravel(prefix[port.name]) for port in manifest.prefix]
    floats = [part.astype(np.float32) for part in parts]
    return np.concatenate([*floats, packed_numbers(frames)])


def unpacked(values: np.ndarray, manifest: Manifest, committed: bool) -> tuple[dict[str, np.ndarray], list[int]]:
    """Inverse of `packed`: observations of numbers with committed actions, and the frames' numbers.

    Raises:
        ConfigError: the number of values differs from the manifest's.
    """
    ports = [*_numbers(manifest), *(manifest.prefix if committed else ())]
    cameras = len(manifest.observations) - len(_numbers(manifest))
    size = sum(int(np.prod(port.shape)) for port in ports)
    if len(values) != size + 2 * cameras:
        raise ConfigError(f"request has {len(values)} values: expected {size + 2 * cameras}")
    found: dict[str, np.ndarray] = {}
    at = 0
    for port in ports:
        count = int(np.prod(port.shape))
        found[port.name] = values[at : at + count].reshape(port.shape)
        at += count
    return found, unpacked_numbers(values[at:])


def _numbers(manifest: Manifest) -> list[Port]:
    """The observations that are no images."""
    return [port for port in manifest.observations if not is_picture(port.spec)]


def committed_inputs(manifest: Manifest, planned: np.ndarray, committed: int) -> dict[str, np.ndarray]:
    """The inputs of role "prefix" and "prefix_mask" by name.

    Args:
        manifest: the manifest of a bundle that has them.
        planned: (n, A) actions of the last chunk, the next one first; those beyond the policy's own number are left
            out.
        committed: number of them that will be executed before the new chunk takes over; the others guide it, too, if
            its sampler is guided.
    """
    steps = manifest.timing.rtc_max_delay_steps
    known_steps = min(len(planned), steps)
    if manifest.timing.rtc_mode == "guided":
        weights = np.asarray(overlap_weights(min(committed, known_steps), known_steps, steps))
    else:
        known_steps = min(known_steps, committed)
        weights = np.ones(known_steps)
    inputs = {port.name: np.zeros(port.shape, np.float32) for port in manifest.prefix}
    for port in manifest.prefix:
        known = np.ravel(planned[:known_steps] if port.role == "prefix" else weights)
        inputs[port.name][: len(known)] = known
    return inputs
