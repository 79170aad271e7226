"""What the errors of tables mean for a caller. Pure."""

from lethe.base.errors import InputError, LetheError, TransientError
from lethe.iceberg.views import TableIsView
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

from lethe_gateway.problems import Kind, Problem
from lethe_gateway.tables.target import Target


def problem_of(error: Exception, target: Target) -> Problem:
    """Errors of catalogs and stores appear with their type only: their messages may contain credentials."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, NoSuchTableError | NoSuchNamespaceError | TableIsView):
        return no_table(target)
    if isinstance(error, InputError) and error.reason == "UnknownCatalog":  # its message names all others
        return Problem(
            Kind.TABLE_UNREADABLE,
            f"The gateway has no catalog {target.catalog!r}. Correct spec.table.catalog, or ask the administrator to add it.",
        )
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
    """The same for a table that does not exist and for that of another Dataset: the author of a Dataset may name any table."""
    return Problem(
        Kind.NO_TABLE,
        f"The table {target} does not exist, or does not belong to this Dataset (table property lethe.dataset). It does after "
        "the first run of the Dataset; the condition Ready of the Dataset says what prevents one.",
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
