"""A Dataset whose rows name people, Erases of some of them, and a search for all places that still contain an erased name."""

import gzip
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
from lethe.contract.result import RequestResult
from lethe.contract.run import (
    ConditionRef,
    CreateTable,
    Replacement,
    RestatementRequest,
    RowsRef,
    RunKind,
    RunSpec,
    TableRef,
)
from pyspark.sql import SparkSession

from tests.spark.support.story import Row, Story, local, of_arrow, of_batches, of_spark, some_rows
from tests.support.builders import a_request
from tests.support.lake import BufferFolder

COLUMNS = "v bigint, day int, name string, batch_id string"
NAMED = pa.schema([("v", pa.int64()), ("day", pa.int32()), ("name", pa.string())])
_NUMBERS = itertools.count(1)


def name_of(v: int) -> str:
    """A unique name, with a text that occurs nowhere by chance."""
    return f"passenger <{v}>"


def named(batch_id: str, rows: int) -> pa.Table:
    return pa.Table.from_pylist([{**r, "name": name_of(r["v"])} for r in some_rows(batch_id, rows)], NAMED)


def row(batch_id: str, n: int) -> Row:
    """The n-th row of a batch."""
    r = some_rows(batch_id, n + 1)[n]
    return (batch_id, r["v"], r["day"])


def but(*erased: Row, batches: Sequence[str] = ("A", "B", "D")) -> Counter[Row]:
    """The rows of the batches without some."""
    return of_batches(*batches) - Counter(erased)


@dataclass(frozen=True)
class Names(Story):
    """Each row has a name. `format_version`, `properties` and `columns` are the table's."""

    properties: dict[str, str] = field(default_factory=dict)
    columns: str = COLUMNS

    def put(self, *batch_ids: str, rows: int = 4, files: int = 1) -> None:
        for batch_id in batch_ids:
            self.buffer.put(batch_id, named(batch_id, rows), files)

    def replacement(self, batch_id: str, rows: int = 3) -> Replacement:
        folder = BufferFolder(self.lake.home / "restated" / self.name).put(batch_id, named(batch_id, rows))
        return Replacement(batch_id=batch_id, uri=f"file://{folder}")

    def spec(self, kind: RunKind, keys: Iterable[str], **changes: Any) -> RunSpec:
        create = CreateTable(
            schema=self.columns,
            partition_by=self.partition_by,
            format_version=self.format_version,
            properties=self.properties,
        )
        table = TableRef(catalog=self.catalog, name=self.name, create=create)
        return super().spec(kind, keys, **{"table": table, **changes})

    def an_erase(self, *values: str, name: str = "erase", column: str = "name", **changes: Any) -> RestatementRequest:
        """Of the rows with one of these values, which lie in a file of their own."""
        file = self.lake.home / "values" / str(next(_NUMBERS))
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(f"{v}\n" for v in values))
        condition = ConditionRef(column=column, values_file=str(file), secret="erase-people", secret_key="tails")
        ref = RowsRef(conditions=(condition,))
        return a_request(name, "Erase", batch_ids=(), rows=ref, **changes)

    def erase(self, *rows: Row, name: str = "erase", **at: Callable[[], object]) -> RequestResult:
        return self.restate(self.an_erase(*(name_of(v) for _, v, _ in rows), name=name), **at)

    def append_by_spark(self, *rows: Row) -> None:
        """A foreign writer, which also knows format version 3."""
        values = [(v, day, name_of(v), batch) for batch, v, day in rows]
        self.spark.createDataFrame(values, COLUMNS).writeTo(self.full_name).append()

    def physical(self) -> Counter[Row]:
        """The rows that engines see that know nothing of ledgers: PyIceberg and Spark agree."""
        rows = of_arrow(self.table().scan().to_arrow())
        assert of_spark(self.spark.table(self.full_name)) == rows
        return rows

    def written_by(self, run: RunSpec) -> list[Path]:
        """The files that a run has written and that still lie in the storage."""
        found = table_folder(self).rglob(f"data/{run.run_id}/**/*")
        return [p for p in found if p.is_file() and p.suffix != ".crc"]

    def obligations(self) -> list[tuple[str, int]]:
        return [(e.restatement, e.field_id) for e in self.ledger().erasures]

    def field_id(self, column: str) -> int:
        return self.table().schema().find_field(column).field_id


def files_with(folder: Path, *texts: str) -> list[str]:
    """What below a folder holds one of the texts, its own name included, but for data files: files as they are, and what is
    compressed in them."""
    found: list[str] = []
    for file in (p for p in folder.rglob("*") if p.is_file() and p.suffix not in (".parquet", ".orc", ".crc")):
        if "data" in file.parts and file.suffix == ".avro":
            continue
        content = f"{file.name}\n" + _opened(file)
        found += [f"{file}: {t}" for t in texts if t in content]
    return found


def _opened(file: Path) -> str:
    content = file.read_bytes()
    if content.startswith(b"Obj\x01"):
        with file.open("rb") as stream:
            records = list(fastavro.reader(stream))
        return repr([_plain(r) for r in records])
    if file.name.endswith(".gz.metadata.json"):
        content = gzip.decompress(content)
    return content.decode("utf-8", errors="replace")


def _plain(value: Any) -> Any:
    """Bytes as texts."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list) else value


def table_folder(story: Story) -> Path:
    return Path(local(story.table().location()))


def last_query(spark: SparkSession) -> int:
    """The number of the last query that Spark ran; -1: it ran none. Tests share the session."""
    listed = spark._jsparkSession.sharedState().statusStore().executionsList()
    return max((int(listed.apply(n).executionId()) for n in range(int(listed.size()))), default=-1)


def plans_of(spark: SparkSession, after: int) -> str:
    """What Spark remembers of the queries that it ran after one of them, as its pages and event logs show it."""
    store = spark._jsparkSession.sharedState().statusStore()
    listed = store.executionsList()
    every = [listed.apply(n) for n in range(int(listed.size()))]
    executions = [e for e in every if int(e.executionId()) > after]
    assert executions
    return "\n".join(f"{e.description()}\n{e.details()}\n{e.physicalPlanDescription()}" for e in executions)
