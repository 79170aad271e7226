"""A Dataset works on the table that it has seen, and on no other table of the same name, until somebody accepts that one."""

from typing import Any

import pytest
from lethe.contract.run import RunKind
from lethe_operator.actions import Actions
from lethe_operator.dataset.observe import _doubts_what_succeeded
from lethe_operator.erasure.decide import is_awaited
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import NoTable, Observation, TableView, Unavailable
from lethe_operator.resources.restatement import Restatement

from tests.support.builders import NOW, a_history, a_ledger, a_request_entry, a_snapshot
from tests.support.resources import SETTINGS, a_buffered, a_dataset, a_restatement, a_table, a_world, condition, message
from tests.support.statuses import a_condition, a_restatement_status, decide, document, showing

OLD, NEW = "11111111-old", "22222222-new"
CREATE = {"catalog": "main", "name": "air.flights", "create": {"schema": "v int"}}


def a_dataset_that_saw(uuid: str | None, accept: str | None = None, heard: str | None = None) -> Dataset:
    seen = {"uuid": uuid, "snapshotId": 3, "sequenceNumber": 3} if uuid else {}
    seen |= {"acceptedHead": heard} if heard else {}
    annotations = {"lethe.dev/accept-head": accept} if accept else {}
    return a_dataset(
        status={"table": seen} if seen else {},
        meta={"annotations": annotations},
        consolidation={"minBatches": 1},
        table=CREATE,
    )


def done(name: str = "erase-a") -> Restatement:
    """An Erase that was verified."""
    status = a_restatement_status(
        a_condition(),
        a_condition("Erased"),
        phase="Succeeded",
        result={"snapshotId": 3, "rowsDeleted": 5},
        erasure={"record": "s3://lake/record.json"},
    )
    return a_restatement(name, status=status)


def decided(dataset: Dataset, table: Any, *restatements: Restatement) -> Actions:
    """With a batch that waits."""
    return decide(dataset, a_world(a_buffered("A"), restatements=restatements, table=table), NOW, SETTINGS)


def kinds(actions: Actions) -> list[RunKind]:
    return [x.run.kind for x in actions.launches]


def stalled(actions: Actions) -> str:
    status, reason = condition(actions.dataset_status, "Stalled")
    return reason if status == "True" else ""


def test_a_table_with_another_uuid_stops_everything_and_names_both() -> None:
    """Batches that were erased wait in the buffer still; that table would take them in."""
    dataset = a_dataset_that_saw(OLD)

    actions = decided(dataset, a_table(uuid=NEW))

    assert (kinds(actions), actions.sweep, stalled(actions)) == ([], 0, "TableReplaced")
    for told in (OLD, NEW, f"--overwrite lethe.dev/accept-head={NEW} "):
        assert told in message(actions.dataset_status, "Ready")
    assert actions.dataset_status["table"] == document(dataset.status.table)  # type: ignore[index]


def test_no_table_is_created_in_place_of_one_that_was_seen() -> None:
    dataset = a_dataset_that_saw(OLD)

    actions = decided(dataset, NoTable())

    assert (kinds(actions), stalled(actions)) == ([], "TableDropped")
    assert f"lethe.dev/accept-head=none/{OLD} " in message(actions.dataset_status, "Ready")
    assert actions.dataset_status["table"] == document(dataset.status.table)  # type: ignore[index]


@pytest.mark.parametrize("accept", ["22222222", OLD, "3", "none", f"none/{OLD}"])
def test_no_other_word_accepts_another_table(accept: str) -> None:
    assert stalled(decided(a_dataset_that_saw(OLD, accept), a_table(uuid=NEW))) == "TableReplaced"


def test_an_accepted_table_is_worked_on_and_remembered() -> None:
    actions = decided(a_dataset_that_saw(OLD, accept=NEW), a_table(uuid=NEW))

    assert kinds(actions) == [RunKind.CONSOLIDATION]
    assert actions.launches[0].run.seen_table_uuid == NEW
    seen = actions.dataset_status["table"]  # type: ignore[index]
    assert (seen["uuid"], seen["acceptedHead"]) == (NEW, NEW)
    assert "HeadAccepted" in [e.verdict.reason for e in actions.events]


def test_an_accepted_loss_creates_a_table_and_keeps_on_being_accepted() -> None:
    first = decided(a_dataset_that_saw(OLD, accept=f"none/{OLD}"), NoTable())
    table = first.dataset_status["table"]  # type: ignore[index]
    second = decided(a_dataset_that_saw(None, accept=f"none/{OLD}", heard=table["acceptedHead"]), NoTable())

    assert table == {"acceptedHead": f"none/{OLD}"}
    assert kinds(first) == kinds(second) == [RunKind.CONSOLIDATION]


def test_a_loss_that_was_accepted_does_not_cover_the_next_one() -> None:
    assert (
        stalled(decided(a_dataset_that_saw(NEW, accept=f"none/{OLD}", heard=f"none/{OLD}"), NoTable()))
        == "TableDropped"
    )


def test_a_table_that_is_brought_back_goes_on_by_itself() -> None:
    stopped = decided(a_dataset_that_saw(OLD), a_table(uuid=NEW))

    grown = a_table(uuid=OLD, head_id=4, ancestry=a_history(a_snapshot(3), a_snapshot(4, 3)))
    again = decided(showing(a_dataset_that_saw(OLD), stopped.dataset_status), grown)
    assert kinds(again) == [RunKind.CONSOLIDATION]


def test_a_claim_of_another_dataset_does_not_make_the_table_forgotten() -> None:
    """Its table was renamed, and another Dataset's took the name: without that claim it would pass for a first look."""
    dataset = a_dataset_that_saw(OLD)

    actions = decided(dataset, a_table(uuid=NEW, claim="ns/other"))

    assert stalled(actions) == "TableClaimed"
    assert actions.dataset_status["table"] == document(dataset.status.table)  # type: ignore[index]


def test_restatements_of_another_table_show_it_and_claim_no_erasure() -> None:
    actions = decided(a_dataset_that_saw(OLD), a_table(uuid=NEW), done())

    status = actions.restatement_statuses["erase-a"]
    assert condition(status, "Succeeded") == ("False", "RolledBack")
    assert condition(status, "Erased") == ("False", "TableReplaced")
    assert status["erasure"] == {"record": "s3://lake/record.json"}
    assert not is_awaited(a_restatement_status(**status))


def test_while_a_table_is_missing_the_status_of_its_restatements_stays() -> None:
    """It may come back: a catalog may have been restored to a state before it."""
    actions = decided(a_dataset_that_saw(OLD), NoTable(), done())

    assert condition(actions.restatement_statuses.get("erase-a") or done().status, "Succeeded")[0] == "True"


@pytest.mark.parametrize("table", [a_table(uuid=NEW), NoTable()], ids=["another table", "no table"])
def test_a_dataset_that_was_created_again_remembers_by_its_restatements(table: TableView | NoTable) -> None:
    """GitOps creates it without a status. A ledger never forgets a request, so this is not the table of that Restatement."""
    dataset = a_dataset_that_saw(None)

    actions = decided(dataset, table, done())

    assert kinds(actions) == []
    assert stalled(actions) == ("TableDropped" if isinstance(table, NoTable) else "TableReplaced")
    assert "the table in which Restatement erase-a was committed" in message(actions.dataset_status, "Ready")
    assert "table" not in actions.dataset_status or not actions.dataset_status["table"]  # type: ignore[operator,index]
    assert _doubts_what_succeeded(dataset, table)


@pytest.mark.parametrize(
    ("table", "word"), [(a_table(uuid=NEW), NEW), (NoTable(), "none/unknown")], ids=["another table", "no table"]
)
def test_it_goes_on_once_no_restatement_claims_any_more_what_is_not_so(table: TableView | NoTable, word: str) -> None:
    """An operator that dies between two statuses finds the rest to do."""
    first = decided(a_dataset_that_saw(None, accept=word), table, done())
    corrected = a_restatement("erase-a", status=first.restatement_statuses["erase-a"])
    second = decided(a_dataset_that_saw(None, accept=word), table, corrected)

    assert condition(first.restatement_statuses["erase-a"], "Succeeded") == ("False", "RolledBack")
    assert condition(first.restatement_statuses["erase-a"], "Erased") == ("False", "TableReplaced")
    assert kinds(first) == []
    assert kinds(second) == [RunKind.CONSOLIDATION]


def test_a_table_that_knows_its_restatements_is_adopted_at_the_first_look() -> None:
    known = done()
    ledger = a_ledger(requests=[a_request_entry(known.key)])

    actions = decided(a_dataset_that_saw(None), a_table(ledger, uuid=OLD), known)

    assert kinds(actions) == [RunKind.CONSOLIDATION]
    assert actions.dataset_status["table"]["uuid"] == OLD  # type: ignore[index]


def test_a_dry_run_committed_nothing_and_is_no_witness() -> None:
    planned = a_restatement("plan", dryRun=True, status=done().status)

    assert kinds(decided(a_dataset_that_saw(None), a_table(uuid=NEW), planned)) == [RunKind.CONSOLIDATION]


def test_an_unavailable_catalog_does_not_mean_another_table() -> None:
    actions = decide(
        a_dataset_that_saw(OLD), Observation(table=Unavailable("CatalogUnavailable", "It is away.")), NOW, SETTINGS
    )

    assert condition(actions.dataset_status, "Ready") == ("False", "CatalogUnavailable")
    assert actions.dataset_status["table"]["uuid"] == OLD  # type: ignore[index]
