"""Lethe's table format and SDK, without Spark and without Kubernetes.

`scan` reads a table the way its ledger says; the rest of the package is what the operator and the Spark applications
are built on.
"""

from lethe.errors import ConflictError, InputError, LedgerError, LetheError, TransientError, UnknownCommitState
from lethe.table.scan import Scan, scan

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
