"""Footers as Spark's workers read them, without Spark: what is bad about a file, and what cannot be had now."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.base.objects import BufferedObject, file_etag
from lethe.ingest.buffer_store import BufferAway, FileTask
from lethe.ingest.registrable import FOOTER_TOO_LARGE, TAIL_BYTES, Footer, FooterReader, RegisterTarget
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from tests.support.poison import encrypted

SCHEMA = Schema(NestedField(1, "v", LongType()), NestedField(2, "batch_id", StringType()))
TARGET = RegisterTarget(SCHEMA.model_dump_json(), UNPARTITIONED_PARTITION_SPEC.model_dump_json(), {}, 2, False)


def rows(count: int = 3) -> pa.Table:
    return pa.table({"v": range(count), "batch_id": ["A"] * count})


def task(path: Path) -> FileTask:
    stat = path.stat()
    return FileTask("A", f"file://{path}", stat.st_size, file_etag(stat.st_size, stat.st_mtime_ns))


def read(*tasks: FileTask) -> list[Footer]:
    return [Footer.decode(t) for t in FooterReader(TARGET, {}).read(FileTask.encode(tasks))]


def error_of(path: Path) -> tuple[str, str]:
    (footer,) = read(task(path))
    assert footer.error is not None
    assert (footer.described, footer.error.unread, footer.error.uri) == (None, False, f"file://{path}")
    return footer.error.reason, footer.error.message


def unread(footers: Iterable[Footer]) -> list[str | None]:
    """Why the run may read these files later; None for one that was read."""
    found = list(footers)
    assert all(f.error is None or f.error.unread for f in found)
    return [f.error and f.error.reason for f in found]


def a_file(path: Path, count: int = 3, **options: Any) -> Path:
    pq.write_table(rows(count), path, **options)
    return path


def test_a_footer_of_any_size_is_read_up_to_a_limit(tmp_path: Path) -> None:
    """Also if the ETag is not known. A file that is not the listed one is opened to find out."""
    path = a_file(tmp_path / "p", 3000, row_group_size=1)
    assert int.from_bytes(path.read_bytes()[-8:-4], "little") > TAIL_BYTES
    listed = task(path)
    limited = FooterReader(TARGET, {}, footer_bytes_at_most=TAIL_BYTES)

    found = read(listed, replace(listed, etag=""))

    assert [f.described and f.described.records for f in found] == [3000, 3000]
    assert unread(limited.footers([listed])) == [FOOTER_TOO_LARGE]
    assert unread(limited.footers([replace(listed, etag="other")])) == ["ObjectChanged"]


UNREADABLE: dict[str, tuple[bytes, str]] = {
    "a magic number alone": (b"PAR1", "it is not readable as Parquet"),
    "text": (b"no Parquet at all", "it is not readable as Parquet"),
    "nothing between magic numbers": (b"PAR1" + b"\0" * 100 + b"PAR1", "it is not readable as Parquet"),
    "an empty file": (b"", "the file is empty (0 bytes), expected Parquet"),
    # Nobody who reads the table would have its keys. With a plain footer, pyarrow would abort the process.
    "an encrypted file with a plain footer": (encrypted(rows(), True), "crypt"),
    "an encrypted file": (encrypted(rows(), False), "crypt"),
}


@pytest.mark.parametrize(("content", "said"), UNREADABLE.values(), ids=UNREADABLE)
def test_what_is_no_parquet_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "p"
    path.write_bytes(content)

    reason, message = error_of(path)

    assert (reason, said in message) == ("UnreadableFile", True)


@pytest.mark.parametrize("name", ["a?b", "a#b", "a\nb", "a\tb.parquet", "a\u2028b.parquet", "a\x7f.parquet"])
def test_a_name_that_readers_would_cut_or_spark_cannot_open_is_refused(tmp_path: Path, name: str) -> None:
    reason, message = error_of(a_file(tmp_path / name))

    assert reason == "NameNotReadable"
    assert name[1] in "?#" or "its name contains a line break or another character that is not printable" in message


def test_a_file_that_changed_or_went_is_not_judged(tmp_path: Path) -> None:
    kept, changed, gone = (a_file(tmp_path / n) for n in ("kept", "changed", "gone"))
    tasks = [task(p) for p in (kept, changed, gone)]
    a_file(changed, 9)
    gone.unlink()

    assert unread(read(*tasks)) == [None, "ObjectChanged", "ObjectGone"]


def test_a_file_that_the_run_may_not_read_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = task(a_file(tmp_path / "p"))
    monkeypatch.setattr("os.open", lambda *_: (_ for _ in ()).throw(PermissionError()))

    assert unread(read(listed)) == ["AccessDenied"]


class Bucket:
    """A store of objects that notes the requests for their parts."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.parts: list[tuple[str, int, int]] = []

    def put(self, name: str, table: pa.Table, **options: int) -> FileTask:
        out = pa.BufferOutputStream()
        pq.write_table(table, out, **options)
        uri = f"s3://lake/{name}"
        self.objects[uri] = out.getvalue().to_pybytes()
        return FileTask("A", uri, len(self.objects[uri]), f"etag of {name}")

    def read_unchanged(self, listed: BufferedObject, start: int, size: int) -> bytes | None:
        self.parts.append((listed.key, start, size))
        return self.objects[listed.key][start : start + size]


def test_one_request_for_each_remote_file_fetches_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a second one if its footer is longer."""
    bucket = Bucket()
    monkeypatch.setattr("lethe.ingest.buffer_store.open_store", lambda *_: bucket)
    small = [bucket.put(f"small-{n}", rows()) for n in range(100)]
    large, long = bucket.put("large", rows(300_000)), bucket.put("long", rows(3000), row_group_size=1)
    assert large.size > TAIL_BYTES

    found = read(*small, large, long)

    assert [f.uri for f in found] == [t.uri for t in (*small, large, long)]
    assert all(f.error is None for f in found)
    of_long = [p[1:] for p in bucket.parts if p[0] == long.uri]
    footer = int.from_bytes(bucket.objects[long.uri][-8:-4], "little") + 8
    assert of_long == [(long.size - TAIL_BYTES, TAIL_BYTES), (long.size - footer, footer)]
    others = {p for p in bucket.parts if p[0] != long.uri}
    assert others == {*((t.uri, 0, t.size) for t in small), (large.uri, large.size - TAIL_BYTES, TAIL_BYTES)}
    assert len(bucket.parts) == 103


def test_what_is_no_parquet_is_not_fetched_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last bytes would be taken for the length of a footer."""
    bucket = Bucket()
    monkeypatch.setattr("lethe.ingest.buffer_store.open_store", lambda *_: bucket)
    bucket.objects["s3://lake/text"] = b"x" * 1_000_000

    (found,) = read(FileTask("A", "s3://lake/text", 1_000_000, "etag"))

    assert found.error is not None
    assert (found.error.reason, len(bucket.parts)) == ("UnreadableFile", 1)


def test_a_store_that_does_not_answer_is_no_fault_of_the_file() -> None:
    nowhere = {"s3.endpoint": "http://127.0.0.1:1", "s3.region": "us-east-1", "s3.connect-timeout": "1"}
    away = FileTask("A", "s3://lake/p", 10)

    with pytest.raises(BufferAway):
        list(FooterReader(TARGET, nowhere).read(FileTask.encode([away])))
