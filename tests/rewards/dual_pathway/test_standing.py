"""Which step an answer stands for, by hand: two envs, answers that stand for three further steps."""

from __future__ import annotations

import numpy as np
import torch

from robotrl.rewards.dual_pathway.standing import Cells, StandingAnswers

ENVS, KEPT, AGE = 2, 20, 3


def of(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers)


def answered(path: StandingAnswers, steps: int, env: int = 0) -> list[float | None]:
    """Answers of the first steps of an env."""
    found = path.at(Cells(torch.arange(steps), torch.full((steps,), env)))
    return [None if np.isnan(x) else round(x, 3) for x in found.tolist()]


def test_requests_of_one_batch_in_any_order() -> None:
    path = StandingAnswers(ENVS, KEPT, AGE)
    for step in range(6):
        path.push(step)
    # pictures 3 and 1 of env 0, decided late and in the wrong order
    path.ask(of(3, 1).long(), of(0, 0).long(), end=6)
    cells = path.take(of(1, 3).long(), of(0, 0).long(), of(0.1, 0.3), end=6)
    assert sorted(cells.step.tolist()) == [1, 2, 3, 4, 5] and set(cells.env.tolist()) == {0}
    assert answered(path, 6) == [None, 0.1, 0.1, 0.3, 0.3, 0.3]
    assert answered(path, 6, env=1) == [None] * 6
    path.push(6)
    path.push(7)  # too old for picture 3
    assert answered(path, 8)[6:] == [0.3, None]
    assert path.age(Cells(of(2, 6, 7).long(), of(0, 0, 0).long())).tolist() == [1, 3, 0]


def test_an_answer_reaches_no_other_episode() -> None:
    path = StandingAnswers(ENVS, KEPT, AGE)
    path.ask(of(0).long(), of(0).long(), end=0)
    path.push(0)
    path.push(1)
    path.forget(torch.tensor([True, False]), 2)
    path.push(2)
    # late requests and answers of the episode that is over
    path.ask(of(1).long(), of(0).long(), end=3)
    path.take(of(0, 1).long(), of(0, 0).long(), of(0.5, 0.7), end=3)
    path.push(3)
    assert answered(path, 4) == [0.5, 0.7, None, None]


def test_the_last_known_answer_stands_until_a_newer_one_comes() -> None:
    path = StandingAnswers(ENVS, KEPT, AGE)
    path.ask(of(0).long(), of(1).long(), end=0)
    path.take(of(0).long(), of(1).long(), of(0.2), end=0)
    path.push(0)
    path.ask(of(1).long(), of(1).long(), end=1)
    path.push(1)
    assert answered(path, 2, env=1) == [0.2, 0.2]
    assert path.refers(Cells(of(1).long(), of(1).long())).tolist() == [True]
    path.take(of(1).long(), of(1).long(), of(0.9), end=2)
    assert answered(path, 2, env=1) == [0.2, 0.9]


def test_a_state_goes_on_under_other_numbers() -> None:
    path, again = StandingAnswers(ENVS, KEPT, AGE), StandingAnswers(ENVS, KEPT, AGE)
    path.ask(of(0).long(), of(0).long(), end=0)
    path.take(of(0).long(), of(0).long(), of(0.4), end=0)
    path.push(0)
    again.load(path.state(), shift=100)
    for step in range(1, 5):
        path.push(step)
        again.push(step + 100)
    expected = again.at(Cells(torch.arange(101, 105), torch.zeros(4, dtype=torch.int64)))
    assert answered(path, 5)[1:] == [0.4, 0.4, 0.4, None]
    assert [None if np.isnan(x) else round(x, 3) for x in expected.tolist()] == [0.4, 0.4, 0.4, None]
