"""What a run is to do, stored before its Job exists. I/O."""

import hashlib
from typing import Final

from lethe.names import RUNS_FOLDER
from lethe.run import RunPointer, RunSpec
from lethe.table import catalogs
from pyiceberg.io import load_file_io

from lethe_operator.resources.observed import NoTable, TableView, Unavailable

# A ConfigMap holds 1 MiB, and all runs of a Dataset share one.
INLINE_AT_MOST: Final = 256 * 1024


class NoPlaceForRun(Exception):
    """A large run.json has to lie beside the table, and nobody knows where that is."""


def document(run: RunSpec, table: TableView | NoTable | Unavailable) -> str:
    """The run.json for the ConfigMap; what is too large for it is written beside the table, and a pointer returned.

    Raises: NoPlaceForRun; whatever the store raises.
    """
    text = run.to_json()
    content = text.encode()
    if len(content) <= INLINE_AT_MOST:
        return text
    uri = place(run, table)
    io = load_file_io(dict(catalogs.properties(run.table.catalog)), uri)
    with io.new_output(uri).create(overwrite=True) as stream:
        stream.write(content)
    return RunPointer(catalog=run.table.catalog, uri=uri, sha256=hashlib.sha256(content).hexdigest()).to_json()


def place(run: RunSpec, table: TableView | NoTable | Unavailable) -> str:
    """`<table location>/_runs/<run id>.json`, or a folder of the warehouse while there is no table."""
    match table:
        case TableView(location=location):
            return f"{location.rstrip('/')}/{RUNS_FOLDER}/{run.run_id}.json"
        case NoTable(warehouse=warehouse) if warehouse:
            return f"{warehouse.rstrip('/')}/{RUNS_FOLDER}/{run.dataset.uid}/{run.run_id}.json"
    raise NoPlaceForRun(
        f"The run of Dataset {run.dataset.claim} is larger than {INLINE_AT_MOST} bytes, and the catalog "
        f"{run.table.catalog} has no property `warehouse` to put it into. Lower spec.consolidation.maxBatchesPerRun."
    )
