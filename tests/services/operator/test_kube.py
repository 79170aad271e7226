"""Requests to the API server: each is counted, and none leaves the namespace that it is meant for."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from socket import socket
from typing import Any

import kubernetes.client
import pytest
from lethe.kube import DATASETS, JOBS, Away, Document, Kube, NotFound, ResourceKind
from lethe_operator.cluster.client import of_configuration
from lethe_operator.metrics import Metrics


class ApiServer(BaseHTTPRequestHandler):
    """Knows one Dataset and nothing else."""

    heard: Callable[[str], None] = [].append

    def do_GET(self) -> None:
        type(self).heard(self.path)
        found = self.path.endswith("/datasets/flights") or "/pods/driver/log?" in self.path
        self.send_response(200 if found else 404)
        self.end_headers()
        self.wfile.write(b"first\nsecond \xff\nlast" if "/log?" in self.path else b"{}")

    do_PATCH = do_DELETE = do_GET

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), ApiServer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def asked(address: str) -> tuple[Kube, list[str]]:
    """A client, and the paths of its requests as the server got them."""
    paths: list[str] = []
    kube = kube_at(address, Metrics())
    ApiServer.heard = paths.append
    return kube, paths


ESCAPES = [
    "../../other/datasets/flights",
    "../../../namespaces/other/datasets/flights",
    "x/../../../other/datasets/flights",
    "..%2f..%2fother%2fdatasets%2fflights",
    "..",
    ".",
    "",
    "flights?fieldManager=x",
    "flights#x",
    "flights/status",
    "a b",
    "flüge",
]


@pytest.mark.parametrize("name", ESCAPES)
def test_a_name_that_no_object_can_have_is_not_found_and_not_asked_for(
    asked: tuple[Kube, list[str]], name: str
) -> None:
    """A Restatement or a ConfigMap reference names an object of its own namespace; a path would reach another one."""
    kube, paths = asked

    for request in (
        lambda: kube.get(DATASETS, "ns", name),
        lambda: kube.patch(DATASETS, "ns", name, {"spec": {}}),
    ):
        with pytest.raises(NotFound, match="not a valid object name"):
            request()
    kube.delete(DATASETS, "ns", name)

    assert paths == []


def test_names_that_objects_have_are_asked_for(asked: tuple[Kube, list[str]]) -> None:
    kube, paths = asked

    for name in ("flights", "a.b-c.d", "system:x"):
        with suppress(NotFound):
            kube.get(DATASETS, "ns", name)

    assert [p.rpartition("/")[2] for p in paths] == ["flights", "a.b-c.d", "system:x"]


def kube_at(host: str, metrics: Metrics) -> Kube:
    configuration = kubernetes.client.Configuration()
    configuration.host = host
    kube = Kube(of_configuration(configuration))
    kube.on_request = metrics.api_request
    return kube


def test_requests_are_counted_by_method_resource_and_answer(address: str) -> None:
    metrics = Metrics()
    kube = kube_at(address, metrics)

    kube.get(DATASETS, "ns", "flights")
    kube.get(DATASETS, "ns", "flights")
    with pytest.raises(NotFound):
        kube.get(JOBS, "ns", "gone")

    count = metrics.registry.get_sample_value
    asked = {"method": "GET", "resource": "datasets", "status": "200"}
    assert count("lethe_api_requests_total", asked) == 2
    assert count("lethe_api_requests_total", {**asked, "resource": "jobs", "status": "404"}) == 1


def test_a_request_without_an_answer_is_counted_too() -> None:
    with closing(socket()) as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        metrics = Metrics()
        kube = kube_at(f"http://127.0.0.1:{taken.getsockname()[1]}", metrics)

        with pytest.raises(Away):
            kube.get(DATASETS, "ns", "flights")

    asked = {"method": "GET", "resource": "datasets", "status": "0"}
    assert metrics.registry.get_sample_value("lethe_api_requests_total", asked) == 1


class Heard:
    """What answers to writes tell."""

    def __init__(self) -> None:
        self.told: list[tuple[str, ...]] = []

    def written(self, kind: ResourceKind, body: Document) -> None:
        self.told.append(("written", kind.name, *body))

    def deleted(self, kind: ResourceKind, namespace: str, name: str, answer: Document) -> None:
        self.told.append(("deleted", kind.name, namespace, name, *answer))

    def unanswered(self, kind: ResourceKind, namespace: str, name: str) -> None:
        self.told.append(("unanswered", kind.name, namespace, name))


def test_answers_to_writes_are_passed_on_and_answers_to_reads_are_not(asked: tuple[Kube, list[str]]) -> None:
    kube, heard = asked[0], Heard()
    kube.answers = heard

    kube.get(DATASETS, "ns", "flights")
    kube.patch(DATASETS, "ns", "flights", {"spec": {}})
    kube.delete(DATASETS, "ns", "flights")
    kube.delete(DATASETS, "ns", "gone")
    with pytest.raises(NotFound):
        kube.patch(DATASETS, "ns", "gone", {"spec": {}})

    assert heard.told == [("written", "Dataset"), ("deleted", "Dataset", "ns", "flights")]


def test_a_write_without_an_answer_is_passed_on_as_doubtful() -> None:
    """The API server may have carried it out."""
    heard = Heard()
    with closing(socket()) as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        kube = kube_at(f"http://127.0.0.1:{taken.getsockname()[1]}", Metrics())
        kube.answers = heard
        for write in (
            lambda: kube.create(JOBS, "ns", {"metadata": {"name": "j"}}),
            lambda: kube.patch(DATASETS, "ns", "flights", {"spec": {}}, "status"),
            lambda: kube.delete(JOBS, "ns", "j"),
            lambda: kube.get(JOBS, "ns", "j"),
        ):
            with pytest.raises(Away):
                write()

    assert heard.told == [
        ("unanswered", "Job", "ns", "j"),
        ("unanswered", "Dataset", "ns", "flights"),
        ("unanswered", "Job", "ns", "j"),
    ]


@pytest.mark.parametrize(("follow", "query"), [(False, ""), (True, "&follow=true")])
def test_a_log_is_read_line_by_line(asked: tuple[Kube, list[str]], follow: bool, query: str) -> None:
    kube, paths = asked

    assert list(kube.log("air", "driver", "lethe", 5, follow)) == ["first", "second \ufffd", "last"]
    assert paths == [f"/api/v1/namespaces/air/pods/driver/log?container=lethe&tailLines=5{query}"]
    with pytest.raises(NotFound):
        list(kube.log("air", "gone", "lethe"))
