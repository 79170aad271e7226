"""Summarizes a buffer: which batches wait, which a run would take, what retention may delete. Pure.

A buffer may contain any number of batches and is listed piece by piece. Memory is bounded, except for a hash of eight bytes per
batch, which detects folders or files of the same id.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum, auto
from itertools import islice
from typing import Any, Final

import numpy as np

from lethe.buffer.layout import BufferedBatch, NoBatch, fingerprint, is_data, same_id
from lethe.buffer.promotion import is_approved, sweep_of
from lethe.contract.result import LISTED_AT_MOST
from lethe.guards.claim import Around
from lethe.ledger.ledger import BatchEntry, BatchState

OBJECTS_PER_PIECE: Final = 1000
"""The ledger is read once per piece of a listing. This is also the number of objects that stores return per page."""

RUNS_AHEAD: Final = 8
"""A digest names the batches of so many runs, so that they follow one another without a listing in between."""
NAMED_AT_MOST: Final = 100_000
"""A digest names at most this many waiting batches, or those of one run: about 500 bytes of memory each."""

LookUp = Callable[[Sequence[str]], Mapping[str, BatchEntry]]

Folders = Mapping[str, BufferedBatch | NoBatch | None]
"""The content of each folder of the buffer, by its name. None: the folder is empty."""


class BufferState(Enum):
    """The state of a batch in the buffer."""

    WAITING = auto()
    """To be promoted."""
    INCOMPLETE = auto()
    """No `_SUCCESS` yet, or no data."""
    PROMOTED = auto()
    """Stays until its retention has passed."""
    REFUSED = auto()
    """And unchanged since."""
    HELD = auto()
    """Fails a check, waits for a person, and is unchanged since."""
    WITHHELD = auto()
    """Reverted or replaced before it was promoted."""


@dataclass(frozen=True)
class WaitingBatch:
    """A complete batch that may be promoted, without its objects."""

    id: str
    folder: str
    """The name of the folder or file below the buffer."""
    bytes: int
    oldest_time: datetime
    """When its oldest object was written."""
    fingerprint: str
    """The fingerprint of its data files."""
    files: int
    """Its data files."""
    approval: str = ""
    """Key of the request that approved it after checks had held it; "": none did."""


@dataclass(frozen=True)
class BufferDigest:
    """The summary of a buffer listing, compared with one ledger. Counts are of all; lists are limited to the first."""

    batches: int = 0
    """The number of batches that wait for promotion."""
    bytes: int = 0
    """The size of the batches that wait."""
    oldest: tuple[WaitingBatch, ...] = ()
    """The batches that wait longest, oldest first."""
    incomplete: int = 0
    promoted: int = 0
    """Still in the buffer."""
    withheld: int = 0
    refused: int = 0
    refused_ids: tuple[str, ...] = ()
    held: int = 0
    held_ids: tuple[str, ...] = ()
    expired: int = 0
    """Promoted batches whose retention has passed. A sweep deletes their objects."""
    unexpected: int = 0
    """Objects in the folders of promoted batches that were not promoted."""
    unexpected_keys: tuple[str, ...] = ()
    invalid: int = 0
    """Folders and files that are not batches."""
    invalid_folders: tuple[tuple[str, str], ...] = ()
    """Each with the reason."""
    unrelated: int = 0
    """Invalid ones, without those that producers meant as batches: with too many objects, or an id that others have too."""
    unrelated_names: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    """The unrelated ones that are part of an Iceberg table."""
    around: Around | None = None
    """The claim, and tables at or above the buffer; None: not checked."""
    objects: int = 0
    """The number of objects of all batches."""
    known_until: datetime | None = None
    """The write time of the youngest batch in `oldest`. Waiting batches that are not in `oldest` are not older. None: all waiting
    batches are in `oldest`.
    """
    youngest_time: datetime | None = None
    """The write time of the youngest batch of the listing, in any state. None: the buffer contains no batches."""
    head_id: int | None = field(default=None, compare=False)
    """The snapshot whose ledger the listing was compared with. None: the table has no snapshot, or is not known."""
    horizons: Mapping[str, datetime] = field(default_factory=dict, compare=False)
    """By the UID of a Restatement that existed before a listing began: `youngest_time` of the first such listing, or the earliest
    possible time. Younger batches, by the same clock of the store, were written after the Restatement.
    """
    doubled: frozenset[int] = field(default=frozenset(), compare=False, repr=False)
    """Hashes of ids that several folders or files have, for the next listing. These must not take the places of others in
    `oldest`: they may be older than all batches that can be promoted, and stay for ever.
    """

    @property
    def is_cut(self) -> bool:
        """Whether more batches wait than `oldest` lists."""
        return self.batches > len(self.oldest)

    def may_hide(self, until: datetime) -> bool:
        """Whether a batch that was written at or before `until` may wait without being in `oldest`."""
        return self.is_cut and (self.known_until is None or self.known_until <= until)

    def swept(self) -> "BufferDigest":
        """The digest after a sweep has begun."""
        return replace(self, expired=0) if self.expired else self

    def as_of(self, batches: Mapping[str, BatchEntry]) -> "BufferDigest":
        """The digest on a later ledger: batches in `oldest` that no longer wait are counted by their new state."""
        settled = [b for b in self.oldest if not _waits(b, batches.get(b.id))]
        if not settled:
            return self
        now = Counter(_state_of_settled(batches[b.id]) for b in settled)
        refused = [b.id for b in settled if batches[b.id].state is BatchState.REFUSED]
        held = [b.id for b in settled if batches[b.id].state is BatchState.HELD]
        gone = {b.id for b in settled}
        return replace(
            self,
            batches=self.batches - len(settled),
            bytes=self.bytes - sum(b.bytes for b in settled),
            oldest=tuple(b for b in self.oldest if b.id not in gone),
            promoted=self.promoted + now[BufferState.PROMOTED],
            withheld=self.withheld + now[BufferState.WITHHELD],
            refused=self.refused + now[BufferState.REFUSED],
            refused_ids=(*self.refused_ids, *refused)[:LISTED_AT_MOST],
            held=self.held + now[BufferState.HELD],
            held_ids=(*self.held_ids, *held)[:LISTED_AT_MOST],
        )


EMPTY_BUFFER: Final = BufferDigest()


def named_for(run_takes: int) -> int:
    """How many waiting batches the digest of a buffer names, if a run takes at most so many."""
    return max(run_takes, min(RUNS_AHEAD * run_takes, NAMED_AT_MOST))


def waiting(batch: BufferedBatch, entry: BatchEntry | None = None) -> WaitingBatch:
    """The summary of a batch that waits.

    Args:
        entry: Of the ledger; None: it has none.
    """
    files = len(batch.data_objects)
    approval = (entry.restatement or "") if is_approved(batch, entry) and entry is not None else ""
    return WaitingBatch(batch.id, batch.name, batch.bytes, batch.oldest_time, batch.fingerprint, files, approval)


def state_of(batch: BufferedBatch, entry: BatchEntry | None) -> BufferState:
    """The state of a batch, by its objects and its ledger entry. None: the ledger does not record it."""
    complete = batch.complete and bool(batch.data_objects)
    if complete and _waits(batch, entry):
        return BufferState.WAITING
    settled = BufferState.INCOMPLETE if entry is None else _state_of_settled(entry)
    return settled if complete or settled is BufferState.PROMOTED else BufferState.INCOMPLETE


def _state_of_settled(entry: BatchEntry) -> BufferState:
    """The state of a batch that does not wait for promotion."""
    if entry.state is BatchState.REFUSED:
        return BufferState.REFUSED
    if entry.state is BatchState.HELD:
        return BufferState.HELD
    if entry.state is not BatchState.PROMOTED and not entry.objects and entry.rows is None:
        return BufferState.WITHHELD  # nothing recorded its objects: it was never promoted
    return BufferState.PROMOTED


def _waits(batch: BufferedBatch | WaitingBatch, entry: BatchEntry | None) -> bool:
    """Whether a complete batch may be promoted.

    The ledger does not know it, or refused or held other objects than these, or a person has approved it.
    """
    if entry is None or entry.is_approved:
        return True
    judged = [] if entry.blocks_promotion else [o for o in entry.objects if is_data(o.key)]
    return bool(judged) and fingerprint(judged) != batch.fingerprint


def digest(
    folders: Iterable[BufferedBatch | NoBatch],
    look_up: LookUp,
    names: int,
    retention_seconds: int,
    now: datetime,
    doubled: frozenset[int] = frozenset(),
) -> BufferDigest:
    """Summarize a listing.

    Args:
        look_up: Returns the ledger's entries of some ids. Called once for each piece of the listing.
        names: The maximum number of waiting batches to name, as `named_for`.
        retention_seconds: How long the objects of promoted batches stay in the buffer.
        doubled: As of the digest of the last listing.
    """
    made = _Fold(names, retention_seconds, now, doubled)
    for piece in pieces(folders):
        entries = look_up([f.id for f in piece if isinstance(f, BufferedBatch)])
        for folder in piece:
            if isinstance(folder, NoBatch):
                made.add_no_batch(folder)
            else:
                made.add(folder, entries.get(folder.id))
    return made.result()


def pieces(folders: Iterable[BufferedBatch | NoBatch]) -> Iterator[list[BufferedBatch | NoBatch]]:
    """Split the listing into pieces of about OBJECTS_PER_PIECE objects. The ledger is read once per piece."""
    piece: list[BufferedBatch | NoBatch] = []
    objects = 0
    for folder in folders:
        piece.append(folder)
        objects += len(folder.objects) if isinstance(folder, BufferedBatch) else 1
        if objects >= OBJECTS_PER_PIECE:
            yield piece
            piece, objects = [], 0
    if piece:
        yield piece


WRITTEN_WITHIN: Final = timedelta(hours=1)
"""A producer that takes longer for a batch is not waited for."""


@dataclass
class Newest:
    """Where to look for new batches, while producers give them names in the order of time: from the first that is not complete.

    Of other producers' batches it finds none, so it never replaces a listing.
    """

    now: datetime
    after: str = ""
    """The name to list from; "": no batch has passed."""
    _is_open: bool = False

    def passing(self, folders: Iterable[BufferedBatch | NoBatch]) -> Iterator[BufferedBatch | NoBatch]:
        """Take note of a listing, in the order of names."""
        for folder in folders:
            if isinstance(folder, BufferedBatch) and not self._is_open:
                self.after = folder.name
                self._is_open = not folder.complete and self.now - folder.oldest_time < WRITTEN_WITHIN
            yield folder


@dataclass
class _First:
    """A count of items, and a list of the first."""

    count: int = 0
    listed: list[Any] = field(default_factory=list)
    """The first items, at most LISTED_AT_MOST."""

    def add(self, item: Any) -> None:
        self.count += 1
        if len(self.listed) < LISTED_AT_MOST:
            self.listed.append(item)


class _Fold:
    def __init__(
        self, names: int, retention_seconds: int, now: datetime, doubled: frozenset[int] = frozenset()
    ) -> None:
        self.invalid = _First()
        self._unrelated = _First()
        self._tables = _First()
        self._names = names
        self._retention_seconds = retention_seconds
        self._now = now
        self._counts: Counter[BufferState] = Counter()
        self._bytes = 0
        self._objects = 0
        self._oldest: list[WaitingBatch] = []
        self._doubled = doubled  # as of the last listing
        self._set_aside: list[WaitingBatch] = []  # waiting batches of these ids
        self._youngest: tuple[datetime, str] | None = None  # of `_oldest`; None: fewer than are named
        self._refused = _First()
        self._held = _First()
        self._unexpected = _First()
        self._expired = 0
        self._ids = array("Q")
        self._youngest_time: datetime | None = None

    def add(self, batch: BufferedBatch, entry: BatchEntry | None) -> None:
        self._objects += len(batch.objects)
        self._youngest_time = max(self._youngest_time or batch.oldest_time, batch.oldest_time)
        self._ids.append(_hash(batch.id))
        state = state_of(batch, entry)
        self._counts[state] += 1
        if state is BufferState.WAITING:
            self._bytes += batch.bytes
            self._add_waiting(batch, entry)
        elif state is BufferState.REFUSED:
            self._refused.add(batch.id)
        elif state is BufferState.HELD:
            self._held.add(batch.id)
        elif state is BufferState.PROMOTED and entry is not None:
            sweep = sweep_of(batch, entry, self._retention_seconds, self._now)
            for o in sweep.unexpected:
                self._unexpected.add(o.key)
            self._expired += bool(sweep.delete)

    def add_no_batch(self, folder: NoBatch) -> None:
        self.invalid.add((folder.folder, folder.message))
        if not folder.too_large:
            self._unrelated.add(folder.folder)
        if folder.table:
            self._tables.add(folder.folder)

    def result(self) -> BufferDigest:
        several = self._ids_of_several()
        duplicates = [b for b in self._set_aside if _hash(b.id) in several]
        self._oldest += [b for b in self._set_aside if _hash(b.id) not in several]  # somebody has corrected them
        self._drop_younger()
        waiting_count = self._counts[BufferState.WAITING] - len(duplicates)
        known_until = self._oldest[-1].oldest_time if waiting_count > len(self._oldest) else None
        duplicates += self._take_duplicates(several)
        for b in duplicates:
            self.invalid.add((b.folder, same_id(b.id)))
        # Those that took places come first, in case there are too many to remember.
        doubled = dict.fromkeys([*(_hash(b.id) for b in duplicates), *several]) if duplicates else {}
        return BufferDigest(
            batches=self._counts[BufferState.WAITING] - len(duplicates),
            bytes=self._bytes - sum(b.bytes for b in duplicates),
            oldest=tuple(self._oldest),
            incomplete=self._counts[BufferState.INCOMPLETE],
            promoted=self._counts[BufferState.PROMOTED],
            withheld=self._counts[BufferState.WITHHELD],
            refused=self._refused.count,
            refused_ids=tuple(self._refused.listed),
            held=self._held.count,
            held_ids=tuple(self._held.listed),
            expired=self._expired,
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
            doubled=frozenset(islice(doubled, NAMED_AT_MOST)),
        )

    def _add_waiting(self, batch: BufferedBatch, entry: BatchEntry | None) -> None:
        if self._doubled and _hash(batch.id) in self._doubled:
            self._set_aside.append(waiting(batch, entry))
            return
        if self._youngest is not None and (batch.oldest_time, batch.id) > self._youngest:
            return
        self._oldest.append(waiting(batch, entry))
        if len(self._oldest) >= self._names + OBJECTS_PER_PIECE:
            self._drop_younger()

    def _drop_younger(self) -> None:
        self._oldest.sort(key=_age)
        if len(self._oldest) >= self._names:
            del self._oldest[self._names :]
            self._youngest = _age(self._oldest[-1])

    def _ids_of_several(self) -> set[int]:
        """Hashes of the ids that several folders or files of the listing have."""
        hashes, counts = np.unique(np.frombuffer(self._ids, np.uint64), return_counts=True)
        return set(hashes[counts > 1].tolist())

    def _take_duplicates(self, several: Collection[int]) -> list[WaitingBatch]:
        """Remove and return the batches in `_oldest` whose id has another folder or file anywhere in the listing."""
        duplicates = [b for b in self._oldest if _hash(b.id) in several] if several else []
        self._oldest = [b for b in self._oldest if _hash(b.id) not in several] if duplicates else self._oldest
        return duplicates


def _age(batch: WaitingBatch) -> tuple[datetime, str]:
    return batch.oldest_time, batch.id


def _hash(batch_id: str) -> int:
    return hash(batch_id) & 0xFFFF_FFFF_FFFF_FFFF


def with_folders(digest: BufferDigest, folders: Folders, entries: Mapping[str, BatchEntry], names: int) -> BufferDigest:
    """Update the waiting batches of the digest with the current content of these folders. All other counts stay as listed.

    A cut digest stays unchanged: older batches wait, and the digest does not say whether it already counts a folder. Two
    folders of one id are not a batch, so they are left out; the next listing reports them.

    Args:
        entries: The ledger's entries of the folders' batches, by id.
        names: The maximum number of waiting batches to name, as `named_for`.
    """
    if digest.is_cut:
        return digest
    left = [b for b in digest.oldest if b.folder not in folders]
    came = [_waiting(f, entries) for f in folders.values()]
    folders_of_id = Counter(b.id for b in (*left, *came) if b)
    waiting_batches = [b for b in (*left, *came) if b and folders_of_id[b.id] == 1]
    waiting_batches.sort(key=lambda b: (b.oldest_time, b.id))
    return replace(
        digest,
        batches=len(waiting_batches),
        bytes=sum(b.bytes for b in waiting_batches),
        oldest=tuple(waiting_batches[:names]),
    )


def _waiting(folder: BufferedBatch | NoBatch | None, entries: Mapping[str, BatchEntry]) -> WaitingBatch | None:
    if not isinstance(folder, BufferedBatch):
        return None
    entry = entries.get(folder.id)
    return waiting(folder, entry) if state_of(folder, entry) is BufferState.WAITING else None
