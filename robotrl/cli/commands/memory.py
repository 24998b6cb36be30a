"""`robotrl memory`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from robotrl.cli.commands.parsing import at_least, parse


@dataclass(frozen=True)
class Args:
    """Estimate the memory for fine-tuning a policy, without loading or building it.

    Weights and optimizer state of a published network are told at once; an update is worked out after that.
    """

    policy: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="POLICY")]
    """openvla, smolvla or pi0 at published size on the tabletop, or the path of a run or checkpoint."""
    rows: int = 8
    """Rows per backward pass: algo.microbatch, or the minibatch."""
    rank: int = 0
    """Rank of the adapters, as lora.rank; 0 trains all trainable weights."""
    targets: tuple[str, ...] = ("all",)
    """Layers with adapters, as lora.targets."""
    heads: tuple[str, ...] = ()
    """Layers trained in full, as lora.heads."""
    steps: int = 1
    """Denoising steps per backward pass: those of the chain for a policy gradient through it, 1 for cloning."""
    bf16_base: bool = False
    """Keep frozen weights in bf16 (16 bits), as lora.bf16_base."""
    bf16: bool = False
    """Compute the networks in bf16 (16 bits), as algo.bf16."""
    processes: int = 1
    """Number of processes over which gradients and optimizer states are sharded (fsdp); figures are per process."""


def main(argv: Sequence[str]) -> int:
    """Run the command."""
    args = parse(Args, "robotrl memory", argv)
    for option, value, low in (
        ("--rows", args.rows, 1),
        ("--steps", args.steps, 1),
        ("--rank", args.rank, 0),
        ("--processes", args.processes, 1),
    ):
        at_least(option, value, low)
    from robotrl.memory_estimate.published import check_name, summary_line

    stored = Path(args.policy).exists()
    if not stored:
        # before torch is imported, which takes seconds
        check_name(args.policy)
        print(summary_line(args.policy), flush=True)
        print("working out an update, which takes some 10 to 60 s", file=sys.stderr, flush=True)
    from robotrl.config import LoraCfg
    from robotrl.memory_estimate.estimate import Load, described, estimate_memory, on_meta_device, stand_in_adapters
    from robotrl.policies.networks.activation_checkpointing import recompute
    from robotrl.run.policy_checkpoint import describe

    if stored:
        description = describe(args.policy).description
        kind, make = description["kind"], partial(described, description)
    else:
        from robotrl.memory_estimate.model_sizes import interface, published

        kind, make = "", partial(published, args.policy, interface(args.policy))
    with on_meta_device(kind):
        policy = make()
        if args.rank:
            stand_in_adapters(
                policy, LoraCfg(args.rank, targets=args.targets, heads=args.heads, bf16_base=args.bf16_base)
            )
        load = Load(args.rows, args.steps, bf16=args.bf16, processes=args.processes)
        print(f"as it is:   {estimate_memory(policy, load, policy.observation_spec).line()}", flush=True)
        recompute(policy)
        print(f"recomputed: {estimate_memory(policy, load, policy.observation_spec).line()}")
    return 0
