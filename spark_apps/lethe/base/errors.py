"""The errors of Lethe, by what a caller does next.

    LetheError
    ├── InputError          the user changes something; a run exits with 10
    │   ├── TableError      the table is not what it was; no single request is at fault, and none is refused for good
    │   └── LedgerError     a ledger file is missing, truncated, newer than this version or not where it must be
    ├── ConflictError       the ledger or the table moved: plan again and try again
    ├── UnknownCommitState  nobody knows whether the commit landed: look in the ledger before anything else
    └── TransientError      try later; a run exits with 20

`reason` is the CamelCase word that a condition or an event shows; the message says which resource or file, what was
expected and found, and what to do. Neither ever holds a secret or an erased value.
"""

from typing import Final

EXIT_DONE: Final = 0
EXIT_INPUT: Final = 10
EXIT_TRANSIENT: Final = 20


class LetheError(Exception):
    """Base class; `reason` is a CamelCase word, `message` one or two full sentences."""

    exit_code = EXIT_TRANSIENT

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


class InputError(LetheError):
    """Something the user has to change; a retry of the same input cannot help."""

    exit_code = EXIT_INPUT


class TableError(InputError):
    """The table is not what it was when the work was asked for. Nothing can be said of any request before that is settled."""


class LedgerError(InputError):
    """A ledger file cannot be used as it is; reading must refuse rather than show deleted rows."""


class ConflictError(LetheError):
    """The table moved between plan and commit. Nothing was committed; plan anew on the new head."""


class UnknownCommitState(LetheError):
    """The catalog did not say whether the commit landed. Never delete its files; look in the ledger first."""


class TransientError(LetheError):
    """A dependency is away for now."""
