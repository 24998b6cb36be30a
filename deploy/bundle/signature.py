"""Detached Ed25519 signature of a bundle (RFC 8032): a site runs what somebody whom it trusts has signed.

The manifest is signed. It holds the hash of every other file, so the signature covers the whole bundle. The signature
lies beside it in `signature.json`; keys are PEM files as OpenSSL writes them (`openssl genpkey -algorithm ed25519`).
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robotrl.errors import ConfigError, DataError, short

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE_FILE = "signature.json"
MAX_SIGNATURE_BYTES = 4096
ALGORITHM = "ed25519"
_CONTEXT = b"robotrl bundle manifest\n"
"""Begins each signed message, so that a signature of another kind of file never fits."""
_MAX_KEY_BYTES = 1 << 16
_FIELDS = {"schema_version", "algorithm", "signature"}


def signature_of(manifest: bytes, key_file: str | os.PathLike[str]) -> bytes:
    """Content of `signature.json` for a manifest.

    Args:
        manifest: content of the bundle's `manifest.json`.
        key_file: private Ed25519 key, a PEM file without a passphrase.

    Raises:
        ConfigError: the file holds no such key.
    """
    signature = _private(Path(key_file)).sign(_CONTEXT + manifest)
    content = {"schema_version": 1, "algorithm": ALGORITHM, "signature": base64.b64encode(signature).decode()}
    return json.dumps(content, indent=2).encode() + b"\n"


def check_private_key(key_file: str | os.PathLike[str]) -> None:
    """Check that a file holds a private key, before work whose result it is to sign.

    Raises:
        ConfigError: the file holds no such key.
    """
    _private(Path(key_file))


def check_signature(where: str, manifest: bytes, found: bytes | None, key_file: str | os.PathLike[str]) -> None:
    """Check that a bundle's manifest was signed by the owner of a key.

    Args:
        where: the bundle, for errors.
        manifest: content of its `manifest.json`.
        found: content of its `signature.json`; None if it has none.
        key_file: public Ed25519 key, a PEM file.

    Raises:
        ConfigError: the file holds no such key.
        DataError: there is no signature, it cannot be read, or it is not of this manifest by this key.
    """
    from cryptography.exceptions import InvalidSignature

    key = _public(Path(key_file))
    if found is None:
        raise DataError(f"{where} is not signed: expected a {SIGNATURE_FILE} by the key {os.fspath(key_file)!r}")
    try:
        key.verify(_parse(where, found), _CONTEXT + manifest)
    except InvalidSignature as error:
        raise DataError(
            f"{where}: {SIGNATURE_FILE} is not a signature of this manifest by the key {os.fspath(key_file)!r}: the"
            " bundle was changed, or somebody else signed it"
        ) from error


def _parse(where: str, found: bytes) -> bytes:
    """The signature's 64 bytes."""
    try:
        content: Any = json.loads(found)
        if not isinstance(content, dict) or set(content) != _FIELDS or content["schema_version"] != 1:
            raise ValueError(f"expected the fields {', '.join(sorted(_FIELDS))}, of schema 1")
        if content["algorithm"] != ALGORITHM:
            raise ValueError(f"algorithm is {short(repr(content['algorithm']))}: expected {ALGORITHM!r}")
        signature = base64.b64decode(content["signature"], validate=True)
    except (ValueError, TypeError, binascii.Error, RecursionError) as error:
        raise DataError(f"{where}: {SIGNATURE_FILE} cannot be read: {short(str(error))}") from error
    return signature


def _private(path: Path) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    wanted = "expected a PEM file with a private Ed25519 key, without a passphrase (openssl genpkey -algorithm ed25519)"
    try:
        key = load_pem_private_key(_read(path), None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"key {str(path)!r} cannot be read: {wanted}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"key {str(path)!r} is of another algorithm: {wanted}")
    return key


def _public(path: Path) -> Ed25519PublicKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    wanted = "expected a PEM file with a public Ed25519 key (openssl pkey -in KEY -pubout)"
    try:
        key = load_pem_public_key(_read(path))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"key {str(path)!r} cannot be read: {wanted}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"key {str(path)!r} is of another algorithm: {wanted}")
    return key


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_KEY_BYTES)
    except OSError as error:
        raise ConfigError(f"key {str(path)!r} cannot be read: {error.strerror}") from error
