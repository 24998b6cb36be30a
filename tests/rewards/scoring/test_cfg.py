"""Settings of the service, and the memory of its pictures."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from robotrl.errors import ConfigError
from robotrl.rewards.scoring.cfg import ServiceCfg
from robotrl.rewards.scoring.slots import PictureSlots, SlotShape
from robotrl.utils.source_texts import field_texts
from tests.kits.refusals import raises_naming
from tests.kits.scoring_kit import SHAPE, pictures_of


def test_the_defaults_and_both_ends_of_the_ranges_are_valid() -> None:
    ServiceCfg().check()
    ServiceCfg(64, 4096, 0.0, 4096, "wait", 0.0, 0.001, 0, 0, 1024, (min(os.sched_getaffinity(0)),), "answers").check()


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("processes", 0, "64"),
        ("batch_size", 5000, "4096"),
        ("batch_size", True, "4096"),
        ("flush_after_s", -0.1, "86400"),
        ("flush_after_s", float("nan"), "86400"),
        ("queue_frames", 63, "64"),
        ("wait_s", float("inf"), "86400"),
        ("timeout_s", 0.0, "0.001"),
        ("cache_frames", -1, "0"),
        ("max_requests", -1, "0"),
        ("threads", 0, "1024"),
        ("cores", (9999,), str(min(os.sched_getaffinity(0)))),
        ("answers", " ", "directory"),
    ],
)
def test_a_value_out_of_range_is_named(field: str, value: object, expected: str) -> None:
    cfg = replace(ServiceCfg(), **{field: value})
    with raises_naming(ConfigError, f"service.{field}", expected):
        cfg.check()


def test_an_unknown_choice_is_answered_with_the_nearest() -> None:
    with raises_naming(ConfigError, "service.when_full", "drop", "wait", nearest="drop"):
        replace(ServiceCfg(), **{"when_full": "dropp"}).check()


def test_every_field_has_a_text() -> None:
    assert field_texts(ServiceCfg).keys() == ServiceCfg.__dataclass_fields__.keys()


def test_pictures_are_shared_through_memory_without_a_name() -> None:
    slots = PictureSlots.reserve(SlotShape(3, *SHAPE))
    reader = PictureSlots(slots.shape, os.dup(slots.descriptor), writable=False)
    pictures = pictures_of(np.arange(2))
    slots.pictures[1:] = pictures[::-1]
    np.testing.assert_array_equal(reader.pictures[1:], pictures[::-1])
    assert not reader.pictures.flags.writeable
    assert not [path for path in Path("/dev/shm").iterdir() if "robotrl" in path.name]
    for one in (slots, slots, reader):
        one.close()


def test_too_little_memory_is_told_before_pictures_are_written() -> None:
    with raises_naming(ConfigError, "service.queue_frames", 1 << 20):
        PictureSlots.reserve(SlotShape(1 << 20, 1 << 14, 1 << 14))
