"""Whether the table of a Dataset is still the one that it has seen: it may have been dropped, re-created or renamed. Pure.

Batches that were erased or taken back may still lie in the buffer. Another table knows nothing of that and would take them in,
so that nothing goes on with another table unasked.

Two things remember the table. The Dataset's status has its UUID. A Restatement's status says that it was committed, and a ledger
never forgets a request: if the table does not know it, the table is another one. The second one counts while the status says
nothing of a table, as after the Dataset was created again.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

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
    """The table is not the one that was seen before."""

    reason: Reason
    message: str
    # The value of the annotation lethe.dev/accept-head that accepts it. It names the table, so that it accepts no other one.
    word: str


def doubts_restatements(dataset: Dataset, table: TableView | NoTable | Unavailable) -> bool:
    """Whether it has to be looked at if the table knows the Restatements that have succeeded."""
    match table:
        case TableView():
            return _seen_uuid(dataset) != table.uuid
        case NoTable():
            return True
        case Unavailable():
            return False


def another_table(
    dataset: Dataset, table: TableView | NoTable | Unavailable, restatements: Iterable[Restatement] = ()
) -> AnotherTable | None:
    """How the table differs from the one that was seen, as long as that is not accepted; None if it does not. It counts as
    accepted once no Restatement says any more that it has succeeded in a table that is not this one.

    Args:
        restatements: Of the Dataset, those included that `doubts_restatements` is about.
    """
    seen = _seen_uuid(dataset)
    if isinstance(table, Unavailable) or (isinstance(table, TableView) and seen == table.uuid):
        return None
    stranger = _unknown_to(table, restatements)
    if stranger is None and (seen is None or is_accepted(dataset, table)):
        return None
    before = (
        f"table {seen}, which was seen before" if seen else f"the table in which Restatement {stranger} was committed"
    )
    return _dropped(dataset, before) if isinstance(table, NoTable) else _replaced(dataset, table, before)


def is_accepted(dataset: Dataset, table: TableView | NoTable | Unavailable) -> bool:
    """Whether the annotation accepts this table, or that there is none."""
    asked = dataset.meta.annotations.get(ACCEPT_HEAD)
    match table:
        case TableView():
            return asked == table.uuid
        case NoTable():
            heard = (dataset.status.get("table") or {}).get("acceptedHead") if _seen_uuid(dataset) is None else None
            return asked is not None and asked in (_word_for_none(dataset), heard) and asked.startswith(_NO_TABLE)
        case Unavailable():
            return False


def forgets_restatements(dataset: Dataset, table: TableView | NoTable | Unavailable) -> bool:
    """Whether Restatements that have succeeded, and that the table does not know, are not true of this table. A table that is
    gone may come back: that is accepted first."""
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
        f"Dataset {dataset.meta.name}: {name} is table {view.uuid}, not {before}. It was dropped and created again, or renamed. "
        "No run is started and nothing is deleted from the buffer: this table does not know which batches were erased or taken "
        f"back. {_choices(dataset, view.uuid)}",
        view.uuid,
    )


def _dropped(dataset: Dataset, before: str) -> AnotherTable:
    word = _word_for_none(dataset)
    return AnotherTable(
        Reason.TABLE_DROPPED,
        f"Dataset {dataset.meta.name}: {before}, is no longer in catalog {dataset.spec.table.catalog} under the name "
        f"{dataset.spec.table.name}. It was dropped or renamed. No table is created in its place: a new one would not know which "
        f"batches were erased or taken back. {_choices(dataset, word)}",
        word,
    )


def _choices(dataset: Dataset, word: str) -> str:
    meta = dataset.meta
    return (
        "Either bring that table back under this name, or continue without it by kubectl annotate datasets.lethe.dev "
        f"{meta.name} -n {meta.namespace} --overwrite {ACCEPT_HEAD}={word} (every batch of the buffer is then promoted, "
        "also those that were erased or taken back in the other table: remove them from the buffer first; Restatements that were "
        "committed to the other table say RolledBack)."
    )


def _word_for_none(dataset: Dataset) -> str:
    return f"{_NO_TABLE}{_seen_uuid(dataset) or UNKNOWN}"


def _seen_uuid(dataset: Dataset) -> str | None:
    uuid = (dataset.status.get("table") or {}).get("uuid")
    return None if uuid is None else str(uuid)
