"""A buffer in a few numbers: what waits, which batches a run would take, what retention may delete. Pure.

A buffer may hold any number of batches and is listed piece by piece. What is remembered of them is bounded, but for eight
bytes a batch, by which two folders or files of one id are told.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum, auto
from typing import Any, Final

import numpy as np

from lethe.buffer.batch import BufferedBatch, NoBatch, fingerprint, is_data, same_id
from lethe.buffer.retention import sweep_of
from lethe.contract.result import LISTED_AT_MOST
from lethe.guards.rejections import Around
from lethe.ledger.ledger import BatchEntry, BatchState

# As many objects as a store lists at a time: they are looked up in the ledger together.
OBJECTS_PER_PIECE: Final = 1000
# Retention deletes at most so many objects after one listing; the others are found by the next.
OBJECTS_PER_SWEEP: Final = 20_000

LookUp = Callable[[Sequence[str]], Mapping[str, BatchEntry]]


class Standing(Enum):
    """What becomes of a batch in the buffer."""

    WAITING = auto()  # to be promoted
    INCOMPLETE = auto()  # no `_SUCCESS` yet, or no data
    PROMOTED = auto()  # lies there until its retention has passed
    REFUSED = auto()  # as it was when it was refused
    WITHHELD = auto()  # taken back before it came


@dataclass(frozen=True)
class WaitingBatch:
    """A complete batch that may be promoted, without its objects; `folder` is its name below the buffer, also of a file."""

    id: str
    folder: str
    bytes: int
    oldest_time: datetime
    fingerprint: str


@dataclass(frozen=True)
class BufferDigest:
    """A listing of a buffer beside the ledger of one moment. Counts are of all, lists the first of them.

    `batches` and `bytes` wait for promotion, the `oldest` of them are known one by one; `promoted` lie there until their
    retention has passed, `expired` those for which it has; `unexpected`: objects that were added to a promoted batch;
    `more_expired`: not all of what retention may delete is in `expired`; `invalid`: folders and files that are no batch,
    each with the reason; `head_id`: the snapshot whose ledger it was compared with.
    """

    batches: int = 0
    bytes: int = 0
    oldest: tuple[WaitingBatch, ...] = ()
    incomplete: int = 0
    promoted: int = 0
    withheld: int = 0
    refused: int = 0
    refused_ids: tuple[str, ...] = ()
    expired: tuple[BufferedBatch, ...] = ()
    more_expired: bool = False
    unexpected: int = 0
    unexpected_keys: tuple[str, ...] = ()
    invalid: int = 0
    invalid_folders: tuple[tuple[str, str], ...] = ()
    unrelated: int = 0  # of the invalid ones those whose names are no batches
    unrelated_names: tuple[str, ...] = ()  # the first of them
    tables: tuple[str, ...] = ()  # the first of those that are part of an Iceberg table
    around: Around | None = None  # what surrounds the buffer; None: nobody looked
    objects: int = 0
    # The write time of the youngest batch that the listing left known one by one; others are as young or younger. None: all are
    # known.
    known_until: datetime | None = None
    # The write time of the youngest batch of the listing, whatever becomes of it. None: the buffer was empty.
    youngest_time: datetime | None = None
    head_id: int | None = field(default=None, compare=False)
    # By the UID of a Restatement that was known before a listing began: `youngest_time` of the first such listing, or the
    # beginning of time. Batches that are younger, by the same clock of the store, came after the Restatement.
    horizons: Mapping[str, datetime] = field(default_factory=dict, compare=False)

    @property
    def is_cut(self) -> bool:
        """Whether more batches wait than are known one by one."""
        return self.batches > len(self.oldest)

    def may_hide(self, until: datetime) -> bool:
        """Whether a batch that was written until then may wait among those that are not known one by one."""
        return self.is_cut and (self.known_until is None or self.known_until <= until)

    def swept(self) -> "BufferDigest":
        """The digest once what had expired was deleted, or was to be."""
        return replace(self, expired=()) if self.expired else self

    def as_of(self, batches: Mapping[str, BatchEntry]) -> "BufferDigest":
        """The digest on a later ledger: those of the `oldest` that do not wait any more are counted as what they are now."""
        settled = [b for b in self.oldest if not _waits(b, batches.get(b.id))]
        if not settled:
            return self
        now = Counter(_settled_as(batches[b.id]) for b in settled)
        refused = [b.id for b in settled if batches[b.id].state is BatchState.REFUSED]
        gone = {b.id for b in settled}
        return replace(
            self,
            batches=self.batches - len(settled),
            bytes=self.bytes - sum(b.bytes for b in settled),
            oldest=tuple(b for b in self.oldest if b.id not in gone),
            promoted=self.promoted + now[Standing.PROMOTED],
            withheld=self.withheld + now[Standing.WITHHELD],
            refused=self.refused + now[Standing.REFUSED],
            refused_ids=(*self.refused_ids, *refused)[:LISTED_AT_MOST],
        )


EMPTY_BUFFER: Final = BufferDigest()


def waiting(batch: BufferedBatch) -> WaitingBatch:
    """What is remembered of a batch that waits."""
    name = batch.folder.rpartition("/")[2]
    return WaitingBatch(batch.id, name, batch.bytes, batch.oldest_time, batch.fingerprint)


def standing(batch: BufferedBatch, entry: BatchEntry | None) -> Standing:
    """What becomes of a batch. `entry`: what the ledger knows of it."""
    complete = batch.complete and bool(batch.data_objects)
    if complete and _waits(batch, entry):
        return Standing.WAITING
    settled = Standing.INCOMPLETE if entry is None else _settled_as(entry)
    return settled if complete or settled is Standing.PROMOTED else Standing.INCOMPLETE


def _settled_as(entry: BatchEntry) -> Standing:
    """What a batch is that waits for nothing."""
    if entry.state is BatchState.REFUSED:
        return Standing.REFUSED
    if entry.state is not BatchState.PROMOTED and not entry.objects and entry.rows is None:
        return Standing.WITHHELD  # nothing recorded its objects: it was never promoted
    return Standing.PROMOTED


def _waits(batch: BufferedBatch | WaitingBatch, entry: BatchEntry | None) -> bool:
    """Whether a complete batch may be promoted: the ledger does not know it, or refused other objects than these."""
    if entry is None:
        return True
    judged = [] if entry.blocks_promotion else [o for o in entry.objects if is_data(o.key)]
    return bool(judged) and fingerprint(judged) != batch.fingerprint


def digest(
    folders: Iterable[BufferedBatch | NoBatch], look_up: LookUp, run_takes: int, retention_seconds: int, now: datetime
) -> BufferDigest:
    """Fold a listing.

    Args:
        look_up: Those of some ids that the ledger knows, with their entries; asked once for each piece of the listing.
        run_takes: How many batches one run takes at most.
        now: The time, for retention.
    """
    made = _Fold(run_takes, retention_seconds, now)
    for piece in pieces(folders):
        entries = look_up([f.id for f in piece if isinstance(f, BufferedBatch)])
        for found in piece:
            if isinstance(found, NoBatch):
                made.add_unrelated(found)
            else:
                made.add(found, entries.get(found.id))
    return made.result()


def pieces(folders: Iterable[BufferedBatch | NoBatch]) -> Iterator[list[BufferedBatch | NoBatch]]:
    """The listing in pieces of about so many objects, each worth one look into the ledger."""
    piece: list[BufferedBatch | NoBatch] = []
    objects = 0
    for found in folders:
        piece.append(found)
        objects += len(found.objects) if isinstance(found, BufferedBatch) else 1
        if objects >= OBJECTS_PER_PIECE:
            yield piece
            piece, objects = [], 0
    if piece:
        yield piece


@dataclass
class _First:
    """How many there are, and the first of them."""

    count: int = 0
    listed: list[Any] = field(default_factory=list)

    def add(self, found: Any) -> None:
        self.count += 1
        if len(self.listed) < LISTED_AT_MOST:
            self.listed.append(found)


class _Fold:
    def __init__(self, run_takes: int, retention_seconds: int, now: datetime) -> None:
        self.invalid = _First()
        self._unrelated = _First()
        self._tables = _First()
        self._run_takes = run_takes
        self._retention_seconds = retention_seconds
        self._now = now
        self._counts: Counter[Standing] = Counter()
        self._bytes = 0
        self._objects = 0
        self._oldest: list[WaitingBatch] = []
        self._youngest: tuple[datetime, str] | None = None  # of the oldest, once there are as many as a run takes
        self._refused = _First()
        self._unexpected = _First()
        self._expired: list[BufferedBatch] = []
        self._to_sweep = 0
        self._more_expired = False
        self._ids = array("Q")
        self._youngest_time: datetime | None = None

    def add(self, batch: BufferedBatch, entry: BatchEntry | None) -> None:
        self._objects += len(batch.objects)
        self._youngest_time = max(self._youngest_time or batch.oldest_time, batch.oldest_time)
        self._ids.append(_hash(batch.id))
        stands = standing(batch, entry)
        self._counts[stands] += 1
        if stands is Standing.WAITING:
            self._bytes += batch.bytes
            self._add_waiting(batch)
        elif stands is Standing.REFUSED:
            self._refused.add(batch.id)
        elif stands is Standing.PROMOTED and entry is not None:
            sweep = sweep_of(batch, entry, self._retention_seconds, self._now)
            for o in sweep.unexpected:
                self._unexpected.add(o.key)
            # One batch of more objects than are deleted at a time goes alone.
            if sweep.delete and (not self._expired or self._to_sweep + len(sweep.delete) <= OBJECTS_PER_SWEEP):
                self._expired.append(batch)
                self._to_sweep += len(sweep.delete)
            elif sweep.delete:
                self._more_expired = True

    def add_unrelated(self, found: NoBatch) -> None:
        self.invalid.add((found.folder, found.message))
        self._unrelated.add(found.folder)
        if found.table:
            self._tables.add(found.folder)

    def result(self) -> BufferDigest:
        self._drop_younger()
        known_until = self._oldest[-1].oldest_time if self._counts[Standing.WAITING] > len(self._oldest) else None
        twins = self._take_twins()
        return BufferDigest(
            batches=self._counts[Standing.WAITING] - len(twins),
            bytes=self._bytes - sum(b.bytes for b in twins),
            oldest=tuple(self._oldest),
            incomplete=self._counts[Standing.INCOMPLETE],
            promoted=self._counts[Standing.PROMOTED],
            withheld=self._counts[Standing.WITHHELD],
            refused=self._refused.count,
            refused_ids=tuple(self._refused.listed),
            expired=tuple(self._expired),
            more_expired=self._more_expired,
            unexpected=self._unexpected.count,
            unexpected_keys=tuple(self._unexpected.listed),
            invalid=self.invalid.count,
            invalid_folders=tuple(self.invalid.listed),
            unrelated=self._unrelated.count,
            unrelated_names=tuple(self._unrelated.listed),
            tables=tuple(self._tables.listed),
            objects=self._objects,
            known_until=known_until,
            youngest_time=self._youngest_time,
        )

    def _add_waiting(self, batch: BufferedBatch) -> None:
        if self._youngest is not None and (batch.oldest_time, batch.id) > self._youngest:
            return
        self._oldest.append(waiting(batch))
        if len(self._oldest) >= self._run_takes + OBJECTS_PER_PIECE:
            self._drop_younger()

    def _drop_younger(self) -> None:
        self._oldest.sort(key=_age)
        if len(self._oldest) >= self._run_takes:
            del self._oldest[self._run_takes :]
            self._youngest = _age(self._oldest[-1])

    def _take_twins(self) -> list[WaitingBatch]:
        """Batches of whose id there is another folder or file, which may be anywhere in the listing."""
        hashes, counts = np.unique(np.frombuffer(self._ids, np.uint64), return_counts=True)
        several = set(hashes[counts > 1].tolist())
        twins = [b for b in self._oldest if _hash(b.id) in several] if several else []
        self._oldest = [b for b in self._oldest if _hash(b.id) not in several] if twins else self._oldest
        for b in twins:
            self.invalid.add((b.folder, same_id(b.id)))
        return twins


def _age(batch: WaitingBatch) -> tuple[datetime, str]:
    return batch.oldest_time, batch.id


def _hash(batch_id: str) -> int:
    return hash(batch_id) & 0xFFFF_FFFF_FFFF_FFFF
