"""What the client of the gateway asks for, what it makes of the answers, and when it asks again."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import lethe
import pytest
import requests
from lethe.base.errors import InputError, TransientError
from lethe.client import AT_ONCE
from lethe_gateway.app import openapi, routes

GATEWAY, STORE = "http://gateway", "http://store"
PREFIX = "/v1/namespaces/default"
_Session = requests.Session
WITHOUT_A_METHOD = {
    ("GET", "/v1/namespaces/{namespace}/changes"),  # a stream of events: any client of server-sent events reads it
}
METHODS = {"get", "put", "post", "delete", "patch"}


@dataclass
class Network:
    """Answers instead of the gateway and the store, and remembers the requests."""

    answer: Callable[[requests.PreparedRequest], requests.Response]
    sent: list[requests.PreparedRequest] = field(default_factory=list)

    def send(self, _adapter: object, request: requests.PreparedRequest, **_: Any) -> requests.Response:
        self.sent.append(request)
        answer = self.answer(request)
        answer.url, answer.request = str(request.url), request
        return answer


def an_answer(status: int = 200, body: object = None, **headers: str) -> requests.Response:
    answer = requests.Response()
    answer.status_code = status
    answer._content = b"" if body is None else json.dumps(body).encode()
    answer.headers.update({name.replace("_", "-"): value for name, value in headers.items()})
    return answer


def a_problem(kind: str, status: int, detail: str, errors: list[dict[str, str]] | None = None) -> requests.Response:
    body = {"type": f"https://lethe.dev/problems/{kind}", "status": status, "detail": detail}
    return an_answer(status, body | ({"errors": errors} if errors else {}))


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    network = Network(lambda _: an_answer(body={"items": []}))
    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", lambda *a, **k: network.send(*a, **k))
    return network


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds for which the client would have slept."""
    waits: list[float] = []
    monkeypatch.setattr("lethe.client.time.sleep", waits.append)
    return waits


@pytest.fixture
def client(network: Network) -> Iterator[lethe.GatewayClient]:  # noqa: ARG001
    with lethe.GatewayClient(GATEWAY, "t") as client:
        yield client


def everything(request: requests.PreparedRequest) -> requests.Response:
    """An answer that all methods can read. A URL of the store has always expired, and a file came meanwhile."""
    if str(request.url).startswith(STORE):
        return an_answer(403)
    is_look = request.method == "GET" and "/uploads/" in str(request.url)
    file = {"path": "a.csv", "size": 1, "state": "Missing"}
    files = [
        {**file, "index": 0, **({} if is_look else {"put": {"url": f"{STORE}/a", "headers": {}}})},
        {**file, "index": 1},
        {**file, "index": 2, "multipart": {"parts": 1, "partSize": 1, "uploaded": []}},
    ]
    return an_answer(body={"items": [], "id": "0" * 32, "files": files, "phase": "Succeeded", "conditions": []})


def call_everything(client: lethe.GatewayClient, folder: Path) -> None:
    (folder / "a.csv").write_text("1")
    now = datetime(2026, 3, 1, tzinfo=UTC)
    filters = {"states": ["refused"], "since": now, "until": now, "id_prefix": "a", "restatement": "r"}
    lists = (
        client.namespaces(),
        client.datasets(),
        client.runs(active=True),
        client.runs("flights", active=True),
        client.vacuums("Due"),
        client.vacuum_policies(),
        client.restatements("flights", "Failed"),
        client.batches("flights", **filters),  # type: ignore[arg-type]
        client.erasures("flights", open_only=True),
        client.uploads("flights"),
    )
    for listed in lists:
        list(listed)
    client.dataset("flights")
    client.batch("flights", "a/b")
    client.erasure("flights", "r")
    client.restate({"operation": "Revert"})
    client.wait("r")
    client.put("flights", "a", folder)
    client.abandon("flights", "a")


def test_each_route_has_a_method_that_asks_for_it_with_its_parameters(
    network: Network, client: lethe.GatewayClient, tmp_path: Path
) -> None:
    """A new route needs a method here, or a line in the list of those without."""
    network.answer = everything
    document = openapi(routes())
    templates = {path: re.compile(re.sub(r"\\{\w+\\}", "[^/:]+", re.escape(path))) for path in document["paths"]}

    call_everything(client, tmp_path)

    asked: dict[tuple[str, str], set[str]] = {}
    for request in network.sent:
        parts = urlsplit(str(request.url))
        if parts.netloc == "gateway":
            (path,) = [p for p, template in templates.items() if template.fullmatch(parts.path)]
            asked.setdefault((str(request.method), path), set()).update(parse_qs(parts.query))
            assert request.headers["Authorization"] == "Bearer t"
        else:
            assert "Authorization" not in request.headers
    known: dict[tuple[str, str], set[str]] = {
        (method.upper(), path): {p["name"] for p in operation.get("parameters", ()) if p["in"] == "query"}
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if method in METHODS
    }
    assert asked.keys() == known.keys() - WITHOUT_A_METHOD
    assert asked == {operation: known[operation] - {"cursor"} for operation in asked}


def test_a_list_asks_for_its_pages_one_by_one(network: Network, client: lethe.GatewayClient) -> None:
    pages = iter([{"items": [{"id": "a"}, {"id": "b"}], "nextCursor": "x&y"}, {"items": [{"id": "c"}]}])
    network.answer = lambda _: an_answer(body=next(pages))
    batches = client.batches("flights", states=["refused", "buffered"])

    assert [next(batches)["id"] for _ in range(2)] == ["a", "b"]
    assert len(network.sent) == 1

    assert [b["id"] for b in batches] == ["c"]
    queries = [parse_qs(urlsplit(str(r.url)).query) for r in network.sent]
    asked = {"state": ["refused", "buffered"], "limit": ["1000"]}
    assert queries == [asked, {**asked, "cursor": ["x&y"]}]


@pytest.mark.parametrize("name", ["..", ".", ""])
def test_a_name_that_http_takes_for_a_folder_asks_for_nothing_else(
    network: Network, client: lethe.GatewayClient, name: str
) -> None:
    with pytest.raises(InputError, match="InvalidName"):
        client.batch("flights", name)

    assert network.sent == []


def test_a_problem_is_an_error_that_names_the_field_and_its_place(
    network: Network, client: lethe.GatewayClient
) -> None:
    errors = [{"field": "body.spec.operation", "pointer": "#/spec/operation", "message": "expected Replay"}]
    network.answer = lambda _: a_problem("invalid-request", 400, "Correct the parameters.", errors)

    with pytest.raises(lethe.GatewayProblem) as raised:
        client.restate({"operation": "Remove"})

    problem = raised.value
    assert isinstance(problem, lethe.InputError)
    assert (problem.reason, problem.status, problem.errors) == ("InvalidRequest", 400, tuple(errors))
    assert problem.message == "Correct the parameters. body.spec.operation: expected Replay."


@pytest.mark.parametrize("status", [429, 503])
def test_a_request_is_repeated_when_the_gateway_says(
    network: Network, client: lethe.GatewayClient, waits: list[float], status: int
) -> None:
    answers = iter(
        [an_answer(status, {}, Retry_After="17"), an_answer(status, {}), an_answer(body={"name": "flights"})]
    )
    network.answer = lambda _: next(answers)

    assert client.dataset("flights") == {"name": "flights"}
    assert waits == [17, 1]


@pytest.mark.parametrize(("answered", "reason"), [("index-building", "IndexBuilding"), ("", "GatewayAway")])
def test_what_does_not_end_is_no_fault_of_the_caller(
    network: Network, client: lethe.GatewayClient, waits: list[float], answered: str, reason: str
) -> None:
    network.answer = lambda _: a_problem(answered, 503, "Try again.") if answered else an_answer(502)

    with pytest.raises(TransientError, match=reason):
        client.batch("flights", "a")

    assert (len(network.sent), waits) == (6, [0.5, 1, 2, 4, 8])


def test_nobody_waits_for_an_hour(network: Network, client: lethe.GatewayClient, waits: list[float]) -> None:
    network.answer = lambda _: an_answer(503, {}, Retry_After="3600")

    with pytest.raises(TransientError, match="GatewayAway"):
        client.dataset("flights")

    assert waits == []


def states(*documents: Mapping[str, Any]) -> Callable[[requests.PreparedRequest], requests.Response]:
    each = iter(documents)
    return lambda _: an_answer(body={"conditions": [], **next(each)})


def test_a_wait_ends_with_the_commit(network: Network, client: lethe.GatewayClient, waits: list[float]) -> None:
    network.answer = states({}, {"phase": "Running"}, {"phase": "Succeeded", "result": {"snapshotId": 5}})

    assert client.wait("r")["result"] == {"snapshotId": 5}
    assert waits == [2, 2]


@pytest.mark.parametrize(
    "ended",
    [{"phase": "Failed"}, {"phase": "Cancelled"}, {"conditions": [{"type": "Stalled", "status": "True"}]}],
)
def test_a_wait_ends_where_nothing_more_happens(
    network: Network, client: lethe.GatewayClient, ended: dict[str, Any]
) -> None:
    ready = {"type": "Ready", "status": "False", "reason": "UnknownBatches", "message": "no batch x"}
    network.answer = states({**ended, "conditions": [ready, *ended.get("conditions", ())]})

    with pytest.raises(InputError, match=r"NotRestated: restatement/r is .*: UnknownBatches no batch x"):
        client.wait("r")


@pytest.mark.usefixtures("waits")
def test_a_wait_that_takes_too_long_says_that_it_goes_on(network: Network, client: lethe.GatewayClient) -> None:
    network.answer = states({"phase": "Queued"}, {"phase": "Queued"})

    with pytest.raises(TransientError, match=r"NotRestatedYet: .*is Queued"):
        client.wait("r", seconds=0)


UNKNOWN = a_problem("not-found", 404, "it does not exist.")
NO_TABLE = a_problem("no-table", 409, "the table does not exist.")
NO_BATCHES = a_problem("not-tracked", 409, "there is no table of batches.")


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([UNKNOWN, {}, NO_TABLE, {}, NO_BATCHES, {}, {"state": "buffered"}, {"state": "promoted", "rows": 3}], 3),
        ([{"state": "refused", "refusalReason": "SchemaMismatch", "refusalMessage": "x"}], "refused: SchemaMismatch x"),
        ([{"state": "held", "refusalReason": "CheckFailed"}], "held: CheckFailed"),
        ([{"state": "reverted", "restatement": "default/r"}], "reverted: by Restatement default/r"),
        ([UNKNOWN, UNKNOWN], "NotFound: it does not exist."),
        ([NO_BATCHES, {"tracksBatches": False}], "NotTracked: batch a of dataset/flights cannot be waited for"),
        ([a_problem("table-unreadable", 409, "a manifest is missing.")], "TableUnreadable: a manifest is missing."),
    ],
)
def test_a_wait_for_a_batch_ends_when_it_is_promoted_or_will_not_be(
    network: Network, client: lethe.GatewayClient, waits: list[float], answers: list[Any], expected: int | str
) -> None:
    each = iter(answers)

    def answer(_: object) -> requests.Response:
        following = next(each)
        return following if isinstance(following, requests.Response) else an_answer(body=following)

    network.answer = answer
    if isinstance(expected, int):
        assert client.wait_for_batch("flights", "a")["rows"] == expected
        assert waits == [2] * 4
    else:
        with pytest.raises(InputError, match=re.escape(expected)):
            client.wait_for_batch("flights", "a")


@pytest.mark.usefixtures("waits")
def test_a_wait_for_a_batch_that_takes_too_long_says_that_it_goes_on(
    network: Network, client: lethe.GatewayClient
) -> None:
    network.answer = lambda _: an_answer(body={"state": "buffered"})

    with pytest.raises(TransientError, match=r"NotPromotedYet: .*batch a of dataset/flights is buffered"):
        client.wait_for_batch("flights", "a", seconds=0)


def test_uploads_share_a_few_sessions(
    network: Network, client: lethe.GatewayClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connections of a session stay open, and a process may have a thousand files open."""
    opened: list[requests.Session] = []
    monkeypatch.setattr("lethe.client.requests.Session", lambda: opened.append(_Session()) or opened[-1])
    (tmp_path / "a.csv").write_text("1")
    file = {"path": "a.csv", "size": 1, "state": "Missing", "index": 0}
    network.answer = lambda _: an_answer(body={"id": "0" * 32, "files": [file]})

    for batch in range(10):
        client.put("flights", str(batch), tmp_path)

    assert len(opened) <= AT_ONCE


def test_passwords_of_netrc_are_not_sent(
    network: Network, client: lethe.GatewayClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would replace the token, and a store refuses a presigned URL with a password."""
    netrc = tmp_path / "netrc"
    netrc.write_text("default login ana password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    batch = tmp_path / "batch"
    batch.mkdir()
    (batch / "a.csv").write_text("1")
    file = {"path": "a.csv", "size": 1, "state": "Missing", "index": 0, "put": {"url": f"{STORE}/a", "headers": {}}}
    network.answer = lambda _: an_answer(body={"id": "0" * 32, "files": [file]})

    client.put("flights", "a", batch)

    assert {(str(r.url).startswith(STORE), r.headers.get("Authorization")) for r in network.sent} == {
        (False, "Bearer t"),
        (True, None),
    }


def test_a_part_whose_url_has_expired_gets_another_one(
    network: Network, client: lethe.GatewayClient, tmp_path: Path
) -> None:
    """The parts of a large file get their URLs together, and over a slow line the last ones are sent much later."""
    (tmp_path / "a.csv").write_text("123")
    file = {"path": "a.csv", "size": 3, "state": "Missing", "index": 0}
    multipart = {"parts": 3, "partSize": 1, "uploaded": []}
    given: list[str] = []

    def answer(request: requests.PreparedRequest) -> requests.Response:
        url = str(request.url)
        if url.startswith(STORE):
            return an_answer(403 if url.endswith("old") else 200)
        if not url.endswith("/parts"):
            return an_answer(body={"id": "0" * 32, "files": [{**file, "multipart": multipart}]})
        numbers = [p["number"] for p in json.loads(request.body or b"")["parts"]]
        given.append(",".join(map(str, numbers)))
        age = "old" if len(numbers) > 1 else "new"
        urls = [{"number": n, "offset": n - 1, "size": 1, "url": f"{STORE}/{n}/{age}", "headers": {}} for n in numbers]
        return an_answer(body={"items": urls})

    network.answer = answer

    client.put("flights", "a", tmp_path)

    assert sorted(given) == ["1", "1,2,3", "2", "3"]
    stored = {str(r.url): r.body for r in network.sent if str(r.url).endswith("/new")}
    assert set(stored) == {f"{STORE}/{n}/new" for n in (1, 2, 3)}


@pytest.mark.parametrize(
    ("url", "token", "spec", "what"),
    [
        ("lethe.example.org", "t", {}, "its URL is not valid"),
        ("ftp://lethe.example.org", "t", {}, "its URL is not valid"),
        ("http://[lethe", "t", {}, "its URL is not valid"),
        (GATEWAY, "secret\n", {}, "the token is not valid"),
        (GATEWAY, "t", {"evictBySeconds": float("nan")}, "JSON does not have"),
    ],
)
def test_what_cannot_be_sent_is_not_repeated(
    waits: list[float], url: str, token: str, spec: dict[str, Any], what: str
) -> None:
    """A sensor would wait for it until its time is over."""
    with lethe.GatewayClient(url, token) as client, pytest.raises(InputError, match=what) as refused:
        client.restate(spec)

    assert (refused.value.reason, waits) == ("InvalidRequest", [])
    assert "secret" not in str(refused.value)


def test_what_is_no_batch_is_not_uploaded(network: Network, client: lethe.GatewayClient, tmp_path: Path) -> None:
    (tmp_path / "_SUCCESS").touch()

    with pytest.raises(InputError, match="NoFolder"):
        client.put("flights", "a", tmp_path / "none")
    with pytest.raises(InputError, match="NoDataFiles"):
        client.put("flights", "a", tmp_path)

    assert network.sent == []


def test_a_store_that_refuses_a_file_is_an_error_that_names_the_file(
    network: Network, client: lethe.GatewayClient, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("1")
    network.answer = lambda r: an_answer(400) if str(r.url).startswith(STORE) else everything(r)

    with pytest.raises(InputError, match=r"StoreRefused: the store refused a.csv \(400\)"):
        client.put("flights", "a", tmp_path)
