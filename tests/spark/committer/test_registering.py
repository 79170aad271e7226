"""The committer registers small sets of files of producers, with the result that a Job has: a process with a small JVM."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.base import names
from lethe.base.names import batch_folder
from lethe.contract.run import BufferRef
from lethe_spark.apps.session import make_session
from lethe_spark.committer import work
from lethe_spark.committer.work import NeedsSpark, register_small_set
from lethe_spark.jvm.spark_table import SparkTable
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.mailbox import Process
from tests.spark.support.registering import Registering, a_file
from tests.spark.support.story import of_batches
from tests.support.lake import Lake
from tests.support.mailbox import Namespace
from tests.support.servers.s3 import READER, S3


@pytest.fixture
def story(spark: SparkSession, lake: Lake, process: Process) -> Registering:
    """The table exists, with batch 0; a Job has created it."""
    assert process.is_up()
    story = Registering.begin(spark, lake)
    story.put("0")
    story.register("0")
    return story


# --- what it does -----------------------------------------------------------------------------------------------------------


def test_files_of_producers_become_the_table_s_as_they_are(story: Registering, namespace: Namespace) -> None:
    story.put("A", "B é/1")

    result = namespace.carried_out(story.registration("A", "B é/1"))

    assert (result.outcome, result.batches_promoted, result.files_added, result.rows_added) == ("Committed", 2, 4, 8)
    assert result.snapshot_id == story.head().snapshot_id
    assert story.paths() == story.places("0", "A", "B é/1")
    assert (story.data_folder(), story.operation()) == (set(), "append")
    assert (story.ledger().batches["A"].registered, story.ledger().batches["A"].partitions) == (
        True,
        ("0/[1]", "0/[2]"),
    )
    story.check_reads(of_batches("0", "A", "B é/1"))


def test_a_job_says_the_same_of_the_same_batches(story: Registering, namespace: Namespace) -> None:
    """Batches that are good, refused, missing, and wait beside the run: by the committer and by a Job, in two tables."""
    by_job = Registering.begin(story.spark, story.lake)
    by_job.put("0")
    by_job.register("0")
    for one in (story, by_job):
        one.put("good", "cut", "beside")
        (one.folder("cut") / "day-2.parquet").write_bytes(b"PAR1 no more")
    wanted = ("good", "cut", "absent")

    told = namespace.carried_out(story.registration(*wanted))
    said = by_job.register(*wanted)

    of_run = {
        "run_id",
        "snapshot_id",
        "finished_time",
        "snapshots_expired",
        "ledger_files_removed",
        "not_tracked",
        "version",
        "cpu_seconds",
    }
    own, other = (r.model_dump(exclude=of_run) for r in (told, said))
    assert str(own).replace(story.name, by_job.name) == str(other)
    assert (told.batches_promoted, [r.reason for r in told.refused]) == (1, ["UnreadableFile"])
    assert story.states() == by_job.states() == {"0": "promoted", "good": "promoted", "cut": "refused"}
    for one in (story, by_job):
        assert not one.folder("cut").exists()
        assert len(list(Path(one.buffer.path, names.REFUSED_FOLDER).rglob("*.parquet"))) == 2


# --- deaths and races -------------------------------------------------------------------------------------------------------


def test_a_job_that_loses_to_the_committer_adds_only_the_rest(story: Registering, namespace: Namespace) -> None:
    story.put("A", "B", "C")

    result = story.register("A", "B", before_commit=lambda: namespace.carried_out(story.registration("B", "C")))

    assert (result.batches_promoted, result.files_added) == (1, 2)
    assert story.paths() == story.places("0", "A", "B", "C")


def test_a_set_that_loses_to_a_job_is_planned_again(story: Registering) -> None:
    """The code of the committer, with a step in which a Job commits."""
    story.put("A", "B", "C")
    context = story.context(story.registration("A", "B"), before_commit=lambda: story.register("B", "C"))

    result, waiting = register_small_set(context, table_of(story))

    assert (result.outcome, result.batches_promoted, result.files_added, waiting) == ("Committed", 1, 2, ())
    assert story.paths() == story.places("0", "A", "B", "C")


# --- what it leaves to a Job ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("denied", some(["listing", "reading"], "reading"))
def test_a_buffer_that_it_may_not_read_is_left_to_a_job(
    spark: SparkSession, lake: Lake, namespace: Namespace, process: Process, s3: S3, tmp_path: Path, denied: str
) -> None:
    """The Dataset does not fail: the credentials of a Job's pod may be others."""
    assert process.is_up()
    lake_bucket, name = s3.bucket(f"lake-{denied}"), s3.bucket(f"buffer-{denied}")
    s3.allow(lake_bucket, ("s3:*", ""), ("s3:*", "*"))
    home = {"uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"s3://{lake_bucket}/wh"}
    lake.add_catalog(f"of-{denied}", type="sql", **home, **s3.properties(READER), **{"s3.path-style-access": "true"})
    make_session(f"of-{denied}")
    story = Registering.begin(spark, lake, (), f"of-{denied}")
    first, second = (BufferRef(uri=f"s3://{bucket}/air") for bucket in (f"{lake_bucket}/first", name))
    put_object(s3, lake_bucket, "first/air", "0")
    put_object(s3, name, "air", "A")
    story.run(story.registration("0", buffer=first))
    if denied == "reading":
        claims = [
            (f"s3:{act}Object", f"air/{file}") for act in ("Get", "Put", "Delete") for file in ("_lethe*", ".lethe*")
        ]
        s3.allow(name, ("s3:ListBucket", ""), *claims)
    head = story.head()

    result = namespace.carried_out(story.registration("A", buffer=second))

    assert (result.outcome, result.reason, result.permanent) == ("Failed", "NeedsSpark", False), process.log[-3000:]
    assert "grant the run's credentials access" in result.message.lower()
    assert story.head() == head


@pytest.mark.parametrize(
    ("limit", "value", "why"),
    [
        pytest.param("OBJECTS_AT_MOST", 5, "the buffer holds more than 5 objects", marks=pytest.mark.long),
        ("FILES_AT_MOST", 1, "2 files wait, and the committer registers at most 1"),
        pytest.param(
            "DOCUMENTS_AT_MOST", 10, "the metadata of the 2 files has more than 10 characters", marks=pytest.mark.long
        ),
        pytest.param(
            "LIVE_FILES_AT_MOST", 2, "compares with at most 2 live files; the table has 3", marks=pytest.mark.long
        ),
        ("REFUSED_BYTES_AT_MOST", 10, "24 bytes are refused"),
    ],
)
def test_a_set_that_is_not_small_is_left_to_a_job(
    story: Registering, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, why: str
) -> None:
    story.put("A")
    monkeypatch.setattr(work, limit, value)
    if limit == "LIVE_FILES_AT_MOST":
        story.append_as_foreign_writer("x")
    if limit == "REFUSED_BYTES_AT_MOST":
        for file in story.folder("A").glob("*.parquet"):
            file.write_bytes(b"PAR1 no more")
    head = story.head()

    with pytest.raises(NeedsSpark, match=why):
        register_small_set(story.context(story.registration("A")), table_of(story))

    assert (story.head(), story.states().get("A")) == (head, None)


def test_what_a_job_would_refuse_for_good_is_left_to_it(story: Registering) -> None:
    story.put("A")
    (Path(story.buffer.path) / "metadata").mkdir()
    (Path(story.buffer.path) / "metadata" / "v1.metadata.json").write_text("{}")

    with pytest.raises(NeedsSpark, match="belongs to an Iceberg table"):
        register_small_set(story.context(story.registration("A")), table_of(story))


def table_of(story: Registering) -> SparkTable:
    found = SparkTable.load(story.spark, story.catalog, story.name)
    assert found is not None
    return found


def put_object(s3: S3, bucket: str, folder: str, batch_id: str) -> None:
    """A batch of one object."""
    out = pa.BufferOutputStream()
    pq.write_table(a_file(batch_id, 1), out)
    place = f"{folder}/{batch_folder('batch_id', batch_id)}"
    s3.put(bucket, f"{place}/p.parquet", out.getvalue().to_pybytes())
    s3.put(bucket, f"{place}/{names.SUCCESS_MARKER}")
