"""What the operator sees of a table follows from the head's own line of snapshots and from its ledger's files."""

from dataclasses import replace
from pathlib import Path

import pytest
from lethe.base.errors import LedgerError
from lethe.iceberg.facts import TableFacts
from lethe.ledger.ledger import EMPTY, BatchState
from lethe.ledger.lineage import Resolution
from lethe.ledger_store import Loaded, write
from lethe_operator.dataset.tables import LedgerKeys, Lookup, TableReader, view_of
from lethe_operator.reasons import Reason
from lethe_operator.resources.observed import Unavailable
from pyiceberg.io.pyarrow import PyArrowFileIO

from tests.support.builders import a_batch, a_history, a_ledger, a_request_entry, a_snapshot, ago, as_delta
from tests.support.resources import a_dataset

IO = PyArrowFileIO()


@pytest.fixture
def table(tmp_path: Path) -> TableFacts:
    """1 (foreign) - 2 (ledger) - 3 (foreign) - 4 (foreign, head), and 5, staged on 2."""
    facts = TableFacts("air.flights", "uuid-1", f"file://{tmp_path}", 2, 4, ago(minutes=1))
    ledger = a_ledger(
        "X", "Y", batches=[a_batch("A"), a_batch("B", BatchState.REFUSED)], requests=[a_request_entry("k")]
    )
    root = write(IO, facts, Loaded(EMPTY, Resolution(None, None)), as_delta(ledger)).root
    history = a_history(
        a_snapshot(1, at=ago(minutes=9)),
        a_snapshot(2, 1, at=ago(minutes=8), ledger=root, lethe__run_id="r2"),
        a_snapshot(3, 2, at=ago(minutes=7)),
        a_snapshot(4, 3, at=ago(minutes=1), total_files_size="77", total_records="1000"),
        a_snapshot(5, 2, at=ago(minutes=2), lethe__run_id="r5"),
    )
    return replace(facts, snapshots=history, refs={"audit": 2})


def test_the_line_of_the_head_and_the_runs_on_it_without_what_is_staged(table: TableFacts) -> None:
    view = view_of(table, IO)

    assert list(view.ancestry) == [4, 3, 2, 1]
    assert (view.run_ids, view.head_sequence_number, view.total_bytes) == ({"r2"}, 4, 77)
    assert not any(s.summary for s in view.ancestry.values())
    assert view.total_records == 1000
    assert (view.refs, view.snapshot_ids) == ({"audit": 2}, {1, 2, 3, 4, 5})


def test_a_head_whose_writer_does_not_count_its_rows_has_an_unknown_number(table: TableFacts) -> None:
    assert view_of(replace(table, head_id=3), IO).total_records is None


def test_a_run_with_an_unfinished_commit_has_not_ended(table: TableFacts) -> None:
    """A vacuum in steps that was killed after its first."""
    step = a_snapshot(4, 3, at=ago(minutes=1), lethe__run_id="r4", lethe__unfinished="true")
    last = a_snapshot(6, 4, lethe__run_id="r4")

    under_way = view_of(replace(table, snapshots={**table.snapshots, 4: step}), IO)
    ended = view_of(replace(table, snapshots={**table.snapshots, 4: step, 6: last}, head_id=6), IO)

    assert (under_way.run_ids, ended.run_ids) == ({"r2"}, {"r2", "r4"})


@pytest.mark.parametrize(
    ("head", "since"),
    [
        pytest.param(4, ago(minutes=7), id="since the first snapshot above the ledger"),
        pytest.param(3, ago(minutes=7), id="just that one"),
        pytest.param(2, None, id="a head with a ledger of its own is not bare"),
        pytest.param(1, None, id="a table that never had one has none to lose"),
        pytest.param(None, None, id="nor has one without snapshots"),
    ],
)
def test_since_when_the_head_is_bare(table: TableFacts, head: int | None, since: object) -> None:
    assert view_of(replace(table, head_id=head), IO).bare_since == since


def test_entries_are_read_from_the_ledgers_files_by_key_and_counts_without_them(table: TableFacts) -> None:
    ledger = view_of(table, IO).ledger

    known = Lookup().known(ledger, LedgerKeys(frozenset({"A", "Z"}), frozenset({"k", "none"})))

    assert (set(known.batches), set(known.requests)) == ({"A"}, {"k"})
    assert dict(known.states) == {"promoted": 1, "refused": 1}
    assert (len(known.tombstones), known.oldest_added_on) == (2, ledger.oldest_added_on)


def test_a_missing_part_of_the_ledger_is_reported_when_it_is_looked_up(table: TableFacts) -> None:
    """The root alone is read with the table."""
    view = view_of(table, IO)
    for file in Path(table.location.removeprefix("file://"), "_tombstones").glob("*batches*"):
        file.unlink()

    with pytest.raises(LedgerError, match="LedgerMissing"):
        Lookup().known(view.ledger, LedgerKeys(frozenset({"A"})))


def test_a_dataset_on_a_catalog_of_type_hadoop_is_refused_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asking again would not help: nothing but a folder decides between the writers of such a table."""
    (tmp_path / ".pyiceberg.yaml").write_text(f"catalog:\n  main: {{type: hadoop, warehouse: 'file://{tmp_path}'}}\n")
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))

    found = TableReader().view(a_dataset())

    assert isinstance(found, Unavailable)
    assert (found.reason, found.transient) == (Reason.UNSUPPORTED_CATALOG, False)
    assert "catalog main is of type hadoop" in found.message


def test_a_table_of_another_ones_batches_is_known_by_its_property(table: TableFacts) -> None:
    assert not view_of(table, IO).holds_batches
    assert view_of(replace(table, properties={"lethe.tracks": "uuid-2"}), IO).holds_batches
