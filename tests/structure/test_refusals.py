import pytest

from robotrl.errors import ConfigError, DataError, check_count, unknown
from tests.kits.refusals import raises_naming, times_named


def test_words_and_numbers_are_whole():
    said = "algo.lr is 0.1: expected above 0, at most 1"
    assert [times_named(said, part) for part in ("algo.lr", 0.1, 0, 1, "above")] == [1] * 5
    assert [times_named(said, part) for part in ("lr", 0.10001, 10, "algo", "abov", -1)] == [0] * 6
    assert times_named("scale is 0: expected above 0", 0) == 2 and times_named("is -1", 1) == 0


def test_an_error_that_names_what_is_asked_passes_in_any_wording():
    with raises_naming(ConfigError, "lead", 9, 1, 8):
        check_count("lead", 9, 1, 8)
    with raises_naming(ConfigError, "axis", "griper", nearest="gripper"):
        raise unknown("axis", "griper", ["gripper", "x"])


@pytest.mark.parametrize(
    ("parts", "nearest"),
    [
        (("leads",), None),
        (("lead", 8), None),
        (("lead", 9, 7), None),
        (("lead", 9, 1, 1), None),
        (("lead", 9), "lead"),
    ],
)
def test_one_that_does_not_fails(parts, nearest):
    with pytest.raises(AssertionError, match="does not"), raises_naming(ConfigError, *parts, nearest=nearest):
        check_count("lead", 9, 1, 6)


def test_another_class_several_lines_and_no_error_fail():
    with pytest.raises(ConfigError), raises_naming(DataError, "lead"):
        check_count("lead", 9, 1, 6)
    with pytest.raises(AssertionError, match="several lines"), raises_naming(DataError, "lead"):
        raise DataError("lead\n9")
    with pytest.raises(pytest.fail.Exception), raises_naming(DataError, "lead"):
        pass
