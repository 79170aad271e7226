"""Reads S3 event notifications about a buffer, and decides when a notification needs no more work. Pure.

A notification may be lost, repeated, late or wrong, so it only says which folder to list. The listing shows whether a batch
exists and is complete; the ledger shows whether it was promoted or refused.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import unquote_plus

from lethe.base import names
from lethe.base.errors import InputError
from lethe.base.objects import BufferedObject
from lethe.buffer.digest import BufferState, state_of
from lethe.buffer.layout import BufferedBatch, Layout, is_data
from lethe.ledger.ledger import BatchEntry

_CREATED: Final = "ObjectCreated:"
LONGEST_KEY_BYTES: Final = 1024
"""The longest key of an object in S3."""
_OPEN: Final = frozenset({BufferState.WAITING, BufferState.INCOMPLETE})


class NotANotification(ValueError):
    """A message that is not an S3 event notification."""


@dataclass(frozen=True)
class Written:
    """One write of an object of a batch."""

    batch_id: str
    folder: str
    """The name of the batch's folder, or of its only file, below the buffer."""
    key: str
    """The full URI, as in a listing."""
    etag: str = ""
    """Empty: the notification has none."""
    sequencer: str = ""
    """Orders the writes of one key; "": the notification has none."""

    @property
    def is_marker(self) -> bool:
        """Whether this write completes the batch: it is the write of the marker, or of the only file."""
        return self.key.endswith((f"/{self.folder}/{names.SUCCESS_MARKER}", f"/{self.folder}"))


@dataclass(frozen=True)
class Notice:
    """The content of a message."""

    written: tuple[Written, ...] = ()
    """The writes to objects of batches."""
    elsewhere: bool = False
    """True: the message is also about objects outside the buffer, so it is for another receiver, too."""


def read(body: str, buffer_uri: str, layout: Layout) -> Notice:
    """Read a message: a notification from S3, directly or through SNS or EventBridge, or S3's test message.

    Deletions, and objects in the buffer that belong to no batch, are ignored.

    Raises:
        NotANotification: A message that is not an S3 event notification.
    """
    scheme, _, place = buffer_uri.rstrip("/").partition("://")
    objects: list[Written] = []
    elsewhere = False
    for bucket, entry in _records(body):
        key = str(entry["key"])
        below = f"{bucket}/{key}".removeprefix(f"{place}/")
        if below == f"{bucket}/{key}":
            elsewhere = True
            continue
        name = "" if below.endswith("/") else layout.name_of(below)
        batch_id = _batch_id(layout, name)
        if batch_id is not None:
            uri = f"{scheme}://{bucket}/{key}"
            etag = str(entry.get("eTag") or entry.get("etag") or "").strip('"')
            objects.append(Written(batch_id, name, uri, etag, str(entry.get("sequencer") or "")))
    return Notice(tuple(objects), elsewhere)


def _records(body: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Bucket and object of each write, with the key decoded."""
    try:
        document = json.loads(body)
        if isinstance(document.get("Message"), str) and "Records" not in document:  # the envelope of SNS
            document = json.loads(document["Message"])
        if document.get("Event") == "s3:TestEvent":
            return []
        if document.get("source") == "aws.s3":  # EventBridge does not encode keys
            detail = document["detail"]
            _require_key(detail["object"]["key"])
            created = document["detail-type"] == "Object Created"
            return (
                [(str(detail["bucket"]["name"]), {**detail["object"], "key": detail["object"]["key"]})]
                if created
                else []
            )
        records: list[tuple[str, Mapping[str, Any]]] = []
        for record in document["Records"]:
            bucket, entry = str(record["s3"]["bucket"]["name"]), record["s3"]["object"]
            if str(record["eventName"]).removeprefix("s3:").startswith(_CREATED):
                key = unquote_plus(entry["key"], errors="strict")
                _require_key(key)
                records.append((bucket, {**entry, "key": key}))
        return records
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise NotANotification(type(e).__name__) from None


def _require_key(key: str) -> None:
    """Require a key that an object can have.

    Raises:
        ValueError: No object can have this key.
    """
    if not 0 < len(key.encode()) <= LONGEST_KEY_BYTES:  # `encode` raises on half a surrogate pair
        raise ValueError("no key")


def _batch_id(layout: Layout, name: str) -> str | None:
    try:
        return layout.id_of(name) if name and not name.endswith("/") else None
    except InputError:
        return None


def is_later(sequencer: str, than: str) -> bool:
    """Whether this sequencer is the later of two.

    They are hexadecimal numbers of any length, and comparable only if both are of the same key.
    """
    length = max(len(sequencer), len(than))
    return sequencer.lower().rjust(length, "0") > than.lower().rjust(length, "0")


def is_settled(written: Written, entry: BatchEntry | None) -> bool:
    """Whether the ledger alone shows that a write needs no more work.

    Its batch was promoted, reverted or replaced, or it was refused with this object or a later one of the same key.

    Args:
        entry: The batch's entry in the ledger; None: it has none.
    """
    if entry is None or entry.blocks_promotion:
        return entry is not None
    judged = next((o for o in entry.objects if o.key == written.key), None)
    if judged is None:
        return False
    if written.sequencer and judged.sequencer:
        return not is_later(written.sequencer, judged.sequencer)
    return bool(written.etag) and written.etag == judged.etag


def is_over(written: Written, listed: BufferedBatch | None, entry: BatchEntry | None) -> bool:
    """Whether a write needs no more work, by the current content of its folder.

    The object was deleted or overwritten, or the batch is neither waiting nor incomplete.

    Args:
        listed: The batch in the folder; None: the folder is empty.
        entry: The batch's entry in the ledger; None: it has none.
    """
    there = next((o for o in listed.objects if o.key == written.key), None) if listed else None
    if listed is None or there is None or (written.etag and written.etag != there.etag):
        return True
    return state_of(listed, entry) not in _OPEN


def folders_to_list(window: Iterable[tuple[Written, bool]], marked: frozenset[str]) -> list[str]:
    """The folders to list after these writes: those that are, or may be, complete.

    A data file alone does not complete a batch.

    Args:
        window: Writes, each with whether its message is received for the first time. A repeated message may be about an
            object that no longer exists.
        marked: Folders whose marker was in an earlier notification.
    """
    folders = (w.folder for w, first in window if w.is_marker or not first or w.folder in marked)
    return list(dict.fromkeys(folders))


def latest(writes: Iterable[Written]) -> dict[str, dict[str, Written]]:
    """The latest write of each data file, by batch and key. Writes without a sequencer are left out."""
    objects_by_folder: dict[str, dict[str, Written]] = {}
    for w in writes:
        if w.sequencer and is_data(w.key):
            of_batch = objects_by_folder.setdefault(w.batch_id, {})
            earlier = of_batch.get(w.key)
            if earlier is None or is_later(w.sequencer, earlier.sequencer):
                of_batch[w.key] = w
    return objects_by_folder


def with_sequencer(o: BufferedObject, etag: str, sequencer: str) -> BufferedObject:
    """The listed object with the sequencer of its write; unchanged if the ETags show that it was another write."""
    return replace(o, sequencer=sequencer) if not etag or etag == o.etag else o
