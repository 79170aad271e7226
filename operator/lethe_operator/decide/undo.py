"""Which request an Undo takes back, or why not yet. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from lethe_operator.decide.conditions import FALSE, SUCCEEDED, TRUE, find
from lethe_operator.reasons import Reason
from lethe_operator.resources.observed import Run, TableView, World
from lethe_operator.resources.restatement import Restatement


@dataclass(frozen=True)
class Undone:
    """`key` of the request to take back; without one, why there is none. `waits`: it will come by itself; `final`: it never
    will; neither: somebody may help."""

    key: str = ""
    reason: str = ""
    message: str = ""
    waits: bool = False
    final: bool = False


def undone_by(restatement: Restatement, among: Sequence[Restatement]) -> Restatement | None:
    """The Restatement that an Undo names."""
    undoes = restatement.spec.undoes
    if undoes is None:
        return None
    return next((r for r in among if r.meta.name == undoes.name and r is not restatement), None)


def undone(restatement: Restatement, world: World, run: Run | None) -> Undone:
    """What the named Restatement is to the table. One that was deleted after this Undo first met it is remembered."""
    assert restatement.spec.undoes is not None
    undo, name = restatement.meta.name, restatement.spec.undoes.name
    named = undone_by(restatement, world.restatements)
    if named is None:
        met = str(restatement.status.get("undoesKey") or "") or _told(run)
        if met:
            return Undone(met)
        return Undone(
            reason=Reason.UNDONE_RESTATEMENT_NOT_FOUND,
            message=f"Restatement {undo}: spec.undoes names {name}, but Dataset {restatement.spec.dataset_ref.name} has no "
            "Restatement of that name in this namespace. If it was deleted, create it again with the spec it had: the table "
            "remembers it, and nothing is done twice.",
        )
    entry = world.table.ledger.requests.get(named.key) if isinstance(world.table, TableView) else None
    if entry is not None and entry.result.get("succeeded", True):
        return Undone(named.key)
    ended = find(named.status, SUCCEEDED)
    if entry is None and ended.get("status") not in (FALSE, TRUE):
        text = f"It takes back Restatement {name}, which has not ended yet."
        return Undone(reason=Reason.WAITING_FOR_RESTATEMENT, message=text, waits=True)
    return Undone(
        reason=Reason.UNDONE_RESTATEMENT_NOT_COMMITTED,
        message=f"Restatement {undo}: spec.undoes names {name}, which is no part of the table's history "
        f"({ended.get('reason') or 'it failed'}), so there is nothing to take back.",
        final=True,
    )


def _told(run: Run | None) -> str:
    """What an earlier attempt was told."""
    if run is None or run.intent is None or run.intent.restatement is None:
        return ""
    return run.intent.restatement.requests[0].undoes
