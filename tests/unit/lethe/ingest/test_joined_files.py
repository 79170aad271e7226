"""Small files of JSON and CSV are read together only if each gives the same rows as alone."""

import io
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from lethe.contract.settings import RFC_4180, CsvDialect, FileFormat
from lethe.decoder.limits import Limits
from lethe.ingest.buffer_store import BadFile
from lethe.ingest.file_formats import joined, opened

from tests.support.buffer_formats import columns, read, some_rows, written

TABLE = pa.schema([("v", pa.int64()), ("t", pa.string()), ("s", pa.struct([("n", pa.int64())]))])
FLAT = TABLE.remove(2)
ESCAPED = CsvDialect(escape="\\")
JSON_PARTS = ['{"v":1}', '{"t":"a', '"}', '{"s":', '{"n":1}', "}", "{}", '{"v":1}{"v":2}', "[", ",", "\n", "\r\n", " "]
CSV_PARTS = ["1,a", "2,", "3", '4,"b', '"', '""', "c", ",", "\\", "0x1", "\n", "\r\n", "\r", " "]


def alone(content: bytes, format_: FileFormat, table: pa.Schema, dialect: CsvDialect) -> pa.Table | None:
    """The rows of one file; None: it is refused."""
    try:
        file = opened(io.BytesIO(content), format_, table, dialect)
        return pa.concat_tables(file.tables)
    except (BadFile, pa.ArrowInvalid):
        return None


def together(files: Sequence[bytes], format_: FileFormat, table: pa.Schema, dialect: CsvDialect) -> list[pa.Table]:
    """The rows of each file; empty: they are read one by one."""
    try:
        found = joined(files, format_, table, dialect, Limits.nesting)
    except (BadFile, pa.ArrowInvalid):
        return []
    if found is None:
        return []
    return [found.rows.slice(sum(found.counts[:n]), count) for n, count in enumerate(found.counts)]


def texts(parts: Sequence[str]) -> st.SearchStrategy[list[bytes]]:
    """Files of such parts, none of them empty, most of them of whole lines."""
    line = st.one_of(st.just(parts[0] + "\n"), st.sampled_from(parts), st.lists(st.sampled_from(parts)).map("".join))
    return st.lists(
        st.lists(line, min_size=1, max_size=4).map("".join).map(str.encode).filter(bool), min_size=2, max_size=3
    )


@given(texts(JSON_PARTS))
@example([b'{"s":\n{"n":1}}\n', b'{"v":1}{"v":2}\n'])
@example([b'{"s":{"n":1}\n}\n', b'{"v":1}{"v":2}\n'])
@example([b'{"t":"a}\n', b'{"v":1}"}{"v":2}\n'])
@example([b'{"v":1}', b'{"v":2}\n{"v":3}'])
def test_json_is_the_same_together_and_alone(files: list[bytes]) -> None:
    for content, rows in zip(files, together(files, FileFormat.JSON, TABLE, RFC_4180), strict=False):
        assert rows.equals(alone(content, FileFormat.JSON, TABLE, RFC_4180))


@pytest.mark.parametrize("dialect", [RFC_4180, ESCAPED], ids=["rfc", "escape"])
@given(bodies=texts(CSV_PARTS))
@example(bodies=[b'4,"b\n', b'1,a\n2,"\n'])
@example(bodies=[b'4,"b\n', b'2,b"\n'])
@example(bodies=[b'4,"b\n1,a"\n', b"1,a\n1,a"])
@example(bodies=[b"1,a\n\r\r\n", b"1,b\r1,c\n"])
@example(bodies=[b"1,a\n\n", b"1,b\n"])
@example(bodies=[b'1,"\\\\"\n', b"1,a\n"])
def test_csv_is_the_same_together_and_alone(bodies: list[bytes], dialect: CsvDialect) -> None:
    files = [b"v,t\n" + body for body in bodies]

    for content, rows in zip(files, together(files, FileFormat.CSV, FLAT, dialect), strict=False):
        assert rows.equals(alone(content, FileFormat.CSV, FLAT, dialect))


@pytest.mark.parametrize(
    "files",
    [
        [b"t", b"t_full\na\n"],  # the header of the first one has no end
        [b'""t\na\n', b'""t\na\n'],
        [b'"t" \na\n', b'"t" \na\n'],
        [b't,"v\na,1\n', b't,"v\na,1\n'],
    ],
)
def test_files_with_an_unusual_header_are_read_alone(files: list[bytes]) -> None:
    assert together(files, FileFormat.CSV, pa.schema([("t", pa.string())]), RFC_4180) == []


def test_csv_with_its_columns_in_another_order_is_read_alone() -> None:
    texts = pa.schema([("t", pa.string()), ("u", pa.string())])

    assert not together([b"t,u\na,b\n", b"u,t\na,b\n"], FileFormat.CSV, texts, RFC_4180)


@pytest.mark.parametrize(
    ("format_", "files"),
    [
        ("json", [b'{"v":1}\n{"v":2}\n', b'{"v":3}', b'{"t":"\xc3\xa4"}\n']),
        ("csv", [b"v,t\n1,a\n2,b\n", b"v,t\n", b"v,t\n3,c"]),
        ("csv", [b'v,t\r\n1,"a"\r\n2,b\r\n', b'v,t\r\n3,"c\r\n""d"""\r\n']),
        ("csv", [b'"v","t"\n1,"a\n\xc3\xa4"\n', b'"v","t"\n2,"b"\n']),
    ],
)
def test_usual_files_are_read_together(format_: str, files: list[bytes]) -> None:
    """Or each takes a call of Arrow, which costs more than its rows."""
    assert together(files, FileFormat(format_), FLAT, RFC_4180)


@pytest.mark.parametrize("format_", ["json", "csv"])
def test_one_file_that_cannot_be_read_is_found_among_those_read_together(tmp_path: Path, format_: str) -> None:
    good = written(format_, some_rows(3))
    wrong = good.replace(b"2", b"x") if format_ == "csv" else good.replace(b'"v"', b'"x"')

    rows, refused = read(tmp_path, format_, good, wrong, good, apart=True)

    assert [r["batch_id"] for r in rows] == ["A0"] * 3 + ["A2"] * 3
    assert [reason for reason, _ in refused] == ["SchemaMismatch"]


@pytest.mark.parametrize("format_", ["json", "csv"])
def test_a_required_value_that_is_missing_is_named_by_its_row_in_the_file(tmp_path: Path, format_: str) -> None:
    """The rows before it are of other files."""
    schema = columns(v="long", day="integer")
    schema["v"].nullable = False
    files = (
        [b'{"v":1,"day":1}\n', b'{"v":2}\n{"day":3}\n'] if format_ == "json" else [b"v,day\n1,1\n", b"v,day\n2,\n,3\n"]
    )

    _, refused = read(tmp_path, format_, *files, schema=schema, apart=True)

    assert refused == [("SchemaMismatch", "row 1: column v holds a null, but the table requires a value")]
