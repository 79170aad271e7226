"""A row with a text that is larger than a file may be is refused by the name of its file, and what is beside it is read."""

import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.contract.settings import FileFormat
from lethe.decoder.limits import TOO_COSTLY, Limits
from lethe.ingest import buffer_files
from lethe.ingest.buffer_files import FileOutcome, Reader, ReadSettings
from lethe.ingest.buffer_store import FileTask

MIB: Final = 1024**2
COLUMNS = pa.schema([("v", pa.int64()), ("name", pa.string()), ("batch_id", pa.string())])


def parquet(path: Path, size: int, compression: str = "none") -> None:
    table = pa.table({"v": [1], "name": ["x" * size]})
    pq.write_table(table, path, compression=compression, use_dictionary=False, write_statistics=False)


def pieces(size: int, before: bytes, after: bytes) -> Iterator[bytes]:
    yield before
    for _ in range(size // MIB):
        yield b"x" * MIB
    yield b"x" * (size % MIB) + after


def text(path: Path, size: int, before: bytes, after: bytes) -> None:
    with path.open("wb") as file:
        file.writelines(pieces(size, before, after))


def avro(path: Path, size: int) -> None:
    fields = [{"name": "v", "type": "long"}, {"name": "name", "type": "string"}]
    schema = fastavro.parse_schema({"type": "record", "name": "row", "fields": fields})
    with path.open("wb") as file:
        fastavro.writer(file, schema, [{"v": 1, "name": "x" * size}])


# By its kind: the format, what writes it, and the reason of the refusal.
WRITERS: dict[str, tuple[FileFormat, Callable[[Path, int], None], str]] = {
    "parquet": (FileFormat.PARQUET, parquet, TOO_COSTLY),
    "parquet-zstd": (FileFormat.PARQUET, lambda p, n: parquet(p, n, "zstd"), TOO_COSTLY),
    "json": (FileFormat.JSON, lambda p, n: text(p, n, b'{"v": 1, "name": "', b'"}\n'), "UnreadableFile"),
    "csv": (FileFormat.CSV, lambda p, n: text(p, n, b"v,name\n1,", b"\n"), "UnreadableFile"),
    "avro": (FileFormat.AVRO, avro, TOO_COSTLY),
}


def check(folder: Path, kind: str) -> str:
    """The huge file between two others is refused, and these are read. Returns: the message."""
    format_, _, reason = WRITERS[kind]
    tasks = [FileTask(n, f"file://{folder / n}", (folder / n).stat().st_size) for n in ("first", "huge", "last")]
    outcomes: dict[tuple[str, str], FileOutcome] = {}

    rows = [t.num_rows for t in Reader(COLUMNS, ReadSettings("batch_id", {}, format_)).tables(tasks, outcomes)]

    assert sum(rows) == 2
    found = {batch: o.error.reason if o.error else "" for (batch, _), o in outcomes.items()}
    assert found == {"first": "", "huge": reason, "last": ""}
    (error,) = (o.error for o in outcomes.values() if o.error)
    assert error.uri == tasks[1].uri
    assert "xx" not in error.message
    return error.message


@pytest.mark.parametrize("kind", WRITERS)
def test_a_text_above_the_limit_is_refused_by_name_and_the_files_beside_it_are_read(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 MiB in one row: longer than a line may be, and more than these limits allow."""
    if WRITERS[kind][2] == TOO_COSTLY:
        monkeypatch.setattr(buffer_files, "limits_here", lambda: Limits(expanded_bytes=4 * MIB, expanded_per_byte=0))
    for name, size in (("first", 10), ("huge", 40 * MIB), ("last", 10)):
        WRITERS[kind][1](tmp_path / name, size)

    check(tmp_path, kind)


@pytest.mark.long
@pytest.mark.parametrize("kind", WRITERS)
def test_a_text_of_a_gibibyte_takes_no_memory_of_the_process_that_asks(kind: str, tmp_path: Path) -> None:
    if os.fork() == 0:  # so that its memory is not this process's
        WRITERS[kind][1](tmp_path / "huge", 1024 * MIB)
        os._exit(0)
    assert os.wait()[1] == 0
    for name in ("first", "last"):
        WRITERS[kind][1](tmp_path / name, 10)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    message = check(tmp_path, kind)

    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    print(f"{kind}: {message}; {grown} MiB")
    assert grown < 256
