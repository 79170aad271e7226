"""The errors of Lethe, by what a caller does next.

    LetheError
    ├── InputError          the user changes something; a run exits with 10
    │   ├── TableError      the table changed; no single request is at fault, and none is refused permanently
    │   └── LedgerError     a ledger file is missing, truncated, too new, or in the wrong folder
    ├── ConflictError       the ledger or the table moved: plan again and try again
    ├── UnknownCommitState  it is unknown whether the commit succeeded: check the ledger before anything else
    └── TransientError      try again later; a run exits with 20

`reason` is the CamelCase word in a condition or event. The message says which resource or file, what was expected and found,
and what to do. Neither contains secrets or erased values.
"""

from typing import Final, Self

from lethe.base.verdict import Verdict

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

    @classmethod
    def of(cls, verdict: Verdict) -> Self:
        """An error with the reason and the message of a verdict."""
        return cls(verdict.reason, verdict.message)

    @property
    def verdict(self) -> Verdict:
        """The reason and the message, without the error."""
        return Verdict(self.reason, self.message, transient=self.exit_code == EXIT_TRANSIENT)

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


class InputError(LetheError):
    """The user has to change something. A retry with the same input does not help."""

    exit_code = EXIT_INPUT


class TableError(InputError):
    """The table is not the one that the request was made for. No request can be assessed until that is settled."""


class LedgerError(InputError):
    """A ledger file is unusable. Reads must fail, because they would show deleted rows."""


class ConflictError(LetheError):
    """The table moved between plan and commit. Nothing was committed. Plan again on the new head."""


class UnknownCommitState(LetheError):
    """It is unknown whether the commit succeeded. Check the ledger first. Never delete the files of the commit."""


class TransientError(LetheError):
    """A dependency is temporarily unavailable."""


class InvalidSettings(ValueError):
    """An environment variable of a process has an invalid value; the message names it."""
