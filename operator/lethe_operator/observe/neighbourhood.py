"""Observes what else uses the stores: the Datasets of other watched namespaces, and the locations of catalogs. I/O.

All Datasets share one listing of a namespace per `LIST_INTERVAL_SECONDS`. Claims and files reveal newer Datasets.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from lethe.base.errors import InputError
from lethe.iceberg import catalogs
from lethe.uri import is_local, names_place

from lethe_operator.kube import DATASETS, Kube
from lethe_operator.resources.common import InvalidSpec
from lethe_operator.resources.dataset import Dataset, parse_dataset
from lethe_operator.resources.observed import CatalogPlace

LIST_INTERVAL_SECONDS: Final = 15.0


class Neighbourhood:
    """One per operator, shared by its threads. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, tuple[Dataset, ...]]] = {}

    def elsewhere(self, kube: Kube, namespaces: Sequence[str], own: str) -> tuple[Dataset, ...]:
        """The Datasets of the other watched namespaces. Raises: KubeError."""
        return tuple(d for n in namespaces if n != own for d in self._of(kube, n))

    def _of(self, kube: Kube, namespace: str) -> tuple[Dataset, ...]:
        with self._lock:
            at, found = self._known.get(namespace, (float("-inf"), ()))
            if self._clock() - at < LIST_INTERVAL_SECONDS:
                return found
            found = tuple(d for d in parsed(kube, namespace) if not d.meta.deleting)
            self._known[namespace] = (self._clock(), found)
            return found


def parsed(kube: Kube, namespace: str) -> Sequence[Dataset]:
    """The Datasets of a namespace that have a valid spec. Raises: KubeError."""
    found: list[Dataset] = []
    for body in kube.list(DATASETS, namespace):
        try:
            found.append(parse_dataset(body))
        except InvalidSpec:
            continue  # its own reconcile reports it and starts nothing
    return found


def catalog_places() -> Mapping[str, CatalogPlace]:
    """The store and the folder of tables of each catalog that the operator knows."""
    try:
        known = catalogs.every()
    except (InputError, OSError, ValueError):
        return {}
    return {
        name: CatalogPlace(p.get("s3.endpoint", ""), _folder(p.get("warehouse", "")), catalogs.is_local(p))
        for name, p in known.items()
    }


def _folder(warehouse: str) -> str:
    """The URI of a warehouse; "": only the catalog's service knows its location."""
    is_place = names_place(warehouse) or "://" in warehouse
    return warehouse if is_place and (not is_local(warehouse) or len(warehouse) > 1) else ""
