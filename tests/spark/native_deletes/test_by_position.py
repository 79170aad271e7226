"""Deletion vectors, or position deletes on format version 2, beside the ledger: readers without Lethe see the right rows at once,
and no others."""

import io
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import lethe
import lethe_spark
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.base.errors import InputError
from lethe.contract.run import SearchLimits
from lethe.contract.settings import Deletes
from lethe.files.values import ValueKind, Values, ValueType
from lethe.ledger.tombstone import Mask
from lethe.search.batches import TooMuchToSearch
from lethe.search.candidates import CandidateFile, candidates
from lethe.search.positions import SearchedFile, Wanted, find
from lethe_spark.commit import masking
from lethe_spark.committer import work
from lethe_spark.jobs.clean_up import reanchor_and_mask
from lethe_spark.jvm.scan_tasks import write_uncommitted
from lethe_spark.jvm.spark_table import SparkTable
from pyiceberg.manifest import ManifestContent
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.built_once import built_once
from tests.spark.support.erases import Names, row
from tests.spark.support.flights import Flights, find_files
from tests.spark.support.native_deletes import Native
from tests.spark.support.story import Row, avro, local, of_arrow, of_batches, of_spark, results_by_name
from tests.support.builders import a_request
from tests.support.lake import CATALOG, Lake

VECTORS = "DeletionVectors"
POSITIONS = "PositionDeletes"
# For tests whose promise depends on the kind of deletes least: `make test` runs them with one kind.
MOSTLY_VECTORS = pytest.mark.parametrize("story", some([VECTORS, POSITIONS], VECTORS), indirect=True)
MOSTLY_POSITIONS = pytest.mark.parametrize("story", some([VECTORS, POSITIONS], POSITIONS), indirect=True)


@pytest.fixture(params=[VECTORS, POSITIONS])
@built_once
def story(request: pytest.FixtureRequest, spark: SparkSession, lake: Lake) -> Native:
    return Native.begin(spark, lake, deletes=request.param).filled()


Searched: TypeAlias = tuple[list[str], frozenset[str]]


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[Searched]:
    """The paths of the files of each search, and the batches that it is for."""
    noted: list[Searched] = []
    search = masking.NativeMasker._search

    def noting(
        masker: masking.NativeMasker, files: Sequence[CandidateFile], base: Any, ids: frozenset[str], absent: Any
    ) -> None:
        noted.extend([([c.path for c in files], ids)] if files else [])
        search(masker, files, base, ids, absent)

    monkeypatch.setattr(masking.NativeMasker, "_search", noting)
    return noted


def test_a_revert_hides_its_rows_by_position_in_one_snapshot_with_the_ledger(story: Native) -> None:
    """A is in files with other batches, E in its own: each file gets a delete file, those of E without being read."""
    files, snapshots = story.files(), len(story.snapshots())

    result = story.revert("A", "E")

    assert (result.succeeded, result.rows_deleted, result.tombstones_added) == (True, 8, 2)
    assert len(story.snapshots()) == snapshots + 1
    assert result.snapshot_id == story.head().snapshot_id
    assert story.files() == files
    end = ".puffin" if story.deletes == VECTORS else "-lethe-deletes.parquet"
    assert {(path.endswith(end), n) for _, path, n in story.deletes_now()} == {(True, 2)}
    assert len(story.deletes_now()) == 4
    assert story.masks() == {"A": Mask(story.deletes, 4), "E": Mask(story.deletes, 4)}
    keys = story.keys()
    assert (keys["lethe.deletes"], keys["lethe.masked"]) == (story.deletes, "true")
    assert {t["id"] for t in avro(keys["tombstone.vacuum.file"])} == {"A", "E"}
    story.check_native(of_batches("B", "D"))


@MOSTLY_POSITIONS
def test_an_undo_shows_exactly_the_rows_again_and_only_the_others_stay_deleted(story: Native) -> None:
    """A data file has one delete file of Lethe at most: the second revert adds to it, the Undo takes out of it."""
    story.revert("A", name="one")
    story.revert("D", name="two")
    assert [n for _, _, n in story.deletes_now()] == [4, 4]

    undone = story.undo("one")

    assert (undone.succeeded, undone.rows_restored, story.hidden_rows()) == (True, 4, 4)
    assert story.masks() == {"D": Mask(story.deletes, 4)}
    story.undo("two", name="undo-two")
    assert story.deletes_now() == []
    story.revert("A", name="again")
    story.check_native(of_batches("B", "D", "E"))


@pytest.mark.long
def test_an_undo_of_one_of_two_that_were_hidden_by_one_commit_is_seen_by_every_reader(story: Native) -> None:
    """PyIceberg takes all vectors of a Puffin file for those of today, so no two data files may share one."""
    story.filled("FG")
    reported = results_by_name(
        story.restate_all(a_request("one", batch_ids=("A",)), a_request("two", batch_ids=("F",)))
    )
    assert {r.group_size for r in reported.values()} == {2}

    assert story.undo("one").succeeded

    story.check_native(of_batches("A", "B", "D", "E", "G"))


@MOSTLY_POSITIONS
def test_a_replay_brings_the_new_rows_in_the_snapshot_that_hides_the_old_ones(story: Native) -> None:
    """Nobody sees both, or neither. Who replaces a replacement of the same group goes after it."""
    first, second = story.a_replay("A", by="A2"), story.a_replay("A2", by="A3", name="second", rows=2)

    reported = results_by_name(story.restate_all(first, second, a_request("revert", batch_ids=("B",))))

    assert {n: (r.succeeded, r.reason) for n, r in reported.items()} == {
        "replay": (True, ""),
        "second": (False, "WaitingForRestatement"),
        "revert": (True, ""),
    }
    assert reported["second"].again
    assert story.operation() == "overwrite"
    assert story.plain() == of_batches("D", "E") + of_batches("A2", rows=3)
    story.restate(second)
    story.check_native(of_batches("D", "E") + of_batches("A3", rows=2), since=story.snapshots()[2].snapshot_id)


@MOSTLY_VECTORS
def test_an_undo_shows_batches_with_files_of_their_own_too_until_a_vacuum_purges_them(story: Native) -> None:
    story.revert("A", "E")

    undone = story.undo()

    assert (undone.succeeded, undone.rows_restored, story.deletes_now()) == (True, 8, [])
    story.check_native(of_batches("A", "B", "D", "E"))
    story.revert("E", name="again")
    story.vacuum()
    late = story.undo("again", name="late")
    assert (late.succeeded, late.reason) == (False, "AlreadyPurged")


@MOSTLY_VECTORS
def test_tombstones_from_before_the_mode_are_masked_by_the_next_restatement(story: Native) -> None:
    """Also rows that a foreign writer appended to a batch taken back, once somebody has looked."""
    story.run(story.restatement(a_request("before", batch_ids=("A",)), deletes="Ledger"))
    assert (story.plain(), story.masks()) == (of_batches("A", "B", "D", "E"), {"A": None})

    story.revert("B")

    assert story.plain() == of_batches("D", "E")
    story.sql("INSERT INTO {t} (v, day, batch_id) VALUES (500, 1, 'A'), (501, 1, 'B'), (502, 1, 'X')")
    story.revert("D", name="late")
    assert story.masks() == {"A": Mask(story.deletes, 5), "B": Mask(story.deletes, 5), "D": Mask(story.deletes, 4)}
    wanted = of_batches("E") + Counter({("X", 502, 1): 1})
    assert (story.plain(), of_arrow(lethe.scan(story.full_name).to_arrow())) == (wanted, wanted)
    assert of_arrow(story.table().scan().to_arrow()) == wanted


@pytest.mark.parametrize(("deletes", "version"), [(VECTORS, 2), (POSITIONS, 3)])
def test_vectors_are_for_version_3_and_position_deletes_for_version_2(
    spark: SparkSession, lake: Lake, deletes: Deletes, version: int
) -> None:
    story = Native.begin(spark, lake, format_version=version, deletes=deletes).filled("A")
    head = story.head().snapshot_id

    with pytest.raises(InputError, match=f"format version {version}") as refused:
        story.revert("A")

    assert (refused.value.reason, story.head().snapshot_id) == ("FormatVersionMismatch", head)


# --- races ----------------------------------------------------------------------------------------------------------

Act = Callable[[Native], object]
MEANWHILE: dict[str, tuple[Act, Counter[Row]]] = {
    "another group on one file": (lambda s: s.revert("B", name="meanwhile"), of_batches("D", "E")),
    "a compaction": (Native.compact, of_batches("B", "D", "E")),
    "a vacuum of another batch": (Native.vacuum, of_batches("D", "E")),
}


@MOSTLY_VECTORS
@pytest.mark.parametrize("other", some(MEANWHILE, "another group on one file"))
def test_rows_are_hidden_wherever_others_have_moved_them_meanwhile_and_nobodys_deletes_are_lost(
    story: Native, other: str
) -> None:
    act, wanted = MEANWHILE[other]
    batch = "A"
    if other == "a vacuum of another batch":
        story.revert("B", name="before")

    result = story.restate(a_request("revert", batch_ids=(batch,)), before_commit=lambda: act(story))

    assert result.succeeded
    story.check_native(wanted)


@MOSTLY_VECTORS
def test_a_restatement_meanwhile_makes_a_run_search_for_its_batches_alone(
    story: Native, searches: list[Searched]
) -> None:
    """If files were too many for its own commit. Otherwise a run that searches for minutes would begin again at each one."""

    def meanwhile() -> None:
        if "D" not in story.tombstones():
            story.run(story.restatement(a_request("meanwhile", batch_ids=("D",)), deletes="Ledger"))

    story.run(story.restatement(a_request("before", batch_ids=("A",)), deletes="Ledger"))
    searches.clear()

    assert story.run(story.following(), before_commit=meanwhile).outcome == "Committed"

    assert [ids for _, ids in searches] == [frozenset("A"), frozenset("D")]
    assert story.masks() == {"A": Mask(story.deletes, 4), "D": Mask(story.deletes, 4)}
    story.check_native(of_batches("B", "E"), since=story.head().snapshot_id)


@MOSTLY_POSITIONS
@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_foreign_delete_on_the_same_file_stays_and_the_undo_is_refused(story: Native, meanwhile: bool) -> None:
    """Whose a position is cannot be told."""
    story.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
    gone = next(iter(of_batches("A")))

    def delete() -> None:
        story.sql(f"DELETE FROM {{t}} WHERE v = {gone[1]}")

    if not meanwhile:
        delete()
    result = story.restate(a_request("revert", batch_ids=("A",)), **({"before_commit": delete} if meanwhile else {}))

    assert result.succeeded
    wanted = of_batches("B", "D", "E")
    assert (story.plain(), story.rows_at()) == (wanted, wanted)
    assert story.undo().reason == "AlreadyPurged"


def _of_day(batch_id: str, day: int, first: int) -> bytes:
    sink = io.BytesIO()
    rows = pa.table({"v": [first, first + 1], "day": [day] * 2}, pa.schema([("v", pa.int64()), ("day", pa.int32())]))
    pq.write_table(rows.append_column("batch_id", pa.array([batch_id] * 2)), sink)
    return sink.getvalue()


@MOSTLY_VECTORS
def test_files_are_searched_of_partitions_that_a_batch_may_be_in_and_of_all_once_others_add_rows(
    story: Native, searches: list[Searched]
) -> None:
    """By their bounds, the files of both days may have rows of P, Q, R and S."""
    left = of_batches("A", "B", "D", "E")
    for number, batch in enumerate("KPQRSZ"):
        day, first = 7 if batch in "KZ" else 8, 100 * number
        story.put_file(batch, _of_day(batch, day, first))
        left.update({(batch, first + n, day): 1 for n in range(2)})
    story.consolidate(*"KPQRSZ")
    days = Counter(path.partition("day=")[2][0] for path in story.files())

    def revert(batch: str, name: str) -> set[str]:
        searches.clear()
        assert story.revert(batch, name=name).succeeded
        for deleted in [r for r in left if r[0] == batch]:
            del left[deleted]
        assert (story.plain(), story.rows_at()) == (left, left)
        return {path.partition("day=")[2][0] for paths, _ in searches for path in paths}

    assert (days["7"], days["8"]) == (1, 1)
    assert revert("P", "in-its-partition") == {"8"}
    story.sql("INSERT INTO {t} (v, day, batch_id) VALUES (900, 7, 'Q'), (901, 7, 'R')")
    left.update({("Q", 900, 7): 1, ("R", 901, 7): 1})
    assert revert("Q", "before-the-ledger-knows") == {"7", "8"}
    assert revert("R", "after-the-ledger-knows") == {"7", "8"}
    assert revert("S", "not-among-the-added") == {"8"}
    story.check_native(left, since=story.head().snapshot_id)


# --- records are erased from the same files -------------------------------------------------------------------------

NAMED = (3, VECTORS), (2, POSITIONS)


@pytest.fixture(params=some(NAMED, NAMED[0]), ids=["v3", "v2"])
@built_once
def native(request: pytest.FixtureRequest, spark: SparkSession, lake: Lake) -> Native:
    """A table of batches A, B and D with a name in each row."""
    version, deletes = request.param
    return Names.begin(spark, lake, format_version=version).filled().seen_as(Native, deletes=deletes)


def test_an_undo_does_not_bring_back_what_was_erased_under_the_mask(native: Native) -> None:
    """Revert, erase a row of the batch, Undo: the delete file does not tell the position from the others."""
    names = native.seen_as(Names)
    native.revert("A")
    erased = names.erase(row("A", 1))
    assert erased.succeeded

    undone = native.undo()

    assert (undone.succeeded, undone.reason) == (False, "AlreadyPurged")
    assert native.plain() == of_batches("B", "D")


# --- later commits --------------------------------------------------------------------------------------------------


@MOSTLY_VECTORS
def test_what_is_too_much_to_search_is_hidden_by_the_ledger_first(
    story: Native,
) -> None:
    """Native deletes follow. The committer leaves them to a Job if they are still too many."""
    limits, spec = SearchLimits(max_files_per_commit=1), story.restatement(a_request("revert", batch_ids=("A",)))
    table = SparkTable.load(story.spark, CATALOG, story.name)
    assert table is not None
    assert spec.restatement is not None

    limited = spec.restatement.model_copy(update={"search_limits": limits})

    result = work.restate(story.context(spec), table, limited)

    assert (result.outcome, result.files_without_deletes, result.requests[0].succeeded) == ("Committed", 2, True)
    assert (story.rows_at(), story.plain()) == (of_batches("B", "D", "E"), of_batches("A", "B", "D", "E"))
    with pytest.raises(TooMuchToSearch):
        reanchor_and_mask(story.context(story.following()), table, work.masker_of(story.context(spec), table, limited))
    followed = story.run(story.following())
    assert (followed.outcome, story.masks()) == ("Committed", {"A": Mask(story.deletes, 4)})
    story.check_native(of_batches("B", "D", "E"), since=story.head().snapshot_id)
    assert story.run(story.following()).outcome == "NothingToDo"


@MOSTLY_POSITIONS
def test_rows_that_others_add_to_a_batch_that_was_taken_back_get_native_deletes(story: Native) -> None:
    story.revert("A")
    story.sql("INSERT INTO {t} (v, day, batch_id) VALUES (500, 1, 'A'), (502, 1, 'X')")
    wanted = of_batches("B", "D", "E") + Counter({("X", 502, 1): 1})
    assert (story.rows_at(), story.plain()) == (wanted, wanted + Counter({("A", 500, 1): 1}))

    result = story.run(story.following())

    assert (result.outcome, story.plain()) == ("Committed", wanted)
    story.check_native(wanted, since=story.head().snapshot_id)
    assert story.run(story.following()).outcome == "NothingToDo"


@MOSTLY_VECTORS
def test_rows_that_a_compaction_without_deletes_brought_back_stay_hidden_from_lethes_readers(story: Native) -> None:
    """Nothing in the metadata tells it from one that applied them, so native deletes alone do not say what is hidden."""
    story.revert("A")
    table = SparkTable.load(story.spark, CATALOG, story.name)
    assert table is not None
    rows = story.spark.read.parquet(*story.files()).select("v", "day", "batch_id")
    head = story.head().snapshot_id
    update = table.java.newRewrite().validateFromSnapshot(head)
    for old in find_files(table, story.files(), head):
        update.deleteFile(old.java)
    for new in write_uncommitted(table, rows, "another-engine"):
        update.addFile(new.java)
    update.commit()

    story.filled("F")

    assert (story.keys()["lethe.masked"], story.plain()) == ("true", of_batches("A", "B", "D", "E", "F"))
    assert story.rows_at() == of_batches("B", "D", "E", "F")
    assert of_spark(lethe_spark.read(story.spark, story.full_name)) == of_batches("B", "D", "E", "F")


@MOSTLY_VECTORS
def test_many_commits_leave_few_manifests_for_a_reader(story: Native) -> None:
    batches = "FGHIJKLMN"
    story.filled(*batches)
    for batch in batches:
        story.revert(batch, name=batch.lower())

    manifests = story.table().current_snapshot().manifests(story.table().io)  # type: ignore[union-attr]

    assert len([m for m in manifests if m.content == ManifestContent.DELETES]) < 8
    story.check_native(of_batches("A", "B", "D", "E"))


# --- positions -------------------------------------------------------------------------------------------------------
# Positions that Lethe finds are those that Iceberg deletes by.


SMALL = {
    "write.parquet.row-group-size-bytes": "4096",
    "write.parquet.row-group-check-min-record-count": "50",
    "write.parquet.row-group-check-max-record-count": "50",
    "write.orc.stripe-size-bytes": "4096",
}


@pytest.mark.parametrize("format_name", some(["parquet", "orc", "avro"], "parquet", "orc"))
def test_positions_are_those_of_spark_through_all_parts_of_a_file(
    make_flights: Callable[..., Flights], format_name: str
) -> None:
    """In files of many row groups, which the search may pass over."""
    flights = make_flights(partition_by=())
    properties = ", ".join(f"'{k}' = '{v}'" for k, v in {**SMALL, "write.format.default": format_name}.items())
    flights.spark.sql(f"ALTER TABLE {flights.full_name} SET TBLPROPERTIES ({properties})")
    rows = flights.spark.range(20_000).selectExpr("id % 977 AS v", "1 AS day", "uuid() AS batch_id").coalesce(1)
    rows.writeTo(flights.full_name).append()
    table = flights.lake.catalog.load_table(flights.name)
    values = Values(ValueKind(ValueType.LONG), tuple(range(5, 977, 100)))
    wanted = {"it": Wanted.of(table.schema().find_field("v").field_id, values)}
    head = table.current_snapshot()
    assert head is not None

    found = {
        (c.path, position)
        for c in candidates(table, head.snapshot_id, wanted)
        for position in find(SearchedFile(table.io, c.path, c.format_name), wanted).get("it", ())
    }

    frame = flights.spark.table(f"{CATALOG}.{flights.name}").where(f"v IN {values.items}").select("_file", "_pos")
    assert found == {(r["_file"], r["_pos"]) for r in frame.collect()}
    assert len(found) > 200
    if format_name == "parquet":
        paths = {path for path, _ in found}
        assert max(pq.ParquetFile(local(path)).metadata.num_row_groups for path in paths) > 3
