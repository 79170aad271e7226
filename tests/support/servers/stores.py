"""Stores for tests: a real server of each kind on the loopback, or a local folder, each with an empty place of its own."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from lethe.buffer.batch import ListedObject
from lethe.ledger.ledger import BufferedObject
from lethe.storage.object_store import ObjectStore, open_store
from lethe.uri import Backend

from tests.support.servers.s3 import running as s3_running


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
