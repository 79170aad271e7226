"""What two versions of a ledger say differently, as the content of events, and as RunEvents of OpenLineage (spec 2-0-2). Pure.

Same ledgers, same events in the same order: the position of an event in this order is part of its id.
"""

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar, assert_never

from lethe.base.errors import Verdict
from lethe.contract.result import RequestResult
from lethe.contract.run import Provenance
from lethe.contract.settings import RunFamily
from lethe.ledger.ledger import BatchEntry, BatchState, RequestEntry
from lethe.version import version

from lethe_operator.publish.events import (
    BatchData,
    BatchErased,
    BatchForgotten,
    BatchHeld,
    BatchPromoted,
    BatchRefused,
    BatchReplaced,
    BatchRestored,
    BatchReverted,
    ErasureVerified,
    EventData,
    RestatementCommitted,
    TombstonesPurged,
)

_SPEC: Final = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_FACETS: Final = "https://openlineage.io/spec/facets"
# A URI that names the producer; it need not be reachable.
PRODUCER: Final = "https://lethe.dev/operator"
_RUNS: Final = uuid.UUID("5f0a3c52-7d2b-4c3e-8a64-2f6f0c1d9b7e")  # the namespace of ids that are not made of 32 digits


@dataclass(frozen=True)
class LineageCommit:
    """A commit of a run of Lethe."""

    namespace: str
    """Of the job, in OpenLineage."""
    kube_namespace: str
    """Of the Dataset."""
    dataset: str
    """Name of the Dataset."""
    run_id: str
    family: RunFamily
    unfinished: bool
    """The run has more to commit."""
    time: datetime
    """UTC."""
    snapshot_id: int
    table: str
    """`namespace.table`."""
    catalog: str
    location: str
    """URI of the table."""
    buffer: str
    """URI."""


def run_event(commit: LineageCommit, contents: Iterable[EventData]) -> str:
    """The event as JSON.

    Args:
        contents: Of the status events of the same commit.
    """
    rows, size = _added(contents, commit.family)
    table = {**_named(commit.location), "facets": {"symlinks": _symlinks(commit)}}
    output: dict[str, Any] = {**table, "facets": {**table["facets"], "version": _version(commit)}}
    if rows is not None:
        statistics = {"rowCount": rows} | ({"size": size} if size is not None else {})
        facet = _facet("1-0-2", "OutputStatisticsOutputDatasetFacet", **statistics)
        output["outputFacets"] = {"outputStatistics": facet}
    job_type = _facet(
        "2-0-4", "JobTypeJobFacet", processingType="BATCH", integration="LETHE", jobType=commit.family.upper()
    )
    event = {
        "eventTime": commit.time.astimezone(UTC).isoformat(),
        "eventType": "RUNNING" if commit.unfinished else "COMPLETE",
        "producer": f"{PRODUCER}/{version()}",
        "schemaURL": _SPEC,
        "run": {"runId": run_uuid(commit.run_id), "facets": {}},
        "job": {
            "namespace": commit.namespace,
            "name": f"{commit.kube_namespace}.{commit.dataset}.{commit.family.lower()}",
            "facets": {"jobType": job_type},
        },
        "inputs": [_named(commit.buffer) if commit.family is RunFamily.CONSOLIDATION else table],
        "outputs": [output],
    }
    return json.dumps(event, ensure_ascii=False, separators=(",", ":"))


def run_uuid(run_id: str) -> str:
    """A run id has 32 hexadecimal digits, as a UUID does."""
    try:
        return str(uuid.UUID(hex=run_id))
    except ValueError:
        return str(uuid.uuid5(_RUNS, run_id))


def _added(contents: Iterable[EventData], family: RunFamily) -> tuple[int | None, int | None]:
    """Rows and bytes that the commit added; None: none, or unknown.

    The batch of a Replay counts with its request. That of a consolidation counts itself, also if a request has approved it.
    """
    rows: int | None = None
    size: int | None = None
    for data in contents:
        match data:
            case BatchPromoted(rows=int() as number) if data.restatement is None or family is RunFamily.CONSOLIDATION:
                rows, size = (rows or 0) + number, (size or 0) + (data.bytes or 0)
            case RestatementCommitted(rows_added=number) if number:
                rows = (rows or 0) + number
            case _:
                pass
    return rows, size


def _named(uri: str) -> dict[str, Any]:
    """A place in a store, as OpenLineage names datasets: `s3://bucket` and the key; `file` and the path."""
    scheme, separator, rest = uri.partition("://")
    if not separator or scheme == "file":
        return {"namespace": "file", "name": f"/{(rest or uri).strip('/').removeprefix('file:').strip('/')}"}
    bucket, _, key = rest.partition("/")
    return {"namespace": f"{scheme.replace('s3a', 's3')}://{bucket}", "name": key.strip("/") or "/"}


def _symlinks(commit: LineageCommit) -> dict[str, Any]:
    identifiers = [{"namespace": commit.catalog, "name": commit.table, "type": "TABLE"}]
    return _facet("1-0-1", "SymlinksDatasetFacet", identifiers=identifiers)


def _version(commit: LineageCommit) -> dict[str, Any]:
    return _facet("1-0-1", "DatasetVersionDatasetFacet", datasetVersion=str(commit.snapshot_id))


def _facet(of: str, name: str, **fields: Any) -> dict[str, Any]:
    """A facet with its schema. Args: of: the version of the schema."""
    return {
        "_producer": f"{PRODUCER}/{version()}",
        "_schemaURL": f"{_FACETS}/{of}/{name}.json#/$defs/{name}",
        **fields,
    }


MESSAGE_AT_MOST: Final = 2000  # characters of a refusal
# What an event may need besides its list, in bytes: its attributes, and the names of the table and the run.
ENVELOPE_BYTES: Final = 4096

T = TypeVar("T")

# The content that all events of a version share, as arguments of `EventData`, except for the run.
Common = Mapping[str, Any]


@dataclass(frozen=True)
class EntryChange(Generic[T]):
    """An entry in two versions of a ledger."""

    before: T | None
    """None: it is not there."""
    after: T | None
    """None: it is not there."""


def of_batch(entry: EntryChange[BatchEntry], common: Common) -> BatchData | None:
    """The event about a batch; None: it has none, because nothing that events show has changed."""
    before, after = entry.before, entry.after
    if after is None:
        if before is None:
            return None
        return BatchForgotten(batch_id=before.id, previous_state=before.state, run_id="", **common)
    if before is not None and _shown(before) == _shown(after):
        return None
    whole: dict[str, Any] = {
        **common,
        "run_id": after.run,
        "batch_id": after.id,
        "state_time": after.time,
        "rows": after.rows,
        "bytes": after.bytes,
        "restatement": after.restatement,
    }
    match after.state:
        case BatchState.PROMOTED:
            if before is not None and before.blocks_promotion and before.state is not BatchState.PROMOTED:
                return BatchRestored(**whole)
            return BatchPromoted(promoted_by_snapshot_id=after.snapshot_id, **whole)
        case BatchState.REFUSED | BatchState.HELD:
            refusal = after.refusal or Verdict("", "")
            event = BatchRefused if after.state is BatchState.REFUSED else BatchHeld
            return event(reason=refusal.reason, message=refusal.message[:MESSAGE_AT_MOST], **whole)
        case BatchState.REVERTED:
            return BatchReverted(evict_by=after.evict_by, **whole)
        case BatchState.REPLACED:
            return BatchReplaced(replaced_by=after.replaced_by or "", evict_by=after.evict_by, **whole)
        case BatchState.ERASED:
            return BatchErased(evict_by=after.evict_by, **whole)
        case _:
            assert_never(after.state)


def _shown(entry: BatchEntry) -> tuple[object, ...]:
    """What makes another event of a batch."""
    match entry.state:
        case BatchState.PROMOTED:
            return (entry.state, entry.snapshot_id)
        case BatchState.REFUSED | BatchState.HELD:
            return (entry.state, entry.refusal)
        case BatchState.REVERTED | BatchState.REPLACED | BatchState.ERASED:
            return (entry.state, entry.restatement, entry.replaced_by, entry.evict_by)
        case _:
            assert_never(entry.state)


def of_request(entry: EntryChange[RequestEntry], common: Common) -> Iterator[EventData]:
    """The events about a restatement: that it was committed, that its erasure is verified."""
    if entry.after is None:
        return
    now = _result(entry.after)
    then = _result(entry.before) if entry.before is not None else None
    if then is None and now.succeeded:
        provenance = now.provenance or Provenance()
        yield RestatementCommitted(
            restatement=now.key,
            name=now.name,
            operation=now.operation,
            undoes=now.undoes,
            rows_deleted=now.rows_deleted,
            rows_added=now.rows_added,
            rows_erased=now.rows_erased,
            rows_redacted=now.rows_redacted,
            rows_restored=now.rows_restored,
            reason=provenance.reason or None,
            ticket=provenance.ticket or None,
            requested_by=provenance.requested_by or None,
            run_id=entry.after.run,
            **common,
        )
    closed, was = now.erasure, then.erasure if then is not None else None
    if closed is not None and closed.verified_time is not None and (was is None or was.verified_time is None):
        yield ErasureVerified(
            restatement=now.key,
            verified_time=closed.verified_time,
            record=closed.record,
            record_sha256=closed.record_sha256,
            **common,
        )


def _result(entry: RequestEntry) -> RequestResult:
    """Without its batch ids, of which there may be hundreds of thousands."""
    return RequestResult.model_validate({k: v for k, v in entry.result.items() if k != "batchIds"})


def purged_ids(removed: Iterable[str], batches: Mapping[str, BatchEntry]) -> list[str]:
    """The batches that a vacuum has purged, sorted: their tombstone is gone, and they are still deleted.

    Args:
        removed: The ids of the tombstones that are gone.
        batches: The entries of these batches in the later version.
    """
    return sorted(i for i in set(removed) if (entry := batches.get(i)) is not None and _is_deleted(entry))


def _is_deleted(entry: BatchEntry) -> bool:
    match entry.state:
        case BatchState.REVERTED | BatchState.REPLACED | BatchState.ERASED:
            return True
        case BatchState.PROMOTED | BatchState.REFUSED | BatchState.HELD:
            return False
        case _:
            assert_never(entry.state)


def of_purged(ids: Sequence[str], common: Common, run: str, max_event_bytes: int) -> Iterator[TombstonesPurged]:
    """The events about purged batches, each within the size."""
    pieces = list(pieces_of(ids, max_event_bytes - ENVELOPE_BYTES))
    for number, piece in enumerate(pieces, start=1):
        yield TombstonesPurged(batch_ids=piece, part=number, parts=len(pieces), run_id=run, **common)


def pieces_of(ids: Iterable[str], at_most_bytes: int) -> Iterator[tuple[str, ...]]:
    """Divide a list so that each piece, as JSON, has at most so many bytes, or a single entry."""
    piece: list[str] = []
    size = 0
    for id in ids:
        own = len(json.dumps(id, ensure_ascii=False).encode()) + 1  # the comma
        if piece and size + own > at_most_bytes:
            yield tuple(piece)
            piece, size = [], 0
        piece.append(id)
        size += own
    if piece:
        yield tuple(piece)
