"""The Restatement resource as a frozen value. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final

from lethe.base.ids import request_key
from lethe.contract.operation import Operation
from lethe.contract.run import Provenance
from lethe.restatement.id_list import LISTED_IDS_AT_MOST, IdList

from lethe_operator.resources.common import Meta, Spec, parse_meta, parse_spec

SIZED_BY: Final = 1000


class ObjectName(Spec):
    name: str


class ReplacementSpec(Spec):
    batch_id: str
    uri: str
    key_columns: tuple[str, ...] = ()
    op_column: str = ""


class ConfigMapKey(Spec):
    name: str
    key: str


class BatchIdsFrom(Spec):
    """One of the two is set."""

    config_map_key_ref: ConfigMapKey | None = None
    uri: str = ""


class SecretKey(Spec):
    name: str
    key: str


class ValuesFrom(Spec):
    secret_key_ref: SecretKey


class RowsSpec(Spec):
    """Records, by the values of a column. The operator never reads the values."""

    column: str
    values_from: ValuesFrom

    @property
    def secret(self) -> SecretKey:
        return self.values_from.secret_key_ref


class RestatementSpec(Spec):
    dataset_ref: ObjectName
    operation: Operation
    batch_ids: tuple[str, ...] = ()
    batch_ids_from: BatchIdsFrom | None = None
    replacement: ReplacementSpec | None = None
    undoes: ObjectName | None = None
    rows: RowsSpec | None = None
    reason: str = ""
    ticket: str = ""
    evict_by_seconds: int | None = None
    dry_run: bool = False
    suspend: bool = False
    cancel: bool = False
    deadline_seconds: int | None = None
    ttl_seconds_after_finished: int | None = None


@dataclass(frozen=True)
class SecretFile:
    """A key of a Secret, and the name of the file that the pod of a run finds it in."""

    secret: str
    key: str
    file: str


@dataclass(frozen=True)
class NoList:
    """Why a list of batch ids cannot be used; `final`: it never can."""

    reason: str
    message: str
    final: bool = False
    again_seconds: float = 15


@dataclass(frozen=True)
class Restatement:
    """`key` is how a table remembers this request, whatever becomes of the object; `listed`: what the ConfigMap holds that it
    refers to, None when it refers to none; `provenance`: who asked, of one that is to be carried out and whose rows must go."""

    meta: Meta
    spec: RestatementSpec
    key: str
    status: Mapping[str, Any] = field(default_factory=dict)
    listed: IdList | NoList | None = None
    provenance: Provenance | None = None

    @property
    def batch_ids(self) -> tuple[str, ...]:
        """As far as they are known: those that a file lists are not."""
        return self.listed.ids if isinstance(self.listed, IdList) else self.spec.batch_ids

    @property
    def values(self) -> SecretFile | None:
        """The values of an Erase by records."""
        if self.spec.rows is None:
            return None
        secret = self.spec.rows.secret
        return SecretFile(secret.name, secret.key, sha256(self.key.encode()).hexdigest()[:16])

    @property
    def list_uri(self) -> str:
        """Of the file that lists them, "" for none."""
        return self.spec.batch_ids_from.uri if self.spec.batch_ids_from is not None else ""

    @property
    def list_sha256(self) -> str:
        """Of the list that it refers to, as it was first looked at; "": it was not yet."""
        return str(self._told_list.get("sha256") or "")

    @property
    def batches(self) -> int:
        """How many batches it names; at most so many if a file lists them that nobody has read yet."""
        told = self._told_list.get("count")
        return len(self.batch_ids) or (int(told) if told else LISTED_IDS_AT_MOST if self.list_uri else 0)

    @property
    def sized_by(self) -> tuple[str, ...]:
        """Those of the batches by which the size of all of them is judged: a ledger is not asked for a hundred thousand."""
        return self.batch_ids[:SIZED_BY]

    @property
    def _told_list(self) -> Mapping[str, Any]:
        return (self.status.get("plan") or {}).get("batchIds") or {}

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

    @property
    def by_keys(self) -> bool:
        """Whether single rows of older batches go, too, by the keys of what it brings."""
        return self.brings is not None and bool(self.spec.replacement and self.spec.replacement.key_columns)


def parse_restatement(body: Mapping[str, Any]) -> Restatement:
    """Raises: InvalidSpec."""
    meta = parse_meta(body)
    spec = parse_spec(RestatementSpec, "Restatement", body)
    key = request_key(meta.namespace, meta.name, body.get("spec") or {})
    return Restatement(meta, spec, key, body.get("status") or {})


def dataset_name_of(body: Mapping[str, Any]) -> str:
    """The Dataset that a Restatement's body names, "" when it names none."""
    return str(((body.get("spec") or {}).get("datasetRef") or {}).get("name") or "")
