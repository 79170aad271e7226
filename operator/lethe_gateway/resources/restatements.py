"""What the API says of a Restatement, from its spec and status. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from pydantic import Field

from lethe_gateway.problems import Document
from lethe_gateway.resources.conditions import Condition, conditions_of

SHOWN_IDS: Final = 1000


class Replacement(Document):
    """What replaces the batches of a Replay."""

    batch_id: str | None = Field(default=None, description="The id of the new batch.")
    uri: str | None = Field(default=None, description="The folder of its files.")


class RestatementPlan(Document):
    """What a dry run found."""

    batches: int | None = Field(default=None, description="Batches that would be taken back.")
    files: int | None = Field(default=None, description="Data files that may contain their rows.")
    bytes: int | None = Field(default=None, description="The size of these files.")
    whole_files: int | None = Field(default=None, description="Of these files, those without other rows.")
    unknown_batch_ids_count: int | None = Field(
        default=None, description="Ids of batches that the table does not have."
    )


class RestatementResult(Document):
    """What the commit did."""

    snapshot_id: int | None = Field(default=None, description="The snapshot of the commit.")
    committed_time: datetime | None = Field(default=None, description="When it was committed.")
    tombstones_added: int | None = Field(default=None, description="Tombstones that it added.")
    tombstones_removed: int | None = Field(default=None, description="Tombstones that an Undo removed.")
    rows_deleted: int | None = Field(default=None, description="Rows that it deleted.")
    rows_added: int | None = Field(default=None, description="Rows that it added.")
    rows_erased: int | None = Field(default=None, description="Rows that were found by values or keys.")
    rows_restored: int | None = Field(default=None, description="Rows that an Undo restored.")
    group_size: int | None = Field(default=None, description="Restatements in the same commit.")


class RestatementErasure(Document):
    """Whether the bytes are gone."""

    due_time: datetime | None = Field(default=None, description="When the bytes must be gone.")
    vacuum_snapshot_id: int | None = Field(default=None, description="The snapshot that removed the last rows.")
    blocked_by: list[str] = Field(default_factory=list, description="The first things that keep files with such rows.")
    blocked_by_count: int | None = Field(default=None, description="How many things keep them.")
    verified_time: datetime | None = Field(default=None, description="When a check found none of the files.")
    record: str | None = Field(default=None, description="The URI of the erasure record.")
    record_sha256: str | None = Field(default=None, description="The SHA-256 of the record.")
    signature: str | None = Field(default=None, description="The URI of the signature of the record.")


class RestatementSummary(Document):
    """A Restatement in a list."""

    namespace: str = Field(description="The Kubernetes namespace.")
    name: str = Field(description="The name of the Restatement.")
    dataset: str = Field(description="The Dataset that it changes.")
    operation: str = Field(description="Replay, Revert, Erase or Undo.")
    created_time: datetime | None = Field(default=None, description="When the Restatement was created.")
    phase: str | None = Field(default=None, description="Pending, Running, Succeeded, Failed or another phase.")
    progress: str | None = Field(default=None, description="The progress of its run.")
    queue_position: int | None = Field(default=None, description="Its place in the queue of its Dataset.")
    reason: str | None = Field(default=None, description="spec.reason: why it was requested.")
    ticket: str | None = Field(default=None, description="spec.ticket: where it was requested.")
    dry_run: bool = Field(default=False, description="Whether it only plans.")
    batch_ids_count: int | None = Field(
        default=None, description="Batches that its spec lists. Absent: it refers to a list."
    )
    result: RestatementResult | None = Field(default=None, description="What its commit did.")
    erasure: RestatementErasure | None = Field(default=None, description="Whether the bytes are gone.")


class Restatement(RestatementSummary):
    """One Restatement."""

    uid: str = Field(description="The UID of the resource.")
    batch_ids: list[str] = Field(default_factory=list, description="The first 1,000 batches that its spec lists.")
    replacement: Replacement | None = Field(default=None, description="What replaces the batches of a Replay.")
    undoes: str | None = Field(default=None, description="The Restatement that an Undo takes back.")
    erased_column: str | None = Field(default=None, description="The column whose values an Erase by records names.")
    plan: RestatementPlan | None = Field(default=None, description="What a dry run found.")
    conditions: list[Condition] = Field(default_factory=list, description="The conditions of the Restatement.")


def summary_of(resource: Mapping[str, Any]) -> RestatementSummary:
    """The short form of a Restatement, for lists. What its status does not say is absent."""
    return RestatementSummary.model_validate(_summary(resource))


def restatement_of(resource: Mapping[str, Any]) -> Restatement:
    """The long form of a Restatement, with its conditions, and with at most SHOWN_IDS of its batch ids."""
    spec, status = (resource.get(part) or {} for part in ("spec", "status"))
    return Restatement.model_validate(
        {
            **_summary(resource),
            "uid": resource["metadata"].get("uid", ""),
            "batchIds": list(spec.get("batchIds") or ())[:SHOWN_IDS],
            "replacement": spec.get("replacement"),
            "undoes": (spec.get("undoes") or {}).get("name"),
            "erasedColumn": (spec.get("rows") or {}).get("column"),
            "plan": status.get("plan"),
            "conditions": conditions_of(resource),
        }
    )


def dataset_name_of(resource: Mapping[str, Any]) -> str:
    """The name in `spec.datasetRef`; "": the Restatement names no Dataset."""
    return str(((resource.get("spec") or {}).get("datasetRef") or {}).get("name", ""))


def _summary(resource: Mapping[str, Any]) -> dict[str, Any]:
    metadata, spec, status = (resource.get(part) or {} for part in ("metadata", "spec", "status"))
    listed = spec.get("batchIds")
    return {
        "namespace": metadata.get("namespace", ""),
        "name": metadata.get("name", ""),
        "dataset": dataset_name_of(resource),
        "operation": spec.get("operation", ""),
        "createdTime": metadata.get("creationTimestamp"),
        "phase": status.get("phase"),
        "progress": status.get("progress"),
        "queuePosition": status.get("queuePosition"),
        "reason": spec.get("reason") or None,
        "ticket": spec.get("ticket") or None,
        "dryRun": bool(spec.get("dryRun")),
        "batchIdsCount": len(listed) if listed else None,
        "result": status.get("result"),
        "erasure": status.get("erasure"),
    }
