"""The closed sets of values of a Dataset's settings, as its CRD and `run.json` write them. Pure.

`tests/unit/test_closed_sets.py` compares them with the CRD.
"""

from enum import StrEnum
from typing import assert_never


class FileFormat(StrEnum):
    """`spec.buffer.format`: the format of the files in a buffer."""

    PARQUET = "parquet"
    ORC = "orc"
    AVRO = "avro"
    JSON = "json"
    CSV = "csv"


class BufferLayout(StrEnum):
    """`spec.buffer.layout`: what is a batch in a buffer."""

    DIRECTORY = "Directory"  # each folder
    FILE = "File"  # each file


class SchemaEvolution(StrEnum):
    """`spec.schemaEvolution`: what happens to batches with columns that the table does not have."""

    REFUSE = "Refuse"  # they are refused
    ADD_COLUMNS = "AddColumns"  # the run adds the columns to the table


class ConsolidationMode(StrEnum):
    """`spec.consolidation.mode`."""

    REWRITE = "Rewrite"  # read the files of batches, and write their rows into sorted files
    REGISTER = "Register"  # add the files of batches to the table unchanged


class NativeDeletes(StrEnum):
    """The kinds of Iceberg's own deletes that Lethe writes, for readers that do not know the ledger."""

    DELETION_VECTORS = "DeletionVectors"
    POSITION_DELETES = "PositionDeletes"

    @property
    def format_version(self) -> int:
        """The version of Iceberg's format that a table needs for them. Version 3 replaced the position deletes of version 2 by
        deletion vectors."""
        match self:
            case NativeDeletes.DELETION_VECTORS:
                return 3
            case NativeDeletes.POSITION_DELETES:
                return 2
            case _:
                assert_never(self)


class Deletes(StrEnum):
    """`spec.deletes`: how deleted batches are marked, in addition to the ledger."""

    LEDGER = "Ledger"  # only in the ledger
    DELETION_VECTORS = NativeDeletes.DELETION_VECTORS.value
    POSITION_DELETES = NativeDeletes.POSITION_DELETES.value

    @property
    def native(self) -> NativeDeletes | None:
        """The native deletes that it asks for; None: it asks for none."""
        match self:
            case Deletes.LEDGER:
                return None
            case Deletes.DELETION_VECTORS:
                return NativeDeletes.DELETION_VECTORS
            case Deletes.POSITION_DELETES:
                return NativeDeletes.POSITION_DELETES
            case _:
                assert_never(self)
