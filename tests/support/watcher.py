"""The part of an operator that watches: kopf with the operator's settings, and the store of objects. Also as a process of its
own, whose memory a test can measure: each line on its standard input is a command, and each answer is a line of JSON."""

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kopf
from lethe.kube import RESTATEMENTS, Kube, ResourceKind
from lethe_local.folder import Folder
from lethe_operator.cluster.queue import WorkQueue
from lethe_operator.cluster.schedule import Key
from lethe_operator.cluster.watching import NoMemories, kopf_settings, watch
from lethe_operator.dataset.objects import WatchedObjects
from lethe_operator.handlers import Relists, WatchEvents
from lethe_operator.probes import OperatorHealth

from tests.support.api_server import NAMESPACE, endpoint
from tests.support.clock import ManualClock

KINDS = (RESTATEMENTS,)


class Queued(WorkQueue):
    """What is queued, and nothing is reconciled."""

    def __init__(self) -> None:
        self.added: list[Key] = []

    def add(self, key: Key, *_: Any, **__: Any) -> None:
        self.added.append(key)


@dataclass
class Watcher:
    """A store that kopf feeds with the Restatements of a server, whose folder is `home`."""

    home: Path
    objects: WatchedObjects = field(default_factory=WatchedObjects)
    queue: Queued = field(default_factory=Queued)
    clock: ManualClock = field(default_factory=ManualClock)
    events: int = 0

    def __post_init__(self) -> None:
        self.server = endpoint(Folder(self.home).kubeconfig)
        self.kube = Kube(self.server)
        self.health = OperatorHealth(self.clock, 600)
        self.objects.clock, self.objects.finds = self.clock, self.health
        self.relists = Relists(self.objects, self.kube, [NAMESPACE], self.health, clock=self.clock)

    def record(self, _memo: Any, kind: ResourceKind, type: str | None, body: Any) -> None:
        WatchEvents(self.queue, self.health, self.objects).record(kind, type, body)
        self.events += 1

    def list(self) -> None:
        """As the operator does at its start."""
        self.objects.catch_up(self.kube, [NAMESPACE], KINDS)

    def versions(self) -> dict[str, str]:
        return {seen.name: seen.version for seen in self.objects.restatements.versions(NAMESPACE).values()}


@contextmanager
def watching(watcher: Watcher, inactive_seconds: float | None = None) -> Iterator[None]:
    """Let kopf watch in a thread.

    Args:
        inactive_seconds: None: as the operator sets it.
    """
    registry, settings = kopf.OperatorRegistry(), kopf_settings("lethe-committer")
    if inactive_seconds is not None:
        settings.watching.inactivity_timeout = inactive_seconds
    watch(registry, KINDS, watcher.record)

    @kopf.on.login(registry=registry)
    def login(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(
            server=watcher.server.url,
            ca_path=watcher.server.ca_file,
            token=Folder(watcher.home).token,
        )

    stop = threading.Event()
    operator = kopf.operator(
        registry=registry,
        settings=settings,
        memories=NoMemories(),
        standalone=True,
        namespaces=[NAMESPACE],
        memo=kopf.Memo(runtime=None),
        stop_flag=stop,
    )
    thread = threading.Thread(target=lambda: asyncio.run(operator), name="kopf", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)
        assert not thread.is_alive()


def _resident() -> dict[str, float]:
    """Memory now and at its peak, in MiB."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    kib = {line[0]: float(line[1]) for line in lines if line[0] in ("VmRSS:", "VmHWM:")}
    return {"now": kib["VmRSS:"] / 1024, "peak": kib["VmHWM:"] / 1024}


def main() -> None:
    watcher = Watcher(Path(sys.argv[1]))
    with watching(watcher):
        for line in sys.stdin:
            answer = {"events": watcher.events}
            if line.strip() == "list":
                watcher.list()
                known = watcher.versions()
                answer = {"known": len(known), "versions": sum(map(int, known.values()))}
            print(json.dumps({**answer, **_resident()}), flush=True)


if __name__ == "__main__":
    main()
