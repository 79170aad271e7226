"""Progress and results reach a real HTTPS server, in order, and a server that is away does no harm."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from lethe.contract.result import AnyRunResult, Phase, Progress, RunResult
from lethe.contract.run import RunKind
from lethe.kube import ApiEndpoint, Kube
from lethe.version import version
from lethe_spark.run import progress
from lethe_spark.run.kube import PodApi, StatusConfigMap
from lethe_spark.run.progress import Reporter, sink_of

from tests.support import api_server
from tests.support.api_server import ApiServer
from tests.support.builders import a_run, a_run_result, read_result

NAME = "flights-runs"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    with api_server.running(tmp_path) as running:
        running.create(NAME)
        yield running


def config_map(api: ApiServer) -> StatusConfigMap:
    return StatusConfigMap(api.api, NAME, "0123456789ab")


def test_one_key_of_the_config_map_is_patched_and_no_other_touched(api: ApiServer) -> None:
    """With the pod's token, as a merge patch: the server takes nothing else."""
    api.put(NAME, other="kept")

    config_map(api).put("progress.json", "{}")

    assert api.data(NAME) == {"other": "kept", "0123456789ab.progress.json": "{}"}


def test_phases_are_reported_in_order_and_the_end_is_last(api: ApiServer) -> None:
    reporter = Reporter(a_run(), lambda p: config_map(api).put("progress.json", p.to_json()))
    for phase in (Phase.PLANNING, Phase.WRITING):
        reporter.phase(phase, "m")
        api.wait_for(lambda p=phase: reported(api)[-1:] == [p], 10)  # type: ignore[misc]
    reporter.close(Phase.SUCCEEDED)

    phases = reported(api)
    assert phases == sorted(set(phases), key=phases.index)
    assert phases[-3:] == ["Planning", "Writing", "Succeeded"]


def reported(api: ApiServer) -> list[str]:
    """The phases that the ConfigMap has shown."""
    documents = [c["data"].get("0123456789ab.progress.json") for c in api.history() if "data" in c]
    return [Progress.model_validate_json(d).phase for d in documents if d]


def test_nothing_is_reported_twice_within_the_interval() -> None:
    reported: list[Progress] = []
    reporter = Reporter(a_run(), reported.append, interval=3600)
    for n in range(1000):
        reporter.rows(n)
    reporter.close(Phase.SUCCEEDED)

    assert len(reported) <= 2
    assert reported[-1].rows == 999


def test_an_api_server_that_is_away_does_not_stop_a_run() -> None:
    nobody = StatusConfigMap(PodApi(Kube(ApiEndpoint("https://127.0.0.1:9")), "air"), "x", "p")

    reporter = Reporter(a_run(), lambda p: nobody.put("progress.json", p.to_json()))
    reporter.phase(Phase.WRITING)
    reporter.close(Phase.SUCCEEDED)


def as_made(document: str) -> RunResult:
    """The result as the run has made it, apart from what the process adds."""
    found = read_result(document)
    assert found.cpu_seconds > 0
    assert found == a_result().model_copy(update={"version": version(), "cpu_seconds": found.cpu_seconds})
    return found


def test_a_result_is_sent_again_until_the_api_server_takes_it(api: ApiServer) -> None:
    api.refusals = [("PATCH", NAME, 503)]
    log_file = api.account / "termination-log"
    log_file.touch()
    status = {"LETHE_STATUS_CONFIGMAP": NAME, "LETHE_STATUS_PREFIX": "0123456789ab"}

    progress.deliver(a_result(), {**api.environment, **status, "LETHE_TERMINATION_LOG": str(log_file)})

    assert as_made(api.data(NAME)["0123456789ab.result.json"]) == as_made(log_file.read_text())


def test_from_a_shell_the_result_goes_to_stdout_and_progress_to_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress.deliver(a_result(), {"LETHE_TERMINATION_LOG": str(tmp_path / "none")})
    reporter = Reporter(a_run(), sink_of({"LETHE_PROGRESS_FILE": str(tmp_path / "progress.json")}))
    reporter.close(Phase.FAILED, "why")

    assert as_made(capsys.readouterr().out).version
    shown = Progress.model_validate_json((tmp_path / "progress.json").read_text())
    assert (shown.phase, shown.message) == ("Failed", "why")
    assert [p.name for p in tmp_path.iterdir()] == ["progress.json"]


def a_result() -> AnyRunResult:
    return a_run_result(RunKind.CONSOLIDATION)
