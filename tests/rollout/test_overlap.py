"""Chunks that overlap, by hand: which actions are executed, and what the next chunk is given."""

from __future__ import annotations

import pytest
import torch

from robotrl.errors import ConfigError
from robotrl.rollout.overlap import Overlap
from robotrl.spec import COMMITTED, COMMITTED_MASK, overlap_weights

H, D = 5, 2


def seen(committed: list[float], delay: list[int]) -> dict[str, torch.Tensor]:
    mask = torch.tensor([[float(i < d) for i in range(D)] for d in delay])
    actions = torch.tensor(committed).view(len(delay), D) * mask
    return {"state": torch.zeros(len(delay), 1), COMMITTED: actions, COMMITTED_MASK: mask}


def test_the_first_chunk_continues_what_the_sim_says_alone() -> None:
    overlap = Overlap(2, H, D, 1, torch.device("cpu"))
    obs = seen([7.0, 8.0, 9.0, 0.0], [0, 1])
    given = overlap.given(obs, torch.tensor([0, 1]))
    assert given[COMMITTED_MASK].tolist() == [[0.0, 0.0], [1.0, 0.0]]
    assert given[COMMITTED].tolist() == [[0.0, 0.0], [9.0, 0.0]]
    chunk = torch.arange(2.0 * H).view(2, H, 1)
    # without delay the actions 0 to 2, with a delay of one step 1 to 3
    assert overlap.take(obs, torch.tensor([0, 1]), chunk)[..., 0].tolist() == [[0.0, 1.0, 2.0], [6.0, 7.0, 8.0]]


def test_later_chunks_continue_the_rest_of_the_plan_softly() -> None:
    overlap = Overlap(2, H, D, 1, torch.device("cpu"))
    obs = seen([0.0, 0.0, 0.0, 0.0], [0, 1])
    overlap.take(obs, torch.tensor([0, 1]), torch.arange(2.0 * H).view(2, H, 1))
    # three steps later: the plans of env 0 go on with 3 and 4; of env 1 with 8, which is on its way, and 9
    obs = seen([0.0, 0.0, 8.0, 0.0], [0, 1])
    given = overlap.given(obs, torch.tensor([1, 0]))
    assert given[COMMITTED].tolist() == [[8.0, 9.0], [3.0, 4.0]]
    expected = torch.tensor([overlap_weights(1, D, D), overlap_weights(0, D, D)])
    assert torch.equal(given[COMMITTED_MASK], expected) and given[COMMITTED_MASK][0, 0] == 1.0
    # a new episode forgets it
    overlap.begin(torch.tensor([0]))
    assert overlap.given(obs, torch.tensor([0]))[COMMITTED].tolist() == [[0.0, 0.0]]


def test_a_sim_that_observes_other_actions_is_refused() -> None:
    overlap = Overlap(1, H, 3, 1, torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"perturb\.committed_steps is 2: expected 3, the policy's overlap"):
        overlap.given(seen([0.0, 0.0], [0]), torch.tensor([0]))
    with pytest.raises(ConfigError, match=r"perturb\.committed_steps is 0: expected 3"):
        overlap.given({"state": torch.zeros(1, 1)}, torch.tensor([0]))
