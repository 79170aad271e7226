"""The errors of Lethe, by what a caller does next, and the verdicts that people read. Pure.

    LetheError
    ├── InputError          the user changes something; a run exits with 10
    │   ├── TableError      the table changed; no single request is at fault, and none is refused permanently
    │   └── LedgerError     a ledger file is missing, truncated, too new, or in the wrong folder
    ├── ConflictError       the ledger or the table moved: plan again and try again
    ├── UnknownCommitState  it is unknown whether the commit succeeded: check the ledger before anything else
    └── TransientError      try again later; a run exits with 20

`reason` is the CamelCase word in a condition or event. The message says which resource or file, what was expected and found,
and what to do. Neither contains secrets or erased values.

A verdict is the reason and the message that conditions, events, results, ledgers and errors show.
"""

import re
from dataclasses import dataclass, field, replace
from typing import Final, Self

_TEXT: Final = re.compile(r"([A-Z][A-Za-z]+): ")


@dataclass(frozen=True)
class Verdict:
    """What was found or decided about something: a reason for programs, and a message for users.

    A subclass has more than that. `LetheError.of` makes an error of a verdict, and `LetheError.verdict` is that of an error.
    """

    reason: str
    """CamelCase, as in `lethe_operator.reasons`; "": an earlier version stored none."""
    message: str
    """One or two full sentences, without secrets and erased values."""
    transient: bool = field(default=False, kw_only=True)
    """It may pass by itself. False: a user must change something, or nothing is to be done."""

    def __str__(self) -> str:
        """The text that ledgers store; `parse` reads it."""
        return f"{self.reason}: {self.message}" if self.reason else self.message

    def adding(self, text: str) -> Self:
        """With another sentence at the end of the message."""
        return replace(self, message=f"{self.message} {text}")

    @classmethod
    def parse(cls, text: str) -> "Verdict":
        """Read the text that `str` gives. A text that does not begin with a reason and a colon becomes the message."""
        match = _TEXT.match(text)
        return Verdict(match[1], text[match.end() :]) if match else Verdict("", text)


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
