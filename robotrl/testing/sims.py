"""Checks that every sim must pass, for what it declares; `CHECKS` lists them, each raises AssertionError.

A sim of another package is checked in the same way: `for check in CHECKS: check(SimCase(...))`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from robotrl.errors import NumericsError, RobotrlError
from robotrl.spec import HasState, HasStateIds, Split, Step, VecSim

SPLITS: tuple[Split, ...] = ("train", "val", "test")


class SimCase(NamedTuple):
    """A sim to be checked."""

    make: Callable[[int, int], Any]
    """Number of envs and seed to the sim."""
    make_short: Callable[[int, int], Any]
    """The same with episodes of at most some 20 steps."""
    most_envs: int = 256
    """Largest number of envs that a check makes, where each takes a process or a server."""


def random_actions(sim: VecSim, steps: int, seed: int = 0) -> Tensor:
    """Random actions (steps, N, A) within the bounds."""
    low, high = torch.tensor(sim.action_spec.low), torch.tensor(sim.action_spec.high)
    generator = torch.Generator().manual_seed(seed)
    drawn = low + (high - low) * torch.rand((steps, sim.num_envs, *sim.action_spec.shape), generator=generator)
    return drawn if sim.action_spec.choices is None else drawn.round()


def copied(out: Step) -> Step:
    """Copy of a step, which the next one does not overwrite."""
    return Step(
        {k: v.clone() for k, v in out.obs.items()},
        out.reward.clone(),
        out.terminated.clone(),
        out.truncated.clone(),
        {k: v.clone() for k, v in out.final_obs.items()},
        out.final_ids.clone(),
        {k: v.clone() for k, v in out.info.items()},
    )


def leaves(out: Step) -> list[Tensor]:
    """All tensors of a step."""
    flags = [out.reward, out.terminated, out.truncated]
    return [*out.obs.values(), *flags, *out.final_obs.values(), out.final_ids, *out.info.values()]


def play(sim: VecSim, actions: Tensor) -> list[Step]:
    """Copied steps under actions (T, N, A)."""
    return [copied(sim.step(action)) for action in actions]


def same(a: list[Step], b: list[Step]) -> bool:
    """True if all numbers of two trajectories are equal."""
    return len(a) == len(b) and all(
        torch.equal(p, q) for x, y in zip(a, b, strict=True) for p, q in zip(leaves(x), leaves(y), strict=True)
    )


def assert_same_obs(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    """Assert that two observations are equal."""
    assert a.keys() == b.keys()
    for key in a:
        assert torch.equal(a[key], b[key]), key


def declares(sim: Any, capability: type) -> bool:
    """True if the sim has a capability of `robotrl.spec`."""
    return isinstance(sim, capability)


def refused(call: Callable[[], Any], kind: type[Exception] = RobotrlError) -> str:
    """One-line message of the error that a call must raise."""
    try:
        call()
    except kind as error:
        assert "\n" not in str(error), f"an error of several lines: {error}"
        return str(error)
    raise AssertionError(f"expected a {kind.__name__}, nothing was raised")


def satisfies_the_protocol(case: SimCase) -> None:
    """The sim satisfies `VecSim`, and states its number of envs and a control period above 0, or none."""
    sim: Any = case.make(3, 0)
    assert isinstance(sim, VecSim)
    assert sim.num_envs == 3
    assert sim.control_dt_s is None or sim.control_dt_s > 0
    sim.close()


def shapes_types_and_bounds(case: SimCase) -> None:
    """All arrays have the shapes, types, devices and bounds that the specs state."""
    n = 5
    sim: Any = case.make_short(n, 0)
    records: list[dict[str, Tensor]] = [sim.reset(seed=1)]
    ended = 0
    for action in random_actions(sim, 60):
        out: Step = sim.step(action)
        records.append({k: v.clone() for k, v in out.obs.items()})
        records.append({k: v.clone() for k, v in out.final_obs.items()})
        assert (out.reward.shape, out.reward.dtype) == ((n,), torch.float32)
        assert (out.terminated.shape, out.terminated.dtype) == ((n,), torch.bool)
        assert (out.truncated.shape, out.truncated.dtype) == ((n,), torch.bool)
        assert out.final_ids.dtype == torch.int64
        assert torch.equal(out.final_ids, torch.nonzero(out.terminated | out.truncated)[:, 0])
        for value in out.final_obs.values():
            assert len(value) == len(out.final_ids)
        assert (out.info["success"].shape, out.info["success"].dtype) == ((n,), torch.bool)
        assert (out.info["state_id"].shape, out.info["state_id"].dtype) == ((n,), torch.int64)
        assert all(value.device == sim.device for value in leaves(out))
        ended += len(out.final_ids)
    assert ended, "no episode ended in 60 steps: make_short must have shorter ones"
    for record in records:
        _within_specs(sim, record)


def _within_specs(sim: VecSim, record: dict[str, Tensor]) -> None:
    assert set(record) == set(sim.observation_spec)
    for key, spec in sim.observation_spec.items():
        value = record[key]
        assert value.shape[1:] == spec.shape, key
        assert str(value.dtype) == f"torch.{spec.dtype}", key
        assert torch.isfinite(value).all(), key
        for column, name in enumerate(spec.names):
            assert (value[..., column] >= spec.low[column]).all(), name
            assert (value[..., column] <= spec.high[column]).all(), name


def same_seed_same_trajectory(case: SimCase) -> None:
    """Equal seeds give equal trajectories, on a used sim as on a new one; other seeds give others."""
    actions = random_actions(case.make(4, 0), 30)
    trajectories: list[list[Step]] = []
    sim: Any = None
    for seed in (7, 7, 8):
        sim = case.make_short(4, seed)
        sim.reset()
        trajectories.append(play(sim, actions))
    assert same(trajectories[0], trajectories[1]), "equal seeds differ"
    assert not same(trajectories[0], trajectories[2]), "different seeds give the same trajectory"
    sim.reset(seed=7)
    assert same(play(sim, actions), trajectories[0]), "reset(seed=...) on a used sim differs from a new sim"


def buffer_reuse_is_declared_truthfully(case: SimCase) -> None:
    """`buffers_are_reused` says whether the next step overwrites a step's tensors."""
    sim: Any = case.make_short(4, 0)
    sim.reset(seed=0)
    kept: list[Step] = []
    copies: list[Step] = []
    for action in random_actions(sim, 25):
        kept.append(sim.step(action))
        copies.append(copied(kept[-1]))
    pairs = [pair for a, b in zip(kept, copies, strict=True) for pair in zip(leaves(a), leaves(b), strict=True)]
    assert any(not torch.equal(a, b) for a, b in pairs) == sim.buffers_are_reused


def set_state_gives_the_observation_at_that_state(case: SimCase) -> None:
    """A restored sim shows what it showed there, and continues bit for bit (`HasState`)."""
    sim: Any = case.make_short(3, 0)
    if not declares(sim, HasState):
        return
    sim.reset(seed=2)
    out = play(sim, random_actions(sim, 5))[-1]
    state = {key: value.copy() for key, value in sim.get_state().items()}
    actions = random_actions(sim, 25, seed=1)
    after = play(sim, actions)
    assert_same_obs(sim.set_state(state), out.obs)
    assert same(play(sim, actions), after), "the restored sim continues differently"
    other: Any = case.make_short(3, 5)
    other.reset()
    other.set_state(state)
    assert same(play(other, actions), after), "a new sim with the restored state continues differently"


def get_state_is_a_copy(case: SimCase) -> None:
    """Steps do not change a state that was taken before (`HasState`)."""
    sim: Any = case.make(3, 0)
    if not declares(sim, HasState):
        return
    sim.reset(seed=2)
    state = sim.get_state()
    before = {key: value.copy() for key, value in state.items()}
    play(sim, random_actions(sim, 3))
    for key, value in state.items():
        assert np.array_equal(value, before[key]), key


def a_state_of_another_size_is_refused(case: SimCase) -> None:
    """A state of another number of envs, or with an array missing, is refused by name (`HasState`)."""
    sim: Any = case.make(3, 0)
    other: Any = case.make(4, 0)
    if not declares(sim, HasState):
        return
    sim.reset()
    other.reset()
    assert "state" in refused(lambda: sim.set_state(other.get_state()))
    state = sim.get_state()
    key = next(iter(state))
    del state[key]
    assert key in refused(lambda: sim.set_state(state))


def splits_are_disjoint(case: SimCase) -> None:
    """Training, validation and test starts are disjoint, 256 or more each (`HasStateIds`)."""
    sim: Any = case.make(1, 0)
    if not declares(sim, HasStateIds):
        return
    ranges = sorted((sim.state_ids(split) for split in SPLITS), key=lambda r: r.start)
    assert all(len(r) >= 256 and r.step == 1 for r in ranges)
    assert all(a.stop <= b.start for a, b in pairwise(ranges))


def training_draws_only_training_starts(case: SimCase) -> None:
    """Without a queue, starts are training ids, and nearly all different (`HasStateIds`)."""
    sim: Any = case.make(min(256, case.most_envs), 0)
    if not declares(sim, HasStateIds):
        return
    ids: list[int] = []
    seed: int | None = 4
    for _ in range(max(256 // case.most_envs // 4, 1)):
        sim.reset(seed=seed)
        ids += sim.step(random_actions(sim, 1)[0]).info["state_id"].tolist()
        seed = None
    train = sim.state_ids("train")
    assert all(i in train for i in ids)
    assert len(set(ids)) > 0.97 * len(ids)


def bad_actions_are_refused_before_anything_moves(case: SimCase) -> None:
    """An action of a wrong shape or with a value that is not finite is refused by name; the sim does not move."""
    sim: Any = case.make(3, 0)
    start = {key: value.clone() for key, value in sim.reset(seed=0).items()}
    width = sim.action_spec.shape[-1]
    shape = refused(lambda: sim.step(torch.zeros(3, width + 1)))
    assert f"(3, {width + 1})" in shape
    assert f"(3, {width})" in shape
    for bad in (float("nan"), float("inf")):
        action = torch.zeros(3, width)
        action[1, width - 1] = bad
        text = refused(lambda action=action: sim.step(action), NumericsError)
        assert "env 1" in text
        assert "step 0" in text
        assert sim.action_spec.names[width - 1] in text
    if declares(sim, HasState):
        assert_same_obs(sim.set_state(sim.get_state()), start)
    sim.step(torch.zeros(3, width))


def actions_are_clipped_to_their_bounds(case: SimCase) -> None:
    """Actions beyond their bounds act as the bound; choices that do not exist are refused."""
    found: list[list[Step]] = []
    for scale in (1.0, 50.0):
        sim = case.make(2, 0)
        sim.reset(seed=0)
        high = torch.tensor(sim.action_spec.high).expand(2, -1)
        if sim.action_spec.choices is not None:
            assert "expected a whole number from 0 to" in refused(
                lambda sim=sim, high=high: sim.step(high + 1), NumericsError
            )
            return
        found.append(play(sim, torch.stack([high * scale] * 3)))
    assert same(*found)


CHECKS: tuple[Callable[[SimCase], None], ...] = (
    satisfies_the_protocol,
    shapes_types_and_bounds,
    same_seed_same_trajectory,
    buffer_reuse_is_declared_truthfully,
    set_state_gives_the_observation_at_that_state,
    get_state_is_a_copy,
    a_state_of_another_size_is_refused,
    splits_are_disjoint,
    training_draws_only_training_starts,
    bad_actions_are_refused_before_anything_moves,
    actions_are_clipped_to_their_bounds,
)
"""All checks of a sim."""
