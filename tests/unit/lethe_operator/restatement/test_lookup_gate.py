"""An Erase that looks up values in another table starts when that table has everything that came before the Erase."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import pytest
from lethe.base.errors import InputError
from lethe.guards.boundary import require_run_within
from lethe.kube import DATASETS, RESTATEMENTS
from lethe_operator.actions import Actions
from lethe_operator.cluster.schedule import Key
from lethe_operator.dataset.tables import LookupViews
from lethe_operator.handlers import keys_of
from lethe_operator.resources.boundaries import Boundaries, Boundary
from lethe_operator.resources.observed import LookupView, NotListed
from lethe_operator.resources.restatement import Restatement, parse_restatement
from lethe_operator.restatement.assess import searching, wants_listing
from lethe_operator.restatement.observe import RestatementCache

from tests.support.builders import NOW, a_batch, ago
from tests.support.resources import (
    SETTINGS,
    a_buffer,
    a_buffered,
    a_dataset,
    a_restatement_body,
    a_table,
    a_world,
    condition,
    message,
)
from tests.support.statuses import decide
from tests.unit.lethe_operator.queueing import members

PATIENT: Final = {"minBatches": 100, "maxAgeSeconds": 86_400}
CUSTOMERS: Final = a_dataset("customers", consolidation=PATIENT)
ELSEWHERE: Final = a_dataset("customers", table={"catalog": "main", "name": "private.people"})
SUSPENDED: Final = a_dataset("customers", consolidation={"suspend": True})
VALUES: Final = {"secretKeyRef": {"name": "erase-x", "key": "k"}}
VIA: Final = {"dataset": "customers", "from": "email", "to": "number"}
BEFORE, AFTER = a_buffered("A", age_seconds=3601), a_buffered("B", age_seconds=3599)


def body(dataset: str = "flights", **changes: Any) -> dict[str, Any]:
    """Created an hour ago."""
    conditions = [
        {"column": "seat", "valuesFrom": VALUES},
        {"column": "customer", "valuesFrom": VALUES, "via": VIA},
    ]
    spec = {"datasetRef": {"name": dataset}, "batchIds": (), "rows": {"anyOf": conditions}, **changes}
    return a_restatement_body("erase", operation="Erase", **spec)


def an_erase(dataset: str = "flights", **changes: Any) -> Restatement:
    return parse_restatement(body(dataset, **changes))


ERASE: Final = an_erase()


def listed(*batches: Any, of: str = ERASE.meta.uid) -> Any:
    """A listing that began after the Erase was known. The youngest batch before it came an hour ago."""
    return replace(a_buffer(*batches), horizons={of: NOW - timedelta(seconds=3600)})


USED_UP: Final = replace(
    a_buffer(*(a_buffered(i, age_seconds=4000) for i in "ABC"), names=2).as_of({i: a_batch(i) for i in "AB"}),
    horizons={ERASE.meta.uid: NOW},
)
"""One batch more waits than the listing has named."""
CASES: Final[Mapping[str, tuple[dict[str, LookupView], str, str]]] = {
    "there is no such Dataset": ({}, "False", "DatasetNotFound"),
    "it was never listed": ({"customers": LookupView(CUSTOMERS)}, "False", "BufferBeingListed"),
    "it was listed before": (
        {"customers": LookupView(CUSTOMERS, a_table(), listed(AFTER, of="another"))},
        "False",
        "BufferBeingListed",
    ),
    "a batch came before": (
        {"customers": LookupView(CUSTOMERS, a_table(), listed(BEFORE, AFTER))},
        "False",
        "WaitsForBatches",
    ),
    "batches that are not named may have come before": (
        {"customers": LookupView(CUSTOMERS, a_table(), USED_UP)},
        "False",
        "WaitsForBatches",
    ),
    "a batch came before, and nothing promotes it": (
        {"customers": LookupView(SUSPENDED, a_table(), listed(BEFORE))},
        "True",
        "WaitsForBatches",
    ),
    "a batch came after": ({"customers": LookupView(CUSTOMERS, a_table(), listed(AFTER))}, "", ""),
}


def decided(lookups: Mapping[str, LookupView], erase: Restatement = ERASE) -> Actions:
    return decide(a_dataset(), a_world(restatements=(erase,), lookups=lookups), NOW, SETTINGS)


@pytest.mark.parametrize(("lookups", "stalled", "reason"), CASES.values(), ids=CASES)
def test_it_waits_for_what_came_before_it_to_the_other_dataset(
    lookups: dict[str, LookupView], stalled: str, reason: str
) -> None:
    actions = decided(lookups)

    assert members(actions) == ([] if reason else ["erase"])
    if reason:
        status = actions.restatement_statuses["erase"]
        assert (condition(status, "Stalled")[0], condition(status, "Ready")[1]) == (stalled, reason)
        assert "Dataset customers" in message(status, "Ready")


def test_a_table_outside_the_boundary_is_not_looked_up_in() -> None:
    boundary = {"ns": Boundary(tables=(a_dataset().spec.table.name,))}
    settings = replace(SETTINGS, boundaries=Boundaries(namespaces=boundary))
    world = a_world(restatements=(ERASE,), lookups={"customers": LookupView(ELSEWHERE, a_table(), listed())})

    actions = decide(a_dataset(), world, NOW, settings)
    allowed = decide(a_dataset(), world, NOW, SETTINGS)

    assert (members(actions), members(allowed)) == ([], ["erase"])
    assert condition(actions.restatement_statuses["erase"], "Ready")[1] == "OutsideBoundary"
    (run,) = (x.run for x in allowed.launches)
    outside = run.model_copy(update={"boundary": boundary["ns"].of_runs})
    with pytest.raises(InputError, match=r"OutsideBoundary: .*private\.people"):
        require_run_within(outside)


def test_its_run_is_told_which_table_that_is() -> None:
    (launch,) = decided({"customers": LookupView(CUSTOMERS, a_table(), listed())}).launches

    assert launch.run.restatement is not None
    ((_, via),) = [(c.column, c.via) for c in launch.run.restatement.requests[0].conditions if c.via is not None]
    spec = CUSTOMERS.spec
    assert (via.dataset, via.catalog, via.table) == ("customers", spec.table.catalog, spec.table.name)
    assert (via.from_column, via.to_column, via.batch_column) == ("email", "number", spec.batch_column)


@pytest.mark.parametrize(
    ("asked", "hurries"), [(ERASE, True), (an_erase(suspend=True), False), (an_erase(dryRun=True), False)]
)
def test_the_other_dataset_promotes_what_came_before_it_at_once(asked: Restatement, hurries: bool) -> None:
    world = a_world(buffer=listed(BEFORE), table=a_table(claim="ns/customers"), looked_up_by=(asked,))

    actions = decide(CUSTOMERS, world, NOW, SETTINGS)

    assert [x.run.family for x in actions.launches] == (["Consolidation"] if hurries else [])
    assert searching([asked]) == ({asked.meta.uid} if hurries else set())
    assert wants_listing([asked], NotListed(), a_table()) is hurries


def test_a_dataset_that_looks_up_in_itself_waits_for_its_own_batches_only() -> None:
    erase = an_erase("customers")
    view = LookupView(CUSTOMERS, a_table(), NotListed())

    world = a_world(table=a_table(claim="ns/customers"), restatements=(erase,), lookups={"customers": view})

    actions = decide(CUSTOMERS, world, NOW, SETTINGS)

    assert members(actions) == ["erase"]


def test_its_changes_concern_both_datasets() -> None:
    assert set(keys_of(RESTATEMENTS, body())) == {Key(DATASETS.name, "ns", n) for n in ("flights", "customers")}


def test_the_unfinished_ones_that_look_up_in_a_dataset_are_known() -> None:
    known = RestatementCache()
    ended = {
        "observedGeneration": 1,
        "conditions": [
            {"type": "Succeeded", "status": "True", "reason": "Succeeded", "lastTransitionTime": ago().isoformat()}
        ],
    }

    known.put(body())
    while_open = [r.meta.name for r in known.looking_up_in("ns", "customers")]
    known.put({**body(), "status": ended, "metadata": {**body()["metadata"], "resourceVersion": "9"}})

    assert while_open == ["erase"]
    assert known.looking_up_in("ns", "customers") == known.looking_up_in("ns", "flights") == ()


def test_what_a_reconcile_of_the_other_dataset_saw_is_passed_on_until_its_spec_changes() -> None:
    views, told = LookupViews(), list[tuple[str, str]]()
    views.on_change = lambda namespace, name: told.append((namespace, name))
    first, then = (LookupView(CUSTOMERS, a_table(), buffer) for buffer in (listed(BEFORE), listed()))
    newer = a_dataset("customers", meta={"generation": 2})

    views.put(first, [ERASE])
    views.put(first, [ERASE])
    views.put(then, [ERASE])

    assert told == [("ns", "flights")] * 2
    assert views.of(CUSTOMERS) is then
    assert views.of(newer) == LookupView(newer)
    views.put(then, [])
    assert views.of(CUSTOMERS) == LookupView(CUSTOMERS)
