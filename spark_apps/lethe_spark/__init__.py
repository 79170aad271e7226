"""Lethe on Spark: the three applications, and reading and writing tables as DataFrames.

All of it needs a Spark session with Iceberg; `lethe.scan` reads the same without Spark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lethe_spark.batch_writer import WriteResult, write, writer
    from lethe_spark.reader import create_view, read
    from lethe_spark.restater import RestatementResult, revert, undo
    from lethe_spark.session import make_session

__all__ = [
    "RestatementResult",
    "WriteResult",
    "create_view",
    "make_session",
    "read",
    "revert",
    "undo",
    "write",
    "writer",
]

_FROM = {
    "RestatementResult": "restater",
    "WriteResult": "batch_writer",
    "create_view": "reader",
    "make_session": "session",
    "read": "reader",
    "revert": "restater",
    "undo": "restater",
    "write": "batch_writer",
    "writer": "batch_writer",
}


def __getattr__(name: str) -> Any:
    """Load what is asked for, when it is: Spark's Python workers import this package too, and need none of it."""
    if name in _FROM:
        return getattr(import_module(f"lethe_spark.{_FROM[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
