"""Every commit is a compare-and-set, and files are written, staged, published and expired by commits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lethe.base import names
from lethe.base.errors import ConflictError, InputError, TransientError, UnknownCommitState
from lethe_spark.commit.table_state import observe_base
from lethe_spark.jvm import commit as ancestry
from lethe_spark.jvm.commit import (
    Append,
    DeleteFiles,
    Expectation,
    LedgerOnly,
    RewriteFiles,
    commit,
    find_staged,
    stage,
)
from lethe_spark.jvm.errors import JvmError, is_away
from lethe_spark.jvm.metadata import expire, remove_files
from lethe_spark.jvm.scan_tasks import scan_files, write_uncommitted
from pyiceberg.table import update

from tests.spark.support.flights import Flights, find_files


def pointing_to(ledger: str, **more: str) -> dict[str, str]:
    return {names.LEDGER: ledger, **more}


def test_a_commit_lands_with_its_summary_and_returns_its_snapshot(flights: Flights) -> None:
    files = flights.written("A", "B")

    snapshot_id = commit(flights.table, Append(files), pointing_to("L1", **{names.RUN_ID: "run-1"}), Expectation(None))

    head = flights.lake.catalog.load_table(flights.name).current_snapshot()
    assert head is not None
    assert (snapshot_id, "L1", "run-1") == (head.snapshot_id, head.summary[names.LEDGER], head.summary[names.RUN_ID])
    assert 20 == flights.rows() == sum(f.records for f in files)


def test_of_two_ledger_commits_on_one_base_the_second_is_refused(flights: Flights) -> None:
    """Iceberg alone would rebase the second silently, and the first one's ledger would be lost."""
    commit(flights.table, LedgerOnly(), pointing_to("L1"), Expectation(None))
    mine, theirs = flights.handle(), flights.handle()
    commit(theirs, LedgerOnly(), pointing_to("L2-theirs"), Expectation("L1"))

    with pytest.raises(ConflictError, match=r"LedgerMoved: .*planned on ledger L1, .*L2-theirs") as refused:
        commit(mine, LedgerOnly(), pointing_to("L2-mine"), Expectation("L1"))

    assert refused.value.reason == "LedgerMoved"
    assert ledgers(flights) == ["L2-theirs", "L1"]


def test_an_unchecked_foreign_append_stops_the_commit(flights: Flights) -> None:
    """It may have added rows of a batch that the commit takes back."""
    commit(flights.table, LedgerOnly(), pointing_to("L1"), Expectation(None))
    mine = flights.handle()
    flights.append_as_foreign_writer("A")

    with pytest.raises(ConflictError, match="by another writer") as refused:
        commit(mine, LedgerOnly(), pointing_to("L2"), Expectation("L1"))

    assert refused.value.reason == "LedgerMoved"
    foreign_head = flights.handle().head_id
    assert foreign_head is not None
    commit(mine, LedgerOnly(), pointing_to("L2"), Expectation("L1", frozenset({foreign_head})))
    assert ledgers(flights) == ["L2", None, "L1"]
    assert flights.rows() == 10


def test_the_check_runs_again_in_the_attempt_after_a_lost_race(
    flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other commit lands after the check has passed and before the catalog is asked: Iceberg then tries again."""
    commit(flights.table, LedgerOnly(), pointing_to("L1"), Expectation(None))
    other, calls = flights.handle(), 0
    judge = ancestry.objection

    def judge_then_be_overtaken(*args: object) -> str | None:
        nonlocal calls
        calls += 1
        verdict = judge(*args)  # type: ignore[arg-type]
        if calls == 1:
            monkeypatch.setattr(ancestry, "objection", judge)
            commit(other, LedgerOnly(), pointing_to("L2-theirs"), Expectation("L1"))
            monkeypatch.setattr(ancestry, "objection", judge_then_be_overtaken)
        return verdict

    monkeypatch.setattr(ancestry, "objection", judge_then_be_overtaken)
    with pytest.raises(ConflictError) as refused:
        commit(flights.table, LedgerOnly(), pointing_to("L2-mine"), Expectation("L1"))

    assert (refused.value.reason, calls) == ("LedgerMoved", 2)
    assert ledgers(flights) == ["L2-theirs", "L1"]


@pytest.mark.parametrize(("ahead_seconds", "lands"), [(30, True), (3600, False)])
def test_a_table_that_was_changed_in_the_future_is_named(
    flights: Flights, monkeypatch: pytest.MonkeyPatch, ahead_seconds: int, lands: bool
) -> None:
    """A machine whose clock was ahead has committed. Iceberg refuses whatever is older by more than a minute."""
    with monkeypatch.context() as patch:
        patch.setattr(update, "datetime_to_millis", lambda moment: int((moment.timestamp() + ahead_seconds) * 1000))
        with flights.lake.catalog.load_table(flights.name).transaction() as transaction:
            transaction.set_properties(by="a clock that was ahead")
    table = flights.handle()

    if lands:
        commit(table, LedgerOnly(), pointing_to("L1"), Expectation(None))
        assert ledgers(flights) == ["L1"]
        return
    with pytest.raises(TransientError, match=r"the clock of this machine shows 20\d\d-.*correct the one") as refused:
        commit(table, LedgerOnly(), pointing_to("L1"), Expectation(None))

    assert refused.value.reason == "ClockBehindTable"
    assert ledgers(flights) == []


def test_a_property_lands_with_the_ledger_or_not_at_all(flights: Flights) -> None:
    commit(flights.table, LedgerOnly(), pointing_to("L1"), Expectation(None), {"claimed-by": "first"})

    with pytest.raises(ConflictError):
        commit(flights.table, LedgerOnly(), pointing_to("L2"), Expectation("L0"), {"claimed-by": "second"})

    assert flights.handle().properties["claimed-by"] == "first"
    assert ledgers(flights) == ["L1"]


def test_a_rewrite_replaces_the_files_it_read(flights: Flights) -> None:
    head = commit(flights.table, Append(flights.written("A", "B")), pointing_to("L1"), Expectation(None))
    paths = [f.path for f in flights.written_files(head)]

    with scan_files(flights.table, paths, head) as scanned:
        survivors = write_uncommitted(flights.table, scanned.frame.where("batch_id <> 'A'"), "run-2")
        commit(flights.table, RewriteFiles(scanned.files, survivors, head), pointing_to("L2"), Expectation("L1"))

    assert flights.rows_per_batch() == {"B": 10}
    assert flights.operation() == "replace"


def test_a_rewrite_of_files_that_are_gone_is_a_data_conflict(flights: Flights) -> None:
    head = commit(flights.table, Append(flights.written("A", "B")), pointing_to("L1"), Expectation(None))
    mine = flights.handle()
    files = find_files(mine, [f.path for f in flights.written_files(head)], head)
    commit(flights.table, DeleteFiles(files[:1]), pointing_to("L2"), Expectation("L1"))

    with pytest.raises(ConflictError) as refused:
        commit(mine, RewriteFiles(files, (), head), pointing_to("L3"), Expectation("L2"))

    assert refused.value.reason == "DataMoved"
    assert ledgers(flights) == ["L2", "L1"]


def test_deleting_a_file_that_is_already_gone_is_a_data_conflict(flights: Flights) -> None:
    """Without Iceberg's `validateFilesExist` it would land as a success."""
    head = commit(flights.table, Append(flights.written("A")), pointing_to("L1"), Expectation(None))
    files = find_files(flights.table, [f.path for f in flights.written_files(head)], head)
    commit(flights.table, DeleteFiles(files), pointing_to("L2"), Expectation("L1"))

    with pytest.raises(ConflictError) as refused:
        commit(flights.table, DeleteFiles(files), pointing_to("L3"), Expectation("L2"))

    assert refused.value.reason == "DataMoved"


def test_a_catalog_that_fails_in_the_middle_leaves_the_state_unknown(flights: Flights) -> None:
    """SQLite refuses every write while another connection holds its lock."""
    commit(flights.table, LedgerOnly(), pointing_to("L1"), Expectation(None))

    with flights.lake.locked_catalog(), pytest.raises(UnknownCommitState, match="CommitStateUnknown"):
        commit(flights.table, LedgerOnly(), pointing_to("L2"), Expectation("L1"))

    assert ledgers(flights) == ["L1"]


def test_a_defect_in_the_check_is_raised_as_itself_and_nothing_lands(
    flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> str | None:
        raise ZeroDivisionError

    monkeypatch.setattr(ancestry, "objection", broken)
    with pytest.raises(ZeroDivisionError):
        commit(flights.table, LedgerOnly(), pointing_to("L1"), Expectation(None))

    assert ledgers(flights) == []


def test_preparing_a_table_twice_changes_it_once(make_flights: Callable[..., Flights]) -> None:
    flights = make_flights(partition_by=())
    before = flights.table.metadata_location

    assert not flights.table.ensure_layout("batch_id")
    assert flights.table.ensure_layout("batch_id", {names.CLAIM: "air/other"})

    known = flights.table.properties
    assert (
        known[names.METRICS_MODE.format(column="batch_id")],
        known[names.DISTRIBUTION_MODE],
        known[names.CLAIM],
    ) == ("full", "range", "air/other")
    assert before != flights.table.metadata_location


def test_an_unreachable_catalog_is_distinguished_from_a_failure_of_spark(flights: Flights) -> None:
    java: Any = flights.spark.sparkContext._jvm
    with pytest.raises(JvmError) as away:
        java.java.sql.DriverManager.getConnection("jdbc:postgresql://127.0.0.1:9/ice")
    with pytest.raises(JvmError) as failing:
        java.java.lang.Integer.parseInt("x")

    assert (is_away(away.value), is_away(failing.value)) == (True, False)


def ledgers(flights: Flights) -> list[str | None]:
    """The ledger of each snapshot from the head down, read with PyIceberg."""
    table = flights.lake.catalog.load_table(flights.name)
    found, snapshot = [], table.current_snapshot()
    while snapshot is not None:
        found.append(snapshot.summary[names.LEDGER] if names.LEDGER in snapshot.summary.additional_properties else None)
        snapshot = table.snapshot_by_id(snapshot.parent_snapshot_id) if snapshot.parent_snapshot_id else None
    return found


def test_a_base_is_read_again_only_when_the_table_has_moved(flights: Flights) -> None:
    flights.commit("A", files=flights.written("A"))
    with flights.context() as context:
        seen = observe_base(context, flights.table)
        again = observe_base(context, flights.table, seen)
        flights.append_as_foreign_writer("B")
        moved = observe_base(context, flights.table, seen)

    assert again is seen
    assert moved.facts.head_id not in (None, seen.facts.head_id)


# --- files -----------------------------------------------------------------------------------------------------------
# Files written, staged, published, expired: what exists on disk and who can see it.


def local(uri: str) -> Path:
    return Path("/" + uri.removeprefix("file:").lstrip("/"))


def parquet_files(flights: Flights) -> set[Path]:
    return set(local(flights.table.location).rglob("*.parquet"))


def test_files_are_sorted_by_batch_within_their_partition_with_exact_bounds(flights: Flights) -> None:
    """Two ids of forty characters that differ in the last one: truncated bounds could not tell them apart."""
    first, second = "x" * 39 + "1", "x" * 39 + "2"
    head = commit(flights.table, Append(flights.written(second, first)), {names.LEDGER: "L1"}, Expectation(None))

    assert [(first, second)] * 2 == [(f.lower, f.upper) for f in flights.written_files(head)]


def test_a_staged_snapshot_is_found_again_with_its_files_and_its_summary(flights: Flights) -> None:
    files = flights.written("A")

    staged_id = stage(flights.table, files, "run-1", {names.STAGE: "file:///list.json"})

    found = find_staged(flights.handle(), "run-1")
    assert found is not None
    assert (staged_id, set(files), "file:///list.json") == (
        found.snapshot_id,
        set(found.files),
        found.summary[names.STAGE],
    )
    assert find_staged(flights.table, "run-2") is None
    assert flights.rows() == 0


def test_staged_files_are_published_by_a_commit_of_ours_after_others_have_moved_the_head(flights: Flights) -> None:
    stage(flights.table, flights.written("A"), "run-1", {names.STAGE: "file:///list.json"})
    commit(flights.table, LedgerOnly(), {names.LEDGER: "L1"}, Expectation(None))
    found = find_staged(flights.handle(), "run-1")
    assert found is not None

    published = commit(
        flights.table, Append(found.files), {names.LEDGER: "L2", names.PUBLISHED_WAP_ID: "run-1"}, Expectation("L1")
    )

    assert published == flights.handle().head_id
    assert flights.rows() == 10


def test_expiry_takes_the_named_snapshots_and_the_files_that_only_they_reached(flights: Flights) -> None:
    """A staged snapshot, whose files were published since, takes none of them along."""
    table = flights.table
    staged = stage(table, flights.written("A"), "run-1", {names.STAGE: "file:///list-1.json"})
    found = find_staged(table, "run-1")
    assert found is not None
    published = commit(table, Append(found.files), {names.LEDGER: "L1"}, Expectation(None))
    abandoned = stage(table, flights.written("B", run_id="run-2"), "run-2", {names.STAGE: "file:///list-2.json"})
    gone = find_files(table, [f.path for f in flights.written_files(published)][:1], published)
    head = commit(table, DeleteFiles(gone), {names.LEDGER: "L2"}, Expectation("L1"))
    assert len(parquet_files(flights)) == 4

    assert expire(table, {staged, abandoned, 12345}) == 2
    assert {local(f.path) for f in found.files} == parquet_files(flights)

    assert expire(table, {published}) == 1
    assert {local(f.path) for f in found.files} - {local(f.path) for f in gone} == parquet_files(flights)
    assert {head} == {s.snapshot_id for s in flights.lake.catalog.load_table(flights.name).metadata.snapshots}
    assert flights.rows() == 5


def test_files_are_removed_only_below_the_table(flights: Flights) -> None:
    files = flights.written("A")

    with pytest.raises(InputError, match="OutsideTable"):
        remove_files(flights.table, [files[0].path, "file:///etc/passwd"])
    assert len(parquet_files(flights)) == 2

    assert remove_files(flights.table, [f.path for f in files]) == 2
    assert set() == parquet_files(flights)
