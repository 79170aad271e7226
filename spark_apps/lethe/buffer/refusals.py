"""How a refused batch leaves the buffer: which of its objects go where, in which order. Pure.

Invariant: what leaves are exactly the objects that were judged. A folder in which there is anything else, or that was marked
complete again, is its producer's: nothing of it is touched.
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
    """First every object is copied, then the reason written, then the marker deleted, so that what is left is no batch any
    more, then the objects. Each step may be repeated.

    `copies`: the objects and the URIs that they are copied to; `marker` is None when it went already.
    """

    batch_id: str
    copies: tuple[tuple[BufferedObject, str], ...]
    reason_uri: str
    reason: str
    marker: BufferedObject | None

    @property
    def objects(self) -> tuple[BufferedObject, ...]:
        return tuple(o for o, _ in self.copies)


def folder_of(buffer_uri: str, entry: BatchEntry) -> str:
    """The URI of the folder, or of the file, that a refused batch was judged in, as its producer spelt it."""
    prefix = buffer_uri.rstrip("/") + "/"
    return prefix + entry.objects[0].key.removeprefix(prefix).partition("/")[0]


def is_file(buffer_uri: str, entry: BatchEntry) -> bool:
    """Whether the refused batch was one file of the buffer, and no folder."""
    return entry.objects[0].key == folder_of(buffer_uri, entry)


def refused_folder(buffer_uri: str, entry: BatchEntry) -> str:
    """Where the batch goes. Refused again with other objects, it goes elsewhere: nothing there is written over."""
    judged = folder_of(buffer_uri, entry).rpartition("/")[2]
    return f"{buffer_uri.rstrip('/')}/{names.REFUSED_FOLDER}/{judged}/{fingerprint(entry.objects)[:_DIGITS]}"


def reason_uri(buffer_uri: str, entry: BatchEntry) -> str:
    return f"{refused_folder(buffer_uri, entry)}/{names.REFUSAL_FILE}"


def plan_removal(
    buffer_uri: str, entry: BatchEntry, listed: Iterable[ListedObject], until: datetime | None = None
) -> Removal | None:
    """What is to be done about a refused batch.

    Args:
        listed: What its folder holds now; for a file, the file if it is there.
        until: Objects written later were not judged, though they be the same to the byte; None: nobody has looked away.
    Returns: None, when there is nothing to do, or the folder is the producer's.
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
    """The reason file: the same whichever run writes it."""
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
    """Whether objects lie in the buffer that were there when they were refused: their removal is not finished. Objects that
    were written since are none of them, though they be the same to the byte."""
    if entry is None or entry.state is not BatchState.REFUSED or batch.oldest_time > entry.time:
        return False
    return not set(batch.data_objects).isdisjoint(entry.objects)


def is_judged(batch: BufferedBatch, entry: BatchEntry | None) -> bool:
    """Whether objects of a batch may be moved away at any moment, by a run that still is at its refusal: such as were there
    then, or all of them, if they are the same to the byte. Objects that are to stay must not be among them."""
    if entry is None or entry.state is not BatchState.REFUSED:
        return False
    return is_left(batch, entry) or set(batch.data_objects) <= set(entry.objects)


def is_mixed(batch: BufferedBatch, entry: BatchEntry | None) -> bool:
    """Whether a batch holds objects that were refused beside new ones. If its removal had begun, nobody can tell whether
    the producer counts on the old ones."""
    return is_left(batch, entry) and not set(batch.data_objects) <= set(entry.objects if entry else ())


def _plain(o: ListedObject) -> BufferedObject:
    return BufferedObject(o.key, o.size, o.etag)


def mixed_message(entry: BatchEntry, buffer_uri: str) -> str:
    """Why such a batch is refused as it is."""
    return (
        f"{folder_of(buffer_uri, entry)} holds files of this batch as it was refused before, beside new ones. The refused batch "
        f"is in {refused_folder(buffer_uri, entry)}; write the whole batch anew, _SUCCESS last"
    )
