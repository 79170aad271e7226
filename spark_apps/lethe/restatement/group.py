"""Plans many requests as one commit. Each is planned on the ledger that the requests before it make. Pure.

Invariant: the result is the same as if the requests were committed one after another, in the order of `lethe.restatement.order`.
A refused or postponed request changes nothing, and does not affect others, except those that depend on it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from lethe.base.errors import InputError, LedgerError, LetheError, TableError
from lethe.contract.result import RequestResult
from lethe.contract.run import RestatementRequest
from lethe.ledger.ledger import Delta, Ledger, RequestEntry
from lethe.ledger.overlay import Folding
from lethe.ledger.parts import get_many
from lethe.restatement.order import Dependencies, Thing, in_order, place_of
from lethe.restatement.plan import ErasedRows, PlanScope, ReplacementRows, Restated, plan_restatement
from lethe.restatement.record import name_of, recalled

# Stands for a replacement whose rows are not written yet. The requests after it can be planned without their number.
_TO_COME = ReplacementRows(0, 0)


@dataclass(frozen=True)
class GroupPlan:
    """The plan of a group on one ledger. All sequences of keys are in the order of the requests."""

    # The changes of all requests that are carried out; empty if there is none.
    delta: Delta
    # Of all requests of the group, by key.
    results: Mapping[str, RequestResult]
    # Keys of the requests in the delta.
    carried_out: tuple[str, ...]
    # Keys of those whose replacement's rows must be added in the same commit.
    adds: tuple[str, ...]
    # Keys of those whose rows must be removed from data files in the same commit.
    erases: tuple[str, ...] = ()


@dataclass(frozen=True)
class GroupFindings:
    """What a run has found out about requests before it plans them, by the key of the request."""

    # Replacements whose rows are written. Others are planned as if they were.
    written: Mapping[str, ReplacementRows] = field(default_factory=dict)
    # Refused and postponed requests. Requests that depend on a postponed one are postponed too.
    aside: Mapping[str, RequestResult] = field(default_factory=dict)
    # Erases by records, and replacements with key columns, whose rows the run has searched for.
    erased: Mapping[str, ErasedRows] = field(default_factory=dict)


def plan_group(
    ledger: Ledger,
    requests: Sequence[RestatementRequest],
    scope: PlanScope,
    known: GroupFindings,
    masking: bool = False,
) -> GroupPlan:
    """Plan the requests on this ledger; on another ledger, plan again.

    Args:
        requests: In any order; duplicates are ignored.
        masking: The commit writes native deletes. They cannot delete rows that the same commit adds, so a request that deletes a
            replacement of the same group is postponed.
    Raises: LedgerError, TableError: an error that no request causes.
    """
    _fetch(ledger, requests, scope.field_id)
    folding = Folding(ledger, scope.run)
    results: dict[str, RequestResult] = {}
    carried_out: list[str] = []
    adds: list[str] = []
    erases: list[str] = []
    late: dict[Thing, str] = {}
    coming: dict[Thing, str] = {}
    undos: list[str] = []
    for request in in_order({r.key: r for r in requests}.values(), place_of):
        place = place_of(request)
        out = None
        if request.key not in ledger.requests:
            out = known.aside.get(request.key) or _waits(request, place, late | coming)
            out = out or (_waits_for_rows(request, adds, undos) if request.searches else None)
        if out is None:
            rows = known.written.get(request.key, _TO_COME)
            try:
                planned = plan_restatement(folding.ledger, request, scope, rows, known.erased.get(request.key))
            except (LedgerError, TableError):
                raise  # it concerns all requests: a user must repair the ledger or accept the table
            except InputError as e:
                out = set_aside(request, e)
        if out is not None:
            results[request.key] = out
            late |= dict.fromkeys(place.brings, request.name) if out.again else {}
            continue
        results[request.key] = planned.result
        if isinstance(planned, Restated):
            folding.add(planned.delta)
            carried_out.append(request.key)
            undos += [request.key] if planned.delta.forget_batches else []
            adds += [request.key] if planned.add_replacement else []
            coming |= dict.fromkeys(place.brings, request.name) if masking and planned.add_replacement else {}
            erases += [request.key] if planned.erase_rows else []
    size = len(carried_out)
    results |= {key: results[key].model_copy(update={"group_size": size}) for key in carried_out}
    delta = _with_size(folding.delta, carried_out, size)
    return GroupPlan(delta, results, tuple(carried_out), tuple(adds), tuple(erases))


def set_aside(request: RestatementRequest, error: LetheError, again: bool = False) -> RequestResult:
    """The result of a request that this error excludes from the group.

    Args:
        again: True: the request is postponed; False: it is refused.
    """
    by_reference = bool(request.batch_ids_sha256 and request.batch_ids)
    return RequestResult(
        key=request.key,
        name=request.name,
        succeeded=False,
        again=again,
        reason=error.reason,
        message=error.message,
        group_size=0,
        batch_ids_count=len(request.batch_ids) if by_reference else None,
        batch_ids_sha256=request.batch_ids_sha256 if by_reference else None,
    )


def _waits(request: RestatementRequest, place: Dependencies, late: Mapping[Thing, str]) -> RequestResult | None:
    """The result of a request that depends on a postponed one; None: it does not.

    Args:
        late: Names of the requests that are not available yet, by what they bring.
    """
    other = next((late[thing] for thing in place.needs if thing in late), None)
    if other is None:
        return None
    text = (
        f"Restatement {request.name} depends on Restatement {other}, which was not carried out yet, and waits for it."
    )
    return set_aside(request, LetheError("WaitingForRestatement", text), again=True)


def _waits_for_rows(request: RestatementRequest, adds: Sequence[str], undos: Sequence[str]) -> RequestResult | None:
    """The result of a request that searches for rows and comes after rows that are not in the table yet; None: there are none.

    Args:
        adds: Keys of the requests before it that add a replacement.
        undos: Keys of the Undos before it that allow batches to be promoted.
    """
    if not adds and not undos:
        return None
    other = name_of((adds or undos)[-1])
    place = f"the replacement of Restatement {other}" if adds else f"batches that Restatement {other} allows again"
    verb = "replaces" if request.by_keys else "erases"
    text = (
        f"Restatement {request.name} {verb} rows that may be in {place}, and waits until that Restatement is committed."
    )
    return set_aside(request, LetheError("WaitingForRestatement", text), again=True)


def _fetch(ledger: Ledger, requests: Sequence[RestatementRequest], field_id: int) -> None:
    """Read everything that the plans need with a few requests to the storage. A ledger in files caches what it reads."""
    entries = get_many(ledger.requests, [k for r in requests for k in (r.key, r.undoes) if k])
    ids = [i for r in requests for i in r.batch_ids]
    ids += [r.replacement.batch_id for r in requests if r.replacement]
    ids += [i for r in requests if r.undoes in entries for i in recalled(entries[r.undoes]).batch_ids]
    get_many(ledger.batches, ids)
    get_many(ledger.tombstones, [(field_id, i) for i in ids])


def _with_size(delta: Delta, keys: Sequence[str], size: int) -> Delta:
    mine = frozenset(keys)

    def sized(entry: RequestEntry) -> RequestEntry:
        return replace(entry, result={**entry.result, "groupSize": size}) if entry.key in mine else entry

    return replace(delta, set_requests=tuple(map(sized, delta.set_requests)))
