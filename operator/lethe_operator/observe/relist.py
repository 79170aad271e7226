"""Compares what is known of a kind with a list of metadata, and reads what differs. I/O.

A watch reports each change. This finds what a watch has lost. It lists names and versions only, page by page, so that tens of
thousands of objects cost little memory.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from lethe_operator.kube import Document, Kube, NotFound, Page, ResourceKind
from lethe_operator.observe.object_store import Put, Seen
from lethe_operator.observe.trimmed import Body
from lethe_operator.resources.common import is_newer

# If more objects of a page differ, one request reads the whole page.
READ_ONE_BY_ONE: Final = 10
# A listing that nobody waits for pauses after each page, so many times as long as the page took: a page of many objects costs the
# API server much.
PAUSES: Final = 4.0
LONGEST_PAUSE_SECONDS: Final = 2.0
# The API server forgets the state of a listing after five minutes.
PAUSES_WITHIN_SECONDS: Final = 200.0


class RelistedStore(Protocol):
    """The known objects of one kind."""

    def put(self, body: Body) -> Put: ...

    def drop_if_unchanged(self, namespace: str, uid: str, seen: Seen) -> Body | None: ...

    def versions(self, namespace: str) -> dict[str, Seen]: ...


class Finds(Protocol):
    """Records what a listing found and what watches have reported."""

    def found(self, uid: str, version: str) -> None:
        """No watch has reported this version of an object yet."""

    def watched(self, uid: str, version: str) -> None:
        """This version of an object was reported."""


@dataclass(frozen=True)
class Listing:
    """The objects of a kind in a namespace."""

    kube: Kube
    kind: ResourceKind
    namespace: str
    # Selector of the objects that are watched; "": all.
    labels: str = ""
    # True: nobody waits for the result.
    unhurried: bool = False
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def read(self, store: RelistedStore) -> None:
        """Read all objects whole: half of the requests of `compare` if most objects are not known yet."""
        known = store.versions(self.namespace)
        for page in self._pages(metadata_only=False):
            for body in page.items:
                known.pop(body["metadata"]["uid"], None)
                store.put(body)
        for _ in self._drop(store, known):
            pass

    def compare(self, store: RelistedStore, finds: Finds) -> Iterator[Body]:
        """Read the objects that the store does not have in this version, and drop those that no longer exist; return both. At the
        end, the store is at least as new as the API server was at the beginning. Raises: Refused, Away."""
        known = store.versions(self.namespace)
        unseen = dict(known)
        after = ""
        for page in self._pages(metadata_only=True):
            differing: dict[str, Body] = {}
            for item in page.items:
                metadata = item["metadata"]
                unseen.pop(metadata["uid"], None)
                if _differs(metadata, known):
                    differing[metadata["name"]] = metadata
            yield from self._replace(store, finds, differing, after)
            after = page.after
        yield from self._drop(store, unseen)

    def _replace(self, store: RelistedStore, finds: Finds, differing: Mapping[str, Body], after: str) -> Iterator[Body]:
        for metadata in differing.values():
            finds.found(metadata["uid"], str(metadata["resourceVersion"]))
        news = set()
        for body in self._whole(differing, after):
            if store.put(body).is_news:
                news.add(body["metadata"]["uid"])
                yield body
        for metadata in differing.values():
            if metadata["uid"] not in news:  # the watch was faster
                finds.watched(metadata["uid"], str(metadata["resourceVersion"]))

    def _whole(self, names: Collection[str], after: str) -> Iterator[Document]:
        """The whole objects with these names, which are on the page that begins with `after`."""
        if len(names) > READ_ONE_BY_ONE:
            yield from self.kube.page(self.kind, self.namespace, self.labels, after).items
            return
        for name in names:
            with suppress(NotFound):
                yield self.kube.get(self.kind, self.namespace, name)

    def _pages(self, metadata_only: bool) -> Iterator[Page]:
        after, ends = "", self.clock() + PAUSES_WITHIN_SECONDS
        while True:
            began = self.clock()
            page = self.kube.page(self.kind, self.namespace, self.labels, after, metadata_only)
            yield page
            after = page.after
            if not after:
                return
            now = self.clock()
            if self.unhurried and now < ends:
                self.sleep(min(PAUSES * (now - began), LONGEST_PAUSE_SECONDS))

    def _drop(self, store: RelistedStore, unseen: Mapping[str, Seen]) -> Iterator[Body]:
        for uid, seen in unseen.items():
            dropped = store.drop_if_unchanged(self.namespace, uid, seen)
            if dropped is not None:
                yield dropped


def _differs(metadata: Body, known: Mapping[str, Seen]) -> bool:
    seen = known.get(metadata["uid"])
    return seen is None or is_newer(str(metadata["resourceVersion"]), seen.version)
