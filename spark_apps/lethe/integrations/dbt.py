"""A plugin of dbt-duckdb: an SQL function that reads what changed in a table since a snapshot. I/O: the table, and files.

`examples/dbt/macros/lethe.sql` calls it. It reads the table from this machine, as `lethe.scan` does.
"""

import hashlib
import tempfile
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from dbt.adapters.duckdb.plugins import BasePlugin
from pyiceberg.expressions import AlwaysFalse, BooleanExpression, In, IsNull, Or

from lethe.base.errors import InputError
from lethe.read.scan import Scan, Which, scan

_FULL_REFRESH: Final = ("ErasedBetween", "ForeignChange", "NotAnAncestor", "RetentionBetween", "SnapshotNotFound")
"""Reasons for which an increment cannot be read, and the whole table can."""
_BATCHES: Final = pa.schema([("batch_id", pa.string())])
_SNAPSHOT: Final = pa.schema([("snapshot_id", pa.int64())])


class Plugin(BasePlugin):
    """Adds `lethe_changes(table, batch_column, since, key)`, which returns a folder with three Parquet files.

    `rows` has the rows of all batches that changed after the snapshot `since`, or all rows if that is null; `batches` the ids of
    these batches, also of those that have no rows any more; `snapshot` the snapshot up to which that is. A second call with the
    same key returns the same folder.
    """

    def initialize(self, plugin_config: dict[str, Any]) -> None:  # noqa: ARG002
        """Make the folder, which is deleted when dbt ends."""
        self._folder = tempfile.TemporaryDirectory(prefix="lethe-dbt-")

    def configure_connection(self, conn: duckdb.DuckDBPyConnection) -> None:
        """Add the function."""
        conn.create_function(  # type: ignore[call-overload]  # the names of enumerations are accepted
            "lethe_changes",
            self.changes,
            ["VARCHAR", "VARCHAR", "BIGINT", "VARCHAR"],
            "VARCHAR",
            null_handling="special",
            side_effects=True,
        )

    def changes(self, table: str, batch_column: str, since: int | None, key: str) -> str:
        """Read the changes, and return the folder.

        Raises:
            InputError: Those of `lethe.scan`, with what to do.
            TransientError: The catalog or the store is away.
        """
        folder = Path(self._folder.name) / hashlib.sha256(key.encode()).hexdigest()[:32]
        if not (folder / "snapshot.parquet").exists():
            folder.mkdir(exist_ok=True)
            try:
                _write_changes(folder, table, batch_column, since)
            except InputError as e:
                if since is None or e.reason not in _FULL_REFRESH:
                    raise
                raise InputError(e.reason, f"{e.message} Run dbt with --full-refresh to read the whole table.") from e
        return str(folder)


def _write_changes(folder: Path, table: str, batch_column: str, since: int | None) -> None:
    now = scan(table)
    batches: set[str | None] = set()
    changes: tuple[Which, ...] = ("appended", "deleted")
    if since is not None and now.snapshot_id is not None:
        for change in changes:
            # The same state of the table, with its columns of now. Those of its snapshot may be older.
            increment = scan(now.table, since=since, rows=change, columns=[batch_column])
            for rows in increment.to_batches():
                batches.update(rows.column(0).unique().to_pylist())
        now = now.filter(_of(batch_column, batches))
    _write(folder / "rows.parquet", now)
    pq.write_table(pa.table({"batch_id": sorted(batches, key=str)}, _BATCHES), folder / "batches.parquet")
    pq.write_table(pa.table({"snapshot_id": [now.snapshot_id]}, _SNAPSHOT), folder / "snapshot.parquet")


def _of(batch_column: str, batches: set[str | None]) -> BooleanExpression:
    ids = {b for b in batches if b is not None}
    chosen: BooleanExpression = In(term=batch_column, literals=ids) if ids else AlwaysFalse()
    return Or(chosen, IsNull(term=batch_column)) if None in batches else chosen


def _write(path: Path, rows: Scan) -> None:
    reader = rows.to_reader()
    with pq.ParquetWriter(path, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)
