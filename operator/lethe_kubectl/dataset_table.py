"""Finds the table of a Dataset, and the catalogs with which this machine opens it. I/O."""

import os
from pathlib import Path
from typing import Any

from lethe.base.errors import InputError
from lethe.cli.named_table import DatasetTable
from lethe.iceberg import catalogs

from lethe_kubectl.lookup import one
from lethe_kubectl.options import is_plugin
from lethe_kubectl.target import Choice, Connection, connected


def table_of(
    name: str, folder: Path | None, kubeconfig: Path | None, context_name: str, namespace: str
) -> DatasetTable:
    """The table of a Dataset. Raises: InputError (`UnknownName`, `UnknownCatalog`)."""
    with connected(Choice(folder, kubeconfig, context_name, namespace, is_plugin())) as at:
        document = one(at, "dataset", name)
        use_catalogs(at, document)
    spec = document["spec"]
    return DatasetTable(f"{spec['table']['catalog']}.{spec['table']['name']}", str(spec["batchColumn"]))


def use_catalogs(at: Connection, dataset: dict[str, Any]) -> None:
    """Let this process use the catalogs of `lethe local`, or for a cluster those of the caller.

    Raises: InputError (`UnknownCatalog`).
    """
    if at.local is not None:
        os.environ["PYICEBERG_HOME"] = str(at.local.path)
    catalog = str(dataset["spec"]["table"]["catalog"])
    known = catalogs.every()
    if catalog in known:
        return
    file = at.local.catalogs if at.local is not None else catalogs.config_files()[0]
    raise InputError(
        "UnknownCatalog",
        f"dataset/{dataset['metadata']['name']} has its table in the catalog {catalog}, and {catalogs.CONFIG_FILE} of this "
        f"machine has {', '.join(sorted(known)) or 'none'}. Commands that read tables use your own configuration and "
        f"credentials: add the catalog {catalog} to {file}.",
    )
