"""The check that makes a commit compare-and-set, called by Iceberg inside each of its own attempts.

Iceberg refreshes the table before every attempt and would silently rebase a stale ledger over a newer one. The
validator sees the refreshed history, newest first, and lets the attempt pass only if

- every snapshot before the first carrier is one whose added files the plan has looked at, and
- the first carrier points to the ledger that the plan was made on.

It also notices what Iceberg does not: that an attempt it holds for failed has landed. A database driver or an HTTP client
that lost the answer sends the commit again, is told that the table has moved, and Iceberg tries anew. If that attempt then
merely failed, Iceberg would delete the manifests of all attempts, those of the landed snapshot too; if it succeeded, the
change would be there twice. So the check throws: an exception that is not Iceberg's own makes it delete nothing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from lethe import names

MARKER: Final = "LETHE-LEDGER-MOVED"
FURTHEST: Final = 1_000_000  # snapshots; no walk goes on for ever


@dataclass(frozen=True)
class Expectation:
    """What a plan was made on.

    Args:
        pointer: URI of the ledger's root, None for the empty ledger of a table without one.
        bare: Ids of the snapshots without a ledger that the plan has looked at, above the carrier.
    """

    pointer: str | None
    bare: frozenset[int] = frozenset()


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
    if expected.pointer is not None and at_the_root:
        return f"planned on ledger {expected.pointer}, and no snapshot of the current history carries a ledger"
    # Otherwise the walk ended at an expired parent, below snapshots that the plan itself had resolved.
    return None


def has_landed(own: str, since: int | None, ancestry: Iterable[Ancestor]) -> bool:
    """Whether the ledger `own`, of this commit, is in a history (newest first) above snapshot `since`. Pure."""
    for ancestor in ancestry:
        if ancestor.id == since:
            return False
        if ancestor.ledger == own:
            return True
    return False


class AlreadyLanded(Exception):
    """Thrown through Iceberg to stop an attempt whose change an earlier one has brought in."""


class LedgerCheck:
    """Iceberg's `SnapshotAncestryValidator` in Python. `error` is a defect of ours, kept rather than lost in Java.

    Args:
        own: The pointer that this commit sets; unique to it.
    """

    def __init__(self, expected: Expectation, own: str) -> None:
        self.expected = expected
        self.own = own
        self.objection: str | None = None
        self.landed = False
        self.error: Exception | None = None
        self.calls = 0
        self._first_head: int | None = None

    def validate(self, snapshots: Any) -> bool:
        self.calls += 1
        try:
            if self.calls == 1:
                self._first_head = next((a.id for a in _ancestors(snapshots)), None)
            elif has_landed(self.own, self._first_head, _ancestors(snapshots)):
                self.landed = True
                raise AlreadyLanded(self.own)
            self.objection = objection(self.expected, _ancestors(snapshots))
        except AlreadyLanded:
            raise
        except Exception as e:
            self.error = e
            raise
        return self.objection is None

    def errorMessage(self) -> str:  # noqa: N802 - Java's name
        return f"{MARKER}: {self.objection}"

    class Java:
        implements = ["org.apache.iceberg.SnapshotAncestryValidator"]


class StagingCheck:
    """The same for staged snapshots, which are in nobody's history: only whether an earlier attempt has landed.

    Args:
        find: Says whether the table's refreshed metadata holds the snapshot of this commit.
    """

    def __init__(self, find: Callable[[], bool]) -> None:
        self.find = find
        self.calls = 0

    def validate(self, snapshots: Any) -> bool:  # noqa: ARG002 - Java's signature
        self.calls += 1
        if self.calls > 1 and self.find():
            raise AlreadyLanded
        return True

    def errorMessage(self) -> str:  # noqa: N802 - Java's name
        return ""

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
