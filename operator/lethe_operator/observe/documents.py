"""Documents of runs that lie beside the table, each read and parsed once: a pointer names content that never changes. I/O."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, TypeVar

from lethe.contract.run import Document, RunPointer
from pydantic import ValidationError

D = TypeVar("D", bound=Document)

# Those of a Dataset whose group is halved again and again are about twenty, and each may take megabytes.
KEPT: Final = 64


class Documents:
    """One per operator, shared by its threads.

    Args:
        read: The content that a pointer names, None when it is gone; what it raises is passed on.
    """

    def __init__(self, read: Callable[[RunPointer], bytes | None]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[type[Any], str], Any] = OrderedDict()

    def get(self, model: type[D], pointer: RunPointer) -> D | None:
        """None when it is gone or cannot be understood, which is no reason to stop anything."""
        key = (model, pointer.sha256)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                found: D = self._kept[key]
                return found
        content = self._read(pointer)
        if content is None:
            return None
        try:
            document = model.model_validate_json(content)
        except ValidationError:
            return None
        with self._lock:
            self._kept[key] = document
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return document
