"""One HTTP call: a size limit while the answer is read, a time limit over all of it, no redirects, no proxies."""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import suppress
from enum import Enum
from functools import cache
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import NamedTuple

from robotrl.rewards.endpoint.address import Address

LONGEST_PAUSE_S = 60.0
"""Longest wait that a server may ask for."""
PIECE = 1 << 16
OK = 200


class CallFault(Enum):
    """Reason why a call has no answer."""

    BUSY = "status 429 or 5xx"
    LOST = "no connection, or a lost one"
    SLOW = "the call took too long"
    REDIRECT = "a redirect"
    KEY = "the key is missing or not accepted"
    REFUSED = "another status than 200"
    LARGE = "an answer above max_answer_bytes"


RETRIED = frozenset({CallFault.BUSY, CallFault.LOST, CallFault.SLOW})
"""Faults that another call may not meet."""


class CallResult(NamedTuple):
    """Result of a call."""

    body: bytes | None
    """Answer; None with a fault."""
    fault: CallFault | None = None
    status: int | None = None
    pause_s: float | None = None
    """Wait that the server asked for."""
    billed: bool = False
    """True if the server may charge for the call: it has the whole request, and refused it by no status."""


class HttpCall:
    """A call under way, which another thread may end.

    A socket's time limit counts from its last byte, so a server that sends one now and then would hold a call for ever:
    whoever watches the clock calls `abort`.

    Args:
        address: address of the endpoint.
        deadline_s: `time.monotonic` at which the call should be over.
    """

    def __init__(self, address: Address, deadline_s: float) -> None:
        self._address = address
        self.deadline_s = deadline_s
        self._aborted = False
        self._sent = False
        self._socket: socket.socket | None = None

    def abort(self) -> None:
        """End the call from another thread."""
        self._aborted = True
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def post(self, body: bytes, key: str | None, most_bytes: int) -> CallResult:
        """Send a body, and read the answer.

        Args:
            body: JSON.
            key: bearer token.
            most_bytes: largest answer.
        """
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0 or self._aborted:
            return CallResult(None, CallFault.SLOW)
        host, port = self._address.host, self._address.port
        # a connection of its own for each call: an answer cannot be that of another request
        if self._address.secure:
            connection = HTTPSConnection(host, port, timeout=left_s, context=_tls())
        else:
            connection = HTTPConnection(host, port, timeout=left_s)
        try:
            return self._exchange(connection, body, key, most_bytes)
        except TimeoutError:
            return CallResult(None, CallFault.SLOW, billed=self._sent)
        # errors of the protocol and of the text that a server sends as one; their own text may repeat the key
        except (OSError, HTTPException, ValueError):
            return CallResult(None, CallFault.SLOW if self._aborted else CallFault.LOST, billed=self._sent)
        finally:
            connection.close()

    def _exchange(self, connection: HTTPConnection, body: bytes, key: str | None, most_bytes: int) -> CallResult:
        connection.connect()
        # the connection lets go of its socket before the answer is read
        self._socket = connection.sock
        if self._aborted:
            return CallResult(None, CallFault.SLOW)
        headers = {"Content-Type": "application/json", "Accept": "application/json", "Connection": "close"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        connection.request("POST", self._address.path, body, headers)
        self._sent = True
        with connection.getresponse() as response:
            fault = _fault_of(response.status)
            if fault is not None:
                return CallResult(None, fault, response.status, _pause_s(response.getheader("Retry-After")))
            return self._read(response, most_bytes)

    def _read(self, response: HTTPResponse, most_bytes: int) -> CallResult:
        if response.length is not None and response.length > most_bytes:
            return CallResult(None, CallFault.LARGE, billed=True)
        data = bytearray()
        while len(data) <= most_bytes:
            piece = response.read(min(PIECE, most_bytes + 1 - len(data)))
            if not piece:
                break
            data += piece
        if self._aborted:
            return CallResult(None, CallFault.SLOW, billed=True)
        if len(data) > most_bytes:
            return CallResult(None, CallFault.LARGE, billed=True)
        # a read of a given size does not complain about an end before the stated length
        if response.length:
            return CallResult(None, CallFault.LOST, billed=True)
        return CallResult(bytes(data), billed=True)


@cache
def _tls() -> ssl.SSLContext:
    # reads all certificates of the system
    return ssl.create_default_context()


def _fault_of(status: int) -> CallFault | None:
    if status == OK:
        return None
    if status == 429 or 500 <= status <= 599:
        return CallFault.BUSY
    if 300 <= status <= 399:
        return CallFault.REDIRECT
    return CallFault.KEY if status in (401, 403) else CallFault.REFUSED


def _pause_s(text: str | None) -> float | None:
    """Seconds of a Retry-After header, at most `LONGEST_PAUSE_S`; a date is not read."""
    if text is None or not text.isascii() or not text.isdecimal() or len(text) > 9:
        return None
    return min(float(text), LONGEST_PAUSE_S)
