"""Once an erasure is verified, no object below any location of the table holds an erased value: every object is read."""

import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from lethe_spark.apps.session import make_session
from lethe_spark.jvm.data_files import tasks_of, write_vectors
from lethe_spark.jvm.spark_table import SparkTable
from pyroaring import FrozenBitMap64
from pyspark.sql import SparkSession

from tests.spark.parameters import some, tuples
from tests.spark.support.built_once import built_once
from tests.spark.support.erases import Names, but, name_of, row, table_folder
from tests.spark.support.erasures import DUE, check_erasures, check_evidence, the_erasure, the_outcome, the_record
from tests.spark.support.every_object import objects_with, of_bucket, of_folder
from tests.spark.support.story import Row, Story, local, of_spark, some_rows
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
        return Names.of(Story.begin(spark, lake, partition_by, catalog), version, **properties).filled()

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
    story.put("E")
    story.consolidate("E")
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
    delete_by_name(story, name_of(gone[1]), day=gone[2])
    delete_by_name(story, name_of(kept[1]), day=kept[2])

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
    tasks = tasks_of(table, [p for p, ids in story.files().items() if batch in ids], story.head().snapshot_id)
    of_first_row = {str(t.file().location()): FrozenBitMap64([0]) for t in tasks}
    (vector,) = write_vectors(table, tasks, of_first_row, "0" * 32).added
    story.sql(f"DELETE FROM {{t}} WHERE batch_id = '{batch}'")
    table.java.refresh()
    table.java.newRowDelta().addDeletes(vector).commit()


@pytest.mark.parametrize(
    ("version", "granularity", "leave"),
    tuples(
        [(2, "file", delete_and_compact), (2, "partition", delete_and_compact), (3, "file", replace_and_delete)],
        (2, "file", delete_and_compact),
        (3, "file", replace_and_delete),
    ),
)
def test_deletes_by_position_without_effect_go_with_the_value_of_their_partition(
    make: Make, version: int, granularity: str, leave: Callable[[Names, str], None]
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
    leave(story, "X")
    left = story.table().inspect.delete_files()["file_path"].to_pylist()
    assert [path for path in left if objects_with([(path, Path(local(path)).read_bytes())], name_of(gone[1]))] == left
    assert len(left) == 1

    erased(story, gone)

    assert story.table().inspect.delete_files().num_rows == 0
    found = objects_with(of_folder(table_folder(story)), name_of(gone[1]))
    assert [f for f in found if not f.startswith("_tombstones/")] == []
    assert of_spark(story.spark.table(story.full_name)) == but(gone)


def test_a_delete_file_that_still_deletes_rows_keeps_the_erasure_open_and_the_rows_deleted(make: Make) -> None:
    story = make(2)
    gone, other = row("B", 1), row("D", 0)  # on different days, hence in different files
    delete_by_name(story, name_of(other[1]), day=other[2])
    assert story.restate(story.an_erase(name_of(gone[1]), evict_by_seconds=DUE)).succeeded

    result = check_erasures(story)

    assert (result.erasures_open, the_erasure(story).is_purged) == (1, False)
    assert of_spark(story.spark.table(story.full_name)) == but(gone, other)
    assert the_outcome(story.vacuum()).verified_time is not None
    assert of_spark(story.spark.table(story.full_name)) == but(gone, other)
    assert objects_with(of_folder(table_folder(story)), name_of(gone[1])) == []


def delete_by_name(story: Names, name: str, day: int) -> None:
    """As a streaming engine does: a file that names a value, in a partition of the table's first spec."""
    found = SparkTable.load(story.spark, story.catalog, story.name)
    assert found is not None
    table, api = found.java, found.jvm.org.apache.iceberg
    schema, parquet = table.schema().select(["name"]), api.FileFormat.PARQUET
    fields = found.gateway.new_array(found.jvm.int, 1)
    fields[0] = table.schema().findField("name").fieldId()
    factory = api.data.GenericFileWriterFactory.Builder(table).deleteFileFormat(parquet)
    factory = factory.equalityFieldIds(fields).equalityDeleteRowSchema(schema).build()
    file = api.io.OutputFileFactory.builderFor(table, 1, next(_NUMBERS)).format(parquet).build().newOutputFile()
    spec = table.specs().get(0)
    partition = api.PartitionData(spec.partitionType())
    partition.set(0, day)
    writer = factory.newEqualityDeleteWriter(file, spec, partition)
    record = api.data.GenericRecord.create(schema)
    record.setField("name", name)
    writer.write(record)
    writer.close()
    table.newRowDelta().addDeletes(writer.toDeleteFile()).commit()


@pytest.mark.long
def test_a_catalog_that_is_a_folder_loses_versions_from_the_oldest_on(lake: Lake, make: Make) -> None:
    """They name partitions. A version is never gone before the one below it."""
    lake.add_catalog("bytesfolder", type="hadoop", warehouse=f"file://{lake.home}/folder")
    make_session("bytesfolder")
    story = make(2, ("name",), "bytesfolder", **{"write.summary.partition-limit": "100"})
    gone = row("B", 1)

    erased(story, gone)

    folder = table_folder(story)
    assert objects_with(of_folder(folder / "metadata"), name_of(gone[1])) == []
    left = sorted(int(p.name[1:].partition(".")[0]) for p in (folder / "metadata").glob("v*.metadata.json"))
    assert left == list(range(left[0], left[-1] + 1))
    story.put("Z")
    assert story.consolidate("Z").batches_promoted == 1


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
