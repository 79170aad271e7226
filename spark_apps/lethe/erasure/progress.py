"""When the rows of an erasure have left the head, and which files held them. Pure.

Which files those are is told by metadata: a data file of a retained snapshot that may hold a row, and is not live at a head
that holds none. For batches their bounds say whether it may. Of records nobody keeps the value, so that every file older than
the Erase may; what they are too many of is a snapshot that has to go earlier, never a row that is left behind.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Final

from lethe.base import names
from lethe.contract.result import RequestResult
from lethe.files.bounds import IdIndex
from lethe.ledger.erasure import Erasure, PurgedFile
from lethe.ledger.ledger import Ledger
from lethe.ledger.lineage import Snapshot
from lethe.ledger.parts import get_many
from lethe.restatement.record import recalled, version_of

DATA: Final = "data"
DELETES: Final = "deletes"


@dataclass(frozen=True, slots=True)
class HeldFile:
    """A file that a manifest of a retained snapshot names.

    Args:
        size: In bytes.
        sequence_number: Of the snapshot that added it; None: unknown.
        lower, upper: Of a data file, bounds of the batch column; None: unknown.
        deletes: Of a data file of the head, whether native deletes that are no repetition of tombstones may be of it.
        of: Of deletes, the one data file that they are of; None: of several.
        values: Of deletes, whether they hold values of rows, and are not Lethe's.
    """

    path: str
    size: int
    content: str
    sequence_number: int | None
    lower: str | None = None
    upper: str | None = None
    deletes: bool = False
    of: str | None = None
    values: bool = False


@dataclass(frozen=True)
class History:
    """The retained snapshots with their files.

    Args:
        files: By path, each file that a retained snapshot reaches.
        live: The paths of the head's files.
        manifests: By snapshot, the manifests it lists.
        named: By manifest, the paths of its live files.
        gone: By manifest, the files that it says were removed.
    """

    snapshots: Mapping[int, Snapshot]
    head_id: int | None
    files: Mapping[str, HeldFile]
    live: frozenset[str]
    manifests: Mapping[int, Collection[str]]
    named: Mapping[str, Collection[str]]
    gone: Mapping[str, Collection[HeldFile]] = field(default_factory=dict)

    @property
    def head_sequence_number(self) -> int:
        head = self.snapshots.get(self.head_id) if self.head_id is not None else None
        return head.sequence_number if head is not None else 0

    @cached_property
    def with_deletes(self) -> tuple[HeldFile, ...]:
        """The data files of the head that native deletes may be of."""
        return tuple(f for f in map(self.files.__getitem__, self.live) if f.deletes)

    @cached_property
    def with_values(self) -> tuple[HeldFile, ...]:
        """The delete files of the head that hold values of rows."""
        return tuple(f for f in map(self.files.__getitem__, self.live) if f.values)

    @cached_property
    def last_commit_of(self) -> Mapping[str, int]:
        """By run, the sequence number of the last commit of it on the head's line."""
        line = [self.snapshots[i] for i in reversed(self.lineage())]
        return {s.summary[names.RUN_ID]: s.sequence_number for s in line if names.RUN_ID in s.summary}

    def lineage(self) -> list[int]:
        """The head and its retained ancestors, newest first."""
        found: list[int] = []
        current = self.head_id
        while current is not None and current in self.snapshots:
            found.append(current)
            current = self.snapshots[current].parent_id
        return found


@dataclass(frozen=True)
class Claim:
    """What one open erasure is about.

    Args:
        ids: Its batches; `hidden`: whether a tombstone of one of them is active.
        since: The sequence number of the commit that took records out, None when its snapshot is gone; only of `by_records`.
    """

    erasure: Erasure
    result: RequestResult
    ids: IdIndex
    hidden: bool
    by_records: bool
    since: int | None = None

    @property
    def key(self) -> str:
        return self.erasure.restatement

    def is_older(self, file: HeldFile) -> bool:
        """Whether the file was there before the records were taken out."""
        return self.by_records and (
            self.since is None or file.sequence_number is None or file.sequence_number < self.since
        )

    def may_be_in(self, file: HeldFile) -> bool:
        """Whether the file may hold one of its rows, or a value of one."""
        if file.content == DATA:
            return self.ids.might_hold(file) or self.is_older(file)
        return file.values and self.is_older(file)


def claims(ledger: Ledger, snapshots: Mapping[int, Snapshot], field_id: int) -> tuple[Claim, ...]:
    """The open erasures with what they are about. Those whose request is not remembered are about nothing that could be named.

    Args:
        field_id: Of the batch column.
    """
    found: list[Claim] = []
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
        found.append(Claim(erasure, result, IdIndex(result.batch_ids), hidden, by_records, since))
    return tuple(found)


@dataclass(frozen=True)
class Marked:
    """What the ledger is to know before a snapshot goes: erasures that came further, the files that may hold their rows, and
    the paths of those that turned out to hold none."""

    erasures: tuple[Erasure, ...] = ()
    files: tuple[PurgedFile, ...] = ()
    clean: frozenset[str] = frozenset()

    @property
    def is_empty(self) -> bool:
        return not (self.erasures or self.files or self.clean)


def mark(claimed: Iterable[Claim], history: History, known: Mapping[str, PurgedFile], now: datetime) -> Marked:
    """Note which erasures have no row left in the head, and which files of older snapshots may hold some.

    Args:
        known: The files that were noted before.
    """
    changed: list[Erasure] = []
    of = {path: set(f.restatements) for path, f in known.items()}
    suspect: dict[tuple[int | None, bool], tuple[HeldFile, ...]] = {}
    for claim in claimed:
        erasure = claim.erasure
        if erasure.is_purged and claim.hidden:
            # The batch came in again, by a snapshot without a ledger: its rows are in the head.
            erasure = erasure.reopened()
        clean_since = erasure.purged_at
        if clean_since is None and _has_left(claim, history):
            by = _purging_snapshot(claim, history)
            erasure = replace(erasure, purged_by=by, purged_at=history.head_sequence_number, purged_time=now)
        if erasure != claim.erasure:
            changed.append(erasure)
        asked = (clean_since, claim.by_records)
        if asked not in suspect:
            suspect[asked] = _suspect(history, *asked)
        for path in _held_by(claim if clean_since is None else replace(claim, since=None), suspect[asked]):
            of.setdefault(path, set()).add(claim.key)
        if erasure.purged_at is not None:
            # A head without a row of the erasure, with a file that was staged when it was noted: it held none.
            for path in known.keys() & history.live:
                if not claim.by_records or (history.files[path].sequence_number or 0) > erasure.purged_at:
                    of[path].discard(claim.key)
    files = [_purged_file(path, keys, history, known) for path, keys in sorted(of.items()) if keys]
    new = tuple(f for f in files if known.get(f.path) != f)
    return Marked(tuple(changed), new, frozenset(path for path, keys in of.items() if not keys))


def _purged_file(path: str, keys: set[str], history: History, known: Mapping[str, PurgedFile]) -> PurgedFile:
    if (before := known.get(path)) is not None:
        return replace(before, restatements=tuple(sorted(keys)))
    file = history.files[path]
    return PurgedFile(path, file.size, file.content, tuple(sorted(keys)))


def _has_left(claim: Claim, history: History) -> bool:
    """Whether no live file holds a row of it: its tombstones are purged, what native deletes hid was written anew, and no older
    delete file is left, which might delete by one of the values."""
    if claim.hidden:
        return False
    if not claim.by_records:
        return True
    return not any(claim.is_older(f) for f in (*history.with_deletes, *history.with_values))


def _purging_snapshot(claim: Claim, history: History) -> int | None:
    """The newest vacuum since that changed files; else the commit itself, which may have taken the rows out at once."""
    committed = history.snapshots.get(claim.result.snapshot_id or 0)
    for i in history.lineage():
        snapshot = history.snapshots[i]
        if committed is not None and snapshot.sequence_number <= committed.sequence_number:
            break
        if names.TOMBSTONE_VACUUM_FILE in snapshot.summary and names.DELETES not in snapshot.summary:
            return i
    return committed.id if committed is not None else history.head_id


def _suspect(history: History, clean_since: int | None, by_records: bool) -> tuple[HeldFile, ...]:
    """The files that some retained snapshot names, of whatever ancestry, but for those that are known to be clean.

    Clean are the files of the head and, once an erasure is purged, of the table's own line since. A branch, a tag on one and a
    staged snapshot are not, even if they were made on a clean snapshot: their writers may have read an older one. Of records,
    what a run of Lethe has staged since does not count: such a run reads the buffer alone.

    Args:
        clean_since: The sequence number from which on the table's line is clean; None: only the head is, if anything.
    """
    line = set(history.lineage()) if clean_since is not None else set()
    clean = set(history.live)
    reached: set[str] = set()
    for i, manifests in history.manifests.items():
        snapshot = history.snapshots[i]
        of_line = clean_since is not None and _is_of_line(snapshot, line, clean_since)
        if clean_since is not None and by_records and names.STAGE in snapshot.summary:
            continue
        for m in manifests:
            (clean if of_line else reached).update(history.named[m])
    # What was there when the rows left the head was looked at then; only what came since may be new.
    return tuple(
        f
        for f in map(history.files.__getitem__, reached - clean)
        if clean_since is None or not f.sequence_number or f.sequence_number > clean_since
    )


def _is_of_line(snapshot: Snapshot, line: Collection[int], since: int) -> bool:
    """Whether it was the head at some time since. Only the head's line gets ledgers, so that one with a ledger is of it, even if
    the snapshots between it and the head have expired."""
    if snapshot.sequence_number < since or names.WAP_ID in snapshot.summary:
        return False
    return snapshot.id in line or snapshot.ledger is not None


def has_unseen(seen: History, snapshots: Mapping[int, Snapshot], head_id: int | None) -> bool:
    """Whether a snapshot that may hold rows of an erasure was added since the look: any but those with a ledger on the head's
    line, which bring in nothing that was erased."""
    line: set[int] = set()
    while head_id is not None and head_id in snapshots and head_id not in seen.snapshots:
        line.add(head_id)
        head_id = snapshots[head_id].parent_id
    return any(i not in line or snapshots[i].ledger is None for i in snapshots.keys() - seen.snapshots.keys())


def _held_by(claim: Claim, files: Iterable[HeldFile]) -> set[str]:
    """Those that may hold its rows, and the deletes that are of these."""
    found = {f.path for f in files if claim.may_be_in(f)}
    return found | {f.path for f in files if f.of in found}


@dataclass(frozen=True)
class Closing:
    """What of a ledger changes when erasures are closed: `keys` of them; `set_erasures` that stay to be remembered, `close` those
    that go; purged files that others of them are of still, and the paths of those that none is."""

    keys: tuple[str, ...]
    set_erasures: tuple[Erasure, ...]
    close: frozenset[str]
    set_files: tuple[PurgedFile, ...]
    forget_files: frozenset[str]


def plan_closing(ledger: Ledger, free: Iterable[str], looked_at: Mapping[str, PurgedFile], field_id: int) -> Closing:
    """Close the erasures that nothing was seen to hold, unless the ledger has heard of other files of them since.

    Args:
        free: Their keys.
        looked_at: The purged files that were looked for.
        field_id: Of the batch column.
    """
    files = dict(ledger.purged_files)
    unseen = {
        k
        for f in files.values()
        for k in f.restatements
        if f.path not in looked_at or k not in looked_at[f.path].restatements
    }
    open_ = {e.restatement for e in ledger.open_erasures}
    keys = tuple(k for k in free if k in open_ and k not in unseen)
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
    """Of the erasures by records that are over, the one that stays: the newest, for which `lethe.restatement.undo` asks.

    Args:
        verified: The keys of those that are being closed.
    """
    over = [e for e in ledger.erasures if e.field_id != field_id and (e.verified or e.restatement in verified)]
    requests = get_many(ledger.requests, [e.restatement for e in over])
    known = [(requests[e.restatement], e) for e in over if e.restatement in requests]
    if not known:
        return None
    newest = max(known, key=lambda found: (version_of(found[0]), found[0].time, found[1].restatement))[1]
    return replace(newest, verified=True, blockers=(), blockers_count=0, look_again=None)
