"""What Prometheus scrapes from the committer and the warm driver."""

import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from lethe.contract.result import RunOutcome, RunResult
from lethe.contract.run import MailboxEntry
from lethe.contract.settings import RunFamily
from lethe_spark.committer.reports import CommitterHealth, CommitterMetrics
from lethe_spark.mailbox import Mailbox, MailboxMetrics, Post, metrics_port
from lethe_spark.warm_driver.metrics import WarmDriverMetrics

PAGE = Path(__file__).parents[4] / "docs/metrics.md"


def committer(mailbox: Mailbox[Any] | None = None, health: CommitterHealth | None = None) -> CommitterMetrics:
    return CommitterMetrics("ns", mailbox or Mailbox(), threading.Condition(), health or CommitterHealth())


def value(metrics: MailboxMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, {"namespace": "ns", **labels})


def a_mailbox(ages_seconds: Mapping[str, float]) -> Mailbox[Any]:
    """A mailbox with a run of another Dataset for each name, made so many seconds ago."""
    made: Mailbox[Any] = Mailbox()
    made.put(
        {
            name: MailboxEntry(
                dataset_uid=name,
                run_id=name,
                family=RunFamily.RESTATEMENT,
                config_map=f"{name}-runs",
                prefix=name,
                created_time=datetime.now(UTC) - timedelta(seconds=age),
            ).to_json()
            for name, age in ages_seconds.items()
        }
    )
    return made


def a_result(outcome: RunOutcome, reason: str) -> RunResult:
    return RunResult(
        run_id="1", family=RunFamily.RESTATEMENT, outcome=outcome, reason=reason, finished_time=datetime.now(UTC)
    )


def test_runs_are_counted_by_outcome_and_a_run_that_a_job_carries_out_is_no_failure() -> None:
    metrics = committer()
    for outcome, reason in (
        (RunOutcome.COMMITTED, "Committed"),
        (RunOutcome.FAILED, "CatalogOrStorageAway"),
        (RunOutcome.FAILED, "NeedsSpark"),
    ):
        metrics.result_delivered(a_result(outcome, reason), 0.3)

    found = {
        (s.labels["outcome"], s.labels["reason"]): s.value
        for m in metrics.registry.collect()
        for s in m.samples
        if s.name == "lethe_committer_runs_total"
    }
    assert found == {
        ("Committed", "Committed"): 1,
        ("Failed", "CatalogOrStorageAway"): 1,
        ("LeftToAJob", "NeedsSpark"): 1,
    }
    assert value(metrics, "lethe_committer_run_duration_seconds_count", kind="Restatement") == 3


def test_the_mailbox_shows_what_waits_what_is_in_progress_and_how_old_the_oldest_is() -> None:
    mailbox = a_mailbox({"a": 90, "b": 50, "c": 10})
    metrics = committer(mailbox)
    begun = mailbox.take(0.0)
    assert isinstance(begun, Post)

    waiting, running = "lethe_committer_runs_waiting", "lethe_committer_runs_in_progress"
    age = "lethe_committer_mailbox_oldest_age_seconds"
    assert (value(metrics, waiting), value(metrics, running)) == (2, 1)
    assert value(metrics, age) == pytest.approx(90, abs=5)

    mailbox.settled(begun, 1e12)  # later than the monotonic clock of this machine
    assert (value(metrics, waiting), value(metrics, running)) == (2, 0)
    assert value(metrics, age) == pytest.approx(50, abs=5)

    mailbox.put({})
    assert (value(metrics, waiting), value(metrics, age)) == (0, 0)


def test_a_committer_is_healthy_while_it_renews_its_lease() -> None:
    health = CommitterHealth()
    metrics = committer(health=health)
    assert value(metrics, "lethe_committer_healthy") == 0

    health.mailbox_time = health.jvm_time = 1e12

    assert value(metrics, "lethe_committer_healthy") == 1


def test_counters_start_at_zero_so_that_the_first_event_is_an_increase() -> None:
    metrics = committer()

    assert value(metrics, "lethe_committer_runs_put_off_total") == 0
    assert value(metrics, "lethe_committer_upkeeps_total") == 0


def test_without_a_port_nothing_is_served() -> None:
    assert metrics_port({}) is None
    assert metrics_port({"LETHE_METRICS_PORT": "9090"}) == 9090


def test_the_page_about_metrics_names_every_one() -> None:
    page = PAGE.read_text()
    for metrics in (committer(), WarmDriverMetrics("ns", Mailbox(), threading.Condition())):
        names = {m.name + ("_total" if m.type == "counter" else "") for m in metrics.registry.collect()}
        assert {n for n in names if n.startswith("lethe_") and f"`{n}`" not in page} == set()
