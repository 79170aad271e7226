"""Where a run's data files lie: each run has a folder of its own, so that what it wrote can be listed, committed or not."""

from typing import Any, Final

from lethe_spark.jvm.errors import JvmError, transient
from lethe_spark.jvm.table import IcebergTable

DATA_PATH: Final = "write.data.path"


def run_folder(table: IcebergTable, run_id: str) -> str:
    """The folder of all data files that a run writes, committed or not: what verification lists."""
    base = table.properties.get(DATA_PATH) or f"{table.location}/data"
    return f"{base.rstrip('/')}/{run_id}"


def writing_as(table: IcebergTable, run_id: str) -> Any:
    """The Java table as it is written to by a run: its new files go to the run's folder. It is inside a transaction that is
    never committed. Raises: TransientError."""
    try:
        transaction = table.java.newTransaction()
        transaction.updateProperties().set(DATA_PATH, run_folder(table, run_id)).commit()
        return transaction.table()
    except JvmError as e:
        raise transient(e, f"preparing a write to {table.full_name}") from e
