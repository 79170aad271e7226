"""When the interval of a Dataset grows: what keeps it short, and what does not."""

from dataclasses import replace
from typing import Any

import pytest
from lethe.contract.status import Condition, DatasetStatus
from lethe_operator import conditions
from lethe_operator.dataset.decide import decide, is_idle
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import AttemptState, EventsView, NoTable, NotListed, Observation, Unavailable

from tests.support.builders import NOW, a_ledger
from tests.support.resources import (
    SETTINGS,
    a_buffer,
    a_buffered,
    a_consolidation,
    a_dataset,
    a_policy,
    a_restatement,
    a_run,
    a_table,
    a_world,
    an_attempt,
)
from tests.support.statuses import showing

A = a_buffered("A")
TABLE = {"catalog": "main", "name": "air.flights"}
PAUSED = {"annotations": {"lethe.dev/paused": "true"}}


def idle(world: Observation, dataset: Dataset | None = None) -> bool:
    """Of a Dataset whose statuses already show this world."""
    dataset = dataset or a_dataset()
    for _ in range(2):
        actions = decide(dataset, world, NOW, SETTINGS)
        dataset = showing(dataset, actions.dataset_status or dataset.status)
        statuses = actions.restatement_statuses
        shown = tuple(showing(r, statuses.get(r.meta.name, r.status)) for r in world.restatements)
        world = replace(world, restatements=shown)
    return is_idle(dataset, world, dataset.status)


def test_a_dataset_of_which_nothing_waits_is_idle() -> None:
    assert idle(a_world())
    assert idle(a_world(table=NoTable()), a_dataset(table={**TABLE, "create": {"schema": "batch_id string"}}))
    assert idle(a_world(a_buffered("B", complete=False)))
    assert idle(a_world(A)), "a batch below the triggers waits for a time that is known"
    assert idle(a_world(buffer=NotListed())), "the end of the first listing is reported"
    ended = an_attempt(a_consolidation(A), AttemptState.SUCCEEDED)
    run = replace(a_run(a_consolidation(A), ended), keys=())  # its documents are deleted
    assert idle(a_world(runs=(run,), table=a_table(run_ids=frozenset({ended.run_id}))))


@pytest.mark.parametrize(
    "world",
    [
        pytest.param(a_world(runs=(a_run(a_consolidation(A), an_attempt(a_consolidation(A))),)), id="a run is active"),
        pytest.param(a_world(buffer=Unavailable("Forbidden", "no rights.")), id="the buffer cannot be listed"),
        pytest.param(a_world(table=Unavailable("CatalogUnavailable", "no answer.")), id="the table cannot be read"),
        pytest.param(a_world(table=a_table(claim="ns/other")), id="another Dataset has the table"),
        pytest.param(a_world(buffer=replace(a_buffer(), expired=1)), id="a sweep begins"),
        pytest.param(a_world(restatements=(a_restatement(),)), id="a Restatement starts"),
        pytest.param(
            a_world(restatements=(a_restatement(),), policies=(), buffer=NotListed(), table=NoTable()),
            id="a Restatement waits",
        ),
        pytest.param(a_world(events=EventsView(is_read=True, in_flight=1)), id="messages wait for a commit"),
        pytest.param(
            a_world(table=a_table(a_ledger("W", "X", "Y", "Z")), policies=(a_policy(),)), id="a vacuum is due"
        ),
    ],
)
def test_what_only_time_reveals_keeps_the_interval_short(world: Observation) -> None:
    assert not idle(world)


@pytest.mark.parametrize(
    ("dataset", "restatement"),
    [
        ({"meta": PAUSED}, {}),
        ({"consolidation": {"suspend": True}}, {}),
        ({}, {"suspend": True}),
    ],
)
def test_what_a_user_has_stopped_waits_for_the_user(dataset: dict[str, Any], restatement: dict[str, Any]) -> None:
    restatements = (a_restatement(**restatement),) if restatement else ()
    batches = () if restatement else (A,)

    assert idle(a_world(*batches, restatements=restatements), a_dataset(**dataset))


def test_an_overdue_erasure_is_not_idle() -> None:
    """Whatever blocks it, such as a tag, may go without a word."""
    status = decide(a_dataset(), a_world(), NOW, SETTINGS).dataset_status or DatasetStatus()
    assert is_idle(a_dataset(), a_world(), status)
    late = Condition.of(conditions.EVICTION_ON_TIME, "False", "EvictByMissed")
    status = status.model_copy(update={"conditions": (*(status.conditions or ()), late)})

    assert not is_idle(a_dataset(), a_world(), status)
