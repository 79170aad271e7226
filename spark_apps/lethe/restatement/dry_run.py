"""What a request would touch if it were carried out now, by itself: the answer to a dry run. Pure."""

from collections.abc import Sequence
from typing import Protocol

from lethe.base.errors import InputError, LedgerError, TableError
from lethe.contract.result import RequestResult, RestatementPlan
from lethe.contract.run import RestatementRequest
from lethe.files.bounds import FileBounds, split_by_bounds
from lethe.ledger.ledger import Ledger
from lethe.restatement.group import set_aside
from lethe.restatement.plan import PlanScope, plan_restatement
from lethe.restatement.record import recalled


class Sized(Protocol):
    """A data file of so many bytes."""

    @property
    def size(self) -> int: ...


def plan_dry_run(
    ledger: Ledger,
    request: RestatementRequest,
    files: Sequence[FileBounds],
    scope: PlanScope,
    searched: Sequence[Sized] | None = None,
) -> RequestResult:
    """The result that the request would have on this ledger, with its plan and without a commit. O(files x log ids).

    Args:
        files: The live data files of the head.
        searched: Of an Erase by records, the data files that may hold a value.
    Returns: A result that succeeded, with `plan`; or the reason for which the request would be refused.
    Raises: LedgerError, TableError: the request is not at fault.
    """
    try:
        planned = plan_restatement(ledger, request, scope)
    except (LedgerError, TableError):
        raise
    except InputError as e:
        return set_aside(request, e)
    if searched is not None:
        plan = RestatementPlan(files=len(searched), bytes=sum(f.size for f in searched), whole_files=0)
        return _untouched(planned.result, plan)
    undone = ledger.requests.get(request.undoes) if request.undoes else None
    ids = recalled(undone).batch_ids if undone is not None else request.batch_ids
    found = split_by_bounds(files, ids)
    touched = (*found.might, *found.must)
    plan = RestatementPlan(files=len(touched), bytes=sum(f.size for f in touched), whole_files=len(found.must))
    return _untouched(planned.result, plan)


def _untouched(result: RequestResult, plan: RestatementPlan) -> RequestResult:
    return result.model_copy(update={"plan": plan, "committed_time": None, "group_size": 0})
