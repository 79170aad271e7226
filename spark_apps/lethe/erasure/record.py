"""The erasure record: what was erased, when, from which files, and how it was seen that they are gone. Pure.

It holds no value of a row: batches and paths only, and of these no folder that is named after a partition's value.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from lethe.contract.result import RequestResult
from lethe.contract.run import Provenance
from lethe.erasure.progress import Claim
from lethe.ledger.erasure import PurgedFile
from lethe.uri import without_values

FORMAT_VERSION: Final = 2  # 1 was not canonical
FILES_AT_MOST: Final = 10_000
NOT_COVERED: Final = (
    "objects in the buffer",
    "replacement folders",
    "default values of columns in the table's schemas",
    "values of partitions that the ledger remembers, of tables that are partitioned by a column itself",
    "copies outside the table's location, such as backups",
    "writers other than Lethe that read the table before the purge and commit or leave files later",
)

NOT_LISTED: Final = "files of the table's metadata that no snapshot names, since nobody knows how to list this storage"


@dataclass(frozen=True)
class Verification:
    """How it was looked.

    Args:
        calls: How often the storage was asked what, over all that was verified at once.
        all_versions: Whether it told of older versions, and of none.
        folders_listed: Whether the folders of runs were looked through for files of runs that came to nothing.
        leftovers: How many of those were removed.
        refs: The tags and branches that there were.
        locations: The folders below which every file was looked at.
        not_covered: What nobody could look at, beside what no verification looks at.
    """

    run_id: str
    time: datetime
    head_id: int | None
    snapshots: int
    refs: tuple[str, ...]
    calls: Mapping[str, int]
    all_versions: bool
    folders_listed: bool
    leftovers: int
    locations: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()


@dataclass(frozen=True)
class Record:
    """`name` of the file, after the restatement and the content."""

    name: str
    content: bytes
    sha256: str


def record(
    claim: Claim,
    table: Mapping[str, str],
    files: Sequence[PurgedFile],
    verified: Verification,
    snapshots: Sequence[int],
    batch_ids_digest: str = "",
) -> Record:
    """The record of one erasure.

    Args:
        table: Its name, uuid and location.
        files: Those that may have held its rows.
        snapshots: Ids of the snapshots that were expired for it, whatever the retention limits.
        batch_ids_digest: Keyed, of the batches that it is of; "": there is no key, or it is about records.
    """
    erasure, result = claim.erasure, claim.result
    paths = sorted((without_values(f.path), f.bytes, f.content) for f in files)
    whole = "".join(f"{p}\t{size}\t{content}\n" for p, size, content in paths).encode()
    document: dict[str, Any] = {
        "format-version": FORMAT_VERSION,
        "table": dict(table),
        "restatement": {
            "key": claim.key,
            "operation": result.operation or "",
            "named-by": "records" if claim.by_records else "batches",
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
        "not-covered": [*NOT_COVERED, *(() if verified.folders_listed else (NOT_LISTED,)), *verified.not_covered],
    }
    content = canonical(document)
    digest = hashlib.sha256(content).hexdigest()
    return Record(f"{file_prefix(claim.key)}{digest[:16]}.json", content, digest)


def canonical(document: Mapping[str, Any]) -> bytes:
    """The only form in which a record of this content is written: one line of JSON in ASCII, the names in each object sorted, no
    space between tokens, and a line feed at the end. There are no numbers but whole ones."""
    return f"{json.dumps(document, sort_keys=True, separators=(',', ':'), allow_nan=False)}\n".encode("ascii")


def file_prefix(key: str) -> str:
    """How the names of all records of one restatement begin; what follows is of the content, so that no two contents have one
    name."""
    return f"{hashlib.sha256(key.encode()).hexdigest()[:16]}-"


def _request(result: RequestResult, batch_ids_digest: str) -> dict[str, Any]:
    """Who asked for it and why, as far as that is known, and by what it can be compared with what was asked for."""
    asked = result.provenance or Provenance()
    return {
        "name": result.name,
        "uid": asked.uid or None,
        "created-time": _text(asked.created_time),
        "reason": asked.reason or None,
        "ticket": asked.ticket or None,
        "batch-ids-digest": batch_ids_digest or None,
        "values-digest": result.values_digest or None,
        "managers": [{"name": m.name, "operation": m.operation, "time": _text(m.time)} for m in asked.managers],
        "marks": dict(sorted(asked.marks.items())),
    }


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
