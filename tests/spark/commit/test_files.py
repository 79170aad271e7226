"""Files written, staged, published, expired: what exists on disk and who can see it."""

from pathlib import Path

import pytest
from lethe.base import names
from lethe.base.errors import ConflictError, InputError
from lethe_spark.jvm.commit import Append, DeleteFiles, Expectation, LedgerOnly, commit, find_staged, stage
from lethe_spark.jvm.metadata import expire, remove_files
from lethe_spark.jvm.scan_tasks import scan_files
from lethe_spark.jvm.table import run_folder

from tests.spark.support.flights import Flights, find_files


def local(uri: str) -> Path:
    return Path("/" + uri.removeprefix("file:").lstrip("/"))


def parquet_files(flights: Flights) -> set[Path]:
    return set(local(flights.table.location).rglob("*.parquet"))


@pytest.mark.long
def test_written_files_are_in_the_folder_of_their_run_and_not_visible_to_readers(flights: Flights) -> None:
    """Verification of an erasure lists what a run wrote, committed or not."""
    files = flights.written("A", run_id="run-7")

    folder = local(run_folder(flights.table, "run-7"))
    assert {local(f.path) for f in files} == parquet_files(flights) == set(folder.rglob("*.parquet"))
    assert sum(f.records for f in files) == 10
    assert [f.bytes for f in files] == [local(f.path).stat().st_size for f in files]
    assert flights.rows() == 0
    assert "write.data.path" not in flights.handle().properties


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


@pytest.mark.long
def test_expiry_leaves_old_snapshots_alone_that_were_not_named(flights: Flights) -> None:
    """Iceberg's own default would take everything above `history.expire.max-snapshot-age-ms`."""
    flights.table.ensure_layout("batch_id", {"history.expire.max-snapshot-age-ms": "1"})
    ids = [commit(flights.table, LedgerOnly(), {names.LEDGER: "L1"}, Expectation(None))]
    for n in (2, 3):
        ids.append(commit(flights.table, LedgerOnly(), {names.LEDGER: f"L{n}"}, Expectation(f"L{n - 1}")))

    expire(flights.table, ids[:1])

    assert set(ids[1:]) == {s.snapshot_id for s in flights.lake.catalog.load_table(flights.name).metadata.snapshots}


@pytest.mark.long
def test_a_snapshot_that_a_tag_holds_is_not_expired(flights: Flights) -> None:
    held = commit(flights.table, LedgerOnly(), {names.LEDGER: "L1"}, Expectation(None))
    commit(flights.table, LedgerOnly(), {names.LEDGER: "L2"}, Expectation("L1"))
    flights.lake.catalog.load_table(flights.name).manage_snapshots().create_tag(held, "audit").commit()

    with pytest.raises(ConflictError, match="audit") as refused:
        expire(flights.table, {held})

    assert refused.value.reason == "SnapshotReferenced"


@pytest.mark.long
def test_a_scan_of_named_files_reads_those_and_no_other(flights: Flights) -> None:
    commit(flights.table, Append(flights.written("A")), {names.LEDGER: "L1"}, Expectation(None))
    head = commit(flights.table, Append(flights.written("B")), {names.LEDGER: "L2"}, Expectation("L1"))
    path = next(f.path for f in flights.written_files(head) if f.lower == "B")

    with scan_files(flights.table, [path], head) as scanned:
        assert [tuple(r) for r in scanned.frame.groupBy("batch_id").count().collect()] == [("B", 5)]
        assert [path] == [f.path for f in scanned.files]

    with pytest.raises(ConflictError, match="does not hold 1 of the 1 data files") as refused:
        scan_files(flights.table, [f"{path}.other"], head)
    assert refused.value.reason == "DataMoved"


def test_files_are_removed_only_below_the_table(flights: Flights) -> None:
    files = flights.written("A")

    with pytest.raises(InputError, match="OutsideTable"):
        remove_files(flights.table, [files[0].path, "file:///etc/passwd"])
    assert len(parquet_files(flights)) == 2

    assert remove_files(flights.table, [f.path for f in files]) == 2
    assert set() == parquet_files(flights)
