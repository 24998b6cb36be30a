"""Weights on their way to workers: what is sent, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from robotrl.cluster.weights import BLOCK, WeightPublisher, WeightReceiver, flat, layout_of, write_into
from robotrl.errors import DataError

SIDE = 128
"""A layer of SIDE x SIDE float32 has four blocks."""


class Net(nn.Module):
    """Weights of several dtypes, a buffer and a number of no dimension."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(nn.Linear(SIDE, SIDE, bias=False) for _ in range(4))
        self.brain = nn.Parameter(torch.randn(3).to(torch.bfloat16))
        self.register_buffer("count", torch.tensor(seed))


def same(a: nn.Module, b: nn.Module) -> bool:
    mine, theirs = a.state_dict(), b.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_a_vector_holds_every_parameter_and_buffer():
    one, other = Net(1), Net(2)
    assert flat(one).size % BLOCK == 0 and layout_of(one) == layout_of(other)
    assert not same(one, other)
    write_into(other, flat(one))
    assert same(one, other)


def test_only_the_blocks_that_changed_are_sent():
    network, worker = Net(1), Net(2)
    publisher, receiver = WeightPublisher(), WeightReceiver(worker)
    receiver.take(publisher.publish(network, None).message(None))
    assert same(network, worker) and receiver.version == 1
    with torch.no_grad():
        # the third layer begins at the block 8; its row 32 at the second block of the layer
        network.layers[2].weight[32, 0] += 1.0
    message = publisher.publish(network, None).message(receiver.version)
    assert message.base == 1 and message.blocks.tolist() == [9] and message.data.nbytes == BLOCK
    receiver.take(message)
    assert same(network, worker) and receiver.version == 2


def test_a_worker_of_another_version_gets_the_whole_vector_and_so_does_one_where_all_changed():
    network = Net(1)
    publisher = WeightPublisher()
    publisher.publish(network, None)
    with torch.no_grad():
        network.layers[0].weight[0, 0] += 1.0
    second = publisher.publish(network, None)
    assert second.message(1).base == 1
    assert second.message(None).base is None and second.message(0).data.nbytes == flat(network).nbytes
    with torch.no_grad():
        for layer in network.layers:
            layer.weight += 1.0
    assert publisher.publish(network, None).message(2).base is None


def test_changes_of_another_version_and_altered_bytes_are_refused():
    network, worker = Net(1), Net(2)
    publisher, receiver = WeightPublisher(), WeightReceiver(worker)
    first = publisher.publish(network, None)
    with torch.no_grad():
        network.brain[0] += 1.0
    changes = publisher.publish(network, None).message(1)
    with pytest.raises(DataError, match="version 1: expected changes of version None"):
        receiver.take(changes)
    receiver.take(first.message(None))
    altered = changes._replace(data=np.where(np.arange(changes.data.size) == 5, 77, changes.data).astype(np.uint8))
    with pytest.raises(DataError, match="version 2 have the hash"):
        receiver.take(altered)
    # what was written by halves is no base: the next message must be whole
    assert receiver.version is None
    receiver.take(publisher.publish(network, None).message(receiver.version))
    assert same(network, worker)


def test_weights_that_a_worker_has_are_not_written_again():
    network, worker = Net(1), Net(2)
    publisher, receiver = WeightPublisher(), WeightReceiver(worker)
    first = publisher.publish(network, None)
    receiver.take(first.message(None))
    with torch.no_grad():
        worker.brain += 1.0
    receiver.take(first.message(1))
    assert not same(network, worker)
