from dataclasses import replace

import pytest

from robotrl.errors import ConfigError
from robotrl.rewards.endpoint.address import parse_address, read_key
from robotrl.rewards.endpoint.cfg import EndpointCfg
from tests.kits.refusals import raises_naming

GOOD = EndpointCfg(model="m")


@pytest.mark.parametrize(
    "url, expected",
    [
        ("http://127.0.0.1:8000/v1", (False, "127.0.0.1", 8000, "/v1/chat/completions")),
        ("https://models.example.org/v1/", (True, "models.example.org", 443, "/v1/chat/completions")),
        ("http://[::1]:11434", (False, "::1", 11434, "/chat/completions")),
    ],
)
def test_addresses(url, expected):
    assert parse_address(url, "endpoint.base_url") == expected


def test_only_this_machine_is_local():
    for url, local in (
        ("http://localhost/v1", True),
        ("http://127.3.0.1/v1", True),
        ("http://[::1]/v1", True),
        ("http://10.0.0.1/v1", False),
        ("http://localhost.example.org/v1", False),
    ):
        assert parse_address(url, "x").local is local


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/v1",
        "file:///etc/passwd",
        "host:8000/v1",
        "http://",
        "http://:80/v1",
        "http://host:0/v1",
        "http://host/v1\r\nX: y",
        "http://ho st/v1",
        "http://host/v 1",
        "http://höst/v1",
        "http://host\\@other/v1",
        "",
    ],
)
def test_bad_addresses_are_refused_by_name(url):
    with raises_naming(ConfigError, "endpoint.base_url"):
        replace(GOOD, base_url=url).check()


@pytest.mark.parametrize(
    "url",
    [
        "http://user:hunter2@host/v1",
        "http://hunter2@host/v1",
        "https://host/v1?key=hunter2",
        "https://host/v1#hunter2",
        "http://host:hunter2/v1",
        # malformed in other ways, too
        "https://me:hunter2 x@host/v1",
        "https://me:hünter2@host/v1",
        "https://me:hunter2\n@host/v1",
        "me:hunter2@host/v1",
        "ftp://me:hunter2@host/v1",
        "http://[me:hunter2@host/v1",
        "host.example/v1?key=hunter2",
        "host.example/v1#hunter2",
        "https:/host/v1?api_key=hunter2",
        "https://?hunter2",
        "https://host/v 1?key=hunter2",
        "https://host\\v1?key=hunter2",
    ],
)
def test_a_secret_in_an_address_is_refused_and_not_shown(url):
    with raises_naming(ConfigError, "endpoint.base_url") as caught:
        replace(GOOD, base_url=url).check()
    assert "nter2" not in str(caught.value) and "http://HOST:PORT/v1" in str(caught.value)


@pytest.mark.parametrize(
    "field, value, parts",
    [
        ("model", " ", []),
        ("timeout_s", 0.0, [0.01]),
        ("call_timeout_s", float("nan"), ["nan"]),
        ("retries", -1, [0, 100]),
        ("backoff_s", -0.1, [0]),
        ("concurrency", 0, [1, 256]),
        ("queue_size", 0, [1]),
        ("max_answer_bytes", 10, [64]),
        ("max_tokens", 0, [1]),
        ("temperature", 3.0, [0, 2]),
        ("reply_format", "xml", ["json_schema", "text"]),
        ("max_requests", -1, [0]),
        ("max_cost", 5.0, ["endpoint.prompt_price"]),
        ("prompt_price", -1.0, [0]),
        ("answer_price", -1.0, [0]),
        ("answers", " ", []),
    ],
)
def test_ranges(field, value, parts):
    GOOD.check()
    with raises_naming(ConfigError, f"endpoint.{field}", *parts):
        replace(GOOD, **{field: value}).check()


def test_a_key_in_place_of_its_variable_is_not_shown():
    with raises_naming(ConfigError, "endpoint.key_env") as caught:
        replace(GOOD, key_env="sk-hunter2").check()
    assert "hunter2" not in str(caught.value)


def test_the_key_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("MODEL_KEY", " hunter2\n")
    assert read_key("MODEL_KEY", "endpoint") == "hunter2"
    for value in ("", "hun ter2", "hunter2\r\nX: y", "hünter2"):
        monkeypatch.setenv("MODEL_KEY", value)
        with raises_naming(ConfigError, "endpoint.key_env", "'MODEL_KEY'") as caught:
            read_key("MODEL_KEY", "endpoint")
        assert "nter2" not in str(caught.value)
    monkeypatch.delenv("MODEL_KEY")
    with raises_naming(ConfigError, "endpoint.key_env", "'MODEL_KEY'"):
        read_key("MODEL_KEY", "endpoint")
