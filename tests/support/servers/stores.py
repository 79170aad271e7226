"""Stores for tests: a real server of each kind on the loopback, or a local folder, each with an empty place of its own."""

import base64
import hashlib
import hmac
import json
import os
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

from lethe.base.objects import BufferedObject, ListedObject
from lethe.storage.object_store import ObjectStore, open_store
from lethe.uri import Backend

from tests.support.servers import gcs_xml, process
from tests.support.servers.postgres import free_port
from tests.support.servers.s3 import running as s3_running

AZURITE_ACCOUNT = "devstoreaccount1"  # the account and the key that every Azurite has
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

_FAR_AHEAD = "4102444800000"  # milliseconds since 1970: the year 2100


@dataclass(frozen=True)
class Place:
    """An empty folder in a store."""

    backend: Backend
    uri: str
    properties: Mapping[str, str]

    @property
    def store(self) -> ObjectStore:
        """A store with connections of its own."""
        return open_store(self.uri, self.properties)

    def at(self, name: str) -> str:
        return f"{self.uri}/{name}"

    def listed(self, name: str) -> BufferedObject:
        return plain(self.store.head(self.at(name)))

    def names(self, **how: bool) -> list[str]:
        return [o.key.removeprefix(f"{self.uri}/") for o in self.store.list(self.uri, **how)]


@dataclass(frozen=True)
class Server:
    """A server with one bucket. `endpoint` is empty for local folders; `properties_at` are a catalog's for an endpoint."""

    backend: Backend
    bucket: str
    endpoint: str
    properties_at: Callable[[str], Mapping[str, str]]

    def place(self, name: str, endpoint: str = "") -> Place:
        return Place(self.backend, f"{self.bucket}/{name}", self.properties_at(endpoint or self.endpoint))


def plain(found: ListedObject | None) -> BufferedObject:
    assert found is not None
    return BufferedObject(found.key, found.size, found.etag)


@contextmanager
def s3_server() -> Iterator[Server]:
    with s3_running() as s3:
        s3.bucket("lake")
        yield Server(
            Backend.S3, "s3://lake", s3.endpoint, lambda endpoint: {**s3.properties(), "s3.endpoint": endpoint}
        )


@contextmanager
def gcs_server() -> Iterator[Server]:
    """fake-gcs-server behind a proxy that speaks the XML API, of which the server has little."""
    with tempfile.TemporaryDirectory(prefix="lethe-gcs-") as folder:
        port = free_port()
        json_api = f"http://127.0.0.1:{port}"
        command = [program("fake-gcs-server"), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
        # In files: in memory, each write looks at all objects.
        command += ["-backend", "filesystem", "-filesystem-root", f"{folder}/objects"]
        command += ["-external-url", json_api, "-log-level", "error"]
        with process.running(
            "fake-gcs-server", command, Path(folder), lambda: _get(f"{json_api}/storage/v1/b?project=p")
        ):
            _send("POST", f"{json_api}/storage/v1/b?project=p", json.dumps({"name": "lake"}).encode())
            with _xml_api(json_api) as endpoint:
                yield Server(
                    Backend.GCS,
                    "gs://lake",
                    endpoint,
                    lambda endpoint: {
                        "gcs.service.host": endpoint,
                        "gcs.project-id": "p",
                        "gcs.oauth2.token": "any",
                        "gcs.oauth2.token-expires-at": _FAR_AHEAD,
                    },
                )


@contextmanager
def _xml_api(json_api: str) -> Iterator[str]:
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", gcs_xml.__name__, json_api, str(port)]
    with tempfile.TemporaryDirectory(prefix="lethe-gcs-") as folder:
        environment = {**os.environ, "PYTHONPATH": str(Path(gcs_xml.__file__).parents[3])}
        with process.running(
            "the XML API", command, Path(folder), lambda: _get(f"{endpoint}/storage/v1/b?project=p"), environment
        ):
            yield endpoint


@contextmanager
def azure_server() -> Iterator[Server]:
    """Azurite, with its objects in memory."""
    with tempfile.TemporaryDirectory(prefix="lethe-azure-") as folder:
        port = free_port()
        endpoint = f"http://127.0.0.1:{port}"
        command = [program("azurite-blob"), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence"]
        command += ["--silent", "--skipApiVersionCheck", "--disableTelemetry"]
        with process.running("azurite", command, Path(folder), lambda: _create_container(endpoint, "lake")):
            yield Server(
                Backend.AZURE,
                f"abfss://lake@{AZURITE_ACCOUNT}.dfs.core.windows.net",
                endpoint,
                lambda endpoint: {
                    "adls.connection-string": f"DefaultEndpointsProtocol=http;AccountName={AZURITE_ACCOUNT};"
                    f"AccountKey={AZURITE_KEY};BlobEndpoint={endpoint}/{AZURITE_ACCOUNT};"
                },
            )


class Stores(dict[Backend, Server]):
    """A server of each kind, started when a test first asks for it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._stack = stack
        self[Backend.LOCAL] = Server(Backend.LOCAL, f"file://{folder}", "", lambda _: {})

    def __missing__(self, backend: Backend) -> Server:
        start = {Backend.S3: s3_server, Backend.GCS: gcs_server, Backend.AZURE: azure_server}[backend]
        self[backend] = self._stack.enter_context(start())
        return self[backend]


def program(name: str) -> str:
    cache = os.environ.get("LETHE_CACHE", Path("~/.cache/lethe").expanduser())
    found = Path(cache, "bin", name)
    assert found.exists(), f"{name} is not here: run `dev/tools.sh fake-gcs-server azurite`"
    return str(found.resolve())


def _create_container(endpoint: str, name: str) -> None:
    now, path = formatdate(usegmt=True), f"/{AZURITE_ACCOUNT}/{name}"
    headers = f"x-ms-date:{now}\nx-ms-version:2021-08-06\n"
    signed = f"PUT{chr(10) * 12}{headers}/{AZURITE_ACCOUNT}{path}\nrestype:container"
    digest = hmac.new(base64.b64decode(AZURITE_KEY), signed.encode(), hashlib.sha256).digest()
    request = urllib.request.Request(f"{endpoint}{path}?restype=container", method="PUT")  # a body would need a type
    request.add_header("Content-Length", "0")
    request.add_header("x-ms-date", now)
    request.add_header("x-ms-version", "2021-08-06")
    request.add_header("Authorization", f"SharedKey {AZURITE_ACCOUNT}:{base64.b64encode(digest).decode()}")
    with urllib.request.urlopen(request, timeout=10):
        pass


def _get(url: str) -> None:
    _send("GET", url, None)


def _send(method: str, url: str, body: bytes | None) -> None:
    request = urllib.request.Request(url, method=method, data=body, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10):
        pass
