"""Lethe's table format and SDK, without Spark and without Kubernetes.

`table` finds a table, and `scan` reads one without the rows that its ledger says are deleted. `batches` and `history` show its
batches, and `revert` takes some back. `GatewayClient` speaks to the gateway. The operator and the Spark applications use the
rest of the package.
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
    from lethe.client import GatewayClient, GatewayProblem
    from lethe.read.scan import Scan, scan
    from lethe.tables import Reverted, Table, batches, history, revert, table

__all__ = [
    "ConflictError",
    "GatewayClient",
    "GatewayProblem",
    "InputError",
    "LedgerError",
    "LetheError",
    "Reverted",
    "Scan",
    "Table",
    "TransientError",
    "UnknownCommitState",
    "batches",
    "history",
    "revert",
    "scan",
    "table",
]
_MODULES = {
    **dict.fromkeys(("GatewayClient", "GatewayProblem"), "lethe.client"),
    **dict.fromkeys(("Scan", "scan"), "lethe.read.scan"),
    **dict.fromkeys(("Reverted", "Table", "batches", "history", "revert", "table"), "lethe.tables"),
}


def __getattr__(name: str) -> Any:
    """Import a name at its first use: `scan` needs PyIceberg, whose import takes more than a second."""
    if name in __all__:
        return getattr(import_module(_MODULES.get(name, "lethe.base.errors")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
