"""Who may connect to a policy server: tokens, loopback, and TLS."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import socket
import ssl
from pathlib import Path
from urllib.parse import urlsplit

from robotrl.errors import ConfigError, out_of_range, short

MIN_TOKEN = 16
_MAX_TOKEN_BYTES = 4096
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCHEMES = ("bearer", "api-key")
"""Schemes of the Authorization header: ours, and that of openpi's client."""


def read_token(token_env: str | None, token_file: Path | None) -> str | None:
    """The token from the environment or a file; None if neither is named. No message shows it.

    Args:
        token_env: name of an environment variable.
        token_file: path of a file that holds the token alone.

    Raises:
        ConfigError: both are named, or what is named holds no token of `MIN_TOKEN` characters or more.
    """
    if token_env is not None and token_file is not None:
        raise ConfigError("token_env and token_file are both given: expected one of them")
    if token_env is not None:
        # whoever types the token in the place of the name must not find it in a log
        if not _ENVIRONMENT_NAME.fullmatch(token_env):
            raise ConfigError("token_env is not a name: expected the name of the environment variable")
        if token_env not in os.environ:
            raise ConfigError(f"token_env is {token_env!r}, which is not set: expected the token in that variable")
        return _checked(os.environ[token_env], f"token_env {token_env!r}")
    if token_file is None:
        return None
    try:
        with token_file.open("rb") as file:
            data = file.read(_MAX_TOKEN_BYTES)
    except OSError as error:
        raise ConfigError(f"token_file {str(token_file)!r} cannot be read: {error.strerror}") from error
    return _checked(data.decode("ascii", "replace"), f"token_file {str(token_file)!r}")


def _checked(text: str, where: str) -> str:
    token = text.strip()
    if len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            f"{where} holds no token: expected one line of {MIN_TOKEN} or more ASCII characters without spaces,"
            " as `openssl rand -hex 24` prints"
        )
    return token


def authorized(header: str | None, token: str | None) -> bool:
    """Whether an Authorization header ("Bearer TOKEN" or "Api-Key TOKEN") holds the token; in constant time.

    Args:
        header: the header's value; None if there is none.
        token: the server's token; None lets everyone in.
    """
    if token is None:
        return True
    scheme, _, given = (header or "").partition(" ")
    # digests have one length, so that the time does not tell the token's
    same = hmac.compare_digest(_digest(given.strip()), _digest(token))
    return same and scheme.lower() in _SCHEMES


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def bind_addresses(host: str, token: str | None) -> list[str]:
    """Numeric addresses to bind for a host.

    Raises:
        ConfigError: the host is unknown, or not loopback alone and there is no token.
    """
    if not host:
        raise ConfigError("host is '': expected an address of this machine; 127.0.0.1 for this machine alone")
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"host is {short(repr(host))}: expected an address of this machine ({error})") from error
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    if token is None and not all(is_loopback(address) for address in addresses):
        raise ConfigError(
            f"host is {host!r}, which other machines can reach: expected a token as well (--token-env NAME or"
            " --token-file FILE), or 127.0.0.1"
        )
    return addresses


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its name or number alone; nothing is looked up."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


def server_tls(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """TLS context of a server; None without a certificate.

    Raises:
        ConfigError: only one of both files is given, or they cannot be used.
    """
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise ConfigError("tls_cert and tls_key: expected both or neither")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # a key with a password would wait for someone to type it
        context.load_cert_chain(cert, key, password="")
    except OSError as error:  # ssl.SSLError is one
        reason = error.strerror or "not a certificate and its unencrypted key in PEM"
        raise ConfigError(f"tls_cert {str(cert)!r}, tls_key {str(key)!r} cannot be used: {reason}") from error
    return context


def client_tls(url: str, ca: Path | None) -> ssl.SSLContext | None:
    """TLS context for an address; None for ws://. The server's certificate and name are always verified.

    Args:
        url: checked by `check_url`.
        ca: certificate to trust instead of the system's authorities.

    Raises:
        ConfigError: a certificate for an address without TLS, or one that cannot be read.
    """
    if urlsplit(url).scheme == "ws":
        if ca is not None:
            raise ConfigError(f"tls_ca is {str(ca)!r}: expected none with a ws:// address, or a wss:// address")
        return None
    try:
        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
    except OSError as error:
        reason = error.strerror or "not a certificate in PEM"
        raise ConfigError(f"tls_ca {str(ca)!r} cannot be used: {reason}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def check_url(url: str, field: str) -> str:
    """Check the address of a policy server; returns it.

    Raises:
        ConfigError: not ws:// or wss:// with a host, or one with a user, password, query or fragment.
    """
    expected = "ws://HOST:PORT or wss://HOST:PORT"
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise out_of_range(field, url, f"{expected}, without spaces or control characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigError(f"{field} cannot be read: expected {expected}, with a port from 1 to 65535") from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError(f"{field} holds a user or password: expected {expected}, and the token by its own option")
    if parts.scheme not in ("ws", "wss") or not parts.hostname or port == 0 or "?" in url or "#" in url:
        raise out_of_range(field, url, expected)
    return url
