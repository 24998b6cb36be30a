"""Checks of the raw observations passed to a vision-language-action policy."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from robotrl.errors import ConfigError, NumericsError, nearest
from robotrl.policies.vla.roles import features_key
from robotrl.spec import Spec, is_picture
from robotrl.spec.checks import misfit


def check_given(obs: Mapping[str, Tensor], observation_spec: Mapping[str, Spec]) -> None:
    """Check observations against a policy's spec.

    Only `act` calls it: `encode` and `deploy` are trained, compiled and exported, on arrays of sims and datasets whose
    specs were compared before. Values are checked on the CPU only, since on a GPU that would synchronize. Cached image
    features may replace an image, and additional arrays are allowed.

    Args:
        obs: (B, ...) by key.
        observation_spec: the policy's spec.

    Raises:
        ConfigError: an array is missing or has another shape, number of rows or type; an image is not uint8; a word
            number lies outside the vocabulary, or an instruction has no word.
        NumericsError: a measured number is not finite.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
        return
    rows: tuple[int, str] | None = None
    for key, spec in observation_spec.items():
        if features_key(key) in obs:
            continue
        if key not in obs:
            close = nearest(key, (other for other in obs if other not in observation_spec))
            hint = f"did you mean {close!r}? " if close else ""
            raise ConfigError(f"observation {key!r} is missing: {hint}expected {', '.join(observation_spec)}")
        array = obs[key]
        if not isinstance(array, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"observation {key!r} is a {type(array).__name__}: expected a tensor")
        # other tensor classes may hold no values, as the fake tensors of the memory estimate
        read = array.device.type == "cpu" and type(array) is Tensor
        wrong = misfit(key, array, spec, batched=True, read=read)
        if wrong:
            raise ConfigError(wrong)
        rows = rows or (len(array), key)
        if len(array) != rows[0]:
            raise ConfigError(f"observation {key!r} has {len(array)} rows: expected {rows[0]}, as {rows[1]!r} has")
        if read and not spec.words and not is_picture(spec) and not torch.isfinite(array).all():
            at = torch.nonzero(~torch.isfinite(array))[0].tolist()
            raise NumericsError(
                f"observation {key!r} element {spec.names[at[-1]]!r} is {float(array[tuple(at)])} in row {at[0]}:"
                " expected it finite"
            )
