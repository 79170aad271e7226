"""A file gets the same answer from runs, `lethe put` and the gateway, and its rows from the inlet, if they are messages."""

import gzip
import io
import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.base import names
from lethe.base.errors import InputError
from lethe.base.names import batch_folder
from lethe.base.objects import ListedObject
from lethe.buffer.layout import BufferedBatch, Directories
from lethe.buffer.upload import LocalFile, plan_upload
from lethe.contract.dataset import KafkaSource
from lethe.contract.settings import RFC_4180, BufferLayout, FileFormat, MessageFormat, SchemaEvolution
from lethe.ingest.buffer_files import COLUMNS_WANTED, FileOutcome, Reader, ReadSettings, decode_columns
from lethe.ingest.buffer_store import FileTask
from lethe.ingest.checking import columns_of
from lethe.ingest.registrable import FooterReader, RegisterTarget
from lethe.ingest.schema_fit import named_folders, path_columns
from lethe_gateway.api.documents import AnnouncedFile
from lethe_gateway.problems import Kind, Problem
from lethe_gateway.uploads.manifest import is_path
from lethe_inlet.decoding import Decoder, RowTarget
from lethe_inlet.epochs import TopicMessage
from lethe_kubectl.put import check_local_files
from lethe_operator.resources.dataset import parse_dataset
from pyiceberg.catalog import Catalog
from pyiceberg.table.update.schema import UpdateSchema

from tests.support import poison
from tests.support.buffers import batches_in
from tests.support.tables import new_table
from tests.support.upload_site import Site, entries

MOMENT = datetime(2024, 5, 1, 12, tzinfo=UTC)
NANOS = int(MOMENT.timestamp()) * 10**9
TABLE = "air.edges"
L, S, F = pa.int64(), pa.string(), pa.float32()
STRUCT = pa.struct([("a", L), ("b", S)])
RECORD = {"type": "record", "name": "r", "fields": [{"name": "x", "type": "long"}]}
EMPTY = {"name": "y", "type": {"type": "record", "name": "e", "fields": []}}


@dataclass(frozen=True)
class Refused:
    """Words of the refusal."""

    words: tuple[str, ...]
    row: int | None = None  # which message the inlet refuses; None: the file has no rows


@dataclass(frozen=True)
class Edge:
    """A file, and what becomes of it."""

    name: str
    type: pa.DataType  # of the column x
    file: str  # its path below the folder of the batch; its extension is the format
    content: bytes
    found: list[Any] | Refused  # the values of x
    messages: Sequence[bytes] = ()  # the same rows as messages; for JSON, they are the lines
    schema: dict[str, Any] | None = None  # of Avro messages
    spec: dict[str, Any] = field(default_factory=dict)  # of the Dataset
    partitioned: bool = False  # by x


def refused(row: int | None, *words: str) -> Refused:
    return Refused(words if row is None else (f"row {row}", *words), row)


def json_edge(name: str, type_: pa.DataType, text: str | bytes, found: Any) -> Edge:
    content = text if isinstance(text, bytes) else text.encode()
    return Edge(name, type_, "a.json", content, found, content.splitlines())


def csv_edge(name: str, type_: pa.DataType, text: str, found: Any, **csv: Any) -> Edge:
    return Edge(name, type_, "a.csv", text.encode(), found, spec={"buffer": {"csv": csv}} if csv else {})


def parquet_edge(name: str, type_: pa.DataType, values: pa.Array, found: Any, **more: Any) -> Edge:
    out = io.BytesIO()
    columns = {"x": values, **more.pop("also", {})}
    pq.write_table(pa.table(columns), out)
    return Edge(name, type_, more.pop("file", "a.parquet"), out.getvalue(), found, **more)


def avro_edge(
    name: str, schema: dict[str, Any], records: list[Any], found: Any, codec: str = "null", **more: Any
) -> Edge:
    out = io.BytesIO()
    fastavro.writer(out, schema, records, codec=codec)
    messages = []
    for record in records:
        one = io.BytesIO()
        fastavro.schemaless_writer(one, fastavro.parse_schema(schema), record)
        messages.append(one.getvalue())
    return Edge(name, L, "a.avro", out.getvalue(), found, messages, schema, **more)


def text(raw: bytes) -> pa.Array:
    """Of any bytes, UTF-8 or not."""
    return pa.array([raw]).cast(pa.binary()).view(S)


def far(days: int) -> pa.Array:
    return pa.array([days], pa.int32()).cast(pa.date32())


ADD = {"schemaEvolution": "AddColumns"}
TOO_MANY = refused(None, "it has 10001 columns, expected at most 10000")
NO_COLUMN = refused(None, "its folder names the column hour, which the table does not have")
EDGES = [
    json_edge("a line that is null", L, '{"x":5}\nnull\n{"x":6}\n', refused(1, "it is null, expected one JSON object")),
    json_edge("an array", L, '[{"x":8}]\n', refused(0, "it is an array, expected one JSON object")),
    json_edge("text that is not UTF-8", S, b'{"x":"a"}\n{"x":"caf\xe9"}\n', refused(1, "it is not UTF-8")),
    json_edge("deep nesting", L, '{"y":' + "[" * 500 + "]" * 500 + "}\n", refused(0, "nests deeper than 100 levels")),
    json_edge("a field that only the line has", STRUCT, '{"x":{"a":1,"c":2}}\n', refused(0, "column x.c is only")),
    json_edge("a field in another case", STRUCT, '{"x":{"A":1}}\n', refused(0, "column x.A is only in the file")),
    json_edge("a fraction for an integer", pa.list_(L), '{"x":[1.5]}\n', refused(0, "column x.element", "int64")),
    json_edge("a key given twice", L, '{"x":1,"x":2}\n', refused(0, "column x is given twice")),
    json_edge("NaN", pa.float64(), '{"x":1}\n{"x":NaN}\n', refused(1, "column x holds NaN")),
    json_edge("a number that is too large", F, '{"x":1e39}\n', refused(0, "column x", "too large for the type float")),
    json_edge("half of a pair", S, '{"x":"\\ud800"}\n', refused(0, "column x holds half of a surrogate pair")),
    json_edge("a decimal in quotes", pa.decimal128(5, 2), '{"x":"1.20"}\n{"x":null}\n', [Decimal("1.20"), None]),
    csv_edge("backslashes before quotes", S, 'x\n"a \\"b\\""\n', refused(None, "row 0", "spec.buffer.csv.escape")),
    csv_edge("backslashes that are declared", S, 'x\n"a \\"b\\""\n', ['a "b"'], escape="\\"),
    csv_edge("a quote without end", S, 'x\n"foo\nbar\n', refused(None, "row 0", "quoted field has no end")),
    csv_edge("a quote within a field", S, 'x\n19" rack\n', ['19" rack']),
    csv_edge("hexadecimal", L, "x\n0xFF\n", refused(None, "row 0: column x", "int64")),
    csv_edge("semicolons", S, "x;batch_id\na;B\n", refused(None, "semicolon")),
    csv_edge("an index", S, ",x\n0,a\n", refused(None, "unnamed")),
    csv_edge("an index that is ignored", S, ",x\n0,a\n", ["a"], ignoreColumns=[""]),
    Edge("cut gzip", S, "a.csv.gz", gzip.compress(b"x\n" + b"a\n" * 99)[:-9], refused(None, "gzip", "truncated")),
    parquet_edge("nanoseconds", pa.timestamp("us", "UTC"), pa.array([NANOS], pa.timestamp("ns", "UTC")), [MOMENT]),
    parquet_edge(
        "a nanosecond too much",
        pa.timestamp("us", "UTC"),
        pa.array([NANOS + 1], pa.timestamp("ns", "UTC")),
        refused(0, "column x", "without loss"),
    ),
    parquet_edge("text that is not UTF-8, in Parquet", S, text(b"caf\xe9"), refused(0, "column x", "UTF-8")),
    parquet_edge("a day of the year 12100", pa.date32(), far(3_700_000), refused(0, "column x")),
    parquet_edge("a null struct", STRUCT, pa.array([None], STRUCT), [None]),
    parquet_edge("a long name of a folder", S, pa.array(["x" * 300]), refused(0, "column x", "300"), partitioned=True),
    parquet_edge("a new column", L, pa.array([1]), [1], also={"y": pa.array(["a"])}, spec=ADD),
    parquet_edge(
        "a value that fits no new column", L, pa.array([1]), refused(0, "column y", "UTF-8"), also={"y": text(b"\xff")}, spec=ADD
    ),
    parquet_edge(
        "a bad value beside a new column", S, text(b"\xff"), refused(0, "column x", "UTF-8"), also={"y": pa.array([1])}, spec=ADD
    ),
    parquet_edge("a wider type", pa.int32(), pa.array([2**40]), [2**40], spec=ADD),
    parquet_edge("a folder with another value", L, pa.array([1]), refused(0, "column x"), file="x=2/a.parquet"),
    parquet_edge("a folder as Spark encodes it", S, pa.array(["10:0%"]), ["10:0%"], file="x=10%3A0%25/a.parquet"),
    parquet_edge("a folder of no column", L, pa.array([1]), NO_COLUMN, file="hour=3/a.parquet"),
    Edge("too many columns in Parquet", L, "a.parquet", poison.many_columns(10_001), TOO_MANY),
    Edge("an unusual name", S, "é (1)/~#?&' a.csv", b"x\na\n", ["a"]),
    avro_edge("compressed Avro", RECORD, [{"x": 2}], [2], codec="deflate"),
    avro_edge(
        "a record without fields", {**RECORD, "fields": [*RECORD["fields"], EMPTY]}, [{"x": 4, "y": {}}],
        refused(None, "column y", "without fields"), spec=ADD,
    ),
]  # fmt: skip


@pytest.fixture
def edge_site(catalog: Catalog, tmp_path: Path, request: pytest.FixtureRequest) -> Site:
    """The table, the Dataset and the buffer of an edge."""
    edge: Edge = request.param
    columns = pa.schema([("x", edge.type), ("batch_id", S)])
    table = new_table(catalog, TABLE, columns, **{names.CLAIM: "default/flights"})
    if edge.partitioned:
        with table.update_spec() as spec:
            spec.add_identity("x")
    spec = dict(edge.spec)
    buffer = {"uri": f"file://{tmp_path}/buffer", "format": format_of(edge).value, **spec.pop("buffer", {})}
    (tmp_path / "buffer").mkdir()
    return Site(catalog, table, buffer["uri"], spec={"buffer": buffer, "table": TABLE, **spec})


def format_of(edge: Edge) -> FileFormat:
    return FileFormat(Path(edge.file.removesuffix(".gz")).suffix[1:])


@pytest.mark.parametrize(("edge", "edge_site"), [pytest.param(e, e, id=e.name) for e in EDGES], indirect=["edge_site"])
def test_every_door_gives_the_same_answer(edge: Edge, edge_site: Site, tmp_path: Path) -> None:
    site = edge_site
    file = tmp_path / "B" / edge.file
    file.parent.mkdir(parents=True)
    file.write_bytes(edge.content)

    of_run = by_a_run(site, file, tmp_path / "B")
    of_put = by_put(site, file, tmp_path / "B")
    of_gateway = by_the_gateway(site, edge)

    if isinstance(edge.found, Refused):
        assert isinstance(of_run, str)
        assert [w for w in (edge.file, *edge.found.words) if w not in of_run] == []
        assert of_put == of_gateway == of_run
    else:
        assert of_run == edge.found
        assert of_put == len(edge.found)
        assert of_gateway == ""
    if edge.messages:
        of_inlet, reasons = by_the_inlet(site, edge)
        if isinstance(edge.found, Refused):
            row = edge.found.row or 0
            assert list(reasons) == [row]
            assert len(of_inlet) == len(edge.messages) - 1
            # A message is no file, and has no row.
            words = [w for w in edge.found.words if not w.startswith("row ")]
            assert [w for w in words if w not in reasons[row]] == []
        else:
            assert (of_inlet, reasons) == (edge.found, {})


@pytest.mark.parametrize("file", ["hour=3/a.parquet", "x=2/a.parquet", "x=1/a.parquet", "batch_id=C/a.parquet"])
def test_folders_get_the_same_answer_whether_files_are_registered_or_rewritten(
    catalog: Catalog, tmp_path: Path, file: str
) -> None:
    table = new_table(catalog, TABLE, pa.schema([("x", L), ("batch_id", S)]))
    field_id = table.schema().find_field("batch_id").field_id
    path = tmp_path / file
    path.parent.mkdir()
    pq.write_table(pa.table({"x": [1], "batch_id": ["B"]}), path)
    uri = f"file://{path}"
    task = FileTask("B", uri, path.stat().st_size, folders=named_folders(uri, f"file://{tmp_path}"))

    (footer,) = FooterReader(RegisterTarget.of(table, field_id, False), {}).footers([task])
    outcomes: dict[tuple[str, str], FileOutcome] = {}
    list(Reader(columns_of(table.schema()), ReadSettings("batch_id", {})).tables([task], outcomes))

    rewritten, registered = outcomes["B", uri].error, footer.error
    assert (rewritten is None) == (registered is None) == (file == "x=1/a.parquet")
    if rewritten is not None and registered is not None:
        assert (rewritten.reason, rewritten.message.removeprefix("row 0: ")) == (registered.reason, registered.message)


PATHS = {
    "a.csv": True,
    "ts=2024-01-01 10%3A00%3A00/a.csv": True,
    "p=a%2Fb/100%.csv": True,
    "p=%2E%2E/a.csv": True,
    "é (1)/~#?&'.csv": True,
    "p=..%2F..%2Fa/b.csv": True,
    "p=%2F..%2F..%2Fa/b.csv": False,
    "x/%2e%2e/%252e%252e/b.csv": False,
    "x/../a.csv": False,
    "x//a.csv": False,
    "x/./a.csv": False,
    "a\nb.csv": False,
    "a\x7f.csv": False,
}


@pytest.mark.parametrize(("path", "usable"), PATHS.items())
def test_the_command_and_the_gateway_take_the_same_names_and_a_run_reads_all_that_they_take(
    path: str, usable: bool
) -> None:
    """A run also reads names that others have written: a buffer with one of them can be claimed."""
    folder = "s3://lake/buffer/batch_id=B"
    listed = [ListedObject(f"{folder}/{p}", 1, "", MOMENT) for p in (path, "_SUCCESS")]

    def put() -> None:
        plan_upload("s3://lake/buffer", BufferLayout.DIRECTORY, "batch_id", "B", [LocalFile(path, 1)])

    def announce() -> None:
        AnnouncedFile(path=path, size=1)

    assert isinstance(Directories("batch_id").batch("batch_id=B", folder, listed), BufferedBatch)
    assert is_path(path) == usable
    for door, error in ((put, InputError), (announce, ValueError)):
        with nullcontext() if usable else pytest.raises(error, match=r"[Rr]ename"):
            door()


def by_a_run(site: Site, file: Path, folder: Path) -> list[Any] | str:
    """The values of x, or the refusal. With the reader of runs, which add columns that are wanted and read again."""
    spec, table = parse_dataset(site.resource()).spec, site.table
    task = FileTask(
        "B", f"file://{file}", file.stat().st_size, folders=named_folders(f"file://{file}", f"file://{folder}")
    )
    settings = ReadSettings(
        "batch_id",
        {},
        spec.buffer.format,
        spec.schema_evolution is SchemaEvolution.ADD_COLUMNS,
        csv=spec.buffer.csv or RFC_4180,
        path_columns=path_columns(table.schema(), table.spec()),
    )
    columns = table.schema()
    while True:
        outcomes: dict[tuple[str, str], FileOutcome] = {}
        rows = [r for t in Reader(columns_of(columns), settings).tables([task], outcomes) for r in t.to_pylist()]
        error = outcomes["B", task.uri].error
        if error is None:
            return [r["x"] for r in rows]
        if error.reason != COLUMNS_WANTED:
            return f"{error.reason}: {file.relative_to(folder)}: {error.message}"
        assert columns is table.schema()
        columns = UpdateSchema(table.transaction()).union_by_name(decode_columns(error.message))._apply()


def by_put(site: Site, file: Path, folder: Path) -> int | str:
    """The number of rows, or the refusal."""
    spec, seen = parse_dataset(site.resource()).spec, list[None]()
    add = spec.schema_evolution is SchemaEvolution.ADD_COLUMNS
    try:
        return check_local_files(
            site.table,
            "batch_id",
            "B",
            {file.relative_to(folder).as_posix(): file},
            spec.buffer,
            add,
            lambda: seen.append(None),
        )
    except InputError as e:
        said = e.message.removesuffix(". Nothing was put into the buffer.")
        return f"{e.reason}: {said}".replace(f"file://{folder}/", "")
    finally:
        assert len(seen) == 1


def by_the_gateway(site: Site, edge: Edge) -> str:
    """The refusal; "": the batch is complete in the buffer."""
    files = {edge.file: edge.content}
    view, _ = site.open(entries(files))
    site.send(files)
    try:
        said = "" if site.complete().checked else "not checked"
    except Problem as e:
        is_refused = e.kind is Kind.BATCH_REFUSED
        said = (
            e.detail.replace(f"{site.uri}/{batch_folder('batch_id', view.batch_id)}/", "")
            if is_refused
            else e.kind.name
        )
    assert [b.complete for b in batches_in(site.uri)] == [said == ""]
    return said


def by_the_inlet(site: Site, edge: Edge) -> tuple[list[Any], dict[int, str]]:
    """The values of x, and why messages were refused, by their number."""
    spec = parse_dataset(site.resource()).spec
    kind = MessageFormat.JSON if edge.schema is None else MessageFormat.AVRO
    source = KafkaSource(
        cluster="main", topics=("t",), format=kind, schema=json.dumps(edge.schema) if edge.schema else ""
    )
    messages = [TopicMessage(n, 0, None, m) for n, m in enumerate(edge.messages)]
    target = RowTarget(columns_of(site.table.schema()), "batch_id", spec.schema_evolution)
    found = Decoder(source).decode(messages, target, "B")
    values = found.rows["x"].to_pylist() if found.rows.num_rows else []
    return values, {r.message.offset: r.reason for r in found.refused}
