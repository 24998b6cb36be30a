"""Raw observations at the border of a vision-language-action policy, where somebody hands them in."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from robotrl.errors import ConfigError, NumericsError, nearest
from robotrl.policies.vla.roles import sight_of
from robotrl.spec import Spec, is_picture
from robotrl.spec.checks import misfit


def check_given(obs: Mapping[str, Tensor], observation_spec: Mapping[str, Spec]) -> None:
    """Refuse observations that are not what a policy was made for.

    For `act` alone: `encode` and `deploy` are what is trained, compiled and exported, on arrays of sims and datasets
    whose specs were compared before. Numbers are looked at on a CPU only; elsewhere that would wait for the device.
    What is kept of a picture stands for it, and arrays that the policy does not see may be there.

    Args:
        obs: (B, ...) by key.
        observation_spec: of the policy.

    Raises:
        ConfigError: an array is missing or has another shape, number of rows or type; a picture is not of bytes; a word
            number lies outside the vocabulary, or an instruction has no word.
        NumericsError: a measured number is not finite.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
        return
    rows: tuple[int, str] | None = None
    for key, spec in observation_spec.items():
        if sight_of(key) in obs:
            continue
        if key not in obs:
            close = nearest(key, (other for other in obs if other not in observation_spec))
            hint = f"did you mean {close!r}? " if close else ""
            raise ConfigError(f"observation {key!r} is missing: {hint}expected {', '.join(observation_spec)}")
        array = obs[key]
        if not isinstance(array, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"observation {key!r} is a {type(array).__name__}: expected a tensor")
        # other classes may hold no numbers, as where memory is estimated
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
