"""Settings of the process that infers, which it reads from standard input. Needs no onnxruntime."""

from __future__ import annotations

from dataclasses import dataclass

from robotrl.deploy.buffers import Runtime


@dataclass(frozen=True)
class WorkerCfg:
    """Settings of the process that infers.

    Args:
        link: name of the `InferenceLink`.
        robot_link: name of the robot's `Link`, whose cameras are read.
        bundle: the bundle's directory.
        seed: seed of the sampler's noise.
        url: address of a policy server that infers; None infers here.
        token: its token.
        tls_ca: certificate to trust for it.
        runtime: what computes the graph here, see `Controller.load`.
        steer: use the bundle's steering graph, where it has one.
    """

    link: str
    robot_link: str
    bundle: str
    seed: int
    url: str | None = None
    token: str | None = None
    tls_ca: str | None = None
    runtime: Runtime = "python"
    steer: bool = True
