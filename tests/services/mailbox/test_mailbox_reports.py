"""What the operator hears of a run while it goes on: that it was begun, the phase of one that takes long, and one last word."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from lethe.contract.result import Phase, Progress
from lethe.kube import NotFound
from lethe_spark.committer import reports
from lethe_spark.committer.reports import Reporting
from lethe_spark.run.kube import StatusConfigMap

from tests.support import api_server
from tests.support.api_server import ApiServer
from tests.support.builders import a_run

NAME, PREFIX = "flights-runs", "0123456789ab"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with api_server.running(tmp_path) as running:
        running.create(NAME)
        yield running


def place(server: ApiServer) -> StatusConfigMap:
    return StatusConfigMap(server.api, NAME, PREFIX)


def reported(server: ApiServer) -> list[tuple[str, int]]:
    """Phases, each with how often the run was begun."""
    documents = [c["data"][f"{PREFIX}.progress.json"] for c in server.history() if "data" in c]
    return [(p.phase, p.begun) for p in map(Progress.model_validate_json, documents)]


def test_a_short_run_is_reported_once_until_it_ends(server: ApiServer) -> None:
    """Each patch makes the operator look at the whole Dataset."""
    with Reporting().of_run(a_run(), place(server), begun=2) as run:
        run.phase(Phase.COMMITTING)
        run.send()

        assert reported(server) == [("Planning", 2)]
        last = run.ended(Phase.SUCCEEDED, "done")

    assert (last.phase, last.message, last.begun) == ("Succeeded", "done", 2)


def test_a_long_run_reports_its_phases_and_nothing_after_its_end(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came after the result would be taken for another beginning."""
    monkeypatch.setattr(reports, "INTERVAL_SECONDS", 0.0)
    with Reporting().of_run(a_run(), place(server), begun=1) as run:
        run.phase(Phase.COMMITTING)
        run.send()
        run.send()
        assert reported(server) == [("Planning", 1), ("Committing", 1)]

        run.ended(Phase.FAILED)
        run.send()

    assert reported(server) == [("Planning", 1), ("Committing", 1)]


def test_phases_are_reported_by_another_thread(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "INTERVAL_SECONDS", 0.0)
    reporting = Reporting()
    reporting.start()

    with reporting.of_run(a_run(), place(server), begun=1) as run:
        run.phase(Phase.COMMITTING)
        server.wait_for(lambda: reported(server)[-1:] == [("Committing", 1)], 20)


def test_a_run_does_not_start_if_its_start_cannot_be_reported(server: ApiServer) -> None:
    server.refusals += [("PATCH", NAME, 404)]

    with pytest.raises(NotFound), Reporting().of_run(a_run(), place(server), begun=1):
        pytest.fail("begun")


def test_a_later_failure_to_report_progress_is_ignored(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reports, "INTERVAL_SECONDS", 0.0)
    with Reporting().of_run(a_run(), place(server), begun=1) as run:
        server.refusals += [("PATCH", NAME, 503)]
        run.phase(Phase.COMMITTING)
        run.send()

    assert "progress could not be reported" in caplog.text
