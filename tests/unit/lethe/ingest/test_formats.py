"""Rows and refusals are the same in every format: what a file holds, and what it must not hold."""

import gzip
import io
import itertools
import os
import random
import threading
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from lethe.ingest import buffer_store
from lethe.ingest.buffer_store import BufferAway, BufferedFiles, Bytes, FileTask, Unread
from lethe.storage.local_store import LocalReader, LocalStore

from tests.support.buffer_formats import FORMATS, avro, columns, read, read_tasks, some_rows, written
from tests.support.lake import BufferFolder

MOMENT = datetime(2013, 1, 1, 10, 0, 0, 123456, UTC)


@pytest.mark.parametrize("format_name", FORMATS)
def test_rows_come_with_the_id_of_their_batch_whatever_the_format(tmp_path: Path, format_name: str) -> None:
    table = some_rows(1000)

    rows, refused = read(tmp_path, format_name, written(format_name, table), written(format_name, some_rows(1)))

    assert refused == []
    assert rows == [{**r, "batch_id": "A"} for r in [*table.to_pylist(), *some_rows(1).to_pylist()]]


@pytest.mark.parametrize("format_name", ["parquet", "orc", "avro", "csv"])
def test_a_file_without_rows_is_a_file(tmp_path: Path, format_name: str) -> None:
    assert read(tmp_path, format_name, written(format_name, some_rows(0))) == ([], [])


@pytest.mark.parametrize("format_name", FORMATS)
def test_an_empty_file_is_refused(tmp_path: Path, format_name: str) -> None:
    rows, [(reason, message)] = read(tmp_path, format_name, b"")

    assert (rows, reason) == ([], "UnreadableFile")
    assert message.startswith("the file is empty (0 bytes), expected ")


@pytest.mark.parametrize("format_name", ["parquet", "orc", "avro"])
@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_a_truncated_file_is_refused(tmp_path: Path, format_name: str, part: float) -> None:
    whole = written(format_name, some_rows(5000))

    _, [(reason, message)] = read(tmp_path, format_name, whole[: int(len(whole) * part)])

    assert reason == "UnreadableFile"
    assert "not readable as" in message


@pytest.mark.parametrize(("found", "said"), list(itertools.permutations(FORMATS, 2)))
def test_a_file_of_another_format_is_refused(tmp_path: Path, found: str, said: str) -> None:
    rows, [(reason, message)] = read(tmp_path, said, written(found, some_rows()))

    assert rows == []
    assert reason == "UnreadableFile" or (found, said) == ("json", "csv")
    assert said.lower() in message.lower() or reason == "SchemaMismatch"


def test_gzip_around_a_binary_format_is_named(tmp_path: Path) -> None:
    _, refused = read(tmp_path, "parquet", gzip.compress(written("parquet", some_rows())))

    assert refused == [("UnreadableFile", "it is compressed by gzip, expected Parquet")]


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_column_that_the_table_does_not_have_is_named(tmp_path: Path, format_name: str) -> None:
    _, [(reason, message)] = read(tmp_path, format_name, written(format_name, some_rows(extra=1)))

    assert reason == "SchemaMismatch"
    assert "a column that the table does not have (number " in message
    assert "the table has v, day, batch_id" in message
    assert "extra" not in message


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("ids", ["A", "B"])
def test_a_batch_column_in_the_file_must_be_the_id_of_the_batch(tmp_path: Path, format_name: str, ids: str) -> None:
    rows, refused = read(tmp_path, format_name, written(format_name, some_rows(2, batch_id=ids)))

    assert len(rows) == (2 if ids == "A" else 0)
    assert [r[0] for r in refused] == ([] if ids == "A" else ["BatchIdMismatch"])


TYPES = columns(
    at="timestamp", wall="timestamp_ntz", d="date", x="double", yes="boolean", price="decimal(9,2)", t="string"
)
VALUES: dict[str, Any] = {
    "at": MOMENT,
    "wall": MOMENT.replace(tzinfo=None),
    "d": date(2013, 1, 1),
    "x": 0.5,
    "yes": True,
    "price": Decimal("1.20"),
    "t": 'é, "q"\nline',
}


def every_type(format_name: str) -> bytes:
    if format_name == "csv":
        line = (
            '2013-01-01T11:00:00.123456+01:00,2013-01-01 10:00:00.123456,2013-01-01,0.5,true,1.2,"é, ""q""\nline"\r\n'
        )
        return ("at,wall,d,x,yes,price,t\r\n" + line + ",,,,,,\r\n").encode()
    if format_name == "json":
        return (
            '{"at":"2013-01-01T11:00:00.123456+01:00","wall":"2013-01-01T10:00:00.123456","d":"2013-01-01","x":0.5,'
            '"yes":true,"price":1.2,"t":"é, \\"q\\"\\nline"}\n{"t":null}\n'
        ).encode()
    out = io.BytesIO()
    if format_name == "avro":
        logical = {
            "at": {"type": "long", "logicalType": "timestamp-micros"},
            "wall": {"type": "long", "logicalType": "local-timestamp-micros"},
            "d": {"type": "int", "logicalType": "date"},
            "x": "double",
            "yes": "boolean",
            "price": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            "t": "string",
        }
        avro(out, [{"name": n, "type": ["null", t]} for n, t in logical.items()], [VALUES, dict.fromkeys(VALUES)])
        return out.getvalue()
    types = [pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32(), pa.float64(), pa.bool_(), pa.decimal128(9, 2)]
    schema = pa.schema(list(zip(VALUES, [*types, pa.string()], strict=True)))
    (pq if format_name == "parquet" else orc).write_table(pa.Table.from_pylist([VALUES, {}], schema), out)
    return out.getvalue()


@pytest.mark.parametrize("format_name", FORMATS)
def test_every_type_and_its_null_come_through(tmp_path: Path, format_name: str) -> None:
    """But for a text in CSV, where nothing is an empty text."""
    rows, refused = read(tmp_path, format_name, every_type(format_name), schema=TYPES)

    assert refused == []
    assert rows[0] == {**VALUES, "batch_id": "A"}
    assert rows[1] == {**dict.fromkeys(VALUES), "t": "" if format_name == "csv" else None, "batch_id": "A"}


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_file_too_large_to_be_held_is_read_by_pieces(
    tmp_path: Path, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lethe.ingest.buffer_store.WHOLE_FILE_BYTES", 0)

    rows, refused = read(tmp_path, format_name, written(format_name, some_rows(70_000)))

    assert (len(rows), refused) == (70_000, [])
    assert rows[-1]["v"] == 69_999 * 7919


def listed(folder: Path, name: str) -> FileTask:
    """A file as a listing of local files has it."""
    (found,) = [o for o in LocalStore().list(f"file://{folder}") if o.key.endswith(f"/{name}")]
    return FileTask(name, found.key, found.size, found.etag)


@pytest.mark.parametrize("large", [False, True])
def test_a_file_that_changed_or_went_since_it_was_listed_is_not_judged(
    tmp_path: Path, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it is as long as before; the other files of the task are read."""
    monkeypatch.setattr("lethe.ingest.buffer_store.WHOLE_FILE_BYTES", 0 if large else 2**20)
    for name in ("same", "longer", "touched", "gone"):
        (tmp_path / name).write_bytes(written("csv", some_rows(5)))
    tasks = [listed(tmp_path, name) for name in ("same", "longer", "touched", "gone")]
    (tmp_path / "longer").write_bytes(written("csv", some_rows(6)))
    os.utime(tmp_path / "touched", ns=(0, 1))
    (tmp_path / "gone").unlink()

    rows, refused = read_tasks(tasks, "csv")

    assert len(rows) == 5
    assert [reason for reason, _ in refused] == ["ObjectChanged", "ObjectChanged", "ObjectGone"]


@pytest.mark.parametrize("format_name", FORMATS)
def test_damage_anywhere_in_a_file_is_refused_or_not_noticed_and_never_ends_the_reading(
    tmp_path: Path, format_name: str
) -> None:
    """What a decoder throws, whatever that is, is said of this file alone."""
    chance = random.Random(5)
    whole = written(format_name, some_rows(50))

    def damaged() -> bytes:
        at, more = chance.randrange(len(whole)), chance.randbytes(chance.randint(0, 3))
        return chance.choice([whole[:at] + more + whole[at + len(more) :], whole[:at] + more + whole[at:], whole[:at]])

    contents = [damaged() for _ in range(100)]

    rows, refused = read(tmp_path, format_name, *contents, whole, apart=True)

    assert {reason for reason, _ in refused} <= {"UnreadableFile", "SchemaMismatch", "BatchIdMismatch"}
    assert len(refused) > 30
    assert rows[-50:] == [{**r, "batch_id": "A100"} for r in some_rows(50).to_pylist()]


def test_a_file_that_cannot_be_used_keeps_the_others_of_its_batch_out_and_no_other_batch(tmp_path: Path) -> None:
    """Whether it is found by its first bytes, or by a value when rows of several batches are gone through together."""
    good, null = written("parquet", some_rows(3)), pa.table({"v": [1, None], "day": pa.array([1, 1], pa.int32())})
    schema = columns(v="long", day="integer")
    schema["v"].nullable = False
    tasks = []
    for batch_id, contents in {
        "A": [good],
        "B": [good, b"none"],
        "C": [good, written("parquet", null)],
        "D": [good],
    }.items():
        for n, content in enumerate(contents):
            file = tmp_path / f"{batch_id}{n}"
            file.write_bytes(content)
            tasks.append(FileTask(batch_id, f"file://{file}", len(content)))

    rows, refused = read_tasks(tasks, schema=schema)

    assert [r["batch_id"] for r in rows] == ["A"] * 3 + ["D"] * 3
    assert [reason for reason, _ in refused] == ["UnreadableFile", "SchemaMismatch"]


def read_by_pieces(file: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The reasons to refuse a file that a worker does not fetch whole."""
    monkeypatch.setattr(buffer_store, "WHOLE_FILE_BYTES", 0)
    _, refused = read_tasks([FileTask("A", f"file://{file}", file.stat().st_size)])
    return [reason for reason, _ in refused]


def a_large_file(folder: Path) -> Path:
    return BufferFolder(folder).put("A", [{"v": n * 7919, "day": n % 31} for n in range(100_000)]) / "part-0.parquet"


def test_damage_in_a_large_file_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = a_large_file(tmp_path)
    content = bytearray(file.read_bytes())
    content[200:4000] = b"\xff" * 3800
    file.write_bytes(content)

    assert read_by_pieces(file, monkeypatch) == ["UnreadableFile"]


def test_a_store_that_fails_within_a_large_file_is_not_taken_for_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyArrow reports both as OSError."""
    file = a_large_file(tmp_path)

    def reset(_: LocalReader, _buffer: Any) -> int:
        raise OSError("connection reset")

    monkeypatch.setattr(LocalReader, "readinto", reset)
    with pytest.raises(BufferAway, match="connection reset"):
        read_by_pieces(file, monkeypatch)


@pytest.mark.parametrize(
    ("size", "most"), [(1, buffer_store.FILES_AHEAD), (buffer_store.BYTES_AHEAD // 4, 4), (1 << 40, 1)]
)
def test_remote_files_are_fetched_ahead_in_their_order_within_limits(
    size: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All fetches that may begin have begun before the first one ends."""
    begun: list[str] = []
    gate = threading.Event()

    def fetch(_: BufferedFiles, task: FileTask) -> Bytes | Unread:
        begun.append(task.uri)
        if len(begun) == most:
            gate.set()
        assert gate.wait(20)
        return Unread("reason", task.uri)

    monkeypatch.setattr(BufferedFiles, "open", fetch)
    tasks = [FileTask("A", f"s3://lake/{n}", size) for n in range(100)]
    files = BufferedFiles({}).opened(tasks)

    first, _ = next(files)

    assert first == tasks[0]
    assert len(begun) == most
    assert [task for task, _ in files] == tasks[1:]
