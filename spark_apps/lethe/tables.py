"""A table for programs and notebooks: its rows, its batches, the history of a batch, and reverts. I/O.

Reading needs neither Spark nor Kubernetes. A revert is the work of an operator, or of `lethe_spark`.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table as IcebergTable

from lethe import batches_table, finding, ledger_store
from lethe.base.errors import InputError, LetheError
from lethe.buffer.batch_rows import BatchRow, row_of
from lethe.contract.run import Provenance
from lethe.finding import DatasetTable, TableFound
from lethe.iceberg.facts import TableFacts, observe
from lethe.ledger.ledger import BatchEntry, Ledger, RequestEntry, get_many
from lethe.ledger.lineage import Snapshot
from lethe.read import scan
from lethe.read.scan import Scan, SnapshotOrTime, Which
from lethe.read.scan import scan as scan_table
from lethe.restatement.plan import provenances, recalled
from lethe.restatement.selection import named_batches

BATCH_COLUMN: Final = "batch_id"
"""Of tables that Lethe has not prepared."""
PARALLEL_LEDGERS: Final = 8
REDACTED: Final = "redacted"
"""In a history: a Redact that names the batch has changed values in its rows. It is no state of the batch."""
Through: TypeAlias = Literal["operator", "commit"]

_CHANGES: Final = pa.schema(
    [
        pa.field("time", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("snapshot_id", pa.int64(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("tombstoned", pa.bool_(), nullable=False),
        pa.field("rows", pa.int64()),
        pa.field("run_id", pa.string()),
        pa.field("restatement", pa.string()),
        pa.field("replaced_by", pa.string()),
        pa.field("refusal_reason", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("ticket", pa.string()),
        pa.field("requested_by", pa.string()),
        pa.field("reference", pa.string()),
    ]
)


@dataclass(frozen=True)
class Reverted:
    """The outcome of a revert."""

    restatement: str
    """The name of the Restatement, or for a commit the key in the ledger that `lethe_spark.undo` takes."""
    through: Through
    """`"operator"`: it made the commit; `"commit"`: this process made it."""
    snapshot_id: int | None
    """The snapshot of the commit. None: an earlier commit, whose snapshot is not known any more."""
    rows_deleted: int | None
    """The number of rows that readers no longer see, as far as it is known."""


@dataclass(frozen=True)
class _View:
    """A table at one moment."""

    table: IcebergTable
    facts: TableFacts
    name: str


class Table:
    """A table that `lethe.table` has found. Each call reads the table as it is then."""

    def __init__(self, found: TableFound) -> None:
        self._found = found

    @property
    def name(self) -> str:
        """Catalog.namespace.table."""
        return self._found.name

    @property
    def iceberg(self) -> IcebergTable:
        """The table as PyIceberg loads it now. PyIceberg itself does not leave out the rows of reverted batches.

        Raises:
            InputError: TableNotFound, TableIsView, CatalogUnusable.
            TransientError: `CatalogUnavailable`.
        """
        return self._found.load()

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of its current columns.

        Raises:
            InputError: TableNotFound, TableIsView, CatalogUnusable.
            TransientError: `CatalogUnavailable`.
        """
        schema: pa.Schema = schema_to_pyarrow(self.iceberg.schema(), include_field_ids=False)
        return schema

    def scan(
        self,
        *,
        columns: Sequence[str] | None = None,
        filter: str | BooleanExpression | None = None,
        snapshot_id: int | None = None,
        as_of: datetime | None = None,
        since: SnapshotOrTime | None = None,
        until: SnapshotOrTime | None = None,
        rows: Which | None = None,
    ) -> Scan:
        """Read the table, with the options of `lethe.scan`.

        Raises:
            InputError: As `scan`.
            LedgerError: A ledger is missing or cannot be read.
            TransientError: `CatalogUnavailable`.
        """
        return scan_table(
            self.iceberg,
            columns=columns,
            filter=filter,
            snapshot_id=snapshot_id,
            as_of=as_of,
            since=since,
            until=until,
            rows=rows,
        )

    def batches(self) -> pa.Table:
        """The batches, as `lethe.batches` returns them.

        Raises:
            InputError: As `batches`.
            LedgerError: A ledger is missing or cannot be read.
            TransientError: `CatalogUnavailable`.
        """
        return batches(self)

    def history(self, batch_id: str) -> pa.Table:
        """What happened to a batch, as `lethe.history` returns it.

        Raises:
            InputError: As `history`.
            LedgerError: A ledger is missing or cannot be read.
            TransientError: `CatalogUnavailable`.
        """
        return history(self, batch_id)

    def revert(self, batch_ids: str | Sequence[str] = (), **options: Any) -> Reverted:
        """Delete the rows of batches. The options are those of `lethe.revert`.

        Raises:
            InputError: As `revert`.
            LetheError: As `revert`.
        """
        return revert(self, batch_ids, **options)

    def __repr__(self) -> str:
        return f"lethe.table({self.name!r})" if len(self.name) <= scan.TEXT_AT_MOST else "lethe.table(…)"

    def _repr_html_(self) -> str:
        return scan.html("Table", self.name, scan.columns_of(self.schema))


TableOrName: TypeAlias = str | Table | IcebergTable


def table(name: str, catalog: Catalog | str | None = None) -> Table:
    """Find a table, by its name or that of a Dataset.

    These places are asked, in this order. An error names all of them.

    1. the argument `catalog`
    2. PyIceberg's configuration: `.pyiceberg.yaml`, and variables `PYICEBERG_CATALOG__…`
    3. the catalogs of `lethe local`, if it runs in `LETHE_LOCAL` or `~/.lethe`
    4. the Datasets of the cluster that the commands use. They name a catalog, which your configuration has to have.

    A name in two parts is looked for in each catalog of a place, first in PyIceberg's default catalog. A Dataset is read from
    where the commands read it: the cluster of `KUBECONFIG`, else `lethe local`, else the current context.

    Args:
        name: `catalog.namespace.table`, `namespace.table`, or the name of a Dataset: without a dot, or `dataset/<name>`.
        catalog: A catalog of PyIceberg, or the name of one; then `name` is `namespace.table`.

    Raises:
        InputError: InvalidRead, UnknownCatalog, TableNotFound, AmbiguousTable, TableIsView, UnsupportedCatalog, CatalogUnusable;
            of a Dataset NotInstalled, UnknownName, NoCluster and others of the connection.
        TransientError: CatalogUnavailable, ClusterAway.
    """
    found, _ = finding.find(name, catalog)
    return Table(found)


def batches(table: TableOrName) -> pa.Table:
    """The batches of a table, by the time of their last change. `.to_pylist()` gives rows.

    The columns are those of [the table of batches](batches.md). Batches that wait in the buffer are included if the table has a
    table of batches that is up to date.

    Args:
        table: What `lethe.table` returns or takes, or a loaded PyIceberg table.

    Raises:
        InputError: As `table`; UnsafeProperty, BatchColumnType.
        LedgerError: A ledger is missing or cannot be read.
        TransientError: CatalogUnavailable, ClusterAway.
    """
    view = _view(table)
    loaded = ledger_store.load(view.table.io, view.facts)
    rows = _tracked(view, loaded) or _rows_of(list(loaded.ledger.batches.values()), loaded.ledger)
    return batches_table.as_arrow(sorted(rows, key=lambda b: (b.state_time, b.batch_id)))


def history(table: TableOrName, batch_id: str) -> pa.Table:
    """What happened to a batch, as far as the retained snapshots show it, the oldest change first.

    The columns are `time`, `snapshot_id`, `state`, `tombstoned`, `rows`, `run_id`, `restatement`, `replaced_by`,
    `refusal_reason`, of the Restatement its `reason`, `ticket` and `requested_by`, and the `reference` of the run of another
    program that delivered it. A batch that is not promoted and not tombstoned has no rows in the table any more. `state` is
    `redacted` where a Redact that names the batch has changed values in its rows, which leaves the state as it was; Redacts that
    name records are not shown. Reads the root of each retained ledger.

    Args:
        table: What `lethe.table` returns or takes, or a loaded PyIceberg table.
        batch_id: The id of the batch.

    Raises:
        InputError: As `table`; UnknownBatch, UnsafeProperty, BatchColumnType.
        LedgerError: A ledger is missing or cannot be read.
        TransientError: CatalogUnavailable, ClusterAway.
    """
    view = _view(table)
    carriers = _carriers(view.facts)
    key = (view.facts.remembered_field_id or view.facts.batch_field_id or 0, batch_id)
    current = ledger_store.load(view.table.io, view.facts).ledger
    redacts = _redacts_of(batch_id, current)

    def look(snapshot: Snapshot) -> _Seen:
        ledger = ledger_store.load(view.table.io, view.facts, snapshot.id).ledger
        return _Seen(
            snapshot,
            get_many(ledger.batches, [batch_id]).get(batch_id),
            bool(get_many(ledger.tombstones, [key])),
            frozenset(get_many(ledger.requests, redacts)),
        )

    with ThreadPoolExecutor(PARALLEL_LEDGERS) as pool:
        seen = list(pool.map(look, carriers))
    changes: list[tuple[_Seen, BatchRow]] = []
    before = _Seen()
    for now in seen:
        if now.entry is not None and now.state != before.state:
            (row,) = _rows_of([now.entry], current)
            changes.append((now, row))
        for request in sorted(now.redacts - before.redacts, key=lambda k: redacts[k].time):
            changes.append((now, _redacted_row(batch_id, now.entry, redacts[request])))
        before = now
    if not changes:
        raise InputError("UnknownBatch", f"the ledger of {view.name} has no batch {batch_id!r}.")
    documents = [
        {
            **vars(row),
            "time": datetime.fromtimestamp(at.snapshot.timestamp_ms / 1000, UTC),
            "snapshot_id": at.snapshot.id,
            "tombstoned": at.is_tombstoned,
        }
        for at, row in changes
        if at.snapshot is not None
    ]
    return pa.Table.from_pylist(documents, _CHANGES)


@dataclass(frozen=True)
class _Seen:
    """What the ledger of one snapshot says of a batch. Without arguments: before the first ledger."""

    snapshot: Snapshot | None = None
    entry: BatchEntry | None = None
    is_tombstoned: bool = False
    redacts: frozenset[str] = frozenset()
    """Keys of the Redacts of the batch that are carried out."""

    @property
    def state(self) -> tuple[str, bool, str] | None:
        """None: the ledger does not know the batch."""
        return None if self.entry is None else (self.entry.state.value, self.is_tombstoned, self.entry.run)


def _redacts_of(batch_id: str, ledger: Ledger) -> dict[str, RequestEntry]:
    """The Redacts that name a batch, by key. Those that name records do not say whose batches they are of."""
    results = ((entry, recalled(entry)) for entry in ledger.requests.values())
    return {e.key: e for e, r in results if r.redaction is not None and batch_id in r.redaction.batch_ids}


def _redacted_row(batch_id: str, batch: BatchEntry | None, request: RequestEntry) -> BatchRow:
    """A change by a Redact, which leaves the state of the batch as it was."""
    asked = recalled(request).provenance or Provenance()
    return BatchRow(
        batch_id,
        REDACTED,
        request.time,
        rows=batch.rows if batch is not None else None,
        run_id=request.run,
        restatement=request.key,
        reason=asked.reason or None,
        ticket=asked.ticket or None,
        requested_by=asked.requested_by or None,
    )


def revert(
    table: TableOrName,
    batch_ids: str | Sequence[str] = (),
    *,
    reference: str = "",
    reason: str = "",
    name: str = "",
    through: Through | None = None,
    wait_seconds: float = 600,
    spark: Any = None,
) -> Reverted:
    """Delete the rows of whole batches.

    If the table is that of a Dataset in the cluster that the commands use, or in `lethe local`, this creates a Restatement and
    waits for its commit. Otherwise this process commits with `lethe_spark.revert`, which needs Spark. A table that a Dataset has
    claimed is reverted without its operator only with `through="commit"`.

    Args:
        table: What `lethe.table` returns or takes, or a loaded PyIceberg table.
        batch_ids: The batches.
        reference: All batches that the run of another program with this id delivered, instead of batch ids.
        reason: A text for people, stored in the ledger. No personal data.
        name: The name of this revert. A second call with the same name and ids changes nothing. Empty: through an operator, the
            same call again also changes nothing; each commit is a new revert.
        through: `"operator"` or `"commit"` allows only this way.
        wait_seconds: How long to wait for the operator.
        spark: A Spark session with the catalog of the table. None: the active one, else `lethe_spark.make_session`.

    Raises:
        InputError: As `table`; NoBatchIds, NoOperator, NotInstalled, NotRestated, AlreadyExists, Forbidden, InvalidRead, and
            those of `lethe_spark.revert`.
        ConflictError: The table moved between plan and commit.
        TransientError: NotRestatedYet, CatalogUnavailable, ClusterAway.
        LedgerError: A ledger file is unusable.
    """
    ids = named_batches(batch_ids, reference)
    if through not in (None, "operator", "commit"):
        raise InputError("InvalidRead", f"through={through!r}: expected operator or commit.")
    view = _view(table)
    dataset, looked = (None, "") if through == "commit" else _dataset_of(view)
    if dataset is not None:
        restated, status = import_module("lethe_kubectl.programs").revert(
            dataset, ids, reference, reason, name, wait_seconds
        )
        result = status.result
        return Reverted(
            restated,
            "operator",
            result.snapshot_id if result is not None else None,
            result.rows_deleted if result is not None else None,
        )
    if through == "operator" or (through is None and view.facts.claim is not None):
        claim = f"Dataset {view.facts.claim} has claimed it" if view.facts.claim else "no Dataset has claimed it"
        raise InputError(
            "NoOperator",
            f"{view.name}: {claim}, and no Dataset of this table was found ({looked}). Choose its cluster with KUBECONFIG, or "
            'pass through="commit" to commit from this process; an operator accepts that.',
        )
    return _committed(view, ids, reference, reason, name, spark)


# --- parts ----------------------------------------------------------------------------------------------------------------


def _view(table: TableOrName) -> _View:
    if isinstance(table, str):
        _, loaded = finding.find(table)
    else:
        loaded = table.iceberg if isinstance(table, Table) else table
    name = f"{loaded.catalog.name}.{'.'.join(loaded.name())}"
    return _View(loaded, observe(loaded, BATCH_COLUMN, name), name)


def _rows_of(entries: Sequence[BatchEntry], ledger: Ledger) -> list[BatchRow]:
    """The rows of batches, with who asked for their Restatements and why."""
    asked = provenances(ledger.requests, [e.restatement for e in entries if e.restatement])
    return [row_of(e, asked.get(e.restatement or "")) for e in entries]


def _tracked(view: _View, loaded: ledger_store.Loaded) -> list[BatchRow] | None:
    """The rows of the table of batches; None: there is none, or it does not show this ledger."""
    try:
        tracking = batches_table.find(view.table.catalog, ".".join(view.table.name()))
    except InputError:  # the table of that name is not Lethe's
        return None
    shown = batches_table.shown(tracking) if tracking is not None else None
    if tracking is None or shown is None:
        return None
    if (shown.table_uuid, shown.ledger) != (view.facts.uuid, loaded.resolution.pointer or ""):
        return None
    return list(batches_table.read_rows(tracking))


def _carriers(facts: TableFacts) -> list[Snapshot]:
    """The head and its retained ancestors, if they have a ledger of their own, the oldest first."""
    found: list[Snapshot] = []
    snapshot = facts.snapshots.get(facts.head_id) if facts.head_id is not None else None
    while snapshot is not None:
        if snapshot.ledger is not None:
            found.append(snapshot)
        snapshot = facts.snapshots.get(snapshot.parent_id) if snapshot.parent_id is not None else None
    return found[::-1]


def _dataset_of(view: _View) -> tuple[DatasetTable | None, str]:
    """The Dataset of a table, and where this looked for it."""
    try:
        programs = import_module("lethe_kubectl.programs")
        where, dataset = programs.of_table(".".join(view.table.name()), view.table.catalog.name)
    except ModuleNotFoundError as e:
        return None, f"{e.name} is not installed: pip install 'lethe-lake[kubectl]'"
    except LetheError as e:
        return None, str(e)
    return dataset, where


def _committed(view: _View, ids: Sequence[str], reference: str, reason: str, name: str, spark: Any) -> Reverted:
    """Revert with Spark, in this process.

    Raises:
        InputError: `NotInstalled`, and those of `lethe_spark.revert`.
    """
    try:
        session = spark or import_module("pyspark.sql").SparkSession.getActiveSession()
        lethe_spark = import_module("lethe_spark")
    except ModuleNotFoundError as e:
        raise InputError(
            "NotInstalled",
            f"no Dataset of {view.name} was found, and a commit from this process needs {e.name}. Run: pip install "
            "'lethe-lake[spark]'.",
        ) from None
    session = session or lethe_spark.make_session(view.table.catalog.name)
    done = lethe_spark.revert(session, view.name, ids, reference=reference, reason=reason, name=name or None)
    return Reverted(done.restatement, "commit", done.snapshot_id, done.rows_deleted)
