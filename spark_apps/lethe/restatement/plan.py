"""Plans one request on a ledger: its tombstones, batch states and result, or the reason why it is refused. Pure."""

import hashlib
import hmac
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, assert_never

from lethe.base.errors import InputError
from lethe.contract.result import LISTED_AT_MOST, RecordedRedaction, RedactedColumn, RequestResult
from lethe.contract.run import Provenance, Replacement, RestatementRequest
from lethe.contract.settings import Operation
from lethe.ledger.ledger import BatchEntry, BatchState, Delta, Ledger, RequestEntry, get_many
from lethe.ledger.tombstone import (
    META_PARTITIONS,
    META_PURGED_BY,
    META_REASON,
    META_RESTATEMENTS,
    META_RUN,
    PURGED_AT_ONCE,
    PURGED_BEFORE,
    PURGED_BESIDE,
    Erasure,
    Tombstone,
)
from lethe.restatement.selection import NONE_DELIVERED, Deliveries
from lethe.restatement.unknown import refuse_absent, refuse_unknown

KEY_BYTES_AT_LEAST: Final = 16
CLOCKS_DIFFER: Final = timedelta(minutes=10)
"""The clocks of two runs differ by less."""


def remembered(
    ledger: Ledger, request: RestatementRequest, result: RequestResult, run: str, now: datetime
) -> RequestEntry:
    """The entry of a request in the next version of this ledger.

    The ledger stores all batch ids of a request. An Undo names only the request, and so finds the ids without reading all batches
    of the table. A reported result does not contain them. Those of a Redact are in `redaction`: the rows of its batches stay, and
    nothing that deals with deleted batches may find them.
    """
    replacement = None if result.replacement_withheld else request.replacement
    kept = result.model_copy(
        update={
            "replacement_uri": replacement.uri if replacement is not None else None,
            "replacement_batch_id": replacement.batch_id if replacement is not None else None,
            "operation": request.operation,
            "batch_ids": () if result.redaction is not None else tuple(dict.fromkeys(request.batch_ids)),
            "ledger_version": ledger.version + 1,
            "provenance": request.provenance,
        }
    )
    return RequestEntry(request.key, run, now, kept.model_dump(mode="json", by_alias=True, exclude_none=True))


def version_of(entry: RequestEntry) -> int:
    """The version of the ledger that the commit of the request made.

    It orders requests independently of the clocks of runs. 0: the request was committed by a version of Lethe that did not store
    it. Such requests are older than all others, and their order is unknown.
    """
    return int(entry.result.get("ledgerVersion") or 0)


def recalled(entry: RequestEntry) -> RequestResult:
    """The complete result in the ledger."""
    return RequestResult.model_validate(dict(entry.result))


def provenances(requests: Mapping[str, RequestEntry], keys: Iterable[str]) -> dict[str, Provenance]:
    """Who asked for these requests and why, by key; without those of which the ledger does not tell."""
    results = {key: recalled(entry) for key, entry in get_many(requests, dict.fromkeys(keys)).items()}
    return {key: result.provenance for key, result in results.items() if result.provenance is not None}


def reported(result: RequestResult) -> RequestResult:
    """The result as a run reports it: without the fields that are only for the ledger.

    The list of batch ids may be long, and the user knows it.
    """
    only_in_ledger = ("values_digest", "ledger_version", "provenance", "replacement_uri", "replacement_batch_id")
    redaction = result.redaction and result.redaction.model_copy(update={"batch_ids": ()})
    return result.model_copy(update={"batch_ids": (), "redaction": redaction, **dict.fromkeys(only_in_ledger)})


def name_of(key: str) -> str:
    """`namespace/name` of a request key, for messages: without the hash at its end."""
    return key.rpartition("/")[0] or key


def values_digest(contents: Sequence[bytes], key: bytes) -> str:
    """`<id of the key>:<HMAC-SHA256>`; "" if there is no key, or one of fewer than 16 bytes.

    The HMAC of one list is that of its distinct lines, sorted. The HMAC of several lists is that of the HMACs of the lists in
    hexadecimal, one per line, in the order of the conditions.

    The ledger stores the digest and never the values. The key is in a Secret of the cluster and not beside the table. Without the
    key, it is impossible to test guessed values against the digest, even if there are few possible values.

    Args:
        contents: At least one list, as for `lethe.files.values.parse_values`. The order of its lines and blank lines do not
            matter.
    """
    if len(key) < KEY_BYTES_AT_LEAST:
        return ""
    digests = [hmac.new(key, _distinct_lines(content), hashlib.sha256).hexdigest() for content in contents]
    key_id = hashlib.sha256(b"lethe values digest\n" + key).hexdigest()[:8]
    if len(digests) == 1:
        return f"{key_id}:{digests[0]}"
    every = "\n".join(digests).encode()
    return f"{key_id}:{hmac.new(key, every, hashlib.sha256).hexdigest()}"


def _distinct_lines(content: bytes) -> bytes:
    lines = {line.removesuffix(b"\r") for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n")}
    return b"\n".join(sorted(line for line in lines if line.strip()))


def refuse_other_values(request: RestatementRequest, before: RequestResult) -> None:
    """Refuse an Erase or a Redact by records whose key is in the ledger, unless its values are those of that time.

    Args:
        before: The result in the ledger.

    Raises:
        InputError: `ValuesChanged`, if the values differ. `ValuesNotComparable`, if that is unknown.
    """
    if request.rows is None or before.requested_time == request.creation_time:
        return
    now, then = request.rows.values_digest, before.values_digest
    if now and now == then:
        return
    where, name = f"Restatement {request.name}: spec.rows.valuesFrom", "Create a Restatement with another name"
    done = f"the Restatement with this name and spec that was carried out at {before.committed_time:%Y-%m-%dT%H:%MZ}"
    if now and then and now.partition(":")[0] == then.partition(":")[0]:
        raise InputError(
            "ValuesChanged",
            f"{where}: the values differ from those of {done}. Nothing was searched or {request.operation.done}. {name} for "
            "these values.",
        )
    why = (
        "this run has no key to compare them with (the chart's value erase.digestKey)"
        if not now
        else "the ledger has no digest of them"
        if not then
        else "the digest in the ledger was made with another key"
    )
    raise InputError(
        "ValuesNotComparable",
        f"{where}: the values cannot be compared with those of {done}: {why}. Nothing was {request.operation.done}. {name} to "
        "search for them.",
    )


@dataclass(frozen=True)
class PlannedUndo:
    """The change of the ledger that takes back a request, and the result of the Undo."""

    delta: Delta
    result: RequestResult


def plan_undo(ledger: Ledger, request: RestatementRequest, field_id: int, run: str, now: datetime) -> PlannedUndo:
    """Plan to take back the request `request.undoes`, completely or not at all.

    Batches that were promoted before become promoted again. The ledger forgets a batch that was never promoted, so it may be
    promoted later. Rows that another writer added with its batch id become visible again.

    Raises:
        InputError: UnknownRestatement. NotUndoable, for any request but a Revert, and for one that is already undone. For one of
            its batches AlreadyReplaced, AlreadyPurged, HeldByAnother or ErasedSince.
    """
    where = f"Restatement {request.name}: spec.undoes"
    entry = ledger.requests.get(request.undoes)
    if entry is None:
        raise InputError(
            "UnknownRestatement",
            f"{where} names {name_of(request.undoes)}, which was never carried out on this table. Name a "
            "Restatement that has succeeded and whose spec has not changed since.",
        )
    undone_result = recalled(entry)
    _check_undoable(where, undone_result)
    tombstones = get_many(ledger.tombstones, [(field_id, i) for i in undone_result.batch_ids])
    batches = get_many(ledger.batches, undone_result.batch_ids)
    for batch_id in undone_result.batch_ids:
        _check_batch(where, undone_result, batch_id, batches.get(batch_id), tombstones.get((field_id, batch_id)))
    _check_erased(where, ledger, entry, [i for i, b in batches.items() if b.rows is None], field_id)
    promoted = _promoted_again(batches, request, run, now)
    result = RequestResult(
        key=request.key,
        name=request.name,
        succeeded=True,
        committed_time=now,
        operation=request.operation,
        undoes=request.undoes,
        tombstones_removed=len(tombstones),
        rows_restored=sum(b.rows or 0 for b in promoted),
    )
    undone = replace(entry, result={**entry.result, "undoneBy": request.key})
    delta = Delta(
        run,
        remove_tombstones=frozenset(tombstones),
        set_batches=promoted,
        forget_batches=frozenset(i for i, b in batches.items() if b.rows is None),
        set_requests=(undone, remembered(ledger, request, result, run, now)),
        close_erasures=frozenset(e.restatement for e in ledger.erasures if e.restatement == undone_result.key),
    )
    return PlannedUndo(delta, result)


def _check_undoable(where: str, undone: RequestResult) -> None:
    if undone.undone_by:
        raise InputError(
            "NotUndoable",
            f"{where} names {undone.name}, which {name_of(undone.undone_by)} has already undone. Nothing was changed.",
        )
    match undone.operation:
        case Operation.REVERT:
            return
        case Operation.REPLAY:
            text = (
                f"{where} names the Replay {undone.name}. Its batches were replaced, and showing them again "
                "would duplicate rows. To get the old rows back, replay the replacement with a batch that "
                "contains them."
            )
        case Operation.ERASE:
            text = (
                f"{where} names the Erase {undone.name}. An Erase cannot be undone, even if the bytes still "
                "exist. If it was a mistake, load the rows again under a new batch id."
            )
        case Operation.REDACT:
            text = (
                f"{where} names the Redact {undone.name}. A Redact cannot be undone, even if the bytes of the old values still "
                "exist: they are to go. If it was a mistake, replay the rows with a batch that contains the values."
            )
        case Operation.UNDO | Operation.APPROVE | None:
            text = (
                f"{where} names {undone.name}, which is not a Revert. Only a Revert can be undone. To delete "
                "the batches, create a Revert."
            )
        case _:
            assert_never(undone.operation)
    raise InputError("NotUndoable", text)


def _check_batch(
    where: str, undone: RequestResult, batch_id: str, batch: BatchEntry | None, tombstone: Tombstone | None
) -> None:
    if batch is not None and batch.state is BatchState.REPLACED:
        raise InputError(
            "AlreadyReplaced",
            f"{where} names {undone.name}, whose batch {batch_id!r} was replaced by {batch.replaced_by!r}; "
            f"showing it again would duplicate rows. Nothing was undone. Restate {batch.replaced_by!r} "
            "instead.",
        )
    if (
        batch is None
        or tombstone is None
        or META_PURGED_BY in tombstone.meta
        or undone.key not in tombstone.restatements
    ):
        raise InputError(
            "AlreadyPurged",
            f"{where} names {undone.name}. {_how_purged(batch_id, tombstone)}, so the rows cannot be restored. "
            "Nothing was undone. Load the rows again under a new batch id.",
        )
    others = [r for r in tombstone.restatements if r != undone.key]
    if others:
        raise InputError(
            "HeldByAnother",
            f"{where} names {undone.name}, but {name_of(others[0])} has deleted its batch {batch_id!r} as "
            "well, and is not undone. Nothing was undone. Load the rows again under a new batch id.",
        )


def _check_erased(where: str, ledger: Ledger, entry: RequestEntry, to_come: Sequence[str], field_id: int) -> None:
    """Refuse the Undo if it would allow batches to be promoted that a later Erase of records should have searched.

    The Erase could not see them: a reverted batch in the buffer is not promoted, so no Erase waits for it.

    Args:
        to_come: Those of the batches that were never promoted.

    Raises:
        InputError: ErasedSince.
    """
    records = [e.restatement for e in ledger.erasures if e.field_id != field_id] if to_come else []
    erases = get_many(ledger.requests, records).values()
    since = next((e for e in erases if version_of(e) >= version_of(entry)), None)
    if since is None:
        return
    name, erase = name_of(entry.key), name_of(since.key)
    raise InputError(
        "ErasedSince",
        f"{where} names {name}, which reverted batch {to_come[0]!r} before it was promoted. Restatement "
        f"{erase} has erased or redacted records since then, and did not search the files that the buffer may hold under "
        "that id. Nothing was undone. Write these rows to the buffer under a new batch id.",
    )


def _how_purged(batch_id: str, tombstone: Tombstone | None) -> str:
    why = tombstone.meta.get(META_PURGED_BY) if tombstone is not None else None
    if why == PURGED_AT_ONCE:
        return (
            f"Data files that held only its batch {batch_id!r} were removed from the table in the same commit "
            "(spec.deletes)"
        )
    if why == PURGED_BESIDE:
        return f"Other writers or Restatements have also deleted rows of its batch {batch_id!r}"
    return f"A vacuum has purged its batch {batch_id!r}, completely or partly"


def _promoted_again(
    batches: Mapping[str, BatchEntry], request: RestatementRequest, run: str, now: datetime
) -> tuple[BatchEntry, ...]:
    """The new entries of the batches that were promoted before the Revert."""
    return tuple(
        replace(b, state=BatchState.PROMOTED, run=run, time=now, restatement=request.key, evict_by=None)
        for b in batches.values()
        if b.rows is not None
    )


@dataclass(frozen=True)
class PlanScope:
    """The run and the table for which requests are planned."""

    run: str
    """The id of the run."""
    now: datetime
    field_id: int
    """Iceberg field id of the batch column."""
    in_files: Collection[str] = ()
    """Batch ids of the requests that data files might contain by their bounds; their rows may be older than the ledger."""
    absent: Collection[str] = ()
    """Batch ids that are neither in the data files nor in the buffer, as far as the caller has looked."""
    deliveries: Deliveries = NONE_DELIVERED
    """The batches of the runs that requests name. `known` is of the ledger on which they are planned."""


@dataclass(frozen=True)
class ReplacementRows:
    """The rows of a replacement, written and not committed yet."""

    rows: int
    bytes: int
    partitions: tuple[str, ...] | None = None
    """The partitions that contain the rows; None: any."""
    reference: str | None = None
    """The id of the run of another program that wrote them, if it has one."""


@dataclass(frozen=True)
class ErasedRows:
    """The rows that a run found for an Erase by records, by the keys of a replacement, or for a Redact."""

    rows: int
    field_id: int
    """Iceberg field id of the column with the values, of the first key column, or of the first redacted column. Never of the
    batch column: its erasure would be that of whole batches.
    """


@dataclass(frozen=True)
class AlreadyDone:
    """The ledger contains this request."""

    result: RequestResult


@dataclass(frozen=True)
class Restated:
    """Commit `delta`."""

    delta: Delta
    result: RequestResult
    add_replacement: bool = False
    """The commit must also add the replacement's files."""
    erase_rows: bool = False
    """The commit must also remove or redact rows in data files."""


def check_request(request: RestatementRequest) -> None:
    """Check the fields of a request, independently of a ledger.

    Raises:
        InputError: The user has to change something.
    """
    match request.operation:
        case Operation.REPLAY:
            takes_replacement, takes_undoes, takes_rows = True, False, False
        case Operation.REVERT | Operation.APPROVE:
            takes_replacement, takes_undoes, takes_rows = False, False, False
        case Operation.ERASE | Operation.REDACT:
            takes_replacement, takes_undoes, takes_rows = False, False, True
        case Operation.UNDO:
            takes_replacement, takes_undoes, takes_rows = False, True, False
        case _:
            assert_never(request.operation)
    if takes_replacement != (request.replacement is not None):
        raise InputError(
            "InvalidSpec",
            f"Restatement {request.name}: spec.operation Replay requires spec.replacement, and no other "
            "operation accepts it.",
        )
    if takes_undoes != bool(request.undoes):
        raise InputError(
            "InvalidSpec",
            f"Restatement {request.name}: spec.operation Undo requires spec.undoes, and no other operation accepts it.",
        )
    if takes_undoes and request.batch_ids:
        raise InputError(
            "InvalidSpec",
            f"Restatement {request.name}: spec.operation Undo does not accept spec.batchIds, because it "
            "undoes a Restatement as a whole.",
        )
    if request.rows is not None and not takes_rows:
        raise InputError(
            "InvalidSpec", f"Restatement {request.name}: only spec.operation Erase and Redact accept spec.rows."
        )
    if takes_rows and bool(request.batch_ids) == (request.rows is not None):
        raise InputError(
            "InvalidSpec",
            f"Restatement {request.name}: spec.operation {request.operation} requires either spec.batchIds or spec.rows.",
        )
    if (request.operation is Operation.REDACT) != (request.redact is not None):
        raise InputError(
            "InvalidSpec",
            f"Restatement {request.name}: spec.operation Redact requires spec.redact, and no other operation accepts it.",
        )
    if request.replacement is not None:
        _check_keys(request, request.replacement)
    if request.replacement and request.replacement.batch_id in request.batch_ids:
        raise InputError(
            "ReplacementIsReplaced",
            f"Restatement {request.name}: spec.replacement.batchId {request.replacement.batch_id!r} is among "
            "the batches to replace. Give the replacement a batch id that was never used.",
        )


def _check_keys(request: RestatementRequest, replacement: Replacement) -> None:
    """Require either batch ids or key columns that fit the replacement.

    Raises:
        InputError: `InvalidSpec`.
    """
    where, keys, op = f"Restatement {request.name}: spec.replacement", replacement.key_columns, replacement.op_column
    if not keys and not request.batch_ids:
        raise InputError(
            "InvalidSpec",
            f"Restatement {request.name}: spec.operation Replay requires spec.batchIds or spec.replacement.keyColumns.",
        )
    if op and not keys:
        raise InputError("InvalidSpec", f"{where}.opColumn requires spec.replacement.keyColumns, which is empty.")
    if len(set(keys)) < len(keys):
        raise InputError("InvalidSpec", f"{where}.keyColumns names a column twice.")
    if op in keys:
        raise InputError(
            "InvalidSpec", f"{where}.opColumn {op} is also in spec.replacement.keyColumns. Use another column."
        )


def plan_restatement(
    ledger: Ledger,
    request: RestatementRequest,
    scope: PlanScope,
    replacement: ReplacementRows | None = None,
    erased: ErasedRows | None = None,
) -> AlreadyDone | Restated:
    """Plan one request on this ledger; on another ledger, plan again.

    Args:
        replacement: The written rows of a Replay; None: a dry run, or no Replay.
        erased: The rows found for an Erase by records, by the keys of the replacement, or for a Redact; None: a dry run, or no
            such request.

    Raises:
        InputError: AlreadyReplaced, ReplacementAlreadyPromoted, UnknownBatches, NotHeld, ErasedSince, and those of
            `check_request`, `plan_undo` and `refuse_other_values`.
    """
    run, now, field_id = scope.run, scope.now, scope.field_id
    done = ledger.requests.get(request.key)
    if done is not None:
        refuse_other_values(request, recalled(done))
        return AlreadyDone(reported(recalled(done)))
    check_request(request)
    match request.operation:
        case Operation.UNDO:
            undone = plan_undo(ledger, request, field_id, run, now)
            return Restated(undone.delta, undone.result)
        case Operation.APPROVE:
            return _approve(ledger, request, field_id, run, now)
        case Operation.ERASE if request.rows is not None:
            return _change_rows(ledger, request, erased or ErasedRows(0, field_id), run, now)
        case Operation.REDACT:
            refuse_absent(ledger, request, scope.in_files)
            return _change_rows(ledger, request, erased or ErasedRows(0, field_id), run, now)
        case Operation.ERASE:
            state = BatchState.ERASED
        case Operation.REVERT:
            state = BatchState.REVERTED
        case Operation.REPLAY:
            state = BatchState.REPLACED
        case _:
            assert_never(request.operation)
    ids = tuple(dict.fromkeys(request.batch_ids))
    refuse_unknown(ledger, request, scope.absent)
    known_batches = get_many(ledger.batches, ids)
    active = get_many(ledger.tombstones, [(field_id, i) for i in ids])
    add_replacement = brought_back = False
    if request.replacement is not None:
        there = ledger.batches.get(request.replacement.batch_id)
        brought_back = _is_of(there, request)
        _refuse_doubling(known_batches, None if brought_back else there, request)
        # A replacement whose id was restated before is not added, but the tombstones of this request are.
        add_replacement = there is None or not there.blocks_promotion
    evict_by = _due(request, now)
    replaced_by = request.replacement.batch_id if request.replacement else None
    entries = [
        _taken_back(
            known_batches.get(i),
            BatchEntry(
                i,
                state,
                run,
                now,
                restatement=request.key,
                replaced_by=replaced_by,
                evict_by=evict_by,
                reference=request.reference or None,
            ),
        )
        for i in ids
    ]
    unknown = tuple(i for i in ids if i not in known_batches and i not in scope.in_files)
    tombstones = tuple(
        Tombstone(i, field_id, now, evict_by, _meta(known_batches.get(i), (field_id, i) in active, request, run))
        for i in ids
    )
    if add_replacement and request.replacement is not None and replacement is not None:
        entries.append(
            BatchEntry(
                request.replacement.batch_id,
                BatchState.PROMOTED,
                run,
                now,
                restatement=request.key,
                rows=replacement.rows,
                bytes=replacement.bytes,
                partitions=replacement.partitions,
                reference=replacement.reference,
            )
        )
    # If the replacement is not added, its keys delete no rows either.
    by_keys = add_replacement and request.by_keys
    result = RequestResult(
        key=request.key,
        name=request.name,
        succeeded=True,
        operation=request.operation,
        committed_time=now,
        tombstones_added=sum((field_id, i) not in active for i in ids),
        rows_deleted=_rows_hidden(b for b in known_batches.values() if (field_id, b.id) not in active),
        rows_added=replacement.rows if replacement and add_replacement else 0,
        rows_erased=erased.rows if erased and by_keys else 0,
        unknown_batch_ids_count=len(unknown),
        # Lines of a list by reference are not shown: the reference may name the wrong file by mistake.
        unknown_batch_ids=() if request.batch_ids_sha256 else unknown[:LISTED_AT_MOST],
        batch_ids_count=len(ids) if request.batch_ids_sha256 or request.reference else None,
        batch_ids_sha256=request.batch_ids_sha256 or None,
        already_deleted_batch_ids_count=sum(
            b.blocks_promotion and b.state is not BatchState.PROMOTED for b in known_batches.values()
        ),
        replacement_withheld=(request.replacement is not None and not add_replacement and not brought_back) or None,
    )
    entry = remembered(ledger, request, result, run, now)
    owed = request.operation.always_evicts or (evict_by is not None and (ids or by_keys))
    named_by = erased.field_id if by_keys and erased is not None else field_id
    obligations = (Erasure(request.key, named_by, evict_by),) if owed else ()
    delta = Delta(
        run, add_tombstones=tombstones, set_batches=tuple(entries), set_requests=(entry,), set_erasures=obligations
    )
    return Restated(delta, result, add_replacement, erase_rows=by_keys)


def _approve(ledger: Ledger, request: RestatementRequest, field_id: int, run: str, now: datetime) -> Restated:
    """Plan to let the next consolidation promote held batches, with the objects that were checked.

    Raises:
        InputError: `NotHeld`, `ErasedSince`.
    """
    ids = tuple(dict.fromkeys(request.batch_ids))
    known = get_many(ledger.batches, ids)
    for i in ids:
        if i not in known or known[i].state is not BatchState.HELD:
            state = f"is {known[i].state}" if i in known else "is not in the ledger"
            raise InputError(
                "NotHeld",
                f"Restatement {request.name}: batch {i!r} {state}. Only a batch that a check of the Dataset holds can be "
                "approved. Nothing was approved.",
            )
    _check_not_erased(request.name, ledger, known.values(), field_id)
    result = RequestResult(
        key=request.key,
        name=request.name,
        succeeded=True,
        operation=request.operation,
        committed_time=now,
        batch_ids_count=len(ids) if request.batch_ids_sha256 or request.reference else None,
        batch_ids_sha256=request.batch_ids_sha256 or None,
    )
    approved = tuple(replace(known[i], run=run, time=now, restatement=request.key) for i in ids)
    return Restated(
        Delta(run, set_batches=approved, set_requests=(remembered(ledger, request, result, run, now),)), result
    )


def _check_not_erased(name: str, ledger: Ledger, held: Iterable[BatchEntry], field_id: int) -> None:
    """Refuse batches that an Erase of records should have searched: no Erase waits for a held batch.

    Raises:
        InputError: `ErasedSince`.
    """
    records = [e.restatement for e in ledger.erasures if e.field_id != field_id]
    for erase in get_many(ledger.requests, records).values():
        for batch in held:
            if erase.time >= batch.time - CLOCKS_DIFFER:
                raise InputError(
                    "ErasedSince",
                    f"Restatement {name}: batch {batch.id!r} is held since {batch.time:%Y-%m-%dT%H:%MZ}. Restatement "
                    f"{name_of(erase.key)} has erased or redacted records since then, and did not search its files. Nothing "
                    "was approved. Write its rows to the buffer under a new batch id, without these records or values.",
                )


def _change_rows(ledger: Ledger, request: RestatementRequest, found: ErasedRows, run: str, now: datetime) -> Restated:
    """Plan an Erase by records, or a Redact. It adds no tombstones and changes no batch: the commit itself changes the rows."""
    result = RequestResult(
        key=request.key,
        name=request.name,
        succeeded=True,
        operation=request.operation,
        committed_time=now,
        rows_erased=found.rows if request.redact is None else 0,
        rows_redacted=found.rows if request.redact is not None else 0,
        redaction=_recorded(request),
        batch_ids_count=len(dict.fromkeys(request.batch_ids)) if request.batch_ids_sha256 else None,
        batch_ids_sha256=request.batch_ids_sha256 or None,
        requested_time=request.creation_time,
        values_digest=(request.rows.values_digest if request.rows is not None else None) or None,
    )
    delta = Delta(
        run,
        set_requests=(remembered(ledger, request, result, run, now),),
        set_erasures=(Erasure(request.key, found.field_id, _due(request, now)),),
    )
    return Restated(delta, result, erase_rows=True)


def _recorded(request: RestatementRequest) -> RecordedRedaction | None:
    """What the ledger and the record say about a Redact: names, and no values."""
    if request.redact is None:
        return None
    columns = tuple(RedactedColumn(column=c.column, method=c.method) for c in request.redact.columns)
    return RecordedRedaction(
        columns=columns, hash_key=request.redact.hash_key, batch_ids=tuple(dict.fromkeys(request.batch_ids))
    )


def _due(request: RestatementRequest, now: datetime) -> datetime | None:
    """When the rows must be deleted from storage; None: there is no deadline."""
    return now + timedelta(seconds=request.evict_by_seconds) if request.evict_by_seconds is not None else None


def _meta(entry: BatchEntry | None, active: bool, request: RestatementRequest, run: str) -> dict[str, str]:
    meta = {META_RESTATEMENTS: request.key, META_RUN: run}
    if request.reason:
        meta[META_REASON] = request.reason
    if entry is not None and entry.partitions is not None:
        meta[META_PARTITIONS] = "\n".join(entry.partitions)
    if entry is not None and entry.blocks_promotion and entry.state is not BatchState.PROMOTED and not active:
        # The batch was deleted before, and its tombstone was removed: its rows are purged, and an Undo cannot restore them.
        meta[META_PURGED_BY] = PURGED_BEFORE
    return meta


def _is_of(there: BatchEntry | None, request: RestatementRequest) -> bool:
    """Whether this same request has added the replacement, although the ledger does not contain it.

    Another tool copied the files of its commit after a rollback. Never true with key columns, because its own rows have
    the same keys as older rows.
    """
    return (
        there is not None
        and there.state is BatchState.PROMOTED
        and there.restatement == request.key
        and not request.by_keys
    )


def _refuse_doubling(
    restated: Mapping[str, BatchEntry], replacement: BatchEntry | None, request: RestatementRequest
) -> None:
    """Refuse a Replay that would add rows twice.

    Args:
        restated: Entries of the request's batches, by id.
        replacement: The entry of its replacement; None: there is none, or this request made it.

    Raises:
        InputError: AlreadyReplaced, ReplacementAlreadyPromoted.
    """
    for i, entry in restated.items():
        if entry.state is BatchState.REPLACED:
            raise InputError(
                "AlreadyReplaced",
                f"Restatement {request.name}: batch {i!r} was already replaced by {entry.replaced_by!r}; a second "
                f"replacement would double its rows. Nothing was added. Replay {entry.replaced_by!r} instead.",
            )
    if replacement is not None and replacement.state is BatchState.PROMOTED:
        raise InputError(
            "ReplacementAlreadyPromoted",
            f"Restatement {request.name}: spec.replacement.batchId {replacement.id!r} is already in the table. "
            "Give the replacement an id that was never used.",
        )


def _taken_back(before: BatchEntry | None, entry: BatchEntry) -> BatchEntry:
    """The entry of a batch after this request. The ledger also stores ids that it did not know, which blocks their promotion.

    Args:
        before: The entry before; None: the ledger does not know the batch.
        entry: The entry that the request gives to an unknown batch.
    """
    if before is None:
        return entry
    deadlines = [d for d in (before.evict_by, entry.evict_by) if d is not None]
    evict_by = min(deadlines, default=None)
    # A replaced batch stays replaced by the same batch. An Erase is permanent, but a Revert can be undone.
    is_erased = before.state is BatchState.ERASED and entry.state is BatchState.REVERTED
    if before.state is BatchState.REPLACED or is_erased:
        return replace(before, evict_by=evict_by)
    # A refused or held batch was not promoted. Without its objects in the entry, retention does not treat them as if it was.
    is_promoted = before.blocks_promotion
    return replace(
        before,
        objects=before.objects if is_promoted else (),
        refusal=before.refusal if is_promoted else None,
        state=entry.state,
        run=entry.run,
        time=entry.time,
        restatement=entry.restatement,
        replaced_by=entry.replaced_by,
        evict_by=evict_by,
    )


def _rows_hidden(batches: Iterable[BatchEntry]) -> int:
    """The number of rows that this request hides: those of promoted batches."""
    return sum(b.rows or 0 for b in batches if b.state is BatchState.PROMOTED)
