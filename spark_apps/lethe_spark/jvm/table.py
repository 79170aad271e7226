"""An Iceberg table in a JVM: its facts, and the layout that Lethe needs. The JVM needs no Spark session.

The folder of a run's data files. Each run has its own, so that all files it wrote can be listed, committed or not.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from lethe.base import names
from lethe.base.errors import InputError, TableError
from lethe.base.unknown_types import replace_unknown_types
from lethe.storage.properties import require_safe_table
from pyiceberg.schema import Schema

from lethe_spark.jvm.errors import JvmError, reading, says_another_table, transient
from lethe_spark.jvm.gateway import each, names_of, texts_of

_TABLE: Final = "org.apache.iceberg.BaseTable"

DATA_PATH: Final = "write.data.path"


class IcebergTable:
    """A handle to one table. Its facts are those of the last `refresh`, or of loading it.

    Args:
        gateway: py4j's gateway to the JVM.
        name: "namespace.table".
        java: Iceberg's table in this JVM.

    Raises:
        InputError: `UnsafeProperty`. Also `refresh`.
    """

    def __init__(self, gateway: Any, catalog: str, name: str, java: Any) -> None:
        self.gateway = gateway
        self.catalog = catalog
        self.name = name
        self.java = _planned_from_manifests(gateway, java)
        self._require_safe()

    @property
    def jvm(self) -> Any:
        """Java's packages and classes."""
        return names_of(self.gateway)

    @property
    def full_name(self) -> str:
        """The name with the catalog: `catalog.namespace.table`."""
        return f"{self.catalog}.{self.name}"

    @reading("refreshing a table")
    def refresh(self) -> None:
        """Read the newest state.

        Raises:
            TableError: TableReplaced, if another table has the name now.
            TransientError: A dependency is temporarily unavailable.
        """
        try:
            self.java.refresh()
        except JvmError as e:
            if not says_another_table(e):
                raise
            raise TableError(
                "TableReplaced",
                f"{self.full_name} was dropped, created again or renamed during the run. Nothing was committed to the table that "
                "has this name now. Restore the other table, or start again with this one.",
            ) from e
        self._require_safe()

    def _require_safe(self) -> None:
        """Refuse a table whose properties would configure this JVM.

        Raises:
            InputError: `UnsafeProperty`.
        """
        require_safe_table(self.full_name, self.location, self.properties)

    @property
    def metadata_location(self) -> str:
        """URI of the metadata file, as of the last `refresh`."""
        return str(self.java.operations().current().metadataFileLocation())

    @property
    def location(self) -> str:
        """URI of the table's folder, without a slash at the end."""
        return str(self.java.location()).rstrip("/")

    @property
    def uuid(self) -> str:
        """UUID from the metadata. A table that is dropped and created again gets another one."""
        return str(self.java.operations().current().uuid())

    @property
    def format_version(self) -> int:
        """Version of Iceberg's table format. Deletion vectors require version 3."""
        return int(self.java.operations().current().formatVersion())

    @property
    def head_id(self) -> int | None:
        """Id of the current snapshot. None: the table is empty."""
        head = self.java.currentSnapshot()
        return None if head is None else int(head.snapshotId())

    @property
    def last_sequence_number(self) -> int:
        """The highest sequence number of a snapshot, including staged ones."""
        return int(self.java.operations().current().lastSequenceNumber())

    @property
    def snapshot_count(self) -> int:
        """Number of retained snapshots, including staged ones."""
        return int(self.java.operations().current().snapshots().size())

    @property
    def schema_names(self) -> tuple[str, ...]:
        """Names of the top-level columns of the current schema, in its order."""
        return tuple(str(column.name()) for column in each(self.java.schema().columns()))

    @property
    def schema(self) -> Schema:
        """The current schema, with placeholders for types that Lethe does not know (`lethe.iceberg.metadata_file`)."""
        return parsed_schema(self.jvm, self.java.schema())

    @property
    def properties(self) -> dict[str, str]:
        """A new dictionary of all table properties."""
        return texts_of(self.jvm, self.java.properties())

    @property
    def is_partitioned(self) -> bool:
        """Whether the current partition spec has a field whose transform is not void."""
        return bool(self.java.spec().isPartitioned())

    @reading("reading partition specs")
    def lost_specs(self) -> frozenset[int]:
        """The ids of the partition specs of which Iceberg can no longer write partitions.

        The column of a field was dropped, and with it the type of the field's values. The field was dropped before that, so there
        is a later spec.
        """
        specs = self.java.specs()
        return frozenset(
            int(spec.specId())
            for spec in (specs.values() if int(specs.size()) > 1 else ())
            for position, field in enumerate(each(spec.fields()))
            if not field.transform().isVoid()
            and str(spec.partitionType().fields().get(position).type().typeId().toString()) == "UNKNOWN"
        )

    def field_id(self, column: str) -> int | None:
        """The Iceberg field id of a column. None: the table has no such column."""
        found = self.java.schema().findField(column)
        return None if found is None else int(found.fieldId())

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set table properties in a separate commit.

        Raises:
            TransientError: A dependency is temporarily unavailable.
        """
        try:
            update = self.java.updateProperties()
            for key, value in properties.items():
                update.set(key, value)
            update.commit()
        except JvmError as e:
            raise transient(e, f"setting properties of {self.full_name}") from e
        self.refresh()

    def column_name(self, field_id: int) -> str | None:
        """The current name of a column. None: the table has no such column, or it was dropped."""
        name = self.java.schema().findColumnName(field_id)
        return None if name is None else str(name)

    def ensure_layout(self, batch_column: str, properties: Mapping[str, str] | None = None) -> bool:
        """Prepare the table in one commit: sort order by the batch column, exact bounds of it, and its field id.

        Args:
            properties: Further table properties to set in the same commit, such as the claim.

        Returns:
            Whether anything was changed.

        Raises:
            InputError: `BatchColumnMissing`.
            TransientError: A dependency is temporarily unavailable.
        """
        field_id = self.field_id(batch_column)
        if field_id is None:
            raise InputError(
                "BatchColumnMissing",
                f"{self.full_name} has no column {batch_column!r} (spec.batchColumn); its columns are "
                f"{', '.join(self.schema_names)}",
            )
        layout = layout_properties(batch_column, field_id, partitioned=self.is_partitioned) | dict(properties or {})
        current = self.properties
        changed = {k: v for k, v in layout.items() if current.get(k) != v}
        is_sorted = self._is_sorted_by(field_id)
        if is_sorted and not changed:
            return False
        api = self.jvm.org.apache.iceberg
        try:
            transaction = self.java.newTransaction()
            if not is_sorted:
                order = transaction.replaceSortOrder()
                order.asc(api.expressions.Expressions.ref(batch_column), api.NullOrder.NULLS_FIRST).commit()
            update = transaction.updateProperties()
            for key, value in changed.items():
                update.set(key, value)
            update.commit()
            transaction.commitTransaction()
        except JvmError as e:
            raise transient(e, f"preparing the table {self.full_name}") from e
        self.refresh()
        return True

    def _is_sorted_by(self, field_id: int) -> bool:
        fields = list(each(self.java.sortOrder().fields()))
        return bool(fields) and int(fields[0].sourceId()) == field_id and bool(fields[0].transform().isIdentity())


def _planned_from_manifests(gateway: Any, java: Any) -> Any:
    """Iceberg's table, whose scans are planned from its manifests.

    A REST catalog can ask that it plans the scans itself (`scan-planning-mode`), and leave out rows that a reader may not see.
    Whoever rewrites the files of such a plan would delete the other rows.
    """
    if str(java.getClass().getName()) == _TABLE:
        return java
    return names_of(gateway).org.apache.iceberg.BaseTable(java.operations(), java.name())


def layout_properties(batch_column: str, field_id: int, *, partitioned: bool) -> dict[str, str]:
    """The table properties that Lethe's reads and vacuums rely on. Pure.

    A partitioned table is distributed by hash of its partition, a table without partitions by range. Otherwise each task would
    write a file with all batches.
    """
    return {
        names.METRICS_MODE.format(column=batch_column): "full",
        names.DISTRIBUTION_MODE: "hash" if partitioned else "range",
        names.WAP_ENABLED: "true",
        names.BATCH_COLUMN: str(field_id),
    }


def run_folder(table: IcebergTable, run_id: str) -> str:
    """The folder of all data files that a run writes, committed or not."""
    base = table.properties.get(DATA_PATH) or f"{table.location}/data"
    return f"{base.rstrip('/')}/{run_id}"


def writing_as(table: IcebergTable, run_id: str) -> Any:
    """The Java table of a transaction that is never committed and puts new files into the run's folder.

    Raises:
        TransientError: A dependency is temporarily unavailable.
    """
    try:
        transaction = table.java.newTransaction()
        transaction.updateProperties().set(DATA_PATH, run_folder(table, run_id)).commit()
        return transaction.table()
    except JvmError as e:
        raise transient(e, f"preparing a write to {table.full_name}") from e


def parsed_schema(jvm: Any, java: Any) -> Schema:
    """Iceberg's Java schema in Python, with placeholders for types that Lethe does not know (`lethe.iceberg.metadata_file`)."""
    schema = {"schema": json.loads(str(jvm.org.apache.iceberg.SchemaParser.toJson(java)))}
    replace_unknown_types(schema)
    return Schema.model_validate(schema["schema"])
