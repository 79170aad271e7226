"""The committer carries out what needs no Spark: a process with a small JVM, on real catalogs, told by ConfigMaps."""

from collections import Counter
from pathlib import Path

import lethe
import pytest
from lethe.base import names
from lethe.contract.run import SnapshotLimits
from lethe.contract.settings import Deletes, NativeDeletes, UnknownBatches
from lethe.iceberg import catalogs
from lethe.ledger.tombstone import Mask
from lethe_spark.apps.session import make_session
from pyspark.sql import SparkSession
from sqlalchemy import text

from tests.spark.committer.runs import ALL, a_revert, an_undo, begun
from tests.spark.parameters import pairs, some
from tests.spark.support.mailbox import Process
from tests.spark.support.native_deletes import Native
from tests.spark.support.story import Row, Story, local, of_arrow, of_batches
from tests.support.builders import a_request
from tests.support.lake import CATALOG, Lake
from tests.support.mailbox import Namespace
from tests.support.servers import s3

# --- what it does -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("format_version", "catalog"), pairs((2, 3), (CATALOG, "pg", "rest"), (2, "rest"), (3, "pg")))
def test_a_group_is_carried_out_in_one_commit_on_every_catalog_and_format(
    spark: SparkSession,
    lake: Lake,
    namespace: Namespace,
    process: Process,
    request: pytest.FixtureRequest,
    catalog: str,
    format_version: int,
) -> None:
    if catalog != CATALOG:
        request.getfixturevalue(catalog)
        make_session(catalog)
    story = begun(Story.begin(spark, lake, catalog=catalog, format_version=format_version))
    group = story.restatement(
        a_request("one", batch_ids=("A", "unheard-of"), unknown_batches=UnknownBatches.ALLOW),
        a_request("typo", batch_ids=("A", "unheard-off")),
        a_request("two", batch_ids=("B",)),
        a_request("back", "Undo", batch_ids=(), undoes="ns/two/0"),
        a_request("wrong", "Undo", batch_ids=(), undoes="ns/never/0"),
    )

    result = namespace.carried_out(group)

    reported = {r.name: (r.succeeded, r.group_size, r.reason) for r in result.requests}
    assert (result.outcome, result.snapshot_id) == ("Committed", story.head().snapshot_id), process.log[-3000:]
    assert reported == {
        "ns/one": (True, 3, ""),
        "ns/two": (True, 3, ""),
        "ns/back": (True, 3, ""),
        "ns/wrong": (False, 0, "UnknownRestatement"),
        "ns/typo": (False, 0, "UnknownBatches"),
    }
    assert result.requests[0].unknown_batch_ids == ("unheard-of",)
    assert story.table().metadata.format_version == format_version
    story.check_reads(of_batches("B", "C"))

    undone = namespace.carried_out(an_undo(story, of="one"))

    assert (undone.outcome, undone.requests[0].rows_restored) == ("Committed", 4)
    story.check_reads(of_batches("A", "B", "C"))


@pytest.mark.parametrize(
    "deletes", some(["Auto 3", "Auto 2", "DeletionVectors 3", "PositionDeletes 2"], "Auto 3", "Auto 2")
)
def test_every_engine_sees_a_revert_and_its_undo_at_once(
    spark: SparkSession, lake: Lake, namespace: Namespace, process: Process, deletes: str
) -> None:
    """A is in files with B, C in its own. What is reverted first stays hidden when the second is undone."""
    mode, version = deletes.split()
    story = Native.begin(spark, lake, format_version=int(version), deletes=Deletes(mode)).filled("AB", "C")

    first = namespace.carried_out(a_revert(story, "A", name="first"))
    second = namespace.carried_out(a_revert(story, "B", "C"))
    hidden = story.plain()
    undone = namespace.carried_out(an_undo(story))

    assert {r.outcome for r in (first, second, undone)} == {"Committed"}, process.log[-3000:]
    assert (hidden, undone.requests[0].rows_restored) == (Counter(), 8)
    kind = "PositionDeletes" if version == "2" else "DeletionVectors"
    assert story.masks() == {"A": Mask(NativeDeletes(kind), 4)}
    story.check_native(of_batches("B", "C"))
    assert namespace.carried_out(an_undo(story, of="first", name="all")).outcome == "Committed"
    assert (story.deletes_now(), story.plain()) == ([], of_batches("A", "B", "C"))


def test_what_a_revert_has_read_of_a_file_the_next_one_does_not_read_again(
    spark: SparkSession, lake: Lake, namespace: Namespace, process: Process
) -> None:
    """The files are away while the second revert is carried out. Both batches are in each of them."""
    story = Native.begin(spark, lake, format_version=3, deletes=Deletes.AUTO).filled("AB")
    first = namespace.carried_out(a_revert(story, "A", name="first"))
    files = [Path(local(path)) for path in story.files()]
    for file in files:
        file.rename(f"{file}.away")

    second = namespace.carried_out(a_revert(story, "B"))

    for file in files:
        Path(f"{file}.away").rename(file)
    assert (first.outcome, second.outcome) == ("Committed", "Committed"), process.log[-3000:]
    assert (story.hidden_rows(), story.plain()) == (8, Counter())


@pytest.mark.usefixtures("pg")
def test_a_revert_is_carried_out_while_the_upkeep_after_another_one_is_under_way(
    spark: SparkSession, lake: Lake, namespace: Namespace, process: Process
) -> None:
    """The upkeep cannot commit to the table of batches, because the catalog's row of it is locked."""
    make_session("pg")
    story = begun(Story.begin(spark, lake, catalog="pg"))
    story.put("D")
    story.run(story.consolidation("D").model_copy(update={"batch_tracking": True}))
    engine = catalogs.load("pg").engine  # type: ignore[attr-defined]
    lock = text("SELECT * FROM iceberg_tables WHERE table_name = :name FOR UPDATE")
    waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")

    def upkeep_waits() -> bool:
        with engine.connect() as asking:
            return bool(asking.execute(waiting).scalar())

    with engine.begin() as holding:
        assert holding.execute(lock, {"name": f"{story.name.rpartition('.')[2]}_batches"}).rowcount == 1
        first = namespace.carried_out(a_revert(story, "A", name="first", batch_tracking=True))
        namespace.server.wait_for(upkeep_waits, 60, "the upkeep wants to commit")
        second = namespace.carried_out(a_revert(story, "B", name="second", batch_tracking=True))
        assert upkeep_waits()

    assert (first.outcome, second.outcome) == ("Committed", "Committed"), process.log[-3000:]
    story.check_reads(of_batches("C", "D"))
    namespace.server.wait_for(lambda: f"{story.name}_batches shows version" in process.log, 60, "the upkeep ends")


def test_its_jvm_is_small_and_its_command_line_holds_no_catalog(process: Process) -> None:
    command = Path(f"/proc/{process.jvm()}/cmdline").read_text().split("\0")

    assert "-Xmx256m" in command
    assert "spark.sql.catalog." not in " ".join(command)


def test_rows_that_no_ledger_knows_are_found_without_spark(story: Story, namespace: Namespace) -> None:
    """Another writer's, and an id that sorts between two others."""
    story.append_as_foreign_writer("stray", None)

    result = namespace.carried_out(a_revert(story, "stray", "B-", unknown="Allow"))

    assert result.requests[0].unknown_batch_ids == ("B-",)
    assert story.rows_at() == of_batches(*ALL) + Counter[Row]({(None, 501, 1): 1})


def test_what_a_run_delivered_is_reverted_also_in_the_buffer(story: Story, namespace: Namespace) -> None:
    for batch_id in ("E", "W"):
        story.put(batch_id)
        (story.folder(batch_id) / names.SUCCESS_MARKER).write_text('{"reference": "dag-7"}')
    story.consolidate("E")

    result = namespace.carried_out(story.restatement(a_request("by-run", batch_ids=(), reference="dag-7")))

    assert (result.outcome, result.requests[0].batch_ids_count) == ("Committed", 2)
    assert {i: s for i, s in story.states().items() if i in "EW"} == {"E": "reverted", "W": "reverted"}
    story.check_reads(of_batches(*ALL))


def test_a_head_of_another_writer_gets_a_ledger(story: Story, namespace: Namespace) -> None:
    story.revert("A")
    story.append_as_foreign_writer("A")

    first = namespace.carried_out(story.consolidation())
    again = namespace.carried_out(story.consolidation(attempt=2))

    assert (first.outcome, first.snapshot_id) == ("Committed", story.head().snapshot_id)
    assert story.keys()[names.LEDGER]
    assert (again.outcome, again.snapshot_id) == ("NothingToDo", None)
    story.check_reads(of_batches("B", "C"))


# --- what comes after the result --------------------------------------------------------------------------------------------


def test_a_table_in_an_object_store_is_committed_to_and_its_history_cut(
    spark: SparkSession, lake: Lake, namespace: Namespace, process: Process, tmp_path: Path
) -> None:
    """On a real S3 server."""
    assert process.is_up()
    limits = SnapshotLimits(max_age_seconds=432_000, min_to_keep=1, max_count=2)
    with s3.running() as store:
        home = {"uri": f"sqlite:///{tmp_path}/s3.db", "warehouse": f"s3://{store.bucket('lake')}/wh"}
        lake.add_catalog("stored", type="sql", **home, **store.properties(), **{"s3.path-style-access": "true"})
        make_session("stored")
        story = begun(Story.begin(spark, lake, catalog="stored"))
        for n in range(3):
            assert namespace.carried_out(a_revert(story, "A", name=f"r{n}")).outcome == "Committed"

        result = namespace.carried_out(a_revert(story, "B", name="last", snapshots=limits))

        assert result.outcome == "Committed", process.log[-3000:]
        namespace.server.wait_for(lambda: len(story.table().snapshots()) <= 2, 60, process.log[-3000:])
        assert of_arrow(lethe.scan(story.full_name).to_arrow()) == of_batches("C")
        kept = {s.manifest_list.rpartition("/")[2] for s in story.table().snapshots()}
        lists = lambda: {k.rpartition("/")[2] for k in store.keys("lake") if "/snap-" in k}  # noqa: E731
        namespace.server.wait_for(lambda: lists() == kept, 30, "only the kept snapshots have lists")
