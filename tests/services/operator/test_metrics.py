"""What Prometheus scrapes: the numbers of a Dataset, counts of runs and reconciles, nothing of a Dataset that is gone."""

import socket
import time
import urllib.request
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from lethe.buffer.batch_rows import Total, Totals
from lethe.contract.status import ConsolidationStatus, DatasetStatus, RunEntry
from lethe.ledger.ledger import BatchState
from lethe_operator.cluster.schedule import Key, Priority, Schedule
from lethe_operator.dataset.decide import decide
from lethe_operator.metrics import GAUGES, Metrics, numbers_of
from lethe_operator.resources.observed import EventsView, NotListed
from lethe_operator.runs.retry import ended

from tests.support.builders import NOW, a_batch, a_ledger, a_tombstone, ago
from tests.support.resources import SETTINGS, a_buffered, a_dataset, a_table, a_world
from tests.support.statuses import a_dataset_status

FLIGHTS = {"namespace": "ns", "dataset": "flights"}


def numbers(
    oldest: datetime | None = None, listing: Any = None, behind: int | None = None, **world: Any
) -> dict[str, float]:
    """Of a Dataset in this world."""
    events = world.get("events")
    buffered = world.pop("buffered", ())
    status = decide(a_dataset(), a_world(*buffered, **world), NOW, SETTINGS).dataset_status
    assert status is not None
    return numbers_of(status, oldest, listing, events, NOW, behind)


def test_the_numbers_of_a_dataset_are_those_of_its_status() -> None:
    hidden = a_tombstone("X", evict_by=NOW + timedelta(hours=2))
    table = a_table(a_ledger(hidden, "Y", batches=[a_batch("P"), a_batch("X", BatchState.REVERTED, rows=6)]))
    buffered = (a_buffered("A", size=7), a_buffered("B", size=5))

    events = EventsView(is_read=True, in_flight=3, oldest_time=ago(seconds=20))

    found = numbers(ago(seconds=60), (1.5, 4), behind=2, buffered=buffered, table=table, events=events)

    assert found == {
        "lethe_buffer_batches": 2,
        "lethe_buffer_bytes": 12,
        "lethe_buffer_oldest_batch_age_seconds": 60,
        "lethe_active_tombstones": 2,
        "lethe_tombstoned_rows": 6,
        "lethe_evict_by_seconds": 7200,
        "lethe_evict_by_slack_seconds": 6300,
        "lethe_eviction_on_time": 0,  # nobody purges
        "lethe_open_erasures": 0,
        "lethe_overdue_erasures": 0,
        "lethe_blocked_erasures": 0,
        "lethe_promoted_batches": 1,
        "lethe_listing_duration_seconds": 1.5,
        "lethe_listing_objects": 4,
        "lethe_batches_behind": 2,
        "lethe_events_in_flight": 3,
        "lethe_events_oldest_age_seconds": 20,
    }
    of_source = {g for g in GAUGES if g.startswith("lethe_source_")}
    others = {"lethe_listing_pause_seconds", "lethe_holds"}  # which reconciles add; of a Dataset with holds
    assert found.keys() | of_source | others == GAUGES.keys()


def test_the_numbers_of_a_source_are_those_that_the_inlet_reports() -> None:
    reported = {"lag": 3, "rows": 100, "refusedMessages": 2, "lostOffsets": 7, "epoch": 1}

    found = numbers_of(a_dataset_status(source=reported), None, None, None, NOW)

    assert found == {
        "lethe_source_lag": 3,
        "lethe_source_rows": 100,
        "lethe_source_refused_messages": 2,
        "lethe_source_lost_offsets": 7,
    }


def test_what_is_not_known_is_not_there_rather_than_0() -> None:
    metrics = Metrics()
    metrics.show("ns", "flights", DatasetStatus(), numbers(ago(seconds=60), (1.5, 4), buffered=(a_buffered("A"),)))
    assert metrics.registry.get_sample_value("lethe_buffer_batches", FLIGHTS) == 1

    metrics.show("ns", "flights", DatasetStatus(), numbers(buffer=NotListed()))

    assert metrics.registry.get_sample_value("lethe_buffer_batches", FLIGHTS) is None
    assert metrics.registry.get_sample_value("lethe_active_tombstones", FLIGHTS) == 0


def test_ages_and_remaining_times_are_right_between_two_looks() -> None:
    """An idle Dataset is looked at every half an hour."""
    times = iter((0.0, *[600.0] * 9))
    metrics = Metrics(lambda: next(times))
    shown = {
        "lethe_buffer_oldest_batch_age_seconds": 60.0,
        "lethe_events_oldest_age_seconds": 0.0,  # none waits
        "lethe_evict_by_slack_seconds": 100.0,
        "lethe_buffer_batches": 1.0,
    }
    metrics.show("ns", "flights", DatasetStatus(), shown)

    assert {name: metrics.registry.get_sample_value(name, FLIGHTS) for name in shown} == {
        "lethe_buffer_oldest_batch_age_seconds": 660,
        "lethe_events_oldest_age_seconds": 0,
        "lethe_evict_by_slack_seconds": -500,
        "lethe_buffer_batches": 1,
    }


def test_the_decision_of_now_is_the_only_one_that_is_1() -> None:
    metrics = Metrics()
    for decision, reason in (("Later", "BelowTriggers"), ("Due", "OldEnough")):
        metrics.show("ns", "flights", a_dataset_status(consolidation={"decision": decision, "reason": reason}), {})

    (family,) = [m for m in metrics.registry.collect() if m.name == "lethe_consolidation_decision"]
    assert [(s.labels, s.value) for s in family.samples] == [({**FLIGHTS, "decision": "Due", "reason": "OldEnough"}, 1)]


def test_the_decision_about_a_vacuum_is_shown_too() -> None:
    metrics = Metrics()
    metrics.show("ns", "flights", a_dataset_status(vacuum={"decision": "NeedsApproval", "reason": "NeedsApproval"}), {})
    metrics.show("ns", "flights", a_dataset_status(vacuum={"decision": "Later", "reason": "BelowTriggers"}), {})

    (family,) = [m for m in metrics.registry.collect() if m.name == "lethe_vacuum_decision"]
    assert [s.labels["decision"] for s in family.samples] == ["Later"]


def test_without_an_evict_by_its_metrics_are_missing() -> None:
    found = numbers(table=a_table(a_ledger("X")))

    assert not {name for name in found if "evict" in name}


def test_batches_are_shown_by_state_with_zeros_and_rows_and_bytes_of_states_that_have_any() -> None:
    metrics = Metrics()
    count = metrics.registry.get_sample_value
    metrics.show("ns", "flights", DatasetStatus(), {}, Totals({"promoted": Total(2, 30, 400)}))

    promoted, refused = {**FLIGHTS, "state": "promoted"}, {**FLIGHTS, "state": "refused"}
    names = ("lethe_batches", "lethe_batches_rows", "lethe_batches_bytes")
    assert [count(n, promoted) for n in names] == [2, 30, 400]
    assert [count(n, refused) for n in names] == [0, None, None]

    metrics.show("ns", "flights", DatasetStatus(), {})
    assert [count(n, promoted) for n in names] == [None, None, None]


def test_nothing_waits_for_no_time() -> None:
    assert numbers()["lethe_buffer_oldest_batch_age_seconds"] == 0


def test_a_run_that_ends_is_counted_once_by_kind_and_outcome() -> None:
    run = RunEntry(name="j1", kind="Vacuum", phase="Writing")
    done = run.model_copy(update={"phase": "Succeeded"})
    other = RunEntry(name="j2", kind="Consolidation", phase="Failed")

    assert ended([run], [done, other]) == [done, other]
    assert ended([done, other], [done, other]) == []
    # It had been told failed before its commit was seen.
    assert ended([run.model_copy(update={"phase": "Failed"})], [done]) == [done]


def test_reconciles_are_counted_and_measured_and_so_are_those_that_fail() -> None:
    metrics = Metrics()
    with metrics.reconcile("Dataset"):
        pass
    with pytest.raises(RuntimeError), metrics.reconcile("Dataset"):
        raise RuntimeError

    count = metrics.registry.get_sample_value
    assert count("lethe_reconciles_total", {"kind": "Dataset"}) == 2
    assert count("lethe_reconcile_failures_total", {"kind": "Dataset"}) == 1
    assert count("lethe_reconcile_duration_seconds_count", {"kind": "Dataset"}) == 2


def test_the_queue_shows_its_depth_and_how_late_it_is() -> None:
    metrics, schedule = Metrics(), Schedule(1, 1)
    metrics.watch_queue(schedule.depth)
    for n in range(3):
        schedule.add(Key("Dataset", "ns", str(n)), Priority.DUE, 1.0)

    start = schedule.take(5.0)
    assert start is not None
    metrics.reconcile_starts(start)

    value = metrics.registry.get_sample_value
    depths = {p: value("lethe_queue_depth", {"priority": p}) for p in ("Changed", "Due", "Periodic")}
    assert depths == {"Changed": 0, "Due": 2, "Periodic": 0}
    assert value("lethe_queue_lateness_seconds_sum", {"priority": "Due"}) == 4


def test_a_dataset_that_is_gone_leaves_no_numbers() -> None:
    metrics = Metrics()
    for name in ("flights", "other"):
        decided = {"decision": "Due", "reason": "OldEnough"}
        metrics.show("ns", name, a_dataset_status(consolidation=decided, vacuum=decided), numbers(), Totals())
        metrics.run_ended("ns", name, "Vacuum", "Succeeded")
        metrics.messages("ns", name, "Received", 2)

    metrics.forget("ns", "flights")

    left = {s.labels["dataset"] for m in metrics.registry.collect() for s in m.samples if "dataset" in s.labels}
    assert left == {"other"}


def test_they_are_served_as_prometheus_reads_them() -> None:
    metrics = Metrics()
    metrics.show("ns", "flights", DatasetStatus(), numbers(buffered=(a_buffered("A"),)))
    metrics.run_ended("ns", "flights", "Consolidation", "Succeeded")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    metrics.serve(port)

    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()

    assert 'lethe_buffer_batches{dataset="flights",namespace="ns"} 1.0' in page
    assert 'lethe_runs_total{dataset="flights",kind="Consolidation",namespace="ns",outcome="Succeeded"} 1.0' in page
    assert "process_resident_memory_bytes" in page


def test_the_page_about_metrics_names_every_one() -> None:
    page = (Path(__file__).parents[3] / "docs/metrics.md").read_text()
    families = {m.name + ("_total" if m.type == "counter" else "") for m in Metrics().registry.collect()}

    missing = {f for f in families if f.startswith("lethe_") and f"`{f}`" not in page}

    assert (missing, len(families) > len(GAUGES)) == (set(), True)


def test_showing_a_dataset_among_thousands_takes_no_longer_than_alone() -> None:
    """The client library searches all series to remove those of one Dataset."""
    metrics = Metrics()
    status = DatasetStatus(consolidation=ConsolidationStatus(decision="Later", reason="NothingWaits"))

    def seconds() -> float:
        since = time.process_time()
        for _ in range(200):
            metrics.show("ns", "flights", status, {"lethe_buffer_batches": 1.0})
        return time.process_time() - since

    alone = min(seconds() for _ in range(3))
    for n in range(5_000):
        metrics.show("ns", f"other-{n}", status, dict.fromkeys(GAUGES, 1.0))

    assert min(seconds() for _ in range(3)) < 20 * alone + 0.01
