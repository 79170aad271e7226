"""One run promotes every batch whose values the table can hold, and refuses the others by file, row and column."""

import io
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from lethe.base import names
from lethe.contract.run import CreateTable, TableRef
from lethe.contract.settings import CsvDialect, FileFormat, SchemaEvolution
from pyspark.sql import SparkSession

from tests.spark.support.registering import Registering
from tests.spark.support.story import Story
from tests.support.buffer_formats import columns, read
from tests.support.lake import CATALOG, Lake

SCHEMA = (
    "id BIGINT, text STRING, ts TIMESTAMP, bin BINARY, emb ARRAY<FLOAT>, u DECIMAL(20,0), "
    "st STRUCT<a: BIGINT NOT NULL, b: STRING>, l ARRAY<STRUCT<a: BIGINT>>, m MAP<STRING, BIGINT>, dt DATE, country STRING"
)
MOMENT = datetime(2024, 5, 1, 12, tzinfo=UTC)
TEXT = "z" * 15 + "\ud7ff" + "tail"
A_AND_B = pa.struct([("b", pa.string()), ("a", pa.int64())])


def parquet(options: dict[str, Any] | None = None, metadata: dict[str, str] | None = None, **of_columns: Any) -> bytes:
    out = io.BytesIO()
    arrays = {n: v if isinstance(v, pa.Array) else pa.array([v]) for n, v in of_columns.items()}
    pq.write_table(pa.table(arrays).replace_schema_metadata(metadata), out, **(options or {}))
    return out.getvalue()


def bytes_as_text(raw: bytes) -> pa.Array:
    return pa.array([raw]).view(pa.string())


GOOD: dict[str, tuple[str, bytes, dict[str, Any]]] = {
    "int96": (
        "f",
        parquet({"use_deprecated_int96_timestamps": True}, id=1, ts=pa.array([MOMENT], pa.timestamp("us"))),
        {"ts": MOMENT},
    ),
    "nanos": ("f", parquet(id=1, ts=pa.array([MOMENT], pa.timestamp("ns", "UTC"))), {"ts": MOMENT}),
    "uuid": ("f", parquet(id=1, bin=pa.array([b"0123456789abcdef"], pa.uuid())), {"bin": b"0123456789abcdef"}),
    "embedding": ("f", parquet(id=1, emb=pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2))), {"emb": [1.0, 2.0]}),
    "uint64": ("f", parquet(id=1, u=pa.array([2**63], pa.uint64())), {"u": Decimal(2**63)}),
    "order": ("f", parquet(id=1, st=pa.array([{"b": "t", "a": 1}], A_AND_B)), {"st": (1, "t")}),
    "absent": ("f", parquet(id=1, st=pa.array([None], A_AND_B)), {"st": None}),
    "empty": ("f", parquet(id=1, l=pa.array([[]], pa.list_(pa.struct([("a", pa.int64())])))), {"l": [], "m": None}),
    "bound": ("f", parquet(id=1, text=TEXT), {"text": TEXT}),
    "folder": ("dt=2024-02-03/country=a%2Fb/f", parquet(id=1), {"dt": date(2024, 2, 3), "country": "a/b"}),
}
BAD: dict[str, tuple[str, bytes, str]] = {
    "nanosrest": ("f", parquet(id=1, ts=pa.array([1], pa.timestamp("ns", "UTC"))), "row 0: column ts "),
    "latin1": ("f", parquet(id=1, text=bytes_as_text(b"caf\xe9")), "row 0: column text holds text that is not UTF-8"),
    "inside": ("f", parquet(id=1, st=pa.array([{"b": "t", "a": None}], A_AND_B)), "row 0: column st.a holds a null"),
    "extra": ("f", parquet(id=1, l=pa.array([[{"a": 1, "c": 2}]])), "column l.element.c is only in the file"),
    "faraway": ("f", parquet(id=1, dt=pa.array([3_700_000], pa.int32()).cast(pa.date32())), "row 0: column dt holds"),
    "long": ("f", parquet(id=1, country="x" * 300), "row 0: column country holds a value of 300 characters"),
    "folders": ("dt=2024-02-03/f", parquet(id=1, dt=date(2024, 1, 1)), "row 0: column dt holds another value"),
    "hybrid": (
        "f",
        parquet(None, {"org.apache.spark.version": "2.4.8"}, id=1, dt=date(1500, 1, 1)),
        "row 0: column dt holds a day before",
    ),
}


def put(story: Story, batch_id: str, name: str, content: bytes) -> None:
    file = story.folder(batch_id) / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    (story.folder(batch_id) / "empty_$folder$").touch()
    (story.folder(batch_id) / names.SUCCESS_MARKER).touch()


def test_one_run_promotes_all_values_that_are_exact_and_refuses_the_others(spark: SparkSession, lake: Lake) -> None:
    story = Story.begin(spark, lake)
    create = CreateTable(schema=SCHEMA, partition_by=("country",))
    for batch_id, (name, content, _) in {**GOOD, **BAD}.items():
        put(story, batch_id, name, content)

    spec = story.consolidation(
        *GOOD,
        *BAD,
        table=TableRef(catalog=CATALOG, name=story.name, create=create),
        schema_evolution=SchemaEvolution.ADD_COLUMNS,
    )
    result = story.run(spec)

    assert {r.batch_id for r in result.refused} == BAD.keys()
    for refused in result.refused:
        assert BAD[refused.batch_id][2] in refused.message
        assert f"batch_id={refused.batch_id}/{BAD[refused.batch_id][0]}: " in refused.message
    assert story.states() == {**dict.fromkeys(GOOD, "promoted"), **dict.fromkeys(BAD, "refused")}
    rows = {r["batch_id"]: r for r in spark.table(story.full_name).collect()}
    for batch_id, (_, _, wanted) in GOOD.items():
        row = rows[batch_id].asDict()
        found = {k: row[k].replace(tzinfo=UTC) if k == "ts" else row[k] for k in wanted}
        found = {k: tuple(v) if k == "st" and v else v for k, v in found.items()}
        assert found == wanted, batch_id

    story.revert("empty")
    story.vacuum()

    assert {r["batch_id"]: r["st"] for r in spark.table(story.full_name).collect()}["absent"] is None
    assert story.states()["absent"] == "promoted"


def test_register_takes_what_spark_can_open_and_refuses_the_rest_by_name(spark: SparkSession, lake: Lake) -> None:
    story = Registering.begin(spark, lake, ())
    whole = {"v": pa.array([1], pa.int64()), "day": pa.array([1], pa.int32())}

    def file(batch_id: str, codec: str = "snappy") -> bytes:
        return parquet({"compression": codec}, **whole, batch_id=batch_id)

    put(story, "plain", "f.parquet", file("plain"))
    put(story, "lz4", "f.parquet", file("lz4", "lz4"))
    put(story, "named", "day=1/f.parquet", file("named"))
    put(story, "brotli", "f.parquet", file("brotli", "brotli"))
    put(story, "newline", "a\nb.parquet", file("newline"))
    put(story, "other", "day=2/f.parquet", file("other"))
    put(story, "lacking", "day=1/f.parquet", parquet(None, v=whole["v"], batch_id="lacking"))
    ids = ("plain", "lz4", "named", "brotli", "newline", "other", "lacking")

    result = story.run(story.registration(*ids).model_copy(update={"schema_evolution": SchemaEvolution.ADD_COLUMNS}))

    said = {r.batch_id: r.message for r in result.refused}
    assert said.keys() == {"brotli", "newline", "other", "lacking"}
    assert "compressed by BROTLI" in said["brotli"]
    assert "its name contains a line break" in said["newline"]
    assert "column day holds another value than its folder names" in said["other"]
    assert "its folder names a value of column day, and the file lacks the column" in said["lacking"]
    assert {r["batch_id"] for r in spark.table(story.full_name).collect()} == {"plain", "lz4", "named"}


VALUES = [
    ("plain", 1),
    ('say "hi"', 2),
    ("back\\slash", 3),
    ("C:\\new, x", 4),
    ('a \\" b, c', 5),
    ("ends with \\", 6),
    ("ends, with \\", 7),
    ("line\nbreak", 8),
    ("", 9),
    (None, None),
    (" spaces ", 10),
    ("'quotes'", 11),
]


def test_csv_as_spark_writes_it_is_read_with_its_dialect(spark: SparkSession, tmp_path: Path) -> None:
    options = {"header": True, "ignoreLeadingWhiteSpace": False, "ignoreTrailingWhiteSpace": False}
    spark.createDataFrame(VALUES, "x string, y long").coalesce(1).write.csv(str(tmp_path / "out"), **options)  # type: ignore[arg-type]
    (content,) = [f.read_bytes() for f in (tmp_path / "out").glob("*.csv")]

    dialect = CsvDialect(escape="\\", null_text="")
    rows, refused = read(tmp_path, FileFormat.CSV, content, schema=columns(x="string", y="long"), csv=dialect)

    assert refused == []
    assert [(r["x"], r["y"]) for r in rows] == VALUES
