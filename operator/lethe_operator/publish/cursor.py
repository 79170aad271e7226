"""How far the ledger of a table is published, as a small versioned JSON document, and which version is next. Pure.

A step is written to the cursor before its first event is sent, and is finished before another one begins. So events of a version
that is not part of the history any more are always followed by those that correct them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from lethe.ledger.lineage import Resolution, Snapshot, is_rolled_back

from lethe_operator.resources.observed import StartedFrom

FORMAT_VERSION: Final = 1
# The version of the code that makes events of a step. Count it up when the same step would give other events, or another order:
# a step that was interrupted is then repeated as a whole, with new ids.
GENERATOR: Final = 1


class UnreadableCursor(ValueError):
    """A cursor has an unknown format; the message says which."""


class Move(StrEnum):
    """How a step leads from one version to another."""

    START = "Start"
    """To the version at which publishing starts; the step has no changes."""
    NEXT = "Next"
    """To the next version."""
    ROLL_BACK = "RollBack"
    """To a version that does not follow."""
    SKIP = "Skip"
    """To a version that follows, over versions that are gone."""
    RECOVER = "Recover"
    """From a version that is gone."""

    @property
    def opens_epoch(self) -> bool:
        """Whether its events begin a new epoch, because ids of the old one might be used twice."""
        return self is not Move.NEXT


@dataclass(frozen=True)
class PublishedPosition:
    """A version of the ledger in the table's history."""

    root: str | None = None
    """URI of the ledger's root; None: the empty ledger."""
    version: int = 0
    """Of the ledger."""
    snapshot_id: int | None = None
    """That carries it; None: the empty ledger."""
    sequence_number: int = 0
    """Of that snapshot; 0: unknown."""
    time_ms: int | None = None
    """When that snapshot was committed, since 1970; None: unknown."""


@dataclass(frozen=True)
class PublishingStep:
    """What is being published."""

    move: Move
    to: PublishedPosition
    generator: str
    """What the order and the number of its events depend on, besides both ledgers."""
    sent: int = 0
    """Events that were delivered, at least."""
    start: StartedFrom | None = None
    """Of START."""
    replaces: str | None = None
    """Of START: the UUID of the table before; None: there was none."""


@dataclass(frozen=True)
class Cursor:
    """How far a table is published."""

    table_uuid: str
    epoch: int
    """Grows whenever versions may repeat; it is a time in milliseconds, so a lost cursor begins a later one."""
    at: PublishedPosition
    """Published completely."""
    step: PublishingStep | None = None
    """Being published; None: nothing is."""

    def shows(self, table_uuid: str, root: str | None) -> bool:
        """Whether everything up to this ledger is published, and nothing else is being published."""
        return self.step is None and (self.table_uuid, self.at.root) == (table_uuid, root)

    def begun(self, step: PublishingStep, now_ms: int) -> "Cursor":
        """The cursor at the beginning of a step."""
        return replace(self, epoch=next_epoch(self.epoch, now_ms) if step.move.opens_epoch else self.epoch, step=step)

    def progressed(self, sent: int) -> "Cursor":
        """The cursor after this number of events of its step."""
        assert self.step is not None
        return replace(self, step=replace(self.step, sent=sent))

    def finished(self) -> "Cursor":
        """The cursor after its step."""
        assert self.step is not None
        return replace(self, at=self.step.to, step=None)

    def resumed(self, generator: str, now_ms: int) -> "Cursor":
        """The cursor to continue an interrupted step with. If its events would differ now, they are all sent, with new ids."""
        if self.step is None or self.step.generator == generator:
            return self
        return replace(self, epoch=next_epoch(self.epoch, now_ms), step=replace(self.step, generator=generator, sent=0))


def started(
    table_uuid: str,
    at: PublishedPosition,
    start: StartedFrom,
    generator: str,
    now_ms: int,
    before: Cursor | None = None,
) -> Cursor:
    """The first cursor of a table.

    Args:
        before: That of the table that this one replaces at the same location; None: there is none.
    """
    replaces = before.table_uuid if before is not None else None
    step = PublishingStep(Move.START, at, generator, start=start, replaces=replaces)
    return Cursor(table_uuid, next_epoch(before.epoch if before is not None else 0, now_ms), at, step)


def next_epoch(epoch: int, now_ms: int) -> int:
    """The current time, or one more than the former epoch if a clock went back: epochs only grow."""
    return max(epoch + 1, now_ms)


def generator_of(max_event_bytes: int) -> str:
    """What the events of a step depend on, besides the ledgers."""
    return f"{GENERATOR}:{max_event_bytes}"


def encode(cursor: Cursor, dataset: str) -> bytes:
    """Encode it.

    Args:
        dataset: `namespace/name`, for people.
    """
    step = cursor.step
    document: dict[str, Any] = {
        "format-version": FORMAT_VERSION,
        "dataset": dataset,
        "table-uuid": cursor.table_uuid,
        "epoch": cursor.epoch,
        "at": _position(cursor.at),
    }
    if step is not None:
        document["step"] = {"move": step.move, "to": _position(step.to), "generator": step.generator, "sent": step.sent}
        document["step"] |= {k: v for k, v in (("start", step.start), ("replaces", step.replaces)) if v is not None}
    return (json.dumps(document, indent=1) + "\n").encode()


def decode(content: bytes, uri: str) -> Cursor:
    """Read a cursor.

    Raises:
        UnreadableCursor: A cursor has an unknown format; the message says which.
    """
    try:
        document = json.loads(content)
        if document["format-version"] > FORMAT_VERSION:
            raise UnreadableCursor(
                f"{uri} has format version {document['format-version']}; this version of Lethe reads up to {FORMAT_VERSION}. "
                "Upgrade Lethe."
            )
        step = document.get("step")
        return Cursor(
            str(document["table-uuid"]),
            int(document["epoch"]),
            _parsed(document["at"]),
            _step(step) if step is not None else None,
        )
    except UnreadableCursor:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as e:
        raise UnreadableCursor(
            f"{uri} is not a readable cursor of status events ({type(e).__name__}). Delete it: publishing then starts again from "
            "the file before it, or as for a table without a cursor."
        ) from None


def _step(document: Mapping[str, Any]) -> PublishingStep:
    start = document.get("start")
    return PublishingStep(
        Move(document["move"]),
        _parsed(document["to"]),
        str(document["generator"]),
        int(document["sent"]),
        StartedFrom(start) if start is not None else None,
        document.get("replaces"),
    )


def _position(position: PublishedPosition) -> dict[str, Any]:
    return {
        "root": position.root,
        "version": position.version,
        "snapshot-id": position.snapshot_id,
        "sequence-number": position.sequence_number,
        "time-ms": position.time_ms,
    }


def _parsed(document: Mapping[str, Any]) -> PublishedPosition:
    snapshot_id, time_ms = document["snapshot-id"], document["time-ms"]
    return PublishedPosition(
        None if document["root"] is None else str(document["root"]),
        int(document["version"]),
        None if snapshot_id is None else int(snapshot_id),
        int(document["sequence-number"]),
        None if time_ms is None else int(time_ms),
    )


@dataclass(frozen=True)
class Carried:
    """A ledger in the history of the head, and the snapshot that carries it."""

    root: str
    """URI of its root."""
    snapshot_id: int
    sequence_number: int = 0
    """0: unknown."""
    time_ms: int | None = None
    """None: unknown, because the snapshot has expired."""

    def at(self, version: int) -> PublishedPosition:
        """Its position, once its root is read."""
        return PublishedPosition(self.root, version, self.snapshot_id, self.sequence_number, self.time_ms)


@dataclass(frozen=True)
class NextLedger:
    """The ledger to publish next."""

    to: Carried | None
    """None: the empty ledger."""
    rolled_back: bool = False
    """It does not follow the published one."""


@dataclass(frozen=True)
class HeadHistory:
    """The history of a table's head, as far as it is retained."""

    carried: tuple[Carried, ...]
    """Oldest first."""
    snapshots: Mapping[int, Snapshot]
    """All retained ones."""
    head_id: int | None
    """None: the table is empty."""


def line_of(snapshots: Mapping[int, Snapshot], head_id: int | None, resolution: Resolution) -> HeadHistory:
    """The history of a table's head.

    Args:
        resolution: Of the head; its carrier may have expired.
    """
    line: list[Carried] = []
    current = head_id
    while current is not None and (snapshot := snapshots.get(current)) is not None:
        if snapshot.ledger is not None:
            line.append(_carried(snapshot))
        current = snapshot.parent_id
    if not line and resolution.pointer is not None:
        assert resolution.carrier_id is not None
        line.append(Carried(resolution.pointer, resolution.carrier_id, resolution.carrier_sequence_number or 0))
    line.reverse()
    # A person may have named a lost ledger again: the snapshot before is of the same ledger.
    distinct = [c for c, before in zip(line, [None, *line], strict=False) if before is None or c.root != before.root]
    return HeadHistory(tuple(distinct), snapshots, head_id)


def _carried(snapshot: Snapshot) -> Carried:
    assert snapshot.ledger is not None
    return Carried(snapshot.ledger, snapshot.id, snapshot.sequence_number, snapshot.timestamp_ms)


def next_candidate(at: PublishedPosition, line: HeadHistory) -> NextLedger | None:
    """The ledger that follows the published one; None: everything is published."""
    index = _index(at, line)
    if index is not None:
        following = line.carried[index + 1 :]
        return NextLedger(following[0]) if following else None
    if at.root is None:
        return NextLedger(line.carried[0]) if line.carried else None
    if not line.carried:
        return NextLedger(None, rolled_back=True)
    if is_rolled_back(line.snapshots, line.head_id, at.snapshot_id, at.sequence_number or None):
        return NextLedger(_fork(at, line), rolled_back=True)
    return NextLedger(line.carried[0])


def _index(at: PublishedPosition, line: HeadHistory) -> int | None:
    """Where a position is in a line; None: nowhere. The same ledger may be there twice."""
    known = [(c.root, c.snapshot_id) for c in line.carried]
    if (at.root, at.snapshot_id) in known:
        return known.index((at.root or "", at.snapshot_id or 0))
    return max((i for i, (root, _) in enumerate(known) if root == at.root), default=None)


def _fork(at: PublishedPosition, line: HeadHistory) -> Carried | None:
    """The newest ledger that the published version and the head have in common.

    If it is unknown, that of the head. None: they have none.
    """
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


def move_to(candidate: NextLedger, at: PublishedPosition, version: int, readable: bool) -> Move:
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
