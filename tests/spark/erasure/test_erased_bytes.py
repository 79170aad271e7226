"""Once an erasure is verified, no object below any location of the table holds an erased value: every object is read."""

import io
import itertools
import json
import os
import tarfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lethe_spark
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.contract.settings import Deletes
from lethe.iceberg.position_deletes import to_blob
from lethe_spark.apps.session import make_session
from lethe_spark.jvm.data_files import tasks_by_path, write_deletes
from lethe_spark.jvm.spark_table import SparkTable
from pyiceberg.io import load_file_io
from pyroaring import FrozenBitMap64
from pyspark.sql import SparkSession

from tests.spark.parameters import MODES, pairs, some, tuples
from tests.spark.support.built_once import built_once
from tests.spark.support.erases import Names, but, name_of, row, table_folder
from tests.spark.support.erasures import (
    DUE,
    check_erasures,
    check_evidence,
    erase,
    leave,
    the_erasure,
    the_outcome,
    the_record,
)
from tests.spark.support.every_object import objects_with, of_bucket, of_folder
from tests.spark.support.story import Row, local, of_spark, some_rows
from tests.spark.support.streaming_writer import delete_by_equality
from tests.support.builders import a_request
from tests.support.lake import Lake
from tests.support.servers.s3 import S3

_NUMBERS = itertools.count(1)
Make = Callable[..., Names]


@pytest.fixture
def make(spark: SparkSession, lake: Lake) -> Make:
    @built_once
    def begin(
        version: int, partition_by: tuple[str, ...] = ("day",), catalog: str = "lite", **properties: str
    ) -> Names:
        return Names.begin(spark, lake, partition_by, catalog, version, properties=properties).filled()

    return begin


def ends(*batch_ids: str) -> tuple[Row, Row]:
    """The rows with the least and the greatest name of these batches."""
    rows = sorted((name_of(r["v"]), b, r["v"], r["day"]) for b in batch_ids for r in some_rows(b, 4))
    return (rows[0][1:], rows[-1][1:])


def texts_of(low: Row, high: Row) -> tuple[str, ...]:
    """The names, and what a manifest has of them where it cuts bounds to sixteen characters: the upper one is made greater."""
    least, greatest = name_of(low[1]), name_of(high[1])
    return least, greatest, least[:16], f"{greatest[:15]}{chr(ord(greatest[15]) + 1)}"


def erased(story: Names, *rows: Row) -> None:
    """Erase the rows, and purge and verify that in a vacuum."""
    names = [name_of(v) for _, v, _ in rows]
    reported = story.restate(story.an_erase(*names, evict_by_seconds=DUE))
    assert (reported.succeeded, reported.rows_erased) == (True, len(rows))
    result = story.vacuum()
    assert the_outcome(result).verified_time is not None, the_outcome(result).blocked_by
    record = the_record(result) if story.catalog == "lite" else {}
    assert not [what for what in record.get("not-covered", ()) if "bounds" in what]


@pytest.mark.parametrize(
    ("version", "bounds"),
    tuples([(2, "full"), (3, "truncate(16)"), (2, "truncate(16)"), (3, "full")], (2, "full")),
)
def test_no_object_holds_the_least_or_the_greatest_value_of_its_column(make: Make, version: int, bounds: str) -> None:
    """Of more than sixteen characters, with whole bounds and with bounds that are cut."""
    story = make(version, **{"write.metadata.metrics.column.name": bounds})
    story.filled("E")
    story.restate(a_request("revert", batch_ids=("D",)))
    low, high = ends("A", "B", "D", "E")
    texts = texts_of(low, high)
    assert objects_with(of_folder(table_folder(story)), *texts) != []

    erased(story, low, high)

    assert objects_with(of_folder(table_folder(story)), *texts) == []
    assert story.physical().keys().isdisjoint({low, high})


@pytest.mark.parametrize("version", some([2, 3], 3))
def test_no_object_holds_a_value_that_was_a_partition(make: Make, version: int) -> None:
    """In paths, manifests, their lists, summaries of snapshots and statistics. What the ledger remembers of partitions stays."""
    story = make(version, ("name",), **{"write.summary.partition-limit": "100"})
    gone = row("B", 1)
    story.restate(a_request("revert", batch_ids=("A",)))
    story.sql("CALL {catalog}.system.compute_table_stats(table => '{name}')")
    story.sql("CALL {catalog}.system.compute_partition_stats(table => '{name}')")
    assert objects_with(of_folder(table_folder(story) / "metadata"), name_of(gone[1])) != []

    erased(story, gone)

    assert {
        t for t in objects_with(of_folder(table_folder(story)), name_of(gone[1])) if not t.startswith("_tombstones/")
    } == set()
    assert story.physical().keys().isdisjoint({gone})
    story.check_reads()


@pytest.mark.long
@pytest.mark.parametrize(("catalog", "version"), [("rest", 2), ("folders", 3), ("rest", 3), ("folders", 2)])
def test_no_object_of_a_table_of_a_rest_or_a_folder_catalog_holds_an_erased_value(
    make: Make,
    lake: Lake,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
    catalog: str,
    version: int,
) -> None:
    if catalog == "rest":
        request.getfixturevalue("rest")
    else:
        lake.add_catalog(catalog, type="hadoop", warehouse=f"file://{tmp_path_factory.mktemp(catalog)}")
    make_session(catalog)
    story = make(version, catalog=catalog)
    gone = row("B", 1)
    assert objects_with(of_folder(table_folder(story)), name_of(gone[1])) != []

    erased(story, gone)

    assert objects_with(of_folder(table_folder(story)), name_of(gone[1])) == []
    assert story.rows_at() == but(gone)


@pytest.mark.parametrize("evolved", some([False, True], True))
def test_a_delete_file_of_another_writer_that_names_an_erased_value_goes_as_well(make: Make, evolved: bool) -> None:
    """A streaming engine deletes by a value, in the partitioning that it knows. Its file stays with the table although it deletes
    nothing any more: no data file is left in its partition, or all of them are younger."""
    story = make(2)
    if evolved:
        story.sql("ALTER TABLE {t} DROP PARTITION FIELD day")
        story.compact()
    gone, kept = row("B", 1), row("D", 1)
    delete_by_equality(story, "name", name_of(gone[1]), 0, [gone[2]])
    delete_by_equality(story, "name", name_of(kept[1]), 0, [kept[2]])

    reported = story.restate(story.an_erase(name_of(gone[1]), evict_by_seconds=DUE))
    assert reported.succeeded
    result = story.vacuum()

    assert the_outcome(result).verified_time is not None, the_outcome(result).blocked_by
    assert objects_with(of_folder(table_folder(story)), name_of(gone[1])) == []
    wanted = but(gone) if evolved else but(gone, kept)
    assert of_spark(story.spark.table(story.full_name)) == wanted


def delete_and_compact(story: Names, batch: str) -> None:
    """Another engine deletes a batch by position, and compacts the table without removing the deletes."""
    story.sql(f"DELETE FROM {{t}} WHERE batch_id = '{batch}'")
    story.sql("CALL {catalog}.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))")


def replace_and_delete(story: Names, batch: str) -> None:
    """Another engine writes the files of a batch anew without it, and then commits a deletion vector of a file that it has seen
    before.
    """
    table = SparkTable.load(story.spark, story.catalog, story.name)
    assert table is not None
    tasks = tasks_by_path(table, [p for p, ids in story.files().items() if batch in ids], story.head().snapshot_id)
    of_first_row = {path: FrozenBitMap64([0]) for path in tasks}
    (vector,) = write_deletes(table, tasks, of_first_row, (), "0" * 32, load_file_io({}, table.location)).added
    story.sql(f"DELETE FROM {{t}} WHERE batch_id = '{batch}'")
    table.java.refresh()
    table.java.newRowDelta().addDeletes(vector).commit()


@pytest.mark.parametrize(
    ("version", "granularity", "act"),
    tuples(
        [(2, "file", delete_and_compact), (2, "partition", delete_and_compact), (3, "file", replace_and_delete)],
        (2, "file", delete_and_compact),
        (3, "file", replace_and_delete),
    ),
)
def test_deletes_by_position_without_effect_go_with_the_value_of_their_partition(
    make: Make, version: int, granularity: str, act: Callable[[Names, str], None]
) -> None:
    """Another engine has left them. The files that they apply to are gone. Their manifest, their path and the paths in them name
    the partition, which is an erased value.
    """
    mode = "merge-on-read" if version == 2 else "copy-on-write"
    how = {"write.delete.mode": mode, "write.delete.granularity": granularity}
    story = make(version, ("name",), **how)
    gone = row("B", 1)
    story.append_by_spark(("X", *gone[1:]))
    story.compact()
    act(story, "X")
    left = story.table().inspect.delete_files()["file_path"].to_pylist()
    assert [path for path in left if objects_with([(path, Path(local(path)).read_bytes())], name_of(gone[1]))] == left
    assert len(left) == 1

    erased(story, gone)

    assert story.table().inspect.delete_files().num_rows == 0
    found = objects_with(of_folder(table_folder(story)), name_of(gone[1]))
    assert [f for f in found if not f.startswith("_tombstones/")] == []
    assert of_spark(story.spark.table(story.full_name)) == but(gone)


@pytest.mark.long
def test_a_puffin_file_that_names_an_erased_partition_goes_although_other_vectors_in_it_are_in_use(make: Make) -> None:
    """Another engine writes the vectors of several partitions to one file. A purge applies all older vectors."""
    how = {"write.delete.mode": "merge-on-read", "write.delete.distribution-mode": "none"}
    story = make(3, ("name",), **how)
    gone, kept = row("B", 1), row("D", 1)
    story.append_by_spark(("X", *gone[1:]))
    story.append_by_spark(("X", *kept[1:]))
    story.compact()
    story.sql("DELETE FROM {t} WHERE batch_id = 'X'")
    before = story.table().inspect.delete_files()["file_path"].to_pylist()
    assert (len(before), len(set(before))) == (2, 1)

    erased(story, gone)

    found = objects_with(of_folder(table_folder(story)), name_of(gone[1]))
    assert [f for f in found if not f.startswith("_tombstones/")] == []
    assert of_spark(story.spark.table(story.full_name)) == story.rows_at() == but(gone)


def test_a_delete_file_that_still_deletes_rows_keeps_the_erasure_open_and_the_rows_deleted(make: Make) -> None:
    story = make(2)
    gone, other = row("B", 1), row("D", 0)  # on different days, hence in different files
    delete_by_equality(story, "name", name_of(other[1]), 0, [other[2]])
    assert story.restate(story.an_erase(name_of(gone[1]), evict_by_seconds=DUE)).succeeded

    result = check_erasures(story)

    assert (result.erasures_open, the_erasure(story).is_purged) == (1, False)
    assert of_spark(story.spark.table(story.full_name)) == but(gone, other)
    assert the_outcome(story.vacuum()).verified_time is not None
    assert of_spark(story.spark.table(story.full_name)) == but(gone, other)
    assert objects_with(of_folder(table_folder(story)), name_of(gone[1])) == []


def test_unreferenced_metadata_is_deleted_when_it_is_old_unless_another_table_shares_the_folder(make: Make) -> None:
    """A writer that died left a manifest. Beside the metadata of another table nobody can tell whose it is."""
    story = make(2)
    gone = row("B", 1)
    folder = table_folder(story) / "metadata"
    manifest = folder / "left-m0.avro"
    manifest.write_bytes(next(p for p in sorted(folder.glob("*-m0.avro"))).read_bytes())
    other = folder / "00000-of-another.metadata.json"
    other.write_text('{"table-uuid": "another", "snapshots": [{"summary": {"partitions.day=1": ""}}]}')
    assert story.restate(story.an_erase(name_of(gone[1]), evict_by_seconds=DUE)).succeeded

    def held() -> list[str]:
        return [
            b.partition(" (")[2].partition(";")[0]
            for b in the_outcome(check_erasures(story)).blocked_by
            if "left-m0" in b
        ]

    story.vacuum()
    assert held() == ["it may belong to the other table with metadata in the same folder"]
    other.unlink()
    assert held() == ["no snapshot names it"]
    two_days_ago = time.time() - 2 * 86_400
    os.utime(manifest, (two_days_ago, two_days_ago))
    assert (the_outcome(check_erasures(story)).blocked_by, manifest.exists()) == ((), False)


def test_of_a_bucket_with_versions_no_version_of_an_object_holds_it(
    s3: S3, lake: Lake, make: Make, tmp_path: Path
) -> None:
    bucket = f"bytes{next(_NUMBERS)}"
    s3.client.create_bucket(Bucket=bucket)
    s3.client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    home = {"uri": f"sqlite:///{tmp_path}/{bucket}.db", "warehouse": f"s3://{bucket}/wh"}
    lake.add_catalog(bucket, type="sql", **home, **s3.properties(), **{"s3.path-style-access": "true"})
    make_session(bucket)
    story = make(3, catalog=bucket)
    low, high = ends("A", "B", "D")
    texts = texts_of(low, high)
    assert objects_with(of_bucket(s3, bucket), *texts) != []

    erased(story, low, high)

    assert objects_with(of_bucket(s3, bucket), *texts) == []
    assert check_erasures(story).erasures_open == 0
    check_evidence(story, "ns/erase")


# --- every object under a location -----------------------------------------------------------------------------------
# Every object under a location of a table is read, removed, or listed in the record as not covered, whatever its name.


DAYS_4 = 4 * 24
BATCH, GONE = "A", row("A", 1)
VALUE = name_of(GONE[1])


@pytest.fixture(params=some(MODES, Deletes.LEDGER))
@built_once
def people(request: pytest.FixtureRequest, spark: SparkSession, lake: Lake) -> Names:
    """Batches A, B and D are in the table, which had other folders for data and metadata before. D is taken back."""
    story = Names.begin(spark, lake, deletes=request.param).filled()
    before = {"write.data.path": f"file://{lake.home}/before/{story.name}/data"}
    before |= {"write.metadata.path": f"file://{lake.home}/before/{story.name}/metadata"}
    story.set_properties(before)
    story.filled("E")
    story.unset_properties(*before)
    story.filled("F")
    assert story.revert("D").succeeded
    return story


def rows_of(story: Names, with_ids: bool = True) -> bytes:
    """A data file with one row of the erased batch and the erased value."""
    schema = story.table().schema().as_arrow()
    if not with_ids:
        schema = pa.schema([pa.field(f.name, f.type) for f in schema])
    sink = io.BytesIO()
    rows = [{"v": GONE[1], "day": GONE[2], "name": VALUE, "batch_id": BATCH}]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), sink)
    return sink.getvalue()


def a_zip(content: bytes) -> bytes:
    """An archive in an archive."""
    inner, outer = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("rows.parquet", content)
    with tarfile.open(fileobj=outer, mode="w:gz") as tar:
        member = tarfile.TarInfo("inner.zip")
        member.size = len(inner.getvalue())
        tar.addfile(member, io.BytesIO(inner.getvalue()))
    return outer.getvalue()


def a_puffin(blob: bytes, kind: str, **properties: str) -> bytes:
    described = {"type": kind, "fields": [1], "offset": 4, "length": len(blob), "properties": properties}
    footer = json.dumps({"blobs": [described]}).encode()
    return b"PFA1" + blob + b"PFA1" + footer + len(footer).to_bytes(4, "little") + b"\0\0\0\0" + b"PFA1"


def planted(story: Names, lake: Lake) -> Iterator[tuple[Path, bytes]]:
    """The value, in all places where software leaves something, and in some more."""
    table, before = table_folder(story), lake.home / "before" / story.name
    rows, plain, text = rows_of(story), rows_of(story, with_ids=False), f"{VALUE}\n".encode()
    metadata = next(p for p in sorted((table / "metadata").glob("*.metadata.json")))
    yield table / "data" / "_SUCCESS", b""
    yield table / "data" / "beside-a-marker.parquet", rows
    yield table / "data" / "plain-beside-a-marker.parquet", plain
    for n, name in enumerate(
        (
            "data/.hidden.parquet",
            "data/_temporary/0/task_1/part-0.parquet",
            "data/.spark-staging-1/part-0.parquet",
            "data/day=1/leftover.parquet",
            "data/name=x/_/leftover.parquet",
            "data/no-extension",
            "data/rows.parquet.bak",
            "data/rows.parquet.tmp.1",
            "leftover.parquet",
            "_runs/rows.parquet",
            "_tombstones/00000009-x-batches.avro",
            "_erasures/rows.parquet",
            "_events/0000000000000001.json",
            "checkpoints/0/state.parquet",
        )
    ):
        yield table / name, rows if n % 2 else plain
    for name in (
        "data/notes.txt",
        "data/.part-0.parquet.crc",
        "checkpoints/0/commits/0",
        "_runs/1-1-00000000-writing.json",
        "_erasures/0123456789abcdef-0123456789abcdef.json",
        "metadata/version-hint.text",
        "metadata/notes.txt",
        "metadata/00000-old.metadata.json",
        "README",
    ):
        yield table / name, text
    yield (
        table / "metadata" / "00001-copy.metadata.json",
        metadata.read_bytes().replace(b'"table-uuid"', b'"table-uuyd"'),
    )
    yield table / "data" / "backup.tar.gz", a_zip(rows)
    yield table / "data" / "statistics.puffin", a_puffin(text, "a-custom-index")
    yield table / "metadata" / "statistics.puffin", a_puffin(text, "a-custom-index")
    yield before / "data" / "leftover.parquet", rows
    yield before / "data" / "_temporary" / "0" / "part-0.orc", text
    yield before / "metadata" / ".notes", text
    yield before / "metadata" / "m0.avro", text
    yield story.buffer.path / "_refused" / "batch_id=A" / "part-0.parquet", plain
    yield story.buffer.path / "batch_id=old" / "part-0.parquet", plain
    yield story.buffer.path / ".draft", text


def plant(story: Names, lake: Lake) -> list[Path]:
    return [leave(path, DAYS_4, content) for path, content in planted(story, lake) if not path.exists()]


def is_named(path: Path, record: dict[str, Any]) -> bool:
    shown = "/".join(f"{p.partition('=')[0]}=*" if "=" in p else p for p in path.parent.parts) + f"/{path.name}"
    return any(shown.lstrip("/") in entry for entry in record["not-covered"])


@pytest.mark.parametrize(
    ("by_records", "people"),
    pairs([False, True], MODES, (True, Deletes.LEDGER), (True, Deletes.POSITION_DELETES)),
    indirect=["people"],
)
def test_what_software_leaves_anywhere_is_removed_or_named(people: Names, lake: Lake, by_records: bool) -> None:
    paths = plant(people, lake)
    (table_folder(people) / "data" / "link").symlink_to(lake.home / "before")
    assert len([p for p in paths if p.stat().st_size]) >= 35
    if by_records:
        assert people.restate(people.an_erase(VALUE, evict_by_seconds=DUE)).succeeded
    else:
        erase(people, BATCH)

    result = people.vacuum()

    record = the_record(result)
    left = [p for p in paths if p.exists() and p.stat().st_size]
    assert [p for p in left if not is_named(p, record)] == []
    assert is_named(table_folder(people) / "data" / "link", record)
    assert VALUE not in json.dumps(record)
    # What was written for the table is removed, wherever it lies, but beside a marker only if it has the table's field ids.
    rows = {p for p in left if p.is_relative_to(table_folder(people)) and p.read_bytes()[:4] == b"PAR1"}
    assert {p.parent for p in rows} == {table_folder(people) / "data"}
    assert {p.read_bytes() for p in rows} == {rows_of(people, with_ids=False)}


@pytest.mark.parametrize("people", some(MODES, Deletes.LEDGER, Deletes.DELETION_VECTORS), indirect=True)
def test_leftovers_beside_a_marker_or_in_a_temporary_folder_are_removed(people: Names) -> None:
    """And young ones hold the erasure, as they would in any other folder."""
    data = table_folder(people) / "data"
    old = [data / "old.parquet", data / "_temporary" / "0" / "old.parquet"]
    young = leave(data / "_temporary" / "0" / "young.parquet", 1, rows_of(people))
    for path in old:
        leave(path, DAYS_4, rows_of(people))
    (data / "_SUCCESS").touch()
    erase(people, BATCH)

    result = people.vacuum()
    (held,) = the_erasure(people).blockers
    then = time.time() - DAYS_4 * 3600
    os.utime(young, (then, then))
    free = check_erasures(people)

    assert result.erasures_open == 1
    assert held.name.endswith("/data/_temporary/0/young.parquet")
    assert the_outcome(free).verified_time is not None
    assert not any(p.exists() for p in (*old, young))


def delete_files(path: str) -> dict[str, bytes]:
    """Deletes of a row of a data file by position, as runs write them that die before they commit."""
    schema = pa.schema(
        pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(field_id)})
        for name, kind, field_id in (("file_path", pa.string(), 2147483546), ("pos", pa.int64(), 2147483545))
    )
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([{"file_path": path, "pos": 0}], schema), sink)
    vector = a_puffin(to_blob(FrozenBitMap64([0])), "deletion-vector-v1", **{"referenced-data-file": path})
    return {"lethe-deletes.parquet": sink.getvalue(), "deletes.puffin": vector}


def test_objects_of_another_table_in_one_folder_are_named_and_stay(people: Names) -> None:
    """A table was renamed, and another one was created under its name: both have the folder of the name."""
    location = table_folder(people)
    table = people.table()
    other = people.lake.catalog.create_table(f"{people.name}_other", table.schema(), location=f"file://{location}")
    other.append(pq.read_table(io.BytesIO(rows_of(people))))
    other.append(pq.read_table(io.BytesIO(rows_of(people))))
    for path in location.rglob("*"):
        if path.is_file():
            then = time.time() - DAYS_4 * 3600
            os.utime(path, (then, then))
    theirs = {Path(f.file.file_path.removeprefix("file://")) for f in other.scan().plan_files()}
    theirs |= {Path(m.manifest_path.removeprefix("file://")) for m in other.current_snapshot().manifests(other.io)}
    erase(people, BATCH)

    result = people.vacuum()

    record = the_record(result)
    assert [p for p in theirs if not (p.exists() and is_named(p, record))] == []
    reloaded = people.lake.catalog.load_table(f"{people.name}_other")
    assert reloaded.scan().to_arrow().num_rows == 2
    assert reloaded.scan(snapshot_id=reloaded.snapshots()[0].snapshot_id).to_arrow().num_rows == 1


Change = Callable[[Names, Path], dict[str, str]]
LAYOUTS: dict[str, Change] = {
    "folders elsewhere": lambda _, home: {
        "write.data.path": f"file://{home}/data",
        "write.metadata.path": f"file://{home}/metadata",
    },
    "object storage": lambda _, home: {
        "write.object-storage.enabled": "true",
        "write.data.path": f"file://{home}/objects",
    },
    "gzip": lambda *_: {"write.metadata.compression-codec": "gzip"},
    "no metrics": lambda *_: {"write.metadata.metrics.default": "none"},
    "orc": lambda *_: {"write.format.default": "orc"},
    "avro": lambda *_: {"write.format.default": "avro"},
}


@pytest.mark.parametrize(
    ("layout", "mode"),
    pairs(
        LAYOUTS,
        MODES,
        ("folders elsewhere", Deletes.LEDGER),
        ("orc", Deletes.LEDGER),
        ("object storage", Deletes.DELETION_VECTORS),
    ),
)
def test_no_file_anywhere_holds_the_value_whatever_the_layout(
    spark: SparkSession, lake: Lake, layout: str, mode: str
) -> None:
    """Native deletes of B hide rows of the same files, which keep their deletes until the vacuum."""
    story = Names.begin(spark, lake, deletes=mode).filled()
    elsewhere = lake.home / "layouts" / story.name
    story.set_properties(LAYOUTS[layout](story, elsewhere))
    foreign = ("G", 70_001, 1)
    story.append_by_spark(foreign, ("G", 70_002, 2))
    story.filled("EF")
    assert story.revert("B", "F").succeeded
    values = (VALUE, name_of(foreign[1]))
    folders = [f for f in (table_folder(story), elsewhere) if f.exists()]
    assert {v for v in values for f in folders if objects_with(of_folder(f), v)} == set(values)

    left = but(GONE, batches=("A", "D", "E")) + Counter([("G", 70_002, 2)])

    def read() -> list[Counter[Row]]:
        spark.catalog.clearCache()
        frames = [lethe_spark.read(spark, story.full_name)]
        if mode != Deletes.LEDGER:
            frames.append(spark.table(story.full_name))
        return [of_spark(frame) for frame in frames]

    assert story.restate(story.an_erase(*values, evict_by_seconds=DUE)).succeeded
    assert [rows for rows in read() if rows != left] == []
    result = story.vacuum()

    assert the_outcome(result).verified_time is not None, the_outcome(result).blocked_by
    assert [found for f in folders for found in objects_with(of_folder(f), *values)] == []
    assert [rows for rows in read() if rows != left] == []
