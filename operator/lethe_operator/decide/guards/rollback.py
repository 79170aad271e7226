"""Whether the table was rolled back behind our back, and whether somebody accepted that. Pure.

What was promoted, deleted from the buffer and reported since then may be untrue, so nothing goes on unasked.
"""

from collections.abc import Mapping
from typing import Any, Final

from lethe.ledger.lineage import is_rolled_back

from lethe_operator.decide.guards.table_identity import AnotherTable
from lethe_operator.resources.common import ACCEPT_HEAD
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import TableView

NO_SNAPSHOT: Final = "none"


def rolled_back(dataset: Dataset, view: TableView) -> bool:
    """Whether the head that the status shows is no ancestor of the head now. For another table, see `table_identity`."""
    seen = _seen(dataset, view)
    return is_rolled_back(view.ancestry, view.head_id, seen.get("snapshotId"), seen.get("sequenceNumber"))


def accepted(dataset: Dataset, view: TableView) -> bool:
    """Whether the annotation names the head, as `<head>` or `<head>/<seen before>`. A value that was heard before does not
    count again: the table may have been rolled back to the same snapshot a second time."""
    asked, seen = dataset.meta.annotations.get(ACCEPT_HEAD), _seen(dataset, view)
    return asked in _words(view, seen) and asked != seen.get("acceptedHead")


def stopped(dataset: Dataset, view: TableView) -> str:
    """Why nothing may go on, "" when it may."""
    if not rolled_back(dataset, view) or accepted(dataset, view):
        return ""
    meta, seen = dataset.meta, _seen(dataset, view)
    word = next(w for w in _words(view, seen) if w != seen.get("acceptedHead"))
    return (
        f"Dataset {meta.name}: the head of {dataset.spec.table.name} is snapshot {head_name(view)}, which does not descend from "
        f"snapshot {seen.get('snapshotId')}, the head that was seen before: the table was rolled back. No run is started, "
        "nothing is deleted from the buffer and no snapshot expires. Either bring the table back to that snapshot, or accept "
        f"this head by kubectl annotate datasets.lethe.dev {meta.name} -n {meta.namespace} --overwrite {ACCEPT_HEAD}={word} "
        "(batches that are no longer in the table are then promoted again as far as the buffer still has them; Restatements "
        "that are no longer in it say RolledBack)."
    )


def table_status(
    dataset: Dataset, view: TableView, seen: Mapping[str, Any], another: AnotherTable | None
) -> dict[str, Any]:
    """`status.table`: of a table and a head that may be built on. While nothing may go on, what was seen before stays there.

    Args:
        seen: What a table of that head looks like in the status.
        another: How the table differs from the one that was seen.
    """
    before = dataset.status.get("table") or {}
    if another is not None or stopped(dataset, view):
        return dict(before)
    document = dict(seen)
    asked = dataset.meta.annotations.get(ACCEPT_HEAD)
    heard = asked in (view.uuid, _seen(dataset, view).get("acceptedHead"))
    if asked is not None and (heard or rolled_back(dataset, view)):
        document["acceptedHead"] = asked
    return document


def head_name(view: TableView) -> str:
    """The head as the annotation and messages name it."""
    return NO_SNAPSHOT if view.head_id is None else str(view.head_id)


def _words(view: TableView, seen: Mapping[str, Any]) -> tuple[str, str]:
    """What the annotation may say; the second serves when the first was heard for an earlier rollback to this head."""
    return head_name(view), f"{head_name(view)}/{seen.get('snapshotId')}"


def _seen(dataset: Dataset, view: TableView) -> Mapping[str, Any]:
    seen: Mapping[str, Any] = dataset.status.get("table") or {}
    return seen if seen.get("uuid") == view.uuid else {}
