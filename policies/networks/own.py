"""Networks of a policy's config: an MLP, or a class of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from robotrl.errors import ConfigError
from robotrl.policies.networks.mlp import Activation, Mlp
from robotrl.utils.user_module import user_module

EXPECTED = "MODULE:CLASS of a torch.nn.Module, called with the widths of input and output"


def network(
    own: str | None, inputs: int, hidden: Sequence[int], outputs: int, last_gain: float, activation: Activation
) -> nn.Module:
    """Network that maps a context (B, inputs) to (B, outputs).

    Args:
        own: "MODULE:CLASS" of one's own `torch.nn.Module`, which is called with (inputs, outputs); None makes an MLP.
        inputs: width of the input.
        hidden: widths of the MLP's hidden layers.
        outputs: width of the output.
        last_gain: scale of the initial weights of the MLP's last layer.
        activation: activation function of the MLP.

    Raises:
        ConfigError: there is no such class, it makes no module, or the module's output has another shape.
    """
    if own is None:
        return Mlp(inputs, hidden, outputs, last_gain, activation)
    made = _made(own, inputs, outputs)
    training = made.training
    with torch.no_grad():
        found: Any = made.eval()(torch.zeros(2, inputs))
    made.train(training)
    shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
    if shape != (2, outputs):
        raise ConfigError(f"policy.net {own!r} maps (2, {inputs}) to {shape}: expected (2, {outputs})")
    _check_rows(own, made, inputs)
    return made


def _check_rows(own: str, made: nn.Module, inputs: int) -> None:
    """Check that a row's output in training depends on nothing but the row, or no ratio of probabilities begins at 1.

    Raises:
        ConfigError: it is random (dropout), or depends on the other rows (batch normalization).
    """
    rows = torch.linspace(-1.0, 1.0, 64 * inputs).view(64, inputs)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        first, again, few = made(rows), made(rows), made(rows[:32])
    if not torch.equal(first, again):
        raise ConfigError(f"policy.net {own!r} gives other outputs for equal inputs: expected none of dropout or noise")
    if not torch.allclose(first[:32], few, atol=1e-5):
        raise ConfigError(
            f"policy.net {own!r} gives a row other outputs beside other rows: expected no batch normalization; layer"
            " normalization works"
        )


def _made(own: str, inputs: int, outputs: int) -> nn.Module:
    module, colon, name = own.partition(":")
    if not colon or not name:
        raise ConfigError(f"policy.net is {own!r}: expected {EXPECTED}")
    make = vars(user_module(module, f"policy.net is {own!r}")).get(name)
    if not callable(make):
        raise ConfigError(f"policy.net is {own!r}: {module} has no {name}: expected {EXPECTED}")
    try:
        made: Any = make(inputs, outputs)
    except Exception as error:  # third-party code
        raise ConfigError(f"policy.net {own!r} raised {type(error).__name__}: {error}; expected {EXPECTED}") from error
    if not isinstance(made, nn.Module):
        raise ConfigError(f"policy.net {own!r} makes a {type(made).__name__}: expected {EXPECTED}")
    return made
