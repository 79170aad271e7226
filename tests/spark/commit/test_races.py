"""Writers meet: whatever comes between a job's plan and its commit, each row is there once or not at all."""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from lethe.contract.settings import UnknownBatches
from lethe.iceberg import catalogs
from lethe_operator.restatement.queue import PAUSE_BETWEEN_COMMITS
from lethe_spark.apps.session import make_session
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from tests.spark.parameters import named, some
from tests.spark.support.story import ALL_GONE, Row, Story, of_batches
from tests.support.builders import a_request
from tests.support.lake import Lake
from tests.support.servers.faults import Switch

# --- consolidations -------------------------------------------------------------------------------------------------


def test_a_foreign_append_during_a_consolidation_loses_nobodys_rows(story: Story) -> None:
    story.put("E")

    story.consolidate("E", before_commit=lambda: story.append_as_foreign_writer("x"))

    story.check_reads(of_batches("A", "B", "D", "E") + Counter({("x", 500, 1): 1}))


@pytest.mark.parametrize("step", some(["after_list", "after_write", "after_stage", "before_commit"], "after_stage"))
def test_a_batch_that_two_runs_promote_at_one_moment_is_promoted_once(story: Story, step: str) -> None:
    story.put("E")

    mine = story.run(
        story.consolidation("E", run_id="e" * 32),
        **{step: lambda: story.run(story.consolidation("E", run_id="f" * 32))},
    )

    assert (mine.batches_promoted, mine.outcome) == (0, "AlreadyCommitted")
    story.check_reads(of_batches("A", "B", "D", "E"))


def test_files_shared_with_a_batch_promoted_by_another_run_are_written_again_for_the_other_batches(
    story: Story,
) -> None:
    """E and F lie in common staged files; another run promotes E. Publishing would double E, dropping lose F."""
    story.put("E", "F")

    mine = story.consolidate("E", "F", after_stage=lambda: story.consolidate("E"))

    assert mine.batches_promoted == 1
    assert story.states().items() >= {"E": "promoted", "F": "promoted"}.items()
    story.check_reads(of_batches("A", "B", "D", "E", "F"))


def test_a_batch_reverted_while_its_rows_were_being_written_is_not_promoted(story: Story) -> None:
    story.put("E", "F")

    story.consolidate("E", "F", after_stage=lambda: story.revert("E"))

    assert story.states().items() >= {"E": "reverted", "F": "promoted"}.items()
    story.check_reads(of_batches("A", "B", "D", "F"))


def test_staged_files_that_must_not_be_published_stay_in_a_table_that_keeps_all_files(story: Story) -> None:
    """Iceberg refuses to expire their snapshot, and the run goes on without them."""
    story.set_properties({"gc.enabled": "false"})
    story.put("E", "F")

    mine = story.consolidate("E", "F", after_stage=lambda: story.revert("E"))

    assert (mine.outcome, mine.batches_promoted) == ("Committed", 1)
    assert story.states().items() >= {"E": "reverted", "F": "promoted"}.items()
    story.check_reads(of_batches("A", "B", "D", "F"))


def test_a_vacuum_does_not_expire_the_files_of_a_concurrent_consolidation(story: Story) -> None:
    """Staged and not yet published: their snapshot is no ancestor of anything."""
    story.put("E")
    story.revert("A")

    story.consolidate("E", after_stage=lambda: story.vacuum(ALL_GONE))

    story.check_reads(of_batches("B", "D", "E"))


# --- vacuums --------------------------------------------------------------------------------------------------------


def compact_by_pyiceberg(story: Story) -> None:
    table = story.table()
    rows = table.scan().to_arrow().to_pylist()
    schema = pa.schema([("v", pa.int64()), ("day", pa.int32()), ("batch_id", pa.string())])
    table.overwrite(pa.Table.from_pylist(rows, schema=schema))


def delete_by_spark(story: Story) -> None:
    story.set_properties({"write.delete.mode": "merge-on-read"})
    story.sql("DELETE FROM {t} WHERE batch_id = 'B'")


Act = Callable[[Story], object]
# What happens, the tombstones that are active afterwards, and the rows.
MEANWHILE: dict[str, tuple[Act, set[str], Counter[Row]]] = {
    "rows of the batch arrive": (lambda s: s.append_as_foreign_writer("A"), {"A"}, of_batches("B", "D")),
    "another batch is reverted": (lambda s: s.revert("D", name="second"), {"D"}, of_batches("B")),
    "the files are rewritten": (compact_by_pyiceberg, set(), of_batches("B", "D")),
    "rows of the files are deleted": (delete_by_spark, set(), of_batches("D")),
    "a batch is promoted": (lambda s: s.filled("E"), set(), of_batches("B", "D", "E")),
    "another vacuum": (lambda s: s.vacuum(key="theirs"), set(), of_batches("B", "D")),
}


@pytest.mark.parametrize(
    ("act", "active", "rows"),
    named(
        MEANWHILE,
        "rows of the batch arrive",
        "another batch is reverted",
        "rows of the files are deleted",
        "another vacuum",
    ),
)
def test_what_is_committed_under_a_vacuum_is_neither_lost_nor_undone(
    story: Story, act: Act, active: set[str], rows: Counter[Row]
) -> None:
    """Its files, written before, would bring rows in twice or back; and a tombstone has to outlive it if rows arrived."""
    story.revert("A")

    story.vacuum(before_commit=lambda: act(story))

    assert story.tombstones() == active
    story.check_reads(rows)
    story.vacuum(key="2")
    assert (story.tombstones(), story.rows_at()) == (set(), rows)


# --- starvation ------------------------------------------------------------------------------------------------------
# A foreign writer that tries a few times only, against commits of ours: each of ours makes an attempt fail that began before
# it. Few commits, and a pause behind them, let such a writer through.


ATTEMPTS = 5  # Iceberg's default: four after the first
SCHEMA = pa.schema([("v", pa.int64()), ("day", pa.int32()), ("batch_id", pa.string())])
REVERTS = 12


@pytest.fixture
def contested(spark: SparkSession, lake: Lake, pg: Switch) -> Story:
    """Batch A is in a table of a catalog that takes commits from many at once."""
    assert pg.fault is None
    make_session("pg")
    return Story.begin(spark, lake, catalog="pg").filled("A")


def loaded(story: Story, catalog: Catalog | None = None) -> Table:
    """The table, for one attempt: PyIceberg's own retries would not be counted."""
    table = catalog.load_table(story.name) if catalog else story.table()
    table.metadata.properties["commit.retry.num-retries"] = "0"  # of this object, not of the table
    return table


def append(table: Table, batch_id: str) -> bool:
    """One attempt on the table as it was loaded: whether nobody had committed since."""
    try:
        table.append(pa.Table.from_pylist([{"v": 1, "day": 1, "batch_id": batch_id}], schema=SCHEMA))
    except CommitFailedException:
        return False
    except (
        ValueError
    ) as e:  # how PyIceberg says it when what was committed is a staged snapshot: the head is still the same
        if "Cannot add snapshot with sequence number" not in str(e):
            raise
        return False
    return True


@dataclass
class Appender:
    """Appends twice a second, if it can. `lost` counts attempts, of each append; one that lost all of them is `given_up`."""

    story: Story
    lost: list[int] = field(default_factory=list)
    given_up: int = 0
    stop: threading.Event = field(default_factory=threading.Event)
    landed: threading.Condition = field(default_factory=threading.Condition)

    def work(self) -> None:
        catalog = catalogs.load(self.story.catalog)
        for n in itertools.count():
            if self.stop.wait(0.5):
                return
            tries = (append(loaded(self.story, catalog), f"foreign-{n}") for _ in range(ATTEMPTS))
            lost = sum(1 for _ in itertools.takewhile(lambda landed: not landed, tries))
            with self.landed:
                self.given_up += lost == ATTEMPTS
                self.lost.append(lost)
                self.landed.notify_all()

    def gets_its_turn(self) -> bool:
        """Whether an append ends within the pause between two of our runs."""
        with self.landed:
            wanted = len(self.lost) + 1
            return self.landed.wait_for(lambda: len(self.lost) >= wanted, PAUSE_BETWEEN_COMMITS.total_seconds())

    @property
    def appended(self) -> int:
        return len(self.lost) - self.given_up

    def figures(self) -> dict[str, int]:
        return {
            "appended": self.appended,
            "attempts lost": sum(self.lost),
            "most lost by one": max(self.lost, default=0),
            "given up": self.given_up,
        }


@contextmanager
def appending(story: Story) -> Iterator[Appender]:
    appender = Appender(story)
    thread = threading.Thread(target=appender.work)
    thread.start()
    try:
        yield appender
    finally:
        appender.stop.set()
        thread.join(timeout=60)
    assert not thread.is_alive()


def test_a_writer_that_loses_to_every_commit_of_a_consolidation_gets_through_behind_it(contested: Story) -> None:
    """The worst there is: each commit of the run falls between a load and a commit of the other one. There are fewer of them
    than Iceberg tries."""
    contested.put("E", "F")
    attempts: list[bool] = []
    base = loaded(contested)

    def attempt() -> None:
        """The writer, having loaded the table before our last commit, comes with its own, and loads it again if it lost."""
        nonlocal base
        head = base.metadata_location
        if contested.table().metadata_location != head:
            attempts.append(append(base, "foreign"))
            base = loaded(contested)

    steps = ("after_list", "after_write", "after_stage", "before_commit", "after_commit")
    result = contested.consolidate("E", "F", **dict.fromkeys(steps, attempt))
    attempt()
    behind = append(loaded(contested), "foreign")

    assert result.batches_promoted == 2
    assert attempts
    assert not any(attempts)
    assert len(attempts) < ATTEMPTS
    assert behind
    assert contested.rows_at()[("foreign", 1, 1)] == 1


@pytest.mark.long
def test_few_commits_and_a_pause_behind_them_keep_a_foreign_writer_alive(
    contested: Story, record_property: Callable[[str, object], None]
) -> None:
    """The same reverts, one commit each with nothing in between, and then grouped with the operator's pause behind each."""
    with appending(contested) as tight:
        for n in range(REVERTS):
            contested.revert(f"tight-{n}", name=f"tight-{n}", unknown="Allow")
    with appending(contested) as grouped:
        turns = []
        for n in range(0, REVERTS, 4):
            requests = [
                a_request(f"grouped-{i}", batch_ids=(f"grouped-{i}",), unknown_batches=UnknownBatches.ALLOW)
                for i in range(n, n + 4)
            ]
            contested.run(contested.restatement(*requests))
            turns.append(grouped.gets_its_turn())

    record_property("one commit each", tight.figures())
    record_property("grouped, with pauses", grouped.figures())
    assert all(turns)
    assert grouped.given_up == 0
    assert grouped.appended >= len(turns)
    rows = contested.rows_at()
    assert sum(n for row, n in rows.items() if str(row[0]).startswith("foreign-")) == tight.appended + grouped.appended
