"""Plans how a refused batch is moved out of the buffer: which objects, where to, in which order. Pure.

Invariant: only objects that were checked are moved. If a folder contains other data files, or if its `_SUCCESS` marker was
written again, the producer is changing it and nothing in it is moved or deleted.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from lethe.base import names
from lethe.buffer.batch import BufferedBatch, ListedObject, fingerprint, is_data
from lethe.contract.refusal import Refusal
from lethe.ledger.ledger import BatchEntry, BatchState, BufferedObject

_DIGITS = 12  # of a fingerprint: one batch id is refused a handful of times, not millions


@dataclass(frozen=True)
class Removal:
    """The steps, in this order: copy all objects, write the reason, delete the marker, delete the objects. Each step may be
    repeated. The marker is deleted before the objects, so that the rest of the folder is not a complete batch."""

    batch_id: str
    copies: tuple[tuple[BufferedObject, str], ...]  # each object and the URI of its copy
    reason_uri: str
    reason: str  # the content of the reason file
    marker: BufferedObject | None  # None: it does not exist, or was deleted before

    @property
    def objects(self) -> tuple[BufferedObject, ...]:
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
    return f"{refused_folder(buffer_uri, entry)}/{names.REFUSAL_FILE}"


def plan_removal(
    buffer_uri: str, entry: BatchEntry, listed: Iterable[ListedObject], until: datetime | None = None
) -> Removal | None:
    """Plan how to move a refused batch out of the buffer.

    Args:
        listed: The current objects of its folder; for a file, the file if it exists.
        until: The time of the refusal: objects written later were not checked, even if their content is the same. None: this
            run itself checked the objects.
    Returns: None, if there is nothing to move, or the producer is changing the folder.
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


def reason_document(entry: BatchEntry) -> str:
    """The content of the reason file. It does not depend on the run that writes it."""
    refusal = entry.refusal or Refusal("", "")
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
    """Whether the buffer still contains refused objects, because their removal is not finished. Objects written after the
    refusal do not count, even if their content is the same."""
    if entry is None or entry.state is not BatchState.REFUSED or batch.oldest_time > entry.time:
        return False
    return not set(batch.data_objects).isdisjoint(entry.objects)


def is_judged(batch: BufferedBatch, entry: BatchEntry | None) -> bool:
    """Whether a run that is still moving the refused batch may move objects of this batch at any moment: objects that existed
    at the refusal, or all objects, if their content is the same. A run must not register such objects as table files."""
    if entry is None or entry.state is not BatchState.REFUSED:
        return False
    return is_left(batch, entry) or set(batch.data_objects) <= set(entry.objects)


def is_mixed(batch: BufferedBatch, entry: BatchEntry | None) -> bool:
    """Whether a batch contains both refused and new objects. If its removal had begun, it is unknown whether the producer
    still relies on the refused ones."""
    return is_left(batch, entry) and not set(batch.data_objects) <= set(entry.objects if entry else ())


def _plain(o: ListedObject) -> BufferedObject:
    return BufferedObject(o.key, o.size, o.etag)


def mixed_message(entry: BatchEntry, buffer_uri: str) -> str:
    """Why a batch with both refused and new objects is refused."""
    return (
        f"{folder_of(buffer_uri, entry)} holds new files of this batch and files that were refused before. "
        f"The refused batch is in {refused_folder(buffer_uri, entry)}. Write the whole batch again, _SUCCESS "
        "last"
    )
