"""An S3 server of the tests' own (versitygw, on a temporary folder), with its owner and a user who may do what a policy
says. A bucket can keep versions of its objects, and lock them."""

import json
import os
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lethe.storage.s3 import s3_client

from tests.support.servers import process
from tests.support.servers.postgres import free_port

OWNER, READER = ("owner", "owners-secret"), ("reader", "readers-secret")


def _properties(endpoint: str, user: tuple[str, str]) -> dict[str, str]:
    return {
        "s3.endpoint": endpoint,
        "s3.access-key-id": user[0],
        "s3.secret-access-key": user[1],
        "s3.region": "us-east-1",
    }


@cache
def _owner(endpoint: str) -> Any:
    """To make a client takes much longer than most of its requests."""
    return s3_client(_properties(endpoint, OWNER))


@dataclass(frozen=True)
class S3:
    """`folder` is where the server keeps its buckets."""

    endpoint: str
    folder: Path

    def properties(self, user: tuple[str, str] = OWNER) -> dict[str, str]:
        """PyIceberg's, for a user."""
        return _properties(self.endpoint, user)

    @property
    def client(self) -> Any:
        return _owner(self.endpoint)

    def bucket(self, name: str, **objects: bytes) -> str:
        self.client.create_bucket(Bucket=name)
        for key, content in objects.items():
            self.put(name, key, content)
        return name

    def put(self, bucket: str, key: str, content: bytes = b"") -> None:
        self.client.put_object(Bucket=bucket, Key=key, Body=content)

    def keys(self, bucket: str) -> list[str]:
        return sorted(o["Key"] for o in self.client.list_objects_v2(Bucket=bucket).get("Contents", ()))

    def grow_old(self, bucket: str, days: float) -> None:
        """Every object of a bucket was written so long ago."""
        moment = time.time() - days * 86_400
        for path in Path(self.folder, bucket).rglob("*"):
            os.utime(path, (moment, moment))

    def allow(self, bucket: str, *statements: tuple[str, str]) -> None:
        """What the reader may do: actions and the keys they are allowed on, "" for the bucket itself."""

        def statement(action: str, key: str) -> dict[str, Any]:
            resource = f"arn:aws:s3:::{bucket}" + (f"/{key}" if key else "")
            return {"Effect": "Allow", "Principal": {"AWS": [READER[0]]}, "Action": [action], "Resource": [resource]}

        policy = {"Version": "2012-10-17", "Statement": [statement(a, k) for a, k in statements]}
        self.client.put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))


def bucket_with_a_table(s3: S3) -> str:
    """The name of a new bucket with the files of one table, in warehouse/sales/orders."""
    name = s3.bucket(f"lake-{uuid.uuid4().hex[:8]}")
    metadata = ("00000-1b671a64-40d5-491e-99b0-da01ff1f3341.metadata.json", "snap-1-1-x.avro")
    for key in (*(f"metadata/{file}" for file in metadata), "data/f.parquet"):
        s3.put(name, f"warehouse/sales/orders/{key}", b"content")
    return name


def program() -> str:
    cache = os.environ.get("LETHE_CACHE", Path("~/.cache/lethe").expanduser())
    found = Path(cache, "bin/versitygw")
    assert found.exists(), "no S3 server here: run `dev/tools.sh versitygw`"
    return str(found.resolve())


@contextmanager
def running() -> Iterator[S3]:
    """A server for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="lethe-s3-") as folder:
        data, people, versions = (Path(folder, name) for name in ("data", "people", "versions"))
        for path in (data, people, versions):
            path.mkdir()
        s3 = S3(f"http://127.0.0.1:{free_port()}", data)
        keys = ["--access", OWNER[0], "--secret", OWNER[1]]
        listening = ["--port", s3.endpoint.removeprefix("http://"), "--quiet", "--iam-dir", str(people)]
        command = [program(), *keys, *listening, "posix", "--versioning-dir", str(versions), str(data)]
        with process.running("versitygw", command, Path(folder), lambda: s3.client.list_buckets()):
            user = ["--access", READER[0], "--secret", READER[1], "--role", "user"]
            made = [program(), "admin", *keys, "--endpoint-url", s3.endpoint, "create-user", *user]
            subprocess.run(made, check=True, capture_output=True, timeout=process.SECONDS)
            yield s3
