"""A user's Spark job as a writer, without operator and Dataset: find the table, and prepare it on first use. I/O."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from lethe.base import names
from lethe.base.errors import InputError
from lethe.contract.result import Phase
from lethe.contract.run import AcceptedHead
from lethe.files.bounds import IdIndex
from lethe.iceberg import catalogs
from lethe.iceberg.facts import TableFacts, column_dropped
from lethe.ledger.parts import get_many
from lethe.storage.vended import of_table
from pyspark.sql import SparkSession

from lethe_spark.commit.parsed_metadata import facts_of
from lethe_spark.commit.table_state import Base, refuse_batches
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import crash_point
from lethe_spark.sql.folder_server import require_served

log = logging.getLogger(__name__)


class LogReporter:
    """Reports progress to the log only. The user watches the job."""

    def phase(self, phase: Phase, message: str = "") -> None:
        log.debug("%s %s", phase, message)


@dataclass(frozen=True)
class SdkWriter:
    """A `Committer`. It may write a table that a Dataset claims: each commit is a compare-and-set, so neither loses the
    other's changes."""

    table_name: str
    batch_column: str
    run_id: str
    run_kind: str
    catalog_properties: Mapping[str, str]
    reporter: LogReporter = field(default_factory=LogReporter)
    claim: str | None = None
    accepts: AcceptedHead | None = None
    seen_table_uuid: str | None = None
    seen_snapshot_id: int | None = None
    seen_sequence_number: int | None = None

    def step(self, name: str) -> None:
        crash_point(name)


def find_table(spark: SparkSession, table: str) -> tuple[SparkTable, dict[str, str]]:
    """The table and PyIceberg's properties of its catalog.

    Args:
        table: `catalog.namespace.table`. The catalog must be configured in this session and in `.pyiceberg.yaml`.
    Raises: InputError (InvalidName, UnknownCatalog, CatalogNotServed, TableNotFound, TableHoldsBatches), TableError,
        TransientError.
    """
    catalog, dot, name = table.partition(".")
    if not dot or "." not in name:
        raise InputError("InvalidName", f"{table!r}: expected catalog.namespace.table.")
    properties = catalogs.properties(catalog)
    require_served(spark, catalog, name, properties)
    if spark.conf.get(f"spark.sql.catalog.{catalog}", None) is None:
        raise InputError(
            "UnknownCatalog",
            f"this Spark session has no catalog {catalog}. Make the session with lethe_spark.apps.session.make_session"
            f"({catalog!r}), or set spark.sql.catalog.{catalog} and its properties.",
        )
    found = SparkTable.load(spark, catalog, name)
    if found is None:
        raise InputError("TableNotFound", f"catalog {catalog} has no table {name}; create it first.")
    refuse_batches(found)
    return found, properties


def prepare_table(table: SparkTable, properties: Mapping[str, str], batch_column: str, wanted: bool) -> None:
    """Set the properties that say where the table's ledgers begin and which column holds the batch ids. If the table is empty
    or preparing is `wanted`, also set the sort order and exact bounds. Safe to repeat, and to run beside other writers.

    Raises: InputError (BatchColumnMissing, BatchColumnDropped, BatchColumnType, FormatVersionTooOld), TransientError.
    """
    facts = facts_of(table, of_table(properties, table.name), batch_column, table.name)
    if facts.format_version < 2:
        raise InputError(
            "FormatVersionTooOld",
            f"{table.full_name} has Iceberg format version 1, which does not number its commits. Set the table property "
            "format-version to 2.",
        )
    if facts.batch_field_id is None and facts.remembered_field_id is not None:
        raise column_dropped(facts, "the table")
    if facts.batch_field_id is None:
        raise InputError(
            "BatchColumnMissing",
            f"{table.full_name} has no column {batch_column}; its columns are {', '.join(facts.columns)}. Add a string "
            "column of that name, or pass the name of another with batch_column.",
        )
    missing: dict[str, str] = {}
    if facts.ledger_since is None and not any(s.ledger for s in facts.snapshots.values()):
        # The current rows are older than any ledger. They stay readable, also if the ancestors of the head have expired.
        missing[names.LEDGER_SINCE] = str(facts.last_sequence_number)
    if names.BATCH_COLUMN not in facts.properties:
        missing[names.BATCH_COLUMN] = str(facts.batch_field_id)
    column = table.column_name(facts.batch_field_id) or batch_column
    if not facts.prepared and (wanted or _is_empty(facts)):
        table.ensure_layout(column, missing)
    elif missing:
        table.set_properties(missing)
    if not facts.prepared and not wanted and not _is_empty(facts):
        log.warning(
            "%s is not sorted by %s or has truncated metrics of it: reads and vacuums open more files than necessary. Write "
            "once with prepare=True. `lethe doctor %s` shows the details.",
            table.full_name,
            column,
            table.full_name,
        )


def _is_empty(facts: TableFacts) -> bool:
    """Whether the head holds no rows. A head that does not record its number of rows counts as not empty."""
    if facts.head_id is None:
        return True
    return facts.snapshots[facts.head_id].summary.get("total-records") == "0"


def ids_in_files(base: Base, batch_ids: Collection[str]) -> frozenset[str]:
    """The ids that the ledger does not know and that, by the bounds, some data file may hold. Reads manifests, no rows."""
    known = get_many(base.ledger.batches, batch_ids)
    unknown = [i for i in batch_ids if i not in known]
    if not unknown:
        return frozenset()
    index = IdIndex(unknown)
    return frozenset(i for f in base.files() for i in index.within(f))
