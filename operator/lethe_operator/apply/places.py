"""Reserves one of the places among the concurrent vacuums of a VacuumPolicy. I/O.

Two Datasets may be reconciled at the same moment and both see the last place free. So one thread at a time looks at the Jobs
again right before it creates one.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from lethe_operator.resources.observed import VacuumJob, VacuumLimit


@dataclass
class Places:
    """One per operator."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _of: dict[str, threading.Lock] = field(default_factory=dict)

    @contextmanager
    def taking(
        self, jobs: Callable[[str], Iterable[VacuumJob]], namespace: str, place: VacuumLimit | None, uid: str
    ) -> Iterator[bool]:
        """Whether the Dataset with this UID may start its vacuum. Until the context ends, no other Dataset of the namespace
        starts a vacuum that needs a place.

        Args:
            jobs: Returns the current vacuum Jobs of a namespace, including each that this operator has created.
        """
        if place is None:
            yield True
            return
        with self._lock:
            mine = self._of.setdefault(namespace, threading.Lock())
        with mine:
            yield len(place.taken(jobs(namespace), uid)) < place.at_most
