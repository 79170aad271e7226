"""The Restatement resource as a frozen value. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from lethe.ids import request_key

from lethe_operator.resources.common import Meta, Spec, parse_meta, parse_spec


class ObjectName(Spec):
    name: str


class ReplacementSpec(Spec):
    batch_id: str
    uri: str


class RestatementSpec(Spec):
    dataset_ref: ObjectName
    operation: str
    batch_ids: tuple[str, ...] = ()
    batch_ids_from: Mapping[str, Any] | None = None
    replacement: ReplacementSpec | None = None
    undoes: ObjectName | None = None
    rows: Mapping[str, Any] | None = None
    reason: str = ""
    evict_by_seconds: int | None = None
    dry_run: bool = False
    suspend: bool = False
    cancel: bool = False
    deadline_seconds: int | None = None
    ttl_seconds_after_finished: int | None = None


@dataclass(frozen=True)
class Restatement:
    """`key` is how a table remembers this request, whatever becomes of the object."""

    meta: Meta
    spec: RestatementSpec
    key: str
    status: Mapping[str, Any] = field(default_factory=dict)

    @property
    def created(self) -> datetime:
        return self.meta.creation_timestamp or datetime.max.replace(tzinfo=UTC)

    @property
    def deadline(self) -> datetime | None:
        """By when it is to be committed; None: whenever."""
        created, seconds = self.meta.creation_timestamp, self.spec.deadline_seconds
        return created + timedelta(seconds=seconds) if created is not None and seconds is not None else None

    @property
    def brings(self) -> str | None:
        """The batch that it brings into the table; None: none, as a dry run."""
        return self.spec.replacement.batch_id if self.spec.replacement is not None and not self.spec.dry_run else None


def parse_restatement(body: Mapping[str, Any]) -> Restatement:
    """Raises: InvalidSpec."""
    meta = parse_meta(body)
    spec = parse_spec(RestatementSpec, "Restatement", body)
    key = request_key(meta.namespace, meta.name, body.get("spec") or {})
    return Restatement(meta, spec, key, body.get("status") or {})


def dataset_name_of(body: Mapping[str, Any]) -> str:
    """The Dataset that a Restatement's body names, "" when it names none."""
    return str(((body.get("spec") or {}).get("datasetRef") or {}).get("name") or "")
