"""Decides whether an erasure is done: its rows have left the head, which files may hold them, and no run may write more. Pure.

These files follow from metadata: data files of retained snapshots that may hold a row and are not live at a head without such
rows. For batches, the bounds decide. For records, Lethe does not keep the values, so every file older than the Erase counts. Too
many files only mean that a snapshot expires earlier; no row is left behind.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Final

from lethe.base import names
from lethe.contract.dataset import HoldSpec
from lethe.contract.result import RequestResult
from lethe.files.bounds import IdIndex
from lethe.ledger.ledger import Ledger, get_many
from lethe.ledger.lineage import Snapshot
from lethe.ledger.tombstone import BlockerKind, Erasure, ErasureBlocker, PurgedFile
from lethe.restatement.plan import recalled, version_of
from lethe.vacuum.housekeeping import UNPUBLISHED_FOR
from lethe.vacuum.plan import KeptFile

DATA: Final = "data"
DELETES: Final = "deletes"

FORMAT_VERSION = 1
_NOTE: Final = re.compile(rf"(.+?)(?:-(\d+)-[0-9a-f]{{8}})?{re.escape(names.WRITER_SUFFIX)}")


@dataclass(frozen=True, slots=True)
class HeldFile:
    """A file that a manifest of a retained snapshot names."""

    path: str
    size: int
    """Bytes."""
    content: str
    """DATA or DELETES."""
    sequence_number: int | None
    """The sequence number of the snapshot that added it; None: unknown."""
    lower: str | None = None
    """The lower bound of the batch column, if it is a data file; None: unknown."""
    upper: str | None = None
    deletes: bool = False
    """For a data file of the head: native deletes that do not repeat tombstones may apply to it."""
    data_path: str | None = None
    """For a delete file: the only data file that it applies to; None: several."""
    values: bool = False
    """For a delete file: it contains values of rows."""
    in_partition: bool = False
    """For a delete file: its path, and those in it, may name the values of a partition."""


@dataclass(frozen=True)
class History:
    """The retained snapshots with their files."""

    snapshots: Mapping[int, Snapshot]
    """The retained snapshots, by id."""
    head_id: int | None
    """The current snapshot; None: the table is empty."""
    files: Mapping[str, HeldFile]
    """All files of retained snapshots, by path."""
    live: frozenset[str]
    """The paths of the head's files."""
    manifests: Mapping[int, Collection[str]]
    """Snapshot id -> paths of its manifests."""
    named: Mapping[str, Collection[str]]
    """Manifest -> paths of its live files."""
    gone: Mapping[str, Collection[HeldFile]] = field(default_factory=dict)
    """Manifest -> files that it lists as removed."""

    @property
    def head_sequence_number(self) -> int:
        """Iceberg's sequence number of the head, which orders commits; 0: there is no head, or it is not retained."""
        head = self.snapshots.get(self.head_id) if self.head_id is not None else None
        return head.sequence_number if head is not None else 0

    @cached_property
    def with_deletes(self) -> tuple[HeldFile, ...]:
        """The data files of the head that native deletes may apply to."""
        return tuple(f for f in map(self.files.__getitem__, self.live) if f.deletes)

    @cached_property
    def with_values(self) -> tuple[HeldFile, ...]:
        """The delete files of the head that contain values of rows."""
        return tuple(f for f in map(self.files.__getitem__, self.live) if f.values)

    @cached_property
    def last_commit_of(self) -> Mapping[str, int]:
        """By run id, the sequence number of its last commit in the head's lineage."""
        lineage = [self.snapshots[i] for i in reversed(self.lineage())]
        return {s.summary[names.RUN_ID]: s.sequence_number for s in lineage if names.RUN_ID in s.summary}

    def lineage(self) -> list[int]:
        """The head and its retained ancestors, newest first."""
        ids: list[int] = []
        current = self.head_id
        while current is not None and current in self.snapshots:
            ids.append(current)
            current = self.snapshots[current].parent_id
        return ids


@dataclass(frozen=True)
class OpenErasure:
    """An open erasure with its request."""

    erasure: Erasure
    result: RequestResult
    ids: IdIndex
    """The ids of its batches; empty if `by_records`."""
    hidden: bool
    """A tombstone of one of its batches is active."""
    by_records: bool
    since: int | None = (
        None  # sequence number of the commit that deleted the records; None: its snapshot expired, or by batches
    )

    @property
    def names_batches(self) -> bool:
        """Whether its request says by batch ids which rows it is about, as a Redact of whole batches does, too."""
        return not self.by_records or (self.result.redaction is not None and bool(self.result.redaction.batch_ids))

    @property
    def key(self) -> str:
        """The key of the request, which contains the namespace and the name of the Restatement."""
        return self.erasure.restatement

    def is_older(self, file: HeldFile) -> bool:
        """Whether the file was added before the records were deleted."""
        return self.by_records and (
            self.since is None or file.sequence_number is None or file.sequence_number < self.since
        )

    def may_be_in(self, file: HeldFile) -> bool:
        """Whether the file may contain one of its rows, or a value of one."""
        if file.content == DATA:
            return self.ids.might_hold(file) or self.is_older(file)
        return self.by_records and (file.values or file.in_partition)


def open_erasures_of(ledger: Ledger, snapshots: Mapping[int, Snapshot], field_id: int) -> tuple[OpenErasure, ...]:
    """The open erasures whose requests are in the ledger.

    Args:
        field_id: Of the batch column.
    """
    erasures: list[OpenErasure] = []
    requests = get_many(ledger.requests, [e.restatement for e in ledger.open_erasures])
    for erasure in ledger.open_erasures:
        entry = requests.get(erasure.restatement)
        if entry is None:
            continue
        result = recalled(entry)
        by_records = erasure.field_id != field_id
        hidden = bool(get_many(ledger.tombstones, [(field_id, i) for i in result.batch_ids]))
        taken_out = snapshots.get(result.snapshot_id or 0) if by_records else None
        since = taken_out.sequence_number if taken_out is not None else None
        erasures.append(OpenErasure(erasure, result, IdIndex(result.batch_ids), hidden, by_records, since))
    return tuple(erasures)


@dataclass(frozen=True)
class Marked:
    """What to write to the ledger before snapshots expire."""

    erasures: tuple[Erasure, ...] = ()
    """The erasures that changed."""
    files: tuple[PurgedFile, ...] = ()
    """New or changed files that may hold rows."""
    clean: frozenset[str] = frozenset()
    """Paths of files that hold no rows after all."""

    @property
    def is_empty(self) -> bool:
        """Whether the ledger needs no commit before snapshots expire."""
        return not (self.erasures or self.files or self.clean)


def mark(
    open_erasures: Iterable[OpenErasure], history: History, listed_files: Mapping[str, PurgedFile], now: datetime
) -> Marked:
    """Note which erasures have no row left in the head, and which files of older snapshots may hold some.

    Args:
        listed_files: The files that the ledger lists already.
    """
    changed: list[Erasure] = []
    keys_by_path = {path: set(f.restatements) for path, f in listed_files.items()}
    suspects: dict[tuple[int | None, bool], tuple[HeldFile, ...]] = {}
    for open_erasure in open_erasures:
        erasure = open_erasure.erasure
        if erasure.is_purged and open_erasure.hidden:
            # A snapshot without a ledger added the batch again: its rows are in the head.
            erasure = erasure.reopened()
        clean_since = erasure.purged_at
        if clean_since is None and _has_left(open_erasure, history):
            by = _purging_snapshot(open_erasure, history)
            erasure = replace(erasure.reopened(), purged_by=by, purged_at=history.head_sequence_number, purged_time=now)
        if erasure != open_erasure.erasure:
            changed.append(erasure)
        key = (clean_since, open_erasure.by_records)
        if key not in suspects:
            suspects[key] = _suspects(history, *key)
        for path in _held_by(open_erasure if clean_since is None else replace(open_erasure, since=None), suspects[key]):
            keys_by_path.setdefault(path, set()).add(open_erasure.key)
        if erasure.purged_at is not None:
            # The head has no row of the erasure but has a file that was staged when it was listed: the file holds none.
            for path in listed_files.keys() & history.live:
                if not open_erasure.by_records or (history.files[path].sequence_number or 0) > erasure.purged_at:
                    keys_by_path[path].discard(open_erasure.key)
    files = [_purged_file(path, keys, history, listed_files) for path, keys in sorted(keys_by_path.items()) if keys]
    new = tuple(f for f in files if listed_files.get(f.path) != f)
    return Marked(tuple(changed), new, frozenset(path for path, keys in keys_by_path.items() if not keys))


def _purged_file(path: str, keys: set[str], history: History, listed_files: Mapping[str, PurgedFile]) -> PurgedFile:
    if (before := listed_files.get(path)) is not None:
        return replace(before, restatements=tuple(sorted(keys)))
    file = history.files[path]
    return PurgedFile(path, file.size, file.content, tuple(sorted(keys)))


def _has_left(open_erasure: OpenErasure, history: History) -> bool:
    """Whether no live file holds a row of it.

    Its tombstones are purged, files with native deletes were rewritten, and no older delete file is left that might
    delete by one of the values.
    """
    if open_erasure.hidden:
        return False
    if not open_erasure.by_records:
        return True
    return not any(open_erasure.is_older(f) for f in (*history.with_deletes, *history.with_values))


def _purging_snapshot(open_erasure: OpenErasure, history: History) -> int | None:
    """The newest vacuum after the commit that changed files; else the commit itself, which may have removed the rows at once."""
    committed = history.snapshots.get(open_erasure.result.snapshot_id or 0)
    for i in history.lineage():
        snapshot = history.snapshots[i]
        if committed is not None and snapshot.sequence_number <= committed.sequence_number:
            break
        if names.TOMBSTONE_VACUUM_FILE in snapshot.summary and names.DELETES not in snapshot.summary:
            return i
    return committed.id if committed is not None else history.head_id


def _suspects(history: History, clean_since: int | None, by_records: bool) -> tuple[HeldFile, ...]:
    """The files of all retained snapshots, except those that are known to be clean.

    Clean files are those of the head and, after the purge, of the head's lineage since then. Snapshots of other branches, tags on
    them and staged snapshots are not clean, even with a clean parent: their writers may have read an older snapshot. For records,
    snapshots that runs of Lethe staged after the purge do not count, because such runs read only the buffer.

    Args:
        clean_since: The sequence number from which the head's lineage is clean; None: only the head may be.
    """
    lineage = set(history.lineage()) if clean_since is not None else set()
    clean = set(history.live)
    reached: set[str] = set()
    for i, manifests in history.manifests.items():
        snapshot = history.snapshots[i]
        is_clean = clean_since is not None and _was_head(snapshot, lineage, clean_since)
        if clean_since is not None and by_records and names.STAGE in snapshot.summary:
            continue
        for m in manifests:
            (clean if is_clean else reached).update(history.named[m])
    # Files from before the purge were assessed then; only later files may be new.
    return tuple(
        f
        for f in map(history.files.__getitem__, reached - clean)
        if clean_since is None or not f.sequence_number or f.sequence_number > clean_since
    )


def _was_head(snapshot: Snapshot, lineage: Collection[int], since: int) -> bool:
    """Whether the snapshot was the head at some time since then.

    Only snapshots of the head's lineage get ledgers, so one with a ledger was, even if the snapshots between it and the head have
    expired.
    """
    if snapshot.sequence_number < since or names.WAP_ID in snapshot.summary:
        return False
    return snapshot.id in lineage or snapshot.ledger is not None


def has_unseen(seen: History, snapshots: Mapping[int, Snapshot], head_id: int | None) -> bool:
    """Whether a snapshot that may hold rows of an erasure was added after `seen`.

    Any may, except those with a ledger in the head's lineage, which add no erased rows.
    """
    lineage: set[int] = set()
    while head_id is not None and head_id in snapshots and head_id not in seen.snapshots:
        lineage.add(head_id)
        head_id = snapshots[head_id].parent_id
    return any(i not in lineage or snapshots[i].ledger is None for i in snapshots.keys() - seen.snapshots.keys())


def _held_by(open_erasure: OpenErasure, files: Iterable[HeldFile]) -> set[str]:
    """The paths of the files that may hold its rows, and of the deletes that apply to these files."""
    paths = {f.path for f in files if open_erasure.may_be_in(f)}
    return paths | {f.path for f in files if f.data_path in paths}


@dataclass(frozen=True)
class Closing:
    """How a ledger changes when erasures are closed."""

    keys: tuple[str, ...]
    """The keys of the erasures to close."""
    set_erasures: tuple[Erasure, ...]
    """The erasures to keep as verified."""
    close: frozenset[str]
    """Keys to remove."""
    set_files: tuple[PurgedFile, ...]
    """Files that other open erasures still need."""
    forget_files: frozenset[str]
    """Paths of files that no open erasure needs."""


def plan_closing(ledger: Ledger, free: Iterable[str], verified: Mapping[str, PurgedFile], field_id: int) -> Closing:
    """Close the erasures that nothing blocks, unless the ledger lists further files of them since the verification.

    Args:
        free: The keys of these erasures.
        verified: The purged files that the verification searched for.
        field_id: Of the batch column.
    """
    files = dict(ledger.purged_files)
    unverified = {
        k
        for f in files.values()
        for k in f.restatements
        if f.path not in verified or k not in verified[f.path].restatements
    }
    open_ = {e.restatement for e in ledger.open_erasures}
    keys = tuple(k for k in free if k in open_ and k not in unverified)
    left = {f: tuple(k for k in f.restatements if k in open_.difference(keys)) for f in files.values()}
    kept = remembered_of_records(ledger, keys, field_id) if keys else None
    before = {e.restatement for e in ledger.erasures if e.verified} if keys else set()
    return Closing(
        keys,
        (kept,) if kept is not None else (),
        frozenset({*keys, *before}),
        tuple(replace(f, restatements=found) for f, found in left.items() if found and found != f.restatements),
        frozenset(f.path for f, found in left.items() if not found),
    )


def remembered_of_records(ledger: Ledger, verified: Collection[str], field_id: int) -> Erasure | None:
    """The closed erasure by records that stays in the ledger: the newest, which `lethe.restatement.plan` needs.

    Args:
        verified: The keys of the erasures being closed.
    """
    closed = [e for e in ledger.erasures if e.field_id != field_id and (e.verified or e.restatement in verified)]
    requests = get_many(ledger.requests, [e.restatement for e in closed])
    remembered_requests = [(requests[e.restatement], e) for e in closed if e.restatement in requests]
    if not remembered_requests:
        return None
    newest = max(remembered_requests, key=lambda found: (version_of(found[0]), found[0].time, found[1].restatement))[1]
    return replace(newest, verified=True, blockers=(), blockers_count=0, look_again=None)


@dataclass(frozen=True)
class Writer:
    """An attempt of a run that writes data files."""

    run: str
    """Its id."""
    folder: str
    """URI of the folder of its data files; empty: the note is unreadable."""
    since: (
        int  # the last sequence number of the table when the note was written: the run reads that state or a later one
    )
    batch_ids: frozenset[str] | None
    """The batches that it may add from the buffer; None: it may write any row of the table."""
    attempt: int = 0
    """From 1; 0: unknown, or a Spark job of a user."""

    def to_json(self) -> bytes:
        """The content of the note, as `of_json` reads it. Batch ids are sorted, so equal writers give equal bytes."""
        ids = None if self.batch_ids is None else sorted(self.batch_ids)
        document = {
            "format-version": FORMAT_VERSION,
            "run": self.run,
            "attempt": self.attempt,
            "folder": self.folder,
            "sequence-number": self.since,
            "batch-ids": ids,
        }
        return json.dumps(document).encode()

    @classmethod
    def of_json(cls, content: bytes, name: str) -> "Writer":
        """Parse a note. An unreadable note is of an attempt that may write any row.

        Args:
            name: Of its file.
        """
        try:
            document = json.loads(content)
            ids = document["batch-ids"]
            return cls(
                str(document["run"]),
                str(document["folder"]),
                int(document["sequence-number"]),
                None if ids is None else frozenset(map(str, ids)),
                int(document.get("attempt", 0)),
            )
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError):
            return cls(run_of_note(name), "", 0, None)

    def may_write(self, open_erasure: OpenErasure) -> bool:
        """Whether the run may write rows of an erasure, or has written some."""
        if self.batch_ids is not None:
            # A Replay by keys is about records, and may name batches, too.
            return not self.batch_ids.isdisjoint(open_erasure.result.batch_ids)
        return open_erasure.erasure.purged_at is None or self.since < open_erasure.erasure.purged_at


def note_name(run: str, attempt: int, token: str) -> str:
    """The name of the file of a note.

    Args:
        token: Eight hexadecimal digits, different in each process: two processes may carry out one attempt.
    """
    return f"{run}-{attempt}-{token}{names.WRITER_SUFFIX}"


def run_of_note(name: str) -> str:
    """The id of the run, from the name of the file of a note."""
    match = _NOTE.fullmatch(name)
    return match[1] if match is not None else name


def hold_blockers(
    open_erasures: Iterable[OpenErasure], kept: Collection[KeptFile], holds: Iterable[HoldSpec]
) -> dict[str, tuple[ErasureBlocker, ...]]:
    """The holds that keep rows of erasures in data files of the head, by the key of the erasure.

    Args:
        kept: The files that a vacuum has left because of holds.
        holds: Of the Dataset.
    """
    until = {h.name: h.until for h in holds}
    blockers: dict[str, tuple[ErasureBlocker, ...]] = {}
    for open_erasure in open_erasures:
        ids = frozenset(open_erasure.result.batch_ids)
        files = [f for f in kept if (open_erasure.by_records and f.has_deletes) or not ids.isdisjoint(f.ids)]
        if files and not open_erasure.erasure.is_purged:
            names_of_holds = sorted(frozenset[str]().union(*(f.holds for f in files)))
            blockers[open_erasure.key] = tuple(
                ErasureBlocker(BlockerKind.HOLD, n, until.get(n), "it covers rows in the table's data files")
                for n in names_of_holds
            )
    return blockers


def writer_blockers(
    writers: Collection[tuple[Writer, datetime]], open_erasure: OpenErasure, now: datetime
) -> list[ErasureBlocker]:
    """The runs that keep an erasure open.

    Each writer has the time of its note, by the storage's clock; after a day its run has ended.

    Each attempt of a run writes a note before it reads the ledger. The note says nothing about another attempt: on a node that is
    cut off, an attempt may still write when a later one has ended. A run whose note is newer than the purge reads a table without
    the rows; if it adds batches, the ledger says which of them were erased. So, if there is no note of an earlier run, no run
    will write such rows.
    """
    return [
        ErasureBlocker(
            BlockerKind.RUN,
            w.run,
            (noted + UNPUBLISHED_FOR).replace(microsecond=0),
            f"{f'attempt {w.attempt}' if w.attempt else 'it'} may write such rows",
        )
        for w, noted in sorted(writers, key=lambda found: (found[0].run, found[0].attempt))
        if noted + UNPUBLISHED_FOR > now and w.may_write(open_erasure)
    ]
