"""Which columns spec.schemaEvolution would add for the batches that wait. I/O: reads the footers of some files."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from lethe.buffer.digest import BufferDigest
from lethe.buffer.layout import BufferedBatch
from lethe.contract.settings import FileFormat, SchemaEvolution
from lethe.ingest.buffer_files import COLUMNS_WANTED, FileOutcome, Reader, ReadSettings, decode_columns
from lethe.ingest.buffer_store import BufferAway, FileTask
from lethe.ingest.checking import with_unknown_types
from lethe.ingest.schema_fit import plan_evolution
from lethe.ingest.shared_folders import open_buffer
from lethe_operator.resources.dataset import Dataset

from lethe_plan.tables import ReadTable

# The oldest batches, one file of each: files of a batch have the same columns.
_BATCHES_AT_MOST: Final = 20


def new_columns(dataset: Dataset, table: ReadTable, buffer: BufferDigest) -> Sequence[str]:
    """The columns that the next run would add or widen, each with its type.

    Files that cannot be read count as without new columns: the run reports them.
    """
    spec = dataset.spec
    if spec.schema_evolution is not SchemaEvolution.ADD_COLUMNS or spec.buffer.format is not FileFormat.PARQUET:
        return ()
    current = table.table.schema()
    columns = with_unknown_types(current.as_arrow(), current)
    store = open_buffer(spec.buffer.uri, spec.batch_column, table.properties, spec.buffer.layout)
    tasks: list[FileTask] = []
    for waiting in buffer.oldest[:_BATCHES_AT_MOST]:
        batch = store.folder(waiting.folder)
        if isinstance(batch, BufferedBatch) and batch.data_objects:
            first = batch.data_objects[0]
            tasks.append(FileTask(batch.id, first.key, first.size, first.etag))
    outcomes: dict[tuple[str, str], FileOutcome] = {}
    settings = ReadSettings(spec.batch_column, dict(table.properties), spec.buffer.format, add_columns=True)
    with suppress(BufferAway):
        Reader(columns, settings).compare_columns(tasks, outcomes)
    lacking = {
        batch_id: [(uri, decode_columns(o.error.message))]
        for (batch_id, uri), o in outcomes.items()
        if o.error is not None and o.error.reason == COLUMNS_WANTED
    }
    return [f"{f.name} ({f.type})" for f in plan_evolution(columns, lacking).columns]
