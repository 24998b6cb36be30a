"""Checkpoints come back bit for bit, or are refused by name."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.torch import load_file

from robotrl.errors import ConfigError, DataError
from robotrl.run.checkpoint import (
    clean_leftovers,
    generator_state,
    read_checkpoint,
    rng_state,
    set_generator_state,
    set_rng_state,
    write_checkpoint,
)

NUMPY_DTYPES = ["bool", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8"]
TORCH_DTYPES = [
    *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32),
    *(torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


def same(a, b) -> bool:
    """Equal in type, dtype, shape and every bit, NaN included."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        raw = [x.contiguous().reshape(-1).view(torch.uint8) for x in (a, b)]
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*raw)
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return repr(a) == repr(b)


@st.composite
def tensors(draw):
    dtype = draw(st.sampled_from(TORCH_DTYPES))
    shape = draw(SHAPES)
    size = int(np.prod(shape, dtype=int)) * torch.empty((), dtype=dtype).element_size()
    if dtype == torch.bool:
        return torch.tensor(draw(st.lists(st.booleans(), min_size=size, max_size=size)), dtype=dtype).reshape(shape)
    raw = bytearray(draw(st.binary(min_size=size, max_size=size)))
    return torch.frombuffer(raw, dtype=dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)


arrays = st.sampled_from(NUMPY_DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, SHAPES))
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.integers(2**200, 2**201)
keys = st.text("ab/~_$0", max_size=4) | st.integers(-2, 2)
trees = st.recursive(
    scalars | arrays | tensors() | st.sampled_from([np.float32(0.1), np.int64(3)]),
    lambda inner: (
        st.dictionaries(keys, inner, max_size=4) | st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(tree=trees)
def test_any_tree_comes_back_as_it_was(tmp_path_factory, tree):
    path = write_checkpoint(tmp_path_factory.mktemp("c") / "step", tree, step=3, kind="x", score=0.5)
    found = read_checkpoint(path)
    assert same(found.tree, tree)
    assert (found.step, found.kind, found.score, found.path) == (3, "x", 0.5, path)


def test_strided_views_parameters_and_shared_memory_come_back_by_value(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    tree = {
        "column": base[:, 1],
        "transposed": base.t(),
        "parameter": torch.nn.Parameter(base),
        "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "readonly": np.broadcast_to(np.float32(3), (4,)),
    }
    found = read_checkpoint(write_checkpoint(tmp_path / "c", tree, step=0, kind="x")).tree
    for name, value in tree.items():
        wanted = np.asarray(value.detach().resolve_conj() if isinstance(value, torch.Tensor) else value)
        assert np.array_equal(np.asarray(found[name]), wanted), name
    found["column"] += 1  # writable, and memory of its own
    assert torch.equal(found["transposed"], base.t())


def test_weights_are_plain_safetensors_under_readable_names(tmp_path):
    tree = {"policy": {"w": torch.ones(2, 3), "b": torch.zeros(3, dtype=torch.bfloat16)}, "steps": [np.arange(3)]}
    path = write_checkpoint(tmp_path / "c", tree, step=0, kind="x")
    flat = load_file(path / "weights.safetensors")
    assert set(flat) == {"policy/w", "policy/b", "steps/0"}
    assert flat["policy/b"].dtype == torch.bfloat16
    state = json.loads((path / "state.json").read_text())
    assert state["schema_version"] == 1
    assert json.loads((path / "manifest.json").read_text())["schema_version"] == 1


def train(model, optimizer, generator, steps: int) -> None:
    for _ in range(steps):
        x = torch.randn(16, 3, generator=generator) + torch.randn(3) + float(np.random.normal()) + random.random()
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)])
def test_training_goes_on_bit_for_bit(tmp_path, make):
    def fresh(seed):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
        return model, make(model.parameters()), torch.Generator().manual_seed(seed)

    model, optimizer, generator = fresh(0)
    random.seed(1)
    np.random.seed(2)
    np.random.normal()  # leaves the second number of a pair cached
    random.gauss(0, 1)
    train(model, optimizer, generator, 5)
    tree = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "generator": generator_state(generator),
        "rng": rng_state(),
    }
    write_checkpoint(tmp_path / "c", tree, step=5, kind="x")
    train(model, optimizer, generator, 7)

    other, other_optimizer, other_generator = fresh(9)
    found = read_checkpoint(tmp_path / "c").tree
    other.load_state_dict(found["model"])
    other_optimizer.load_state_dict(found["optimizer"])
    set_generator_state(other_generator, found["generator"])
    set_rng_state(found["rng"])
    train(other, other_optimizer, other_generator, 7)
    assert same(dict(other.state_dict()), dict(model.state_dict()))
    assert same(other_optimizer.state_dict(), optimizer.state_dict())


@pytest.mark.parametrize("bits", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
@given(seed=st.integers(0, 2**128), drawn=st.integers(0, 3))
@settings(max_examples=10, deadline=None)
def test_numpy_generators_go_on(tmp_path_factory, bits, seed, drawn):
    generator, other = (np.random.Generator(getattr(np.random, bits)(s)) for s in (seed, 1))
    generator.random(drawn, dtype=np.float32)  # an odd number leaves half a word cached
    path = write_checkpoint(tmp_path_factory.mktemp("c") / "c", generator_state(generator), step=0, kind="x")
    set_generator_state(other, read_checkpoint(path).tree)
    assert same(other.random(5, dtype=np.float32), generator.random(5, dtype=np.float32))


def test_generator_state_of_another_kind_is_refused():
    with pytest.raises(DataError, match="of a torch generator: expected one of a numpy generator"):
        set_generator_state(np.random.default_rng(0), generator_state(torch.Generator()))
    with pytest.raises(DataError, match="of a MT19937: expected one of a PCG64"):
        set_generator_state(np.random.default_rng(0), generator_state(np.random.Generator(np.random.MT19937(0))))


@pytest.fixture(scope="module")
def sample(tmp_path_factory) -> Path:
    tree = {
        "w": torch.randn(5, 7),
        "n": np.arange(4),
        "adam": {0: {"step": torch.tensor(3.0)}},
        "note": "x",
        "big": 2**70,
    }
    return write_checkpoint(tmp_path_factory.mktemp("sample") / "step_000000012", tree, step=12, kind="x", score=0.25)


NAMES = ["manifest.json", "state.json", "weights.safetensors"]


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_one_altered_byte_anywhere_is_refused_by_name(sample, data):
    file = sample / data.draw(st.sampled_from(NAMES))
    original = file.read_bytes()
    position = data.draw(st.integers(0, len(original) - 1))
    value = data.draw(st.integers(0, 255).filter(lambda value: value != original[position]))
    try:
        file.write_bytes(original[:position] + bytes([value]) + original[position + 1 :])
        with pytest.raises(DataError, match=f"step_000000012: {file.name}") as caught:
            read_checkpoint(sample)
        assert "\n" not in str(caught.value)
    finally:
        file.write_bytes(original)
    read_checkpoint(sample)


def test_white_space_in_the_manifest_counts_as_a_byte(tmp_path):
    path = write_checkpoint(tmp_path / "c", {}, step=1, kind="x")
    raw = (path / "manifest.json").read_bytes()
    for altered in (raw.replace(b" ", b"\t", 1), raw + b" ", raw[:-1], raw.replace(b"\n", b"\r", 1)):
        assert json.loads(altered) == json.loads(raw)
        (path / "manifest.json").write_bytes(altered)
        with pytest.raises(DataError, match=r"manifest\.json does not match its digest"):
            read_checkpoint(path)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_truncation_anywhere_is_refused_by_name(sample, data):
    file = sample / data.draw(st.sampled_from(NAMES))
    original = file.read_bytes()
    try:
        file.write_bytes(original[: data.draw(st.integers(0, len(original) - 1))])
        with pytest.raises(DataError, match=f"{file.name}.*(truncated|altered)"):
            read_checkpoint(sample)
    finally:
        file.write_bytes(original)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_refused_by_name(tmp_path, name):
    path = write_checkpoint(tmp_path / "c", {"w": np.ones(2)}, step=1, kind="x")
    (path / name).unlink()
    with pytest.raises(DataError, match=f"{name} is missing"):
        read_checkpoint(path)


def test_an_extra_file_and_an_absent_directory_are_refused(tmp_path):
    path = write_checkpoint(tmp_path / "step_000000001", {"w": np.ones(2)}, step=1, kind="x")
    with pytest.raises(DataError, match=r"does not exist: did you mean 'step_000000001'\?"):
        read_checkpoint(tmp_path / "step_00000001")
    (path / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match=r"notes\.txt is not one of its files"):
        read_checkpoint(path)


@pytest.mark.parametrize("version, words", [(2, "written by a newer robotrl"), (0, "expected 1"), ("1", "expected 1")])
def test_another_schema_version_is_refused(tmp_path, version, words):
    path = write_checkpoint(tmp_path / "c", {}, step=1, kind="x")
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "schema_version": version}))
    with pytest.raises(DataError, match=f"schema_version {version!r}.*{words}"):
        read_checkpoint(path)


def test_a_bundle_in_its_place_is_named(tmp_path):
    (tmp_path / "manifest.json").write_text(json.dumps({"schema_version": 2, "bundle_id": "f04f"}))
    with pytest.raises(DataError, match="is a bundle: expected a run or a checkpoint"):
        read_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "tree, words",
    [
        ({"a": {"b": object()}}, "leaf 'a/b' is a object"),
        ({"a": [1, b"raw"]}, "leaf 'a/1' is a bytes"),
        ({"a": {1.5: 2}}, r"key a/1\.5 is a float"),
        ({"a": {True: 2}}, "key a/True is a bool"),
        ({"a": np.array(["text"])}, "leaf 'a' is an array of dtype str"),
        ({"a": np.zeros(2, ">f4")}, "byte order"),
        ({"a": np.zeros(2, np.complex128)}, "dtype complex128"),
        ({"a": np.ma.masked_array([1, 2], [0, 1])}, "leaf 'a' is a MaskedArray"),
        ({"a": torch.eye(2).to_sparse()}, "cpu tensor of dtype float32.*dense"),
        ({"a": torch.empty(2, device="meta")}, "meta tensor"),
    ],
)
def test_what_cannot_be_saved_is_named_and_nothing_is_left(tmp_path, tree, words):
    with pytest.raises(ConfigError, match=words):
        write_checkpoint(tmp_path / "c", tree, step=0, kind="x")
    assert list(tmp_path.iterdir()) == []


def test_a_negative_step_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="checkpoint step is -1: expected 0 or more"):
        write_checkpoint(tmp_path / "c", {}, step=-1, kind="x")


def test_writing_again_replaces(tmp_path):
    for value in (1, 2):
        write_checkpoint(tmp_path / "c", {"w": np.full(2, value)}, step=value, kind="x")
    assert read_checkpoint(tmp_path / "c").tree["w"].tolist() == [2, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_leftovers_of_a_kill_are_cleaned_and_a_replaced_one_comes_back(tmp_path):
    write_checkpoint(tmp_path / "a", {"w": 1}, step=1, kind="x").rename(tmp_path / ".old-a")
    write_checkpoint(tmp_path / "b", {"w": 1}, step=1, kind="x").rename(tmp_path / ".old-b")
    write_checkpoint(tmp_path / "b", {"w": 2}, step=1, kind="x")
    (tmp_path / ".tmp-c-1").mkdir()
    (tmp_path / ".tmp-c-1" / "weights.safetensors").write_bytes(b"half")
    (tmp_path / ".tmp-latest.json-1").write_bytes(b"{")
    clean_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    assert (read_checkpoint(tmp_path / "a").tree, read_checkpoint(tmp_path / "b").tree) == ({"w": 1}, {"w": 2})


def test_weights_and_state_that_do_not_fit_together_are_refused(tmp_path):
    """Both whole and both listed, but of two checkpoints: only reading them together can tell."""
    from robotrl.run import checkpoint as module

    path = write_checkpoint(tmp_path / "c", {"w": np.ones(2)}, step=1, kind="x")
    for data, words in (
        ({"v": {"$numpy": "v"}}, "do not fit together"),
        ({}, "holds arrays that state.json does not name: w"),
        ({"w": {"$code": "os.system"}}, "do not fit together.*tag '\\$code' is unknown"),
        ({"w": {"$int": "zz"}}, "do not fit together"),
    ):
        module._write_files(path, data, {"w": np.ones(2)}, {"step": 1, "kind": "x", "score": None})
        with pytest.raises(DataError, match=words):
            read_checkpoint(path)
