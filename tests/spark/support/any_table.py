"""A random table of `tests.model.shapes` as a Dataset's table: its writers, its evolution, and what each reader finds in it."""

import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import lethe
import lethe_spark
import pyarrow as pa
import pyarrow.parquet as pq
from lethe.contract.settings import Deletes
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyspark.sql import SparkSession

from tests.model.conditions import Condition
from tests.model.shapes import (
    Add,
    Drop,
    Field,
    Kind,
    Maker,
    MoveFirst,
    Rename,
    Step,
    Widen,
    after,
    comparable_row,
    seen,
    steps,
)
from tests.spark.support.native_deletes import Native
from tests.spark.support.story import local
from tests.support.lake import Lake

BATCH, NUMBER = Field(0, "batch_id", Kind("string")), Field(-1, "n", Kind("int"))
BESIDE = "Z"
PINNED = frozenset({"batch_id", "n"})
Row = dict[int, Any]
Found = Counter[tuple[Any, ...]]
_SQL = {
    "boolean": "BOOLEAN", "int": "INT", "long": "BIGINT", "float": "FLOAT", "double": "DOUBLE", "date": "DATE",
    "timestamptz": "TIMESTAMP", "timestamp": "TIMESTAMP_NTZ", "string": "STRING", "binary": "BINARY",
}  # fmt: skip
_ARROW = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "date": pa.date32(), "timestamptz": pa.timestamp("us", "UTC"), "timestamp": pa.timestamp("us"),
    "string": pa.string(), "binary": pa.binary(),
}  # fmt: skip
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001


# --- types and values, as Spark and Arrow have them -----------------------------------------------------------------


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def sql_type(kind: Kind) -> str:
    match kind.name:
        case "struct":
            return f"STRUCT<{', '.join(f'{quoted(f.name)}: {sql_type(f.kind)}' for f in kind.fields)}>"
        case "list":
            return f"ARRAY<{sql_type(kind.parts[0])}>"
        case "map":
            return f"MAP<{sql_type(kind.parts[0])}, {sql_type(kind.parts[1])}>"
        case "decimal":
            return f"DECIMAL({kind.digits[0]}, {kind.digits[1]})"
    return _SQL[kind.name]


def arrow_type(kind: Kind) -> pa.DataType:
    match kind.name:
        case "struct":
            return pa.struct([(f.name, arrow_type(f.kind)) for f in kind.fields])
        case "list":
            return pa.list_(arrow_type(kind.parts[0]))
        case "map":
            return pa.map_(arrow_type(kind.parts[0]), arrow_type(kind.parts[1]))
        case "decimal":
            return pa.decimal128(*kind.digits)
    return _ARROW[kind.name]


def to_arrow(kind: Kind, value: Any) -> Any:
    """A value of the model as `pa.array` takes it."""
    if value is None:
        return None
    match kind.name:
        case "struct":
            return {f.name: to_arrow(f.kind, value[f.key]) for f in kind.fields}
        case "list":
            return [to_arrow(kind.parts[0], v) for v in value]
        case "map":
            return [(to_arrow(kind.parts[0], k), to_arrow(kind.parts[1], v)) for k, v in value]
    return value


def of_arrow(kind: Kind, scalar: pa.Scalar) -> Any:
    """The value of the model that a reader has found."""
    if not scalar.is_valid:
        return None
    match kind.name:
        case "struct":
            assert [f.name for f in scalar.type] == [f.name for f in kind.fields]
            return {f.key: of_arrow(f.kind, scalar[n]) for n, f in enumerate(kind.fields)}
        case "list":
            return [of_arrow(kind.parts[0], v) for v in scalar.values]
        case "map":
            return [(of_arrow(kind.parts[0], e[0]), of_arrow(kind.parts[1], e[1])) for e in scalar.values]
        case "date" | "timestamp" | "timestamptz":
            return scalar.value
    return scalar.as_py()


def rows_of(fields: Sequence[Field], table: pa.Table) -> Found:
    assert table.column_names == [f.name for f in fields]
    columns = [[of_arrow(f.kind, v) for v in table.column(n)] for n, f in enumerate(fields)]
    keys = [f.key for f in fields]
    return Counter(comparable_row(fields, dict(zip(keys, r, strict=True))) for r in zip(*columns, strict=True))


def lowest_version(deletes: Deletes) -> int:
    """The lowest format version of a table in this mode of deletes."""
    return 2 if deletes.named is None else deletes.named.format_version


# --- the table ------------------------------------------------------------------------------------------------------


@dataclass
class AnyTable:
    """One table, its writers, and its rows as the model has them."""

    story: Native
    maker: Maker
    fields: tuple[Field, ...]
    rows: list[Row] = field(default_factory=list)
    hidden: set[str] = field(default_factory=set)  # batches that are taken back
    format_version: int = 2
    log: list[str] = field(default_factory=list)
    partitioned: list[str] = field(default_factory=list)
    used: set[int] = field(default_factory=set)  # keys of the columns by which it was ever partitioned

    @classmethod
    def begin(
        cls, spark: SparkSession, lake: Lake, seed: int, format_version: int, deletes: Deletes = Deletes.LEDGER
    ) -> "AnyTable":
        maker = Maker(random.Random(seed))
        version = max(lowest_version(deletes), format_version)
        story = Native.begin(spark, lake, format_version=version, deletes=deletes)
        fields = (BATCH, NUMBER, *(maker.field() for _ in range(maker.luck.randint(2, 4))))
        made = cls(story, maker, fields, format_version=format_version)
        columns = ", ".join(f"{quoted(f.name)} {sql_type(f.kind)}" for f in fields)
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {story.catalog}.air")
        made.sql(
            f"CREATE TABLE {story.full_name} ({columns}) USING iceberg TBLPROPERTIES ("
            f"'format-version' = '{format_version}', 'write.metadata.metrics.column.batch_id' = 'full')"
        )
        made.sql(f"ALTER TABLE {story.full_name} WRITE ORDERED BY batch_id")
        return made

    def sql(self, text: str) -> None:
        self.log.append(text)
        self.story.spark.sql(text)

    @property
    def name(self) -> str:
        return self.story.full_name

    @property
    def visible(self) -> list[Row]:
        return [r for r in self.rows if r[0] not in self.hidden]

    def wanted(self, rows: Iterable[Row] | None = None, condition: Condition | None = None) -> Found:
        now = (seen(self.fields, r) for r in (self.visible if rows is None else rows))
        return Counter(comparable_row(self.fields, r) for r in now if condition is None or condition.judge(r) is True)

    # --- writers ---

    def write(self, batch_id: str, writer: str, number: int = 6) -> list[Row]:
        """Rows of a batch, by `spark`, `arrow` (PyIceberg) or `lethe`, a consolidation.

        Other engines write one row of another batch beside them, so that native deletes cannot drop the whole file.
        """
        first = max((r[-1] for r in self.rows), default=-1) + 1
        made = [self.maker.row(self.fields) | {0: batch_id, -1: first + n} for n in range(number)]
        if writer != "lethe":
            made[-1][0] = BESIDE
        table = self.as_arrow(made, self.fields)
        self.log.append(f"write {batch_id} by {writer}")
        match writer:
            case "spark":
                frame = self.story.spark.createDataFrame(table)
                frame.coalesce(1).writeTo(self.name).append()
            case "arrow" if self.java().spec().isUnpartitioned():
                self._append_file(table)
            case "arrow":
                self.story.spark.createDataFrame(table).writeTo(self.name).append()
            case _:
                self.story.buffer.put(batch_id, table.drop_columns(["batch_id"]))
                self.story.consolidate(batch_id)
        self.refresh()
        self.rows += made
        return made

    def _append_file(self, rows: pa.Table) -> None:
        """A file of Arrow's writer, with the metrics that Iceberg's own reader of footers finds."""
        java = self.java()
        path = Path(local(str(java.location())), "data", f"{uuid.uuid4()}.parquet")
        path.parent.mkdir(parents=True, exist_ok=True)
        schema = schema_to_pyarrow(self.story.table().schema(), include_field_ids=True)
        pq.write_table(rows.cast(schema), path)
        found = self._jvm.parquet.ParquetUtil.fileMetrics(
            java.io().newInputFile(str(path)), self._jvm.MetricsConfig.forTable(java)
        )
        file = self._jvm.DataFiles.builder(java.spec()).withPath(f"file:{path}").withFormat("parquet")
        java.newAppend().appendFile(file.withFileSizeInBytes(path.stat().st_size).withMetrics(found).build()).commit()

    def as_arrow(self, rows: Sequence[Row], fields: Sequence[Field]) -> pa.Table:
        arrays = [pa.array([to_arrow(f.kind, r[f.key]) for r in rows], arrow_type(f.kind)) for f in fields]
        return pa.table(arrays, names=[f.name for f in fields])

    # --- evolution ---

    @property
    def _jvm(self) -> Any:
        jvm = self.story.spark._jvm
        assert jvm is not None
        return jvm.org.apache.iceberg

    def java(self) -> Any:
        return self._jvm.spark.Spark3Util.loadIcebergTable(self.story.spark._jsparkSession, self.name)

    def upgrade(self) -> None:
        """To the format version that Lethe or the mode of deletes needs."""
        wanted = lowest_version(self.story.deletes)
        if self.format_version < wanted:
            self.format_version = wanted
            self.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ('format-version' = '{wanted}')")

    def refresh(self) -> None:
        self.story.spark.sql(f"REFRESH TABLE {self.name}")

    def evolve(self) -> None:
        """One random step of evolution."""
        possible = list(steps(self.maker, self.fields, self.format_version, PINNED | frozenset(self.partitioned)))
        kinds = sorted({type(s).__name__ for s in possible})
        kind = self.maker.luck.choice(kinds)
        step = self.maker.luck.choice([s for s in possible if type(s).__name__ == kind])
        self.take(step)

    def take(self, step: Step) -> None:
        self.log.append(repr(step))
        update = self.java().updateSchema()
        match step:
            case Add(into, added, write_default):
                parent = ".".join(into) or None
                kind = self.java_type(added.kind)
                if added.default is None:
                    update = update.addColumn(parent, added.name, kind)
                else:
                    default = self.literal(added.kind, added.default)
                    update = update.addColumn(parent, added.name, kind, None, default)
                    full = ".".join((*into, added.name))
                    update = update.updateColumnDefault(full, self.literal(added.kind, write_default))
            case Drop(path):
                update = update.deleteColumn(".".join(path))
            case Rename(path, name):
                update = update.renameColumn(".".join(path), name)
            case Widen(path, kind):
                update = update.updateColumn(".".join(path), self.java_type(kind))
            case MoveFirst(path):
                update = update.moveFirst(".".join(path))
        update.commit()
        self.refresh()
        self.fields = after(self.fields, step)

    def repartition(self) -> None:
        """Add or drop a partition field."""
        if self.partitioned and self.maker.luck.random() < 0.5:
            name = self.partitioned.pop()
            self.log.append(f"drop partition {name}")
            self.java().updateSpec().removeField(f"p_{name}").commit()
        else:
            kinds = ("int", "long", "string", "date", "boolean", "decimal", "double", "timestamp")
            can = [f.name for f in self.fields if f.kind.name in kinds and f.key not in self.used]
            name = self.maker.luck.choice(can)
            kind = next(f.kind for f in self.fields if f.name == name).name
            e = self._jvm.expressions.Expressions
            # The values of partitions are names of folders, which are not as long as texts may be.
            terms = {} if kind == "string" else {"identity": e.ref(name)}
            if kind not in ("boolean", "double"):
                terms["bucket"] = e.bucket(name, 3)
            if kind in ("int", "string"):
                terms["truncate"] = e.truncate(name, 2)
            if kind == "timestamp":
                terms["day"] = e.day(name)
            self.used.add(next(f.key for f in self.fields if f.name == name))
            chosen = self.maker.luck.choice(sorted(terms))
            self.log.append(f"partition {name} by {chosen}")
            self.java().updateSpec().addField(f"p_{name}", terms[chosen]).commit()
            self.partitioned.append(name)
        self.refresh()

    def java_type(self, kind: Kind) -> Any:
        types = self._jvm.types.Types
        ids = 1000
        optional = types.NestedField.optional
        match kind.name:
            case "struct":
                fields = self.story.spark._jvm.java.util.ArrayList()  # type: ignore[union-attr]
                for n, f in enumerate(kind.fields):
                    fields.add(optional(ids + f.key + n, f.name, self.java_type(f.kind)))
                return types.StructType.of(fields)
            case "list":
                return types.ListType.ofOptional(ids, self.java_type(kind.parts[0]))
            case "map":
                key, value = map(self.java_type, kind.parts)
                return types.MapType.ofOptional(ids, ids + 1, key, value)
            case "decimal":
                return types.DecimalType.of(*kind.digits)
            case "timestamp":
                return types.TimestampType.withoutZone()
            case "timestamptz":
                return types.TimestampType.withZone()
            case "int":
                return types.IntegerType.get()
        return getattr(types, f"{kind.name.capitalize()}Type").get()

    def literal(self, kind: Kind, value: Any) -> Any:
        lit, java = self._jvm.expressions.Expressions.lit, self.story.spark._jvm
        assert java is not None
        match kind.name:
            case "date":
                text = (_EPOCH + timedelta(days=value)).date().isoformat()
                return lit(text).to(self.java_type(kind))
            case "timestamp" | "timestamptz":
                text = (_EPOCH + timedelta(microseconds=value)).isoformat()
                return lit(text + ("+00:00" if kind.name == "timestamptz" else "")).to(self.java_type(kind))
            case "decimal":
                return lit(value)
            case "binary":
                return lit(java.java.nio.ByteBuffer.wrap(value))
            case "string" | "boolean":
                return lit(value)
        return lit(value).to(self.java_type(kind))

    # --- runs ---

    def revert(self, batch_id: str, name: str) -> None:
        self.done(f"revert {batch_id}", self.story.revert(batch_id, name=name))
        self.hidden.add(batch_id)

    def undo(self, batch_id: str, name: str) -> None:
        result = self.story.undo(name)
        self.done(f"undo {batch_id}", result)
        if result.succeeded:
            self.hidden.remove(batch_id)
        else:
            # Files that held nothing else were dropped.
            assert (result.reason, self.hides_natively) == ("AlreadyPurged", True)

    def done(self, what: str, result: object) -> None:
        self.log.append(f"{what}: {result!r}"[:600])
        self.refresh()

    # --- readers ---

    def readers(self) -> Mapping[str, Callable[[Condition | None], pa.Table]]:
        spark = self.story.spark

        def scan(condition: Condition | None) -> pa.Table:
            return lethe.scan(self.name, filter=None if condition is None else condition.expression).to_arrow()

        def read(condition: Condition | None) -> pa.Table:
            frame = lethe_spark.read(spark, self.name, filter=None if condition is None else condition.sql)
            return frame.toArrow()

        return {"lethe.scan": scan, "lethe_spark.read": read}

    def plain(self) -> pa.Table:
        """What Spark SQL finds, which knows no ledger."""
        return self.story.spark.table(self.name).toArrow()

    @property
    def hides_natively(self) -> bool:
        """Whether readers that know no ledger miss the rows of reverted batches before a vacuum."""
        return self.story.deletes is not Deletes.LEDGER

    def check_spark(self, when: str) -> None:
        """Spark SQL finds the rows of the model. Only where no ledger hides any rows."""
        self.same(rows_of(self.fields, self.plain()), self.wanted(), f"Spark {when}")

    def check_plain(self, when: str) -> None:
        """Spark SQL finds the rows of the model, and PyIceberg those of its columns that never change.

        Only where no ledger hides any rows, and without equality deletes, which PyIceberg does not read.
        """
        self.check_spark(when)
        found = self.story.table().scan(selected_fields=("batch_id", "n")).to_arrow()
        fixed = (BATCH, NUMBER)
        wanted = Counter(comparable_row(fixed, r) for r in self.visible)
        self.same(rows_of(fixed, found.select(["batch_id", "n"])), wanted, f"PyIceberg {when}")

    def check(self, conditions: Sequence[Condition] = (), spark_conditions: int = 1) -> None:
        """Each reader finds the rows of the model."""
        wanted = self.wanted()
        for name, read in self.readers().items():
            self.same(rows_of(self.fields, read(None)), wanted, name)
        assert lethe.scan(self.name).count() == wanted.total()
        for n, condition in enumerate(conditions):
            wanted = self.wanted(condition=condition)
            for name, read in self.readers().items():
                if name == "lethe.scan" or n < spark_conditions:
                    self.same(rows_of(self.fields, read(condition)), wanted, f"{name} with {condition.sql}")

    def same(self, found: Found, wanted: Found, who: str) -> None:
        if found == wanted:
            return
        more, less = found - wanted, wanted - found
        columns = [f.name for f in self.fields]
        odd = [
            f"{c}: {a!r} != {b!r}"
            for x, y in zip(sorted(more, key=lambda r: r[1]), sorted(less, key=lambda r: r[1]), strict=False)
            for c, a, b in zip(columns, x, y, strict=True)
            if a != b
        ]
        odd += [f"too many: {r!r}"[:300] for r in list(more)[:3]] + [f"too few: {r!r}"[:300] for r in list(less)[:3]]
        steps_taken = "\n".join(self.log)
        raise AssertionError(
            f"{who}: {more.total()} rows too many, {less.total()} too few\n{odd[:6]}\n{steps_taken}\n{self.fields}"
        )
