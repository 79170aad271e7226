"""The check that makes a commit compare-and-set, called by Iceberg on the metadata that an attempt starts from.

Iceberg refreshes the table before every attempt and would silently rebase a stale ledger over a newer one. The
validator sees the refreshed history, newest first, and lets the attempt pass only if

- every snapshot before the first carrier is one whose added files the plan has looked at, and
- the first carrier points to the ledger that the plan was made on.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from lethe.base import names

MARKER: Final = "LETHE-LEDGER-MOVED"
FURTHEST: Final = 1_000_000  # snapshots; no walk goes on for ever


@dataclass(frozen=True)
class Expectation:
    """What a plan was made on.

    Args:
        pointer: URI of the ledger's root, None for the empty ledger of a table without one.
        bare: Ids of the snapshots without a ledger that the plan has looked at, above the carrier.
        expired: The carrier had expired when the change was planned: its ledger was found in a list.
    """

    pointer: str | None
    bare: frozenset[int] = frozenset()
    expired: bool = False


@dataclass(frozen=True)
class Ancestor:
    """The part of a snapshot that the check looks at."""

    id: int
    parent_id: int | None
    ledger: str | None


def objection(expected: Expectation, ancestry: Iterable[Ancestor]) -> str | None:
    """Why a commit on this history (newest first) must not land, or None when it may. Pure."""
    last: Ancestor | None = None
    for ancestor in ancestry:
        if ancestor.ledger is not None:
            if ancestor.ledger == expected.pointer:
                return None
            return f"planned on ledger {expected.pointer}, snapshot {ancestor.id} has since set {ancestor.ledger}"
        if ancestor.id not in expected.bare:
            return f"snapshot {ancestor.id}, of another writer, was not there when the change was planned"
        last = ancestor
    at_the_root = last is None or last.parent_id is None
    if expected.pointer is not None and at_the_root and not expected.expired:
        return f"planned on ledger {expected.pointer}, and no snapshot of the current history carries a ledger"
    # Otherwise the walk ended at an expired parent, below snapshots that the plan itself had resolved.
    return None


class LedgerCheck:
    """Iceberg's `SnapshotAncestryValidator` in Python. `error` is a defect of ours, kept rather than lost in Java."""

    def __init__(self, expected: Expectation) -> None:
        self.expected = expected
        self.objection: str | None = None
        self.error: Exception | None = None

    def validate(self, snapshots: Any) -> bool:
        try:
            self.objection = objection(self.expected, _ancestors(snapshots))
        except Exception as e:
            self.error = e
            raise
        return self.objection is None

    def errorMessage(self) -> str:  # noqa: N802 - Java's name
        return f"{MARKER}: {self.objection}"

    class Java:
        implements = ["org.apache.iceberg.SnapshotAncestryValidator"]


def _ancestors(snapshots: Any) -> Iterable[Ancestor]:
    iterator = snapshots.iterator()
    for _ in range(FURTHEST):
        if not iterator.hasNext():
            return
        snapshot = iterator.next()
        parent, ledger = snapshot.parentId(), snapshot.summary().get(names.LEDGER)
        yield Ancestor(
            int(snapshot.snapshotId()), None if parent is None else int(parent), None if ledger is None else str(ledger)
        )
    raise RuntimeError(f"a history of more than {FURTHEST} snapshots without a ledger")
