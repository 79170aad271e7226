"""ETags, problem documents, the access log, settings."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote

import pytest
from lethe.buffer import batch_rows
from lethe_gateway import access_log, etags
from lethe_gateway.app import routes
from lethe_gateway.etags import commits_behind
from lethe_gateway.problems import Kind, Problem, not_found
from lethe_gateway.settings import CallerLimits, InvalidSettings, from_environment
from lethe_gateway.tables.schema import STATES
from starlette.routing import Match

DOCS = Path(__file__).parents[3] / "docs/gateway.md"


def test_an_etag_ignores_only_when_something_was_read() -> None:
    body = {"items": [1], "freshness": {"readTime": "a", "snapshotId": 1}}

    assert etags.etag_of(body) == etags.etag_of({**body, "freshness": {"readTime": "b", "snapshotId": 1}})
    assert etags.etag_of(body) != etags.etag_of({**body, "freshness": {"readTime": "a", "snapshotId": 2}})
    assert etags.etag_of(body) != etags.etag_of({**body, "items": [2]})


@pytest.mark.parametrize(
    ("header", "current"),
    [('W/"a"', True), ('"a"', True), ('"x", W/"a"', True), ("*", True), ('"b"', False), ("", False)],
)
def test_if_none_match_is_compared_weakly(header: str, current: bool) -> None:
    assert etags.is_current(header, 'W/"a"') is current


def test_types_of_problems_never_change() -> None:
    """Programs depend on them. Add new ones; do not rename any."""
    assert {k.slug: k.status for k in Kind} == {
        "invalid-request": 400,
        "invalid-cursor": 400,
        "unauthenticated": 401,
        "forbidden": 403,
        "not-found": 404,
        "method-not-allowed": 405,
        "body-too-slow": 408,
        "no-table": 409,
        "not-tracked": 409,
        "table-unreadable": 409,
        "buffer-unusable": 409,
        "already-exists": 409,
        "upload-conflict": 409,
        "upload-ended": 409,
        "upload-incomplete": 409,
        "batch-id-used": 409,
        "cursor-expired": 410,
        "body-too-large": 413,
        "headers-too-large": 431,
        "batch-refused": 422,
        "rejected": 422,
        "content-differs": 422,
        "too-many-requests": 429,
        "internal": 500,
        "api-server-away": 503,
        "catalog-away": 503,
        "index-building": 503,
        "overloaded": 503,
        "timed-out": 503,
    }


def test_the_docs_list_every_type_of_problem() -> None:
    text = DOCS.read_text()

    assert [k.slug for k in Kind if f"`{k.slug}`" not in text] == []


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
    request = access_log.LoggedRequest("GET", "/v1/namespaces", "", "uid\0ana@example.org", 200, "", 0.01234, 56)

    found = json.loads(access_log.line(request, datetime(2026, 3, 1, tzinfo=UTC)))

    assert (
        found.pop("caller")
        != json.loads(access_log.line(access_log.LoggedRequest("GET", caller="b"), datetime.now(UTC)))["caller"]
    )
    assert found == {
        "time": "2026-03-01T00:00:00.000+00:00",
        "method": "GET",
        "route": "/v1/namespaces",
        "status": 200,
        "seconds": 0.0123,
        "bytes": 56,
    }


def test_commits_behind_are_unknown_after_a_rollback() -> None:
    assert [commits_behind(*v) for v in ((3, 5), (5, 5), (6, 5), (None, 5))] == [2, 0, None, None]


def test_states_are_those_of_tables_of_batches() -> None:
    assert STATES == batch_rows.STATES


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
