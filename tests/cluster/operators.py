"""Operators as processes on this machine, each behind its own way to the API server, which a test can block.

The certificate of the API server is valid for the name `kubernetes`, so that is what they connect to.
"""

import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import yaml

ROOT = Path(__file__).parents[2]
# Connects to this machine instead of the name `kubernetes`; otherwise this is the operator as it is.
LAUNCHER = """
import socket
resolve = socket.getaddrinfo
socket.getaddrinfo = lambda host, *more, **named: resolve("127.0.0.1" if host == "kubernetes" else host, *more, **named)
from lethe_operator.main import main
main()
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Gate:
    """Forwards TCP connections. While it is blocked, bytes wait in it, as in a network that is interrupted."""

    def __init__(self, host: str, port: int) -> None:
        self._to = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open = threading.Event()
        self._open.set()
        self._ended = False
        threading.Thread(target=self._accept, daemon=True).start()

    def block(self) -> None:
        self._open.clear()

    def unblock(self) -> None:
        self._open.set()

    def close(self) -> None:
        self._ended = True
        self._open.set()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._forward, args=(near,), daemon=True).start()

    def _forward(self, near: socket.socket) -> None:
        self._open.wait()
        with (
            suppress(OSError),
            near,
            socket.create_connection(self._to, 10) as far,
            selectors.DefaultSelector() as ready,
        ):
            ready.register(near, selectors.EVENT_READ, far)
            ready.register(far, selectors.EVENT_READ, near)
            while not self._ended:
                for key, _ in ready.select(1):
                    self._open.wait()
                    assert isinstance(key.fileobj, socket.socket)
                    data = key.fileobj.recv(1 << 16)
                    if not data:
                        return
                    key.data.sendall(data)


@dataclass
class LocalOperator:
    name: str  # its identity in the Lease
    process: subprocess.Popen[bytes]
    gate: Gate
    metrics_port: int
    probes_port: int
    log: Path

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """As Kubernetes ends a pod."""
        self.process.terminate()
        self.process.wait(60)

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def ready(self) -> str:
        """What it answers if it is ready; "": it is not."""
        assert self.process.poll() is None, f"{self.name} ended:\n{self.log.read_text()[-3000:]}"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.probes_port}/readyz", timeout=5) as answer:
                return str(answer.read().decode())
        except (OSError, urllib.error.HTTPError):
            return ""

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's values with these labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        found = [re.fullmatch(rf"{name}(?:\{{(.*)\}})? (\S+)", line) for line in lines]
        return sum(float(m[2]) for m in found if m and wanted <= set((m[1] or "").split(",")))

    def writes(self) -> float:
        """Requests so far that changed something, apart from Leases."""
        of_methods = sum(self.metric("lethe_api_requests_total", method=m) for m in ("POST", "PATCH", "DELETE"))
        of_leases = sum(
            self.metric("lethe_api_requests_total", method=m, resource="leases") for m in ("POST", "PATCH", "DELETE")
        )
        return of_methods - of_leases


@contextmanager
def local_operator(name: str, kubeconfig: Path, home: Path, environment: Mapping[str, str]) -> Iterator[LocalOperator]:
    """An operator for as long as the block lasts.

    Args:
        home: A folder for its kubeconfig and log.
        environment: Its settings.
    """
    config = yaml.safe_load(kubeconfig.read_text())
    (cluster,) = (c["cluster"] for c in config["clusters"])
    server = urlsplit(cluster["server"])
    gate = Gate(str(server.hostname), server.port or 443)
    cluster["server"] = f"https://kubernetes:{gate.port}"
    own, log = home / f"{name}.kubeconfig", home / f"{name}.log"
    own.touch(mode=0o600)
    own.write_text(yaml.safe_dump(config))
    ports = {"LETHE_METRICS_PORT": free_port(), "LETHE_PROBES_PORT": free_port()}
    variables = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'spark_apps'}",
        "KUBECONFIG": str(own),
        "POD_NAME": name,
        **{key: str(port) for key, port in ports.items()},
        **environment,
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER], env=variables, cwd=home, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield LocalOperator(name, process, gate, ports["LETHE_METRICS_PORT"], ports["LETHE_PROBES_PORT"], log)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait()
        gate.close()
