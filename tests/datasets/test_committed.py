"""Rows of delayed chunks by hand."""

from __future__ import annotations

import torch

from robotrl.datasets.committed import delayed_rows
from robotrl.spec import COMMITTED, COMMITTED_MASK


def test_rows_by_hand() -> None:
    chunk = torch.tensor([[[1.0], [2.0], [3.0], [4.0]]]).expand(3, -1, -1)
    valid = torch.tensor([[True, True, True, False]]).expand(3, -1)
    rows = delayed_rows(chunk, valid, torch.tensor([0, 1, 2]), 2)
    assert rows["chunk"].squeeze(-1).tolist() == [[1.0, 2.0], [2.0, 3.0], [3.0, 4.0]]
    assert rows["valid"].tolist() == [[True, True], [True, True], [True, False]]
    assert rows[f"obs/{COMMITTED}"].tolist() == [[0.0, 0.0], [1.0, 0.0], [1.0, 2.0]]
    assert rows[f"obs/{COMMITTED_MASK}"].tolist() == [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]
