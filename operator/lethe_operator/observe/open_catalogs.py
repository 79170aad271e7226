"""The catalogs that the operator has open. I/O."""

import threading
from collections.abc import Mapping

from lethe.iceberg import catalogs
from pyiceberg.catalog import Catalog


class OpenCatalogs:
    """Opens each catalog once, and again after its properties have changed. One per operator, shared by its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, tuple[dict[str, str], Catalog]] = {}

    def get(self, name: str, properties: Mapping[str, str]) -> Catalog:
        """The catalog with these properties, as just read from the configuration. Raises: what the catalog raises."""
        with self._lock:
            kept = self._open.get(name)
        if kept is not None and kept[0] == properties:
            return kept[1]
        opened = catalogs.load(name)
        with self._lock:
            self._open[name] = (dict(properties), opened)
        return opened

    def drop(self, name: str) -> None:
        """Open the catalog again before its next use: its connection pool may have connections to a server that is gone."""
        with self._lock:
            self._open.pop(name, None)
