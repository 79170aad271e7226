"""Observes the locations of the operator's catalogs. I/O."""

from collections.abc import Mapping
from pathlib import Path

from lethe.base.errors import InputError
from lethe.iceberg import catalogs
from lethe.uri import is_local, names_place

from lethe_operator.resources.observed import CatalogPlace


def catalog_places(path: Path | None = None) -> Mapping[str, CatalogPlace]:
    """The store and the folder of tables of each catalog of PyIceberg's configuration.

    Args:
        path: Its file; None: where PyIceberg looks for it.
    """
    try:
        known = catalogs.every(path)
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
