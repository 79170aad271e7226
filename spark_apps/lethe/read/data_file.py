"""Reads one data file as rows of the table's schema. I/O: reads data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import NestedField

from lethe.base.errors import InputError
from lethe.iceberg.conditions import Column, Condition
from lethe.read.deletes import Positions
from lethe.read.projection import FileField, Projection, Unprojectable, arrow_type, file_fields

_BUFFER: Final = 8 * 1024**2


@dataclass(frozen=True)
class Reading:
    """What to read of data files."""

    columns: tuple[NestedField, ...]
    condition: Condition
    names: NameMapping | None
    specs: Mapping[int, PartitionSpec]
    # Columns whose text is read as dictionaries, if files have them under this name.
    dictionaries: tuple[str, ...] = ()

    def rows(self, io: FileIO, file: DataFile, deleted: Positions | None) -> Iterator[pa.RecordBatch]:
        """The rows that are not deleted, and for which the condition is true; no empty record batch.

        Args:
            deleted: The sorted positions of deleted rows. None: there are none.
        Raises: InputError (UnreadableFile); what the storage raises.
        """
        form = self._format(file)
        with io.new_input(file.file_path).open() as stream:
            fragment = form.make_fragment(stream)
            physical = fragment.physical_schema
            try:
                known = file_fields(physical, self.names)
                kept = [f.field_id for f in self.columns if f.name in self.dictionaries]
                projection = Projection.of(known, self.columns, self._constants(file), kept)
            except Unprojectable as e:
                raise InputError("UnreadableFile", f"the data file {file.file_path} cannot be read: {e}.") from None
            if deleted is None and file.file_format == FileFormat.PARQUET:
                fragment = self._promising(fragment, physical, known)
            names = [physical.names[n] for n in projection.needed]
            position = 0
            for rows in ds.Scanner.from_fragment(fragment, schema=physical, columns=names).to_batches():
                begin, position = position, position + rows.num_rows
                left = rows if deleted is None else _without(rows, begin, deleted)
                found = projection(left) if left.num_rows else left
                if found.num_rows and not self.condition.is_always_true:
                    found = found.filter(self.condition.true_in(found))
                if found.num_rows:
                    yield found

    def _format(self, file: DataFile) -> ds.FileFormat:
        match file.file_format:
            case FileFormat.PARQUET:
                return ds.ParquetFileFormat(
                    dictionary_columns=self.dictionaries,
                    pre_buffer=True,
                    buffer_size=_BUFFER,
                    coerce_int96_timestamp_unit="us",
                )
            case FileFormat.ORC:
                return ds.OrcFileFormat()
        raise InputError(
            "UnreadableFile",
            f"the data file {file.file_path} has the format {file.file_format.value}, which can only be read by Spark. Use "
            "lethe_spark.read.",
        )

    def _constants(self, file: DataFile) -> dict[int, Any]:
        """The values of the file's partition, by the ids of the columns that have them."""
        spec = self.specs.get(file.spec_id or 0)
        fields = enumerate(spec.fields if spec is not None else ())
        return {f.source_id: file.partition[n] for n, f in fields if isinstance(f.transform, IdentityTransform)}

    def _promising(self, fragment: Any, physical: pa.Schema, known: Sequence[FileField]) -> Any:
        """Without the row groups that hold no row of the condition, by the statistics in the footer."""
        types = {f.field_id: (name, f.type) for name, f in zip(physical.names, known, strict=True)}

        def is_exact(column: Column) -> bool:
            field = column.top
            return types.get(field.field_id) == (field.name, arrow_type(field.field_type))

        expression = self.condition.of_groups(is_exact)
        return fragment if expression is None else fragment.subset(filter=expression, schema=physical)


def _without(rows: pa.RecordBatch, begin: int, deleted: Positions) -> pa.RecordBatch:
    """Without the deleted rows.

    Args:
        begin: The position of the first row.
    """
    low, high = np.searchsorted(deleted, (begin, begin + rows.num_rows))
    if low == high:
        return rows
    stays = np.ones(rows.num_rows, bool)
    stays[deleted[low:high] - begin] = False
    return rows.filter(pa.array(stays))
