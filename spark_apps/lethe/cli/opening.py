"""Opens the table that an argument of a command names: a table, or the name of a Dataset. I/O.

lethe_kubectl reads the Dataset.
"""

import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table

from lethe import ledger_store, local_folder
from lethe.base.errors import InputError
from lethe.cli.diagnosis import Finding
from lethe.cli.main import is_plugin, to_copy
from lethe.finding import DatasetTable, is_dataset
from lethe.iceberg import catalogs
from lethe.iceberg.facts import TableFacts, observe
from lethe.ledger.ledger import Ledger

_RESOLVER: Final = "lethe_kubectl.lookup"
_COMPLETION: Final = "lethe_kubectl.lookup"
_PREFIX: Final = "dataset/"
RESTATEMENT_PREFIX: Final = "restatement/"
"""What the name of a subject request begins with, where its record is meant."""
RECORD_ENDING: Final = ".json"
"""What the file or the URI of the record of a subject request ends with."""
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Opened:
    """An open table."""

    name: str
    """Catalog.namespace.table, as the user gave it."""
    table: Table
    facts: TableFacts
    properties: Mapping[str, str]
    """The properties of the catalog, as PyIceberg names them."""

    def load_ledger(self, snapshot_id: int | None = None) -> ledger_store.Loaded:
        """Load the ledger of a snapshot, by default of the head.

        Raises:
            InputError: SnapshotNotFound.
            LedgerError: A ledger file is unusable.
        """
        if snapshot_id is not None and snapshot_id not in self.facts.snapshots:
            raise InputError("SnapshotNotFound", f"{self.name} has no snapshot {snapshot_id}. It may have expired.")
        return ledger_store.load(self.table.io, self.facts, snapshot_id)

    def ledger(self, snapshot_id: int | None = None) -> Ledger:
        """Load the ledger of a snapshot, by default of the head; `load_ledger` also says where it was found.

        Raises:
            InputError: SnapshotNotFound.
            LedgerError: A ledger file is unusable.
        """
        return self.load_ledger(snapshot_id).ledger


def open_table(name: str, batch_column: str = "batch_id") -> Opened:
    """Open `catalog.namespace.table`.

    Raises:
        InputError: InvalidRead, UnknownCatalog, TableNotFound, BatchColumnType.
    """
    catalog, dot, table_name = name.partition(".")
    if not dot or "." not in table_name:
        raise InputError("InvalidRead", f"{name!r} is not a table name: expected catalog.namespace.table.")
    try:
        table = catalogs.load(catalog).load_table(table_name)
    except (NoSuchTableError, NoSuchNamespaceError) as e:
        raise InputError("TableNotFound", f"catalog {catalog} has no table {table_name}.") from e
    return Opened(name, table, observe(table, batch_column, name), catalogs.properties(catalog))


def table_or_dataset(function: F) -> F:
    """The argument TABLE|DATASET, the options that say where Datasets are, and --batch-column; as `table` and `batch_column`."""

    def resolve(table: str, batch_column: str | None, where: Mapping[str, Any], **options: Any) -> Any:
        with resolved(table, batch_column, where) as (name, column):
            return function(table=name, batch_column=column, **options)

    resolve.__doc__, resolve.__name__ = function.__doc__, function.__name__
    resolve.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    return table_options(resolve)  # type: ignore[return-value]


@contextmanager
def resolved(table: str, batch_column: str | None, where: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The name of the table that an argument names, and its batch column.

    Args:
        table: A table, or the name of a Dataset.
        batch_column: As the user named it; None: they did not.
        where: Where Datasets are, as `table_options` gathers it.

    Raises:
        InputError: As `table_of_dataset` and `record_of_restatement`. An error TableNotFound inside of the context also says what
            creates the table.
    """
    if table.startswith(RESTATEMENT_PREFIX):
        table = record_of_restatement(table.removeprefix(RESTATEMENT_PREFIX), where)
    elif table.endswith(RECORD_ENDING):
        _use_catalogs_of_local(where["folder"])
    if not is_dataset(table):
        yield table, batch_column or "batch_id"
        return
    name = table.removeprefix(_PREFIX)
    found = table_of_dataset(name, where)
    try:
        yield found.name, batch_column or found.batch_column
    except InputError as e:
        if e.reason != "TableNotFound":
            raise
        look = to_copy(is_plugin(), f"why dataset/{shlex.quote(name)}", **where)
        text = f"{e.message} The first consolidation creates it: `{look}` says what it waits for."
        raise InputError(e.reason, text) from None


def table_options(function: F, is_required: bool = True) -> F:
    """The argument TABLE|DATASET, --batch-column, and the options that say where Datasets are, as one argument `where`.

    Args:
        is_required: Whether the command needs a table.
    """

    def gather(**options: Any) -> Any:
        where = {key: options.pop(key) for key in ("folder", "kubeconfig", "context_name", "namespace")}
        return function(where=where, **options)

    gather.__doc__, gather.__name__ = function.__doc__, function.__name__
    gather.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    a_file = click.Path(path_type=Path)
    for option in (
        click.option(
            "--batch-column", help="For a table that Lethe has not prepared.  [default: batch_id, or the Dataset's]"
        ),
        click.option("-n", "--namespace", default="", help="The namespace of the Dataset."),
        click.option("--context", "context_name", default="", help="A context of the kubeconfig."),
        click.option("--kubeconfig", type=a_file, help="The kubeconfig. Default: KUBECONFIG, then ~/.kube/config."),
        click.option("--dir", "folder", type=a_file, help="Use `lethe local` in this folder instead of a cluster."),
        click.argument("table", metavar="TABLE|DATASET", required=is_required, shell_complete=_complete),
    ):
        option(gather)
    return gather  # type: ignore[return-value]


def _use_catalogs_of_local(folder: Path | None) -> None:
    """Let this process use the catalogs of `lethe local`, if the caller names its folder, or has no catalogs of its own.

    A record names tables and no Dataset, so it does not say where it is from.
    """
    home = local_folder.resolved(folder) if folder is not None else local_folder.default_folder()
    is_named = folder is not None or local_folder.HOME_ENV in os.environ
    if (is_named or not catalogs.every()) and (home / catalogs.CONFIG_FILE).is_file():
        os.environ["PYICEBERG_HOME"] = str(home)


def _complete(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """The names of Datasets, if the packages that read them are installed."""
    try:
        names: list[str] = import_module(_COMPLETION).datasets(context, parameter, typed)
    except ModuleNotFoundError:
        return []
    return names


def table_of_dataset(name: str, where: Mapping[str, Any]) -> DatasetTable:
    """The table of a Dataset.

    Raises:
        InputError: `NotInstalled`, `UnknownName`, `UnknownCatalog`, and what reading the resource raises.
    """
    dataset_table: DatasetTable = _resolver(f"{name!r} is the name of a Dataset").table_of(name, **where)
    return dataset_table


def record_of_restatement(name: str, where: Mapping[str, Any]) -> str:
    """The URI of the record of a subject request.

    Raises:
        InputError: `NotInstalled`, `UnknownName`, `NotVerified`, and what reading the resource raises.
    """
    record: str = _resolver(f"{name!r} is the name of a Restatement").record_of(name, **where)
    return record


def namespace_findings(where: Mapping[str, Any]) -> tuple[str, list[Finding]]:
    """The name of a namespace, and what is wrong there, the worst first.

    Raises:
        InputError: `NotInstalled`, and what reading the resources raises.
    """
    found: tuple[str, list[Finding]] = _resolver("--cluster reads resources").namespace_findings(**where)
    return found


def _resolver(what: str) -> Any:
    try:
        return import_module(_RESOLVER)
    except ModuleNotFoundError as e:
        raise InputError(
            "NotInstalled",
            f"{what}, and reading resources needs {e.name}. Run: pip install 'lethe-lake[kubectl]', or name the table as "
            "catalog.namespace.table, or the file of the record.",
        ) from None
