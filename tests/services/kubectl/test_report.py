"""The report of a broken setup helps, and contains none of the secrets and of the people in it."""

import json
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from lethe.kube import DATASETS, EVENTS, RESTATEMENTS, ApiEndpoint, Kube
from lethe_kubectl import report

from tests.services.kubectl.conftest import LocalApi
from tests.support.documents import resource

PLANTED = (
    "Lovelace",
    "lovelace@",
    "Gu3ssMe",
    "aB3dE6gH9jK2mN5pQ8sT1vW4xY7zA0bC3dE6fG9h",
    "X-Amz-Signature",
    "+44 20 7946",
    "catalog-secret-1",
)
LEAK = (
    "postgresql://lethe:Gu3ssMe@db/lake: row of ada.lovelace@example.org, key aB3dE6gH9jK2mN5pQ8sT1vW4xY7zA0bC3dE6fG9h, "
    "https://s3/x?X-Amz-Signature=12 phone +44 20 7946 0958, the catalog said catalog-secret-1"
)


def failed(reason: str) -> dict[str, Any]:
    return {
        "type": "Ready",
        "status": "False",
        "reason": reason,
        "message": f"expected a table, found none. {LEAK}",
        "lastTransitionTime": "2026-11-28T20:00:00Z",
    }


def log_of_run(local: LocalApi) -> Path:
    return local.folder.runs / "flights-vacuum-1-x/log"


@pytest.fixture
def broken(local: LocalApi) -> LocalApi:
    """Each text that a user, a program or an operator can set has something that must not get out."""
    status = {
        "conditions": [failed("TableNotFound")],
        "runs": [
            {
                "name": "flights-vacuum-1",
                "kind": "Vacuum",
                "phase": "Failed",
                "message": LEAK,
                "reason": "CatalogUnavailable",
            }
        ],
    }
    local.dataset(
        "flights",
        status=status,
        buffer={"uri": f"file://{local.folder.path}/buffer"},
        checks=[{"name": "names", "values": {"column": "name", "allowed": ["Lovelace"]}}],
        holds=[{"name": "case-1", "filter": "email = 'lovelace@example.org'", "reason": "Lovelace v. Babbage"}],
    )
    erase = {
        "datasetRef": {"name": "flights"},
        "operation": "Erase",
        "rows": {"column": "email", "valuesFrom": {"secretKeyRef": {"name": "erase-1", "key": "Lovelace"}}},
        "reason": "Lovelace asked",
        "ticket": "Lovelace-7",
    }
    document = resource("Restatement", "erase-1", erase)
    document["metadata"]["annotations"] = {"lethe.dev/requested-by": "lovelace@example.org"}
    local.kube.create(RESTATEMENTS, "default", document)
    local.kube.patch(RESTATEMENTS, "default", "erase-1", {"status": {"conditions": [failed("Stalled")]}}, "status")
    for file in (local.folder.parts / "operator/log", log_of_run(local)):
        file.parent.mkdir(parents=True)
        file.write_text(f"starting\n{LEAK}\nCommitFailedException: branch main has changed\n")
    return local


def contents(archive: Path) -> dict[str, str]:
    with tarfile.open(archive) as files:
        found = {m.name.partition("/")[2]: files.extractfile(m) for m in files.getmembers()}
        return {name: file.read().decode() for name, file in found.items() if file is not None}


def test_a_report_of_a_broken_setup_says_what_failed_and_tells_nothing_about_people_or_secrets(
    broken: LocalApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "_catalog_secrets", lambda: frozenset({"catalog-secret-1"}))
    target = tmp_path / "report.tar.gz"

    done = broken.lethe("report", "--file", str(target))

    assert done.exit_code == 0, done.output
    files = contents(target)
    assert [(name, word) for name, text in files.items() for word in PLANTED if word in text] == []
    assert {"versions.json", "conditions.txt", "resources/datasets.yaml", "logs/operator.log"} <= files.keys()
    assert "Ready=False TableNotFound" in files["conditions.txt"]
    assert "expected a table, found none." in files["resources/datasets.yaml"]
    assert "air.flights" in files["resources/datasets.yaml"]
    assert "CommitFailedException: branch main has changed" in files["logs/flights-vacuum-1.log"]
    assert "erase-1" in files["resources/restatements.yaml"]
    assert target.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("dataset", ["", "flights"])
def test_the_events_of_a_report_are_about_its_resources_and_their_runs(
    broken: LocalApi, tmp_path: Path, dataset: str
) -> None:
    """Those of other programs in the namespace are left out, and those of other Datasets only if all are asked for."""
    broken.dataset("sales", buffer={"uri": f"file://{broken.folder.path}/sales"})
    lethes = "lethe.dev/v1beta1"
    about = [(lethes, "Dataset", "flights"), (lethes, "Restatement", "erase-1"), ("v1", "Pod", "flights-vacuum-1-x")]
    others = [(lethes, "Dataset", "sales"), ("batch/v1", "Job", "sales-vacuum-1")]
    for api, kind, name in (*about, *others, ("v1", "Pod", "payroll-7")):
        of = {"apiVersion": api, "kind": kind, "name": name, "namespace": "default"}
        event = {"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": f"{name}.{kind.lower()}"}}
        broken.kube.create(
            EVENTS, "default", {**event, "regarding": of, "reason": "Seen", "note": "x", "type": "Normal"}
        )
    target = tmp_path / "report.tar.gz"

    broken.lethe("report", *filter(None, [dataset]), "--file", str(target))

    found = {e["regarding"] for e in json.loads(contents(target)["events.json"])}
    assert found == {f"{kind.lower()}/{name}" for _, kind, name in (*about, *([] if dataset else others))}


def test_what_cannot_be_read_is_named_and_a_file_is_never_overwritten(broken: LocalApi, tmp_path: Path) -> None:
    log_of_run(broken).unlink()
    target = tmp_path / "report.tar.gz"

    done, again = (broken.lethe("report", "flights", "--file", str(target)) for _ in range(2))

    assert (done.exit_code, again.exit_code) == (0, 10), again.output
    assert "logs/flights-vacuum-1.log: NoLog" in contents(target)["missing.txt"]
    assert len(broken.kube.list(DATASETS, "default")) == 1


def test_the_metrics_of_a_pod_are_read_through_the_api_server() -> None:
    asked: list[str] = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"lethe_runs_total 7\n")

        def log_message(self, format: str, *arguments: object) -> None:
            """Not to the console."""

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.handle_request).start()
        lines = list(
            Kube(ApiEndpoint(f"http://127.0.0.1:{server.server_port}")).proxied("ns", "operator-0", 9090, "metrics")
        )

    assert lines == ["lethe_runs_total 7"]
    assert [path.rstrip("?") for path in asked] == ["/api/v1/namespaces/ns/pods/operator-0:9090/proxy/metrics"]
