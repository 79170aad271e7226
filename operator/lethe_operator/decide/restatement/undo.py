"""Which request an Undo takes back, or why it cannot. Pure."""

from dataclasses import dataclass

from lethe_operator.decide.conditions import FALSE, SUCCEEDED, TRUE, find
from lethe_operator.reasons import Reason
from lethe_operator.resources.observed import TableView, World
from lethe_operator.resources.restatement import Restatement


@dataclass(frozen=True)
class UndoTarget:
    """The request to take back, or why there is none. If neither `waits` nor `final`, a user must act."""

    key: str = ""  # of the request; "": there is none
    reason: str = ""
    message: str = ""
    waits: bool = False  # the named Restatement has not ended yet
    final: bool = False  # there will never be one


def undone(restatement: Restatement, world: World, earlier_key: str = "") -> UndoTarget:
    """Find the request that `spec.undoes` names. The key from an earlier reconcile or run is used if that Restatement was deleted
    since.

    Args:
        earlier_key: The key in the document of an earlier run of this Undo; "": there is none.
    """
    assert restatement.spec.undoes is not None
    undo, name = restatement.meta.name, restatement.spec.undoes.name
    named = world.restatements_by_name.get(name)
    if named is None or name == undo:
        met = str(restatement.status.get("undoesKey") or "") or earlier_key
        if met:
            return UndoTarget(met)
        return UndoTarget(
            reason=Reason.UNDONE_RESTATEMENT_NOT_FOUND,
            message=f"Restatement {undo}: spec.undoes names {name}, but Dataset {restatement.spec.dataset_ref.name} has no "
            "Restatement of that name in this namespace. If it was deleted, create it again with the same spec: the table's "
            "ledger still contains it, so nothing is done twice.",
        )
    entry = world.table.ledger.requests.get(named.key) if isinstance(world.table, TableView) else None
    if entry is not None and entry.result.get("succeeded", True):
        return UndoTarget(named.key)
    ended = find(named.status, SUCCEEDED)
    if entry is None and ended.get("status") not in (FALSE, TRUE):
        text = f"Waiting for the end of Restatement {name}, which this one undoes."
        return UndoTarget(reason=Reason.WAITING_FOR_RESTATEMENT, message=text, waits=True)
    return UndoTarget(
        reason=Reason.UNDONE_RESTATEMENT_NOT_COMMITTED,
        message=f"Restatement {undo}: spec.undoes names {name}, which was not committed to the table "
        f"({ended.get('reason') or 'it failed'}), so there is nothing to undo.",
        final=True,
    )
