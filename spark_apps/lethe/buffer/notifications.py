"""S3 event notifications: what they tell of a buffer, and when what they told is settled. Pure.

A notification may be lost, doubled, late or wrong: it only says where to look. Whether a batch is there, and whole, the
buffer's listing says; whether it is dealt with, the ledger.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import unquote_plus

from lethe.base import names
from lethe.base.errors import InputError
from lethe.buffer.batch import BufferedBatch, is_data
from lethe.buffer.digest import Standing, standing
from lethe.buffer.layout import Layout
from lethe.ledger.ledger import BatchEntry, BufferedObject

_CREATED: Final = "ObjectCreated:"
LONGEST_KEY_BYTES: Final = 1024  # in S3
_OPEN: Final = frozenset({Standing.WAITING, Standing.INCOMPLETE})


class Unreadable(ValueError):
    """A message that is no notification of S3's."""


@dataclass(frozen=True)
class Written:
    """An object of a batch that was written. `key` is its full URI, as a listing has it; `etag` and `sequencer` are "" where
    the notification has none."""

    batch_id: str
    folder: str  # the name of the batch's folder, or of its only file, below the buffer
    key: str
    etag: str = ""
    sequencer: str = ""

    @property
    def is_marker(self) -> bool:
        """Whether it says that the batch is complete: its marker, or its only file."""
        return self.key.endswith((f"/{self.folder}/{names.SUCCESS_MARKER}", f"/{self.folder}"))


@dataclass(frozen=True)
class Notice:
    """What a message says: the objects of batches that were written. `elsewhere`: it tells of objects outside the buffer,
    which are somebody else's to hear of."""

    written: tuple[Written, ...] = ()
    elsewhere: bool = False


def read(body: str, buffer_uri: str, layout: Layout) -> Notice:
    """Read a message: a notification from S3, through SNS or EventBridge as well, or S3's test message.

    What was deleted, and what lies in the buffer but in no batch, is left out. Raises: Unreadable.
    """
    scheme, _, place = buffer_uri.rstrip("/").partition("://")
    found: list[Written] = []
    for bucket, told in _records(body):
        key = str(told["key"])
        below = f"{bucket}/{key}".removeprefix(f"{place}/")
        if below == f"{bucket}/{key}":
            return Notice(elsewhere=True)
        name = "" if below.endswith("/") else layout.name_of(below)
        batch_id = _batch_id(layout, name)
        if batch_id is not None:
            uri = f"{scheme}://{bucket}/{key}"
            etag = str(told.get("eTag") or told.get("etag") or "").strip('"')
            found.append(Written(batch_id, name, uri, etag, str(told.get("sequencer") or "")))
    return Notice(tuple(found))


def _records(body: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Bucket and object of everything that was written; the key as it is."""
    try:
        document = json.loads(body)
        if isinstance(document.get("Message"), str) and "Records" not in document:  # SNS's envelope
            document = json.loads(document["Message"])
        if document.get("Event") == "s3:TestEvent":
            return []
        if document.get("source") == "aws.s3":  # EventBridge, which does not encode keys
            detail = document["detail"]
            _require_key(detail["object"]["key"])
            created = document["detail-type"] == "Object Created"
            return (
                [(str(detail["bucket"]["name"]), {**detail["object"], "key": detail["object"]["key"]})]
                if created
                else []
            )
        found: list[tuple[str, Mapping[str, Any]]] = []
        for record in document["Records"]:
            bucket, told = str(record["s3"]["bucket"]["name"]), record["s3"]["object"]
            if str(record["eventName"]).removeprefix("s3:").startswith(_CREATED):
                key = unquote_plus(told["key"], errors="strict")
                _require_key(key)
                found.append((bucket, {**told, "key": key}))
        return found
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise Unreadable(type(e).__name__) from None


def _require_key(key: str) -> None:
    """What is no key cannot be asked for. Raises: ValueError."""
    if not 0 < len(key.encode()) <= LONGEST_KEY_BYTES:  # which raises on half a surrogate pair
        raise ValueError("no key")


def _batch_id(layout: Layout, name: str) -> str | None:
    try:
        return layout.id_of(name) if name and not name.endswith("/") else None
    except InputError:
        return None


def is_later(sequencer: str, than: str) -> bool:
    """Whether, of two writes of one key, this one is the later: hexadecimal numbers, of any length. Says nothing about two
    keys."""
    length = max(len(sequencer), len(than))
    return sequencer.lower().rjust(length, "0") > than.lower().rjust(length, "0")


def is_settled(written: Written, entry: BatchEntry | None) -> bool:
    """Whether the ledger alone says that nothing will come of a write any more: its batch was promoted or taken back, or
    refused with just this object or a later one of the key.

    Args:
        entry: What the ledger knows of the batch.
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
    """Whether nothing will come of a write, by what its folder holds now: the object went or was written over, or the batch
    waits for nothing.

    Args:
        listed: The folder, None if it holds nothing.
    """
    there = next((o for o in listed.objects if o.key == written.key), None) if listed else None
    if listed is None or there is None or (written.etag and written.etag != there.etag):
        return True
    return standing(listed, entry) not in _OPEN


def folders_to_list(window: Iterable[tuple[Written, bool]], marked: frozenset[str]) -> list[str]:
    """The folders that are worth a look after these writes: those that are, or may be, complete. A data file alone makes no
    batch complete.

    Args:
        window: Writes, and whether one came for the first time: one that comes again may be told of an object that is gone.
        marked: Folders whose marker was heard of before.
    """
    wanted = (w.folder for w, first in window if w.is_marker or not first or w.folder in marked)
    return list(dict.fromkeys(wanted))


def latest(writes: Iterable[Written]) -> dict[str, dict[str, Written]]:
    """By batch and key the latest write of each data file of which the order is known."""
    found: dict[str, dict[str, Written]] = {}
    for w in writes:
        if w.sequencer and is_data(w.key):
            of_batch = found.setdefault(w.batch_id, {})
            known = of_batch.get(w.key)
            if known is None or is_later(w.sequencer, known.sequencer):
                of_batch[w.key] = w
    return found


def with_sequencer(o: BufferedObject, etag: str, sequencer: str) -> BufferedObject:
    """The object as it was listed, with the sequencer of its write, unless that was another write."""
    return replace(o, sequencer=sequencer) if not etag or etag == o.etag else o
