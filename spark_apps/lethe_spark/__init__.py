"""Lethe on Spark: the three applications, and reading and writing tables as DataFrames.

All of it needs a Spark session with Iceberg; `lethe.scan` reads the same without Spark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lethe_spark.apps.session import make_session
    from lethe_spark.sdk.batch_writer import WriteResult, write, writer
    from lethe_spark.sdk.reader import create_view, read
    from lethe_spark.sdk.restater import RestatementResult, revert, undo

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
    "RestatementResult": "sdk.restater",
    "WriteResult": "sdk.batch_writer",
    "create_view": "sdk.reader",
    "make_session": "apps.session",
    "read": "sdk.reader",
    "revert": "sdk.restater",
    "undo": "sdk.restater",
    "write": "sdk.batch_writer",
    "writer": "sdk.batch_writer",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use. Spark's Python workers import this package too, and need none of the names."""
    if name in _FROM:
        return getattr(import_module(f"lethe_spark.{_FROM[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
