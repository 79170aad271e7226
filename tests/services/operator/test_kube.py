"""Requests to the API server: each is counted, has the token of its caller, and none leaves the namespace it is meant for."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from socket import socket

import pytest
import yaml
from lethe.kube import DATASETS, PODS, ApiEndpoint, Away, Document, NotFound, RequestRefused
from lethe_operator.cluster.client import JOBS, Kube, ResourceKind, connect_for_callers
from lethe_operator.metrics import Metrics

from tests.support import api_server
from tests.support.api_server import NAMESPACE, ApiServer
from tests.support.documents import dataset_spec


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    """With one Dataset."""
    with api_server.running(tmp_path) as running:
        running.create("flights", DATASETS, spec=dataset_spec())
        yield running


def counting(kube: Kube, metrics: Metrics) -> Kube:
    kube.on_request = metrics.api_request
    return kube


@pytest.fixture
def away() -> Iterator[Kube]:
    """A client of a server that is not there."""
    with closing(socket()) as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        yield Kube(ApiEndpoint(f"http://127.0.0.1:{taken.getsockname()[1]}"))


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


def test_a_name_that_no_object_can_have_is_not_found_and_not_asked_for(server: ApiServer) -> None:
    """A Restatement or a ConfigMap reference names an object of its own namespace; a path would reach another one."""
    kube = server.kube
    for name in ESCAPES:
        with pytest.raises(NotFound, match="not a valid object name"):
            kube.get(DATASETS, NAMESPACE, name)
        with pytest.raises(NotFound, match="not a valid object name"):
            kube.patch(DATASETS, NAMESPACE, name, {"spec": {}})
        kube.delete(DATASETS, NAMESPACE, name)

    assert server.requests == []


def test_names_that_objects_have_are_asked_for(server: ApiServer) -> None:
    for name in ("flights", "a.b-c.d", "system:x"):
        with suppress(NotFound):
            server.kube.get(DATASETS, NAMESPACE, name)

    assert [path.rpartition("/")[2] for _, path in server.requests] == ["flights", "a.b-c.d", "system:x"]


def test_requests_are_counted_by_method_resource_and_answer(server: ApiServer, away: Kube) -> None:
    """Also one without an answer."""
    metrics = Metrics()
    kube = counting(server.kube, metrics)

    kube.get(DATASETS, NAMESPACE, "flights")
    kube.get(DATASETS, NAMESPACE, "flights")
    with pytest.raises(NotFound):
        kube.get(JOBS, NAMESPACE, "gone")
    with pytest.raises(Away):
        counting(away, metrics).get(DATASETS, NAMESPACE, "flights")

    count = metrics.registry.get_sample_value
    asked = {"method": "GET", "resource": "datasets", "status": "200"}
    assert count("lethe_api_requests_total", asked) == 2
    assert count("lethe_api_requests_total", {**asked, "resource": "jobs", "status": "404"}) == 1
    assert count("lethe_api_requests_total", {**asked, "status": "0"}) == 1


class Heard:
    """What answers to writes tell."""

    def __init__(self) -> None:
        self.told: list[tuple[str, ...]] = []

    def written(self, kind: ResourceKind, body: Document) -> None:
        self.told.append(("written", kind.name, body["metadata"]["name"]))

    def deleted(self, kind: ResourceKind, namespace: str, name: str, answer: Document) -> None:
        self.told.append(("deleted", kind.name, namespace, name, answer["metadata"]["name"]))

    def unanswered(self, kind: ResourceKind, namespace: str, name: str) -> None:
        self.told.append(("unanswered", kind.name, namespace, name))


def test_answers_to_writes_are_passed_on_and_answers_to_reads_are_not(server: ApiServer) -> None:
    kube, heard = server.kube, Heard()
    kube.answers = heard

    kube.get(DATASETS, NAMESPACE, "flights")
    kube.patch(DATASETS, NAMESPACE, "flights", {"status": {}}, "status")
    kube.delete(DATASETS, NAMESPACE, "flights")
    kube.delete(DATASETS, NAMESPACE, "gone")
    with pytest.raises(NotFound):
        kube.patch(DATASETS, NAMESPACE, "gone", {"spec": {}})

    assert heard.told == [
        ("written", "Dataset", "flights"),
        ("deleted", "Dataset", NAMESPACE, "flights", "flights"),
    ]


def test_a_write_without_an_answer_is_passed_on_as_doubtful(away: Kube) -> None:
    """The API server may have carried it out."""
    away.answers = heard = Heard()

    for write in (
        lambda: away.create(JOBS, "ns", {"metadata": {"name": "j"}}),
        lambda: away.patch(DATASETS, "ns", "flights", {"spec": {}}, "status"),
        lambda: away.delete(JOBS, "ns", "j"),
        lambda: away.get(JOBS, "ns", "j"),
    ):
        with pytest.raises(Away):
            write()

    assert heard.told == [
        ("unanswered", "Job", "ns", "j"),
        ("unanswered", "Dataset", "ns", "flights"),
        ("unanswered", "Job", "ns", "j"),
    ]


@pytest.mark.parametrize("follow", [False, True])
def test_a_log_is_read_line_by_line(server: ApiServer, follow: bool) -> None:
    server.logs[f"{PODS.path('air', 'driver')}/log"] = b"first\nsecond \xff\nlast"

    assert list(server.kube.log("air", "driver", "lethe", 5, follow)) == ["first", "second \ufffd", "last"]
    assert server.queries == [{"container": "lethe", "tailLines": "5", **({"follow": "true"} if follow else {})}]
    with pytest.raises(NotFound):
        list(server.kube.log("air", "gone", "lethe"))


# --- in the name of callers ---


def test_each_request_has_the_token_of_its_caller(server: ApiServer) -> None:
    server.checks_tokens = False

    for token in ("one", "two"):
        server.kube.with_token(token).page(DATASETS, NAMESPACE)
    server.kube.page(DATASETS, NAMESPACE)

    assert server.tokens == ["one", "two", server.folder.token]


def test_a_client_for_callers_has_no_credentials_of_its_own(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server would prefer a client certificate to a caller's token."""
    server.checks_tokens = False
    (tmp_path / "c.pem").write_text("a certificate")
    document = yaml.safe_load(server.folder.kubeconfig.read_text())
    own = {"client-certificate": str(tmp_path / "c.pem"), "client-key": str(tmp_path / "c.pem")}
    document["users"][0]["user"] |= own
    (tmp_path / "config").write_text(yaml.safe_dump(document))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))

    kube = connect_for_callers()

    kube.page(DATASETS, NAMESPACE)
    assert server.tokens == [""]
    assert (kube.server.cert_file, kube.server.key_file) == (None, None)


# --- pages and watches ---


def test_a_page_has_a_size_and_the_version_of_its_list(server: ApiServer) -> None:
    for name in "abc":
        server.create(name, DATASETS)

    first = server.kube.page(DATASETS, NAMESPACE, limit=1)
    found = server.kube.page(DATASETS, NAMESPACE, limit=2, after=first.after)

    assert [o["metadata"]["name"] for o in (*first.items, *found.items)] == ["a", "b", "c"]
    assert (found.version, bool(found.after)) == (str(server.store.version()), True)
    assert server.queries == [{"limit": "1"}, {"limit": "2", "continue": first.after}]


def test_a_watch_gives_its_events_and_ends(server: ApiServer) -> None:
    before = str(server.store.version())
    server.create("other", DATASETS)
    server.patch("flights", DATASETS, {"status": {"a": 1}})
    server.patch("flights", DATASETS, {"status": {"a": 2}})

    found = list(server.kube.watch(DATASETS, NAMESPACE, before, "flights", seconds=1))

    events = [(e["type"], e["object"].get("status")) for e in found if e["type"] != "BOOKMARK"]
    assert events == [("MODIFIED", {"a": 1}), ("MODIFIED", {"a": 2})]
    assert server.queries == [
        {
            "watch": "true",
            "resourceVersion": before,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": "1",
            "fieldSelector": "metadata.name=flights",
        }
    ]


def test_a_watch_can_be_ended_from_another_thread(server: ApiServer) -> None:
    version = str(server.store.version())
    found = server.kube.watch(
        DATASETS, NAMESPACE, version, "flights", seconds=60, on_open=lambda end: threading.Timer(0.2, end).start()
    )
    started = time.monotonic()

    with suppress(Away):  # it looks like a connection that was cut off
        list(found)

    assert time.monotonic() - started < 20


def test_a_watch_that_is_forbidden_says_so(server: ApiServer) -> None:
    server.refusals = [("GET", "/datasets", 403)]

    with pytest.raises(RequestRefused):
        list(server.kube.watch(DATASETS, NAMESPACE, "1"))
