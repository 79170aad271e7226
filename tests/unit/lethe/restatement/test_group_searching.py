"""Requests that find their rows by values go after whatever may bring such rows, and are part of the change otherwise."""

from typing import Any

from lethe.base.errors import InputError
from lethe.contract.run import RestatementRequest, RowsRef
from lethe.ledger.ledger import apply
from lethe.restatement.group import GroupFindings, plan_group, set_aside
from lethe.restatement.plan import ErasedRows, PlanScope

from tests.support.builders import FIELD, NOW, RUN, a_change, a_replay, a_request, ago
from tests.unit.lethe.restatement.grouping import LEDGER, an_undo, plan, reasons, unread


def an_erase(name: str = "erase", **changes: Any) -> RestatementRequest:
    rows = RowsRef(column="tailnum", values_file=f"/etc/lethe/values/{name}")
    return a_request(name, "Erase", batch_ids=(), rows=rows, **changes)


def test_erases_by_records_are_part_of_the_change_and_each_reports_its_rows() -> None:
    first, second, revert = an_erase("first"), an_erase("second"), a_request("revert")
    found = {first.key: ErasedRows(3, 4), second.key: ErasedRows(0, 5)}

    planned = plan_group(LEDGER, [second, revert, first], PlanScope(RUN, NOW, FIELD), GroupFindings({}, {}, found))

    assert (planned.erases, planned.adds) == ((first.key, second.key), ())
    assert {r.name: (r.rows_erased, r.group_size) for r in planned.results.values()} == {
        "ns/first": (3, 3),
        "ns/second": (0, 3),
        "ns/revert": (0, 3),
    }
    assert [(e.restatement, e.field_id) for e in planned.delta.set_erasures] == [(first.key, 4), (second.key, 5)]


def test_an_erase_by_records_goes_after_the_replacements_before_it() -> None:
    """Their rows are searched as well, and lie in no file of the table yet. What comes later it does not concern."""
    erase = an_erase(creation_time=ago(hours=1))
    older = a_replay("older", by="A2", creation_time=ago(hours=2))
    younger = a_replay("younger", by="B2", batch_ids=["B"])

    both, late = plan(LEDGER, erase, younger), plan(LEDGER, older, erase, younger)

    assert (both.erases, both.adds, set(reasons(both).values())) == ((erase.key,), (younger.key,), {""})
    assert (late.erases, late.adds) == ((), (older.key, younger.key))
    reported = late.results[erase.key]
    assert (reported.succeeded, reported.again, reported.reason) == (False, True, "WaitingForRestatement")
    assert "rows that may be in the replacement of Restatement ns/older, and waits" in reported.message
    refused = plan(LEDGER, older, erase, aside={older.key: set_aside(older, InputError("UnreadableFile", "damaged"))})
    assert refused.erases == (erase.key,)


def test_an_erase_by_records_goes_after_an_undo_that_lets_batches_in() -> None:
    """They may lie in the buffer, and are promoted and searched first. One that only shows rows of the table holds up nobody."""
    before = apply(LEDGER, plan(LEDGER, a_request("late", batch_ids=["X"]), a_request("there", batch_ids=["A"])).delta)
    erase, at = an_erase(), ago(hours=1)

    waits = plan(before, an_undo("late", creation_time=at), erase)
    goes = plan(before, an_undo("there", creation_time=at), erase)

    assert (waits.carried_out, waits.erases) == (("ns/undo/0",), ())
    reported = waits.results[erase.key]
    assert (reported.again, reported.reason) == (True, "WaitingForRestatement")
    assert "rows that may be in batches that Restatement ns/undo allows again" in reported.message
    assert (goes.carried_out, goes.erases) == (("ns/undo/0", erase.key), (erase.key,))


def test_changes_by_keys_go_after_the_replacements_before_them_and_before_an_erase() -> None:
    """Two of them are never in one commit: the younger has to find the rows of the older."""
    at = [ago(hours=h) for h in (4, 3, 2, 1)]
    replay = a_replay("replay", by="A2", creation_time=at[0])
    older, younger = a_change("older", "C1", creation_time=at[1]), a_change("younger", "C2", creation_time=at[2])
    erase = an_erase(creation_time=at[3])

    alone, both, all_ = (
        plan(LEDGER, older, erase),
        plan(LEDGER, older, younger),
        plan(LEDGER, *(replay, older, younger)),
    )

    assert (alone.adds, alone.erases, alone.results[erase.key].reason) == (
        (older.key,),
        (older.key,),
        "WaitingForRestatement",
    )
    assert (both.adds, both.erases, both.results[younger.key].reason) == (
        (older.key,),
        (older.key,),
        "WaitingForRestatement",
    )
    assert "replaces rows that may be in the replacement of Restatement ns/older" in both.results[younger.key].message
    assert (all_.adds, all_.erases) == ((replay.key,), ())
    damaged = {older.key: set_aside(older, InputError("DuplicateKey", "twice"))}
    assert plan(LEDGER, older, younger, aside=damaged).adds == (younger.key,)


def test_an_erase_whose_values_are_not_there_waits_alone() -> None:
    erase, revert = an_erase(), a_request("revert")

    planned = plan(LEDGER, erase, revert, aside=unread(erase))

    assert (planned.erases, planned.carried_out) == ((), (revert.key,))
    assert planned.delta.set_erasures == ()
