"""Many requests planned as one commit: each on what those before it make of the ledger. Pure.

Invariant: the change is that of the requests carried out one after another, in the order of
`lethe.restatement.order`. A request that is refused, or cannot be carried out now, leaves no trace in it and harms no other.
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

# Of a replacement whose rows are not written yet: that it comes is enough to plan what follows.
_TO_COME = ReplacementRows(0, 0)


@dataclass(frozen=True)
class GroupPlan:
    """What a group comes to on one ledger.

    Args:
        delta: Of all requests that are carried out; empty when there is none.
        results: Of every request of the group, by its key.
        carried_out: Keys of the requests that the delta holds, in their order.
        adds: Keys of those whose replacement's rows must go in with the delta, in their order.
        erases: Keys of those whose rows must go out of data files with the delta, in their order.
    """

    delta: Delta
    results: Mapping[str, RequestResult]
    carried_out: tuple[str, ...]
    adds: tuple[str, ...]
    erases: tuple[str, ...] = ()


@dataclass(frozen=True)
class GroupFindings:
    """What a run has found out about requests before it plans them; each by the key of the request."""

    # Replacements whose rows are written. Others are planned as if they came.
    written: Mapping[str, ReplacementRows] = field(default_factory=dict)
    # Requests that cannot be carried out, or not now (`again`). Whatever needs one of the latter waits with it.
    aside: Mapping[str, RequestResult] = field(default_factory=dict)
    # Erases by records, and replacements with keys, whose rows are found.
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
        requests: In any order; one that is named twice counts once.
        masking: Native deletes are written with the commit, and cannot be of rows that come with it: who takes back a replacement
            of the same group waits.
    Raises: LedgerError, TableError: no request is at fault.
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
                raise  # nothing can be said of any request until the ledger is mended, the table accepted
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
    """The result of a request that this error keeps out of the group; `again`: only for now."""
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
    """Whether a request needs what one of the `late` ones (by what they bring, their names) would have brought."""
    other = next((late[thing] for thing in place.needs if thing in late), None)
    if other is None:
        return None
    text = f"Restatement {request.name} builds on Restatement {other}, which could not be carried out yet; it goes after that."
    return set_aside(request, LetheError("WaitingForRestatement", text), again=True)


def _waits_for_rows(request: RestatementRequest, adds: Sequence[str], undos: Sequence[str]) -> RequestResult | None:
    """Whether a request that finds its rows by their values has to see those of replacements before it, which are no part of the
    table yet, or of batches that an Undo lets in."""
    if not adds and not undos:
        return None
    brings = (
        f"the replacement of Restatement {name_of(adds[-1])}" if adds else f"batches that {name_of(undos[-1])} lets in"
    )
    text = (
        f"Restatement {request.name} {'replaces' if request.by_keys else 'erases'} rows that {brings} may bring, which is "
        "committed first; it goes after that."
    )
    return set_aside(request, LetheError("WaitingForRestatement", text), again=True)


def _fetch(ledger: Ledger, requests: Sequence[RestatementRequest], field_id: int) -> None:
    """Read all that the plans will ask for in a few requests to the storage: a ledger in files remembers its answers."""
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
