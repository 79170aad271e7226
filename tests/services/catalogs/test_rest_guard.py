"""The server between Iceberg's Java client and a REST catalog: it forwards requests as they are, and filters answers."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import requests
from lethe_spark.sql import rest_guard
from lethe_spark.sql.loopback import TOKEN
from lethe_spark.sql.rest_guard import RestGuard

from tests.support.foreign_properties import canaries
from tests.support.servers.canary import Canary
from tests.support.servers.faulty_proxy import Fault, Proxy, before

NOWHERE = Canary(1)
OWN = {"type": "rest", "s3.endpoint": "https://s3.example", "gcs.service.host": "https://gcs.example", "token": "own"}
VENDED = {
    "s3.access-key-id": "k",
    "s3.secret-access-key": "s",
    "client.refresh-credentials-endpoint": "v1/t/credentials",
}


@dataclass
class Catalog:
    """What the catalog answers, and what it has heard: method, path, headers and body."""

    status: int = 200
    content: bytes = b"{}"
    headers: list[tuple[str, str]] = field(default_factory=list)
    heard: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    proxy: Proxy = field(default_factory=lambda: Proxy(""))

    def answers(self, **document: Any) -> None:
        self.content = json.dumps({k.replace("_", "-"): v for k, v in document.items()}).encode()


@pytest.fixture
def catalog() -> Iterator[Catalog]:
    made = Catalog()

    def answer(method: str, path: str, headers: Any, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        made.heard.append((method, path, {k.lower(): v for k, v in headers.items()}, body))
        return made.status, made.headers, made.content

    with before(answer) as made.proxy:
        yield made


@contextmanager
def guarding(catalog: Catalog, path: str = "/api", **own: str) -> Iterator[RestGuard]:
    guard = RestGuard("main", f"{catalog.proxy.endpoint}{path}", {**OWN, **own})
    try:
        yield guard
    finally:
        guard.close()


def ask(guard: RestGuard, path: str, method: str = "GET", **how: Any) -> requests.Response:
    how["headers"] = {TOKEN: guard.token, **how.get("headers", {})}
    return requests.request(method, f"{guard.uri}{path}", timeout=30, **how)


def test_a_request_arrives_as_it_is(catalog: Catalog) -> None:
    with guarding(catalog) as guard:
        headers = {"Authorization": "Bearer own", "X-Tenant": "a", "If-None-Match": '"v1"'}
        url = f"{guard.uri}/v1/a%2Fb/namespaces/x%1Fy/tables/%2E%2E?snapshots=refs"
        prepared = requests.Request("POST", url, headers={TOKEN: guard.token, **headers}, data=b'{"a": 1}').prepare()
        prepared.url = url  # the library would decode the dots
        requests.Session().send(prepared, timeout=30)

    ((method, path, heard, body),) = catalog.heard
    assert (method, path, body) == ("POST", "/api/v1/a%2Fb/namespaces/x%1Fy/tables/%2E%2E?snapshots=refs", b'{"a": 1}')
    assert {k.lower(): v for k, v in headers.items()}.items() <= heard.items()
    assert TOKEN.lower() not in heard


def test_only_this_process_is_served(catalog: Catalog) -> None:
    with guarding(catalog) as guard:
        assert requests.get(f"{guard.uri}/v1/config", timeout=30).status_code == 401
        assert ask(guard, "/v1/config", headers={TOKEN: "guessed"}).status_code == 401

    assert catalog.heard == []


@pytest.mark.parametrize(
    ("status", "body"), [(404, b'{"error": {}}'), (409, b"x"), (500, b"<html>"), (204, b""), (304, b"")]
)
def test_other_answers_arrive_as_they_are(catalog: Catalog, status: int, body: bytes) -> None:
    catalog.status, catalog.content, catalog.headers = status, body, [("ETag", '"v1"'), ("Retry-After", "3")]
    with guarding(catalog) as guard:
        found = ask(guard, "/v1/namespaces")

    assert (found.status_code, found.content) == (status, body)
    assert (found.headers["ETag"], found.headers["Retry-After"]) == ('"v1"', "3")


def test_a_catalog_that_gives_no_answer_leaves_the_client_without_one(catalog: Catalog) -> None:
    """It must not take a commit that may have landed for a failed one."""
    with guarding(catalog) as guard:
        catalog.proxy.arm(Fault.LOST_ANSWER, "POST")
        with pytest.raises(requests.exceptions.ConnectionError):
            ask(guard, "/v1/namespaces/a/tables/t", "POST", data=b"{}")

    assert len(catalog.heard) == 1


def test_a_redirection_is_not_followed(catalog: Catalog) -> None:
    catalog.status, catalog.headers = 307, [("Location", "http://evil.example/")]
    with guarding(catalog) as guard:
        assert ask(guard, "/v1/namespaces", allow_redirects=False).status_code == 307

    assert len(catalog.heard) == 1


def test_the_configuration_has_what_is_allowed(catalog: Catalog) -> None:
    harmful = canaries(NOWHERE, "refused", "configuration")
    endpoints = ["GET /v1/{prefix}/namespaces"]
    catalog.answers(
        defaults=harmful, overrides={**harmful, "prefix": "main", "s3.region": "eu"}, endpoints=endpoints, x=1
    )
    with guarding(catalog) as guard:
        found = ask(guard, "/v1/config").json()

    assert found == {"defaults": {}, "overrides": {"prefix": "main", "s3.region": "eu"}, "endpoints": endpoints}


def test_an_address_on_the_same_host_is_taken_over(catalog: Catalog) -> None:
    catalog.answers(defaults={}, overrides={"uri": f"{catalog.proxy.endpoint}/moved/"})
    with guarding(catalog) as guard:
        assert ask(guard, "/v1/config").json()["overrides"] == {}
        ask(guard, "/v1/namespaces")

    assert [path for _, path, _, _ in catalog.heard] == ["/api/v1/config", "/moved/v1/namespaces"]


def test_a_table_has_its_metadata_and_vended_credentials(catalog: Catalog) -> None:
    harmful = canaries(NOWHERE, "refused", "configuration")
    metadata = {"properties": {"owner": "lethe", "n": 12345678901234567890, "text": "\ud800ü"}}
    catalog.answers(
        metadata=metadata,
        metadata_location="s3://lake/v1.json",
        config={**harmful, **VENDED},
        storage_credentials=[
            {"prefix": "s3://lake", "config": {**VENDED, **harmful}},
            {"prefix": "gs://", "config": harmful},
        ],
        remote_signing_config={"endpoint": "http://evil.example"},
    )
    with guarding(catalog) as guard:
        found = ask(guard, "/v1/namespaces/a/tables/t").json()

    own = {"uri": f"{catalog.proxy.endpoint}/api", f"header.{TOKEN}": ""}
    assert found == {
        "metadata": metadata,
        "metadata-location": "s3://lake/v1.json",
        "config": {**VENDED, **own},
        "storage-credentials": [{"prefix": "s3://lake", "config": VENDED}],
    }


def test_without_vended_credentials_a_table_is_opened_as_the_catalog_is(catalog: Catalog) -> None:
    catalog.answers(metadata={}, metadata_location="x", config=canaries(NOWHERE, "configuration"))
    with guarding(catalog) as guard:
        found = ask(guard, "/v1/namespaces/a/tables/t").json()

    assert (found["config"], found["storage-credentials"]) == ({}, [])


def test_what_another_parser_might_read_differently_is_written_anew(catalog: Catalog) -> None:
    catalog.content = b'{"metadata": {}, "config": {}, "c\\u006fnfig": {"io-impl": "x"}, "config": {"io-impl": "y"}}'
    with guarding(catalog) as guard:
        assert b"io-impl" not in ask(guard, "/v1/namespaces/a/tables/t").content
        catalog.content = '{"config": {"io-impl": "y"}}'.encode("utf-16")
        assert b"io-impl" not in ask(guard, "/v1/namespaces/a/tables/t").content
        catalog.content = b"not JSON"
        assert ask(guard, "/v1/namespaces").status_code == 502


def test_a_host_that_no_configuration_names_is_refused_by_name(catalog: Catalog) -> None:
    catalog.answers(metadata={}, config={**VENDED, "s3.endpoint": "http://evil.example"})
    with guarding(catalog, **{"s3.endpoint": ""}) as guard:
        found = ask(guard, "/v1/namespaces/a/tables/t")

    assert found.status_code == 400
    assert "UnsafeProperty: a table of the catalog main: " in found.json()["error"]["message"]
    assert "evil" not in found.text


def test_a_rest_catalog_has_one_guard_until_its_properties_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_guard, "_GUARDS", {})
    own = {"type": "rest", "uri": "https://catalog.example", "token": "t"}
    first = rest_guard.spark_properties("main", own)

    assert first["spark.sql.catalog.main.uri"].startswith("http://127.0.0.1:")
    assert first["spark.sql.catalog.main.token"] == "t"
    assert rest_guard.spark_properties("main", dict(own)) == first
    assert (
        rest_guard.spark_properties("main", {**own, "token": "u"})["spark.sql.catalog.main.uri"]
        != first["spark.sql.catalog.main.uri"]
    )


@pytest.mark.parametrize(
    "own",
    [
        {"type": "sql", "uri": "sqlite:////c.db"},
        {"type": "glue", "glue.region": "eu"},
        {"type": "rest", "uri": "https://glue.eu.amazonaws.com/iceberg", "rest.sigv4-enabled": "true"},
        {"type": "rest", "uri": "https://catalog.example", "spark.rest.client.proxy.hostname": "proxy.example"},
    ],
)
def test_other_catalogs_and_signed_requests_have_none(own: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_guard, "_GUARDS", {})

    assert rest_guard.spark_properties("main", own).get("spark.sql.catalog.main.uri", "") != "http://127.0.0.1"
    assert rest_guard._GUARDS == {}
