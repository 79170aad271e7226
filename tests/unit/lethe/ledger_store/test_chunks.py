"""A ledger in many chunks says what one in memory says, whatever was merged, and reads no more than it is asked for."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe import ledger_store
from lethe import ledger_store as chunks
from lethe.base.errors import LedgerError
from lethe.iceberg.facts import TableFacts
from lethe.ledger.format import ENTRIES_PER_BLOCK, Index
from lethe.ledger.ledger import EMPTY, BatchState, Delta, Ledger, Ranges, apart, apply, counted, get_many
from lethe.ledger.lineage import Resolution
from lethe.ledger.overlay import Thresholds
from lethe.ledger_store import Loaded, load, write
from pyiceberg.io.pyarrow import PyArrowFileIO

from tests.support.builders import RUN, a_batch, a_history, a_request_entry, a_snapshot, a_tombstone, ago, settled

IO = PyArrowFileIO()
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
    """A table of ledgers only: each commit is a snapshot that points to one."""

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
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


@pytest.mark.usefixtures("small_chunks")
def test_any_sequence_of_changes_reads_as_it_would_in_memory(tmp_path_factory: pytest.TempPathFactory) -> None:
    @given(st.lists(deltas, min_size=1, max_size=12), st.lists(keys, max_size=4), st.tuples(keys, keys))
    def check(made: list[Delta], asked: list[str], interval: tuple[str, str]) -> None:
        table, memory = Table(tmp_path_factory.mktemp("t")), EMPTY
        for delta in made:
            number = table.commit(delta)
            memory = settled(apply(memory, delta), number)
        one = table.read()
        assert {k: one.batches.get(k) for k in asked} == {k: memory.batches.get(k) for k in asked}
        assert get_many(one.tombstones, [(7, k) for k in asked]) == get_many(memory.tombstones, [(7, k) for k in asked])
        within = table.read().tombstones_within(7, [interval])
        assert {t.id for t in within} == {i for i in memory.ids(7) if i in Ranges([interval])}
        whole = table.read()
        assert whole.statistics == counted(memory) == counted(whole)
        assert {k: b.state for k, b in whole.batches.items()} == {k: b.state for k, b in memory.batches.items()}
        assert dict(whole.tombstones) == dict(memory.tombstones)
        assert set(whole.requests) == set(memory.requests)

    check()


def many(start: int, n: int) -> Delta:
    ids = [f"id-{(i * 7919) % 1_000_003:07d}" for i in range(start, start + n)]
    return Delta(
        RUN, tuple(a_tombstone(i) for i in ids), set_batches=tuple(a_batch(i, BatchState.REVERTED) for i in ids)
    )


def test_a_commit_that_adds_a_few_to_many_writes_only_a_few(table: Table) -> None:
    table.commit(many(0, 20_000))
    whole = table.bytes()

    before = table.bytes()
    table.commit(many(20_000, 100))

    assert table.bytes() - before < whole / 50
    assert len(table.read().tombstones) == 20_100


class Counting:
    """What is read of which file, in bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.decoded = 0
        original = chunks.ChunkReader._decoded

        def counting(reader: Any, decode: Any) -> Any:
            found = original(reader, decode)
            self.decoded += len(found)
            return found

        monkeypatch.setattr(chunks.ChunkReader, "_decoded", counting)


def test_looking_up_a_few_keys_among_many_decodes_a_few_blocks(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.commit(many(0, 20_000))
    counting = Counting(monkeypatch)
    ledger = table.read()

    known = [f"id-{(i * 7919) % 1_000_003:07d}" for i in random.Random(1).sample(range(20_000), 5)]
    found = get_many(ledger.batches, [*known, *(f"missing-{n}" for n in range(50))])

    assert set(found) == set(known)
    assert counting.decoded <= 5 * ENTRIES_PER_BLOCK
    assert "nobody" not in ledger.requests


def test_a_range_of_ids_decodes_only_the_blocks_it_reaches_into(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.commit(many(0, 20_000))
    counting = Counting(monkeypatch)

    found = table.read().tombstones_within(7, [("id-0500000", "id-0502000")])

    assert len(found) > 10
    assert all("id-0500000" <= t.id <= "id-0502000" for t in found)
    assert counting.decoded <= 3 * ENTRIES_PER_BLOCK


def test_a_damaged_table_of_blocks_is_only_met_by_who_needs_it_and_then_named(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(_: Index) -> None:
        raise ValueError

    monkeypatch.setattr(Index, "_starts", property(damaged))
    table.commit(many(0, 5000))

    assert get_many(table.read().batches, [f"id-{n:07d}x" for n in range(50)]) == {}
    with pytest.raises(LedgerError, match=r"LedgerUnreadable: .*-batches\.avro is not a readable .*ValueError"):
        table.read().batches.get("id-0007919")


def test_a_large_chunk_is_read_by_ranges(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "WHOLE_UP_TO_BYTES", 1000)
    table.commit(many(0, 5000))

    assert table.read().batches["id-0007919"].id == "id-0007919"
    assert "nobody" not in table.read().batches


def test_neighbouring_blocks_of_a_large_chunk_are_read_at_once(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a listing asks for them, whose order is that of the ids: one request for a piece, not one for each block."""
    monkeypatch.setattr(chunks, "WHOLE_UP_TO_BYTES", 1000)
    table.commit(many(0, 5000))
    spans: list[int] = []
    read = chunks.ChunkReader._range
    monkeypatch.setattr(
        chunks.ChunkReader, "_range", lambda self, start, end: spans.append(end - start) or read(self, start, end)
    )
    ids = sorted(t.id for t in many(0, 5000).add_tombstones)
    batches = table.read().batches

    assert set(get_many(batches, ids[1000:1500])) == set(ids[1000:1500])
    assert set(get_many(batches, [ids[0], ids[4000]])) == {ids[0], ids[4000]}
    assert len(spans) == 1 + 1 + 2  # its header, a run of blocks, two blocks


def test_an_uncached_part_gives_the_same_answers_and_keeps_none(table: Table) -> None:
    """Another thread asks it for more keys than memory should hold."""
    table.commit(many(0, 100))
    table.commit(Delta(RUN, forget_batches=frozenset({"id-0000000"})))
    part = table.read().batches
    wanted = [b.id for b in many(0, 100).set_batches]

    found = apart(part)

    assert isinstance(found, chunks.ChunkedPart)
    assert isinstance(part, chunks.ChunkedPart)
    assert get_many(found, wanted) == get_many(part, wanted)
    assert (len(found), len(found._known), len(part._known)) == (99, 0, 100)
    assert not {id(c) for c in found.chunks} & {id(c) for c in part.chunks}


def test_chunks_with_a_total_that_differs_from_the_root_are_refused(table: Table) -> None:
    table.commit(many(0, 10))
    folder = Path(table.facts.location.removeprefix("file://")) / "_tombstones"
    (root,) = folder.glob("*-root.json")
    root.write_text(root.read_text().replace('"tombstones": 10', '"tombstones": 9'))

    with pytest.raises(LedgerError, match="hold 10 tombstones; its root says 9"):
        table.read().ids(7)
