"""Each request to the API server is counted, whatever became of it."""

import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from socket import socket
from typing import Any

import kubernetes.client
import pytest
from lethe_operator.kube import DATASETS, JOBS, Away, Kube, NotFound
from lethe_operator.metrics import Metrics


class ApiServer(BaseHTTPRequestHandler):
    """Knows one Dataset and nothing else."""

    def do_GET(self) -> None:
        found = self.path.endswith("/datasets/flights")
        self.send_response(200 if found else 404)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), ApiServer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def kube_at(host: str, metrics: Metrics) -> Kube:
    configuration = kubernetes.client.Configuration()
    configuration.host = host
    kube = Kube(configuration)
    kube.counted = metrics.api_request
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
