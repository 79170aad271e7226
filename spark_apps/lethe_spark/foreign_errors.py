"""Errors of libraries and of the JVM as ours. Pure."""

from typing import Final

from lethe.errors import LetheError, TransientError

from lethe_spark.jvm.errors import JvmError, is_away

# Libraries whose errors mean that the catalog or the storage does not answer.
_AWAY: Final = ("sqlalchemy", "botocore", "urllib3", "requests", "psycopg2", "sqlite3", "aiohttp", "http")


def understood(error: Exception) -> LetheError:
    """Any error as one of ours. The text of a foreign one may hold a secret, so it stays in the log."""
    if isinstance(error, LetheError):
        return error
    name = type(error).__name__
    foreign = type(error).__module__.partition(".")[0]
    if isinstance(error, OSError) or foreign in _AWAY or (isinstance(error, JvmError) and is_away(error)):
        return TransientError(
            "CatalogOrStorageAway", f"the catalog or the storage did not answer ({name}); tried again."
        )
    if isinstance(error, JvmError):
        return TransientError("SparkFailed", f"Spark failed ({name}); see the driver's log. The run is tried again.")
    return TransientError("UnexpectedError", f"{name}; see the driver's log. The run is tried again.")
