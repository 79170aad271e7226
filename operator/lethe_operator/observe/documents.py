"""Reads documents of runs that are stored beside the table. Each is read once: the content of a pointer never changes. I/O."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, TypeVar

from lethe.contract.run import Document, RunPointer
from pydantic import ValidationError

D = TypeVar("D", bound=Document)

# A Dataset whose group of Restatements is halved repeatedly has about twenty documents, each with up to megabytes.
KEPT: Final = 64


class Documents:
    """One per operator, shared by its threads.

    Args:
        read: Returns the content of a pointer; None: it does not exist. Its exceptions are passed on.
    """

    def __init__(self, read: Callable[[RunPointer], bytes | None]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[type[Any], str], Any] = OrderedDict()

    def get(self, model: type[D], pointer: RunPointer) -> D | None:
        """The document; None: it does not exist, or it is invalid, which must not stop the operator."""
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
            document = model.model_validate_json(content, extra="ignore")
        except ValidationError:
            return None
        with self._lock:
            self._kept[key] = document
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return document
