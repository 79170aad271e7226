"""A run and its commit continue the trace of the reconcile that started them, in a Job and in the committer."""

import pytest
from lethe import tracing

from tests.spark.support.driver import Driver
from tests.spark.support.flights import Flights
from tests.support import trace_collector

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


def test_a_job_sends_its_run_and_its_commit(flights: Flights, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    flights.lake.buffer(flights.name).put("A", [{"v": 1, "day": 1}])
    spec = flights.run_of("A", traceparent=PARENT)
    monkeypatch.setenv("LETHE_LOG_FORMAT", "json")
    with trace_collector.running() as collector:
        monkeypatch.setenv(tracing.ENDPOINT, collector.url)

        ended = driver.run(spec)

    assert ended.code == 0, ended.log
    run, session, commit = (collector.named(n) for n in ("run Consolidation", "start Spark", "commit"))
    assert (run.service, run.trace, run.parent) == ("lethe-run", TRACE, SPAN)
    assert (run.attributes["lethe.run.id"], run.attributes["lethe.run.exit_code"]) == (spec.run_id, 0)
    assert {session.parent, commit.parent} == {run.id}
    assert ended.result is not None
    assert (ended.result.outcome, flights.rows_per_batch()) == ("Committed", {"A": 1})
    assert commit.attributes["lethe.snapshot.id"] == ended.result.snapshot_id
    assert "Committing" in run.events
    assert f'"trace": "{TRACE}"' in ended.log
