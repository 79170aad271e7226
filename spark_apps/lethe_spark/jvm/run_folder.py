"""The folder of a run's data files. Each run has its own, so that all files it wrote can be listed, committed or not."""

from typing import Any, Final

from lethe_spark.jvm.errors import JvmError, transient
from lethe_spark.jvm.table import IcebergTable

DATA_PATH: Final = "write.data.path"


def run_folder(table: IcebergTable, run_id: str) -> str:
    """The folder of all data files that a run writes, committed or not."""
    base = table.properties.get(DATA_PATH) or f"{table.location}/data"
    return f"{base.rstrip('/')}/{run_id}"


def writing_as(table: IcebergTable, run_id: str) -> Any:
    """The Java table of a transaction that is never committed and puts new files into the run's folder.

    Raises: TransientError.
    """
    try:
        transaction = table.java.newTransaction()
        transaction.updateProperties().set(DATA_PATH, run_folder(table, run_id)).commit()
        return transaction.table()
    except JvmError as e:
        raise transient(e, f"preparing a write to {table.full_name}") from e
