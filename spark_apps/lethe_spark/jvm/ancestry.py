"""The check that makes a commit a compare-and-set. Iceberg calls it on the metadata that an attempt starts from.

Iceberg refreshes the table before each attempt, and would rebase a stale ledger over a newer one without an error. The
validator reads the refreshed history, newest first, and accepts the attempt only if

- the plan has read the added files of each snapshot before the first carrier, and
- the first carrier points to the ledger of the plan.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from lethe.base import names

MARKER: Final = "LETHE-LEDGER-MOVED"
# The most snapshots that the check reads.
FURTHEST: Final = 1_000_000


@dataclass(frozen=True)
class Expectation:
    """The ledger and history that a plan was made on."""

    # URI of the ledger's root. None: the table has no ledger.
    pointer: str | None
    # Ids of the snapshots after the carrier, without a ledger, whose files the plan has read.
    bare: frozenset[int] = frozenset()
    # Whether the carrier had expired before the plan, and its ledger was found in a list.
    expired: bool = False


@dataclass(frozen=True)
class Ancestor:
    """The part of a snapshot that the check reads."""

    id: int
    parent_id: int | None
    ledger: str | None


def objection(expected: Expectation, ancestry: Iterable[Ancestor]) -> str | None:
    """Why a commit on this history (newest first) must be refused. None: it is allowed. Pure."""
    last: Ancestor | None = None
    for ancestor in ancestry:
        if ancestor.ledger is not None:
            if ancestor.ledger == expected.pointer:
                return None
            return f"planned on ledger {expected.pointer}, snapshot {ancestor.id} has set {ancestor.ledger} since then"
        if ancestor.id not in expected.bare:
            return f"snapshot {ancestor.id}, by another writer, was committed after the change was planned"
        last = ancestor
    at_the_root = last is None or last.parent_id is None
    if expected.pointer is not None and at_the_root and not expected.expired:
        return f"planned on ledger {expected.pointer}, and no snapshot of the current history carries a ledger"
    # Otherwise the history ended at an expired parent, below snapshots that the plan had resolved.
    return None


class LedgerCheck:
    """Iceberg's `SnapshotAncestryValidator` in Python. `error` keeps an exception of this code, which Java would swallow."""

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
