"""The files of all retained snapshots, and what follows from them for an erasure, on a real table."""

from dataclasses import replace

import pytest
from lethe import ledger_store
from lethe.erasure.progress import History, mark, open_erasures_of
from lethe.erasure.record import holders
from lethe.iceberg.facts import observe
from lethe.iceberg.snapshot_files import Manifests, refs_of
from lethe.ledger.ledger import Ledger
from lethe.ledger.tombstone import BlockerKind, Erasure
from pyiceberg.table import Table

from tests.support.builders import NOW, a_request_entry
from tests.support.tables import batches_in, head, named_files, new_table, revert, rows, vacuum

ERASE = "ns/erase/0"
WEEK = 7 * 86_400


def history_of(table: Table, manifests: Manifests | None = None) -> History:
    facts = observe(table, "batch_id")
    assert facts.batch_field_id is not None
    return (manifests or Manifests()).history(table, facts, facts.batch_field_id)


def owing(table: Table, *ids: str) -> Ledger:
    """The head's ledger with an erasure of these batches."""
    facts = observe(table, "batch_id")
    assert facts.batch_field_id is not None
    entry = a_request_entry(ERASE, operation="Erase", batch_ids=ids)
    known = ledger_store.load(table.io, facts).ledger
    return replace(known, requests={ERASE: entry}, erasures=(Erasure(ERASE, facts.batch_field_id, None),))


def marked(table: Table, *ids: str) -> tuple[bool, dict[str, list[str | None]]]:
    """Whether no row is left in the head, and the files that are noted with the batches in them."""
    facts, history = observe(table, "batch_id"), history_of(table)
    assert facts.batch_field_id is not None
    found = mark(open_erasures_of(owing(table, *ids), facts.snapshots, facts.batch_field_id), history, {}, NOW)
    return bool(found.erasures), {f.path: batches_in(f.path) for f in found.files}


def test_every_file_of_every_snapshot_is_known_with_its_bounds_and_when_it_came(table: Table) -> None:
    table.append(rows("A", "C"))
    table.append(rows("D"))
    table.delete("batch_id = 'D'")

    history = history_of(table)

    assert set(history.files) == named_files(table)
    found = {(f.lower, f.upper, f.sequence_number) for f in history.files.values()}
    assert found == {("A", "C", 1), ("D", "D", 2)}
    assert {f.path for f in history.files.values() if f.lower == "A"} == history.live
    assert all(f.size > 0 for f in history.files.values())


def test_a_manifest_that_was_read_is_not_read_again(table: Table, opened: list[str]) -> None:
    table.append(rows("A"))
    manifests = Manifests()
    history_of(table, manifests)
    table.append(rows("B"))
    opened.clear()

    history_of(table, manifests)

    assert len([p for p in opened if p.endswith("-m0.avro")]) == 1


def test_rows_are_in_the_head_until_a_vacuum_removes_them_and_their_files_are_noted_then(table: Table) -> None:
    table.append(rows("A", "B"))
    table.append(rows("C"))
    revert(table, "A")
    before = marked(table, "A")

    vacuum(table, "A")
    left, files = marked(table, "A")

    assert before == (False, {})
    assert (left, list(files.values())) == (True, [["A", "B"]])


def test_a_file_that_a_partial_vacuum_removed_is_noted_while_others_hold_rows_still(table: Table) -> None:
    table.append(rows("A", "B"))
    table.append(rows("A", "C"))
    revert(table, "A")

    vacuum(table, "A", files_at_most=1, forget=False)

    left, files = marked(table, "A")
    assert (left, len(files)) == (False, 1)


def test_a_tag_and_a_branch_hold_what_their_snapshots_name_and_say_until_when(table: Table) -> None:
    table.append(rows("A"))
    old = head(table)
    table.manage_snapshots().create_tag(old, "audit", max_ref_age_ms=WEEK * 1000).create_branch(old, "dev").commit()
    table.append(rows("B"))
    table.delete("batch_id = 'A'")
    facts, history = observe(table, "batch_id"), history_of(table)
    assert facts.batch_field_id is not None

    refs = {r.name: r for r in refs_of(table, facts)}
    found = mark(open_erasures_of(owing(table, "A"), facts.snapshots, facts.batch_field_id), history, {}, NOW)

    held = holders(history, {f.path: f for f in found.files})
    assert old in held
    assert head(table) not in held
    assert {name: (r.kind, r.snapshot_id) for name, r in refs.items()} == {
        "audit": (BlockerKind.TAG, old),
        "dev": (BlockerKind.BRANCH, old),
    }
    assert refs["dev"].until is None
    assert refs["audit"].until is not None
    assert refs["audit"].until.timestamp() == pytest.approx(facts.snapshots[old].timestamp_ms / 1000 + WEEK)


def test_a_table_without_snapshots_has_no_history(catalog: object) -> None:
    table = new_table(catalog, "air.empty")  # type: ignore[arg-type]

    history = history_of(table)

    assert (history.files, history.live, history.lineage(), history.head_sequence_number) == ({}, frozenset(), [], 0)
