"""The run contract: the input of a run (`run.json`). The output is in `lethe.contract.result`. Pure.

Pydantic models, camelCase in JSON. Both the operator and the Spark applications read and write them through this module only.
Times are RFC 3339 in UTC, sizes are bytes.
"""

from datetime import date, datetime
from enum import StrEnum
from typing import Any, assert_never

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from lethe.base.names import kube_name
from lethe.contract.checks import CheckSpec
from lethe.contract.dataset import CreateSpec, HoldSpec, NativeDeletesSpec, SnapshotsSpec, TableSpec
from lethe.contract.kubernetes import REQUESTED_BY
from lethe.contract.settings import (
    BufferLayout,
    ConsolidationMode,
    CsvDialect,
    Deletes,
    FileFormat,
    Operation,
    RedactionMethod,
    RetentionBy,
    RunFamily,
    RunKind,
    SchemaEvolution,
    UnknownBatches,
)

CONTRACT_VERSION = "lethe.dev/run/v1"
# A ConfigMap holds 1 MiB, and all runs of a Dataset share one. Larger documents are files beside the table.
INLINE_BYTES_AT_MOST = 64 * 1024


class Document(BaseModel):
    """Base class of all documents: camelCase, frozen. Rejects unknown fields."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid")

    def to_json(self) -> str:
        """The document as one line of JSON in camelCase. Fields that are None are left out."""
        return self.model_dump_json(by_alias=True, exclude_none=True)


class Recorded(Document):
    """Base class of what results and the ledger contain.

    Ignores unknown fields: after a rollback, an older version reads what a newer one wrote. An input is stricter, because a run
    must not leave out what it was asked to do.
    """

    model_config = ConfigDict(extra="ignore")


class AllowedOperation(StrEnum):
    """What the boundary of a namespace may allow."""

    REPLAY = Operation.REPLAY.value
    REVERT = Operation.REVERT.value
    ERASE = Operation.ERASE.value
    REDACT = Operation.REDACT.value
    UNDO = Operation.UNDO.value
    APPROVE = Operation.APPROVE.value
    REGISTER = ConsolidationMode.REGISTER.value
    """`spec.consolidation.mode`."""
    NATIVE_DELETES = "NativeDeletes"
    """`spec.deletes`: any value but Ledger."""
    CREATE_TABLE = "CreateTable"
    """`spec.table.create`."""
    ADOPT_TABLE = "AdoptTable"
    """`spec.table.adopt`."""
    VACUUM = "Vacuum"
    """Of VacuumPolicies."""
    RETENTION = "Retention"
    """`spec.retention` of VacuumPolicies, which removes rows without a Restatement."""

    @classmethod
    def of(cls, operation: Operation) -> "AllowedOperation":
        """The entry of a boundary for the operation of a Restatement."""
        match operation:
            case Operation.REPLAY:
                return cls.REPLAY
            case Operation.REVERT:
                return cls.REVERT
            case Operation.ERASE:
                return cls.ERASE
            case Operation.REDACT:
                return cls.REDACT
            case Operation.UNDO:
                return cls.UNDO
            case Operation.APPROVE:
                return cls.APPROVE
            case _:
                assert_never(operation)


class RunBoundary(Document):
    """What a run may use, from the chart's value `boundaries` for its namespace.

    In each field, None sets no limit, and an empty tuple allows nothing.
    """

    catalogs: tuple[str, ...] | None = None
    """Names."""
    tables: tuple[str, ...] | None = None
    """Patterns of "namespace.table", in which * matches any characters."""
    uris: tuple[str, ...] | None = None
    """Prefixes, compared by whole path segments."""
    operations: tuple[AllowedOperation, ...] | None = None


class DatasetRef(Document):
    """The Dataset whose table a run changes. Its UID distinguishes it from one that was deleted and created again."""

    namespace: str
    name: str
    uid: str
    cluster: str = ""
    """An id of the cluster; "": unknown."""

    @property
    def claim(self) -> str:
        """The value of the table property by which a Dataset claims its table."""
        return f"{self.namespace}/{self.name}"


class CreateTable(CreateSpec):
    """How to create the table if it does not exist."""

    model_config = ConfigDict(extra="forbid")


class TableRef(TableSpec):
    """The table that the run changes."""

    model_config = ConfigDict(extra="forbid")

    create: CreateTable | None = None
    """None: the table must exist."""


class BufferRef(Document):
    """The buffer from which batches are promoted, and how its objects are read as batches."""

    uri: str
    format: FileFormat = FileFormat.PARQUET
    layout: BufferLayout = BufferLayout.DIRECTORY
    csv: CsvDialect | None = None
    """How the files of the format CSV are written; None: as RFC 4180 says."""
    adopt: bool = False
    """Claim the buffer although it contains objects that are not batches."""


class SeenObject(Document):
    """The write of an object that an event notification reported. The ledger records it if the run promotes this object."""

    key: str
    """Full URI."""
    etag: str = ""
    """Empty: not in the notification."""
    sequencer: str
    """Orders the writes of one key."""


class SearchLimits(NativeDeletesSpec):
    """How much a process without Spark searches for the rows of batches in one commit."""

    model_config = ConfigDict(extra="forbid")


class ConsolidationSpec(Document):
    """Which batches a run promotes, and whether it rewrites or registers their files. Without any: a reanchoring."""

    mode: ConsolidationMode = ConsolidationMode.REWRITE
    target_file_size_bytes: int = 512 * 1024 * 1024
    batch_ids: tuple[str, ...] = ()
    """The batches to promote. Empty: only give the head a ledger and native deletes, because another writer committed it, and
    expire snapshots.
    """
    seen_objects: tuple[SeenObject, ...] = ()
    """Of these batches, as far as known."""
    checks: tuple[CheckSpec, ...] = ()
    """What must hold for these batches."""
    accepts: "AcceptedHead | None" = None
    """A head that lost its ledger, and the ledger to continue with. Only without batches. None: no such head is accepted."""
    deletes: Deletes = Deletes.LEDGER
    """Only without batches: the native deletes to write for tombstones that have none."""
    search_limits: SearchLimits = SearchLimits()
    """For these native deletes."""


class AcceptedHead(Document):
    """A head that a user accepted although it does not lead to the ledger that the table had."""

    head_id: int
    ledger: str
    """URI of the root that the head gets."""


class Replacement(Document):
    """The new batch of a Replay."""

    batch_id: str
    uri: str
    key_columns: tuple[str, ...] = ()
    """Each row replaces all rows with the same values in these columns that were committed before. Empty: no rows are replaced.
    """
    op_column: str = ""
    """A column of the files, not of the table. U, I or null: the row is added; D: it only removes older rows. "": all are added.
    """


class LookupRef(Document):
    """Where a run looks up the values of a column that stand for those of a list."""

    dataset: str
    """Name of the Dataset, for messages."""
    catalog: str
    table: str
    """Name of the Dataset's table."""
    batch_column: str
    """Of that table."""
    from_column: str
    """With the values of the list."""
    to_column: str
    """With the values that stand for them."""


class ConditionRef(Document):
    """A condition of an Erase or a Redact: its column has one of the values of a list, or one that stands for them."""

    field: str = "spec.rows"
    """The field of the Restatement that has the condition, for messages."""
    column: str
    """Its current name."""
    values_file: str = ""
    """Path in the pod of the list, one value per line; "": it is at `values_uri`."""
    values_uri: str = ""
    """URI of the list; "": it is in a file in the pod."""
    secret: str = ""
    """The source of the file, for messages."""
    secret_key: str = ""
    """The source of the file, for messages."""
    via: LookupRef | None = None
    """None: the values of the list are those of the column."""


class RowsRef(Document):
    """Which records a request is about: those that meet a condition. The document has no values: they may be personal data."""

    conditions: tuple[ConditionRef, ...]
    """At least one."""
    values_digest: str = ""
    """`lethe.restatement.plan`. The run sets it; before, that of the lists when a run first read them, if one of them is at a
    URI. "": unknown.
    """

    @model_validator(mode="before")
    @classmethod
    def _of_one(cls, data: Any) -> Any:
        """The previous release wrote one condition, without `conditions`."""
        if not isinstance(data, dict) or "column" not in data:
            return data
        digest = {"valuesDigest": data["valuesDigest"]} if "valuesDigest" in data else {}
        return {"conditions": [{k: v for k, v in data.items() if k not in digest}], **digest}


class ColumnRedaction(Document):
    """What a Redact writes into one column."""

    column: str
    """Its current name."""
    method: RedactionMethod
    value: str | None = None
    """Of a Constant."""


class Redaction(Document):
    """What a Redact writes. The key of hashes is only in a file in the run's pod."""

    columns: tuple[ColumnRedaction, ...]
    hash_key_file: str = ""
    """Path in the pod; "": there is no key."""
    secret: str = ""
    """The source of the file, for messages and the record."""
    secret_key: str = ""
    """The source of the file, for messages and the record."""

    @property
    def hash_key(self) -> str:
        """The name of the key, `<Secret>/<key>`; "": there is none."""
        return f"{self.secret}/{self.secret_key}" if self.hash_key_file else ""


class Manager(Recorded):
    """A program that wrote to a Restatement, as `metadata.managedFields` names it."""

    name: str
    operation: str = ""  # Apply or Update
    time: datetime | None = None  # of its last write


class Provenance(Recorded):
    """Who created a Restatement and why, as far as the object shows it.

    This does not prove an identity: every writer of the object can set annotations and the name of a manager.
    """

    reason: str = ""  # spec.reason
    ticket: str = ""  # spec.ticket
    uid: str = ""  # of the object; the API server's audit log contains it
    created_time: datetime | None = None
    managers: tuple[Manager, ...] = ()  # without those of its status
    marks: dict[str, str] = {}  # annotations and labels in which deployment tools and people give their names

    @property
    def requested_by(self) -> str:
        """The annotation lethe.dev/requested-by, else the program that wrote the object first; "": unknown."""
        return self.marks.get(REQUESTED_BY) or next((m.name for m in self.managers), "")


class RestatementRequest(Document):
    """One Restatement, with all that a run needs of it. It contains no values of rows: see `RowsRef`."""

    key: str
    """As `lethe.base.names.request_key`."""
    name: str
    """`namespace/name`, for messages."""
    operation: Operation
    batch_ids: tuple[str, ...] = ()
    """Of a Replay, Revert or Approve, or of an Erase or Redact without `rows`."""
    batch_ids_uri: str = ""
    """Of a file with the batch ids, one per line; "": there is none."""
    batch_ids_sha256: str = ""
    """Of a list by reference, when it was first read; "": not read yet, or no list."""
    reference: str = ""
    """Its batches are those that the run of another program with this id delivered; "": it names them."""
    unknown_batches: UnknownBatches = UnknownBatches.REFUSE
    """Whether it may name batches that the Dataset does not know."""
    rows: RowsRef | None = None
    """Of an Erase or Redact without batch ids."""
    redact: Redaction | None = None
    """Of a Redact."""
    replacement: Replacement | None = None
    undoes: str = ""
    """Key of the request that an Undo takes back; "": it is not an Undo."""
    reason: str = ""
    creation_time: datetime
    evict_by_seconds: int | None = None
    """Time from the commit until the rows must be deleted; None: no deadline."""
    provenance: Provenance | None = None
    """None: unknown."""

    @property
    def conditions(self) -> tuple[ConditionRef, ...]:
        """Of `rows`; empty: it names no records."""
        return self.rows.conditions if self.rows is not None else ()

    @property
    def by_keys(self) -> bool:
        """Whether its replacement also replaces single rows by their keys."""
        return self.replacement is not None and bool(self.replacement.key_columns)

    @property
    def searches(self) -> bool:
        """Whether it removes or redacts rows that the run finds by their values."""
        return self.rows is not None or self.by_keys or self.redact is not None


class RestatementGroupSpec(Document):
    """The Restatements that a run carries out in one commit, or only plans."""

    requests: tuple[RestatementRequest, ...]
    dry_run: bool = False
    """Only plan each request by itself, and commit nothing."""
    deletes: Deletes = Deletes.LEDGER
    """How batches are marked as deleted, in addition to the ledger, for readers that do not know Lethe."""
    search_limits: SearchLimits = SearchLimits()
    """For native deletes."""
    listed_snapshot_id: int | None = None
    """The snapshot whose ledger showed which batches of the buffer come first. If an Undo was committed after it, requests that
    search for rows wait for a new listing. None: the buffer was not checked.
    """


class SnapshotLimits(SnapshotsSpec):
    """Which snapshots are kept when snapshots expire."""

    model_config = ConfigDict(extra="forbid")


class Maintenance(Document):
    """What a vacuum does in addition to purging, within its limits of bytes and time."""

    rewrite_manifests: bool = False
    remove_orphan_files: bool = False
    orphan_files_older_than_seconds: int = 259_200
    compact_small_files: bool = False


class RetentionSpec(Document):
    """Which rows are too old."""

    column: str = ""
    """The full name of the column with the time of a row. "": the time at which its batch was promoted."""
    max_age_days: int
    cutoff: date
    """Rows with an earlier time than the start of this UTC day are too old."""

    @property
    def rule(self) -> str:
        """What decides, as text."""
        return f"{self.column or RetentionBy.BATCH_AGE}, {self.max_age_days} days"


class VacuumSpec(Document):
    """What a vacuum purges, expires and maintains, within which limits; or an erasure check (`erasures_only`)."""

    policy: str
    """`namespace/name` of the VacuumPolicy, for messages and tombstones."""
    expire_snapshots: bool = True
    snapshots: SnapshotLimits = SnapshotLimits()
    batch_ids: tuple[str, ...] = ()
    """Purge only the rows of these batches; empty: of all tombstones."""
    retention: RetentionSpec | None = None
    """Which rows are removed because of their age. A run that is limited to batches removes none. None: no row is too old."""
    plan_only: bool = False
    """Report a plan, and change nothing."""
    approved_plan: str = ""
    """Digest of the approved plan. If the plan differs by now, report the new plan and change nothing. "": no approval is needed.
    """
    max_bytes: int | None = None
    """Limit for the size of files to rewrite; None: no limit. Files with rows that are due within `evict_by_lead_seconds` come
    first, then files with the most expected deleted rows per byte. At least one file is rewritten.
    """
    step_bytes: int = 20 * 1024**3
    """A run that rewrites more makes several commits of about this size."""
    max_seconds: int | None = None
    """No step starts later than this after the start of the run; None: no limit."""
    stop_by: datetime | None = None
    """No step starts later; None: no limit."""
    target_file_size_bytes: int | None = None
    """None: as the table's properties say."""
    evict_by_lead_seconds: int = 86_400
    maintenance: Maintenance = Maintenance()
    erasures_only: bool = False
    """Purge nothing, only check the progress of erasures."""


class RunSpec(Document):
    """`run.json`. Exactly one of the last three fields is set, the one that `family` names."""

    api_version: str = CONTRACT_VERSION
    family: RunFamily = Field(alias="kind")
    run_id: str
    attempt: int = 1
    # Numbers of the earlier attempts of which a container, or the attempt itself, has reported the end. Of the others it is
    # unknown: an attempt on a node that is cut off may still write.
    ended_attempts: tuple[int, ...] = ()
    dataset: DatasetRef
    table: TableRef
    batch_column: str
    buffer: BufferRef
    schema_evolution: SchemaEvolution = SchemaEvolution.REFUSE
    seen_table_uuid: str | None = None
    """UUID of the table that the operator saw. The run refuses any other table, and creates none. None: not checked."""
    seen_snapshot_id: int | None = None
    """The last head that the operator saw. The run refuses a table that was rolled back to before it. None: not checked."""
    seen_sequence_number: int | None = None
    """Of that head."""
    snapshots: SnapshotLimits | None = None
    """Which snapshots each run keeps; None: the defaults."""
    batch_tracking: bool = False
    """Update the table of batches."""
    boundary: RunBoundary | None = None
    """None: no limit."""
    holds: tuple[HoldSpec, ...] = ()
    """The holds that were active at the launch. They are in force for the whole run."""
    traceparent: str = ""
    """Of the span that started the run, as W3C Trace Context writes it; "": runs are not traced."""
    consolidation: ConsolidationSpec | None = None
    restatement: RestatementGroupSpec | None = None
    vacuum: VacuumSpec | None = None

    @property
    def erases_by_values(self) -> bool:
        """Whether it erases or redacts records by values: personal data, of which the ledger keeps a keyed digest."""
        return self.restatement is not None and any(r.rows is not None for r in self.restatement.requests)

    @property
    def attempt_name(self) -> str:
        """The name of this attempt in statuses and logs, and of its Job or SparkApplication."""
        return kube_name(self.dataset.name, self.family.value, self.run_id[:8], str(self.attempt))

    @property
    def kind(self) -> RunKind:
        """The kind of the run, from the content of the document."""
        match self.family:
            case RunFamily.CONSOLIDATION:
                promotes = self.consolidation is None or bool(self.consolidation.batch_ids)
                return RunKind.CONSOLIDATION if promotes else RunKind.REANCHORING
            case RunFamily.RESTATEMENT:
                return RunKind.RESTATEMENT
            case RunFamily.VACUUM:
                checks = self.vacuum is not None and self.vacuum.erasures_only
                return RunKind.ERASURE_CHECK if checks else RunKind.VACUUM
            case _:
                assert_never(self.family)

    @property
    def is_complete(self) -> bool:
        """Whether the field that `family` names is set."""
        match self.family:
            case RunFamily.CONSOLIDATION:
                return self.consolidation is not None
            case RunFamily.RESTATEMENT:
                return self.restatement is not None
            case RunFamily.VACUUM:
                return self.vacuum is not None
            case _:
                assert_never(self.family)


class RunIdentity(Recorded):
    """The fields of a `run.json` that identify the run."""

    run_id: str
    family: RunFamily = Field(alias="kind")
    attempt: int = 1


class RunPointer(Document):
    """The location of a `run.json` that is too large for the ConfigMap. The ConfigMap contains this document instead."""

    api_version: str = CONTRACT_VERSION
    catalog: str
    """Its FileIO properties open the URI."""
    uri: str
    sha256: str
    """Of the content."""


class ResultPointer(RunPointer):
    """The location of a `result.json` that is too large for the ConfigMap."""

    run_id: str
    attempt: int


class MailboxEntry(Document):
    """A run for the committer or the warm driver of the namespace: the value of one key of its mailbox.

    The document of the run is in the Dataset's ConfigMap, as `<prefix>.run.json`; its progress and result go there too. The
    process carries out the entries of one Dataset in the order of their `created_time`.
    """

    api_version: str = CONTRACT_VERSION
    dataset_uid: str
    # These three must match the document; otherwise the process does not carry it out.
    run_id: str
    family: RunFamily = Field(alias="kind")
    attempt: int = 1
    config_map: str
    """Name."""
    prefix: str
    created_time: datetime
    cancelled: bool | None = None
    """True: the warm driver stops the run and delivers a result; None: it carries it out."""
    files: tuple[str, ...] = ()
    """Names of the files with values and keys that the run needs. Only a warm driver that has all of them carries it out."""


def parse_run(text: str) -> RunSpec:
    """Parse a `run.json`.

    Raises:
        pydantic.ValidationError: The message names the field.
    """
    return RunSpec.model_validate_json(text)


def is_pointer(document: dict[str, Any]) -> bool:
    """Whether a parsed document only says where a larger one is: it has a `uri`, and no `kind`."""
    return "uri" in document and "kind" not in document
