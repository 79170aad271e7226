"""A head that leads to no ledger although the table had one: every read and every run refuses it, however it came about."""

from collections.abc import Callable
from uuid import uuid4

import lethe
import lethe_spark
import pytest
from click.testing import CliRunner
from lethe.base import names
from lethe.base.errors import LedgerError, TableError
from lethe.cli.main import cli
from lethe.contract.run import AcceptedHead, RunSpec
from lethe.iceberg.facts import observe
from lethe.ledger.lineage import last_ledger
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.sdk import batch_writer
from pyspark.sql import SparkSession

from tests.spark.support.built_once import built_once
from tests.spark.support.story import ALL_GONE, Story, of_arrow, of_batches, of_spark
from tests.support.builders import a_request
from tests.support.lake import SCHEMA, Lake


def by_the_data_frame(story: Story) -> None:
    rows = story.spark.table(story.full_name).localCheckpoint()
    rows.writeTo(story.full_name).createOrReplace()


def by_sql(story: Story) -> None:
    story.spark.table(story.full_name).localCheckpoint().createOrReplaceTempView("rows_of_now")
    story.spark.sql(f"CREATE OR REPLACE TABLE {story.full_name} USING iceberg AS SELECT * FROM rows_of_now")


def expire_all_but_the_head(story: Story) -> None:
    table = story.table()
    old = [s.snapshot_id for s in table.snapshots() if s.snapshot_id != story.head().snapshot_id]
    if story.format_version == 2:
        table.maintenance.expire_snapshots().by_ids(old).commit()
    else:  # PyIceberg does not write version 3
        ids = ", ".join(map(str, old))
        story.spark.sql(
            f"CALL {story.catalog}.system.expire_snapshots(table => '{story.name}', snapshot_ids => array({ids}))"
        )


@built_once
def a_story(spark: SparkSession, lake: Lake, **how: object) -> Story:
    """A was taken back, B is live."""
    story = Story.begin(spark, lake, **how)  # type: ignore[arg-type]
    story.put("A", "B", "C")
    story.consolidate("A", "B")
    story.revert("A")
    return story


def refuses_everything(story: Story) -> None:
    """Reads, increments, views, commands, the SDK, and runs of each kind."""
    name, spark, head = story.full_name, story.spark, story.head().snapshot_id
    tried: dict[str, Callable[[], object]] = {
        "scan": lambda: lethe.scan(name).to_arrow(),
        "scan of the snapshot": lambda: lethe.scan(name, snapshot_id=head).to_arrow(),
        "read": lambda: lethe_spark.read(spark, name).collect(),
        "view": lambda: lethe_spark.create_view(spark, "lost", name),
        "write": lambda: lethe_spark.write(spark.sql("SELECT 1L AS v, 1 AS day"), name, batch_id="S"),
        "revert": lambda: lethe_spark.revert(spark, name, ["B"]),
        "consolidation": lambda: story.consolidate("C"),
        "restatement": lambda: story.revert("B", name="another"),
        "vacuum": lambda: story.vacuum(key="2"),
        "re-anchoring": lambda: story.consolidate(),
    }
    for what, attempt in tried.items():
        with pytest.raises(LedgerError) as refusal:
            attempt()
        assert (what, refusal.value.reason) == (what, "LedgerLost")
    reported = CliRunner().invoke(cli, ["batches", name])
    assert reported.exit_code == 10
    assert "LedgerLost" in reported.output + reported.stderr
    assert story.head().snapshot_id == head


@pytest.mark.parametrize(
    ("replace", "version", "expire"),
    [
        pytest.param(by_the_data_frame, 2, lambda _: None, id="frame", marks=pytest.mark.long),
        pytest.param(by_the_data_frame, 2, expire_all_but_the_head, id="frame expired", marks=pytest.mark.long),
        pytest.param(by_the_data_frame, 3, lambda _: None, id="v3", marks=pytest.mark.long),
        pytest.param(by_the_data_frame, 3, expire_all_but_the_head, id="v3 expired", marks=pytest.mark.long),
        pytest.param(by_sql, 2, lambda _: None, id="sql", marks=pytest.mark.long),
        pytest.param(by_sql, 2, expire_all_but_the_head, id="sql expired"),
    ],
)
def test_a_replaced_table_with_the_same_name_is_neither_read_nor_changed(
    spark: SparkSession,
    lake: Lake,
    replace: Callable[[Story], None],
    version: int,
    expire: Callable[[Story], None],
) -> None:
    """Its head has no parent, so that it looks like the beginning of a table without a ledger; UUID and properties remain."""
    story = a_story(spark, lake, format_version=version)
    before = story.table()

    replace(story)
    expire(story)

    after = story.table()
    assert (after.metadata.table_uuid, after.properties[names.CLAIM]) == (
        before.metadata.table_uuid,
        before.properties[names.CLAIM],
    )
    refuses_everything(story)


def test_a_ledger_without_files_below_an_append_is_not_forgotten_when_it_expires(
    spark: SparkSession, lake: Lake
) -> None:
    """PyIceberg takes the parent's id out of the append, which holds no more files than it added."""
    story = Story.begin(spark, lake)
    story.put("A", "B")
    story.consolidate()  # makes the table
    story.revert("A")
    assert story.head().summary.get("total-data-files", "0") == "0"  # type: ignore[union-attr]
    story.append_as_foreign_writer("A", "X")
    before = of_arrow(lethe.scan(story.full_name).to_arrow())

    expire_all_but_the_head(story)

    assert [b for b, _, _ in before] == ["X"]
    assert story.head().parent_snapshot_id is None
    story.put("C")
    refuses_everything(story)


def test_rows_from_before_the_first_ledger_are_read_for_ever(spark: SparkSession, lake: Lake) -> None:
    """A foreign writer writes to a table of Lethe's before Lethe does. His snapshot has no parent, and never had a ledger."""
    story = Story.begin(spark, lake)
    story.put("A")
    story.consolidate()
    first = story.append_as_foreign_writer("X")
    before = of_arrow(lethe.scan(story.full_name).to_arrow())

    story.consolidate("A")
    story.revert("A")

    assert of_arrow(lethe.scan(story.full_name, snapshot_id=first).to_arrow()) == before
    assert of_spark(lethe_spark.read(spark, story.full_name, snapshot_id=first)) == before
    expire_all_but_the_head(story)
    assert of_spark(lethe_spark.read(spark, story.full_name)) == before


def accept(story: Story, ledger: str | None = None) -> None:
    """What the operator launches when the annotation names the head."""
    table = story.table()
    facts = observe(table, "batch_id")
    found = last_ledger(facts.snapshots, ledger)
    assert found is not None
    assert facts.head_id is not None
    spec = story.consolidation()
    assert spec.consolidation is not None
    accepts = AcceptedHead(head_id=facts.head_id, ledger=found)
    story.run(spec.model_copy(update={"consolidation": spec.consolidation.model_copy(update={"accepts": accepts})}))


@pytest.mark.long
@pytest.mark.parametrize("version", [2, 3])
def test_an_accepted_replacement_continues_with_the_last_ledger(spark: SparkSession, lake: Lake, version: int) -> None:
    """Its rows were copied by an engine that sees deleted rows: of B, whose tombstone is active, and of D, which was purged. No
    batch is promoted twice, though all of them still lie in the buffer."""
    story = a_story(spark, lake, format_version=version)
    story.filled("D")
    story.revert("D", name="revert-d")
    story.vacuum()
    story.revert("B", name="revert-b")
    rows = spark.sql("SELECT * FROM VALUES (1L, 1, 'B'), (2L, 1, 'D'), (3L, 1, 'X') AS t(v, day, batch_id)")
    rows.coalesce(1).writeTo(story.full_name).createOrReplace()
    replaced = story.head().snapshot_id

    accept(story)

    assert of_arrow(lethe.scan(story.full_name).to_arrow()) == {("X", 3, 1): 1}
    assert of_spark(lethe_spark.read(spark, story.full_name)) == {("X", 3, 1): 1}
    # The snapshot of the replacement is read with that ledger, too; rows of a purged batch are hidden from the next commit on.
    assert set(of_arrow(lethe.scan(story.full_name, snapshot_id=replaced).to_arrow())) == {("X", 3, 1), ("D", 2, 1)}
    story.consolidate("A", "B", "C", "D")
    assert story.states() == {"A": "reverted", "B": "reverted", "C": "promoted", "D": "reverted"}
    assert set(of_arrow(lethe.scan(story.full_name).to_arrow())) == {("X", 3, 1), *of_batches("C")}
    story.vacuum(ALL_GONE, key="2")
    assert set(of_arrow(lethe.scan(story.full_name).to_arrow())) == {("X", 3, 1), *of_batches("C")}
    assert not story.ledger().tombstones


# --- tables that are replaced while a run works ----------------------------------------------------------------------
# A run works on the table that was there when it was asked for: never on another one that has its name now.


@pytest.fixture
def story(spark: SparkSession, lake: Lake) -> Story:
    """A was taken back; it still lies in the buffer, as B does, which is live."""
    return begun(spark, lake)


@built_once
def begun(spark: SparkSession, lake: Lake, catalog: str = "lite", format_version: int = 2) -> Story:
    story = Story.begin(spark, lake, catalog=catalog, format_version=format_version)
    story.put("A", "B", "C")
    story.consolidate("A", "B")
    story.revert("A")
    return story


def drop(story: Story) -> None:
    story.spark.sql(f"DROP TABLE {story.full_name}")


def drop_and_create(story: Story) -> None:
    drop(story)
    story.spark.sql(f"CREATE TABLE {story.full_name} ({SCHEMA}) USING iceberg")


def rename_and_create(story: Story) -> None:
    # A name of its own: the story of another test has the same name.
    story.spark.sql(f"ALTER TABLE {story.full_name} RENAME TO {story.name}_{uuid4().hex}")
    story.spark.sql(f"CREATE TABLE {story.full_name} ({SCHEMA}) USING iceberg")


def snapshots_of(story: Story) -> int | None:
    """None: there is no table."""
    table = SparkTable.load(story.spark, story.catalog, story.name)
    return None if table is None else table.snapshot_count


def consolidation(story: Story, uuid: str) -> RunSpec:
    return story.consolidation("A", "C", seen_table_uuid=uuid)


def restatement(story: Story, uuid: str) -> RunSpec:
    return story.restatement(a_request("another", batch_ids=("B",)), seen_table_uuid=uuid)


def vacuuming(story: Story, uuid: str) -> RunSpec:
    return story.vacuuming(seen_table_uuid=uuid)


CHANGES = [(drop, None), (drop_and_create, 0), (rename_and_create, 0)]
QUICK = {(restatement, drop_and_create)}


@pytest.mark.parametrize(
    ("asked", "change", "left"),
    [
        pytest.param(
            asked,
            change,
            left,
            id=f"{change.__name__}-{asked.__name__}",
            marks=() if (asked, change) in QUICK else pytest.mark.long,
        )
        for change, left in CHANGES
        for asked in (consolidation, restatement, vacuuming)
    ],
)
def test_a_run_refuses_another_table_of_the_name_and_creates_none(
    story: Story, asked: Callable[[Story, str], RunSpec], change: Callable[[Story], None], left: int | None
) -> None:
    spec = asked(story, str(story.table().metadata.table_uuid))
    change(story)

    with pytest.raises(TableError, match=rf"TableReplaced: {story.name} was dropped, created again or renamed"):
        story.run(spec)

    assert snapshots_of(story) == left


@pytest.mark.parametrize("version", [2, pytest.param(3, marks=pytest.mark.long)])
def test_a_table_that_is_replaced_between_plan_and_commit_gets_nothing(
    spark: SparkSession, lake: Lake, version: int
) -> None:
    story = begun(spark, lake, format_version=version)
    uuid = str(story.table().metadata.table_uuid)

    with pytest.raises(TableError, match="TableReplaced"):
        story.run(consolidation(story, uuid), before_commit=lambda: rename_and_create(story))

    assert snapshots_of(story) == 0


def test_the_sdk_commits_to_the_table_that_it_began_with(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is replaced while the rows are written."""
    written = batch_writer.write_rows

    def write_rows(*of: object) -> object:
        files = written(*of)  # type: ignore[arg-type]
        rename_and_create(story)
        return files

    monkeypatch.setattr(batch_writer, "write_rows", write_rows)

    with pytest.raises(TableError, match="TableReplaced"):
        lethe_spark.write(story.spark.sql("SELECT 1L AS v, 1 AS day"), story.full_name, batch_id="S")

    assert snapshots_of(story) == 0
