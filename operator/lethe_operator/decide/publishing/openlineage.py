"""A commit of the ledger as a RunEvent of OpenLineage (spec 2-0-2). Pure."""

import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from lethe.contract.kind import RunFamily
from lethe.version import version

from lethe_operator.decide.publishing.event_types import BatchPromoted, EventData, RestatementCommitted

_SPEC: Final = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"
_FACETS: Final = "https://openlineage.io/spec/facets"
# A URI that names the producer; it need not be reachable.
PRODUCER: Final = "https://lethe.dev/operator"
_RUNS: Final = uuid.UUID("5f0a3c52-7d2b-4c3e-8a64-2f6f0c1d9b7e")  # the namespace of ids that are not made of 32 digits


@dataclass(frozen=True)
class LineageCommit:
    """A commit of a run of Lethe."""

    namespace: str  # of the job, in OpenLineage
    kube_namespace: str  # of the Dataset
    dataset: str  # name of the Dataset
    run_id: str
    family: RunFamily
    unfinished: bool  # the run has more to commit
    time: datetime  # UTC
    snapshot_id: int
    table: str  # namespace.table
    catalog: str
    location: str  # URI of the table
    buffer: str  # URI


def run_event(commit: LineageCommit, contents: Iterable[EventData]) -> str:
    """The event as JSON.

    Args:
        contents: Of the status events of the same commit.
    """
    rows, size = _added(contents)
    table = {**_named(commit.location), "facets": {"symlinks": _symlinks(commit)}}
    output: dict[str, Any] = {**table, "facets": {**table["facets"], "version": _version(commit)}}
    if rows is not None:
        statistics = {"rowCount": rows} | ({"size": size} if size is not None else {})
        facet = _facet("1-0-2", "OutputStatisticsOutputDatasetFacet", **statistics)
        output["outputFacets"] = {"outputStatistics": facet}
    job_type = _facet(
        "2-0-4", "JobTypeJobFacet", processingType="BATCH", integration="LETHE", jobType=commit.family.upper()
    )
    found = {
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
    return json.dumps(found, ensure_ascii=False, separators=(",", ":"))


def run_uuid(run_id: str) -> str:
    """A run id has 32 hexadecimal digits, as a UUID does."""
    try:
        return str(uuid.UUID(hex=run_id))
    except ValueError:
        return str(uuid.uuid5(_RUNS, run_id))


def _added(contents: Iterable[EventData]) -> tuple[int | None, int | None]:
    """Rows and bytes that the commit added; None: none, or unknown."""
    rows: int | None = None
    size: int | None = None
    for data in contents:
        match data:
            case BatchPromoted(rows=int() as number) if data.restatement is None:
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
