"""Whether another writer rolled the table back, and whether the user accepted that. Pure.

What Lethe promoted, deleted from the buffer and reported since may no longer be true, so no run starts until then.
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
    """Whether the head in the status is not an ancestor of the current head. For another table, see `table_identity`."""
    seen = _seen(dataset, view)
    return is_rolled_back(view.ancestry, view.head_id, seen.get("snapshotId"), seen.get("sequenceNumber"))


def accepted(dataset: Dataset, view: TableView) -> bool:
    """Whether the annotation names the head, as `<head>` or `<head>/<seen before>`. A value counts once: the table may be rolled
    back to the same snapshot a second time."""
    asked, seen = dataset.meta.annotations.get(ACCEPT_HEAD), _seen(dataset, view)
    return asked in _words(view, seen) and asked != seen.get("acceptedHead")


def stopped(dataset: Dataset, view: TableView) -> str:
    """Why no run starts; "": the table was not rolled back, or the user accepted it."""
    if not rolled_back(dataset, view) or accepted(dataset, view):
        return ""
    meta, seen = dataset.meta, _seen(dataset, view)
    word = next(w for w in _words(view, seen) if w != seen.get("acceptedHead"))
    return (
        f"Dataset {meta.name}: the head of {dataset.spec.table.name} is snapshot {head_name(view)}, which does not descend from "
        f"snapshot {seen.get('snapshotId')}, the last head that the operator saw: the table was rolled back. No run starts, "
        "nothing is deleted from the buffer, and no snapshot is expired. Either bring the table back to that snapshot, or accept "
        f"this head: kubectl annotate datasets.lethe.dev {meta.name} -n {meta.namespace} --overwrite {ACCEPT_HEAD}={word} "
        "(batches that are no longer in the table are then promoted again if the buffer still has them; Restatements that are "
        "no longer in it get RolledBack)."
    )


def table_status(
    dataset: Dataset, view: TableView, seen: Mapping[str, Any], another: AnotherTable | None
) -> dict[str, Any]:
    """`status.table`. While the table is another one, or a rollback is not accepted, it keeps the last accepted table and head.

    Args:
        seen: The fields of the current head.
        another: How the table differs from the one that was seen before; None: it does not.
    """
    before = dataset.status.get("table") or {}
    if another is not None or stopped(dataset, view):
        return dict(before)
    document = dict(seen)
    asked = dataset.meta.annotations.get(ACCEPT_HEAD)
    known = asked in (view.uuid, _seen(dataset, view).get("acceptedHead"))
    if asked is not None and (known or rolled_back(dataset, view)):
        document["acceptedHead"] = asked
    return document


def head_name(view: TableView) -> str:
    """The head's name in the annotation and in messages."""
    return NO_SNAPSHOT if view.head_id is None else str(view.head_id)


def _words(view: TableView, seen: Mapping[str, Any]) -> tuple[str, str]:
    """The values that accept the head. The second one is for a repeated rollback to the same head."""
    return head_name(view), f"{head_name(view)}/{seen.get('snapshotId')}"


def _seen(dataset: Dataset, view: TableView) -> Mapping[str, Any]:
    seen: Mapping[str, Any] = dataset.status.get("table") or {}
    return seen if seen.get("uuid") == view.uuid else {}
