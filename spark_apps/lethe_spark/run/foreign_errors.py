"""Turns errors of libraries and of the JVM into errors of Lethe. Pure."""

import errno
from typing import Final

from lethe.base.errors import LetheError, TransientError

from lethe_spark.jvm.errors import JvmError, is_away, is_disk_full

_AWAY: Final = ("sqlalchemy", "botocore", "urllib3", "requests", "psycopg2", "sqlite3", "aiohttp", "http")
"""Libraries whose errors mean that the catalog or the storage does not answer."""


def understood(error: Exception) -> LetheError:
    """The error as an error of Lethe. The message of a foreign error may contain a secret, so it is only in the log."""
    if isinstance(error, LetheError):
        return error
    name = type(error).__name__
    if (isinstance(error, OSError) and error.errno == errno.ENOSPC) or (
        isinstance(error, JvmError) and is_disk_full(error)
    ):
        return TransientError(
            "DiskFull",
            "a local disk of the driver or of an executor is full. Spark sorts data on it (spark.local.dir). "
            "The run tries again what was not committed. Give the run's pods more ephemeral storage, or let "
            "the run do less at a time.",
        )
    foreign = type(error).__module__.partition(".")[0]
    if isinstance(error, OSError) or foreign in _AWAY or (isinstance(error, JvmError) and is_away(error)):
        return TransientError(
            "CatalogOrStorageAway", f"the catalog or the storage did not answer ({name}). The run tries again."
        )
    if isinstance(error, JvmError):
        return TransientError("SparkFailed", f"Spark failed ({name}); see the driver's log. The run is tried again.")
    return TransientError("UnexpectedError", f"{name}; see the driver's log. The run is tried again.")
