"""What the operator does for thousands of objects takes processor time that grows with them and no faster."""

import time

import pytest
from lethe.kube import DATASETS
from lethe_operator.dataset.condition_metrics import ConditionMetrics
from lethe_operator.dataset.decide import decide
from lethe_operator.dataset.objects import WatchedObjects

from tests.support.builders import NOW
from tests.support.resources import (
    SETTINGS,
    a_dataset,
    a_dataset_body,
    a_group,
    a_replay,
    a_run,
    a_world,
    an_attempt,
)
from tests.unit.lethe_operator.dataset.test_condition_metrics import HEALTHY, a_status
from tests.unit.lethe_operator.test_schedule import CHANGED, PERIODIC, a_schedule, key

pytestmark = pytest.mark.long


def test_a_hundred_thousand_keys_cost_little() -> None:
    """Additions that replace others, and requests that nobody needs any more, are not kept for ever."""
    schedule = a_schedule(workers=8, per_namespace=6)
    keys = [key(n, f"ns{n % 100}") for n in range(100_000)]
    began = time.process_time()
    for k in keys:
        schedule.add(k, PERIODIC, 300.0)
    for k in keys:
        schedule.add(k, CHANGED, 0.3)
    count = 0
    while (start := schedule.take(1.0)) is not None:
        schedule.add(start.key, PERIODIC, 301.0)
        schedule.finish(start.key, 1.0)
        count += 1

    assert time.process_time() - began < 8
    assert count == 100_000
    assert len(schedule._later._items) <= 2 * 100_000


def test_a_scrape_of_thousands_takes_a_fraction_of_a_second() -> None:
    objects = WatchedObjects()
    for n in range(5_000):
        objects.record_event(DATASETS, "ADDED", a_dataset_body(f"d{n}", status=a_status(*HEALTHY)))
    metrics = ConditionMetrics(objects, lambda: frozenset({"ns"}))

    since = time.process_time()
    found = list(metrics.collect())

    assert sum(len(m.samples) for m in found) == 10_000
    assert time.process_time() - since < 1


def test_thousands_are_queued_in_time_that_grows_with_them() -> None:
    """Looking through the others for each of them took minutes."""
    many = [a_replay(f"b{n}", f"c{n}", f"r{n:05}") for n in range(5000)]
    spec = a_group(*many[:2500])
    world = a_world(restatements=tuple(many), runs=(a_run(spec, an_attempt(spec)),))
    began = time.process_time()

    actions = decide(a_dataset(), world, NOW, SETTINGS)

    assert actions.launches == ()
    assert time.process_time() - began < 10
