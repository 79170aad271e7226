"""The gate before S3, from the test's side: what a run writes is held, cut or let through. I/O only."""

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.install import image
from tests.cluster.kube import Cluster
from tests.cluster.lake import GATE, GATE_PORT, SERVICES, Services
from tests.cluster.servers.pods import server
from tests.support.clock import SLOWER

SCRIPT = Path(__file__).with_name("s3_gate.py")


@dataclass(frozen=True)
class Gate:
    url: str

    def hold(self, pattern: str) -> None:
        """Hold each PUT whose path matches, from now on."""
        self._post("hold", pattern=pattern)

    def release(self) -> None:
        self._post("release")

    def away(self) -> None:
        """Cut what is held, and whatever comes."""
        self._post("away")

    def back(self) -> None:
        self._post("back")

    def wait_until(self, holds: Callable[[list[str]], bool], within_seconds: float, why: str) -> list[str]:
        """The paths of the requests that are held, as soon as these are the ones that a test waits for."""
        limit = SLOWER * within_seconds
        until = time.monotonic() + limit
        while not holds(held := list(self._state()["held"])):
            assert time.monotonic() < until, f"waited {limit:.0f} s for {why}; held were {held}"
            time.sleep(0.1)
        return held

    def _state(self) -> dict[str, Any]:
        with urllib.request.urlopen(self.url, timeout=10) as answer:
            return dict(json.load(answer))

    def _post(self, action: str, **arguments: str) -> None:
        body = json.dumps(arguments).encode()
        request = urllib.request.Request(f"{self.url}/{action}", body, method="POST")
        urllib.request.urlopen(request, timeout=10).close()


@contextmanager
def running(cluster: Cluster, services: Services) -> Iterator[Gate]:
    command = ["python3", "/files/s3_gate.py", f"s3.{SERVICES}:7070", str(GATE_PORT), "7072"]
    files, ports = {"s3_gate.py": SCRIPT.read_text()}, {"s3": GATE_PORT, "control": 7072}
    with server(cluster, GATE, image("LETHE_OPERATOR_IMAGE"), command, files, ports) as node_ports:
        yield Gate(f"http://{services.node}:{node_ports['control']}")
