"""Converts exceptions of the JVM and of libraries into LetheErrors; no other module does this. Also pauses between commits.

The text of a Java exception may contain a JDBC URL with a password. It is logged through `__cause__`, and never part of a
message.
"""

import errno
import random
import time
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

from lethe.base.errors import InputError, LetheError, TransientError
from lethe.storage.properties import says_unnamed_host
from py4j.protocol import Py4JError, Py4JJavaError
from pyiceberg.exceptions import RESTError
from pyspark.errors.exceptions.captured import CapturedException

P = ParamSpec("P")
R = TypeVar("R")

ICEBERG: Final = "org.apache.iceberg.exceptions."
JvmError: Final = (Py4JError, CapturedException)
"""PySpark converts some Java exceptions (illegal arguments, analysis) into classes of its own."""

_AWAY: Final = (
    *(
        "java.net.",
        "java.sql.",
        "org.postgresql.",
        "org.sqlite.",
        "software.amazon.",
        "com.google.cloud.",
        "com.azure.",
        "javax.net.ssl.",
        "org.apache.iceberg.jdbc.Unchecked",
    ),
    *(ICEBERG + name for name in ("RuntimeIOException", "RESTException", "ServiceUnavailable", "ServiceFailure")),
    *(ICEBERG + name for name in ("NotAuthorizedException", "ForbiddenException")),
)
"""Exceptions that, anywhere among the causes, mean that the catalog or the storage does not answer."""

_LIBRARIES_AWAY: Final = ("sqlalchemy", "botocore", "urllib3", "requests", "psycopg2", "sqlite3", "aiohttp", "http")
"""Libraries whose errors mean that the catalog or the storage does not answer."""

_UNPARSED: Final = "Cannot parse type string"

_LOST_PARTITION: Final = "Mismatched partition tuples"

ATTEMPTS: Final = 12
_FIRST_SECONDS: Final = 0.1
_LONGEST_SECONDS: Final = 2.0


def java_exception(error: BaseException) -> Any | None:
    """The Java exception of an error of py4j or PySpark. None: there is none, for example after a broken connection."""
    if isinstance(error, Py4JJavaError):
        return error.java_exception
    return getattr(error, "_origin", None)


def java_class(error: BaseException) -> str:
    """The class name of the Java exception of an error; without one, the name of the Python class."""
    java = java_exception(error)
    return type(error).__name__ if java is None else str(java.getClass().getName())


def java_message(error: BaseException) -> str:
    """The message of the Java exception, for comparisons. It may contain secrets."""
    java = java_exception(error)
    return str(error) if java is None else str(java.getMessage() or "")


def is_a(jvm: Any, error: BaseException, class_name: str) -> bool:
    """Whether the Java exception is an instance of the named class or interface."""
    java = java_exception(error)
    return java is not None and bool(jvm.py4j.reflection.TypeUtil.isInstanceOf(class_name, java))


def says_no_such_table(jvm: Any, error: BaseException) -> bool:
    """Whether the error means that the table does not exist. Spark wraps Iceberg's exceptions, or throws its own."""
    if any(is_a(jvm, error, ICEBERG + n) for n in ("NoSuchTableException", "NoSuchNamespaceException")):
        return True
    spark_names = ("NoSuchTableException", "NoSuchNamespaceException", "NoSuchDatabaseException")
    if java_class(error).rsplit(".", 1)[-1] in spark_names:
        return True
    return "TABLE_OR_VIEW_NOT_FOUND" in java_message(error)


def says_another_table(error: BaseException) -> bool:
    """Whether the error means that the table of this name now has another UUID."""
    return "Table UUID does not match" in java_message(error)


def unparsed_type(error: BaseException) -> str | None:
    """The type of a column that Iceberg does not know, if it could not load a table because of it."""
    texts = (str(java.getMessage() or "") for java in _causes(error))
    text = next((t for t in texts if _UNPARSED in t), None)
    return None if text is None else text.splitlines()[0].rpartition(": ")[2][:100]


def unknown_type(table: str, kind: str) -> LetheError:
    """The error for a table that has such a type in its schema, or in an old one."""
    return InputError(
        "UnknownType",
        f"{table} has a column of the type {kind}, now or in an old schema, which this version's Iceberg library cannot load. "
        "Nothing was changed. Use a version of Lethe that knows the type.",
    )


def is_caused_by(error: BaseException, class_name: str) -> bool:
    """Whether a Java exception of exactly this class is among the causes."""
    return any(str(java.getClass().getName()) == class_name for java in _causes(error))


def is_away(error: BaseException) -> bool:
    """Whether a Java exception comes from the catalog or the storage rather than from Spark."""
    return any(str(java.getClass().getName()).startswith(_AWAY) for java in _causes(error))


def is_disk_full(error: BaseException) -> bool:
    """Whether a Java exception, or a cause of it, also in another process, says that a disk is full."""
    return any("No space left on device" in str(java.getMessage() or "") for java in _causes(error))


def _causes(error: BaseException) -> Iterator[Any]:
    """The Java exception of an error and its causes, at most twenty, because some exceptions are their own cause."""
    java = java_exception(error)
    for _ in range(20):
        if java is None:
            return
        yield java
        java = java.getCause()


def transient(error: BaseException, doing: str) -> LetheError:
    """The error for an exception of the catalog, the storage or the JVM outside of a commit.

    The caller may try again, unless `lethe_spark.sql.rest_servers` has refused the catalog's answer.
    """
    refused = next(filter(None, (says_unnamed_host(str(j.getMessage() or ""), doing) for j in _causes(error))), None)
    if refused is not None:
        return refused
    name = java_class(error).rsplit(".", 1)[-1]
    if any(_LOST_PARTITION in str(java.getMessage() or "") for java in _causes(error)):
        return InputError(
            "PartitionsLost",
            f"Iceberg refuses the table's metadata while {doing}: a delete file and its data file have different partitions. "
            "That happens if the column of a dropped partition field was dropped too, and an engine wrote deletes or manifests "
            "of the old files afterwards. Nothing was committed. Roll the table back to a snapshot before these writes.",
        )
    return TransientError("CatalogOrStorageAway", f"{name} while {doing}. Nothing was committed. The run tries again.")


def reading(doing: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function that reads through the JVM: a Java exception becomes TransientError."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except JvmError as e:
                raise transient(e, doing) from e

        return wrapped

    return decorate


def wait_before(attempt: int) -> None:
    """Wait before the second or a later attempt. Full jitter, so that two writers that collided do not collide again."""
    time.sleep(random.uniform(0, min(_LONGEST_SECONDS, _FIRST_SECONDS * 2 ** min(attempt - 2, 10))))


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
    if (
        isinstance(error, (OSError, RESTError))
        or foreign in _LIBRARIES_AWAY
        or (isinstance(error, JvmError) and is_away(error))
    ):
        return TransientError(
            "CatalogOrStorageAway", f"the catalog or the storage did not answer ({name}). The run tries again."
        )
    if isinstance(error, JvmError):
        return TransientError("SparkFailed", f"Spark failed ({name}); see the driver's log. The run is tried again.")
    return TransientError("UnexpectedError", f"{name}; see the driver's log. The run is tried again.")
