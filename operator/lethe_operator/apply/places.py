"""Taking one of the places that a VacuumPolicy has: who takes one has looked, and nobody else does meanwhile. I/O.

Two Datasets may be reconciled at the same moment and each see the last place free. Jobs are the truth, so they are listed once
more, by one thread at a time, right before one is created.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from lethe_operator.kube import Kube
from lethe_operator.resources.observed import Place, VacuumJob


@dataclass
class Places:
    """One per operator. `jobs`: the vacuums of a namespace as they are now, however they are found out."""

    jobs: Callable[[Kube, str], Iterable[VacuumJob]]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _of: dict[str, threading.Lock] = field(default_factory=dict)

    @contextmanager
    def taking(self, kube: Kube, namespace: str, place: Place | None, uid: str) -> Iterator[bool]:
        """Whether the Dataset of this UID may start its vacuum; until the end nobody else of the namespace starts one that needs
        a place. Raises: KubeError."""
        if place is None:
            yield True
            return
        with self._lock:
            mine = self._of.setdefault(namespace, threading.Lock())
        with mine:
            yield len(place.taken(self.jobs(kube, namespace), uid)) < place.at_most
