"""A signature is of one record of one erasure of one table, by one key, and of nothing else."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from lethe.base.errors import InputError
from lethe.erasure.record import Signer, Statement, canonical, fault, load_public_key, load_signer

from tests.support.builders import NOW

SIGNER = Signer(Ed25519PrivateKey.from_private_bytes(b"1" * 32))
OTHER = Signer(Ed25519PrivateKey.from_private_bytes(b"2" * 32))
STATEMENT = Statement("u", "ns/erase/0", "ab" * 32, NOW)
FILE = SIGNER.file(STATEMENT)


def test_what_was_signed_verifies_with_the_key_and_is_the_same_each_time() -> None:
    assert fault(FILE, STATEMENT, [OTHER.public, SIGNER.public]) is None
    assert SIGNER.file(STATEMENT) == FILE
    assert json.loads(FILE)["key-id"] == SIGNER.public.id != OTHER.public.id


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"table_uuid": "v"}, "table-uuid"),
        ({"restatement": "ns/other/0"}, "restatement"),
        ({"record_sha256": "cd" * 32}, "record-sha256"),
        ({"verified_time": NOW + timedelta(seconds=1)}, "verified-time"),
    ],
)
def test_a_signature_of_something_else_is_none(change: dict[str, Any], named: str) -> None:
    expected = replace(STATEMENT, **change)

    assert named in (fault(FILE, expected, [SIGNER.public]) or "")
    # Nor does it help to write the expected statement over the one that was signed.
    forged = canonical({**json.loads(FILE), "statement": expected.document})
    assert fault(forged, expected, [SIGNER.public]) == "the key that it names did not sign this statement"


def test_a_signature_by_another_key_is_none() -> None:
    assert "not one of those given" in (fault(OTHER.file(STATEMENT), STATEMENT, [SIGNER.public]) or "")
    renamed = canonical({**json.loads(OTHER.file(STATEMENT)), "key-id": SIGNER.public.id})
    assert fault(renamed, STATEMENT, [SIGNER.public]) == "the key that it names did not sign this statement"


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"statement": 1, "key-id": 2, "signature": "*"}', b"\xff"])
def test_what_is_no_signature_file_is_named_so(content: bytes) -> None:
    assert fault(content, STATEMENT, [SIGNER.public]) == "it is not a readable signature file"


def pem(key: Any) -> tuple[bytes, bytes]:
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, form, plain)
    info = serialization.PublicFormat.SubjectPublicKeyInfo
    return private, key.public_key().public_bytes(serialization.Encoding.PEM, info)


def test_keys_are_read_from_pem_and_others_are_refused_without_a_word_of_them() -> None:
    private, public = pem(Ed25519PrivateKey.from_private_bytes(b"1" * 32))
    assert (load_signer(private, "k").public.id, load_public_key(public, "p").id) == (SIGNER.public.id,) * 2

    ecdsa, ecdsa_public = pem(generate_private_key(SECP256R1()))
    for content in (b"secret", ecdsa, public):
        with pytest.raises(InputError, match="ed25519 private key") as refused:
            load_signer(content, "key.pem")
        assert "secret" not in str(refused.value)
    for content in (b"secret", ecdsa_public, private):
        with pytest.raises(InputError, match="ed25519 public key"):
            load_public_key(content, "key.pub")
    assert repr(SIGNER) == f"Signer({SIGNER.public.id})"
