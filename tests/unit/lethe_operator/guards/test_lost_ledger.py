"""A head that leads to no ledger stops everything; once it is accepted, a run gives it the last ledger."""

import pytest
from lethe.contract.run import AcceptedHead
from lethe_operator.actions import Actions
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import AttemptState, Engine, LostLedger, ObservedRun

from tests.support.builders import NOW, ago
from tests.support.resources import (
    SETTINGS,
    a_buffered,
    a_dataset,
    a_restatement,
    a_result,
    a_run,
    a_world,
    an_attempt,
    condition,
    message,
)
from tests.support.statuses import decide

LOST = LostLedger(
    "LedgerLost", "air.flights: snapshot 5 has no ledger.", "u", 5, "s3://lake/_tombstones/7-root.json", transient=False
)
SEEN = {"table": {"uuid": "u", "snapshotId": 4, "ledger": LOST.last_ledger}}


def a_dataset_with(accept: str | None = None, **annotations: str) -> Dataset:
    found = {**({"lethe.dev/accept-head": accept} if accept else {}), **annotations}
    return a_dataset(status=SEEN, meta={"annotations": found}, consolidation={"minBatches": 1, "suspend": True})


def decided(dataset: Dataset, lost: LostLedger = LOST, *runs: ObservedRun) -> Actions:
    asked = (a_restatement("new"),)
    return decide(dataset, a_world(a_buffered("A"), restatements=asked, table=lost, runs=runs), NOW, SETTINGS)


def test_no_run_starts_and_the_message_has_the_command() -> None:
    actions = decided(a_dataset_with())

    assert (actions.launches, actions.sweep) == ((), 0)
    assert condition(actions.dataset_status, "Stalled") == ("True", "LedgerLost")
    for told in (LOST.message, LOST.last_ledger or "", "-n ns --overwrite lethe.dev/accept-head=5 ("):
        assert told in message(actions.dataset_status, "Ready")
    assert actions.dataset_status["table"] == SEEN["table"]  # type: ignore[index]


def test_an_accepted_head_gets_the_last_ledger_and_nothing_else_starts() -> None:
    (launch,) = decided(a_dataset_with("5")).launches

    assert launch.run.consolidation is not None
    assert launch.run.consolidation.accepts == AcceptedHead(head_id=5, ledger=LOST.last_ledger or "")
    assert (launch.run.consolidation.batch_ids, launch.run.seen_table_uuid, launch.engine) == ((), "u", Engine.JOB)


@pytest.mark.parametrize(
    "dataset",
    [
        pytest.param(a_dataset_with("4"), id="another head was accepted"),
        pytest.param(a_dataset_with("5", **{"lethe.dev/paused": "true"}), id="it is paused"),
    ],
)
def test_otherwise_nothing_starts(dataset: Dataset) -> None:
    assert decided(dataset).launches == ()


def test_without_a_known_ledger_the_message_refers_to_the_manual_way() -> None:
    unknown = LostLedger("LedgerLost", LOST.message, "u", 5, None, transient=False)

    actions = decided(a_dataset_with("5"), unknown)

    assert actions.launches == ()
    assert "docs/foreign-writers.md" in message(actions.dataset_status, "Ready")


def test_the_run_is_tried_again_after_a_failure_that_may_pass() -> None:
    (launch,) = decided(a_dataset_with("5")).launches
    result = a_result(launch.run, "Failed", reason="CatalogOrStorageAway", message="It is away.")
    times = {"created": ago(hours=2), "finished": ago(hours=2)}
    failed = an_attempt(launch.run, AttemptState.FAILED, exit_code=20, result=result, for_uid="head", **times)
    going = an_attempt(launch.run, AttemptState.ACTIVE, for_uid="head")

    (again,) = decided(a_dataset_with("5"), LOST, a_run(launch.run, failed)).launches

    assert (again.run.run_id, again.run.attempt) == (launch.run.run_id, 2)
    assert decided(a_dataset_with("5"), LOST, a_run(launch.run, going)).launches == ()
