"""Footers as Spark's workers read them, without Spark: what is bad about a file, and what cannot be had now."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.buffer.layout import file_etag
from lethe.ingest.buffer_store import BufferAway, FileTask
from lethe.ingest.registrable import FOOTER_TOO_LARGE, TAIL_BYTES, Footer, FooterReader, RegisterTarget
from lethe.ledger.ledger import BufferedObject
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


@pytest.mark.parametrize("count", [3, 300_000])
def test_files_are_described_in_their_order_small_ones_and_large_ones(tmp_path: Path, count: int) -> None:
    paths = [tmp_path / f"é {n}%2F.parquet" for n in range(20)]
    for n, path in enumerate(paths):
        pq.write_table(rows(count if n == 0 else 3), path)
    assert (paths[0].stat().st_size > TAIL_BYTES) == (count > 3)

    found = read(*map(task, paths))

    assert [f.uri for f in found] == [f"file://{p}" for p in paths]
    assert [f.described and f.described.records for f in found] == [count] + [3] * 19


def test_a_footer_of_any_size_is_read(tmp_path: Path) -> None:
    path = tmp_path / "p"
    pq.write_table(rows(3000), path, row_group_size=1)
    assert int.from_bytes(path.read_bytes()[-8:-4], "little") > TAIL_BYTES

    (found,) = read(task(path))

    assert found.described is not None
    assert found.described.records == 3000


@pytest.mark.parametrize("changed", [False, True])
def test_a_footer_above_a_limit_is_not_read_and_its_file_is_not_refused(tmp_path: Path, changed: bool) -> None:
    """Also if the file is not the listed one, and is opened to find out."""
    path = tmp_path / "p"
    pq.write_table(rows(3000), path, row_group_size=1)
    listed = replace(task(path), etag="other" if changed else task(path).etag)

    (found,) = FooterReader(TARGET, {}, footer_bytes_at_most=TAIL_BYTES).footers([listed])

    assert found.error is not None
    reason = "ObjectChanged" if changed else FOOTER_TOO_LARGE
    assert (found.error.reason, found.error.unread) == (reason, True)


@pytest.mark.parametrize("content", [b"PAR1", b"no Parquet at all", b"PAR1" + b"\0" * 100 + b"PAR1"])
def test_what_is_no_parquet_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "p"
    path.write_bytes(content)

    reason, message = error_of(path)

    assert (reason, message.startswith("it is not readable as Parquet")) == ("UnreadableFile", True)


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p"
    pq.write_table(rows(300_000), path)
    path.write_bytes(path.read_bytes()[:-100])

    assert error_of(path)[0] == "UnreadableFile"


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.touch()

    assert error_of(path) == ("UnreadableFile", "the file is empty (0 bytes), expected Parquet")


@pytest.mark.parametrize("plaintext_footer", [True, False])
def test_an_encrypted_file_is_refused(tmp_path: Path, plaintext_footer: bool) -> None:
    """Nobody who reads the table would have its keys. With a plain footer, pyarrow would abort the process."""
    path = tmp_path / "p"
    path.write_bytes(encrypted(rows(), plaintext_footer))

    reason, message = error_of(path)

    assert reason == "UnreadableFile"
    assert "crypt" in message


@pytest.mark.parametrize("name", ["a?b", "a#b"])
def test_a_name_that_readers_would_cut_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    pq.write_table(rows(), path)

    assert error_of(path)[0] == "NameNotReadable"


def test_a_file_that_changed_or_went_is_not_judged(tmp_path: Path) -> None:
    kept, changed, gone = (tmp_path / n for n in ("kept", "changed", "gone"))
    for path in (kept, changed, gone):
        pq.write_table(rows(), path)
    tasks = [task(p) for p in (kept, changed, gone)]
    pq.write_table(rows(9), changed)
    gone.unlink()

    found = read(*tasks)

    assert [f.error and (f.error.reason, f.error.unread) for f in found] == [
        None,
        ("ObjectChanged", True),
        ("ObjectGone", True),
    ]


def test_a_file_whose_etag_is_not_known_is_read_as_well(tmp_path: Path) -> None:
    pq.write_table(rows(), tmp_path / "p")
    known = task(tmp_path / "p")

    (found,) = read(FileTask(known.batch_id, known.uri, known.size))

    assert found.described is not None
    assert found.described.records == 3


def test_a_file_that_the_run_may_not_read_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(rows(), tmp_path / "p")
    monkeypatch.setattr("os.open", lambda *_: (_ for _ in ()).throw(PermissionError()))

    (found,) = read(task(tmp_path / "p"))

    assert found.error is not None
    assert (found.error.reason, found.error.unread) == ("AccessDenied", True)


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


@pytest.mark.parametrize("name", ["a\nb.parquet", "a\tb.parquet", "a\u2028b.parquet", "a\x7f.parquet"])
def test_a_name_that_spark_cannot_open_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    pq.write_table(rows(), path)

    reason, message = error_of(path)

    assert reason == "NameNotReadable"
    assert "its name contains a line break or another character that is not printable" in message
