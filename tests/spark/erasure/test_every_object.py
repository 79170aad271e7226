"""Every object under a location of a table is read, removed, or listed in the record as not covered, whatever its name."""

import io
import json
import os
import tarfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import lethe_spark
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.contract.settings import Deletes
from lethe_spark.jvm.data_files import to_blob
from pyroaring import FrozenBitMap64
from pyspark.sql import SparkSession

from tests.spark.parameters import pairs, some
from tests.spark.support.erases import Names, but, name_of, row, table_folder
from tests.spark.support.erasures import DUE, check_erasures, erase, leave, the_erasure, the_outcome, the_record
from tests.spark.support.every_object import objects_with, of_folder
from tests.spark.support.story import Row, Story, of_spark
from tests.support.lake import Lake

DAYS_4 = 4 * 24
BATCH, GONE = "A", row("A", 1)
VALUE = name_of(GONE[1])


@pytest.fixture(params=some(Deletes, Deletes.LEDGER))
def people(request: pytest.FixtureRequest, spark: SparkSession, lake: Lake) -> Names:
    """Batches A, B and D are in the table, which had other folders for data and metadata before. D is taken back."""
    story = Names.of(Story.begin(spark, lake), deletes=request.param).filled()
    before = {"write.data.path": f"file://{lake.home}/before/{story.name}/data"}
    before |= {"write.metadata.path": f"file://{lake.home}/before/{story.name}/metadata"}
    set_properties(story, before)
    story.put("E")
    story.consolidate("E")
    spark.sql(f"ALTER TABLE {story.full_name} UNSET TBLPROPERTIES ({', '.join(map(repr, before))})")
    story.put("F")
    story.consolidate("F")
    assert story.revert("D").succeeded
    return story


def set_properties(story: Story, properties: dict[str, str]) -> None:
    """By Spark: PyIceberg changes no table of format version 3."""
    wanted = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    story.spark.sql(f"ALTER TABLE {story.full_name} SET TBLPROPERTIES ({wanted})")


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
    pairs([False, True], Deletes, (False, Deletes.LEDGER), (True, Deletes.LEDGER), (True, Deletes.POSITION_DELETES)),
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


@pytest.mark.parametrize("people", some(Deletes, Deletes.LEDGER, Deletes.DELETION_VECTORS), indirect=True)
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


@pytest.mark.parametrize("mode", some(Deletes, Deletes.POSITION_DELETES))
def test_deletes_that_runs_left_go_if_their_paths_have_values_of_a_partition(
    spark: SparkSession, lake: Lake, mode: str
) -> None:
    """The table is partitioned by the erased column. A run in any mode may find what runs before a change of the mode left."""
    story = Names.of(Story.begin(spark, lake, ("name",)), deletes=mode).filled()
    path = next(p for p in story.files() if VALUE in unquote_plus(p))
    data, partition = table_folder(story) / "data", Path(path).parent.name
    for folder in (data / ("0" * 32) / partition, data / ("0" * 32), data / partition, data / "_temporary"):
        for name, content in delete_files(path).items():
            leave(folder / f"0-{name}", DAYS_4, content)
    assert story.restate(story.an_erase(VALUE, evict_by_seconds=DUE)).succeeded

    result = story.vacuum()

    assert the_outcome(result).verified_time is not None, the_outcome(result).blocked_by
    assert [p for p in data.rglob("*") if p.is_file() and p.name.startswith("0-")] == []
    assert objects_with(of_folder(data), VALUE) == []


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
        Deletes,
        *((layout, Deletes.LEDGER) for layout in ("folders elsewhere", "orc", "gzip")),
        ("object storage", Deletes.DELETION_VECTORS),
    ),
)
def test_no_file_anywhere_holds_the_value_whatever_the_layout(
    spark: SparkSession, lake: Lake, layout: str, mode: str
) -> None:
    """Native deletes of B hide rows of the same files, which keep their deletes until the vacuum."""
    story = Names.of(Story.begin(spark, lake), deletes=mode).filled()
    elsewhere = lake.home / "layouts" / story.name
    set_properties(story, LAYOUTS[layout](story, elsewhere))
    foreign = ("G", 70_001, 1)
    story.append_by_spark(foreign, ("G", 70_002, 2))
    story.put("E", "F")
    story.consolidate("E", "F")
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
