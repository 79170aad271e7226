"""An S3 server of the tests' own, on the loopback, with its objects in a temporary folder."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError
from lethe.s3 import s3_client

from tests.spark.postgres import free_port

BUCKET = "lake"


@dataclass(frozen=True)
class S3Server:
    port: int

    @property
    def properties(self) -> dict[str, str]:
        """As a catalog has them."""
        return {
            "s3.endpoint": f"http://127.0.0.1:{self.port}",
            "s3.region": "us-east-1",
            "s3.access-key-id": "lethe-test",
            "s3.secret-access-key": "lethe-test-secret",
        }


def program() -> str:
    cache = os.environ.get("LETHE_CACHE", "~/.cache/lethe")
    found = shutil.which("versitygw", path=f"{Path(cache).expanduser()}/bin{os.pathsep}{os.environ.get('PATH', '')}")
    assert found, "no versitygw here: run `dev/tools.sh versitygw`"
    return found


@contextmanager
def running(folder: Path) -> Iterator[S3Server]:
    """A server with the bucket `lake` for as long as the block lasts."""
    for name in ("objects", "meta"):
        (folder / name).mkdir(parents=True)
    server = S3Server(free_port())
    keys = ["--access", server.properties["s3.access-key-id"], "--secret", server.properties["s3.secret-access-key"]]
    posix = ["posix", "--sidecar", str(folder / "meta"), str(folder / "objects")]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [program(), *keys, "--port", f"127.0.0.1:{server.port}", *posix], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        _make_bucket(server, process, folder / "log")
        yield server
    finally:
        process.terminate()
        process.wait(timeout=30)


def _make_bucket(server: S3Server, process: "subprocess.Popen[bytes]", log: Path) -> None:
    client, until = s3_client(server.properties), time.monotonic() + 30
    while True:
        assert process.poll() is None, f"the S3 server ended with {process.returncode}:\n{log.read_text()[-3000:]}"
        try:
            client.create_bucket(Bucket=BUCKET)
            return
        except (BotoCoreError, ClientError):
            assert time.monotonic() < until, f"the S3 server did not answer within 30 s:\n{log.read_text()[-3000:]}"
            time.sleep(0.1)
