"""When a catalog is asked for new credentials, for which tables, and again if it failed."""

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from lethe.base.names import VENDED_FOR
from lethe.storage import clients, vended
from lethe.storage.vended import RetryingRestCatalog, Vended, Vendor, of_table, vendor_of

NOW, STARTED = 1_000_000.0, 50.0  # seconds since 1970, and by the monotonic clock


def due(**config: str) -> float | None:
    """So long from now."""
    found = Vended.of({k.replace("__", "-"): v for k, v in config.items()}, NOW, STARTED).due
    return None if found is None else found - STARTED


def expiring(seconds: float) -> dict[str, str]:
    return {"s3.session-token-expires-at-ms": str(int((NOW + seconds) * 1000))}


@pytest.mark.parametrize(("left", "asked_after"), [(3600, 3300), (900, 720), (10, 8), (0, 0), (-60, 0)])
def test_new_credentials_are_asked_for_before_the_old_ones_expire(left: int, asked_after: int) -> None:
    """Five minutes before, or when a fifth of their life is left."""
    assert due(**expiring(left)) == asked_after


def test_of_many_tables_only_the_vendors_used_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a client of the catalog."""
    monkeypatch.setattr(vended, "_vendors", OrderedDict())
    monkeypatch.setattr(vended, "_VENDORS_KEPT", 2)
    tables = [of_table({"type": "rest", "uri": "http://127.0.0.1:9"}, f"air.t{n}") for n in range(3)]

    used = [vendor_of(tables[n]) for n in (0, 1, 0, 2, 0, 1)]

    assert used[0] is used[2] is used[4]
    assert used[5] is not used[1]
    assert len(vended._vendors) == 2


def test_the_first_of_several_to_expire_counts() -> None:
    assert due(**expiring(3600), **{"gcs.oauth2.token-expires-at": str(int((NOW + 900) * 1000))}) == 720


def test_credentials_that_do_not_say_when_they_expire_are_asked_for_every_five_minutes() -> None:
    assert due(**{"s3.access-key-id": "x"}) == 300


def test_a_catalog_that_vends_nothing_is_not_asked_again() -> None:
    assert due() is None


@pytest.mark.parametrize(
    ("catalog", "asks"),
    [
        ({"type": "rest", "uri": "https://catalog"}, True),
        ({"uri": "http://catalog"}, True),
        ({"type": "rest", "uri": "https://catalog", "py-io-impl": "own.FileIO"}, False),
        ({"type": "sql", "uri": "sqlite:///x"}, False),
        ({"type": "glue"}, False),
    ],
)
def test_only_a_rest_catalog_is_asked_and_not_in_place_of_a_file_io_of_the_users(
    catalog: Mapping[str, str], asks: bool
) -> None:
    found = of_table(catalog, "air.flights")

    assert (found.get(VENDED_FOR) == "air.flights") is asks
    assert catalog.items() <= found.items() or asks


class AwayCatalog(Vendor):
    """A catalog that has answered once."""

    def __init__(self, seconds: float) -> None:
        super().__init__({}, "air.flights")
        self.answers = [{"s3.session-token-expires-at-ms": str(int((time.time() + seconds) * 1000))}]

    def _ask(self) -> Mapping[str, str]:
        if self.answers:
            return self.answers.pop()
        raise ConnectionError


def test_while_a_catalog_is_away_its_last_credentials_count_until_they_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    vendor = AwayCatalog(100)
    first, began = vendor.now(), time.monotonic()
    for later in (85, 96):
        monkeypatch.setattr(time, "monotonic", lambda later=later: began + later)
        if later == 85:
            assert vendor.now().config is first.config
        else:
            with pytest.raises(ConnectionError):
                vendor.now()


def test_no_secret_is_in_a_text_of_them() -> None:
    assert "secret" not in repr(Vended.of({"s3.secret-access-key": "secret"}, NOW, STARTED))


def test_a_client_keeps_vended_credentials_no_longer_than_until_they_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    vended = Vended({"s3.access-key-id": "k", "s3.secret-access-key": "s"}, due=time.monotonic() + 60)
    monkeypatch.setattr("lethe.storage.vended.vendor_of", lambda _: SimpleNamespace(now=lambda: vended))

    properties, expires = clients._vended({VENDED_FOR: "air.flights", "s3.region": "eu"})()

    assert (properties["s3.access-key-id"], properties["s3.region"]) == ("k", "eu")
    assert expires is not None
    assert timedelta(seconds=30) < expires - datetime.now(UTC) <= timedelta(seconds=60)


@pytest.mark.parametrize("failure", [503, 429, None], ids=["overloaded", "too many", "no answer"])
def test_a_read_of_the_catalog_that_fails_in_passing_is_repeated(failure: int | None) -> None:
    with a_catalog([failure, failure, 200]) as (catalog, asked):
        assert catalog._session.get(f"{catalog.uri}/v1/x").status_code == 200

    assert asked == ["GET"] * 3


def test_the_last_failure_is_what_the_caller_sees() -> None:
    with a_catalog([503] * 9) as (catalog, asked):
        assert catalog._session.get(f"{catalog.uri}/v1/x").status_code == 503
        assert len(asked) == 4
    with a_catalog([None] * 9) as (catalog, asked), pytest.raises(requests.exceptions.ConnectionError):
        catalog._session.get(f"{catalog.uri}/v1/x")


@pytest.mark.parametrize("failure", [503, None], ids=["overloaded", "no answer"])
def test_a_write_is_sent_once(failure: int | None) -> None:
    """It may have succeeded. The ledger says so, and not a second request."""
    with a_catalog([failure, 200]) as (catalog, asked), suppress(requests.exceptions.ConnectionError):
        catalog._session.post(f"{catalog.uri}/v1/x", json={})

    assert asked == ["POST"]


def test_what_is_missing_is_asked_for_once() -> None:
    with a_catalog([404, 200]) as (catalog, asked):
        assert catalog._session.get(f"{catalog.uri}/v1/x").status_code == 404

    assert asked == ["GET"]


@contextmanager
def a_catalog(answers: list[int | None]) -> Iterator[tuple[RetryingRestCatalog, list[str]]]:
    """A catalog whose server gives these answers, one after the other; None: the end of the connection. And the methods of the
    requests, without that for its configuration."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.endswith("/config"):
                self._send(200, b'{"defaults": {}, "overrides": {}}')
                return
            asked.append(self.command)
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if (status := answers.pop(0)) is not None:
                self._send(status, b"{}")

        do_POST = do_GET

        def _send(self, status: int, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield RetryingRestCatalog("c", uri=f"http://127.0.0.1:{server.server_port}"), asked
        finally:
            server.shutdown()
