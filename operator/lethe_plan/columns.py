"""Which columns spec.schemaEvolution would add for the batches that wait. I/O: reads the footers of some files."""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from lethe.buffer.batch import BufferedBatch
from lethe.buffer.digest import BufferDigest
from lethe.contract.settings import FileFormat, SchemaEvolution
from lethe.ingest.checking import with_unknown_types
from lethe.ingest.schema_fit import Lacks, Rules, compare, plan_evolution
from lethe.storage.buffer import open_buffer
from lethe_operator.resources.dataset import Dataset

from lethe_plan.tables import ReadTable

# The oldest batches, one file of each: files of a batch have the same columns.
_BATCHES_AT_MOST: Final = 20


def new_columns(dataset: Dataset, table: ReadTable, buffer: BufferDigest) -> Sequence[str]:
    """The columns that the next run would add or widen, each with its type. Files that cannot be read count as without new
    columns: the run reports them."""
    spec = dataset.spec
    if spec.schema_evolution is not SchemaEvolution.ADD_COLUMNS or spec.buffer.format is not FileFormat.PARQUET:
        return ()
    current = table.table.schema()
    required = frozenset(f.name for f in current.fields if f.required and f.name != spec.batch_column)
    rules = Rules(spec.batch_column, required, add_columns=True)
    columns = with_unknown_types(current.as_arrow(), current)
    store = open_buffer(spec.buffer.uri, spec.batch_column, table.properties, spec.buffer.layout)
    lacking: dict[str, list[tuple[str, pa.Schema]]] = {}
    for waiting in buffer.oldest[:_BATCHES_AT_MOST]:
        batch = store.folder(waiting.folder)
        if not isinstance(batch, BufferedBatch) or not batch.data_objects:
            continue
        uri = batch.data_objects[0].key
        try:
            with table.table.io.new_input(uri).open() as file:
                found = compare(pq.read_schema(file), columns, rules)
        except (OSError, pa.ArrowException):
            continue
        if isinstance(found, Lacks):
            lacking[batch.id] = [(uri, found.columns)]
    return [f"{f.name} ({f.type})" for f in plan_evolution(columns, lacking).columns]
