"""Policies with a reflex, their bundles, and random risk graphs."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

import tests.kits.deploy_kit as kit
from robotrl.deploy.export import export

FAST_MPS = 0.3


class Reflexes(NamedTuple):
    threshold: float = 0.5
    recovery: tuple[float, ...] = (0.0, 1.0)
    columns: tuple[str, ...] = ("cart_vel",)
    servo_dt_s: float | None = 0.005


class Fast(nn.Module):
    """Finds it risky to be faster than `FAST_MPS` one control period of a push later; a braking push is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 2), nn.Linear(2, 1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.zero_()
            self.first.weight[:, 0] = torch.tensor([100.0, -100.0])
            self.first.weight[:, 1] = torch.tensor([2.0, -2.0])
            self.last.weight.fill_(1.0)
            self.last.bias.fill_(-100 * FAST_MPS)

    def forward(self, measured: Tensor, action: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(torch.cat([measured, action], dim=1)))).squeeze(1)


class Watched(kit.SteerToGoal):
    """Pushes the cart to its goal, with a reflex that lets it roll where it is fast."""

    def __init__(self, cfg: Reflexes = Reflexes()) -> None:  # noqa: B008
        super().__init__()
        self.risk, self.cfg = Fast(), cfg


def watched_bundle(path: Path) -> Path:
    """A bundle of `Watched` that waits for the cart's observations."""
    export(Watched(), path, observations=kit.recorded())
    kit.wait_for_observations(path)
    return path


def random_perceptron(rng: np.random.Generator, measured: int, actions: int, gain: float = 1.0) -> bytes:
    """A risk graph as the exporter writes a critic's, of random weights and widths.

    Args:
        rng: source of the weights.
        measured: S.
        actions: A.
        gain: standard deviation of the logit, about.
    """
    constants: dict[str, np.ndarray] = {}

    def constant(name: str, *shape: int, scale: float = 1.0) -> str:
        constants[name] = np.asarray(rng.normal(0, scale, shape), np.float32)
        return name

    widths = [measured + actions, *(int(rng.integers(1, 70)) for _ in range(int(rng.integers(1, 4)))), 1]
    constants["least"], constants["most"] = np.float32(-3).reshape(()), np.float32(3).reshape(1)
    constants["axes"] = np.int64([1])
    nodes = [
        helper.make_node("Sub", ["measured", constant("offset", measured)], ["centered"]),
        helper.make_node("Mul", ["centered", constant("scale", measured)], ["scaled"]),
        helper.make_node("Clip", ["scaled", "least", "most"], ["seen"]),
        helper.make_node("Add", ["action", constant("middle", 1, actions)], ["moved"]),
        helper.make_node("Mul", [constant("half"), "moved"], ["asked"]),
        helper.make_node("Concat", ["seen", "asked"], ["row0"], axis=1),
    ]
    for i, (k, n) in enumerate(itertools.pairwise(widths)):
        last, turned = i == len(widths) - 2, bool(rng.integers(2))
        size = (gain if last else 1.5) / np.sqrt(k)
        weights = constant(f"weights{i}", *((n, k) if turned else (k, n)), scale=size)
        bias = [constant(f"bias{i}", *((n,) if turned else (1, n)), scale=0.3)] if rng.random() < 0.8 else []
        nodes.append(helper.make_node("Gemm", [f"row{i}", weights, *bias], [f"sum{i}"], transB=int(turned)))
        if not last:
            nodes.append(helper.make_node("Relu", [f"sum{i}"], [f"row{i + 1}"]))
    nodes.append(helper.make_node("Squeeze", [f"sum{len(widths) - 2}", "axes"], ["logit"]))
    nodes.append(helper.make_node("Sigmoid", ["logit"], ["risk"]))
    graph = helper.make_graph(
        nodes,
        "risk",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, size))
            for name, size in (("measured", measured), ("action", actions))
        ],
        [helper.make_tensor_value_info("risk", TensorProto.FLOAT, (1,))],
        [numpy_helper.from_array(values, name) for name, values in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    onnx.checker.check_model(model)
    return model.SerializeToString()
