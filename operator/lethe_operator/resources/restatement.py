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

# At most this many batches are looked up to estimate the size of a Restatement.
SIZED_BY: Final = 1000


class ObjectName(Spec):
    name: str


class ReplacementSpec(Spec):
    batch_id: str  # of the new batch
    uri: str
    key_columns: tuple[str, ...] = ()  # empty: the new batch replaces whole batches only
    op_column: str = ""  # column of the files with each row's change; "": all rows are added


class ConfigMapKey(Spec):
    name: str
    key: str


class BatchIdsFrom(Spec):
    """Where a list of batch ids is. One of the two fields is set."""

    config_map_key_ref: ConfigMapKey | None = None
    uri: str = ""


class SecretKey(Spec):
    name: str
    key: str


class ValuesFrom(Spec):
    secret_key_ref: SecretKey


class RowsSpec(Spec):
    """The records that an Erase deletes, by the values of a column. The operator never reads the values."""

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
    evict_by_seconds: int | None = None  # time from the commit until the rows must be deleted; None: no deadline
    dry_run: bool = False
    suspend: bool = False
    cancel: bool = False
    deadline_seconds: int | None = None  # time from the creation until the commit; None: no deadline
    ttl_seconds_after_finished: int | None = None  # None: the resource is kept


@dataclass(frozen=True)
class SecretFile:
    """A key of a Secret that is mounted as a file into the pod of a run."""

    secret: str
    key: str
    file: str  # name of the file


@dataclass(frozen=True)
class NoList:
    """Why a list of batch ids cannot be used."""

    reason: str
    message: str
    final: bool = False  # the list can never be used
    again_seconds: float = 15  # time until the operator reads it again, unless `final`


@dataclass(frozen=True)
class Restatement:
    meta: Meta
    spec: RestatementSpec
    # Identifies the request in the table's ledger, also after the object is deleted.
    key: str
    status: Mapping[str, Any] = field(default_factory=dict)
    # Content of the ConfigMap in spec.batchIdsFrom; None: the spec names none.
    listed: IdList | NoList | None = None
    # Who created it; None: its rows need not leave the storage, or no run will carry it out.
    provenance: Provenance | None = None

    @property
    def batch_ids(self) -> tuple[str, ...]:
        """The known batch ids. The operator does not know those in a file at spec.batchIdsFrom.uri."""
        return self.listed.ids if isinstance(self.listed, IdList) else self.spec.batch_ids

    @property
    def values(self) -> SecretFile | None:
        """Where the run finds the values of an Erase by records; None: it is not one."""
        if self.spec.rows is None:
            return None
        secret = self.spec.rows.secret
        return SecretFile(secret.name, secret.key, sha256(self.key.encode()).hexdigest()[:16])

    @property
    def list_uri(self) -> str:
        """URI of the file with the batch ids; "": there is no file."""
        return self.spec.batch_ids_from.uri if self.spec.batch_ids_from is not None else ""

    @property
    def list_sha256(self) -> str:
        """SHA-256 of the list in spec.batchIdsFrom when it was first read; "": it was not read yet."""
        return str(self._list_in_status.get("sha256") or "")

    @property
    def batches(self) -> int:
        """The number of batches that it names; the largest possible number if they are in a file that no run has read yet."""
        count = self._list_in_status.get("count")
        return len(self.batch_ids) or (int(count) if count else LISTED_IDS_AT_MOST if self.list_uri else 0)

    @property
    def sized_by(self) -> tuple[str, ...]:
        """A sample of the batches from which the size of all is estimated: looking up 100,000 in the ledger is too slow."""
        return self.batch_ids[:SIZED_BY]

    @property
    def _list_in_status(self) -> Mapping[str, Any]:
        return (self.status.get("plan") or {}).get("batchIds") or {}

    @property
    def created(self) -> datetime:
        return self.meta.creation_timestamp or datetime.max.replace(tzinfo=UTC)

    @property
    def deadline(self) -> datetime | None:
        """The time by which it must be committed; None: no deadline."""
        created, seconds = self.meta.creation_timestamp, self.spec.deadline_seconds
        return created + timedelta(seconds=seconds) if created is not None and seconds is not None else None

    @property
    def brings(self) -> str | None:
        """The id of the batch that it adds to the table; None: it adds none. A dry run adds none."""
        return self.spec.replacement.batch_id if self.spec.replacement is not None and not self.spec.dry_run else None

    @property
    def by_keys(self) -> bool:
        """Whether it also deletes rows of older batches that have the same keys as rows of its replacement."""
        return self.brings is not None and bool(self.spec.replacement and self.spec.replacement.key_columns)


def parse_restatement(body: Mapping[str, Any]) -> Restatement:
    """Raises: InvalidSpec."""
    meta = parse_meta(body)
    spec = parse_spec(RestatementSpec, "Restatement", body)
    key = request_key(meta.namespace, meta.name, body.get("spec") or {})
    return Restatement(meta, spec, key, body.get("status") or {})


def dataset_name_of(body: Mapping[str, Any]) -> str:
    """The name in `spec.datasetRef` of a Restatement's body; "": it has none."""
    return str(((body.get("spec") or {}).get("datasetRef") or {}).get("name") or "")
