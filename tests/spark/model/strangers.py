"""Other writers, which do not know ledgers: Spark SQL, PyIceberg, and Iceberg's Java library. I/O."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pyarrow as pa
from lethe_spark.jvm.spark_table import SparkTable
from pyiceberg.table import Table

from tests.model.rows import COLUMNS, Rows, as_arrow
from tests.spark.model.dataset import Dataset
from tests.spark.support.streaming_writer import delete_values


@dataclass(frozen=True)
class Strangers:
    dataset: Dataset

    # --- rows -----------------------------------------------------------------------------------------------------

    def append(self, rows: Rows, branch: str = "") -> None:
        """Append with PyIceberg, or with Spark if PyIceberg cannot write the rows."""
        if self.dataset.format_version == 2 and not branch and "extra" not in self._columns():
            self._table().append(as_arrow(rows))
            return
        values = [(r[1], r[2], f"{r[0] or ''}~{r[1]}", r[0]) for r in rows.elements()]
        frame = self.dataset.spark.createDataFrame(values, COLUMNS)
        if "extra" in self._columns():
            frame = frame.selectExpr("*", "concat('x', v % 2) AS extra")
        frame.writeTo(f"{self.dataset.full_name}{f'.branch_{branch}' if branch else ''}").append()

    def delete(self, v: int, how: Literal["copy-on-write", "merge-on-read", "equality"]) -> None:
        if how == "equality":
            self._delete_by_equality(v)
            return
        with self._property("write.delete.mode", how):
            self._sql(f"DELETE FROM {{t}} WHERE v = {v}")

    def _delete_by_equality(self, v: int) -> None:
        """Commit a global equality delete of one value of `v`, as a streaming writer does."""
        delete_values(self.dataset, pa.table({"v": pa.array([v], pa.int64())}))

    # --- layout ---------------------------------------------------------------------------------------------------

    def compact(self) -> None:
        self._call("rewrite_data_files", "options => map('rewrite-all', 'true')")

    def repartition(self, by: str | None) -> None:
        """Partition new files by a column, or by none. The column `extra` is added for it, if it does not exist."""
        if by == "extra":
            self.change_column("add")
        partitioned = {f.name for f in self._table().spec().fields}
        for field in partitioned - {by}:
            self._sql(f"ALTER TABLE {{t}} DROP PARTITION FIELD {field}")
        if by is not None and by not in partitioned:
            self._sql(f"ALTER TABLE {{t}} ADD PARTITION FIELD {by}")

    def change_column(self, change: Literal["add", "drop"]) -> None:
        """Add the column `extra`, or drop it, and before that the partition field of it."""
        there = "extra" in self._columns()
        if change == "add" and not there:
            self._sql("ALTER TABLE {t} ADD COLUMN extra string")
        elif change == "drop" and there:
            if "extra" in {f.name for f in self._table().spec().fields}:
                self._sql("ALTER TABLE {t} DROP PARTITION FIELD extra")
            self._sql("ALTER TABLE {t} DROP COLUMN extra")

    # --- history --------------------------------------------------------------------------------------------------

    def tag_the_head(self) -> int | None:
        """Tag the head and return its id; None: the table has no snapshot."""
        table = self._table()
        head = table.metadata.current_snapshot_id
        if head is not None and f"tag_{head}" not in table.refs():
            self._java().manageSnapshots().createTag(f"tag_{head}", head).commit()
        return head

    def branch_the_head(self, branch: str) -> bool:
        """Create a branch at the head, if it does not exist. Return whether it exists now."""
        table = self._table()
        head = table.metadata.current_snapshot_id
        if branch in table.refs():
            return True
        if head is not None:
            self._java().manageSnapshots().createBranch(branch, head).commit()
        return head is not None

    def drop_refs(self) -> None:
        for name, ref in self._table().refs().items():
            if name != "main":
                self._sql(
                    f"ALTER TABLE {{t}} DROP {'TAG' if str(ref.snapshot_ref_type.value) == 'tag' else 'BRANCH'} {name}"
                )

    def fast_forward(self, branch: str) -> None:
        self._sql(f"CALL {{catalog}}.system.fast_forward('{{name}}', 'main', '{branch}')")

    def set_head(self, snapshot_id: int) -> None:
        self._sql(f"CALL {{catalog}}.system.set_current_snapshot('{{name}}', {snapshot_id})")

    def cherry_pick(self, snapshot_id: int) -> None:
        self._sql(f"CALL {{catalog}}.system.cherrypick_snapshot('{{name}}', {snapshot_id})")

    def expire_by_spark(self, keep: int) -> None:
        self._call("expire_snapshots", f"older_than => TIMESTAMP '2999-01-01 00:00:00', retain_last => {keep}")

    def expire_by_pyiceberg(self, snapshot_ids: list[int]) -> None:
        """Expire snapshots without deleting files. Uses the Java library if PyIceberg cannot write the format version."""
        if self.dataset.format_version != 2:
            expiry = self._java().expireSnapshots().cleanExpiredFiles(False)
            for i in snapshot_ids:
                expiry = expiry.expireSnapshotId(i)
            expiry.commit()
            return
        self._table().maintenance.expire_snapshots().by_ids(snapshot_ids).commit()

    def remove_orphans(self) -> None:
        # A literal: Spark 4.1 does not bind an expression such as now() - INTERVAL 2 DAYS to an argument of a procedure.
        then = datetime.now(UTC) - timedelta(days=2)
        self._call("remove_orphan_files", f"older_than => TIMESTAMP '{then:%Y-%m-%d %H:%M:%S}'")

    def replace_table(self, rows: Rows) -> None:
        values = [(r[1], r[2], f"{r[0] or ''}~{r[1]}", r[0]) for r in rows.elements()]
        self.dataset.spark.createDataFrame(values, COLUMNS).writeTo(self.dataset.full_name).using(
            "iceberg"
        ).createOrReplace()

    def rename(self, to: str, back: bool = False) -> None:
        here, there = self.dataset.name, to
        old, new = (there, here) if back else (here, there)
        self._sql(f"ALTER TABLE {{catalog}}.{old} RENAME TO {new}")

    def drop(self) -> None:
        self._sql("DROP TABLE {t} PURGE")

    # --------------------------------------------------------------------------------------------------------------

    def _table(self) -> Table:
        return self.dataset.table()

    def _java(self) -> Any:
        table = SparkTable.load(self.dataset.spark, self.dataset.catalog, self.dataset.name)
        assert table is not None
        return table.java

    def _columns(self) -> set[str]:
        return {f.name for f in self._table().schema().fields}

    def _call(self, procedure: str, arguments: str) -> None:
        self._sql(f"CALL {{catalog}}.system.{procedure}(table => '{{name}}', {arguments})")

    def _sql(self, text: str) -> None:
        d = self.dataset
        d.spark.sql(text.format(t=d.full_name, catalog=d.catalog, name=d.name)).collect()

    @contextmanager
    def _property(self, name: str, value: str) -> Iterator[None]:
        self._sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('{name}' = '{value}')")
        try:
            yield
        finally:
            self._sql(f"ALTER TABLE {{t}} UNSET TBLPROPERTIES ('{name}')")
