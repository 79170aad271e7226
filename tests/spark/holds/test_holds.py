"""Holds: no run of Lethe removes a row that a hold covers from the table's data files, and the rest goes as without a hold."""

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow.parquet as pq
import pytest
from lethe.base.errors import InputError
from lethe.contract.dataset import HoldSpec
from lethe.contract.run import ColumnRedaction, Redaction, RunSpec
from lethe.contract.settings import Deletes, Operation, RedactionMethod
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.built_once import built_once
from tests.spark.support.erases import Names, but, files_with, name_of, row, table_folder
from tests.spark.support.story import ALL_GONE, Row, local, of_batches
from tests.spark.support.streaming_writer import delete_by_equality
from tests.support.builders import a_request
from tests.support.lake import Lake

Make = Callable[..., Names]
NEXT_YEAR = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def make(spark: SparkSession, lake: Lake) -> Make:
    """Batches A, B and D are in a common file for each of two days."""

    @built_once
    def begin(format_version: int, deletes: Deletes = Deletes.LEDGER) -> Names:
        return Names.begin(spark, lake, format_version=format_version, deletes=deletes).filled()

    return begin


def a_hold(filter: str = "", name: str = "case-7", until: datetime | None = None) -> HoldSpec:
    return HoldSpec(name=name, filter=filter, until=until)


def on(*rows: Row, name: str = "case-7") -> HoldSpec:
    """A hold on these rows, by their names."""
    listed = ", ".join(f"'{name_of(v)}'" for _, v, _ in rows)
    return a_hold(f"name IN ({listed})", name)


def under(spec: RunSpec, *holds: HoldSpec) -> RunSpec:
    return spec.model_copy(update={"holds": holds})


def stored(story: Names) -> Counter[Row]:
    """The rows that the live data files have, deleted or not."""
    found: Counter[Row] = Counter()
    for path in story.files():
        rows = pq.read_table(local(path), columns=["batch_id", "v", "day"], partitioning=None).to_pylist()
        found.update((r["batch_id"], r["v"], r["day"]) for r in rows)
    return found


MODES = [(2, Deletes.LEDGER), (2, Deletes.POSITION_DELETES), (3, Deletes.LEDGER), (3, Deletes.DELETION_VECTORS)]
FIRST, SECOND = row("A", 0), row("A", 1)  # on days 1 and 2


@pytest.mark.parametrize("mode", some(MODES, (2, Deletes.POSITION_DELETES), (3, Deletes.DELETION_VECTORS)), ids=str)
def test_a_purge_leaves_a_file_with_covered_hidden_rows_and_finishes_when_the_hold_is_gone(
    make: Make, mode: tuple[int, Deletes]
) -> None:
    """The rows of day 2 go at once; those of day 1 stay with the row that the hold covers, under their tombstone."""
    story = make(*mode)
    story.revert("A", "D", evict_by_seconds=60)
    before = stored(story)

    held = story.run(under(story.vacuuming(ALL_GONE), on(FIRST)))

    assert (held.files_rewritten, held.files_held, held.holds, held.tombstones_purged) == (1, 1, ("case-7",), 0)
    assert "1 data files stay as they are" in held.message
    assert "hold case-7 until it is removed" in held.message
    gone = Counter(r for r in (row(b, n) for b in "AD" for n in (1, 3)))
    assert stored(story) == before - gone
    assert story.tombstones() == {"A", "D"}
    (erasure,) = story.ledger().open_erasures
    assert [str(b) for b in erasure.blockers] == ["hold case-7 (it covers rows in the table's data files)"]
    story.check_reads(of_batches("B"))

    free = story.run(story.vacuuming(ALL_GONE, key="2"))

    assert (free.tombstones_purged, free.files_held, stored(story)) == (2, 0, of_batches("B"))
    assert story.ledger().open_erasures == ()


@pytest.mark.parametrize("deletes", some((Deletes.LEDGER, Deletes.DELETION_VECTORS), Deletes.DELETION_VECTORS))
def test_a_covered_row_that_is_not_hidden_keeps_no_file(make: Make, deletes: Deletes) -> None:
    """It is in the new file, whatever else leaves the old one."""
    story = make(3, deletes)
    story.revert("A")

    result = story.run(under(story.vacuuming(ALL_GONE), on(row("B", 0))))

    assert (result.files_held, result.tombstones_purged, stored(story)) == (0, 1, of_batches("B", "D"))


@pytest.mark.parametrize("deletes", some((Deletes.LEDGER, Deletes.POSITION_DELETES), Deletes.LEDGER))
def test_a_file_of_only_deleted_rows_is_not_dropped_while_a_hold_covers_the_table(make: Make, deletes: Deletes) -> None:
    """Neither one that bounds prove to be empty, nor one that a search finds empty; and no budget lets it go."""
    story = make(2, deletes)
    story.filled("E")
    story.revert("A", "B", "D", "E")
    before = stored(story)

    result = story.run(under(story.vacuuming(ALL_GONE), a_hold()))

    assert (result.files_deleted, result.files_rewritten, result.files_held) == (0, 0, 4)
    assert (stored(story), story.tombstones()) == (before, {"A", "B", "D", "E"})


def test_only_tombstones_with_rows_in_a_kept_file_stay(make: Make) -> None:
    """The bounds of the kept files, A to D, allow AC as well, but the vacuum has looked into them."""
    story = make(2)
    story.put("AC")
    story.consolidate("AC")
    story.revert("A", "AC", evict_by_seconds=60)

    result = story.run(under(story.vacuuming(), on(FIRST, SECOND)))

    assert (result.files_held, result.tombstones_purged, story.tombstones()) == (2, 1, {"A"})


def test_rows_that_an_erase_hid_by_deletion_vectors_stay_when_a_hold_comes_later(make: Make) -> None:
    story = make(3)
    story.erase(FIRST)
    assert FIRST in stored(story)

    held = story.run(under(story.vacuuming(ALL_GONE), on(FIRST)))

    assert (held.files_rewritten, held.files_held, FIRST in stored(story)) == (0, 1, True)
    (erasure,) = story.ledger().open_erasures
    assert [(str(b.kind), b.name, b.until) for b in erasure.blockers] == [("Hold", "case-7", None)]

    story.run(story.vacuuming(ALL_GONE, key="2"))

    assert FIRST not in stored(story)
    story.check_reads(but(FIRST))


@pytest.mark.parametrize("format_version", [2, 3])
def test_an_erase_by_records_waits_for_a_hold_on_its_rows_and_others_go_on(make: Make, format_version: int) -> None:
    story = make(format_version)
    held = story.an_erase(name_of(FIRST[1]), name_of(row("B", 1)[1]), name="held")
    free = story.an_erase(name_of(row("D", 2)[1]), name="free")
    hold = on(FIRST).model_copy(update={"until": NEXT_YEAR})

    result: Any = story.run(under(story.restatement(held, free), hold))

    waiting, done = result.requests
    assert (waiting.succeeded, waiting.again, waiting.reason) == (False, True, "LegalHold")
    assert "covered by hold case-7 until 2100-01-01T00:00:00Z. Nothing was erased." in waiting.message
    assert (done.succeeded, done.rows_erased) == (True, 1)
    assert name_of(FIRST[1]) not in result.to_json()
    story.check_reads(but(row("D", 2)))

    alone: Any = story.run(under(story.restatement(held), hold))

    assert [r.reason for r in alone.requests] == [
        "LegalHold"
    ]  # it does not fail: the same run would find the same hold
    assert files_with(table_folder(story), name_of(FIRST[1])) == []

    assert story.restate(held).rows_erased == 2
    story.check_reads(but(FIRST, row("B", 1), row("D", 2)))


@pytest.mark.parametrize("format_version", some([2, 3], 2))
def test_a_redact_waits_for_a_hold_on_its_rows_by_records_and_by_batches(make: Make, format_version: int) -> None:
    story = make(format_version)
    redact = Redaction(columns=(ColumnRedaction(column="name", method=RedactionMethod.SET_NULL),))
    by_records = story.an_erase(name_of(FIRST[1])).model_copy(update={"operation": Operation.REDACT, "redact": redact})
    for held in (by_records, a_request("of-batch", "Redact", batch_ids=["A"], redact=redact)):
        result: Any = story.run(under(story.restatement(held), on(FIRST)))

        (waiting,) = result.requests
        assert (waiting.succeeded, waiting.again, waiting.reason) == (False, True, "LegalHold")
        assert "rows that it would redact are covered by hold case-7" in waiting.message
        assert waiting.message.endswith("Nothing was redacted. It goes on when they are not covered any more.")
    assert name_of(FIRST[1]) in story.table().scan().to_arrow()["name"].to_pylist()

    assert story.restate(by_records).rows_redacted == 1
    assert name_of(FIRST[1]) not in story.table().scan().to_arrow()["name"].to_pylist()


def test_an_erase_of_format_version_2_rewrites_no_file_with_covered_rows_that_position_deletes_hide(
    make: Make,
) -> None:
    story = make(2, Deletes.POSITION_DELETES)
    story.revert("A")
    erase = story.an_erase(name_of(row("B", 0)[1]))

    result: Any = story.run(under(story.restatement(erase), on(FIRST)))

    assert [r.reason for r in result.requests] == ["LegalHold"]
    assert FIRST in stored(story)
    assert story.restate(erase).rows_erased == 1


def test_a_revert_and_an_erase_of_batches_hide_covered_rows_and_an_undo_shows_them(make: Make) -> None:
    story = make(2)
    everything = a_hold()

    story.run(under(story.restatement(a_request("revert", batch_ids=["A"])), everything))
    story.check_reads(of_batches("B", "D"))
    story.undo()
    story.run(under(story.restatement(a_request("erase", "Erase", batch_ids=["D"])), everything))
    held = story.run(under(story.vacuuming(ALL_GONE), everything))

    story.check_reads(of_batches("A", "B"))
    assert (held.files_held, stored(story)) == (2, of_batches("A", "B", "D"))
    (erasure,) = story.ledger().open_erasures
    assert [b.name for b in erasure.blockers] == ["case-7"]


BAD = {"column": "passenger = 'secret name'", "type": "v = 'secret name'", "syntax": "secret name !!"}


@pytest.mark.parametrize("filter", some(BAD.values(), BAD["column"]))
def test_a_hold_with_an_invalid_filter_stops_vacuums_and_lets_erases_wait(make: Make, filter: str) -> None:
    story = make(2)
    story.revert("A")
    erase = story.an_erase(name_of(FIRST[1]))

    with pytest.raises(InputError) as error:
        story.run(under(story.vacuuming(), a_hold(filter)))
    result: Any = story.run(under(story.restatement(erase, a_request("other", batch_ids=["B"])), a_hold(filter)))

    assert error.value.reason == "InvalidHold"
    assert "hold case-7" in error.value.message
    assert "secret" not in error.value.message
    assert [(r.reason, r.again) for r in result.requests] == [("InvalidHold", True), ("", False)]
    assert stored(story) == of_batches("A", "B", "D")


def test_a_merge_of_small_files_drops_no_row_that_deletes_hide(make: Make) -> None:
    """A small file beside a rewritten one, in which other deletes hide a covered row."""
    story = make(3)
    story.filled("C")
    story.erase(row("C", 0))
    story.revert("A", "B", "D")

    result = story.run(under(story.vacuuming(), on(row("C", 0))))

    assert result.tombstones_purged == 3
    assert row("C", 0) in stored(story)


def test_a_covered_row_that_is_deleted_between_search_and_commit_stays(make: Make) -> None:
    """When the vacuum looked, nothing hid it, and the file without A's rows is written. Another engine deletes it then."""
    story = make(3)
    story.set_properties({"write.delete.mode": "merge-on-read"})
    story.revert("A")
    other, v = row("B", 0), row("B", 0)[1]

    result = story.run(
        under(story.vacuuming(), on(other)), after_write=lambda: story.sql(f"DELETE FROM {{t}} WHERE v = {v}")
    )

    assert (result.files_held, result.files_rewritten, result.holds) == (1, 1, ("case-7",))
    assert other in stored(story)
    assert story.tombstones() == {"A"}


def test_equality_deletes_of_another_engine_that_may_hide_a_covered_row_keep_every_file(make: Make) -> None:
    """Lethe cannot tell which rows they hide, but for what the bounds of the deletes exclude."""
    story = make(2)
    story.revert("A")
    deleted, other = row("B", 0), row("D", 0)
    delete_by_equality(story, "name", name_of(deleted[1]), story.table().spec().spec_id, [1])

    result = story.run(under(story.vacuuming(), a_hold(f"v = {deleted[1]}")))

    assert (result.files_held, result.files_rewritten) == (2, 0)
    assert stored(story) == of_batches("A", "B", "D")
    result = story.run(under(story.vacuuming(key="2"), on(other)))
    assert (result.files_held, result.files_rewritten) == (0, 2)
    assert stored(story) == but(deleted, batches=("B", "D"))
