"""Uploads that cost the gateway all the time that a file may take hold up no upload of another Dataset.

`-s` prints what was measured.
"""

import gzip
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from lethe.base import names
from lethe.iceberg import catalogs
from lethe.kube import DATASETS
from lethe_local.folder import NAMESPACE, Folder
from lethe_local.up import Local

from tests.support import gateway_lake, poison
from tests.support.clock import wait_until
from tests.support.servers.gateway import GatewayProcess
from tests.support.tables import SCHEMA, new_table

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

POISONS = 10
P95_SECONDS = 1.0
TIMEOUT_SECONDS = 300.0  # of the poisonous ones, which wait for one another
# Uploads of the other Dataset, at the rate that one caller may have with three requests each.
UPLOADS = 60
PAUSE_SECONDS = 0.25
COLUMNS = SCHEMA.append(pa.field("day", pa.int32()))
GOOD = b'{"v":1}\n' * 1000


@dataclass
class Gateway:
    """A running gateway, and a client with its only token."""

    process: GatewayProcess
    client: httpx.Client
    seconds: list[float] = field(default_factory=list)  # of each completion of the other Dataset

    def open(self, dataset: str, batch_id: str, name: str, content: bytes) -> str:
        """Open the upload of one file and send it. Returns: its path."""
        base = f"/v1/namespaces/{NAMESPACE}/datasets/{dataset}/uploads"
        announced = {"batchId": batch_id, "files": [{"path": name, "size": len(content)}]}
        upload = self._until_taken("POST", base, json=announced).json()["id"]
        self._until_taken("PUT", f"{base}/{upload}/files/0", content=content)
        return f"{base}/{upload}"

    def complete(self, upload: str) -> httpx.Response:
        return self._until_taken("POST", f"{upload}:complete")

    def _until_taken(self, method: str, path: str, **body: object) -> httpx.Response:
        """As `lethe.GatewayClient` does: again, as long as the gateway is busy."""
        while True:
            answer = self.client.request(method, path, **body)  # type: ignore[arg-type]
            if answer.status_code not in (429, 503):
                return answer
            time.sleep(float(answer.headers["retry-after"]))


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    """Of `lethe local`, which has one caller: limits of a caller do not help the other Dataset. Nothing else of it runs."""
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    with Local(Folder(tmp_path), gateway_port=0) as local:
        catalogs.load("local").create_namespace("air")
        for n in range(POISONS):
            _add_dataset(local, f"poisoned-{n}")
        _add_dataset(local, "good")
        (part,) = [p for p in local._parts if p.name == "gateway"]
        part.look()
        assert part.running is not None
        process = GatewayProcess(local.gateway_port or 0, part.running.process, tmp_path)  # type: ignore[arg-type]
        with process.client(local.folder.token) as client:
            client.timeout = httpx.Timeout(TIMEOUT_SECONDS)
            wait_until(lambda: _is_healthy(client), 60)
            yield Gateway(process, client)


def _add_dataset(local: Local, name: str) -> None:
    new_table(catalogs.load("local"), f"air.{name}", COLUMNS, **{names.CLAIM: f"{NAMESPACE}/{name}"})
    kind = next(k for k in local.objects.kinds.values() if k.resource == DATASETS)
    buffer = {"uri": f"file://{local.folder.path}/{name}", "format": "json"}
    document = gateway_lake.dataset(name, "local", f"air.{name}", buffer=buffer)
    local.objects.create(kind, NAMESPACE, document)


def _is_healthy(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("datasets", [1, POISONS])
def test_another_dataset_is_completed_within_a_second(gateway: Gateway, datasets: int) -> None:
    """While ten uploads, to one Dataset or to ten, take half a minute of processor time each, expand a hundredfold or nest."""
    contents = [poison.blank_lines(400_000_000)] * (POISONS - 2)
    contents += [gzip.compress(b'{"v":1}\n' * 15_000_000, 1), poison.deep_json(100_000)]
    opened = [gateway.open(f"poisoned-{n % datasets}", f"B{n}", "a.json", c) for n, c in enumerate(contents)]
    good = [gateway.open("good", f"G{n}", "a.json", GOOD) for n in range(UPLOADS)]
    ended = threading.Event()
    with ThreadPoolExecutor(POISONS) as pool:
        poisoned = [pool.submit(_complete_until, gateway, u, ended) for u in opened]
        healthy, under_way = [], []
        for upload in good:
            under_way.append(sum(not p.done() for p in poisoned))
            began = time.monotonic()
            answer = gateway.complete(upload)
            gateway.seconds.append(time.monotonic() - began)
            assert (answer.status_code, answer.json()["state"], answer.json()["checked"]) == (200, "Complete", True)
            healthy.append(_is_healthy(gateway.client))
            time.sleep(PAUSE_SECONDS)
        ended.set()
        statuses = [p.result() for p in poisoned]

    p95 = statistics.quantiles(gateway.seconds, n=20)[-1]
    print(
        f"\n{POISONS} poisonous uploads to {datasets} Datasets: {UPLOADS} completions of another one took "
        f"{statistics.median(gateway.seconds):.3f} s (median), {p95:.3f} s (95 %), {max(gateway.seconds):.3f} s (most); "
        f"{statistics.mean(under_way):.1f} poisonous ones under way; answers to them: {statuses}"
    )
    assert p95 <= P95_SECONDS
    assert min(under_way) > 0
    assert statuses[-1] in (422, 429, 503)  # refused for its depth, unless it never had its turn
    assert all(healthy)
    assert gateway.process.process.poll() is None


def _complete_until(gateway: Gateway, upload: str, ended: threading.Event) -> int:
    """Complete an upload, again and again, as a client does that is told to come back. Returns: the last answer's status."""
    while True:
        answer = gateway.client.post(f"{upload}:complete")
        if answer.status_code not in (429, 503) or ended.is_set():
            return answer.status_code
        ended.wait(float(answer.headers["retry-after"]))
