"""Stores the document of a run before its Job exists. I/O."""

from lethe.contract.run import INLINE_BYTES_AT_MOST, RunPointer, RunSpec
from lethe.iceberg import run_documents

from lethe_operator.resources.observed import NoTable, TableView, Unavailable


class NoPlaceForRun(Exception):
    """A large run.json must be stored beside the table, and no location for it is known."""


def document(run: RunSpec, table: TableView | NoTable | Unavailable) -> str:
    """The run.json for the ConfigMap. If it is too large, it is written beside the table, and a pointer is returned.

    Raises: NoPlaceForRun; whatever the store raises.
    """
    text = run.to_json()
    if len(text.encode()) <= INLINE_BYTES_AT_MOST:
        return text
    uri, catalog = place(run, table), run.table.catalog
    return RunPointer(catalog=catalog, uri=uri, sha256=run_documents.write(catalog, uri, text)).to_json()


def place(run: RunSpec, table: TableView | NoTable | Unavailable) -> str:
    """`<table location>/_runs/<run id>.json`, or a folder of the warehouse while the table does not exist."""
    match table:
        case TableView(location=location):
            return f"{run_documents.folder(location)}/{run.run_id}.json"
        case NoTable(warehouse=warehouse) if warehouse:
            return f"{run_documents.folder(warehouse)}/{run.dataset.uid}/{run.run_id}.json"
    raise NoPlaceForRun(
        f"The run of Dataset {run.dataset.claim} is larger than {INLINE_BYTES_AT_MOST} bytes, and the catalog "
        f"{run.table.catalog} has no property `warehouse` to store it in. Reduce spec.consolidation.maxBatchesPerRun."
    )
