"""Register mode, by runs over real tables: the producer's files are the table's, each once, whoever reads and whatever comes
between.
"""

import shutil
from collections import Counter
from pathlib import Path

import lethe
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.base import names
from lethe.base.errors import TransientError
from lethe.base.names import batch_folder
from lethe.base.objects import file_etag
from lethe.contract.run import BufferRef, CreateTable, TableRef
from lethe.ingest.registrable import TAIL_BYTES
from lethe_spark.apps.session import make_session
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tests.spark.parameters import some
from tests.spark.support.registering import Registering, a_file
from tests.spark.support.story import ALL_GONE, local, of_batches
from tests.support.builders import a_request
from tests.support.lake import Lake
from tests.support.servers.s3 import S3


@pytest.fixture
def story(spark: SparkSession, lake: Lake) -> Registering:
    return Registering.begin(spark, lake)


def test_files_of_producers_become_the_table_s_as_they_are(story: Registering) -> None:
    """Not a byte is written below the table but metadata; PyIceberg and plain Spark read the rows."""
    story.put("A", "B é/1")

    result = story.register("A", "B é/1")

    assert (result.outcome, result.batches_promoted, result.files_added, result.rows_added) == ("Committed", 2, 4, 8)
    assert story.paths() == story.places("A", "B é/1")
    assert (story.data_folder(), story.operation()) == (set(), "append")
    story.check_reads(of_batches("A", "B é/1"))
    plain = story.spark.table(story.full_name).where("day = 2").collect()
    assert Counter((r["batch_id"], r["v"], r["day"]) for r in plain) == Counter(
        {row: n for row, n in of_batches("A", "B é/1").items() if row[2] == 2}
    )
    summary = story.head().summary
    assert summary is not None
    assert int(summary.additional_properties["total-files-size"]) == sum(
        Path(p).stat().st_size for p in story.places("A", "B é/1")
    )


def test_a_batch_that_spark_wrote_as_documented_is_registered_and_the_others_are_refused(
    spark: SparkSession, lake: Lake
) -> None:
    story = Registering.begin(spark, lake)
    columns = "v BIGINT NOT NULL, ts TIMESTAMP, l ARRAY<INT>, m MAP<STRING, DOUBLE>, s STRUCT<x: STRING>, day INT"
    table = TableRef(
        catalog=story.catalog, name=story.name, create=CreateTable(schema=columns, partition_by=("days(ts)",))
    )
    frame = spark.sql(
        "SELECT id v, TIMESTAMP '2020-01-01 10:00:00Z' + make_interval(0, 0, 0, CAST(id % 3 AS INT)) ts, array(1, null) l, "
        "map('k', 1.5D) m, named_struct('x', 'y') s, CAST(id % 3 AS INT) day FROM range(30)"
    )
    key = "spark.sql.parquet.outputTimestampType"
    before = spark.conf.get(key)
    try:
        for batch_id, kind in (("A", "TIMESTAMP_MICROS"), ("old", "INT96")):
            spark.conf.set(key, kind)
            rows = frame.withColumn("batch_id", F.lit(batch_id))
            for (day,) in rows.select("day").distinct().collect():
                one_day = rows.where(F.col("day").eqNullSafe(day)).coalesce(1)
                one_day.write.parquet(f"{story.folder(batch_id)}/{day}")
            (story.folder(batch_id) / "_SUCCESS").touch()
    finally:
        spark.conf.set(key, before or "")

    result = story.run(story.registration("A", "old", table=table))

    assert (result.batches_promoted, result.rows_added, result.files_added) == (1, 30, 3)
    assert [(r.batch_id, r.reason) for r in result.refused] == [("old", "SchemaMismatch")]
    written = frame.withColumn("batch_id", F.lit("A"))
    found = spark.table(story.full_name).select(*written.columns)  # maps, which Spark cannot subtract
    assert sorted(found.collect(), key=lambda r: r.v) == sorted(written.collect(), key=lambda r: r.v)
    assert story.table().scan(row_filter="ts >= '2020-01-03T00:00:00+00:00'").to_arrow().num_rows == 10


@pytest.mark.parametrize("version", some([2, 3], 2))
def test_a_table_without_partitions_takes_files_too(spark: SparkSession, lake: Lake, version: int) -> None:
    story = Registering.begin(spark, lake, ())
    story.put("A")
    story.put_table("B", pa.concat_tables([a_file("B", 1), a_file("B", 2)]))

    result = story.run(story.of_version(story.registration("A", "B"), version))

    assert (result.batches_promoted, result.files_read, result.files_added) == (2, 3, 3)
    assert story.table().metadata.format_version == version
    story.check_reads(of_batches("A", "B"))


def test_a_partitioned_table_of_format_version_3_numbers_the_rows(story: Registering) -> None:
    story.put("A")

    story.run(story.of_version(story.registration("A"), 3))

    story.check_reads(of_batches("A"))
    ids = [r[0] for r in story.spark.sql(f"SELECT _row_id FROM {story.full_name}").collect()]
    assert sorted(ids) == [0, 1, 2, 3]


def test_a_registered_batch_is_reverted_undone_reverted_and_vacuumed(story: Registering) -> None:
    """Once no snapshot holds them, the producer's files are gone from the buffer: they were the table's. What is left of
    the batch is never taken for a new one."""
    story.put("A", "B")
    story.register("A", "B")
    story.revert("A")
    story.check_reads(of_batches("B"))
    story.undo()
    story.check_reads(of_batches("A", "B"))
    story.revert("A", name="again")

    result = story.vacuum(limits=ALL_GONE)

    assert (result.files_deleted, result.files_rewritten) == (2, 0)
    assert sorted(p.name for p in story.folder("A").iterdir()) == ["_SUCCESS"]
    story.check_reads(of_batches("B"))
    seen = story.digest()
    assert (seen.batches, seen.oldest, seen.promoted, seen.expired) == (0, (), 2, 0)
    story.put("A")
    assert (story.digest().batches, story.register("A").batches_withheld) == (0, 1)
    story.check_reads(of_batches("B"))


def test_a_vacuum_leaves_the_producer_s_files_while_a_snapshot_holds_them(story: Registering) -> None:
    story.put("A")
    story.register("A")
    story.revert("A")
    before = story.places("A")

    story.vacuum()

    assert (story.places("A"), story.paths()) == (before, {})
    story.check_reads(Counter())


def test_a_batch_that_was_rewritten_is_not_registered_as_well(story: Registering) -> None:
    """Nor under another name: the files say whose they are."""
    story.filled("A")
    shutil.copytree(story.folder("A"), story.folder("A2"))

    again, renamed = story.register("A"), story.register("A2")

    assert (again.outcome, renamed.refused_count, renamed.refused[0].reason) == (
        "AlreadyCommitted",
        1,
        "BatchIdMismatch",
    )
    story.check_reads(of_batches("A"))


def test_columns_renamed_dropped_and_added_later_read_as_in_any_other_file(story: Registering) -> None:
    """The files have no field ids: the table's name mapping says which column is which, also once it has another name."""
    story.put("A")
    story.register("A")
    sql = story.spark.sql
    sql(f"ALTER TABLE {story.full_name} RENAME COLUMN v TO value")
    sql(f"ALTER TABLE {story.full_name} ADD COLUMN note STRING")

    rows = {(r["value"], r["note"]) for r in sql(f"SELECT value, note FROM {story.full_name}").collect()}

    wanted = {(v, None) for _, v, _ in of_batches("A")}
    assert rows == wanted
    assert {(r["value"], r["note"]) for r in story.table().scan().to_arrow().to_pylist()} == wanted
    sql(f"ALTER TABLE {story.full_name} DROP COLUMN value")
    assert story.spark.table(story.full_name).columns == ["day", "batch_id", "note"]
    assert story.table().scan().to_arrow().column_names == ["day", "batch_id", "note"]
    assert story.spark.table(story.full_name).count() == 4


# --- races and deaths ------------------------------------------------------------------------------------------------


def add_as_foreign_writer(story: Registering, *files: Path) -> None:
    """Another writer, which adds files of the buffer to the table itself."""
    story.table().add_files([f"file://{f}" for f in files])


@pytest.mark.parametrize("when", some(["before", "meanwhile"], "meanwhile"))
def test_a_file_that_another_writer_has_added_is_not_added_again(story: Registering, when: str) -> None:
    story.put("0", "A")
    story.register("0")
    file = story.folder("A") / "day-1.parquet"

    if when == "before":
        add_as_foreign_writer(story, file)
        result = story.register("A")
    else:
        result = story.register("A", before_commit=lambda: add_as_foreign_writer(story, file))

    assert (result.batches_promoted, result.files_added) == (1, 1)
    assert story.paths() == story.places("0", "A")
    assert story.ledger().batches["A"].rows == 4
    story.check_reads(of_batches("0", "A"))


def test_a_batch_that_cannot_be_registered_stays_if_another_writer_has_added_its_files(story: Registering) -> None:
    """A refused batch is moved away; these objects are the table's."""
    story.put("0", "A")
    story.register("0")
    add_as_foreign_writer(story, story.folder("A") / "day-1.parquet")
    (story.folder("A") / "day-2.parquet").write_bytes(b"no Parquet")

    result = story.register("A")

    assert (result.refused_count, "another writer has already added some of their files" in result.message) == (0, True)
    assert len(story.places("A")) == 2


def test_a_batch_reverted_meanwhile_is_not_registered(story: Registering) -> None:
    story.put("0", "A", "B")
    story.register("0")

    story.register("A", "B", before_commit=lambda: story.revert("A"))

    assert story.paths() == story.places("0", "B")
    story.check_reads(of_batches("0", "B"))


def test_a_file_that_changed_after_the_listing_waits(story: Registering) -> None:
    story.put("A")
    file = story.folder("A") / "day-1.parquet"

    def change() -> None:
        pq.write_table(a_file("A", 1, rows=40), file)

    with pytest.raises(TransientError) as raised:
        story.register("A", after_list=change)
    assert (raised.value.reason, story.states()) == ("ObjectChanged", {})

    story.register("A")
    stat = file.stat()
    recorded = {local(o.key): o.etag for o in story.ledger().batches["A"].objects}
    assert recorded[str(file)] == file_etag(stat.st_size, stat.st_mtime_ns)


def test_a_file_registered_again_after_a_rollback_outlives_the_snapshots_that_had_it_first(story: Registering) -> None:
    """Two snapshots of two lineages added one path: the expiry of the one must not delete it from the other."""
    story.put("0", "A")
    story.register("0")
    back = story.head().snapshot_id
    story.register("A")
    story.spark.sql(f"CALL {story.catalog}.system.rollback_to_snapshot('{story.name}', {back})").collect()
    again = story.registration("A").model_copy(update={"run_id": "f" * 32})
    assert story.run(again).outcome == "Committed"

    story.vacuum(limits=ALL_GONE)

    assert len(story.table().metadata.snapshots) == 1
    assert story.paths() == story.places("0", "A")
    story.check_reads(of_batches("0", "A"))


# --- on S3 -----------------------------------------------------------------------------------------------------------


def test_objects_of_a_bucket_are_registered_read_and_gone_with_their_last_snapshot(
    spark: SparkSession, lake: Lake, s3: S3, tmp_path: Path
) -> None:
    """Whatever their names; of a large object only the end is fetched for its footer."""
    bucket = s3.bucket("lake")
    s3.bucket("buffer")
    home = {"uri": f"sqlite:///{tmp_path}/s3.db", "warehouse": f"s3://{bucket}/wh"}
    lake.add_catalog("s3lake", type="sql", **home, **s3.properties(), **{"s3.path-style-access": "true"})
    make_session("s3lake")
    story = Registering.begin(spark, lake, (), "s3lake")
    buffer = BufferRef(uri="s3://buffer/air")
    large = pa.table({"v": range(100_000), "day": pa.repeat(pa.scalar(1, pa.int32()), 100_000)})
    for name, rows in (("A", large), ("B é", a_file("B é", 1).drop_columns(["batch_id"]))):
        batch_id = pa.repeat(pa.scalar(name), rows.num_rows)
        out = pa.BufferOutputStream()
        pq.write_table(rows.append_column("batch_id", batch_id), out, row_group_size=30_000)
        content = out.getvalue().to_pybytes()
        assert (len(content) > TAIL_BYTES) == (name == "A")
        s3.put("buffer", f"air/{batch_folder('batch_id', name)}/sub é/part %2F+0.parquet", content)
        s3.put("buffer", f"air/{batch_folder('batch_id', name)}/{names.SUCCESS_MARKER}")

    result = story.run(story.registration("A", "B é", buffer=buffer))

    assert (result.batches_promoted, result.files_added, result.rows_added) == (2, 2, 100_002)
    assert spark.table(story.full_name).where("batch_id = 'A'").agg({"v": "max"}).collect()[0][0] == 99_999
    assert story.table().scan(row_filter="batch_id = 'B é'").to_arrow().num_rows == 2
    story.run(story.restatement(a_request("revert", batch_ids=("A",)), buffer=buffer))
    story.run(story.vacuuming(ALL_GONE, buffer=buffer))
    assert [k for k in s3.keys("buffer") if "batch_id=A/" in k] == ["air/batch_id=A/_SUCCESS"]
    assert lethe.scan(story.full_name).to_arrow().num_rows == 2
