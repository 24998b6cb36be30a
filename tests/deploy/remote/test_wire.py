"""Messages are unpacked strictly and within bounds, whatever the bytes are."""

from __future__ import annotations

import math
import pickle
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.remote import protocol, wire
from robotrl.deploy.remote.protocol import ChunkAnswer, ErrorAnswer, Hello, InferRequest
from robotrl.deploy.remote.wire import WireError
from tests.kits import deploy_kit, serve_kit

REQUEST = InferRequest(7, serve_kit.OBS, np.zeros((2, 2), np.float32), 250)


def changed(**fields: Any) -> bytes:
    return msgpack.packb({**msgpack.unpackb(REQUEST.pack()), **fields})


def test_a_request_comes_back_as_it_was() -> None:
    found = InferRequest.parse(REQUEST.pack())
    assert (found.id, found.deadline_ms, found.obs.keys()) == (7, 250, serve_kit.OBS.keys())
    assert all(np.array_equal(found.obs[name], array) for name, array in serve_kit.OBS.items())
    assert found.noise is not None and found.noise.shape == (2, 2)
    assert InferRequest.parse(replace(REQUEST, noise=None).pack()).noise is None


def test_answers_come_back_as_they_were() -> None:
    chunk = ChunkAnswer(3, np.ones((2, 2), np.float32), np.zeros((2, 2), np.float32), 0.25)
    found = protocol.parse_answer(chunk.pack())
    assert isinstance(found, ChunkAnswer)
    assert (found.id, found.inference_s) == (3, 0.25) and (found.actions == 1).all()
    error = ErrorAnswer(None, "busy", "later")
    assert protocol.parse_answer(error.pack()) == error
    hello = Hello("abc", b"{}", 0.001, 1024, 1000)
    assert Hello.parse(hello.pack()) == hello


@given(
    array=st.sampled_from(sorted(wire.DTYPES)).flatmap(
        lambda dtype: st.lists(st.integers(0, 3), max_size=4).map(
            lambda shape: (np.arange(math.prod(shape)) % 2).reshape(shape).astype(dtype)
        )
    )
)
@settings(max_examples=60, deadline=None)
def test_arrays_come_back_as_they_were(array: np.ndarray) -> None:
    found = wire.array(wire.unpack(wire.pack({"a": array}))["a"], "a")
    assert found.dtype == array.dtype and np.array_equal(found, array)
    assert not found.flags.writeable


ARRAY = {"dtype": "float32", "shape": [1], "data": b"\0\0\0\0"}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"xyz": 1}, r"field 'xyz' is unknown: known: type, id, obs, noise, deadline_ms"),
        ({"deadline": 1}, r"field 'deadline' is unknown: did you mean 'deadline_ms'\?"),
        ({"type": "call"}, r"type is unknown: known: infer"),
        ({"id": True}, r"id is True: expected a whole number from 0 to"),
        ({"id": 1.0}, r"id is 1\.0: expected a whole number"),
        ({"id": -1}, r"id is -1: expected a whole number"),
        ({"deadline_ms": 0}, r"deadline_ms is 0: expected a whole number from 1 to 600000"),
        ({"obs": []}, r"obs: expected a map of arrays"),
        ({"obs": {"a": 1.0}}, r"obs\['a'\] is a float: expected a map"),
        ({"obs": {"a": {**ARRAY, "dtype": "object"}}}, r"dtype is 'object': expected one of bool, uint8"),
        ({"obs": {"a": {**ARRAY, "dtype": 4}}}, r"dtype is a int: expected text"),
        ({"obs": {"a": {**ARRAY, "shape": [2]}}}, r"data has 4 bytes: expected 8, float32 of shape \[2\]"),
        ({"obs": {"a": {**ARRAY, "shape": [-1]}}}, r"shape\[0\] is -1: expected a whole number from 0"),
        ({"obs": {"a": {**ARRAY, "shape": [2**31 - 1] * 8}}}, r"data has 4 bytes: expected \d+"),
        ({"obs": {"a": {**ARRAY, "shape": [1] * 9}}}, r"shape has 9 axes: expected at most 8"),
        ({"obs": {"a": {**ARRAY, "shape": "1"}}}, r"shape is a str: expected a list"),
        ({"obs": {"a": {**ARRAY, "data": "abcd"}}}, r"data is a str: expected bytes"),
        ({"obs": {"a": {**ARRAY, "order": "F"}}}, r"field 'order' is unknown"),
        ({"noise": pickle.dumps(1)}, r"noise is a bytes: expected a map"),
    ],
)
def test_a_request_that_is_none_is_refused_by_name(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(WireError, match=says) as caught:
        InferRequest.parse(changed(**fields))
    assert caught.value.code == "malformed"
    assert len(caught.value.text) <= 300 and "\n" not in caught.value.text


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        REQUEST.pack()[:-1],
        REQUEST.pack() + b"\0",
        msgpack.packb([1]),
        msgpack.packb({1: 2}),
        msgpack.packb({"a": msgpack.ExtType(5, b"x")}),
        msgpack.packb({"a": msgpack.ExtType(5, b"")}),
        msgpack.packb({"a": msgpack.Timestamp(1)}),
        b"\x81\xa1a\xa2\xff\xfe",  # no UTF-8
        b"\x82\xa1a\x01\xa1a\x02",  # a key twice
        msgpack.packb(nested(9)),
        b"\x81\xa1a" * 2000 + b"\x01",
        msgpack.packb({str(i): i for i in range(65)}),
        msgpack.packb({"a": [0] * 65}),
        msgpack.packb({"a": "x" * 5000}),
        msgpack.packb({str(i): [[]] * 60 for i in range(60)}),
        b"\x81\xa1a\xdd\xff\xff\xff\xff",  # a list of 4 billion
        b"\x81\xa1a\xc6\xff\xff\xff\xff",  # 4 GiB of data
        pickle.dumps({"type": "infer"}),
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(WireError) as caught:
        wire.unpack(data)
    assert caught.value.code == "malformed"


def test_a_small_message_takes_little_memory() -> None:
    """A byte of msgpack can stand for an empty map, which takes 64 bytes: here 262,144 of them."""
    flood = b"\x80"
    for _ in range(3):
        flood = b"\xdc\x00\x40" + flood * 64
    flood = b"\x81\xa1a" + flood
    tracemalloc.start()
    with pytest.raises(WireError):
        wire.unpack(flood)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


@given(data=st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for read in (InferRequest.parse, protocol.parse_answer, Hello.parse):
        with pytest.raises(WireError):
            read(data)


@given(at=st.integers(0, len(REQUEST.pack()) - 1), byte=st.integers(0, 255))
@settings(max_examples=300, deadline=None)
def test_a_changed_byte_is_read_or_refused(at: int, byte: int) -> None:
    data = bytearray(REQUEST.pack())
    data[at] = byte
    try:
        found = InferRequest.parse(bytes(data))
    except WireError as error:
        assert error.code == "malformed"
    else:
        assert isinstance(found, InferRequest)


@pytest.mark.parametrize(
    ("obs", "noise", "says"),
    [
        ({"stat": serve_kit.OBS["state"]}, None, r"observation 'stat' is unknown: expected state, touch"),
        ({"state": serve_kit.OBS["state"]}, None, r"observation 'touch' is missing: expected state, touch"),
        ({**serve_kit.OBS, "touch": np.float64([1])}, None, r"is float64 of shape \(1,\): expected float32 of \(1,\)"),
        ({**serve_kit.OBS, "touch": np.float32(1)}, None, r"is float32 of shape \(\): expected float32 of \(1,\)"),
        ({**serve_kit.OBS, "touch": np.float32([np.inf])}, None, r"observation 'touch' \[0\] is inf: expected it fin"),
        (serve_kit.OBS, np.zeros((2, 3), np.float32), r"noise is float32 of shape \(2, 3\): expected float32 of"),
        (serve_kit.OBS, np.full((2, 2), np.nan, np.float32), r"noise \[0, 0\] is nan: expected it finite"),
    ],
)
def test_arrays_that_do_not_fit_the_bundle_are_refused_by_name(
    tmp_path_factory: pytest.TempPathFactory, obs: dict[str, np.ndarray], noise: np.ndarray | None, says: str
) -> None:
    manifest = open_bundle(deploy_kit.made("flow", tmp_path_factory.getbasetemp())[0]).manifest
    protocol.check_request(manifest, REQUEST)
    with pytest.raises(WireError, match=says) as caught:
        protocol.check_request(manifest, InferRequest(1, obs, noise, 10))
    assert caught.value.code == "bad_observation"


def test_pictures_and_words_keep_their_dtypes(tmp_path: Path) -> None:
    manifest = open_bundle(serve_kit.seer_bundle(tmp_path)).manifest
    dtypes = {port.name: protocol.wire_dtype(port) for port in manifest.observations}
    assert dtypes == {"state": "float32", "image": "uint8", "instruction": "int32"}
    obs = {
        "state": np.zeros(4, np.float32),
        "image": np.zeros((8, 8, 3), np.uint8),
        "instruction": np.int32([1, 0]),
    }
    protocol.check_request(manifest, InferRequest(1, obs, None, 10))
    for words in ([3, 0], [-1, 0]):
        with pytest.raises(WireError, match="outside of 0 to 2"):
            protocol.check_request(manifest, InferRequest(1, {**obs, "instruction": np.int32(words)}, None, 10))
    with pytest.raises(WireError, match="noise was given: this policy draws none"):
        protocol.check_request(manifest, InferRequest(1, obs, np.zeros((2, 2), np.float32), 10))
