"""Another engine's streaming writer: it deletes rows by a value, with a file of equality deletes of a partition spec."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from lethe_spark.jvm.spark_table import SparkTable
from pyspark.sql import SparkSession

_NUMBERS = itertools.count(1)


class Place(Protocol):
    """A table of a Spark session."""

    @property
    def spark(self) -> SparkSession: ...
    @property
    def catalog(self) -> str: ...
    @property
    def name(self) -> str: ...


def delete_by_equality(story: Place, column: str, value: Any, spec_id: int, partition: Sequence[Any] = ()) -> str:
    """Delete the older rows with this value, in one partition of a spec. Returns: the path of the delete file.

    Args:
        column: Of type string, int or boolean.
        partition: The values of the partition; those that are left out are null.
    """
    found = SparkTable.load(story.spark, story.catalog, story.name)
    assert found is not None
    table, api = found.java, found.jvm.org.apache.iceberg
    schema, parquet = table.schema().select([column]), api.FileFormat.PARQUET
    fields = found.gateway.new_array(found.jvm.int, 1)
    fields[0] = table.schema().findField(column).fieldId()
    factory = api.data.GenericFileWriterFactory.Builder(table).deleteFileFormat(parquet)
    factory = factory.equalityFieldIds(fields).equalityDeleteRowSchema(schema).build()
    file = api.io.OutputFileFactory.builderFor(table, 1, next(_NUMBERS)).format(parquet).build().newOutputFile()
    spec = table.specs().get(spec_id)
    at = api.PartitionData(spec.partitionType())
    for n, known in enumerate(partition):
        at.set(n, known)
    writer = factory.newEqualityDeleteWriter(file, spec, at)
    record = api.data.GenericRecord.create(schema)
    record.setField(column, value)
    writer.write(record)
    writer.close()
    made = writer.toDeleteFile()
    table.newRowDelta().addDeletes(made).commit()
    return str(made.location())


def delete_values(story: Place, values: pa.Table) -> None:
    """Delete the older rows with these values of a column, of any type, in all partitions. Arrow writes the values.

    Args:
        values: Of one column, by its name.
    """
    found = SparkTable.load(story.spark, story.catalog, story.name)
    assert found is not None
    table, api = found.java, found.jvm.org.apache.iceberg
    fields = found.gateway.new_array(found.jvm.int, 1)
    fields[0] = table.schema().findField(values.column_names[0]).fieldId()
    ids = {b"PARQUET:field_id": str(fields[0]).encode()}
    path = Path(urlsplit(str(table.location())).path, "data", f"values-{next(_NUMBERS)}-deletes.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(values.cast(pa.schema([values.schema.field(0).with_metadata(ids)])), path)
    spec = next(s for s in table.specs().values() if s.isUnpartitioned())
    file = api.FileMetadata.deleteFileBuilder(spec).ofEqualityDeletes(fields).withPath(f"file:{path}")
    file = file.withFormat("parquet").withFileSizeInBytes(path.stat().st_size).withRecordCount(values.num_rows)
    table.newRowDelta().addDeletes(file.build()).commit()
