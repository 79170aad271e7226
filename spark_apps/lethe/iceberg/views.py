"""Refuses views by name. I/O: asks the catalog, but only about a name without a table.

A view has no rows of its own: it can neither be written nor have a ledger, and its SQL is another engine's.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import (
    NoSuchNamespaceError,
    NoSuchTableError,
    RESTError,
    ServiceUnavailableError,
    TooManyRequestsError,
)
from pyiceberg.table import Table
from sqlalchemy import select

from lethe.base.errors import InputError

_OF_VIEWS: Final = "VIEW"
Name: TypeAlias = str | Sequence[str]


class TableIsView(InputError):
    """A view was named where a table is needed."""

    def __init__(self, name: str, catalog: str) -> None:
        super().__init__(
            "TableIsView",
            f"{name} is a view in the catalog {catalog}. Lethe reads and writes tables: name the table that the view reads.",
        )


def refuse_views(catalog: Catalog) -> Catalog:
    """Let `load_table` of this catalog raise TableIsView for a view, and not that there is no such table."""
    load = catalog.load_table

    def load_table(identifier: Any) -> Table:
        try:
            return load(identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            require_no_view(catalog, identifier)
            raise

    catalog.load_table = load_table  # type: ignore[method-assign]
    return catalog


def require_no_view(catalog: Catalog, name: Name) -> None:
    """Refuse a view in the place of a table.

    Raises:
        TableIsView: A view was named where a table is needed.
        Exception: What the catalog raises if unavailable.

    Args:
        name: Without a table of this name.
    """
    if _is_view(catalog, name):
        raise TableIsView(name if isinstance(name, str) else ".".join(name), catalog.name)


def _is_view(catalog: Catalog, name: Name) -> bool:
    given: Any = name
    if isinstance(catalog, SqlCatalog):
        # The column is missing in the tables of catalogs that have no views.
        if catalog._iceberg_type_filter() is None:
            return False
        namespace = Catalog.namespace_to_string(Catalog.namespace_from(given))
        query = select(IcebergTables.iceberg_type).where(
            IcebergTables.catalog_name == catalog.name,
            IcebergTables.table_namespace == namespace,
            IcebergTables.table_name == Catalog.table_name_from(given),
        )
        with catalog.engine.connect() as connection:
            return connection.execute(query).scalar() == _OF_VIEWS
    if isinstance(catalog, RestCatalog):
        try:
            return catalog.view_exists(given)
        except (ServiceUnavailableError, TooManyRequestsError):
            raise
        except (RESTError, NotImplementedError):  # it does not know views
            return False
    return False
