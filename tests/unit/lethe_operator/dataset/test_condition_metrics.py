"""Ready and Stalled of every resource as metrics: what alerts are made of."""

from pathlib import Path
from typing import Any

from lethe.base.errors import Verdict
from lethe.contract.status import Condition
from lethe.kube import DATASETS, RESTATEMENTS, VACUUM_POLICIES
from lethe_operator import conditions
from lethe_operator.dataset.condition_metrics import ConditionMetrics
from lethe_operator.dataset.objects import WatchedObjects
from prometheus_client import CollectorRegistry

from tests.support.builders import NOW
from tests.support.resources import a_dataset_body, a_policy_body, a_restatement_body
from tests.support.statuses import document

HEALTHY = conditions.healthy(Verdict("Promoting", ""))
STALLED = conditions.stalled(Verdict("TableNotAdopted", ""))
FLIGHTS = {"namespace": "ns", "dataset": "flights"}


def a_status(*found: Condition, generation: int = 1) -> dict[str, Any]:
    return {
        "observedGeneration": generation,
        "conditions": [document(c) for c in conditions.written((), found, generation, NOW)],
    }


def shown(
    objects: WatchedObjects, acting: frozenset[str] = frozenset({"ns"})
) -> dict[str, list[tuple[dict[str, str], float]]]:
    registry = CollectorRegistry()
    registry.register(ConditionMetrics(objects, lambda: acting))
    return {m.name: [(s.labels, s.value) for s in m.samples] for m in registry.collect() if m.samples}


def test_a_dataset_shows_whether_it_is_ready_and_stalled_and_why() -> None:
    objects = WatchedObjects()
    objects.record_event(DATASETS, "ADDED", a_dataset_body(status=a_status(*STALLED)))

    assert shown(objects) == {
        "lethe_dataset_ready": [({**FLIGHTS, "reason": "TableNotAdopted"}, 0)],
        "lethe_dataset_stalled": [({**FLIGHTS, "reason": "TableNotAdopted"}, 1)],
    }


def test_the_reason_of_now_is_the_only_one() -> None:
    objects = WatchedObjects()
    for version, found in enumerate((STALLED, HEALTHY), 1):
        meta = {"resourceVersion": str(version)}
        objects.record_event(DATASETS, "MODIFIED", a_dataset_body(status=a_status(*found), meta=meta))

    assert shown(objects)["lethe_dataset_stalled"] == [({**FLIGHTS, "reason": "Promoting"}, 0)]


def test_a_dataset_with_an_invalid_spec_is_shown_too() -> None:
    objects = WatchedObjects()
    body = a_dataset_body(
        status=a_status(*conditions.stalled(Verdict("InvalidSpec", ""))), consolidation={"triggers": 3}
    )
    objects.record_event(DATASETS, "ADDED", body)

    assert shown(objects)["lethe_dataset_stalled"] == [({**FLIGHTS, "reason": "InvalidSpec"}, 1)]


def test_a_restatement_is_shown_until_it_has_succeeded() -> None:
    objects = WatchedObjects()
    succeeded = Condition.of(conditions.SUCCEEDED, conditions.TRUE, "Succeeded")
    failed = Condition.of(conditions.SUCCEEDED, conditions.FALSE, "UnknownBatch")
    for name, found in (
        ("done", (*conditions.healthy(Verdict("Succeeded", "")), succeeded)),
        ("failed", (*conditions.stalled(Verdict("UnknownBatch", "")), failed)),
        ("queued", conditions.waiting(Verdict("Queued", ""))),
    ):
        objects.record_event(RESTATEMENTS, "ADDED", a_restatement_body(name, status=a_status(*found)))

    assert shown(objects) == {
        "lethe_restatement_ready": [
            ({**FLIGHTS, "restatement": "failed", "reason": "UnknownBatch"}, 0),
            ({**FLIGHTS, "restatement": "queued", "reason": "Queued"}, 0),
        ],
        "lethe_restatement_stalled": [
            ({**FLIGHTS, "restatement": "failed", "reason": "UnknownBatch"}, 1),
            ({**FLIGHTS, "restatement": "queued", "reason": "Queued"}, 0),
        ],
    }


def test_a_vacuum_policy_shows_a_window_that_cannot_be_used() -> None:
    objects = WatchedObjects()
    body = a_policy_body(status=a_status(*conditions.stalled(Verdict("InvalidWindow", ""))))
    objects.record_event(VACUUM_POLICIES, "ADDED", body)

    labels = {"namespace": "ns", "vacuum_policy": "air", "reason": "InvalidWindow"}
    assert shown(objects) == {
        "lethe_vacuum_policy_ready": [(labels, 0)],
        "lethe_vacuum_policy_stalled": [(labels, 1)],
    }


def test_an_unknown_condition_has_no_value() -> None:
    objects = WatchedObjects()
    unknown = Condition.of(conditions.READY, conditions.UNKNOWN, "NotObserved")
    objects.record_event(DATASETS, "ADDED", a_dataset_body(status=a_status(unknown)))
    objects.record_event(DATASETS, "ADDED", a_dataset_body("new"))

    assert shown(objects) == {}


def test_a_standby_shows_nothing() -> None:
    objects = WatchedObjects()
    objects.record_event(DATASETS, "ADDED", a_dataset_body(status=a_status(*HEALTHY)))

    assert shown(objects, acting=frozenset()) == {}


def test_the_page_about_metrics_names_every_one() -> None:
    page = (Path(__file__).parents[4] / "docs/metrics.md").read_text()

    names = {m.name for m in ConditionMetrics(WatchedObjects(), frozenset).describe()}

    assert {n for n in names if f"`{n}`" not in page} == set()
