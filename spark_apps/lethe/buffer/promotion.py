"""Decides which batches of a run are promoted, how refused ones leave the buffer, and which objects may be deleted. Pure.

Invariants: a batch is promoted once. Only objects that were checked are moved, and only objects that were promoted and are
unchanged since are deleted.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from lethe.base import names
from lethe.base.errors import Verdict
from lethe.base.objects import BufferedObject, ListedObject
from lethe.buffer.layout import BufferedBatch, fingerprint, is_data
from lethe.ledger.ledger import BatchEntry, BatchState, Delta, Ledger, get_many

_DIGITS = 12
"""The length of a fingerprint: one batch id is refused a handful of times, not millions."""

FILES_AT_MOST: Final = 1000
"""How many data files the batches of a run may have. A Spark Job, too, reads the footers of so many files in its driver."""
OBJECTS_AT_MOST: Final = 20_000
"""How many objects the buffer may have: the run lists them all, which takes some seconds of one core."""


@dataclass(frozen=True)
class Promotion:
    """The requested batches, by what happens to them."""

    promote: tuple[str, ...]
    """The batches to promote, in the requested order."""
    already: tuple[str, ...]
    """The batches that are in the table already."""
    withheld: tuple[str, ...]
    """Reverted or replaced."""


def plan_promotion(ledger: Ledger, batch_ids: Iterable[str]) -> Promotion:
    """Decide for each batch whether it may be promoted now. Reads only the entries of these batches."""
    requested_ids = tuple(dict.fromkeys(batch_ids))
    entries = get_many(ledger.batches, requested_ids)
    promote: list[str] = []
    already: list[str] = []
    withheld: list[str] = []
    for i in requested_ids:
        entry = entries.get(i)
        if entry is None or not entry.blocks_promotion:
            promote.append(i)
        elif entry.state is BatchState.PROMOTED:
            already.append(i)
        else:
            withheld.append(i)
    return Promotion(tuple(promote), tuple(already), tuple(withheld))


@dataclass(frozen=True)
class WrittenBatch:
    """A batch whose rows are in files that are written and not yet committed."""

    id: str
    rows: int
    bytes: int
    objects: tuple[BufferedObject, ...]
    registered: bool = False
    """True: these files are its objects in the buffer, registered without a rewrite."""


@dataclass(frozen=True)
class WrittenFiles:
    """Files with the rows of batches, not yet committed by Lethe."""

    batches: Mapping[str, WrittenBatch]
    """The written batches, by id."""
    partitions: Mapping[str, tuple[str, ...] | None] | None = None
    """The partitions that may contain rows of each batch. None, or no entry for a batch: any partition."""
    in_table: bool = (
        False  # another writer has already added the files to the table, and only the ledger entries are missing
    )
    references: Mapping[str, str] = field(default_factory=dict)
    """The references that the deliveries of batches named, also of refused and held ones, by batch id."""


@dataclass(frozen=True)
class JudgedBatch:
    """A batch that is refused or held."""

    refusal: Verdict
    objects: tuple[BufferedObject, ...]
    """The objects that were checked."""
    is_held: bool = False
    """It fails a check, and waits for a person in the buffer."""

    @property
    def state(self) -> BatchState:
        """What the ledger records."""
        return BatchState.HELD if self.is_held else BatchState.REFUSED


@dataclass(frozen=True)
class StageNote:
    """The document beside a table that describes the batches of staged files, so that another attempt of the run finds them.

    It contains no rows.
    """

    batches: Mapping[str, WrittenBatch]
    """The written batches, by id."""
    refused: Mapping[str, JudgedBatch]
    """The refused and held batches, by id."""
    missing: Mapping[str, str]
    """Why a batch could not be read, by batch id."""
    references: Mapping[str, str]
    """As of `WrittenFiles`. Earlier builds did not write them."""

    def to_json(self) -> bytes:
        """The document."""
        document = {
            "batches": [
                {"id": b.id, "rows": b.rows, "bytes": b.bytes, "objects": _fields(b.objects)}
                for b in self.batches.values()
            ],
            "refused": [
                {
                    "id": i,
                    "reason": found.refusal.reason,
                    "message": found.refusal.message,
                    "held": found.is_held,
                    "objects": _fields(found.objects),
                }
                for i, found in self.refused.items()
            ],
            "missing": dict(self.missing),
            "references": dict(self.references),
        }
        return json.dumps(document).encode()

    @classmethod
    def of(cls, content: bytes) -> "StageNote":
        """The note in a document, also in one of an earlier build."""
        document = json.loads(content)
        batches = {b["id"]: WrittenBatch(b["id"], b["rows"], b["bytes"], _objects(b)) for b in document["batches"]}
        refused = {
            r["id"]: JudgedBatch(Verdict(r["reason"], r["message"]), _objects(r), r.get("held", False))
            for r in document["refused"]
        }
        return cls(batches, refused, document["missing"], document.get("references", {}))

    @staticmethod
    def has_keys(document: Mapping[str, Any]) -> bool:
        """Whether a document has the keys of a note, and no others."""
        return document.keys() - {"references"} == {"batches", "refused", "missing"}


def _fields(objects: Iterable[BufferedObject]) -> list[list[Any]]:
    return [[*o.fields] for o in objects]


def _objects(entry: Mapping[str, Any]) -> tuple[BufferedObject, ...]:
    return tuple(BufferedObject(*fields) for fields in entry["objects"])


@dataclass(frozen=True)
class Publish:
    """Commit the written files with this delta."""

    delta: Delta


@dataclass(frozen=True)
class WriteAgain:
    """Abandon the written files and write these batches again.

    Some batches of the files were promoted, reverted or replaced meanwhile. Batches share files: committing the files would
    duplicate rows, and dropping the files would lose rows of other batches.
    """

    batch_ids: tuple[str, ...]


def plan_publication(
    ledger: Ledger, written: WrittenFiles, refused: Mapping[str, JudgedBatch], run: str, now: datetime
) -> Publish | WriteAgain:
    """Decide whether written files may be committed on this ledger.

    Args:
        refused: The refused and held batches, by id.
    """
    promotion = plan_promotion(ledger, written.batches)
    if not written.in_table and (promotion.already or promotion.withheld):
        return WriteAgain(promotion.promote)
    before = get_many(ledger.batches, promotion.promote)
    entries = [
        BatchEntry(
            b.id,
            BatchState.PROMOTED,
            run,
            now,
            restatement=_approval(before.get(b.id)),
            rows=b.rows,
            bytes=b.bytes,
            objects=b.objects,
            partitions=(written.partitions or {}).get(b.id),
            registered=b.registered,
            reference=written.references.get(b.id),
        )
        for b in (written.batches[i] for i in promotion.promote)
    ]
    judged = get_many(ledger.batches, refused)
    entries += [
        BatchEntry(
            i,
            found.state,
            run,
            now,
            refusal=found.refusal,
            objects=found.objects,
            reference=written.references.get(i),
        )
        for i, found in refused.items()
        if _is_news(judged.get(i), found)
    ]
    return Publish(Delta(run, set_batches=tuple(entries)))


def _approval(entry: BatchEntry | None) -> str | None:
    """Key of the request that approved a held batch, which the ledger keeps with the promoted one."""
    return entry.restatement if entry is not None and entry.is_approved else None


def is_approved(batch: BufferedBatch, entry: BatchEntry | None) -> bool:
    """Whether a person has approved this held batch, with the objects that it has now."""
    if entry is None or not entry.is_approved:
        return False
    return fingerprint(o for o in entry.objects if is_data(o.key)) == batch.fingerprint


def _is_news(entry: BatchEntry | None, judged: JudgedBatch) -> bool:
    """Whether to record it: not if the batch was promoted, reverted or replaced, and not if it is already recorded."""
    if entry is None:
        return True
    recorded = (entry.state, entry.refusal, entry.objects)
    return not entry.blocks_promotion and recorded != (judged.state, judged.refusal, judged.objects)


@dataclass(frozen=True)
class Removal:
    """The steps, in this order: copy all objects, write the reason, delete the marker, delete the objects.

    Each step may be repeated. The marker is deleted before the objects, so that the rest of the folder is not a complete batch.
    """

    batch_id: str
    copies: tuple[tuple[BufferedObject, str], ...]
    """Each object and the URI of its copy."""
    reason_uri: str
    reason: str
    """The content of the reason file."""
    marker: BufferedObject | None
    """The marker of the batch; None: it does not exist, or was deleted before."""

    @property
    def objects(self) -> tuple[BufferedObject, ...]:
        """The objects that are copied and finally deleted, in the order of `copies`, without the marker."""
        return tuple(o for o, _ in self.copies)


def folder_of(buffer_uri: str, entry: BatchEntry) -> str:
    """The URI of the refused batch's folder or file, with the name that the producer gave it."""
    prefix = buffer_uri.rstrip("/") + "/"
    return prefix + entry.objects[0].key.removeprefix(prefix).partition("/")[0]


def is_file(buffer_uri: str, entry: BatchEntry) -> bool:
    """Whether the refused batch is a single file, not a folder."""
    return entry.objects[0].key == folder_of(buffer_uri, entry)


def refused_folder(buffer_uri: str, entry: BatchEntry) -> str:
    """The URI of the folder that the batch is moved to. It depends on the objects, so a second refusal overwrites nothing."""
    judged = folder_of(buffer_uri, entry).rpartition("/")[2]
    return f"{buffer_uri.rstrip('/')}/{names.REFUSED_FOLDER}/{judged}/{fingerprint(entry.objects)[:_DIGITS]}"


def reason_uri(buffer_uri: str, entry: BatchEntry) -> str:
    """The URI of the file that says why, in the folder of the refused batch. It changes with the batch's objects."""
    return f"{refused_folder(buffer_uri, entry)}/{names.REFUSAL_FILE}"


def plan_removal(
    buffer_uri: str, entry: BatchEntry, listed: Iterable[ListedObject], until: datetime | None = None
) -> Removal | None:
    """Plan how to move a refused batch out of the buffer.

    If a folder contains other data files, or if its `_SUCCESS` marker was written again, the producer is changing it and nothing
    in it is moved or deleted.

    Args:
        listed: The current objects of its folder; for a file, the file if it exists.
        until: The time of the refusal: objects written later were not checked, even if their content is the same. None: this
            run itself checked the objects.

    Returns:
        None, if there is nothing to move, or the producer is changing the folder.
    """
    if entry.state is not BatchState.REFUSED or not entry.objects:
        return None
    folder = folder_of(buffer_uri, entry)
    there = list(listed)
    data = [o for o in there if is_data(o.key, folder)]
    marker = next((o for o in there if o.key == f"{folder}/{names.SUCCESS_MARKER}"), None)
    judged = [o for o in data if _plain(o) in entry.objects]
    ours = [o for o in (*data, *([marker] if marker else ())) if until is None or o.modified <= until]
    if not judged or len(judged) < len(data) or len(ours) < len(data) + (marker is not None):
        return None
    target = refused_folder(buffer_uri, entry)
    above = folder.rpartition("/")[0] if is_file(buffer_uri, entry) else folder
    return Removal(
        batch_id=entry.id,
        copies=tuple((_plain(o), target + o.key.removeprefix(above)) for o in judged),
        reason_uri=f"{target}/{names.REFUSAL_FILE}",
        reason=reason_document(entry),
        marker=_plain(marker) if marker else None,
    )


def _plain(o: ListedObject) -> BufferedObject:
    return BufferedObject(o.key, o.size, o.etag)


def reason_document(entry: BatchEntry) -> str:
    """The content of the reason file. It does not depend on the run that writes it."""
    refusal = entry.refusal or Verdict("", "")
    document = {
        "batch": entry.id,
        "reason": refusal.reason,
        "message": refusal.message,
        "run": entry.run,
        "refusedTime": entry.time.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        "objects": [{"key": o.key, "size": o.size, "etag": o.etag} for o in entry.objects],
    }
    return json.dumps(document, ensure_ascii=False, indent=2) + "\n"


def is_left(batch: BufferedBatch, entry: BatchEntry | None) -> bool:
    """Whether the buffer still contains refused objects, because their removal is not finished.

    Objects written after the refusal do not count, even if their content is the same.
    """
    if entry is None or entry.state is not BatchState.REFUSED or batch.oldest_time > entry.time:
        return False
    return not set(batch.data_objects).isdisjoint(entry.objects)


def is_judged(batch: BufferedBatch, entry: BatchEntry | None) -> bool:
    """Whether a run that is still moving the refused batch may move objects of this batch at any moment.

    These are objects that existed at the refusal, or all objects, if their content is the same. A run must not register
    such objects as table files.
    """
    if entry is None or entry.state is not BatchState.REFUSED:
        return False
    return is_left(batch, entry) or set(batch.data_objects) <= set(entry.objects)


def is_mixed(batch: BufferedBatch, entry: BatchEntry | None) -> bool:
    """Whether a batch contains both refused and new objects.

    If its removal had begun, it is unknown whether the producer still relies on the refused ones.
    """
    return is_left(batch, entry) and not set(batch.data_objects) <= set(entry.objects if entry else ())


def mixed_message(entry: BatchEntry, buffer_uri: str) -> str:
    """Why a batch with both refused and new objects is refused."""
    return (
        f"{folder_of(buffer_uri, entry)} holds new files of this batch and files that were refused before. "
        f"The refused batch is in {refused_folder(buffer_uri, entry)}. Write the whole batch again, _SUCCESS "
        "last"
    )


@dataclass(frozen=True)
class BatchSweep:
    """The objects of a promoted batch that retention deletes or reports."""

    delete: tuple[BufferedObject, ...] = ()
    unexpected: tuple[BufferedObject, ...] = ()
    """Not promoted with the batch: reported, never deleted."""


def sweep_of(batch: BufferedBatch, entry: BatchEntry, retention_seconds: int, now: datetime) -> BatchSweep:
    """Decide which objects of one batch may be deleted.

    An object is deleted only if its key, size and ETag are those recorded at promotion. The `_SUCCESS` marker of a folder is
    deleted together with the last object. The objects of batches that were reverted or replaced after promotion are deleted
    in the same way. Nothing of a registered batch is deleted, whatever the Dataset's current mode: its objects are data files
    of the table, and only the expiry of snapshots shows that they are no longer needed.
    """
    if not entry.blocks_promotion or not entry.objects:
        return BatchSweep()
    recorded = {o.key: o for o in entry.objects}
    data = [o for o in batch.objects if not o.key.endswith(f"/{names.SUCCESS_MARKER}")]
    unexpected = tuple(o for o in data if recorded.get(o.key) != o)
    if entry.registered or entry.time + timedelta(seconds=retention_seconds) > now:
        return BatchSweep((), unexpected)
    delete = [o for o in data if recorded.get(o.key) == o]
    if not unexpected:
        delete += [o for o in batch.objects if o.key.endswith(f"/{names.SUCCESS_MARKER}")]
    return BatchSweep(tuple(delete), unexpected)
