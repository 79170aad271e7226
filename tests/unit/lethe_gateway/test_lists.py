"""Each list of the gateway keeps what docs/gateway.md says of all of them: pages, ETags, problems, limits and ids as text."""

import json
from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import Any

import pytest
from fastapi.testclient import TestClient
from lethe.buffer.batch_rows import BatchRow
from lethe.ledger.tombstone import Erasure
from lethe_gateway import paging
from lethe_gateway.app import openapi, routes
from lethe_gateway.identity.caller import Right
from lethe_gateway.limits import RateLimit
from lethe_gateway.problems import Kind, Problem
from lethe_gateway.settings import CallerLimits, GatewaySettings
from lethe_gateway.tables.records import KnownErasure

from tests.support.builders import NOW
from tests.support.gateway_parts import RIGHTS, OneTable, Parts, Resources, Rights
from tests.support.resources import a_dataset_body, a_policy_body, a_restatement_body

NAMESPACES = ("air", "ns", "sea")
DATASET = "/v1/namespaces/ns/datasets/flights"
# More than a number in JavaScript holds exactly.
SNAPSHOT = 2**63 - 1
# Each list, with the number of its items here. The lists of uploads need a buffer: tests/apiserver/gateway/test_uploads.py.
LISTS = {
    "/v1/namespaces": 3,
    "/v1/namespaces/ns/datasets": 3,
    "/v1/namespaces/ns/runs": 6,
    "/v1/namespaces/ns/vacuums": 3,
    "/v1/namespaces/ns/vacuumpolicies": 2,
    "/v1/namespaces/ns/restatements": 3,
    f"{DATASET}/runs": 2,
    f"{DATASET}/batches": 3,
    f"{DATASET}/erasures": 3,
}
UPLOADS = "/v1/namespaces/{namespace}/datasets/{dataset}/uploads"


@cache
def documented() -> dict[str, Any]:
    """The operation of each list, by its path: what has pages."""
    document = openapi(routes())
    found = {}
    for path, operations in document["paths"].items():
        content = operations.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
        name = content.get("application/json", {}).get("schema", {}).get("$ref", "").rpartition("/")[2]
        if name.endswith("Page"):
            found[path] = operations["get"]
    return found


def client_of(**limits: Any) -> TestClient:
    names = ("flights", "hotels", "trains")
    runs = [
        {"name": f"run-{n}", "kind": "Vacuum", "phase": "Succeeded", "startTime": f"2026-03-0{n}T00:00:00Z"}
        for n in (1, 2)
    ]
    status = {"runs": runs, "vacuum": {"decision": "Later", "plan": {"snapshotId": SNAPSHOT}}}
    restatements = [
        a_restatement_body(f"fix-{n}", {"phase": "Succeeded", "result": {"snapshotId": SNAPSHOT}}) for n in range(3)
    ]
    resources = {
        "datasets": [a_dataset_body(name, status=status) for name in names],
        "restatements": restatements,
        "vacuumpolicies": [a_policy_body(name) for name in ("a", "b")],
    }
    rows = [
        BatchRow(id, "promoted", NOW - timedelta(days=n), rows=3, snapshot_id=SNAPSHOT)
        for n, id in enumerate(("A", "B", "C"))
    ]
    erasures = [
        KnownErasure(key, None, Erasure(key, 1, NOW)) for key in (f"ns/{id}/{'0' * 64}" for id in ("e1", "e2", "e3"))
    ]
    rights = RIGHTS | {Right.to_list(n) for n in NAMESPACES}
    parts = Parts(
        identity=Rights(rights=rights),
        resources=Resources(resources),
        tables=OneTable(rows, known=erasures),
        settings=GatewaySettings(namespaces=NAMESPACES, limits=CallerLimits(**limits)),
    )
    return parts.client()


def read(client: TestClient, path: str, limit: int) -> list[list[Any]]:
    """The items of each page."""
    pages, cursor = [], ""
    while True:
        answer = client.get(path, params={"limit": limit, **({"cursor": cursor} if cursor else {})})
        assert answer.status_code == 200, answer.text
        pages.append(answer.json()["items"])
        if (cursor := answer.json().get("nextCursor", "")) == "":
            return pages


def test_these_are_all_lists() -> None:
    patterns = {p.replace("{namespace}", "ns").replace("{dataset}", "flights") for p in documented()}

    assert patterns == {*LISTS, UPLOADS.replace("{namespace}", "ns").replace("{dataset}", "flights")}


def test_a_list_has_pages_of_100_items_and_at_most_1000() -> None:
    for path, operation in documented().items():
        parameters = {p["name"]: p["schema"] for p in operation["parameters"]}

        assert (parameters["limit"]["default"], parameters["limit"]["maximum"]) == (100, 1000), path
        assert "cursor" in parameters, path
        assert "ETag" in operation["responses"]["200"]["headers"], path
        assert {"304", "400", "401", "429"} <= operation["responses"].keys(), path


@pytest.mark.parametrize(("path", "number"), LISTS.items())
@pytest.mark.parametrize("limit", [1, 2, 100])
def test_a_list_that_is_read_to_its_end_has_each_item_once(path: str, number: int, limit: int) -> None:
    pages = read(client_of(), path, limit)

    items = [json.dumps(item, sort_keys=True) for page in pages for item in page]
    assert len(items) == len(set(items)) == number
    assert all(len(page) <= limit for page in pages)
    assert items == [json.dumps(i, sort_keys=True) for i in client_of().get(path).json()["items"]]


@pytest.mark.parametrize("path", LISTS)
def test_an_answer_has_an_etag_with_which_the_next_one_is_empty(path: str) -> None:
    client = client_of()
    first = client.get(path)

    again = client.get(path, headers={"If-None-Match": first.headers["etag"]})
    page = client.get(path, params={"limit": 1}, headers={"If-None-Match": first.headers["etag"]})

    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert page.status_code == 200


@pytest.mark.parametrize("path", LISTS)
def test_a_cursor_of_another_question_and_a_limit_out_of_range_are_refused(path: str) -> None:
    client = client_of()
    cursor = paging.encode(["x"], {"another": "question"})

    other = client.get(path, params={"cursor": cursor})
    many = client.get(path, params={"limit": 1001})
    unknown = client.get(path, params={"limits": 1})

    assert (other.status_code, other.json()["type"]) == (400, Kind.INVALID_CURSOR.type)
    assert (many.status_code, many.json()["errors"][0]["field"]) == (400, "query.limit")
    assert (unknown.status_code, unknown.json()["errors"][0]["field"]) == (400, "query.limits")


def test_a_cursor_after_an_item_that_is_gone_says_begin_again() -> None:
    items, cursor = paging.part_of(["a", "b", "c"], str, 2, "", {})
    assert (items, cursor is not None) == (["a", "b"], True)

    with pytest.raises(Problem) as gone:
        paging.part_of(["a", "c"], str, 2, str(cursor), {})

    assert gone.value.kind is Kind.CURSOR_EXPIRED


@pytest.mark.parametrize("path", LISTS)
def test_each_answer_says_what_is_left_of_the_callers_rate(path: str) -> None:
    client = client_of(requests_per_second=0.001, burst=2)

    answers = [client.get(path) for _ in range(3)]

    assert [a.status_code for a in answers] == [200, 200, 429]
    assert {a.headers["ratelimit-policy"] for a in answers} == {'"caller";q=2;w=2000'}
    assert [a.headers["ratelimit"].rpartition(";")[0] for a in answers] == [f'"caller";r={left}' for left in (1, 0, 0)]


def test_the_headers_say_how_many_requests_are_left_and_when_all_are_again() -> None:
    limit = RateLimit(per_second=0.5, burst=2)

    def after(now: float) -> str:
        limit.wait_seconds("ana", now)
        return limit.headers("ana", now)["RateLimit"]

    assert limit.headers("ana", 0) == {"RateLimit-Policy": '"caller";q=2;w=4', "RateLimit": '"caller";r=2;t=0'}
    assert [after(now) for now in (0, 0, 0, 1, 3)] == [
        f'"caller";r={left};t={seconds}' for left, seconds in ((1, 2), (0, 4), (0, 4), (0, 3), (0, 3))
    ]


def ids(value: Any) -> list[dict[str, Any]]:
    """The objects with ids of snapshots, wherever they are."""
    if isinstance(value, list):
        return [found for item in value for found in ids(item)]
    if not isinstance(value, dict):
        return []
    return [*([value] if "snapshotId" in value else []), *(found for item in value.values() for found in ids(item))]


@pytest.mark.parametrize("path", [f"{DATASET}/batches", "/v1/namespaces/ns/restatements", "/v1/namespaces/ns/vacuums"])
def test_a_snapshot_id_is_there_as_a_number_and_as_text(path: str) -> None:
    found = ids(client_of().get(path).json())

    assert found
    assert all((one["snapshotId"], one["snapshotIdText"]) == (SNAPSHOT, str(SNAPSHOT)) for one in found)


def test_without_an_id_there_is_no_text() -> None:
    parts = Parts(resources=Resources({"restatements": [a_restatement_body("r", {"result": {"rowsDeleted": 3}})]}))

    (item,) = parts.client().get("/v1/namespaces/ns/restatements").json()["items"]

    assert item["result"] == {"rowsDeleted": 3}


def test_the_schema_has_the_text_wherever_it_has_the_id() -> None:
    schemas = openapi(routes())["components"]["schemas"]
    of_ids = [(s, p) for s, schema in schemas.items() for p in schema.get("properties", {}) if p.endswith("napshotId")]

    assert of_ids
    for schema, name in of_ids:
        assert f"{name}Text" in schemas[schema]["properties"], f"{schema}.{name}"
        assert f"{name}Text" not in schemas[schema].get("required", ())  # it is absent with the id


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"batchId": "B", "files": [{"path": "a", "size": -1}]}, "#/files/0/size"),
        ({"files": [{"path": "a", "size": 1}]}, "#/batchId"),
        ({"batchId": "B", "files": [{"path": "a", "size": 1}, {"path": "b"}]}, "#/files/1/size"),
    ],
)
def test_a_problem_points_to_the_field_of_the_body(body: dict[str, Any], pointer: str) -> None:
    rights = RIGHTS | {Right.to_upload("ns", "flights")}
    parts = replace(Parts(resources=Resources({"datasets": [a_dataset_body()]})), identity=Rights(rights=rights))

    answer = parts.client().post(f"{DATASET}/uploads", json=body)

    assert (answer.status_code, answer.json()["type"]) == (400, Kind.INVALID_REQUEST.type)
    assert pointer in [error["pointer"] for error in answer.json()["errors"]]


def test_a_parameter_of_the_query_has_no_pointer() -> None:
    (error,) = client_of().get("/v1/namespaces/ns/datasets", params={"limit": 0}).json()["errors"]

    assert "pointer" not in error
