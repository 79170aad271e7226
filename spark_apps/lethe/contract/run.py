"""The run contract: what the operator tells a run (`run.json`). What it hears of it is in `lethe.contract.result`.

Pure values as pydantic models, camelCase on the wire. Both sides of the contract, operator and Spark applications,
read and write them through this module only. Times are RFC 3339 in UTC, sizes bytes.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, assert_never

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from lethe.contract.kind import RunFamily, RunKind
from lethe.contract.operation import Operation

CONTRACT_VERSION = "lethe.dev/run/v1"
FileFormat = Literal["parquet", "orc", "avro", "json", "csv"]  # of the files in a buffer
SchemaEvolution = Literal["Refuse", "AddColumns"]  # what becomes of batches with columns that the table does not have
Deletes = Literal["Ledger", "DeletionVectors", "EqualityDeletes"]  # how batches taken back are marked as deleted
# A ConfigMap holds 1 MiB, and all runs of a Dataset share one: what is larger lies beside the table.
INLINE_BYTES_AT_MOST = 64 * 1024


class Document(BaseModel):
    """Base of everything on the wire: camelCase, frozen, unknown fields refused."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid")

    def to_json(self) -> str:
        return self.model_dump_json(by_alias=True, exclude_none=True)


class ConsolidationMode(StrEnum):
    REWRITE = "Rewrite"  # read the files of batches, and write their rows sorted
    REGISTER = "Register"  # make the files of batches part of the table as they are


class AllowedOperation(StrEnum):
    """What the boundary of a namespace may allow or withhold."""

    REPLAY = Operation.REPLAY.value
    REVERT = Operation.REVERT.value
    ERASE = Operation.ERASE.value
    UNDO = Operation.UNDO.value
    REGISTER = ConsolidationMode.REGISTER.value  # spec.consolidation.mode
    NATIVE_DELETES = "NativeDeletes"  # spec.deletes: DeletionVectors or EqualityDeletes
    CREATE_TABLE = "CreateTable"  # spec.table.create
    ADOPT_TABLE = "AdoptTable"  # spec.table.adopt
    VACUUM = "Vacuum"  # what a VacuumPolicy starts

    @classmethod
    def of(cls, operation: Operation) -> "AllowedOperation":
        """What a boundary calls the operation of a Restatement."""
        match operation:
            case Operation.REPLAY:
                return cls.REPLAY
            case Operation.REVERT:
                return cls.REVERT
            case Operation.ERASE:
                return cls.ERASE
            case Operation.UNDO:
                return cls.UNDO
            case _:
                assert_never(operation)


class RunBoundary(Document):
    """What a run may touch, as the chart's value `boundaries` says of its namespace. In each field None sets no limit, and an
    empty tuple allows nothing."""

    catalogs: tuple[str, ...] | None = None  # names
    tables: tuple[str, ...] | None = None  # patterns of "namespace.table", in which * stands for any characters
    uris: tuple[str, ...] | None = None  # prefixes, compared by whole path segments
    operations: tuple[AllowedOperation, ...] | None = None


class DatasetRef(Document):
    namespace: str
    name: str
    uid: str
    cluster: str = ""  # an id of the cluster; "": not known

    @property
    def claim(self) -> str:
        """The value of the table property by which a Dataset claims its table."""
        return f"{self.namespace}/{self.name}"


class CreateTable(Document):
    """How to make the table when it is not there. `table_schema` is a Spark SQL column list."""

    table_schema: str = Field(alias="schema")
    partition_by: tuple[str, ...] = ()
    format_version: int = 2
    properties: dict[str, str] = {}


class TableRef(Document):
    catalog: str
    name: str  # "namespace.table"
    adopt: bool = False
    create: CreateTable | None = None


class BufferRef(Document):
    uri: str
    format: FileFormat = "parquet"
    layout: str = "Directory"
    adopt: bool = False  # claim the buffer although it holds objects that are no batches


class SeenObject(Document):
    """The write of an object as an event notification told it, for the ledger to remember if that is what is promoted."""

    key: str  # full URI
    etag: str = ""  # "": not told
    sequencer: str


class ConsolidationSpec(Document):
    mode: ConsolidationMode = ConsolidationMode.REWRITE
    target_file_size_bytes: int = 512 * 1024 * 1024
    # The explicit list; folders follow from ids and the batch column. Empty: only stamp a head that another writer left
    # without a ledger, and keep the history short.
    batch_ids: tuple[str, ...] = ()
    seen_objects: tuple[SeenObject, ...] = ()  # of these batches, as far as known
    # A head that has lost its ledger, and the one to continue with. Only without batches. None: no such head is accepted.
    accepts: "AcceptedHead | None" = None


class AcceptedHead(Document):
    """A head that leads to no ledger although the table had one, and that somebody has accepted."""

    head_id: int
    ledger: str  # URI of the root that the head gets


class Replacement(Document):
    """`key_columns`: each row stands for all rows with the same values in these columns that were committed before; none: rows
    only stand for the batches that are replaced. `op_column`, which the table does not have, says of a row whether it is one of
    the new batch (`U`, `I` or nothing) or only takes the older ones away (`D`); "": all are of the new batch."""

    batch_id: str
    uri: str
    key_columns: tuple[str, ...] = ()
    op_column: str = ""


class RowsRef(Document):
    """Which records an Erase deletes: those with one of the values in this column, by its name of today. The values are in a
    file that is mounted into the run's pod, one a line, and nowhere else: they may be personal data. `secret` and `secret_key`,
    where that file comes from, are for messages."""

    column: str
    values_file: str
    secret: str = ""
    secret_key: str = ""
    values_digest: str = ""  # `lethe.restatement.values_digest`, which the run fills in; "": unknown


class Manager(Document):
    """A program that wrote to a Restatement, as `metadata.managedFields` names it."""

    name: str
    operation: str = ""  # Apply or Update
    time: datetime | None = None  # of its last write


class Provenance(Document):
    """Who asked for a Restatement and why, as far as the object says. No proof of a person: annotations and the names of managers
    are set by whoever writes the object."""

    reason: str = ""  # spec.reason
    ticket: str = ""  # spec.ticket
    uid: str = ""  # of the object, by which the API server's audit log names it
    created_time: datetime | None = None
    managers: tuple[Manager, ...] = ()  # without those of its status
    marks: dict[str, str] = {}  # annotations and labels by which deployment tools and people name themselves


class RestatementRequest(Document):
    key: str  # lethe.ids.request_key
    name: str  # "namespace/name", for messages
    operation: Operation
    batch_ids: tuple[str, ...] = ()  # of a Replay or Revert, or of an Erase without `rows`
    batch_ids_uri: str = ""  # where they are listed instead, one per line
    batch_ids_sha256: str = ""  # of a list by reference, as it was first looked at; "": not yet
    rows: RowsRef | None = None  # of an Erase without batch ids
    replacement: Replacement | None = None
    undoes: str = ""  # of an Undo: the key of the request that it takes back
    reason: str = ""
    creation_time: datetime
    evict_by_seconds: int | None = None
    provenance: Provenance | None = None  # of one whose rows must go; None: not known, or not kept

    @property
    def by_keys(self) -> bool:
        """Whether its replacement is record-level change data."""
        return self.replacement is not None and bool(self.replacement.key_columns)

    @property
    def searches(self) -> bool:
        """Whether it takes out rows that are found by their values."""
        return self.rows is not None or self.by_keys


class RestatementGroupSpec(Document):
    """`dry_run`: only say what each of the requests would do by itself; nothing is committed, and the ledger hears of none.
    `deletes`: what marks batches as deleted beside the ledger, for readers that know nothing of it. `listed_snapshot_id`:
    the head by which it was told which batches of the buffer are to come first; requests that search for rows wait for another
    look if an Undo was committed after it. None: nobody looked."""

    requests: tuple[RestatementRequest, ...]
    dry_run: bool = False
    deletes: Deletes = "Ledger"
    listed_snapshot_id: int | None = None


class SnapshotLimits(Document):
    max_age_seconds: int = 432_000
    min_to_keep: int = 5
    max_count: int = 1000


class Maintenance(Document):
    """What a vacuum run does besides purging, each as long as the budget and the time allow."""

    rewrite_manifests: bool = False
    remove_orphan_files: bool = False
    orphan_files_older_than_seconds: int = 259_200
    compact_small_files: bool = False


class VacuumSpec(Document):
    """`policy`: "namespace/name", for messages and tombstone provenance.

    Args:
        batch_ids: Only the tombstones of these batches; empty: all.
        plan_only: Say what would be done, and change nothing. `approved_plan`: purge only what the plan of this digest says; if
            the plan is another by now, tell that one and change nothing. "": no approval is asked for.
        max_bytes: Files of at most so many bytes are rewritten, those first that hold rows whose bytes are due within the lead,
            then those of which most rows are likely to go per byte. One file is always taken. None: everything.
        step_bytes: A run that rewrites more commits in steps of about so many bytes, and keeps those it has finished.
        max_seconds, stop_by: No step begins later than so long after the start, or than this moment. None: whenever.
        target_file_size_bytes: Of what is written; None: as the table says.
        erasures_only: Purge nothing; only see how far the erasures have come.
    """

    policy: str
    expire_snapshots: bool = True
    snapshots: SnapshotLimits = SnapshotLimits()
    batch_ids: tuple[str, ...] = ()
    plan_only: bool = False
    approved_plan: str = ""
    max_bytes: int | None = None
    step_bytes: int = 20 * 1024**3
    max_seconds: int | None = None
    stop_by: datetime | None = None
    target_file_size_bytes: int | None = None
    evict_by_lead_seconds: int = 86_400
    maintenance: Maintenance = Maintenance()
    erasures_only: bool = False


class RunSpec(Document):
    """`run.json`. Exactly one of the three last fields is set, the one that `family` names.

    `seen_table_uuid` is the UUID of the table that whoever asks for the run saw; the run refuses any other table, and creates
    none. None: not to be checked. `seen_snapshot_id` and `seen_sequence_number` are the head that whoever asks for the run saw
    last; the run refuses a table that was rolled back to before it. None: not to be checked. `snapshots`: how many snapshots
    any commit may leave.
    `batch_tracking`: keep the table of batches beside the table. `boundary`: what the run may touch; None sets no limit.
    """

    api_version: str = CONTRACT_VERSION
    family: RunFamily = Field(alias="kind")
    run_id: str
    attempt: int = 1
    dataset: DatasetRef
    table: TableRef
    batch_column: str
    buffer: BufferRef
    schema_evolution: SchemaEvolution = "Refuse"
    seen_table_uuid: str | None = None
    seen_snapshot_id: int | None = None
    seen_sequence_number: int | None = None
    snapshots: SnapshotLimits | None = None
    batch_tracking: bool = False
    boundary: RunBoundary | None = None
    consolidation: ConsolidationSpec | None = None
    restatement: RestatementGroupSpec | None = None
    vacuum: VacuumSpec | None = None

    @property
    def kind(self) -> RunKind:
        """What the run is for, as the content of the document says."""
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


class RunPointer(Document):
    """What the ConfigMap holds instead of a `run.json` that is too large for it: where it lies and how to know it."""

    api_version: str = CONTRACT_VERSION
    catalog: str  # whose FileIO properties open the URI
    uri: str
    sha256: str


class ResultPointer(RunPointer):
    """The same instead of a `result.json`, and which attempt's it is."""

    run_id: str
    attempt: int


class RunMember(Document):
    """One of several runs that share a driver: where its `run.json` lies, and where its progress and result go: into this
    ConfigMap, under keys with this prefix."""

    run_file: str
    config_map: str
    prefix: str


class MailboxEntry(Document):
    """A run for the committer: the value of one key of its mailbox. What is to be done lies in the Dataset's ConfigMap, as
    `<prefix>.run.json`; progress and result go there as of any run.

    `run_id`, `family` and `attempt` are those of that document, or it is not what was meant. The entries of one Dataset are
    carried out in the order of their `created_time`.
    """

    api_version: str = CONTRACT_VERSION
    dataset_uid: str
    run_id: str
    family: RunFamily = Field(alias="kind")
    attempt: int = 1
    config_map: str
    prefix: str
    created_time: datetime


def parse_run(text: str) -> RunSpec:
    """Parse a `run.json`. Raises pydantic.ValidationError, naming the field."""
    return RunSpec.model_validate_json(text)


def is_pointer(document: dict[str, Any]) -> bool:
    return "uri" in document and "kind" not in document
