"""The replay's content: chunks by hand, and against a straightforward reference under whatever order of events."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tests.kits.learner_kit as learner_kit
import tests.kits.replay_kit as kit
from robotrl.errors import ConfigError
from robotrl.replay.buffer import SOURCES, Replay
from tests.kits.paths_kit import ROOT
from tests.kits.replay_kit import Reference, Row, record

GAMMA = 0.5
"""A power of two, so that the sums below are exact."""


def numbers(replay: Replay, horizon: int) -> list[int]:
    return replay.indices(horizon).tolist()


def test_a_chunk_that_an_end_cuts_short():
    """Steps 0, 1, 2 | 3, 4; step 2 fails, observed at the end as 50."""
    replay = kit.make(None, 1, 10)
    for row in (Row(0), Row(1), Row(2, terminated=True, final=50), Row(3), Row(4)):
        replay.add(record([row]))
    # step 3 needs steps 3, 4, 5 and the observation after them
    assert numbers(replay, 3) == [0, 1, 2]
    got = replay.view(torch.tensor([0, 1, 2]), 3, GAMMA)
    assert got.steps.tolist() == [3, 2, 1]
    assert got.valid.tolist() == [[True, True, True], [True, True, False], [True, False, False]]
    assert got.chunk[:, :, 0].tolist() == [[0.5, 1.5, 2.5], [1.5, 2.5, 2.5], [2.5, 2.5, 2.5]]
    # rewards are 0, 1/8, 2/8
    assert got.reward.tolist() == [0.5 / 8 + 0.25 * 2 / 8, 1 / 8 + 0.5 * 2 / 8, 2 / 8]
    assert got.discount.tolist() == [0, 0, 0]
    assert got.terminated.all()
    assert got.next_obs["state"][:, 0].tolist() == [50, 50, 50]
    assert got.obs["state"][:, 0].tolist() == [0, 1, 2]
    assert got.weight.tolist() == [1, 1, 1]
    assert replay.view(torch.tensor([0]), 2, GAMMA).next_obs["state"][0, 0] == 2


@pytest.mark.parametrize(("terminated", "truncated", "discount"), [(0, 1, 0.25), (1, 0, 0.0), (1, 1, 0.0)])
def test_a_time_out_is_bootstrapped_and_a_failure_is_not(terminated, truncated, discount):
    replay = kit.make(None, 1, 10)
    for row in (Row(0), Row(1, bool(terminated), bool(truncated), final=77), Row(2), Row(3)):
        replay.add(record([row]))
    got = replay.view(torch.tensor([0]), 3, GAMMA)
    assert got.discount.item() == discount
    assert got.next_obs["state"][0, 0] == 77
    assert (got.terminated.item(), got.truncated.item()) == (terminated, truncated)


def test_a_ring_that_is_full_forgets_its_oldest_steps_and_no_chunk_crosses_its_seam():
    replay = kit.make(None, 2, 8)
    reference = Reference(2, 8)
    for t in range(6):
        rows = [Row(10 * t), Row(10 * t + 1)]
        replay.add(record(rows))
        reference.add(rows, [0, 1])
    assert len(replay) == 8
    # steps 2 to 5 are there; a chunk of 2 from step 4 would need step 6
    assert numbers(replay, 2) == [4, 6, 5, 7]
    assert numbers(replay, 4) == []
    reference.check(replay.view(torch.tensor([4, 6, 5, 7]), 2, GAMMA), 2, GAMMA)
    for gone in (0, 3, 8, 12, 13, 400):
        with pytest.raises(ConfigError, match=rf"replay index {gone}, horizon 2: expected a stored step"):
            replay.view(torch.tensor([4, gone]), 2, GAMMA)


def test_an_abandoned_episode_has_no_chunk_across_it_and_a_closed_one_is_a_time_out():
    replay = kit.make(None, 2, 20)
    for t in range(2):
        replay.add(record([Row(10 * t), Row(10 * t + 1)]))
    replay.cut([0])
    replay.close_episode([1], {key: torch.from_numpy(x[None]) for key, x in kit.seen(99).items()})
    for t in range(2, 5):
        replay.add(record([Row(10 * t), Row(10 * t + 1)]))
    assert numbers(replay, 1) == [0, 4, 6, 1, 3, 5, 7]
    assert numbers(replay, 2) == [4, 1, 3, 5]
    got = replay.view(torch.tensor([3]), 2, GAMMA)
    assert (got.truncated.item(), got.discount.item(), got.next_obs["state"][0, 0].item()) == (True, 0.5, 99)


def test_a_chunk_that_a_person_took_over_is_no_decision_of_the_noise():
    replay = kit.make(None, 1, 6)
    for source in ("rollout", "human", "rollout", "rollout"):
        replay.add(record([Row(3)])._replace(source=source))
    assert numbers(replay, 1) == [0, 1, 2]
    assert replay.indices(1, decisions=True).tolist() == [0, 2]


def test_what_is_not_said_has_its_default():
    replay = kit.make(None, 1, 4)
    row = record([Row(3, terminated=True)])._replace(source="model", decision=None, extras={}, log_prob=None, cost=None)
    replay.add(row)
    got = replay.view(replay.indices(1, decisions=True), 1, GAMMA)
    assert got.source.tolist() == [SOURCES.index("model")]
    assert got.extras["noise"].isnan().all()
    assert got.log_prob.isnan().all()
    assert got.cost.tolist() == [0]


@st.composite
def histories(draw):
    """Streams, steps each, and events: which streams take a step of which kind, are cut, or are closed."""
    streams = draw(st.integers(1, 3))
    some = st.sets(st.integers(0, streams - 1), min_size=1).map(sorted)
    everybody = st.just(list(range(streams)))
    which = st.one_of(everybody, everybody, everybody, some)
    kind = st.sampled_from(["add"] * 12 + ["cut", "close"])
    flags = st.lists(st.sampled_from([0, 0, 0, 0, 0, 1, 2, 3]), min_size=streams, max_size=streams)
    decisions = st.lists(st.booleans(), min_size=streams, max_size=streams)
    events = draw(st.lists(st.tuples(kind, which, flags, decisions), min_size=1, max_size=40))
    return streams, draw(st.integers(2, 9)), events, draw(st.integers(1, 4)), draw(st.booleans())


@given(histories())
@settings(max_examples=60, deadline=None)
def test_any_history_reads_as_the_reference_does(history):
    check_history(history, on_disk=False)


@given(histories())
@settings(max_examples=8, deadline=None)
def test_any_history_on_disk_reads_as_the_reference_does(history):
    check_history(history, on_disk=True)


def check_history(history, on_disk):
    streams, length, events, horizon, reopen = history
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "replay" if on_disk else None
        replay = kit.make(path, streams, length * streams, **({"slack": 2, "shard_bytes": 1} if on_disk else {}))
        reference = Reference(streams, length * streams)
        for number, (kind, which, flags, decisions) in enumerate(events):
            if kind == "add":
                rows = [
                    Row(8 * number + n, bool(f & 1), bool(f & 2), d, final=1000 + number)
                    for n, f, d in zip(which, flags, decisions, strict=False)
                ]
                replay.add(record(rows), None if len(which) == streams else which)
                reference.add(rows, which)
            elif kind == "cut":
                replay.cut(which)
                reference.cut(which)
            else:
                finals = [2000.0 + number + n for n in which]
                every = [kit.seen(x) for x in finals]
                last = {k: torch.from_numpy(np.stack([one[k] for one in every])) for k in kit.SPECS}
                replay.close_episode(which, last)
                reference.close(which, finals)
            if path and reopen and number % 7 == 6:
                replay.close()
                replay = Replay.open(path)
        assert len(replay) == len(reference)
        for decisions in (False, True):
            index = replay.indices(horizon, decisions)
            assert index.tolist() == reference.indices(horizon, decisions)
            reference.check(replay.view(index, horizon, GAMMA), horizon, GAMMA)
        replay.close()


def test_steps_of_one_stream_can_be_added_at_once():
    rows = [Row(t, terminated=t == 3, final=60) for t in range(6)]
    both = [kit.make(None, 2, 20) for _ in range(2)]
    both[0].add_run(record(rows), 1)
    for row in rows:
        both[1].add(record([row]), [1])
    index = both[0].indices(2)
    assert index.tolist() == both[1].indices(2).tolist() == [2 * t + 1 for t in range(4)]
    one, other = (replay.view(index, 2, GAMMA) for replay in both)
    for name in ("obs", "chunk", "reward", "next_obs", "terminated", "extras", "steps"):
        assert learner_kit.same(getattr(one, name), getattr(other, name))
    with pytest.raises(ConfigError, match="11 steps for one stream: the replay keeps 10 of each"):
        both[0].add_run(record([Row(t) for t in range(11)]))
    with pytest.raises(ConfigError, match="replay stream is 2: expected 0 to 1"):
        both[0].add_run(record(rows), 2)


def test_rewards_can_be_replaced():
    replay = kit.make(None, 1, 4)
    for t in range(6):
        replay.add(record([Row(t)]))
    replay.set_reward(torch.tensor([2, 3]), torch.tensor([4.0, 8.0]))
    assert replay.view(torch.tensor([2]), 2, GAMMA).reward.item() == 4 + 0.5 * 8
    with pytest.raises(ConfigError, match="replay index 1: expected a stored step"):
        replay.set_reward(torch.tensor([3, 1]), torch.tensor([1.0, 1.0]))
    with pytest.raises(ConfigError, match="reward of replay index 3 is nan: expected finite"):
        replay.set_reward(torch.tensor([3]), torch.tensor([float("nan")]))
    with pytest.raises(ConfigError, match=r"rewards are of shape \(1,\): expected \(2,\)"):
        replay.set_reward(torch.tensor([3, 4]), torch.tensor([1.0]))
    assert replay.view(torch.tensor([3]), 1, GAMMA).reward.item() == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action": torch.zeros(2, 1)}, r"replay action is of shape \(2, 1\): expected \(1, 1\)"),
        ({"reward": torch.zeros(1, 1)}, r"replay reward is of shape \(1, 1\): expected \(1,\)"),
        ({"decision": torch.ones(2, dtype=torch.bool)}, r"replay decision is of shape \(2,\)"),
        ({"obs": {"state": torch.zeros(1, 2)}}, "replay observation has state: expected state, eye"),
        ({"obs": {"stat": torch.zeros(1, 2)}}, "replay observation 'stat' is unknown: did you mean 'state'"),
        ({"extras": {"noisy": torch.zeros(1)}}, "replay extras 'noisy' is unknown: did you mean 'noise'"),
        ({"extras": {"noise": torch.zeros(1, 3, 1)}}, r"extras 'noise' is of shape \(1, 3, 1\): expected \(1, 2"),
        ({"final_ids": torch.tensor([], dtype=torch.int64)}, r"final_ids is \[\]: expected the rows that ended, \[0\]"),
        ({"final_obs": {}}, "replay final observation has nothing: expected state, eye"),
        ({"source": "robot"}, "replay source 'robot' is unknown: did you mean 'rollout'"),
    ],
)  # fmt: skip
def test_a_record_that_does_not_fit_is_refused_and_leaves_no_trace(change, message):
    replay = kit.make(None, 1, 4)
    with pytest.raises(ConfigError, match=message):
        replay.add(record([Row(0, terminated=True)])._replace(**change))
    assert len(replay) == 0


@pytest.mark.parametrize(
    ("streams", "capacity", "message"),
    [
        (0, 10, "replay streams is 0: expected 1 or more"),
        (4, 7, "replay capacity is 7: expected 2 steps or more for each of 4 streams"),
        (1, 2**31, "replay capacity with slack is 2147483648: expected at most 2147483647"),
    ],
)
def test_sizes_out_of_range_are_refused(streams, capacity, message):
    with pytest.raises(ConfigError, match=message):
        kit.make(None, streams, capacity)


def test_last_observations_take_no_more_places_than_there_are_episode_ends():
    """Places are used again when the steps they belong to are overwritten."""
    replay = kit.make(None, 2, 20)
    for t in range(200):
        replay.add(record([Row(2 * t, t % 5 == 4, final=t), Row(2 * t + 1)]))
    assert replay.ring.side_used == 2


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_closed_replay_says_so(tmp_path, on_disk):
    replay = kit.make(tmp_path / "replay" if on_disk else None, 1, 4)
    kit.walk(replay, 4)
    index = replay.indices(1)
    replay.close()
    for use in (lambda: replay.add(record([Row(0)])), lambda: replay.view(index, 1, GAMMA)):
        with pytest.raises(ConfigError, match="the replay is closed: expected an open one"):
            use()


def test_the_page_shows_what_happens(capsys):
    page = (ROOT / "docs" / "replay.md").read_text()
    code, shown = re.findall(r"```(?:python)?\n(.*?)```", page, re.DOTALL)[:2]
    exec(compile(code, "replay.md", "exec"), {"__name__": "replay_page"})
    assert capsys.readouterr().out == shown
