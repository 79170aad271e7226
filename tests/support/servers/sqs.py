"""A queue server of the tests' own (ElasticMQ, in memory), and what S3 would put into its queues."""

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

from lethe.storage import s3

from tests.support.servers import process
from tests.support.servers.postgres import free_port

# What the server needs beside its own jars, out of those that PySpark brings along.
OF_PYSPARK = (
    "scala-library-",
    "scala-xml_",
    "scala-parser-combinators_",
    "slf4j-api-",
    "log4j-slf4j2-impl-",
    "log4j-api-",
    "log4j-core-",
)


@dataclass(frozen=True)
class Sqs:
    endpoint: str

    @property
    def properties(self) -> dict[str, str]:
        return {
            "sqs.endpoint": self.endpoint,
            "sqs.region": "us-east-1",
            "sqs.access-key-id": "anyone",
            "sqs.secret-access-key": "anything",
        }

    @property
    def client(self) -> Any:
        return _client(self.endpoint)

    def queue(self, name: str = "") -> "TestQueue":
        url = self.client.create_queue(QueueName=name or f"q-{uuid.uuid4().hex[:12]}")["QueueUrl"]
        return TestQueue(self, url)


@cache
def _client(endpoint: str) -> Any:
    """To make a client takes much longer than most of its requests."""
    return s3.client("sqs", Sqs(endpoint).properties, attempts=2, read_timeout_seconds=30)


@dataclass(frozen=True)
class TestQueue:
    """A queue as S3 and a person see it."""

    __test__ = False
    server: Sqs
    url: str

    def send(self, *bodies: str) -> None:
        for body in bodies:
            self.server.client.send_message(QueueUrl=self.url, MessageBody=body)

    def counts(self) -> tuple[int, int]:
        """Messages that can be received, and messages in flight."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.server.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)["Attributes"]
        return int(found[names[0]]), int(found[names[1]])

    def delete(self) -> None:
        self.server.client.delete_queue(QueueUrl=self.url)


def created(bucket: str, key: str, etag: str = "e", sequencer: str = "01", size: int = 1, **changes: Any) -> str:
    """The message of S3 about a written object."""
    reported = {"key": quote_plus(key, safe="/"), "size": size, "eTag": etag, "sequencer": sequencer}
    record = {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventName": "ObjectCreated:Put",
        "eventTime": "2026-03-01T12:00:00.000Z",
        "s3": {"s3SchemaVersion": "1.0", "bucket": {"name": bucket}, "object": reported},
        **changes,
    }
    return json.dumps({"Records": [record]})


def configuration(listens: str, host: str, port: int) -> str:
    """The server's: it listens on an address, and URLs of queues name a host."""
    return f"""
        rest-sqs {{ enabled = true, bind-hostname = "{listens}", bind-port = {port}, sqs-limits = strict }}
        node-address {{ protocol = http, host = "{host}", port = {port} }}
        rest-stats.enabled = false
        queues-storage.enabled = false
        messages-storage.enabled = false
        pekko.http.server.request-timeout = 60 s  # a long poll takes 20
        """


@contextmanager
def running(folder: Path, port: int | None = None) -> Iterator[Sqs]:
    """A server for the duration of the block. With a port, it replaces a server that has ended."""
    folder.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    server = Sqs(f"http://127.0.0.1:{port}")
    (folder / "server.conf").write_text(configuration("127.0.0.1", "127.0.0.1", port))
    command = [
        "java",
        "-Xmx128m",
        *process.SHORT_LIVED,
        f"-Dconfig.file={folder}/server.conf",
        "-cp",
        process.class_path("sqs", *OF_PYSPARK),
        "org.elasticmq.server.Main",
    ]
    with process.running("ElasticMQ", command, folder, lambda: server.client.list_queues()):
        yield server
