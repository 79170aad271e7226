"""Which version of a ledger is published next. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lethe.ledger.lineage import Resolution, Snapshot, is_rolled_back

from lethe_operator.decide.publishing.cursor import Move, Position


@dataclass(frozen=True)
class Carried:
    """A ledger in the history of the head, and the snapshot that carries it."""

    root: str  # URI of its root
    snapshot_id: int
    sequence_number: int = 0  # 0: unknown
    time_ms: int | None = None  # None: unknown, because the snapshot has expired

    def at(self, version: int) -> Position:
        """Its position, once its root is read."""
        return Position(self.root, version, self.snapshot_id, self.sequence_number, self.time_ms)


@dataclass(frozen=True)
class Candidate:
    """The ledger to publish next."""

    to: Carried | None  # None: the empty ledger
    rolled_back: bool = False  # it does not follow the published one


@dataclass(frozen=True)
class Line:
    """The history of a table's head, as far as it is retained."""

    carried: tuple[Carried, ...]  # oldest first
    snapshots: Mapping[int, Snapshot]  # all retained ones
    head_id: int | None  # None: the table is empty


def line_of(snapshots: Mapping[int, Snapshot], head_id: int | None, resolution: Resolution) -> Line:
    """Args:
    resolution: Of the head; its carrier may have expired.
    """
    found: list[Carried] = []
    current = head_id
    while current is not None and (snapshot := snapshots.get(current)) is not None:
        if snapshot.ledger is not None:
            found.append(_carried(snapshot))
        current = snapshot.parent_id
    if not found and resolution.pointer is not None:
        assert resolution.carrier_id is not None
        found.append(Carried(resolution.pointer, resolution.carrier_id, resolution.carrier_sequence_number or 0))
    found.reverse()
    # A person may have named a lost ledger again: the snapshot before is of the same ledger.
    distinct = [c for c, before in zip(found, [None, *found], strict=False) if before is None or c.root != before.root]
    return Line(tuple(distinct), snapshots, head_id)


def _carried(snapshot: Snapshot) -> Carried:
    assert snapshot.ledger is not None
    return Carried(snapshot.ledger, snapshot.id, snapshot.sequence_number, snapshot.timestamp_ms)


def next_candidate(at: Position, line: Line) -> Candidate | None:
    """The ledger that follows the published one; None: everything is published."""
    index = _index(at, line)
    if index is not None:
        following = line.carried[index + 1 :]
        return Candidate(following[0]) if following else None
    if at.root is None:
        return Candidate(line.carried[0]) if line.carried else None
    if not line.carried:
        return Candidate(None, rolled_back=True)
    if is_rolled_back(line.snapshots, line.head_id, at.snapshot_id, at.sequence_number or None):
        return Candidate(_fork(at, line), rolled_back=True)
    return Candidate(line.carried[0])


def _index(at: Position, line: Line) -> int | None:
    """Where a position is in a line; None: nowhere. The same ledger may be there twice."""
    known = [(c.root, c.snapshot_id) for c in line.carried]
    if (at.root, at.snapshot_id) in known:
        return known.index((at.root or "", at.snapshot_id or 0))
    return max((i for i, (root, _) in enumerate(known) if root == at.root), default=None)


def _fork(at: Position, line: Line) -> Carried | None:
    """The newest ledger that the published version and the head have in common; if unknown, that of the head; None: they have
    none."""
    roots: Sequence[str] = [c.root for c in line.carried]
    current = at.snapshot_id
    while current is not None:
        snapshot = line.snapshots.get(current)
        if snapshot is None:
            return line.carried[-1]
        if snapshot.ledger in roots:
            return line.carried[roots.index(str(snapshot.ledger))]
        current = snapshot.parent_id
    return None


def move_to(candidate: Candidate, at: Position, version: int, readable: bool) -> Move:
    """How a step leads to a candidate.

    Args:
        version: Of the candidate.
        readable: Whether the published version can be read, to compare both.
    """
    if not readable:
        return Move.RECOVER
    if candidate.rolled_back or version <= at.version:
        return Move.ROLL_BACK
    return Move.NEXT if version == at.version + 1 else Move.SKIP
