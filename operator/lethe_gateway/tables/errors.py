"""What the errors of tables mean for a caller. Pure."""

from lethe.base.errors import InputError, LetheError, TransientError
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

from lethe_gateway.problems import Kind, Problem
from lethe_gateway.tables.target import Target


def problem_of(error: Exception, target: Target) -> Problem:
    """Errors of catalogs and stores appear with their type only: their messages may contain credentials."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, NoSuchTableError | NoSuchNamespaceError):
        return no_table(target)
    if isinstance(error, InputError):
        return Problem(Kind.TABLE_UNREADABLE, f"{error.reason}: {error.message}")
    if isinstance(error, LetheError) and not isinstance(error, TransientError):
        return Problem(Kind.TABLE_UNREADABLE, f"{error.reason}: {error.message}")
    return Problem(
        Kind.CATALOG_AWAY,
        f"The catalog or the store of {target} does not answer ({type(error).__name__}). Try again later.",
        retry_after_seconds=5,
    )


def no_table(target: Target) -> Problem:
    return Problem(
        Kind.NO_TABLE,
        f"The table {target} does not exist. The first consolidation of the Dataset creates it, if spec.table.create is set.",
    )


def of_another(target: Target) -> Problem:
    return Problem(
        Kind.NO_TABLE,
        f"The table {target} does not belong to this Dataset (table property lethe.dataset). It does after the first run of the "
        "Dataset; the condition Ready of the Dataset says what prevents one.",
    )


def not_tracked(target: Target, why: str) -> Problem:
    return Problem(
        Kind.NOT_TRACKED,
        f"{why} The runs of the Dataset create and update {target}_batches, unless spec.batchTracking.enabled is false. "
        f"`lethe track {target}` does it at once.",
    )


def building(rows: int) -> Problem:
    return Problem(
        Kind.INDEX_BUILDING,
        f"The first request for a table builds an index of its batches; {rows:,} are in it so far. Try again soon.",
        retry_after_seconds=5,
    )
