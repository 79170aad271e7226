"""Who may decode files now: few at once, and of one Dataset or namespace fewer, so that the others need not wait for it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


class Busy(Exception):
    """All places are taken."""


@dataclass(frozen=True, eq=False)
class _Waiting:
    namespace: str
    dataset: str


@dataclass
class Turns:
    """Places, given in the order in which they are asked for. Threads may share it."""

    places: int
    of_namespace: int
    of_dataset: int
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _working: list[_Waiting] = field(default_factory=list)
    _waiting: list[_Waiting] = field(default_factory=list)

    @contextmanager
    def turn(self, namespace: str, dataset: str, seconds: float) -> Iterator[None]:
        """Have a place.

        Args:
            seconds: To wait for it.
        Raises: Busy.
        """
        mine = _Waiting(namespace, dataset)
        with self._changed:
            self._waiting.append(mine)
            got = self._changed.wait_for(lambda: self._next() is mine, seconds)
            self._waiting.remove(mine)
            if got:
                self._working.append(mine)
            self._changed.notify_all()
        if not got:
            raise Busy
        try:
            yield
        finally:
            with self._changed:
                self._working.remove(mine)
                self._changed.notify_all()

    def _next(self) -> _Waiting | None:
        """The first that may work."""
        if len(self._working) >= self.places:
            return None
        return next((w for w in self._waiting if self._fits(w)), None)

    def _fits(self, waiting: _Waiting) -> bool:
        of_namespace = [w for w in self._working if w.namespace == waiting.namespace]
        of_dataset = [w for w in of_namespace if w.dataset == waiting.dataset]
        return len(of_namespace) < self.of_namespace and len(of_dataset) < self.of_dataset
