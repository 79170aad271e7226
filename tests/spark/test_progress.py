"""Progress and results reach a real HTTPS server, in order, and a server that is away does no harm."""

import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from lethe.run import Phase, Progress, RunResult
from lethe_spark import result
from lethe_spark.kube import Api, StatusConfigMap
from lethe_spark.progress import Reporter, running_tasks, sink_of
from pyspark.sql import SparkSession

from tests.builders import a_run


@dataclass
class ApiServer:
    """Takes merge patches of one ConfigMap, and remembers them."""

    account: Path
    port: int = 0
    refuses: int = 0  # how many requests to answer with 503 first
    patches: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    arrived: threading.Event = field(default_factory=threading.Event)

    def config_map(self) -> StatusConfigMap:
        return StatusConfigMap(Api("localhost", self.port, "air", self.account), "flights-runs", "0123456789ab")


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", "key.pem", "-out", "ca.crt"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject, *files]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "token").write_text("the-token\n")
    server = ApiServer(tmp_path)

    class Handler(BaseHTTPRequestHandler):
        def do_PATCH(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            refused = server.refuses > 0
            server.refuses -= 1
            if not refused:
                server.patches.append((self.path, dict(self.headers), body))
                server.arrived.set()
            self.send_response(503 if refused else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    http = HTTPServer(("localhost", 0), Handler)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(tmp_path / "ca.crt", tmp_path / "key.pem")
    http.socket = tls.wrap_socket(http.socket, server_side=True)
    server.port = http.server_port
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    yield server
    http.shutdown()
    http.server_close()


def test_one_key_of_the_config_map_is_patched_with_the_pods_token(api: ApiServer) -> None:
    api.config_map().put("progress.json", "{}")

    ((path, headers, body),) = api.patches
    assert path.startswith("/api/v1/namespaces/air/configmaps/flights-runs")
    assert (headers["Authorization"], headers["Content-Type"]) == ("Bearer the-token", "application/merge-patch+json")
    assert body == {"data": {"0123456789ab.progress.json": "{}"}}


def test_phases_are_told_in_order_and_the_end_is_the_last_word(api: ApiServer) -> None:
    config_map = api.config_map()
    reporter = Reporter(a_run(), lambda p: config_map.put("progress.json", p.to_json()))
    for phase in (Phase.PLANNING, Phase.WRITING):
        api.arrived.wait(10)
        api.arrived.clear()
        reporter.phase(phase, "m")
    reporter.close(Phase.SUCCEEDED)

    told = [Progress.model_validate_json(body["data"]["0123456789ab.progress.json"]) for _, _, body in api.patches]
    phases = [p.phase for p in told]
    assert phases == sorted(set(phases), key=phases.index)
    assert (phases[0], phases[-1]) == ("Starting", "Succeeded")


def test_nothing_is_told_twice_within_the_interval() -> None:
    told: list[Progress] = []
    reporter = Reporter(a_run(), told.append, interval=3600)
    for n in range(1000):
        reporter.rows(n)
    reporter.close(Phase.SUCCEEDED)

    assert len(told) <= 2
    assert told[-1].rows == 999


def test_an_api_server_that_is_away_does_not_stop_a_run(tmp_path: Path) -> None:
    nobody = StatusConfigMap(Api("127.0.0.1", 9, "air", tmp_path), "x", "p")
    (tmp_path / "token").write_text("t")
    (tmp_path / "ca.crt").write_text("")

    reporter = Reporter(a_run(), lambda p: nobody.put("progress.json", p.to_json()))
    reporter.phase(Phase.WRITING)
    reporter.close(Phase.SUCCEEDED)


def test_a_result_is_sent_again_until_the_api_server_takes_it(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    api.refuses = 1
    monkeypatch.setattr(StatusConfigMap, "from_environment", lambda _: api.config_map())
    log_file = api.account / "termination-log"
    log_file.touch()

    result.deliver(a_result(), {"LETHE_TERMINATION_LOG": str(log_file)})

    ((_, _, body),) = api.patches
    assert a_result() == RunResult.model_validate_json(body["data"]["0123456789ab.result.json"])
    assert a_result() == RunResult.model_validate_json(log_file.read_text())


def test_from_a_shell_the_result_goes_to_stdout_and_progress_to_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result.deliver(a_result(), {"LETHE_TERMINATION_LOG": str(tmp_path / "none")})
    reporter = Reporter(a_run(), sink_of({"LETHE_PROGRESS_FILE": str(tmp_path / "progress.json")}))
    reporter.close(Phase.FAILED, "why")

    assert a_result() == RunResult.model_validate_json(capsys.readouterr().out)
    told = Progress.model_validate_json((tmp_path / "progress.json").read_text())
    assert (told.phase, told.message) == ("Failed", "why")
    assert [p.name for p in tmp_path.iterdir()] == ["progress.json"]


def test_tasks_of_running_jobs_are_counted(spark: SparkSession) -> None:
    done, running = (
        threading.Event(),
        threading.Thread(
            target=lambda: spark.sparkContext.parallelize(range(4), 4).foreach(lambda _: __import__("time").sleep(1))
        ),
    )
    running.start()
    seen: tuple[int, int] = (0, 0)
    while running.is_alive() and seen[1] == 0:
        seen = running_tasks(spark.sparkContext)
        done.wait(0.05)
    running.join()

    assert seen[1] == 4
    assert running_tasks(spark.sparkContext) == (0, 0)


def a_result() -> RunResult:
    run = a_run()
    return RunResult(
        run_id=run.run_id, kind=run.kind, outcome="Committed", finished_time=datetime(2026, 1, 1, tzinfo=UTC)
    )
