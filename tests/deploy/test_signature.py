"""Signed bundles: made with OpenSSL's keys, and refused where anything of them changed."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path

import pytest

import tests.kits.deploy_graphs as graphs
import tests.kits.deploy_kit as kit
from robotrl.deploy.bundle.bundle import open_bundle
from robotrl.deploy.bundle.signature import SIGNATURE_FILE, signature_of
from robotrl.deploy.control.run import run_control
from robotrl.errors import ConfigError, DataError

CART = "sim:tests.kits.deploy_cart:make_cart"


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def keys(folder: Path, name: str) -> tuple[Path, Path]:
    """Private and public key."""
    private, public = folder / f"{name}.pem", folder / f"{name}.public.pem"
    openssl("genpkey", "-algorithm", "ed25519", "-out", str(private))
    openssl("pkey", "-in", str(private), "-pubout", "-out", str(public))
    return private, public


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return keys(tmp_path_factory.mktemp("keys"), "ours")


@pytest.fixture
def signed(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, key: tuple[Path, Path]) -> Path:
    bundle = Path(shutil.copytree(kit.patient("goal", tmp_path_factory.getbasetemp()), tmp_path / "bundle"))
    (bundle / SIGNATURE_FILE).write_bytes(signature_of((bundle / "manifest.json").read_bytes(), key[0]))
    return bundle


def test_a_signed_bundle_runs_where_its_key_is_asked_for(signed: Path, key: tuple[Path, Path]) -> None:
    assert open_bundle(signed).manifest == open_bundle(signed, key[1]).manifest
    assert run_control(signed, CART, episodes=1, signed_by=key[1]).successes == 1


def test_openssl_verifies_the_signature_too(signed: Path, key: tuple[Path, Path], tmp_path: Path) -> None:
    message, signature = tmp_path / "message", tmp_path / "signature"
    message.write_bytes(b"robotrl bundle manifest\n" + (signed / "manifest.json").read_bytes())
    signature.write_bytes(base64.b64decode(json.loads((signed / SIGNATURE_FILE).read_text())["signature"]))
    files = ("-in", str(message), "-sigfile", str(signature))
    openssl("pkeyutl", "-verify", "-pubin", "-inkey", str(key[1]), "-rawin", *files)


def test_a_bundle_that_was_sealed_again_is_refused(signed: Path, key: tuple[Path, Path]) -> None:
    graphs.reseal(signed, lambda data: data["safety"].update(bad_ticks_to_damp=99))
    open_bundle(signed)
    with pytest.raises(DataError, match=r"signature.json is not a signature of this manifest by the key"):
        run_control(signed, CART, episodes=1, signed_by=key[1])


def test_another_file_is_still_found_by_its_hash(signed: Path, key: tuple[Path, Path]) -> None:
    graph = signed / "policy.onnx"
    graph.write_bytes(graph.read_bytes()[:-1] + b"\0")
    with pytest.raises(DataError, match=r"'policy.onnx' has"):
        open_bundle(signed, key[1])


def test_somebody_elses_signature_and_none_are_refused(signed: Path, tmp_path: Path) -> None:
    _, public = keys(tmp_path, "theirs")
    with pytest.raises(DataError, match="somebody else signed it"):
        open_bundle(signed, public)
    (signed / SIGNATURE_FILE).unlink()
    with pytest.raises(DataError, match=r"is not signed: expected a signature.json by the key"):
        open_bundle(signed, public)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff\xfe",
        b"[" * 4000,
        b'{"schema_version": 1, "algorithm": "ed25519"}',
        b'{"schema_version": 2, "algorithm": "ed25519", "signature": ""}',
        b'{"schema_version": 1, "algorithm": "rsa", "signature": ""}',
        b'{"schema_version": 1, "algorithm": "ed25519", "signature": "***"}',
        b'{"schema_version": 1, "algorithm": "ed25519", "signature": 7}',
    ],
)
def test_a_signature_that_is_none_is_refused(signed: Path, key: tuple[Path, Path], content: bytes) -> None:
    (signed / SIGNATURE_FILE).write_bytes(content)
    with pytest.raises(DataError, match=r"signature.json cannot be read"):
        open_bundle(signed, key[1])


def test_short_and_long_signatures_are_refused(signed: Path, key: tuple[Path, Path]) -> None:
    for length in (0, 63, 65):
        text = base64.b64encode(bytes(length)).decode()
        content = {"schema_version": 1, "algorithm": "ed25519", "signature": text}
        (signed / SIGNATURE_FILE).write_text(json.dumps(content))
        with pytest.raises(DataError, match="is not a signature of this manifest"):
            open_bundle(signed, key[1])
    (signed / SIGNATURE_FILE).write_bytes(b" " * 5000)
    with pytest.raises(DataError, match="at most 4096 are accepted"):
        open_bundle(signed, key[1])


def test_keys_of_another_kind_are_named(signed: Path, key: tuple[Path, Path], tmp_path: Path) -> None:
    manifest = (signed / "manifest.json").read_bytes()
    private = tmp_path / "x.pem"
    openssl("genpkey", "-algorithm", "x25519", "-out", str(private))
    with pytest.raises(
        ConfigError, match=r"x.pem' is of another algorithm: expected a PEM file with a private Ed25519"
    ):
        signature_of(manifest, private)
    for wrong, says in ((key[1], "private"), (tmp_path / "none.pem", "No such file")):
        with pytest.raises(ConfigError, match=says):
            signature_of(manifest, wrong)
    with pytest.raises(ConfigError, match="a public Ed25519 key"):
        open_bundle(signed, key[0])
