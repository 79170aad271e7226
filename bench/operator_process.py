"""The operator as a process, with the settings of its Deployment. Its time and memory can be read exactly. I/O."""

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from bench import timing
from tests.support.servers.postgres import free_port

STARTS_WITHIN_SECONDS: Final = 120


@dataclass
class OperatorProcess:
    """One replica. `start` may be called again after `kill` or `stop`."""

    # Environment variables that the chart sets, with the values of this machine for addresses and files.
    env: Mapping[str, str]
    # Receives the log.
    log: Path
    name: str = "operator-0"
    # How often it was started. As for a Deployment, each start is a pod of another name.
    starts: int = 0
    _process: subprocess.Popen[bytes] | None = None
    _ports: tuple[int, int] = field(default=(0, 0))

    @property
    def pid(self) -> int:
        assert self._process is not None, "the operator was not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, wait: bool = True) -> None:
        """Start it; wait until it is ready. Raises: RuntimeError, with the end of its log."""
        assert not self.is_running, f"{self.name} runs already"
        self._ports = free_port(), free_port()
        self.starts += 1
        environment = {
            **os.environ,
            **self.env,
            "POD_NAME": f"{self.name}-{self.starts}",
            "LETHE_METRICS_PORT": str(self._ports[0]),
            "LETHE_PROBES_PORT": str(self._ports[1]),
        }
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lethe_operator"], env=environment, stdout=log, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + STARTS_WITHIN_SECONDS
        while wait and self._probe("healthz") is None:
            if not self.is_running or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not start: {self.log.read_text()[-3000:]}")
            time.sleep(0.2)

    def is_ready(self) -> bool:
        return self._probe("readyz") is not None

    def leads(self) -> bool:
        """Whether it acts. The answer of its readiness probe says so."""
        return b"leads" in (self._probe("readyz") or b"")

    def _probe(self, name: str) -> bytes | None:
        """The answer of a probe; None: it fails."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._ports[1]}/{name}", timeout=5) as answer:
                return bytes(answer.read())
        except OSError:
            return None

    def kill(self) -> None:
        """Kill it, as a lost node or a full memory would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Let it end in order."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    # --- numbers ---

    def cpu_seconds(self) -> float:
        """Of the process and its threads, since its start."""
        return timing.cpu_seconds(self.pid)

    def memory_bytes(self, peak: bool = False) -> int:
        """Resident memory now, or at its peak since the start or the last `forget_peak`."""
        return timing.memory_bytes(self.pid, peak=peak)

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def metrics(self) -> tuple[dict[str, float], int]:
        """The sums of all metrics by sample name, and the size of the answer in bytes."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._ports[0]}/metrics", timeout=120) as answer:
            content = answer.read()
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(content.decode()):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
        return sums, len(content)


def environment_of(deployment: Mapping[str, Any], namespace: str) -> dict[str, str]:
    """The environment of a Deployment's first container. Fields of the pod other than its namespace are left out. Pure."""
    found: dict[str, str] = {}
    for one in deployment["spec"]["template"]["spec"]["containers"][0].get("env") or ():
        if "value" in one:
            found[one["name"]] = one["value"]
        elif ((one.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath") == "metadata.namespace":
            found[one["name"]] = namespace
    return found
