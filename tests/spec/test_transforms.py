import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robotrl.transforms import (
    Affine,
    Clip,
    TransformGroup,
    bounds_to_unit,
    from_json,
    inverse,
    normalize,
    numpy_backend,
    to_json,
    torch_backend,
)

WIDTH = 3
number = st.floats(-1e3, 1e3, width=32)
nonzero = st.floats(2**-10, 2**10, width=32) | st.floats(-(2**10), -(2**-10), width=32)
rows = st.lists(st.lists(number, min_size=WIDTH, max_size=WIDTH), min_size=1, max_size=4)
where = st.sampled_from(["graph", "host"])


def vector(element):
    return st.tuples(*[element] * WIDTH)


affines = st.builds(Affine, st.just("x"), vector(nonzero), vector(number), where)
clips = st.builds(
    lambda low, span, where: Clip("x", low, tuple(a + b for a, b in zip(low, span, strict=True)), where),
    vector(number),
    vector(st.floats(0, 100, width=32)),
    where,
)
transforms = st.lists(affines | clips, max_size=4)


@given(transforms, rows)
def test_numpy_and_torch_backends_agree_bit_for_bit(steps, values):
    x = np.asarray(values, np.float32)
    ours = numpy_backend(steps)({"x": x, "other": x})
    theirs = torch_backend(steps)({"x": torch.from_numpy(x), "other": torch.from_numpy(x)})
    for key in ("x", "other"):
        assert ours[key].dtype == np.float32
        np.testing.assert_array_equal(ours[key], theirs[key].numpy())


@given(transforms, rows)
def test_input_is_left_as_it_was(steps, values):
    x = np.asarray(values, np.float32)
    before = x.copy()
    numpy_backend(steps)({"x": x})
    np.testing.assert_array_equal(x, before)


@given(st.builds(Clip, st.just("x"), vector(st.just(-1.0)), vector(st.just(1.0))))
def test_clip_keeps_nan_in_both_backends(clip):
    x = np.asarray([[np.nan, 5.0, -5.0]], np.float32)
    expected = np.asarray([[np.nan, 1.0, -1.0]], np.float32)
    np.testing.assert_array_equal(numpy_backend([clip])({"x": x})["x"], expected)
    np.testing.assert_array_equal(torch_backend([clip])({"x": torch.from_numpy(x)})["x"].numpy(), expected)


@given(affines, rows)
def test_inverse_undoes(affine, values):
    x = np.asarray(values, np.float64)
    scale, offset = np.asarray(affine.scale), np.asarray(affine.offset)
    back = inverse(affine)
    again = (x * scale + offset) * np.asarray(back.scale) + np.asarray(back.offset)
    # float64, and what cancels is at most |offset / scale| <= 1e6
    np.testing.assert_allclose(again, x, atol=1e-8, rtol=1e-12)
    assert (back.key, back.where) == (affine.key, affine.where)


@given(transforms, transforms)
def test_group_round_trips_through_json(inputs, outputs):
    group = TransformGroup(tuple(inputs), tuple(outputs))
    assert TransformGroup.from_json(json.loads(json.dumps(group.to_json()))) == group


def test_push_appends_inputs_and_prepends_outputs():
    a, b = normalize("x", [0.0], [2.0]), normalize("x", [1.0], [4.0])
    group = TransformGroup().push([a], [inverse(a)]).push([b], [inverse(b)])
    assert group.inputs == (a, b)
    assert group.outputs == (inverse(b), inverse(a))
    x = np.asarray([[7.0]], np.float32)
    there = numpy_backend(group.inputs)({"x": x})
    np.testing.assert_allclose(there["x"], [[(7 / 2 - 1) / 4]])
    np.testing.assert_allclose(numpy_backend(group.outputs)(there)["x"], x)


def test_normalize_by_hand():
    assert normalize("x", [2.0, 5.0], [4.0, 0.0]) == Affine("x", (0.25, 1.0), (-0.5, -5.0))


def test_bounds_to_unit_by_hand():
    affine = bounds_to_unit("x", [0.0, -2.0], [4.0, 2.0])
    assert affine == Affine("x", (0.5, 0.5), (-1.0, 0.0))


@pytest.mark.parametrize(("low", "high"), [([0.0], [float("inf")]), ([1.0], [1.0]), ([2.0], [1.0])])
def test_bounds_to_unit_refuses_bounds_without_a_range(low, high):
    with pytest.raises(ValueError, match="must be finite and low < high"):
        bounds_to_unit("x", low, high)


@given(st.text(max_size=12).filter(lambda kind: kind not in ("affine", "clip")))
def test_unknown_kind_is_refused(kind):
    with pytest.raises(ValueError, match="is unknown: known: affine, clip"):
        from_json({"kind": kind, "key": "x", "scale": [1.0], "offset": [0.0], "where": "graph"})


@pytest.mark.parametrize("change", [{"extra": 1}, {"scale": None}])
def test_wrong_fields_are_refused(change):
    data = to_json(Affine("x", (1.0,), (0.0,)))
    data = {k: v for k, v in {**data, **change}.items() if v is not None}
    with pytest.raises(ValueError, match=r"transform 'affine' has fields .*: expected"):
        from_json(data)
