"""Lethe's table format and SDK, without Spark and without Kubernetes.

`scan` reads a table the way its ledger says; the rest of the package is what the operator and the Spark applications
are built on.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lethe.base.errors import (
        ConflictError,
        InputError,
        LedgerError,
        LetheError,
        TransientError,
        UnknownCommitState,
    )
    from lethe.read.scan import Scan, scan

__all__ = [
    "ConflictError",
    "InputError",
    "LedgerError",
    "LetheError",
    "Scan",
    "TransientError",
    "UnknownCommitState",
    "scan",
]


def __getattr__(name: str) -> Any:
    """Load what is asked for, when it is: reading a table takes PyIceberg, which costs a second and more to import."""
    if name in __all__:
        return getattr(import_module("lethe.read.scan" if name in ("Scan", "scan") else "lethe.base.errors"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
