"""`lethe local up`: the API, the node, operator, committer, inlet and gateway, until Ctrl-C. I/O: processes, a port, a folder."""

import base64
import json
import logging
import os
import signal
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lethe.base.errors import TransientError

from lethe_local.api import objects
from lethe_local.api.objects import ApiKind, LocalObjects
from lethe_local.api.server import HOST, ApiServer
from lethe_local.api.store import LocalApiStore
from lethe_local.folder import NAMESPACE, VALUES_DRIVER, WARM_DRIVER, Folder
from lethe_local.node import PROC, Node, PodProcess, kill_leftover, node_environment
from lethe_local.node import start as start_process

log = logging.getLogger(__name__)

COMMITTER: Final = "lethe-committer"
CATALOGS_SECRET: Final = "lethe-catalogs"
# With both warm drivers there is room for one more process.
MAX_PODS: Final = 3
LOOK_SECONDS: Final = 0.5
STOP_SECONDS: Final = 30.0
# A part that ends is started again after this pause, which doubles up to the longest.
PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 60.0


@dataclass
class LocalProcess:
    """A process that runs as long as `up`."""

    name: str
    command: list[str]
    environ: Mapping[str, str]
    folder: Path
    running: PodProcess | None = None
    failures: int = 0
    """In a row: a process that has run for longer than the longest pause begins a new one."""
    starts: float = 0.0
    """Not before this time, by time.monotonic."""
    started: float = 0.0
    """When it was started, by time.monotonic."""

    def recover(self) -> None:
        """End the process of an earlier life."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        kill_leftover(self.folder)

    def look(self) -> None:
        """Start the process, if it does not run."""
        now = time.monotonic()
        if self.running is not None:
            code = self.running.exit_code
            if code is None:
                return
            if now - self.started > LONGEST_PAUSE_SECONDS:
                self.failures = 0
            pause = min(PAUSE_SECONDS * 2**self.failures, LONGEST_PAUSE_SECONDS)
            log.warning(
                "the %s ended with exit code %s and starts again in %g s; see %s/log",
                self.name,
                code,
                pause,
                self.folder,
            )
            self.running, self.failures, self.starts = None, min(self.failures + 1, 10), now + pause
        if now >= self.starts:
            self.running, self.started = start_process(self.command, self.environ, self.folder), now

    def stop(self) -> None:
        """Ask the process to end, if it runs; a call after its grace period kills it."""
        if self.running is not None:
            self.running.stop()

    def wait(self, until: float) -> None:
        """Wait until the process has ended; kill it at a time of time.monotonic."""
        if self.running is not None:
            self.running.wait(until - time.monotonic())


@dataclass
class Local:
    """Everything that `lethe local up` runs. Use it as a context manager."""

    folder: Folder
    port: int = 0
    """Of the API; 0: any free one."""
    warm_driver: bool = True
    """Whether small runs share a Spark session that stays up."""
    gateway_port: int | None = None
    """Of the gateway; 0: any free one, which is set here; None: there is no gateway."""
    _stack: ExitStack = field(default_factory=ExitStack)
    _parts: list[LocalProcess] = field(default_factory=list)

    def __enter__(self) -> "Local":
        """Start.

        Raises:
            InputError: `FolderNotWritable`, `AlreadyRunning`.
            TransientError: `PortTaken`.
        """
        self.folder.prepare()
        with ExitStack() as stack:
            stack.enter_context(self.folder.locked())
            store = LocalApiStore(self.folder.state)
            stack.callback(store.close)
            self.objects = LocalObjects(store)
            try:
                server = ApiServer(self.objects, self.folder.token, self.folder.certificate, self.port)
            except OSError as e:
                raise _port_taken(self.port, e, "--port") from None
            server.start()
            stack.callback(server.stop)
            self.folder.write_kubeconfig(server.port)
            stack.callback(lambda: self.folder.kubeconfig.unlink(missing_ok=True))
            self._provide_objects()
            environ = node_environment(self.folder.account, server.port)
            node = Node(self.objects, self.folder.runs, environ, MAX_PODS)
            node.recover()
            thread = threading.Thread(target=node.run, name="node")
            thread.start()
            stack.callback(thread.join)
            stack.callback(node.leave)
            self._parts = [self._operator(environ), self._committer(environ)]
            if self.folder.kafka_clusters.exists():
                self._parts.append(self._inlet())
            for part in self._parts:
                part.recover()
            if self.gateway_port is not None:
                self.serve_gateway(self.gateway_port)
            stack.callback(self._stop_parts)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def watch(self, until: Callable[[], bool]) -> None:
        """Keep all parts running until a condition holds.

        What fails is tried again: an editor may be replacing the file of catalogs, or the disk may be full.
        """
        last: list[str] = []
        while not until():
            failed: list[str] = []
            for look in (self._sync_catalogs, *(part.look for part in self._parts)):
                try:
                    look()
                except (OSError, sqlite3.Error, objects.StatusError) as e:
                    failed.append(f"{type(e).__name__}: {e}")
            if failed and failed != last:  # some last for many looks
                log.warning("lethe local goes on, and tries again: %s", "; ".join(failed))
            last = failed
            time.sleep(LOOK_SECONDS)

    def serve_gateway(self, port: int = 0) -> str:
        """Let `watch` run the gateway, too.

        Args:
            port: 0: any free one.

        Returns:
            Its address.

        Raises:
            TransientError: `PortTaken`.
        """
        self.gateway_port = port or _free_port()
        part = self._gateway(self.gateway_port)
        part.recover()  # one that a kill left may have the port
        try:
            socket.create_server((HOST, self.gateway_port)).close()
        except OSError as e:
            raise _port_taken(port, e, "--gateway-port") from None
        self._parts.append(part)
        return f"http://localhost:{self.gateway_port}"

    def _stop_parts(self) -> None:
        for part in self._parts:
            part.stop()
        ends = time.monotonic() + STOP_SECONDS
        for part in self._parts:
            part.wait(ends)

    def _operator(self, environ: Mapping[str, str]) -> LocalProcess:
        kept = {k: v for k, v in environ.items() if not k.startswith("KUBERNETES_")}
        settings = {
            "KUBECONFIG": str(self.folder.kubeconfig),
            "LETHE_WATCH_NAMESPACES": NAMESPACE,
            "LETHE_COMMITTER": json.dumps({"enabled": True, "name": COMMITTER}),
            "LETHE_WARM_DRIVERS": json.dumps(self._warm_drivers()),
            "LETHE_CATALOGS_SECRET": CATALOGS_SECRET,
            "LETHE_PROBES_PORT": "",
            "LETHE_RESYNC_SECONDS": "5",
            "LETHE_RUN_TEMPLATE": json.dumps({"driver": {"cpu": _cores(), "memory": "2Gi"}}),
            "PYICEBERG_HOME": str(self.folder.path),
        }
        command = [sys.executable, "-m", "lethe_operator"]
        return LocalProcess("operator", command, {**kept, **settings}, self.folder.parts / "operator")

    def _warm_drivers(self) -> Mapping[str, Any]:
        """The settings of the warm drivers, which run as Jobs. Their supervisor reads /proc."""
        return {
            "enabled": self.warm_driver and PROC.is_dir(),
            "name": WARM_DRIVER,
            "driver": {"cpu": _cores(), "memory": "3Gi"},
            # A process of its own has no more memory and no other cores, and first has to start.
            "maxBytesPerRun": "64Gi",
            "maxWaiting": 100,
            "valuesIdleSeconds": 30,
        }

    def _committer(self, environ: Mapping[str, str]) -> LocalProcess:
        settings = {
            "POD_NAME": "committer",
            "POD_NAMESPACE": NAMESPACE,
            "LETHE_COMMITTER": COMMITTER,
            "PYICEBERG_HOME": str(self.folder.path),
        }
        command = [sys.executable, "-m", "lethe_spark.committer"]
        return LocalProcess("committer", command, {**environ, **settings}, self.folder.parts / "committer")

    def _inlet(self) -> LocalProcess:
        settings = {
            "KUBECONFIG": str(self.folder.kubeconfig),
            "POD_NAMESPACE": NAMESPACE,
            "LETHE_INLET_CLUSTERS": str(self.folder.kafka_clusters),
            "PYICEBERG_HOME": str(self.folder.path),
        }
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("KUBERNETES_", "LETHE_"))}
        return LocalProcess(
            "inlet", [sys.executable, "-m", "lethe_inlet"], {**kept, **settings}, self.folder.parts / "inlet"
        )

    def _gateway(self, port: int) -> LocalProcess:
        """It accepts the token of the folder, and passes it on to the API.

        Without TLS, which a browser would warn of: nothing leaves this machine.
        """
        settings = {
            "KUBECONFIG": str(self.folder.kubeconfig),
            "LETHE_WATCH_NAMESPACES": NAMESPACE,
            "LETHE_GATEWAY_HOST": HOST,
            "LETHE_GATEWAY_PORT": str(port),
            "LETHE_GATEWAY_TOKEN_FILE": str(self.folder.account / "token"),
            "LETHE_GATEWAY_INDEX_FOLDER": str(self.folder.parts / "gateway" / "index"),
            "PYICEBERG_HOME": str(self.folder.path),
        }
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("KUBERNETES_", "LETHE_GATEWAY_"))}
        command = [sys.executable, "-m", "lethe_gateway"]
        return LocalProcess("gateway", command, {**kept, **settings}, self.folder.parts / "gateway")

    def _provide_objects(self) -> None:
        """Create what the chart creates in a cluster."""
        labels = {"app.kubernetes.io/name": "lethe", "app.kubernetes.io/managed-by": "lethe"}
        named: Mapping[str, Any] = {"name": COMMITTER, "labels": labels}
        self._create("Namespace", "", {"apiVersion": "v1", "metadata": {"name": "kube-system"}})
        self._create("Namespace", "", {"apiVersion": "v1", "metadata": {"name": NAMESPACE}})
        self._create("ConfigMap", NAMESPACE, {"apiVersion": "v1", "metadata": named})
        for name in (WARM_DRIVER, VALUES_DRIVER):
            self._create("ConfigMap", NAMESPACE, {"apiVersion": "v1", "metadata": {**named, "name": name}})
        self._create("Lease", NAMESPACE, {"apiVersion": "coordination.k8s.io/v1", "metadata": named, "spec": {}})
        key = {"key": base64.b64encode(os.urandom(32)).decode()}
        self._create("Secret", NAMESPACE, {"apiVersion": "v1", "metadata": {"name": "lethe-digest-key"}, "data": key})
        self._sync_catalogs()

    def _sync_catalogs(self) -> None:
        """The Secret with the catalogs has the content of the folder's file."""
        text = base64.b64encode(self.folder.catalogs.read_bytes()).decode()
        place, patch = (NAMESPACE, CATALOGS_SECRET, ""), {"data": {".pyiceberg.yaml": text}}
        try:
            self.objects.patch(self._kind("Secret"), place, patch)
        except objects.StatusError as e:
            if e.reason != "NotFound":
                raise
            self._create("Secret", NAMESPACE, {"apiVersion": "v1", "metadata": {"name": CATALOGS_SECRET}, **patch})

    def _create(self, kind: str, namespace: str, document: dict[str, Any]) -> None:
        try:
            self.objects.create(self._kind(kind), namespace, {**document, "kind": kind})
        except objects.StatusError as e:
            if e.reason != "AlreadyExists":
                raise

    def _kind(self, name: str) -> ApiKind:
        return next(k for k in self.objects.kinds.values() if k.resource.name == name)


def _cores() -> int:
    return os.cpu_count() or 1


def _port_taken(port: int, error: OSError, option: str) -> TransientError:
    return TransientError(
        "PortTaken", f"port {port} of {HOST} cannot be opened: {error.strerror}. Name another one with {option}."
    )


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as listening:
        return int(listening.getsockname()[1])


def up(local: Local, ready: Callable[[Local], None]) -> None:
    """Run until SIGINT or SIGTERM.

    Args:
        ready: Called once everything has started.
    """
    leave = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: leave.set())
    with local:
        ready(local)
        local.watch(leave.is_set)
