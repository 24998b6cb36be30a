"""Answers: synthetic ones, and their store."""

from dataclasses import replace

import numpy as np
import pytest

from robotrl.errors import ConfigError
from robotrl.rewards.preferences.labelers.desk import LabelDesk, PairKeys
from robotrl.rewards.preferences.labelers.labels import FIRST, NEITHER, SECOND, LabelStore
from robotrl.rewards.preferences.labelers.synthetic import SyntheticCfg, SyntheticLabeler
from tests.kits.preference_kit import by, question

A, B, C = (bytes([number] * 16) for number in (1, 2, 3))


def test_answers_are_kept_for_both_orders_of_a_pair_and_on_disk(tmp_path):
    store = LabelStore(str(tmp_path), "somebody")
    store.put(A, B, SECOND)
    store.put(C, B, NEITHER)
    assert (store.get(A, B), store.get(B, A), store.get(B, C), store.get(A, C)) == (SECOND, FIRST, NEITHER, None)
    store.close()
    again = LabelStore(str(tmp_path), "somebody")
    assert (again.get(A, B), again.get(B, A), again.get(C, B)) == (SECOND, FIRST, NEITHER)
    assert LabelStore(str(tmp_path), "somebody else").get(A, B) is None


def test_a_damaged_answer_is_dropped_with_a_warning_and_a_torn_one_without(tmp_path):
    store = LabelStore(str(tmp_path), "somebody")
    store.put(A, B, SECOND)
    store.put(A, C, FIRST)
    store.close()
    (path,) = tmp_path.glob("*/*.rows")
    data = bytearray(path.read_bytes())
    data[17] ^= 1  # in the first answer
    path.write_bytes(bytes(data) + data[:9])  # and a writer that was killed
    with pytest.warns(UserWarning, match="1 damaged answers"):
        again = LabelStore(str(tmp_path), "somebody")
    assert again.get(A, B) is None and again.get(A, C) == FIRST


def test_synthetic_answers_have_their_share_of_errors_and_do_not_change():
    labeler = SyntheticLabeler(SyntheticCfg(error=0.1))
    rng = np.random.default_rng(0)
    keys = [rng.bytes(16) for _ in range(2000)]
    asked = [
        question(0, advantage)._replace(key=key) for key, advantage in zip(keys, rng.normal(size=2000), strict=True)
    ]
    labeler.ask(asked)
    found = labeler.collect()
    wrong = np.mean([found[one.key] != (SECOND if one.advantage > 0 else FIRST) for one in asked])
    assert wrong == pytest.approx(0.1, abs=0.02)
    labeler.ask(asked[::-1])
    assert labeler.collect() == found and labeler.collect() == {}


def test_segments_that_hardly_differ_have_no_preference():
    labeler = SyntheticLabeler(SyntheticCfg(error=0.0, band=0.5))
    labeler.ask([question(1, 0.4), question(2, -0.6), question(3, 0.6)])
    assert list(labeler.collect().values()) == [NEITHER, FIRST, SECOND]


def test_the_desk_asks_only_about_pairs_whose_answer_is_not_kept(tmp_path):
    cfg = by("synthetic", store=str(tmp_path), synthetic=SyntheticCfg(error=0.0))
    pairs = [PairKeys(A, B), PairKeys(B, C)]
    desk = LabelDesk(cfg)
    desk.ask(pairs[:1], [1.0], None)
    assert desk.collect() == {pairs[0].question: SECOND}
    desk.close()
    desk = LabelDesk(cfg)
    desk.ask([PairKeys(B, A), pairs[1]], [99.0, -1.0], None)
    # the kept answer, turned round, not that of the advantage given now
    assert desk.collect() == {PairKeys(B, A).question: FIRST, pairs[1].question: FIRST}
    assert desk.metrics()["asked"] == 1 and desk.metrics()["known"] == 1
    desk.close()


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"by": "nobody"}, "labeler.by"),
        ({"length": 0}, "labeler.length"),
        ({"frames": 4}, "labeler.frames"),
        ({"synthetic": SyntheticCfg(error=0.6)}, "labeler.synthetic.error"),
        ({"by": "endpoint"}, "labeler.endpoint.goal"),
        ({"by": "browser", "browser": replace(by("browser").browser, port=70_000)}, "labeler.browser.port"),
    ],
)
def test_settings_out_of_range_are_named(changes, named):
    with pytest.raises(ConfigError, match=named):
        LabelDesk(replace(by("synthetic"), **changes))
