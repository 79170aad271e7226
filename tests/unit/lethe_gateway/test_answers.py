"""What each answer has: ETags, cursors and pages, problem documents, lines of the access log, metrics. Settings."""

import base64
import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.base.errors import InvalidSettings
from lethe_gateway import answers, guard, paging
from lethe_gateway.app import routes
from lethe_gateway.limits import GatewayMetrics
from lethe_gateway.problems import Kind, Problem, not_found
from lethe_gateway.resources import client
from lethe_gateway.resources.client import ResourcePage
from lethe_gateway.settings import CallerLimits, from_environment
from starlette.routing import Match

DOCS = Path(__file__).parents[3] / "docs/gateway.md"


def test_an_etag_ignores_only_when_something_was_read() -> None:
    body = {"items": [1], "freshness": {"readTime": "a", "snapshotId": 1}}

    assert answers.etag_of(body) == answers.etag_of({**body, "freshness": {"readTime": "b", "snapshotId": 1}})
    assert answers.etag_of(body) != answers.etag_of({**body, "freshness": {"readTime": "a", "snapshotId": 2}})
    assert answers.etag_of(body) != answers.etag_of({**body, "items": [2]})


@pytest.mark.parametrize(
    ("header", "current"),
    [('W/"a"', True), ('"a"', True), ('"x", W/"a"', True), ("*", True), ('"b"', False), ("", False)],
)
def test_if_none_match_is_compared_weakly(header: str, current: bool) -> None:
    assert answers.is_current(header, 'W/"a"') is current


def test_the_docs_list_every_type_of_problem_with_its_status() -> None:
    """Programs depend on them. Add new ones; do not rename any."""
    table = DOCS.read_text().partition("\n## Problems\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ((?:`[a-z-]+`(?:, )?)+) \| (\d+) \|", table, re.MULTILINE)

    documented = {slug: int(status) for slugs, status in rows for slug in re.findall(r"`([a-z-]+)`", slugs)}
    assert documented == {k.slug: k.status for k in Kind}


def test_each_request_in_the_docs_has_a_route() -> None:
    paths = re.findall(r"\$G(/v1[^\s\"?]*)", DOCS.read_text())
    assert len(paths) > 5

    for path in paths:
        scope = {"type": "http", "method": "GET", "path": unquote(path), "path_params": {}, "headers": []}
        assert any(route.matches(scope)[0] is Match.FULL for route in routes().routes), path


def test_a_problem_says_when_to_try_again() -> None:
    problem = Problem(Kind.OVERLOADED, "Try again.", retry_after_seconds=0.2)

    assert problem.headers["Retry-After"] == "1"
    assert problem.document == {
        "type": "https://lethe.dev/problems/overloaded",
        "title": "The gateway is overloaded",
        "status": 503,
        "detail": "Try again.",
    }
    assert "Retry-After" not in not_found().headers


def test_a_line_of_the_access_log_has_no_name_of_a_caller() -> None:
    request = guard.LoggedRequest("GET", "/v1/namespaces", "", "uid\0ana@example.org", 200, "", 0.01234, 56)

    found, other = (
        json.loads(guard.line(r, datetime(2026, 3, 1, tzinfo=UTC))) for r in (request, replace(request, caller="b"))
    )

    assert found.pop("caller") != other.pop("caller")
    assert found == other
    assert found == {
        "time": "2026-03-01T00:00:00.000+00:00",
        "method": "GET",
        "route": "/v1/namespaces",
        "status": 200,
        "seconds": 0.0123,
        "bytes": 56,
    }


def test_settings_from_the_environment() -> None:
    found = from_environment(
        {
            "LETHE_GATEWAY_PORT": "9000",
            "LETHE_WATCH_NAMESPACES": "a, b",
            "LETHE_GATEWAY_AUDIENCES": "x,y",
            "LETHE_GATEWAY_LIMITS": '{"bodyBytes": "2Mi", "requestsPerSecond": 5}',
            "LETHE_GATEWAY_TLS_CERTIFICATE": "/c",
            "LETHE_GATEWAY_TLS_KEY": "/k",
        }
    )

    assert (found.port, found.namespaces, found.audiences, found.tls) == (
        9000,
        ("a", "b"),
        ("x", "y"),
        (Path("/c"), Path("/k")),
    )
    assert found.limits == CallerLimits(body_bytes=2 << 20, requests_per_second=5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LETHE_GATEWAY_PORT", "http"),
        ("LETHE_GATEWAY_LIMITS", '{"burst": 0}'),
        ("LETHE_GATEWAY_INDEX", "{"),
        ("LETHE_GATEWAY_TLS_KEY", "/k"),
        ("LETHE_WATCH_NAMESPACES", "*"),
        ("LETHE_GATEWAY_IDENTITY_SECONDS", "-1"),
    ],
)
def test_an_invalid_setting_is_named(name: str, value: str) -> None:
    with pytest.raises(InvalidSettings, match=name):
        from_environment({name: value})


PAGE = Path(__file__).parents[3] / "docs/metrics.md"


def test_requests_are_counted_by_route_method_and_status() -> None:
    metrics = GatewayMetrics()
    route = "/v1/namespaces/{namespace}/datasets"
    metrics.request_ended(route, "GET", 200, 0.2)
    metrics.request_ended(route, "GET", 200, 0.4)
    metrics.request_ended("", "GET", 404, 0.1)

    value = metrics.registry.get_sample_value
    assert value("lethe_gateway_requests_total", {"route": route, "method": "GET", "status": "200"}) == 2
    assert value("lethe_gateway_requests_total", {"route": "none", "method": "GET", "status": "404"}) == 1
    assert value("lethe_gateway_request_duration_seconds_count", {"route": route}) == 2


def test_the_page_about_metrics_names_every_one() -> None:
    page = PAGE.read_text()
    names = {m.name + ("_total" if m.type == "counter" else "") for m in GatewayMetrics().registry.collect()}

    assert {n for n in names if n.startswith("lethe_") and f"`{n}`" not in page} == set()


QUESTION = {"dataset": "ns/flights", "states": ["refused"]}


@given(st.lists(st.one_of(st.integers(-(2**63), 2**63 - 1), st.text()), max_size=4))
def test_a_cursor_gives_its_position_back(position: list[object]) -> None:
    kinds = [type(value) for value in position]

    assert paging.decode(paging.encode(position, QUESTION), QUESTION, *kinds) == position


def refused_cursor(cursor: str, *kinds: type) -> None:
    with pytest.raises(Problem) as e:
        paging.decode(cursor, QUESTION, *kinds)

    assert e.value.kind is Kind.INVALID_CURSOR


@pytest.mark.parametrize("character", ["\U0001f600", "é", "\x01", "a", '"'])
def test_the_longest_id_of_a_batch_fits_into_a_cursor(character: str) -> None:
    """256 characters, which may be 1,024 bytes, or 1,536 as escapes of JSON."""
    position = [-(2**63), character * 256]

    cursor = paging.encode(position, QUESTION)

    assert len(cursor) <= paging.MAX_LENGTH
    assert paging.decode(cursor, QUESTION, int, str) == position


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_damaged_cursor_is_recognised(at: int, change: int) -> None:
    raw = bytearray(base64.urlsafe_b64decode(_padded(paging.encode([1, "b"], QUESTION))))
    raw[at % len(raw)] ^= change

    refused_cursor(base64.urlsafe_b64encode(bytes(raw)).decode().rstrip("="), int, str)


@pytest.mark.parametrize(
    "cursor", ["a", "!!!!", "é", "a" * 5000, "AAAA AAAA", paging.encode([1], {**QUESTION, "states": []})]
)
def test_what_is_no_cursor_of_this_question_is_refused(cursor: str) -> None:
    refused_cursor(cursor, int)


def _padded(text: str) -> str:
    return text + "=" * (-len(text) % 4)


def resources(counts: list[int]) -> list[dict[str, Any]]:
    """Each contributes so many results."""
    return [
        {"metadata": {"name": f"r{n:03d}"}, "results": [f"r{n:03d}.{i}" for i in range(c)]}
        for n, c in enumerate(counts)
    ]


def all_of(every: list[dict[str, Any]], limit: int, size: int, change: Any = lambda: None) -> list[list[str]]:
    """All pages.

    Args:
        size: Of the pages of the API server.
        change: Called before each page.
    """

    def read(after: str, _: int) -> ResourcePage:
        rest = [r for r in every if r["metadata"]["name"] > after]
        return ResourcePage(rest[:size], rest[size - 1]["metadata"]["name"] if len(rest) > size else "", "7")

    found: list[list[str]] = []
    at: client.ListPosition | None = client.ListPosition()
    while at is not None:
        change()
        page = client.page(read, lambda r: list(r["results"]), at, limit)
        found.append(page.items)
        at = page.next
    return found


@given(st.lists(st.integers(0, 4), max_size=40), st.integers(1, 7), st.integers(1, 9))
def test_pages_together_hold_every_result_once_and_in_order(counts: list[int], limit: int, size: int) -> None:
    every = resources(counts)

    pages = all_of(every, limit, size)

    assert [r for p in pages for r in p] == [r for resource in every for r in resource["results"]]
    assert all(len(p) <= limit for p in pages)


def test_resources_that_come_and_go_neither_repeat_nor_hide_others() -> None:
    every = resources([1] * 6)
    changes = iter(
        [lambda: None, lambda: every.pop(0), lambda: every.insert(0, {"metadata": {"name": "a"}, "results": ["a"]})]
    )

    pages = all_of(every, 2, 100, lambda: next(changes, lambda: None)())

    assert [r for p in pages for r in p] == [f"r{n:03d}.0" for n in range(6)]


def test_one_request_reads_a_bounded_number_of_pages() -> None:
    every = resources([0] * 100 + [1])

    pages = all_of(every, 10, 1)

    assert len(pages) == -(-101 // client.REQUESTS_AT_MOST)
    assert pages[-1] == ["r100.0"]
