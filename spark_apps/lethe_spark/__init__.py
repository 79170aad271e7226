"""Lethe on Spark: the three applications, and reading tables as DataFrames.

`read` needs a Spark session with Iceberg; `lethe.scan` reads the same without Spark.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lethe_spark.reader import read

__all__ = ["read"]


def __getattr__(name: str) -> Any:
    """Load `read` when it is first asked for: Spark's Python workers import this package too, and need none of it."""
    if name == "read":
        from lethe_spark.reader import read

        return read
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
