"""Indexes of real tables of batches: what they say, and what they read."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.batches_table import REQUESTED, read_rows
from lethe.buffer.batch_rows import STATES, BatchRow
from lethe.contract.result import ErasureOutcome
from lethe.ledger.ledger import BatchState
from lethe_gateway.problems import Kind, Problem
from lethe_gateway.tables import looking, reading
from lethe_gateway.tables.looking import SeenTable, bring_up_to_date, look
from lethe_gateway.tables.records import BatchPosition, BatchQuery, TableTarget, micros
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from tests.support.builders import NOW, a_batch, a_request_entry, ago
from tests.support.gateway_lake import fill, flights_table
from tests.support.tables import commit, commit_delta, revert, undo, vacuum
from tests.support.tracked import BATCHES, update

TARGET = TableTarget("lite", "air.flights", "default/flights", "batch_id")


class Index:
    """An index that follows a table."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self.path: Path | None = None
        self.opened: list[str] = []  # the files that the last refresh read

    def refresh(self) -> None:
        seen = look(TARGET)
        self.opened.clear()
        self._count += 1
        self.path = bring_up_to_date(
            self.path, self._folder / f"{self._count}.db", _noting(seen, self.opened), lambda _: None
        )

    def all(self) -> list[BatchRow]:
        with self.reader() as connection:
            return reading.batches(connection, BatchQuery(), 10_000)

    @contextmanager
    def reader(self) -> Iterator[Any]:
        assert self.path is not None
        with reading.opened(self.path) as connection:
            yield connection


class NotingIO:
    def __init__(self, io: Any, opened: list[str]) -> None:
        self._io, self._opened = io, opened

    def new_input(self, location: str) -> Any:
        self._opened.append(location)
        return self._io.new_input(location)


def _noting(seen: SeenTable, opened: list[str]) -> SeenTable:
    batches = seen.batches
    batches.io = NotingIO(batches.io, opened)  # type: ignore[assignment]
    return replace(seen, batches=batches, io=NotingIO(seen.io, opened))  # type: ignore[arg-type]


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path)


@pytest.fixture
def table(catalog: Catalog) -> Table:
    return flights_table(catalog)


def shown(catalog: Catalog) -> list[BatchRow]:
    """The rows of the table of batches, in the order of pages, without what the index has in its requests."""
    rows = [replace(r, **dict.fromkeys(REQUESTED)) for r in read_rows(catalog.load_table(BATCHES))]
    return sorted(rows, key=lambda r: (r.state_time, r.batch_id.encode()), reverse=True)


def test_an_index_says_what_the_table_of_batches_says(catalog: Catalog, table: Table, index: Index) -> None:
    fill(catalog, table)

    index.refresh()

    assert index.all() == shown(catalog)


def test_a_refresh_reads_only_new_files(catalog: Catalog, table: Table, index: Index) -> None:
    commit(table, *(a_batch(f"b{n:03d}", time=ago(minutes=n)) for n in range(300)))
    update(catalog)
    index.refresh()
    first = index.path
    before = {f for f in index.opened if f.endswith(".parquet")}
    commit(table, a_batch("b007", BatchState.REVERTED, time=NOW + timedelta(1)), a_batch("new"), forget=["b008"])
    update(catalog)

    index.refresh()

    assert index.path == first
    assert index.all() == shown(catalog)
    assert not before & set(index.opened)


def test_a_refresh_of_an_unchanged_table_reads_no_file(catalog: Catalog, table: Table, index: Index) -> None:
    fill(catalog, table)
    index.refresh()

    index.refresh()

    assert index.opened == []


def test_a_commit_that_the_table_of_batches_does_not_show_yet_changes_only_the_ledger_part(
    catalog: Catalog, table: Table, index: Index
) -> None:
    fill(catalog, table)
    index.refresh()
    table.refresh()
    revert(table, "A")

    index.refresh()

    assert not [f for f in index.opened if f.endswith(".parquet")]
    with index.reader() as connection:
        found, state = reading.batch(connection, "A"), reading.state_of(connection)
    assert found is not None
    assert found.tombstone is not None
    assert state is not None
    assert state.head_ledger_version == state.ledger_version + 1


def test_tombstones_follow_merges_of_chunks_and_removals(catalog: Catalog, table: Table, index: Index) -> None:
    """Whatever the ledger did with its chunks, the index has the active tombstones."""
    commit(table, *(a_batch(f"b{n}") for n in range(30)))
    update(catalog)

    def active() -> set[str]:
        index.refresh()
        with index.reader() as connection:
            return {id for (id,) in connection.execute("SELECT id FROM tombstones")}

    for n in range(30):
        revert(table, f"b{n}")
        if n % 4 == 0:
            assert active() == {f"b{i}" for i in range(n + 1)}
    undo(table, "b3", "b4")
    assert active() == {f"b{i}" for i in range(30)} - {"b3", "b4"}
    vacuum(table, *(f"b{i}" for i in range(5, 30)))
    assert active() == {"b0", "b1", "b2"}


def test_what_expired_from_the_table_is_forgotten(catalog: Catalog, table: Table, index: Index) -> None:
    """So two indexes of one table say the same, however old they are."""
    fill(catalog, table)
    index.refresh()
    old = [s.snapshot_id for s in table.refresh().snapshots()][:-1]
    table.maintenance.expire_snapshots().by_ids(old).commit()

    index.refresh()
    young = Index(index.path.parent / "young" if index.path else Path())
    young._folder.mkdir()
    young.refresh()

    with index.reader() as one, young.reader() as other:
        found = [reading.batch(c, "B") for c in (one, other)]
    assert found[0] == found[1]
    assert found[0] is not None
    assert (found[0].purge, found[0].promoted_time) == (None, None)


def test_an_index_of_another_version_is_built_again(
    catalog: Catalog, table: Table, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(catalog, table)
    index.refresh()
    first = index.path
    for module in (reading, reading):
        monkeypatch.setattr(module, "VERSION", 99)

    index.refresh()

    assert index.path != first
    assert index.all() == shown(catalog)


def test_with_many_new_rows_the_index_is_built_again(
    catalog: Catalog, table: Table, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(catalog, table)
    index.refresh()
    first = index.path
    monkeypatch.setattr(looking, "REBUILD_ROWS", 2)
    commit(table, *(a_batch(f"b{n}") for n in range(5)))
    update(catalog)

    index.refresh()

    assert index.path != first
    assert index.all() == shown(catalog)


def test_a_refresh_that_fails_leaves_the_index_as_it_was(
    catalog: Catalog, table: Table, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(catalog, table)
    index.refresh()
    before = index.all()
    commit(table, a_batch("new"))
    update(catalog)

    def fail(*_: Any) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as context:
        context.setattr(reading, "sync_ledger", fail)
        with pytest.raises(OSError, match="the disk is full"):
            index.refresh()
    assert index.all() == before
    index.refresh()
    assert index.all() == shown(catalog)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda c: c.drop_table("air.flights"), Kind.NO_TABLE),
        (lambda c: c.drop_table(BATCHES), Kind.NOT_TRACKED),
        (lambda c: _set(c, "lethe.dataset", "other/flights"), Kind.NO_TABLE),
    ],
)
def test_a_table_that_may_not_be_shown_is_a_problem(catalog: Catalog, table: Table, change: Any, kind: Kind) -> None:
    fill(catalog, table)
    change(catalog)

    with pytest.raises(Exception) as e:
        look(TARGET)

    from lethe_gateway.tables.looking import problem_of

    assert problem_of(e.value, TARGET).kind is kind


def test_the_batches_of_an_earlier_table_of_the_name_are_not_shown(catalog: Catalog, table: Table) -> None:
    fill(catalog, table)
    catalog.drop_table("air.flights")
    flights_table(catalog)

    with pytest.raises(Problem) as e:
        look(TARGET)

    assert e.value.kind is Kind.NOT_TRACKED


def _set(catalog: Catalog, key: str, value: str) -> None:
    with catalog.load_table("air.flights").transaction() as transaction:
        transaction.set_properties({key: value})


# --- queries, against a list in memory --------------------------------------------------------------------------------

IDS = st.text(st.sampled_from("ab\u00e9\ud7ff\ue000\U0010ffff"), min_size=1, max_size=4)
KEYS = st.sampled_from([None, "ns/r/1", "ns/r/2", "ns/r2/1", "other/r/1"])
TIMES = st.integers(0, 5).map(lambda n: NOW + timedelta(microseconds=n))
ROWS = st.builds(BatchRow, IDS, st.sampled_from(STATES), TIMES, rows=st.integers(0, 3), restatement=KEYS)
QUERIES = st.builds(
    BatchQuery,
    states=st.lists(st.sampled_from(STATES), max_size=2).map(tuple),
    since=st.none() | TIMES,
    until=st.none() | TIMES,
    id_prefix=st.just("") | IDS,
    restatement=st.sampled_from(["", "", "ns/r", "ns/r2", "ns/absent"]),
)


def expected(rows: list[BatchRow], query: BatchQuery) -> list[BatchRow]:
    def chosen(r: BatchRow) -> bool:
        return (
            (not query.states or r.state in query.states)
            and (query.since is None or r.state_time >= query.since)
            and (query.until is None or r.state_time < query.until)
            and r.batch_id.startswith(query.id_prefix)
            and (not query.restatement or (r.restatement or "").rpartition("/")[0] == query.restatement)
        )

    return sorted(filter(chosen, rows), key=lambda r: (r.state_time, r.batch_id.encode()), reverse=True)


@given(
    rows=st.lists(ROWS, max_size=25, unique_by=lambda r: r.batch_id),
    query=QUERIES,
    limit=st.integers(1, 6),
    sizes=st.sampled_from([(0, 0), (0, 3), (0, 4000), (4000, 0)]),
)
def test_pages_of_any_query_are_those_of_a_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[BatchRow], query: BatchQuery, limit: int, sizes: Any
) -> None:
    """However rare a prefix is, and whichever index is walked."""
    monkeypatch.setattr(reading, "FEW_OF_A_PREFIX", sizes[0])
    monkeypatch.setattr(reading, "WALKED_AT_MOST", sizes[1])
    path = tmp_path / "index.db"
    reading.remove(path)
    with reading.new_index(path) as connection:
        for row in rows:
            values = (row.batch_id, STATES.index(row.state), micros(row.state_time), row.rows, row.restatement)
            connection.execute(
                "INSERT INTO batches (id, state, time, rows, restatement, file) VALUES (?, ?, ?, ?, ?, 1)", values
            )

    found: list[BatchRow] = []
    with reading.opened(path) as connection:
        while page := reading.batches(connection, query, limit):
            assert len(page) <= limit
            found += page
            query = replace(query, after=BatchPosition(micros(page[-1].state_time), page[-1].batch_id))

    assert found == expected(rows, replace(query, after=None))


def test_queries_walk_an_index_and_sort_nothing(tmp_path: Path) -> None:
    """With a million batches, a plan that sorts or scans the batches themselves takes seconds."""
    path = tmp_path / "index.db"
    with reading.new_index(path) as connection:
        connection.execute("INSERT INTO batches (id, state, time, restatement, file) VALUES ('a', 0, 1, 'ns/r/1', 1)")
    statements: list[str] = []
    with reading.opened(path) as connection:
        connection.set_trace_callback(statements.append)
        for query in (
            BatchQuery(),
            BatchQuery(states=("refused", "promoted")),
            BatchQuery(restatement="ns/r", states=("refused",), id_prefix="a"),
        ):
            reading.batches(connection, query, 10)
        connection.set_trace_callback(None)
        for statement in statements:
            plan = " ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}"))
            assert "TEMP B-TREE" not in plan, statement
            assert "USING COVERING INDEX" in plan or "PRIMARY KEY" in plan, (statement, plan)


def test_prefixes_end_where_the_next_text_begins() -> None:
    assert reading.after_prefix("ab") == "ac"
    assert reading.after_prefix("a\ud7ff") == "a\ue000"  # what lies between cannot be text
    assert reading.after_prefix("a\U0010ffff") == "b"
    assert reading.after_prefix("\U0010ffff") > "\U0010ffff" * 256


def test_a_verified_erasure_is_listed_with_its_record_and_no_batch_ids(
    catalog: Catalog, table: Table, index: Index
) -> None:
    fill(catalog, table)
    table.refresh()
    outcome = {
        "restatement": "ns/e/1",
        "verifiedTime": NOW.isoformat(),
        "record": "s3://e/1.json",
        "recordSha256": "ab",
    }
    entry = a_request_entry("ns/e/1", operation="Erase", batch_ids=("D",), values_digest="secret", erasure=outcome)
    commit_delta(table, set_requests=(entry,))

    index.refresh()

    with index.reader() as connection:
        every = reading.erasures(connection, "", 10, False)
        opened = reading.erasures(connection, "", 10, True)
        (named,) = reading.erasures_named(connection, "ns/e")
        (document,) = connection.execute("SELECT document FROM requests WHERE key = 'ns/e/1'").fetchone()
    assert [k.key for k in every] == ["default/erase-d/3f", "ns/e/1"]
    assert [k.key for k in opened] == ["default/erase-d/3f"]
    assert named.result is not None
    assert (named.pending, named.result.erasure) == (None, ErasureOutcome.model_validate(outcome))
    assert "secret" not in document
    assert "batchIds" not in document


def test_promotions_are_counted_by_day_and_only_those_that_are_promoted_now(
    catalog: Catalog, table: Table, index: Index
) -> None:
    times = {"A": NOW, "B": NOW - timedelta(hours=13), "C": NOW - timedelta(days=1), "OLD": NOW - timedelta(days=40)}
    batches = [a_batch(i, time=t) for i, t in times.items()]
    commit(table, *batches, a_batch("R", BatchState.REVERTED), a_batch("E", BatchState.REFUSED, rows=None))
    update(catalog)
    index.refresh()
    today = NOW.replace(hour=0, minute=0, second=0, microsecond=0)

    with index.reader() as connection:
        found = reading.promotions(connection, NOW - timedelta(days=30))

    assert found == [(today - timedelta(days=1), 2), (today, 1)]


def test_the_files_of_the_head_are_those_of_its_summary(catalog: Catalog, table: Table, index: Index) -> None:
    fill(catalog, table)
    index.refresh()
    table.refresh()

    with index.reader() as connection:
        state = reading.state_of(connection)

    assert state is not None
    files = table.inspect.files()
    assert (state.data_files, state.data_bytes) == (files.num_rows, sum(files["file_size_in_bytes"].to_pylist()))
