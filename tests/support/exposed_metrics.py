"""The metrics that Lethe's processes really expose: their own classes are used once, and what they serve is parsed."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from lethe.base.errors import Verdict
from lethe.buffer.batch_rows import STATES, Total, Totals
from lethe.contract.result import RunOutcome, RunResult
from lethe.contract.settings import RunFamily
from lethe.contract.status import Status
from lethe.kube import DATASETS, RESTATEMENTS, VACUUM_POLICIES
from lethe_gateway.limits import GatewayMetrics
from lethe_inlet.serving import InletMetrics, SourceSeen
from lethe_operator import conditions
from lethe_operator.cluster.schedule import Key, Priority, Schedule
from lethe_operator.dataset.condition_metrics import ConditionMetrics
from lethe_operator.dataset.objects import WatchedObjects
from lethe_operator.metrics import GAUGES, Metrics
from lethe_operator.publish.publisher import Lag, PublishingMetrics
from lethe_operator.reasons import Reason
from lethe_spark.committer.reports import CommitterHealth, CommitterMetrics
from lethe_spark.mailbox import Mailbox
from lethe_spark.warm_driver.serve import WarmDriverMetrics
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.builders import NOW
from tests.support.resources import a_dataset_body, a_policy_body, a_restatement_body
from tests.support.statuses import a_dataset_status, document


def exposed() -> dict[str, frozenset[str]]:
    """The labels of each sample, by its name: of a histogram, those of `…_bucket`, `…_count` and `…_sum`."""
    found: dict[str, frozenset[str]] = {}
    for registry in _registries():
        for family in text_string_to_metric_families(generate_latest(registry).decode()):
            assert family.samples, f"{family.name} has no sample: use it in tests/support/exposed_metrics.py"
            for sample in family.samples:
                found[sample.name] = found.get(sample.name, frozenset()) | frozenset(sample.labels)
    return found


def _registries() -> Iterator[CollectorRegistry]:
    yield _operator()
    yield _committer()
    yield _warm_driver()
    gateway = GatewayMetrics()
    gateway.request_ended("/v1", "GET", 200, 0.1)
    yield gateway.registry
    yield InletMetrics(lambda: [SourceSeen("ns", "flights", Reason.SOURCE_READ, 1.0)]).registry


def _operator() -> CollectorRegistry:
    metrics, schedule = Metrics(), Schedule(1, 1)
    decided = {"decision": "Due", "reason": "OldEnough"}
    every_state = Totals({state: Total(1, 1, 1) for state in STATES})
    numbers = dict.fromkeys(GAUGES, 1.0)
    metrics.show("ns", "flights", a_dataset_status(consolidation=decided, vacuum=decided), numbers, every_state)
    metrics.run_ended("ns", "flights", "Vacuum", "Succeeded")
    metrics.messages("ns", "flights", "Received", 1)
    metrics.api_request("GET", "datasets", 200)
    metrics.catalog_query("main")
    metrics.acts_in("ns", True)
    metrics.warm_driver_made_way("ns")
    metrics.version_skew("ns", False)
    metrics.leads(0, True)
    with metrics.reconcile("Dataset"):
        pass
    metrics.watch_queue(schedule.depth)
    schedule.add(Key("Dataset", "ns", "flights"), Priority.CHANGED, 0.0)
    start = schedule.take(1.0)
    assert start is not None
    metrics.reconcile_starts(start)
    objects = WatchedObjects()
    status = document(Status(conditions=conditions.written((), conditions.stalled(Verdict("X", "")), 1, NOW)))
    objects.record_event(DATASETS, "ADDED", a_dataset_body(status=status))
    objects.record_event(RESTATEMENTS, "ADDED", a_restatement_body(status=status))
    objects.record_event(VACUUM_POLICIES, "ADDED", a_policy_body(status=status))
    metrics.registry.register(ConditionMetrics(objects, lambda: frozenset({"ns"})))
    publisher: Any = _Published()
    PublishingMetrics(metrics.registry, {"StatusEvents": publisher})
    publisher.on_sent("ns", "flights", 1)
    publisher.on_failure(Reason.SINK_UNAVAILABLE)
    return metrics.registry


class _Published:
    """What the metrics of status events read of a publisher, and where they ask to be called."""

    on_sent: Any
    on_failure: Any
    on_forget: Any

    def lags(self) -> list[Lag]:
        return [Lag("ns", "flights", 1, 1.0)]


def _committer() -> CollectorRegistry:
    metrics = CommitterMetrics("ns", Mailbox(), threading.Condition(), CommitterHealth())
    result = RunResult(
        run_id="1",
        family=RunFamily.RESTATEMENT,
        outcome=RunOutcome.COMMITTED,
        reason="Committed",
        finished_time=datetime.now(UTC),
    )
    metrics.result_delivered(result, 0.1)
    return metrics.registry


def _warm_driver() -> CollectorRegistry:
    metrics = WarmDriverMetrics("ns", Mailbox(), threading.Condition())
    metrics.run_ended(RunFamily.VACUUM, "Delivered", "", 0.1)
    return metrics.registry
