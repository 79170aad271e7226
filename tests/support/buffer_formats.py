"""Files read as a Spark worker reads them, without Spark; and files to read, in every format."""

import io
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.orc as orc
import pyarrow.parquet as pq
from fastavro.read import HEADER_SCHEMA
from lethe.contract.settings import FileFormat
from lethe.ingest.buffer_files import FileOutcome, Reader, ReadSettings
from lethe.ingest.buffer_store import FileTask
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructType

FORMATS = tuple(FileFormat)
_AVRO = {"v": "long", "day": "int", "batch_id": "string", "extra": "long", "op": "string"}


def columns(**types: DataType | str) -> StructType:
    """A table's columns and its batch column."""
    schema = StructType()
    for name, type_ in types.items():
        schema.add(name, type_)
    return schema.add("batch_id", "string")


SCHEMA = columns(v="long", day="integer")


def read(
    folder: Path,
    format_name: str,
    *contents: bytes,
    schema: StructType = SCHEMA,
    batch_id: str = "A",
    apart: bool = False,
    **options: Any,
) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """The rows of files with these contents, and (reason, message) of each that was refused. `apart`: each is a batch of its
    own, A0, A1…; else they are one."""
    tasks = []
    for n, content in enumerate(contents):
        file = folder / f"part-{n}"
        file.write_bytes(content)
        tasks.append(FileTask(f"{batch_id}{n}" if apart else batch_id, f"file://{file}", len(content)))
    return read_tasks(tasks, format_name, schema, **options)


def read_one(folder: Path, format_name: str, content: bytes, type_: DataType | str, **options: Any) -> Any:
    """The value of the column x in the only row, or the message of the refusal."""
    rows, refused = read(folder, format_name, content, schema=columns(x=type_), **options)
    if refused:
        assert rows == []
        return refused[0][1]
    return rows[0]["x"] if len(rows) == 1 else [r["x"] for r in rows]


def read_tasks(
    tasks: Sequence[FileTask], format_name: str = "parquet", schema: StructType = SCHEMA, **options: Any
) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    outcomes: dict[tuple[str, str], FileOutcome] = {}
    reader = Reader(to_arrow_schema(schema), ReadSettings("batch_id", {}, FileFormat(format_name), **options))
    found = [row for table in reader.tables(tasks, outcomes) for row in table.to_pylist()]
    bad = {batch for (batch, _), t in outcomes.items() if t.error}
    rows = [row for row in found if row["batch_id"] not in bad]
    return rows, [(t.error.reason, t.error.message) for t in outcomes.values() if t.error]


def written(format_name: str, table: pa.Table) -> bytes:
    """A file with these rows."""
    out = io.BytesIO()
    if format_name == "parquet":
        pq.write_table(table, out)
    elif format_name == "orc":
        orc.write_table(table, out)
    elif format_name == "csv":
        pa_csv.write_csv(table, out, pa_csv.WriteOptions(quoting_style="needed"))
    elif format_name == "json":
        out.write("".join(json.dumps(r) + "\n" for r in table.to_pylist()).encode())
    else:
        fields = [{"name": n, "type": ["null", _AVRO[n]]} for n in table.column_names]
        avro(out, fields, table.to_pylist())
    return out.getvalue()


def compressed(codec: str, content: bytes) -> bytes:
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, codec) as stream:
        stream.write(content)
    return bytes(out.getvalue().to_pybytes())


def avro(out: io.BytesIO, fields: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> None:
    fastavro.writer(out, {"type": "record", "name": "row", "fields": list(fields)}, rows, codec="deflate")


def some_rows(count: int = 5, **more: Any) -> pa.Table:
    rows = [{"v": n * 7919, "day": 1 + n % 31, **more} for n in range(count)]
    schema = [("v", pa.int64()), ("day", pa.int32())]
    return pa.Table.from_pylist(rows, pa.schema([*schema, *((k, pa.scalar(v).type) for k, v in more.items())]))


def with_codec(content: bytes, codec: str) -> bytes:
    """An Avro file with another codec, snappy or zstandard, block by block."""
    header: Any = fastavro.schemaless_reader(io.BytesIO(content), HEADER_SCHEMA, None)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, HEADER_SCHEMA, {**header, "meta": {**header["meta"], "avro.codec": codec.encode()}})
    for block in fastavro.block_reader(io.BytesIO(content)):
        plain: Any = block.bytes_
        rows = plain.read()
        made = (
            compressed("zstd", rows)
            if codec == "zstandard"
            else pa.compress(rows, "snappy", asbytes=True) + zlib.crc32(rows).to_bytes(4, "big")
        )
        fastavro.schemaless_writer(out, "long", block.num_records)
        fastavro.schemaless_writer(out, "bytes", made)
        out.write(header["sync"])
    return out.getvalue()
