"""AWS Glue's Data Catalog: moto's server behind a proxy that checks versions as Glue does.

Glue refuses an update whose `VersionId` is not the table's current version. moto ignores it, and then one of two writers would be
lost. The proxy refuses such an update, and one without a version, and does one update at a time.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3

from tests.support.environments import python_of
from tests.support.servers import process
from tests.support.servers.faulty_proxy import before, forward_to
from tests.support.servers.postgres import free_port

KEY, SECRET, REGION = "AKIDEXAMPLE", "of-the-catalog", "us-east-1"
_CONFLICT = {
    "__type": "ConcurrentModificationException",
    "Message": "Update table failed due to concurrent modifications.",
}


@dataclass
class Glue:
    """`before_update` is called once, when the next update has arrived and before its version is checked. `refused`: updates that
    named an old version; `unversioned`: those that named none."""

    endpoint: str
    before_update: Callable[[], object] | None = None
    refused: int = 0
    unversioned: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def client(self) -> Any:
        return _client(self.endpoint)

    @property
    def properties(self) -> dict[str, str]:
        """PyIceberg's."""
        return {
            "type": "glue",
            "glue.endpoint": self.endpoint,
            "glue.region": REGION,
            "glue.access-key-id": KEY,
            "glue.secret-access-key": SECRET,
        }


@contextmanager
def running(folder: Path) -> Iterator[Glue]:
    """A catalog in memory, for as long as the block lasts."""
    folder.mkdir()
    port = free_port()
    direct = f"http://127.0.0.1:{port}"
    command = [python_of("servers"), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with process.running("moto", command, folder, lambda: _client(direct).get_databases()):
        forward, moto = forward_to(direct), _client(direct)

        def checked(method: str, path: str, headers: Any, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            if headers.get("X-Amz-Target", "") != "AWSGlue.UpdateTable":
                return forward(method, path, headers, body)
            asked = json.loads(body)
            happening, found.before_update = found.before_update, None
            if happening is not None:
                happening()
            with found.lock:
                name = {"DatabaseName": asked["DatabaseName"], "Name": asked["TableInput"]["Name"]}
                current = moto.get_table(**name)["Table"]["VersionId"]
                found.unversioned += "VersionId" not in asked
                if asked.get("VersionId") != current:
                    found.refused += 1
                    return 400, [("Content-Type", "application/x-amz-json-1.1")], json.dumps(_CONFLICT).encode()
                return forward(method, path, headers, body)

        with before(checked) as proxy:
            found = Glue(proxy.endpoint)
            yield found


def _client(endpoint: str) -> Any:
    return boto3.client(
        "glue", endpoint_url=endpoint, region_name=REGION, aws_access_key_id=KEY, aws_secret_access_key=SECRET
    )
