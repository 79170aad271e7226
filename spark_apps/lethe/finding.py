"""Finds the table that a program names, and the catalog that has it. I/O.

The order: 1. the argument `catalog`. 2. PyIceberg's configuration: `.pyiceberg.yaml`, and variables PYICEBERG_CATALOG__…
3. The catalogs of `lethe local`, if it runs in LETHE_LOCAL or ~/.lethe. 4. The Datasets of a kubeconfig, which name a catalog and
a table, but not how this machine reaches them. Nothing is written, and no credentials are read from a cluster.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, RESTError
from pyiceberg.table import Table
from pyiceberg.utils.config import Config
from sqlalchemy.exc import DBAPIError

from lethe import local_folder
from lethe.base.errors import InputError, LetheError, TransientError
from lethe.iceberg import catalogs

_DATASETS: Final = "lethe_kubectl.programs"
_PREFIX: Final = "dataset/"


@dataclass(frozen=True)
class DatasetTable:
    """The table of a Dataset."""

    name: str
    """Catalog.namespace.table."""
    batch_column: str
    dataset: str = ""
    """Its name."""
    namespace: str = ""
    where: str = ""
    """The cluster, or `lethe local`, for people."""
    catalogs_file: Path | None = None
    """PyIceberg's configuration of `lethe local`; None: a cluster, which has none for this machine."""


@dataclass(frozen=True)
class TableFound:
    """A table, and the catalog that has it."""

    catalog: Catalog
    table: str
    """namespace.table."""
    dataset: str = ""
    """The name of the Dataset by which it was named; empty: by the name of the table."""

    @property
    def name(self) -> str:
        """Catalog.namespace.table."""
        return f"{self.catalog.name}.{self.table}"

    def load(self) -> Table:
        """The table as it is now.

        Raises:
            InputError: TableNotFound, TableIsView, CatalogUnusable.
            TransientError: `CatalogUnavailable`.
        """
        with errors_of(self.catalog.name):
            try:
                return self.catalog.load_table(self.table)
            except (NoSuchTableError, NoSuchNamespaceError):
                catalogs.require_no_view(self.catalog, self.table)
                raise InputError("TableNotFound", f"catalog {self.catalog.name} has no table {self.table}.") from None


@dataclass(frozen=True)
class CatalogSource:
    """A place that names catalogs."""

    title: str
    """For people."""
    known: Mapping[str, Mapping[str, str]]
    """The properties of its catalogs, by name."""
    first: str = ""
    """The catalog that is asked first, and alone if it has the table; empty: none."""

    def __str__(self) -> str:
        return f"{self.title}: {'catalogs ' + ', '.join(sorted(self.known)) if self.known else 'no catalog'}"


def find(name: str, catalog: Catalog | str | None = None) -> tuple[TableFound, Table]:
    """Find a table, by its name or that of a Dataset, and load it once.

    Args:
        name: `catalog.namespace.table`, `namespace.table`, or the name of a Dataset: without a dot, or `dataset/<name>`.
        catalog: A catalog of PyIceberg, or the name of one in the places; then `name` is `namespace.table`.

    Raises:
        InputError: InvalidRead, UnknownCatalog, TableNotFound, AmbiguousTable, TableIsView, UnsupportedCatalog, CatalogUnusable,
            NotInstalled, and UnknownName, NoCluster and others for a Dataset.
        TransientError: CatalogUnavailable, ClusterAway.
    """
    if isinstance(catalog, Catalog):
        return _loaded(TableFound(catalog, name))
    if is_dataset(name):
        return _loaded(_of_dataset(name.removeprefix(_PREFIX)))
    places = (_configured(), _of_lethe_local())
    first, _, rest = name.partition(".")
    if not all(name.split(".")):
        raise InputError("InvalidRead", f"{name!r} is not a table name: expected catalog.namespace.table.")
    if catalog is not None:
        return _loaded(TableFound(_named(catalog, name, places), name))
    if "." in rest:
        return _loaded(TableFound(_named(first, rest, places), rest))
    return _searched(name, places)


def _loaded(found: TableFound) -> tuple[TableFound, Table]:
    return found, found.load()


def is_dataset(name: str) -> bool:
    """Whether an argument names a Dataset. One with a dot in its name needs the prefix: tables have dots."""
    return name.startswith(_PREFIX) or "." not in name


def opened(name: str, own: Mapping[str, str]) -> Catalog:
    """Open a catalog.

    Raises:
        InputError: UnsupportedCatalog, CatalogUnusable.
        TransientError: `CatalogUnavailable`.
    """
    with errors_of(name):
        return catalogs.opened(name, own)


@contextmanager
def errors_of(catalog: str) -> Iterator[None]:
    """Let a catalog raise errors of Lethe. Their texts have no values of its configuration.

    Raises:
        InputError: `CatalogUnusable`.
        TransientError: `CatalogUnavailable`.
    """
    try:
        yield
    except LetheError:
        raise
    except (OSError, DBAPIError, RESTError) as e:
        raise TransientError(
            "CatalogUnavailable",
            f"the catalog {catalog} does not answer ({type(e).__name__}). Check its address in PyIceberg's configuration, or "
            "try again later.",
        ) from e
    except Exception as e:
        raise InputError(
            "CatalogUnusable",
            f"the catalog {catalog} cannot be used ({type(e).__name__}). Correct it in PyIceberg's configuration.",
        ) from e


# --- places ---------------------------------------------------------------------------------------------------------------


def _configured() -> CatalogSource:
    """PyIceberg's own configuration. Variables change what the file says, as in PyIceberg, which writes names in lower case.

    Raises:
        InputError: `CatalogUnusable`.
    """
    try:
        known, variables = catalogs.every(), Config._from_environment_variables({})
    except Exception as e:  # the file can be anything
        raise InputError(
            "CatalogUnusable", f"PyIceberg's configuration cannot be read ({type(e).__name__}). Repair {_files()}."
        ) from e
    try:
        first = Config().get_default_catalog_name()
    except Exception:  # PyIceberg reads only a part of YAML, and Lethe all of it
        first = str(variables.get("default-catalog", ""))
    of_catalogs = variables.get("catalog")
    by_name = of_catalogs if isinstance(of_catalogs, dict) else {}
    for name, own in catalogs.flat_by_name({n: o for n, o in by_name.items() if isinstance(o, dict)}).items():
        same = next((n for n in known if n.lower() == name), name)
        known[same] = known.get(same, {}) | own
    return CatalogSource(f"PyIceberg's configuration ({_files()}, PYICEBERG_CATALOG__…)", known, first)


def _files() -> str:
    return ", ".join(str(path) for path in catalogs.config_files())


def _of_lethe_local() -> CatalogSource:
    folder = local_folder.default_folder()
    if not local_folder.is_running(folder):
        return CatalogSource(f"`lethe local` in {folder} (it does not run)", {})
    return CatalogSource(f"`lethe local` in {folder}", catalogs.every(folder / catalogs.CONFIG_FILE))


def _named(catalog: str, table: str, places: tuple[CatalogSource, ...]) -> Catalog:
    """The catalog of that name, of the first place that has it.

    Raises:
        InputError: `UnknownCatalog`.
    """
    for place in places:
        if catalog in place.known:
            return opened(catalog, place.known[catalog])
    raise InputError(
        "UnknownCatalog",
        f"there is no catalog {catalog!r}. Looked at {'; '.join(map(str, places))}; {_datasets_with(table)}. Add the catalog to "
        f"{catalogs.config_files()[0]}, or pass catalog=.",
    )


def _searched(table: str, places: tuple[CatalogSource, ...]) -> tuple[TableFound, Table]:
    """The table of that name, of the first place in which one catalog has it.

    Raises:
        InputError: TableNotFound, AmbiguousTable.
    """
    silent: list[str] = []
    for place in places:
        names = sorted(place.known, key=lambda name: (name != place.first, name))
        having: list[tuple[TableFound, Table]] = []
        for name in names:
            try:
                having.append(_loaded(TableFound(opened(name, place.known[name]), table)))
            except LetheError as e:
                if e.reason == "TableIsView":
                    raise
                silent += [f"{name}: {e.reason}"] if e.reason != "TableNotFound" else []
                continue
            if name == place.first:
                break
        if len(having) == 1:
            return having[0]
        if having:
            raise InputError(
                "AmbiguousTable",
                f"several catalogs have a table {table}: write {' or '.join(f.name for f, _ in having)}.",
            )
    unanswered = f" Not all catalogs could be asked: {', '.join(silent)}." if silent else ""
    raise InputError(
        "TableNotFound",
        f"no catalog has a table {table}. Looked at {'; '.join(map(str, places))}; {_datasets_with(table)}.{unanswered}",
    )


# --- Datasets -------------------------------------------------------------------------------------------------------------


def _of_dataset(name: str) -> TableFound:
    """The table of a Dataset, in the catalog that this machine knows under the name that the Dataset says.

    Raises:
        InputError: NotInstalled, UnknownCatalog.
    """
    try:
        find_dataset: Callable[[str], DatasetTable] = import_module(_DATASETS).of_name
    except ModuleNotFoundError as e:
        raise InputError(
            "NotInstalled",
            f"{name!r} is the name of a Dataset, and reading Datasets needs {e.name}. Run: pip install 'lethe-lake[kubectl]', "
            "or name the table as catalog.namespace.table.",
        ) from None
    dataset = find_dataset(name)
    catalog, _, table = dataset.name.partition(".")
    file = dataset.catalogs_file
    place = _configured() if file is None else CatalogSource(dataset.where, catalogs.every(file))
    if catalog in place.known:
        return TableFound(opened(catalog, place.known[catalog]), table, name)
    raise InputError(
        "UnknownCatalog",
        f"Dataset {dataset.namespace}/{name} of {dataset.where} has the table {table} of the catalog {catalog}. A cluster does "
        f"not say how this machine reaches its catalogs. Looked at {place}. Add the catalog {catalog} with your credentials to "
        f"{file or catalogs.config_files()[0]}.",
    )


def _datasets_with(table: str) -> str:
    """What the Datasets of a kubeconfig say about a table, for an error. Asks only if a server answers at once."""
    try:
        find_table: Callable[[str], tuple[str, DatasetTable | None]] = import_module(_DATASETS).of_table
        where, dataset = find_table(table)
    except ModuleNotFoundError as e:
        return f"Datasets (not asked: {e.name} is not installed)"
    except LetheError as e:
        return f"Datasets (not asked: {e.reason})"
    if dataset is None:
        return f"Datasets of {where}: none has this table"
    return f"Datasets of {where}: {dataset.namespace}/{dataset.dataset} has the table {dataset.name}"
