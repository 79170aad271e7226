"""What callers get while something that the gateway needs is away or slow, and after it has returned."""

import select
import socket
import sqlite3
import ssl
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import yaml
from lethe_local.folder import Folder

from tests.support.clock import wait_until
from tests.support.gateway_lake import STATES
from tests.support.gateway_site import Site
from tests.support.servers.faults import before_tcp
from tests.support.servers.gateway import kubeconfig_of, running
from tests.support.servers.postgres import free_port

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


def test_two_gateways_do_not_share_a_folder(site: Site) -> None:
    taken = {**site.environ, "LETHE_GATEWAY_INDEX_FOLDER": str(site.folder / "shared/index")}
    with (
        running(site.folder / "shared", **site.environ),
        pytest.raises(AssertionError, match="LETHE_GATEWAY_INDEX_FOLDER: another gateway uses"),
        running(site.folder / "second", **taken),
    ):
        pass


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


def test_the_index_is_read_only_by_its_owner(site: Site) -> None:
    with site.client("analyst") as client:
        client.get(f"{DATASET}/batches")
    folder = site.folder / "gateway/index"

    assert folder.stat().st_mode & 0o077 == 0
    (index,) = folder.glob("*.db")
    assert sqlite3.connect(f"file:{index}?mode=ro", uri=True).execute("SELECT count(*) FROM batches").fetchone() == (8,)


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
