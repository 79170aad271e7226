"""Whether a Dataset's table is still the one that the operator saw before, or was dropped, created again or renamed. Pure.

Batches that were erased or reverted may still be in the buffer. Another table does not record that and would promote them, so no
run starts on another table until the user accepts it.

Two things identify the table. The Dataset's status has its UUID. And a Restatement's status says that it was committed: a ledger
never forgets a request, so a table without the request is another one. The second counts while the Dataset's status names no
table, for example after the Dataset was created again.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, assert_never

from lethe_operator.decide.conditions import SUCCEEDED, TRUE, find
from lethe_operator.reasons import Reason
from lethe_operator.resources.common import ACCEPT_HEAD
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import NoTable, TableView, Unavailable
from lethe_operator.resources.restatement import Restatement

UNKNOWN: Final = "unknown"
_NO_TABLE: Final = "none/"


@dataclass(frozen=True)
class AnotherTable:
    """The table is not the one that the operator saw before."""

    reason: Reason
    message: str
    # The value of the annotation lethe.dev/accept-head that accepts the table, and only this table.
    word: str


def doubts_restatements(dataset: Dataset, table: TableView | NoTable | Unavailable) -> bool:
    """Whether the operator must check that the table knows the Restatements that have succeeded."""
    match table:
        case TableView():
            return _seen_uuid(dataset) != table.uuid
        case NoTable():
            return True
        case Unavailable():
            return False
        case _:
            assert_never(table)


def another_table(
    dataset: Dataset, table: TableView | NoTable | Unavailable, restatements: Iterable[Restatement] = ()
) -> AnotherTable | None:
    """How the table differs from the one that was seen before; None: it does not, or the user accepted it and no Restatement
    still shows success in another table.

    Args:
        restatements: Of the Dataset, including those that `doubts_restatements` is about.
    """
    seen = _seen_uuid(dataset)
    if isinstance(table, Unavailable) or (isinstance(table, TableView) and seen == table.uuid):
        return None
    stranger = _unknown_to(table, restatements)
    if stranger is None and (seen is None or is_accepted(dataset, table)):
        return None
    before = (
        f"table {seen}, which the operator saw before"
        if seen
        else f"the table in which Restatement {stranger} was committed"
    )
    return _dropped(dataset, before) if isinstance(table, NoTable) else _replaced(dataset, table, before)


def is_accepted(dataset: Dataset, table: TableView | NoTable | Unavailable) -> bool:
    """Whether the annotation accepts this table, or that no table exists."""
    asked = dataset.meta.annotations.get(ACCEPT_HEAD)
    match table:
        case TableView():
            return asked == table.uuid
        case NoTable():
            before = (dataset.status.get("table") or {}).get("acceptedHead") if _seen_uuid(dataset) is None else None
            return asked is not None and asked in (_word_for_none(dataset), before) and asked.startswith(_NO_TABLE)
        case Unavailable():
            return False
        case _:
            assert_never(table)


def forgets_restatements(dataset: Dataset, table: TableView | NoTable | Unavailable) -> bool:
    """Whether Restatements that have succeeded and that the table does not know count as rolled back. A missing table may come
    back, so its absence must be accepted first."""
    if not doubts_restatements(dataset, table):
        return False
    return is_accepted(dataset, table) or (isinstance(table, TableView) and _seen_uuid(dataset) is not None)


def _unknown_to(table: TableView | NoTable, restatements: Iterable[Restatement]) -> str | None:
    """The name of a committed Restatement that the table does not know."""
    known = table.ledger.requests if isinstance(table, TableView) else {}
    for r in restatements:
        committed = "snapshotId" in (r.status.get("result") or {}) and not r.spec.dry_run
        if committed and find(r.status, SUCCEEDED).get("status") == TRUE and r.key not in known:
            return r.meta.name
    return None


def _replaced(dataset: Dataset, view: TableView, before: str) -> AnotherTable:
    name = dataset.spec.table.name
    return AnotherTable(
        Reason.TABLE_REPLACED,
        f"Dataset {dataset.meta.name}: {name} is table {view.uuid}, not {before}. The table was dropped and created again, or "
        "renamed. No run starts and nothing is deleted from the buffer, because this table does not record which batches were "
        f"erased or reverted. {_choices(dataset, view.uuid)}",
        view.uuid,
    )


def _dropped(dataset: Dataset, before: str) -> AnotherTable:
    word = _word_for_none(dataset)
    return AnotherTable(
        Reason.TABLE_DROPPED,
        f"Dataset {dataset.meta.name}: {before}, is no longer in catalog {dataset.spec.table.catalog} under the name "
        f"{dataset.spec.table.name}. The table was dropped or renamed. The operator creates no new table, because it would not "
        f"record which batches were erased or reverted. {_choices(dataset, word)}",
        word,
    )


def _choices(dataset: Dataset, word: str) -> str:
    meta = dataset.meta
    return (
        "Either restore that table under this name, or continue without it: kubectl annotate datasets.lethe.dev "
        f"{meta.name} -n {meta.namespace} --overwrite {ACCEPT_HEAD}={word} (all batches in the buffer are then promoted, "
        "including those that were erased or reverted in the other table: remove them from the buffer first; Restatements that "
        "were committed to the other table get RolledBack)."
    )


def _word_for_none(dataset: Dataset) -> str:
    return f"{_NO_TABLE}{_seen_uuid(dataset) or UNKNOWN}"


def _seen_uuid(dataset: Dataset) -> str | None:
    uuid = (dataset.status.get("table") or {}).get("uuid")
    return None if uuid is None else str(uuid)
