"""Signs and verifies erasure records: ed25519 over a short statement that names one record of one erasure of one table. Pure.

The operator signs. Signing a statement again gives the same signature, so it can be repeated. Keys change, and a record is signed
once: a signature names its key, and verifies as long as the public key is known.
"""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from lethe.base.errors import InputError
from lethe.erasure.record import SIGNATURE_SUFFIX, canonical

ALGORITHM: Final = "ed25519"
SUFFIX: Final = SIGNATURE_SUFFIX
INVALID_KEY: Final = "InvalidKey"
_BLOCK: Final = re.compile(rb"-----BEGIN ([A-Z ]+)-----.+?-----END \1-----", re.DOTALL)
_TYPE: Final = "lethe erasure record"  # so that other documents signed with this key are not mistaken for it


@dataclass(frozen=True)
class Statement:
    """What is signed."""

    table_uuid: str
    restatement: str  # its key
    record_sha256: str  # in hex
    verified_time: datetime

    @property
    def document(self) -> dict[str, Any]:
        return {
            "type": _TYPE,
            "table-uuid": self.table_uuid,
            "restatement": self.restatement,
            "record-sha256": self.record_sha256,
            "verified-time": self.verified_time.isoformat(),
        }


@dataclass(frozen=True)
class PublicKey:
    """A key that verifies."""

    id: str  # the first 16 hex digits of the SHA-256 of its 32 bytes
    key: Ed25519PublicKey


class Signer:
    """A key that signs. Its `repr` contains only its id."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = _public(key.public_key())

    def __repr__(self) -> str:
        return f"Signer({self.public.id})"

    def sign(self, statement: Statement) -> str:
        """The signature in base64; always the same for a statement."""
        return base64.b64encode(self._key.sign(canonical(statement.document))).decode("ascii")

    def file(self, statement: Statement) -> bytes:
        """The content of the signature file."""
        return canonical(
            {
                "format-version": 1,
                "algorithm": ALGORITHM,
                "key-id": self.public.id,
                "statement": statement.document,
                "signature": self.sign(statement),
            }
        )


def load_signer(pem: bytes, name: str) -> Signer:
    """Load a private key.

    Args:
        name: Of the file, for the error.
    Raises: InputError (InvalidKey).
    """
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(INVALID_KEY, f"{name} must be an ed25519 private key in PEM without a password (PKCS #8).")
    return Signer(key)


def load_public_key(pem: bytes, name: str) -> PublicKey:
    """As `load_signer`, for a public key."""
    try:
        key = serialization.load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise InputError(INVALID_KEY, f"{name} must be an ed25519 public key in PEM (-----BEGIN PUBLIC KEY-----).")
    return _public(key)


def load_known_keys(pem: bytes, name: str) -> tuple[PublicKey, ...]:
    """Load the keys of a file that may sign no more, but verify: one or more public or private keys.

    Args:
        name: Of the file, for the error.
    Raises: InputError (InvalidKey).
    """
    blocks = [found[0] for found in _BLOCK.finditer(pem)]
    if not blocks:
        raise InputError(INVALID_KEY, f"{name} must contain ed25519 keys in PEM (-----BEGIN PUBLIC KEY-----).")
    return tuple(
        load_signer(block, name).public if b"PRIVATE KEY" in block[:64] else load_public_key(block, name)
        for block in blocks
    )


def signed_by(content: bytes) -> str:
    """How a status shows the signature in a valid signature file: the id of the key, a colon, and the signature."""
    document = json.loads(content)
    return f"{document['key-id']}:{document['signature']}"


def fault(content: bytes, expected: Statement, keys: Sequence[PublicKey]) -> str | None:
    """What is wrong with a signature file; None: one of the keys has signed exactly the expected statement."""
    try:
        document = json.loads(content)
        statement, key_id = document["statement"], document["key-id"]
        signature = base64.b64decode(document["signature"], validate=True)
    except (ValueError, KeyError, TypeError):
        return "it is not a readable signature file"
    for name, wanted in expected.document.items():
        if not isinstance(statement, dict) or statement.get(name) != wanted:
            return f"it signs another statement: its {name} differs"
    key = next((k for k in keys if k.id == key_id), None)
    if key is None:
        return f"it was made with the key {str(key_id)[:16]!r}, which is not one of those given"
    try:
        key.key.verify(signature, canonical(expected.document))
    except InvalidSignature:
        return "the key that it names did not sign this statement"
    return None


def _public(key: Ed25519PublicKey) -> PublicKey:
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return PublicKey(hashlib.sha256(raw).hexdigest()[:16], key)
