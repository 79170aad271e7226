"""Finds the ledger of a snapshot: that of its nearest ancestor that carries one. Pure.

Other writers do not copy Lethe's summary keys: their commits make *bare* snapshots, whose ledger is found by walking to
ancestors.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from lethe.base import names
from lethe.base.errors import LedgerError
from lethe.ledger.ledger import Carrier

ERASED: Final = -1
"""The parent id of a snapshot whose parent is unknown. No snapshot has this id."""


@dataclass(frozen=True)
class WrittenLedger:
    """A ledger that is written, but to which no snapshot points yet."""

    root: str
    """URI."""
    tombstones: str
    """URI of the only file of active tombstones; if there are several, of the root, which lists them."""
    added: int
    """Tombstones that are active only in this ledger."""
    deleted: int
    """Tombstones that are active only in the ledger before."""
    total: int
    """Active tombstones."""
    vacuumed: str | None = None
    """URI of the tombstones that a vacuum applied; None: not a vacuum."""
    vacuumed_count: int = 0
    """Entries of that file."""


def summary(written: WrittenLedger, run_id: str, run_kind: str) -> dict[str, str]:
    """The summary of the snapshot that carries the ledger. All keys are always set, except those of a vacuum."""
    keys = {
        names.LEDGER: written.root,
        names.RUN_ID: run_id,
        names.RUN_KIND: run_kind,
        names.TOMBSTONE_FILE: written.tombstones,
        names.TOMBSTONE_ADDED: str(written.added),
        names.TOMBSTONE_DELETED: str(written.deleted),
        names.TOMBSTONE_TOTAL: str(written.total),
    }
    if written.vacuumed is not None:
        keys[names.TOMBSTONE_VACUUM_FILE] = written.vacuumed
        keys[names.TOMBSTONE_VACUUM_COUNT] = str(written.vacuumed_count)
    return keys


@dataclass(frozen=True)
class Snapshot:
    """The part of an Iceberg snapshot that Lethe uses."""

    id: int
    parent_id: int | None
    """The parent snapshot; None: a root of history; ERASED: unknown."""
    sequence_number: int
    timestamp_ms: int
    """Since 1970."""
    summary: Mapping[str, str] = field(default_factory=dict)

    @property
    def ledger(self) -> str | None:
        """The URI of the ledger's root that its summary names; None: the snapshot carries no ledger."""
        return self.summary.get(names.LEDGER)

    @property
    def is_of_lethe(self) -> bool:
        """Whether Lethe committed or staged it."""
        return self.ledger is not None or names.STAGE in self.summary


def ledgers_begin_after(properties: Mapping[str, str], uuid: str, carriers: Iterable[int]) -> int | None:
    """The sequence number after which each snapshot of a table has a ledger; None: the table never had a ledger.

    Args:
        uuid: Of the table.
        carriers: Sequence numbers of the retained snapshots that carry a ledger, for a table without the property.
    """
    since = properties.get(names.LEDGER_SINCE, "")
    if properties.get(names.LEDGER_BEGUN) == uuid and since.isdigit():
        return int(since)
    return min(carriers, default=None)


def parent_of(
    parent_id: int | None, summary: Mapping[str, str], sequence_number: int = 0, begins_after: int | None = None
) -> int | None:
    """The original parent of a snapshot.

    A snapshot without a parent id is not always a root of history: PyIceberg removes the parent id when it expires the parent,
    and CREATE OR REPLACE TABLE starts a new history in the table.

    A root of history is older than the table's first ledger, contains only files that it added, and removed none. Any other
    snapshot had a parent, which may have carried a ledger.

    Args:
        begins_after: As `ledgers_begin_after` returns it.
    """
    if parent_id is not None:
        return parent_id
    bare = (
        names.LEDGER not in summary and names.STAGE not in summary
    )  # staged snapshots of Lethe are never part of a history
    if bare and begins_after is not None and sequence_number > begins_after:
        return ERASED
    total, added = summary.get("total-data-files"), summary.get("added-data-files", "0")
    if total is None or total == "0":
        return None  # unknown, or there are no rows that a ledger could hide
    removed = summary.get("deleted-data-files", "0") != "0" or summary.get("operation") == "replace"
    return ERASED if removed or total != added else None


@dataclass(frozen=True)
class Resolution:
    """The ledger of a snapshot, and how it was found."""

    pointer: str | None
    """URI of the ledger's root; None: the empty ledger, at a root of history."""
    carrier_id: int | None
    """The snapshot that carries it, which may have expired; None: at a root of history."""
    bare: tuple[int, ...] = ()
    """The bare snapshots on the way, newest first."""
    carrier_sequence_number: int | None = field(default=None, compare=False)
    """The sequence number of the carrier; None: at a root of history. Not compared, because it follows from the carrier."""


def resolve(
    snapshots: Mapping[int, Snapshot],
    snapshot_id: int | None,
    carriers: Sequence[Carrier] = (),
    table: str = "table",
    ledger_since: int | None = None,
) -> Resolution:
    """Walk from `snapshot_id` to the nearest carrier.

    Args:
        snapshots: Every retained snapshot, by id.
        snapshot_id: The start; None: a table without snapshots.
        carriers: The carriers list of the newest ledger of this table, for snapshots whose carrier expired.
        table: The name for the error.
        ledger_since: The table's last sequence number before its first ledger; None: unknown.

    Raises:
        LedgerError: `LedgerLost`, if the walk ends at an expired parent whose ledger is unknown.
    """
    bare: list[int] = []
    current = snapshot_id
    while current is not None:
        snapshot = snapshots.get(current)
        if snapshot is None:
            if bare and ledger_since is not None and snapshots[bare[-1]].sequence_number <= ledger_since:
                return Resolution(None, None, tuple(bare))
            # Only the carrier listed for one of these snapshots: a lost ledger might have followed any other carrier.
            carrier = next((c for c in carriers if not set(c.bare).isdisjoint(bare)), None)
            if carrier is not None:
                return Resolution(carrier.ledger, carrier.snapshot_id, tuple(bare), carrier.sequence_number)
            raise LedgerError(
                "LedgerLost",
                f"{table}: snapshot {snapshot_id} has no ledger of its own, and {_lost_at(current, bare)}. Reading would show "
                f"deleted rows. Roll back to a snapshot with `{names.LEDGER}` in its summary, or continue with the table's last "
                "ledger: the Dataset's condition Ready says how. Without an operator, see docs/foreign-writers.md.",
            )
        if snapshot.ledger is not None:
            return Resolution(snapshot.ledger, snapshot.id, tuple(bare), snapshot.sequence_number)
        bare.append(current)
        current = snapshot.parent_id
    return Resolution(None, None, tuple(bare))


def _lost_at(current: int, bare: Sequence[int]) -> str:
    """Why the walk to this ancestor found no ledger."""
    if current != ERASED:
        return f"its ancestor {current}, which might carry one, has expired"
    first = f"its ancestor {bare[-1]}" if len(bare) > 1 else "it"
    return (
        f"{first} has no parent, although the table had a ledger before: the table was replaced (CREATE OR REPLACE TABLE), or "
        "the parent has expired"
    )


def is_gapless(snapshots: Mapping[int, Snapshot], resolution: Resolution) -> bool:
    """Whether all snapshots between the carrier and the resolved snapshot are retained.

    Then they name all files that were added without a ledger.

    False if some expired, or if a person made the carrier, to name a lost ledger again: the files below it were not checked.
    """
    if _is_made_by_hand(snapshots, resolution):
        return False
    oldest = snapshots.get(resolution.bare[-1]) if resolution.bare else None
    return not resolution.bare or (oldest is not None and oldest.parent_id == resolution.carrier_id)


def knows_files_up_to(snapshots: Mapping[int, Snapshot], resolution: Resolution) -> int | None:
    """The sequence number up to which the ledger covers the data files; None: unknown, so none."""
    return None if _is_made_by_hand(snapshots, resolution) else resolution.carrier_sequence_number


def _is_made_by_hand(snapshots: Mapping[int, Snapshot], resolution: Resolution) -> bool:
    """Whether no run of Lethe committed the carrier."""
    carrier = snapshots.get(resolution.carrier_id) if resolution.carrier_id is not None else None
    return carrier is not None and names.RUN_ID not in carrier.summary


def line_of(snapshots: Mapping[int, Snapshot], head_id: int | None) -> tuple[int, ...]:
    """A snapshot and its retained ancestors, newest first."""
    line: list[int] = []
    while head_id is not None and head_id in snapshots:
        line.append(head_id)
        head_id = snapshots[head_id].parent_id
    return tuple(line)


def last_ledger(
    snapshots: Mapping[int, Snapshot], seen: str | None, seen_sequence_number: int | None = None
) -> str | None:
    """The ledger to continue with if the head has lost its ledger. None: unknown.

    It is the last one of the lineage that was observed before.

    Args:
        seen: The ledger of the head that was observed last.
        seen_sequence_number: The sequence number of that head.
    """
    carriers = sorted((s for s in snapshots.values() if s.ledger is not None), key=lambda s: s.sequence_number)
    carrier_id = next((s.id for s in carriers if s.ledger == seen), None)
    if seen is not None and carrier_id is None:  # it expired: only a later ledger is better
        carriers = [s for s in carriers if s.sequence_number > (seen_sequence_number or 0)]
    elif carrier_id is not None:  # not a ledger of a lineage that was rolled back
        carriers = [s for s in carriers if is_ancestor(snapshots, carrier_id, s.id)]
    return carriers[-1].ledger if carriers else seen


def is_published(snapshots: Mapping[int, Snapshot], head_id: int | None, staged_id: int) -> bool:
    """Whether another tool made a staged snapshot, or a copy of it, part of the head's lineage."""
    while head_id is not None and head_id in snapshots:
        snapshot = snapshots[head_id]
        copied = snapshot.summary.get(names.SOURCE_SNAPSHOT_ID) == str(staged_id) and snapshot.ledger is None
        if copied or snapshot.id == staged_id:
            return True
        head_id = snapshot.parent_id
    return False


def cherry_picked(snapshots: Mapping[int, Snapshot], bare: Iterable[int]) -> tuple[Snapshot, ...]:
    """The snapshots of Lethe that another tool made part of this lineage without a ledger.

    Directly or by `cherrypick_snapshot`. Their files hold batches that are not in the ledger.

    Args:
        bare: The snapshots after the carrier. Sources that have expired are left out.
    """
    snapshots_by_id: dict[int, Snapshot] = {}
    for copy in bare:
        source = snapshots.get(copy)
        walked: set[int] = set()
        while source is not None and source.id not in walked and not source.is_of_lethe:
            walked.add(source.id)  # a copy of a copy
            source = snapshots.get(int(source.summary.get(names.SOURCE_SNAPSHOT_ID) or ERASED))
        if source is not None and source.is_of_lethe:
            snapshots_by_id[source.id] = source
    return tuple(snapshots_by_id.values())


def is_ancestor(snapshots: Mapping[int, Snapshot], ancestor: int, descendant: int | None) -> bool:
    """Whether `ancestor` is `descendant` or one of its retained ancestors. False for a head that was rolled back."""
    while descendant is not None:
        if descendant == ancestor:
            return True
        descendant = snapshots[descendant].parent_id if descendant in snapshots else None
    return False


def is_rolled_back(
    snapshots: Mapping[int, Snapshot], head_id: int | None, seen_id: int | None, seen_sequence_number: int | None = None
) -> bool:
    """Whether a head that was observed before is not an ancestor of the head any more.

    Only the head's lineage counts, not branches, tags and staged snapshots. If the lineage ends at an expired snapshot, the
    observed head may have expired too. Its sequence number decides: below that of the oldest retained ancestor, it counts as an
    ancestor; otherwise it would be in the lineage.

    Args:
        seen_id: The head observed before; None: none was, so the answer is False.
        seen_sequence_number: Of that head; None or 0 (format version 1): unknown.
    """
    if seen_id is None:
        return False
    oldest: Snapshot | None = None
    current = head_id
    while current is not None and current in snapshots:
        if current == seen_id:
            return False
        oldest = snapshots[current]
        current = oldest.parent_id
    if oldest is None or current is None:
        return True  # there is no head, or the whole lineage is retained
    return bool(seen_sequence_number) and (seen_sequence_number or 0) >= oldest.sequence_number


def shows_again(snapshot: Snapshot) -> bool:
    """Whether the snapshot is an Undo: it makes hidden rows visible, and allows batches to be promoted again."""
    purges = names.TOMBSTONE_VACUUM_FILE in snapshot.summary and names.DELETES not in snapshot.summary
    return snapshot.ledger is not None and not purges and snapshot.summary.get(names.TOMBSTONE_DELETED, "0") != "0"


def shown_again_since(snapshots: Mapping[int, Snapshot], head_id: int | None, since_id: int | None) -> bool:
    """Whether an Undo was committed after `since_id`, a head that was observed before.

    Also True if `since_id` is not a retained ancestor of the head, because then the answer is unknown.
    """
    current = head_id
    while current != since_id:
        snapshot = snapshots.get(current) if current is not None else None
        if snapshot is None or shows_again(snapshot):
            return True
        current = snapshot.parent_id
    return False


def needed_carriers(snapshots: Mapping[int, Snapshot], listed_carriers: Sequence[Carrier] = ()) -> tuple[Carrier, ...]:
    """The carriers list for the next ledger: the carriers of retained bare snapshots, oldest first. O(snapshots)."""
    listed = {b: c for c in listed_carriers for b in c.bare}
    carriers: dict[int, Carrier | None] = {}  # bare snapshot -> carrier; None: the empty ledger, or a lost one
    for start in snapshots:
        walked: list[int] = []
        carrier: Carrier | None = None
        current: int | None = start
        while current is not None and current not in carriers:
            snapshot = snapshots.get(current)
            if snapshot is None:
                carrier = next((listed[b] for b in walked if b in listed), None)
                break
            if snapshot.ledger is not None:
                carrier = Carrier(snapshot.id, snapshot.sequence_number, snapshot.ledger)
                break
            walked.append(current)
            current = snapshot.parent_id
        else:
            carrier = carriers[current] if current is not None else None
        carriers.update(dict.fromkeys(walked, carrier))
    bare_of: dict[int, list[int]] = {}
    by_id: dict[int, Carrier] = {}
    for bare, carrier in carriers.items():
        if carrier is not None:
            by_id[carrier.snapshot_id] = carrier
            bare_of.setdefault(carrier.snapshot_id, []).append(bare)
    needed = [replace(c, bare=tuple(sorted(bare_of[i]))) for i, c in by_id.items()]
    return tuple(sorted(needed, key=lambda c: c.sequence_number))
