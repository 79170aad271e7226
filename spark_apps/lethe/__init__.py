"""Lethe's table format and SDK, without Spark and without Kubernetes.

`scan` reads a table without the rows that its ledger says are deleted. `Ingest` uploads batches through the gateway. The operator
and the Spark applications use the rest of the package.
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
    from lethe.client import Ingest
    from lethe.read.scan import Scan, scan

__all__ = [
    "ConflictError",
    "Ingest",
    "InputError",
    "LedgerError",
    "LetheError",
    "Scan",
    "TransientError",
    "UnknownCommitState",
    "scan",
]
_MODULES = {"Ingest": "lethe.client", "Scan": "lethe.read.scan", "scan": "lethe.read.scan"}


def __getattr__(name: str) -> Any:
    """Import a name at its first use: `scan` needs PyIceberg, whose import takes more than a second."""
    if name in __all__:
        return getattr(import_module(_MODULES.get(name, "lethe.base.errors")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
