"""Plans a dry run: what a request would change if a run carried it out now, by itself. Pure."""

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
    """A data file with a known size."""

    @property
    def size(self) -> int: ...  # in bytes


def plan_dry_run(
    ledger: Ledger,
    request: RestatementRequest,
    files: Sequence[FileBounds],
    scope: PlanScope,
    searched: Sequence[Sized] | None = None,
) -> RequestResult:
    """The result that the request would have on this ledger, with a plan and without a commit. O(files x log ids).

    Args:
        files: The live data files of the head.
        searched: For an Erase by records: the data files that may contain one of the values; None: any other request.
    Returns: a successful result with `plan`, or a result with the reason why the request would be refused.
    Raises: LedgerError, TableError: an error that no request causes.
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
