"""What else lies in the stores: the Datasets of the other watched namespaces, and where catalogs keep their tables. I/O.

Namespaces are listed at most every `AGAIN_SECONDS` for all Datasets together. What came since is found by its claim and its
files.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from lethe.base.errors import InputError
from lethe.iceberg import catalogs
from lethe.uri import is_local, is_s3

from lethe_operator.kube import DATASETS, Kube
from lethe_operator.resources.common import InvalidSpec
from lethe_operator.resources.dataset import Dataset, parse_dataset
from lethe_operator.resources.observed import CatalogPlace

AGAIN_SECONDS: Final = 15.0


class Neighbourhood:
    """One per operator, shared by its threads; `clock` counts seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, tuple[Dataset, ...]]] = {}

    def elsewhere(self, kube: Kube, namespaces: Sequence[str], own: str) -> tuple[Dataset, ...]:
        """The Datasets of the watched namespaces but one. Raises: KubeError."""
        return tuple(d for n in namespaces if n != own for d in self._of(kube, n))

    def _of(self, kube: Kube, namespace: str) -> tuple[Dataset, ...]:
        with self._lock:
            at, found = self._known.get(namespace, (float("-inf"), ()))
            if self._clock() - at < AGAIN_SECONDS:
                return found
            found = tuple(d for d in parsed(kube, namespace) if not d.meta.deleting)
            self._known[namespace] = (self._clock(), found)
            return found


def parsed(kube: Kube, namespace: str) -> Sequence[Dataset]:
    """The Datasets of a namespace whose specs can be read. Raises: KubeError."""
    found: list[Dataset] = []
    for body in kube.list(DATASETS, namespace):
        try:
            found.append(parse_dataset(body))
        except InvalidSpec:
            continue  # reported when its own turn comes; it starts nothing until then
    return found


def catalog_places() -> Mapping[str, CatalogPlace]:
    """Of every catalog that the operator knows: its store, and the folder of its tables."""
    try:
        known = catalogs.every()
    except (InputError, OSError, ValueError):
        return {}
    return {
        name: CatalogPlace(p.get("s3.endpoint", ""), _folder(p.get("warehouse", "")), catalogs.is_local(p))
        for name, p in known.items()
    }


def _folder(warehouse: str) -> str:
    """ "" for a warehouse that only the catalog's service knows the place of."""
    is_place = is_s3(warehouse) or warehouse.startswith(("file:", "/")) or "://" in warehouse
    return warehouse if is_place and (not is_local(warehouse) or len(warehouse) > 1) else ""
