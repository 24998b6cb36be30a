"""Building blocks: MLP, time features, transforms as a module."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from robotrl.errors import unknown
from robotrl.spec import Spec
from robotrl.transforms import Affine, Transform

Activation = Literal["silu", "tanh", "relu", "elu"]
ACTIVATIONS: dict[str, type[nn.Module]] = {"silu": nn.SiLU, "tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}


class Mlp(nn.Module):
    """Linear layers with an activation between them.

    Args:
        inputs: width of the input.
        hidden: widths of the hidden layers.
        outputs: width of the output.
        last_gain: scale of the last layer's initial weights; small values start near zero output.
        activation: between the layers.

    Raises:
        ConfigError: unknown activation.
    """

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        last_gain: float = 1.0,
        activation: Activation = "silu",
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise unknown("activation", str(activation), ACTIVATIONS)
        widths = [inputs, *hidden]
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Linear(before, after), ACTIVATIONS[activation]()]
        last = nn.Linear(widths[-1], outputs)
        with torch.no_grad():
            last.weight *= last_gain
            last.bias.zero_()
        self.layers = nn.Sequential(*layers, last)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs) to (B, outputs)."""
        # under autocast the layers return bf16: give the output the input's dtype
        return self.layers(x).to(x.dtype)


def to_float32(x: Tensor) -> Tensor:
    """Convert 16-bit floats to float32, for the computation of probabilities; other dtypes are unchanged."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


class TimeFeatures(nn.Module):
    """Sines and cosines of the denoising time, frequencies 1 to `highest` in geometric steps.

    Args:
        width: number of features, even.
        highest: highest frequency in radians for each unit of t.
    """

    frequencies: Tensor

    def __init__(self, width: int, highest: float = 30.0) -> None:
        super().__init__()
        frequencies = torch.exp(torch.linspace(0.0, math.log(highest), width // 2))
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, t: Tensor) -> Tensor:
        """(B,) in [0, 1] to (B, width)."""
        angle = t[:, None] * self.frequencies
        return torch.cat([angle.sin(), angle.cos()], dim=1)


class Transforms(nn.Module):
    """A sequence of `robotrl.transforms` as a module: its constants are buffers, so they move and export with it."""

    def __init__(self, transforms: Sequence[Transform]) -> None:
        super().__init__()
        self._kinds: list[tuple[str, bool]] = []
        for index, transform in enumerate(transforms):
            affine = isinstance(transform, Affine)
            a, b = transform.constants
            self.register_buffer(f"a{index}", torch.tensor(a, dtype=torch.float32), persistent=False)
            self.register_buffer(f"b{index}", torch.tensor(b, dtype=torch.float32), persistent=False)
            self._kinds.append((transform.key, affine))

    def replace(self, transforms: Sequence[Transform]) -> None:
        """Replace the constants by those of other transforms of the same kinds, in place.

        Raises:
            ValueError: the kinds or keys differ.
        """
        kinds = [(transform.key, isinstance(transform, Affine)) for transform in transforms]
        if kinds != self._kinds:
            raise ValueError(f"transforms {kinds} are not of the kinds {self._kinds}")
        for index, transform in enumerate(transforms):
            for name, constants in zip("ab", transform.constants, strict=True):
                buffer = self.get_buffer(f"{name}{index}")
                buffer.copy_(torch.tensor(constants, dtype=buffer.dtype))

    def forward(self, arrays: dict[str, Tensor]) -> dict[str, Tensor]:
        """Apply all transforms in order."""
        out = dict(arrays)
        for index, (key, affine) in enumerate(self._kinds):
            a, b = self.get_buffer(f"a{index}"), self.get_buffer(f"b{index}")
            x = out[key]
            out[key] = x * a + b if affine else torch.minimum(torch.maximum(x, a), b)
        return out


def flat_width(observation_spec: dict[str, Spec]) -> int:
    """Total size of an observation's vectors and lists of vectors.

    Raises:
        ValueError: an array of the observation is neither.
    """
    for key, spec in observation_spec.items():
        if len(spec.shape) not in (1, 2):
            raise ValueError(
                f"observation {key!r} is {spec.dtype} of shape {spec.shape}: expected a vector, shape (D,), a list of"
                " vectors, shape (K, D), or a picture of bytes, uint8 of shape (h, w, channels)"
            )
    return sum(math.prod(spec.shape) for spec in observation_spec.values())
