"""What callers get while something that the gateway needs is away or slow, and after it has returned."""

import select
import shutil
import socket
import sqlite3
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import yaml
from lethe.ledger.ledger import BatchState
from lethe_local.folder import Folder
from pyiceberg.catalog import load_catalog

from tests.support import gateway_lake
from tests.support.builders import a_batch
from tests.support.clock import wait_until
from tests.support.gateway_lake import STATES
from tests.support.gateway_site import Site
from tests.support.servers import postgres, s3
from tests.support.servers.faults import before_tcp
from tests.support.servers.gateway import kubeconfig_of, running
from tests.support.servers.postgres import free_port
from tests.support.tables import commit
from tests.support.tracked import update

DATASET = "/v1/namespaces/default/datasets/flights"
PROBLEMS = "https://lethe.dev/problems/"


def test_while_the_api_server_is_away_answers_say_so_and_then_they_are_right_again(site: Site) -> None:
    kubeconfig = kubeconfig_of(site.server, site.folder / "switched", site.token("lethe-gateway"))
    with before_tcp(site.server.port) as proxy, ExitStack() as stack:
        document = yaml.safe_load(kubeconfig.read_text())
        document["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{proxy.port}"
        kubeconfig.write_text(yaml.safe_dump(document))
        environ = {**site.environ, "KUBECONFIG": str(kubeconfig)}
        gateway = stack.enter_context(running(site.folder / "away", **environ))
        client = stack.enter_context(gateway.client(site.token("analyst")))
        assert client.get(DATASET).status_code == 200
        proxy.switch.begin_outage()

        for path in (DATASET, f"{DATASET}/batches", "/v1/namespaces", "/v1/namespaces/default/changes"):
            answer = client.get(path)
            assert (answer.status_code, answer.json()["type"]) == (503, f"{PROBLEMS}api-server-away"), answer.text
            assert answer.headers["retry-after"]
        with gateway.client("unknown") as unknown:
            assert unknown.get(DATASET).status_code == 503  # nobody knows whether the token is valid
        assert client.get("/healthz").status_code == 200

        proxy.switch.end_outage()
        wait_until(lambda: client.get(f"{DATASET}/batches").status_code == 200, 30)


def test_while_the_catalog_is_away_the_last_state_is_shown_with_its_age(site: Site, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(site.folder / "home", home)
    properties = {"type": "sql", "uri": f"sqlite:///{home}/c.db"}
    (home / ".pyiceberg.yaml").write_text(yaml.safe_dump({"catalog": {"lite": properties}}))
    stale = '{"freshSeconds": 0, "staleSeconds": 600, "waitSeconds": 30}'
    environ = {**site.environ, "PYICEBERG_HOME": str(home), "LETHE_GATEWAY_INDEX": stale}
    with running(tmp_path / "gateway", **environ) as gateway, gateway.client(site.token("analyst")) as client:
        first = client.get(f"{DATASET}/batches").json()
        (home / "c.db").rename(home / "away.db")

        again = client.get(f"{DATASET}/batches").json()
        later = client.get(f"{DATASET}/batches").json()

        assert again["items"] == later["items"] == first["items"]
        assert later["freshness"]["readTime"] == again["freshness"]["readTime"] == first["freshness"]["readTime"]
        (home / "c.db").unlink(missing_ok=True)
        (home / "away.db").rename(home / "c.db")
        read_time = first["freshness"]["readTime"]
        wait_until(lambda: client.get(f"{DATASET}/batches").json()["freshness"]["readTime"] > read_time, 30)


def test_a_catalog_that_never_answered_is_a_503_without_its_credentials(site: Site, tmp_path: Path) -> None:
    uri = f"postgresql+psycopg2://lethe:the-password@127.0.0.1:{free_port()}/lake"
    document = {"catalog": {"lite": {"type": "sql", "uri": uri}}}
    (tmp_path / ".pyiceberg.yaml").write_text(yaml.safe_dump(document))
    environ = {**site.environ, "PYICEBERG_HOME": str(tmp_path)}
    with running(tmp_path / "gateway", **environ) as gateway, gateway.client(site.token("analyst")) as client:
        answer = client.get(f"{DATASET}/batches")

        assert (answer.status_code, answer.json()["type"]) == (503, f"{PROBLEMS}catalog-away")
        assert "the-password" not in answer.text + gateway.log.read_text()


def test_a_damaged_index_is_built_again(site: Site) -> None:
    with running(site.folder / "damaged", **site.environ) as gateway, gateway.client(site.token("analyst")) as client:
        client.get(f"{DATASET}/batches")
        (index,) = (site.folder / "damaged/index").glob("*.db")
        index.write_bytes(b"not an index" * 1000)

        wait_until(lambda: client.get(f"{DATASET}/batches").status_code == 200, 30)

        assert {b["id"] for b in client.get(f"{DATASET}/batches").json()["items"]} == STATES.keys()


def test_an_index_survives_a_restart_and_is_removed_when_nobody_asks(site: Site) -> None:
    folder = site.folder / "restarted"
    with running(folder, **site.environ) as gateway, gateway.client(site.token("analyst")) as client:
        client.get(f"{DATASET}/batches")
        (first,) = (folder / "index").glob("*.db")
    short = '{"freshSeconds": 0, "idleSeconds": 1}'
    with running(folder, **{**site.environ, "LETHE_GATEWAY_INDEX": short.replace("1}", "3600}")}) as gateway:
        with gateway.client(site.token("analyst")) as client:
            assert client.get(f"{DATASET}/batches").status_code == 200
        assert list((folder / "index").glob("*.db")) == [first]
    with running(folder, **{**site.environ, "LETHE_GATEWAY_INDEX": short}) as gateway:
        with gateway.client(site.token("analyst")) as client:
            assert client.get(f"{DATASET}/batches").status_code == 200
        wait_until(lambda: not list((folder / "index").glob("*.db*")), 30)


def test_two_gateways_do_not_share_a_folder(site: Site) -> None:
    taken = {**site.environ, "LETHE_GATEWAY_INDEX_FOLDER": str(site.folder / "shared/index")}
    with (
        running(site.folder / "shared", **site.environ),
        pytest.raises(AssertionError, match="LETHE_GATEWAY_INDEX_FOLDER: another gateway uses"),
        running(site.folder / "second", **taken),
    ):
        pass


def test_clients_that_send_slowly_or_nothing_are_dropped_and_others_are_served(site: Site) -> None:
    limits = '{"headerSeconds": 1, "connections": 30}'
    with (
        running(site.folder / "slow", **{**site.environ, "LETHE_GATEWAY_LIMITS": limits}) as gateway,
        gateway.client(site.token("analyst")) as client,
    ):
        idle = [socket.create_connection(("127.0.0.1", gateway.port)) for _ in range(10)]
        dripping = [socket.create_connection(("127.0.0.1", gateway.port)) for _ in range(10)]
        for connection in dripping:
            connection.sendall(b"GET / HTTP/1.1\r\nHost:")

        assert client.get(DATASET).status_code == 200
        for connection in (*idle, *dripping):
            connection.settimeout(20)
            assert _received(connection) == b""
            connection.close()
        assert client.get(DATASET).status_code == 200


def test_too_many_requests_at_once_are_refused_and_the_others_are_answered(site: Site) -> None:
    limits = '{"concurrentPerCaller": 2, "requestsPerSecond": 1000, "burst": 1000}'
    with (
        running(site.folder / "busy", **{**site.environ, "LETHE_GATEWAY_LIMITS": limits}) as gateway,
        gateway.client(site.token("analyst")) as client,
        ThreadPoolExecutor(20) as pool,
    ):
        answers = list(pool.map(lambda _: client.get(f"{DATASET}/batches"), range(60)))

    by_status = {s: [a for a in answers if a.status_code == s] for s in {a.status_code for a in answers}}
    assert by_status.keys() == {200, 429}
    assert all(a.json()["type"] == f"{PROBLEMS}too-many-requests" and a.headers["retry-after"] for a in by_status[429])


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_it_speaks_tls_with_the_given_certificate(site: Site, tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.prepare()
    certificate, key = folder.certificate
    environ = {"LETHE_GATEWAY_TLS_CERTIFICATE": str(certificate), "LETHE_GATEWAY_TLS_KEY": str(key)}
    with running(site.folder / "tls", **site.environ, **environ) as gateway:
        with gateway.client(site.token("analyst")) as client:
            assert client.get(DATASET).status_code == 200
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.maximum_version = ssl.TLSVersion.TLSv1_1
        with socket.create_connection(("127.0.0.1", gateway.port)) as plain, pytest.raises((ssl.SSLError, OSError)):
            old.wrap_socket(plain)


def test_a_table_on_postgresql_and_s3_is_shown_and_followed(site: Site, tmp_path: Path) -> None:
    """The second look reads only what has changed, and shows the new state of a batch."""
    with postgres.running() as database, s3.running() as store:
        store.bucket("lake")
        properties = {"type": "sql", "uri": database.uri, "warehouse": "s3://lake/warehouse", **store.properties()}
        (tmp_path / ".pyiceberg.yaml").write_text(yaml.safe_dump({"catalog": {"lite": properties}}))
        catalog = load_catalog("lite", **properties)
        catalog.create_namespace("air")
        table = gateway_lake.flights_table(catalog)
        commit(table, *(a_batch(f"b{n}") for n in range(20)))
        update(catalog)
        environ = {**site.environ, "PYICEBERG_HOME": str(tmp_path)}
        with running(tmp_path / "gateway", **environ) as gateway, gateway.client(site.token("analyst")) as client:
            assert len(client.get(f"{DATASET}/batches").json()["items"]) == 20
            commit(table, a_batch("b3", BatchState.REVERTED), a_batch("new"), forget=["b4"])
            behind = client.get(f"{DATASET}/batches").json()["freshness"]
            update(catalog)

            found = client.get(f"{DATASET}/batches").json()
            assert gateway.memory_mib() < 256

    assert (behind["commitsBehind"], found["freshness"]["commitsBehind"]) == (1, 0)
    states = {b["id"]: b["state"] for b in found["items"]}
    assert (states["b3"], states["new"], "b4" in states, len(states)) == ("reverted", "promoted", False, 20)


def test_the_index_is_read_only_by_its_owner(site: Site) -> None:
    with site.client("analyst") as client:
        client.get(f"{DATASET}/batches")
    folder = site.folder / "gateway/index"

    assert folder.stat().st_mode & 0o077 == 0
    (index,) = folder.glob("*.db")
    assert sqlite3.connect(f"file:{index}?mode=ro", uri=True).execute("SELECT count(*) FROM batches").fetchone() == (8,)


def _received(connection: socket.socket) -> bytes:
    """What comes until the server ends the connection."""
    try:
        return connection.recv(1)
    except ConnectionResetError:
        return b""


def test_a_client_that_does_not_read_its_answer_is_dropped(site: Site) -> None:
    """It learns of that without reading, and its place is free again."""
    limits = '{"requestSeconds": 1, "concurrent": 1, "requestsPerSecond": 1000, "burst": 1000}'
    token = site.token("analyst")
    with (
        running(site.folder / "unread", **{**site.environ, "LETHE_GATEWAY_LIMITS": limits}) as gateway,
        gateway.client(token) as client,
    ):
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.settimeout(30)
        slow.connect(("127.0.0.1", gateway.port))
        request = f"GET {DATASET}/batches HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
        with suppress(ConnectionError):  # it may be dropped while it sends
            slow.sendall(1000 * request)  # pipelined, so that answers fill all buffers
        ended = select.poll()
        ended.register(slow, 0)  # errors and the end are always reported

        assert [event & select.POLLHUP for _, event in ended.poll(30_000)] == [select.POLLHUP]
        wait_until(lambda: client.get(DATASET).status_code == 200, 60)
        slow.close()


def test_two_replicas_give_the_same_answers(site: Site) -> None:
    """A list that was begun on one continues on the other."""
    token = site.token("analyst")
    with (
        running(site.folder / "other", **site.environ) as gateway,
        gateway.client(token) as two,
        site.gateway.client(token) as one,
    ):
        cursor = one.get(f"{DATASET}/batches", params={"limit": 3}).json()["nextCursor"]
        pages = [c.get(f"{DATASET}/batches", params={"limit": 3, "cursor": cursor}) for c in (one, two)]
        batches = [[c.get(f"{DATASET}/batches/{id}") for id in STATES] for c in (one, two)]

    assert pages[0].json()["items"] == pages[1].json()["items"]
    assert pages[0].headers["etag"] == pages[1].headers["etag"]
    assert [a.headers["etag"] for a in batches[0]] == [a.headers["etag"] for a in batches[1]]
