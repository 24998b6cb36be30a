"""Labels, refusals and contents of logs, on numbers worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from robotrl.datasets.reader import read_dataset
from robotrl.improve.holdings import departures, evenly, holdings, nearest_distance, start_elements, visited
from robotrl.improve.logged import LogBook
from robotrl.improve.methods.base import HeldOutQuality
from robotrl.improve.methods.pa_rl import AUC, EPISODES, GAIN, RANK, quality_of
from robotrl.improve.pieces import label, success_rewards, write_good, write_pieces
from robotrl.improve.refusals import critic_refusal, data_refusal
from robotrl.improve.target import read_target
from robotrl.registry import SIMS
from tests.kits import walk_sim
from tests.kits.improve_kit import SIM, mixed, walked, walker

SPECS = walk_sim.make(1, 0).observation_spec


def by_person(episode, *frames: int):
    person = np.zeros(len(episode.actions), np.bool_)
    person[list(frames)] = True
    return episode._replace(person=person)


def test_an_episode_ends_in_a_failure_where_a_person_takes_over():
    # from 0 m by 0.5 m: four steps, a success
    plain = walked(2, 0.5)
    (whole,) = label(plain)
    assert (whole.first, whole.end, whole.success, whole.person) == (0, 4, True, 0)
    first, second = label(by_person(plain, 1, 2))
    assert (first.first, first.end, first.success, first.truncated, first.person) == (0, 1, False, False, 0)
    assert (second.first, second.end, second.success, second.person) == (1, 4, True, 2)
    pieces = label(by_person(walked(0, 0.1), 0, 3, 4))
    assert [(p.first, p.end, p.success, p.truncated, p.person) for p in pieces] == [
        (0, 3, False, False, 1),
        (3, 6, False, True, 2),
    ]
    assert success_rewards(3, True).tolist() == [0, 0, 1] and not success_rewards(3, False).any()


def test_a_clone_repeats_successes_and_what_a_person_did(tmp_path, monkeypatch):
    monkeypatch.setitem(SIMS._rows, SIM, "tests.kits.walk_sim:make")
    target = read_target(walker(tmp_path / "run", 0.2))
    episodes = [walked(2, 0.5), by_person(walked(0, 0.1), 3, 4), walked(1, 0.1)]
    write_pieces(tmp_path / "pieces", episodes, target)
    pieces = read_dataset(tmp_path / "pieces")
    assert pieces.episodes["length"].tolist() == [4, 3, 3, 6]
    assert pieces.episodes["success"].tolist() == [True, False, False, False]
    assert pieces.frames("next.reward").tolist() == [0, 0, 0, 1] + 12 * [0]
    assert pieces.frames("next.truncated").reshape(-1)[pieces.offsets[1:] - 1].tolist() == [False, False, True, True]
    good = read_dataset(write_good(tmp_path / "good", tmp_path / "pieces"))
    assert good.episodes["length"].tolist() == [4, 2] and good.episodes["state_id"].tolist() == [2, 0]
    np.testing.assert_array_equal(good.frames("observation.walk")[4:], episodes[1].obs["walk"][3:5])


def test_logs_that_hold_nothing_to_learn_are_refused():
    assert data_refusal(mixed(40)) is None
    assert data_refusal(mixed(19)).kind == "too few episodes"
    good, bad = [walked(3, 0.5) for _ in range(30)], [walked(0, 0.1) for _ in range(30)]
    assert data_refusal(good).kind == "all successes" and data_refusal(bad).kind == "all failures"
    assert "28 of 30 episodes are failures" in data_refusal(bad[:28] + good[:2]).text
    # a person's help in a success is a failure of the policy
    assert data_refusal(good[:27] + [by_person(episode, 0) for episode in good[:3]]) is None


def test_a_critic_has_to_rank_held_out_outcomes():
    assert critic_refusal(None) is None and critic_refusal(HeldOutQuality(0.4, 0.8, 10)) is None
    found = critic_refusal(HeldOutQuality(0.1, 0.8, 10))
    assert found.kind == "a blind critic" and "AUC of 0.80 and a rank correlation of 0.10" in found.text
    assert critic_refusal(HeldOutQuality(0.4, 0.55, 10))
    assert "which all ended alike" in critic_refusal(HeldOutQuality(None, None, 10)).text
    assert "7 episodes were held out from the critic: expected 8" in critic_refusal(HeldOutQuality(0.9, 0.9, 7)).text
    nan = float("nan")
    scalars = {RANK: [0.1, 0.5, nan], AUC: [0.6, 0.9, nan], EPISODES: [10.0, 10.0, nan]}
    assert quality_of(scalars) == HeldOutQuality(0.5, 0.9, 10)
    assert quality_of({**scalars, GAIN: [nan, 0.02]}).gain == 0.02
    assert quality_of({}) == HeldOutQuality(None, None, 0)


def test_success_by_start_is_counted_in_thirds():
    # by 0.3 m, the starts at -1, -0.5 and 0 m fail
    episodes = [walked(i, 0.3) for i in range(15)]
    (place,) = start_elements(episodes, SPECS)
    assert (place.name, place.unit) == ("walk/pos_x_w", "m")
    assert [(third.low, third.high) for third in place.thirds] == [(-1.0, -0.5), (-0.5, 0.5), (0.5, 1.0)]
    # sorted: three at -1 and two at -0.5; one more at -0.5, three at 0, one at 0.5; the rest
    assert [third.success.value for third in place.thirds] == [0.0, 0.2, 1.0]
    assert place.spread == 1.0 and place.is_clear
    # a constant that differs in its last digit is no place to start from
    for k, episode in enumerate(episodes):
        episode.obs["walk"][:, 0] = 0.5 + 1e-8 * k
    assert start_elements(episodes, SPECS) == ()


def test_coverage_is_a_share_of_the_bounds():
    time, place = visited([walked(2, 0.5)], SPECS)
    assert {time.name, place.name} == {"walk/pos_x_w", "walk/time"}
    shares = {one.name: one.share for one in (time, place)}
    # from 0 to 1.5 m of -2 to 2 m, from 0 to 3 of 0 to 6 steps, less a hundredth at each end
    assert shares["walk/pos_x_w"] == pytest.approx(1.5 * 0.98 / 4)
    assert shares["walk/time"] == pytest.approx(3 * 0.98 / 6)


def test_a_failure_departs_where_no_success_has_been():
    # all successes go by 0.5 m; the failure goes with them for three steps, and then the other way
    successes = [walked(2, 0.5) for _ in range(3)]
    failed = walked(2, 0.5)
    obs = failed.obs["walk"].copy()
    obs[3] = (-1.5, 3)
    failures = [failed._replace(obs={"walk": obs}, success=False), walked(2, 0.5)._replace(success=False)]
    found = departures(successes + failures, SPECS)
    assert found[0] == 3 and np.isnan(found[1])
    assert np.isnan(departures(failures, SPECS)).all()
    held = holdings(LogBook(tuple(successes + failures)), SPECS, 0.1)
    assert (held.episodes, held.frames, held.starts, held.success.value) == (5, 20, 1, 0.6)
    assert held.departures_s[0] == pytest.approx(0.3) and held.failure_s.tolist() == [0.4, 0.4]


def test_distances_and_even_places():
    near = nearest_distance(np.array([[0.0, 0.0], [3.0, 4.0]]), np.array([[0.0, 1.0], [3.0, 0.0]]))
    np.testing.assert_allclose(near, [1.0, 4.0])
    assert evenly(3, 10).tolist() == [0, 1, 2] and evenly(10, 4).tolist() == [0, 3, 6, 9]
