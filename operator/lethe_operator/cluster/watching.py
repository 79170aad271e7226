"""How kopf watches: which objects, with which time-outs, and what it keeps of them.

It stores nothing in the cluster: no handler needs a finalizer or an annotation, so the deletion of a resource never waits for
this operator. It keeps nothing of an object whose event was handled: the operator has its own store.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from typing import Any, Final

import kopf
from kopf._core.reactor.inventory import ResourceMemories, ResourceMemory
from lethe.kube import LEASES, ResourceKind

from lethe_operator.cluster.cache import SELECTORS

PREFIX: Final = "lethe.dev"
# One request of a watch. The next one goes on where it ended.
WATCH_SECONDS: Final = 300
# The API server sends a bookmark every 60 to 75 seconds. A watch without events or bookmarks is dead, and is requested again.
INACTIVE_SECONDS: Final = 90.0
# Objects per page of the listing with which a watch starts.
CHUNK: Final = 500
# kopf keeps the last event of an object, and a task, for this long. A long value would keep all objects of a long listing.
IDLE_SECONDS: Final = 0.1
# Pauses after requests that fail. kopf ends a watch for good when they end.
BACK_OFF_SECONDS: Final = (1, 1, 2, 3, 5, 8, 13, 21)
LONGEST_BACK_OFF_SECONDS: Final = 30


class Endless:
    """The pauses of a watch that never gives up, such as in a namespace in which the operator may not read for an hour."""

    def __iter__(self) -> Iterator[float]:
        return chain(BACK_OFF_SECONDS, repeat(LONGEST_BACK_OFF_SECONDS))


class NoMemories(ResourceMemories):
    """kopf keeps a record of each object for daemons, timers and handlers of changes.

    There are none, so a record lives as long as one event.
    """

    async def recall(self, raw_body: Any, **details: Any) -> ResourceMemory:
        """A new record for each event, which kopf does not keep."""
        return await super().recall(raw_body, **{**details, "ephemeral": True})


class _NoEssence(kopf.DiffBaseStorage):
    """kopf copies each object to find changes since the last handling. No handler needs that."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None: ...


def watch(
    registry: kopf.OperatorRegistry,
    kinds: Iterable[ResourceKind],
    record: Callable[[Any, ResourceKind, str | None, Any], None],
) -> None:
    """Let kopf watch objects of these kinds.

    Args:
        record: Called on the loop's thread with kopf's memo, the kind, the type of an event (None: a listing) and the object.
    """
    for kind in kinds:
        _watch(registry, kind, record)


def _watch(
    registry: kopf.OperatorRegistry, kind: ResourceKind, record: Callable[[Any, ResourceKind, str | None, Any], None]
) -> None:
    @kopf.on.event(*_group_and_version(kind), kind.plural, registry=registry, id=f"on_{kind.plural}")
    async def on_event(event: kopf.RawEvent, memo: Any, **_: Any) -> None:
        record(memo, kind, event["type"], event["object"])


def kopf_settings(committer: str) -> kopf.OperatorSettings:
    """Explicit time-outs; kopf posts and stores nothing, and watches only Lethe's objects.

    Args:
        committer: Name of the committer's Lease.
    """
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True  # otherwise kopf needs rights on all namespaces and CRDs
    settings.posting.enabled = False
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.client_timeout = WATCH_SECONDS + 10
    settings.watching.connect_timeout = 10
    settings.watching.inactivity_timeout = INACTIVE_SECONDS
    settings.watching.chunk_size = CHUNK
    settings.queueing.idle_timeout = IDLE_SECONDS
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.networking.error_backoffs = Endless()
    settings.persistence.finalizer = f"{PREFIX}/operator"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=PREFIX)
    settings.persistence.diffbase_storage = _NoEssence()
    for kind, labels in SELECTORS.items():
        settings.watching.label_selectors[(*_group_and_version(kind), kind.plural)] = labels
    settings.watching.field_selectors[(*_group_and_version(LEASES), LEASES.plural)] = f"metadata.name={committer}"
    return settings


def _group_and_version(kind: ResourceKind) -> tuple[str, str]:
    """The parts of a path: `/apis/batch/v1` is the group batch in version v1, and `/api/v1` the group without a name."""
    group, _, version = kind.api.removeprefix("/apis/").removeprefix("/api/").rpartition("/")
    return group, version
