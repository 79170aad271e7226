"""Which ledger a snapshot has: that of its nearest ancestor that carries one. Pure.

Nobody inherits summary keys for us: a foreign commit yields a *bare* snapshot, and its ledger is found by walking.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from lethe.base import names
from lethe.base.errors import LedgerError
from lethe.ledger.ledger import Carrier

# The parent of a snapshot that had one, of which nothing is known any more; no snapshot has this id.
ERASED: Final = -1


@dataclass(frozen=True)
class Snapshot:
    """The part of an Iceberg snapshot that matters here; `timestamp_ms` in epoch milliseconds. `parent_id` None: it is a
    root of history."""

    id: int
    parent_id: int | None
    sequence_number: int
    timestamp_ms: int
    summary: Mapping[str, str] = field(default_factory=dict)

    @property
    def ledger(self) -> str | None:
        return self.summary.get(names.LEDGER)

    @property
    def is_of_lethe(self) -> bool:
        """Whether Lethe committed or staged it."""
        return self.ledger is not None or names.STAGE in self.summary


def ledgers_begin_after(properties: Mapping[str, str], uuid: str, carriers: Iterable[int]) -> int | None:
    """The sequence number after which each snapshot of a table has a ledger; None while the table never had one.

    Args:
        uuid: The table's own.
        carriers: Sequence numbers of the retained snapshots that carry a ledger. They tell it of a table whose properties do
            not say it yet.
    """
    since = properties.get(names.LEDGER_SINCE, "")
    if properties.get(names.LEDGER_BEGUN) == uuid and since.isdigit():
        return int(since)
    return min(carriers, default=None)


def parent_of(
    parent_id: int | None, summary: Mapping[str, str], sequence_number: int = 0, begins_after: int | None = None
) -> int | None:
    """The parent that a snapshot had. A snapshot without a parent is not always a root of history: PyIceberg's expiry removes
    the parent's id from a snapshot whose parent goes, and an engine that replaces a table (CREATE OR REPLACE TABLE) starts a
    new history in it.

    A root of history comes before the table's first ledger; it holds what it added itself and has removed nothing. Any other
    snapshot had a parent, and a ledger may have gone with it.

    Args:
        begins_after: As `ledgers_begin_after` returns it.
    """
    if parent_id is not None:
        return parent_id
    bare = names.LEDGER not in summary and names.STAGE not in summary  # a stage of Lethe's is never part of a history
    if bare and begins_after is not None and sequence_number > begins_after:
        return ERASED
    total, added = summary.get("total-data-files"), summary.get("added-data-files", "0")
    if total is None or total == "0":
        return None  # nobody says, or there is nothing that a ledger could hide
    removed = summary.get("deleted-data-files", "0") != "0" or summary.get("operation") == "replace"
    return ERASED if removed or total != added else None


@dataclass(frozen=True)
class Resolution:
    """Which ledger a snapshot has, and how it was found."""

    # URI of the ledger's root; None at a root of history: the empty ledger.
    pointer: str | None
    # The snapshot that carries it. It may have expired, if it was found in the carriers list.
    carrier_id: int | None
    # The snapshots walked over, newest first.
    bare: tuple[int, ...] = ()
    # The carrier's sequence number; None at a root of history. Not compared: it follows from the carrier.
    carrier_sequence_number: int | None = field(default=None, compare=False)


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
        snapshot_id: Where to start; None is a table without snapshots.
        carriers: The carriers list of the newest ledger of this table, for snapshots whose carrier was expired.
        table: For the message.
        ledger_since: The table's last sequence number before its first ledger; None when that is not known.
    Raises: LedgerError (`LedgerLost`), if the walk ends at an expired parent and nothing says which ledger it had.
    """
    bare: list[int] = []
    current = snapshot_id
    while current is not None:
        snapshot = snapshots.get(current)
        if snapshot is None:
            if bare and ledger_since is not None and snapshots[bare[-1]].sequence_number <= ledger_since:
                return Resolution(None, None, tuple(bare))
            # Only a carrier that was seen below one of these very snapshots: another one, though older, might have been
            # followed by a ledger that is lost now.
            known = next((c for c in carriers if not set(c.bare).isdisjoint(bare)), None)
            if known is not None:
                return Resolution(known.ledger, known.snapshot_id, tuple(bare), known.sequence_number)
            raise LedgerError(
                "LedgerLost",
                f"{table}: snapshot {snapshot_id} has no ledger of its own, and {_lost_at(current, bare)}. Reading would show "
                f"deleted rows. Roll back to a snapshot that carries `{names.LEDGER}`, or continue with the table's last "
                "ledger: the Dataset's condition Ready says how; without an operator, see docs/foreign-writers.md.",
            )
        if snapshot.ledger is not None:
            return Resolution(snapshot.ledger, snapshot.id, tuple(bare), snapshot.sequence_number)
        bare.append(current)
        current = snapshot.parent_id
    return Resolution(None, None, tuple(bare))


def is_gapless(snapshots: Mapping[int, Snapshot], found: Resolution) -> bool:
    """Whether every snapshot between the carrier and the one that was resolved is retained, so that they name all files that came
    without a ledger.

    It is not if some have expired; nor if a person made the carrier, to name a lost ledger again: what lies below it nobody has
    looked at.
    """
    if _is_made_by_hand(snapshots, found):
        return False
    oldest = snapshots.get(found.bare[-1]) if found.bare else None
    return not found.bare or (oldest is not None and oldest.parent_id == found.carrier_id)


def knows_files_up_to(snapshots: Mapping[int, Snapshot], found: Resolution) -> int | None:
    """The sequence number up to which the ledger has taken note of the data files; None: of none of them, as far as is known."""
    return None if _is_made_by_hand(snapshots, found) else found.carrier_sequence_number


def _is_made_by_hand(snapshots: Mapping[int, Snapshot], found: Resolution) -> bool:
    """Whether no run of Lethe's committed the carrier."""
    carrier = snapshots.get(found.carrier_id) if found.carrier_id is not None else None
    return carrier is not None and names.RUN_ID not in carrier.summary


def line_of(snapshots: Mapping[int, Snapshot], head_id: int | None) -> tuple[int, ...]:
    """A snapshot and its retained ancestors, the newest first."""
    line: list[int] = []
    while head_id is not None and head_id in snapshots:
        line.append(head_id)
        head_id = snapshots[head_id].parent_id
    return tuple(line)


def last_ledger(
    snapshots: Mapping[int, Snapshot], seen: str | None, seen_sequence_number: int | None = None
) -> str | None:
    """The ledger to continue with if the head has lost its own: the last one of the line that was seen before; None if there is
    nothing to tell it by.

    Args:
        seen: The ledger of the head that was seen last.
        seen_sequence_number: That head's sequence number.
    """
    carriers = sorted((s for s in snapshots.values() if s.ledger is not None), key=lambda s: s.sequence_number)
    known = next((s.id for s in carriers if s.ledger == seen), None)
    if seen is not None and known is None:  # it has expired: only a later one is better
        carriers = [s for s in carriers if s.sequence_number > (seen_sequence_number or 0)]
    elif known is not None:  # not one of a line that was rolled back
        carriers = [s for s in carriers if is_ancestor(snapshots, known, s.id)]
    return carriers[-1].ledger if carriers else seen


def _lost_at(current: int, bare: Sequence[int]) -> str:
    """Why a walk that ended at this ancestor found no ledger."""
    if current != ERASED:
        return f"its ancestor {current}, which might carry it, was expired"
    first = f"its ancestor {bare[-1]}" if len(bare) > 1 else "it"
    return (
        f"{first} has no parent, although the table had a ledger before: the table was replaced (CREATE OR REPLACE TABLE), or "
        "the parent was expired"
    )


def is_published(snapshots: Mapping[int, Snapshot], head_id: int | None, staged_id: int) -> bool:
    """Whether a staged snapshot became part of the head by somebody else's doing, as it is or as a copy of its files."""
    while head_id is not None and head_id in snapshots:
        snapshot = snapshots[head_id]
        copied = snapshot.summary.get(names.SOURCE_SNAPSHOT_ID) == str(staged_id) and snapshot.ledger is None
        if copied or snapshot.id == staged_id:
            return True
        head_id = snapshot.parent_id
    return False


def picked(snapshots: Mapping[int, Snapshot], bare: Iterable[int]) -> tuple[Snapshot, ...]:
    """What Lethe committed or staged and another tool has made part of this line without a ledger, as it is or as a copy
    (`cherrypick_snapshot`). The files hold batches of which the ledger below knows nothing.

    Args:
        bare: The snapshots above the carrier. Sources that are not retained any more are left out.
    """
    found: dict[int, Snapshot] = {}
    for copy in bare:
        source = snapshots.get(copy)
        walked: set[int] = set()
        while source is not None and source.id not in walked and not source.is_of_lethe:
            walked.add(source.id)  # a copy may have been copied again
            source = snapshots.get(int(source.summary.get(names.SOURCE_SNAPSHOT_ID) or ERASED))
        if source is not None and source.is_of_lethe:
            found[source.id] = source
    return tuple(found.values())


def is_ancestor(snapshots: Mapping[int, Snapshot], ancestor: int, of: int | None) -> bool:
    """Whether `ancestor` is `of` or one of its retained ancestors. A rolled-back head fails this."""
    while of is not None:
        if of == ancestor:
            return True
        of = snapshots[of].parent_id if of in snapshots else None
    return False


def is_rolled_back(
    snapshots: Mapping[int, Snapshot], head_id: int | None, seen_id: int | None, seen_sequence_number: int | None = None
) -> bool:
    """Whether a head that was seen before is no ancestor of the head any more.

    Branches, tags and staged snapshots prove nothing: only the head's own line counts. Where that ends at an expired
    snapshot, the seen one may have been expired with it, which its sequence number tells: below the oldest retained ancestor's
    it is taken for an ancestor; from there on it would be in the line.

    Args:
        seen_id: The head seen before; None: none was, and nothing can be said against this one.
        seen_sequence_number: Its sequence number; None or 0 (format version 1) when that is not known.
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
        return True  # no head, or the line is known to its root
    return bool(seen_sequence_number) and (seen_sequence_number or 0) >= oldest.sequence_number


def shows_again(snapshot: Snapshot) -> bool:
    """Whether it is the commit of an Undo: what was hidden is seen again, and batches that were kept out may come."""
    purges = names.TOMBSTONE_VACUUM_FILE in snapshot.summary and names.DELETES not in snapshot.summary
    return snapshot.ledger is not None and not purges and snapshot.summary.get(names.TOMBSTONE_DELETED, "0") != "0"


def shown_again_since(snapshots: Mapping[int, Snapshot], head_id: int | None, since_id: int | None) -> bool:
    """Whether an Undo was committed after `since_id`, a head that was seen before. True as well where nobody can tell, since that
    head is no retained ancestor of this one."""
    current = head_id
    while current != since_id:
        snapshot = snapshots.get(current) if current is not None else None
        if snapshot is None or shows_again(snapshot):
            return True
        current = snapshot.parent_id
    return False


def needed_carriers(snapshots: Mapping[int, Snapshot], known: Sequence[Carrier] = ()) -> tuple[Carrier, ...]:
    """The carriers list for the next ledger: what retained bare snapshots resolve to, oldest first. O(snapshots)."""
    remembered = {b: c for c in known for b in c.bare}
    found: dict[int, Carrier | None] = {}  # of each bare snapshot; None: the empty ledger, or a lost one
    for start in snapshots:
        walked: list[int] = []
        carrier: Carrier | None = None
        current: int | None = start
        while current is not None and current not in found:
            snapshot = snapshots.get(current)
            if snapshot is None:
                carrier = next((remembered[b] for b in walked if b in remembered), None)
                break
            if snapshot.ledger is not None:
                carrier = Carrier(snapshot.id, snapshot.sequence_number, snapshot.ledger)
                break
            walked.append(current)
            current = snapshot.parent_id
        else:
            carrier = found[current] if current is not None else None
        found.update(dict.fromkeys(walked, carrier))
    stood_for: dict[int, list[int]] = {}
    by_id: dict[int, Carrier] = {}
    for bare, carrier in found.items():
        if carrier is not None:
            by_id[carrier.snapshot_id] = carrier
            stood_for.setdefault(carrier.snapshot_id, []).append(bare)
    needed = [replace(c, bare=tuple(sorted(stood_for[i]))) for i, c in by_id.items()]
    return tuple(sorted(needed, key=lambda c: c.sequence_number))
