"""Reading a table with Spark, without the rows that its ledger says are deleted. I/O: reads metadata, no rows yet."""

from datetime import datetime

from lethe.errors import InputError
from lethe.table import catalogs, ledger_store
from lethe.table.facts import observe
from lethe.table.scan import resolve_snapshot
from pyspark.sql import DataFrame, SparkSession

from lethe_spark.frames import anti_join


def read(
    spark: SparkSession,
    table: str,
    *,
    snapshot_id: int | None = None,
    as_of: datetime | None = None,
    batch_column: str = "batch_id",
) -> DataFrame:
    """The rows of a table at its head, at a snapshot or at a time.

    What is returned is of one snapshot, and of the ledger of that snapshot: it stays the same when the table goes on.

    Args:
        table: `catalog.namespace.table`; the catalog is one that both this session and `.pyiceberg.yaml` know.
        as_of: An aware datetime: the head of that moment. Excludes `snapshot_id`.
        batch_column: Only looked at for a table that Lethe has not prepared; a prepared one remembers its own.
    Raises: InputError (UnknownCatalog, SnapshotNotFound, InvalidRead), LedgerError, if the ledger cannot be read.
    """
    catalog, dot, name = table.partition(".")
    if not dot or "." not in name:
        raise InputError("InvalidRead", f"{table!r}: expected catalog.namespace.table.")
    loaded = catalogs.load(catalog).load_table(name)
    facts = observe(loaded, batch_column, name=name)
    chosen = resolve_snapshot(facts, loaded, snapshot_id, as_of)
    if chosen is None:
        return spark.table(_quoted(table))
    frame = spark.read.option("versionAsOf", str(chosen)).table(_quoted(table))
    if facts.batch_field_id is None:
        return frame
    ids = ledger_store.load(loaded.io, facts, chosen).ledger.ids(facts.batch_field_id)
    if not ids:
        return frame
    # By field id, in the schema of that snapshot: the column may have had another name then.
    snapshot = loaded.metadata.snapshot_by_id(chosen)
    schema_id = snapshot.schema_id if snapshot is not None else None
    schema = loaded.schemas()[schema_id] if schema_id is not None else loaded.schema()
    column = schema.find_column_name(facts.batch_field_id)
    return frame if column is None else anti_join(frame, column, ids)


def _quoted(name: str) -> str:
    return ".".join(f"`{part.replace('`', '``')}`" for part in name.split("."))
