"""A verdict: the reason and the message that conditions, events, results, ledgers and errors show. Pure."""

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
