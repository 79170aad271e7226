"""A ledger is written beside its table, in chunks, and read from nowhere else, no more of it than is asked for."""

import itertools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe import ledger_chunks, ledger_store
from lethe.base.errors import LedgerError
from lethe.iceberg.facts import TableFacts
from lethe.ledger import format
from lethe.ledger.format import ENTRIES_PER_BLOCK, Index
from lethe.ledger.ledger import EMPTY, BatchState, Delta, Ledger, Ranges, apply, counted, get_many
from lethe.ledger.lineage import Resolution, WrittenLedger
from lethe.ledger.overlay import Thresholds
from lethe.ledger.tombstone import Erasure, PurgedFile, Tombstone
from lethe.ledger_chunks import entries_since
from lethe.ledger_store import Loaded, load, write
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

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
    ago,
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


def test_open_erasures_are_kept_until_they_are_closed(ledgers: Table) -> None:
    """A commit that has nothing to do with them hands them on."""
    one, other = Erasure("ns/one/0", 7, NOW), Erasure("ns/other/0", 8, NOW)
    steps = [
        (Delta("r1", set_erasures=(one, other)), (one, other)),
        (Delta("r2", set_batches=(a_batch("A"),)), (one, other)),
        (Delta("r3", close_erasures=frozenset({"ns/one/0"})), (other,)),
        (Delta("r4", close_erasures=frozenset({"ns/other/0"})), ()),
    ]

    for delta, expected in steps:
        ledgers.commit(delta)
        assert ledgers.read().erasures == expected


def test_purged_files_are_kept_until_they_are_forgotten_and_written_only_when_they_change(ledgers: Table) -> None:
    one, other = (PurgedFile(p, 9, "data", ("ns/one/0",)) for p in ("f", "g"))
    steps = [
        (Delta("r1", set_purged_files=(one, other)), {"f": one, "g": other}),
        (Delta("r2", set_batches=(a_batch("A"),)), {"f": one, "g": other}),
        (Delta("r3", forget_purged_files=frozenset({"f"})), {"g": other}),
    ]

    for delta, expected in steps:
        ledgers.commit(delta)
        assert dict(ledgers.read().purged_files) == expected
    assert len([name for name in files(ledgers.facts) if "purged-files" in name]) == 2


def test_the_snapshot_of_an_entry_is_still_known_many_commits_later(ledgers: Table) -> None:
    """Its commit could not write it, and the next one rewrites no entry for it."""
    for delta in (as_delta(a_full_ledger()), Delta("r2", set_batches=(a_batch("C", run="r2"),)), Delta("r3")):
        ledgers.commit(delta)

    ledger = ledgers.read()

    assert {i: b.snapshot_id for i, b in ledger.batches.items()} == {"A": 1, "B": 9, "C": 2}
    assert {k: r.result["snapshotId"] for k, r in ledger.requests.items()} == {"k": 1, "j": 9}


def tombstones_in(table: TableFacts, path: str | None) -> list[Tombstone]:
    assert path is not None
    return format.TOMBSTONES.decode(files(table)[path.rpartition("/")[2]])


def test_an_empty_or_emptied_ledger_is_an_empty_tombstone_file_and_a_root(table: TableFacts) -> None:
    """Absent, a reader would walk on to the tombstones of an older snapshot. That of a vacuum is empty, too."""
    written = write(IO, table, NOTHING, Delta(RUN), vacuumed=[])

    assert {n.rpartition("-")[2] for n in files(table)} == {"tombstones.avro", "vacuumed.avro", "root.json"}
    assert tombstones_in(table, written.tombstones) == tombstones_in(table, written.vacuumed) == []
    assert load(IO, carried(table, written)).ledger.tombstones == {}

    full = put(table, a_full_ledger())
    emptied = write(IO, table, load(IO, carried(table, full)), Delta("r2", remove_tombstones=frozenset({(7, "A")})))

    assert full.vacuumed is None
    assert tombstones_in(table, emptied.tombstones) == []
    assert (emptied.deleted, emptied.total) == (1, 0)


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

    for content in (whole[: len(whole) // 2], b"", b"garbage", None):
        path.write_bytes(content) if content is not None else path.unlink()
        with pytest.raises(LedgerError, match=path.name) as refused:
            everything(table)
        assert refused.value.reason == ("LedgerMissing" if content is None else "LedgerUnreadable")


def test_a_part_with_fewer_entries_than_its_root_records_is_refused(table: TableFacts) -> None:
    table, path = damaged(table, put(table, a_full_ledger()), "tombstones.avro")
    fewer = format.TOMBSTONES.encode([]).content
    root = next(path.parent.glob("*-root.json"))
    root.write_text(root.read_text().replace(f'"bytes": {path.stat().st_size}', f'"bytes": {len(fewer)}'))
    path.write_bytes(fewer)

    with pytest.raises(LedgerError, match="holds 0 entries; its root says 1"):
        everything(table)


def test_java_and_python_spellings_of_a_local_path_are_one_place(table: TableFacts) -> None:
    written = put(table, a_full_ledger())
    javas = carried(replace(table, location=table.location.replace("file://", "file:")), written)

    assert load(IO, javas).ledger.ids(7) == {"A"}


KEYS = [f"{c}{n}" for c in "abc" for n in range(8)]
keys = st.sampled_from(KEYS)
deltas = st.builds(
    lambda add, remove, batches, forget, requests, age: Delta(
        RUN,
        tuple(a_tombstone(i, added_on=ago(hours=age)) for i in add),
        frozenset((7, i) for i in remove),
        tuple(a_batch(i, s) for i, s in batches.items()),
        tuple(a_request_entry(i) for i in requests),
        frozenset(forget - batches.keys()),
    ),
    st.sets(keys, max_size=6),
    st.sets(keys, max_size=6),
    st.dictionaries(keys, st.sampled_from(BatchState), max_size=6),
    st.sets(keys, max_size=3),
    st.sets(keys, max_size=3),
    st.integers(0, 100),
)


class Table:
    """A ledgers of ledgers only: each commit is a snapshot that points to one."""

    def __init__(self, folder: Path) -> None:
        self.facts = TableFacts("air.flights", "uuid-1", f"file://{folder}", 2, None, None)
        self.loaded = Loaded(EMPTY, Resolution(None, None))

    def commit(self, delta: Delta) -> int:
        number = len(self.facts.snapshots) + 1
        written = write(IO, self.facts, self.loaded, delta)
        history = a_history(*self.facts.snapshots.values(), a_snapshot(number, number - 1, ledger=written.root))
        self.facts = replace(self.facts, snapshots=history, head_id=number)
        self.loaded = load(IO, self.facts)
        return number

    def read(self) -> Ledger:
        return load(IO, self.facts).ledger

    def bytes(self) -> int:
        folder = Path(self.facts.location.removeprefix("file://")) / "_tombstones"
        return sum(p.stat().st_size for p in folder.iterdir())


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_store, "THRESHOLDS", Thresholds(floor=2, cap=8))


@pytest.fixture
def ledgers(tmp_path: Path) -> Table:
    return Table(tmp_path)


@pytest.mark.usefixtures("small_chunks")
def test_any_sequence_of_changes_reads_as_it_would_in_memory(tmp_path_factory: pytest.TempPathFactory) -> None:
    @given(st.lists(deltas, min_size=1, max_size=12), st.lists(keys, max_size=4), st.tuples(keys, keys))
    def check(made: list[Delta], asked: list[str], interval: tuple[str, str]) -> None:
        ledgers, memory = Table(tmp_path_factory.mktemp("t")), EMPTY
        for delta in made:
            number = ledgers.commit(delta)
            memory = settled(apply(memory, delta), number)
        one = ledgers.read()
        assert {k: one.batches.get(k) for k in asked} == {k: memory.batches.get(k) for k in asked}
        assert get_many(one.tombstones, [(7, k) for k in asked]) == get_many(memory.tombstones, [(7, k) for k in asked])
        within = ledgers.read().tombstones_within(7, [interval])
        assert {t.id for t in within} == {i for i in memory.ids(7) if i in Ranges([interval])}
        whole = ledgers.read()
        assert whole.statistics == counted(memory) == counted(whole)
        assert {k: b.state for k, b in whole.batches.items()} == {k: b.state for k, b in memory.batches.items()}
        assert dict(whole.tombstones) == dict(memory.tombstones)
        assert set(whole.requests) == set(memory.requests)

    check()


@pytest.mark.usefixtures("small_chunks")
def test_keys_that_another_ledger_lacks_are_found_in_the_chunks_that_it_lacks(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Of a later or an earlier ledger, and of one with another history."""
    some = st.lists(deltas, max_size=6)

    @given(some, some, some)
    def check(common: list[Delta], one: list[Delta], other: list[Delta]) -> None:
        ledgers = Table(tmp_path_factory.mktemp("t"))
        found = [EMPTY]

        def commit_all(made: list[Delta]) -> None:
            for delta in made:
                ledgers.commit(delta)
                found.append(ledgers.read())

        commit_all(common)
        forked = ledgers.loaded
        commit_all(one)
        ledgers.loaded = forked
        commit_all(other)
        for before, after in itertools.product(found, found):
            absent = [k for k in KEYS if k not in before.batches]
            assert entries_since(before.batches, after.batches, absent) == get_many(after.batches, absent)

    check()


def test_keys_that_the_ledger_before_lacks_are_not_searched_in_its_chunks(
    ledgers: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers.commit(many(0, MANY))
    before = ledgers.read().batches
    ledgers.commit(many(MANY, 2000))
    asked = [t.id for t in many(MANY, 3000).add_tombstones]
    searched: list[int] = []
    find = ledger_chunks.ChunkReader.find
    monkeypatch.setattr(
        ledger_chunks.ChunkReader, "find", lambda self, keys: searched.append(self.chunk.records) or find(self, keys)
    )

    assert len(entries_since(before, ledgers.read().batches, asked)) == 2000
    assert searched == [2000]


def many(start: int, n: int) -> Delta:
    ids = [f"id-{(i * 7919) % 1_000_003:07d}" for i in range(start, start + n)]
    return Delta(
        RUN, tuple(a_tombstone(i) for i in ids), set_batches=tuple(a_batch(i, BatchState.REVERTED) for i in ids)
    )


MANY = 6000


def test_a_commit_that_adds_a_few_to_many_writes_only_a_few(ledgers: Table) -> None:
    ledgers.commit(many(0, MANY))
    whole = ledgers.bytes()

    ledgers.commit(many(MANY, 30))

    assert ledgers.bytes() - whole < whole / 40
    assert len(ledgers.read().tombstones) == MANY + 30


class Counting:
    """What is read of which file, in bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.decoded = 0
        original = ledger_chunks.ChunkReader._decoded

        def counting(reader: Any, decode: Any) -> Any:
            found = original(reader, decode)
            self.decoded += len(found)
            return found

        monkeypatch.setattr(ledger_chunks.ChunkReader, "_decoded", counting)


def test_looking_up_a_few_keys_among_many_decodes_a_few_blocks(ledgers: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    ledgers.commit(many(0, MANY))
    counting = Counting(monkeypatch)
    ledger = ledgers.read()
    known = [b.id for b in random.Random(1).sample(many(0, MANY).set_batches, 5)]

    found = get_many(ledger.batches, [*known, *(f"missing-{n}" for n in range(50))])

    assert set(found) == set(known)
    assert counting.decoded <= 5 * ENTRIES_PER_BLOCK
    assert "nobody" not in ledger.requests


def test_a_range_of_ids_decodes_only_the_blocks_it_reaches_into(
    ledgers: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers.commit(many(0, MANY))
    counting = Counting(monkeypatch)

    found = ledgers.read().tombstones_within(7, [("id-0500000", "id-0503000")])

    assert len(found) > 10
    assert all("id-0500000" <= t.id <= "id-0503000" for t in found)
    assert counting.decoded <= 4 * ENTRIES_PER_BLOCK


def test_a_damaged_table_of_blocks_is_only_met_by_who_needs_it_and_then_named(
    ledgers: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(_: Index) -> None:
        raise ValueError

    monkeypatch.setattr(Index, "_starts", property(damaged))
    ledgers.commit(many(0, 5000))

    assert get_many(ledgers.read().batches, [f"id-{n:07d}x" for n in range(50)]) == {}
    with pytest.raises(LedgerError, match=r"LedgerUnreadable: .*-batches\.avro is not a readable .*ValueError"):
        ledgers.read().batches.get("id-0007919")


def test_near_blocks_of_a_large_chunk_are_read_at_once(ledgers: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a listing asks for them, whose order is that of the ids, while some of the batches have left the buffer."""
    monkeypatch.setattr(ledger_chunks, "WHOLE_UP_TO_BYTES", 1000)
    monkeypatch.setattr(ledger_chunks, "NEAR_BYTES", 8 * 1024)
    monkeypatch.setattr(ledger_chunks, "AT_ONCE_BYTES", 40 * 1024)
    ledgers.commit(many(0, 5000))
    spans: list[int] = []
    read = ledger_chunks.ChunkReader._range
    monkeypatch.setattr(
        ledger_chunks.ChunkReader,
        "_range",
        lambda self, start, end: spans.append(end - start) or read(self, start, end),
    )
    ids = sorted(t.id for t in many(0, 5000).add_tombstones)

    def reads_of(asked: list[str]) -> int:
        batches = ledgers.read().batches
        spans.clear()
        assert set(get_many(batches, asked)) == set(asked)
        return len(spans) - 1  # the first is its header

    assert reads_of(ids[1000:1500]) == 1
    assert reads_of(ids[1000:1500:50]) == 1
    assert reads_of([ids[0], ids[4000]]) == 2
    assert 1 < reads_of(ids[::50]) < 20
    assert max(spans[1:]) <= ledger_chunks.AT_ONCE_BYTES


def test_chunks_with_a_total_that_differs_from_the_root_are_refused(ledgers: Table) -> None:
    ledgers.commit(many(0, 10))
    folder = Path(ledgers.facts.location.removeprefix("file://")) / "_tombstones"
    (root,) = folder.glob("*-root.json")
    root.write_text(root.read_text().replace('"tombstones": 10', '"tombstones": 9'))

    with pytest.raises(LedgerError, match="hold 10 tombstones; its root says 9"):
        ledgers.read().ids(7)
