"""Makes, signs and verifies erasure records, and decides what still blocks one. Pure.

A record says what was erased, when, from which files, and how their absence was verified. It contains no values of rows: only
counts, digests and paths, without folder names that contain partition values. The operator signs: ed25519 over a short statement
that names one record of one erasure of one table.
"""

import base64
import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from lethe.base import names
from lethe.base.errors import InputError
from lethe.contract.result import LISTED_AT_MOST, RecordedRedaction, RequestResult
from lethe.contract.run import Provenance
from lethe.erasure.progress import History, OpenErasure
from lethe.erasure.strays import mentioned_in, named_in_summaries
from lethe.ledger.ledger import Carrier
from lethe.ledger.lineage import Snapshot
from lethe.ledger.tombstone import BlockerKind, Erasure, ErasureBlocker, PurgedFile
from lethe.uri import without_values
from lethe.vacuum.housekeeping import STAGED_GRACE_SECONDS

RUN_RECHECK_SECONDS: Final = 1800
"""When to look again for a run that blocks an erasure: it takes minutes, and its end triggers no check."""

FORMAT_VERSION: Final = 2
"""The format version of erasure records. Version 1 was not canonical."""
SIGNATURE_SUFFIX: Final = ".sig"
"""What the name of a signature adds to the name of its record."""
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

ALGORITHM: Final = "ed25519"
SUFFIX: Final = SIGNATURE_SUFFIX
INVALID_KEY: Final = "InvalidKey"
_BLOCK: Final = re.compile(rb"-----BEGIN ([A-Z ]+)-----.+?-----END \1-----", re.DOTALL)
_TYPE: Final = "lethe erasure record"
"""Part of each statement, so that other documents signed with this key are not mistaken for one."""


@dataclass(frozen=True)
class Ref:
    """A tag or branch."""

    name: str
    kind: BlockerKind
    snapshot_id: int
    until: datetime | None = None
    """When Iceberg removes it by itself; None: never."""


def holders(
    history: History, files: Mapping[str, PurgedFile], open_erasures: Collection[OpenErasure] = ()
) -> dict[int, frozenset[str]]:
    """By snapshot id, the keys of the erasures that it blocks.

    It names some of their files, or its metadata contains values of their rows.

    Args:
        files: The files that may hold rows, by path.
        open_erasures: The erasures whose values must not be in metadata any more.
    """
    of_manifest = {manifest: set(keys) for manifest, keys in mentioned_in(open_erasures, history).items()}
    for manifest, paths in history.named.items():
        keys = {k for p in paths if p in files for k in files[p].restatements}
        if keys:
            of_manifest.setdefault(manifest, set()).update(keys)
    in_summaries = named_in_summaries(open_erasures, history)
    keys_by_snapshot: dict[int, frozenset[str]] = {}
    for i, manifests in history.manifests.items():
        keys = set(in_summaries.get(i, ())).union(*(of_manifest.get(m, set()) for m in manifests))
        if keys:
            keys_by_snapshot[i] = frozenset(keys)
    return keys_by_snapshot


def to_expire(
    history: History,
    held: Mapping[int, Collection[str]],
    refs: Iterable[Ref],
    due: Collection[str],
    now: datetime,
) -> tuple[int, ...]:
    """The ids of the snapshots to expire for due erasures, oldest first, whatever the retention limits.

    Keeps snapshots that tags and branches name, and staged snapshots that their runs may still publish.
    """
    kept = {r.snapshot_id for r in refs} | {history.head_id}
    expiring = [
        history.snapshots[i]
        for i, keys in held.items()
        if i not in kept and any(k in due for k in keys) and staged_until(history.snapshots[i], history, now) is None
    ]
    return tuple(s.id for s in sorted(expiring, key=lambda s: (s.sequence_number, s.timestamp_ms)))


def staged_until(snapshot: Snapshot, history: History, now: datetime) -> datetime | None:
    """Until when a run may publish this staged snapshot; None: it is not staged, the time is over, or the run has committed."""
    wap_id = snapshot.summary.get(names.WAP_ID)
    if wap_id is None or history.last_commit_of.get(wap_id, -1) >= snapshot.sequence_number:
        return None
    until = _time(snapshot) + timedelta(seconds=STAGED_GRACE_SECONDS)
    return until if until > now else None


def losing_ledger(history: History, expiring: Collection[int], carriers: Iterable[Carrier]) -> bool:
    """Whether expiring these snapshots leaves a retained snapshot without a ledger.

    The newest ledger does not list its carrier.
    """
    named = {b for c in carriers for b in c.bare}
    for i, snapshot in history.snapshots.items():
        if i in expiring or i in named:
            continue
        current: Snapshot | None = snapshot
        while current is not None and current.ledger is None:
            if current.id in expiring:
                return True
            current = history.snapshots.get(current.parent_id) if current.parent_id is not None else None
        if current is not None and current.id in expiring and current.id != i:
            return True
    return False


def snapshot_blockers(
    history: History,
    held: Mapping[int, Collection[str]],
    refs: Collection[Ref],
    max_age_seconds: int,
    now: datetime,
) -> dict[str, list[ErasureBlocker]]:
    """By erasure, what keeps the snapshots that name its files: first tags and branches, then snapshots, oldest first."""
    of_snapshot: dict[int, list[Ref]] = {}
    for ref in refs:
        of_snapshot.setdefault(ref.snapshot_id, []).append(ref)
    blockers: dict[str, list[ErasureBlocker]] = {}
    snapshots = sorted((history.snapshots[i] for i in held), key=lambda s: (s.id not in of_snapshot, s.sequence_number))
    for snapshot in snapshots:
        for blocker in _blockers_of(snapshot, history, of_snapshot.get(snapshot.id, ()), max_age_seconds, now):
            for key in held[snapshot.id]:
                blockers.setdefault(key, []).append(blocker)
    return blockers


def _blockers_of(
    snapshot: Snapshot, history: History, refs: Collection[Ref], max_age_seconds: int, now: datetime
) -> Iterable[ErasureBlocker]:
    if refs:
        return [
            ErasureBlocker(r.kind, r.name, r.until, f"snapshot {snapshot.id}")
            for r in sorted(refs, key=lambda r: r.name)
        ]
    if (until := staged_until(snapshot, history, now)) is not None:
        return [ErasureBlocker(BlockerKind.STAGED_SNAPSHOT, str(snapshot.id), until, "its run may publish it")]
    over = _time(snapshot) + timedelta(seconds=max_age_seconds)
    return [
        ErasureBlocker(BlockerKind.SNAPSHOT, str(snapshot.id), over if over > now else None, "spec.snapshots keeps it")
    ]


def property_blocker() -> ErasureBlocker:
    """Blocks every erasure of a table whose properties forbid to delete files."""
    why = "it must be true to erase anything. Set it to true, or unset it"
    return ErasureBlocker(BlockerKind.TABLE_PROPERTY, names.GC_ENABLED, None, why)


def with_blockers(erasure: Erasure, blockers: Collection[ErasureBlocker], now: datetime, again_seconds: int) -> Erasure:
    """The erasure with these blockers.

    The next check is when the first blocker ends. Objects and runs are also checked at intervals, because no event reports their
    end; for tags, branches and snapshots the table's metadata reports it.
    """
    end_times = [b.until for b in blockers if b.until is not None and b.until > now]
    only_in_storage = any(
        b.kind in (BlockerKind.OBJECT, BlockerKind.OBJECT_VERSION, BlockerKind.LEGAL_HOLD) for b in blockers
    )
    pauses = [again_seconds] * only_in_storage + [RUN_RECHECK_SECONDS] * any(
        b.kind is BlockerKind.RUN for b in blockers
    )
    again = min([*end_times, *(now + timedelta(seconds=s) for s in pauses)], default=None)
    listed = tuple(blockers)[:LISTED_AT_MOST]
    same = (listed, len(blockers)) == (erasure.blockers, erasure.blockers_count)
    if same and (again == erasure.look_again or (erasure.look_again is not None and erasure.look_again > now)):
        return erasure
    return replace(erasure, blockers=listed, blockers_count=len(blockers), look_again=again)


def _time(snapshot: Snapshot) -> datetime:
    return datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)


@dataclass(frozen=True)
class Verification:
    """How the absence of the files was verified."""

    run_id: str
    time: datetime
    head_id: int | None
    """The current snapshot; None: the table is empty."""
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
    """The name of the record's file, which follows from the restatement and the content."""
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
            "named-by": "batches" if open_erasure.names_batches else "records",
            "batches": len(result.named_batch_ids),
            "rows-deleted": result.rows_deleted,
            "rows-erased": result.rows_erased,
            "snapshot-id": result.snapshot_id,
            "committed-time": _text(result.committed_time),
            "due-time": _text(erasure.evict_by),
            **_redaction(result),
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


def _redaction(result: RequestResult) -> dict[str, Any]:
    """What the record of a Redact says in addition: names, and no values."""
    redaction = result.redaction
    if redaction is None:
        return {}
    return {"rows-redacted": result.rows_redacted, "redaction": redaction_document(redaction)}


def redaction_document(redaction: RecordedRedaction) -> dict[str, Any]:
    """The field `redaction` of a record: names of columns, methods and the hash key."""
    columns = [{"column": c.column, "method": c.method} for c in redaction.columns]
    return {"columns": columns, "hash-key": redaction.hash_key or None}


def _named(objects: Sequence[str]) -> list[str]:
    """The objects, and how many more there are, with the digest of all: a record has a limited size."""
    every = sorted(objects)
    if len(every) <= FILES_AT_MOST:
        return every
    digest = hashlib.sha256("".join(f"{o}\n" for o in every).encode()).hexdigest()
    more = f"{len(every) - FILES_AT_MOST} more objects; SHA-256 of all {len(every)}, sorted, one per line: {digest}"
    return [*every[:FILES_AT_MOST], more]


def _request(result: RequestResult, batch_ids_digest: str) -> dict[str, Any]:
    """Who requested it and why, as far as known, and digests to compare it with the request."""
    return {
        **provenance_document(result.name, result.provenance or Provenance()),
        "batch-ids-digest": batch_ids_digest or None,
        "values-digest": result.values_digest or None,
    }


def provenance_document(name: str, provenance: Provenance) -> dict[str, Any]:
    """Who requested an erasure and why, as records have it.

    Args:
        name: `namespace/name` of the Restatement.
    """
    return {
        "name": name,
        "uid": provenance.uid or None,
        "created-time": _text(provenance.created_time),
        "reason": provenance.reason or None,
        "ticket": provenance.ticket or None,
        "managers": [{"name": m.name, "operation": m.operation, "time": _text(m.time)} for m in provenance.managers],
        "marks": dict(sorted(provenance.marks.items())),
    }


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


def _text(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()


class Signable(Protocol):
    """A statement about one record."""

    @property
    def document(self) -> dict[str, Any]:
        """The fields to sign, ready for JSON. Their `type` makes the signature useless for other kinds of documents."""


@dataclass(frozen=True)
class Statement:
    """What is signed of the record of one table.

    Signing a statement again gives the same signature, so it can be repeated. Keys change, and a record is signed once: a
    signature names its key, and verifies as long as the public key is known.
    """

    table_uuid: str
    restatement: str
    """Its key."""
    record_sha256: str
    """The SHA-256 of the record, in hex."""
    verified_time: datetime

    @property
    def document(self) -> dict[str, Any]:
        """The fields to sign, ready for JSON. `type` makes the signature useless for other kinds of documents."""
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

    def sign(self, statement: Signable) -> str:
        """The signature in base64; always the same for a statement."""
        return base64.b64encode(self._key.sign(canonical(statement.document))).decode("ascii")

    def file(self, statement: Signable) -> bytes:
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
    """Load a public key, with the same checks as `load_signer`."""
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


def fault(content: bytes, expected: Signable, keys: Sequence[PublicKey]) -> str | None:
    """What is wrong with a signature file; None: one of the keys has signed exactly the expected statement."""
    try:
        document = json.loads(content)
        statement, key_id = document["statement"], document["key-id"]
        signature = base64.b64decode(document["signature"], validate=True)
    except (ValueError, KeyError, TypeError, RecursionError):
        return "it is not a readable signature file"
    for name, expected_value in expected.document.items():
        if not isinstance(statement, dict) or statement.get(name) != expected_value:
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
