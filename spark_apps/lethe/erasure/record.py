"""Makes the erasure record: what was erased, when, from which files, and how their absence was verified. Pure.

It contains no values of rows: only counts, digests and paths, without folder names that contain partition values.

Signs and verifies erasure records: ed25519 over a short statement that names one record of one erasure of one table. Pure.

The operator signs. Signing a statement again gives the same signature, so it can be repeated. Keys change, and a record is signed
once: a signature names its key, and verifies as long as the public key is known.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from lethe.base.errors import InputError
from lethe.contract.result import RequestResult
from lethe.contract.run import Provenance
from lethe.erasure.progress import OpenErasure
from lethe.ledger.erasure import PurgedFile
from lethe.uri import without_values

FORMAT_VERSION: Final = 2  # 1 was not canonical
SIGNATURE_SUFFIX: Final = ".sig"  # appended to the name of a record
FILES_AT_MOST: Final = 10_000
NOT_COVERED: Final = (
    "objects in the buffer",
    "replacement folders",
    "default values of columns in the table's schemas",
    "values of partitions in the ledger, of tables that are partitioned by a column itself",
    "copies outside the table's location, such as backups",
    "writers other than Lethe that read the table before the purge and commit or leave files later",
)

NOT_LISTED: Final = "files of the table's metadata that no snapshot names, because Lethe cannot list this storage"


@dataclass(frozen=True)
class Verification:
    """How the absence of the files was verified."""

    run_id: str
    time: datetime
    head_id: int | None
    """None: the table is empty."""
    snapshots: int
    """Retained."""
    refs: tuple[str, ...]
    """Tags and branches."""
    calls: Mapping[str, int]
    """Kind of storage request -> number, for all erasures verified together."""
    all_versions: bool
    """The storage listed older versions, and there were none."""
    folders_listed: bool
    """The folders of runs were searched for files of runs without a commit."""
    leftovers: int
    """The number of such files that were removed."""
    locations: tuple[str, ...] = ()
    """Folders below which every file was checked."""
    not_covered: tuple[str, ...] = ()
    """What this verification could not check, beside NOT_COVERED."""
    uncovered: tuple[str, ...] = ()
    """The objects that were neither read nor removed, each with the reason."""


@dataclass(frozen=True)
class Record:
    """An erasure record as a file."""

    name: str
    """Of the file: from the restatement and the content."""
    content: bytes
    sha256: str


def record(
    open_erasure: OpenErasure,
    table: Mapping[str, str],
    files: Sequence[PurgedFile],
    verified: Verification,
    snapshots: Sequence[int],
    batch_ids_digest: str = "",
) -> Record:
    """Make the record of one erasure.

    Args:
        table: Its name, uuid and location.
        files: The files that may have held its rows.
        snapshots: Ids of the snapshots that were expired for it, whatever the retention limits.
        batch_ids_digest: The keyed digest of its batches; empty: there is no key, or it is by records.
    """
    erasure, result = open_erasure.erasure, open_erasure.result
    paths = sorted((without_values(f.path), f.bytes, f.content) for f in files)
    whole = "".join(f"{p}\t{size}\t{content}\n" for p, size, content in paths).encode()
    document: dict[str, Any] = {
        "format-version": FORMAT_VERSION,
        "table": dict(table),
        "restatement": {
            "key": open_erasure.key,
            "operation": result.operation or "",
            "named-by": "records" if open_erasure.by_records else "batches",
            "batches": len(result.batch_ids),
            "rows-deleted": result.rows_deleted,
            "rows-erased": result.rows_erased,
            "snapshot-id": result.snapshot_id,
            "committed-time": _text(result.committed_time),
            "due-time": _text(erasure.evict_by),
        },
        "request": _request(result, batch_ids_digest),
        "purge": {"snapshot-id": erasure.purged_by, "seen-time": _text(erasure.purged_time)},
        "expired-snapshots": list(snapshots),
        "files": [{"path": p, "bytes": size, "content": content} for p, size, content in paths[:FILES_AT_MOST]],
        "files-count": len(paths),
        "files-bytes": sum(size for _, size, _ in paths),
        "files-sha256": hashlib.sha256(whole).hexdigest(),
        "verified": {
            "run": verified.run_id,
            "time": _text(verified.time),
            "head-snapshot-id": verified.head_id,
            "retained-snapshots": verified.snapshots,
            "tags-and-branches": sorted(verified.refs),
            "storage-calls": dict(sorted(verified.calls.items())),
            "all-versions": verified.all_versions,
            "run-folders-listed": verified.folders_listed,
            "leftovers-removed": verified.leftovers,
            "locations": [without_values(uri) for uri in verified.locations],
        },
        "not-covered": [
            *NOT_COVERED,
            *(() if verified.folders_listed else (NOT_LISTED,)),
            *verified.not_covered,
            *_named(verified.uncovered),
        ],
    }
    content = canonical(document)
    digest = hashlib.sha256(content).hexdigest()
    return Record(f"{file_prefix(open_erasure.key)}{digest[:16]}.json", content, digest)


def _named(objects: Sequence[str]) -> list[str]:
    """The objects, and how many more there are, with the digest of all: a record has a limited size."""
    every = sorted(objects)
    if len(every) <= FILES_AT_MOST:
        return every
    digest = hashlib.sha256("".join(f"{o}\n" for o in every).encode()).hexdigest()
    more = f"{len(every) - FILES_AT_MOST} more objects; SHA-256 of all {len(every)}, sorted, one per line: {digest}"
    return [*every[:FILES_AT_MOST], more]


def canonical(document: Mapping[str, Any]) -> bytes:
    """The canonical form of a document.

    One line of JSON in ASCII, the names in each object sorted, no spaces between tokens, and a line feed at the end.
    All numbers are integers.
    """
    return f"{json.dumps(document, sort_keys=True, separators=(',', ':'), allow_nan=False)}\n".encode("ascii")


def file_prefix(key: str) -> str:
    """The prefix of the names of all records of one restatement.

    The rest of a name depends on the content, so different contents have different names.
    """
    return f"{hashlib.sha256(key.encode()).hexdigest()[:16]}-"


def _request(result: RequestResult, batch_ids_digest: str) -> dict[str, Any]:
    """Who requested it and why, as far as known, and digests to compare it with the request."""
    provenance = result.provenance or Provenance()
    return {
        "name": result.name,
        "uid": provenance.uid or None,
        "created-time": _text(provenance.created_time),
        "reason": provenance.reason or None,
        "ticket": provenance.ticket or None,
        "batch-ids-digest": batch_ids_digest or None,
        "values-digest": result.values_digest or None,
        "managers": [{"name": m.name, "operation": m.operation, "time": _text(m.time)} for m in provenance.managers],
        "marks": dict(sorted(provenance.marks.items())),
    }


def _text(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()


ALGORITHM: Final = "ed25519"
SUFFIX: Final = SIGNATURE_SUFFIX
INVALID_KEY: Final = "InvalidKey"
_BLOCK: Final = re.compile(rb"-----BEGIN ([A-Z ]+)-----.+?-----END \1-----", re.DOTALL)
_TYPE: Final = "lethe erasure record"  # so that other documents signed with this key are not mistaken for it


@dataclass(frozen=True)
class Statement:
    """What is signed."""

    table_uuid: str
    restatement: str
    """Its key."""
    record_sha256: str
    """In hex."""
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

    id: str
    """The first 16 hex digits of the SHA-256 of its 32 bytes."""
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

    Raises:
        InputError: InvalidKey.
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

    Raises:
        InputError: InvalidKey.
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
