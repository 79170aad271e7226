"""What the API says of a Restatement, from its spec and status. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final

from lethe.contract.restatement import ColumnRedactionSpec, ReplacementSpec, RestatementSpec
from lethe.contract.schema import ApiModel, SameAs
from lethe.contract.status import (
    ErasureStatus,
    RestatementPlan,
    RestatementResult,
    RestatementStatus,
    SubjectProgress,
    parse_status,
)
from pydantic import Field

from lethe_gateway.freshness import SnapshotIdText, VacuumSnapshotIdText
from lethe_gateway.resources.views import ConditionView, conditions_of, part, without

SHOWN_IDS: Final = 1000


class ReplacementView(ApiModel):
    """What replaces the batches of a Replay."""

    batch_id: Annotated[str | None, SameAs(ReplacementSpec)] = None
    uri: Annotated[str | None, SameAs(ReplacementSpec)] = None


class ColumnRedactionView(ApiModel):
    """What a Redact writes into one column."""

    column: Annotated[str | None, SameAs(ColumnRedactionSpec)] = None
    method: Annotated[str | None, SameAs(ColumnRedactionSpec)] = None


@without("batch_ids", "unknown_batch_ids")
class RestatementPlanView(RestatementPlan):
    """What a dry run found."""


@without("already_deleted_batch_ids_count")
class RestatementResultView(RestatementResult, SnapshotIdText):
    """What the commit did."""


class ErasureView(ErasureStatus, VacuumSnapshotIdText):
    """Whether the bytes are gone."""

    blocked_by: tuple[str, ...] = Field(default_factory=tuple)


class RestatementSummary(ApiModel):
    """A Restatement in a list."""

    namespace: str
    """The Kubernetes namespace."""
    name: str
    """The name of the Restatement."""
    dataset: str
    """The Dataset that it changes; empty: it erases or redacts a subject in several, see `subject`."""
    operation: Annotated[str, SameAs(RestatementSpec)]
    created_time: datetime | None = None
    """When the Restatement was created."""
    phase: Annotated[str | None, SameAs(RestatementStatus)] = None
    progress: Annotated[str | None, SameAs(RestatementStatus)] = None
    queue_position: Annotated[int | None, SameAs(RestatementStatus)] = None
    reason: Annotated[str | None, SameAs(RestatementSpec)] = None
    ticket: Annotated[str | None, SameAs(RestatementSpec)] = None
    dry_run: Annotated[bool, SameAs(RestatementSpec)] = False
    batch_ids_count: int | None = None
    """Batches that its spec lists. Absent: it refers to a list."""
    result: RestatementResultView | None = None
    erasure: ErasureView | None = None
    subject: SubjectProgress | None = None
    """How far the erasure of a subject is. Only the answer about one Restatement lists its Datasets."""


class RestatementView(RestatementSummary):
    """One Restatement."""

    identities: tuple[str, ...] = ()
    """The identities by which an Erase or a Redact finds the rows of its subject."""

    uid: str
    """The UID of the resource."""
    batch_ids: tuple[str, ...] = Field(default_factory=tuple)
    """The first 1,000 batches that its spec lists."""
    replacement: ReplacementView | None = None
    undoes: str | None = None
    """The Restatement that an Undo takes back."""
    selecting_columns: tuple[str, ...] = ()
    """The columns whose values name the records that an Erase deletes or a Redact changes."""
    redacted_columns: tuple[ColumnRedactionView, ...] = Field(default_factory=tuple)
    """What a Redact writes into which columns."""
    plan: RestatementPlanView | None = None
    conditions: tuple[ConditionView, ...] = Field(default_factory=tuple)
    """The conditions of the Restatement."""


def summary_of(resource: Mapping[str, Any]) -> RestatementSummary:
    """The short form of a Restatement, for lists. What its status does not say is absent."""
    return parse_status(RestatementSummary, _summary(resource))


def restatement_of(resource: Mapping[str, Any]) -> RestatementView:
    """The long form of a Restatement, with its conditions, and with at most SHOWN_IDS of its batch ids."""
    spec = part(resource, "spec")
    return parse_status(
        RestatementView,
        {
            **_summary(resource),
            "uid": resource["metadata"].get("uid", ""),
            "batchIds": list(spec.get("batchIds") or ())[:SHOWN_IDS],
            "replacement": spec.get("replacement"),
            "undoes": part(spec, "undoes").get("name"),
            "selectingColumns": _selecting_columns(part(spec, "rows")),
            "redactedColumns": [
                {"column": c.get("column"), "method": c.get("method")}
                for c in part(spec, "redact").get("columns") or ()
            ],
            "subject": part(resource, "status").get("subject"),
            "identities": _identities(part(spec, "subject")),
            "plan": part(resource, "status").get("plan"),
            "conditions": conditions_of(resource),
        },
    )


def _selecting_columns(rows: Mapping[str, Any]) -> list[str]:
    conditions = (rows, *(rows.get("anyOf") or ()))
    return list(dict.fromkeys(str(c["column"]) for c in conditions if c.get("column")))


def _identities(subject: Mapping[str, Any]) -> list[str]:
    return [str(i["identity"]) for i in (subject, *(subject.get("anyOf") or ())) if i.get("identity")]


def dataset_name_of(resource: Mapping[str, Any]) -> str:
    """The name in `spec.datasetRef`; "": the Restatement names no Dataset."""
    return str(part(resource, "spec", "datasetRef").get("name", ""))


def _summary(resource: Mapping[str, Any]) -> dict[str, Any]:
    metadata, spec, status = (part(resource, name) for name in ("metadata", "spec", "status"))
    listed = spec.get("batchIds")
    return {
        **{name: status.get(name) for name in ("phase", "progress", "queuePosition", "result", "erasure")},
        "namespace": metadata.get("namespace", ""),
        "name": metadata.get("name", ""),
        "dataset": dataset_name_of(resource),
        "operation": str(spec.get("operation", "")),
        "createdTime": metadata.get("creationTimestamp"),
        "reason": spec.get("reason") or None,
        "ticket": spec.get("ticket") or None,
        "dryRun": bool(spec.get("dryRun")),
        "batchIdsCount": len(listed) if listed else None,
        "subject": {k: v for k, v in part(status, "subject").items() if k != "datasets"} or None,
    }
