"""When the rows of an erasure have left the head, and which files held them. Pure.

Which files those are is told by metadata: a data file of a retained snapshot that may hold a row, and is not live at a head
that holds none. For batches their bounds say whether it may. Of records nobody keeps the value, so that every file older than
the Erase may; what they are too many of is a snapshot that has to go earlier, never a row that is left behind.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Final

from lethe import names
from lethe.ledger.erasure import Erasure, PurgedFile
from lethe.ledger.ledger import Ledger
from lethe.ledger.lineage import Snapshot
from lethe.ledger.parts import get_many
from lethe.plan.bounds import IdIndex
from lethe.plan.requests import recalled
from lethe.run_result import RequestResult

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
        equality: Of deletes, whether they hold values of rows, and are not Lethe's.
    """

    path: str
    size: int
    content: str
    sequence_number: int | None
    lower: str | None = None
    upper: str | None = None
    deletes: bool = False
    of: str | None = None
    equality: bool = False


@dataclass(frozen=True)
class History:
    """The retained snapshots with their files.

    Args:
        files: By path, each file that a retained snapshot reaches.
        live: The paths of the head's files.
        manifests: By snapshot, the manifests it lists; `named`: by manifest, the paths of its live files.
    """

    snapshots: Mapping[int, Snapshot]
    head_id: int | None
    files: Mapping[str, HeldFile]
    live: frozenset[str]
    manifests: Mapping[int, Collection[str]]
    named: Mapping[str, Collection[str]]

    @property
    def head_sequence_number(self) -> int:
        head = self.snapshots.get(self.head_id) if self.head_id is not None else None
        return head.sequence_number if head is not None else 0

    @cached_property
    def with_deletes(self) -> tuple[HeldFile, ...]:
        """The data files of the head that native deletes may be of."""
        return tuple(f for f in map(self.files.__getitem__, self.live) if f.deletes)

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
        return file.equality and self.is_older(file)


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
    suspect: dict[int | None, tuple[HeldFile, ...]] = {}
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
        if clean_since not in suspect:
            suspect[clean_since] = _suspect(history, clean_since)
        for path in _held_by(claim if clean_since is None else replace(claim, since=None), suspect[clean_since]):
            of.setdefault(path, set()).add(claim.key)
        if erasure.is_purged and not claim.by_records:
            # A head without a row of the batch, with a file that was staged when it was noted: it held none.
            for path in known.keys() & history.live:
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
    """Whether no live data file holds a row of it: its tombstones are purged, and what native deletes hid was written anew."""
    if claim.hidden:
        return False
    if not claim.by_records:
        return True
    return not any(claim.is_older(f) for f in history.with_deletes)


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


def _suspect(history: History, clean_since: int | None) -> tuple[HeldFile, ...]:
    """The files of snapshots other than those that are known to be clean.

    Args:
        clean_since: The sequence number from which on the head's line is clean, and what descends from it; None: only the head
            is, if anything.
    """
    line = [i for i in history.lineage() if clean_since is None or history.snapshots[i].sequence_number >= clean_since]
    clean = _with_descendants(history.snapshots, line[:1] if clean_since is None else line)
    manifests = {m for i in history.snapshots.keys() - clean for m in history.manifests[i]}
    reached = {p for m in manifests for p in history.named[m]} - history.live
    # Once purged, what was there then has been looked at; only what came since, on a branch of old, may be new.
    return tuple(
        f
        for f in map(history.files.__getitem__, reached)
        if clean_since is None or (f.sequence_number or 0) > clean_since
    )


def _with_descendants(snapshots: Mapping[int, Snapshot], of: Iterable[int]) -> set[int]:
    """These snapshots and all that were made on them."""
    known = dict.fromkeys(of, True)
    for start in snapshots:
        walked: list[int] = []
        current: int | None = start
        while current is not None and current in snapshots and current not in known:
            walked.append(current)
            current = snapshots[current].parent_id
        known.update(dict.fromkeys(walked, current is not None and known.get(current, False)))
    return {i for i, is_one in known.items() if is_one}


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
    """Of the erasures by records that are over, the one that stays: the newest, for which `lethe.plan.undo` asks.

    Args:
        verified: The keys of those that are being closed.
    """
    over = [e for e in ledger.erasures if e.field_id != field_id and (e.verified or e.restatement in verified)]
    requests = get_many(ledger.requests, [e.restatement for e in over])
    times = [(requests[e.restatement].time, e.restatement, e) for e in over if e.restatement in requests]
    if not times:
        return None
    newest = max(times, key=lambda t: t[:2])[2]
    return replace(newest, verified=True, blockers=(), blockers_count=0, look_again=None)
