"""The table that an argument names: itself, or the name of a Dataset. I/O: none; lethe_kubectl reads the Dataset."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from lethe.base.errors import InputError

_RESOLVER: Final = "lethe_kubectl.dataset_table"
_COMPLETION: Final = "lethe_kubectl.completion"
_PREFIX: Final = "dataset/"
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class DatasetTable:
    """The table of a Dataset."""

    name: str  # catalog.namespace.table
    batch_column: str


def table_or_dataset(function: F) -> F:
    """The argument TABLE|DATASET, the options that say where Datasets are, and --batch-column; as `table` and `batch_column`."""

    def resolve(table: str, batch_column: str | None, **rest: Any) -> Any:
        where = {key: rest.pop(key) for key in ("folder", "kubeconfig", "context_name", "namespace")}
        if is_dataset(table):
            found = table_of_dataset(table.removeprefix(_PREFIX), where)
            return function(table=found.name, batch_column=batch_column or found.batch_column, **rest)
        return function(table=table, batch_column=batch_column or "batch_id", **rest)

    resolve.__doc__, resolve.__name__ = function.__doc__, function.__name__
    resolve.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    a_file = click.Path(path_type=Path)
    for option in (
        click.option(
            "--batch-column", help="For a table that Lethe has not prepared.  [default: batch_id, or the Dataset's]"
        ),
        click.option("-n", "--namespace", default="", help="The namespace of the Dataset."),
        click.option("--context", "context_name", default="", help="A context of the kubeconfig."),
        click.option("--kubeconfig", type=a_file, help="The kubeconfig. Default: KUBECONFIG, then ~/.kube/config."),
        click.option("--dir", "folder", type=a_file, help="Use `lethe local` in this folder instead of a cluster."),
        click.argument("table", metavar="TABLE|DATASET", shell_complete=_complete),
    ):
        option(resolve)
    return resolve  # type: ignore[return-value]


def _complete(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """The names of Datasets, if the packages that read them are installed."""
    try:
        names: list[str] = import_module(_COMPLETION).datasets(context, parameter, typed)
    except ModuleNotFoundError:
        return []
    return names


def is_dataset(name: str) -> bool:
    """Whether an argument names a Dataset. One with a dot in its name needs the prefix: tables have dots."""
    return name.startswith(_PREFIX) or "." not in name


def table_of_dataset(name: str, where: Mapping[str, Any]) -> DatasetTable:
    """Raises: InputError (`NotInstalled`, `UnknownName`, `UnknownCatalog`, and what reading the resource raises)."""
    try:
        resolver = import_module(_RESOLVER)
    except ModuleNotFoundError as e:
        raise InputError(
            "NotInstalled",
            f"{name!r} is the name of a Dataset, and reading Datasets needs {e.name}. Run: pip install 'lethe-lake[kubectl]', "
            "or name the table as catalog.namespace.table.",
        ) from None
    found: DatasetTable = resolver.table_of(name, **where)
    return found
