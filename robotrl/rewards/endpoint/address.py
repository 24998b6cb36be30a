"""Address of an endpoint, and the key that it asks for."""

from __future__ import annotations

import ipaddress
import os
from typing import NamedTuple
from urllib.parse import urlsplit

from robotrl.errors import ConfigError, out_of_range

CHAT = "/chat/completions"


class Address(NamedTuple):
    """Parsed base address."""

    secure: bool
    """True for https."""
    host: str
    port: int
    path: str
    """Path of the chat completions."""

    @property
    def local(self) -> bool:
        """True for this machine."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_address(base_url: str, field: str) -> Address:
    """Parse a base address strictly.

    Raises:
        ConfigError: it is not http or https, has no host or a wrong port, or holds a user, password, query or fragment.
            An address that may hold a secret, however malformed, is not shown.
    """
    expected = "http://HOST:PORT/v1 or https://HOST/v1"
    # looked for in the text: what cannot be parsed may hold a secret all the same
    if "@" in base_url:
        raise ConfigError(
            f"{field} holds a user or password: expected {expected}, and the key in the variable that key_env names"
        )
    if "?" in base_url or "#" in base_url:
        raise ConfigError(
            f"{field} holds a query or fragment: expected {expected}, and the key in the variable that key_env names"
        )
    # control characters and spaces would let a request be split; urlsplit drops some of them silently
    if not base_url.isascii() or not base_url.isprintable() or " " in base_url or "\\" in base_url:
        raise out_of_range(field, base_url, f"{expected}, without spaces or control characters")
    try:
        parts = urlsplit(base_url)
        port = parts.port
    except ValueError:
        raise ConfigError(f"{field} cannot be read: expected {expected}, with a port from 1 to 65535") from None
    if parts.scheme not in ("http", "https"):
        raise out_of_range(field, base_url, expected)
    if not parts.hostname or port == 0:
        raise out_of_range(field, base_url, f"{expected}, with a host and a port from 1 to 65535")
    secure = parts.scheme == "https"
    return Address(secure, parts.hostname, port or (443 if secure else 80), parts.path.rstrip("/") + CHAT)


def read_key(key_env: str, field: str) -> str:
    """Read the key from the environment.

    Raises:
        ConfigError: the variable is not set, or holds something that no HTTP header can; its value is not shown.
    """
    key = os.environ.get(key_env, "").strip()
    if not key:
        raise ConfigError(f"{field}.key_env is {key_env!r}, which is not set: expected the key in that variable")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError(f"{field}.key_env is {key_env!r}, which holds no key: expected one line of ASCII characters")
    return key
