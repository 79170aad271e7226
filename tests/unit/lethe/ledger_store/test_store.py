"""A ledger is written beside its table and read from nowhere else; what cannot be read is refused by name."""

from dataclasses import replace
from pathlib import Path

import pytest
from lethe.base.errors import LedgerError
from lethe.iceberg.facts import TableFacts
from lethe.ledger import format
from lethe.ledger.erasure import Erasure, PurgedFile
from lethe.ledger.ledger import EMPTY, Delta, Ledger
from lethe.ledger.lineage import Resolution, WrittenLedger
from lethe.ledger_store import Loaded, load, write
from pyiceberg.io.pyarrow import PyArrowFileIO

from tests.support.builders import (
    NOW,
    RUN,
    a_batch,
    a_carrier,
    a_history,
    a_ledger,
    a_request_entry,
    a_snapshot,
    a_tombstone,
    as_delta,
    settled,
)

IO = PyArrowFileIO()
NOTHING = Loaded(EMPTY, Resolution(None, None))


@pytest.fixture
def table(tmp_path: Path) -> TableFacts:
    return TableFacts("air.flights", "uuid-1", f"file://{tmp_path}", 2, None, None)


def carried(table: TableFacts, written: WrittenLedger, at: int = 1, **changes: object) -> TableFacts:
    """The table once snapshot `at` points to that ledger."""
    history = a_history(a_snapshot(at, ledger=written.root))
    return replace(table, snapshots=history, head_id=at, **changes)


def a_full_ledger() -> Ledger:
    return a_ledger(
        a_tombstone("A", evict_by=NOW, meta={"reason": "late"}),
        batches=[a_batch("A"), a_batch("B", snapshot_id=9)],
        requests=[a_request_entry("k"), a_request_entry("j", snapshot_id=9)],
        carriers=(a_carrier(3, 4, 5),),
        version=1,
        pending_run=RUN,
    )


def put(table: TableFacts, ledger: Ledger, base: Loaded = NOTHING) -> WrittenLedger:
    """Write what makes `ledger` of the empty one."""
    return write(IO, table, base, as_delta(ledger), ledger.carriers)


def files(table: TableFacts) -> dict[str, bytes]:
    folder = Path(table.location.removeprefix("file://")) / "_tombstones"
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_what_was_written_is_read_with_the_snapshots_id_filled_in(table: TableFacts) -> None:
    written = put(table, a_full_ledger())

    loaded = load(IO, carried(table, written))

    assert loaded.ledger == settled(a_full_ledger(), 1)
    assert loaded.ledger.batches["B"].snapshot_id == 9
    assert loaded.resolution == Resolution(written.root, 1)


def test_open_erasures_are_kept_until_they_are_closed(table: TableFacts) -> None:
    """A commit that has nothing to do with them hands them on."""
    one, other = Erasure("ns/one/0", 7, NOW), Erasure("ns/other/0", 8, NOW)
    first = carried(table, write(IO, table, NOTHING, Delta("r1", set_erasures=(one, other))))
    second = carried(table, write(IO, table, load(IO, first), Delta("r2", set_batches=(a_batch("A"),))), at=2)
    third = carried(
        table, write(IO, table, load(IO, second), Delta("r3", close_erasures=frozenset({"ns/one/0"}))), at=3
    )
    fourth = carried(
        table, write(IO, table, load(IO, third), Delta("r4", close_erasures=frozenset({"ns/other/0"}))), at=4
    )

    assert [load(IO, t).ledger.erasures for t in (first, second, third, fourth)] == [
        (one, other),
        (one, other),
        (other,),
        (),
    ]


def test_purged_files_are_kept_until_they_are_forgotten_and_read_only_when_they_are_asked_for(
    table: TableFacts,
) -> None:
    one, other = (PurgedFile(p, 9, "data", ("ns/one/0",)) for p in ("f", "g"))
    first = carried(table, write(IO, table, NOTHING, Delta("r1", set_purged_files=(one, other))))
    second = carried(table, write(IO, table, load(IO, first), Delta("r2", set_batches=(a_batch("A"),))), at=2)
    forgotten = Delta("r3", forget_purged_files=frozenset({"f"}))
    third = carried(table, write(IO, table, load(IO, second), forgotten), at=3)

    assert [dict(load(IO, t).ledger.purged_files) for t in (first, second, third)] == [
        {"f": one, "g": other},
        {"f": one, "g": other},
        {"g": other},
    ]
    assert len([name for name in files(table) if "purged-files" in name]) == 2


def test_the_snapshot_of_an_entry_is_still_known_many_commits_later(table: TableFacts) -> None:
    """Its commit could not write it, and the next one rewrites no entry for it."""
    first = carried(table, put(table, a_full_ledger()))
    second = write(IO, table, load(IO, first), Delta("r2", set_batches=(a_batch("C", run="r2"),)))
    third = write(IO, table, load(IO, carried(table, second, at=2)), Delta("r3"))

    ledger = load(IO, carried(table, third, at=3)).ledger

    assert {i: b.snapshot_id for i, b in ledger.batches.items()} == {"A": 1, "B": 9, "C": 2}
    assert {k: r.result["snapshotId"] for k, r in ledger.requests.items()} == {"k": 1, "j": 9}


def test_an_empty_ledger_is_an_empty_tombstone_file_and_a_root(table: TableFacts) -> None:
    """Absent, a reader would walk on to the tombstones of an older snapshot."""
    written = write(IO, table, NOTHING, Delta(RUN))

    assert {n.rpartition("-")[2] for n in files(table)} == {"tombstones.avro", "root.json"}
    assert format.TOMBSTONES.decode(files(table)[written.tombstones.rpartition("/")[2]]) == []
    assert load(IO, carried(table, written)).ledger.tombstones == {}


def test_an_emptied_set_of_tombstones_is_an_empty_file_too(table: TableFacts) -> None:
    base = load(IO, carried(table, put(table, a_full_ledger())))

    written = write(IO, table, base, Delta("r2", remove_tombstones=frozenset({(7, "A")})))

    assert format.TOMBSTONES.decode(files(table)[written.tombstones.rpartition("/")[2]]) == []
    assert (written.deleted, written.total) == (1, 0)


def test_the_second_file_of_a_vacuum_is_next_to_the_first_even_if_it_is_empty(table: TableFacts) -> None:
    written = write(IO, table, NOTHING, Delta(RUN), vacuumed=[])

    assert written.vacuumed is not None
    assert format.TOMBSTONES.decode(files(table)[written.vacuumed.rpartition("/")[2]]) == []
    assert put(table, a_full_ledger()).vacuumed is None


def test_parts_that_did_not_change_are_named_again_and_not_written_again(table: TableFacts) -> None:
    base = load(IO, carried(table, put(table, a_full_ledger())))
    before = files(table)

    written = write(IO, table, base, Delta("r3", set_batches=(a_batch("C"),)), base.ledger.carriers)

    new = files(table).keys() - before.keys()
    assert {n.rpartition("-")[2] for n in new} == {"batches.avro", "root.json"}
    again = load(IO, carried(table, written)).ledger
    assert again.tombstones == base.ledger.tombstones
    assert again.carriers == base.ledger.carriers
    assert set(again.batches) == {"A", "B", "C"}


def test_no_attempt_ever_writes_over_a_file_of_another(table: TableFacts) -> None:
    put(table, a_full_ledger())
    before = files(table)

    put(table, a_full_ledger())

    assert before.items() <= files(table).items()
    assert len(files(table)) == 2 * len(before)


def test_a_table_without_snapshots_has_the_empty_ledger(table: TableFacts) -> None:
    assert load(IO, table) == NOTHING


def test_an_older_snapshot_has_the_ledger_of_its_own_time(table: TableFacts) -> None:
    first = put(table, a_ledger("A", version=1))
    second = put(table, a_ledger("A", "B", version=2))
    history = a_history(
        a_snapshot(1), a_snapshot(2, 1, ledger=first.root), a_snapshot(3, 2), a_snapshot(4, 3, ledger=second.root)
    )
    table = replace(table, snapshots=history, head_id=4)

    read = {i: set(load(IO, table, i).ledger.ids(7)) for i in history}

    assert read == {1: set(), 2: {"A"}, 3: {"A"}, 4: {"A", "B"}}


def test_a_tagged_snapshot_whose_carrier_was_expired_is_found_by_the_newest_ledgers_list(table: TableFacts) -> None:
    first = put(table, a_ledger("A", version=1))
    newest = put(table, a_ledger(version=9, carriers=(a_carrier(2, 3, ledger=first.root),)))
    table = replace(table, snapshots=a_history(a_snapshot(3, 2), a_snapshot(9, 8, ledger=newest.root)), head_id=9)

    loaded = load(IO, table, 3)

    assert loaded.ledger.ids(7) == {"A"}
    assert loaded.resolution == Resolution(first.root, 2, (3,))


def test_an_adopted_table_of_years_is_read_although_its_history_is_gone(table: TableFacts) -> None:
    since = {"lethe.ledger-since": "41"}
    table = replace(table, snapshots=a_history(a_snapshot(41, 40)), head_id=41, properties=since)

    assert load(IO, table).ledger == EMPTY
    with pytest.raises(LedgerError, match="LedgerLost"):
        load(IO, replace(table, properties={}))


def damaged(table: TableFacts, written: WrittenLedger, part: str) -> tuple[TableFacts, Path]:
    folder = Path(table.location.removeprefix("file://")) / "_tombstones"
    (path,) = folder.glob(f"*-{part}")
    return carried(table, written), path


def everything(table: TableFacts) -> None:
    ledger = load(IO, table).ledger
    for part in (ledger.tombstones, ledger.batches, ledger.requests):
        list(part.items())


@pytest.mark.parametrize("part", ["tombstones.avro", "batches.avro", "requests.avro", "root.json"])
def test_a_ledger_file_that_is_missing_or_damaged_stops_the_read_and_is_named(table: TableFacts, part: str) -> None:
    """Reading on without it would show rows that are deleted."""
    table, path = damaged(table, put(table, a_full_ledger()), part)
    whole = path.read_bytes()

    for content in (whole[: len(whole) // 2], b"", b"garbage"):
        path.write_bytes(content)
        with pytest.raises(LedgerError, match=path.name) as refused:
            everything(table)
        assert refused.value.reason == "LedgerUnreadable"
    path.unlink()
    with pytest.raises(LedgerError, match=path.name) as refused:
        everything(table)
    assert refused.value.reason == "LedgerMissing"


def test_a_part_with_fewer_entries_than_its_root_records_is_refused(table: TableFacts) -> None:
    table, path = damaged(table, put(table, a_full_ledger()), "tombstones.avro")
    fewer = format.TOMBSTONES.encode([]).content
    root = next(path.parent.glob("*-root.json"))
    root.write_text(root.read_text().replace(f'"bytes": {path.stat().st_size}', f'"bytes": {len(fewer)}'))
    path.write_bytes(fewer)

    with pytest.raises(LedgerError, match="holds 0 entries; its root says 1"):
        everything(table)


def test_a_pointer_to_another_place_is_not_followed(table: TableFacts, tmp_path: Path) -> None:
    """A copied snapshot, or a summary key that somebody set by hand, must not make us read any file they like."""
    written = put(table, a_full_ledger())
    elsewhere = replace(table, location=f"file://{tmp_path}/other")

    with pytest.raises(LedgerError, match="is not in") as refused:
        load(IO, carried(elsewhere, written))

    assert refused.value.reason == "LedgerOutside"


def test_a_ledger_of_another_table_is_refused(table: TableFacts) -> None:
    written = put(table, a_full_ledger())

    with pytest.raises(LedgerError, match="uuid-2") as refused:
        load(IO, carried(table, written, uuid="uuid-2"))

    assert refused.value.reason == "LedgerOfAnotherTable"


def test_java_and_python_spellings_of_a_local_path_are_one_place(table: TableFacts) -> None:
    written = put(table, a_full_ledger())
    javas = carried(replace(table, location=table.location.replace("file://", "file:")), written)

    assert load(IO, javas).ledger.ids(7) == {"A"}
