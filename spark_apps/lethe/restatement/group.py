"""Sorts the requests for one table, and plans many of them as one commit, or one as a dry run. Pure.

Invariant: the result is the same as if the requests were committed one after another, in this order. A refused or postponed
request changes nothing, and does not affect others, except those that depend on it. The operator and the runs use the same order.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from heapq import heappop, heappush
from typing import Final, Protocol, TypeAlias, TypeVar

from lethe.base.errors import InputError, LedgerError, TableError, Verdict
from lethe.base.names import MAX_BATCH_ID_LENGTH, lines_of
from lethe.contract.result import AffectedFiles, RequestResult
from lethe.contract.run import RestatementRequest
from lethe.contract.settings import Operation
from lethe.files.bounds import FileBounds, split_by_bounds
from lethe.ledger.ledger import Delta, Ledger, RequestEntry, get_many
from lethe.ledger.overlay import Folding
from lethe.restatement.plan import ErasedRows, PlanScope, ReplacementRows, Restated, name_of, plan_restatement, recalled
from lethe.restatement.selection import with_candidates, with_selected

T = TypeVar("T")
Thing: TypeAlias = Hashable

LISTED_IDS_AT_MOST: Final = 100_000
LIST_BYTES_AT_MOST: Final = LISTED_IDS_AT_MOST * (4 * MAX_BATCH_ID_LENGTH + 2)
"""Every id has the maximum length, every character four bytes, and every line ends with CR LF."""
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

_TO_COME = ReplacementRows(0, 0)
"""Stands for a replacement whose rows are not written yet. The requests after it can be planned without their number."""


@dataclass(frozen=True)
class Dependencies:
    """What the place of a request in the order depends on."""

    created: datetime
    name: str
    creates: Collection[Thing]
    """The batches and requests that exist after it."""
    needs: Collection[Thing]
    """The batches and requests that must exist before it, if another request brings them."""


def place(
    created: datetime, name: str, key: str, batch_ids: Iterable[str], replacement: str | None, undoes: str | None
) -> Dependencies:
    """The dependencies of a Restatement.

    Args:
        key: Identifies it, as `undoes` of another Restatement does: a name or a request key.
        replacement: The id of the batch that it adds; None: it adds none.
        undoes: None or "": it is not an Undo.
    """
    creates: list[Thing] = [("request", key)]
    if replacement is not None:
        creates.append(("batch", replacement))
    needs: set[Thing] = {("batch", i) for i in batch_ids}
    if undoes:
        needs.add(("request", undoes))
    return Dependencies(created, name, creates, needs)


def place_of(request: RestatementRequest) -> Dependencies:
    """The dependencies of a request of a run, which other requests name by its key and not by its name."""
    made = request.replacement.batch_id if request.replacement else None
    return place(request.creation_time, request.name, request.key, request.batch_ids, made, request.undoes)


def in_order(requests: Iterable[T], place: Callable[[T], Dependencies]) -> tuple[T, ...]:
    """Sort by dependency, then by creation time, then by name. O(n log n).

    If several requests bring the same thing, such as two replacements with one id, all of them come before those that need it.

    A request comes after those that it depends on: a replacement before the request that restates it, a restatement before its
    Undo. Otherwise the oldest request comes first.
    """
    placed = sorted(((r, place(r)) for r in requests), key=lambda pair: (pair[1].created, pair[1].name))
    to_come = Counter(thing for _, p in placed for thing in p.creates)
    awaited = [{thing for thing in p.needs if thing in to_come}.difference(p.creates) for _, p in placed]
    awaiting: dict[Thing, list[int]] = {}
    for n, things in enumerate(awaited):
        for thing in things:
            awaiting.setdefault(thing, []).append(n)
    free = [n for n, things in enumerate(awaited) if not things]  # sorted, so a heap
    left = dict.fromkeys(range(len(placed)))
    ordered: list[T] = []
    while left:
        # The rest depends on each other in a circle, so the oldest comes next.
        chosen = heappop(free) if free else next(iter(left))
        if chosen not in left:
            continue
        del left[chosen]
        request, its = placed[chosen]
        ordered.append(request)
        for thing in its.creates:
            to_come[thing] -= 1
            for n in awaiting.get(thing, ()) if not to_come[thing] else ():
                awaited[n].discard(thing)
                if not awaited[n] and n in left:
                    heappush(free, n)
    return tuple(ordered)


@dataclass(frozen=True)
class IdList:
    """A list of batch ids, and the digest that shows later whether the list has changed."""

    ids: tuple[str, ...]
    """The ids without duplicates, in the order of the list."""
    sha256: str
    """The SHA-256 of the bytes, as `sha256sum` prints it."""


def parse_ids(content: bytes, where: str) -> IdList:
    """Parse a list.

    Ignores empty lines and duplicates. Only LF or CR LF ends a line, because other line separators may be part of an id.

    Args:
        where: The name of the list, for messages. Messages do not quote the content, because it may not be a list of ids.

    Raises:
        InputError: `InvalidIdList`: not UTF-8, no id, too many ids, or an id that is too long or begins or ends with
            whitespace.
    """
    if len(content) > LIST_BYTES_AT_MOST:
        raise _invalid(where, f"the list has more than {LIST_BYTES_AT_MOST} bytes")
    try:
        text = content.removeprefix(_BYTE_ORDER_MARK).decode()
    except UnicodeDecodeError as e:
        raise _invalid(where, f"the list is not UTF-8 at byte {e.start}") from None
    ids: dict[str, None] = {}
    for number, batch_id in enumerate(lines_of(text), 1):
        if not batch_id:
            continue
        if len(batch_id) > MAX_BATCH_ID_LENGTH:
            raise _invalid(
                where, f"line {number} has {len(batch_id)} characters, expected at most {MAX_BATCH_ID_LENGTH}"
            )
        if batch_id != batch_id.strip():
            raise _invalid(where, f"line {number} begins or ends with a blank")
        ids[batch_id] = None
    if not ids:
        raise _invalid(where, "the list contains no batch id")
    if len(ids) > LISTED_IDS_AT_MOST:
        raise _invalid(where, f"the list has {len(ids)} batch ids, expected at most {LISTED_IDS_AT_MOST}")
    return IdList(tuple(ids), hashlib.sha256(content).hexdigest())


def _invalid(where: str, what: str) -> InputError:
    text = f"{where}: {what}. Write one batch id per line, in UTF-8, and create a new Restatement."
    return InputError("InvalidIdList", text)


def changed(where: str, before: str, found: str) -> InputError:
    """The error for a list that has changed since it was first read.

    Args:
        where: The name of the list.
        before: SHA-256 when it was first read.
        found: SHA-256 now.
    """
    return InputError(
        "ListChanged",
        f"{where}: the list has changed since it was first read (SHA-256 {before[:12]}… then, {found[:12]}… "
        "now), so it is unknown which version is meant. Nothing was changed. Create a new Restatement for "
        "the new list.",
    )


@dataclass(frozen=True)
class GroupPlan:
    """The plan of a group on one ledger. All sequences of keys are in the order of the requests."""

    delta: Delta
    """The changes of all requests that are carried out; empty if there is none."""
    results: Mapping[str, RequestResult]
    """The results of all requests of the group, by key."""
    carried_out: tuple[str, ...]
    """Keys of the requests in the delta."""
    adds: tuple[str, ...]
    """Keys of those whose replacement's rows must be added in the same commit."""
    erases: tuple[str, ...] = ()
    """Keys of those whose rows must be removed or redacted in data files in the same commit."""


@dataclass(frozen=True)
class GroupFindings:
    """What a run has found out about requests before it plans them, by the key of the request."""

    written: Mapping[str, ReplacementRows] = field(default_factory=dict)
    """Replacements whose rows are written. Others are planned as if they were."""
    aside: Mapping[str, RequestResult] = field(default_factory=dict)
    """Refused and postponed requests. Requests that depend on a postponed one are postponed too."""
    erased: Mapping[str, ErasedRows] = field(default_factory=dict)
    """Erases by records, replacements with key columns, and Redacts, whose rows the run has searched for."""


def plan_group(
    ledger: Ledger,
    requests: Sequence[RestatementRequest],
    scope: PlanScope,
    findings: GroupFindings,
    masking: bool = False,
) -> GroupPlan:
    """Plan the requests on this ledger; on another ledger, plan again.

    Args:
        requests: In any order; duplicates are ignored.
        masking: The commit writes native deletes. They cannot delete rows that the same commit adds, so a request that deletes a
            replacement of the same group is postponed.

    Raises:
        LedgerError: An error that no request causes.
        TableError: An error that no request causes.
    """
    requests = with_candidates(requests, scope.deliveries)
    _fetch(ledger, requests, scope.field_id)
    folding = Folding(ledger, scope.run)
    results: dict[str, RequestResult] = {}
    carried_out: list[str] = []
    adds: list[str] = []
    erases: list[str] = []
    late: dict[Thing, str] = {}
    coming: dict[Thing, str] = {}
    undos: list[str] = []
    redacts: list[RestatementRequest] = []
    for request in in_order({r.key: r for r in requests}.values(), place_of):
        place = place_of(request)
        out = None
        if request.key not in ledger.requests:
            out = findings.aside.get(request.key) or _waits(request, place, late | coming)
            out = out or (_waits_for_rows(request, adds, undos) if request.searches else None)
            out = out or _waits_for_redaction(request, redacts)
        if out is None:
            rows = findings.written.get(request.key, _TO_COME)
            try:
                if request.key not in ledger.requests:
                    request = with_selected(folding.ledger, request, scope.deliveries)
                planned = plan_restatement(folding.ledger, request, scope, rows, findings.erased.get(request.key))
            except (LedgerError, TableError):
                raise  # it concerns all requests: a user must repair the ledger or accept the table
            except InputError as e:
                out = set_aside(request, e.verdict)
        if out is not None:
            results[request.key] = out
            late |= dict.fromkeys(place.creates, request.name) if out.again else {}
            continue
        results[request.key] = planned.result
        if isinstance(planned, Restated):
            folding.add(planned.delta)
            carried_out.append(request.key)
            admits = planned.delta.forget_batches or request.operation is Operation.APPROVE
            undos += [request.key] if admits else []
            adds += [request.key] if planned.add_replacement else []
            coming |= dict.fromkeys(place.creates, request.name) if masking and planned.add_replacement else {}
            erases += [request.key] if planned.erase_rows else []
            redacts += [request] if request.redact is not None else []
    size = len(carried_out)
    results |= {key: results[key].model_copy(update={"group_size": size}) for key in carried_out}
    delta = _with_size(folding.delta, carried_out, size)
    return GroupPlan(delta, results, tuple(carried_out), tuple(adds), tuple(erases))


def set_aside(request: RestatementRequest, verdict: Verdict) -> RequestResult:
    """The result of a request that is excluded from the group: postponed for a transient reason, refused for another."""
    by_reference = bool(request.batch_ids_sha256 and request.batch_ids)
    at_uri = request.rows is not None and any(c.values_uri for c in request.conditions)
    return RequestResult(
        key=request.key,
        name=request.name,
        succeeded=False,
        again=verdict.transient,
        reason=verdict.reason,
        message=verdict.message,
        group_size=0,
        batch_ids_count=len(request.batch_ids) if by_reference else None,
        batch_ids_sha256=request.batch_ids_sha256 if by_reference else None,
        values_digest=(request.rows.values_digest or None) if at_uri and request.rows is not None else None,
    )


def _waits(request: RestatementRequest, place: Dependencies, late: Mapping[Thing, str]) -> RequestResult | None:
    """The result of a request that depends on a postponed one; None: it does not.

    Args:
        late: Names of the requests that are not available yet, by what they bring.
    """
    dependency = next((late[thing] for thing in place.needs if thing in late), None)
    if dependency is None:
        return None
    text = f"Restatement {request.name} depends on Restatement {dependency}, which was not carried out yet, and waits for it."
    return set_aside(request, Verdict("WaitingForRestatement", text, transient=True))


def _waits_for_rows(request: RestatementRequest, adds: Sequence[str], undos: Sequence[str]) -> RequestResult | None:
    """The result of a request that searches for rows and comes after rows that are not in the table yet; None: there are none.

    Args:
        adds: Keys of the requests before it that add a replacement.
        undos: Keys of the requests before it that allow batches to be promoted.
    """
    if not adds and not undos:
        return None
    dependency = name_of((adds or undos)[-1])
    place = (
        f"the replacement of Restatement {dependency}"
        if adds
        else f"batches that Restatement {dependency} allows to be promoted"
    )
    verb = "replaces" if request.by_keys else "redacts" if request.redact is not None else "erases"
    text = (
        f"Restatement {request.name} {verb} rows that may be in {place}, and waits until that Restatement is committed."
    )
    return set_aside(request, Verdict("WaitingForRestatement", text, transient=True))


def _waits_for_redaction(request: RestatementRequest, redacts: Sequence[RestatementRequest]) -> RequestResult | None:
    """The result of a request that searches a column that a Redact before it changes; None: there is none.

    One pass finds the rows of all requests of a commit, so it would find them by the old values.
    """
    names = [c.column for c in request.conditions]
    # A lookup may be in this same table.
    names += [name for c in request.conditions if c.via is not None for name in (c.via.from_column, c.via.to_column)]
    names += request.replacement.key_columns if request.replacement is not None else ()
    for earlier in redacts:
        redacted = [c.column for c in earlier.redact.columns] if earlier.redact is not None else []
        if any(_overlap(a, b) for a in redacted for b in names):
            text = (
                f"Restatement {request.name} searches a column that Restatement {name_of(earlier.key)} redacts, and waits until "
                "that Restatement is committed."
            )
            return set_aside(request, Verdict("WaitingForRestatement", text, transient=True))
    return None


def _overlap(a: str, b: str) -> bool:
    """Whether one of two columns is the other or a part of it, by their full names."""
    return f"{a}.".startswith(f"{b}.") or f"{b}.".startswith(f"{a}.")


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


class Sized(Protocol):
    """A data file with a known size."""

    @property
    def size(self) -> int:
        """The size in bytes. A dry run adds up the sizes of the files that were found."""


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
        request: If it names a run, it may have the batches of the run already.
        searched: For an Erase or a Redact by records: the data files that may contain one of the values; None: any other request.

    Returns:
        A successful result with `plan`, or a result with the reason why the request would be refused.

    Raises:
        LedgerError: An error that no request causes.
        TableError: An error that no request causes.
    """
    try:
        if request.reference and not request.batch_ids and request.key not in ledger.requests:
            request = with_selected(ledger, request, scope.deliveries)
        planned = plan_restatement(ledger, request, scope)
    except (LedgerError, TableError):
        raise
    except InputError as e:
        return set_aside(request, e.verdict)
    if searched is not None:
        plan = AffectedFiles(files=len(searched), bytes=sum(f.size for f in searched), whole_files=0)
        return _untouched(planned.result, plan)
    undone = ledger.requests.get(request.undoes) if request.undoes else None
    ids = recalled(undone).batch_ids if undone is not None else request.batch_ids
    split = split_by_bounds(files, ids)
    touched = (*split.may_contain_deleted_rows, *split.all_rows_deleted)
    plan = AffectedFiles(
        files=len(touched), bytes=sum(f.size for f in touched), whole_files=len(split.all_rows_deleted)
    )
    return _untouched(planned.result, plan)


def _untouched(result: RequestResult, plan: AffectedFiles) -> RequestResult:
    return result.model_copy(update={"plan": plan, "committed_time": None, "group_size": 0})
