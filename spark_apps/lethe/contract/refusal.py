"""Why a batch or a request is refused, as a value that goes from the check to the status unchanged. Pure."""

import re
from dataclasses import dataclass
from typing import Final

_TEXT: Final = re.compile(r"([A-Z][A-Za-z]+): ")


@dataclass(frozen=True)
class Refusal:
    reason: str  # CamelCase, for programs; "": an earlier version stored none
    message: str  # for users

    def __str__(self) -> str:
        """The text that ledgers store; `parse` reads it."""
        return f"{self.reason}: {self.message}" if self.reason else self.message

    @classmethod
    def parse(cls, text: str) -> "Refusal":
        found = _TEXT.match(text)
        return cls(found[1], text[found.end() :]) if found else cls("", text)
