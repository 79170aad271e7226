"""A user's own Spark job as a committer: no operator, no Dataset; the table is found, and prepared on its first use. I/O."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from lethe.base import names
from lethe.base.errors import InputError
from lethe.contract.result import Phase
from lethe.contract.run import AcceptedHead
from lethe.files.bounds import IdIndex
from lethe.iceberg import catalogs
from lethe.iceberg.facts import TableFacts, column_dropped, observe
from lethe.ledger.parts import get_many
from lethe.storage.vended import of_table
from pyspark.sql import SparkSession

from lethe_spark.commit.table_state import Base, refuse_batches, static_table
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import crash_point
from lethe_spark.sql.folder_server import require_served

log = logging.getLogger(__name__)


class Logged:
    """Reports to the log: whoever wrote the job watches it himself."""

    def phase(self, phase: Phase, message: str = "") -> None:
        log.debug("%s %s", phase, message)


@dataclass(frozen=True)
class OwnJob:
    """A `Committer`. It may write tables that a Dataset claims as well: the compare-and-set of each commit keeps them
    out of each other's way."""

    table_name: str
    batch_column: str
    run_id: str
    run_kind: str
    catalog_properties: Mapping[str, str]
    reporter: Logged = field(default_factory=Logged)
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
        table: `catalog.namespace.table`; the catalog is one that both this session and `.pyiceberg.yaml` know.
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
            f"({catalog!r}), or set spark.sql.catalog.{catalog} and what belongs to it.",
        )
    found = SparkTable.load(spark, catalog, name)
    if found is None:
        raise InputError("TableNotFound", f"catalog {catalog} has no table {name}; create it first.")
    refuse_batches(found)
    return found, properties


def prepare_table(table: SparkTable, properties: Mapping[str, str], batch_column: str, wanted: bool) -> None:
    """See to it that the table says where its ledgers begin and which column names the batches; and, when it is empty or
    this is `wanted`, that it is sorted by that column with exact bounds. Safe to repeat, and beside other writers.

    Raises: InputError (BatchColumnMissing, BatchColumnDropped, BatchColumnType, FormatVersionTooOld), TransientError.
    """
    facts = observe(
        static_table(table.metadata_location, of_table(properties, table.name)), batch_column, name=table.name
    )
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
            "column of that name, or name another with batch_column.",
        )
    missing: dict[str, str] = {}
    if facts.ledger_since is None and not any(s.ledger for s in facts.snapshots.values()):
        # What is there now was written before any ledger: it is read as it is, though its ancestors expired long ago.
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
            "%s is not sorted by %s or keeps truncated metrics of it: reads and vacuums look into more files than they "
            "need. Write once with prepare=True; `lethe doctor %s` says more.",
            table.full_name,
            column,
            table.full_name,
        )


def _is_empty(facts: TableFacts) -> bool:
    """Whether the head holds no rows; what does not say counts as full."""
    if facts.head_id is None:
        return True
    return facts.snapshots[facts.head_id].summary.get("total-records") == "0"


def ids_in_files(base: Base, batch_ids: Collection[str]) -> frozenset[str]:
    """Those of the ids, unknown to the ledger, that some data file might hold by its bounds. Reads manifests, no rows."""
    known = get_many(base.ledger.batches, batch_ids)
    strangers = [i for i in batch_ids if i not in known]
    if not strangers:
        return frozenset()
    index = IdIndex(strangers)
    return frozenset(i for f in base.files() for i in index.within(f))
