"""The table of batches shows what the ledger says, whatever happened in between."""

from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from lethe import batches_table, ledger_chunks, ledger_store
from lethe.base import names
from lethe.base.errors import InputError
from lethe.buffer.batch_rows import BUFFERED, BatchRow, row_of
from lethe.contract.run import Provenance
from lethe.iceberg import catalogs
from lethe.iceberg.facts import observe
from lethe.ledger.ledger import BatchState
from lethe.ledger.overlay import Thresholds
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from tests.support.builders import NOW, a_batch, a_request_entry, ago, an_object
from tests.support.tables import commit, commit_delta
from tests.support.tracked import BATCHES, NAME, folder, rows, states, update, wanted


def waiting(id: str, **changes: Any) -> BatchRow:
    return BatchRow(id, BUFFERED, **{"state_time": NOW, "bytes": 10, "objects": 1, **changes})


def test_every_batch_is_a_row_with_all_that_the_ledger_knows(catalog: Catalog, table: Table) -> None:
    commit(
        table, a_batch("A", objects=(an_object(),)), a_batch("B", BatchState.REPLACED, replaced_by="C", evict_by=NOW)
    )
    commit(
        table,
        a_batch("C", restatement="ns/r/1"),
        a_batch("D", BatchState.REFUSED, rows=None, refusal="SchemaMismatch: a column"),
    )

    update(catalog)

    assert rows(catalog) == wanted(table)
    by_id = {r["batch_id"]: r for r in rows(catalog)}
    assert (by_id["A"]["state"], by_id["A"]["rows"], by_id["A"]["objects"]) == ("promoted", 3, 1)
    assert by_id["A"]["snapshot_id"] == table.snapshots()[-2].snapshot_id
    assert (by_id["B"]["replaced_by"], by_id["B"]["evict_by"]) == ("C", NOW)
    assert (by_id["D"]["refusal_reason"], by_id["D"]["refusal_message"]) == ("SchemaMismatch", "a column")


def _reverted_on_request(table: Table, id: str, ticket: str) -> None:
    asked = Provenance(reason="sent twice", ticket=ticket, marks={"lethe.dev/requested-by": "ana"})
    entry = a_batch(id, BatchState.REVERTED, restatement=f"ns/{id}/0")
    commit_delta(table, set_batches=(entry,), set_requests=(a_request_entry(f"ns/{id}/0", provenance=asked),))


def _asked(catalog: Catalog) -> dict[str, list[Any]]:
    return {r["batch_id"]: [r[name] for name in ("reason", "ticket", "requested_by")] for r in rows(catalog)}


def test_a_row_tells_who_asked_for_its_restatement_and_why(catalog: Catalog, table: Table) -> None:
    commit(table, a_batch("A"), a_batch("B", BatchState.REVERTED, restatement="ns/of-an-earlier-build/0"))
    _reverted_on_request(table, "C", "LAKE-7")
    built = update(catalog)
    _reverted_on_request(table, "A", "LAKE-8")
    updated = update(catalog)

    assert (built.rebuilt, updated.rebuilt) == (True, False)
    asked = {"A": ["sent twice", "LAKE-8", "ana"], "B": [None] * 3, "C": ["sent twice", "LAKE-7", "ana"]}
    assert _asked(catalog) == asked


def test_a_table_of_an_earlier_build_gets_the_columns_and_keeps_the_waiting_batches(
    catalog: Catalog, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(table, a_batch("A"))
    _reverted_on_request(table, "B", "LAKE-7")
    with monkeypatch.context() as earlier:
        fields = [f for f in batches_table.SCHEMA.fields if f.name not in batches_table.ADDED]
        schema = Schema(*fields, identifier_field_ids=[batches_table.BATCH_ID])
        earlier.setattr(batches_table, "SCHEMA", schema)
        earlier.setattr(batches_table, "ARROW", schema.as_arrow())
        earlier.setattr(batches_table, "_VALUES", attrgetter(*schema.column_names))
        update(catalog, waiting=[waiting("W")])
        assert "ticket" not in catalog.load_table(BATCHES).schema().column_names
    assert {r.batch_id: r.ticket for r in batches_table.read_rows(catalog.load_table(BATCHES))} == dict.fromkeys("ABW")
    commit(table, a_batch("C"))

    done = update(catalog)

    assert catalog.load_table(BATCHES).schema().column_names == batches_table.SCHEMA.column_names
    assert done.rebuilt
    assert _asked(catalog) == {**{i: [None] * 3 for i in "ACW"}, "B": ["sent twice", "LAKE-7", "ana"]}
    assert (states(catalog)["W"], update(catalog).snapshot_id) == (BUFFERED, None)


def test_an_update_takes_over_only_what_changed(catalog: Catalog, table: Table) -> None:
    commit(table, *(a_batch(f"b{n}") for n in range(20)), a_batch("gone"))
    assert update(catalog).rebuilt
    commit(table, a_batch("b3", BatchState.REVERTED, time=ago(hours=1)), a_batch("c"), forget=["gone"])

    done = update(catalog)

    assert not done.rebuilt
    assert rows(catalog) == wanted(table)
    assert done.shown.version == 2


def test_an_update_of_what_is_up_to_date_commits_nothing(catalog: Catalog, table: Table) -> None:
    commit(table, a_batch("A"))
    update(catalog)

    assert update(catalog).snapshot_id is None
    assert len(catalog.load_table(BATCHES).snapshots()) == 1


def test_several_commits_are_taken_over_at_once(catalog: Catalog, table: Table) -> None:
    """Whoever died before its update is made up for by the next."""
    update(catalog)
    for n in range(5):
        commit(table, a_batch(f"b{n}"), a_batch("A", BatchState.REVERTED if n % 2 else BatchState.PROMOTED))

    done = update(catalog)

    assert (done.rebuilt, rows(catalog)) == (False, wanted(table))


def test_a_table_without_a_ledger_has_no_batches(catalog: Catalog) -> None:
    catalog.create_table(NAME, batches_table.SCHEMA)

    done = update(catalog)

    assert (rows(catalog), done.shown.version) == ([], 0)


@pytest.mark.usefixtures("table")
def test_nothing_is_made_unless_wanted(catalog: Catalog) -> None:
    assert batches_table.bring_up_to_date(catalog, NAME, "batch_id", batches_table.TrackingUpdate(create=False)) is None
    assert not catalog.table_exists(BATCHES)


def test_a_lost_table_is_rebuilt_to_the_same_rows(catalog: Catalog, table: Table) -> None:
    commit(table, a_batch("A"), a_batch("B"))
    update(catalog)
    commit(table, a_batch("B", BatchState.REVERTED))
    update(catalog)
    before = rows(catalog)
    catalog.drop_table(BATCHES)

    assert update(catalog).rebuilt
    assert rows(catalog) == before


def test_a_ledger_whose_old_files_were_cleaned_up_is_taken_whole(catalog: Catalog, table: Table) -> None:
    commit(table, a_batch("A"), a_batch("B"))
    update(catalog)
    (root,) = folder(table, "_tombstones").glob("*-root.json")
    commit(table, a_batch("B", BatchState.REVERTED))
    root.unlink()

    assert update(catalog).rebuilt
    assert rows(catalog) == wanted(table)


def test_ledgers_that_differ_in_too_much_are_not_compared(
    catalog: Catalog, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once all chunks were merged, to compare would read the ledger twice."""
    commit(table, a_batch("A"), a_batch("B"))
    update(catalog)
    commit(table, a_batch("B", BatchState.REVERTED))
    monkeypatch.setattr(ledger_chunks, "MAX_COMPARED", 2)

    assert update(catalog).rebuilt
    assert rows(catalog) == wanted(table)


def test_entries_are_found_once_in_a_ledger_of_many_chunks(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set again, taken away and set once more: the newest chunk says what is true."""
    monkeypatch.setattr(ledger_store, "THRESHOLDS", Thresholds(floor=2, cap=8))
    for n in range(20):
        commit(table, a_batch(f"b{n}"), a_batch("A", time=ago(hours=n)), forget=[f"b{n - 3}"])
    ledger = ledger_store.load(table.io, observe(table, "batch_id")).ledger

    found = [e for some in ledger_chunks.all_batches(ledger.batches) for e in some]

    assert len(found) == len(ledger.batches) == len({e.id for e in found})
    assert {e.id: e for e in found} == dict(ledger.batches)
    assert len(table.snapshots()) == 20


def test_a_table_with_too_high_totals_is_detected_and_rebuilt(catalog: Catalog, table: Table) -> None:
    """Whatever somebody did to it under our keys: its totals must stay those of the ledger."""
    commit(table, a_batch("A"), a_batch("B"))
    update(catalog)
    mine = catalog.load_table(BATCHES)
    head = mine.current_snapshot()
    assert head is not None
    assert head.summary is not None
    keys = {k: v for k, v in head.summary.additional_properties.items() if k.startswith("lethe.")}
    mine.overwrite(batches_table.as_arrow([row_of(a_batch("B"))]), snapshot_properties=keys)
    commit(table, a_batch("A", BatchState.REVERTED))

    assert update(catalog).rebuilt
    assert rows(catalog) == wanted(table)


def test_rows_that_another_writer_changed_are_rebuilt(catalog: Catalog, table: Table) -> None:
    commit(table, a_batch("A"))
    update(catalog)
    foreign_handle = catalog.load_table(BATCHES)
    foreign_handle.append(batches_table.as_arrow([row_of(a_batch("X"))]))

    assert update(catalog).rebuilt
    assert states(catalog) == {"A": "promoted"}


def test_a_table_of_batches_that_was_rolled_back_shows_the_newest_ledger_again(catalog: Catalog, table: Table) -> None:
    commit(table, a_batch("A"))
    update(catalog)
    commit(table, a_batch("B"))
    update(catalog)
    mine = catalog.load_table(BATCHES)
    mine.manage_snapshots().set_current_snapshot(mine.snapshots()[0].snapshot_id).commit()

    update(catalog)

    assert rows(catalog) == wanted(table)


def test_after_a_rollback_the_ledger_of_the_head_is_shown(catalog: Catalog, table: Table) -> None:
    """Batches that the head does not know are gone, and those of another line of history take their place."""
    commit(table, a_batch("A"), a_batch("B"))
    commit(table, a_batch("C"), a_batch("A", BatchState.REVERTED))
    update(catalog)
    table.manage_snapshots().set_current_snapshot(table.snapshots()[0].snapshot_id).commit()
    commit(table, a_batch("D"))

    done = update(catalog)

    assert states(catalog) == {"A": "promoted", "B": "promoted", "D": "promoted"}
    assert (done.rebuilt, rows(catalog)) == (False, wanted(table))


def test_a_recreated_table_with_the_same_name_has_only_its_own_batches(catalog: Catalog, table: Table) -> None:
    commit(table, a_batch("A"))
    update(catalog)
    schema = table.schema()
    catalog.drop_table(NAME)
    again = catalog.create_table(NAME, schema, location=table.location() + "-2")
    commit(again, a_batch("B"))

    assert update(catalog).rebuilt
    assert states(catalog) == {"B": "promoted"}
    assert catalog.load_table(BATCHES).properties[names.TRACKS] == str(again.metadata.table_uuid)


def test_somebody_elses_table_of_that_name_is_left_alone(catalog: Catalog, table: Table) -> None:
    commit(table, a_batch("A"))
    theirs = catalog.create_table(BATCHES, table.schema())

    with pytest.raises(InputError, match=r"BatchesTableTaken.*air\.flights_batches"):
        update(catalog)

    assert catalog.load_table(BATCHES).metadata == theirs.metadata


def test_in_a_mere_folder_there_is_no_table_of_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyIceberg cannot commit there. Who did not ask for one is not bothered."""
    (tmp_path / ".pyiceberg.yaml").write_text(
        f"catalog:\n  folder:\n    type: hadoop\n    warehouse: file://{tmp_path}/wh\n"
    )
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    mere = catalogs.load("folder")

    assert batches_table.bring_up_to_date(mere, NAME, "batch_id", batches_table.TrackingUpdate(create=False)) is None
    with pytest.raises(InputError, match="UnsupportedCatalog"):
        batches_table.bring_up_to_date(mere, NAME, "batch_id", batches_table.TrackingUpdate(create=True))


def test_what_waits_in_the_buffer_is_shown_until_the_ledger_knows_it(catalog: Catalog, table: Table) -> None:
    commit(table, a_batch("A"))

    update(catalog, waiting=[waiting("A"), waiting("B"), waiting("C")])

    assert states(catalog) == {"A": "promoted", "B": BUFFERED, "C": BUFFERED}
    commit(table, a_batch("B"), a_batch("C", BatchState.REVERTED, rows=None))
    update(catalog)
    assert states(catalog) == {"A": "promoted", "B": "promoted", "C": "reverted"}


def test_a_new_listing_takes_the_place_of_the_one_before(catalog: Catalog, table: Table) -> None:
    commit(table, a_batch("A"))
    update(catalog, waiting=[waiting("B"), waiting("C")])

    done = update(catalog, waiting=[waiting("C"), waiting("D")])

    assert states(catalog) == {"A": "promoted", "C": BUFFERED, "D": BUFFERED}
    assert done.shown.totals[BUFFERED].batches == 2
    assert update(catalog, waiting=[waiting("C"), waiting("D")]).snapshot_id is None


def test_waiting_batches_are_still_shown_after_a_rebuild(catalog: Catalog, table: Table) -> None:
    commit(table, a_batch("A"))
    update(catalog, waiting=[waiting("A2"), waiting("B")])
    commit(table, a_batch("A2"))

    assert update(catalog, rebuild=True).rebuilt
    assert states(catalog) == {"A": "promoted", "A2": "promoted", "B": BUFFERED}


def test_the_summary_has_the_totals_of_each_state(catalog: Catalog, table: Table) -> None:
    """So that a graph costs no scan."""
    commit(
        table,
        a_batch("A", rows=5, bytes=50),
        a_batch("B", rows=7, bytes=70),
        a_batch("C", BatchState.REFUSED, rows=None),
    )
    update(catalog, waiting=[waiting("D", bytes=11)])
    commit(table, a_batch("B", BatchState.REVERTED, rows=7, bytes=70))

    update(catalog)

    head = catalog.load_table(BATCHES).current_snapshot()
    assert head is not None
    assert head.summary is not None
    keys = head.summary.additional_properties
    assert {k: keys[f"lethe.tracking.{k}"] for k in ("batches.promoted", "rows.promoted", "bytes.promoted")} == {
        "batches.promoted": "1",
        "rows.promoted": "5",
        "bytes.promoted": "50",
    }
    assert (keys["lethe.tracking.rows.reverted"], keys["lethe.tracking.rows.refused"]) == ("7", "0")
    assert (keys["lethe.tracking.bytes.buffered"], keys["lethe.tracking.ledger-version"]) == ("11", "2")


def test_other_engines_ask_it_as_the_page_shows(catalog: Catalog, table: Table) -> None:
    """DuckDB, by way of PyIceberg, which opens no file of another state."""
    commit(table, a_batch("A"), *(a_batch(i, BatchState.REFUSED, refusal="SchemaMismatch: x") for i in "BC"))
    update(catalog)

    batches = catalog.load_table(BATCHES).scan(row_filter="state = 'refused'")
    (answer,) = batches.to_duckdb("batches").sql("SELECT refusal_reason, count(*) FROM batches GROUP BY ALL").fetchall()

    assert answer == ("SchemaMismatch", 2)
    assert [t.file.partition[0] for t in batches.plan_files()] == ["refused"]
