"""The table of batches: what any engine can ask of it, after every kind of run, also of one that died."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import lethe_spark
import pyarrow as pa
import pytest
from lethe import batches_table as tracking_files
from lethe.base import names
from lethe.base.errors import InputError
from lethe.buffer.batch_rows import row_of
from lethe.contract.run import RunKind, RunSpec
from pyspark.sql import SparkSession

from tests.spark.support.story import ALL_GONE, Story
from tests.support.lake import Lake
from tests.support.steps import Killed, die


@dataclass(frozen=True)
class Tracked(Story):
    """A Dataset whose batches are tracked."""

    def spec(self, kind: RunKind, keys: Iterable[str], **changes: Any) -> RunSpec:
        return super().spec(kind, keys, **{"batch_tracking": True, **changes})

    @property
    def batches_table(self) -> str:
        return f"{self.full_name}_batches"

    def asked(self, what: str = "*") -> list[dict[str, Any]]:
        """By Spark SQL, as anybody would."""
        return [
            r.asDict() for r in self.spark.sql(f"SELECT {what} FROM {self.batches_table} ORDER BY batch_id").collect()
        ]

    def shown(self) -> dict[str, str]:
        return {r["batch_id"]: r["state"] for r in self.asked("batch_id, state")}

    def rows(self) -> list[dict[str, Any]]:
        """By PyIceberg."""
        found = self.lake.catalog.load_table(f"{self.name}_batches").scan().to_arrow().to_pylist()
        return sorted(found, key=lambda r: r["batch_id"])

    def wanted(self) -> list[dict[str, Any]]:
        """What the ledger says."""
        found = tracking_files.as_arrow(row_of(b) for b in self.ledger().batches.values()).to_pylist()
        return sorted(found, key=lambda r: r["batch_id"])


@pytest.fixture
def story(spark: SparkSession, lake: Lake) -> Tracked:
    """Batches A and B are in the table; C waits, D is unfinished."""
    story = Tracked.begin(spark, lake)
    story.put("A", "B", "C", "D")
    (story.folder("D") / names.SUCCESS_MARKER).unlink()
    story.consolidate("A", "B")
    return story


def test_each_batch_is_shown_in_the_state_that_the_runs_have_left_it_in(story: Tracked) -> None:
    assert story.shown() == {"A": "promoted", "B": "promoted", "C": "buffered"}

    story.put_file("E", b"no Parquet")
    refused = story.consolidate("C", "E")
    assert refused.not_tracked == ""
    assert story.shown() == {"A": "promoted", "B": "promoted", "C": "promoted", "E": "refused"}

    story.replay("A", by="A2")
    story.revert("B", "Z", unknown="Allow")
    states = {"A": "replaced", "A2": "promoted", "B": "reverted", "C": "promoted", "E": "refused", "Z": "reverted"}
    assert story.shown() == states

    story.undo()
    assert story.shown() == {**{i: s for i, s in states.items() if i != "Z"}, "B": "promoted"}

    story.revert("C", name="again")
    story.vacuum(ALL_GONE)
    assert story.shown() == {"A": "replaced", "A2": "promoted", "B": "promoted", "C": "reverted", "E": "refused"}
    assert story.rows() == story.wanted()


def test_a_run_that_died_between_its_commit_and_the_update_is_made_up_for(story: Tracked) -> None:
    with pytest.raises(Killed):
        story.consolidate("C", before_tracking=die)
    assert (story.states()["C"], story.shown()["C"]) == ("promoted", "buffered")

    result = story.consolidate("C")

    assert (result.outcome, result.not_tracked) == ("AlreadyCommitted", "")
    assert story.shown()["C"] == "promoted"


def test_an_update_that_fails_does_not_fail_the_run(story: Tracked) -> None:
    """The data are in the table; the result says what is not."""
    story.spark.sql(f"ALTER TABLE {story.batches_table} UNSET TBLPROPERTIES ('{names.TRACKS}')")

    result = story.consolidate("C")

    assert (result.outcome, story.states()["C"]) == ("Committed", "promoted")
    assert result.not_tracked.startswith("BatchesTableTaken")
    assert story.shown()["C"] == "buffered"


def test_a_users_own_job_keeps_the_table_up_to_date_and_makes_none(story: Tracked) -> None:
    rows = pa.table({"v": [1], "day": pa.array([1], pa.int32())})

    lethe_spark.write(
        story.spark.createDataFrame(rows.to_pandas()).selectExpr("v", "cast(day as int) day"),
        story.full_name,
        batch_id="own",
    )
    lethe_spark.revert(story.spark, story.full_name, ["A"])

    assert story.shown() == {"A": "reverted", "B": "promoted", "C": "buffered", "own": "promoted"}
    story.spark.sql(f"DROP TABLE {story.batches_table}")
    lethe_spark.revert(story.spark, story.full_name, ["B"])
    assert not story.lake.catalog.table_exists(f"{story.name}_batches")


def test_the_table_of_batches_takes_in_no_batches_itself(story: Tracked) -> None:
    other = Tracked(story.spark, story.lake, f"{story.name}_batches")
    other.put("A")

    with pytest.raises(InputError, match="TableHoldsBatches"):
        other.consolidate("A")
    with pytest.raises(InputError, match="TableHoldsBatches"):
        lethe_spark.revert(story.spark, story.batches_table, ["A"])
