"""Registry of the networks of generative policies: from a config's network name and widths to a module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import nn

from robotrl.errors import ConfigError, unknown
from robotrl.policies.networks.chunk_nets import ChunkMlp, ChunkResidualMlp, ChunkSizes
from robotrl.policies.networks.transformer import ChunkTransformer
from robotrl.policies.networks.unet import ChunkUnet

NetworkName = Literal["mlp", "residual", "unet", "transformer"]
NETWORKS: dict[str, Callable[[ChunkSizes], nn.Module]] = {
    "mlp": ChunkMlp,
    "residual": ChunkResidualMlp,
    "unet": ChunkUnet,
    "transformer": ChunkTransformer,
}


def make_chunk_net(name: str, sizes: ChunkSizes) -> nn.Module:
    """Build the network called `name`.

    Raises:
        ConfigError: unknown name, or widths that this network does not support.
    """
    if name not in NETWORKS:
        raise unknown("policy.network", name, NETWORKS)
    if not sizes.hidden or min(sizes.hidden) < 1:
        raise ConfigError(f"policy.hidden is {sizes.hidden}: expected one width or more, each 1 or more")
    return NETWORKS[name](sizes)
